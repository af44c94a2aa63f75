//! Completions and the frames in them: whose they are, and what that frame may be now.

use super::Endpoint;
use super::session::Keep;
use super::snapshot::count;
use crate::entries::{Awaited, SlotUse, Stage};
use crate::error::{Reason, WorkStatus};
use crate::ids::NONE;
use crate::input::Completion;
use crate::inputs::recorded;
use crate::memory::{SlotId, Slots};
use crate::mutant::mutated;
use crate::state::connection::{Input as ConnectionInput, State};
use crate::state::nexus::{Action, Input, State as NexusState};
use crate::storage::Storage;
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{
    Bounds, CreditNop, Extensions, Framing, Kind, NexusSetupRequest, NexusSetupResponse, ReadAck,
    Request, Response, Resume, Violation, What, peek_kind, wait_of,
};

/// Deepest queue that is ever told or believed: a libxio's queue pair has little more.
const DEPTH_MAX: u16 = 256;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes a work completion. One that belongs to nothing that is posted is counted as stale
    /// and ignored. Receives of a shared queue go to
    /// [`handle_shared_completion`](Self::handle_shared_completion).
    #[inline]
    pub fn handle_completion(
        &mut self,
        now: Instant,
        completion: Completion,
        slots: &mut impl Slots,
    ) {
        recorded!(self, Completion { now, completion, frame: self.received_frame(completion, slots) } => self.handle_completion(now, completion, slots));
        self.set_now(now);
        if completion.wr.is_recv() {
            self.received(completion, slots);
        } else {
            self.sent(completion);
        }
    }

    #[inline(never)]
    fn received(&mut self, completion: Completion, slots: &mut impl Slots) {
        if !self.plain_received(&completion, slots) {
            self.receive_done(completion, slots);
        }
    }

    #[inline(never)]
    fn sent(&mut self, completion: Completion) {
        if !self.plain_sent(&completion) {
            self.send_done(completion);
        }
    }

    fn stale(&mut self) {
        self.g.counters.stale += 1;
        self.trace.mark("stale completion ignored");
    }

    #[cold]
    #[inline(never)]
    fn receive_done(&mut self, completion: Completion, slots: &mut impl Slots) {
        let slot = completion.wr.index();
        let accept = mutated!(self.g, StaleAccepted);
        let n = match self.s.tables().slots.get(slot as usize) {
            Some(row)
                if row.usage == SlotUse::Posted
                    && (completion.wr.matches(row.generation) || accept) =>
            {
                row.nexus
            }
            _ => return self.stale(),
        };
        self.unpost(n, slot);
        match completion.status {
            WorkStatus::Success => {
                self.s.tables().slots[slot as usize].usage = SlotUse::Filled;
                self.nexus(n).held += 1;
                self.on_frame(n, slot, completion.len, slots);
            }
            status => {
                self.g.counters.flushed += 1;
                count(&mut self.nexus(n).traffic.flushed, 1);
                // The device took the receive away before the nexus hears that it is lost.
                let row = self.nexus(n);
                row.granted = row.granted.min(row.posted);
                self.free_slot(slot);
                // Flushed receives of a nexus that is not going down mean that its queue pair has
                // failed, whoever says so later.
                let going = matches!(
                    self.nexus(n).state,
                    NexusState::Disconnecting | NexusState::Draining | NexusState::Destroying
                );
                if status != WorkStatus::Flushed || !going {
                    self.nexus_input(n, Input::Fail, Some(Reason::WorkFailed(status)));
                }
            }
        }
        self.check_drained(n);
    }

    #[cold]
    #[inline(never)]
    fn send_done(&mut self, completion: Completion) {
        let Some((n, at)) = self.place_of(completion.wr) else {
            self.stale();
            return;
        };
        let status = completion.status;
        // A queue completes in order: what was posted before and not signalled is done too. A READ
        // is always signalled: that a device lost its completion and its queue pair is no proof that
        // the bytes are there.
        while self.nexus(n).sq_head != at {
            let no_proof = status != WorkStatus::Success && self.reads_next(n);
            self.pop_work(
                n,
                if no_proof {
                    WorkStatus::Flushed
                } else {
                    WorkStatus::Success
                },
            );
        }
        self.pop_work(n, status);
        match status {
            WorkStatus::Success => self.look_again(n),
            status => {
                let flushed = u32::from(status == WorkStatus::Flushed);
                let rnr = u32::from(status == WorkStatus::RnrRetryExceeded);
                self.g.counters.flushed += u64::from(flushed);
                self.g.counters.rnr += u64::from(rnr);
                let traffic = &mut self.nexus(n).traffic;
                count(&mut traffic.flushed, flushed);
                count(&mut traffic.rnr, rnr);
                self.nexus_input(n, Input::Fail, Some(Reason::WorkFailed(status)));
            }
        }
        self.offer_slots();
        self.check_drained(n);
    }

    /// One assembled frame in a receive slot.
    pub(crate) fn on_frame(&mut self, n: u32, slot: u32, len: u32, slots: &mut impl Slots) {
        let keep = match self.frame(n, slot, len, slots) {
            Ok(keep) => keep,
            Err(violation) => {
                self.g.counters.violations += 1;
                let reason = Reason::Violation(violation);
                self.nexus_input(n, Input::Fail, Some(reason));
                Keep::No
            }
        };
        if keep == Keep::No {
            if !mutated!(self.g, SlotLeaked) {
                self.free_slot(slot);
            }
            self.uncount(n);
        }
        self.look_again(n);
    }

    /// One control frame without payload, or of the transport's setup, off a stream: nothing of
    /// it is kept, so it lies in no slot.
    pub(crate) fn on_bare_frame(&mut self, n: u32, bytes: &[u8]) {
        if let Err(violation) = self.bare_frame(n, bytes) {
            self.g.counters.violations += 1;
            self.nexus_input(n, Input::Fail, Some(Reason::Violation(violation)));
        }
        self.mark_ready(n);
    }

    fn bare_frame(&mut self, n: u32, bytes: &[u8]) -> Result<Keep, Violation> {
        let framing = self.nexus(n).framing;
        let (kind, _) = peek_kind(bytes, framing)?;
        self.g.counters.frames_received += 1;
        self.nexus(n).traffic.frame(bytes.len());
        match kind {
            Kind::NexusSetupReq => return self.on_nexus_setup(n, bytes),
            Kind::NexusSetupRsp => return self.on_nexus_answer(n, bytes),
            _ => {}
        }
        if self.nexus_input(n, Input::Frame, unexpected(kind)) != Action::Deliver {
            return Ok(Keep::No);
        }
        if self.nexus(n).agreement.stage == Stage::Awaiting
            && !self.read_introduction(n, kind, bytes)
        {
            return Ok(Keep::No);
        }
        if kind.is_request() {
            let request = Request::parse(bytes, framing, &self.bounds())?;
            match kind {
                Kind::HelloReq => self.on_hello(n, &request),
                Kind::ResumeReq => self.on_resume_request(n, &request, Resume::open(bytes)),
                _ => self.on_control_request(n, &request),
            }
        } else {
            let response = Response::parse(bytes, framing, &self.bounds())?;
            match kind {
                Kind::ResumeRsp => self.on_resume_response(n, &response, Resume::open(bytes)),
                _ => self.on_control_response(n, &response),
            }
        }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        let config = &self.g.config;
        Bounds {
            frame_max: config.buffer_size,
            max_in_sges: config.sge_max,
            max_out_sges: config.sge_max,
            header_max: config.header_max,
        }
    }

    fn frame(
        &mut self,
        n: u32,
        slot: u32,
        len: u32,
        slots: &mut impl Slots,
    ) -> Result<Keep, Violation> {
        let framing = self.nexus(n).framing;
        let bytes = frame_bytes(slots, slot, len);
        let (kind, _) = peek_kind(bytes, framing)?;
        self.g.counters.frames_received += 1;
        self.nexus(n).traffic.frame(bytes.len());
        match kind {
            Kind::NexusSetupReq => return self.on_nexus_setup(n, bytes),
            Kind::NexusSetupRsp => return self.on_nexus_answer(n, bytes),
            _ => {}
        }
        match self.nexus_input(n, Input::Frame, unexpected(kind)) {
            Action::Deliver => {}
            _ => return Ok(Keep::No),
        }
        if self.nexus(n).agreement.stage == Stage::Awaiting
            && !self.read_introduction(n, kind, bytes)
        {
            return Ok(Keep::No);
        }
        let rdma = framing == Framing::Rdma;
        match kind {
            Kind::CreditNop => self.on_nop(n, bytes),
            Kind::ReadAck => {
                let ack = ReadAck::parse(bytes)?;
                self.on_read_ack(n, ack.rtid)
            }
            _ if kind.is_request() => {
                let request = Request::parse(bytes, framing, &self.bounds())?;
                if rdma {
                    let head = &request.head;
                    self.took_credit(n)?;
                    self.transport_sn(n, head.sn)?;
                    self.add_credits(n, head.credits, 64)?;
                }
                match kind {
                    Kind::MsgReq | Kind::OneWayReq => {
                        let timed = self.nexus(n).can(Extensions::DEADLINE);
                        let wait = if timed { wait_of(bytes) } else { 0 };
                        self.on_message(n, slot, &request, wait)
                    }
                    Kind::SessionSetupReq => {
                        let race = self.race_of(n, bytes);
                        self.on_setup_request(n, slot, &request, race)
                    }
                    Kind::HelloReq => self.on_hello(n, &request),
                    Kind::ResumeReq => self.on_resume_request(n, &request, Resume::open(bytes)),
                    _ => self.on_control_request(n, &request),
                }
            }
            _ => {
                let response = Response::parse(bytes, framing, &self.bounds())?;
                if rdma {
                    let head = &response.head;
                    self.took_credit(n)?;
                    self.transport_sn(n, head.sn)?;
                    self.add_credits(n, head.credits, 64)?;
                }
                match kind {
                    Kind::MsgRsp | Kind::OneWayRsp => self.on_response(n, slot, &response),
                    Kind::SessionSetupRsp => self.on_setup_response(n, slot, &response),
                    Kind::ResumeRsp => self.on_resume_response(n, &response, Resume::open(bytes)),
                    _ => self.on_control_response(n, &response),
                }
            }
        }
    }

    #[inline]
    fn transport_sn(&mut self, n: u32, sn: u16) -> Result<(), Violation> {
        let row = self.nexus(n);
        if sn != row.rx_sn {
            return Err(Violation::new(What::TransportSn, 60, sn.into()));
        }
        row.rx_sn = sn.wrapping_add(1);
        Ok(())
    }

    fn on_nop(&mut self, n: u32, bytes: &[u8]) -> Result<Keep, Violation> {
        let nop = CreditNop::parse(bytes)?;
        self.took_credit(n)?;
        self.nexus(n).used_since_grant -= 1;
        if nop.sn != self.nexus(n).rx_sn {
            return Err(Violation::new(What::TransportSn, 18, nop.sn.into()));
        }
        self.add_credits(n, nop.credits, 22)?;
        self.g.counters.nops_received += 1;
        count(&mut self.nexus(n).traffic.nops_received, 1);
        Ok(Keep::No)
    }

    /// NEXUS_SETUP_REQ at the server.
    fn on_nexus_setup(&mut self, n: u32, bytes: &[u8]) -> Result<Keep, Violation> {
        let framing = self.nexus(n).framing;
        let setup = NexusSetupRequest::parse(bytes, framing.dialect())?;
        let config = &self.g.config;
        let own_rq = config.rq_depth;
        let own_sq = config.sge_max + 1;
        let reconnect = setup.flags & crate::wire::NEXUS_RECONNECT != 0;
        let state = self.nexus(n).state;
        let awaited = matches!(state, NexusState::Accepting | NexusState::Awaiting);
        if !self.nexus(n).server || !awaited {
            self.nexus_input(n, Input::SetupReq, unexpected(Kind::NexusSetupReq));
            return Ok(Keep::No);
        }
        if framing == Framing::Rdma {
            self.took_credit(n)?;
        }
        let row = self.nexus(n);
        let params = setup.params;
        row.frame_max = row
            .frame_max
            .min(u32::try_from(params.buffer_size).unwrap_or(u32::MAX));
        row.peer_in_sges = sges(params.max_in_sges);
        row.peer_out_sges = sges(params.max_out_sges);
        row.peer_header_max = params.max_header.min(u16::MAX.into()) as u16;
        row.rq_depth = params.rq_depth.max(own_sq).min(own_rq);
        row.sq_window = params.sq_depth.max(own_rq).min(DEPTH_MAX);
        row.cid = n + 1;
        if reconnect {
            row.cid = setup.cid;
            // There is nothing to come back to: the answer that libxio gives for an unknown id.
            row.refuse_status = crate::wire::status::UNSUCCESSFUL;
            row.cid = setup.cid;
        }
        if !reconnect {
            self.setup_asked(n, params.pad);
        }
        let refused = self.nexus(n).refuse_status != 0;
        let input = if refused {
            Input::SetupRefused
        } else {
            Input::SetupReq
        };
        self.nexus_input(n, input, unexpected(Kind::NexusSetupReq));
        Ok(Keep::No)
    }

    /// NEXUS_SETUP_RSP at the client.
    fn on_nexus_answer(&mut self, n: u32, bytes: &[u8]) -> Result<Keep, Violation> {
        let framing = self.nexus(n).framing;
        let own_rq = self.g.config.rq_depth;
        let setup = NexusSetupResponse::parse(bytes, framing.dialect())?;
        let rdma = framing == Framing::Rdma;
        if self.nexus(n).state != NexusState::Handshaking {
            self.nexus_input(n, Input::SetupRsp, unexpected(Kind::NexusSetupRsp));
            return Ok(Keep::No);
        }
        if setup.status != 0 {
            let reason = self.refusal_heard(n, &setup);
            self.nexus_input(n, Input::SetupRefused, Some(reason));
            return Ok(Keep::No);
        }
        if rdma && !self.nexus(n).server {
            self.took_credit(n)?;
        }
        let row = self.nexus(n);
        let params = setup.params;
        row.frame_max = row
            .frame_max
            .min(u32::try_from(params.buffer_size).unwrap_or(u32::MAX));
        row.peer_in_sges = sges(params.max_in_sges);
        row.peer_out_sges = sges(params.max_out_sges);
        row.peer_header_max = params.max_header.min(u16::MAX.into()) as u16;
        row.cid = setup.cid;
        if rdma {
            row.rq_depth = params.rq_depth.min(own_rq);
            row.sq_window = params.sq_depth.min(DEPTH_MAX);
            self.add_credits(n, params.credits, 28)?;
        }
        self.setup_answered(n, setup.cid, params.pad);
        self.nexus_input(n, Input::SetupRsp, unexpected(Kind::NexusSetupRsp));
        Ok(Keep::No)
    }

    /// FIN, keepalive, application credits and cancel from the peer.
    fn on_control_request(&mut self, n: u32, request: &Request<'_>) -> Result<Keep, Violation> {
        let kind = request.kind;
        if kind == Kind::CancelReq {
            return self.on_cancel_request(n, request);
        }
        let Some(c) = self.session_connection(n, request.session.dest_session, kind)? else {
            return Ok(Keep::No);
        };
        let ltid = request.head.ltid;
        self.connection(c).heard = true;
        match kind {
            Kind::FinReq => {
                self.connection(c).fin_rtid = ltid;
                let peer = Some(Reason::PeerClosed);
                self.connection_input(c, ConnectionInput::FinReq, peer);
            }
            // It is here for what the peer may still touch, or for what the device still has of a life
            // that was lost. The peer shall not take it for alive.
            Kind::KeepaliveReq if self.connection(c).state.is_off() => {
                self.g.counters.late += 1;
                self.trace.mark("stale session frame ignored");
            }
            Kind::KeepaliveReq if self.asks_too_often(c) => {
                let times = self.connection(c).asked_times.into();
                return Ok(self.break_session(c, What::KeepaliveRate, 4, times));
            }
            Kind::KeepaliveReq => {
                self.connection(c).keepalive_rtid = ltid;
                self.keepalive_asked(c);
            }
            // What came before it meant nothing either, so its number is not the next one.
            Kind::AckReq if !Self::receives(self.connection(c).state) => {
                self.g.counters.late += 1;
                self.trace.mark("stale session frame ignored");
            }
            Kind::AckReq => self.on_ack_request(c, request),
            _ => return Err(Violation::new(What::UnexpectedKind, 4, kind.word().into())),
        }
        Ok(Keep::No)
    }

    fn on_control_response(&mut self, n: u32, response: &Response<'_>) -> Result<Keep, Violation> {
        let kind = response.kind;
        let what = match kind {
            Kind::HelloRsp => Awaited::HELLO,
            Kind::FinRsp => Awaited::FIN,
            Kind::KeepaliveRsp => Awaited::KEEPALIVE,
            Kind::CancelRsp => {
                response.cancel()?;
                self.g.counters.cancels_ignored += 1;
                return Ok(Keep::No);
            }
            _ => return Err(Violation::new(What::UnexpectedKind, 4, kind.word().into())),
        };
        let Some(c) = self.awaiting(n, response.head.rtid, what)? else {
            return Ok(Keep::No);
        };
        self.connection(c).heard = true;
        match kind {
            Kind::HelloRsp => self.connection_input(c, ConnectionInput::HelloAccepted, None),
            Kind::FinRsp => {
                let reason = self.connection(c).reason;
                self.connection_input(c, ConnectionInput::FinRsp, Some(reason));
            }
            _ => {
                let row = self.connection(c);
                row.probes = 0;
                let online = row.state == State::Online;
                if let (Some(keepalive), true) = (self.g.config.keepalive, online) {
                    self.arm_after(Timer::Keepalive(c), keepalive.time);
                }
            }
        }
        Ok(Keep::No)
    }

    /// The connection that a request-class frame on a nexus is for. `None`: its life is over, the
    /// frame is late.
    pub(crate) fn session_connection(
        &mut self,
        n: u32,
        dest: u32,
        kind: Kind,
    ) -> Result<Option<u32>, Violation> {
        let tables = self.s.tables();
        let first = tables.nexuses[n as usize].connections;
        if first != NONE && tables.connections[first as usize].own_session == dest {
            return Ok(Some(first));
        }
        if let Some(s) = self.find_wire_session(dest) {
            let mut c = self.session(s).connections;
            while c != NONE {
                let row = self.connection(c);
                if row.nexus == n {
                    return Ok(Some(c));
                }
                c = row.session_next;
            }
        }
        let (endpoint, index) = crate::tid::split_session(dest);
        let sessions = self.s.tables().sessions;
        let was_ours = endpoint == self.g.config.endpoint
            && sessions
                .get(index as usize)
                .is_some_and(|s| s.generation > 0 || s.own_id == dest);
        let late = self.nexus(n).late_allowed;
        if was_ours || late || kind == Kind::FinReq {
            self.g.counters.late += 1;
            self.trace.mark("stale session frame ignored");
            return Ok(None);
        }
        Err(Violation::new(What::UnknownSession, 16, dest.into()))
    }
}

#[inline(always)]
fn frame_bytes(slots: &impl Slots, slot: u32, len: u32) -> &[u8] {
    let bytes = slots.slot(SlotId(slot));
    &bytes[..bytes.len().min(len as usize)]
}

fn unexpected(kind: Kind) -> Option<Reason> {
    let violation = Violation::new(What::UnexpectedKind, 4, kind.word().into());
    Some(Reason::Violation(violation))
}

fn sges(count: u32) -> u16 {
    count.min(256) as u16
}
