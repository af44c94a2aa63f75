//! A server that is killed and started again, while a thousand requests are out.
//!
//! `XIO_RESTARTS` says how often; 10 times without it.
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

mod common;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{driver, listen};
use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Data, Event, Failure, Message, Reconnect,
    RequestOptions, SessionOpen,
};
use xio_tcp::{Driver, Options, TcpDriver};

/// Requests that are out at once.
const OUT: u64 = 1000;

const AGAIN: Reconnect = Reconnect {
    attempts_max: 1000,
    give_up_after: None,
    first_delay: Duration::from_millis(5),
    max_delay: Duration::from_millis(100),
};

/// What a connection may take beyond the longest pause, on a machine that does other things too.
const SLACK: Duration = Duration::from_secs(5);

/// The server's process: answers each request with its life and what was asked, and writes down that
/// it did, until it is killed.
fn serve(life: u64) {
    let port = std::env::var("XIO_TEST_PORT").expect("a port");
    let log = std::env::var("XIO_TEST_LOG").expect("a file");
    let mut log = OpenOptions::new().append(true).open(log).expect("a file");
    let mut server = driver(0, Options::default());
    let (_, at) = listen(&mut server, &format!("127.0.0.1:{port}"));
    println!("PORT {}", at.port());
    loop {
        while let Some(event) = server.next_event() {
            match event {
                Event::SessionRequest { session, .. } => {
                    server.accept(session, 2, &[], b"").expect("accepts");
                }
                Event::Request { task, data, .. } => {
                    let mut bytes = life.to_be_bytes().to_vec();
                    server.with_data(data, |piece| bytes.extend_from_slice(piece));
                    log.write_all(&bytes).expect("written");
                    let slot = server.reserve_answer_slot(task).expect("a slot");
                    let written = server.with_slot(slot, |room| room[..16].copy_from_slice(&bytes));
                    written.expect("reserved");
                    let message = Message {
                        slot: Some(slot),
                        slot_data: 16,
                        ..Message::default()
                    };
                    server.respond(task, &message).expect("answers");
                }
                _ => {}
            }
        }
        server.poll(None).expect("polls");
    }
}

/// A server's process, which ends whatever happens.
struct Server {
    child: Child,
    at: SocketAddr,
    ready: Instant,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(life: u64, port: u16, log: PathBuf) -> JoinHandle<Server> {
    std::thread::spawn(move || {
        let program = std::env::current_exe().expect("a program");
        let mut child = Command::new(program)
            .args(["killed_and_started_again", "--exact", "--nocapture"])
            .env("XIO_TEST_LIFE", life.to_string())
            .env("XIO_TEST_PORT", port.to_string())
            .env("XIO_TEST_LOG", log)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let port = out.lines().find_map(|line| {
            let line = line.ok()?;
            line.split_once("PORT ")?.1.trim().parse::<u16>().ok()
        });
        let port = port.expect("it says where");
        Server {
            child,
            at: SocketAddr::from(([127, 0, 0, 1], port)),
            ready: Instant::now(),
        }
    })
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Open,
    Answered(u64),
    Unknown,
}

struct Client {
    driver: TcpDriver,
    connection: ConnectionId,
    ends: Vec<End>,
    out: u64,
    answers: u64,
    /// The server's life that answers may come from.
    life: u64,
    /// When the driver was last asked: what it tells is not older.
    asked: Instant,
    /// When the driver was asked that told of the loss, until it is there again.
    lost: Option<Instant>,
    up: bool,
    /// Attempts of the last outage, and how long that took.
    took: (u32, Duration),
    /// The second on: no more is sent.
    ends_now: bool,
    over: bool,
}

impl Client {
    fn new(at: SocketAddr) -> Self {
        let config = Config {
            queue_messages: OUT as u32,
            reconnects_per_second: 1000,
            ..Config::new(1, 256, 1600)
        };
        let counts = TcpDriver::counts(&config, 4);
        let mut driver = TcpDriver::new(config, &counts, Options::default()).expect("settings");
        let open = SessionOpen {
            uri: "tcp://127.0.0.1/test",
            private: b"",
        };
        let options = ConnectOptions {
            reconnect: Some(AGAIN),
            ..ConnectOptions::new(1)
        };
        let connection = driver.connect(at, &open, &options).expect("room");
        Self {
            driver,
            connection,
            ends: Vec::new(),
            out: 0,
            answers: 0,
            life: 0,
            asked: Instant::now(),
            lost: None,
            up: false,
            took: (0, Duration::ZERO),
            ends_now: false,
            over: false,
        }
    }

    /// Fills up to a thousand requests without an outcome.
    fn fill(&mut self) {
        while self.out < OUT && !self.ends_now {
            let user = self.ends.len() as u64;
            let slot = match self.driver.reserve_slot(self.connection) {
                Ok(slot) => slot,
                Err(CommandError::Full(_)) => return,
                Err(error) => panic!("{error}"),
            };
            let bytes = user.to_be_bytes();
            let written = self
                .driver
                .with_slot(slot, |room| room[..8].copy_from_slice(&bytes));
            written.expect("reserved");
            let message = Message {
                slot: Some(slot),
                slot_data: 8,
                user,
                ..Message::default()
            };
            let options = RequestOptions::default();
            match self.driver.send(self.connection, &message, &options) {
                Ok(_) => {}
                Err(CommandError::Full(_)) => {
                    self.driver.return_slot(slot).expect("ours");
                    return;
                }
                Err(error) => panic!("{error}"),
            }
            self.ends.push(End::Open);
            self.out += 1;
        }
    }

