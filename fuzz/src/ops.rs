//! Anything that can enter an endpoint, in any order: two endpoints, a wire between them that
//! does what the bytes of the input say, and users who call whatever comes to mind.
//!
//! Steps are [`Input`]s, carried out with `apply`; after each the endpoint's own invariants are
//! checked. In the end both devices are removed, everything is given back, and nothing may be
//! missing: each message that was taken has had its one outcome, and every row is free.

mod acts;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use xio_proto::storage::Counts;
use xio_proto::wire::Framing;
use xio_proto::{
    Applied, Bytes, CmEvent, CmKind, Completion, Config, ConnectOptions, ConnectRequest,
    ConnectionId, Control, Endpoint, Event, FreeRows, Input, Instant, ListenOptions, ListenerId,
    NexusId, RegionId, SessionId, SessionOpen, SessionTicket, SlotId, Slots, SocketId, TaskId,
    TransportId, TransportLimits, Work, WorkStatus, WrId,
};
use xio_tests::hostile::Choices;
use xio_tests::tables::BoxedTables;

/// Bytes of a slot.
const SLOT: usize = 4096;
const RX: u32 = 24;
const TX: u32 = 16;
const TRANSPORT: TransportId = TransportId(0);

/// Steps of one life, at most: a longer input would only be slower.
const STEPS: usize = 400;

/// All slots of one side.
struct Memory(Vec<u8>);

impl Slots for Memory {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize * SLOT..][..SLOT]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.0[slot.0 as usize * SLOT..][..SLOT]
    }
}

/// One queue pair, as far as the wire knows it.
#[derive(Default)]
struct Pair {
    peer: Option<usize>,
    connected: bool,
    receives: VecDeque<(WrId, SlotId)>,
    /// Posted and not completed; whether a completion is wanted.
    sends: VecDeque<(WrId, bool)>,
    /// Frames on their way here.
    inbox: VecDeque<Vec<u8>>,
}

/// What a side may name: ids that it was given, living or not.
#[derive(Default)]
struct Known {
    listeners: Vec<ListenerId>,
    nexuses: Vec<NexusId>,
    sessions: Vec<SessionId>,
    connections: Vec<ConnectionId>,
    tasks: Vec<TaskId>,
    slots: Vec<SlotId>,
    regions: Vec<RegionId>,
    sockets: Vec<SocketId>,
    works: Vec<WrId>,
    tickets: Vec<SessionTicket>,
}

/// What is to come of a message that was taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Due {
    /// One of the outcomes; a receipt is none.
    Outcome,
    /// One of the outcomes; a receipt is one.
    Receipt,
}

struct Side {
    core: Endpoint<BoxedTables>,
    memory: Memory,
    free: FreeRows,
    pairs: Vec<Pair>,
    /// Actions that were polled and wait to be done.
    controls: VecDeque<Control>,
    known: Known,
    due: HashMap<TaskId, Due>,
}

impl Side {
    fn new(number: u8) -> Self {
        let config = Config {
            slot_size: SLOT as u32,
            buffer_size: 1024,
            inline_data_max: 512,
            min_grant: 5,
            rq_depth: 8,
            flow_control: number > 1,
            queue_messages: 6,
            ..Config::new(number, RX, TX)
        };
        let counts = Counts {
            listeners: 2,
            nexuses: 3,
            sessions: 4,
            connections: 4,
            tasks: 6,
            rx_slots: RX as usize,
            tx_slots: TX as usize,
            work: 16,
            sockets: 2,
            extents: 2,
            regions: 2,
        };
        let limits = TransportLimits {
            sq_depth: 8,
            rq_depth: 12,
            cq_depth: 48,
            max_sge: 3,
            max_reads: 2,
            max_message: 2000,
            signal_every: 3,
            ..TransportLimits::rdma()
        };
        let mut core = Endpoint::new(config, BoxedTables::new(&counts)).expect("it can work");
        core.add_transport(limits).expect("it can work");
        Self {
            free: core.free_rows(),
            core,
            memory: Memory(vec![0; SLOT * (RX + TX) as usize]),
            pairs: (0..counts.nexuses).map(|_| Pair::default()).collect(),
            controls: VecDeque::new(),
            known: Known::default(),
            due: HashMap::new(),
        }
    }

