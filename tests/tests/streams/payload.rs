//! Payload outside the frames: late, refused, interrupted, and never in memory that was given
//! back.

use xio_proto::wire::What;
use xio_proto::{Config, ConnectOptions, Event, Keepalive, Reason, SocketId, StreamWant, TaskId};
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Payload, Say, Talk, free_rows};

use super::{config, tcp, tcp_with};

const LARGE: usize = 50_000;

fn large_answer(user: u64) -> Say {
    Say {
        reply: LARGE,
        room: LARGE,
        ..Say::request(user)
    }
}

fn large_request(user: u64) -> Say {
    Say {
        inline: 0,
        gathered: LARGE,
        ..Say::request(user)
    }
}

fn discarded(world: &StreamPair, i: usize) -> u64 {
    world.sides[i].endpoint.counters().bytes_discarded
}

/// The socket on which a side gets payload.
fn carrier(world: &StreamPair, i: usize, talk: &Talk) -> SocketId {
    let info = world.sides[i]
        .endpoint
        .info(talk.connections[i].unwrap())
        .unwrap();
    *world.ends(i, info.nexus).last().unwrap()
}

/// A conversation in which the answer to message 1 is half here.
fn half_an_answer(dual: bool, deadline_after_ms: Option<u64>) -> (StreamPair, Talk, TaskId) {
    let mut world = tcp(Cut::Every(1000));
    let mut talk = Talk::open(&mut world, dual);
    world.hold[0] = true;
    let deadline =
        deadline_after_ms.map(|ms| world.now.after(std::time::Duration::from_millis(ms)));
    let task = talk.say(
        &mut world,
        0,
        &Say {
            deadline,
            ..large_answer(1)
        },
    );
    talk.settle(&mut world);
    world.hold[0] = false;
    world.reads = Some(20);
    talk.settle(&mut world);
    assert_eq!(talk.count(0, "response"), 0);
    (world, talk, task)
}

/// The rest of the answer goes nowhere, and the stream goes on behind it.
fn goes_on(world: &mut StreamPair, talk: &mut Talk) {
    let memory = world.sides[0].memory.clone();
    let before = discarded(world, 0);
    world.resume();
    talk.settle(world);
    let rest = discarded(world, 0) - before;
    assert!((30_000..LARGE as u64).contains(&rest), "{rest}");
    assert_eq!(world.sides[0].memory, memory);
    talk.say(world, 0, &large_answer(2));
    talk.say(world, 1, &large_request(102));
    talk.settle(world);
    assert_eq!(
        talk.count(0, "response 2: 50000 bytes in memory"),
        1,
        "{:?}",
        talk.heard[0]
    );
    assert_eq!(talk.count(1, "response 102"), 1);
    talk.close(world, 0);
}

#[test]
fn an_answer_that_expires_under_way_is_dropped_and_its_buffers_come_back() {
    for dual in [false, true] {
        for expires in [false, true] {
            let (mut world, mut talk, task) = half_an_answer(dual, expires.then_some(30));
            let what = if expires {
                while talk.count(0, "timed out") == 0 {
                    assert!(world.advance());
                    talk.settle(&mut world);
                }
                "timed out 1"
            } else {
                world.sides[0].endpoint.cancel(task).unwrap();
                talk.settle(&mut world);
                "cancelled 1"
            };
            // Nobody writes there between two reads.
            assert_eq!(talk.heard[0], [format!("{what}, buffers back true")]);
            assert_eq!(world.sides[0].endpoint.counters().late, 1);
            goes_on(&mut world, &mut talk);
        }
    }
}

#[test]
fn memory_that_a_driver_writes_into_comes_back_when_it_stops() {
    for dual in [false, true] {
        for asks_again in [false, true] {
            let (mut world, mut talk, task) = half_an_answer(dual, None);
            let socket = carrier(&world, 0, &talk);
            let StreamWant::Payload(span) = world.sides[0].endpoint.stream_want(socket) else {
                panic!()
            };
            assert!(span.len > 0);
            world.sides[0].endpoint.cancel(task).unwrap();
            talk.settle(&mut world);
            assert_eq!(talk.heard[0], ["cancelled 1, buffers back false"]);
            let side = &mut world.sides[0];
            if asks_again {
                let want = side.endpoint.stream_want(socket);
                assert_eq!(want, StreamWant::Discard(span.len));
            } else {
                side.endpoint
                    .handle_stream_payload(world.now, socket, 0, &mut side.slots);
            }
            talk.settle(&mut world);
            assert_eq!(talk.heard[0].last().unwrap(), "buffers of 1");
            goes_on(&mut world, &mut talk);
        }
    }
}

