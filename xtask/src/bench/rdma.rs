//! Requests over RDMA beside raw verbs, in the machine of `cargo xtask vm`: instructions where its
//! clock counts them, and alternated runs in real time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::ctx::Ctx;
use crate::vm;

/// Longest time for one boot.
const PATIENCE: Duration = Duration::from_secs(1800);

/// What is compared: our round trip, the raw figure and how often it goes into a round trip.
struct Contest {
    what: &'static str,
    ours: &'static str,
    raw: &'static str,
    /// Messages of the raw program in a round trip of ours.
    times: f64,
    goal: Option<Goal>,
}

/// What our figure is to be.
#[derive(Copy, Clone)]
enum Goal {
    /// Our own share, in thousands of instructions.
    Own(f64),
    /// So many times the raw one.
    Ratio(f64),
}

const CONTESTS: &[Contest] = &[
    Contest {
        what: "64 B there and back",
        ours: "xio 64/64 depth 1 round trip",
        raw: "ib_send_lat 64",
        times: 2.0,
        goal: Some(Goal::Own(6.0)),
    },
    Contest {
        what: "4 KiB there and back",
        ours: "xio 4096/4096 depth 1 round trip",
        raw: "ib_send_lat 4096",
        times: 2.0,
        goal: None,
    },
    Contest {
        what: "the same, beside raw messages with as many bytes of headers",
        ours: "xio 4096/4096 depth 1 round trip",
        raw: "ib_send_lat 4196",
        times: 2.0,
        goal: None,
    },
    Contest {
        what: "64 KiB there, READ",
        ours: "xio 65536/64 depth 1 round trip",
        raw: "ib_read_lat 65536",
        times: 1.0,
        goal: None,
    },
    Contest {
        what: "64 KiB back, WRITE, beside raw SEND",
        ours: "xio 64/65536 depth 1 round trip",
        raw: "ib_send_lat 65536",
        times: 1.0,
        goal: None,
    },
    Contest {
        what: "1 MiB there, READ",
        ours: "xio 1048576/64 depth 1 round trip",
        raw: "ib_read_lat 1048576",
        times: 1.0,
        goal: Some(Goal::Ratio(1.01)),
    },
    Contest {
        what: "1 MiB back, WRITE, beside raw SEND",
        ours: "xio 64/1048576 depth 1 round trip",
        raw: "ib_send_lat 1048576",
        times: 1.0,
        goal: Some(Goal::Ratio(1.01)),
    },
];

/// Figures that stand alone: what, its name, and its goal.
const ALONE: &[(&str, &str, &str)] = &[
    (
        "64 B, 32 under way, requests per virtual second",
        "xio 64/64 depth 32 rate",
        "at least 37000",
    ),
    (
        "4 KiB, 32 under way, requests per virtual second",
        "xio 4096/4096 depth 32 rate",
        "",
    ),
    (
        "64 KiB there, 32 under way, requests per virtual second",
        "xio 65536/64 depth 32 rate",
        "",
    ),
    (
        "1 MiB there, 32 under way, requests per virtual second",
        "xio 1048576/64 depth 32 rate",
        "",
    ),
    (
        "64 B, both ends in one thread, polled, thousand instructions",
        "xio both 64/64 depth 1 round trip",
        "below 30.8",
    ),
    (
        "4 KiB, both ends in one thread, polled, thousand instructions",
        "xio both 4096/4096 depth 1 round trip",
        "",
    ),
];

/// All values of each figure.
type Figures = BTreeMap<String, Vec<f64>>;

/// Runs both parts and prints what came of them.
///
/// # Errors
/// When the programs cannot be built, or the machine fails.
pub(super) fn run(ctx: &Ctx, boots: u32, pairs: u32) -> Result<()> {
    ctx.verbs_env(ctx.cargo(["build", "--locked", "--release", "--package", "xio-verbs"]))
        .args(["--example", "measure"])
        .run()?;
    let with = [ctx.target_dir.join("release/examples/measure")];
    let mut figures = Figures::new();
    for boot in 1..=boots {
        println!("-- boot {boot} of {boots}, counting instructions");
        collect(ctx, &with, include_str!("count.sh"), true, &mut figures)?;
    }
    report(&figures)?;
    println!("-- real time, {pairs} pairs");
    let script = format!("#!/bin/sh\npairs={pairs}\n{}", include_str!("real.sh"));
    let mut real = Figures::new();
    collect(ctx, &with, &script, false, &mut real)?;
    report_real(&real)
}

