//! Two endpoints and a perfect wire between them, stepped by hand: the smallest driver there is.

use std::collections::VecDeque;
use std::net::SocketAddr;

use xio_proto::storage::{
    Connection, Counts, Extent, Listener, Nexus, Region, Session, Slot, Socket, Tables, Task,
    TimerEntry, WorkEntry,
};
use xio_proto::wire::Framing;
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConnectParams, ConnectRequest, Control, Endpoint, Event,
    Instant, ListenerId, NexusId, PrivateData, Segment, SegmentSpan, SlotId, Slots, Span,
    TransportId, TransportLimits, Work, WorkStatus, WrId,
};

use crate::stream_pair::Rng;

/// Slots in one allocation.
#[derive(Debug)]
pub struct SlotPool {
    bytes: Vec<u8>,
    size: usize,
}

impl Slots for SlotPool {
    fn slot(&self, slot: SlotId) -> &[u8] {
        let at = slot.0 as usize * self.size;
        &self.bytes[at..at + self.size]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        let at = slot.0 as usize * self.size;
        &mut self.bytes[at..at + self.size]
    }
}

fn leak<T>(row: impl Fn() -> T, count: usize) -> &'static mut [T] {
    Vec::leak((0..count).map(|_| row()).collect())
}

/// Tables of the given sizes that live as long as the test process.
pub fn leak_tables(counts: &Counts) -> Tables<'static> {
    Tables {
        listeners: leak(|| Listener::VACANT, counts.listeners),
        nexuses: leak(|| Nexus::VACANT, counts.nexuses),
        sessions: leak(|| Session::VACANT, counts.sessions),
        connections: leak(|| Connection::VACANT, counts.connections),
        tasks: leak(|| Task::VACANT, counts.tasks + counts.rx_slots),
        slots: leak(|| Slot::VACANT, counts.rx_slots + counts.tx_slots),
        work: leak(|| WorkEntry::VACANT, counts.work),
        sockets: leak(|| Socket::VACANT, counts.sockets),
        extents: leak(|| Extent::VACANT, counts.extents),
        regions: leak(|| Region::VACANT, counts.regions),
        timers: leak(|| TimerEntry::VACANT, counts.timers()),
    }
}

/// One queue pair of the wire.
#[derive(Debug, Default)]
struct QueuePair {
    peer: Option<(usize, usize)>,
    id: Option<NexusId>,
    receives: VecDeque<(WrId, SlotId)>,
    /// Frames that wait for a receive.
    arrived: VecDeque<Vec<u8>>,
    connected: bool,
}

/// One side.
pub struct Side {
    /// The protocol.
    pub endpoint: Endpoint<Tables<'static>>,
    /// Its transport.
    pub transport: TransportId,
    /// Its slots.
    pub slots: SlotPool,
    /// User memory: addresses start at [`Side::BASE`].
    pub memory: Vec<u8>,
    /// Events not looked at yet.
    pub events: VecDeque<Event>,
    /// Events stay in the endpoint, for a user that takes each as it comes.
    pub deaf: bool,
    /// Bytes of every frame sent, in order.
    pub sent: Vec<Vec<u8>>,
    /// The transport connection of each.
    pub sent_on: Vec<NexusId>,
    /// So many receives from here on cannot be posted.
    pub unpostable: usize,
    queue_pairs: Vec<QueuePair>,
    /// The receive queue of all queue pairs, if that is how it is.
    shared: Option<VecDeque<(WrId, SlotId)>>,
    pub(crate) listener: Option<ListenerId>,
}

impl Side {
    /// Address of the first byte of user memory.
    pub const BASE: u64 = 0x10_0000;

    pub(crate) fn new(config: Config, counts: &Counts, limits: TransportLimits) -> Self {
        let size = config.slot_size as usize;
        let total = (config.rx_slots + config.tx_slots) as usize;
        let mut endpoint = Endpoint::new(config, leak_tables(counts)).expect("config works");
        let transport = endpoint.add_transport(limits).expect("limits work");
        Self {
            endpoint,
            transport,
            slots: SlotPool {
                bytes: vec![0; size * total],
                size,
            },
            memory: vec![0; 1 << 20],
            events: VecDeque::new(),
            deaf: false,
            sent: Vec::new(),
            sent_on: Vec::new(),
            unpostable: 0,
            queue_pairs: Vec::new(),
            shared: limits.shared_receive_queue.then(VecDeque::new),
            listener: None,
        }
    }

