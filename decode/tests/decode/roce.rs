//! Recorded conversations over RDMA as RoCE v2 packets.

use std::collections::BTreeMap;

use xio_tests::golden::{self, Carrier, Dialect, Event, Kind, Place, Side, Transcript};

use super::capture::{Captured, PLAIN, pcap};
use super::golden::all;
use super::links::{self, Link};
use super::see;

const MTU: usize = 1024;

/// A packet before it has a link around it.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    from_client: bool,
    bytes: Vec<u8>,
}

impl Packet {
    fn captured(&self, at: usize) -> Captured {
        let hosts = if self.from_client { [1, 2] } else { [2, 1] };
        let ip = links::ip(hosts[0], hosts[1], false, 17, &links::udp(&self.bytes));
        let bytes = Link::Ethernet.wrap(false, &ip);
        Captured {
            nanos: 1_700_000_000_000_000_000 + at as u64 * 1000,
            len: bytes.len() as u32,
            bytes,
        }
    }
}

fn bth(opcode: u8, pad: u8, queue_pair: u32, psn: u32, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![opcode, pad << 4, 0xff, 0xff];
    bytes.extend(queue_pair.to_be_bytes());
    bytes.extend(psn.to_be_bytes());
    bytes.extend(rest.concat());
    bytes.extend(vec![0; pad.into()]);
    bytes.extend([0xcc; 4]);
    bytes
}

/// Writes packets.
#[derive(Default)]
struct Writer {
    packets: Vec<Packet>,
    /// By queue pair: its partner, and the number of its next packet, which wraps soon.
    queue_pairs: BTreeMap<u32, (u32, u32)>,
}

impl Writer {
    fn push(&mut self, from_client: bool, bytes: Vec<u8>) {
        self.packets.push(Packet { from_client, bytes });
    }

    fn take_psn(&mut self, own: u32, count: u32) -> (u32, u32) {
        let (partner, psn) = self.queue_pairs.get_mut(&own).expect("a pair");
        let first = *psn;
        *psn = (*psn + count) & 0xff_ffff;
        (*partner, first)
    }

    /// A message in packets of one of the three kinds of opcodes.
    fn message(&mut self, from_client: bool, own: u32, opcodes: [u8; 4], head: &[u8], data: &[u8]) {
        let parts: Vec<&[u8]> = data.chunks(MTU).collect();
        let last = parts.len().saturating_sub(1);
        for (i, part) in parts.iter().enumerate() {
            let [first, middle, end, only] = opcodes;
            let opcode = match i {
                _ if last == 0 => only,
                0 => first,
                _ if i == last => end,
                _ => middle,
            };
            let (to, psn) = self.take_psn(own, 1);
            let pad = (4 - part.len() % 4) % 4;
            let head = if i == 0 { head } else { &[] };
            let bytes = bth(opcode, pad as u8, to, psn, &[head, part]);
            self.push(from_client, bytes);
        }
        let (to, psn) = self.take_psn(own, 0);
        let ack = bth(
            0x11,
            0,
            own,
            psn.wrapping_sub(1) & 0xff_ffff,
            &[&[0, 0, 0, 1]],
        );
        assert_ne!(to, own);
        self.push(!from_client, ack);
    }

    fn read(&mut self, from_client: bool, own: u32, len: u32) {
        let count = len.div_ceil(MTU as u32).max(1);
        let (to, psn) = self.take_psn(own, count);
        let mut head = vec![0; 12];
        head.extend(len.to_be_bytes());
        self.push(from_client, bth(0x0c, 0, to, psn, &[&head]));
        for i in 0..count {
            let opcode = if count == 1 { 0x10 } else { 0x0e };
            let psn = (psn + i) & 0xff_ffff;
            self.push(!from_client, bth(opcode, 0, own, psn, &[&[7; MTU]]));
        }
    }

    fn cm(&mut self, from_client: bool, attribute: u8, body: &[(usize, u32)]) {
        let mut mad = vec![0; 256];
        mad[1] = 7;
        mad[17] = attribute;
        for (at, word) in body {
            mad[24 + at..28 + at].copy_from_slice(&word.to_be_bytes());
        }
        let bytes = bth(0x64, 0, 1, 5, &[&[0; 8], &mad]);
        self.push(from_client, bytes);
    }
}

/// Queue pairs that belong together, by their setup frames: the client's and the server's.
fn pairs(transcript: &Transcript) -> Vec<(u32, u32)> {
    let of = |kind| {
        let frames = transcript.frames();
        let frames = frames.filter(move |(_, frame)| frame.kind == kind);
        frames.filter_map(|(_, frame)| match &frame.carrier {
            Carrier::Send { posted, .. } => Some(posted.qp),
            Carrier::Socket { .. } => None,
        })
    };
    of(Kind::NexusSetupReq)
        .zip(of(Kind::NexusSetupRsp))
        .collect()
}

const SEND: [u8; 4] = [0, 1, 2, 4];
const WRITE: [u8; 4] = [6, 7, 8, 10];

