//! Frames as bytes: headers are written into the slot, around what the user put there.

use super::Endpoint;
use super::fit::RequestMode;
use super::snapshot::count;
use crate::entries::{Awaited, Frames, SegmentList, Task, TaskFlags, WorkEntry, WorkKind};
use crate::ids::NONE;
use crate::memory::{ListKind, SegmentSpan, SlotId, Slots, Span};
use crate::mutant::mutated;
use crate::output::Work;
use crate::state::nexus::State;
use crate::state::task::Input;
use crate::storage::Storage;
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    CreditNop, Dialect, Framing, Kind, NEXUS_RECONNECT, NexusSetupRequest, NexusSetupResponse, Op,
    ReadAck, RequestFields, ResponseFields, ResponseList, RkeyTable, SessionFields, SessionFlags,
    SessionSetupResponse, SetupParams, Sge, TransportFlags, encode_request, encode_response,
};

pub(super) const REQUEST: RequestFields = RequestFields {
    flags: TransportFlags::empty(),
    sn: 0,
    ack_sn: 0,
    credits: 0,
    ltid: 0,
    in_op: Op::Send,
    out_op: Op::Send,
    in_sges: 0,
    out_sges: 0,
    header_len: 0,
    pad_len: 0,
    data_len: 0,
};

pub(super) const RESPONSE: ResponseFields = ResponseFields {
    sn: 0,
    ack_sn: 0,
    credits: 0,
    rtid: 0,
    ltid: 0,
    op: Op::Send,
    sges: 0,
    status: 0,
    header_len: 0,
    pad_len: 0,
    data_len: 0,
};

/// One frame in the making.
pub(super) struct Layout {
    slot: u32,
    start: usize,
    /// Bytes of the head, up to where a second stream takes over.
    head_end: usize,
    end: usize,
}