    /// What it listens on.
    pub fn listener(&self) -> Option<ListenerId> {
        self.listener
    }

    /// The bytes of a span.
    pub fn bytes(&self, span: Span) -> &[u8] {
        span.of(self.slots.slot(SlotId(span.slot)))
    }

    /// A segment of user memory.
    pub fn segment(&self, offset: usize, len: usize) -> Segment {
        Segment {
            addr: Self::BASE + offset as u64,
            len: len as u32,
            lkey: 1,
            rkey: 2,
        }
    }

    pub(crate) fn gather(&self, span: SegmentSpan) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !span.is_empty() {
            for s in self.endpoint.segments(span) {
                let at = (s.addr - Self::BASE) as usize;
                bytes.extend_from_slice(&self.memory[at..at + s.len as usize]);
            }
        }
        bytes
    }

    /// Puts bytes where a list of segments says.
    pub(crate) fn scatter(&mut self, local: SegmentSpan, bytes: &[u8]) {
        let segments: Vec<_> = self.endpoint.segments(local).collect();
        let mut from = 0;
        for s in segments {
            let at = (s.addr - Self::BASE) as usize;
            let len = s.len as usize;
            self.memory[at..at + len].copy_from_slice(&bytes[from..from + len]);
            from += len;
        }
    }

    /// User memory of a peer's region.
    pub(crate) fn region(&mut self, remote: u64, len: usize) -> &mut [u8] {
        let at = (remote - Self::BASE) as usize;
        &mut self.memory[at..at + len]
    }

    /// The bytes of a frame.
    pub(crate) fn frame(&self, [head, tail]: [Span; 2], data: SegmentSpan) -> Vec<u8> {
        [self.bytes(head), self.bytes(tail), &self.gather(data)].concat()
    }

    fn receives(&mut self, queue_pair: usize) -> &mut VecDeque<(WrId, SlotId)> {
        match &mut self.shared {
            Some(shared) => shared,
            None => &mut self.queue_pairs[queue_pair].receives,
        }
    }

    fn queue_pair(&mut self, nexus: NexusId) -> &mut QueuePair {
        let index = nexus.index();
        if self.queue_pairs.len() <= index {
            self.queue_pairs.resize_with(index + 1, QueuePair::default);
        }
        &mut self.queue_pairs[index]
    }
}

/// What a side says that somebody in between may change.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// Private data of a connect.
    Connect,
    /// Private data of an accept.
    Accept,
    /// A frame; on two streams its part on the control stream.
    Frame,
}

/// Changes what a side says.
pub type Meddler = Box<dyn FnMut(usize, Said, &mut Vec<u8>)>;

/// Both sides: 0 connects, 1 listens.
pub struct Pair {
    /// The two sides.
    pub sides: [Side; 2],
    /// The time that both see.
    pub now: Instant,
    /// Changes frames of a side on their way.
    pub tamper: Option<fn(usize, &mut [u8])>,
    /// Changes all that a side says on its way, private data too.
    pub meddle: Option<Meddler>,
    /// Frames of this type to a side stay on their way, and all that follow them.
    pub held: [Option<u32>; 2],
    /// Invariants are checked every so many rounds.
    pub check_every: u64,
    rounds: u64,
    /// Addresses that cannot be resolved.
    pub unreachable: Vec<SocketAddr>,
    /// READs stay under way until [`Pair::finish_reads`], and so does what a side posts after one,
    /// as a queue completes in order.
    pub slow_reads: bool,
    /// The test itself says when a region is revoked.
    pub slow_revoke: bool,
    reads: VecDeque<(usize, Work)>,
    /// Outputs are polled in an order and in batches that this decides, all of one side before
    /// any is carried out; without it in a fixed order, and each is carried out at once.
    pub schedule: Option<Schedule>,
}

/// Decides what is polled next.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Chance.
    pub rng: Rng,
    /// Events are polled between the others; otherwise when the others have given all they had,
    /// and then all of them.
    pub mixed: bool,
}

/// Polls of one kind in a row: often few.
fn batch(rng: &mut Rng) -> usize {
    let most = [1, 3, 40][rng.below(3)];
    1 + rng.below(most)
}

