//! One seed's world: how many endpoints, what they do, and what goes wrong.

use std::net::SocketAddr;

use xio_proto::MARKS;
use xio_proto::wire::{Extensions, wire_identity};
use xio_record::Tape;

use crate::actor::{Actor, Call, Errand, Mix, SharedPost};
use crate::chaos::Chaos;
use crate::check::{Breach, Check, Outcome};
use crate::draw::{Manner, PORT, address};
use crate::fabric::FabricConfig;
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::roads::{Dialects, Roads};
use crate::swarm::{FaultLevel, Site, Swarm};
use crate::trace::{MarkTrace, Tracer};
use crate::world::{NodeConfig, World};

/// What a run is asked for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Everything else follows from it.
    pub seed: u64,
    /// Which faults there may be.
    pub faults: FaultLevel,
    /// Endpoints; the seed decides when this is 0.
    pub endpoints: usize,
    /// Which dialects there may be.
    pub dialects: Dialects,
    /// Messages, at least.
    pub messages: u32,
    /// Events, at least.
    pub events: u64,
    /// Lines of trace to keep.
    pub keep: usize,
    /// Print every line as it happens.
    pub print: bool,
    /// Steps between checks of the cores' own invariants; 0 is never.
    pub check_every: u32,
    /// What each user hears of its endpoint is judged by itself too
    /// ([`Watch`](crate::check::Watch)), which takes time.
    pub watch: bool,
    /// The deliberate fault of the cores.
    #[cfg(feature = "mutants")]
    pub mutant: Option<xio_proto::Mutant>,
}

impl Options {
    /// A seed with everything that may go wrong.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            faults: FaultLevel::All,
            endpoints: 0,
            dialects: Dialects::Both,
            messages: 300,
            events: 5_000,
            keep: 0,
            print: false,
            check_every: 64,
            watch: false,
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Events.
    pub events: u64,
    /// Messages that cores took.
    pub messages: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// How often each kind of outcome was seen.
    pub outcomes: [u64; Outcome::ALL.len()],
    /// How often each site fired, in the order of [`Site::ALL`].
    pub faults: Vec<u64>,
    /// Failed checks.
    pub breaches: Vec<Breach>,
    /// Transitions taken and marks hit.
    pub marks: MarkTrace,
    /// Hash of everything that happened.
    pub hash: u64,
    /// Virtual time at the end, in nanoseconds.
    pub virtual_ns: u64,
    /// The faults of the seed, for people.
    pub swarm: String,
    /// The last lines of the trace.
    pub last: Vec<String>,
}

impl Report {
    /// Marks of the core that were not hit.
    pub fn marks_missed(&self) -> Vec<&'static str> {
        let hit = |mark: &&str| self.marks.marks().iter().any(|(name, _)| name == mark);
        MARKS.iter().copied().filter(|mark| !hit(mark)).collect()
    }
}

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// How long the world may go on with faults, and after it healed.
const CALM_AFTER: u64 = 60 * SECOND;
const OVER_AFTER: u64 = 120 * SECOND;
/// How long a few messages may take in a world at rest: less than any timer that would push them.
const AT_REST: u64 = 5 * SECOND;

/// Runs a seed.
pub fn run(options: &Options) -> Report {
    run_with(options, |_| {})
}

/// Runs a seed whose tracer is made ready by `prepare`: to give its lines away, say.
pub fn run_with(options: &Options, prepare: impl FnOnce(&mut Tracer)) -> Report {
    run_recorded(options, prepare, None)
}

/// As [`run_with`]; records what enters the endpoint of the given number.
pub fn run_recorded(
    options: &Options,
    prepare: impl FnOnce(&mut Tracer),
    record: Option<(usize, Tape)>,
) -> Report {
    play(options, Rng::new(options.seed), prepare, record)
}

/// Runs a world in which these bytes decide, as long as there are some: which faults there are and
/// when, who does what, what comes first. The seed does the rest.
pub fn run_scripted(options: &Options, script: &[u8]) -> Report {
    play(options, Rng::scripted(options.seed, script), |_| {}, None)
}

