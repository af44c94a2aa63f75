//! Conversations on sockets in the simulated world, with all checkers on.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use xio_proto::TransportLimits;
use xio_sim::fabric::FabricConfig;
use xio_sim::link::LinkConfig;
use xio_sim::scenario::{Options, run};
use xio_sim::{
    Actor, Chaos, Closing, Dialects, Errand, Habits, Mix, NodeConfig, Over, Rng, SharedPost, Site,
    World,
};

const PORT: u16 = 7000;
const SECOND: u64 = 1_000_000_000;

fn address(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
}

fn errand(over: Over, messages: u32) -> Errand {
    Errand {
        over,
        depth: 8,
        ..Errand::to(SocketAddr::new(address(1), PORT), messages)
    }
}

/// What a test changes about its world.
#[derive(Clone)]
struct Setting {
    seed: u64,
    mix: Mix,
    links: LinkConfig,
    habits: Habits,
    node: fn(&mut NodeConfig),
}

impl Setting {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            mix: Mix::default(),
            links: LinkConfig::default(),
            habits: Habits::default(),
            node: |_| (),
        }
    }

    /// A server at number 1 and a client at number 0 that runs errands; both have sockets only.
    fn world(&self, errands: &[Errand]) -> World<Actor> {
        let mut world = World::new(self.seed, FabricConfig::default(), self.links);
        world.check_every(8);
        let mut rng = Rng::new(self.seed ^ 0x5eed);
        let post = SharedPost::default();
        for number in 0..2u8 {
            let mut node = NodeConfig::new(number);
            node.config.linger = Duration::from_secs(1);
            node.rdma = None;
            node.tcp = Some((TransportLimits::tcp(), self.habits));
            (self.node)(&mut node);
            let errands = if number == 0 {
                errands.to_vec()
            } else {
                Vec::new()
            };
            let actor = Actor::new(rng.fork(), self.mix, errands, post.clone());
            let added = world.add(&node, address(number), actor);
            assert!(added.is_ok(), "{added:?}");
        }
        world.act(1, |user, core, desk| {
            user.listen(core, desk, SocketAddr::new(address(1), PORT))
        });
        world.act(0, |user, _, desk| user.wake(desk, 0));
        world
    }
}

fn finish(world: &mut World<Actor>) {
    world.env.trace.keep(60);
    world.run_until(world.env.now() + 60 * SECOND, World::all_done);
    world.run_until(world.env.now() + 60 * SECOND, World::all_gone);
    world.finish();
    if !world.ledger.breaches().is_empty() {
        for record in world.env.trace.last() {
            println!("{record}");
        }
        for breach in world.ledger.breaches() {
            println!("{breach}");
        }
        panic!("{} breaches", world.ledger.breaches().len());
    }
}

fn hits(world: &World<Actor>, mark: &str) -> u64 {
    let marks = world.marks();
    let found = marks.marks().iter().find(|(name, _)| *name == mark);
    found.map_or(0, |&(_, count)| count)
}

#[test]
fn messages_of_all_sizes_over_one_stream_and_two() {
    for over in [Over::OneStream, Over::TwoStreams] {
        let mut setting = Setting::new(1);
        setting.mix = Mix {
            large_ppm: 300_000,
            large: 60_000,
            think: 20_000,
            ..Mix::default()
        };
        let mut errands = vec![errand(over, 300); 3];
        errands[1].closing = Closing::Server;
        errands[2].closing = Closing::Both;
        for errand in &mut errands {
            errand.back = 100;
        }
        let mut world = setting.world(&errands);
        world.ledger.expect_no_loss();
        finish(&mut world);
        assert!(world.user(0).is_done() && world.user(1).is_done());
        assert!(world.ledger.taken() > 1500, "{}", world.ledger.taken());
    }
}

#[test]
fn every_byte_may_come_alone() {
    for over in [Over::OneStream, Over::TwoStreams] {
        let mut setting = Setting::new(2);
        setting.mix.large_ppm = 100_000;
        setting.mix.large = 20_000;
        setting.links.segment = 1;
        setting.links.window = (40, 700);
        setting.links.latency = (100, 2_000);
        setting.habits.read_max = 3;
        let mut world = setting.world(&[errand(over, 40)]);
        world.ledger.expect_no_loss();
        finish(&mut world);
        assert!(world.user(0).is_done() && world.user(1).is_done());
        assert!(world.ledger.taken() > 60);
    }
}