impl Layout {
    /// Headers end at `split`: on two streams what follows goes on the data stream.
    pub(super) fn new(framing: Framing, slot: u32, start: usize, split: usize, end: usize) -> Self {
        let head_end = if framing == Framing::TcpDual {
            split
        } else {
            end
        };
        Self {
            slot,
            start,
            head_end,
            end,
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    fn setup_params(&mut self, n: u32) -> SetupParams {
        let config = &self.g.config;
        let sge_max = u32::from(config.sge_max);
        let (rq_depth, header_max) = (config.rq_depth, config.header_max);
        let row = self.nexus(n);
        let frame_max = row.frame_max;
        let answered = row.server && row.refuse_status == 0;
        let (rq, sq) = if answered {
            (row.rq_depth, row.sq_window)
        } else {
            (rq_depth, 0)
        };
        SetupParams {
            credits: 0,
            // A client offers what libxio's does before it has negotiated.
            sq_depth: if answered {
                sq
            } else {
                self.g.config.sge_max + 1
            },
            rq_depth: rq,
            buffer_size: frame_max.into(),
            max_in_sges: sge_max,
            max_out_sges: sge_max,
            max_header: header_max.into(),
            pad: 0,
        }
    }

    /// NEXUS_SETUP_REQ or NEXUS_SETUP_RSP.
    pub(crate) fn setup_frame(&mut self, n: u32, slot: u32, slots: &mut impl Slots) -> Work {
        let mut params = self.setup_params(n);
        params.pad = self.setup_pad(n);
        if let Some(words) = self.refusal_told(n) {
            [params.max_in_sges, params.max_out_sges, params.max_header] = words;
        }
        let row = self.nexus(n);
        row.setup_due = false;
        row.setup_work = true;
        let (server, status, cid) = (row.server, row.refuse_status, row.cid);
        let dialect = row.framing.dialect();
        let messages = self.connect_messages(n);
        let whole = slots.slot_mut(SlotId(slot));
        // On streams the connect messages lead: of the control stream before the frame, of the
        // data stream behind it, as that goes elsewhere.
        let lead = messages
            .as_ref()
            .map_or(0, |(control, _)| control.encode(whole));
        let bytes = &mut whole[lead..];
        let rkeys = RkeyTable::default();
        let (kind, len) = if server {
            if dialect == Dialect::Rdma && status == 0 {
                params.credits = self.nexus(n).grant();
            }
            // A client that wants to reconnect takes a refusal as final by this flag only.
            let reconnect = status == crate::wire::status::UNSUCCESSFUL;
            let frame = NexusSetupResponse {
                cid: if cid == 0 { n + 1 } else { cid },
                status,
                flags: if reconnect { NEXUS_RECONNECT } else { 0 },
                params,
                rkeys,
            };
            (Kind::NexusSetupRsp, frame.encode(bytes, dialect))
        } else {
            let frame = NexusSetupRequest {
                flags: 0,
                cid: 0,
                params,
                rkeys,
            };
            (Kind::NexusSetupReq, frame.encode(bytes, dialect))
        };
        let tail = match messages {
            Some((_, Some(data))) => data.encode(&mut bytes[len..]),
            _ => 0,
        };
        self.plain_frame(n, kind, slot, lead + len, tail)
    }

    /// CREDIT_NOP: tells the peer of credits when nothing else goes.
    pub(crate) fn nop_frame(&mut self, n: u32, slot: u32, slots: &mut impl Slots) -> Work {
        let credits = self.nexus(n).grant();
        let row = self.nexus(n);
        row.tx_credits -= 1;
        let nop = CreditNop {
            sn: row.tx_sn,
            ack_sn: row.rx_sn.wrapping_sub(1),
            credits,
        };
        let len = nop.encode(slots.slot_mut(SlotId(slot)));
        self.g.counters.nops_sent += 1;
        count(&mut self.nexus(n).traffic.nops_sent, 1);
        self.plain_frame(n, Kind::CreditNop, slot, len, 0)
    }

    /// READ_ACK: the peer's buffers of a READ response are its own again.
    pub(crate) fn read_ack_frame(&mut self, n: u32, slot: u32, slots: &mut impl Slots) -> Work {
        let rtid = self.take_read_ack(n);
        // It goes without asking for a credit, but takes one, as the peer counts it.
        let row = self.nexus(n);
        if row.tx_credits > 0 {
            row.tx_credits -= 1;
        } else {
            row.acks_unpaid += 1;
        }
        let len = ReadAck { rtid }.encode(slots.slot_mut(SlotId(slot)));
        self.plain_frame(n, Kind::ReadAck, slot, len, 0)
    }

    fn plain_frame(&mut self, n: u32, kind: Kind, slot: u32, len: usize, tail: usize) -> Work {
        let entry = WorkEntry {
            kind: WorkKind::Frame(kind),
            slot,
            bytes: (len + tail) as u64,
            ..WorkEntry::VACANT
        };
        let wr = self.push_work(n, entry);
        self.signal(n);
        let head = Span {
            slot,
            offset: 0,
            len: len as u32,
        };
        let tail = Span {
            slot,
            offset: len as u32,
            len: tail as u32,
        };
        // Control frames free reserved slots and states, so their completion is always wanted.
        Work::Send {
            nexus: self.nexus_id(n),
            wr,
            head,
            tail,
            data: SegmentSpan::EMPTY,
            signaled: true,
            fence: kind == Kind::CreditNop,
        }
    }

    /// A control frame of a connection.
    pub(crate) fn control_frame(
        &mut self,
        n: u32,
        c: u32,
        frame: Frames,
        slot: u32,
        slots: &mut impl Slots,
    ) -> Work {
        self.connection(c).frames.remove(frame);
        let (kind, rtid, awaited) = self.control_kind(c, frame);
        let payload = self.control_payload(c, kind, slot, slots);
        let slot = payload.0;
        self.connection(c).awaited.insert(awaited);
        self.connection(c).control_work += 1;
        let (sn, ack_sn, credits) = self.nexus(n).number();
        if mutated!(self.g, NumberStuck) {
            self.nexus(n).tx_sn = sn;
        }
        let own = tid::of_connection(c, self.connection(c).generation);
        let mut session = SessionFields {
            dest_session: self.connection(c).peer_session,
            ..SessionFields::default()
        };
        if kind == Kind::SessionSetupReq {
            session.dest_session = 0;
        }
        if kind == Kind::AckReq {
            self.number_request(c, &mut session);
            self.connection(c).peer_messages -= 1;
        }
        let at = self.g.config.headroom();
        let framing = self.nexus(n).framing;
        let header_len = payload.1;
        let bytes = slots.slot_mut(SlotId(slot));
        let numbers = (sn, ack_sn, credits);
        let start = if kind.is_request() {
            control_request(bytes, at, framing, kind, &session, numbers, own, header_len)
        } else {
            let head = ResponseFields {
                rtid,
                ltid: own,
                header_len,
                ..numbered(numbers)
            };
            let list = ResponseList::none();
            encode_response(bytes, at, framing, kind, &session, &head, list, true)
        };
        let race = self.setup_race(c, kind);
        if self.nexus(n).agreement.is_speaking() || race != 0 {
            self.write_introduction(n, kind, race, &mut bytes[start..]);
        }
        if matches!(kind, Kind::ResumeReq | Kind::ResumeRsp) {
            self.resume_said(c, kind).put(&mut bytes[start..]);
        }
        // On two streams even the payload of a control frame goes on the data stream.
        let end = at + usize::from(header_len);
        let layout = Layout::new(framing, slot, start, at, end);
        let fence = matches!(kind, Kind::FinReq | Kind::FinRsp);
        let entry = WorkEntry {
            kind: WorkKind::Frame(kind),
            connection: c,
            slot,
            ..WorkEntry::VACANT
        };
        self.send_work(n, &layout, entry, SegmentSpan::EMPTY, true, fence)
    }

    fn control_kind(&mut self, c: u32, frame: Frames) -> (Kind, u32, Awaited) {
        let row = self.connection(c);
        let none = Awaited::empty();
        match frame {
            Frames::SETUP_REQ => (Kind::SessionSetupReq, 0, Awaited::SETUP),
            Frames::SETUP_RSP => (Kind::SessionSetupRsp, row.setup_rtid, none),
            Frames::HELLO_REQ => (Kind::HelloReq, 0, Awaited::HELLO),
            Frames::HELLO_RSP => (Kind::HelloRsp, row.setup_rtid, none),
            Frames::FIN_REQ => (Kind::FinReq, 0, Awaited::FIN),
            Frames::FIN_RSP => (Kind::FinRsp, row.fin_rtid, none),
            Frames::KEEPALIVE_REQ => (Kind::KeepaliveReq, 0, none),
            Frames::KEEPALIVE_RSP => (Kind::KeepaliveRsp, row.keepalive_rtid, none),
            Frames::CANCEL_REQ => (Kind::CancelReq, 0, none),
            Frames::RESUME_REQ => (Kind::ResumeReq, 0, Awaited::RESUME),
            Frames::RESUME_RSP => (Kind::ResumeRsp, row.setup_rtid, none),
            _ => (Kind::AckReq, 0, none),
        }
    }

    /// Slot and length of a control frame's payload: a session setup's was written before.
    fn control_payload(
        &mut self,
        c: u32,
        kind: Kind,
        slot: u32,
        slots: &mut impl Slots,
    ) -> (u32, u16) {
        let row = self.connection(c);
        match kind {
            Kind::SessionSetupReq => {
                // The client keeps its copy until the answer: a redirection needs it again.
                let mut copy = [0; crate::wire::SETUP_PAYLOAD_MAX];
                let setup = self.setup_copy(c, &mut copy, slots);
                let len = self.write_setup(c, setup, slot, slots);
                (slot, len as u16)
            }
            Kind::SessionSetupRsp if row.cross.answers => {
                let mut copy = [0; crate::wire::SETUP_PAYLOAD_MAX];
                let setup = self.setup_copy(c, &mut copy, slots);
                let at = self.g.config.headroom();
                let len = self.write_adoption(c, setup, &mut slots.slot_mut(SlotId(slot))[at..]);
                (slot, len as u16)
            }
            Kind::SessionSetupRsp if row.setup_slot != NONE => {
                let (prepared, len) = (row.setup_slot, row.setup_len);
                row.setup_slot = NONE;
                self.free_slot(slot);
                (prepared, len)
            }
            Kind::SessionSetupRsp => {
                let s = row.session;
                let session = self.session(s);
                let reject = SessionSetupResponse::Reject {
                    session_id: session.own_id,
                    reason: session.reject_status,
                    private: &[],
                };
                let at = self.g.config.headroom();
                let len = reject.encode(&mut slots.slot_mut(SlotId(slot))[at..]);
                (slot, len.unwrap_or(0) as u16)
            }
            Kind::CancelReq => {
                let at = self.g.config.headroom();
                let len = self.cancel_payload(c, &mut slots.slot_mut(SlotId(slot))[at..]);
                (slot, len)
            }
            _ => (slot, 0),
        }
    }

    /// The session's setup, as its client's user gave it.
    fn setup_copy<'a>(
        &mut self,
        c: u32,
        copy: &'a mut [u8; crate::wire::SETUP_PAYLOAD_MAX],
        slots: &mut impl Slots,
    ) -> &'a [u8] {
        let at = self.g.config.headroom();
        let row = self.connection(c);
        let (from, len) = (row.setup_slot, usize::from(row.setup_len));
        copy[..len].copy_from_slice(&slots.slot(SlotId(from))[at..at + len]);
        &copy[..len]
    }

