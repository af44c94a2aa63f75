//! Frames to bytes: as many as fit go out in one call, headers from the slots and data from the
//! user's buffers, without a copy.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use xio_proto::{Completion, SegmentSpan, SlotId, Slots, Span, Trace, Work, WorkStatus, WrId};

use super::{Core, Io, NONE};

/// Pieces of memory that one call writes, at most.
const SLICES: usize = 128;
/// Pieces of one frame without data outside its slot, at most.
const FEW: usize = 2;
/// Frames that a transport connection has room for from its first one on.
const FRAMES: usize = 64;

/// A frame that is not written whole.
#[derive(Debug)]
struct Frame {
    wr: WrId,
    head: Span,
    tail: Span,
    data: SegmentSpan,
}

/// How far one socket is: so many bytes of this frame of the queue.
#[derive(Copy, Clone, Debug)]
struct Cursor {
    frame: usize,
    offset: u64,
}

/// What goes on which socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Lane {
    /// Everything: there is one stream.
    Single,
    Control,
    Data,
}

/// Frames of a transport connection, oldest first.
#[derive(Debug)]
pub(super) struct Queue {
    frames: VecDeque<Frame>,
    cursors: [Cursor; 2],
}

impl Queue {
    pub(super) const fn new() -> Self {
        let start = Cursor {
            frame: 0,
            offset: 0,
        };
        Self {
            frames: VecDeque::new(),
            cursors: [start; 2],
        }
    }

