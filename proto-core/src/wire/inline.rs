//! Headers of the frames that make up nearly all traffic, read and written in place.
//!
//! One reader and one writer for requests, one of each for responses, over the layouts of both
//! dialects: [`Headers`] says which.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{Op, SessionFlags, TLV_LEN, TransportFlags};
use super::headers::{
    MAGIC, RdmaRequestFront, RdmaRequestHeader, RdmaResponseFront, RdmaResponseHeader,
    SessionHeader, TLV_LEN_MAX, TcpRequestFront, TcpRequestHeader, TcpResponseFront,
    TcpResponseHeader, Tlv,
};
use super::kind::{Dialect, Framing, Kind};
use super::request::HEAD_LEN;

/// The layouts of one dialect.
pub(crate) trait Headers: 'static {
    /// Whose they are.
    const DIALECT: Dialect;
    /// Up to the end of a request's transport header.
    type Request: RequestFront;
    /// Up to the end of a response's.
    type Response: ResponseFront;
}

/// The layouts on RDMA.
pub(crate) struct OnRdma;

/// The layouts on streams.
pub(crate) struct OnStream;

impl Headers for OnRdma {
    const DIALECT: Dialect = Dialect::Rdma;
    type Request = RdmaRequestFront;
    type Response = RdmaResponseFront;
}

impl Headers for OnStream {
    const DIALECT: Dialect = Dialect::Tcp;
    type Request = TcpRequestFront;
    type Response = TcpResponseFront;
}

/// What all headers have, wherever it lies.
pub(crate) trait Front:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy
{
    /// Bytes up to the end of the transport header.
    const LEN: usize = size_of::<Self>();
    /// What all plain messages have.
    const SAME: Self;
    fn tlv(&self) -> &Tlv;
    fn session(&self) -> &SessionHeader;
    fn set_kind(&mut self, kind: Kind);
    fn set_len(&mut self, len: u64);
    fn session_mut(&mut self) -> &mut SessionHeader;
    /// Length word of the transport header.
    fn head_len(&self) -> u16;
    fn header_len(&self) -> u16;
    fn pad_len(&self) -> u16;
    fn data_len(&self) -> u64;
    fn set_lengths(&mut self, header_len: u16, data_len: u32);
    fn sn(&self) -> u16;
    /// Receives granted; none on streams.
    fn credits(&self) -> u16;
    /// The transport's numbers, as far as the dialect has them.
    fn set_numbers(&mut self, sn: u16, ack_sn: u16, credits: u16);
}

/// What the headers of requests have.
pub(crate) trait RequestFront: Front {
    /// Whether the data is in the frame, and no lists are.
    fn is_inline(&self) -> bool;
    fn flags(&self) -> u8;
    fn set_flags(&mut self, flags: u8);
    fn ltid(&self) -> u32;
    fn set_ltid(&mut self, ltid: u32);
}

/// What the headers of responses have.
pub(crate) trait ResponseFront: Front {
    /// Whether the data is in the frame, and no list is.
    fn is_inline(&self) -> bool;
    fn rtid(&self) -> u32;
    fn status(&self) -> u32;
    fn set_ids(&mut self, rtid: u32, ltid: u32);
    fn set_status(&mut self, status: u32);
}

