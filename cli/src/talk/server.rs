//! A server: takes sessions, answers requests, takes one-way messages.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use xio_proto::driver::Driver;
use xio_proto::wire::status;
use xio_proto::{
    CommandError, ConnectionId, Data, Event, Message, Segment, SessionId, Span, TaskId,
};

use super::buffers::{Buffer, Buffers};
use super::content::{Mark, Pattern};

/// Answers of up to this many bytes are copied into the frame's slot; longer ones are sent from
/// where they are.
const COPY_MAX: usize = 1024;

/// What becomes of those who ask for a session.
#[derive(Clone, Debug)]
pub(crate) enum Welcome {
    /// They get one.
    Accept,
    /// They are refused with this reason.
    Reject(u32),
    /// They are told to go there.
    Redirect(String),
}

/// How many bytes of the counting pattern requests are answered with.
#[derive(Clone, Default, Debug)]
pub(crate) struct Replies {
    /// Those whose application header begins like this.
    pub(crate) by_header: Vec<(String, u64)>,
    /// All others; `None` sends back what came.
    pub(crate) others: Option<u64>,
}

impl Replies {
    fn of(&self, header: &[u8]) -> Option<u64> {
        let mut rules = self.by_header.iter();
        let rule = rules.find(|(begin, _)| header.starts_with(begin.as_bytes()));
        rule.map(|(_, bytes)| *bytes).or(self.others)
    }
}

/// What has happened so far.
#[derive(Copy, Clone, Default, Debug, serde::Serialize)]
pub(crate) struct Counts {
    /// Sessions asked for.
    pub(crate) asked: u64,
    /// Sessions established.
    pub(crate) sessions: u64,
    /// Requests that came.
    pub(crate) requests: u64,
    /// Requests whose answer was sent.
    pub(crate) answered: u64,
    /// Requests that could not be answered.
    pub(crate) unanswered: u64,
    /// One-way messages that came.
    pub(crate) one_ways: u64,
    /// Bytes of data that came.
    pub(crate) bytes_in: u64,
    /// Bytes of data sent in answers.
    pub(crate) bytes_out: u64,
    /// Messages of this program's clients whose data is not what was sent.
    pub(crate) damaged: u64,
}

/// A connection.
#[derive(Debug)]
struct Peer {
    connection: ConnectionId,
    address: Option<SocketAddr>,
    counts: Counts,
    /// Requests whose answer found no room yet.
    due: VecDeque<Request>,
}

#[derive(Copy, Clone, Debug)]
struct Request {
    task: TaskId,
    user: u64,
    header: Span,
    data: Data,
}

/// An answer's data.
#[derive(Copy, Clone, Debug)]
enum Answer {
    /// In the scratch memory, to be copied.
    Copied,
    /// In the request's own buffer.
    Echo(Buffer, usize),
    /// A part of the counting pattern.
    Counting(usize),
}

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    welcome: Welcome,
    replies: Replies,
    peers: Vec<Option<Peer>>,
    vacant: Vec<usize>,
    buffers: Buffers,
    /// Buffers that payloads came into, by the index of their task.
    held: Vec<Option<Buffer>>,
    /// Payloads that wait for memory.
    waiting: VecDeque<(TaskId, u64, u64)>,
    /// The counting pattern, and its length.
    counting: Option<(Buffer, usize)>,
    header: Vec<u8>,
    scratch: Vec<u8>,
    /// Of all connections together.
    pub(crate) counts: Counts,
}

