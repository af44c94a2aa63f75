//! Instruction budget: small requests and their responses between two endpoints, the core alone.
//!
//! `round_trip CONNECTIONS ACTIVE ROUNDS [deadline]` opens so many connections, each on a transport
//! connection of its own, and lets `ROUNDS` requests of 64 bytes go round robin over the first
//! `ACTIVE` of them, one at a time on each. Each of these has had one before, which is not counted:
//! what its setup left to do is done then. With `deadline` each has one that is far away. Only what
//! runs inside the functions of `core_side` is
//! counted: `--toggle-collect='*core_side*'`.

use std::collections::VecDeque;
use std::net::SocketAddr;

use xio_proto::storage::{Counts, Tables};
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConnectOptions, ConnectRequest, ConnectionId, Control,
    Endpoint, Event, Instant, ListenOptions, ListenerId, Message, NexusId, RequestOptions,
    SessionOpen, SlotId, Slots, Span, TransportId, TransportLimits, Work, WorkStatus, WrId,
};
use xio_tests::pair::leak_tables;

type Core = Endpoint<Tables<'static>>;

/// Bytes of a slot.
const SLOT: usize = 4096;

struct Memory(Vec<[u8; SLOT]>);

impl Slots for Memory {
    #[inline]
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize]
    }
    #[inline]
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.0[slot.0 as usize]
    }
}

/// Every call into the core on the message path, one function each.
mod core_side {
    use super::*;

    #[inline(never)]
    pub(super) fn send(
        core: &mut Core,
        c: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) {
        core.send(c, message, options).expect("room");
    }
    #[inline(never)]
    pub(super) fn reserve(core: &mut Core, c: ConnectionId) -> SlotId {
        core.reserve_slot(c).expect("room")
    }
    #[inline(never)]
    pub(super) fn respond(core: &mut Core, task: xio_proto::TaskId, message: &Message<'_>) {
        core.respond(task, message).expect("room");
    }
    #[inline(never)]
    pub(super) fn release(core: &mut Core, task: xio_proto::TaskId) {
        core.release(task).expect("known");
    }
    #[inline(never)]
    pub(super) fn poll_work(core: &mut Core, t: TransportId, slots: &mut Memory) -> Option<Work> {
        core.poll_work(t, slots)
    }
    #[inline(never)]
    pub(super) fn poll_event(core: &mut Core) -> Option<Event> {
        core.poll_event()
    }
    #[inline(never)]
    pub(super) fn completion(core: &mut Core, now: Instant, c: Completion, slots: &mut Memory) {
        core.handle_completion(now, c, slots);
    }
}

struct Side {
    core: Core,
    transport: TransportId,
    slots: Memory,
    receives: Vec<VecDeque<(WrId, SlotId)>>,
    peers: Vec<Option<NexusId>>,
}

const NOW: Instant = Instant::from_millis(1);
const PAYLOAD: usize = 64;

impl Side {
    fn new(endpoint: u8, connections: usize) -> Self {
        let grant = 40;
        let rx = (connections as u32 * grant).max(64);
        let config = Config {
            slot_size: SLOT as u32,
            buffer_size: 1024,
            inline_data_max: 512,
            min_grant: 5,
            keepalive: None,
            ..Config::new(endpoint, rx, 256)
        };
        let counts = Counts {
            listeners: 1,
            nexuses: connections + 1,
            // One row is kept to refuse who comes too many.
            sessions: connections + 1,
            connections: connections + 1,
            tasks: 256,
            rx_slots: rx as usize,
            tx_slots: 256,
            work: 1024,
            sockets: 0,
            extents: 1,
            regions: 0,
        };
        let slots = Memory(vec![[0; SLOT]; rx as usize + 256]);
        let mut core = Endpoint::new(config, leak_tables(&counts)).expect("config works");
        let limits = TransportLimits {
            cq_depth: 1 << 20,
            ..TransportLimits::rdma()
        };
        let transport = core.add_transport(limits).expect("limits work");
        let receives = (0..=connections)
            .map(|_| VecDeque::with_capacity(512))
            .collect();
        Self {
            core,
            transport,
            slots,
            receives,
            peers: vec![None; connections + 1],
        }
    }

    fn cm(&mut self, nexus: NexusId, kind: CmKind) {
        self.core.handle_cm(NOW, nexus, CmEvent::plain(kind));
    }

