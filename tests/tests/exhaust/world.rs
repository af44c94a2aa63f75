//! Two endpoints, devices between them that do one thing at a time, and users with a script.

mod call;
mod device;
mod shared;
mod user;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use xio_proto::storage::Counts;
use xio_proto::wire::Extensions;
use xio_proto::{
    CmKind, Completion, Config, ConnectionId, Endpoint, FreeRows, Instant, ListenOptions,
    ListenerId, Names, NexusId, Reconnect, SegmentSpan, SlotId, TaskId, TransportId,
    TransportLimits, WorkStatus, WrId,
};
use xio_tests::tables::BoxedTables;

use super::search::Key;
use shared::{Core, Memory, SLOT};

const TRANSPORT: TransportId = TransportId(0);
/// Time that a message with a deadline has.
pub(crate) const DEADLINE: Duration = Duration::from_millis(5);

/// What is to be over, is over in so much time: longer than a closed connection is waited for,
/// shorter than an answer to FIN.
const SOON: Duration = Duration::from_secs(1);

/// What a user does, in the order of its script; when, is what is searched.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// Connects to the other side.
    Connect,
    /// Connects to the other side, which is to be its only connection with it.
    Call,
    /// Sends a request.
    Request,
    /// Sends a request that has [`DEADLINE`].
    Hurry,
    /// Sends a one-way.
    OneWay,
    /// Cancels the message that was sent as this one, if it has no outcome yet.
    Cancel(u64),
    /// Answers what was kept, and from now on everything at once.
    Answer,
    /// Closes its connection.
    Close,
    /// Nothing of its own: what connects the two is lost.
    Lose,
    /// Everything of this side is gone; a new endpoint takes its place.
    Restart,
}

/// What is searched.
#[derive(Clone)]
pub(crate) struct Case {
    /// Settings of both.
    pub(crate) config: Config,
    /// What the users do.
    pub(crate) scripts: [&'static [Act]; 2],
    /// Requests are kept until [`Act::Answer`].
    pub(crate) keeps: bool,
    /// How often time may pass, to the next deadline.
    pub(crate) times: u8,
    /// Connections that are up at the start, by side 0.
    pub(crate) connected: bool,
    /// Devices take their time; otherwise what is posted is done at once, and only when it is told
    /// is open.
    pub(crate) slow: bool,
    /// Good connections must all be up when nothing is left to do.
    pub(crate) stays_up: bool,
    /// Connections that are lost are made anew.
    pub(crate) again: bool,
    /// The side that is told of completions after all else was tried: no order is left out, but what
    /// its peer does wrong meanwhile is found soon.
    pub(crate) lazy: Option<usize>,
}

/// Pauses are short beside [`SOON`].
const AGAIN: Reconnect = Reconnect {
    attempts_max: 3,
    give_up_after: None,
    first_delay: Duration::from_millis(2),
    max_delay: Duration::from_millis(8),
};

/// One thing that happens.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A user's next act.
    User(usize),
    /// The oldest event of the communication manager is told.
    Cm(usize),
    /// A device does the oldest work request of a send queue.
    Device(usize, usize),
    /// The oldest completion is told.
    Complete(usize),
    /// Time passes to the next deadline.
    Time,
}

/// A frame that waits for its device.
#[derive(Clone, Debug)]
struct Posted {
    wr: WrId,
    signaled: bool,
    bytes: Rc<[u8]>,
    /// Messages whose memory is in it.
    of: Vec<u64>,
}

#[derive(Clone, Default, Debug)]
struct Pair {
    id: Option<NexusId>,
    peer: Option<usize>,
    connected: bool,
    receives: VecDeque<(WrId, SlotId)>,
    sends: VecDeque<Posted>,
}

