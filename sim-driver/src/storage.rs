//! Tables of an endpoint on the heap.

xio_proto::boxed_storage! {
    /// An endpoint's tables in boxes, filled row by row: nothing large passes through the stack.
    pub struct BoxStorage;
}

#[cfg(test)]
mod tests {
    use xio_proto::storage::{Connection, Counts, Storage};

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
