//! Drivers as the commands need them: one trait that those of sockets and of verbs have, so that
//! no command knows which one it runs over.

mod tcp;
#[cfg(any(feature = "rdma", feature = "rdma-dlopen"))]
pub(crate) mod verbs;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use xio_proto::driver::Driver;
use xio_proto::{Config, Reason, Step};

use super::url::{Scheme, Url};
use super::watch::{Files, Recording, Watch};
use crate::args::RecordArgs;
use crate::logging::Events;

/// What a driver has to hold, and for how long.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Room {
    /// Peers at once.
    pub(crate) peers: usize,
    /// Messages under way at once in each direction, of all peers together.
    pub(crate) messages: u32,
    /// Bytes of data under way at once on one connection.
    pub(crate) bytes: u64,
    /// How long each step of connecting may take, unless the usual time is enough.
    pub(crate) patience: Option<Duration>,
}

/// Which end of a connection a driver is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// It listens at the address.
    Server,
    /// It connects to the address.
    Client,
}

/// How long a driver of verbs looks for completions before it sleeps.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Spin {
    /// Not at all.
    Never,
    /// So long after the last one.
    For(Duration),
    /// It never sleeps.
    Always,
}

/// What a driver is made for.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Purpose<'a> {
    /// The address that it listens at or connects to.
    pub(crate) url: &'a Url,
    /// Which of the two.
    pub(crate) side: Side,
    /// What it has to hold.
    pub(crate) room: Room,
    /// When it sleeps; `None` leaves that to the driver.
    pub(crate) spin: Option<Spin>,
    /// Where a recording of its endpoint goes.
    pub(crate) record: Option<&'a Files>,
    /// Who it is in all of its lives; 0 for nobody in particular.
    pub(crate) identity: u64,
}

impl Purpose<'_> {
    /// How its endpoint is set up.
    fn config(&self) -> Config {
        let config = Config {
            identity: self.identity,
            ..config(self.endpoint(), self.room)
        };
        // Before a recording begins, which must know what the endpoint is told.
        xio_tcp::in_this_life(config)
    }

    /// The endpoint's number: a process has one of each side at most.
    fn endpoint(&self) -> u8 {
        match self.side {
            Side::Server => 0,
            Side::Client => 1,
        }
    }
}

/// A driver that commands can run over.
pub(crate) trait Transport: Driver<Error: Send + Sync> + Sized {
    /// What a server's object has because of the transport.
    type Served: Serialize;
    /// What a client's object has because of the transport.
    type Pinged: Serialize;

