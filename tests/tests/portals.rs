//! Portals of an answer: all are told to the user, and tried one after the other.

use core::time::Duration;

use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Event, FreeRows, Reason, SessionOpen, Step,
};
use xio_tests::pair::{Pair, SERVER};

const URI: &str = "rdma://10.0.0.2:7000/first";

/// A client whose server is asked for the session, and what is free at both before.
fn asked() -> (Pair, ConnectionId, xio_proto::SessionId, [FreeRows; 2]) {
    asked_with(|i| Config::new(i, 400, 128))
}

fn asked_with(
    config: impl Fn(u8) -> Config,
) -> (Pair, ConnectionId, xio_proto::SessionId, [FreeRows; 2]) {
    let counts = Pair::counts(&config(0));
    let mut world = Pair::rdma(config, &counts);
    world.listen(50);
    let free = [0, 1].map(|i: usize| world.sides[i].endpoint.free_rows());
    let side = &mut world.sides[0];
    let open = SessionOpen {
        uri: URI,
        private: b"p",
    };
    let (peer, transport, now) = (SERVER.parse().unwrap(), side.transport, world.now);
    let options = ConnectOptions::new(60);
    let client = side
        .endpoint
        .connect(now, transport, peer, &open, &options, &mut side.slots)
        .unwrap();
    world.run();
    let Some(Event::SessionRequest { session, .. }) = world.sides[1].events.pop_front() else {
        panic!()
    };
    for k in 1..=8 {
        let address = format!("10.0.0.{k}:9").parse().unwrap();
        world.unreachable.push(address);
    }
    (world, client, session, free)
}

fn accept(world: &mut Pair, session: xio_proto::SessionId, portals: &[&[u8]], private: &[u8]) {
    let (side, now) = (&mut world.sides[1], world.now);
    side.endpoint
        .accept(now, session, 70, portals, private, &mut side.slots)
        .unwrap();
    world.run();
}

fn redirect(world: &mut Pair, session: xio_proto::SessionId, portals: &[&[u8]]) {
    let (side, now) = (&mut world.sides[1], world.now);
    side.endpoint
        .redirect(now, session, portals, &mut side.slots)
        .unwrap();
}

/// The list that the client is told, with how many of it have names.
fn told(world: &mut Pair) -> (Vec<String>, u16) {
    let event = world.sides[0].events.pop_front();
    let Some(Event::Portals {
        user: 60,
        list,
        count,
        unresolved,
        ..
    }) = event
    else {
        panic!("{event:?}")
    };
    let list = xio_proto::wire::portals(world.sides[0].bytes(list));
    let list: Vec<String> = list
        .map(|text| String::from_utf8(text.to_vec()).unwrap())
        .collect();
    assert_eq!(list.len(), usize::from(count));
    (list, unresolved)
}

fn close(world: &mut Pair, client: ConnectionId, free: [FreeRows; 2]) {
    let now = world.now;
    let _ = world.sides[0].endpoint.close(now, client);
    world.run();
    while world.advance() {}
    for (side, free) in world.sides.iter().zip(free) {
        assert_eq!(side.endpoint.free_rows(), free);
    }
}

#[test]
fn the_next_is_tried_when_one_fails() {
    for private in [&b""[..], b"welcome"] {
        let (mut world, client, session, free) = asked();
        let portals: [&[u8]; 3] = [
            b"rdma://10.0.0.8:9",
            b"rdma://10.0.0.7:9/x",
            b"rdma://10.0.0.2:7000",
        ];
        accept(&mut world, session, &portals, private);
        let texts = portals.map(|text| String::from_utf8(text.to_vec()).unwrap());
        assert_eq!(told(&mut world), (texts.to_vec(), 0));
        let event = world.sides[0].events.pop_front();
        let Some(Event::Established {
            user: 60,
            message,
            private: p,
            ..
        }) = event
        else {
            panic!("{event:?}")
        };
        assert_eq!(message.is_some(), !private.is_empty());
        if let Some(message) = message {
            assert_eq!(world.sides[0].bytes(p), private);
            world.sides[0].endpoint.release(message).unwrap();
        }
        let peer = world.sides[0].endpoint.info(client).unwrap().peer;
        assert_eq!(peer, SERVER.parse().unwrap());
        close(&mut world, client, free);
    }
}

