//! What may be chosen about the driver, and what it counts.

use std::net::IpAddr;
use std::time::Duration;

/// Which device is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The one that has this address.
    Address(IpAddr),
    /// The one of this name, such as `mlx5_0`.
    Name(String),
    /// The first one with a port that is up.
    First,
}

/// How long the driver looks for completions again and again before it sleeps.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Spin {
    /// Not at all: it sleeps at once, and the device wakes it.
    Never,
    /// So long after the last completion.
    For(Duration),
    /// It never sleeps. The quickest answer, for a processor of its own.
    Always,
}

/// Settings of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The device.
    pub device: DeviceChoice,
    /// Send queue of each queue pair, in work requests; bounded by the device.
    pub send_depth: u16,
    /// Receive queue of each queue pair, in buffers; bounded by the device.
    pub receive_depth: u16,
    /// One receive queue for all queue pairs, of the depth of all receive slots (bounded by the
    /// device), instead of one for each (PROTOCOL.md 6.5).
    pub share_receives: bool,
    /// Scatter/gather entries of one work request; bounded by the device.
    pub segments: u16,
    /// Sends up to so many bytes carry their data in the work request; bounded by the device.
    pub inline: u16,
    /// READs outstanding in each direction; bounded by the device.
    pub reads: u8,
    /// A send is signalled at least every so many.
    pub signal_every: u16,
    /// Bounds the retries after a lost packet (0 to 7). 7 is without end on some devices, so that
    /// a peer that died is never noticed.
    pub retry_max: u8,
    /// Bounds the retries when the peer has no receive posted (0 to 7, which is without end). The
    /// protocol's credits keep that from happening, so 0 shows a fault of either side.
    pub rnr_retry_max: u8,
    /// When to sleep.
    pub spin: Spin,
    /// How often the communication manager is asked for events while completions come without a
    /// pause; it costs system calls. A driver that sleeps hears of them at once, one that spins
    /// without completions after a millisecond.
    pub cm_interval: Duration,
    /// Memory of slots and buffers in huge pages, where there are any.
    pub huge_pages: bool,
    /// The process may fork while it has the driver. It costs nothing where the kernel copies
    /// pinned pages at a fork (Linux 5.12); before that each registration takes longer, children do not
    /// have the memory, and huge pages need `RDMAV_HUGEPAGES_SAFE` in the environment. It is for the
    /// whole process, and for good, as soon as one driver wants it. Where that cannot be (by the oldest
    /// kernels, `ENOSYS`; [`LateForFork`](crate::Error::LateForFork) when the process has registered
    /// memory before, also with a driver that did not want it) no driver is made. Without it, on such kernels, a process that has a driver must not fork.
    pub fork_safe: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: DeviceChoice::First,
            send_depth: 257,
            receive_depth: 288,
            share_receives: false,
            segments: 5,
            inline: 200,
            reads: 16,
            signal_every: 64,
            retry_max: 6,
            rnr_retry_max: 7,
            spin: Spin::For(Duration::from_micros(20)),
            cm_interval: Duration::from_millis(10),
            huge_pages: true,
            fork_safe: true,
        }
    }
}

/// Sizes of the queues of a queue pair.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueSizes {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    pub(crate) segments: u32,
    pub(crate) inline: u32,
}

/// What the driver has done so far.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Looks into the completion queue.
    pub polls: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// Notices asked for.
    pub arms: u64,
    /// Completions taken.
    pub completions: u64,
    /// Sends posted.
    pub sends: u64,
    /// Of these, with their data in the work request.
    pub inline: u64,
    /// Work requests of send queues that a completion was asked for.
    pub signaled: u64,
    /// READs posted.
    pub reads: u64,
    /// WRITEs posted.
    pub writes: u64,
    /// Receives posted.
    pub receives: u64,
    /// Calls that posted sends, READs and WRITEs: less than these, since they are chained.
    pub send_calls: u64,
    /// Calls that posted receives.
    pub receive_calls: u64,
    /// Times that communication manager and device were asked for events.
    pub cm_asks: u64,
    /// Events of the communication manager.
    pub cm_events: u64,
    /// Of these, for what is no more.
    pub cm_stale: u64,
    /// Connect requests that the endpoint had no room for, or that came to another device.
    pub refused: u64,
    /// Asynchronous events of the device.
    pub device_events: u64,
    /// Times that a port went down.
    pub port_errors: u64,
    /// Places looked at, at most, to find whose queue pair a frame came on; 0 where queue pairs
    /// share no receive queue.
    pub number_looks_max: u32,
    /// Posts that failed.
    pub post_failures: u64,
}
