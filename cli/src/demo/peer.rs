//! The two users of the demo: a client that asks, and a server that answers.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, Data, Event, ListenOptions, Message, Receipt,
    RequestOptions, Segment, SessionId, SessionOpen, SlotId, Slots as _, Span, TaskId,
};
use xio_sim::check::{Check, Class, Fact, Outcome};
use xio_sim::{Buffer, Core, Desk, Rights, User};

use super::plan::{Kind, Plan, fill, is_as_written};
use super::tally::Tally;
use super::timeline::Note;

/// Bytes of each message's application header: its number and what the ledger calls it.
const HEADER: usize = 16;

/// Data up to this many bytes is copied into the frame's slot; more is gathered from user memory.
const COPY_MAX: u32 = 1024;

/// Data of more than this many bytes does not fit a frame.
const INLINE_MAX: u32 = 8192;

/// One user.
#[derive(Debug)]
pub(super) struct Peer {
    plan: Plan,
    is_client: bool,
    /// This side of the connection, for the ledger.
    side: u32,
    connection: Option<ConnectionId>,
    /// Client: the next message of the plan, and how many may be out at once.
    next: u32,
    depth: u32,
    /// What was handed over and has no outcome yet, or whose buffers are not back yet.
    cargo: BTreeMap<u64, Cargo>,
    /// Messages of `cargo` without outcome.
    out: u32,
    /// Buffers for payloads that come in, by task.
    provided: BTreeMap<usize, Buffer>,
    /// Server: requests that could not be answered yet for lack of room.
    due: VecDeque<Due>,
    /// What this side saw.
    pub(super) tally: Tally,
    /// What this side did, for the timeline.
    pub(super) notes: Vec<Note>,
    /// The connection is established.
    pub(super) is_up: bool,
    /// Client: all is done and the connection being closed.
    pub(super) is_closing: bool,
    /// The connection had its last event.
    pub(super) is_over: bool,
}

/// A message on its way.
#[derive(Debug)]
struct Cargo {
    ledger: u64,
    sent_at: u64,
    data: Option<Buffer>,
    into: Option<Buffer>,
}

/// A request that waits for its answer.
#[derive(Copy, Clone, Debug)]
struct Due {
    task: TaskId,
    number: u32,
    ledger: u64,
}

/// A message ready to be handed over.
#[derive(Debug)]
struct Parcel {
    slot: SlotId,
    slot_data: u32,
    segment: [Segment; 1],
    cargo: Cargo,
}

impl Parcel {
    fn message(&self, user: u64) -> Message<'_> {
        Message {
            slot: Some(self.slot),
            header_len: HEADER as u16,
            slot_data: self.slot_data,
            data: &self.segment[..usize::from(self.cargo.data.is_some())],
            user,
            ..Message::default()
        }
    }
}

/// What a received message says about itself.
#[derive(Copy, Clone, Debug)]
struct Arrival {
    number: u32,
    ledger: u64,
    /// Bytes of data, if it is what was sent.
    intact: Option<u64>,
}

impl Peer {
    /// A client that runs the plan, or the server for it; `depth` messages may be out at once.
    pub(super) fn new(plan: Plan, is_client: bool, depth: u32) -> Self {
        Self {
            plan,
            is_client,
            side: u32::from(!is_client),
            connection: None,
            next: 0,
            depth,
            cargo: BTreeMap::new(),
            out: 0,
            provided: BTreeMap::new(),
            due: VecDeque::new(),
            tally: Tally::new(&plan),
            notes: Vec::new(),
            is_up: false,
            is_closing: false,
            is_over: false,
        }
    }

    /// Messages that the client has handed over.
    pub(super) fn progress(&self) -> u64 {
        u64::from(self.next)
    }

    /// Server: begins.
    ///
    /// # Errors
    /// When the endpoint has no room for a listener.
    pub(super) fn listen(
        &mut self,
        core: &mut Core,
        desk: &Desk<'_>,
        at: SocketAddr,
    ) -> Result<()> {
        let transport = desk.rdma.context("the endpoint has no device")?;
        let options = ListenOptions {
            user: 0,
            backlog: 8,
        };
        core.listen(transport, at, &options)?;
        self.does(desk, format!("listens at {at}"));
        Ok(())
    }

