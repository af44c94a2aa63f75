//! Completions of plain messages: their frames, and those of the peer.

use crate::endpoint::credit::CREDITS_MAX;
use crate::endpoint::{Globals, Quick};
use crate::entries::{Direct, Ending, Nexus, TaskEvents, TaskFlags, WorkKind};
use crate::ids::NONE;
use crate::mutant::any_mutant;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::{self, State as NexusState};
use crate::state::task::{Action, Input, State};
use crate::storage::Storage;
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    Bounds, Framing, Kind, Request, Response, SessionFlags, TransportFlags, message_kind,
};

impl Nexus {
    /// Tests a frame's transport number and credits.
    #[inline(always)]
    fn takes(&self, sn: u16, credits: u16) -> bool {
        let granted = credits == 0
            || (self.peer_granted
                && self.acks_unpaid == 0
                && self.tx_credits.saturating_add(credits) <= CREDITS_MAX);
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

impl Globals {
    /// What a plain frame may have.
    #[inline(always)]
    fn plain_bounds(&self) -> Bounds {
        Bounds {
            frame_max: self.config.buffer_size,
            max_in_sges: 0,
            max_out_sges: 0,
            header_max: self.config.header_max,
        }
    }
}

impl<S: Storage, T: Trace> Quick<'_, S, T> {
    /// A frame that came, if it is a plain message. False: it is not, and nothing changed.
    #[inline(always)]
    pub(crate) fn plain_frame(&mut self, n: u32, slot: u32, frame: &[u8]) -> bool {
        if any_mutant!(self.0.g) {
            return false;
        }
        let nexus = self.nexus(n);
        let usual = nexus.state == NexusState::Online && nexus.framing == Framing::Rdma;
        if !usual || self.0.g.config.flow_control {
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
        self.0
            .trace
            .transition(0, n, ONLINE as u8, FRAME as u8, ONLINE as u8);
        self.0.g.counters.frames_received += 1;
        self.nexus(n).take(sn, credits);
    }

    #[inline(always)]
    fn plain_request(&mut self, n: u32, slot: u32, frame: &[u8]) -> bool {
        let bounds = self.0.g.plain_bounds();
        let Some(request) = Request::parse_inline(frame, Framing::Rdma, &bounds) else {
            return false;
        };
        let (session, head) = (&request.session, &request.head);
        let receipts = SessionFlags::IMM_READ_RECEIPT | SessionFlags::REQUEST_READ_RECEIPT;
        let tables = self.0.s.tables();
        let nexus = &tables.nexuses[n as usize];
        let c = nexus.connections;
        if c == NONE || session.flags.intersects(receipts) || !nexus.takes(head.sn, head.credits) {
            return false;
        }
        let row = &mut tables.connections[c as usize];
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
        self.0.g.counters.messages_received += 1;
        let row = self.task(slot);
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
        let bounds = self.0.g.plain_bounds();
        let Some(response) = Response::parse_inline(frame, Framing::Rdma, &bounds) else {
            return false;
        };
        let (session, head) = (&response.session, &response.head);
        let t = tid::index(head.rtid);
        if tid::is_control(head.rtid) || t < self.0.g.config.rx_slots {
            return false;
        }
        let tables = self.0.s.tables();
        let Some(task) = tables.tasks.get_mut(t as usize) else {
            return false;
        };
        let asked = task.state == State::Sent
            && tid::matches(head.rtid, task.generation)
            && task.nexus == n
            && task.kind == Kind::MsgReq
            && task.direct == Direct::No
            && task.serial == session.serial;
        let receipts = SessionFlags::RECEIPT_FIRST | SessionFlags::RECEIPT_LAST;
        let good = head.status == 0
            && session.flags.intersection(receipts) == SessionFlags::RECEIPT_LAST
            && tables.nexuses[n as usize].takes(head.sn, head.credits);
        if !asked || !good {
            return false;
        }
        let row = &mut tables.connections[task.connection as usize];
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

    /// The oldest work request of a send queue is done, if it was a message's frame. False: it
    /// was not, and nothing changed.
    #[inline(always)]
    pub(crate) fn plain_done(&mut self, n: u32, w: u32) -> bool {
        if any_mutant!(self.0.g) {
            return false;
        }
        let tables = self.0.s.tables();
        let entry = &tables.work[w as usize];
        let t = entry.task;
        if t == NONE || !matches!(entry.kind, WorkKind::Frame(_)) {
            return false;
        }
        let task = &mut tables.tasks[t as usize];
        if task.flags.contains(TaskFlags::LINGERS) {
            return false;
        }
        task.work -= 1;
        self.take_work(n);
        self.frame_done(t);
        self.try_free(t);
        true
    }

    /// A message's frame is out.
    #[inline(always)]
    pub(crate) fn frame_done(&mut self, t: u32) {
        let row = self.task(t);
        let slot = core::mem::replace(&mut row.slot, NONE);
        let waits = match row.kind {
            Kind::OneWayReq => row
                .flags
                .intersects(TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW),
            Kind::MsgReq if row.flags.contains(TaskFlags::INCOMING) => row.read_response,
            _ => true,
        };
        if slot != NONE {
            self.free_tx_slot(slot);
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
