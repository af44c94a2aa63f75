//! Frames with the request transport header: requests, one-ways and the asking control frames.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::control::Cancel;
use super::error::{Violation, What};
use super::frame::{
    Bounds, CANCEL_LEN, Op, Parts, Places, SETUP_PAYLOAD_MAX, SessionFields, Sge, Sges,
    TransportFlags, peek_kind, place_inline, usual_kind,
};
use super::headers::{RdmaRequestFront, RdmaRequestHeader, TcpRequestFront, TcpRequestHeader, Tlv};
use super::kind::{Dialect, Framing, Kind};
use super::session::SessionSetupRequest;

/// Bytes up to the end of the transport header, on both transports.
pub(super) const REQUEST_FIXED: usize = size_of::<RdmaRequestFront>();
const _: () = assert!(REQUEST_FIXED == size_of::<TcpRequestFront>());

const SGE_LEN: usize = 16;
/// What the length word of the transport header must say.
pub(super) const HEAD_LEN: u16 = 40;

/// Offsets of the fields that violations name, the same on both transports.
pub(super) mod at {
    pub(super) const LEN: u32 = 58;
    pub(super) const IN_OP: u32 = 70;
    pub(in super::super) const OUT_OP: u32 = 71;
    pub(super) const IN_SGES: u32 = 72;
    pub(super) const OUT_SGES: u32 = 74;
    pub(super) const HEADER_LEN: u32 = 80;
    pub(super) const DATA_LEN: u32 = 88;
}

/// The request transport header in host order (PROTOCOL.md 5.3).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RequestFields {
    /// Flags for the responder's transport.
    pub flags: TransportFlags,
    /// Transport sequence number.
    pub sn: u16,
    /// Last transport sequence number received in order, 0xffff for none. RDMA only, else zero.
    pub ack_sn: u16,
    /// Receive buffers granted with this frame. RDMA only, else zero.
    pub credits: u16,
    /// The requester's id of the exchange; the response repeats it.
    pub ltid: u32,
    /// How the requester can take response data: `Send` or `Write`.
    pub in_op: Op,
    /// How the request's data travels: `Send` or `Read`.
    pub out_op: Op,
    /// Number of segments offered for the response data.
    pub in_sges: u16,
    /// Number of segments of the request's data.
    pub out_sges: u16,
    /// Bytes of the application header, or of the payload of a control frame.
    pub header_len: u16,
    /// Bytes of padding between it and the inline data.
    pub pad_len: u16,
    /// Bytes of inline data; zero if `out_op` is `Read`.
    pub data_len: u64,
}

