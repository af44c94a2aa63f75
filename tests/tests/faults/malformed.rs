//! Kind H: what a peer may say wrongly, on a connection that is up.

use xio_proto::{CmEvent, CmKind, Event, Failure, Reason};
use xio_tests::rig::{Gate, Rig};
use xio_tests::talk::{Say, Talk};

use crate::users::{closed, established, is, open, reasons, settle, wind_up};

const MSG_RSP: [u8; 4] = [0, 0, 0, 0x14];
const MSG_REQ: [u8; 4] = [0, 0, 0, 0x12];

/// The response that waits for the client, off the wire.
fn response(say: &Say) -> (Rig, Talk, Vec<u8>) {
    let (mut rig, mut talk) = open();
    rig.gates[0].frames = true;
    talk.say(&mut rig, 0, say);
    talk.settle(&mut rig);
    let frame = rig.intercept(0).expect("a response");
    assert_eq!(frame[4..8], MSG_RSP);
    rig.gates[0].frames = false;
    (rig, talk, frame)
}

/// What ended the first side's connection, as text.
fn end(rig: &Rig) -> String {
    format!("{:?}", reasons(rig, 0))
}

#[test]
fn private_data_of_the_transport_means_nothing() {
    let noise: [&[u8]; 4] = [&[], &[0; 148], &[0xff; 56], b"XIOP\0\0\0\x82"];
    for private in noise {
        for kind in [CmKind::Established, CmKind::Rejected] {
            let mut rig = Rig::new();
            rig.gates[0] =
                Gate::default().hold(|c| matches!(c, xio_proto::Control::Connect { .. }));
            rig.dial(60);
            rig.run();
            let nexus = rig.nexus(0);
            let event = CmEvent {
                private,
                ..CmEvent::plain(kind)
            };
            rig.tell_of(0, nexus, event);
            rig.run();
            let refused = reasons(&rig, 0) == [Reason::Refused];
            assert_eq!(refused, kind == CmKind::Rejected);
            wind_up(&mut rig);
        }
    }
}

#[test]
fn headers_of_answers_are_what_came() {
    // None, one byte, and the most that there may be.
    for len in [0, 1, 256] {
        let (mut rig, mut talk) = open();
        talk.keep[1] = true;
        talk.say(&mut rig, 0, &Say::request(1));
        talk.settle(&mut rig);
        let (task, _) = talk.kept[1].pop().expect("kept");
        let connection = talk.connections[1].expect("open");
        let side = &mut rig.sides[1];
        let slot = side.endpoint.reserve_slot(connection).expect("room");
        let message = xio_proto::Message {
            slot: Some(slot),
            header_len: len,
            ..xio_proto::Message::default()
        };
        side.endpoint.respond(task, &message).expect("room");
        rig.run();
        let came = rig.log[0].iter().find_map(|event| match *event {
            Event::Response { header, .. } => Some(header.len),
            _ => None,
        });
        assert_eq!(came, Some(len.into()));
        rig.sides[0].events.clear();
        wind_up(&mut rig);
    }
}

#[test]
fn an_answer_is_as_long_as_the_peer_says_and_no_longer() {
    // A WRITE response: `data_len` at 92, against 20,000 bytes that were offered.
    let say = Say {
        room: 20_000,
        reply: 20_000,
        ..Say::request(1)
    };
    for (len, taken) in [
        (20_000_u64, true),
        (5, true),
        (20_001, false),
        (1 << 40, false),
    ] {
        let (mut rig, talk, mut frame) = response(&say);
        frame[92..100].copy_from_slice(&len.to_be_bytes());
        assert!(rig.inject(0, &frame));
        rig.run();
        let came = rig.log[0].iter().find_map(|event| match *event {
            Event::Response { data, .. } => Some(data.len()),
            _ => None,
        });
        assert_eq!(came, taken.then_some(len));
        if !taken {
            assert!(end(&rig).contains("AnswerTooLong"), "{}", end(&rig));
        }
        drop(talk);
        rig.sides[0].events.clear();
        wind_up(&mut rig);
    }
}

