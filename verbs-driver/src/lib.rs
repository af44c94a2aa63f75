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
//! | `buffers` | the user's memory, and who may touch it when |
//! | `io`, `work` | actions and work requests of the endpoint, reports of the device |
//! | `hub` | events of a device, for all drivers of the process that share it |
//! | `driver`, `waker` | the loop: poll, arm, sleep |
//!
//! # Order of things
//!
//! Made in this order, and undone in the reverse: event channel, device, protection domain,
//! completion queue, memory, then connection ids with their queue pairs. Each holds what it needs,
//! so that no order of dropping can be wrong.
#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod buffers;
mod chain;
mod cm;
mod device;
mod driver;
mod error;
mod fd;
mod hub;
mod io;
mod memory;
mod options;
mod sys;
mod waker;
mod work;

pub use device::{DeviceLimits, devices};
pub use driver::VerbsDriver;
pub use error::Error;
pub use io::Boxed;
pub use memory::SlotPool;
pub use options::{DeviceChoice, Options, Spin, Stats};
pub use waker::Waker;
pub use xio_proto::Driver;