/// What one side wants, polled until it is dry.
#[derive(Default)]
struct Wanted {
    controls: Vec<Control>,
    works: Vec<Work>,
    events: Vec<Event>,
}

/// Where the second side listens.
pub const SERVER: &str = "10.0.0.2:7000";
const CLIENT: &str = "10.0.0.1:1";

impl Pair {
    /// Two endpoints over a perfect RDMA wire.
    pub fn rdma(config: impl Fn(u8) -> Config, counts: &Counts) -> Self {
        Self::rdma_with(config, counts, TransportLimits::rdma())
    }

    /// As [`rdma`](Self::rdma), over devices with these limits.
    pub fn rdma_with(
        config: impl Fn(u8) -> Config,
        counts: &Counts,
        limits: TransportLimits,
    ) -> Self {
        Self::with_limits(config, counts, |_| limits)
    }

    /// As [`rdma`](Self::rdma), over devices with limits of their own.
    pub fn with_limits(
        config: impl Fn(u8) -> Config,
        counts: &Counts,
        limits: impl Fn(u8) -> TransportLimits,
    ) -> Self {
        let side = |i| Side::new(config(i), counts, limits(i));
        Self {
            sides: [side(0), side(1)],
            now: Instant::from_millis(1),
            tamper: None,
            meddle: None,
            held: [None; 2],
            unreachable: Vec::new(),
            check_every: 1,
            rounds: 0,
            slow_reads: false,
            slow_revoke: false,
            reads: VecDeque::new(),
            schedule: None,
        }
    }

    /// A side is gone without a word, and lives again with these settings. The other side is told
    /// nothing, and what it sends on what it had is lost.
    pub fn restart(&mut self, i: usize, config: Config, limits: TransportLimits) {
        let counts = Self::counts(&config);
        self.sides[i] = Side::new(config, &counts, limits);
        for queue_pair in &mut self.sides[1 - i].queue_pairs {
            queue_pair.peer = None;
        }
    }

    /// The transport connection that a side made first.
    pub fn nexus(&self, i: usize) -> NexusId {
        let first = self.sides[i].queue_pairs.first();
        first.and_then(|queue_pair| queue_pair.id).expect("one")
    }

    /// Small tables that are enough for most tests.
    pub fn counts(config: &Config) -> Counts {
        Counts {
            listeners: 2,
            nexuses: 8,
            sessions: 16,
            connections: 16,
            tasks: 64,
            rx_slots: config.rx_slots as usize,
            tx_slots: config.tx_slots as usize,
            work: 512,
            sockets: 0,
            extents: 8,
            regions: 4,
        }
    }

    /// Lets the second side listen.
    pub fn listen(&mut self, user: u64) {
        self.listen_on(1, user);
    }

    /// Lets a side listen.
    pub fn listen_on(&mut self, i: usize, user: u64) {
        let side = &mut self.sides[i];
        let options = xio_proto::ListenOptions { user, backlog: 16 };
        let address: SocketAddr = SERVER.parse().expect("an address");
        side.listener = Some(
            side.endpoint
                .listen(side.transport, address, &options)
                .expect("room"),
        );
        self.run();
    }

    /// Polls one side until it is dry, as the schedule says.
    fn poll(&mut self, i: usize, schedule: &mut Schedule) -> Wanted {
        let side = &mut self.sides[i];
        let rng = &mut schedule.rng;
        let mut wanted = Wanted::default();
        let mut dry = [false; 3];
        while dry != [true; 3] {
            let kind = match dry {
                _ if schedule.mixed => rng.below(3),
                [true, true, _] => 2,
                _ => rng.below(2),
            };
            let most = match kind {
                2 if !schedule.mixed => usize::MAX,
                _ => batch(rng),
            };
            for _ in 0..most {
                let more = match kind {
                    0 => {
                        let control = side.endpoint.poll_control(side.transport);
                        wanted.controls.extend(control);
                        control.is_some()
                    }
                    1 => {
                        let work = side.endpoint.poll_work(side.transport, &mut side.slots);
                        wanted.works.extend(work);
                        work.is_some()
                    }
                    _ => {
                        let event = side.endpoint.poll_event();
                        wanted.events.extend(event);
                        event.is_some()
                    }
                };
                side.endpoint.check_invariants();
                if more {
                    // What was polled may have made more of the others due.
                    dry = [false; 3];
                } else {
                    dry[kind] = true;
                    break;
                }
            }
        }
        wanted
    }

