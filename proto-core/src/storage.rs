//! Where the tables live: the caller's choice, fixed at construction.

pub use crate::entries::{
    Connection, Extent, Listener, Nexus, Region, Session, Slot, Task, TimerEntry, WorkEntry,
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
    /// Registered regions of user memory (none are needed without direct READ and WRITE).
    pub regions: &'a mut [Region],
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
    /// Work requests on all send queues together; frames of plain messages need none.
    pub work: usize,
    /// Sockets: one or two per transport connection on streams, and those that are half-open
    /// ([`Config::half_open_max`](crate::Config::half_open_max) at most).
    pub sockets: usize,
    /// Extents.
    pub extents: usize,
    /// Registered regions.
    pub regions: usize,
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
            + self.regions * size_of::<Region>()
            + self.timers() * size_of::<TimerEntry>()
    }
}

impl<S: Storage + ?Sized> Storage for &mut S {
    #[inline(always)]
    fn tables(&mut self) -> Tables<'_> {
        (**self).tables()
    }
    fn view(&self) -> View<'_> {
        (**self).view()
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
            regions: self.regions,
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
/// requests, sockets, extents, regions and timers.
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
    const REGIONS: usize,
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
    regions: [Region; REGIONS],
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
    const REGIONS: usize,
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
        REGIONS,
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
            regions: [const { Region::VACANT }; REGIONS],
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
    const REGIONS: usize,
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
        REGIONS,
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
            regions: &mut self.regions,
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

/// Declares a type with an endpoint's tables in boxes, filled row by row: nothing large passes
/// through the stack. For crates with an allocator, which this one is not.
///
/// ```
/// xio_proto::boxed_storage! {
///     /// Tables on the heap.
///     pub struct Boxed;
/// }
/// ```
#[macro_export]
macro_rules! boxed_storage {
    ($(#[$meta:meta])* $vis:vis struct $name:ident;) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            listeners: Box<[$crate::storage::Listener]>,
            nexuses: Box<[$crate::storage::Nexus]>,
            sessions: Box<[$crate::storage::Session]>,
            connections: Box<[$crate::storage::Connection]>,
            tasks: Box<[$crate::storage::Task]>,
            slots: Box<[$crate::storage::Slot]>,
            work: Box<[$crate::storage::WorkEntry]>,
            sockets: Box<[$crate::storage::Socket]>,
            extents: Box<[$crate::storage::Extent]>,
            regions: Box<[$crate::storage::Region]>,
            timers: Box<[$crate::storage::TimerEntry]>,
        }

        impl $name {
            /// Free rows, as many as `counts` says.
            #[must_use]
            $vis fn new(counts: &$crate::storage::Counts) -> Self {
                fn rows<T>(count: usize, vacant: impl Fn() -> T) -> Box<[T]> {
                    (0..count).map(|_| vacant()).collect()
                }
                use $crate::storage as s;
                Self {
                    listeners: rows(counts.listeners, || s::Listener::VACANT),
                    nexuses: rows(counts.nexuses, || s::Nexus::VACANT),
                    sessions: rows(counts.sessions, || s::Session::VACANT),
                    connections: rows(counts.connections, || s::Connection::VACANT),
                    tasks: rows(counts.rx_slots + counts.tasks, || s::Task::VACANT),
                    slots: rows(counts.rx_slots + counts.tx_slots, || s::Slot::VACANT),
                    work: rows(counts.work, || s::WorkEntry::VACANT),
                    sockets: rows(counts.sockets, || s::Socket::VACANT),
                    extents: rows(counts.extents, || s::Extent::VACANT),
                    regions: rows(counts.regions, || s::Region::VACANT),
                    timers: rows(counts.timers(), || s::TimerEntry::VACANT),
                }
            }
        }

        impl $crate::storage::Storage for $name {
            #[inline(always)]
            fn tables(&mut self) -> $crate::storage::Tables<'_> {
                $crate::storage::Tables {
                    listeners: &mut self.listeners,
                    nexuses: &mut self.nexuses,
                    sessions: &mut self.sessions,
                    connections: &mut self.connections,
                    tasks: &mut self.tasks,
                    slots: &mut self.slots,
                    work: &mut self.work,
                    sockets: &mut self.sockets,
                    extents: &mut self.extents,
                    regions: &mut self.regions,
                    timers: &mut self.timers,
                }
            }
            fn view(&self) -> $crate::storage::View<'_> {
                $crate::storage::View {
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
    };
}
