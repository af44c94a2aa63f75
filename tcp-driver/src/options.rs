//! What may be chosen about sockets, and what the driver counts.

use std::time::Duration;

/// Settings of the driver's sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `TCP_NODELAY`: small frames leave at once. On by default.
    pub nodelay: bool,
    /// `SO_SNDBUF` in bytes; `None` leaves it to the system.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF` in bytes; `None` leaves it to the system.
    pub receive_buffer: Option<usize>,
    /// `TCP_USER_TIMEOUT`: a connection whose data is not acknowledged for so long is over. `None`
    /// leaves it to the system (on Linux some 15 minutes).
    pub user_timeout: Option<Duration>,
    /// Keepalive probes of TCP after so long without traffic; `None` for none. xio has its own
    /// keepalive, which notices a peer that hangs as well.
    pub keepalive: Option<Duration>,
    /// How long a poll looks again and again before it sleeps. Zero, the default, sleeps at once;
    /// some ten microseconds spare peers that answer fast the time to fall asleep and wake up, at
    /// the price of a busy core.
    pub spin: Duration,
    /// Bytes read from one connection before others get a turn, at least 1; where several have
    /// something to be read they share it, down to `staging` bytes for each.
    pub read_budget: usize,
    /// Bytes written to one transport connection before others get a turn, at least 1.
    pub write_budget: usize,
    /// Sockets accepted from one listener before others get a turn, at least 1.
    pub accept_budget: u32,
    /// Bytes of a buffer that sockets are read into, at least 2048: one read brings many frames.
    pub staging: usize,
    /// Such buffers that sockets may hold at once, with bytes that cannot be taken yet. A socket
    /// beyond that is read in pieces of 2048 bytes.
    pub staging_max: usize,
    /// How long accepting pauses when the system is out of descriptors or memory, unless one of
    /// the driver's own sockets is closed before.
    pub accept_pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodelay: true,
            send_buffer: None,
            receive_buffer: None,
            user_timeout: None,
            keepalive: None,
            spin: Duration::ZERO,
            read_budget: 1 << 20,
            write_budget: 1 << 20,
            accept_budget: 64,
            staging: 64 << 10,
            staging_max: 64,
            accept_pause: Duration::from_millis(100),
        }
    }
}

/// What the driver has done so far.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// System calls that read from sockets, those that found nothing too.
    pub reads: u64,
    /// Bytes that they brought.
    pub bytes_read: u64,
    /// System calls that wrote to sockets, those that found no room too.
    pub writes: u64,
    /// Bytes that they took.
    pub bytes_written: u64,
    /// System calls that waited for events.
    pub waits: u64,
    /// Sockets accepted.
    pub accepted: u64,
    /// Accepted sockets that the endpoint had no room for.
    pub refused: u64,
    /// Times that accepting had to pause for lack of descriptors or memory.
    pub accept_pauses: u64,
    /// Sockets closed that were no transport connection (yet).
    pub strays: u64,
    /// Sockets that connected.
    pub connected: u64,
    /// Sockets that are open now, listeners not counted.
    pub open: u64,
}
