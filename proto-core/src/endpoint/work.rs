//! Work requests, made from the state when polled. What may go is decided here; what it looks
//! like on the wire, in `frame`.

use super::Endpoint;
use super::credit::{ANSWER_CREDITS, REQUEST_CREDITS};
use super::hot::{Done, FRAME};
use crate::entries::{Direct, Frames, TaskFlags, Usual, WorkEntry, WorkKind};
use crate::error::{Reason, WorkStatus};
use crate::ids::{NONE, TransportId, WrId};
use crate::inputs::recorded;
use crate::memory::Slots;
use crate::mutant::mutated;
use crate::output::Work;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::{Input, State};
use crate::state::task::State as TaskState;
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push, queue_remove};
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::{Framing, Kind};

/// What a connection would send next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    Control(Frames),
    Request(u32),
    Response(u32),
    Nothing,
}

/// What came of a pick.
enum Emitted {
    Work(Work),
    /// Nothing to post, but the queue moved on.
    Again,
    /// The nexus waits for something else first.
    Blocked,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The next work request for a driver, or `None` when there is none for now. Headers are
    /// written into the slots as it is made.
    #[must_use]
    #[inline]
    pub fn poll_work(&mut self, transport: TransportId, slots: &mut impl Slots) -> Option<Work> {
        recorded!(self, PollWork { transport } => self.poll_work(transport, slots), work => self.written_frame(work.as_ref(), slots));
        // Nothing to do is the common answer, and is given without a call.
        let n = self.g.transports.get(transport.0 as usize)?.ready.head;
        if n == NONE {
            return None;
        }
        self.first_work(transport, n, slots)
    }

    #[inline(never)]
    fn first_work(
        &mut self,
        transport: TransportId,
        n: u32,
        slots: &mut impl Slots,
    ) -> Option<Work> {
        match self.plain_work(n, slots) {
            Some(work) => Some(work),
            None => self.ready_work(transport, slots),
        }
    }

    #[inline(never)]
    fn ready_work(&mut self, transport: TransportId, slots: &mut impl Slots) -> Option<Work> {
        loop {
            let n = self.g.transport(transport.0).ready.head;
            if n == NONE {
                return None;
            }
            if let Some(work) = self.stream_work(n, slots) {
                return Some(work);
            }
            let work = self.next_work(n, slots);
            let flow_control = self.g.config.flow_control;
            let row = self.nexus(n);
            row.usual = if flow_control {
                Usual::No
            } else {
                row.find_usual()
            };
            if work.is_some() && self.nexus(n).may_have_work() {
                return work;
            }
            let tables = self.s.tables();
            let q = &mut self.g.transport(transport.0).ready;
            debug_assert_eq!(q.head, n);
            queue_pop!(tables.nexuses, q.head, q.tail, ready_next);
            let row = &mut tables.nexuses[n as usize];
            row.in_ready = false;
            row.stalled = work.is_none() && row.may_have_work();
            if work.is_some() {
                self.check_foreseen(n, slots);
                return work;
            }
            let next = self.g.transport(transport.0).ready.head;
            if next != NONE
                && let Some(work) = self.plain_work(next, slots)
            {
                return Some(work);
            }
        }
    }

    /// In debug builds: a nexus that left the ready list really has no work.
    #[inline(always)]
    pub(crate) fn check_foreseen(&mut self, n: u32, slots: &mut impl Slots) {
        debug_assert!(
            self.nexus(n).in_ready || self.next_work(n, slots).is_none(),
            "nexus {n} has work that was not foreseen"
        );
    }

    /// Something may have changed that lets a nexus send, perhaps more than messages.
    pub(crate) fn mark_ready(&mut self, n: u32) {
        self.nexus(n).usual = Usual::No;
        self.hot().mark_ready(n);
    }

    /// Something small changed (a receive used or free, credits, room): the nexus is ready if that
    /// can lead to work.
    #[inline]
    pub(crate) fn look_again(&mut self, n: u32) {
        self.hot().look_again(n);
    }

