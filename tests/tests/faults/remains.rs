//! Kind A: what a connection leaves behind, and when it comes back.

use std::time::Duration;

use xio_proto::{
    CmKind, CommandError, Completion, ConnectOptions, Control, Event, Message, Reason,
    RequestOptions, Slots, TransportLimits, Work, WorkStatus,
};
use xio_tests::rig::{Gate, Rig, name, small};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{abort, closed, destroyed, established, open, wind_up};

const READ_ACK: [u8; 4] = [0, 0, 0x20, 4];

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

/// A side, and how to know what it asks for.
type Step<T> = (usize, fn(&T) -> bool);

#[test]
fn a_connect_that_fails_at_any_step_leaves_nothing() {
    let steps: [Step<Control>; 6] = [
        (0, |c| matches!(c, Control::ResolveAddress { .. })),
        (0, |c| matches!(c, Control::ResolveRoute { .. })),
        (0, |c| matches!(c, Control::CreateQueuePair { .. })),
        (0, |c| matches!(c, Control::Connect { .. })),
        (1, |c| matches!(c, Control::CreateQueuePair { .. })),
        (1, |c| matches!(c, Control::Accept { .. })),
    ];
    let works: [Step<Work>; 4] = [
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

/// How far an answer whose data is to be READ has come when its requester aborts its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    OnItsWay,
    WaitsForMemory,
    BeingRead,
    Read,
}

/// The peer of a connection that is aborted beside others had buffers READ, which came back only
/// with the transport connection.
#[test]
fn who_aborts_beside_others_acknowledges_answers() {
    for stage in [
        Stage::OnItsWay,
        Stage::WaitsForMemory,
        Stage::BeingRead,
        Stage::Read,
    ] {
        let (mut rig, mut talk) = open();
        let (first, server) = (talk.connections[0], talk.connections[1]);
        rig.dial_with(&ConnectOptions::new(61));
        talk.settle(&mut rig);
        assert_eq!(established(&rig, 0), 2);
        talk.connections = [first, server];
        let say = |user| Say {
            reply: 20_000,
            ..Say::request(user)
        };
        let gate = &mut rig.gates[0];
        (gate.frames, gate.sends) = match stage {
            Stage::OnItsWay => (true, false),
            Stage::WaitsForMemory => (false, false),
            Stage::BeingRead | Stage::Read => (false, true),
        };
        talk.keep[0] = stage == Stage::WaitsForMemory;
        for user in 0..3 {
            talk.say(&mut rig, 0, &say(user));
        }
        talk.settle(&mut rig);
        if stage == Stage::Read {
            rig.gates[0].idle = true;
            rig.gates[0].sends = false;
            rig.complete_sends(0, usize::MAX);
            talk.settle(&mut rig);
            assert_eq!(talk.count(0, "response"), 3);
        }
        let acknowledged = |rig: &Rig| {
            let acks = rig.sides[0].sent.iter();
            acks.filter(|frame| frame[4..8] == READ_ACK).count()
        };
        assert_eq!(acknowledged(&rig), 0, "{stage:?}: too early to tell");
        let now = rig.now;
        let aborted = rig.sides[0].endpoint.abort(now, first.expect("open"));
        assert_eq!(aborted, Ok(()));
        rig.gates[0] = Gate::default();
        rig.arrive(0, usize::MAX);
        rig.complete_sends(0, usize::MAX);
        talk.settle(&mut rig);
        assert_eq!(acknowledged(&rig), 3, "{stage:?}");
        assert_eq!(talk.count(1, "sent"), 3, "{stage:?}: {:#?}", talk.heard[1]);
        assert_eq!(closed(&rig, 0), 1, "{stage:?}");
        talk.keep[0] = false;
        wind_up(&mut rig);
    }
}
