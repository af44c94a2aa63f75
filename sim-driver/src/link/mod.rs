//! Byte streams between hosts, as TCP has them: in order, cut anywhere, with limited buffers.
//!
//! A socket's ring holds what its peer wrote: bytes written, of which a part is delivered, of
//! which a part is read. What is written and not read is bounded by the window. Closing ends a
//! stream after its last byte; a reset ends it at once. A half-open socket has lost its peer and
//! was not told: its bytes go nowhere, until it gives up sending them. If it sends nothing it never
//! learns.
//!
//! Folder map: `connect` (listening, connecting, closing, faults), `stream` (bytes), `frame`
//! (what a driver wants written, and when it is).

mod connect;
mod frame;
mod stream;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

pub use frame::{OutletId, Written};
pub use stream::End;

use crate::env::Env;
use crate::queue::Event;
use crate::rng::Rng;
use crate::trace::Object;
use frame::{Outlet, Piece};

/// Names a host.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct HostId(pub u32);

/// Names a socket: its place and generation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SockId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Names a listener: its place and generation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PortId {
    index: u32,
    generation: u32,
}

/// What can happen on a link.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// A connect request reaches its host.
    Connect(SockId),
    /// The answer reaches the connecting socket.
    Answer(SockId),
    /// Bytes, or the end, reach a socket.
    Deliver(SockId),
    /// A socket learns that its peer has read.
    Window(SockId),
    /// A reset reaches a socket.
    Reset(SockId),
    /// A socket has sent something again and again, and nobody says that it came.
    GiveUp(SockId),
}

/// Times and sizes of links.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// One way in nanoseconds, least and most.
    pub latency: (u64, u64),
    /// From an event to the driver's wake-up, most.
    pub notify: u64,
    /// Bytes between writer and reader, least and most.
    pub window: (u32, u32),
    /// Until an unanswered connect request is sent again, and how often that is done.
    pub connect_retry: (u64, u8),
    /// Chance that a delivery stops somewhere, in parts of a million.
    pub cut_ppm: u32,
    /// Bytes of one delivery, most.
    pub segment: u64,
    /// How long bytes that nobody confirms are sent again before the stream is given up.
    pub give_up: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            latency: (5_000, 20_000),
            notify: 5_000,
            window: (64 << 10, 256 << 10),
            connect_retry: (1_000_000_000, 3),
            cut_ppm: 250_000,
            segment: u64::MAX,
            give_up: 20_000_000_000,
        }
    }
}

impl LinkConfig {
    /// Times and sizes of a seed.
    pub fn draw(rng: &mut Rng) -> Self {
        let least = rng.spread(1_000, 1_000_000);
        let window = rng.spread(1 << 10, 256 << 10) as u32;
        Self {
            latency: (least, least + rng.spread(0, 1_000_000)),
            notify: rng.spread(0, 100_000),
            window: (window, window * 2),
            cut_ppm: rng.pick(&[0, 100_000, 500_000]),
            segment: rng.pick(&[1460, 8960, 65_536, u64::MAX]),
            ..Self::default()
        }
    }
}

/// Something that a host tells its driver.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LinkNotice {
    /// A socket that was connecting is connected, or not: its error number.
    Connected {
        /// The socket.
        socket: SockId,
        /// What the owner calls it.
        cookie: u64,
        /// How it ended.
        result: Result<(), i32>,
    },
    /// A listener has a connection to take.
    Acceptable {
        /// The listener.
        port: PortId,
        /// What the owner calls it.
        cookie: u64,
    },
    /// A socket has bytes, or its end.
    Readable {
        /// The socket.
        socket: SockId,
        /// What the owner calls it.
        cookie: u64,
    },
    /// A socket takes bytes again.
    Writable {
        /// The socket.
        socket: SockId,
        /// What the owner calls it.
        cookie: u64,
    },
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Connecting,
    /// Connected, and nobody has said so to the owner.
    Answered,
    Open,
    Failed(i32),
}

