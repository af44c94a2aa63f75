//! Work requests of the message path: receives of a batch, and frames of plain messages.

use super::{counts_receives, framing};
use crate::endpoint::credit::{ANSWER_CREDITS, REQUEST_CREDITS};
use crate::endpoint::frame::transport_flags;
use crate::endpoint::{Endpoint, Hot};
use crate::entries::{Nexus, SlotUse, Task, TaskFlags, Usual};
use crate::ids::{NONE, NexusId, WrId, WrKind};
use crate::memory::{SegmentSpan, SlotId, Slots, Span};
use crate::mutant::any_mutant;
use crate::output::Work;
use crate::state::connection::State as ConnectionState;
use crate::state::task::{Input, State};
use crate::storage::Storage;
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    Framing, Headers, InlineRequest, InlineResponse, Kind, OnRdma, OnStream, SessionFlags,
};

/// A plain message that goes.
struct Next {
    t: u32,
    kind: Kind,
    framing: Framing,
    slot: u32,
    header_len: u16,
    data_len: u32,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The next work of the first ready nexus, if it is what nearly all work on RDMA is. `None`: it
    /// is not, and nothing was posted.
    #[inline(always)]
    pub(crate) fn plain_work(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        if any_mutant!(self.g) {
            return None;
        }
        let nexus = self.nexus(n);
        debug_assert!(nexus.usual == Usual::No || nexus.usual == nexus.find_usual());
        if nexus.usual != Usual::OnRdma {
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
        self.plain_send::<OnRdma>(n, slots)
    }

    /// The same on streams, which need no receives.
    #[inline(always)]
    pub(crate) fn stream_work(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        if any_mutant!(self.g) || self.nexus(n).usual != Usual::OnStream {
            return None;
        }
        self.plain_send::<OnStream>(n, slots)
    }

    /// The next frame of a plain message.
    #[inline(always)]
    fn plain_send<D: Headers>(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        let nexus = self.nexus(n);
        if counts_receives::<D>() && nexus.tx_credits < ANSWER_CREDITS {
            return None;
        }
        let framing = framing::<D>(nexus);
        let c = nexus.tx_head;
        let mut hot = self.hot();
        let next = hot.next_plain::<D>(n, c, framing)?;
        let at = hot.g.config.headroom();
        let bytes = slots.slot_mut(SlotId(next.slot));
        let start = if next.kind == Kind::MsgRsp {
            hot.write_response::<D>(n, c, &next, bytes, at)
        } else {
            hot.write_request::<D>(n, c, &next, bytes, at)
        };
        let data_at = at as u32 + u32::from(next.header_len);
        let end = data_at + next.data_len;
        let (slot, offset, len) = (next.slot, start as u32, end - start as u32);
        let wr = hot.push_frame(n, next.t, len);
        let last = hot.leave_round::<D>(n, c);
        let nexus = NexusId::new(n, hot.nexuses[n as usize].generation);
        let signaled = last || self.sent_with_more::<D>(n, c);
        self.check_foreseen(n, slots);
        // On two streams the data goes on the second.
        let split = if framing == Framing::TcpDual {
            data_at
        } else {
            end
        };
        Some(Work::Send {
            nexus,
            wr,
            head: Span {
                slot,
                offset,
                len: split - offset,
            },
            tail: Span {
                slot,
                offset: split,
                len: end - split,
            },
            data: SegmentSpan::EMPTY,
            signaled,
            fence: false,
        })
    }

    /// After a frame of a connection that has more: whether it is signalled, and whose turn is next.
    #[inline(never)]
    fn sent_with_more<D: Headers>(&mut self, n: u32, c: u32) -> bool {
        let has_entry = self.g.work.free() > 0;
        if has_entry && let Some(signaled) = self.hot().plain_follows::<D>(n, c) {
            return signaled;
        }
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
            self.leave_ready::<OnRdma>(n);
        }
        Some(Work::Recv {
            nexus: id,
            wr,
            slot: SlotId(slot),
        })
    }

    /// Takes a nexus, the first of the ready ones, off their list if it has nothing more to do.
    #[inline(always)]
    fn leave_ready<D: Headers>(&mut self, n: u32) {
        let nexus = &mut self.nexuses[n as usize];
        let receives = counts_receives::<D>() && nexus.may_need_receives();
        if nexus.tx_head == NONE && !receives {
            nexus.in_ready = false;
            self.g.transport(nexus.transport).ready.head = nexus.ready_next;
        }
    }

    /// The plain message that a connection is to send next, if nothing goes before it and nothing
    /// is in its way.
    #[inline(always)]
    fn next_plain<D: Headers>(&mut self, n: u32, c: u32, framing: Framing) -> Option<Next> {
        let (t, response) = self.plain_head::<D>(n, c)?;
        if !self.has_room(n) {
            return None;
        }
        let nexus = &mut self.nexuses[n as usize];
        self.g.transport(nexus.transport).cq_used += 1;
        nexus.sq_used += 1;
        let task = &self.tasks[t as usize];
        Some(Next {
            t,
            kind: if response { Kind::MsgRsp } else { task.kind },
            framing,
            slot: task.slot,
            header_len: task.header_len,
            data_len: task.slot_data,
        })
    }

