//! Kind A: what is under way when a connection ends, alone or beside others.

use std::time::Duration;

use xio_proto::{
    Config, ConnectOptions, Event, Extensions, Failure, Message, RemoteMemory, RequestOptions,
    TransportLimits, Work,
};
use xio_tests::rig::{Rig, small};
use xio_tests::talk::{Say, Talk, World};

use crate::users::{abort, asked, closed, established, is, open, settle, wind_up};

/// Two connections on one transport connection; the talk is on the first.
fn beside_another() -> (Rig, Talk) {
    beside_another_with(small)
}

fn beside_another_with(config: impl Fn(u8) -> Config) -> (Rig, Talk) {
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = Talk::open(&mut rig, false);
    let first = talk.connections;
    rig.dial_with(&ConnectOptions::new(61));
    talk.settle(&mut rig);
    assert_eq!(established(&rig, 0), 2);
    talk.connections = first;
    (rig, talk)
}

/// Time passes, but not that of a keepalive.
fn soon_after(rig: &mut Rig, talk: &mut Talk) {
    let end = rig.now.after(Duration::from_millis(50));
    loop {
        talk.settle(rig);
        let sides = rig.sides.iter();
        let due = sides.filter_map(|side| side.endpoint.poll_timeout()).min();
        if due.is_none_or(|at| at > end) {
            return;
        }
        rig.advance();
    }
}

fn violations(rig: &Rig) -> [u64; 2] {
    [0, 1].map(|i| rig.sides[i].endpoint.counters().violations)
}

/// One ended on both sides, and the other lives.
fn the_other_stays(rig: &Rig) {
    assert_eq!(violations(rig), [0, 0], "{:#?}", rig.log);
    let ended = (closed(rig, 0), closed(rig, 1));
    assert_eq!(ended, (1, 1), "{:#?}", rig.log);
}

/// A message that is READ by its receiver.
fn large(user: u64) -> Say {
    Say {
        gathered: 5000,
        force_read: true,
        inline: 0,
        ..Say::request(user)
    }
}

#[test]
fn a_receipt_that_is_due_behind_the_last_fin_harms_nobody() {
    // As if they were libxio, and as they are.
    let both = [Extensions::empty(), Extensions::DEFAULT];
    for (one_way, extensions) in [
        (false, both[0]),
        (true, both[0]),
        (false, both[1]),
        (true, both[1]),
    ] {
        let (mut rig, mut talk) = beside_another_with(|i| Config {
            extensions,
            ..small(i)
        });
        // Its user has not heard of the message when it closes.
        rig.sides[1].deaf = true;
        let say = Say {
            receipt: true,
            one_way,
            ..Say::request(1)
        };
        talk.say(&mut rig, 0, &say);
        rig.run();
        let (now, server) = (rig.now, talk.connections[1].expect("open"));
        rig.sides[1].endpoint.close(now, server).expect("open");
        rig.run();
        let before = rig.sides[1].sent.len();
        rig.sides[1].deaf = false;
        soon_after(&mut rig, &mut talk);
        let is_told = rig.sides[1].sent.len() > before;
        assert_eq!(is_told, !extensions.is_empty(), "behind the last FIN_RSP");
        the_other_stays(&rig);
        wind_up(&mut rig);
    }
}

