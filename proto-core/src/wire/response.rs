//! Frames with the response transport header: responses, receipts and the answering control
//! frames.

use core::iter::Empty;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::control::Cancel;
use super::error::{Violation, What};
use super::frame::{
    Bounds, Op, Parts, Places, SessionFields, SessionFlags, Sge, Sges, peek_kind, place_inline,
    usual_kind,
};
use super::headers::{
    RdmaResponseFront, RdmaResponseHeader, TcpResponseFront, TcpResponseHeader, Tlv,
};
use super::kind::{Dialect, Framing, Kind};
use super::request::{check_control_payload, write_sges};
use super::session::SessionSetupResponse;

const SGE_LEN: usize = 16;
const LENGTH_LEN: usize = 4;

/// Offsets of the fields that violations name.
pub(super) mod at {
    use super::Dialect;

    pub(super) const LEN: u32 = 58;
    pub(super) const SGES: u32 = 74;

    pub(in super::super) const fn op(dialect: Dialect) -> u32 {
        match dialect {
            Dialect::Rdma => 70,
            Dialect::Tcp => 72,
        }
    }

    /// The header length; the pad length is 2 bytes and the data length 8 bytes further on.
    #[cold]
    pub(super) const fn header_len(dialect: Dialect) -> u32 {
        match dialect {
            Dialect::Rdma => 84,
            Dialect::Tcp => 80,
        }
    }
}

/// The response transport header in host order (PROTOCOL.md 5.4).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ResponseFields {
    /// Transport sequence number.
    pub sn: u16,
    /// Last transport sequence number received in order, 0xffff for none. RDMA only, else zero.
    pub ack_sn: u16,
    /// Receive buffers granted with this frame. RDMA only, else zero.
    pub credits: u16,
    /// The request's `ltid`.
    pub rtid: u32,
    /// The responder's id of the exchange; a `ReadAck` repeats it.
    pub ltid: u32,
    /// How the response's data travels. `Read` does not exist on TCP.
    pub op: Op,
    /// Number of lengths (`Write`) or segments (`Read`); zero for `Send`, whatever the peer sent.
    pub sges: u16,
    /// Zero, or why there is no proper response: see [`status`](super::status), or an errno.
    pub status: u32,
    /// Bytes of the application header, or of the payload of a control frame.
    pub header_len: u16,
    /// Bytes of padding between it and the inline data.
    pub pad_len: u16,
    /// Bytes of inline data (`Send`) or of data written (`Write`); zero for `Read`.
    pub data_len: u64,
}

/// A parsed frame with a response transport header; a view of its bytes.
#[derive(Copy, Clone, Debug)]
pub struct Response<'a> {
    /// What the frame is.
    pub kind: Kind,
    /// Its session header.
    pub session: SessionFields,
    /// Its transport header.
    pub head: ResponseFields,
    /// Offset of the application header (or control payload) in the frame.
    pub header_at: u16,
    /// Offset of the inline data in the frame.
    pub data_at: u16,
    frame: &'a [u8],
}

impl<'a> Response<'a> {
    /// Parses an assembled frame.
    ///
    /// Pads, the version byte and the unused fields may have any value; so may the list count of
    /// an RDMA response with inline data, and the session header of control frames as far as
    /// [`SessionFields`] says. On RDMA the written lengths need not add up to `head.data_len`,
    /// which is the number to trust; on TCP they must.
    ///
    /// # Errors
    /// The first check that fails, see [`What`].
    #[inline]
    pub fn parse(frame: &'a [u8], framing: Framing, bounds: &Bounds) -> Result<Self, Violation> {
        match Self::parse_inline(frame, framing, bounds) {
            Some(response) => Ok(response),
            None => Self::parse_any(frame, framing, bounds),
        }
    }