/// A parsed frame with a request transport header; a view of its bytes.
#[derive(Copy, Clone, Debug)]
pub struct Request<'a> {
    /// What the frame is.
    pub kind: Kind,
    /// Its session header.
    pub session: SessionFields,
    /// Its transport header.
    pub head: RequestFields,
    /// Offset of the application header (or control payload) in the frame.
    pub header_at: u16,
    /// Offset of the inline data in the frame.
    pub data_at: u16,
    frame: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses an assembled frame.
    ///
    /// Pads, the version byte and the unused fields may have any value; so may the session header
    /// of control frames, as far as [`SessionFields`] says. Everything else is exact.
    ///
    /// # Errors
    /// The first check that fails, see [`What`].
    #[inline]
    pub fn parse(frame: &'a [u8], framing: Framing, bounds: &Bounds) -> Result<Self, Violation> {
        match Self::parse_inline(frame, framing, bounds) {
            Some(request) => Ok(request),
            None => Self::parse_any(frame, framing, bounds),
        }
    }

    /// The common case, a message with inline data and no defect, without reasons and in few
    /// branches. Whatever it takes, [`parse_any`](Self::parse_any) takes with the same result.
    #[inline(always)]
    pub(super) fn parse_inline(frame: &'a [u8], framing: Framing, bounds: &Bounds) -> Option<Self> {
        let (front, _) = RdmaRequestFront::ref_from_prefix(frame).ok()?;
        let kind = usual_kind(&front.tlv)?;
        if !matches!(kind, Kind::MsgReq | Kind::OneWayReq) {
            return None;
        }
        let head = &front.head;
        let in_op = match head.in_op {
            2 => Op::Send,
            3 => Op::Write,
            _ => return None,
        };
        let plain = head.len.get() == HEAD_LEN
            && head.out_op == Op::Send as u8
            && head.out_sges.get() == 0
            && head.in_sges.get() <= bounds.max_in_sges
            && head.header_len.get() <= bounds.header_max;
        if !plain {
            return None;
        }
        let parts = Parts {
            fixed: REQUEST_FIXED as u32,
            lists: u32::from(head.in_sges.get()) * SGE_LEN as u32,
            header_len: head.header_len.get(),
            pad_len: head.pad_len.get(),
            inline: head.data_len.get(),
        };
        let tlv_len = front.tlv.len.get();
        let places = place_inline(&parts, frame.len(), framing, tlv_len, bounds)?;
        Some(Self {
            kind,
            session: SessionFields::from_wire(&front.session),
            head: fields(front, framing.dialect(), in_op, Op::Send),
            header_at: places.header_at,
            data_at: places.data_at,
            frame,
        })
    }

    /// Every frame and every defect.
    #[inline(never)]
    pub(super) fn parse_any(
        frame: &'a [u8],
        framing: Framing,
        bounds: &Bounds,
    ) -> Result<Self, Violation> {
        let (kind, tlv_len) = peek_kind(frame, framing)?;
        let front = Front::read(frame, kind, framing, tlv_len, bounds)?;
        if frame.len() != front.places.total as usize {
            return Err(What::FrameLength.at(8, frame.len() as u64));
        }
        Ok(Self {
            kind,
            session: front.session,
            head: front.head,
            header_at: front.places.header_at,
            data_at: front.places.data_at,
            frame,
        })
    }

    /// Returns the `i`-th segment offered for the response.
    ///
    /// # Panics
    /// If `i` is not below `head.in_sges`.
    #[inline]
    #[must_use]
    pub fn in_sge(&self, i: u16) -> Sge {
        let sge = self.in_sges().nth(usize::from(i));
        sge.expect("index below the count in the header")
    }

    /// Returns the `i`-th segment of the request's data.
    ///
    /// # Panics
    /// If `i` is not below `head.out_sges`.
    #[inline]
    #[must_use]
    pub fn out_sge(&self, i: u16) -> Sge {
        let sge = self.out_sges().nth(usize::from(i));
        sge.expect("index below the count in the header")
    }

    /// Returns the segments offered for the response.
    #[inline]
    #[must_use]
    pub fn in_sges(&self) -> Sges<'a> {
        Sges::new(self.frame, REQUEST_FIXED, self.head.in_sges)
    }

    /// Returns the segments of the request's data.
    #[inline]
    #[must_use]
    pub fn out_sges(&self) -> Sges<'a> {
        let at = REQUEST_FIXED + usize::from(self.head.in_sges) * SGE_LEN;
        Sges::new(self.frame, at, self.head.out_sges)
    }

    /// Returns how many bytes the offered segments take together.
    #[must_use]
    pub fn in_total(&self) -> u64 {
        self.in_sges().total()
    }

    /// Returns how many bytes of data the segments hold together; zero if the data is inline.
    #[must_use]
    pub fn out_total(&self) -> u64 {
        self.out_sges().total()
    }

    /// Returns the application header, or the payload of a control frame.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &'a [u8] {
        let at = usize::from(self.header_at);
        &self.frame[at..at + usize::from(self.head.header_len)]
    }

    /// Returns the inline data.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        &self.frame[usize::from(self.data_at)..]
    }

    /// Parses the payload of a `SessionSetupReq`.
    ///
    /// # Errors
    /// Those of [`SessionSetupRequest::parse`], with offsets in the frame.
    pub fn session_setup(&self) -> Result<SessionSetupRequest<'a>, Violation> {
        SessionSetupRequest::parse(self.header())
            .map_err(|violation| violation.shifted(u32::from(self.header_at)))
    }

    /// Parses the payload of a `CancelReq`.
    ///
    /// # Errors
    /// Those of [`Cancel::parse`], with offsets in the frame.
    pub fn cancel(&self) -> Result<Cancel, Violation> {
        Cancel::parse(self.header())
            .map_err(|violation| violation.shifted(u32::from(self.header_at)))
    }
}

