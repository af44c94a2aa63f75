//! From a message's last input to its outcome, its buffers' return, and its row's end.
//! Table in `state/task.rs`, description in PROTOCOL.md 9.

use super::Endpoint;
use super::snapshot::count;
use crate::config::OnExpiry;
use crate::entries::{ConnectionEvents, Ending, TaskEvents, TaskFlags, WorkKind};
use crate::error::{Failure, Reason, Step, WorkStatus};
use crate::ids::NONE;
use crate::mutant::mutated;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus;
use crate::state::task::{Action, Input, State};
use crate::storage::Storage;
use crate::table::queue_pop;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{Extensions, Kind};

impl<S: Storage, T: Trace> Endpoint<S, T> {
    #[inline]
    pub(crate) fn task_input(&mut self, t: u32, input: Input) -> Action {
        self.hot().task_input(t, input)
    }

    /// Puts a task in its connection's list of all tasks.
    pub(crate) fn link_task(&mut self, c: u32, t: u32) {
        self.hot().link_task(c, t);
    }

    /// Puts a task in its connection's list of events.
    pub(crate) fn task_event(&mut self, t: u32, event: TaskEvents) {
        self.hot().task_event(t, event);
    }

    /// Gives a message its one outcome.
    pub(crate) fn finish(&mut self, t: u32, ending: Ending) {
        let row = self.task(t);
        // A payload that nobody asks for any more.
        row.events.remove(TaskEvents::WAITING);
        let (c, timed, flags) = (row.connection, row.timer != NONE, row.flags);
        if flags.contains(TaskFlags::LINGERS) {
            // It waited to be sent again; who holds it is counted anew.
            self.task(t).flags.remove(TaskFlags::LINGERS);
            self.connection(c).held -= 1;
        }
        if timed {
            self.disarm(Timer::Task(t));
        }
        self.leave_pool_line(t);
        self.hot().finish(t, ending);
        if flags.intersects(TaskFlags::KEPT) {
            self.drop_slot(t);
        }
        if !flags.contains(TaskFlags::INCOMING) && self.connection(c).wants_writable {
            self.queue_has_room(c);
        }
        if flags.contains(TaskFlags::QUEUED) && self.connection(c).nexus == NONE {
            // Nobody looks at the queue before there is a transport connection again.
            self.skip_ended(c);
        }
        if !self.task(t).flags.contains(TaskFlags::EVENTS) {
            self.try_free(t);
        }
    }

    /// A message that kept its slot to be sent again never is.
    fn drop_slot(&mut self, t: u32) {
        let row = self.task(t);
        // It may be on its way, or in a queue that is looked at later.
        let wanted = row.work > 0 || row.flags.contains(TaskFlags::QUEUED);
        if wanted || row.flags.contains(TaskFlags::INCOMING) {
            return;
        }
        let slot = core::mem::replace(&mut row.slot, NONE);
        if slot != NONE {
            self.free_slot(slot);
        }
    }

    fn queue_has_room(&mut self, c: u32) {
        let (messages_max, bytes_max) = (self.g.config.queue_messages, self.g.config.queue_bytes);
        let row = self.connection(c);
        if row.queued_messages < messages_max && row.queued_bytes < bytes_max {
            row.wants_writable = false;
            self.connection_event(c, ConnectionEvents::WRITABLE);
        }
    }

    /// A work request of a message is done, on the send queue of this nexus.
    pub(crate) fn work_done(
        &mut self,
        n: u32,
        t: u32,
        kind: WorkKind,
        bytes: u64,
        status: WorkStatus,
    ) {
        if kind == WorkKind::Read {
            self.nexus(n).reads_used -= 1;
            self.mark_ready(n);
        }
        let row = self.task(t);
        row.work -= 1;
        if row
            .flags
            .intersects(TaskFlags::ORPHAN | TaskFlags::ORPHAN_LATER)
        {
            row.nexus = NONE;
        }
        let good = status == WorkStatus::Success;
        match kind {
            WorkKind::Read | WorkKind::Write => self.rdma_done(t, kind, bytes, status),
            WorkKind::Receipt => {}
            WorkKind::Frame(_) if good => {
                self.frame_done(t);
            }
            // The nexus goes down with a bad status, and the message with its connection.
            WorkKind::Frame(_) => {}
        }
        self.maybe_return(t);
        self.try_free(t);
    }

