//! What the world tells an endpoint.

use core::net::SocketAddr;

use crate::error::WorkStatus;
use crate::ids::WrId;

/// Kinds of communication-manager events, numbered as in `rdma_cma.h`. What each does is in
/// PROTOCOL.md 2.5.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CmKind {
    /// The address is resolved.
    AddrResolved,
    /// It could not be.
    AddrError,
    /// The route is resolved.
    RouteResolved,
    /// It could not be.
    RouteError,
    /// A peer asks to connect; arrives through `handle_connect_request`, and is ignored here.
    ConnectRequest,
    /// The peer accepted, without a queue pair of the communication manager's.
    ConnectResponse,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer refused.
    Rejected,
    /// Connected.
    Established,
    /// Disconnected.
    Disconnected,
    /// The device is being removed.
    DeviceRemoval,
    /// Multicast; means nothing here.
    MulticastJoin,
    /// Multicast; means nothing here.
    MulticastError,
    /// The local address moved to another device.
    AddrChange,
    /// The time-wait of the queue pair is over.
    TimewaitExit,
    /// A number that no version known to us uses.
    Unknown(u32),
}

impl CmKind {
    /// From the number in the event structure.
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::AddrResolved,
            1 => Self::AddrError,
            2 => Self::RouteResolved,
            3 => Self::RouteError,
            4 => Self::ConnectRequest,
            5 => Self::ConnectResponse,
            6 => Self::ConnectError,
            7 => Self::Unreachable,
            8 => Self::Rejected,
            9 => Self::Established,
            10 => Self::Disconnected,
            11 => Self::DeviceRemoval,
            12 => Self::MulticastJoin,
            13 => Self::MulticastError,
            14 => Self::AddrChange,
            15 => Self::TimewaitExit,
            other => Self::Unknown(other),
        }
    }

    /// Inverse of [`from_number`](Self::from_number).
    pub const fn number(self) -> u32 {
        match self {
            Self::AddrResolved => 0,
            Self::AddrError => 1,
            Self::RouteResolved => 2,
            Self::RouteError => 3,
            Self::ConnectRequest => 4,
            Self::ConnectResponse => 5,
            Self::ConnectError => 6,
            Self::Unreachable => 7,
            Self::Rejected => 8,
            Self::Established => 9,
            Self::Disconnected => 10,
            Self::DeviceRemoval => 11,
            Self::MulticastJoin => 12,
            Self::MulticastError => 13,
            Self::AddrChange => 14,
            Self::TimewaitExit => 15,
            Self::Unknown(other) => other,
        }
    }
}

/// An event of the communication manager (or what a socket driver makes of its sockets).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CmEvent<'a> {
    /// What happened.
    pub kind: CmKind,
    /// 0, or why it failed. An event of a good kind with another status counts as failed.
    pub status: i32,
    /// The local address, once it is known.
    pub local: Option<SocketAddr>,
    /// Private data of the peer, as long as the transport says it is (padding included).
    pub private: &'a [u8],
}

impl CmEvent<'_> {
    /// An event with a kind and nothing else.
    pub const fn plain(kind: CmKind) -> Self {
        Self {
            kind,
            status: 0,
            local: None,
            private: &[],
        }
    }
    /// A failure with its status.
    pub const fn failed(kind: CmKind, status: i32) -> Self {
        Self {
            kind,
            status,
            local: None,
            private: &[],
        }
    }
}

/// A work completion.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The word that was posted.
    pub wr: WrId,
    /// How it ended.
    pub status: WorkStatus,
    /// Bytes received; meaningless otherwise.
    pub len: u32,
}

/// How a user memory region changed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KeyEvent {
    /// The peer can no longer reach memory through the key.
    Revoked(u32),
}