/// An answer to what waited when its connection ended is late; one more than that is made up.
#[test]
fn answers_behind_the_last_fin_are_as_many_as_waited() {
    for waiting in 1..4 {
        let (mut rig, mut talk) = beside_another();
        talk.keep[1] = true;
        for user in 0..waiting {
            talk.say(&mut rig, 0, &Say::request(user));
        }
        talk.settle(&mut rig);
        talk.keep[1] = false;
        rig.gates[0].frames = true;
        talk.say(&mut rig, 0, &Say::request(9));
        talk.settle(&mut rig);
        let mut forged = rig.intercept(0).expect("the response");
        // It comes after all, and what goes on has the next numbers.
        assert!(rig.inject(0, &forged));
        rig.gates[0].frames = false;
        let (now, client) = (rig.now, talk.connections[0].expect("open"));
        rig.sides[0].endpoint.close(now, client).expect("open");
        soon_after(&mut rig, &mut talk);
        the_other_stays(&rig);
        for n in 0..=waiting {
            assert_eq!(violations(&rig)[0], 0, "{n} of {waiting} were late");
            let last = rig.sides[1].sent.last().expect("the last FIN");
            let sn = u16::from_be_bytes([last[60], last[61]]) + 1 + n as u16;
            forged[60..62].copy_from_slice(&sn.to_be_bytes());
            assert!(rig.inject(0, &forged));
            rig.run();
        }
        assert_eq!(violations(&rig)[0], 1, "{:#?}", rig.log[0]);
        wind_up(&mut rig);
    }
}

#[test]
fn a_payload_that_is_decided_on_behind_the_last_fin_harms_nobody() {
    for (one_way, provide) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut rig, mut talk) = beside_another();
        talk.keep[1] = true;
        let say = Say {
            one_way,
            ..large(1)
        };
        talk.say(&mut rig, 0, &say);
        talk.settle(&mut rig);
        let (now, server) = (rig.now, talk.connections[1].expect("open"));
        rig.sides[1].endpoint.close(now, server).expect("open");
        talk.settle(&mut rig);
        let (task, len) = talk.waiting[1].pop().expect("one waits");
        if provide {
            talk.provide(&mut rig, 1, task, len);
        } else {
            rig.sides[1].endpoint.refuse(task, 9).expect("it waits");
        }
        soon_after(&mut rig, &mut talk);
        assert_eq!(violations(&rig), [0, 0], "{one_way}, {provide}");
        // A request that was READ is answered too late: its buffers are held while the other lives.
        let answered = one_way || !provide;
        let ended = (closed(&rig, 0), closed(&rig, 1));
        assert_eq!(ended, (usize::from(answered), 1), "{:#?}", rig.log);
        talk.let_go(&mut rig, 1);
        wind_up(&mut rig);
    }
}

#[test]
fn who_aborts_beside_another_is_closed_with_the_answer() {
    for one_way in [false, true] {
        let (mut rig, mut talk) = beside_another();
        let say = Say {
            one_way,
            ..large(1)
        };
        talk.say(&mut rig, 0, &say);
        rig.run();
        abort(&mut rig, &talk, 0);
        rig.run();
        assert_eq!(closed(&rig, 0), 0, "the peer may READ");
        talk.settle(&mut rig);
        assert_eq!(closed(&rig, 0), 1, "it has answered: {:#?}", talk.heard);
        wind_up(&mut rig);
    }
}

/// One that came later is not heard when an earlier one is lost.
#[test]
fn what_waits_behind_a_payload_that_never_came_is_not_heard() {
    type End = fn(&mut Rig, &Talk);
    let close: End = |rig, talk| {
        let (now, server) = (rig.now, talk.connections[1].expect("open"));
        rig.sides[1].endpoint.close(now, server).expect("open");
    };
    let lose: End = |rig, _| rig.tell(1, xio_proto::CmKind::Disconnected);
    let ends: [End; 4] = [
        |rig, talk| abort(rig, talk, 0),
        |rig, talk| abort(rig, talk, 1),
        close,
        lose,
    ];
    for end in ends {
        for one_way in [false, true] {
            let (mut rig, mut talk) = open();
            talk.keep[1] = true;
            for say in [large(1), Say::request(2)] {
                talk.say(&mut rig, 0, &Say { one_way, ..say });
            }
            talk.settle(&mut rig);
            assert_eq!(talk.waiting[1].len(), 1);
            end(&mut rig, &talk);
            talk.outlive(&mut rig);
            let heard = talk.count(1, "one-way 2") + talk.count(1, "request 2");
            assert_eq!(heard, 0, "{:#?}", talk.heard[1]);
            talk.let_go(&mut rig, 1);
            wind_up(&mut rig);
        }
    }
}

