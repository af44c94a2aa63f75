//! One direction of a queue pair: packets in the order of their numbers, each once, to messages.

use std::collections::BTreeMap;

use super::FlowKey;
use super::frames::{frame, is_frame};
use super::mad::Exchange;
use super::packet::{Operation, Packet, Place};
use crate::limits::{AHEAD_MAX, FRAME_MAX, PIECES_MAX};
use crate::report::{Dir, Lost, Reporter, Stamp, What};

/// READ responses have at least so many bytes in each packet but the last.
const MTU_MIN: u32 = 256;

/// A packet that waits for those before it.
#[derive(Debug)]
struct Waiting {
    operation: Operation,
    payload: Vec<u8>,
    cut: usize,
    stamp: Stamp,
}

/// A message that is being put together.
#[derive(Debug, Default)]
struct Message {
    bytes: Vec<u8>,
    missing: u64,
}

/// Something to tell, before it is known of which stream it is.
#[derive(Debug)]
enum Told {
    Frame(Message, Stamp),
    Lost(Lost, Stamp),
}

/// One direction of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The number of the next packet, unwrapped; `None` before the first.
    next: Option<u64>,
    /// How far beyond `next` a READ may have brought it: its responses have numbers of their own.
    slack: u64,
    ahead: BTreeMap<u64, Waiting>,
    ahead_bytes: usize,
    message: Option<Message>,
    /// Bytes of messages of which packets are missing.
    skipped: u64,
    why: &'static str,
    /// A frame was seen.
    has_frames: bool,
    /// Its stream, once something was told.
    stream: Option<(u32, Dir)>,
    told: Vec<Told>,
    stamp: Stamp,
}

impl Flow {
    /// Takes a packet.
    pub(super) fn take(&mut self, packet: &Packet<'_>, stamp: Stamp, out: &mut Reporter<'_>) {
        let start = u64::from(packet.psn) + (1 << 24);
        let next = *self.next.get_or_insert(start);
        // The distance as a signed number of 24 bits.
        let ahead = packet.psn.wrapping_sub(next as u32) << 8;
        let at = next.wrapping_add_signed(i64::from(ahead as i32 >> 8));
        if at < next || self.ahead.contains_key(&at) {
            out.summary.count("RDMA packets that were seen before");
            return;
        }
        let waiting = Waiting {
            operation: packet.operation,
            payload: match packet.operation {
                Operation::Send(_) => packet.payload.to_vec(),
                _ => Vec::new(),
            },
            cut: packet.cut,
            stamp,
        };
        self.ahead_bytes += waiting.payload.len();
        self.ahead.insert(at, waiting);
        self.drain(out);
        while self.ahead.len() > PIECES_MAX || self.ahead_bytes > AHEAD_MAX {
            self.skip(out);
        }
    }

    /// Hands on the packets before which none is missing.
    fn drain(&mut self, out: &mut Reporter<'_>) {
        while let (Some(next), Some((at, _))) = (self.next, self.ahead.first_key_value()) {
            if *at > next + self.slack {
                break;
            }
            if let Some((at, waiting)) = self.ahead.pop_first() {
                self.ahead_bytes -= waiting.payload.len();
                self.next = Some(at + 1);
                self.slack = 0;
                self.stamp = waiting.stamp;
                self.packet(waiting, out);
            }
        }
    }

    /// Gives the packets before the first waiting one up.
    fn skip(&mut self, out: &mut Reporter<'_>) {
        let (Some(next), Some((at, _))) = (self.next, self.ahead.first_key_value()) else {
            return;
        };
        let at = *at;
        out.summary.add(
            "RDMA packets missing in the capture",
            at.saturating_sub(next),
        );
        self.drop_message("packets are missing in the capture");
        self.next = Some(at);
        self.slack = 0;
        self.drain(out);
    }

    fn packet(&mut self, packet: Waiting, out: &mut Reporter<'_>) {
        let place = match packet.operation {
            Operation::Send(place) => place,
            Operation::Read(len) => {
                // The request counts as the first of its responses.
                self.slack = u64::from(len.div_ceil(MTU_MIN).saturating_sub(1));
                return;
            }
            _ => return,
        };
        if matches!(place, Place::First | Place::Only) {
            self.drop_message("a message without its last packet");
            self.message = Some(Message::default());
        }
        let Some(message) = &mut self.message else {
            self.why = "the capture begins in the middle";
            self.skipped += packet.payload.len() as u64;
            return;
        };
        let room = FRAME_MAX as usize - message.bytes.len();
        if packet.payload.len() + packet.cut > room {
            out.summary.count("RDMA messages longer than any frame");
            self.message = None;
            return;
        }
        message.bytes.extend_from_slice(&packet.payload);
        let len = message.bytes.len() + packet.cut;
        message.bytes.resize(len, 0);
        message.missing += packet.cut as u64;
        if matches!(place, Place::Last | Place::Only)
            && let Some(message) = self.message.take()
        {
            self.message_here(message, out);
        }
    }

    fn drop_message(&mut self, why: &'static str) {
        if let Some(message) = self.message.take() {
            self.skipped += message.bytes.len() as u64;
            self.why = why;
        }
    }

    fn message_here(&mut self, message: Message, out: &mut Reporter<'_>) {
        if is_frame(&message.bytes) {
            self.has_frames = true;
        } else if !self.has_frames {
            out.summary.count("RDMA messages that are no frames");
            return;
        }
        self.lose();
        self.told.push(Told::Frame(message, self.stamp));
    }

    fn lose(&mut self) {
        let bytes = std::mem::take(&mut self.skipped);
        if bytes > 0 {
            let why = self.why.to_owned();
            self.told.push(Told::Lost(Lost { bytes, why }, self.stamp));
        }
    }

    /// Nothing more will come.
    pub(super) fn finish(&mut self, out: &mut Reporter<'_>) {
        while !self.ahead.is_empty() {
            self.skip(out);
        }
        self.drop_message("the capture ends inside a message");
    }

    /// Tells what has come up.
    pub(super) fn tell(&mut self, key: FlowKey, exchange: &mut Exchange, out: &mut Reporter<'_>) {
        for told in std::mem::take(&mut self.told) {
            let kind = match &told {
                Told::Frame(message, _) => message.bytes.get(4..8),
                Told::Lost(..) => None,
            };
            let stream = self
                .stream
                .get_or_insert_with(|| exchange.stream(key, kind, out));
            let (stream, dir) = *stream;
            let (stamp, what) = match told {
                Told::Frame(message, stamp) => {
                    let told = frame(&message.bytes, message.missing);
                    (stamp, What::Frame(told))
                }
                Told::Lost(lost, stamp) => (stamp, What::Lost(lost)),
            };
            out.tell(stamp, stream, dir, 0, what);
        }
    }

    /// Tells what was skipped and not followed by a frame.
    pub(super) fn tell_rest(
        &mut self,
        key: FlowKey,
        exchange: &mut Exchange,
        out: &mut Reporter<'_>,
    ) {
        if self.has_frames {
            self.lose();
            self.tell(key, exchange, out);
        } else {
            out.summary
                .add("RDMA SEND bytes without a frame", self.skipped);
        }
    }
}