#[test]
fn slow_users_and_streams_lose_nothing() {
    let mut setting = Setting::new(3);
    setting.mix = Mix {
        large_ppm: 200_000,
        large: 40_000,
        think: 3_000_000,
        one_way: 500_000,
        ..Mix::default()
    };
    setting.links.window = (1_000, 2_000);
    setting.node = |node| {
        node.config.rx_slots = 12;
        node.counts.rx_slots = 12;
        node.config.inline_data_max = 4096;
    };
    let mut errands = vec![errand(Over::TwoStreams, 300); 4];
    for errand in &mut errands {
        errand.depth = 60;
        errand.own = true;
    }
    errands[3].over = Over::OneStream;
    let mut world = setting.world(&errands);
    world.env.swarm.set(Site::StreamDelay, 50_000);
    world.ledger.expect_no_loss();
    finish(&mut world);
    assert!(hits(&world, "stream waited for a slot") > 0);
}

#[test]
fn headers_run_ahead_of_their_data_only_so_far() {
    let mut setting = Setting::new(4);
    setting.mix.small = 1024;
    let mut errands = vec![errand(Over::TwoStreams, 400); 4];
    for errand in &mut errands {
        errand.depth = 60;
    }
    let mut world = setting.world(&errands);
    world.env.swarm.set(Site::StreamDelay, 200_000);
    world.ledger.expect_no_loss();
    finish(&mut world);
    assert!(hits(&world, "headers at their limit") > 0);
}

#[test]
fn payloads_of_messages_that_ended_are_read_and_dropped() {
    const MARKS: [&str; 3] = [
        "payload expired under way",
        "payload discarded",
        "control frame waited for data",
    ];
    let mut hit = [0; MARKS.len()];
    for seed in 0..12 {
        let mut setting = Setting::new(seed);
        setting.mix = Mix {
            large_ppm: 900_000,
            large: 100_000,
            small: 200,
            one_way: 0,
            deadline: 300_000,
            ..Mix::default()
        };
        setting.links.segment = 1460;
        setting.links.window = (2_000, 4_000);
        setting.links.latency = (20_000, 60_000);
        setting.node = |node| node.config.inline_data_max = 256;
        let mut errands = vec![errand(Over::TwoStreams, 300); 4];
        errands[2].over = Over::OneStream;
        errands[3].over = Over::OneStream;
        for errand in &mut errands {
            errand.own = true;
            errand.closing = Closing::Early;
        }
        let mut world = setting.world(&errands);
        finish(&mut world);
        for (sum, mark) in hit.iter_mut().zip(MARKS) {
            *sum += hits(&world, mark);
        }
    }
    assert!(hit.iter().all(|count| *count > 0), "{MARKS:?}: {hit:?}");
}

#[test]
fn strangers_at_the_door_cost_nobody_a_connection() {
    for patient in [true, false] {
        let mut setting = Setting::new(6);
        setting.habits.patient = patient;
        setting.mix.pace = 20_000_000;
        setting.node = |node| node.config.connect_timeout = Duration::from_secs(1);
        if !patient {
            setting.node = |node| node.config.half_open_max = 3;
        }
        let mut errands = vec![errand(Over::TwoStreams, 100); 6];
        for (errand, at) in errands.iter_mut().zip(0..) {
            errand.at = at * 500_000_000;
            errand.own = true;
        }
        let mut world = setting.world(&errands);
        world.env.swarm.set(Site::Stray, 1_000_000);
        world.start_chaos(Chaos::new(Rng::new(7)));
        world.run_until(30 * SECOND, World::all_done);
        world.heal();
        finish(&mut world);
        let strays = world.env.swarm.fired(Site::Stray);
        assert!(strays > 50, "{strays} strangers");
        assert!(hits(&world, "stray socket closed") > 0);
        if patient {
            assert_eq!(hits(&world, "socket refused"), 0);
            assert!(world.user(0).is_done() && world.user(1).is_done());
            assert!(world.ledger.taken() > 1000, "{}", world.ledger.taken());
        } else {
            assert!(hits(&world, "socket refused") > 0);
        }
    }
}

#[test]
fn every_fault_of_sockets_happens_and_breaks_nothing() {
    const FAULTS: [Site; 7] = [
        Site::HalfOpen,
        Site::Refused,
        Site::Reset,
        Site::StreamDelay,
        Site::TinyCut,
        Site::TinyWindow,
        Site::Stray,
    ];
    let mut fired = [0; FAULTS.len()];
    for seed in 0..120 {
        let options = Options {
            dialects: Dialects::Tcp,
            keep: 40,
            check_every: 16,
            watch: true,
            ..Options::new(seed)
        };
        let report = run(&options);
        for line in report.last.iter().filter(|_| !report.breaches.is_empty()) {
            println!("{line}");
        }
        assert_eq!(report.breaches, [], "seed {seed}, faults {}", report.swarm);
        for (sum, site) in fired.iter_mut().zip(FAULTS) {
            let place = Site::ALL.iter().position(|&other| other == site);
            *sum += place.map_or(0, |place| report.faults[place]);
        }
    }
    let never: Vec<_> = FAULTS.iter().zip(fired).filter(|(_, n)| *n == 0).collect();
    assert!(never.is_empty(), "{never:?}");
}
