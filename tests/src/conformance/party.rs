//! Two endpoints and what their users do: as little as possible, written down.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use xio_proto::driver::{BufferId, Driver};
use xio_proto::wire::Dialect;
use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, ConnectionPolicy, Data, Event, Failure, FreeRows,
    Instant, ListenOptions, Message, Reason, Receipt, RequestOptions, Resource, Segment,
    SessionOpen, SlotId, TaskId,
};

/// What a server does with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decide {
    /// Accepts it, with these private data.
    Accept(Vec<u8>),
    /// Rejects it, with this reason and these private data.
    Reject(u32, Vec<u8>),
    /// Sends it there.
    Redirect(String),
}

/// What a receiver does with a payload that waits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Pay {
    /// Gives memory.
    Provide,
    /// Refuses it with a status.
    Refuse(u32),
    /// Is never asked: connections take memory from the endpoint's pool, so many bytes at most.
    Pool(u64),
}

/// What a user heard; `u64`s are the messages' numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The URI and private data of a session that was asked for.
    Session(Vec<u8>, Vec<u8>),
    /// Private data of a connection that is there.
    Up(Vec<u8>),
    /// A connection that could not be made, with private data.
    NotMade(Reason, Vec<u8>),
    /// A request, whose data was right.
    Request(u64),
    /// A one-way message, whose data was right.
    OneWay(u64),
    /// An answer, whose data was right.
    Response(u64),
    /// A receipt.
    Delivered(u64, Receipt),
    /// The end of a one-way message or an answer.
    Sent(u64),
    /// A message that failed.
    Failed(u64, Failure),
    /// A message's deadline passed.
    TimedOut(u64),
    /// A message was cancelled.
    Cancelled(u64),
    /// The last of a connection, with the requests that were not answered.
    Closed(Reason, u32),
    /// The last of a session.
    SessionClosed(Reason),
}

/// A message.
#[derive(Copy, Clone, Debug)]
pub struct Ask {
    /// Its number.
    pub user: u64,
    /// Bytes of data.
    pub len: usize,
    /// Bytes of data in the answer.
    pub reply: usize,
    /// No answer is wanted.
    pub one_way: bool,
    /// A receipt is.
    pub receipt: bool,
    /// The outcome comes so much later at most.
    pub deadline: Option<Duration>,
}

impl Ask {
    /// A request with data and an answer of these lengths.
    pub const fn request(user: u64, len: usize, reply: usize) -> Self {
        Self {
            user,
            len,
            reply,
            one_way: false,
            receipt: false,
            deadline: None,
        }
    }
    /// A one-way message.
    pub const fn one_way(user: u64, len: usize) -> Self {
        Self {
            one_way: true,
            ..Self::request(user, len, 0)
        }
    }
}

/// Data of message number `user`; answers count from 2^32 on.
fn pattern(user: u64, len: usize) -> impl Iterator<Item = u8> {
    let start = user.wrapping_mul(31) as usize;
    (start..start + len).map(|at| (at % 251) as u8)
}

const ANSWER: u64 = 1 << 32;
/// Bytes of data that are copied into a slot; more lies in a buffer.
const IN_SLOT: usize = 1024;

/// One user and its endpoint.
pub struct Party<D: Driver> {
    /// The endpoint.
    pub driver: D,
    /// The newest connection.
    pub connection: Option<ConnectionId>,
    /// Everything heard, oldest first.
    pub heard: Vec<Heard>,
    /// What is done with sessions, first to last; the last one for all that follow.
    pub decide: VecDeque<Decide>,
    /// What is done with payloads.
    pub pay: Pay,
    /// Requests are kept, and answered by [`answer_kept`](Self::answer_kept).
    pub keep: bool,
    kept: Vec<(TaskId, usize, u64)>,
    /// Buffers of messages that live, by task.
    buffers: HashMap<TaskId, Vec<BufferId>>,
    /// What was free at the start.
    free: FreeRows,
}

impl<D: Driver> Party<D> {
    /// A user of an endpoint on which nothing has happened.
    pub fn new(driver: D) -> Self {
        let free = driver.look(|endpoint| endpoint.free_rows());
        Self {
            driver,
            connection: None,
            heard: Vec::new(),
            decide: [Decide::Accept(Vec::new())].into(),
            pay: Pay::Provide,
            keep: false,
            kept: Vec::new(),
            buffers: HashMap::new(),
            free,
        }
    }

    /// How often something was heard.
    pub fn count(&self, what: impl Fn(&Heard) -> bool) -> usize {
        self.heard.iter().filter(|heard| what(heard)).count()
    }

