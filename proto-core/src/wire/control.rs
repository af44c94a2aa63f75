//! Small bodies: transport credits, the end of a remote read, cancel.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::error::{Violation, What};
use super::frame::{TLV_LEN, expect};
use super::headers::{CancelBody, CreditNopFrame, ReadAckFrame, Tlv};
use super::kind::{Framing, Kind};

/// Checks a length word against the number it has to be.
fn expect_len(found: U16, expected: usize, offset: u32) -> Result<(), Violation> {
    if usize::from(found.get()) == expected {
        Ok(())
    } else {
        Err(What::BodyLength.at(offset, found.get()))
    }
}

/// Copies a whole layout to the start of `buf` and returns its length.
pub(super) fn put<T>(buf: &mut [u8], layout: &T) -> usize
where
    T: IntoBytes + Immutable + ?Sized,
{
    let bytes = layout.as_bytes();
    buf[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

/// A frame that grants transport credits and nothing else (PROTOCOL.md 5.7, 6). RDMA only.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CreditNop {
    /// The sender's next transport sequence number, which the frame does not consume.
    pub sn: u16,
    /// Last transport sequence number received in order, 0xffff for none.
    pub ack_sn: u16,
    /// Receive buffers granted.
    pub credits: u16,
}

impl CreditNop {
    /// Length of the frame in bytes.
    pub const LEN: usize = size_of::<CreditNopFrame>();

    /// Parses a whole frame.
    ///
    /// # Errors
    /// Those of [`peek_kind`](super::peek_kind), [`What::WrongKind`], [`What::TlvLenMismatch`],
    /// [`What::FrameLength`], [`What::BodyLength`] or [`What::NopFields`].
    pub fn parse(frame: &[u8]) -> Result<Self, Violation> {
        expect(frame, Framing::Rdma, Kind::CreditNop)?;
        let Ok(nop) = CreditNopFrame::ref_from_bytes(frame) else {
            return Err(What::FrameLength.at(8, frame.len() as u64));
        };
        expect_len(nop.len, Self::LEN - TLV_LEN, 16)?;
        if nop.opcode != 0 {
            return Err(What::NopFields.at(24, nop.opcode));
        }
        if nop.flags != 0 {
            return Err(What::NopFields.at(25, nop.flags));
        }
        Ok(Self {
            sn: nop.sn.get(),
            ack_sn: nop.ack_sn.get(),
            credits: nop.credits.get(),
        })
    }

    /// Writes the frame to the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`CreditNop::LEN`].
    pub fn encode(&self, buf: &mut [u8]) -> usize {
        let body_len = (Self::LEN - TLV_LEN) as u16;
        let frame = CreditNopFrame {
            tlv: Tlv::new(Kind::CreditNop.word(), u64::from(body_len)),
            len: U16::new(body_len),
            sn: U16::new(self.sn),
            ack_sn: U16::new(self.ack_sn),
            credits: U16::new(self.credits),
            opcode: 0,
            flags: 0,
            pad: U16::ZERO,
        };
        put(buf, &frame)
    }
}

/// A frame that tells a responder that its data was read (PROTOCOL.md 5.7, 10.2). RDMA only; has
/// no sequence number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReadAck {
    /// The `ltid` of the response whose data was read.
    pub rtid: u32,
}

impl ReadAck {
    /// Length of the frame in bytes.
    pub const LEN: usize = size_of::<ReadAckFrame>();

    /// Parses a whole frame.
    ///
    /// # Errors
    /// Those of [`peek_kind`](super::peek_kind), [`What::WrongKind`], [`What::TlvLenMismatch`],
    /// [`What::FrameLength`] or [`What::BodyLength`].
    pub fn parse(frame: &[u8]) -> Result<Self, Violation> {
        expect(frame, Framing::Rdma, Kind::ReadAck)?;
        let Ok(ack) = ReadAckFrame::ref_from_bytes(frame) else {
            return Err(What::FrameLength.at(8, frame.len() as u64));
        };
        expect_len(ack.len, Self::LEN - TLV_LEN, 16)?;
        Ok(Self {
            rtid: ack.rtid.get(),
        })
    }

    /// Writes the frame to the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`ReadAck::LEN`].
    pub fn encode(&self, buf: &mut [u8]) -> usize {
        let body_len = (Self::LEN - TLV_LEN) as u16;
        let frame = ReadAckFrame {
            tlv: Tlv::new(Kind::ReadAck.word(), u64::from(body_len)),
            len: U16::new(body_len),
            rtid: U32::new(self.rtid),
        };
        put(buf, &frame)
    }
}

/// Payload of `CancelReq` and `CancelRsp` (PROTOCOL.md 5.7).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Cancel {
    /// Transport sequence number of the request to withdraw.
    pub sn: u16,
    /// Zero in the request; in the answer what became of it, see [`status`](super::status).
    pub result: u32,
    /// The requester's id of the session.
    pub requester: u32,
    /// The responder's id of the session.
    pub responder: u32,
    /// Serial number of the request to withdraw.
    pub serial: u64,
}

impl Cancel {
    /// Length of the payload in bytes.
    pub const LEN: usize = size_of::<CancelBody>();
    /// Bytes counted by the first length word.
    const OUTER_LEN: usize = 8;
    /// Bytes counted by the second length word.
    const INNER_LEN: usize = 16;

    /// Parses a payload. Offsets count from its start.
    ///
    /// # Errors
    /// [`What::Truncated`], [`What::TrailingBytes`], or [`What::BodyLength`] if one of the two
    /// inner length words is wrong.
    pub fn parse(payload: &[u8]) -> Result<Self, Violation> {
        let Ok((body, rest)) = CancelBody::ref_from_prefix(payload) else {
            return Err(What::Truncated.at(0, payload.len() as u64));
        };
        if !rest.is_empty() {
            let value = rest.len() as u64;
            return Err(What::TrailingBytes.at(Self::LEN as u32, value));
        }
        expect_len(body.len, Self::OUTER_LEN, 0)?;
        expect_len(body.inner_len, Self::INNER_LEN, 8)?;
        Ok(Self {
            sn: body.sn.get(),
            result: body.result.get(),
            requester: body.requester.get(),
            responder: body.responder.get(),
            serial: body.serial.get(),
        })
    }

    /// Writes the payload to the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Cancel::LEN`].
    pub fn encode(&self, buf: &mut [u8]) -> usize {
        let body = CancelBody {
            len: U16::new(Self::OUTER_LEN as u16),
            sn: U16::new(self.sn),
            result: U32::new(self.result),
            inner_len: U16::new(Self::INNER_LEN as u16),
            requester: U32::new(self.requester),
            responder: U32::new(self.responder),
            serial: U64::new(self.serial),
        };
        put(buf, &body)
    }
}