    /// The one way into the endpoint.
    fn apply(&mut self, input: &Input<'_>) -> Applied {
        let applied = self.core.apply(input, &mut self.memory);
        self.core.check_invariants();
        self.learn(input, &applied);
        applied
    }

    fn learn(&mut self, input: &Input<'_>, applied: &Applied) {
        let known = &mut self.known;
        match *applied {
            Applied::Listener(Ok(id)) => known.listeners.push(id),
            Applied::Connection(Ok(id)) => known.connections.push(id),
            Applied::Session(Ok(id)) => known.sessions.push(id),
            Applied::Ticket(Ok(ticket)) => known.tickets.push(ticket),
            Applied::Slot(Ok(slot)) => known.slots.push(slot),
            Applied::Region(Ok(id)) => known.regions.push(id),
            Applied::Nexus(Ok(id)) => known.nexuses.push(id),
            Applied::Socket(Ok(id)) => known.sockets.push(id),
            Applied::Task(Ok(id)) => {
                known.tasks.push(id);
                let is_one_way = matches!(input, Input::SendOneWay { .. });
                let due = if is_one_way {
                    Due::Receipt
                } else {
                    Due::Outcome
                };
                assert_eq!(self.due.insert(id, due), None, "an id was given twice");
            }
            Applied::Command(Ok(())) => {
                if let Input::Respond { request, .. } = *input {
                    assert_eq!(self.due.insert(request, Due::Outcome), None, "two answers");
                }
            }
            Applied::Event(Some(event)) => self.hear(&event),
            _ => {}
        }
    }

    fn hear(&mut self, event: &Event) {
        let known = &mut self.known;
        let due = &mut self.due;
        match *event {
            Event::SessionRequest { session, .. } => known.sessions.push(session),
            Event::Established {
                connection,
                session,
                message,
                ..
            } => {
                known.connections.push(connection);
                known.sessions.push(session);
                known.tasks.extend(message);
            }
            Event::ConnectFailed { message, .. } => known.tasks.extend(message),
            Event::Reconnected {
                session, message, ..
            } => {
                known.sessions.push(session);
                known.tasks.extend(message);
            }
            Event::Request { task, .. }
            | Event::OneWay { task, .. }
            | Event::PayloadWaiting { task, .. } => known.tasks.push(task),
            Event::Delivered { task, .. } if due.get(&task) == Some(&Due::Receipt) => {
                due.remove(&task);
            }
            Event::Response { task, .. }
            | Event::Sent { task, .. }
            | Event::Failed { task, .. }
            | Event::TimedOut { task, .. }
            | Event::Cancelled { task, .. } => {
                assert!(due.remove(&task).is_some(), "no outcome is due: {event:?}");
            }
            _ => {}
        }
    }
}

/// The two and what is between them.
struct World {
    sides: [Side; 2],
    now: Instant,
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::new([10, 0, 0, side as u8 + 1].into(), 7000)
}

impl World {
    fn new() -> Self {
        Self {
            sides: [Side::new(0), Side::new(1)],
            now: Instant::from_millis(1),
        }
    }

    fn poll(&mut self, i: usize, which: usize) -> bool {
        let transport = TRANSPORT;
        let input = match which {
            0 => Input::PollControl { transport },
            1 => Input::PollWork { transport },
            _ => Input::PollEvent {},
        };
        match self.sides[i].apply(&input) {
            Applied::Control(Some(control)) => self.sides[i].controls.push_back(control),
            Applied::Work(Some(work)) => self.post(i, &work),
            applied => return !applied.is_nothing(),
        }
        true
    }

