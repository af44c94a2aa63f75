//! The endpoint: one thread's worth of protocol.
//!
//! Folder map: `commands` (what users call), `cm` (life of transport connections), `session`
//! (setup, HELLO, portals), `connection` (close and loss), `send` (messages accepted from the
//! user), `work` and `frame` (work requests, when polled), `receive` and `message` (frames from
//! peers), `credit` (receives and credits), `event` (what the user hears), `time` (deadlines).
//! `plain` does the same for plain messages over RDMA in fewer steps, with what is in `hot`; what
//! it does not take goes the way above.

mod answer;
mod cm;
mod commands;
mod connection;
mod credit;
mod crossing;
mod direct;
mod event;
mod extension;
#[cfg(feature = "check")]
mod fingerprint;
mod fit;
mod frame;
mod hot;
mod info;
#[cfg(feature = "check")]
pub(crate) mod invariants;
mod keepalive;
mod message;
mod outcome;
mod plain;
mod pool;
mod portal;
mod receive;
mod reconnect;
mod rendezvous;
mod resume;
mod send;
mod session;
mod share;
mod shared;
mod snapshot;
mod stop;
mod time;
mod withdraw;
mod work;

pub use cm::ConnectRequest;
pub(crate) use cm::bucket;
pub use commands::SessionOpen;
pub use direct::RemoteMemory;
#[cfg(feature = "check")]
pub use fingerprint::Names;
pub(crate) use hot::Hot;
pub use info::{ConnectionInfo, Counters, FreeRows, LifeCycle, PeerKind};
pub use pool::POOL_CHUNKS_MAX;
pub use rendezvous::Segments;
pub use send::{Message, RequestOptions};
pub(crate) use session::Keep;
pub use session::SessionTicket;
pub(crate) use share::{Lack, Line};
pub use snapshot::{
    ConnectionCounters, ConnectionSnapshot, NexusCounters, NexusSnapshot, Phases, Snapshot,
};

use arrayvec::ArrayVec;

use crate::config::{Config, TransportLimits};
use crate::entries::{Connection, Nexus, Session, SlotUse, Task};
use crate::error::CommandError;
use crate::ids::{ConnectionId, NONE, NexusId, SessionId, TaskId, TransportId};
use crate::inputs::recorded;
use crate::storage::{Storage, Tables};
use crate::stream::List;
use crate::table::{Pool, Queue};
use crate::time::Instant;
use crate::timer::{self, Timer};
use crate::trace::{NoTrace, Trace};

/// Transports that one endpoint can serve.
pub const TRANSPORTS_MAX: usize = 4;

/// Paths that are taken rarely; the simulator's seeds must take each of them.
pub const MARKS: &[&str] = &[
    "nexus shared",
    "nexus reused while idle",
    "credit nop sent",
    "data waited for credits",
    "frame waited for a slot",
    "receives shrunk for a new peer",
    "peer refused for lack of receives",
    "late answer dropped",
    "late response acknowledged",
    "answer acknowledged for an ended connection",
    "stale completion ignored",
    "stale session frame ignored",
    "receipt joined to response",
    "frame before established",
    "frame after disconnect",
    "queued message flushed by peer's fin",
    "simultaneous close",
    "drain timed out",
    "clock went backwards",
    "stray socket closed",
    "socket refused",
    "stream waited for a slot",
    "headers at their limit",
    "control frame waited for data",
    "payload discarded",
    "payload expired under way",
    "attempt waited for others",
    "attempt refused for now",
    "incompatible peer not tried",
    "no row for an attempt",
    "stop aborted what was left",
    "extensions agreed",
    "earlier life ended",
    "earlier life ended by the next",
    "earlier life not known to the peer",
    "earlier life resumed",
    "peer lives again",
    "request of an earlier life sent again",
    "cancelled before it was fetched",
    "cancelled before it was delivered",
    "cancelled in the user's hands",
    "expired before it was delivered",
    "two crossing connects became one",
    "lost race waits for the winner",
];

#[cfg_attr(feature = "check", derive(Clone, Debug))]
pub(crate) struct TransportState {
    /// A driver was added for it.
    pub(crate) known: bool,
    pub(crate) limits: TransportLimits,
    /// A send is signalled at least every so many.
    pub(crate) signal_every: u16,
    /// Work requests of all queues that can still produce a completion.
    pub(crate) cq_used: u32,
    /// Receives are posted while fewer are used: what is above is for sends, which come back by
    /// themselves. A receive comes back only when the peer sends, and it may wait for us.
    pub(crate) cq_receives: u32,
    /// Nexuses with work, and with control outputs.
    pub(crate) ready: Queue,
    pub(crate) control: Queue,
    /// Sockets to read again, and those to close.
    pub(crate) streams: List,
    pub(crate) closing: List,
}