/// Boots once and adds the figures that were printed.
fn collect(
    ctx: &Ctx,
    with: &[PathBuf],
    script: &str,
    is_counted: bool,
    figures: &mut Figures,
) -> Result<()> {
    let lines = vm::measure(ctx, with, script, is_counted, PATIENCE)?;
    for (name, value) in lines.iter().filter_map(|line| figure(line)) {
        figures.entry(name).or_default().push(value);
    }
    Ok(())
}

/// Name and value of a line `measure: NAME VALUE UNIT`, where the unit may be several words.
fn figure(line: &str) -> Option<(String, f64)> {
    let rest = line.strip_prefix("measure: ")?;
    let rest = rest
        .strip_suffix(" us")
        .or_else(|| rest.strip_suffix(" per second"))?;
    let (name, value) = rest.rsplit_once(' ')?;
    Some((name.to_owned(), value.parse().ok()?))
}

fn report(figures: &Figures) -> Result<()> {
    println!("thousand instructions of a round trip: median (range) of all boots");
    for contest in CONTESTS {
        let (ours, raw) = (
            spread(figures, contest.ours)?,
            spread(figures, contest.raw)?,
        );
        let base = raw.median * contest.times;
        let (own, ratio) = (ours.median - base, ours.median / base);
        let verdict = match contest.goal {
            None => String::new(),
            Some(Goal::Own(most)) => format!("; goal {most}: {}", said(own <= most)),
            Some(Goal::Ratio(most)) => format!("; goal {most}: {}", said(ratio <= most)),
        };
        println!(
            "  {:<60} {ours}, raw {} x {raw}: {own:+.2} own, ratio {ratio:.4}{verdict}",
            contest.what, contest.times
        );
    }
    for (what, name, goal) in ALONE {
        println!("  {what:<60} {} {goal}", spread(figures, name)?);
    }
    Ok(())
}

fn said(is_reached: bool) -> &'static str {
    if is_reached { "reached" } else { "missed" }
}

fn report_real(figures: &Figures) -> Result<()> {
    let (ours, raw) = (
        // The middle of all round trips, as perftest's figure is.
        figures.get("xio 64/64 depth 1 median"),
        figures.get("ib_send_lat 64"),
    );
    let (ours, raw) = (ours.context("our figures")?, raw.context("raw figures")?);
    ensure!(ours.len() == raw.len(), "figures come in pairs");
    // The first pair warms up.
    let ratios = ours.iter().zip(raw).skip(1).map(|(o, r)| o / (2.0 * r));
    println!(
        "  64 B there and back, both spinning, beside twice ib_send_lat: ratio {}",
        Spread::of(ratios.collect()).context("more than one pair")?
    );
    Ok(())
}

fn spread(figures: &Figures, name: &str) -> Result<Spread> {
    let values = figures.get(name).cloned().unwrap_or_default();
    Spread::of(values).with_context(|| format!("no figure {name}"))
}

/// The middle of some values, and how far they are apart.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], upper)
        } else {
            upper
        };
        Some(Self {
            median,
            least: values[0],
            most: values[values.len() - 1],
        })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:.2} ({least:.2} to {most:.2})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_among_other_lines() {
        assert_eq!(
            figure("measure: xio 64/64 depth 1 round trip 54.744 us"),
            Some(("xio 64/64 depth 1 round trip".to_owned(), 54.744))
        );
        assert_eq!(
            figure("measure: xio 64/64 depth 32 rate 31076 per second"),
            Some(("xio 64/64 depth 32 rate".to_owned(), 31076.0))
        );
        assert_eq!(figure("measure: nothing us"), None);
        assert_eq!(figure("listening at 10.99.0.1:37046"), None);
    }

    #[test]
    fn spread_has_the_middle_and_both_ends() {
        let shown = |values: &[f64]| Spread::of(values.to_vec()).map(|s| s.to_string());
        assert_eq!(shown(&[3.0, 1.0, 2.0]).unwrap(), "2.00 (1.00 to 3.00)");
        assert_eq!(shown(&[4.0, 1.0]).unwrap(), "2.50 (1.00 to 4.00)");
        assert_eq!(shown(&[]), None);
    }
}
