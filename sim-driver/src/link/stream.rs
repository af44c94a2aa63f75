//! Bytes on their way from one socket to the other.

use super::{LinkEvent, Links, SockId, State, ready};
use crate::env::Env;
use crate::errno;
use crate::swarm::Site;
use crate::trace::Act;

/// How a stream ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The peer closed it, and everything it wrote has been read.
    Finished,
    /// It was reset; the error number.
    Failed(i32),
}

impl Links {
    /// Bytes that a socket would take now.
    pub fn room(&self, id: SockId) -> usize {
        self.find(id).map_or(0, |index| self.room_of(index))
    }

    fn room_of(&self, index: usize) -> usize {
        let socket = &self.sockets[index];
        if socket.state != State::Open {
            return 0;
        }
        if socket.half_open {
            return (socket.window - socket.nowhere) as usize;
        }
        match self.peer_of(index) {
            Some(peer) => {
                let peer = &self.sockets[peer];
                (u64::from(peer.window) - (peer.written - peer.read)) as usize
            }
            // The peer has closed: bytes are taken, and answered with a reset.
            None if socket.reset.is_none() => socket.window as usize,
            None => 0,
        }
    }

    /// Writes what fits and says how much that is. When it is less than wanted, a `Writable`
    /// notice follows once there is room.
    pub fn write(&mut self, env: &mut Env, id: SockId, bytes: &[u8]) -> usize {
        let Some(index) = self.find(id) else {
            return 0;
        };
        let n = self.put(env, index, bytes);
        if n < bytes.len()
            && let Some(peer) = self.peer_of(index)
        {
            self.sockets[peer].peer_waits = true;
        }
        n
    }

    /// Copies bytes into the peer's ring, as many as fit.
    pub(super) fn put(&mut self, env: &mut Env, index: usize, bytes: &[u8]) -> usize {
        let n = self.room_of(index).min(bytes.len());
        if n == 0 {
            return 0;
        }
        if self.sockets[index].half_open {
            self.sockets[index].nowhere += n as u32;
            self.unheard(env, index);
            self.unknown_there(env, index);
            return n;
        }
        let Some(peer) = self.peer_of(index) else {
            let id = self.id(index);
            let after = self.latency(env);
            self.later(env, after, LinkEvent::Reset(id));
            return n;
        };
        let target = &mut self.sockets[peer];
        let size = target.ring.len();
        let at = target.written as usize & (size - 1);
        let first = n.min(size - at);
        target.ring[at..at + first].copy_from_slice(&bytes[..first]);
        target.ring[..n - first].copy_from_slice(&bytes[first..n]);
        target.written += n as u64;
        self.schedule_delivery(env, peer);
        n
    }

    /// Bytes of a socket whose peer's host is gone: whoever lives at the address now knows
    /// nothing of it.
    fn unknown_there(&mut self, env: &mut Env, index: usize) {
        let socket = &self.sockets[index];
        let address = socket.remote.ip();
        let lives = |host: &super::Host| host.address == address && !host.dead;
        if socket.orphan && self.hosts.iter().any(lives) {
            let id = self.id(index);
            let after = self.latency(env);
            self.later(env, after, LinkEvent::Reset(id));
        }
    }

    /// Something is on its way to the socket: one event at a time carries it.
    pub(super) fn schedule_delivery(&mut self, env: &mut Env, index: usize) {
        if core::mem::replace(&mut self.sockets[index].delivering, true) {
            return;
        }
        let mut after = self.latency(env);
        if env.fires(Site::StreamDelay) {
            after += env.rng.spread(1_000, 200_000_000);
        }
        let id = self.id(index);
        self.later(env, after, LinkEvent::Deliver(id));
    }

