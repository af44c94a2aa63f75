//! What was played, as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::player::{Played, side_name};

/// One line for each side of each recording: frames compared and taken, credit frames, transfers,
/// differences, and how many of our frames were of which kind.
#[must_use]
pub fn table(all: &[Played]) -> String {
    let mut text = format!(
        "{:<24}{:<8}{:>9}{:>7}{:>10}{:>11}{:>9}  {}\n",
        "transcript", "we are", "compared", "taken", "NOP o/r", "RDMA o/p", "differ", "our frames"
    );
    for p in all {
        let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
        for (_, ours) in &p.pairs {
            *kinds.entry(ours.kind).or_default() += 1;
        }
        let nops = format!("{}/{}", p.nops.1, p.nops.0);
        let transfers = format!("{}/{}", p.transfers.0, p.transfers.1);
        let _ = write!(
            text,
            "{:<24}{:<8}{:>9}{:>7}{nops:>10}{transfers:>11}{:>9} ",
            p.transcript,
            side_name(p.side),
            p.compared,
            p.taken,
            p.differences.len(),
        );
        for (kind, count) in kinds {
            let _ = write!(text, " {} {count}", kind.name());
        }
        text.push('\n');
    }
    text
}
