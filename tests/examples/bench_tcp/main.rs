//! xio over sockets against plain sockets, alternating in one run: `cargo xtask bench tcp`, or
//! `bench_tcp PAIRS [PART OF A CONTEST'S NAME]`.
//!
//! The plain twins are written with the same care: non-blocking, one event queue per side, one
//! read and one write per message, no copy, `TCP_NODELAY`. Both sides of everything are threads of
//! this process. Ratios are printed, since times alone depend on the machine and on what else it
//! does.

mod plain;
mod xio;

use std::time::{Duration, Instant};

use xio_tests::peers::{Peers, Plan};

/// Bytes of a small message's data.
const SMALL: usize = 64;
/// Bytes of a large one's.
const LARGE: usize = 1 << 20;

/// What is measured: a name, what is wanted of the median, and one sample of each contestant.
struct Contest {
    name: &'static str,
    wanted: Wanted,
    /// xio's figure.
    ours: fn(&Effort) -> f64,
    /// The plain twin's.
    theirs: fn(&Effort) -> f64,
    unit: &'static str,
}

enum Wanted {
    AtMost(f64),
    AtLeast(f64),
}

/// How much a sample does.
struct Effort {
    round_trips: usize,
    messages: usize,
    large: usize,
    shared: usize,
}

const CONTESTS: &[Contest] = &[
    Contest {
        name: "p50 round trip, 64 B, one socket",
        wanted: Wanted::AtMost(1.25),
        ours: |effort| xio::round_trip(false, effort.round_trips),
        theirs: |effort| plain::round_trip(1, effort.round_trips),
        unit: "us",
    },
    Contest {
        name: "p50 round trip, 64 B, two sockets",
        wanted: Wanted::AtMost(1.25),
        ours: |effort| xio::round_trip(true, effort.round_trips),
        theirs: |effort| plain::round_trip(2, effort.round_trips),
        unit: "us",
    },
    Contest {
        name: "messages a second, 64 B, depth 64 against plain depth 1",
        wanted: Wanted::AtLeast(5.0),
        ours: |effort| xio::rate(64, effort.messages),
        theirs: |effort| plain::rate(effort.round_trips),
        unit: "k/s",
    },
    Contest {
        name: "bandwidth, 1 MiB",
        wanted: Wanted::AtLeast(0.9),
        ours: |effort| xio::bandwidth(effort.large),
        theirs: |effort| plain::bandwidth(effort.large),
        unit: "MiB/s",
    },
    Contest {
        name: "requests a second of 63 peers, beside one that reads nothing",
        wanted: Wanted::AtLeast(0.9),
        ours: |effort| rate_beside(1, 1024, effort.shared),
        theirs: |effort| rate_beside(0, 1024, effort.shared),
        unit: "k/s",
    },
    Contest {
        name: "the same with 8,192 receive slots to 1,024 send slots: one reads nothing",
        wanted: Wanted::AtLeast(0.9),
        ours: |effort| rate_beside(1, 8192, effort.shared),
        theirs: |effort| rate_beside(0, 8192, effort.shared),
        unit: "k/s",
    },
    Contest {
        name: "the same, eight others: each reads nothing",
        wanted: Wanted::AtLeast(0.5),
        ours: |effort| rate_beside(8, 8192, effort.shared),
        theirs: |effort| rate_beside(0, 8192, effort.shared),
        unit: "k/s",
    },
];

/// The one place where the benchmark's clock comes from.
#[expect(clippy::disallowed_methods, reason = "time is what is measured here")]
fn now() -> Instant {
    Instant::now()
}

/// Thousands of requests a second that 63 peers get answered, beside some that ask on and on and read
/// no answer.
fn rate_beside(mutes: usize, rx_slots: u32, count: usize) -> f64 {
    let mut peers = Peers::start(Plan {
        rx_slots,
        tx_slots: 1024,
        readers: 63,
        window: 4,
        mutes,
    });
    peers.run(count / 10);
    let begun = now();
    peers.run(count);
    let seconds = begun.elapsed().as_secs_f64();
    peers.stop();
    count as f64 / seconds / 1e3
}

/// The middle one of some figures.
fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Microseconds of the middle one of these round trips.
fn p50(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    let pairs: usize = std::env::args().nth(1).map_or(12, |text| {
        text.parse().expect("the number of pairs is a number")
    });
    let only = std::env::args().nth(2).unwrap_or_default();
    let effort = Effort {
        round_trips: 5_000,
        messages: 100_000,
        large: 400,
        shared: 60_000,
    };
    let mut is_well = true;
    for contest in CONTESTS.iter().filter(|c| c.name.contains(&only)) {
        // Once without counting: caches, page tables, the scheduler.
        (contest.ours)(&effort);
        (contest.theirs)(&effort);
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..pairs {
            // Who begins changes from pair to pair.
            let (a, b) = if pair % 2 == 0 {
                let a = (contest.ours)(&effort);
                (a, (contest.theirs)(&effort))
            } else {
                let b = (contest.theirs)(&effort);
                ((contest.ours)(&effort), b)
            };
            ours.push(a);
            theirs.push(b);
            ratios.push(a / b);
        }
        let middle = median(&mut ratios);
        let (is_good, wanted) = match contest.wanted {
            Wanted::AtMost(most) => (middle <= most, format!("at most {most}")),
            Wanted::AtLeast(least) => (middle >= least, format!("at least {least}")),
        };
        is_well &= is_good;
        println!(
            "{}: {:.1} against {:.1} {unit}, ratio {middle:.3} ({:.3} to {:.3} in {pairs} pairs), \
             wanted {wanted}: {}",
            contest.name,
            median(&mut ours),
            median(&mut theirs),
            ratios[0],
            ratios[pairs - 1],
            if is_good { "reached" } else { "MISSED" },
            unit = contest.unit,
        );
    }
    std::process::exit(i32::from(!is_well));
}