    /// As [`run`](Self::run), by a schedule.
    fn run_scheduled(&mut self, schedule: &mut Schedule) {
        let mut busy = true;
        while std::mem::take(&mut busy) {
            for i in 0..2 {
                let wanted = self.poll(i, schedule);
                busy |= !wanted.controls.is_empty() || !wanted.works.is_empty();
                for control in wanted.controls {
                    self.control(i, control);
                }
                for work in wanted.works {
                    self.work(i, work);
                }
                self.sides[i].events.extend(wanted.events);
            }
        }
    }

    /// Carries out everything both sides want done, until neither wants anything.
    pub fn run(&mut self) {
        if let Some(mut schedule) = self.schedule.take() {
            self.run_scheduled(&mut schedule);
            self.schedule = Some(schedule);
            return;
        }
        loop {
            let mut busy = false;
            self.rounds += 1;
            for i in 0..2 {
                while let Some(control) = {
                    let side = &mut self.sides[i];
                    side.endpoint.poll_control(side.transport)
                } {
                    busy = true;
                    self.control(i, control);
                }
                while let Some(work) = {
                    let side = &mut self.sides[i];
                    side.endpoint.poll_work(side.transport, &mut side.slots)
                } {
                    busy = true;
                    self.work(i, work);
                }
                if self.rounds.is_multiple_of(self.check_every) {
                    self.sides[i].endpoint.check_invariants();
                }
                while !self.sides[i].deaf
                    && let Some(event) = self.sides[i].endpoint.poll_event()
                {
                    busy = true;
                    self.sides[i].events.push_back(event);
                }
            }
            if !busy {
                return;
            }
        }
    }

    /// Moves time forward to the next deadline, and runs. False when there is none.
    pub fn advance(&mut self) -> bool {
        let deadline = self
            .sides
            .iter()
            .filter_map(|s| s.endpoint.poll_timeout())
            .min();
        let Some(at) = deadline else { return false };
        self.now = self.now.max(at);
        for side in &mut self.sides {
            side.endpoint.handle_timeout(self.now);
        }
        self.run();
        true
    }

    fn cm(&mut self, i: usize, nexus: NexusId, kind: CmKind) {
        self.sides[i]
            .endpoint
            .handle_cm(self.now, nexus, CmEvent::plain(kind));
    }

    fn control(&mut self, i: usize, control: Control) {
        match control {
            Control::ResolveAddress { nexus, peer, .. } if self.unreachable.contains(&peer) => {
                let failed = CmEvent::failed(CmKind::AddrError, -110);
                self.sides[i].endpoint.handle_cm(self.now, nexus, failed);
            }
            Control::ResolveAddress { nexus, .. } => self.cm(i, nexus, CmKind::AddrResolved),
            Control::ResolveRoute { nexus, .. } => self.cm(i, nexus, CmKind::RouteResolved),
            Control::CreateQueuePair { nexus } => {
                let queue_pair = self.sides[i].queue_pair(nexus);
                let peer = queue_pair.peer;
                *queue_pair = QueuePair {
                    id: Some(nexus),
                    peer,
                    ..QueuePair::default()
                };
                self.sides[i]
                    .endpoint
                    .handle_queue_pair(self.now, nexus, Ok(()));
            }
            Control::Connect { nexus, params } => {
                let private = self.private(i, Said::Connect, &params);
                self.connect(i, nexus, &private);
            }
            Control::Accept { nexus, params } => {
                let private = self.private(i, Said::Accept, &params);
                let (j, peer) = self.sides[i].queue_pair(nexus).peer.expect("connected");
                self.sides[i].queue_pair(nexus).connected = true;
                self.sides[j].queue_pairs[peer].connected = true;
                let peer = self.sides[j].queue_pairs[peer].id.expect("made");
                self.cm(i, nexus, CmKind::Established);
                let event = CmEvent {
                    private: &private,
                    ..CmEvent::plain(CmKind::Established)
                };
                self.sides[j].endpoint.handle_cm(self.now, peer, event);
            }
            Control::Disconnect { nexus } => self.disconnect(i, nexus),
            Control::Drain { nexus } => self.drain(i, nexus),
            Control::Destroy { nexus } => {
                self.disconnect(i, nexus);
                *self.sides[i].queue_pair(nexus) = QueuePair::default();
                self.sides[i].endpoint.handle_destroyed(self.now, nexus);
            }
            Control::Reject { nexus, .. } => {
                let (j, peer) = self.sides[i].queue_pair(nexus).peer.expect("asked");
                let peer = self.sides[j].queue_pairs[peer].id.expect("made");
                self.cm(j, peer, CmKind::Rejected);
            }
            Control::Register { region, .. } => {
                self.sides[i]
                    .endpoint
                    .handle_region(self.now, region, Ok((1, 2)));
            }
            Control::Revoke { region } if !self.slow_revoke => {
                self.sides[i]
                    .endpoint
                    .handle_region_revoked(self.now, region);
            }
            _ => {}
        }
    }