/// Bits of what a socket has to tell.
mod ready {
    pub(super) const CONNECTED: u8 = 1;
    pub(super) const READABLE: u8 = 2;
    pub(super) const WRITABLE: u8 = 4;
}

#[derive(Debug)]
struct Socket {
    generation: u32,
    live: bool,
    host: u32,
    cookie: u64,
    state: State,
    peer: Option<SockId>,
    /// The peer is gone, and this side was not told.
    half_open: bool,
    /// Its host is gone: another life at the address would answer with a reset.
    orphan: bool,
    /// It sends something again and again.
    giving_up: bool,
    local: SocketAddr,
    remote: SocketAddr,
    tries: u8,
    /// What the peer wrote. Counters of bytes since the start; `read <= delivered <= written`.
    ring: Vec<u8>,
    window: u32,
    written: u64,
    delivered: u64,
    read: u64,
    /// The peer has closed after the last byte written; the end is delivered.
    finishing: bool,
    finished: bool,
    /// The error number of a stream that was reset.
    reset: Option<i32>,
    delivering: bool,
    /// Bytes written into nowhere while half open.
    nowhere: u32,
    /// The peer wants to hear when something is read.
    peer_waits: bool,
    ready: u8,
    queued: bool,
    pieces: VecDeque<Piece>,
    outlet: u32,
}

#[derive(Debug)]
struct Port {
    generation: u32,
    live: bool,
    host: u32,
    port: u16,
    cookie: u64,
    backlog: u32,
    waiting: VecDeque<SockId>,
    queued: bool,
}

#[derive(Copy, Clone, Debug)]
enum Ready {
    /// A socket as it was then: its place may have gone to another host since.
    Socket(SockId),
    Port(u32),
}

#[derive(Debug)]
struct Host {
    endpoint: u32,
    address: IpAddr,
    dead: bool,
    link_up_at: u64,
    next_port: u16,
    ready: VecDeque<Ready>,
    written: VecDeque<Written>,
}

/// All hosts and their streams.
#[derive(Debug)]
pub struct Links {
    config: LinkConfig,
    hosts: Vec<Host>,
    sockets: Vec<Socket>,
    free: Vec<u32>,
    ports: Vec<Port>,
    outlets: Vec<Outlet>,
    free_outlets: Vec<u32>,
}

impl Links {
    /// No hosts yet.
    pub fn new(config: LinkConfig) -> Self {
        Self {
            config,
            hosts: Vec::new(),
            sockets: Vec::new(),
            free: Vec::new(),
            ports: Vec::new(),
            outlets: Vec::new(),
            free_outlets: Vec::new(),
        }
    }
    /// A host of an endpoint, reachable at an address. It may be another life at the address of
    /// one that was killed: peers of that one learn of it when they send.
    pub fn add_host(&mut self, endpoint: u32, address: IpAddr) -> HostId {
        self.hosts.push(Host {
            endpoint,
            address,
            dead: false,
            link_up_at: 0,
            next_port: 32_768,
            ready: VecDeque::new(),
            written: VecDeque::new(),
        });
        HostId(self.hosts.len() as u32 - 1)
    }
    /// The host's address.
    pub fn address(&self, host: HostId) -> IpAddr {
        self.hosts[host.0 as usize].address
    }
    /// Sockets that exist.
    pub fn sockets_live(&self) -> usize {
        self.sockets.len() - self.free.len()
    }