    pub(super) fn deliver(&mut self, env: &mut Env, index: usize) {
        self.sockets[index].delivering = false;
        let id = self.id(index);
        let here = self.sockets[index].host as usize;
        let there = self
            .peer_of(index)
            .map(|peer| self.sockets[peer].host as usize);
        let down = |host: usize| self.hosts[host].link_up_at;
        let up_at = down(here).max(there.map_or(0, down));
        if up_at > env.now() {
            self.sockets[index].delivering = true;
            self.later(env, up_at - env.now(), LinkEvent::Deliver(id));
            return;
        }
        if env.fires(Site::Reset) {
            if let Some(peer) = self.sockets[index].peer {
                self.later(env, 0, LinkEvent::Reset(peer));
            }
            self.take_reset(env, index, errno::ECONNRESET);
            return;
        }
        if there.is_some() && env.fires(Site::HalfOpen) {
            self.sever(env, index);
            return;
        }
        self.deliver_some(env, index);
    }

    fn deliver_some(&mut self, env: &mut Env, index: usize) {
        let endpoint = self.endpoint_of(index);
        let socket = &mut self.sockets[index];
        let waiting = (socket.written - socket.delivered).min(self.config.segment);
        let n = if waiting == 0 {
            0
        } else if env.swarm.fires(&mut env.rng, Site::TinyCut) {
            env.rng.range(1, waiting.min(3))
        } else if env.rng.chance(self.config.cut_ppm) {
            env.rng.spread(1, waiting)
        } else {
            waiting
        };
        socket.delivered += n;
        let left = socket.written - socket.delivered;
        if n > 0 {
            env.record(endpoint, Self::object(index), Act::Segment, n, left);
        }
        let socket = &mut self.sockets[index];
        if left > 0 {
            self.schedule_delivery(env, index);
        } else if socket.finishing && !socket.finished {
            socket.finished = true;
            env.record(endpoint, Self::object(index), Act::EndOfStream, 0, 0);
        }
        if self.sockets[index].state == State::Open {
            self.tell(env, index, ready::READABLE);
        }
    }

    /// Delivered bytes that are not read, as far as they lie in one piece.
    pub fn peek(&self, id: SockId) -> &[u8] {
        let Some(index) = self.find(id) else {
            return &[];
        };
        let socket = &self.sockets[index];
        if socket.reset.is_some() {
            return &[];
        }
        let size = socket.ring.len();
        let at = socket.read as usize & (size - 1);
        let n = ((socket.delivered - socket.read) as usize).min(size - at);
        &socket.ring[at..at + n]
    }

    /// Says that `n` bytes of what [`peek`](Self::peek) shows are read.
    pub fn consume(&mut self, env: &mut Env, id: SockId, n: usize) {
        let Some(index) = self.find(id) else {
            return;
        };
        if n == 0 {
            return;
        }
        let endpoint = self.endpoint_of(index);
        let socket = &mut self.sockets[index];
        socket.read += n as u64;
        assert!(socket.read <= socket.delivered, "read more than was there");
        let left = socket.delivered - socket.read;
        env.record(endpoint, Self::object(index), Act::Read, n as u64, left);
        let socket = &mut self.sockets[index];
        let free = u64::from(socket.window) - (socket.written - socket.read);
        // A peer that waits hears of it when there is room worth the trouble.
        let worth = free >= u64::from(socket.window) / 2 || socket.written == socket.read;
        if worth
            && core::mem::replace(&mut socket.peer_waits, false)
            && let Some(peer) = socket.peer
        {
            let after = self.latency(env);
            self.later(env, after, LinkEvent::Window(peer));
        }
    }

    /// Reads bytes straight to a place in the owner's memory, and says how many.
    pub fn read_into(&mut self, env: &mut Env, id: SockId, offset: usize, len: u32) -> usize {
        let Some(index) = self.find(id) else {
            return 0;
        };
        let endpoint = self.endpoint_of(index) as usize;
        let bytes = self.peek(id);
        let n = bytes.len().min(len as usize);
        env.memory[endpoint]
            .bytes_mut(offset, n as u32)
            .copy_from_slice(&bytes[..n]);
        self.consume(env, id, n);
        n
    }

    /// How the stream ended, once everything before the end is read.
    pub fn end(&self, id: SockId) -> Option<End> {
        let socket = &self.sockets[self.find(id)?];
        if let Some(error) = socket.reset {
            return Some(End::Failed(error));
        }
        if let State::Failed(error) = socket.state {
            return Some(End::Failed(error));
        }
        (socket.finished && socket.read == socket.written).then_some(End::Finished)
    }
}
