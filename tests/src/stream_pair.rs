//! Two endpoints and a perfect wire of byte streams between them: the smallest socket driver
//! there is, with every read cut where a test wants it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use xio_proto::storage::Counts;
use xio_proto::{
    CmEvent, CmKind, Completion, Config, Control, Instant, NexusId, Reason, SegmentSpan, SocketId,
    StreamWant, TransportLimits, Work, WorkStatus, WrId,
};

use crate::pair::{Meddler, SERVER, Said, Side};

/// How many of the bytes that are there a read gets.
#[derive(Clone, Debug)]
pub enum Cut {
    /// All of them.
    Whole,
    /// At most so many.
    Every(usize),
    /// All up to this position of each stream, then the rest.
    At(u64),
    /// Up to so many, by chance, and streams in random order.
    Random(Rng, usize),
}

/// A small generator, so that a seed is all there is to a random run.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts a sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

impl Cut {
    /// Cuts by chance.
    pub fn random(seed: u64, longest: usize) -> Self {
        Self::Random(Rng::new(seed), longest)
    }

    fn take(&mut self, position: u64, there: usize) -> usize {
        match self {
            Self::Whole => there,
            Self::Every(bytes) => there.min(*bytes),
            Self::At(at) if position < *at => there.min((*at - position) as usize),
            Self::At(_) => there,
            Self::Random(rng, longest) => there.min(1 + rng.below(*longest)),
        }
    }
}

/// One end of a socket.
#[derive(Debug, Default)]
pub struct Socket {
    id: Option<SocketId>,
    local: Option<SocketAddr>,
    peer: Option<(usize, usize)>,
    /// Bytes that the window has no room for yet.
    outbox: VecDeque<u8>,
    /// Bytes written in all, and those of them that left.
    written: u64,
    left: u64,
    /// Bytes that came and were not read.
    inbox: VecDeque<u8>,
    /// Bytes read and not taken.
    staged: Vec<u8>,
    /// Bytes read so far.
    position: u64,
    /// The peer sends no more.
    ended: bool,
    /// That was told to the endpoint.
    told: bool,
    /// Nobody reads it.
    held: bool,
    queued: bool,
}

/// A work request that is not written whole.
struct Unwritten {
    nexus: NexusId,
    wr: WrId,
    /// How far each socket must have got.
    goals: Vec<(SocketId, u64)>,
}

/// Both sides: 0 connects, 1 listens.
pub struct StreamPair {
    /// The two sides.
    pub sides: [Side; 2],
    /// The time that both see.
    pub now: Instant,
    /// How reads are cut.
    pub cut: Cut,
    /// The data socket reaches the listener first, and its bytes come first.
    pub data_first: bool,
    /// Bytes that are on their way on each stream at most.
    pub window: usize,
    /// Nothing is read: what is sent stays on the wire.
    pub hold: [bool; 2],
    /// Reads that are left before both sides hold.
    pub reads: Option<usize>,
    /// Most bytes read of one stream.
    pub longest: u64,
    /// Sockets that endpoints had closed, with the reasons.
    pub closed: Vec<Reason>,
    /// Accepted sockets that were refused.
    pub refused: Vec<Reason>,
    /// Changes frames of a side on their way: of each what goes on the control stream.
    pub meddle: Option<Meddler>,
    /// Invariants are checked every so many rounds.
    pub check_every: u64,
    rounds: u64,
    unwritten: [VecDeque<Unwritten>; 2],
    sockets: [Vec<Socket>; 2],
    dirty: VecDeque<(usize, usize)>,
    next_port: u16,
}

