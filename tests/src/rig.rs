//! Two endpoints and a wire between them of which a test may hold back or break every part: steps
//! of the drivers, events of the communication manager, frames, completions, flushes.
//!
//! What nobody holds back happens at once, so a test says only what is special about it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use xio_proto::storage::Counts;
use xio_proto::wire::Framing;
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConnectOptions, ConnectRequest, ConnectionId, Control,
    Event, FreeRows, Instant, ListenOptions, NexusId, Reason, SessionOpen, SlotId, Slots,
    TransportLimits, Work, WorkStatus, WrId,
};

use crate::pair::{SERVER, Side};
use crate::talk::World;

mod gate;

pub use gate::{Gate, Verdict};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Link {
    #[default]
    Fresh,
    Connected,
    Gone,
}

/// A queue pair of one side.
#[derive(Debug, Default)]
struct QueuePair {
    id: Option<NexusId>,
    peer: Option<usize>,
    link: Link,
    /// It was moved to the error state.
    broken: bool,
    receives: VecDeque<(WrId, SlotId)>,
    arrived: VecDeque<Vec<u8>>,
    /// Posted and not complete.
    out: VecDeque<(WrId, bool)>,
}

/// What hangs on a side beside its endpoint.
#[derive(Default)]
struct End {
    queue_pairs: Vec<QueuePair>,
    controls: VecDeque<Control>,
    works: VecDeque<Work>,
    /// Completions of sends that are held back.
    done: VecDeque<Completion>,
    /// Flushes that are held back.
    flushed: VecDeque<WrId>,
    /// The receives of all queue pairs, if that is how it is.
    shared: Option<VecDeque<(WrId, SlotId)>>,
    /// Queue pairs off a shared queue of which the last word is held back.
    last_words: Vec<NexusId>,
    /// The queue pair that is the youngest.
    youngest: Option<NexusId>,
}

/// Both sides: 0 connects, 1 listens.
pub struct Rig {
    /// The two sides.
    pub sides: [Side; 2],
    /// What is held back.
    pub gates: [Gate; 2],
    /// The time that both see.
    pub now: Instant,
    /// Every event that either user heard.
    pub log: [Vec<Event>; 2],
    /// Steps that were taken, in order.
    pub steps: [Vec<Control>; 2],
    /// What was posted, in order.
    pub posted: [Vec<Work>; 2],
    /// Frames that came to a side when it had no receive for them.
    pub unready: [u64; 2],
    /// Rows that were free at the start.
    pub free: [FreeRows; 2],
    /// Connections that the first side asked for.
    pub dialed: Vec<ConnectionId>,
    ends: [End; 2],
}

/// Queue pair and word of a work request.
pub fn name(work: &Work) -> (NexusId, WrId) {
    match *work {
        Work::Recv { nexus, wr, .. }
        | Work::Send { nexus, wr, .. }
        | Work::Read { nexus, wr, .. }
        | Work::Write { nexus, wr, .. } => (nexus, wr),
    }
}

/// The queue pair that a step is about.
pub fn of(control: &Control) -> Option<NexusId> {
    match *control {
        Control::ResolveAddress { nexus, .. }
        | Control::ResolveRoute { nexus, .. }
        | Control::CreateQueuePair { nexus }
        | Control::Connect { nexus, .. }
        | Control::Accept { nexus, .. }
        | Control::Reject { nexus, .. }
        | Control::Disconnect { nexus }
        | Control::Drain { nexus }
        | Control::Destroy { nexus } => Some(nexus),
        _ => None,
    }
}

/// An endpoint's settings with small tables.
pub fn small(i: u8) -> Config {
    Config::new(i, 64, 48)
}

impl Rig {
    /// Two endpoints with small tables, of which the second listens.
    pub fn new() -> Self {
        Self::with(small, |_| TransportLimits::rdma())
    }

