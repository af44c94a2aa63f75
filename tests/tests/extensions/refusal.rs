//! Who is turned away hears why, with values.

use xio_proto::{Extensions, Reason, Refusal};
use xio_tests::pair::Pair;
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Talk, World};

use super::{WIRES, Wire, config};

const REFUSALS: [(Refusal, u32); 6] = [
    (
        Refusal::Version {
            asked: 0x100,
            spoken: 0x200,
        },
        0x4a5e_3a67,
    ),
    (
        Refusal::BufferSize {
            asked: 512,
            least: 4096,
        },
        0x4a5e_3a5a,
    ),
    (
        Refusal::Depth {
            asked: 8,
            least: 16,
        },
        0x4a5e_3a7a,
    ),
    (Refusal::NoResources { need: 7, have: 2 }, 0x4a5e_3a55),
    (Refusal::TooEarly, 0x4a5e_3a66),
    (Refusal::NotAccepting, 0x4a5e_3a5e),
];

/// What the client hears when the server turns everybody away for this, and then nobody.
fn refused(world: &mut impl World, dual: bool, refusal: Refusal) -> Vec<String> {
    world.listen(50);
    let listener = world.sides()[1].listener().expect("one");
    let endpoint = &mut world.sides()[1].endpoint;
    endpoint.turn_away(listener, Some(refusal)).expect("live");
    let mut talk = Talk::default();
    Talk::dial(world, dual);
    talk.settle(world);
    let heard = talk.heard[0].clone();
    assert!(talk.heard[1].is_empty(), "{:?}", talk.heard[1]);
    talk.outlive(world);
    let endpoint = &mut world.sides()[1].endpoint;
    endpoint.turn_away(listener, None).expect("live");
    let mut talk = Talk::open(world, dual);
    talk.close(world, 0);
    heard
}

#[test]
fn who_is_turned_away_hears_why() {
    for wire in WIRES {
        for (refusal, status) in REFUSALS {
            for without in [None, Some(0), Some(1)] {
                let config = |i: u8| {
                    let mut config = config(i);
                    if without == Some(i) {
                        config.extensions = Extensions::empty();
                    }
                    config
                };
                let counts = StreamPair::counts(&config(0));
                let heard = match wire {
                    Wire::Rdma => {
                        let mut world = Pair::rdma(config, &Pair::counts(&config(0)));
                        refused(&mut world, false, refusal)
                    }
                    _ => {
                        let mut world = StreamPair::new(config, &counts, Cut::Whole);
                        refused(&mut world, wire == Wire::Dual, refusal)
                    }
                };
                // The private data of a rejection need no agreement.
                let why = if without.is_none() || wire == Wire::Rdma {
                    Reason::TurnedAway(refusal)
                } else {
                    Reason::SetupRefused(status)
                };
                let expected = format!("connect failed {why:?}");
                assert_eq!(heard[0], expected, "{wire:?}, {without:?}");
            }
        }
    }
}