/// Takes the lines that a server has to say.
pub(crate) type Say<'a> = &'a mut dyn FnMut(fmt::Arguments<'_>);

impl Server {
    /// A server that uses at most so many bytes for payloads.
    pub(crate) fn new(welcome: Welcome, replies: Replies, memory: u64) -> Self {
        Self {
            welcome,
            replies,
            peers: Vec::new(),
            vacant: Vec::new(),
            buffers: Buffers::new(memory),
            held: Vec::new(),
            waiting: VecDeque::new(),
            counting: None,
            header: Vec::new(),
            scratch: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Connections that are not closed.
    pub(crate) fn open(&self) -> usize {
        self.peers.len() - self.vacant.len()
    }

    /// Closes all connections, each with its FIN; `Closed` follows for each.
    pub(crate) fn close_all<D: Driver>(&mut self, driver: &mut D) {
        for peer in self.peers.iter().flatten() {
            // One that is closing already needs no second command.
            let _ = driver.close(peer.connection);
        }
    }

    /// Ends all connections without another word.
    pub(crate) fn abort_all<D: Driver>(&mut self, driver: &mut D) {
        for peer in self.peers.iter().flatten() {
            // One that is over in this moment needs no command.
            let _ = driver.abort(peer.connection);
        }
    }

    /// Something happened.
    pub(crate) fn event<D: Driver>(&mut self, driver: &mut D, event: Event, say: Say<'_>) {
        match event {
            Event::SessionRequest {
                session, peer, uri, ..
            } => self.greet(driver, session, peer, uri, say),
            Event::Established {
                user,
                message,
                connection,
                ..
            } => {
                self.counts.sessions += 1;
                if let Some(message) = message {
                    release(driver, message);
                }
                self.established(driver, user, connection, say);
            }
            Event::ConnectFailed { message, .. } => {
                if let Some(message) = message {
                    release(driver, message);
                }
            }
            Event::Closed {
                user,
                reason,
                unanswered,
                ..
            } => self.closed(driver, user, &reason, unanswered, say),
            Event::Writable { user, .. } => self.answer_due(driver, user),
            Event::ListenFailed { error, .. } => {
                let error = std::io::Error::from_raw_os_error(error);
                say(format_args!("listening failed: {error}"));
            }
            other => self.message(driver, other),
        }
    }

    fn message<D: Driver>(&mut self, driver: &mut D, event: Event) {
        match event {
            Event::Request {
                task,
                user,
                header,
                data,
                ..
            } => {
                let request = Request {
                    task,
                    user,
                    header,
                    data,
                };
                self.arrived(driver, user, header, data, true);
                self.answer(driver, request);
            }
            Event::OneWay {
                task,
                user,
                header,
                data,
                ..
            } => {
                self.arrived(driver, user, header, data, false);
                release(driver, task);
                self.give(driver, task);
            }
            Event::PayloadWaiting {
                task, user, len, ..
            } => {
                self.waiting.push_back((task, user, len));
                self.provide(driver);
            }
            Event::Sent {
                task,
                buffers_returned,
                ..
            } => {
                self.counts.answered += 1;
                self.returned(driver, task, buffers_returned);
            }
            Event::Failed {
                task,
                buffers_returned,
                ..
            }
            | Event::TimedOut {
                task,
                buffers_returned,
                ..
            } => {
                self.counts.unanswered += 1;
                self.returned(driver, task, buffers_returned);
            }
            Event::BuffersReturned { task, .. } => self.give(driver, task),
            _ => {}
        }
    }
}

// Sessions.
impl Server {
    fn greet<D: Driver>(
        &mut self,
        driver: &mut D,
        session: SessionId,
        address: SocketAddr,
        uri: Span,
        say: Say<'_>,
    ) {
        self.counts.asked += 1;
        let uri = driver.with_span(uri, |bytes| String::from_utf8_lossy(bytes).into_owned());
        let done = match &self.welcome {
            Welcome::Accept => {
                let user = self.vacant.last().copied().unwrap_or(self.peers.len());
                let accepted = driver.accept(session, user as u64, &[], b"");
                accepted.map(|connection| {
                    say(format_args!("{address} asks for {uri}: accepted"));
                    self.add(connection, address);
                })
            }
            Welcome::Reject(reason) => {
                say(format_args!(
                    "{address} asks for {uri}: rejected ({reason})"
                ));
                driver.reject(session, *reason, b"")
            }
            Welcome::Redirect(to) => {
                say(format_args!("{address} asks for {uri}: sent to {to}"));
                driver.redirect(session, &[to.as_bytes()])
            }
        };
        if let Err(error) = done {
            say(format_args!("{address} asks for {uri}: {error}"));
            // A peer that is gone needs no answer.
            let _ = driver.reject(session, status::NO_BUFS, b"");
        }
    }

    fn add(&mut self, connection: ConnectionId, address: SocketAddr) {
        let peer = Peer {
            connection,
            address: Some(address),
            counts: Counts::default(),
            due: VecDeque::new(),
        };
        match self.vacant.pop() {
            Some(place) => self.peers[place] = Some(peer),
            None => self.peers.push(Some(peer)),
        }
    }

    fn established<D: Driver>(&self, driver: &D, user: u64, id: ConnectionId, say: Say<'_>) {
        let Some(address) = self.peer(user).and_then(|peer| peer.address) else {
            return;
        };
        match driver.look(|endpoint| endpoint.info(id)) {
            Ok(info) => say(format_args!(
                "{address} is established: frames of up to {} bytes, headers of up to {}",
                info.frame_max, info.header_max
            )),
            Err(_) => say(format_args!("{address} is established")),
        }
    }

    fn closed<D: Driver>(
        &mut self,
        driver: &mut D,
        user: u64,
        reason: &xio_proto::Reason,
        unanswered: u32,
        say: Say<'_>,
    ) {
        let peer = self.peers.get_mut(user as usize).and_then(Option::take);
        let Some(peer) = peer else { return };
        self.vacant.push(user as usize);
        for request in peer.due {
            self.counts.unanswered += 1;
            release(driver, request.task);
            self.give(driver, request.task);
        }
        self.waiting.retain(|(_, of, _)| *of != user);
        let counts = &peer.counts;
        let address = peer.address.map_or_else(String::new, |a| format!("{a} "));
        say(format_args!(
            "{address}is gone: {reason}; {} requests, {} one-ways, {unanswered} unanswered",
            counts.requests, counts.one_ways
        ));
    }

    fn peer(&self, user: u64) -> Option<&Peer> {
        self.peers.get(user as usize).and_then(Option::as_ref)
    }
}

// Messages.
impl Server {
    /// Counts a message, and looks whether its data is right if it says what it is.
    fn arrived<D: Driver>(
        &mut self,
        driver: &mut D,
        user: u64,
        header: Span,
        data: Data,
        is_request: bool,
    ) {
        let (requests, one_ways) = (u64::from(is_request), u64::from(!is_request));
        let peer = self.peers.get_mut(user as usize).and_then(Option::as_mut);
        for counts in peer
            .map(|p| &mut p.counts)
            .into_iter()
            .chain([&mut self.counts])
        {
            counts.requests += requests;
            counts.one_ways += one_ways;
            counts.bytes_in += data.len();
        }
        if let Some(mark) = driver.with_span(header, Mark::read) {
            let (mut offset, mut same) = (0, true);
            driver.with_data(data, |piece| {
                same &= Pattern::Own(mark.number).is_in(piece, offset);
                offset += piece.len() as u64;
            });
            self.counts.damaged += u64::from(!same);
        }
    }

    fn answer<D: Driver>(&mut self, driver: &mut D, request: Request) {
        match self.try_answer(driver, &request) {
            Ok(()) => {}
            Err(CommandError::Full(_) | CommandError::NoCredit) => {
                let peer = self.peers.get_mut(request.user as usize);
                if let Some(peer) = peer.and_then(Option::as_mut) {
                    peer.due.push_back(request);
                }
            }
            Err(_) => {
                self.counts.unanswered += 1;
                release(driver, request.task);
                self.give(driver, request.task);
            }
        }
    }

    /// Answers what was left of a connection's requests, as far as there is room now.
    fn answer_due<D: Driver>(&mut self, driver: &mut D, user: u64) {
        let due = |server: &mut Self| {
            let peer = server.peers.get_mut(user as usize).and_then(Option::as_mut);
            peer.map_or(0, |peer| peer.due.len())
        };
        for _ in 0..due(self) {
            let peer = self.peers[user as usize].as_mut();
            let Some(request) = peer.and_then(|peer| peer.due.pop_front()) else {
                return;
            };
            let before = due(self);
            self.answer(driver, request);
            if due(self) > before {
                // It found no room again: it stays the first.
                if let Some(peer) = self.peers[user as usize].as_mut() {
                    peer.due.rotate_right(1);
                }
                return;
            }
        }
    }

    fn try_answer<D: Driver>(
        &mut self,
        driver: &mut D,
        request: &Request,
    ) -> Result<(), CommandError> {
        let mut header = std::mem::take(&mut self.header);
        header.clear();
        driver.with_span(request.header, |bytes| header.extend_from_slice(bytes));
        self.header = header;
        let asked = Mark::read(&self.header).and_then(|mark| mark.reply);
        let mut answer = match asked.or_else(|| self.replies.of(&self.header)) {
            Some(len) => self.counting(driver, len),
            None => self.echo(driver, request),
        };
        loop {
            match self.respond(driver, request, answer) {
                Err(CommandError::TooLong { max, len, .. }) if len > 0 => {
                    // Less each time, whatever the reason is.
                    let max = max.min(len - 1);
                    answer = self.cut(answer, usize::try_from(max).unwrap_or(0));
                }
                done => return done,
            }
        }
    }

    /// A shorter answer, where the longer one is more than the requester can take.
    fn cut(&mut self, answer: Answer, max: usize) -> Answer {
        match answer {
            Answer::Copied => {
                self.scratch.truncate(max);
                answer
            }
            Answer::Echo(buffer, len) => Answer::Echo(buffer, len.min(max)),
            Answer::Counting(len) => Answer::Counting(len.min(max)),
        }
    }

    fn echo<D: Driver>(&mut self, driver: &mut D, request: &Request) -> Answer {
        let held = self.held.get(request.task.index()).copied().flatten();
        if let (Data::Segments(_), Some(buffer)) = (request.data, held) {
            return Answer::Echo(buffer, request.data.len() as usize);
        }
        let scratch = &mut self.scratch;
        scratch.clear();
        driver.with_data(request.data, |piece| scratch.extend_from_slice(piece));
        Answer::Copied
    }

    fn counting<D: Driver>(&mut self, driver: &mut D, len: u64) -> Answer {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len <= COPY_MAX {
            self.scratch.resize(len, 0);
            Pattern::Counting.fill(&mut self.scratch);
            return Answer::Copied;
        }
        if self.counting.is_none_or(|(_, have)| have < len) {
            // The shorter one may be in flight; it stays with those who have it.
            if let Ok(buffer) = self.buffers.take(driver, len) {
                let size = buffer.with(driver, |bytes| {
                    Pattern::Counting.fill(bytes);
                    bytes.len()
                });
                self.counting = Some((buffer, size));
            }
        }
        let have = self.counting.map_or(0, |(_, have)| have);
        Answer::Counting(len.min(have))
    }

    fn respond<D: Driver>(
        &mut self,
        driver: &mut D,
        request: &Request,
        answer: Answer,
    ) -> Result<(), CommandError> {
        let slot = driver.reserve_answer_slot(request.task)?;
        let (copied, segment) = match answer {
            Answer::Copied => (self.scratch.as_slice(), Segment::default()),
            Answer::Echo(buffer, len) => (&[][..], buffer.segment(driver, len)),
            Answer::Counting(len) => {
                let (buffer, _) = self.counting.ok_or(CommandError::Unknown)?;
                (&[][..], buffer.segment(driver, len))
            }
        };
        let header = self.header.as_slice();
        let written = driver.with_slot(slot, |bytes| {
            let (head, rest) = bytes.split_at_mut(header.len());
            head.copy_from_slice(header);
            rest[..copied.len()].copy_from_slice(copied);
        });
        debug_assert!(written.is_some(), "the slot was just reserved");
        let data = [segment];
        let message = Message {
            slot: Some(slot),
            header_len: header.len() as u16,
            slot_data: copied.len() as u32,
            data: &data[..usize::from(segment.len > 0)],
            ..Message::default()
        };
        let sent = driver.respond(request.task, &message);
        match sent {
            Ok(()) => {
                let len = copied.len() as u64 + u64::from(segment.len);
                self.counts.bytes_out += len;
                if let Some(Some(peer)) = self.peers.get_mut(request.user as usize) {
                    peer.counts.bytes_out += len;
                }
            }
            Err(_) => {
                let back = driver.return_slot(slot);
                debug_assert_eq!(back, Ok(()), "a refused command takes nothing");
            }
        }
        sent
    }
}

// Memory.
impl Server {
    /// Gives waiting payloads memory, in their order, as far as there is some.
    fn provide<D: Driver>(&mut self, driver: &mut D) {
        while let Some((task, _, len)) = self.waiting.front().copied() {
            let size = usize::try_from(len).unwrap_or(usize::MAX);
            let Ok(buffer) = self.buffers.take(driver, size) else {
                if !self.is_anything_held() {
                    // Nothing will come back that could make room for it.
                    self.waiting.pop_front();
                    let _ = driver.refuse(task, status::NO_USER_BUFS);
                    continue;
                }
                return;
            };
            self.waiting.pop_front();
            let segment = buffer.segment(driver, size);
            match driver.provide(task, &[segment]) {
                Ok(()) => {
                    let place = task.index();
                    if self.held.len() <= place {
                        self.held.resize(place + 1, None);
                    }
                    self.held[place] = Some(buffer);
                }
                // Its connection ended, or its time was over.
                Err(_) => self.buffers.give(buffer),
            }
        }
    }

    fn is_anything_held(&self) -> bool {
        self.held.iter().any(Option::is_some)
    }

    fn returned<D: Driver>(&mut self, driver: &mut D, task: TaskId, returned: bool) {
        if returned {
            self.give(driver, task);
        }
    }

    /// A message's buffer is nobody's any more.
    fn give<D: Driver>(&mut self, driver: &mut D, task: TaskId) {
        if let Some(buffer) = self.held.get_mut(task.index()).and_then(Option::take) {
            self.buffers.give(buffer);
            self.provide(driver);
        }
    }
}

/// Gives a message back.
///
/// # Panics
/// When it is not this user's: a bug here.
fn release<D: Driver>(driver: &mut D, task: TaskId) {
    let released = driver.release(task);
    debug_assert_eq!(released, Ok(()), "{task:?} is this user's");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rule_that_fits_a_header_counts() {
        let rules = [("BIG", 1), ("B", 2)];
        let replies = Replies {
            by_header: rules
                .map(|(header, bytes)| (header.to_owned(), bytes))
                .into(),
            others: Some(3),
        };
        let asked: [&[u8]; 4] = [b"BIGGER", b"BETTER", b"", b"xB"];
        let got = asked.map(|header| replies.of(header));
        assert_eq!(got, [Some(1), Some(2), Some(3), Some(3)]);
        assert_eq!(Replies::default().of(b"BIG"), None);
    }
}
