//! Role play over real queue pairs: a driver in the place of one side of a recording, and bare queue
//! pairs in the place of the other, which send what was recorded and READ and WRITE where they were
//! recorded to.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant as Clock};

use xio_proto::driver::Driver;
use xio_proto::storage::Counts;
use xio_proto::{Config, FreeRows, NexusId};

use super::args::{Program, Settings};
use super::compare::{Difference, compare};
use super::cut::{Format, cut};
use super::deviations::{Deviation, check, load};
use super::host::{config, counts};
use super::link::{Link, set};
use super::player::side_name;
use super::seated::Seated;
use super::user::User;
use crate::golden::{
    Body, Carrier, CmKind, Dialect, Event, Field, Frame, Kind, Layouts, OneSided, Payload, Place,
    Record, Section, Side, Transcript, Turn, layouts, load_all, named, turn,
};

/// A peer with nothing but queue pairs. Links are counted as they come to be; errors are words.
#[allow(clippy::missing_errors_doc, reason = "said above, for all of them")]
pub trait Bare {
    /// Listens there, and takes who comes.
    fn listen(&mut self, at: SocketAddr) -> Result<(), String>;
    /// Connects.
    fn connect(&mut self, to: SocketAddr) -> Result<(), String>;
    /// Takes what came; whether there was anything.
    fn poll(&mut self) -> Result<bool, String>;
    /// Whether a link is up.
    fn is_up(&self, link: usize) -> bool;
    /// Sends a frame, and waits until it has arrived.
    fn send(&mut self, link: usize, bytes: &[u8]) -> Result<(), String>;
    /// The next frame that came.
    fn received(&mut self, link: usize) -> Option<Vec<u8>>;
    /// New memory with these bytes: its address and key.
    fn memory(&mut self, bytes: &[u8]) -> Result<(u64, u32), String>;
    /// What is at an address of it.
    fn content(&self, addr: u64, len: usize) -> Result<Vec<u8>, String>;
    /// WRITEs bytes to an address of the peer's with a key.
    fn write(&mut self, link: usize, to: (u64, u32), bytes: &[u8]) -> Result<(), String>;
    /// READs from there.
    fn read(&mut self, link: usize, from: (u64, u32), len: usize) -> Result<Vec<u8>, String>;
    /// Ends a link.
    fn disconnect(&mut self, link: usize);
}

/// Makes [`Bare`] of a type that has the methods of it.
#[macro_export]
macro_rules! bare_peer {
    ($name:ident, $of:ty) => {
        struct $name($of);

        impl $crate::roleplay::Bare for $name {
            fn listen(&mut self, at: ::std::net::SocketAddr) -> Result<(), String> {
                self.0.listen(at)
            }
            fn connect(&mut self, to: ::std::net::SocketAddr) -> Result<(), String> {
                self.0.connect(to)
            }
            fn poll(&mut self) -> Result<bool, String> {
                self.0.poll()
            }
            fn is_up(&self, link: usize) -> bool {
                self.0.is_up(link)
            }
            fn send(&mut self, link: usize, bytes: &[u8]) -> Result<(), String> {
                self.0.send(link, bytes)
            }
            fn received(&mut self, link: usize) -> Option<Vec<u8>> {
                self.0.received(link)
            }
            fn memory(&mut self, bytes: &[u8]) -> Result<(u64, u32), String> {
                self.0.memory(bytes)
            }
            fn content(&self, addr: u64, len: usize) -> Result<Vec<u8>, String> {
                self.0.content(addr, len)
            }
            fn write(&mut self, link: usize, to: (u64, u32), bytes: &[u8]) -> Result<(), String> {
                self.0.write(link, to, bytes)
            }
            fn read(
                &mut self,
                link: usize,
                from: (u64, u32),
                len: usize,
            ) -> Result<Vec<u8>, String> {
                self.0.read(link, from, len)
            }
            fn disconnect(&mut self, link: usize) {
                self.0.disconnect(link);
            }
        }
    };
}

/// Memory of the bare peer that stands for recorded memory.
struct Stand {
    recorded: u64,
    len: u64,
    addr: u64,
}

/// Memory of the driver's that a frame named.
struct Offer {
    addr: u64,
    len: u64,
    key: u32,
}

/// A transport connection.
struct Pipe {
    link: Link,
    stands: Vec<Stand>,
    offers: Vec<Offer>,
    /// What our WRITEs must have left in the peer's memory before the next frame.
    written: Vec<(u64, Vec<u8>)>,
    /// What the peer's READs found.
    peer_reads: VecDeque<Vec<u8>>,
}

