//! Sockets of the TCP dialect: what the core wants done on the links, and what the links report.
//!
//! Folder map: here connecting, accepting and closing; `read` (bytes into the core), `write`
//! (frames out of it), `stray` (clients that speak something else).

mod read;
mod stray;
mod write;

use core::net::SocketAddr;
use std::collections::VecDeque;

use xio_proto::{CmKind, Control, ListenerId, NexusId, SocketId, TransportId};

use super::late::Late;
use super::{Hands, SimDriver, User};
use crate::env::{Env, Forbidden};
use crate::errno;
use crate::link::{HostId, LinkNotice, Links, OutletId, PortId, SockId};
use crate::rng::Rng;
use crate::swarm::Site;
use crate::trace::{Act, Object};
use stray::Stray;

/// How a driver of sockets goes about its work: all of these are right.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Leaves peers in the backlog while there is no room for them, instead of hanging up.
    pub patient: bool,
    /// Bytes of the buffer that it reads into.
    pub buffer: usize,
    /// Most bytes of one read.
    pub read_max: usize,
    /// Most reads of one socket before another gets its turn.
    pub reads: u32,
    /// Chance that it asks the core what to read although there is nothing, in parts of a million.
    pub asks_in_vain: u32,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            patient: true,
            buffer: 64 << 10,
            read_max: 64 << 10,
            reads: 4,
            asks_in_vain: 0,
        }
    }
}

impl Habits {
    /// Habits of a seed.
    pub fn draw(rng: &mut Rng) -> Self {
        Self {
            patient: rng.flip(),
            buffer: rng.pick(&[64, 1500, 65_536]),
            read_max: rng.pick(&[1460, 16_384, 65_536]),
            reads: rng.pick(&[1, 4, 16]),
            asks_in_vain: rng.pick(&[0, 50_000, 500_000]),
        }
    }
}

/// A transport connection on sockets.
#[derive(Debug, Default)]
struct Streams {
    nexus: Option<NexusId>,
    outlet: Option<OutletId>,
    remote: Option<SocketAddr>,
    local: Option<SocketAddr>,
    /// Sockets that are not connected yet.
    connecting: u8,
}

/// A socket that the core knows.
#[derive(Debug, Default)]
struct End {
    id: Option<SocketId>,
    /// `None` before it is made, and after it was closed.
    sock: Option<SockId>,
    /// The transport connection that it is part of.
    nexus: Option<NexusId>,
    /// Bytes that were read and not taken.
    staged: Vec<u8>,
    /// On the list of those to be read.
    queued: bool,
    /// The core knows that it ended.
    told: bool,
}

/// The sockets of a driver.
#[derive(Debug)]
pub(super) struct Tcp {
    pub(super) transport: TransportId,
    pub(super) host: HostId,
    habits: Habits,
    /// By index of the listener.
    listeners: Vec<Option<PortId>>,
    /// Listeners with peers in the backlog that there was no room for.
    crowded: Vec<(PortId, ListenerId)>,
    /// By index of the nexus.
    streams: Vec<Streams>,
    /// By index of the socket.
    ends: Vec<End>,
    /// Sockets that have something, or may be read again.
    readable: VecDeque<SocketId>,
    strays: Vec<Option<Stray>>,
    flushed: Vec<u64>,
}

impl Tcp {
    pub(super) fn new(transport: TransportId, host: HostId, habits: Habits) -> Self {
        Self {
            transport,
            host,
            habits,
            listeners: Vec::new(),
            crowded: Vec::new(),
            streams: Vec::new(),
            ends: Vec::new(),
            readable: VecDeque::new(),
            strays: Vec::new(),
            flushed: Vec::new(),
        }
    }

    /// Something is to be read.
    pub(super) fn is_busy(&self) -> bool {
        !self.readable.is_empty()
    }
    /// Peers wait in a backlog until there is room.
    pub(super) fn is_crowded(&self) -> bool {
        !self.crowded.is_empty()
    }

    fn streams(&mut self, nexus: NexusId) -> &mut Streams {
        let index = nexus.index();
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, Streams::default);
        }
        let streams = &mut self.streams[index];
        if streams.nexus != Some(nexus) {
            *streams = Streams {
                nexus: Some(nexus),
                ..Streams::default()
            };
        }
        streams
    }

    fn end(&mut self, id: SocketId) -> Option<&mut End> {
        let end = self.ends.get_mut(id.index())?;
        (end.id == Some(id)).then_some(end)
    }

    /// A row for a socket that the core has a new id for.
    fn open(&mut self, id: SocketId, nexus: Option<NexusId>, sock: Option<SockId>) {
        let index = id.index();
        if self.ends.len() <= index {
            self.ends.resize_with(index + 1, End::default);
        }
        let end = &mut self.ends[index];
        assert!(end.id.is_none(), "{id:?} has the place of {:?}", end.id);
        let mut staged = core::mem::take(&mut end.staged);
        staged.clear();
        *end = End {
            id: Some(id),
            sock,
            nexus,
            staged,
            ..End::default()
        };
    }

    /// Forgets a socket and closes it, if it was not closed before.
    fn close(&mut self, env: &mut Env, links: &mut Links, id: SocketId) {
        if let Some(end) = self.end(id) {
            end.id = None;
            if let Some(sock) = end.sock.take() {
                links.close(env, sock);
            }
        }
    }

    /// A socket is to be read.
    fn touch(&mut self, id: SocketId) {
        if let Some(end) = self.end(id)
            && !core::mem::replace(&mut end.queued, true)
        {
            self.readable.push_back(id);
        }
    }
}

