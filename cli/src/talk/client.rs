//! A client: sends what a workload says, and looks at what comes of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use xio_proto::driver::Driver;
use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, Data, Event, Failure, Message, Reason,
    RequestOptions, Segment, SessionOpen, SlotId, Span, TaskId,
};

use super::buffers::{Buffer, Buffers};
use super::clock::now;
use super::content::{MARK_LEN, Mark, Pattern};

/// Data of up to this many bytes is copied into the frame's slot; more is sent from a buffer.
const COPY_MAX: usize = 1024;

/// What headers of frames, and lists in them, take of a frame at most.
const FRAME_HEADS: u64 = 256;

/// What one message looks like.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Shape {
    /// One-way; otherwise a request.
    pub(crate) one_way: bool,
    /// A read receipt is asked for.
    pub(crate) receipt: bool,
    /// Bytes of data.
    pub(crate) len: usize,
    /// Bytes of counting pattern asked for in answer; `None` asks for an echo.
    pub(crate) reply: Option<usize>,
}

/// What a client sends.
#[derive(Clone, Debug)]
pub(crate) struct Workload<F> {
    /// Messages.
    pub(crate) count: u64,
    /// The message of that number.
    pub(crate) shape: F,
    /// Bytes of application header.
    pub(crate) header_len: usize,
    /// Messages out at once.
    pub(crate) depth: usize,
    /// Time between two messages.
    pub(crate) interval: Option<Duration>,
    /// Time that each message may take.
    pub(crate) deadline: Option<Duration>,
    /// Whether answers are compared with what they should be.
    pub(crate) verify: bool,
}

/// What came of it all.
#[derive(Clone, Debug)]
pub(crate) struct Outcomes {
    /// Messages handed over.
    pub(crate) sent: u64,
    /// Messages whose good outcome came, and was right.
    pub(crate) ok: u64,
    /// Of those: responses, and receipts of one-ways.
    pub(crate) responses: u64,
    /// See `responses`.
    pub(crate) receipts: u64,
    /// Bad outcomes, by reason.
    pub(crate) failed: BTreeMap<String, u64>,
    /// Outcomes that came a second time.
    pub(crate) duplicated: u64,
    /// Times that the server turned out to have been started again.
    pub(crate) restarts: u64,
    /// Bytes of data that went out or came in with good outcomes.
    pub(crate) bytes: u64,
    /// From command to outcome, in nanoseconds.
    pub(crate) latencies: Histogram<u64>,
}

/// A message on its way.
#[derive(Copy, Clone, Debug)]
struct Entry {
    number: u64,
    shape: Shape,
    sent_at: Instant,
    data: Option<Buffer>,
    into: Option<Buffer>,
    /// The outcome came.
    is_done: bool,
    /// Its buffers are back.
    is_returned: bool,
}

/// Where the client is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Waits for the session.
    Connecting,
    /// Sends.
    Up,
    /// Has closed the connection.
    Closing,
    /// The connection had its last event.
    Over(Reason),
}

/// The client.
#[derive(Debug)]
pub(crate) struct Client<F> {
    workload: Workload<F>,
    buffers: Buffers,
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    connection: Option<ConnectionId>,
    /// Largest answer that surely fits a frame.
    inline_max: u64,
    next_at: Option<Instant>,
    /// When the next message first found no room.
    tried_at: Option<Instant>,
    is_stopped: bool,
    /// Where it is.
    pub(crate) phase: Phase,
    /// What came of its messages.
    pub(crate) outcomes: Outcomes,
}

/// A message that is ready to be handed over.
struct Parcel {
    slot: SlotId,
    copied: usize,
    segment: Segment,
}

impl Outcomes {
    fn new() -> Result<Self> {
        Ok(Self {
            sent: 0,
            ok: 0,
            responses: 0,
            receipts: 0,
            failed: BTreeMap::new(),
            duplicated: 0,
            restarts: 0,
            bytes: 0,
            latencies: Histogram::new(3).context("a histogram of three digits")?,
        })
    }