impl StreamPair {
    /// Two endpoints over perfect streams.
    pub fn new(config: impl Fn(u8) -> Config, counts: &Counts, cut: Cut) -> Self {
        let side = |i| Side::new(config(i), counts, TransportLimits::tcp());
        Self {
            sides: [side(0), side(1)],
            now: Instant::from_millis(1),
            cut,
            data_first: false,
            window: usize::MAX,
            hold: [false; 2],
            reads: None,
            longest: 0,
            closed: Vec::new(),
            refused: Vec::new(),
            meddle: None,
            check_every: 1,
            rounds: 0,
            unwritten: [VecDeque::new(), VecDeque::new()],
            sockets: [Vec::new(), Vec::new()],
            dirty: VecDeque::new(),
            next_port: 40_000,
        }
    }

    /// Small tables that are enough for most tests.
    pub fn counts(config: &Config) -> Counts {
        Counts {
            sockets: 32,
            ..crate::pair::Pair::counts(config)
        }
    }

    /// Lets the second side listen.
    pub fn listen(&mut self, user: u64) {
        self.listen_on(1, user);
    }

    /// Lets a side listen.
    pub fn listen_on(&mut self, i: usize, user: u64) {
        let side = &mut self.sides[i];
        let options = xio_proto::ListenOptions { user, backlog: 16 };
        let address: SocketAddr = SERVER.parse().expect("an address");
        side.listener = Some(
            side.endpoint
                .listen(side.transport, address, &options)
                .expect("room"),
        );
        self.run();
    }

    /// Carries out everything both sides want done, until neither wants anything.
    pub fn run(&mut self) {
        loop {
            let mut busy = false;
            for i in 0..2 {
                while let Some(control) = {
                    let side = &mut self.sides[i];
                    side.endpoint.poll_control(side.transport)
                } {
                    busy = true;
                    self.control(i, control);
                }
                while let Some(work) = {
                    let side = &mut self.sides[i];
                    side.endpoint.poll_work(side.transport, &mut side.slots)
                } {
                    busy = true;
                    self.work(i, work);
                }
                while let Some(socket) = {
                    let side = &mut self.sides[i];
                    side.endpoint.poll_stream(side.transport)
                } {
                    busy = true;
                    assert_eq!(
                        self.sockets[i][socket.index()].id,
                        Some(socket),
                        "a live socket"
                    );
                    self.touch(i, socket.index());
                }
                while !self.sides[i].deaf
                    && let Some(event) = self.sides[i].endpoint.poll_event()
                {
                    busy = true;
                    self.sides[i].events.push_back(event);
                }
            }
            busy |= self.read_some();
            self.rounds += 1;
            if self.rounds.is_multiple_of(self.check_every) {
                for side in &self.sides {
                    side.endpoint.check_invariants();
                }
            }
            if !busy {
                return;
            }
        }
    }

    /// Moves time forward to the next deadline, and runs. False when there is none.
    pub fn advance(&mut self) -> bool {
        let deadline = self
            .sides
            .iter()
            .filter_map(|s| s.endpoint.poll_timeout())
            .min();
        let Some(at) = deadline else { return false };
        self.now = self.now.max(at);
        for side in &mut self.sides {
            side.endpoint.handle_timeout(self.now);
        }
        self.run();
        true
    }

    /// Lets both sides read again.
    pub fn resume(&mut self) {
        self.hold = [false; 2];
        self.reads = None;
        self.run();
    }

    /// Leaves one socket of a side unread.
    pub fn hold_back(&mut self, i: usize, socket: SocketId) {
        self.sockets[i][socket.index()].held = true;
    }

    /// Reads all sockets of a side again.
    pub fn let_flow(&mut self, i: usize) {
        for socket in &mut self.sockets[i] {
            socket.held = false;
        }
    }

    /// Lets both sides read again, after what was on its way to one of them is lost.
    pub fn resume_with_loss(&mut self, i: usize) {
        self.cut_off(i);
        self.resume();
    }

    /// The peers of a side's sockets vanish without a word; its driver finds out.
    pub fn cut_off(&mut self, i: usize) {
        for s in 0..self.sockets[i].len() {
            if self.sockets[i][s].id.is_some() {
                if let Some((j, peer)) = self.sockets[i][s].peer.take() {
                    self.sockets[j][peer].peer = None;
                }
                self.sockets[i][s].inbox.clear();
                self.sockets[i][s].staged.clear();
                self.end(i, s);
            }
        }
    }

