//! Bytes to the endpoint: many frames with one call, payload straight into the user's buffers.

use std::io::{self, IoSliceMut, Read};

use xio_proto::{SegmentSpan, SocketId, StreamWant, Trace};

use super::{Core, Io};

/// A buffer beyond the share of whole ones.
pub(super) const SMALL: usize = 2048;

/// Turns that an ended socket waits for the other of its pair to be read.
const WAITS: u8 = 64;

/// Bytes that were read and not taken, in the buffer that they were read into.
#[derive(Debug)]
pub(super) struct Rest {
    bytes: Box<[u8]>,
    at: usize,
    end: usize,
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.at == self.end
    }

    fn here(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Takes bytes off the front.
    fn used(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

/// How a turn of reading goes on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Turn {
    /// It does.
    On,
    /// The system has no more.
    Dry,
    /// Another turn, after the others had theirs.
    Later,
    /// The stream has ended.
    End,
    /// The endpoint takes no more: it says when it does.
    Shut,
}

impl Io {
    pub(super) fn staging(&self) -> usize {
        self.options.staging.max(SMALL)
    }

    /// What a socket had left, or an empty buffer to read it into.
    fn take_rest(&mut self, s: u32) -> Rest {
        if let Some(rest) = self.sockets[s as usize].rest.take() {
            if rest.bytes.len() >= self.staging() {
                self.held -= 1;
            }
            return rest;
        }
        let whole = self.held < self.options.staging_max;
        let spare = if whole { self.spare.pop() } else { None };
        let size = if whole { self.staging() } else { SMALL };
        Rest {
            bytes: spare.unwrap_or_else(|| vec![0; size].into_boxed_slice()),
            at: 0,
            end: 0,
        }
    }

    fn keep_rest(&mut self, s: u32, rest: Rest) {
        if rest.is_empty() {
            if rest.bytes.len() >= self.staging() {
                self.spare.push(rest.bytes);
            }
            return;
        }
        if rest.bytes.len() >= self.staging() {
            self.held += 1;
        }
        self.sockets[s as usize].rest = Some(rest);
    }

    /// The socket is gone.
    pub(super) fn drop_rest(&mut self, rest: Rest) {
        if rest.bytes.len() >= self.staging() {
            self.held -= 1;
            self.spare.push(rest.bytes);
        }
    }

    /// One socket's turn, with so many bytes at most.
    pub(super) fn read<T: Trace>(&mut self, core: &mut Core<T>, s: u32, mut budget: usize) {
        let row = &self.sockets[s as usize];
        let Some(id) = row.id.filter(|_| row.stream.is_some() && !row.ended) else {
            return;
        };
        let mut rest = self.take_rest(s);
        let turn = loop {
            match self.read_step(core, id, &mut rest, &mut budget) {
                Turn::On => {}
                other => break other,
            }
        };
        self.keep_rest(s, rest);
        match turn {
            Turn::Later => self.mark_readable(s),
            Turn::End => self.end_in_turn(core, s, id),
            Turn::Shut if self.at_its_end(s) => self.end_in_turn(core, s, id),
            _ => {}
        }
    }

    /// Tells of the end, but not while the other socket of the pair has something to be read: one
    /// end takes both with it, and what came before is still to be heard.
    fn end_in_turn<T: Trace>(&mut self, core: &mut Core<T>, s: u32, id: SocketId) {
        let row = &self.sockets[s as usize];
        let pair = self.nexuses.get(row.nexus as usize);
        let other = pair.and_then(|n| n.sockets.into_iter().find(|other| *other != s));
        let other = other.and_then(|other| self.sockets.get(other as usize));
        if other.is_some_and(|other| other.queued) && row.waited < WAITS {
            self.sockets[s as usize].waited += 1;
            self.mark_readable(s);
        } else {
            self.end(core, s, id);
        }
    }

    fn end<T: Trace>(&mut self, core: &mut Core<T>, s: u32, id: SocketId) {
        self.sockets[s as usize].ended = true;
        self.sockets[s as usize].writable = false;
        core.endpoint.handle_socket_closed(core.now, id);
        if self.sockets[s as usize].nexus == super::NONE {
            // It was no transport connection, so nobody will ask for its end.
            self.shut(s);
        }
    }

    /// Whether a socket that must not be read has nothing to be read any more.
    fn at_its_end(&mut self, s: u32) -> bool {
        let row = &self.sockets[s as usize];
        let Some(stream) = row.stream.as_ref().filter(|_| row.hung_up) else {
            return false;
        };
        if row.rest.is_some() {
            return false;
        }
        self.stats.reads += 1;
        match stream.peek(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(e) => !matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ),
        }
    }

    /// Asks what the next bytes are, and takes some.
    fn read_step<T: Trace>(
        &mut self,
        core: &mut Core<T>,
        id: SocketId,
        rest: &mut Rest,
        budget: &mut usize,
    ) -> Turn {
        if rest.is_empty() {
            rest.at = 0;
            rest.end = 0;
            // What the next bytes are is asked when there may be some.
            if !self.sockets[id.index()].readable {
                return Turn::Dry;
            }
        }
        let want = core.endpoint.stream_want(id);
        match want {
            StreamWant::Nothing => Turn::Shut,
            StreamWant::Bytes(most) => {
                if rest.is_empty() {
                    let turn = self.fill(id, rest, most, budget);
                    if turn != Turn::On {
                        return turn;
                    }
                }
                let taken =
                    core.endpoint
                        .handle_stream_bytes(core.now, id, rest.here(), &mut core.slots);
                rest.used(taken);
                Turn::On
            }
            StreamWant::Discard(most) => {
                if rest.is_empty() {
                    let turn = self.fill(id, rest, most, budget);
                    if turn != Turn::On {
                        return turn;
                    }
                }
                let bytes = rest.here().len().min(clamp(most));
                rest.used(bytes);
                core.endpoint
                    .handle_stream_payload(core.now, id, bytes as u64, &mut core.slots);
                Turn::On
            }
            StreamWant::Payload(span) => self.payload(core, id, rest, span, budget),
        }
    }

    /// Bytes that go where the user wants them.
    fn payload<T: Trace>(
        &mut self,
        core: &mut Core<T>,
        id: SocketId,
        rest: &mut Rest,
        span: SegmentSpan,
        budget: &mut usize,
    ) -> Turn {
        let Some(segment) = core.endpoint.segments(span).find(|s| s.len > 0) else {
            debug_assert!(false, "a payload without memory");
            return Turn::Shut;
        };
        let room = core.pool.of_mut(&segment);
        let bytes = if rest.is_empty() {
            let most = room.len().min((*budget).max(SMALL));
            let room = &mut room[..most];
            // What follows the payload comes with the same call.
            let last = room.len() as u64 == span.len;
            let behind: &mut [u8] = if last { &mut rest.bytes } else { &mut [] };
            let len = room.len();
            let mut slices = [IoSliceMut::new(room), IoSliceMut::new(behind)];
            match self.call(id, budget, |stream| stream.read_vectored(&mut slices)) {
                Ok(bytes) => {
                    if bytes < len {
                        self.came_short(id);
                    }
                    rest.end = bytes.saturating_sub(len);
                    bytes.min(len)
                }
                Err(turn) => {
                    core.endpoint
                        .handle_stream_payload(core.now, id, 0, &mut core.slots);
                    return turn;
                }
            }
        } else {
            let here = rest.here();
            let bytes = here.len().min(room.len());
            room[..bytes].copy_from_slice(&here[..bytes]);
            rest.used(bytes);
            bytes
        };
        core.endpoint
            .handle_stream_payload(core.now, id, bytes as u64, &mut core.slots);
        Turn::On
    }

    /// Reads into an empty buffer.
    fn fill(&mut self, id: SocketId, rest: &mut Rest, most: u64, budget: &mut usize) -> Turn {
        let room = rest.bytes.len().min(clamp(most)).min((*budget).max(SMALL));
        match self.call(id, budget, |stream| stream.read(&mut rest.bytes[..room])) {
            Ok(bytes) => {
                rest.end = bytes;
                if bytes < room {
                    self.came_short(id);
                }
                Turn::On
            }
            Err(turn) => turn,
        }
    }

    /// Less came than there was room for: the next event says when there is more. At the end
    /// there is no such event.
    fn came_short(&mut self, id: SocketId) {
        let row = &mut self.sockets[id.index()];
        row.readable = row.hung_up;
    }

    /// One call that reads.
    fn call(
        &mut self,
        id: SocketId,
        budget: &mut usize,
        read: impl FnOnce(&mut mio::net::TcpStream) -> io::Result<usize>,
    ) -> Result<usize, Turn> {
        let row = &mut self.sockets[id.index()];
        let Some(stream) = row.stream.as_mut().filter(|_| row.readable) else {
            return Err(Turn::Dry);
        };
        if *budget == 0 {
            return Err(Turn::Later);
        }
        self.stats.reads += 1;
        match read(stream) {
            Ok(0) => Err(Turn::End),
            Ok(bytes) => {
                self.stats.bytes_read += bytes as u64;
                *budget = budget.saturating_sub(bytes);
                Ok(bytes)
            }
            Err(e) => Err(match e.kind() {
                io::ErrorKind::WouldBlock => {
                    row.readable = false;
                    Turn::Dry
                }
                io::ErrorKind::Interrupted => Turn::Later,
                _ => Turn::End,
            }),
        }
    }
}

fn clamp(most: u64) -> usize {
    usize::try_from(most).unwrap_or(usize::MAX)
}