impl TransportState {
    const UNKNOWN: Self = Self {
        known: false,
        limits: TransportLimits::tcp(),
        signal_every: 1,
        cq_used: 0,
        cq_receives: 0,
        ready: Queue::EMPTY,
        control: Queue::EMPTY,
        streams: List::EMPTY,
        closing: List::EMPTY,
    };
}

/// Everything of an endpoint that is not a table.
#[cfg_attr(feature = "check", derive(Clone, Debug))]
pub(crate) struct Globals {
    pub(crate) config: Config,
    pub(crate) now: Instant,
    pub(crate) transports: [TransportState; TRANSPORTS_MAX],
    pub(crate) listeners: Pool,
    pub(crate) nexuses: Pool,
    pub(crate) sessions: Pool,
    pub(crate) connections: Pool,
    pub(crate) tasks: Pool,
    pub(crate) rx_slots: Pool,
    pub(crate) tx_slots: Pool,
    pub(crate) work: Pool,
    pub(crate) sockets: Pool,
    pub(crate) extents: Pool,
    pub(crate) regions: Pool,
    pub(crate) regions_due: bool,
    pub(crate) region_events: bool,
    pub(crate) timers: u32,
    /// A listener has a control output due.
    pub(crate) listeners_due: bool,
    pub(crate) listen_failed: bool,
    /// Send slots that only frames of the protocol may take.
    pub(crate) tx_reserve: u32,
    /// These, and those on top that only answers may take.
    pub(crate) tx_kept: u32,
    /// A session, a region or a listener may have an event.
    pub(crate) rare_events: bool,
    /// Connections and sessions with events.
    pub(crate) connection_events: Queue,
    pub(crate) session_events: Queue,
    /// Free rows of sessions that remember a life; the oldest first.
    pub(crate) past_sessions: Queue,
    /// Outgoing bytes without an outcome, of all connections.
    pub(crate) queued_bytes: u64,
    /// What each transport connection may have of the send slots.
    pub(crate) shares: share::Shares,
    /// Send slots that transport connections have of what they are sure of.
    pub(crate) sure_used: u32,
    /// Connections whose user waits for a task, a slot, or others' bytes to be gone.
    pub(crate) blocked: Line,
    /// Connections that wait with their transport connection, and those of these that others' slots
    /// can help.
    pub(crate) own_lines: u32,
    pub(crate) sharers: Queue,
    /// Nexuses that wait for a send slot or a work entry.
    pub(crate) slot_line: Queue,
    /// Somebody may wait for a slot or a task.
    pub(crate) waits: bool,
    /// Some connection's policy has, or had, a deadline for its messages.
    pub(crate) deadlines: bool,
    /// Sockets that wait for a receive slot: whose nexus holds none, some, all it may.
    pub(crate) first_slot: List,
    pub(crate) more_slots: List,
    pub(crate) full_slots: List,
    /// Sockets that are not part of a transport connection yet.
    pub(crate) half_open: u32,
    /// Nexuses that take receives from the budget.
    pub(crate) receiving: u32,
    /// Receives on shared queues that are no nexus's.
    pub(crate) spares: shared::Spares,
    /// Receive slots that those which may still come are sure of.
    pub(crate) rx_kept: u32,
    /// Memory lent for payloads.
    pub(crate) chunks: pool::Chunks,
    /// When the next attempt to make a connection anew may begin.
    pub(crate) attempt_at: Instant,
    /// Peers that connections made anew do not try.
    pub(crate) incompatible: ArrayVec<reconnect::Incompatible, { reconnect::INCOMPATIBLE_MAX }>,
    /// How far the endpoint's own end has come.
    pub(crate) stop: stop::Stop,
    pub(crate) counters: Counters,
    /// Where messages are; `idle` is not kept here.
    pub(crate) life: LifeCycle,
    /// Numbers given to transport connections for the agreement on extensions.
    pub(crate) nonces: u64,
    /// The observer has been told the input that is being carried out.
    pub(crate) recording: bool,
}

impl Globals {
    /// A transport's state. Only the lower bits of `index` count, so no bound needs a check.
    #[inline(always)]
    pub(crate) fn transport(&mut self, index: u8) -> &mut TransportState {
        const _: () = assert!(TRANSPORTS_MAX.is_power_of_two());
        &mut self.transports[usize::from(index) % TRANSPORTS_MAX]
    }
}

