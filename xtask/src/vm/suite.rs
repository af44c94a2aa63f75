//! What is run inside the machine as a test.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::ctx::Ctx;

/// A named test.
#[derive(Debug)]
pub(super) struct Suite {
    /// What one calls it.
    pub(super) name: &'static str,
    /// One line about it.
    pub(super) what: &'static str,
    /// The machine's clock counts instructions, so that a busy host changes nothing.
    pub(super) is_counted: bool,
    /// Runs inside; its status is the suite's.
    pub(super) script: &'static str,
    /// Programs of the project that it takes along.
    programs: &'static [Program],
    /// Folders of the tree whose files it takes along, into a folder of the same name beside the
    /// programs.
    pub(super) folders: &'static [&'static str],
}

/// A program of the project, which is called by its name inside.
#[derive(Debug)]
enum Program {
    /// An example of a package.
    Example(&'static str, &'static str),
    /// A test of a package, with the feature that it needs.
    Test(&'static str, &'static str, &'static str),
    /// The command of the project, by this name inside, with this feature.
    Xio(&'static str, &'static str),
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Self::Example(_, name) | Self::Test(_, name, _) | Self::Xio(name, _) => name,
        }
    }
}

/// All suites, the quickest first.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "smoke",
        what: "the machine's own devices and wire, with programs that are not ours",
        is_counted: false,
        script: include_str!("smoke.sh"),
        programs: &[],
        folders: &[],
    },
    Suite {
        name: "verbs",
        what: "the driver on one device, and on two with a wire between them",
        is_counted: false,
        script: include_str!("verbs.sh"),
        programs: &[
            Program::Example("xio-verbs", "conversation"),
            Program::Example("xio-verbs", "mio_echo"),
            Program::Example("xio-verbs", "tokio_echo"),
        ],
        folders: &[],
    },
    Suite {
        name: "conformance",
        what: "what all drivers must do, over queue pairs",
        is_counted: false,
        script: include_str!("conformance.sh"),
        programs: &[
            Program::Test("xio-verbs", "conformance", "device-tests"),
            Program::Test("xio-verbs", "pingpong", "device-tests"),
            Program::Test("xio-verbs", "roleplay", "device-tests"),
            Program::Test("xio-verbs", "costs", "device-tests"),
        ],
        folders: &["tests/golden"],
    },
    Suite {
        name: "cli",
        what: "the command over queue pairs, with both bindings",
        is_counted: false,
        script: include_str!("cli.sh"),
        programs: &[
            Program::Xio("xio", "rdma"),
            Program::Xio("xio-dlopen", "rdma-dlopen"),
            Program::Example("xio-verbs", "guest"),
        ],
        folders: &[],
    },
    Suite {
        name: "progress",
        what: "busy without system calls, idle without work, asleep without missing anything",
        is_counted: true,
        script: include_str!("progress.sh"),
        programs: &[
            Program::Example("xio-verbs", "measure"),
            Program::Example("xio-verbs", "conversation"),
        ],
        folders: &[],
    },
    Suite {
        name: "faults",
        what: "a wire that delays, loses and breaks, a peer that dies, a device that is removed",
        is_counted: false,
        script: include_str!("faults.sh"),
        programs: &[Program::Example("xio-verbs", "conversation")],
        folders: &[],
    },
];

/// The suites of that name, or all.
///
/// # Errors
/// When there is none of that name.
pub(super) fn named(name: Option<&str>) -> Result<Vec<&'static Suite>> {
    let is_meant = |suite: &&Suite| name.is_none_or(|name| name == suite.name);
    let found: Vec<&Suite> = SUITES.iter().filter(is_meant).collect();
    if found.is_empty() {
        bail!("there is no such suite; `cargo xtask vm --list` names them");
    }
    Ok(found)
}

/// Whether a suite brings a program of that name.
pub(super) fn is_ours(program: &str) -> bool {
    SUITES.iter().any(|suite| suite.brings(program))
}

impl Suite {
    /// Whether it brings a program of that name.
    pub(super) fn brings(&self, name: &str) -> bool {
        self.programs.iter().any(|program| program.name() == name)
    }

    /// Builds its programs, and says where they are.
    ///
    /// # Errors
    /// When one does not compile.
    pub(super) fn build(&self, ctx: &Ctx) -> Result<Vec<(&'static str, PathBuf)>> {
        self.programs
            .iter()
            .map(|program| Ok((program.name(), program.build(ctx)?)))
            .collect()
    }
}

impl Program {
    /// Builds it, and says where it is.
    fn build(&self, ctx: &Ctx) -> Result<PathBuf> {
        match self {
            Self::Example(package, name) => {
                ctx.verbs_env(ctx.cargo(["build", "--locked", "--package", package]))
                    .args(["--example", name])
                    .run()?;
                Ok(ctx.target_dir.join("debug/examples").join(name))
            }
            Self::Test(package, name, feature) => {
                println!("building the test {name} of {package}");
                let told = ctx
                    .verbs_env(ctx.cargo(["test", "--locked", "--no-run", "--package", package]))
                    .args(["--test", name, "--features", feature])
                    .arg("--message-format=json")
                    .output()?;
                executable(&told, name)
            }
            Self::Xio(name, feature) => {
                ctx.verbs_env(ctx.cargo(["build", "--locked", "--package", "xio-cli"]))
                    .args(["--features", feature])
                    .run()?;
                // The next one, with another feature, has the same name. Without what debuggers
                // want, which is nine tenths of it, the machine is up sooner.
                let built = ctx.target_dir.join("debug/xio");
                let kept = ctx.target_dir.join("vm").join(name);
                let strip = ctx.cmd("strip", ["--strip-debug", "-o"]).arg(&kept);
                if !strip.arg(&built).succeeds() {
                    fs::copy(&built, &kept).with_context(|| kept.display().to_string())?;
                }
                Ok(kept)
            }
        }
    }
}

/// The program of a test, in what cargo tells.
fn executable(told: &str, name: &str) -> Result<PathBuf> {
    told.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo tells of no program {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_of_a_test_is_found() {
        let told = r#"{"target": {"name": "a"}, "executable": "/x/a-1"}
{"target": {"name": "b"}, "executable": null}
{"target": {"name": "b"}, "executable": "/x/b-2"}
not JSON"#;
        assert_eq!(executable(told, "b").unwrap(), PathBuf::from("/x/b-2"));
        assert!(executable(told, "c").is_err());
    }
}
