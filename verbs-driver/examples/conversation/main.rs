//! A conversation between two drivers over real queue pairs: sizes from nothing to many mebibytes
//! both ways, every byte compared, everything returned.
//!
//! `conversation serve IP:PORT` serves one peer of another make instead.
//!
//! `conversation wakes|soak|cycles|crowd SERVER-IP CLIENT-IP COUNT` (`soak-shared` and
//! `crowd-shared` with one receive queue for all) and `conversation faults
//! [NAME]` are trials of other kinds; `wakes` may be told after how many milliseconds a round trip
//! is a stall. `conversation direct SERVER-IP CLIENT-IP` WRITEs and READs in memory of the peer.
//!
//! `conversation SERVER-IP CLIENT-IP [LARGEST]` runs on any machine with RDMA; `cargo xtask vm
//! verbs` runs it on soft-RoCE.
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

mod crowd;
mod direct;
mod faults;
mod load;
mod serve;
mod server;
mod side;
mod trials;

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use side::{Side, Wish, fill, is_filled};
use xio_proto::{ConnectOptions, ConnectionId, Data, Event, ListenOptions, Reason, SessionOpen};
use xio_verbs::{DeviceChoice, Driver, Options, Spin};

/// Sizes of requests and responses, as long as the largest allows.
const SIZES: [usize; 9] = [0, 1, 64, 4096, 8192, 8193, 64 << 10, 1 << 20, 64 << 20];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conversation: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or_else(|| format!("{what} is missing"));
    let first = next("the server's address")?;
    if first == "serve" {
        return serve::serve(next("the address")?.parse()?);
    }
    if first == "wishes" {
        return faults::wishes(next("the address")?.parse()?);
    }
    if first == "ask" {
        let client = next("the client's address")?.parse()?;
        let server = next("the server's address")?.parse()?;
        return trials::ask(client, server, next("how many")?.parse()?);
    }
    if first == "stages" {
        let ip = next("the device's address")?.parse()?;
        return trials::stages(ip, &next("the device's name")?);
    }
    if first == "direct" {
        let server = next("the server's address")?.parse()?;
        return direct::direct(server, next("the client's address")?.parse()?);
    }
    if first == "faults" {
        return faults::faults(args.next().as_deref());
    }
    if let "wakes" | "soak" | "soak-shared" | "cycles" | "crowd" | "crowd-shared" = &*first {
        let server = next("the server's address")?.parse()?;
        let client = next("the client's address")?.parse()?;
        let count = next("how many")?.parse()?;
        return match &*first {
            "wakes" => {
                let stall = args.next().map(|text| text.parse()).transpose()?;
                trials::wakes(server, client, count, stall.map(Duration::from_millis))
            }
            "soak" => trials::soak(server, client, count, false),
            "soak-shared" => trials::soak(server, client, count, true),
            "crowd" => crowd::crowd(server, client, count, false),
            "crowd-shared" => crowd::crowd(server, client, count, true),
            _ => trials::cycles(server, client, count),
        };
    }
    let server: IpAddr = first.parse()?;
    let client: IpAddr = next("the client's address")?.parse()?;
    let largest = next("").map_or(Ok(1 << 20), |text| text.parse())?;
    let start = Instant::now();
    let sizes: Vec<usize> = SIZES.into_iter().filter(|&size| size <= largest).collect();
    let wishes: Vec<Wish> = sizes
        .iter()
        .flat_map(|&size| {
            [
                Wish::new(size, 0),
                Wish::new(0, size),
                Wish::new(size, size),
            ]
        })
        .collect();
    let count = wishes.len();
    let mut talk = Talk::new(server, client, wishes)?;
    talk.run()?;
    talk.check()?;
    println!(
        "conversation: {client} to {server}: {count} requests of up to {largest} bytes each way, {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Both ends, and how far they are.
struct Talk {
    server: Side,
    client: Side,
    connection: ConnectionId,
    wishes: Vec<Wish>,
    /// The next request.
    at: usize,
    /// What is out, by its user value.
    out: HashMap<u64, Wish>,
    answered: usize,
    closed: u32,
}

impl Talk {
    fn new(
        server_ip: IpAddr,
        client_ip: IpAddr,
        wishes: Vec<Wish>,
    ) -> Result<Self, Box<dyn Error>> {
        let options = |ip| Options {
            device: DeviceChoice::Address(ip),
            spin: Spin::Never,
            ..Options::default()
        };
        let mut server = Side::new(0, &options(server_ip))?;
        let mut client = Side::new(1, &options(client_ip))?;
        let listen = ListenOptions {
            user: 0,
            backlog: 16,
        };
        let listener = server.driver.listen((server_ip, 0).into(), &listen)?;
        let peer = server
            .driver
            .listening(listener)
            .ok_or("the listener is not bound")?;
        println!(
            "conversation: {} listens on {peer}",
            server.driver.device().name
        );
        let uri = format!("rdma://{peer}/conversation");
        let (uri, private) = (&*uri, &b"private"[..]);
        let mut connect = ConnectOptions::new(1);
        connect.local = Some(SocketAddr::new(client_ip, 0));
        let connection = client
            .driver
            .connect(peer, &SessionOpen { uri, private }, &connect)?;
        Ok(Self {
            server,
            client,
            connection,
            wishes,
            at: 0,
            out: HashMap::new(),
            answered: 0,
            closed: 0,
        })
    }

    fn run(&mut self) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + Duration::from_secs(120);
        while self.closed < 2 {
            while let Some(event) = self.server.driver.next_event() {
                if let Event::Closed {
                    reason, unanswered, ..
                } = event
                {
                    check(reason == Reason::PeerClosed, || {
                        format!("server closed: {reason}")
                    })?;
                    check(unanswered == 0, || {
                        format!("{unanswered} requests unanswered")
                    })?;
                    self.closed += 1;
                }
                self.server.serve(event)?;
            }
            while let Some(event) = self.client.driver.next_event() {
                self.hear(event)?;
            }
            for side in [&mut self.server, &mut self.client] {
                side.driver.poll(Some(Duration::ZERO))?;
            }
            check(Instant::now() < until, || {
                format!("stuck: {:?} {:?}", self.server.driver, self.client.driver)
            })?;
        }
        Ok(())
    }

    /// Sends the next request; two at a time are out, so that answers meet requests.
    fn ask(&mut self) -> Result<(), Box<dyn Error>> {
        while self.out.len() < 2 && self.at < self.wishes.len() {
            let wish = self.wishes[self.at];
            let user = self.at as u64;
            let wish = self.client.ask(self.connection, wish, user)?;
            self.out.insert(user, wish);
            self.at += 1;
        }
        if self.answered == self.wishes.len() {
            self.client.driver.close(self.connection)?;
        }
        Ok(())
    }

    fn hear(&mut self, event: Event) -> Result<(), Box<dyn Error>> {
        match event {
            Event::Established { message, .. } => {
                if let Some(message) = message {
                    self.client.driver.release(message)?;
                }
                self.ask()
            }
            Event::Response {
                task,
                user,
                header,
                data,
                buffers_returned,
                ..
            } => {
                let wish = self.out.remove(&user).ok_or("an answer to nothing")?;
                self.answered += 1;
                self.client.driver.with_span(header, |bytes| {
                    check(Wish::read(bytes) == Some(wish), || "another header".into())
                })?;
                self.client.compare(data, wish.answer, user)?;
                self.client.driver.release(task)?;
                if buffers_returned {
                    self.client.give_up(user)?;
                }
                self.ask()
            }
            Event::BuffersReturned { user, .. } => Ok(self.client.give_up(user)?),
            Event::Closed { reason, .. } => {
                self.closed += 1;
                check(reason == Reason::Closed, || {
                    format!("client closed: {reason}")
                })
            }
            Event::SessionClosed { .. } => Ok(()),
            other => Err(format!("the client heard {other:?}").into()),
        }
    }

    /// All is back, and nothing had to be sent twice for lack of a receive.
    fn check(&mut self) -> Result<(), Box<dyn Error>> {
        check(self.answered == self.wishes.len(), || {
            format!("{} answers", self.answered)
        })?;
        for (name, side) in [("server", &mut self.server), ("client", &mut self.client)] {
            let (lent, kept) = (side.driver.in_flight(), side.kept());
            check(lent == 0 && kept == 0, || {
                format!("{name}: {lent} lent, {kept} buffers kept")
            })?;
            println!("conversation: {name} {:?}", side.driver.stats());
        }
        Ok(())
    }
}

