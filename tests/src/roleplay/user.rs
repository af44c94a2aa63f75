//! The users of the endpoint that plays: what the recorded programs did, done to our endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use xio_proto::{
    ConnectOptions, ConnectionId, Event, ListenOptions, ListenerId, Reason, RequestOptions,
    Segment, SessionId, SessionOpen, Span, TaskId,
};

use super::args::{Ask, Mode, Program, Step, Wish, remote_memory};
use super::seat::{Content, Seat, place};
use crate::golden::Pattern;

/// The reason with which the recorded server rejects sessions.
const REJECTED: u32 = 0x4a5e_3a5e;

/// Whoever uses the endpoint.
pub(super) enum User {
    Client(Box<Client>),
    Server(Box<Server>),
}

fn told<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

fn same(what: &str, seen: &[u8], want: &[u8]) -> Result<(), String> {
    if seen == want {
        return Ok(());
    }
    let short = |bytes: &[u8]| crate::golden::quote(&bytes[..bytes.len().min(64)]);
    Err(format!("{what} is {}, not {}", short(seen), short(want)))
}

impl User {
    pub(super) fn client(program: Program, servers: Vec<Program>) -> Self {
        Self::Client(Box::new(Client {
            next: 0,
            connection: None,
            expected: BTreeMap::new(),
            answers: 0,
            last: None,
            closed: 0,
            program,
            servers,
        }))
    }

    pub(super) fn server(client: Program, programs: Vec<Program>) -> Self {
        let expected: VecDeque<(bool, Ask)> = client
            .messages()
            .map(|(request, ask)| (request, ask.clone()))
            .collect();
        Self::Server(Box::new(Server {
            listeners: Vec::new(),
            asked: 0,
            serving: 0,
            connection: None,
            expected,
            answers: 0,
            late: VecDeque::new(),
            held: Vec::new(),
            closed: 0,
            client,
            programs,
        }))
    }

    /// What the program does at once: a client connects, a server listens.
    pub(super) fn start<H: Seat>(&mut self, host: &mut H) -> Result<(), String> {
        match self {
            Self::Client(client) => client.connect(host),
            Self::Server(server) => server.listen(host),
        }
    }

    /// Takes an event.
    pub(super) fn event<H: Seat>(&mut self, host: &mut H, event: Event) -> Result<(), String> {
        match self {
            Self::Client(client) => client.event(host, event),
            Self::Server(server) => server.event(host, event),
        }
    }

    /// Does the next thing of its own accord, if there is one.
    pub(super) fn act<H: Seat>(&mut self, host: &mut H) -> Result<(), String> {
        match self {
            Self::Client(client) => client.act(host),
            Self::Server(server) => server.act(host),
        }
    }

    /// Everything is over: gives back what it still holds.
    pub(super) fn finish<H: Seat>(&mut self, host: &mut H) -> Result<(), String> {
        let (closed, sessions) = match self {
            Self::Client(client) => (client.closed, 1),
            Self::Server(server) => {
                for task in server.held.drain(..) {
                    host.release(task).map_err(told("release"))?;
                }
                host.unshare()?;
                server.got_everything()?;
                (server.closed, server.programs.len())
            }
        };
        if closed == sessions {
            Ok(())
        } else {
            Err(format!("{closed} sessions ended"))
        }
    }
}

/// What a client waits for.
#[derive(Debug)]
enum Outcome {
    /// The answer, with this header and data.
    Answer(Vec<u8>, usize),
    /// A receipt.
    Receipt,
    /// The completion.
    Sent,
    /// The completion of a READ, by which what was written before is here.
    Fetched(Segment),
    /// Whatever: the recorded peer does not do its part.
    Any,
}

pub(super) struct Client {
    program: Program,
    servers: Vec<Program>,
    next: usize,
    connection: Option<ConnectionId>,
    /// Outcomes by the messages' user values.
    expected: BTreeMap<u64, Outcome>,
    answers: usize,
    last: Option<TaskId>,
    closed: usize,
}

impl Client {
    fn connect<H: Seat>(&mut self, host: &mut H) -> Result<(), String> {
        let (_, rest) = self
            .program
            .url
            .split_once("://")
            .ok_or("a url without a scheme")?;
        let peer = rest.split('/').next().unwrap_or(rest);
        let peer = peer.parse().map_err(told("address"))?;
        let open = SessionOpen {
            uri: &self.program.url,
            private: &self.program.private,
        };
        let mut options = ConnectOptions::new(1);
        options.dual_stream = !self.program.settings.single_stream;
        let opened = host.connect(peer, &open, &options);
        self.connection = Some(opened.map_err(told("connect"))?);
        Ok(())
    }