struct QueuePlayer<'a, D, P> {
    side: Side,
    transcript: &'a Transcript,
    format: Format<'a>,
    seat: Seated<D>,
    user: User,
    bare: P,
    /// Where the recorded client connects to, one after the other.
    to: VecDeque<SocketAddr>,
    pipes: Vec<Pipe>,
    /// What our side's recorded READs fetched: record, address, bytes.
    fetched: Vec<(u32, u64, Payload)>,
    free: FreeRows,
    differences: Vec<Deviation>,
}

/// How long to wait for what must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Plays a side of a recording of queue pairs through a driver. What differs from the recording.
///
/// The recorded addresses are used as they are, so one play at a time has them. Time passes as it
/// does, so recordings in which nothing happens for long are not for this.
///
/// # Errors
/// What made it impossible to go on.
pub fn play_queues<D: Driver, P: Bare>(
    transcript: &Transcript,
    side: Side,
    layouts: &Layouts,
    driver: impl FnOnce(Config, &Counts) -> D,
    bare: P,
) -> Result<Vec<Deviation>, String> {
    let (client, servers) = Program::of(transcript)?;
    let settings: &Settings = match side {
        Side::Client => &client.settings,
        Side::Server => &servers[0].settings,
    };
    let config = config(settings);
    let counts = counts(&config);
    let urls: Vec<SocketAddr> = servers
        .iter()
        .map(|s| address(&s.url))
        .collect::<Result<_, _>>()?;
    let seat = Seated(driver(config, &counts));
    let mut player = QueuePlayer {
        side,
        transcript,
        format: Format {
            dialect: transcript.dialect,
            stream: transcript.stream,
            layouts,
        },
        free: seat.look(|e| e.free_rows()),
        seat,
        user: match side {
            Side::Client => User::client(client, servers),
            Side::Server => User::server(client, servers),
        },
        bare,
        to: urls.iter().copied().collect(),
        pipes: Vec::new(),
        fetched: fetched(transcript, side),
        differences: Vec::new(),
    };
    let named = |number, what: String| {
        let (name, side) = (&transcript.name, side_name(side));
        format!("{name} as {side} on queue pairs, record {number}: {what}")
    };
    player.begin(&urls).map_err(|what| named(0, what))?;
    for record in &transcript.records {
        let played = player.record(record);
        played.map_err(|what| named(record.number, what))?;
    }
    player.finish().map_err(|what| named(u32::MAX, what))?;
    Ok(player.differences)
}

/// Recordings in which time passes, a peer is killed, or memory lies at an address of the user's
/// choice.
const NOT_HERE: [&str; 3] = ["rdma-keepalive", "rdma-cancel", "rdma-direct"];

/// Plays both sides of all recordings of queue pairs that can be played through a driver. How many
/// recordings they were.
///
/// # Errors
/// What could not be played, and what differs otherwise than through the core alone.
pub fn play_all_queues<D: Driver, P: Bare>(
    driver: impl Fn(Config, &Counts) -> D,
    bare: impl Fn() -> P,
) -> Result<usize, String> {
    let layouts = layouts()?;
    let (mut seen, mut failed, mut played) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    for transcript in load_all()? {
        let name = transcript.name.as_str();
        if transcript.dialect != Dialect::Rdma || NOT_HERE.contains(&name) {
            continue;
        }
        for side in [Side::Client, Side::Server] {
            match play_queues(&transcript, side, &layouts, &driver, bare()) {
                Ok(differences) => seen.extend(differences),
                Err(what) => failed.push(what),
            }
        }
        played.insert(transcript.name.clone());
    }
    let listed = load()?.into_iter().map(|(one, _)| one);
    let listed = listed
        .filter(|one| played.contains(&one.transcript))
        .collect();
    let verdict = check(&seen, &listed);
    if failed.is_empty() && verdict.is_ok() {
        return Ok(played.len());
    }
    let verdict = verdict.err().unwrap_or_default();
    Err(format!("not played:\n{}\n{verdict}", failed.join("\n")))
}

fn address(url: &str) -> Result<SocketAddr, String> {
    let (_, rest) = url.split_once("://").ok_or("a url without a scheme")?;
    let at = rest.split('/').next().unwrap_or(rest);
    at.parse().map_err(|error| format!("{at}: {error}"))
}

