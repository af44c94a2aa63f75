//! Kind B: sessions and their connections while they come up, refuse and move.

use std::time::Duration;

use xio_proto::storage::Counts;
use xio_proto::{
    CmEvent, CmKind, CommandError, Config, ConnectOptions, Event, Failure, Keepalive, Message,
    Reason, RequestOptions, Resource, SessionId, Step, TransportLimits,
};
use xio_tests::pair::Pair;
use xio_tests::rig::{Gate, Rig, small};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{
    accepts, asked, closed, connects, creates, deaf_to_frames, disconnects, established, failed,
    is, reasons, resolves, serve, settle, wind_up,
};

#[test]
fn close_and_abort_at_every_step_end_once() {
    for who in 0..2 {
        for abort in [false, true] {
            for after in 0..24 {
                let mut rig = Rig::new();
                let client = rig.dial(60);
                let mut server = Vec::new();
                for turn in 0..after {
                    rig.step(turn % 2);
                    server.extend(serve(&mut rig, &[]));
                }
                let now = rig.now;
                let connection = if who == 0 {
                    Some(client)
                } else {
                    server.first().copied()
                };
                let Some(connection) = connection else {
                    continue;
                };
                let endpoint = &mut rig.sides[who].endpoint;
                let done = if abort {
                    endpoint.abort(now, connection)
                } else {
                    endpoint.close(now, connection)
                };
                done.expect("known");
                let start = rig.now;
                settle(&mut rig);
                while closed(&rig, 0) == 0 {
                    assert!(rig.advance(), "{who}, {abort}, {after}");
                    settle(&mut rig);
                }
                let took = rig.now.since(start);
                assert!(
                    took <= Duration::from_secs(1),
                    "{who}, {abort}, {after}: {took:?}"
                );
                let begun = established(&rig, 0) + failed(&rig, 0);
                assert_eq!(begun, 1, "{who}, {abort}, {after}: {:?}", rig.log[0]);
                wind_up(&mut rig);
                assert_eq!(closed(&rig, 0), 1);
            }
        }
    }
}

/// A client that waits for its server's user to decide about a session.
fn waiting() -> (Rig, SessionId) {
    let mut rig = Rig::new();
    rig.dial(60);
    let session = asked(&mut rig);
    (rig, session)
}

#[test]
fn a_rejection_is_told_once_and_leaves_nothing() {
    let (mut rig, session) = waiting();
    let (now, side) = (rig.now, &mut rig.sides[1]);
    let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
    endpoint
        .reject(now, session, 4711, b"not today", slots)
        .expect("asked");
    rig.run();
    let told = |event: &Event| match *event {
        Event::ConnectFailed {
            reason,
            private,
            message,
            ..
        } => Some((reason, private, message)),
        _ => None,
    };
    let told: Vec<_> = rig.log[0].iter().filter_map(told).collect();
    let [(Reason::Rejected(4711), private, Some(message))] = told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(rig.sides[0].bytes(private), b"not today");
    rig.sides[0].endpoint.release(message).expect("held");
    while free_rows(&mut rig) != rig.free {
        assert!(rig.advance(), "{:?}", rig.log);
    }
    assert_eq!(reasons(&rig, 0), [Reason::Rejected(4711)]);
    assert_eq!(established(&rig, 0) + established(&rig, 1), 0);
    wind_up(&mut rig);
}

fn shared(user: u64) -> ConnectOptions {
    ConnectOptions::new(user)
}

#[test]
fn all_sessions_of_one_turn_are_established() {
    for is_up in [false, true] {
        let mut rig = Rig::new();
        if is_up {
            rig.dial_with(&shared(60));
            settle(&mut rig);
        }
        for user in 61..64 {
            rig.dial_with(&shared(user));
        }
        settle(&mut rig);
        let all = 3 + usize::from(is_up);
        assert_eq!((established(&rig, 0), established(&rig, 1)), (all, all));
        let made = rig.steps[0].iter().filter(|step| connects(step)).count();
        assert_eq!(made, 1, "one transport connection for all");
        wind_up(&mut rig);
    }
}

