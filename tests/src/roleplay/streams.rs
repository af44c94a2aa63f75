//! Sockets in the place of queue pairs.
//!
//! There is no communication manager, so its answers are given at once; a connection is made of the
//! sockets that were recorded, with their ports. Recorded bytes are read by the endpoint as it
//! wants them.

use std::net::SocketAddr;

use xio_proto::{CmEvent, CmKind, NexusId, SocketId, StreamWant};

use super::compare::compare;
use super::link::Link;
use super::player::Player;
use super::user::User;
use crate::golden::{Carrier, Dialect, Frame, Kind, Place, Section, Stream, Turn};

/// One recorded socket at this side.
#[derive(Debug)]
struct Socket {
    /// Its number in the recording.
    conn: u32,
    id: SocketId,
    /// Bytes that came and were not read.
    inbox: Vec<u8>,
}

/// The sockets of this side.
#[derive(Debug, Default)]
pub(super) struct Streams {
    sockets: Vec<Socket>,
    /// Sockets of a client's connection that is being made: their numbers and local addresses.
    opening: Vec<(u32, SocketAddr)>,
    /// Data arrives before the frame that it belongs to.
    pub(super) data_first: bool,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

impl Streams {
    /// Bytes of the recorded peer.
    pub(super) fn arrive(&mut self, conn: u32, bytes: &[u8]) -> Result<(), String> {
        let socket = self.sockets.iter_mut().find(|socket| socket.conn == conn);
        let socket = socket.ok_or_else(|| format!("socket {conn} is unknown"))?;
        socket.inbox.extend(bytes);
        Ok(())
    }

    /// Whether everything that came was read.
    pub(super) fn empty(&self) -> Result<(), String> {
        match self.sockets.iter().find(|socket| !socket.inbox.is_empty()) {
            None => Ok(()),
            Some(s) => Err(format!(
                "{} bytes of socket {} are not read",
                s.inbox.len(),
                s.conn
            )),
        }
    }
}

impl Player<'_> {
    pub(super) fn is_stream(&self) -> bool {
        self.format.dialect == Dialect::Tcp
    }

    /// Sockets have no address to resolve and no route.
    pub(super) fn resolved(&mut self, nexus: NexusId, kind: CmKind) {
        if self.is_stream() {
            self.host
                .endpoint
                .handle_cm(self.host.now, nexus, CmEvent::plain(kind));
        }
    }

    /// A socket was connected.
    pub(super) fn syn(
        &mut self,
        turn: Turn,
        conn: u32,
        from: &str,
        to: &str,
    ) -> Result<(), String> {
        let (from, to) = (address(from)?, address(to)?);
        if turn == Turn::Output {
            return self.connected(conn, from);
        }
        let User::Server(server) = &self.user else {
            return Err("somebody connects to a client".to_owned());
        };
        let listener = server.listening_at(to)?;
        let host = &mut self.host;
        let taken = host.endpoint.handle_socket_accepted(
            host.now,
            host.transport,
            listener,
            from,
            Some(to),
        );
        let id = taken.map_err(|reason| format!("a socket is refused: {reason}"))?;
        self.streams.sockets.push(Socket {
            conn,
            id,
            inbox: Vec::new(),
        });
        Ok(())
    }

    /// A client's socket is connected; with the last of them the connection is.
    fn connected(&mut self, conn: u32, from: SocketAddr) -> Result<(), String> {
        let at = self
            .links
            .iter()
            .position(|link| link.wants_connection && link.qp.is_none());
        let nexus = self.links[at.ok_or("no connection is asked for")?].nexus;
        self.streams.opening.push((conn, from));
        let ids = self.host.endpoint.sockets(nexus);
        if self.streams.opening.len() < ids.iter().flatten().count() {
            return Ok(());
        }
        let opening = std::mem::take(&mut self.streams.opening);
        for ((conn, _), id) in opening.iter().zip(ids.into_iter().flatten()) {
            self.streams.sockets.push(Socket {
                conn: *conn,
                id,
                inbox: Vec::new(),
            });
        }
        let link = self.of(nexus)?;
        (link.qp, link.peer_qp) = (Some(opening[0].0), Some(opening[0].0));
        let data = opening.get(1).map(|socket| socket.1);
        let host = &mut self.host;
        host.endpoint
            .handle_streams_connected(host.now, nexus, opening[0].1, data);
        Ok(())
    }

    /// The sockets that a server accepted have become a connection.
    pub(super) fn sockets_became(&mut self, nexus: NexusId) -> Result<(), String> {
        let control = self.host.endpoint.sockets(nexus)[0].ok_or("a connection without sockets")?;
        let socket = self
            .streams
            .sockets
            .iter()
            .find(|socket| socket.id == control);
        let conn = socket.ok_or("a connection of unknown sockets")?.conn;
        let mut link = Link::new(nexus);
        (link.qp, link.peer_qp) = (Some(conn), Some(conn));
        self.links.push(link);
        Ok(())
    }

