//! The driver of one endpoint in the simulated world: executes what the core wants done on the
//! fabric or the links, and feeds back what they report.

use xio_proto::wire::Framing;
use xio_proto::{
    CmEvent, CmKind, Completion, Config, ConfigError, ConnectRequest, Control, Endpoint, Instant,
    ListenerId, NexusId, Reason, Segment, SegmentSpan, SlotId, Span, TransportId, TransportLimits,
    Work, WrId,
};

use crate::check::Ledger;
use crate::env::{Env, Forbidden};
use crate::errno;
use crate::fabric::{
    CmParams, Fabric, ListenerKey, NicId, NicLimits, Notice, NoticeKind, QpId, SendOp, SendRequest,
    WorkCompletion,
};
use crate::link::Links;
use crate::memory::{Memory, MemoryConfig};
use crate::storage::BoxStorage;
use crate::trace::{Act, MarkTrace, Object, Record};

/// The core as the simulator runs it.
pub type Core = Endpoint<BoxStorage, MarkTrace>;

/// What a user may touch while it reacts: its endpoint, its memory, and the ledger of facts.
#[derive(Debug)]
pub struct Desk<'a> {
    /// What everybody shares; memory of all endpoints too.
    pub env: &'a mut Env,
    /// Takes what the user observes.
    pub ledger: &'a mut Ledger,
    /// The endpoint's number.
    pub number: u32,
    /// The time that the endpoint sees.
    pub now: Instant,
    /// Its RDMA transport, if it has one.
    pub rdma: Option<TransportId>,
}

impl Desk<'_> {
    /// The endpoint's memory, which is also its slots.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.env.memory[self.number as usize]
    }
}

/// Whoever uses an endpoint.
pub trait User {
    /// Something happened.
    fn event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: xio_proto::Event);
    /// Time for a turn that was asked for with `Event::Actor`.
    fn turn(&mut self, core: &mut Core, desk: &mut Desk<'_>);
    /// Sides of all connections that the user had.
    fn sides(&self) -> Vec<u32>;
}

/// What the world lends a driver.
#[derive(Debug)]
pub struct Hands<'a, U> {
    /// What everybody shares.
    pub env: &'a mut Env,
    /// The fabric.
    pub fabric: &'a mut Fabric,
    /// The links.
    pub links: &'a mut Links,
    /// Takes facts.
    pub ledger: &'a mut Ledger,
    /// The endpoint's user.
    pub user: &'a mut U,
}

/// RDMA side of a driver.
#[derive(Debug)]
struct Rdma {
    transport: TransportId,
    nic: NicId,
    limits: NicLimits,
    /// Queue pairs, by index of the nexus.
    queue_pairs: Vec<Option<QpId>>,
    listeners: Vec<Option<ListenerKey>>,
}

/// The driver of one endpoint.
pub struct SimDriver {
    number: u32,
    core: Core,
    rdma: Option<Rdma>,
    /// What the endpoint's clock is ahead of the world's, in nanoseconds.
    skew: i64,
    batch: Vec<WorkCompletion>,
}

impl core::fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SimDriver({})", self.number)
    }
}

/// Limits as the core is told them.
pub fn transport_limits(limits: &NicLimits) -> TransportLimits {
    let small = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    TransportLimits {
        sq_depth: small(limits.sq_depth),
        rq_depth: small(limits.rq_depth),
        cq_depth: limits.cq_depth,
        max_sge: small(limits.max_sge),
        max_inline: small(limits.max_inline),
        max_reads: limits.max_reads,
        max_message: limits.max_message,
        shared_receive_queue: limits.srq_depth > 0,
        ..TransportLimits::rdma()
    }
}

