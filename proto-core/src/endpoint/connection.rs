//! Life of connections: up, close by FIN from either side, loss, and the way out: every message
//! gets its outcome, every buffer comes back, then `Closed`. Table in `state/connection.rs`,
//! description in PROTOCOL.md 8.

use super::Endpoint;
use super::fit::Misfit;
use super::reconnect::for_each_oldest_first;
use crate::entries::{Awaited, ConnectionEvents, Ending, Frames, Task, TaskFlags, Transfer};
use crate::error::{Length, Reason, Step};
use crate::ids::NONE;
use crate::mutant::mutated;
use crate::state::connection::{self, Action, Input, State};
use crate::state::task::{Action as TaskAction, Input as TaskInput, State as TaskState};
use crate::state::{nexus, session};
use crate::storage::Storage;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{Framing, Kind};

/// The list of a transport connection in which a message stood.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Transfers {
    None,
    Read,
    Acknowledge,
}

impl Task {
    /// Whether no READ of its answer is under way, and no more will be when its connection ends.
    fn read_ends_here(&self) -> bool {
        let Transfer {
            posted,
            done,
            total,
        } = self.transfer;
        let fetched = matches!(
            self.state,
            TaskState::AnswerFetching | TaskState::Orphaned | TaskState::Ended
        );
        fetched
            && !self.flags.contains(TaskFlags::USER)
            && self.answer != NONE
            && done == posted
            && total > 0
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    pub(crate) fn connection_input(&mut self, c: u32, input: Input, reason: Option<Reason>) {
        let row = self.connection(c);
        let from = row.state;
        let (next, action) = connection::lookup(from, input);
        row.state = next;
        if action == Action::Ignored {
            self.g.counters.ignored_inputs += 1;
            return;
        }
        // The first reason stands: a loss after our own close is still our close.
        if let Some(reason) = reason
            && !row.reason_known
        {
            row.reason_known = true;
            row.reason = reason;
        }
        self.trace
            .transition(2, c, from as u8, input as u8, next as u8);
        if from == State::Leaving && matches!(input, Input::Moved | Input::Refused) {
            // The peer has no use for what is queued: it said no.
            let reason = self.connection(c).reason;
            self.flush_queued_requests(c, reason);
        }
        // The peer answered our FIN: all that went before it has arrived.
        let answered = from == State::TimeWait || input == Input::FinRsp;
        if answered && action == Action::Finish {
            self.finish_sent(c);
        }
        self.connection_action(c, from, action);
    }

    fn connection_action(&mut self, c: u32, from: State, action: Action) {
        match action {
            Action::Ignored | Action::Wait | Action::Ask | Action::Move | Action::Leave => {}
            Action::SendSetup => self.send_opening(c, Frames::SETUP_REQ),
            Action::SendHello => self.send_opening(c, Frames::HELLO_REQ),
            Action::GoOnline => self.go_online(c),
            Action::AnswerHello => {
                self.connection(c).frames.insert(Frames::HELLO_RSP);
                self.go_online(c);
            }
            Action::Fail => {
                self.tell_failed(c);
                if self.connection(c).state == State::FinWait1 {
                    // The peer has no use for what is queued: it said no.
                    let reason = self.connection(c).reason;
                    self.flush_queued_requests(c, reason);
                    self.send_fin(c);
                } else {
                    self.end_connection(c, from);
                }
            }
            Action::Give => {
                self.tell_failed(c);
                self.end_connection(c, from);
            }
            Action::SendFin => {
                if from == State::Leaving {
                    self.tell_failed(c);
                    // What was queued before the close is sent before FIN, if it was let in.
                    let s = self.connection(c).session;
                    if self.session(s).peer_depth_messages > 0 {
                        self.learn_depth(c);
                    }
                }
                self.send_fin(c);
            }
            Action::AckAndFin => {
                self.end_resume(c, None);
                let reason = self.connection(c).reason;
                self.flush_queued_requests(c, reason);
                self.connection(c).frames.insert(Frames::FIN_RSP);
                self.send_fin(c);
            }
            Action::Ack => {
                self.trace.mark("simultaneous close");
                self.end_resume(c, None);
                self.connection(c).frames.insert(Frames::FIN_RSP);
                self.mark_tx(c);
            }
            Action::Acked => {}
            Action::TimeWait => {
                if from == State::FinWait2 && !mutated!(self.g, FinUnanswered) {
                    self.connection(c).frames.insert(Frames::FIN_RSP);
                    self.mark_tx(c);
                }
                self.connection(c).probes = 0;
                let wait = self.g.config.time_wait;
                self.arm_after(Timer::Connection(c), wait);
            }
            Action::Finish => self.end_connection(c, from),
            Action::Part => self.part(c, from),
            Action::Await => self.await_retry(c),
            Action::Yield => self.await_winner(c),
            Action::Drop => {
                if from == State::Leaving || from == State::Requested {
                    self.tell_failed(c);
                }
                self.break_connection(c, from);
            }
            Action::Report => self.connection_event(c, ConnectionEvents::CLOSED),
            Action::Free => self.free_connection(c),
        }
    }

    fn send_opening(&mut self, c: u32, frame: Frames) {
        self.connection(c).frames.insert(frame);
        let timeout = self.g.config.setup_timeout;
        self.arm_after(Timer::Connection(c), timeout);
        self.mark_tx(c);
    }

    fn go_online(&mut self, c: u32) {
        self.disarm(Timer::Connection(c));
        let now = self.g.now;
        let row = self.connection(c);
        let s = row.session;
        let again = core::mem::replace(&mut row.reported_up, true);
        if let Some(mut retry) = self.retry(c) {
            retry.at = now;
            self.set_retry(c, &retry);
        }
        self.drop_portals(c);
        self.won(c);
        self.session(s).hidden = false;
        self.learn_depth(c);
        self.connection_event(
            c,
            if again {
                ConnectionEvents::ANEW
            } else {
                ConnectionEvents::ESTABLISHED
            },
        );
        if let Some(keepalive) = self.g.config.keepalive {
            self.arm_after(Timer::Keepalive(c), keepalive.time);
        }
        if again {
            self.begin_resume(c);
        }
        self.mark_tx(c);
    }

    /// What the peer said that it takes, with its answer to the session's setup.
    fn learn_depth(&mut self, c: u32) {
        let s = self.connection(c).session;
        let session = self.session(s);
        let peer = (
            session.peer_id,
            session.peer_depth_messages,
            session.peer_depth_bytes,
        );
        let row = self.connection(c);
        row.peer_session = peer.0;
        row.peer_messages = peer.1.into();
        row.peer_bytes = i64::try_from(peer.2).unwrap_or(i64::MAX);
        row.peer_depth_bytes = peer.2;
        if self.uses_credits(c) {
            self.drop_too_long(c, peer.2);
        }
    }

    fn send_fin(&mut self, c: u32) {
        self.connection(c).frames.insert(Frames::FIN_REQ);
        self.disarm(Timer::Keepalive(c));
        let timeout = self.g.config.fin_timeout;
        self.arm_after(Timer::Connection(c), timeout);
        self.mark_tx(c);
    }

    /// The connection was never there, unless it was before it was lost.
    fn tell_failed(&mut self, c: u32) {
        if !self.connection(c).reported_up {
            self.connection_event(c, ConnectionEvents::FAILED);
        }
    }

    /// A connection's deadline: of setup, FIN, time-wait or the next attempt, by state.
    pub(crate) fn connection_deadline(&mut self, c: u32) {
        if self.connection(c).state == State::Waiting {
            self.retry_due(c);
            return;
        }
        if self.connection(c).state == State::Crossed {
            self.race_again(c);
            return;
        }
        if self.connection(c).state == State::Online {
            // The peer says nothing of the life before.
            self.end_resume(c, None);
            return;
        }
        // Without a transport connection it was the user who did not say where a portal is.
        if self.connection(c).nexus != NONE && self.try_next_portal(c) {
            return;
        }
        let row = self.connection(c);
        let step = match row.state {
            State::Opening | State::SetupSent | State::HelloSent | State::Leaving => {
                Step::SessionSetup
            }
            State::TimeWait => {
                // The peer waits for our last answer: a while is spent on getting it out.
                let pending = !row.frames.is_empty() || row.control_work > 0;
                // Without it a client that lost a race would not know that it did.
                let answers = row.frames.contains(Frames::SETUP_RSP);
                if pending && (row.probes < u8::MAX || answers) {
                    row.probes = row.probes.saturating_add(1);
                    let wait = self.g.config.time_wait;
                    self.arm_after(Timer::Connection(c), wait);
                    return;
                }
                Step::Fin
            }
            _ => Step::Fin,
        };
        let (n, awaits) = (row.nexus, row.awaited);
        let reason = Reason::TimedOut(step);
        self.lose(c, Input::Deadline, reason);
        if n != NONE && awaits.intersects(Awaited::SETUP | Awaited::HELLO) {
            // It may say yes yet, to nobody.
            self.end_unused(n, reason);
        }
    }

    /// Ends a connection that did not part by FIN: the peer may not know.
    fn break_connection(&mut self, c: u32, from: State) {
        let n = self.connection(c).nexus;
        if n != NONE {
            self.nexus(n).late_allowed = true;
        }
        self.record_life(c, from);
        self.end_connection(c, from);
        if n != NONE && self.connection(c).state == State::Ending {
            // What the device or the peer still has of it comes back with the transport connection.
            let reason = self.connection(c).reason;
            self.end_unused(n, reason);
        }
    }

    /// Takes a transport connection down that nobody is on any more, instead of keeping it.
    pub(crate) fn end_unused(&mut self, n: u32, reason: Reason) {
        let row = self.nexus(n);
        let is_up = matches!(row.state, nexus::State::Online | nexus::State::Idle);
        if row.connection_count == 0 && is_up {
            self.nexus_input(n, nexus::Input::Fail, Some(reason));
        }
    }

    /// All its messages get their outcome; what device or peer still hold comes back later.
    fn end_connection(&mut self, c: u32, from: State) {
        self.disarm(Timer::Connection(c));
        self.disarm(Timer::Keepalive(c));
        let row = self.connection(c);
        let (n, unanswered) = (row.nexus, !row.awaited.is_empty());
        if unanswered && n != NONE {
            // The answer to a control request may still come, and is nobody's then.
            self.nexus(n).late_allowed = true;
        }
        let row = self.connection(c);
        row.frames = Frames::empty();
        row.awaited = Awaited::empty();
        let (slot, request_of) = (row.setup_slot, row.session);
        row.setup_slot = NONE;
        if slot != NONE {
            self.free_slot(slot);
        }
        if request_of != NONE && self.session(request_of).request != NONE {
            let request = core::mem::replace(&mut self.session(request_of).request, NONE);
            self.drop_incoming(request);
        }
        self.drop_portals(c);
        if from != State::Parting {
            self.leave_nexus(c);
        }
        // Nothing below may settle it before all of it is done.
        self.connection(c).held += 1;
        self.flush_tasks(c);
        self.reclaim_from_peer(c);
        self.connection(c).held -= 1;
        self.settle(c);
    }

    /// The nexus is no longer counted as used by the connection, though tasks may still be on it.
    pub(crate) fn leave_nexus(&mut self, c: u32) {
        let n = self.connection(c).nexus;
        if n == NONE {
            return;
        }
        self.nexus(n).connection_count -= 1;
        self.unused_if_empty(n);
    }

    /// When nothing of the connection is out any more, its last event is due.
    pub(crate) fn settle(&mut self, c: u32) {
        let row = self.connection(c);
        let (ending, held) = (
            matches!(row.state, State::Ending | State::Parting),
            row.held > 0 || row.control_work > 0,
        );
        if ending && (!held || mutated!(self.g, ClosedEarly)) {
            self.uncount_tasks(c);
            self.detach_nexus(c);
            self.connection_input(c, Input::Settled, None);
        }
    }

    /// Messages whose last events nobody has heard outlive the connection's place on the nexus,
    /// and maybe the nexus: their slots are no longer counted there.
    fn uncount_tasks(&mut self, c: u32) {
        let mut t = self.connection(c).tasks;
        while t != NONE {
            let row = self.task(t);
            let (next, answer) = (row.next, row.answer);
            if row.flags.contains(TaskFlags::INCOMING) {
                self.uncount_slot(t);
            }
            self.uncount_slot(answer);
            t = next;
        }
    }

    /// Buffers that the peer may still reach come back only with the end of the transport
    /// connection, so it ends now, unless others live on it. Those that left it before may wait for
    /// theirs, too.
    pub(crate) fn reclaim_from_peer(&mut self, c: u32) {
        let row = self.connection(c);
        let (n, reason) = (row.nexus, row.reason);
        if n == NONE || self.nexus(n).connection_count > 0 {
            return;
        }
        let mut on = self.nexus(n).connections;
        while on != NONE {
            if self.peer_holds_some(on) {
                self.nexus_input(n, nexus::Input::Fail, Some(reason));
                return;
            }
            on = self.connection(on).nexus_next;
        }
    }

    /// Whether the peer may still reach buffers of the connection's messages.
    fn peer_holds_some(&mut self, c: u32) -> bool {
        let mut t = self.connection(c).tasks;
        while t != NONE {
            let row = self.task(t);
            if row.flags.contains(TaskFlags::PEER_HOLDS) {
                return true;
            }
            t = row.next;
        }
        false
    }

    fn free_connection(&mut self, c: u32) {
        // First, or what it gives back would be offered to itself.
        self.leave_blocked(c);
        let row = self.connection(c);
        let s = row.session;
        // Private data of an answer that no event named: the user had closed the connection.
        let untold = core::mem::replace(&mut row.setup_task, NONE);
        if untold != NONE {
            self.drop_incoming(untold);
        }
        self.leave_pool(c);
        self.forget_retry(c);
        if s != NONE {
            self.detach_session(c, s);
        }
        self.give_connection(c);
        if s != NONE && self.session(s).connection_count == 0 {
            self.session_input(s, session::Input::LastGone);
        }
    }

    /// Everything on a nexus hears that it is lost.
    pub(crate) fn lose_connections(&mut self, n: u32) {
        let reason = self.nexus(n).reason.unwrap_or(Reason::Disconnected);
        // Ending one can end others, so the list is looked at afresh each time.
        while let Some(c) = self.first_living(n) {
            let violation = matches!(reason, Reason::Violation(_));
            if !violation && self.try_next_portal(c) {
                continue;
            }
            let input = if violation {
                Input::Broken
            } else {
                Input::Lost
            };
            self.lose(c, input, reason);
        }
    }

    fn first_living(&mut self, n: u32) -> Option<u32> {
        let t = self.s.tables();
        let mut c = t.nexuses[n as usize].connections;
        while c != NONE {
            let row = &t.connections[c as usize];
            if !row.state.is_off() {
                return Some(c);
            }
            c = row.nexus_next;
        }
        None
    }

    pub(crate) fn attach_nexus(&mut self, c: u32, n: u32) {
        let t = self.s.tables();
        let nexus = &mut t.nexuses[n as usize];
        let head = nexus.connections;
        nexus.connections = c;
        nexus.connection_count += 1;
        if head != NONE {
            t.connections[head as usize].nexus_prev = c;
        }
        let row = &mut t.connections[c as usize];
        row.nexus = n;
        row.nexus_prev = NONE;
        row.nexus_next = head;
    }

    pub(crate) fn detach_nexus(&mut self, c: u32) {
        let row = self.connection(c);
        let (n, prev, next) = (row.nexus, row.nexus_prev, row.nexus_next);
        if n == NONE {
            return;
        }
        self.leave_own_line(c);
        let t = self.s.tables();
        let row = &mut t.connections[c as usize];
        row.nexus = NONE;
        row.nexus_prev = NONE;
        row.nexus_next = NONE;
        if prev == NONE {
            t.nexuses[n as usize].connections = next;
        } else {
            t.connections[prev as usize].nexus_next = next;
        }
        if next != NONE {
            t.connections[next as usize].nexus_prev = prev;
        }
        self.leave_tx(c, n);
    }

    pub(crate) fn attach_session(&mut self, c: u32, s: u32) {
        let t = self.s.tables();
        let session = &mut t.sessions[s as usize];
        let head = session.connections;
        session.connections = c;
        session.connection_count += 1;
        if head != NONE {
            t.connections[head as usize].session_prev = c;
        }
        let row = &mut t.connections[c as usize];
        row.session = s;
        row.own_session = session.own_id;
        row.peer_session = session.peer_id;
        row.session_prev = NONE;
        row.session_next = head;
    }

    pub(crate) fn detach_session(&mut self, c: u32, s: u32) {
        let t = self.s.tables();
        let row = &mut t.connections[c as usize];
        let (prev, next, reason) = (row.session_prev, row.session_next, row.reason);
        row.session = NONE;
        if prev == NONE {
            t.sessions[s as usize].connections = next;
        } else {
            t.connections[prev as usize].session_next = next;
        }
        if next != NONE {
            t.connections[next as usize].session_prev = prev;
        }
        let session = &mut t.sessions[s as usize];
        session.connection_count -= 1;
        session.reason = reason;
    }

    /// Tells the user something about the connection, unless it is a silent one.
    pub(crate) fn connection_event(&mut self, c: u32, event: ConnectionEvents) {
        let row = self.connection(c);
        if row.silent {
            if event == ConnectionEvents::CLOSED {
                // Nobody polls for it, so it is over now.
                self.connection_input(c, Input::Reported, None);
            }
            return;
        }
        row.events.insert(event);
        self.mark_events(c);
    }

    /// The tasks of a connection that ends: each gets its outcome, those in the user's hands are
    /// left to the user.
    fn flush_tasks(&mut self, c: u32) {
        self.flush_queues(c);
        let reason = self.connection(c).reason;
        for_each_oldest_first!(self, c, t => {
            self.end_task(t, reason);
        });
        self.release_held(c);
    }

    /// A message of a connection that ends or is lost. The peer is told that its buffers of an
    /// answer are free as long as there is a transport connection to tell it on.
    pub(crate) fn end_task(&mut self, t: u32, reason: Reason) {
        let left = self.leave_transfers(t);
        let owed = left == Transfers::Acknowledge || self.task(t).read_ends_here();
        let told = owed && self.acknowledge(t);
        self.flush_task(t, reason);
        if told {
            self.trace
                .mark("answer acknowledged for an ended connection");
            self.outlive_connection(t, reason);
        } else if left != Transfers::None {
            // One that had ended waited for its READ_ACK only.
            self.try_free(t);
        }
    }

    /// Queues a READ_ACK, unless the transport connection goes down or is gone.
    fn acknowledge(&mut self, t: u32) -> bool {
        let n = self.task(t).nexus;
        if n == NONE || self.nexus(n).framing != Framing::Rdma {
            return false;
        }
        let state = self.nexus(n).state;
        if !matches!(state, nexus::State::Online | nexus::State::Idle) {
            return false;
        }
        self.queue_read_ack(t);
        self.task(t).flags.contains(TaskFlags::QUEUED)
    }

    /// A message of an ended connection whose READ_ACK is still to be sent.
    fn outlive_connection(&mut self, t: u32, reason: Reason) {
        self.drop_answer(t);
        let orphan = TaskFlags::ORPHAN | TaskFlags::ORPHAN_LATER;
        if !self.task(t).flags.intersects(orphan) {
            self.orphan(t, reason);
        }
    }

    /// The last READ of an answer is done whose connection has ended before.
    pub(crate) fn end_late_fetch(&mut self, t: u32) {
        let row = self.task(t);
        let (over, c) = (row.state == TaskState::Ended, row.connection);
        if over && c != NONE && row.read_ends_here() && self.acknowledge(t) {
            let reason = self.connection(c).reason;
            self.outlive_connection(t, reason);
        }
    }

    /// What was posted before our FIN and needs no answer has arrived, though its own completion
    /// may not be here yet.
    fn finish_sent(&mut self, c: u32) {
        let mut t = self.connection(c).tasks;
        while t != NONE {
            let row = self.task(t);
            let next = row.next;
            let receipt = TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW;
            let arrived = match row.state {
                TaskState::Answered => !row.read_response,
                TaskState::Sent => row.kind == Kind::OneWayReq && !row.flags.intersects(receipt),
                _ => false,
            };
            if arrived && self.task_input(t, TaskInput::SendDone) == TaskAction::Complete {
                self.finish(t, Ending::Good);
            }
            t = next;
        }
    }

    /// Takes a task of a connection that ends out of its nexus's lists of READs and READ_ACKs.
    fn leave_transfers(&mut self, t: u32) -> Transfers {
        let row = self.task(t);
        let n = row.nexus;
        let later = row.flags.contains(TaskFlags::ACK_LATER);
        row.flags.remove(TaskFlags::ACK_LATER);
        if n == NONE || !row.flags.contains(TaskFlags::QUEUED) {
            return Transfers::None;
        }
        let mut left = if later {
            Transfers::Acknowledge
        } else {
            Transfers::Read
        };
        row.flags.remove(TaskFlags::QUEUED);
        let tables = self.s.tables();
        let nexus = &mut tables.nexuses[n as usize];
        for (list, head, tail) in [
            (left, &mut nexus.rdma_head, &mut nexus.rdma_tail),
            (
                Transfers::Acknowledge,
                &mut nexus.ack_head,
                &mut nexus.ack_tail,
            ),
        ] {
            let (mut before, mut at) = (NONE, *head);
            while at != NONE && at != t {
                before = at;
                at = tables.tasks[at as usize].queue_next;
            }
            if at == NONE {
                continue;
            }
            left = list;
            let next = tables.tasks[t as usize].queue_next;
            if before == NONE {
                *head = next;
            } else {
                tables.tasks[before as usize].queue_next = next;
            }
            if next == NONE {
                *tail = before;
            }
        }
        left
    }

    /// Requests that were never posted come back at the peer's FIN; queued answers stay.
    pub(super) fn flush_queued_requests(&mut self, c: u32, reason: Reason) {
        let mut t = self.connection(c).req_head;
        while t != NONE {
            let next = self.task(t).queue_next;
            self.trace.mark("queued message flushed by peer's fin");
            self.never_sent(t, reason);
            t = next;
        }
    }

    /// Messages accepted before the peer's depth was known, and longer than it.
    fn drop_too_long(&mut self, c: u32, max: u64) {
        let mut t = self.connection(c).req_head;
        while t != NONE {
            let row = self.task(t);
            let next = row.queue_next;
            let len = row.out.total + u64::from(row.slot_data) + u64::from(row.header_len);
            if len > max {
                let what = Length::Data;
                self.too_long(t, Misfit { what, len, max });
            }
            t = next;
        }
    }

    /// Whether messages may be accepted from the user, and if not, why.
    pub(crate) fn sendable(&mut self, c: u32) -> Result<(), Reason> {
        let row = self.connection(c);
        match row.state {
            State::Opening | State::SetupSent | State::HelloSent | State::Online => Ok(()),
            State::Parting | State::Waiting | State::Crossed => Ok(()),
            _ => Err(row.reason),
        }
    }

    /// Whether frames from the peer still mean something to the connection.
    pub(crate) fn receives(state: State) -> bool {
        matches!(
            state,
            State::Online | State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck
        )
    }
}
