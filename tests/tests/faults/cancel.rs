//! Kind F: cancelling, and answers that come too late.

use xio_proto::{CmKind, CommandError, Config, Event, Resource, TransportLimits};
use xio_tests::rig::Rig;
use xio_tests::talk::{Say, Talk, free_rows};

use crate::users::{is, open, reasons, wind_up};

/// Where a request is when it is cancelled.
const STEPS: [&str; 7] = [
    "queued",
    "posted",
    "at the peer",
    "answer on its way",
    "answered, not heard",
    "heard",
    "lost",
];

/// Brings a request there: its id.
fn bring(rig: &mut Rig, talk: &mut Talk, step: &str) -> xio_proto::TaskId {
    match step {
        "queued" => rig.gates[0].idle = true,
        "posted" => {
            rig.gates[0].sends = true;
            rig.gates[1].frames = true;
        }
        "at the peer" | "lost" => talk.keep[1] = true,
        "answer on its way" => rig.gates[0].frames = true,
        "answered, not heard" => rig.sides[0].deaf = true,
        _ => {}
    }
    let task = talk.say(rig, 0, &Say::request(1));
    talk.settle(rig);
    if step == "lost" {
        rig.sides[0].deaf = true;
        rig.tell(0, CmKind::Disconnected);
        rig.run();
    }
    task
}

#[test]
fn a_cancel_at_every_step_has_one_outcome() {
    for step in STEPS {
        let (mut rig, mut talk) = open();
        let task = bring(&mut rig, &mut talk, step);
        for _ in 0..2 {
            let endpoint = &mut rig.sides[0].endpoint;
            match endpoint.cancel(task) {
                Ok(()) => {}
                Err(CommandError::Unknown) => assert_eq!(step, "heard"),
                Err(error) => panic!("{step}: {error}"),
            }
        }
        rig.sides[0].deaf = false;
        rig.let_go(0);
        rig.let_go(1);
        talk.settle(&mut rig);
        talk.let_go(&mut rig, 1);
        let counts = ["cancelled 1", "response 1", "failed 1"].map(|text| talk.count(0, text));
        let expected = match step {
            "answered, not heard" | "heard" => [0, 1, 0],
            "lost" => [0, 0, 1],
            _ => [1, 0, 0],
        };
        assert_eq!(counts, expected, "{step}: {:?}", talk.heard[0]);
        // What is cancelled before the peer's user has seen it is not seen at all.
        let unseen = matches!(step, "queued" | "posted");
        let reached = talk.count(1, "request 1") + usize::from(step == "at the peer");
        assert_eq!(reached == 0, unseen, "{step}: {:?}", talk.heard[1]);
        if step != "lost" {
            talk.say(&mut rig, 0, &Say::request(2));
            talk.settle(&mut rig);
            assert_eq!(talk.count(0, "response 2"), 1, "{step}");
        }
        wind_up(&mut rig);
    }
}

#[test]
fn a_late_answer_does_not_meet_the_next_request() {
    let (mut rig, mut talk) = open();
    talk.keep[1] = true;
    let mut tasks = Vec::new();
    for user in 1..=8 {
        let task = talk.say(&mut rig, 0, &Say::request(user));
        talk.settle(&mut rig);
        rig.sides[0].endpoint.cancel(task).expect("known");
        talk.settle(&mut rig);
        assert!(!tasks.contains(&task), "an id that an answer may come for");
        tasks.push(task);
    }
    // The answers to all of those come while others wait.
    talk.let_go(&mut rig, 1);
    talk.keep[1] = true;
    for user in 11..=18 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    talk.settle(&mut rig);
    talk.let_go(&mut rig, 1);
    assert_eq!(rig.sides[0].endpoint.counters().late, 8);
    for user in 11..=18 {
        assert_eq!(talk.count(0, &format!("response {user}: 30")), 1);
    }
    assert_eq!(talk.count(0, "response"), 8);
    // A server may also give a request back unanswered: its sender is told by the end at the latest.
    talk.keep[1] = true;
    talk.say(&mut rig, 0, &Say::request(20));
    talk.settle(&mut rig);
    let (task, _) = talk.kept[1].pop().expect("kept");
    rig.sides[1].endpoint.release(task).expect("held");
    talk.close(&mut rig, 0);
    assert_eq!(
        talk.count(0, "failed 20: ConnectionEnded"),
        1,
        "{:?}",
        talk.heard[0].last()
    );
    wind_up(&mut rig);
}