    /// Messages with a bad outcome.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Messages that were handed over and never had an outcome.
    pub(crate) fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.ok + self.failures())
    }
}

impl<F: Fn(u64) -> Shape> Client<F> {
    /// A client that uses at most so many bytes for data.
    ///
    /// # Errors
    /// Never in practice: the histogram cannot be made.
    pub(crate) fn new(workload: Workload<F>, memory: u64) -> Result<Self> {
        let depth = workload.depth;
        Ok(Self {
            workload,
            buffers: Buffers::new(memory),
            entries: vec![None; depth],
            vacant: (0..depth as u32).rev().collect(),
            connection: None,
            inline_max: 0,
            next_at: None,
            tried_at: None,
            is_stopped: false,
            phase: Phase::Connecting,
            outcomes: Outcomes::new()?,
        })
    }

    /// Asks for a session.
    ///
    /// # Errors
    /// When the endpoint does not take the command.
    pub(crate) fn connect<D: Driver>(
        &mut self,
        driver: &mut D,
        to: SocketAddr,
        uri: &str,
        options: &ConnectOptions,
    ) -> Result<(), CommandError> {
        let open = SessionOpen { uri, private: b"" };
        self.phase = Phase::Connecting;
        self.connection = Some(driver.connect(to, &open, options)?);
        Ok(())
    }

    /// Messages out at once, at most.
    pub(crate) fn depth(&self) -> usize {
        self.workload.depth
    }

    /// Messages that have their outcome.
    pub(crate) fn settled(&self) -> u64 {
        self.outcomes.ok + self.outcomes.failures()
    }

    /// Sends nothing more, and closes when everything has its outcome.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Drops the connection: what has no outcome yet fails.
    pub(crate) fn abort<D: Driver>(&mut self, driver: &mut D) {
        if let Some(connection) = self.connection.filter(|_| self.phase == Phase::Up) {
            self.phase = Phase::Closing;
            // A connection that is gone already says so in its last event.
            let _ = driver.abort(connection);
        }
    }

    /// When the next message is due, if the workload wants it to wait.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let idle = self.phase == Phase::Up && !self.is_finished() && !self.vacant.is_empty();
        let late = self.tried_at.zip(self.workload.deadline);
        let late = late.map(|(since, deadline)| since + deadline);
        late.or(self.next_at).filter(|_| idle)
    }

    fn is_finished(&self) -> bool {
        self.is_stopped || self.outcomes.sent == self.workload.count
    }

    /// Something happened.
    pub(crate) fn event<D: Driver>(&mut self, driver: &mut D, event: Event) {
        match event {
            Event::Established {
                connection,
                message,
                ..
            } => {
                if let Some(message) = message {
                    release(driver, message);
                }
                self.established(driver, connection);
            }
            Event::Reconnected {
                message, restarted, ..
            } => {
                self.outcomes.restarts += u64::from(restarted);
                if let Some(message) = message {
                    release(driver, message);
                }
            }
            Event::ConnectFailed { message, .. } => {
                if let Some(message) = message {
                    release(driver, message);
                }
            }
            Event::Closed { reason, .. } => self.phase = Phase::Over(reason),
            // A server may talk to its clients; this client has nothing to say to that.
            Event::Request { task, .. } | Event::OneWay { task, .. } => release(driver, task),
            Event::Response {
                task,
                user,
                header,
                data,
                buffers_returned,
                ..
            } => self.response(driver, task, user, (header, data), buffers_returned),
            other => self.outcome(driver, other),
        }
    }

    fn established<D: Driver>(&mut self, driver: &D, connection: ConnectionId) {
        // A redirected session may come with another connection.
        self.connection = Some(connection);
        let info = driver.look(|endpoint| endpoint.info(connection));
        let frame_max = info.map_or(0, |info| u64::from(info.frame_max));
        self.inline_max = frame_max.saturating_sub(FRAME_HEADS + self.workload.header_len as u64);
        self.phase = Phase::Up;
        self.next_at = self.workload.interval.map(|_| now());
    }

    fn outcome<D: Driver>(&mut self, driver: &mut D, event: Event) {
        match event {
            Event::PayloadWaiting { task, .. } => {
                // Of an answer for which no buffer was offered.
                let _ = driver.refuse(task, xio_proto::wire::status::NO_USER_BUFS);
            }
            Event::Delivered {
                user,
                buffers_returned,
                ..
            } => self.sent(user, true, buffers_returned),
            Event::Sent {
                user,
                buffers_returned,
                ..
            } => self.sent(user, false, buffers_returned),
            Event::Failed {
                user,
                failure,
                buffers_returned,
                ..
            } => self.failed(user, &reason_of(&failure), buffers_returned),
            Event::TimedOut {
                user,
                buffers_returned,
                ..
            } => self.failed(user, "deadline passed", buffers_returned),
            Event::Cancelled {
                user,
                buffers_returned,
                ..
            } => self.failed(user, "cancelled", buffers_returned),
            Event::BuffersReturned { user, .. } => {
                if let Some(Some(entry)) = self.entries.get_mut(place(user)) {
                    entry.is_returned = true;
                }
                self.settle(user);
            }
            _ => {}
        }
    }
}

