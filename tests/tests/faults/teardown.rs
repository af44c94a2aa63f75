//! Kind A: the end of connections, and how long what belongs to them lives.

use std::time::Duration;

use xio_proto::{
    CmEvent, CmKind, CommandError, Completion, Control, Event, Reason, TransportLimits, Work,
    WorkStatus,
};
use xio_tests::rig::{Gate, Rig, name, small};
use xio_tests::talk::{Say, Talk, World};

use crate::users::{abort, closed, destroyed, destroys, grammar, open, wind_up};

#[test]
fn nothing_is_let_go_of_before_the_last_flush() {
    let (mut rig, mut talk) = open();
    rig.gates[0].sends = true;
    rig.gates[0].flushes = true;
    rig.gates[1].frames = true;
    for user in 1..=3 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    let before = rig.sides[0].endpoint.free_rows();
    abort(&mut rig, &talk, 0);
    talk.settle(&mut rig);
    // No event of the device says that it is done: only completions do.
    let posted = rig.unflushed(0);
    assert!(posted > 8, "{posted} receives");
    for _ in 0..posted {
        assert_eq!(destroyed(&rig, 0), 0);
        assert_eq!(
            rig.sides[0].endpoint.free_rows().tx_slots,
            before.tx_slots,
            "what the device may read is held"
        );
        rig.flush(0, 1);
        rig.run();
    }
    assert_eq!(destroyed(&rig, 0), 0, "the sends are not back");
    rig.complete_sends(0, usize::MAX);
    rig.run();
    assert_eq!(destroyed(&rig, 0), 1);
    wind_up(&mut rig);
}

#[test]
fn work_that_vanishes_ends_with_the_queue_pair() {
    let (mut rig, mut talk) = open();
    rig.gates[0].sends = true;
    rig.gates[0].flushes = true;
    rig.gates[1].frames = true;
    let say = |user| Say {
        gathered: 300,
        ..Say::request(user)
    };
    for user in 1..=4 {
        talk.say(&mut rig, 0, &say(user));
    }
    rig.run();
    let start = rig.now;
    rig.tell(0, CmKind::Disconnected);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "closed"), 0, "nothing is back yet");
    // The device forgets all of it.
    rig.forget_completions(0);
    while closed(&rig, 0) == 0 {
        assert!(rig.advance(), "{:?}", talk.heard);
        talk.settle(&mut rig);
    }
    assert!(rig.now < start.after(Duration::from_secs(1)));
    assert_eq!(talk.count(0, "failed"), 4, "{:?}", talk.heard);
    wind_up(&mut rig);
}

#[test]
fn a_failed_accept_drains_its_receives() {
    let mut rig = Rig::new();
    let refuse = |control: &Control| matches!(control, Control::Accept { .. });
    rig.gates[1] = Gate::default().fail(refuse, 22);
    rig.gates[1].flushes = true;
    let connection = rig.dial(60);
    rig.run();
    // Never used, and yet its receive is with the device.
    assert!(rig.unflushed(1) > 0);
    assert_eq!(destroyed(&rig, 1), 0);
    assert!(rig.sides[1].endpoint.free_rows().rx_slots < rig.free[1].rx_slots);
    rig.flush(1, usize::MAX);
    rig.run();
    assert_eq!(destroyed(&rig, 1), 1);
    let failed = |event: &&Event| matches!(event, Event::ConnectFailed { connection: c, reason: Reason::Refused, .. } if *c == connection);
    assert_eq!(rig.log[0].iter().filter(failed).count(), 1);
    wind_up(&mut rig);
}

/// A request whose answer is written: the WRITE is on its way, the response behind it.
fn writing() -> (Rig, Talk) {
    let (mut rig, mut talk) = open();
    rig.gates[1] = Gate::default().hold_work(|work| matches!(work, Work::Write { .. }));
    let say = Say {
        room: 20_000,
        reply: 20_000,
        ..Say::request(1)
    };
    talk.say(&mut rig, 0, &say);
    talk.settle(&mut rig);
    (rig, talk)
}

