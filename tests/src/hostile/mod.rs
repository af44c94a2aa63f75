//! A peer that says anything at any time: well-formed frames in illegal orders, forged ids,
//! lengths, credits and keys, lost completions, and a local user who calls whatever comes to
//! mind. Bytes decide what happens, so that a random test and a fuzzer run the same thing.
//!
//! What is checked is what no peer may bring about: a panic, a broken invariant, a row that does
//! not come back when the transport connection is gone.

mod forge;
pub mod sockets;

use xio_proto::wire::Framing;
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConnectRequest, ConnectionId, Control, Endpoint, Event,
    Instant, ListenOptions, ListenerId, Message, NexusId, RequestOptions, Segment, SessionId,
    SlotId, Slots, TaskId, TransportId, TransportLimits, Work, WorkStatus, WrId,
};

use crate::tables::BoxedTables;

pub use forge::Voice;

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

/// A hostile peer at the other end of one transport connection.
#[derive(Default)]
struct Peer {
    nexus: Option<NexusId>,
    receives: Vec<(WrId, SlotId)>,
    sends: Vec<(WrId, bool)>,
    voice: Voice,
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
                peer.voice.asked.extend(asked);
                peer.voice.tids.extend([tid, late]);
                peer.sends.push((wr, signaled));
                if let Some(session) = session {
                    peer.voice.session = session;
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
        let len = self.peers[p].voice.forge(choices, &mut frame);
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
