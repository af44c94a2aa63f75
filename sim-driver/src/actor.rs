//! Users of endpoints: servers that answer, clients that ask, and both at once.

use std::collections::VecDeque;
use std::net::SocketAddr;

use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, Data, Event, Failure, ListenOptions, Message,
    RequestOptions, Segment, SessionId, SessionOpen, SlotId, Slots, Span, TaskId,
};

use crate::check::{Check, Class, Digest, Fact, Outcome};
use crate::driver::{Core, Desk, User};
use crate::memory::{Buffer, Rights};
use crate::rng::Rng;
use crate::slab::Slab;
use crate::trace::{Act, Object};

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
    /// When, in nanoseconds.
    pub at: u64,
    /// Requests and one-ways to send.
    pub messages: u32,
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
    /// Requests that a server sends to its client for each one it gets.
    pub back: u32,
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
            back: 0,
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
    /// Something was refused for lack of room; `Writable` will come.
    blocked: bool,
    /// Messages to go back with.
    back: u32,
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
    /// Sessions that could not be answered for lack of room.
    waiting: Vec<(SessionId, u32)>,
    /// Buffers given for payloads, by task index.
    provided: Vec<Option<(TaskId, Buffer)>>,
    next_turn: u64,
    /// Where it listens, and whether it has to again.
    address: Option<SocketAddr>,
    deaf: bool,
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
            waiting: Vec::new(),
            provided: Vec::new(),
            next_turn: u64::MAX,
            address: None,
            deaf: false,
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

    /// Listens.
    ///
    /// # Panics
    /// When there is no room for a listener.
    pub fn listen(&mut self, core: &mut Core, desk: &Desk<'_>, address: SocketAddr) {
        self.address = Some(address);
        let options = ListenOptions {
            user: 0,
            backlog: 64,
        };
        if let Some(transport) = desk.rdma
            && core.listen(transport, address, &options).is_err()
        {
            panic!("no room for a listener");
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
            blocked: false,
            back: 0,
        });
        self.lines.len() as u32 - 1
    }

    fn run_errand(&mut self, core: &mut Core, desk: &mut Desk<'_>, errand: &Errand) {
        let Some(transport) = desk.rdma else {
            return;
        };
        let side = 2 * desk.ledger.number_connection();
        let line = self.open(side, Some(errand));
        let private = (
            side,
            errand.closing == Closing::Server || errand.closing == Closing::Both,
        );
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&private.0.to_le_bytes());
        bytes[4] = u8::from(private.1);
        let uri = format!("rdma://{}/sim", errand.peer);
        let open = SessionOpen {
            uri: &uri,
            private: &bytes,
        };
        let mut options = ConnectOptions::new(line.into());
        options.own_nexus = errand.own;
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
            if !ready || l.left == 0 || l.out >= l.depth {
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
        let close = match l.closing {
            Closing::Client | Closing::Both => client && idle,
            Closing::Server => false,
            Closing::Early | Closing::Abort => client && l.left == 0,
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
        let mut parcel = match self.pack(core, desk, id, side, class, u64::MAX, last) {
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
        let options = RequestOptions {
            into: &into[..offered],
            receipt: class == Class::Receipted,
            ..RequestOptions::default()
        };
        let (message, cargo) = self.load(line, &parcel);
        let sent = if class == Class::Request {
            core.send(id, &message, &options)
        } else {
            core.send_one_way(id, &message, &options)
        };
        if let Err(error) = sent {
            self.unload(core, desk, &parcel, cargo);
            return self.refused(desk, line, error);
        }
        let l = &mut self.lines[line as usize];
        l.left -= 1;
        l.out += 1;
        self.taken(desk, &parcel);
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

/// A message ready to be handed over.
#[derive(Debug)]
struct Parcel {
    number: u64,
    digest: u64,
    slot: SlotId,
    header_len: u16,
    slot_data: u32,
    data_len: u32,
    data: Option<Buffer>,
    into: Option<Buffer>,
    segments: [Segment; 3],
    segment_count: usize,
}

// Making and taking apart messages.
impl Actor {
    /// Bytes of a header that are there always: the number, and what the sender says.
    const HEADER: usize = 16;

    #[allow(clippy::too_many_arguments, reason = "what a message is made from")]
    fn pack(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        id: ConnectionId,
        side: u32,
        class: Class,
        room: u64,
        last: bool,
    ) -> Result<Parcel, CommandError> {
        let slot = core.reserve_slot(id)?;
        let number = desk.ledger.number_message(side, class);
        let at = core.config().headroom();
        let header_len = Self::HEADER + self.rng.below(u64::from(self.mix.header) + 1) as usize;
        let len = self.length(class, room, core.config().inline_data_max);
        let mut parcel = Parcel {
            number,
            digest: 0,
            slot,
            header_len: header_len as u16,
            slot_data: 0,
            data_len: len,
            data: None,
            into: None,
            segments: [Segment::default(); 3],
            segment_count: 0,
        };
        let filler = self.rng.next();
        let header = &mut desk.memory().slot_mut(slot)[at..at + header_len];
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[8..16].copy_from_slice(&u64::from(last).to_le_bytes());
        fill(&mut header[16..], filler);
        let mut digest = Digest::new();
        digest.update(&header[8..]);
        self.pack_data(desk, &mut parcel, at + header_len, filler, &mut digest);
        parcel.digest = digest.value();
        Ok(parcel)
    }

    fn length(&mut self, class: Class, room: u64, inline: u32) -> u32 {
        let large = self.rng.chance(self.mix.large_ppm);
        let _ = class;
        let most = if large {
            self.mix.large
        } else {
            self.mix.small.min(inline)
        };
        (self.rng.spread(0, most.into())).min(room) as u32
    }

    fn pack_data(
        &mut self,
        desk: &mut Desk<'_>,
        parcel: &mut Parcel,
        at: usize,
        filler: u64,
        digest: &mut Digest,
    ) {
        let len = parcel.data_len;
        if len == 0 {
            return;
        }
        if len > self.mix.small || self.rng.flip() {
            parcel.data = desk.memory().allocate(len, Rights::REMOTE_READ);
        }
        let Some(buffer) = parcel.data else {
            // No memory: what fits the slot is sent.
            parcel.slot_data = len.min(self.mix.small);
            parcel.data_len = parcel.slot_data;
            let slot = desk.memory().slot_mut(parcel.slot);
            let bytes = &mut slot[at..at + parcel.slot_data as usize];
            fill(bytes, filler);
            digest.update(bytes);
            return;
        };
        desk.memory().hold(buffer.lkey);
        let bytes = desk.memory().user_mut(buffer.segment());
        fill(bytes, filler);
        digest.update(bytes);
        let pieces = self.rng.range(1, 3).min(len.into()) as u32;
        let mut from = 0;
        for piece in 0..pieces {
            let most = len - from - (pieces - piece - 1);
            let take = if piece + 1 == pieces {
                most
            } else {
                self.rng.range(1, most.into()) as u32
            };
            parcel.segments[piece as usize] = buffer.part(from, take);
            from += take;
        }
        parcel.segment_count = pieces as usize;
    }

    fn load<'a>(&mut self, line: u32, parcel: &'a Parcel) -> (Message<'a>, u32) {
        let cargo = self.cargo.put(Cargo {
            line,
            data: parcel.data,
            into: parcel.into,
        });
        let message = Message {
            slot: Some(parcel.slot),
            header_len: parcel.header_len,
            slot_data: parcel.slot_data,
            data: &parcel.segments[..parcel.segment_count],
            user: u64::from(cargo + 1) << ID_BITS | parcel.number,
            ..Message::default()
        };
        (message, cargo)
    }

    /// A message was not taken: everything of it is the user's again.
    fn unload(&mut self, core: &mut Core, desk: &mut Desk<'_>, parcel: &Parcel, cargo: u32) {
        self.give_back(desk, cargo);
        if core.return_slot(parcel.slot).is_err() {
            let text = format!("slot {:?} was kept after a refusal", parcel.slot);
            self.sense(desk, text);
        }
    }

    /// Frees the buffers of a message; returns its line.
    fn give_back(&mut self, desk: &mut Desk<'_>, cargo: u32) -> Option<u32> {
        let cargo = self.cargo.take(cargo)?;
        for buffer in [cargo.data, cargo.into].into_iter().flatten() {
            desk.memory().unhold(buffer.lkey);
            desk.memory().free(buffer);
        }
        Some(cargo.line)
    }

    fn digest_of(core: &Core, desk: &Desk<'_>, header: Span, data: &Data) -> (u64, bool, u64) {
        let memory = &desk.env.memory[desk.number as usize];
        let bytes = header.of(memory.slot(SlotId(header.slot)));
        let mut digest = Digest::new();
        let word = |at: usize| {
            let mut eight = [0; 8];
            if let Some(bytes) = bytes.get(at..at + 8) {
                eight.copy_from_slice(bytes);
            }
            u64::from_le_bytes(eight)
        };
        digest.update(bytes.get(8..).unwrap_or(&[]));
        match data {
            Data::Slot(span) => digest.update(span.of(memory.slot(SlotId(span.slot)))),
            Data::Segments(span) => {
                for segment in core.segments(*span) {
                    digest.update(memory.user(segment));
                }
            }
        }
        (word(0), word(8) != 0, digest.value())
    }

    fn free_provided(&mut self, desk: &mut Desk<'_>, task: TaskId) {
        let place = self.provided.get_mut(task.index());
        if let Some(place) = place
            && place.is_some_and(|(owner, _)| owner == task)
            && let Some((_, buffer)) = place.take()
        {
            desk.memory().unhold(buffer.lkey);
            desk.memory().free(buffer);
        }
    }
}

fn fill(bytes: &mut [u8], seed: u64) {
    let mut word = seed | 1;
    for chunk in bytes.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let source = word.to_le_bytes();
        chunk.copy_from_slice(&source[..chunk.len()]);
    }
}

// What the endpoint tells.
impl Actor {
    fn session_request(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        session: SessionId,
        private: Span,
    ) {
        let memory = &desk.env.memory[desk.number as usize];
        let bytes = private.of(memory.slot(SlotId(private.slot)));
        let Some(&[a, b, c, d, closes, ..]) = bytes.first_chunk::<8>().map(|b| &b[..]) else {
            self.sense(desk, format!("private data of {} bytes", bytes.len()));
            return;
        };
        let side = u32::from_le_bytes([a, b, c, d]) ^ 1;
        let line = self.open(side, None);
        self.lines[line as usize].back = u32::from(closes);
        self.accept(core, desk, session, line);
    }

    fn accept(&mut self, core: &mut Core, desk: &mut Desk<'_>, session: SessionId, line: u32) {
        let slots = &mut desk.env.memory[desk.number as usize];
        let accepted = core.accept(desk.now, session, line.into(), &[], b"", slots);
        let at = desk.env.now();
        match accepted {
            Ok(id) => {
                let l = &mut self.lines[line as usize];
                l.id = Some(id);
                desk.ledger.take(at, Fact::Opened { side: l.side });
            }
            Err(CommandError::Full(_)) => {
                self.waiting.push((session, line));
                self.wake(desk, at + 1_000_000);
            }
            // The client is gone already.
            Err(_) => self.lines[line as usize].over = true,
        }
    }

    fn received(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        line: u32,
        task: TaskId,
        header: Span,
        data: &Data,
    ) -> u64 {
        let (message, last, digest) = Self::digest_of(core, desk, header, data);
        let side = self.lines[line as usize].side;
        let at = desk.env.now();
        let delivered = Fact::Delivered {
            message,
            side,
            digest,
        };
        desk.ledger.take(at, delivered);
        self.free_provided(desk, task);
        if last && self.lines[line as usize].back > 0 {
            // Close once the answer is out: see `ended`.
            self.lines[line as usize].left = 0;
            self.lines[line as usize].closing = Closing::Server;
            self.lines[line as usize].back = 2;
        }
        message
    }

    fn respond_later(&mut self, core: &mut Core, desk: &mut Desk<'_>, due: Due) {
        if self.mix.think == 0 && self.due.is_empty() {
            self.respond(core, desk, due);
            return;
        }
        let at = desk.env.now() + self.rng.below(self.mix.think + 1);
        self.due.push_back(Due { at, ..due });
        self.wake(desk, at);
    }

    /// Answers a request, or gives it back when that is not possible any more.
    fn respond(&mut self, core: &mut Core, desk: &mut Desk<'_>, due: Due) {
        let Some(id) = self.lines[due.line as usize].id else {
            return;
        };
        let side = self.lines[due.line as usize].side;
        let class = Class::Response(due.request);
        let room = if due.room == 0 { u64::MAX } else { due.room };
        let parcel = match self.pack(core, desk, id, side, class, room, false) {
            Ok(parcel) => parcel,
            Err(CommandError::Full(_)) => {
                self.put_off(desk, due);
                return;
            }
            Err(_) => {
                self.give_up(core, desk, due.task);
                return;
            }
        };
        let (message, cargo) = self.load(due.line, &parcel);
        match core.respond(due.task, &message) {
            Ok(()) => {
                self.lines[due.line as usize].out += 1;
                self.taken(desk, &parcel);
            }
            Err(error) => {
                self.unload(core, desk, &parcel, cargo);
                match error {
                    CommandError::Full(_) | CommandError::NoCredit => self.put_off(desk, due),
                    CommandError::TooLong { .. } => {
                        self.put_off(desk, Due { room: 1, ..due });
                    }
                    CommandError::Closed(_) => self.give_up(core, desk, due.task),
                    other => self.sense(desk, format!("an answer was refused: {other}")),
                }
            }
        }
    }

    fn put_off(&mut self, desk: &mut Desk<'_>, due: Due) {
        let at = desk.env.now() + 100_000;
        self.due.push_front(Due { at, ..due });
        self.wake(desk, at);
    }

    fn give_up(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId) {
        if let Err(error) = core.release(task) {
            self.sense(desk, format!("{task:?} could not be given back: {error}"));
        }
    }

    fn answer(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        user: u64,
        header: Span,
        data: &Data,
    ) {
        let (message, _, digest) = Self::digest_of(core, desk, header, data);
        let request = user & ((1 << ID_BITS) - 1);
        let at = desk.env.now();
        if desk.ledger.answers(message) != Some(request) {
            self.sense(
                desk,
                format!("message {message} came as the answer to {request}"),
            );
        }
        if let Some(side) = desk.ledger.receiver(message) {
            let delivered = Fact::Delivered {
                message,
                side,
                digest,
            };
            desk.ledger.take(at, delivered);
        }
        self.give_up(core, desk, task);
    }

    /// An outgoing message has its outcome.
    fn ended(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        user: u64,
        outcome: Outcome,
        returned: bool,
    ) {
        let message = user & ((1 << ID_BITS) - 1);
        let cargo = (user >> ID_BITS) as u32 - 1;
        let at = desk.env.now();
        let ended = Fact::Ended {
            message,
            outcome,
            returned,
        };
        desk.ledger.take(at, ended);
        let Some(line) = self.cargo.get(cargo).map(|cargo| cargo.line) else {
            self.sense(desk, format!("message {message} ended and was gone"));
            return;
        };
        self.lines[line as usize].out -= 1;
        if returned {
            self.free_provided(desk, task);
            self.give_back(desk, cargo);
        }
        self.server_close(core, desk, line);
        self.pump(core, desk, line);
    }

    /// A server that is to close does so once its last answer is out.
    fn server_close(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        let waits = self.due.iter().any(|due| due.line == line);
        let l = &mut self.lines[line as usize];
        if l.back == 2
            && l.out == 0
            && !waits
            && !l.over
            && !l.closing_asked
            && let Some(id) = l.id
        {
            l.closing_asked = true;
            if core.close(desk.now, id).is_err() {
                self.sense(desk, format!("close of {id:?} was refused"));
            }
        }
    }

    fn closed(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        let l = &mut self.lines[line as usize];
        l.over = true;
        let side = l.side;
        let at = desk.env.now();
        desk.ledger.take(at, Fact::Closed { side });
        // What the user still holds can no longer be answered.
        let mut due = core::mem::take(&mut self.due);
        for due in due.iter().filter(|due| due.line == line) {
            self.give_up(core, desk, due.task);
        }
        due.retain(|due| due.line != line);
        self.due = due;
    }

    fn provide(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId, len: u64) {
        let buffer = desk.memory().allocate(len as u32, Rights::LOCAL_WRITE);
        let Some(buffer) = buffer else {
            if let Err(error) = core.refuse(task, 12) {
                self.sense(desk, format!("refusal was refused: {error}"));
            }
            return;
        };
        desk.memory().hold(buffer.lkey);
        match core.provide(task, &[buffer.segment()]) {
            Ok(()) => {
                if self.provided.len() <= task.index() {
                    self.provided.resize(task.index() + 1, None);
                }
                self.provided[task.index()] = Some((task, buffer));
            }
            Err(error) => {
                desk.memory().unhold(buffer.lkey);
                desk.memory().free(buffer);
                self.sense(desk, format!("memory for a payload was refused: {error}"));
            }
        }
    }
}

fn outcome_of(failure: Failure) -> Outcome {
    match failure {
        Failure::ConnectionEnded(_) => Outcome::Unknown,
        Failure::NeverSent(_) => Outcome::NeverSent,
        _ => Outcome::Refused,
    }
}

/// A number for an event, for the trace.
fn event_number(event: &Event) -> (u64, u64) {
    match *event {
        Event::SessionRequest { user, .. } => (1, user),
        Event::Established { user, .. } => (2, user),
        Event::ConnectFailed { user, .. } => (3, user),
        Event::Request { user, .. } => (4, user),
        Event::OneWay { user, .. } => (5, user),
        Event::PayloadWaiting { user, .. } => (6, user),
        Event::Response { user, .. } => (7, user),
        Event::Delivered { user, .. } => (8, user),
        Event::Sent { user, .. } => (9, user),
        Event::Failed { user, .. } => (10, user),
        Event::TimedOut { user, .. } => (11, user),
        Event::Cancelled { user, .. } => (12, user),
        Event::BuffersReturned { user, .. } => (13, user),
        Event::Writable { user, .. } => (14, user),
        Event::Closed { user, .. } => (15, user),
        Event::SessionClosed { session, .. } => (16, session.to_bits()),
        Event::ListenFailed { user, .. } => (17, user),
        _ => (18, 0),
    }
}

impl User for Actor {
    fn sides(&self) -> Vec<u32> {
        self.lines.iter().map(|line| line.side).collect()
    }

    fn turn(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        let now = desk.env.now();
        if self.next_turn > now {
            return;
        }
        self.next_turn = u64::MAX;
        if core::mem::take(&mut self.deaf)
            && let Some(address) = self.address
        {
            self.listen(core, desk, address);
        }
        while self.errands.front().is_some_and(|errand| errand.at <= now) {
            if let Some(errand) = self.errands.pop_front() {
                self.run_errand(core, desk, &errand);
            }
        }
        for (session, line) in core::mem::take(&mut self.waiting) {
            self.accept(core, desk, session, line);
        }
        while self.due.front().is_some_and(|due| due.at <= now) {
            if let Some(due) = self.due.pop_front() {
                self.respond(core, desk, due);
            }
        }
        let next = [
            self.errands.front().map(|errand| errand.at),
            self.due.front().map(|due| due.at),
        ];
        if let Some(at) = next.into_iter().flatten().min() {
            self.wake(desk, at.max(now + 1));
        }
    }

    fn event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: Event) {
        let (kind, user) = event_number(&event);
        let object = Object::Actor(desk.number);
        desk.env
            .record(desk.number, object, Act::UserEvent, kind, user);
        let line = user as u32;
        match event {
            Event::Request {
                task,
                header,
                data,
                room,
                ..
            } => {
                let request = self.received(core, desk, line, task, header, &data);
                let due = Due {
                    at: 0,
                    task,
                    line,
                    request,
                    room,
                };
                self.respond_later(core, desk, due);
            }
            Event::OneWay {
                task, header, data, ..
            } => {
                self.received(core, desk, line, task, header, &data);
                self.give_up(core, desk, task);
                self.server_close(core, desk, line);
            }
            Event::Response {
                task,
                header,
                data,
                buffers_returned,
                ..
            } => {
                self.answer(core, desk, task, user, header, &data);
                self.ended(core, desk, task, user, Outcome::Answered, buffers_returned);
            }
            Event::Sent {
                task,
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::Sent, buffers_returned),
            Event::Delivered {
                task,
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::Receipt, buffers_returned),
            Event::Failed {
                task,
                failure,
                buffers_returned,
                ..
            } => self.ended(
                core,
                desk,
                task,
                user,
                outcome_of(failure),
                buffers_returned,
            ),
            Event::TimedOut {
                task,
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::TimedOut, buffers_returned),
            Event::Cancelled {
                task,
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::Cancelled, buffers_returned),
            Event::PayloadWaiting { task, len, .. } => self.provide(core, desk, task, len),
            Event::BuffersReturned { task, .. } => self.buffers_returned(desk, task, user),
            other => self.connection_event(core, desk, &other),
        }
    }
}

