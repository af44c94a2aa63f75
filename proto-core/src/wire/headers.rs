//! Byte layouts (PROTOCOL.md 1 to 7). Every integer is big-endian and unaligned; sizes and offsets
//! are proven below.

use core::mem::{offset_of, size_of};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{Field, Layout};

/// `XIOP` in ASCII.
pub(super) const MAGIC: u32 = 0x5849_4f50;
/// Largest length word: libxio passes it through 16 bits.
pub(super) const TLV_LEN_MAX: u64 = 0xffff;
/// Session header plus the shortest transport header.
pub(super) const HEADERS_LEN: usize = size_of::<SessionHeader>() + 40;

/// Declares a layout with its derives, its size and the offset of each field.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident, $size:literal { $($at:literal $field:ident: $ty:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(super) $field: $ty,)+
        }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == 1);
            $(assert!(offset_of!($name, $field) == $at);)+
        };
        impl Layout for $name {
            const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($field),
                offset: $at,
                len: size_of::<$ty>() as u16,
            },)+];
        }
    };
}

layout! {
    /// Start of every frame.
    Tlv, 16 {
        0 magic: U32,
        4 kind: U32,
        8 len: U64,
    }
}

layout! {
    /// Second part of every numbered frame.
    SessionHeader, 40 {
        0 dest_session: U32,
        4 flags: U32,
        8 serial: U64,
        16 sn: U16,
        18 ack_sn: U16,
        20 credits_msgs: U16,
        22 pad: [u8; 6],
        28 receipt_result: U32,
        32 credits_bytes: U64,
    }
}

layout! {
    /// What a peer of this kind says of itself, in bytes that a libxio leaves undefined.
    IntroductionBlock, 36 {
        0 magic: U16,
        2 version: u8,
        3 role: u8,
        4 features: U32,
        8 identity: U64,
        16 incarnation: U64,
        24 nonce: U32,
        28 check: U64,
    }
}

layout! {
    /// What is said of an earlier life of a connection, in the same place.
    ResumeBlock, 36 {
        0 session: U32,
        4 status: U32,
        8 token: U64,
        16 next: U64,
        24 pad: [u8; 12],
    }
}

layout! {
    /// Request transport header on RDMA.
    RdmaRequestHeader, 40 {
        0 version: u8,
        1 flags: u8,
        2 len: U16,
        4 sn: U16,
        6 ack_sn: U16,
        8 credits: U16,
        10 ltid: U32,
        14 in_op: u8,
        15 out_op: u8,
        16 in_sges: U16,
        18 out_sges: U16,
        20 pad: U32,
        24 header_len: U16,
        26 pad_len: U16,
        28 remain: U32,
        32 data_len: U64,
    }
}

layout! {
    /// Response transport header on RDMA.
    RdmaResponseHeader, 44 {
        0 version: u8,
        1 flags: u8,
        2 len: U16,
        4 sn: U16,
        6 ack_sn: U16,
        8 credits: U16,
        10 rtid: U32,
        14 op: u8,
        15 pad: [u8; 3],
        18 sges: U16,
        20 status: U32,
        24 ltid: U32,
        28 header_len: U16,
        30 pad_len: U16,
        32 remain: U32,
        36 data_len: U64,
    }
}

layout! {
    /// Request transport header on TCP.
    TcpRequestHeader, 40 {
        0 version: u8,
        1 flags: u8,
        2 len: U16,
        4 sn: U16,
        6 pad: U16,
        8 ltid: U32,
        12 pad1: U16,
        14 in_op: u8,
        15 out_op: u8,
        16 in_sges: U16,
        18 out_sges: U16,
        20 pad2: U32,
        24 header_len: U16,
        26 pad_len: U16,
        28 remain: U32,
        32 data_len: U64,
    }
}

layout! {
    /// Response transport header on TCP.
    TcpResponseHeader, 40 {
        0 version: u8,
        1 flags: u8,
        2 len: U16,
        4 sn: U16,
        6 pad: U16,
        8 ltid: U32,
        12 rtid: U32,
        16 op: u8,
        17 pad1: u8,
        18 sges: U16,
        20 status: U32,
        24 header_len: U16,
        26 pad_len: U16,
        28 remain: U32,
        32 data_len: U64,
    }
}

layout! {
    /// One segment of remote memory.
    WireSge, 16 {
        0 addr: U64,
        8 len: U32,
        12 rkey: U32,
    }
}

layout! {
    /// Fixed front of a request on RDMA.
    RdmaRequestFront, 96 {
        0 tlv: Tlv,
        16 session: SessionHeader,
        56 head: RdmaRequestHeader,
    }
}