fn reason_of(failure: &Failure) -> String {
    match failure {
        Failure::NeverSent(_) => "never sent".to_owned(),
        Failure::ConnectionEnded(_) => "connection ended".to_owned(),
        Failure::Unknown(_) => "connection lost".to_owned(),
        other => other.to_string(),
    }
}

/// Entry of a message, and its number, as the value that comes back in its events.
fn user_of(place: usize, number: u64) -> u64 {
    number << 20 | place as u64
}

fn place(user: u64) -> usize {
    (user & 0xf_ffff) as usize
}

// Sending.
impl<F: Fn(u64) -> Shape> Client<F> {
    /// Sends what may be sent now, and closes when all is done.
    pub(crate) fn pump<D: Driver>(&mut self, driver: &mut D) {
        let Some(connection) = self.connection.filter(|_| self.phase == Phase::Up) else {
            return;
        };
        while !self.is_finished() && !self.vacant.is_empty() && self.is_time() {
            let reason = match self.send_next(driver, connection) {
                Ok(()) => {
                    self.handed_on();
                    continue;
                }
                // `Writable` will come, or the connection's end; memory comes back with an outcome.
                // A peer that says nothing may hold all there is beyond a message's deadline.
                Err(CommandError::Full(_) | CommandError::NoCredit) if self.is_too_late() => {
                    "no room before the deadline".to_owned()
                }
                Err(CommandError::Full(_) | CommandError::NoCredit | CommandError::Closed(_)) => {
                    return;
                }
                Err(error) => error.to_string(),
            };
            self.outcomes.sent += 1;
            *self.outcomes.failed.entry(reason).or_default() += 1;
            self.handed_on();
        }
        if self.is_finished() && self.vacant.len() == self.entries.len() {
            self.phase = Phase::Closing;
            let closed = driver.close(connection);
            debug_assert!(closed.is_ok(), "an open connection can be closed");
        }
    }

    fn is_time(&self) -> bool {
        self.next_at.is_none_or(|at| now() >= at)
    }

    /// The next message is another one.
    fn handed_on(&mut self) {
        let next = self.next_at.zip(self.workload.interval);
        self.next_at = next.map(|(at, interval)| at + interval);
        self.tried_at = None;
    }

    /// Whether the next message found no room for as long as it may take in all.
    fn is_too_late(&mut self) -> bool {
        let since = self.next_at.unwrap_or_else(now);
        let since = *self.tried_at.get_or_insert(since);
        let deadline = self.workload.deadline;
        deadline.is_some_and(|deadline| since.elapsed() >= deadline)
    }

    fn send_next<D: Driver>(
        &mut self,
        driver: &mut D,
        connection: ConnectionId,
    ) -> Result<(), CommandError> {
        let number = self.outcomes.sent;
        let shape = (self.workload.shape)(number);
        let place = *self.vacant.last().expect("asked before") as usize;
        let mut entry = Entry {
            number,
            shape,
            sent_at: now(),
            data: None,
            into: None,
            is_done: false,
            is_returned: false,
        };
        let taken = self.hand_over(driver, connection, &mut entry, user_of(place, number));
        if taken.is_ok() {
            self.vacant.pop();
            self.entries[place] = Some(entry);
            self.outcomes.sent += 1;
        } else {
            self.give(&entry);
        }
        taken
    }

