//! Step `verbs`: the RDMA driver, which needs more than a Rust toolchain, and the command with it,
//! with both bindings.

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;
use crate::vm::host;

const PACKAGE: &str = "xio-verbs";
/// The command, and its features that are the bindings.
const COMMAND: (&str, [&str; 2]) = ("xio-cli", ["rdma", "rdma-dlopen"]);

/// Lints with each binding, documents, and runs the unit tests; those need no device.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    if let Err(error) = host::ensure(ctx) {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let of = |package: &str, command: &str| {
        let cmd = ctx.cargo([command, "--locked", "--package", package]);
        ctx.verbs_env(cmd)
    };
    let cargo = |command: &str| of(PACKAGE, command);
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
    let (command, features) = COMMAND;
    for feature in features {
        of(command, "clippy")
            .args(["--no-deps", "--all-targets", "--features", feature])
            .args(["--", "-D", "warnings"])
            .run()?;
        // What it says where there is no device; the rest is in the machine.
        of(command, "test")
            .args(["--features", feature, "--test", "cli", "--", "devices"])
            .run()?;
    }
    Ok(Outcome::passed())
}
