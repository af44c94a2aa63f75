//! A peer that says anything at any time: well-formed frames in illegal orders, forged ids,
//! lengths, credits and keys, lost completions, and a local user who calls whatever comes to
//! mind. Bytes decide what happens, so that a random test and a fuzzer run the same thing.
//!
//! What is checked is what no peer may bring about: a panic, a broken invariant, a row that does
//! not come back when the transport connection is gone.

use xio_proto::wire::{
    Cancel, CreditNop, Framing, Kind, NexusSetupRequest, Op, ReadAck, RequestFields,
    ResponseFields, ResponseList, RkeyTable, SessionFields, SessionFlags, SessionSetupRequest,
    SetupParams, Sge, TransportFlags, encode_request, encode_response,
};
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConnectRequest, ConnectionId, Control, Endpoint, Event,
    Instant, ListenOptions, ListenerId, Message, NexusId, RequestOptions, Segment, SessionId,
    SlotId, Slots, TaskId, TransportId, TransportLimits, Work, WorkStatus, WrId,
};

use crate::tables::BoxedTables;

/// Decisions, taken from bytes; zero when there are no more.
#[derive(Debug)]
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Decisions from these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
    /// True when nothing is left to decide with.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }
    /// A number below `limit` and 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }
    /// Four bytes.
    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
    /// One of some; `None` when there are none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() {
            None
        } else {
            Some(of[self.below(of.len())])
        }
    }
}

struct Memory {
    bytes: Vec<u8>,
    size: usize,
}

impl Slots for Memory {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.bytes[slot.0 as usize * self.size..][..self.size]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.bytes[slot.0 as usize * self.size..][..self.size]
    }
}

/// What the hostile peer knows of one transport connection.
#[derive(Default)]
struct Peer {
    nexus: Option<NexusId>,
    receives: Vec<(WrId, SlotId)>,
    sends: Vec<(WrId, bool)>,
    sn: u16,
    session_sn: u16,
    serial: u64,
    session: u32,
    set_up: bool,
    answer_sn: u16,
    /// Task ids that our side used.
    tids: Vec<u32>,
    /// Its requests that are not answered: task id and serial number.
    asked: Vec<(u32, u64)>,
}

/// One endpoint among enemies.
pub struct Hostile {
    endpoint: Endpoint<BoxedTables>,
    transport: TransportId,
    memory: Memory,
    now: Instant,
    listener: ListenerId,
    peers: Vec<Peer>,
    connections: Vec<ConnectionId>,
    sessions: Vec<SessionId>,
    tasks: Vec<TaskId>,
}

const SLOT_SIZE: usize = 4096;

impl Hostile {
    fn new() -> Self {
        let config = Config {
            slot_size: SLOT_SIZE as u32,
            buffer_size: 1024,
            inline_data_max: 512,
            ..Config::new(1, 64, 24)
        };
        let counts = xio_proto::storage::Counts {
            listeners: 1,
            nexuses: 5,
            sessions: 5,
            connections: 6,
            tasks: 12,
            rx_slots: 64,
            tx_slots: 24,
            work: 48,
            sockets: 2,
            regions: 1,
            extents: 2,
        };
        let tables = BoxedTables::new(&counts);
        let mut endpoint = Endpoint::new(config, tables).expect("config works");
        let limits = TransportLimits {
            sq_depth: 12,
            ..TransportLimits::rdma()
        };
        let transport = endpoint.add_transport(limits).expect("limits work");
        let options = ListenOptions {
            user: 1,
            backlog: 4,
        };
        let address = "10.0.0.2:7000".parse().expect("an address");
        let listener = endpoint.listen(transport, address, &options).expect("room");
        let memory = Memory {
            bytes: vec![0; SLOT_SIZE * 88],
            size: SLOT_SIZE,
        };
        Self {
            endpoint,
            transport,
            memory,
            now: Instant::from_millis(1),
            listener,
            peers: Vec::new(),
            connections: Vec::new(),
            sessions: Vec::new(),
            tasks: Vec::new(),
        }
    }