impl Actor {
    fn buffers_returned(&mut self, desk: &mut Desk<'_>, task: TaskId, user: u64) {
        self.free_provided(desk, task);
        // Of a received message there are no others.
        if user >> ID_BITS == 0 {
            return;
        }
        let message = user & ((1 << ID_BITS) - 1);
        let at = desk.env.now();
        desk.ledger.take(at, Fact::Returned { message });
        self.give_back(desk, (user >> ID_BITS) as u32 - 1);
    }

    fn connection_event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: &Event) {
        let at = desk.env.now();
        match *event {
            Event::SessionRequest {
                session, private, ..
            } => self.session_request(core, desk, session, private),
            Event::Established { user, message, .. } => {
                let line = user as u32;
                self.lines[line as usize].established = true;
                let side = self.lines[line as usize].side;
                desk.ledger.take(at, Fact::Established { side });
                if let Some(message) = message {
                    self.give_up(core, desk, message);
                }
                self.pump(core, desk, line);
            }
            Event::ConnectFailed { user, message, .. } => {
                let side = self.lines[user as usize].side;
                desk.ledger.take(at, Fact::ConnectFailed { side });
                if let Some(message) = message {
                    self.give_up(core, desk, message);
                }
            }
            Event::Writable { user, .. } => {
                self.lines[user as usize].blocked = false;
                self.pump(core, desk, user as u32);
            }
            Event::Closed { user, .. } => self.closed(core, desk, user as u32),
            Event::SessionClosed { .. } => self.sessions_closed += 1,
            Event::ListenFailed { .. } => {
                self.deaf = true;
                self.wake(desk, at + 100_000_000);
            }
            ref other => self.sense(desk, format!("an event nobody knows: {other:?}")),
        }
    }
}
