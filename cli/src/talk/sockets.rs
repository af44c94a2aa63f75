//! Drivers of sockets as the commands need them.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use xio_proto::{Config, Reason, Step};
use xio_tcp::Options;

use super::url::{Scheme, Url};
use crate::logging::{Events, TcpDriver};

/// What a driver has to hold.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Room {
    /// Peers at once.
    pub(crate) peers: usize,
    /// Messages under way at once in each direction, of all peers together.
    pub(crate) messages: u32,
    /// Bytes of data under way at once on one connection.
    pub(crate) bytes: u64,
}

/// A driver with so much room.
///
/// # Errors
/// Another transport than sockets, or a system that has not enough.
pub(crate) fn driver(url: &Url, endpoint: u8, room: Room) -> Result<TcpDriver> {
    if url.scheme == Scheme::Rdma {
        bail!(
            "this xio was built without verbs; rebuild it with `cargo build --release --features \
             rdma` to use {url}"
        );
    }
    // Half of the send slots is kept for answers and for the protocol itself.
    let (receive, send) = (2 * room.messages + 64, 2 * room.messages + 64);
    let mut config = Config::new(endpoint, receive, send);
    config.queue_messages = config.queue_messages.max(room.messages);
    config.queue_bytes = config.queue_bytes.max(room.bytes);
    let counts = xio_tcp::TcpDriver::counts(&config, room.peers);
    raise_descriptors(2 * room.peers as u64 + 64);
    TcpDriver::with_trace(config, &counts, Options::default(), Events::new(endpoint))
        .context("the driver of sockets")
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
pub(crate) fn advice(reason: &Reason, url: &Url) -> String {
    let errno = |number: i32| std::io::Error::from_raw_os_error(number.abs());
    match *reason {
        Reason::Refused => format!("nobody listens there; start a server with `xio serve {url}`"),
        Reason::Unreachable(number)
        | Reason::AddressError(number)
        | Reason::RouteError(number)
        | Reason::ConnectError(number)
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
        Reason::Disconnected => {
            "the peer closed its sockets without a word; was it stopped?".to_owned()
        }
        _ => String::new(),
    }
}

/// Linux's number for "too many open files".
const EMFILE: i32 = 24;

/// Longest time that a command waits for connections to close.
pub(crate) const CLOSE_BOUND: Duration = Duration::from_secs(5);