    fn drain(&mut self) {
        loop {
            let mut busy = false;
            while let Some(control) = self.endpoint.poll_control(self.transport) {
                busy = true;
                self.control(control);
            }
            while let Some(work) = self.endpoint.poll_work(self.transport, &mut self.memory) {
                busy = true;
                self.work(work);
            }
            while let Some(event) = self.endpoint.poll_event() {
                busy = true;
                self.event(event);
            }
            if !busy {
                break;
            }
        }
        self.endpoint.check_invariants();
    }

    fn peer(&mut self, nexus: NexusId) -> &mut Peer {
        if self.peers.len() <= nexus.index() {
            self.peers.resize_with(nexus.index() + 1, Peer::default);
        }
        &mut self.peers[nexus.index()]
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::CreateQueuePair { nexus } => {
                *self.peer(nexus) = Peer {
                    nexus: Some(nexus),
                    ..Peer::default()
                };
                self.endpoint.handle_queue_pair(self.now, nexus, Ok(()));
            }
            Control::Accept { nexus, .. } => {
                let event = CmEvent::plain(CmKind::Established);
                self.endpoint.handle_cm(self.now, nexus, event);
            }
            Control::Disconnect { nexus } => {
                let event = CmEvent::plain(CmKind::Disconnected);
                self.endpoint.handle_cm(self.now, nexus, event);
            }
            Control::Destroy { nexus } => {
                *self.peer(nexus) = Peer::default();
                self.endpoint.handle_destroyed(self.now, nexus);
            }
            _ => {}
        }
    }

    fn work(&mut self, work: Work) {
        match work {
            Work::Recv { nexus, wr, slot } => self.peer(nexus).receives.push((wr, slot)),
            Work::Send {
                nexus,
                wr,
                head,
                signaled,
                ..
            } => {
                let frame = head.of(self.memory.slot(SlotId(head.slot)));
                let tid = match frame.get(66..70) {
                    Some(tid) => u32::from_be_bytes([tid[0], tid[1], tid[2], tid[3]]),
                    None => 0,
                };
                let late = match frame.get(80..84) {
                    Some(tid) => u32::from_be_bytes([tid[0], tid[1], tid[2], tid[3]]),
                    None => 0,
                };
                // The setup answer tells the session's id.
                let session = frame
                    .get(100..104)
                    .filter(|_| frame[6] == 1 && frame[7] == 4);
                let session = session.map(|id| u32::from_be_bytes([id[0], id[1], id[2], id[3]]));
                let asked = (frame[7] == 0x12).then(|| {
                    let serial: [u8; 8] = frame[24..32].try_into().expect("eight bytes");
                    (tid, u64::from_be_bytes(serial))
                });
                let peer = self.peer(nexus);
                peer.asked.extend(asked);
                peer.tids.extend([tid, late]);
                peer.sends.push((wr, signaled));
                if let Some(session) = session {
                    peer.session = session;
                }
            }
            Work::Read {
                nexus,
                wr,
                signaled,
                ..
            }
            | Work::Write {
                nexus,
                wr,
                signaled,
                ..
            } => {
                self.peer(nexus).sends.push((wr, signaled));
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::SessionRequest { session, .. } => self.sessions.push(session),
            Event::Established {
                connection,
                message,
                ..
            } => {
                self.connections.push(connection);
                self.tasks.extend(message);
            }
            Event::ConnectFailed { message, .. } => self.tasks.extend(message),
            Event::Request { task, .. }
            | Event::OneWay { task, .. }
            | Event::PayloadWaiting { task, .. }
            | Event::Response { task, .. } => self.tasks.push(task),
            _ => {}
        }
    }

    fn complete(&mut self, wr: WrId, status: WorkStatus, len: u32) {
        let completion = Completion { wr, status, len };
        self.endpoint
            .handle_completion(self.now, completion, &mut self.memory);
    }

    fn connect(&mut self) {
        let request = ConnectRequest {
            listener: self.listener,
            peer: "10.0.0.9:1".parse().expect("an address"),
            local: None,
            framing: Framing::Rdma,
            private: &[],
        };
        let _ = self
            .endpoint
            .handle_connect_request(self.now, self.transport, &request);
    }

    /// The peer of a living transport connection.
    fn some_peer(&self, choices: &mut Choices<'_>) -> Option<usize> {
        let living: Vec<usize> = (0..self.peers.len())
            .filter(|p| self.peers[*p].nexus.is_some())
            .collect();
        choices.pick(&living)
    }

    fn frame(&mut self, choices: &mut Choices<'_>) {
        let Some(p) = self.some_peer(choices) else {
            return;
        };
        if self.peers[p].receives.is_empty() {
            return;
        }
        let mut frame = [0; SLOT_SIZE];
        let len = forge(&mut self.peers[p], choices, &mut frame);
        let (wr, slot) = self.peers[p].receives.remove(0);
        let mut len = len.min(1024);
        if choices.below(60) == 0 {
            let at = choices.below(len);
            frame[at] ^= choices.byte();
        }
        if choices.below(60) == 0 {
            len = choices.below(len + 8);
        }
        self.memory.slot_mut(slot)[..len].copy_from_slice(&frame[..len]);
        self.complete(wr, WorkStatus::Success, len as u32);
    }

    fn completion(&mut self, choices: &mut Choices<'_>) {
        let Some(p) = self.some_peer(choices) else {
            return;
        };
        let failed = choices.below(32) == 0;
        let peer = &mut self.peers[p];
        let signaled = peer
            .sends
            .iter()
            .position(|(_, signaled)| *signaled || failed);
        let Some(at) = signaled else { return };
        let done: Vec<_> = peer.sends.drain(..=at).collect();
        let status = if failed {
            WorkStatus::RetryExceeded
        } else {
            WorkStatus::Success
        };
        self.complete(done[at].0, status, 0);
    }

    fn user(&mut self, choices: &mut Choices<'_>) {
        let segment = |addr, len| Segment {
            addr,
            len,
            lkey: 1,
            rkey: 2,
        };
        let segments = [
            segment(0x1000, 1 + choices.word() % 4000),
            segment(0x9000, 1 + choices.word() % 400),
        ];
        match choices.below(3) {
            0 => self.user_of_session(choices),
            1 => self.user_of_connection(choices, &segments),
            _ => self.user_of_task(choices, &segments),
        }
    }

    fn user_of_session(&mut self, choices: &mut Choices<'_>) {
        let Some(session) = choices.pick(&self.sessions) else {
            return;
        };
        let (now, memory) = (self.now, &mut self.memory);
        let portals: [&[u8]; 1] = [b"rdma://10.0.0.3:1"];
        let _ = match choices.below(8) {
            0 => self.endpoint.reject(now, session, 5, b"no", memory),
            1 => self.endpoint.redirect(now, session, &portals, memory),
            2 => {
                let accepted = self.endpoint.accept(now, session, 2, &portals, &[], memory);
                accepted.map(drop)
            }
            _ => {
                let accepted = self.endpoint.accept(now, session, 2, &[], &[], memory);
                accepted.map(drop)
            }
        };
    }

    fn user_of_connection(&mut self, choices: &mut Choices<'_>, segments: &[Segment]) {
        let Some(connection) = choices.pick(&self.connections) else {
            return;
        };
        let now = self.now;
        let _ = match choices.below(16) {
            0 => self.endpoint.close(now, connection),
            1 if choices.below(4) == 0 => self.endpoint.abort(now, connection),
            _ => {
                let message = Message {
                    data: &segments[..choices.below(3)],
                    user: 3,
                    ..Message::default()
                };
                let soon = now.after(core::time::Duration::from_millis(5));
                let options = RequestOptions {
                    into: &segments[..choices.below(3)],
                    receipt: choices.below(2) == 0,
                    deadline: (choices.below(2) == 0).then_some(soon),
                    ..RequestOptions::default()
                };
                let sent = self.endpoint.send(connection, &message, &options);
                self.tasks.extend(sent.ok());
                Ok(())
            }
        };
    }

    fn user_of_task(&mut self, choices: &mut Choices<'_>, segments: &[Segment]) {
        let Some(task) = choices.pick(&self.tasks) else {
            return;
        };
        let some = &segments[..choices.below(3)];
        let _ = match choices.below(6) {
            0 | 1 => {
                let message = Message {
                    data: some,
                    user: 4,
                    ..Message::default()
                };
                self.endpoint.respond(task, &message)
            }
            2 => self.endpoint.release(task),
            3 => self.endpoint.provide(task, some),
            4 => self.endpoint.refuse(task, 7),
            _ => self.endpoint.cancel(task),
        };
    }

    fn time(&mut self, choices: &mut Choices<'_>) {
        if let Some(at) = self.endpoint.poll_timeout()
            && choices.below(4) == 0
        {
            self.now = self.now.max(at);
        } else {
            self.now = self.now.after(core::time::Duration::from_millis(1));
        }
        self.endpoint.handle_timeout(self.now);
    }

    fn cm(&mut self, choices: &mut Choices<'_>) {
        let Some(p) = self.some_peer(choices) else {
            return;
        };
        let Some(nexus) = self.peers[p].nexus else {
            return;
        };
        let kind = CmKind::from_number(choices.below(20) as u32);
        let status = if choices.below(3) == 0 { -1 } else { 0 };
        self.endpoint
            .handle_cm(self.now, nexus, CmEvent::failed(kind, status));
    }

    /// Ends all transport connections, gives everything back, and looks whether it is.
    fn finish(&mut self) {
        for p in 0..self.peers.len() {
            if let Some(nexus) = self.peers[p].nexus {
                let event = CmEvent::plain(CmKind::DeviceRemoval);
                self.endpoint.handle_cm(self.now, nexus, event);
            }
        }
        self.drain();
        while let Some(at) = self.endpoint.poll_timeout() {
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            self.drain();
        }
        for task in std::mem::take(&mut self.tasks) {
            let _ = self.endpoint.release(task);
        }
        self.drain();
    }
}

