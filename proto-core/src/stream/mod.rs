//! The stream layer (PROTOCOL.md 3): sockets in, frames and payload out. It sees byte counts and
//! slices, never a socket.
//!
//! Folder map: `pairing` (accepted sockets, their connect messages, which two belong together),
//! `assembly` (bytes to frames), `payload` (data outside the frames), `room` (receive slots and
//! who waits for one), `list` (the lists that sockets are in).
//!
//! Frames of one transport connection are handed on in the order of the control or single stream,
//! each with its data: one that waits for data holds back those behind it, but for keepalive.

mod assembly;
#[cfg(feature = "check")]
mod invariants;
mod list;
mod pairing;
mod payload;
mod room;

pub(crate) use list::List;

use core::net::SocketAddr;

use crate::endpoint::Endpoint;
use crate::entries::NOWHERE;
use crate::error::Reason;
use crate::ids::{ListenerId, NONE, NexusId, SocketId, TransportId};
use crate::inputs::recorded;
use crate::memory::SegmentSpan;
use crate::state::nexus;
use crate::state::socket::{self, Action, Input, State};
use crate::storage::Storage;
use crate::trace::Trace;
use crate::wire::SocketKind;
use list::{LISTS, Link, Listed};

/// Bytes of a control frame without payload, the longest of the frames that need no slot.
const BARE_MAX: usize = 96;

/// Frames of a control stream that may be here before their data.
const RUN_AHEAD: u32 = 32;

/// What the next bytes of a socket are.
///
/// A driver reads a socket that has something like this, and again when
/// [`poll_stream`](Endpoint::poll_stream) names it:
///
/// ```text
/// loop {
///     match endpoint.stream_want(socket) {
///         Nothing       => stop,
///         Bytes(_)      => read into the buffer unless it holds some, or stop;
///                          taken = endpoint.handle_stream_bytes(now, socket, buffer, slots);
///                          drop `taken` bytes from the front of the buffer
///         Payload(span) => copy what the buffer holds into `endpoint.segments(span)`, or read
///                          straight into them;
///                          endpoint.handle_stream_payload(now, socket, bytes, slots)
///         Discard(most) => drop what the buffer holds, or read and drop;
///                          endpoint.handle_stream_payload(now, socket, bytes, slots)
///     }
/// }
/// ```
///
/// At the end of the stream it calls [`handle_socket_closed`](Endpoint::handle_socket_closed),
/// after it has fed what it read before.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StreamWant {
    /// Nothing can be taken now: leave the bytes where they are until
    /// [`poll_stream`](Endpoint::poll_stream) names the socket.
    Nothing,
    /// Read into a buffer of the driver's and pass it to
    /// [`handle_stream_bytes`](Endpoint::handle_stream_bytes). More than this number of bytes can
    /// not be taken yet; a driver may read more and keep the rest.
    Bytes(u64),
    /// The next bytes go straight into this user memory, as many as come, and their number into
    /// [`handle_stream_payload`](Endpoint::handle_stream_payload).
    Payload(SegmentSpan),
    /// So many bytes mean nothing to anybody: drop as many as come and tell their number to
    /// [`handle_stream_payload`](Endpoint::handle_stream_payload).
    Discard(u64),
}

/// A socket that the stream layer knows.
#[derive(Clone, Debug)]
pub struct Socket {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) timer: u32,
    state: State,
    transport: u8,
    kind: SocketKind,
    listener: ListenerId,
    peer: SocketAddr,
    local: Option<SocketAddr>,
    nexus: u32,
    /// The client's port of the other socket of the pair.
    second_port: u16,
    reason: Reason,

    // Lists, and (of the row, not of this socket) those that wait for a partner, by address.
    links: [Link; LISTS],
    bucket: List,
    /// The driver has been told to leave the bytes where they are.
    stopped: bool,
    /// What came cannot be cut into frames: the rest means nothing.
    broken: bool,

    // What is being collected: the connect message, then the first 16 bytes of a frame or all of
    // a bare control frame, or a longer frame in its slot.
    head: [u8; BARE_MAX],
    head_len: u8,
    /// A bare control frame is complete, and waits for the data of the frames before it.
    parked: bool,
    slot: u32,
    have: u32,
    /// Bytes of the whole frame on this socket; 0 while its first 16 are not here.
    need: u32,

    // Data socket: frames that wait for their data, oldest first, and their inline bytes.
    frames: [u32; 2],
    frame_count: u32,
    inline_left: u64,

    // Single and data socket: payload outside the frames, and the message that takes it.
    payload_left: u64,
    task: u32,
    task_generation: u32,
    /// Message into whose memory the driver may be writing.
    lent: u32,
}

impl Socket {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        timer: NONE,
        state: State::Vacant,
        transport: 0,
        kind: SocketKind::Single,
        listener: ListenerId::new(NONE, 0),
        peer: NOWHERE,
        local: None,
        nexus: NONE,
        second_port: 0,
        reason: Reason::Closed,
        links: [Link::OUT; LISTS],
        bucket: List::EMPTY,
        stopped: true,
        broken: false,
        head: [0; BARE_MAX],
        head_len: 0,
        parked: false,
        slot: NONE,
        have: 0,
        need: 0,
        frames: [NONE; 2],
        frame_count: 0,
        inline_left: 0,
        payload_left: 0,
        task: NONE,
        task_generation: 0,
        lent: NONE,
    };
}