    fn buffer(&mut self, user: u64, len: usize) -> (BufferId, Segment) {
        let buffer = self.driver.allocate(len).expect("memory");
        let fill = |bytes: &mut [u8]| {
            for (to, from) in bytes.iter_mut().zip(pattern(user, len)) {
                *to = from;
            }
        };
        self.driver.with_buffer(buffer, fill).expect("not lent yet");
        let segment = self.driver.segment(buffer, 0..len).expect("inside");
        (buffer, segment)
    }

    /// Writes a header of two numbers, and data if they are short.
    fn fill(&mut self, slot: SlotId, header: [u64; 2], user: u64, len: usize) {
        let write = |room: &mut [u8]| {
            room[..8].copy_from_slice(&header[0].to_be_bytes());
            room[8..16].copy_from_slice(&header[1].to_be_bytes());
            for (to, from) in room[16..].iter_mut().zip(pattern(user, len)) {
                *to = from;
            }
        };
        self.driver.with_slot(slot, write).expect("reserved");
    }

    /// Sends a message on the newest connection.
    ///
    /// # Errors
    /// As the command.
    pub fn try_ask(&mut self, ask: &Ask) -> Result<TaskId, CommandError> {
        let connection = self.connection.ok_or(CommandError::Unknown)?;
        let slot = self.driver.reserve_slot(connection)?;
        let in_slot = if ask.len <= IN_SLOT { ask.len } else { 0 };
        self.fill(slot, [ask.user, ask.reply as u64], ask.user, in_slot);
        let mut owned = Vec::new();
        let (mut data, mut into) = (Vec::new(), Vec::new());
        if in_slot < ask.len {
            let (buffer, segment) = self.buffer(ask.user, ask.len);
            owned.push(buffer);
            data.push(segment);
        }
        if ask.reply > IN_SLOT {
            let (buffer, segment) = self.buffer(0, ask.reply);
            owned.push(buffer);
            into.push(segment);
        }
        let message = Message {
            slot: Some(slot),
            header_len: 16,
            slot_data: in_slot as u32,
            data: &data,
            user: ask.user,
            ..Message::default()
        };
        let deadline = ask.deadline.map(|after| self.driver.now().after(after));
        let options = RequestOptions {
            into: &into,
            receipt: ask.receipt,
            deadline,
            ..RequestOptions::default()
        };
        let taken = if ask.one_way {
            self.driver.send_one_way(connection, &message, &options)
        } else {
            self.driver.send(connection, &message, &options)
        };
        match taken {
            Ok(task) => {
                self.buffers.insert(task, owned);
                Ok(task)
            }
            Err(error) => {
                self.driver.return_slot(slot).expect("still ours");
                for buffer in owned {
                    self.driver.free(buffer).expect("not lent");
                }
                Err(error)
            }
        }
    }

    /// As [`try_ask`](Self::try_ask), with room for it.
    pub fn ask(&mut self, ask: &Ask) -> TaskId {
        self.try_ask(ask).expect("room for the message")
    }