#[test]
fn a_response_with_a_write_under_way_ends_once() {
    let (mut rig, mut talk) = writing();
    let nexus = rig.nexus(1);
    let failed = Reason::DriverFailed(3);
    let now = rig.now;
    let endpoint = &mut rig.sides[1].endpoint;
    endpoint.handle_driver_failed(now, nexus, failed);
    rig.gates[1].flushes = true;
    talk.settle(&mut rig);
    rig.flush(1, 1);
    talk.settle(&mut rig);
    assert_eq!(talk.count(1, "failed 5001"), 0, "the response is not back");
    rig.flush(1, usize::MAX);
    talk.outlive(&mut rig);
    assert_eq!(talk.count(1, "failed 5001"), 1, "{:?}", talk.heard[1]);
    assert_eq!(talk.count(0, "failed 1"), 1, "{:?}", talk.heard[0]);
    wind_up(&mut rig);
    // The other way round, and each of them twice.
    let (mut rig, mut talk) = writing();
    let last = rig.posted[1]
        .iter()
        .rev()
        .filter(|work| !matches!(work, Work::Recv { .. }));
    let words: Vec<_> = last.take(2).map(|work| name(work).1).collect();
    rig.tell(1, CmKind::Disconnected);
    for wr in [words[0], words[1], words[0], words[1]] {
        let status = WorkStatus::Flushed;
        rig.handle(1, Completion { wr, status, len: 0 });
    }
    talk.outlive(&mut rig);
    assert_eq!(talk.count(1, "failed 5001"), 1, "{:?}", talk.heard[1]);
    wind_up(&mut rig);
}

