//! A server that answers each request with its own data, without the loop that it runs in.

use std::error::Error;
use std::net::SocketAddr;

use xio_proto::{Config, Event, ListenOptions, Message};
use xio_verbs::{DeviceChoice, Driver, Options, VerbsDriver};

/// A driver on the device of an address, which it listens on.
pub(crate) fn listen(address: SocketAddr) -> Result<VerbsDriver, Box<dyn Error>> {
    let config = Config::new(0, 640, 128);
    let counts = VerbsDriver::counts(&config, 16);
    let options = Options {
        device: DeviceChoice::Address(address.ip()),
        ..Options::default()
    };
    let mut rdma = VerbsDriver::new(config, &counts, &options)?;
    let options = ListenOptions {
        user: 0,
        backlog: 128,
    };
    let listener = rdma.listen(address, &options)?;
    let at = rdma.listening(listener).ok_or("the address is in use")?;
    println!("echo on rdma://{at}");
    Ok(rdma)
}

/// Does what an event calls for; true when it was the last of a connection.
pub(crate) fn echo(rdma: &mut VerbsDriver, event: Event) -> Result<bool, Box<dyn Error>> {
    match event {
        Event::SessionRequest { session, .. } => {
            rdma.accept(session, 0, &[], b"")?;
        }
        Event::Request { task, data, .. } => {
            let mut bytes = Vec::new();
            rdma.with_data(data, |piece| bytes.extend_from_slice(piece));
            let slot = rdma.reserve_answer_slot(task)?;
            rdma.with_slot(slot, |room| room[..bytes.len()].copy_from_slice(&bytes));
            let message = Message {
                slot: Some(slot),
                slot_data: bytes.len() as u32,
                ..Message::default()
            };
            rdma.respond(task, &message)?;
        }
        // What does not fit a frame is more than this server echoes.
        Event::PayloadWaiting { task, .. } => rdma.refuse(task, 90)?,
        Event::OneWay { task, .. } => rdma.release(task)?,
        Event::Closed { .. } => return Ok(true),
        _ => {}
    }
    Ok(false)
}

/// Address and number of connections to serve, from the command line.
pub(crate) fn arguments() -> Result<(SocketAddr, u32), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let address = args
        .next()
        .ok_or("the address of an RDMA device is missing")?;
    let connections = args.next().map_or(Ok(u32::MAX), |text| text.parse())?;
    Ok((address.parse()?, connections))
}