    /// Client: begins.
    ///
    /// # Errors
    /// When the endpoint does not take the command.
    pub(super) fn connect(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        to: SocketAddr,
    ) -> Result<()> {
        let transport = desk.rdma.context("the endpoint has no device")?;
        let uri = format!("rdma://{to}/demo");
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        let options = ConnectOptions::new(0);
        let slots = &mut desk.env.memory[desk.number as usize];
        let id = core.connect(desk.now, transport, to, &open, &options, slots)?;
        self.connection = Some(id);
        self.opened(desk);
        self.does(desk, format!("connects to {uri}"));
        Ok(())
    }

    fn opened(&mut self, desk: &mut Desk<'_>) {
        let at = desk.env.now();
        desk.ledger.take(at, Fact::Opened { side: self.side });
    }

    /// Notes what this side does.
    fn does(&mut self, desk: &Desk<'_>, text: impl Into<String>) {
        self.note(desk, true, text.into());
    }

    /// Notes what this side was told.
    fn was_told(&mut self, desk: &Desk<'_>, text: impl Into<String>) {
        self.note(desk, false, text.into());
    }

    fn note(&mut self, desk: &Desk<'_>, is_cause: bool, text: String) {
        self.notes.push(Note {
            at: desk.env.now(),
            is_client: self.is_client,
            is_cause,
            text,
        });
    }

    /// Something is not as it must be.
    #[cold]
    fn wrong(&mut self, desk: &mut Desk<'_>, text: String) {
        let at = desk.env.now();
        desk.ledger.breach(at, Check::Sense, text);
    }
}

// Sending.
impl Peer {
    /// Client: sends what may be sent, and closes when all is done.
    fn pump(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        let Some(id) = self.connection.filter(|_| self.is_up && !self.is_closing) else {
            return;
        };
        while self.next < self.plan.messages() && self.out < self.depth {
            match self.send_next(core, desk, id) {
                Ok(()) => self.next += 1,
                // `Writable` will come, or the connection's end.
                Err(CommandError::Full(_) | CommandError::NoCredit | CommandError::Closed(_)) => {
                    return;
                }
                Err(error) => {
                    self.wrong(desk, format!("message {} was refused: {error}", self.next));
                    return;
                }
            }
        }
        if self.next == self.plan.messages() && self.out == 0 {
            self.is_closing = true;
            self.does(desk, "closes the connection");
            if let Err(error) = core.close(desk.now, id) {
                self.wrong(desk, format!("closing was refused: {error}"));
            }
        }
    }

    fn send_next(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        id: ConnectionId,
    ) -> Result<(), CommandError> {
        let number = self.next;
        let shape = self.plan.shape(number);
        let class = if shape.one_way {
            Class::Receipted
        } else {
            Class::Request
        };
        let mut parcel = self.pack(core, desk, id, class, number, shape.len)?;
        if shape.offers && shape.answer_len > INLINE_MAX {
            let rights = Rights::LOCAL_WRITE.and(Rights::REMOTE_WRITE);
            parcel.cargo.into = hold(desk, shape.answer_len, rights);
        }
        let into = parcel.cargo.into.map(Buffer::segment);
        let options = RequestOptions {
            into: into.as_slice(),
            receipt: shape.one_way,
            ..RequestOptions::default()
        };
        let user = u64::from(number) + 1;
        let sent = if shape.one_way {
            core.send_one_way(id, &parcel.message(user), &options)
        } else {
            core.send(id, &parcel.message(user), &options)
        };
        self.handed_over(core, desk, user, parcel, sent.map(|_| ()))
    }

    /// Server: answers a request; one that cannot be answered yet is kept.
    fn respond(&mut self, core: &mut Core, desk: &mut Desk<'_>, due: Due) {
        let done = self.try_respond(core, desk, due);
        match done {
            Ok(()) => {}
            Err(CommandError::Full(_) | CommandError::NoCredit) => self.due.push_front(due),
            Err(error) => {
                if !matches!(error, CommandError::Closed(_)) {
                    self.wrong(desk, format!("an answer was refused: {error}"));
                }
                self.release(core, desk, due.task);
            }
        }
    }

