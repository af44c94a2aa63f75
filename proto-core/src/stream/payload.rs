//! Data outside the frames (PROTOCOL.md 3.4): it goes into the memory of the message that
//! announced it, or is dropped, byte by byte exactly as long as announced.
//!
//! Who takes it is looked up whenever the driver asks: a message that ended meanwhile takes
//! nothing, and the rest of its payload is dropped. While the driver may be writing into a
//! message's memory, that memory is lent to it, like to a READ on a queue pair.

use super::assembly::Gate;
use super::{Flow, StreamWant, flow};
use crate::endpoint::{Endpoint, Keep};
use crate::entries::{Transfer, Usual};
use crate::ids::{NONE, SocketId};
use crate::inputs::recorded;
use crate::memory::{ListKind, SegmentSpan, Slots};
use crate::state::socket::State;
use crate::state::task::{self, Action, Input};
use crate::storage::Storage;
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::{Framing, Response, SocketKind};

/// Who takes a payload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Taker {
    /// A message with memory for it.
    Memory(u32),
    /// A message whose user has not answered yet.
    Undecided,
    Nobody,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// What the next bytes of a socket are; asked before each read.
    ///
    /// After [`Payload`](StreamWant::Payload) the user's memory is lent to the driver until it
    /// reports with [`handle_stream_payload`](Self::handle_stream_payload) (0 bytes too), or asks
    /// again: a driver that reads without waiting always gives it back at once.
    #[must_use]
    #[inline]
    pub fn stream_want(&mut self, socket: SocketId) -> StreamWant {
        recorded!(self, StreamWant { socket } => self.stream_want(socket));
        let Some(s) = self.find_socket(socket) else {
            return StreamWant::Nothing;
        };
        let t = self.s.tables();
        let row = &mut t.sockets[s as usize];
        // What it nearly always is.
        if row.state == State::Bound && row.lent == NONE {
            let nexus = &t.nexuses[row.nexus as usize];
            let single = row.kind == SocketKind::Single && row.is_between_frames();
            let data = row.kind == SocketKind::Data && row.payload_left == 0 && !row.broken;
            let bytes = if single { u64::MAX } else { row.inline_left };
            if nexus.usual == Usual::OnStream && (single || data) && bytes > 0 {
                row.stopped = false;
                return StreamWant::Bytes(bytes);
            }
        }
        self.want_any(s)
    }

    #[inline(never)]
    fn want_any(&mut self, s: u32) -> StreamWant {
        self.end_lease(s);
        let want = match self.socket(s).state {
            State::Greeting => StreamWant::Bytes(u64::MAX),
            State::Bound => self.want(s),
            State::Waiting | State::Closing | State::Vacant => StreamWant::Nothing,
        };
        self.socket(s).stopped = want == StreamWant::Nothing;
        want
    }

    fn want(&mut self, s: u32) -> StreamWant {
        let row = self.socket(s);
        let (kind, inline) = (row.kind, row.inline_left);
        let gate = if kind == SocketKind::Data {
            self.data_gate(s)
        } else {
            self.gate(s)
        };
        match gate {
            Gate::Shut => StreamWant::Nothing,
            Gate::Drop => StreamWant::Discard(u64::MAX),
            Gate::Payload => self.want_payload(s),
            Gate::Slot if kind == SocketKind::Data => StreamWant::Bytes(inline),
            Gate::Slot | Gate::Head => StreamWant::Bytes(u64::MAX),
        }
    }

    fn data_gate(&mut self, s: u32) -> Gate {
        let row = self.socket(s);
        let (n, broken) = (row.nexus, row.broken);
        let (payload, inline) = (row.payload_left, row.inline_left);
        match flow(self.nexus(n).state) {
            Flow::Off => Gate::Shut,
            Flow::Drop => Gate::Drop,
            Flow::On if broken => Gate::Drop,
            Flow::On if payload > 0 => Gate::Payload,
            Flow::On if inline > 0 => Gate::Slot,
            Flow::On => Gate::Shut,
        }
    }

    fn want_payload(&mut self, s: u32) -> StreamWant {
        let left = self.socket(s).payload_left;
        match self.taker(s) {
            Taker::Nobody => StreamWant::Discard(left),
            Taker::Undecided => StreamWant::Nothing,
            Taker::Memory(t) => {
                self.socket(s).lent = t;
                let row = self.task(t);
                row.work += 1;
                StreamWant::Payload(SegmentSpan {
                    task: t,
                    list: ListKind::In,
                    skip: row.transfer.done,
                    len: left,
                })
            }
        }
    }

    /// Who takes the payload that comes next on a socket.
    fn taker(&mut self, s: u32) -> Taker {
        let row = self.socket(s);
        let (t, generation) = (row.task, row.task_generation);
        if t == NONE {
            return Taker::Nobody;
        }
        let row = self.task(t);
        if row.generation == generation {
            match row.state {
                task::State::Fetching | task::State::AnswerFetching => {
                    return if row.into.count > 0 {
                        Taker::Memory(t)
                    } else {
                        Taker::Undecided
                    };
                }
                // Its answer has come, so nothing else would end it.
                task::State::Orphaned => {
                    self.trace.mark("payload expired under way");
                    self.owe_unfetched(t);
                    self.task_input(t, Input::FetchFailed);
                    self.late(t);
                }
                _ => {}
            }
        }
        self.trace.mark("payload discarded");
        self.socket(s).task = NONE;
        Taker::Nobody
    }

    /// Takes the driver's word that so many bytes of a socket went where
    /// [`stream_want`](Self::stream_want) said: into the user's memory, or nowhere.
    pub fn handle_stream_payload(
        &mut self,
        now: Instant,
        socket: SocketId,
        bytes: u64,
        slots: &mut impl Slots,
    ) {
        recorded!(self, StreamPayload { now, socket, bytes } => self.handle_stream_payload(now, socket, bytes, slots));
        self.set_now(now);
        let Some(s) = self.find_socket(socket) else {
            return;
        };
        let n = self.socket(s).nexus;
        let going = n != NONE && flow(self.nexus(n).state) == Flow::On;
        let taker = if going { self.taker(s) } else { Taker::Nobody };
        self.end_lease(s);
        if going {
            self.payload_came(s, taker, bytes, slots);
        }
    }

    /// Takes the driver's word that some bytes of a work request went out on a socket, but not the
    /// last. Who reads so long a frame is alive, though it can answer nothing that comes behind
    /// it: keepalive waits for as long as there is progress. Never needed for a frame that was
    /// written at once.
    pub fn handle_stream_progress(&mut self, now: Instant, socket: SocketId) {
        recorded!(self, StreamProgress { now, socket } => self.handle_stream_progress(now, socket));
        self.set_now(now);
        let Some(s) = self.find_socket(socket) else {
            return;
        };
        let n = self.socket(s).nexus;
        if n != NONE {
            self.heard_on(n);
        }
    }

    /// Drops bytes of a payload that nobody wants, out of those a driver read ahead.
    pub(super) fn discard_staged(&mut self, s: u32, len: usize, slots: &mut impl Slots) -> usize {
        if self.taker(s) != Taker::Nobody {
            return 0;
        }
        let bytes = self.socket(s).payload_left.min(len as u64);
        self.payload_came(s, Taker::Nobody, bytes, slots);
        bytes as usize
    }

    fn payload_came(&mut self, s: u32, taker: Taker, bytes: u64, slots: &mut impl Slots) {
        let row = self.socket(s);
        let bytes = bytes.min(row.payload_left);
        row.payload_left -= bytes;
        let (left, kind, n) = (row.payload_left, row.kind, row.nexus);
        if bytes == 0 {
            return;
        }
        self.heard_on(n);
        self.nexus(n).traffic.payload_received += bytes;
        match taker {
            Taker::Memory(t) => self.fetched(t, bytes),
            Taker::Undecided => debug_assert!(false, "payload read before there was room for it"),
            Taker::Nobody => self.g.counters.bytes_discarded += bytes,
        }
        if left > 0 {
            return;
        }
        self.socket(s).task = NONE;
        if kind == SocketKind::Data {
            self.advance(s, slots);
        }
    }

    /// The driver does not write into a message's memory (any more).
    pub(super) fn end_lease(&mut self, s: u32) {
        let t = core::mem::replace(&mut self.socket(s).lent, NONE);
        if t == NONE {
            return;
        }
        self.task(t).work -= 1;
        self.maybe_return(t);
        self.try_free(t);
    }

    /// A payload on its way shows that the peer lives, however long it takes.
    fn heard_on(&mut self, n: u32) {
        let mut c = self.nexus(n).connections;
        while c != NONE {
            let row = self.connection(c);
            row.heard = true;
            c = row.nexus_next;
        }
    }

    /// Whether this side does not read frames of a transport connection: a payload before them, or a
    /// frame, waits for memory.
    pub(crate) fn stream_stopped(&mut self, n: u32) -> bool {
        let s = self.nexus(n).sockets[0];
        s != NONE
            && match self.gate(s) {
                Gate::Shut => true,
                Gate::Payload => self.taker(s) == Taker::Undecided,
                Gate::Slot | Gate::Head | Gate::Drop => false,
            }
    }

    /// There is memory for the payload that comes next on a transport connection.
    pub(crate) fn stream_resume(&mut self, n: u32) {
        let row = self.nexus(n);
        let s = match row.framing {
            Framing::Rdma => return,
            Framing::TcpSingle => row.sockets[0],
            Framing::TcpDual => row.sockets[1],
        };
        if s != NONE {
            self.wake(s);
        }
    }

    /// A message does not want its payload (any more): on streams it is dropped as it comes.
    pub(crate) fn discard_payload(&mut self, t: u32) {
        let n = self.task(t).nexus;
        if n == NONE {
            return;
        }
        if self.nexus(n).framing == Framing::Rdma {
            self.abandon_answer(t);
            return;
        }
        for s in self.nexus(n).sockets {
            if s != NONE && self.socket(s).task == t {
                self.taker(s);
            }
        }
        self.stream_resume(n);
    }

    /// The answer of a request whose data follows on the stream, into the buffers offered.
    pub(crate) fn stream_answer(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        slot: u32,
        response: &Response<'_>,
    ) -> Keep {
        if self.task_input(t, Input::AnswerFetch) != Action::Fetch {
            let size = response.head.data_len + u64::from(response.head.header_len);
            self.owe_dropped(c, size);
            self.late(t);
            return Keep::No;
        }
        let row = self.task(t);
        row.nexus = n;
        row.transfer = Transfer {
            posted: 0,
            done: 0,
            total: response.head.data_len,
        };
        self.nexus(n).fetching = t;
        self.keep_answer(t, slot, response);
        Keep::Yes
    }
}
