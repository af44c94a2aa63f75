//! Reordering, repetition, overlap, loss, captures that begin late or have short packets, frames
//! with defects.

use xio_tests::golden::{self, Dialect};

use super::capture::{Captured, PLAIN, pcap};
use super::golden::all;
use super::links::Link;
use super::packets::{ACK, Segment, Writer, captured, kinds, segments};
use super::{Seen, see};

fn file(segments: &[Segment]) -> Vec<u8> {
    pcap(101, &captured(segments, Link::Raw, false), PLAIN)
}

/// A sequence that looks random, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % sides
    }
}

/// The frames of each direction. The two sockets of a pair have no order among each other, so
/// their connect messages stand first.
fn frames(seen: &Seen) -> Vec<Vec<&'static str>> {
    let mut all: Vec<_> = seen.by_direction().into_values().collect();
    for direction in &mut all {
        direction.sort_by_key(|kind| *kind != "CONNECT_MSG");
    }
    all
}

fn same_frames(seen: &Seen, clean: &Seen, name: &str) {
    assert_eq!(frames(seen), frames(clean), "{name}");
    assert_eq!(seen.troubles(), Vec::<String>::new(), "{name}");
}

#[test]
fn order_and_repetition_do_not_matter() {
    let mut again = 0;
    for transcript in all(Dialect::Tcp) {
        // Conversations with megabytes are told of by the others as well.
        let plain = segments(&transcript, 200);
        if plain.len() > 20_000 {
            continue;
        }
        let clean = see(&file(&plain));
        assert_eq!(clean.kinds(), kinds(&transcript));
        for seed in 0..4 {
            let mut dice = Dice(seed);
            let mut mixed = plain.clone();
            // SYN packets stay where they are: before them nothing can have been sent.
            let is_data = |s: &Segment| s.flags == ACK;
            for _ in 0..mixed.len() {
                let at = dice.roll(mixed.len() - 1);
                let to = (at + 1 + dice.roll(4)).min(mixed.len() - 1);
                if mixed[at..=to].iter().all(is_data) {
                    mixed.swap(at, to);
                }
                if is_data(&mixed[at]) && dice.roll(4) == 0 {
                    let twice = mixed[at].clone();
                    let to = (at + dice.roll(8)).min(mixed.len() - 1);
                    if mixed[at..=to].iter().all(is_data) {
                        mixed.insert(to, twice);
                    }
                }
            }
            let seen = see(&file(&mixed));
            let name = format!("{} seed {seed}", transcript.name);
            same_frames(&seen, &clean, &name);
            again += seen.count("TCP segments that were seen before");
        }
    }
    assert!(again > 1000, "{again} segments came twice");
}

#[test]
fn overlap_does_not_matter() {
    let transcript = golden::load("tcp-single").expect("there");
    let plain = segments(&transcript, 100);
    let clean = see(&file(&plain));
    let mut overlapping = Vec::new();
    let mut before: Option<Segment> = None;
    for segment in plain {
        let mut segment = segment;
        let follows = before.as_ref().filter(|b| {
            b.ports == segment.ports
                && b.from_client == segment.from_client
                && b.seq.wrapping_add(b.payload.len() as u32) == segment.seq
                && !b.payload.is_empty()
        });
        if let Some(before) = follows {
            // The last half of the one before comes again.
            let half = before.payload.len() / 2;
            let mut payload = before.payload[half..].to_vec();
            payload.append(&mut segment.payload);
            segment.seq = segment
                .seq
                .wrapping_sub((before.payload.len() - half) as u32);
            segment.payload = payload;
            before_is(&mut overlapping, before);
        }
        overlapping.push(segment.clone());
        before = Some(segment);
    }
    let seen = see(&file(&overlapping));
    assert_eq!(seen.by_direction(), clean.by_direction());
    assert_eq!(seen.troubles(), Vec::<String>::new());
}

/// The segment before is also sent again, later than the one that overlaps it.
fn before_is(segments: &mut Vec<Segment>, before: &Segment) {
    if segments.len().is_multiple_of(3) {
        segments.push(before.clone());
    }
}

#[test]
fn a_lost_segment_costs_few_frames_and_is_told() {
    for name in ["tcp-single", "tcp-basic", "tcp-burst"] {
        let transcript = golden::load(name).expect("there");
        let plain = segments(&transcript, 1448);
        let all = kinds(&transcript).len();
        for at in 0..plain.len() {
            if plain[at].payload.is_empty() {
                continue;
            }
            let mut fewer = plain.clone();
            let lost = fewer.remove(at);
            let seen = see(&file(&fewer));
            let (found, troubles) = (seen.kinds().len(), seen.troubles());
            // A connect message costs what its socket means.
            let is_first = lost.payload.len() == 8;
            assert!(
                is_first || !troubles.is_empty(),
                "{name} without {at}: {found} of {all}"
            );
            assert!(
                is_first || found + 3 >= all,
                "{name} without {at}: {found} of {all}"
            );
            assert!(found < all || !troubles.is_empty() || is_first);
        }
    }
}