#[test]
fn an_answer_to_what_has_expired_is_dropped_whole() {
    for dual in [false, true] {
        let mut world = tcp(Cut::Every(999));
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, dual);
        world.hold[0] = true;
        let task = talk.say(&mut world, 0, &large_answer(1));
        talk.settle(&mut world);
        world.sides[0].endpoint.cancel(task).unwrap();
        world.resume();
        talk.settle(&mut world);
        assert_eq!(talk.heard[0], ["cancelled 1, buffers back true"]);
        assert_eq!(discarded(&world, 0), LARGE as u64);
        talk.say(&mut world, 0, &Say::request(2));
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "response 2"), 1);
        talk.close(&mut world, 1);
        assert_eq!(free_rows(&mut world), free);
    }
}

#[test]
fn refused_payload_is_dropped_byte_by_byte_exactly() {
    for dual in [false, true] {
        for cut in [Cut::Whole, Cut::Every(1), Cut::random(9, 5000)] {
            let mut world = tcp(cut);
            world.check_every = 199;
            let free = free_rows(&mut world);
            let mut talk = Talk::open(&mut world, dual);
            for (user, payload) in [Payload::Refuse, Payload::Ignore].into_iter().enumerate() {
                talk.say(
                    &mut world,
                    0,
                    &Say {
                        payload,
                        ..large_request(user as u64)
                    },
                );
                let one_way = Say {
                    one_way: true,
                    receipt: true,
                    ..large_request(8)
                };
                talk.say(&mut world, 0, &Say { payload, ..one_way });
                talk.say(&mut world, 0, &Say::request(10 + user as u64));
            }
            talk.until(&mut world, [6, 0]);
            assert_eq!(discarded(&world, 1), 4 * LARGE as u64);
            assert_eq!(talk.count(0, "failed"), 2);
            assert_eq!(talk.count(0, "delivered 8: Rejected"), 2);
            assert_eq!(talk.count(0, "response 1"), 2, "{:#?}", talk.heard[0]);
            talk.close(&mut world, 0);
            assert_eq!(free_rows(&mut world), free);
        }
    }
}

#[test]
fn only_the_stream_whose_user_thinks_is_not_read() {
    for dual in [false, true] {
        let mut world = tcp(Cut::Every(700));
        let mut talk = Talk::open(&mut world, dual);
        let first = talk.connections;
        let own = ConnectOptions {
            own_nexus: true,
            dual_stream: dual,
            ..ConnectOptions::new(60)
        };
        let client = Talk::dial_with(&mut world, &own);
        talk.settle(&mut world);
        let second = [Some(client), talk.connections[1]];
        talk.connections = first;
        talk.keep[1] = true;
        talk.say(&mut world, 0, &large_request(1));
        for user in 0..40 {
            talk.say(&mut world, 0, &Say::one_way(100 + user));
        }
        talk.settle(&mut world);
        assert_eq!(talk.waiting[1].len(), 1);
        assert_eq!(talk.kept[1].len(), 0);
        let unread = world.unread(1);
        assert!(unread >= LARGE);
        if dual {
            // The headers go on until their limit: 32 behind the one that waits.
            let taken = world.sides[1].endpoint.free_rows().rx_slots;
            assert_eq!(config(1).rx_slots - taken, 33);
        }
        let waiting = std::mem::take(&mut talk.waiting[1]);
        talk.keep[1] = false;
        talk.connections = second;
        talk.say(&mut world, 0, &large_answer(2));
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "response 2"), 1);
        assert_eq!(world.unread(1), unread);
        talk.connections = first;
        let (task, len) = waiting[0];
        talk.provide(&mut world, 1, task, len);
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "response 1"), 1);
        assert_eq!(talk.count(1, "one-way"), 40);
        assert_eq!(world.unread(1), 0);
    }
}