    /// Lets happen what was to happen.
    pub fn handle(&mut self, env: &mut Env, event: LinkEvent) {
        match event {
            LinkEvent::Connect(id) => self.connect_arrives(env, id),
            LinkEvent::Answer(id) => {
                if let Some(index) = self.find(id)
                    && self.sockets[index].state == State::Answered
                {
                    self.connected(env, index, Ok(()));
                }
            }
            LinkEvent::Deliver(id) => {
                if let Some(index) = self.find(id) {
                    self.deliver(env, index);
                }
            }
            LinkEvent::Window(id) => {
                if let Some(index) = self.find(id) {
                    self.flush(env, index);
                    self.tell(env, index, ready::WRITABLE);
                }
            }
            LinkEvent::Reset(id) => {
                if let Some(index) = self.find(id) {
                    self.take_reset(env, index, crate::errno::ECONNRESET);
                }
            }
            LinkEvent::GiveUp(id) => {
                if let Some(index) = self.find(id) {
                    self.take_reset(env, index, crate::errno::ETIMEDOUT);
                }
            }
        }
    }

    #[inline]
    fn find(&self, id: SockId) -> Option<usize> {
        let socket = self.sockets.get(id.index as usize)?;
        (socket.live && socket.generation == id.generation).then_some(id.index as usize)
    }
    fn id(&self, index: usize) -> SockId {
        SockId {
            index: index as u32,
            generation: self.sockets[index].generation,
        }
    }
    fn endpoint_of(&self, index: usize) -> u32 {
        self.hosts[self.sockets[index].host as usize].endpoint
    }
    fn object(index: usize) -> Object {
        Object::Socket(index as u32)
    }
    fn peer_of(&self, index: usize) -> Option<usize> {
        self.find(self.sockets[index].peer?)
    }
    fn later(&self, env: &mut Env, after: u64, event: LinkEvent) {
        env.queue.push_after(after, Event::Link(event));
    }
    fn latency(&self, env: &mut Env) -> u64 {
        let (least, most) = self.config.latency;
        env.rng.range(least, most)
    }

    /// Puts a socket on its host's ready list.
    fn tell(&mut self, env: &mut Env, index: usize, bits: u8) {
        let socket = &mut self.sockets[index];
        socket.ready |= bits;
        if core::mem::replace(&mut socket.queued, true) {
            return;
        }
        let id = self.id(index);
        let host = &mut self.hosts[self.sockets[index].host as usize];
        host.ready.push_back(Ready::Socket(id));
        let endpoint = host.endpoint;
        let after = env.rng.below(self.config.notify + 1);
        env.wake_after(endpoint, after);
    }

    /// Takes the next notice.
    pub fn poll_notice(&mut self, host: HostId) -> Option<LinkNotice> {
        loop {
            let ready = &mut self.hosts[host.0 as usize].ready;
            match *ready.front()? {
                Ready::Port(number) => {
                    ready.pop_front();
                    let port = &mut self.ports[number as usize];
                    port.queued = false;
                    if port.live && !port.waiting.is_empty() {
                        return Some(LinkNotice::Acceptable {
                            port: PortId {
                                index: number,
                                generation: port.generation,
                            },
                            cookie: port.cookie,
                        });
                    }
                }
                Ready::Socket(id) => {
                    let index = self.find(id);
                    if let Some(index) = index
                        && let Some(notice) = self.socket_notice(index)
                    {
                        return Some(notice);
                    }
                    self.hosts[host.0 as usize].ready.pop_front();
                    if let Some(index) = index {
                        self.sockets[index].queued = false;
                    }
                }
            }
        }
    }

    fn socket_notice(&mut self, index: usize) -> Option<LinkNotice> {
        let id = self.id(index);
        let socket = &mut self.sockets[index];
        let (socket_id, cookie) = (id, socket.cookie);
        let mut take = |bit: u8| {
            let was = socket.ready & bit != 0;
            socket.ready &= !bit;
            was
        };
        if take(ready::CONNECTED) {
            let result = match socket.state {
                State::Failed(error) => Err(error),
                _ => Ok(()),
            };
            return Some(LinkNotice::Connected {
                socket: socket_id,
                cookie,
                result,
            });
        }
        if take(ready::READABLE) {
            return Some(LinkNotice::Readable {
                socket: socket_id,
                cookie,
            });
        }
        take(ready::WRITABLE).then_some(LinkNotice::Writable {
            socket: socket_id,
            cookie,
        })
    }
}
