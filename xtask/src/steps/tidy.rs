//! Step `tidy`: rules of the source tree that no compiler knows.
//!
//! It looks at what git has (or would take: new files that are not ignored count), so that build
//! products and a person's scratch files do not matter.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::Outcome;
use crate::ctx::Ctx;

/// Code files may be this long.
const LINES_MAX: usize = 800;

/// One fuzz target's committed corpus may have this many files.
const CORPUS_FILES_MAX: usize = 300;

/// One fuzz target's committed corpus may have this many bytes.
const CORPUS_BYTES_MAX: u64 = 1_000_000;

/// Files that must be there and known to git.
const COMMITTED: &[&str] = &[
    "Cargo.lock",
    "proto-core/nostd-gate/Cargo.lock",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "README.md",
    "PROTOCOL.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    ".ci/run",
];

/// The first commands that a reader of README.md meets.
const README_COMMANDS: [&str; 2] = ["cargo run --release -- demo", "cargo xtask test"];

/// Crates that must forbid unsafe code in their root file.
const SAFE_ROOTS: &[&str] = &[
    "proto-core/src/lib.rs",
    "decode/src/lib.rs",
    "fuzz/src/lib.rs",
    "xtask/src/main.rs",
];

/// Checks all rules and names every breach, not only the first.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    let listed = ctx.cmd(
        "git",
        ["ls-files", "--cached", "--others", "--exclude-standard"],
    );
    let listed = listed.output().context("tidy needs a git checkout")?;
    let files: Vec<&str> = listed
        .lines()
        .filter(|path| ctx.root.join(path).is_file())
        .collect();
    let mut breaches = Vec::new();
    for path in &files {
        if let Some(kind) = Kind::of(path) {
            let text = fs::read_to_string(ctx.root.join(path)).with_context(|| path.to_string())?;
            check_text(path, &text, kind, &mut breaches);
        }
    }
    check_committed(ctx, &mut breaches)?;
    check_corpora(&ctx.root, &files, &mut breaches)?;
    let readme = fs::read_to_string(ctx.root.join("README.md")).unwrap_or_default();
    check_readme(&readme, &mut breaches);
    for path in SAFE_ROOTS {
        let text = fs::read_to_string(ctx.root.join(path)).unwrap_or_default();
        if !text.contains("#![forbid(unsafe_code)]") {
            breaches.push(format!("{path}: no #![forbid(unsafe_code)]"));
        }
    }
    for breach in &breaches {
        println!("{breach}");
    }
    match breaches.len() {
        0 => Ok(Outcome::Passed(format!("{} files", files.len()))),
        count => bail!("{count} breaches, listed above"),
    }
}

/// What a text file is, for the rules that depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rust,
    Code,
    Prose,
}

impl Kind {
    /// The kind of a file that a person writes; `None` for recorded and generated ones.
    fn of(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("rs") => Some(Self::Rust),
            Some("c" | "h" | "sh" | "py") => Some(Self::Code),
            Some("md" | "toml") => Some(Self::Prose),
            _ if path == ".ci/run" => Some(Self::Code),
            _ => None,
        }
    }
}

fn check_text(path: &str, text: &str, kind: Kind, breaches: &mut Vec<String>) {
    let line_count = text.lines().count();
    if kind != Kind::Prose && line_count > LINES_MAX {
        breaches.push(format!(
            "{path}: {line_count} lines, at most {LINES_MAX} are allowed"
        ));
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        breaches.push(format!("{path}: must end with exactly one newline"));
    }
    // Split so that this file does not find itself.
    let bare_ignore = concat!("#[", "ignore]");
    let conflict = ["<<<<<<< ", ">>>>>>> "];
    for (index, line) in text.lines().enumerate() {
        let mut breach = |what| breaches.push(format!("{path}:{}: {what}", index + 1));
        if line.contains('\t') {
            breach("tab");
        }
        if line.ends_with(char::is_whitespace) {
            breach("trailing space");
        }
        if conflict.iter().any(|mark| line.starts_with(mark)) {
            breach("conflict marker");
        }
        if kind == Kind::Rust && line.contains(bare_ignore) {
            breach("an ignored test must say why: #[ignore = \"reason\"]");
        }
    }
}