    fn answer(&mut self, task: TaskId, len: usize, user: u64) {
        let slot = match self.driver.reserve_answer_slot(task) {
            Ok(slot) => slot,
            // It has its share of them: a `Writable` says when there is another one.
            Err(CommandError::Full(Resource::SendSlots)) => {
                self.kept.push((task, len, user));
                return;
            }
            Err(other) => panic!("{other:?}"),
        };
        let in_slot = if len <= IN_SLOT { len } else { 0 };
        self.fill(slot, [user, 0], user + ANSWER, in_slot);
        let mut data = Vec::new();
        if in_slot < len {
            let (buffer, segment) = self.buffer(user + ANSWER, len);
            self.buffers.entry(task).or_default().push(buffer);
            data.push(segment);
        }
        let message = Message {
            slot: Some(slot),
            header_len: 16,
            slot_data: in_slot as u32,
            data: &data,
            user,
            ..Message::default()
        };
        match self.driver.respond(task, &message) {
            Ok(()) => {}
            Err(CommandError::Closed(_)) => {
                self.driver.return_slot(slot).expect("still ours");
                self.driver.release(task).expect("ours");
                self.free_buffers(task);
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Answers the requests that were kept, as far as there are slots.
    pub fn answer_kept(&mut self) {
        for (task, len, user) in std::mem::take(&mut self.kept) {
            self.answer(task, len, user);
        }
    }

    fn free_buffers(&mut self, task: TaskId) {
        for buffer in self.buffers.remove(&task).unwrap_or_default() {
            self.driver.free(buffer).expect("back with its message");
        }
    }

    fn header(&mut self, span: xio_proto::Span) -> (u64, usize) {
        self.driver.with_span(span, |bytes| {
            let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8"));
            (number(0), number(8) as usize)
        })
    }

    fn verify(&mut self, data: Data, user: u64) {
        let mut want = pattern(user, data.len() as usize);
        self.driver.with_data(data, |piece| {
            assert!(
                piece.iter().all(|b| want.next() == Some(*b)),
                "data of {user}"
            );
        });
        assert_eq!(want.next(), None, "all data of {user}");
    }

    fn bytes(&mut self, span: xio_proto::Span) -> Vec<u8> {
        self.driver.with_span(span, <[u8]>::to_vec)
    }

    fn session(&mut self, session: xio_proto::SessionId) {
        let next = if self.decide.len() > 1 {
            self.decide.pop_front()
        } else {
            self.decide.front().cloned()
        };
        match next.expect("a decision") {
            Decide::Accept(private) => {
                let connection = self.driver.accept(session, 1, &[], &private);
                let connection = connection.expect("accepts");
                self.connection = Some(connection);
                if let Pay::Pool(most) = self.pay {
                    let policy = ConnectionPolicy::pool(most);
                    self.driver.set_policy(connection, policy).expect("there");
                }
            }
            Decide::Reject(reason, private) => {
                let done = self.driver.reject(session, reason, &private);
                done.expect("rejects");
            }
            Decide::Redirect(portal) => {
                let done = self.driver.redirect(session, &[portal.as_bytes()]);
                done.expect("redirects");
            }
        }
    }

    fn waiting(&mut self, task: TaskId, len: u64) {
        match self.pay {
            Pay::Pool(_) => panic!("asked for {len} bytes, with a pool"),
            Pay::Refuse(status) => self.driver.refuse(task, status).expect("waits"),
            Pay::Provide => {
                let (buffer, segment) = self.buffer(0, len as usize);
                self.driver.provide(task, &[segment]).expect("waits");
                self.buffers.entry(task).or_default().push(buffer);
            }
        }
    }

    fn event(&mut self, event: Event) {
        let heard = match event {
            Event::SessionRequest {
                session,
                uri,
                private,
                ..
            } => {
                let heard = Heard::Session(self.bytes(uri), self.bytes(private));
                self.session(session);
                heard
            }
            Event::Established {
                connection,
                message,
                private,
                ..
            } => {
                self.connection = Some(connection);
                let private = self.bytes(private);
                if let Some(task) = message {
                    self.driver.release(task).expect("ours");
                }
                Heard::Up(private)
            }
            Event::ConnectFailed {
                reason,
                message,
                private,
                ..
            } => {
                let private = self.bytes(private);
                if let Some(task) = message {
                    self.driver.release(task).expect("ours");
                }
                Heard::NotMade(reason, private)
            }
            Event::PayloadWaiting { task, len, .. } => {
                self.waiting(task, len);
                return;
            }
            Event::Closed {
                reason, unanswered, ..
            } => Heard::Closed(reason, unanswered),
            Event::SessionClosed { reason, .. } => Heard::SessionClosed(reason),
            other => return self.message(other),
        };
        self.heard.push(heard);
    }

    fn message(&mut self, event: Event) {
        let heard = match event {
            Event::Request {
                task, header, data, ..
            } => {
                let (user, reply) = self.header(header);
                self.verify(data, user);
                self.free_buffers(task);
                if self.keep || !self.kept.is_empty() {
                    self.kept.push((task, reply, user));
                } else {
                    self.answer(task, reply, user);
                }
                Heard::Request(user)
            }
            Event::OneWay {
                task, header, data, ..
            } => {
                let (user, _) = self.header(header);
                self.verify(data, user);
                self.driver.release(task).expect("ours");
                self.free_buffers(task);
                Heard::OneWay(user)
            }
            Event::Response {
                task,
                user,
                header,
                data,
                buffers_returned,
                ..
            } => {
                assert_eq!(self.header(header).0, user);
                self.verify(data, user + ANSWER);
                self.driver.release(task).expect("ours");
                self.back(task, buffers_returned);
                Heard::Response(user)
            }
            other => return self.outcome(other),
        };
        self.heard.push(heard);
    }

    fn back(&mut self, task: TaskId, returned: bool) {
        if returned {
            self.free_buffers(task);
        }
    }

    fn outcome(&mut self, event: Event) {
        let (task, returned, heard) = match event {
            Event::Delivered {
                task,
                user,
                receipt,
                buffers_returned,
            } => (task, buffers_returned, Heard::Delivered(user, receipt)),
            Event::Sent {
                task,
                user,
                buffers_returned,
            } => (task, buffers_returned, Heard::Sent(user)),
            Event::Failed {
                task,
                user,
                failure,
                buffers_returned,
            } => (task, buffers_returned, Heard::Failed(user, failure)),
            Event::TimedOut {
                task,
                user,
                buffers_returned,
            } => (task, buffers_returned, Heard::TimedOut(user)),
            Event::Cancelled {
                task,
                user,
                buffers_returned,
            } => (task, buffers_returned, Heard::Cancelled(user)),
            Event::BuffersReturned { task, .. } => return self.free_buffers(task),
            Event::Writable { .. } if !self.keep => return self.answer_kept(),
            Event::Writable { .. } | Event::Portals { .. } => return,
            other => panic!("{other:?}"),
        };
        self.back(task, returned);
        self.heard.push(heard);
    }

    fn all_back(&self) -> bool {
        let now = self.driver.look(|endpoint| endpoint.free_rows());
        self.buffers.values().all(Vec::is_empty)
            && FreeRows { armed: 0, ..now }
                == FreeRows {
                    armed: 0,
                    ..self.free
                }
    }
}

/// A server that listens, and a client.
pub struct Pair<D: Driver> {
    /// The server.
    pub server: Party<D>,
    /// The client.
    pub client: Party<D>,
    /// Where the server listens.
    pub at: SocketAddr,
    /// Two streams, where there are streams.
    pub dual: bool,
}

impl<D: Driver> Pair<D> {
    /// Lets the server listen at an address (port 0: any), and knows where that is.
    pub fn new(mut server: D, client: D, address: SocketAddr, dual: bool) -> Self {
        let options = ListenOptions {
            user: 0,
            backlog: 16,
        };
        // Of what is free at the start, a listener is no part.
        let mut server = {
            let listener = server.listen(address, &options).expect("room");
            let at = server.listening(listener).expect("an address that is free");
            (Party::new(server), at)
        };
        let client = Party::new(client);
        server.0.decide = [Decide::Accept(b"from the server".to_vec())].into();
        Self {
            server: server.0,
            client,
            at: server.1,
            dual,
        }
    }

    /// Has the client ask for a session at an address, with the URI of the server's.
    pub fn dial(&mut self, at: SocketAddr) {
        let uri = format!("tcp://{}/resource", self.at);
        let open = SessionOpen {
            uri: &uri,
            private: b"from the client",
        };
        let options = ConnectOptions {
            dual_stream: self.dual,
            ..ConnectOptions::new(1)
        };
        let connection = self.client.driver.connect(at, &open, &options);
        self.client.connection = Some(connection.expect("room"));
    }

    /// Dials, and runs until both have the connection.
    pub fn open(&mut self) {
        self.dial(self.at);
        let up = |party: &Party<D>| party.heard.iter().any(|h| matches!(h, Heard::Up(_)));
        self.run("both have the connection", |p| {
            up(&p.server) && up(&p.client)
        });
    }

    /// Runs until something is so.
    ///
    /// # Panics
    /// When that takes four minutes of the driver's time: where a processor is emulated that others
    /// use as well, one is not enough for the largest messages.
    pub fn run(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let until = self.client.driver.now().after(Duration::from_secs(240));
        while !done(self) {
            let now = self.step();
            assert!(
                now < until,
                "never: {what}; server heard {:?}, client {:?}",
                self.server.heard,
                self.client.heard
            );
        }
    }

    /// Lets both take what there is.
    pub fn step(&mut self) -> Instant {
        for party in [&mut self.server, &mut self.client] {
            while let Some(event) = party.driver.next_event() {
                party.event(event);
            }
            party.driver.poll(Some(Duration::ZERO)).expect("polls");
        }
        self.client.driver.now()
    }

    /// Runs until both connections have ended and everything is back but idle transport
    /// connections.
    pub fn end(&mut self) {
        let over = |party: &Party<D>| {
            // An idle queue pair has receives posted.
            let rdma = party.driver.limits().dialect == Dialect::Rdma;
            party.count(|h| matches!(h, Heard::SessionClosed(_))) > 0
                && party.driver.look(|e| {
                    let rows = e.free_rows();
                    rows.tasks == party.free.tasks
                        && (rdma || rows.rx_slots == party.free.rx_slots)
                        && rows.connections == party.free.connections
                })
                && party.buffers.values().all(Vec::is_empty)
        };
        self.run("all is back", |p| over(&p.server) && over(&p.client));
    }

    /// Whether both have everything they began with.
    pub fn all_back(&self) -> bool {
        self.server.all_back() && self.client.all_back()
    }

    /// Closes from the client's side, and [`end`](Self::end)s.
    pub fn close(&mut self) {
        let connection = self.client.connection.expect("one");
        self.client.driver.close(connection).expect("open");
        self.end();
    }
}