    fn private(&mut self, i: usize, said: Said, params: &ConnectParams) -> Vec<u8> {
        let mut private = params.private.as_slice().to_vec();
        if let Some(meddle) = &mut self.meddle {
            meddle(i, said, &mut private);
        }
        private
    }

    fn connect(&mut self, i: usize, nexus: NexusId, private: &[u8]) {
        let j = 1 - i;
        let Some(listener) = self.sides[j].listener else {
            self.cm(i, nexus, CmKind::Rejected);
            return;
        };
        let request = ConnectRequest {
            listener,
            peer: CLIENT.parse().expect("an address"),
            local: None,
            framing: Framing::Rdma,
            private,
        };
        let transport = self.sides[j].transport;
        let side = &mut self.sides[j];
        match side
            .endpoint
            .handle_connect_request(self.now, transport, &request)
        {
            Ok(peer) => {
                side.queue_pair(peer).peer = Some((i, nexus.index()));
                side.queue_pair(peer).id = Some(peer);
                // The driver makes the queue pair when it is told to; the peers are known now.
                self.sides[i].queue_pair(nexus).peer = Some((j, peer.index()));
            }
            Err(reason) => {
                let private = PrivateData::refusal(reason);
                let event = CmEvent {
                    private: private.as_slice(),
                    ..CmEvent::plain(CmKind::Rejected)
                };
                self.sides[i].endpoint.handle_cm(self.now, nexus, event);
            }
        }
    }

    fn disconnect(&mut self, i: usize, nexus: NexusId) {
        let queue_pair = self.sides[i].queue_pair(nexus);
        let was = std::mem::take(&mut queue_pair.connected);
        let Some((j, peer)) = queue_pair.peer else {
            return;
        };
        if !was {
            return;
        }
        self.cm(i, nexus, CmKind::Disconnected);
        let other = &mut self.sides[j].queue_pairs[peer];
        if std::mem::take(&mut other.connected) {
            let id = other.id.expect("made");
            self.cm(j, id, CmKind::Disconnected);
        }
    }

    fn drain(&mut self, i: usize, nexus: NexusId) {
        if self.sides[i].shared.is_some() {
            let endpoint = &mut self.sides[i].endpoint;
            endpoint.handle_last_receive(self.now, nexus);
            return;
        }
        let receives = std::mem::take(&mut self.sides[i].queue_pair(nexus).receives);
        for (wr, _) in receives {
            self.complete(i, wr, WorkStatus::Flushed, 0);
        }
    }

    fn complete(&mut self, i: usize, wr: WrId, status: WorkStatus, len: u32) {
        let side = &mut self.sides[i];
        let completion = Completion { wr, status, len };
        side.endpoint
            .handle_completion(self.now, completion, &mut side.slots);
    }

    fn deliver(&mut self, j: usize, peer: usize) {
        loop {
            let side = &mut self.sides[j];
            if side.queue_pairs[peer].arrived.is_empty() || side.receives(peer).is_empty() {
                return;
            }
            let queue_pair = &mut side.queue_pairs[peer];
            let is_held = |kind: u32| queue_pair.arrived[0].get(4..8) == Some(&kind.to_be_bytes());
            if self.held[j].is_some_and(is_held) {
                return;
            }
            let bytes = queue_pair.arrived.pop_front().expect("not empty");
            let nexus = queue_pair.id.expect("made");
            let (wr, slot) = side.receives(peer).pop_front().expect("not empty");
            side.slots.slot_mut(slot)[..bytes.len()].copy_from_slice(&bytes);
            let (status, len) = (WorkStatus::Success, bytes.len() as u32);
            if side.shared.is_none() {
                self.complete(j, wr, status, len);
                continue;
            }
            let done = Completion { wr, status, len };
            let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
            endpoint.handle_shared_completion(self.now, nexus, done, slots);
        }
    }

