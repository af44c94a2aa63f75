//! One conversation for every wire: each message says in its header what its receiver is to do
//! with it, and both sides write down what they heard.

use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, Data, Event, FreeRows, Instant, Message,
    RequestOptions, Segment, SessionId, SessionOpen, SlotId, Slots, Span, TaskId,
};

use crate::pair::{Pair, SERVER, Side};
use crate::stream_pair::StreamPair;

/// Two endpoints and what is between them.
pub trait World {
    /// The two sides: 0 connects, 1 listens.
    fn sides(&mut self) -> &mut [Side; 2];
    /// The time.
    fn now(&self) -> Instant;
    /// The time, to change.
    fn clock(&mut self) -> &mut Instant;
    /// Lets everything happen that needs no time.
    fn run(&mut self);
    /// Moves time to the next deadline; false when there is none.
    fn advance(&mut self) -> bool;
    /// Lets the second side listen.
    fn listen(&mut self, user: u64);
}

macro_rules! world {
    ($($wire:ty),*) => {$(
        impl World for $wire {
            fn sides(&mut self) -> &mut [Side; 2] {
                &mut self.sides
            }
            fn now(&self) -> Instant {
                self.now
            }
            fn clock(&mut self) -> &mut Instant {
                &mut self.now
            }
            fn run(&mut self) {
                Self::run(self);
            }
            fn advance(&mut self) -> bool {
                Self::advance(self)
            }
            fn listen(&mut self, user: u64) {
                Self::listen(self, user);
            }
        }
    )*};
}
world!(Pair, StreamPair);

/// What the receiver of a message does about a payload that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Gives memory at once.
    Provide = 0,
    /// Refuses it.
    Refuse = 1,
    /// Lets the deadline pass.
    Ignore = 2,
}

/// Status that a refusing receiver gives.
pub const REFUSED: u32 = 77;

/// A message of the conversation.
#[derive(Clone, Copy, Debug)]
pub struct Say {
    /// Its number, which comes back with its outcome.
    pub user: u64,
    /// Without answer.
    pub one_way: bool,
    /// Data in the slot.
    pub inline: usize,
    /// Data in memory.
    pub gathered: usize,
    /// Room for the answer's data; 0 offers none.
    pub room: usize,
    /// Bytes of data in the answer.
    pub reply: usize,
    /// What the receiver does about a payload.
    pub payload: Payload,
    /// A receipt is asked.
    pub receipt: bool,
    /// Data goes outside the frame even if it would fit.
    pub force_read: bool,
    /// The answer's data comes outside the frame even if it would fit.
    pub force_write: bool,
    /// The outcome comes by then.
    pub deadline: Option<Instant>,
    /// It may be taken twice.
    pub idempotent: bool,
}

impl Say {
    /// A small request with a small answer.
    pub const fn request(user: u64) -> Self {
        Self {
            user,
            one_way: false,
            inline: 20,
            gathered: 0,
            room: 0,
            reply: 30,
            payload: Payload::Provide,
            receipt: false,
            force_read: false,
            force_write: false,
            deadline: None,
            idempotent: false,
        }
    }
    /// A small one-way message.
    pub const fn one_way(user: u64) -> Self {
        Self {
            one_way: true,
            ..Self::request(user)
        }
    }
    fn len(&self) -> usize {
        self.inline + self.gathered
    }
}

const HEADER: usize = 21;

/// The byte at a place of a message's data.
pub fn byte(user: u64, at: usize) -> u8 {
    (user as usize * 31 + at * 7 + at / 251) as u8
}

/// Both users.
#[derive(Debug, Default)]
pub struct Talk {
    /// What each side heard, in order.
    pub heard: [Vec<String>; 2],
    /// Their connections.
    pub connections: [Option<ConnectionId>; 2],
    /// How often each was asked for a session, and was told of a connection of its own that is up.
    pub asked: [usize; 2],
    /// As `asked`: connects that came to something.
    pub established: [usize; 2],
    /// Received messages are kept, in order of arrival, instead of answered and released.
    pub keep: [bool; 2],
    /// Those that were kept, with the header.
    pub kept: [Vec<(TaskId, Vec<u8>)>; 2],
    /// Messages whose payload waits for an answer that the test gives.
    pub waiting: [Vec<(TaskId, u64)>; 2],
    used: [usize; 2],
}

