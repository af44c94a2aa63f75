//! What requests and responses share: field types, bounds, segment lists and the arithmetic that
//! ties the lengths in the headers to the bytes received.

use bitflags::bitflags;
use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::error::{Violation, What};
use super::headers::{HEADERS_LEN, MAGIC, SessionHeader, TLV_LEN_MAX, Tlv, WireSge};
use super::kind::{Framing, Kind};

/// Bytes of the header that starts every frame.
pub const TLV_LEN: usize = size_of::<Tlv>();

/// Most bytes of the payload of a session setup, request or answer.
pub const SETUP_PAYLOAD_MAX: usize = 3840;

/// Bytes of the payload of a cancel frame.
pub const CANCEL_LEN: usize = 26;

bitflags! {
    /// Flags of the session header: those of the application's message (PROTOCOL.md 5.2). Bits
    /// without a name are kept as received.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct SessionFlags: u32 {
        /// The receiver shall send a read receipt.
        const REQUEST_READ_RECEIPT = 0x0001;
        /// The requester prefers the response data to be written into its memory.
        const PEER_WRITE_RSP = 0x0002;
        /// The sender chose to have its data read.
        const PEER_READ_REQ = 0x0004;
        /// The sender asked for an immediate send completion.
        const IMM_SEND_COMP = 0x0008;
        /// No further message follows at once.
        const LAST_IN_BATCH = 0x0010;
        /// The receiver shall send the read receipt before it delivers the message.
        const IMM_READ_RECEIPT = 0x0400;
        /// The frame is, or includes, a read receipt.
        const RECEIPT_FIRST = 0x0800;
        /// The frame is the response itself; every real response has it.
        const RECEIPT_LAST = 0x1000;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of the request transport header (PROTOCOL.md 5.2). Bits without a name are kept as
    /// received.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct TransportFlags: u8 {
        /// The responder must write the response data; the bit that libxio obeys.
        const FORCE_WRITE = 0x01;
        /// The same wish in the bit that libxio sets, and does not obey.
        const PEER_WRITE_RSP = 0x02;
        /// No further message follows at once.
        const LAST_IN_BATCH = 0x10;
        const _ = !0;
    }
}

/// How data travels (PROTOCOL.md 10.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// Inside the frame.
    Send = 2,
    /// Written by its sender: into the peer's memory, or on a stream after the frame.
    Write = 3,
    /// Fetched by its receiver: from the peer's memory, or on a stream after the frame.
    Read = 4,
}

impl Op {
    /// Recognises an operation byte.
    #[inline]
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            2 => Some(Self::Send),
            3 => Some(Self::Write),
            4 => Some(Self::Read),
            _ => None,
        }
    }
}

/// One segment of a peer's memory, as it stands in a frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Virtual address in the peer's process; on a stream only zero or not zero matters.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Remote key; zero on a stream and where the memory is not registered.
    pub rkey: u32,
}

impl Sge {
    #[inline]
    fn from_wire(wire: &WireSge) -> Self {
        Self {
            addr: wire.addr.get(),
            len: wire.len.get(),
            rkey: wire.rkey.get(),
        }
    }

    #[inline]
    pub(super) fn to_wire(self) -> WireSge {
        WireSge {
            addr: U64::new(self.addr),
            len: U32::new(self.len),
            rkey: U32::new(self.rkey),
        }
    }
}

/// The segments of a list in a frame, in order.
#[derive(Clone, Debug)]
pub struct Sges<'a>(core::slice::Iter<'a, [u8; 16]>);

impl<'a> Sges<'a> {
    /// Views `count` segments at byte `at`. The parser proved that they are there; were it wrong,
    /// the list would come out empty.
    #[inline]
    pub(super) fn new(frame: &'a [u8], at: usize, count: u16) -> Self {
        let list = frame
            .get(at..at + usize::from(count) * 16)
            .unwrap_or_default();
        Self(list.as_chunks().0.iter())
    }

    /// Returns the sum of the lengths of the remaining segments, in bytes.
    ///
    /// It cannot overflow: at most 65535 lengths of 32 bits.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.clone().map(|sge| u64::from(sge.len)).sum()
    }
}

