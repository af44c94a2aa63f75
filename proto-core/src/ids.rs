//! Names of things inside an endpoint: a table index and the generation of its entry.

use core::fmt;

/// Marks "no entry" in every index field.
pub(crate) const NONE: u32 = u32::MAX;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $short:literal) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            index: u32,
            generation: u32,
        }

        impl $name {
            /// Builds an id from its two halves, as a log or a driver's table kept them.
            pub const fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }
            /// Place in the table, from 0. Drivers use it to index their own arrays.
            pub const fn index(self) -> usize {
                self.index as usize
            }
            /// How often the place was used before; tells an old id from the present one.
            pub const fn generation(self) -> u32 {
                self.generation
            }
            /// Both halves in one word, generation in the upper 32 bits.
            pub const fn to_bits(self) -> u64 {
                (self.generation as u64) << 32 | self.index as u64
            }
            /// Inverse of [`to_bits`](Self::to_bits).
            pub const fn from_bits(bits: u64) -> Self {
                Self { index: bits as u32, generation: (bits >> 32) as u32 }
            }
            #[allow(dead_code)]
            pub(crate) const fn at(self) -> u32 {
                self.index
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($short, "{}.{}"), self.index, self.generation)
            }
        }
    };
}

id!(
    /// A listening address.
    ListenerId, "listener"
);
id!(
    /// One transport connection: a queue pair, or one or two sockets.
    NexusId, "nexus"
);
id!(
    /// A session: who talks with whom.
    SessionId, "session"
);
id!(
    /// One flow of messages inside a session.
    ConnectionId, "conn"
);
id!(
    /// One message, from its acceptance to its last event.
    TaskId, "task"
);
id!(
    /// A socket that the stream layer knows.
    SocketId, "socket"
);

id!(
    /// Registered user memory.
    RegionId, "region"
);

/// Names one driver's transport within an endpoint (0 to 3): every output carries or selects it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransportId(pub u8);

/// What a work request was for; travels in the `wr_id` of the queue pair and back.
///
/// Bits 0 to 31 hold the index, 32 to 59 the generation, 60 to 63 the kind. A completion whose
/// generation is not the present one is counted as stale and ignored.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct WrId(u64);

impl WrId {
    const GENERATION_MASK: u32 = 0x0fff_ffff;

    pub(crate) const fn new(kind: WrKind, index: u32, generation: u32) -> Self {
        let generation = (generation & Self::GENERATION_MASK) as u64;
        Self((kind as u64) << 60 | generation << 32 | index as u64)
    }
    /// The word as posted.
    pub const fn to_bits(self) -> u64 {
        self.0
    }
    /// Whatever the device brought back; validity is checked by the endpoint.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// Whether it is a receive.
    pub const fn is_recv(self) -> bool {
        self.0 >> 60 == WrKind::Recv as u64
    }
    pub(crate) const fn is_send(self) -> bool {
        self.0 >> 60 == WrKind::Send as u64
    }
    pub(crate) const fn is_frame(self) -> bool {
        self.0 >> 60 == WrKind::Frame as u64
    }
    /// Slot index of a receive; on a send queue task index of a message's frame, work-entry index
    /// of anything else.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }
    pub(crate) const fn matches(self, generation: u32) -> bool {
        (self.0 >> 32) as u32 & Self::GENERATION_MASK == generation & Self::GENERATION_MASK
    }
}

impl fmt::Debug for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wr:{:#x}", self.0)
    }
}

/// What a work request names.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WrKind {
    /// A slot on a receive queue.
    Recv = 1,
    /// A work entry on a send queue.
    Send = 2,
    /// A task whose frame is on a send queue.
    Frame = 3,
}
