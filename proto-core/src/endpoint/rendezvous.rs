//! Large payloads: READ of a request's data, WRITE of a response's, READ of a response's and its
//! READ_ACK (PROTOCOL.md 10). On sockets the same states run on bytes that follow the frame.

use super::Endpoint;
use super::fit::Misfit;
use super::session::Keep;
use crate::config::Rendezvous;
use crate::entries::{
    Direct, Ending, Extent, SegmentList, TaskEvents, TaskFlags, Transfer, WorkEntry, WorkKind,
};
use crate::error::{CommandError, Failure, Length, Reason, WorkStatus};
use crate::ids::{NONE, TaskId};
use crate::inputs::recorded;
use crate::memory::{ListKind, SEGMENTS_INLINE, Segment, SegmentSpan, SlotId, Slots};
use crate::mutant::mutated;
use crate::output::Work;
use crate::state::task::{Action, Input, State};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::tid;
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{
    Framing, Kind, Request, Response, ResponseFields, ResponseList, SessionFields, Sge, Violation,
    What, encode_response, status,
};

impl SegmentList {
    /// The segment at a place in the list.
    pub(crate) fn segment(&self, extents: &[Extent], at: u16) -> Segment {
        let at = usize::from(at);
        if at < SEGMENTS_INLINE {
            return self.inline[at];
        }
        let at = at - SEGMENTS_INLINE;
        let mut extent = self.extent;
        for _ in 0..at / Extent::SEGMENTS {
            extent = extents[extent as usize].next_free;
        }
        extents[extent as usize].segments[at % Extent::SEGMENTS]
    }
}

/// The segments of a span, trimmed to it.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    list: &'a SegmentList,
    extents: &'a [Extent],
    at: u16,
    skip: u64,
    left: u64,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        while self.left > 0 && self.at < self.list.count {
            let mut segment = self.list.segment(self.extents, self.at);
            self.at += 1;
            let len = u64::from(segment.len);
            if self.skip >= len {
                self.skip -= len;
                continue;
            }
            let take = (len - self.skip).min(self.left);
            segment.addr += self.skip;
            segment.len = take as u32;
            self.skip = 0;
            self.left -= take;
            return Some(segment);
        }
        None
    }
}