/// Writes a frame of a kind that may or may not be possible now.
fn forge(peer: &mut Peer, choices: &mut Choices<'_>, frame: &mut [u8]) -> usize {
    let kind = Kind::ALL[choices.below(Kind::ALL.len())];
    // Most frames of a hostile peer should get past the first checks.
    let kind = match choices.below(24) {
        0 => kind,
        _ if !peer.set_up => Kind::NexusSetupReq,
        _ if peer.session == 0 => Kind::SessionSetupReq,
        1..=6 if !peer.asked.is_empty() => Kind::MsgRsp,
        7 => Kind::CreditNop,
        8 => Kind::KeepaliveReq,
        9 => Kind::FinReq,
        10 => Kind::AckReq,
        11..=14 => Kind::OneWayReq,
        _ => Kind::MsgReq,
    };
    peer.set_up |= kind == Kind::NexusSetupReq;
    match kind {
        Kind::NexusSetupReq | Kind::NexusSetupRsp => {
            let params = SetupParams {
                credits: choices.byte().into(),
                sq_depth: 5,
                rq_depth: choices.byte().into(),
                buffer_size: 512 + u64::from(choices.byte()) * 8,
                max_in_sges: choices.below(5) as u32,
                max_out_sges: choices.below(5) as u32,
                max_header: choices.byte().into(),
                pad: 0,
            };
            let rkeys = RkeyTable::default();
            let flags = u16::from(choices.below(8) == 0);
            let setup = NexusSetupRequest {
                flags,
                cid: 0,
                params,
                rkeys,
            };
            setup.encode(frame, xio_proto::wire::Dialect::Rdma)
        }
        Kind::CreditNop => {
            let credits = choices.byte().into();
            CreditNop {
                sn: peer.sn,
                ack_sn: 0,
                credits,
            }
            .encode(frame)
        }
        Kind::ReadAck => {
            let rtid = choices.pick(&peer.tids).unwrap_or(0);
            ReadAck { rtid }.encode(frame)
        }
        _ if kind.is_request() => forge_request(peer, choices, frame, kind),
        _ => forge_response(peer, choices, frame, kind),
    }
}

