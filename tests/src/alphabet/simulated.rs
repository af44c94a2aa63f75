//! Two endpoints in a world of the simulator, with its faults: users do what the operations say, the
//! fabric or the sockets do the rest in virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use xio_proto::storage::Counts;
use xio_proto::{
    Applied, Config, Event, FreeRows, Input, Instant, Segment, SegmentSpan, SlotId, Slots as _,
    Span, TransportId, TransportLimits,
};
use xio_sim::fabric::{FabricConfig, NicLimits};
use xio_sim::link::LinkConfig;
use xio_sim::{
    Buffer, Chaos, Core, Desk, FaultLevel, Habits, Memory, NodeConfig, Rights, Rng, Site, Swarm,
    User,
};

use super::net::Net;
use super::op::{Act, Op};
use super::side::{CONFIG, cut};
use super::world::World;

/// What has come and was not heard yet.
#[derive(Debug)]
struct Letter {
    /// To whom.
    side: usize,
    event: Event,
    /// What lies in a slot only until its sender goes away: private data of a session, the header of
    /// what waits for memory.
    said: Option<(Span, Vec<u8>)>,
}

/// In the order in which it came, so that nobody hears of what another did before that one knows.
type Post = Rc<RefCell<VecDeque<Letter>>>;

/// A user that puts its events there.
#[derive(Debug)]
struct Inbox {
    side: usize,
    post: Post,
}