    fn bytes(&self, span: Span) -> &[u8] {
        span.of(self.slots.slot(SlotId(span.slot)))
    }
}

struct World {
    sides: [Side; 2],
    listener: ListenerId,
    events: [VecDeque<Event>; 2],
    /// Setup is over: what happens now is counted.
    counted: bool,
    /// That of each message.
    deadline: Option<Instant>,
}

fn complete(counted: bool, side: &mut Side, done: Completion) {
    if counted {
        core_side::completion(&mut side.core, NOW, done, &mut side.slots);
    } else {
        side.core.handle_completion(NOW, done, &mut side.slots);
    }
}

impl World {
    fn control(&mut self, i: usize, control: Control) {
        let j = 1 - i;
        match control {
            Control::ResolveAddress { nexus, .. } => self.sides[i].cm(nexus, CmKind::AddrResolved),
            Control::ResolveRoute { nexus, .. } => self.sides[i].cm(nexus, CmKind::RouteResolved),
            Control::CreateQueuePair { nexus } => {
                self.sides[i].core.handle_queue_pair(NOW, nexus, Ok(()));
            }
            Control::Connect { nexus, .. } => {
                let request = ConnectRequest {
                    listener: self.listener,
                    peer: SocketAddr::from(([10, 0, 0, 1], 1)),
                    local: None,
                    framing: xio_proto::wire::Framing::Rdma,
                    private: &[],
                };
                let side = &mut self.sides[j];
                let peer = side
                    .core
                    .handle_connect_request(NOW, side.transport, &request)
                    .expect("room for the peer");
                side.peers[peer.index()] = Some(nexus);
                self.sides[i].peers[nexus.index()] = Some(peer);
            }
            Control::Accept { nexus, .. } => {
                let peer = self.sides[i].peers[nexus.index()].expect("asked");
                self.sides[i].cm(nexus, CmKind::Established);
                self.sides[j].cm(peer, CmKind::Established);
            }
            _ => {}
        }
    }

    fn work(&mut self, i: usize, work: Work) {
        let j = 1 - i;
        match work {
            Work::Recv { nexus, wr, slot } => {
                self.sides[i].receives[nexus.index()].push_back((wr, slot));
            }
            Work::Send {
                nexus,
                wr,
                head,
                signaled,
                ..
            } => {
                let peer = self.sides[i].peers[nexus.index()].expect("connected");
                let (wr_recv, slot) = self.sides[j].receives[peer.index()]
                    .pop_front()
                    .expect("receiver ready");
                let [a, b] = &mut self.sides;
                let (from, to) = if i == 0 { (a, b) } else { (b, a) };
                let bytes = from.bytes(head);
                to.slots.slot_mut(slot)[..bytes.len()].copy_from_slice(bytes);
                let len = bytes.len() as u32;
                if signaled {
                    let done = Completion {
                        wr,
                        status: WorkStatus::Success,
                        len: 0,
                    };
                    complete(self.counted, from, done);
                }
                let done = Completion {
                    wr: wr_recv,
                    status: WorkStatus::Success,
                    len,
                };
                complete(self.counted, to, done);
            }
            Work::Read { .. } | Work::Write { .. } => unreachable!("small messages only"),
        }
    }

    fn drain_work(&mut self, i: usize) {
        loop {
            let side = &mut self.sides[i];
            let Some(work) = core_side::poll_work(&mut side.core, side.transport, &mut side.slots)
            else {
                return;
            };
            self.work(i, work);
        }
    }

    fn drain_events(&mut self, i: usize) {
        while let Some(event) = core_side::poll_event(&mut self.sides[i].core) {
            self.events[i].push_back(event);
        }
    }

    fn settle(&mut self) {
        loop {
            let mut busy = false;
            for i in 0..2 {
                while let Some(control) = {
                    let side = &mut self.sides[i];
                    side.core.poll_control(side.transport)
                } {
                    busy = true;
                    self.control(i, control);
                }
                while let Some(work) = {
                    let side = &mut self.sides[i];
                    side.core.poll_work(side.transport, &mut side.slots)
                } {
                    busy = true;
                    self.work(i, work);
                }
                while let Some(event) = self.sides[i].core.poll_event() {
                    busy = true;
                    self.events[i].push_back(event);
                }
            }
            if !busy {
                return;
            }
        }
    }