fn check_committed(ctx: &Ctx, breaches: &mut Vec<String>) -> Result<()> {
    let tracked = ctx
        .cmd("git", ["ls-files", "--"])
        .args(COMMITTED)
        .output()?;
    for path in COMMITTED {
        if !tracked.lines().any(|line| line == *path) {
            breaches.push(format!("{path}: not committed"));
        }
    }
    if !ctx
        .cargo(["metadata", "--locked", "--format-version=1"])
        .succeeds()
    {
        breaches.push("Cargo.lock: does not fit Cargo.toml (or crates cannot be had)".into());
    }
    let is_unchanged = ctx
        .cmd("git", ["diff", "--quiet", "HEAD", "--", "Cargo.lock"])
        .succeeds();
    if ctx.is_strict && !is_unchanged {
        breaches.push("Cargo.lock: changed since the last commit".into());
    }
    Ok(())
}

fn check_corpora(root: &Path, files: &[&str], breaches: &mut Vec<String>) -> Result<()> {
    let mut corpora: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for path in files {
        let Some(target) = path
            .strip_prefix("fuzz/corpus/")
            .and_then(|p| p.split('/').next())
        else {
            continue;
        };
        let len = fs::metadata(root.join(path))
            .with_context(|| path.to_string())?
            .len();
        let (count, bytes) = corpora.entry(target).or_default();
        *count += 1;
        *bytes += len;
    }
    for (target, (count, bytes)) in corpora {
        if count > CORPUS_FILES_MAX || bytes > CORPUS_BYTES_MAX {
            breaches.push(format!(
                "fuzz/corpus/{target}: {count} files with {bytes} bytes, at most \
                 {CORPUS_FILES_MAX} with {CORPUS_BYTES_MAX} are allowed"
            ));
        }
    }
    Ok(())
}

fn check_readme(text: &str, breaches: &mut Vec<String>) {
    let first_block: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("```"))
        .skip(1)
        .take_while(|line| !line.starts_with("```"))
        .filter_map(|line| line.split('#').next())
        .map(str::trim)
        .collect();
    let lead = text
        .lines()
        .take_while(|line| !line.starts_with("```"))
        .count();
    if first_block != README_COMMANDS || lead > 4 {
        breaches.push(format!(
            "README.md: must start with a block of {README_COMMANDS:?}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(path: &str, text: &str) -> Vec<String> {
        let mut breaches = Vec::new();
        check_text(path, text, Kind::of(path).expect("a kind"), &mut breaches);
        breaches
    }

    #[test]
    fn clean_text_has_no_breach() {
        assert!(breaches("a.rs", "fn main() {}\n").is_empty());
        assert!(breaches("a.rs", "#[ignore = \"needs a device\"]\n").is_empty());
        assert!(breaches("a.md", &"line\n".repeat(LINES_MAX + 1)).is_empty());
    }

    #[test]
    fn each_breach_is_found() {
        for text in [
            "\tx\n",
            "x \n",
            "x",
            "x\n\n",
            concat!("#[", "ignore]\n"),
            "<<<<<<< HEAD\n",
        ] {
            assert_eq!(breaches("a.rs", text).len(), 1, "{text:?}");
        }
        assert_eq!(breaches("a.rs", &"line\n".repeat(LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn recorded_files_are_not_judged() {
        for path in ["Cargo.lock", "tests/golden/a.txt", "fuzz/corpus/wire_tcp/0"] {
            assert_eq!(Kind::of(path), None);
        }
    }

    #[test]
    fn readme_starts_with_the_two_commands() {
        let good = "# xio\n\n```sh\ncargo run --release -- demo  # see it\ncargo xtask test\n```\n";
        let mut found = Vec::new();
        check_readme(good, &mut found);
        assert!(found.is_empty(), "{found:?}");
        check_readme("# xio\n\nWords.\n", &mut found);
        assert_eq!(found.len(), 1);
    }
}