    fn try_respond(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        due: Due,
    ) -> Result<(), CommandError> {
        let id = self.connection.ok_or(CommandError::Unknown)?;
        let len = self.plan.shape(due.number).answer_len;
        let class = Class::Response(due.ledger);
        let parcel = self.pack(core, desk, id, class, due.number, len)?;
        let user = u64::from(due.number) + 1;
        let sent = core.respond(due.task, &parcel.message(user));
        self.handed_over(core, desk, user, parcel, sent)
    }

    /// Puts a message into a slot, and data that is not small into user memory.
    fn pack(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        id: ConnectionId,
        class: Class,
        number: u32,
        len: u32,
    ) -> Result<Parcel, CommandError> {
        let slot = core.reserve_slot(id)?;
        let ledger = desk.ledger.number_message(self.side, class);
        let kind = match class {
            Class::Response(_) => Kind::Answered,
            _ => Kind::Asked,
        };
        let at = core.config().headroom();
        let sent_at = desk.env.now();
        let mut parcel = Parcel {
            slot,
            slot_data: 0,
            segment: [Segment::default()],
            cargo: Cargo {
                ledger,
                sent_at,
                data: None,
                into: None,
            },
        };
        let bytes = &mut desk.memory().slot_mut(slot)[at..];
        bytes[..8].copy_from_slice(&u64::from(number).to_be_bytes());
        bytes[8..HEADER].copy_from_slice(&ledger.to_be_bytes());
        if len <= COPY_MAX {
            parcel.slot_data = len;
            fill(&mut bytes[HEADER..][..len as usize], kind, number);
        } else if let Some(buffer) = hold(desk, len, Rights::REMOTE_READ) {
            fill(desk.memory().user_mut(buffer.segment()), kind, number);
            parcel.segment = [buffer.segment()];
            parcel.cargo.data = Some(buffer);
        } else {
            self.wrong(desk, format!("no memory for {len} bytes"));
        }
        Ok(parcel)
    }

    /// Books what was taken; what was not is the user's again.
    fn handed_over(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        user: u64,
        parcel: Parcel,
        sent: Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        if sent.is_err() {
            give_back(desk, &parcel.cargo);
            if core.return_slot(parcel.slot).is_err() {
                self.wrong(desk, "a slot was kept after a refusal".to_owned());
            }
            return sent;
        }
        let at = desk.env.now();
        let taken = Fact::Taken {
            message: parcel.cargo.ledger,
            digest: 0,
            buffers: parcel.cargo.data.is_some() || parcel.cargo.into.is_some(),
            len: parcel.cargo.data.map_or(0, |data| data.len.into()),
            room: parcel.cargo.into.map_or(0, |into| into.len.into()),
            receipt: desk.ledger.class(parcel.cargo.ledger) == Some(Class::Receipted),
            deadline: None,
        };
        desk.ledger.take(at, taken);
        self.cargo.insert(user, parcel.cargo);
        self.out += 1;
        Ok(())
    }

    fn release(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId) {
        if let Err(error) = core.release(task) {
            self.wrong(desk, format!("{task:?} could not be given back: {error}"));
        }
    }
}

/// Allocates a buffer that a message will hold.
fn hold(desk: &mut Desk<'_>, len: u32, rights: Rights) -> Option<Buffer> {
    let buffer = desk.memory().allocate(len, rights)?;
    desk.memory().hold(buffer.lkey);
    Some(buffer)
}

fn unhold(desk: &mut Desk<'_>, buffer: Buffer) {
    desk.memory().unhold(buffer.lkey);
    desk.memory().free(buffer);
}

fn give_back(desk: &mut Desk<'_>, cargo: &Cargo) {
    for buffer in [cargo.data, cargo.into].into_iter().flatten() {
        unhold(desk, buffer);
    }
}