#[test]
fn what_was_said_before_a_close_that_waits_for_the_answer_is_sent() {
    for flow_control in [false, true] {
        let config = |i| Config {
            flow_control,
            ..small(i)
        };
        let mut rig = Rig::with(config, |_| TransportLimits::rdma());
        let client = rig.dial(60);
        rig.run();
        let (now, endpoint) = (rig.now, &mut rig.sides[0].endpoint);
        let (message, options) = (Message::default(), RequestOptions::default());
        endpoint.send_one_way(client, &message, &options).unwrap();
        endpoint.close(now, client).unwrap();
        settle(&mut rig);
        let came = is(&rig, 1, |event| matches!(event, Event::OneWay { .. }));
        let sent = is(&rig, 0, |event| matches!(event, Event::Sent { .. }));
        assert_eq!((came, sent), (1, 1), "{:?}", rig.log[0]);
        wind_up(&mut rig);
    }
}

#[test]
fn who_is_aborted_beside_another_hears_of_it_by_keepalive() {
    let mut rig = Rig::new();
    let mut talk = Talk::open(&mut rig, false);
    let (client, server) = (talk.connections[0], talk.connections[1]);
    rig.dial_with(&shared(61));
    settle(&mut rig);
    assert_eq!((established(&rig, 0), established(&rig, 1)), (2, 2));
    (talk.connections, talk.keep) = ([client, server], [true; 2]);
    talk.say(&mut rig, 1, &Say::request(1));
    talk.settle(&mut rig);
    let now = rig.now;
    let aborted = rig.sides[0].endpoint.abort(now, client.unwrap());
    assert_eq!(aborted, Ok(()));
    talk.say(&mut rig, 1, &Say::request(2));
    talk.settle(&mut rig);
    assert_eq!((closed(&rig, 0), closed(&rig, 1)), (1, 0), "nobody told it");
    while closed(&rig, 1) == 0 {
        assert!(rig.advance(), "{:#?}", talk.heard);
        talk.settle(&mut rig);
    }
    // 60 s until it asks, and three looks of 20 s each.
    assert!(rig.now.since(now) <= Duration::from_secs(120));
    let lost = Reason::TimedOut(Step::Keepalive);
    assert_eq!(reasons(&rig, 1), [lost]);
    let failure = Failure::ConnectionEnded(lost);
    for user in [1, 2] {
        let told = format!("failed {user}: {failure:?}");
        assert_eq!(talk.count(1, &told), 1, "{:#?}", talk.heard);
    }
    assert_eq!(
        (closed(&rig, 0), closed(&rig, 1)),
        (1, 1),
        "the other stays"
    );
    wind_up(&mut rig);
}

#[test]
fn who_waits_for_a_transport_connection_hears_of_its_end() {
    for up in [false, true] {
        let mut rig = Rig::new();
        rig.gates[0] = if up {
            deaf_to_frames()
        } else {
            Gate::default().hold(connects)
        };
        for user in 61..64 {
            rig.dial_with(&shared(user));
        }
        rig.run();
        rig.tell(
            0,
            if up {
                CmKind::Disconnected
            } else {
                CmKind::Rejected
            },
        );
        rig.run();
        assert_eq!((failed(&rig, 0), closed(&rig, 0)), (3, 3));
        // The next one is not kept waiting for what is over.
        rig.let_go(0);
        rig.dial_with(&shared(64));
        settle(&mut rig);
        assert_eq!(established(&rig, 0), 1);
        wind_up(&mut rig);
    }
}

#[test]
fn a_failed_step_ends_its_attempt_and_no_other() {
    let mut rig = Rig::new();
    let mut talk = Talk::open(&mut rig, false);
    for i in 0..2 {
        rig.gates[i] = Gate::default().fail(creates, 12);
        rig.dial(61);
        rig.run();
        rig.gates[i] = Gate::default();
    }
    assert_eq!(
        reasons(&rig, 0),
        [Reason::DriverFailed(12), Reason::Refused]
    );
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    // What failed once works the next time.
    rig.dial(62);
    settle(&mut rig);
    assert_eq!(established(&rig, 0), 2);
    wind_up(&mut rig);
}

