//! Users of endpoints: servers that answer, clients that ask, and both at once.
//!
//! Folder map: `parcel` (messages made and taken apart), `react` (what is done about what the
//! endpoint tells), `event` (its events, one by one).

mod event;
mod parcel;
mod react;

use std::collections::VecDeque;
use std::net::SocketAddr;

use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, ListenOptions, RequestOptions, Segment, SessionId,
    SessionOpen, TaskId, TransportId,
};

use crate::check::{Check, Class, Fact};
use crate::driver::{Core, Desk, Over};
use crate::memory::{Buffer, Rights};
use crate::rng::Rng;
use crate::slab::Slab;
use crate::trace::{Act, Object};
use parcel::Parcel;

/// Who ends a connection, and when.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Closing {
    /// The client, when all its messages have ended.
    Client,
    /// The server, when the client has sent all and heard all; the client says so.
    Server,
    /// Both, at the same time.
    Both,
    /// The client, with messages still out.
    Early,
    /// The client, without a word.
    Abort,
}

/// A connection that a client makes.
#[derive(Copy, Clone, Debug)]
pub struct Errand {
    /// Where to.
    pub peer: SocketAddr,
    /// What over.
    pub over: Over,
    /// When, in nanoseconds.
    pub at: u64,
    /// Requests and one-ways to send.
    pub messages: u32,
    /// Requests and one-ways that the server is to send back.
    pub back: u16,
    /// How many may be out at once.
    pub depth: u32,
    /// Its own transport connection.
    pub own: bool,
    /// How it ends.
    pub closing: Closing,
}

/// How messages look; chances are in parts of a million.
#[derive(Copy, Clone, Debug)]
pub struct Mix {
    /// One-ways among messages.
    pub one_way: u32,
    /// Receipts among one-ways.
    pub receipt: u32,
    /// Bytes of application header behind the 8 of the number, at most.
    pub header: u32,
    /// Bytes of small data, at most.
    pub small: u32,
    /// Large messages.
    pub large_ppm: u32,
    /// Bytes of large data, at most.
    pub large: u32,
    /// Longest time that a server thinks, in nanoseconds.
    pub think: u64,
    /// Longest pause of a sender between two messages, in nanoseconds.
    pub pace: u64,
    /// Messages with a deadline.
    pub deadline: u32,
    /// Messages that are cancelled.
    pub cancel: u32,
    /// Sessions that a server rejects.
    pub reject: u32,
    /// Requests that a server gives back without an answer.
    pub ignore: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            one_way: 200_000,
            receipt: 500_000,
            header: 48,
            small: 512,
            large_ppm: 0,
            large: 0,
            think: 0,
            pace: 0,
            deadline: 0,
            cancel: 0,
            reject: 0,
            ignore: 0,
        }
    }
}

/// One connection as its user sees it.
#[derive(Debug)]
struct Line {
    id: Option<ConnectionId>,
    side: u32,
    established: bool,
    /// No more commands make sense.
    over: bool,
    closing_asked: bool,
    left: u32,
    out: u32,
    depth: u32,
    closing: Closing,
    /// Requests and one-ways of this side that have no outcome.
    own_out: u32,
    /// Something was refused for lack of room; `Writable` will come.
    blocked: bool,
    /// The next message goes no earlier, in nanoseconds.
    next_at: u64,
    /// Server: closes when the client has said its last and everything is answered.
    closes: bool,
    /// The peer sends requests of its own.
    peer_sends: bool,
    /// The peer has said its last.
    peer_done: bool,
}

/// Buffers of a message on its way.
#[derive(Debug)]
struct Cargo {
    line: u32,
    data: Option<Buffer>,
    into: Option<Buffer>,
}

/// A request that waits for its answer.
#[derive(Copy, Clone, Debug)]
struct Due {
    at: u64,
    task: TaskId,
    line: u32,
    request: u64,
    room: u64,
}

/// A user of one endpoint.
#[derive(Debug)]
pub struct Actor {
    rng: Rng,
    mix: Mix,
    errands: VecDeque<Errand>,
    lines: Vec<Line>,
    cargo: Slab<Cargo>,
    due: VecDeque<Due>,
    /// Messages to cancel, and when.
    cancels: Vec<(u64, TaskId)>,
    /// Sessions that could not be answered for lack of room.
    waiting: Vec<(SessionId, u32)>,
    /// Buffers given for payloads, by task index.
    provided: Vec<Option<(TaskId, Buffer)>>,
    next_turn: u64,
    /// Where it listens, and on which transports it has to again.
    address: Option<SocketAddr>,
    deaf: Vec<TransportId>,
    /// Sessions that ended.
    sessions_closed: u64,
}

const ID_BITS: u32 = 40;

