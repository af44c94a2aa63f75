//! Commands with plain messages.

use super::{REQUEST_HEAD, RESPONSE_HEAD};
use crate::endpoint::{Hot, Message, RequestOptions};
use crate::entries::{Slot, SlotUse, Task, TaskFlags, Transfer};
use crate::ids::{ConnectionId, NONE, TaskId};
use crate::mutant::any_mutant;
use crate::state::connection::State as ConnectionState;
use crate::state::task::{Input, State};
use crate::table::queue_push;
use crate::trace::Trace;
use crate::wire::Kind;

impl<T: Trace> Hot<'_, T> {
    /// Whether a message lies in a slot of the user's, as a whole and within the limits.
    #[inline(always)]
    fn is_plain(&mut self, n: u32, message: &Message<'_>) -> bool {
        let Some(slot) = message.slot else {
            return false;
        };
        let config = &self.g.config;
        let short = message.header_len == 0 || {
            let max = self.nexuses[n as usize].peer_header_max;
            message.header_len <= config.header_max.min(max)
        };
        let row = self.slots.get(slot.0 as usize);
        message.data.is_empty()
            && !message.prompt
            && message.slot_data <= config.inline_data_max
            && short
            && row.is_some_and(|row| row.usage == SlotUse::Reserved && row.nexus == n)
    }

    /// A connection of a nexus has something to send.
    #[inline(always)]
    fn enter_round(&mut self, n: u32, c: u32) {
        let row = &mut self.connections[c as usize];
        if !row.in_tx {
            row.in_tx = true;
            let nexus = &mut self.nexuses[n as usize];
            queue_push!(self.connections, nexus.tx_head, nexus.tx_tail, tx_next, c);
        }
        self.mark_ready(n);
    }

    /// `send` and `send_one_way`.
    #[inline(always)]
    pub(crate) fn plain_submit(
        &mut self,
        kind: Kind,
        connection: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) -> Option<TaskId> {
        if any_mutant!(self.g) {
            return None;
        }
        let c = connection.at();
        let row = self.connections.get(c as usize)?;
        let bytes = u64::from(message.slot_data) + u64::from(message.header_len);
        let goes = row.generation == connection.generation()
            && row.state == ConnectionState::Online
            && row.queued_messages < self.g.config.queue_messages
            && (row.queued_bytes == 0 || row.queued_bytes + bytes <= self.g.config.queue_bytes)
            && self.g.queued_bytes + bytes <= self.g.config.queue_bytes_all
            && options.into.is_empty()
            && options.deadline.is_none()
            && row.policy.deadline.is_none()
            && !(options.force_read || options.force_write || options.receipt)
            && !options.idempotent;
        let (n, lasting) = (row.nexus, row.is_lasting());
        if !goes || n == NONE || !self.is_plain(n, message) {
            return None;
        }
        let len = REQUEST_HEAD + u32::from(message.header_len) + message.slot_data;
        if len > self.nexuses[n as usize].frame_max {
            return None;
        }
        let (t, task) = self.g.tasks.take_row(self.tasks)?;
        task.reset();
        task.step(self.trace, t, State::Vacant, Input::Submit);
        self.g.life.prep += 1;
        task.kind = kind;
        task.flags = TaskFlags::PLAIN | TaskFlags::QUEUED;
        task.flags.set(TaskFlags::LAST, options.last_in_batch);
        task.flags.set(TaskFlags::KEPT, lasting);
        let id = TaskId::new(t, task.generation);
        fill_plain(task, self.slots, message);
        let row = &mut self.connections[c as usize];
        let head = core::mem::replace(&mut row.tasks, t);
        task.connection = c;
        (task.prev, task.next) = (NONE, head);
        task.queue_next = NONE;
        if let Some(after) = self.tasks.get_mut(head as usize) {
            after.prev = t;
        }
        row.queued_messages += 1;
        row.queued_bytes += bytes;
        self.g.queued_bytes += bytes;
        let last = core::mem::replace(&mut row.req_tail, t);
        if row.req_head == NONE {
            row.req_head = t;
        } else {
            self.tasks[last as usize].queue_next = t;
        }
        self.enter_round(n, c);
        Some(id)
    }

    /// `respond`. False: the long way must see to it.
    #[inline(always)]
    pub(crate) fn plain_respond(&mut self, request: TaskId, message: &Message<'_>) -> bool {
        if any_mutant!(self.g) {
            return false;
        }
        let t = request.at();
        let Some(row) = self.tasks.get(t as usize) else {
            return false;
        };
        let special = TaskFlags::ORPHAN
            | TaskFlags::QUEUED
            | TaskFlags::FORCE_WRITE
            | TaskFlags::RECEIPT
            | TaskFlags::RECEIPT_NOW
            | TaskFlags::PROMPT
            | TaskFlags::SILENT;
        let mine = row.generation == request.generation()
            && row.kind == Kind::MsgReq
            && row.flags.contains(TaskFlags::INCOMING)
            && !row.flags.intersects(special)
            && row.state == State::Delivered
            && in_hands(row);
        if !mine {
            return false;
        }
        let (c, n, offered) = (row.connection, row.nexus, row.offer_count);
        let row = &self.connections[c as usize];
        if row.state != ConnectionState::Online || !self.is_plain(n, message) {
            return false;
        }
        let nexus = &self.nexuses[n as usize];
        let len = u32::from(message.header_len) + message.slot_data;
        if RESPONSE_HEAD + 16 * u32::from(offered) + len >= nexus.frame_max {
            return false;
        }
        let row = &mut self.tasks[t as usize];
        fill_plain(row, self.slots, message);
        row.step(self.trace, t, State::Delivered, Input::Respond);
        row.flags.remove(TaskFlags::USER);
        row.flags
            .insert(TaskFlags::RESPONSE | TaskFlags::PLAIN | TaskFlags::QUEUED);
        row.transfer = Transfer::NONE;
        let row = &mut self.connections[c as usize];
        row.unanswered -= 1;
        queue_push!(self.tasks, row.rsp_head, row.rsp_tail, queue_next, t);
        self.enter_round(n, c);
        true
    }

    /// `release`. False: the long way must see to it.
    #[inline(always)]
    pub(crate) fn plain_release(&mut self, task: TaskId) -> bool {
        if any_mutant!(self.g) {
            return false;
        }
        let t = task.at();
        let Some(row) = self.tasks.get_mut(t as usize) else {
            return false;
        };
        let outgoing = row.generation == task.generation()
            && !row
                .flags
                .intersects(TaskFlags::INCOMING | TaskFlags::ORPHAN | TaskFlags::POOLED)
            && in_hands(row);
        let long = (row.out.extent & row.into.extent) != NONE;
        if !outgoing || long || self.g.config.flow_control || self.g.anyone_waits() {
            return false;
        }
        row.flags.remove(TaskFlags::USER);
        if self.is_over(t) {
            self.free_plain(t);
        }
        true
    }

    /// Ends the row of an outgoing message that has no lists, while nobody waits for what is free.
    #[inline(always)]
    fn free_plain(&mut self, t: u32) {
        let row = &mut self.tasks[t as usize];
        row.state = State::Vacant;
        let (slot, answer) = (row.slot, row.answer);
        self.unlink_task(t);
        if slot != NONE {
            self.free_slot(slot);
        }
        if answer != NONE {
            self.free_incoming(answer);
        }
        self.g.tasks.give(self.tasks, t);
    }
}

/// Puts a message's slot and lengths into its row.
#[inline(always)]
fn fill_plain(row: &mut Task, slots: &mut [Slot], message: &Message<'_>) {
    let Some(slot) = message.slot else { return };
    slots[slot.0 as usize].usage = SlotUse::Taken;
    row.slot = slot.0;
    row.header_len = message.header_len;
    row.slot_data = message.slot_data;
    row.user = message.user;
}

/// Whether the user was told of a message and has not given it back.
#[inline(always)]
pub(crate) fn in_hands(task: &Task) -> bool {
    task.flags.contains(TaskFlags::USER)
        && !task.flags.contains(TaskFlags::HELD_BACK)
        && !task.events.contains(crate::entries::TaskEvents::MAIN)
        && matches!(task.state, State::Delivered | State::Ended)
}
