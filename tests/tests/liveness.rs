//! Who counts as alive, who asks too often, and what becomes of listeners without a device.

use std::time::Duration;

use xio_proto::{
    CommandError, Config, ConnectOptions, Event, Keepalive, ListenOptions, Message, Reason,
    SessionOpen,
};
use xio_tests::pair::{Pair, SERVER};
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Say, Talk, World};

/// The client asks every so many milliseconds, the server never.
fn asking(every_ms: u64) -> (Pair, Talk) {
    let config = |i| {
        let mut config = Config::new(i, 400, 128);
        config.keepalive = (i == 0).then_some(Keepalive {
            time: Duration::from_millis(every_ms),
            interval: Duration::from_secs(20),
            probes: 3,
        });
        config
    };
    let mut world = Pair::rdma(config, &Pair::counts(&config(0)));
    world.listen(50);
    let talk = Talk::open(&mut world, false);
    (world, talk)
}

/// Lets that much time pass.
fn pass(world: &mut impl World, talk: &mut Talk, seconds: u64) {
    let end = world.now().after(Duration::from_secs(seconds));
    while world.now() < end && talk.connections[0].is_some() {
        assert!(world.advance(), "{:?}", talk.heard);
        talk.settle(world);
    }
}

/// Keepalives that a side sent.
fn asked(world: &Pair, i: usize) -> usize {
    let is = |frame: &&Vec<u8>| frame[4..8] == [0, 0, 0x40, 2];
    world.sides[i].sent.iter().filter(is).count()
}

#[test]
fn a_peer_that_asks_too_often_is_cut_off() {
    let (mut world, mut talk) = asking(50);
    pass(&mut world, &mut talk, 10);
    let closed = &talk.heard[1][0];
    assert!(closed.contains("KeepaliveRate"), "{closed}");
    assert!(closed.contains("11"), "the eleventh: {closed}");
    assert_eq!(asked(&world, 0), 11);
}

#[test]
fn one_that_asks_ten_times_a_second_or_less_is_always_answered() {
    for (every, seconds, times) in [(1000, 100, 100), (101, 10, 99)] {
        let (mut world, mut talk) = asking(every);
        pass(&mut world, &mut talk, seconds);
        assert!(talk.connections[1].is_some(), "{:?}", talk.heard);
        assert!(asked(&world, 0) >= times, "{}", asked(&world, 0));
    }
}

#[test]
fn traffic_of_ours_in_between_is_reason_enough_to_ask() {
    let (mut world, mut talk) = asking(50);
    for user in 0..100 {
        talk.say(&mut world, 1, &Say::request(user));
        talk.settle(&mut world);
        assert!(world.advance());
        talk.settle(&mut world);
    }
    assert!(asked(&world, 0) > 50, "{}", asked(&world, 0));
    assert!(talk.connections[1].is_some(), "{:?}", talk.heard[1].last());
}

#[test]
fn a_user_who_thinks_long_keeps_its_stream() {
    for dual in [false, true] {
        let config = |i| {
            let mut config = Config::new(i, 400, 128);
            config.provide_timeout = Duration::from_secs(3600);
            config
        };
        let counts = StreamPair::counts(&config(0));
        let mut world = StreamPair::new(config, &counts, Cut::Every(1000));
        world.listen(50);
        let mut talk = Talk::open(&mut world, dual);
        talk.keep[1] = true;
        let say = Say {
            inline: 0,
            gathered: 50_000,
            ..Say::request(1)
        };
        talk.say(&mut world, 0, &say);
        pass(&mut world, &mut talk, 1200);
        assert!(
            talk.connections[0].is_some(),
            "dual {dual}: {:?}",
            talk.heard
        );
        talk.let_go(&mut world, 1);
        assert_eq!(talk.count(0, "response 1"), 1, "dual {dual}");
        // All answers to questions that were repeated have been read by now.
        pass(&mut world, &mut talk, 300);
        talk.say(&mut world, 1, &Say::request(2));
        talk.settle(&mut world);
        assert_eq!(talk.count(1, "response 2"), 1, "dual {dual}");
        let violations = |i: usize| world.sides[i].endpoint.counters().violations;
        assert_eq!((violations(0), violations(1)), (0, 0));
    }
}

