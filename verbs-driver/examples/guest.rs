//! A client of `xio serve --reply BIGR=20000 --reply BIG2=20000 --reply-size 0` that has data travel
//! in every way there is, and looks at each byte: `guest IP:PORT`.
//!
//! Requests whole in a frame and by READ; answers by WRITE into two buffers, and by READ into one
//! that was offered only when the answer was there; requests and one-ways beyond all credits; a
//! receipt; the close.

use std::error::Error;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;

use xio_proto::driver::BufferId;
use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Event, Message, RequestOptions, Segment,
    SessionOpen, TaskId,
};
use xio_verbs::{DeviceChoice, Driver, Options, VerbsDriver};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of the answers that are asked for.
const LONG: usize = 20_000;

fn main() -> Outcome<()> {
    let at: SocketAddr = std::env::args().nth(1).ok_or("IP:PORT")?.parse()?;
    let mut guest = Guest::connect(at)?;
    let counting = |at: usize| at as u8;

    let answer = guest.ask(b"HH", b"data", &[], &[])?;
    check(answer.is_empty(), "an answer without data")?;
    println!("guest: a small request");

    let (buffer, whole) = guest.buffer(65_536)?;
    guest.driver.with_buffer(buffer, |bytes| {
        (0..LONG).for_each(|at| bytes[at] = at as u8)
    })?;
    let out = guest.part(buffer, 0..LONG)?;
    guest.ask(b"BIGO", b"", &[out], &[])?;
    check(guest.driver.stats().reads == 0, "the peer reads, not we")?;
    println!("guest: a request by READ");

    let into = [
        guest.part(buffer, 0..12_000)?,
        guest.part(buffer, 12_000..24_000)?,
    ];
    for header in [b"BIGR", b"BIG2"] {
        guest.driver.with_buffer(buffer, |bytes| bytes.fill(0xff))?;
        let answer = guest.ask(header, b"", &[], &into)?;
        check(answer.len() == LONG, "the length of an answer by WRITE")?;
        check((0..LONG).all(|at| answer[at] == counting(at)), "its bytes")?;
    }
    check(guest.driver.stats().reads == 0, "the peer writes")?;
    println!("guest: answers by WRITE into two buffers");

    guest.late = Some(whole);
    let answer = guest.ask(b"BIGR", b"", &[], &[])?;
    check(answer.len() == LONG, "the length of an answer by READ")?;
    check((0..LONG).all(|at| answer[at] == counting(at)), "its bytes")?;
    check(guest.driver.stats().reads > 0, "we read it")?;
    println!("guest: an answer by READ, without a buffer beforehand");

    let small = [guest.part(buffer, 0..64)?];
    guest.ask(b"SMALL", b"x", &[], &small)?;
    for _ in 0..300 {
        guest.ask(b"LL", b"d", &[], &[])?;
    }
    println!("guest: 300 requests");
    guest.tell(100, false)?;
    guest.tell(1, true)?;
    println!("guest: 100 one-ways, and one with a receipt");
    guest.close()
}

fn check(holds: bool, what: &str) -> Outcome<()> {
    if holds { Ok(()) } else { Err(what.into()) }
}

struct Guest {
    driver: VerbsDriver,
    connection: ConnectionId,
    /// What an answer that no buffer was offered for may come into.
    late: Option<Segment>,
}

/// The address that this machine would send from.
fn source(peer: SocketAddr) -> Outcome<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

impl Guest {
    fn connect(at: SocketAddr) -> Outcome<Self> {
        // Few receives, so that credits run out and come back again and again.
        let config = Config::new(1, 24, 24);
        let options = Options {
            device: DeviceChoice::Address(source(at)?),
            rnr_retry_max: 0,
            ..Options::default()
        };
        let counts = VerbsDriver::counts(&config, 2);
        let mut driver = VerbsDriver::new(config, &counts, &options)?;
        let open = SessionOpen {
            uri: "rdma://guest",
            private: b"",
        };
        let connection = driver.connect(at, &open, &ConnectOptions::new(0))?;
        let mut guest = Self {
            driver,
            connection,
            late: None,
        };
        loop {
            match guest.next()? {
                Event::Established { message, .. } => {
                    if let Some(message) = message {
                        guest.driver.release(message)?;
                    }
                    return Ok(guest);
                }
                Event::Closed { reason, .. } => return Err(reason.to_string().into()),
                _ => {}
            }
        }
    }

