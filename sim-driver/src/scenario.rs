//! One seed's world: how many endpoints, what they do, and what goes wrong.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use xio_proto::{Keepalive, MARKS};
use xio_record::Tape;

use crate::actor::{Actor, Closing, Errand, Mix};
use crate::chaos::Chaos;
use crate::check::{Breach, Check, Outcome};
use crate::fabric::{FabricConfig, NicLimits};
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::roads::{self, Dialects, Has, Roads};
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
    /// Lines of trace to keep.
    pub keep: usize,
    /// Print every line as it happens.
    pub print: bool,
    /// Steps between checks of the cores' own invariants; 0 is never.
    pub check_every: u32,
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
            messages: 600,
            keep: 0,
            print: false,
            check_every: 64,
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

const PORT: u16 = 7000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

/// How long the world may go on in all, and after it healed.
const CALM_AFTER: u64 = 60 * SECOND;
const OVER_AFTER: u64 = 120 * SECOND;

fn address(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, (number >> 8) as u8, number as u8 + 1))
}

fn node(rng: &mut Rng, number: u8, has: Has, tiny: bool) -> NodeConfig {
    let mut node = NodeConfig::new(number);
    let config = &mut node.config;
    config.seed = rng.next();
    config.connect_timeout = Duration::from_secs(8);
    config.setup_timeout = Duration::from_secs(8);
    config.fin_timeout = Duration::from_secs(10);
    config.linger = Duration::from_millis(rng.spread(1, 1000));
    config.provide_timeout = Duration::from_secs(2);
    config.keepalive = Some(Keepalive {
        time: Duration::from_millis(rng.range(500, 3000)),
        interval: Duration::from_millis(1000),
        probes: 3,
    });
    config.min_grant = rng.pick(&[4, 5, 8, 16]);
    config.rq_depth = rng.pick(&[16, 64, 256]);
    config.inline_data_max = rng.pick(&[256, 1024, 8192]);
    config.rx_slots = rng.pick(&[256, 512, 1024]);
    config.tx_slots = rng.pick(&[32, 64, 256]);
    node.signal_every = rng.pick(&[1, 4, 16, 64]);
    let mut limits = NicLimits::default();
    if tiny {
        limits = NicLimits::tiny(rng);
        limits.srq_depth = 0;
        limits.rq_depth = limits.rq_depth.max(u32::from(node.config.min_grant) + 2);
        node.config.rx_slots = rng.range(64, 128) as u32;
        node.config.tx_slots = rng.range(12, 32) as u32;
        node.counts.tasks = rng.range(8, 64) as usize;
        node.counts.nexuses = rng.range(4, 8) as usize;
        node.counts.work = rng.range(64, 256) as usize;
    }
    node.rdma = has.rdma.then_some(limits);
    if has.tcp {
        node.tcp = Some(roads::sockets(rng, tiny));
    }
    if has.tcp && tiny {
        node.config.half_open_max = rng.range(2, 4) as u32;
        node.counts.sockets = rng.range(6, 16) as usize;
        if !has.rdma {
            node.config.rx_slots = rng.range(6, 40) as u32;
        }
    }
    node.counts.rx_slots = node.config.rx_slots as usize;
    node.counts.tx_slots = node.config.tx_slots as usize;
    node
}

fn mix(rng: &mut Rng, inline: u32, lossy: bool) -> Mix {
    Mix {
        one_way: rng.pick(&[0, 100_000, 500_000]),
        receipt: rng.pick(&[0, 300_000, 1_000_000]),
        header: rng.spread(0, 200) as u32,
        small: (rng.spread(1, 1024) as u32).min(inline),
        large_ppm: rng.pick(&[0, 50_000, 300_000]),
        large: rng.spread(1_000, 100_000) as u32,
        think: rng.pick(&[0, 0, 10_000, 1_000_000]),
        pace: rng.pick(&[0, 0, 100_000, 5_000_000]),
        deadline: if lossy {
            rng.pick(&[0, 20_000, 200_000])
        } else {
            0
        },
        cancel: if lossy {
            rng.pick(&[0, 20_000, 200_000])
        } else {
            0
        },
        reject: if lossy { rng.pick(&[0, 0, 200_000]) } else { 0 },
        ignore: if lossy { rng.pick(&[0, 0, 10_000]) } else { 0 },
    }
}