layout! {
    /// Fixed front of a request on TCP.
    TcpRequestFront, 96 {
        0 tlv: Tlv,
        16 session: SessionHeader,
        56 head: TcpRequestHeader,
    }
}

layout! {
    /// Fixed front of a response on RDMA.
    RdmaResponseFront, 100 {
        0 tlv: Tlv,
        16 session: SessionHeader,
        56 head: RdmaResponseHeader,
    }
}

layout! {
    /// Fixed front of a response on TCP.
    TcpResponseFront, 96 {
        0 tlv: Tlv,
        16 session: SessionHeader,
        56 head: TcpResponseHeader,
    }
}

layout! {
    /// Body of the client's nexus setup, before the transport's block.
    NexusRequestBody, 8 {
        0 version: U16,
        2 flags: U16,
        4 cid: U32,
    }
}

layout! {
    /// Body of the server's nexus setup, before the transport's block.
    NexusResponseBody, 12 {
        0 cid: U32,
        4 status: U32,
        8 version: U16,
        10 flags: U16,
    }
}

layout! {
    /// Transport block of a nexus setup on RDMA.
    RdmaSetupBlock, 32 {
        0 credits: U16,
        2 sq_depth: U16,
        4 rq_depth: U16,
        6 rkeys: U16,
        8 buffer_size: U64,
        16 max_in_sges: U32,
        20 max_out_sges: U32,
        24 max_header: U32,
        28 pad: U32,
    }
}

layout! {
    /// Transport block of a nexus setup on TCP.
    TcpSetupBlock, 24 {
        0 buffer_size: U64,
        8 max_in_sges: U32,
        12 max_out_sges: U32,
        16 max_header: U32,
        20 pad: U32,
    }
}

layout! {
    /// A whole credit frame.
    CreditNopFrame, 28 {
        0 tlv: Tlv,
        16 len: U16,
        18 sn: U16,
        20 ack_sn: U16,
        22 credits: U16,
        24 opcode: u8,
        25 flags: u8,
        26 pad: U16,
    }
}

layout! {
    /// A whole frame that ends a remote read.
    ReadAckFrame, 22 {
        0 tlv: Tlv,
        16 len: U16,
        18 rtid: U32,
    }
}

layout! {
    /// Payload of the cancel frames.
    CancelBody, 26 {
        0 len: U16,
        2 sn: U16,
        4 result: U32,
        8 inner_len: U16,
        10 requester: U32,
        14 responder: U32,
        18 serial: U64,
    }
}

layout! {
    /// Fixed part of a session setup request.
    SessionRequestBody, 28 {
        0 session_id: U32,
        4 snd_bytes: U64,
        12 rcv_bytes: U64,
        20 snd_msgs: U16,
        22 rcv_msgs: U16,
        24 uri_len: U16,
        26 private_len: U16,
    }
}

layout! {
    /// Common start of every answer to a session setup.
    SessionResponseBody, 6 {
        0 session_id: U32,
        4 action: U16,
    }
}

layout! {
    /// Fixed part of an accepting answer, after the common start.
    AcceptBody, 24 {
        0 snd_bytes: U64,
        8 rcv_bytes: U64,
        16 snd_msgs: U16,
        18 rcv_msgs: U16,
        20 portals: U16,
        22 private_len: U16,
    }
}

layout! {
    /// Fixed part of a redirecting answer, after the common start.
    RedirectBody, 4 {
        0 portals: U16,
        2 private_len: U16,
    }
}

layout! {
    /// Fixed part of a rejecting answer, after the common start.
    RejectBody, 6 {
        0 reason: U32,
        4 private_len: U16,
    }
}

layout! {
    /// First bytes on every socket.
    ConnectBody, 8 {
        0 kind: U32,
        4 second_port: U16,
        6 pad: U16,
    }
}

impl SessionHeader {
    /// All zero.
    pub(super) const ZERO: Self = Self {
        dest_session: U32::ZERO,
        flags: U32::ZERO,
        serial: U64::ZERO,
        sn: U16::ZERO,
        ack_sn: U16::ZERO,
        credits_msgs: U16::ZERO,
        pad: [0; 6],
        receipt_result: U32::ZERO,
        credits_bytes: U64::ZERO,
    };
}

impl Tlv {
    /// Makes the start of a frame of kind `word` with `len` bytes after it.
    pub(super) const fn new(word: u32, len: u64) -> Self {
        Self {
            magic: U32::new(MAGIC),
            kind: U32::new(word),
            len: U64::new(len),
        }
    }
}