    fn post(&mut self, i: usize, work: &Work) {
        let side = &mut self.sides[i];
        let (nexus, wr, signaled) = match *work {
            Work::Recv { nexus, wr, slot } => {
                side.known.works.push(wr);
                side.pairs[nexus.index()].receives.push_back((wr, slot));
                return;
            }
            Work::Send {
                nexus,
                wr,
                head,
                tail,
                data,
                signaled,
                ..
            } => {
                let mut frame = head.of(side.memory.slot(SlotId(head.slot))).to_vec();
                frame.extend_from_slice(tail.of(side.memory.slot(SlotId(tail.slot))));
                frame.resize(frame.len() + data.len as usize, 0xda);
                let pair = &side.pairs[nexus.index()];
                if let Some(peer) = pair.peer.filter(|_| pair.connected) {
                    self.sides[1 - i].pairs[peer].inbox.push_back(frame);
                }
                (nexus, wr, signaled)
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
            } => (nexus, wr, signaled),
        };
        let side = &mut self.sides[i];
        side.known.works.push(wr);
        side.pairs[nexus.index()].sends.push_back((wr, signaled));
    }

    fn cm(&mut self, i: usize, nexus: NexusId, event: CmEvent<'_>) {
        let now = self.now;
        self.sides[i].apply(&Input::Cm { now, nexus, event });
    }

    /// Does what was polled first and is not done.
    fn control(&mut self, i: usize) -> bool {
        let Some(control) = self.sides[i].controls.pop_front() else {
            return false;
        };
        let now = self.now;
        match control {
            Control::ResolveAddress { nexus, .. } => {
                self.sides[i].known.nexuses.push(nexus);
                self.cm(i, nexus, CmEvent::plain(CmKind::AddrResolved));
            }
            Control::ResolveRoute { nexus, .. } => {
                self.cm(i, nexus, CmEvent::plain(CmKind::RouteResolved));
            }
            Control::CreateQueuePair { nexus } => {
                let peer = self.sides[i].pairs[nexus.index()].peer;
                self.sides[i].pairs[nexus.index()] = Pair {
                    peer,
                    ..Pair::default()
                };
                let made = Ok(());
                self.sides[i].apply(&Input::QueuePair { now, nexus, made });
            }
            Control::Connect { nexus, .. } => self.connect(i, nexus),
            Control::Accept { nexus, .. } => self.accept(i, nexus),
            Control::Disconnect { nexus } => self.disconnect(i, nexus),
            Control::Drain { nexus } => while self.flush(i, nexus.index()) {},
            Control::Destroy { nexus } => {
                self.disconnect(i, nexus);
                self.sides[i].pairs[nexus.index()] = Pair::default();
                self.sides[i].apply(&Input::Destroyed { now, nexus });
            }
            Control::Reject { nexus, .. } => {
                if let Some(peer) = self.peer(i, nexus) {
                    self.cm(1 - i, peer, CmEvent::plain(CmKind::Rejected));
                }
            }
            Control::Register { region, .. } => {
                let keys = Ok((1, 2));
                self.sides[i].apply(&Input::Region { now, region, keys });
            }
            Control::Revoke { region } => {
                self.sides[i].apply(&Input::RegionRevoked { now, region });
            }
            _ => {}
        }
        true
    }

    /// The other side's name for the other end.
    fn peer(&self, i: usize, nexus: NexusId) -> Option<NexusId> {
        let peer = self.sides[i].pairs[nexus.index()].peer?;
        let mut known = self.sides[1 - i].known.nexuses.iter().rev();
        known.find(|id| id.index() == peer).copied()
    }

