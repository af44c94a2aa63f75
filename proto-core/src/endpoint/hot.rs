//! The tables of the message path, fetched once for each call from outside, and what is done with
//! their rows there.
//!
//! All is inlined where it is used, so that a row's place and bounds are worked out once per call.
//! Nothing here calls what is rare: who waits for a slot or a task, deadlines, segment lists. The
//! endpoint's methods of the same names add that; the short way (`plain`) is only taken when there
//! is nothing to add.

use super::{Endpoint, Globals};
use crate::entries::{
    Connection, Ending, Nexus, Slot, SlotUse, Task, TaskEvents, TaskFlags, WorkEntry, WorkKind,
};
use crate::ids::{NONE, WrId, WrKind};
use crate::mutant::mutated;
use crate::state::task::{self, Action, Input, State};
use crate::storage::Storage;
use crate::table::queue_push;
use crate::trace::Trace;
use crate::wire::{Framing, Kind};

/// In a place on a send queue: not a work entry's index, but that of the task whose frame it is.
pub(crate) const FRAME: u32 = 1 << 31;

pub(crate) struct Hot<'a, T> {
    pub(crate) nexuses: &'a mut [Nexus],
    pub(crate) connections: &'a mut [Connection],
    pub(crate) tasks: &'a mut [Task],
    pub(crate) slots: &'a mut [Slot],
    pub(crate) work: &'a mut [WorkEntry],
    pub(crate) g: &'a mut Globals,
    pub(crate) trace: &'a mut T,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    #[inline(always)]
    pub(crate) fn hot(&mut self) -> Hot<'_, T> {
        let tables = self.s.tables();
        Hot {
            nexuses: tables.nexuses,
            connections: tables.connections,
            tasks: tables.tasks,
            slots: tables.slots,
            work: tables.work,
            g: &mut self.g,
            trace: &mut self.trace,
        }
    }
}

impl Task {
    /// [`task_input`](Hot::task_input) of a task in a known state: nothing is looked up when the
    /// program runs.
    #[inline(always)]
    pub(crate) fn step(&mut self, trace: &mut impl Trace, t: u32, from: State, input: Input) {
        let (next, action) = task::lookup(from, input);
        debug_assert!(action != Action::Ignored);
        debug_assert!(self.state == from);
        self.state = next;
        trace.transition(3, t, from as u8, input as u8, next as u8);
    }
}

impl Globals {
    /// Whether somebody waits for a slot or a task to be free.
    #[inline(always)]
    pub(crate) fn anyone_waits(&mut self) -> bool {
        self.waits && {
            self.waits = self.has_lines();
            self.waits
        }
    }

    /// Whether there is anybody in a line for slots or tasks.
    #[cold]
    #[inline(never)]
    pub(crate) fn has_lines(&self) -> bool {
        let lines = self.blocked.head & self.first_slot.head & self.more_slots.head;
        self.own_lines > 0 || lines & self.full_slots.head & self.slot_line.head != NONE
    }
}

