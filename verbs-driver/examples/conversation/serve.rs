//! A server for peers of other makes: takes what comes, and answers a request whose header begins
//! with `BIGR` or `BIG2` with 20,000 bytes 0, 1, 2, ..., any other with its own header and `ok`.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use xio_proto::driver::BufferError;
use xio_proto::{CommandError, Event, ListenOptions, Message, TaskId};
use xio_verbs::{DeviceChoice, Driver, Options};

use crate::side::Side;

/// Bytes of a large answer.
const LARGE: usize = 20_000;

/// Serves until the first connection is over.
pub(crate) fn serve(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let options = Options {
        device: DeviceChoice::Address(address.ip()),
        ..Options::default()
    };
    let mut side = Side::new(0, &options)?;
    let listen = ListenOptions {
        user: 0,
        backlog: 16,
    };
    side.driver.listen(address, &listen)?;
    println!("conversation: serves on {address}");
    let (mut requests, mut one_ways) = (0, 0);
    loop {
        side.driver.poll(Some(Duration::from_secs(60)))?;
        while let Some(event) = side.driver.next_event() {
            match event {
                Event::SessionRequest { session, .. } => {
                    side.driver.accept(session, 2, &[], b"")?;
                }
                Event::PayloadWaiting { task, len, .. } => {
                    let segment = side.buffer(task.to_bits(), usize::try_from(len)?)?;
                    side.driver.provide(task, &[segment])?;
                }
                Event::Request { task, header, .. } => {
                    requests += 1;
                    side.give_up(task.to_bits())?;
                    let header = side.driver.with_span(header, <[u8]>::to_vec);
                    answer(&mut side, task, &header)?;
                }
                Event::OneWay { task, .. } => {
                    one_ways += 1;
                    side.give_up(task.to_bits())?;
                    side.driver.release(task)?;
                }
                Event::Sent {
                    user,
                    buffers_returned: true,
                    ..
                }
                | Event::BuffersReturned { user, .. } => side.give_up(user)?,
                Event::Closed {
                    reason, unanswered, ..
                } => {
                    println!(
                        "conversation: {requests} requests, {one_ways} one-ways, {unanswered} \
                         unanswered; {reason}; {:?}",
                        side.driver.stats()
                    );
                    return Ok(());
                }
                Event::Established { .. } | Event::Sent { .. } | Event::SessionClosed { .. } => {}
                other => println!("conversation: {other:?}"),
            }
        }
    }
}

/// What an answer has as data.
enum Answer {
    /// Bytes 0, 1, 2, ... in a buffer.
    Large,
    /// A word in the slot.
    Copied,
    /// The word in a buffer, for a peer that wants every answer by WRITE.
    Written,
}

fn answer(side: &mut Side, task: TaskId, header: &[u8]) -> Result<(), Box<dyn Error>> {
    if header.starts_with(b"BIGR") || header.starts_with(b"BIG2") {
        return Ok(answer_with(side, task, header, &Answer::Large)?);
    }
    match answer_with(side, task, header, &Answer::Copied) {
        Err(Failure::Command(CommandError::TooLong { .. })) => {
            Ok(answer_with(side, task, header, &Answer::Written)?)
        }
        done => Ok(done?),
    }
}

/// Why an answer was not sent.
#[derive(Debug)]
enum Failure {
    Command(CommandError),
    Buffer(BufferError),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Command(error) => error.fmt(f),
            Self::Buffer(error) => error.fmt(f),
        }
    }
}

impl Error for Failure {}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<BufferError> for Failure {
    fn from(error: BufferError) -> Self {
        Self::Buffer(error)
    }
}

fn answer_with(
    side: &mut Side,
    task: TaskId,
    header: &[u8],
    answer: &Answer,
) -> Result<(), Failure> {
    let user = task.to_bits();
    let word: &[u8] = b"ok";
    let copied = if matches!(answer, Answer::Copied) {
        word
    } else {
        b""
    };
    let mut data = Vec::new();
    if !matches!(answer, Answer::Copied) {
        let len = if matches!(answer, Answer::Large) {
            LARGE
        } else {
            word.len()
        };
        data.push(side.buffer(user, len)?);
        let buffer = side.last();
        side.driver.with_buffer(buffer, |bytes| match answer {
            Answer::Large => {
                for (at, place) in bytes.iter_mut().enumerate() {
                    *place = at as u8;
                }
            }
            _ => bytes.copy_from_slice(word),
        })?;
    }
    let slot = side.driver.reserve_answer_slot(task)?;
    side.driver.with_slot(slot, |room| {
        room[..header.len()].copy_from_slice(header);
        room[header.len()..header.len() + copied.len()].copy_from_slice(copied);
    });
    let message = Message {
        slot: Some(slot),
        header_len: header.len() as u16,
        slot_data: copied.len() as u32,
        data: &data,
        user,
        ..Message::default()
    };
    let sent = side.driver.respond(task, &message);
    if sent.is_err() {
        side.driver.return_slot(slot)?;
    }
    Ok(sent?)
}