    /// Whether a message may be sent again though its frame is out.
    pub(crate) fn keeps_slot(&mut self, t: u32) -> bool {
        let row = self.task(t);
        let (flags, n, open) = (row.flags, row.nexus, row.ending == Ending::Open);
        let asks =
            flags.contains(TaskFlags::KEPT) && n != NONE && self.nexus(n).can(Extensions::RESUME);
        open && (asks || flags.contains(TaskFlags::IDEMPOTENT))
    }

    /// A message's frame is out.
    fn frame_done(&mut self, t: u32) {
        // What may be sent again keeps what the user wrote into the slot.
        let kept = self.keeps_slot(t);
        let row = self.task(t);
        let slot = if kept {
            NONE
        } else {
            core::mem::replace(&mut row.slot, NONE)
        };
        let waits = match row.kind {
            Kind::OneWayReq => row
                .flags
                .intersects(TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW),
            Kind::MsgReq if row.flags.contains(TaskFlags::INCOMING) => row.read_response,
            _ => true,
        };
        if slot != NONE {
            self.free_slot(slot);
        }
        let input = if waits {
            Input::SendDoneHeld
        } else {
            Input::SendDone
        };
        if self.task_input(t, input) == Action::Complete {
            self.finish(t, Ending::Good);
        }
    }

    /// A message that was not posted yet never will be.
    pub(crate) fn never_sent(&mut self, t: u32, reason: Reason) {
        let row = self.task(t);
        // A part of a direct READ or WRITE may be out.
        let begun = row.flags.contains(TaskFlags::REPEATED) || row.state == State::Sent;
        if self.task_input(t, Input::Flush) == Action::GiveUp {
            let failure = if begun {
                Failure::ConnectionEnded(reason)
            } else {
                Failure::NeverSent(reason)
            };
            self.finish(t, Ending::Failed(failure));
        }
    }

    /// The connection of a message ended.
    pub(crate) fn flush_task(&mut self, t: u32, reason: Reason) {
        let row = self.task(t);
        let (c, state) = (row.connection, row.state);
        let repeated = row.flags.contains(TaskFlags::REPEATED);
        let n = row.nexus;
        let waits = matches!(state, State::Sent | State::Orphaned);
        if waits && n != NONE && !row.flags.contains(TaskFlags::INCOMING) {
            // Its answer may still come, and is nobody's then. Only that: who makes answers up is not
            // forgiven for having some to send.
            let due = 1 + u32::from(row.flags.contains(TaskFlags::RECEIPT));
            let nexus = self.nexus(n);
            nexus.late_due = nexus.late_due.saturating_add(due);
        }
        let lost = self.connection(c).state == ConnectionState::Parting;
        match self.task_input(t, Input::Flush) {
            Action::GiveUp => {
                let never = matches!(state, State::Queued | State::Answering) && !repeated;
                let failure = match (never, lost) {
                    (true, _) => Failure::NeverSent(reason),
                    (false, true) => Failure::Unknown(reason),
                    (false, false) => Failure::ConnectionEnded(reason),
                };
                self.finish(t, Ending::Failed(failure));
            }
            Action::Return => {
                self.maybe_return(t);
                self.try_free(t);
            }
            Action::Hold if self.task(t).flags.contains(TaskFlags::HELD_BACK) => {
                self.drop_unheard(t);
            }
            Action::Hold => self.orphan(t, reason),
            Action::Drop => self.drop_fetch(t, reason),
            _ if self.task(t).flags.contains(TaskFlags::USER) => self.orphan(t, reason),
            _ => {}
        }
    }

