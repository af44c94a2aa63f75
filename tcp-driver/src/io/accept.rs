//! Listeners. Who connects waits in the system's backlog while the endpoint has no room for
//! half-open sockets, or the system no descriptors.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Interest, Token};
use socket2::{Domain, Protocol, SockRef, Socket as Raw, Type};
use xio_proto::{Instant, ListenerId, Trace};

use super::connect::{errno, set_options};
use super::{Core, Io, LISTENER};

/// A bound listener.
#[derive(Debug)]
pub(super) struct Listening {
    id: ListenerId,
    socket: TcpListener,
    /// Somebody may be waiting.
    pub(super) ready: bool,
    /// The system had no descriptor left: not before then.
    paused: Option<Instant>,
}

impl Listening {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

/// Bits of `errno` after which another try now makes no sense: EMFILE, ENFILE, ENOBUFS, ENOMEM.
const OUT_OF: [i32; 4] = [24, 23, 105, 12];

impl Io {
    pub(super) fn listen<T: Trace>(
        &mut self,
        core: &mut Core<T>,
        id: ListenerId,
        address: SocketAddr,
        backlog: u32,
    ) {
        match self.bind(id, address, backlog) {
            Ok(listener) => self.listeners[id.index()] = Some(listener),
            Err(e) => core.endpoint.handle_listen_failed(core.now, id, errno(&e)),
        }
    }

    fn bind(&self, id: ListenerId, address: SocketAddr, backlog: u32) -> io::Result<Listening> {
        let domain = Domain::for_address(address);
        let raw = Raw::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        // A server that starts again must not wait for the connections of its earlier life.
        raw.set_reuse_address(true)?;
        // Buffers of accepted sockets are taken from here, and the window from them.
        if let Some(bytes) = self.options.receive_buffer {
            raw.set_recv_buffer_size(bytes)?;
        }
        raw.bind(&address.into())?;
        raw.listen(backlog.clamp(1, 65_535) as i32)?;
        let mut socket = TcpListener::from_std(raw.into());
        let token = Token((LISTENER | id.index() as u64) as usize);
        self.poll
            .registry()
            .register(&mut socket, token, Interest::READABLE)?;
        Ok(Listening {
            id,
            socket,
            ready: false,
            paused: None,
        })
    }

    pub(super) fn unlisten(&mut self, id: ListenerId) {
        if let Some(mut listener) = self.listeners[id.index()].take() {
            let _ = self.poll.registry().deregister(&mut listener.socket);
            drop(listener);
            self.descriptor_freed();
        }
    }

    pub(super) fn can_accept<T: Trace>(&self, core: &Core<T>) -> bool {
        self.accepting
            && core.endpoint.half_open_room() > 0
            && (self.listeners.iter().flatten()).any(|l| l.ready && l.paused.is_none())
    }

    /// When a listener that pauses is to be tried again.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        if !self.accepting {
            return None;
        }
        let paused = self.listeners.iter().flatten();
        paused.filter_map(|l| l.paused).min()
    }

    /// One of this process's descriptors is free, so a listener that had none may have it.
    pub(super) fn descriptor_freed(&mut self) {
        if self.accepting {
            for listener in self.listeners.iter_mut().flatten() {
                listener.paused = None;
            }
        }
    }

    pub(super) fn accept_all<T: Trace>(&mut self, core: &mut Core<T>) {
        if !self.accepting {
            return;
        }
        let mut more = false;
        for index in 0..self.listeners.len() {
            if let Some(mut listener) = self.listeners[index].take() {
                self.accept_from(core, &mut listener);
                more |= listener.ready;
                self.listeners[index] = Some(listener);
            }
        }
        self.accepting = more;
    }

    fn accept_from<T: Trace>(&mut self, core: &mut Core<T>, listener: &mut Listening) {
        if listener.paused.is_some_and(|until| until <= core.now) {
            listener.paused = None;
        }
        let mut left = self.options.accept_budget.max(1);
        while listener.ready && listener.paused.is_none() && left > 0 {
            if core.endpoint.half_open_room() == 0 {
                return;
            }
            left -= 1;
            match listener.socket.accept() {
                Ok((stream, peer)) => self.accepted(core, listener.id, stream, peer),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => listener.ready = false,
                Err(e) => {
                    let number = errno(&e);
                    if OUT_OF.contains(&number) {
                        self.stats.accept_pauses += 1;
                        let pause = self.options.accept_pause.max(Duration::from_millis(1));
                        listener.paused = Some(core.now.after(pause));
                    }
                    // Otherwise it is about that one peer, who is gone.
                }
            }
        }
    }

    fn accepted<T: Trace>(
        &mut self,
        core: &mut Core<T>,
        listener: ListenerId,
        stream: mio::net::TcpStream,
        peer: SocketAddr,
    ) {
        self.stats.accepted += 1;
        // What cannot be set is not worth a connection.
        let _ = set_options(&SockRef::from(&stream), &self.options);
        let local = stream.local_addr().ok();
        let taken =
            core.endpoint
                .handle_socket_accepted(core.now, core.transport, listener, peer, local);
        let Ok(id) = taken else {
            self.stats.refused += 1;
            return;
        };
        if self.open(id, stream, false).is_err() {
            core.endpoint.handle_socket_closed(core.now, id);
            return;
        }
        // Its first bytes are usually here already, and no event says so again.
        self.sockets[id.index()].readable = true;
        self.mark_readable(id.index() as u32);
    }
}
