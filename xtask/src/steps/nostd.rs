//! Step `no-std`: the core, linked into a program that has no std, no allocator and its own panic
//! handler, and run there.

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;

/// The gate's manifest; it is no member of the workspace, whose packages have std.
pub(super) const MANIFEST: &str = "proto-core/nostd-gate/Cargo.toml";

const MAIN: &str = "proto-core/nostd-gate/main.c";

/// Builds and runs the gate with checks (overflow, assertions) and as it would be shipped.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    let target_dir = ctx.target_dir.join("nostd-gate");
    for (profile, folder) in [("dev", "debug"), ("release", "release")] {
        ctx.cargo([
            "build",
            "--locked",
            "--manifest-path",
            MANIFEST,
            "--profile",
            profile,
        ])
        .arg("--target-dir")
        .arg(&target_dir)
        .run()?;
        let folder = target_dir.join(folder);
        let program = folder.join("gate");
        ctx.cmd("cc", ["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(&program)
            .arg(MAIN)
            .arg(folder.join("libxio_nostd_gate.a"))
            .run()?;
        ctx.cmd(&program, []).run()?;
    }
    Ok(Outcome::passed())
}