/// A 16-byte entry of a list in a frame.
fn sge_at(slot: &[u8], list_at: u16, index: u16) -> Sge {
    let at = usize::from(list_at) + 16 * usize::from(index);
    let bytes = &slot[at..at + 16];
    let word = |i: usize| u32::from_be_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    Sge {
        addr: u64::from(word(0)) << 32 | u64::from(word(4)),
        len: word(8),
        rkey: word(12),
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The user memory that a work request or event speaks of.
    pub fn segments(&self, span: SegmentSpan) -> Segments<'_> {
        let view = self.s.view();
        let task = &view.tasks[span.task as usize];
        let list = match span.list {
            ListKind::Out => &task.out,
            ListKind::In => &task.into,
        };
        Segments {
            list,
            extents: view.extents,
            at: 0,
            skip: span.skip,
            left: span.len,
        }
    }

    /// A message came whose data is still at the peer, or follows on the stream.
    pub(crate) fn start_fetch(&mut self, n: u32, c: u32, t: u32, request: &Request<'_>) {
        let row = self.task(t);
        row.remote_at = 96 + 16 * request.head.in_sges;
        row.remote_count = request.head.out_sges;
        row.transfer.total = request.out_total();
        row.nexus = n;
        self.nexus(n).fetching = t;
        self.task_input(t, Input::ArriveFetch);
        self.hold_back(c, t);
        if let Err(code) = self.find_memory(t) {
            // On a stream nobody takes it.
            self.nexus(n).fetching = NONE;
            self.refuse_payload(t, code);
        }
    }

    /// Asks the user or the pool for a payload's memory. A message of this side that has a
    /// deadline of its own waits until then.
    ///
    /// # Errors
    /// The status to refuse it with.
    fn find_memory(&mut self, t: u32) -> Result<(), u32> {
        let c = self.task(t).connection;
        let policy = self.connection(c).policy;
        let timeout = policy.provide_timeout;
        let timeout = timeout.unwrap_or(self.g.config.provide_timeout);
        let mut provide = self.g.now.after(timeout);
        let row = self.task(t);
        if row.flags.contains(TaskFlags::TIMED) {
            // Its sender does not wait any longer.
            provide = provide.min(Instant::from_nanos(row.expires));
        }
        // A request has one timer: its own deadline is kept while the user's runs, or runs on when
        // it comes first.
        let own = self.armed_at(Timer::Task(t));
        let row = self.task(t);
        row.kept_deadline = own.map_or(0, Instant::as_nanos);
        row.deadline_is_provide = own.is_none_or(|own| own > provide);
        if row.deadline_is_provide {
            self.arm(Timer::Task(t), provide);
        }
        match policy.rendezvous {
            Rendezvous::Ask => {
                self.task_event(t, TaskEvents::WAITING);
                Ok(())
            }
            Rendezvous::Pool { max_bytes } => self.ask_pool(t, max_bytes),
        }
    }

    /// The user decided about a waiting payload: its deadline is the message's own again.
    pub(crate) fn end_asking(&mut self, t: u32) {
        let row = self.task(t);
        if !core::mem::take(&mut row.deadline_is_provide) {
            return;
        }
        match core::mem::take(&mut row.kept_deadline) {
            0 => self.disarm(Timer::Task(t)),
            own => self.arm(Timer::Task(t), Instant::from_nanos(own)),
        }
    }

    /// Gives memory for a waiting payload. `Request`, `OneWay` or `Response` follows when the
    /// data is there.
    ///
    /// # Errors
    /// `WrongState` when nothing waits (any more), `TooLong` when the segments hold less than
    /// what waits, `BadValue` when one of them is empty, `Full` without extents for the list.
    pub fn provide(&mut self, task: TaskId, segments: &[Segment]) -> Result<(), CommandError> {
        recorded!(self, Provide { task, segments } => self.provide(task, segments));
        let t = self.find_task(task)?;
        self.waiting(t)?;
        if segments.iter().any(|s| s.len == 0) {
            return Err(CommandError::BadValue("segment of zero bytes"));
        }
        let total: u64 = segments.iter().map(|s| u64::from(s.len)).sum();
        let len = self.task(t).transfer.total;
        if total < len {
            return Err(CommandError::TooLong {
                what: Length::Data,
                len,
                max: total,
            });
        }
        let max = self.g.config.sge_max;
        if segments.len() > max.into() {
            let len = segments.len() as u64;
            return Err(CommandError::TooLong {
                what: Length::Segments,
                len,
                max: max.into(),
            });
        }
        let list = self.take_list(segments)?;
        self.task(t).into = list;
        self.end_asking(t);
        self.begin_transfer(t);
        Ok(())
    }

    fn waiting(&mut self, t: u32) -> Result<(), CommandError> {
        let row = self.task(t);
        let waits = matches!(row.state, State::Fetching | State::AnswerFetching);
        let told =
            !row.events.contains(TaskEvents::WAITING) && !row.flags.contains(TaskFlags::POOL_LINE);
        if waits && told && row.into.count == 0 && row.transfer.total > 0 {
            Ok(())
        } else {
            Err(CommandError::WrongState("no payload waits for memory"))
        }
    }

    /// Refuses a waiting payload with a status, which the peer gets where the wire can say it
    /// (PROTOCOL.md 10.3, 10.4).
    ///
    /// # Errors
    /// `WrongState` when nothing waits (any more).
    pub fn refuse(&mut self, task: TaskId, status: u32) -> Result<(), CommandError> {
        recorded!(self, Refuse { task, status } => self.refuse(task, status));
        let t = self.find_task(task)?;
        self.waiting(t)?;
        self.refuse_payload(t, status);
        Ok(())
    }

    /// The user let the deadline for a waiting payload pass.
    pub(crate) fn provide_deadline(&mut self, t: u32) {
        self.task(t).events.remove(TaskEvents::WAITING);
        self.refuse_payload(t, status::TIMEOUT);
    }

    pub(crate) fn refuse_payload(&mut self, t: u32, code: u32) {
        let (c, incoming, kind) = {
            let row = self.task(t);
            (
                row.connection,
                row.flags.contains(TaskFlags::INCOMING),
                row.kind,
            )
        };
        self.disarm(Timer::Task(t));
        self.leave_pool_line(t);
        self.discard_payload(t);
        if !incoming {
            self.owe_unfetched(t);
            self.task_input(t, Input::FetchFailed);
            self.queue_read_ack(t);
            self.drop_answer(t);
            self.finish(t, Ending::Failed(Failure::RefusedHere(code)));
            return;
        }
        self.task(t).flags.remove(TaskFlags::USER);
        if kind == Kind::MsgReq {
            // Answered for the user, with the status and nothing else.
            self.task_input(t, Input::FetchDone);
            self.task_input(t, Input::Respond);
            self.connection(c).unanswered -= 1;
            let row = self.task(t);
            // Its credit goes back with the answer.
            row.data_len = row.transfer.total;
            row.status = code;
            row.flags.insert(TaskFlags::RESPONSE | TaskFlags::SILENT);
            self.queue_response(c, t);
        } else {
            self.task(t).receipt_code = code;
            self.owe_unfetched(t);
            self.task_input(t, Input::FetchFailed);
            if self.task(t).flags.contains(TaskFlags::RECEIPT) {
                self.queue_response(c, t);
            }
        }
        self.release_held(c);
        self.try_free(t);
    }

    /// A connection ends with a payload not here yet.
    pub(crate) fn drop_fetch(&mut self, t: u32, _reason: Reason) {
        let row = self.task(t);
        let c = row.connection;
        row.flags.remove(TaskFlags::USER);
        row.events.remove(TaskEvents::WAITING);
        let unanswered = u32::from(row.kind == Kind::MsgReq);
        let memory = row.has_memory();
        let busy = row.work > 0;
        if busy {
            row.flags.insert(TaskFlags::LINGERS);
            row.flags.set(TaskFlags::OWES_RETURN, memory);
            self.connection(c).held += 1;
        } else if memory {
            self.task_event(t, TaskEvents::RETURNED);
        }
        self.connection(c).unanswered -= unanswered;
        self.disarm(Timer::Task(t));
        self.leave_pool_line(t);
        self.discard_payload(t);
        self.try_free(t);
    }

    /// Memory is there: READ it, or let the stream deliver it.
    pub(crate) fn begin_transfer(&mut self, t: u32) {
        let n = self.task(t).nexus;
        if self.nexus(n).framing != Framing::Rdma {
            self.stream_resume(n);
            return;
        }
        let tables = self.s.tables();
        tables.tasks[t as usize].flags.insert(TaskFlags::QUEUED);
        let row = &mut tables.nexuses[n as usize];
        queue_push!(tables.tasks, row.rdma_head, row.rdma_tail, queue_next, t);
        self.mark_ready(n);
    }

    /// The next READ of a nexus's transfers, within the device's limits.
    pub(crate) fn next_rdma(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        loop {
            let t = self.nexus(n).rdma_head;
            if t == NONE {
                return None;
            }
            let row = self.task(t);
            let open = matches!(row.state, State::Fetching | State::AnswerFetching);
            if !open {
                self.pop_transfer(n);
                continue;
            }
            let transport = self.nexus(n).transport;
            let max_reads = self.transport(transport).limits.max_reads;
            if self.nexus(n).reads_used >= max_reads {
                return None;
            }
            let work = self.rdma_work(n, t, ListKind::In, slots);
            self.nexus(n).reads_used += 1;
            let Transfer { posted, total, .. } = self.task(t).transfer;
            if posted == total {
                // At once: when the data is here, its answer needs its place in another list.
                self.pop_transfer(n);
            }
            return Some(work);
        }
    }

    /// The first of a nexus's transfers leaves their list.
    fn pop_transfer(&mut self, n: u32) {
        let tables = self.s.tables();
        let row = &mut tables.nexuses[n as usize];
        let t = queue_pop!(tables.tasks, row.rdma_head, row.rdma_tail, queue_next);
        let flags = &mut tables.tasks[t as usize].flags;
        flags.remove(TaskFlags::QUEUED);
        if flags.contains(TaskFlags::ACK_LATER) {
            flags.remove(TaskFlags::ACK_LATER);
            self.queue_read_ack(t);
            self.drop_answer(t);
        }
        self.try_free(t);
    }

    /// The next WRITE of a response, or `None` when all of it is posted.
    pub(crate) fn next_write(&mut self, n: u32, t: u32, slots: &mut impl Slots) -> Option<Work> {
        let row = self.task(t);
        let (header_len, n_out) = (row.header_len, row.out.count);
        let total = row.out.total;
        let written = self.nexus(n).framing == Framing::Rdma
            && self.response_op(t, header_len, n_out, total) == crate::wire::Op::Write;
        if !written {
            return None;
        }
        let row = self.task(t);
        row.transfer.total = total;
        row.remote_at = row.offer_at;
        row.remote_count = row.offer_count;
        if row.transfer.posted == total {
            return None;
        }
        Some(self.rdma_work(n, t, ListKind::Out, slots))
    }

    /// The entry of the remote list where the next work of a transfer starts, and how far in.
    fn remote_place(&mut self, t: u32, slots: &impl Slots) -> (Sge, u64) {
        let row = self.task(t);
        let incoming = row.flags.contains(TaskFlags::INCOMING);
        let lies_in = if incoming { t } else { row.answer };
        let (list_at, count) = (row.remote_at, row.remote_count);
        let mut skip = row.transfer.posted;
        let bytes = slots.slot(SlotId(lies_in));
        let mut found = Sge::default();
        for index in 0..count {
            found = sge_at(bytes, list_at, index);
            if skip < u64::from(found.len) {
                break;
            }
            skip -= u64::from(found.len);
        }
        if mutated!(self.g, WrongPlace) {
            found.addr = found.addr.wrapping_sub(skip);
        }
        (found, skip)
    }

    /// One READ or WRITE: as much as one remote entry, the device's message size and its number
    /// of local entries allow.
    fn rdma_work(&mut self, n: u32, t: u32, list: ListKind, slots: &mut impl Slots) -> Work {
        let transport = self.nexus(n).transport;
        let limits = self.transport(transport).limits;
        let (found, skip) = self.remote_place(t, slots);
        let left = u64::from(found.len) - skip;
        let posted = self.task(t).transfer.posted;
        let rest = self.task(t).transfer.total - posted;
        let wanted = left.min(rest).min(limits.max_message.into());
        let span = SegmentSpan {
            task: t,
            list,
            skip: posted,
            len: wanted,
        };
        let len = self
            .segments(span)
            .take(limits.max_sge.into())
            .map(|segment| u64::from(segment.len))
            .sum();
        let local = SegmentSpan { len, ..span };
        let row = self.task(t);
        row.transfer.posted += len;
        row.work += 1;
        let read = list == ListKind::In;
        let kind = if read {
            WorkKind::Read
        } else {
            WorkKind::Write
        };
        let entry = WorkEntry {
            kind,
            task: t,
            bytes: len,
            ..WorkEntry::VACANT
        };
        let wr = self.push_work(n, entry);
        let nexus = self.nexus_id(n);
        let (remote, rkey) = (found.addr + skip, found.rkey);
        if read {
            self.g.counters.reads += 1;
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                rkey,
                fence: false,
                signaled: true,
            }
        } else {
            self.g.counters.writes += 1;
            // What follows completes it too, if there is room for that before.
            let signaled = !self.room_follows(n);
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled,
            }
        }
    }

    /// A READ or WRITE is done.
    pub(crate) fn rdma_done(&mut self, t: u32, kind: WorkKind, bytes: u64, status: WorkStatus) {
        if self.task(t).direct != Direct::No {
            self.direct_done(t, bytes, status);
            return;
        }
        if kind != WorkKind::Read {
            return;
        }
        if status == WorkStatus::Success {
            self.fetched(t, bytes);
        }
    }

    /// Bytes of a payload arrived, by READ or off the stream.
    pub(crate) fn fetched(&mut self, t: u32, bytes: u64) {
        let row = self.task(t);
        row.transfer.done += bytes;
        let open = matches!(row.state, State::Fetching | State::AnswerFetching);
        if !open {
            self.end_orphaned_fetch(t);
            self.end_late_fetch(t);
            return;
        }
        if row.transfer.done < row.transfer.total {
            return;
        }
        row.data_len = row.transfer.total;
        row.in_segments = true;
        let c = row.connection;
        let rdma_answer = row.state == State::AnswerFetching;
        match self.task_input(t, Input::FetchDone) {
            Action::Complete => {
                if rdma_answer {
                    self.queue_read_ack(t);
                }
                self.task(t).flags.insert(TaskFlags::USER);
                self.finish(t, Ending::Good);
            }
            _ => {
                let receipt_now = TaskFlags::RECEIPT_NOW;
                if self.task(t).flags.contains(receipt_now) {
                    self.queue_response(c, t);
                }
                self.release_held(c);
            }
        }
    }

    /// Nobody wants an answer any more whose data is READ: once nothing of it is under way, the peer
    /// is told that its buffers are free.
    pub(crate) fn abandon_answer(&mut self, t: u32) {
        let row = self.task(t);
        let Transfer { posted, done, .. } = row.transfer;
        if row.state != State::Orphaned || row.answer == NONE || done < posted {
            return;
        }
        let input = if done == row.transfer.total {
            Input::FetchDone
        } else {
            Input::FetchFailed
        };
        self.owe_unfetched(t);
        self.task_input(t, input);
        self.queue_read_ack(t);
        self.drop_answer(t);
        self.late(t);
    }

    /// Nobody looks at an answer any more whose data was READ: its receive slot is free, whenever the
    /// peer is told that its buffers are. The credits for that may hang on it.
    pub(crate) fn drop_answer(&mut self, t: u32) {
        let row = self.task(t);
        let needed = TaskFlags::USER | TaskFlags::ACK_LATER;
        if row.state == State::Ended && !row.flags.intersects(needed) && row.answer != NONE {
            let slot = core::mem::replace(&mut row.answer, NONE);
            self.free_incoming(slot);
        }
    }

    /// A message whose data nobody takes gives its application credit back all the same.
    pub(crate) fn owe_unfetched(&mut self, t: u32) {
        let row = self.task(t);
        let size = row.transfer.total + u64::from(row.rx_header_len);
        let c = row.connection;
        if c != NONE {
            self.owe_dropped(c, size);
        }
    }

    /// Puts a received message behind those that are still being fetched.
    pub(crate) fn hold_back(&mut self, c: u32, t: u32) {
        let tables = self.s.tables();
        tables.tasks[t as usize].flags.insert(TaskFlags::HELD_BACK);
        let row = &mut tables.connections[c as usize];
        queue_push!(tables.tasks, row.hold_head, row.hold_tail, hold_next, t);
    }

    /// Delivers what no longer waits behind a fetch.
    pub(crate) fn release_held(&mut self, c: u32) {
        loop {
            let tables = self.s.tables();
            let row = &mut tables.connections[c as usize];
            if row.hold_head == NONE
                || tables.tasks[row.hold_head as usize].state == State::Fetching
            {
                return;
            }
            let t = queue_pop!(tables.tasks, row.hold_head, row.hold_tail, hold_next);
            let task = &mut tables.tasks[t as usize];
            task.flags.remove(TaskFlags::HELD_BACK);
            if task.state == State::Delivered {
                let given_up = task.flags.contains(TaskFlags::GIVEN_UP);
                self.await_user(t);
                self.task_event(t, TaskEvents::MAIN);
                if given_up && self.task(t).kind == Kind::MsgReq {
                    self.task_event(t, TaskEvents::GIVEN_UP);
                }
            } else {
                self.try_free(t);
            }
        }
    }

    /// A response whose data the requester has to READ.
    pub(crate) fn fetch_answer(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        slot: u32,
        response: &Response<'_>,
    ) -> Keep {
        let total = response.data_total();
        let row = self.task(t);
        row.flags.remove(TaskFlags::PEER_HOLDS);
        let room = row.into.total;
        let offered = row.into.count > 0 && row.into.inline[0].addr != 0;
        row.peer_tid = response.head.ltid;
        row.remote_at = 100;
        row.remote_count = response.head.sges;
        row.transfer.total = total;
        row.nexus = n;
        let size = total + u64::from(response.head.header_len);
        if self.task_input(t, Input::AnswerFetch) != Action::Fetch {
            self.owe_dropped(c, size);
            self.queue_read_ack(t);
            self.late(t);
            return Keep::No;
        }
        if total > self.g.config.payload_max || (offered && total > room) {
            self.owe_dropped(c, size);
            self.task_input(t, Input::FetchFailed);
            self.queue_read_ack(t);
            let max = if offered {
                room
            } else {
                self.g.config.payload_max
            };
            let (what, len) = (Length::OfferedBuffers, total);
            self.finish(t, Ending::Failed(Failure::TooLong { what, len, max }));
            return Keep::No;
        }
        self.keep_answer(t, slot, response);
        if offered {
            self.begin_transfer(t);
        } else {
            // Lengths only: they say nothing of where it goes.
            let lengths = core::mem::replace(&mut self.task(t).into, SegmentList::EMPTY);
            self.give_list(lengths);
            if let Err(code) = self.find_memory(t) {
                self.refuse_payload(t, code);
            }
        }
        Keep::Yes
    }

    /// A response is being READ of a request that has its outcome: nothing more is posted, and when
    /// nothing is out any more the peer gets its buffers back. On streams, whoever reads the
    /// payload ends it.
    pub(crate) fn end_orphaned_fetch(&mut self, t: u32) {
        let n = self.task(t).nexus;
        if n != NONE && self.nexus(n).framing == Framing::Rdma {
            self.abandon_answer(t);
        }
    }

    /// The peer is told that its buffers of a READ response are free.
    pub(crate) fn queue_read_ack(&mut self, t: u32) {
        let n = self.task(t).nexus;
        let forgotten = mutated!(self.g, ReadAckForgotten);
        if n == NONE || self.nexus(n).framing != Framing::Rdma || forgotten {
            return;
        }
        let tables = self.s.tables();
        let task = &mut tables.tasks[t as usize];
        if task.flags.contains(TaskFlags::QUEUED) {
            // Still in the list of transfers: it leaves that list first.
            task.flags.insert(TaskFlags::ACK_LATER);
            return;
        }
        task.flags.insert(TaskFlags::QUEUED);
        let row = &mut tables.nexuses[n as usize];
        queue_push!(tables.tasks, row.ack_head, row.ack_tail, queue_next, t);
        self.mark_ready(n);
    }

    /// Takes the next READ_ACK to send: the peer's task id.
    pub(crate) fn take_read_ack(&mut self, n: u32) -> u32 {
        let tables = self.s.tables();
        let row = &mut tables.nexuses[n as usize];
        let t = queue_pop!(tables.tasks, row.ack_head, row.ack_tail, queue_next);
        let task = &mut tables.tasks[t as usize];
        task.flags.remove(TaskFlags::QUEUED);
        let rtid = task.peer_tid;
        let orphan = TaskFlags::ORPHAN | TaskFlags::ORPHAN_LATER;
        if task.flags.intersects(orphan) && task.work == 0 {
            task.nexus = NONE;
        }
        self.try_free(t);
        rtid
    }

    /// READ_ACK: the requester has our data.
    pub(crate) fn on_read_ack(&mut self, n: u32, rtid: u32) -> Result<Keep, Violation> {
        let unknown = Violation::new(What::UnknownTask, 18, rtid.into());
        let t = tid::index(rtid);
        let rx_slots = self.g.config.rx_slots;
        let late = self.nexus(n).late_allowed;
        let known = self.s.tables().tasks.get(t as usize).is_some_and(|row| {
            !tid::is_control(rtid)
                && t < rx_slots
                && tid::matches(rtid, row.generation)
                && row.nexus == n
                && row.read_response
                && row.flags.contains(TaskFlags::PEER_HOLDS)
        });
        // One that comes late took a receive and counts as any other; there are no more of them
        // than there were READ responses.
        let nexus = self.nexus(n);
        let owed = late && nexus.read_acks_expected > 0;
        if !known && !owed {
            return Err(unknown);
        }
        nexus.read_acks_expected = nexus.read_acks_expected.saturating_sub(1);
        if nexus.granted > 0 {
            nexus.granted -= 1;
        } else {
            nexus.acks_owed += 1;
        }
        if !known {
            return Ok(Keep::No);
        }
        let row = self.task(t);
        row.flags.remove(TaskFlags::PEER_HOLDS);
        row.read_response = false;
        if self.task_input(t, Input::ReadAck) == Action::Complete {
            self.finish(t, Ending::Good);
        } else {
            self.maybe_return(t);
        }
        self.try_free(t);
        Ok(Keep::No)
    }

    /// Headers of a response whose data does not travel in the frame.
    #[allow(clippy::too_many_arguments, reason = "one frame's parts")]
    pub(crate) fn large_response(
        &mut self,
        n: u32,
        t: u32,
        slot: u32,
        at: usize,
        kind: Kind,
        session: &SessionFields,
        head: &ResponseFields,
        slots: &mut impl Slots,
    ) -> usize {
        let framing = self.nexus(n).framing;
        let row = self.task(t);
        let (out, offer_at, offered) = (row.out, row.offer_at, row.offer_count);
        if head.op == crate::wire::Op::Read {
            row.flags.insert(TaskFlags::PEER_HOLDS);
            self.nexus(n).read_acks_expected += 1;
            let tables = self.s.tables();
            let sges = super::frame::Sges {
                list: &out,
                extents: tables.extents,
                at: 0,
                count: out.count,
                real: true,
            };
            let bytes = slots.slot_mut(SlotId(slot));
            let list = ResponseList::sges(sges);
            return encode_response(bytes, at, framing, kind, session, head, list, false);
        }
        // How the data falls into the requester's buffers, in order.
        let mut lengths = [0u32; 256];
        let (mut left, mut count) = (head.data_len, 0);
        let request = slots.slot(SlotId(t));
        for index in 0..offered {
            if left == 0 {
                break;
            }
            let take = left.min(sge_at(request, offer_at, index).len.into());
            lengths[count] = take as u32;
            count += 1;
            left -= take;
        }
        let bytes = slots.slot_mut(SlotId(slot));
        let list = ResponseList::lengths(lengths[..count].iter().copied());
        encode_response(bytes, at, framing, kind, session, head, list, false)
    }

    /// What was taken before the peer's limits were known is more than they allow.
    pub(crate) fn too_long(&mut self, t: u32, misfit: Misfit) {
        if self.task_input(t, Input::Flush) == Action::GiveUp {
            self.finish(t, Ending::Failed(misfit.into()));
        }
    }
}