pub(crate) fn packets(transcript: &Transcript, with_cm: bool) -> Vec<Packet> {
    let mut out = Writer::default();
    for (i, (client, server)) in pairs(transcript).into_iter().enumerate() {
        // The two numbers may be the same on different hosts; here they must tell the sides apart.
        assert_ne!(client, server);
        out.queue_pairs.insert(client, (server, 0xff_fff8));
        out.queue_pairs.insert(server, (client, 100));
        if with_cm {
            let id = 40 + i as u32;
            out.cm(true, 0x10, &[(0, id), (32, client << 8)]);
            out.cm(false, 0x13, &[(0, 90), (4, id), (12, server << 8)]);
            out.cm(true, 0x14, &[(0, id), (4, 90)]);
        }
    }
    for record in &transcript.records {
        match &record.event {
            Event::Frame(frame) => {
                let Carrier::Send { posted, .. } = &frame.carrier else {
                    panic!("a frame over a queue pair");
                };
                let bytes = frame.bytes(Place::Main);
                out.message(frame.side == Side::Client, posted.qp, SEND, &[], &bytes);
            }
            Event::Write {
                side,
                work,
                payload,
            } => {
                let bytes = payload.bytes();
                out.message(
                    *side == Side::Client,
                    work.posted.qp,
                    WRITE,
                    &[0; 16],
                    &bytes,
                );
            }
            Event::ReadPosted { side, work } => {
                out.read(*side == Side::Client, work.posted.qp, work.len);
            }
            _ => {}
        }
    }
    out.packets
}

pub(crate) fn file(packets: &[Packet]) -> Vec<u8> {
    let packets: Vec<Captured> = packets
        .iter()
        .enumerate()
        .map(|(at, packet)| packet.captured(at))
        .collect();
    pcap(1, &packets, PLAIN)
}

fn kinds(transcript: &Transcript) -> Vec<&'static str> {
    transcript
        .frames()
        .map(|(_, frame)| frame.kind.name())
        .collect()
}

#[test]
fn every_recording_over_rdma_is_decoded() {
    let (mut reads, mut writes) = (0, 0);
    for transcript in all(Dialect::Rdma) {
        for with_cm in [true, false] {
            let name = format!("{} cm {with_cm}", transcript.name);
            let seen = see(&file(&packets(&transcript, with_cm)));
            assert_eq!(seen.kinds(), kinds(&transcript), "{name}");
            assert_eq!(seen.troubles(), Vec::<String>::new(), "{name}");
            let pairs = pairs(&transcript).len() as u64;
            assert_eq!(seen.summary.streams, pairs, "{name}");
            assert_eq!(seen.count("CM REQ datagrams"), u64::from(with_cm) * pairs);
            let dirs: Vec<_> = seen.by_direction().into_keys().map(|key| key.1).collect();
            assert!(dirs.iter().all(|dir| *dir != "unknown"), "{name}: {dirs:?}");
            reads += seen.count("RDMA READ requests (skipped)");
            writes += seen.count("RDMA WRITE packets (skipped)");
            assert!(seen.count("RDMA ACKs") > 0);
        }
    }
    assert!(
        reads > 10 && writes > 1000,
        "{reads} reads, {writes} writes"
    );
}

#[test]
fn packets_that_were_sent_again_count_once() {
    let transcript = golden::load("rdma-large").expect("there");
    let packets = packets(&transcript, true);
    let mut again = packets.clone();
    let mut expected = 0;
    // After every third packet the last five come again, as after a NAK.
    for at in (5..packets.len()).rev().filter(|at| at % 3 == 0) {
        let five = packets[at - 5..at].to_vec();
        expected += five
            .iter()
            .filter(|p| matches!(p.bytes[0], 0..=0xc))
            .count();
        again.splice(at..at, five);
    }
    let seen = see(&file(&again));
    assert_eq!(seen.kinds(), kinds(&transcript));
    assert_eq!(seen.troubles(), Vec::<String>::new());
    assert_eq!(
        seen.count("RDMA packets that were seen before"),
        expected as u64
    );
}

#[test]
fn packets_in_another_order_are_put_in_order() {
    let transcript = golden::load("rdma-large").expect("there");
    let mut packets = packets(&transcript, true);
    let in_order = see(&file(&packets));
    // Only within a direction: what comes back depends on what went out.
    for at in 6..packets.len() - 1 {
        if at % 2 == 0 && packets[at].from_client == packets[at + 1].from_client {
            packets.swap(at, at + 1);
        }
    }
    let seen = see(&file(&packets));
    assert_eq!(seen.by_direction(), in_order.by_direction());
    assert_eq!(seen.troubles(), Vec::<String>::new());
}

#[test]
fn a_missing_packet_costs_its_message_and_is_told() {
    let transcript = golden::load("rdma-burst").expect("there");
    let packets = packets(&transcript, false);
    let all = see(&file(&packets)).kinds().len();
    let is_middle = |p: &&Packet| p.bytes[0] == 1;
    let is_only = |p: &Packet| p.bytes[0] == 4;
    // Of a message in one packet, then of one in several if there is any.
    let at = packets.iter().position(is_only).expect("one") + 4;
    let at = at + packets[at..].iter().position(is_only).expect("another");
    let mut fewer = packets.clone();
    fewer.remove(at);
    let seen = see(&file(&fewer));
    assert_eq!(seen.kinds().len(), all - 1);
    assert_eq!(seen.count("RDMA packets missing in the capture"), 1);
    let large = golden::load("rdma-large").expect("there");
    let mut packets = self::packets(&large, false);
    if let Some(at) = packets.iter().position(|p| is_middle(&p)) {
        let all = kinds(&large).len();
        packets.remove(at);
        let seen = see(&file(&packets));
        assert_eq!(seen.kinds().len(), all - 1);
        let troubles = seen.troubles();
        assert!(troubles[0].contains("packets are missing"), "{troubles:?}");
    }
}

#[test]
fn a_capture_may_start_anywhere() {
    let transcript = golden::load("rdma-burst").expect("there");
    let packets = packets(&transcript, false);
    let all = kinds(&transcript);
    for start in 0..packets.len() {
        let seen = see(&file(&packets[start..]));
        let kinds = seen.kinds();
        assert_eq!(kinds, all[all.len() - kinds.len()..], "from {start}");
        assert!(seen.summary.streams <= 2);
        assert_eq!(seen.summary.malformed, 0);
    }
}
