//! Completions of plain messages: their frames, and those of the peer.

use super::{counts_receives, framing};
use crate::endpoint::credit::CREDITS_MAX;
use crate::endpoint::hot::FRAME;
use crate::endpoint::{Endpoint, Hot};
use crate::entries::{Direct, Ending, Nexus, SlotUse, TaskEvents, TaskFlags, Usual};
use crate::error::WorkStatus;
use crate::ids::NONE;
use crate::input::Completion;
use crate::memory::{SlotId, Slots};
use crate::mutant::any_mutant;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::{self, State as NexusState};
use crate::state::task::{Input, State};
use crate::storage::Storage;
use crate::table::queue_push;
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    Extensions, Headers, Kind, Limits, OnRdma, OnStream, PlainRequest, PlainResponse, SessionFlags,
    TransportFlags, message_kind,
};

/// Of a request: its answer takes the long way. What may be sent again has its slot still.
const LONG: TaskFlags = TaskFlags::SILENT.union(TaskFlags::EVENTS).union(KEEPS_SLOT);

/// Of a message that may be sent again: its frame's completion goes the long way, too.
const KEEPS_SLOT: TaskFlags = TaskFlags::IDEMPOTENT.union(TaskFlags::KEPT);

impl Nexus {
    /// Tests a frame's transport number and credits. Streams have none that count.
    #[inline(always)]
    fn takes<D: Headers>(&self, sn: u16, credits: u16) -> bool {
        if !counts_receives::<D>() {
            return true;
        }
        let granted = credits == 0
            || (self.peer_granted
                && self.acks_unpaid == 0
                && self.tx_credits.saturating_add(credits) <= CREDITS_MAX);
        self.granted > 0 && sn == self.rx_sn && granted
    }

