//! What a connection knows that is to be the only one between two (PROTOCOL.md 8.8).

use crate::ids::NONE;

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Cross {
    /// The peer's identity; 0 for a connection that may be one of many.
    pub(crate) only: u64,
    /// Lookup by identity: chain and, independent of this row's connection, bucket head.
    pub(crate) next: u32,
    pub(crate) bucket: u32,
    /// The number of the race that its setup takes part in, or took part in; 0 is none.
    pub(crate) race: u8,
    /// The setup was the peer's.
    pub(crate) theirs: bool,
    /// It has taken the peer's session, and its private data go into the answer, which is due.
    pub(crate) answers: bool,
}

impl Cross {
    pub(crate) const NONE: Self = Self {
        only: 0,
        next: NONE,
        bucket: NONE,
        race: 0,
        theirs: false,
        answers: false,
    };
}