fn check(is_well: bool, what: impl FnOnce() -> String) -> Result<(), Box<dyn Error>> {
    if is_well { Ok(()) } else { Err(what().into()) }
}

impl Side {
    /// Compares what came with what was to come.
    fn compare(&mut self, data: Data, len: usize, seed: u64) -> Result<(), Box<dyn Error>> {
        check(data.len() == len as u64, || {
            format!("{} bytes, not {len}", data.len())
        })?;
        let (mut at, mut is_right) = (0, true);
        self.driver.with_data(data, |piece| {
            is_right &= is_filled(piece, at, seed);
            at += piece.len();
        });
        check(is_right && at == len, || {
            format!("{len} bytes are not those that were sent")
        })
    }

    /// Answers requests as they ask for it.
    fn serve(&mut self, event: Event) -> Result<(), Box<dyn Error>> {
        match event {
            Event::SessionRequest {
                session, private, ..
            } => {
                self.driver.with_span(private, |bytes| {
                    check(bytes == b"private", || format!("private data {bytes:?}"))
                })?;
                self.driver.accept(session, 2, &[], b"welcome")?;
            }
            Event::PayloadWaiting { task, len, .. } => {
                let segment = self.buffer(task.to_bits(), usize::try_from(len)?)?;
                self.driver.provide(task, &[segment])?;
            }
            Event::Request {
                task, header, data, ..
            } => {
                let wish = self
                    .driver
                    .with_span(header, Wish::read)
                    .ok_or("no header")?;
                self.compare(data, wish.request, wish.seed)?;
                self.give_up(task.to_bits())?;
                self.answer(task, wish)?;
            }
            Event::Sent {
                user,
                buffers_returned: true,
                ..
            }
            | Event::BuffersReturned { user, .. } => self.give_up(user)?,
            Event::Sent { .. }
            | Event::Established { .. }
            | Event::Closed { .. }
            | Event::SessionClosed { .. } => {}
            other => return Err(format!("the server heard {other:?}").into()),
        }
        Ok(())
    }

    /// A buffer with the bytes to be sent.
    fn filled(
        &mut self,
        key: u64,
        len: usize,
        seed: u64,
    ) -> Result<xio_proto::Segment, Box<dyn Error>> {
        let segment = self.buffer(key, len)?;
        let buffer = self.last();
        self.driver
            .with_buffer(buffer, |bytes| fill(&mut bytes[..len], seed))?;
        Ok(segment)
    }
}