#[test]
fn what_a_client_said_that_closed_and_was_not_let_in_was_never_sent() {
    let portals: [&[u8]; 1] = [b"rdma://10.0.0.2:7000"];
    for how in ["reject", "redirect", "portals"] {
        for one_way in [false, true] {
            let mut rig = Rig::new();
            let client = rig.dial(60);
            let session = asked(&mut rig);
            let (now, endpoint) = (rig.now, &mut rig.sides[0].endpoint);
            let (message, options) = (Message::default(), RequestOptions::default());
            let said = if one_way {
                endpoint.send_one_way(client, &message, &options)
            } else {
                endpoint.send(client, &message, &options)
            };
            assert!(said.is_ok(), "{said:?}");
            endpoint.close(now, client).expect("known");
            let side = &mut rig.sides[1];
            let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
            let answered = match how {
                "reject" => endpoint.reject(now, session, 5, b"", slots),
                "redirect" => endpoint.redirect(now, session, &portals, slots),
                _ => {
                    let accepted = endpoint.accept(now, session, 7, &portals, b"", slots);
                    accepted.map(|_| ())
                }
            };
            assert_eq!(answered, Ok(()));
            settle(&mut rig);
            let never = |event: &Event| {
                let Event::Failed { failure, .. } = event else {
                    return false;
                };
                matches!(failure, Failure::NeverSent(_))
            };
            let sent = is(&rig, 0, |event| matches!(event, Event::Sent { .. }));
            let outcomes = (sent, is(&rig, 0, never));
            assert_eq!(outcomes, (0, 1), "{how}, {one_way}: {:#?}", rig.log[0]);
            wind_up(&mut rig);
        }
    }
}

#[test]
fn a_direct_write_that_is_half_out_was_sent() {
    let limits = |_| TransportLimits {
        max_message: 4096,
        sq_depth: 8,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(small, limits);
    let mut talk = Talk::open(&mut rig, false);
    for side in &mut rig.sides {
        side.memory.resize(100_000, 1);
    }
    let local = [rig.sides[0].segment(0, 80_000)];
    let far = rig.sides[1].segment(0, 80_000);
    let remote = RemoteMemory {
        addr: far.addr,
        len: 80_000,
        key: far.rkey,
    };
    rig.gates[0].sends = true;
    let (now, client) = (rig.now, talk.connections[0].expect("open"));
    let endpoint = &mut rig.sides[0].endpoint;
    let asked = endpoint.write(client, &local, &remote, 5, None);
    assert!(asked.is_ok(), "{asked:?}");
    talk.settle(&mut rig);
    let posted = rig.posted[0].iter();
    let writes = posted.filter(|work| matches!(work, Work::Write { .. }));
    assert!((1..20).contains(&writes.count()));
    let server = talk.connections[1].expect("open");
    rig.sides[1].endpoint.close(now, server).expect("open");
    talk.settle(&mut rig);
    rig.gates[0].sends = false;
    rig.complete_sends(0, usize::MAX);
    talk.outlive(&mut rig);
    let failed = talk.count(0, "failed 5: ConnectionEnded");
    assert_eq!(failed, 1, "{:#?}", talk.heard);
    wind_up(&mut rig);
}

#[test]
fn credits_for_a_connection_that_is_ending_are_no_violation() {
    let (mut rig, mut talk) = beside_another_with(|i| Config {
        flow_control: true,
        depth_messages: 4,
        ..small(i)
    });
    // The server's user has them, and the data of the first is not here yet.
    talk.keep[1] = true;
    for say in [large(1), Say::one_way(2), Say::one_way(3)] {
        talk.say(&mut rig, 0, &say);
    }
    talk.settle(&mut rig);
    abort(&mut rig, &talk, 0);
    talk.connections[0] = None;
    talk.say(&mut rig, 1, &Say::one_way(9));
    talk.settle(&mut rig);
    talk.let_go(&mut rig, 1);
    talk.settle(&mut rig);
    assert_eq!(violations(&rig), [0, 0], "{:#?}", talk.heard);
    wind_up(&mut rig);
}
