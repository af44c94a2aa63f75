//! Whole conversations in the simulated world, with all checkers on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use xio_sim::fabric::FabricConfig;
use xio_sim::link::LinkConfig;
use xio_sim::scenario::{Options, run};
use xio_sim::{Actor, Closing, Errand, Mix, NodeConfig, Rng, SharedPost, World};

const PORT: u16 = 7000;
const SECOND: u64 = 1_000_000_000;

fn address(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
}

fn errand(messages: u32, depth: u32, closing: Closing) -> Errand {
    Errand {
        depth,
        closing,
        ..Errand::to(SocketAddr::new(address(1), PORT), messages)
    }
}

/// A server at number 1 and a client at number 0 that runs errands.
fn pair(seed: u64, mix: Mix, errands: Vec<Errand>) -> World<Actor> {
    let mut world = World::new(seed, FabricConfig::default(), LinkConfig::default());
    let mut rng = Rng::new(seed ^ 0x5eed);
    let post = SharedPost::default();
    for number in 0..2u8 {
        let mut node = NodeConfig::new(number);
        node.config.linger = core::time::Duration::from_secs(1);
        let errands = if number == 0 {
            errands.clone()
        } else {
            Vec::new()
        };
        let actor = Actor::new(rng.fork(), mix, errands, post.clone());
        let added = world.add(&node, address(number), actor);
        assert!(added.is_ok(), "{added:?}");
    }
    world.act(1, |user, core, desk| {
        user.listen(core, desk, SocketAddr::new(address(1), PORT))
    });
    world.act(0, |user, _, desk| user.wake(desk, 0));
    world
}

fn finish(world: &mut World<Actor>, seconds: u64) {
    world.env.trace.keep(60);
    world.run_until(seconds * SECOND, |_| false);
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

#[test]
fn a_thousand_small_messages_and_a_close() {
    let mut world = pair(1, Mix::default(), vec![errand(1000, 8, Closing::Client)]);
    world.ledger.expect_no_loss();
    finish(&mut world, 30);
    assert!(world.user(0).is_done() && world.user(1).is_done());
    assert!(world.ledger.taken() > 1500);
}

#[test]
fn large_messages_and_requests_from_both_sides() {
    let mix = Mix {
        large_ppm: 300_000,
        large: 60_000,
        think: 20_000,
        ..Mix::default()
    };
    let mut errands = vec![
        errand(200, 4, Closing::Client),
        errand(200, 8, Closing::Server),
        errand(200, 8, Closing::Both),
    ];
    for errand in &mut errands {
        errand.back = 100;
    }
    let mut world = pair(2, mix, errands);
    world.ledger.expect_no_loss();
    finish(&mut world, 30);
    assert!(world.user(0).is_done() && world.user(1).is_done());
    assert!(world.ledger.taken() > 900);
}

#[test]
fn seeds_with_everything_that_can_go_wrong() {
    let mut messages = 0;
    for seed in 100..130 {
        let options = Options {
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
        messages += report.messages;
    }
    // A world whose devices fail at once has few; all together must have had much to do.
    assert!(messages >= 30 * 300, "{messages} messages in 30 seeds");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let mut hashes = Vec::new();
    for seed in 0..10 {
        let options = Options::new(seed);
        let shown = Options {
            keep: 10,
            ..options
        };
        let (first, second) = (run(&options), run(&shown));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.events, second.events, "seed {seed}");
        hashes.push(first.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 10, "different seeds differ");
}
