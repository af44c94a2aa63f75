//! Messages that their sender no longer wants: what is said of them, and what is done about it
//! where they came to (PROTOCOL.md 9.7, 12.2).

use super::Endpoint;
use super::session::Keep;
use crate::entries::{Connection, Direct, Frames, TaskEvents, TaskFlags};
use crate::ids::{NONE, TaskId};
use crate::mutant::mutated;
use crate::state::connection::State as ConnectionState;
use crate::state::task::{Input, State};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{Cancel, Extensions, Kind, Request, Violation, status};

impl Connection {
    /// Whether requests can be answered.
    fn answers(&self) -> bool {
        matches!(
            self.state,
            ConnectionState::Online | ConnectionState::FinWait1
        )
    }

    /// The peer takes CANCEL_REQ as long as it has no FIN of this side.
    fn can_withdraw(&self) -> bool {
        match self.state {
            ConnectionState::Online => true,
            ConnectionState::FinWait1 => self.frames.contains(Frames::FIN_REQ),
            _ => false,
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// A message's deadline passed: a peer that was not told of it may still be at it.
    pub(crate) fn tell_expired(&mut self, t: u32) {
        let n = self.task(t).nexus;
        if n != NONE && !self.nexus(n).can(Extensions::DEADLINE) {
            self.tell_withdrawn(t);
        }
    }

    /// A message that the peer has, and that it may not have answered, has its outcome: the peer is
    /// told, if it understands that.
    pub(crate) fn tell_withdrawn(&mut self, t: u32) {
        let row = self.task(t);
        let receipt = TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW;
        // Of a direct READ or WRITE the peer knows nothing.
        let waits =
            (row.kind == Kind::MsgReq || row.flags.intersects(receipt)) && row.direct == Direct::No;
        let told = waits && row.state == State::Orphaned && row.answer == NONE;
        let c = row.connection;
        if !told
            || row
                .flags
                .intersects(TaskFlags::WITHDRAWN | TaskFlags::ORPHAN)
        {
            return;
        }
        let n = self.connection(c).nexus;
        if n == NONE || !self.connection(c).can_withdraw() {
            return;
        }
        if !self.nexus(n).can(Extensions::CANCEL) && !mutated!(self.g, CancelUnasked) {
            return;
        }
        let tables = self.s.tables();
        tables.tasks[t as usize].flags.insert(TaskFlags::WITHDRAWN);
        let row = &mut tables.connections[c as usize];
        queue_push!(
            tables.tasks,
            row.withdrawn_head,
            row.withdrawn_tail,
            hold_next,
            t
        );
        row.frames.insert(Frames::CANCEL_REQ);
        self.mark_tx(c);
    }

    /// Before a connection's next control frame is chosen: CANCEL_REQ stays due only for a message
    /// that the peer has not answered meanwhile.
    pub(crate) fn skip_answered(&mut self, c: u32) {
        loop {
            let row = self.connection(c);
            let t = row.withdrawn_head;
            if t == NONE {
                row.frames.remove(Frames::CANCEL_REQ);
                return;
            }
            if self.task(t).state == State::Orphaned {
                return;
            }
            self.pop_withdrawn(c);
            self.try_free(t);
        }
    }

    fn pop_withdrawn(&mut self, c: u32) {
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        let t = queue_pop!(
            tables.tasks,
            row.withdrawn_head,
            row.withdrawn_tail,
            hold_next
        );
        tables.tasks[t as usize].flags.remove(TaskFlags::WITHDRAWN);
    }

    /// All of them, when nothing is said on a connection any more.
    pub(crate) fn flush_withdrawn(&mut self, c: u32) {
        while self.connection(c).withdrawn_head != NONE {
            let t = self.connection(c).withdrawn_head;
            self.pop_withdrawn(c);
            self.try_free(t);
        }
    }

    /// Payload of the CANCEL_REQ that goes next.
    pub(crate) fn cancel_payload(&mut self, c: u32, payload: &mut [u8]) -> u16 {
        let t = self.connection(c).withdrawn_head;
        let serial = self.task(t).serial;
        let row = self.connection(c);
        let cancel = Cancel {
            sn: 0,
            result: 0,
            requester: row.own_session,
            responder: row.peer_session,
            serial,
        };
        let len = cancel.encode(payload) as u16;
        self.pop_withdrawn(c);
        if self.connection(c).withdrawn_head != NONE {
            self.connection(c).frames.insert(Frames::CANCEL_REQ);
        }
        self.g.counters.cancels_sent += 1;
        len
    }

    /// CANCEL_REQ.
    pub(crate) fn on_cancel_request(
        &mut self,
        n: u32,
        request: &Request<'_>,
    ) -> Result<Keep, Violation> {
        let cancel = request.cancel()?;
        if !self.nexus(n).can(Extensions::CANCEL) {
            // Meant for something that a libxio offers in name only: it dies of an answer.
            self.g.counters.cancels_ignored += 1;
            return Ok(Keep::No);
        }
        self.g.counters.cancels_received += 1;
        let Some(c) = self.session_connection(n, cancel.responder, request.kind)? else {
            return Ok(Keep::No);
        };
        if !self.connection(c).answers() {
            self.g.counters.late += 1;
            return Ok(Keep::No);
        }
        self.connection(c).heard = true;
        if let Some(t) = self.received_with(c, cancel.serial) {
            self.withdraw(c, t);
        }
        Ok(Keep::No)
    }

    /// The received message of a connection with this number, if it is not over.
    fn received_with(&mut self, c: u32, serial: u64) -> Option<u32> {
        let mut t = self.connection(c).tasks;
        while t != NONE {
            let row = self.task(t);
            let incoming = row.flags.contains(TaskFlags::INCOMING);
            let (same, next) = (row.serial == serial, row.next);
            if incoming && (same || mutated!(self.g, CancelledOther)) {
                return Some(t);
            }
            t = next;
        }
        None
    }

    /// The sender of a received message does not want it any more. What the user has not seen it
    /// never sees; what it has it is told of.
    fn withdraw(&mut self, c: u32, t: u32) {
        let unseen = self.is_unseen(t);
        let row = self.task(t);
        match row.state {
            State::Fetching if row.into.count == 0 => {
                row.events.remove(TaskEvents::WAITING);
                self.trace.mark("cancelled before it was fetched");
                self.g.counters.cancelled_unseen += 1;
                self.refuse_payload(t, status::MSG_CANCELED);
            }
            // Told of with the message itself, when it is here.
            State::Fetching => row.flags.insert(TaskFlags::GIVEN_UP),
            // So is what waits behind another, with memory that the user gave for it.
            State::Delivered if row.flags.contains(TaskFlags::HELD_BACK) && !unseen => {
                row.flags.insert(TaskFlags::GIVEN_UP);
            }
            State::Delivered if unseen => {
                self.trace.mark("cancelled before it was delivered");
                self.g.counters.cancelled_unseen += 1;
                self.answer_unseen(c, t, status::MSG_CANCELED);
            }
            State::Delivered
                if row.kind == Kind::MsgReq && !row.flags.contains(TaskFlags::GIVEN_UP) =>
            {
                row.flags.insert(TaskFlags::GIVEN_UP);
                self.trace.mark("cancelled in the user's hands");
                self.task_event(t, TaskEvents::GIVEN_UP);
            }
            _ => {}
        }
    }

    /// Whether the user has not heard of a received message, and no memory of its is in it.
    fn is_unseen(&mut self, t: u32) -> bool {
        let row = self.task(t);
        let untold =
            row.events.contains(TaskEvents::MAIN) || row.flags.contains(TaskFlags::HELD_BACK);
        untold && !row.has_memory()
    }

    /// Answers a message for a user that never sees it.
    pub(crate) fn answer_unseen(&mut self, c: u32, t: u32, code: u32) {
        self.disarm(Timer::Task(t));
        let shown = mutated!(self.g, CancelledShown);
        let row = self.task(t);
        if !shown {
            row.events.remove(TaskEvents::MAIN);
        }
        row.events.remove(TaskEvents::GIVEN_UP);
        row.flags.remove(TaskFlags::USER);
        let receipt = TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW;
        let owes = row.flags.intersects(receipt) && !row.flags.contains(TaskFlags::RECEIPT_DONE);
        if owes {
            row.receipt_code = code;
        }
        if row.kind == Kind::MsgReq {
            self.answer_with_status(c, t, code);
            return;
        }
        self.task_input(t, Input::Release);
        self.owe(c, t);
        if owes {
            self.queue_response(c, t);
        }
        self.try_free(t);
    }

    /// Answers a request, for the user, with a status and nothing else.
    fn answer_with_status(&mut self, c: u32, t: u32, code: u32) {
        self.task_input(t, Input::Respond);
        self.connection(c).unanswered -= 1;
        let row = self.task(t);
        row.status = code;
        row.flags.insert(TaskFlags::RESPONSE | TaskFlags::SILENT);
        row.transfer = crate::entries::Transfer::NONE;
        self.leave_responses(c, t);
        self.queue_response(c, t);
    }

    /// A request that its requester gave up is given back unanswered: the answer says so, as the
    /// requester waits for one.
    pub(crate) fn answer_given_up(&mut self, t: u32) -> bool {
        let row = self.task(t);
        let given_up = row.flags.contains(TaskFlags::GIVEN_UP) && row.state == State::Delivered;
        let (c, orphan) = (row.connection, row.flags.contains(TaskFlags::ORPHAN));
        if !given_up || orphan || row.kind != Kind::MsgReq {
            return false;
        }
        if !self.connection(c).answers() {
            return false;
        }
        let row = self.task(t);
        row.flags.remove(TaskFlags::USER);
        row.events.remove(TaskEvents::GIVEN_UP);
        self.answer_with_status(c, t, status::MSG_CANCELED);
        true
    }

    /// A received message waits for its user, no longer than its sender waits for the answer.
    pub(crate) fn await_user(&mut self, t: u32) {
        let row = self.task(t);
        let timed = row.flags.contains(TaskFlags::TIMED) && !row.has_memory();
        if timed && !mutated!(self.g, ExpiredShown) {
            let row = self.task(t);
            let at = Instant::from_nanos(row.expires);
            self.arm(Timer::Task(t), at);
        }
    }

    /// Whether a message is not to be shown any more, which its timer is about to see to.
    pub(crate) fn is_overdue(&mut self, t: u32) -> bool {
        let now = self.g.now.as_nanos();
        let row = self.task(t);
        row.flags.contains(TaskFlags::TIMED) && row.timer != NONE && row.expires <= now
    }

    /// The sender of a received message waits no longer: what the user has not heard of is
    /// answered instead of shown.
    pub(crate) fn sender_is_gone(&mut self, t: u32) {
        let row = self.task(t);
        let c = row.connection;
        if row.state != State::Delivered || c == NONE {
            return;
        }
        if self.connection(c).answers() && self.is_unseen(t) {
            self.trace.mark("expired before it was delivered");
            self.g.counters.expired_unseen += 1;
            self.answer_unseen(c, t, status::TIMEOUT);
        }
        // What stands behind it may have waited for this.
        self.mark_events(c);
    }

    /// Until when the sender of a received message waits for it, as far as it said so: at least so
    /// long after its outcome there its answer means nothing (PROTOCOL.md 12.2).
    ///
    /// # Errors
    /// `Unknown`.
    pub fn deadline_of(&self, task: TaskId) -> Result<Option<Instant>, crate::CommandError> {
        let row = self.s.view().tasks.get(task.index());
        let row = row.filter(|row| row.generation == task.generation());
        let row = row.ok_or(crate::CommandError::Unknown)?;
        let timed = row.flags.contains(TaskFlags::TIMED);
        Ok(timed.then(|| Instant::from_nanos(row.expires)))
    }

    /// Whether a request's own deadline is told to its responder: microseconds that are left, 0
    /// for none.
    pub(crate) fn wait_told(&mut self, n: u32, t: u32) -> u64 {
        let row = self.task(t);
        let receipt = TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW;
        // What waits for no answer has its outcome when it is sent: it is not to be lost then.
        let waits = row.kind == Kind::MsgReq || row.flags.intersects(receipt);
        if row.timer == NONE || !waits || !self.nexus(n).can(Extensions::DEADLINE) {
            return 0;
        }
        let at = self.armed_at(Timer::Task(t)).map_or(0, Instant::as_nanos);
        let nanos = if mutated!(self.g, WaitStretched) {
            1
        } else {
            1000
        };
        let left = at.saturating_sub(self.g.now.as_nanos()).div_ceil(nanos);
        self.g.counters.deadlines_sent += 1;
        left.clamp(1, crate::wire::WAIT_MAX)
    }
}
