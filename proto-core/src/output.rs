//! What an endpoint asks its drivers to do.

use core::net::SocketAddr;

use crate::error::Reason;
use crate::ids::{ListenerId, NexusId, RegionId, SocketId, WrId};
use crate::memory::{SegmentSpan, SlotId, Span};
use crate::wire::status;

/// A work request. Posted at once, in the order polled, on the queue it names; a driver whose
/// post fails says so with `handle_post_failed`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// A receive buffer for `nexus` (its own queue, or the shared one). Never on streams.
    Recv {
        /// The queue pair.
        nexus: NexusId,
        /// Comes back in the completion.
        wr: WrId,
        /// The whole slot is lent.
        slot: SlotId,
    },
    /// One frame: `head`, then `tail`, then `data`, gathered. On two streams `head` goes on the
    /// control stream and the rest on the data stream; otherwise all goes out in this order.
    /// On streams it is complete when the last byte of all three is written; what is written before
    /// that in several goes is told with `handle_stream_progress`.
    ///
    /// The first one of a connecting side on streams holds the connect messages too: `head`
    /// begins with that of the control (or single) stream, `tail` is that of the data stream.
    Send {
        /// The queue pair.
        nexus: NexusId,
        /// Comes back in the completion.
        wr: WrId,
        /// Headers.
        head: Span,
        /// Payload bytes that lie in the slot.
        tail: Span,
        /// Payload in user memory.
        data: SegmentSpan,
        /// A completion is wanted.
        signaled: bool,
        /// After all READs before it.
        fence: bool,
    },
    /// READ from the peer's memory into `local`.
    Read {
        /// The queue pair.
        nexus: NexusId,
        /// Comes back in the completion.
        wr: WrId,
        /// Where the data goes.
        local: SegmentSpan,
        /// Address at the peer.
        remote: u64,
        /// Key at the peer.
        rkey: u32,
        /// Wait for the READs before it.
        fence: bool,
        /// A completion is wanted.
        signaled: bool,
    },
    /// WRITE of `local` into the peer's memory.
    Write {
        /// The queue pair.
        nexus: NexusId,
        /// Comes back in the completion.
        wr: WrId,
        /// What is written.
        local: SegmentSpan,
        /// Address at the peer.
        remote: u64,
        /// Key at the peer.
        rkey: u32,
        /// A completion is wanted.
        signaled: bool,
    },
}

/// Private data that goes out with a connect, accept or reject of the communication manager. A
/// libxio sends none and ignores it; extensions are offered and answered in it (PROTOCOL.md 2.6).
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl PrivateData {
    /// Bytes that an accept can carry, the most of all three.
    pub const MAX: usize = 196;
    /// Nothing.
    pub const EMPTY: Self = Self {
        bytes: [0; Self::MAX],
        len: 0,
    };

    /// How the private data of a rejection begins that has a status behind it.
    const REFUSAL: [u8; 4] = *b"XIOR";

    /// What goes out with the rejection of a connect request that
    /// [`handle_connect_request`](crate::Endpoint::handle_connect_request) did not take, so that
    /// the peer learns why (PROTOCOL.md 2.5).
    pub const fn refusal(reason: Reason) -> Self {
        let status = match reason {
            Reason::Refused => return Self::EMPTY,
            Reason::NoResources { .. } => status::NO_BUFS,
            _ => status::SESSION_REFUSED,
        };
        let mut bytes = [0; Self::MAX];
        let (mark, code) = (Self::REFUSAL, status.to_be_bytes());
        let mut at = 0;
        while at < 4 {
            bytes[at] = mark[at];
            bytes[4 + at] = code[at];
            at += 1;
        }
        Self { bytes, len: 8 }
    }

    /// These bytes, at most [`MAX`](Self::MAX) of them.
    pub(crate) fn of(data: &[u8]) -> Self {
        let mut bytes = [0; Self::MAX];
        bytes[..data.len()].copy_from_slice(data);
        let len = data.len() as u8;
        Self { bytes, len }
    }

    /// The status in the private data of a rejection, if it has one. Communication managers append
    /// zeros.
    pub(crate) fn refusal_status(private: &[u8]) -> Option<u32> {
        let (status, _) = private.strip_prefix(&Self::REFUSAL)?.split_first_chunk()?;
        Some(u32::from_be_bytes(*status))
    }

    /// The bytes to send.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl core::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Parameters of connect and accept.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConnectParams {
    /// `retry_count` of the queue pair (0 to 7).
    pub retry: u8,
    /// `rnr_retry_count` (7 is without end).
    pub rnr_retry: u8,
    /// READs outstanding in each direction, at most; the driver bounds it by its device.
    pub reads: u8,
    /// Sockets: two streams.
    pub dual_stream: bool,
    /// Private data, at most 56 bytes of it with a connect.
    pub private: PrivateData,
}

