//! Users of endpoints: servers that answer, clients that ask, and both at once.
//!
//! Folder map: `plan` (what users want), `post` (what they tell each other outside the protocol),
//! `session` (sessions, tickets, joined connections), `line` (one connection), `parcel` (messages
//! made and taken apart), `peer` (what is agreed with a peer), `region` (memory for peers, direct READ and WRITE), `react` (what is
//! done about messages), `event` (the endpoint's events, one by one).

mod event;
mod line;
mod parcel;
mod peer;
mod plan;
mod post;
mod react;
mod region;
mod session;

use std::collections::VecDeque;
use std::net::SocketAddr;

use xio_proto::{ConnectionId, FreeRows, ListenOptions, SessionId, TaskId, TransportId};

use crate::check::{Check, Fact};
use crate::driver::{Core, Desk};
use crate::memory::Buffer;
use crate::rng::Rng;
use crate::slab::Slab;
use line::Line;
pub(crate) use plan::Call;
pub use plan::{Closing, Errand, Mix, Wish};
pub use post::{Post, SharedPost};
use region::Own;
use session::Asked;

/// What a client says of a connection, in its private data or with each message.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hints {
    /// The server closes, when all is said.
    closes: bool,
    /// Messages that the server is to send back.
    back: u16,
}

impl Hints {
    fn of(errand: &Errand) -> Self {
        Self {
            closes: matches!(errand.closing, Closing::Server | Closing::Both),
            back: errand.back,
        }
    }
}

/// Buffers of a message on its way.
#[derive(Copy, Clone, Debug)]
struct Cargo {
    line: u32,
    message: u64,
    data: Option<Buffer>,
    into: Option<Buffer>,
    /// Of a direct READ or WRITE: what it is about.
    target: Option<Target>,
}

/// A piece of another endpoint's memory.
#[derive(Copy, Clone, Debug)]
struct Target {
    number: u32,
    region: u32,
    cell: u32,
    addr: u64,
    write: bool,
}

/// A request that waits for its answer.
#[derive(Copy, Clone, Debug)]
struct Due {
    at: u64,
    task: TaskId,
    line: u32,
    request: u64,
    room: u64,
    /// Bytes that came, against the application credits.
    size: u64,
    /// The answer may be too long for the room.
    over: bool,
}

/// A user of one endpoint.
#[derive(Debug)]
pub struct Actor {
    rng: Rng,
    mix: Mix,
    post: SharedPost,
    errands: VecDeque<Errand>,
    lines: Vec<Line>,
    /// Lines, by index of the connection.
    by_connection: Vec<Option<(ConnectionId, u32)>>,
    cargo: Slab<Cargo>,
    due: VecDeque<Due>,
    /// Messages to cancel, and when.
    cancels: Vec<(u64, TaskId)>,
    /// Sessions that are not answered yet.
    asked: Vec<Asked>,
    /// Sessions in which connections may come, with the number of their first.
    guests: Vec<(SessionId, u32)>,
    /// Buffers given for payloads, and to which line, by task index.
    provided: Vec<Option<(TaskId, u32, Buffer)>>,
    regions: Vec<Option<Own>>,
    /// When regions were looked at last, in nanoseconds.
    tended: u64,
    next_turn: u64,
    /// Where it listens, and on which transports it has to again.
    address: Option<SocketAddr>,
    deaf: Vec<TransportId>,
    /// It is winding up.
    leaving: bool,
    /// Sessions that ended.
    sessions_closed: u64,
    /// The latest time that was seen on the driver's clock.
    clock: u64,
    /// What was free when nothing had happened.
    free: Option<FreeRows>,
    /// The endpoint was told to stop, and has done so.
    stopping: bool,
    stopped: bool,
}

const ID_BITS: u32 = 40;

impl Actor {
    /// A user that answers, and runs errands in the order of their times.
    pub fn new(rng: Rng, mix: Mix, errands: Vec<Errand>, post: SharedPost) -> Self {
        Self {
            rng,
            mix,
            post,
            errands: errands.into(),
            lines: Vec::new(),
            by_connection: Vec::new(),
            cargo: Slab::default(),
            due: VecDeque::new(),
            cancels: Vec::new(),
            asked: Vec::new(),
            guests: Vec::new(),
            provided: Vec::new(),
            regions: Vec::new(),
            tended: 0,
            next_turn: u64::MAX,
            address: None,
            deaf: Vec::new(),
            leaving: false,
            sessions_closed: 0,
            clock: 0,
            free: None,
            stopping: false,
            stopped: false,
        }
    }

