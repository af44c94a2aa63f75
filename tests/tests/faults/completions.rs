//! Kind E: completions in any order, twice, or never.

use xio_proto::storage::Counts;
use xio_proto::{
    CmKind, CommandError, Completion, Config, Event, Message, Reason, RequestOptions,
    TransportLimits, Work, WorkStatus, WrId,
};
use xio_tests::pair::Pair;
use xio_tests::rig::{Gate, Rig, name, small};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{abort, open, reasons, settle, wind_up};

fn sends(work: &Work) -> bool {
    matches!(work, Work::Send { .. })
}

/// The words of what a side sent last.
fn last_sends(rig: &Rig, i: usize, count: usize) -> Vec<WrId> {
    let sent: Vec<_> = rig.posted[i].iter().filter(|work| sends(work)).collect();
    sent[sent.len() - count..]
        .iter()
        .map(|work| name(work).1)
        .collect()
}

#[test]
fn a_failed_completion_is_known_by_its_id() {
    let (mut rig, mut talk) = open();
    rig.gates[0] = Gate::default().hold_work(sends);
    talk.say(&mut rig, 0, &Say::request(1));
    rig.run();
    let (receives, wr) = (rig.receives(0), last_sends(&rig, 0, 1)[0]);
    // Whatever else the device says: it has a length, as only receives do.
    let status = WorkStatus::RetryExceeded;
    rig.handle(
        0,
        Completion {
            wr,
            status,
            len: 120,
        },
    );
    assert_eq!(rig.receives(0), receives, "it is no receive");
    talk.outlive(&mut rig);
    assert_eq!(reasons(&rig, 0), [Reason::WorkFailed(status)]);
    wind_up(&mut rig);
}

#[test]
fn an_error_loses_nothing_of_its_batch() {
    let (mut rig, mut talk) = open();
    rig.gates[0] = Gate::default().hold_work(sends);
    for user in 0..3 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    let sent = last_sends(&rig, 0, 3);
    let receive = rig.posted[0]
        .iter()
        .rev()
        .find(|work| matches!(work, Work::Recv { .. }));
    let receive = name(receive.expect("a receive")).1;
    // No receive could be posted any more, and none is tried.
    rig.gates[0].work = Box::new(|work| match work {
        Work::Recv { .. } => xio_tests::rig::Verdict::Fail(12),
        _ => xio_tests::rig::Verdict::Hold,
    });
    let posted = rig.posted[0].len();
    let status = WorkStatus::RetryExceeded;
    rig.handle(
        0,
        Completion {
            wr: receive,
            status,
            len: 0,
        },
    );
    for wr in sent {
        let status = WorkStatus::Flushed;
        rig.handle(0, Completion { wr, status, len: 0 });
    }
    rig.run();
    assert_eq!(rig.posted[0].len(), posted);
    talk.outlive(&mut rig);
    assert_eq!(talk.count(0, "failed"), 3, "{:?}", talk.heard[0]);
    wind_up(&mut rig);
}

#[test]
fn each_flushed_message_ends() {
    let (mut rig, mut talk) = open();
    rig.gates[0] = Gate::default().hold_work(sends);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.say(&mut rig, 0, &Say::one_way(2));
    let receipt = Say {
        receipt: true,
        ..Say::one_way(3)
    };
    talk.say(&mut rig, 0, &receipt);
    rig.run();
    let flushed = rig.sides[0].endpoint.counters().flushed;
    rig.tell(0, CmKind::Disconnected);
    talk.settle(&mut rig);
    for user in 1..=3 {
        assert_eq!(
            talk.count(0, &format!("failed {user}")),
            1,
            "{:?}",
            talk.heard[0]
        );
    }
    assert!(rig.sides[0].endpoint.counters().flushed >= flushed + 3);
    wind_up(&mut rig);
}