fn play(
    options: &Options,
    mut rng: Rng,
    prepare: impl FnOnce(&mut Tracer),
    record: Option<(usize, Tape)>,
) -> Report {
    let swarm = Swarm::draw(&mut rng, options.faults);
    let drawn = swarm.to_string();
    let rash = rng.chance(300_000) || options.faults == FaultLevel::All;
    let manner = Manner::draw(&mut rng, options.endpoints, rash);
    let roads = Roads::draw(&mut rng, manner.endpoints, options.dialects);
    let fabric = FabricConfig::draw(&mut rng);
    let chance = rng.fork();
    let mut world = World::with_chance(chance, fabric, LinkConfig::draw(&mut rng));
    world.env.trace.keep(options.keep);
    if options.print {
        world.env.trace.print_to(|record| println!("{record}"));
    }
    prepare(&mut world.env.trace);
    let tiny = swarm.ppm(Site::TinyLimits) > 0;
    let late = [
        Site::ClockJump,
        Site::LateDrain,
        Site::SlowDrain,
        Site::SlowUser,
    ];
    if late.iter().any(|&site| swarm.ppm(site) > 0) {
        world.ledger.allow_late(SECOND);
    }
    world.env.swarm = swarm;
    let mut play = Play {
        options: *options,
        manner,
        roads,
        post: SharedPost::default(),
        places: Vec::new(),
        rng: rng.fork(),
        refused: Vec::new(),
    };
    for number in 0..manner.endpoints {
        let tiny_here = tiny && rng.flip();
        if tiny_here {
            world.env.swarm.count(Site::TinyLimits);
        }
        let mut config = manner.node(&mut rng, number as u8, play.roads.of(number), tiny_here);
        config.watch = options.watch;
        #[cfg(feature = "mutants")]
        {
            config.config.mutant = options.mutant;
        }
        if let Some((_, tape)) = record.as_ref().filter(|(of, _)| *of == number) {
            config.tape = Some(tape.clone());
        }
        let mix = manner.mix(&mut rng, config.config.inline_data_max);
        play.places.push(Place {
            config,
            mix,
            number: 0,
        });
        play.settle(&mut world, number);
    }
    world.check_every(options.check_every);
    if !tiny && !rash {
        world.ledger.expect_no_loss();
    }
    if play.refused.is_empty() {
        play.run(&mut world, Chaos::new(rng.fork()));
    }
    report(options.seed, &world, drawn, play.refused)
}

/// A place where an endpoint lives, and another one when that died.
#[derive(Debug)]
struct Place {
    config: NodeConfig,
    mix: Mix,
    /// The endpoint there now.
    number: usize,
}

/// A seed's course.
struct Play {
    options: Options,
    manner: Manner,
    roads: Roads,
    post: SharedPost,
    places: Vec<Place>,
    rng: Rng,
    refused: Vec<Breach>,
}

impl Play {
    /// An endpoint begins its life in a place.
    fn settle(&mut self, world: &mut World<Actor>, place: usize) {
        let here = &mut self.places[place];
        let config = &mut here.config.config;
        config.incarnation += 1;
        config.seed = config.seed.rotate_left(7) ^ config.incarnation;
        let user = Actor::new(self.rng.fork(), here.mix, Vec::new(), self.post.clone());
        match world.add(&here.config, address(place), user) {
            Ok(number) => here.number = number,
            Err(error) => self.refused.push(Breach {
                at: 0,
                check: Check::Sense,
                text: format!("endpoint {place}: {error}"),
            }),
        }
    }

    fn listen(&self, world: &mut World<Actor>, place: usize) {
        let at = SocketAddr::new(address(place), PORT);
        world.act(self.places[place].number, |user, core, desk| {
            user.listen(core, desk, at);
            user.wake(desk, desk.env.now());
        });
    }