    /// A side is gone without a word, and lives again with these settings. The other side is told
    /// nothing, and what it sends on what it had is lost.
    pub fn restart(&mut self, i: usize, config: Config) {
        let counts = Self::counts(&config);
        self.sides[i] = Side::new(config, &counts, TransportLimits::tcp());
        for socket in &mut self.sockets[1 - i] {
            socket.peer = None;
        }
        self.sockets[i].clear();
        self.unwritten[i].clear();
        self.dirty.retain(|(side, _)| *side != i);
    }

    /// Bytes of every socket of a side that its endpoint has not taken.
    pub fn unread(&self, i: usize) -> usize {
        self.sockets[i]
            .iter()
            .map(|s| s.inbox.len() + s.staged.len())
            .sum()
    }

    /// A stranger connects from `address` and sends `bytes`. The socket's number at the server,
    /// if it took it.
    pub fn stranger(&mut self, address: &str, bytes: &[u8]) -> Option<usize> {
        let peer = address.parse().expect("an address");
        let s = self.accept(1, peer, None)?;
        self.sockets[1][s].inbox.extend(bytes);
        self.touch(1, s);
        self.run();
        Some(s)
    }

    /// More bytes of a stranger, if it is still there.
    pub fn stranger_sends(&mut self, s: usize, bytes: &[u8]) {
        if self.sockets[1][s].id.is_some() {
            self.sockets[1][s].inbox.extend(bytes);
            self.touch(1, s);
            self.run();
        }
    }

    /// A stranger goes away.
    pub fn stranger_leaves(&mut self, s: usize) {
        self.end(1, s);
        self.run();
    }

    /// Whether the server still has a stranger's socket.
    pub fn open(&self, s: usize) -> bool {
        self.sockets[1][s].id.is_some()
    }

    fn cm(&mut self, i: usize, nexus: NexusId, kind: CmKind) {
        self.sides[i]
            .endpoint
            .handle_cm(self.now, nexus, CmEvent::plain(kind));
    }

    fn control(&mut self, i: usize, control: Control) {
        match control {
            Control::ResolveAddress { nexus, .. } => self.cm(i, nexus, CmKind::AddrResolved),
            Control::ResolveRoute { nexus, .. } => self.cm(i, nexus, CmKind::RouteResolved),
            Control::CreateQueuePair { nexus } => {
                for id in self.ends(i, nexus) {
                    self.next_port += 1;
                    let local = SocketAddr::new([10, 0, 0, 1].into(), self.next_port);
                    let socket = self.socket(i, id.index());
                    *socket = Socket {
                        id: Some(id),
                        local: Some(local),
                        ..Socket::default()
                    };
                }
                self.sides[i]
                    .endpoint
                    .handle_queue_pair(self.now, nexus, Ok(()));
            }
            Control::Connect { nexus, .. } => self.connect(i, nexus),
            Control::Disconnect { nexus } => {
                for id in self.ends(i, nexus) {
                    self.hang_up(i, id.index());
                }
                self.cm(i, nexus, CmKind::Disconnected);
            }
            Control::Drain { nexus } => {
                for entry in std::mem::take(&mut self.unwritten[i]) {
                    if entry.nexus == nexus {
                        self.written(i, entry.wr, WorkStatus::Flushed);
                    } else {
                        self.unwritten[i].push_back(entry);
                    }
                }
            }
            Control::Destroy { nexus } => {
                for id in self.ends(i, nexus) {
                    if self.sockets[i]
                        .get(id.index())
                        .is_some_and(|s| s.id == Some(id))
                    {
                        self.hang_up(i, id.index());
                        self.sockets[i][id.index()] = Socket::default();
                    }
                }
                self.sides[i].endpoint.handle_destroyed(self.now, nexus);
            }
            Control::CloseSocket { socket, reason } => {
                self.closed.push(reason);
                assert_eq!(
                    self.sockets[i][socket.index()].id,
                    Some(socket),
                    "a live socket"
                );
                self.hang_up(i, socket.index());
                self.sockets[i][socket.index()] = Socket::default();
            }
            _ => {}
        }
    }