#[test]
fn a_capture_may_begin_anywhere() {
    for name in ["tcp-single", "tcp-basic", "tcp-keepalive"] {
        let transcript = golden::load(name).expect("there");
        let plain = segments(&transcript, 60);
        let all = kinds(&transcript);
        for start in 0..plain.len() {
            let seen = see(&file(&plain[start..]));
            let kinds = seen.kinds();
            let rest: Vec<_> = kinds.iter().filter(|k| **k != "CONNECT_MSG").collect();
            let frames: Vec<_> = all.iter().filter(|k| **k != "CONNECT_MSG").collect();
            // In another order where directions are cut at different places, hence sorted.
            let missing = frames.len() - rest.len();
            let mut remaining = frames.clone();
            for kind in &rest {
                let at = remaining.iter().position(|k| k == kind);
                remaining.remove(at.unwrap_or_else(|| panic!("{name} from {start}: {kind}")));
            }
            assert_eq!(remaining.len(), missing);
            // A frame that began before is lost, one that began later is not.
            let whole = plain[start..]
                .iter()
                .filter(|s| s.payload.starts_with(b"XIOP"))
                .count();
            assert!(
                rest.len() >= whole,
                "{name} from {start}: {} of {whole}",
                rest.len()
            );
        }
    }
}

#[test]
fn what_was_skipped_is_told_in_bytes() {
    let transcript = golden::load("tcp-single").expect("there");
    let plain = segments(&transcript, 60);
    // The second segment of some frame of the client.
    let at = plain
        .windows(2)
        .position(|w| w[0].payload.starts_with(b"XIOP") && w[1].payload.len() == 60)
        .expect("a long frame");
    let seen = see(&file(&plain[at + 1..]));
    let troubles = seen.troubles();
    assert!(
        troubles[0].contains("lost from 0: the capture begins in the middle"),
        "{troubles:?}"
    );
    let bytes: u64 = troubles[0]
        .split(' ')
        .next()
        .expect("a number")
        .parse()
        .expect("one");
    let first = plain[at + 1..]
        .iter()
        .position(|s| s.payload.starts_with(b"XIOP"));
    let before = &plain[at + 1..at + 1 + first.expect("a frame")];
    let sent: usize = before
        .iter()
        .filter(|s| s.from_client)
        .map(|s| s.payload.len())
        .sum();
    assert_eq!(bytes, sent as u64);
}

#[test]
fn short_packets_lose_data_but_no_frames() {
    let transcript = golden::load("tcp-single").expect("there");
    let plain = segments(&transcript, 1448);
    let all = kinds(&transcript);
    let cut = |packet: &Captured, len: usize| Captured {
        bytes: packet.bytes[..packet.bytes.len().min(len)].to_vec(),
        ..packet.clone()
    };
    let packets = captured(&plain, Link::Raw, false);
    // IP, TCP, and more than any frame's headers.
    let short: Vec<_> = packets.iter().map(|packet| cut(packet, 40 + 250)).collect();
    let seen = see(&pcap(101, &short, PLAIN));
    let kinds = seen.kinds();
    let connect_and_setup = &all[..5];
    assert_eq!(kinds[..5], *connect_and_setup);
    assert!(seen.troubles().iter().any(|t| t.contains("in the capture")));
}

/// One socket of a client that sends these bytes.
fn single(bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::new(1000);
    out.open(0, [40_000, 7000]);
    out.send(0, true, &[0, 0, 0, 1, 0, 0, 0, 0]);
    out.send(0, true, bytes);
    file(&out.segments)
}

fn frame(name: &str) -> Vec<u8> {
    let transcript = golden::load("tcp-single").expect("there");
    let found = transcript
        .frames()
        .find(|(_, frame)| frame.kind.name() == name);
    let (_, frame) = found.expect("such a frame");
    frame.contiguous()
}

