//! Where the tables live: the caller's choice, fixed at construction.

pub use crate::entries::{
    Connection, Extent, Listener, Nexus, Session, Slot, Task, TimerEntry, WorkEntry,
};
pub use crate::stream::Socket;

/// All tables of an endpoint as slices.
///
/// Their lengths are the endpoint's limits. `tasks` holds one task per receive slot, then those
/// for outgoing messages; `timers` must reach [`Counts::timers`].
#[derive(Debug)]
pub struct Tables<'a> {
    /// Listening addresses.
    pub listeners: &'a mut [Listener],
    /// Transport connections.
    pub nexuses: &'a mut [Nexus],
    /// Sessions.
    pub sessions: &'a mut [Session],
    /// Connections.
    pub connections: &'a mut [Connection],
    /// Messages: one per receive slot, then the outgoing ones.
    pub tasks: &'a mut [Task],
    /// Slots, receive slots first.
    pub slots: &'a mut [Slot],
    /// Work requests on all send queues.
    pub work: &'a mut [WorkEntry],
    /// Sockets (none are needed without a stream transport).
    pub sockets: &'a mut [Socket],
    /// Extents for segment lists longer than four.
    pub extents: &'a mut [Extent],
    /// The heap of deadlines.
    pub timers: &'a mut [TimerEntry],
}

/// Gives an endpoint its tables. The lengths never change.
pub trait Storage {
    /// All tables, to change.
    fn tables(&mut self) -> Tables<'_>;
    /// The tables of what an observer asks about.
    fn view(&self) -> View<'_>;
}

/// Tables to look at.
#[derive(Copy, Clone, Debug)]
pub struct View<'a> {
    /// Transport connections.
    pub nexuses: &'a [Nexus],
    /// Sessions.
    pub sessions: &'a [Session],
    /// Connections.
    pub connections: &'a [Connection],
    /// Messages.
    pub tasks: &'a [Task],
    /// Slots.
    pub slots: &'a [Slot],
    /// Work requests.
    pub work: &'a [WorkEntry],
    /// Sockets.
    pub sockets: &'a [Socket],
    /// Extents.
    pub extents: &'a [Extent],
    /// Deadlines.
    pub timers: &'a [TimerEntry],
}

/// How many rows each table has.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Listening addresses.
    pub listeners: usize,
    /// Transport connections.
    pub nexuses: usize,
    /// Sessions.
    pub sessions: usize,
    /// Connections.
    pub connections: usize,
    /// Outgoing messages unfinished at once.
    pub tasks: usize,
    /// Receive slots.
    pub rx_slots: usize,
    /// Send slots.
    pub tx_slots: usize,
    /// Work requests on all send queues together.
    pub work: usize,
    /// Sockets: one or two per transport connection on streams, and those that are half-open
    /// ([`Config::half_open_max`](crate::Config::half_open_max) at most).
    pub sockets: usize,
    /// Extents.
    pub extents: usize,
}

impl Counts {
    /// Deadlines that can be armed at once.
    pub const fn timers(&self) -> usize {
        self.nexuses
            + 2 * self.connections
            + self.sessions
            + self.tasks
            + self.rx_slots
            + self.sockets
    }

    /// Bytes that all tables take together, without the slots' own bytes.
    pub const fn bytes(&self) -> usize {
        self.listeners * size_of::<Listener>()
            + self.nexuses * size_of::<Nexus>()
            + self.sessions * size_of::<Session>()
            + self.connections * size_of::<Connection>()
            + (self.tasks + self.rx_slots) * size_of::<Task>()
            + (self.rx_slots + self.tx_slots) * size_of::<Slot>()
            + self.work * size_of::<WorkEntry>()
            + self.sockets * size_of::<Socket>()
            + self.extents * size_of::<Extent>()
            + self.timers() * size_of::<TimerEntry>()
    }
}