    /// The sockets of a nexus, control or single one first.
    pub fn ends(&self, i: usize, nexus: NexusId) -> Vec<SocketId> {
        self.sides[i]
            .endpoint
            .sockets(nexus)
            .into_iter()
            .flatten()
            .collect()
    }

    fn socket(&mut self, i: usize, s: usize) -> &mut Socket {
        let sockets = &mut self.sockets[i];
        if sockets.len() <= s {
            sockets.resize_with(s + 1, Socket::default);
        }
        &mut sockets[s]
    }

    fn connect(&mut self, i: usize, nexus: NexusId) {
        if self.sides[1 - i].listener.is_none() {
            self.cm(i, nexus, CmKind::Rejected);
            return;
        }
        let ends = self.ends(i, nexus);
        let local = |pair: &Self, n: usize| {
            let end = ends.get(n)?;
            pair.sockets[i][end.index()].local
        };
        let (control, data) = (local(self, 0).expect("made"), local(self, 1));
        let mut order = ends.clone();
        if self.data_first {
            order.reverse();
        }
        for id in order {
            let address = self.sockets[i][id.index()].local.expect("made");
            match self.accept(1 - i, address, Some((i, id.index()))) {
                Some(s) => self.sockets[i][id.index()].peer = Some((1 - i, s)),
                None => self.end(i, id.index()),
            }
        }
        let endpoint = &mut self.sides[i].endpoint;
        endpoint.handle_streams_connected(self.now, nexus, control, data);
    }

    /// A side that listens accepts a socket.
    fn accept(&mut self, j: usize, peer: SocketAddr, end: Option<(usize, usize)>) -> Option<usize> {
        let side = &mut self.sides[j];
        let listener = side.listener.expect("listens");
        let local = SERVER.parse().ok();
        let taken =
            side.endpoint
                .handle_socket_accepted(self.now, side.transport, listener, peer, local);
        match taken {
            Ok(id) => {
                let socket = self.socket(j, id.index());
                assert!(socket.id != Some(id), "a new id");
                *socket = Socket {
                    id: Some(id),
                    local,
                    peer: end,
                    ..Socket::default()
                };
                Some(id.index())
            }
            Err(reason) => {
                self.refused.push(reason);
                None
            }
        }
    }

    fn hang_up(&mut self, i: usize, s: usize) {
        if let Some((j, peer)) = self.sockets[i][s].peer.take() {
            self.sockets[j][peer].peer = None;
            self.end(j, peer);
        }
    }

    fn end(&mut self, i: usize, s: usize) {
        self.sockets[i][s].ended = true;
        self.touch(i, s);
    }

    fn work(&mut self, i: usize, work: Work) {
        let Work::Send {
            nexus,
            wr,
            head,
            tail,
            data,
            ..
        } = work
        else {
            panic!("{work:?} on a stream");
        };
        let side = &mut self.sides[i];
        let mut first = side.bytes(head).to_vec();
        if let Some(meddle) = &mut self.meddle {
            meddle(i, Said::Frame, &mut first);
        }
        let single = self.sides[i].endpoint.sockets(nexus)[1].is_none();
        let side = &mut self.sides[i];
        let mut second = side.bytes(tail).to_vec();
        second.extend(side.gather(data));
        side.sent.push([first.clone(), second.clone()].concat());
        let ends = self.ends(i, nexus);
        let last = ends.len() - 1;
        if self.data_first && !single {
            self.write(i, ends[last].index(), &second);
            self.write(i, ends[0].index(), &first);
        } else {
            self.write(i, ends[0].index(), &first);
            self.write(i, ends[last].index(), &second);
        }
        let reach = |id: &SocketId| (*id, self.sockets[i][id.index()].written);
        let goals = ends.iter().map(reach).collect();
        self.unwritten[i].push_back(Unwritten { nexus, wr, goals });
        self.complete(i);
    }

