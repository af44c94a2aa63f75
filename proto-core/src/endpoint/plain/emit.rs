//! Frames of plain messages.

use super::{MANNER, REQUEST, REQUEST_HEAD, RESPONSE, RESPONSE_HEAD};
use crate::endpoint::Parts;
use crate::endpoint::credit::DATA_CREDITS;
use crate::endpoint::frame;
use crate::entries::{TaskFlags, WorkEntry, WorkKind};
use crate::ids::{NONE, NexusId};
use crate::memory::{SegmentSpan, SlotId, Slots, Span};
use crate::output::Work;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::State as NexusState;
use crate::state::task::{Input, State};
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    Framing, Kind, RequestFields, ResponseFields, SessionFields, SessionFlags, TransportFlags,
    encode_inline_request, encode_inline_response,
};

/// What a plain message that may go is.
struct Next {
    c: u32,
    t: u32,
    response: bool,
}

impl<T: Trace> Parts<'_, T> {
    /// The plain message that is to go next on a nexus, if nothing goes before it and nothing is
    /// in its way.
    #[inline(always)]
    fn next_plain(&mut self, n: u32) -> Option<Next> {
        let nexus = &self.t.nexuses[n as usize];
        let c = nexus.tx_head;
        let only_data = (nexus.rdma_head & nexus.ack_head) == NONE
            && !nexus.setup_due
            && nexus.state == NexusState::Online
            && nexus.framing == Framing::Rdma
            && !nexus.receive_due();
        if c == NONE || !only_data || self.g.config.flow_control {
            return None;
        }
        let row = &self.t.connections[c as usize];
        if !row.frames.is_empty() || row.state != ConnectionState::Online {
            return None;
        }
        let response = row.req_head == NONE || (row.rsp_turn && row.rsp_head != NONE);
        let (t, manner, state) = if response {
            (row.rsp_head, RESPONSE, State::Answering)
        } else {
            (row.req_head, REQUEST, State::Queued)
        };
        if t == NONE {
            return None;
        }
        let task = &self.t.tasks[t as usize];
        if task.flags.intersection(MANNER) != manner || task.state != state {
            return None;
        }
        let len = u32::from(task.header_len) + task.slot_data;
        let fits = if response {
            RESPONSE_HEAD + 16 * u32::from(task.offer_count) + len < nexus.frame_max
        } else {
            REQUEST_HEAD + len <= nexus.frame_max
        };
        let state = self.g.transport(nexus.transport);
        let room = nexus.sq_used + 2 < state.limits.sq_depth
            && state.cq_used < state.limits.cq_depth
            && nexus.sq_bytes < state.limits.sq_bytes
            && nexus.tx_credits >= DATA_CREDITS;
        (fits && room && self.g.work.free() > 0).then_some(Next { c, t, response })
    }

    /// The next work of a nexus, if it is a plain message.
    #[inline(always)]
    pub(crate) fn plain_work(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        let Next { c, t, response } = self.next_plain(n)?;
        let kind = if response {
            self.leave_responses(c, t)
        } else {
            self.leave_requests(c, t)
        };
        let end = self.g.config.headroom();
        let bytes = slots.slot_mut(SlotId(self.task(t).slot));
        let start = if response {
            self.plain_response_head(n, c, t, bytes, end)
        } else {
            self.plain_request_head(n, c, t, bytes, end)
        };
        self.task_input(t, Input::Post);
        let task = &mut self.t.tasks[t as usize];
        task.work += 1;
        let slot = task.slot;
        let end = end as u32 + u32::from(task.header_len) + task.slot_data;
        let head = Span {
            slot,
            offset: start as u32,
            len: end - start as u32,
        };
        let tail = Span {
            slot,
            offset: end,
            len: 0,
        };
        let wr = self.push_work(
            n,
            WorkEntry {
                kind: WorkKind::Frame(kind),
                task: t,
                bytes: head.len.into(),
                ..WorkEntry::VACANT
            },
        );
        let signaled = self.sent(n, c);
        Some(Work::Send {
            nexus: NexusId::new(n, self.nexus(n).generation),
            wr,
            head,
            tail,
            data: SegmentSpan::EMPTY,
            signaled,
            fence: false,
        })
    }

    /// After a frame: whether it is signalled, and whose turn it is next.
    #[inline(always)]
    fn sent(&mut self, n: u32, c: u32) -> bool {
        let row = &mut self.t.connections[c as usize];
        if (row.req_head & row.rsp_head) != NONE {
            return self.aside().sent_with_more(n, c);
        }
        row.in_tx = false;
        let next = row.tx_next;
        let nexus = &mut self.t.nexuses[n as usize];
        nexus.tx_head = next;
        nexus.sq_unsignaled = 0;
        true
    }

    #[inline(never)]
    fn sent_with_more(mut self, n: u32, c: u32) -> bool {
        let signaled = self.signal(n);
        self.rotate_tx(n, c);
        signaled
    }

    #[inline(always)]
    fn leave_requests(&mut self, c: u32, t: u32) -> Kind {
        let task = &mut self.t.tasks[t as usize];
        task.flags.remove(TaskFlags::QUEUED);
        let row = &mut self.t.connections[c as usize];
        row.req_head = task.queue_next;
        row.rsp_turn = true;
        task.kind
    }

    #[inline(always)]
    fn leave_responses(&mut self, c: u32, t: u32) -> Kind {
        let task = &mut self.t.tasks[t as usize];
        task.flags.remove(TaskFlags::QUEUED);
        let row = &mut self.t.connections[c as usize];
        row.rsp_head = task.queue_next;
        row.rsp_turn = false;
        Kind::MsgRsp
    }

    #[inline(always)]
    fn plain_request_head(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        bytes: &mut [u8],
        end: usize,
    ) -> usize {
        let (sn, ack_sn, credits) = self.t.nexuses[n as usize].number();
        let row = &mut self.t.connections[c as usize];
        let task = &mut self.t.tasks[t as usize];
        let last = task.flags.contains(TaskFlags::LAST);
        let mut flags = SessionFlags::empty();
        flags.set(SessionFlags::LAST_IN_BATCH, last);
        // Its outcome is its completion here, and libxio's says so to the peer.
        flags.set(SessionFlags::IMM_SEND_COMP, task.kind == Kind::OneWayReq);
        let session = SessionFields {
            dest_session: row.peer_session,
            flags,
            serial: row.serial,
            sn: row.req_sn,
            ack_sn: row.req_expected.wrapping_sub(1),
            ..SessionFields::default()
        };
        row.serial += 1;
        row.req_sn = row.req_sn.wrapping_add(1);
        task.serial = session.serial;
        task.nexus = n;
        let head = RequestFields {
            flags: if last {
                TransportFlags::LAST_IN_BATCH
            } else {
                TransportFlags::empty()
            },
            sn,
            ack_sn,
            credits,
            ltid: tid::of_task(t, task.generation),
            header_len: task.header_len,
            data_len: task.slot_data.into(),
            ..frame::REQUEST
        };
        self.g.counters.requests_sent += 1;
        encode_inline_request(bytes, end, task.kind, &session, &head)
    }

    #[inline(always)]
    fn plain_response_head(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        bytes: &mut [u8],
        end: usize,
    ) -> usize {
        let (sn, ack_sn, credits) = self.t.nexuses[n as usize].number();
        let row = &mut self.t.connections[c as usize];
        let task = &self.t.tasks[t as usize];
        let session = SessionFields {
            dest_session: row.peer_session,
            flags: SessionFlags::RECEIPT_LAST,
            serial: task.serial,
            sn: row.rsp_sn,
            ack_sn: row.rsp_expected.wrapping_sub(1),
            ..SessionFields::default()
        };
        row.rsp_sn = row.rsp_sn.wrapping_add(1);
        let head = ResponseFields {
            sn,
            ack_sn,
            credits,
            rtid: task.peer_tid,
            ltid: tid::of_task(t, task.generation),
            status: task.status,
            header_len: task.header_len,
            data_len: task.slot_data.into(),
            ..frame::RESPONSE
        };
        self.g.counters.responses_sent += 1;
        encode_inline_response(bytes, end, Kind::MsgRsp, &session, &head)
    }
}