#[test]
fn data_may_come_long_before_its_header() {
    let mut world = tcp(Cut::Whole);
    world.data_first = true;
    let mut talk = Talk::open(&mut world, true);
    // The control stream is slower than the data stream by as much as it can be.
    world.hold[1] = true;
    for user in 0..40 {
        talk.say(
            &mut world,
            0,
            &Say {
                inline: 3000,
                ..Say::request(user)
            },
        );
    }
    talk.settle(&mut world);
    assert!(world.unread(1) > 40 * 3000);
    world.resume();
    talk.settle(&mut world);
    assert_eq!(talk.count(0, "response"), 40);
}

#[test]
fn a_peer_that_vanishes_under_way_leaves_nothing_behind() {
    for dual in [false, true] {
        for reads in [0, 1, 3, 20, 45] {
            for lent in [false, true] {
                let mut world = tcp(Cut::Every(1000));
                let free = free_rows(&mut world);
                let mut talk = Talk::open(&mut world, dual);
                world.hold = [true; 2];
                talk.say(&mut world, 0, &large_answer(1));
                talk.say(&mut world, 1, &large_request(101));
                talk.say(
                    &mut world,
                    1,
                    &Say {
                        inline: 500,
                        ..Say::one_way(102)
                    },
                );
                world.hold[1] = false;
                talk.settle(&mut world);
                world.hold[0] = false;
                world.reads = Some(reads);
                talk.settle(&mut world);
                let socket = carrier(&world, 0, &talk);
                // With or without the driver at work in the user's memory.
                if lent {
                    let _ = world.sides[0].endpoint.stream_want(socket);
                }
                world.resume_with_loss(0);
                world.cut_off(1);
                talk.outlive(&mut world);
                assert_eq!(talk.count(0, "failed 1"), 1, "{:?}", talk.heard[0]);
                assert_eq!(talk.count(0, "closed"), 1);
                assert_eq!(talk.count(1, "closed"), 1);
                let held = talk.heard[0]
                    .iter()
                    .any(|text| text.ends_with("buffers held"));
                assert_eq!(talk.count(0, "buffers of 1"), usize::from(held));
                talk.let_go(&mut world, 0);
                talk.let_go(&mut world, 1);
                assert_eq!(
                    free_rows(&mut world),
                    free,
                    "{reads} reads, {:#?}",
                    talk.heard
                );
            }
        }
    }
}

#[test]
fn a_connection_that_ends_under_way_leaves_its_neighbours_alone() {
    for dual in [false, true] {
        let mut world = tcp(Cut::Every(1000));
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, dual);
        let first = talk.connections;
        let client = Talk::dial(&mut world, dual);
        talk.settle(&mut world);
        let second = [Some(client), talk.connections[1]];
        assert_eq!(
            free_rows(&mut world)[0].nexuses,
            free[0].nexuses - 1,
            "shared"
        );
        talk.connections = first;
        world.hold[0] = true;
        talk.say(&mut world, 0, &large_answer(1));
        talk.settle(&mut world);
        world.hold[0] = false;
        world.reads = Some(15);
        talk.settle(&mut world);
        let now = world.now;
        world.sides[0]
            .endpoint
            .abort(now, first[0].unwrap())
            .unwrap();
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "failed 1"), 1);
        assert_eq!(talk.count(0, "closed Aborted"), 1);
        world.resume();
        talk.connections = second;
        talk.say(&mut world, 0, &large_answer(2));
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "response 2"), 1, "{:?}", talk.heard[0]);
        talk.close(&mut world, 0);
    }
}

#[test]
fn what_is_announced_beyond_the_limit_ends_the_connection() {
    let limit = |i| Config {
        payload_max: if i == 1 { 40_000 } else { 1 << 30 },
        ..config(i)
    };
    for dual in [false, true] {
        let mut world = tcp_with(limit, Cut::Every(500));
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, dual);
        talk.say(&mut world, 0, &large_request(1));
        talk.outlive(&mut world);
        let Some(text) = talk.heard[1].first() else {
            panic!()
        };
        assert!(
            text.contains(&format!("{:?}", What::PayloadTooLong)),
            "{text}"
        );
        assert_eq!(talk.count(0, "failed 1"), 1);
        assert_eq!(free_rows(&mut world), free);
    }
}

