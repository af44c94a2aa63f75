//! Step `sim`: the simulator with all faults on, run twice.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::Outcome;
use crate::ctx::Ctx;

/// Runs the seeds twice; the traces must be the same, no rule may be broken, and every coverage
/// mark must have been passed.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    ctx.cargo([
        "build",
        "--locked",
        "--release",
        "--package",
        "xio-cli",
        "--bin",
        "xio",
    ])
    .run()?;
    let xio = ctx.target_dir.join("release/xio");
    let help = ctx.cmd(&xio, ["sim", "--help"]).finish()?;
    let is_there = help.status.success() && contains(&help.stdout, b"--seeds");
    if !is_there {
        return Ok(Outcome::Skipped("`xio sim --help` does not answer".into()));
    }
    let seeds = ctx.seeds.to_string();
    let args = ["sim", "--seeds", &seeds, "--faults", "all", "--json"];
    let mut hashes = Vec::new();
    for _ in 0..2 {
        println!("$ xio {}", args.join(" "));
        let output = ctx.cmd(&xio, args).finish()?;
        print!("{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{}", text.trim_end());
        ensure!(
            output.status.success(),
            "the simulator ended with {}",
            output.status
        );
        hashes.push(check(&text)?);
    }
    ensure!(
        hashes[0] == hashes[1],
        "not deterministic: trace_hash {} and {}",
        hashes[0],
        hashes[1]
    );
    Ok(Outcome::Passed(format!(
        "{seeds} seeds, trace_hash {} twice",
        hashes[0]
    )))
}

/// Checks one run's summary and returns its trace hash as it is written there.
fn check(text: &str) -> Result<String> {
    let summary: Value = serde_json::from_str(text).context("the simulator prints one object")?;
    let field = |name| {
        summary
            .get(name)
            .with_context(|| format!("no `{name}` in the summary"))
    };
    let violations = field("violations")?;
    if violations.as_u64() != Some(0) {
        bail!("violations: {violations}, expected 0");
    }
    let missed = field("marks_missed")?;
    if missed.as_array().is_none_or(|marks| !marks.is_empty()) {
        bail!("marks_missed: {missed}, expected []");
    }
    Ok(field("trace_hash")?.to_string())
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_summary_gives_its_hash() {
        let text = r#"{"trace_hash": "a1", "violations": 0, "marks_missed": [], "seeds": 5}"#;
        assert_eq!(check(text).unwrap(), r#""a1""#);
    }

    #[test]
    fn broken_rules_missed_marks_and_missing_fields_are_refused() {
        for text in [
            r#"{"trace_hash": 1, "violations": 1, "marks_missed": []}"#,
            r#"{"trace_hash": 1, "violations": 0, "marks_missed": ["x"]}"#,
            r#"{"trace_hash": 1, "violations": 0}"#,
            r#"{"violations": 0, "marks_missed": []}"#,
            "",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
