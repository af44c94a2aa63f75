//! Sockets before they are a transport connection (PROTOCOL.md 3.1, 3.2): the first 8 bytes say
//! what each is for, and which two belong together. What says nothing of the kind in time is
//! closed; until then it has cost one row of a bounded number.

use core::net::SocketAddr;

use super::list::Listed;
use super::{Flow, Socket, flow};
use crate::endpoint::{ConnectRequest, Endpoint, bucket};
use crate::error::{CommandError, Reason, Resource, Step};
use crate::ids::{ListenerId, NONE, NexusId, SocketId, TransportId};
use crate::inputs::recorded;
use crate::memory::Slots;
use crate::output::Control;
use crate::state::nexus;
use crate::state::socket::{Action, Input, State};
use crate::storage::Storage;
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{ConnectMessage, Framing, SocketKind, Violation, What};

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes a socket that the driver accepted for a listener. From now on its bytes are fed as
    /// [`stream_want`](Self::stream_want) says. Once it (or the pair that it belongs to) has
    /// become a transport connection, `Accept` names that; if it never does, `CloseSocket` comes.
    ///
    /// # Errors
    /// Why the driver must close it: nobody listens, or too many sockets are half-open.
    pub fn handle_socket_accepted(
        &mut self,
        now: Instant,
        transport: TransportId,
        listener: ListenerId,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, Reason> {
        recorded!(self, SocketAccepted { now, transport, listener, peer, local } => self.handle_socket_accepted(now, transport, listener, peer, local));
        self.set_now(now);
        if !self.listens(transport, listener) {
            return Err(Reason::Refused);
        }
        let room = self.half_open_room() > 0;
        let taken = if room {
            self.take_socket(transport.0)
        } else {
            None
        };
        let Some(s) = taken else {
            self.g.counters.sockets_refused += 1;
            self.trace.mark("socket refused");
            return Err(Reason::NoResources {
                what: Resource::Sockets,
                need: 1,
                have: 0,
            });
        };
        let row = self.socket(s);
        row.listener = listener;
        row.peer = peer;
        row.local = local;
        let id = SocketId::new(s, row.generation);
        self.g.half_open += 1;
        self.socket_input(s, Input::Accepted);
        let timeout = self.g.config.connect_timeout;
        self.arm_after(Timer::Socket(s), timeout);
        Ok(id)
    }

    /// How many more sockets may be accepted now. A driver that finds 0 can leave peers in the
    /// listener's backlog instead of accepting and closing them.
    pub fn half_open_room(&self) -> u32 {
        let left = self.g.config.half_open_max - self.g.half_open;
        left.min(self.g.sockets.free())
    }

    /// Takes the driver's word that the sockets of a client's transport connection are connected,
    /// with their local addresses: of the control or single one, and of the data one.
    ///
    /// The peer pairs the two by their local ports, so these must be those that it sees.
    pub fn handle_streams_connected(
        &mut self,
        now: Instant,
        nexus: NexusId,
        control: SocketAddr,
        data: Option<SocketAddr>,
    ) {
        recorded!(self, StreamsConnected { now, nexus, control, data } => self.handle_streams_connected(now, nexus, control, data));
        self.set_now(now);
        let Some(n) = self.find_nexus(nexus) else {
            self.g.counters.stale_cm += 1;
            return;
        };
        let row = self.nexus(n);
        let sockets = row.sockets;
        if (sockets[0] == NONE) || (sockets[1] == NONE) != data.is_none() {
            let reason = Some(Reason::DriverFailed(0));
            self.nexus_input(n, nexus::Input::DriverFailed, reason);
            return;
        }
        row.local = Some(control);
        self.socket(sockets[0]).local = Some(control);
        if sockets[1] != NONE {
            self.socket(sockets[1]).local = data;
        }
        self.nexus_input(n, nexus::Input::Established, None);
        if flow(self.nexus(n).state) == Flow::On {
            self.wake_sockets(n);
        }
    }

    /// Takes the driver's word that a socket was closed or reset by the peer, or failed. Bytes
    /// that were read before are to be fed first. One half of a transport connection takes the
    /// other with it, as `Disconnected` does; one that was none yet is gone, without `CloseSocket`.
    pub fn handle_socket_closed(&mut self, now: Instant, socket: SocketId) {
        recorded!(self, SocketClosed { now, socket } => self.handle_socket_closed(now, socket));
        self.set_now(now);
        let Some(s) = self.find_socket(socket) else {
            return;
        };
        // It leaves its list as what it is now.
        if self.socket(s).state != State::Bound {
            self.unlist(s, Listed::Place);
            self.no_longer_half_open(s);
        }
        match self.socket_input(s, Input::Closed) {
            Action::Lose => {
                let n = self.socket(s).nexus;
                let reason = Some(Reason::Disconnected);
                self.nexus_input(n, nexus::Input::Disconnected, reason);
            }
            _ => self.free_socket(s),
        }
    }

    /// The next socket to close, whose row is free with that.
    pub(crate) fn poll_sockets(&mut self, transport: TransportId) -> Option<Control> {
        let list = &mut self.g.transports.get_mut(transport.0 as usize)?.closing;
        let rows = self.s.tables().sockets;
        let s = list.pop(rows, Listed::Place)?;
        let row = &rows[s as usize];
        let (socket, reason) = (SocketId::new(s, row.generation), row.reason);
        self.socket_input(s, Input::Told);
        self.free_socket(s);
        Some(Control::CloseSocket { socket, reason })
    }

    /// An accepted socket did not become part of a transport connection in time.
    pub(crate) fn socket_deadline(&mut self, s: u32) {
        self.close_half_open(s, Input::Deadline, Reason::TimedOut(Step::Connect));
    }

    /// Bytes of a socket that has not said what it is.
    pub(super) fn greet(&mut self, s: u32, bytes: &[u8], slots: &mut impl Slots) -> usize {
        let row = self.socket(s);
        let have = usize::from(row.head_len);
        let take = bytes.len().min(ConnectMessage::LEN - have);
        row.head[have..have + take].copy_from_slice(&bytes[..take]);
        row.head_len += take as u8;
        if let Some(message) = row.head.first_chunk()
            && usize::from(row.head_len) == ConnectMessage::LEN
        {
            let message = ConnectMessage::parse(message);
            row.head_len = 0;
            match message {
                Ok(message) => self.greeted(s, &message),
                Err(violation) => {
                    self.close_half_open(s, Input::Garbage, Reason::Violation(violation));
                }
            }
        }
        let rest = &bytes[take..];
        match self.socket(s).state {
            State::Greeting => take,
            State::Bound => take + self.feed(s, rest, slots),
            // Its partner may come later, and is needed to know what these bytes are.
            State::Waiting => take,
            State::Closing | State::Vacant => bytes.len(),
        }
    }

    fn greeted(&mut self, s: u32, message: &ConnectMessage) {
        let row = self.socket(s);
        row.kind = message.sock;
        row.second_port = message.second_port;
        if message.sock == SocketKind::Single {
            self.serve_sockets(s, NONE);
            return;
        }
        if row.second_port == row.peer.port() {
            let own = Violation::new(What::SecondPort, 4, row.second_port.into());
            self.close_half_open(s, Input::Garbage, Reason::Violation(own));
            return;
        }
        let partner = self.partner(s);
        if partner == NONE {
            self.socket_input(s, Input::Greeted);
            let rows = self.s.tables().sockets;
            let home = bucket(&rows[s as usize].peer, rows.len());
            let mut list = rows[home].bucket;
            list.push(rows, Listed::Place, s);
            rows[home].bucket = list;
            return;
        }
        match (message.sock, self.socket(partner).kind) {
            (SocketKind::Control, SocketKind::Data) => self.serve_sockets(s, partner),
            (SocketKind::Data, SocketKind::Control) => self.serve_sockets(partner, s),
            (kind, _) => {
                // Both say that they are the same half of one pair.
                let reason = Reason::Violation(Violation::new(What::SocketKind, 0, kind as u64));
                self.close_half_open(partner, Input::Garbage, reason);
                self.close_half_open(s, Input::Garbage, reason);
            }
        }
    }

    /// The socket that waits for this one: each names the other's port, from the same address,
    /// at the same listener.
    fn partner(&mut self, s: u32) -> u32 {
        let rows = self.s.tables().sockets;
        let row = &rows[s as usize];
        let said = |row: &Socket| ConnectMessage {
            sock: row.kind,
            second_port: row.second_port,
        };
        let address = SocketAddr::new(row.peer.ip(), row.second_port);
        let mut at = rows[bucket(&address, rows.len())].bucket.head;
        let mut found = NONE;
        while at != NONE {
            let other = &rows[at as usize];
            if other.peer.ip() == row.peer.ip()
                && said(row).names(row.peer.port(), &said(other), other.peer.port())
                && other.listener == row.listener
                && other.transport == row.transport
            {
                // The youngest: an older one of the same port is gone, only nobody has said so.
                found = at;
            }
            at = other.links[Listed::Place as usize].next;
        }
        found
    }

    /// Makes a transport connection of one socket or two. They are connected already, so it has
    /// passed the first steps of its life when this returns.
    fn serve_sockets(&mut self, control: u32, data: u32) {
        let row = self.socket(control);
        let transport = TransportId(row.transport);
        let request = ConnectRequest {
            listener: row.listener,
            peer: row.peer,
            local: row.local,
            framing: if data == NONE {
                Framing::TcpSingle
            } else {
                Framing::TcpDual
            },
            private: &[],
        };
        let sockets = [control, data];
        let n = match self.serve(transport, &request) {
            Ok(n) => n,
            Err(reason) => {
                for s in sockets.into_iter().filter(|s| *s != NONE) {
                    self.close_half_open(s, Input::Refused, reason);
                }
                return;
            }
        };
        for s in sockets.into_iter().filter(|s| *s != NONE) {
            self.unlist(s, Listed::Place);
            self.no_longer_half_open(s);
            self.socket_input(s, Input::Paired);
            self.socket(s).nexus = n;
        }
        self.nexus(n).sockets = sockets;
        self.nexus_input(n, nexus::Input::QpReady, None);
        self.nexus_input(n, nexus::Input::Established, None);
        self.wake_sockets(n);
    }

    fn no_longer_half_open(&mut self, s: u32) {
        if matches!(self.socket(s).state, State::Greeting | State::Waiting) {
            self.disarm(Timer::Socket(s));
            self.g.half_open -= 1;
        }
    }

    fn close_half_open(&mut self, s: u32, input: Input, reason: Reason) {
        self.unlist(s, Listed::Place);
        self.no_longer_half_open(s);
        if self.socket_input(s, input) != Action::Close {
            return;
        }
        self.g.counters.strays += 1;
        self.trace.mark("stray socket closed");
        self.socket(s).reason = reason;
        let rows = self.s.tables().sockets;
        let list = &mut self.g.transport(rows[s as usize].transport).closing;
        list.push(rows, Listed::Place, s);
    }

    /// Accepted sockets that are no transport connection yet are given up.
    pub(crate) fn close_all_half_open(&mut self) {
        for s in 0..self.s.tables().sockets.len() as u32 {
            if matches!(self.socket(s).state, State::Greeting | State::Waiting) {
                self.close_half_open(s, Input::Deadline, Reason::Shutdown);
            }
        }
    }

    /// Whether a client's transport connection can have its sockets.
    pub(crate) fn sockets_fit(&self, framing: Framing) -> Result<(), CommandError> {
        let need = match framing {
            Framing::Rdma => 0,
            Framing::TcpSingle => 1,
            Framing::TcpDual => 2,
        };
        if self.g.sockets.free() < need {
            return Err(CommandError::Full(Resource::Sockets));
        }
        Ok(())
    }

    /// Gives a client's transport connection its sockets, which the driver has still to make.
    pub(crate) fn open_sockets(&mut self, n: u32) {
        let row = self.nexus(n);
        let (transport, peer) = (row.transport, row.peer);
        let kinds: &[SocketKind] = match row.framing {
            Framing::Rdma => &[],
            Framing::TcpSingle => &[SocketKind::Single],
            Framing::TcpDual => &[SocketKind::Control, SocketKind::Data],
        };
        for (place, kind) in kinds.iter().enumerate() {
            let Some(s) = self.take_socket(transport) else {
                unreachable!("room was checked before");
            };
            self.socket_input(s, Input::Opened);
            let row = self.socket(s);
            row.kind = *kind;
            row.peer = peer;
            row.nexus = n;
            self.nexus(n).sockets[place] = s;
        }
    }

    /// The connect messages of a client's transport connection: of the control or single stream,
    /// and of the data stream. Each of a pair names the other's port.
    pub(crate) fn connect_messages(
        &mut self,
        n: u32,
    ) -> Option<(ConnectMessage, Option<ConnectMessage>)> {
        let row = self.nexus(n);
        let ([control, data], framing) = (row.sockets, row.framing);
        if row.server || framing == Framing::Rdma {
            return None;
        }
        if data == NONE {
            let sock = SocketKind::Single;
            let second_port = 0;
            return Some((ConnectMessage { sock, second_port }, None));
        }
        let mut half = |sock, other| ConnectMessage {
            sock,
            second_port: self.socket(other).local.map_or(0, |local| local.port()),
        };
        let messages = (
            half(SocketKind::Control, data),
            half(SocketKind::Data, control),
        );
        Some((messages.0, Some(messages.1)))
    }
}