#[test]
fn a_redirected_client_asks_for_the_portal_that_answers() {
    let (mut world, client, session, free) = asked();
    let portals: [&[u8]; 2] = [b"rdma://10.0.0.8:9/one", b"rdma://10.0.0.2:7000/the-second"];
    redirect(&mut world, session, &portals);
    world.run();
    assert_eq!(told(&mut world).0.len(), 2);
    let events = &mut world.sides[1].events;
    events.retain(|event| matches!(event, Event::SessionRequest { .. }));
    let event = events.pop_front();
    let Some(Event::SessionRequest {
        session,
        uri,
        private,
        ..
    }) = event
    else {
        panic!("{event:?}")
    };
    let side = &world.sides[1];
    assert_eq!(side.bytes(uri), b"rdma://10.0.0.2:7000/the-second");
    assert_eq!(side.bytes(private), b"p");
    accept(&mut world, session, &[], b"");
    let event = world.sides[0].events.pop_front();
    assert!(
        matches!(event, Some(Event::Established { .. })),
        "{event:?}"
    );
    close(&mut world, client, free);
}

#[test]
fn a_portal_that_does_not_answer_in_time_hears_that_its_client_left() {
    let config = |i| {
        let mut config = Config::new(i, 400, 128);
        config.setup_timeout = Duration::from_secs(2 + 60 * u64::from(i));
        config
    };
    let (mut world, client, session, free) = asked_with(config);
    let portals: [&[u8]; 2] = [b"rdma://10.0.0.2:7000/one", b"rdma://10.0.0.2:7000/two"];
    redirect(&mut world, session, &portals);
    let next = |world: &mut Pair| loop {
        match world.sides[1].events.pop_front() {
            Some(Event::SessionRequest { session, .. }) => break session,
            Some(_) => {}
            None => assert!(world.advance()),
        }
    };
    world.run();
    let first = next(&mut world);
    let asked = world.now;
    let second = next(&mut world);
    assert_eq!(world.now.since(asked), Duration::from_secs(2));
    let events = &mut world.sides[1].events;
    let left =
        |event: &Event| matches!(event, Event::SessionClosed { session, .. } if *session == first);
    assert!(events.iter().any(left), "{events:?}");
    let (side, now) = (&mut world.sides[1], world.now);
    let accepted = side
        .endpoint
        .accept(now, first, 70, &[], b"", &mut side.slots);
    assert_eq!(accepted, Err(CommandError::Unknown));
    accept(&mut world, second, &[], b"");
    told(&mut world);
    let event = world.sides[0].events.pop_front();
    assert!(
        matches!(event, Some(Event::Established { .. })),
        "{event:?}"
    );
    close(&mut world, client, free);
}

#[test]
fn when_all_fail_the_last_reason_is_told() {
    let (mut world, client, session, free) = asked();
    let portals: [&[u8]; 3] = [b"rdma://10.0.0.8:9", b"nonsense", b"rdma://10.0.0.7:9"];
    accept(&mut world, session, &portals, b"");
    assert_eq!(told(&mut world).1, 0);
    let event = world.sides[0].events.pop_front();
    assert!(
        matches!(
            event,
            Some(Event::ConnectFailed {
                reason: Reason::AddressError(-110),
                ..
            })
        ),
        "{event:?}"
    );
    close(&mut world, client, free);
}

#[test]
fn a_portal_with_a_name_waits_for_the_user_who_knows_it() {
    let (mut world, client, session, free) = asked();
    let portals: [&[u8]; 3] = [
        b"rdma://store.example:7000/",
        b"rdma://10.0.0.8:9",
        b"ftp://x",
    ];
    accept(&mut world, session, &portals, b"");
    assert_eq!(told(&mut world).1, 1);
    assert!(world.sides[0].events.is_empty(), "it waits");
    let (side, now) = (&mut world.sides[0], world.now);
    let peer = SERVER.parse().unwrap();
    let mut resolve = |index, peer| {
        side.endpoint
            .resolve_portal(now, client, index, peer, &mut side.slots)
    };
    assert!(matches!(resolve(3, peer), Err(CommandError::BadValue(_))));
    assert_eq!(resolve(2, peer), Err(CommandError::BadAddress));
    let nowhere = "10.0.0.2:0".parse().unwrap();
    assert_eq!(resolve(0, nowhere), Err(CommandError::BadAddress));
    assert_eq!(resolve(0, peer), Ok(()));
    world.run();
    let event = world.sides[0].events.pop_front();
    assert!(
        matches!(event, Some(Event::Established { .. })),
        "{event:?}"
    );
    let (side, now) = (&mut world.sides[0], world.now);
    let late = side
        .endpoint
        .resolve_portal(now, client, 0, peer, &mut side.slots);
    assert!(matches!(late, Err(CommandError::WrongState(_))), "{late:?}");
    close(&mut world, client, free);
}

