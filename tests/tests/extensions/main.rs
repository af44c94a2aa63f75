//! What two of this kind agree on beyond libxio's protocol, and what comes of it (PROTOCOL.md 2.6,
//! 2.7, 9.7, 12.2).

mod agree;
mod cancel;
mod crossing;
mod deadline;
mod lives;
mod refusal;

use std::time::Duration;

use xio_proto::{Config, ConnectionInfo, Extensions, Instant, TaskId};
use xio_tests::pair::{Meddler, Pair, Side};
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Say, Talk, World};

/// Over what two sides talk.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wire {
    Rdma,
    Single,
    Dual,
}

pub(crate) const WIRES: [Wire; 3] = [Wire::Rdma, Wire::Single, Wire::Dual];

/// Settings of a side; each has an identity, a life and a seed of its own.
pub(crate) fn config(i: u8) -> Config {
    Config {
        identity: 70 + u64::from(i),
        incarnation: 1,
        seed: 1000 + u64::from(i),
        ..Config::new(i, 64, 48)
    }
}

/// One that does not know of extensions.
pub(crate) fn old(config: Config) -> Config {
    Config {
        extensions: Extensions::empty(),
        ..config
    }
}

/// What a connection of a side is known by.
pub(crate) fn info(world: &mut impl World, talk: &Talk, i: usize) -> ConnectionInfo {
    let connection = talk.connections[i].expect("open");
    world.sides()[i].endpoint.info(connection).expect("known")
}

/// A conversation over a wire, with somebody in between.
pub(crate) fn over<R>(
    wire: Wire,
    config: impl Fn(u8) -> Config,
    meddle: Option<Meddler>,
    then: impl FnOnce(&mut dyn Both, &mut Talk) -> R,
) -> R {
    match wire {
        Wire::Rdma => {
            let mut world = Pair::rdma(&config, &Pair::counts(&config(0)));
            world.meddle = meddle;
            world.listen(50);
            let mut talk = Talk::open(&mut world, false);
            then(&mut world, &mut talk)
        }
        Wire::Single | Wire::Dual => {
            let counts = StreamPair::counts(&config(0));
            let mut world = StreamPair::new(&config, &counts, Cut::Whole);
            world.meddle = meddle;
            world.listen(50);
            let mut talk = Talk::open(&mut world, wire == Wire::Dual);
            then(&mut world, &mut talk)
        }
    }
}

/// What a test does with a world of either kind.
pub(crate) trait Both {
    fn info(&mut self, talk: &Talk, i: usize) -> ConnectionInfo;
    fn request(&mut self, talk: &mut Talk, user: u64);
    fn end(&mut self, talk: &mut Talk);
    fn side(&mut self, i: usize) -> &mut Side;
    fn now(&self) -> Instant;
    fn say(&mut self, talk: &mut Talk, say: &Say) -> TaskId;
    fn settle(&mut self, talk: &mut Talk);
    fn advance(&mut self, talk: &mut Talk) -> bool;
    fn let_go(&mut self, talk: &mut Talk, i: usize);
    fn provide(&mut self, talk: &mut Talk, i: usize, task: TaskId, len: u64);
    fn wait(&mut self, time: Duration) -> Instant;
}

impl<W: World> Both for W {
    fn info(&mut self, talk: &Talk, i: usize) -> ConnectionInfo {
        info(self, talk, i)
    }
    fn request(&mut self, talk: &mut Talk, user: u64) {
        talk.say(self, 0, &Say::request(user));
        talk.settle(self);
        assert_eq!(talk.count(0, &format!("response {user}")), 1);
    }
    fn side(&mut self, i: usize) -> &mut Side {
        &mut self.sides()[i]
    }
    fn now(&self) -> Instant {
        World::now(self)
    }
    fn say(&mut self, talk: &mut Talk, say: &Say) -> TaskId {
        talk.say(self, 0, say)
    }
    fn settle(&mut self, talk: &mut Talk) {
        talk.settle(self);
    }
    fn advance(&mut self, talk: &mut Talk) -> bool {
        let more = World::advance(self);
        talk.settle(self);
        more
    }
    fn let_go(&mut self, talk: &mut Talk, i: usize) {
        talk.let_go(self, i);
        talk.settle(self);
    }
    fn provide(&mut self, talk: &mut Talk, i: usize, task: TaskId, len: u64) {
        talk.provide(self, i, task, len);
    }
    fn wait(&mut self, time: Duration) -> Instant {
        *self.clock() = World::now(self).after(time);
        World::now(self)
    }
    fn end(&mut self, talk: &mut Talk) {
        talk.close(self, 0);
    }
}

/// Frames of a kind that a side has sent.
pub(crate) fn sent(side: &Side, kind: u32) -> usize {
    let is = |frame: &&Vec<u8>| {
        let at = frame.windows(4).position(|w| w == b"XIOP");
        at.is_some_and(|at| frame[at + 4..at + 8] == kind.to_be_bytes())
    };
    side.sent.iter().filter(is).count()
}

/// CANCEL_REQ.
pub(crate) const CANCEL_REQ: u32 = 0x0802;
/// CANCEL_RSP.
pub(crate) const CANCEL_RSP: u32 = 0x0804;