impl Talk {
    /// Opens the conversation: the listener must be there.
    pub fn open(world: &mut impl World, dual: bool) -> Self {
        let mut talk = Self::default();
        let client = Self::dial(world, dual);
        talk.connections[0] = Some(client);
        talk.settle(world);
        assert!(talk.connections[1].is_some(), "{:?}", talk.heard);
        talk
    }

    /// Starts a connection.
    pub fn dial(world: &mut impl World, dual: bool) -> ConnectionId {
        let mut options = ConnectOptions::new(60);
        options.dual_stream = dual;
        Self::dial_with(world, &options)
    }

    /// Starts a connection with options of its own.
    pub fn dial_with(world: &mut impl World, options: &ConnectOptions) -> ConnectionId {
        Self::dial_from(world, 0, options).expect("room")
    }

    /// As [`dial_with`](Self::dial_with), from either side.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn dial_from(
        world: &mut impl World,
        i: usize,
        options: &ConnectOptions,
    ) -> Result<ConnectionId, CommandError> {
        let now = world.now();
        let side = &mut world.sides()[i];
        let open = SessionOpen {
            uri: "tcp://10.0.0.2:7000/res",
            private: b"hello",
        };
        let peer = SERVER.parse().expect("an address");
        let transport = side.transport;
        side.endpoint
            .connect(now, transport, peer, &open, options, &mut side.slots)
    }

    /// Lets both users react until nothing happens any more.
    pub fn settle(&mut self, world: &mut impl World) {
        loop {
            world.run();
            let mut quiet = true;
            for i in 0..2 {
                while let Some(event) = world.sides()[i].events.pop_front() {
                    quiet = false;
                    self.on_event(world, i, event);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Lets time pass until nothing waits for it.
    pub fn outlive(&mut self, world: &mut impl World) {
        self.settle(world);
        while world.advance() {
            self.settle(world);
        }
    }

    /// Lets time pass until both sides have heard so many things.
    pub fn until(&mut self, world: &mut impl World, heard: [usize; 2]) {
        self.settle(world);
        while (0..2).any(|i| self.heard[i].len() < heard[i]) {
            assert!(world.advance(), "nothing more happens: {:#?}", self.heard);
            self.settle(world);
        }
    }

    /// Closes from one side and waits until all is over.
    pub fn close(&mut self, world: &mut impl World, i: usize) {
        let now = world.now();
        let connection = self.connections[i].expect("open");
        world.sides()[i]
            .endpoint
            .close(now, connection)
            .expect("known");
        self.outlive(world);
    }

    fn memory(&mut self, side: &mut Side, i: usize, len: usize) -> usize {
        let at = self.used[i];
        self.used[i] += len;
        if side.memory.len() < self.used[i] {
            side.memory.resize(self.used[i], 0);
        }
        at
    }

    /// Memory of a side in two unequal parts.
    pub fn segments(&mut self, side: &mut Side, i: usize, len: usize) -> Vec<Segment> {
        let at = self.memory(side, i, len + 64);
        let first = len / 3 + 1;
        if len < 2 {
            return vec![side.segment(at, len)];
        }
        vec![
            side.segment(at, first),
            side.segment(at + first + 9, len - first),
        ]
    }

    fn fill(side: &mut Side, segments: &[Segment], user: u64, mut from: usize) {
        for s in segments {
            let at = (s.addr - Side::BASE) as usize;
            for k in 0..s.len as usize {
                side.memory[at + k] = byte(user, from + k);
            }
            from += s.len as usize;
        }
    }

    /// Sends a message; its outcome is heard later.
    pub fn say(&mut self, world: &mut impl World, i: usize, say: &Say) -> TaskId {
        self.try_say(world, i, say).expect("taken")
    }

    /// Sends a message, if it is taken.
    ///
    /// # Errors
    /// Why it is not.
    pub fn try_say(
        &mut self,
        world: &mut impl World,
        i: usize,
        say: &Say,
    ) -> Result<TaskId, CommandError> {
        let connection = self.connections[i].expect("open");
        let side = &mut world.sides()[i];
        let slot = side.endpoint.reserve_slot(connection)?;
        let at = side.endpoint.config().headroom();
        let mut header = Vec::from(say.user.to_be_bytes());
        header.extend((say.reply as u32).to_be_bytes());
        header.extend((say.len() as u64).to_be_bytes());
        header.push(say.payload as u8);
        let inline = (0..say.inline).map(|k| byte(say.user, k));
        let bytes: Vec<u8> = header.into_iter().chain(inline).collect();
        side.slots.slot_mut(slot)[at..at + bytes.len()].copy_from_slice(&bytes);
        let data = match say.gathered {
            0 => Vec::new(),
            len => self.segments(side, i, len),
        };
        Self::fill(side, &data, say.user, say.inline);
        let into = match say.room {
            0 => Vec::new(),
            len => self.segments(side, i, len),
        };
        let message = Message {
            prompt: false,
            slot: Some(slot),
            header_len: HEADER as u16,
            slot_data: say.inline as u32,
            data: &data,
            user: say.user,
        };
        let options = RequestOptions {
            into: &into,
            receipt: say.receipt,
            force_read: say.force_read,
            force_write: say.force_write,
            deadline: say.deadline,
            idempotent: say.idempotent,
            ..RequestOptions::default()
        };
        let endpoint = &mut side.endpoint;
        let taken = if say.one_way {
            endpoint.send_one_way(connection, &message, &options)
        } else {
            endpoint.send(connection, &message, &options)
        };
        if taken.is_err() {
            endpoint.return_slot(slot).expect("still ours");
        }
        taken
    }

    fn check(side: &Side, data: Data, user: u64) -> usize {
        let mut bytes = Vec::new();
        match data {
            Data::Slot(span) => bytes.extend_from_slice(side.bytes(span)),
            Data::Segments(span) => {
                for s in side.endpoint.segments(span) {
                    let at = (s.addr - Side::BASE) as usize;
                    bytes.extend_from_slice(&side.memory[at..at + s.len as usize]);
                }
            }
        }
        for (at, got) in bytes.iter().enumerate() {
            assert_eq!(
                *got,
                byte(user, at),
                "byte {at} of {} of message {user}",
                bytes.len()
            );
        }
        bytes.len()
    }

    fn note(&mut self, i: usize, text: String) {
        self.heard[i].push(text);
    }

    fn welcome(world: &mut impl World, i: usize, session: SessionId, private: Span) {
        let now = world.now();
        let side = &mut world.sides()[i];
        assert_eq!(side.bytes(private), b"hello");
        let endpoint = &mut side.endpoint;
        let accepted = endpoint.accept(now, session, 70, &[], b"welcome", &mut side.slots);
        accepted.expect("room");
    }

    /// Private data that came with an answer.
    fn release(world: &mut impl World, i: usize, message: Option<TaskId>) {
        if let Some(message) = message {
            world.sides()[i].endpoint.release(message).expect("held");
        }
    }

    fn on_event(&mut self, world: &mut impl World, i: usize, event: Event) {
        if let Some(text) = outcome(&event) {
            self.note(i, text);
        }
        match event {
            Event::SessionRequest {
                session, private, ..
            } => {
                self.asked[i] += 1;
                Self::welcome(world, i, session, private);
            }
            Event::Established {
                connection,
                message,
                ..
            } => {
                self.connections[i] = Some(connection);
                self.established[i] += 1;
                Self::release(world, i, message);
            }
            Event::Reconnected {
                message,
                attempts,
                restarted,
                ..
            } => {
                let to = if restarted { ", to another life" } else { "" };
                self.note(i, format!("reconnected after {attempts}{to}"));
                Self::release(world, i, message);
            }
            Event::PayloadWaiting {
                task, header, len, ..
            } => {
                self.on_waiting(world, i, task, header, len);
            }
            Event::Request {
                task, header, data, ..
            } => {
                let (user, reply, len) = self.received(world, i, header, data);
                self.note(i, format!("request {user}: {len} bytes"));
                self.answer(world, i, task, user, reply);
            }
            Event::OneWay {
                task, header, data, ..
            } => {
                let (user, _, len) = self.received(world, i, header, data);
                self.note(i, format!("one-way {user}: {len} bytes"));
                if self.keep[i] {
                    self.kept[i].push((task, Vec::new()));
                } else {
                    world.sides()[i].endpoint.release(task).expect("held");
                }
            }
            Event::Response {
                task,
                user,
                header,
                data,
                ..
            } => {
                assert_eq!(world.sides()[i].bytes(header), b"answer");
                self.on_response(world, i, task, user, data);
            }
            Event::Closed { connection, .. } if self.connections[i] == Some(connection) => {
                self.connections[i] = None;
            }
            _ => {}
        }
    }

    fn on_response(
        &mut self,
        world: &mut impl World,
        i: usize,
        task: TaskId,
        user: u64,
        data: Data,
    ) {
        let side = &mut world.sides()[i];
        let len = Self::check(side, data, user + 1000);
        side.endpoint.release(task).expect("held");
        let in_slot = matches!(data, Data::Slot(_));
        let place = if in_slot { "slot" } else { "memory" };
        self.note(i, format!("response {user}: {len} bytes in {place}"));
    }

    fn header(world: &mut impl World, i: usize, header: Span) -> (u64, usize, usize, u8) {
        let bytes = world.sides()[i].bytes(header).to_vec();
        assert_eq!(bytes.len(), HEADER);
        let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        (
            word(0),
            (word(4) & 0xffff_ffff) as usize,
            word(12) as usize,
            bytes[20],
        )
    }

    fn received(
        &mut self,
        world: &mut impl World,
        i: usize,
        header: Span,
        data: Data,
    ) -> (u64, usize, usize) {
        let (user, reply, len, _) = Self::header(world, i, header);
        let got = Self::check(&world.sides()[i], data, user);
        assert_eq!(got, len, "length of message {user}");
        (user, reply, len)
    }

    fn on_waiting(
        &mut self,
        world: &mut impl World,
        i: usize,
        task: TaskId,
        header: Span,
        len: u64,
    ) {
        if self.keep[i] {
            self.waiting[i].push((task, len));
            return;
        }
        if world.sides()[i].bytes(header) == b"answer" {
            // An answer's: its receiver has use for it.
            self.provide(world, i, task, len);
            return;
        }
        let (user, _, _, payload) = Self::header(world, i, header);
        self.note(i, format!("payload {user}: {len} bytes"));
        match payload {
            0 => self.provide(world, i, task, len),
            1 => in_time(world.sides()[i].endpoint.refuse(task, REFUSED)),
            _ => {}
        }
    }

    /// Gives memory for a payload.
    pub fn provide(&mut self, world: &mut impl World, i: usize, task: TaskId, len: u64) {
        let side = &mut world.sides()[i];
        let room = self.segments(side, i, len as usize);
        in_time(side.endpoint.provide(task, &room));
    }

    /// Answers a received request.
    pub fn answer(
        &mut self,
        world: &mut impl World,
        i: usize,
        task: TaskId,
        user: u64,
        reply: usize,
    ) {
        if self.keep[i] {
            self.kept[i].push((task, kept(user, reply)));
            return;
        }
        let side = &mut world.sides()[i];
        let reserved = match self.connections[i] {
            Some(connection) => side.endpoint.reserve_slot(connection),
            None => Err(CommandError::Unknown),
        };
        let slot = match reserved {
            Ok(slot) => slot,
            Err(CommandError::Unknown) => {
                side.endpoint.release(task).expect("held");
                return;
            }
            Err(CommandError::Full(_)) => {
                self.kept[i].push((task, kept(user, reply)));
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let at = side.endpoint.config().headroom();
        let (copied, gathered) = if reply <= 100 { (reply, 0) } else { (0, reply) };
        let data = (0..copied).map(|k| byte(user + 1000, k));
        let bytes: Vec<u8> = b"answer".iter().copied().chain(data).collect();
        side.slots.slot_mut(slot)[at..at + bytes.len()].copy_from_slice(&bytes);
        let segments = match gathered {
            0 => Vec::new(),
            len => self.segments(side, i, len),
        };
        Self::fill(side, &segments, user + 1000, 0);
        let message = Message {
            prompt: false,
            slot: Some(SlotId(slot.0)),
            header_len: 6,
            slot_data: copied as u32,
            data: &segments,
            user: user + 5000,
        };
        match side.endpoint.respond(task, &message) {
            Ok(()) => {}
            Err(CommandError::Closed(_)) => {
                // Too late: the request is only given back.
                side.endpoint.return_slot(slot).expect("still ours");
                side.endpoint.release(task).expect("held");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Gives back or answers what was kept.
    pub fn let_go(&mut self, world: &mut impl World, i: usize) {
        self.keep[i] = false;
        for (task, len) in std::mem::take(&mut self.waiting[i]) {
            self.provide(world, i, task, len);
        }
        for (task, header) in std::mem::take(&mut self.kept[i]) {
            if header.is_empty() || self.connections[i].is_none() {
                world.sides()[i].endpoint.release(task).expect("held");
            } else {
                let word =
                    |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("8 bytes"));
                self.answer(world, i, task, word(0), word(8) as usize);
            }
        }
        self.settle(world);
    }

    /// What a side heard that begins so.
    pub fn count(&self, i: usize, start: &str) -> usize {
        self.heard[i]
            .iter()
            .filter(|text| text.starts_with(start))
            .count()
    }

    /// Forgets what was heard, and where memory was used.
    pub fn clear(&mut self) {
        self.heard = [Vec::new(), Vec::new()];
        self.used = [0; 2];
    }
}

/// What is free on both sides.
pub fn free_rows(world: &mut impl World) -> [FreeRows; 2] {
    let sides = world.sides();
    [sides[0].endpoint.free_rows(), sides[1].endpoint.free_rows()]
}

/// A payload may have waited too long, or its connection is over.
fn in_time(answered: Result<(), CommandError>) {
    match answered {
        Ok(()) | Err(CommandError::Unknown | CommandError::WrongState(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// What is remembered of a request that is answered later.
fn kept(user: u64, reply: usize) -> Vec<u8> {
    let mut header = Vec::from(user.to_be_bytes());
    header.extend((reply as u64).to_be_bytes());
    header
}

/// An event that nothing is done about but to write it down.
fn outcome(event: &Event) -> Option<String> {
    Some(match event {
        Event::Sent { user, .. } => format!("sent {user}"),
        Event::Delivered { user, receipt, .. } => format!("delivered {user}: {receipt:?}"),
        Event::Failed {
            user,
            failure,
            buffers_returned,
            ..
        } => {
            let held = if *buffers_returned {
                ""
            } else {
                ", buffers held"
            };
            format!("failed {user}: {failure:?}{held}")
        }
        Event::TimedOut {
            user,
            buffers_returned,
            ..
        } => format!("timed out {user}, buffers back {buffers_returned}"),
        Event::Cancelled {
            user,
            buffers_returned,
            ..
        } => format!("cancelled {user}, buffers back {buffers_returned}"),
        Event::BuffersReturned { user, .. } => format!("buffers of {user}"),
        Event::Closed {
            reason, unanswered, ..
        } => format!("closed {reason:?}, {unanswered} unanswered"),
        Event::Reconnecting { reason, .. } => format!("reconnecting: {reason:?}"),
        Event::CancelAsked { .. } => "cancel asked".into(),
        Event::SessionClosed { .. } => "session closed".into(),
        Event::ConnectFailed { reason, .. } => format!("connect failed {reason:?}"),
        _ => return None,
    })
}