    /// True when every errand is run and every connection over.
    pub fn is_done(&self) -> bool {
        self.errands.is_empty() && self.lines.iter().all(|line| line.over)
    }
    /// Sessions that ended.
    pub fn sessions_closed(&self) -> u64 {
        self.sessions_closed
    }
    /// Sides of the lines that a user has.
    pub(crate) fn sides_of_lines(&self) -> Vec<u32> {
        let lives = self.lines.iter().filter(|line| !line.over);
        lives.filter_map(|line| line.side).collect()
    }

    /// From now on it does nothing that could end a connection or a message badly.
    pub fn be_calm(&mut self) {
        self.leaving = false;
        self.mix = Mix {
            regions: self.mix.regions,
            ..Mix::default()
        };
    }

    /// More to do.
    pub fn take_errands(&mut self, desk: &mut Desk<'_>, errands: Vec<Errand>) {
        self.errands.extend(errands);
        let at = desk.env.now();
        self.wake(desk, at);
    }

    /// Runs no more errands, and closes what is open.
    pub fn wind_up(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        self.errands.clear();
        self.leaving = true;
        for line in 0..self.lines.len() as u32 {
            self.hang_up(core, desk, line, false);
        }
        let at = desk.env.now() + 1;
        self.wake(desk, at);
    }

    /// Has the endpoint stop, with everything that it has.
    pub fn stop(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        self.errands.clear();
        self.leaving = true;
        self.stopping = true;
        self.address = None;
        let at = desk.env.now();
        for line in self.lines.iter_mut().filter(|line| line.is_open()) {
            line.stop();
            if let Some(side) = line.side {
                desk.ledger.take(at, Fact::Doomed { side });
            }
        }
        let bound = core::time::Duration::from_nanos(self.rng.spread(1_000, 2_000_000_000));
        core.stop(desk.now, bound);
        self.wake(desk, at + 1);
    }

    /// Says so when the endpoint was told to stop, and has not.
    pub fn must_have_stopped(&mut self, _core: &mut Core, desk: &mut Desk<'_>) {
        if self.stopping && !self.stopped {
            self.sense(desk, "it was told to stop, and has not".into());
        }
    }

    /// The last event: nothing is left but what is in its user's hands.
    fn has_stopped(&mut self, core: &Core, desk: &mut Desk<'_>) {
        self.stopped = true;
        let rows = |free: FreeRows| {
            let rows = (free.nexuses, free.sessions);
            (rows, free.connections, free.sockets)
        };
        let free = core.free_rows();
        let first = self.free.unwrap_or(free);
        if rows(free) != rows(first) {
            self.sense(
                desk,
                format!("it has stopped with {free:?} free of {first:?}"),
            );
        }
    }

    /// Listens on all transports that there are.
    ///
    /// # Panics
    /// When there is no room for a listener.
    pub fn listen(&mut self, core: &mut Core, desk: &Desk<'_>, address: SocketAddr) {
        self.address = Some(address);
        self.free = Some(core.free_rows());
        self.post.borrow_mut().move_in(
            desk.number,
            address.ip(),
            [desk.rdma, desk.tcp].map(|t| t.is_some()),
            core.config().extensions_named(),
        );
        self.deaf.extend(desk.rdma);
        self.deaf.extend(desk.tcp);
        self.hear(core);
    }

    /// Listens where it does not.
    fn hear(&mut self, core: &mut Core) {
        let Some(address) = self.address else { return };
        for transport in self.deaf.drain(..) {
            let options = ListenOptions {
                user: transport.0.into(),
                backlog: 64,
            };
            if core.listen(transport, address, &options).is_err() {
                panic!("no room for a listener");
            }
        }
    }

    /// Asks for a turn.
    pub fn wake(&mut self, desk: &mut Desk<'_>, at: u64) {
        if at < self.next_turn {
            self.next_turn = at;
            desk.env
                .queue
                .push(at, crate::queue::Event::Actor(desk.number));
        }
    }

    #[cold]
    fn sense(&mut self, desk: &mut Desk<'_>, text: String) {
        let at = desk.env.now();
        let text = format!("endpoint {}: {text}", desk.number);
        desk.ledger.breach(at, Check::Sense, text);
    }

    /// A connection that was asked for exists.
    fn opened(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32, id: ConnectionId) {
        self.know(line, id);
        if let Some(side) = self.lines[line as usize].side {
            let at = desk.env.now();
            desk.ledger.take(at, Fact::Opened { side });
            self.lines[line as usize].life = desk.ledger.life(side);
        }
        if self.lines[line as usize].is_client() {
            self.lose_patience(desk, line);
        }
        self.pump(core, desk, line);
    }

    fn know(&mut self, line: u32, id: ConnectionId) {
        self.lines[line as usize].id = Some(id);
        let index = id.index();
        if self.by_connection.len() <= index {
            self.by_connection.resize(index + 1, None);
        }
        self.by_connection[index] = Some((id, line));
    }
}
