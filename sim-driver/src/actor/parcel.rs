//! Messages made and taken apart.

use xio_proto::{CommandError, ConnectionId, Data, Message, Segment, SlotId, Slots, Span, TaskId};

use super::{Actor, Cargo, Hints, ID_BITS};
use crate::check::{Class, Digest};
use crate::driver::{Core, Desk};
use crate::memory::{Buffer, Rights};

/// A message ready to be handed over.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) number: u64,
    pub(super) digest: u64,
    pub(super) slot: SlotId,
    pub(super) header_len: u16,
    pub(super) slot_data: u32,
    pub(super) data_len: u32,
    pub(super) data: Option<Buffer>,
    pub(super) into: Option<Buffer>,
    pub(super) segments: [Segment; 3],
    pub(super) segment_count: usize,
    pub(super) room: u64,
    pub(super) receipt: bool,
    pub(super) deadline: Option<u64>,
}

/// What a message that came says of itself.
#[derive(Copy, Clone, Debug)]
pub(super) struct Label {
    pub(super) message: u64,
    /// No more of its connection follows.
    pub(super) last: bool,
    pub(super) hints: Hints,
    pub(super) digest: u64,
}

impl Actor {
    /// Bytes of a header that are there always: the number, and what the sender says.
    const HEADER: usize = 16;

    #[allow(clippy::too_many_arguments, reason = "what a message is made from")]
    pub(super) fn pack(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        id: ConnectionId,
        side: u32,
        class: Class,
        room: u64,
        word: u64,
        answers: Option<TaskId>,
    ) -> Result<Parcel, CommandError> {
        let slot = match answers {
            Some(request) => core.reserve_answer_slot(request)?,
            None => core.reserve_slot(id)?,
        };
        let number = desk.ledger.number_message(side, class);
        let at = core.config().headroom();
        let header_len = Self::HEADER + self.rng.below(u64::from(self.mix.header) + 1) as usize;
        let len = self.length(room, core.config().inline_data_max);
        let mut parcel = Parcel {
            number,
            digest: 0,
            slot,
            header_len: header_len as u16,
            slot_data: 0,
            data_len: len,
            data: None,
            into: None,
            segments: [Segment::default(); 3],
            segment_count: 0,
            room: 0,
            receipt: false,
            deadline: None,
        };
        let filler = self.rng.next();
        let header = &mut desk.memory().slot_mut(slot)[at..at + header_len];
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[8..16].copy_from_slice(&word.to_le_bytes());
        fill(&mut header[16..], filler);
        let mut digest = Digest::new();
        digest.update(&header[8..]);
        self.pack_data(desk, &mut parcel, at + header_len, filler, &mut digest);
        parcel.digest = digest.value();
        Ok(parcel)
    }

    fn length(&mut self, room: u64, inline: u32) -> u32 {
        // Who is offered much room may be asked for much.
        if room != u64::MAX && room > inline.into() && self.rng.flip() {
            return self.rng.range(room / 2, room) as u32;
        }
        let most = if self.rng.chance(self.mix.large_ppm) {
            self.mix.large
        } else {
            self.mix.small.min(inline)
        };
        (self.rng.spread(0, most.into())).min(room) as u32
    }

