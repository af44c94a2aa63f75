//! Two endpoints whose devices, time and troubles are operations too.

use std::hash::{DefaultHasher, Hasher as _};
use std::time::Duration;

use xio_proto::{
    Applied, CmKind, Completion, Config, Event, FreeRows, Input, Instant, Reason, Segment,
    SegmentSpan, SlotId, Slots as _, Span, TransportId, WorkStatus, WrId,
};
use xio_sim::check::Fact;

use super::net::Net;
use super::op::{Act, Lie, Op};
use super::side::{CONFIG, Line, RKEY, Side, TRANSPORT, Told, cut, pick};
use super::world::World;

/// In so much time all is over that needs no time: longer than a closed connection is waited for,
/// shorter than an answer to FIN.
const SOON: Duration = Duration::from_secs(1);

/// Two endpoints and the devices between them, which do what each operation says.
#[derive(Clone)]
pub struct Devices {
    pub(super) sides: [Side; 2],
    pub(super) now: Instant,
    pub(super) keys: u32,
    /// Nothing has happened so far for which a message or connection may end badly.
    pub(super) calm: bool,
    lives: u64,
    config: Config,
}

impl Net for Devices {
    const STILL: bool = true;

    fn now(&self, _: usize) -> Instant {
        self.now
    }
    fn at(&self) -> u64 {
        self.now.as_nanos()
    }
    fn transport(&self) -> TransportId {
        TRANSPORT
    }
    fn apply(&mut self, i: usize, input: &Input<'_>) -> Applied {
        self.sides[i].apply(input)
    }
    fn waiting(&self) -> Option<usize> {
        None
    }
    fn event(&mut self, i: usize) -> Option<Event> {
        match self.sides[i].apply(&Input::PollEvent {}) {
            Applied::Event(event) => event,
            _ => None,
        }
    }
    fn config(&self, i: usize) -> &Config {
        self.sides[i].core.config()
    }
    fn free_rows(&self, i: usize) -> FreeRows {
        self.sides[i].core.free_rows()
    }
    fn state(&self, i: usize) -> u64 {
        let mut digest = DefaultHasher::new();
        self.sides[i].core.hash_state(&mut digest);
        digest.finish()
    }
    fn shown(&self, i: usize) -> String {
        let connections = self.sides[i].core.connections();
        format!("{:?}", connections.map(|c| c.state).collect::<Vec<_>>())
    }

    fn slot_mut(&mut self, i: usize, slot: SlotId) -> &mut [u8] {
        self.sides[i].slab.slot_mut(slot)
    }
    fn span(&self, i: usize, span: Span) -> &[u8] {
        span.of(self.sides[i].slab.slot(SlotId(span.slot)))
    }
    fn segments(&self, i: usize, span: SegmentSpan) -> Vec<Segment> {
        self.sides[i].core.segments(span).collect()
    }

    fn put(&mut self, i: usize, bytes: Vec<u8>) -> u64 {
        self.sides[i].heap.put(bytes)
    }
    fn free(&mut self, i: usize, addr: u64) {
        self.sides[i].heap.free(addr);
    }
    fn cut(&self, _: usize, addr: u64, len: usize, pieces: usize) -> Vec<Segment> {
        let key = |offset: usize, len: usize| Segment {
            addr: addr + offset as u64,
            len: len as u32,
            lkey: 1,
            rkey: RKEY,
        };
        cut(len, pieces, key)
    }
    fn gather(&self, i: usize, segments: &[Segment]) -> Option<Vec<u8>> {
        self.sides[i].heap.gather(segments)
    }
    fn block(&self, i: usize, addr: u64) -> Vec<u8> {
        let heap = &self.sides[i].heap;
        let bytes = heap.bytes(addr, heap.len(addr));
        bytes.expect("memory of the user's").to_vec()
    }
}

impl Default for World<Devices> {
    fn default() -> Self {
        Self::new(&CONFIG)
    }
}

impl World<Devices> {
    /// Two endpoints with these settings, on which nothing has happened.
    ///
    /// # Panics
    /// When the settings cannot work.
    pub fn new(config: &Config) -> Self {
        Self::of(Devices {
            sides: [Side::new(config, 0, 1), Side::new(config, 1, 1)],
            now: Instant::from_millis(1),
            keys: 0,
            calm: true,
            lives: 1,
            config: config.clone(),
        })
    }

    /// The whole state of an endpoint is compared before and after a command that it refuses.
    #[must_use]
    pub const fn comparing(mut self) -> Self {
        self.compares = true;
        self
    }