fn numbers(peer: &mut Peer, choices: &mut Choices<'_>, kind: Kind) -> (u16, SessionFields) {
    let sn = peer.sn;
    peer.sn = sn.wrapping_add(1);
    let mut session = SessionFields {
        dest_session: peer.session,
        flags: SessionFlags::from_bits_retain(match choices.below(4) {
            0 => choices.word() & 0x1c03,
            1 => 0x1800,
            _ => 0x1000,
        }),
        serial: peer.serial,
        ..SessionFields::default()
    };
    if kind.is_application() || kind == Kind::AckReq {
        session.sn = peer.session_sn;
        if kind.is_request() {
            peer.session_sn = peer.session_sn.wrapping_add(1);
            peer.serial += 1;
        } else {
            session.sn = peer.answer_sn;
            peer.answer_sn = peer.answer_sn.wrapping_add(1);
        }
    }
    if kind.is_request() {
        session.flags &= SessionFlags::from_bits_retain(0x403);
    }
    if choices.below(32) == 0 {
        session.dest_session = choices.word();
    }
    (sn, session)
}

fn some_sges(choices: &mut Choices<'_>, n: usize) -> Vec<Sge> {
    let mut sge = || Sge {
        addr: choices.word().into(),
        len: 1 + (choices.word() >> choices.below(32)) % 8000,
        rkey: 1,
    };
    (0..n).map(|_| sge()).collect()
}