    /// What of a frame goes by the SEND or the first socket, and what by the data socket. A
    /// client's connect messages, in front of its first frame, are kept for comparison.
    pub(super) fn split(
        &mut self,
        nexus: NexusId,
        [head, tail, data]: [Vec<u8>; 3],
    ) -> Result<[Vec<u8>; 2], String> {
        let dual = self.format.stream == Stream::Dual;
        let (mut main, mut second) = if dual {
            (head, [tail, data].concat())
        } else {
            ([head, tail, data].concat(), Vec::new())
        };
        if self.is_stream() && !main.starts_with(b"XIOP") {
            let rest = main.split_off(8.min(main.len()));
            let link = self.of(nexus)?;
            link.hellos.push(std::mem::replace(&mut main, rest));
            if dual {
                link.hellos.push(std::mem::take(&mut second));
            }
        }
        Ok([main, second])
    }

    /// The first bytes of a socket, which say what it is for.
    pub(super) fn expect_hello(
        &mut self,
        number: u32,
        conn: u32,
        recorded: &Section,
    ) -> Result<(), String> {
        let socket = self
            .streams
            .sockets
            .iter()
            .find(|socket| socket.conn == conn);
        let id = socket
            .ok_or_else(|| format!("socket {conn} is unknown"))?
            .id;
        let place = |link: &Link| {
            let ids = self.host.endpoint.sockets(link.nexus);
            ids.iter().position(|other| *other == Some(id))
        };
        let found = self
            .links
            .iter()
            .find_map(|link| Some((place(link)?, link)));
        let (place, link) = found.ok_or("a socket without a connection")?;
        let ours = link.hellos.get(place).ok_or("no connect message")?;
        let ours = Section::cut(Place::Main, "connect", ours, self.format.layouts)?;
        let frame = |section: &Section| Frame {
            side: self.side,
            kind: Kind::NexusSetupReq,
            carrier: Carrier::Socket {
                conn,
                offset: 0,
                data: None,
            },
            sections: vec![section.clone()],
        };
        for difference in compare(&frame(recorded), &frame(&ours)) {
            self.differs(format!("{number} connect"), difference);
        }
        Ok(())
    }

    /// The bytes of a frame of the recorded peer arrive.
    pub(super) fn take_from_streams(&mut self, frame: &Frame) -> Result<(), String> {
        let Carrier::Socket { conn, data, .. } = frame.carrier else {
            return Err("a SEND on a socket".to_owned());
        };
        let main = [frame.bytes(Place::Main), frame.bytes(Place::Bulk)].concat();
        let second = frame.bytes(Place::Data);
        let order = if self.streams.data_first {
            [true, false]
        } else {
            [false, true]
        };
        for is_data in order {
            match (is_data, data) {
                (false, _) => self.streams.arrive(conn, &main)?,
                (true, Some(data)) => self.streams.arrive(data, &second)?,
                (true, None) if second.is_empty() => {}
                (true, None) => return Err("data without a socket".to_owned()),
            }
            self.run()?;
        }
        self.streams.empty()
    }

    /// Lets the endpoint read what came, as it wants it.
    pub(super) fn read_streams(&mut self) -> Result<bool, String> {
        let mut busy = false;
        let host = &mut self.host;
        while host.endpoint.poll_stream(host.transport).is_some() {
            busy = true;
        }
        for at in 0..self.streams.sockets.len() {
            while !self.streams.sockets[at].inbox.is_empty() && self.read_some(at)? {
                busy = true;
            }
        }
        Ok(busy)
    }

    fn read_some(&mut self, at: usize) -> Result<bool, String> {
        let socket = &mut self.streams.sockets[at];
        let bytes = &socket.inbox[..];
        let (host, there) = (&mut self.host, bytes.len() as u64);
        let taken = match host.endpoint.stream_want(socket.id) {
            StreamWant::Nothing => 0,
            StreamWant::Bytes(most) => {
                let part = &bytes[..most.min(there) as usize];
                host.endpoint
                    .handle_stream_bytes(host.now, socket.id, part, &mut host.slots)
            }
            StreamWant::Payload(span) => {
                let part = &bytes[..span.len.min(there) as usize];
                let segments = host.segments(span);
                host.fill(&segments, part)?;
                let (len, slots) = (part.len() as u64, &mut host.slots);
                host.endpoint
                    .handle_stream_payload(host.now, socket.id, len, slots);
                part.len()
            }
            StreamWant::Discard(most) => {
                let (len, slots) = (most.min(there), &mut host.slots);
                host.endpoint
                    .handle_stream_payload(host.now, socket.id, len, slots);
                len as usize
            }
        };
        socket.inbox.drain(..taken);
        Ok(taken > 0)
    }

    /// The recorded peer closed or reset a socket.
    pub(super) fn socket_ended(&mut self, conn: u32) -> Result<(), String> {
        let at = self
            .streams
            .sockets
            .iter()
            .position(|socket| socket.conn == conn);
        let Some(at) = at else { return Ok(()) };
        let id = self.streams.sockets.remove(at).id;
        let open =
            |link: &Link| !link.gone && self.host.endpoint.sockets(link.nexus).contains(&Some(id));
        if self.links.iter().any(open) {
            self.host.endpoint.handle_socket_closed(self.host.now, id);
        }
        Ok(())
    }
}
