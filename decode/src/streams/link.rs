//! A transport connection: one socket or a pair.

use xio_proto::wire::{ConnectMessage, Framing, SetupParams, SocketKind};

use super::Pair;
use super::direction::{Direction, Io};
use super::socket::Found;
use crate::queue::Queue;
use crate::report::{Dir, Frame, Reporter, Stamp, What};
use crate::show;

/// What both directions of a transport connection have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub(super) stream: u32,
    /// How frames are laid; `None` while that is not known.
    pub(super) framing: Option<Framing>,
    /// That was concluded from frames.
    pub(super) is_guessed: bool,
    /// What the client and the server announced.
    pub(super) announced: [Option<SetupParams>; 2],
    /// Sockets have two ports, of which the server's is seen or guessed; bare bytes have none.
    knows_sides: bool,
}

impl Common {
    pub(super) const fn dir(&self, d: usize) -> Dir {
        match (self.knows_sides, d) {
            (false, _) => Dir::Unknown,
            (true, 0) => Dir::ToServer,
            (true, _) => Dir::ToClient,
        }
    }

    /// A frame shows who connected.
    pub(super) const fn sides_are_known(&mut self) {
        self.knows_sides = true;
    }
}

/// A transport connection.
#[derive(Debug)]
pub(crate) struct Link {
    common: Common,
    /// Bytes of the control or single socket, to the server and to the client.
    pub(super) main: [Queue; 2],
    /// Bytes of the data socket.
    pub(super) data: [Queue; 2],
    directions: [Direction; 2],
    pub(super) pair: Option<Pair>,
    pub(super) sockets_open: u32,
    has_main: bool,
    has_data: bool,
}

impl Link {
    pub(super) fn new(stream: u32, message: Option<ConnectMessage>, pair: Option<Pair>) -> Self {
        let framing = message.map(|message| match message.sock {
            SocketKind::Single => Framing::TcpSingle,
            SocketKind::Control | SocketKind::Data => Framing::TcpDual,
        });
        Self {
            common: Common {
                stream,
                framing,
                is_guessed: false,
                announced: [None; 2],
                knows_sides: true,
            },
            main: Default::default(),
            data: Default::default(),
            directions: Default::default(),
            pair,
            sockets_open: 0,
            has_main: false,
            has_data: false,
        }
    }

    /// Its number.
    pub(super) const fn stream(&self) -> u32 {
        self.common.stream
    }

    /// Whether this half of a pair was not seen yet.
    pub(super) fn lacks(&self, data: bool) -> bool {
        if data { !self.has_data } else { !self.has_main }
    }

    /// Takes a socket in, and tells of its connect message.
    pub(super) fn join(
        &mut self,
        queues: [Queue; 2],
        is_data: bool,
        found: &Found,
        out: &mut Reporter<'_>,
    ) {
        self.sockets_open += 1;
        if let Some((bytes, trouble)) = &found.connect {
            let frame = Frame {
                kind: "CONNECT_MSG",
                len: bytes.len() as u64,
                trouble: trouble.clone(),
                tree: show::connect_message(bytes),
            };
            let dir = Dir::ToServer;
            out.tell(found.stamp, self.common.stream, dir, 0, What::Frame(frame));
        }
        if is_data {
            self.has_data = true;
            self.data = queues;
        } else {
            self.has_main = true;
            self.main = queues;
            for (direction, skipped) in self.directions.iter_mut().zip(found.skipped) {
                direction.begin(skipped, found.connect.is_some());
            }
        }
    }

    /// Cuts what can be cut.
    pub(super) fn run(&mut self, out: &mut Reporter<'_>) {
        if !self.has_main {
            return;
        }
        self.pass(false, out);
    }

    /// Cuts the rest: nothing more will come.
    pub(super) fn finish(&mut self, out: &mut Reporter<'_>) {
        for queue in self.main.iter_mut().chain(&mut self.data) {
            queue.end();
        }
        self.pass(true, out);
        for d in 0..2 {
            let mut io = Io {
                common: &mut self.common,
                d,
                main: &mut self.main[d],
                data: self.has_data.then_some(&mut self.data[d]),
                is_last: true,
                out,
            };
            self.directions[d].finish(&mut io);
        }
        if !self.has_main {
            out.summary
                .count("data sockets whose control socket is not in the capture");
        }
    }

    fn pass(&mut self, is_last: bool, out: &mut Reporter<'_>) {
        // What one direction shows may be what the other one needs.
        for d in [0, 1, 0] {
            let mut io = Io {
                common: &mut self.common,
                d,
                main: &mut self.main[d],
                data: self.has_data.then_some(&mut self.data[d]),
                is_last,
                out,
            };
            self.directions[d].run(&mut io);
        }
    }
}

/// Bytes of one direction that came without packets: what a text or a file has.
#[derive(Debug, Default)]
pub(crate) struct Loose {
    main: Queue,
    direction: Direction,
}

impl Loose {
    /// Cuts `bytes` into frames of a stream, in pieces that are queued at once.
    pub(crate) fn run(
        mut self,
        bytes: &[u8],
        has_greeting: bool,
        stream: u32,
        out: &mut Reporter<'_>,
    ) {
        let mut common = Common {
            stream,
            framing: None,
            is_guessed: true,
            announced: [None; 2],
            knows_sides: has_greeting,
        };
        self.direction.begin(0, has_greeting);
        let mut chunks = bytes.chunks(65_536).peekable();
        while let Some(chunk) = chunks.next() {
            self.main.push(chunk, Stamp::default());
            let is_last = chunks.peek().is_none();
            if is_last {
                self.main.end();
            }
            let mut io = Io {
                common: &mut common,
                d: 0,
                main: &mut self.main,
                data: None,
                is_last,
                out,
            };
            self.direction.run(&mut io);
            if is_last {
                self.direction.finish(&mut io);
            }
        }
    }
}
