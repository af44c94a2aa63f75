//! Bytes from a peer over sockets, cut anywhere, into the stream layer and through it into the
//! whole endpoint, with a user who answers or does not.

use std::net::SocketAddr;
use std::time::Duration;

use xio_proto::storage::Counts;
use xio_proto::wire::{ConnectMessage, SocketKind};
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConnectOptions, ConnectionId, Control, Endpoint, Event,
    FreeRows, Instant, ListenOptions, ListenerId, Message, NexusId, RequestOptions, Segment,
    SessionOpen, SlotId, Slots, SocketId, StreamWant, TaskId, TransportId, TransportLimits, Work,
    WorkStatus,
};
use xio_tests::tables::BoxedTables;

/// Bytes of a slot.
const SLOT: usize = 4096;
const RX: u32 = 16;
const TX: u32 = 16;
const PORT: u16 = 1000;

struct Memory(Vec<u8>);

impl Slots for Memory {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize * SLOT..][..SLOT]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.0[slot.0 as usize * SLOT..][..SLOT]
    }
}

/// What the user does with what comes.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Habit {
    Answers,
    Refuses,
    Hoards,
    Leaves,
}

/// A socket of the endpoint, with what its peer still sends.
struct Socket {
    id: SocketId,
    /// Sent first: the connect message, where the input has none.
    greeting: Vec<u8>,
    bytes: Vec<u8>,
    at: usize,
    is_open: bool,
}

struct World {
    core: Endpoint<BoxedTables>,
    transport: TransportId,
    memory: Memory,
    free: FreeRows,
    now: Instant,
    habit: Habit,
    /// Longest read; longer ones follow no pattern.
    cut: usize,
    turn: usize,
    sockets: Vec<Socket>,
    nexus: Option<NexusId>,
    connections: Vec<ConnectionId>,
    tasks: Vec<TaskId>,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 9].into(), port)
}

fn greeting(sock: SocketKind, second_port: u16) -> Vec<u8> {
    let mut bytes = [0; ConnectMessage::LEN];
    let message = ConnectMessage { sock, second_port };
    message.encode(&mut bytes);
    bytes.to_vec()
}

impl World {
    fn new(options: u8) -> Self {
        let config = Config {
            slot_size: SLOT as u32,
            buffer_size: 3000,
            inline_data_max: 1024,
            min_grant: 5,
            rq_depth: 8,
            payload_max: 1 << 20,
            // The first session of endpoint 0 is number 0, as it is in most recordings.
            ..Config::new(0, RX, TX)
        };
        let counts = Counts {
            listeners: 1,
            nexuses: 2,
            sessions: 3,
            connections: 3,
            tasks: 4,
            rx_slots: RX as usize,
            tx_slots: TX as usize,
            work: 16,
            sockets: 4,
            extents: 1,
            regions: 1,
        };
        let mut core = Endpoint::new(config, BoxedTables::new(&counts)).expect("it can work");
        let transport = core
            .add_transport(TransportLimits::tcp())
            .expect("it can work");
        Self {
            free: core.free_rows(),
            core,
            transport,
            memory: Memory(vec![0; SLOT * (RX + TX) as usize]),
            now: Instant::from_millis(1),
            habit: [Habit::Answers, Habit::Refuses, Habit::Hoards, Habit::Leaves]
                [usize::from(options >> 4 & 3)],
            cut: [61, 1, 7, usize::MAX][usize::from(options >> 2 & 3)],
            turn: usize::from(options),
            sockets: Vec::new(),
            nexus: None,
            connections: Vec::new(),
            tasks: Vec::new(),
        }
    }

    /// A peer connects with one socket or two.
    fn serve(&mut self, options: u8, control: &[u8], data: &[u8]) {
        let options_of_listener = ListenOptions {
            user: 1,
            backlog: 4,
        };
        let at = "10.0.0.2:7000".parse().expect("an address");
        let listener = self.core.listen(self.transport, at, &options_of_listener);
        let listener = listener.expect("room");
        self.drain();
        self.free = self.core.free_rows();
        let is_pair = options & 1 != 0;
        let has_message = options & 2 != 0;
        let message = control
            .first_chunk()
            .filter(|_| has_message)
            .and_then(|bytes| ConnectMessage::parse(bytes).ok());
        let second = message.map_or(PORT + 1, |message| message.second_port);
        let first = match (has_message, is_pair) {
            (true, _) => Vec::new(),
            (false, true) => greeting(SocketKind::Control, second),
            (false, false) => greeting(SocketKind::Single, 0),
        };
        let mut ends = vec![(PORT, first, control)];
        if is_pair {
            ends.push((second, greeting(SocketKind::Data, PORT), data));
        }
        if options & 0x40 != 0 {
            ends.reverse();
        }
        for (port, greeting, bytes) in ends {
            self.accept(listener, address(port), greeting, bytes);
        }
    }

