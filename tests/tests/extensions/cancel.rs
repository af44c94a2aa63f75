//! Cancelling: what a peer of this kind does about it, wherever the request is.

use xio_proto::{CommandError, Config, Extensions};
use xio_tests::talk::Say;

use super::{Both, CANCEL_REQ, CANCEL_RSP, WIRES, Wire, config, over, sent};

/// Without the payload waiting a request is small.
fn large(user: u64) -> Say {
    Say {
        inline: 0,
        gathered: 20_000,
        ..Say::request(user)
    }
}

/// A world in which a request is at the peer, and what its sender has free before and after.
fn at_the_peer(
    wire: Wire,
    say: &Say,
    prepare: impl Fn(&mut dyn Both, &mut xio_tests::talk::Talk),
    then: impl Fn(&mut dyn Both, &mut xio_tests::talk::Talk, xio_proto::TaskId),
) {
    over(wire, config, None, |world, talk| {
        world.request(talk, 90);
        let free = world.side(0).endpoint.free_rows();
        prepare(world, talk);
        let task = world.say(talk, say);
        world.settle(talk);
        assert_eq!(world.side(0).endpoint.free_rows().tasks, free.tasks - 1);
        world.side(0).endpoint.cancel(task).expect("known");
        for _ in 0..3 {
            // However often; its row may be back already.
            world.settle(talk);
            match world.side(0).endpoint.cancel(task) {
                Ok(()) | Err(CommandError::Unknown) => {}
                Err(error) => panic!("{error}"),
            }
        }
        world.settle(talk);
        assert_eq!(
            talk.count(0, &format!("cancelled {}", say.user)),
            1,
            "{wire:?}"
        );
        then(world, talk, task);
        assert_eq!(
            talk.count(0, &format!("cancelled {}", say.user)),
            1,
            "{wire:?}"
        );
        assert_eq!(
            talk.count(0, &format!("response {}", say.user)),
            0,
            "{wire:?}"
        );
        assert_eq!(sent(world.side(0), CANCEL_REQ), 1, "{wire:?}");
        assert_eq!(sent(world.side(1), CANCEL_RSP), 0, "{wire:?}");
        // Its row is back while the connection lives, and all goes on.
        let tasks = world.side(0).endpoint.free_rows().tasks;
        assert_eq!(tasks, free.tasks, "{wire:?}");
        world.request(talk, 91);
        world.end(talk);
    });
}

#[test]
fn what_the_peers_user_has_not_seen_it_never_sees() {
    for wire in WIRES {
        for receipt in [false, true] {
            let say = Say {
                receipt,
                ..Say::request(1)
            };
            at_the_peer(
                wire,
                &say,
                |world, _| world.side(1).deaf = true,
                |world, talk, _| {
                    world.side(1).deaf = false;
                    world.settle(talk);
                    assert_eq!(talk.count(1, "request 1"), 0, "{wire:?}");
                    let counters = world.side(1).endpoint.counters();
                    assert_eq!(counters.cancels_received, 1);
                    assert_eq!(counters.cancelled_unseen, 1);
                },
            );
            let one_way = Say {
                receipt: true,
                ..Say::one_way(1)
            };
            at_the_peer(
                wire,
                &one_way,
                |world, _| world.side(1).deaf = true,
                |world, talk, _| {
                    world.side(1).deaf = false;
                    world.settle(talk);
                    assert_eq!(talk.count(1, "one-way 1"), 0, "{wire:?}");
                },
            );
        }
    }
}

#[test]
fn a_payload_that_waits_is_not_fetched() {
    for wire in [Wire::Rdma, Wire::Dual] {
        at_the_peer(
            wire,
            &large(1),
            |_, talk| talk.keep[1] = true,
            |world, talk, _| {
                if wire == Wire::Dual {
                    // The cancel came behind the payload, so it is taken when that is.
                    world.let_go(talk, 1);
                }
                talk.keep[1] = false;
                talk.waiting[1].clear();
                world.settle(talk);
                if wire == Wire::Rdma {
                    assert_eq!(talk.count(1, "request 1"), 0, "{wire:?}");
                }
            },
        );
    }
}

#[test]
fn a_user_that_has_the_request_is_told_once() {
    for wire in WIRES {
        for respond in [false, true] {
            at_the_peer(
                wire,
                &Say::request(1),
                |_, talk| talk.keep[1] = true,
                |world, talk, _| {
                    assert_eq!(talk.count(1, "request 1"), 1, "{wire:?}");
                    assert_eq!(talk.count(1, "cancel asked"), 1, "{wire:?}");
                    if respond {
                        world.let_go(talk, 1);
                        assert_eq!(world.side(0).endpoint.counters().late, 1);
                    } else {
                        talk.keep[1] = false;
                        let (task, _) = talk.kept[1].pop().expect("kept");
                        let endpoint = &mut world.side(1).endpoint;
                        endpoint.release(task).expect("held");
                        assert!(matches!(
                            endpoint.release(task),
                            Err(CommandError::WrongState(_) | CommandError::Unknown)
                        ));
                        world.settle(talk);
                    }
                },
            );
        }
    }
}

