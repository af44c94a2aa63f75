//! One end: a driver, and the buffers that its messages use.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use xio_proto::driver::{BufferError, BufferId};
use xio_proto::{
    Config, ConnectionId, Keepalive, Message, RequestOptions, Segment, SlotId, TaskId,
};
use xio_verbs::{Driver, Options, VerbsDriver};

/// Up to so many bytes are copied into a slot, more lie in a buffer.
const COPIED: usize = 4096;

/// What a request has and asks for: its application header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Bytes of the request.
    pub(crate) request: usize,
    /// Bytes of the response.
    pub(crate) answer: usize,
    /// What both are filled with.
    pub(crate) seed: u64,
}

impl Wish {
    pub(crate) fn new(request: usize, answer: usize) -> Self {
        Self {
            request,
            answer,
            seed: 0,
        }
    }

    fn bytes(self) -> [u8; 24] {
        let words = [self.request as u64, self.answer as u64, self.seed];
        let mut bytes = [0; 24];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            request: word(0)? as usize,
            answer: word(8)? as usize,
            seed: word(16)?,
        })
    }
}

fn byte(at: usize, seed: u64) -> u8 {
    (at as u64 ^ (at as u64 >> 8) ^ (at as u64 >> 16)).wrapping_add(seed.wrapping_mul(37)) as u8
}

/// Fills with bytes that depend on their place.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    for (at, place) in bytes.iter_mut().enumerate() {
        *place = byte(at, seed);
    }
}

/// Whether these are the bytes that [`fill`] writes, from that one on.
pub(crate) fn is_filled(bytes: &[u8], from: usize, seed: u64) -> bool {
    bytes
        .iter()
        .enumerate()
        .all(|(at, &found)| found == byte(from + at, seed))
}

pub(crate) struct Side {
    pub(crate) driver: VerbsDriver,
    /// Buffers in use, by what they are used for.
    buffers: HashMap<u64, Vec<BufferId>>,
    last: BufferId,
}

/// How much an end has room for.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Sizes {
    /// Buffers to receive into, of all transport connections together.
    pub(crate) receives: u32,
    /// Receives that each transport connection is sure of.
    pub(crate) min_grant: u16,
    /// Slots to send from.
    pub(crate) sends: u32,
    /// Transport connections.
    pub(crate) peers: usize,
    /// When a silent peer is asked whether it lives; it is given up after three times that.
    pub(crate) keepalive: Duration,
    /// How long connecting may take.
    pub(crate) connect: Duration,
}

impl Sizes {
    /// For peers that may die without a word.
    pub(crate) fn watchful() -> Self {
        Self {
            keepalive: Duration::from_secs(1),
            ..Self::default()
        }
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            receives: 320,
            min_grant: 8,
            sends: 64,
            peers: 4,
            keepalive: Duration::from_secs(60),
            connect: Duration::from_secs(10),
        }
    }
}

impl Side {
    pub(crate) fn new(number: u8, options: &Options) -> Result<Self, Box<dyn Error>> {
        Self::with_sizes(number, options, Sizes::default())
    }

    pub(crate) fn with_sizes(
        number: u8,
        options: &Options,
        sizes: Sizes,
    ) -> Result<Self, Box<dyn Error>> {
        let mut config = Config::new(number, sizes.receives, sizes.sends);
        config.min_grant = sizes.min_grant;
        config.connect_timeout = sizes.connect;
        config.keepalive = Some(Keepalive {
            time: sizes.keepalive,
            interval: sizes.keepalive,
            probes: 2,
        });
        let counts = VerbsDriver::counts(&config, sizes.peers);
        Ok(Self {
            driver: VerbsDriver::new(config, &counts, options)?,
            buffers: HashMap::new(),
            last: BufferId::new(0, 0),
        })
    }

    /// A new buffer for a purpose.
    pub(crate) fn buffer(&mut self, key: u64, len: usize) -> Result<Segment, BufferError> {
        let buffer = self.driver.allocate(len)?;
        self.buffers.entry(key).or_default().push(buffer);
        self.last = buffer;
        self.driver.segment(buffer, 0..len)
    }

    /// The buffer made last.
    pub(crate) fn last(&self) -> BufferId {
        self.last
    }

    /// Frees the buffers of a purpose.
    pub(crate) fn give_up(&mut self, key: u64) -> Result<(), BufferError> {
        for buffer in self.buffers.remove(&key).unwrap_or_default() {
            self.driver.free(buffer)?;
        }
        Ok(())
    }

    /// Buffers in use.
    pub(crate) fn kept(&self) -> usize {
        self.buffers.values().map(Vec::len).sum()
    }

    /// A slot with the header, and the data if that is small.
    fn slot(&mut self, slot: SlotId, wish: Wish, len: usize) -> (u16, u32) {
        let copied = if len <= COPIED { len } else { 0 };
        let header = wish.bytes();
        let written = self.driver.with_slot(slot, |room| {
            room[..header.len()].copy_from_slice(&header);
            fill(&mut room[header.len()..header.len() + copied], wish.seed);
        });
        assert!(written.is_some(), "the slot is reserved");
        (header.len() as u16, copied as u32)
    }

    /// Sends a request.
    pub(crate) fn ask(
        &mut self,
        connection: ConnectionId,
        mut wish: Wish,
        user: u64,
    ) -> Result<Wish, Box<dyn Error>> {
        wish.seed = user;
        let slot = self.driver.reserve_slot(connection)?;
        let (header_len, slot_data) = self.slot(slot, wish, wish.request);
        let mut data = Vec::new();
        if wish.request > COPIED {
            data.push(self.filled(user, wish.request, wish.seed)?);
        }
        let mut into = Vec::new();
        if wish.answer > COPIED {
            into.push(self.buffer(user, wish.answer)?);
        }
        let message = Message {
            slot: Some(slot),
            header_len,
            slot_data,
            data: &data,
            user,
            ..Message::default()
        };
        let options = RequestOptions {
            into: &into,
            ..RequestOptions::default()
        };
        self.driver.send(connection, &message, &options)?;
        Ok(wish)
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, task: TaskId, wish: Wish) -> Result<(), Box<dyn Error>> {
        let slot = self.driver.reserve_answer_slot(task)?;
        let (header_len, slot_data) = self.slot(slot, wish, wish.answer);
        let user = task.to_bits();
        let mut data = Vec::new();
        if wish.answer > COPIED {
            data.push(self.filled(user, wish.answer, wish.seed)?);
        }
        let message = Message {
            slot: Some(slot),
            header_len,
            slot_data,
            data: &data,
            user,
            ..Message::default()
        };
        Ok(self.driver.respond(task, &message)?)
    }
}
