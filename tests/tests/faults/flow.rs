//! Kind D: application credits, and the queues of a connection.

use std::time::Duration;

use xio_proto::{
    CommandError, Config, Event, Extensions, Failure, Message, Reason, RequestOptions, Resource,
    TransportLimits,
};
use xio_tests::rig::Rig;
use xio_tests::talk::{Say, Talk, World};

use crate::users::{is, wind_up};

/// Both sides with application credits.
fn credited(messages: u16, bytes: u64) -> (Rig, Talk) {
    with(|_| true, messages, bytes)
}

fn with(flow_control: fn(u8) -> bool, messages: u16, bytes: u64) -> (Rig, Talk) {
    let config = |i| Config {
        flow_control: flow_control(i),
        // As if the other side were a libxio.
        extensions: Extensions::empty(),
        depth_messages: messages,
        depth_bytes: bytes,
        ..Config::new(i, 128, 64)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

const ACK_REQ: [u8; 4] = [0, 0, 0x10, 2];

fn acks(rig: &Rig, i: usize) -> usize {
    let sent = rig.sides[i].sent.iter();
    sent.filter(|frame| frame[4..8] == ACK_REQ).count()
}

#[test]
fn a_message_that_never_fits_fails_alone() {
    let config = |i| Config {
        flow_control: true,
        depth_bytes: 1000,
        ..Config::new(i, 64, 48)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = Talk::default();
    let client = Talk::dial(&mut rig, false);
    talk.connections[0] = Some(client);
    // What the peer takes is not known yet.
    for user in 0..5 {
        let gathered = if user == 2 { 5000 } else { 0 };
        let say = Say {
            gathered,
            ..Say::request(user)
        };
        talk.say(&mut rig, 0, &say);
    }
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "failed 2: TooLong"), 1, "{:?}", talk.heard[0]);
    assert_eq!(talk.count(0, "response"), 4, "{:?}", talk.heard[0]);
    // Now it is.
    let say = Say {
        gathered: 5000,
        ..Say::request(7)
    };
    let refused = talk.try_say(&mut rig, 0, &say);
    assert!(
        matches!(refused, Err(CommandError::TooLong { max: 1000, .. })),
        "{refused:?}"
    );
    talk.say(&mut rig, 0, &Say::request(8));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 8"), 1);
    let failures = rig.log[0].iter().filter(|event| {
        matches!(
            event,
            Event::Failed {
                failure: Failure::TooLong { .. },
                ..
            }
        )
    });
    assert_eq!(failures.count(), 1);
    wind_up(&mut rig);
}

#[test]
fn application_credits_pass_blocked_requests() {
    let (mut rig, mut talk) = credited(4, 1 << 20);
    talk.keep = [true, true];
    for user in 0..12 {
        talk.say(&mut rig, 0, &Say::one_way(user));
        talk.say(&mut rig, 1, &Say::one_way(user));
    }
    talk.settle(&mut rig);
    // Each has used all credits of the other, and its queue is full of what needs more.
    assert_eq!(talk.kept.each_ref().map(Vec::len), [4, 4]);
    for _ in 0..12 {
        for i in 0..2 {
            talk.let_go(&mut rig, i);
        }
    }
    assert_eq!(
        [talk.count(0, "one-way"), talk.count(1, "one-way")],
        [12, 12]
    );
    assert!(acks(&rig, 0) > 0 && acks(&rig, 1) > 0);
    assert!(acks(&rig, 0) <= 12, "{} of them", acks(&rig, 0));
    wind_up(&mut rig);
}

/// Whoever says FIN returns no credits any more: what waits for them is not waited for.
#[test]
fn both_close_while_messages_lack_application_credits() {
    let (mut rig, mut talk) = credited(2, 1 << 20);
    talk.keep = [true, true];
    for user in 0..5 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    talk.settle(&mut rig);
    assert_eq!(talk.kept[1].len(), 2);
    let (began, now) = (rig.now, rig.now);
    for i in [1, 0] {
        let id = talk.connections[i].expect("a connection");
        rig.sides[i].endpoint.close(now, id).unwrap();
    }
    talk.settle(&mut rig);
    talk.let_go(&mut rig, 1);
    while talk.count(0, "closed") + talk.count(1, "closed") < 2 {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    let took = rig.now.since(began);
    assert!(took < Duration::from_secs(1), "only after {took:?}");
    let never = |event: &Event| {
        let failure = Failure::NeverSent(Reason::Closed);
        matches!(event, Event::Failed { failure: f, .. } if *f == failure)
    };
    assert_eq!(is(&rig, 0, never), 3, "{:?}", talk.heard[0]);
    wind_up(&mut rig);
}

#[test]
fn application_credits_below_zero_are_no_riches() {
    let (mut rig, mut talk) = credited(2, 1 << 20);
    talk.keep = [true, true];
    for user in 0..8 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    for user in 0..2 {
        talk.say(&mut rig, 1, &Say::one_way(user));
    }
    talk.settle(&mut rig);
    // This side owes credits and has none itself: telling of them takes it below zero.
    talk.keep[0] = false;
    talk.let_go(&mut rig, 0);
    assert!(acks(&rig, 0) > 0);
    assert_eq!(
        talk.kept[1].len(),
        2,
        "the peer takes two, and no flood comes"
    );
    talk.let_go(&mut rig, 1);
    while talk.count(1, "one-way") < 8 {
        assert!(rig.advance());
        talk.settle(&mut rig);
        talk.let_go(&mut rig, 1);
    }
    wind_up(&mut rig);
}

#[test]
fn depths_are_cut_and_not_wrapped() {
    let config = |i| Config {
        queue_messages: 65_536 + 7,
        ..Config::new(i, 64, 48)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = Talk::open(&mut rig, false);
    let setup = |frame: &&Vec<u8>| frame[4..8] == [0, 0, 1, 2];
    let setup = rig.sides[0].sent.iter().find(setup).expect("a setup");
    // `snd_msgs`, at 20 of a payload that lies at 96.
    assert_eq!(setup[116..118], [0xff, 0xff]);
    for user in 0..20 {
        talk.say(&mut rig, 0, &Say::request(user));
        talk.settle(&mut rig);
    }
    assert_eq!(talk.count(0, "response"), 20);
    wind_up(&mut rig);
}

#[test]
fn queue_limits_are_exact() {
    for flow_control in [false, true] {
        let config = |i| Config {
            flow_control,
            queue_messages: 5,
            queue_bytes: 10_000,
            ..Config::new(i, 64, 48)
        };
        let mut rig = Rig::with(config, |_| TransportLimits::rdma());
        let mut talk = Talk::open(&mut rig, false);
        rig.gates[1].frames = true;
        for user in 0..5 {
            talk.say(&mut rig, 0, &Say::one_way(user));
        }
        // Whether they wait here or on their way makes no difference.
        rig.gates[0].sends = true;
        rig.run();
        let sixth = talk.try_say(&mut rig, 0, &Say::one_way(6));
        assert_eq!(sixth, Err(CommandError::Full(Resource::Queue)));
        rig.gates[0].sends = false;
        rig.complete_sends(0, 1);
        talk.settle(&mut rig);
        let writable = is(&rig, 0, |event| matches!(event, Event::Writable { .. }));
        assert_eq!(writable, 1, "worth another try, once");
        rig.let_go(0);
        rig.let_go(1);
        talk.settle(&mut rig);
        // And by bytes: one that is larger by itself, if nothing else is there.
        let say = |user, gathered| Say {
            inline: 0,
            gathered,
            ..Say::request(user)
        };
        talk.say(&mut rig, 0, &say(10, 12_000));
        let full = talk.try_say(&mut rig, 0, &say(11, 1));
        assert_eq!(full, Err(CommandError::Full(Resource::Queue)));
        talk.settle(&mut rig);
        talk.say(&mut rig, 0, &say(12, 5000));
        // Each has 21 bytes of header.
        talk.say(&mut rig, 0, &say(13, 10_000 - 5000 - 42));
        let full = talk.try_say(&mut rig, 0, &say(14, 1));
        assert_eq!(full, Err(CommandError::Full(Resource::Queue)));
        talk.settle(&mut rig);
        wind_up(&mut rig);
    }
}

#[test]
fn bytes_of_all_connections_are_bounded_together() {
    let config = |i| Config {
        queue_bytes: 10_000,
        queue_bytes_all: 10_000,
        ..Config::new(i, 64, 48)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = Talk::open(&mut rig, false);
    let first = talk.connections[0];
    let second = Some(Talk::dial(&mut rig, false));
    talk.settle(&mut rig);
    let say = |user, gathered| Say {
        inline: 0,
        gathered,
        ..Say::request(user)
    };
    let writable = |rig: &Rig| is(rig, 0, |event| matches!(event, Event::Writable { .. }));
    for (user, inline) in [(0, false), (10, true)] {
        let before = writable(&rig);
        talk.connections[0] = first;
        talk.say(&mut rig, 0, &say(user, 6000));
        talk.connections[0] = second;
        // Small messages go another way through the endpoint, and find the same limit.
        let small = Say {
            inline: 100,
            ..Say::request(user + 1)
        };
        let other = if inline { small } else { say(user + 1, 3950) };
        // Each has 21 bytes of header.
        talk.say(&mut rig, 0, &say(user + 2, 10_000 - 6000 - 42 - 100));
        let full = talk.try_say(&mut rig, 0, &other);
        assert_eq!(full, Err(CommandError::Full(Resource::Queue)));
        let state = rig.sides[0].endpoint.snapshot();
        assert_eq!((state.queued_bytes, state.queue_bytes_all), (9900, 10_000));
        talk.settle(&mut rig);
        assert_eq!(writable(&rig) - before, 1, "worth another try, once");
        talk.say(&mut rig, 0, &other);
        talk.settle(&mut rig);
        assert_eq!(rig.sides[0].endpoint.snapshot().queued_bytes, 0);
    }
    assert_eq!(talk.count(0, "response"), 6);
    wind_up(&mut rig);
}

#[test]
fn application_bytes_return_by_the_size_that_came() {
    let (mut rig, mut talk) = credited(1000, 5000);
    for user in 0..300 {
        let say = Say {
            inline: 900,
            ..Say::request(user)
        };
        // Its receiver's user does with it what it likes: only its size counts.
        talk.say(&mut rig, 0, &say);
        talk.settle(&mut rig);
    }
    assert_eq!(talk.count(0, "response"), 300);
    for user in 0..300 {
        let say = Say {
            inline: 900,
            ..Say::one_way(user)
        };
        talk.say(&mut rig, 0, &say);
        talk.settle(&mut rig);
    }
    assert_eq!(talk.count(1, "one-way"), 300);
    wind_up(&mut rig);
}

#[test]
fn application_credits_without_flow_control_are_ignored() {
    let (mut rig, mut talk) = with(|i| i == 1, 4, 1 << 20);
    for user in 0..100 {
        talk.say(&mut rig, 0, &Say::one_way(user));
        talk.settle(&mut rig);
    }
    assert!(acks(&rig, 1) > 10, "{} of them", acks(&rig, 1));
    assert_eq!(talk.count(1, "one-way"), 100);
    let violations = rig.sides[0].endpoint.counters().violations;
    assert_eq!(violations, 0);
    wind_up(&mut rig);
}

#[test]
fn application_credits_of_cancelled_requests_come_back() {
    let (mut rig, mut talk) = credited(4, 1 << 20);
    for user in 0..60 {
        talk.keep[1] = true;
        let task = talk.say(&mut rig, 0, &Say::request(user));
        talk.settle(&mut rig);
        rig.sides[0].endpoint.cancel(task).expect("known");
        talk.settle(&mut rig);
        talk.let_go(&mut rig, 1);
    }
    assert_eq!(talk.count(0, "cancelled"), 60, "{:?}", talk.heard[0]);
    assert_eq!(talk.count(1, "request"), 60);
    talk.say(&mut rig, 0, &Say::request(100));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 100"), 1);
    wind_up(&mut rig);
}

#[test]
fn a_full_table_refuses_and_says_when_to_come_back() {
    let (mut rig, talk) = with(|_| false, 1000, 1 << 20);
    rig.gates[1].frames = true;
    let connection = talk.connections[0].expect("open");
    let mut taken = 0;
    let full = loop {
        let endpoint = &mut rig.sides[0].endpoint;
        let message = Message {
            user: taken,
            ..Message::default()
        };
        match endpoint.send(connection, &message, &RequestOptions::default()) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    let is_full = matches!(
        full,
        CommandError::Full(Resource::Tasks | Resource::SendSlots)
    );
    assert!(is_full, "{full:?}");
    assert!(taken > 10, "{taken}");
    let before = is(&rig, 0, |event| matches!(event, Event::Writable { .. }));
    rig.run();
    // The server's user answers without a header, as it was asked.
    rig.gates[1].frames = false;
    rig.arrive(1, usize::MAX);
    let mut answered = 0;
    while answered < taken {
        rig.run();
        let mut busy = false;
        while let Some(event) = rig.sides[1].events.pop_front() {
            if let Event::Request { task, .. } = event {
                busy = true;
                let endpoint = &mut rig.sides[1].endpoint;
                endpoint.respond(task, &Message::default()).expect("room");
            }
        }
        while let Some(event) = rig.sides[0].events.pop_front() {
            if let Event::Response { task, .. } = event {
                busy = true;
                answered += 1;
                rig.sides[0].endpoint.release(task).expect("held");
            }
        }
        assert!(busy, "{answered} of {taken} answered");
    }
    rig.run();
    let after = is(&rig, 0, |event| matches!(event, Event::Writable { .. }));
    assert_eq!(after, before + 1);
    wind_up(&mut rig);
}

/// Two of this kind, each with application credits or without; few of them, so that they would run out.
fn agreeing(flow_control: fn(u8) -> bool) -> (Rig, Talk) {
    let config = |i| Config {
        flow_control: flow_control(i),
        depth_messages: 4,
        ..Config::new(i, 128, 64)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

#[test]
fn application_credits_that_only_one_side_has_are_off_for_both() {
    for one in [|i| i == 0, |i| i == 1] as [fn(u8) -> bool; 2] {
        let (mut rig, mut talk) = agreeing(one);
        for i in [0, 1] {
            for user in 0..20 {
                // More than the other side said that it has room for, and none is ever returned.
                talk.say(&mut rig, i, &Say::one_way(100 * i as u64 + user));
            }
        }
        talk.settle(&mut rig);
        for i in [0, 1] {
            assert_eq!(talk.count(i, "one-way"), 20, "{:?}", talk.heard[i]);
            assert_eq!(acks(&rig, i), 0);
        }
        wind_up(&mut rig);
    }
}

#[test]
fn application_credits_that_both_sides_have_are_used() {
    let (mut rig, mut talk) = agreeing(|_| true);
    talk.keep[1] = true;
    for user in 0..20 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    talk.settle(&mut rig);
    // As many as there are credits for, and not one more before they are given back.
    assert_eq!(talk.count(1, "one-way"), 4, "{:?}", talk.heard[1]);
    talk.keep[1] = false;
    talk.let_go(&mut rig, 1);
    talk.settle(&mut rig);
    assert_eq!(talk.count(1, "one-way"), 20, "{:?}", talk.heard[1]);
    assert!(acks(&rig, 1) > 0);
    wind_up(&mut rig);
}