    pub(super) fn pack_data(
        &mut self,
        desk: &mut Desk<'_>,
        parcel: &mut Parcel,
        at: usize,
        filler: u64,
        digest: &mut Digest,
    ) {
        let len = parcel.data_len;
        if len == 0 {
            return;
        }
        if len > self.mix.small || self.rng.flip() {
            parcel.data = desk.memory().allocate(len, Rights::REMOTE_READ);
        }
        let Some(buffer) = parcel.data else {
            // No memory: what fits the slot is sent.
            parcel.slot_data = len.min(self.mix.small);
            parcel.data_len = parcel.slot_data;
            let slot = desk.memory().slot_mut(parcel.slot);
            let bytes = &mut slot[at..at + parcel.slot_data as usize];
            fill(bytes, filler);
            digest.update(bytes);
            return;
        };
        desk.memory().hold(buffer.lkey);
        let bytes = desk.memory().user_mut(buffer.segment());
        fill(bytes, filler);
        digest.update(bytes);
        let pieces = self.rng.range(1, 3).min(len.into()) as u32;
        let mut from = 0;
        for piece in 0..pieces {
            let most = len - from - (pieces - piece - 1);
            let take = if piece + 1 == pieces {
                most
            } else {
                self.rng.range(1, most.into()) as u32
            };
            parcel.segments[piece as usize] = buffer.part(from, take);
            from += take;
        }
        parcel.segment_count = pieces as usize;
    }

    pub(super) fn load<'a>(&mut self, line: u32, parcel: &'a Parcel) -> (Message<'a>, u32) {
        let cargo = self.cargo.put(Cargo {
            line,
            message: parcel.number,
            data: parcel.data,
            into: parcel.into,
            target: None,
        });
        let message = Message {
            slot: Some(parcel.slot),
            header_len: parcel.header_len,
            slot_data: parcel.slot_data,
            data: &parcel.segments[..parcel.segment_count],
            user: u64::from(cargo + 1) << ID_BITS | parcel.number,
            ..Message::default()
        };
        (message, cargo)
    }

    /// A message was not taken: everything of it is the user's again.
    pub(super) fn unload(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        parcel: &Parcel,
        cargo: u32,
    ) {
        self.give_back(desk, cargo);
        if core.return_slot(parcel.slot).is_err() {
            let text = format!("slot {:?} was kept after a refusal", parcel.slot);
            self.sense(desk, text);
        }
    }

    /// Frees the buffers of a message; returns its line.
    pub(super) fn give_back(&mut self, desk: &mut Desk<'_>, cargo: u32) -> Option<u32> {
        let cargo = self.cargo.take(cargo)?;
        for buffer in [cargo.data, cargo.into].into_iter().flatten() {
            desk.memory().unhold(buffer.lkey);
            desk.memory().free(buffer);
        }
        Some(cargo.line)
    }

    pub(super) fn label_of(core: &Core, desk: &Desk<'_>, header: Span, data: &Data) -> Label {
        let memory = &desk.env.memory[desk.number as usize];
        let bytes = header.of(memory.slot(SlotId(header.slot)));
        let mut digest = Digest::new();
        let word = |at: usize| {
            let mut eight = [0; 8];
            if let Some(bytes) = bytes.get(at..at + 8) {
                eight.copy_from_slice(bytes);
            }
            u64::from_le_bytes(eight)
        };
        digest.update(bytes.get(8..).unwrap_or(&[]));
        match data {
            Data::Slot(span) => digest.update(span.of(memory.slot(SlotId(span.slot)))),
            Data::Segments(span) => {
                for segment in core.segments(*span) {
                    digest.update(memory.user(segment));
                }
            }
        }
        let said = word(8);
        Label {
            message: word(0),
            last: said & 1 != 0,
            hints: Hints {
                closes: said & 2 != 0,
                back: (said >> 16) as u16,
            },
            digest: digest.value(),
        }
    }

    pub(super) fn free_provided(&mut self, desk: &mut Desk<'_>, task: TaskId) {
        let place = self.provided.get_mut(task.index());
        if let Some(place) = place
            && place.is_some_and(|(owner, ..)| owner == task)
            && let Some((_, line, buffer)) = place.take()
        {
            self.lines[line as usize].fetching -= 1;
            desk.memory().unhold(buffer.lkey);
            desk.memory().free(buffer);
        }
    }
}

pub(super) fn fill(bytes: &mut [u8], seed: u64) {
    let mut word = seed | 1;
    for chunk in bytes.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let source = word.to_le_bytes();
        chunk.copy_from_slice(&source[..chunk.len()]);
    }
}