    /// Session-level number and credits of a request-class frame.
    #[inline]
    fn number_request(&mut self, c: u32, session: &mut SessionFields) {
        let row = self.connection(c);
        session.sn = row.req_sn;
        row.req_sn = row.req_sn.wrapping_add(1);
        session.ack_sn = row.req_expected.wrapping_sub(1);
        session.credits_msgs = core::mem::take(&mut row.owed_messages);
        session.credits_bytes = core::mem::take(&mut row.owed_bytes);
    }

    /// MSG_REQ or ONE_WAY_REQ. `None` when the message fits no frame of this peer: it failed.
    pub(crate) fn request_frame(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        slots: &mut impl Slots,
    ) -> Option<Work> {
        let mode = match self.request_mode(n, t) {
            Ok(mode) => mode,
            Err(misfit) => {
                self.too_long(t, misfit);
                return None;
            }
        };
        self.take_app_credits(c, t);
        let mut session = SessionFields::default();
        self.number_request(c, &mut session);
        let row = self.connection(c);
        session.dest_session = row.peer_session;
        session.serial = row.serial;
        row.serial += 1;
        let (sn, ack_sn, credits) = self.nexus(n).number();
        let credits = credits + u16::from(mutated!(self.g, GrantUnposted));
        let at = self.g.config.headroom();
        let framing = self.nexus(n).framing;
        let task = self.task(t);
        task.serial = session.serial;
        task.nexus = n;
        session.flags = request_flags(task, &mode);
        let (header_len, slot) = (task.header_len, task.slot);
        let inline = mode.out_op == Op::Send;
        let data_len = if inline {
            u64::from(task.slot_data) + task.out.total
        } else {
            0
        };
        let head = RequestFields {
            flags: transport_flags(task),
            sn,
            ack_sn,
            credits,
            ltid: tid::of_task(t, task.generation),
            in_op: mode.in_op,
            out_op: mode.out_op,
            header_len,
            data_len,
            ..REQUEST
        };
        let (kind, prompt) = (task.kind, task.flags.contains(TaskFlags::PROMPT));
        let bytes = slots.slot_mut(SlotId(slot));
        let start = self.encode_task(t, bytes, kind, framing, &session, &head, &mode);
        let wait = self.wait_told(n, t);
        if wait != 0 {
            crate::wire::put_wait(&mut bytes[start..], wait);
        }
        let in_slot = at + usize::from(header_len);
        let end = in_slot + self.task(t).slot_data as usize;
        let layout = Layout::new(framing, slot, start, in_slot, end);
        let data = self.request_data(n, t, &mode);
        self.task_input(t, Input::Post);
        self.task(t).work += 1;
        let entry = WorkEntry {
            kind: WorkKind::Frame(kind),
            task: t,
            ..WorkEntry::VACANT
        };
        self.g.counters.requests_sent += 1;
        Some(self.send_work(n, &layout, entry, data, prompt, false))
    }

