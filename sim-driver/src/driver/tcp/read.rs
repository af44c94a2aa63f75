//! Bytes of sockets on their way into the core.

use xio_proto::{SegmentSpan, SocketId, StreamWant};

use crate::driver::{Hands, SimDriver, User};
use crate::env::{Env, Forbidden};
use crate::link::{End as StreamEnd, Links, SockId};
use crate::memory::Access;
use crate::trace::Object;

impl SimDriver {
    /// Takes note of sockets that may be read again.
    pub(in crate::driver) fn streams_wanted(&mut self) -> bool {
        let Some(tcp) = &mut self.tcp else {
            return false;
        };
        let Some(socket) = self.core.poll_stream(tcp.transport) else {
            return false;
        };
        tcp.touch(socket);
        true
    }

    /// Reads some of one socket that has something. False when none has.
    pub(in crate::driver) fn read_next<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(tcp) = &mut self.tcp else {
            return false;
        };
        let waiting = tcp.readable.len();
        if waiting == 0 {
            return false;
        }
        if waiting > 1 {
            let pick = hands.env.rng.below(waiting as u64) as usize;
            tcp.readable.swap(0, pick);
        }
        let Some(id) = tcp.readable.pop_front() else {
            return false;
        };
        let Some(end) = tcp.end(id) else {
            return true;
        };
        end.queued = false;
        for _ in 0..tcp.habits.reads {
            let more = self.read(hands.env, hands.links, id);
            self.settle(hands);
            if !more {
                return true;
            }
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.touch(id);
        }
        true
    }

    /// One read of a socket, of what the core wants. False when nothing more can be done.
    fn read(&mut self, env: &mut Env, links: &mut Links, id: SocketId) -> bool {
        let now = self.now(env);
        let Some(tcp) = &mut self.tcp else {
            return false;
        };
        let asks_in_vain = tcp.habits.asks_in_vain;
        let Some(end) = tcp.end(id) else {
            return false;
        };
        let Some(sock) = end.sock.filter(|_| !end.told) else {
            return false;
        };
        let nothing = end.staged.is_empty() && links.peek(sock).is_empty();
        if nothing && !env.rng.chance(asks_in_vain) {
            self.tell_end(env, links, id, sock);
            return false;
        }
        let want = self.core.stream_want(id);
        if nothing {
            // Some drivers hand a read in and wait; others are told to give the memory back.
            if env.rng.flip() {
                let slots = &mut env.memory[self.number as usize];
                self.core.handle_stream_payload(now, id, 0, slots);
            }
            self.tell_end(env, links, id, sock);
            return false;
        }
        match want {
            StreamWant::Nothing => {
                // Whoever polls for errors hears of a reset even while it reads nothing.
                let failed = matches!(links.end(sock), Some(StreamEnd::Failed(_)));
                if failed && env.rng.flip() {
                    self.tell_end(env, links, id, sock);
                }
                false
            }
            StreamWant::Bytes(most) => {
                assert!(most > 0, "{id:?} wants no bytes");
                self.feed(env, links, id, sock)
            }
            StreamWant::Payload(span) => {
                let bytes = self.scatter(env, links, id, sock, span);
                let slots = &mut env.memory[self.number as usize];
                self.core.handle_stream_payload(now, id, bytes, slots);
                true
            }
            StreamWant::Discard(most) => {
                assert!(most > 0, "{id:?} discards no bytes");
                let bytes = self.drop_bytes(env, links, id, sock, most);
                let slots = &mut env.memory[self.number as usize];
                self.core.handle_stream_payload(now, id, bytes, slots);
                true
            }
        }
    }

    /// Gives bytes to the core: from the buffer, or straight from where they are.
    fn feed(&mut self, env: &mut Env, links: &mut Links, id: SocketId, sock: SockId) -> bool {
        let now = self.now(env);
        let Some(tcp) = &mut self.tcp else {
            return false;
        };
        let (most, buffer) = (tcp.habits.read_max, tcp.habits.buffer);
        let Some(end) = tcp.end(id) else {
            return false;
        };
        let slots = &mut env.memory[self.number as usize];
        if end.staged.is_empty() && env.rng.flip() {
            let bytes = links.peek(sock);
            let bytes = &bytes[..bytes.len().min(most)];
            let taken = self.core.handle_stream_bytes(now, id, bytes, slots);
            assert!(taken > 0, "{id:?} wanted bytes and took none");
            links.consume(env, sock, taken);
            return true;
        }
        if end.staged.is_empty() {
            let bytes = links.peek(sock);
            let bytes = &bytes[..bytes.len().min(buffer)];
            end.staged.extend_from_slice(bytes);
            links.consume(env, sock, end.staged.len());
        }
        let slots = &mut env.memory[self.number as usize];
        let taken = self.core.handle_stream_bytes(now, id, &end.staged, slots);
        assert!(taken > 0, "{id:?} wanted bytes and took none");
        end.staged.drain(..taken);
        true
    }

    /// Puts bytes where the user wants them, and says how many.
    fn scatter(
        &mut self,
        env: &mut Env,
        links: &mut Links,
        id: SocketId,
        sock: SockId,
        span: SegmentSpan,
    ) -> u64 {
        let Some(tcp) = &mut self.tcp else { return 0 };
        let mut left = tcp.habits.read_max;
        let Some(end) = tcp.end(id) else { return 0 };
        let from_buffer = !end.staged.is_empty();
        let mut total = 0;
        for segment in self.core.segments(span) {
            let place = env.memory[self.number as usize].place(segment, Access::LocalWrite);
            let Some(place) = place else {
                let object = Object::World;
                env.violate(self.number, object, Forbidden::LocalKey, segment.addr);
                break;
            };
            let len = (segment.len as usize).min(left);
            let n = if from_buffer {
                let n = len.min(end.staged.len());
                env.memory[self.number as usize]
                    .bytes_mut(place, n as u32)
                    .copy_from_slice(&end.staged[..n]);
                end.staged.drain(..n);
                n
            } else {
                links.read_into(env, sock, place, len as u32)
            };
            total += n as u64;
            left -= n;
            if n < segment.len as usize {
                break;
            }
        }
        total
    }

    /// Drops bytes that nobody wants, and says how many.
    fn drop_bytes(
        &mut self,
        env: &mut Env,
        links: &mut Links,
        id: SocketId,
        sock: SockId,
        most: u64,
    ) -> u64 {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let Some(end) = self.tcp.as_mut().and_then(|tcp| tcp.end(id)) else {
            return 0;
        };
        if end.staged.is_empty() {
            let n = links.peek(sock).len().min(most);
            links.consume(env, sock, n);
            return n as u64;
        }
        let n = end.staged.len().min(most);
        end.staged.drain(..n);
        n as u64
    }

    /// Tells the core that a socket ended, if it did.
    fn tell_end(&mut self, env: &mut Env, links: &mut Links, id: SocketId, sock: SockId) {
        if links.end(sock).is_none() {
            return;
        }
        let now = self.now(env);
        let Some(tcp) = &mut self.tcp else { return };
        let Some(end) = tcp.end(id) else { return };
        end.told = true;
        // One that was no part of a transport connection is over with that.
        if end.nexus.is_none() {
            tcp.close(env, links, id);
        }
        self.core.handle_socket_closed(now, id);
    }
}
