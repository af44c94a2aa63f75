//! What a recording begins with.

use super::codec::{DecodeError, EncodeError, Field as _, Malformed, Reader, Writer};
use crate::config::Config;
use crate::storage::Counts;

/// What an endpoint is made from, and with that how a recording of it begins (PROTOCOL.md 18).
/// The transports follow as inputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// The configuration. A recording never carries the deliberate fault of a mutant.
    pub config: Config,
    /// The lengths of the tables.
    pub counts: Counts,
}

impl Start {
    /// The first bytes of a recording.
    pub const MAGIC: [u8; 6] = *b"XIOREC";
    /// The format that is written, and the only one that is read.
    pub const VERSION: u16 = 3;
    /// Bytes that every start fits in.
    pub const LEN_MAX: usize = 512;

    /// Writes the start of a recording; returns its length in bytes.
    ///
    /// # Errors
    /// `Room` when `out` is too short; [`LEN_MAX`](Self::LEN_MAX) bytes always do.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut w = Writer::new(out);
        w.raw(&Self::MAGIC);
        Self::VERSION.put(&mut w);
        let Self { config, counts } = self;
        config.put(&mut w);
        counts.put(&mut w);
        w.finish()
    }

    /// Reads the start of a recording; returns it and its length in bytes. Inputs follow.
    ///
    /// # Errors
    /// What is wrong with the bytes, and where.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), DecodeError> {
        let mut r = Reader::plain(bytes);
        if r.raw(Self::MAGIC.len() as u64)? != Self::MAGIC {
            return Reader::plain(bytes).error(Malformed::Magic, 0);
        }
        let version = u16::get(&mut r)?;
        if version != Self::VERSION {
            return r.error(Malformed::Version, version.into());
        }
        let config = Config::get(&mut r)?;
        let counts = Counts::get(&mut r)?;
        Ok((Self { config, counts }, r.at()))
    }
}
