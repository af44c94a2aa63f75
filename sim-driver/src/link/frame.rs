//! Frames that a driver wants written: onto one stream or two, finished in order.

use std::collections::VecDeque;

use xio_proto::Segment;

use super::{HostId, Links, SockId};
use crate::env::{Env, Forbidden};
use crate::memory::Access;
use crate::trace::{Act, Object};

/// Names the outlet of a transport connection: its one or two sockets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct OutletId(pub u32);

/// What became of frames that were handed in.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Written {
    /// A frame's bytes have all been taken by the sockets.
    Whole {
        /// What the owner calls the outlet.
        cookie: u64,
        /// The word that came with the frame.
        wr: u64,
    },
    /// A socket that had been full has taken some bytes of a frame, but not the last.
    Part {
        /// What the owner calls the socket.
        cookie: u64,
    },
}

/// A part of a frame that waits for room in a socket.
#[derive(Copy, Clone, Debug)]
pub(super) struct Piece {
    segment: Segment,
    written: u32,
    /// The last of its frame on this socket.
    last: bool,
    /// Absolute number of its frame in the outlet.
    frame: u64,
}

#[derive(Copy, Clone, Debug)]
struct Frame {
    wr: u64,
    /// Sockets that have bytes of it to write.
    parts: u8,
    slot: u32,
    len: u64,
}

#[derive(Debug)]
pub(super) struct Outlet {
    endpoint: u32,
    cookie: u64,
    control: SockId,
    data: SockId,
    frames: VecDeque<Frame>,
    /// Absolute number of the oldest frame.
    base: u64,
}

const NO_SLOT: u32 = u32::MAX;

impl Links {
    /// Joins one socket or two into the outlet of a transport connection.
    pub fn open_outlet(&mut self, control: SockId, data: Option<SockId>, cookie: u64) -> OutletId {
        let data = data.unwrap_or(control);
        let endpoint = self
            .find(control)
            .map_or(0, |index| self.endpoint_of(index));
        let index = match self.free_outlets.pop() {
            Some(index) => {
                let outlet = &mut self.outlets[index as usize];
                outlet.endpoint = endpoint;
                outlet.cookie = cookie;
                outlet.control = control;
                outlet.data = data;
                outlet.base = 0;
                index
            }
            None => {
                self.outlets.push(Outlet {
                    endpoint,
                    cookie,
                    control,
                    data,
                    frames: VecDeque::new(),
                    base: 0,
                });
                self.outlets.len() as u32 - 1
            }
        };
        for id in [control, data] {
            if let Some(socket) = self.find(id) {
                self.sockets[socket].outlet = index;
            }
        }
        OutletId(index)
    }

    /// Forgets an outlet; its sockets are closed by themselves. What was not written comes back.
    pub fn close_outlet(&mut self, env: &mut Env, id: OutletId) {
        self.drop_frames(env, id, |_| ());
        let outlet = &self.outlets[id.0 as usize];
        for id in [outlet.control, outlet.data] {
            if let Some(index) = self.find(id) {
                self.sockets[index].outlet = u32::MAX;
            }
        }
        self.free_outlets.push(id.0);
    }

    /// Gives up what is not written whole, and gives out the words that came with it, oldest
    /// first. Bytes that were written stay written, so nothing sensible can follow.
    pub fn drop_frames(&mut self, env: &mut Env, id: OutletId, mut each: impl FnMut(u64)) {
        let outlet = &mut self.outlets[id.0 as usize];
        let (control, data) = (outlet.control, outlet.data);
        let endpoint = outlet.endpoint as usize;
        outlet.base += outlet.frames.len() as u64;
        for frame in outlet.frames.drain(..) {
            if frame.slot != NO_SLOT {
                env.memory[endpoint].return_slot(frame.slot);
            }
            each(frame.wr);
        }
        for id in [control, data] {
            if let Some(index) = self.find(id) {
                self.sockets[index].pieces.clear();
            }
        }
    }

