//! What the endpoint wants of its sockets: make, connect, hang up, close.

use std::io;
use std::net::{Shutdown, SocketAddr};

use mio::net::TcpStream;
use socket2::{Domain, Protocol, SockRef, Socket as Raw, TcpKeepalive, Type};
use xio_proto::{CmEvent, CmKind, Control, NexusId, SocketId, Trace, WorkStatus};

use super::{Core, Io, NONE, Nexus, Socket, token};
use crate::options::Options;

/// The system's number of an error; 5 (EIO) for one that has none.
pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(5)
}

/// ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT, EAFNOSUPPORT.
const REFUSED: i32 = 111;
const UNREACHABLE: [i32; 3] = [113, 101, 110];

pub(super) fn set_options(raw: &SockRef<'_>, options: &Options) -> io::Result<()> {
    raw.set_tcp_nodelay(options.nodelay)?;
    if let Some(bytes) = options.send_buffer {
        raw.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        raw.set_recv_buffer_size(bytes)?;
    }
    #[cfg(target_os = "linux")]
    if options.user_timeout.is_some() {
        raw.set_tcp_user_timeout(options.user_timeout)?;
    }
    if let Some(time) = options.keepalive {
        raw.set_tcp_keepalive(&TcpKeepalive::new().with_time(time))?;
    }
    Ok(())
}

impl Io {
    pub(crate) fn control<T: Trace>(&mut self, core: &mut Core<T>, control: Control) {
        let now = core.now;
        match control {
            Control::Listen {
                listener,
                address,
                backlog,
            } => self.listen(core, listener, address, backlog),
            Control::Unlisten { listener } => self.unlisten(listener),
            Control::ResolveAddress {
                nexus, peer, local, ..
            } => {
                let row = &mut self.nexuses[nexus.index()];
                *row = Nexus {
                    id: Some(nexus),
                    peer,
                    local,
                    dirty: row.dirty,
                    queue: super::write::Queue::with_room(),
                    ..Nexus::vacant()
                };
                let done = CmEvent::plain(CmKind::AddrResolved);
                core.endpoint.handle_cm(now, nexus, done);
            }
            Control::ResolveRoute { nexus, .. } => {
                let done = CmEvent::plain(CmKind::RouteResolved);
                core.endpoint.handle_cm(now, nexus, done);
            }
            Control::CreateQueuePair { nexus } => {
                let made = self.make_sockets(core, nexus);
                let made = made.map_err(|e| errno(&e));
                core.endpoint.handle_queue_pair(now, nexus, made);
            }
            Control::Connect { nexus, .. } => self.connect(core, nexus),
            Control::Accept { nexus, .. } => {
                let row = &mut self.nexuses[nexus.index()];
                *row = Nexus {
                    id: Some(nexus),
                    dirty: row.dirty,
                    queue: super::write::Queue::with_room(),
                    ..Nexus::vacant()
                };
                self.attach(core, nexus);
            }
            Control::Reject { nexus, .. } | Control::Disconnect { nexus } => {
                self.disconnect(core, nexus);
            }
            Control::Drain { nexus } => self.flush_queue(core, nexus.index() as u32),
            Control::Destroy { nexus } => self.destroy(core, nexus),
            // The commands for it are refused on sockets, so this is never asked for.
            Control::Register { region, .. } => {
                core.endpoint.handle_region(now, region, Err(95));
            }
            Control::Revoke { region } => core.endpoint.handle_region_revoked(now, region),
            Control::CloseSocket { socket, .. } => {
                self.stats.strays += 1;
                self.shut(socket.index() as u32);
            }
            // An action that this version of the core does not have.
            _ => debug_assert!(false, "{control:?} is not known to this driver"),
        }
    }

    fn ends<T: Trace>(core: &Core<T>, nexus: NexusId) -> impl Iterator<Item = SocketId> + use<T> {
        core.endpoint.sockets(nexus).into_iter().flatten()
    }

    /// Lets a transport connection and its sockets know each other.
    fn attach<T: Trace>(&mut self, core: &Core<T>, nexus: NexusId) {
        for (place, id) in Self::ends(core, nexus).enumerate() {
            self.nexuses[nexus.index()].sockets[place] = id.index() as u32;
            self.sockets[id.index()].nexus = nexus.index() as u32;
        }
    }

    fn make_sockets<T: Trace>(&mut self, core: &Core<T>, nexus: NexusId) -> io::Result<()> {
        let (peer, local) = {
            let row = &self.nexuses[nexus.index()];
            (row.peer, row.local)
        };
        for id in Self::ends(core, nexus) {
            let raw = Raw::new(
                Domain::for_address(peer),
                Type::STREAM.nonblocking(),
                Some(Protocol::TCP),
            )?;
            set_options(&SockRef::from(&raw), &self.options)?;
            if let Some(local) = local {
                raw.bind(&SocketAddr::new(local.ip(), 0).into())?;
            }
            let row = &mut self.sockets[id.index()];
            *row = Socket {
                id: Some(id),
                stream: Some(TcpStream::from_std(raw.into())),
                queued: row.queued,
                ..Socket::default()
            };
            self.stats.open += 1;
        }
        self.attach(core, nexus);
        Ok(())
    }