    /// As [`new`](Self::new), with settings and devices of their own.
    pub fn with(config: impl Fn(u8) -> Config, limits: impl Fn(u8) -> TransportLimits) -> Self {
        let counts = |config: &Config| Counts {
            listeners: 2,
            nexuses: 4,
            sessions: 8,
            connections: 8,
            tasks: 48,
            rx_slots: config.rx_slots as usize,
            tx_slots: config.tx_slots as usize,
            work: 512,
            sockets: 0,
            extents: 8,
            regions: 4,
        };
        Self::sized(config, counts, limits)
    }

    /// As [`with`](Self::with), with tables of other sizes.
    pub fn sized(
        config: impl Fn(u8) -> Config,
        counts: impl Fn(&Config) -> Counts,
        limits: impl Fn(u8) -> TransportLimits,
    ) -> Self {
        let side = |i| {
            let config = config(i);
            let counts = counts(&config);
            Side::new(config, &counts, limits(i))
        };
        let sides = [side(0), side(1)];
        let free = [sides[0].endpoint.free_rows(), sides[1].endpoint.free_rows()];
        let mut rig = Self {
            sides,
            gates: [Gate::default(), Gate::default()],
            now: Instant::from_millis(1),
            log: [Vec::new(), Vec::new()],
            steps: [Vec::new(), Vec::new()],
            posted: [Vec::new(), Vec::new()],
            unready: [0; 2],
            free,
            dialed: Vec::new(),
            ends: [End::default(), End::default()],
        };
        for (i, end) in rig.ends.iter_mut().enumerate() {
            end.shared = limits(i as u8).shared_receive_queue.then(VecDeque::new);
        }
        World::listen(&mut rig, 50);
        rig
    }

    /// Starts a connection with a transport connection of its own.
    ///
    /// # Panics
    /// If there is no room.
    pub fn dial(&mut self, user: u64) -> ConnectionId {
        let mut options = ConnectOptions::new(user);
        options.own_nexus = true;
        self.dial_with(&options)
    }

    /// Starts a connection.
    ///
    /// # Panics
    /// If there is no room.
    pub fn dial_with(&mut self, options: &ConnectOptions) -> ConnectionId {
        let (now, side) = (self.now, &mut self.sides[0]);
        let open = SessionOpen {
            uri: "rdma://10.0.0.2:7000/res",
            private: b"hello",
        };
        let peer = SERVER.parse().expect("an address");
        let (transport, slots) = (side.transport, &mut side.slots);
        let endpoint = &mut side.endpoint;
        let asked = endpoint.connect(now, transport, peer, &open, options, slots);
        let connection = asked.expect("room");
        self.dialed.push(connection);
        connection
    }

    /// The transport connection that a side began last.
    ///
    /// # Panics
    /// If it has none.
    pub fn nexus(&self, i: usize) -> NexusId {
        self.ends[i].youngest.expect("a transport connection")
    }

    /// Frames that wait for a side.
    pub fn waiting(&self, i: usize) -> usize {
        let queue_pairs = self.ends[i].queue_pairs.iter();
        queue_pairs.map(|qp| qp.arrived.len()).sum()
    }

    /// Work of a side that is posted and not complete, receives included.
    pub fn out(&self, i: usize) -> usize {
        let queue_pairs = self.ends[i].queue_pairs.iter();
        let sends: usize = queue_pairs.map(|qp| qp.out.len()).sum();
        sends + self.ends[i].works.len() + self.receives(i)
    }

    /// Receives that a side has posted.
    pub fn receives(&self, i: usize) -> usize {
        let queue_pairs = self.ends[i].queue_pairs.iter();
        let own: usize = queue_pairs.map(|qp| qp.receives.len()).sum();
        own + self.ends[i].shared.as_ref().map_or(0, VecDeque::len)
    }

    /// Steps that a side has begun, and of which nothing came yet.
    pub fn begun(&self, i: usize) -> usize {
        self.ends[i].controls.len()
    }

    /// Holds nothing back any more on a side, and goes on with all that waited there.
    pub fn let_go(&mut self, i: usize) {
        self.gates[i] = Gate::default();
        for control in std::mem::take(&mut self.ends[i].controls) {
            self.carry_out(i, control);
        }
        for work in std::mem::take(&mut self.ends[i].works) {
            self.work(i, work);
        }
        self.complete_sends(i, usize::MAX);
        self.flush(i, usize::MAX);
        self.arrive(i, usize::MAX);
        self.run();
    }