#[test]
fn completions_of_nothing_are_counted() {
    let (mut rig, mut talk) = open();
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    let before = free_rows(&mut rig);
    let done = last_sends(&rig, 0, 1)[0];
    let stale = rig.sides[0].endpoint.counters().stale;
    let garbage = [0, 1, 0x1000_0000_0000_ffff, 0x2fff_ffff_ffff_ffff, u64::MAX];
    let mut words: Vec<_> = garbage.into_iter().map(WrId::from_bits).collect();
    words.extend([done, done]);
    for wr in &words {
        for status in [WorkStatus::Success, WorkStatus::RetryExceeded] {
            rig.handle(
                0,
                Completion {
                    wr: *wr,
                    status,
                    len: 64,
                },
            );
        }
    }
    assert_eq!(
        rig.sides[0].endpoint.counters().stale,
        stale + 2 * words.len() as u64
    );
    assert_eq!(free_rows(&mut rig), before);
    // A post that failed, and completes all the same.
    rig.gates[0] = Gate::default().fail_work(sends, 12);
    talk.say(&mut rig, 0, &Say::request(2));
    rig.run();
    let wr = last_sends(&rig, 0, 1)[0];
    for _ in 0..2 {
        let status = WorkStatus::Flushed;
        rig.handle(0, Completion { wr, status, len: 0 });
    }
    talk.outlive(&mut rig);
    assert_eq!(talk.count(0, "failed 2"), 1, "{:?}", talk.heard[0]);
    assert_eq!(reasons(&rig, 0), [Reason::PostFailed(12)]);
    wind_up(&mut rig);
}

#[test]
fn a_small_completion_queue_is_never_overrun() {
    // Less room than there are receives and messages; one transport connection may have it all.
    const ROOM: usize = 24;
    let limits = |_| TransportLimits {
        cq_depth: ROOM as u32,
        ..TransportLimits::rdma()
    };
    let counts = |config: &Config| Counts {
        nexuses: 1,
        ..Pair::counts(config)
    };
    let mut rig = Rig::sized(small, counts, limits);
    let mut talk = Talk::open(&mut rig, false);
    for i in 0..2 {
        rig.gates[i] = Gate::default().hold_work(sends);
    }
    for user in 0..20 {
        talk.say(&mut rig, 0, &Say::request(user));
        talk.say(&mut rig, 1, &Say::request(user));
    }
    rig.run();
    // All that is out could complete at once.
    for i in 0..2 {
        let out = rig.out(i);
        assert!((ROOM - 4..=ROOM).contains(&out), "{out} on side {i}");
        rig.gates[i].flushes = true;
    }
    for i in 0..2 {
        rig.tell(i, CmKind::Disconnected);
    }
    rig.run();
    for i in 0..2 {
        let flushes = rig.unflushed(i);
        assert!((1..=ROOM).contains(&flushes), "{flushes} on side {i}");
    }
    for i in 0..2 {
        rig.let_go(i);
    }
    talk.outlive(&mut rig);
    assert_eq!(talk.count(0, "failed") + talk.count(1, "failed"), 40);
    wind_up(&mut rig);
}

#[test]
fn the_room_of_the_dead_comes_back() {
    // Places for two connections, and a thousand come.
    let limits = |_| TransportLimits {
        cq_depth: 60,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(small, limits);
    for round in 0..300 {
        let mut talk = Talk::open(&mut rig, false);
        talk.say(&mut rig, 0, &Say::request(1));
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "response 1"), 1, "round {round}");
        abort(&mut rig, &talk, round % 2);
        talk.outlive(&mut rig);
        assert_eq!(free_rows(&mut rig), rig.free);
    }
    wind_up(&mut rig);
}

#[test]
fn the_last_send_is_signalled() {
    for count in [1, 2, 17] {
        let (mut rig, mut talk) = open();
        rig.gates[1].frames = true;
        for user in 0..count {
            talk.say(&mut rig, 0, &Say::one_way(user));
        }
        // Nothing comes from the peer, and no time passes.
        talk.settle(&mut rig);
        let last = rig.posted[0].iter().rev().find(|work| sends(work));
        assert!(
            matches!(last, Some(Work::Send { signaled: true, .. })),
            "{last:?}"
        );
        assert_eq!(talk.count(0, "sent") as u64, count, "{:?}", talk.heard[0]);
        wind_up(&mut rig);
    }
}

