//! What requests cost: a server, a client, and both in one thread, with nothing around them that
//! costs anything itself. `cargo xtask bench rdma` runs it beside raw verbs.
//!
//! - `measure serve IP:PORT SPIN ANSWER`: answers with so many bytes until its client leaves;
//! - `measure ask IP:PORT SPIN REQUEST ANSWER DEPTH COUNT`: sends requests of so many bytes;
//! - `measure both IP REQUEST COUNT`: both ends in one thread, polled, answers as long as requests;
//! - `measure idle IP:PORT SPIN SECONDS`: has a connection, and nothing to do.
//!
//! SPIN is `never`, `always` (then the middle of all round trips is told too), or microseconds. A
//! line `measure: NAME VALUE UNIT` for each figure.
#![allow(clippy::disallowed_methods, reason = "a program that measures time")]

mod client;
mod server;

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use xio_proto::{Config, Message, SlotId};
use xio_verbs::{DeviceChoice, Options, Spin, VerbsDriver};

use client::{Client, Load};
use server::Server;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// More than this is sent from a buffer, and received into one.
const COPIED: usize = 4096;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", at, spin, answer] => {
            let at: std::net::SocketAddr = at.parse()?;
            let mut server = Server::new(driver(0, at.ip(), spin)?, at, answer.parse()?)?;
            while !server.is_over() {
                server.step(None)?;
            }
            Ok(())
        }
        ["ask", at, spin, request, answer, depth, count] => {
            let load = Load {
                request: request.parse()?,
                answer: answer.parse()?,
                depth: depth.parse()?,
                count: count.parse()?,
            };
            ask(at.parse()?, spin, load)
        }
        ["both", ip, request, count] => {
            let request = request.parse()?;
            let load = Load {
                request,
                answer: request,
                depth: 1,
                count: count.parse()?,
            };
            both(ip.parse()?, load)
        }
        ["idle", at, spin, seconds] => client::idle(at.parse()?, spin, seconds.parse()?),
        _ => Err("see the first lines of its source".into()),
    }
}

/// A driver on the device with that address.
fn driver(number: u8, ip: IpAddr, spin: &str) -> Outcome<VerbsDriver> {
    let config = Config::new(number, 160, 128);
    let counts = VerbsDriver::counts(&config, 4);
    let spin = match spin {
        "never" => Spin::Never,
        "always" => Spin::Always,
        micros => Spin::For(Duration::from_micros(micros.parse()?)),
    };
    // A program that spins and has all its connections asks for no more while messages come.
    let cm_interval = match spin {
        Spin::Always => Duration::from_secs(1000),
        _ => Options::default().cm_interval,
    };
    let options = Options {
        device: DeviceChoice::Address(ip),
        spin,
        cm_interval,
        ..Options::default()
    };
    Ok(VerbsDriver::new(config, &counts, &options)?)
}

/// A message with so many bytes in its slot.
fn message(slot: SlotId, len: usize) -> Message<'static> {
    Message {
        slot: Some(slot),
        slot_data: len as u32,
        ..Message::default()
    }
}

fn ask(at: std::net::SocketAddr, spin: &str, load: Load) -> Outcome<()> {
    let mut client = Client::new(driver(1, source(at)?, spin)?, at, load)?;
    if spin == "always" {
        client.keep_times();
    }
    while !client.is_up() {
        client.step(None)?;
    }
    for count in [load.count.div_ceil(10), load.count] {
        // Seen by whoever traces system calls, or counts instructions.
        std::thread::yield_now();
        client.begin(count);
        while !client.is_done() {
            client.step(None)?;
        }
    }
    std::thread::yield_now();
    client.report("");
    client.close()
}

/// The same address, or the other end of the machine's wire.
fn source(at: std::net::SocketAddr) -> Outcome<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(at)?;
    Ok(socket.local_addr()?.ip())
}

fn both(ip: IpAddr, load: Load) -> Outcome<()> {
    let mut server = Server::new(driver(0, ip, "always")?, (ip, 0).into(), load.answer)?;
    let mut client = Client::new(driver(1, ip, "always")?, server.at(), load)?;
    let now = Some(Duration::ZERO);
    while !client.is_up() {
        client.step(now)?;
        server.step(now)?;
    }
    for count in [load.count.div_ceil(10), load.count] {
        // Seen by whoever traces system calls.
        std::thread::yield_now();
        client.begin(count);
        while !client.is_done() {
            client.step(now)?;
            server.step(now)?;
        }
    }
    std::thread::yield_now();
    client.report(" both");
    Ok(())
}