    /// The server that decides about the session.
    fn server(&self) -> &Program {
        self.servers.last().expect("there is a server")
    }

    fn private<H: Seat>(
        &self,
        host: &mut H,
        task: Option<TaskId>,
        span: Span,
    ) -> Result<(), String> {
        if let Some(task) = task {
            same("private data", &host.text(span), &self.server().private)?;
            return host.release(task).map_err(told("release"));
        }
        same("private data", &[], &self.server().private)
    }

    fn event<H: Seat>(&mut self, host: &mut H, event: Event) -> Result<(), String> {
        match event {
            Event::Established {
                message, private, ..
            } if self.server().mode == Mode::Accept => self.private(host, message, private),
            Event::ConnectFailed {
                reason: Reason::Rejected(REJECTED),
                message,
                private,
                ..
            } if self.server().mode == Mode::Reject => self.private(host, message, private),
            Event::Response {
                task,
                user,
                header,
                data,
                ..
            } => {
                let Some(Outcome::Answer(want, len)) = self.expected.remove(&user) else {
                    return Err(format!("an answer to {user}"));
                };
                same("answer's header", &host.text(header), &want)?;
                let seen = host.seen(data)?;
                same("answer's data", &seen, &Pattern::Response.bytes(len))?;
                host.release(task).map_err(told("release"))
            }
            Event::PayloadWaiting { task, len, .. } => {
                let room = host.room(len as usize);
                host.provide(task, &[room]).map_err(told("provide"))
            }
            Event::Delivered { user, .. } => match self.expected.get(&user) {
                Some(Outcome::Answer(..)) => Ok(()),
                Some(Outcome::Receipt) => self.done(user),
                other => Err(format!("a receipt of {user}, expected {other:?}")),
            },
            Event::Sent { user, .. } => match self.expected.get(&user) {
                Some(Outcome::Sent) => self.done(user),
                Some(&Outcome::Fetched(segment)) => {
                    let len = segment.len as usize;
                    let seen = host.reached(segment)?;
                    same("memory of the peer", &seen, &Pattern::Direct.bytes(len))?;
                    self.done(user)
                }
                other => Err(format!("completion of {user}, expected {other:?}")),
            },
            Event::Failed { user, .. } | Event::Cancelled { user, .. } => {
                match self.expected.get(&user) {
                    Some(Outcome::Any) => self.done(user),
                    other => Err(format!("{user} failed, expected {other:?}")),
                }
            }
            Event::Portals { .. } | Event::BuffersReturned { .. } | Event::Closed { .. } => Ok(()),
            Event::SessionClosed { .. } => {
                self.closed += 1;
                Ok(())
            }
            other => Err(format!("unexpected {other:?}")),
        }
    }

    fn done(&mut self, user: u64) -> Result<(), String> {
        self.expected.remove(&user);
        Ok(())
    }

    fn act<H: Seat>(&mut self, host: &mut H) -> Result<(), String> {
        let steps = &self.program.steps;
        while steps.get(self.next) == Some(&Step::Sleep) {
            self.next += 1;
        }
        let Some(step) = steps.get(self.next).cloned() else {
            return Ok(());
        };
        if let Some(user) = self.awaited() {
            return Err(format!("step {} has no outcome yet", user + 1));
        }
        let connection = self.connection.ok_or("not connected")?;
        self.next += 1;
        match step {
            Step::Request(ask) => self.send(host, connection, &ask, true),
            Step::OneWay(ask) => self.send(host, connection, &ask, false),
            Step::Cancel => {
                let last = self.last.ok_or("nothing to cancel")?;
                host.cancel(last).map_err(told("cancel"))
            }
            Step::Close => host.close(connection).map_err(told("close")),
            Step::Write | Step::Read => self.reach(host, connection, step == Step::Write),
            Step::Sleep => Ok(()),
        }
    }

    /// The step whose outcome the next one waits for.
    fn awaited(&self) -> Option<u64> {
        let (&user, outcome) = self.expected.last_key_value()?;
        let step = &self.program.steps[user as usize];
        let (Step::Request(ask) | Step::OneWay(ask)) = step else {
            return Some(user);
        };
        let waits = !ask.no_wait && !matches!(outcome, Outcome::Any);
        waits.then_some(user)
    }