#[test]
fn what_completed_before_the_close_is_not_flushed() {
    let (mut rig, mut talk) = open();
    rig.gates[0].sends = true;
    rig.gates[1].frames = true;
    for user in 0..3 {
        talk.say(&mut rig, 0, &Say::one_way(user));
        rig.run();
    }
    // Each was the last of its burst, so each completes; two have, and nobody looked.
    rig.complete_sends(0, 2);
    rig.tell(0, CmKind::Disconnected);
    rig.forget_completions(0);
    talk.outlive(&mut rig);
    let heard: Vec<_> = talk.heard[0].iter().map(|text| &text[..6]).collect();
    assert_eq!(
        heard[..3],
        ["sent 0", "sent 1", "failed"],
        "{:?}",
        talk.heard[0]
    );
    assert_eq!(talk.count(0, "failed 2"), 1);
    wind_up(&mut rig);
}

#[test]
fn commands_on_a_failed_connection_are_refused() {
    let (mut rig, mut talk) = open();
    let connection = talk.connections[0].expect("open");
    talk.say(&mut rig, 0, &Say::request(1));
    rig.sides[0].deaf = true;
    rig.tell(0, CmKind::Disconnected);
    rig.run();
    // With the first event of the failure in hand, its user goes on as before.
    let first = rig.sides[0].endpoint.poll_event().expect("an outcome");
    assert!(matches!(first, Event::Failed { user: 1, .. }), "{first:?}");
    let refused = talk.try_say(&mut rig, 0, &Say::request(2));
    assert!(
        matches!(refused, Err(CommandError::Closed(Reason::Disconnected))),
        "{refused:?}"
    );
    let now = rig.now;
    for _ in 0..2 {
        assert_eq!(rig.sides[0].endpoint.close(now, connection), Ok(()));
        assert_eq!(rig.sides[0].endpoint.abort(now, connection), Ok(()));
    }
    rig.sides[0].deaf = false;
    talk.outlive(&mut rig);
    assert_eq!(reasons(&rig, 0), [Reason::Disconnected]);
    wind_up(&mut rig);
}

#[test]
fn an_error_of_one_request_ends_all() {
    let (mut rig, mut talk) = open();
    rig.gates[0] = Gate::default().hold_work(sends);
    for user in 1..=4 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    let wr = last_sends(&rig, 0, 4)[2];
    let start = rig.now;
    let status = WorkStatus::RetryExceeded;
    rig.handle(0, Completion { wr, status, len: 0 });
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "failed"), 4, "{:?}", talk.heard[0]);
    assert_eq!(rig.now, start, "at once");
    let cause = talk.heard[0]
        .iter()
        .filter(|text| text.contains("RetryExceeded"));
    assert_eq!(cause.count(), 5, "each with the cause: {:?}", talk.heard[0]);
    wind_up(&mut rig);
}

#[test]
fn a_read_whose_completion_was_lost_with_its_queue_pair_brought_nothing() {
    let (mut rig, mut talk) = open();
    rig.gates[1] = Gate::default().hold_work(|work| !matches!(work, Work::Recv { .. }));
    let large = Say {
        gathered: 5000,
        force_read: true,
        inline: 0,
        ..Say::request(1)
    };
    talk.say(&mut rig, 0, &large);
    talk.settle(&mut rig);
    talk.say(&mut rig, 1, &Say::request(2));
    talk.settle(&mut rig);
    let reads = |work: &&Work| matches!(work, Work::Read { .. });
    assert!(rig.posted[1].iter().any(|work| reads(&work)));
    // A device that completes out of order: the READ has not been done.
    let (wr, status) = (last_sends(&rig, 1, 1)[0], WorkStatus::Flushed);
    rig.handle(1, Completion { wr, status, len: 0 });
    talk.settle(&mut rig);
    assert_eq!(talk.count(1, "request 1:"), 0, "{:#?}", talk.heard[1]);
    let failed = Reason::WorkFailed(WorkStatus::Flushed);
    assert_eq!(reasons(&rig, 1), [failed]);
    wind_up(&mut rig);
}

