//! A recording, run again.

use std::fmt;
use std::io::Sink;

use xio_proto::{
    Applied, ConfigError, DecodeError, Endpoint, Input, Scratch, SlotId, Slots, Start,
};

use crate::recorder::Recorder;
use crate::{DIGEST, take_entry};

xio_proto::boxed_storage! {
    /// Tables of the replayed endpoint.
    struct Tables;
}

/// Rows of one table, at most: more than ids can name.
const ROWS_MAX: usize = 1 << 21;

/// Bytes of all slots, at most.
const SLOTS_MAX: u64 = 32 << 30;

/// A recording that cannot be replayed, or not to its end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReplayError {
    /// It does not begin as a recording does.
    Start(DecodeError),
    /// No endpoint can be made of the configuration it names.
    Config(ConfigError),
    /// Its tables or slots are larger than any endpoint's.
    TooLarge {
        /// Which.
        what: &'static str,
        /// The recorded number.
        value: u64,
        /// The largest that is replayed.
        max: u64,
    },
    /// The entry at this offset is not all there: the recording was cut off.
    Cut {
        /// Byte offset in the recording.
        offset: usize,
    },
    /// The entry at this offset is no input.
    Entry {
        /// Byte offset in the recording.
        offset: usize,
        /// What is wrong; its offset counts from the entry's start.
        error: DecodeError,
    },
    /// The entry at this offset is a digest that belongs to no input, or not eight bytes long.
    Digest {
        /// Byte offset in the recording.
        offset: usize,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => write!(f, "not a recording: {error}"),
            Self::Config(error) => write!(f, "its configuration: {error}"),
            Self::TooLarge { what, value, max } => {
                write!(f, "its {what} of {value} are more than the {max} replayed")
            }
            Self::Cut { offset } => write!(f, "it ends within the entry at byte {offset}"),
            Self::Entry { offset, error } => write!(f, "entry at byte {offset}: {error}"),
            Self::Digest { offset } => write!(f, "digest out of place at byte {offset}"),
        }
    }
}

impl std::error::Error for ReplayError {}

/// Slots of the replayed endpoint.
struct Memory {
    bytes: Vec<u8>,
    size: usize,
}

impl Slots for Memory {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.bytes[slot.0 as usize * self.size..][..self.size]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.bytes[slot.0 as usize * self.size..][..self.size]
    }
}

/// An input that was replayed, and what came of it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its number, from 1.
    pub number: u64,
    /// Byte offset of its entry in the recording.
    pub offset: usize,
    /// What came of it.
    pub applied: Applied,
    /// Not what the recording says.
    pub diverged: bool,
}

/// A recording and the endpoint that it is fed to.
pub struct Replay<'f> {
    start: Start,
    endpoint: Endpoint<Tables, Recorder<Sink>>,
    memory: Memory,
    recording: &'f [u8],
    rest: &'f [u8],
}

impl<'f> Replay<'f> {
    /// Makes the endpoint that a recording is of.
    ///
    /// # Errors
    /// `Start`, `Config`, `TooLarge`.
    pub fn new(recording: &'f [u8]) -> Result<Self, ReplayError> {
        let (start, len) = Start::read(recording).map_err(ReplayError::Start)?;
        check_sizes(&start)?;
        let config = &start.config;
        let slots = config.rx_slots as usize + config.tx_slots as usize;
        let size = config.slot_size as usize;
        let observer = Recorder::new(std::io::sink(), &start).with_log();
        let tables = Tables::new(&start.counts);
        let endpoint = Endpoint::with_trace(start.config.clone(), tables, observer)
            .map_err(ReplayError::Config)?;
        Ok(Self {
            endpoint,
            memory: Memory {
                bytes: vec![0; slots * size],
                size,
            },
            start,
            recording,
            rest: &recording[len..],
        })
    }

    /// What the endpoint was made of.
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// The endpoint as it is after the last step.
    pub fn endpoint(&self) -> &Endpoint<impl xio_proto::storage::Storage, Recorder<Sink>> {
        &self.endpoint
    }

    /// The lines of [`Recorder::with_log`] since the last call.
    pub fn take_log(&mut self) -> String {
        self.endpoint.trace_mut().take_log()
    }

    fn offset(&self) -> usize {
        self.recording.len() - self.rest.len()
    }

    fn entry(&mut self) -> Result<&'f [u8], ReplayError> {
        let offset = self.offset();
        take_entry(&mut self.rest).ok_or(ReplayError::Cut { offset })
    }

    /// The bytes of the next input: to name it should carrying it out fail.
    pub fn next_entry(&self) -> Option<&'f [u8]> {
        let mut rest = self.rest;
        take_entry(&mut rest)
    }

    /// Feeds the next input to the endpoint. `None` at the recording's end.
    ///
    /// # Errors
    /// `Cut`, `Entry`, `Digest`. Nothing more can be read then.
    pub fn step(&mut self) -> Option<Result<Step, ReplayError>> {
        if self.rest.is_empty() {
            return None;
        }
        let result = self.next();
        if result.is_err() {
            self.rest = &[];
        }
        Some(result)
    }

    fn next(&mut self) -> Result<Step, ReplayError> {
        let offset = self.offset();
        let entry = self.entry()?;
        if entry.first() == Some(&DIGEST) {
            return Err(ReplayError::Digest { offset });
        }
        let mut scratch = Scratch::new();
        let input = Input::read(entry, &mut scratch)
            .map_err(|error| ReplayError::Entry { offset, error })?;
        let applied = self.endpoint.apply(&input, &mut self.memory);
        let recorded = self.digest()?;
        Ok(Step {
            number: self.endpoint.trace().inputs(),
            offset,
            applied,
            diverged: recorded != self.endpoint.trace().digest(),
        })
    }

    /// The digest behind an input, if there is one.
    fn digest(&mut self) -> Result<Option<u64>, ReplayError> {
        let offset = self.offset();
        let mut rest = self.rest;
        match take_entry(&mut rest) {
            Some([DIGEST, digest @ ..]) => {
                let digest = <[u8; 8]>::try_from(digest);
                let digest = digest.map_err(|_| ReplayError::Digest { offset })?;
                self.rest = rest;
                Ok(Some(u64::from_be_bytes(digest)))
            }
            _ => Ok(None),
        }
    }
}

fn check_sizes(start: &Start) -> Result<(), ReplayError> {
    let counts = &start.counts;
    let rows = [
        counts.listeners,
        counts.nexuses,
        counts.sessions,
        counts.connections,
        counts.tasks,
        counts.rx_slots,
        counts.tx_slots,
        counts.work,
        counts.sockets,
        counts.extents,
        counts.regions,
    ];
    let most = rows.into_iter().max().unwrap_or(0);
    at_most("rows of a table", most as u64, ROWS_MAX as u64)?;
    let config = &start.config;
    let slots = u64::from(config.rx_slots) + u64::from(config.tx_slots);
    at_most("slots", slots, 2 * ROWS_MAX as u64)?;
    let bytes = slots * u64::from(config.slot_size);
    at_most("bytes of slots", bytes, SLOTS_MAX)
}

fn at_most(what: &'static str, value: u64, max: u64) -> Result<(), ReplayError> {
    if value > max {
        return Err(ReplayError::TooLarge { what, value, max });
    }
    Ok(())
}
