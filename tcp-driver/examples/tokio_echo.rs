//! An echo server as a task of tokio, which waits for the driver's one descriptor.
//!
//! `cargo run -p xio-tcp --example tokio_echo -- 127.0.0.1:7000`

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use xio_proto::{Config, Event, ListenOptions, Message};
use xio_tcp::{Driver, Options, TcpDriver};

/// Answers each request with its own data.
fn echo(tcp: &mut TcpDriver, event: Event) -> Result<(), Box<dyn Error>> {
    match event {
        Event::SessionRequest { session, .. } => {
            tcp.accept(session, 0, &[], b"")?;
        }
        Event::Request { task, data, .. } => {
            let mut bytes = Vec::new();
            tcp.with_data(data, |piece| bytes.extend_from_slice(piece));
            let slot = tcp.reserve_answer_slot(task)?;
            tcp.with_slot(slot, |room| room[..bytes.len()].copy_from_slice(&bytes));
            let message = Message {
                slot: Some(slot),
                slot_data: bytes.len() as u32,
                ..Message::default()
            };
            tcp.respond(task, &message)?;
        }
        // What does not fit a frame is more than this server echoes.
        Event::PayloadWaiting { task, .. } => tcp.refuse(task, 90)?,
        Event::OneWay { task, .. } => tcp.release(task)?,
        _ => {}
    }
    Ok(())
}

/// The next event: polls, and sleeps as a task in between.
async fn next_event(tcp: &mut AsyncFd<TcpDriver>) -> Result<Event, Box<dyn Error>> {
    loop {
        if let Some(event) = tcp.get_mut().next_event() {
            return Ok(event);
        }
        if tcp.get_mut().poll(Some(Duration::ZERO))? {
            continue;
        }
        match tcp.get_ref().timeout() {
            Some(Duration::ZERO) => tokio::task::yield_now().await,
            deadline => {
                // An hour is as good as no deadline: the loop comes round and asks again.
                let sleep = deadline.unwrap_or(Duration::from_secs(3600));
                tokio::select! {
                    ready = tcp.readable_mut() => ready?.clear_ready(),
                    () = tokio::time::sleep(sleep) => {}
                }
            }
        }
    }
}

/// Serves until so many connections have come and gone; `told` hears where it listens.
pub(crate) async fn serve(
    address: SocketAddr,
    mut connections: u32,
    told: impl FnOnce(SocketAddr),
) -> Result<(), Box<dyn Error>> {
    let config = Config::new(0, 128, 128);
    let counts = TcpDriver::counts(&config, 64);
    let mut tcp = TcpDriver::new(config, &counts, Options::default())?;
    let options = ListenOptions {
        user: 0,
        backlog: 128,
    };
    let listener = tcp.listen(address, &options)?;
    told(tcp.listening(listener).ok_or("the address is in use")?);
    #[allow(
        deprecated,
        reason = "the driver's descriptor lives as long as the driver"
    )]
    let mut tcp = AsyncFd::with_interest(tcp, Interest::READABLE)?;
    while connections > 0 {
        let event = next_event(&mut tcp).await?;
        connections -= u32::from(matches!(event, Event::Closed { .. }));
        echo(tcp.get_mut(), event)?;
    }
    Ok(())
}

#[allow(dead_code, reason = "the tests call `serve`")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:7000").parse()?;
    let told = |xio| println!("echo on tcp://{xio}");
    serve(address, u32::MAX, told).await
}
