//! What all seeds came to, together.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use indicatif::HumanCount;
use serde::Serialize;
use xio_proto::MARKS;
use xio_sim::{MarkTrace, Site, check};

use super::seeds::Outcome;
use crate::output::Count;

/// Sums over seeds, taken in their order.
#[derive(Debug)]
pub(super) struct Totals {
    seeds: u64,
    events: u64,
    events_min: u64,
    messages: u64,
    messages_min: u64,
    faults: Vec<u64>,
    outcomes: [u64; check::Outcome::ALL.len()],
    violations: u64,
    /// Seeds with violations.
    failed: Vec<u64>,
    marks: MarkTrace,
    hash: u64,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// Seeds run.
    pub(super) seeds: u64,
    /// Events of all seeds.
    pub(super) events: u64,
    /// Of the seed with the fewest.
    pub(super) events_min: u64,
    /// Messages that were accepted for sending, in all seeds.
    pub(super) messages: u64,
    /// Of the seed with the fewest.
    pub(super) messages_min: u64,
    /// How often each kind of fault happened; kinds that never did are here with 0.
    pub(super) faults: BTreeMap<&'static str, u64>,
    /// Failed checks.
    pub(super) violations: u64,
    /// How many messages ended in which way.
    pub(super) outcomes: BTreeMap<&'static str, u64>,
    /// Rare paths that no seed took.
    pub(super) marks_missed: Vec<&'static str>,
    /// Rows of the tables of states that no seed took, and that are not declared unreachable.
    pub(super) rows_missed: Vec<String>,
    /// Rows that are declared unreachable, or not at all, and were taken.
    pub(super) rows_unexpected: Vec<String>,
    /// The same for the same seeds, always.
    pub(super) trace_hash: String,
    /// In real time, all threads together.
    pub(super) events_per_s: u64,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            seeds: 0,
            events: 0,
            events_min: u64::MAX,
            messages: 0,
            messages_min: u64::MAX,
            faults: vec![0; Site::ALL.len()],
            outcomes: [0; check::Outcome::ALL.len()],
            violations: 0,
            failed: Vec::new(),
            marks: MarkTrace::new(),
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }
}

