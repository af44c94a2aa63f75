//! A server on real sockets between honest clients and a crowd of hostile peers: nothing that the
//! crowd says ends the server, grows its memory, or costs an honest client an answer.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use xio_proto::driver::Driver;
use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, ConnectionPolicy, Data, Event, FreeRows,
    ListenOptions, Message, RequestOptions, Segment, SessionId, SessionOpen, Span, TaskId,
};
use xio_tcp::{Options, Stats, TcpDriver};

use crate::hostile::sockets::{Crowd, Said};

/// Hostile peers at once.
const CROWD: usize = 24;
/// Honest connections: half over one stream, half over two.
const HONEST: usize = 4;
/// Requests that each of them has under way.
const WINDOW: u64 = 4;
/// Bytes of a request that does not fit a frame.
const LARGE: usize = 40_000;
/// Hostile requests that the server's user leaves unanswered for a while.
const HOARD: usize = 48;
/// What honest clients say they are.
const HONEST_WORD: &[u8] = b"honest";

/// How a siege goes.
#[derive(Copy, Clone, Debug)]
pub struct Plan {
    /// Frames of hostile peers that the server is to take.
    pub frames: u64,
    /// Where chance starts.
    pub seed: u64,
    /// Round trips of the honest clients by which their rate is measured without the crowd, before
    /// and after.
    pub alone: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the crowd did.
    pub said: Said,
    /// Hostile frames that the server took whole.
    pub taken: u64,
    /// Hostile messages among them that reached the server's user.
    pub messages: u64,
    /// Transport connections that ended because a peer broke the protocol.
    pub violations: u64,
    /// Sockets that never became part of one.
    pub strays: u64,
    /// Sockets accepted.
    pub accepted: u64,
    /// Verified round trips of honest clients beside the crowd.
    pub honest: u64,
    /// How many a second.
    pub rate: f64,
    /// How many a second without the crowd: before, after.
    pub rate_alone: [f64; 2],
    /// The longest round trip beside the crowd.
    pub longest: Duration,
    /// Bytes of the process that are in memory: after a tenth of the frames, the most since, and
    /// at the end.
    pub resident: [u64; 3],
    /// For how long the crowd was there.
    pub elapsed: Duration,
}

#[expect(clippy::disallowed_methods, reason = "rates are what is measured here")]
fn now() -> Instant {
    Instant::now()
}

/// Bytes of this process that are in memory; 0 where the system does not say.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1);
    pages.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// What threads tell each other.
#[derive(Default)]
struct Shared {
    /// Hostile frames taken so far.
    taken: AtomicU64,
    /// Verified round trips.
    honest: AtomicU64,
    /// Microseconds of the longest since it was last set to 0.
    longest: AtomicU64,
    /// The honest clients are to leave.
    leave: AtomicBool,
    /// The crowd is gone.
    quiet: AtomicBool,
    /// The server is as it was before the crowd came.
    back: AtomicBool,
    /// The server may end.
    stop: AtomicBool,
}

fn config(number: u8, slots: u32) -> Config {
    let soon = Duration::from_millis(200);
    Config {
        connect_timeout: soon,
        setup_timeout: soon,
        fin_timeout: soon,
        provide_timeout: soon,
        linger: Duration::from_millis(20),
        drain_timeout: Duration::from_millis(100),
        half_open_max: 64,
        policy: ConnectionPolicy::pool(64 << 10),
        ..Config::new(number, slots, slots)
    }
}

/// The server and its user.
struct Server {
    driver: TcpDriver,
    shared: Arc<Shared>,
    hoard: VecDeque<TaskId>,
    /// Requests of honest clients so far.
    honest: u64,
    /// Those that wait for room for their answers.
    owed: VecDeque<(TaskId, Data)>,
    /// Messages of hostile ones.
    messages: u64,
    sessions: u64,
}

/// The server's counts at the end.
struct Ended {
    messages: u64,
    violations: u64,
    stats: Stats,
}

