//! Step `mutants`: cores with one deliberate fault each, to be found by the simulator.

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;

/// Runs the suite that breaks the core on purpose; it names seed and checker for each fault.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    ctx.cargo([
        "test",
        "--locked",
        "--release",
        "--package",
        "xio-sim",
        "--features",
        "mutants",
        "--test",
        "mutants",
        "--",
        "--nocapture",
    ])
    // They panic on purpose, a thousand times.
    .env("RUST_BACKTRACE", "0")
    .run()?;
    Ok(Outcome::passed())
}