    /// Counts a frame that passed the test.
    #[inline(always)]
    fn take(&mut self, sn: u16, credits: u16) {
        self.granted -= 1;
        self.rx_sn = sn.wrapping_add(1);
        self.used_since_grant += 1;
        if credits > 0 {
            self.tx_credits += credits;
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// A receive completion that brings a plain message. False: it does not, and nothing changed.
    #[inline(always)]
    pub(crate) fn plain_received(&mut self, done: &Completion, slots: &impl Slots) -> bool {
        if any_mutant!(self.g) {
            return false;
        }
        let mut hot = self.hot();
        let slot = done.wr.index();
        let Some(row) = hot.slots.get(slot as usize) else {
            return false;
        };
        let posted = row.usage == SlotUse::Posted && done.wr.matches(row.generation);
        if !posted || done.status != WorkStatus::Success {
            return false;
        }
        let n = row.nexus;
        let nexus = &hot.nexuses[n as usize];
        debug_assert!(nexus.usual == Usual::No || nexus.usual == nexus.find_usual());
        if nexus.usual != Usual::OnRdma || nexus.rq_head != slot {
            return false;
        }
        let frame = slots.slot(SlotId(slot));
        let Some(frame) = frame.get(..done.len as usize) else {
            return false;
        };
        hot.plain_frame::<OnRdma>(n, slot, frame)
    }

    /// A frame off a stream that is a plain message, and lies in a receive slot. False: it is
    /// not, and nothing changed.
    #[inline]
    pub(crate) fn plain_in_slot(&mut self, n: u32, slot: u32, frame: &[u8]) -> bool {
        if any_mutant!(self.g) {
            return false;
        }
        let mut hot = self.hot();
        hot.nexuses[n as usize].usual == Usual::OnStream
            && hot.plain_frame::<OnStream>(n, slot, frame)
    }

    /// A frame off a stream that is a plain message, and lies in no slot yet: the next free one is
    /// taken for it, beyond the `kept` ones that are for transport connections without any, unless this
    /// one has its `share`. False: it is not, or there is none, and nothing changed.
    #[inline(always)]
    pub(crate) fn plain_off_stream(
        &mut self,
        n: u32,
        frame: &[u8],
        kept: u32,
        share: u32,
        slots: &mut impl Slots,
    ) -> bool {
        let mut hot = self.hot();
        let held = u32::from(hot.nexuses[n as usize].held);
        if held > 0 && (hot.g.rx_slots.free() <= kept || held >= share) {
            return false;
        }
        let Some(slot) = hot.g.rx_slots.next(hot.slots) else {
            return false;
        };
        if !hot.plain_frame::<OnStream>(n, slot, frame) {
            return false;
        }
        let taken = hot.g.rx_slots.take_row(hot.slots);
        debug_assert!(taken.as_ref().is_some_and(|(taken, _)| *taken == slot));
        let Some((_, row)) = taken else { return false };
        row.usage = SlotUse::Filled;
        row.nexus = n;
        hot.nexuses[n as usize].held += 1;
        slots.slot_mut(SlotId(slot))[..frame.len()].copy_from_slice(frame);
        true
    }

    /// A send completion, if all that is done with it were plain messages' frames. False: the
    /// oldest work request that is left was not, and the rest is to go the long way.
    #[inline(always)]
    pub(crate) fn plain_sent(&mut self, done: &Completion) -> bool {
        if any_mutant!(self.g) || self.g.anyone_waits() {
            return false;
        }
        let mut hot = self.hot();
        let t = done.wr.index();
        let Some(row) = hot.tasks.get(t as usize) else {
            return false;
        };
        const ITS_OWN: TaskFlags = TaskFlags::ON_QUEUE
            .union(TaskFlags::ORPHAN)
            .union(TaskFlags::ORPHAN_LATER);
        let live = done.wr.is_frame()
            && row.flags.intersection(ITS_OWN) == TaskFlags::ON_QUEUE
            && done.wr.matches(row.generation);
        if !live || done.status != WorkStatus::Success {
            return false;
        }
        let n = row.nexus;
        if hot.nexuses[n as usize].sq_head != t | FRAME {
            return self.plain_sent_before(n, t) && self.hot().plain_done(n, t);
        }
        hot.plain_done(n, t)
    }

    /// A queue completes in order: what was posted before and not signalled is done too.
    #[inline(never)]
    fn plain_sent_before(&mut self, n: u32, t: u32) -> bool {
        let mut hot = self.hot();
        loop {
            let first = hot.nexuses[n as usize].sq_head;
            if first == t | FRAME {
                return true;
            }
            if first & FRAME == 0 || !hot.plain_done(n, first ^ FRAME) {
                return false;
            }
        }
    }
}

impl<T: Trace> Hot<'_, T> {
    /// A frame that lies in a receive slot, or is about to, if it is a plain message.
    #[inline(always)]
    fn plain_frame<D: Headers>(&mut self, n: u32, slot: u32, frame: &[u8]) -> bool {
        let config = &self.g.config;
        let limits = Limits {
            framing: framing::<D>(&self.nexuses[n as usize]),
            frame_max: config.buffer_size,
            header_max: config.header_max,
        };
        let taken = match message_kind(frame) {
            Some(Kind::MsgRsp) => PlainResponse::<D>::parse_response(frame, limits)
                .is_some_and(|frame| self.plain_response::<D>(n, slot, &frame)),
            Some(kind) => PlainRequest::<D>::parse_request(frame, limits)
                .is_some_and(|frame| self.plain_request::<D>(n, slot, kind, &frame)),
            None => false,
        };
        if taken {
            self.nexuses[n as usize].traffic.frame(frame.len());
        }
        taken
    }

    /// The nexus's own part of a frame that is taken, on RDMA out of the first receive of its
    /// queue.
    #[inline(always)]
    fn frame_in<D: Headers>(&mut self, n: u32, slot: u32, sn: u16, credits: u16) {
        const ONLINE: NexusState = NexusState::Online;
        const FRAME: nexus::Input = nexus::Input::Frame;
        const _: () = assert!(matches!(
            nexus::lookup(ONLINE, FRAME),
            (ONLINE, nexus::Action::Deliver)
        ));
        self.trace
            .transition(0, n, ONLINE as u8, FRAME as u8, ONLINE as u8);
        self.g.counters.frames_received += 1;
        if counts_receives::<D>() {
            self.unpost_first(n, slot, sn, credits);
        }
    }

    /// The first receive of a queue was used.
    #[inline(always)]
    fn unpost_first(&mut self, n: u32, slot: u32, sn: u16, credits: u16) {
        let row = &mut self.slots[slot as usize];
        row.usage = SlotUse::Filled;
        let nexus = &mut self.nexuses[n as usize];
        nexus.rq_head = row.next_free;
        nexus.posted -= 1;
        nexus.held += 1;
        nexus.take(sn, credits);
        let look = nexus.may_need_receives() || nexus.stalled;
        self.g.transport(nexus.transport).cq_used -= 1;
        if look {
            self.mark_ready(n);
        }
    }

    #[inline(always)]
    fn plain_request<D: Headers>(
        &mut self,
        n: u32,
        slot: u32,
        kind: Kind,
        frame: &PlainRequest<'_, D>,
    ) -> bool {
        let receipts = SessionFlags::IMM_READ_RECEIPT | SessionFlags::REQUEST_READ_RECEIPT;
        let nexus = &self.nexuses[n as usize];
        let c = nexus.connections;
        if frame.session_flags().intersects(receipts)
            || (frame.has_wait() && nexus.can(Extensions::DEADLINE))
            || !nexus.takes::<D>(frame.sn(), frame.credits())
        {
            return false;
        }
        let Some(row) = self.connections.get_mut(c as usize) else {
            return false;
        };
        let expected = row.own_session == frame.dest_session()
            && row.state == ConnectionState::Online
            && frame.session_sn() == row.req_expected
            && (!row.any_serial || frame.serial() > row.last_serial)
            && row.hold_head == NONE
            && !row.silent;
        if !expected {
            return false;
        }
        row.req_expected = row.req_expected.wrapping_add(1);
        row.any_serial = true;
        row.last_serial = frame.serial();
        row.heard = true;
        row.unanswered += u32::from(kind == Kind::MsgReq);
        row.traffic.messages_received += 1;
        self.g.counters.messages_received += 1;
        let row = &mut self.tasks[slot as usize];
        row.reset();
        self.step(slot, State::Vacant, Input::Arrive);
        let row = &mut self.tasks[slot as usize];
        row.kind = kind;
        row.nexus = n;
        row.serial = frame.serial();
        row.peer_tid = frame.ltid();
        row.header_at = PlainRequest::<D>::LEN;
        row.rx_header_len = frame.header_len();
        row.data_at = PlainRequest::<D>::LEN + frame.header_len();
        row.data_len = frame.data_len();
        row.flags = arrived(frame.flags());
        self.link_task(c, slot);
        self.first_event(c, slot);
        self.frame_in::<D>(n, slot, frame.sn(), frame.credits());
        true
    }

    /// Puts a task that never had an event, and is flagged now, in its connection's list, with its
    /// main one.
    #[inline(always)]
    fn first_event(&mut self, c: u32, t: u32) {
        let task = &mut self.tasks[t as usize];
        debug_assert!(task.flags.contains(TaskFlags::EVENTS));
        task.events = TaskEvents::MAIN;
        let row = &mut self.connections[c as usize];
        queue_push!(self.tasks, row.ev_head, row.ev_tail, event_next, t);
        self.mark_events(c);
    }

    #[inline(always)]
    fn plain_response<D: Headers>(
        &mut self,
        n: u32,
        slot: u32,
        frame: &PlainResponse<'_, D>,
    ) -> bool {
        let rx_slots = self.g.config.rx_slots;
        let rtid = frame.rtid();
        let t = tid::index(rtid);
        if tid::is_control(rtid) || t < rx_slots {
            return false;
        }
        let Some(task) = self.tasks.get(t as usize) else {
            return false;
        };
        let asked = task.state == State::Sent
            && tid::matches(rtid, task.generation)
            && task.nexus == n
            && task.kind == Kind::MsgReq
            && task.direct == Direct::No
            && task.serial == frame.serial()
            && task.timer == NONE
            && !task.flags.intersects(LONG);
        let c = task.connection;
        let good =
            frame.status() == 0 && self.nexuses[n as usize].takes::<D>(frame.sn(), frame.credits());
        if !asked || !good {
            return false;
        }
        let row = &self.connections[c as usize];
        if frame.session_sn() != row.rsp_expected || row.wants_writable {
            return false;
        }
        self.step(t, State::Sent, Input::Answer);
        let row = &mut self.connections[c as usize];
        row.rsp_expected = row.rsp_expected.wrapping_add(1);
        row.heard = true;
        let task = &mut self.tasks[t as usize];
        row.queued_messages -= 1;
        let bytes = task.queued_bytes();
        row.queued_bytes -= bytes;
        self.g.queued_bytes -= bytes;
        let mut flags = task.flags.difference(TaskFlags::PEER_HOLDS);
        flags.insert(TaskFlags::USER | TaskFlags::EVENTS);
        if task.work > 0 {
            // The answer overtook the completion of the request.
            flags.insert(TaskFlags::LINGERS);
            let memory = task.out.count > 0 || task.into.count > 0;
            flags.set(TaskFlags::OWES_RETURN, memory);
            row.held += 1;
        }
        task.flags = flags;
        task.ending = Ending::Good;
        self.g.life.completed += 1;
        task.answer = slot;
        task.header_at = PlainResponse::<D>::LEN;
        task.rx_header_len = frame.header_len();
        task.data_at = PlainResponse::<D>::LEN + frame.header_len();
        task.data_len = frame.data_len();
        task.in_segments = false;
        self.first_event(c, t);
        self.frame_in::<D>(n, slot, frame.sn(), frame.credits());
        true
    }

    /// The oldest frame of a send queue is out, if nothing is special about its message. False:
    /// something is, and nothing changed.
    #[inline(always)]
    fn plain_done(&mut self, n: u32, t: u32) -> bool {
        if self.nexuses[n as usize].usual == Usual::No {
            return false;
        }
        let task = &self.tasks[t as usize];
        match task.state {
            // The answer comes later.
            State::Sent if task.kind == Kind::MsgReq && !task.flags.intersects(KEEPS_SLOT) => {
                self.step(t, State::Sent, Input::SendDoneHeld);
                self.frame_out(n, t);
                true
            }
            // The request is over.
            State::Answered
                if task.work == 1
                    && !task.read_response
                    && task.timer == NONE
                    && !task.flags.intersects(TaskFlags::HELD) =>
            {
                let c = task.connection;
                self.step(t, State::Answered, Input::SendDone);
                self.frame_out(n, t);
                let row = &mut self.tasks[t as usize];
                row.ending = Ending::Good;
                row.flags.insert(TaskFlags::EVENTS);
                self.first_event(c, t);
                true
            }
            _ => false,
        }
    }

    /// The frame of a message has left the send queue: its slot is free.
    #[inline(always)]
    fn frame_out(&mut self, n: u32, t: u32) {
        self.take_frame(n, t);
        let row = &mut self.tasks[t as usize];
        row.work -= 1;
        let slot = core::mem::replace(&mut row.slot, NONE);
        if (slot as usize) < self.slots.len() {
            self.free_tx_slot(slot);
        }
        if self.nexuses[n as usize].stalled {
            self.mark_ready(n);
        }
    }
}

#[inline(always)]
fn arrived(flags: TransportFlags) -> TaskFlags {
    let mut row = TaskFlags::INCOMING | TaskFlags::USER | TaskFlags::EVENTS;
    if flags.is_empty() {
        return row;
    }
    row.set(
        TaskFlags::LAST,
        flags.contains(TransportFlags::LAST_IN_BATCH),
    );
    row.set(
        TaskFlags::FORCE_WRITE,
        flags.contains(TransportFlags::FORCE_WRITE),
    );
    row
}