#[test]
fn a_session_that_nobody_decides_on_is_refused_in_time() {
    let mut rig = Rig::new();
    rig.dial(60);
    rig.run();
    let start = rig.now;
    while failed(&rig, 0) == 0 {
        assert!(rig.advance());
    }
    assert!(rig.now.since(start) <= Duration::from_secs(10));
    wind_up(&mut rig);
    let timeout = xio_proto::wire::status::TIMEOUT;
    let reason = reasons(&rig, 0)[0];
    assert!(
        reason == Reason::Rejected(timeout) || reason == Reason::TimedOut(Step::SessionSetup),
        "{reason:?}"
    );
}

#[test]
fn a_session_nobody_comes_to_is_over_in_time() {
    let mut rig = Rig::new();
    rig.dial(60);
    rig.run();
    rig.gates[0] = Gate::default().hold(resolves);
    serve(&mut rig, &[b"rdma://10.0.0.2:7000"]);
    rig.run();
    let now = rig.now;
    let client = rig.dialed[0];
    rig.sides[0].endpoint.abort(now, client).expect("known");
    rig.run();
    let start = rig.now;
    while rig.sides[1].endpoint.free_rows().sessions < rig.free[1].sessions {
        assert!(rig.advance(), "{:?}", rig.log[1]);
    }
    assert!(rig.now.since(start) <= Duration::from_secs(11));
    wind_up(&mut rig);
}

#[test]
fn a_moved_connection_leaves_nothing_behind() {
    for redirect in [false, true] {
        for lost in 0..20 {
            for i in 0..2 {
                let (mut rig, session) = waiting();
                let (now, side) = (rig.now, &mut rig.sides[1]);
                let portals: [&[u8]; 1] = [b"rdma://10.0.0.2:7000"];
                let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
                if redirect {
                    endpoint
                        .redirect(now, session, &portals, slots)
                        .expect("asked");
                } else {
                    endpoint
                        .accept(now, session, 70, &portals, b"", slots)
                        .expect("asked");
                }
                let first = rig.nexus(i);
                for turn in 0..lost {
                    rig.step(turn % 2);
                    serve(&mut rig, &[]);
                }
                rig.tell_of(i, first, CmEvent::plain(CmKind::Disconnected));
                settle(&mut rig);
                wind_up(&mut rig);
                assert_eq!(closed(&rig, 0), 1, "{redirect}, {lost}, {i}");
            }
        }
    }
}

/// The portal is named in the setup, which is sent after the user has heard of all and closed.
#[test]
fn a_client_that_closes_on_its_way_to_a_portal_still_names_it() {
    let portal = b"rdma://10.0.0.2:7000";
    let named = |frame: &&Vec<u8>| frame.windows(portal.len()).any(|part| part == portal);
    let setups = |rig: &Rig| rig.sides[0].sent.iter().filter(named).count();
    let mut after_close = 0;
    for steps in 0..24 {
        let (mut rig, session) = waiting();
        let (now, side) = (rig.now, &mut rig.sides[1]);
        let sent_on = side
            .endpoint
            .redirect(now, session, &[portal], &mut side.slots);
        assert_eq!(sent_on, Ok(()));
        rig.sides[0].deaf = true;
        for turn in 0..steps {
            rig.step(turn % 2);
        }
        let before = setups(&rig);
        let (now, client) = (rig.now, rig.dialed[0]);
        let closed = rig.sides[0].endpoint.close(now, client);
        assert_eq!(closed, Ok(()));
        rig.gates[0].idle = true;
        rig.sides[0].deaf = false;
        rig.run();
        rig.gates[0].idle = false;
        settle(&mut rig);
        after_close += setups(&rig) - before;
        wind_up(&mut rig);
    }
    assert!(after_close > 0, "none closed when the setup was due");
}

