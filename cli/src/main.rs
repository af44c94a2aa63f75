//! The command `xio`: see the protocol at work, search for faults, look at its states.
//!
//! Every command is a module with one function that does it and says whether all is well; what
//! they have in common is how they print ([`output`]) and what they may be told ([`args`]).
#![forbid(unsafe_code)]

mod args;
mod demo;
mod output;
mod ping;
mod replay;
mod serve;
mod sim;
mod states;
mod talk;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::output::Output;

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read the output has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xio: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does what was asked for and returns whether all is well.
fn run(command: &Command) -> anyhow::Result<bool> {
    match command {
        Command::Demo(args) => demo::run(args, &Output::new(args.json)),
        Command::Serve(args) => serve::run(args, &Output::new(args.json)),
        Command::Ping(args) => ping::run(args, &Output::new(args.json)),
        Command::Sim(args) => sim::run(args, &Output::new(args.json)),
        Command::Replay(args) => replay::run(args, &Output::new(args.json)),
        Command::States(args) => states::run(args, &Output::new(false)),
    }
}
