//! What a stream needs to know to cut its bytes into frames (PROTOCOL.md 3).

use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U16, U32};

use super::control::put;
use super::error::{Violation, What};
use super::frame::{Bounds, Op, TLV_LEN, check_tlv, usual_kind};
use super::headers::{
    ConnectBody, HEADERS_LEN, NexusRequestBody, NexusResponseBody, TcpSetupBlock, Tlv,
};
use super::inline::{Limits, rest_of_plain};
use super::kind::{Dialect, Framing, Kind};
use super::request::{self, REQUEST_FIXED};
use super::response;

/// What a socket is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SocketKind {
    /// Headers and data.
    Single = 1,
    /// Headers; the data has a socket of its own.
    Control = 2,
    /// Data only.
    Data = 3,
}

/// The first bytes on every socket, sent by the connecting side and never answered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConnectMessage {
    /// What this socket is for.
    pub sock: SocketKind,
    /// The client's local port of the other socket of the pair; zero for a single socket.
    pub second_port: u16,
}

impl ConnectMessage {
    /// Length of the message in bytes.
    pub const LEN: usize = size_of::<ConnectBody>();

    /// Parses a message.
    ///
    /// # Errors
    /// [`What::SocketKind`], or [`What::SecondPort`] if one of a pair does not name the other.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, Violation> {
        let body: ConnectBody = zerocopy::transmute!(*bytes);
        let sock = match body.kind.get() {
            1 => SocketKind::Single,
            2 => SocketKind::Control,
            3 => SocketKind::Data,
            other => return Err(What::SocketKind.at(0, other)),
        };
        let second_port = body.second_port.get();
        if second_port == 0 && !matches!(sock, SocketKind::Single) {
            return Err(What::SecondPort.at(4, 0u8));
        }
        Ok(Self { sock, second_port })
    }

    /// Whether two sockets name each other (PROTOCOL.md 3.2): one that came from `port` with this
    /// message, and one from `other_port` with `other`. They are one transport connection if they
    /// also came from the same address to the same listener, and one is the control socket and the
    /// other the data socket.
    #[must_use]
    pub const fn names(&self, port: u16, other: &Self, other_port: u16) -> bool {
        self.second_port == other_port && other.second_port == port
    }

    /// Writes the message to the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`ConnectMessage::LEN`].
    pub fn encode(&self, buf: &mut [u8]) -> usize {
        let body = ConnectBody {
            kind: U32::new(self.sock as u32),
            second_port: U16::new(self.second_port),
            pad: U16::ZERO,
        };
        put(buf, &body)
    }
}

/// Reads the first 16 bytes of a frame on a control or single socket and returns its kind and
/// the number of bytes that it has on that socket, these included.
///
/// At most `frame_max` bytes, so a buffer of that size is enough. Data outside the frame is not
/// counted; [`stream_plan`] finds it once the returned number of bytes is there.
///
/// # Errors
/// Those of [`peek_kind`](super::peek_kind), [`What::FrameTooLong`], or
/// [`What::TlvLenMismatch`] if a frame of this kind cannot have that length.
///
/// # Panics
/// If `framing` is that of RDMA, which has no streams.
pub fn control_len(
    tlv: &[u8; TLV_LEN],
    framing: Framing,
    frame_max: u32,
) -> Result<(Kind, usize), Violation> {
    assert!(!matches!(framing, Framing::Rdma), "not a stream");
    let (kind, len) = check_tlv(&zerocopy::transmute!(*tlv), framing)?;
    let setup = size_of::<TcpSetupBlock>();
    let possible = match (kind, framing) {
        (Kind::NexusSetupReq, _) => len == (size_of::<NexusRequestBody>() + setup) as u64,
        (Kind::NexusSetupRsp, _) => len == (size_of::<NexusResponseBody>() + setup) as u64,
        (_, Framing::TcpDual) if !kind.is_application() => len == HEADERS_LEN as u64,
        _ => len >= HEADERS_LEN as u64,
    };
    if !possible {
        return Err(What::TlvLenMismatch.at(8, len));
    }
    let total = TLV_LEN as u64 + len;
    if total > u64::from(frame_max) {
        return Err(What::FrameTooLong.at(8, total));
    }
    Ok((kind, total as usize))
}