    /// Every user gets something to do.
    fn give_errands(&mut self, world: &mut World<Actor>, messages: u32) {
        for place in 0..self.places.len() {
            let now = world.env.now();
            let errands = self
                .manner
                .errands(&mut self.rng, &self.roads, place, now, messages);
            world.act(self.places[place].number, |user, _, desk| {
                user.take_errands(desk, errands);
            });
        }
    }

    /// Two call each other at about the same time, and want one connection.
    fn give_calls(&mut self, world: &mut World<Actor>) {
        let places = self.places.len();
        let one = self.rng.below(places as u64) as usize;
        let (other, over) = self.roads.pick(&mut self.rng, one);
        // Who calls somebody who knows no such rule parts from him, whatever that has sent by then.
        let knows = |place: usize| {
            let named = self.post.borrow().extensions(address(place));
            named.is_some_and(|named| named.contains(Extensions::CROSS))
        };
        if !(self.manner.lossy || [one, other].into_iter().all(knows)) {
            return;
        }
        let connection = world.ledger.number_connection();
        self.post.borrow_mut().belongs(connection, connection);
        let at = world.env.now() + self.rng.spread(1, 20 * MILLISECOND);
        let apart = self.rng.spread(1, 5 * MILLISECOND);
        let curt = self.manner.lossy && self.rng.chance(400_000);
        for (place, to, late) in [(one, other, 0), (other, one, apart)] {
            let side = 2 * connection + u32::from(place == other);
            let peer = wire_identity(1 + to as u64, to as u8);
            let errand = Errand {
                call: Some(Call { side, peer }),
                over,
                at: at + late,
                back: 2,
                own: self.rng.flip(),
                patience: match curt {
                    true => self.rng.spread(1, 50 * MILLISECOND),
                    false => 0,
                },
                ..Errand::to(SocketAddr::new(address(to), PORT), 3)
            };
            world.act(self.places[place].number, |user, _, desk| {
                user.take_errands(desk, vec![errand]);
            });
        }
    }

    /// A second life begins with what the first one did: its peers may not know of its end yet.
    fn call_back(&mut self, world: &mut World<Actor>, place: usize) {
        let now = world.env.now();
        let errands = self
            .manner
            .errands(&mut self.rng, &self.roads, place, now, 8);
        world.act(self.places[place].number, |user, _, desk| {
            user.take_errands(desk, errands);
        });
    }

    fn is_enough(&self, world: &World<Actor>) -> bool {
        let messages = world.ledger.taken() >= self.options.messages.into();
        messages && world.events() >= self.options.events
    }

    fn run(&mut self, world: &mut World<Actor>, chaos: Chaos) {
        for place in 0..self.places.len() {
            self.listen(world, place);
        }
        world.start_chaos(chaos);
        let share = self.options.messages / self.places.len() as u32;
        self.give_errands(world, share);
        self.give_calls(world);
        self.go_on(world, CALM_AFTER);
        world.heal();
        // Whatever became of the world so far: it works again, and goes on to its minimum.
        let until = world.env.now() + OVER_AFTER;
        self.go_on(world, until);
        if !world.all_done() {
            for place in &self.places {
                world.act(place.number, Actor::complain);
            }
        }
        self.quiesce(world);
        self.prove(world);
        world.finish();
    }

    /// Runs until there was enough, or a time. Users that have nothing to do get more; endpoints
    /// that died begin a new life.
    fn go_on(&mut self, world: &mut World<Actor>, until: u64) {
        loop {
            let went = world.run_until(until, |world| world.all_done() || world.is_rebirth_due());
            while let Some(number) = world.take_rebirth() {
                let place = self.places.iter().position(|place| place.number == number);
                if let Some(place) = place {
                    self.settle(world, place);
                    self.listen(world, place);
                    self.call_back(world, place);
                }
            }
            if !went || world.env.now() >= until {
                return;
            }
            if world.all_done() {
                if self.is_enough(world) {
                    return;
                }
                self.give_errands(world, 50);
                self.give_calls(world);
            }
        }
    }