#[test]
fn defects_are_named_with_their_place() {
    let good = frame("FIN_REQ");
    // A place in the frame, what stands there, and what is said of it.
    let defects: [(&str, usize, &[u8], &str); 7] = [
        (
            "MSG_REQ",
            4,
            &[0, 0, 0x77, 0],
            "MALFORMED at 4: unknown frame type",
        ),
        (
            "MSG_REQ",
            8,
            &[0, 0, 0, 1],
            "MSG_REQ at 8: announced length above the limit",
        ),
        (
            "MSG_REQ",
            58,
            &[0, 41],
            "MSG_REQ at 58: wrong transport header length: 41 (0x29)",
        ),
        (
            "MSG_REQ",
            70,
            &[7],
            "MSG_REQ at 70: operation for response data",
        ),
        (
            "MSG_REQ",
            72,
            &[0, 250],
            "MSG_REQ at 8: announced length contradicts",
        ),
        ("FIN_REQ", 80, &[0, 5], "FIN_REQ at "),
        (
            "NEXUS_SETUP_REQ",
            16,
            &[2, 0],
            "NEXUS_SETUP_REQ at 16: unsupported nexus version: 512",
        ),
    ];
    for (kind, at, bytes, said) in defects {
        let mut bad = frame(kind);
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let stream = [&good[..], &bad, &good, &good].concat();
        let seen = see(&single(&stream));
        let troubles = seen.troubles();
        assert!(troubles[0].starts_with(said), "{said}: {troubles:?}");
        assert_eq!(seen.summary.malformed, 1, "{troubles:?}");
        let fins = seen.kinds().iter().filter(|k| **k == "FIN_REQ").count();
        assert_eq!(fins, if kind == "FIN_REQ" { 4 } else { 3 }, "{said}");
    }
}

#[test]
fn garbage_between_frames_is_skipped_and_told() {
    let good = frame("FIN_REQ");
    let stream = [&good[..], b"hello? XIOP? anybody?", &good].concat();
    let seen = see(&single(&stream));
    assert_eq!(seen.kinds(), ["CONNECT_MSG", "FIN_REQ", "FIN_REQ"]);
    let at = 8 + good.len();
    assert_eq!(
        seen.troubles(),
        [format!("21 lost from {at}: no frame starts here")]
    );
}

#[test]
fn a_bad_connect_message_is_told_and_does_no_more_harm() {
    let good = frame("FIN_REQ");
    let mut out = Writer::new(1000);
    out.open(0, [40_000, 7000]);
    out.send(0, true, &[0, 0, 0, 9, 0, 0, 0, 0]);
    out.send(0, true, &good);
    let seen = see(&file(&out.segments));
    assert_eq!(seen.kinds(), ["CONNECT_MSG", "FIN_REQ"]);
    assert_eq!(
        seen.troubles(),
        ["CONNECT_MSG at 0: unknown socket kind: 9 (0x9), SocketKind"]
    );
}

#[test]
fn what_goes_beyond_the_agreement_is_told() {
    let transcript = golden::load("tcp-single").expect("there");
    let mut out = Writer::new(1000);
    out.open(0, [40_000, 7000]);
    out.send(0, true, &[0, 0, 0, 1, 0, 0, 0, 0]);
    for kind in ["NEXUS_SETUP_REQ", "NEXUS_SETUP_RSP"] {
        let mut setup = frame(kind);
        let at = if kind.ends_with("REQ") { 40 } else { 44 };
        // Application headers of 4 bytes.
        setup[at..at + 4].copy_from_slice(&4_u32.to_be_bytes());
        out.send(0, kind.ends_with("REQ"), &setup);
    }
    out.send(0, true, &frame("MSG_REQ"));
    let seen = see(&file(&out.segments));
    assert_eq!(seen.kinds().len(), 4, "{}", transcript.name);
    let troubles = seen.troubles();
    assert!(
        troubles[0].contains("by what the receiver announced"),
        "{troubles:?}"
    );
}

#[test]
fn other_traffic_is_counted_and_left_alone() {
    let mut out = Writer::new(100);
    out.open(0, [40_000, 80]);
    out.send(0, true, b"GET /XIOP HTTP/1.1\r\nHost: example\r\n\r\n");
    out.send(0, false, &b"HTTP/1.1 200 OK\r\n\r\nXIOP".repeat(500));
    out.open(1, [40_001, 22]);
    out.send(1, false, b"SSH-2.0");
    let seen = see(&file(&out.segments));
    assert!(seen.items.is_empty());
    assert_eq!(seen.summary.foreign, (2, 37 + 23 * 500 + 7));
}

#[test]
fn ports_may_be_used_again() {
    let good = frame("FIN_REQ");
    let mut out = Writer::new(1000);
    for _ in 0..3 {
        out.open(0, [40_000, 7000]);
        out.send(0, true, &[0, 0, 0, 1, 0, 0, 0, 0]);
        out.send(0, true, &good);
    }
    let mut last = 0;
    for segment in &mut out.segments {
        // Other numbers than before.
        last += u32::from(segment.flags == super::packets::SYN) * 5000;
        segment.seq = segment.seq.wrapping_add(last);
        segment.ack = segment.ack.wrapping_add(last);
    }
    let seen = see(&file(&out.segments));
    assert_eq!(seen.kinds(), ["CONNECT_MSG", "FIN_REQ"].repeat(3));
    assert_eq!(seen.summary.streams, 3);
}
