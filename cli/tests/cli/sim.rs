//! `xio sim`: the same seeds give the same result, and its exit status tells what the result is.

use super::{fields, json, stderr, stdout, xio};

#[test]
fn same_seeds_give_the_same_hash_on_any_number_of_threads() {
    let run = |jobs: &str| {
        let output = xio(&["sim", "--seeds", "12", "--jobs", jobs, "--json"]);
        let mut object = json(&output);
        object["events_per_s"] = 0.into();
        object
    };
    let first = run("1");
    assert_eq!(first, run("1"));
    assert_eq!(first, run("3"));
    let other = json(&xio(&["sim", "--seeds", "11", "--json"]));
    assert_ne!(first["trace_hash"], other["trace_hash"]);
}

#[test]
fn json_has_the_agreed_fields() {
    let output = xio(&["sim", "--seeds", "3", "--faults", "none", "--json"]);
    let object = json(&output);
    let expected = [
        "events",
        "events_min",
        "events_per_s",
        "faults",
        "marks_missed",
        "messages",
        "messages_min",
        "outcomes",
        "rows_missed",
        "rows_unexpected",
        "seeds",
        "trace_hash",
        "violations",
    ];
    assert_eq!(fields(&object), expected);
    assert_eq!(object["seeds"], 3);
    assert!(object["marks_missed"].is_array());
    assert!(object["trace_hash"].is_string());
    let faults = object["faults"].as_object().expect("names and counts");
    assert!(faults.len() > 20 && faults.values().all(|count| *count == 0));
    assert!(object["outcomes"]["answered"].as_u64() > Some(100));
    assert_eq!(
        output.status.success(),
        object["violations"] == 0,
        "{}",
        stderr(&output)
    );
}

#[test]
fn exit_status_follows_the_checkers() {
    let mut clean = 0;
    for seed in 0..20 {
        let seed = seed.to_string();
        let output = xio(&["sim", "--seed", &seed, "--json"]);
        let violations = json(&output)["violations"].as_u64().expect("a number");
        let code = i32::from(violations > 0);
        assert_eq!(output.status.code(), Some(code), "seed {seed}");
        let again = format!(" sim --seed {seed} --faults all --trace");
        assert_eq!(stderr(&output).contains(&again), violations > 0);
        clean += u32::from(violations == 0);
    }
    assert!(clean > 0, "no seed is clean");
}

#[test]
fn trace_has_one_line_for_each_event_and_changes_nothing() {
    let plain = xio(&["sim", "--seed", "1", "--faults", "none", "--json"]);
    let traced = xio(&[
        "sim", "--seed", "1", "--faults", "none", "--json", "--trace",
    ]);
    assert_eq!(
        json(&plain)["trace_hash"],
        json(&traced)["trace_hash"],
        "looking must not matter"
    );
    let lines = stderr(&traced);
    let transitions = lines.lines().filter(|line| line.contains(" transition "));
    assert!(transitions.count() > 500);
    let shown = xio(&["sim", "--seed", "1", "--faults", "none", "--trace"]);
    assert!(stdout(&shown).contains(" listening port="));
}

#[test]
fn longer_and_larger_worlds_are_what_was_asked_for() {
    let sizes = ["--steps", "30000", "--endpoints", "6"];
    let args = [
        &["sim", "--seeds", "2", "--faults", "none", "--json"],
        &sizes[..],
    ]
    .concat();
    let object = json(&xio(&args));
    assert!(object["events_min"].as_u64() >= Some(30_000), "{object}");
    let trace = stdout(&xio(&[
        "sim",
        "--seed",
        "0",
        "--faults",
        "none",
        "--endpoints",
        "6",
        "--trace",
    ]));
    assert!(trace.contains(" e5 ") && !trace.contains(" e6 "));
}

#[test]
fn contradictions_are_refused() {
    let output = xio(&["sim", "--seed", "1", "--seeds", "2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot be used with"));
}