/// What the recorded READs of a side brought: the record that posted each, from where, and what.
fn fetched(transcript: &Transcript, of: Side) -> Vec<(u32, u64, Payload)> {
    let (mut posted, mut all) = (VecDeque::new(), Vec::new());
    for record in &transcript.records {
        match &record.event {
            Event::ReadPosted { side, work } if *side == of => {
                posted.push_back((record.number, work));
            }
            Event::ReadDone { side, qp, payload } if *side == of => {
                let at = posted.iter().position(|(_, work)| work.posted.qp == *qp);
                if let Some((number, work)) = at.and_then(|at| posted.remove(at)) {
                    all.push((number, work.raddr, payload.clone()));
                }
            }
            _ => {}
        }
    }
    all
}

impl<D: Driver, P: Bare> QueuePlayer<'_, D, P> {
    fn begin(&mut self, servers: &[SocketAddr]) -> Result<(), String> {
        if self.side == Side::Client {
            for server in servers {
                self.bare.listen(*server)?;
            }
        }
        self.user.start(&mut self.seat)?;
        self.settle()
    }

    /// Lets everything happen until nothing does for a while.
    fn settle(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        while quiet < 4 {
            quiet = if self.turn()? { 0 } else { quiet + 1 };
        }
        Ok(())
    }

    /// One look around on both sides; whether anything happened.
    fn turn(&mut self) -> Result<bool, String> {
        let polled = self.seat.poll(Some(Duration::from_micros(500)));
        let mut any = polled.map_err(|error| error.to_string())?;
        while let Some(event) = self.seat.next_event() {
            self.user.event(&mut self.seat, event)?;
            any = true;
        }
        while self.bare.poll()? {
            any = true;
        }
        for at in 0..self.pipes.len() {
            while let Some(bytes) = self.bare.received(at) {
                any = true;
                let frame = cut(self.format, self.side, &bytes, &[])?;
                self.pipes[at].offer(&frame);
                if frame.kind != Kind::CreditNop {
                    let sent = super::link::Sent::Frame(frame);
                    self.pipes[at].link.sent.push_back(sent);
                }
            }
        }
        Ok(any)
    }

    /// Looks around until something is so.
    #[expect(clippy::disallowed_methods, reason = "what hangs must end")]
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), String> {
        let until = Clock::now() + PATIENCE;
        while !is_so(self) {
            self.turn()?;
            if Clock::now() > until {
                return Err(format!("{what} does not happen"));
            }
        }
        Ok(())
    }

    fn record(&mut self, record: &Record) -> Result<(), String> {
        let turn = turn(&record.event, self.side);
        match (turn, &record.event) {
            (_, Event::CreateQp { side, attrs }) => self.queue_pair(*side, attrs.qp),
            (Some(Turn::Input), Event::Cm { kind, .. }) => self.manager(*kind),
            (Some(Turn::Input), Event::Frame(frame)) => self.take(record.number, frame),
            (Some(Turn::Input), Event::Write { work, payload, .. }) => {
                let (at, to) = self.offered(work)?;
                self.bare.write(at, to, &payload.bytes())
            }
            (Some(Turn::Output), Event::Frame(frame)) => self.expect(record.number, frame),
            (Some(Turn::Output), Event::Write { work, payload, .. }) => {
                let pipe = self.ours(work.posted.qp)?;
                let stand = pipe.stand(work.raddr, work.len.into());
                let addr = stand.ok_or("a WRITE to memory that was not named")?;
                pipe.written.push((addr, payload.bytes()));
                Ok(())
            }
            (None, Event::ReadPosted { work, .. }) => {
                let (at, from) = self.offered(work)?;
                let bytes = self.bare.read(at, from, work.len as usize)?;
                self.pipes[at].peer_reads.push_back(bytes);
                Ok(())
            }
            (None, Event::ReadDone { qp, payload, .. }) => {
                let at = self.theirs(*qp)?;
                match self.pipes[at].peer_reads.pop_front() {
                    Some(bytes) if bytes == payload.bytes() => Ok(()),
                    _ => Err("the peer reads other bytes than recorded".to_owned()),
                }
            }
            (None, Event::Disconnect { side, qp }) if *side != self.side => {
                let at = self.theirs(*qp)?;
                self.bare.disconnect(at);
                self.settle()
            }
            _ => Ok(()),
        }
    }

    /// The n-th queue pair of each side is of the n-th connection.
    fn queue_pair(&mut self, side: Side, qp: u32) -> Result<(), String> {
        let is_ours = side == self.side;
        let known = |pipe: &Pipe| match is_ours {
            true => pipe.link.qp.is_some(),
            false => pipe.link.peer_qp.is_some(),
        };
        let at = self.pipes.iter().take_while(|pipe| known(pipe)).count();
        if at == self.pipes.len() {
            let number = at as u32;
            self.pipes.push(Pipe {
                link: Link::new(NexusId::new(number, 0)),
                stands: Vec::new(),
                offers: Vec::new(),
                written: Vec::new(),
                peer_reads: VecDeque::new(),
            });
        }
        let link = &mut self.pipes[at].link;
        *(if is_ours {
            &mut link.qp
        } else {
            &mut link.peer_qp
        }) = Some(qp);
        Ok(())
    }

    fn manager(&mut self, kind: CmKind) -> Result<(), String> {
        match kind {
            CmKind::ConnectRequest => {
                let to = self.to.pop_front().ok_or("nobody to connect to")?;
                self.bare.connect(to)
            }
            CmKind::Established => {
                let at = self.pipes.len().saturating_sub(1);
                self.until("a connection", |player| player.bare.is_up(at))
            }
            _ => Ok(()),
        }
    }

    fn ours(&mut self, qp: u32) -> Result<&mut Pipe, String> {
        let found = self.pipes.iter_mut().find(|pipe| pipe.link.qp == Some(qp));
        found.ok_or_else(|| format!("queue pair {qp} is unknown"))
    }

    fn theirs(&self, qp: u32) -> Result<usize, String> {
        let found = self
            .pipes
            .iter()
            .position(|pipe| pipe.link.peer_qp == Some(qp));
        found.ok_or_else(|| format!("the peer's queue pair {qp} is unknown"))
    }

    /// Memory of the driver's that the recorded peer reached.
    fn offered(&self, work: &OneSided) -> Result<(usize, (u64, u32)), String> {
        let at = self.theirs(work.posted.qp)?;
        let pipe = &self.pipes[at];
        let (raddr, len) = (work.raddr, u64::from(work.len));
        let addr = pipe
            .link
            .translate(raddr, len)
            .ok_or("memory that was not named")?;
        let inside = |o: &&Offer| o.addr <= addr && addr + len <= o.addr + o.len;
        let offer = pipe
            .offers
            .iter()
            .rev()
            .find(inside)
            .ok_or("memory without a key")?;
        Ok((at, (addr, offer.key)))
    }

    /// The recorded peer sends a frame, with memory of its own in the place of the recorded.
    fn take(&mut self, number: u32, frame: &Frame) -> Result<(), String> {
        let kind = frame.kind.name();
        let at = self.theirs(carried_by(frame)?)?;
        let told = |what: String| format!("{kind}: {what}");
        self.until("a connection", |player| player.bare.is_up(at))?;
        let mut addressed = self.pipes[at].link.addressed(frame).map_err(told)?;
        for section in &mut addressed.sections {
            if !matches!(section.name.as_str(), "in_sge" | "out_sge") {
                continue;
            }
            let (recorded, len) = (number_in(section, "addr"), number_in(section, "length"));
            let bytes = self.bytes_of(number, recorded, len as usize);
            let (addr, key) = self.bare.memory(&bytes).map_err(told)?;
            self.pipes[at].stands.push(Stand {
                recorded,
                len,
                addr,
            });
            set(section, "addr", addr);
            set(section, "rkey", key.into());
        }
        let before = self.seat.look(|e| *e.counters());
        self.bare
            .send(at, &addressed.bytes(Place::Main))
            .map_err(told)?;
        self.settle().map_err(told)?;
        let after = self.seat.look(|e| *e.counters());
        if before.violations != after.violations {
            return Err(told("breaks the protocol".to_owned()));
        }
        if before.late != after.late {
            return Err(told("is late".to_owned()));
        }
        Ok(())
    }

    /// What lies in recorded memory that a frame names: what is READ from it afterwards.
    fn bytes_of(&self, number: u32, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut found = vec![false; len];
        let later = self.fetched.iter().filter(|(record, ..)| *record > number);
        for (_, raddr, payload) in later {
            let payload = payload.bytes();
            let Some(from) = raddr.checked_sub(addr).map(|from| from as usize) else {
                continue;
            };
            // The first that is READ from there after this frame.
            if from + payload.len() <= len && !found[from] {
                bytes[from..from + payload.len()].copy_from_slice(&payload);
                found[from..from + payload.len()].fill(true);
            }
        }
        bytes
    }

    /// A frame that the recorded side sent at this point.
    fn expect(&mut self, number: u32, recorded: &Frame) -> Result<(), String> {
        if recorded.kind == Kind::CreditNop {
            return Ok(());
        }
        let kind = recorded.kind.name();
        let qp = carried_by(recorded)?;
        if self.ours(qp)?.link.sent.is_empty() {
            self.settle()?;
        }
        if self.ours(qp)?.link.sent.is_empty() {
            self.user.act(&mut self.seat)?;
            self.settle()?;
        }
        let pipe = self.ours(qp)?;
        let ours = match pipe.link.sent.pop_front() {
            Some(super::link::Sent::Frame(ours)) if ours.kind == recorded.kind => ours,
            Some(super::link::Sent::Frame(ours)) => {
                return Err(format!("ours is {}, recorded is {kind}", ours.kind.name()));
            }
            _ => {
                let missing = Difference {
                    field: "frame".to_owned(),
                    recorded: kind.to_owned(),
                    ours: "-".to_owned(),
                };
                self.differs(format!("{number} {kind}"), missing);
                return Ok(());
            }
        };
        pipe.link.learn(recorded, &ours);
        for difference in compare(recorded, &ours) {
            self.differs(format!("{number} {kind}"), difference);
        }
        let written = std::mem::take(&mut self.ours(qp)?.written);
        for (addr, bytes) in written {
            if self.bare.content(addr, bytes.len())? != bytes {
                return Err(format!("{} bytes were WRITTEN otherwise", bytes.len()));
            }
        }
        Ok(())
    }

    fn differs(&mut self, frame: String, difference: Difference) {
        let transcript = self.transcript.name.clone();
        self.differences.push(Deviation {
            transcript,
            frame,
            difference,
        });
    }

    /// The recording is over: the transport connections go, and everything must be back then.
    fn finish(&mut self) -> Result<(), String> {
        self.settle()?;
        for at in 0..self.pipes.len() {
            while let Some(sent) = self.pipes[at].link.sent.pop_front() {
                let ours = match sent {
                    super::link::Sent::Frame(frame) => frame.kind.name(),
                    super::link::Sent::Write(..) => "WRITE",
                };
                let extra = Difference {
                    field: "frame".to_owned(),
                    recorded: "-".to_owned(),
                    ours: ours.to_owned(),
                };
                self.differs("end".to_owned(), extra);
            }
            self.bare.disconnect(at);
        }
        self.settle()?;
        let free = self.free;
        let back = |player: &Self| player.seat.look(|e| e.free_rows()) == free;
        let early = self.until("the return of everything", back);
        self.user.finish(&mut self.seat)?;
        if early.is_err() {
            self.until("the return of everything", back)?;
        }
        Ok(())
    }
}

