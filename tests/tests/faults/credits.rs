//! Kind D: credits of transport connections. A frame that finds no receive is counted by the rig
//! and ends a test on the perfect wire.

use std::time::Duration;

use xio_proto::storage::Counts;
use xio_proto::wire::CreditNop;
use xio_proto::{
    CmKind, CommandError, Config, ConnectOptions, Control, Event, Message, Reason, RemoteMemory,
    RequestOptions, Segment, TransportLimits, Work,
};
use xio_tests::pair::{Pair, Side};
use xio_tests::rig::{Gate, Rig, small};
use xio_tests::talk::{Say, Talk, World};

use crate::users::{established, reasons, settle, wind_up};

const SETUP_REQ: [u8; 4] = [0, 0, 0, 0x82];
const SETUP_RSP: [u8; 4] = [0, 0, 0, 0x84];
const NOP: [u8; 4] = [0, 0, 0, 0x41];

fn kinds(rig: &Rig, i: usize) -> Vec<[u8; 4]> {
    let kind = |frame: &Vec<u8>| [frame[4], frame[5], frame[6], frame[7]];
    rig.sides[i].sent.iter().map(kind).collect()
}

/// Frames that a side can send, by its own count.
fn credits(rig: &Rig, talk: &Talk, i: usize) -> usize {
    let connection = talk.connections[i].expect("open");
    let info = rig.sides[i].endpoint.info(connection).expect("known");
    info.tx_credits.into()
}

/// Two sides of which both have few receives.
fn narrow() -> Rig {
    let config = |i| Config {
        min_grant: 5,
        ..Config::new(i, 40, 64)
    };
    let limits = |_| TransportLimits {
        rq_depth: 8,
        sq_depth: 8,
        ..TransportLimits::rdma()
    };
    Rig::with(config, limits)
}

/// Grants credits to the first side, as its peer would.
fn grant(rig: &mut Rig, credits: u16) {
    let numbered = |kind: &[u8; 4]| ![SETUP_REQ, SETUP_RSP, NOP, [0, 0, 0x20, 4]].contains(kind);
    let sn = kinds(rig, 1).iter().filter(|kind| numbered(kind)).count() as u16;
    let nop = CreditNop {
        sn,
        ack_sn: 0xffff,
        credits,
    };
    let mut frame = [0; CreditNop::LEN];
    assert_eq!(nop.encode(&mut frame), CreditNop::LEN);
    assert!(rig.inject(0, &frame));
    rig.run();
}

#[test]
fn nothing_grants_before_the_setup_answer() {
    let mut rig = Rig::new();
    rig.gates[1] = Gate::default().hold_work(|work| matches!(work, Work::Send { .. }));
    rig.dial(60);
    rig.run();
    // All receives are there, and the answer that tells of them is not out.
    assert!(rig.receives(1) >= 8, "{}", rig.receives(1));
    assert_eq!(rig.sides[1].sent.len(), 0);
    assert_eq!(
        kinds(&rig, 0),
        [SETUP_REQ],
        "the client says nothing more either"
    );
    rig.gates[0].frames = true;
    rig.let_go(1);
    while rig.sides[1].sent.is_empty() {
        assert!(rig.advance());
    }
    assert_eq!(kinds(&rig, 1)[0], SETUP_RSP);
    assert_eq!(kinds(&rig, 0), [SETUP_REQ]);
    rig.let_go(0);
    settle(&mut rig);
    assert_eq!(established(&rig, 0), 1);
    assert_eq!(rig.unready, [0, 0]);
    wind_up(&mut rig);
}

#[test]
fn credits_pass_full_queues() {
    let mut rig = narrow();
    let mut talk = Talk::open(&mut rig, false);
    for i in 0..2 {
        rig.gates[i].frames = true;
        rig.gates[i].sends = true;
    }
    for user in 0..20 {
        talk.say(&mut rig, 0, &Say::request(user));
        talk.say(&mut rig, 1, &Say::request(user));
    }
    rig.run();
    // Neither can send more data, and what each sent has not been seen.
    for i in 0..2 {
        assert!(credits(&rig, &talk, i) < 4, "{}", credits(&rig, &talk, i));
    }
    // Both see it at once: both owe, both have full queues.
    for i in 0..2 {
        rig.gates[i].frames = false;
        rig.arrive(i, usize::MAX);
    }
    talk.settle(&mut rig);
    for i in 0..2 {
        rig.gates[i].sends = false;
        rig.complete_sends(i, usize::MAX);
    }
    talk.settle(&mut rig);
    assert_eq!(
        [talk.count(0, "response"), talk.count(1, "response")],
        [20, 20]
    );
    assert_eq!(rig.unready, [0, 0]);
    wind_up(&mut rig);
}

