//! Frames of plain messages.

use super::{MANNER, REQUEST, REQUEST_HEAD, RESPONSE, RESPONSE_HEAD};
use crate::endpoint::credit::DATA_CREDITS;
use crate::endpoint::{Endpoint, Quick, frame};
use crate::entries::{TaskFlags, WorkEntry, WorkKind};
use crate::ids::{NONE, NexusId};
use crate::memory::{SegmentSpan, SlotId, Slots, Span};
use crate::mutant::any_mutant;
use crate::output::Work;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::State as NexusState;
use crate::state::task::{Input, State};
use crate::storage::Storage;
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

/// A frame that is written: whose it is, and where in its slot it starts.
struct Written {
    c: u32,
    t: u32,
    kind: Kind,
    start: u32,
}

impl<S: Storage, T: Trace> Quick<'_, S, T> {
    /// The plain message that is to go next on a nexus, if nothing goes before it and nothing is
    /// in its way.
    #[inline(always)]
    fn next_plain(&mut self, n: u32) -> Option<Next> {
        let (tables, g) = (self.0.s.tables(), &mut self.0.g);
        let nexus = &tables.nexuses[n as usize];
        let c = nexus.tx_head;
        let only_data = (nexus.rdma_head & nexus.ack_head) == NONE
            && !nexus.setup_due
            && nexus.state == NexusState::Online
            && nexus.framing == Framing::Rdma
            && !nexus.receive_due();
        if c == NONE || !only_data || g.config.flow_control {
            return None;
        }
        let row = &tables.connections[c as usize];
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
        let task = &tables.tasks[t as usize];
        if task.flags.intersection(MANNER) != manner || task.state != state {
            return None;
        }
        let len = u32::from(task.header_len) + task.slot_data;
        let fits = if response {
            RESPONSE_HEAD + 16 * u32::from(task.offer_count) + len < nexus.frame_max
        } else {
            REQUEST_HEAD + len <= nexus.frame_max
        };
        let state = g.transport(nexus.transport);
        let room = nexus.sq_used + 2 < state.limits.sq_depth
            && state.cq_used < state.limits.cq_depth
            && nexus.sq_bytes < state.limits.sq_bytes
            && nexus.tx_credits >= DATA_CREDITS;
        (fits && room && g.work.free() > 0).then_some(Next { c, t, response })
    }

    /// The next work of a nexus, if it is a plain message.
    #[inline(always)]
    pub(crate) fn plain_work(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
        if any_mutant!(self.0.g) {
            return None;
        }
        let Next { c, t, response } = self.next_plain(n)?;
        let written = if response {
            self.write_response(n, c, t, slots)
        } else {
            self.write_request(n, c, t, slots)
        };
        Some(self.post(n, &written))
    }

    #[inline(always)]
    fn write_request(&mut self, n: u32, c: u32, t: u32, slots: &mut impl Slots) -> Written {
        let (tables, g) = (self.0.s.tables(), &mut self.0.g);
        let row = &mut tables.connections[c as usize];
        let task = &mut tables.tasks[t as usize];
        row.req_head = task.queue_next;
        row.rsp_turn = true;
        task.flags.remove(TaskFlags::QUEUED);
        task.serial = row.serial;
        task.nexus = n;
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
        let (sn, ack_sn, credits) = tables.nexuses[n as usize].number();
        let mut flags = TransportFlags::empty();
        flags.set(TransportFlags::LAST_IN_BATCH, last);
        let head = RequestFields {
            flags,
            sn,
            ack_sn,
            credits,
            ltid: tid::of_task(t, task.generation),
            header_len: task.header_len,
            data_len: task.slot_data.into(),
            ..frame::REQUEST
        };
        g.counters.requests_sent += 1;
        let kind = task.kind;
        let bytes = slots.slot_mut(SlotId(task.slot));
        let start = encode_inline_request(bytes, g.config.headroom(), kind, &session, &head) as u32;
        Written { c, t, kind, start }
    }

    #[inline(always)]
    fn write_response(&mut self, n: u32, c: u32, t: u32, slots: &mut impl Slots) -> Written {
        let (tables, g) = (self.0.s.tables(), &mut self.0.g);
        let row = &mut tables.connections[c as usize];
        let task = &mut tables.tasks[t as usize];
        row.rsp_head = task.queue_next;
        row.rsp_turn = false;
        task.flags.remove(TaskFlags::QUEUED);
        let session = SessionFields {
            dest_session: row.peer_session,
            flags: SessionFlags::RECEIPT_LAST,
            serial: task.serial,
            sn: row.rsp_sn,
            ack_sn: row.rsp_expected.wrapping_sub(1),
            ..SessionFields::default()
        };
        row.rsp_sn = row.rsp_sn.wrapping_add(1);
        let (sn, ack_sn, credits) = tables.nexuses[n as usize].number();
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
        g.counters.responses_sent += 1;
        let kind = Kind::MsgRsp;
        let bytes = slots.slot_mut(SlotId(task.slot));
        let start =
            encode_inline_response(bytes, g.config.headroom(), kind, &session, &head) as u32;
        Written { c, t, kind, start }
    }

    /// The work request of a frame that is written.
    #[inline(always)]
    fn post(&mut self, n: u32, written: &Written) -> Work {
        let &Written { c, t, kind, start } = written;
        self.task_input(t, Input::Post);
        let end = self.0.g.config.headroom() as u32;
        let task = self.task(t);
        task.work += 1;
        let (slot, end) = (task.slot, end + u32::from(task.header_len) + task.slot_data);
        let len = end - start;
        let entry = WorkEntry {
            kind: WorkKind::Frame(kind),
            task: t,
            bytes: len.into(),
            ..WorkEntry::VACANT
        };
        let wr = self.push_work(n, entry);
        let signaled = self.sent(n, c);
        Work::Send {
            nexus: NexusId::new(n, self.nexus(n).generation),
            wr,
            head: Span {
                slot,
                offset: start,
                len,
            },
            tail: Span {
                slot,
                offset: end,
                len: 0,
            },
            data: SegmentSpan::EMPTY,
            signaled,
            fence: false,
        }
    }

    /// After a frame: whether it is signalled, and whose turn it is next.
    #[inline(always)]
    fn sent(&mut self, n: u32, c: u32) -> bool {
        let tables = self.0.s.tables();
        let row = &mut tables.connections[c as usize];
        if (row.req_head & row.rsp_head) != NONE {
            return self.0.sent_with_more(n, c);
        }
        row.in_tx = false;
        let nexus = &mut tables.nexuses[n as usize];
        nexus.tx_head = row.tx_next;
        nexus.sq_unsignaled = 0;
        true
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    #[inline(never)]
    fn sent_with_more(&mut self, n: u32, c: u32) -> bool {
        let signaled = self.signal(n);
        self.rotate_tx(n, c);
        signaled
    }
}