impl Iterator for Sges<'_> {
    type Item = Sge;

    #[inline]
    fn next(&mut self) -> Option<Sge> {
        let wire: WireSge = zerocopy::transmute!(*self.0.next()?);
        Some(Sge::from_wire(&wire))
    }

    #[inline]
    fn nth(&mut self, n: usize) -> Option<Sge> {
        let wire: WireSge = zerocopy::transmute!(*self.0.nth(n)?);
        Some(Sge::from_wire(&wire))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Sges<'_> {}

/// The session header in host order (PROTOCOL.md 5.1).
///
/// Parsers return zeros for what a frame of the given kind leaves undefined: of control frames
/// only `dest_session` counts, of `AckReq` also the numbers and credits, of cancel frames nothing.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionFields {
    /// The receiver's id of the session; zero in a session setup request.
    pub dest_session: u32,
    /// The message's flags.
    pub flags: SessionFlags,
    /// Number of the request, chosen by the requester and repeated in everything about it.
    pub serial: u64,
    /// Sequence number of the session layer, separate for requests and responses.
    pub sn: u16,
    /// Last `sn` of the same class received in order; 0xffff for none.
    pub ack_sn: u16,
    /// Application-level credits returned, in messages.
    pub credits_msgs: u16,
    /// Outcome of a read receipt: 0 accepted, 1 rejected.
    pub receipt_result: u32,
    /// Application-level credits returned, in bytes.
    pub credits_bytes: u64,
}

impl SessionFields {
    #[inline(always)]
    pub(super) fn from_wire(wire: &SessionHeader) -> Self {
        Self {
            dest_session: wire.dest_session.get(),
            flags: SessionFlags::from_bits_retain(wire.flags.get()),
            serial: wire.serial.get(),
            sn: wire.sn.get(),
            ack_sn: wire.ack_sn.get(),
            credits_msgs: wire.credits_msgs.get(),
            receipt_result: wire.receipt_result.get(),
            credits_bytes: wire.credits_bytes.get(),
        }
    }

    #[inline]
    pub(super) fn to_wire(self) -> SessionHeader {
        SessionHeader {
            dest_session: U32::new(self.dest_session),
            flags: U32::new(self.flags.bits()),
            serial: U64::new(self.serial),
            sn: U16::new(self.sn),
            ack_sn: U16::new(self.ack_sn),
            credits_msgs: U16::new(self.credits_msgs),
            pad: [0; 6],
            receipt_result: U32::new(self.receipt_result),
            credits_bytes: U64::new(self.credits_bytes),
        }
    }

    /// Drops what peers leave undefined in a control frame, so that nobody can act on it.
    pub(super) fn keep_defined(self, kind: Kind) -> Self {
        match kind {
            Kind::CancelReq | Kind::CancelRsp => Self::default(),
            Kind::AckReq => Self {
                flags: SessionFlags::empty(),
                serial: 0,
                ..self
            },
            _ => Self {
                dest_session: self.dest_session,
                ..Self::default()
            },
        }
    }
}

/// Where the pad of the session header lies in a frame: how long the sender of a message waits,
/// where both sides agreed on that (PROTOCOL.md 12.2).
const WAIT: core::ops::Range<usize> = 38..44;

/// Longest wait that can be told, in microseconds.
pub(crate) const WAIT_MAX: u64 = (1 << 48) - 1;

/// How long the sender of a message waits, in microseconds; 0 for ever.
pub(crate) fn wait_of(frame: &[u8]) -> u64 {
    let bytes = frame.get(WAIT).unwrap_or(&[]);
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Writes that into a frame, at most [`WAIT_MAX`].
pub(crate) fn put_wait(frame: &mut [u8], wait: u64) {
    let [_, _, bytes @ ..] = wait.to_be_bytes();
    frame[WAIT].copy_from_slice(&bytes);
}

/// What this end told the peer that it takes; a frame beyond it is a violation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Most bytes of an assembled frame: headers, lists, application header and inline data.
    pub frame_max: u32,
    /// Most segments that a request may offer for its response.
    pub max_in_sges: u16,
    /// Most segments or lengths that may describe the data of a request or a response.
    pub max_out_sges: u16,
    /// Most bytes of the application header of requests, responses and one-ways. The payloads of
    /// control frames have limits of their own.
    pub header_max: u16,
}