    /// The common case, a response with inline data and no defect, without reasons and in few
    /// branches. Whatever it takes, [`parse_any`](Self::parse_any) takes with the same result.
    #[inline(always)]
    pub(super) fn parse_inline(frame: &'a [u8], framing: Framing, bounds: &Bounds) -> Option<Self> {
        let dialect = framing.dialect();
        let (tlv, raw) = Raw::read(frame, dialect)?;
        let kind = usual_kind(tlv)?;
        let sges = match dialect {
            Dialect::Rdma => 0,
            Dialect::Tcp => raw.fields.sges,
        };
        let head = ResponseFields { sges, ..raw.fields };
        let plain = matches!(kind, Kind::MsgRsp)
            && !is_receipt(kind, raw.session.flags)
            && usize::from(raw.len) == head_len(dialect)
            && raw.op == Op::Send as u8
            && sges == 0
            && head.header_len <= bounds.header_max;
        if !plain {
            return None;
        }
        let parts = Parts {
            fixed: response_fixed(dialect) as u32,
            lists: 0,
            header_len: head.header_len,
            pad_len: head.pad_len,
            inline: head.data_len,
        };
        let places = place_inline(&parts, frame.len(), framing, tlv.len.get(), bounds)?;
        Some(Self {
            kind,
            session: raw.session,
            head,
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
        check_written(frame, &front, framing.dialect())?;
        Ok(Self {
            kind,
            session: front.session,
            head: front.head,
            header_at: front.places.header_at,
            data_at: front.places.data_at,
            frame,
        })
    }

    /// Returns how many bytes were written into the requester's `i`-th segment.
    ///
    /// # Panics
    /// If the data was not written or `i` is not below `head.sges`.
    #[inline]
    #[must_use]
    pub fn write_len(&self, i: u16) -> u32 {
        let len = self.write_lens().nth(usize::from(i));
        len.expect("index below the count in the header")
    }

    /// Returns the lengths written, in the order of the requester's segments; none unless
    /// `head.op` is `Write`.
    #[inline]
    #[must_use]
    pub fn write_lens(&self) -> Lengths<'a> {
        let count = match self.head.op {
            Op::Write => self.head.sges,
            Op::Send | Op::Read => 0,
        };
        let list_len = usize::from(count) * LENGTH_LEN;
        Lengths::new(self.frame, usize::from(self.header_at) - list_len, count)
    }

    /// Returns the responder's `i`-th segment.
    ///
    /// # Panics
    /// If the data is not to be read or `i` is not below `head.sges`.
    #[inline]
    #[must_use]
    pub fn sge(&self, i: u16) -> Sge {
        let sge = self.sges().nth(usize::from(i));
        sge.expect("index below the count in the header")
    }

    /// Returns the segments that the requester must read; none unless `head.op` is `Read`.
    #[inline]
    #[must_use]
    pub fn sges(&self) -> Sges<'a> {
        let count = match self.head.op {
            Op::Read => self.head.sges,
            Op::Send | Op::Write => 0,
        };
        let list_len = usize::from(count) * SGE_LEN;
        Sges::new(self.frame, usize::from(self.header_at) - list_len, count)
    }

    /// Returns how many bytes the response's data has, however it travels.
    #[must_use]
    pub fn data_total(&self) -> u64 {
        match self.head.op {
            Op::Send | Op::Write => self.head.data_len,
            Op::Read => self.sges().total(),
        }
    }

    /// Returns whether the frame is a stand-alone read receipt.
    #[inline]
    #[must_use]
    pub const fn is_receipt(&self) -> bool {
        is_receipt(self.kind, self.session.flags)
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

    /// Parses the payload of a `SessionSetupRsp`.
    ///
    /// # Errors
    /// Those of [`SessionSetupResponse::parse`], with offsets in the frame.
    pub fn session_setup(&self) -> Result<SessionSetupResponse<'a>, Violation> {
        SessionSetupResponse::parse(self.header())
            .map_err(|violation| violation.shifted(u32::from(self.header_at)))
    }

