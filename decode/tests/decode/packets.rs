//! Recorded conversations over TCP as segments.

use std::collections::BTreeMap;

use xio_tests::golden::{Carrier, Event, Place, Side, Transcript};

use super::capture::Captured;
use super::links::{self, Link};

pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;
pub(crate) const FIN: u8 = 1;
pub(crate) const RST: u8 = 4;

const START: u64 = 1_700_000_000_000_000_000;

/// A segment before it has a link around it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) nanos: u64,
    pub(crate) ports: [u16; 2],
    pub(crate) from_client: bool,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    pub(crate) fn captured(&self, link: Link, is_v6: bool) -> Captured {
        let [client, server] = self.ports;
        let (hosts, ports) = if self.from_client {
            ([1, 2], [client, server])
        } else {
            ([2, 1], [server, client])
        };
        let tcp = links::tcp(ports, self.seq, self.ack, self.flags, &self.payload);
        let ip = links::ip(hosts[0], hosts[1], is_v6, 6, &tcp);
        let bytes = link.wrap(is_v6, &ip);
        Captured {
            nanos: self.nanos,
            len: bytes.len() as u32,
            bytes,
        }
    }
}

/// A connection while it is written.
struct Socket {
    ports: [u16; 2],
    next: [u32; 2],
}

/// Writes segments.
pub(crate) struct Writer {
    sockets: BTreeMap<u32, Socket>,
    pub(crate) segments: Vec<Segment>,
    mss: usize,
    now: u64,
}

impl Writer {
    pub(crate) fn new(mss: usize) -> Self {
        Self {
            sockets: BTreeMap::new(),
            segments: Vec::new(),
            mss,
            now: START,
        }
    }

    pub(crate) fn open(&mut self, conn: u32, ports: [u16; 2]) {
        // One side's numbers wrap soon.
        let next = [0xffff_ff00, 1000];
        self.sockets.insert(conn, Socket { ports, next });
        self.push(conn, true, SYN, &[]);
        self.push(conn, false, SYN | ACK, &[]);
        self.push(conn, true, ACK, &[]);
    }

    pub(crate) fn send(&mut self, conn: u32, from_client: bool, bytes: &[u8]) {
        for part in bytes.chunks(self.mss) {
            self.push(conn, from_client, ACK, part);
        }
        if !bytes.is_empty() {
            self.push(conn, !from_client, ACK, &[]);
        }
    }

    pub(crate) fn push(&mut self, conn: u32, from_client: bool, flags: u8, payload: &[u8]) {
        let socket = self.sockets.get_mut(&conn).expect("opened before");
        let d = usize::from(!from_client);
        let (seq, ack) = (socket.next[d], socket.next[1 - d]);
        let takes = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        socket.next[d] = seq.wrapping_add(takes);
        self.now += 1000;
        self.segments.push(Segment {
            nanos: self.now,
            ports: socket.ports,
            from_client,
            seq,
            ack,
            flags,
            payload: payload.to_vec(),
        });
    }
}

fn port(address: &str) -> u16 {
    let (_, port) = address.rsplit_once(':').expect("a port");
    port.parse().expect("a number")
}

/// The segments of a conversation, of at most `mss` bytes each.
pub(crate) fn segments(transcript: &Transcript, mss: usize) -> Vec<Segment> {
    let mut out = Writer::new(mss);
    for record in &transcript.records {
        match &record.event {
            Event::Syn { conn, from, to } => out.open(*conn, [port(from), port(to)]),
            Event::Hello { conn, message } => out.send(*conn, true, &message.bytes()),
            Event::Frame(frame) => {
                let Carrier::Socket { conn, data, .. } = frame.carrier else {
                    panic!("a frame over sockets");
                };
                let from_client = frame.side == Side::Client;
                out.send(conn, from_client, &frame.bytes(Place::Main));
                out.send(conn, from_client, &frame.bytes(Place::Bulk));
                if let Some(data) = data {
                    out.send(data, from_client, &frame.bytes(Place::Data));
                }
            }
            Event::Fin { conn, side } => out.push(*conn, *side == Side::Client, FIN | ACK, &[]),
            Event::Rst { conn, side } => out.push(*conn, *side == Side::Client, RST, &[]),
            _ => {}
        }
    }
    out.segments
}

/// What a decoder should tell of a conversation, in order.
pub(crate) fn kinds(transcript: &Transcript) -> Vec<&'static str> {
    let kind = |event: &Event| match event {
        Event::Hello { .. } => Some("CONNECT_MSG"),
        Event::Frame(frame) => Some(frame.kind.name()),
        _ => None,
    };
    let records = transcript.records.iter();
    records.filter_map(|record| kind(&record.event)).collect()
}

/// Segments as captured.
pub(crate) fn captured(segments: &[Segment], link: Link, is_v6: bool) -> Vec<Captured> {
    segments.iter().map(|s| s.captured(link, is_v6)).collect()
}
