//! What a frame is: dialects, framings, the type word and the closed set of frame kinds.

use bitflags::bitflags;

use super::error::{Violation, What};

/// One of the two header layouts of the protocol (PROTOCOL.md 1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Headers with acknowledgements and credits, as sent over a reliable connected queue pair.
    Rdma,
    /// Headers without transport flow control, as sent over sockets.
    Tcp,
}

/// How the parts of a frame are laid on the transport (PROTOCOL.md 3.3, 5.5).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Framing {
    /// One SEND work request is one frame.
    Rdma,
    /// Everything in order on one socket.
    TcpSingle,
    /// Headers on a control socket, data (and the payload of control frames) on a second one.
    TcpDual,
}

impl Framing {
    /// Returns the header layout that belongs to this framing.
    #[inline]
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Rdma => Dialect::Rdma,
            Self::TcpSingle | Self::TcpDual => Dialect::Tcp,
        }
    }
}

bitflags! {
    /// The bits from which the type word of a frame is composed.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub struct MessageType: u32 {
        /// A frame without a message.
        const NOP = 0x0001;
        /// First half of an exchange.
        const REQUEST = 0x0002;
        /// Second half of an exchange.
        const RESPONSE = 0x0004;
        /// One-sided access; local to an endpoint and never in a frame.
        const RDMA = 0x0008;
        /// A message that is answered.
        const MESSAGE = 0x0010;
        /// A message that is not answered.
        const ONE_WAY = 0x0020;
        /// Transport credits.
        const CREDIT = 0x0040;
        /// Set-up of a transport connection.
        const NEXUS_SETUP = 0x0080;
        /// Set-up of a session.
        const SESSION_SETUP = 0x0100;
        /// A further transport connection joins a session.
        const HELLO = 0x0200;
        /// End of a connection.
        const FIN = 0x0400;
        /// Withdrawal of a request.
        const CANCEL = 0x0800;
        /// Application-level credits.
        const ACK = 0x1000;
        /// A remote read is finished.
        const READ = 0x2000;
        /// Probe of an idle connection.
        const KEEPALIVE = 0x4000;
        /// What came in an earlier life of a connection.
        const RESUME = 0x8000;
    }
}

/// The exact type words that may occur in a frame (PROTOCOL.md 1.2); the discriminant is the word.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Kind {
    /// A request that wants a response.
    MsgReq = 0x0012,
    /// A response, or a stand-alone read receipt of a request.
    MsgRsp = 0x0014,
    /// A message that wants no response.
    OneWayReq = 0x0022,
    /// Read receipt of a one-way message.
    OneWayRsp = 0x0024,
    /// Transport credits without a message (RDMA only).
    CreditNop = 0x0041,
    /// First frame of the connecting side.
    NexusSetupReq = 0x0082,
    /// First frame of the accepting side.
    NexusSetupRsp = 0x0084,
    /// Asks for a session.
    SessionSetupReq = 0x0102,
    /// Accepts, redirects or rejects a session.
    SessionSetupRsp = 0x0104,
    /// Joins an existing session.
    HelloReq = 0x0202,
    /// Confirms a join.
    HelloRsp = 0x0204,
    /// Announces the end of a connection.
    FinReq = 0x0402,
    /// Confirms a `FinReq`.
    FinRsp = 0x0404,
    /// Withdraws a request.
    CancelReq = 0x0802,
    /// Says what became of a `CancelReq`.
    CancelRsp = 0x0804,
    /// Returns application-level credits.
    AckReq = 0x1002,
    /// Says that an RDMA READ of response data is done (RDMA only).
    ReadAck = 0x2004,
    /// Probes an idle connection.
    KeepaliveReq = 0x4002,
    /// Answers a probe.
    KeepaliveRsp = 0x4004,
    /// Says what came in an earlier life of a connection, and asks the same.
    ResumeReq = 0x8002,
    /// Answers that.
    ResumeRsp = 0x8004,
}

impl Kind {
    /// Every kind, in ascending order of its word.
    pub const ALL: [Self; 21] = [
        Self::MsgReq,
        Self::MsgRsp,
        Self::OneWayReq,
        Self::OneWayRsp,
        Self::CreditNop,
        Self::NexusSetupReq,
        Self::NexusSetupRsp,
        Self::SessionSetupReq,
        Self::SessionSetupRsp,
        Self::HelloReq,
        Self::HelloRsp,
        Self::FinReq,
        Self::FinRsp,
        Self::CancelReq,
        Self::CancelRsp,
        Self::AckReq,
        Self::ReadAck,
        Self::KeepaliveReq,
        Self::KeepaliveRsp,
        Self::ResumeReq,
        Self::ResumeRsp,
    ];

    /// Returns the type word as it stands in the frame.
    #[inline]
    #[must_use]
    pub const fn word(self) -> u32 {
        self as u32
    }

