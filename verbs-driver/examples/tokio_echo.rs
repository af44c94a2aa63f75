//! An echo server as a task of tokio, which waits for the driver's one descriptor.
//!
//! `cargo run -p xio-verbs --example tokio_echo -- 10.0.0.1:7000`

mod echo;

use std::error::Error;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use xio_proto::Event;
use xio_verbs::{Driver, VerbsDriver};

/// The next event: polls, and sleeps as a task in between.
async fn next_event(rdma: &mut AsyncFd<VerbsDriver>) -> Result<Event, Box<dyn Error>> {
    loop {
        if let Some(event) = rdma.get_mut().next_event() {
            return Ok(event);
        }
        if rdma.get_mut().poll(Some(Duration::ZERO))? || !rdma.get_mut().arm()? {
            tokio::task::yield_now().await;
            continue;
        }
        // An hour is as good as no deadline: the loop comes round and asks again.
        let sleep = rdma
            .get_ref()
            .timeout()
            .unwrap_or(Duration::from_secs(3600));
        tokio::select! {
            ready = rdma.readable_mut() => ready?.clear_ready(),
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

#[allow(
    deprecated,
    reason = "its replacement is unsafe for the sake of types whose descriptor may change"
)]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (address, mut connections) = echo::arguments()?;
    let rdma = echo::listen(address)?;
    let mut rdma = AsyncFd::with_interest(rdma, Interest::READABLE)?;
    while connections > 0 {
        let event = next_event(&mut rdma).await?;
        connections -= u32::from(echo::echo(rdma.get_mut(), event)?);
    }
    Ok(())
}