/// User values of the server's connections.
const FRIEND: u64 = 1;
const FOE: u64 = 2;

impl Server {
    fn new(shared: Arc<Shared>) -> Self {
        let config = config(0, 640);
        let counts = TcpDriver::counts(&config, 96);
        let mut driver = TcpDriver::new(config, &counts, Options::default()).expect("it works");
        driver.add_pool(8192, 512).expect("there is room");
        Self {
            driver,
            shared,
            hoard: VecDeque::new(),
            owed: VecDeque::new(),
            honest: 0,
            messages: 0,
            sessions: 0,
        }
    }

    fn run(mut self, tell: &mpsc::Sender<SocketAddr>) -> Ended {
        let at = "127.0.0.1:0".parse().expect("an address");
        let (user, backlog) = (0, 4096);
        let options = ListenOptions { user, backlog };
        let listener = self.driver.listen(at, &options).expect("there is room");
        let at = self.driver.listening(listener).expect("a port");
        let free = self.driver.endpoint().free_rows();
        tell.send(at).expect("somebody waits");
        let mut turns = 0_u64;
        while !self.shared.stop.load(Ordering::Acquire) {
            let wait = Some(Duration::from_millis(2));
            self.driver.poll(wait).expect("an event queue");
            while let Some(event) = self.driver.next_event() {
                self.event(event);
            }
            turns += 1;
            if turns.is_multiple_of(64) {
                self.driver.endpoint().check_invariants();
            }
            self.report(&free);
        }
        self.driver.endpoint().check_invariants();
        Ended {
            messages: self.messages,
            violations: self.driver.endpoint().counters().violations,
            stats: *self.driver.stats(),
        }
    }

    fn report(&mut self, free: &FreeRows) {
        let endpoint = self.driver.endpoint();
        // Setup, session, greeting and end of honest connections are too few to matter.
        let taken = endpoint.counters().frames_received - self.honest;
        self.shared.taken.store(taken, Ordering::Release);
        if self.shared.quiet.load(Ordering::Acquire) {
            while let Some(task) = self.hoard.pop_front() {
                let _ = self.driver.release(task);
            }
            let back = self.driver.endpoint().free_rows() == *free;
            self.shared.back.store(back, Ordering::Release);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::SessionRequest {
                session, private, ..
            } => self.session(session, private),
            Event::Established {
                connection,
                user,
                message,
                ..
            } => {
                if let Some(task) = message {
                    let _ = self.driver.release(task);
                }
                if user == FOE {
                    self.ask(connection);
                }
            }
            Event::PayloadWaiting { task, .. } => {
                // Its connection may be over already.
                let _ = self.driver.refuse(task, 90);
            }
            Event::Request {
                user, task, data, ..
            } if user == FRIEND => {
                self.honest += 1;
                self.owed.push_back((task, data));
                self.answer_friends();
            }
            Event::Request {
                user,
                task,
                data,
                connection,
                ..
            } => {
                self.messages += 1;
                if self.messages.is_multiple_of(3) {
                    self.hoard.push_back(task);
                } else {
                    self.answer_foe(task, Some(data));
                }
                if self.messages.is_multiple_of(16) {
                    self.ask(connection);
                }
                assert_eq!(user, FOE);
                if self.hoard.len() > HOARD
                    && let Some(task) = self.hoard.pop_front()
                {
                    self.answer_foe(task, None);
                }
            }
            Event::Writable { user: FRIEND, .. } => self.answer_friends(),
            Event::OneWay { task, .. } | Event::Response { task, .. } => {
                self.messages += 1;
                let _ = self.driver.release(task);
            }
            _ => {}
        }
    }