/// Reads the first 16 bytes of a frame: its kind and the announced number of bytes after them.
///
/// `frame` is the assembled frame. The announced length is checked for sanity only, as a 64-bit
/// number and before anything is added to it; whether it is exact is for the parser of the kind.
///
/// # Errors
/// [`What::Truncated`], [`What::Magic`], [`What::UnknownKind`], [`What::KindNotOnDialect`],
/// [`What::TlvLenTooLarge`], or [`What::TlvLenMismatch`] if fewer bytes are there than announced.
#[inline]
pub fn peek_kind(frame: &[u8], framing: Framing) -> Result<(Kind, u64), Violation> {
    if let Ok((tlv, rest)) = Tlv::ref_from_prefix(frame)
        && let Some(kind) = usual_kind(tlv)
    {
        let len = tlv.len.get();
        if len <= TLV_LEN_MAX.min(rest.len() as u64) {
            return Ok((kind, len));
        }
    }
    peek_any(frame, framing)
}

/// Recognises the frames that make up nearly all traffic; they exist on both transports.
///
/// This and the other functions of the common case are always inlined: the fields of a header
/// stay in registers then, while an outlined function would pass them through memory.
#[inline(always)]
pub(super) fn usual_kind(tlv: &Tlv) -> Option<Kind> {
    if tlv.magic.get() != MAGIC {
        return None;
    }
    match tlv.kind.get() {
        word if word == Kind::MsgReq.word() => Some(Kind::MsgReq),
        word if word == Kind::MsgRsp.word() => Some(Kind::MsgRsp),
        word if word == Kind::OneWayReq.word() => Some(Kind::OneWayReq),
        _ => None,
    }
}

/// The kind of a frame, if it is one of those.
#[inline(always)]
pub(crate) fn message_kind(frame: &[u8]) -> Option<Kind> {
    let (tlv, _) = Tlv::ref_from_prefix(frame).ok()?;
    usual_kind(tlv)
}

/// Bytes of the frame that begins here on a single stream, if it is one of those.
#[inline(always)]
pub(crate) fn message_len(bytes: &[u8]) -> Option<usize> {
    let (tlv, _) = Tlv::ref_from_prefix(bytes).ok()?;
    usual_kind(tlv)?;
    let len = tlv.len.get();
    (len <= TLV_LEN_MAX).then_some(TLV_LEN + len as usize)
}

/// [`peek_kind`] for every frame and every defect. Out of line, to keep the common case small.
#[inline(never)]
fn peek_any(frame: &[u8], framing: Framing) -> Result<(Kind, u64), Violation> {
    let Ok((tlv, rest)) = Tlv::ref_from_prefix(frame) else {
        return Err(What::Truncated.at(0, frame.len() as u64));
    };
    let (kind, len) = check_tlv(tlv, framing)?;
    if len > rest.len() as u64 {
        return Err(What::TlvLenMismatch.at(8, len));
    }
    Ok((kind, len))
}

/// The part of [`peek_kind`] that needs only the 16 bytes.
pub(super) fn check_tlv(tlv: &Tlv, framing: Framing) -> Result<(Kind, u64), Violation> {
    if tlv.magic.get() != MAGIC {
        return Err(What::Magic.at(0, tlv.magic.get()));
    }
    let kind = Kind::from_word(tlv.kind.get(), framing.dialect())?;
    let len = tlv.len.get();
    if len > TLV_LEN_MAX {
        return Err(What::TlvLenTooLarge.at(8, len));
    }
    Ok((kind, len))
}

/// Checks that `frame` is a whole frame of `kind` whose length word is exact.
///
/// For the kinds without a transport header.
pub(super) fn expect(frame: &[u8], framing: Framing, kind: Kind) -> Result<(), Violation> {
    let (found, len) = peek_kind(frame, framing)?;
    if found != kind {
        return Err(What::WrongKind.at(4, found.word()));
    }
    if len != (frame.len() - TLV_LEN) as u64 {
        return Err(What::TlvLenMismatch.at(8, len));
    }
    Ok(())
}