// What the core wants done.
impl SimDriver {
    pub(super) fn tcp_control<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(tcp) = &mut self.tcp else {
            return false;
        };
        let Some(control) = self.core.poll_control(tcp.transport) else {
            return false;
        };
        let (env, links) = (&mut *hands.env, &mut *hands.links);
        match control {
            Control::Listen {
                listener,
                address,
                backlog,
            } => self.listen_tcp(env, links, listener, address.port(), backlog),
            Control::Unlisten { listener } => {
                let place = tcp.listeners.get_mut(listener.index());
                if let Some(port) = place.and_then(Option::take) {
                    links.unlisten(env, port);
                    tcp.crowded.retain(|&(crowded, _)| crowded != port);
                }
            }
            Control::CloseSocket { socket, .. } => tcp.close(env, links, socket),
            other => self.streams_control(env, links, other),
        }
        true
    }

    fn listen_tcp(
        &mut self,
        env: &mut Env,
        links: &mut Links,
        listener: ListenerId,
        port: u16,
        backlog: u32,
    ) {
        let now = self.now(env);
        let Some(tcp) = &mut self.tcp else { return };
        match links.listen(env, tcp.host, port, backlog, listener.to_bits()) {
            Ok(port) => {
                let index = listener.index();
                if tcp.listeners.len() <= index {
                    tcp.listeners.resize(index + 1, None);
                }
                tcp.listeners[index] = Some(port);
            }
            Err(error) => self.core.handle_listen_failed(now, listener, error),
        }
    }

    fn streams_control(&mut self, env: &mut Env, links: &mut Links, control: Control) {
        let Some(tcp) = &mut self.tcp else { return };
        match control {
            Control::ResolveAddress {
                nexus, peer, local, ..
            } => {
                let streams = tcp.streams(nexus);
                streams.remote = Some(peer);
                streams.local = local;
                let step = if env.fires(Site::AddressError) {
                    Late::Step(nexus, CmKind::AddrError, errno::EHOSTUNREACH)
                } else {
                    Late::Step(nexus, CmKind::AddrResolved, 0)
                };
                self.report(env, step);
            }
            Control::ResolveRoute { nexus, .. } => {
                self.report(env, Late::Step(nexus, CmKind::RouteResolved, 0));
            }
            Control::CreateQueuePair { nexus } => {
                let made = if env.fires(Site::QueuePairFailed) {
                    Err(errno::EMFILE)
                } else {
                    for id in self.core.sockets(nexus).into_iter().flatten() {
                        tcp.open(id, Some(nexus), None);
                    }
                    Ok(())
                };
                self.report(env, Late::Made(nexus, made));
            }
            Control::Connect { nexus, .. } => self.connect_streams(env, links, nexus),
            Control::Accept { nexus, .. } => self.bind(nexus),
            Control::Reject { nexus, .. } => self.bind(nexus),
            Control::Disconnect { nexus } => self.disconnect(env, links, nexus),
            Control::Drain { nexus } => {
                self.bind(nexus);
                self.flush_frames(env, links, nexus);
            }
            Control::Destroy { nexus } => self.destroy_streams(env, links, nexus),
            _ => env.violate(self.number, Object::World, Forbidden::Unsupported, 1),
        }
    }

    fn connect_streams(&mut self, env: &mut Env, links: &mut Links, nexus: NexusId) {
        let Some(tcp) = &mut self.tcp else { return };
        let streams = tcp.streams(nexus);
        let Some(remote) = streams.remote.filter(|_| !env.fires(Site::CmCallFailed)) else {
            self.fail(env, nexus, errno::EINVAL);
            return;
        };
        // Two sockets cannot have one port.
        let local = streams.local.map(|local| SocketAddr::new(local.ip(), 0));
        let mut ids = self.core.sockets(nexus);
        streams.connecting = ids.iter().flatten().count() as u8;
        if env.rng.flip() {
            ids.reverse();
        }
        for id in ids.into_iter().flatten() {
            let sock = links.connect(env, tcp.host, local, remote, id.to_bits());
            if let Some(end) = tcp.end(id) {
                end.sock = Some(sock);
            }
        }
    }

    /// Sockets that have become a transport connection belong to it from now on.
    fn bind(&mut self, nexus: NexusId) {
        let Some(tcp) = &mut self.tcp else { return };
        tcp.streams(nexus);
        for id in self.core.sockets(nexus).into_iter().flatten() {
            if let Some(end) = tcp.end(id) {
                end.nexus = Some(nexus);
            }
        }
    }

    /// Ends a transport connection: by saying that nothing more comes and waiting for the peer to
    /// say the same, or by closing at once.
    fn disconnect(&mut self, env: &mut Env, links: &mut Links, nexus: NexusId) {
        self.bind(nexus);
        self.flush_frames(env, links, nexus);
        let Some(tcp) = &mut self.tcp else { return };
        let silent = env.fires(Site::NoDisconnected);
        let waits = env.rng.flip();
        for id in self.core.sockets(nexus).into_iter().flatten() {
            let Some(end) = tcp.end(id) else { continue };
            if waits || silent {
                if let Some(sock) = end.sock {
                    links.shutdown(env, sock);
                }
                tcp.touch(id);
            } else if let Some(sock) = end.sock.take() {
                links.close(env, sock);
            }
        }
        if !waits && !silent {
            self.report(env, Late::Step(nexus, CmKind::Disconnected, 0));
        }
    }

    fn destroy_streams(&mut self, env: &mut Env, links: &mut Links, nexus: NexusId) {
        let Some(tcp) = &mut self.tcp else { return };
        if let Some(outlet) = tcp.streams(nexus).outlet.take() {
            links.close_outlet(env, outlet);
        }
        for id in self.core.sockets(nexus).into_iter().flatten() {
            tcp.close(env, links, id);
        }
        tcp.streams(nexus).nexus = None;
        self.report(env, Late::Destroyed(nexus));
    }
}