    /// Hands in a frame: `head` for the control stream, `rest` for the data stream; on a single
    /// stream one after the other. It is done when the sockets have taken all of it.
    ///
    /// # Errors
    /// An error number when the outlet's sockets are gone.
    pub fn send_frame(
        &mut self,
        env: &mut Env,
        id: OutletId,
        wr: u64,
        head: Segment,
        rest: &[Segment],
    ) -> Result<(), i32> {
        let outlet = &self.outlets[id.0 as usize];
        let (Some(control), Some(data)) = (self.find(outlet.control), self.find(outlet.data))
        else {
            let object = Object::Socket(outlet.control.index);
            let endpoint = outlet.endpoint;
            env.violate(endpoint, object, Forbidden::WriteToClosed, wr);
            return Err(crate::errno::EINVAL);
        };
        let endpoint = self.endpoint_of(control) as usize;
        let slot = env.memory[endpoint].slot_at(head.addr).unwrap_or(NO_SLOT);
        if slot != NO_SLOT {
            env.memory[endpoint].post_slot(slot, false);
        }
        let number = outlet.base + outlet.frames.len() as u64;
        let bytes = rest
            .iter()
            .map(|segment| u64::from(segment.len))
            .sum::<u64>();
        let two = control != data && bytes > 0;
        let len = u64::from(head.len) + bytes;
        env.record(
            endpoint as u32,
            Self::object(control),
            Act::SendPosted,
            wr,
            len,
        );
        self.outlets[id.0 as usize].frames.push_back(Frame {
            wr,
            parts: 1 + u8::from(two),
            slot,
            len,
        });
        let piece = |segment, last| Piece {
            segment,
            written: 0,
            last,
            frame: number,
        };
        let alone = two || bytes == 0;
        self.sockets[control].pieces.push_back(piece(head, alone));
        let mut left = bytes;
        for &segment in rest.iter().filter(|segment| segment.len > 0) {
            left -= u64::from(segment.len);
            self.sockets[data]
                .pieces
                .push_back(piece(segment, left == 0));
        }
        self.flush(env, control);
        if two {
            self.flush(env, data);
        }
        Ok(())
    }

    /// Writes what waits, as far as there is room.
    pub(super) fn flush(&mut self, env: &mut Env, index: usize) {
        let endpoint = self.endpoint_of(index) as usize;
        while let Some(&piece) = self.sockets[index].pieces.front() {
            let rest = piece.segment.len - piece.written;
            let Some(offset) = self.locate(env, endpoint, piece.segment) else {
                self.sockets[index].pieces.pop_front();
                continue;
            };
            let memory = core::mem::take(&mut env.memory);
            let bytes = memory[endpoint].bytes(offset + piece.written as usize, rest);
            let n = self.put(env, index, bytes) as u32;
            env.memory = memory;
            if n < rest {
                self.sockets[index].pieces[0].written += n;
                if n > 0 {
                    self.part_written(env, index);
                }
                if let Some(peer) = self.peer_of(index) {
                    self.sockets[peer].peer_waits = true;
                }
                return;
            }
            self.sockets[index].pieces.pop_front();
            if piece.last {
                self.part_done(env, index, piece.frame);
            }
        }
    }

    fn part_written(&mut self, env: &mut Env, index: usize) {
        let socket = &self.sockets[index];
        let part = Written::Part {
            cookie: socket.cookie,
        };
        let host = &mut self.hosts[socket.host as usize];
        host.written.push_back(part);
        env.wake_after(host.endpoint, 0);
    }

    /// Where user memory or a slot lies; user memory must be lent to a message.
    fn locate(&self, env: &mut Env, endpoint: usize, segment: Segment) -> Option<usize> {
        let place = env.memory[endpoint].place(segment, Access::LocalRead);
        if place.is_none() {
            let object = Object::World;
            env.violate(endpoint as u32, object, Forbidden::LocalKey, segment.addr);
        }
        place
    }

    fn part_done(&mut self, env: &mut Env, index: usize, number: u64) {
        let outlet_number = self.sockets[index].outlet;
        let host = self.sockets[index].host as usize;
        let endpoint = self.hosts[host].endpoint;
        let outlet = &mut self.outlets[outlet_number as usize];
        outlet.frames[(number - outlet.base) as usize].parts -= 1;
        // Frames are done in the order in which they were handed in.
        while outlet.frames.front().is_some_and(|frame| frame.parts == 0) {
            let Some(frame) = outlet.frames.pop_front() else {
                return;
            };
            outlet.base += 1;
            if frame.slot != NO_SLOT {
                env.memory[endpoint as usize].return_slot(frame.slot);
            }
            let object = Self::object(index);
            env.record(endpoint, object, Act::FrameDone, frame.wr, frame.len);
            self.hosts[host].written.push_back(Written::Whole {
                cookie: outlet.cookie,
                wr: frame.wr,
            });
            env.wake_after(endpoint, 0);
        }
    }

    /// Takes the next word about what was handed in.
    pub fn poll_written(&mut self, host: HostId) -> Option<Written> {
        self.hosts[host.0 as usize].written.pop_front()
    }
}
