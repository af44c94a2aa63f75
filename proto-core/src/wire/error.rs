//! The one error type of the codec: what in a frame is not as it must be.

use core::fmt;

/// A defect found in received bytes (PROTOCOL.md 13): the check that failed, where, and the value
/// that failed it.
///
/// `offset` counts bytes from the start of the slice that was parsed: the frame, or the payload
/// for the parsers that get only a payload (see [`Violation::shifted`]). `value` is the offending
/// number in host order; for length checks it is the length found.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Violation {
    /// The check that failed.
    pub what: What,
    /// Byte offset of the offending field.
    pub offset: u32,
    /// The offending value.
    pub value: u64,
}

impl Violation {
    /// Makes a violation. Out of line, because it sits on paths that a correct peer never takes.
    #[cold]
    #[inline(never)]
    #[must_use]
    pub const fn new(what: What, offset: u32, value: u64) -> Self {
        Self {
            what,
            offset,
            value,
        }
    }

    /// Moves the offset by `by` bytes: from a position in a payload to one in its frame.
    #[cold]
    #[must_use]
    pub const fn shifted(self, by: u32) -> Self {
        Self {
            offset: self.offset.saturating_add(by),
            ..self
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            offset,
            value,
        } = self;
        write!(
            f,
            "{}: value {value} (0x{value:x}) at byte {offset}",
            what.text()
        )
    }
}

impl core::error::Error for Violation {}

/// Declares [`What`] with the two texts of each variant, so that none can be forgotten.
macro_rules! what {
    ($($(#[$doc:meta])* $variant:ident => $text:literal,)+) => {
        /// The strict checks of the codec, one variant each.
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum What {
            $($(#[$doc])* $variant,)+
        }

        impl What {
            /// Every check.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name of the variant, for counters and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                }
            }

            /// Returns one line of explanation.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

what! {
    /// Fewer bytes than the fixed part of such a frame or payload.
    Truncated => "too short for its fixed part",
    /// The first word is not the magic number.
    Magic => "wrong magic number",
    /// The type word is none of the known ones.
    UnknownKind => "unknown frame type",
    /// The type exists, but never on this transport.
    KindNotOnDialect => "frame type does not exist on this transport",
    /// A known type, but not the one this parser is for.
    WrongKind => "frame type is not the expected one",
    /// The length word is above what any frame may announce.
    TlvLenTooLarge => "announced length above the limit",
    /// The length word contradicts the lengths in the headers or the bytes received.
    TlvLenMismatch => "announced length contradicts the headers",
    /// The frame is longer than the agreed buffer size.
    FrameTooLong => "frame longer than the agreed buffer size",
    /// The parts of the frame do not add up to the bytes received.
    FrameLength => "parts do not add up to the bytes received",
    /// The transport header announces another size than its layout has.
    TransportHeaderLength => "wrong transport header length",
    /// The operation for the response data is not one of those allowed.
    InOp => "operation for response data not allowed",
    /// The operation of the data is not one of those allowed here.
    OutOp => "operation of the data not allowed",
    /// More segments for response data than we said we take.
    TooManyInSges => "too many segments offered for response data",
    /// More segments of data than we said we take.
    TooManyOutSges => "too many segments of data",
    /// A list of segments or lengths goes with data that is inline.
    ListWithInlineData => "segment list with inline data",
    /// Data is to be moved outside the frame, but nothing says where from or how it is cut.
    EmptyList => "no segments for data outside the frame",
    /// Inline data announced although the data is to be read.
    InlineLenWithRead => "inline length with data to be read",
    /// The application header, or the payload of a control frame, is longer than allowed.
    HeaderTooLong => "application header above the limit",
    /// A frame that must be empty has something after its headers.
    NotEmpty => "payload in a frame that must be empty",
    /// A control frame has segments, or inline data besides its payload.
    ControlData => "data or segments in a control frame",
    /// The lengths written do not add up to the length of the data.
    WriteLengthSum => "written lengths do not add up to the data length",
    /// The nexus protocol version is not ours; the value is the one received.
    NexusVersion => "unsupported nexus version",
    /// More than ten keepalives came in a second, with nothing of ours in between.
    KeepaliveRate => "keepalives too often",
    /// A buffer size was announced that no rejection fits.
    BufferSizeTooSmall => "buffer size that no rejection fits",
    /// A queue depth of zero was answered.
    DepthZero => "queue depth of zero",
    /// The table of remote keys is not what its count says.
    RkeyTable => "remote key table does not fit its count",
    /// The resource name reaches over the end of the payload.
    UriLength => "uri longer than its payload",
    /// A portal reaches over the end of the payload.
    PortalLength => "portal longer than its payload",
    /// A redirect that names no portal.
    NoPortals => "redirect without portals",
    /// The private data reaches over the end of the payload.
    PrivateLength => "private data longer than its payload",
    /// The lengths in a payload leave bytes over.
    TrailingBytes => "bytes left over after the last field",
    /// The answer to a session setup is none of accept, redirect, reject.
    SessionAction => "unknown answer to a session setup",
    /// A body announces another size than its layout has.
    BodyLength => "wrong length word in the body",
    /// A credit frame with an operation or flags other than zero.
    NopFields => "credit frame with unknown operation or flags",
    /// The socket kind is none of single, control, data.
    SocketKind => "unknown socket kind",
    /// A socket of a pair that does not name its partner's port.
    SecondPort => "socket of a pair without partner port",

    // What only the states can see.
    /// A type that has no place in this state, or comes from the wrong side.
    UnexpectedKind => "frame type not possible in this state",
    /// The task id of an answer is none that is waiting here for such an answer.
    UnknownTask => "answer to a request that is not outstanding here",
    /// The session id is none of this transport connection.
    UnknownSession => "unknown session",
    /// The transport sequence number is not the next one.
    TransportSn => "transport sequence number out of order",
    /// The sequence number of the session is not the next one.
    SessionSn => "session sequence number out of order",
    /// The serial number does not grow, or is not the request's in its answer.
    Serial => "serial number out of order",
    /// A frame that needs a credit came without one.
    NoCredit => "frame without a credit for it",
    /// More credits granted than any peer has receives.
    CreditOverflow => "more credits than possible",
    /// A response that is neither receipt nor answer.
    ResponseFlags => "response that is neither receipt nor answer",
    /// A second receipt for the same message.
    ReceiptTwice => "second receipt for one message",
    /// The answer is about another life of the connection than was asked about.
    ResumeLife => "answer about another life than was asked about",
    /// A peer says that it got more of an earlier life than was sent, or less than it answered.
    ResumeNext => "messages of an earlier life that were never sent, or that were answered",
    /// A FIN that the state of the connection does not allow.
    UnexpectedFin => "fin not possible in this state",
    /// The answer holds more than was offered room for.
    AnswerTooLong => "answer longer than the buffers offered",
    /// Payload above the limit for one message.
    PayloadTooLong => "payload above the limit",
}

impl What {
    /// Makes the violation of this check by the value found at `offset`.
    pub(super) fn at(self, offset: u32, value: impl Into<u64>) -> Violation {
        Violation::new(self, offset, value.into())
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
