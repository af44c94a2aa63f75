//! Work requests on send queues.

use crate::ids::NONE;
use crate::wire::Kind;

/// What a work request on a send queue was.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WorkKind {
    Frame(Kind),
    /// A receipt, which is no response to wait for.
    Receipt,
    Read,
    Write,
}

/// A work request on a send queue.
#[derive(Clone, Hash, Debug)]
pub struct WorkEntry {
    pub(crate) generation: u32,
    /// Next free, or next on the same send queue.
    pub(crate) next_free: u32,
    pub(crate) kind: WorkKind,
    pub(crate) nexus: u32,
    pub(crate) task: u32,
    pub(crate) connection: u32,
    pub(crate) slot: u32,
    pub(crate) bytes: u64,
    pub(crate) live: bool,
}

impl WorkEntry {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        kind: WorkKind::Read,
        nexus: NONE,
        task: NONE,
        connection: NONE,
        slot: NONE,
        bytes: 0,
        live: false,
    };
}
