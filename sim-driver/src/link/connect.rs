//! Listening, connecting, closing, and what goes wrong from outside.

use core::net::SocketAddr;
use std::collections::VecDeque;

use super::{HostId, LinkEvent, Links, Port, PortId, Ready, SockId, Socket, State, ready};
use crate::env::Env;
use crate::errno;
use crate::swarm::Site;
use crate::trace::{Act, Object};

const NOWHERE: SocketAddr =
    SocketAddr::new(core::net::IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED), 0);

impl Links {
    fn new_socket(&mut self, env: &mut Env, host: u32, cookie: u64) -> usize {
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None => {
                self.sockets.push(vacant());
                self.sockets.len() - 1
            }
        };
        let (least, most) = self.config.window;
        let mut window = env.rng.range(least.into(), most.into()) as u32;
        if env.fires(Site::TinyWindow) {
            window = env.rng.range(16, 600) as u32;
        }
        let socket = &mut self.sockets[index];
        let mut fresh = vacant();
        fresh.generation = socket.generation.wrapping_add(1);
        fresh.live = true;
        fresh.host = host;
        fresh.cookie = cookie;
        fresh.window = window;
        core::mem::swap(&mut fresh.ring, &mut socket.ring);
        core::mem::swap(&mut fresh.pieces, &mut socket.pieces);
        let size = (window as usize).next_power_of_two();
        if fresh.ring.len() != size {
            fresh.ring.resize(size, 0);
        }
        *socket = fresh;
        index
    }

    /// Listens on a port of a host.
    ///
    /// # Errors
    /// An error number.
    pub fn listen(
        &mut self,
        env: &mut Env,
        host: HostId,
        port: u16,
        backlog: u32,
        cookie: u64,
    ) -> Result<PortId, i32> {
        let endpoint = self.hosts[host.0 as usize].endpoint;
        let taken = |other: &Port| other.live && other.host == host.0 && other.port == port;
        let error = if self.ports.iter().any(taken) {
            errno::EADDRINUSE
        } else {
            0
        };
        let object = Object::Listener(port.into());
        env.record(endpoint, object, Act::Listening, port.into(), error as u64);
        if error != 0 {
            return Err(error);
        }
        let place = self.ports.iter().position(|other| !other.live);
        let generation = place.map_or(0, |place| self.ports[place].generation + 1);
        let listener = Port {
            generation,
            live: true,
            host: host.0,
            port,
            cookie,
            backlog: backlog.max(1),
            waiting: VecDeque::new(),
            queued: false,
        };
        let index = match place {
            Some(place) => {
                self.ports[place] = listener;
                place
            }
            None => {
                self.ports.push(listener);
                self.ports.len() - 1
            }
        } as u32;
        Ok(PortId { index, generation })
    }

    /// Stops listening; connections that nobody took are reset.
    pub fn unlisten(&mut self, env: &mut Env, id: PortId) {
        let Some(port) = self.ports.get_mut(id.index as usize) else {
            return;
        };
        if port.generation != id.generation || !core::mem::replace(&mut port.live, false) {
            return;
        }
        for socket in core::mem::take(&mut port.waiting) {
            self.abort(env, socket);
        }
    }

    /// Connects to an address; the answer is a notice.
    pub fn connect(
        &mut self,
        env: &mut Env,
        host: HostId,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        cookie: u64,
    ) -> SockId {
        let index = self.new_socket(env, host.0, cookie);
        let port = match local {
            Some(local) if local.port() != 0 => local.port(),
            _ => self.free_port(host),
        };
        let address = self.hosts[host.0 as usize].address;
        let socket = &mut self.sockets[index];
        socket.local = SocketAddr::new(address, port);
        socket.remote = remote;
        let endpoint = self.endpoint_of(index);
        let to = remote.port().into();
        env.record(endpoint, Self::object(index), Act::Connecting, to, 0);
        let id = self.id(index);
        let after = self.latency(env);
        self.later(env, after, LinkEvent::Connect(id));
        id
    }

    /// A port that no socket of the host uses.
    fn free_port(&mut self, host: HostId) -> u16 {
        loop {
            let stack = &mut self.hosts[host.0 as usize];
            stack.next_port = stack.next_port.checked_add(1).unwrap_or(32_768);
            let port = stack.next_port;
            let used = |s: &Socket| s.live && s.host == host.0 && s.local.port() == port;
            if !self.sockets.iter().any(used) {
                return port;
            }
        }
    }

    /// A connecting socket's own address, known before it is connected.
    pub fn addresses(&self, id: SockId) -> Option<(SocketAddr, SocketAddr)> {
        let index = self.find(id)?;
        Some((self.sockets[index].local, self.sockets[index].remote))
    }
    /// What the owner calls the socket from now on.
    pub fn set_cookie(&mut self, id: SockId, cookie: u64) {
        if let Some(index) = self.find(id) {
            self.sockets[index].cookie = cookie;
        }
    }

    pub(super) fn connected(&mut self, env: &mut Env, index: usize, result: Result<(), i32>) {
        let socket = &mut self.sockets[index];
        let (act, number) = match result {
            Ok(()) => (Act::Connected, u64::from(socket.remote.port())),
            Err(error) => (Act::ConnectFailed, error as u64),
        };
        socket.state = match result {
            Ok(()) => State::Open,
            Err(error) => State::Failed(error),
        };
        let endpoint = self.endpoint_of(index);
        env.record(endpoint, Self::object(index), act, number, 0);
        self.tell(env, index, ready::CONNECTED | ready::WRITABLE);
        if self.sockets[index].delivered > self.sockets[index].read {
            self.tell(env, index, ready::READABLE);
        }
    }

    pub(super) fn connect_arrives(&mut self, env: &mut Env, id: SockId) {
        let Some(client) = self.find(id) else {
            return;
        };
        if self.sockets[client].state != State::Connecting {
            return;
        }
        if env.fires(Site::Refused) {
            self.connected(env, client, Err(errno::ECONNREFUSED));
            return;
        }
        let remote = self.sockets[client].remote;
        let here = &self.hosts[self.sockets[client].host as usize];
        let now = env.now();
        let up = here.link_up_at <= now && !here.dead;
        let there = self
            .hosts
            .iter()
            .position(|host| host.address == remote.ip() && !host.dead && host.link_up_at <= now);
        let Some(host) = there.filter(|_| up) else {
            self.connect_again(env, client, errno::ETIMEDOUT);
            return;
        };
        let listens =
            |port: &Port| port.live && port.host == host as u32 && port.port == remote.port();
        let Some(port) = self.ports.iter().position(listens) else {
            self.connected(env, client, Err(errno::ECONNREFUSED));
            return;
        };
        if self.ports[port].waiting.len() >= self.ports[port].backlog as usize {
            let endpoint = self.hosts[host].endpoint;
            let number = u64::from(remote.port());
            let object = Object::Listener(remote.port().into());
            env.record(endpoint, object, Act::Dropped, number, 0);
            self.connect_again(env, client, errno::ETIMEDOUT);
            return;
        }
        self.pair(env, client, host as u32, port);
    }

    fn connect_again(&mut self, env: &mut Env, client: usize, error: i32) {
        let (after, most) = self.config.connect_retry;
        let socket = &mut self.sockets[client];
        socket.tries += 1;
        if socket.tries > most {
            self.connected(env, client, Err(error));
        } else {
            let id = self.id(client);
            self.later(env, after, LinkEvent::Connect(id));
        }
    }

    fn pair(&mut self, env: &mut Env, client: usize, host: u32, port: usize) {
        let server = self.new_socket(env, host, u64::MAX);
        let (server_id, client_id) = (self.id(server), self.id(client));
        let (local, remote) = (self.sockets[client].local, self.sockets[client].remote);
        let socket = &mut self.sockets[server];
        socket.local = remote;
        socket.remote = local;
        socket.state = State::Open;
        socket.peer = Some(client_id);
        let socket = &mut self.sockets[client];
        socket.peer = Some(server_id);
        socket.state = State::Answered;
        let after = self.latency(env);
        self.later(env, after, LinkEvent::Answer(client_id));
        let listener = &mut self.ports[port];
        listener.waiting.push_back(server_id);
        if !core::mem::replace(&mut listener.queued, true) {
            self.hosts[host as usize]
                .ready
                .push_back(Ready::Port(port as u32));
        }
        let endpoint = self.hosts[host as usize].endpoint;
        let after = env.rng.below(self.config.notify + 1);
        env.wake_after(endpoint, after);
    }

    /// True when somebody waits to be taken.
    pub fn is_waiting(&self, id: PortId) -> bool {
        let port = self.ports.get(id.index as usize);
        port.is_some_and(|p| p.generation == id.generation && p.live && !p.waiting.is_empty())
    }

    /// Takes a connection: the socket, the peer's address and the own one.
    pub fn accept(
        &mut self,
        env: &mut Env,
        id: PortId,
        cookie: u64,
    ) -> Option<(SockId, SocketAddr, SocketAddr)> {
        loop {
            let port = self.ports.get_mut(id.index as usize)?;
            if port.generation != id.generation || !port.live {
                return None;
            }
            let socket = port.waiting.pop_front()?;
            let Some(index) = self.find(socket) else {
                continue;
            };
            self.sockets[index].cookie = cookie;
            let (local, remote) = (self.sockets[index].local, self.sockets[index].remote);
            let endpoint = self.endpoint_of(index);
            let from = remote.port().into();
            env.record(endpoint, Self::object(index), Act::Accepted, from, 0);
            self.tell(env, index, ready::READABLE | ready::WRITABLE);
            return Some((socket, remote, local));
        }
    }

    /// Closes a socket: what was written still arrives, then the peer sees the end. If the peer
    /// sends more it is reset.
    pub fn close(&mut self, env: &mut Env, id: SockId) {
        let Some(index) = self.find(id) else {
            return;
        };
        let endpoint = self.endpoint_of(index);
        env.record(endpoint, Self::object(index), Act::Closed, 0, 0);
        let unread = self.sockets[index].written > self.sockets[index].read;
        if let Some(peer) = self.peer_of(index) {
            if unread || self.sockets[index].state != State::Open {
                let to = self.id(peer);
                let after = self.latency(env);
                self.later(env, after, LinkEvent::Reset(to));
            } else {
                self.sockets[peer].finishing = true;
                self.schedule_delivery(env, peer);
            }
        }
        self.forget(index);
    }

    /// Closes a socket with a reset: what is on its way is lost.
    pub fn abort(&mut self, env: &mut Env, id: SockId) {
        let Some(index) = self.find(id) else {
            return;
        };
        let endpoint = self.endpoint_of(index);
        env.record(endpoint, Self::object(index), Act::ResetSent, 0, 0);
        if let Some(peer) = self.peer_of(index) {
            let to = self.id(peer);
            let after = self.latency(env);
            self.later(env, after, LinkEvent::Reset(to));
        }
        self.forget(index);
    }

    /// Says that nothing more will be written: what was written still arrives, then the peer sees
    /// the end. Reading goes on. Nothing before the socket is connected.
    pub fn shutdown(&mut self, env: &mut Env, id: SockId) {
        let Some(index) = self
            .find(id)
            .filter(|&i| self.sockets[i].state == State::Open)
        else {
            return;
        };
        let endpoint = self.endpoint_of(index);
        env.record(endpoint, Self::object(index), Act::ShutDown, 0, 0);
        if let Some(peer) = self.peer_of(index) {
            self.sockets[peer].finishing = true;
            self.schedule_delivery(env, peer);
        } else if self.sockets[index].half_open {
            self.unheard(env, index);
        }
    }

    fn forget(&mut self, index: usize) {
        self.sockets[index].pieces.clear();
        self.sockets[index].outlet = u32::MAX;
        self.sockets[index].live = false;
        self.free.push(index as u32);
    }

    pub(super) fn take_reset(&mut self, env: &mut Env, index: usize, error: i32) {
        let endpoint = self.endpoint_of(index);
        env.record(endpoint, Self::object(index), Act::ResetSent, 0, 0);
        if self.sockets[index].state == State::Connecting {
            self.connected(env, index, Err(error));
            return;
        }
        let socket = &mut self.sockets[index];
        if socket.reset.is_some() {
            // It has its end; what else is wrong with it comes too late.
            return;
        }
        socket.reset = Some(error);
        socket.peer = None;
        // What was delivered and not read is lost too.
        socket.read = socket.written;
        socket.delivered = socket.written;
        self.tell(env, index, ready::READABLE | ready::WRITABLE);
    }

    /// Both ends of a connection lose each other and are not told.
    pub(super) fn sever(&mut self, env: &mut Env, index: usize) {
        let peer = self.peer_of(index);
        for (here, there) in [(Some(index), peer), (peer, Some(index))] {
            let Some(here) = here else { continue };
            self.sockets[here].half_open = true;
            self.sockets[here].peer = None;
            let lost = there.is_some_and(|there| {
                let there = &self.sockets[there];
                there.written > there.delivered || there.finishing && !there.finished
            });
            if lost {
                self.unheard(env, here);
            }
        }
    }

    /// Something of a half-open socket is not confirmed, and never will be.
    pub(super) fn unheard(&mut self, env: &mut Env, index: usize) {
        if !core::mem::replace(&mut self.sockets[index].giving_up, true) {
            let id = self.id(index);
            self.later(env, self.config.give_up, LinkEvent::GiveUp(id));
        }
    }

    /// Nothing gets through to or from the host for a time; streams go on afterwards.
    pub fn cut_link(&mut self, env: &mut Env, host: HostId, for_ns: u64) {
        let endpoint = self.hosts[host.0 as usize].endpoint;
        env.record(endpoint, Object::World, Act::LinkDown, for_ns, 0);
        let until = env.now() + for_ns;
        let stack = &mut self.hosts[host.0 as usize];
        stack.link_up_at = stack.link_up_at.max(until);
    }

    /// The link is there again; what is on its way comes at the time it was put off to.
    pub fn heal_link(&mut self, host: HostId) {
        self.hosts[host.0 as usize].link_up_at = 0;
    }

    /// Where a host can be reached, if anybody listens there.
    pub fn listening(&self, host: HostId) -> Option<SocketAddr> {
        let port = self.ports.iter().find(|p| p.live && p.host == host.0)?;
        Some(SocketAddr::new(self.address(host), port.port))
    }

    /// The host is gone without a trace: its peers' sockets are half open from now on.
    pub fn kill(&mut self, env: &mut Env, host: HostId) {
        let endpoint = self.hosts[host.0 as usize].endpoint;
        env.record(endpoint, Object::World, Act::Died, 0, 0);
        self.hosts[host.0 as usize].dead = true;
        for index in 0..self.sockets.len() {
            if self.sockets[index].live && self.sockets[index].host == host.0 {
                if let Some(peer) = self.peer_of(index) {
                    self.sockets[peer].orphan = true;
                }
                self.sever(env, index);
                self.forget(index);
            }
        }
        for port in self.ports.iter_mut().filter(|port| port.host == host.0) {
            port.live = false;
            port.waiting.clear();
        }
        self.hosts[host.0 as usize].written.clear();
    }
}

fn vacant() -> Socket {
    Socket {
        generation: 0,
        live: false,
        host: 0,
        cookie: 0,
        state: State::Connecting,
        peer: None,
        half_open: false,
        orphan: false,
        giving_up: false,
        local: NOWHERE,
        remote: NOWHERE,
        tries: 0,
        ring: Vec::new(),
        window: 0,
        written: 0,
        delivered: 0,
        read: 0,
        finishing: false,
        finished: false,
        reset: None,
        delivering: false,
        nowhere: 0,
        peer_waits: false,
        ready: 0,
        queued: false,
        pieces: VecDeque::new(),
        outlet: u32::MAX,
    }
}