/// The checked headers of a request; all that is known before the rest of its bytes arrive.
pub(super) struct Front {
    pub session: SessionFields,
    pub head: RequestFields,
    pub places: Places,
}

impl Front {
    /// Reads and checks the fixed front of `frame`, which may end anywhere after it.
    pub(super) fn read(
        frame: &[u8],
        kind: Kind,
        framing: Framing,
        tlv_len: u64,
        bounds: &Bounds,
    ) -> Result<Self, Violation> {
        if !kind.is_request() {
            return Err(What::WrongKind.at(4, kind.word()));
        }
        let Ok((front, _)) = RdmaRequestFront::ref_from_prefix(frame) else {
            return Err(What::Truncated.at(0, frame.len() as u64));
        };
        let raw = &front.head;
        if raw.len.get() != HEAD_LEN {
            return Err(What::TransportHeaderLength.at(at::LEN, raw.len.get()));
        }
        let Some(out_op @ (Op::Send | Op::Read)) = Op::from_byte(raw.out_op) else {
            return Err(What::OutOp.at(at::OUT_OP, raw.out_op));
        };
        let in_op = match Op::from_byte(raw.in_op) {
            Some(op @ (Op::Send | Op::Write)) => op,
            // Stale in cancel frames, which have no response data anyway.
            _ if matches!(kind, Kind::CancelReq) => Op::Send,
            _ => return Err(What::InOp.at(at::IN_OP, raw.in_op)),
        };
        let session = SessionFields::from_wire(&front.session);
        let head = fields(front, framing.dialect(), in_op, out_op);
        check_lists(&head, bounds)?;
        let session = if kind.is_application() {
            if head.header_len > bounds.header_max {
                return Err(What::HeaderTooLong.at(at::HEADER_LEN, head.header_len));
            }
            session
        } else {
            check_control(kind, &head)?;
            session.keep_defined(kind)
        };
        let places = parts(&head).place(kind, framing, tlv_len, bounds)?;
        Ok(Self {
            session,
            head,
            places,
        })
    }
}

// The parsers read the fields below in the RDMA layout, whatever the dialect.
const _: () = {
    use core::mem::offset_of;
    type Rdma = RdmaRequestHeader;
    type Tcp = TcpRequestHeader;
    assert!(offset_of!(Rdma, flags) == offset_of!(Tcp, flags));
    assert!(offset_of!(Rdma, len) == offset_of!(Tcp, len));
    assert!(offset_of!(Rdma, sn) == offset_of!(Tcp, sn));
    assert!(offset_of!(Rdma, in_op) == offset_of!(Tcp, in_op));
    assert!(offset_of!(Rdma, out_op) == offset_of!(Tcp, out_op));
    assert!(offset_of!(Rdma, in_sges) == offset_of!(Tcp, in_sges));
    assert!(offset_of!(Rdma, out_sges) == offset_of!(Tcp, out_sges));
    assert!(offset_of!(Rdma, header_len) == offset_of!(Tcp, header_len));
    assert!(offset_of!(Rdma, pad_len) == offset_of!(Tcp, pad_len));
    assert!(offset_of!(Rdma, data_len) == offset_of!(Tcp, data_len));
};