    fn accept(&mut self, listener: ListenerId, from: SocketAddr, greeting: Vec<u8>, bytes: &[u8]) {
        let taken =
            self.core
                .handle_socket_accepted(self.now, self.transport, listener, from, None);
        let id = taken.expect("room");
        self.socket(id, greeting, bytes);
    }

    fn socket(&mut self, id: SocketId, greeting: Vec<u8>, bytes: &[u8]) {
        self.sockets.push(Socket {
            id,
            greeting,
            bytes: bytes.to_vec(),
            at: 0,
            is_open: true,
        });
    }

    /// The endpoint connects, and is answered.
    fn connect(&mut self, options: u8, control: &[u8], data: &[u8]) {
        let options = ConnectOptions {
            dual_stream: options & 1 != 0,
            ..ConnectOptions::new(7)
        };
        let setup = SessionOpen {
            uri: "tcp://10.0.0.9:1000/x",
            private: b"",
        };
        let connection = self.core.connect(
            self.now,
            self.transport,
            address(PORT),
            &setup,
            &options,
            &mut self.memory,
        );
        self.connections.extend(connection.ok());
        self.drain();
        let ends = self.nexus.map(|nexus| self.core.sockets(nexus));
        let ends = ends.into_iter().flatten().flatten();
        for (id, bytes) in ends.zip([control, data]).collect::<Vec<_>>() {
            self.socket(id, Vec::new(), bytes);
        }
    }

    fn cm(&mut self, nexus: NexusId, kind: CmKind) {
        self.core.handle_cm(self.now, nexus, CmEvent::plain(kind));
    }

    fn control(&mut self, control: Control) {
        let now = self.now;
        match control {
            Control::ResolveAddress { nexus, .. } => self.cm(nexus, CmKind::AddrResolved),
            Control::ResolveRoute { nexus, .. } => self.cm(nexus, CmKind::RouteResolved),
            Control::CreateQueuePair { nexus } => self.core.handle_queue_pair(now, nexus, Ok(())),
            Control::Connect { nexus, .. } => {
                self.nexus = Some(nexus);
                let is_pair = self.core.sockets(nexus)[1].is_some();
                let data = is_pair.then(|| address(PORT + 1));
                self.core
                    .handle_streams_connected(now, nexus, address(PORT), data);
            }
            Control::Disconnect { nexus } => self.cm(nexus, CmKind::Disconnected),
            Control::Destroy { nexus } => {
                for id in self.core.sockets(nexus).into_iter().flatten() {
                    self.forget(id);
                }
                self.core.handle_destroyed(now, nexus);
            }
            Control::CloseSocket { socket, .. } => self.forget(socket),
            _ => {}
        }
    }

    fn forget(&mut self, id: SocketId) {
        for socket in self.sockets.iter_mut().filter(|socket| socket.id == id) {
            socket.is_open = false;
        }
    }

    fn drain(&mut self) {
        loop {
            let mut is_dry = true;
            while let Some(control) = self.core.poll_control(self.transport) {
                is_dry = false;
                self.control(control);
            }
            while let Some(work) = self.core.poll_work(self.transport, &mut self.memory) {
                is_dry = false;
                let (Work::Recv { wr, .. }
                | Work::Send { wr, .. }
                | Work::Read { wr, .. }
                | Work::Write { wr, .. }) = work;
                let completion = Completion {
                    wr,
                    status: WorkStatus::Success,
                    len: 0,
                };
                self.core
                    .handle_completion(self.now, completion, &mut self.memory);
            }
            while let Some(event) = self.core.poll_event() {
                is_dry = false;
                self.event(&event);
            }
            while self.core.poll_stream(self.transport).is_some() {
                is_dry = false;
            }
            if is_dry {
                break;
            }
        }
        self.core.check_invariants();
    }

