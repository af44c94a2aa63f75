//! An endpoint taken apart for the message path: its tables as slices, fetched once for each call
//! from outside, so that a row's address and bounds need to be worked out only once in it.
//!
//! Methods here are inlined where the long way calls them through [`Endpoint`] and where the short
//! way (`plain`) uses them directly. What is rare is outlined behind [`Parts::aside`].

use super::{Endpoint, Globals};
use crate::entries::{
    Connection, ConnectionEvents, Ending, Nexus, SlotUse, Task, TaskEvents, TaskFlags, WorkEntry,
    WorkKind,
};
use crate::ids::{NONE, WrId, WrKind};
use crate::state::task::{self, Action, Input, State};
use crate::storage::{Storage, Tables};
use crate::table::{queue_pop, queue_push};
use crate::timer::{self, Timer};
use crate::trace::Trace;

pub(crate) struct Parts<'a, T> {
    pub(crate) t: Tables<'a>,
    pub(crate) g: &'a mut Globals,
    pub(crate) trace: &'a mut T,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> Parts<'_, T> {
        Parts {
            t: self.s.tables(),
            g: &mut self.g,
            trace: &mut self.trace,
        }
    }
}

impl<T: Trace> Parts<'_, T> {
    /// The same parts in memory of their own, for a function that is called and not inlined: the
    /// originals can stay in registers then.
    #[inline(always)]
    pub(crate) fn aside(&mut self) -> Parts<'_, T> {
        Parts {
            t: self.t.tables(),
            g: self.g,
            trace: self.trace,
        }
    }

    #[inline(always)]
    pub(crate) fn nexus(&mut self, index: u32) -> &mut Nexus {
        &mut self.t.nexuses[index as usize]
    }
    #[inline(always)]
    pub(crate) fn connection(&mut self, index: u32) -> &mut Connection {
        &mut self.t.connections[index as usize]
    }
    #[inline(always)]
    pub(crate) fn task(&mut self, index: u32) -> &mut Task {
        &mut self.t.tasks[index as usize]
    }

    #[inline(always)]
    pub(crate) fn task_input(&mut self, t: u32, input: Input) -> Action {
        let row = self.task(t);
        let from = row.state;
        let (next, action) = task::lookup(from, input);
        row.state = next;
        if action == Action::Ignored {
            self.g.counters.ignored_inputs += 1;
        } else {
            self.trace
                .transition(3, t, from as u8, input as u8, next as u8);
        }
        action
    }

    /// Something may have changed that lets a nexus send.
    #[inline(always)]
    pub(crate) fn mark_ready(&mut self, n: u32) {
        let row = &mut self.t.nexuses[n as usize];
        if !row.in_ready {
            row.in_ready = true;
            let q = &mut self.g.transport(row.transport).ready;
            queue_push!(self.t.nexuses, q.head, q.tail, ready_next, n);
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
        let row = &mut self.t.connections[c as usize];
        let n = row.nexus;
        if n == NONE {
            return;
        }
        if !row.in_tx {
            row.in_tx = true;
            let nexus = &mut self.t.nexuses[n as usize];
            queue_push!(self.t.connections, nexus.tx_head, nexus.tx_tail, tx_next, c);
        }
        self.mark_ready(n);
    }

    /// Puts a connection in the round of those with events.
    #[inline(always)]
    pub(crate) fn mark_events(&mut self, c: u32) {
        let row = &mut self.t.connections[c as usize];
        if !row.in_events {
            row.in_events = true;
            let q = &mut self.g.connection_events;
            queue_push!(self.t.connections, q.head, q.tail, event_next, c);
        }
    }

    /// Puts a task in its connection's list of events.
    #[inline(always)]
    pub(crate) fn task_event(&mut self, t: u32, event: TaskEvents) {
        let task = &mut self.t.tasks[t as usize];
        task.events.insert(event);
        let c = task.connection;
        if !task.flags.contains(TaskFlags::EVENTS) {
            task.flags.insert(TaskFlags::EVENTS);
            let row = &mut self.t.connections[c as usize];
            queue_push!(self.t.tasks, row.ev_head, row.ev_tail, event_next, t);
        }
        self.mark_events(c);
    }

    /// Puts a task in its connection's list of all tasks.
    #[inline(always)]
    pub(crate) fn link_task(&mut self, c: u32, t: u32) {
        let row = &mut self.t.connections[c as usize];
        let head = row.tasks;
        row.tasks = t;
        if head != NONE {
            self.t.tasks[head as usize].prev = t;
        }
        let task = &mut self.t.tasks[t as usize];
        task.connection = c;
        task.prev = NONE;
        task.next = head;
    }

    #[inline(always)]
    pub(crate) fn unlink_task(&mut self, t: u32) {
        let task = &self.t.tasks[t as usize];
        let (c, prev, next) = (task.connection, task.prev, task.next);
        if prev == NONE {
            self.t.connections[c as usize].tasks = next;
        } else {
            self.t.tasks[prev as usize].next = next;
        }
        if next != NONE {
            self.t.tasks[next as usize].prev = prev;
        }
    }

    /// Gives a message its one outcome.
    #[inline(always)]
    pub(crate) fn finish(&mut self, t: u32, ending: Ending) {
        let row = &mut self.t.tasks[t as usize];
        debug_assert!(
            row.ending == Ending::Open,
            "task {t} ends twice: {:?}",
            row.ending
        );
        row.ending = ending;
        let (c, timed) = (row.connection, row.timer != NONE);
        let flags = row.flags;
        let bytes = row.out.total + u64::from(row.slot_data) + u64::from(row.header_len);
        if row.work > 0 || flags.contains(TaskFlags::PEER_HOLDS) {
            row.flags.insert(TaskFlags::LINGERS);
            let memory = row.out.count > 0 || row.into.count > 0;
            row.flags.set(TaskFlags::OWES_RETURN, memory);
            self.connection(c).held += 1;
        }
        if timed {
            self.aside().disarm(Timer::Task(t));
        }
        if !flags.contains(TaskFlags::INCOMING) {
            self.unqueue(c, bytes);
            // Only a good outcome puts an answer into the user's hands.
            if ending != Ending::Good {
                self.task(t).flags.remove(TaskFlags::USER);
            }
        }
        if flags.contains(TaskFlags::SILENT) {
            self.try_free(t);
        } else {
            self.task_event(t, TaskEvents::MAIN);
        }
    }

    #[cold]
    #[inline(never)]
    fn disarm(mut self, timer: Timer) {
        timer::disarm(&mut self.t, &mut self.g.timers, timer);
    }

    /// A message no longer counts against its connection's queue limits.
    #[inline(always)]
    fn unqueue(&mut self, c: u32, bytes: u64) {
        let row = &mut self.t.connections[c as usize];
        row.queued_messages -= 1;
        row.queued_bytes -= bytes;
        if row.wants_writable {
            self.aside().queue_has_room(c);
        }
    }

    #[cold]
    #[inline(never)]
    fn queue_has_room(mut self, c: u32) {
        let (messages_max, bytes_max) = (self.g.config.queue_messages, self.g.config.queue_bytes);
        let row = self.connection(c);
        if row.queued_messages < messages_max && row.queued_bytes < bytes_max {
            row.wants_writable = false;
            self.writable(c);
        }
    }

    fn writable(&mut self, c: u32) {
        let row = self.connection(c);
        if !row.silent {
            row.events.insert(ConnectionEvents::WRITABLE);
            self.mark_events(c);
        }
    }

    /// Gives a slot of either kind back and wakes who waits for one. Sockets that wait are not
    /// part of what is taken apart: the endpoint offers them the slots afterwards.
    #[inline(always)]
    pub(crate) fn free_slot(&mut self, slot: u32) {
        let row = &mut self.t.slots[slot as usize];
        debug_assert!(row.usage != SlotUse::Free, "slot {slot} freed twice");
        row.usage = SlotUse::Free;
        row.nexus = NONE;
        if slot < self.g.config.rx_slots {
            self.g.rx_slots.give(self.t.slots, slot);
        } else {
            self.g.tx_slots.give(self.t.slots, slot);
        }
        if self.g.slot_waiters > 0 {
            self.aside().wake_slot_waiters();
        }
        self.wake_blocked();
    }

    #[cold]
    #[inline(never)]
    fn wake_slot_waiters(mut self) {
        self.g.slot_waiters = 0;
        let count = self.t.nexuses.len() as u32;
        for n in 0..count {
            if core::mem::take(&mut self.nexus(n).wants_slot) {
                self.mark_ready(n);
            }
        }
    }

    /// A task or slot is free: the first user in line hears of it.
    #[inline(always)]
    pub(crate) fn wake_blocked(&mut self) {
        if !self.g.blocked.is_empty() {
            self.aside().wake_first_blocked();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_first_blocked(mut self) {
        if self.g.tx_slots.free() <= self.g.tx_reserve || self.g.tasks.free() == 0 {
            return;
        }
        let q = &mut self.g.blocked;
        let c = queue_pop!(self.t.connections, q.head, q.tail, blocked_next);
        self.connection(c).in_blocked = false;
        self.writable(c);
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
        let row = &self.t.tasks[t as usize];
        if row.state == State::Ended && row.work == 0 && !row.flags.intersects(BUSY) {
            self.free_task(t);
        }
    }

    #[inline(always)]
    fn free_task(&mut self, t: u32) {
        let row = &mut self.t.tasks[t as usize];
        row.state = State::Vacant;
        let (slot, answer) = (row.slot, row.answer);
        let long = (row.out.extent & row.into.extent) != NONE;
        if !row.flags.contains(TaskFlags::ORPHAN) {
            self.unlink_task(t);
        }
        if long {
            self.aside().give_lists(t);
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
            self.g.tasks.give(self.t.tasks, t);
            self.wake_blocked();
        }
    }

    #[cold]
    #[inline(never)]
    fn give_lists(mut self, t: u32) {
        let row = self.task(t);
        let (out, into) = (row.out.extent, row.into.extent);
        self.give_extents(out);
        self.give_extents(into);
    }

    /// Gives a chain of extents back.
    pub(crate) fn give_extents(&mut self, mut extent: u32) {
        while extent != NONE {
            let next = self.t.extents[extent as usize].next_free;
            self.g.extents.give(self.t.extents, extent);
            extent = next;
        }
    }

    /// A receive slot that held a message is free again.
    #[inline(always)]
    pub(crate) fn free_incoming(&mut self, slot: u32) {
        let row = &mut self.t.tasks[slot as usize];
        row.generation = row.generation.wrapping_add(1);
        row.flags = TaskFlags::empty();
        row.state = State::Vacant;
        let row = &self.t.slots[slot as usize];
        debug_assert!(row.usage == SlotUse::Filled);
        let n = row.nexus;
        self.free_slot(slot);
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
            self.aside().first_in_line(n);
        }
    }

    /// Enters a work request on a send queue. There is room for it: that was checked before.
    #[inline(always)]
    pub(crate) fn push_work(&mut self, n: u32, entry: WorkEntry) -> WrId {
        let Some(w) = self.g.work.take(self.t.work) else {
            unreachable!("room was checked before");
        };
        let row = &mut self.t.work[w as usize];
        let generation = row.generation;
        let bytes = entry.bytes;
        *row = WorkEntry {
            generation,
            nexus: n,
            live: true,
            ..entry
        };
        let nexus = &mut self.t.nexuses[n as usize];
        queue_push!(self.t.work, nexus.sq_head, nexus.sq_tail, next_free, w);
        nexus.sq_used += 1;
        nexus.sq_bytes += bytes;
        let transport = nexus.transport;
        self.g.transport(transport).cq_used += 1;
        WrId::new(WrKind::Send, w, generation)
    }

    /// Takes the oldest work request off a send queue: what it was, whose, its slot and bytes.
    #[inline(always)]
    pub(crate) fn take_work(&mut self, n: u32) -> Done {
        let nexus = &mut self.t.nexuses[n as usize];
        let w = queue_pop!(self.t.work, nexus.sq_head, nexus.sq_tail, next_free);
        let row = &mut self.t.work[w as usize];
        row.live = false;
        let done = Done {
            kind: row.kind,
            task: row.task,
            connection: row.connection,
            slot: row.slot,
            bytes: row.bytes,
        };
        nexus.sq_used -= 1;
        nexus.sq_bytes -= row.bytes;
        let transport = nexus.transport;
        self.g.work.give(self.t.work, w);
        self.g.transport(transport).cq_used -= 1;
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