#[test]
fn a_break_in_a_stream_ends_its_transport_connection_only() {
    for dual in [false, true] {
        let mut world = tcp(Cut::Every(100));
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, dual);
        let first = talk.connections;
        let own = ConnectOptions {
            own_nexus: true,
            ..ConnectOptions::new(60)
        };
        let client = Talk::dial_with(&mut world, &own);
        talk.settle(&mut world);
        let second = [Some(client), talk.connections[1]];
        let info = world.sides[1].endpoint.info(first[1].unwrap()).unwrap();
        let socket = world.ends(1, info.nexus)[0];
        let side = &mut world.sides[1];
        let junk = [0x55; 40];
        let taken = side
            .endpoint
            .handle_stream_bytes(world.now, socket, &junk, &mut side.slots);
        assert_eq!(taken, 40);
        assert_eq!(
            side.endpoint.stream_want(socket),
            StreamWant::Discard(u64::MAX)
        );
        // Whatever comes behind it means nothing, before and after the socket is shut.
        for shut in [false, true] {
            let endpoint = &mut side.endpoint;
            if shut {
                endpoint.handle_socket_closed(world.now, socket);
            }
            let taken = endpoint.handle_stream_bytes(world.now, socket, &junk, &mut side.slots);
            assert_eq!(taken, 40);
            assert_eq!(endpoint.counters().violations, 1);
        }
        talk.settle(&mut world);
        let broken = |text: &String| text.contains(&format!("{:?}", What::Magic));
        assert!(talk.heard[1].iter().any(broken), "{:?}", talk.heard[1]);
        assert_eq!(
            talk.count(0, &format!("closed {:?}", Reason::Disconnected)),
            1
        );
        talk.connections = second;
        talk.say(&mut world, 0, &large_answer(2));
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "response 2"), 1);
        talk.close(&mut world, 1);
        assert_eq!(free_rows(&mut world), free);
    }
}

#[test]
fn a_refused_payload_goes_nowhere_even_when_its_row_is_another_message_s() {
    for dual in [false, true] {
        let mut world = tcp(Cut::Every(1000));
        let mut talk = Talk::open(&mut world, dual);
        let first = talk.connections;
        let own = ConnectOptions {
            own_nexus: true,
            dual_stream: dual,
            ..ConnectOptions::new(60)
        };
        let client = Talk::dial_with(&mut world, &own);
        talk.settle(&mut world);
        let second = [Some(client), talk.connections[1]];
        talk.connections = first;
        talk.keep[1] = true;
        let one_way = Say {
            one_way: true,
            ..large_request(1)
        };
        talk.say(&mut world, 0, &one_way);
        talk.settle(&mut world);
        let (task, _) = talk.waiting[1].remove(0);
        world.hold[1] = true;
        world.sides[1].endpoint.refuse(task, 4).unwrap();
        talk.settle(&mut world);
        assert_eq!(discarded(&world, 1), 0);
        // The next message takes the same row, and its payload is on its way before the refused
        // one has gone.
        let stopped = carrier(&world, 1, &talk);
        world.hold_back(1, stopped);
        world.hold[1] = false;
        talk.connections = second;
        talk.say(&mut world, 0, &large_request(2));
        talk.settle(&mut world);
        let (next, len) = talk.waiting[1].remove(0);
        assert_eq!(next.index(), task.index(), "the same row");
        talk.keep[1] = false;
        world.reads = Some(10);
        talk.provide(&mut world, 1, next, len);
        talk.settle(&mut world);
        world.let_flow(1);
        world.resume();
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "response 2"), 1, "{:?}", talk.heard);
        assert_eq!(discarded(&world, 1), LARGE as u64);
    }
}

#[test]
fn nothing_is_made_of_what_comes_after_a_disconnect() {
    for dual in [false, true] {
        let mut world = tcp(Cut::Every(50));
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, dual);
        let server = talk.connections[1].unwrap();
        let info = world.sides[1].endpoint.info(server).unwrap();
        let sockets = world.ends(1, info.nexus);
        world.hold[1] = true;
        talk.say(&mut world, 0, &Say::request(1));
        talk.settle(&mut world);
        // Half a frame is here when this side hangs up.
        world.hold[1] = false;
        world.reads = Some(1);
        talk.settle(&mut world);
        world.hold[1] = true;
        let now = world.now;
        let side = &mut world.sides[1];
        side.endpoint.abort(now, server).unwrap();
        for shut in [false, true] {
            for socket in &sockets {
                if shut {
                    side.endpoint.handle_socket_closed(now, *socket);
                }
                let bytes = [0x33; 77];
                let slots = &mut side.slots;
                let taken = side
                    .endpoint
                    .handle_stream_bytes(now, *socket, &bytes, slots);
                assert_eq!(taken, 77);
            }
        }
        assert_eq!(side.endpoint.counters().violations, 0);
        world.resume();
        talk.outlive(&mut world);
        assert_eq!(free_rows(&mut world), free);
    }
}

