//! Names, offsets and lengths of the fields of every fixed part of a frame, made from the
//! declarations that the codec itself uses: for what shows frames to people.

use super::headers::{
    AcceptBody, CancelBody, ConnectBody, CreditNopFrame, NexusRequestBody, NexusResponseBody,
    RdmaRequestHeader, RdmaResponseHeader, RdmaSetupBlock, ReadAckFrame, RedirectBody, RejectBody,
    SessionHeader, SessionRequestBody, SessionResponseBody, TcpRequestHeader, TcpResponseHeader,
    TcpSetupBlock, Tlv, WireSge,
};
use super::kind::{Dialect, Kind};

/// A field: a big-endian number, or bytes without a meaning.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name in PROTOCOL.md.
    pub name: &'static str,
    /// Bytes from the start of its part.
    pub offset: u16,
    /// Its length in bytes.
    pub len: u16,
}

/// A fixed part of a frame or payload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Bytes from the start of the frame, or of the payload for the parts of payloads.
    pub at: u16,
    /// Its fields in order.
    pub fields: &'static [Field],
}

/// What the declaration of a layout says of its fields.
pub(super) trait Layout {
    const FIELDS: &'static [Field];
}

const fn part<L: Layout>(name: &'static str, at: u16) -> Part {
    let fields = L::FIELDS;
    Part { name, at, fields }
}

/// A whole frame's part behind its start, which is a part of its own.
const fn behind_start<L: Layout>(name: &'static str) -> Part {
    let (_, fields) = L::FIELDS.split_at(1);
    Part {
        name,
        at: 0,
        fields,
    }
}

/// The first bytes on every socket (PROTOCOL.md 3.1).
pub const CONNECT: Part = part::<ConnectBody>("connect", 0);
/// One entry of a list of segments (PROTOCOL.md 5.3); `at` is 0.
pub const SEGMENT: Part = part::<WireSge>("segment", 0);
/// Payload of SESSION_SETUP_REQ (PROTOCOL.md 7.1).
pub const SESSION_REQUEST: Part = part::<SessionRequestBody>("setup", 0);
/// Start of the payload of SESSION_SETUP_RSP.
pub const SESSION_RESPONSE: Part = part::<SessionResponseBody>("setup", 0);
/// What follows that when a session is accepted (action 1).
pub const ACCEPT: Part = part::<AcceptBody>("accept", 6);
/// What follows it when the peer is sent elsewhere (action 2).
pub const REDIRECT: Part = part::<RedirectBody>("redirect", 6);
/// What follows it when the session is rejected (action 3).
pub const REJECT: Part = part::<RejectBody>("reject", 6);
/// Payload of the cancel frames (PROTOCOL.md 5.7).
pub const CANCEL: Part = part::<CancelBody>("cancel", 0);

const TLV: Part = part::<Tlv>("tlv", 0);
const SESSION: Part = part::<SessionHeader>("session", 16);

/// Returns the fixed parts of a frame, in order, the first 16 bytes included.
#[must_use]
pub const fn parts(kind: Kind, dialect: Dialect) -> &'static [Part] {
    const RDMA_REQUEST: &[Part] = &[TLV, SESSION, part::<RdmaRequestHeader>("request", 56)];
    const TCP_REQUEST: &[Part] = &[TLV, SESSION, part::<TcpRequestHeader>("request", 56)];
    const RDMA_RESPONSE: &[Part] = &[TLV, SESSION, part::<RdmaResponseHeader>("response", 56)];
    const TCP_RESPONSE: &[Part] = &[TLV, SESSION, part::<TcpResponseHeader>("response", 56)];
    const NEXUS_REQ: Part = part::<NexusRequestBody>("nexus", 16);
    const NEXUS_RSP: Part = part::<NexusResponseBody>("nexus", 16);
    const RDMA_NEXUS_REQ: &[Part] = &[TLV, NEXUS_REQ, part::<RdmaSetupBlock>("limits", 24)];
    const TCP_NEXUS_REQ: &[Part] = &[TLV, NEXUS_REQ, part::<TcpSetupBlock>("limits", 24)];
    const RDMA_NEXUS_RSP: &[Part] = &[TLV, NEXUS_RSP, part::<RdmaSetupBlock>("limits", 28)];
    const TCP_NEXUS_RSP: &[Part] = &[TLV, NEXUS_RSP, part::<TcpSetupBlock>("limits", 28)];
    const NOP: &[Part] = &[TLV, behind_start::<CreditNopFrame>("nop")];
    const READ_ACK: &[Part] = &[TLV, behind_start::<ReadAckFrame>("read_ack")];
    match (kind, dialect) {
        (Kind::CreditNop, _) => NOP,
        (Kind::ReadAck, _) => READ_ACK,
        (Kind::NexusSetupReq, Dialect::Rdma) => RDMA_NEXUS_REQ,
        (Kind::NexusSetupReq, Dialect::Tcp) => TCP_NEXUS_REQ,
        (Kind::NexusSetupRsp, Dialect::Rdma) => RDMA_NEXUS_RSP,
        (Kind::NexusSetupRsp, Dialect::Tcp) => TCP_NEXUS_RSP,
        (kind, Dialect::Rdma) if kind.is_request() => RDMA_REQUEST,
        (kind, Dialect::Tcp) if kind.is_request() => TCP_REQUEST,
        (_, Dialect::Rdma) => RDMA_RESPONSE,
        (_, Dialect::Tcp) => TCP_RESPONSE,
    }
}