    /// One thing happens.
    ///
    /// # Panics
    /// As [`check_invariants`](Self::check_invariants), and when a device is asked for something
    /// that none can do.
    pub fn step(&mut self, op: Op) {
        let Op { side: i, act } = op;
        match act {
            Act::Control => drop(self.control(i)),
            Act::Work => drop(self.work(i)),
            Act::Hear => drop(self.hear(i)),
            Act::Settle => drop(self.settle(i)),
            Act::Device(p) => drop(self.device(i, usize::from(p) % self.net.sides[i].pairs.len())),
            Act::Complete(p) => {
                self.complete(i, usize::from(p) % self.net.sides[i].pairs.len());
            }
            Act::Cm => drop(self.tell(i)),
            Act::Lose(p, told) => {
                self.lose(i, usize::from(p) % self.net.sides[i].pairs.len(), told)
            }
            Act::Unpostable => {
                self.net.calm = false;
                self.net.sides[i].unpostable = true;
            }
            Act::Time(millis) => {
                self.pass(self.net.now.after(Duration::from_millis(millis.into())))
            }
            Act::Deadline => {
                if let Some(at) = self.net.sides[i].core.poll_timeout() {
                    self.pass(at);
                }
            }
            Act::Run(rounds) => self.run(rounds.into()),
            Act::Restart => self.restart(i),
            Act::Remove => self.remove(i),
            Act::Lie(which, lie) => self.lie(i, which, lie),
            command => {
                self.net.calm &= !matches!(command, Act::Stop(_));
                self.user(i, command);
            }
        }
        let goodbyes = self.sent_on.len() as u32;
        let mut rows = self.net.sides.iter().map(|side| side.core.free_rows());
        self.speechless |= rows.any(|free| free.connections < goodbyes);
        self.check_invariants();
    }

    /// What must hold after every step.
    ///
    /// # Panics
    /// When a user heard something that the model does not allow, or an endpoint's own invariants
    /// do not hold.
    pub fn check_invariants(&self) {
        for (i, side) in self.net.sides.iter().enumerate() {
            side.core.check_invariants();
            // Who looks on may do so at any time.
            let free = side.core.free_rows();
            let there = [side.core.nexuses().count(), side.core.connections().count()];
            let held = [&side.free.nexuses, &side.free.connections];
            let left = [free.nexuses, free.connections];
            for ((there, held), left) in there.iter().zip(held).zip(left) {
                assert_eq!(there + left as usize, *held as usize, "side {i} counts");
            }
            if let Some((check, text)) = side.core.trace().breaches().first() {
                panic!("side {i}, {check:?}: {text}");
            }
        }
        if let Some(breach) = self.ledger.breaches().first() {
            panic!("{breach}");
        }
    }

    /// Everything that an endpoint wants, and all events; true when there was anything.
    pub(super) fn settle(&mut self, i: usize) -> bool {
        let mut any = false;
        while self.control(i) || self.work(i) || self.hear(i) {
            any = true;
        }
        for &number in &self.users[i].due {
            let late = self.letters[number as usize].deadline;
            let late = late.is_some_and(|at| at <= self.net.now);
            assert!(!late, "the deadline of message {number} passed");
        }
        any
    }

