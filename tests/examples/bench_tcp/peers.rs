//! Many peers of one server, of which one may read nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use xio_proto::driver::Driver;
use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Data, Event, ListenOptions, Message,
    RequestOptions, SessionOpen, TaskId,
};
use xio_tcp::{Options, TcpDriver, Waker};
use xio_tests::hostile::sockets::Mute;

use super::{SMALL, now};

/// Peers that read.
const READERS: usize = 63;
/// Requests of each under way.
const WINDOW: usize = 4;
/// Bytes of each request of the peer that reads nothing: its answers fill any buffer soon.
const MUTE: u64 = 4096;

/// Echoes everything, in a thread of its own.
struct Server {
    at: SocketAddr,
    waker: Waker,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start() -> Self {
        let (tell, hear) = mpsc::channel();
        let over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let config = Config::new(0, 1024, 1024);
            let counts = TcpDriver::counts(&config, READERS + 4);
            let driver = TcpDriver::new(config, &counts, Options::default());
            let mut driver = driver.expect("a driver");
            let at = "127.0.0.1:0".parse().expect("an address");
            let (user, backlog) = (0, 128);
            let options = ListenOptions { user, backlog };
            let listener = driver.listen(at, &options).expect("room");
            let at = driver.listening(listener).expect("a port");
            tell.send((at, driver.waker())).expect("somebody waits");
            while !end.load(Ordering::Acquire) {
                driver.poll(None).expect("sockets");
                while let Some(event) = driver.next_event() {
                    serve(&mut driver, event);
                }
            }
        });
        let (at, waker) = hear.recv().expect("the server is up");
        Self {
            at,
            waker,
            over,
            thread,
        }
    }

    fn stop(self) {
        self.over.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.join().expect("no panic");
    }
}

fn serve(driver: &mut TcpDriver, event: Event) {
    match event {
        Event::SessionRequest { session, .. } => {
            driver.accept(session, 0, &[], b"").expect("room");
        }
        Event::Request { task, data, .. } => {
            let answered = answer(driver, task, data);
            // One who reads nothing can have no more answers waiting than there is room for.
            answered.or_else(|_| driver.release(task)).expect("ours");
        }
        _ => {}
    }
}

fn answer(driver: &mut TcpDriver, task: TaskId, data: Data) -> Result<(), CommandError> {
    let slot = driver.reserve_answer_slot(task)?;
    let (mut copy, mut len) = ([0; SMALL], 0);
    let is_small = data.len() <= SMALL as u64;
    if is_small {
        driver.with_data(data, |piece| {
            copy[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        });
    } else {
        len = data.len() as usize;
    }
    driver.with_slot(slot, |room| match is_small {
        true => room[..len].copy_from_slice(&copy[..len]),
        false => room[..len].fill(7),
    });
    let message = Message {
        slot: Some(slot),
        slot_data: len as u32,
        ..Message::default()
    };
    let answered = driver.respond(task, &message);
    answered.inspect_err(|_| driver.return_slot(slot).expect("ours"))
}

struct Readers {
    driver: TcpDriver,
    connections: Vec<ConnectionId>,
    answers: usize,
}

impl Readers {
    fn connected(server: &Server) -> Self {
        let config = Config::new(1, 1024, 1024);
        let counts = TcpDriver::counts(&config, READERS);
        let driver = TcpDriver::new(config, &counts, Options::default()).expect("a driver");
        let mut readers = Self {
            driver,
            connections: Vec::new(),
            answers: 0,
        };
        let uri = format!("tcp://{}/", server.at);
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        for n in 0..READERS {
            let options = ConnectOptions {
                dual_stream: false,
                own_nexus: true,
                ..ConnectOptions::new(n as u64)
            };
            let connection = readers.driver.connect(server.at, &open, &options);
            readers.connections.push(connection.expect("room"));
        }
        let mut up = 0;
        while up < READERS {
            match readers.driver.next_event() {
                Some(Event::Established { .. }) => up += 1,
                Some(other) => panic!("{other:?}"),
                None => drop(readers.driver.poll(None).expect("sockets")),
            }
        }
        readers
    }

    fn ask(&mut self, n: usize) {
        let connection = self.connections[n];
        let slot = self.driver.reserve_slot(connection).expect("room");
        self.driver.with_slot(slot, |room| room[..SMALL].fill(7));
        let message = Message {
            slot: Some(slot),
            slot_data: SMALL as u32,
            ..Message::default()
        };
        let options = RequestOptions::default();
        let sent = self.driver.send(connection, &message, &options);
        sent.expect("room");
    }

    /// Sleeps until something came; takes it and asks again.
    fn turn(&mut self) {
        self.driver.poll(None).expect("sockets");
        while let Some(event) = self.driver.next_event() {
            match event {
                Event::Response {
                    task,
                    connection_user,
                    ..
                } => {
                    self.driver.release(task).expect("ours");
                    self.answers += 1;
                    self.ask(connection_user as usize);
                }
                Event::BuffersReturned { .. } | Event::Writable { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn until(&mut self, answers: usize, mute: &mut Option<Mute>) {
        let mut turns = 0_usize;
        while self.answers < answers {
            self.turn();
            turns += 1;
            if turns.is_multiple_of(64)
                && let Some(mute) = mute
            {
                mute.ask(MUTE);
            }
        }
    }
}

/// Thousands of requests a second that the others get answered, beside a peer that asks on and on
/// and reads no answer, or without it.
pub(super) fn rate(with_mute: bool, count: usize) -> f64 {
    let server = Server::start();
    let mut mute = with_mute.then(|| Mute::connect(server.at));
    let mut readers = Readers::connected(&server);
    if let Some(mute) = &mut mute {
        // Its sockets fill up; then all that it can do is to wait.
        let mut asked = 0;
        while asked < mute.ask(MUTE) || asked == 0 {
            asked = mute.ask(MUTE);
            thread::yield_now();
        }
    }
    for n in 0..READERS * WINDOW {
        readers.ask(n % READERS);
    }
    readers.until(count / 10, &mut mute);
    let (begun, before) = (now(), readers.answers);
    readers.until(before + count, &mut mute);
    let seconds = begun.elapsed().as_secs_f64();
    drop((mute, readers));
    server.stop();
    count as f64 / seconds / 1e3
}