    /// Writes a request's headers with the lists of its task.
    #[allow(clippy::too_many_arguments, reason = "one frame's parts")]
    fn encode_task(
        &mut self,
        t: u32,
        bytes: &mut [u8],
        kind: Kind,
        framing: Framing,
        session: &SessionFields,
        head: &RequestFields,
        mode: &RequestMode,
    ) -> usize {
        let at = self.g.config.headroom();
        let tables = self.s.tables();
        let task = &tables.tasks[t as usize];
        let counts_data = task.slot_data > 0 || task.out.count == 0;
        let real = mode.in_op == Op::Write;
        let offered = if mode.offer { task.into.count } else { 0 };
        let read = if mode.out_op == Op::Send {
            0
        } else {
            task.out.count
        };
        let list = |list, count, real| Sges {
            list,
            extents: tables.extents,
            at: 0,
            count,
            real,
        };
        let in_sges = list(&task.into, offered, real);
        let out_sges = list(&task.out, read, true);
        encode_request(
            bytes,
            at,
            framing,
            kind,
            session,
            head,
            in_sges,
            out_sges,
            counts_data,
        )
    }

    /// The segments that go out with the frame: gathered behind it, or on a stream the raw bytes
    /// that follow. What the peer READs by itself does not.
    fn request_data(&mut self, n: u32, t: u32, mode: &RequestMode) -> SegmentSpan {
        let rdma = self.nexus(n).framing == Framing::Rdma;
        let early = mutated!(self.g, ReturnedEarly);
        let row = self.task(t);
        let by_peer = rdma && (mode.out_op == Op::Read || mode.in_op == Op::Write);
        row.flags.set(TaskFlags::PEER_HOLDS, by_peer && !early);
        if row.out.count == 0 || (rdma && mode.out_op == Op::Read) {
            return SegmentSpan::EMPTY;
        }
        SegmentSpan {
            task: t,
            list: ListKind::Out,
            skip: 0,
            len: row.out.total,
        }
    }