    /// Takes a nexus out of the ready list before its row is freed.
    pub(crate) fn leave_ready(&mut self, n: u32) {
        let tables = self.s.tables();
        let row = &mut tables.nexuses[n as usize];
        if core::mem::take(&mut row.wants_slot) {
            let q = &mut self.g.slot_line;
            queue_remove!(tables.nexuses, q.head, q.tail, slot_next, n);
        }
        let row = &mut tables.nexuses[n as usize];
        if core::mem::take(&mut row.in_ready) {
            let q = &mut self.g.transport(row.transport).ready;
            queue_remove!(tables.nexuses, q.head, q.tail, ready_next, n);
        }
    }

    /// A connection may have something to send.
    pub(crate) fn mark_tx(&mut self, c: u32) {
        self.hot().mark_tx(c);
    }

    /// Takes a connection out of a nexus's round before it leaves the nexus.
    pub(crate) fn leave_tx(&mut self, c: u32, n: u32) {
        let tables = self.s.tables();
        if !core::mem::take(&mut tables.connections[c as usize].in_tx) {
            return;
        }
        let nexus = &mut tables.nexuses[n as usize];
        queue_remove!(tables.connections, nexus.tx_head, nexus.tx_tail, tx_next, c);
    }

    #[inline(never)]
    fn next_work(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        match self.nexus(n).state {
            State::Priming | State::ServerPriming => self.next_receive(n),
            State::Handshaking => self.setup_frame_due(n, slots),
            State::Refusing => self.setup_frame_due(n, slots),
            State::Online | State::Idle => {
                if let Some(receive) = self.next_receive(n) {
                    return Some(receive);
                }
                if self.nexus(n).setup_due {
                    return self.setup_frame_due(n, slots);
                }
                self.next_online(n, slots)
            }
            _ => None,
        }
    }

    fn setup_frame_due(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        if !self.nexus(n).setup_due {
            return None;
        }
        if !self.room(n) {
            self.await_room(n);
            return None;
        }
        let slot = self.frame_slot(n)?;
        Some(self.setup_frame(n, slot, slots))
    }

    fn next_online(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        if !self.room(n) {
            self.await_room(n);
            return None;
        }
        // Transfers first: one that is done may leave a READ_ACK behind.
        if self.nexus(n).rdma_head != NONE
            && let Some(work) = self.next_rdma(n, slots)
        {
            return Some(work);
        }
        // A READ_ACK may go without a credit, but then it needs a receive that nobody promised:
        // as a control frame it can wait for one.
        if self.nexus(n).ack_head != NONE && self.nexus(n).tx_credits >= 2 {
            let slot = self.frame_slot(n)?;
            return Some(self.read_ack_frame(n, slot, slots));
        }
        let rdma = self.nexus(n).framing == Framing::Rdma;
        let mut passed = NONE;
        while self.nexus(n).tx_head != NONE {
            let c = self.nexus(n).tx_head;
            let pick = self.pick(c);
            if pick == Pick::Nothing {
                self.pop_tx(n);
                continue;
            }
            if !matches!(pick, Pick::Control(_)) && !self.room_for_data(n) {
                break;
            }
            if rdma && self.nexus(n).tx_credits < self.credits_needed(n, pick) {
                self.trace.mark("data waited for credits");
                if self.goes_on_to_answers(n, c, &mut passed) {
                    continue;
                }
                break;
            }
            match self.emit(n, c, pick, slots) {
                Emitted::Work(work) => return Some(work),
                Emitted::Again => {}
                Emitted::Blocked => return None,
            }
        }
        if self.nop_due(n) {
            let slot = self.frame_slot(n)?;
            self.trace.mark("credit nop sent");
            return Some(self.nop_frame(n, slot, slots));
        }
        None
    }

    fn credits_needed(&mut self, n: u32, pick: Pick) -> u16 {
        match pick {
            // Work that the peer's receive queue does not see.
            Pick::Request(t) if self.task(t).direct != Direct::No => 0,
            // A peer that gives so few could never be sent requests otherwise.
            Pick::Request(_) if !self.nexus(n).peer_grant_small => REQUEST_CREDITS,
            _ => ANSWER_CREDITS,
        }
    }