// Receiving.
impl Peer {
    /// Reads a message and compares it with the plan.
    fn inspect(&self, core: &Core, desk: &Desk<'_>, header: Span, data: &Data) -> Arrival {
        let memory = &desk.env.memory[desk.number as usize];
        let bytes = header.of(memory.slot(SlotId(header.slot)));
        let word = |at: usize| {
            let eight = bytes.get(at..at + 8).and_then(|b| b.first_chunk());
            eight.map_or(u64::MAX, |eight| u64::from_be_bytes(*eight))
        };
        let number = u32::try_from(word(0)).unwrap_or(u32::MAX);
        let known = bytes.len() == HEADER && number < self.plan.messages();
        let mut arrival = Arrival {
            number,
            ledger: word(8),
            intact: None,
        };
        if !known {
            return arrival;
        }
        let shape = self.plan.shape(number);
        let (kind, len) = if self.is_client {
            (Kind::Answered, shape.answer_len)
        } else {
            (Kind::Asked, shape.len)
        };
        let same = match data {
            Data::Slot(span) => {
                let bytes = span.of(memory.slot(SlotId(span.slot)));
                is_as_written(bytes, 0, kind, number)
            }
            Data::Segments(span) => {
                let mut offset = 0;
                core.segments(*span).all(|segment| {
                    let same = is_as_written(memory.user(segment), offset, kind, number);
                    offset += u64::from(segment.len);
                    same
                })
            }
        };
        if same && data.len() == u64::from(len) {
            arrival.intact = Some(data.len());
        }
        arrival
    }

    /// A message came: tells the ledger, and frees what was provided for its payload.
    fn delivered(
        &mut self,
        core: &Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        header: Span,
        data: &Data,
    ) -> Arrival {
        let arrival = self.inspect(core, desk, header, data);
        if arrival.intact.is_none() {
            self.tally.damaged += 1;
        }
        let at = desk.env.now();
        let fact = Fact::Delivered {
            life: 0,
            message: arrival.ledger,
            side: self.side,
            digest: u64::from(arrival.intact.is_none()),
        };
        desk.ledger.take(at, fact);
        self.free_provided(desk, task);
        arrival
    }

    fn free_provided(&mut self, desk: &mut Desk<'_>, task: TaskId) {
        if let Some(buffer) = self.provided.remove(&task.index()) {
            unhold(desk, buffer);
        }
    }

    /// Memory for a payload that does not fit a frame.
    fn provide(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId, len: u64) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let Some(buffer) = hold(desk, len, Rights::LOCAL_WRITE) else {
            self.wrong(desk, format!("no memory for a payload of {len} bytes"));
            return;
        };
        self.provided.insert(task.index(), buffer);
        if let Err(error) = core.provide(task, &[buffer.segment()]) {
            self.free_provided(desk, task);
            self.wrong(desk, format!("memory for a payload was refused: {error}"));
        }
    }

    /// A message of this side has its outcome.
    fn ended(&mut self, desk: &mut Desk<'_>, user: u64, outcome: Outcome, returned: bool) {
        let Some(cargo) = self.cargo.get(&user) else {
            self.wrong(desk, format!("message {user} ended and was not sent"));
            return;
        };
        let at = desk.env.now();
        let message = cargo.ledger;
        if outcome == Outcome::Receipt {
            desk.ledger.take(at, Fact::ReceiptCame { message, code: 0 });
        }
        let fact = Fact::Ended {
            message,
            outcome,
            returned,
            clock: desk.now.as_nanos(),
        };
        desk.ledger.take(at, fact);
        self.out -= 1;
        if returned && let Some(cargo) = self.cargo.remove(&user) {
            give_back(desk, &cargo);
        }
    }

    fn failed(&mut self, desk: &mut Desk<'_>, user: u64, outcome: Outcome, returned: bool) {
        self.tally.failed += 1;
        self.ended(desk, user, outcome, returned);
    }

    /// The buffers of a message that has its outcome are back; or those for a payload.
    fn buffers_returned(&mut self, desk: &mut Desk<'_>, task: TaskId, user: u64) {
        self.free_provided(desk, task);
        if let Some(cargo) = self.cargo.remove(&user) {
            let at = desk.env.now();
            let message = cargo.ledger;
            desk.ledger.take(at, Fact::Returned { message });
            give_back(desk, &cargo);
        }
    }
}

// What the endpoint tells.
impl Peer {
    fn session_request(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        session: SessionId,
        uri: Span,
    ) {
        let memory = &desk.env.memory[desk.number as usize];
        let uri = uri.of(memory.slot(SlotId(uri.slot)));
        let text = format!(
            "asked for {}, accepts",
            String::from_utf8_lossy(uri).trim_end_matches('\0')
        );
        self.was_told(desk, text);
        let slots = &mut desk.env.memory[desk.number as usize];
        match core.accept(desk.now, session, 0, &[], b"", slots) {
            Ok(id) => {
                self.connection = Some(id);
                self.opened(desk);
            }
            Err(error) => self.wrong(desk, format!("accepting was refused: {error}")),
        }
    }

