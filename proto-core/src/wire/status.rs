//! Status codes as they stand in nexus answers, rejects, cancels and responses (PROTOCOL.md 17).
//!
//! Zero is success. Peers also send plain errno values in the same fields.

/// Declares the codes, counted from the base in steps of one.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $n:literal,)+) => {
        $($(#[$doc])* pub const $name: u32 = BASE + $n;)+

        /// Returns the name of a code of this table, or `None` for any other number.
        #[must_use]
        pub const fn name(code: u32) -> Option<&'static str> {
            match code {
                SUCCESS => Some("SUCCESS"),
                CROSSED => Some("CROSSED"),
                $($name => Some(stringify!($name)),)+
                _ => None,
            }
        }
    };
}

/// No error.
pub const SUCCESS: u32 = 0;
/// The session loses against one of its server's own to its client: that one is to be awaited. It
/// means this where both agreed on CROSS and the session takes part in a race (PROTOCOL.md 8.8), and
/// is none of libxio's codes. Users cannot reject with it.
pub const CROSSED: u32 = 0x5845_4352;
/// The first code of the table.
pub const BASE: u32 = 0x4a5e_3a54;

codes! {
    /// The operation does not exist here.
    NOT_SUPPORTED = 0,
    /// Out of buffers.
    NO_BUFS = 1,
    /// The connect failed.
    CONNECT_ERROR = 2,
    /// No route to the peer.
    ROUTE_ERROR = 3,
    /// The address could not be resolved.
    ADDR_ERROR = 4,
    /// The peer cannot be reached.
    UNREACHABLE = 5,
    /// The message has a size that cannot be sent.
    MSG_SIZE = 6,
    /// Only a part of the message went through.
    PARTIAL_MSG = 7,
    /// The message makes no sense.
    MSG_INVALID = 8,
    /// The message has an unknown type.
    MSG_UNKNOWN = 9,
    /// No session was granted.
    SESSION_REFUSED = 10,
    /// The session ended by force.
    SESSION_ABORTED = 11,
    /// The session lost its transport.
    SESSION_DISCONNECTED = 12,
    /// The application declined the session.
    SESSION_REJECTED = 13,
    /// The session is to be opened elsewhere.
    SESSION_REDIRECTED = 14,
    /// The session ended in order.
    SESSION_CLOSED = 15,
    /// The local address could not be bound.
    BIND_FAILED = 16,
    /// Nothing happened in time.
    TIMEOUT = 17,
    /// Already under way.
    IN_PROGRESS = 18,
    /// A version that is not spoken here.
    INVALID_VERSION = 19,
    /// Not a session.
    NOT_SESSION = 20,
    /// An open failed.
    OPEN_FAILED = 21,
    /// A read failed.
    READ_FAILED = 22,
    /// A write failed.
    WRITE_FAILED = 23,
    /// A close failed.
    CLOSE_FAILED = 24,
    /// Failed, without more detail.
    UNSUCCESSFUL = 25,
    /// The message was withdrawn.
    MSG_CANCELED = 26,
    /// The message could not be withdrawn.
    MSG_CANCEL_FAILED = 27,
    /// There is no such message.
    MSG_NOT_FOUND = 28,
    /// The message was dropped when its connection ended.
    MSG_FLUSHED = 29,
    /// The message was thrown away.
    MSG_DISCARDED = 30,
    /// Not possible in this state.
    STATE = 31,
    /// The application gave no buffers.
    NO_USER_BUFS = 32,
    /// The application's buffers are not registered.
    NO_USER_MR = 33,
    /// The data is larger than the application's buffers.
    USER_BUF_OVERFLOW = 34,
    /// The data is larger than the peer application's buffers.
    REM_USER_BUF_OVERFLOW = 35,
    /// The send queue is full.
    TX_QUEUE_OVERFLOW = 36,
    /// The application's object is not known.
    USER_OBJ_NOT_FOUND = 37,
    /// The peer's queues have another size.
    PEER_QUEUE_SIZE_MISMATCH = 38,
    /// The response does not fit the buffers offered for it.
    RSP_BUF_SIZE_MISMATCH = 39,
}