fn errands(rng: &mut Rng, me: usize, roads: &Roads, messages: u32, harsh: bool) -> Vec<Errand> {
    let count = rng.range(1, 4) as u32;
    let mut at = 0;
    (0..count)
        .map(|_| {
            let (other, over) = roads.pick(rng, me);
            at += rng.spread(0, 20 * MILLISECOND);
            let closing = if harsh {
                rng.pick(&[
                    Closing::Client,
                    Closing::Server,
                    Closing::Both,
                    Closing::Early,
                    Closing::Abort,
                ])
            } else {
                rng.pick(&[Closing::Client, Closing::Server, Closing::Both])
            };
            Errand {
                peer: SocketAddr::new(address(other), PORT),
                over,
                at,
                messages: messages / count + 1,
                back: rng.pick(&[0, 0, 1, 20]),
                depth: rng.spread(1, 32) as u32,
                own: rng.flip(),
                closing,
            }
        })
        .collect()
}

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
    let mut rng = Rng::new(options.seed);
    let swarm = Swarm::draw(&mut rng, options.faults);
    let drawn = swarm.to_string();
    let endpoints = match options.endpoints {
        0 if rng.chance(300_000) => 2,
        0 => rng.range(3, 5) as usize,
        given => given.max(2),
    };
    let roads = Roads::draw(&mut rng, endpoints, options.dialects);
    let tiny = swarm.ppm(Site::TinyLimits) > 0;
    let harsh = options.faults == FaultLevel::All;
    let fabric = FabricConfig::draw(&mut rng);
    let mut world = World::new(rng.next(), fabric, LinkConfig::draw(&mut rng));
    world.env.trace.keep(options.keep);
    if options.print {
        world.env.trace.print_to(|record| println!("{record}"));
    }
    prepare(&mut world.env.trace);
    world.env.swarm = swarm;
    let early = rng.chance(300_000);
    let share = options.messages.div_ceil(endpoints as u32);
    let mut breaches = Vec::new();
    for number in 0..endpoints {
        let tiny_here = tiny && rng.flip();
        if tiny_here {
            world.env.swarm.count(Site::TinyLimits);
        }
        let mut node = node(&mut rng, number as u8, roads.of(number), tiny_here);
        #[cfg(feature = "mutants")]
        {
            node.config.mutant = options.mutant;
        }
        if let Some((_, tape)) = record.as_ref().filter(|(of, _)| *of == number) {
            node.tape = Some(tape.clone());
        }
        let mix = mix(&mut rng, node.config.inline_data_max, early || harsh);
        let errands = errands(&mut rng, number, &roads, share, early || harsh);
        let actor = Actor::new(rng.fork(), mix, errands);
        if let Err(error) = world.add(&node, address(number), actor) {
            let text = format!("endpoint {number}: {error}");
            breaches.push(Breach {
                at: 0,
                check: Check::Sense,
                text,
            });
        }
    }
    world.check_every(options.check_every);
    if !tiny && !early && !harsh {
        world.ledger.expect_no_loss();
    }
    if breaches.is_empty() {
        play(&mut world, Chaos::new(rng.fork()));
    }
    report(options.seed, &world, drawn, breaches)
}

fn play(world: &mut World<Actor>, chaos: Chaos) {
    for number in 0..world.nodes() {
        let at = SocketAddr::new(address(number), PORT);
        world.act(number, |user, core, desk| {
            user.listen(core, desk, at);
            user.wake(desk, 0);
        });
    }
    world.start_chaos(chaos);
    world.run_until(CALM_AFTER, World::all_done);
    world.heal();
    for number in 0..world.nodes() {
        world.act(number, Actor::wind_up);
    }
    // Lingering transport connections go too.
    world.run_until(world.env.now() + OVER_AFTER, World::all_gone);
    world.finish();
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
