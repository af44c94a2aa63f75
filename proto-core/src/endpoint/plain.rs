//! The short way of plain messages: all of it in one slot, no segment lists, no receipts, no
//! application credits, on an RDMA transport connection that is online.
//!
//! Each function here first tests, without changing anything, that all of that holds and that
//! nothing is wrong. If not it says so, and the long way (`work`, `frame`, `receive`, `message`)
//! does the same from the start, with the same result for whatever the short way takes.

use super::credit::{CREDITS_MAX, DATA_CREDITS};
use super::parts::Parts;
use crate::entries::{Direct, Ending, Nexus, TaskEvents, TaskFlags, WorkEntry, WorkKind};
use crate::ids::{NONE, NexusId};
use crate::memory::{SegmentSpan, SlotId, Slots, Span};
use crate::output::Work;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::{self, State as NexusState};
use crate::state::task::{Action, Input, State};
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    Bounds, Framing, Kind, Op, Request, RequestFields, Response, ResponseFields, SessionFields,
    SessionFlags, TransportFlags, encode_inline_request, encode_inline_response, message_kind,
    request_head_len, response_head_len,
};

const REQUEST_HEAD: u32 = request_head_len(Framing::Rdma, 0, 0) as u32;
const RESPONSE_HEAD: u32 = response_head_len(Framing::Rdma, Op::Send, 0) as u32;

/// Flags that a plain message must have so or so.
const MANNER: TaskFlags = TaskFlags::PLAIN
    .union(TaskFlags::INCOMING)
    .union(TaskFlags::RECEIPT)
    .union(TaskFlags::RECEIPT_NOW)
    .union(TaskFlags::FORCE_WRITE)
    .union(TaskFlags::RESPONSE)
    .union(TaskFlags::PROMPT)
    .union(TaskFlags::SILENT);
const REQUEST: TaskFlags = TaskFlags::PLAIN;
const RESPONSE: TaskFlags = TaskFlags::PLAIN
    .union(TaskFlags::INCOMING)
    .union(TaskFlags::RESPONSE);

/// What a plain message that may go is.
struct Next {
    c: u32,
    t: u32,
    response: bool,
}

impl Nexus {
    /// Tests a frame's transport number and credits.
    #[inline(always)]
    fn takes(&self, sn: u16, credits: u16) -> bool {
        let granted = credits == 0
            || (self.peer_granted && self.tx_credits.saturating_add(credits) <= CREDITS_MAX);
        self.granted > 0 && sn == self.rx_sn && granted
    }

