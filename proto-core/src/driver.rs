//! What a driver offers: the one interface of simulator, sockets and verbs, so that a program (and
//! the conformance suite) runs over each of them with only the constructor changed.
//!
//! A [`Driver`] owns an endpoint, its slots and the user's buffers. It implements the few methods
//! that know the device; everything that is the same over all of them is provided here, commands
//! included: they go through the driver, so that it knows which buffers are in flight. Such a
//! buffer cannot be reached until the event that says that it is back.

use core::net::SocketAddr;
use core::ops::Range;
use core::time::Duration;

use crate::config::{ConnectOptions, ConnectionPolicy, ListenOptions, PoolMemory, TransportLimits};
use crate::endpoint::{
    ConfigError, Endpoint, Message, RemoteMemory, RequestOptions, SessionOpen, SessionTicket,
};
use crate::error::CommandError;
use crate::event::{Data, Event};
use crate::ids::{ConnectionId, ListenerId, RegionId, SessionId, TaskId, TransportId};
use crate::memory::{Segment, SlotId, Slots, Span};
use crate::output::{Access, Control, Work};
use crate::storage::Storage;
use crate::time::Instant;
use crate::trace::Trace;

bitflags::bitflags! {
    /// What a driver can do besides messages.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct Capabilities: u8 {
        /// Direct READ and WRITE (PROTOCOL.md 11).
        const DIRECT = 1;
        /// Bytes of sockets: `dual_stream` of a connect means something (PROTOCOL.md 3).
        const STREAMS = 2;
        /// Time stands still between polls, and passes as fast as wanted within one.
        const VIRTUAL_TIME = 4;
    }
}

/// Memory of the user that a driver keeps: sent from and received into without a copy.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId {
    index: u32,
    generation: u32,
}

impl BufferId {
    /// An id as the driver's table has it.
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }
    /// Place in the driver's table.
    pub const fn index(self) -> usize {
        self.index as usize
    }
    /// How often the place was used before.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// Why a buffer cannot be had.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BufferError {
    /// No such buffer (any more), or not so many bytes in it.
    Unknown,
    /// So many messages in flight still use it.
    InFlight(u32),
    /// The driver's memory, or its table of buffers, has not so much left.
    NoRoom {
        /// Bytes asked for.
        need: u64,
        /// The most that there is.
        have: u64,
    },
}

impl core::fmt::Display for BufferError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Unknown => f.write_str("no such buffer"),
            Self::InFlight(n) => write!(f, "buffer is in flight with {n} messages"),
            Self::NoRoom { need, have } => write!(f, "a buffer of {need} bytes; {have} are left"),
        }
    }
}

impl core::error::Error for BufferError {}

/// What only this module can make: it keeps users away from the methods of a [`Driver`] that are
/// between it and the core.
#[derive(Copy, Clone, Debug)]
pub struct Key(());

/// What a command works on.
pub struct Parts<'a, S, T, M> {
    /// The protocol.
    pub endpoint: &'a mut Endpoint<S, T>,
    /// The driver's slots.
    pub slots: &'a mut M,
}

/// An endpoint with what moves its bytes. Call [`next_event`](Self::next_event) until it has no
/// more, then [`poll`](Self::poll).
#[allow(
    clippy::missing_errors_doc,
    reason = "commands say what those of `Endpoint` say"
)]
pub trait Driver {
    /// Tables of the endpoint.
    type Storage: Storage;
    /// Observer of the endpoint.
    type Trace: Trace;
    /// Slots of the endpoint.
    type Slots: Slots;
    /// What makes the driver itself fail, and all its connections with it.
    type Error: core::error::Error + 'static;

    // What it is.

    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// Its transport.
    fn transport(&self) -> TransportId;
    /// Lets the user look at the endpoint: its counters, what is known of a connection.
    fn look<R>(&self, run: impl FnOnce(&Endpoint<Self::Storage, Self::Trace>) -> R) -> R;
    /// What it told the endpoint of its device.
    fn limits(&self) -> TransportLimits {
        self.look(|endpoint| endpoint.limits(self.transport()))
    }
    /// Where a listener is bound, as soon as it is: the port of one that asked for port 0.
    fn listening(&self, listener: ListenerId) -> Option<SocketAddr>;

