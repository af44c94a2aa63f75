//! Requests, one-ways, responses and receipts from peers (PROTOCOL.md 9).

use super::Endpoint;
use super::session::Keep;
use super::snapshot::count;
use crate::entries::{Connection, Ending, Frames, Task, TaskEvents, TaskFlags};
use crate::error::{Failure, Reason};
use crate::ids::NONE;
use crate::mutant::mutated;
use crate::state::connection::{Input as ConnectionInput, State as ConnectionState};
use crate::state::task::{Action, Input, State};
use crate::storage::Storage;
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    Framing, Kind, Op, Request, Response, SessionFields, SessionFlags, TransportFlags, Violation,
    What, status,
};

impl Connection {
    /// The peer takes ACK_REQ as long as it has no FIN of this side.
    fn can_return_credits(&self) -> bool {
        let before_fin = self.frames.contains(Frames::FIN_REQ);
        match self.state {
            ConnectionState::Online => true,
            ConnectionState::FinWait1 => before_fin,
            _ => false,
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// A violation inside one session ends that connection only.
    pub(crate) fn break_session(&mut self, c: u32, what: What, offset: u32, value: u64) -> Keep {
        self.g.counters.violations += 1;
        let reason = Reason::Violation(Violation::new(what, offset, value));
        let n = self.connection(c).nexus;
        self.connection_input(c, ConnectionInput::Broken, Some(reason));
        if n != NONE && self.nexus(n).connection_count == 0 {
            // Nobody else is on the transport connection, so the peer may as well hear of it.
            self.nexus_input(n, crate::state::nexus::Input::Fail, Some(reason));
        }
        Keep::No
    }

    /// MSG_REQ or ONE_WAY_REQ.
    pub(crate) fn on_message(
        &mut self,
        n: u32,
        slot: u32,
        request: &Request<'_>,
        wait: u64,
    ) -> Result<Keep, Violation> {
        let Some(c) = self.session_connection(n, request.session.dest_session, request.kind)?
        else {
            return Ok(Keep::No);
        };
        let session = &request.session;
        let row = self.connection(c);
        // A refused client has no user here that could take it.
        if !Self::receives(row.state) || row.silent {
            count(&mut row.traffic.late, 1);
            self.g.counters.late += 1;
            return Ok(Keep::No);
        }
        if session.sn != row.req_expected {
            return Ok(self.break_session(c, What::SessionSn, 32, session.sn.into()));
        }
        row.req_expected = session.sn.wrapping_add(1);
        row.heard = true;
        let again = row.any_serial && session.serial <= row.last_serial;
        self.add_app_credits(c, session);
        if again {
            // As libxio does with what comes twice: no answer, and no harm.
            let size =
                u64::from(request.head.header_len) + request.head.data_len + request.out_total();
            self.owe_dropped(c, size);
            count(&mut self.connection(c).traffic.late, 1);
            self.g.counters.late += 1;
            return Ok(Keep::No);
        }
        let row = self.connection(c);
        row.any_serial = true;
        row.last_serial = session.serial;
        if request.out_total() > self.g.config.payload_max {
            return Ok(self.break_session(c, What::PayloadTooLong, 56, request.out_total()));
        }
        self.arrive(n, c, slot, request, wait);
        Ok(Keep::Yes)
    }

    fn arrive(&mut self, n: u32, c: u32, slot: u32, request: &Request<'_>, wait: u64) {
        let t = slot;
        let head = &request.head;
        let stream = self.nexus(n).framing != Framing::Rdma;
        let expires = self.g.now.after(core::time::Duration::from_micros(wait));
        let tables = self.s.tables();
        let row = &mut tables.tasks[t as usize];
        row.reset();
        row.expires = expires.as_nanos();
        row.kind = request.kind;
        row.nexus = n;
        row.serial = request.session.serial;
        row.peer_tid = head.ltid;
        row.header_at = request.header_at;
        row.rx_header_len = head.header_len;
        row.data_at = request.data_at;
        row.data_len = head.data_len;
        row.flags = TaskFlags::INCOMING | TaskFlags::USER;
        row.flags.set(TaskFlags::TIMED, wait > 0);
        row.flags.set(
            TaskFlags::LAST,
            head.flags.contains(TransportFlags::LAST_IN_BATCH),
        );
        row.flags.set(
            TaskFlags::FORCE_WRITE,
            head.flags.contains(TransportFlags::FORCE_WRITE),
        );
        let flags = request.session.flags;
        let receipt_now = flags.contains(SessionFlags::IMM_READ_RECEIPT);
        let receipt = receipt_now || flags.contains(SessionFlags::REQUEST_READ_RECEIPT);
        row.flags.set(TaskFlags::RECEIPT, receipt);
        row.flags.set(TaskFlags::RECEIPT_NOW, receipt_now);
        if head.in_sges > 0 {
            row.offer_count = head.in_sges;
            row.offer_total = request.in_total();
            row.offer_at = 96;
            let first = request.in_sge(0);
            let reachable = first.addr != 0 && first.len != 0 && (stream || first.rkey != 0);
            row.offer_write = head.in_op == Op::Write && reachable;
        }
        self.link_task(c, t);
        let row = self.connection(c);
        row.unanswered += u32::from(request.kind == Kind::MsgReq);
        row.traffic.messages_received += 1;
        self.g.counters.messages_received += 1;
        if head.out_op == Op::Read && request.out_total() > 0 {
            self.start_fetch(n, c, t, request);
            return;
        }
        self.task_input(t, Input::Arrive);
        if receipt_now {
            self.queue_response(c, t);
        }
        self.deliver(c, t);
    }

    /// Tells the user of a received message, behind those that are still being fetched.
    #[inline]
    pub(crate) fn deliver(&mut self, c: u32, t: u32) {
        self.await_user(t);
        if self.connection(c).hold_head == NONE || mutated!(self.g, Overtaken) {
            self.task_event(t, TaskEvents::MAIN);
        } else {
            self.hold_back(c, t);
        }
    }

    /// MSG_RSP or ONE_WAY_RSP: an answer, a receipt, or both.
    pub(crate) fn on_response(
        &mut self,
        n: u32,
        slot: u32,
        response: &Response<'_>,
    ) -> Result<Keep, Violation> {
        let Some(t) = self.answered_task(n, response)? else {
            self.end_hold(n, response);
            return Ok(self.answer_to_nobody(n, slot, response));
        };
        let session = &response.session;
        let c = self.task(t).connection;
        let row = self.connection(c);
        if session.sn != row.rsp_expected {
            return Ok(self.break_session(c, What::SessionSn, 32, session.sn.into()));
        }
        row.rsp_expected = session.sn.wrapping_add(1);
        row.heard = true;
        self.add_app_credits(c, session);
        if session.serial != self.task(t).serial {
            return Ok(self.break_session(c, What::Serial, 24, session.serial));
        }
        let first = session.flags.contains(SessionFlags::RECEIPT_FIRST);
        let last = session.flags.contains(SessionFlags::RECEIPT_LAST);
        if !first && !last {
            let value = session.flags.bits().into();
            return Ok(self.break_session(c, What::ResponseFlags, 20, value));
        }
        self.note_answered(c, session.serial);
        if response.kind == Kind::OneWayRsp {
            self.answer_one_way(t, session.receipt_result);
            return Ok(Keep::No);
        }
        if first {
            if self.task(t).flags.contains(TaskFlags::RECEIPT_DONE) {
                return Ok(self.break_session(c, What::ReceiptTwice, 20, session.serial));
            }
            self.receipt_of_request(t, session.receipt_result);
        }
        if !last {
            return Ok(Keep::No);
        }
        Ok(self.answer(n, c, t, slot, response))
    }

    /// The outstanding message that a response answers. `None`: answered before, late.
    fn answered_task(&mut self, n: u32, response: &Response<'_>) -> Result<Option<u32>, Violation> {
        let named = self.named_task(n, response);
        let waits = |row: &Task| matches!(row.state, State::Sent | State::Orphaned);
        if let Some(t) = named.filter(|&t| waits(self.task(t))) {
            return Ok(Some(t));
        }
        let nexus = self.nexus(n);
        if nexus.late_allowed || nexus.late_due > 0 {
            nexus.late_due = nexus.late_due.saturating_sub(1);
            self.g.counters.late += 1;
            return Ok(None);
        }
        let rtid = response.head.rtid;
        Err(Violation::new(What::UnknownTask, 66, rtid.into()))
    }

    /// The message of this side that a response names, whatever became of it since.
    fn named_task(&mut self, n: u32, response: &Response<'_>) -> Option<u32> {
        let rtid = response.head.rtid;
        let t = tid::index(rtid);
        if tid::is_control(rtid) || t < self.g.config.rx_slots {
            return None;
        }
        let kind = if response.kind == Kind::MsgRsp {
            Kind::MsgReq
        } else {
            Kind::OneWayReq
        };
        let row = self.s.tables().tasks.get(t as usize)?;
        let known = tid::matches(rtid, row.generation)
            && row.nexus == n
            && row.kind == kind
            && row.direct == crate::entries::Direct::No;
        known.then_some(t)
    }

    /// The answer to a message whose connection is over: the peer is done with its buffers.
    fn end_hold(&mut self, n: u32, response: &Response<'_>) {
        let last = response.kind == Kind::OneWayRsp
            || (response.session.flags).contains(SessionFlags::RECEIPT_LAST);
        let Some(t) = self.named_task(n, response).filter(|_| last) else {
            return;
        };
        let row = self.task(t);
        if row.state == State::Ended && row.flags.contains(TaskFlags::PEER_HOLDS) {
            row.flags.remove(TaskFlags::PEER_HOLDS);
            self.maybe_return(t);
            self.try_free(t);
        }
    }

    /// The data of a response that nobody waits for any more is not READ. If it was to be, the peer
    /// is told that its buffers are free; the frame's slot is the place of the READ_ACK until then.
    fn answer_to_nobody(&mut self, n: u32, slot: u32, response: &Response<'_>) -> Keep {
        if response.head.op != Op::Read || self.nexus(n).framing != Framing::Rdma {
            return Keep::No;
        }
        let row = self.task(slot);
        row.reset();
        row.kind = response.kind;
        row.flags = TaskFlags::INCOMING | TaskFlags::ORPHAN;
        row.nexus = n;
        row.peer_tid = response.head.ltid;
        self.task_input(slot, Input::Arrive);
        self.task_input(slot, Input::Release);
        self.trace.mark("late response acknowledged");
        self.queue_read_ack(slot);
        self.try_free(slot);
        Keep::Yes
    }

    fn answer_one_way(&mut self, t: u32, code: u32) {
        let row = self.task(t);
        row.flags.remove(TaskFlags::PEER_HOLDS);
        let asked = row.flags.contains(TaskFlags::RECEIPT);
        match self.task_input(t, Input::Answer) {
            Action::Complete => {
                let ending = if asked || code != 0 {
                    Ending::Receipt(code)
                } else {
                    Ending::Good
                };
                self.finish(t, ending);
            }
            _ => self.late(t),
        }
    }

    fn receipt_of_request(&mut self, t: u32, code: u32) {
        let row = self.task(t);
        row.flags.insert(TaskFlags::RECEIPT_DONE);
        row.receipt_code = code;
        let asked = row.flags.contains(TaskFlags::RECEIPT);
        if self.task_input(t, Input::Receipt) == Action::Receipt && asked {
            self.task_event(t, TaskEvents::RECEIPT);
        }
    }

    /// The real answer of a request.
    fn answer(&mut self, n: u32, c: u32, t: u32, slot: u32, response: &Response<'_>) -> Keep {
        let head = &response.head;
        if head.op == Op::Read {
            return self.fetch_answer(n, c, t, slot, response);
        }
        let row = self.task(t);
        let room = row.into.total;
        let offered = row.into.count > 0 && row.into.inline[0].addr != 0;
        let fits = offered && head.data_len <= room && head.sges <= row.into.count;
        if head.op == Op::Write && !fits {
            // More than was offered: nobody knows what it overwrote.
            return self.break_session(c, What::AnswerTooLong, 92, head.data_len);
        }
        row.flags.remove(TaskFlags::PEER_HOLDS);
        let size = head.data_len + u64::from(head.header_len);
        let stream = self.nexus(n).framing != Framing::Rdma;
        if stream && head.op == Op::Write && head.status == 0 && head.data_len > 0 {
            return self.stream_answer(n, c, t, slot, response);
        }
        if self.task_input(t, Input::Answer) != Action::Complete {
            self.owe_dropped(c, size);
            self.late(t);
            return Keep::No;
        }
        if head.status != 0 {
            self.owe_dropped(c, size);
            let row = self.task(t);
            // The peer kept the time that it was told.
            let timed = head.status == status::TIMEOUT && row.timer != NONE;
            let failed = Ending::Failed(Failure::PeerStatus(head.status));
            self.finish(t, if timed { Ending::TimedOut } else { failed });
            return Keep::No;
        }
        self.keep_answer(t, slot, response);
        let row = self.task(t);
        row.data_len = head.data_len;
        row.in_segments = head.op == Op::Write;
        row.flags.insert(TaskFlags::USER);
        self.finish(t, Ending::Good);
        Keep::Yes
    }

    /// The answer stays in its slot until the user releases it.
    pub(crate) fn keep_answer(&mut self, t: u32, slot: u32, response: &Response<'_>) {
        let row = self.task(t);
        row.answer = slot;
        row.header_at = response.header_at;
        row.rx_header_len = response.head.header_len;
        row.data_at = response.data_at;
    }

    /// An answer after the outcome: counted and dropped, its message's row is free now.
    pub(crate) fn late(&mut self, t: u32) {
        self.g.counters.late += 1;
        self.count_on(t, |traffic| count(&mut traffic.late, 1));
        self.trace.mark("late answer dropped");
        self.maybe_return(t);
        self.try_free(t);
    }

    /// The peer returns application credits.
    #[inline]
    fn add_app_credits(&mut self, c: u32, session: &SessionFields) {
        if !self.uses_credits(c) {
            return;
        }
        let (messages, bytes) = (session.credits_msgs, session.credits_bytes);
        if messages == 0 && bytes == 0 {
            return;
        }
        let row = self.connection(c);
        row.peer_messages = row.peer_messages.saturating_add(messages.into());
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        row.peer_bytes = row.peer_bytes.saturating_add(bytes);
        self.mark_tx(c);
    }

    /// ACK_REQ: credits without a message; it takes a message credit itself, which is owed back.
    pub(crate) fn on_ack_request(&mut self, c: u32, request: &Request<'_>) {
        let session = &request.session;
        let row = self.connection(c);
        if session.sn != row.req_expected {
            self.break_session(c, What::SessionSn, 32, session.sn.into());
            return;
        }
        row.req_expected = session.sn.wrapping_add(1);
        if self.uses_credits(c) {
            self.connection(c).owed_messages += 1;
        }
        self.add_app_credits(c, session);
    }

    /// Takes the application credits that a message needs.
    #[inline]
    pub(crate) fn take_app_credits(&mut self, c: u32, t: u32) {
        if !self.uses_credits(c) {
            return;
        }
        let row = self.task(t);
        let size = row.out.total + u64::from(row.slot_data) + u64::from(row.header_len);
        let row = self.connection(c);
        row.peer_messages -= 1;
        row.peer_bytes = row.peer_bytes.saturating_sub_unsigned(size);
    }

    /// What the user gave back is owed to the peer as credit.
    pub(crate) fn owe(&mut self, c: u32, t: u32) {
        if !self.uses_credits(c) {
            return;
        }
        let row = self.task(t);
        let size = row.data_len + u64::from(row.rx_header_len);
        self.owe_dropped(c, size);
    }

    /// A message of the peer's left without going through the user's hands.
    pub(crate) fn owe_dropped(&mut self, c: u32, size: u64) {
        if !self.uses_credits(c) {
            return;
        }
        let (messages_max, bytes_max) = (self.g.config.depth_messages, self.g.config.depth_bytes);
        let row = self.connection(c);
        row.owed_messages += 1;
        row.owed_bytes += size;
        let much = row.owed_messages >= messages_max / 2 || row.owed_bytes >= bytes_max / 2;
        if much && row.can_return_credits() {
            row.frames.insert(Frames::ACK_REQ);
            self.mark_tx(c);
        }
    }

    /// Returns what is owed although it is less than half, now and then: a message that needs more
    /// than half of all there is would wait for ever, when nothing else goes back. One message
    /// alone may be owed for an ACK_REQ, and is not worth another.
    pub(crate) fn return_credits(&mut self, c: u32) {
        let row = self.connection(c);
        let owes = row.owed_messages > 1 || row.owed_bytes > 0;
        if owes && self.uses_credits(c) && self.connection(c).can_return_credits() {
            self.connection(c).frames.insert(Frames::ACK_REQ);
            self.mark_tx(c);
        }
    }

    /// A request's credit goes back in the response that is being written.
    #[inline]
    pub(crate) fn owe_for_request(&mut self, c: u32, t: u32) {
        if !self.uses_credits(c) {
            return;
        }
        let row = self.task(t);
        let size = row.data_len + u64::from(row.rx_header_len);
        let row = self.connection(c);
        row.owed_messages += 1;
        row.owed_bytes += size;
    }
}