/// A protocol endpoint over `S`'s tables, observed by `T`.
///
/// Methods come in four kinds. *Constructors*: [`new`](Self::new),
/// [`add_transport`](Self::add_transport). *Commands* of the user (`listen`, `connect`, `accept`,
/// `send`, `respond`, `release`, `close`, ...), which are taken or refused at once. *Inputs* from
/// the driver (`handle_*`). *Outputs* (`poll_control`, `poll_work`, `poll_event`,
/// `poll_timeout`), made from the state when polled: after any command or input poll all of them
/// until they have nothing more; the order of polling does not matter.
#[cfg_attr(feature = "check", derive(Clone))]
pub struct Endpoint<S, T = NoTrace> {
    pub(crate) s: S,
    pub(crate) g: Globals,
    pub(crate) trace: T,
}

/// A configuration that cannot work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The setting or table.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// The smallest or largest that works.
    pub bound: u64,
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{} of {} cannot work; the bound is {}",
            self.what, self.value, self.bound
        )
    }
}

impl core::error::Error for ConfigError {}

fn at_least(what: &'static str, value: u64, bound: u64) -> Result<(), ConfigError> {
    if value < bound {
        Err(ConfigError { what, value, bound })
    } else {
        Ok(())
    }
}

fn at_most(what: &'static str, value: u64, bound: u64) -> Result<(), ConfigError> {
    if value > bound {
        Err(ConfigError { what, value, bound })
    } else {
        Ok(())
    }
}

