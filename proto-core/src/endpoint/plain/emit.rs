//! Work requests of the message path: receives of a batch, and frames of plain messages.

use crate::endpoint::credit::{ANSWER_CREDITS, REQUEST_CREDITS};
use crate::endpoint::frame::transport_flags;
use crate::endpoint::{Endpoint, Hot};
use crate::entries::{SlotUse, Task, TaskFlags};
use crate::ids::{NONE, NexusId, WrId, WrKind};
use crate::memory::{SegmentSpan, SlotId, Slots, Span};
use crate::mutant::any_mutant;
use crate::output::Work;
use crate::state::connection::State as ConnectionState;
use crate::state::task::{Input, State};
use crate::storage::Storage;
use crate::tid;
use crate::trace::Trace;
use crate::wire::{InlineRequest, InlineResponse, Kind, SessionFlags};

/// A plain message that goes.
struct Next {
    t: u32,
    kind: Kind,
    slot: u32,
    header_len: u16,
    data_len: u32,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The next work of the first ready nexus, if it is what nearly all work is. `None`: it is
    /// not, and nothing was posted.
    #[inline(always)]
    pub(crate) fn plain_work(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        if any_mutant!(self.g) {
            return None;
        }
        let nexus = self.nexus(n);
        debug_assert!(!nexus.usual || nexus.is_usual());
        if !nexus.usual {
            return None;
        }
        if nexus.may_want_receive() {
            if let Some(work) = self.hot().next_receive(n) {
                self.check_foreseen(n, slots);
                return Some(work);
            }
            if self.nexus(n).receive_due() {
                return None;
            }
        }
        self.plain_send(n, slots)
    }

    /// The next frame of a plain message.
    #[inline(always)]
    fn plain_send(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        let nexus = self.nexus(n);
        if nexus.tx_credits < ANSWER_CREDITS {
            return None;
        }
        let c = nexus.tx_head;
        let mut hot = self.hot();
        let next = hot.next_plain(n, c)?;
        let at = hot.g.config.headroom();
        let bytes = slots.slot_mut(SlotId(next.slot));
        let start = if next.kind == Kind::MsgRsp {
            hot.write_response(n, c, &next, bytes, at)
        } else {
            hot.write_request(n, c, &next, bytes, at)
        };
        let end = at as u32 + u32::from(next.header_len) + next.data_len;
        let (slot, offset, len) = (next.slot, start as u32, end - start as u32);
        let wr = hot.push_frame(n, next.t, len);
        let last = hot.leave_round(n, c);
        let nexus = NexusId::new(n, hot.nexuses[n as usize].generation);
        let signaled = last || self.sent_with_more(n, c);
        self.check_foreseen(n, slots);
        Some(Work::Send {
            nexus,
            wr,
            head: Span { slot, offset, len },
            tail: Span {
                slot,
                offset: end,
                len: 0,
            },
            data: SegmentSpan::EMPTY,
            signaled,
            fence: false,
        })
    }

    #[inline(never)]
    fn sent_with_more(&mut self, n: u32, c: u32) -> bool {
        let signaled = self.signal(n);
        self.rotate_tx(n, c);
        signaled
    }
}