    /// Forgets steps that were held back: nothing will ever come of them.
    pub fn forget_steps(&mut self, i: usize) {
        self.ends[i].controls.clear();
    }

    /// Lets so many frames that wait for a side take their receives.
    pub fn arrive(&mut self, i: usize, count: usize) {
        let held = std::mem::replace(&mut self.gates[i].frames, false);
        for qp in 0..self.ends[i].queue_pairs.len() {
            self.deliver(i, qp, count);
        }
        self.gates[i].frames = held;
    }

    /// Lets so many completions of sends come.
    pub fn complete_sends(&mut self, i: usize, count: usize) {
        for _ in 0..count.min(self.ends[i].done.len()) {
            let done = self.ends[i].done.pop_front().expect("counted");
            self.handle(i, done);
        }
    }

    /// Has the oldest work request of a side fail with a status, and all others of its queue pair
    /// flushed.
    ///
    /// # Panics
    /// If there is none.
    pub fn fail_oldest(&mut self, i: usize, status: WorkStatus) {
        let oldest = self.ends[i].done.pop_front().map(|done| done.wr);
        let of = |qp: &mut QueuePair| qp.out.pop_front().map(|(wr, _)| wr);
        let oldest = oldest.or_else(|| self.ends[i].queue_pairs.iter_mut().find_map(of));
        let wr = oldest.expect("something is out");
        self.handle(i, Completion { wr, status, len: 0 });
    }

    /// Lets so many flushes come.
    pub fn flush(&mut self, i: usize, count: usize) {
        for _ in 0..count.min(self.ends[i].flushed.len()) {
            let wr = self.ends[i].flushed.pop_front().expect("counted");
            let status = WorkStatus::Flushed;
            self.handle(i, Completion { wr, status, len: 0 });
        }
        if self.ends[i].flushed.is_empty() {
            for nexus in std::mem::take(&mut self.ends[i].last_words) {
                let endpoint = &mut self.sides[i].endpoint;
                endpoint.handle_last_receive(self.now, nexus);
            }
        }
    }

    /// Flushes that wait on a side.
    pub fn unflushed(&self, i: usize) -> usize {
        self.ends[i].flushed.len()
    }

    /// Forgets flushes and completions that were held back: they never come.
    pub fn forget_completions(&mut self, i: usize) {
        self.ends[i].flushed.clear();
        self.ends[i].last_words.clear();
        self.ends[i].done.clear();
    }

    /// Tells a side of an event of its last queue pair.
    pub fn tell(&mut self, i: usize, kind: CmKind) {
        let nexus = self.nexus(i);
        self.tell_of(i, nexus, CmEvent::plain(kind));
    }

    /// Tells a side of an event.
    pub fn tell_of(&mut self, i: usize, nexus: NexusId, event: CmEvent<'_>) {
        let endpoint = &mut self.sides[i].endpoint;
        endpoint.handle_cm(self.now, nexus, event);
        endpoint.check_invariants();
    }

    /// A completion, whatever it is of.
    pub fn handle(&mut self, i: usize, completion: Completion) {
        let side = &mut self.sides[i];
        let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
        endpoint.handle_completion(self.now, completion, slots);
        endpoint.check_invariants();
    }

    /// A completion of a shared receive queue that came on a queue pair.
    pub fn handle_shared(&mut self, i: usize, nexus: NexusId, completion: Completion) {
        let side = &mut self.sides[i];
        let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
        endpoint.handle_shared_completion(self.now, nexus, completion, slots);
        endpoint.check_invariants();
    }

    /// Takes the oldest receive off a side's shared queue.
    ///
    /// # Panics
    /// If there is none.
    pub fn take_shared(&mut self, i: usize) -> WrId {
        let shared = self.ends[i].shared.as_mut().expect("a shared queue");
        shared.pop_front().expect("a receive").0
    }

