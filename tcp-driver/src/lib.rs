//! xio over sockets: the core's stream layer (PROTOCOL.md 3) on non-blocking TCP, IPv4 and IPv6,
//! one stream or two, which libxio 1.7 speaks as well.
//!
//! A [`TcpDriver`] is an endpoint with its memory and its sockets. It has no thread: everything
//! happens in [`poll`](Driver::poll), and what happened is told by
//! [`next_event`](Driver::next_event). Commands are the methods of [`Driver`], which simulator and
//! verbs have too.
//!
//! ```
//! use std::time::Duration;
//! use xio_proto::{Config, ConnectOptions, Event, ListenOptions, SessionOpen};
//! use xio_tcp::{Driver, Options, TcpDriver};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 64 slots to receive into and 64 to send from, up to 16 transport connections.
//! let config = Config::new(0, 64, 64);
//! let counts = TcpDriver::counts(&config, 16);
//! let mut tcp = TcpDriver::new(config, &counts, Options::default())?;
//!
//! let options = ListenOptions { user: 0, backlog: 128 };
//! let listener = tcp.listen("127.0.0.1:0".parse()?, &options)?;
//! let address = tcp.listening(listener).ok_or("address in use")?;
//! // An endpoint may talk to itself.
//! let uri = format!("tcp://{address}/");
//! let open = SessionOpen { uri: &uri, private: b"" };
//! let connection = tcp.connect(address, &open, &ConnectOptions::new(1))?;
//! loop {
//!     while let Some(event) = tcp.next_event() {
//!         match event {
//!             Event::SessionRequest { session, .. } => {
//!                 tcp.accept(session, 2, &[], b"")?;
//!             }
//!             Event::Established { user: 1, .. } => tcp.close(connection)?,
//!             Event::Closed { user: 1, .. } => return Ok(()),
//!             _ => {}
//!         }
//!     }
//!     tcp.poll(Some(Duration::from_secs(1)))?;
//! }
//! # }
//! ```
//!
//! # Waiting
//!
//! `poll(timeout)` carries out what the endpoint wants, writes, sleeps if there is no event for the
//! user, reads, and returns when there is an event, when a [`Waker`] was used, or when the timeout
//! is over. Take all events before the next poll.
//!
//! Inside another runtime wait for the driver's one descriptor (it is [`AsFd`](std::os::fd::AsFd))
//! to become readable, or for [`timeout`](TcpDriver::timeout) to pass, then call
//! `poll(Some(Duration::ZERO))` until `timeout` is not zero. The descriptor is an event queue in
//! which sockets report once per change, so each time it is readable a poll is needed. The examples
//! do it with `mio` and with tokio.
//!
//! Other threads hand work over by a queue of the user's and the [`Waker`].
//!
//! # Memory
//!
//! Slots are allocated when the driver is made. User memory for large data is kept by the driver
//! as buffers ([`add`](TcpDriver::add), [`take`](TcpDriver::take), [`Driver::allocate`]) and named
//! in messages by [`segment`](Driver::segment). From the command that names a buffer to the event
//! that says that it is back it cannot be reached: sent bytes go from it to the socket, received
//! ones from the socket into it, without a copy.
//!
//! # What is where
//!
//! `driver` has the loop, `io` the sockets, `pool` the memory, `alarm` the timer, `resolve` URLs and
//! host names.
#![forbid(unsafe_code)]

mod alarm;
mod driver;
mod error;
mod io;
mod life;
#[cfg(all(test, target_os = "linux"))]
mod moments;
mod options;
mod pool;
mod resolve;
mod waker;

pub use driver::TcpDriver;
pub use error::Error;
pub use io::Boxed;
pub use life::in_this_life;
pub use options::{Options, Stats};
pub use pool::SlotPool;
pub use resolve::{BadUrl, Lookup, Url};
pub use waker::Waker;
pub use xio_proto::Driver;
pub use xio_proto::driver::{BufferError, BufferId};