    /// A message of the client came.
    fn asked(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        (header, data): (Span, Data),
        is_request: bool,
    ) {
        let arrival = self.delivered(core, desk, task, header, &data);
        let Some(bytes) = arrival.intact else {
            self.release(core, desk, task);
            return;
        };
        self.tally.arrived(arrival.number, bytes);
        if !is_request {
            self.release(core, desk, task);
            return;
        }
        let due = Due {
            task,
            number: arrival.number,
            ledger: arrival.ledger,
        };
        if self.due.is_empty() {
            self.respond(core, desk, due);
        } else {
            self.due.push_back(due);
        }
    }

    /// A response came.
    fn answered(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        user: u64,
        (header, data): (Span, Data),
    ) {
        let arrival = self.delivered(core, desk, task, header, &data);
        let number = u64::from(arrival.number);
        if let Some(bytes) = arrival.intact
            && number + 1 == user
            && let Some(cargo) = self.cargo.get(&user)
        {
            let nanos = desk.env.now() - cargo.sent_at;
            self.tally.response(arrival.number, bytes, nanos);
        } else {
            self.wrong(desk, format!("message {number} came as answer {user}"));
        }
        self.release(core, desk, task);
    }

    fn settle_due(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        while let Some(due) = self.due.pop_front() {
            let waiting = self.due.len();
            self.respond(core, desk, due);
            if self.due.len() > waiting {
                return;
            }
        }
    }

    fn connection_event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: &Event) {
        let at = desk.env.now();
        let side = self.side;
        match *event {
            Event::SessionRequest { session, uri, .. } => {
                self.session_request(core, desk, session, uri);
            }
            Event::Established { message, .. } => {
                desk.ledger.take(at, Fact::Established { side });
                self.was_told(desk, "established");
                self.is_up = true;
                if let Some(message) = message {
                    self.release(core, desk, message);
                }
            }
            Event::ConnectFailed {
                message, reason, ..
            } => {
                desk.ledger.take(at, Fact::ConnectFailed { side });
                self.was_told(desk, format!("connecting failed, {reason}"));
                if let Some(message) = message {
                    self.release(core, desk, message);
                }
            }
            Event::Closed { reason, .. } => {
                desk.ledger.take(at, Fact::Closed { side, badly: false });
                self.was_told(desk, reason.to_string());
                self.is_up = false;
                self.is_over = true;
            }
            Event::Writable { .. } | Event::SessionClosed { .. } => {}
            ref other => self.wrong(desk, format!("unexpected: {other:?}")),
        }
    }
}

impl User for Peer {
    fn sides(&self) -> Vec<u32> {
        vec![self.side]
    }

    fn turn(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        self.pump(core, desk);
    }

    fn event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: Event) {
        match event {
            Event::Request {
                task, header, data, ..
            } => self.asked(core, desk, task, (header, data), true),
            Event::OneWay {
                task, header, data, ..
            } => self.asked(core, desk, task, (header, data), false),
            Event::PayloadWaiting { task, len, .. } => self.provide(core, desk, task, len),
            Event::Response {
                task,
                user,
                header,
                data,
                buffers_returned,
                ..
            } => {
                self.answered(core, desk, task, user, (header, data));
                self.ended(desk, user, Outcome::Answered, buffers_returned);
            }
            Event::Delivered {
                user,
                receipt: Receipt::Accepted,
                buffers_returned,
                ..
            } => {
                self.tally.receipt(user as u32 - 1);
                self.ended(desk, user, Outcome::Receipt, buffers_returned);
            }
            Event::Sent { user, .. } => self.ended(desk, user, Outcome::Sent, true),
            Event::Delivered {
                user,
                buffers_returned,
                ..
            } => self.failed(desk, user, Outcome::Refused, buffers_returned),
            Event::Failed {
                user,
                buffers_returned,
                ..
            } => self.failed(desk, user, Outcome::Unknown, buffers_returned),
            Event::TimedOut {
                user,
                buffers_returned,
                ..
            } => self.failed(desk, user, Outcome::TimedOut, buffers_returned),
            Event::BuffersReturned { task, user } => self.buffers_returned(desk, task, user),
            other => self.connection_event(core, desk, &other),
        }
        if self.is_client {
            self.pump(core, desk);
        } else {
            self.settle_due(core, desk);
        }
    }
}