#[test]
fn an_answer_comes_once() {
    let (mut rig, _, frame) = response(&Say::request(1));
    assert!(rig.inject(0, &frame));
    // The same again, with numbers that are next.
    let mut again = frame.clone();
    let sn = u16::from_be_bytes([frame[60], frame[61]]) + 1;
    again[60..62].copy_from_slice(&sn.to_be_bytes());
    again[33] += 1;
    assert!(rig.inject(0, &again));
    rig.run();
    let answers = is(&rig, 0, |event| matches!(event, Event::Response { .. }));
    assert_eq!(answers, 1);
    assert!(end(&rig).contains("UnknownTask"), "{}", end(&rig));
    wind_up(&mut rig);
    // And one that is neither receipt nor response.
    let (mut rig, _, mut frame) = response(&Say::request(1));
    frame[20..24].fill(0);
    assert!(rig.inject(0, &frame));
    rig.run();
    assert!(end(&rig).contains("ResponseFlags"), "{}", end(&rig));
    let failed = |event: &Event| {
        matches!(
            event,
            Event::Failed {
                failure: Failure::ConnectionEnded(_),
                ..
            }
        )
    };
    assert_eq!(
        is(&rig, 0, failed),
        1,
        "its request has an outcome all the same"
    );
    wind_up(&mut rig);
}

#[test]
fn a_wrong_number_ends_what_it_numbers() {
    for (at, what) in [(61, "TransportSn"), (33, "SessionSn")] {
        let (mut rig, _, mut frame) = response(&Say::request(1));
        frame[at] += 1;
        assert!(rig.inject(0, &frame));
        rig.run();
        assert!(end(&rig).contains(what), "{}", end(&rig));
        assert_eq!(rig.sides[0].endpoint.counters().violations, 1);
        wind_up(&mut rig);
    }
}

#[test]
fn a_receipt_that_nobody_asked_for_changes_nothing() {
    let (mut rig, mut talk, frame) = response(&Say::request(1));
    // A receipt: flag 0x0800, and nothing in it.
    let mut receipt = frame[..100].to_vec();
    receipt[20..24].copy_from_slice(&0x0800_u32.to_be_bytes());
    receipt[8..16].copy_from_slice(&84_u64.to_be_bytes());
    receipt[84..100].fill(0);
    let memory = rig.sides[0].memory.clone();
    assert!(rig.inject(0, &receipt));
    let mut answer = frame.clone();
    answer[61] += 1;
    answer[33] += 1;
    rig.inject(0, &answer);
    talk.settle(&mut rig);
    assert_eq!(rig.sides[0].memory, memory);
    let outcomes = talk.count(0, "response 1: 30 bytes") + talk.count(0, "failed 1");
    assert_eq!(outcomes, 1, "{:?}", talk.heard[0]);
    wind_up(&mut rig);
}

#[test]
fn setup_frames_at_the_wrong_side_or_time_are_violations() {
    let mut known = Rig::new();
    let mut talk = Talk::open(&mut known, false);
    talk.say(&mut known, 0, &Say::request(1));
    talk.settle(&mut known);
    let setups: Vec<Vec<u8>> = known
        .sides
        .iter()
        .flat_map(|side| side.sent.iter().take(2).cloned())
        .collect();
    assert_eq!(setups.len(), 4, "both setups of both sides");
    wind_up(&mut known);
    for i in 0..2 {
        for setup in &setups {
            let (mut rig, mut talk) = open();
            let before = rig.sides[i].endpoint.counters().violations;
            assert!(rig.inject(i, setup));
            talk.settle(&mut rig);
            let kind = &setup[4..8];
            let violations = rig.sides[i].endpoint.counters().violations;
            assert_eq!(violations, before + 1, "side {i}, {kind:?}");
            assert_eq!(closed(&rig, i), 1, "side {i}, {kind:?}");
            wind_up(&mut rig);
        }
    }
}

