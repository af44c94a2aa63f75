//! Deadlines that travel.

use std::time::Duration;

use xio_proto::{Config, ConnectionPolicy, Extensions, Instant};
use xio_tests::talk::{Say, Talk};

use super::{Both, WIRES, config, over};

const LATER: Duration = Duration::from_millis(20);

/// The wait that the last request on the wire told, in microseconds.
fn told(side: &xio_tests::pair::Side) -> u64 {
    let request = |frame: &&Vec<u8>| frame.starts_with(b"XIOP\0\0\0\x12");
    let frame = side.sent.iter().rev().find(request).expect("a request");
    frame[38..44]
        .iter()
        .fold(0, |sum, b| sum << 8 | u64::from(*b))
}

fn due(now: Instant) -> Option<Instant> {
    Some(now.after(LATER))
}

fn ask(world: &mut dyn Both, talk: &mut Talk, user: u64, deadline: Option<Instant>) {
    world.say(
        talk,
        &Say {
            deadline,
            ..Say::request(user)
        },
    );
}

#[test]
fn what_comes_too_late_is_answered_and_not_shown() {
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            world.request(talk, 90);
            assert_eq!(told(world.side(0)), 0, "no deadline, nothing told");
            let free = world.side(0).endpoint.free_rows();
            world.side(1).deaf = true;
            let deadline = due(world.now());
            for say in [Say::request(1), Say::one_way(2)] {
                let receipt = say.one_way;
                world.say(
                    talk,
                    &Say {
                        deadline,
                        receipt,
                        ..say
                    },
                );
                world.settle(talk);
            }
            assert_eq!(told(world.side(0)), 20_000, "{wire:?}");
            while talk.count(0, "timed out") < 2 {
                assert!(world.advance(talk));
            }
            world.side(1).deaf = false;
            world.settle(talk);
            assert_eq!(talk.count(1, "request 1"), 0, "{wire:?}");
            assert_eq!(talk.count(1, "one-way 2"), 0, "{wire:?}");
            assert_eq!(world.side(1).endpoint.counters().expired_unseen, 2);
            let tasks = world.side(0).endpoint.free_rows().tasks;
            assert_eq!(tasks, free.tasks, "{wire:?}: rows are back");
            assert_eq!(talk.count(0, "timed out"), 2);
            world.request(talk, 3);
            world.end(talk);
        });
    }
}

#[test]
fn in_time_it_is_a_request_like_any_other() {
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            talk.keep[1] = true;
            let deadline = due(world.now());
            ask(world, talk, 1, deadline);
            world.settle(talk);
            let (task, _) = talk.kept[1][0].clone();
            let seen = world.side(1).endpoint.deadline_of(task).expect("known");
            assert_eq!(seen, deadline, "{wire:?}");
            world.let_go(talk, 1);
            assert_eq!(talk.count(0, "response 1"), 1, "{wire:?}");
            talk.keep[1] = true;
            world.say(talk, &Say::request(2));
            world.settle(talk);
            let (task, _) = talk.kept[1][0].clone();
            let seen = world.side(1).endpoint.deadline_of(task).expect("known");
            assert_eq!(seen, None, "{wire:?}");
            world.let_go(talk, 1);
            world.end(talk);
        });
    }
}

#[test]
fn a_payload_waits_no_longer_than_its_sender() {
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            talk.keep[1] = true;
            let deadline = due(world.now());
            let say = Say {
                inline: 0,
                gathered: 20_000,
                deadline,
                ..Say::request(1)
            };
            world.say(talk, &say);
            world.settle(talk);
            let began = world.now();
            while talk.count(0, "timed out 1") == 0 || talk.waiting[1].is_empty() {
                assert!(world.advance(talk));
            }
            let (task, _) = talk.waiting[1].pop().expect("waits");
            let refused = world.side(1).endpoint.refuse(task, 5);
            assert!(refused.is_err(), "{wire:?}: it is over");
            assert!(world.now() <= began.after(2 * LATER), "{wire:?}");
            talk.keep[1] = false;
            world.request(talk, 2);
            world.end(talk);
        });
    }
}

