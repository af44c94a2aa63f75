//! Step `fuzz-corpora`: the committed inputs of every fuzz target.

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;

/// Feeds them to the targets' functions, with overflow checks and debug assertions.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    ctx.cargo([
        "run",
        "--locked",
        "--quiet",
        "--package",
        "xio-fuzz",
        "--bin",
        "replay",
    ])
    .run()?;
    Ok(Outcome::passed())
}