#[test]
fn ids_of_others_and_of_nobody_are_violations() {
    // `rtid` of a response, at 66: none, one of another kind, one that was never given out.
    for rtid in [0_u32, 0x8000_0000, 0x000f_ffff, u32::MAX] {
        let (mut rig, _, mut frame) = response(&Say::request(1));
        frame[66..70].copy_from_slice(&rtid.to_be_bytes());
        assert!(rig.inject(0, &frame));
        rig.run();
        assert!(end(&rig).contains("UnknownTask"), "{rtid:x}: {}", end(&rig));
        wind_up(&mut rig);
    }
    // The same of a READ_ACK, at 18.
    let mut ack = vec![0; 22];
    ack[..4].copy_from_slice(b"XIOP");
    ack[4..8].copy_from_slice(&[0, 0, 0x20, 4]);
    ack[15] = 6;
    ack[17] = 6;
    for rtid in [0_u32, 0x8000_0000, u32::MAX] {
        let (mut rig, _) = open();
        ack[18..22].copy_from_slice(&rtid.to_be_bytes());
        assert!(rig.inject(0, &ack));
        rig.run();
        assert!(end(&rig).contains("UnknownTask"), "{rtid:x}: {}", end(&rig));
        wind_up(&mut rig);
    }
    // Answers to control frames that nobody sent: FIN, HELLO, keepalive.
    for kind in [[0, 0, 4, 4], [0, 0, 2, 4], [0, 0, 0x40, 4]] {
        let (mut rig, _, mut frame) = response(&Say::request(1));
        frame.truncate(100);
        frame[4..8].copy_from_slice(&kind);
        frame[8..16].copy_from_slice(&84_u64.to_be_bytes());
        frame[66..70].copy_from_slice(&0x8000_0000_u32.to_be_bytes());
        frame[84..100].fill(0);
        assert!(rig.inject(0, &frame));
        rig.run();
        assert_eq!(closed(&rig, 0), 1, "{kind:?}");
        assert!(end(&rig).contains("Violation"), "{}", end(&rig));
        wind_up(&mut rig);
    }
}

#[test]
fn late_read_acks_are_no_more_than_the_responses_that_they_are_for() {
    let mut ack = vec![0; 22];
    ack[..4].copy_from_slice(b"XIOP");
    ack[4..8].copy_from_slice(&[0, 0, 0x20, 4]);
    ack[15] = 6;
    ack[17] = 6;
    for i in 0..2 {
        // One connection goes on where another ended in the middle: what comes of that may be late.
        let (mut rig, mut talk) = open();
        let first = talk.connections[i].expect("open");
        Talk::dial(&mut rig, false);
        talk.settle(&mut rig);
        let now = rig.now;
        rig.sides[i].endpoint.abort(now, first).expect("known");
        talk.settle(&mut rig);
        let before = rig.sides[i].endpoint.counters().violations;
        let up = rig.sides[i].endpoint.nexuses().next().expect("one");
        assert_eq!((up.state, up.connections), ("Online", 1));
        // Nothing was READ here, so nothing can be acknowledged, be it late. Each would use up a
        // receive that other frames were promised.
        assert!(rig.inject(i, &ack));
        talk.settle(&mut rig);
        assert_eq!(rig.sides[i].endpoint.counters().violations, before + 1);
        wind_up(&mut rig);
    }
}

#[test]
fn a_session_is_reached_over_its_transport_connection_only() {
    // A second client names the first one's session in its request.
    let (mut rig, mut talk) = open();
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    let is_request = |frame: &&Vec<u8>| frame[4..8] == MSG_REQ;
    let first = rig.sides[0]
        .sent
        .iter()
        .find(is_request)
        .expect("a request")
        .clone();
    rig.dial(61);
    settle(&mut rig);
    assert_eq!(established(&rig, 1), 2);
    let came = |rig: &Rig| is(rig, 1, |event| matches!(event, Event::Request { .. }));
    let before = came(&rig);
    let mut forged = first;
    // Its own setup of the session was number 0.
    forged[60..62].copy_from_slice(&1_u16.to_be_bytes());
    forged[64..66].fill(0);
    assert!(rig.inject(1, &forged), "on the second one's queue pair");
    rig.run();
    assert_eq!(came(&rig), before, "nobody hears of it");
    talk.say(&mut rig, 0, &Say::request(2));
    for side in &mut rig.sides {
        side.events.clear();
    }
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 2"), 1, "the first goes on");
    wind_up(&mut rig);
}
