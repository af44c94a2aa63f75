//! The steps of `cargo xtask test`, and how they are run and reported.

mod deps;
mod exhaust;
mod lint;
mod mutants;
mod nostd;
mod replay;
mod sim;
mod suite;
mod tidy;
mod tools;
mod verbs;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

pub(crate) use tools::Installer;

use crate::budget;
use crate::ctx::Ctx;
use crate::vm;

/// What a step ended with, unless it failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is well; the note may be empty.
    Passed(String),
    /// It did not run, and why.
    Skipped(String),
}

impl Outcome {
    /// Passed, with nothing to add.
    pub(crate) fn passed() -> Self {
        Self::Passed(String::new())
    }
}

/// One named check.
#[derive(Debug)]
pub(crate) struct Step {
    name: &'static str,
    what: &'static str,
    run: fn(&Ctx) -> Result<Outcome>,
}

/// All steps, in the order in which they run: what fails fastest comes first.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "tools",
        what: "the programs that the other steps need",
        run: tools::run,
    },
    Step {
        name: "fmt",
        what: "rustfmt agrees",
        run: lint::fmt,
    },
    Step {
        name: "tidy",
        what: "rules of the source tree that no compiler knows",
        run: tidy::run,
    },
    Step {
        name: "deps",
        what: "who may depend on what",
        run: deps::run,
    },
    Step {
        name: "clippy",
        what: "lints of each package alone, -D warnings",
        run: lint::clippy,
    },
    Step {
        name: "doc",
        what: "the documentation builds, -D warnings",
        run: lint::doc,
    },
    Step {
        name: "no-std",
        what: "the core runs with no std, no allocator, own panic handler",
        run: nostd::run,
    },
    Step {
        name: "test",
        what: "unit, integration and documentation tests",
        run: suite::run,
    },
    Step {
        name: "fuzz-corpora",
        what: "every committed fuzz input, without libFuzzer",
        run: replay::run,
    },
    Step {
        name: "sim",
        what: "the simulator: all faults, and twice the same",
        run: sim::run,
    },
    Step {
        name: "mutants",
        what: "the simulator's checkers find deliberate faults",
        run: mutants::run,
    },
    Step {
        name: "exhaust",
        what: "every order of small conversations, and faults that it must find",
        run: exhaust::run,
    },
    Step {
        name: "budget",
        what: "instruction counts of fixed scenarios under callgrind",
        run: budget::step,
    },
    Step {
        name: "verbs",
        what: "the RDMA driver builds with both bindings, and its unit tests",
        run: verbs::run,
    },
    Step {
        name: "vm",
        what: "real verbs on soft-RoCE in a small machine",
        run: vm::step,
    },
];

/// Steps whose subject is not complete yet, and what has to come first. Only these may be skipped
/// under `--strict`, and the first time that one passes there it fails instead, until its row is
/// taken off: so a row cannot outlive its reason.
const PENDING: &[(&str, &str)] = &[];

/// Prints the steps' names.
pub(crate) fn list() {
    for step in STEPS {
        println!("{:<13} {}", step.name, step.what);
    }
}

/// How a step counts in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Skipped,
    Failed,
}

/// One line of the summary.
struct Report {
    name: &'static str,
    verdict: Verdict,
    elapsed: Duration,
    note: String,
}

/// Runs the steps (all, if `only` is empty) and returns whether all is well.
///
/// # Errors
/// When `only` names a step that does not exist.
pub(crate) fn run(ctx: &Ctx, only: &[String]) -> Result<bool> {
    if let Some(unknown) = only
        .iter()
        .find(|name| !STEPS.iter().any(|step| step.name == **name))
    {
        bail!("there is no step `{unknown}`; `cargo xtask test --list` names them");
    }
    let is_chosen = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.name);
    let chosen: Vec<&Step> = STEPS.iter().filter(is_chosen).collect();
    let mut reports = Vec::with_capacity(chosen.len());
    for (index, step) in chosen.iter().enumerate() {
        println!(
            "\n== [{}/{}] {}: {}",
            index + 1,
            chosen.len(),
            step.name,
            step.what
        );
        let report = run_one(ctx, step);
        print_line("--", &report);
        reports.push(report);
    }
    Ok(summary(&reports))
}

