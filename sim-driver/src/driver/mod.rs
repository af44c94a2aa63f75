//! The driver of one endpoint in the simulated world: executes what the core wants done on the
//! fabric or the links, and feeds back what they report.
//!
//! Folder map: `rdma` (queue pairs), `tcp` (sockets), `late` (what the core is told after a while).

mod late;
mod rdma;
mod tcp;

use xio_proto::wire::Framing;
use xio_proto::{
    Config, ConfigError, Endpoint, Instant, NexusId, Reason, TransportId, TransportLimits,
};
use xio_record::{Recorder, Tape};

use crate::check::{Check, Ledger, Spacing};
use crate::env::Env;
use crate::fabric::{Fabric, NicId, NicLimits, WorkCompletion};
use crate::link::{HostId, Links};
use crate::memory::{Memory, MemoryConfig};
use crate::storage::BoxStorage;
use crate::swarm::Site;
use crate::trace::{Act, MarkTrace, Object, Record};
use late::Late;
use rdma::Rdma;
pub use tcp::Habits;
use tcp::Tcp;

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
    /// Its transport on sockets, if it has one.
    pub tcp: Option<TransportId>,
}

/// What a connection is made over.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Over {
    /// A queue pair.
    Rdma,
    /// A control and a data socket.
    TwoStreams,
    /// One socket.
    OneStream,
}

impl Over {
    /// What a connection is over.
    pub const fn of(framing: Framing) -> Self {
        match framing {
            Framing::Rdma => Self::Rdma,
            Framing::TcpDual => Self::TwoStreams,
            Framing::TcpSingle => Self::OneStream,
        }
    }
}