impl Actor {
    /// A user that answers, and runs errands in the order of their times.
    pub fn new(rng: Rng, mix: Mix, errands: Vec<Errand>) -> Self {
        Self {
            rng,
            mix,
            errands: errands.into(),
            lines: Vec::new(),
            cargo: Slab::default(),
            due: VecDeque::new(),
            cancels: Vec::new(),
            waiting: Vec::new(),
            provided: Vec::new(),
            next_turn: u64::MAX,
            address: None,
            deaf: Vec::new(),
            sessions_closed: 0,
        }
    }

    /// True when every errand is run and every connection over.
    pub fn is_done(&self) -> bool {
        self.errands.is_empty() && self.lines.iter().all(|line| line.over)
    }
    /// Runs no more errands, and closes what is open.
    pub fn wind_up(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        self.errands.clear();
        for line in 0..self.lines.len() {
            let l = &mut self.lines[line];
            if let Some(id) = l.id.filter(|_| !l.over && !l.closing_asked) {
                l.closing_asked = true;
                if core.close(desk.now, id).is_err() {
                    self.sense(desk, format!("close of {id:?} was refused"));
                }
            }
        }
    }

    /// Listens on all transports that there are.
    ///
    /// # Panics
    /// When there is no room for a listener.
    pub fn listen(&mut self, core: &mut Core, desk: &Desk<'_>, address: SocketAddr) {
        self.address = Some(address);
        self.deaf.extend(desk.rdma);
        self.deaf.extend(desk.tcp);
        self.hear(core);
    }

    /// Listens where it does not.
    fn hear(&mut self, core: &mut Core) {
        let Some(address) = self.address else { return };
        for transport in self.deaf.drain(..) {
            let options = ListenOptions {
                user: transport.0.into(),
                backlog: 64,
            };
            if core.listen(transport, address, &options).is_err() {
                panic!("no room for a listener");
            }
        }
    }

    /// Asks for a turn.
    pub fn wake(&mut self, desk: &mut Desk<'_>, at: u64) {
        if at < self.next_turn {
            self.next_turn = at;
            desk.env
                .queue
                .push(at, crate::queue::Event::Actor(desk.number));
        }
    }

    fn open(&mut self, side: u32, errand: Option<&Errand>) -> u32 {
        self.lines.push(Line {
            id: None,
            side,
            established: false,
            over: false,
            closing_asked: false,
            left: errand.map_or(0, |errand| errand.messages),
            out: 0,
            depth: errand.map_or(8, |errand| errand.depth),
            closing: errand.map_or(Closing::Server, |errand| errand.closing),
            own_out: 0,
            blocked: false,
            next_at: 0,
            closes: false,
            peer_sends: errand.is_some_and(|errand| errand.back > 0),
            peer_done: false,
        });
        self.lines.len() as u32 - 1
    }

