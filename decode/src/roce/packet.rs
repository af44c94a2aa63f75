//! The base transport header and what follows it.

use crate::link::Datagram;

/// Bytes of the base transport header.
const BTH: usize = 12;
/// Bytes of the checksum at the end.
const ICRC: usize = 4;
/// Bytes of the header in front of datagrams to a management queue pair.
const DETH: usize = 8;

/// Where in its message a SEND packet is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    First,
    Middle,
    Last,
    Only,
}

/// What an acknowledgement says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Ack {
    Positive,
    NotReady,
    Negative,
}

/// What a packet is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Send(Place),
    Write,
    /// A READ of so many bytes.
    Read(u32),
    Atomic,
    /// The answer to a READ or an atomic; in the number space of the requester.
    Answer,
    Acknowledge(Ack),
    /// A management datagram.
    Mad,
    Other(&'static str),
}

impl Operation {
    /// Under which name it is counted.
    pub(super) const fn counted(self) -> &'static str {
        match self {
            Self::Send(_) => "RDMA SEND packets",
            Self::Write => "RDMA WRITE packets (skipped)",
            Self::Read(_) => "RDMA READ requests (skipped)",
            Self::Atomic => "RDMA atomics (skipped)",
            Self::Answer => "RDMA READ and atomic response packets (skipped)",
            Self::Acknowledge(Ack::Positive) => "RDMA ACKs",
            Self::Acknowledge(Ack::NotReady) => "RDMA receiver-not-ready NAKs",
            Self::Acknowledge(Ack::Negative) => "RDMA NAKs",
            Self::Mad => "management datagrams",
            Self::Other(name) => name,
        }
    }
}

/// A packet.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) operation: Operation,
    /// The receiver's.
    pub(super) queue_pair: u32,
    /// 24 bits.
    pub(super) psn: u32,
    /// Without headers, padding and checksum.
    pub(super) payload: &'a [u8],
    /// Bytes of payload that were not captured.
    pub(super) cut: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Packet<'a> {
    /// Reads the payload of a UDP datagram; `None` if it is too short.
    pub(super) fn parse(datagram: &Datagram<'a>) -> Option<Self> {
        let bytes = datagram.payload;
        let cut = usize::try_from(datagram.cut).ok()?;
        let first = word(bytes, 0)?.to_be_bytes();
        let queue_pair = word(bytes, 4)? & 0xff_ffff;
        let psn = word(bytes, 8)? & 0xff_ffff;
        let (operation, extra) = operation(first[0], queue_pair, bytes)?;
        let pad = usize::from(first[1] >> 4 & 3);
        let start = BTH + extra;
        // What was sent, of which the end may not have been captured.
        let len = (bytes.len() + cut).checked_sub(start + pad + ICRC)?;
        let have = bytes.get(start..)?;
        let payload = &have[..len.min(have.len())];
        Some(Self {
            operation,
            queue_pair,
            psn,
            payload,
            cut: len - payload.len(),
        })
    }
}

/// The operation of an opcode, and the bytes of headers between the base header and the payload.
fn operation(opcode: u8, queue_pair: u32, bytes: &[u8]) -> Option<(Operation, usize)> {
    let found = match opcode {
        0x00 => (Operation::Send(Place::First), 0),
        0x01 => (Operation::Send(Place::Middle), 0),
        0x02 => (Operation::Send(Place::Last), 0),
        0x04 => (Operation::Send(Place::Only), 0),
        // With immediate data, or a key to invalidate.
        0x03 | 0x16 => (Operation::Send(Place::Last), 4),
        0x05 | 0x17 => (Operation::Send(Place::Only), 4),
        0x06..=0x0b => (Operation::Write, 0),
        0x0c => (Operation::Read(word(bytes, BTH + 12)?), 16),
        0x0d..=0x10 | 0x12 => (Operation::Answer, 0),
        0x11 => {
            let ack = match bytes.get(BTH)? >> 5 & 3 {
                0 => Ack::Positive,
                1 => Ack::NotReady,
                _ => Ack::Negative,
            };
            (Operation::Acknowledge(ack), 4)
        }
        0x13 | 0x14 => (Operation::Atomic, 0),
        0x64 if queue_pair == 1 => (Operation::Mad, DETH),
        0x60..=0x7f => (Operation::Other("unreliable datagrams"), 0),
        0x81 => (Operation::Other("congestion notifications"), 0),
        _ => (Operation::Other("RoCE packets of other transports"), 0),
    };
    Some(found)
}
