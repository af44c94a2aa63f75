//! `cargo xtask bench`: contests against plain sockets, in one run. Reported, not part of the tests,
//! since what else the machine does changes them.

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::ctx::Ctx;

/// What `cargo xtask bench` may be told.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Over what
    #[arg(value_enum)]
    over: Over,
    /// Alternated pairs of each contest
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Only contests whose name has this in it
    #[arg(long, default_value = "")]
    only: String,
}

#[derive(Copy, Clone, ValueEnum)]
enum Over {
    /// Sockets on loopback
    Tcp,
}

/// Runs the contests and prints their ratios.
///
/// # Errors
/// When they cannot be built or run, or when a ratio is not what is wanted.
pub(crate) fn run(ctx: &Ctx, args: &BenchArgs) -> Result<()> {
    let example = match args.over {
        Over::Tcp => "bench_tcp",
    };
    let pairs = args.pairs.to_string();
    let run = [
        "run",
        "--locked",
        "--release",
        "--package",
        "xio-tests",
        "--example",
        example,
    ];
    ctx.cargo(run).args(["--", &pairs, &args.only]).run()
}