    /// Parses the payload of a `CancelRsp`.
    ///
    /// # Errors
    /// Those of [`Cancel::parse`], with offsets in the frame.
    pub fn cancel(&self) -> Result<Cancel, Violation> {
        Cancel::parse(self.header())
            .map_err(|violation| violation.shifted(u32::from(self.header_at)))
    }
}

/// The lengths of a list in a frame, in order.
#[derive(Clone, Debug)]
pub struct Lengths<'a>(core::slice::Iter<'a, [u8; 4]>);

impl<'a> Lengths<'a> {
    /// Views `count` lengths at byte `at`; empty if they are not there.
    #[inline]
    fn new(frame: &'a [u8], at: usize, count: u16) -> Self {
        let list = frame
            .get(at..at + usize::from(count) * LENGTH_LEN)
            .unwrap_or_default();
        Self(list.as_chunks().0.iter())
    }

    /// Returns the sum of the remaining lengths, in bytes. It cannot overflow.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.clone().map(u64::from).sum()
    }
}

impl Iterator for Lengths<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        self.0.next().map(|bytes| u32::from_be_bytes(*bytes))
    }

    #[inline]
    fn nth(&mut self, n: usize) -> Option<u32> {
        self.0.nth(n).map(|bytes| u32::from_be_bytes(*bytes))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Lengths<'_> {}

/// A receipt that comes without the response.
#[inline]
const fn is_receipt(kind: Kind, flags: SessionFlags) -> bool {
    match kind {
        Kind::OneWayRsp => true,
        Kind::MsgRsp => {
            flags.contains(SessionFlags::RECEIPT_FIRST)
                && !flags.contains(SessionFlags::RECEIPT_LAST)
        }
        _ => false,
    }
}

/// The checked headers of a response; all that is known before the rest of its bytes arrive.
pub(super) struct Front {
    pub session: SessionFields,
    pub head: ResponseFields,
    pub places: Places,
}

/// The headers before any check.
struct Raw {
    session: SessionFields,
    /// The fields in host order, with `Send` for the operation.
    fields: ResponseFields,
    /// Length word of the transport header.
    len: u16,
    /// Operation byte.
    op: u8,
}

impl Raw {
    /// Reads the headers in the layout of `dialect`; `None` if `frame` is too short for them.
    #[inline(always)]
    fn read(frame: &[u8], dialect: Dialect) -> Option<(&Tlv, Self)> {
        match dialect {
            Dialect::Rdma => {
                let (front, _) = RdmaResponseFront::ref_from_prefix(frame).ok()?;
                Some((&front.tlv, Self::from_rdma(front)))
            }
            Dialect::Tcp => {
                let (front, _) = TcpResponseFront::ref_from_prefix(frame).ok()?;
                Some((&front.tlv, Self::from_tcp(front)))
            }
        }
    }

    #[inline(always)]
    fn from_rdma(front: &RdmaResponseFront) -> Self {
        let head = &front.head;
        Self {
            session: SessionFields::from_wire(&front.session),
            fields: ResponseFields {
                sn: head.sn.get(),
                ack_sn: head.ack_sn.get(),
                credits: head.credits.get(),
                rtid: head.rtid.get(),
                ltid: head.ltid.get(),
                op: Op::Send,
                sges: head.sges.get(),
                status: head.status.get(),
                header_len: head.header_len.get(),
                pad_len: head.pad_len.get(),
                data_len: head.data_len.get(),
            },
            len: head.len.get(),
            op: head.op,
        }
    }

    #[inline(always)]
    fn from_tcp(front: &TcpResponseFront) -> Self {
        let head = &front.head;
        Self {
            session: SessionFields::from_wire(&front.session),
            fields: ResponseFields {
                sn: head.sn.get(),
                ack_sn: 0,
                credits: 0,
                rtid: head.rtid.get(),
                ltid: head.ltid.get(),
                op: Op::Send,
                sges: head.sges.get(),
                status: head.status.get(),
                header_len: head.header_len.get(),
                pad_len: head.pad_len.get(),
                data_len: head.data_len.get(),
            },
            len: head.len.get(),
            op: head.op,
        }
    }
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
        if !kind.is_response() {
            return Err(What::WrongKind.at(4, kind.word()));
        }
        let dialect = framing.dialect();
        let Some((_, raw)) = Raw::read(frame, dialect) else {
            return Err(What::Truncated.at(0, frame.len() as u64));
        };
        let Raw {
            session,
            fields: mut head,
            len,
            op,
        } = raw;
        if usize::from(len) != head_len(dialect) {
            return Err(What::TransportHeaderLength.at(at::LEN, len));
        }
        head.op = match (Op::from_byte(op), dialect) {
            (Some(op @ (Op::Send | Op::Write)), _) | (Some(op @ Op::Read), Dialect::Rdma) => op,
            _ => return Err(What::OutOp.at(at::op(dialect), op)),
        };
        check_list(&mut head, dialect, bounds)?;
        let session = if kind.is_application() {
            check_application(kind, session.flags, &head, dialect, bounds)?;
            session
        } else {
            check_control(kind, &head, dialect)?;
            session.keep_defined(kind)
        };
        let places = parts(&head, dialect).place(kind, framing, tlv_len, bounds)?;
        Ok(Self {
            session,
            head,
            places,
        })
    }
}