/// Without a row for the goodbye: alone it ends the old transport connection, so that the server is done
/// with it at once; beside others it is silent, and the server waits.
#[test]
fn who_is_sent_away_with_a_full_table_leaves_without_goodbye() {
    for others in [0, 3] {
        let counts = |config: &Config| Counts {
            connections: if config.endpoint == 0 { others + 1 } else { 16 },
            ..Pair::counts(config)
        };
        let mut rig = Rig::sized(small, counts, |_| TransportLimits::rdma());
        for user in 0..others {
            rig.dial_with(&shared(user as u64));
        }
        settle(&mut rig);
        rig.dial_with(&shared(60));
        let session = asked(&mut rig);
        let (now, side) = (rig.now, &mut rig.sides[1]);
        let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
        let portals: [&[u8]; 1] = [b"rdma://10.0.0.2:7000"];
        endpoint
            .redirect(now, session, &portals, slots)
            .expect("asked");
        settle(&mut rig);
        let all = others + 1;
        assert_eq!((established(&rig, 0), established(&rig, 1)), (all, all));
        assert_eq!((reasons(&rig, 0), reasons(&rig, 1)), (vec![], vec![]));
        let left = |rig: &Rig| {
            let rows = rig.free[1].connections - rig.sides[1].endpoint.free_rows().connections;
            rows as usize - all
        };
        assert_eq!(left(&rig), usize::from(others > 0));
        let start = rig.now;
        while left(&rig) > 0 {
            assert!(rig.advance(), "{:?}", rig.log[1]);
        }
        let waited = rig.now.since(start);
        let fin_timeout = small(1).fin_timeout;
        let most = if others > 0 {
            fin_timeout
        } else {
            Duration::ZERO
        };
        assert!(waited == most, "{waited:?}");
        wind_up(&mut rig);
    }
}

/// Its client has gone, but the connection is not freed yet.
#[test]
fn a_session_whose_connection_is_ending_is_not_answered() {
    const KEEPALIVE_REQ: [u8; 4] = [0, 0, 0x40, 2];
    for how in ["accept", "reject", "redirect"] {
        let config = |i| Config {
            keepalive: small(i).keepalive.map(|keepalive| Keepalive {
                time: Duration::from_secs(1),
                ..keepalive
            }),
            ..small(i)
        };
        let mut rig = Rig::with(config, |_| TransportLimits::rdma());
        rig.dial_with(&shared(60));
        settle(&mut rig);
        rig.dial_with(&shared(61));
        let session = asked(&mut rig);
        // A keepalive for the first becomes one for the second, whose number is easily guessed; its
        // answer is out when the transport connection ends, which therefore keeps the connection.
        rig.gates[1].frames = true;
        while rig.waiting(1) == 0 {
            assert!(rig.advance());
        }
        let mut frame = rig.intercept(1).expect("one waits");
        assert_eq!(frame[4..8], KEEPALIVE_REQ);
        let first = u32::from_be_bytes(frame[16..20].try_into().expect("four bytes"));
        frame[16..20].copy_from_slice(&(first + 1).to_be_bytes());
        rig.gates[1] = Gate::default().hold(disconnects);
        rig.gates[1].sends = true;
        assert!(rig.inject(1, &frame));
        rig.run();
        rig.tell(1, CmKind::AddrChange);
        let (now, side) = (rig.now, &mut rig.sides[1]);
        let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
        let answered = match how {
            "accept" => {
                let accepted = endpoint.accept(now, session, 70, &[], b"", slots);
                accepted.map(|_| ())
            }
            "reject" => endpoint.reject(now, session, 5, b"", slots),
            _ => endpoint.redirect(now, session, &[b"rdma://10.0.0.2:7000"], slots),
        };
        let gone = CommandError::WrongState("its client has gone");
        assert_eq!(answered, Err(gone), "{how}");
        wind_up(&mut rig);
    }
}