impl SimDriver {
    /// Completions taken in one go, at most.
    const BATCH: u64 = 16;
    /// Inputs before others get a turn.
    const BUDGET: u32 = 64;
    const ORDERS: [[u8; 3]; 6] = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];

    /// An endpoint and its driver; its memory is added to the world's.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn new(
        env: &mut Env,
        config: Config,
        counts: &xio_proto::storage::Counts,
        arena: u32,
        regions: u32,
    ) -> Result<Self, ConfigError> {
        let number = env.memory.len() as u32;
        env.memory.push(Memory::new(
            number,
            MemoryConfig {
                slot_size: config.slot_size,
                slots: config.rx_slots + config.tx_slots,
                arena,
                regions,
            },
        ));
        let core = Endpoint::with_trace(config, BoxStorage::new(counts), MarkTrace::new())?;
        Ok(Self {
            number,
            core,
            rdma: None,
            skew: 0,
            batch: Vec::new(),
        })
    }

    /// Gives the endpoint a device.
    ///
    /// # Errors
    /// Limits that cannot work.
    pub fn add_rdma(
        &mut self,
        nic: NicId,
        limits: NicLimits,
        stated: TransportLimits,
    ) -> Result<TransportId, ConfigError> {
        let transport = self.core.add_transport(stated)?;
        self.rdma = Some(Rdma {
            transport,
            nic,
            limits,
            queue_pairs: Vec::new(),
            listeners: Vec::new(),
        });
        Ok(transport)
    }

    /// The endpoint's number.
    pub fn number(&self) -> u32 {
        self.number
    }
    /// The endpoint.
    pub fn core(&self) -> &Core {
        &self.core
    }
    /// The endpoint, for commands; [`settle`](Self::settle) afterwards.
    pub fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }
    /// The device, if there is one.
    pub fn nic(&self) -> Option<NicId> {
        self.rdma.as_ref().map(|rdma| rdma.nic)
    }
    /// The RDMA transport, if there is one.
    pub fn transport(&self) -> Option<TransportId> {
        self.rdma.as_ref().map(|rdma| rdma.transport)
    }
    /// Moves the endpoint's clock against the world's.
    pub fn jump_clock(&mut self, nanos: i64) {
        self.skew = self.skew.saturating_add(nanos);
    }
    /// The time that the endpoint sees.
    pub fn now(&self, env: &Env) -> Instant {
        Instant::from_nanos(env.now().saturating_add_signed(self.skew))
    }

    /// A desk for the user.
    fn desk<'a>(&self, env: &'a mut Env, ledger: &'a mut Ledger) -> Desk<'a> {
        Desk {
            now: self.now(env),
            env,
            ledger,
            number: self.number,
            rdma: self.rdma.as_ref().map(|rdma| rdma.transport),
        }
    }

    /// Looks around: deadlines, notices, completions; then sleeps until there is more.
    pub fn wake<U: User>(&mut self, hands: &mut Hands<'_, U>) {
        self.settle(hands);
        let now = self.now(hands.env);
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
            self.settle(hands);
        }
        let mut budget = Self::BUDGET;
        if self.rdma.is_some() {
            while budget > 0 && (self.notice(hands) || self.completions(hands)) {
                budget -= 1;
            }
        }
        self.sleep(hands, budget == 0);
    }

    /// The user takes its turn.
    pub fn turn<U: User>(&mut self, hands: &mut Hands<'_, U>) {
        let mut desk = self.desk(hands.env, hands.ledger);
        hands.user.turn(&mut self.core, &mut desk);
        self.settle(hands);
        self.sleep(hands, false);
    }

    /// Drain, arm, look again, sleep.
    fn sleep<U>(&mut self, hands: &mut Hands<'_, U>, busy: bool) {
        hands.env.collect_memory(self.number);
        let more = match &self.rdma {
            Some(rdma) => !hands.fabric.arm(hands.env, rdma.nic),
            None => false,
        };
        if busy || more {
            let after = hands.env.rng.below(2_000);
            hands.env.wake_after(self.number, after);
        }
        if let Some(at) = self.core.poll_timeout() {
            let skew = self.skew;
            let at = at.as_nanos().saturating_add_signed(skew.saturating_neg());
            hands.env.wake_at(self.number, at);
        }
    }

    /// Executes all outputs until there are none, in an order and in batches that differ each
    /// time: they must not matter.
    pub fn settle<U: User>(&mut self, hands: &mut Hands<'_, U>) {
        let mut dice = hands.env.rng.next();
        loop {
            let mut dry = true;
            let order = Self::ORDERS[(dice % 6) as usize];
            dice = dice.rotate_right(3);
            for kind in order {
                let batch = 1 + (dice & 15);
                dice = dice.rotate_right(5);
                for _ in 0..batch {
                    let more = match kind {
                        0 => self.control(hands),
                        1 => self.work(hands),
                        _ => self.event(hands),
                    };
                    if !more {
                        break;
                    }
                    dry = false;
                }
            }
            if dry {
                break;
            }
        }
        if hands.env.trace.is_on() {
            self.show_transitions(hands.env);
        }
    }

    #[cold]
    fn show_transitions(&mut self, env: &mut Env) {
        let at = env.now();
        let trace = self.core.trace_mut();
        trace.set_logging(true);
        for (index, step) in trace.drain_log() {
            let object = match step.machine {
                0 => Object::Nexus(index),
                1 => Object::Session(index),
                2 => Object::Connection(index),
                _ => Object::Task(index),
            };
            env.trace.show_only(Record {
                at,
                endpoint: self.number,
                object,
                act: Act::Transition,
                a: step.pack(),
                b: 0,
            });
        }
    }

    fn event<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(event) = self.core.poll_event() else {
            return false;
        };
        let mut desk = self.desk(hands.env, hands.ledger);
        hands.user.event(&mut self.core, &mut desk, event);
        true
    }

    fn fail(&mut self, env: &Env, nexus: NexusId, error: i32) {
        let now = self.now(env);
        self.core
            .handle_driver_failed(now, nexus, Reason::DriverFailed(error));
    }
}