    fn buffer(&mut self, len: usize) -> Outcome<(BufferId, Segment)> {
        let buffer = self.driver.allocate(len)?;
        Ok((buffer, self.part(buffer, 0..len)?))
    }

    fn part(&self, buffer: BufferId, part: Range<usize>) -> Outcome<Segment> {
        Ok(self.driver.segment(buffer, part)?)
    }

    fn next(&mut self) -> Outcome<Event> {
        loop {
            if let Some(event) = self.driver.next_event() {
                return Ok(event);
            }
            self.driver.poll(None)?;
        }
    }

    /// Hands a message over, waiting for room if need be.
    fn hand_over(
        &mut self,
        (header, small): (&[u8], &[u8]),
        data: &[Segment],
        options: &RequestOptions<'_>,
        is_request: bool,
    ) -> Outcome<TaskId> {
        loop {
            let taken = self.try_hand_over((header, small), data, options, is_request);
            match taken {
                Ok(task) => return Ok(task),
                Err(CommandError::Full(_) | CommandError::NoCredit) => loop {
                    match self.next()? {
                        Event::Writable { .. } | Event::Sent { .. } => break,
                        Event::Closed { reason, .. } => return Err(reason.to_string().into()),
                        _ => {}
                    }
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn try_hand_over(
        &mut self,
        (header, small): (&[u8], &[u8]),
        data: &[Segment],
        options: &RequestOptions<'_>,
        is_request: bool,
    ) -> Result<TaskId, CommandError> {
        let (driver, connection) = (&mut self.driver, self.connection);
        let slot = driver.reserve_slot(connection)?;
        let written = driver.with_slot(slot, |room| {
            room[..header.len()].copy_from_slice(header);
            room[header.len()..header.len() + small.len()].copy_from_slice(small);
        });
        debug_assert!(written.is_some(), "just reserved");
        let message = Message {
            slot: Some(slot),
            header_len: header.len() as u16,
            slot_data: small.len() as u32,
            data,
            ..Message::default()
        };
        let taken = if is_request {
            driver.send(connection, &message, options)
        } else {
            driver.send_one_way(connection, &message, options)
        };
        if taken.is_err() {
            driver.return_slot(slot)?;
        }
        taken
    }

    /// Asks, and returns the answer's data.
    fn ask(
        &mut self,
        header: &[u8],
        small: &[u8],
        data: &[Segment],
        into: &[Segment],
    ) -> Outcome<Vec<u8>> {
        let options = RequestOptions {
            into,
            ..RequestOptions::default()
        };
        let asked = self.hand_over((header, small), data, &options, true)?;
        loop {
            match self.next()? {
                Event::Response {
                    task,
                    header: echoed,
                    data,
                    ..
                } if task == asked => {
                    let mut bytes = Vec::new();
                    self.driver
                        .with_data(data, |piece| bytes.extend_from_slice(piece));
                    let same = self.driver.with_span(echoed, |bytes| bytes == header);
                    self.driver.release(task)?;
                    check(same, "the header of the answer")?;
                    return Ok(bytes);
                }
                Event::PayloadWaiting { task, len, .. } => {
                    let mut late = self
                        .late
                        .take()
                        .ok_or("an answer that nothing was offered for")?;
                    late.len = u32::try_from(len)?;
                    self.driver.provide(task, &[late])?;
                }
                Event::Failed { failure, .. } => return Err(failure.to_string().into()),
                Event::Closed { reason, .. } => return Err(reason.to_string().into()),
                _ => {}
            }
        }
    }

    /// Sends so many one-way messages, and waits for the outcome of each of them.
    fn tell(&mut self, count: usize, receipt: bool) -> Outcome<()> {
        let options = RequestOptions {
            receipt,
            ..RequestOptions::default()
        };
        for _ in 0..count {
            let told = self.hand_over((b"OW", b"d"), &[], &options, false)?;
            loop {
                match self.next()? {
                    Event::Sent { task, .. } if task == told && !receipt => break,
                    Event::Delivered { task, .. } if task == told && receipt => break,
                    Event::Failed { failure, .. } => return Err(failure.to_string().into()),
                    Event::Closed { reason, .. } => return Err(reason.to_string().into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn close(mut self) -> Outcome<()> {
        self.driver.close(self.connection)?;
        loop {
            if let Event::Closed {
                reason, unanswered, ..
            } = self.next()?
            {
                check(unanswered == 0, "nothing was asked of us")?;
                println!("guest: {reason}");
                return Ok(());
            }
        }
    }
}
