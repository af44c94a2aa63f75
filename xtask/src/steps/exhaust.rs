//! Step `exhaust`: every order of small conversations between two real endpoints, and the alphabet.

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;

/// Runs the searches, which print how many states they visited and what faults they found; and
/// sequences of operations, which must find faults, too.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    ctx.cargo([
        "test",
        "--locked",
        "--release",
        "--package",
        "xio-tests",
        "--features",
        "mutants",
        "--test",
        "exhaust",
        "--test",
        "alphabet",
        "--",
        "--nocapture",
    ])
    // They panic on purpose, a thousand times.
    .env("RUST_BACKTRACE", "0")
    .run()?;
    Ok(Outcome::passed())
}