    fn send<H: Seat>(
        &mut self,
        host: &mut H,
        connection: ConnectionId,
        ask: &Ask,
        request: bool,
    ) -> Result<(), String> {
        let user = self.next as u64 - 1;
        let (header, data) = (&ask.header[..], &ask.payload()[..]);
        let content = Content {
            header,
            data,
            prompt: ask.prompt,
            user,
        };
        let placed = place(host, connection, &content)?;
        let room: Vec<Segment> = (ask.offer > 0)
            .then(|| host.room(ask.offer))
            .into_iter()
            .collect();
        let options = RequestOptions {
            into: &room,
            receipt: ask.receipt,
            force_read: ask.force_read,
            force_write: ask.force_write,
            last_in_batch: ask.last,
            ..RequestOptions::default()
        };
        let outcome = self.outcome(ask, request)?;
        let message = placed.message();
        let task = if request {
            host.send(connection, &message, &options)
        } else {
            host.send_one_way(connection, &message, &options)
        };
        self.last = Some(task.map_err(told("send"))?);
        self.expected.insert(user, outcome);
        Ok(())
    }

    /// Writes into the memory that the last answer named, or reads it.
    fn reach<H: Seat>(
        &mut self,
        host: &mut H,
        connection: ConnectionId,
        write: bool,
    ) -> Result<(), String> {
        let user = self.next as u64 - 1;
        let header = self.server().fixed_answer.as_ref();
        let remote = remote_memory(header.ok_or("no memory is named")?)?;
        let (task, local) = host.reach(write, connection, &remote, user)?;
        self.last = Some(task);
        let outcome = if write {
            Outcome::Sent
        } else {
            Outcome::Fetched(local)
        };
        self.expected.insert(user, outcome);
        Ok(())
    }

    fn outcome(&mut self, ask: &Ask, request: bool) -> Result<Outcome, String> {
        let wish = ask.wish()?;
        if !request {
            // A recorded server reads the data of a one-way and says so only if it was asked; this
            // side asks whenever it is read, which the server of that recording does not know.
            return Ok(match ask {
                Ask {
                    force_read: true,
                    receipt: false,
                    ..
                } => Outcome::Any,
                Ask { receipt: true, .. } => Outcome::Receipt,
                _ => Outcome::Sent,
            });
        }
        if wish.hold {
            return Ok(Outcome::Any);
        }
        self.answers += 1;
        let (header, data) = self.server().answer(&wish, self.answers);
        Ok(Outcome::Answer(header, data))
    }
}

pub(super) struct Server {
    client: Program,
    programs: Vec<Program>,
    listeners: Vec<ListenerId>,
    /// Sessions so far; the redirected client asks the next program.
    asked: usize,
    serving: usize,
    connection: Option<ConnectionId>,
    /// What the client is going to send; requests are marked.
    expected: VecDeque<(bool, Ask)>,
    answers: usize,
    /// Requests to be answered later.
    late: VecDeque<(TaskId, Wish)>,
    held: Vec<TaskId>,
    closed: usize,
}

impl Server {
    fn listen<H: Seat>(&mut self, host: &mut H) -> Result<(), String> {
        for (at, program) in self.programs.iter().enumerate() {
            let (_, address) = program
                .url
                .split_once("://")
                .ok_or("a url without a scheme")?;
            let address = address.parse().map_err(told("address"))?;
            let options = ListenOptions {
                user: at as u64,
                backlog: 1,
            };
            let listener = host.listen(address, &options);
            self.listeners.push(listener.map_err(told("listen"))?);
        }
        if let Some(header) = &self.programs[0].fixed_answer {
            host.share(remote_memory(header)?)?;
        }
        Ok(())
    }

    /// The listener at an address.
    pub(super) fn listening_at(&self, address: SocketAddr) -> Result<ListenerId, String> {
        let address = address.to_string();
        let at = self
            .programs
            .iter()
            .position(|program| program.url.ends_with(&address));
        self.listener(at.ok_or_else(|| format!("nobody listens at {address}"))?)
    }

    /// The listener that the client reaches with its connection number `at`.
    pub(super) fn listener(&self, at: usize) -> Result<ListenerId, String> {
        self.listeners
            .get(at)
            .copied()
            .ok_or_else(|| format!("no listener {at}"))
    }

