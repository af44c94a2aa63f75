//! Messages that users hand over: requests, one-ways, responses; and what they give back.

use super::fit::{Listed, Shape};
use super::plain::in_hands;
use super::snapshot::count;
use super::{Endpoint, Lack};
use crate::entries::{SegmentList, SlotUse, TaskFlags, Transfer};
use crate::error::{CommandError, Length, Resource};
use crate::ids::{ConnectionId, NONE, TaskId};
use crate::inputs::recorded;
use crate::memory::{SEGMENTS_INLINE, Segment, SlotId};
use crate::mutant::mutated;
use crate::state::connection;
use crate::state::task::{Action, Input};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push, queue_remove};
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::Kind;

/// What is sent: an application header, and data.
///
/// Header and copied data lie in a slot from [`Config::headroom`](crate::Config::headroom) on,
/// header first; data in user memory is gathered behind them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Message<'a> {
    /// A slot from [`Endpoint::reserve_slot`], or `None` when there is neither header nor copied
    /// data.
    pub slot: Option<SlotId>,
    /// Bytes of application header in the slot.
    pub header_len: u16,
    /// Bytes of data in the slot, behind the header; they always travel inline.
    pub slot_data: u32,
    /// Data in user memory.
    pub data: &'a [Segment],
    /// Comes back in the events of the message.
    pub user: u64,
    /// Ask the device for a completion at once, instead of with later messages. The peer is told
    /// so, as libxio tells it (immediate send completion), and does nothing about it.
    pub prompt: bool,
}

