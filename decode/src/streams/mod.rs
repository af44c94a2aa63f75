//! TCP connections to transport connections: which sockets are of this protocol, which two belong
//! together, and what frames they carry.
//!
//! A socket says what it is in its connect message. One that a capture did not see from its start
//! is searched for frames, and how they are laid is concluded from them.

mod direction;
mod guess;
mod link;
mod socket;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use xio_proto::wire::{ConnectMessage, SocketKind};

use crate::limits::STREAMS_MAX;
use crate::link::Segment;
use crate::report::{Reporter, Stamp};
use crate::tcp::Taken;
use link::Link;
pub(crate) use link::Loose;
use socket::{Found, Place, Socket};

/// Addresses of a connection, the smaller one first.
type Ends = (SocketAddr, SocketAddr);

/// What the two sockets of a pair have in common: the client's address, the server's, and the
/// client's ports of the control and the data socket.
type Pair = (IpAddr, SocketAddr, u16, u16);

/// All TCP connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    sockets: BTreeMap<u64, Socket>,
    by_ends: BTreeMap<Ends, u64>,
    links: BTreeMap<u64, Link>,
    /// Transport connections of which one half was seen.
    halves: BTreeMap<Pair, u64>,
    last_id: u64,
}

impl Streams {
    /// Takes a segment.
    pub(crate) fn segment(&mut self, segment: &Segment<'_>, stamp: Stamp, out: &mut Reporter<'_>) {
        let ends = if segment.from < segment.to {
            (segment.from, segment.to)
        } else {
            (segment.to, segment.from)
        };
        let Some(id) = self.find(ends, segment, out) else {
            return;
        };
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        let d = usize::from(segment.from != socket.client);
        let link = socket.link().and_then(|link| self.links.get_mut(&link));
        match socket.take(d, segment, stamp, link) {
            Taken::Again => out.summary.count("TCP segments that were seen before"),
            Taken::Stray => out.summary.count("TCP segments far from their stream"),
            Taken::New => {}
        }
        self.advance(id, out);
        if self.sockets.get(&id).is_some_and(Socket::is_over) {
            self.close(id, out);
        }
    }

    /// The socket of a segment, a new one if there is none; `None` if there need not be one.
    fn find(&mut self, ends: Ends, segment: &Segment<'_>, out: &mut Reporter<'_>) -> Option<u64> {
        if let Some(id) = self.by_ends.get(&ends).copied() {
            let socket = self.sockets.get(&id)?;
            if !segment.syn || socket.has_syn(segment) {
                return Some(id);
            }
            // The same ports again.
            self.close(id, out);
        }
        if segment.rst || (!segment.syn && segment.payload.is_empty() && segment.cut == 0) {
            return None;
        }
        if self.sockets.len() >= STREAMS_MAX {
            out.summary
                .count("TCP segments of more connections than are followed at once");
            return None;
        }
        self.last_id += 1;
        self.by_ends.insert(ends, self.last_id);
        self.sockets
            .insert(self.last_id, Socket::new(ends, segment));
        Some(self.last_id)
    }

    /// Does what the bytes of a socket make possible.
    fn advance(&mut self, id: u64, out: &mut Reporter<'_>) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        if let Some(found) = socket.identify(out) {
            self.place(id, &found, out);
        }
        let link = self.sockets.get(&id).and_then(Socket::link);
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.run(out);
        }
    }

    /// Makes a socket that turned out to be of this protocol part of a transport connection.
    fn place(&mut self, id: u64, found: &Found, out: &mut Reporter<'_>) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        let is_data = found.message.is_some_and(|m| m.sock == SocketKind::Data);
        let pair = pair(socket, found.message);
        let half = pair.and_then(|pair| self.halves.remove(&pair));
        let half = half.filter(|key| self.links.get(key).is_some_and(|l| l.lacks(is_data)));
        let key = half.unwrap_or(id);
        let link = self
            .links
            .entry(key)
            .or_insert_with(|| Link::new(out.stream(), found.message, pair));
        if half.is_none()
            && let Some(pair) = pair
        {
            // The youngest: an older one of the same ports is gone, only that was not captured.
            self.halves.insert(pair, key);
        }
        let place = if is_data {
            Place::Data(key)
        } else {
            Place::Main(key)
        };
        tracing::debug!(
            client = %socket.client,
            server = %socket.server,
            stream = link.stream(),
            message = ?found.message,
            "socket of the protocol"
        );
        let queues = socket.leave(place);
        link.join(queues, is_data, found, out);
    }

    /// Ends a socket: nothing more will come.
    fn close(&mut self, id: u64, out: &mut Reporter<'_>) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        let link = socket.link().and_then(|link| self.links.get_mut(&link));
        socket.flush(link);
        self.advance(id, out);
        let Some(socket) = self.sockets.remove(&id) else {
            return;
        };
        self.by_ends.remove(&socket.ends);
        let Some(key) = socket.link() else {
            let (count, bytes) = &mut out.summary.foreign;
            *count += 1;
            *bytes += socket.foreign_bytes();
            return;
        };
        let Some(link) = self.links.get_mut(&key) else {
            return;
        };
        link.sockets_open -= 1;
        if link.sockets_open == 0 {
            link.finish(out);
            if let Some(pair) = link.pair {
                self.halves.remove(&pair);
            }
            self.links.remove(&key);
        }
    }

    /// Ends everything.
    pub(crate) fn finish(&mut self, out: &mut Reporter<'_>) {
        while let Some(id) = self.sockets.keys().next().copied() {
            self.close(id, out);
        }
        debug_assert!(self.links.is_empty(), "each ends with its last socket");
    }
}

/// What a socket and its partner have in common; `None` if it has none.
fn pair(socket: &Socket, message: Option<ConnectMessage>) -> Option<Pair> {
    let message = message?;
    let own = socket.client.port();
    let (control, data, partner) = match message.sock {
        SocketKind::Single => return None,
        SocketKind::Control => (own, message.second_port, SocketKind::Data),
        SocketKind::Data => (message.second_port, own, SocketKind::Control),
    };
    let partner = ConnectMessage {
        sock: partner,
        second_port: own,
    };
    let names = message.names(own, &partner, message.second_port);
    (names && control != data).then_some((socket.client.ip(), socket.server, control, data))
}
