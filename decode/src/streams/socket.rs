//! One TCP connection, and what its first bytes say.

use std::net::SocketAddr;

use xio_proto::wire::{ConnectMessage, SocketKind, find_frame};

use super::{Ends, Link};
use crate::limits::FRAME_MAX;
use crate::link::Segment;
use crate::queue::{Front, Queue};
use crate::report::{Reporter, Stamp, Trouble};
use crate::tcp::{Reassembly, Taken};

/// Where the bytes of a socket go.
#[derive(Debug)]
pub(super) enum Place {
    /// It is not known yet what they are.
    Unknown([Queue; 2]),
    /// The control or single socket of a transport connection.
    Main(u64),
    /// The data socket of one.
    Data(u64),
}

/// What a socket turned out to be.
#[derive(Debug)]
pub(super) struct Found {
    /// Its connect message; `None` if frames were found without one.
    pub(super) message: Option<ConnectMessage>,
    /// The bytes of the connect message, and what is wrong with it.
    pub(super) connect: Option<([u8; ConnectMessage::LEN], Option<Trouble>)>,
    /// When it came.
    pub(super) stamp: Stamp,
    /// Bytes without a frame before the first one, to the server and to the client.
    pub(super) skipped: [u64; 2],
}

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) ends: Ends,
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    dirs: [Reassembly; 2],
    syn: [Option<u32>; 2],
    is_reset: bool,
    place: Place,
    /// Bytes that were dropped because they start no frame.
    skipped: [u64; 2],
    /// The first bytes are no connect message.
    no_greeting: bool,
}

impl Socket {
    pub(super) fn new(ends: Ends, segment: &Segment<'_>) -> Self {
        let from_client = match (segment.syn, segment.ack) {
            (true, None) => true,
            (true, Some(_)) => false,
            // Servers have the smaller port, mostly.
            (false, _) => segment.from.port() >= segment.to.port(),
        };
        let (client, server) = if from_client {
            (segment.from, segment.to)
        } else {
            (segment.to, segment.from)
        };
        Self {
            ends,
            client,
            server,
            dirs: Default::default(),
            syn: [None; 2],
            is_reset: false,
            place: Place::Unknown(Default::default()),
            skipped: [0; 2],
            no_greeting: false,
        }
    }

    /// Whether a SYN is one that this connection began with.
    pub(super) fn has_syn(&self, segment: &Segment<'_>) -> bool {
        let d = usize::from(segment.from != self.client);
        let other = self.syn[1 - d];
        match self.syn[d] {
            Some(seq) => seq == segment.seq,
            None => other.is_some() && segment.ack.is_some() && !self.dirs[d].is_started(),
        }
    }

    pub(super) fn link(&self) -> Option<u64> {
        match self.place {
            Place::Unknown(_) => None,
            Place::Main(link) | Place::Data(link) => Some(link),
        }
    }

    /// Takes a segment from side `d`; `link` is what [`link`](Self::link) names.
    pub(super) fn take(
        &mut self,
        d: usize,
        segment: &Segment<'_>,
        stamp: Stamp,
        mut link: Option<&mut Link>,
    ) -> Taken {
        let mut seq = segment.seq;
        if segment.syn {
            self.syn[d] = Some(seq);
            self.dirs[d].start(seq);
            seq = seq.wrapping_add(1);
        }
        let mut taken = Taken::New;
        if let Some(queue) = queue(&mut self.place, d, link.as_deref_mut()) {
            if !segment.payload.is_empty() || segment.cut > 0 {
                let dir = &mut self.dirs[d];
                taken = dir.push(seq, segment.payload, segment.cut, stamp, queue);
            }
            if segment.fin && taken != Taken::Stray {
                let len = segment.payload.len() as u64 + segment.cut;
                // Sequence numbers wrap.
                self.dirs[d].finish(seq.wrapping_add(len as u32));
            }
            if self.dirs[d].is_over() {
                queue.end();
            }
        }
        if let Some(ack) = segment.ack
            && let Some(queue) = queue(&mut self.place, 1 - d, link)
        {
            self.dirs[1 - d].confirm(ack, queue);
        }
        self.is_reset |= segment.rst;
        taken
    }

    /// Nothing more can come.
    pub(super) fn is_over(&self) -> bool {
        self.is_reset || self.dirs.iter().all(Reassembly::is_over)
    }

    /// Declares all holes.
    pub(super) fn flush(&mut self, mut link: Option<&mut Link>) {
        for d in 0..2 {
            if let Some(queue) = queue(&mut self.place, d, link.as_deref_mut()) {
                self.dirs[d].flush(queue);
                queue.end();
            }
        }
    }