#[test]
fn a_payload_in_pieces_that_is_lost_ends_once() {
    let limits = |_| TransportLimits {
        max_reads: 1,
        max_message: 1000,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(small, limits);
    let mut talk = Talk::open(&mut rig, false);
    rig.gates[1] = Gate::default().hold_work(|work| matches!(work, Work::Read { .. }));
    let say = Say {
        inline: 0,
        gathered: 12_000,
        ..Say::request(1)
    };
    talk.say(&mut rig, 0, &say);
    talk.settle(&mut rig);
    assert_eq!(talk.count(1, "payload 1"), 1);
    rig.tell(1, CmKind::Disconnected);
    rig.let_go(1);
    talk.outlive(&mut rig);
    assert_eq!(talk.count(1, "request 1"), 0, "it never came whole");
    assert_eq!(talk.count(1, "buffers of 0"), 1, "{:?}", talk.heard[1]);
    assert_eq!(talk.count(0, "failed 1"), 1, "{:?}", talk.heard[0]);
    wind_up(&mut rig);
}

#[test]
fn messages_before_a_disconnect_are_delivered_after_it() {
    let (mut rig, mut talk) = open();
    rig.gates[1].frames = true;
    for user in 1..=3 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    rig.run();
    rig.tell(1, CmKind::Disconnected);
    rig.arrive(1, 2);
    rig.gates[1].flushes = true;
    rig.step(1);
    assert_eq!(closed(&rig, 1), 0, "not before they are told of");
    // One more comes between the flushes.
    let waits = rig.unflushed(1);
    rig.flush(1, waits);
    talk.outlive(&mut rig);
    let heard: Vec<_> = talk.heard[1]
        .iter()
        .filter(|text| !text.starts_with("sent"))
        .collect();
    let end = [
        "one-way 1: 20 bytes",
        "one-way 2: 20 bytes",
        "closed Disconnected, 0 unanswered",
    ];
    assert_eq!(
        heard[..3],
        end.iter().collect::<Vec<_>>()[..],
        "{:?}",
        talk.heard[1]
    );
    wind_up(&mut rig);
}

#[test]
fn a_session_is_answered_once() {
    let mut rig = Rig::new();
    rig.dial(60);
    rig.run();
    let Some(Event::SessionRequest { session, .. }) = rig.sides[1].events.pop_front() else {
        panic!("nobody asked")
    };
    let now = rig.now;
    let Rig { sides, .. } = &mut rig;
    let (endpoint, slots) = (&mut sides[1].endpoint, &mut sides[1].slots);
    let accepted = endpoint
        .accept(now, session, 70, &[], b"", slots)
        .expect("asked");
    let again = endpoint.accept(now, session, 71, &[], b"", slots);
    assert!(
        matches!(again, Err(CommandError::WrongState(_))),
        "{again:?}"
    );
    rig.run();
    let Rig { sides, .. } = &mut rig;
    let (endpoint, slots) = (&mut sides[1].endpoint, &mut sides[1].slots);
    endpoint.abort(now, accepted).expect("open");
    let rejected = endpoint.reject(now, session, 9, b"", slots);
    assert!(rejected.is_err(), "{rejected:?}");
    rig.run();
    while rig.sides[1].endpoint.free_rows().sessions < rig.free[1].sessions {
        assert!(rig.advance());
    }
    let Rig { sides, .. } = &mut rig;
    let (endpoint, slots) = (&mut sides[1].endpoint, &mut sides[1].slots);
    let rejected = endpoint.reject(now, session, 9, b"", slots);
    assert_eq!(rejected, Err(CommandError::Unknown));
    wind_up(&mut rig);
}

#[test]
fn a_message_during_the_loss_has_its_outcome() {
    // Before the drain, while it lasts, and when all is over but not heard of.
    for stage in 0..3 {
        let (mut rig, mut talk) = open();
        rig.gates[0].flushes = stage == 1;
        rig.sides[0].deaf = true;
        rig.tell(0, CmKind::Disconnected);
        if stage > 0 {
            rig.run();
        }
        let said = talk.try_say(&mut rig, 0, &Say::request(1));
        match said {
            Ok(_) => assert!(stage < 2, "taken though it can never be sent"),
            Err(CommandError::Closed(reason)) => assert_eq!(reason, Reason::Disconnected),
            Err(error) => panic!("{error}"),
        }
        rig.sides[0].deaf = false;
        rig.let_go(0);
        talk.outlive(&mut rig);
        let outcomes = talk.count(0, "failed 1");
        assert_eq!(outcomes, usize::from(said.is_ok()), "{:?}", talk.heard[0]);
        wind_up(&mut rig);
    }
}

/// What ends a connection.
const ENDS: [&str; 8] = [
    "close",
    "abort",
    "peer closes",
    "peer aborts",
    "disconnected",
    "device removed",
    "driver failed",
    "address changed",
];

fn end(rig: &mut Rig, talk: &Talk, how: &str) {
    let now = rig.now;
    let nexus = rig.nexus(0);
    match how {
        "close" | "abort" | "peer closes" | "peer aborts" => {
            let i = usize::from(how.starts_with("peer"));
            let connection = talk.connections[i].expect("open");
            let endpoint = &mut rig.sides[i].endpoint;
            let done = if how.contains("close") {
                endpoint.close(now, connection)
            } else {
                endpoint.abort(now, connection)
            };
            assert!(
                matches!(done, Ok(()) | Err(CommandError::Unknown)),
                "{done:?}"
            );
        }
        "disconnected" => rig.tell(0, CmKind::Disconnected),
        "device removed" => rig.tell(0, CmKind::DeviceRemoval),
        "address changed" => rig.tell(0, CmKind::AddrChange),
        "driver failed" => {
            let endpoint = &mut rig.sides[0].endpoint;
            endpoint.handle_driver_failed(now, nexus, Reason::DriverFailed(7));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn every_pair_of_endings_ends_once() {
    for first in ENDS {
        for second in ENDS {
            // At once, after one turn of one side, when nothing more happens.
            for between in 0..4 {
                let (mut rig, mut talk) = open();
                talk.say(&mut rig, 0, &Say::request(1));
                talk.say(&mut rig, 1, &Say::request(2));
                end(&mut rig, &talk, first);
                match between {
                    0 => {}
                    1 => drop(rig.step(0)),
                    2 => drop(rig.step(1)),
                    _ => rig.run(),
                }
                end(&mut rig, &talk, second);
                talk.outlive(&mut rig);
                let ends = [closed(&rig, 0), closed(&rig, 1)];
                assert_eq!(
                    ends,
                    [1, 1],
                    "{first}, {second}, {between}: {:?}",
                    talk.heard
                );
                wind_up(&mut rig);
            }
        }
    }
}

#[test]
fn time_wait_of_the_queue_pair_changes_nothing() {
    let step = |at: usize| -> fn(&Control) -> bool {
        match at {
            0 => |c| matches!(c, Control::Connect { .. }),
            1 => |c| matches!(c, Control::Disconnect { .. }),
            2 => |c| matches!(c, Control::Drain { .. }),
            3 => destroys,
            _ => |_| false,
        }
    };
    for at in 0..5 {
        for times in 1..3 {
            let mut rig = Rig::new();
            rig.gates[0] = Gate::default().hold(step(at));
            let connection = rig.dial(60);
            rig.run();
            if at > 0 {
                let now = rig.now;
                let endpoint = &mut rig.sides[0].endpoint;
                endpoint.abort(now, connection).expect("known");
                rig.run();
            }
            let nexus = rig.nexus(0);
            let (heard, steps) = (rig.log[0].len(), rig.steps[0].len());
            for _ in 0..times {
                rig.tell_of(0, nexus, CmEvent::plain(CmKind::TimewaitExit));
                rig.run();
            }
            assert_eq!(
                (rig.log[0].len(), rig.steps[0].len()),
                (heard, steps),
                "at {at}"
            );
            wind_up(&mut rig);
            // It never comes in the other case: a loss is told when the queue pair is drained.
            rig.tell_of(0, nexus, CmEvent::plain(CmKind::TimewaitExit));
            grammar(&rig.log[0]);
        }
    }
    let (mut rig, mut talk) = open();
    let start = rig.now;
    rig.tell(0, CmKind::Disconnected);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "closed Disconnected"), 1);
    assert_eq!(rig.now, start, "without any time passing");
    wind_up(&mut rig);
}

#[test]
fn closing_while_connecting_ends_at_once() {
    let mut rig = Rig::new();
    rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Connect { .. }));
    let connection = rig.dial(60);
    rig.run();
    let (start, now) = (rig.now, rig.now);
    rig.sides[0].endpoint.close(now, connection).expect("known");
    rig.run();
    assert_eq!((closed(&rig, 0), destroyed(&rig, 0)), (1, 1));
    assert_eq!(rig.now, start, "nothing to wait for");
    wind_up(&mut rig);
    // A queue pair that refuses posts is as good as drained.
    let (mut rig, mut talk) = open();
    rig.gates[0] = Gate::default().fail_work(|work| matches!(work, Work::Send { .. }), 107);
    let connection = talk.connections[0].expect("open");
    rig.sides[0].endpoint.close(now, connection).expect("known");
    let start = rig.now;
    while destroyed(&rig, 0) == 0 {
        talk.settle(&mut rig);
        assert!(rig.advance());
    }
    talk.settle(&mut rig);
    assert_eq!(closed(&rig, 0), 1);
    assert!(rig.now < start.after(Duration::from_secs(1)));
    wind_up(&mut rig);
}