    fn hand_over<D: Driver>(
        &mut self,
        driver: &mut D,
        connection: ConnectionId,
        entry: &mut Entry,
        user: u64,
    ) -> Result<(), CommandError> {
        let shape = entry.shape;
        let answer = if shape.one_way {
            0
        } else {
            shape.reply.unwrap_or(shape.len)
        };
        let mut into = Segment::default();
        if answer as u64 > self.inline_max {
            let buffer = self.take(driver, answer)?;
            entry.into = Some(buffer);
            into = buffer.segment(driver, answer);
        }
        let parcel = self.pack(driver, connection, entry)?;
        let (data, into) = ([parcel.segment], [into]);
        let message = Message {
            slot: Some(parcel.slot),
            header_len: self.workload.header_len as u16,
            slot_data: parcel.copied as u32,
            data: &data[..usize::from(data[0].len > 0)],
            user,
            ..Message::default()
        };
        let deadline = self
            .workload
            .deadline
            .map(|after| driver.now().after(after));
        let options = RequestOptions {
            into: &into[..usize::from(into[0].len > 0)],
            receipt: shape.receipt,
            deadline,
            ..RequestOptions::default()
        };
        let taken = if shape.one_way {
            driver.send_one_way(connection, &message, &options)
        } else {
            driver.send(connection, &message, &options)
        };
        if taken.is_err() {
            let back = driver.return_slot(parcel.slot);
            debug_assert_eq!(back, Ok(()), "a refused command takes nothing");
        }
        taken.map(drop)
    }

    fn pack<D: Driver>(
        &mut self,
        driver: &mut D,
        connection: ConnectionId,
        entry: &mut Entry,
    ) -> Result<Parcel, CommandError> {
        let (len, pattern) = (entry.shape.len, Pattern::Own(entry.number));
        let mut segment = Segment::default();
        let copied = if len <= COPY_MAX { len } else { 0 };
        if copied < len {
            let buffer = self.take(driver, len)?;
            entry.data = Some(buffer);
            buffer.with(driver, |bytes| pattern.fill(&mut bytes[..len]));
            segment = buffer.segment(driver, len);
        }
        let slot = driver.reserve_slot(connection)?;
        let header_len = self.workload.header_len;
        let mark = Mark {
            number: entry.number,
            reply: entry.shape.reply.map(|len| len as u64),
        };
        let written = driver.with_slot(slot, |bytes| {
            let (header, rest) = bytes.split_at_mut(header_len);
            mark.write(header);
            pattern.fill(&mut rest[..copied]);
        });
        debug_assert!(written.is_some(), "the slot was just reserved");
        Ok(Parcel {
            slot,
            copied,
            segment,
        })
    }

    fn take<D: Driver>(&mut self, driver: &mut D, len: usize) -> Result<Buffer, CommandError> {
        let buffer = self.buffers.take(driver, len);
        buffer.map_err(|_| CommandError::Full(xio_proto::Resource::Regions))
    }

    fn give(&mut self, entry: &Entry) {
        for buffer in [entry.data, entry.into].into_iter().flatten() {
            self.buffers.give(buffer);
        }
    }
}

// Outcomes.
impl<F: Fn(u64) -> Shape> Client<F> {
    fn response<D: Driver>(
        &mut self,
        driver: &mut D,
        task: TaskId,
        user: u64,
        (header, data): (Span, Data),
        returned: bool,
    ) {
        let entry = self.entries.get(place(user)).copied().flatten();
        if let Some(entry) = entry.filter(|entry| entry.number == user >> 20) {
            let wrong = if self.workload.verify {
                self.what_is_wrong(driver, &entry, header, data)
            } else {
                None
            };
            match wrong {
                None => {
                    self.outcomes.responses += 1;
                    self.good(user, data.len(), returned);
                }
                Some(wrong) => self.failed(user, wrong, returned),
            }
        } else {
            self.outcomes.duplicated += 1;
        }
        release(driver, task);
        self.settle(user);
    }

