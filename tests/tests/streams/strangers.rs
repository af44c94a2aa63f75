//! Sockets that are no transport connection, not yet or not ever.

use xio_proto::wire::{
    Dialect, NEXUS_RECONNECT, NexusSetupRequest, RkeyTable, SetupParams, SocketKind, Violation,
    What, status,
};
use xio_proto::{
    Config, ConnectOptions, Event, ListenerId, Reason, Refusal, Resource, SocketId, Step,
    StreamWant,
};
use xio_tests::pair::SERVER;
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Say, Talk, free_rows};

use super::{config, hello, tcp, tcp_with};

fn setup_request(flags: u16) -> Vec<u8> {
    let params = SetupParams {
        buffer_size: 9216,
        max_in_sges: 4,
        max_out_sges: 4,
        max_header: 256,
        ..SetupParams::default()
    };
    let request = NexusSetupRequest {
        flags,
        cid: 0,
        params,
        rkeys: RkeyTable::default(),
    };
    let mut bytes = vec![0; 48];
    request.encode(&mut bytes, Dialect::Tcp);
    bytes
}

fn violation(reason: Option<&Reason>) -> What {
    match reason {
        Some(Reason::Violation(Violation { what, .. })) => *what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrong_first_message_closes_that_socket_and_no_other() {
    for cut in [Cut::Whole, Cut::Every(1)] {
        let mut world = tcp(cut);
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, true);
        let in_use = free_rows(&mut world);
        let own_port = hello(SocketKind::Control, 999);
        let wrong: [(&[u8], What); 8] = [
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", What::SocketKind),
            (b"SSH-2.0-OpenSSH_9.2\r\n", What::SocketKind),
            (&[0; 8], What::SocketKind),
            (&[0, 0, 0, 4, 0, 0, 0, 0], What::SocketKind),
            (&[1, 0, 0, 0, 0, 0, 0, 0], What::SocketKind),
            (&[0, 0, 0, 2, 0, 0, 0, 0], What::SecondPort),
            (&[0, 0, 0, 3, 0, 0, 0, 0], What::SecondPort),
            (&own_port, What::SecondPort),
        ];
        for (round, (bytes, what)) in wrong.into_iter().enumerate() {
            talk.say(&mut world, 0, &Say::request(round as u64));
            let s = world.stranger("10.0.0.9:999", bytes).unwrap();
            assert!(!world.open(s));
            assert_eq!(violation(world.closed.last()), what);
            talk.settle(&mut world);
            assert_eq!(free_rows(&mut world), in_use);
        }
        assert_eq!(talk.count(0, "response"), 8);
        assert_eq!(world.sides[1].endpoint.counters().strays, 8);
        talk.close(&mut world, 0);
        assert_eq!(free_rows(&mut world), free);
    }
}

#[test]
fn a_wrong_message_after_the_first_ends_that_transport_connection_only() {
    let setup = setup_request(0);
    let mut message = setup.clone();
    message[4..8].copy_from_slice(&0x12u32.to_be_bytes());
    message[8..16].copy_from_slice(&80u64.to_be_bytes());
    message.resize(96, 0);
    let mut version = setup.clone();
    version[16] = 9;
    let mut endless = setup.clone();
    endless[8..16].copy_from_slice(&(1u64 << 32).to_be_bytes());
    let mut world = tcp(Cut::Whole);
    let free = free_rows(&mut world);
    let mut talk = Talk::open(&mut world, false);
    let in_use = free_rows(&mut world);
    for (round, frame) in [&b"GARBAGE GARBAGE!"[..], &message, &version, &endless]
        .iter()
        .enumerate()
    {
        for cut in [Cut::Whole, Cut::Every(1)] {
            world.cut = cut;
            let before = world.sides[1].endpoint.counters().violations;
            let bytes = [&hello(SocketKind::Single, 0), *frame].concat();
            let s = world.stranger("10.0.0.9:999", &bytes).unwrap();
            assert!(!world.open(s), "round {round}");
            assert!(world.sides[1].endpoint.counters().violations <= before + 1);
            talk.say(&mut world, 0, &Say::request(1));
            talk.settle(&mut world);
            assert_eq!(free_rows(&mut world), in_use, "round {round}");
        }
    }
    assert!(world.closed.is_empty());
    assert_eq!(talk.count(0, "response"), 8);
    talk.close(&mut world, 0);
    assert_eq!(free_rows(&mut world), free);
}

#[test]
fn silence_and_halves_are_closed_in_time() {
    let mut world = tcp(Cut::Whole);
    let free = free_rows(&mut world);
    let control = hello(SocketKind::Control, 40_000);
    let data = hello(SocketKind::Data, 40_000);
    let beginnings: [&[u8]; 5] = [b"", b"GET", &control[..7], &control, &data];
    let strangers: Vec<usize> = beginnings
        .into_iter()
        .enumerate()
        .map(|(n, bytes)| {
            world
                .stranger(&format!("10.0.0.{}:1", n + 9), bytes)
                .unwrap()
        })
        .collect();
    assert_eq!(world.sides[1].endpoint.half_open_room(), 32 - 5);
    assert!(strangers.iter().all(|s| world.open(*s)));
    let start = world.now;
    assert!(world.advance());
    assert_eq!(world.now.since(start), config(0).connect_timeout);
    while world.advance() {}
    assert_eq!(world.closed, [Reason::TimedOut(Step::Connect); 5]);
    assert!(strangers.iter().all(|s| !world.open(*s)));
    assert_eq!(free_rows(&mut world), free);
}

#[test]
fn a_transport_connection_without_a_first_frame_is_closed_in_time() {
    let mut world = tcp(Cut::Whole);
    let free = free_rows(&mut world);
    for (n, bytes) in [b"".as_slice(), &setup_request(0)[..20]]
        .into_iter()
        .enumerate()
    {
        let bytes = [&hello(SocketKind::Single, 0), bytes].concat();
        world
            .stranger(&format!("10.0.0.9:{}", n + 1), &bytes)
            .unwrap();
    }
    assert_eq!(
        world.sides[1].endpoint.free_rows().nexuses,
        free[1].nexuses - 2
    );
    while world.advance() {}
    assert_eq!(free_rows(&mut world), free);
}

#[test]
fn pairs_find_each_other_in_any_order() {
    let mut world = tcp(Cut::Every(3));
    let free = free_rows(&mut world);
    let nexuses = |world: &mut StreamPair| free[1].nexuses - free_rows(world)[1].nexuses;
    let setup = setup_request(0);
    let control = |port| [hello(SocketKind::Control, port), setup.clone()].concat();
    let data = |port| hello(SocketKind::Data, port);
    // Its first frame comes before the data socket does.
    let a = world.stranger("10.0.0.9:100", &control(101)).unwrap();
    assert_eq!(nexuses(&mut world), 0);
    assert_eq!(world.unread(1), 48);
    let b = world.stranger("10.0.0.9:201", &data(200)).unwrap();
    // Same ports, another address.
    let c = world.stranger("10.0.0.8:101", &data(100)).unwrap();
    // One names the other, which names a third.
    let d = world.stranger("10.0.0.9:102", &data(100)).unwrap();
    assert_eq!(nexuses(&mut world), 0);
    world.stranger("10.0.0.9:200", &control(201)).unwrap();
    assert_eq!(nexuses(&mut world), 1);
    world.stranger("10.0.0.9:101", &data(100)).unwrap();
    assert_eq!(nexuses(&mut world), 2);
    assert_eq!(world.unread(1), 0);
    assert_eq!(world.sides[1].endpoint.counters().strays, 0);
    assert!([a, b, c, d].iter().all(|s| world.open(*s)));
    while world.advance() {}
    assert_eq!(world.closed, [Reason::TimedOut(Step::Connect); 2]);
    assert_eq!(free_rows(&mut world), free);
}

#[test]
fn two_that_claim_to_be_the_same_half_are_both_closed() {
    for kind in [SocketKind::Control, SocketKind::Data] {
        let mut world = tcp(Cut::Whole);
        let free = free_rows(&mut world);
        let first = world.stranger("10.0.0.9:100", &hello(kind, 101)).unwrap();
        let second = world.stranger("10.0.0.9:101", &hello(kind, 100)).unwrap();
        assert!(!world.open(first) && !world.open(second));
        assert_eq!(world.closed.len(), 2);
        assert_eq!(free_rows(&mut world), free);
    }
}

#[test]
fn half_open_sockets_are_bounded() {
    let limited = |i| Config {
        half_open_max: 4,
        ..config(i)
    };
    let mut world = tcp_with(limited, Cut::Whole);
    let free = free_rows(&mut world);
    for n in 0..4 {
        assert!(
            world
                .stranger(&format!("10.0.0.9:{}", n + 1), b"")
                .is_some()
        );
    }
    assert_eq!(world.sides[1].endpoint.half_open_room(), 0);
    let mut talk = Talk::default();
    Talk::dial(&mut world, true);
    talk.settle(&mut world);
    let full = Reason::NoResources {
        what: Resource::Sockets,
        need: 1,
        have: 0,
    };
    assert_eq!(world.refused, [full; 2]);
    assert_eq!(world.sides[1].endpoint.counters().sockets_refused, 2);
    assert_eq!(talk.count(0, "connect failed"), 1);
    talk.outlive(&mut world);
    assert_eq!(free_rows(&mut world), free);
    let mut talk = Talk::open(&mut world, true);
    talk.close(&mut world, 1);
    assert_eq!(free_rows(&mut world), free);
}

#[test]
fn a_stranger_that_leaves_is_forgotten() {
    let mut world = tcp(Cut::Whole);
    let free = free_rows(&mut world);
    for bytes in [b"".as_slice(), b"abc", &hello(SocketKind::Data, 7)] {
        let s = world.stranger("10.0.0.9:6", bytes).unwrap();
        world.stranger_leaves(s);
        assert_eq!(free_rows(&mut world), free);
    }
    // The partner of one that left finds nobody.
    world
        .stranger("10.0.0.9:7", &hello(SocketKind::Control, 6))
        .unwrap();
    assert_eq!(free_rows(&mut world)[1].nexuses, free[1].nexuses);
    // One leaves between the decision to close it and its closing.
    let side = &mut world.sides[1];
    let listener = side.listener().unwrap();
    let id = side
        .endpoint
        .handle_socket_accepted(
            world.now,
            side.transport,
            listener,
            "10.0.0.9:8".parse().unwrap(),
            None,
        )
        .unwrap();
    let taken = side
        .endpoint
        .handle_stream_bytes(world.now, id, b"nonsense", &mut side.slots);
    assert_eq!(taken, 8);
    assert_eq!(side.endpoint.stream_want(id), StreamWant::Nothing);
    side.endpoint.handle_socket_closed(world.now, id);
    assert_eq!(side.endpoint.counters().stale_sockets, 0);
    // Its id means nothing now.
    assert_eq!(side.endpoint.stream_want(id), StreamWant::Nothing);
    let taken = side
        .endpoint
        .handle_stream_bytes(world.now, id, b"more", &mut side.slots);
    assert_eq!(taken, 4);
    side.endpoint
        .handle_stream_payload(world.now, id, 4, &mut side.slots);
    side.endpoint.handle_socket_closed(world.now, id);
    let unknown = SocketId::new(9999, 0);
    assert_eq!(side.endpoint.stream_want(unknown), StreamWant::Nothing);
    assert_eq!(side.endpoint.counters().stale_sockets, 5);
    while world.advance() {}
    assert_eq!(free_rows(&mut world), free);
}

#[test]
fn without_a_listener_nobody_becomes_a_transport_connection() {
    let mut world = tcp(Cut::Whole);
    let early = world.stranger("10.0.0.9:6", b"").unwrap();
    let side = &mut world.sides[1];
    let listener = side.listener().unwrap();
    side.endpoint.unlisten(listener).unwrap();
    let peer = SERVER.parse().unwrap();
    let mut accept = |listener| {
        let endpoint = &mut side.endpoint;
        endpoint.handle_socket_accepted(world.now, side.transport, listener, peer, None)
    };
    assert_eq!(accept(listener), Err(Reason::Refused));
    assert_eq!(accept(ListenerId::new(1, 0)), Err(Reason::Refused));
    world.stranger_sends(early, &hello(SocketKind::Single, 0));
    assert_eq!(world.closed, [Reason::Refused]);
}

#[test]
fn a_full_table_is_told_to_the_peer() {
    let mut world = tcp(Cut::Whole);
    let mut options = ConnectOptions::new(60);
    options.own_nexus = true;
    let mut talk = Talk::default();
    for n in 0..8 {
        options.dual_stream = n % 2 == 0;
        Talk::dial_with(&mut world, &options);
        talk.settle(&mut world);
    }
    // The last row answers that there is no room.
    let no_room = Reason::TurnedAway(Refusal::NoResources { need: 1, have: 0 });
    assert_eq!(
        talk.heard[0],
        [
            format!("connect failed {no_room:?}"),
            format!("closed {no_room:?}, 0 unanswered"),
            "session closed".to_owned(),
        ]
    );
    // With no row at all the sockets are closed.
    assert_eq!(world.sides[1].endpoint.free_rows().nexuses, 1);
    for n in 0..2 {
        let s = world.stranger(
            &format!("10.0.0.9:{}", n + 1),
            &hello(SocketKind::Single, 0),
        );
        assert_eq!(world.open(s.unwrap()), n == 0);
    }
    assert!(matches!(
        world.closed[..],
        [Reason::NoResources {
            what: Resource::Nexuses,
            ..
        }]
    ));
}

#[test]
fn there_is_nothing_to_reconnect_to() {
    let mut world = tcp(Cut::Whole);
    let free = free_rows(&mut world);
    let bytes = [hello(SocketKind::Single, 0), setup_request(NEXUS_RECONNECT)].concat();
    world.stranger("10.0.0.9:5", &bytes).unwrap();
    let answer = world.sides[1].sent.last().unwrap();
    assert_eq!(answer[4..8], 0x84u32.to_be_bytes());
    assert_eq!(answer[20..24], status::UNSUCCESSFUL.to_be_bytes());
    while world.advance() {}
    assert_eq!(free_rows(&mut world), free);
    assert!(
        world.sides[1]
            .events
            .iter()
            .all(|e| !matches!(e, Event::SessionRequest { .. }))
    );
}

#[test]
fn only_the_same_address_makes_a_pair() {
    let mut world = tcp(Cut::Whole);
    let free = free_rows(&mut world);
    let control = hello(SocketKind::Control, 101);
    world.stranger("10.0.0.9:100", &control).unwrap();
    // Some of them in the same bucket.
    for host in (9..256).step_by(16).skip(1) {
        let address = format!("10.0.0.{host}:101");
        world
            .stranger(&address, &hello(SocketKind::Data, 100))
            .unwrap();
    }
    assert_eq!(free_rows(&mut world)[1].nexuses, free[1].nexuses);
    world
        .stranger("10.0.0.9:101", &hello(SocketKind::Data, 100))
        .unwrap();
    assert_eq!(free_rows(&mut world)[1].nexuses, free[1].nexuses - 1);
    while world.advance() {}
    assert_eq!(free_rows(&mut world), free);
}

#[test]
fn the_youngest_of_two_with_one_address_is_the_one_that_lives() {
    let mut world = tcp(Cut::Whole);
    let free = free_rows(&mut world);
    let control = hello(SocketKind::Control, 101);
    let gone = world.stranger("10.0.0.9:100", &control).unwrap();
    let lives = [control, setup_request(0)].concat();
    let lives = world.stranger("10.0.0.9:100", &lives).unwrap();
    let data = hello(SocketKind::Data, 100);
    world.stranger("10.0.0.9:101", &data).unwrap();
    // The one that is gone is noticed, and takes nobody with it.
    assert_eq!(world.unread(1), 0);
    world.stranger_leaves(gone);
    assert_eq!(free_rows(&mut world)[1].nexuses, free[1].nexuses - 1);
    assert!(world.open(lives));
    while world.advance() {}
    assert_eq!(free_rows(&mut world), free);
}

/// A peer that sends the same number twice, as a libxio that reconnects does.
#[test]
fn a_message_that_comes_twice_is_heard_once() {
    let mut world = tcp(Cut::Whole);
    let mut talk = Talk::open(&mut world, false);
    talk.say(&mut world, 0, &Say::request(1));
    talk.settle(&mut world);
    // Its frames, said again by a stranger: connect message with setup, session, one request.
    let [first, session, request] = [0, 1, 2].map(|at| world.sides[0].sent[at].clone());
    let s = world
        .stranger("10.0.0.9:999", &[first, session].concat())
        .unwrap();
    talk.settle(&mut world);
    let accepted = world.sides[1].sent.last().expect("an answer");
    let number = accepted[96..100].to_vec();
    let (heard, late) = (
        talk.count(1, "request"),
        world.sides[1].endpoint.counters().late,
    );
    for (sn, serial) in [(0u16, 5u64), (1, 5), (2, 4), (3, 6)] {
        let mut again = request.clone();
        again[16..20].copy_from_slice(&number);
        again[24..32].copy_from_slice(&serial.to_be_bytes());
        again[32..34].copy_from_slice(&sn.to_be_bytes());
        world.stranger_sends(s, &again);
        talk.settle(&mut world);
    }
    assert_eq!(talk.count(1, "request") - heard, 2);
    assert_eq!(world.sides[1].endpoint.counters().late - late, 2);
    assert_eq!(world.sides[1].endpoint.counters().violations, 0);
    assert!(world.open(s));
}