    /// A received message that the user never heard of, behind one that never came whole.
    fn drop_unheard(&mut self, t: u32) {
        self.task_input(t, Input::Release);
        self.disarm(Timer::Task(t));
        let row = self.task(t);
        row.flags.remove(TaskFlags::USER);
        let (c, request) = (row.connection, row.kind == Kind::MsgReq);
        if row.into.count > 0 {
            // It had its data already.
            self.task_event(t, TaskEvents::RETURNED);
        }
        if request {
            self.connection(c).unanswered -= 1;
        }
    }

    /// A message in the user's hands outlives its connection; its slots are no longer counted to
    /// the transport connection, which may be gone by the time they come back.
    pub(crate) fn orphan(&mut self, t: u32, reason: Reason) {
        let row = self.task(t);
        row.closed = reason;
        // Its own frame may not be out, though the answer to it has come, or its READ_ACK.
        let leaving = TaskFlags::ON_QUEUE | TaskFlags::QUEUED;
        if !row.flags.intersects(leaving) {
            row.nexus = NONE;
        }
        let incoming = if row.flags.contains(TaskFlags::INCOMING) {
            t
        } else {
            NONE
        };
        let answer = row.answer;
        self.uncount_slot(incoming);
        self.uncount_slot(answer);
        let row = self.task(t);
        if row.flags.intersects(TaskFlags::EVENTS | TaskFlags::LINGERS) {
            // The user still has to hear of it, or its buffers are not back.
            row.flags.insert(TaskFlags::ORPHAN_LATER);
        } else {
            self.orphan_now(t);
        }
    }

    pub(crate) fn orphan_now(&mut self, t: u32) {
        self.uncount_chunks(t);
        self.hot().unlink_task(t);
        let row = self.task(t);
        row.flags.insert(TaskFlags::ORPHAN);
        row.flags.remove(TaskFlags::ORPHAN_LATER);
        row.connection = NONE;
    }

    /// A slot that outlives what it came on is no longer counted there.
    pub(crate) fn uncount_slot(&mut self, slot: u32) {
        if slot == NONE {
            return;
        }
        let tables = self.s.tables();
        let n = core::mem::replace(&mut tables.slots[slot as usize].nexus, NONE);
        if n != NONE {
            self.uncount(n);
        }
    }

    /// When nobody holds a part of an ended message any more, its buffers are the user's.
    pub(crate) fn maybe_return(&mut self, t: u32) {
        let row = self.task(t);
        let waits = row.work > 0 || row.flags.contains(TaskFlags::PEER_HOLDS);
        if waits || !row.flags.contains(TaskFlags::LINGERS) {
            return;
        }
        row.flags.remove(TaskFlags::LINGERS);
        let owes = row.flags.contains(TaskFlags::OWES_RETURN);
        row.flags.remove(TaskFlags::OWES_RETURN);
        // An outcome that the user has not heard yet says it by itself.
        let owes = owes && !row.events.contains(TaskEvents::MAIN);
        let c = row.connection;
        self.connection(c).held -= 1;
        if owes {
            self.task_event(t, TaskEvents::RETURNED);
        }
        let flags = self.task(t).flags;
        if flags.contains(TaskFlags::ORPHAN_LATER) && !flags.contains(TaskFlags::EVENTS) {
            self.orphan_now(t);
        }
        self.settle(c);
    }

    /// Ends a task's row when nothing refers to it any more.
    pub(crate) fn try_free(&mut self, t: u32) {
        if self.hot().is_over(t) {
            self.free_task(t);
        }
    }

