//! Why something was refused, failed or ended.

use core::fmt;

use crate::ids::{ConnectionId, SessionId};
use crate::wire::{Violation, status};

/// A command that was not taken. Nothing changed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CommandError {
    /// The id is unknown or its life is over.
    Unknown,
    /// A table or pool is full; a `Writable` event says when to try again.
    Full(Resource),
    /// The peer's application credits do not cover the message; `Writable` says when.
    NoCredit,
    /// Larger than what the peer, the configuration or the offered buffers take.
    TooLong {
        /// Which length.
        what: Length,
        /// Its value in bytes (or entries for lists).
        len: u64,
        /// The largest allowed.
        max: u64,
    },
    /// The connection is closing or closed.
    Closed(Reason),
    /// The transport cannot do it (direct READ / WRITE on sockets).
    NotSupported,
    /// The object is in a state in which the command makes no sense.
    WrongState(&'static str),
    /// The slot was not reserved by this user, or is in use.
    BadSlot(u32),
    /// An address, URI or portal could not be used.
    BadAddress,
    /// A time in the past, a zero size, or another value that can never work.
    BadValue(&'static str),
    /// There is one already, and there is to be no second
    /// ([`ConnectOptions::only_with`](crate::ConnectOptions::only_with)).
    Exists(Existing),
}

/// What stands for the one connection between two (PROTOCOL.md 8.8).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Existing {
    /// The connection: online, on its way up or down.
    Connection(ConnectionId),
    /// The peer has asked for it: a session that waits for this user's answer.
    Session(SessionId),
}

/// What ran out.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Resource {
    /// Listening addresses.
    Listeners,
    /// Transport connections.
    Nexuses,
    /// Sessions.
    Sessions,
    /// Connections.
    Connections,
    /// Outgoing messages.
    Tasks,
    /// Slots for sending.
    SendSlots,
    /// Receive buffers.
    ReceiveSlots,
    /// Half-open sockets.
    Sockets,
    /// Shared extents for long segment lists.
    Extents,
    /// Registered regions of user memory.
    Regions,
    /// Places on send queues.
    WorkEntries,
    /// Places on completion queues.
    Completions,
    /// Bytes or messages allowed in a connection's queue.
    Queue,
}

/// Which length was too long.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Length {
    /// Application header of a message.
    Header,
    /// Data of a message.
    Data,
    /// Entries in a segment list.
    Segments,
    /// Private data or URI or portals of a session's setup.
    Setup,
    /// Data that must fit the buffers which the requester offered.
    OfferedBuffers,
    /// Data copied into the slot, where a peer cannot READ it and no WRITE finds it: that of a
    /// message which must travel so.
    Copied,
    /// Local memory of a direct READ or WRITE.
    Local,
}

/// Why a connection, session or transport connection ended, or was never made. The first reason
/// stands: a loss after this side's close is still this side's close.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// Closed by this side.
    Closed,
    /// Closed by the peer.
    PeerClosed,
    /// Ended by `abort` on this side.
    Aborted,
    /// The server's user refused the session with this code.
    Rejected(u32),
    /// The server's user sent the session elsewhere.
    Redirected,
    /// The session went on over the portals that its acceptance named.
    MovedToPortals,
    /// More redirections in a row than the configuration allows.
    TooManyRedirects(u8),
    /// URI and private data of the session do not fit the largest frame that the peer agreed to
    /// (PROTOCOL.md 7.1). Nothing was sent.
    SetupTooLong {
        /// Bytes of the setup's payload.
        len: u32,
        /// Bytes that it may have on this transport connection.
        max: u32,
    },
    /// The transport connection was lost.
    Disconnected,
    /// Nobody listens there, or the listener refused.
    Refused,
    /// The communication manager could not reach the address; its status.
    Unreachable(i32),
    /// The address could not be resolved; status of the communication manager.
    AddressError(i32),
    /// No route; status of the communication manager.
    RouteError(i32),
    /// Connecting failed otherwise; status of the communication manager.
    ConnectError(i32),
    /// The peer answered the transport setup with this status (PROTOCOL.md 2.1, 17).
    SetupRefused(u32),
    /// The peer, which is of this kind, turned this side away (PROTOCOL.md 2.2).
    TurnedAway(Refusal),
    /// A step took longer than its deadline.
    TimedOut(Step),
    /// The peer broke the protocol (PROTOCOL.md 13).
    Violation(Violation),
    /// A work request ended with this completion status.
    WorkFailed(WorkStatus),
    /// A work request could not be posted; the driver's error number.
    PostFailed(i32),
    /// The driver could not create or use a resource; its error number.
    DriverFailed(i32),
    /// The device was removed or failed.
    DeviceRemoved,
    /// This side had no room for the peer.
    NoResources {
        /// What there was too little of.
        what: Resource,
        /// How much was needed.
        need: u32,
        /// How much was left.
        have: u32,
    },
    /// The endpoint is being shut down.
    Shutdown,
    /// The peer lives again: what belongs to an earlier of its lives is over (PROTOCOL.md 2.7).
    PeerRestarted {
        /// The latest that is known.
        later: u64,
    },
    /// Somebody else answers there than whom the user named, or nobody who says who it is
    /// (PROTOCOL.md 8.8).
    WrongPeer {
        /// The identity that was found; 0 for nobody in particular.
        found: u64,
    },
    /// The peer of this identity knows no rule for two that call each other (PROTOCOL.md 8.8).
    CannotCross {
        /// Its identity.
        peer: u64,
    },
    /// So many races were lost against the peer's own connects, none of which came up
    /// (PROTOCOL.md 8.8).
    RacesLost(u8),
}