    /// Has a frame come on a side's last queue pair as if its peer had sent it. False when no
    /// receive is there for it.
    pub fn inject(&mut self, i: usize, frame: &[u8]) -> bool {
        let qp = self.nexus(i).index();
        let taken = !self.receives_of(i, qp).is_empty();
        if taken {
            let queue_pair = &mut self.ends[i].queue_pairs[qp];
            let waiting = std::mem::take(&mut queue_pair.arrived);
            queue_pair.arrived.push_back(frame.to_vec());
            self.arrive(i, 1);
            self.ends[i].queue_pairs[qp].arrived.extend(waiting);
        }
        taken
    }

    /// Takes the wire away under a queue pair, in silence.
    pub fn sever(&mut self, i: usize, nexus: NexusId) {
        let peer = self.queue_pair(i, nexus).peer.take();
        if let Some(peer) = peer {
            self.ends[1 - i].queue_pairs[peer].peer = None;
        }
    }

    /// Takes the oldest frame that waits for a side off the wire.
    pub fn intercept(&mut self, i: usize) -> Option<Vec<u8>> {
        let mut queue_pairs = self.ends[i].queue_pairs.iter_mut();
        queue_pairs.find_map(|qp| qp.arrived.pop_front())
    }

    fn plain(&mut self, i: usize, nexus: NexusId, kind: CmKind) {
        if (self.gates[i].event)(kind) {
            self.tell_of(i, nexus, CmEvent::plain(kind));
        }
    }

    fn receives_of(&mut self, i: usize, qp: usize) -> &mut VecDeque<(WrId, SlotId)> {
        let end = &mut self.ends[i];
        match &mut end.shared {
            Some(shared) => shared,
            None => &mut end.queue_pairs[qp].receives,
        }
    }

    fn queue_pair(&mut self, i: usize, nexus: NexusId) -> &mut QueuePair {
        let queue_pairs = &mut self.ends[i].queue_pairs;
        if queue_pairs.len() <= nexus.index() {
            queue_pairs.resize_with(nexus.index() + 1, QueuePair::default);
        }
        &mut queue_pairs[nexus.index()]
    }

    fn control(&mut self, i: usize, control: Control) {
        self.steps[i].push(control);
        if let Control::ResolveAddress { nexus, .. } = control {
            self.ends[i].youngest = Some(nexus);
        }
        match (self.gates[i].control)(&control) {
            Verdict::Go => self.carry_out(i, control),
            Verdict::Hold => self.ends[i].controls.push_back(control),
            Verdict::Fail(code) => self.refuse(i, control, code),
        }
    }

    fn refuse(&mut self, i: usize, control: Control, code: i32) {
        let (now, endpoint) = (self.now, &mut self.sides[i].endpoint);
        let failed = Reason::DriverFailed(code);
        match control {
            Control::CreateQueuePair { nexus } => {
                endpoint.handle_queue_pair(now, nexus, Err(code));
            }
            Control::Register { region, .. } => endpoint.handle_region(now, region, Err(code)),
            Control::ResolveAddress { nexus, .. } => {
                let event = CmEvent::failed(CmKind::AddrError, code);
                endpoint.handle_cm(now, nexus, event);
            }
            Control::ResolveRoute { nexus, .. } => {
                let event = CmEvent::failed(CmKind::RouteError, code);
                endpoint.handle_cm(now, nexus, event);
            }
            Control::Connect { nexus, .. }
            | Control::Accept { nexus, .. }
            | Control::Disconnect { nexus }
            | Control::Drain { nexus } => endpoint.handle_driver_failed(now, nexus, failed),
            // Nobody hears of a refusal that failed; a destruction cannot fail.
            Control::Reject { .. } => {}
            other => self.carry_out(i, other),
        }
    }