/// Checks the list count, alone and against the operation.
fn check_list(
    head: &mut ResponseFields,
    dialect: Dialect,
    bounds: &Bounds,
) -> Result<(), Violation> {
    let value = u64::from(head.sges);
    match head.op {
        // libxio's RDMA side leaves the count of an earlier frame standing here.
        Op::Send if matches!(dialect, Dialect::Rdma) => head.sges = 0,
        Op::Send if head.sges != 0 => {
            return Err(What::ListWithInlineData.at(at::SGES, value));
        }
        Op::Send => {}
        Op::Write | Op::Read => {
            if head.sges > bounds.max_out_sges {
                return Err(What::TooManyOutSges.at(at::SGES, value));
            }
            if head.sges == 0 {
                return Err(What::EmptyList.at(at::SGES, value));
            }
        }
    }
    if matches!(head.op, Op::Read) && head.data_len != 0 {
        let at = at::header_len(dialect) + 8;
        return Err(What::InlineLenWithRead.at(at, head.data_len));
    }
    Ok(())
}

/// Checks what responses and receipts may carry.
fn check_application(
    kind: Kind,
    flags: SessionFlags,
    head: &ResponseFields,
    dialect: Dialect,
    bounds: &Bounds,
) -> Result<(), Violation> {
    let header_len = u64::from(head.header_len);
    if head.header_len > bounds.header_max {
        let at = at::header_len(dialect);
        return Err(What::HeaderTooLong.at(at, header_len));
    }
    if is_receipt(kind, flags) {
        if head.header_len != 0 {
            return Err(What::NotEmpty.at(at::header_len(dialect), header_len));
        }
        if head.data_len != 0 {
            let at = at::header_len(dialect) + 8;
            return Err(What::NotEmpty.at(at, head.data_len));
        }
        if !matches!(head.op, Op::Send) {
            return Err(What::NotEmpty.at(at::op(dialect), head.op as u64));
        }
    }
    Ok(())
}

/// Checks what control frames may carry: no data, no lists, and a payload only by kind.
fn check_control(kind: Kind, head: &ResponseFields, dialect: Dialect) -> Result<(), Violation> {
    if !matches!(head.op, Op::Send) {
        return Err(What::ControlData.at(at::op(dialect), head.op as u64));
    }
    let at = at::header_len(dialect);
    check_control_payload(kind, head.header_len, head.pad_len, head.data_len, at)
}