#[test]
fn a_failed_post_ends_every_message_once() {
    // Two sessions share the transport connection, and one of them posts what fails.
    let (mut rig, mut talk) = open();
    rig.dial_with(&xio_proto::ConnectOptions::new(61));
    settle(&mut rig);
    rig.gates[1].frames = true;
    for user in 0..3 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    rig.gates[0] = Gate::default().fail_work(sends, 12);
    let message = Message {
        user: 7,
        ..Message::default()
    };
    let options = RequestOptions::default();
    let second = rig.dialed[0];
    rig.sides[0]
        .endpoint
        .send(second, &message, &options)
        .expect("room");
    rig.run();
    talk.outlive(&mut rig);
    for user in [0, 1, 2, 7] {
        let failed = |event: &&Event| matches!(event, Event::Failed { user: u, .. } if *u == user);
        assert_eq!(rig.log[0].iter().filter(failed).count(), 1, "{user}");
    }
    assert_eq!(reasons(&rig, 0), [Reason::PostFailed(12); 2]);
    wind_up(&mut rig);
}

#[test]
fn a_receive_that_cannot_be_posted_is_accounted() {
    for at in 0..6 {
        let mut rig = Rig::new();
        let mut left = at;
        rig.gates[1].work = Box::new(move |work| {
            if !matches!(work, Work::Recv { .. }) {
                return xio_tests::rig::Verdict::Go;
            }
            left -= 1;
            match left {
                -1 => xio_tests::rig::Verdict::Fail(12),
                _ => xio_tests::rig::Verdict::Go,
            }
        });
        rig.dial(60);
        settle(&mut rig);
        while free_rows(&mut rig) != rig.free {
            assert!(rig.advance(), "receive {at}");
        }
        wind_up(&mut rig);
    }
}

/// The answer is there before the completion of the request's own frame, and is in the user's hands
/// when the connection ends: the completion still finds the queue pair that it is of.
#[test]
fn a_frame_completes_after_its_answer_and_its_connection() {
    for aborts in [false, true] {
        let (mut rig, talk) = open();
        rig.gates[0].sends = true;
        let client = talk.connections[0].expect("open");
        let (answer, options) = (Message::default(), RequestOptions::default());
        let endpoint = &mut rig.sides[0].endpoint;
        // In a slot of its own it goes the short way, as most do.
        let request = Message {
            slot: endpoint.reserve_slot(client).ok(),
            ..answer
        };
        assert!(endpoint.send(client, &request, &options).is_ok());
        rig.run();
        let Some(&Event::Request { task, .. }) = rig.log[1].last() else {
            panic!("{:?}", rig.log[1])
        };
        assert_eq!(rig.sides[1].endpoint.respond(task, &answer), Ok(()));
        rig.run();
        let Some(&Event::Response { task, .. }) = rig.log[0].last() else {
            panic!("{:?}", rig.log[0])
        };
        let (now, endpoint) = (rig.now, &mut rig.sides[0].endpoint);
        let ended = match aborts {
            true => endpoint.abort(now, client),
            false => endpoint.close(now, client),
        };
        assert_eq!(ended, Ok(()));
        rig.run();
        let is_closed = |event: &Event| matches!(event, Event::Closed { .. });
        while !rig.log[0].iter().any(is_closed) {
            assert!(rig.advance(), "{:?}", rig.log[0]);
        }
        rig.let_go(0);
        assert_eq!(rig.sides[0].endpoint.release(task), Ok(()));
        wind_up(&mut rig);
    }
}
