//! Lives of a peer: a later one ends what an earlier one has left.

use xio_proto::{Config, ConnectOptions, PeerKind, Reconnect, TransportLimits};
use xio_tests::pair::Pair;
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Say, Talk, World, free_rows};

use super::{WIRES, Wire, config, info, old};

/// A world in which a side can die.
trait Mortal: World {
    fn live_again(&mut self, i: usize, config: Config);
    fn listen_again(&mut self);
}

impl Mortal for Pair {
    fn live_again(&mut self, i: usize, config: Config) {
        self.restart(i, config, TransportLimits::rdma());
    }
    fn listen_again(&mut self) {
        self.listen(50);
    }
}

impl Mortal for StreamPair {
    fn live_again(&mut self, i: usize, config: Config) {
        self.restart(i, config);
    }
    fn listen_again(&mut self) {
        self.listen(50);
    }
}

/// Settings of both lives of the side that is started again: the first and the second.
type Lives = [Config; 2];

fn lives(of: u8, first: u64, second: u64) -> Lives {
    [first, second].map(|incarnation| Config {
        incarnation,
        seed: 300 + incarnation,
        ..config(of)
    })
}

/// What the survivor has of the first life when the second has connected; no time passes until it
/// is asked.
fn second_life(world: &mut impl Mortal, dual: bool, of: usize, second: &Config) -> Seen {
    let survivor = 1 - of;
    let mut talk = Talk::open(world, dual);
    let first = talk.connections[survivor].expect("open");
    let began = world.now();
    world.live_again(of, second.clone());
    if of == 1 {
        world.listen_again();
    }
    talk.connections = [None; 2];
    let options = ConnectOptions {
        dual_stream: dual,
        own_nexus: true,
        ..ConnectOptions::new(61)
    };
    Talk::dial_with(world, &options);
    talk.settle(world);
    assert_eq!(world.now(), began);
    let up = talk.connections[0].is_some() && talk.connections[1].is_some();
    if up {
        talk.say(world, 0, &Say::request(5));
        talk.settle(world);
    }
    let incarnation = up.then(|| {
        let info = info(world, &talk, survivor);
        match info.peer_kind {
            PeerKind::Xio { incarnation, .. } => incarnation,
            _ => 0,
        }
    });
    let endpoint = &world.sides()[survivor].endpoint;
    let seen = Seen {
        first_lives: endpoint
            .info(first)
            .is_ok_and(|info| info.state == "Online"),
        answered: talk.count(0, "response 5") == 1,
        incarnation,
        restarts: endpoint.counters().restarts_seen,
        told: talk.count(survivor, "closed PeerRestarted { later: 8 }")
            + talk.count(survivor, "connect failed PeerRestarted { later: 8 }"),
    };
    let now = world.now();
    for i in 0..2 {
        if let Some(connection) = talk.connections[i] {
            let _ = world.sides()[i].endpoint.close(now, connection);
        }
    }
    let _ = world.sides()[survivor].endpoint.abort(now, first);
    talk.outlive(world);
    seen
}

#[derive(PartialEq, Eq, Debug)]
struct Seen {
    /// The connection of the first life goes on.
    first_lives: bool,
    /// A request of the second life is.
    answered: bool,
    /// The life that the survivor believes the peer of its second connection to be in.
    incarnation: Option<u64>,
    /// Transport connections that the survivor ended as of an earlier life.
    restarts: u64,
    /// How often its user heard of that.
    told: usize,
}

fn over(wire: Wire, of: u8, lives: &Lives, other: &Config) -> Seen {
    let settings = |i: u8| {
        if i == of {
            lives[0].clone()
        } else {
            other.clone()
        }
    };
    let counts = StreamPair::counts(other);
    if wire == Wire::Rdma {
        let mut world = Pair::rdma(settings, &Pair::counts(other));
        world.listen(50);
        let free = free_rows(&mut world);
        let seen = second_life(&mut world, false, of.into(), &lives[1]);
        let survivor = usize::from(1 - of);
        assert_eq!(free_rows(&mut world)[survivor], free[survivor]);
        seen
    } else {
        let mut world = StreamPair::new(settings, &counts, Cut::Whole);
        world.listen(50);
        let free = free_rows(&mut world);
        let seen = second_life(&mut world, wire == Wire::Dual, of.into(), &lives[1]);
        let survivor = usize::from(1 - of);
        assert_eq!(free_rows(&mut world)[survivor], free[survivor]);
        seen
    }
}