impl Desk<'_> {
    /// The endpoint's memory, which is also its slots.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.env.memory[self.number as usize]
    }

    /// The transport for such a connection, if the endpoint has it.
    pub fn transport(&self, over: Over) -> Option<TransportId> {
        match over {
            Over::Rdma => self.rdma,
            Over::TwoStreams | Over::OneStream => self.tcp,
        }
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

/// The driver of one endpoint.
pub struct SimDriver {
    number: u32,
    core: Core,
    rdma: Option<Rdma>,
    tcp: Option<Tcp>,
    /// What the endpoint's clock is ahead of the world's, in nanoseconds.
    skew: i64,
    batch: Vec<WorkCompletion>,
    /// What the core is still to be told, and when.
    late: Vec<(u64, Late)>,
    /// Outputs are not asked for before, in nanoseconds.
    drain_at: u64,
    /// Events are not asked for before, in nanoseconds.
    hear_at: u64,
    /// The core's own invariants are checked at every so manieth step; 0 is never.
    check_every: u32,
    steps: u32,
    spacing: Spacing,
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
        rq_depth: match limits.srq_depth {
            0 => small(limits.rq_depth),
            shared => small(shared),
        },
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
    /// Until a full listener is looked at again, in nanoseconds.
    const CROWDED: u64 = 10_000_000;
    const ORDERS: [[u8; 3]; 6] = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];

    /// An endpoint and its driver; its memory is added to the world's. What enters the endpoint
    /// is given to `recorder`, if there is one.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn new(
        env: &mut Env,
        config: Config,
        counts: &xio_proto::storage::Counts,
        arena: u32,
        regions: u32,
        recorder: Option<Recorder<Tape>>,
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
        let mut trace = MarkTrace::new();
        if let Some(recorder) = recorder {
            trace.record(recorder);
        }
        let core = Endpoint::with_trace(config, BoxStorage::new(counts), trace)?;
        Ok(Self {
            number,
            core,
            rdma: None,
            tcp: None,
            skew: 0,
            batch: Vec::new(),
            late: Vec::new(),
            drain_at: 0,
            hear_at: 0,
            check_every: 0,
            steps: 0,
            spacing: Spacing::default(),
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
            regions: Vec::new(),
        });
        Ok(transport)
    }

    /// Has a [`Watch`](crate::check::Watch) judge what the user hears, from now on, which is the
    /// beginning.
    pub fn watch(&mut self) {
        self.core.trace_mut().watch();
    }

    /// What records the endpoint, if something does.
    pub fn recorder(&mut self) -> Option<&mut Recorder<Tape>> {
        self.core.trace_mut().recorder()
    }

    /// Gives the endpoint sockets on a host.
    ///
    /// # Errors
    /// Limits that cannot work.
    pub fn add_tcp(
        &mut self,
        host: HostId,
        habits: Habits,
        stated: TransportLimits,
    ) -> Result<TransportId, ConfigError> {
        let transport = self.core.add_transport(stated)?;
        self.tcp = Some(Tcp::new(transport, host, habits));
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
    /// The host of its sockets, if it has any.
    pub fn host(&self) -> Option<HostId> {
        self.tcp.as_ref().map(|tcp| tcp.host)
    }
    /// Has the core's own invariants checked at every so manieth step (0 is never).
    pub fn check_every(&mut self, steps: u32) {
        self.check_every = steps;
    }
    /// Moves the endpoint's clock against the world's.
    pub fn jump_clock(&mut self, nanos: i64) {
        self.skew = self.skew.saturating_add(nanos);
    }
    /// The time that the endpoint sees.
    pub fn now(&self, env: &Env) -> Instant {
        Instant::from_nanos(env.now().saturating_add_signed(self.skew))
    }

    /// The endpoint learns what time it is before its user does something, as the commands of all
    /// drivers see to.
    pub(crate) fn tell_clock(&mut self, env: &Env) {
        let now = self.now(env);
        if now > self.core.now() {
            self.core.handle_clock(now);
        }
    }

    /// A desk for the user.
    pub fn desk<'a>(&self, env: &'a mut Env, ledger: &'a mut Ledger) -> Desk<'a> {
        Desk {
            now: self.now(env),
            env,
            ledger,
            number: self.number,
            rdma: self.rdma.as_ref().map(|rdma| rdma.transport),
            tcp: self.tcp.as_ref().map(|tcp| tcp.transport),
        }
    }

    /// Looks around: deadlines, notices, completions; then sleeps until there is more.
    pub fn wake<U: User>(&mut self, hands: &mut Hands<'_, U>) {
        self.settle(hands);
        let now = self.now(hands.env);
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
            self.look_at_attempts(hands);
            self.settle(hands);
        }
        while self.tell_late(hands) {}
        let mut budget = Self::BUDGET;
        if self.rdma.is_some() {
            while budget > 0 && (self.notice(hands) || self.completions(hands)) {
                budget -= 1;
            }
        }
        if self.tcp.is_some() {
            self.accept_more(hands);
            while budget > 0
                && (self.link_notice(hands) || self.written(hands) || self.read_next(hands))
            {
                budget -= 1;
            }
        }
        self.sleep(hands, budget == 0);
    }

    /// Attempts begin when their time has come, and nowhere else; a clock that jumps brings those of
    /// several times together.
    fn look_at_attempts<U>(&mut self, hands: &mut Hands<'_, U>) {
        let made = self.core.counters().reconnect_attempts;
        let step = 1_000_000_000 / u64::from(self.core.config().reconnects_per_second);
        let wrong = self.spacing.look(made, self.core.now().as_nanos(), step);
        if let Some(text) = wrong
            && hands.env.swarm.fired(Site::ClockJump) == 0
        {
            let (at, number) = (hands.env.now(), self.number);
            let text = format!("endpoint {number}: {text}");
            hands.ledger.breach(at, Check::Attempts, text);
        }
    }

    /// The user takes its turn.
    pub fn turn<U: User>(&mut self, hands: &mut Hands<'_, U>) {
        self.tell_clock(hands.env);
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
        let unread = self.tcp.as_ref().is_some_and(Tcp::is_busy);
        if self.tcp.as_ref().is_some_and(Tcp::is_crowded) {
            hands.env.wake_after(self.number, Self::CROWDED);
        }
        if busy || more || unread {
            let after = hands.env.rng.below(2_000);
            hands.env.wake_after(self.number, after);
        }
        if let Some(at) = self.late.iter().map(|&(at, _)| at).min() {
            hands.env.wake_at(self.number, at);
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
        if hands.env.fires(Site::LateDrain) {
            let after = hands.env.rng.spread(1, 20_000);
            self.drain_at = hands.env.now() + after;
        }
        if hands.env.fires(Site::SlowDrain) {
            let after = hands.env.rng.spread(1, 5_000_000);
            self.drain_at = hands.env.now() + after;
        }
        if hands.env.now() < self.drain_at {
            hands.env.wake_at(self.number, self.drain_at);
            return;
        }
        if hands.env.fires(Site::SlowUser) {
            let after = hands.env.rng.spread(1, 50_000_000);
            self.hear_at = hands.env.now() + after;
        }
        let hears = hands.env.now() >= self.hear_at;
        if !hears {
            hands.env.wake_at(self.number, self.hear_at);
        }
        self.tell_clock(hands.env);
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
                        0 => self.rdma_control(hands) || self.tcp_control(hands),
                        1 => self.rdma_work(hands) || self.tcp_work(hands) || self.streams_wanted(),
                        _ => hears && self.event(hands),
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
        self.steps += 1;
        if self.check_every != 0 && self.steps >= self.check_every {
            self.steps = 0;
            self.core.check_invariants();
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
                3 => Object::Task(index),
                _ => Object::Stream(index),
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