    /// A connection to somebody, and a few messages on it.
    fn few_messages(&mut self, place: usize, at: u64) -> Errand {
        let (next, over) = self.roads.pick(&mut self.rng, place);
        Errand {
            at,
            depth: 4,
            own: true,
            over,
            ..Errand::to(SocketAddr::new(address(next), PORT), 10)
        }
    }

    fn quiesce(&self, world: &mut World<Actor>) {
        for place in &self.places {
            world.act(place.number, Actor::wind_up);
        }
        // Lingering transport connections go too.
        world.run_until(world.env.now() + OVER_AFTER, World::all_gone);
    }

    /// Some endpoints stop, the others wind up, in the middle of a few messages.
    fn stop(&mut self, world: &mut World<Actor>) {
        let (now, after) = (world.env.now(), self.rng.spread(1, 20_000_000));
        world.ledger.expect_loss();
        for place in 0..self.places.len() {
            let errand = self.few_messages(place, now);
            world.act(self.places[place].number, |user, _, desk| {
                user.take_errands(desk, vec![errand]);
            });
        }
        world.run_until(now + after, World::all_done);
        for place in &self.places {
            if self.rng.flip() {
                world.act(place.number, Actor::stop);
            }
        }
        self.quiesce(world);
        for place in &self.places {
            world.act(place.number, Actor::must_have_stopped);
        }
    }

    /// The world is healed and at rest. Nothing that went wrong before may show any more: each
    /// endpoint can still talk with the next, and nothing is lost.
    fn prove(&mut self, world: &mut World<Actor>) {
        // Who waits for nothing may always time out.
        if self.manner.hasty || !world.all_gone() || !world.ledger.breaches().is_empty() {
            return;
        }
        // Listeners that a device took with it are made again by now.
        let rested = world.env.now() + SECOND;
        world.rest_until(rested);
        world.ledger.expect_no_loss();
        let before = world.marks().closes_given_up();
        for place in 0..self.places.len() {
            let errand = self.few_messages(place, rested);
            world.act(self.places[place].number, |user, _, desk| {
                user.be_calm();
                user.take_errands(desk, vec![errand]);
            });
        }
        world.run_until(rested + OVER_AFTER, World::all_done);
        let took = world.env.now() - rested;
        // Small debts of application credits wait for the next frame, which may be a keepalive; and
        // pairs of sockets without room for their second halves wait for each other.
        let cramped = |place: &Place| place.config.config.half_open_max <= 4;
        let may_wait = self.manner.credits.is_some() || self.places.iter().any(cramped);
        if took > AT_REST && !may_wait {
            let (at, text) = (world.env.now(), format!("a few messages took {took} ns"));
            world.ledger.breach(at, Check::Quiescence, text);
        }
        let given_up = world.marks().closes_given_up() - before;
        // Of two sockets that are closed, one's end may be seen before the other's last bytes.
        let sockets = self.places.iter().any(|place| place.config.tcp.is_some());
        if given_up > 0 && !sockets {
            let (at, text) = (
                world.env.now(),
                format!("{given_up} closes were never answered"),
            );
            world.ledger.breach(at, Check::Quiescence, text);
        }
        self.stop(world);
    }
}

fn report(seed: u64, world: &World<Actor>, swarm: String, mut breaches: Vec<Breach>) -> Report {
    breaches.extend_from_slice(world.ledger.breaches());
    let mut outcomes = [0; Outcome::ALL.len()];
    for (outcome, count) in world.ledger.outcomes() {
        outcomes[outcome as usize] = count;
    }
    Report {
        seed,
        events: world.events(),
        messages: world.ledger.taken(),
        delivered: world.ledger.delivered(),
        outcomes,
        faults: Site::ALL
            .iter()
            .map(|&site| world.env.swarm.fired(site))
            .collect(),
        breaches,
        marks: world.marks(),
        hash: world.env.trace.hash(),
        virtual_ns: world.env.now(),
        swarm,
        last: world.env.trace.last().map(ToString::to_string).collect(),
    }
}
