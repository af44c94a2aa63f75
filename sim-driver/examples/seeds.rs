//! Runs seeds and says what came of them:
//! `cargo run --release --example seeds -- FIRST COUNT none|some|all [KEEP] [CHECK_EVERY]
//! [both|rdma|tcp] [print]`.

use std::time::Instant;

use xio_proto::MARKS;
use xio_sim::check::Outcome;
use xio_sim::scenario::{Options, Report, run};
use xio_sim::{Dialects, FaultLevel, MarkTrace, Site};

/// What all seeds have in common.
struct Sums {
    seeds: u64,
    bad: u64,
    events: u64,
    messages: u64,
    marks: MarkTrace,
    fired: Vec<u64>,
    outcomes: [u64; Outcome::ALL.len()],
}

impl Sums {
    fn add(&mut self, report: &Report) {
        self.events += report.events;
        self.messages += report.messages;
        self.bad += u64::from(!report.breaches.is_empty());
        self.marks.merge(&report.marks);
        let fired = self.fired.iter_mut().zip(&report.faults);
        fired.for_each(|(sum, more)| *sum += more);
        let outcomes = self.outcomes.iter_mut().zip(report.outcomes);
        outcomes.for_each(|(sum, more)| *sum += more);
    }

    fn print(&self, seconds: f64) {
        let hit = |mark: &str| self.marks.marks().iter().any(|(name, _)| *name == mark);
        let missed: Vec<_> = MARKS.iter().filter(|mark| !hit(mark)).collect();
        println!("marks missed: {missed:?}");
        println!("rows missed: {}", self.marks.rows_missed().join(", "));
        let fired = Site::ALL.iter().zip(&self.fired);
        let fired: Vec<_> = fired
            .map(|(site, n)| format!("{} {n}", site.name()))
            .collect();
        println!("faults: {}", fired.join(", "));
        let outcomes = Outcome::ALL.iter().zip(self.outcomes);
        let outcomes: Vec<_> = outcomes.map(|(o, n)| format!("{} {n}", o.name())).collect();
        println!("outcomes: {}", outcomes.join(", "));
        println!(
            "{} seeds, {} bad, {} events, {} messages, {:.0} events/s",
            self.seeds,
            self.bad,
            self.events,
            self.messages,
            self.events as f64 / seconds
        );
    }
}

fn show(report: &Report) {
    for line in &report.last {
        println!("{line}");
    }
    println!(
        "seed {}: {} events, {} messages, {} breaches, faults {}",
        report.seed,
        report.events,
        report.messages,
        report.breaches.len(),
        report.swarm
    );
    for breach in report.breaches.iter().take(6) {
        println!("  {breach}");
    }
}

#[allow(clippy::disallowed_methods, reason = "says how fast it was")]
fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| {
        args.get(place)
            .and_then(|arg| arg.parse().ok())
            .unwrap_or(default)
    };
    let (first, count) = (number(0, 0), number(1, 10));
    let faults = match args.get(2).map(String::as_str) {
        Some("none") => FaultLevel::None,
        Some("some") => FaultLevel::Some,
        _ => FaultLevel::All,
    };
    let dialects = match args.get(5).map(String::as_str) {
        Some("rdma") => Dialects::Rdma,
        Some("tcp") => Dialects::Tcp,
        _ => Dialects::Both,
    };
    let start = Instant::now();
    let mut sums = Sums {
        seeds: count,
        bad: 0,
        events: 0,
        messages: 0,
        marks: MarkTrace::new(),
        fired: vec![0; Site::ALL.len()],
        outcomes: [0; Outcome::ALL.len()],
    };
    for seed in first..first + count {
        let options = Options {
            faults,
            keep: number(3, 0) as usize,
            check_every: number(4, 64) as u32,
            dialects,
            print: args.len() > 6,
            ..Options::new(seed)
        };
        match std::panic::catch_unwind(|| run(&options)) {
            Ok(report) => {
                sums.add(&report);
                if !report.breaches.is_empty() {
                    show(&report);
                }
            }
            Err(_) => {
                sums.bad += 1;
                println!("seed {seed}: panicked");
            }
        }
    }
    sums.print(start.elapsed().as_secs_f64());
}