#[expect(
    clippy::disallowed_methods,
    reason = "xtask tells people how long things took"
)]
fn run_one(ctx: &Ctx, step: &Step) -> Report {
    let start = Instant::now();
    let result = (step.run)(ctx);
    let pending = PENDING
        .iter()
        .find(|(name, _)| *name == step.name)
        .map(|(_, what)| *what);
    let (verdict, note) = judge(result, ctx.is_strict, pending);
    Report {
        name: step.name,
        verdict,
        elapsed: start.elapsed(),
        note,
    }
}

/// Turns a step's result into what it counts as.
fn judge(result: Result<Outcome>, is_strict: bool, pending: Option<&str>) -> (Verdict, String) {
    match (result, pending) {
        (Err(error), _) => (Verdict::Failed, format!("{error:#}")),
        (Ok(Outcome::Passed(_)), Some(what)) if is_strict => {
            let note = format!("{what} exists now: take the step off PENDING in xtask/src/steps");
            (Verdict::Failed, note)
        }
        (Ok(Outcome::Passed(note)), _) => (Verdict::Ok, note),
        (Ok(Outcome::Skipped(why)), Some(what)) => {
            (Verdict::Skipped, format!("{why} (waits for {what})"))
        }
        (Ok(Outcome::Skipped(why)), None) if is_strict => (
            Verdict::Failed,
            format!("skipped, which --strict forbids: {why}"),
        ),
        (Ok(Outcome::Skipped(why)), None) => (Verdict::Skipped, why),
    }
}

fn print_line(mark: &str, report: &Report) {
    let verdict = match report.verdict {
        Verdict::Ok => "ok",
        Verdict::Skipped => "SKIPPED",
        Verdict::Failed => "FAILED",
    };
    let line = format!(
        "{mark} {:<13} {verdict:<8} {:>7.1} s  {}",
        report.name,
        report.elapsed.as_secs_f64(),
        report.note.lines().next().unwrap_or_default()
    );
    println!("{}", line.trim_end());
}

fn summary(reports: &[Report]) -> bool {
    println!("\n== summary");
    for report in reports {
        print_line("  ", report);
    }
    for report in reports {
        // What is more than a line of the table.
        if let Some((_, more)) = report.note.split_once('\n') {
            println!("\n== {}\n{more}\n", report.name);
        }
    }
    let count = |verdict| {
        reports
            .iter()
            .filter(|report| report.verdict == verdict)
            .count()
    };
    let (skipped, failed) = (count(Verdict::Skipped), count(Verdict::Failed));
    let total: Duration = reports.iter().map(|report| report.elapsed).sum();
    println!(
        "{} steps in {:.0} s: {} ok, {skipped} SKIPPED, {failed} FAILED",
        reports.len(),
        total.as_secs_f64(),
        count(Verdict::Ok),
    );
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped() -> Result<Outcome> {
        Ok(Outcome::Skipped("no valgrind".into()))
    }

    #[test]
    fn skip_fails_only_under_strict() {
        assert_eq!(judge(skipped(), false, None).0, Verdict::Skipped);
        assert_eq!(judge(skipped(), true, None).0, Verdict::Failed);
    }

    #[test]
    fn pending_step_may_skip_and_must_not_stay_pending() {
        assert_eq!(judge(skipped(), true, Some("x")).0, Verdict::Skipped);
        assert_eq!(
            judge(Ok(Outcome::passed()), false, Some("x")).0,
            Verdict::Ok
        );
        assert_eq!(
            judge(Ok(Outcome::passed()), true, Some("x")).0,
            Verdict::Failed
        );
    }

    #[test]
    fn error_fails_always() {
        for is_strict in [false, true] {
            let error = Err(anyhow::anyhow!("no"));
            assert_eq!(judge(error, is_strict, Some("x")).0, Verdict::Failed);
        }
    }

    #[test]
    fn names_are_unique_and_pending_ones_exist() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(
                STEPS[..index].iter().all(|other| other.name != step.name),
                "{}",
                step.name
            );
        }
        for (name, _) in PENDING {
            assert!(STEPS.iter().any(|step| step.name == *name), "{name}");
        }
    }
}