    /// Moves on, with what was not taken yet.
    pub(super) fn leave(&mut self, place: Place) -> [Queue; 2] {
        match std::mem::replace(&mut self.place, place) {
            Place::Unknown(queues) => queues,
            Place::Main(_) | Place::Data(_) => unreachable!("identified once"),
        }
    }

    /// Bytes of a connection that never was of this protocol.
    pub(super) fn foreign_bytes(&self) -> u64 {
        let held = match &self.place {
            Place::Unknown(queues) => queues.iter().map(Queue::len).sum(),
            _ => 0,
        };
        self.skipped[0] + self.skipped[1] + held
    }

    /// Looks at the first bytes of a socket that is not known yet.
    pub(super) fn identify(&mut self, out: &mut Reporter<'_>) -> Option<Found> {
        let Place::Unknown(queues) = &mut self.place else {
            return None;
        };
        if !self.no_greeting {
            match greeting(&mut queues[0], self.dirs[0].from_start) {
                Greeting::Wait => return None,
                Greeting::None => self.no_greeting = true,
                Greeting::Found(mut found) => {
                    if let Some(message) = found.message
                        && message.sock != SocketKind::Single
                        && message.second_port == self.client.port()
                        && let Some((_, trouble)) = &mut found.connect
                    {
                        *trouble = Some(Trouble {
                            text: "a socket that names itself as its partner".to_owned(),
                            offset: 4,
                            is_gap: false,
                        });
                    }
                    return Some(*found);
                }
            }
        }
        let mut stamp = None;
        for (queue, skipped) in queues.iter_mut().zip(&mut self.skipped) {
            if search(queue, skipped) {
                stamp = Some(queue.stamp());
                break;
            }
        }
        if let Some(stamp) = stamp {
            return Some(Found {
                message: None,
                connect: None,
                stamp,
                skipped: self.skipped,
            });
        }
        let dropped = queues
            .iter_mut()
            .map(|q| std::mem::take(&mut q.dropped))
            .sum();
        out.summary
            .add("bytes dropped because too many waited", dropped);
        None
    }
}

/// The queue that a direction of a socket fills.
fn queue<'a>(place: &'a mut Place, d: usize, link: Option<&'a mut Link>) -> Option<&'a mut Queue> {
    match place {
        Place::Unknown(queues) => Some(&mut queues[d]),
        Place::Main(_) => link.map(|link| &mut link.main[d]),
        Place::Data(_) => link.map(|link| &mut link.data[d]),
    }
}

enum Greeting {
    Wait,
    None,
    Found(Box<Found>),
}

/// Reads the connect message, if there is one.
fn greeting(queue: &mut Queue, from_start: bool) -> Greeting {
    let (bytes, last) = match queue.front() {
        Front::Empty if queue.is_ended() || !from_start => return Greeting::None,
        Front::Empty => return Greeting::Wait,
        Front::Hole(_) => return Greeting::None,
        Front::Data(bytes, last) => (bytes, last),
    };
    let Some(message) = bytes.first_chunk::<{ ConnectMessage::LEN }>() else {
        let is_start = from_start && !last;
        return if is_start {
            Greeting::Wait
        } else {
            Greeting::None
        };
    };
    let behind = &bytes[ConnectMessage::LEN..];
    let magic_len = behind.len().min(4);
    let looks_right = behind[..magic_len] == b"XIOP"[..magic_len];
    let (connect, parsed) = (*message, ConnectMessage::parse(message));
    let found = match parsed {
        Ok(message) => {
            // Without the start of the connection it must not be taken from the middle of data.
            let sure = from_start
                || (connect[6..] == [0, 0]
                    && (behind.is_empty() || (looks_right && message.sock != SocketKind::Data)));
            if !sure {
                return Greeting::None;
            }
            (Some(message), None)
        }
        Err(_) if !looks_right => return Greeting::None,
        Err(_) if magic_len < 4 && !last => return Greeting::Wait,
        Err(_) if magic_len < 4 => return Greeting::None,
        Err(violation) => (None, Some(Trouble::from(violation))),
    };
    queue.take(ConnectMessage::LEN as u64);
    Greeting::Found(Box::new(Found {
        message: found.0,
        connect: Some((connect, found.1)),
        stamp: queue.stamp(),
        skipped: [0; 2],
    }))
}

/// Drops what starts no frame; true when one stands at the front.
fn search(queue: &mut Queue, skipped: &mut u64) -> bool {
    loop {
        let (skip, found) = match queue.front() {
            Front::Empty => return false,
            Front::Hole(len) => (len, false),
            Front::Data(bytes, last) => match find_frame(bytes, FRAME_MAX) {
                Ok(at) => (at as u64, true),
                Err(_) if last => (bytes.len() as u64, false),
                Err(0) => return false,
                Err(skip) => (skip as u64, false),
            },
        };
        *skipped += queue.take(skip);
        if found {
            return true;
        }
    }
}