    /// The driver's time: what a message's deadline is reckoned from.
    fn now(&mut self) -> Instant;

    // How it works; behind a key that users cannot have.

    /// Runs a command on the endpoint.
    fn with<R>(
        &mut self,
        key: Key,
        run: impl FnOnce(Parts<'_, Self::Storage, Self::Trace, Self::Slots>) -> R,
    ) -> R;
    /// Carries out an action of the communication manager.
    fn control(&mut self, key: Key, control: Control);
    /// Posts a work request.
    fn work(&mut self, key: Key, work: Work);
    /// Whether all segments lie within buffers of this driver's (or have no address).
    fn knows(&self, key: Key, segments: &[Segment]) -> bool;
    /// These segments go with the command that follows: a device may touch them from now on.
    fn hold(&mut self, _key: Key, _segments: &[Segment]) {}
    /// That command was refused.
    fn unhold(&mut self, _key: Key, _segments: &[Segment]) {}
    /// The buffers of these segments are in flight with a message.
    fn lend(&mut self, key: Key, task: TaskId, segments: &[Segment]);
    /// The buffer is the endpoint's from now on, for good.
    fn keep(&mut self, key: Key, buffer: BufferId);
    /// All buffers of a message are back.
    fn give_back(&mut self, key: Key, task: TaskId);
    /// An event of the endpoint's, unless the driver holds one that is older.
    fn take_event(&mut self, key: Key) -> Option<Event> {
        self.with(key, |p| p.endpoint.poll_event())
    }

    // The loop.

    /// Carries out what the endpoint wants, and takes what the device has, until there is an event
    /// for the user, a `Waker` of the driver's is used, or `timeout` is over (`None`: no timeout).
    /// True when there is an event.
    ///
    /// # Errors
    /// The driver cannot go on.
    fn poll(&mut self, timeout: Option<Duration>) -> Result<bool, Self::Error>;

    /// The next thing that the user is told.
    fn next_event(&mut self) -> Option<Event> {
        let event = self.take_event(Key(()))?;
        if let Some(task) = returned(&event) {
            self.give_back(Key(()), task);
        }
        Some(event)
    }

    /// Hands on what the endpoint wants of communication manager and device, until it wants
    /// nothing more; part of [`poll`](Self::poll).
    fn carry_out(&mut self) {
        let transport = self.transport();
        loop {
            let control = self.with(Key(()), |p| p.endpoint.poll_control(transport));
            if let Some(control) = control {
                self.control(Key(()), control);
                continue;
            }
            match self.with(Key(()), |p| p.endpoint.poll_work(transport, p.slots)) {
                Some(work) => self.work(Key(()), work),
                None => return,
            }
        }
    }

    // Buffers.

    /// A buffer of `len` bytes, all 0.
    fn allocate(&mut self, len: usize) -> Result<BufferId, BufferError>;
    /// Gives a buffer up.
    fn free(&mut self, buffer: BufferId) -> Result<(), BufferError>;
    /// A part of a buffer as a segment for messages.
    fn segment(&self, buffer: BufferId, part: Range<usize>) -> Result<Segment, BufferError>;
    /// Lets the user at a buffer that is not in flight.
    fn with_buffer<R>(
        &mut self,
        buffer: BufferId,
        run: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, BufferError>;
    /// Calls `run` with each piece of what a received message has in buffers or in its slot.
    fn with_data(&mut self, data: Data, run: impl FnMut(&[u8]));

    /// Lets the user at what was received into a slot.
    fn with_span<R>(&mut self, span: Span, run: impl FnOnce(&[u8]) -> R) -> R {
        self.with(Key(()), |p| {
            run(if span.len == 0 {
                &[]
            } else {
                span.of(p.slots.slot(SlotId(span.slot)))
            })
        })
    }

    /// Lets the user write the application header and small data of a message into a slot that it
    /// reserved. `None` when it did not, or gave it away already.
    fn with_slot<R>(&mut self, slot: SlotId, run: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        self.with(Key(()), |p| {
            let at = p.endpoint.config().headroom();
            let reserved = p.endpoint.is_reserved(slot);
            reserved.then(|| run(&mut p.slots.slot_mut(slot)[at..]))
        })
    }

    // Commands, as those of `Endpoint`.

    /// As [`Endpoint::listen`]; has the driver bind at once, so that
    /// [`listening`](Self::listening) has the address when this returns.
    fn listen(
        &mut self,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<ListenerId, CommandError> {
        let transport = self.transport();
        let listener = self.with(Key(()), |p| p.endpoint.listen(transport, address, options))?;
        self.carry_out();
        Ok(listener)
    }
    /// As [`Endpoint::unlisten`], at once.
    fn unlisten(&mut self, listener: ListenerId) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.unlisten(listener))?;
        self.carry_out();
        Ok(())
    }
    /// As [`Endpoint::connect`].
    fn connect(
        &mut self,
        peer: SocketAddr,
        open: &SessionOpen<'_>,
        options: &ConnectOptions,
    ) -> Result<ConnectionId, CommandError> {
        let (now, transport) = (self.now(), self.transport());
        self.with(Key(()), |p| {
            let endpoint = p.endpoint;
            endpoint.connect(now, transport, peer, open, options, p.slots)
        })
    }
    /// As [`Endpoint::accept`].
    fn accept(
        &mut self,
        session: SessionId,
        user: u64,
        portals: &[&[u8]],
        private: &[u8],
    ) -> Result<ConnectionId, CommandError> {
        let now = self.now();
        self.with(Key(()), |p| {
            let endpoint = p.endpoint;
            endpoint.accept(now, session, user, portals, private, p.slots)
        })
    }
    /// As [`Endpoint::reject`].
    fn reject(
        &mut self,
        session: SessionId,
        reason: u32,
        private: &[u8],
    ) -> Result<(), CommandError> {
        let now = self.now();
        self.with(Key(()), |p| {
            p.endpoint.reject(now, session, reason, private, p.slots)
        })
    }
    /// As [`Endpoint::redirect`].
    fn redirect(&mut self, session: SessionId, portals: &[&[u8]]) -> Result<(), CommandError> {
        let now = self.now();
        self.with(Key(()), |p| {
            p.endpoint.redirect(now, session, portals, p.slots)
        })
    }
    /// As [`Endpoint::close`].
    fn close(&mut self, connection: ConnectionId) -> Result<(), CommandError> {
        let now = self.now();
        self.with(Key(()), |p| p.endpoint.close(now, connection))
    }
    /// As [`Endpoint::abort`].
    fn abort(&mut self, connection: ConnectionId) -> Result<(), CommandError> {
        let now = self.now();
        self.with(Key(()), |p| p.endpoint.abort(now, connection))
    }
    /// As [`Endpoint::stop`].
    fn stop(&mut self, bound: Duration) {
        let now = self.now();
        self.with(Key(()), |p| p.endpoint.stop(now, bound));
    }
    /// As [`Endpoint::reserve_slot`].
    fn reserve_slot(&mut self, connection: ConnectionId) -> Result<SlotId, CommandError> {
        self.with(Key(()), |p| p.endpoint.reserve_slot(connection))
    }
    /// As [`Endpoint::reserve_answer_slot`].
    fn reserve_answer_slot(&mut self, request: TaskId) -> Result<SlotId, CommandError> {
        self.with(Key(()), |p| p.endpoint.reserve_answer_slot(request))
    }
    /// As [`Endpoint::return_slot`].
    fn return_slot(&mut self, slot: SlotId) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.return_slot(slot))
    }
    /// As [`Endpoint::send`]; `BadAddress` for segments that are not of this driver's buffers.
    fn send(
        &mut self,
        connection: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) -> Result<TaskId, CommandError> {
        self.tell_time(connection, options.deadline);
        self.submit(&[message.data, options.into], |p| {
            p.endpoint.send(connection, message, options)
        })
    }
    /// As [`Endpoint::send_one_way`], and [`send`](Self::send).
    fn send_one_way(
        &mut self,
        connection: ConnectionId,
        message: &Message<'_>,
        options: &RequestOptions<'_>,
    ) -> Result<TaskId, CommandError> {
        self.tell_time(connection, options.deadline);
        self.submit(&[message.data, options.into], |p| {
            p.endpoint.send_one_way(connection, message, options)
        })
    }
    /// As [`Endpoint::respond`], and [`send`](Self::send).
    fn respond(&mut self, request: TaskId, message: &Message<'_>) -> Result<(), CommandError> {
        self.submit(&[message.data], |p| {
            p.endpoint.respond(request, message).map(|()| request)
        })?;
        Ok(())
    }
    /// As [`Endpoint::provide`], and [`send`](Self::send).
    fn provide(&mut self, task: TaskId, segments: &[Segment]) -> Result<(), CommandError> {
        self.submit(&[segments], |p| {
            p.endpoint.provide(task, segments).map(|()| task)
        })?;
        Ok(())
    }
    /// As [`Endpoint::read`], and [`send`](Self::send).
    fn read(
        &mut self,
        connection: ConnectionId,
        local: &[Segment],
        remote: &RemoteMemory,
        user: u64,
        deadline: Option<Instant>,
    ) -> Result<TaskId, CommandError> {
        self.tell_time(connection, deadline);
        self.submit(&[local], |p| {
            p.endpoint.read(connection, local, remote, user, deadline)
        })
    }
    /// As [`Endpoint::write`], and [`send`](Self::send).
    fn write(
        &mut self,
        connection: ConnectionId,
        local: &[Segment],
        remote: &RemoteMemory,
        user: u64,
        deadline: Option<Instant>,
    ) -> Result<TaskId, CommandError> {
        self.tell_time(connection, deadline);
        self.submit(&[local], |p| {
            p.endpoint.write(connection, local, remote, user, deadline)
        })
    }
    /// As [`Endpoint::register`], of a part of a buffer, which cannot be reached until the region
    /// is revoked.
    fn register(
        &mut self,
        part: &Segment,
        access: Access,
        user: u64,
    ) -> Result<RegionId, CommandError> {
        if !self.knows(Key(()), core::slice::from_ref(part)) {
            return Err(CommandError::BadAddress);
        }
        let transport = self.transport();
        let (addr, len) = (part.addr, part.len.into());
        self.with(Key(()), |p| {
            p.endpoint.register(transport, addr, len, access, user)
        })
    }
    /// As [`Endpoint::revoke`].
    fn revoke(&mut self, region: RegionId) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.revoke(region))
    }
    /// Lends the endpoint memory for payloads, so many chunks of so many bytes, as
    /// [`Endpoint::add_pool`]: connections with such a [policy](Self::set_policy) take theirs from
    /// it and do not ask. Once, and for good.
    ///
    /// # Errors
    /// As [`Endpoint::add_pool`], and when the driver has not so much memory.
    fn add_pool(&mut self, chunk: u32, chunks: u16) -> Result<(), ConfigError> {
        let bytes = chunk as usize * usize::from(chunks);
        let none = |bound| ConfigError {
            what: "bytes of a pool",
            value: bytes as u64,
            bound,
        };
        let buffer = self.allocate(bytes).map_err(|error| match error {
            BufferError::NoRoom { have, .. } => none(have),
            _ => none(0),
        })?;
        let first = self.segment(buffer, 0..bytes.min(1)).map_err(|_| none(0))?;
        let transport = self.transport();
        let memory = PoolMemory {
            addr: first.addr,
            lkey: first.lkey,
            chunk,
            chunks,
        };
        let added = self.with(Key(()), |p| p.endpoint.add_pool(transport, memory));
        match added {
            Ok(()) => self.keep(Key(()), buffer),
            // It was never lent.
            Err(_) => drop(self.free(buffer)),
        }
        added
    }
    /// As [`Endpoint::set_policy`].
    fn set_policy(
        &mut self,
        connection: ConnectionId,
        policy: ConnectionPolicy,
    ) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.set_policy(connection, policy))
    }
    /// As [`Endpoint::refuse`].
    fn refuse(&mut self, task: TaskId, status: u32) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.refuse(task, status))
    }
    /// As [`Endpoint::set_receipt`].
    fn set_receipt(&mut self, task: TaskId, code: u32) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.set_receipt(task, code))
    }
    /// As [`Endpoint::cancel`].
    fn cancel(&mut self, task: TaskId) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.cancel(task))
    }
    /// As [`Endpoint::release`].
    fn release(&mut self, task: TaskId) -> Result<(), CommandError> {
        self.with(Key(()), |p| p.endpoint.release(task))
    }
    /// As [`Endpoint::export_session`].
    fn export_session(
        &mut self,
        session: SessionId,
        joins: u16,
        expires: Instant,
    ) -> Result<SessionTicket, CommandError> {
        self.with(Key(()), |p| {
            p.endpoint.export_session(session, joins, expires)
        })
    }
    /// As [`Endpoint::import_session`].
    fn import_session(
        &mut self,
        ticket: &SessionTicket,
        user: u64,
    ) -> Result<SessionId, CommandError> {
        let now = self.now();
        self.with(Key(()), |p| p.endpoint.import_session(now, ticket, user))
    }
    /// As [`Endpoint::join`].
    fn join(
        &mut self,
        session: SessionId,
        portal: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<ConnectionId, CommandError> {
        let (now, transport) = (self.now(), self.transport());
        self.with(Key(()), |p| {
            let endpoint = p.endpoint;
            endpoint.join(now, session, transport, portal, options)
        })
    }
    /// Tells the endpoint the time before a message with a deadline: it knows that of its last input
    /// only, which may be long ago.
    #[doc(hidden)]
    fn tell_time(&mut self, connection: ConnectionId, deadline: Option<Instant>) {
        if deadline.is_some() || self.look(|endpoint| endpoint.has_deadline(connection)) {
            let now = self.now();
            self.with(Key(()), |p| p.endpoint.handle_clock(now));
        }
    }
    /// Runs a command that names memory, and notes which buffers it took.
    #[doc(hidden)]
    fn submit(
        &mut self,
        lists: &[&[Segment]],
        command: impl FnOnce(
            Parts<'_, Self::Storage, Self::Trace, Self::Slots>,
        ) -> Result<TaskId, CommandError>,
    ) -> Result<TaskId, CommandError> {
        let key = Key(());
        for list in lists.iter().filter(|list| !list.is_empty()) {
            if !self.knows(key, list) {
                return Err(CommandError::BadAddress);
            }
        }
        for list in lists.iter().filter(|list| !list.is_empty()) {
            self.hold(key, list);
        }
        let taken = self.with(key, command);
        for list in lists.iter().filter(|list| !list.is_empty()) {
            match taken {
                Ok(task) => self.lend(key, task, list),
                Err(_) => self.unhold(key, list),
            }
        }
        taken
    }
}

/// The message whose buffers are back with this event: for what was sent and for answers when the
/// event says so, for what was provided when the message is here.
fn returned(event: &Event) -> Option<TaskId> {
    match *event {
        Event::Request { task, .. }
        | Event::OneWay { task, .. }
        | Event::BuffersReturned { task, .. } => Some(task),
        Event::Response {
            task,
            buffers_returned,
            ..
        }
        | Event::Delivered {
            task,
            buffers_returned,
            ..
        }
        | Event::Sent {
            task,
            buffers_returned,
            ..
        }
        | Event::Failed {
            task,
            buffers_returned,
            ..
        }
        | Event::TimedOut {
            task,
            buffers_returned,
            ..
        }
        | Event::Cancelled {
            task,
            buffers_returned,
            ..
        } => buffers_returned.then_some(task),
        _ => None,
    }
}
