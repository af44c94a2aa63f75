//! The recordings of sockets, through sockets.

use xio_tests::golden::{Dialect, Side, load_all};
use xio_tests::roleplay::{Cuts, play_sockets};
use xio_tests::stream_pair::Rng;

use super::{baseline, shared_layouts};

fn differences_are_those_of_the_core(mut cuts: impl FnMut(u64) -> Cuts) {
    let (mut played, mut failed) = (0, Vec::new());
    for transcript in load_all().unwrap() {
        if transcript.dialect != Dialect::Tcp {
            continue;
        }
        for side in [Side::Client, Side::Server] {
            played += 1;
            match play_sockets(&transcript, side, shared_layouts(), cuts(played)) {
                Ok(seen) if seen == baseline(&transcript.name, side) => {}
                Ok(seen) => failed.push(format!("{} {side:?}: {seen:#?}", transcript.name)),
                Err(what) => failed.push(what),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(played, 26, "both sides of each recording");
}

/// One test, as the recorded addresses can be had once.
#[test]
fn both_sides_of_every_recording_through_sockets() {
    differences_are_those_of_the_core(|_| Cuts::Whole);
    for longest in [7, 500, 20_000] {
        differences_are_those_of_the_core(|seed| Cuts::Random(Rng::new(seed), longest));
    }
}
