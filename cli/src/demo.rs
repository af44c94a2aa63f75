//! `xio demo`: a server and a client, from the first handshake to the last word.

mod peer;
mod plan;
mod real;
mod tally;
mod timeline;
mod world;

use std::fmt::Write as _;

use anyhow::Result;
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use crate::args::{DemoArgs, Over};
use crate::output::{Count, Nanos, Output};
use plan::Plan;
use tally::Figures;

/// Messages out at once, at most.
const DEPTH: u32 = 16;

/// Bytes of user memory that all messages of one side may take at once.
const MEMORY: u32 = 32 << 20;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Summary {
    driver: &'static str,
    requests: u64,
    responses: u64,
    one_ways: u64,
    receipts: u64,
    lost: u64,
    duplicated: u64,
    bytes: u64,
    p50_ns: u64,
    p99_ns: u64,
}

/// Runs the demo and returns whether every message arrived once and as it was sent.
///
/// # Errors
/// When it cannot be set up, or its result not printed.
pub(crate) fn run(args: &DemoArgs, out: &Output) -> Result<bool> {
    match args.over {
        Over::Sim => world::Demo::new(args, out)?.run(),
        Over::Tcp => real::over_sockets(args, out),
        Over::Rdma => real::over_verbs(args, out),
    }
}

/// What a demo did, for people.
fn traffic(plan: &Plan, figures: &Figures, took: &str) -> String {
    let mut text = String::from("\ntraffic\n");
    let mut row = |title: &str, what: String| {
        let _ = writeln!(text, "  {title:<12}{what}");
    };
    let sent = |count: u32, what, got: u64| {
        format!(
            "{} sent, {} {what}",
            HumanCount(count.into()),
            HumanCount(got)
        )
    };
    row(
        "requests",
        sent(plan.requests, "answered", figures.responses),
    );
    row(
        "one-ways",
        sent(plan.one_ways, "receipts", figures.receipts),
    );
    row(
        "data",
        format!("{}, each byte compared", HumanBytes(figures.bytes)),
    );
    let at = |quantile| Nanos(figures.latencies.value_at_quantile(quantile));
    row(
        "latency",
        format!(
            "p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            Nanos(figures.latencies.max())
        ),
    );
    row("took", took.to_owned());
    text
}

/// Says what was lost, and what else is wrong.
fn verdict(
    driver: &'static str,
    plan: &Plan,
    figures: &Figures,
    violations: usize,
    out: &Output,
) -> Result<bool> {
    let summary = Summary {
        driver,
        requests: plan.requests.into(),
        responses: figures.responses,
        one_ways: plan.one_ways.into(),
        receipts: figures.receipts,
        lost: figures.lost,
        duplicated: figures.duplicated,
        bytes: figures.bytes,
        p50_ns: figures.latencies.value_at_quantile(0.5),
        p99_ns: figures.latencies.value_at_quantile(0.99),
    };
    let (lost, duplicated) = (summary.lost, summary.duplicated);
    let is_clean = lost == 0 && duplicated == 0 && violations == 0;
    let verdict = match (is_clean, figures.damaged) {
        (true, _) => "every message arrived exactly once, as it was sent".to_owned(),
        (false, 0) => Count(violations as u64, "violation").to_string(),
        (false, damaged) => format!("{damaged} of them arrived damaged"),
    };
    let line = format!("\n{lost} lost, {duplicated} duplicated: {verdict}\n");
    out.text(line)?;
    out.object(&summary)?;
    Ok(is_clean)
}
