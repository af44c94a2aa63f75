//! What an endpoint tells its user.

use core::net::SocketAddr;

use crate::error::{Failure, Reason};
use crate::ids::{ConnectionId, ListenerId, RegionId, SessionId, TaskId};
use crate::memory::{SegmentSpan, Span};

/// Where the data of a received message lies.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// In the receive slot.
    Slot(Span),
    /// In the segments that the user provided or offered.
    Segments(SegmentSpan),
}

impl Data {
    /// Bytes of data.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Slot(span) => span.len as u64,
            Self::Segments(span) => span.len,
        }
    }
    /// True when the message had no data.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the peer or this side said with a read receipt (PROTOCOL.md 9.4).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Receipt {
    /// Taken (0 on the wire; libxio always says this).
    Accepted,
    /// Not taken; another number on the wire.
    Rejected(u32),
}

/// Something the user wants to know. Each connection's events come in order; `Closed` is the
/// last of its connection. `user` is the value that the user gave with the object.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a session: answer with `accept`, `reject` or `redirect`. URI and private
    /// data lie in a receive slot until then.
    SessionRequest {
        /// The session.
        session: SessionId,
        /// The listener's user value.
        user: u64,
        /// The listener.
        listener: ListenerId,
        /// The peer.
        peer: SocketAddr,
        /// The URI that the peer asked for.
        uri: Span,
        /// The peer's private data.
        private: Span,
        /// The peer wants it to be the only connection between the two (PROTOCOL.md 8.8): who it is,
        /// as in [`ConnectOptions::only_with`](crate::ConnectOptions::only_with).
        only_from: Option<u64>,
    },
    /// The server names portals: where the session goes on. They are tried in their order, those
    /// with numeric addresses first; one with a host name is tried when
    /// [`resolve_portal`](crate::Endpoint::resolve_portal) says what it means. `Established` or
    /// `ConnectFailed` follows.
    Portals {
        /// The connection.
        connection: ConnectionId,
        /// Its user value.
        user: u64,
        /// The list, readable until the next call that changes the endpoint:
        /// [`wire::portals`](crate::wire::portals) takes it apart.
        list: Span,
        /// How many there are.
        count: u16,
        /// Of them: those with host names.
        unresolved: u16,
    },
    /// The connection is ready for messages.
    Established {
        /// The connection.
        connection: ConnectionId,
        /// Its session.
        session: SessionId,
        /// Its user value.
        user: u64,
        /// Holds the peer's private data until released; `None` when there is none.
        message: Option<TaskId>,
        /// The peer's private data.
        private: Span,
    },
    /// The connection could not be made; `Closed` follows. When this side closed it while the server
    /// said yes, what the server sent at once comes in between.
    ConnectFailed {
        /// The connection.
        connection: ConnectionId,
        /// Its user value.
        user: u64,
        /// Why.
        reason: Reason,
        /// Holds the peer's private data until released; `None` when there is none.
        message: Option<TaskId>,
        /// The peer's private data (of a rejection).
        private: Span,
    },
    /// The connection is lost and will be made anew (PROTOCOL.md 8.5). What was never
    /// sent waits, and what was sent to a peer that can say whether it came; all else that it costs has
    /// had its outcome. More may be sent meanwhile. `Reconnected` or `Closed` follows.
    Reconnecting {
        /// The connection.
        connection: ConnectionId,
        /// Its user value.
        user: u64,
        /// Why it was lost.
        reason: Reason,
        /// Requests in the user's hands that can no longer be answered; their slots stay readable
        /// until released.
        unanswered: u32,
    },
    /// A connection that was lost is ready for messages again.
    Reconnected {
        /// The connection: the same as before.
        connection: ConnectionId,
        /// Its session: a new one.
        session: SessionId,
        /// Its user value.
        user: u64,
        /// Attempts that it took.
        attempts: u32,
        /// The peer was started again meanwhile: it has an identity, and is in another life (PROTOCOL.md
        /// 2.7). What it knew of the connection it does not know any more.
        restarted: bool,
        /// Holds the peer's private data until released; `None` when there is none.
        message: Option<TaskId>,
        /// The peer's private data.
        private: Span,
    },
    /// A request: answer it with `respond`, or drop it with `release`.
    Request {
        /// The connection.
        connection: ConnectionId,
        /// The connection's user value.
        user: u64,
        /// The request.
        task: TaskId,
        /// Its application header.
        header: Span,
        /// Its data.
        data: Data,
        /// Bytes that the requester expects back at most, as it offered buffers for.
        room: u64,
        /// The requester's mark that no more of its batch follows.
        last_in_batch: bool,
    },
    /// The requester of a request in the user's hands does not want it any more. It may be answered
    /// as before, to no effect; `release` answers it too, and is all that is left to do
    /// (PROTOCOL.md 9.7).
    CancelAsked {
        /// The connection.
        connection: ConnectionId,
        /// The connection's user value.
        user: u64,
        /// The request.
        task: TaskId,
    },
    /// A one-way message: give it back with `release`.
    OneWay {
        /// The connection.
        connection: ConnectionId,
        /// The connection's user value.
        user: u64,
        /// The message.
        task: TaskId,
        /// Its application header.
        header: Span,
        /// Its data.
        data: Data,
        /// The sender's mark that no more of its batch follows.
        last_in_batch: bool,
    },
    /// A message whose payload is still at the peer: answer with `provide` or `refuse`, within
    /// `provide_timeout` (PROTOCOL.md 10.3).
    PayloadWaiting {
        /// The connection.
        connection: ConnectionId,
        /// The connection's user value.
        user: u64,
        /// The message.
        task: TaskId,
        /// Its application header.
        header: Span,
        /// Bytes waiting.
        len: u64,
    },
    /// The good outcome of a request: give it back with `release`.
    Response {
        /// The request.
        task: TaskId,
        /// The request's user value.
        user: u64,
        /// The connection's user value.
        connection_user: u64,
        /// The response's application header.
        header: Span,
        /// The response's data.
        data: Data,
        /// As in `Failed`: the answer may overtake the completion of the request's own send.
        buffers_returned: bool,
    },
    /// A read receipt came for a request (its response follows) or is the outcome of a one-way.
    Delivered {
        /// The message.
        task: TaskId,
        /// Its user value.
        user: u64,
        /// What the peer said.
        receipt: Receipt,
        /// As in `Failed`; false for a request, whose outcome is still to come.
        buffers_returned: bool,
    },
    /// The outcome of a one-way without receipt, of a response, or of a direct READ or WRITE.
    Sent {
        /// The message.
        task: TaskId,
        /// Its user value.
        user: u64,
        /// As in `Failed`: a peer that READ the data may say so before the frame's own completion.
        buffers_returned: bool,
    },
    /// The bad outcome of a message.
    Failed {
        /// The message.
        task: TaskId,
        /// Its user value.
        user: u64,
        /// Why.
        failure: Failure,
        /// False: the peer or the device may still touch the buffers; `BuffersReturned` follows.
        buffers_returned: bool,
    },
    /// The message's deadline passed before its outcome.
    TimedOut {
        /// The message.
        task: TaskId,
        /// Its user value.
        user: u64,
        /// As in `Failed`.
        buffers_returned: bool,
    },
    /// The message was cancelled.
    Cancelled {
        /// The message.
        task: TaskId,
        /// Its user value.
        user: u64,
        /// As in `Failed`.
        buffers_returned: bool,
    },
    /// Nobody touches the buffers of this message any more.
    BuffersReturned {
        /// The message.
        task: TaskId,
        /// Its user value.
        user: u64,
    },
    /// What a command was refused for (`Full`, `NoCredit`) is worth trying again.
    Writable {
        /// The connection.
        connection: ConnectionId,
        /// Its user value.
        user: u64,
    },
    /// The connection's last event.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Its user value.
        user: u64,
        /// Why.
        reason: Reason,
        /// Requests in the user's hands that can no longer be answered; their slots stay
        /// readable until released.
        unanswered: u32,
    },
    /// The endpoint's last event, after [`stop`](crate::Endpoint::stop).
    Stopped {
        /// Connections that did not part within the bound.
        aborted: u64,
    },
    /// No connection of the session is left on this endpoint.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// Why its last connection ended.
        reason: Reason,
    },
    /// Registered memory can be used.
    RegionReady {
        /// The region.
        region: RegionId,
        /// Its user value.
        user: u64,
        /// Key for segments on this side.
        lkey: u32,
        /// Key for peers.
        rkey: u32,
    },
    /// Memory could not be registered.
    RegionFailed {
        /// The region.
        region: RegionId,
        /// Its user value.
        user: u64,
        /// The driver's error number.
        error: i32,
    },
    /// No peer can reach the memory through its keys any more.
    RegionRevoked {
        /// The region.
        region: RegionId,
        /// Its user value.
        user: u64,
    },
    /// The device that a listener was on is gone, and the listener with it. What was accepted there
    /// is told of by itself.
    ListenerLost {
        /// The listener.
        listener: ListenerId,
        /// Its user value.
        user: u64,
    },
    /// A listener could not be set up.
    ListenFailed {
        /// The listener.
        listener: ListenerId,
        /// Its user value.
        user: u64,
        /// The driver's error number.
        error: i32,
    },
}