impl Pipe {
    /// Remembers memory that a frame of the driver's names, with its keys.
    fn offer(&mut self, frame: &Frame) {
        let fields = named(&frame.sections);
        let value = |path: &str| {
            let found = fields.iter().find(|f| f.path == path);
            found.and_then(|f| f.field).map_or(0, |f| f.number())
        };
        for field in &fields {
            if let Some(list) = field.path.strip_suffix(".addr") {
                self.offers.push(Offer {
                    addr: value(&field.path),
                    len: value(&format!("{list}.length")),
                    key: value(&format!("{list}.rkey")) as u32,
                });
            }
        }
    }

    /// The bare peer's address for a recorded one.
    fn stand(&self, recorded: u64, len: u64) -> Option<u64> {
        let inside = |s: &&Stand| s.recorded <= recorded && recorded + len <= s.recorded + s.len;
        let stand = self.stands.iter().rev().find(inside)?;
        Some(stand.addr + (recorded - stand.recorded))
    }
}

/// The number in a field of a section; 0 without such a field.
fn number_in(section: &Section, name: &str) -> u64 {
    match &section.body {
        Body::Fields(fields) => fields
            .iter()
            .find(|field| field.name == name)
            .map_or(0, Field::number),
        Body::Bytes(_) => 0,
    }
}

/// The queue pair that carried a recorded frame.
fn carried_by(frame: &Frame) -> Result<u32, String> {
    match &frame.carrier {
        Carrier::Send { posted, .. } => Ok(posted.qp),
        Carrier::Socket { .. } => Err("a frame on a socket".to_owned()),
    }
}
