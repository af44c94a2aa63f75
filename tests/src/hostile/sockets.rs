//! Hostile peers on real sockets: what [`Voice`] forges, written whole, in part, corrupted or
//! endlessly, over one stream or two, by peers that do not read, leave in the middle and come back.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;
use xio_proto::wire::{
    Bounds, ConnectMessage, Cut, Follower, Framing, Kind, Next, Request, Response, SocketKind,
    TLV_LEN, control_len,
};

use super::{Choices, Voice};
use crate::stream_pair::Rng;

/// What a peer takes of the other side's frames.
const BOUNDS: Bounds = Bounds {
    frame_max: 1 << 16,
    max_in_sges: 256,
    max_out_sges: 256,
    header_max: 1 << 12,
};

/// Frames of one write at most.
const BATCH: usize = 48;

/// Bytes that decide one batch.
const DECISIONS: usize = 40 * BATCH;

/// What hostile peers did.
#[derive(Copy, Clone, Default, Debug)]
pub struct Said {
    /// Lives: from a connect to an end.
    pub lives: u64,
    /// Frames written, at least in part.
    pub frames: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Lives that the other side ended.
    pub ended: u64,
}

/// One direction of one socket, or of two: what came and is not a whole frame yet.
struct Ear {
    follower: Follower,
    framing: Framing,
    control: Vec<u8>,
    data: Vec<u8>,
    /// The part of a frame that came on the control stream.
    part: Vec<u8>,
}

impl Ear {
    fn new(framing: Framing) -> Self {
        Self {
            follower: Follower::new(framing, BOUNDS),
            framing,
            control: Vec::new(),
            data: Vec::new(),
            part: Vec::new(),
        }
    }

    /// Takes the next whole frame.
    fn frame(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.follower.next() {
                Next::Frame if !self.part.is_empty() => {
                    return Some(std::mem::take(&mut self.part));
                }
                Next::Frame => {
                    let cut = self.follower.cut(&self.control);
                    let cut = cut.expect("what this side is told has no defect");
                    let Cut::Frame { len, .. } = cut else {
                        return None;
                    };
                    self.part.extend(self.control.drain(..len));
                }
                Next::Inline(len) => {
                    let bytes = self.data.drain(..self.data.len().min(len as usize));
                    let before = self.part.len();
                    self.part.extend(bytes);
                    let took = self.part.len() - before;
                    if took == 0 {
                        return None;
                    }
                    self.follower.took(took as u64);
                }
                Next::Payload(len) => {
                    let from = match self.framing {
                        Framing::TcpDual => &mut self.data,
                        _ => &mut self.control,
                    };
                    let took = from.len().min(len as usize);
                    if took == 0 {
                        return None;
                    }
                    from.drain(..took);
                    self.follower.took(took as u64);
                }
            }
        }
    }
}

/// A socket, and what waits to be written to it.
struct Socket {
    stream: TcpStream,
    out: Vec<u8>,
}

impl Socket {
    fn connect(at: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(at).ok()?;
        stream.set_nonblocking(true).ok()?;
        stream.set_nodelay(true).ok()?;
        // It leaves with a reset: thousands a second must leave no port behind.
        let reset = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        reset.ok()?;
        Some(Self {
            stream,
            out: Vec::new(),
        })
    }

    fn port(&self) -> u16 {
        self.stream.local_addr().map_or(0, |at| at.port())
    }

    /// Writes what the socket takes; `None` when it is over.
    fn flush(&mut self) -> Option<u64> {
        let mut wrote = 0;
        while wrote < self.out.len() {
            match self.stream.write(&self.out[wrote..]) {
                Ok(0) => return None,
                Ok(len) => wrote += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return None,
            }
        }
        self.out.drain(..wrote);
        Some(wrote as u64)
    }

