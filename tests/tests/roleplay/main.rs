//! The endpoint in the place of each side of each recorded conversation.

mod mutants;
mod sockets;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use xio_tests::golden::{Layouts, Side, Stream, Transcript, layouts, load_all};
use xio_tests::roleplay::{Deviation, Played, check, load, play, play_data_first, table};

/// Short recordings that show much.
const VARIED: [&str; 6] = [
    "rdma-flowctl",
    "rdma-nomr",
    "rdma-oneway",
    "rdma-redirect",
    "tcp-oneway",
    "tcp-redirect",
];

fn shared_layouts() -> &'static Layouts {
    static LAYOUTS: OnceLock<Layouts> = OnceLock::new();
    LAYOUTS.get_or_init(|| layouts().unwrap())
}

fn played(transcript: &Transcript, side: Side) -> Result<Played, String> {
    play(transcript, side, shared_layouts())
}

/// The differences that a side of a recording has.
fn baseline(name: &str, side: Side) -> &'static [Deviation] {
    type All = Vec<(String, Side, Vec<Deviation>)>;
    static ALL: OnceLock<All> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let each = |one: Played| (one.transcript, one.side, one.differences);
        all().into_iter().map(|one| each(one.unwrap())).collect()
    });
    let one = all.iter().find(|one| one.0 == name && one.1 == side);
    &one.expect("every recording is played").2
}

/// Both sides of every recording.
fn all() -> Vec<Result<Played, String>> {
    let transcripts = load_all().unwrap();
    let both = |t: &Transcript| [Side::Client, Side::Server].map(|side| played(t, side));
    transcripts.iter().flat_map(both).collect()
}

#[test]
fn both_sides_of_every_recording() {
    let (mut played, mut failed) = (Vec::new(), Vec::new());
    for result in all() {
        match result {
            Ok(one) => played.push(one),
            Err(what) => failed.push(what),
        }
    }
    println!("{}", table(&played));
    let seen: BTreeSet<Deviation> = played
        .iter()
        .flat_map(|one| one.differences.iter().cloned())
        .collect();
    let listed: BTreeSet<Deviation> = load().unwrap().into_iter().map(|(one, _)| one).collect();
    let verdict = check(&seen, &listed);
    assert!(
        failed.is_empty() && verdict.is_ok(),
        "not played:\n{}\n{}",
        failed.join("\n"),
        verdict.err().unwrap_or_default()
    );
}

#[test]
fn data_may_come_before_its_frame() {
    let transcripts = load_all().unwrap();
    for transcript in transcripts.iter().filter(|t| t.stream == Stream::Dual) {
        for side in [Side::Client, Side::Server] {
            let played = play_data_first(transcript, side, shared_layouts()).unwrap();
            assert_eq!(played.differences, baseline(&transcript.name, side));
        }
    }
}
