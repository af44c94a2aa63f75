//! What two sides of a transport connection agreed on beyond libxio's protocol.

use crate::ids::NONE;
use crate::wire::Extensions;

/// How far two sides have come in agreeing on extensions (PROTOCOL.md 2.6).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Stage {
    /// Nothing was offered, or nothing came of it.
    Off,
    /// Client: offered, no answer yet. Server on RDMA: offered to, not confirmed yet.
    Offered,
    /// Client on sockets: answered, its introduction is due.
    IntroductionDue,
    /// An introduction of the peer's must come next.
    Awaiting,
    /// Server on sockets: agreed, its own introduction is due.
    SealDue,
    /// Agreed.
    On,
}

/// Extensions of a transport connection.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct Agreement {
    pub(crate) stage: Stage,
    /// Version spoken; 0 while nothing is agreed.
    pub(crate) version: u8,
    /// What both sides can do, as far as they have said it.
    pub(crate) could: Extensions,
    /// The same once it is agreed; nothing before.
    pub(crate) on: Extensions,
    /// It is agreed that application credits are not used.
    pub(crate) without_credits: bool,
    /// This side's number for it.
    pub(crate) nonce: u32,
    /// Check of all that was said.
    pub(crate) check: u64,
    /// The peer.
    pub(crate) identity: u64,
    pub(crate) incarnation: u64,
    /// Server: the race of the setup whose introduction was the confirmation, until it is looked at.
    pub(crate) race: u8,
    /// Lookup by identity: chain and, independent of this row's nexus, bucket head.
    pub(crate) next: u32,
    pub(crate) bucket: u32,
}

impl Agreement {
    /// Whether an introduction of this side's is due.
    pub(crate) fn is_speaking(&self) -> bool {
        matches!(self.stage, Stage::IntroductionDue | Stage::SealDue)
    }

    pub(crate) const NONE: Self = Self {
        stage: Stage::Off,
        version: 0,
        could: Extensions::empty(),
        on: Extensions::empty(),
        without_credits: false,
        nonce: 0,
        check: 0,
        identity: 0,
        incarnation: 0,
        race: 0,
        next: NONE,
        bucket: NONE,
    };
}