    /// The request that is next of a connection lacks credits: whether to look at the next
    /// connection, for answers and control frames, which need fewer. When all were looked at since
    /// one had something new to send, that is not done again.
    fn goes_on_to_answers(&mut self, n: u32, c: u32, passed: &mut u32) -> bool {
        let row = self.nexus(n);
        if row.tx_credits < ANSWER_CREDITS || row.only_requests {
            return false;
        }
        if *passed == c {
            row.only_requests = true;
            return false;
        }
        if *passed == NONE {
            *passed = c;
        }
        self.rotate_tx(n, c);
        true
    }

    fn emit(&mut self, n: u32, c: u32, pick: Pick, slots: &mut impl Slots) -> Emitted {
        let work = match pick {
            Pick::Control(frame) => {
                let Some(slot) = self.frame_slot(n) else {
                    return Emitted::Blocked;
                };
                self.control_frame(n, c, frame, slot, slots)
            }
            Pick::Request(t) if self.task(t).direct != Direct::No => {
                let Some(work) = self.direct_work(n, c, t) else {
                    return Emitted::Blocked;
                };
                work
            }
            Pick::Request(t) => {
                self.pop_request(c);
                let Some(work) = self.request_frame(n, c, t, slots) else {
                    return Emitted::Again;
                };
                work
            }
            Pick::Response(t) if self.task(t).flags.contains(TaskFlags::RESPONSE) => {
                if let Some(write) = self.next_write(n, t, slots) {
                    return Emitted::Work(write);
                }
                if self.task(t).slot == NONE {
                    // A status that the endpoint answers with for the user has no slot yet.
                    let Some(slot) = self.frame_slot(n) else {
                        return Emitted::Blocked;
                    };
                    self.task(t).slot = slot;
                }
                self.pop_response(c);
                self.response_frame(n, c, t, slots)
            }
            Pick::Response(t) => {
                let Some(slot) = self.frame_slot(n) else {
                    return Emitted::Blocked;
                };
                self.pop_response(c);
                let work = self.receipt_frame(n, c, t, slot, slots);
                self.try_free(t);
                work
            }
            Pick::Nothing => return Emitted::Again,
        };
        self.rotate_tx(n, c);
        Emitted::Work(work)
    }

    fn pop_response(&mut self, c: u32) {
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        let t = queue_pop!(tables.tasks, row.rsp_head, row.rsp_tail, queue_next);
        row.rsp_turn = false;
        tables.tasks[t as usize].flags.remove(TaskFlags::QUEUED);
    }

    /// A nexus wants to be asked again when the next slot is free.
    pub(crate) fn await_slot(&mut self, n: u32) {
        let tables = self.s.tables();
        let row = &mut tables.nexuses[n as usize];
        if !core::mem::replace(&mut row.wants_slot, true) {
            let q = &mut self.g.slot_line;
            queue_push!(tables.nexuses, q.head, q.tail, slot_next, n);
            self.g.waits = true;
        }
    }

    /// A slot for a frame of the protocol; without one the nexus waits for the next free one.
    fn frame_slot(&mut self, n: u32) -> Option<u32> {
        // A peer that does not read may ask on: the slots of what it is to hear stand on its queue.
        // Each completes by itself there, and this is looked at again.
        let nexus = self.nexus(n);
        let (used, stream) = (u32::from(nexus.sq_used), nexus.framing != Framing::Rdma);
        if stream && used > 0 && self.g.tx_slots.free() <= self.g.tx_reserve / 2 + used {
            return None;
        }
        let slot = self.take_frame_slot();
        if slot.is_none() {
            self.trace.mark("frame waited for a slot");
            self.await_slot(n);
        }
        slot
    }