    fn carry_out(&mut self, i: usize, control: Control) {
        let now = self.now;
        match control {
            Control::ResolveAddress { nexus, .. } => self.plain(i, nexus, CmKind::AddrResolved),
            Control::ResolveRoute { nexus, .. } => self.plain(i, nexus, CmKind::RouteResolved),
            Control::CreateQueuePair { nexus } => {
                let peer = self.queue_pair(i, nexus).peer;
                *self.queue_pair(i, nexus) = QueuePair {
                    id: Some(nexus),
                    peer,
                    ..QueuePair::default()
                };
                let endpoint = &mut self.sides[i].endpoint;
                endpoint.handle_queue_pair(now, nexus, Ok(()));
            }
            Control::Connect { nexus, params: p } => self.connect(i, nexus, p.private.as_slice()),
            Control::Accept { nexus, params: p } => self.accept(i, nexus, p.private.as_slice()),
            Control::Disconnect { nexus } => {
                let was = self.disconnect(i, nexus);
                self.end_of_disconnect(i, nexus, was);
            }
            Control::Drain { nexus } => self.drain(i, nexus),
            Control::Destroy { nexus } => self.destroy(i, nexus),
            Control::Reject { nexus, .. } => {
                let peer = self.queue_pair(i, nexus).peer;
                if let Some(id) = peer.and_then(|qp| self.ends[1 - i].queue_pairs[qp].id) {
                    self.plain(1 - i, id, CmKind::Rejected);
                }
            }
            Control::Register { region, .. } => {
                // Those of `Side::segment`.
                let keys = Ok((1, 2));
                self.sides[i].endpoint.handle_region(now, region, keys);
            }
            Control::Revoke { region } => {
                let endpoint = &mut self.sides[i].endpoint;
                endpoint.handle_region_revoked(now, region);
            }
            _ => {}
        }
    }

    fn connect(&mut self, i: usize, nexus: NexusId, private: &[u8]) {
        let j = 1 - i;
        let listener = self.sides[j].listener();
        let peer: SocketAddr = "10.0.0.1:1".parse().expect("an address");
        let asked = listener.map(|listener| {
            let request = ConnectRequest {
                listener,
                peer,
                local: None,
                framing: Framing::Rdma,
                private,
            };
            let (transport, endpoint) = (self.sides[j].transport, &mut self.sides[j].endpoint);
            endpoint.handle_connect_request(self.now, transport, &request)
        });
        let Some(Ok(id)) = asked else {
            self.plain(i, nexus, CmKind::Rejected);
            return;
        };
        *self.queue_pair(j, id) = QueuePair {
            id: Some(id),
            peer: Some(nexus.index()),
            ..QueuePair::default()
        };
        self.queue_pair(i, nexus).peer = Some(id.index());
        self.ends[j].youngest = Some(id);
    }

    fn accept(&mut self, i: usize, nexus: NexusId, private: &[u8]) {
        let Some(qp) = self.queue_pair(i, nexus).peer else {
            return;
        };
        let peer = &mut self.ends[1 - i].queue_pairs[qp];
        let (Some(id), Link::Fresh) = (peer.id, peer.link) else {
            // It gave up meanwhile.
            self.plain(i, nexus, CmKind::Rejected);
            return;
        };
        peer.link = Link::Connected;
        self.queue_pair(i, nexus).link = Link::Connected;
        self.plain(i, nexus, CmKind::Established);
        if (self.gates[1 - i].event)(CmKind::Established) {
            let event = CmEvent {
                private,
                ..CmEvent::plain(CmKind::Established)
            };
            self.tell_of(1 - i, id, event);
        }
    }

    /// Takes the wire away; false when there is none.
    fn disconnect(&mut self, i: usize, nexus: NexusId) -> bool {
        let qp = self.queue_pair(i, nexus);
        let (was, peer) = (qp.link, qp.peer);
        qp.link = Link::Gone;
        let Some(peer) = peer.filter(|_| was == Link::Connected) else {
            return false;
        };
        let other = &mut self.ends[1 - i].queue_pairs[peer];
        let heard = (other.link == Link::Connected)
            .then_some(other.id)
            .flatten();
        other.link = Link::Gone;
        self.plain(i, nexus, CmKind::Disconnected);
        if let Some(id) = heard {
            self.plain(1 - i, id, CmKind::Disconnected);
        }
        true
    }

