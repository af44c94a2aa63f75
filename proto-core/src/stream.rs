//! The stream layer: bytes of sockets to frames, pairing of sockets to transport connections.

use crate::ids::NONE;

/// A socket that the stream layer knows.
#[derive(Clone, Debug)]
pub struct Socket {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) timer: u32,
}

impl Socket {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        timer: NONE,
    };
}
