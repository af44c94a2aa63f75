//! What the message path does with rows and lists, inlined where it is used.
//!
//! [`Endpoint`] has the same methods as functions that are called, for everything that is not done
//! once or more per message. A method here fetches each row once; what is rare is left to a cold
//! function of the endpoint.

use super::Endpoint;
use crate::entries::{
    Connection, ConnectionEvents, Ending, Nexus, SlotUse, Task, TaskEvents, TaskFlags, WorkEntry,
    WorkKind,
};
use crate::ids::{NONE, WrId, WrKind};
use crate::mutant::mutated;
use crate::state::task::{self, Action, Input, State};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::timer::Timer;
use crate::trace::Trace;

/// An endpoint whose methods are inlined.
pub(crate) struct Quick<'a, S, T>(pub(crate) &'a mut Endpoint<S, T>);

impl<S: Storage, T: Trace> Endpoint<S, T> {
    #[inline(always)]
    pub(crate) fn quick(&mut self) -> Quick<'_, S, T> {
        Quick(self)
    }
}

impl<S: Storage, T: Trace> Quick<'_, S, T> {
    #[inline(always)]
    pub(crate) fn nexus(&mut self, index: u32) -> &mut Nexus {
        self.0.nexus(index)
    }
    #[inline(always)]
    pub(crate) fn connection(&mut self, index: u32) -> &mut Connection {
        self.0.connection(index)
    }
    #[inline(always)]
    pub(crate) fn task(&mut self, index: u32) -> &mut Task {
        self.0.task(index)
    }

    #[inline(always)]
    pub(crate) fn task_input(&mut self, t: u32, input: Input) -> Action {
        let row = self.task(t);
        let from = row.state;
        let (next, action) = task::lookup(from, input);
        row.state = next;
        if action == Action::Ignored {
            self.0.g.counters.ignored_inputs += 1;
        } else {
            self.0
                .trace
                .transition(3, t, from as u8, input as u8, next as u8);
        }
        action
    }

    /// Something may have changed that lets a nexus send.
    #[inline(always)]
    pub(crate) fn mark_ready(&mut self, n: u32) {
        let tables = self.0.s.tables();
        let row = &mut tables.nexuses[n as usize];
        if !row.in_ready {
            row.in_ready = true;
            let q = &mut self.0.g.transport(row.transport).ready;
            queue_push!(tables.nexuses, q.head, q.tail, ready_next, n);
        }
    }

    /// Something small changed (a receive used or free, credits, room): the nexus is ready if that
    /// can lead to work.
    #[inline(always)]
    pub(crate) fn look_again(&mut self, n: u32) {
        if self.nexus(n).may_have_work() {
            self.mark_ready(n);
        }
    }

    /// A connection may have something to send.
    #[inline(always)]
    pub(crate) fn mark_tx(&mut self, c: u32) {
        let tables = self.0.s.tables();
        let row = &mut tables.connections[c as usize];
        let n = row.nexus;
        if n == NONE {
            return;
        }
        if !row.in_tx {
            row.in_tx = true;
            let nexus = &mut tables.nexuses[n as usize];
            queue_push!(tables.connections, nexus.tx_head, nexus.tx_tail, tx_next, c);
        }
        self.mark_ready(n);
    }

    /// Puts a connection in the round of those with events.
    #[inline(always)]
    pub(crate) fn mark_events(&mut self, c: u32) {
        let tables = self.0.s.tables();
        let row = &mut tables.connections[c as usize];
        if !row.in_events {
            row.in_events = true;
            let q = &mut self.0.g.connection_events;
            queue_push!(tables.connections, q.head, q.tail, event_next, c);
        }
    }

    /// Puts a task in its connection's list of events.
    #[inline(always)]
    pub(crate) fn task_event(&mut self, t: u32, event: TaskEvents) {
        let tables = self.0.s.tables();
        let task = &mut tables.tasks[t as usize];
        task.events.insert(event);
        let c = task.connection;
        if !task.flags.contains(TaskFlags::EVENTS) {
            task.flags.insert(TaskFlags::EVENTS);
            let row = &mut tables.connections[c as usize];
            queue_push!(tables.tasks, row.ev_head, row.ev_tail, event_next, t);
        }
        self.mark_events(c);
    }

    /// Puts a task in its connection's list of all tasks.
    #[inline(always)]
    pub(crate) fn link_task(&mut self, c: u32, t: u32) {
        let tables = self.0.s.tables();
        let row = &mut tables.connections[c as usize];
        let head = row.tasks;
        row.tasks = t;
        if head != NONE {
            tables.tasks[head as usize].prev = t;
        }
        let task = &mut tables.tasks[t as usize];
        task.connection = c;
        task.prev = NONE;
        task.next = head;
    }

    #[inline(always)]
    pub(crate) fn unlink_task(&mut self, t: u32) {
        let tables = self.0.s.tables();
        let task = &tables.tasks[t as usize];
        let (c, prev, next) = (task.connection, task.prev, task.next);
        if prev == NONE {
            tables.connections[c as usize].tasks = next;
        } else {
            tables.tasks[prev as usize].next = next;
        }
        if next != NONE {
            tables.tasks[next as usize].prev = prev;
        }
    }

    /// Gives a message its one outcome.
    #[inline(always)]
    pub(crate) fn finish(&mut self, t: u32, ending: Ending) {
        let by_device = mutated!(self.0.g, ReturnedByDevice);
        let lost = mutated!(self.0.g, OutcomeLost) && matches!(ending, Ending::Failed(_));
        let row = self.task(t);
        debug_assert!(
            row.ending == Ending::Open,
            "task {t} ends twice: {:?}",
            row.ending
        );
        row.ending = ending;
        // A payload that nobody asks for any more.
        row.events.remove(TaskEvents::WAITING);
        let (c, timed) = (row.connection, row.timer != NONE);
        let flags = row.flags;
        let bytes = row.out.total + u64::from(row.slot_data) + u64::from(row.header_len);
        let work = row.work > 0 && !by_device;
        if work || flags.contains(TaskFlags::PEER_HOLDS) {
            row.flags.insert(TaskFlags::LINGERS);
            let memory = row.out.count > 0 || row.into.count > 0;
            row.flags.set(TaskFlags::OWES_RETURN, memory);
            self.connection(c).held += 1;
        }
        if timed {
            self.0.disarm(Timer::Task(t));
        }
        if !flags.contains(TaskFlags::INCOMING) {
            self.unqueue(c, bytes);
            // Only a good outcome puts an answer into the user's hands.
            if ending != Ending::Good {
                self.task(t).flags.remove(TaskFlags::USER);
            }
        }
        if flags.contains(TaskFlags::SILENT) || lost {
            self.0.try_free(t);
        } else {
            self.task_event(t, TaskEvents::MAIN);
        }
    }

    /// A message no longer counts against its connection's queue limits.
    #[inline(always)]
    fn unqueue(&mut self, c: u32, bytes: u64) {
        let row = self.connection(c);
        row.queued_messages -= 1;
        row.queued_bytes -= bytes;
        if row.wants_writable {
            self.0.queue_has_room(c);
        }
    }

    /// Gives a slot of either kind back and wakes who waits for one.
    #[inline(always)]
    pub(crate) fn free_slot(&mut self, slot: u32) {
        if slot < self.0.g.config.rx_slots {
            self.free_rx_slot(slot);
        } else {
            self.free_tx_slot(slot);
        }
    }

    #[inline(always)]
    pub(crate) fn free_rx_slot(&mut self, slot: u32) {
        let rows = self.0.s.tables().slots;
        let row = &mut rows[slot as usize];
        debug_assert!(row.usage != SlotUse::Free, "slot {slot} freed twice");
        row.usage = SlotUse::Free;
        row.nexus = NONE;
        self.0.g.rx_slots.give(rows, slot);
        self.0.offer_slots();
        self.wake_waiters();
    }

    #[inline(always)]
    pub(crate) fn free_tx_slot(&mut self, slot: u32) {
        let rows = self.0.s.tables().slots;
        let row = &mut rows[slot as usize];
        debug_assert!(row.usage != SlotUse::Free, "slot {slot} freed twice");
        row.usage = SlotUse::Free;
        row.nexus = NONE;
        self.0.g.tx_slots.give(rows, slot);
        self.wake_waiters();
    }

    #[inline(always)]
    fn wake_waiters(&mut self) {
        if self.0.g.slot_waiters > 0 {
            self.0.wake_slot_waiters();
        }
        self.wake_blocked();
    }

    /// A task or slot is free: the first user in line hears of it.
    #[inline(always)]
    pub(crate) fn wake_blocked(&mut self) {
        if !self.0.g.blocked.is_empty() {
            self.0.wake_first_blocked();
        }
    }

    /// Ends a task's row when nothing refers to it any more.
    #[inline(always)]
    pub(crate) fn try_free(&mut self, t: u32) {
        const BUSY: TaskFlags = TaskFlags::QUEUED
            .union(TaskFlags::EVENTS)
            .union(TaskFlags::HELD_BACK)
            .union(TaskFlags::USER)
            .union(TaskFlags::LINGERS)
            .union(TaskFlags::PEER_HOLDS);
        let row = self.task(t);
        if row.state == State::Ended && row.work == 0 && !row.flags.intersects(BUSY) {
            self.free_task(t);
        }
    }

    #[inline(always)]
    fn free_task(&mut self, t: u32) {
        let row = self.task(t);
        row.state = State::Vacant;
        let (slot, answer) = (row.slot, row.answer);
        let long = (row.out.extent & row.into.extent) != NONE;
        if !row.flags.contains(TaskFlags::ORPHAN) {
            self.unlink_task(t);
        }
        if long {
            self.0.give_lists(t);
        }
        if slot != NONE {
            self.0.free_slot(slot);
        }
        if answer != NONE {
            self.free_incoming(answer);
        }
        if t < self.0.g.config.rx_slots {
            self.free_incoming(t);
        } else {
            self.0.g.tasks.give(self.0.s.tables().tasks, t);
            self.wake_blocked();
        }
    }

    /// A receive slot that held a message is free again.
    #[inline(always)]
    pub(crate) fn free_incoming(&mut self, slot: u32) {
        let row = self.task(slot);
        row.generation = row.generation.wrapping_add(1);
        row.flags = TaskFlags::empty();
        row.state = State::Vacant;
        let row = &self.0.s.tables().slots[slot as usize];
        debug_assert!(row.usage == SlotUse::Filled);
        let n = row.nexus;
        self.free_rx_slot(slot);
        if n != NONE {
            self.uncount(n);
        }
    }

    /// A receive slot is no longer counted to a transport connection.
    #[inline(always)]
    pub(crate) fn uncount(&mut self, n: u32) {
        let nexus = self.nexus(n);
        nexus.held -= 1;
        let stream = nexus.sockets[0] != NONE && nexus.held == 0;
        self.look_again(n);
        if stream {
            self.0.first_in_line(n);
        }
    }

    /// Enters a work request on a send queue. There is room for it: that was checked before.
    #[inline(always)]
    pub(crate) fn push_work(&mut self, n: u32, entry: WorkEntry) -> WrId {
        let tables = self.0.s.tables();
        let Some(w) = self.0.g.work.take(tables.work) else {
            unreachable!("room was checked before");
        };
        let row = &mut tables.work[w as usize];
        let generation = row.generation;
        let bytes = entry.bytes;
        *row = WorkEntry {
            generation,
            nexus: n,
            live: true,
            ..entry
        };
        let nexus = &mut tables.nexuses[n as usize];
        queue_push!(tables.work, nexus.sq_head, nexus.sq_tail, next_free, w);
        nexus.sq_used += 1;
        nexus.sq_bytes += bytes;
        self.0.g.transport(nexus.transport).cq_used += 1;
        WrId::new(WrKind::Send, w, generation)
    }

    /// Takes the oldest work request off a send queue.
    #[inline(always)]
    pub(crate) fn take_work(&mut self, n: u32) -> Done {
        let tables = self.0.s.tables();
        let nexus = &mut tables.nexuses[n as usize];
        let w = queue_pop!(tables.work, nexus.sq_head, nexus.sq_tail, next_free);
        let row = &mut tables.work[w as usize];
        row.live = false;
        let done = Done {
            kind: row.kind,
            task: row.task,
            connection: row.connection,
            slot: row.slot,
            bytes: row.bytes,
        };
        nexus.sq_used -= 1;
        nexus.sq_bytes -= done.bytes;
        self.0.g.transport(nexus.transport).cq_used -= 1;
        self.0.g.work.give(tables.work, w);
        done
    }
}