/// Why a peer of this kind turned this side away, with its values (PROTOCOL.md 2.2).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// It speaks another version.
    Version {
        /// What was asked for.
        asked: u32,
        /// What it speaks.
        spoken: u32,
    },
    /// The largest frame is too small for it, in bytes.
    BufferSize {
        /// What was asked for.
        asked: u32,
        /// The least that it takes.
        least: u32,
    },
    /// A queue is not deep enough for it, in frames.
    Depth {
        /// What was asked for.
        asked: u32,
        /// The least that it takes.
        least: u32,
    },
    /// It has no room.
    NoResources {
        /// How much was needed.
        need: u32,
        /// How much was left.
        have: u32,
    },
    /// It is not ready yet: worth trying again.
    TooEarly,
    /// It takes nobody, or nobody any more.
    NotAccepting,
}

impl Refusal {
    /// What goes over the wire: the kind, and two values.
    pub(crate) const fn words(self) -> [u32; 3] {
        match self {
            Self::Version { asked, spoken } => [1, asked, spoken],
            Self::BufferSize { asked, least } => [2, asked, least],
            Self::Depth { asked, least } => [3, asked, least],
            Self::NoResources { need, have } => [4, need, have],
            Self::TooEarly => [5, 0, 0],
            Self::NotAccepting => [6, 0, 0],
        }
    }

    /// Inverse of [`words`](Self::words); `None` for a kind that is not known.
    pub(crate) const fn from_words([kind, a, b]: [u32; 3]) -> Option<Self> {
        Some(match kind {
            1 => Self::Version {
                asked: a,
                spoken: b,
            },
            2 => Self::BufferSize { asked: a, least: b },
            3 => Self::Depth { asked: a, least: b },
            4 => Self::NoResources { need: a, have: b },
            5 => Self::TooEarly,
            6 => Self::NotAccepting,
            _ => return None,
        })
    }

    /// The status that says it to others.
    pub(crate) const fn status(self) -> u32 {
        match self {
            Self::Version { .. } => status::INVALID_VERSION,
            Self::BufferSize { .. } => status::MSG_SIZE,
            Self::Depth { .. } => status::PEER_QUEUE_SIZE_MISMATCH,
            Self::NoResources { .. } => status::NO_BUFS,
            Self::TooEarly => status::IN_PROGRESS,
            Self::NotAccepting => status::SESSION_REFUSED,
        }
    }
}

/// Steps with deadlines (PROTOCOL.md 12).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Address resolution to transport setup.
    Connect,
    /// Session setup or HELLO.
    SessionSetup,
    /// The peer's answer to a FIN.
    Fin,
    /// The peer's answer to a keepalive.
    Keepalive,
    /// A message's own deadline.
    Message,
    /// The user's answer to a waiting payload.
    Provide,
}

/// How a work request ended, as the driver reports it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WorkStatus {
    /// Done.
    Success,
    /// Thrown out because its queue pair went to the error state.
    Flushed,
    /// The peer did not answer (`IBV_WC_RETRY_EXC_ERR`).
    RetryExceeded,
    /// The peer had no receive posted (`IBV_WC_RNR_RETRY_EXC_ERR`).
    RnrRetryExceeded,
    /// Remote key, bounds or rights (`IBV_WC_REM_ACCESS_ERR`).
    RemoteAccess,
    /// Local key or bounds (`IBV_WC_LOC_PROT_ERR`, `IBV_WC_LOC_LEN_ERR`).
    LocalAccess,
    /// Any other, with the device's number.
    Other(u32),
}

/// Why a message did not reach its good outcome.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Its connection ended; what became of the message at the peer is not known.
    ConnectionEnded(Reason),
    /// Its connection was lost and is being made anew: the peer may have taken the message, so it is
    /// not sent again (PROTOCOL.md 8.5).
    Unknown(Reason),
    /// Its connection ended before a byte of it was sent.
    NeverSent(Reason),
    /// The peer answered with this status ([`status`](crate::wire::status) or an error number).
    PeerStatus(u32),
    /// The answer is longer than the buffers that were offered for it, or the message than the
    /// peer takes, whose limits became known after it was taken.
    TooLong {
        /// Which length; that of an answer is `OfferedBuffers`.
        what: Length,
        /// Its value in bytes (or entries for lists).
        len: u64,
        /// The largest possible.
        max: u64,
    },
    /// The payload was refused on this side with this status.
    RefusedHere(u32),
    /// Its work request ended with this status.
    Work(WorkStatus),
}

