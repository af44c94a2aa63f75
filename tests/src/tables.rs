//! Tables of an endpoint on the heap, freed with it.

use xio_proto::storage::{
    Connection, Counts, Extent, Listener, Nexus, Session, Slot, Socket, Storage, Tables, Task,
    TimerEntry, View, WorkEntry,
};

/// Every table as a boxed slice.
#[derive(Debug)]
pub struct BoxedTables {
    listeners: Box<[Listener]>,
    nexuses: Box<[Nexus]>,
    sessions: Box<[Session]>,
    connections: Box<[Connection]>,
    tasks: Box<[Task]>,
    slots: Box<[Slot]>,
    work: Box<[WorkEntry]>,
    sockets: Box<[Socket]>,
    extents: Box<[Extent]>,
    timers: Box<[TimerEntry]>,
}

fn rows<T>(row: impl Fn() -> T, count: usize) -> Box<[T]> {
    (0..count).map(|_| row()).collect()
}

impl BoxedTables {
    /// Tables of these sizes with free rows only.
    #[must_use]
    pub fn new(counts: &Counts) -> Self {
        Self {
            listeners: rows(|| Listener::VACANT, counts.listeners),
            nexuses: rows(|| Nexus::VACANT, counts.nexuses),
            sessions: rows(|| Session::VACANT, counts.sessions),
            connections: rows(|| Connection::VACANT, counts.connections),
            tasks: rows(|| Task::VACANT, counts.tasks + counts.rx_slots),
            slots: rows(|| Slot::VACANT, counts.rx_slots + counts.tx_slots),
            work: rows(|| WorkEntry::VACANT, counts.work),
            sockets: rows(|| Socket::VACANT, counts.sockets),
            extents: rows(|| Extent::VACANT, counts.extents),
            timers: rows(|| TimerEntry::VACANT, counts.timers()),
        }
    }
}

impl Storage for BoxedTables {
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
            extents: &self.extents,
            timers: &self.timers,
        }
    }
}