    fn end(&mut self, user: u64, end: End) {
        let old = std::mem::replace(&mut self.ends[user as usize], end);
        assert_eq!(old, End::Open, "a second outcome of {user}: {end:?}");
        self.out -= 1;
    }

    fn answered(&mut self, user: u64, data: Data) {
        let mut bytes = Vec::new();
        self.driver
            .with_data(data, |piece| bytes.extend_from_slice(piece));
        let (life, asked) = bytes.split_at(8);
        let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
        assert_eq!(word(asked), user);
        assert_eq!(word(life), self.life, "an answer of another life");
        self.answers += 1;
        self.end(user, End::Answered(word(life)));
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Established { .. } => self.up = true,
            Event::Reconnecting { unanswered, .. } => {
                assert_eq!(unanswered, 0);
                self.lost = Some(self.asked);
                self.up = false;
            }
            Event::Reconnected {
                connection,
                attempts,
                ..
            } => {
                assert_eq!(connection, self.connection);
                let lost = self.lost.take().expect("it was lost");
                self.took = (attempts, lost.elapsed());
                self.life += 1;
                self.up = true;
            }
            Event::Response {
                task, user, data, ..
            } => {
                self.answered(user, data);
                self.driver.release(task).expect("ours");
            }
            Event::Failed { user, failure, .. } => {
                assert!(matches!(failure, Failure::Unknown(_)), "{user}: {failure}");
                self.end(user, End::Unknown);
            }
            Event::Closed { .. } => self.over = true,
            Event::Writable { .. } | Event::SessionClosed { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn turn(&mut self) {
        while let Some(event) = self.driver.next_event() {
            self.event(event);
        }
        self.fill();
        let wait = Some(Duration::from_millis(20));
        self.asked = Instant::now();
        self.driver.poll(wait).expect("polls");
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            self.turn();
            assert!(Instant::now() < until, "{what}: {} answers", self.answers);
        }
    }
}

/// Attempts that fit a time: each waits for a half of its pause at least.
fn attempts_in(time: Duration) -> u32 {
    let pause = |attempt: u32| {
        let factor = 1u32.checked_shl(attempt).unwrap_or(u32::MAX);
        AGAIN
            .first_delay
            .saturating_mul(factor)
            .min(AGAIN.max_delay)
            / 2
    };
    let (mut attempts, mut at) = (0, Duration::ZERO);
    while at + pause(attempts) <= time {
        at += pause(attempts);
        attempts += 1;
    }
    attempts
}

#[test]
fn killed_and_started_again() {
    if let Ok(life) = std::env::var("XIO_TEST_LIFE") {
        serve(life.parse().expect("a number"));
    }
    let times = std::env::var("XIO_RESTARTS").map_or(10, |n| n.parse().expect("a number"));
    let log = std::env::temp_dir().join(format!("xio-restarts-{}", std::process::id()));
    std::fs::write(&log, b"").expect("a file");
    let mut server = start(0, 0, log.clone()).join().expect("starts");
    let port = server.at.port();
    let mut client = Client::new(server.at);
    let free_after = client.driver.endpoint().free_rows();
    client.until("connects", |client| client.up);
    let (mut attempts, mut longest, mut unanswered) = (0, Duration::ZERO, 0);
    for life in 1..=times {
        // Some way into a thousand that never end.
        let enough = client.answers + 1 + (life * 7919) % 3000;
        client.until("answers", |client| {
            client.answers >= enough && client.out >= OUT
        });
        unanswered += client.out;
        drop(server);
        let next = start(life, port, log.clone());
        while !next.is_finished() {
            client.turn();
        }
        server = next.join().expect("starts");
        client.until("is there again", |client| client.life == life);
        let bound = AGAIN.max_delay + SLACK;
        let after = server.ready.elapsed();
        assert!(after <= bound, "{after:?} after it was there");
        let (made, time) = client.took;
        assert!(made >= 1 && made <= attempts_in(time), "{made} in {time:?}");
        attempts += made;
        longest = longest.max(after);
    }
    client.ends_now = true;
    client.until("all have ended", |client| client.out == 0);
    client.driver.close(client.connection).expect("open");
    client.until("it is closed", |client| client.over);
    check(&client, &log);
    std::fs::remove_file(&log).expect("there");
    let lost = client
        .ends
        .iter()
        .filter(|end| **end == End::Unknown)
        .count();
    println!(
        "{times} restarts with {unanswered} requests out in all: {} requests, {} answered, {lost} \
         unknown, {attempts} attempts, there at most {longest:?} after the server",
        client.ends.len(),
        client.answers,
    );
    let free = client.driver.endpoint().free_rows();
    // These were taken with the connection, before.
    assert_eq!(free.tasks, free_after.tasks + 1);
    assert_eq!(free.tx_slots, free_after.tx_slots + 1);
}

/// No request was executed twice, and what was answered was executed in that life.
fn check(client: &Client, log: &PathBuf) {
    let bytes = std::fs::read(log).expect("there");
    let mut executed = vec![None; client.ends.len()];
    for entry in bytes.chunks_exact(16) {
        let (life, user) = entry.split_at(8);
        let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
        let place = &mut executed[word(user) as usize];
        assert_eq!(*place, None, "request {} was executed twice", word(user));
        *place = Some(word(life));
    }
    for (user, end) in client.ends.iter().enumerate() {
        match end {
            End::Answered(life) => assert_eq!(executed[user], Some(*life), "request {user}"),
            End::Unknown => {}
            End::Open => panic!("request {user} has no outcome"),
        }
    }
}