#[test]
fn a_libxio_is_told_nothing_and_serves_everything() {
    for wire in WIRES {
        for without in 0..2u8 {
            let config = |i| {
                let mut config = config(i);
                if i == without {
                    config.extensions.remove(Extensions::DEADLINE);
                }
                config
            };
            over(wire, config, None, |world, talk| {
                world.side(1).deaf = true;
                let deadline = due(world.now());
                ask(world, talk, 1, deadline);
                world.settle(talk);
                assert_eq!(told(world.side(0)), 0, "{wire:?}");
                while talk.count(0, "timed out 1") == 0 {
                    assert!(world.advance(talk));
                }
                world.side(1).deaf = false;
                world.settle(talk);
                // It is told that nobody waits, if it understands that, which both do here.
                let cancelled = world.side(1).endpoint.counters().cancelled_unseen;
                assert_eq!(cancelled, 1, "{wire:?}");
                assert_eq!(world.side(1).endpoint.counters().expired_unseen, 0);
                world.end(talk);
            });
        }
    }
}

#[test]
fn a_connection_can_have_a_deadline_for_all_that_has_none() {
    let config = |i| Config {
        policy: ConnectionPolicy {
            deadline: (i == 0).then_some(LATER),
            ..ConnectionPolicy::ASK
        },
        ..config(i)
    };
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            talk.keep[1] = true;
            let deadline = Some(world.now().after(2 * LATER));
            world.say(talk, &Say::request(1));
            ask(world, talk, 2, deadline);
            world.settle(talk);
            let began = world.now();
            while talk.count(0, "timed out 1") == 0 {
                assert!(world.advance(talk));
            }
            assert_eq!(world.now(), began.after(LATER), "{wire:?}");
            assert_eq!(talk.count(0, "timed out 2"), 0, "{wire:?}");
            while talk.count(0, "timed out 2") == 0 {
                assert!(world.advance(talk));
            }
            assert_eq!(world.now(), began.after(2 * LATER), "{wire:?}");
            world.let_go(talk, 1);
            talk.keep[1] = false;
            world.request(talk, 3);
            world.end(talk);
        });
    }
}

#[test]
fn the_wait_is_counted_from_when_a_message_is_sent() {
    let config = |i| Config {
        policy: ConnectionPolicy {
            deadline: (i == 0).then_some(LATER),
            ..ConnectionPolicy::ASK
        },
        keepalive: None,
        ..config(i)
    };
    for wire in WIRES {
        for own in [false, true] {
            over(wire, config, None, |world, talk| {
                // Nothing happens for a while, and nobody looks at a clock.
                let now = world.wait(Duration::from_secs(10));
                world.side(0).endpoint.handle_clock(now);
                talk.keep[1] = true;
                let deadline = if own { due(now) } else { None };
                ask(world, talk, 1, deadline);
                world.settle(talk);
                assert_eq!(told(world.side(0)), 20_000, "{wire:?}");
                let (task, _) = talk.kept[1][0].clone();
                let seen = world.side(1).endpoint.deadline_of(task).expect("known");
                assert_eq!(seen, due(now), "{wire:?}");
                world.let_go(talk, 1);
                assert_eq!(talk.count(0, "response 1"), 1, "{wire:?}");
                world.end(talk);
            });
        }
    }
}

#[test]
fn what_comes_too_late_is_not_shown_either_when_its_connection_is_over() {
    for wire in WIRES {
        over(wire, config, None, |world, talk| {
            world.request(talk, 90);
            world.side(1).deaf = true;
            let now = world.now();
            for say in [Say::request(1), Say::one_way(2), Say::request(3)] {
                let soon = say.user < 3;
                world.say(
                    talk,
                    &Say {
                        deadline: due(now).filter(|_| soon),
                        receipt: say.one_way,
                        ..say
                    },
                );
            }
            world.settle(talk);
            let connection = talk.connections[0].expect("open");
            let aborted = world.side(0).endpoint.abort(now, connection);
            aborted.expect("known");
            world.settle(talk);
            while world.now() < now.after(LATER) {
                assert!(world.advance(talk), "{wire:?}");
            }
            world.side(1).deaf = false;
            world.settle(talk);
            assert_eq!(talk.count(1, "request 1"), 0, "{wire:?}");
            assert_eq!(talk.count(1, "one-way 2"), 0, "{wire:?}");
            // It has no deadline, and can be read.
            assert_eq!(talk.count(1, "request 3"), 1, "{wire:?}");
            assert_eq!(world.side(1).endpoint.counters().expired_unseen, 2);
            while talk.count(1, "closed") == 0 {
                assert!(world.advance(talk), "{wire:?}");
            }
            assert_eq!(talk.count(1, "closed"), 1, "{:?}", talk.heard[1]);
            while world.advance(talk) {}
            assert_eq!(world.side(1).endpoint.connections().count(), 0);
            assert_eq!(world.side(1).endpoint.free_rows().armed, 0);
        });
    }
}