impl<S: Storage> Endpoint<S> {
    /// An endpoint without an observer.
    ///
    /// # Errors
    /// A setting or table size that cannot work, with the bound it misses.
    pub fn new(config: Config, storage: S) -> Result<Self, ConfigError> {
        Self::with_trace(config, storage, NoTrace)
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// An endpoint whose transitions and rare paths `trace` hears of.
    ///
    /// # Errors
    /// As [`new`](Endpoint::new).
    pub fn with_trace(config: Config, mut storage: S, trace: T) -> Result<Self, ConfigError> {
        let t = storage.tables();
        check(&config, &t)?;
        let rx = config.rx_slots;
        let tx = config.tx_slots;
        let count = |len: usize| len as u32;
        let mut g = Globals {
            now: Instant::ZERO,
            transports: [const { TransportState::UNKNOWN }; TRANSPORTS_MAX],
            listeners: Pool::new(0, count(t.listeners.len())),
            nexuses: Pool::new(0, count(t.nexuses.len())),
            sessions: Pool::new(0, count(t.sessions.len())),
            connections: Pool::new(0, count(t.connections.len())),
            tasks: Pool::new(rx, count(t.tasks.len()) - rx),
            rx_slots: Pool::new(0, rx),
            tx_slots: Pool::new(rx, tx),
            work: Pool::new(0, count(t.work.len())),
            sockets: Pool::new(0, count(t.sockets.len())),
            extents: Pool::new(0, count(t.extents.len())),
            regions: Pool::new(0, count(t.regions.len())),
            regions_due: false,
            region_events: false,
            timers: 0,
            listeners_due: false,
            listen_failed: false,
            tx_reserve: kept_for_frames(tx),
            tx_kept: kept_for_frames(tx) + kept_for_answers(tx),
            connection_events: Queue::EMPTY,
            session_events: Queue::EMPTY,
            past_sessions: Queue::EMPTY,
            rare_events: false,
            queued_bytes: 0,
            shares: share::Shares::new(shared_slots(tx), count(t.nexuses.len())),
            sure_used: 0,
            blocked: Line::EMPTY,
            own_lines: 0,
            sharers: Queue::EMPTY,
            slot_line: Queue::EMPTY,
            waits: false,
            deadlines: config.policy.deadline.is_some(),
            first_slot: List::EMPTY,
            more_slots: List::EMPTY,
            full_slots: List::EMPTY,
            half_open: 0,
            receiving: 0,
            spares: [shared::Spare::NONE; TRANSPORTS_MAX],
            rx_kept: 0,
            chunks: pool::Chunks::NONE,
            stop: stop::Stop::No,
            attempt_at: Instant::ZERO,
            incompatible: ArrayVec::new(),
            counters: Counters::default(),
            life: LifeCycle::default(),
            nonces: 0,
            recording: false,
            config,
        };
        g.set_receiving(0, t.nexuses.len());
        Ok(Self {
            s: storage,
            g,
            trace,
        })
    }

    /// Says that a driver serves this endpoint, and what it can do.
    ///
    /// # Errors
    /// More transports than [`TRANSPORTS_MAX`], or limits too small to work with.
    pub fn add_transport(&mut self, limits: TransportLimits) -> Result<TransportId, ConfigError> {
        recorded!(self, AddTransport { limits } => self.add_transport(limits));
        at_least("sq_depth", limits.sq_depth.into(), 4)?;
        at_least("cq_depth", limits.cq_depth.into(), 8)?;
        at_least("max_sge", limits.max_sge.into(), 1)?;
        at_least("signal_every", limits.signal_every.into(), 1)?;
        if limits.dialect == crate::wire::Dialect::Rdma {
            at_least(
                "rq_depth",
                limits.rq_depth.into(),
                u64::from(self.g.config.min_grant) + 2,
            )?;
        }
        if limits.dialect == crate::wire::Dialect::Tcp {
            at_least("sockets table", self.s.tables().sockets.len() as u64, 2)?;
        }
        let free = self.g.transports.iter().position(|state| !state.known);
        let Some(index) = free else {
            let bound = TRANSPORTS_MAX as u64;
            return Err(ConfigError {
                what: "transports",
                value: bound + 1,
                bound,
            });
        };
        self.g.transports[index] = TransportState {
            known: true,
            cq_receives: limits.cq_depth - credit::SENDS,
            limits,
            signal_every: limits.signal_every.min(limits.sq_depth / 4).max(1),
            ..TransportState::UNKNOWN
        };
        Ok(TransportId(index as u8))
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.g.config
    }

    /// The observer.
    pub fn trace(&self) -> &T {
        &self.trace
    }

    /// The observer, to change.
    pub fn trace_mut(&mut self) -> &mut T {
        &mut self.trace
    }

    #[inline(always)]
    pub(crate) fn nexus(&mut self, index: u32) -> &mut Nexus {
        &mut self.s.tables().nexuses[index as usize]
    }
    #[inline(always)]
    pub(crate) fn session(&mut self, index: u32) -> &mut Session {
        &mut self.s.tables().sessions[index as usize]
    }
    #[inline(always)]
    pub(crate) fn connection(&mut self, index: u32) -> &mut Connection {
        &mut self.s.tables().connections[index as usize]
    }
    #[inline(always)]
    pub(crate) fn task(&mut self, index: u32) -> &mut Task {
        &mut self.s.tables().tasks[index as usize]
    }
    #[inline(always)]
    pub(crate) fn transport(&mut self, index: u8) -> &mut TransportState {
        self.g.transport(index)
    }

    pub(crate) fn nexus_id(&mut self, index: u32) -> NexusId {
        NexusId::new(index, self.nexus(index).generation)
    }
    pub(crate) fn session_id(&mut self, index: u32) -> SessionId {
        SessionId::new(index, self.session(index).generation)
    }
    pub(crate) fn connection_id(&mut self, index: u32) -> ConnectionId {
        ConnectionId::new(index, self.connection(index).generation)
    }
    pub(crate) fn task_id(&mut self, index: u32) -> TaskId {
        TaskId::new(index, self.task(index).generation)
    }

    /// The row of a connection whose life is not over.
    #[inline]
    pub(crate) fn find_connection(&mut self, id: ConnectionId) -> Result<u32, CommandError> {
        match self.s.tables().connections.get(id.index()) {
            Some(c) if c.generation == id.generation() => Ok(id.at()),
            _ => Err(CommandError::Unknown),
        }
    }
    #[inline]
    pub(crate) fn find_task(&mut self, id: TaskId) -> Result<u32, CommandError> {
        match self.s.tables().tasks.get(id.index()) {
            Some(t) if t.generation == id.generation() => Ok(id.at()),
            _ => Err(CommandError::Unknown),
        }
    }
    pub(crate) fn find_session(&mut self, id: SessionId) -> Result<u32, CommandError> {
        match self.s.tables().sessions.get(id.index()) {
            Some(s) if s.generation == id.generation() => Ok(id.at()),
            _ => Err(CommandError::Unknown),
        }
    }
    #[inline]
    pub(crate) fn find_nexus(&mut self, id: NexusId) -> Option<u32> {
        let t = self.s.tables();
        t.nexuses
            .get(id.index())
            .filter(|n| n.generation == id.generation())
            .map(|_| id.at())
    }

    pub(crate) fn arm(&mut self, timer: Timer, at: Instant) {
        timer::arm(
            &mut self.s.tables(),
            &mut self.g.timers,
            timer,
            at.as_nanos(),
        );
    }
    pub(crate) fn arm_after(&mut self, timer: Timer, after: core::time::Duration) {
        self.arm(timer, self.g.now.after(after));
    }
    pub(crate) fn armed_at(&mut self, timer: Timer) -> Option<Instant> {
        timer::armed_at(&mut self.s.tables(), timer).map(Instant::from_nanos)
    }
    pub(crate) fn disarm(&mut self, timer: Timer) {
        timer::disarm(&mut self.s.tables(), &mut self.g.timers, timer);
    }

    /// Takes the driver's time; one that goes backwards is clamped and counted.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Instant) {
        if now < self.g.now {
            self.g.counters.clock_backwards += 1;
            self.trace.mark("clock went backwards");
        } else {
            self.g.now = now;
        }
    }