    fn event<H: Seat>(&mut self, host: &mut H, event: Event) -> Result<(), String> {
        match event {
            Event::SessionRequest {
                session,
                user,
                uri,
                private,
                ..
            } => self.decide(host, session, user as usize, uri, private),
            Event::Established { connection, .. } => {
                self.connection = Some(connection);
                Ok(())
            }
            Event::Request {
                task, header, data, ..
            } => {
                let wish = self.message(host, true, header, data)?;
                if wish.hold {
                    self.held.push(task);
                    return Ok(());
                }
                if wish.late {
                    self.late.push_back((task, wish));
                    return Ok(());
                }
                self.respond(host, task, &wish)
            }
            Event::OneWay {
                task, header, data, ..
            } => {
                let wish = self.message(host, false, header, data)?;
                if wish.reject_receipt {
                    let set = host.set_receipt(task, 1);
                    set.map_err(told("receipt"))?;
                }
                host.release(task).map_err(told("release"))
            }
            Event::PayloadWaiting { task, len, .. } => {
                let room = host.room(len as usize);
                host.provide(task, &[room]).map_err(told("provide"))
            }
            Event::RegionReady { .. } | Event::RegionRevoked { .. } => Ok(()),
            Event::Sent { .. } | Event::BuffersReturned { .. } | Event::Closed { .. } => Ok(()),
            Event::SessionClosed { .. } => {
                self.closed += 1;
                Ok(())
            }
            other => Err(format!("unexpected {other:?}")),
        }
    }

    fn decide<H: Seat>(
        &mut self,
        host: &mut H,
        session: SessionId,
        at: usize,
        uri: Span,
        private: Span,
    ) -> Result<(), String> {
        if at != self.asked {
            return Err(format!("session {} reached program {at}", self.asked));
        }
        let wanted = match at.checked_sub(1).map(|before| &self.programs[before].mode) {
            Some(Mode::Redirect(url)) => url,
            _ => &self.client.url,
        };
        same("uri", &host.text(uri), wanted.as_bytes())?;
        same("private data", &host.text(private), &self.client.private)?;
        (self.asked, self.serving) = (at + 1, at);
        let program = &self.programs[at];
        match &program.mode {
            Mode::Accept => {
                let accepted = host.accept(session, 0, &[], &program.private);
                accepted.map(drop).map_err(told("accept"))
            }
            Mode::Reject => host
                .reject(session, REJECTED, &program.private)
                .map_err(told("reject")),
            Mode::Redirect(url) => host
                .redirect(session, &[url.as_bytes()])
                .map_err(told("redirect")),
        }
    }

    /// Checks a message against what the client is known to send; returns what it wishes.
    fn message<H: Seat>(
        &mut self,
        host: &mut H,
        request: bool,
        header: Span,
        data: xio_proto::Data,
    ) -> Result<Wish, String> {
        let (is_request, ask) = self.expected.pop_front().ok_or("one message too many")?;
        if is_request != request {
            return Err("a request and a one-way message are swapped".to_owned());
        }
        let header = host.text(header);
        same("header", &header, &ask.header)?;
        same("data", &host.seen(data)?, &ask.payload())?;
        Wish::parse(&header)
    }

    /// All that the client sent came; a cancelled request is the last thing it sends.
    fn got_everything(&self) -> Result<(), String> {
        let mut steps = self.client.steps.split(|step| *step == Step::Cancel);
        let sent = steps.next().unwrap_or_default().iter();
        let sent = sent
            .filter(|step| matches!(step, Step::Request(_) | Step::OneWay(_)))
            .count();
        let got = self.client.messages().count() - self.expected.len();
        let rejected = self
            .programs
            .iter()
            .any(|program| program.mode == Mode::Reject);
        if got == sent || rejected {
            return Ok(());
        }
        Err(format!("{got} messages came of {sent}"))
    }

    fn respond<H: Seat>(&mut self, host: &mut H, task: TaskId, wish: &Wish) -> Result<(), String> {
        let connection = self.connection.ok_or("a request before the connection")?;
        self.answers += 1;
        let program = &self.programs[self.serving];
        let (header, len) = program.answer(wish, self.answers);
        let data = Pattern::Response.bytes(len);
        let prompt = program.fixed_answer.is_some();
        let content = Content {
            header: &header,
            data: &data,
            prompt,
            user: 0,
        };
        let placed = place(host, connection, &content)?;
        host.respond(task, &placed.message())
            .map_err(told("respond"))?;
        if wish.close {
            host.close(connection).map_err(told("close"))?;
        }
        Ok(())
    }

    fn act<H: Seat>(&mut self, host: &mut H) -> Result<(), String> {
        match self.late.pop_front() {
            Some((task, wish)) => self.respond(host, task, &wish),
            None => Ok(()),
        }
    }
}