    fn session(&mut self, session: SessionId, private: Span) {
        let honest = self.driver.bytes(private) == HONEST_WORD;
        self.sessions += 1;
        // A decision can come too late.
        let _ = match self.sessions % 24 {
            0 if !honest => self.driver.reject(session, 5, b"no"),
            1 if !honest => self.driver.redirect(session, &[b"tcp://127.0.0.1:9"]),
            turn => {
                let user = if honest { FRIEND } else { FOE };
                let accepted = self.driver.accept(session, user, &[], b"");
                accepted.map(|connection| {
                    if turn % 2 == 0 && !honest {
                        let ask = ConnectionPolicy::ASK;
                        let _ = self.driver.set_policy(connection, ask);
                    }
                })
            }
        };
    }

    /// What the data was comes back: itself, or when it is long its sum.
    /// False when there is no room now.
    fn answer(&mut self, task: TaskId, data: Option<Data>) -> bool {
        let mut bytes = Vec::new();
        if let Some(data) = data {
            self.driver.with_data(data, |piece| bytes.extend(piece));
        }
        if bytes.len() > 8000 {
            bytes = sum(&bytes).to_vec();
        }
        let answered = match self.driver.reserve_answer_slot(task) {
            Ok(slot) => {
                let filled = self.driver.with_slot(slot, |room| {
                    room[..bytes.len()].copy_from_slice(&bytes);
                });
                filled.expect("it was reserved");
                let message = Message {
                    slot: Some(slot),
                    slot_data: bytes.len() as u32,
                    ..Message::default()
                };
                let answered = self.driver.respond(task, &message);
                answered.inspect_err(|_| {
                    let _ = self.driver.return_slot(slot);
                })
            }
            Err(error) => Err(error),
        };
        match answered {
            Err(CommandError::Full(_)) => false,
            Ok(()) => true,
            Err(_) => {
                let _ = self.driver.release(task);
                true
            }
        }
    }

    fn answer_foe(&mut self, task: TaskId, data: Option<Data>) {
        if !self.answer(task, data) {
            let _ = self.driver.release(task);
        }
    }

    /// Answers honest clients in order as long as there is room; a `Writable` says when there is more.
    fn answer_friends(&mut self) {
        while let Some((task, data)) = self.owed.pop_front() {
            if !self.answer(task, Some(data)) {
                self.owed.push_front((task, data));
                return;
            }
        }
    }

    fn ask(&mut self, connection: ConnectionId) {
        let deadline = self.driver.now().after(Duration::from_millis(50));
        let options = RequestOptions {
            deadline: Some(deadline),
            ..RequestOptions::default()
        };
        let _ = self.driver.send(connection, &Message::default(), &options);
    }
}

/// A sum over all bytes and their places.
fn sum(bytes: &[u8]) -> [u8; 8] {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step).to_be_bytes()
}

/// A request of an honest client.
struct Asked {
    user: u64,
    begun: Instant,
}

/// Honest clients on an endpoint of their own.
struct Client {
    driver: TcpDriver,
    shared: Arc<Shared>,
    connections: Vec<ConnectionId>,
    up: usize,
    closed: usize,
    next: u64,
    asked: Vec<Asked>,
    segment: Segment,
}

/// The data of a request.
fn data(user: u64) -> Vec<u8> {
    let len = match user % 16 {
        // Out of one buffer, so always the same.
        15 => return (0..LARGE).map(|at| (at * 13 + at / 251) as u8).collect(),
        n => n as usize * 250,
    };
    (0..len)
        .map(|at| (user as usize * 31 + at * 7) as u8)
        .collect()
}