/// What belongs to a frame besides its bytes on the control or single socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamPlan {
    /// Bytes to take from the data socket and append to the frame, which is then whole.
    pub data_inline: u32,
    /// Bytes of data outside the frame that follow: on a single socket right behind the frame,
    /// else on the data socket. Zero if `data_inline` is not.
    ///
    /// The number of segments is within the bounds, so this is below 2^48; whether so much is
    /// wanted is for the caller to say.
    pub payload: u64,
}

/// Plans the rest of a frame of which the bytes on the control or single socket are there.
///
/// All checks of the header that a parser does are done here too, so that no byte of a frame with
/// a defect is waited for.
///
/// # Errors
/// Those of [`Request::parse`](super::Request::parse) or
/// [`Response::parse`](super::Response::parse).
///
/// # Panics
/// If `framing` is that of RDMA, which has no streams.
pub fn stream_plan(
    control_part: &[u8],
    framing: Framing,
    kind: Kind,
    bounds: &Bounds,
) -> Result<StreamPlan, Violation> {
    assert!(!matches!(framing, Framing::Rdma), "not a stream");
    if !kind.is_numbered() {
        return Ok(StreamPlan::default());
    }
    let Ok((tlv, _)) = Tlv::ref_from_prefix(control_part) else {
        return Err(What::Truncated.at(0, control_part.len() as u64));
    };
    let (found, len) = check_tlv(tlv, framing)?;
    if found != kind {
        return Err(What::WrongKind.at(4, found.word()));
    }
    if control_part.len() as u64 != TLV_LEN as u64 + len {
        return Err(What::FrameLength.at(8, control_part.len() as u64));
    }
    let (total, payload) = if kind.is_request() {
        let front = request::Front::read(control_part, kind, framing, len, bounds)?;
        (front.places.total, request_payload(control_part, &front))
    } else {
        let front = response::Front::read(control_part, kind, framing, len, bounds)?;
        response::check_written(control_part, &front, Dialect::Tcp)?;
        (front.places.total, response_payload(&front))
    };
    Ok(StreamPlan {
        // The exact length word has proven that the control part is not longer than the frame.
        data_inline: total - control_part.len() as u32,
        payload,
    })
}

/// [`stream_plan`] for a frame whose kind [`control_len`] found, without its work where nothing
/// can follow: messages with inline data on a single stream, which a parser checks as a whole.
#[inline]
pub(crate) fn stream_rest(
    control_part: &[u8],
    framing: Framing,
    bounds: &Bounds,
) -> Result<StreamPlan, Violation> {
    let Ok((tlv, _)) = Tlv::ref_from_prefix(control_part) else {
        return Err(What::Truncated.at(0, control_part.len() as u64));
    };
    if matches!(framing, Framing::TcpSingle) {
        let op_at = match usual_kind(tlv) {
            Some(kind) if kind.is_request() => request::at::OUT_OP as usize,
            Some(_) => response::at::op(Dialect::Tcp) as usize,
            None => control_part.len(),
        };
        if control_part.get(op_at) == Some(&(Op::Send as u8)) {
            return Ok(StreamPlan::default());
        }
    }
    let (kind, _) = check_tlv(tlv, framing)?;
    stream_plan(control_part, framing, kind, bounds)
}

/// [`stream_plan`] for the control part of a plain message on two streams: bytes of data that
/// follow on the other. `None`: it is not such a message, or has a defect.
#[inline(always)]
pub(crate) fn plain_rest(kind: Kind, control_part: &[u8], bounds: &Bounds) -> Option<u32> {
    let limits = Limits {
        framing: Framing::TcpDual,
        frame_max: bounds.frame_max,
        header_max: bounds.header_max,
    };
    rest_of_plain(kind, control_part, limits)
}

/// Data of a request that its receiver takes from the stream.
fn request_payload(control_part: &[u8], front: &request::Front) -> u64 {
    match front.head.out_op {
        Op::Read => {
            let at = REQUEST_FIXED + usize::from(front.head.in_sges) * 16;
            super::frame::Sges::new(control_part, at, front.head.out_sges).total()
        }
        Op::Send | Op::Write => 0,
    }
}

/// Data of a response that its sender put behind the frame.
const fn response_payload(front: &response::Front) -> u64 {
    match front.head.op {
        Op::Write => front.head.data_len,
        Op::Send | Op::Read => 0,
    }
}