#[test]
fn a_driver_that_only_feeds_is_told_when_to_go_on() {
    let mut world = tcp(Cut::Whole);
    let mut talk = Talk::open(&mut world, false);
    talk.keep[1] = true;
    world.hold[1] = true;
    talk.say(&mut world, 0, &large_request(1));
    talk.settle(&mut world);
    let bytes = world.sides[0].sent.last().unwrap().clone();
    let socket = carrier(&world, 1, &talk);
    let now = world.now;
    let side = &mut world.sides[1];
    let transport = side.transport;
    while side.endpoint.poll_stream(transport).is_some() {}
    let taken = side
        .endpoint
        .handle_stream_bytes(now, socket, &bytes, &mut side.slots);
    assert_eq!(taken, bytes.len() - LARGE);
    assert_eq!(side.endpoint.poll_stream(transport), None);
    let Some(Event::PayloadWaiting { task, .. }) = side.endpoint.poll_event() else {
        panic!()
    };
    side.endpoint.refuse(task, 1).unwrap();
    assert_eq!(side.endpoint.poll_stream(transport), Some(socket));
    assert_eq!(side.endpoint.poll_stream(transport), None);
    let rest = &bytes[taken..];
    let taken = side
        .endpoint
        .handle_stream_bytes(now, socket, rest, &mut side.slots);
    assert_eq!(taken, LARGE);
}

#[test]
fn a_payload_that_takes_long_is_a_sign_of_life() {
    let second = std::time::Duration::from_secs(1);
    let watchful = |i| Config {
        keepalive: Some(Keepalive {
            time: second,
            interval: second,
            probes: 3,
        }),
        ..config(i)
    };
    for dual in [false, true] {
        for wanted in [true, false] {
            let mut world = tcp_with(watchful, Cut::Every(1000));
            world.window = 2000;
            let mut talk = Talk::open(&mut world, dual);
            let payload = if wanted {
                Payload::Provide
            } else {
                Payload::Refuse
            };
            let say = Say {
                payload,
                ..large_request(1)
            };
            world.reads = Some(0);
            talk.say(&mut world, 0, &say);
            talk.settle(&mut world);
            let start = world.now;
            let mut rounds = 0;
            while world.unread(1) > 500 {
                world.reads = Some(3);
                assert!(world.advance());
                talk.settle(&mut world);
                rounds += 1;
                assert!(rounds < 500);
            }
            assert!(world.now.since(start) > 8 * second);
            world.resume();
            talk.settle(&mut world);
            let outcome = if wanted { "response 1" } else { "failed 1" };
            assert_eq!(talk.count(0, outcome), 1, "{:#?}", talk.heard);
            assert_eq!(talk.count(0, "closed") + talk.count(1, "closed"), 0);
        }
    }
}

#[test]
fn keepalive_passes_a_payload_whose_user_thinks() {
    let second = std::time::Duration::from_secs(1);
    let patient = |i| Config {
        keepalive: Some(Keepalive {
            time: second,
            interval: second,
            probes: 3,
        }),
        provide_timeout: 100 * second,
        ..config(i)
    };
    for cut in [Cut::Whole, Cut::Every(7)] {
        let mut world = tcp_with(patient, cut);
        let mut talk = Talk::open(&mut world, true);
        talk.keep[1] = true;
        talk.say(&mut world, 0, &large_request(1));
        talk.settle(&mut world);
        let start = world.now;
        while world.now.since(start) < 60 * second {
            assert!(world.advance());
            talk.settle(&mut world);
        }
        assert_eq!(talk.count(0, "closed") + talk.count(1, "closed"), 0);
        talk.let_go(&mut world, 1);
        assert_eq!(talk.count(0, "response 1"), 1, "{:?}", talk.heard);
    }
}
