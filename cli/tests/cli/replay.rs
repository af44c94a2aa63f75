//! `xio sim --record` and `xio replay`: what was recorded comes again, and damage is seen.

use std::fs;
use std::path::PathBuf;

use super::{fields, json, stderr, stdout, xio};

/// A recording in a file that goes away with the value.
struct File(PathBuf);

impl File {
    fn of_seed(seed: &str, endpoint: &str) -> Self {
        let name = format!("xio-{}-{seed}-{endpoint}.rec", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = Self(path);
        let output = xio(&[
            "sim",
            "--seed",
            seed,
            "--record",
            file.name(),
            "--of",
            endpoint,
        ]);
        assert!(output.status.success(), "{}", stderr(&output));
        file
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Left over is no harm.
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn recorded_seed_replays_as_it_was() {
    for endpoint in ["0", "1"] {
        let file = File::of_seed("3", endpoint);
        let output = xio(&["replay", file.name(), "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let object = json(&output);
        let expected = [
            "complete",
            "diverged",
            "endpoint",
            "first_diverged",
            "inputs",
            "outputs",
            "version",
        ];
        assert_eq!(fields(&object), expected);
        assert_eq!(object["endpoint"].to_string(), endpoint);
        assert_eq!(object["diverged"], 0);
        assert_eq!(object["complete"], true);
        assert!(object["inputs"].as_u64() > Some(1000), "{object}");
    }
}

#[test]
fn following_a_connection_shows_a_part() {
    let file = File::of_seed("3", "0");
    let all = stdout(&xio(&["replay", file.name()]));
    let (_, rest) = all.split_once("connection: conn").expect("a connection");
    let (number, _) = rest.split_once('.').expect("a generation");
    let some = stdout(&xio(&["replay", file.name(), "--follow", number]));
    let name = format!("conn{number}.");
    assert!(some.contains(&name) && some.lines().count() < all.lines().count());
    let none = stdout(&xio(&["replay", file.name(), "--follow", "4000"]));
    assert!(!none.contains("connection: conn"), "{none}");
}

#[test]
fn damage_and_other_files_are_told() {
    let file = File::of_seed("3", "0");
    let whole = fs::read(&file.0).expect("readable");
    fs::write(&file.0, &whole[..whole.len() - 1]).expect("writable");
    let cut = xio(&["replay", file.name(), "--json"]);
    assert_eq!(cut.status.code(), Some(1));
    assert_eq!(json(&cut)["complete"], false);
    fs::write(&file.0, b"something else").expect("writable");
    let other = xio(&["replay", file.name()]);
    assert_eq!(other.status.code(), Some(1));
    assert!(
        stderr(&other).contains("not a recording"),
        "{}",
        stderr(&other)
    );
    let missing = xio(&["replay", "/nowhere/at.rec"]);
    assert!(stderr(&missing).contains("cannot read /nowhere/at.rec"));
    let bad = xio(&["sim", "--record", file.name()]);
    assert_eq!(bad.status.code(), Some(2), "a recording is of one seed");
}