impl<T: Trace> Hot<'_, T> {
    /// The next receive of a batch, or of one that may begin without a look at the share: what
    /// other nexuses are sure of stays free.
    #[inline(always)]
    fn next_receive(&mut self, n: u32) -> Option<Work> {
        let nexus = &mut self.nexuses[n as usize];
        if nexus.batch_left == 0 {
            let spare = self.g.spare_receives();
            if !nexus.begin_batch(spare, self.g.config.receives_sure()) {
                return None;
            }
        }
        let state = self.g.transport(nexus.transport);
        if state.cq_used >= state.cq_receives || state.limits.shared_receive_queue {
            return None;
        }
        let (slot, row) = self.g.rx_slots.take_row(self.slots)?;
        row.usage = SlotUse::Posted;
        row.nexus = n;
        row.next_free = NONE;
        let wr = WrId::new(WrKind::Recv, slot, row.generation);
        self.g.transport(nexus.transport).cq_used += 1;
        nexus.posted += 1;
        nexus.count_batch();
        let id = NexusId::new(n, nexus.generation);
        let last = core::mem::replace(&mut nexus.rq_tail, slot);
        if nexus.rq_head == NONE {
            nexus.rq_head = slot;
        } else {
            self.slots[last as usize].next_free = slot;
        }
        if nexus.batch_left == 0 {
            self.leave_ready(n);
        }
        Some(Work::Recv {
            nexus: id,
            wr,
            slot: SlotId(slot),
        })
    }

    /// Takes a nexus, the first of the ready ones, off their list if it has nothing more to do.
    #[inline(always)]
    fn leave_ready(&mut self, n: u32) {
        let nexus = &mut self.nexuses[n as usize];
        if nexus.tx_head == NONE && !nexus.may_need_receives() {
            nexus.in_ready = false;
            self.g.transport(nexus.transport).ready.head = nexus.ready_next;
        }
    }

    /// The plain message that a connection is to send next, if nothing goes before it and nothing
    /// is in its way.
    #[inline(always)]
    fn next_plain(&mut self, n: u32, c: u32) -> Option<Next> {
        let row = self.connections.get(c as usize)?;
        if !row.frames.is_empty() || row.state != ConnectionState::Online {
            return None;
        }
        let scarce = self.nexuses[n as usize].tx_credits < REQUEST_CREDITS;
        let answer = row.rsp_head != NONE;
        let response = row.req_head == NONE || ((row.rsp_turn || scarce) && answer);
        if scarce && !response {
            return None;
        }
        let (t, state) = if response {
            (row.rsp_head, State::Answering)
        } else {
            (row.req_head, State::Queued)
        };
        let task = self.tasks.get(t as usize)?;
        if !task.flags.contains(TaskFlags::PLAIN) || task.state != state {
            return None;
        }
        let nexus = &mut self.nexuses[n as usize];
        let transport = nexus.transport;
        let state = self.g.transport(transport);
        let room = nexus.sq_used + 2 < state.limits.sq_depth
            && state.cq_used < state.limits.cq_depth
            && nexus.sq_bytes < state.limits.sq_bytes;
        if !room {
            return None;
        }
        self.g.transport(transport).cq_used += 1;
        nexus.sq_used += 1;
        Some(Next {
            t,
            kind: if response { Kind::MsgRsp } else { task.kind },
            slot: task.slot,
            header_len: task.header_len,
            data_len: task.slot_data,
        })
    }

    /// Writes a request's headers into its slot, to end at `at`, and says where they start.
    #[inline(always)]
    fn write_request(&mut self, n: u32, c: u32, next: &Next, bytes: &mut [u8], at: usize) -> usize {
        let t = next.t;
        self.step(t, State::Queued, Input::Post);
        self.g.counters.requests_sent += 1;
        let mut front = InlineRequest::new(bytes, at);
        front.message(next.kind, next.header_len, next.data_len);
        let task = &mut self.tasks[t as usize];
        front.id(tid::of_task(t, task.generation));
        // The outcome of a one-way is its completion here, and libxio's says so to the peer.
        if next.kind == Kind::OneWayReq || task.flags.contains(TaskFlags::LAST) {
            front.flags(request_flags(task), transport_flags(task));
        }
        task.flags = task.flags.difference(TaskFlags::QUEUED) | TaskFlags::ON_QUEUE;
        task.nexus = n;
        task.work += 1;
        let row = &mut self.connections[c as usize];
        row.req_head = task.queue_next;
        row.rsp_turn = true;
        task.serial = row.serial;
        let ack_sn = row.req_expected.wrapping_sub(1);
        front.session(row.peer_session, row.serial, row.req_sn, ack_sn);
        row.serial += 1;
        row.req_sn = row.req_sn.wrapping_add(1);
        let (sn, ack_sn, credits) = self.nexuses[n as usize].number_rdma();
        front.transport(sn, ack_sn, credits);
        at - InlineRequest::LEN
    }

    /// The same for a response.
    #[inline(always)]
    fn write_response(
        &mut self,
        n: u32,
        c: u32,
        next: &Next,
        bytes: &mut [u8],
        at: usize,
    ) -> usize {
        let t = next.t;
        self.step(t, State::Answering, Input::Post);
        self.g.counters.responses_sent += 1;
        let mut front = InlineResponse::new(bytes, at);
        let task = &mut self.tasks[t as usize];
        front.message(task.status, next.header_len, next.data_len);
        front.ids(task.peer_tid, tid::of_task(t, task.generation));
        task.flags = task.flags.difference(TaskFlags::QUEUED) | TaskFlags::ON_QUEUE;
        task.work += 1;
        let row = &mut self.connections[c as usize];
        row.rsp_head = task.queue_next;
        row.rsp_turn = false;
        let ack_sn = row.rsp_expected.wrapping_sub(1);
        front.session(row.peer_session, task.serial, row.rsp_sn, ack_sn);
        row.rsp_sn = row.rsp_sn.wrapping_add(1);
        let (sn, ack_sn, credits) = self.nexuses[n as usize].number_rdma();
        front.transport(sn, ack_sn, credits);
        at - InlineResponse::LEN
    }

    /// After a frame: a connection that has nothing more to send leaves its nexus's round, and
    /// the frame is signalled. False: it has more.
    #[inline(always)]
    fn leave_round(&mut self, n: u32, c: u32) -> bool {
        let row = &mut self.connections[c as usize];
        if (row.req_head & row.rsp_head) != NONE {
            return false;
        }
        row.in_tx = false;
        let nexus = &mut self.nexuses[n as usize];
        nexus.tx_head = row.tx_next;
        nexus.sq_unsignaled = 0;
        self.leave_ready(n);
        true
    }
}

fn request_flags(task: &Task) -> SessionFlags {
    let mut flags = SessionFlags::empty();
    flags.set(
        SessionFlags::LAST_IN_BATCH,
        task.flags.contains(TaskFlags::LAST),
    );
    flags.set(SessionFlags::IMM_SEND_COMP, task.kind == Kind::OneWayReq);
    flags
}
