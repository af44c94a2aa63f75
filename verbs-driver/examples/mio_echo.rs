//! An echo server inside a bare `mio` loop.
//!
//! `cargo run -p xio-verbs --example mio_echo -- 10.0.0.1:7000`

mod echo;

use std::error::Error;
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use xio_verbs::Driver;

fn main() -> Result<(), Box<dyn Error>> {
    let (address, mut connections) = echo::arguments()?;
    let mut rdma = echo::listen(address)?;
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(8);
    let descriptor = rdma.as_raw_fd();
    poll.registry()
        .register(&mut SourceFd(&descriptor), Token(0), Interest::READABLE)?;
    while connections > 0 {
        while rdma.poll(Some(Duration::ZERO))? {
            while let Some(event) = rdma.next_event() {
                connections -= u32::from(echo::echo(&mut rdma, event)?);
            }
        }
        // The descriptor tells of what comes from here on; not of what is there already.
        if rdma.arm()? {
            poll.poll(&mut events, rdma.timeout())?;
        }
    }
    Ok(())
}
