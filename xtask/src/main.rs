//! What developers and CI run: `cargo xtask test` and its relatives.
//!
//! Every check is a named step of [`steps::STEPS`]; a new one is a function and a row there.
#![forbid(unsafe_code)]

mod bench;
mod budget;
mod ctx;
mod exec;
mod fuzz;
mod soak;
mod steps;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::ctx::Ctx;

/// The command line.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "What developers and CI run"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What can be asked for.
#[derive(Subcommand)]
enum Command {
    /// Run the checks: all of them, or those named with --only
    Test(TestArgs),
    /// Fuzz one target, on the installed stable toolchain and without a sanitizer
    Fuzz(fuzz::FuzzArgs),
    /// Simulate fresh seeds and fuzz, in turn, for as long as wanted
    Soak(soak::SoakArgs),
    /// Let hostile peers at a server on real sockets, beside honest ones
    Hostile(HostileArgs),
    /// Boot a small machine with soft-RoCE and run a suite or a command inside
    Vm(vm::VmArgs),
    /// Count the instructions of the scenarios in xtask/budget.toml
    Budget(budget::BudgetArgs),
    /// Measure against plain sockets, alternating in one run
    Bench(bench::BenchArgs),
}

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
struct TestArgs {
    /// A skipped step is a failure, and the children run with CI=true
    #[arg(long)]
    strict: bool,
    /// Run only this step (may be repeated)
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Print the steps and stop
    #[arg(long)]
    list: bool,
    /// Seeds that the step `sim` runs
    #[arg(long, default_value_t = 10_000)]
    seeds: u32,
}

/// Arguments of `cargo xtask hostile`.
#[derive(clap::Args)]
struct HostileArgs {
    /// Hostile frames that the server is to take
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    frames: u64,
    /// Where chance starts
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does what was asked for and returns our status.
fn run(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Test(args) if args.list => steps::list(),
        Command::Test(args) => {
            let is_well = steps::run(&Ctx::new(args.strict, args.seeds)?, &args.only)?;
            return Ok(u8::from(!is_well));
        }
        Command::Vm(args) => return vm::run(&Ctx::new(false, 0)?, &args),
        Command::Soak(args) => return soak::run(&Ctx::new(false, 0)?, &args),
        Command::Hostile(args) => hostile(&Ctx::new(false, 0)?, &args)?,
        Command::Fuzz(args) => fuzz::run(&Ctx::new(false, 0)?, &args)?,
        Command::Budget(args) => budget::run(&Ctx::new(false, 0)?, &args)?,
        Command::Bench(args) => bench::run(&Ctx::new(false, 0)?, &args)?,
    }
    Ok(0)
}

/// Runs the crowd, which prints what came of it.
fn hostile(ctx: &Ctx, args: &HostileArgs) -> anyhow::Result<()> {
    let [frames, seed] = [args.frames, args.seed].map(|number| number.to_string());
    ctx.example("hostile", &[&frames, &seed]).run()
}
