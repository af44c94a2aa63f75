//! Hostile peers at a server on real sockets, honest clients beside them: `cargo xtask hostile`, or
//! `hostile FRAMES SEED`.

use xio_tests::siege::{Plan, run};

fn main() {
    let number = |at, default| {
        let text = std::env::args().nth(at);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (frames, seed) = (number(1, 10_000_000), number(2, 1));
    let alone = 100_000;
    let outcome = run(&Plan {
        frames,
        seed,
        alone,
    });
    let mib = outcome
        .resident
        .map(|bytes| bytes as f64 / (1 << 20) as f64);
    println!(
        "{} frames taken in {:.1} s, of {} said in {} lives; {} messages, {} violations, {} strays",
        outcome.taken,
        outcome.elapsed.as_secs_f64(),
        outcome.said.frames,
        outcome.said.lives,
        outcome.messages,
        outcome.violations,
        outcome.strays,
    );
    println!(
        "memory: {:.1} MiB after a tenth, {:.1} at most since, {:.1} in the end",
        mib[0], mib[1], mib[2]
    );
    println!(
        "honest: {} verified round trips, {:.0} a second, {:.1} ms at most; {:.0} before, {:.0} after",
        outcome.honest,
        outcome.rate,
        outcome.longest.as_secs_f64() * 1e3,
        outcome.rate_alone[0],
        outcome.rate_alone[1],
    );
    let grown = outcome.resident[1].saturating_sub(outcome.resident[0]);
    assert!(grown <= 16 << 20, "the process grew by {grown} bytes");
}
