//! What can be asked for.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::completions::{CompletionsArgs, ManArgs};
use crate::decode::DecodeArgs;
use crate::talk::transport::Spin;
use crate::talk::url::Url;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "xio",
    version,
    about = "libxio's messaging protocol, as a tool: see it at work, test it, look into it",
    after_help = "Start with:\n  xio demo                  a server and a client talk to each other\n  \
                  xio sim --seeds 200       search for faults in 200 simulated worlds\n  \
                  xio decode FILE           show what a capture holds\n  \
                  xio COMMAND --help        what a command takes, with examples\n\nXIO_LOG \
                  chooses what -v shows, and works without it: XIO_LOG=debug, or a list of \
                  TARGET=LEVEL.",
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Show events of the protocol on standard error; twice: all of them
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Let a server and a client talk, and show what happened
    Demo(DemoArgs),
    /// Answer requests at an address
    Serve(ServeArgs),
    /// Measure round trips to a server, and check that nothing is lost
    Ping(PingArgs),
    /// List RDMA devices with ports, addresses and limits, and what keeps one from being used
    /// (where xio was built with RDMA)
    Devices(DevicesArgs),
    /// Run simulated worlds with all checkers on
    Sim(SimArgs),
    /// Feed a recorded endpoint its inputs again, and compare what comes of them
    Replay(ReplayArgs),
    /// Show the frames of a capture, of hex text, or of bare bytes
    Decode(DecodeArgs),
    /// Print the declared states of the protocol
    States(StatesArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print a manual page
    Man(ManArgs),
}

impl Command {
    /// Whether `--json` was given.
    pub(crate) fn is_for_programs(&self) -> bool {
        match self {
            Self::Demo(args) => args.json,
            Self::Serve(args) => args.json,
            Self::Ping(args) => args.json,
            Self::Devices(args) => args.json,
            Self::Sim(args) => args.json,
            Self::Replay(args) => args.json,
            Self::Decode(args) => args.json,
            Self::States(_) | Self::Completions(_) | Self::Man(_) => false,
        }
    }
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
    #[arg(long, value_enum, default_value_t = Over::Tcp)]
    pub(crate) over: Over,
    /// Requests to send; for every ten of them a one-way message with a receipt goes along
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) requests: u32,
    /// Bytes of data in each message [default: mostly 64 to 1024, now and then 64 KiB]
    #[arg(long, value_name = "B", value_parser = demo_bytes)]
    pub(crate) size: Option<u32>,
    /// Print one JSON object on standard output, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

fn demo_bytes(text: &str) -> Result<u32, String> {
    at_most(text, SIZE_MAX as usize).map(|number| number as u32)
}

/// What a demo can run over.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Over {
    /// Sockets on loopback, a thread for each side
    Tcp,
    /// Verbs, both sides on one device
    Rdma,
    /// The simulator's RDMA fabric, in virtual time
    Sim,
}