    fn connect(&mut self, i: usize, nexus: NexusId) {
        let (now, transport) = (self.now, TRANSPORT);
        let listener = self.sides[1 - i].known.listeners.last().copied();
        let request = ConnectRequest {
            listener: listener.unwrap_or_else(|| ListenerId::new(0, 0)),
            peer: address(i),
            local: None,
            framing: Framing::Rdma,
            private: &[],
        };
        let asked = self.sides[1 - i].apply(&Input::ConnectRequest {
            now,
            transport,
            request,
        });
        if let Applied::Nexus(Ok(peer)) = asked {
            self.sides[1 - i].pairs[peer.index()].peer = Some(nexus.index());
            self.sides[i].pairs[nexus.index()].peer = Some(peer.index());
        } else {
            self.cm(i, nexus, CmEvent::plain(CmKind::Rejected));
        }
    }

    fn accept(&mut self, i: usize, nexus: NexusId) {
        let Some(peer) = self.peer(i, nexus) else {
            return;
        };
        self.sides[i].pairs[nexus.index()].connected = true;
        self.sides[1 - i].pairs[peer.index()].connected = true;
        self.cm(i, nexus, CmEvent::plain(CmKind::Established));
        self.cm(1 - i, peer, CmEvent::plain(CmKind::Established));
    }

    fn disconnect(&mut self, i: usize, nexus: NexusId) {
        if !std::mem::take(&mut self.sides[i].pairs[nexus.index()].connected) {
            return;
        }
        self.cm(i, nexus, CmEvent::plain(CmKind::Disconnected));
        if let Some(peer) = self.peer(i, nexus)
            && std::mem::take(&mut self.sides[1 - i].pairs[peer.index()].connected)
        {
            self.cm(1 - i, peer, CmEvent::plain(CmKind::Disconnected));
        }
    }

    fn complete(&mut self, i: usize, wr: WrId, status: WorkStatus, frame: &[u8]) {
        let completion = Completion {
            wr,
            status,
            len: frame.len() as u32,
        };
        let (now, frame) = (self.now, Bytes(frame));
        self.sides[i].apply(&Input::Completion {
            now,
            completion,
            frame,
        });
    }

    /// The next frame on its way reaches a receive.
    fn deliver(&mut self, i: usize, p: usize) -> bool {
        let pair = &mut self.sides[i].pairs[p];
        if pair.inbox.is_empty() || pair.receives.is_empty() {
            return false;
        }
        let frame = pair.inbox.pop_front().unwrap_or_default();
        let Some((wr, _)) = pair.receives.pop_front() else {
            return false;
        };
        self.complete(i, wr, WorkStatus::Success, &frame);
        true
    }

    /// The next completion of a send queue.
    fn sent(&mut self, i: usize, p: usize) -> bool {
        let pair = &mut self.sides[i].pairs[p];
        let Some(at) = pair.sends.iter().position(|(_, signaled)| *signaled) else {
            return false;
        };
        let (wr, _) = pair.sends[at];
        pair.sends.drain(..=at);
        self.complete(i, wr, WorkStatus::Success, &[]);
        true
    }

    /// Something posted comes back flushed.
    fn flush(&mut self, i: usize, p: usize) -> bool {
        let pair = &mut self.sides[i].pairs[p];
        let send = pair.sends.pop_front().map(|(wr, _)| wr);
        let wr = send.or_else(|| pair.receives.pop_front().map(|(wr, _)| wr));
        let Some(wr) = wr else { return false };
        self.complete(i, wr, WorkStatus::Flushed, &[]);
        true
    }

    fn time(&mut self, most: Instant) {
        self.now = self.now.max(most);
        let now = self.now;
        for side in &mut self.sides {
            side.apply(&Input::Timeout { now });
        }
    }