/// Checks that the written lengths are the data: on a stream they say where each byte goes, so a
/// difference would shift everything behind it.
pub(super) fn check_written(
    frame: &[u8],
    front: &Front,
    dialect: Dialect,
) -> Result<(), Violation> {
    if matches!(dialect, Dialect::Rdma) || !matches!(front.head.op, Op::Write) {
        return Ok(());
    }
    let list_len = usize::from(front.head.sges) * LENGTH_LEN;
    let list_at = usize::from(front.places.header_at) - list_len;
    let sum = Lengths::new(frame, list_at, front.head.sges).total();
    if sum != front.head.data_len {
        return Err(What::WriteLengthSum.at(list_at as u32, sum));
    }
    Ok(())
}

#[inline]
const fn head_len(dialect: Dialect) -> usize {
    match dialect {
        Dialect::Rdma => size_of::<RdmaResponseHeader>(),
        Dialect::Tcp => size_of::<TcpResponseHeader>(),
    }
}

/// Bytes up to the end of the transport header.
#[inline]
pub(super) const fn response_fixed(dialect: Dialect) -> usize {
    match dialect {
        Dialect::Rdma => size_of::<RdmaResponseFront>(),
        Dialect::Tcp => size_of::<TcpResponseFront>(),
    }
}

/// Bytes of one entry of the list that goes with `op`.
#[inline]
const fn entry_len(op: Op) -> usize {
    match op {
        Op::Send => 0,
        Op::Write => LENGTH_LEN,
        Op::Read => SGE_LEN,
    }
}

#[inline]
fn parts(head: &ResponseFields, dialect: Dialect) -> Parts {
    Parts {
        fixed: response_fixed(dialect) as u32,
        lists: u32::from(head.sges) * entry_len(head.op) as u32,
        header_len: head.header_len,
        pad_len: head.pad_len,
        inline: match head.op {
            Op::Send => head.data_len,
            Op::Write | Op::Read => 0,
        },
    }
}

/// Returns how many bytes [`encode_response`] writes for a list of `n` entries.
#[inline]
#[must_use]
pub const fn response_head_len(framing: Framing, op: Op, n: usize) -> usize {
    response_fixed(framing.dialect()) + n * entry_len(op)
}

/// The list behind a response header; which one is decided by the operation.
#[derive(Copy, Clone, Debug)]
pub enum ResponseList<L = Empty<u32>, S = Empty<Sge>> {
    /// For `Send`: the data, if any, is inline.
    None,
    /// For `Write`: bytes written into each of the requester's segments, in order.
    Lengths(L),
    /// For `Read`: the segments that hold the data.
    Sges(S),
}

impl ResponseList {
    /// Makes the absent list.
    #[must_use]
    pub const fn none() -> Self {
        Self::None
    }
}

impl<L: ExactSizeIterator<Item = u32>> ResponseList<L, Empty<Sge>> {
    /// Makes a list of written lengths in bytes.
    #[must_use]
    pub const fn lengths(lengths: L) -> Self {
        Self::Lengths(lengths)
    }
}

impl<S: ExactSizeIterator<Item = Sge>> ResponseList<Empty<u32>, S> {
    /// Makes a list of segments to read.
    #[must_use]
    pub const fn sges(sges: S) -> Self {
        Self::Sges(sges)
    }
}

impl<L, S> ResponseList<L, S>
where
    L: ExactSizeIterator<Item = u32>,
    S: ExactSizeIterator<Item = Sge>,
{
    #[inline]
    fn op_and_len(&self) -> (Op, usize) {
        match self {
            Self::None => (Op::Send, 0),
            Self::Lengths(lengths) => (Op::Write, lengths.len()),
            Self::Sges(sges) => (Op::Read, sges.len()),
        }
    }

    /// Writes the list over the whole of `bytes`.
    #[inline]
    fn write(self, bytes: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Lengths(lengths) => {
                for (slot, len) in bytes.chunks_exact_mut(LENGTH_LEN).zip(lengths) {
                    slot.copy_from_slice(&len.to_be_bytes());
                }
            }
            Self::Sges(sges) => write_sges(bytes, sges),
        }
    }
}