macro_rules! display_debug {
    ($($t:ty),*) => {$(
        impl core::error::Error for $t {}
    )*};
}

display_debug!(CommandError, Reason, Failure);

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unknown => f.write_str("no such object, or its life is over"),
            Self::Full(what) => write!(f, "no room left in {what:?}"),
            Self::NoCredit => f.write_str("the peer's credits do not cover the message"),
            Self::TooLong { what, len, max } => {
                write!(f, "{what:?} of {len} is more than the {max} allowed")
            }
            Self::Closed(reason) => write!(f, "connection closed: {reason}"),
            Self::NotSupported => f.write_str("the transport cannot do this"),
            Self::WrongState(what) => write!(f, "not possible now: {what}"),
            Self::BadSlot(slot) => write!(f, "slot {slot} is not reserved for sending"),
            Self::BadAddress => f.write_str("address or URI cannot be used"),
            Self::BadValue(what) => write!(f, "impossible value: {what}"),
            Self::Exists(Existing::Connection(id)) => {
                write!(f, "there is a connection with this peer: {id:?}")
            }
            Self::Exists(Existing::Session(id)) => {
                write!(f, "this peer's session waits for an answer: {id:?}")
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Closed => f.write_str("closed by this side"),
            Self::PeerClosed => f.write_str("closed by the peer"),
            Self::Aborted => f.write_str("aborted by this side"),
            Self::Rejected(code) => write!(f, "rejected by the peer: {}", Named(code)),
            Self::Redirected => f.write_str("redirected to another server"),
            Self::MovedToPortals => f.write_str("moved to the session's portals"),
            Self::TooManyRedirects(n) => write!(f, "redirected {n} times in a row"),
            Self::SetupTooLong { len, max } => {
                write!(f, "session setup of {len} bytes, the peer takes {max}")
            }
            Self::Disconnected => f.write_str("transport connection lost"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unreachable(s) => write!(f, "peer unreachable (status {s})"),
            Self::AddressError(s) => write!(f, "address cannot be resolved (status {s})"),
            Self::RouteError(s) => write!(f, "no route to the peer (status {s})"),
            Self::ConnectError(s) => write!(f, "connecting failed (status {s})"),
            Self::SetupRefused(s) => {
                write!(f, "peer refused the transport setup: {}", Named(s))
            }
            Self::TurnedAway(refusal) => write!(f, "turned away by the peer: {refusal}"),
            Self::TimedOut(step) => write!(f, "{step:?} took longer than its deadline"),
            Self::Violation(v) => write!(f, "peer broke the protocol: {v}"),
            Self::WorkFailed(s) => write!(f, "work request failed: {s:?}"),
            Self::PostFailed(e) => write!(f, "work request could not be posted (error {e})"),
            Self::DriverFailed(e) => write!(f, "driver failed (error {e})"),
            Self::DeviceRemoved => f.write_str("device removed"),
            Self::NoResources { what, need, have } => {
                write!(
                    f,
                    "no room for the peer: {what:?}, {need} needed, {have} left"
                )
            }
            Self::Shutdown => f.write_str("endpoint shut down"),
            Self::PeerRestarted { later } => {
                write!(f, "the peer was started again (life {later})")
            }
            Self::WrongPeer { found: 0 } => {
                f.write_str("whoever answers there does not say who it is")
            }
            Self::WrongPeer { found } => {
                write!(f, "{found:#x} answers there, not the one that was named")
            }
            Self::CannotCross { peer } => {
                write!(f, "{peer:#x} knows no rule for two that call each other")
            }
            Self::RacesLost(races) => {
                write!(
                    f,
                    "{races} calls lost against the peer's, which never came up"
                )
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Version { asked, spoken } => {
                write!(f, "it speaks version {spoken:#x}, not {asked:#x}")
            }
            Self::BufferSize { asked, least } => {
                write!(f, "frames of {asked} bytes, it takes {least} or more")
            }
            Self::Depth { asked, least } => {
                write!(f, "a queue of {asked} frames, it takes {least} or more")
            }
            Self::NoResources { need, have } => write!(f, "no room, {need} needed, {have} left"),
            Self::TooEarly => f.write_str("too early"),
            Self::NotAccepting => f.write_str("it takes nobody"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ConnectionEnded(r) => write!(f, "connection ended, outcome unknown: {r}"),
            Self::Unknown(r) => write!(f, "connection lost, outcome unknown: {r}"),
            Self::NeverSent(r) => write!(f, "never sent: {r}"),
            Self::PeerStatus(s) => write!(f, "peer answered with {}", Named(s)),
            Self::TooLong { what, len, max } => {
                write!(f, "{what:?} of {len} is more than the {max} possible")
            }
            Self::RefusedHere(s) => write!(f, "payload refused: {}", Named(s)),
            Self::Work(s) => write!(f, "work request failed: {s:?}"),
        }
    }
}

/// A status from the wire, by name where it has one.
struct Named(u32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match status::name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "status {}", self.0),
        }
    }
}