#[test]
fn who_is_sent_away_and_comes_back_is_let_in_at_once() {
    let config = |i| {
        let mut config = Config::new(i, 400, 128);
        // The server still waits for a FIN that comes again when its client is done with it.
        config.time_wait = Duration::from_secs(5 * u64::from(i));
        config
    };
    let (mut world, client, session, free) = asked_with(config);
    let (side, start) = (&mut world.sides[1], world.now);
    let portals: [&[u8]; 1] = [b"rdma://store.example:7000/"];
    let accepted = side
        .endpoint
        .accept(start, session, 70, &portals, b"", &mut side.slots)
        .unwrap();
    // Its FIN and the client's goodbye meet.
    side.endpoint.close(start, accepted).unwrap();
    world.run();
    while world.sides[0].endpoint.free_rows().connections + 1 < free[0].connections {
        assert!(world.advance());
    }
    assert_eq!(told(&mut world).1, 1);
    let (side, now) = (&mut world.sides[0], world.now);
    let peer = SERVER.parse().unwrap();
    let resolved = side
        .endpoint
        .resolve_portal(now, client, 0, peer, &mut side.slots);
    assert_eq!(resolved, Ok(()));
    world.run();
    let event = world.sides[0].events.pop_front();
    assert!(
        matches!(event, Some(Event::Established { .. })),
        "{event:?}"
    );
    for (side, free) in world.sides.iter().zip(free) {
        let now = side.endpoint.free_rows();
        let used = [free.nexuses - now.nexuses, free.sessions - now.sessions];
        assert_eq!(used, [1, 1], "the same transport connection and session");
        assert_eq!(free.connections - now.connections, 1, "the old one is over");
        assert_eq!(side.endpoint.counters().violations, 0);
    }
    close(&mut world, client, free);
}

#[test]
fn a_name_that_nobody_resolves_fails_in_time() {
    let (mut world, client, session, free) = asked();
    let portals: [&[u8]; 1] = [b"rdma://store.example:7000/"];
    redirect(&mut world, session, &portals);
    world.run();
    assert_eq!(told(&mut world).1, 1);
    let failed = |world: &Pair| {
        let mut events = world.sides[0].events.iter();
        events.find_map(|event| match event {
            Event::ConnectFailed { reason, .. } => Some(*reason),
            _ => None,
        })
    };
    while failed(&world).is_none() {
        assert!(world.advance());
    }
    let reason = Reason::TimedOut(Step::SessionSetup);
    assert_eq!(failed(&world), Some(reason));
    close(&mut world, client, free);
}

#[test]
fn closing_while_portals_are_tried_leaves_nothing_behind() {
    for abort in [false, true] {
        let (mut world, client, session, free) = asked();
        world.sides[0].deaf = true;
        let portals: [&[u8]; 1] = [b"rdma://store.example:7000/"];
        accept(&mut world, session, &portals, b"welcome");
        let (endpoint, now) = (&mut world.sides[0].endpoint, world.now);
        if abort {
            endpoint.abort(now, client).unwrap();
        } else {
            endpoint.close(now, client).unwrap();
        }
        world.sides[0].deaf = false;
        world.run();
        told(&mut world);
        let event = world.sides[0].events.pop_front();
        let Some(Event::ConnectFailed {
            message: Some(message),
            ..
        }) = event
        else {
            panic!("{event:?}")
        };
        world.sides[0].endpoint.release(message).unwrap();
        close(&mut world, client, free);
    }
}
