//! Headers of the frames that make up nearly all traffic on RDMA, written in place.

use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::frame::{Op, SessionFlags, TLV_LEN, TransportFlags};
use super::headers::{
    MAGIC, RdmaRequestFront, RdmaRequestHeader, RdmaResponseFront, RdmaResponseHeader,
    SessionHeader, TLV_LEN_MAX, Tlv,
};
use super::kind::Kind;
use super::request::HEAD_LEN;

/// The headers of a message on RDMA without lists whose data was copied behind them, written part
/// by part: no value has to wait in a register until all are known. Says the same as
/// [`encode_request`](super::encode_request).
pub(crate) struct InlineRequest<'a>(&'a mut RdmaRequestFront);

impl<'a> InlineRequest<'a> {
    /// What all of them have.
    const SAME: RdmaRequestFront = RdmaRequestFront {
        tlv: Tlv::new(0, 0),
        session: SessionHeader::ZERO,
        head: RdmaRequestHeader {
            version: 1,
            flags: 0,
            len: U16::new(HEAD_LEN),
            sn: U16::ZERO,
            ack_sn: U16::ZERO,
            credits: U16::ZERO,
            ltid: U32::ZERO,
            in_op: Op::Send as u8,
            out_op: Op::Send as u8,
            in_sges: U16::ZERO,
            out_sges: U16::ZERO,
            pad: U32::ZERO,
            header_len: U16::ZERO,
            pad_len: U16::ZERO,
            remain: U32::ZERO,
            data_len: U64::ZERO,
        },
    };
    /// Bytes of the headers.
    pub(crate) const LEN: usize = size_of::<RdmaRequestFront>();

    /// Headers that end at `end`.
    ///
    /// # Panics
    /// If there is no room for them.
    #[inline(always)]
    pub(crate) fn new(buf: &'a mut [u8], end: usize) -> Self {
        let bytes = &mut buf[end - Self::LEN..end];
        let front = RdmaRequestFront::mut_from_bytes(bytes).expect("exact length");
        *front = Self::SAME;
        Self(front)
    }

    /// Kind and lengths.
    ///
    /// # Panics
    /// If the frame is too long for its length word.
    #[inline(always)]
    pub(crate) fn message(&mut self, kind: Kind, header_len: u16, data_len: u32) {
        let len = inline_len(Self::LEN, header_len, data_len);
        self.0.tlv.kind = U32::new(kind.word());
        self.0.tlv.len = U64::new(len);
        self.0.head.header_len = U16::new(header_len);
        self.0.head.data_len = U64::new(data_len.into());
    }

    /// Where it goes, and its numbers there.
    #[inline(always)]
    pub(crate) fn session(&mut self, dest: u32, serial: u64, sn: u16, ack_sn: u16) {
        self.0.session.dest_session = U32::new(dest);
        self.0.session.serial = U64::new(serial);
        self.0.session.sn = U16::new(sn);
        self.0.session.ack_sn = U16::new(ack_sn);
    }

    /// Flags of both headers.
    #[inline(always)]
    pub(crate) fn flags(&mut self, session: SessionFlags, head: TransportFlags) {
        self.0.session.flags = U32::new(session.bits());
        self.0.head.flags = head.bits();
    }

    /// The transport's numbers.
    #[inline(always)]
    pub(crate) fn transport(&mut self, sn: u16, ack_sn: u16, credits: u16) {
        self.0.head.sn = U16::new(sn);
        self.0.head.ack_sn = U16::new(ack_sn);
        self.0.head.credits = U16::new(credits);
    }

    /// The message's own id.
    #[inline(always)]
    pub(crate) fn id(&mut self, ltid: u32) {
        self.0.head.ltid = U32::new(ltid);
    }
}

/// The headers of a response on RDMA whose data, if any, was copied behind them, written part by
/// part. Says the same as [`encode_response`](super::encode_response).
pub(crate) struct InlineResponse<'a>(&'a mut RdmaResponseFront);

impl<'a> InlineResponse<'a> {
    /// What all of them have.
    const SAME: RdmaResponseFront = RdmaResponseFront {
        tlv: Tlv::new(Kind::MsgRsp.word(), 0),
        session: SessionHeader {
            flags: U32::new(SessionFlags::RECEIPT_LAST.bits()),
            ..SessionHeader::ZERO
        },
        head: RdmaResponseHeader {
            version: 1,
            flags: 0,
            len: U16::new(size_of::<RdmaResponseHeader>() as u16),
            sn: U16::ZERO,
            ack_sn: U16::ZERO,
            credits: U16::ZERO,
            rtid: U32::ZERO,
            op: Op::Send as u8,
            pad: [0; 3],
            sges: U16::ZERO,
            status: U32::ZERO,
            ltid: U32::ZERO,
            header_len: U16::ZERO,
            pad_len: U16::ZERO,
            remain: U32::ZERO,
            data_len: U64::ZERO,
        },
    };
    /// Bytes of the headers.
    pub(crate) const LEN: usize = size_of::<RdmaResponseFront>();

