//! Step `test`: all tests.

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;

/// Runs them with cargo-nextest, or with cargo's own runner where that is not installed.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    ctx.cargo(["test", "--locked", "--no-fail-fast", "--doc"])
        .run()?;
    let has_nextest = ctx.cmd("cargo-nextest", ["--version"]).succeeds();
    let (mut cmd, runner) = if has_nextest {
        (
            ctx.cargo(["nextest", "run", "--locked", "--no-fail-fast"]),
            "cargo-nextest",
        )
    } else {
        (
            ctx.cargo(["test", "--locked", "--no-fail-fast", "--all-targets"]),
            "cargo test",
        )
    };
    for package in ctx.checked_packages() {
        cmd = cmd.args(["--package", &package.name]);
    }
    // Both print the tests that failed, and why, behind this.
    let from = if has_nextest {
        " Summary ["
    } else {
        "failures:"
    };
    cmd.run_telling(from)?;
    Ok(Outcome::Passed(format!("with {runner}")))
}