impl Storage for Tables<'_> {
    #[inline(always)]
    fn tables(&mut self) -> Tables<'_> {
        Tables {
            listeners: self.listeners,
            nexuses: self.nexuses,
            sessions: self.sessions,
            connections: self.connections,
            tasks: self.tasks,
            slots: self.slots,
            work: self.work,
            sockets: self.sockets,
            extents: self.extents,
            timers: self.timers,
        }
    }
    fn view(&self) -> View<'_> {
        View {
            nexuses: self.nexuses,
            sessions: self.sessions,
            connections: self.connections,
            tasks: self.tasks,
            slots: self.slots,
            work: self.work,
            sockets: self.sockets,
            extents: self.extents,
            timers: self.timers,
        }
    }
}

/// Tables in fixed arrays, for a `static` or a struct of known size. The parameters are the rows
/// of listeners, nexuses, sessions, connections, tasks (receive slots included), slots, work
/// requests, sockets, extents and timers.
#[derive(Debug)]
pub struct ArrayStorage<
    const LISTENERS: usize,
    const NEXUSES: usize,
    const SESSIONS: usize,
    const CONNECTIONS: usize,
    const TASKS: usize,
    const SLOTS: usize,
    const WORK: usize,
    const SOCKETS: usize,
    const EXTENTS: usize,
    const TIMERS: usize,
> {
    listeners: [Listener; LISTENERS],
    nexuses: [Nexus; NEXUSES],
    sessions: [Session; SESSIONS],
    connections: [Connection; CONNECTIONS],
    tasks: [Task; TASKS],
    slots: [Slot; SLOTS],
    work: [WorkEntry; WORK],
    sockets: [Socket; SOCKETS],
    extents: [Extent; EXTENTS],
    timers: [TimerEntry; TIMERS],
}

impl<
    const LISTENERS: usize,
    const NEXUSES: usize,
    const SESSIONS: usize,
    const CONNECTIONS: usize,
    const TASKS: usize,
    const SLOTS: usize,
    const WORK: usize,
    const SOCKETS: usize,
    const EXTENTS: usize,
    const TIMERS: usize,
>
    ArrayStorage<
        LISTENERS,
        NEXUSES,
        SESSIONS,
        CONNECTIONS,
        TASKS,
        SLOTS,
        WORK,
        SOCKETS,
        EXTENTS,
        TIMERS,
    >
{
    /// Tables with free rows only.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            listeners: [const { Listener::VACANT }; LISTENERS],
            nexuses: [const { Nexus::VACANT }; NEXUSES],
            sessions: [const { Session::VACANT }; SESSIONS],
            connections: [const { Connection::VACANT }; CONNECTIONS],
            tasks: [const { Task::VACANT }; TASKS],
            slots: [const { Slot::VACANT }; SLOTS],
            work: [const { WorkEntry::VACANT }; WORK],
            sockets: [const { Socket::VACANT }; SOCKETS],
            extents: [const { Extent::VACANT }; EXTENTS],
            timers: [TimerEntry::VACANT; TIMERS],
        }
    }
}

impl<
    const LISTENERS: usize,
    const NEXUSES: usize,
    const SESSIONS: usize,
    const CONNECTIONS: usize,
    const TASKS: usize,
    const SLOTS: usize,
    const WORK: usize,
    const SOCKETS: usize,
    const EXTENTS: usize,
    const TIMERS: usize,
> Storage
    for ArrayStorage<
        LISTENERS,
        NEXUSES,
        SESSIONS,
        CONNECTIONS,
        TASKS,
        SLOTS,
        WORK,
        SOCKETS,
        EXTENTS,
        TIMERS,
    >
{
    #[inline(always)]
    fn tables(&mut self) -> Tables<'_> {
        Tables {
            listeners: &mut self.listeners,
            nexuses: &mut self.nexuses,
            sessions: &mut self.sessions,
            connections: &mut self.connections,
            tasks: &mut self.tasks,
            slots: &mut self.slots,
            work: &mut self.work,
            sockets: &mut self.sockets,
            extents: &mut self.extents,
            timers: &mut self.timers,
        }
    }
    fn view(&self) -> View<'_> {
        View {
            nexuses: &self.nexuses,
            sessions: &self.sessions,
            connections: &self.connections,
            tasks: &self.tasks,
            slots: &self.slots,
            work: &self.work,
            sockets: &self.sockets,
            extents: &self.extents,
            timers: &self.timers,
        }
    }
}