// What the core wants done about connections.
impl SimDriver {
    fn control<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &mut self.rdma else {
            return false;
        };
        let Some(control) = self.core.poll_control(rdma.transport) else {
            return false;
        };
        let (env, fabric) = (&mut *hands.env, &mut *hands.fabric);
        match control {
            Control::Listen {
                listener,
                address,
                backlog,
            } => self.listen(env, fabric, listener, address.port(), backlog),
            Control::Unlisten { listener } => {
                let place = rdma.listeners.get_mut(listener.index());
                if let Some(key) = place.and_then(Option::take) {
                    fabric.unlisten(env, key);
                }
            }
            Control::ResolveAddress {
                nexus, peer, local, ..
            } => {
                let id = fabric.create_id(rdma.nic, nexus.to_bits());
                rdma.set(nexus, id);
                if let Err(error) = fabric.resolve_address(env, id, peer, local) {
                    self.fail(env, nexus, error);
                }
            }
            Control::CreateQueuePair { nexus } => {
                let made = match rdma.get(nexus) {
                    Some(id) => fabric.create_queue_pair(env, id),
                    None => Err(errno::EINVAL),
                };
                let now = self.now(env);
                self.core.handle_queue_pair(now, nexus, made);
            }
            Control::Destroy { nexus } => {
                if let Some(id) = rdma.take(nexus) {
                    fabric.destroy(env, id);
                }
                let now = self.now(env);
                self.core.handle_destroyed(now, nexus);
            }
            other => self.connection_control(env, fabric, other),
        }
        true
    }

    fn listen(
        &mut self,
        env: &mut Env,
        fabric: &mut Fabric,
        listener: ListenerId,
        port: u16,
        backlog: u32,
    ) {
        let now = self.now(env);
        let Some(rdma) = &mut self.rdma else {
            return;
        };
        match fabric.listen(env, rdma.nic, port, backlog, listener.to_bits()) {
            Ok(key) => {
                let index = listener.index();
                if rdma.listeners.len() <= index {
                    rdma.listeners.resize(index + 1, None);
                }
                rdma.listeners[index] = Some(key);
            }
            Err(error) => self.core.handle_listen_failed(now, listener, error),
        }
    }

    /// Calls on a connection id that exists.
    fn connection_control(&mut self, env: &mut Env, fabric: &mut Fabric, control: Control) {
        let Some(rdma) = &self.rdma else {
            return;
        };
        let params = |p: xio_proto::ConnectParams| CmParams {
            retry: p.retry,
            rnr_retry: p.rnr_retry,
            reads: p.reads,
        };
        let gone = Err(errno::EINVAL);
        let (nexus, done) = match control {
            Control::ResolveRoute { nexus, .. } => {
                let id = rdma.get(nexus);
                (nexus, id.map_or(gone, |id| fabric.resolve_route(env, id)))
            }
            Control::Connect { nexus, params: p } => {
                let id = rdma.get(nexus);
                let call = |id| fabric.connect(env, id, params(p), &[]);
                (nexus, id.map_or(gone, call))
            }
            Control::Accept { nexus, params: p } => {
                let id = rdma.get(nexus);
                let call = |id| fabric.accept(env, id, params(p), &[]);
                (nexus, id.map_or(gone, call))
            }
            Control::Reject { nexus, .. } => {
                if let Some(id) = rdma.get(nexus) {
                    // Destroying refuses too, so a failure is of no consequence.
                    let _ = fabric.reject(env, id, &[]);
                }
                (nexus, Ok(()))
            }
            Control::Disconnect { nexus } => {
                let id = rdma.get(nexus);
                (nexus, id.map_or(gone, |id| fabric.disconnect(env, id)))
            }
            Control::Drain { nexus } => {
                if let Some(id) = rdma.get(nexus) {
                    let _ = fabric.drain(env, id);
                }
                (nexus, Ok(()))
            }
            _ => {
                env.violate(self.number, Object::World, Forbidden::Unsupported, 0);
                return;
            }
        };
        if let Err(error) = done {
            self.fail(env, nexus, error);
        }
    }
}

