//! An echo server inside a bare `mio` loop, which has a timer and a socket of its own as well.
//!
//! `cargo run -p xio-tcp --example mio_echo -- 127.0.0.1:7000`

use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::net::UdpSocket;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use xio_proto::{Config, Event, ListenOptions, Message};
use xio_tcp::{Driver, Options, TcpDriver};

const XIO: Token = Token(0);
const CLOCK: Token = Token(1);

/// What the loop did besides.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Ticks of the timer.
    pub(crate) ticks: u32,
    /// Questions for the time of day that came to the other socket.
    pub(crate) asked: u32,
}

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
            let (slot, slot_data) = (Some(slot), bytes.len() as u32);
            let message = Message {
                slot,
                slot_data,
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

/// Serves until so many connections have come and gone; `told` hears where it listens.
pub(crate) fn serve(
    address: SocketAddr,
    mut connections: u32,
    told: impl FnOnce(SocketAddr, SocketAddr),
) -> Result<Done, Box<dyn Error>> {
    let config = Config::new(0, 128, 128);
    let mut tcp = TcpDriver::new(
        config.clone(),
        &TcpDriver::counts(&config, 64),
        Options::default(),
    )?;
    let options = ListenOptions {
        user: 0,
        backlog: 128,
    };
    let listener = tcp.listen(address, &options)?;
    let mut clock = UdpSocket::bind("127.0.0.1:0".parse()?)?;
    let at = tcp.listening(listener).ok_or("the address is in use")?;
    told(at, clock.local_addr()?);

    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(64);
    let registry = poll.registry();
    registry.register(&mut SourceFd(&tcp.as_raw_fd()), XIO, Interest::READABLE)?;
    registry.register(&mut clock, CLOCK, Interest::READABLE)?;
    let (every, mut done) = (Duration::from_millis(10), Done::default());
    #[allow(clippy::disallowed_methods, reason = "the clock of this loop")]
    let (start, mut next) = (Instant::now(), every);
    while connections > 0 {
        // Everything of xio's, then sleep until one of the four has something: its descriptor, its
        // deadline, the timer, the other socket.
        while tcp.poll(Some(Duration::ZERO))? {
            while let Some(event) = tcp.next_event() {
                connections -= u32::from(matches!(event, Event::Closed { .. }));
                echo(&mut tcp, event)?;
            }
        }
        let timer = next.saturating_sub(start.elapsed());
        let sleep = tcp.timeout().map_or(timer, |xio| xio.min(timer));
        poll.poll(&mut events, Some(sleep))?;
        if start.elapsed() >= next {
            done.ticks += 1;
            next += every;
        }
        if events.iter().any(|event| event.token() == CLOCK) {
            let mut question = [0; 64];
            while let Ok((_, from)) = clock.recv_from(&mut question) {
                done.asked += 1;
                clock.send_to(format!("{:?}", start.elapsed()).as_bytes(), from)?;
            }
        }
    }
    Ok(done)
}

#[allow(dead_code, reason = "the tests call `serve`")]
fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:7000").parse()?;
    let told = |xio, clock| println!("echo on tcp://{xio}, time of day on udp://{clock}");
    println!("{:?}", serve(address, u32::MAX, told)?);
    Ok(())
}