    /// Counts a frame that passed the test.
    #[inline(always)]
    fn take(&mut self, sn: u16, credits: u16) {
        self.granted -= 1;
        self.used_since_grant += 1;
        self.rx_sn = sn.wrapping_add(1);
        self.tx_credits += credits;
    }
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
    pub(super) fn plain_work(&mut self, n: u32, slots: &mut impl Slots) -> Option<Work> {
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
            ..super::frame::REQUEST
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
            ..super::frame::RESPONSE
        };
        self.g.counters.responses_sent += 1;
        encode_inline_response(bytes, end, Kind::MsgRsp, &session, &head)
    }

    /// A frame that came, if it is a plain message. False: it is not, and nothing changed.
    #[inline(always)]
    pub(super) fn plain_frame(&mut self, n: u32, slot: u32, frame: &[u8]) -> bool {
        let nexus = &self.t.nexuses[n as usize];
        let usual = nexus.state == NexusState::Online && nexus.framing == Framing::Rdma;
        if !usual || self.g.config.flow_control {
            return false;
        }
        match message_kind(frame) {
            Some(Kind::MsgRsp) => self.plain_response(n, slot, frame),
            Some(Kind::MsgReq | Kind::OneWayReq) => self.plain_request(n, slot, frame),
            _ => false,
        }
    }

    /// The nexus's own part of a frame that is taken.
    #[inline(always)]
    fn take_frame(&mut self, n: u32, sn: u16, credits: u16) {
        const ONLINE: NexusState = NexusState::Online;
        const FRAME: nexus::Input = nexus::Input::Frame;
        const _: () = assert!(matches!(
            nexus::lookup(ONLINE, FRAME),
            (ONLINE, nexus::Action::Deliver)
        ));
        self.trace
            .transition(0, n, ONLINE as u8, FRAME as u8, ONLINE as u8);
        self.g.counters.frames_received += 1;
        self.nexus(n).take(sn, credits);
    }

    #[inline(always)]
    fn plain_request(&mut self, n: u32, slot: u32, frame: &[u8]) -> bool {
        let bounds = Bounds {
            frame_max: self.g.config.buffer_size,
            max_in_sges: 0,
            max_out_sges: 0,
            header_max: self.g.config.header_max,
        };
        let Some(request) = Request::parse_inline(frame, Framing::Rdma, &bounds) else {
            return false;
        };
        let (session, head) = (&request.session, &request.head);
        let receipts = SessionFlags::IMM_READ_RECEIPT | SessionFlags::REQUEST_READ_RECEIPT;
        let nexus = &self.t.nexuses[n as usize];
        let c = nexus.connections;
        if c == NONE || session.flags.intersects(receipts) || !nexus.takes(head.sn, head.credits) {
            return false;
        }
        let row = &mut self.t.connections[c as usize];
        let expected = row.own_session == session.dest_session
            && row.state == ConnectionState::Online
            && session.sn == row.req_expected
            && (!row.any_serial || session.serial > row.last_serial)
            && row.hold_head == NONE
            && !row.silent;
        if !expected {
            return false;
        }
        row.req_expected = session.sn.wrapping_add(1);
        row.any_serial = true;
        row.last_serial = session.serial;
        row.heard = true;
        row.unanswered += u32::from(request.kind == Kind::MsgReq);
        self.take_frame(n, head.sn, head.credits);
        self.g.counters.messages_received += 1;
        let row = &mut self.t.tasks[slot as usize];
        row.reset();
        row.kind = request.kind;
        row.nexus = n;
        row.serial = session.serial;
        row.peer_tid = head.ltid;
        row.header_at = request.header_at;
        row.rx_header_len = head.header_len;
        row.data_at = request.data_at;
        row.data_len = head.data_len;
        row.flags = arrived(head.flags);
        self.link_task(c, slot);
        self.task_input(slot, Input::Arrive);
        self.task_event(slot, TaskEvents::MAIN);
        true
    }

    #[inline(always)]
    fn plain_response(&mut self, n: u32, slot: u32, frame: &[u8]) -> bool {
        let bounds = Bounds {
            frame_max: self.g.config.buffer_size,
            max_in_sges: 0,
            max_out_sges: 0,
            header_max: self.g.config.header_max,
        };
        let Some(response) = Response::parse_inline(frame, Framing::Rdma, &bounds) else {
            return false;
        };
        let (session, head) = (&response.session, &response.head);
        let t = tid::index(head.rtid);
        if tid::is_control(head.rtid) || t < self.g.config.rx_slots {
            return false;
        }
        let Some(task) = self.t.tasks.get_mut(t as usize) else {
            return false;
        };
        let asked = task.state == State::Sent
            && tid::matches(head.rtid, task.generation)
            && task.nexus == n
            && task.kind == Kind::MsgReq
            && task.direct == Direct::No
            && task.serial == session.serial;
        let c = task.connection;
        let receipts = SessionFlags::RECEIPT_FIRST | SessionFlags::RECEIPT_LAST;
        let good = head.status == 0
            && session.flags.intersection(receipts) == SessionFlags::RECEIPT_LAST
            && self.t.nexuses[n as usize].takes(head.sn, head.credits);
        if !asked || !good {
            return false;
        }
        let row = &mut self.t.connections[c as usize];
        if session.sn != row.rsp_expected {
            return false;
        }
        row.rsp_expected = session.sn.wrapping_add(1);
        row.heard = true;
        task.flags.remove(TaskFlags::PEER_HOLDS);
        task.flags.insert(TaskFlags::USER);
        task.answer = slot;
        task.header_at = response.header_at;
        task.rx_header_len = head.header_len;
        task.data_at = response.data_at;
        task.data_len = head.data_len;
        task.in_segments = false;
        self.take_frame(n, head.sn, head.credits);
        self.task_input(t, Input::Answer);
        self.finish(t, Ending::Good);
        true
    }

    /// The oldest work request of a send queue is done, if it was a message's frame.
    #[inline(always)]
    pub(super) fn plain_done(&mut self, n: u32, w: u32) -> bool {
        let entry = &self.t.work[w as usize];
        let t = entry.task;
        if t == NONE || !matches!(entry.kind, WorkKind::Frame(_)) {
            return false;
        }
        let task = &self.t.tasks[t as usize];
        if task.flags.contains(TaskFlags::LINGERS) {
            return false;
        }
        self.take_work(n);
        self.task(t).work -= 1;
        self.frame_done(t);
        self.try_free(t);
        true
    }

    /// A message's frame is out.
    #[inline(always)]
    pub(crate) fn frame_done(&mut self, t: u32) {
        let row = &mut self.t.tasks[t as usize];
        let slot = core::mem::replace(&mut row.slot, NONE);
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
}

#[inline(always)]
fn arrived(flags: TransportFlags) -> TaskFlags {
    let mut row = TaskFlags::INCOMING | TaskFlags::USER;
    row.set(
        TaskFlags::LAST,
        flags.contains(TransportFlags::LAST_IN_BATCH),
    );
    row.set(
        TaskFlags::FORCE_WRITE,
        flags.contains(TransportFlags::FORCE_WRITE),
    );
    row
}