/// Payload of a control request, written behind the headers; its length.
fn forge_payload(choices: &mut Choices<'_>, frame: &mut [u8], kind: Kind, sn: u16) -> u16 {
    if kind == Kind::SessionSetupReq {
        let uri_len = choices.below(30);
        let setup = SessionSetupRequest {
            session_id: choices.byte().into(),
            snd_bytes: 1 << 20,
            rcv_bytes: 1 << 20,
            snd_msgs: 10,
            rcv_msgs: 10,
            uri: &[b'u'; 30][..uri_len],
            private: b"pd",
        };
        setup.encode(frame).expect("fits") as u16
    } else if kind == Kind::CancelReq {
        let cancel = Cancel {
            sn,
            result: 0,
            requester: 1,
            responder: 2,
            serial: 3,
        };
        cancel.encode(frame) as u16
    } else if kind.is_application() {
        choices.below(40) as u16
    } else {
        0
    }
}

fn forge_request(
    peer: &mut Peer,
    choices: &mut Choices<'_>,
    frame: &mut [u8],
    kind: Kind,
) -> usize {
    let (sn, session) = numbers(peer, choices, kind);
    let at = 300;
    let header_len = forge_payload(choices, &mut frame[at..], kind, sn);
    let read = kind.is_application() && choices.below(4) == 0;
    let (n_in, n_out) = match kind {
        Kind::MsgReq => (
            choices.below(4),
            if read { 1 + choices.below(3) } else { 0 },
        ),
        Kind::OneWayReq => (0, if read { 1 + choices.below(3) } else { 0 }),
        _ => (0, 0),
    };
    let data_len = if read || !kind.is_application() {
        0
    } else {
        choices.below(200) as u64
    };
    let head = RequestFields {
        flags: TransportFlags::from_bits_retain(choices.byte() & 0x13),
        sn,
        ack_sn: 0,
        credits: choices.below(20) as u16,
        ltid: choices.word(),
        in_op: if n_in > 0 && choices.below(2) == 0 {
            Op::Write
        } else {
            Op::Send
        },
        out_op: if read { Op::Read } else { Op::Send },
        in_sges: 0,
        out_sges: 0,
        header_len,
        pad_len: 0,
        data_len,
    };
    let (ins, outs) = (some_sges(choices, n_in), some_sges(choices, n_out));
    let start = encode_request(
        frame,
        at,
        Framing::Rdma,
        kind,
        &session,
        &head,
        ins.into_iter(),
        outs.into_iter(),
        true,
    );
    let end = at + usize::from(header_len) + data_len as usize;
    frame.copy_within(start..end, 0);
    end - start
}