    /// One that was not connected any more is told of it all the same.
    fn end_of_disconnect(&mut self, i: usize, nexus: NexusId, was: bool) {
        if !was {
            self.plain(i, nexus, CmKind::Disconnected);
        }
    }

    fn drain(&mut self, i: usize, nexus: NexusId) {
        let qp = self.queue_pair(i, nexus);
        qp.broken = true;
        let sends: Vec<WrId> = qp.out.drain(..).map(|(wr, _)| wr).collect();
        let receives: Vec<WrId> = qp.receives.drain(..).map(|(wr, _)| wr).collect();
        let end = &mut self.ends[i];
        let works = std::mem::take(&mut end.works);
        let (held, others): (Vec<_>, Vec<_>) =
            works.into_iter().partition(|work| name(work).0 == nexus);
        end.works = others.into();
        let held = held.iter().map(|work| name(work).1);
        let all = sends.into_iter().chain(held).chain(receives);
        end.flushed.extend(all);
        if end.shared.is_some() {
            end.last_words.push(nexus);
        }
        if !self.gates[i].flushes {
            self.flush(i, usize::MAX);
        }
    }

    fn destroy(&mut self, i: usize, nexus: NexusId) {
        let qp = self.queue_pair(i, nexus);
        if qp.id == Some(nexus) {
            let (link, peer) = (qp.link, qp.peer);
            *qp = QueuePair::default();
            let other = peer.map(|peer| &mut self.ends[1 - i].queue_pairs[peer]);
            if let Some(other) = other.filter(|other| other.link == link && link != Link::Gone) {
                other.link = Link::Gone;
                let kind = match link {
                    Link::Connected => CmKind::Disconnected,
                    _ => CmKind::Rejected,
                };
                if let Some(id) = other.id {
                    self.plain(1 - i, id, kind);
                }
            }
        }
        // Of what was begun with it nothing comes any more.
        self.ends[i]
            .controls
            .retain(|begun| of(begun) != Some(nexus));
        let endpoint = &mut self.sides[i].endpoint;
        endpoint.handle_destroyed(self.now, nexus);
        endpoint.check_invariants();
    }

    /// The next work request that a side wants, for a test that posts by hand.
    pub fn take_work(&mut self, i: usize) -> Option<Work> {
        let side = &mut self.sides[i];
        side.endpoint.poll_work(side.transport, &mut side.slots)
    }

    /// Posts a work request, if the gate lets it.
    pub fn work(&mut self, i: usize, work: Work) {
        let verdict = (self.gates[i].work)(&work);
        self.posted[i].push(work);
        let behind = !self.ends[i].works.is_empty() && !matches!(work, Work::Recv { .. });
        match verdict {
            Verdict::Fail(code) => {
                let (_, wr) = name(&work);
                let endpoint = &mut self.sides[i].endpoint;
                endpoint.handle_post_failed(self.now, wr, code);
                endpoint.check_invariants();
            }
            Verdict::Go if !behind => self.post(i, work),
            Verdict::Go | Verdict::Hold => self.ends[i].works.push_back(work),
        }
    }