/// A work request that left its send queue.
pub(crate) struct Done {
    pub(crate) kind: WorkKind,
    pub(crate) task: u32,
    pub(crate) connection: u32,
    pub(crate) slot: u32,
    pub(crate) bytes: u64,
}

/// What is rare on the message path.
impl<S: Storage, T: Trace> Endpoint<S, T> {
    #[cold]
    #[inline(never)]
    fn queue_has_room(&mut self, c: u32) {
        let (messages_max, bytes_max) = (self.g.config.queue_messages, self.g.config.queue_bytes);
        let row = self.connection(c);
        if row.queued_messages < messages_max && row.queued_bytes < bytes_max {
            row.wants_writable = false;
            self.connection_event(c, ConnectionEvents::WRITABLE);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_slot_waiters(&mut self) {
        self.g.slot_waiters = 0;
        let count = self.s.tables().nexuses.len() as u32;
        for n in 0..count {
            if core::mem::take(&mut self.nexus(n).wants_slot) {
                self.mark_ready(n);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_first_blocked(&mut self) {
        if self.g.tx_slots.free() <= self.g.tx_reserve || self.g.tasks.free() == 0 {
            return;
        }
        let tables = self.s.tables();
        let q = &mut self.g.blocked;
        let c = queue_pop!(tables.connections, q.head, q.tail, blocked_next);
        tables.connections[c as usize].in_blocked = false;
        self.connection_event(c, ConnectionEvents::WRITABLE);
    }

    #[cold]
    #[inline(never)]
    fn give_lists(&mut self, t: u32) {
        let row = self.task(t);
        let (out, into) = (row.out, row.into);
        self.give_list(out);
        self.give_list(into);
    }
}