/// The part of [`Front`] that differs in names only.
macro_rules! front {
    ($front:ident, $session:expr, $kind:expr, $head:expr, $credits:expr, $set_numbers:expr) => {
        impl Front for $front {
            const SAME: Self = Self {
                tlv: Tlv::new($kind, 0),
                session: $session,
                head: $head,
            };
            #[inline(always)]
            fn tlv(&self) -> &Tlv {
                &self.tlv
            }
            #[inline(always)]
            fn session(&self) -> &SessionHeader {
                &self.session
            }
            #[inline(always)]
            fn set_kind(&mut self, kind: Kind) {
                self.tlv.kind = U32::new(kind.word());
            }
            #[inline(always)]
            fn set_len(&mut self, len: u64) {
                self.tlv.len = U64::new(len);
            }
            #[inline(always)]
            fn session_mut(&mut self) -> &mut SessionHeader {
                &mut self.session
            }
            #[inline(always)]
            fn head_len(&self) -> u16 {
                self.head.len.get()
            }
            #[inline(always)]
            fn header_len(&self) -> u16 {
                self.head.header_len.get()
            }
            #[inline(always)]
            fn pad_len(&self) -> u16 {
                self.head.pad_len.get()
            }
            #[inline(always)]
            fn data_len(&self) -> u64 {
                self.head.data_len.get()
            }
            #[inline(always)]
            fn set_lengths(&mut self, header_len: u16, data_len: u32) {
                self.head.header_len = U16::new(header_len);
                self.head.data_len = U64::new(data_len.into());
            }
            #[inline(always)]
            fn sn(&self) -> u16 {
                self.head.sn.get()
            }
            #[inline(always)]
            fn credits(&self) -> u16 {
                $credits(self)
            }
            #[inline(always)]
            fn set_numbers(&mut self, sn: u16, ack_sn: u16, credits: u16) {
                self.head.sn = U16::new(sn);
                $set_numbers(self, ack_sn, credits);
            }
        }
    };
}

macro_rules! request_front {
    ($front:ident, $head:expr, $credits:expr, $set_numbers:expr) => {
        front!(
            $front,
            SessionHeader::ZERO,
            0,
            $head,
            $credits,
            $set_numbers
        );
        impl RequestFront for $front {
            #[inline(always)]
            fn is_inline(&self) -> bool {
                self.head.in_op == Op::Send as u8
                    && self.head.out_op == Op::Send as u8
                    && (self.head.in_sges.get() | self.head.out_sges.get()) == 0
            }
            #[inline(always)]
            fn flags(&self) -> u8 {
                self.head.flags
            }
            #[inline(always)]
            fn set_flags(&mut self, flags: u8) {
                self.head.flags = flags;
            }
            #[inline(always)]
            fn ltid(&self) -> u32 {
                self.head.ltid.get()
            }
            #[inline(always)]
            fn set_ltid(&mut self, ltid: u32) {
                self.head.ltid = U32::new(ltid);
            }
        }
    };
}

macro_rules! response_front {
    ($front:ident, $head:expr, $credits:expr, $set_numbers:expr, $list:expr) => {
        front!(
            $front,
            ANSWERING,
            Kind::MsgRsp.word(),
            $head,
            $credits,
            $set_numbers
        );
        impl ResponseFront for $front {
            #[inline(always)]
            fn is_inline(&self) -> bool {
                self.head.op == Op::Send as u8 && $list(self) == 0
            }
            #[inline(always)]
            fn rtid(&self) -> u32 {
                self.head.rtid.get()
            }
            #[inline(always)]
            fn status(&self) -> u32 {
                self.head.status.get()
            }
            #[inline(always)]
            fn set_ids(&mut self, rtid: u32, ltid: u32) {
                self.head.rtid = U32::new(rtid);
                self.head.ltid = U32::new(ltid);
            }
            #[inline(always)]
            fn set_status(&mut self, status: u32) {
                self.head.status = U32::new(status);
            }
        }
    };
}

const ANSWERING: SessionHeader = SessionHeader {
    flags: U32::new(SessionFlags::RECEIPT_LAST.bits()),
    ..SessionHeader::ZERO
};

