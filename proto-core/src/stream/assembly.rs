//! Bytes of control, single and data sockets to frames (PROTOCOL.md 3.3).

use super::list::Listed;
use super::{BARE_MAX, Flow, RUN_AHEAD, flow};
use crate::endpoint::Endpoint;
use crate::entries::{SlotUse, Usual};
use crate::error::Reason;
use crate::ids::{NONE, SocketId};
use crate::inputs::recorded;
use crate::memory::{SlotId, Slots};
use crate::mutant::any_mutant;
use crate::state::nexus::Input;
use crate::state::socket::State;
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::{
    Dialect, Framing, Kind, SocketKind, StreamPlan, TLV_LEN, Violation, What, control_len,
    message_kind, message_len, plain_rest, stream_rest,
};

/// What the next bytes of a control or single socket would be.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    /// They must wait.
    Shut,
    /// Nobody wants them.
    Drop,
    /// Payload of the frame before.
    Payload,
    /// More of the frame in the slot.
    Slot,
    /// A frame's start, or more of a frame that needs no slot.
    Head,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes bytes that the driver read from a socket into a buffer of its own, in order. Returns
    /// how many were taken: the driver keeps the others and asks [`stream_want`] about them.
    ///
    /// Bytes are taken as far as frames go, in pieces of any size: a partial frame is kept here.
    /// They are not taken when the stream has to wait (for a receive slot, for the user's answer
    /// to a payload, for the other socket), and when they go into user memory.
    ///
    /// [`stream_want`]: Self::stream_want
    pub fn handle_stream_bytes(
        &mut self,
        now: Instant,
        socket: SocketId,
        bytes: &[u8],
        slots: &mut impl Slots,
    ) -> usize {
        recorded!(self, StreamBytes { now, socket, bytes: crate::Bytes(bytes) } => self.handle_stream_bytes(now, socket, bytes, slots));
        self.set_now(now);
        let Some(s) = self.find_socket(socket) else {
            return bytes.len();
        };
        let taken = match self.socket(s).state {
            State::Greeting => self.greet(s, bytes, slots),
            State::Bound => self.feed(s, bytes, slots),
            State::Waiting => 0,
            State::Closing | State::Vacant => bytes.len(),
        };
        if taken < bytes.len() {
            // Whatever it waits for names it again.
            self.socket(s).stopped = true;
        }
        taken
    }

    pub(super) fn feed(&mut self, s: u32, bytes: &[u8], slots: &mut impl Slots) -> usize {
        if self.socket(s).kind == SocketKind::Data {
            self.take_data(s, bytes, slots)
        } else {
            self.take_frames(s, bytes, slots)
        }
    }

    fn take_frames(&mut self, s: u32, bytes: &[u8], slots: &mut impl Slots) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            if let Some(taken) = self.take_plain(s, rest, slots) {
                used += taken;
                continue;
            }
            let taken = match self.gate(s) {
                Gate::Shut => break,
                Gate::Drop => return bytes.len(),
                Gate::Payload => self.discard_staged(s, rest.len(), slots),
                Gate::Slot => self.fill_slot(s, rest, slots),
                Gate::Head => self.take_head(s, rest, slots),
            };
            if taken == 0 {
                break;
            }
            used += taken;
        }
        used
    }

    /// All that a plain message has on a control or single socket where nothing is in its way: the
    /// short way. `None`: there is none, and nothing changed.
    #[inline(always)]
    fn take_plain(&mut self, s: u32, rest: &[u8], slots: &mut impl Slots) -> Option<usize> {
        if any_mutant!(self.g) {
            return None;
        }
        let (kept, share) = (self.kept_slots(), self.slot_share());
        let t = self.s.tables();
        let row = &t.sockets[s as usize];
        let nexus = &t.nexuses[row.nexus as usize];
        if !row.is_between_frames() || nexus.usual != Usual::OnStream {
            return None;
        }
        let n = row.nexus;
        let total = message_len(rest)?;
        let frame = rest.get(..total)?;
        if nexus.framing == Framing::TcpDual {
            return self.take_plain_head(s, frame, slots);
        }
        self.plain_off_stream(n, frame, kept, share, slots)
            .then_some(total)
    }

    /// The same on a control socket: the message's data comes on the other.
    #[inline(never)]
    fn take_plain_head(&mut self, s: u32, part: &[u8], slots: &mut impl Slots) -> Option<usize> {
        if self.gate(s) != Gate::Head {
            return None;
        }
        let data_inline = plain_rest(message_kind(part)?, part, &self.bounds())?;
        let n = self.socket(s).nexus;
        let slot = self.take_stream_slot(n)?;
        slots.slot_mut(SlotId(slot))[..part.len()].copy_from_slice(part);
        let plan = StreamPlan {
            data_inline,
            payload: 0,
        };
        self.place_frame(s, slot, part.len(), plan, slots);
        Some(part.len())
    }

    #[inline]
    pub(super) fn gate(&mut self, s: u32) -> Gate {
        let t = self.s.tables();
        let row = &t.sockets[s as usize];
        let nexus = &t.nexuses[row.nexus as usize];
        match flow(nexus.state) {
            Flow::Off => return Gate::Shut,
            Flow::Drop => return Gate::Drop,
            Flow::On if row.broken => return Gate::Drop,
            Flow::On => {}
        }
        if row.payload_left > 0 {
            return Gate::Payload;
        }
        if row.slot != NONE {
            return Gate::Slot;
        }
        let waits = row.parked || row.links[Listed::Place as usize].linked;
        let far_ahead = nexus.sockets[1] != NONE
            && t.sockets[nexus.sockets[1] as usize].frame_count >= RUN_AHEAD;
        if waits || (far_ahead && row.head_len == 0) {
            return Gate::Shut;
        }
        Gate::Head
    }

    /// The start of a frame. A whole one in `rest` is handed on at the cost of one copy.
    fn take_head(&mut self, s: u32, rest: &[u8], slots: &mut impl Slots) -> usize {
        let row = self.socket(s);
        let n = row.nexus;
        if row.need > 0 {
            return self.take_bare(s, rest);
        }
        let have = usize::from(row.head_len);
        let start: &[u8; TLV_LEN] = match rest.first_chunk() {
            Some(start) if have == 0 => start,
            _ => {
                let take = rest.len().min(TLV_LEN - have);
                row.head[have..have + take].copy_from_slice(&rest[..take]);
                row.head_len += take as u8;
                if usize::from(row.head_len) == TLV_LEN {
                    self.start_kept(s);
                }
                return take;
            }
        };
        let (kind, total) = match self.frame_length(n, start) {
            Ok(found) => found,
            Err(violation) => return self.break_stream(s, violation, rest.len()),
        };
        if is_bare(kind) {
            if rest.len() >= total && (passes(kind) || self.in_order(n)) {
                self.on_bare_frame(n, &rest[..total]);
                return total;
            }
            self.keep_start(s, start, total);
            return TLV_LEN;
        }
        let Some(slot) = self.take_stream_slot(n) else {
            self.keep_start(s, start, total);
            self.wait_for_slot(s);
            return TLV_LEN;
        };
        let take = rest.len().min(total);
        slots.slot_mut(SlotId(slot))[..take].copy_from_slice(&rest[..take]);
        if take == total {
            self.frame_here(s, slot, total, slots);
        } else {
            let row = self.socket(s);
            row.slot = slot;
            row.have = take as u32;
            row.need = total as u32;
        }
        take
    }

    fn keep_start(&mut self, s: u32, start: &[u8; TLV_LEN], total: usize) {
        let row = self.socket(s);
        row.head[..TLV_LEN].copy_from_slice(start);
        row.head_len = TLV_LEN as u8;
        row.need = total as u32;
    }

    /// The first 16 bytes of a frame have come in pieces.
    fn start_kept(&mut self, s: u32) {
        let row = self.socket(s);
        let n = row.nexus;
        let mut start = [0; TLV_LEN];
        start.copy_from_slice(&row.head[..TLV_LEN]);
        match self.frame_length(n, &start) {
            Ok((kind, total)) => {
                self.socket(s).need = total as u32;
                if is_bare(kind) {
                    return;
                }
                match self.take_stream_slot(n) {
                    Some(slot) => self.socket(s).slot = slot,
                    None => self.wait_for_slot(s),
                }
            }
            Err(violation) => {
                self.break_stream(s, violation, 0);
            }
        }
    }

    fn frame_length(&mut self, n: u32, start: &[u8; TLV_LEN]) -> Result<(Kind, usize), Violation> {
        let frame_max = self.g.config.buffer_size;
        let framing = self.nexus(n).framing;
        let (kind, total) = control_len(start, framing, frame_max)?;
        if is_bare(kind) && total > BARE_MAX {
            return Err(Violation::new(What::TlvLenMismatch, 8, total as u64));
        }
        Ok((kind, total))
    }

    /// More of a control frame that needs no slot.
    fn take_bare(&mut self, s: u32, rest: &[u8]) -> usize {
        let row = self.socket(s);
        let (n, have, need) = (row.nexus, usize::from(row.head_len), row.need as usize);
        let take = rest.len().min(need - have);
        row.head[have..have + take].copy_from_slice(&rest[..take]);
        row.head_len += take as u8;
        if have + take == need {
            let word = [row.head[4], row.head[5], row.head[6], row.head[7]];
            let kind = Kind::from_word(u32::from_be_bytes(word), Dialect::Tcp);
            if kind.is_ok_and(passes) || self.in_order(n) {
                self.bare_here(s);
            } else {
                self.trace.mark("control frame waited for data");
                self.socket(s).parked = true;
            }
        }
        take
    }

    fn bare_here(&mut self, s: u32) {
        let row = self.socket(s);
        let (n, len) = (row.nexus, row.need as usize);
        let head = row.head;
        row.head_len = 0;
        row.need = 0;
        row.parked = false;
        self.on_bare_frame(n, &head[..len]);
    }

    /// Whether no frame before the next one of the control stream waits for data.
    fn in_order(&mut self, n: u32) -> bool {
        let data = self.nexus(n).sockets[1];
        data == NONE || {
            let row = self.socket(data);
            row.frame_count == 0 && row.payload_left == 0
        }
    }

    fn fill_slot(&mut self, s: u32, rest: &[u8], slots: &mut impl Slots) -> usize {
        let row = self.socket(s);
        let slot = row.slot;
        let bytes = slots.slot_mut(SlotId(slot));
        let start = usize::from(core::mem::take(&mut row.head_len));
        if start > 0 {
            bytes[..start].copy_from_slice(&row.head[..start]);
            row.have = start as u32;
        }
        let (have, need) = (row.have as usize, row.need as usize);
        let take = rest.len().min(need - have);
        bytes[have..have + take].copy_from_slice(&rest[..take]);
        row.have += take as u32;
        if have + take == need {
            row.slot = NONE;
            row.have = 0;
            row.need = 0;
            self.frame_here(s, slot, need, slots);
        }
        take
    }

    /// All bytes that a frame has on its control or single socket are in its slot.
    fn frame_here(&mut self, s: u32, slot: u32, len: usize, slots: &mut impl Slots) {
        let n = self.socket(s).nexus;
        let framing = self.nexus(n).framing;
        let bounds = self.bounds();
        let bytes = &slots.slot(SlotId(slot))[..len];
        let plan = match stream_rest(bytes, framing, &bounds) {
            Ok(plan) => plan,
            Err(violation) => {
                self.give_stream_slot(n, slot);
                self.break_stream(s, violation, 0);
                return;
            }
        };
        self.place_frame(s, slot, len, plan, slots);
    }

    /// Hands a frame on, or lets it wait for its data.
    fn place_frame(
        &mut self,
        s: u32,
        slot: u32,
        len: usize,
        plan: StreamPlan,
        slots: &mut impl Slots,
    ) {
        let n = self.socket(s).nexus;
        let t = self.s.tables();
        t.slots[slot as usize].usage = SlotUse::Filled;
        let nexus = &t.nexuses[n as usize];
        let data = nexus.sockets[1];
        if nexus.framing == Framing::TcpSingle {
            self.hand_on(s, slot, len as u32, plan.payload, slots);
        } else if plan.data_inline == 0 && self.in_order(n) {
            self.hand_on(data, slot, len as u32, plan.payload, slots);
        } else {
            self.push_frame(data, slot, len as u32, plan);
        }
    }

    /// Gives a whole frame to the endpoint. What follows it on `s` is its payload.
    fn hand_on(&mut self, s: u32, slot: u32, len: u32, payload: u64, slots: &mut impl Slots) {
        let n = self.socket(s).nexus;
        let frame = &slots.slot(SlotId(slot))[..len as usize];
        if payload == 0 && self.plain_in_slot(n, slot, frame) {
            return;
        }
        self.on_frame(n, slot, len, slots);
        let t = core::mem::replace(&mut self.nexus(n).fetching, NONE);
        if payload == 0 {
            return;
        }
        let generation = match t {
            NONE => 0,
            t => self.task(t).generation,
        };
        let row = self.socket(s);
        row.payload_left = payload;
        row.task = t;
        row.task_generation = generation;
        self.wake(s);
    }

    /// Puts a frame behind those that wait for bytes of the data socket `s`.
    fn push_frame(&mut self, s: u32, slot: u32, len: u32, plan: StreamPlan) {
        let t = self.s.tables();
        let frame = &mut t.slots[slot as usize];
        frame.have = len;
        frame.inline_left = plan.data_inline;
        frame.payload = plan.payload;
        let row = &mut t.sockets[s as usize];
        let [head, tail] = &mut row.frames;
        queue_push!(t.slots, *head, *tail, next_free, slot);
        row.frame_count += 1;
        row.inline_left += u64::from(plan.data_inline);
        if row.frame_count == RUN_AHEAD {
            self.trace.mark("headers at their limit");
        }
        self.wake(s);
    }

    /// Takes the oldest waiting frame off a data socket's queue.
    pub(super) fn pop_frame(&mut self, s: u32) -> Option<u32> {
        let t = self.s.tables();
        let row = &mut t.sockets[s as usize];
        let [head, tail] = &mut row.frames;
        if *head == NONE {
            return None;
        }
        let slot = queue_pop!(t.slots, *head, *tail, next_free);
        row.frame_count -= 1;
        row.inline_left -= u64::from(t.slots[slot as usize].inline_left);
        Some(slot)
    }

    /// Bytes of a data socket, in the order of the control stream's frames.
    fn take_data(&mut self, s: u32, bytes: &[u8], slots: &mut impl Slots) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            let t = self.s.tables();
            let row = &mut t.sockets[s as usize];
            match flow(t.nexuses[row.nexus as usize].state) {
                Flow::Off => break,
                Flow::Drop => return bytes.len(),
                Flow::On if row.broken => return bytes.len(),
                Flow::On => {}
            }
            if row.payload_left > 0 {
                let taken = self.discard_staged(s, rest.len(), slots);
                if taken == 0 {
                    break;
                }
                used += taken;
                continue;
            }
            let slot = row.frames[0];
            if slot == NONE {
                break;
            }
            let frame = &mut t.slots[slot as usize];
            let take = rest.len().min(frame.inline_left as usize);
            let at = frame.have as usize;
            slots.slot_mut(SlotId(slot))[at..at + take].copy_from_slice(&rest[..take]);
            frame.have += take as u32;
            frame.inline_left -= take as u32;
            row.inline_left -= take as u64;
            used += take;
            if frame.inline_left == 0 {
                self.advance(s, slots);
            }
        }
        used
    }

    /// Hands on the frames of a data socket's queue that wait for nothing any more, and lets the
    /// control socket go on.
    pub(super) fn advance(&mut self, s: u32, slots: &mut impl Slots) {
        let n = self.socket(s).nexus;
        let before = self.socket(s).frame_count;
        while self.socket(s).payload_left == 0 && flow(self.nexus(n).state) == Flow::On {
            let head = self.socket(s).frames[0];
            if head == NONE || self.s.tables().slots[head as usize].inline_left > 0 {
                break;
            }
            let Some(slot) = self.pop_frame(s) else { break };
            let frame = &self.s.tables().slots[slot as usize];
            let (len, payload) = (frame.have, frame.payload);
            self.hand_on(s, slot, len, payload, slots);
        }
        let control = self.nexus(n).sockets[0];
        if self.socket(control).parked && self.in_order(n) {
            self.bare_here(control);
            self.wake(control);
        } else if before >= RUN_AHEAD && self.socket(s).frame_count < RUN_AHEAD {
            self.wake(control);
        }
    }

    /// The bytes of a socket cannot be cut into frames any more.
    #[cold]
    fn break_stream(&mut self, s: u32, violation: Violation, taken: usize) -> usize {
        let n = self.socket(s).nexus;
        self.socket(s).broken = true;
        self.g.counters.violations += 1;
        self.nexus_input(n, Input::Fail, Some(Reason::Violation(violation)));
        self.mark_ready(n);
        taken
    }
}

/// Control frames that say something about this moment, and nothing about what came before them:
/// they do not wait for anybody's data, which may take long.
const fn passes(kind: Kind) -> bool {
    matches!(kind, Kind::KeepaliveReq | Kind::KeepaliveRsp)
}

/// Control frames that nothing follows the headers of, and transport setup: parsed where they are.
const fn is_bare(kind: Kind) -> bool {
    kind.is_bare() || matches!(kind, Kind::NexusSetupReq | Kind::NexusSetupRsp)
}