    /// A slot or room among the completions came back: all who wait are asked again, in their
    /// order. What else comes back before the driver asks for work finds nobody in the line.
    #[inline(always)]
    pub(crate) fn wake_slot_waiters(&mut self) {
        if self.g.slot_line.head != NONE {
            self.wake_slot_line();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_slot_line(&mut self) {
        while self.g.slot_line.head != NONE {
            let tables = self.s.tables();
            let q = &mut self.g.slot_line;
            let n = queue_pop!(tables.nexuses, q.head, q.tail, slot_next);
            self.nexus(n).wants_slot = false;
            self.mark_ready(n);
        }
    }

    /// Enters a work request on a send queue.
    pub(crate) fn push_work(&mut self, n: u32, entry: WorkEntry) -> WrId {
        self.hot().push_work(n, entry)
    }

    /// On which nexus's send queue a work request is, and where.
    pub(crate) fn place_of(&mut self, wr: WrId) -> Option<(u32, u32)> {
        let (tables, at) = (self.s.tables(), wr.index());
        if wr.is_frame() {
            let row = tables.tasks.get(at as usize)?;
            let there = row.flags.contains(TaskFlags::ON_QUEUE) && wr.matches(row.generation);
            return there.then_some((row.nexus, at | FRAME));
        }
        let row = tables.work.get(at as usize)?;
        let there = wr.is_send() && row.live && wr.matches(row.generation);
        there.then_some((row.nexus, at))
    }

    /// Whether the oldest work request on a send queue is a READ.
    pub(crate) fn reads_next(&mut self, n: u32) -> bool {
        let at = self.nexus(n).sq_head;
        at & FRAME == 0 && self.s.tables().work[at as usize].kind == WorkKind::Read
    }

    /// Takes the oldest work request off a send queue.
    pub(crate) fn pop_work(&mut self, n: u32, status: WorkStatus) {
        let Done {
            kind,
            task: t,
            connection: c,
            slot,
            bytes,
        } = self.hot().take_work(n);
        if slot != NONE {
            self.free_slot(slot);
        }
        self.wake_slot_waiters();
        if t != NONE {
            self.work_done(n, t, kind, bytes, status);
        }
        if c != NONE {
            self.connection(c).control_work -= 1;
            self.settle(c);
        }
        if let WorkKind::Frame(kind) = kind {
            self.setup_sent(n, kind);
        }
    }

    fn setup_sent(&mut self, n: u32, kind: Kind) {
        if matches!(kind, Kind::NexusSetupReq | Kind::NexusSetupRsp) {
            self.nexus(n).setup_work = false;
            if self.nexus(n).state == State::Refusing {
                self.nexus_input(n, Input::RefusalSent, None);
            } else {
                self.mark_ready(n);
            }
        }
    }

    /// Takes the driver's word that a work request could not be posted; nothing after it on the
    /// same queue was posted either.
    pub fn handle_post_failed(&mut self, now: Instant, wr: WrId, error: i32) {
        recorded!(self, PostFailed { now, wr, error } => self.handle_post_failed(now, wr, error));
        self.set_now(now);
        let tables = self.s.tables();
        let index = wr.index() as usize;
        let n = if wr.is_recv() {
            tables
                .slots
                .get(index)
                .filter(|s| wr.matches(s.generation))
                .map(|s| s.nexus)
        } else {
            self.place_of(wr).map(|(n, _)| n)
        };
        match n {
            Some(n) if n != NONE => {
                // What was not posted never completes; it comes back when the queue is gone.
                if wr.is_recv() {
                    self.unposted_receive(n, wr.index());
                }
                self.nexus_input(n, Input::Fail, Some(Reason::PostFailed(error)));
            }
            _ => self.g.counters.stale += 1,
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Whether the peer's application credits cover a queued request or one-way. Answers never
    /// wait for any: the peer asked for them, and holds back its credits until it has them.
    fn covered(&mut self, c: u32, t: u32) -> bool {
        let row = self.task(t);
        let size = row.out.total + u64::from(row.slot_data) + u64::from(row.header_len);
        let row = self.connection(c);
        row.peer_messages >= 1 && i64::try_from(size).is_ok_and(|size| row.peer_bytes >= size)
    }

    pub(crate) fn pop_tx(&mut self, n: u32) {
        let tables = self.s.tables();
        let nexus = &mut tables.nexuses[n as usize];
        let c = queue_pop!(tables.connections, nexus.tx_head, nexus.tx_tail, tx_next);
        tables.connections[c as usize].in_tx = false;
    }

    /// Connections take turns: one with more to send goes to the end, one without leaves.
    #[inline]
    pub(crate) fn rotate_tx(&mut self, n: u32, c: u32) {
        if self.nexus(n).tx_head != c {
            return;
        }
        if self.pick(c) == Pick::Nothing {
            self.pop_tx(n);
            return;
        }
        let tables = self.s.tables();
        let nexus = &mut tables.nexuses[n as usize];
        if nexus.tx_tail != c {
            queue_pop!(tables.connections, nexus.tx_head, nexus.tx_tail, tx_next);
            queue_push!(tables.connections, nexus.tx_head, nexus.tx_tail, tx_next, c);
        }
    }

    /// What a connection may send next, by its own state and the peer's application credits.
    #[inline]
    pub(crate) fn pick(&mut self, c: u32) -> Pick {
        let flow_control = self.uses_credits(c);
        self.skip_ended(c);
        if self.connection(c).frames.contains(Frames::CANCEL_REQ) {
            self.skip_answered(c);
        }
        let row = self.connection(c);
        if !row.frames.is_empty() {
            let now = first_frame(row.frames);
            if !now.is_empty() {
                return Pick::Control(now);
            }
        }
        let online = matches!(
            row.state,
            ConnectionState::Online
                | ConnectionState::FinWait1
                | ConnectionState::FinWait2
                | ConnectionState::Closing
                | ConnectionState::LastAck
                | ConnectionState::TimeWait
        );
        if !online {
            return Pick::Nothing;
        }
        let (req, rsp, turn, n) = (row.req_head, row.rsp_head, row.rsp_turn, row.nexus);
        let waits = row.frames.contains(Frames::RESUMING);
        // Behind the last FIN_RSP a libxio waits for no answer any more; one of this kind learns by
        // it that its buffers are free.
        let last = row.state == ConnectionState::TimeWait && !row.frames.contains(Frames::FIN_RSP);
        let over = last && self.nexus(n).agreement.version == 0;
        let req_goes = req != NONE && !waits && (!flow_control || self.covered(c, req));
        let rsp_goes = rsp != NONE && !over;
        let turn = turn || (rsp_goes && self.lacks_request_credits(n));
        match (req_goes, rsp_goes, turn) {
            (true, false, _) | (true, true, false) => return Pick::Request(req),
            (false, true, _) | (true, true, true) => return Pick::Response(rsp),
            (false, false, _) => {}
        }
        let row = self.connection(c);
        let req = if req != NONE && !waits && row.state == ConnectionState::Closing {
            // The credits that they lack went with the peer's FIN.
            let reason = row.reason;
            self.flush_queued_requests(c, reason);
            NONE
        } else {
            req
        };
        // FIN follows what was queued before it: answers, and then requests.
        let row = self.connection(c);
        if row.frames.contains(Frames::FIN_RSP) && rsp == NONE {
            return Pick::Control(Frames::FIN_RSP);
        }
        let fin_rsp_first = row.frames.contains(Frames::FIN_RSP);
        let last = req == NONE && !waits && !fin_rsp_first;
        let fin = row.frames.contains(Frames::FIN_REQ) && last;
        // A device does not order what it READs before the FIN.
        if fin && !self.moves_directly(c) {
            return Pick::Control(Frames::FIN_REQ);
        }
        Pick::Nothing
    }

    /// Whether answers may go and requests may not.
    fn lacks_request_credits(&mut self, n: u32) -> bool {
        let row = self.nexus(n);
        row.tx_credits < REQUEST_CREDITS && row.framing == Framing::Rdma && !row.peer_grant_small
    }

    /// Messages that ended while queued leave the queue's head.
    #[inline]
    pub(crate) fn skip_ended(&mut self, c: u32) {
        loop {
            let tables = self.s.tables();
            let row = &mut tables.connections[c as usize];
            let ended = |t: u32| {
                t != NONE && {
                    let task = &tables.tasks[t as usize];
                    let receipt = TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW;
                    let owes = task.flags.contains(TaskFlags::INCOMING)
                        && task.flags.intersects(receipt)
                        && !task.flags.contains(TaskFlags::RECEIPT_DONE);
                    (task.state == TaskState::Ended && !owes)
                        || super::direct::abandoned(task.direct, task.state)
                }
            };
            let t = if ended(row.req_head) {
                queue_pop!(tables.tasks, row.req_head, row.req_tail, queue_next)
            } else if ended(row.rsp_head) {
                queue_pop!(tables.tasks, row.rsp_head, row.rsp_tail, queue_next)
            } else {
                return;
            };
            tables.tasks[t as usize].flags.remove(TaskFlags::QUEUED);
            self.try_free(t);
        }
    }

    /// Whether there is room for one more work request that can complete.
    #[inline]
    pub(crate) fn room(&mut self, n: u32) -> bool {
        let row = self.nexus(n);
        let (transport, used, bytes) = (row.transport, row.sq_used, row.sq_bytes);
        let state = self.g.transport(transport);
        let limits = &state.limits;
        let fits =
            used < limits.sq_depth && state.cq_used < limits.cq_depth && bytes < limits.sq_bytes;
        fits && self.g.work.free() > 0
    }

    /// Whether there is room for data behind the work request just made.
    pub(crate) fn room_follows(&mut self, n: u32) -> bool {
        self.room(n) && self.room_for_data(n)
    }

    /// A nexus without room is asked again when there may be some: of its own send queue it hears
    /// anyway, of what all share only so.
    fn await_room(&mut self, n: u32) {
        let transport = self.nexus(n).transport;
        let state = self.g.transport(transport);
        if state.cq_used >= state.limits.cq_depth || self.g.work.free() == 0 {
            self.await_slot(n);
        }
    }

    /// Two places of the send queue are kept for control frames.
    #[inline]
    pub(crate) fn room_for_data(&mut self, n: u32) -> bool {
        let row = self.nexus(n);
        let (transport, used) = (row.transport, row.sq_used);
        used + 2 < self.g.transport(transport).limits.sq_depth
    }

    /// Whether the work request just made must be signalled: every so many, and the last of what
    /// can go now, so that nothing waits for later traffic to come back.
    #[inline]
    pub(crate) fn signal(&mut self, n: u32) -> bool {
        let transport = self.nexus(n).transport;
        let every = self.g.transport(transport).signal_every;
        let row = self.nexus(n);
        row.sq_unsignaled += 1;
        let due = row.sq_unsignaled >= every;
        if due || !(self.more_to_send(n) || mutated!(self.g, LastUnsignaled)) {
            self.nexus(n).sq_unsignaled = 0;
            return true;
        }
        false
    }

    /// Whether another data frame is sure to follow now.
    pub(crate) fn more_to_send(&mut self, n: u32) -> bool {
        let row = self.nexus(n);
        let (c, credits) = (row.tx_head, row.tx_credits);
        let rdma = row.framing == Framing::Rdma;
        if c == NONE || (rdma && credits <= REQUEST_CREDITS) || !self.room_follows(n) {
            return false;
        }
        matches!(self.pick(c), Pick::Request(_) | Pick::Response(_))
    }
}

/// The control frame that goes before all queued messages, if there is one.
fn first_frame(frames: Frames) -> Frames {
    const ORDER: [Frames; 10] = [
        Frames::SETUP_REQ,
        Frames::SETUP_RSP,
        Frames::HELLO_REQ,
        Frames::HELLO_RSP,
        Frames::RESUME_REQ,
        Frames::RESUME_RSP,
        Frames::ACK_REQ,
        Frames::KEEPALIVE_RSP,
        Frames::KEEPALIVE_REQ,
        Frames::CANCEL_REQ,
    ];
    ORDER
        .into_iter()
        .find(|frame| frames.contains(*frame))
        .unwrap_or(Frames::empty())
}