/// `xio serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  xio serve tcp://0.0.0.0:2061\n  xio serve tcp://[::1]:0 --json\n  \
                  xio serve tcp://127.0.0.1:2061 --redirect tcp://127.0.0.1:2062\n\nRequests are \
                  answered with what they brought, whatever resource they were sent to. SIGINT and SIGTERM close all connections, each \
                  with its FIN, and end the server within 5 seconds; a second one ends it at once. SIGUSR1 prints the state of \
                  the endpoint: counters, and what there is of each connection (with --json an \
                  object on a line of its own).\n\
                  Exit status: 0 when everybody was closed in time, else 1."
)]
pub(crate) struct ServeArgs {
    /// Where to listen: tcp://host:port/resource or rdma://...; port 0 takes any, host * is every
    /// address
    #[arg(value_name = "URL")]
    pub(crate) url: Url,
    /// Take everybody who asks for a session: what happens without --reject and --redirect, too
    #[arg(long, conflicts_with_all = ["reject", "redirect"])]
    pub(crate) accept: bool,
    /// Refuse everybody, with this reason (a number; libxio's own begin at 1247689300)
    #[arg(long, value_name = "REASON", conflicts_with = "redirect")]
    pub(crate) reject: Option<u32>,
    /// Send everybody to another server
    #[arg(long, value_name = "URL")]
    pub(crate) redirect: Option<Url>,
    /// Answer with so many bytes (0, 1, 2, ... 255, 0, ...) instead of an echo, as far as the
    /// requester has room for them
    #[arg(long, value_name = "B", value_parser = bytes_u64)]
    pub(crate) reply_size: Option<u64>,
    /// Answer requests whose application header begins like this with so many bytes, as
    /// --reply-size does; may be repeated, the first that fits counts
    #[arg(long, value_name = "HEADER=B", value_parser = reply_rule)]
    pub(crate) reply: Vec<(String, u64)>,
    /// Clients at once, at most
    #[arg(long, value_name = "N", default_value_t = 4096,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) clients: u16,
    /// RDMA: how long to look for completions before sleeping: never, always, or a time like 50us
    /// [default: 20us]
    #[arg(long, value_name = "T")]
    pub(crate) spin: Option<Spin>,
    /// A number that this server, and no other, has whenever it is started, by which clients know that
    /// it was started again; 0 for none [default: made of this host and the address; none with port 0]
    #[arg(long, value_name = "N")]
    pub(crate) identity: Option<u64>,
    /// Memory for data that does not fit a frame, like 2GiB; more has to wait, and a message that
    /// is larger is refused
    #[arg(long, value_name = "B", default_value = "512MiB", value_parser = memory)]
    pub(crate) memory: u64,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Print one JSON object on standard output, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `xio serve` and `xio ping` record.
#[derive(Debug, Default, Args)]
pub(crate) struct RecordArgs {
    /// Write all that enters the endpoint to a file, for `xio replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Write what came of it, too: the lines that `xio replay` shows
    #[arg(long, value_name = "FILE", requires = "record")]
    pub(crate) record_log: Option<PathBuf>,
}

fn reply_rule(text: &str) -> Result<(String, u64), String> {
    let (header, bytes) = text
        .rsplit_once('=')
        .ok_or_else(|| "looks like HEADER=BYTES".to_owned())?;
    let bytes = bytes_u64(bytes).map_err(|error| format!("{bytes:?}: {error}"))?;
    Ok((header.to_owned(), bytes))
}

/// `xio ping`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  xio ping tcp://127.0.0.1:2061\n  \
                  xio ping tcp://127.0.0.1:2061 --count 100000 --depth 64\n  \
                  xio ping tcp://[::1]:2061 --size 1MiB --reply-size 0 --stream single\n  \
                  xio ping tcp://127.0.0.1:2061 --one-way --receipt --interval 10ms\n\nSIGINT and \
                  SIGTERM end it early: what is under way has 5 seconds to come back, then the \
                  connection is dropped; a second one ends it at once.\nExit status: 0 \
                  when every message came back exactly once and right, else 1; the same of those \
                  that were sent, after SIGINT or SIGTERM.")]
pub(crate) struct PingArgs {
    /// The server: tcp://host:port/resource or rdma://host:port/resource
    #[arg(value_name = "URL")]
    pub(crate) url: Url,
    /// Messages to send
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) count: u64,
    /// Bytes of data in each message, like 64, 8KiB or 1MiB
    #[arg(long, value_name = "B", default_value_t = 64, value_parser = bytes)]
    pub(crate) size: usize,
    /// Bytes of application header in each message; the first 24 say which one it is
    #[arg(long, value_name = "B", default_value_t = 24,
          value_parser = |text: &str| at_most(text, 256))]
    pub(crate) header: usize,
    /// Bytes of data wanted in each reply [default: the message's own data back]
    #[arg(long, value_name = "B", value_parser = bytes)]
    pub(crate) reply_size: Option<usize>,
    /// Messages under way at once
    #[arg(long, value_name = "D", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) depth: u32,
    /// Send one-way messages; without --receipt they count as done when they are written
    #[arg(long)]
    pub(crate) one_way: bool,
    /// Ask for a read receipt of each message
    #[arg(long)]
    pub(crate) receipt: bool,
    /// Time between two messages, like 10ms or 1s
    #[arg(long, value_name = "T", value_parser = humantime::parse_duration)]
    pub(crate) interval: Option<Duration>,
    /// Time that each message may take, like 500ms
    #[arg(long, value_name = "T", value_parser = humantime::parse_duration)]
    pub(crate) deadline: Option<Duration>,
    /// Time that connecting may take
    #[arg(long, value_name = "T", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    /// Sockets of the connection
    #[arg(long, value_enum, default_value_t = Stream::Dual)]
    pub(crate) stream: Stream,
    /// RDMA: how long to look for completions before sleeping: never, always, or a time like 50us
    /// [default: 20us]
    #[arg(long, value_name = "T")]
    pub(crate) spin: Option<Spin>,
    /// Take any answer as right: for servers that do not echo
    #[arg(long)]
    pub(crate) any_reply: bool,
    /// When the connection is lost, try so often to make it anew; what the server may have got then
    /// counts as failed
    #[arg(long, value_name = "N")]
    pub(crate) reconnect: Option<u32>,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Print one JSON object on standard output, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// How many sockets carry a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Stream {
    /// One for everything
    Single,
    /// One for headers and one for data, as libxio does unless told otherwise
    Dual,
}

