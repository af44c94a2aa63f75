//! Tables of an endpoint on the heap.

use xio_proto::storage::{
    Connection, Counts, Extent, Listener, Nexus, Region, Session, Slot, Socket, Storage, Tables,
    Task, TimerEntry, View, WorkEntry,
};

/// An endpoint's tables in boxes, filled row by row: nothing large passes through the stack.
#[derive(Debug)]
pub struct BoxStorage {
    listeners: Box<[Listener]>,
    nexuses: Box<[Nexus]>,
    sessions: Box<[Session]>,
    connections: Box<[Connection]>,
    tasks: Box<[Task]>,
    slots: Box<[Slot]>,
    work: Box<[WorkEntry]>,
    sockets: Box<[Socket]>,
    extents: Box<[Extent]>,
    regions: Box<[Region]>,
    timers: Box<[TimerEntry]>,
}

fn rows<T>(count: usize, vacant: impl Fn() -> T) -> Box<[T]> {
    (0..count).map(|_| vacant()).collect()
}

impl BoxStorage {
    /// Free rows, as many as `counts` says.
    pub fn new(counts: &Counts) -> Self {
        Self {
            listeners: rows(counts.listeners, || Listener::VACANT),
            nexuses: rows(counts.nexuses, || Nexus::VACANT),
            sessions: rows(counts.sessions, || Session::VACANT),
            connections: rows(counts.connections, || Connection::VACANT),
            tasks: rows(counts.rx_slots + counts.tasks, || Task::VACANT),
            slots: rows(counts.rx_slots + counts.tx_slots, || Slot::VACANT),
            work: rows(counts.work, || WorkEntry::VACANT),
            sockets: rows(counts.sockets, || Socket::VACANT),
            extents: rows(counts.extents, || Extent::VACANT),
            regions: rows(counts.regions, || Region::VACANT),
            timers: rows(counts.timers(), || TimerEntry::VACANT),
        }
    }
}

impl Storage for BoxStorage {
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
            extents: &self.extents,
            timers: &self.timers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_connections_on_a_small_stack() {
        let counts = Counts {
            listeners: 16,
            nexuses: 10_000,
            sessions: 10_000,
            connections: 10_000,
            tasks: 10_000,
            rx_slots: 100_000,
            tx_slots: 10_000,
            work: 100_000,
            sockets: 20_000,
            extents: 4_000,
            regions: 8,
        };
        let built = std::thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || {
                let storage = BoxStorage::new(&counts);
                let bytes: usize = storage.connections.len() * size_of::<Connection>();
                (
                    storage.view().connections.len(),
                    bytes,
                    storage.view().tasks.len(),
                )
            });
        let Ok(thread) = built else {
            panic!("no thread")
        };
        let Ok((connections, bytes, tasks)) = thread.join() else {
            panic!("stack overflow")
        };
        assert_eq!((connections, tasks), (10_000, 110_000));
        assert!(bytes < counts.bytes());
    }
}