    /// Headers that end at `end`.
    ///
    /// # Panics
    /// If there is no room for them.
    #[inline(always)]
    pub(crate) fn new(buf: &'a mut [u8], end: usize) -> Self {
        let bytes = &mut buf[end - Self::LEN..end];
        let front = RdmaResponseFront::mut_from_bytes(bytes).expect("exact length");
        *front = Self::SAME;
        Self(front)
    }

    /// Status and lengths.
    ///
    /// # Panics
    /// If the frame is too long for its length word.
    #[inline(always)]
    pub(crate) fn message(&mut self, status: u32, header_len: u16, data_len: u32) {
        self.0.tlv.len = U64::new(inline_len(Self::LEN, header_len, data_len));
        self.0.head.status = U32::new(status);
        self.0.head.header_len = U16::new(header_len);
        self.0.head.data_len = U64::new(data_len.into());
    }

    /// Where it goes, and its numbers there.
    #[inline(always)]
    pub(crate) fn session(&mut self, dest: u32, serial: u64, sn: u16, ack_sn: u16) {
        self.0.session.dest_session = U32::new(dest);
        self.0.session.serial = U64::new(serial);
        self.0.session.sn = U16::new(sn);
        self.0.session.ack_sn = U16::new(ack_sn);
    }

    /// The transport's numbers.
    #[inline(always)]
    pub(crate) fn transport(&mut self, sn: u16, ack_sn: u16, credits: u16) {
        self.0.head.sn = U16::new(sn);
        self.0.head.ack_sn = U16::new(ack_sn);
        self.0.head.credits = U16::new(credits);
    }

    /// The request's id at its sender, and here.
    #[inline(always)]
    pub(crate) fn ids(&mut self, rtid: u32, ltid: u32) {
        self.0.head.rtid = U32::new(rtid);
        self.0.head.ltid = U32::new(ltid);
    }
}

/// The headers of a plain request or one-way as they lie in a frame on RDMA.
#[derive(Copy, Clone)]
pub(crate) struct PlainRequest<'a> {
    front: &'a RdmaRequestFront,
}

impl<'a> PlainRequest<'a> {
    /// Bytes up to the application header.
    pub(crate) const LEN: u16 = InlineRequest::LEN as u16;

    /// Recognises a frame without lists, padding and defects. Whatever it takes,
    /// [`Request::parse`](super::Request::parse) takes, with the same values.
    #[inline(always)]
    pub(crate) fn parse(frame: &'a [u8], frame_max: u32, header_max: u16) -> Option<Self> {
        let (front, _) = RdmaRequestFront::ref_from_prefix(frame).ok()?;
        let head = &front.head;
        let plain = front.tlv.magic.get() == MAGIC
            && head.len.get() == HEAD_LEN
            && head.in_op == Op::Send as u8
            && head.out_op == Op::Send as u8
            && (head.in_sges.get() | head.out_sges.get() | head.pad_len.get()) == 0
            && head.header_len.get() <= header_max;
        let body = InlineRequest::LEN + usize::from(head.header_len.get());
        let data_len = head.data_len.get();
        let whole = is_whole(frame, body, data_len, front.tlv.len.get(), frame_max);
        (plain && whole).then_some(Self { front })
    }

    /// The receiver's id of the session.
    #[inline(always)]
    pub(crate) fn dest_session(&self) -> u32 {
        self.front.session.dest_session.get()
    }
    /// Number of the request.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u64 {
        self.front.session.serial.get()
    }
    /// Number at session level.
    #[inline(always)]
    pub(crate) fn session_sn(&self) -> u16 {
        self.front.session.sn.get()
    }
    /// Number of the transport.
    #[inline(always)]
    pub(crate) fn sn(&self) -> u16 {
        self.front.head.sn.get()
    }
    /// Receives granted with it.
    #[inline(always)]
    pub(crate) fn credits(&self) -> u16 {
        self.front.head.credits.get()
    }
    /// Bytes of the application header.
    #[inline(always)]
    pub(crate) fn header_len(&self) -> u16 {
        self.front.head.header_len.get()
    }
    /// Bytes of data.
    #[inline(always)]
    pub(crate) fn data_len(&self) -> u64 {
        self.front.head.data_len.get()
    }
    /// The requester's id.
    #[inline(always)]
    pub(crate) fn ltid(&self) -> u32 {
        self.front.head.ltid.get()
    }
    /// Flags of the session header.
    #[inline(always)]
    pub(crate) fn session_flags(&self) -> SessionFlags {
        SessionFlags::from_bits_retain(self.front.session.flags.get())
    }
    /// Flags of the transport header.
    #[inline(always)]
    pub(crate) fn flags(&self) -> TransportFlags {
        TransportFlags::from_bits_retain(self.front.head.flags)
    }
}