bitflags::bitflags! {
    /// What peers may do with registered memory; this side may always use it.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct Access: u8 {
        /// READ it.
        const REMOTE_READ = 1;
        /// WRITE it.
        const REMOTE_WRITE = 2;
    }
}

/// An action of the communication manager or of the driver (PROTOCOL.md 2).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Control {
    /// Bind and listen. A failure is reported with `handle_listen_failed`.
    Listen {
        /// The listener.
        listener: ListenerId,
        /// Where.
        address: SocketAddr,
        /// Connections queued before they are taken.
        backlog: u32,
    },
    /// Stop listening; connections stay.
    Unlisten {
        /// The listener.
        listener: ListenerId,
    },
    /// Resolve the address; ends in `AddrResolved` or an error.
    ResolveAddress {
        /// The queue pair to be.
        nexus: NexusId,
        /// The peer.
        peer: SocketAddr,
        /// Local address to use.
        local: Option<SocketAddr>,
        /// Milliseconds the communication manager may take.
        timeout_ms: u32,
    },
    /// Resolve the route; ends in `RouteResolved` or an error.
    ResolveRoute {
        /// The queue pair to be.
        nexus: NexusId,
        /// Milliseconds the communication manager may take.
        timeout_ms: u32,
    },
    /// Make the queue pair, or the [`sockets`](crate::Endpoint::sockets) under the ids that they
    /// have already; ends in `handle_queue_pair`.
    CreateQueuePair {
        /// Its name.
        nexus: NexusId,
    },
    /// Connect; ends in `Established` (on streams `handle_streams_connected`), `Rejected` or an
    /// error.
    Connect {
        /// The queue pair.
        nexus: NexusId,
        /// How.
        params: ConnectParams,
    },
    /// Accept the peer's connect request. On streams there is nothing to answer: it says that
    /// the [`sockets`](crate::Endpoint::sockets) of the nexus have become a transport connection.
    Accept {
        /// The queue pair.
        nexus: NexusId,
        /// How.
        params: ConnectParams,
    },
    /// Refuse a connect request that was taken before (its resources failed, say).
    Reject {
        /// The queue pair.
        nexus: NexusId,
        /// Why, for the driver's log.
        reason: Reason,
        /// Private data, at most 148 bytes.
        private: PrivateData,
    },
    /// Disconnect; ends in `Disconnected`.
    Disconnect {
        /// The queue pair.
        nexus: NexusId,
    },
    /// Move the queue pair to the error state, so that what is posted comes back flushed.
    Drain {
        /// The queue pair.
        nexus: NexusId,
    },
    /// Destroy queue pair and connection id (or close the sockets); ends in `handle_destroyed`,
    /// after which the driver touches nothing of it any more.
    Destroy {
        /// The queue pair.
        nexus: NexusId,
    },
    /// Register user memory, exactly this range; ends in `handle_region`.
    Register {
        /// The region.
        region: RegionId,
        /// First address.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Rights of peers.
        access: Access,
    },
    /// Make a region's keys worthless; ends in `handle_region_revoked`, after which no peer can
    /// reach the memory through them.
    Revoke {
        /// The region.
        region: RegionId,
    },
    /// Close a socket that never became part of a transport connection. Its id is no more: the
    /// next socket accepted may have its place.
    CloseSocket {
        /// The socket.
        socket: SocketId,
        /// Why, for the driver's log.
        reason: Reason,
    },
}