/// The lengths of a numbered frame, as its headers state them.
pub(super) struct Parts {
    /// Bytes up to the end of the transport header.
    pub fixed: u32,
    /// Bytes of the segment and length lists.
    pub lists: u32,
    /// Bytes of the application header, or of the payload of a control frame.
    pub header_len: u16,
    /// Bytes between it and the data.
    pub pad_len: u16,
    /// Bytes of data inside the frame.
    pub inline: u64,
}

/// Where the parts of a numbered frame are. `header_at <= data_at <= total <= frame_max`.
#[derive(Copy, Clone)]
pub(super) struct Places {
    /// Offset of the application header.
    pub header_at: u16,
    /// Offset of the inline data.
    pub data_at: u16,
    /// Length of the assembled frame in bytes.
    pub total: u32,
}

/// The common case of a frame with inline data, of `fixed + lists` bytes of headers, recognised
/// without a reason if it is not: the whole frame is there, within `frame_max`, and its length
/// word is exact. Says the same as [`Parts::place`] and the comparison with the bytes received.
#[inline(always)]
pub(super) fn place_inline(
    parts: &Parts,
    frame_len: usize,
    framing: Framing,
    tlv_len: u64,
    bounds: &Bounds,
) -> Option<Places> {
    let header_at = parts.fixed + parts.lists;
    let data_at = header_at + u32::from(parts.header_len) + u32::from(parts.pad_len);
    let total = frame_len as u64;
    let fits = total <= u64::from(bounds.frame_max)
        && tlv_len <= TLV_LEN_MAX
        && data_at <= u32::from(u16::MAX)
        && total.checked_sub(u64::from(data_at)) == Some(parts.inline);
    if !fits {
        return None;
    }
    let (with_data, without) = (total - TLV_LEN as u64, u64::from(data_at) - TLV_LEN as u64);
    let exact = match framing {
        Framing::Rdma => tlv_len == with_data || tlv_len == without,
        Framing::TcpSingle => tlv_len == with_data,
        Framing::TcpDual => tlv_len == without,
    };
    exact.then_some(Places {
        header_at: header_at as u16,
        data_at: data_at as u16,
        total: total as u32,
    })
}

impl Parts {
    /// Adds the lengths up, within the limits, and checks the announced length against them.
    pub(super) fn place(
        &self,
        kind: Kind,
        framing: Framing,
        tlv_len: u64,
        bounds: &Bounds,
    ) -> Result<Places, Violation> {
        let header_at = self.fixed + self.lists;
        let data_at = header_at + u32::from(self.header_len) + u32::from(self.pad_len);
        let frame_max = u64::from(bounds.frame_max);
        let total = u64::from(data_at).saturating_add(self.inline);
        if total > frame_max || data_at > u32::from(u16::MAX) {
            return Err(What::FrameTooLong.at(8, total));
        }
        let tlv = TLV_LEN as u64;
        let exact = match framing {
            // A sender counts inline data it copied and leaves out what its NIC gathered.
            Framing::Rdma => tlv_len == total - tlv || tlv_len == u64::from(data_at) - tlv,
            Framing::TcpSingle => tlv_len == total - tlv,
            Framing::TcpDual if kind.is_application() => tlv_len == u64::from(data_at) - tlv,
            Framing::TcpDual => tlv_len == HEADERS_LEN as u64,
        };
        if !exact {
            return Err(What::TlvLenMismatch.at(8, tlv_len));
        }
        Ok(Places {
            header_at: header_at as u16,
            data_at: data_at as u16,
            total: total as u32,
        })
    }

    /// Returns the length word for a frame with these parts.
    ///
    /// # Panics
    /// If it does not fit into 16 bits: the caller built a frame above every limit.
    #[inline]
    pub(super) fn tlv_len(&self, kind: Kind, framing: Framing, counts_data: bool) -> u64 {
        if matches!(framing, Framing::TcpDual) && !kind.is_application() {
            return HEADERS_LEN as u64;
        }
        let counted = match framing {
            Framing::Rdma => counts_data,
            Framing::TcpSingle => true,
            Framing::TcpDual => false,
        };
        let body = u64::from(self.fixed + self.lists) - TLV_LEN as u64
            + u64::from(self.header_len)
            + u64::from(self.pad_len);
        let len = if counted { body + self.inline } else { body };
        assert!(len <= TLV_LEN_MAX, "frame too long for its length word");
        len
    }
}
