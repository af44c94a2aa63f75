//! What is run inside the machine as a test.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::ctx::Ctx;

/// A named test.
#[derive(Debug)]
pub(super) struct Suite {
    /// What one calls it.
    pub(super) name: &'static str,
    /// One line about it.
    pub(super) what: &'static str,
    /// Runs inside; its status is the suite's.
    pub(super) script: &'static str,
    /// Programs of the project that it takes along.
    programs: &'static [Program],
}

/// A program of the project.
#[derive(Debug)]
struct Program {
    package: &'static str,
    example: &'static str,
}

/// All suites, the quickest first.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "smoke",
        what: "the machine's own devices and wire, with programs that are not ours",
        script: include_str!("smoke.sh"),
        programs: &[],
    },
    Suite {
        name: "verbs",
        what: "the driver on one device, and on two with a wire between them",
        script: include_str!("verbs.sh"),
        programs: &[Program {
            package: "xio-verbs",
            example: "conversation",
        }],
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
        self.programs.iter().any(|program| program.example == name)
    }

    /// Builds its programs, and says where they are.
    ///
    /// # Errors
    /// When one does not compile.
    pub(super) fn build(&self, ctx: &Ctx) -> Result<Vec<(&'static str, PathBuf)>> {
        let mut built = Vec::new();
        for program in self.programs {
            ctx.verbs_env(ctx.cargo(["build", "--locked"]))
                .args(["--package", program.package, "--example", program.example])
                .run()?;
            let path = ctx.target_dir.join("debug/examples").join(program.example);
            built.push((program.example, path));
        }
        Ok(built)
    }
}
