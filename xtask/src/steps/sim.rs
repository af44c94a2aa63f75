//! Step `sim`: the simulator with all faults on, run twice.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::Outcome;
use crate::ctx::Ctx;

/// What a run's summary says, when no rule was broken.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    /// As it is written there.
    hash: String,
    /// Rare paths and rows of the tables of states that no seed took.
    missed: Vec<String>,
    /// Those of `RARE` that no seed took.
    rare: Vec<String>,
}

/// Rows that can be taken, and so seldom are that the seeds of a run may come to none: how often.
const RARE: &[(&str, &str)] = &[
    (
        "connection: Parting + Abort",
        "given up by its user in the short time before it is made anew; once in some 10,000 seeds",
    ),
    (
        "nexus: Priming + Unused",
        "given up in the instant in which the first receive is posted; once in some 5,000 seeds",
    ),
    (
        "connection: Crossed + Lost",
        "four races lost one after the other, or no row for the next call; not seen in 10,000 seeds",
    ),
    (
        "connection: Crossed + Abort",
        "given up by its user in the short time before the winner comes; not seen in 10,000 seeds",
    ),
    ("connection: Crossed + Close", "as that"),
    (
        "task: Parked + Expire",
        "due while the device flushes what was lost, and to be sent again; as seldom",
    ),
    (
        "task: Parked + Cancel",
        "given up while the device flushes what was lost, and to be sent again; as seldom",
    ),
];

/// Events and messages that every seed must have.
const LEAST: [(&str, u64); 2] = [("events_min", 5_000), ("messages_min", 300)];

/// Runs the seeds twice, the second time with a model of its user beside each endpoint; the traces
/// must be the same, no rule may be broken, and every coverage mark must have been passed.
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
    let seeds = ctx.seeds.to_string();
    let args = ["sim", "--seeds", &seeds, "--faults", "all", "--json"];
    let mut summaries = Vec::new();
    for more in [&[][..], &["--watch"]] {
        println!("$ xio {} {}", args.join(" "), more.join(" "));
        let output = ctx.cmd(&xio, args).args(more).finish()?;
        print!("{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{}", text.trim_end());
        ensure!(
            output.status.success(),
            "the simulator ended with {}",
            output.status
        );
        summaries.push(check(&text)?);
    }
    let (first, second) = (&summaries[0], &summaries[1]);
    for (row, why) in RARE {
        if first.rare.iter().any(|rare| rare == row) {
            println!("not taken, and rare: {row} ({why})");
        }
    }
    ensure!(
        first == second,
        "not deterministic: {first:?} and {second:?}"
    );
    // Not an error: under --strict it counts as one, unless the step is listed as pending.
    if !first.missed.is_empty() {
        let missed = first.missed.join(", ");
        return Ok(Outcome::Skipped(format!(
            "{seeds} seeds are well, but no seed came to: {missed}"
        )));
    }
    let (hash, rare) = (&first.hash, first.rare.len());
    Ok(Outcome::Passed(format!(
        "{seeds} seeds, trace_hash {hash} twice, {rare} rare rows not taken"
    )))
}

/// Reads one run's summary.
fn check(text: &str) -> Result<Summary> {
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
    for (name, least) in LEAST {
        let found = field(name)?;
        if found.as_u64().is_none_or(|found| found < least) {
            bail!("{name}: {found}, expected at least {least}");
        }
    }
    let names = |name| -> Result<Vec<String>> {
        let list = field(name)?;
        let texts = list.as_array().map(|list| {
            let text = |one: &Value| one.as_str().map(str::to_owned);
            list.iter().map(text).collect::<Option<Vec<String>>>()
        });
        match texts {
            Some(Some(texts)) => Ok(texts),
            _ => bail!("{name}: {list}, expected names"),
        }
    };
    let unexpected = names("rows_unexpected")?;
    if !unexpected.is_empty() {
        bail!("taken, and declared unreachable: {}", unexpected.join(", "));
    }
    let mut missed = names("marks_missed")?;
    let is_rare = |name: &String| RARE.iter().any(|(row, _)| row == name);
    let (rare, rows) = names("rows_missed")?.into_iter().partition(is_rare);
    let rows: Vec<String> = rows;
    missed.extend(rows);
    Ok(Summary {
        hash: field("trace_hash")?.to_string(),
        missed,
        rare,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_summary_is_understood() {
        let text = r#"{"trace_hash": "a1", "violations": 0, "marks_missed": ["x"], "seeds": 5,
            "events_min": 5000, "messages_min": 301, "rows_missed": ["y", "task: Parked + Expire"],
            "rows_unexpected": []}"#;
        let summary = check(text).unwrap();
        assert_eq!(summary.hash, r#""a1""#);
        assert_eq!(summary.missed, ["x", "y"]);
        assert_eq!(summary.rare, ["task: Parked + Expire"]);
        for (good, bad) in [
            (r#""events_min": 5000"#, r#""events_min": 4999"#),
            (r#""messages_min": 301"#, r#""messages_min": 299"#),
            (r#""rows_unexpected": []"#, r#""rows_unexpected": ["z"]"#),
            (r#""rows_missed": ["y", "#, r#""rows_missed": [1, "#),
        ] {
            assert!(text.contains(good));
            assert!(check(&text.replace(good, bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn broken_rules_and_missing_fields_are_refused() {
        for text in [
            r#"{"trace_hash": 1, "violations": 1, "marks_missed": []}"#,
            r#"{"trace_hash": 1, "violations": 0, "marks_missed": [1]}"#,
            r#"{"trace_hash": 1, "violations": 0}"#,
            r#"{"violations": 0, "marks_missed": []}"#,
            "",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
