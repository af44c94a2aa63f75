//! What tells this run of the program from all others.

use std::time::{SystemTime, UNIX_EPOCH};

use xio_proto::Config;

/// The settings for this run of the program: `incarnation` from the system's clock, so that later runs
/// have larger ones, and `seed` from the system's random numbers, each unless it is set already.
/// [`TcpDriver::new`](crate::TcpDriver::new) does it by itself. Who has an observer that must know the
/// settings does it before.
///
/// A clock that is set back between two runs makes the later one look like the earlier (PROTOCOL.md
/// 2.7) until it has caught up: peers that have seen the other do not talk to it.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "said once, when the driver is made"
)]
pub fn in_this_life(config: Config) -> Config {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.map_or(1, |since| since.as_nanos() as u64);
    // Without random numbers the clock at least differs from run to run.
    let seed = getrandom::u64().unwrap_or(nanos);
    config.in_life(nanos, seed)
}