    /// One step, as the bytes say.
    fn step(&mut self, choices: &mut Choices<'_>) {
        let i = choices.below(2);
        let p = choices.below(3);
        match choices.below(32) {
            0..=9 => self.user(i, choices),
            10..=12 => drop(self.poll(i, p)),
            13..=15 => {
                for which in [0, 1, 2, p] {
                    while self.poll(i, which) {}
                }
                while self.control(i) {}
            }
            16..=18 => drop(self.control(i)),
            19..=23 => while self.deliver(i, p) && choices.below(2) == 0 {},
            24..=26 => drop(self.sent(i, p)),
            27 => drop(self.flush(i, p)),
            28 => self.time(
                self.now
                    .after(core::time::Duration::from_millis(1 << choices.below(16))),
            ),
            29 => {
                if let Some(at) = self.sides[i].core.poll_timeout() {
                    self.time(at);
                }
            }
            _ if choices.below(8) > 0 => self.drain(2),
            _ => self.device(i, choices),
        }
    }

    /// Does everything that both want, for so many rounds at most.
    fn drain(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let mut busy = false;
            for i in 0..2 {
                for which in 0..3 {
                    while self.poll(i, which) {
                        busy = true;
                    }
                }
                while self.control(i) {
                    busy = true;
                }
                for p in 0..self.sides[i].pairs.len() {
                    while self.deliver(i, p) || self.sent(i, p) {
                        busy = true;
                    }
                }
            }
            if !busy {
                return;
            }
        }
    }

    /// Takes both devices away and gives everything back.
    fn finish(&mut self) {
        for i in 0..2 {
            for nexus in self.sides[i].known.nexuses.clone() {
                self.cm(i, nexus, CmEvent::plain(CmKind::DeviceRemoval));
            }
            for listener in self.sides[i].known.listeners.clone() {
                self.sides[i].apply(&Input::Unlisten { listener });
            }
        }
        // Deadlines may set others, but each life ends.
        for _ in 0..64 {
            self.drain(64);
            for side in &mut self.sides {
                for task in std::mem::take(&mut side.known.tasks) {
                    side.apply(&Input::Release { task });
                }
                for slot in std::mem::take(&mut side.known.slots) {
                    side.apply(&Input::ReturnSlot { slot });
                }
                for region in std::mem::take(&mut side.known.regions) {
                    side.apply(&Input::Revoke { region });
                }
            }
            self.drain(64);
            let deadlines = self
                .sides
                .iter()
                .filter_map(|side| side.core.poll_timeout());
            let Some(at) = deadlines.min() else { break };
            self.time(at);
        }
        for side in &self.sides {
            assert_eq!(side.due, HashMap::new(), "outcomes that never came");
            assert_eq!(side.core.free_rows(), side.free, "everything is back");
        }
    }
}

impl World {
    /// Lets one side listen, and the other have a connection to it that is open.
    fn open(&mut self) {
        let (now, transport) = (self.now, TRANSPORT);
        self.sides[1].apply(&Input::Listen {
            transport,
            address: address(1),
            options: ListenOptions {
                user: 1,
                backlog: 4,
            },
        });
        self.sides[0].apply(&Input::Connect {
            now,
            transport,
            peer: address(1),
            setup: SessionOpen {
                uri: "rdma://10.0.0.2:7000/x",
                private: b"",
            },
            options: ConnectOptions::new(5),
        });
        self.drain(64);
        if let Some(&session) = self.sides[1].known.sessions.first() {
            self.sides[1].apply(&Input::Accept {
                now,
                session,
                user: 6,
                portals: &[],
                private: b"",
            });
        }
        self.drain(64);
    }
}

/// Runs one life, as the bytes say; returns messages that were taken.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let mut choices = Choices::new(bytes);
    let mut world = World::new();
    // How a connection comes to be is a part of many lives, and of few what they are about.
    if choices.below(4) > 0 {
        world.open();
    }
    for _ in 0..STEPS {
        if choices.is_empty() {
            break;
        }
        world.step(&mut choices);
    }
    world.finish();
    let received = |side: &Side| side.core.counters().messages_received;
    world.sides.iter().map(received).sum()
}
