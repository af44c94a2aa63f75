//! Step `tools`: are the programs here that the other steps need, and if not, can we bring them?

use anyhow::Result;

use super::Outcome;
use crate::ctx::Ctx;
use crate::vm::host;

/// How a missing program comes onto the machine.
enum Source<'a> {
    /// A Debian or Ubuntu package.
    Apt(&'a str),
    /// A component of the installed toolchain.
    Rustup(&'static str),
    /// A crate with a program in it, built from source.
    Crate(&'static str),
}

impl Source<'_> {
    /// The command that a person would type.
    fn command(&self) -> String {
        match self {
            Self::Apt(package) => format!("apt-get install {package}"),
            Self::Rustup(component) => format!("rustup component add {component}"),
            Self::Crate(name) => format!("cargo install --locked {name}"),
        }
    }
}

/// A program that a step needs.
struct Tool {
    program: &'static str,
    probe: &'static str,
    needed_by: &'static str,
    source: Source<'static>,
    /// Without it the step does the same work in another way.
    has_substitute: bool,
}

const TOOLS: &[Tool] = &[
    Tool {
        program: "rustfmt",
        probe: "--version",
        needed_by: "fmt",
        source: Source::Rustup("rustfmt"),
        has_substitute: false,
    },
    Tool {
        program: "cargo-clippy",
        probe: "--version",
        needed_by: "clippy",
        source: Source::Rustup("clippy"),
        has_substitute: false,
    },
    Tool {
        program: "cc",
        probe: "--version",
        needed_by: "no-std",
        source: Source::Apt("gcc"),
        has_substitute: false,
    },
    Tool {
        program: "valgrind",
        probe: "--version",
        needed_by: "budget",
        source: Source::Apt("valgrind"),
        has_substitute: false,
    },
    Tool {
        program: "cargo-nextest",
        probe: "--version",
        needed_by: "test, which else uses cargo test",
        source: Source::Crate("cargo-nextest"),
        has_substitute: true,
    },
];

/// Looks for every tool, installs what is missing where that is possible, names the rest.
pub(super) fn run(ctx: &Ctx) -> Result<Outcome> {
    let mut missing = Vec::new();
    let mut installer = Installer::new(ctx);
    for tool in TOOLS {
        let has = |ctx: &Ctx| ctx.cmd(tool.program, [tool.probe]).succeeds();
        if has(ctx) {
            println!("{:<14} here (for {})", tool.program, tool.needed_by);
            continue;
        }
        installer.try_install(tool);
        if has(ctx) {
            println!("{:<14} installed (for {})", tool.program, tool.needed_by);
            continue;
        }
        let how = tool.source.command();
        println!(
            "{:<14} MISSING (for {}): {how}",
            tool.program, tool.needed_by
        );
        if !tool.has_substitute {
            missing.push(how);
        }
    }
    missing.extend(packages(&mut installer));
    if missing.is_empty() {
        Ok(Outcome::passed())
    } else {
        Ok(Outcome::Skipped(format!(
            "to be installed: {}",
            missing.join("; ")
        )))
    }
}

/// Packages of the step `vm`; returns what brings those that cannot be had.
fn packages(installer: &mut Installer<'_>) -> Option<String> {
    let absent = host::missing();
    if absent.is_empty() {
        println!("{:<14} here (for vm)", "rdma packages");
        return None;
    }
    if let Err(error) = installer.apt(&absent) {
        println!("{error:#}");
    }
    let absent = host::missing();
    let how = Source::Apt(&absent.join(" ")).command();
    (!absent.is_empty()).then(|| {
        println!("{:<14} MISSING (for vm): {how}", "rdma packages");
        how
    })
}

/// Installs packages where we are root and the system is Debian's or a relative.
pub(crate) struct Installer<'a> {
    ctx: &'a Ctx,
    has_apt: bool,
    is_list_fresh: bool,
}

impl<'a> Installer<'a> {
    /// Looks whether we may.
    pub(crate) fn new(ctx: &'a Ctx) -> Self {
        let is_root = ctx
            .cmd("id", ["-u"])
            .output()
            .is_ok_and(|id| id.trim() == "0");
        let has_apt = is_root && ctx.cmd("apt-get", ["--version"]).succeeds();
        Self {
            ctx,
            has_apt,
            is_list_fresh: false,
        }
    }

    /// Tries; whether it worked shows when the tool is looked for again.
    fn try_install(&mut self, tool: &Tool) {
        let result = match tool.source {
            Source::Apt(package) => self.apt(&[package]),
            Source::Rustup(component) => self
                .ctx
                .cmd("rustup", ["component", "add", component])
                .run(),
            // Minutes of compiling: for CI, not behind the back of a person.
            Source::Crate(name) if self.ctx.is_strict => {
                self.ctx.cargo(["install", "--locked", name]).run()
            }
            Source::Crate(_) => return,
        };
        if let Err(error) = result {
            println!("{error:#}");
        }
    }

    /// Installs packages; does nothing where we may not.
    ///
    /// # Errors
    /// When apt fails.
    pub(crate) fn apt(&mut self, packages: &[&str]) -> Result<()> {
        if !self.has_apt {
            return Ok(());
        }
        let apt = |cmd: crate::exec::Cmd| cmd.env("DEBIAN_FRONTEND", "noninteractive").run();
        if !self.is_list_fresh {
            apt(self.ctx.cmd("apt-get", ["update", "--quiet"]))?;
            self.is_list_fresh = true;
        }
        let args = ["install", "--quiet", "--yes", "--no-install-recommends"];
        apt(self.ctx.cmd("apt-get", args).args(packages))
    }
}