#[derive(Clone, Debug)]
struct Done {
    pair: usize,
    completion: Completion,
    frame: Rc<[u8]>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Told {
    Asked { from: usize, private: Rc<[u8]> },
    Accepted(usize, Rc<[u8]>),
    Kind(usize, CmKind),
}

/// A message that was taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
struct Sent {
    task: Option<TaskId>,
    /// Due no later.
    deadline: Option<Instant>,
    outcome: bool,
    returned: bool,
}

#[derive(Clone, Default, Debug)]
struct User {
    at: usize,
    /// The next message's number.
    next: u64,
    connection: Option<ConnectionId>,
    up: BTreeSet<u64>,
    /// Those that could not be made, and whose last event has not come.
    failed: BTreeSet<u64>,
    /// Connections asked for or taken, whose last event has not come.
    open: BTreeMap<u64, ConnectionId>,
    accepted: u64,
    sent: BTreeMap<u64, Sent>,
    /// Messages of the peer that came.
    came: BTreeSet<u64>,
    kept: Vec<TaskId>,
    keeps: bool,
}

#[derive(Clone)]
struct Side {
    core: Core,
    memory: Memory,
    free: FreeRows,
    pairs: Vec<Pair>,
    done: VecDeque<Done>,
    told: VecDeque<Told>,
    listener: ListenerId,
    user: User,
}

/// All of it.
#[derive(Clone)]
pub(crate) struct World {
    sides: [Side; 2],
    now: Instant,
    times: u8,
    scripts: [&'static [Act]; 2],
    config: Rc<Config>,
    stays_up: bool,
    slow: bool,
    again: bool,
    pub(crate) lazy: Option<usize>,
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::new([10, 0, 0, side as u8 + 1].into(), 7000)
}

/// The config that cases change.
pub(crate) const CONFIG: Config = Config {
    slot_size: SLOT as u32,
    buffer_size: 512,
    inline_data_max: 256,
    sge_max: 2,
    rq_depth: 5,
    min_grant: 5,
    queue_messages: 16,
    keepalive: None,
    extensions: Extensions::empty(),
    ..Config::new(0, 14, 8)
};

impl Side {
    fn new(config: &Config, number: u8) -> Self {
        let config = Config {
            endpoint: number,
            ..config.clone()
        };
        let (rx, tx) = (config.rx_slots, config.tx_slots);
        let counts = Counts {
            listeners: 1,
            nexuses: 2,
            sessions: 2,
            connections: 2,
            tasks: 16,
            rx_slots: rx as usize,
            tx_slots: tx as usize,
            work: 24,
            sockets: 0,
            extents: 1,
            regions: 0,
        };
        let limits = TransportLimits {
            sq_depth: 16,
            rq_depth: 16,
            cq_depth: 64,
            signal_every: 3,
            ..TransportLimits::rdma()
        };
        let mut core = Endpoint::new(config, BoxedTables::new(&counts)).expect("it can work");
        core.add_transport(limits).expect("it can work");
        let free = core.free_rows();
        let options = ListenOptions {
            user: 0,
            backlog: 4,
        };
        let listener = core
            .listen(TRANSPORT, address(number.into()), &options)
            .expect("room");
        Self {
            core: Core::new(core),
            memory: Memory::new(rx + tx),
            free,
            pairs: vec![Pair::default(); counts.nexuses],
            done: VecDeque::new(),
            told: VecDeque::new(),
            listener,
            user: User::default(),
        }
    }

    /// Memory of messages is never looked up: its address says what is in it.
    fn gather(&self, span: SegmentSpan, of: &mut Vec<u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !span.is_empty() {
            for segment in self.core.segments(span) {
                of.push(segment.addr >> 8);
                bytes.extend_from_slice(&(segment.addr >> 8).to_be_bytes());
            }
        }
        bytes
    }

    fn flush(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        let sends = std::mem::take(&mut pair.sends)
            .into_iter()
            .map(|posted| posted.wr);
        let receives = std::mem::take(&mut pair.receives)
            .into_iter()
            .map(|(wr, _)| wr);
        let flushed = sends.chain(receives).map(|wr| Done {
            pair: p,
            completion: Completion {
                wr,
                status: WorkStatus::Flushed,
                len: 0,
            },
            frame: [].into(),
        });
        self.done.extend(flushed);
    }
}

// Names of states.
impl Side {
    fn hash(&self, key: &mut Key) {
        let (digest, names) = self.core.name();
        digest.hash(key);
        for pair in &self.pairs {
            let Pair {
                id,
                peer,
                connected,
                receives,
                sends,
            } = pair;
            (id, peer, connected, receives.len(), sends.len()).hash(key);
            for posted in sends {
                let wr = names.work(posted.wr);
                (wr, posted.signaled, &posted.bytes, &posted.of).hash(key);
            }
        }
        self.done.len().hash(key);
        for done in &self.done {
            let Completion { wr, status, len } = done.completion;
            (done.pair, wr.is_recv(), names.work(wr)).hash(key);
            (status, len, &done.frame).hash(key);
        }
        self.told.hash(key);
        self.user.hash(names, key);
    }
}

impl User {
    fn hash(&self, names: &Names, key: &mut Key) {
        let Self {
            at,
            next,
            connection,
            up,
            failed,
            open,
            accepted,
            sent,
            came,
            kept,
            keeps,
        } = self;
        (at, next, connection, up, failed, open).hash(key);
        (accepted, came, keeps, sent.len(), kept.len()).hash(key);
        for (number, sent) in sent {
            let Sent {
                task,
                deadline,
                outcome,
                returned,
            } = sent;
            (number, outcome, returned).hash(key);
            // Nothing is done with it after its outcome.
            if !outcome {
                (task.map(|task| names.task(task)), deadline).hash(key);
            }
        }
        for task in kept {
            names.task(*task).hash(key);
        }
    }
}

impl World {
    pub(crate) fn new(case: &Case) -> Self {
        let side = |i: u8| {
            let mut side = Side::new(&case.config, i);
            side.user.keeps = case.keeps;
            side
        };
        let mut world = Self {
            sides: [side(0), side(1)],
            now: Instant::from_millis(1),
            times: case.times,
            scripts: [&[], &[]],
            config: Rc::new(case.config.clone()),
            stays_up: case.stays_up,
            slow: case.slow,
            again: case.again,
            lazy: case.lazy,
        };
        for i in 0..2 {
            world.settle(i);
        }
        if case.connected {
            world.act(0, Act::Connect);
            world.settle(0);
            world.run_down();
            assert!(
                world.sides.iter().all(|side| side.user.up.len() == 1),
                "not connected"
            );
        }
        world.scripts = case.scripts;
        world
    }