    #[inline]
    pub(super) fn send_work(
        &mut self,
        n: u32,
        layout: &Layout,
        entry: WorkEntry,
        data: SegmentSpan,
        always: bool,
        fence: bool,
    ) -> Work {
        let slot = layout.slot;
        let span = |from: usize, to: usize| Span {
            slot,
            offset: from as u32,
            len: (to - from) as u32,
        };
        let head = span(layout.start, layout.head_end);
        let tail = span(layout.head_end, layout.end);
        let bytes = u64::from(head.len) + u64::from(tail.len) + data.len;
        let wr = self.push_work(n, WorkEntry { bytes, ..entry });
        debug_assert!(self.nexus(n).state != State::Draining);
        let always = always && !mutated!(self.g, LastUnsignaled);
        let signaled = self.signal(n) || always;
        let nexus = self.nexus_id(n);
        Work::Send {
            nexus,
            wr,
            head,
            tail,
            data,
            signaled,
            fence,
        }
    }
}

fn request_flags(task: &mut Task, mode: &RequestMode) -> SessionFlags {
    let mut flags = SessionFlags::empty();
    flags.set(
        SessionFlags::REQUEST_READ_RECEIPT,
        task.flags.contains(TaskFlags::RECEIPT),
    );
    flags.set(SessionFlags::PEER_READ_REQ, task.force_read);
    flags.set(
        SessionFlags::PEER_WRITE_RSP,
        task.flags.contains(TaskFlags::FORCE_WRITE),
    );
    flags.set(
        SessionFlags::LAST_IN_BATCH,
        task.flags.contains(TaskFlags::LAST),
    );
    let one_way = task.kind == Kind::OneWayReq;
    let fetched = mode.large || mode.out_op == Op::Read;
    // The outcome of a small one-way is its completion here; libxio's says so to the peer.
    let prompt = task.flags.contains(TaskFlags::PROMPT) || (one_way && !fetched);
    flags.set(SessionFlags::IMM_SEND_COMP, prompt);
    if one_way && fetched && !task.flags.contains(TaskFlags::RECEIPT) {
        // Nothing else would say when the peer has read the data.
        flags.insert(SessionFlags::IMM_READ_RECEIPT);
        task.flags.insert(TaskFlags::RECEIPT_NOW);
    }
    flags
}

pub(crate) fn transport_flags(task: &Task) -> TransportFlags {
    if task.flags.contains(TaskFlags::FORCE_WRITE) {
        TransportFlags::PEER_WRITE_RSP
    } else if task.flags.contains(TaskFlags::LAST) {
        TransportFlags::LAST_IN_BATCH
    } else {
        TransportFlags::empty()
    }
}

/// A task's segment list as it goes on the wire.
pub(crate) struct Sges<'a> {
    pub(crate) list: &'a SegmentList,
    pub(crate) extents: &'a [crate::entries::Extent],
    pub(crate) at: u16,
    pub(crate) count: u16,
    /// With address and key; otherwise only lengths are told.
    pub(crate) real: bool,
}

impl Iterator for Sges<'_> {
    type Item = Sge;

    fn next(&mut self) -> Option<Sge> {
        if self.at >= self.count {
            return None;
        }
        let segment = self.list.segment(self.extents, self.at);
        self.at += 1;
        let (addr, rkey) = if self.real {
            (segment.addr, segment.rkey)
        } else {
            (0, 0)
        };
        Some(Sge {
            addr,
            len: segment.len,
            rkey,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.count - self.at);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Sges<'_> {}

/// A response header with the numbers of its transport and nothing else.
pub(super) fn numbered((sn, ack_sn, credits): (u16, u16, u16)) -> ResponseFields {
    ResponseFields {
        sn,
        ack_sn,
        credits,
        ..RESPONSE
    }
}

/// Headers of a control request.
#[allow(clippy::too_many_arguments, reason = "one frame's parts")]
fn control_request(
    bytes: &mut [u8],
    at: usize,
    framing: Framing,
    kind: Kind,
    session: &SessionFields,
    (sn, ack_sn, credits): (u16, u16, u16),
    ltid: u32,
    header_len: u16,
) -> usize {
    let head = RequestFields {
        sn,
        ack_sn,
        credits,
        ltid,
        header_len,
        ..REQUEST
    };
    let none = core::iter::empty();
    encode_request(
        bytes,
        at,
        framing,
        kind,
        session,
        &head,
        none.clone(),
        none,
        true,
    )
}