impl Totals {
    /// Takes what came of the next seed.
    pub(super) fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.seeds += 1;
        let violations = outcome.violations();
        self.violations += violations;
        if violations > 0 {
            self.failed.push(seed);
        }
        self.mix(seed);
        let Outcome::Done(report) = outcome else {
            self.events_min = 0;
            self.messages_min = 0;
            return;
        };
        self.mix(report.hash);
        self.events += report.events;
        self.events_min = self.events_min.min(report.events);
        self.messages += report.messages;
        self.messages_min = self.messages_min.min(report.messages);
        for (sum, count) in self.faults.iter_mut().zip(&report.faults) {
            *sum += count;
        }
        for (sum, count) in self.outcomes.iter_mut().zip(report.outcomes) {
            *sum += count;
        }
        self.marks.merge(&report.marks);
    }

    /// FNV-1a over words, with a fold.
    fn mix(&mut self, word: u64) {
        let hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.hash = hash ^ hash >> 32;
    }

    /// The sums, and how fast it went.
    pub(super) fn summary(&self, seconds: f64) -> Summary {
        let hit = |mark: &&str| self.marks.marks().iter().any(|(name, _)| name == mark);
        let names = check::Outcome::ALL.iter().map(|outcome| outcome.name());
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate, rounded"
        )]
        let events_per_s = (self.events as f64 / seconds.max(1e-9)) as u64;
        Summary {
            seeds: self.seeds,
            events: self.events,
            events_min: self.events_min,
            messages: self.messages,
            messages_min: self.messages_min,
            faults: Site::ALL
                .iter()
                .map(|site| site.name())
                .zip(self.faults.iter().copied())
                .collect(),
            violations: self.violations,
            outcomes: names.zip(self.outcomes).collect(),
            marks_missed: MARKS.iter().copied().filter(|mark| !hit(mark)).collect(),
            rows_missed: self.marks.rows_missed(),
            rows_unexpected: self.marks.rows_unexpected(),
            trace_hash: format!("{:016x}", self.hash),
            events_per_s,
        }
    }

    /// The same in words, with what only people want to know.
    pub(super) fn text(&self, summary: &Summary) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{}: {} (at least {} in each), {} (at least {})",
            Count(summary.seeds, "seed"),
            Count(summary.events, "event"),
            HumanCount(summary.events_min),
            Count(summary.messages, "message"),
            HumanCount(summary.messages_min),
        );
        list(&mut text, "faults", &summary.faults);
        list(&mut text, "outcomes", &summary.outcomes);
        if summary.seeds > 1 {
            self.coverage(&mut text, summary);
        }
        let _ = writeln!(text, "{:<12}{}", "trace hash", summary.trace_hash);
        let speed = HumanCount(summary.events_per_s);
        let _ = writeln!(text, "{:<12}{speed} events a second", "speed");
        let _ = writeln!(text, "{:<12}{}", "violations", self.verdict());
        text
    }

    /// What many seeds should have reached together.
    fn coverage(&self, text: &mut String, summary: &Summary) {
        let hit = MARKS.len() - summary.marks_missed.len();
        let _ = write!(text, "{:<12}{hit} of {} hit", "rare paths", MARKS.len());
        if !summary.marks_missed.is_empty() {
            let _ = write!(text, "; not: {}", summary.marks_missed.join(", "));
        }
        let never: Vec<&str> = summary
            .faults
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(name, _)| *name)
            .collect();
        if !never.is_empty() {
            let _ = write!(text, "\n{:<12}{}", "no fault", never.join(", "));
        }
        let _ = writeln!(
            text,
            "\n{:<12}{} declared transitions were not taken, {} were that should not be",
            "states",
            summary.rows_missed.len(),
            summary.rows_unexpected.len()
        );
    }

    fn verdict(&self) -> String {
        if self.failed.is_empty() {
            return "none".to_owned();
        }
        let seeds = self.failed.iter().take(10).map(ToString::to_string);
        let seeds = seeds.collect::<Vec<_>>().join(", ");
        let more = if self.failed.len() > 10 { ", ..." } else { "" };
        format!(
            "{} in {}: {seeds}{more}",
            self.violations,
            Count(self.failed.len() as u64, "seed")
        )
    }
}

/// One line with the names whose counts are not 0.
fn list(text: &mut String, title: &str, counts: &BTreeMap<&'static str, u64>) {
    let counted = counts.iter().filter(|(_, count)| **count > 0);
    let parts: Vec<String> = counted
        .map(|(name, count)| format!("{name} {}", HumanCount(*count)))
        .collect();
    let parts = if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join(", ")
    };
    let _ = writeln!(text, "{title:<12}{parts}");
}

#[cfg(test)]
mod tests {
    use xio_sim::scenario::{self, Options};

    use super::*;

    fn report(seed: u64) -> Outcome {
        let options = Options {
            faults: xio_sim::FaultLevel::None,
            ..Options::new(seed)
        };
        Outcome::Done(Box::new(scenario::run(&options)))
    }

    #[test]
    fn broken_seed_counts_and_is_named() {
        let mut totals = Totals::default();
        totals.add(0, &report(0));
        let clean = totals.violations;
        totals.add(41, &Outcome::Panicked("no".into()));
        let summary = totals.summary(1.0);
        assert_eq!((summary.seeds, summary.violations), (2, clean + 1));
        assert_eq!((summary.events_min, summary.messages_min), (0, 0));
        assert!(totals.text(&summary).trim_end().ends_with("41"));
    }

    #[test]
    fn hash_depends_on_seeds_and_on_what_they_did() {
        let hash = |outcomes: &[(u64, &Outcome)]| {
            let mut totals = Totals::default();
            for (seed, outcome) in outcomes {
                totals.add(*seed, outcome);
            }
            totals.summary(1.0).trace_hash
        };
        let (a, b) = (report(1), report(2));
        assert_eq!(hash(&[(1, &a), (2, &b)]), hash(&[(1, &report(1)), (2, &b)]));
        assert_ne!(hash(&[(1, &a), (2, &b)]), hash(&[(2, &b), (1, &a)]));
        assert_ne!(hash(&[(1, &a)]), hash(&[(1, &b)]));
    }
}