/// Reads the transport header. The operations need checks and come from the caller.
#[inline(always)]
fn fields(front: &RdmaRequestFront, dialect: Dialect, in_op: Op, out_op: Op) -> RequestFields {
    let head = &front.head;
    let (ack_sn, credits, ltid) = match dialect {
        Dialect::Rdma => (head.ack_sn.get(), head.credits.get(), head.ltid.get()),
        Dialect::Tcp => {
            let tcp: &TcpRequestFront = zerocopy::transmute_ref!(front);
            (0, 0, tcp.head.ltid.get())
        }
    };
    RequestFields {
        flags: TransportFlags::from_bits_retain(head.flags),
        sn: head.sn.get(),
        ack_sn,
        credits,
        ltid,
        in_op,
        out_op,
        in_sges: head.in_sges.get(),
        out_sges: head.out_sges.get(),
        header_len: head.header_len.get(),
        pad_len: head.pad_len.get(),
        data_len: head.data_len.get(),
    }
}

/// Checks the list counts, alone and against the operation of the data.
fn check_lists(head: &RequestFields, bounds: &Bounds) -> Result<(), Violation> {
    if head.in_sges > bounds.max_in_sges {
        return Err(What::TooManyInSges.at(at::IN_SGES, head.in_sges));
    }
    if matches!(head.out_op, Op::Send) {
        if head.out_sges != 0 {
            return Err(What::ListWithInlineData.at(at::OUT_SGES, head.out_sges));
        }
        return Ok(());
    }
    if head.out_sges > bounds.max_out_sges {
        return Err(What::TooManyOutSges.at(at::OUT_SGES, head.out_sges));
    }
    if head.out_sges == 0 {
        return Err(What::EmptyList.at(at::OUT_SGES, 0u8));
    }
    if head.data_len != 0 {
        return Err(What::InlineLenWithRead.at(at::DATA_LEN, head.data_len));
    }
    Ok(())
}

/// Checks what control frames may carry: no data, no segments, and a payload only by kind.
fn check_control(kind: Kind, head: &RequestFields) -> Result<(), Violation> {
    if !matches!(head.out_op, Op::Send) {
        return Err(What::ControlData.at(at::OUT_OP, head.out_op as u64));
    }
    if head.in_sges != 0 {
        return Err(What::ControlData.at(at::IN_SGES, head.in_sges));
    }
    check_control_payload(
        kind,
        head.header_len,
        head.pad_len,
        head.data_len,
        at::HEADER_LEN,
    )
}

/// The part that requests and responses share. `at` is the offset of the header length; the pad
/// length and the data length follow it at fixed distances.
pub(super) fn check_control_payload(
    kind: Kind,
    header_len: u16,
    pad_len: u16,
    data_len: u64,
    at: u32,
) -> Result<(), Violation> {
    let header = u64::from(header_len);
    if kind.is_bare() && header_len != 0 {
        return Err(What::NotEmpty.at(at, header));
    }
    if kind.is_bare() && pad_len != 0 {
        return Err(What::NotEmpty.at(at + 2, pad_len));
    }
    if data_len != 0 {
        return Err(What::ControlData.at(at + 8, data_len));
    }
    match kind {
        Kind::CancelReq | Kind::CancelRsp if header_len != CANCEL_LEN as u16 => {
            Err(What::BodyLength.at(at, header))
        }
        Kind::SessionSetupReq | Kind::SessionSetupRsp if header_len > SETUP_PAYLOAD_MAX as u16 => {
            Err(What::HeaderTooLong.at(at, header))
        }
        _ => Ok(()),
    }
}

#[inline]
fn parts(head: &RequestFields) -> Parts {
    let sges = u32::from(head.in_sges) + u32::from(head.out_sges);
    Parts {
        fixed: REQUEST_FIXED as u32,
        lists: sges * SGE_LEN as u32,
        header_len: head.header_len,
        pad_len: head.pad_len,
        inline: head.data_len,
    }
}

/// Returns how many bytes [`encode_request`] writes for lists of `n_in` and `n_out` segments.
#[inline]
#[must_use]
pub const fn request_head_len(_framing: Framing, n_in: usize, n_out: usize) -> usize {
    REQUEST_FIXED + (n_in + n_out) * SGE_LEN
}