request_front!(
    RdmaRequestFront,
    RdmaRequestHeader {
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
    |front: &Self| front.head.credits.get(),
    |front: &mut Self, ack_sn: u16, credits: u16| {
        front.head.ack_sn = U16::new(ack_sn);
        front.head.credits = U16::new(credits);
    }
);

request_front!(
    TcpRequestFront,
    TcpRequestHeader {
        version: 1,
        flags: 0,
        len: U16::new(HEAD_LEN),
        sn: U16::ZERO,
        pad: U16::ZERO,
        ltid: U32::ZERO,
        pad1: U16::ZERO,
        in_op: Op::Send as u8,
        out_op: Op::Send as u8,
        in_sges: U16::ZERO,
        out_sges: U16::ZERO,
        pad2: U32::ZERO,
        header_len: U16::ZERO,
        pad_len: U16::ZERO,
        remain: U32::ZERO,
        data_len: U64::ZERO,
    },
    |_: &Self| 0,
    |_: &mut Self, _: u16, _: u16| {}
);

response_front!(
    RdmaResponseFront,
    RdmaResponseHeader {
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
    |front: &Self| front.head.credits.get(),
    |front: &mut Self, ack_sn: u16, credits: u16| {
        front.head.ack_sn = U16::new(ack_sn);
        front.head.credits = U16::new(credits);
    },
    // The count of an earlier frame may stand there.
    |_: &Self| 0
);

response_front!(
    TcpResponseFront,
    TcpResponseHeader {
        version: 1,
        flags: 0,
        len: U16::new(size_of::<TcpResponseHeader>() as u16),
        sn: U16::ZERO,
        pad: U16::ZERO,
        ltid: U32::ZERO,
        rtid: U32::ZERO,
        op: Op::Send as u8,
        pad1: 0,
        sges: U16::ZERO,
        status: U32::ZERO,
        header_len: U16::ZERO,
        pad_len: U16::ZERO,
        remain: U32::ZERO,
        data_len: U64::ZERO,
    },
    |_: &Self| 0,
    |_: &mut Self, _: u16, _: u16| {},
    |front: &Self| front.head.sges.get()
);

/// The headers of a plain message, written part by part: no value has to wait in a register until
/// all are known.
pub(crate) struct Inline<'a, F>(&'a mut F);

/// Those of a request: the same as of [`encode_request`](super::encode_request).
pub(crate) type InlineRequest<'a, D> = Inline<'a, <D as Headers>::Request>;

/// Those of a response: the same as of [`encode_response`](super::encode_response).
pub(crate) type InlineResponse<'a, D> = Inline<'a, <D as Headers>::Response>;

impl<'a, F: Front> Inline<'a, F> {
    /// Bytes of the headers.
    pub(crate) const LEN: usize = F::LEN;

    /// Headers that end at `end`.
    ///
    /// # Panics
    /// If there is no room for them.
    #[inline(always)]
    pub(crate) fn new(buf: &'a mut [u8], end: usize) -> Self {
        let bytes = &mut buf[end - F::LEN..end];
        let front = F::mut_from_bytes(bytes).expect("exact length");
        *front = F::SAME;
        Self(front)
    }

    /// Lengths.
    ///
    /// # Panics
    /// If the frame is too long for its length word.
    #[inline(always)]
    pub(crate) fn lengths(&mut self, framing: Framing, header_len: u16, data_len: u32) {
        let counted = match framing {
            Framing::TcpDual => 0,
            Framing::Rdma | Framing::TcpSingle => data_len,
        };
        let body = (F::LEN - TLV_LEN) as u64 + u64::from(header_len);
        let len = body + u64::from(counted);
        assert!(len <= TLV_LEN_MAX, "frame too long for its length word");
        self.0.set_len(len);
        self.0.set_lengths(header_len, data_len);
    }

    /// Where it goes, and its numbers there.
    #[inline(always)]
    pub(crate) fn session(&mut self, dest: u32, serial: u64, sn: u16, ack_sn: u16) {
        let session = self.0.session_mut();
        session.dest_session = U32::new(dest);
        session.serial = U64::new(serial);
        session.sn = U16::new(sn);
        session.ack_sn = U16::new(ack_sn);
    }

    /// The transport's numbers.
    #[inline(always)]
    pub(crate) fn transport(&mut self, sn: u16, ack_sn: u16, credits: u16) {
        self.0.set_numbers(sn, ack_sn, credits);
    }
}

impl<F: RequestFront> Inline<'_, F> {
    /// Request or one-way.
    #[inline(always)]
    pub(crate) fn kind(&mut self, kind: Kind) {
        self.0.set_kind(kind);
    }

    /// Flags of both headers.
    #[inline(always)]
    pub(crate) fn flags(&mut self, session: SessionFlags, head: TransportFlags) {
        self.0.session_mut().flags = U32::new(session.bits());
        self.0.set_flags(head.bits());
    }

    /// The message's own id.
    #[inline(always)]
    pub(crate) fn id(&mut self, ltid: u32) {
        self.0.set_ltid(ltid);
    }
}