impl User for Inbox {
    fn event(&mut self, _: &mut Core, desk: &mut Desk<'_>, event: Event) {
        let said = match event {
            Event::SessionRequest { private: span, .. }
            | Event::PayloadWaiting { header: span, .. } => {
                let memory = desk.memory();
                let bytes = span.of(memory.slot(SlotId(span.slot)));
                Some((span, bytes.to_vec()))
            }
            _ => None,
        };
        self.post.borrow_mut().push_back(Letter {
            side: self.side,
            event,
            said,
        });
    }
    fn turn(&mut self, _: &mut Core, _: &mut Desk<'_>) {}
    fn sides(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// What connects the two.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Road {
    /// A fabric.
    Rdma,
    /// Sockets.
    Tcp,
}

/// A world of the simulator with two endpoints.
#[derive(Debug)]
pub struct Simulated {
    world: xio_sim::World<Inbox>,
    post: Post,
    /// As in the last letter.
    said: Option<(Span, Vec<u8>)>,
    /// Memory of the users', by where it begins.
    blocks: [BTreeMap<u64, Buffer>; 2],
}

impl Simulated {
    fn memory(&self, i: usize) -> &Memory {
        &self.world.env.memory[i]
    }
    fn core(&self, i: usize) -> &Core {
        self.world.driver(i).core()
    }
    /// Lets time pass, and what happens of itself.
    fn rest(&mut self, nanos: u64) {
        let at = self.world.env.now().saturating_add(nanos);
        // Time goes on with what happens, which may be nothing.
        self.world.env.wake_at(0, at);
        self.world.rest_until(at);
    }
}

impl Net for Simulated {
    const STILL: bool = false;

    fn now(&self, i: usize) -> Instant {
        self.world.driver(i).now(&self.world.env)
    }
    fn at(&self) -> u64 {
        self.world.env.now()
    }
    fn transport(&self) -> TransportId {
        // The only one that they have.
        TransportId(0)
    }
    fn apply(&mut self, i: usize, input: &Input<'_>) -> Applied {
        let mut applied = None;
        self.world.act(i, |_, core, desk| {
            applied = Some(core.apply(input, desk.memory()));
        });
        applied.expect("nobody dies here")
    }
    fn waiting(&self) -> Option<usize> {
        self.post.borrow().front().map(|letter| letter.side)
    }
    fn event(&mut self, i: usize) -> Option<Event> {
        let mut post = self.post.borrow_mut();
        let place = post.iter().position(|letter| letter.side == i)?;
        let letter = post.remove(place)?;
        self.said = letter.said;
        Some(letter.event)
    }
    fn config(&self, i: usize) -> &Config {
        self.core(i).config()
    }
    fn free_rows(&self, i: usize) -> FreeRows {
        self.core(i).free_rows()
    }
    fn state(&self, _: usize) -> u64 {
        unreachable!("what follows from a command has happened when it is back")
    }
    fn shown(&self, i: usize) -> String {
        let connections = self.core(i).connections();
        format!("{:?}", connections.map(|c| c.state).collect::<Vec<_>>())
    }

    fn slot_mut(&mut self, i: usize, slot: SlotId) -> &mut [u8] {
        self.world.env.memory[i].slot_mut(slot)
    }
    fn span(&self, i: usize, span: Span) -> &[u8] {
        match &self.said {
            Some((said, bytes)) if *said == span => bytes,
            _ if span.len == 0 => &[],
            _ => span.of(self.memory(i).slot(SlotId(span.slot))),
        }
    }
    fn segments(&self, i: usize, span: SegmentSpan) -> Vec<Segment> {
        self.core(i).segments(span).collect()
    }

    fn put(&mut self, i: usize, bytes: Vec<u8>) -> u64 {
        let memory = &mut self.world.env.memory[i];
        let rights = Rights::LOCAL_WRITE
            .and(Rights::REMOTE_READ)
            .and(Rights::REMOTE_WRITE);
        let buffer = memory.allocate(bytes.len() as u32, rights);
        let buffer = buffer.expect("memory for everything");
        memory.user_mut(buffer.segment()).copy_from_slice(&bytes);
        memory.hold(buffer.lkey);
        self.blocks[i].insert(buffer.addr, buffer);
        buffer.addr
    }
    fn free(&mut self, i: usize, addr: u64) {
        let buffer = self.blocks[i].remove(&addr);
        let buffer = buffer.expect("memory that is given back once");
        self.world.env.memory[i].unhold(buffer.lkey);
        self.world.env.memory[i].free(buffer);
    }
    fn cut(&self, i: usize, addr: u64, len: usize, pieces: usize) -> Vec<Segment> {
        let buffer = self.blocks[i][&addr];
        let part = |offset: usize, len: usize| buffer.part(offset as u32, len as u32);
        cut(len, pieces, part)
    }
    fn gather(&self, i: usize, segments: &[Segment]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for segment in segments {
            let (_, block) = self.blocks[i].range(..=segment.addr).next_back()?;
            let end = segment.addr + u64::from(segment.len);
            if end > block.addr + u64::from(block.len) {
                return None;
            }
            bytes.extend_from_slice(self.memory(i).user(*segment));
        }
        Some(bytes)
    }
    fn block(&self, i: usize, addr: u64) -> Vec<u8> {
        self.memory(i)
            .user(self.blocks[i][&addr].segment())
            .to_vec()
    }
}

/// Of what happens outside of endpoints, none dies: its user's operations would go nowhere.
const NOT: [Site; 3] = [Site::Restart, Site::SilentDeath, Site::Garbled];

fn node(config: &Config, number: u8, road: Road) -> NodeConfig {
    let config = Config {
        endpoint: number,
        identity: 1 + u64::from(number),
        seed: number.into(),
        ..config.clone()
    };
    let counts = Counts {
        listeners: 1,
        nexuses: 6,
        sessions: 8,
        connections: 8,
        tasks: 16,
        rx_slots: config.rx_slots as usize,
        tx_slots: config.tx_slots as usize,
        work: 64,
        sockets: if road == Road::Tcp { 12 } else { 0 },
        extents: 4,
        regions: 2,
    };
    let base = NodeConfig::new(number);
    let (rdma, tcp) = match road {
        Road::Rdma => (
            Some(NicLimits {
                max_sge: 3,
                ..NicLimits::default()
            }),
            None,
        ),
        Road::Tcp => (None, Some((TransportLimits::tcp(), Habits::default()))),
    };
    NodeConfig {
        config,
        counts,
        rdma,
        tcp,
        arena: 1 << 20,
        ..base
    }
}

impl World<Simulated> {
    /// Two endpoints in a world of which a seed says what goes wrong, and when.
    ///
    /// # Panics
    /// When the settings cannot work.
    pub fn simulated(seed: u64, faults: FaultLevel, road: Road) -> Self {
        let mut rng = Rng::new(seed);
        let swarm = Swarm::draw(&mut rng, faults);
        let mut world = xio_sim::World::new(seed, FabricConfig::default(), LinkConfig::default());
        world.env.swarm = swarm;
        for site in NOT {
            world.env.swarm.set(site, 0);
        }
        let post = Post::default();
        for number in 0..2 {
            let at = IpAddr::from([10, 0, 0, number + 1]);
            let node = node(&CONFIG, number, road);
            let inbox = Inbox {
                side: number.into(),
                post: Rc::clone(&post),
            };
            let added = world.add(&node, at, inbox);
            added.expect("settings that work");
        }
        world.check_every(1);
        world.start_chaos(Chaos::new(rng.fork()));
        Self::of(Simulated {
            world,
            post,
            said: None,
            blocks: Default::default(),
        })
    }

    /// One thing happens. What is the device's in other worlds lets this one go on a little.
    ///
    /// # Panics
    /// As [`check_invariants`](Self::check_invariants).
    pub fn step(&mut self, op: Op) {
        const MICROSECOND: u64 = 1_000;
        let Op { side: i, act } = op;
        match act {
            Act::Hear | Act::Settle => self.hear_all(),
            Act::Control | Act::Work | Act::Device(_) | Act::Complete(_) | Act::Cm => {
                self.net.world.step();
            }
            Act::Run(rounds) => {
                self.net.rest(u64::from(rounds) * 100 * MICROSECOND);
                self.hear_all();
            }
            Act::Time(millis) => self.net.rest(u64::from(millis) * 1000 * MICROSECOND),
            Act::Deadline => self.net.rest(20_000 * MICROSECOND),
            // The world has troubles of its own.
            Act::Lose(..) | Act::Unpostable | Act::Restart | Act::Remove | Act::Lie(..) => {}
            command => {
                // Whoever has not heard of an end calls what is not there.
                self.hear_all();
                self.user(i, command);
            }
        }
        self.check_invariants();
    }

    /// What must hold after every step.
    ///
    /// # Panics
    /// When a user heard something that the model does not allow, a rule of memory or of the
    /// devices was broken, or an endpoint's own invariants do not hold.
    pub fn check_invariants(&self) {
        for i in 0..2 {
            self.net.core(i).check_invariants();
            if let Some((check, text)) = self.net.core(i).trace().breaches().first() {
                panic!("side {i}, {check:?}: {text}");
            }
        }
        if let Some(violation) = self.net.world.env.violations.first() {
            panic!("{violation}");
        }
        if let Some(breach) = self.ledger.breaches().first() {
            panic!("{breach}");
        }
    }

    /// Side 1 listens, and side 0 wants a connection to it, which is accepted if it comes.
    pub fn open(&mut self) {
        self.step(Op::at(1, Act::Listen));
        self.step(Op::at(0, Act::Connect(super::op::Dial::default())));
        for _ in 0..20 {
            self.step(Op::at(0, Act::Run(10)));
            self.step(Op::at(1, Act::Accept(0, false)));
        }
    }

    /// The end of a run: nothing goes wrong any more, users do what is left to do, all is closed, and
    /// everything is back.
    ///
    /// # Panics
    /// When something is missing.
    pub fn finish(&mut self) {
        const STEP: Duration = Duration::from_millis(200);
        let step = STEP.as_nanos() as u64;
        self.net.world.heal();
        for _ in 0..10 {
            self.net.rest(step);
            self.hear_all();
            self.serve();
        }
        for i in 0..2 {
            self.hear_all();
            if let Some(listener) = self.users[i].listener.take() {
                self.must(i, &Input::Unlisten { listener });
            }
            let lines = self.users[i].lines.clone();
            for line in lines.iter().filter(|line| !line.over) {
                self.hear_all();
                let (now, connection) = (self.net.now(i), line.id);
                self.command(i, &Input::Close { now, connection });
            }
        }
        for _ in 0..2000 {
            self.hear_all();
            self.serve();
            self.take_back();
            if self.net.world.all_gone() {
                break;
            }
            self.net.rest(step);
        }
        self.hear_all();
        self.check_invariants();
        let left = [self.left(0), self.left(1)];
        assert!(self.net.world.all_gone(), "never over: {left:?}");
        self.ledger.finish(self.net.at());
        self.net.world.finish();
        let own = self.net.world.ledger.breaches().first();
        assert!(own.is_none(), "{own:?}");
        self.check_invariants();
        assert!(self.net.blocks.iter().all(BTreeMap::is_empty), "memory");
    }

    /// Regions are taken back, and what nobody answers any more is given back.
    fn take_back(&mut self) {
        for i in 0..2 {
            for region in self.users[i].regions.clone() {
                if region.rkey.is_some() && !region.revoking {
                    self.revoke(i, region);
                }
            }
            while let Some(at) = self.users[i].held.len().checked_sub(1) {
                self.release(i, at);
            }
        }
    }
}