    fn write(&mut self, i: usize, s: usize, bytes: &[u8]) {
        let socket = &mut self.sockets[i][s];
        socket.outbox.extend(bytes);
        socket.written += bytes.len() as u64;
        self.push(i, s);
    }

    /// Moves bytes onto the wire, as many as the window takes. Without a peer they are lost.
    fn push(&mut self, i: usize, s: usize) {
        let socket = &mut self.sockets[i][s];
        if socket.outbox.is_empty() {
            return;
        }
        let Some((j, peer)) = socket.peer else {
            socket.left += socket.outbox.len() as u64;
            socket.outbox.clear();
            return;
        };
        let there = self.sockets[j][peer].inbox.len() + self.sockets[j][peer].staged.len();
        let socket = &mut self.sockets[i][s];
        let room = self.window.saturating_sub(there).min(socket.outbox.len());
        if room > 0 {
            socket.left += room as u64;
            let bytes: Vec<u8> = socket.outbox.drain(..room).collect();
            self.sockets[j][peer].inbox.extend(bytes);
            self.touch(j, peer);
            let (id, more) = {
                let socket = &self.sockets[i][s];
                (socket.id, !socket.outbox.is_empty())
            };
            if let (Some(id), true) = (id, more) {
                self.sides[i].endpoint.handle_stream_progress(self.now, id);
            }
        }
    }

    /// Completes what is written whole, each queue in order.
    fn complete(&mut self, i: usize) {
        let mut waits = Vec::new();
        for entry in std::mem::take(&mut self.unwritten[i]) {
            let there = |(id, goal): &(SocketId, u64)| {
                let socket = &self.sockets[i][id.index()];
                socket.id != Some(*id) || socket.left >= *goal
            };
            if waits.contains(&entry.nexus) || !entry.goals.iter().all(there) {
                waits.push(entry.nexus);
                self.unwritten[i].push_back(entry);
            } else {
                self.written(i, entry.wr, WorkStatus::Success);
            }
        }
    }

    fn written(&mut self, i: usize, wr: WrId, status: WorkStatus) {
        let side = &mut self.sides[i];
        let completion = Completion { wr, status, len: 0 };
        side.endpoint
            .handle_completion(self.now, completion, &mut side.slots);
    }

    /// Something came for a socket, or it may be read again.
    fn touch(&mut self, i: usize, s: usize) {
        let socket = &mut self.sockets[i][s];
        if socket.queued {
            return;
        }
        socket.queued = true;
        self.dirty.push_back((i, s));
    }

    /// Reads sockets that have something, once each or (in random order) one once.
    fn read_some(&mut self) -> bool {
        let mut busy = false;
        let mut left = self.dirty.len();
        let mut held = Vec::new();
        if let Cut::Random(rng, _) = &mut self.cut
            && left > 0
        {
            let pick = rng.below(left);
            self.dirty.swap(0, pick);
            left = 1;
        }
        for _ in 0..left {
            let Some((i, s)) = self.dirty.pop_front() else {
                break;
            };
            self.sockets[i][s].queued = false;
            if self.hold[i] || self.reads == Some(0) || self.sockets[i][s].held {
                held.push((i, s));
            } else if self.read(i, s) {
                busy = true;
                self.touch(i, s);
            }
        }
        for (i, s) in held {
            self.touch(i, s);
        }
        // One that was picked and had nothing says nothing about the others.
        let flows = self.hold == [false; 2] && self.reads != Some(0);
        let random = matches!(self.cut, Cut::Random(..)) && flows;
        busy || (random && !self.dirty.is_empty())
    }

