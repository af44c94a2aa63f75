//! Deliberately broken cores: each must be found by a checker within 200 seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use xio_proto::Mutant;
use xio_sim::FaultLevel;
use xio_sim::scenario::{Options, run};

/// Seeds that a fault may take to be found.
const SEEDS: u64 = 200;

/// Seed and checker that find a fault; a failed assertion of the core itself is one, too.
fn found(mutant: Mutant) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| {
        // Without faults of the world even a loss is a finding.
        let faults = match seed % 3 {
            0 => FaultLevel::None,
            1 => FaultLevel::All,
            _ => FaultLevel::Some,
        };
        let options = Options {
            mutant: Some(mutant),
            faults,
            ..Options::new(seed)
        };
        match catch_unwind(AssertUnwindSafe(|| run(&options))) {
            Ok(report) => {
                let breach = report.breaches.first()?;
                Some((seed, format!("{:?}: {}", breach.check, breach.text)))
            }
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .map_or("", |text| text.as_str());
                let line = text.lines().next().unwrap_or("panic").to_owned();
                Some((seed, format!("assertion: {line}")))
            }
        }
    })
}

#[test]
fn every_mutant_is_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        match found(mutant) {
            Some((seed, by)) => println!("{mutant:?}: seed {seed}, {by}"),
            None => missed.push(mutant),
        }
    }
    assert_eq!(missed, [], "not found within {SEEDS} seeds");
}