    /// Everything that both want and their devices have to do, for so many rounds at most.
    pub(super) fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let mut busy = false;
            for i in 0..2 {
                busy |= self.settle(i);
                while self.tell(i) {
                    self.settle(i);
                    busy = true;
                }
                for p in 0..self.net.sides[i].pairs.len() {
                    while self.device(i, p) || self.complete(i, p) {
                        busy = true;
                    }
                }
            }
            if !busy {
                return;
            }
        }
    }

    fn pass(&mut self, at: Instant) {
        self.net.now = self.net.now.max(at);
        self.net.calm &= self.net.now < Instant::from_millis(2).after(SOON);
        let now = self.net.now;
        for side in &mut self.net.sides {
            side.apply(&Input::Timeout { now });
        }
    }

    fn lose(&mut self, i: usize, p: usize, told: bool) {
        let pair = &mut self.net.sides[i].pairs[p];
        if !pair.connected {
            return;
        }
        self.net.calm = false;
        if told {
            let peer = pair.peer;
            self.disconnect(i, p);
            if let Some(peer) = peer {
                self.net.sides[1 - i].flush(peer);
            }
        } else if let Some(peer) = pair.peer {
            // Whoever sends finds out.
            pair.peer = None;
            self.net.sides[1 - i].pairs[peer].peer = None;
        }
    }

    /// Everything of a side is gone, and its peers find out.
    fn restart(&mut self, i: usize) {
        self.net.calm = false;
        self.net.lives += 1;
        let old = std::mem::replace(
            &mut self.net.sides[i],
            Side::new(&self.net.config, i, self.net.lives),
        );
        let user = std::mem::take(&mut self.users[i]);
        let open = user.lines.iter().filter(|line| !line.over);
        for side in open.filter_map(|line| line.side) {
            let at = self.net.now.as_nanos();
            self.ledger.take(at, Fact::Died { side });
        }
        let asked = old.told.iter().filter_map(|told| match told {
            Told::Asked { from, .. } => Some(*from),
            _ => None,
        });
        let mut gone: Vec<_> = asked.collect();
        for pair in &old.pairs {
            match pair.peer {
                Some(peer) if pair.connected => {
                    self.lost(1 - i, peer);
                    self.net.sides[1 - i].flush(peer);
                }
                Some(peer) => {
                    self.net.sides[1 - i].pairs[peer].peer = None;
                    gone.extend(self.net.sides[1 - i].pairs[peer].id);
                }
                None => {}
            }
        }
        for nexus in gone {
            let told = Told::Kind(nexus, CmKind::Unreachable);
            if self.net.sides[1 - i].pair(nexus).is_some() {
                self.net.sides[1 - i].told.push_back(told);
            }
        }
    }

    fn remove(&mut self, i: usize) {
        self.net.calm = false;
        let pairs = self.net.sides[i].pairs.iter();
        for nexus in pairs.filter_map(|pair| pair.id).collect::<Vec<_>>() {
            self.cm(i, nexus, CmKind::DeviceRemoval, 0, &[]);
        }
    }

    /// A device says something that is wrong. Where it speaks of something that is there, the
    /// thing becomes as it says.
    fn lie(&mut self, i: usize, which: u8, lie: Lie) {
        self.net.calm = false;
        let (now, error) = (self.net.now, 12);
        let side = &mut self.net.sides[i];
        let ids: Vec<_> = side.pairs.iter().filter_map(|pair| pair.id).collect();
        let works: Vec<_> = side.works.iter().copied().collect();
        let wr = pick(&works, which).unwrap_or_else(|| WrId::from_bits(which.into()));
        match (lie, pick(&ids, which)) {
            (Lie::Cm(kind, good), Some(nexus)) => {
                let kind = CmKind::from_number(kind.into());
                self.cm(i, nexus, kind, if good { 0 } else { -5 }, &[]);
            }
            (Lie::Completion(status), _) => self.lie_about(i, wr, status),
            (Lie::Stranger(word), _) => {
                let wr = WrId::from_bits(u64::from(word) << 28 | u64::from(which));
                self.lie_about(i, wr, which);
            }
            (Lie::NoQueuePair, Some(nexus)) => {
                let made = Err(error);
                side.apply(&Input::QueuePair { now, nexus, made });
            }
            (Lie::NotPosted, _) if !side.has(wr) => {
                side.apply(&Input::PostFailed { now, wr, error });
            }
            (Lie::DriverFailed, Some(nexus)) => {
                let reason = Reason::DriverFailed(error);
                side.apply(&Input::DriverFailed { now, nexus, reason });
            }
            (Lie::ListenFailed, _) => {
                if let Some(listener) = self.users[i].listener {
                    side.apply(&Input::ListenFailed {
                        now,
                        listener,
                        error,
                    });
                }
            }
            (Lie::NoRegion, _) => {
                if let Some(region) = pick(&self.users[i].regions, which) {
                    let (region, keys) = (region.id, Err(error));
                    side.apply(&Input::Region { now, region, keys });
                    side.keys.retain(|_, known| *known != region);
                }
            }
            (Lie::Revoked, _) => {
                if let Some(region) = pick(&self.users[i].regions, which) {
                    let region = region.id;
                    side.keys.retain(|_, known| *known != region);
                    side.apply(&Input::RegionRevoked { now, region });
                }
            }
            _ => {}
        }
    }

    /// A completion that nobody expects: of something posted it comes too early, is none that is
    /// good, and ends the queue pair.
    fn lie_about(&mut self, i: usize, wr: WrId, status: u8) {
        let side = &mut self.net.sides[i];
        // What is done is done.
        let is_done = |p: &super::side::Pair| p.done.iter().any(|done| done.wr == wr);
        if side.pairs.iter().any(is_done) {
            return;
        }
        let mut status = match status % 4 {
            0 => WorkStatus::Success,
            1 => WorkStatus::RemoteAccess,
            2 => WorkStatus::Flushed,
            _ => WorkStatus::Other(7),
        };
        for pair in &mut side.pairs {
            let receive = pair.receives.iter().position(|(posted, _)| *posted == wr);
            let send = pair.sends.iter().position(|posted| posted.wr == wr);
            if receive.is_none() && send.is_none() {
                continue;
            }
            if status == WorkStatus::Success {
                status = WorkStatus::Flushed;
            }
            pair.receives.retain(|(posted, _)| *posted != wr);
            pair.sends.drain(..send.map_or(0, |at| at + 1));
            pair.broken = true;
        }
        // What was received and was not is old memory; it is no frame.
        if status == WorkStatus::Success && wr.is_recv() {
            return;
        }
        let completion = Completion { wr, status, len: 0 };
        let (now, frame) = (self.net.now, xio_proto::Bytes(&[]));
        side.apply(&Input::Completion {
            now,
            completion,
            frame,
        });
    }
}