    /// Takes a send slot for a frame of the protocol, out of the reserve if need be.
    pub(crate) fn take_frame_slot(&mut self) -> Option<u32> {
        let (slot, row) = self.g.tx_slots.take_row(self.s.tables().slots)?;
        row.usage = SlotUse::Taken;
        row.nexus = NONE;
        Some(slot)
    }

    /// Gives a slot of either kind back and wakes who waits for one.
    pub(crate) fn free_slot(&mut self, slot: u32) {
        let n = self.s.tables().slots[slot as usize].nexus;
        self.hot().free_slot(slot);
        if slot < self.g.config.rx_slots {
            self.offer_slots();
        } else {
            self.slot_came_back(n);
        }
        self.wake_slot_waiters();
        self.wake_blocked();
    }
}

/// Send slots of so many that only frames of the protocol may take.
fn kept_for_frames(slots: u32) -> u32 {
    (slots / 4).clamp(2, 64)
}

/// Those on top that only answers may take.
fn kept_for_answers(slots: u32) -> u32 {
    (slots / 4).clamp(1, 64)
}

/// Those that are kept for neither.
fn shared_slots(slots: u32) -> u32 {
    slots - kept_for_frames(slots) - kept_for_answers(slots)
}

fn check(config: &Config, t: &Tables<'_>) -> Result<(), ConfigError> {
    at_most("endpoint", config.endpoint.into(), 63)?;
    at_least("buffer_size", config.buffer_size.into(), 512)?;
    at_most("buffer_size", config.buffer_size.into(), 65_535)?;
    let slot = config.headroom() as u64 + u64::from(config.buffer_size);
    at_least("slot_size", config.slot_size.into(), slot.max(4096))?;
    at_least("rx_slots", config.rx_slots.into(), 4)?;
    at_least("tx_slots", config.tx_slots.into(), 8)?;
    at_least("sge_max", config.sge_max.into(), 1)?;
    at_most("sge_max", config.sge_max.into(), 256)?;
    at_least("min_grant", config.min_grant.into(), 5)?;
    at_least(
        "queue_bytes_all",
        config.queue_bytes_all,
        config.queue_bytes,
    )?;
    at_least("half_open_max", config.half_open_max.into(), 2)?;
    at_least(
        "reconnects_per_second",
        config.reconnects_per_second.into(),
        1,
    )?;
    at_most("rq_depth", config.rq_depth.into(), 256)?;
    at_most("min_grant", config.min_grant.into(), config.rq_depth.into())?;
    at_most(
        "inline_data_max",
        config.inline_data_max.into(),
        config.buffer_size.into(),
    )?;
    let rx = u64::from(config.rx_slots);
    let slots = rx + u64::from(config.tx_slots);
    at_least("slots table", t.slots.len() as u64, slots)?;
    at_least("tasks table", t.tasks.len() as u64, rx + 1)?;
    at_most(
        "tasks table",
        t.tasks.len() as u64,
        1 << crate::tid::INDEX_BITS,
    )?;
    at_most(
        "connections table",
        t.connections.len() as u64,
        1 << crate::tid::INDEX_BITS,
    )?;
    at_most(
        "sessions table",
        t.sessions.len() as u64,
        1 << crate::tid::SESSION_INDEX_BITS,
    )?;
    at_least("nexuses table", t.nexuses.len() as u64, 1)?;
    at_least("sessions table", t.sessions.len() as u64, 1)?;
    at_least("connections table", t.connections.len() as u64, 1)?;
    at_least("work table", t.work.len() as u64, 4)?;
    let timers = t.nexuses.len()
        + 2 * t.connections.len()
        + t.sessions.len()
        + t.tasks.len()
        + t.sockets.len();
    at_least("timers table", t.timers.len() as u64, timers as u64)
}
