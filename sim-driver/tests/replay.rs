//! What entered an endpoint, recorded in the simulator and fed to another one, gives the same.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use xio_record::{Replay, ReplayError, Tape};
use xio_sim::fabric::FabricConfig;
use xio_sim::link::LinkConfig;
use xio_sim::{Actor, Errand, Mix, NodeConfig, Rng, SharedPost, World};

const SECOND: u64 = 1_000_000_000;

fn address(number: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number + 1)), 7000)
}

/// What was recorded of an endpoint, and the lines that its recorder kept.
struct Recorded {
    bytes: Vec<u8>,
    log: String,
}

/// A server and a client that sends it messages small and large; both are recorded.
fn run(messages: u32) -> Vec<Recorded> {
    let mix = Mix {
        one_way: 200_000,
        receipt: 300_000,
        large_ppm: 20_000,
        large: 40_000,
        ..Mix::default()
    };
    let mut world = World::new(7, FabricConfig::default(), LinkConfig::default());
    let mut rng = Rng::new(7);
    let post = SharedPost::default();
    let tapes = [Tape::new(), Tape::new()];
    for (number, tape) in (0..).zip(&tapes) {
        let mut node = NodeConfig::new(number);
        node.config.linger = core::time::Duration::from_secs(1);
        node.tape = Some(tape.clone());
        node.log = true;
        let errand = Errand {
            back: 50,
            depth: 16,
            ..Errand::to(address(1), messages)
        };
        let errands = if number == 0 {
            vec![errand]
        } else {
            Vec::new()
        };
        let actor = Actor::new(rng.fork(), mix, errands, post.clone());
        world
            .add(&node, address(number).ip(), actor)
            .expect("it can work");
    }
    world.ledger.expect_no_loss();
    world.act(1, |user, core, desk| user.listen(core, desk, address(1)));
    world.act(0, |user, _, desk| user.wake(desk, 0));
    world.run_until(600 * SECOND, |_| false);
    world.finish();
    assert_eq!(world.ledger.breaches(), []);
    assert!(world.ledger.delivered() >= u64::from(messages));
    let recorded = tapes.iter().enumerate().map(|(number, tape)| {
        let recorder = world.driver_mut(number).recorder().expect("asked for");
        assert_eq!(recorder.error(), None);
        Recorded {
            bytes: tape.bytes(),
            log: recorder.take_log(),
        }
    });
    recorded.collect()
}

#[test]
fn ten_thousand_messages_replayed_give_the_same_log() {
    for (number, recorded) in run(10_000).iter().enumerate() {
        let mut replay = Replay::new(&recorded.bytes).expect("a recording");
        assert_eq!(usize::from(replay.start().config.endpoint), number);
        let mut log = String::new();
        while let Some(step) = replay.step() {
            let step = step.expect("whole");
            log.push_str(&replay.take_log());
            assert!(
                !step.diverged,
                "{step:?}\n{}",
                log.lines().last().expect("one")
            );
        }
        assert!(log.lines().count() > 40_000, "{}", log.lines().count());
        let differs = log.lines().zip(recorded.log.lines()).find(|(a, b)| a != b);
        assert_eq!(differs, None);
        assert_eq!(log.len(), recorded.log.len());
    }
}

#[test]
fn another_output_is_seen() {
    let recorded = run(20).swap_remove(0).bytes;
    let whole = Replay::new(&recorded).expect("a recording");
    let steps = steps(whole);
    assert_eq!(steps.1, None);
    // One bit of the last digest.
    let mut other = recorded.clone();
    let at = other
        .windows(2)
        .rposition(|pair| pair == [9, 0])
        .expect("an output");
    other[at + 2] ^= 1;
    let mut replay = Replay::new(&other).expect("a recording");
    let diverged: Vec<_> = std::iter::from_fn(|| replay.step())
        .map(|step| step.expect("whole"))
        .filter(|step| step.diverged)
        .collect();
    assert_eq!(diverged.len(), 1, "{diverged:?}");
}

/// Steps until a recording ends, or what is wrong with it.
fn steps(mut replay: Replay<'_>) -> (u64, Option<ReplayError>) {
    let mut steps = 0;
    while let Some(step) = replay.step() {
        match step {
            Ok(_) => steps += 1,
            Err(error) => return (steps, Some(error)),
        }
    }
    (steps, None)
}

#[test]
fn damaged_recordings_are_refused_where_they_are_damaged() {
    let recorded = run(5).swap_remove(0).bytes;
    let all = steps(Replay::new(&recorded).expect("a recording")).0;
    let mut cuts = 0;
    for len in (0..recorded.len()).step_by(7) {
        match Replay::new(&recorded[..len]) {
            Ok(replay) => {
                let (done, error) = steps(replay);
                assert!(done <= all);
                cuts += u32::from(matches!(error, Some(ReplayError::Cut { .. })));
            }
            Err(error) => assert!(matches!(error, ReplayError::Start(_)), "{error}"),
        }
    }
    assert!(cuts > 10, "{cuts}");
    for (at, what) in [(0, "not the beginning of a recording"), (6, "version")] {
        let mut other = recorded.clone();
        other[at] ^= 0x10;
        let Err(error) = Replay::new(&other) else {
            panic!("byte {at} was not looked at")
        };
        assert!(error.to_string().contains(what), "{error}");
    }
}
