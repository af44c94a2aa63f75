//! What can be asked for.

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "xio",
    version,
    about = "libxio's messaging protocol, as a tool: see it at work, test it, look into it",
    after_help = "Start with:\n  xio demo                  a server and a client talk to each other\n  \
                  xio sim --seeds 200       search for faults in 200 simulated worlds\n  \
                  xio COMMAND --help        what a command takes, with examples",
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Let a server and a client talk, and show what happened
    Demo(DemoArgs),
    /// Run simulated worlds with all checkers on
    Sim(SimArgs),
    /// Print the declared states of the protocol
    States(StatesArgs),
}

/// Largest `--size`: several such messages and their answers have to fit the demo's memory.
pub(crate) const SIZE_MAX: u32 = 16 << 20;

/// `xio demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  xio demo\n  xio demo --requests 100000 --size 64\n  \
                  xio demo --json | jq .p99_ns\n\nExit status: 0 when every message arrived exactly \
                  once and as it was sent, else 1."
)]
pub(crate) struct DemoArgs {
    /// What connects the two
    #[arg(long, value_enum, default_value_t = Over::Sim)]
    pub(crate) over: Over,
    /// Requests to send; for every ten of them a one-way message with a receipt goes along
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) requests: u32,
    /// Bytes of data in each message [default: mostly 64 to 1024, now and then 64 KiB]
    #[arg(long, value_name = "B",
          value_parser = clap::value_parser!(u32).range(0..=i64::from(SIZE_MAX)))]
    pub(crate) size: Option<u32>,
    /// Print one JSON object on standard output, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a demo can run over.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Over {
    /// The simulator's RDMA fabric, in virtual time
    Sim,
}

/// `xio sim`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  xio sim --seeds 2000 --faults all\n  \
                  xio sim --seed 17 --faults all --trace | less\n  \
                  xio sim --seeds 200 --json | jq .violations\n\nA seed decides everything about \
                  its world, so a seed that fails fails again: the command that repeats it is \
                  printed.\nExit status: 0 when no checker found anything, else 1.")]
pub(crate) struct SimArgs {
    /// Run this one seed
    #[arg(long, value_name = "S", conflicts_with = "seeds")]
    pub(crate) seed: Option<u64>,
    /// Run seeds 0 to N-1
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seeds: u32,
    /// Go on in every seed until so many events have happened [default: the scenario decides]
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// What may go wrong
    #[arg(long, value_enum, default_value_t = Faults::All)]
    pub(crate) faults: Faults,
    /// Endpoints in every world [default: the seed decides]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=32))]
    pub(crate) endpoints: Option<u8>,
    /// What connects the endpoints
    #[arg(long, value_enum, default_value_t = Dialect::Both)]
    pub(crate) dialect: Dialect,
    /// Print every event of every seed, one a line
    #[arg(long)]
    pub(crate) trace: bool,
    /// Threads that run seeds [default: as many as there are processors]; results do not depend
    /// on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// Print one JSON object on standard output, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which faults a world may have.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Faults {
    /// None: every message must arrive
    None,
    /// Those that may cost time, but no message
    Some,
    /// Those that end connections too
    All,
}

/// Which dialects a world has.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Dialect {
    /// Queue pairs
    Rdma,
    /// Sockets, one or two a connection
    Tcp,
    /// As the seed decides
    Both,
}

/// `xio states`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  xio states\n  xio states --dot | dot -Tsvg > states.svg\n\nEach row is \
                  INPUT => NEXT STATE / ACTION; what is listed as ignored changes nothing."
)]
pub(crate) struct StatesArgs {
    /// Print a Graphviz document
    #[arg(long)]
    pub(crate) dot: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            let wanted = format!("xio {}", command.get_name());
            assert!(help.is_some_and(|help| help.contains(&wanted)), "{wanted}");
        }
    }
}
