//! Step `verbs`: the RDMA driver, which needs more than a Rust toolchain, with both its bindings.

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;
use crate::vm::host;

const PACKAGE: &str = "xio-verbs";

/// Lints with each binding, documents, and runs the unit tests; those need no device.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    if let Err(error) = host::ensure(ctx) {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let cargo = |command: &str| {
        let cmd = ctx.cargo([command, "--locked", "--package", PACKAGE]);
        ctx.verbs_env(cmd)
    };
    for features in ["link", "dlopen"] {
        cargo("clippy")
            .args(["--no-deps", "--all-targets", "--no-default-features"])
            .args(["--features", features])
            .args(["--", "-D", "warnings"])
            .run()?;
    }
    cargo("doc")
        .arg("--no-deps")
        .env("RUSTDOCFLAGS", "-Dwarnings")
        .run()?;
    cargo("test").run()?;
    Ok(Outcome::passed())
}