impl Side {
    /// Whether it is posted, or its completion not told.
    fn has(&self, wr: WrId) -> bool {
        self.pairs.iter().any(|pair| {
            pair.receives.iter().any(|(posted, _)| *posted == wr)
                || pair.sends.iter().any(|posted| posted.wr == wr)
                || pair.done.iter().any(|done| done.wr == wr)
        })
    }
}

// The end.
impl World<Devices> {
    /// Side 1 listens, and side 0 has a connection to it that is up.
    pub fn open(&mut self) {
        let dial = super::op::Dial::default();
        self.step(Op::at(1, Act::Listen));
        self.step(Op::at(0, Act::Connect(dial)));
        self.run(64);
        self.step(Op::at(1, Act::Accept(0, false)));
        self.run(64);
    }

    /// The end of a run. Users do what is left to do: if nothing bad has happened all messages end
    /// well then, and all connections soon when they are closed. Then both devices are removed,
    /// and everything must be back.
    ///
    /// # Panics
    /// When something is missing.
    pub fn finish(&mut self) {
        self.serve_all();
        self.wait();
        // Some may have come with the last that was waited for.
        self.serve_all();
        if self.net.calm {
            self.check_ended();
        }
        self.close_all();
        if self.net.calm {
            let lines = self.users.iter().flat_map(|user| &user.lines);
            // What is over may wait for the transport connection, which such a one keeps, or one
            // that waits for a goodbye.
            let deaf = |line: &Line| self.may_be_aborted(line.side.map(|side| side ^ 1));
            let kept = self.speechless || lines.clone().any(|line| !line.over && deaf(line));
            let open = lines.clone().find(|line| !line.over && !kept);
            let left = [self.left(0), self.left(1)];
            assert!(open.is_none(), "never closed: {open:?}: {left:?}");
        }
        self.take_away();
        let at = self.net.now.as_nanos();
        self.ledger.finish(at);
        self.check_invariants();
        for side in &self.net.sides {
            assert_eq!(side.core.free_rows(), side.free, "everything is back");
            assert!(side.heap.is_empty(), "memory that never came back");
        }
    }

    fn serve_all(&mut self) {
        for _ in 0..24 {
            self.run(64);
            self.serve();
        }
    }

    fn check_ended(&self) {
        for (i, user) in self.users.iter().enumerate() {
            for &number in &user.due {
                let letter = &self.letters[number as usize];
                let class = self.ledger.class(number);
                let is_excused =
                    letter.ignored || self.may_be_aborted(self.ledger.receiver(number));
                let open = [self.left(0), self.left(1)];
                assert!(
                    is_excused,
                    "message {number} of side {i}, {class:?}, never ended: {open:?}"
                );
            }
        }
    }

    fn close_all(&mut self) {
        for i in 0..2 {
            while let Some(at) = self.users[i].held.len().checked_sub(1) {
                self.release(i, at);
            }
            let lines = self.users[i].lines.clone();
            for line in lines.iter().filter(|line| !line.over) {
                let (now, connection) = (self.net.now, line.id);
                self.must(i, &Input::Close { now, connection });
            }
        }
        self.wait();
    }

    /// What is closed needs some time.
    fn wait(&mut self) {
        let soon = self.net.now.after(SOON);
        self.run(64);
        while let Some(at) = self.due().filter(|at| *at <= soon) {
            let calm = self.net.calm;
            self.pass(at);
            self.net.calm = calm;
            self.run(64);
            self.serve();
            self.run(64);
        }
    }

    fn due(&self) -> Option<Instant> {
        let sides = self.net.sides.iter();
        sides.filter_map(|side| side.core.poll_timeout()).min()
    }

    /// Takes both devices away and gives everything back.
    fn take_away(&mut self) {
        for i in 0..2 {
            if let Some(listener) = self.users[i].listener.take() {
                self.must(i, &Input::Unlisten { listener });
            }
            self.remove(i);
        }
        // Deadlines may set others, but each life ends.
        for _ in 0..64 {
            self.run(64);
            for i in 0..2 {
                while let Some(at) = self.users[i].held.len().checked_sub(1) {
                    self.release(i, at);
                }
                for slot in std::mem::take(&mut self.users[i].slots) {
                    self.must(i, &Input::ReturnSlot { slot });
                }
                for region in self.users[i].regions.clone() {
                    if region.rkey.is_some() && !region.revoking {
                        self.revoke(i, region);
                    }
                }
            }
            self.run(64);
            let Some(at) = self.due() else { break };
            self.pass(at);
        }
    }
}