/// Sends on both sides as fast as they take it, until so many have come on each.
fn stream(pair: &mut Pair, talk: &Talk, count: usize) {
    let mut came = [0, 0];
    let mut taken = [0, 0];
    while came != [count, count] {
        for (i, taken) in taken.iter_mut().enumerate() {
            let connection = talk.connections[i].expect("open");
            let endpoint = &mut pair.sides[i].endpoint;
            while *taken < count {
                let options = RequestOptions::default();
                match endpoint.send_one_way(connection, &Message::default(), &options) {
                    Ok(_) => *taken += 1,
                    Err(CommandError::Full(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let before = came;
        pair.run();
        for (i, came) in came.iter_mut().enumerate() {
            while let Some(event) = pair.sides[i].events.pop_front() {
                if let Event::OneWay { task, .. } = event {
                    *came += 1;
                    pair.sides[i].endpoint.release(task).expect("held");
                }
            }
        }
        assert_ne!(came, before, "a deadlock after {came:?}");
    }
}

#[test]
fn every_window_lasts_both_ways() {
    for window in 5..=12 {
        let config = |i| Config {
            min_grant: 5,
            keepalive: None,
            ..Config::new(i, 64, 64)
        };
        // One more than the window is never granted, two may be in users' hands.
        let limits = TransportLimits {
            rq_depth: window + 3,
            ..TransportLimits::rdma()
        };
        let mut pair = Pair::rdma_with(config, &Pair::counts(&config(0)), limits);
        pair.check_every = 64;
        World::listen(&mut pair, 50);
        let talk = Talk::open(&mut pair, false);
        stream(&mut pair, &talk, 10_000);
        pair.run();
        // Then they are quiet, and stay it.
        let nops = |pair: &Pair| {
            pair.sides
                .each_ref()
                .map(|s| s.endpoint.counters().nops_sent)
        };
        let before = nops(&pair);
        for _ in 0..60 {
            pair.now = pair.now.after(Duration::from_secs(1));
            for side in &mut pair.sides {
                side.endpoint.handle_timeout(pair.now);
            }
            pair.run();
        }
        assert_eq!(nops(&pair), before, "window {window}: credits while idle");
    }
}

#[test]
fn idle_peers_send_no_credits() {
    // One side is set up for many receives, and the other for few.
    let config = |i| Config {
        keepalive: None,
        rq_depth: if i == 0 { 256 } else { 8 },
        ..Config::new(i, 600, 64)
    };
    let limits = |i| TransportLimits {
        rq_depth: if i == 0 { 288 } else { 11 },
        ..TransportLimits::rdma()
    };
    let mut pair = Pair::with_limits(config, &Pair::counts(&config(0)), limits);
    World::listen(&mut pair, 50);
    let mut talk = Talk::open(&mut pair, false);
    for from in 0..2 {
        for user in 0..1000 {
            talk.say(&mut pair, from, &Say::one_way(user));
            talk.settle(&mut pair);
        }
        assert_eq!(talk.count(1 - from, "one-way"), 1000);
        let sent = pair.sides.each_ref().map(|side| side.sent.len());
        pair.run();
        pair.now = pair.now.after(Duration::from_secs(60));
        for side in &mut pair.sides {
            side.endpoint.handle_timeout(pair.now);
        }
        pair.run();
        let after = pair.sides.each_ref().map(|side| side.sent.len());
        assert_eq!(after, sent, "nothing while idle");
        // A receiver that answers nothing tells of its receives now and then only.
        let nops = pair.sides[1 - from].endpoint.counters().nops_sent;
        assert!((1..=500).contains(&nops), "{nops} for 1000 messages");
    }
}

#[test]
fn a_starved_peer_is_told_without_asking() {
    let mut rig = narrow();
    let mut talk = Talk::open(&mut rig, false);
    talk.keep[1] = true;
    for user in 0..30 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    talk.settle(&mut rig);
    let (sent, kept) = (rig.sides[0].sent.len(), talk.kept[1].len());
    assert!(kept < 30);
    assert!(credits(&rig, &talk, 0) < 4);
    let nops = rig.sides[0].endpoint.counters().nops_received;
    // Nothing of the starved side's is needed for it.
    rig.gates[0].idle = true;
    talk.let_go(&mut rig, 1);
    assert_eq!(rig.sides[0].sent.len(), sent);
    assert!(rig.sides[0].endpoint.counters().nops_received > nops);
    assert!(credits(&rig, &talk, 0) > 4);
    rig.gates[0].idle = false;
    talk.settle(&mut rig);
    assert_eq!(talk.count(1, "one-way"), 30);
    wind_up(&mut rig);
}

#[test]
fn a_shared_queue_on_one_side_only() {
    for shared in 0..2 {
        let limits = |i| TransportLimits {
            shared_receive_queue: usize::from(i) == shared,
            rq_depth: 48,
            ..TransportLimits::rdma()
        };
        let mut rig = Rig::with(small, limits);
        let mut talk = Talk::open(&mut rig, false);
        for round in 0..40 {
            for user in 0..12 {
                talk.say(&mut rig, 0, &Say::request(12 * round + user));
                talk.say(&mut rig, 1, &Say::request(12 * round + user));
            }
            talk.settle(&mut rig);
        }
        assert_eq!(
            [talk.count(0, "response"), talk.count(1, "response")],
            [480, 480]
        );
        assert_eq!(rig.unready, [0, 0]);
        wind_up(&mut rig);
    }
}

#[test]
fn credits_owed_before_established_go_out_later() {
    let mut rig = narrow();
    rig.gates[1] = Gate::default().lose(CmKind::Established);
    rig.gates[1].frames = true;
    rig.dial(60);
    rig.run();
    // The setup comes before the event, and with it credits are owed.
    rig.arrive(1, 1);
    let owed = rig.sides[1].sent.len();
    rig.tell(1, CmKind::Established);
    assert_eq!(
        rig.sides[1].sent.len(),
        owed,
        "nothing is sent from within the event"
    );
    rig.gates[1] = Gate::default();
    rig.arrive(1, usize::MAX);
    settle(&mut rig);
    assert_eq!((established(&rig, 0), established(&rig, 1)), (1, 1));
    let side = &rig.sides[0];
    let info = side.endpoint.info(rig.dialed[0]).expect("known");
    assert!(info.tx_credits >= 3, "{}", info.tx_credits);
    wind_up(&mut rig);
}

#[test]
fn receives_come_back_though_nothing_is_sent() {
    let mut rig = narrow();
    let mut talk = Talk::open(&mut rig, false);
    let before = rig.receives(1);
    let answers = rig.sides[1].endpoint.counters().responses_sent;
    for round in 0..50 {
        for user in 0..12 {
            talk.say(&mut rig, 0, &Say::one_way(12 * round + user));
        }
        talk.settle(&mut rig);
        assert!(
            rig.receives(1) + 3 >= before,
            "{} receives",
            rig.receives(1)
        );
    }
    assert_eq!(talk.count(1, "one-way"), 600);
    assert_eq!(rig.sides[1].endpoint.counters().responses_sent, answers);
    assert_eq!(rig.unready, [0, 0]);
    wind_up(&mut rig);
}

#[test]
fn what_was_granted_is_used_and_no_more() {
    for more in 0..3 {
        let mut rig = narrow();
        let mut talk = Talk::open(&mut rig, false);
        rig.gates[1].frames = true;
        let have = credits(&rig, &talk, 0);
        // The last three are kept for answers, control frames and credits.
        let most = have - 3;
        for user in 0..most - 1 + more {
            talk.say(&mut rig, 0, &Say::one_way(user as u64));
        }
        rig.run();
        assert_eq!(rig.waiting(1), (most - 1 + more).min(most));
        assert_eq!(credits(&rig, &talk, 0), have - rig.waiting(1));
        assert_eq!(rig.unready[1], 0);
        // A control frame goes past what waits.
        let now = rig.now.after(Duration::from_secs(60));
        rig.now = now;
        rig.sides[0].endpoint.handle_timeout(now);
        rig.run();
        assert_eq!(rig.waiting(1), (most - 1 + more).min(most) + 1, "keepalive");
        assert_eq!(rig.unready[1], 0);
        rig.let_go(1);
        talk.settle(&mut rig);
        assert_eq!(talk.count(1, "one-way"), most - 1 + more);
        wind_up(&mut rig);
    }
}

/// Sixteen each way: READ by the responder, then written by it.
#[test]
fn more_pieces_than_the_send_queue_has_places() {
    let config = |i| Config {
        sge_max: 16,
        ..Config::new(i, 64, 48)
    };
    let limits = |_| TransportLimits {
        sq_depth: 8,
        max_sge: 2,
        max_reads: 2,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(config, limits);
    let talk = Talk::open(&mut rig, false);
    for side in &mut rig.sides {
        side.events.clear();
    }
    for (k, byte) in rig.sides[0].memory[..16_000].iter_mut().enumerate() {
        *byte = (k % 251) as u8;
    }
    let data = pieces(&rig.sides[0], 0);
    let into = pieces(&rig.sides[0], 20_000);
    let message = Message {
        data: &data,
        user: 1,
        ..Message::default()
    };
    let options = RequestOptions {
        into: &into,
        force_read: true,
        force_write: true,
        ..RequestOptions::default()
    };
    let connection = talk.connections[0].expect("open");
    let endpoint = &mut rig.sides[0].endpoint;
    endpoint.send(connection, &message, &options).expect("room");
    rig.run();
    let Some(Event::PayloadWaiting {
        task, len: 11_200, ..
    }) = rig.sides[1].events.pop_front()
    else {
        panic!("{:?}", rig.log[1])
    };
    let room = pieces(&rig.sides[1], 0);
    rig.sides[1].endpoint.provide(task, &room).expect("asked");
    rig.run();
    let Some(Event::Request { task, .. }) = rig.sides[1].events.pop_front() else {
        panic!("{:?}", rig.log[1])
    };
    let answer = pieces(&rig.sides[1], 0);
    let message = Message {
        data: &answer,
        ..Message::default()
    };
    rig.sides[1].endpoint.respond(task, &message).expect("room");
    rig.run();
    let response = rig.sides[0].events.pop_front();
    assert!(
        matches!(response, Some(Event::Response { .. })),
        "{response:?}"
    );
    for k in 0..16 {
        let piece = 1000 * k..1000 * k + 700;
        let sent = rig.sides[0].memory[piece.clone()].to_vec();
        let back = &rig.sides[0].memory[20_000 + piece.start..][..700];
        assert_eq!(rig.sides[1].memory[piece], sent, "piece {k} there");
        assert_eq!(back, sent, "piece {k} back");
    }
    wind_up(&mut rig);
}

/// Sixteen pieces of memory.
fn pieces(side: &Side, from: usize) -> Vec<Segment> {
    let piece = |k: usize| side.segment(from + 1000 * k, 700);
    (0..16).map(piece).collect()
}

#[test]
fn credits_alone_set_waiting_messages_going() {
    let mut rig = narrow();
    let mut talk = Talk::open(&mut rig, false);
    rig.gates[1].frames = true;
    for user in 0..30 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    rig.run();
    let sent = rig.sides[0].sent.len();
    assert_eq!(credits(&rig, &talk, 0), 3);
    for k in 1..4 {
        grant(&mut rig, 4);
        assert_eq!(rig.sides[0].sent.len(), sent + 4 * k, "four, and no more");
    }
    wind_up(&mut rig);
}

#[test]
fn answers_pass_where_requests_fill_everything() {
    let mut rig = narrow();
    let mut talk = Talk::open(&mut rig, false);
    // Both ask until no slot is left for asking.
    let mut asked = [0, 0];
    for (i, asked) in asked.iter_mut().enumerate() {
        while talk.try_say(&mut rig, i, &Say::request(*asked)).is_ok() {
            *asked += 1;
        }
        assert!(*asked > 20, "{asked}");
    }
    // Slots for answering are left, and credits find their way.
    let mut answers = [0, 0];
    let mut busy = true;
    while std::mem::take(&mut busy) {
        rig.run();
        for (i, answers) in answers.iter_mut().enumerate() {
            while let Some(event) = rig.sides[i].events.pop_front() {
                busy = true;
                let endpoint = &mut rig.sides[i].endpoint;
                match event {
                    Event::Request { task, .. } => {
                        endpoint.respond(task, &Message::default()).expect("room");
                    }
                    Event::Response { task, .. } => {
                        *answers += 1;
                        endpoint.release(task).expect("held");
                    }
                    _ => {}
                }
            }
        }
    }
    assert_eq!(answers, asked);
    assert_eq!(rig.unready, [0, 0]);
    wind_up(&mut rig);
}

#[test]
fn what_waited_for_the_setup_keeps_to_its_credits() {
    let mut rig = narrow();
    rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Connect { .. }));
    let mut talk = Talk::default();
    talk.connections[0] = Some(Talk::dial(&mut rig, false));
    rig.run();
    for user in 0..24 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    rig.let_go(0);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response"), 24);
    assert_eq!(rig.unready, [0, 0]);
    wind_up(&mut rig);
}

#[test]
fn grants_add_up_and_are_bounded() {
    let mut rig = narrow();
    let talk = Talk::open(&mut rig, false);
    let (start, sent) = (credits(&rig, &talk, 0), rig.sides[0].sent.len());
    // What it says itself takes one each.
    let used = |rig: &Rig| rig.sides[0].sent.len() - sent;
    for (granted, sum) in [(2, 2), (0, 2), (8, 10)] {
        grant(&mut rig, granted);
        assert_eq!(credits(&rig, &talk, 0) + used(&rig), start + sum);
    }
    let rest = (1 << 14) - credits(&rig, &talk, 0);
    grant(&mut rig, rest as u16);
    assert_eq!(rig.sides[0].endpoint.counters().violations, 0);
    let have = credits(&rig, &talk, 0);
    grant(&mut rig, ((1 << 14) - have + 1) as u16);
    assert_eq!(rig.sides[0].endpoint.counters().violations, 1);
    wind_up(&mut rig);
    let too_much = |reason: &Reason| format!("{reason:?}").contains("CreditOverflow");
    assert!(
        reasons(&rig, 0).iter().all(too_much),
        "{:?}",
        reasons(&rig, 0)
    );
}

#[test]
fn a_new_peer_gets_in_while_a_user_keeps_everything() {
    for shared in [false, true] {
        let limits = |i| TransportLimits {
            shared_receive_queue: shared && i == 1,
            rq_depth: 64,
            ..TransportLimits::rdma()
        };
        let mut rig = Rig::with(small, limits);
        let mut talk = Talk::open(&mut rig, false);
        talk.keep[1] = true;
        for user in 0..40 {
            if talk.try_say(&mut rig, 0, &Say::one_way(user)).is_err() {
                break;
            }
        }
        talk.settle(&mut rig);
        assert!(talk.kept[1].len() > 16, "{}", talk.kept[1].len());
        rig.dial(61);
        talk.settle(&mut rig);
        assert_eq!(established(&rig, 0), 2, "shared {shared}");
        // And is heard there.
        let message = Message::default();
        let (options, second) = (RequestOptions::default(), rig.dialed[0]);
        let endpoint = &mut rig.sides[0].endpoint;
        endpoint
            .send_one_way(second, &message, &options)
            .expect("room");
        rig.run();
        let heard = rig.sides[1].events.iter();
        let came = heard
            .filter(|event| matches!(event, Event::OneWay { .. }))
            .count();
        assert_eq!(came, 1, "shared {shared}");
        wind_up(&mut rig);
    }
}

/// The least that two sides can have: eight receive slots for each transport connection.
fn least() -> Rig {
    let config = |i| Config {
        min_grant: 5,
        rq_depth: 8,
        buffer_size: 1024,
        inline_data_max: 512,
        ..Config::new(i, 16, 32)
    };
    let counts = |config: &Config| Counts {
        nexuses: 2,
        ..Pair::counts(config)
    };
    Rig::sized(config, counts, |_| TransportLimits::rdma())
}

#[test]
fn both_sides_full_of_requests_whose_answers_are_read_go_on() {
    for requests in 1..=8 {
        let mut rig = least();
        let mut talk = Talk::open(&mut rig, false);
        talk.keep = [true; 2];
        let say = |user| Say {
            reply: 1500,
            ..Say::request(user)
        };
        for (user, i) in (0..2 * requests).zip([0, 1].into_iter().cycle()) {
            talk.say(&mut rig, i, &say(user));
        }
        talk.settle(&mut rig);
        // All that came is answered before anything of it is sent.
        for i in 0..2 {
            rig.gates[i].idle = true;
        }
        for i in 0..2 {
            assert!(!talk.kept[i].is_empty());
            talk.let_go(&mut rig, i);
        }
        for i in 0..2 {
            rig.gates[i].idle = false;
        }
        talk.settle(&mut rig);
        for i in 0..2 {
            let answered = talk.count(i, "response");
            assert_eq!(
                answered, requests as usize,
                "{requests} requests of side {i}"
            );
        }
        wind_up(&mut rig);
    }
}

/// Answers that come for an aborted connection are acknowledged: each held a receive of the side that
/// waited for its READ_ACK, and in the end the others beside it had no credits.
#[test]
fn answers_to_an_aborted_connection_leave_others_their_credits() {
    for aborted in 1..=6 {
        let mut rig = least();
        let mut talk = Talk::open(&mut rig, false);
        let first = talk.connections[0].expect("open");
        talk.keep[1] = true;
        for user in 0..aborted {
            let asked = Say {
                reply: 1500,
                ..Say::request(user)
            };
            talk.say(&mut rig, 0, &asked);
        }
        talk.settle(&mut rig);
        rig.dial_with(&ConnectOptions::new(61));
        talk.settle(&mut rig);
        assert_eq!(established(&rig, 0), 2);
        assert_ne!(talk.connections[0], Some(first));
        let now = rig.now;
        let done = rig.sides[0].endpoint.abort(now, first);
        assert_eq!(done, Ok(()));
        talk.let_go(&mut rig, 1);
        talk.settle(&mut rig);
        talk.keep[1] = false;
        for user in 10..15 {
            talk.say(&mut rig, 0, &Say::one_way(user));
        }
        talk.settle(&mut rig);
        let came = talk.count(1, "one-way");
        assert_eq!(came, 5, "{aborted} aborted: {:#?}", talk.heard);
        wind_up(&mut rig);
    }
}

#[test]
fn who_waits_for_a_place_hears_of_the_loss() {
    let mut rig = narrow();
    let mut talk = Talk::open(&mut rig, false);
    rig.gates[0].sends = true;
    rig.gates[1].frames = true;
    for user in 0..20 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    rig.run();
    let sent = rig.sides[0].sent.len();
    rig.tell(0, CmKind::Disconnected);
    let posted = rig.posted[0].len();
    rig.gates[0].sends = false;
    rig.complete_sends(0, usize::MAX);
    talk.outlive(&mut rig);
    assert_eq!(rig.posted[0].len(), posted, "nothing is posted any more");
    assert_eq!(rig.sides[0].sent.len(), sent);
    let never = talk.count(0, "failed");
    assert!(never >= 10, "{:?}", talk.heard[0]);
    assert_eq!(never + talk.count(0, "sent"), 20);
    wind_up(&mut rig);
}

#[test]
fn direct_reads_alone_never_run_out() {
    let limits = |_| TransportLimits {
        sq_depth: 8,
        max_sge: 1,
        max_reads: 2,
        max_message: 500,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(small, limits);
    let talk = Talk::open(&mut rig, false);
    let connection = talk.connections[0].expect("open");
    let remote = RemoteMemory {
        addr: Side::BASE,
        len: 8000,
        key: 2,
    };
    for user in 0..300 {
        let local = [
            rig.sides[0].segment(0, 7000),
            rig.sides[0].segment(8000, 1000),
        ];
        let endpoint = &mut rig.sides[0].endpoint;
        // Each has more pieces than the queue has places.
        let taken = if user % 2 == 0 {
            endpoint.read(connection, &local, &remote, user, None)
        } else {
            endpoint.write(connection, &local, &remote, user, None)
        };
        taken.expect("room");
        rig.run();
        let done = |event: &&Event| matches!(event, Event::Sent { user: u, .. } if *u == user);
        assert_eq!(rig.log[0].iter().filter(done).count(), 1, "{user}");
    }
    wind_up(&mut rig);
}
