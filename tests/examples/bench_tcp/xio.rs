//! xio over sockets.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use xio_proto::driver::{BufferId, Driver};
use xio_proto::{
    Config, ConnectOptions, ConnectionId, Data, Event, ListenOptions, Message, RequestOptions,
    SessionOpen, TaskId,
};
use xio_tcp::{Options, TcpDriver};

use super::{LARGE, SMALL, now, p50};

fn driver(number: u8) -> TcpDriver {
    let config = Config::new(number, 256, 256);
    let counts = TcpDriver::counts(&config, 2);
    TcpDriver::new(config, &counts, Options::default()).expect("a driver")
}

/// A server in a thread of its own: answers small requests with their data, takes large ones.
struct Server {
    at: SocketAddr,
    thread: JoinHandle<()>,
}

impl Server {
    fn start() -> Self {
        let (tell, hear) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut driver = driver(0);
            let at = "127.0.0.1:0".parse().expect("an address");
            let options = ListenOptions {
                user: 0,
                backlog: 8,
            };
            let listener = driver.listen(at, &options).expect("room");
            let at = driver.listening(listener).expect("a port");
            tell.send(at).expect("somebody waits");
            serve(&mut driver);
        });
        let at = hear.recv().expect("the server is up");
        Self { at, thread }
    }
}

fn serve(driver: &mut TcpDriver) {
    let mut free: Vec<BufferId> = Vec::new();
    let mut held: Vec<(TaskId, BufferId)> = Vec::new();
    loop {
        while let Some(event) = driver.next_event() {
            match event {
                Event::SessionRequest { session, .. } => {
                    driver.accept(session, 0, &[], b"").expect("room");
                }
                Event::PayloadWaiting { task, len, .. } => {
                    let buffer = free.pop();
                    let buffer = buffer.unwrap_or_else(|| driver.allocate(LARGE).expect("memory"));
                    let segment = driver.segment(buffer, 0..len as usize).expect("room");
                    driver.provide(task, &[segment]).expect("it waits");
                    held.push((task, buffer));
                }
                Event::Request { task, data, .. } => {
                    respond(driver, task, data);
                    if let Some(at) = held.iter().position(|(of, _)| *of == task) {
                        free.push(held.swap_remove(at).1);
                    }
                }
                Event::Closed { .. } => return,
                _ => {}
            }
        }
        driver.poll(None).expect("sockets");
    }
}

/// Small data comes back, large data is taken with thanks.
fn respond(driver: &mut TcpDriver, task: TaskId, data: Data) {
    let mut copy = [0; SMALL];
    let mut len = 0;
    if let Data::Slot(_) = data {
        driver.with_data(data, |piece| {
            copy[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        });
    }
    let slot = driver.reserve_answer_slot(task).expect("room");
    driver.with_slot(slot, |room| room[..len].copy_from_slice(&copy[..len]));
    let message = Message {
        slot: Some(slot),
        slot_data: len as u32,
        ..Message::default()
    };
    driver.respond(task, &message).expect("room");
}

/// A client with an established connection.
struct Client {
    driver: TcpDriver,
    connection: ConnectionId,
    server: Server,
}

impl Client {
    fn connected(dual: bool) -> Self {
        let server = Server::start();
        let mut driver = driver(1);
        let uri = format!("tcp://{}/", server.at);
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        let options = ConnectOptions {
            dual_stream: dual,
            ..ConnectOptions::new(0)
        };
        let connection = driver.connect(server.at, &open, &options).expect("room");
        loop {
            if let Some(Event::Established { .. }) = driver.next_event() {
                break;
            }
            driver.poll(None).expect("sockets");
        }
        Self {
            driver,
            connection,
            server,
        }
    }

    fn send_small(&mut self) {
        let slot = self.driver.reserve_slot(self.connection).expect("room");
        self.driver.with_slot(slot, |room| room[..SMALL].fill(7));
        let message = Message {
            slot: Some(slot),
            slot_data: SMALL as u32,
            ..Message::default()
        };
        let sent = self
            .driver
            .send(self.connection, &message, &RequestOptions::default());
        sent.expect("room");
    }

    /// Takes what came; how many answers there were.
    fn answers(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.driver.next_event() {
            match event {
                Event::Response { task, .. } => {
                    self.driver.release(task).expect("ours");
                    count += 1;
                }
                Event::BuffersReturned { .. } | Event::Writable { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        count
    }

    fn wait(&mut self) -> usize {
        loop {
            self.driver.poll(None).expect("sockets");
            match self.answers() {
                0 => {}
                count => return count,
            }
        }
    }

    fn close(mut self) {
        self.driver.close(self.connection).expect("open");
        loop {
            if let Some(Event::Closed { .. }) = self.driver.next_event() {
                break;
            }
            self.driver.poll(None).expect("sockets");
        }
        // The last answer to FIN is on its way.
        self.driver.poll(Some(Duration::ZERO)).expect("sockets");
        drop(self.driver);
        self.server.thread.join().expect("no panic");
    }
}

/// Microseconds of a round trip.
pub(super) fn round_trip(dual: bool, count: usize) -> f64 {
    let mut client = Client::connected(dual);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = now();
        client.send_small();
        assert_eq!(client.wait(), 1);
        times.push(began.elapsed());
    }
    client.close();
    p50(times)
}

/// Thousands of messages a second with so many of them under way.
pub(super) fn rate(depth: usize, count: usize) -> f64 {
    let mut client = Client::connected(false);
    let began = now();
    let (mut sent, mut out) = (0, 0);
    while sent < count || out > 0 {
        while sent < count && out < depth {
            client.send_small();
            sent += 1;
            out += 1;
        }
        out -= client.wait();
    }
    let seconds = began.elapsed().as_secs_f64();
    client.close();
    count as f64 / seconds / 1e3
}

/// MiB a second of large requests, each with an empty answer, four under way.
pub(super) fn bandwidth(count: usize) -> f64 {
    let mut client = Client::connected(true);
    let buffer = client.driver.allocate(LARGE).expect("memory");
    let segment = client.driver.segment(buffer, 0..LARGE).expect("all of it");
    let began: Instant = now();
    let (mut sent, mut out) = (0, 0);
    while sent < count || out > 0 {
        while sent < count && out < 4 {
            let data = [segment];
            let message = Message {
                data: &data,
                ..Message::default()
            };
            let options = RequestOptions::default();
            let taken = client.driver.send(client.connection, &message, &options);
            taken.expect("room");
            sent += 1;
            out += 1;
        }
        out -= client.wait();
    }
    let seconds = began.elapsed().as_secs_f64();
    client.close();
    (count * LARGE) as f64 / f64::from(1 << 20) / seconds
}