/// The headers of a plain response as they lie in a frame on RDMA.
#[derive(Copy, Clone)]
pub(crate) struct PlainResponse<'a> {
    front: &'a RdmaResponseFront,
}

impl<'a> PlainResponse<'a> {
    /// Bytes up to the application header.
    pub(crate) const LEN: u16 = InlineResponse::LEN as u16;

    /// Recognises a frame without lists, padding and defects that is an answer and no receipt.
    /// Whatever it takes, [`Response::parse`](super::Response::parse) takes, with the same values.
    #[inline(always)]
    pub(crate) fn parse(frame: &'a [u8], frame_max: u32, header_max: u16) -> Option<Self> {
        let (front, _) = RdmaResponseFront::ref_from_prefix(frame).ok()?;
        let head = &front.head;
        let receipts = SessionFlags::RECEIPT_FIRST | SessionFlags::RECEIPT_LAST;
        let flags = SessionFlags::from_bits_retain(front.session.flags.get());
        let plain = front.tlv.magic.get() == MAGIC
            && flags.intersection(receipts) == SessionFlags::RECEIPT_LAST
            && usize::from(head.len.get()) == size_of::<RdmaResponseHeader>()
            && head.op == Op::Send as u8
            && head.pad_len.get() == 0
            && head.header_len.get() <= header_max;
        let body = InlineResponse::LEN + usize::from(head.header_len.get());
        let data_len = head.data_len.get();
        let whole = is_whole(frame, body, data_len, front.tlv.len.get(), frame_max);
        (plain && whole).then_some(Self { front })
    }

    /// Number of the request.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u64 {
        self.front.session.serial.get()
    }
    /// Number at session level.
    #[inline(always)]
    pub(crate) fn session_sn(&self) -> u16 {
        self.front.session.sn.get()
    }
    /// Number of the transport.
    #[inline(always)]
    pub(crate) fn sn(&self) -> u16 {
        self.front.head.sn.get()
    }
    /// Receives granted with it.
    #[inline(always)]
    pub(crate) fn credits(&self) -> u16 {
        self.front.head.credits.get()
    }
    /// Bytes of the application header.
    #[inline(always)]
    pub(crate) fn header_len(&self) -> u16 {
        self.front.head.header_len.get()
    }
    /// Bytes of data.
    #[inline(always)]
    pub(crate) fn data_len(&self) -> u64 {
        self.front.head.data_len.get()
    }
    /// The requester's id.
    #[inline(always)]
    pub(crate) fn rtid(&self) -> u32 {
        self.front.head.rtid.get()
    }
    /// Zero, or why there is no proper response.
    #[inline(always)]
    pub(crate) fn status(&self) -> u32 {
        self.front.head.status.get()
    }
}

/// Whether a frame has the bytes that its headers speak of: `body` up to the data, the data, and
/// nothing else.
#[inline(always)]
fn is_whole(frame: &[u8], body: usize, data_len: u64, tlv_len: u64, frame_max: u32) -> bool {
    let total = frame.len() as u64;
    let (body, tlv) = (body as u64, TLV_LEN as u64);
    // A sender counts data that it copied and leaves out what its NIC gathered.
    total <= frame_max.into()
        && total.wrapping_sub(body) == data_len
        && body <= total
        && (tlv_len == total - tlv || tlv_len == body - tlv)
}

/// The length word of a frame with `fixed` bytes of headers and its data copied behind them.
///
/// # Panics
/// If it does not fit into 16 bits.
#[inline(always)]
fn inline_len(fixed: usize, header_len: u16, data_len: u32) -> u64 {
    let len = (fixed - TLV_LEN) as u64 + u64::from(header_len) + u64::from(data_len);
    assert!(len <= TLV_LEN_MAX, "frame too long for its length word");
    len
}
