//! The endpoint in the place of each side of each recorded conversation.

mod mutants;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use xio_tests::golden::{Dialect, Layouts, Side, Transcript, layouts, load_all};
use xio_tests::roleplay::{Deviation, Played, load, play, table};

/// Short recordings that show much.
const VARIED: [&str; 5] = [
    "rdma-basic",
    "rdma-flowctl",
    "rdma-nomr",
    "rdma-oneway",
    "rdma-redirect",
];

/// Whether there is a player for the recording.
fn is_played(transcript: &Transcript) -> bool {
    transcript.dialect == Dialect::Rdma
}

fn played(transcript: &Transcript, side: Side) -> Result<Played, String> {
    static LAYOUTS: OnceLock<Layouts> = OnceLock::new();
    play(transcript, side, LAYOUTS.get_or_init(|| layouts().unwrap()))
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
    transcripts
        .iter()
        .filter(|t| is_played(t))
        .flat_map(both)
        .collect()
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
    let lines = |set: Vec<&Deviation>| -> String {
        set.into_iter()
            .map(|one| format!("{}\n", one.line()))
            .collect()
    };
    let unlisted = lines(seen.difference(&listed).collect());
    let gone = lines(listed.difference(&seen).collect());
    assert!(
        failed.is_empty() && unlisted.is_empty() && gone.is_empty(),
        "not played:\n{}\nnot listed:\n{unlisted}\nlisted, but does not occur:\n{gone}",
        failed.join("\n")
    );
}