// What the links report.
impl SimDriver {
    /// Takes the next notice of a socket or listener. False when there is none.
    pub(super) fn link_notice<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(tcp) = &mut self.tcp else {
            return false;
        };
        let Some(notice) = hands.links.poll_notice(tcp.host) else {
            return false;
        };
        let (env, links) = (&mut *hands.env, &mut *hands.links);
        match notice {
            LinkNotice::Acceptable { port, cookie } => {
                self.accept_all(env, links, port, ListenerId::from_bits(cookie));
            }
            LinkNotice::Connected { cookie, result, .. } if stray::is_stray(cookie) => {
                tcp.stray_connected(env, links, cookie, result);
            }
            LinkNotice::Readable { cookie, .. } if stray::is_stray(cookie) => {
                tcp.stray_readable(env, links, cookie);
            }
            LinkNotice::Connected { cookie, result, .. } => {
                self.connected(env, links, SocketId::from_bits(cookie), result);
            }
            LinkNotice::Readable { cookie, .. } => tcp.touch(SocketId::from_bits(cookie)),
            // The links write on by themselves.
            LinkNotice::Writable { .. } => return true,
        }
        self.settle(hands);
        true
    }

    fn connected(&mut self, env: &mut Env, links: &Links, id: SocketId, result: Result<(), i32>) {
        let Some(tcp) = &mut self.tcp else { return };
        let Some(nexus) = tcp.end(id).and_then(|end| end.nexus) else {
            return;
        };
        if let Err(error) = result {
            let kind = match error {
                errno::ECONNREFUSED => CmKind::Rejected,
                errno::ETIMEDOUT => CmKind::Unreachable,
                _ => CmKind::ConnectError,
            };
            self.report(env, Late::Step(nexus, kind, error));
            return;
        }
        let streams = tcp.streams(nexus);
        streams.connecting -= 1;
        if streams.connecting == 0 {
            let address = |id: Option<SocketId>| {
                let sock = tcp.ends.get(id?.index())?.sock?;
                links.addresses(sock).map(|(local, _)| local)
            };
            let [control, data] = self.core.sockets(nexus);
            let Some(control) = address(control) else {
                return;
            };
            let late = Late::Connected(nexus, control, address(data));
            self.report(env, late);
        }
    }

    /// Takes connections off a listener, as far as there is room for them.
    fn accept_all(&mut self, env: &mut Env, links: &mut Links, port: PortId, listener: ListenerId) {
        let now = self.now(env);
        let Some(tcp) = &mut self.tcp else { return };
        loop {
            if tcp.habits.patient && self.core.half_open_room() == 0 {
                if links.is_waiting(port) {
                    tcp.crowded.push((port, listener));
                }
                return;
            }
            let Some((sock, peer, local)) = links.accept(env, port, u64::MAX) else {
                return;
            };
            let transport = tcp.transport;
            let taken =
                self.core
                    .handle_socket_accepted(now, transport, listener, peer, Some(local));
            match taken {
                Ok(id) => {
                    links.set_cookie(sock, id.to_bits());
                    tcp.open(id, None, Some(sock));
                    tcp.touch(id);
                }
                Err(_) => {
                    env.record(self.number, Object::World, Act::Refused, 1, 0);
                    links.abort(env, sock);
                }
            }
        }
    }

    /// Looks again at listeners that were left alone for lack of room.
    pub(super) fn accept_more<U: User>(&mut self, hands: &mut Hands<'_, U>) {
        let Some(tcp) = &mut self.tcp else { return };
        let crowded = core::mem::take(&mut tcp.crowded);
        let any = !crowded.is_empty();
        for (port, listener) in crowded {
            self.accept_all(hands.env, hands.links, port, listener);
        }
        if any {
            self.settle(hands);
        }
    }
}