    /// Recognises a type word.
    ///
    /// # Errors
    /// [`What::UnknownKind`] if no frame has this word, [`What::KindNotOnDialect`] if it exists
    /// but not on this transport. The offset is that of the word in a frame.
    #[inline]
    pub const fn from_word(word: u32, dialect: Dialect) -> Result<Self, Violation> {
        let kind = match word {
            0x0012 => Self::MsgReq,
            0x0014 => Self::MsgRsp,
            0x0022 => Self::OneWayReq,
            0x0024 => Self::OneWayRsp,
            0x0041 => Self::CreditNop,
            0x0082 => Self::NexusSetupReq,
            0x0084 => Self::NexusSetupRsp,
            0x0102 => Self::SessionSetupReq,
            0x0104 => Self::SessionSetupRsp,
            0x0202 => Self::HelloReq,
            0x0204 => Self::HelloRsp,
            0x0402 => Self::FinReq,
            0x0404 => Self::FinRsp,
            0x0802 => Self::CancelReq,
            0x0804 => Self::CancelRsp,
            0x1002 => Self::AckReq,
            0x2004 => Self::ReadAck,
            0x4002 => Self::KeepaliveReq,
            0x4004 => Self::KeepaliveRsp,
            0x8002 => Self::ResumeReq,
            0x8004 => Self::ResumeRsp,
            _ => return Err(Violation::new(What::UnknownKind, 4, word as u64)),
        };
        let rdma_only = matches!(kind, Self::CreditNop | Self::ReadAck);
        if rdma_only && matches!(dialect, Dialect::Tcp) {
            return Err(Violation::new(What::KindNotOnDialect, 4, word as u64));
        }
        Ok(kind)
    }

    /// Returns the name under which logs and decoders show the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MsgReq => "MSG_REQ",
            Self::MsgRsp => "MSG_RSP",
            Self::OneWayReq => "ONE_WAY_REQ",
            Self::OneWayRsp => "ONE_WAY_RSP",
            Self::CreditNop => "CREDIT_NOP",
            Self::NexusSetupReq => "NEXUS_SETUP_REQ",
            Self::NexusSetupRsp => "NEXUS_SETUP_RSP",
            Self::SessionSetupReq => "SESSION_SETUP_REQ",
            Self::SessionSetupRsp => "SESSION_SETUP_RSP",
            Self::HelloReq => "CONNECTION_HELLO_REQ",
            Self::HelloRsp => "CONNECTION_HELLO_RSP",
            Self::FinReq => "FIN_REQ",
            Self::FinRsp => "FIN_RSP",
            Self::CancelReq => "CANCEL_REQ",
            Self::CancelRsp => "CANCEL_RSP",
            Self::AckReq => "ACK_REQ",
            Self::ReadAck => "RDMA_READ_ACK",
            Self::KeepaliveReq => "CONNECTION_KA_REQ",
            Self::KeepaliveRsp => "CONNECTION_KA_RSP",
            Self::ResumeReq => "RESUME_REQ",
            Self::ResumeRsp => "RESUME_RSP",
        }
    }

    /// Returns whether the frame carries application data; the others are control frames.
    ///
    /// Decides which socket of a pair gets the part after the headers, and whether the session
    /// header's flags and serial number mean anything.
    #[inline]
    #[must_use]
    pub const fn is_application(self) -> bool {
        const BITS: u32 = MessageType::MESSAGE
            .union(MessageType::ONE_WAY)
            .union(MessageType::RDMA)
            .bits();
        self.word() & BITS != 0
    }

    /// Returns whether the frame has a session header and a *request* transport header, and so
    /// is read by [`Request::parse`](super::Request::parse). False for `NexusSetupReq`.
    #[inline]
    #[must_use]
    pub const fn is_request(self) -> bool {
        self.is_numbered() && self.word() & MessageType::REQUEST.bits() != 0
    }

    /// Returns whether the frame has a session header and a *response* transport header, and so
    /// is read by [`Response::parse`](super::Response::parse). False for `NexusSetupRsp` and
    /// `ReadAck`.
    #[inline]
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.is_numbered() && self.word() & MessageType::RESPONSE.bits() != 0
    }

    /// Returns whether the frame has a session and a transport header and therefore consumes a
    /// transport sequence number.
    #[inline]
    #[must_use]
    pub const fn is_numbered(self) -> bool {
        const WITHOUT: u32 = MessageType::NEXUS_SETUP
            .union(MessageType::CREDIT)
            .union(MessageType::READ)
            .bits();
        self.word() & WITHOUT == 0
    }

    /// Returns whether the frame is a control frame that by its meaning has nothing after its
    /// headers.
    #[inline]
    pub(crate) const fn is_bare(self) -> bool {
        matches!(
            self,
            Self::HelloReq
                | Self::HelloRsp
                | Self::FinReq
                | Self::FinRsp
                | Self::AckReq
                | Self::KeepaliveReq
                | Self::KeepaliveRsp
                | Self::ResumeReq
                | Self::ResumeRsp
        )
    }
}