    fn open(&mut self) -> ConnectionId {
        let side = &mut self.sides[0];
        let setup = SessionOpen {
            uri: "rdma://10.0.0.2:7000/r",
            private: &[],
        };
        let options = ConnectOptions {
            own_nexus: true,
            ..ConnectOptions::new(0)
        };
        let address = SocketAddr::from(([10, 0, 0, 2], 7000));
        let transport = side.transport;
        let id = side
            .core
            .connect(NOW, transport, address, &setup, &options, &mut side.slots)
            .expect("room");
        self.settle();
        let Some(Event::SessionRequest { session, .. }) = self.events[1].pop_front() else {
            panic!("no session request")
        };
        let side = &mut self.sides[1];
        side.core
            .accept(NOW, session, 0, &[], &[], &mut side.slots)
            .expect("room");
        self.settle();
        self.events = [VecDeque::new(), VecDeque::new()];
        id
    }

    fn message(&mut self, i: usize, c: ConnectionId) -> Message<'static> {
        message(core_side::reserve(&mut self.sides[i].core, c))
    }

    /// One request and its response that are not counted.
    fn warm_up(&mut self, c: ConnectionId) {
        let core = &mut self.sides[0].core;
        let request = message(core.reserve_slot(c).expect("room"));
        core.send(c, &request, &RequestOptions::default())
            .expect("room");
        self.settle();
        let Some(Event::Request {
            task, connection, ..
        }) = self.events[1].pop_front()
        else {
            panic!("no request")
        };
        let core = &mut self.sides[1].core;
        let response = message(core.reserve_slot(connection).expect("room"));
        core.respond(task, &response).expect("room");
        self.settle();
        let Some(Event::Response { task, .. }) = self.events[0].pop_front() else {
            panic!("no response")
        };
        self.sides[0].core.release(task).expect("known");
        self.settle();
        self.events = [VecDeque::new(), VecDeque::new()];
    }

    /// One request and its response.
    fn round(&mut self, c: ConnectionId) {
        let message = self.message(0, c);
        let options = RequestOptions {
            deadline: self.deadline,
            ..RequestOptions::default()
        };
        core_side::send(&mut self.sides[0].core, c, &message, &options);
        self.drain_work(0);
        self.drain_work(1);
        self.drain_events(1);
        while let Some(event) = self.events[1].pop_front() {
            if let Event::Request {
                task, connection, ..
            } = event
            {
                let message = self.message(1, connection);
                core_side::respond(&mut self.sides[1].core, task, &message);
            }
        }
        self.drain_work(1);
        self.drain_work(0);
        self.drain_events(0);
        self.drain_events(1);
        let mut answered = false;
        while let Some(event) = self.events[0].pop_front() {
            if let Event::Response { task, .. } = event {
                core_side::release(&mut self.sides[0].core, task);
                answered = true;
            }
        }
        let info = [0, 1].map(|i| *self.sides[i].core.counters());
        assert!(
            answered,
            "no response: {:?} {info:?} {:?}",
            self.sides[0].core.info(c),
            self.sides[1].core.free_rows()
        );
    }
}

fn message(slot: SlotId) -> Message<'static> {
    Message {
        slot: Some(slot),
        header_len: 0,
        slot_data: PAYLOAD as u32,
        data: &[],
        user: 7,
        prompt: false,
    }
}

fn main() {
    let number = |i: usize| -> usize {
        std::env::args()
            .nth(i)
            .and_then(|a| a.parse().ok())
            .expect("CONNECTIONS ACTIVE ROUNDS")
    };
    let (connections, active, rounds) = (number(1), number(2), number(3));
    let mut server = Side::new(1, connections);
    let options = ListenOptions {
        user: 0,
        backlog: 16,
    };
    let address = SocketAddr::from(([10, 0, 0, 2], 7000));
    let listener = server
        .core
        .listen(server.transport, address, &options)
        .expect("room");
    let sides = [Side::new(0, connections), server];
    let events = [VecDeque::with_capacity(16), VecDeque::with_capacity(16)];
    let mut world = World {
        sides,
        listener,
        events,
        counted: false,
        deadline: std::env::args().nth(4).map(|_| Instant::from_millis(5000)),
    };
    let ids: Vec<_> = (0..connections).map(|_| world.open()).collect();
    for c in &ids[..active] {
        world.warm_up(*c);
    }
    world.counted = true;
    for round in 0..rounds {
        world.round(ids[round % active]);
    }
    println!("{rounds} requests over {active} of {connections} connections");
}
