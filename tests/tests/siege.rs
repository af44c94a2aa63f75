//! Hostile peers on real sockets, beside honest ones: a fixed part of `cargo xtask hostile`.

use xio_tests::siege::{Plan, run};

/// Bytes that the process may grow by while the crowd is there, once all is in use.
const GROWTH: u64 = 16 << 20;

#[test]
fn a_crowd_of_hostile_peers_costs_honest_ones_no_answer_and_the_server_no_memory() {
    let plan = Plan {
        frames: 100_000,
        seed: 7,
        alone: 2000,
    };
    let outcome = run(&plan);
    println!("{outcome:?}");
    assert!(outcome.taken >= plan.frames);
    // A crowd whose frames are all refused at once, or all taken, would prove nothing.
    assert!(outcome.messages > plan.frames / 4, "{outcome:?}");
    assert!(outcome.violations > 1000, "{outcome:?}");
    assert!(outcome.strays > 0 && outcome.said.lives > 1000);
    // That each answer was right and came in time, the clients themselves have seen.
    assert!(outcome.honest > 0, "{outcome:?}");
    let [settled, most, _] = outcome.resident;
    assert!(most <= settled + GROWTH, "{outcome:?}");
}