impl<F: ResponseFront> Inline<'_, F> {
    /// Zero, or why there is no proper response.
    #[inline(always)]
    pub(crate) fn status(&mut self, status: u32) {
        self.0.set_status(status);
    }

    /// The request's id at its sender, and here.
    #[inline(always)]
    pub(crate) fn ids(&mut self, rtid: u32, ltid: u32) {
        self.0.set_ids(rtid, ltid);
    }
}

/// The headers of a plain message as they lie in a frame.
pub(crate) struct Plain<'a, F> {
    front: &'a F,
}

/// Those of a request or one-way.
pub(crate) type PlainRequest<'a, D> = Plain<'a, <D as Headers>::Request>;

/// Those of a response.
pub(crate) type PlainResponse<'a, D> = Plain<'a, <D as Headers>::Response>;

/// How long frames and application headers may be, and how the former travel.
#[derive(Copy, Clone)]
pub(crate) struct Limits {
    /// How.
    pub(crate) framing: Framing,
    /// Bytes of a frame.
    pub(crate) frame_max: u32,
    /// Bytes of an application header.
    pub(crate) header_max: u16,
}

impl<'a, F: Front> Plain<'a, F> {
    /// Bytes up to the application header.
    pub(crate) const LEN: u16 = F::LEN as u16;

    /// Views a frame's headers, if they are of the usual length and say nothing of padding.
    #[inline(always)]
    fn view(frame: &'a [u8], limits: Limits) -> Option<Self> {
        let (front, _) = F::ref_from_prefix(frame).ok()?;
        let usual = front.tlv().magic.get() == MAGIC
            && front.head_len() as usize == F::LEN - size_of::<Tlv>() - size_of::<SessionHeader>()
            && front.pad_len() == 0
            && front.header_len() <= limits.header_max;
        usual.then_some(Self { front })
    }

    /// Bytes up to the data.
    #[inline(always)]
    fn body(&self) -> u64 {
        F::LEN as u64 + u64::from(self.header_len())
    }

    /// Whether a frame of `total` bytes is what the headers speak of: application header, data,
    /// and nothing else.
    #[inline(always)]
    fn is_whole(&self, total: u64, limits: Limits) -> bool {
        let (body, tlv, tlv_len) = (self.body(), TLV_LEN as u64, self.front.tlv().len.get());
        let exact = match limits.framing {
            // A sender counts data that it copied and leaves out what its NIC gathered.
            Framing::Rdma => tlv_len == total - tlv || tlv_len == body - tlv,
            Framing::TcpSingle => tlv_len == total - tlv,
            Framing::TcpDual => tlv_len == body - tlv,
        };
        total <= limits.frame_max.into()
            && total.wrapping_sub(body) == self.data_len()
            && body <= total
            && exact
    }