    /// What was held goes on.
    pub fn let_go(&mut self) {
        self.held = [None; 2];
        for j in 0..2 {
            for peer in 0..self.sides[j].queue_pairs.len() {
                self.deliver(j, peer);
            }
        }
    }

    /// Has a frame come on a side's queue pair that its peer was not allowed to send.
    pub fn inject(&mut self, i: usize, nexus: NexusId, frame: &[u8]) {
        let queue_pair = self.sides[i].queue_pair(nexus);
        queue_pair.arrived.push_back(frame.to_vec());
        self.deliver(i, nexus.index());
    }

    fn work(&mut self, i: usize, work: Work) {
        let behind = self.reads.iter().any(|(s, _)| *s == i);
        let waits = match work {
            Work::Recv { .. } => false,
            Work::Read { .. } => self.slow_reads || behind,
            _ => behind,
        };
        if waits {
            self.reads.push_back((i, work));
        } else {
            self.carry_out(i, work);
        }
    }

    fn post_receive(&mut self, i: usize, nexus: NexusId, wr: WrId, slot: SlotId) {
        let side = &mut self.sides[i];
        side.queue_pair(nexus);
        if side.unpostable > 0 {
            side.unpostable -= 1;
            // ENOMEM
            return side.endpoint.handle_post_failed(self.now, wr, 12);
        }
        side.receives(nexus.index()).push_back((wr, slot));
        self.deliver(i, nexus.index());
    }

    fn carry_out(&mut self, i: usize, work: Work) {
        match work {
            Work::Recv { nexus, wr, slot } => self.post_receive(i, nexus, wr, slot),
            Work::Send {
                nexus,
                wr,
                head,
                tail,
                data,
                signaled,
                ..
            } => {
                let side = &mut self.sides[i];
                let mut bytes = side.frame([head, tail], data);
                if let Some(tamper) = self.tamper {
                    tamper(i, &mut bytes);
                }
                if let Some(meddle) = &mut self.meddle {
                    meddle(i, Said::Frame, &mut bytes);
                }
                side.sent.push(bytes.clone());
                side.sent_on.push(nexus);
                let Some((j, peer)) = side.queue_pair(nexus).peer else {
                    return;
                };
                assert!(
                    !self.sides[j].receives(peer).is_empty(),
                    "receiver not ready: side {i} sent without a receive at the peer"
                );
                self.sides[j].queue_pairs[peer].arrived.push_back(bytes);
                if signaled {
                    self.complete(i, wr, WorkStatus::Success, 0);
                }
                self.deliver(j, peer);
            }
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                ..
            } => {
                let (j, _) = self.sides[i].queue_pair(nexus).peer.expect("connected");
                let bytes = self.sides[j].region(remote, local.len as usize).to_vec();
                self.sides[i].scatter(local, &bytes);
                self.complete(i, wr, WorkStatus::Success, 0);
            }
            Work::Write {
                nexus,
                local,
                remote,
                wr,
                signaled,
                ..
            } => {
                let (j, _) = self.sides[i].queue_pair(nexus).peer.expect("connected");
                let bytes = self.sides[i].gather(local);
                self.sides[j]
                    .region(remote, bytes.len())
                    .copy_from_slice(&bytes);
                if signaled {
                    self.complete(i, wr, WorkStatus::Success, 0);
                }
            }
        }
    }

    /// Carries out the READs that are under way; how many they were.
    pub fn finish_reads(&mut self) -> usize {
        self.slow_reads = false;
        let reads = std::mem::take(&mut self.reads);
        let is_read = |held: &&(usize, Work)| matches!(held.1, Work::Read { .. });
        let count = reads.iter().filter(is_read).count();
        for (i, work) in reads {
            self.work(i, work);
        }
        self.run();
        count
    }
}