/// Whether its user has closed meanwhile or not.
#[test]
fn a_server_that_decides_too_late_hears_that_its_client_left() {
    for closes in [false, true] {
        let config = |i| Config {
            setup_timeout: Duration::from_secs(2 + 60 * u64::from(i)),
            ..small(i)
        };
        let mut rig = Rig::with(config, |_| TransportLimits::rdma());
        let client = rig.dial(60);
        rig.run();
        let now = rig.now;
        if closes {
            let closing = rig.sides[0].endpoint.close(now, client);
            assert_eq!(closing, Ok(()));
            rig.run();
        }
        while closed(&rig, 0) == 0 {
            assert!(rig.advance());
        }
        assert_eq!(rig.now.since(now), Duration::from_secs(2));
        let over = is(&rig, 1, |event| {
            matches!(event, Event::SessionClosed { .. })
        });
        assert_eq!(over, 1, "{closes}: {:#?}", rig.log[1]);
        wind_up(&mut rig);
    }
}

#[test]
fn who_closes_and_loses_its_transport_connection_hears_that_it_failed() {
    let mut rig = Rig::new();
    let client = rig.dial(60);
    rig.run();
    let (now, endpoint) = (rig.now, &mut rig.sides[0].endpoint);
    endpoint.close(now, client).expect("known");
    rig.run();
    rig.tell(0, CmKind::Disconnected);
    rig.run();
    assert_eq!(
        (failed(&rig, 0), closed(&rig, 0)),
        (1, 1),
        "{:#?}",
        rig.log[0]
    );
    wind_up(&mut rig);
}

#[test]
fn a_connect_that_is_refused_at_once_changes_nothing() {
    let mut rig = Rig::new();
    for user in 0..4 {
        rig.dial(user);
    }
    let before = free_rows(&mut rig);
    let (now, side) = (rig.now, &mut rig.sides[0]);
    let open = xio_proto::SessionOpen {
        uri: "rdma://10.0.0.2:7000/res",
        private: b"",
    };
    let peer = xio_tests::pair::SERVER.parse().expect("an address");
    let mut options = ConnectOptions::new(9);
    options.own_nexus = true;
    let (transport, slots) = (side.transport, &mut side.slots);
    let refused = side
        .endpoint
        .connect(now, transport, peer, &open, &options, slots);
    assert_eq!(refused, Err(CommandError::Full(Resource::Nexuses)));
    assert_eq!(free_rows(&mut rig), before);
    settle(&mut rig);
    assert_eq!(established(&rig, 0) + failed(&rig, 0), 4);
    wind_up(&mut rig);
}

#[test]
fn a_hello_for_nothing_ends_its_transport_connection() {
    // A HELLO of a good conversation.
    let mut rig = Rig::new();
    rig.dial(60);
    rig.run();
    serve(&mut rig, &[b"rdma://10.0.0.2:7000"]);
    settle(&mut rig);
    let is_hello = |frame: &&Vec<u8>| frame[4..8] == [0, 0, 2, 2];
    let hello = rig.sides[0]
        .sent
        .iter()
        .find(is_hello)
        .expect("a HELLO")
        .clone();
    assert_eq!(established(&rig, 0), 1);
    wind_up(&mut rig);
    for guess in [0, 1, 0xffff_ffff_u32] {
        let mut rig = Rig::new();
        let mut talk = Talk::open(&mut rig, false);
        // A stranger on a transport connection of its own names a session of others, or none.
        rig.dial(61);
        rig.gates[1] = Gate::default();
        while rig.steps[1].iter().filter(|step| accepts(step)).count() < 2 {
            assert!(rig.step(0) | rig.step(1));
        }
        rig.gates[1] = deaf_to_frames();
        rig.run();
        rig.arrive(1, 1);
        rig.run();
        rig.intercept(1).expect("its own setup");
        let mut frame = hello.clone();
        frame[16..20].copy_from_slice(&guess.to_be_bytes());
        let before = rig.sides[1].endpoint.counters().violations;
        assert!(rig.inject(1, &frame));
        rig.run();
        assert_eq!(
            rig.sides[1].endpoint.counters().violations,
            before + 1,
            "{guess}"
        );
        rig.gates[1] = Gate::default();
        settle(&mut rig);
        assert_eq!((failed(&rig, 0), closed(&rig, 1)), (1, 0));
        talk.say(&mut rig, 0, &Say::request(1));
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "response 1"), 1, "others go on");
        wind_up(&mut rig);
    }
}