fn forge_response(
    peer: &mut Peer,
    choices: &mut Choices<'_>,
    frame: &mut [u8],
    kind: Kind,
) -> usize {
    let (sn, session) = numbers(peer, choices, kind);
    let at = 300;
    let application = kind == Kind::MsgRsp;
    let op = match choices.below(4) {
        0 if application => Op::Write,
        1 if application => Op::Read,
        _ => Op::Send,
    };
    let last = choices.pick(&peer.tids).unwrap_or(0);
    let rtid = if choices.below(8) == 0 {
        choices.word()
    } else {
        last
    };
    let header_len = if application {
        choices.below(20) as u16
    } else {
        0
    };
    let data_len = match op {
        Op::Send if application => choices.below(100) as u64,
        Op::Write => u64::from(choices.word() >> choices.below(32)),
        _ => 0,
    };
    let head = ResponseFields {
        sn,
        ack_sn: 0,
        credits: choices.below(20) as u16,
        rtid,
        ltid: choices.word(),
        op,
        sges: 0,
        status: if choices.below(4) == 0 {
            choices.word()
        } else {
            0
        },
        header_len,
        pad_len: 0,
        data_len,
    };
    let framing = Framing::Rdma;
    let start = match op {
        Op::Send => {
            let list = ResponseList::none();
            encode_response(frame, at, framing, kind, &session, &head, list, true)
        }
        Op::Write => {
            let list = ResponseList::lengths([data_len as u32].into_iter());
            encode_response(frame, at, framing, kind, &session, &head, list, true)
        }
        Op::Read => {
            let len = choices.word() >> choices.below(32);
            let sge = Sge {
                addr: 77,
                len,
                rkey: 1,
            };
            let list = ResponseList::sges([sge].into_iter());
            encode_response(frame, at, framing, kind, &session, &head, list, true)
        }
    };
    let data = if op == Op::Send { data_len as usize } else { 0 };
    let end = at + usize::from(header_len) + data;
    frame.copy_within(start..end, 0);
    end - start
}

/// Runs one life of an endpoint among enemies, as the bytes say.
///
/// # Panics
/// When the endpoint does, or something is not back at the end.
pub fn run(bytes: &[u8]) -> (u64, u64) {
    let mut choices = Choices::new(bytes);
    let mut hostile = Hostile::new();
    hostile.drain();
    let free = hostile.endpoint.free_rows();
    while !choices.is_empty() {
        match choices.below(16) {
            0 => hostile.connect(),
            1..=8 => hostile.frame(&mut choices),
            9..=10 => hostile.completion(&mut choices),
            11..=13 => hostile.user(&mut choices),
            14 => hostile.time(&mut choices),
            _ if choices.below(8) == 0 => hostile.cm(&mut choices),
            _ => {}
        }
        hostile.drain();
    }
    hostile.finish();
    if hostile.endpoint.free_rows() != free {
        for row in hostile.endpoint.rows_in_use() {
            println!("{row:?}");
        }
    }
    assert_eq!(hostile.endpoint.free_rows(), free, "everything is back");
    let counters = hostile.endpoint.counters();
    (counters.frames_received, counters.messages_received)
}