/// Writes all headers of a response so that they end at `end`, where the application header
/// starts, and returns the offset of the first byte written.
///
/// The operation and the count are those of `list`, which must agree with `head.op`; `head.sges`
/// is not used. Unused fields become zero. `tlv_counts_data` is as for
/// [`encode_request`](super::encode_request).
///
/// # Panics
/// If there is no room before `end`, `list` is not the one for `head.op`, has more than 65535
/// entries or does not exist on the transport, `kind` is not a response, or the frame is too long
/// for its length word: errors of the caller, whatever the peer did.
#[inline]
pub fn encode_response(
    buf: &mut [u8],
    end: usize,
    framing: Framing,
    kind: Kind,
    session: &SessionFields,
    head: &ResponseFields,
    list: ResponseList<impl ExactSizeIterator<Item = u32>, impl ExactSizeIterator<Item = Sge>>,
    tlv_counts_data: bool,
) -> usize {
    assert!(kind.is_response(), "kind has no response header");
    let dialect = framing.dialect();
    let (op, n) = list.op_and_len();
    assert!(op == head.op, "list belongs to another operation");
    assert!(
        !matches!((op, dialect), (Op::Read, Dialect::Tcp)),
        "a stream has no remote read of responses"
    );
    let head = ResponseFields {
        sges: u16::try_from(n).expect("list count fits its field"),
        ..*head
    };
    let start = end
        .checked_sub(response_head_len(framing, op, n))
        .expect("room for the headers");
    let tlv_len = parts(&head, dialect).tlv_len(kind, framing, tlv_counts_data);
    let (fixed, bytes) = buf[start..end].split_at_mut(response_fixed(dialect));
    write_fields(
        fixed,
        dialect,
        Tlv::new(kind.word(), tlv_len),
        session,
        &head,
    );
    list.write(bytes);
    start
}

/// Writes the fixed front, which is `response_fixed(dialect)` bytes.
#[inline]
fn write_fields(
    fixed: &mut [u8],
    dialect: Dialect,
    tlv: Tlv,
    session: &SessionFields,
    head: &ResponseFields,
) {
    let session = session.to_wire();
    match dialect {
        Dialect::Rdma => {
            let head = RdmaResponseHeader {
                version: 1,
                flags: 0,
                len: U16::new(size_of::<RdmaResponseHeader>() as u16),
                sn: U16::new(head.sn),
                ack_sn: U16::new(head.ack_sn),
                credits: U16::new(head.credits),
                rtid: U32::new(head.rtid),
                op: head.op as u8,
                pad: [0; 3],
                sges: U16::new(head.sges),
                status: U32::new(head.status),
                ltid: U32::new(head.ltid),
                header_len: U16::new(head.header_len),
                pad_len: U16::new(head.pad_len),
                remain: U32::ZERO,
                data_len: U64::new(head.data_len),
            };
            fixed.copy_from_slice(RdmaResponseFront { tlv, session, head }.as_bytes());
        }
        Dialect::Tcp => {
            let head = TcpResponseHeader {
                version: 1,
                flags: 0,
                len: U16::new(size_of::<TcpResponseHeader>() as u16),
                sn: U16::new(head.sn),
                pad: U16::ZERO,
                ltid: U32::new(head.ltid),
                rtid: U32::new(head.rtid),
                op: head.op as u8,
                pad1: 0,
                sges: U16::new(head.sges),
                status: U32::new(head.status),
                header_len: U16::new(head.header_len),
                pad_len: U16::new(head.pad_len),
                remain: U32::ZERO,
                data_len: U64::new(head.data_len),
            };
            fixed.copy_from_slice(TcpResponseFront { tlv, session, head }.as_bytes());
        }
    }
}