#[test]
fn a_peer_that_is_dead_is_noticed_once_the_stream_is_read_again() {
    let config = |i| {
        let mut config = Config::new(i, 400, 128);
        config.provide_timeout = Duration::from_secs(600);
        config
    };
    let counts = StreamPair::counts(&config(0));
    let mut world = StreamPair::new(config, &counts, Cut::Every(1000));
    world.listen(50);
    let mut talk = Talk::open(&mut world, false);
    talk.keep[1] = true;
    let say = Say {
        inline: 0,
        gathered: 50_000,
        ..Say::request(1)
    };
    talk.say(&mut world, 0, &say);
    talk.settle(&mut world);
    // From here on nothing of the client's arrives.
    world.hold[1] = true;
    let end = world.now.after(Duration::from_secs(2000));
    while talk.connections[1].is_some() {
        assert!(world.advance() && world.now < end, "never noticed");
        talk.settle(&mut world);
    }
    let dead = talk.count(1, "closed TimedOut(Keepalive)");
    assert_eq!(dead, 1, "{:?}", talk.heard[1]);
}

#[test]
fn responses_keep_their_order_whatever_receipts_do() {
    let config = |i| Config::new(i, 400, 128);
    let mut world = Pair::rdma(config, &Pair::counts(&config(0)));
    world.listen(50);
    let mut talk = Talk::open(&mut world, false);
    talk.clear();
    world.sides[1].deaf = true;
    for user in 1..=3 {
        let say = Say {
            receipt: user == 1,
            ..Say::request(user)
        };
        talk.say(&mut world, 0, &say);
    }
    world.run();
    let endpoint = &mut world.sides[1].endpoint;
    let mut came = Vec::new();
    while let Some(event) = endpoint.poll_event() {
        let Event::Request { task, .. } = event else {
            panic!("{event:?}")
        };
        came.push(task);
    }
    // The receipt of the first is queued, and not out, when the others are answered.
    for k in [1, 2, 0] {
        let message = Message::default();
        endpoint.respond(came[k], &message).unwrap();
    }
    world.sides[1].deaf = false;
    world.run();
    let users = world.sides[0].events.iter().map(|event| match event {
        Event::Response { user, .. } => ("response", *user),
        Event::Delivered { user, .. } => ("receipt", *user),
        other => panic!("{other:?}"),
    });
    let heard: Vec<_> = users.collect();
    let responses = [("response", 2), ("response", 3), ("response", 1)];
    let only: Vec<_> = heard
        .iter()
        .filter(|(what, _)| *what == "response")
        .collect();
    assert_eq!(only, responses.iter().collect::<Vec<_>>());
    assert!(heard.contains(&("receipt", 1)));
}

#[test]
fn a_listener_whose_device_is_gone_is_told_of_and_its_row_is_free() {
    let config = |i| Config::new(i, 400, 128);
    let mut world = Pair::rdma(config, &Pair::counts(&config(0)));
    world.listen(50);
    let mut talk = Talk::open(&mut world, false);
    let now = world.now;
    let side = &mut world.sides[1];
    let listener = side.listener().unwrap();
    side.endpoint.handle_listener_lost(now, listener);
    side.endpoint.handle_listener_lost(now, listener);
    let unlisten = side.endpoint.unlisten(listener);
    assert_eq!(unlisten, Err(CommandError::Unknown));
    assert_eq!(side.endpoint.counters().stale_cm, 1);
    world.run();
    let events: Vec<Event> = world.sides[1].events.drain(..).collect();
    let [
        Event::ListenerLost {
            listener: l,
            user: 50,
        },
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(l, listener);
    // What was accepted lives; nobody else gets in.
    talk.say(&mut world, 0, &Say::request(1));
    talk.settle(&mut world);
    assert_eq!(talk.count(0, "response 1"), 1);
    let mut options = ConnectOptions::new(61);
    options.own_nexus = true;
    let side = &mut world.sides[0];
    let open = SessionOpen {
        uri: "rdma://10.0.0.2:7000/",
        private: b"",
    };
    let (peer, transport, now) = (SERVER.parse().unwrap(), side.transport, world.now);
    side.endpoint
        .connect(now, transport, peer, &open, &options, &mut side.slots)
        .unwrap();
    world.run();
    let event = world.sides[0].events.pop_front();
    let reason = Reason::Refused;
    assert!(
        matches!(event, Some(Event::ConnectFailed { user: 61, reason: r, .. }) if r == reason),
        "{event:?}"
    );
    // Both rows can be had.
    let side = &mut world.sides[1];
    let (transport, address) = (side.transport, SERVER.parse().unwrap());
    let options = ListenOptions {
        user: 51,
        backlog: 1,
    };
    for _ in 0..2 {
        side.endpoint.listen(transport, address, &options).unwrap();
    }
}