    /// Reads what is there; false when it is over.
    fn read(&mut self, into: &mut Vec<u8>) -> bool {
        let mut room = [0; 16 << 10];
        loop {
            match self.stream.read(&mut room) {
                Ok(0) => return false,
                Ok(len) => into.extend(&room[..len]),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

/// One life of a peer.
struct Life {
    voice: Voice,
    ear: Ear,
    /// The single or control socket, then the data socket.
    sockets: Vec<Socket>,
    /// It reads nothing from here on.
    mute: bool,
    /// It asked for a session and waits for the answer.
    waits: bool,
}

impl Life {
    fn begin(at: SocketAddr, choices: &mut Choices<'_>) -> Option<Self> {
        let dual = choices.below(3) == 0;
        let framing = if dual {
            Framing::TcpDual
        } else {
            Framing::TcpSingle
        };
        let mut sockets = vec![Socket::connect(at)?];
        if dual {
            sockets.push(Socket::connect(at)?);
        }
        let kinds: &[_] = match dual {
            true => &[SocketKind::Control, SocketKind::Data],
            false => &[SocketKind::Single],
        };
        let mut ports: Vec<u16> = sockets.iter().rev().map(Socket::port).collect();
        if !dual {
            ports = vec![0];
        }
        for ((socket, sock), second_port) in sockets.iter_mut().zip(kinds).zip(ports) {
            let mut hello = [0; ConnectMessage::LEN];
            let (sock, wrong) = (*sock, choices.below(96) == 1);
            let second_port = second_port ^ u16::from(wrong);
            ConnectMessage { sock, second_port }.encode(&mut hello);
            socket.out.extend(hello);
        }
        Some(Self {
            voice: Voice::new(framing),
            ear: Ear::new(framing),
            sockets,
            mute: false,
            waits: false,
        })
    }

    /// Reads and learns; false when it is over.
    fn hear(&mut self) -> bool {
        if self.mute {
            return true;
        }
        let mut well = true;
        for (n, socket) in self.sockets.iter_mut().enumerate() {
            let into = [&mut self.ear.control, &mut self.ear.data];
            let Some(into) = into.into_iter().nth(n) else {
                continue;
            };
            well &= socket.read(into);
        }
        while let Some(frame) = self.ear.frame() {
            self.learn(&frame);
        }
        well
    }

    fn learn(&mut self, frame: &[u8]) {
        let framing = self.ear.framing;
        if let Ok(response) = Response::parse(frame, framing, &BOUNDS) {
            if response.kind == Kind::SessionSetupRsp {
                let id = response.session_setup().map(|setup| setup.session_id());
                self.voice.session = id.unwrap_or(1);
            }
            self.voice.tids.push(response.head.ltid);
            self.waits &= response.kind != Kind::SessionSetupRsp;
        } else if let Ok(request) = Request::parse(frame, framing, &BOUNDS) {
            let tid = request.head.ltid;
            self.voice.tids.push(tid);
            if request.kind == Kind::MsgReq {
                self.voice.asked.push((tid, request.session.serial));
            }
        }
        let more = self.voice.tids.len().saturating_sub(32);
        self.voice.tids.drain(..more);
    }

    /// Forges a batch of frames into what is to be written; how many.
    fn speak(&mut self, choices: &mut Choices<'_>) -> u64 {
        let mut frame = [0; 1024];
        let many = 1 + choices.below(BATCH);
        for n in 0..many {
            let len = self.voice.forge(choices, &mut frame);
            let corrupt = choices.byte();
            if corrupt == 1 {
                let at = choices.below(len);
                frame[at] ^= choices.byte();
            }
            let part = frame.first_chunk::<TLV_LEN>().expect("longer");
            let part = control_len(part, self.ear.framing, 1024);
            // Behind it comes what goes on the other stream, if there is one.
            let part = part.map_or(len, |(_, part)| part.min(len));
            // Now and then a frame stays a half, and others follow.
            let end = if corrupt == 2 {
                choices.below(part)
            } else {
                part
            };
            self.sockets[0].out.extend(&frame[..end]);
            let outside = vec![0; self.voice.outside() as usize];
            let last = self.sockets.last_mut().expect("one at least");
            last.out.extend(&frame[part..len]);
            last.out.extend(outside);
            let kind = u32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]);
            if kind == Kind::SessionSetupReq.word() {
                // Without its answer little can be said; most wait for it.
                self.waits = choices.below(16) > 0;
            }
            if self.waits || choices.is_empty() {
                return n as u64 + 1;
            }
        }
        many as u64
    }
}

/// A crowd of hostile peers, each of which has one life after the other.
pub struct Crowd {
    at: SocketAddr,
    rng: Rng,
    decisions: Vec<u8>,
    lives: Vec<Option<Life>>,
    said: Said,
}

impl Crowd {
    /// So many peers of whoever listens there.
    pub fn new(at: SocketAddr, peers: usize, seed: u64) -> Self {
        Self {
            at,
            rng: Rng::new(seed),
            decisions: vec![0; DECISIONS],
            lives: (0..peers).map(|_| None).collect(),
            said: Said::default(),
        }
    }

    /// What they did so far.
    pub fn said(&self) -> Said {
        self.said
    }

    /// Each peer does something; false when none could.
    pub fn turn(&mut self) -> bool {
        let mut busy = false;
        for n in 0..self.lives.len() {
            self.decisions.fill_with(|| self.rng.below(256) as u8);
            let mut choices = Choices::new(&self.decisions);
            let life = match self.lives[n].take() {
                Some(life) => Some(life),
                None => {
                    self.said.lives += 1;
                    Life::begin(self.at, &mut choices)
                }
            };
            let before = self.said.bytes;
            self.lives[n] = life.and_then(|life| act(life, &mut choices, &mut self.said));
            busy |= self.said.bytes != before || self.lives[n].is_none();
        }
        busy
    }
}

/// A peer's turn; what it is afterwards.
fn act(mut life: Life, choices: &mut Choices<'_>, said: &mut Said) -> Option<Life> {
    if !life.hear() {
        said.ended += 1;
        return None;
    }
    match choices.below(256) {
        0 => return None,
        1 => {
            let _ = life.sockets[0].stream.shutdown(Shutdown::Write);
        }
        2 => {
            // The end in order, as far as that goes.
            let orderly = |socket: &Socket| SockRef::from(&socket.stream).set_linger(None);
            life.sockets.iter().map(orderly).all(|well| well.is_ok());
            return None;
        }
        3 => life.mute = true,
        5 | 6 if life.mute => return None,
        4 => life.sockets[0].out.extend(b"GET / HTTP/1.1\r\n\r\n"),
        _ => {}
    }
    let behind: usize = life.sockets.iter().map(|socket| socket.out.len()).sum();
    if behind > 1 << 16 {
        // Nobody reads; in the end it leaves.
        if choices.below(64) == 0 {
            return None;
        }
    } else if !life.waits || choices.below(200) == 0 {
        said.frames += life.speak(choices);
    }
    for socket in &mut life.sockets {
        let Some(wrote) = socket.flush() else {
            said.ended += 1;
            return None;
        };
        said.bytes += wrote;
    }
    Some(life)
}

/// A peer that asks on and on and reads no answer.
pub struct Mute {
    socket: Socket,
    voice: Voice,
    asked: u64,
}

impl Mute {
    /// Connects, and waits until it may ask.
    ///
    /// # Panics
    /// When whoever listens there does not take it.
    pub fn connect(at: SocketAddr) -> Self {
        let mut mute = Self {
            socket: Socket::connect(at).expect("somebody listens"),
            voice: Voice::new(Framing::TcpSingle),
            asked: 0,
        };
        let waits = mute.socket.stream.set_nonblocking(false);
        waits.expect("a socket");
        let mut hello = [0; ConnectMessage::LEN];
        let (sock, second_port) = (SocketKind::Single, 0);
        ConnectMessage { sock, second_port }.encode(&mut hello);
        mute.socket.out.extend(hello);
        let mut ear = Ear::new(Framing::TcpSingle);
        for kind in [Kind::NexusSetupReq, Kind::SessionSetupReq] {
            mute.say(kind, 0);
            mute.socket.flush().expect("it is open");
            let answer = loop {
                if let Some(frame) = ear.frame() {
                    break frame;
                }
                let mut room = [0; 4096];
                let len = mute.socket.stream.read(&mut room).expect("an answer");
                assert!(len > 0, "it was sent away");
                ear.control.extend(&room[..len]);
            };
            if kind == Kind::SessionSetupReq {
                let answer = Response::parse(&answer, Framing::TcpSingle, &BOUNDS);
                let setup = answer.expect("one").session_setup().expect("accepted");
                mute.voice.session = setup.session_id();
            }
        }
        mute.socket.stream.set_nonblocking(true).expect("a socket");
        mute
    }

    fn say(&mut self, kind: Kind, data: u64) {
        let mut frame = [0; 9216];
        let len = self.voice.say(kind, data, &mut frame);
        self.socket.out.extend(&frame[..len]);
    }

    /// Asks as long as the socket takes it; how often in all.
    ///
    /// # Panics
    /// When the connection is over.
    pub fn ask(&mut self, data: u64) -> u64 {
        loop {
            if self.socket.out.is_empty() {
                self.say(Kind::MsgReq, data);
                self.asked += 1;
            }
            self.socket.flush().expect("it is open");
            if !self.socket.out.is_empty() {
                return self.asked;
            }
        }
    }
}