    fn connect<T: Trace>(&mut self, core: &mut Core<T>, nexus: NexusId) {
        let peer = self.nexuses[nexus.index()].peer;
        for id in Self::ends(core, nexus) {
            if let Err(e) = self.start_connect(id, peer) {
                self.connect_failed(core, nexus, &e);
                return;
            }
        }
    }

    fn start_connect(&mut self, id: SocketId, peer: SocketAddr) -> io::Result<()> {
        let row = &mut self.sockets[id.index()];
        let Some(stream) = &mut row.stream else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        match SockRef::from(&*stream).connect(&peer.into()) {
            // EINPROGRESS
            Err(e) if e.raw_os_error() != Some(115) => return Err(e),
            _ => {}
        }
        let interest = mio::Interest::READABLE | mio::Interest::WRITABLE;
        row.connecting = true;
        self.poll.registry().register(stream, token(id), interest)
    }

    /// Something happened to a socket that is being connected.
    pub(super) fn connect_event<T: Trace>(&mut self, core: &mut Core<T>, s: u32) {
        let row = &mut self.sockets[s as usize];
        let (Some(stream), n) = (&row.stream, row.nexus as usize) else {
            return;
        };
        let Some(nexus) = self.nexuses.get(n).and_then(|n| n.id) else {
            return;
        };
        let failed = match stream.take_error() {
            Ok(None) => match stream.peer_addr() {
                // A port of the range for clients that nobody listens on can find itself.
                Ok(peer) if stream.local_addr().ok() == Some(peer) => {
                    Some(io::Error::from_raw_os_error(REFUSED))
                }
                Ok(_) => None,
                // Not yet.
                Err(_) => return,
            },
            Ok(Some(e)) | Err(e) => Some(e),
        };
        row.connecting = false;
        if let Some(e) = failed {
            self.connect_failed(core, nexus, &e);
            return;
        }
        row.writable = true;
        row.readable = true;
        self.stats.connected += 1;
        self.all_connected(core, nexus);
    }

    fn all_connected<T: Trace>(&mut self, core: &mut Core<T>, nexus: NexusId) {
        let mut locals = [None; 2];
        for (place, id) in Self::ends(core, nexus).enumerate() {
            let row = &self.sockets[id.index()];
            let stream = row.stream.as_ref().filter(|_| row.writable);
            let Some(local) = stream.and_then(|s| s.local_addr().ok()) else {
                return;
            };
            locals[place] = Some(local);
        }
        let [Some(control), data] = locals else {
            return;
        };
        core.endpoint
            .handle_streams_connected(core.now, nexus, control, data);
    }

    fn connect_failed<T: Trace>(&mut self, core: &mut Core<T>, nexus: NexusId, e: &io::Error) {
        // What the other socket of the pair does is of no interest any more.
        for id in Self::ends(core, nexus) {
            self.sockets[id.index()].connecting = false;
        }
        let kind = match errno(e) {
            REFUSED => CmKind::Rejected,
            number if UNREACHABLE.contains(&number) => CmKind::Unreachable,
            _ => CmKind::ConnectError,
        };
        let event = CmEvent::failed(kind, errno(e));
        core.endpoint.handle_cm(core.now, nexus, event);
    }

    /// Says goodbye and goes on reading: the peer's goodbye, or its reset, is the answer, and
    /// nothing that it still reads is lost. A peer that gives none is left behind by the
    /// endpoint's own deadline.
    fn disconnect<T: Trace>(&mut self, core: &mut Core<T>, nexus: NexusId) {
        let mut open = false;
        for id in Self::ends(core, nexus) {
            let row = &mut self.sockets[id.index()];
            let Some(stream) = row.stream.as_ref().filter(|_| !row.ended) else {
                continue;
            };
            open |= stream.shutdown(Shutdown::Write).is_ok();
            row.writable = false;
            row.readable = true;
            self.mark_readable(id.index() as u32);
        }
        if !open {
            let event = CmEvent::plain(CmKind::Disconnected);
            core.endpoint.handle_cm(core.now, nexus, event);
        }
    }

    fn destroy<T: Trace>(&mut self, core: &mut Core<T>, nexus: NexusId) {
        self.flush_queue(core, nexus.index() as u32);
        for id in Self::ends(core, nexus) {
            if self.sockets[id.index()].id == Some(id) {
                self.shut(id.index() as u32);
            }
        }
        let row = &mut self.nexuses[nexus.index()];
        *row = Nexus {
            dirty: row.dirty,
            ..Nexus::vacant()
        };
        core.endpoint.handle_destroyed(core.now, nexus);
    }

    /// Frames that were not written whole never will be.
    fn flush_queue<T: Trace>(&mut self, core: &mut Core<T>, n: u32) {
        for s in self.nexuses[n as usize].sockets {
            if s != NONE {
                self.sockets[s as usize].writable = false;
            }
        }
        while let Some(wr) = self.nexuses[n as usize].queue.pop() {
            super::write::complete(core, wr, WorkStatus::Flushed);
        }
    }
}