#[test]
fn a_cancel_takes_one_message() {
    let (mut rig, mut talk) = open();
    rig.gates[0].idle = true;
    // Three with the same value of their user's.
    let tasks: Vec<_> = (0..3)
        .map(|_| talk.say(&mut rig, 0, &Say::request(7)))
        .collect();
    rig.sides[0].endpoint.cancel(tasks[1]).expect("known");
    rig.let_go(0);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "cancelled 7"), 1);
    assert_eq!(talk.count(0, "response 7"), 2);
    wind_up(&mut rig);
}

#[test]
fn a_bad_frame_costs_no_receive() {
    let mut rig = Rig::new();
    let mut frame = vec![0; 40];
    frame[..4].copy_from_slice(b"XIOP");
    for round in 0..1000 {
        let talk = Talk::open(&mut rig, false);
        let i = round % 2;
        frame[4..8].copy_from_slice(&(round as u32).to_be_bytes());
        assert!(rig.inject(i, &frame));
        rig.run();
        assert!(matches!(
            reasons(&rig, i).last(),
            Some(xio_proto::Reason::Violation(_))
        ));
        drop(talk);
        for side in &mut rig.sides {
            side.events.clear();
        }
        while free_rows(&mut rig) != rig.free {
            assert!(xio_tests::talk::World::advance(&mut rig), "round {round}");
        }
        rig.log = [Vec::new(), Vec::new()];
    }
    wind_up(&mut rig);
}

#[test]
fn a_request_with_its_receipt_can_be_cancelled() {
    let (mut rig, mut talk) = open();
    talk.keep[1] = true;
    let say = Say {
        receipt: true,
        ..Say::request(1)
    };
    let task = talk.say(&mut rig, 0, &say);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "delivered 1"), 1);
    rig.sides[0].endpoint.cancel(task).expect("known");
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "cancelled 1"), 1);
    talk.let_go(&mut rig, 1);
    assert_eq!(talk.count(0, "response"), 0);
    wind_up(&mut rig);
}

#[test]
fn cancelled_messages_leave_no_hole() {
    let (mut rig, mut talk) = open();
    rig.gates[0].idle = true;
    let tasks: Vec<_> = (0..20)
        .map(|user| talk.say(&mut rig, 0, &Say::request(user)))
        .collect();
    for task in tasks.iter().step_by(3) {
        rig.sides[0].endpoint.cancel(*task).expect("known");
    }
    rig.let_go(0);
    talk.settle(&mut rig);
    assert_eq!(
        (talk.count(0, "cancelled"), talk.count(0, "response")),
        (7, 13)
    );
    // The numbers that the peer saw have none either.
    let is_request = |frame: &&Vec<u8>| frame[4..8] == [0, 0, 0, 0x12];
    let requests = rig.sides[0].sent.iter().filter(is_request);
    let numbers: Vec<u8> = requests.map(|frame| frame[33]).collect();
    assert_eq!(numbers, (0..13).collect::<Vec<u8>>());
    let violations = rig.sides[1].endpoint.counters().violations;
    assert_eq!(violations, 0);
    wind_up(&mut rig);
}

#[test]
fn a_cancel_gives_back_its_place() {
    let config = |i| Config {
        queue_messages: 2,
        queue_bytes: 5000,
        ..Config::new(i, 64, 48)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = Talk::open(&mut rig, false);
    rig.gates[0].idle = true;
    let say = |user| Say {
        gathered: 2000,
        ..Say::request(user)
    };
    for round in 0..30 {
        let first = talk.say(&mut rig, 0, &say(1));
        talk.say(&mut rig, 0, &say(2));
        let full = talk.try_say(&mut rig, 0, &say(3));
        assert_eq!(
            full,
            Err(CommandError::Full(Resource::Queue)),
            "round {round}"
        );
        rig.sides[0].endpoint.cancel(first).expect("known");
        talk.settle(&mut rig);
        let writable = is(&rig, 0, |event| matches!(event, Event::Writable { .. }));
        assert_eq!(writable, round + 1);
        let third = talk.say(&mut rig, 0, &say(3));
        rig.sides[0].endpoint.cancel(third).expect("known");
        rig.gates[0].idle = false;
        talk.settle(&mut rig);
        rig.gates[0].idle = true;
        assert_eq!(talk.count(0, "response 2"), round + 1);
    }
    let connection = talk.connections[0].expect("open");
    let info = rig.sides[0].endpoint.info(connection).expect("known");
    assert_eq!((info.queued_messages, info.queued_bytes), (0, 0));
    wind_up(&mut rig);
}