    /// With room for as many frames as are out at once as a rule: none of them allocates.
    pub(super) fn with_room() -> Self {
        Self {
            frames: VecDeque::with_capacity(64),
            ..Self::new()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes the oldest frame off, written or not.
    pub(super) fn pop(&mut self) -> Option<WrId> {
        let frame = self.frames.pop_front()?;
        for cursor in &mut self.cursors {
            match cursor.frame.checked_sub(1) {
                Some(before) => cursor.frame = before,
                None => cursor.offset = 0,
            }
        }
        Some(frame.wr)
    }

    /// Moves a socket on by so many bytes, and over frames that have nothing for it.
    fn advance(&mut self, lane: Lane, bytes: usize) {
        let cursor = &mut self.cursors[usize::from(lane == Lane::Data)];
        cursor.offset += bytes as u64;
        while let Some(frame) = self.frames.get(cursor.frame) {
            let len = frame.len(lane);
            if cursor.offset < len {
                break;
            }
            cursor.offset -= len;
            cursor.frame += 1;
        }
    }

    /// Whether one frame is left for a socket, and that has few pieces.
    fn is_short(&self, lane: Lane) -> bool {
        let at = self.cursors[usize::from(lane == Lane::Data)].frame;
        let last = self.frames.len() == at + 1;
        last && (lane == Lane::Control || self.frames[at].data.is_empty())
    }

    fn at_end(&self, lane: Lane) -> bool {
        self.cursors[usize::from(lane == Lane::Data)].frame >= self.frames.len()
    }
}

impl Frame {
    fn len(&self, lane: Lane) -> u64 {
        let head = u64::from(self.head.len);
        let rest = u64::from(self.tail.len) + self.data.len;
        match lane {
            Lane::Single => head + rest,
            Lane::Control => head,
            Lane::Data => rest,
        }
    }
}

/// Pieces of memory for one call.
struct Gather<'a, const MOST: usize> {
    slices: [IoSlice<'a>; MOST],
    count: usize,
    skip: u64,
    bytes: usize,
    most: usize,
}

impl<'a, const MOST: usize> Gather<'a, MOST> {
    fn full(&self) -> bool {
        self.count == MOST || self.bytes >= self.most
    }

    fn push(&mut self, piece: &'a [u8]) {
        let skip = self.skip.min(piece.len() as u64);
        self.skip -= skip;
        let piece = &piece[skip as usize..];
        if !piece.is_empty() && !self.full() {
            let piece = &piece[..piece.len().min(self.most - self.bytes)];
            self.slices[self.count] = IoSlice::new(piece);
            self.count += 1;
            self.bytes += piece.len();
        }
    }

    fn frame<T: Trace>(&mut self, core: &'a Core<T>, frame: &Frame, lane: Lane) {
        let (mut head, mut tail) = (frame.head, frame.tail);
        match lane {
            Lane::Control => tail.len = 0,
            Lane::Data => head.len = 0,
            // They nearly always lie side by side.
            Lane::Single if head.slot == tail.slot && head.offset + head.len == tail.offset => {
                head.len += tail.len;
                tail.len = 0;
            }
            Lane::Single => {}
        }
        for span in [head, tail] {
            if span.len > 0 {
                self.push(span.of(core.slots.slot(SlotId(span.slot))));
            }
        }
        if lane != Lane::Control && !frame.data.is_empty() {
            for segment in core.endpoint.segments(frame.data) {
                self.push(core.pool.of(&segment));
            }
        }
    }
}

pub(super) fn complete<T: Trace>(core: &mut Core<T>, wr: WrId, status: WorkStatus) {
    let completion = Completion { wr, status, len: 0 };
    core.endpoint
        .handle_completion(core.now, completion, &mut core.slots);
}

impl Io {
    /// Takes a frame; [`send_out`](Self::send_out) writes it, with what else there is then.
    pub(crate) fn post<T: Trace>(&mut self, core: &mut Core<T>, work: Work) {
        let Work::Send {
            nexus,
            wr,
            head,
            tail,
            data,
            ..
        } = work
        else {
            // The core has receives, READ and WRITE for queue pairs only.
            debug_assert!(false, "{work:?} on a stream");
            return;
        };
        let n = nexus.index() as u32;
        let row = &mut self.nexuses[n as usize];
        if row.id != Some(nexus) {
            complete(core, wr, WorkStatus::Flushed);
            return;
        }
        if row.queue.frames.capacity() == 0 {
            // Once, and not whenever more wait than ever before.
            row.queue.frames.reserve(FRAMES);
        }
        row.queue.frames.push_back(Frame {
            wr,
            head,
            tail,
            data,
        });
        self.mark_dirty(n);
    }

    /// Writes what waits, everybody once. True when anything was written.
    pub(crate) fn send_out<T: Trace>(&mut self, core: &mut Core<T>) -> bool {
        let mut wrote = false;
        for _ in 0..self.dirty.len() {
            let Some(n) = self.dirty.pop_front() else {
                break;
            };
            self.nexuses[n as usize].dirty = false;
            wrote |= self.write(core, n);
        }
        wrote
    }

    fn write<T: Trace>(&mut self, core: &mut Core<T>, n: u32) -> bool {
        let [first, second] = self.nexuses[n as usize].sockets;
        if first == NONE {
            return false;
        }
        let mut budget = self.options.write_budget.max(1);
        let mut more = false;
        if second == NONE {
            more |= self.write_lane(core, n, first, Lane::Single, &mut budget);
        } else {
            // Data first: when its header arrives there is nothing to wait for.
            more |= self.write_lane(core, n, second, Lane::Data, &mut budget);
            more |= self.write_lane(core, n, first, Lane::Control, &mut budget);
        }
        let wrote = budget < self.options.write_budget.max(1);
        self.complete_written(core, n, second != NONE);
        if more {
            self.mark_dirty(n);
        }
        if wrote {
            // Who reads a long frame is alive.
            let unfinished = !self.nexuses[n as usize].queue.is_empty();
            if let (true, Some(id)) = (unfinished, self.sockets[first as usize].id) {
                core.endpoint.handle_stream_progress(core.now, id);
            }
        }
        wrote
    }

    /// Writes to one socket until it is full, all is written, or the budget is used up; true in
    /// the last case.
    fn write_lane<T: Trace>(
        &mut self,
        core: &Core<T>,
        n: u32,
        s: u32,
        lane: Lane,
        budget: &mut usize,
    ) -> bool {
        self.nexuses[n as usize].queue.advance(lane, 0);
        loop {
            let queue = &self.nexuses[n as usize].queue;
            if queue.at_end(lane) || !self.sockets[s as usize].writable {
                return false;
            }
            if *budget == 0 {
                return true;
            }
            let most = *budget;
            let (offered, taken) = if queue.is_short(lane) {
                self.write_once::<FEW, T>(core, n, s, lane, most)
            } else {
                self.write_once::<SLICES, T>(core, n, s, lane, most)
            };
            match taken {
                Ok(bytes) => {
                    self.stats.bytes_written += bytes as u64;
                    *budget -= bytes;
                    self.nexuses[n as usize].queue.advance(lane, bytes);
                    if bytes < offered {
                        self.sockets[s as usize].writable = false;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let row = &mut self.sockets[s as usize];
                    row.writable = false;
                    if e.kind() != io::ErrorKind::WouldBlock {
                        // It is over; reading finds the end behind what still came.
                        row.readable = true;
                        row.hung_up = true;
                        self.mark_readable(s);
                    }
                }
            }
        }
    }

    /// Writes as much as fits into one call with `MOST` pieces; what was offered, and what became of
    /// it.
    fn write_once<const MOST: usize, T: Trace>(
        &mut self,
        core: &Core<T>,
        n: u32,
        s: u32,
        lane: Lane,
        most: usize,
    ) -> (usize, io::Result<usize>) {
        let queue = &self.nexuses[n as usize].queue;
        let cursor = queue.cursors[usize::from(lane == Lane::Data)];
        let mut gather = Gather {
            slices: [IoSlice::new(&[]); MOST],
            count: 0,
            skip: cursor.offset,
            bytes: 0,
            most,
        };
        for frame in queue.frames.range(cursor.frame..) {
            if gather.full() {
                break;
            }
            gather.frame(core, frame, lane);
        }
        let Some(stream) = &mut self.sockets[s as usize].stream else {
            return (gather.bytes, Err(io::ErrorKind::NotConnected.into()));
        };
        self.stats.writes += 1;
        let taken = match &gather.slices[..gather.count] {
            // The cheaper call, for what nearly all frames are.
            [piece] => stream.write(piece),
            pieces => stream.write_vectored(pieces),
        };
        (gather.bytes, taken)
    }

    /// Completes the frames that are out on all sockets.
    fn complete_written<T: Trace>(&mut self, core: &mut Core<T>, n: u32, dual: bool) {
        let queue = &mut self.nexuses[n as usize].queue;
        let [first, second] = queue.cursors;
        let whole = if dual {
            first.frame.min(second.frame)
        } else {
            first.frame
        };
        let mut done = core::mem::take(&mut self.done);
        for _ in 0..whole {
            done.extend(queue.pop());
        }
        for wr in done.drain(..) {
            complete(core, wr, WorkStatus::Success);
        }
        self.done = done;
    }
}
