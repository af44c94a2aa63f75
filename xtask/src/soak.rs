//! `cargo xtask soak`: the searches that never end, in turn, for as long as wanted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::ctx::Ctx;
use crate::fuzz::Fuzzer;

/// Targets that are fuzzed.
const TARGETS: [&str; 3] = ["ops", "hostile_peer", "sim_schedule"];

/// How much may go wrong in simulated worlds, and how many seeds of it are in a round.
const LEVELS: [(&str, u64); 3] = [("none", 50), ("some", 100), ("all", 350)];

/// Seeds that the checks run are below; these are fresh.
const FIRST_SEED: u64 = 1 << 32;

/// Arguments of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct SoakArgs {
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,
    /// The first seed [default: one that the time of day decides]
    #[arg(long, value_name = "S")]
    first: Option<u64>,
}

/// What was done so far.
#[derive(Debug, Default)]
struct Totals {
    rounds: u64,
    seeds: u64,
    events: u64,
    messages: u64,
    inputs: [u64; TARGETS.len()],
    /// How to repeat each.
    findings: Vec<String>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "it ends when its time is over, and its seeds are to be fresh"
)]
fn clock() -> (Instant, u64) {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    (Instant::now(), since.unwrap_or_default().as_secs())
}

/// Searches until the time is over and returns 1 if anything was found, else 0.
///
/// # Errors
/// What does not build or does not run.
pub(crate) fn run(ctx: &Ctx, args: &SoakArgs) -> Result<u8> {
    ctx.cargo(["build", "--locked", "--release", "--package", "xio-cli"])
        .run()?;
    let mut fuzzers = Vec::new();
    for target in TARGETS {
        fuzzers.push(Fuzzer::build(ctx, target)?);
    }
    let (began, today) = clock();
    let mut seed = args.first.unwrap_or(FIRST_SEED + today * 1000);
    let length = Duration::from_secs(60 * args.minutes);
    let mut totals = Totals::default();
    while began.elapsed() < length {
        totals.rounds += 1;
        for (level, seeds) in LEVELS {
            simulate(ctx, level, seed, seeds, &mut totals)?;
        }
        seed += LEVELS
            .map(|(_, seeds)| seeds)
            .into_iter()
            .max()
            .unwrap_or(0);
        for (n, fuzzer) in fuzzers.iter().enumerate() {
            let left = length.saturating_sub(began.elapsed()).as_secs();
            let (tried, failed) = fuzzer.soak(TARGETS[n], left.clamp(1, 60))?;
            totals.inputs[n] += tried;
            totals.findings.extend(failed);
        }
        println!("{:>6} s: {totals:?}", began.elapsed().as_secs());
    }
    summary(&totals, began.elapsed());
    Ok(u8::from(!totals.findings.is_empty()))
}

/// Runs seeds of one level of faults.
fn simulate(ctx: &Ctx, level: &str, first: u64, seeds: u64, totals: &mut Totals) -> Result<()> {
    let xio = ctx.target_dir.join("release/xio");
    let (from, count) = (first.to_string(), seeds.to_string());
    let args = [
        "sim", "--first", &from, "--seeds", &count, "--faults", level, "--watch", "--json",
    ];
    let output = ctx.cmd(&xio, args).finish()?;
    let words = String::from_utf8_lossy(&output.stderr);
    let object: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("xio {}: {words}", args.join(" ")))?;
    let number = |name: &str| object[name].as_u64().unwrap_or(0);
    totals.seeds += seeds;
    totals.events += number("events");
    totals.messages += number("messages");
    if !output.status.success() {
        print!("{words}");
        let again = words
            .lines()
            .filter_map(|line| line.trim().strip_prefix("again: "));
        let before = totals.findings.len();
        totals.findings.extend(again.map(str::to_owned));
        if totals.findings.len() == before {
            totals.findings.push(format!("xio {}", args.join(" ")));
        }
    }
    Ok(())
}

fn summary(totals: &Totals, elapsed: Duration) {
    println!("\n{} rounds in {} s", totals.rounds, elapsed.as_secs());
    let Totals {
        seeds,
        events,
        messages,
        ..
    } = totals;
    println!("{seeds} seeds, {events} events, {messages} messages");
    for (target, inputs) in TARGETS.iter().zip(totals.inputs) {
        println!("{inputs} inputs of {target}");
    }
    println!("{} findings", totals.findings.len());
    for again in &totals.findings {
        println!("  again: {again}");
    }
}
