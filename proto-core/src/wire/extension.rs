//! What two peers of this kind tell each other in bytes that a libxio leaves undefined and does
//! not look at (PROTOCOL.md 2.6). All of it is a function of what the other side said before, so
//! that bytes which are echoed, repeated or random never pass for it.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::headers::{IntroductionBlock, ResumeBlock};

bitflags::bitflags! {
    /// What can be agreed on beyond libxio's protocol (PROTOCOL.md 2.6).
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Extensions: u32 {
        /// CANCEL_REQ withdraws a request at its responder (PROTOCOL.md 9.7).
        const CANCEL = 1;
        /// A request says how long its requester waits (PROTOCOL.md 12.2).
        const DEADLINE = 2;
        /// What came in an earlier life of a connection is told (PROTOCOL.md 8.7).
        const RESUME = 4;
        /// Lives of a peer are told apart (PROTOCOL.md 2.7).
        const INCARNATION = 8;
        /// Refusals say why, with values (PROTOCOL.md 2.2).
        const REASON = 16;
        /// Two that call each other end up with one connection (PROTOCOL.md 8.8).
        const CROSS = 32;
        /// Application credits are used (PROTOCOL.md 9.6). Named by whoever has
        /// [`Config::flow_control`](crate::Config::flow_control) on, whatever else it offers.
        const FLOW = 64;
    }
}

impl Extensions {
    /// What is offered unless the configuration says otherwise: all that this version can do.
    pub const DEFAULT: Self = Self::CANCEL
        .union(Self::DEADLINE)
        .union(Self::RESUME)
        .union(Self::INCARNATION)
        .union(Self::REASON)
        .union(Self::CROSS);
}

/// The version of extensions that is spoken here.
pub const EXTENSION_VERSION: u8 = 1;

const MAGIC: u16 = 0x5845;

/// Who says it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// The side that connects.
    Client,
    /// The side that accepts.
    Server,
}

impl Role {
    const fn code(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }
}

/// What one side says of itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Introduction {
    /// Highest version that its sender speaks, not above the one that it answers; never 0.
    pub version: u8,
    /// What it can do and wants to.
    pub features: Extensions,
    /// Who it is, the same in each of its lives; 0 for nobody in particular.
    pub identity: u64,
    /// Which of its lives this is; later ones have larger numbers.
    pub incarnation: u64,
    /// A number that its sender did not use before.
    pub nonce: u32,
}

/// What decides between two that call each other: the larger wins (PROTOCOL.md 8.8). Numbers of
/// races count before identities, so a second attempt beats a first one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Race {
    /// Which attempt of its caller it is, from 1.
    pub number: u8,
    /// Who calls, as it goes over the wire.
    pub identity: u64,
}

impl Race {
    /// Whether the caller of this one gets the connection. Of two different races exactly one wins,
    /// whoever looks; nobody wins against itself.
    #[must_use]
    pub fn beats(self, other: Self) -> bool {
        self > other
    }
}

/// Who an endpoint is on the wire: `identity` is its [`Config::identity`](crate::Config::identity),
/// `endpoint` its [`Config::endpoint`](crate::Config::endpoint). 0 for nobody in particular, and for
/// nobody else.
#[must_use]
pub const fn wire_identity(identity: u64, endpoint: u8) -> u64 {
    match identity {
        0 => 0,
        identity => mix(identity ^ mix(endpoint as u64)) | 1,
    }
}

/// Where an introduction has the number of a race: in the bits of `features` that name nothing.
const RACE_SHIFT: u32 = 24;

impl Introduction {
    /// Bytes of an introduction.
    pub const LEN: usize = size_of::<IntroductionBlock>();

    /// The same for the setup of a session that is to be the only one between two; 0 is none.
    #[must_use]
    pub const fn with_race(mut self, race: u8) -> Self {
        let features = self.features.bits() & !(u32::MAX << RACE_SHIFT);
        let race = (race as u32) << RACE_SHIFT;
        self.features = Extensions::from_bits_retain(features | race);
        self
    }

    /// The number of the race that the setup it comes with takes part in; 0 is none.
    #[must_use]
    pub const fn race(&self) -> u8 {
        (self.features.bits() >> RACE_SHIFT) as u8
    }

