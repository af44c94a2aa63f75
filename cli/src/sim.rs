//! `xio sim`: many simulated worlds, one per seed, with all checkers on.
//!
//! Seeds run on several threads; what came of them is added up in the order of the seeds, so that
//! the result does not depend on the threads.

mod seeds;
mod totals;

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result};
use xio_sim::scenario::Options;
use xio_sim::{Dialects, FaultLevel};

use crate::args::{Dialect, Faults, SimArgs};
use crate::output::{Count, Output};
use seeds::{Outcome, Runner};
use totals::Totals;

/// Failed checks of one seed that are shown.
const BREACHES_SHOWN: usize = 6;

/// Runs the seeds and returns whether no checker found anything.
///
/// # Errors
/// When the result cannot be printed.
pub(crate) fn run(args: &SimArgs, out: &Output) -> Result<bool> {
    let seeds = match args.seed {
        Some(seed) => seed..seed + 1,
        None => args.first..args.first + u64::from(args.seeds),
    };
    let runner = Runner {
        options: options(args),
        steps: args.steps.unwrap_or(0),
    };
    let watch = Stopwatch::start();
    let mut totals = Totals::default();
    let bar = out.progress(seeds.end - seeds.start, "seeds");
    let mut add = |seed: u64, outcome: Outcome| -> Result<()> {
        totals.add(seed, &outcome);
        bar.inc(1);
        if outcome.violations() > 0 {
            let text = failure(args, seed, &outcome);
            bar.suspend(|| out.text(text))?;
        }
        Ok(())
    };
    if let Some(file) = &args.record {
        let (outcome, recording) = runner.run_recorded(seeds.start, args.of.into());
        anyhow::ensure!(
            !recording.is_empty(),
            "the seed has no endpoint {}; --endpoints N makes N of them",
            args.of
        );
        std::fs::write(file, recording)
            .with_context(|| format!("cannot write {}", file.display()))?;
        add(seeds.start, outcome)?;
    } else if args.trace {
        for seed in seeds {
            out.text(format_args!("seed {seed}\n"))?;
            add(seed, runner.run_traced(seed, out.stream()))?;
        }
    } else {
        seeds::keep_panics_quiet();
        runner.run_all(seeds, jobs(args), &mut add)?;
    }
    bar.finish_and_clear();
    let summary = totals.summary(watch.seconds());
    out.text(totals.text(&summary))?;
    out.object(&summary)?;
    Ok(summary.violations == 0)
}

fn options(args: &SimArgs) -> Options {
    Options {
        faults: match args.faults {
            Faults::None => FaultLevel::None,
            Faults::Some => FaultLevel::Some,
            Faults::All => FaultLevel::All,
        },
        dialects: match args.dialect {
            Dialect::Rdma => Dialects::Rdma,
            Dialect::Tcp => Dialects::Tcp,
            Dialect::Both => Dialects::Both,
        },
        endpoints: args.endpoints.map_or(0, usize::from),
        watch: args.watch,
        ..Options::new(0)
    }
}

fn jobs(args: &SimArgs) -> usize {
    args.jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    )
}

/// What is wrong with a seed, and the command that shows it again.
fn failure(args: &SimArgs, seed: u64, outcome: &Outcome) -> String {
    let mut text = format!(
        "seed {seed}: {}\n",
        Count(outcome.violations(), "violation")
    );
    let lines = outcome.breaches();
    for line in lines.iter().take(BREACHES_SHOWN) {
        let _ = writeln!(text, "  {line}");
    }
    if lines.len() > BREACHES_SHOWN {
        let _ = writeln!(text, "  and {} more", lines.len() - BREACHES_SHOWN);
    }
    if let Outcome::Done(report) = outcome {
        let _ = writeln!(text, "  faults of the seed: {}", report.swarm);
    }
    let _ = writeln!(text, "  again: {}", command_for(args, seed));
    text
}

/// The command that runs one seed again as it ran here, as this program was called.
fn command_for(args: &SimArgs, seed: u64) -> String {
    let program = std::env::args().next();
    let mut command = program.unwrap_or_else(|| "xio".to_owned());
    let _ = write!(command, " sim --seed {seed}");
    if let Some(steps) = args.steps {
        let _ = write!(command, " --steps {steps}");
    }
    command.push_str(match args.faults {
        Faults::None => " --faults none",
        Faults::Some => " --faults some",
        Faults::All => " --faults all",
    });
    command.push_str(match args.dialect {
        Dialect::Rdma => " --dialect rdma",
        Dialect::Tcp => " --dialect tcp",
        Dialect::Both => "",
    });
    if let Some(endpoints) = args.endpoints {
        let _ = write!(command, " --endpoints {endpoints}");
    }
    if args.watch {
        command.push_str(" --watch");
    }
    command.push_str(" --trace");
    command
}

/// Real time; nothing that happens in a world depends on it.
struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "says how fast the simulator was; no world sees it"
    )]
    fn start() -> Self {
        Self(Instant::now())
    }
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &[&str]) -> SimArgs {
        let words = ["xio", "sim"].iter().chain(line);
        match Cli::parse_from(words).command {
            Command::Sim(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn failing_seed_names_the_command_that_repeats_it() {
        let asked = args(&[
            "--seeds",
            "9",
            "--steps",
            "7000",
            "--faults",
            "some",
            "--dialect",
            "tcp",
            "--watch",
        ]);
        let text = failure(&asked, 4, &Outcome::Panicked("index out of bounds".into()));
        assert!(text.contains("panicked: index out of bounds"), "{text}");
        let again = text.lines().find_map(|line| line.split_once("again: "));
        let command = again.expect("a command").1;
        assert!(
            command.ends_with(
                " sim --seed 4 --steps 7000 --faults some --dialect tcp --watch --trace"
            ),
            "{command}"
        );
        let words: Vec<&str> = command.split(' ').skip(2).collect();
        let repeated = args(&words);
        assert_eq!(repeated.seed, Some(4));
        assert_eq!(options(&repeated), options(&asked));
        assert_eq!(repeated.steps, asked.steps);
    }
}
