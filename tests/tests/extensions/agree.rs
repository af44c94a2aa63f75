//! Who agrees with whom, and who never does.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use xio_proto::wire::{Introduction, is_offer};
use xio_proto::{Config, Extensions, PeerKind};
use xio_tests::pair::{Meddler, Said};
use xio_tests::stream_pair::Rng;

use super::{WIRES, Wire, config, old, over};

#[test]
fn two_of_this_kind_agree_on_what_both_can() {
    let part = Extensions::CANCEL | Extensions::INCARNATION;
    let choices = [
        (
            Extensions::DEFAULT,
            Extensions::DEFAULT,
            Extensions::DEFAULT,
        ),
        (Extensions::DEFAULT, part, part),
        (part, Extensions::DEFAULT, part),
        (Extensions::DEADLINE, part, Extensions::empty()),
        (
            Extensions::empty(),
            Extensions::DEFAULT,
            Extensions::empty(),
        ),
        (
            Extensions::DEFAULT,
            Extensions::empty(),
            Extensions::empty(),
        ),
    ];
    for wire in WIRES {
        for (client, server, both) in choices {
            let config = |i| Config {
                extensions: [client, server][usize::from(i)],
                ..config(i)
            };
            over(wire, config, None, |world, talk| {
                for i in 0..2 {
                    let info = world.info(talk, i);
                    assert_eq!(info.extensions, both, "{wire:?} side {i}");
                    let peer = if both.is_empty() {
                        PeerKind::Libxio
                    } else {
                        PeerKind::Xio {
                            version: 1,
                            incarnation: 1,
                        }
                    };
                    assert_eq!(info.peer_kind, peer, "{wire:?} side {i}");
                }
                world.request(talk, 1);
                world.end(talk);
            });
        }
    }
}

/// Bytes of a frame that a libxio does not write: the pad of a setup, and what the session header
/// of an opening frame has behind the session.
fn undefined(wire: Wire, frame: &[u8]) -> Option<(u32, core::ops::Range<usize>)> {
    // On sockets the first frame has connect messages in front.
    let at = frame.windows(4).position(|w| w == b"XIOP")?;
    let kind = u32::from_be_bytes(frame[at + 4..at + 8].try_into().unwrap());
    let place = match (kind, wire) {
        (0x82, Wire::Rdma) => 52..56,
        (0x84, Wire::Rdma) => 56..60,
        (0x82, _) => 44..48,
        (0x84, _) => 48..52,
        (0x102 | 0x104 | 0x202 | 0x204, _) => 20..56,
        _ => return None,
    };
    Some((kind, at + place.start..at + place.end))
}

/// What a stranger puts where a libxio puts nothing.
#[derive(Copy, Clone, Debug)]
enum Habit {
    /// What it heard last at the same place, or anywhere.
    Echo,
    /// What somebody said in an earlier conversation, of the same side or of the other.
    Repeat(bool),
    /// Anything.
    Random(u64),
}

/// Everything that was said where a libxio says nothing.
type Said4 = Rc<RefCell<HashMap<(usize, u32), Vec<u8>>>>;

const PRIVATE: u32 = 0;

fn listen_in(wire: Wire, heard: &Said4) -> Meddler {
    let heard = Rc::clone(heard);
    Box::new(move |i, said, bytes| {
        if said == Said::Frame {
            if let Some((kind, place)) = undefined(wire, bytes) {
                let words = bytes[place].to_vec();
                heard.borrow_mut().insert((i, kind & !6), words);
            }
        } else {
            heard.borrow_mut().insert((i, PRIVATE), bytes.clone());
        }
    })
}