/// What else a request or one-way may ask for.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestOptions<'a> {
    /// Buffers for the response's data. A response that fits a frame may stay in its slot and
    /// leave them untouched. Segments without address say only how much is expected.
    pub into: &'a [Segment],
    /// Ask for a read receipt (PROTOCOL.md 9.4).
    pub receipt: bool,
    /// Let the peer READ the data even if it would fit a frame (PROTOCOL.md 10.1).
    pub force_read: bool,
    /// Offer `into` for WRITE even if the response would fit a frame, and tell the peer so. No peer
    /// heeds it (PROTOCOL.md 5.2): such a response may still come in a frame.
    pub force_write: bool,
    /// The outcome comes by then; a peer of this kind is told, and does not show its user what
    /// comes too late (PROTOCOL.md 12.2). `None`: as the connection's policy says.
    pub deadline: Option<Instant>,
    /// Tells the peer's user that this is the last message of a batch.
    pub last_in_batch: bool,
    /// The peer may take it twice: when its connection is lost and made anew, it is sent again
    /// though the peer may have it already (PROTOCOL.md 8.5).
    pub idempotent: bool,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes a slot to write a header or small data into, from the headroom on.
    ///
    /// # Errors
    /// `Full` when only the protocol's own reserve is left; `connection` then gets a `Writable`.
    #[inline(always)]
    pub fn reserve_slot(&mut self, connection: ConnectionId) -> Result<SlotId, CommandError> {
        recorded!(self, ReserveSlot { connection } => self.reserve_slot(connection));
        let c = self.find_connection(connection)?;
        let n = self.connection(c).nexus;
        let slot = self.take_slot(n, false, SlotUse::Reserved);
        let slot = slot.inspect_err(|_| self.block(c, Lack::SLOT))?;
        Ok(SlotId(slot))
    }

    /// As [`reserve_slot`](Self::reserve_slot), for the answer to a received request: a share of
    /// the slots is kept for answers, so that requests which wait cannot starve them.
    ///
    /// # Errors
    /// `Full` when only the protocol's own reserve is left; a `Writable` follows. `Unknown`.
    pub fn reserve_answer_slot(&mut self, request: TaskId) -> Result<SlotId, CommandError> {
        recorded!(self, ReserveAnswerSlot { request } => self.reserve_answer_slot(request));
        let t = self.find_task(request)?;
        let c = self.task(t).connection;
        let n = match c {
            NONE => NONE,
            c => self.connection(c).nexus,
        };
        let slot = self.take_slot(n, true, SlotUse::Reserved);
        let slot = slot.inspect_err(|_| {
            if c != NONE {
                self.block(c, Lack::ANSWER);
            }
        })?;
        Ok(SlotId(slot))
    }

    /// Gives a reserved slot back unused.
    ///
    /// # Errors
    /// `BadSlot` when it is not reserved.
    pub fn return_slot(&mut self, slot: SlotId) -> Result<(), CommandError> {
        recorded!(self, ReturnSlot { slot } => self.return_slot(slot));
        self.check_slot(slot)?;
        self.free_slot(slot.0);
        Ok(())
    }

    /// Sends a request. Its outcome is one of `Response`, `Failed`, `TimedOut`, `Cancelled`.
    ///
    /// # Errors
    /// `Closed` on a connection that is closing, `Full` (a `Writable` event follows), `TooLong`,
    /// `BadSlot`. Nothing changed; the slot is still the caller's.
    #[inline]
    pub fn send(
        &mut self,
        connection: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) -> Result<TaskId, CommandError> {
        recorded!(self, Send { connection, message: *message, options: *options } => self.send(connection, message, options));
        self.submit(Kind::MsgReq, connection, message, options)
    }

    /// Sends a one-way message. Its outcome is `Sent`, or `Delivered` with a receipt; or one of
    /// the bad ones.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn send_one_way(
        &mut self,
        connection: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) -> Result<TaskId, CommandError> {
        recorded!(self, SendOneWay { connection, message: *message, options: *options } => self.send_one_way(connection, message, options));
        self.submit(Kind::OneWayReq, connection, message, options)
    }

    #[inline]
    fn submit(
        &mut self,
        kind: Kind,
        connection: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) -> Result<TaskId, CommandError> {
        match self.hot().plain_submit(kind, connection, message, options) {
            Some(id) => Ok(id),
            None => self.submit_any(kind, connection, message, options),
        }
    }

    #[cold]
    #[inline(never)]
    fn submit_any(
        &mut self,
        kind: Kind,
        connection: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) -> Result<TaskId, CommandError> {
        let c = self.find_connection(connection)?;
        self.sendable(c).map_err(CommandError::Closed)?;
        if kind == Kind::OneWayReq && !options.into.is_empty() {
            return Err(CommandError::BadValue("room for the answer to a one-way"));
        }
        let bytes = self.check_message(c, message)?;
        self.check_segments(c, options.into, Length::OfferedBuffers)?;
        self.check_request(c, &shape(message, options))?;
        self.check_queue(c, bytes)?;
        let t = self.take_task(c)?;
        if let Err(error) = self.fill_task(c, t, message, Some(options.into)) {
            self.give_task(t);
            self.block(c, lacking(error, Lack::SLOT));
            return Err(error);
        }
        let row = self.task(t);
        row.kind = kind;
        row.flags.set(TaskFlags::RECEIPT, options.receipt);
        row.flags.set(TaskFlags::LAST, options.last_in_batch);
        row.flags.set(TaskFlags::FORCE_WRITE, options.force_write);
        let row = self.connection(c);
        let again = row.is_lasting() && row.cross.only == 0;
        let repeat = options.idempotent || mutated!(self.g, RepeatedSilently);
        let row = self.task(t);
        row.flags.set(TaskFlags::IDEMPOTENT, repeat && again);
        row.flags.set(TaskFlags::KEPT, again);
        row.force_read = options.force_read;
        self.enqueue_request(c, t, bytes);
        let by_default = self.connection(c).policy.deadline;
        let deadline = options
            .deadline
            .or_else(|| by_default.map(|after| self.g.now.after(after)));
        if let Some(deadline) = deadline {
            self.arm(Timer::Task(t), deadline);
        }
        Ok(self.task_id(t))
    }

    /// Puts a filled task in its connection's queue.
    pub(crate) fn enqueue_request(&mut self, c: u32, t: u32, bytes: u64) {
        self.task_input(t, Input::Submit);
        self.link_task(c, t);
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        row.queued_messages += 1;
        row.queued_bytes += bytes;
        self.g.queued_bytes += bytes;
        queue_push!(tables.tasks, row.req_head, row.req_tail, queue_next, t);
        tables.tasks[t as usize].flags.insert(TaskFlags::QUEUED);
        self.mark_tx(c);
    }

    /// Takes the first request off its connection's queue.
    pub(crate) fn pop_request(&mut self, c: u32) {
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        let t = queue_pop!(tables.tasks, row.req_head, row.req_tail, queue_next);
        row.rsp_turn = true;
        tables.tasks[t as usize].flags.remove(TaskFlags::QUEUED);
    }

    /// Answers a request. The outcome is `Sent` or `Failed`; the request needs no `release`.
    ///
    /// # Errors
    /// `WrongState` when it is answered already or no request, `Closed` when its connection can
    /// no longer carry the answer (release it then), `TooLong` when the requester offered no room
    /// and cannot READ, `Full`, `BadSlot`.
    #[inline]
    pub fn respond(&mut self, request: TaskId, message: &Message<'_>) -> Result<(), CommandError> {
        recorded!(self, Respond { request, message: *message } => self.respond(request, message));
        if self.hot().plain_respond(request, message) {
            return Ok(());
        }
        self.respond_any(request, message)
    }

    #[cold]
    #[inline(never)]
    fn respond_any(&mut self, request: TaskId, message: &Message<'_>) -> Result<(), CommandError> {
        let t = self.find_task(request)?;
        let row = self.task(t);
        if row.kind != Kind::MsgReq || !row.flags.contains(TaskFlags::INCOMING) {
            return Err(CommandError::WrongState("not a received request"));
        }
        if !in_hands(row) {
            return Err(CommandError::WrongState(
                "request is answered already, or not here yet",
            ));
        }
        let (c, orphan) = (row.connection, row.flags.contains(TaskFlags::ORPHAN));
        if orphan {
            return Err(CommandError::Closed(row.closed));
        }
        let state = self.connection(c).state;
        if !matches!(
            state,
            connection::State::Online | connection::State::FinWait1
        ) {
            return Err(CommandError::Closed(self.connection(c).reason));
        }
        self.check_message(c, message)?;
        let out = Listed::of(message.data);
        self.check_answer(t, message.header_len, message.slot_data, out)?;
        self.fill_task(c, t, message, None)
            .inspect_err(|error| self.block(c, lacking(*error, Lack::ANSWER)))?;
        self.task_input(t, Input::Respond);
        self.connection(c).unanswered -= 1;
        let row = self.task(t);
        row.flags.remove(TaskFlags::USER);
        row.flags.insert(TaskFlags::RESPONSE);
        row.transfer = Transfer::NONE;
        // A receipt that is not out yet goes with the response, and responses keep their order.
        self.leave_responses(c, t);
        self.queue_response(c, t);
        Ok(())
    }

    /// Gives a message up. What was not sent yet never is; what was sent gets `Cancelled` at
    /// once, and an answer that still comes is dropped. A peer of this kind is told: what its user
    /// has not seen it never sees (PROTOCOL.md 9.7). `Cancelled` is the outcome, unless the message
    /// has one already.
    ///
    /// # Errors
    /// `Unknown`, or `WrongState` for what is not an outgoing message.
    pub fn cancel(&mut self, task: TaskId) -> Result<(), CommandError> {
        recorded!(self, Cancel { task } => self.cancel(task));
        let t = self.find_task(task)?;
        if self.task(t).flags.contains(TaskFlags::INCOMING) {
            return Err(CommandError::WrongState("not an outgoing message"));
        }
        if self.task_input(t, Input::Cancel) == Action::GiveUp {
            self.g.counters.cancelled += 1;
            self.count_on(t, |traffic| count(&mut traffic.cancelled, 1));
            self.finish(t, crate::entries::Ending::Cancelled);
            self.discard_payload(t);
            self.end_orphaned_fetch(t);
            self.tell_withdrawn(t);
        }
        Ok(())
    }

    /// Puts a received message's answer or receipt in its connection's queue.
    pub(crate) fn queue_response(&mut self, c: u32, t: u32) {
        let tables = self.s.tables();
        let task = &mut tables.tasks[t as usize];
        if !task.flags.contains(TaskFlags::QUEUED) {
            task.flags.insert(TaskFlags::QUEUED);
            let row = &mut tables.connections[c as usize];
            queue_push!(tables.tasks, row.rsp_head, row.rsp_tail, queue_next, t);
        }
        self.mark_tx(c);
    }

    /// Takes a message out of its connection's queue of requests.
    pub(crate) fn leave_requests(&mut self, c: u32, t: u32) {
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        tables.tasks[t as usize].flags.remove(TaskFlags::QUEUED);
        queue_remove!(tables.tasks, row.req_head, row.req_tail, queue_next, t);
    }

    /// Takes a receipt out of its connection's queue, unless nothing was queued after it.
    pub(crate) fn leave_responses(&mut self, c: u32, t: u32) {
        let tables = self.s.tables();
        let task = &mut tables.tasks[t as usize];
        let row = &mut tables.connections[c as usize];
        if !task.flags.contains(TaskFlags::QUEUED) || row.rsp_tail == t {
            return;
        }
        task.flags.remove(TaskFlags::QUEUED);
        queue_remove!(tables.tasks, row.rsp_head, row.rsp_tail, queue_next, t);
    }

    /// Gives a received message, a response or a setup answer back: its slot is free for the next
    /// receive. A request that is released instead of answered stays unanswered at its sender.
    ///
    /// # Errors
    /// `Unknown`; `WrongState` when there is nothing to give back (yet).
    #[inline]
    pub fn release(&mut self, task: TaskId) -> Result<(), CommandError> {
        recorded!(self, Release { task } => self.release(task));
        if self.hot().plain_release(task) {
            return Ok(());
        }
        self.release_any(task)
    }

    #[cold]
    #[inline(never)]
    fn release_any(&mut self, task: TaskId) -> Result<(), CommandError> {
        let t = self.find_task(task)?;
        let row = self.task(t);
        if !in_hands(row) {
            return Err(CommandError::WrongState("nothing to give back"));
        }
        if self.answer_given_up(t) {
            return Ok(());
        }
        let row = self.task(t);
        row.flags.remove(TaskFlags::USER);
        let (c, orphan, kind) = (
            row.connection,
            row.flags.contains(TaskFlags::ORPHAN),
            row.kind,
        );
        let incoming = row.flags.contains(TaskFlags::INCOMING);
        if incoming {
            if kind == Kind::MsgReq && !orphan {
                self.connection(c).unanswered -= 1;
            }
            self.task_input(t, Input::Release);
        }
        if !orphan {
            self.owe(c, t);
        }
        self.drop_answer(t);
        self.try_free(t);
        Ok(())
    }

    /// Sets what the read receipt of a received message says: 0, that it was taken, unless set.
    /// The receipt leaves when work is next polled after the message's event, so this is to be
    /// called right with that event.
    ///
    /// # Errors
    /// `Unknown`; `WrongState` when no receipt is asked for, or when it is sent already.
    pub fn set_receipt(&mut self, task: TaskId, code: u32) -> Result<(), CommandError> {
        recorded!(self, SetReceipt { task, code } => self.set_receipt(task, code));
        let t = self.find_task(task)?;
        let row = self.task(t);
        let owes = TaskFlags::INCOMING | TaskFlags::RECEIPT | TaskFlags::USER;
        let over = TaskFlags::RECEIPT_DONE | TaskFlags::ORPHAN;
        if !row.flags.contains(owes) || row.flags.intersects(over) {
            return Err(CommandError::WrongState("no receipt to be sent"));
        }
        row.receipt_code = code;
        Ok(())
    }

    fn check_slot(&mut self, slot: SlotId) -> Result<(), CommandError> {
        match self.s.tables().slots.get(slot.0 as usize) {
            Some(row) if row.usage == SlotUse::Reserved => Ok(()),
            _ => Err(CommandError::BadSlot(slot.0)),
        }
    }

    /// Bytes of the message, when it is one that can ever be sent.
    fn check_message(&mut self, c: u32, message: &Message<'_>) -> Result<u64, CommandError> {
        let config = &self.g.config;
        let (own_max, data_max) = (config.header_max, config.inline_data_max);
        let payload_max = config.payload_max;
        match message.slot {
            Some(slot) => self.check_slot(slot)?,
            None if message.header_len > 0 || message.slot_data > 0 => {
                return Err(CommandError::BadValue(
                    "header or copied data without a slot",
                ));
            }
            None => {}
        }
        let n = self.connection(c).nexus;
        let max = if n == NONE {
            own_max
        } else {
            own_max.min(self.nexus(n).peer_header_max)
        };
        if message.header_len > max {
            let len = message.header_len.into();
            return Err(CommandError::TooLong {
                what: Length::Header,
                len,
                max: max.into(),
            });
        }
        let gathered = self.check_segments(c, message.data, Length::Data)?;
        let data = gathered + u64::from(message.slot_data);
        let max = if message.slot_data > 0 {
            data_max.into()
        } else {
            payload_max
        };
        if data > max {
            return Err(CommandError::TooLong {
                what: Length::Data,
                len: data,
                max,
            });
        }
        let all = data + u64::from(message.header_len);
        let row = self.connection(c);
        let max = row.peer_depth_bytes;
        if row.reported_up && all > max && self.uses_credits(c) {
            return Err(CommandError::TooLong {
                what: Length::Data,
                len: all,
                max,
            });
        }
        Ok(all)
    }

    pub(crate) fn check_segments(
        &mut self,
        c: u32,
        segments: &[Segment],
        what: Length,
    ) -> Result<u64, CommandError> {
        if segments.is_empty() {
            return Ok(0);
        }
        let n = self.connection(c).nexus;
        let peer = if n == NONE || what == Length::Local {
            u16::MAX
        } else if what != Length::OfferedBuffers {
            self.nexus(n).peer_in_sges
        } else {
            self.nexus(n).peer_out_sges
        };
        let own = self.g.config.sge_max;
        let max = own.min(peer);
        let len = segments.len() as u64;
        if len > max.into() {
            return Err(CommandError::TooLong {
                what: Length::Segments,
                len,
                max: max.into(),
            });
        }
        if segments.iter().any(|s| s.len == 0) {
            return Err(CommandError::BadValue("segment of zero bytes"));
        }
        let total = segments.iter().map(|s| u64::from(s.len)).sum();
        let max = self.g.config.payload_max;
        if total > max {
            return Err(CommandError::TooLong {
                what,
                len: total,
                max,
            });
        }
        Ok(total)
    }

    pub(crate) fn check_queue(&mut self, c: u32, bytes: u64) -> Result<(), CommandError> {
        let (messages_max, bytes_max) = (self.g.config.queue_messages, self.g.config.queue_bytes);
        let flow_control = self.uses_credits(c);
        let row = self.connection(c);
        let too_many = row.queued_messages >= messages_max;
        let too_much = row.queued_bytes > 0 && row.queued_bytes + bytes > bytes_max;
        if !too_many && !too_much {
            let all = self.g.queued_bytes;
            if all > 0 && all + bytes > self.g.config.queue_bytes_all {
                self.block(c, Lack::ROW);
                return Err(CommandError::Full(Resource::Queue));
            }
            return Ok(());
        }
        row.wants_writable = true;
        if flow_control && row.peer_messages <= 0 {
            return Err(CommandError::NoCredit);
        }
        Err(CommandError::Full(Resource::Queue))
    }

    /// Fills in what is sent. On an error nothing is held.
    fn fill_task(
        &mut self,
        c: u32,
        t: u32,
        message: &Message<'_>,
        into: Option<&[Segment]>,
    ) -> Result<(), CommandError> {
        let slot = match message.slot {
            Some(slot) => slot.0,
            None => {
                let n = self.connection(c).nexus;
                self.take_slot(n, into.is_none(), SlotUse::Taken)?
            }
        };
        let out = match self.take_list(message.data) {
            Ok(out) => out,
            Err(error) => {
                if message.slot.is_none() {
                    self.free_slot(slot);
                }
                return Err(error);
            }
        };
        let into = match into.map(|into| self.take_list(into)).transpose() {
            Ok(into) => into,
            Err(error) => {
                self.give_list(out);
                if message.slot.is_none() {
                    self.free_slot(slot);
                }
                return Err(error);
            }
        };
        self.s.tables().slots[slot as usize].usage = SlotUse::Taken;
        let n = self.connection(c).nexus;
        self.charge(slot, n);
        let row = self.task(t);
        row.slot = slot;
        row.header_len = message.header_len;
        row.slot_data = message.slot_data;
        row.out = out;
        if let Some(into) = into {
            row.into = into;
        }
        row.user = message.user;
        row.flags.set(TaskFlags::PROMPT, message.prompt);
        Ok(())
    }

    /// Copies a segment list into a task, with extents when it is long.
    pub(crate) fn take_list(&mut self, segments: &[Segment]) -> Result<SegmentList, CommandError> {
        let mut list = SegmentList::EMPTY;
        if segments.is_empty() {
            return Ok(list);
        }
        list.count = segments.len() as u16;
        list.total = segments.iter().map(|s| u64::from(s.len)).sum();
        let (inline, rest) = segments.split_at(segments.len().min(SEGMENTS_INLINE));
        list.inline[..inline.len()].copy_from_slice(inline);
        let t = self.s.tables();
        // Chained from the back, so that each new extent only has to know its follower.
        for chunk in rest.chunks(crate::entries::Extent::SEGMENTS).rev() {
            let Some(e) = self.g.extents.take(t.extents) else {
                self.give_list(list);
                return Err(CommandError::Full(Resource::Extents));
            };
            let row = &mut t.extents[e as usize];
            row.segments[..chunk.len()].copy_from_slice(chunk);
            row.next_free = list.extent;
            list.extent = e;
        }
        Ok(list)
    }

    pub(crate) fn give_list(&mut self, list: SegmentList) {
        let t = self.s.tables();
        let mut e = list.extent;
        while e != NONE {
            let next = t.extents[e as usize].next_free;
            self.g.extents.give(t.extents, e);
            e = next;
        }
    }

    /// Takes a row for an outgoing message.
    pub(crate) fn take_task(&mut self, c: u32) -> Result<u32, CommandError> {
        let t = self.s.tables();
        let Some(index) = self.g.tasks.take(t.tasks) else {
            self.block(c, Lack::ROW);
            return Err(CommandError::Full(Resource::Tasks));
        };
        let row = &mut t.tasks[index as usize];
        row.reset();
        Ok(index)
    }

    pub(crate) fn give_task(&mut self, t: u32) {
        let tables = self.s.tables();
        self.g.tasks.give(tables.tasks, t);
    }
}

/// What a command lacked that was refused.
fn lacking(error: CommandError, slot: Lack) -> Lack {
    match error {
        CommandError::Full(Resource::SendSlots) => slot,
        _ => Lack::ROW,
    }
}

fn shape(message: &Message<'_>, options: &RequestOptions<'_>) -> Shape {
    Shape {
        header_len: message.header_len,
        slot_data: message.slot_data,
        out: Listed::of(message.data),
        into: Listed::of(options.into),
        real: options.into.first().is_some_and(|first| first.addr != 0),
        force_read: options.force_read,
        force_write: options.force_write,
    }
}
