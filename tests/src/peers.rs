//! Many peers of one server on real sockets, of which some may ask on and on and read nothing.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use xio_proto::driver::Driver;
use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Data, Event, ListenOptions, Message,
    RequestOptions, SessionOpen, TaskId,
};
use xio_tcp::{Options, TcpDriver, Waker};

use crate::hostile::sockets::Mute;

/// Bytes of the requests of those that read.
const SMALL: usize = 64;
/// So long an answer is waited for, where one comes within milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of each request of the peer that reads nothing: its answers fill any buffer soon.
const MUTE: u64 = 4096;

/// Who there is.
#[derive(Copy, Clone, Debug)]
pub struct Plan {
    /// Receive slots of the server.
    pub rx_slots: u32,
    /// Its send slots.
    pub tx_slots: u32,
    /// Peers that read.
    pub readers: usize,
    /// Requests of each of them under way.
    pub window: usize,
    /// Peers that do not; they are there first, one after the other.
    pub mutes: usize,
}

/// Requests that could not be answered for lack of slots, until a `Writable` says that they can.
type Pending = HashMap<ConnectionId, VecDeque<(TaskId, Data)>>;

/// Echoes everything, in a thread of its own.
struct Server {
    at: SocketAddr,
    waker: Waker,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(plan: Plan) -> Self {
        let (tell, hear) = mpsc::channel();
        let over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let config = Config::new(0, plan.rx_slots, plan.tx_slots);
            let peers = plan.readers + plan.mutes;
            let counts = TcpDriver::counts(&config, peers + 3);
            let driver = TcpDriver::new(config, &counts, Options::default());
            let mut driver = driver.expect("a driver");
            let at = "127.0.0.1:0".parse().expect("an address");
            let (user, backlog) = (0, 128);
            let options = ListenOptions { user, backlog };
            let listener = driver.listen(at, &options).expect("room");
            let at = driver.listening(listener).expect("a port");
            tell.send((at, driver.waker())).expect("somebody waits");
            let mut pending = Pending::new();
            while !end.load(Ordering::Acquire) {
                driver.poll(None).expect("sockets");
                while let Some(event) = driver.next_event() {
                    serve(&mut driver, &mut pending, event);
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

fn serve(driver: &mut TcpDriver, pending: &mut Pending, event: Event) {
    match event {
        Event::SessionRequest { session, .. } => {
            driver.accept(session, 0, &[], b"").expect("room");
        }
        Event::Request {
            connection,
            task,
            data,
            ..
        } => {
            let waiting = pending.entry(connection).or_default();
            waiting.push_back((task, data));
            if waiting.len() == 1 {
                answer_all(driver, waiting);
            }
        }
        Event::Writable { connection, .. } => {
            answer_all(driver, pending.entry(connection).or_default());
        }
        Event::Closed { connection, .. } => {
            let left = pending.remove(&connection).unwrap_or_default();
            for (task, _) in left {
                driver.release(task).expect("ours");
            }
        }
        _ => {}
    }
}

/// Answers in order as long as there is room; a `Writable` says when there is more.
fn answer_all(driver: &mut TcpDriver, waiting: &mut VecDeque<(TaskId, Data)>) {
    while let Some(&(task, data)) = waiting.front() {
        match answer(driver, task, data) {
            Ok(()) => {}
            Err(CommandError::Full(_)) => return,
            // The connection is over; what it asked is given back.
            Err(_) => driver.release(task).expect("ours"),
        }
        waiting.pop_front();
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
    answers: Vec<usize>,
}

impl Readers {
    fn connected(server: &Server, count: usize) -> Self {
        let config = Config::new(1, 1024, 1024);
        let counts = TcpDriver::counts(&config, count);
        let driver = TcpDriver::new(config, &counts, Options::default()).expect("a driver");
        let mut readers = Self {
            driver,
            connections: Vec::new(),
            answers: vec![0; count],
        };
        let uri = format!("tcp://{}/", server.at);
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        for n in 0..count {
            let options = ConnectOptions {
                dual_stream: false,
                own_nexus: true,
                ..ConnectOptions::new(n as u64)
            };
            let connection = readers.driver.connect(server.at, &open, &options);
            readers.connections.push(connection.expect("room"));
        }
        let mut up = 0;
        while up < count {
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

    /// Sleeps until an answer came; takes all that came and asks again.
    fn turn(&mut self) {
        let begun = self.driver.now();
        let before: usize = self.answers.iter().sum();
        while self.answers.iter().sum::<usize>() == before {
            let waited = self.driver.now().since(begun);
            assert!(waited < PATIENCE, "no answer came: {:?}", self.answers);
            self.driver.poll(Some(PATIENCE)).expect("sockets");
            while let Some(event) = self.driver.next_event() {
                self.take(event);
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Response {
                task,
                connection_user,
                ..
            } => {
                self.driver.release(task).expect("ours");
                self.answers[connection_user as usize] += 1;
                self.ask(connection_user as usize);
            }
            Event::BuffersReturned { .. } | Event::Writable { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A server and its peers.
pub struct Peers {
    server: Server,
    mutes: Vec<Mute>,
    readers: Readers,
    turns: usize,
}

impl Peers {
    /// All are connected; those that do not read have asked until nobody takes any more of it, and
    /// the others have asked as often as they do at once.
    ///
    /// # Panics
    /// When somebody finds no room.
    pub fn start(plan: Plan) -> Self {
        let server = Server::start(plan);
        let mutes = (0..plan.mutes).map(|_| {
            let mut mute = Mute::connect(server.at);
            // Its sockets fill up; then all that it can do is to wait.
            let mut asked = 0;
            while asked < mute.ask(MUTE) || asked == 0 {
                asked = mute.ask(MUTE);
                thread::yield_now();
            }
            mute
        });
        let mutes = mutes.collect();
        let mut readers = Readers::connected(&server, plan.readers);
        for n in 0..plan.readers * plan.window {
            readers.ask(n % plan.readers);
        }
        Self {
            server,
            mutes,
            readers,
            turns: 0,
        }
    }

    /// Answers that each of those that read has got.
    pub fn answers(&self) -> &[usize] {
        &self.readers.answers
    }

    /// Goes on until those that read have so many answers more, all together.
    ///
    /// # Panics
    /// When no answer comes.
    pub fn run(&mut self, answers: usize) {
        let until = answers + self.answers().iter().sum::<usize>();
        while self.answers().iter().sum::<usize>() < until {
            self.readers.turn();
            self.turns += 1;
            if self.turns.is_multiple_of(64) {
                for mute in &mut self.mutes {
                    mute.ask(MUTE);
                }
            }
        }
    }

    /// Ends all of it.
    ///
    /// # Panics
    /// When the server did.
    pub fn stop(self) {
        drop((self.mutes, self.readers));
        self.server.stop();
    }
}