    /// A driver for this.
    ///
    /// # Errors
    /// A system, or a device, that has not enough, or a purpose that this transport cannot serve.
    fn open(purpose: &Purpose<'_>) -> Result<Self>;
    /// What it did as a server.
    fn served(&self) -> Self::Served;
    /// What it did as a client.
    fn pinged(&self) -> Self::Pinged;
    /// What its connections run over, if there is a choice.
    fn device(&self) -> Option<String> {
        None
    }
    /// Times that it stopped to accept because descriptors were used up.
    fn accept_pauses(&self) -> u64 {
        0
    }
    /// What a person may do about a listener that is not bound for this reason.
    fn listen_advice(error: &std::io::Error) -> &'static str;
    /// What a person may do about a connection that ended like this; empty when that is said for
    /// all transports, or nothing can be said.
    fn advice(reason: &Reason) -> String;
}

/// What runs over whatever transport an address asks for.
pub(crate) trait Command {
    /// Runs it, recorded there, and returns whether all is well.
    ///
    /// # Errors
    /// The command's own.
    fn run<D: Transport>(&self, record: Option<&Files>) -> Result<bool>;
}

/// Runs a command over the transport of an address, and records what enters its endpoint if that
/// is wanted.
///
/// # Errors
/// The command's, that the recording cannot be written, and that this program was built without
/// RDMA.
pub(crate) fn over(scheme: Scheme, record: &RecordArgs, command: &impl Command) -> Result<bool> {
    let Some(files) = Files::create(record)? else {
        return watched::<Events>(scheme, None, command);
    };
    let result = watched::<Recording>(scheme, Some(&files), command);
    // The command's own failure says more.
    let whole = files.finish();
    result.and_then(|is_well| whole.map(|()| is_well))
}

fn watched<W: Watch>(
    scheme: Scheme,
    record: Option<&Files>,
    command: &impl Command,
) -> Result<bool> {
    match scheme {
        Scheme::Tcp => command.run::<xio_tcp::TcpDriver<W>>(record),
        #[cfg(any(feature = "rdma", feature = "rdma-dlopen"))]
        Scheme::Rdma => command.run::<xio_verbs::VerbsDriver<W>>(record),
        #[cfg(not(any(feature = "rdma", feature = "rdma-dlopen")))]
        Scheme::Rdma => Err(built_without_verbs()),
    }
}

/// That this program has no RDMA, and how one comes by one that has.
#[cfg(not(any(feature = "rdma", feature = "rdma-dlopen")))]
pub(crate) fn built_without_verbs() -> anyhow::Error {
    anyhow::anyhow!(
        "this xio was built without RDMA: build it with `LIBCLANG_PATH=/usr/lib/llvm-14/lib cargo \
         build --release --package xio-cli --features rdma` (needs libibverbs-dev, librdmacm-dev, \
         pkg-config and libclang-14-dev), or with `--features rdma-dlopen` (needs cmake and \
         libclang), which finds libibverbs and librdmacm when it runs"
    )
}

/// How an endpoint with so much room is set up.
pub(crate) fn config(endpoint: u8, room: Room) -> Config {
    // Half of the send slots is kept for answers and for the protocol itself.
    let (receive, send) = (2 * room.messages + 64, 2 * room.messages + 64);
    let mut config = Config::new(endpoint, receive, send);
    config.queue_messages = config.queue_messages.max(room.messages);
    config.queue_bytes = config.queue_bytes.max(room.bytes);
    config.queue_bytes_all = config.queue_bytes_all.max(room.bytes);
    if let Some(patience) = room.patience {
        (config.connect_timeout, config.setup_timeout) = (patience, patience);
    }
    config
}

/// Lets this process have as many descriptors as it may need, up to what the system allows it.
fn raise_descriptors(wanted: u64) {
    let Ok((soft, hard)) = rlimit::Resource::NOFILE.get() else {
        return;
    };
    let goal = wanted.min(hard);
    if soft < goal {
        // Without it, accepting pauses when there are no more, and goes on later.
        let _ = rlimit::Resource::NOFILE.set(goal, hard);
    }
}

/// How many descriptors this process may have.
pub(crate) fn descriptors() -> Option<u64> {
    rlimit::Resource::NOFILE.get().ok().map(|(soft, _)| soft)
}

/// What a person may do about a connection that was not made, or broke.
pub(crate) fn advice<D: Transport>(reason: &Reason, url: &Url) -> String {
    let own = D::advice(reason);
    if !own.is_empty() {
        return own;
    }
    let errno = |number: i32| std::io::Error::from_raw_os_error(number.abs());
    match *reason {
        Reason::Refused => format!("nobody listens there; start a server with `xio serve {url}`"),
        Reason::Unreachable(number)
        | Reason::AddressError(number)
        | Reason::RouteError(number)
        | Reason::ConnectError(number)
        | Reason::DriverFailed(number)
            if number != 0 =>
        {
            let limit = descriptors().filter(|_| number.abs() == EMFILE);
            match limit {
                Some(limit) => format!(
                    "{}: this process may have {limit} descriptors; `ulimit -n` raises that",
                    errno(number)
                ),
                None => format!("{}", errno(number)),
            }
        }
        Reason::TimedOut(Step::Connect | Step::SessionSetup) => format!(
            "something listens at {}:{} and does not answer as a libxio server does",
            url.host, url.port
        ),
        Reason::Violation(violation) => {
            let bytes = (violation.value as u32).to_be_bytes();
            let is_text = bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
            match std::str::from_utf8(&bytes) {
                Ok(text) if is_text => {
                    format!("is it a libxio peer? It sent {text:?} where that was found")
                }
                _ => "is it a libxio peer?".to_owned(),
            }
        }
        _ => String::new(),
    }
}

/// Linux's number for "too many open files".
const EMFILE: i32 = 24;

/// Longest time that a command waits for connections to close.
pub(crate) const CLOSE_BOUND: Duration = Duration::from_secs(5);

impl FromStr for Spin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "always" => Ok(Self::Always),
            time => humantime::parse_duration(time)
                .map(Self::For)
                .map_err(|error| format!("neither never nor always nor a time: {error}")),
        }
    }
}

impl fmt::Display for Spin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::For(time) => humantime::format_duration(*time).fmt(f),
            Self::Always => f.write_str("always"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_spinning_are_read_and_written_alike() {
        for text in ["never", "always", "20us", "1ms"] {
            assert_eq!(text.parse::<Spin>().expect(text).to_string(), text);
        }
        assert_eq!(
            "20us".parse(),
            Ok(Spin::For(Duration::from_micros(20))),
            "a time"
        );
        let error = "often".parse::<Spin>().expect_err("no time");
        assert!(error.contains("never"), "{error}");
    }
}