fn strange(wire: Wire, stranger: usize, habit: Habit, earlier: &Said4) -> Meddler {
    let heard = Said4::default();
    let mut note = listen_in(wire, &heard);
    let earlier = Rc::clone(earlier);
    let mut rng = Rng::new(match habit {
        Habit::Random(seed) => seed,
        _ => 1,
    });
    Box::new(move |i, said, bytes| {
        if i != stranger {
            return note(i, said, bytes);
        }
        let (kind, place) = match said {
            Said::Frame => match undefined(wire, bytes) {
                Some((kind, place)) => (kind & !6, place),
                None => return,
            },
            _ => {
                bytes.resize(Introduction::LEN, 0);
                (PRIVATE, 0..Introduction::LEN)
            }
        };
        let from = |words: &HashMap<_, Vec<u8>>, who| words.get(&(who, kind)).cloned();
        let words = match habit {
            Habit::Echo => from(&heard.borrow(), 1 - stranger),
            Habit::Repeat(own) => {
                let who = if own { stranger } else { 1 - stranger };
                from(&earlier.borrow(), who)
            }
            Habit::Random(_) => Some(place.clone().map(|_| rng.below(256) as u8).collect()),
        };
        if let Some(words) = words.filter(|words| words.len() == place.len()) {
            bytes[place].copy_from_slice(&words);
        }
    })
}

/// Neither side believes that it agreed with a stranger of this habit.
fn never_agrees(wire: Wire, stranger: usize, habit: Habit, earlier: &Said4) {
    let config = |i: u8| {
        // A later life: what was said in an earlier one is not said again.
        let config = Config {
            incarnation: 2,
            seed: 5000 + u64::from(i),
            ..config(i)
        };
        if usize::from(i) == stranger {
            old(config)
        } else {
            config
        }
    };
    let meddle = strange(wire, stranger, habit, earlier);
    over(wire, config, Some(meddle), |world, talk| {
        for i in 0..2 {
            let info = world.info(talk, i);
            let what = format!("{wire:?} side {i}, {habit:?} of {stranger}");
            assert_eq!(info.extensions, Extensions::empty(), "{what}");
            assert_eq!(info.peer_kind, PeerKind::Libxio, "{what}");
        }
        world.request(talk, 1);
        world.end(talk);
    });
}

#[test]
fn who_echoes_repeats_or_fills_every_pad_at_random_never_agrees() {
    for wire in WIRES {
        let earlier = Said4::default();
        let listen = listen_in(wire, &earlier);
        over(wire, config, Some(listen), |world, talk| {
            assert_eq!(world.info(talk, 0).extensions, Extensions::DEFAULT);
            world.end(talk);
        });
        assert!(earlier.borrow().len() >= 4, "{:?}", earlier.borrow());
        for stranger in 0..2 {
            never_agrees(wire, stranger, Habit::Echo, &earlier);
            for own in [false, true] {
                never_agrees(wire, stranger, Habit::Repeat(own), &earlier);
            }
            for seed in 1..20 {
                never_agrees(wire, stranger, Habit::Random(seed), &earlier);
            }
        }
    }
}

#[test]
fn a_changed_introduction_is_none() {
    // Whatever byte of what is agreed with is changed on its way, nothing is agreed, and nobody is
    // the worse for it.
    for wire in WIRES {
        for (from, bit) in
            (0..2).flat_map(|from| (0..36).map(move |byte| (from, 8 * byte + byte % 8)))
        {
            let meddle: Meddler = Box::new(move |i, said, bytes| {
                let place = match said {
                    Said::Frame if wire == Wire::Rdma => return,
                    Said::Frame => match undefined(wire, bytes) {
                        Some((kind, place)) if kind > 0xff => place,
                        _ => return,
                    },
                    _ => 0..bytes.len(),
                };
                if i == from && place.len() == Introduction::LEN {
                    bytes[place.start + bit / 8] ^= 1 << (bit % 8);
                }
            });
            over(wire, config, Some(meddle), |world, talk| {
                // Who changed words come to agrees to nothing; the other may believe it did, if it
                // was the last to speak.
                let info = world.info(talk, 1 - from);
                assert_eq!(
                    info.extensions,
                    Extensions::empty(),
                    "{wire:?} {from} {bit}"
                );
                world.request(talk, 1);
                world.end(talk);
            });
        }
    }
}

#[test]
fn recorded_and_empty_pads_are_no_offers() {
    for word in [0, 0x100, 0x02, 0x2400_0000, u32::MAX] {
        assert!(!is_offer(word), "{word:#x}");
    }
    let offers = (0..1u32 << 20).filter(|n| is_offer(n.wrapping_mul(0x9e37_79b9)));
    let share = offers.count();
    assert!((100..500).contains(&share), "one in 4096: {share}");
}
