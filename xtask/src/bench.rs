//! `cargo xtask bench`: contests against plain sockets, raw verbs and peers that misbehave. Reported, not part of
//! the tests.

mod rdma;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::ctx::Ctx;

/// What `cargo xtask bench` may be told.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Over what
    #[arg(value_enum)]
    over: Over,
    /// Alternated pairs of each contest in real time
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Boots of the machine in which instructions are counted (rdma)
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    boots: u32,
    /// Only contests whose name has this in it
    #[arg(long, default_value = "")]
    only: String,
}

#[derive(Copy, Clone, ValueEnum)]
enum Over {
    /// Sockets on loopback
    Tcp,
    /// Sockets on loopback: what one peer that reads nothing costs 63 others
    Fairness,
    /// Verbs, in the machine of `cargo xtask vm`
    Rdma,
}

/// Runs the contests and prints their ratios.
///
/// # Errors
/// When they cannot be built or run, or when a ratio is not what is wanted.
pub(crate) fn run(ctx: &Ctx, args: &BenchArgs) -> Result<()> {
    match args.over {
        Over::Tcp => tcp(ctx, args.pairs, &args.only),
        Over::Fairness => tcp(ctx, args.pairs, "reads nothing"),
        Over::Rdma => rdma::run(ctx, args.boots, args.pairs),
    }
}

fn tcp(ctx: &Ctx, pairs: u32, only: &str) -> Result<()> {
    ctx.example("bench_tcp", &[&pairs.to_string(), only]).run()
}