#[test]
fn a_new_life_ends_what_is_left_of_the_old_one_at_once() {
    for wire in WIRES {
        for of in 0..2u8 {
            let seen = over(wire, of, &lives(of, 3, 8), &config(1 - of));
            let expected = Seen {
                first_lives: false,
                answered: true,
                incarnation: Some(8),
                restarts: 1,
                told: 1,
            };
            assert_eq!(seen, expected, "{wire:?}, side {of} lives again");
        }
    }
}

#[test]
fn nobody_else_is_taken_for_a_later_life() {
    for wire in WIRES {
        for of in 0..2u8 {
            let nobody = lives(of, 3, 8).map(|config| Config {
                identity: 0,
                ..config
            });
            let mut other = lives(of, 3, 8);
            other[1].identity += 1;
            let silent = lives(of, 3, 8).map(old);
            for (what, lives) in [
                ("the same life", lives(of, 3, 3)),
                ("nobody in particular", nobody),
                ("somebody else", other),
                ("a libxio", silent),
            ] {
                let seen = over(wire, of, &lives, &config(1 - of));
                assert!(seen.first_lives, "{wire:?}, side {of}: {what}");
                assert!(seen.answered, "{wire:?}, side {of}: {what}");
                assert_eq!(seen.restarts, 0, "{wire:?}, side {of}: {what}");
            }
        }
    }
}

#[test]
fn who_comes_late_from_an_earlier_life_is_let_go() {
    for wire in WIRES {
        for of in 0..2u8 {
            let seen = over(wire, of, &lives(of, 8, 3), &config(1 - of));
            assert!(seen.first_lives, "{wire:?}, side {of}");
            assert!(!seen.answered, "{wire:?}, side {of}");
            assert_eq!(seen.restarts, 1, "{wire:?}, side {of}");
        }
    }
}

/// The server is started again under a connection that is made anew; returns what the client heard.
fn started_again(world: &mut impl Mortal, dual: bool, second: &Config) -> Talk {
    let options = ConnectOptions {
        dual_stream: dual,
        reconnect: Some(Reconnect::DEFAULT),
        ..ConnectOptions::new(60)
    };
    let mut talk = Talk::default();
    talk.connections[0] = Some(Talk::dial_with(world, &options));
    talk.settle(world);
    // What the first life has, the second knows nothing of.
    talk.keep[1] = true;
    talk.say(world, 0, &Say::request(1));
    talk.settle(world);
    talk.keep[1] = false;
    talk.kept[1].clear();
    world.live_again(1, second.clone());
    world.listen_again();
    while talk.count(0, "reconnected") == 0 {
        assert!(world.advance(), "{:#?}", talk.heard);
        talk.settle(world);
    }
    talk.say(world, 0, &Say::request(2));
    talk.settle(world);
    assert_eq!(talk.count(0, "response 2"), 1, "{:#?}", talk.heard);
    assert_eq!(talk.count(0, "failed 1: Unknown"), 1, "{:#?}", talk.heard);
    assert_eq!(talk.count(1, "request 1:"), 1, "nothing is repeated");
    let restarts = world.sides()[0].endpoint.counters().restarts_seen;
    let told = talk.heard[0].iter();
    let told = told.filter(|text| text.ends_with(", to another life"));
    assert_eq!(restarts, told.count() as u64);
    assert_eq!(world.sides()[0].endpoint.counters().resumes, 0);
    talk.close(world, 0);
    talk
}

#[test]
fn a_connection_made_anew_says_that_its_peer_lives_again() {
    for wire in WIRES {
        let nobody = lives(1, 3, 8).map(|config| Config {
            identity: 0,
            ..config
        });
        let silent = lives(1, 3, 8).map(old);
        for (lives, told) in [(lives(1, 3, 8), true), (nobody, false), (silent, false)] {
            let settings = |i: u8| match i {
                0 => config(0),
                _ => lives[0].clone(),
            };
            let dual = wire == Wire::Dual;
            let talk = match wire {
                Wire::Rdma => {
                    let mut world = Pair::rdma(settings, &Pair::counts(&config(0)));
                    world.listen(50);
                    started_again(&mut world, dual, &lives[1])
                }
                _ => {
                    let counts = StreamPair::counts(&config(0));
                    let mut world = StreamPair::new(settings, &counts, Cut::Whole);
                    world.listen(50);
                    started_again(&mut world, dual, &lives[1])
                }
            };
            let count = talk.heard[0].iter();
            let count = count.filter(|text| text.ends_with(", to another life"));
            assert_eq!(count.count(), usize::from(told), "{wire:?}");
        }
    }
}