    fn what_is_wrong<D: Driver>(
        &self,
        driver: &mut D,
        entry: &Entry,
        header: Span,
        data: Data,
    ) -> Option<&'static str> {
        let mark = Mark {
            number: entry.number,
            reply: entry.shape.reply.map(|len| len as u64),
        };
        let header_len = self.workload.header_len;
        let same = |bytes: &[u8]| bytes.len() == header_len && mark.is_in(bytes);
        if !driver.with_span(header, same) {
            return Some("answer has another header");
        }
        let (pattern, len) = match entry.shape.reply {
            Some(len) => (Pattern::Counting, len),
            None => (Pattern::Own(entry.number), entry.shape.len),
        };
        if data.len() != len as u64 {
            return Some("answer has another length");
        }
        let (mut offset, mut same) = (0, true);
        driver.with_data(data, |piece| {
            same &= pattern.is_in(piece, offset);
            offset += piece.len() as u64;
        });
        (!same || offset != len as u64).then_some("answer has other bytes")
    }

    /// A one-way's outcome, or the receipt of a request, whose response is still to come.
    fn sent(&mut self, user: u64, receipt: bool, returned: bool) {
        let entry = self.entries.get(place(user)).copied().flatten();
        match entry.filter(|entry| entry.number == user >> 20) {
            Some(entry) if !entry.shape.one_way => {}
            Some(entry) if receipt == entry.shape.receipt => {
                self.outcomes.receipts += u64::from(receipt);
                self.good(user, 0, returned);
            }
            Some(_) => self.failed(user, "sent without the receipt", returned),
            None => self.outcomes.duplicated += 1,
        }
        self.settle(user);
    }

    fn good(&mut self, user: u64, bytes: u64, returned: bool) {
        let Some(entry) = self.ended(user, returned) else {
            return;
        };
        self.outcomes.ok += 1;
        self.outcomes.bytes += bytes + entry.shape.len as u64;
        let nanos = u64::try_from(entry.sent_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let is_recorded = self.outcomes.latencies.record(nanos).is_ok();
        debug_assert!(is_recorded, "the histogram grows as needed");
    }

    fn failed(&mut self, user: u64, reason: &str, returned: bool) {
        if self.ended(user, returned).is_some() {
            match self.outcomes.failed.get_mut(reason) {
                Some(count) => *count += 1,
                None => drop(self.outcomes.failed.insert(reason.to_owned(), 1)),
            }
        }
        self.settle(user);
    }

    /// Books an outcome; a second one is counted and changes nothing.
    fn ended(&mut self, user: u64, returned: bool) -> Option<Entry> {
        let entry = self.entries.get_mut(place(user)).and_then(Option::as_mut);
        let entry = entry.filter(|entry| entry.number == user >> 20 && !entry.is_done);
        let Some(entry) = entry else {
            self.outcomes.duplicated += 1;
            return None;
        };
        entry.is_done = true;
        entry.is_returned |= returned;
        Some(*entry)
    }

    /// Ends an entry whose outcome and buffers are both here.
    fn settle(&mut self, user: u64) {
        let at = place(user);
        let Some(Some(entry)) = self.entries.get(at).copied() else {
            return;
        };
        if entry.is_done && entry.is_returned && entry.number == user >> 20 {
            self.entries[at] = None;
            self.vacant.push(at as u32);
            self.give(&entry);
        }
    }
}

/// Header bytes that a workload needs whose answers are to have a length of their own.
pub(crate) const HEADER_FOR_REPLY: usize = MARK_LEN;

/// Gives a message back.
///
/// # Panics
/// When it is not this user's: a bug here.
fn release<D: Driver>(driver: &mut D, task: TaskId) {
    let released = driver.release(task);
    debug_assert_eq!(released, Ok(()), "{task:?} is this user's");
}
