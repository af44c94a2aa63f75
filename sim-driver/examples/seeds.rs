//! Runs seeds and says what came of them:
//! `cargo run --release --example seeds -- FIRST COUNT none|some|all [LINES]`.

use std::time::Instant;

use xio_sim::FaultLevel;
use xio_sim::scenario::{Options, run};

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
    for seed in first..first + count {
        let options = Options {
            faults,
            keep,
            ..Options::new(seed)
        };
        let Ok(report) = std::panic::catch_unwind(|| run(&options)) else {
            bad += 1;
            println!("seed {seed}: panicked");
            continue;
        };
        events += report.events;
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
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{count} seeds, {bad} bad, {events} events, {messages} messages, {:.0} events/s",
        events as f64 / seconds
    );
}