    /// The message whose turn it is on a connection, and whether it is a response, if it is plain
    /// and nothing goes before it.
    #[inline(always)]
    fn plain_head<D: Headers>(&self, n: u32, c: u32) -> Option<(u32, bool)> {
        let row = self.connections.get(c as usize)?;
        if !row.frames.is_empty() || row.state != ConnectionState::Online {
            return None;
        }
        let scarce =
            counts_receives::<D>() && self.nexuses[n as usize].tx_credits < REQUEST_CREDITS;
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
        let is_plain = task.flags.contains(TaskFlags::PLAIN) && task.state == state;
        is_plain.then_some((t, response))
    }

    /// Whether a frame of data has room, and control frames after it.
    #[inline(always)]
    fn has_room(&mut self, n: u32) -> bool {
        let nexus = &self.nexuses[n as usize];
        let state = self.g.transport(nexus.transport);
        nexus.sq_used + 2 < state.limits.sq_depth
            && state.cq_used < state.limits.cq_depth
            && nexus.sq_bytes < state.limits.sq_bytes
    }

    /// What most frames of a burst are: another plain message of the same connection is sure to
    /// follow, and it is the only one in the round, which therefore stays as it is. Whether the
    /// frame is signalled, then; the same as [`Endpoint::signal`] would say.
    #[inline(always)]
    fn plain_follows<D: Headers>(&mut self, n: u32, c: u32) -> Option<bool> {
        let nexus = &self.nexuses[n as usize];
        let is_alone = nexus.tx_head == c && nexus.tx_tail == c;
        let has_credit = !counts_receives::<D>() || nexus.tx_credits > REQUEST_CREDITS;
        if !is_alone || !has_credit || !self.has_room(n) {
            return None;
        }
        self.plain_head::<D>(n, c)?;
        let nexus = &mut self.nexuses[n as usize];
        let every = self.g.transport(nexus.transport).signal_every;
        nexus.sq_unsignaled += 1;
        let due = nexus.sq_unsignaled >= every;
        if due {
            nexus.sq_unsignaled = 0;
        }
        Some(due)
    }

    /// Writes a request's headers into its slot, to end at `at`, and says where they start.
    #[inline(always)]
    fn write_request<D: Headers>(
        &mut self,
        n: u32,
        c: u32,
        next: &Next,
        bytes: &mut [u8],
        at: usize,
    ) -> usize {
        let t = next.t;
        self.step(t, State::Queued, Input::Post);
        self.g.counters.requests_sent += 1;
        let mut front = InlineRequest::<D>::new(bytes, at);
        front.kind(next.kind);
        front.lengths(next.framing, next.header_len, next.data_len);
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
        let (sn, ack_sn, credits) = number::<D>(&mut self.nexuses[n as usize]);
        front.transport(sn, ack_sn, credits);
        at - InlineRequest::<D>::LEN
    }

    /// The same for a response.
    #[inline(always)]
    fn write_response<D: Headers>(
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
        let mut front = InlineResponse::<D>::new(bytes, at);
        front.lengths(next.framing, next.header_len, next.data_len);
        let task = &mut self.tasks[t as usize];
        front.status(task.status);
        front.ids(task.peer_tid, tid::of_task(t, task.generation));
        task.flags = task.flags.difference(TaskFlags::QUEUED) | TaskFlags::ON_QUEUE;
        task.work += 1;
        let row = &mut self.connections[c as usize];
        row.rsp_head = task.queue_next;
        row.rsp_turn = false;
        let ack_sn = row.rsp_expected.wrapping_sub(1);
        front.session(row.peer_session, task.serial, row.rsp_sn, ack_sn);
        row.rsp_sn = row.rsp_sn.wrapping_add(1);
        let (sn, ack_sn, credits) = number::<D>(&mut self.nexuses[n as usize]);
        front.transport(sn, ack_sn, credits);
        at - InlineResponse::<D>::LEN
    }

    /// After a frame: a connection that has nothing more to send leaves its nexus's round, and
    /// the frame is signalled. False: it has more.
    #[inline(always)]
    fn leave_round<D: Headers>(&mut self, n: u32, c: u32) -> bool {
        let row = &mut self.connections[c as usize];
        if (row.req_head & row.rsp_head) != NONE {
            return false;
        }
        row.in_tx = false;
        let nexus = &mut self.nexuses[n as usize];
        nexus.tx_head = row.tx_next;
        nexus.sq_unsignaled = 0;
        self.leave_ready::<D>(n);
        true
    }
}

/// The transport's numbers of the next frame.
#[inline(always)]
fn number<D: Headers>(nexus: &mut Nexus) -> (u16, u16, u16) {
    if counts_receives::<D>() {
        nexus.number_rdma()
    } else {
        nexus.number_stream()
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