/// Largest data of a message: what the protocol's sides take unless told otherwise.
const DATA_MAX: usize = 1 << 30;

fn bytes(text: &str) -> Result<usize, String> {
    at_most(text, DATA_MAX)
}

fn bytes_u64(text: &str) -> Result<u64, String> {
    bytes(text).map(|number| number as u64)
}

fn memory(text: &str) -> Result<u64, String> {
    match at_most(text, 1 << 40)? {
        0..0x10_0000 => Err("1MiB is the least".to_owned()),
        number => Ok(number as u64),
    }
}

/// A number of bytes, or of a unit of them: 8192, 8KiB, 1MB.
fn at_most(text: &str, max: usize) -> Result<usize, String> {
    let ByteSize(number) = text
        .parse()
        .map_err(|_| "neither a number of bytes nor one with a unit, like 64KiB".to_owned())?;
    usize::try_from(number)
        .ok()
        .filter(|number| *number <= max)
        .ok_or_else(|| format!("{max} bytes are the most"))
}

/// `xio sim`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  xio sim --seeds 2000 --faults all\n  \
                  xio sim --seed 17 --faults all --trace | less\n  \
                  xio sim --seeds 200 --json | jq .violations\n  \
                  xio sim --seed 17 --record 17.rec && xio replay 17.rec\n\nA seed decides everything about \
                  its world, so a seed that fails fails again: the command that repeats it is \
                  printed.\nExit status: 0 when no checker found anything, else 1.")]
pub(crate) struct SimArgs {
    /// Run this one seed
    #[arg(long, value_name = "S", conflicts_with = "seeds")]
    pub(crate) seed: Option<u64>,
    /// Run so many seeds, from 0 or --first on
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seeds: u32,
    /// The first of several seeds
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "seed",
          value_parser = clap::value_parser!(u64).range(..1 << 62))]
    pub(crate) first: u64,
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
    /// Judge what each user hears of its endpoint by itself too, besides what all observe together
    #[arg(long)]
    pub(crate) watch: bool,
    /// Print every event of every seed, one a line
    #[arg(long)]
    pub(crate) trace: bool,
    /// Write what enters one endpoint of the seed to a file, for `xio replay`
    #[arg(long, value_name = "FILE", requires = "seed",
          conflicts_with_all = ["seeds", "trace"])]
    pub(crate) record: Option<PathBuf>,
    /// Which endpoint is recorded
    #[arg(long, value_name = "N", default_value_t = 0, requires = "record",
          value_parser = clap::value_parser!(u8).range(0..32))]
    pub(crate) of: u8,
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

/// `xio replay`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  xio replay 17.rec | less\n  xio replay 17.rec --follow 2\n\nA recording is made \
                  with `xio sim --seed 17 --record 17.rec`, or with --record of serve and ping.\n\nA number and an input, then behind = what came of \
                  it; polls that found nothing are left out.\nExit status: 0 when the recording is \
                  whole and everything came out as recorded, else 1."
)]
pub(crate) struct ReplayArgs {
    /// The recording
    pub(crate) file: PathBuf,
    /// Show only what names this connection (its number in the table) or a message of it
    #[arg(long, value_name = "N")]
    pub(crate) follow: Option<u32>,
    /// Print one JSON object on standard output, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// `xio devices`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  xio devices\n  xio devices --json | jq '.devices[] | select(.usable) | .name'\n\n\
                  Exit status: 0 when one of them can be used, else 1."
)]
pub(crate) struct DevicesArgs {
    /// Print one JSON object on standard output, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
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