impl Client {
    fn connect(shared: Arc<Shared>, at: SocketAddr) -> Self {
        let config = Config::new(1, 256, 256);
        let counts = TcpDriver::counts(&config, HONEST);
        let mut driver = TcpDriver::new(config, &counts, Options::default()).expect("it works");
        let large = driver.allocate(LARGE).expect("there is room");
        let fill = |bytes: &mut [u8]| bytes.copy_from_slice(&data(15));
        driver.with_buffer(large, fill).expect("not in flight");
        let segment = driver.segment(large, 0..LARGE).expect("all of it");
        let uri = format!("tcp://{at}/");
        let private = HONEST_WORD;
        let open = SessionOpen { uri: &uri, private };
        let dial = |n: usize| {
            let options = ConnectOptions {
                dual_stream: n.is_multiple_of(2),
                own_nexus: true,
                ..ConnectOptions::new(n as u64)
            };
            driver.connect(at, &open, &options).expect("there is room")
        };
        let connections = (0..HONEST).map(dial).collect();
        Self {
            driver,
            shared,
            connections,
            up: 0,
            closed: 0,
            next: 0,
            asked: Vec::new(),
            segment,
        }
    }

    fn run(mut self) {
        while self.closed < HONEST {
            let wait = Some(Duration::from_millis(5));
            self.driver.poll(wait).expect("an event queue");
            while let Some(event) = self.driver.next_event() {
                self.event(event);
            }
            let oldest = self.asked.iter().map(|asked| asked.begun).min();
            if let Some(begun) = oldest {
                let waits = begun.elapsed();
                assert!(waits < Duration::from_secs(30), "no answer in {waits:?}");
            }
            if self.shared.leave.load(Ordering::Acquire) && self.asked.is_empty() {
                for connection in std::mem::take(&mut self.connections) {
                    self.driver.close(connection).expect("it is open");
                }
            }
        }
        let _ = self.driver.poll(Some(Duration::ZERO));
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Established { message, .. } => {
                if let Some(task) = message {
                    self.driver.release(task).expect("it is ours");
                }
                self.up += 1;
                if self.up == HONEST {
                    for n in 0..HONEST * WINDOW as usize {
                        self.ask(self.connections[n % HONEST]);
                    }
                }
            }
            Event::Response {
                task,
                user,
                connection_user,
                data,
                ..
            } => {
                self.check(user, data);
                self.driver.release(task).expect("it is ours");
                if !self.shared.leave.load(Ordering::Acquire) {
                    self.ask(self.connections[connection_user as usize]);
                }
            }
            Event::Closed { .. } => self.closed += 1,
            Event::BuffersReturned { .. }
            | Event::SessionClosed { .. }
            | Event::Writable { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn check(&mut self, user: u64, answer: Data) {
        let mut bytes = Vec::<u8>::new();
        self.driver.with_data(answer, |piece| bytes.extend(piece));
        let mut sent = data(user);
        if sent.len() > 8000 {
            sent = sum(&sent).to_vec();
        }
        assert!(bytes == sent, "the answer to {user} is another's");
        let at = self.asked.iter().position(|asked| asked.user == user);
        let asked = self.asked.swap_remove(at.expect("answered once"));
        let took = asked.begun.elapsed().as_micros() as u64;
        self.shared.longest.fetch_max(took, Ordering::AcqRel);
        self.shared.honest.fetch_add(1, Ordering::AcqRel);
    }

    fn ask(&mut self, connection: ConnectionId) {
        let user = self.next;
        self.next += 1;
        let options = RequestOptions::default();
        let bytes = data(user);
        let sent = if bytes.len() == LARGE {
            let large = [self.segment];
            let message = Message {
                data: &large,
                user,
                ..Message::default()
            };
            self.driver.send(connection, &message, &options)
        } else {
            let slot = self.driver.reserve_slot(connection).expect("a slot");
            let fill = |room: &mut [u8]| room[..bytes.len()].copy_from_slice(&bytes);
            self.driver.with_slot(slot, fill).expect("reserved");
            let message = Message {
                slot: Some(slot),
                slot_data: bytes.len() as u32,
                user,
                ..Message::default()
            };
            self.driver.send(connection, &message, &options)
        };
        sent.expect("it is up");
        let begun = now();
        self.asked.push(Asked { user, begun });
    }
}

/// Both ends of the honest traffic.
struct Ground {
    shared: Arc<Shared>,
    at: SocketAddr,
    server: JoinHandle<Ended>,
    client: JoinHandle<()>,
}

impl Ground {
    fn new() -> Self {
        let shared = Arc::new(Shared::default());
        let (tell, hear) = mpsc::channel();
        let server = Arc::clone(&shared);
        let server = thread::spawn(move || Server::new(server).run(&tell));
        let at = hear.recv().expect("the server is up");
        let client = Arc::clone(&shared);
        let client = thread::spawn(move || Client::connect(client, at).run());
        Self {
            shared,
            at,
            server,
            client,
        }
    }

    fn honest(&self) -> u64 {
        self.shared.honest.load(Ordering::Acquire)
    }

    /// Nobody of the two has panicked; if one has, its words are this side's.
    fn look(&self) {
        let ended = self.server.is_finished() || self.client.is_finished();
        assert!(!ended, "server or client is over before its time");
    }

    /// Round trips a second while there are so many.
    fn rate(&self, many: u64) -> f64 {
        let (begun, before) = (now(), self.honest());
        while self.honest() < before + many {
            self.look();
            thread::park_timeout(Duration::from_millis(1));
        }
        (self.honest() - before) as f64 / begun.elapsed().as_secs_f64()
    }

    /// The crowd acts until the server took so many frames.
    fn besiege(&self, plan: &Plan) -> (Said, [u64; 2]) {
        let mut crowd = Crowd::new(self.at, CROWD, plan.seed);
        let taken = || self.shared.taken.load(Ordering::Acquire);
        let (until, mut settled) = (taken() + plan.frames, 0);
        let (mut most, mut turns) = (0, 0_u32);
        while taken() < until {
            if !crowd.turn() {
                thread::yield_now();
            }
            turns += 1;
            if turns.is_multiple_of(256) {
                self.look();
                let now = resident();
                most = now.max(most);
                if settled == 0 && until - taken() < plan.frames / 10 * 9 {
                    (settled, most) = (now, now);
                }
            }
        }
        (crowd.said(), [settled, most])
    }

    /// Waits until the server says that all is as it was, or panics.
    fn wait(&self, what: &AtomicBool) {
        let begun = now();
        while !what.load(Ordering::Acquire) {
            let waits = begun.elapsed();
            assert!(waits < Duration::from_secs(30), "not back in {waits:?}");
            thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// Lets a crowd of hostile peers at a server that honest clients use.
///
/// # Panics
/// When a side does, an honest client gets no answer or a wrong one, or the server does not come
/// back to what it was.
pub fn run(plan: &Plan) -> Outcome {
    let ground = Ground::new();
    // Until all are connected, and caches are warm.
    ground.rate(plan.alone / 10 + 1);
    let before = ground.rate(plan.alone);
    let (begun, honest) = (now(), ground.honest());
    let taken = ground.shared.taken.load(Ordering::Acquire);
    ground.shared.longest.store(0, Ordering::Release);
    let (said, [settled, most]) = ground.besiege(plan);
    let elapsed = begun.elapsed();
    let honest = ground.honest() - honest;
    let taken = ground.shared.taken.load(Ordering::Acquire) - taken;
    let longest = ground.shared.longest.load(Ordering::Acquire);
    let after = ground.rate(plan.alone);
    ground.shared.leave.store(true, Ordering::Release);
    ground.shared.quiet.store(true, Ordering::Release);
    ground.wait(&ground.shared.back);
    ground.shared.stop.store(true, Ordering::Release);
    let Ground { server, client, .. } = ground;
    client.join().expect("the honest clients are well");
    let ended = server.join().expect("the server is well");
    Outcome {
        said,
        taken,
        messages: ended.messages,
        violations: ended.violations,
        strays: ended.stats.strays,
        accepted: ended.stats.accepted,
        honest,
        rate: honest as f64 / elapsed.as_secs_f64(),
        rate_alone: [before, after],
        longest: Duration::from_micros(longest),
        resident: [settled, most, resident()],
        elapsed,
    }
}