    fn free_task(&mut self, t: u32) {
        self.give_chunks(t);
        let row = self.task(t);
        row.state = State::Vacant;
        let (slot, answer) = (row.slot, row.answer);
        let (out, into) = (row.out, row.into);
        if !row.flags.contains(TaskFlags::ORPHAN) {
            self.hot().unlink_task(t);
        }
        if out.extent != NONE || into.extent != NONE {
            self.give_list(out);
            self.give_list(into);
        }
        if slot != NONE {
            self.free_slot(slot);
        }
        if answer != NONE {
            self.free_incoming(answer);
        }
        if t < self.g.config.rx_slots {
            self.free_incoming(t);
        } else {
            let tables = self.s.tables();
            self.g.tasks.give(tables.tasks, t);
            self.wake_blocked();
        }
    }

    /// A receive slot that held a message is free again.
    pub(crate) fn free_incoming(&mut self, slot: u32) {
        self.hot().end_incoming(slot);
        let n = self.s.tables().slots[slot as usize].nexus;
        self.free_slot(slot);
        if n != NONE {
            self.uncount(n);
        }
    }

    /// A receive slot that held a setup request of a session.
    pub(crate) fn drop_incoming(&mut self, slot: u32) {
        self.free_incoming(slot);
    }

    /// The transport connection is gone: the peer cannot reach anything any more.
    pub(crate) fn end_held_tasks(&mut self, n: u32) {
        let mut c = self.nexus(n).connections;
        while c != NONE {
            let next = self.connection(c).nexus_next;
            self.connection(c).held += 1;
            let mut t = self.connection(c).tasks;
            while t != NONE {
                let row = self.task(t);
                let follow = row.next;
                row.flags.remove(TaskFlags::PEER_HOLDS);
                self.maybe_return(t);
                self.try_free(t);
                t = follow;
            }
            self.connection(c).held -= 1;
            self.settle(c);
            // One that moved here may still wait for a frame on the transport connection that it
            // came from.
            if self.connection(c).nexus == n {
                self.detach_nexus(c);
            }
            c = next;
        }
        debug_assert_eq!(
            self.nexus(n).connections,
            NONE,
            "a connection stays on a freed nexus"
        );
        // READ_ACKs of responses that came for nobody.
        while self.nexus(n).ack_head != NONE {
            self.take_read_ack(n);
        }
    }

    /// A message's deadline passed.
    pub(crate) fn task_deadline(&mut self, t: u32) {
        if mutated!(self.g, DeadlineIgnored) {
            return;
        }
        if self.task_input(t, Input::Expire) == Action::GiveUp {
            self.g.counters.timed_out += 1;
            self.count_on(t, |traffic| count(&mut traffic.timed_out, 1));
            self.finish(t, Ending::TimedOut);
            self.discard_payload(t);
            self.end_orphaned_fetch(t);
            self.tell_expired(t);
            self.expired(t);
        }
    }

    /// A message has timed out: what its connection wants done if its buffers are not back.
    fn expired(&mut self, t: u32) {
        let row = self.task(t);
        let owes = TaskFlags::LINGERS | TaskFlags::OWES_RETURN;
        let (c, held) = (row.connection, row.flags.contains(owes));
        if !held || c == NONE {
            return;
        }
        match self.connection(c).policy.on_expiry {
            OnExpiry::Hold => {}
            OnExpiry::Revoke => self.revoke_buffers(t),
            OnExpiry::Disconnect => {
                let n = self.connection(c).nexus;
                let reason = Reason::TimedOut(Step::Message);
                self.nexus_input(n, nexus::Input::Fail, Some(reason));
            }
        }
    }

    /// The queues of an ending connection: nothing in them will be sent.
    pub(crate) fn flush_queues(&mut self, c: u32) {
        self.flush_withdrawn(c);
        loop {
            let tables = self.s.tables();
            let row = &mut tables.connections[c as usize];
            let t = if row.req_head != NONE {
                queue_pop!(tables.tasks, row.req_head, row.req_tail, queue_next)
            } else if row.rsp_head != NONE {
                queue_pop!(tables.tasks, row.rsp_head, row.rsp_tail, queue_next)
            } else {
                return;
            };
            tables.tasks[t as usize].flags.remove(TaskFlags::QUEUED);
            self.try_free(t);
        }
    }
}
