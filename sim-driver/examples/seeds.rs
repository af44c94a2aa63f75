//! Runs seeds and says what came of them:
//! `cargo run --release --example seeds -- FIRST COUNT none|some|all [LINES]`.

use std::time::Instant;

use xio_proto::MARKS;
use xio_sim::check::Outcome;
use xio_sim::scenario::{Options, run};
use xio_sim::{FaultLevel, MarkTrace, Site};

#[allow(clippy::disallowed_methods, reason = "says how fast it was")]
fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default| {
        args.next()
            .and_then(|arg| arg.parse().ok())
            .unwrap_or(default)
    };
    let (first, count) = (number(0), number(10));
    let faults = match std::env::args().nth(3).as_deref() {
        Some("none") => FaultLevel::None,
        Some("some") => FaultLevel::Some,
        _ => FaultLevel::All,
    };
    let keep = std::env::args()
        .nth(4)
        .and_then(|arg| arg.parse().ok())
        .unwrap_or(0);
    let start = Instant::now();
    let (mut events, mut messages, mut bad) = (0, 0, 0_u64);
    let mut marks = MarkTrace::new();
    let mut fired = vec![0; Site::ALL.len()];
    let mut outcomes = [0; Outcome::ALL.len()];
    for seed in first..first + count {
        let options = Options {
            faults,
            keep,
            print: std::env::args().nth(6).is_some(),
            check_every: std::env::args()
                .nth(5)
                .and_then(|arg| arg.parse().ok())
                .unwrap_or(64),
            ..Options::new(seed)
        };
        let Ok(report) = std::panic::catch_unwind(|| run(&options)) else {
            bad += 1;
            println!("seed {seed}: panicked");
            continue;
        };
        events += report.events;
        marks.merge(&report.marks);
        fired
            .iter_mut()
            .zip(&report.faults)
            .for_each(|(sum, more)| *sum += more);
        outcomes
            .iter_mut()
            .zip(report.outcomes)
            .for_each(|(sum, more)| *sum += more);
        messages += report.messages;
        if report.breaches.is_empty() {
            continue;
        }
        bad += 1;
        for line in &report.last {
            println!("{line}");
        }
        println!(
            "seed {seed}: {} events, {} messages, {} breaches, faults {}",
            report.events,
            report.messages,
            report.breaches.len(),
            report.swarm
        );
        for breach in report.breaches.iter().take(6) {
            println!("  {breach}");
        }
    }
    let hit = |mark: &&&str| !marks.marks().iter().any(|(name, _)| name == *mark);
    let missed: Vec<_> = MARKS.iter().filter(hit).collect();
    println!("marks missed: {missed:?}");
    println!("rows missed: {}", marks.rows_missed().join(", "));
    let counts = Site::ALL
        .iter()
        .zip(&fired)
        .map(|(site, count)| format!("{} {count}", site.name()));
    println!("faults: {}", counts.collect::<Vec<_>>().join(", "));
    let seen = Outcome::ALL
        .iter()
        .zip(outcomes)
        .map(|(o, count)| format!("{} {count}", o.name()));
    println!("outcomes: {}", seen.collect::<Vec<_>>().join(", "));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{count} seeds, {bad} bad, {events} events, {messages} messages, {:.0} events/s",
        events as f64 / seconds
    );
}
