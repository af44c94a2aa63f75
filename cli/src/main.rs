//! The command `xio`: see the protocol at work, search for faults, look into wires and states.
//!
//! Every command is a module with one function that does it and says whether all is well; what
//! they have in common is how they print ([`output`]), what they may be told ([`args`]) and how
//! they log ([`logging`]).
#![forbid(unsafe_code)]

mod args;
mod completions;
mod decode;
mod demo;
mod devices;
mod logging;
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
    let cli = Cli::parse();
    let out = Output::new(cli.command.is_for_programs());
    match logging::start(cli.verbose).and_then(|()| run(&cli.command, &out)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read the output has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let error = format!("{error:#}");
            eprintln!("xio: {error}");
            // Whoever reads standard output may be gone; the status says enough then.
            let _ = out.failure(&error);
            ExitCode::FAILURE
        }
    }
}

/// Does what was asked for and returns whether all is well.
fn run(command: &Command, out: &Output) -> anyhow::Result<bool> {
    match command {
        Command::Demo(args) => demo::run(args, out),
        Command::Serve(args) => serve::run(args, out),
        Command::Ping(args) => ping::run(args, out),
        Command::Devices(args) => devices::run(args, out),
        Command::Sim(args) => sim::run(args, out),
        Command::Replay(args) => replay::run(args, out),
        Command::Decode(args) => decode::run(args, out),
        Command::Completions(args) => completions::completions(args, out),
        Command::Man(args) => completions::man(args, out),
        Command::States(args) => states::run(args, out),
    }
}
