//! The xio protocol over rdma_cm and RC queue pairs (PROTOCOL.md, dialect RDMA).
//!
//! A [`VerbsDriver`] is an endpoint of [`xio_proto`] with one device, its memory and its queue
//! pairs. It has no thread of its own: [`poll`](xio_proto::Driver::poll) does all the work, and its
//! one descriptor fits into any event loop. What is done with it (commands, events, buffers) is the
//! same for all drivers: see [`xio_proto::Driver`].
//!
//! | module | what is in it |
//! |---|---|
//! | `sys` | the bindings, one by one |
//! | `cm`, `device`, `memory`, `chain`, `fd`, `address` | safe values around them: the unsafe code |
//! | `shared` | one receive queue for all queue pairs, and their numbers |
//! | `buffers` | the user's memory, and who may touch it when |
//! | `io`, `work` | actions and work requests of the endpoint, reports of the device |
//! | `inventory`, `counters` | what the kernel shows of devices |
//! | `hub` | events of a device, for all drivers of the process that share it |
//! | `owner` | whose things are, after a fork |
//! | `driver`, `waker` | the loop: poll, arm, sleep |
//!
//! # In short
//!
//! ```no_run
//! use xio_proto::{Config, Event, ListenOptions};
//! use xio_verbs::{DeviceChoice, Driver, Options, VerbsDriver};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let address: std::net::SocketAddr = "10.0.0.1:7000".parse()?;
//! let config = Config::new(0, 512, 128);
//! let counts = VerbsDriver::counts(&config, 16);
//! let device = DeviceChoice::Address(address.ip());
//! let mut rdma = VerbsDriver::new(config, &counts, &Options { device, ..Options::default() })?;
//! rdma.listen(address, &ListenOptions { user: 0, backlog: 64 })?;
//! loop {
//!     while let Some(event) = rdma.next_event() {
//!         if let Event::SessionRequest { session, .. } = event {
//!             rdma.accept(session, 0, &[], b"")?;
//!         }
//!     }
//!     rdma.poll(None)?;
//! }
//! # }
//! ```
//!
//! What [`with_buffer`](xio_proto::Driver::with_buffer) lends cannot be kept until the buffer is in
//! flight:
//!
//! ```compile_fail
//! use xio_proto::driver::{BufferError, BufferId};
//! use xio_verbs::{Driver, VerbsDriver};
//!
//! fn keep(rdma: &mut VerbsDriver, buffer: BufferId) -> Result<&mut [u8], BufferError> {
//!     rdma.with_buffer(buffer, |bytes| bytes)
//! }
//! ```
//!
//! # Order of things
//!
//! Made in this order, and undone in the reverse: event channel, device, protection domain,
//! completion queue, memory, then connection ids with their queue pairs. Each holds what it needs,
//! so that no order of dropping can be wrong.
//!
//! # Forks
//!
//! A process that has a driver may fork ([`Options::fork_safe`]), as it does to start another program.
//! The driver goes on in the parent. The child must not use its copy; dropping it does nothing but free
//! the child's own memory, and the child may make a driver of its own.
#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod buffers;
mod chain;
mod clock;
mod cm;
mod counters;
mod device;
mod driver;
mod error;
#[cfg(test)]
mod fake;
mod fd;
mod hub;
mod inventory;
mod io;
mod memory;
mod options;
mod owner;
#[cfg(any(test, feature = "device-tests"))]
mod raw;
mod shared;
mod sys;
mod waker;
mod work;

pub use device::{DeviceLimits, devices};
pub use driver::VerbsDriver;
pub use error::Error;
pub use inventory::{DeviceReport, Gid, PortReport, Trouble, inventory};
pub use io::Boxed;
pub use memory::SlotPool;
pub use options::{DeviceChoice, Options, Spin, Stats};
#[cfg(any(test, feature = "device-tests"))]
#[doc(hidden)]
pub use raw::RawPeer;
pub use waker::Waker;
pub use xio_proto::Driver;
