//! What an endpoint's tables take: the formula of the documentation, the price of an idle
//! connection, and that nothing large passes through the stack.

use xio_proto::storage::{
    Connection, Counts, Extent, Listener, Nexus, Region, Session, Slot, Socket, Storage, Task,
    TimerEntry, WorkEntry,
};
use xio_proto::{Config, Endpoint, TransportLimits};
use xio_tests::tables::BoxedTables;

/// Bytes that an idle connection may take, with a session and a transport connection of its own.
const IDLE_MAX: usize = 1024;

const NOTHING: Counts = Counts {
    listeners: 0,
    nexuses: 0,
    sessions: 0,
    connections: 0,
    tasks: 0,
    rx_slots: 0,
    tx_slots: 0,
    work: 0,
    sockets: 0,
    extents: 0,
    regions: 0,
};

/// An endpoint with so many connections, each with a session and a transport connection.
fn many(connections: usize) -> Counts {
    Counts {
        listeners: 1,
        nexuses: connections,
        sessions: connections,
        connections,
        tasks: 1024,
        rx_slots: 4096,
        tx_slots: 1024,
        work: 4096,
        ..NOTHING
    }
}

fn bytes_of<T>(rows: &[T]) -> usize {
    size_of_val(rows)
}

/// What the tables really take.
fn measured(counts: &Counts) -> usize {
    let mut storage = BoxedTables::new(counts);
    let t = storage.tables();
    bytes_of(t.listeners)
        + bytes_of(t.nexuses)
        + bytes_of(t.sessions)
        + bytes_of(t.connections)
        + bytes_of(t.tasks)
        + bytes_of(t.slots)
        + bytes_of(t.work)
        + bytes_of(t.sockets)
        + bytes_of(t.extents)
        + bytes_of(t.regions)
        + bytes_of(t.timers)
}

#[test]
fn formula_says_what_the_tables_take() {
    let all = Counts {
        listeners: 3,
        nexuses: 5,
        sessions: 7,
        connections: 11,
        tasks: 13,
        rx_slots: 17,
        tx_slots: 19,
        work: 23,
        sockets: 29,
        extents: 31,
        regions: 37,
    };
    for counts in [NOTHING, all, many(10), many(1000)] {
        assert_eq!(counts.bytes(), measured(&counts), "{counts:?}");
    }
}

/// Each count alone brings the rows that the documentation says it brings, and their timers.
#[test]
fn each_count_costs_its_rows() {
    let timer = size_of::<TimerEntry>();
    let one = |set: fn(&mut Counts)| {
        let mut counts = NOTHING;
        set(&mut counts);
        counts.bytes()
    };
    assert_eq!(NOTHING.bytes(), 0);
    assert_eq!(one(|c| c.listeners = 1), size_of::<Listener>());
    assert_eq!(one(|c| c.nexuses = 1), size_of::<Nexus>() + timer);
    assert_eq!(one(|c| c.sessions = 1), size_of::<Session>() + timer);
    // Its own deadline, and keepalive's.
    assert_eq!(
        one(|c| c.connections = 1),
        size_of::<Connection>() + 2 * timer
    );
    assert_eq!(one(|c| c.tasks = 1), size_of::<Task>() + timer);
    // A received message is a task whose row belongs to its slot.
    let slot = size_of::<Slot>();
    assert_eq!(one(|c| c.rx_slots = 1), slot + size_of::<Task>() + timer);
    assert_eq!(one(|c| c.tx_slots = 1), slot);
    assert_eq!(one(|c| c.work = 1), size_of::<WorkEntry>());
    assert_eq!(one(|c| c.sockets = 1), size_of::<Socket>() + timer);
    assert_eq!(one(|c| c.extents = 1), size_of::<Extent>());
    assert_eq!(one(|c| c.regions = 1), size_of::<Region>());
}

#[test]
fn idle_connection_is_cheap() {
    let connections = 10_000;
    let idle = (many(connections).bytes() - many(0).bytes()) / connections;
    let (nexus, session) = (size_of::<Nexus>(), size_of::<Session>());
    let (connection, timers) = (size_of::<Connection>(), 4 * size_of::<TimerEntry>());
    println!(
        "an idle connection takes {idle} bytes: transport connection {nexus}, session {session}, \
         connection {connection}, four deadlines {timers}"
    );
    println!(
        "not counted: {} bytes for each message on its way, {} for each receive slot, {} for each \
         send slot and {} for each work request, which all connections share",
        size_of::<Task>() + size_of::<TimerEntry>(),
        size_of::<Task>() + size_of::<TimerEntry>() + size_of::<Slot>(),
        size_of::<Slot>(),
        size_of::<WorkEntry>(),
    );
    assert_eq!(idle, nexus + session + connection + timers);
    assert!(idle <= IDLE_MAX, "{idle} bytes for an idle connection");
}

/// An endpoint for 10,000 connections is made, used and dropped on a stack of 128 KiB.
#[test]
fn ten_thousand_connections_need_no_stack() {
    let made = std::thread::Builder::new().stack_size(128 << 10).spawn(|| {
        let counts = many(10_000);
        let config = Config::new(1, counts.rx_slots as u32, counts.tx_slots as u32);
        let mut endpoint = Endpoint::new(config, BoxedTables::new(&counts)).unwrap();
        endpoint.add_transport(TransportLimits::rdma()).unwrap();
        endpoint.free_rows()
    });
    let free = made.unwrap().join().expect("the stack is large enough");
    assert_eq!(
        (free.connections, free.nexuses, free.armed),
        (10_000, 10_000, 0)
    );
}