    /// Number of the request.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u64 {
        self.front.session().serial.get()
    }
    /// Number at session level.
    #[inline(always)]
    pub(crate) fn session_sn(&self) -> u16 {
        self.front.session().sn.get()
    }
    /// Whether the session header's pad is not empty.
    #[inline(always)]
    pub(crate) fn has_wait(&self) -> bool {
        self.front.session().pad != [0; 6]
    }
    /// Flags of the session header.
    #[inline(always)]
    pub(crate) fn session_flags(&self) -> SessionFlags {
        SessionFlags::from_bits_retain(self.front.session().flags.get())
    }
    /// Number of the transport.
    #[inline(always)]
    pub(crate) fn sn(&self) -> u16 {
        self.front.sn()
    }
    /// Receives granted with it.
    #[inline(always)]
    pub(crate) fn credits(&self) -> u16 {
        self.front.credits()
    }
    /// Bytes of the application header.
    #[inline(always)]
    pub(crate) fn header_len(&self) -> u16 {
        self.front.header_len()
    }
    /// Bytes of data.
    #[inline(always)]
    pub(crate) fn data_len(&self) -> u64 {
        self.front.data_len()
    }
}

impl<'a, F: RequestFront> Plain<'a, F> {
    /// Recognises a frame without lists, padding and defects. Whatever it takes,
    /// [`Request::parse`](super::Request::parse) takes, with the same values.
    #[inline(always)]
    pub(crate) fn parse_request(frame: &'a [u8], limits: Limits) -> Option<Self> {
        let plain = Self::view_request(frame, limits)?;
        let whole = plain.is_whole(frame.len() as u64, limits);
        whole.then_some(plain)
    }

    #[inline(always)]
    fn view_request(frame: &'a [u8], limits: Limits) -> Option<Self> {
        let plain = Self::view(frame, limits)?;
        plain.front.is_inline().then_some(plain)
    }

    /// The receiver's id of the session.
    #[inline(always)]
    pub(crate) fn dest_session(&self) -> u32 {
        self.front.session().dest_session.get()
    }
    /// The requester's id.
    #[inline(always)]
    pub(crate) fn ltid(&self) -> u32 {
        self.front.ltid()
    }
    /// Flags of the transport header.
    #[inline(always)]
    pub(crate) fn flags(&self) -> TransportFlags {
        TransportFlags::from_bits_retain(self.front.flags())
    }
}

impl<'a, F: ResponseFront> Plain<'a, F> {
    /// Recognises a frame without lists, padding and defects that is an answer and no receipt.
    /// Whatever it takes, [`Response::parse`](super::Response::parse) takes, with the same values.
    #[inline(always)]
    pub(crate) fn parse_response(frame: &'a [u8], limits: Limits) -> Option<Self> {
        let plain = Self::view_response(frame, limits)?;
        let whole = plain.is_whole(frame.len() as u64, limits);
        whole.then_some(plain)
    }

    #[inline(always)]
    fn view_response(frame: &'a [u8], limits: Limits) -> Option<Self> {
        let plain = Self::view(frame, limits)?;
        let receipts = SessionFlags::RECEIPT_FIRST | SessionFlags::RECEIPT_LAST;
        let answers = plain.session_flags().intersection(receipts) == SessionFlags::RECEIPT_LAST;
        (answers && plain.front.is_inline()).then_some(plain)
    }

    /// The requester's id.
    #[inline(always)]
    pub(crate) fn rtid(&self) -> u32 {
        self.front.rtid()
    }
    /// Zero, or why there is no proper response.
    #[inline(always)]
    pub(crate) fn status(&self) -> u32 {
        self.front.status()
    }
}

/// Bytes of data that follow the control part of a plain message on two streams. `None`: it is not
/// such a message, or has a defect.
#[inline(always)]
pub(super) fn rest_of_plain(kind: Kind, control_part: &[u8], limits: Limits) -> Option<u32> {
    fn rest<F: Front>(plain: &Plain<'_, F>, here: u64, limits: Limits) -> Option<u32> {
        let total = plain.body().checked_add(plain.data_len())?;
        (plain.body() == here && plain.is_whole(total, limits)).then(|| (total - here) as u32)
    }
    let here = control_part.len() as u64;
    if kind.is_request() {
        let plain = PlainRequest::<OnStream>::view_request(control_part, limits)?;
        rest(&plain, here, limits)
    } else {
        let plain = PlainResponse::<OnStream>::view_response(control_part, limits)?;
        rest(&plain, here, limits)
    }
}