impl Rdma {
    fn get(&self, nexus: NexusId) -> Option<QpId> {
        *self.queue_pairs.get(nexus.index())?
    }
    fn set(&mut self, nexus: NexusId, id: QpId) {
        let index = nexus.index();
        if self.queue_pairs.len() <= index {
            self.queue_pairs.resize(index + 1, None);
        }
        self.queue_pairs[index] = Some(id);
    }
    fn take(&mut self, nexus: NexusId) -> Option<QpId> {
        self.queue_pairs.get_mut(nexus.index())?.take()
    }
}

// What the core wants posted.
impl SimDriver {
    /// Segments of one work request, at most.
    const SEGMENTS: usize = 32;

    fn work<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &self.rdma else {
            return false;
        };
        let (env, fabric) = (&mut *hands.env, &mut *hands.fabric);
        let slots = &mut env.memory[self.number as usize];
        let Some(work) = self.core.poll_work(rdma.transport, slots) else {
            return false;
        };
        let (wr, posted) = match work {
            Work::Recv { nexus, wr, slot } => (wr, self.post_receive(env, fabric, nexus, wr, slot)),
            Work::Send {
                nexus,
                wr,
                head,
                tail,
                data,
                signaled,
                fence,
            } => {
                let flags = (signaled, fence);
                (
                    wr,
                    self.post_send(env, fabric, nexus, wr, [head, tail], data, flags),
                )
            }
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                rkey,
                fence,
                signaled,
            } => {
                let op = SendOp::Read { remote, rkey };
                (
                    wr,
                    self.post_rdma(env, fabric, nexus, wr, local, op, (signaled, fence)),
                )
            }
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled,
            } => {
                let op = SendOp::Write { remote, rkey };
                (
                    wr,
                    self.post_rdma(env, fabric, nexus, wr, local, op, (signaled, false)),
                )
            }
        };
        if let Err(error) = posted {
            let now = self.now(env);
            self.core.handle_post_failed(now, wr, error);
        }
        true
    }

    fn queue_pair(&self, nexus: NexusId) -> Option<QpId> {
        self.rdma.as_ref()?.get(nexus)
    }

    fn post_receive(
        &self,
        env: &mut Env,
        fabric: &mut Fabric,
        nexus: NexusId,
        wr: WrId,
        slot: SlotId,
    ) -> Result<(), i32> {
        let id = self.queue_pair(nexus).ok_or(errno::EINVAL)?;
        let memory = &env.memory[self.number as usize];
        let segment = memory.slot_segment(slot.0, 0, memory.slot_size());
        if let Some(rdma) = &self.rdma
            && rdma.limits.srq_depth > 0
        {
            return fabric.post_shared_receive(env, rdma.nic, wr.to_bits(), segment);
        }
        fabric.post_receive(env, id, wr.to_bits(), segment)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one work request")]
    fn post_send(
        &self,
        env: &mut Env,
        fabric: &mut Fabric,
        nexus: NexusId,
        wr: WrId,
        spans: [Span; 2],
        data: SegmentSpan,
        (signaled, fence): (bool, bool),
    ) -> Result<(), i32> {
        let (Some(id), Some(rdma)) = (self.queue_pair(nexus), &self.rdma) else {
            return Err(errno::EINVAL);
        };
        let memory = &env.memory[self.number as usize];
        let mut list = [Segment::default(); Self::SEGMENTS];
        let [head, tail] = spans;
        // What lies side by side needs one segment only.
        let joined = tail.slot == head.slot && head.offset + head.len == tail.offset;
        list[0] = memory.slot_segment(head.slot, head.offset, head.len);
        let mut count = 1;
        if tail.len > 0 && joined {
            list[0].len += tail.len;
        } else if tail.len > 0 {
            list[1] = memory.slot_segment(tail.slot, tail.offset, tail.len);
            count = 2;
        }
        count += self.resolve(data, &mut list[count..]);
        let segments = &list[..count];
        let len: u32 = segments.iter().map(|segment| segment.len).sum();
        let request = SendRequest {
            wr: wr.to_bits(),
            op: SendOp::Send,
            segments,
            signaled,
            fence,
            inline: len <= rdma.limits.max_inline,
        };
        fabric.post_send(env, id, &request)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one work request")]
    fn post_rdma(
        &self,
        env: &mut Env,
        fabric: &mut Fabric,
        nexus: NexusId,
        wr: WrId,
        local: SegmentSpan,
        op: SendOp,
        (signaled, fence): (bool, bool),
    ) -> Result<(), i32> {
        let id = self.queue_pair(nexus).ok_or(errno::EINVAL)?;
        let mut list = [Segment::default(); Self::SEGMENTS];
        let count = self.resolve(local, &mut list);
        let request = SendRequest {
            wr: wr.to_bits(),
            op,
            segments: &list[..count],
            signaled,
            fence,
            inline: false,
        };
        fabric.post_send(env, id, &request)
    }

    fn resolve(&self, span: SegmentSpan, list: &mut [Segment]) -> usize {
        if span.is_empty() {
            return 0;
        }
        let mut count = 0;
        for segment in self.core.segments(span) {
            assert!(count < list.len(), "more segments than any device takes");
            list[count] = segment;
            count += 1;
        }
        count
    }
}

// What the fabric reports.
impl SimDriver {
    fn notice<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &self.rdma else {
            return false;
        };
        let Some(notice) = hands.fabric.poll_notice(hands.env, rdma.nic) else {
            return false;
        };
        self.take_notice(hands.env, hands.fabric, &notice);
        self.settle(hands);
        true
    }

    fn take_notice(&mut self, env: &mut Env, fabric: &mut Fabric, notice: &Notice) {
        let now = self.now(env);
        let kind = match (notice.id, notice.kind) {
            (None, _) => {
                let listener = ListenerId::from_bits(notice.cookie);
                self.core.handle_listen_failed(now, listener, errno::ENODEV);
                return;
            }
            (Some(id), NoticeKind::Cm(CmKind::ConnectRequest)) if fabric.is_requested(id) => {
                self.connect_request(env, fabric, id, notice);
                return;
            }
            (Some(_), NoticeKind::Cm(kind)) => kind,
            (Some(_), NoticeKind::QueuePairFatal) => {
                let nexus = NexusId::from_bits(notice.cookie);
                self.fail(env, nexus, notice.status);
                return;
            }
        };
        let event = CmEvent {
            kind,
            status: notice.status,
            local: notice.local,
            private: &notice.private,
        };
        self.core
            .handle_cm(now, NexusId::from_bits(notice.cookie), event);
    }

    fn connect_request(&mut self, env: &mut Env, fabric: &mut Fabric, id: QpId, notice: &Notice) {
        let now = self.now(env);
        let (Some(rdma), Some(peer)) = (&mut self.rdma, notice.peer) else {
            return;
        };
        let request = ConnectRequest {
            listener: ListenerId::from_bits(notice.cookie),
            peer,
            local: notice.local,
            framing: Framing::Rdma,
            private: &notice.private,
        };
        match self
            .core
            .handle_connect_request(now, rdma.transport, &request)
        {
            Ok(nexus) => {
                fabric.set_cookie(id, nexus.to_bits());
                rdma.set(nexus, id);
            }
            Err(reason) => {
                let (need, have) = match reason {
                    Reason::NoResources { need, have, .. } => (need.into(), have.into()),
                    _ => (0, 0),
                };
                env.record(self.number, Object::World, Act::Refused, need, have);
                let _ = fabric.reject(env, id, &[]);
                fabric.destroy(env, id);
            }
        }
    }

    /// Takes completions: some at once, so that what the first one leads to meets the others.
    fn completions<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &self.rdma else {
            return false;
        };
        let nic = rdma.nic;
        let most = hands.env.rng.range(1, Self::BATCH) as usize;
        let mut batch = core::mem::take(&mut self.batch);
        while batch.len() < most
            && let Some(completion) = hands.fabric.poll_completion(hands.env, nic)
        {
            batch.push(completion);
        }
        let any = !batch.is_empty();
        for completion in batch.drain(..) {
            let now = self.now(hands.env);
            let slots = &mut hands.env.memory[self.number as usize];
            let completion = Completion {
                wr: WrId::from_bits(completion.wr),
                status: completion.status,
                len: completion.len,
            };
            self.core.handle_completion(now, completion, slots);
            self.settle(hands);
        }
        self.batch = batch;
        any
    }
}
