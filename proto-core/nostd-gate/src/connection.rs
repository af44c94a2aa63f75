//! A connection's life between two endpoints in `static`s: setup, 1,000 requests, close.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use xio_proto::storage::ArrayStorage;
use xio_proto::wire::Framing;
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConnectOptions, ConnectRequest, ConnectionId, Control,
    Endpoint, Event, Instant, ListenOptions, ListenerId, Message, NexusId, RequestOptions,
    SessionOpen, SlotId, Slots, Span, TransportId, TransportLimits, Work, WorkStatus, WrId,
};

const RX: usize = 32;
const TX: usize = 16;
const SLOTS: usize = RX + TX;
const SLOT_SIZE: usize = 4096;
const MESSAGES: u32 = 1000;

type Rows = ArrayStorage<1, 2, 2, 2, { RX + 16 }, SLOTS, 64, 0, 1, 0, { 2 + 4 + 2 + RX + 16 }>;

static mut ROWS: [Rows; 2] = [const { Rows::new() }; 2];
static mut MEMORY: [[u8; SLOTS * SLOT_SIZE]; 2] = [[0; SLOTS * SLOT_SIZE]; 2];

struct Memory(&'static mut [u8]);

impl Slots for Memory {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize * SLOT_SIZE..][..SLOT_SIZE]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.0[slot.0 as usize * SLOT_SIZE..][..SLOT_SIZE]
    }
}

/// A queue of posted receives, as a device has it.
struct Receives {
    ring: [Option<(WrId, SlotId)>; RX],
    first: usize,
    count: usize,
}

impl Receives {
    fn push(&mut self, wr: WrId, slot: SlotId) {
        assert!(self.count < RX, "receive queue overrun");
        self.ring[(self.first + self.count) % RX] = Some((wr, slot));
        self.count += 1;
    }
    fn pop(&mut self) -> Option<(WrId, SlotId)> {
        let receive = self.ring[self.first].take()?;
        self.first = (self.first + 1) % RX;
        self.count -= 1;
        Some(receive)
    }
}

struct Side {
    core: Endpoint<&'static mut Rows>,
    transport: TransportId,
    memory: Memory,
    receives: Receives,
    nexus: Option<NexusId>,
    connection: Option<ConnectionId>,
    responses: u32,
    closed: bool,
}

impl Side {
    fn new(number: u8, rows: &'static mut Rows, memory: &'static mut [u8]) -> Self {
        let config = Config {
            slot_size: SLOT_SIZE as u32,
            buffer_size: 2048,
            inline_data_max: 1024,
            ..Config::new(number, RX as u32, TX as u32)
        };
        let Ok(mut core) = Endpoint::new(config, rows) else {
            panic!("config works")
        };
        let Ok(transport) = core.add_transport(TransportLimits::rdma()) else {
            panic!("limits work")
        };
        Self {
            core,
            transport,
            memory: Memory(memory),
            receives: Receives {
                ring: [None; RX],
                first: 0,
                count: 0,
            },
            nexus: None,
            connection: None,
            responses: 0,
            closed: false,
        }
    }

    fn cm(&mut self, now: Instant, kind: CmKind) {
        if let Some(nexus) = self.nexus {
            self.core.handle_cm(now, nexus, CmEvent::plain(kind));
        }
    }

    fn send(&mut self, number: u32) {
        let Some(connection) = self.connection else {
            panic!("connected")
        };
        let message = self.message(connection, number);
        let sent = self
            .core
            .send(connection, &message, &RequestOptions::default());
        assert!(sent.is_ok(), "room for a request");
    }

    fn message(&mut self, connection: ConnectionId, number: u32) -> Message<'static> {
        let Ok(slot) = self.core.reserve_slot(connection) else {
            panic!("room for a slot")
        };
        let at = self.core.config().headroom();
        self.memory.slot_mut(slot)[at..at + 4].copy_from_slice(&number.to_be_bytes());
        Message {
            slot: Some(slot),
            slot_data: 4,
            ..Message::default()
        }
    }

    fn number(&self, data: xio_proto::Data) -> u32 {
        let xio_proto::Data::Slot(span) = data else {
            panic!("small data lies in its slot")
        };
        let bytes = self.bytes(span);
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn bytes(&self, span: Span) -> &[u8] {
        span.of(self.memory.slot(SlotId(span.slot)))
    }
}

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 7000);
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 1);

struct Wire {
    sides: [Side; 2],
    listener: ListenerId,
    now: Instant,
}

impl Wire {
    fn control(&mut self, i: usize, control: Control) {
        let now = self.now;
        match control {
            Control::ResolveAddress { nexus, .. } => {
                self.sides[i].nexus = Some(nexus);
                self.sides[i].cm(now, CmKind::AddrResolved);
            }
            Control::ResolveRoute { .. } => self.sides[i].cm(now, CmKind::RouteResolved),
            Control::CreateQueuePair { nexus } => {
                self.sides[i].core.handle_queue_pair(now, nexus, Ok(()));
            }
            Control::Connect { .. } => {
                let request = ConnectRequest {
                    listener: self.listener,
                    peer: CLIENT,
                    local: None,
                    framing: Framing::Rdma,
                    private: &[],
                };
                let side = &mut self.sides[1 - i];
                let taken = side
                    .core
                    .handle_connect_request(now, side.transport, &request);
                let Ok(nexus) = taken else {
                    panic!("room for a peer")
                };
                side.nexus = Some(nexus);
            }
            Control::Accept { .. } => {
                self.sides[i].cm(now, CmKind::Established);
                self.sides[1 - i].cm(now, CmKind::Established);
            }
            Control::Disconnect { .. } => {
                self.sides[i].cm(now, CmKind::Disconnected);
                self.sides[1 - i].cm(now, CmKind::Disconnected);
            }
            Control::Drain { .. } => {
                while let Some((wr, _)) = self.sides[i].receives.pop() {
                    self.complete(i, wr, WorkStatus::Flushed, 0);
                }
            }
            Control::Destroy { nexus } => self.sides[i].core.handle_destroyed(now, nexus),
            _ => {}
        }
    }

