//! The recorded peer's sockets: plain ones.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// A socket and what came on it.
#[derive(Debug)]
struct Conn {
    /// `None` when this side closed it.
    stream: Option<TcpStream>,
    inbox: Vec<u8>,
}

/// All of the peer's sockets.
#[derive(Debug, Default)]
pub(super) struct Peer {
    listeners: Vec<TcpListener>,
    conns: BTreeMap<u32, Conn>,
    /// Accepted, and not known yet by a number of the recording.
    fresh: Vec<Conn>,
    /// Recorded ports of a client, and the real ones.
    ports: HashMap<u16, u16>,
}

fn told(error: io::Error) -> String {
    format!("the peer's socket: {error}")
}

impl Conn {
    fn new(stream: TcpStream) -> Result<Self, String> {
        stream.set_nonblocking(true).map_err(told)?;
        stream.set_nodelay(true).map_err(told)?;
        Ok(Self {
            stream: Some(stream),
            inbox: Vec::new(),
        })
    }

    /// Takes what is there. True when there was something.
    fn read(&mut self) -> Result<bool, String> {
        let Some(stream) = &mut self.stream else {
            return Ok(false);
        };
        let (mut room, mut came) = ([0; 65_536], false);
        loop {
            match stream.read(&mut room) {
                Ok(0) => return Ok(came),
                Ok(bytes) => {
                    came = true;
                    self.inbox.extend_from_slice(&room[..bytes]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(came),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(came),
                Err(e) => return Err(told(e)),
            }
        }
    }
}

impl Peer {
    /// Listens where a recorded server did.
    pub(super) fn listen(&mut self, url: &str) -> Result<(), String> {
        let address = url.trim_start_matches("tcp://").split('/').next();
        let listener = TcpListener::bind(address.unwrap_or_default());
        let listener = listener.map_err(|e| format!("{url}: {e}"))?;
        listener.set_nonblocking(true).map_err(told)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Connects as a recorded client did.
    pub(super) fn connect(&mut self, conn: u32, from: &str, to: &str) -> Result<(), String> {
        let stream = TcpStream::connect(to).map_err(told)?;
        let from: SocketAddr = from.parse().map_err(|_| format!("{from}: no address"))?;
        let real = stream.local_addr().map_err(told)?;
        self.ports.insert(from.port(), real.port());
        self.conns.insert(conn, Conn::new(stream)?);
        Ok(())
    }

    /// A recorded connect message with the real port of the other socket.
    pub(super) fn hello(&self, recorded: &[u8]) -> Result<Vec<u8>, String> {
        let mut bytes = recorded.to_vec();
        let port = u16::from_be_bytes([bytes[4], bytes[5]]);
        if port != 0 {
            let real = self.ports.get(&port);
            let real = real.ok_or_else(|| format!("port {port} is nobody's"))?;
            bytes[4..6].copy_from_slice(&real.to_be_bytes());
        }
        Ok(bytes)
    }

    /// The driver must have sent a connect message like this one, with the real ports; the socket
    /// is the recorded one from now on.
    pub(super) fn greeted(&mut self, conn: u32, recorded: &[u8]) -> Result<(), String> {
        let same = |c: &Conn| c.inbox.len() >= 8 && c.inbox[..4] == recorded[..4];
        let at = self.fresh.iter().position(same);
        let mut found = self.fresh.remove(at.ok_or("no such connect message")?);
        let port = u16::from_be_bytes([found.inbox[4], found.inbox[5]]);
        let ports = |c: &Conn| {
            let stream = c.stream.as_ref()?;
            Some(stream.peer_addr().ok()?.port())
        };
        let pair = recorded[4..6] != [0, 0];
        let others = self.fresh.iter().chain(self.conns.values());
        let known = if pair {
            others.filter_map(ports).any(|other| other == port)
        } else {
            port == 0
        };
        if !known || found.inbox[6..8] != recorded[6..8] {
            return Err(format!("connect message {:x?}", &found.inbox[..8]));
        }
        found.inbox.drain(..8);
        self.conns.insert(conn, found);
        Ok(())
    }

    /// Takes whatever came on any socket, and who connected. True when there was something.
    pub(super) fn read(&mut self) -> Result<bool, String> {
        let mut came = false;
        for listener in &self.listeners {
            match listener.accept() {
                Ok((stream, _)) => {
                    self.fresh.push(Conn::new(stream)?);
                    came = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(told(e)),
            }
        }
        for conn in self.fresh.iter_mut().chain(self.conns.values_mut()) {
            came |= conn.read()?;
        }
        Ok(came)
    }

    /// Writes bytes, few enough for the socket.
    pub(super) fn write(&mut self, conn: u32, bytes: &[u8]) -> Result<(), String> {
        let conn = self.conns.get_mut(&conn);
        let conn = conn.ok_or_else(|| "a socket that is not there".to_owned())?;
        let stream = conn.stream.as_mut().ok_or("a socket that is closed")?;
        stream.set_nonblocking(false).map_err(told)?;
        stream.write_all(bytes).map_err(told)?;
        stream.set_nonblocking(true).map_err(told)
    }

    /// What came on a socket and was not taken.
    pub(super) fn inbox(&self, conn: u32) -> &[u8] {
        self.conns.get(&conn).map_or(&[], |c| &c.inbox)
    }

    /// Takes bytes that came.
    pub(super) fn take(&mut self, conn: u32, len: usize) -> Vec<u8> {
        let conn = self.conns.get_mut(&conn);
        conn.map_or_else(Vec::new, |c| c.inbox.drain(..len).collect())
    }

    /// Closes a socket.
    pub(super) fn close(&mut self, conn: u32) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.stream = None;
        }
    }

    /// Closes all.
    pub(super) fn close_all(&mut self) {
        self.fresh.clear();
        for conn in self.conns.values_mut() {
            conn.stream = None;
        }
    }
}
