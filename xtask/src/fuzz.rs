//! `cargo xtask fuzz`: libFuzzer on the installed stable toolchain.
//!
//! Coverage comes from LLVM's own pass, switched on by compiler flags that every toolchain has.
//! There is no address sanitizer: the code under test forbids unsafe code, so it would find
//! nothing and only slow the search down.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::ctx::Ctx;

const PACKAGE: &str = "xio-fuzz";

/// Coverage counters on every edge, and the operands of comparisons for the mutator.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct FuzzArgs {
    /// One of the programs in fuzz/fuzz_targets/
    target: String,
    /// Stop after this many inputs (0: no limit)
    #[arg(long, default_value_t = 0)]
    runs: u64,
    /// Stop after this many seconds (0: no limit)
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// No input is made longer than this
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    max_len: u32,
    /// Keep inputs, too, that come nearer to what something is compared with: reaches rare values,
    /// at a third of the speed, as libFuzzer then spends most of its time on its own books
    #[arg(long)]
    value_profile: bool,
    /// Afterwards replace the committed corpus by the smallest set of inputs with its coverage
    #[arg(long)]
    minimise: bool,
}

/// Builds the target with coverage and runs it.
pub(crate) fn run(ctx: &Ctx, args: &FuzzArgs) -> Result<()> {
    let source = ctx
        .root
        .join(format!("fuzz/fuzz_targets/{}.rs", args.target));
    ensure!(
        source.is_file(),
        "no such target; there are: {}",
        targets(&ctx.root)?.join(", ")
    );
    let has_compiler = ctx.cmd("c++", ["--version"]).succeeds();
    ensure!(
        has_compiler,
        "libFuzzer needs a C++ compiler: apt-get install g++"
    );
    let fuzzer = Fuzzer::build(ctx, &args.target)?;
    fuzzer.search(args)?;
    if args.minimise {
        fuzzer.minimise(args)
    } else {
        Ok(())
    }
}

fn targets(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(
            path.file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    names.sort();
    Ok(names)
}

/// A built target and its folders.
pub(crate) struct Fuzzer<'a> {
    ctx: &'a Ctx,
    program: PathBuf,
    /// Inputs found here, kept between runs.
    found: PathBuf,
    /// Inputs that are part of the project.
    committed: PathBuf,
    /// Inputs that made the target fail.
    artifacts: PathBuf,
}

impl<'a> Fuzzer<'a> {
    /// Builds a target.
    ///
    /// # Errors
    /// When it does not build.
    pub(crate) fn build(ctx: &'a Ctx, target: &str) -> Result<Self> {
        let host = host(ctx)?;
        let target_dir = ctx.target_dir.join("fuzz");
        // With --target the flags are not used for build scripts and macros, which would not link.
        ctx.cargo([
            "build",
            "--locked",
            "--release",
            "--package",
            PACKAGE,
            "--bin",
            target,
        ])
        .args([
            "--features",
            "libfuzzer,link",
            "--target",
            &host,
            "--target-dir",
        ])
        .arg(&target_dir)
        .env("RUSTFLAGS", RUSTFLAGS)
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .run()?;
        let data = ctx.target_dir.join("fuzz-data").join(target);
        let fuzzer = Self {
            ctx,
            program: target_dir.join(host).join("release").join(target),
            found: data.join("found"),
            artifacts: data.join("artifacts"),
            committed: ctx.root.join("fuzz/corpus").join(target),
        };
        for folder in [&fuzzer.found, &fuzzer.artifacts, &fuzzer.committed] {
            fs::create_dir_all(folder)?;
        }
        Ok(fuzzer)
    }

    fn search(&self, args: &FuzzArgs) -> Result<()> {
        let runs = if args.runs == 0 {
            -1
        } else {
            i64::try_from(args.runs)?
        };
        let result = self
            .ctx
            .cmd(&self.program, [])
            .arg(format!("-runs={runs}"))
            .arg(format!("-max_total_time={}", args.seconds))
            .arg(format!("-max_len={}", args.max_len))
            .arg(format!("-artifact_prefix={}/", self.artifacts.display()))
            .arg(format!(
                "-use_value_profile={}",
                u8::from(args.value_profile)
            ))
            .args(["-print_final_stats=1", "-timeout=10"])
            .args([&self.found, &self.committed])
            .run();
        result.with_context(|| {
            let artifacts = self.artifacts.display();
            let replay = format!(
                "cargo run -p {PACKAGE} --bin replay -- {} FILE",
                args.target
            );
            format!("the input is in {artifacts}; `{replay}` runs it again")
        })
    }

    /// Searches for so many seconds, and returns how many inputs were tried; or, when one made the
    /// target fail, what repeats it.
    ///
    /// # Errors
    /// When the target cannot be run.
    pub(crate) fn soak(&self, target: &str, seconds: u64) -> Result<(u64, Option<String>)> {
        let output = self
            .ctx
            .cmd(&self.program, ["-print_final_stats=1", "-timeout=10"])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", self.artifacts.display()))
            .args([&self.found, &self.committed])
            .finish()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let tried = text
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or(0);
        if output.status.success() {
            return Ok((tried, None));
        }
        let written = text
            .lines()
            .find_map(|line| line.split("Test unit written to ").nth(1));
        let file = written.unwrap_or("FILE");
        print!("{text}");
        let again = format!("cargo run -p {PACKAGE} --bin replay -- {target} {file}");
        Ok((tried, Some(again)))
    }

    /// Lets libFuzzer choose, out of all inputs, a set that covers the same edges. Committed
    /// files called `seed-*` stay in any case: they are there for what they say.
    fn minimise(&self, args: &FuzzArgs) -> Result<()> {
        let chosen = self.found.with_file_name("chosen");
        if chosen.exists() {
            fs::remove_dir_all(&chosen)?;
        }
        fs::create_dir_all(&chosen)?;
        let is_seed = |name: &str| name.starts_with("seed-");
        copy_files(&self.committed, &chosen, is_seed)?;
        self.ctx
            .cmd(&self.program, ["-set_cover_merge=1", "-use_counters=0"])
            .arg(format!("-max_len={}", args.max_len))
            .args([&chosen, &self.committed, &self.found])
            .run()?;
        let count = fs::read_dir(&chosen)?.count();
        if count == 0 {
            bail!("libFuzzer chose no input: the committed corpus stays as it is");
        }
        fs::remove_dir_all(&self.committed)?;
        fs::create_dir_all(&self.committed)?;
        copy_files(&chosen, &self.committed, |_| true)?;
        println!("{count} inputs in {}", self.committed.display());
        Ok(())
    }
}

fn copy_files(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if is_wanted(&entry.file_name().to_string_lossy()) {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The platform that rustc runs on.
fn host(ctx: &Ctx) -> Result<String> {
    let text = ctx.cmd("rustc", ["-vV"]).output()?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}