/// Writes all headers of a request so that they end at `end`, where the application header
/// starts, and returns the offset of the first byte written.
///
/// The list counts are those of the iterators; `head.in_sges` and `head.out_sges` are not used.
/// Unused fields become zero. `tlv_counts_data` matters on RDMA only: whether the inline data was
/// copied behind the headers (counted by the length word) or is gathered by the NIC (not counted).
///
/// # Panics
/// If there is no room before `end`, a list has more than 65535 segments, `kind` is not a request
/// or the frame is too long for its length word: errors of the caller, whatever the peer did.
#[inline]
pub fn encode_request(
    buf: &mut [u8],
    end: usize,
    framing: Framing,
    kind: Kind,
    session: &SessionFields,
    head: &RequestFields,
    in_sges: impl ExactSizeIterator<Item = Sge>,
    out_sges: impl ExactSizeIterator<Item = Sge>,
    tlv_counts_data: bool,
) -> usize {
    assert!(kind.is_request(), "kind has no request header");
    let (n_in, n_out) = (in_sges.len(), out_sges.len());
    let head = RequestFields {
        in_sges: u16::try_from(n_in).expect("list count fits its field"),
        out_sges: u16::try_from(n_out).expect("list count fits its field"),
        ..*head
    };
    let start = end
        .checked_sub(request_head_len(framing, n_in, n_out))
        .expect("room for the headers");
    let mut wire_parts = parts(&head);
    if !matches!(head.out_op, Op::Send) {
        wire_parts.inline = 0;
    }
    let tlv_len = wire_parts.tlv_len(kind, framing, tlv_counts_data);
    let (fixed, lists) = buf[start..end].split_at_mut(REQUEST_FIXED);
    write_fields(
        fixed,
        framing.dialect(),
        Tlv::new(kind.word(), tlv_len),
        session,
        &head,
    );
    write_sges(lists, in_sges.chain(out_sges));
    start
}

/// Writes a segment list over the whole of `bytes`.
#[inline]
pub(super) fn write_sges(bytes: &mut [u8], sges: impl Iterator<Item = Sge>) {
    for (slot, sge) in bytes.chunks_exact_mut(SGE_LEN).zip(sges) {
        slot.copy_from_slice(sge.to_wire().as_bytes());
    }
}

/// Writes the fixed front, which is `REQUEST_FIXED` bytes.
#[inline]
fn write_fields(
    fixed: &mut [u8],
    dialect: Dialect,
    tlv: Tlv,
    session: &SessionFields,
    head: &RequestFields,
) {
    let session = session.to_wire();
    match dialect {
        Dialect::Rdma => {
            let head = RdmaRequestHeader {
                version: 1,
                flags: head.flags.bits(),
                len: U16::new(HEAD_LEN),
                sn: U16::new(head.sn),
                ack_sn: U16::new(head.ack_sn),
                credits: U16::new(head.credits),
                ltid: U32::new(head.ltid),
                in_op: head.in_op as u8,
                out_op: head.out_op as u8,
                in_sges: U16::new(head.in_sges),
                out_sges: U16::new(head.out_sges),
                pad: U32::ZERO,
                header_len: U16::new(head.header_len),
                pad_len: U16::new(head.pad_len),
                remain: U32::ZERO,
                data_len: U64::new(head.data_len),
            };
            fixed.copy_from_slice(RdmaRequestFront { tlv, session, head }.as_bytes());
        }
        Dialect::Tcp => {
            let head = TcpRequestHeader {
                version: 1,
                flags: head.flags.bits(),
                len: U16::new(HEAD_LEN),
                sn: U16::new(head.sn),
                pad: U16::ZERO,
                ltid: U32::new(head.ltid),
                pad1: U16::ZERO,
                in_op: head.in_op as u8,
                out_op: head.out_op as u8,
                in_sges: U16::new(head.in_sges),
                out_sges: U16::new(head.out_sges),
                pad2: U32::ZERO,
                header_len: U16::new(head.header_len),
                pad_len: U16::new(head.pad_len),
                remain: U32::ZERO,
                data_len: U64::new(head.data_len),
            };
            fixed.copy_from_slice(TcpRequestFront { tlv, session, head }.as_bytes());
        }
    }
}
