//! Two drivers on loopback, in one thread.
#![allow(dead_code, reason = "each test takes what it needs")]
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use xio_proto::{
    Config, ConnectOptions, ConnectionId, Event, ListenOptions, ListenerId, Message,
    RequestOptions, SessionOpen, TaskId,
};
use xio_tcp::{Driver, Options, TcpDriver};

/// A driver with small tables.
pub(crate) fn driver(number: u8, options: Options) -> TcpDriver {
    let config = Config::new(number, 160, 320);
    let counts = TcpDriver::counts(&config, 8);
    TcpDriver::new(config, &counts, options).expect("settings that work")
}

/// Listens on a free port of the loopback address.
pub(crate) fn listen(server: &mut TcpDriver, address: &str) -> (ListenerId, SocketAddr) {
    let address = address.parse().expect("an address");
    let options = ListenOptions {
        user: 0,
        backlog: 4096,
    };
    let listener = server.listen(address, &options).expect("room");
    let bound = server.listening(listener).expect("a free port");
    (listener, bound)
}

/// Connects to it.
pub(crate) fn connect(client: &mut TcpDriver, peer: SocketAddr, dual: bool) -> ConnectionId {
    let uri = format!("tcp://{peer}/test");
    let open = SessionOpen {
        uri: &uri,
        private: b"",
    };
    let options = ConnectOptions {
        dual_stream: dual,
        ..ConnectOptions::new(1)
    };
    client.connect(peer, &open, &options).expect("room")
}

/// A request whose data is copied into a slot.
pub(crate) fn request(
    client: &mut TcpDriver,
    connection: ConnectionId,
    data: &[u8],
    user: u64,
) -> TaskId {
    let slot = client.reserve_slot(connection).expect("a slot");
    client
        .with_slot(slot, |room| room[..data.len()].copy_from_slice(data))
        .expect("reserved");
    let message = Message {
        slot: Some(slot),
        slot_data: data.len() as u32,
        user,
        ..Message::default()
    };
    let options = RequestOptions::default();
    client.send(connection, &message, &options).expect("room")
}

/// Runs both sides until one of them says so; panics when that takes 20 seconds.
pub(crate) fn run(
    server: &mut TcpDriver,
    client: &mut TcpDriver,
    mut each: impl FnMut(bool, &mut TcpDriver, Event) -> bool,
) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        for (is_server, side) in [(true, &mut *server), (false, &mut *client)] {
            while let Some(event) = side.next_event() {
                if each(is_server, side, event) {
                    return;
                }
            }
            side.poll(Some(Duration::ZERO)).expect("polls");
        }
        assert!(Instant::now() < until, "nothing came of it in 20 seconds");
    }
}

/// What a server that echoes does with an event.
pub(crate) fn echo(server: &mut TcpDriver, event: Event) {
    match event {
        Event::SessionRequest { session, .. } => {
            server.accept(session, 2, &[], b"").expect("accepts");
        }
        Event::Request { task, data, .. } => {
            let mut bytes = Vec::new();
            server.with_data(data, |piece| bytes.extend_from_slice(piece));
            let slot = server.reserve_answer_slot(task).expect("a slot");
            server
                .with_slot(slot, |room| room[..bytes.len()].copy_from_slice(&bytes))
                .expect("reserved");
            let message = Message {
                slot: Some(slot),
                slot_data: bytes.len() as u32,
                ..Message::default()
            };
            server.respond(task, &message).expect("answers");
        }
        _ => {}
    }
}

/// As [`echo`] for data of at most 64 bytes, without an allocation.
pub(crate) fn echo_in_place(server: &mut TcpDriver, event: Event) {
    let Event::Request { task, data, .. } = event else {
        return echo(server, event);
    };
    let (mut bytes, len) = ([0; 64], data.len() as usize);
    server.with_data(data, |piece| bytes[..len].copy_from_slice(piece));
    let slot = server.reserve_answer_slot(task).expect("a slot");
    server
        .with_slot(slot, |room| room[..len].copy_from_slice(&bytes[..len]))
        .expect("reserved");
    let message = Message {
        slot: Some(slot),
        slot_data: len as u32,
        ..Message::default()
    };
    server.respond(task, &message).expect("answers");
}
