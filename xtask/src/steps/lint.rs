//! Steps `fmt`, `clippy` and `doc`.

use anyhow::Result;

use super::Outcome;
use super::nostd::MANIFEST as GATE;
use crate::ctx::{Ctx, Package};

/// Features that need more than a Rust toolchain and are therefore left out here.
const HEAVY_FEATURES: &[(&str, &str)] = &[
    // libFuzzer's C++; `cargo xtask fuzz` builds it. Without it the targets still compile.
    ("xio-fuzz", "link"),
    // The bindings of verbs; the step `verbs` lints and tests with them.
    ("xio-cli", "rdma"),
    ("xio-cli", "rdma-dlopen"),
];

/// Checks the formatting of the workspace and of the gate beside it.
pub(super) fn fmt(ctx: &Ctx) -> Result<Outcome> {
    ctx.cargo(["fmt", "--all", "--check"]).run()?;
    ctx.cargo(["fmt", "--check", "--manifest-path", GATE])
        .run()?;
    Ok(Outcome::passed())
}

/// Lints every package alone, so that no package's features leak into another's check: without
/// features, with its default ones where it has such, and with all.
pub(super) fn clippy(ctx: &Ctx) -> Result<Outcome> {
    let packages: Vec<&Package> = ctx.checked_packages().collect();
    for package in &packages {
        ctx.cargo([
            "clippy",
            "--locked",
            "--all-targets",
            "--package",
            &package.name,
        ])
        .args(["--no-default-features", "--", "-D", "warnings"])
        .run()?;
        let features = light_features(package);
        if !features.is_empty() {
            ctx.cargo([
                "clippy",
                "--locked",
                "--all-targets",
                "--package",
                &package.name,
            ])
            .args(["--features", &features, "--", "-D", "warnings"])
            .run()?;
        }
    }
    // Its panic handler and a test harness exclude each other: no --all-targets here.
    ctx.cargo([
        "clippy",
        "--locked",
        "--manifest-path",
        GATE,
        "--target-dir",
    ])
    .arg(ctx.target_dir.join("nostd-gate"))
    .args(["--", "-D", "warnings"])
    .run()?;
    Ok(Outcome::Passed(format!(
        "{} packages and the no_std gate",
        packages.len()
    )))
}

/// Builds the documentation of all packages.
pub(super) fn doc(ctx: &Ctx) -> Result<Outcome> {
    let mut cmd = ctx
        .cargo(["doc", "--locked", "--no-deps"])
        .env("RUSTDOCFLAGS", "-Dwarnings");
    for package in ctx.checked_packages() {
        cmd = cmd.args(["--package", &package.name]);
    }
    cmd.run()?;
    Ok(Outcome::passed())
}

fn light_features(package: &Package) -> String {
    let is_light =
        |feature: &&String| !HEAVY_FEATURES.contains(&(package.name.as_str(), feature.as_str()));
    let features: Vec<&str> = package
        .features
        .iter()
        .filter(is_light)
        .map(String::as_str)
        .collect();
    features.join(",")
}