    /// Everything that could happen next.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (i, side) in self.sides.iter().enumerate() {
            if side.user.at < self.scripts[i].len() && self.may_act(i) {
                steps.push(Step::User(i));
            }
            if !side.told.is_empty() {
                steps.push(Step::Cm(i));
            }
            for (p, pair) in side.pairs.iter().enumerate() {
                if !pair.sends.is_empty() {
                    steps.push(Step::Device(i, p));
                }
            }
            if !side.done.is_empty() {
                steps.push(Step::Complete(i));
            }
        }
        // Not so long that somebody has given up waiting for an answer that is under way.
        let soon = self.now.after(SOON);
        if self.times > 0 && self.due().is_some_and(|at| at <= soon) {
            steps.push(Step::Time);
        }
        steps
    }

    /// Whether the next act makes sense now: what needs a connection waits for it.
    fn may_act(&self, i: usize) -> bool {
        let user = &self.sides[i].user;
        match self.scripts[i][user.at] {
            Act::Connect => user.open.is_empty() || self.stays_up,
            Act::Call | Act::Restart | Act::Answer | Act::Lose => true,
            Act::Cancel(number) => user.sent.contains_key(&number),
            Act::Request | Act::Hurry | Act::OneWay | Act::Close => {
                user.connection.is_some() || (user.open.is_empty() && user.at > 0)
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        self.sides
            .iter()
            .filter_map(|side| side.core.poll_timeout())
            .min()
    }

    /// Lets one thing happen, and everything that both endpoints want after it.
    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::User(i) => {
                let at = self.sides[i].user.at;
                self.sides[i].user.at += 1;
                self.act(i, self.scripts[i][at]);
                self.settle(i);
            }
            Step::Cm(i) => {
                self.tell(i);
                self.settle(i);
            }
            Step::Device(i, p) => self.device(i, p),
            Step::Complete(i) => {
                self.complete(i);
                self.settle(i);
            }
            Step::Time => {
                self.times -= 1;
                self.pass();
            }
        }
    }

    fn pass(&mut self) {
        self.now = self.now.max(self.due().expect("something is due"));
        for i in 0..2 {
            if self.sides[i]
                .core
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                self.sides[i].core.handle_timeout(self.now);
            }
            self.settle(i);
        }
    }

    /// Does all that is left, in a fixed order and without the users.
    pub(crate) fn run_down(&mut self) {
        let script = std::mem::take(&mut self.scripts);
        let times = std::mem::replace(&mut self.times, 0);
        for _ in 0..10_000 {
            let Some(step) = self.steps().first().copied() else {
                self.scripts = script;
                self.times = times;
                return;
            };
            self.step(step);
        }
        panic!("it never comes to rest");
    }

    /// What must be true when nothing is left to happen: soon, and after enough time.
    pub(crate) fn check_end(mut self) {
        let soon = self.now.after(SOON);
        while !self.stays_up && self.due().is_some_and(|at| at <= soon) {
            self.pass();
            self.run_down();
        }
        for side in &self.sides {
            let user = &side.user;
            if self.stays_up {
                let all = user.up.len() == user.open.len();
                assert!(all && !user.up.is_empty(), "not up: {user:?}");
            } else {
                let there: Vec<_> = side.core.connections().collect();
                assert!(user.open.is_empty(), "never closed: {user:?} {there:?}");
            }
            for (number, sent) in &user.sent {
                assert!(sent.outcome, "message {number} has no outcome");
                assert!(sent.returned, "memory of message {number} never came back");
            }
        }
        self.check_calls();
        while !self.stays_up && self.due().is_some() {
            self.pass();
            self.run_down();
        }
        for side in self.sides.iter().filter(|_| !self.stays_up) {
            let free = side.core.free_rows();
            assert_eq!(free, side.free, "something was not given back");
        }
    }

    /// All that decides how it goes on.
    pub(crate) fn hash(&self, key: &mut Key) {
        for side in &self.sides {
            side.hash(key);
        }
        (self.now, self.times).hash(key);
    }
}