#[test]
fn a_send_completion_after_the_end_is_absorbed() {
    let (mut rig, mut talk) = open();
    rig.gates[1].sends = true;
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    rig.tell(1, CmKind::Disconnected);
    abort(&mut rig, &talk, 1);
    rig.run();
    rig.complete_sends(1, usize::MAX);
    talk.outlive(&mut rig);
    let outcomes = talk.count(1, "sent 5001") + talk.count(1, "failed 5001");
    assert_eq!(outcomes, 1, "{:?}", talk.heard[1]);
    wind_up(&mut rig);
}

#[test]
fn buffers_stay_held_until_the_queue_pair_is_gone() {
    for how in ["disconnected", "abort"] {
        let (mut rig, mut talk) = open();
        talk.keep[1] = true;
        let say = Say {
            inline: 0,
            gathered: 20_000,
            force_read: true,
            ..Say::request(1)
        };
        talk.say(&mut rig, 0, &say);
        talk.settle(&mut rig);
        rig.gates[0] = Gate::default().hold(destroys);
        end(&mut rig, &talk, how);
        talk.settle(&mut rig);
        // The peer's READ could still come until the queue pair is gone.
        let told = |talk: &Talk| {
            let held = talk.heard[0]
                .iter()
                .any(|text| text.contains("buffers held"));
            (held, talk.count(0, "buffers of 1"), talk.count(0, "closed"))
        };
        assert_eq!(told(&talk), (true, 0, 0), "{how}: {:?}", talk.heard[0]);
        rig.let_go(0);
        talk.settle(&mut rig);
        assert_eq!(told(&talk), (true, 1, 1), "{how}: {:?}", talk.heard[0]);
        wind_up(&mut rig);
    }
}

#[test]
fn no_end_leaves_a_deadline_behind() {
    for how in ENDS {
        let (mut rig, mut talk) = open();
        assert!(rig.sides[0].endpoint.free_rows().armed > 0, "keepalive");
        end(&mut rig, &talk, how);
        talk.settle(&mut rig);
        while closed(&rig, 0) + closed(&rig, 1) < 2 {
            assert!(rig.advance(), "{how}");
            talk.settle(&mut rig);
        }
        // What is still armed is the linger of transport connections without connections.
        for i in 0..2 {
            let free = rig.sides[i].endpoint.free_rows();
            let nexuses = rig.free[i].nexuses - free.nexuses;
            assert!(
                free.armed <= nexuses,
                "{how}, side {i}: {} armed",
                free.armed
            );
        }
        let start = rig.now;
        let heard = [rig.log[0].len(), rig.log[1].len()];
        talk.outlive(&mut rig);
        assert_eq!([rig.log[0].len(), rig.log[1].len()], heard, "{how}");
        assert!(rig.now <= start.after(Duration::from_secs(61)), "{how}");
        assert_eq!(rig.sides[0].endpoint.poll_timeout(), None, "{how}");
        wind_up(&mut rig);
    }
}