impl<T: Trace> Hot<'_, T> {
    #[inline(always)]
    pub(crate) fn task_input(&mut self, t: u32, input: Input) -> Action {
        let row = &mut self.tasks[t as usize];
        let from = row.state;
        let (next, action) = task::lookup(from, input);
        row.state = next;
        self.g.life.step(from, next);
        if action == Action::Ignored {
            self.g.counters.ignored_inputs += 1;
        } else {
            self.trace
                .transition(3, t, from as u8, input as u8, next as u8);
        }
        action
    }

    /// [`task_input`](Self::task_input) of a task whose state is known: nothing is looked up when
    /// the program runs.
    #[inline(always)]
    pub(crate) fn step(&mut self, t: u32, from: State, input: Input) {
        let (next, _) = task::lookup(from, input);
        self.g.life.step(from, next);
        self.tasks[t as usize].step(self.trace, t, from, input);
    }

    /// Something may have changed that lets a nexus send.
    #[inline(always)]
    pub(crate) fn mark_ready(&mut self, n: u32) {
        let row = &mut self.nexuses[n as usize];
        if !row.in_ready {
            row.in_ready = true;
            let q = &mut self.g.transport(row.transport).ready;
            queue_push!(self.nexuses, q.head, q.tail, ready_next, n);
        }
    }

    /// Something small changed (a receive used or free, credits, room): the nexus is ready if that
    /// can lead to work.
    #[inline(always)]
    pub(crate) fn look_again(&mut self, n: u32) {
        if self.nexuses[n as usize].may_have_work() {
            self.mark_ready(n);
        }
    }

    /// A connection may have something to send.
    #[inline(always)]
    pub(crate) fn mark_tx(&mut self, c: u32) {
        let row = &mut self.connections[c as usize];
        let n = row.nexus;
        if n == NONE {
            return;
        }
        let nexus = &mut self.nexuses[n as usize];
        nexus.only_requests = false;
        if !row.in_tx {
            row.in_tx = true;
            queue_push!(self.connections, nexus.tx_head, nexus.tx_tail, tx_next, c);
        }
        self.mark_ready(n);
    }

    /// Puts a connection in the round of those with events.
    #[inline(always)]
    pub(crate) fn mark_events(&mut self, c: u32) {
        let row = &mut self.connections[c as usize];
        if !row.in_events {
            row.in_events = true;
            let q = &mut self.g.connection_events;
            queue_push!(self.connections, q.head, q.tail, event_next, c);
        }
    }

    /// Puts a task in its connection's list of events.
    #[inline(always)]
    pub(crate) fn task_event(&mut self, t: u32, event: TaskEvents) {
        let task = &mut self.tasks[t as usize];
        task.events.insert(event);
        let c = task.connection;
        if !task.flags.contains(TaskFlags::EVENTS) {
            task.flags.insert(TaskFlags::EVENTS);
            let row = &mut self.connections[c as usize];
            queue_push!(self.tasks, row.ev_head, row.ev_tail, event_next, t);
        }
        self.mark_events(c);
    }

    /// Puts a task in its connection's list of all tasks.
    #[inline(always)]
    pub(crate) fn link_task(&mut self, c: u32, t: u32) {
        let row = &mut self.connections[c as usize];
        let head = row.tasks;
        row.tasks = t;
        if let Some(after) = self.tasks.get_mut(head as usize) {
            after.prev = t;
        }
        let task = &mut self.tasks[t as usize];
        task.connection = c;
        task.prev = NONE;
        task.next = head;
    }

    #[inline(always)]
    pub(crate) fn unlink_task(&mut self, t: u32) {
        let task = &self.tasks[t as usize];
        let (c, prev, next) = (task.connection, task.prev, task.next);
        if let Some(before) = self.tasks.get_mut(prev as usize) {
            before.next = next;
        } else {
            self.connections[c as usize].tasks = next;
        }
        if let Some(after) = self.tasks.get_mut(next as usize) {
            after.prev = prev;
        }
    }

    /// Gives a message its one outcome, which is an event unless the message is silent.
    #[inline(always)]
    pub(crate) fn finish(&mut self, t: u32, ending: Ending) {
        let by_device = mutated!(self.g, ReturnedByDevice);
        let lost = mutated!(self.g, OutcomeLost) && matches!(ending, Ending::Failed(_));
        let row = &mut self.tasks[t as usize];
        debug_assert!(
            row.ending == Ending::Open,
            "task {t} ends twice: {:?}",
            row.ending
        );
        row.ending = ending;
        let work = row.work > 0 && !by_device;
        let held = work || row.flags.contains(TaskFlags::PEER_HOLDS);
        if held {
            row.flags.insert(TaskFlags::LINGERS);
            row.flags.set(TaskFlags::OWES_RETURN, row.lends_memory());
        }
        let c = &mut self.connections[row.connection as usize];
        c.held += u32::from(held);
        if !row.flags.contains(TaskFlags::INCOMING) {
            self.g.life.end(ending);
            // It no longer counts against its connection's queue limits.
            c.queued_messages -= 1;
            let bytes = row.queued_bytes();
            c.queued_bytes -= bytes;
            self.g.queued_bytes -= bytes;
            // Only a good outcome puts an answer into the user's hands.
            if ending != Ending::Good {
                row.flags.remove(TaskFlags::USER);
            }
        }
        if !row.flags.contains(TaskFlags::SILENT) && !lost {
            self.task_event(t, TaskEvents::MAIN);
        }
    }

    /// Gives a slot of either kind back.
    #[inline(always)]
    pub(crate) fn free_slot(&mut self, slot: u32) {
        if slot < self.g.config.rx_slots {
            self.free_rx_slot(slot);
        } else {
            self.free_tx_slot(slot);
        }
    }

    #[inline(always)]
    pub(crate) fn free_rx_slot(&mut self, slot: u32) {
        let row = &mut self.slots[slot as usize];
        debug_assert!(row.usage != SlotUse::Free, "slot {slot} freed twice");
        row.usage = SlotUse::Free;
        row.nexus = NONE;
        self.g.rx_slots.give(self.slots, slot);
    }

    #[inline(always)]
    pub(crate) fn free_tx_slot(&mut self, slot: u32) {
        self.uncharge(slot);
        let row = &mut self.slots[slot as usize];
        debug_assert!(row.usage != SlotUse::Free, "slot {slot} freed twice");
        row.usage = SlotUse::Free;
        self.g.tx_slots.give(self.slots, slot);
    }

    /// Whether nothing refers to a task's row any more.
    #[inline(always)]
    pub(crate) fn is_over(&self, t: u32) -> bool {
        const BUSY: TaskFlags = TaskFlags::QUEUED
            .union(TaskFlags::EVENTS)
            .union(TaskFlags::HELD_BACK)
            .union(TaskFlags::USER)
            .union(TaskFlags::LINGERS)
            .union(TaskFlags::PORTALS)
            .union(TaskFlags::WITHDRAWN)
            .union(TaskFlags::PEER_HOLDS);
        let row = &self.tasks[t as usize];
        row.state == State::Ended && row.work == 0 && !row.flags.intersects(BUSY)
    }

    /// A receive slot that held a message is free again.
    #[inline(always)]
    pub(crate) fn free_incoming(&mut self, slot: u32) {
        self.end_incoming(slot);
        let n = self.slots[slot as usize].nexus;
        self.free_rx_slot(slot);
        if (n as usize) < self.nexuses.len() {
            self.uncount(n);
        }
    }

    /// The task of a receive slot is over.
    #[inline(always)]
    pub(crate) fn end_incoming(&mut self, slot: u32) {
        debug_assert!(self.slots[slot as usize].usage == SlotUse::Filled);
        let row = &mut self.tasks[slot as usize];
        row.generation = row.generation.wrapping_add(1);
        row.flags = TaskFlags::empty();
        row.state = State::Vacant;
    }

    /// A receive slot is no longer counted to a transport connection.
    #[inline(always)]
    pub(crate) fn uncount(&mut self, n: u32) {
        let nexus = &mut self.nexuses[n as usize];
        nexus.held -= 1;
        let wants = nexus.may_want_receive() && nexus.framing == Framing::Rdma;
        if wants || nexus.stalled {
            self.mark_ready(n);
        }
    }

    /// Enters a work request on a send queue. There is room for it: that was checked before.
    #[inline(always)]
    pub(crate) fn push_work(&mut self, n: u32, entry: WorkEntry) -> WrId {
        let Some(w) = self.g.work.take(self.work) else {
            unreachable!("room was checked before");
        };
        let nexus = &mut self.nexuses[n as usize];
        nexus.sq_used += 1;
        self.g.transport(nexus.transport).cq_used += 1;
        let row = &mut self.work[w as usize];
        let generation = row.generation;
        let bytes = entry.bytes;
        *row = WorkEntry {
            generation,
            nexus: n,
            live: true,
            next_free: NONE,
            ..entry
        };
        self.enter_queue(n, w, bytes);
        WrId::new(WrKind::Send, w, generation)
    }

    /// Enters a message's frame on a send queue. The task itself stands for it, and is flagged so.
    #[inline(always)]
    pub(crate) fn push_frame(&mut self, n: u32, t: u32, bytes: u32) -> WrId {
        let row = &mut self.tasks[t as usize];
        debug_assert!(row.flags.contains(TaskFlags::ON_QUEUE) && row.nexus == n);
        row.sq_next = NONE;
        row.sq_bytes = bytes;
        let wr = WrId::new(WrKind::Frame, t, row.generation);
        self.enter_queue(n, t | FRAME, bytes.into());
        wr
    }

    #[inline(always)]
    fn enter_queue(&mut self, n: u32, at: u32, bytes: u64) {
        let nexus = &mut self.nexuses[n as usize];
        nexus.sq_bytes += bytes;
        nexus.traffic.work_posted += 1;
        nexus.traffic.bytes_posted += bytes;
        let last = core::mem::replace(&mut nexus.sq_tail, at);
        if nexus.sq_head == NONE {
            nexus.sq_head = at;
        } else if last & FRAME != 0 {
            self.tasks[(last ^ FRAME) as usize].sq_next = at;
        } else {
            self.work[last as usize].next_free = at;
        }
    }

    /// Takes a message's frame, the oldest on a send queue, off it. Returns its bytes.
    #[inline(always)]
    pub(crate) fn take_frame(&mut self, n: u32, t: u32) -> u32 {
        let row = &mut self.tasks[t as usize];
        row.flags.remove(TaskFlags::ON_QUEUE);
        let nexus = &mut self.nexuses[n as usize];
        debug_assert_eq!(nexus.sq_head, t | FRAME);
        nexus.sq_head = row.sq_next;
        nexus.sq_used -= 1;
        nexus.sq_bytes -= u64::from(row.sq_bytes);
        self.g.transport(nexus.transport).cq_used -= 1;
        row.sq_bytes
    }

    /// Takes the oldest work request off a send queue.
    pub(crate) fn take_work(&mut self, n: u32) -> Done {
        let nexus = &mut self.nexuses[n as usize];
        let w = nexus.sq_head;
        if w & FRAME != 0 {
            let t = w ^ FRAME;
            let bytes = self.take_frame(n, t);
            let row = &self.tasks[t as usize];
            let incoming = row.flags.contains(TaskFlags::INCOMING);
            let kind = if incoming { Kind::MsgRsp } else { row.kind };
            return Done {
                kind: WorkKind::Frame(kind),
                task: t,
                connection: NONE,
                slot: NONE,
                bytes: bytes.into(),
            };
        }
        let row = &mut self.work[w as usize];
        nexus.sq_head = row.next_free;
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
        self.g.transport(nexus.transport).cq_used -= 1;
        self.g.work.give(self.work, w);
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
