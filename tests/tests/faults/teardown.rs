//! Kind A: the end of connections, and how long what belongs to them lives.

use std::time::Duration;

use xio_proto::{
    CmEvent, CmKind, CommandError, Completion, Control, Event, Message, Reason, RequestOptions,
    Slots, TransportLimits, Work, WorkStatus,
};
use xio_tests::rig::{Gate, Rig, name, small};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{closed, grammar, wind_up};

/// An open connection.
fn open() -> (Rig, Talk) {
    let mut rig = Rig::new();
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

/// A server with one receive queue for all.
fn open_shared() -> (Rig, Talk) {
    let limits = |i| TransportLimits {
        shared_receive_queue: i == 1,
        rq_depth: 64,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(small, limits);
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

fn abort(rig: &mut Rig, talk: &Talk, i: usize) {
    let connection = talk.connections[i].expect("open");
    let now = rig.now;
    rig.sides[i].endpoint.abort(now, connection).expect("known");
}

fn is_destroy(control: &Control) -> bool {
    matches!(control, Control::Destroy { .. })
}

/// Whether a side has asked for its queue pair to be destroyed.
fn destroyed(rig: &Rig, i: usize) -> usize {
    rig.steps[i].iter().filter(|step| is_destroy(step)).count()
}

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
fn a_hundred_dead_peers_give_every_slot_back() {
    let mut rig = Rig::new();
    for round in 0..100 {
        let mut talk = Talk::open(&mut rig, false);
        rig.gates[1].frames = true;
        rig.gates[0].sends = round % 2 == 0;
        for user in 0..8 {
            talk.say(&mut rig, 0, &Say::request(user));
        }
        rig.run();
        rig.tell(0, CmKind::Disconnected);
        rig.let_go(0);
        rig.let_go(1);
        talk.outlive(&mut rig);
        assert_eq!(talk.count(0, "failed"), 8, "{:?}", talk.heard);
        assert_eq!(free_rows(&mut rig), rig.free, "round {round}");
    }
    let mut talk = Talk::open(&mut rig, false);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
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
fn completions_of_an_earlier_life_are_stale() {
    let (mut rig, mut talk) = open();
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    let words: Vec<_> = rig.posted[0].iter().map(|work| name(work).1).collect();
    abort(&mut rig, &talk, 0);
    talk.outlive(&mut rig);
    let mut talk = Talk::open(&mut rig, false);
    rig.gates[1].frames = true;
    rig.gates[0].sends = true;
    talk.say(&mut rig, 0, &Say::request(2));
    rig.run();
    let (before, stale) = (free_rows(&mut rig), rig.sides[0].endpoint.counters().stale);
    let heard = rig.log[0].len();
    for status in [
        WorkStatus::Success,
        WorkStatus::Flushed,
        WorkStatus::RetryExceeded,
    ] {
        for &wr in &words {
            rig.handle(
                0,
                Completion {
                    wr,
                    status,
                    len: 120,
                },
            );
        }
    }
    rig.run();
    let counted = rig.sides[0].endpoint.counters().stale - stale;
    assert_eq!(counted, 3 * words.len() as u64);
    assert_eq!(free_rows(&mut rig), before);
    assert_eq!(rig.log[0].len(), heard);
    rig.let_go(0);
    rig.let_go(1);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 2"), 1);
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
fn frames_in_the_completion_queue_outlive_their_connection() {
    let (mut rig, mut talk) = open();
    talk.say(&mut rig, 1, &Say::request(1));
    talk.settle(&mut rig);
    let receives = |work: &Work| match *work {
        Work::Recv { wr, slot, .. } => Some((wr, slot)),
        _ => None,
    };
    let posted: Vec<_> = rig.posted[0].iter().filter_map(receives).collect();
    // The peer's last frames are in the completion queue, and nobody looks at them yet.
    let frame = rig.sides[1].sent.last().expect("a frame").clone();
    rig.gates[0].flushes = true;
    abort(&mut rig, &talk, 0);
    talk.settle(&mut rig);
    rig.forget_completions(0);
    talk.outlive(&mut rig);
    let before = free_rows(&mut rig);
    let stale = rig.sides[0].endpoint.counters().stale;
    for &(wr, slot) in &posted {
        rig.sides[0].slots.slot_mut(slot)[..frame.len()].copy_from_slice(&frame);
        let (status, len) = (WorkStatus::Success, frame.len() as u32);
        rig.handle(0, Completion { wr, status, len });
    }
    rig.run();
    let counted = rig.sides[0].endpoint.counters().stale - stale;
    assert_eq!(counted, posted.len() as u64);
    assert_eq!(free_rows(&mut rig), before);
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
fn receives_that_never_flush_come_back_with_destroy() {
    let (mut rig, talk) = open();
    rig.gates[0].flushes = true;
    abort(&mut rig, &talk, 0);
    rig.run();
    let posted = rig.unflushed(0);
    rig.flush(0, 5);
    rig.run();
    assert_eq!(destroyed(&rig, 0), 0);
    rig.forget_completions(0);
    let held = rig.free[0].rx_slots - rig.sides[0].endpoint.free_rows().rx_slots;
    assert_eq!(held as usize, posted - 5);
    let start = rig.now;
    while destroyed(&rig, 0) == 0 {
        assert!(rig.advance());
    }
    assert!(rig.now < start.after(Duration::from_secs(1)));
    assert_eq!(
        rig.sides[0].endpoint.free_rows().rx_slots,
        rig.free[0].rx_slots
    );
    wind_up(&mut rig);
}

#[test]
fn a_receive_may_fail_before_its_post_returns() {
    for fails in 0..24 {
        let mut rig = Rig::new();
        rig.gates[0].idle = true;
        rig.dial(60);
        let mut receives = 0;
        loop {
            rig.run();
            let Some(work) = rig.take_work(0) else { break };
            let (_, wr) = name(&work);
            if matches!(work, Work::Recv { .. }) {
                receives += 1;
                if receives == fails + 1 {
                    // The device is quicker than whoever called it.
                    let status = WorkStatus::LocalAccess;
                    rig.handle(0, Completion { wr, status, len: 0 });
                    continue;
                }
            }
            rig.work(0, work);
        }
        assert!(receives > fails, "only {receives} receives");
        wind_up(&mut rig);
        let ended = rig.log[0].iter().any(|event| {
            let reason = Reason::WorkFailed(WorkStatus::LocalAccess);
            matches!(event, Event::Closed { reason: r, .. } if *r == reason)
        });
        assert!(ended, "receive {fails}: {:?}", rig.log[0]);
    }
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
            3 => is_destroy,
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
        rig.gates[0] = Gate::default().hold(is_destroy);
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

#[test]
fn a_shared_queue_without_its_last_word_is_let_go_in_time() {
    let (mut rig, mut talk) = open_shared();
    rig.gates[1].flushes = true;
    rig.tell(1, CmKind::Disconnected);
    talk.settle(&mut rig);
    assert_eq!(destroyed(&rig, 1), 0, "the last word is waited for");
    rig.forget_completions(1);
    let start = rig.now;
    while destroyed(&rig, 1) == 0 {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    assert!(rig.now < start.after(Duration::from_secs(1)));
    wind_up(&mut rig);
}

#[test]
fn flushed_receives_of_a_shared_queue_come_back() {
    let (mut rig, mut talk) = open_shared();
    let nexus = rig.nexus(1);
    // Of those that are posted, ten end without a frame.
    for _ in 0..10 {
        let wr = rig.take_shared(1);
        let status = WorkStatus::Flushed;
        rig.handle_shared(1, nexus, Completion { wr, status, len: 0 });
        talk.settle(&mut rig);
    }
    talk.outlive(&mut rig);
    assert_eq!(
        rig.sides[1].endpoint.free_rows().rx_slots,
        rig.free[1].rx_slots
    );
    // The queue serves the next one as before.
    let mut talk = Talk::open(&mut rig, false);
    for user in 0..100 {
        talk.say(&mut rig, 0, &Say::request(user));
        talk.settle(&mut rig);
    }
    assert_eq!(talk.count(0, "response"), 100);
    wind_up(&mut rig);
}

#[test]
fn a_connect_that_fails_at_any_step_leaves_nothing() {
    let steps: [(usize, fn(&Control) -> bool); 6] = [
        (0, |c| matches!(c, Control::ResolveAddress { .. })),
        (0, |c| matches!(c, Control::ResolveRoute { .. })),
        (0, |c| matches!(c, Control::CreateQueuePair { .. })),
        (0, |c| matches!(c, Control::Connect { .. })),
        (1, |c| matches!(c, Control::CreateQueuePair { .. })),
        (1, |c| matches!(c, Control::Accept { .. })),
    ];
    let works: [(usize, fn(&Work) -> bool); 4] = [
        (0, |w| matches!(w, Work::Recv { .. })),
        (1, |w| matches!(w, Work::Recv { .. })),
        (0, |w| matches!(w, Work::Send { .. })),
        (1, |w| matches!(w, Work::Send { .. })),
    ];
    let mut rig = Rig::new();
    for cycle in 0..2000 {
        rig.gates = [Gate::default(), Gate::default()];
        let k = cycle % 10;
        if let Some(&(i, step)) = steps.get(k) {
            rig.gates[i] = Gate::default().fail(step, 12);
        } else {
            let (i, work) = works[k - steps.len()];
            rig.gates[i] = Gate::default().fail_work(work, 12);
        }
        rig.dial(60);
        rig.run();
        while free_rows(&mut rig) != rig.free {
            assert!(rig.advance(), "step {k}: {:?}", rig.log);
        }
        assert!(closed(&rig, 0) == cycle + 1, "step {k}");
    }
    wind_up(&mut rig);
}

#[test]
fn receives_while_going_down_are_accounted() {
    let (mut rig, mut talk) = open();
    rig.gates[1].frames = true;
    for user in 1..=5 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    rig.run();
    // This side ends it; five good receives are in the batch that was taken already.
    rig.gates[1] = Gate::default().hold(|c| matches!(c, Control::Disconnect { .. }));
    rig.gates[1].frames = true;
    rig.tell(1, CmKind::AddrChange);
    rig.run();
    let slots = rig.sides[1].endpoint.free_rows().rx_slots;
    rig.arrive(1, 5);
    rig.run();
    assert_eq!(rig.waiting(1), 0);
    assert_eq!(rig.sides[1].endpoint.free_rows().rx_slots, slots + 5);
    talk.settle(&mut rig);
    assert_eq!(
        talk.count(1, "one-way"),
        0,
        "nothing is heard after the end"
    );
    wind_up(&mut rig);
}

#[test]
fn messages_in_the_users_hands_outlive_their_connection() {
    let (mut rig, mut talk) = open();
    talk.keep[1] = true;
    for user in 1..=3 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    talk.settle(&mut rig);
    let kept: Vec<_> = talk.kept[1].iter().map(|(task, _)| *task).collect();
    let header = rig.log[1].iter().find_map(|event| match *event {
        Event::Request { header, .. } => Some(header),
        _ => None,
    });
    let bytes = rig.sides[1].bytes(header.expect("a request")).to_vec();
    rig.tell(1, CmKind::Disconnected);
    talk.outlive(&mut rig);
    assert_eq!(talk.count(1, "closed Disconnected, 3 unanswered"), 1);
    // Other messages come and go, and these stay readable.
    let mut next = Talk::open(&mut rig, false);
    for user in 10..200 {
        next.say(&mut rig, 0, &Say::request(user));
        next.settle(&mut rig);
    }
    assert_eq!(rig.sides[1].bytes(header.expect("a request")), bytes);
    for task in kept {
        let endpoint = &mut rig.sides[1].endpoint;
        let late = endpoint.respond(task, &Message::default());
        assert!(
            matches!(late, Err(CommandError::Closed(Reason::Disconnected))),
            "{late:?}"
        );
        assert_eq!(endpoint.release(task), Ok(()));
        assert_eq!(endpoint.release(task), Err(CommandError::Unknown));
    }
    let options = RequestOptions::default();
    let connection = next.connections[1].expect("open");
    let endpoint = &mut rig.sides[1].endpoint;
    endpoint
        .send(connection, &Message::default(), &options)
        .expect("room");
    wind_up(&mut rig);
}