impl Socket {
    /// Whether the next bytes of a control or single socket are a frame's first ones, as far as
    /// the socket itself tells.
    #[inline(always)]
    fn is_between_frames(&self) -> bool {
        self.head_len == 0
            && self.slot == NONE
            && self.payload_left == 0
            && !(self.broken || self.parked || self.links[Listed::Place as usize].linked)
    }
}

/// What a transport connection's state means for the bytes of its sockets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Flow {
    /// Not connected yet.
    Off,
    On,
    /// Going down: whatever still comes is dropped.
    Drop,
}

const fn flow(state: nexus::State) -> Flow {
    use nexus::State;
    match state {
        State::Handshaking
        | State::Accepting
        | State::Awaiting
        | State::Refusing
        | State::Online
        | State::Idle
        | State::Draining => Flow::On,
        State::Disconnecting | State::Destroying => Flow::Drop,
        _ => Flow::Off,
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The sockets of a transport connection on streams: the control or single one, and the data
    /// one. A client's have ids from `CreateQueuePair` on, before the driver has made them; a
    /// server's are those that [`handle_socket_accepted`](Self::handle_socket_accepted) gave.
    pub fn sockets(&self, nexus: NexusId) -> [Option<SocketId>; 2] {
        let view = self.s.view();
        let row = view.nexuses.get(nexus.index());
        let row = row.filter(|n| n.generation == nexus.generation());
        row.map_or([None; 2], |n| {
            n.sockets.map(|s| {
                let row = view.sockets.get(s as usize);
                row.map(|row| SocketId::new(s, row.generation))
            })
        })
    }

    /// A socket that may be read again: what it wants has changed from
    /// [`Nothing`](StreamWant::Nothing). Each is named once per change.
    #[must_use]
    #[inline]
    pub fn poll_stream(&mut self, transport: TransportId) -> Option<SocketId> {
        recorded!(self, PollStream { transport } => self.poll_stream(transport));
        let list = &mut self.g.transports.get_mut(transport.0 as usize)?.streams;
        let rows = self.s.tables().sockets;
        let s = list.pop(rows, Listed::Ready)?;
        Some(SocketId::new(s, rows[s as usize].generation))
    }

    #[inline(always)]
    fn socket(&mut self, s: u32) -> &mut Socket {
        &mut self.s.tables().sockets[s as usize]
    }

    /// The row of a socket whose life is not over; another id is counted.
    #[inline]
    fn find_socket(&mut self, id: SocketId) -> Option<u32> {
        let row = self.s.tables().sockets.get(id.index());
        if row.is_some_and(|row| row.generation == id.generation() && row.state != State::Vacant) {
            return Some(id.at());
        }
        self.g.counters.stale_sockets += 1;
        None
    }

    fn socket_input(&mut self, s: u32, input: Input) -> Action {
        let row = self.socket(s);
        let from = row.state;
        let (next, action) = socket::lookup(from, input);
        row.state = next;
        if action == Action::Ignored {
            self.g.counters.ignored_inputs += 1;
        } else {
            self.trace
                .transition(4, s, from as u8, input as u8, next as u8);
        }
        action
    }

    fn take_socket(&mut self, transport: u8) -> Option<u32> {
        let rows = self.s.tables().sockets;
        let s = self.g.sockets.take(rows)?;
        let row = &mut rows[s as usize];
        *row = Socket {
            generation: row.generation,
            bucket: row.bucket,
            transport,
            ..Socket::VACANT
        };
        Some(s)
    }

    /// Ends a row that is in no list of half-open sockets any more.
    fn free_socket(&mut self, s: u32) {
        self.unlist(s, Listed::Ready);
        self.unlist(s, Listed::Place);
        let rows = self.s.tables().sockets;
        self.g.sockets.give(rows, s);
        self.one_less();
    }

    /// Says that a socket may be read again, if its driver has been told to stop.
    fn wake(&mut self, s: u32) {
        let rows = self.s.tables().sockets;
        let row = &rows[s as usize];
        let transport = row.transport;
        if row.stopped && !row.links[Listed::Ready as usize].linked {
            let list = &mut self.g.transport(transport).streams;
            list.push(rows, Listed::Ready, s);
        }
    }

    fn wake_sockets(&mut self, n: u32) {
        for s in self.nexus(n).sockets {
            if s != NONE {
                self.wake(s);
            }
        }
    }

    /// The transport connection goes down: its sockets are emptied from now on, and what comes
    /// later cannot be cut into frames any more.
    pub(crate) fn drop_streams(&mut self, n: u32) {
        for s in self.nexus(n).sockets {
            if s != NONE {
                self.socket(s).broken = true;
                self.wake(s);
            }
        }
    }

    /// Gives the sockets of a transport connection back, with all that they hold.
    pub(crate) fn close_sockets(&mut self, n: u32) {
        for s in core::mem::replace(&mut self.nexus(n).sockets, [NONE; 2]) {
            if s == NONE {
                continue;
            }
            self.unlist(s, Listed::Place);
            self.end_lease(s);
            let row = self.socket(s);
            let slot = core::mem::replace(&mut row.slot, NONE);
            if slot != NONE {
                self.give_stream_slot(n, slot);
            }
            while let Some(slot) = self.pop_frame(s) {
                self.give_stream_slot(n, slot);
            }
            self.socket_input(s, Input::Released);
            self.free_socket(s);
        }
    }
}