#[test]
fn what_waits_behind_another_is_given_up_when_its_user_has_it() {
    // On sockets payloads come in order.
    let wire = Wire::Rdma;
    for one_way in [false, true] {
        over(wire, config, None, |world, talk| {
            talk.keep[1] = true;
            world.say(talk, &large(1));
            let second = Say {
                one_way,
                receipt: one_way,
                ..large(2)
            };
            let task = world.say(talk, &second);
            world.settle(talk);
            // The second is here, and is not shown before the first.
            let (at, len) = talk.waiting[1].pop().expect("waits");
            world.provide(talk, 1, at, len);
            world.settle(talk);
            world.side(0).endpoint.cancel(task).expect("known");
            world.settle(talk);
            assert_eq!(talk.count(0, "cancelled 2"), 1);
            assert_eq!(world.side(1).endpoint.counters().cancels_received, 1);
            assert_eq!(talk.heard[1], [""; 0], "nothing is shown yet");
            let (at, len) = talk.waiting[1].pop().expect("waits");
            world.provide(talk, 1, at, len);
            world.settle(talk);
            let heard: &[&str] = match one_way {
                false => &[
                    "request 1: 20000 bytes",
                    "request 2: 20000 bytes",
                    "cancel asked",
                ],
                true => &["request 1: 20000 bytes", "one-way 2: 20000 bytes"],
            };
            assert_eq!(talk.heard[1], heard);
            world.let_go(talk, 1);
            assert_eq!(talk.count(0, "response 1"), 1);
            assert_eq!(talk.count(0, "response 2"), 0);
            world.request(talk, 3);
            world.end(talk);
        });
    }
}

#[test]
fn an_answered_request_is_not_spoken_of() {
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            // The answer is there and not heard: it is the outcome, whatever is cancelled now.
            world.side(0).deaf = true;
            let task = world.say(talk, &Say::request(1));
            world.settle(talk);
            world.side(0).endpoint.cancel(task).expect("known");
            world.side(0).deaf = false;
            world.settle(talk);
            assert_eq!(talk.count(0, "response 1"), 1);
            assert_eq!(talk.count(0, "cancelled"), 0);
            assert_eq!(sent(world.side(0), CANCEL_REQ), 0);
            world.end(talk);
        });
    }
}

#[test]
fn a_libxio_is_never_told() {
    for wire in WIRES {
        for without in 0..2u8 {
            let config = |i| {
                let mut config = config(i);
                if i == without {
                    config.extensions.remove(Extensions::CANCEL);
                }
                Config { ..config }
            };
            over(wire, config, None, |world, talk| {
                talk.keep[1] = true;
                let task = world.say(talk, &Say::request(1));
                world.settle(talk);
                world.side(0).endpoint.cancel(task).expect("known");
                world.settle(talk);
                assert_eq!(talk.count(0, "cancelled 1"), 1);
                assert_eq!(talk.count(1, "cancel asked"), 0);
                assert_eq!(sent(world.side(0), CANCEL_REQ), 0, "{wire:?}");
                world.let_go(talk, 1);
                assert_eq!(world.side(0).endpoint.counters().late, 1);
                world.request(talk, 2);
                world.end(talk);
            });
        }
    }
}

#[test]
fn a_cancel_takes_the_message_that_it_names() {
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            world.side(1).deaf = true;
            // All with the same value of their user's.
            let tasks: Vec<_> = (0..5).map(|_| world.say(talk, &Say::request(7))).collect();
            world.settle(talk);
            for at in [1, 3] {
                world.side(0).endpoint.cancel(tasks[at]).expect("known");
                world.settle(talk);
            }
            world.side(1).deaf = false;
            world.settle(talk);
            assert_eq!(talk.count(0, "cancelled 7"), 2, "{wire:?}");
            assert_eq!(talk.count(0, "response 7"), 3, "{wire:?}");
            assert_eq!(talk.count(1, "request 7"), 3, "{wire:?}");
            let life = world.side(0).endpoint.life_cycle();
            assert_eq!((life.prep, life.pending), (0, 0));
            assert_eq!((life.completed, life.cancelled, life.failed), (3, 2, 0));
            world.end(talk);
        });
    }
}

#[test]
fn each_message_is_somewhere_in_its_life() {
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            let idle = world.side(0).endpoint.life_cycle().idle;
            talk.keep[1] = true;
            let task = world.say(talk, &Say::request(1));
            let life = world.side(0).endpoint.life_cycle();
            assert_eq!((life.idle, life.prep, life.pending), (idle - 1, 1, 0));
            world.settle(talk);
            let life = world.side(0).endpoint.life_cycle();
            assert_eq!((life.idle, life.prep, life.pending), (idle - 1, 0, 1));
            world.side(0).endpoint.cancel(task).expect("known");
            let life = world.side(0).endpoint.life_cycle();
            assert_eq!((life.prep, life.pending, life.cancelled), (0, 0, 1));
            // Queued, and cancelled there.
            let task = world.say(talk, &Say::request(2));
            world.side(0).endpoint.cancel(task).expect("known");
            let deadline = Some(world.now().after(std::time::Duration::from_millis(1)));
            world.say(
                talk,
                &Say {
                    deadline,
                    ..Say::request(3)
                },
            );
            world.settle(talk);
            while talk.count(0, "timed out 3") == 0 {
                assert!(world.advance(talk));
            }
            world.let_go(talk, 1);
            world.request(talk, 4);
            let life = world.side(0).endpoint.life_cycle();
            assert_eq!(
                (life.idle, life.prep, life.pending),
                (idle, 0, 0),
                "{wire:?}"
            );
            let ends = (life.completed, life.cancelled, life.timed_out, life.failed);
            assert_eq!(ends, (1, 2, 1, 0), "{wire:?}");
            world.end(talk);
        });
    }
}