    fn run_errand(&mut self, core: &mut Core, desk: &mut Desk<'_>, errand: &Errand) {
        let Some(transport) = desk.transport(errand.over) else {
            let text = format!("no transport for {:?}", errand.over);
            self.sense(desk, text);
            return;
        };
        let side = 2 * desk.ledger.number_connection();
        let line = self.open(side, Some(errand));
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&side.to_le_bytes());
        bytes[4] = u8::from(matches!(errand.closing, Closing::Server | Closing::Both));
        bytes[6..].copy_from_slice(&errand.back.to_le_bytes());
        let scheme = match errand.over {
            Over::Rdma => "rdma",
            Over::TwoStreams | Over::OneStream => "tcp",
        };
        let uri = format!("{scheme}://{}/sim", errand.peer);
        let open = SessionOpen {
            uri: &uri,
            private: &bytes,
        };
        let mut options = ConnectOptions::new(line.into());
        options.own_nexus = errand.own;
        options.dual_stream = errand.over == Over::TwoStreams;
        let slots = &mut desk.env.memory[desk.number as usize];
        let opened = core.connect(desk.now, transport, errand.peer, &open, &options, slots);
        match opened {
            Ok(id) => {
                self.lines[line as usize].id = Some(id);
                let at = desk.env.now();
                desk.ledger.take(at, Fact::Opened { side });
                self.pump(core, desk, line);
            }
            Err(CommandError::Full(_)) => {
                self.lines.pop();
                let mut again = *errand;
                again.at = desk.env.now() + 10_000_000;
                self.errands.push_back(again);
                self.wake(desk, again.at);
            }
            Err(error) => {
                self.lines.pop();
                self.sense(desk, format!("connect was refused: {error}"));
            }
        }
    }

    #[cold]
    fn sense(&mut self, desk: &mut Desk<'_>, text: String) {
        let at = desk.env.now();
        let text = format!("endpoint {}: {text}", desk.number);
        desk.ledger.breach(at, Check::Sense, text);
    }

    /// Sends what may be sent, and ends what is to be ended.
    fn pump(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        loop {
            let l = &self.lines[line as usize];
            let ready = l.id.is_some() && !l.over && !l.closing_asked && !l.blocked;
            if !ready || l.left == 0 || l.own_out >= l.depth {
                break;
            }
            if l.next_at > desk.env.now() {
                let at = l.next_at;
                self.wake(desk, at);
                break;
            }
            if !self.send_next(core, desk, line) {
                break;
            }
        }
        self.maybe_close(core, desk, line);
    }

    fn maybe_close(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        let l = &self.lines[line as usize];
        let Some(id) = l.id.filter(|_| !l.over && !l.closing_asked) else {
            return;
        };
        let client = l.side & 1 == 0;
        let idle = l.left == 0 && l.out == 0 && l.established;
        let heard = l.peer_done || !l.peer_sends;
        let waits = self.due.iter().any(|due| due.line == line);
        let close = match l.closing {
            _ if !client => l.closes && idle && heard && !waits,
            Closing::Client | Closing::Both => idle && heard && !waits,
            Closing::Server => false,
            Closing::Early | Closing::Abort => l.left == 0,
        };
        if close {
            self.lines[line as usize].closing_asked = true;
            let done = if self.lines[line as usize].closing == Closing::Abort {
                core.abort(desk.now, id)
            } else {
                core.close(desk.now, id)
            };
            if done.is_err() {
                self.sense(desk, format!("close of {id:?} was refused: {done:?}"));
            }
        }
    }

    fn send_next(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) -> bool {
        let class = if !self.rng.chance(self.mix.one_way) {
            Class::Request
        } else if self.rng.chance(self.mix.receipt) {
            Class::Receipted
        } else {
            Class::OneWay
        };
        let Some(id) = self.lines[line as usize].id else {
            return false;
        };
        // The last message of a line that the server is to close says so.
        let last = self.lines[line as usize].left == 1;
        let side = self.lines[line as usize].side;
        let mut parcel = match self.pack(core, desk, id, side, class, u64::MAX, last, None) {
            Ok(parcel) => parcel,
            Err(error) => return self.refused(desk, line, error),
        };
        let mut into = [Segment::default(); 1];
        let mut offered = 0;
        if class == Class::Request && self.rng.chance(self.mix.large_ppm) {
            let rights = Rights::LOCAL_WRITE.and(Rights::REMOTE_WRITE);
            let len = self.rng.spread(1, self.mix.large.into()) as u32;
            parcel.into = desk.memory().allocate(len, rights);
            if let Some(buffer) = parcel.into {
                desk.memory().hold(buffer.lkey);
                into[0] = buffer.segment();
                offered = 1;
            }
        }
        let deadline = self.rng.chance(self.mix.deadline);
        let options = RequestOptions {
            into: &into[..offered],
            receipt: class == Class::Receipted,
            deadline: deadline.then(|| {
                let after = self.rng.spread(1_000, 20_000_000);
                desk.now.after(core::time::Duration::from_nanos(after))
            }),
            ..RequestOptions::default()
        };
        let (message, cargo) = self.load(line, &parcel);
        let sent = if class == Class::Request {
            core.send(id, &message, &options)
        } else {
            core.send_one_way(id, &message, &options)
        };
        let task = match sent {
            Ok(task) => task,
            Err(error) => {
                self.unload(core, desk, &parcel, cargo);
                return self.refused(desk, line, error);
            }
        };
        let pause = self.rng.below(self.mix.pace + 1);
        let now = desk.env.now();
        let l = &mut self.lines[line as usize];
        l.left -= 1;
        l.out += 1;
        l.own_out += 1;
        l.next_at = now + pause;
        self.taken(desk, &parcel);
        if self.rng.chance(self.mix.cancel) {
            let at = now + self.rng.spread(1, 1_000_000);
            self.cancels.push((at, task));
            self.wake(desk, at);
        }
        true
    }

    fn taken(&mut self, desk: &mut Desk<'_>, parcel: &Parcel) {
        let at = desk.env.now();
        let taken = Fact::Taken {
            message: parcel.number,
            digest: parcel.digest,
            buffers: parcel.data.is_some() || parcel.into.is_some(),
        };
        desk.ledger.take(at, taken);
        let object = Object::Actor(desk.number);
        let len = u64::from(parcel.data_len);
        desk.env
            .record(desk.number, object, Act::UserCommand, parcel.number, len);
    }

    /// What to do about a refusal. Returns false: no more for now.
    fn refused(&mut self, desk: &mut Desk<'_>, line: u32, error: CommandError) -> bool {
        match error {
            CommandError::Full(_) | CommandError::NoCredit => {
                self.lines[line as usize].blocked = true;
            }
            CommandError::Closed(_) | CommandError::Unknown => {
                self.lines[line as usize].left = 0;
            }
            other => self.sense(desk, format!("a message was refused: {other}")),
        }
        false
    }
}