    fn post(&mut self, i: usize, work: Work) {
        match work {
            Work::Recv { nexus, wr, slot } => {
                self.queue_pair(i, nexus);
                self.receives_of(i, nexus.index()).push_back((wr, slot));
                self.deliver(i, nexus.index(), usize::MAX);
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
                let side = &mut self.sides[i];
                let bytes = side.frame([head, tail], data);
                side.sent.push(bytes.clone());
                side.sent_on.push(nexus);
                if let Some(peer) = self.over(i, nexus, wr, signaled) {
                    let other = &mut self.ends[1 - i].queue_pairs[peer];
                    other.arrived.push_back(bytes);
                    let arrived = other.arrived.len();
                    let is_short = arrived > self.receives_of(1 - i, peer).len();
                    self.unready[1 - i] += u64::from(is_short);
                    self.deliver(1 - i, peer, usize::MAX);
                }
            }
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                ..
            } => {
                if self.over(i, nexus, wr, true).is_some() {
                    let len = local.len as usize;
                    let bytes = self.sides[1 - i].region(remote, len).to_vec();
                    self.sides[i].scatter(local, &bytes);
                }
            }
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                signaled,
                ..
            } => {
                if self.over(i, nexus, wr, signaled).is_some() {
                    let bytes = self.sides[i].gather(local);
                    let to = self.sides[1 - i].region(remote, bytes.len());
                    to.copy_from_slice(&bytes);
                }
            }
        }
    }

    /// Takes a request over the wire: the peer's queue pair, or none when it stays on the queue.
    fn over(&mut self, i: usize, nexus: NexusId, wr: WrId, signaled: bool) -> Option<usize> {
        let qp = self.queue_pair(i, nexus);
        if qp.link != Link::Connected || qp.broken {
            qp.out.push_back((wr, signaled));
            return None;
        }
        let peer = qp.peer;
        if signaled {
            let (status, len) = (WorkStatus::Success, 0);
            self.ends[i].done.push_back(Completion { wr, status, len });
            if !self.gates[i].sends {
                self.complete_sends(i, usize::MAX);
            }
        }
        peer
    }

    fn deliver(&mut self, i: usize, qp: usize, count: usize) {
        for _ in 0..count {
            if self.gates[i].frames || self.receives_of(i, qp).is_empty() {
                return;
            }
            let queue_pair = &mut self.ends[i].queue_pairs[qp];
            let (id, Some(bytes)) = (queue_pair.id, queue_pair.arrived.pop_front()) else {
                return;
            };
            let (wr, slot) = self.receives_of(i, qp).pop_front().expect("not empty");
            self.sides[i].slots.slot_mut(slot)[..bytes.len()].copy_from_slice(&bytes);
            let (status, len) = (WorkStatus::Success, bytes.len() as u32);
            let done = Completion { wr, status, len };
            match id.filter(|_| self.ends[i].shared.is_some()) {
                Some(id) => self.handle_shared(i, id, done),
                None => self.handle(i, done),
            }
        }
    }

    /// Asks one side once for all it wants done; false when it wants nothing.
    pub fn step(&mut self, i: usize) -> bool {
        let mut busy = false;
        while let Some(control) = {
            let side = &mut self.sides[i];
            side.endpoint.poll_control(side.transport)
        } {
            busy = true;
            self.control(i, control);
        }
        while !self.gates[i].idle
            && let Some(work) = {
                let side = &mut self.sides[i];
                side.endpoint.poll_work(side.transport, &mut side.slots)
            }
        {
            busy = true;
            self.work(i, work);
        }
        self.sides[i].endpoint.check_invariants();
        while !self.sides[i].deaf
            && let Some(event) = self.sides[i].endpoint.poll_event()
        {
            busy = true;
            self.log[i].push(event);
            self.sides[i].events.push_back(event);
        }
        busy
    }

    /// Lets everything happen that needs no time and is not held back.
    pub fn run(&mut self) {
        while self.step(0) | self.step(1) {}
    }
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl World for Rig {
    fn sides(&mut self) -> &mut [Side; 2] {
        &mut self.sides
    }
    fn now(&self) -> Instant {
        self.now
    }
    fn clock(&mut self) -> &mut Instant {
        &mut self.now
    }
    fn run(&mut self) {
        Self::run(self);
    }
    fn advance(&mut self) -> bool {
        let sides = self.sides.iter();
        let due = sides.filter_map(|side| side.endpoint.poll_timeout()).min();
        let Some(at) = due else { return false };
        self.now = self.now.max(at);
        for side in &mut self.sides {
            side.endpoint.handle_timeout(self.now);
        }
        self.run();
        true
    }
    fn listen(&mut self, user: u64) {
        let side = &mut self.sides[1];
        let address: SocketAddr = SERVER.parse().expect("an address");
        let options = ListenOptions { user, backlog: 16 };
        let listener = side.endpoint.listen(side.transport, address, &options);
        side.listener = Some(listener.expect("room"));
        self.run();
    }
}