    fn complete(&mut self, i: usize, wr: WrId, status: WorkStatus, len: u32) {
        let side = &mut self.sides[i];
        let completion = Completion { wr, status, len };
        side.core
            .handle_completion(self.now, completion, &mut side.memory);
    }

    fn work(&mut self, i: usize, work: Work) {
        match work {
            Work::Recv { wr, slot, .. } => self.sides[i].receives.push(wr, slot),
            Work::Send {
                wr,
                head,
                tail,
                signaled,
                ..
            } => {
                assert_eq!(tail.len, 0, "one stream");
                let [a, b] = &mut self.sides;
                let (from, to) = if i == 0 { (a, b) } else { (b, a) };
                let Some((recv, slot)) = to.receives.pop() else {
                    panic!("receiver not ready")
                };
                let bytes = from.bytes(head);
                to.memory.slot_mut(slot)[..bytes.len()].copy_from_slice(bytes);
                if signaled {
                    self.complete(i, wr, WorkStatus::Success, 0);
                }
                self.complete(1 - i, recv, WorkStatus::Success, head.len);
            }
            Work::Read { .. } | Work::Write { .. } => panic!("small messages only"),
        }
    }

    fn event(&mut self, i: usize, event: Event) {
        let now = self.now;
        let side = &mut self.sides[i];
        match event {
            Event::SessionRequest { session, .. } => {
                let accepted = side
                    .core
                    .accept(now, session, 0, &[], &[], &mut side.memory);
                assert!(accepted.is_ok(), "the session can be accepted");
            }
            Event::Established { connection, .. } => side.connection = Some(connection),
            Event::Request {
                connection,
                task,
                data,
                ..
            } => {
                let answer = side.number(data) + 1;
                let message = side.message(connection, answer);
                assert!(
                    side.core.respond(task, &message).is_ok(),
                    "the request can be answered"
                );
            }
            Event::Response { task, data, .. } => {
                assert_eq!(
                    side.number(data),
                    side.responses + 1,
                    "the answer to this request"
                );
                side.responses += 1;
                assert!(
                    side.core.release(task).is_ok(),
                    "the response can be released"
                );
            }
            Event::Closed { .. } => side.closed = true,
            _ => {}
        }
    }

    fn run(&mut self) {
        loop {
            let mut busy = false;
            for i in 0..2 {
                let side = &mut self.sides[i];
                let transport = side.transport;
                if let Some(control) = side.core.poll_control(transport) {
                    busy = true;
                    self.control(i, control);
                }
                let side = &mut self.sides[i];
                if let Some(work) = side.core.poll_work(transport, &mut side.memory) {
                    busy = true;
                    self.work(i, work);
                }
                if let Some(event) = self.sides[i].core.poll_event() {
                    busy = true;
                    self.event(i, event);
                }
            }
            if !busy {
                return;
            }
        }
    }

    fn advance(&mut self) -> bool {
        let due = |side: &Side| side.core.poll_timeout();
        let Some(at) = self.sides.iter().filter_map(due).min() else {
            return false;
        };
        self.now = self.now.max(at);
        for side in &mut self.sides {
            side.core.handle_timeout(self.now);
        }
        self.run();
        true
    }
}

/// Runs it once, and returns the number of messages.
pub(crate) fn run() -> u32 {
    let (rows, memory) = (&raw mut ROWS, &raw mut MEMORY);
    // SAFETY: `gate_run` calls this once, from one thread, and nothing else names the statics.
    let ([rows_a, rows_b], [bytes_a, bytes_b]) = unsafe { (&mut *rows, &mut *memory) };
    let client = Side::new(0, rows_a, bytes_a);
    let mut server = Side::new(1, rows_b, bytes_b);
    let options = ListenOptions {
        user: 0,
        backlog: 1,
    };
    let Ok(listener) = server.core.listen(server.transport, SERVER, &options) else {
        panic!("room for a listener")
    };
    let mut wire = Wire {
        sides: [client, server],
        listener,
        now: Instant::from_millis(1),
    };
    wire.run();
    let free = [
        wire.sides[0].core.free_rows(),
        wire.sides[1].core.free_rows(),
    ];
    let side = &mut wire.sides[0];
    let open = SessionOpen {
        uri: "rdma://10.0.0.2:7000/gate",
        private: &[],
    };
    let transport = side.transport;
    let options = ConnectOptions::new(0);
    let opened = side.core.connect(
        wire.now,
        transport,
        SERVER,
        &open,
        &options,
        &mut side.memory,
    );
    let Ok(connection) = opened else {
        panic!("room for a connection")
    };
    wire.run();
    assert!(
        wire.sides[0].connection == Some(connection),
        "the client is connected"
    );
    for number in 0..MESSAGES {
        wire.sides[0].send(number);
        wire.run();
        assert_eq!(
            wire.sides[0].responses,
            number + 1,
            "one answer to each request"
        );
    }
    assert!(
        wire.sides[0].core.close(wire.now, connection).is_ok(),
        "the connection closes"
    );
    wire.run();
    while wire.advance() {}
    for (side, free) in wire.sides.iter().zip(free) {
        assert!(side.closed, "both sides hear of the close");
        assert_eq!(side.core.free_rows(), free, "everything is back");
    }
    MESSAGES
}
