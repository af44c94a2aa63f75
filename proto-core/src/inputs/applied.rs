//! What came of an input.

use core::fmt::{self, Write as _};

use crate::endpoint::{ConfigError, SessionTicket};
use crate::error::{CommandError, Reason};
use crate::event::Event;
use crate::ids::{
    ConnectionId, ListenerId, NexusId, RegionId, SessionId, SocketId, TaskId, TransportId,
};
use crate::memory::SlotId;
use crate::output::{Control, Work};
use crate::stream::StreamWant;

/// Declares [`Applied`] with a conversion from what each kind of method returns.
macro_rules! applied {
    ($($(#[$doc:meta])* $variant:ident($ty:ty),)+) => {
        /// What a method of an endpoint returned.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum Applied {
            /// The method returns nothing.
            Nothing,
            $($(#[$doc])* $variant($ty),)+
        }

        impl From<()> for Applied {
            fn from((): ()) -> Self {
                Self::Nothing
            }
        }

        $(impl From<$ty> for Applied {
            fn from(value: $ty) -> Self {
                Self::$variant(value)
            }
        })+
    };
}

applied! {
    /// A command without a value.
    Command(Result<(), CommandError>),
    /// `listen`.
    Listener(Result<ListenerId, CommandError>),
    /// `connect`, `join`, `accept`.
    Connection(Result<ConnectionId, CommandError>),
    /// `import_session`.
    Session(Result<SessionId, CommandError>),
    /// `export_session`.
    Ticket(Result<SessionTicket, CommandError>),
    /// Commands that make a message.
    Task(Result<TaskId, CommandError>),
    /// `reserve_slot`, `reserve_answer_slot`.
    Slot(Result<SlotId, CommandError>),
    /// `register`.
    Region(Result<RegionId, CommandError>),
    /// `add_pool`.
    Pool(Result<(), ConfigError>),
    /// `add_transport`.
    Transport(Result<TransportId, ConfigError>),
    /// `handle_connect_request`.
    Nexus(Result<NexusId, Reason>),
    /// `handle_socket_accepted`.
    Socket(Result<SocketId, Reason>),
    /// `handle_stream_bytes`: how many were taken.
    Taken(usize),
    /// `stream_want`.
    Want(StreamWant),
    /// `poll_control`.
    Control(Option<Control>),
    /// `poll_work`.
    Work(Option<Work>),
    /// `poll_event`.
    Event(Option<Event>),
    /// `poll_stream`.
    Stream(Option<SocketId>),
}

impl Applied {
    /// True when there is nothing to tell: no value, or a poll that found nothing.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        matches!(
            self,
            Self::Nothing
                | Self::Control(None)
                | Self::Work(None)
                | Self::Event(None)
                | Self::Stream(None)
        )
    }

    /// A hash of the value's `Debug` text and of what the endpoint wrote into a frame: two
    /// endpoints of one version that give equal outputs give equal digests.
    #[must_use]
    pub fn digest(&self, frame: &[u8]) -> u64 {
        let mut hash = Fnv::NEW;
        // Writing into a hash does not fail.
        let _ = write!(hash, "{self:?}");
        hash.bytes(frame);
        hash.0
    }
}

/// FNV-1a with 64 bits: nobody attacks it, it has to be the same everywhere.
struct Fnv(u64);

impl Fnv {
    const NEW: Self = Self(0xcbf2_9ce4_8422_2325);

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}
