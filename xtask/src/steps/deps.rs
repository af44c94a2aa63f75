//! Step `deps`: the core depends on three small crates, and dependencies point down only.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use super::Outcome;
use crate::ctx::Ctx;

const CORE: &str = "xio-proto";

/// What drivers record with.
const RECORD: &str = "xio-record";

/// All that may be linked into a program because of the core.
const CORE_LINKS: &[&str] = &["arrayvec", "bitflags", "zerocopy"];

/// What the compiler runs to build the core: zerocopy's derive macros and theirs.
const CORE_MACROS: &[&str] = &[
    "proc-macro2",
    "quote",
    "syn",
    "unicode-ident",
    "zerocopy-derive",
];

/// The packages of the workspace that a package may use in its library or program. One that is
/// not listed stands above all of these and may use any.
const LAYERS: &[(&str, &[&str])] = &[
    (CORE, &[]),
    (RECORD, &[CORE]),
    ("xio-sim", &[CORE, RECORD]),
    ("xio-tcp", &[CORE, RECORD]),
    ("xio-verbs", &[CORE, RECORD]),
    ("xio-decode", &[CORE]),
    ("xtask", &[]),
];

/// Compares the core's dependency tree with what it may have, and the workspace with its layers.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    let linked = tree(ctx, "normal,no-proc-macro")?;
    expect_same("linked with the core", &linked, CORE_LINKS.iter().copied())?;
    let all = tree(ctx, "normal,build")?;
    let allowed = CORE_LINKS.iter().chain(CORE_MACROS).copied();
    expect_same("needed to build the core", &all, allowed)?;
    for (name, allowed) in LAYERS {
        let Some(package) = ctx.package(name) else {
            continue;
        };
        for dep in &package.normal_deps {
            if !allowed.contains(&dep.as_str()) {
                bail!("{name} depends on {dep}, but may only on {allowed:?}");
            }
        }
    }
    Ok(Outcome::Passed(format!(
        "the core links {}",
        CORE_LINKS.join(", ")
    )))
}

/// Names of the core's dependencies, of all platforms and with all features.
fn tree(ctx: &Ctx, edges: &str) -> Result<BTreeSet<String>> {
    let text = ctx
        .cargo([
            "tree",
            "--locked",
            "--package",
            CORE,
            "--all-features",
            "--target",
            "all",
        ])
        .args(["--prefix", "none", "--format", "{p}", "--edges", edges])
        .output()?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != CORE)
        .map(str::to_owned)
        .collect())
}

fn expect_same<'a>(
    what: &str,
    found: &BTreeSet<String>,
    allowed: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let allowed: BTreeSet<String> = allowed.map(str::to_owned).collect();
    if *found != allowed {
        bail!("{what}: {found:?}, but it must be exactly {allowed:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_too_many_and_too_few_are_refused() {
        let found: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
        assert!(expect_same("x", &found, ["a", "b"].into_iter()).is_ok());
        assert!(expect_same("x", &found, ["a"].into_iter()).is_err());
        assert!(expect_same("x", &found, ["a", "b", "c"].into_iter()).is_err());
    }
}