    fn event(&mut self, event: &Event) {
        let (now, habit) = (self.now, self.habit);
        match *event {
            Event::SessionRequest { session, .. } => {
                let memory = &mut self.memory;
                if habit == Habit::Refuses {
                    let _ = self.core.reject(now, session, 5, b"no", memory);
                } else {
                    let _ = self.core.accept(now, session, 2, &[], b"", memory);
                }
            }
            Event::Established {
                connection,
                message,
                ..
            } => {
                self.connections.push(connection);
                self.tasks.extend(message);
                self.ask(connection);
            }
            Event::ConnectFailed { message, .. } => self.tasks.extend(message),
            Event::Request { task, .. } => {
                if matches!(habit, Habit::Answers | Habit::Leaves) {
                    let _ = self.core.respond(task, &Message::default());
                }
                self.tasks.push(task);
                self.leave();
            }
            Event::OneWay { task, .. } | Event::Response { task, .. } => {
                self.tasks.push(task);
                self.leave();
            }
            Event::PayloadWaiting { task, len, .. } => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                let _ = match habit {
                    Habit::Answers | Habit::Leaves => {
                        let half = len / 2;
                        self.core
                            .provide(task, &[segment(half.max(1)), segment(len)])
                    }
                    Habit::Refuses => self.core.refuse(task, 7),
                    Habit::Hoards => Ok(()),
                };
            }
            _ => {}
        }
        if habit != Habit::Hoards {
            for task in std::mem::take(&mut self.tasks) {
                let _ = self.core.release(task);
            }
        }
    }

    /// Two requests, so that responses may come.
    fn ask(&mut self, connection: ConnectionId) {
        let into = [segment(100), segment(4000)];
        for receipt in [false, true] {
            let options = RequestOptions {
                into: &into,
                receipt,
                ..RequestOptions::default()
            };
            let _ = self.core.send(connection, &Message::default(), &options);
        }
    }

    fn leave(&mut self) {
        if self.habit == Habit::Leaves
            && let Some(connection) = self.connections.pop()
        {
            let _ = self.core.close(self.now, connection);
        }
    }

    /// Reads of all sockets in turn, until none brings anything that is taken.
    fn read(&mut self) {
        loop {
            let mut is_over = true;
            for s in 0..self.sockets.len() {
                while self.read_one(s) {
                    is_over = false;
                    self.drain();
                    if self.cut < usize::MAX {
                        break;
                    }
                }
            }
            if is_over {
                return;
            }
        }
    }

    /// One read; false when nothing was there or taken.
    fn read_one(&mut self, s: usize) -> bool {
        self.turn = self.turn.wrapping_mul(0x9e37_79b1).wrapping_add(1);
        let socket = &mut self.sockets[s];
        if !socket.is_open {
            return false;
        }
        let most = match self.cut {
            cut @ (usize::MAX | 1) => cut,
            cut => 1 + (self.turn >> 8) % cut,
        };
        let there = if socket.greeting.is_empty() {
            &socket.bytes[socket.at..]
        } else {
            &socket.greeting[..]
        };
        let part = &there[..there.len().min(most)];
        let (now, memory) = (self.now, &mut self.memory);
        let taken = match self.core.stream_want(socket.id) {
            StreamWant::Nothing => 0,
            _ if part.is_empty() => 0,
            StreamWant::Bytes(_) => {
                let taken = self.core.handle_stream_bytes(now, socket.id, part, memory);
                assert!(taken <= part.len());
                taken
            }
            StreamWant::Payload(span) => {
                let listed: u64 = self.core.segments(span).map(|s| u64::from(s.len)).sum();
                assert_eq!(listed, span.len, "a span is as long as it says");
                let bytes = span.len.min(part.len() as u64);
                self.core
                    .handle_stream_payload(now, socket.id, bytes, memory);
                bytes as usize
            }
            StreamWant::Discard(most) => {
                let bytes = most.min(part.len() as u64);
                self.core
                    .handle_stream_payload(now, socket.id, bytes, memory);
                bytes as usize
            }
        };
        if socket.greeting.is_empty() {
            socket.at += taken;
        } else {
            socket.greeting.drain(..taken);
        }
        taken > 0
    }

    /// The peer goes away; whatever waits for time gets it, and everything is back.
    fn finish(&mut self) {
        for s in 0..self.sockets.len() {
            if self.sockets[s].is_open {
                self.core.handle_socket_closed(self.now, self.sockets[s].id);
                self.drain();
            }
        }
        for _ in 0..64 {
            for task in std::mem::take(&mut self.tasks) {
                let _ = self.core.release(task);
            }
            self.drain();
            let Some(at) = self.core.poll_timeout() else {
                break;
            };
            self.now = self.now.max(at);
            self.core.handle_timeout(self.now);
            self.drain();
        }
        assert_eq!(self.core.free_rows(), self.free, "everything is back");
    }
}

fn segment(len: u32) -> Segment {
    Segment {
        addr: 0x1000,
        len,
        lkey: 0,
        rkey: 0,
    }
}

/// Runs one life; returns the messages that came.
pub(crate) fn run(input: &[u8]) -> u64 {
    let Some((&options, rest)) = input.split_first() else {
        return 0;
    };
    let (control, data) = if options & 1 == 0 {
        (rest, &rest[..0])
    } else {
        let Some((len, rest)) = rest.split_first_chunk::<2>() else {
            return 0;
        };
        rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()))
    };
    let mut world = World::new(options);
    if options & 0x80 == 0 {
        world.serve(options, control, data);
    } else {
        world.connect(options, control, data);
    }
    world.read();
    world.now = world.now.after(Duration::from_millis(20));
    world.core.handle_timeout(world.now);
    world.drain();
    world.read();
    world.finish();
    world.core.counters().messages_received
}