    /// One read of a socket, of what its endpoint wants. False when it must wait.
    fn read(&mut self, i: usize, s: usize) -> bool {
        let went = self.read_once(i, s);
        if let Some((j, peer)) = self.sockets[i][s].peer {
            self.push(j, peer);
            self.complete(j);
        }
        went
    }

    fn read_once(&mut self, i: usize, s: usize) -> bool {
        let Some(id) = self.sockets[i][s].id else {
            return false;
        };
        let there = self.sockets[i][s].inbox.len() + self.sockets[i][s].staged.len();
        if there == 0 {
            self.tell_end(i, s, id);
            return false;
        }
        let want = self.sides[i].endpoint.stream_want(id);
        if want != StreamWant::Nothing
            && let Some(reads) = &mut self.reads
        {
            *reads -= 1;
        }
        match want {
            StreamWant::Nothing => false,
            StreamWant::Bytes(most) => {
                assert!(most > 0);
                self.stage(i, s);
                self.feed(i, s, id);
                true
            }
            StreamWant::Payload(span) => {
                let bytes = self.take(i, s, span.len);
                self.scatter(i, span, &bytes);
                self.payload(i, id, bytes.len() as u64);
                true
            }
            StreamWant::Discard(most) => {
                assert!(most > 0);
                let bytes = self.take(i, s, most);
                self.payload(i, id, bytes.len() as u64);
                true
            }
        }
    }

    fn tell_end(&mut self, i: usize, s: usize, id: SocketId) {
        let socket = &mut self.sockets[i][s];
        if socket.ended && !std::mem::replace(&mut socket.told, true) {
            self.sides[i].endpoint.handle_socket_closed(self.now, id);
        }
    }

    fn chunk(&mut self, i: usize, s: usize) -> usize {
        let socket = &self.sockets[i][s];
        self.cut.take(socket.position, socket.inbox.len())
    }

    fn stage(&mut self, i: usize, s: usize) {
        let chunk = self.chunk(i, s);
        let socket = &mut self.sockets[i][s];
        socket.staged.extend(socket.inbox.drain(..chunk));
        socket.position += chunk as u64;
        self.longest = self.longest.max(socket.position);
    }

    fn feed(&mut self, i: usize, s: usize, id: SocketId) {
        let bytes = std::mem::take(&mut self.sockets[i][s].staged);
        let side = &mut self.sides[i];
        let taken = side
            .endpoint
            .handle_stream_bytes(self.now, id, &bytes, &mut side.slots);
        assert!(taken > 0, "it wanted bytes and took none");
        self.sockets[i][s].staged = bytes[taken..].to_vec();
    }

    /// Bytes that do not go through the endpoint: those staged first, then a read.
    fn take(&mut self, i: usize, s: usize, most: u64) -> Vec<u8> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if self.sockets[i][s].staged.is_empty() {
            let chunk = self.chunk(i, s).min(most);
            let socket = &mut self.sockets[i][s];
            socket.position += chunk as u64;
            self.longest = self.longest.max(socket.position);
            return socket.inbox.drain(..chunk).collect();
        }
        let staged = &mut self.sockets[i][s].staged;
        staged.drain(..most.min(staged.len())).collect()
    }

    fn payload(&mut self, i: usize, id: SocketId, bytes: u64) {
        let side = &mut self.sides[i];
        side.endpoint
            .handle_stream_payload(self.now, id, bytes, &mut side.slots);
    }

    fn scatter(&mut self, i: usize, span: SegmentSpan, bytes: &[u8]) {
        let side = &mut self.sides[i];
        let segments: Vec<_> = side.endpoint.segments(span).collect();
        assert_eq!(
            segments.iter().map(|s| u64::from(s.len)).sum::<u64>(),
            span.len
        );
        let mut from = 0;
        for segment in segments {
            let at = (segment.addr - Side::BASE) as usize;
            let len = (segment.len as usize).min(bytes.len() - from);
            side.memory[at..at + len].copy_from_slice(&bytes[from..from + len]);
            from += len;
        }
    }
}
