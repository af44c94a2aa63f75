//! What users observe, and what a checker says about it.

use core::fmt;

/// Which kind of message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Class {
    /// A request.
    Request,
    /// A one-way message without receipt.
    OneWay,
    /// A one-way message with a receipt.
    Receipted,
    /// The answer to the request of that number.
    Response(u64),
    /// A direct READ or WRITE: delivered when the bytes are where they belong.
    Direct,
}

/// How a message ended at the side that sent it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// A request's response.
    Answered,
    /// A one-way's or response's `Sent`.
    Sent,
    /// A one-way's receipt.
    Receipt,
    /// The connection ended; nobody knows what became of it.
    Unknown,
    /// The connection ended before a byte was sent.
    NeverSent,
    /// Its deadline passed.
    TimedOut,
    /// Its user gave it up.
    Cancelled,
    /// Refused by a status, a length, or a buffer; [`Fact::Refused`] says which.
    Refused,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Answered,
        Self::Sent,
        Self::Receipt,
        Self::Unknown,
        Self::NeverSent,
        Self::TimedOut,
        Self::Cancelled,
        Self::Refused,
    ];
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Sent => "sent",
            Self::Receipt => "receipt",
            Self::Unknown => "unknown",
            Self::NeverSent => "never_sent",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
        }
    }
    pub(super) const fn is_good(self) -> bool {
        matches!(self, Self::Answered | Self::Sent | Self::Receipt)
    }
}

/// Something that a user observed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// A side of a connection exists: connect was taken, or a session accepted.
    Opened {
        /// The side.
        side: u32,
    },
    /// The side is established.
    Established {
        /// The side.
        side: u32,
    },
    /// The side could not be made.
    ConnectFailed {
        /// The side.
        side: u32,
    },
    /// The side's last event.
    Closed {
        /// The side.
        side: u32,
        /// A step of it timed out, or the peer broke the protocol.
        badly: bool,
    },
    /// The server sent the client away, or either user ends it whatever state it is in: what
    /// becomes of its messages is nobody's fault.
    Doomed {
        /// The side.
        side: u32,
    },
    /// The side, a client's, heard that its connection is lost and will be made anew: its server may
    /// see it again, as a new one.
    Lost {
        /// The side.
        side: u32,
    },
    /// The side's endpoint died: nothing more is to be expected of it.
    Died {
        /// The side.
        side: u32,
    },
    /// The core took a message.
    Taken {
        /// Its number.
        message: u64,
        /// Digest of header and data.
        digest: u64,
        /// It has buffers that come back.
        buffers: bool,
        /// Bytes of data.
        len: u64,
        /// Bytes of buffers that are offered for its answer.
        room: u64,
        /// A receipt is asked for.
        receipt: bool,
        /// Its sender's clock when its outcome is due at the latest, in nanoseconds.
        deadline: Option<u64>,
    },
    /// A message may be delivered twice, if its connection is lost and made anew.
    Idempotent {
        /// Its number.
        message: u64,
    },
    /// A message was delivered to the user at this side.
    Delivered {
        /// Its number.
        message: u64,
        /// The side that got it.
        side: u32,
        /// Which of the side's lives: [`Ledger::life`](super::Ledger::life) when that began.
        life: u32,
        /// Digest of header and data.
        digest: u64,
    },
    /// The user that gets a message says what its receipt is to say.
    ReceiptSaid {
        /// Its number.
        message: u64,
        /// 0, or why it does not take the message.
        code: u32,
    },
    /// A receipt came: before the outcome of a request, or with that of a one-way.
    ReceiptCame {
        /// The message.
        message: u64,
        /// What it says.
        code: u32,
    },
    /// The user does not take a message's data, with this status.
    TurnedAway {
        /// Its number.
        message: u64,
        /// The status.
        code: u32,
    },
    /// A message's outcome is that it was refused; comes before its [`Ended`](Self::Ended).
    Refused {
        /// Its number.
        message: u64,
        /// Why.
        why: Refusal,
    },
    /// A message has its outcome.
    Ended {
        /// Its number.
        message: u64,
        /// How.
        outcome: Outcome,
        /// Its buffers came back with it.
        returned: bool,
        /// The sender's clock, in nanoseconds.
        clock: u64,
    },
    /// A message's buffers came back later.
    Returned {
        /// Its number.
        message: u64,
    },
}

/// Why a message was refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The peer answered with this status.
    ByPeer(u32),
    /// The user of this side did not take the answer, with this status.
    Here(u32),
    /// The answer has so many bytes, more than the room offered for it.
    TooLong(u64, u64),
    /// The device says so.
    Work,
}

/// Which check failed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Check {
    /// One outcome for each message.
    ExactlyOneOutcome,
    /// One end for each connection, and nothing after it.
    ExactlyOneEnd,
    /// Delivered at most once, at the right side, to a side that may have it.
    Delivery,
    /// What is not idempotent comes at most once, however often its connection is made anew.
    AtMostOnce,
    /// In the order sent.
    Order,
    /// The bytes sent.
    Bytes,
    /// What the sender was told agrees with what the receiver saw.
    Agreement,
    /// Buffers come back once, and only then may they be used again.
    Buffers,
    /// No more is in a user's hands than it told its peer.
    Credits,
    /// Everything is back when nothing is left.
    Conservation,
    /// It ends in time.
    Quiescence,
    /// No more attempts to make connections anew than allowed, and none too soon.
    Attempts,
    /// A message's outcome comes by its deadline.
    Deadline,
    /// A forbidden event of fabric, links or memory.
    Forbidden,
    /// A user was told something that makes no sense.
    Sense,
}

/// A failed check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breach {
    /// Virtual time in nanoseconds.
    pub at: u64,
    /// Which check.
    pub check: Check,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.at / 1_000_000_000, self.at % 1_000_000_000);
        write!(f, "{seconds}.{nanos:09} {:?}: {}", self.check, self.text)
    }
}