    /// Writes it; `before` is the check of what it answers, 0 if there is nothing yet. Returns its
    /// bytes and its own check.
    #[must_use]
    pub fn seal(&self, role: Role, before: u64) -> ([u8; Self::LEN], u64) {
        let check = self.check(role, before);
        let block = IntroductionBlock {
            magic: U16::new(MAGIC),
            version: self.version,
            role: role.code(),
            features: U32::new(self.features.bits()),
            identity: U64::new(self.identity),
            incarnation: U64::new(self.incarnation),
            nonce: U32::new(self.nonce),
            check: U64::new(check),
        };
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(block.as_bytes());
        (bytes, check)
    }

    /// Reads what the side `role` says in answer to `before`; returns it with its check. `None`:
    /// the bytes are something else. Longer ones are padded, and only their start counts.
    #[must_use]
    pub fn open(bytes: &[u8], role: Role, before: u64) -> Option<(Self, u64)> {
        let (block, _) = IntroductionBlock::ref_from_prefix(bytes).ok()?;
        let it = Self {
            version: block.version,
            features: Extensions::from_bits_retain(block.features.get()),
            identity: block.identity.get(),
            incarnation: block.incarnation.get(),
            nonce: block.nonce.get(),
        };
        let check = it.check(role, before);
        let valid = block.magic.get() == MAGIC
            && block.role == role.code()
            && it.version > 0
            && block.check.get() == check;
        valid.then_some((it, check))
    }

    fn check(&self, role: Role, before: u64) -> u64 {
        let head = u64::from(self.version) << 8 | u64::from(role.code());
        let features = u64::from(self.features.bits()) << 32 | u64::from(self.nonce);
        let parts = [head, features, self.identity, self.incarnation];
        parts.iter().fold(mix(before), |sum, part| mix(sum ^ part))
    }
}

/// What one side says of an earlier life of a connection (PROTOCOL.md 8.7): in the session header
/// of RESUME_REQ and RESUME_RSP, behind `dest_session`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The server's number of the session of that life; the answer repeats it.
    pub session: u32,
    /// 0, or in the answer: the life is not known, a code of PROTOCOL.md 17.
    pub status: u32,
    /// Which transport connection it was on ([`Resume::token`]); the answer repeats it.
    pub token: u64,
    /// Serial number behind the last one that the sender of this got; 0 if it got none.
    pub next: u64,
}

impl Resume {
    /// Where it lies in a frame.
    pub const PLACE: core::ops::Range<usize> = 20..20 + size_of::<ResumeBlock>();

    /// What names a transport connection to the two that agreed on it, and to nobody else: made of
    /// the check of the last introduction there. Never 0.
    #[must_use]
    pub const fn token(check: u64) -> u64 {
        mix(check ^ 0x5245_5355_4d45) | 1
    }

    /// Reads it out of a frame; one that is shorter holds zeros.
    #[must_use]
    pub fn open(frame: &[u8]) -> Self {
        let mut block = ResumeBlock::new_zeroed();
        if let Some(bytes) = frame.get(Self::PLACE) {
            block.as_mut_bytes().copy_from_slice(bytes);
        }
        Self {
            session: block.session.get(),
            status: block.status.get(),
            token: block.token.get(),
            next: block.next.get(),
        }
    }

    /// Writes it into a frame.
    ///
    /// # Panics
    /// If the frame is shorter than its session header.
    pub fn put(&self, frame: &mut [u8]) {
        let block = ResumeBlock {
            session: U32::new(self.session),
            status: U32::new(self.status),
            token: U64::new(self.token),
            next: U64::new(self.next),
            pad: [0; 12],
        };
        frame[Self::PLACE].copy_from_slice(block.as_bytes());
    }
}

/// What a client on sockets puts into the pad of NEXUS_SETUP_REQ.
#[must_use]
pub const fn offer_word(nonce: u32) -> u32 {
    let nonce = nonce >> 12;
    nonce << 12 | (mix(nonce as u64) & 0xfff) as u32
}

/// Whether a pad can be an offer: one in 4096 that mean nothing can.
#[must_use]
pub const fn is_offer(word: u32) -> bool {
    word != 0 && word == offer_word(word)
}

/// What the answer to an offer is made of: `cid` is the server's number of the transport
/// connection, which it chooses anew for each.
#[must_use]
pub const fn offer_check(offer: u32, cid: u32) -> u64 {
    mix((offer as u64) << 32 | cid as u64)
}

/// The word that confirms a check: the pad of NEXUS_SETUP_RSP on sockets, and of NEXUS_SETUP_REQ
/// on RDMA. Never 0.
#[must_use]
pub const fn confirm_word(check: u64) -> u32 {
    (mix(check) >> 32) as u32 | 1
}

/// Spreads every bit of `x` over all others.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
