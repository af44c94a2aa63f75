//! Nexus setup: the first frame each way on a new transport connection (PROTOCOL.md 2.1).

use core::fmt;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::control::put;
use super::error::{Violation, What};
use super::frame::{TLV_LEN, expect};
use super::headers::{NexusRequestBody, NexusResponseBody, RdmaSetupBlock, TcpSetupBlock, Tlv};
use super::kind::{Dialect, Framing, Kind};

/// Smallest buffer size that a peer may announce: every frame without data fits, down to the
/// rejection of a session.
pub const BUFFER_SIZE_MIN: u64 = 112;

/// The one version of the nexus protocol.
pub const NEXUS_VERSION: u16 = 0x0100;
/// Flag of both setup frames: an earlier transport connection is to be continued.
pub const NEXUS_RECONNECT: u16 = 0x0001;

const PAIR_LEN: usize = 8;

/// What one side tells the other about its limits.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SetupParams {
    /// Receive buffers posted by the server; zero from a client. RDMA only, else zero.
    pub credits: u16,
    /// Depth of the send queue in frames. RDMA only, else zero.
    pub sq_depth: u16,
    /// Depth of the receive queue in frames. RDMA only, else zero.
    pub rq_depth: u16,
    /// Most bytes of a frame; never zero in a parsed frame, unless the server refuses.
    pub buffer_size: u64,
    /// Most segments that the sender of this takes as data.
    pub max_in_sges: u32,
    /// Most segments that the sender of this fills with response data.
    pub max_out_sges: u32,
    /// Most bytes of an application header.
    pub max_header: u32,
    /// A field libxio leaves undefined and ignores.
    pub pad: u32,
}

/// Pairs of remote keys, old and new, in wire form.
#[derive(Copy, Clone, PartialEq, Eq, Default)]
pub struct RkeyTable<'a>(&'a [u8]);

impl<'a> RkeyTable<'a> {
    /// Makes a table of the bytes of its pairs.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of 8-byte pairs, or more of them than a `u16` counts.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        assert!(bytes.len().is_multiple_of(PAIR_LEN), "half a pair");
        assert!(
            bytes.len() / PAIR_LEN <= u16::MAX as usize,
            "too many pairs"
        );
        Self(bytes)
    }

    /// Returns the number of pairs.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len() / PAIR_LEN
    }

    /// Returns whether there are no pairs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pairs `(old, new)` in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + 'a {
        let (pairs, _) = self.0.as_chunks::<PAIR_LEN>();
        pairs.iter().map(|pair| {
            let [a, b, c, d, e, f, g, h] = *pair;
            (
                u32::from_be_bytes([a, b, c, d]),
                u32::from_be_bytes([e, f, g, h]),
            )
        })
    }
}

impl fmt::Debug for RkeyTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// First frame of the connecting side.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NexusSetupRequest<'a> {
    /// Zero or [`NEXUS_RECONNECT`]; other bits are kept.
    pub flags: u16,
    /// The id that the server gave to the connection to continue; else zero.
    pub cid: u32,
    /// The client's limits.
    pub params: SetupParams,
    /// Keys that changed since the earlier connection; always empty from libxio and on TCP.
    pub rkeys: RkeyTable<'a>,
}

/// First frame of the accepting side.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NexusSetupResponse<'a> {
    /// The server's id of the transport connection.
    pub cid: u32,
    /// Zero, a code of [`status`](super::status) or an errno. If not zero, nothing else counts.
    pub status: u32,
    /// Zero or [`NEXUS_RECONNECT`]; other bits are kept.
    pub flags: u16,
    /// The server's limits.
    pub params: SetupParams,
    /// Keys that changed since the earlier connection; always empty from libxio and on TCP.
    pub rkeys: RkeyTable<'a>,
}

impl<'a> NexusSetupRequest<'a> {
    /// Parses a whole frame.
    ///
    /// # Errors
    /// Those of [`peek_kind`](super::peek_kind), [`What::WrongKind`], [`What::TlvLenMismatch`],
    /// [`What::Truncated`], [`What::NexusVersion`] with the version received,
    /// [`What::BufferSizeTooSmall`], [`What::RkeyTable`] or [`What::TrailingBytes`].
    pub fn parse(frame: &'a [u8], dialect: Dialect) -> Result<Self, Violation> {
        expect(frame, framing(dialect), Kind::NexusSetupReq)?;
        let Ok((body, rest)) = NexusRequestBody::ref_from_prefix(&frame[TLV_LEN..]) else {
            return Err(What::Truncated.at(0, frame.len() as u64));
        };
        check_version(body.version, 16)?;
        let block = Block::parse(rest, dialect, 24)?;
        block.check_buffer_size()?;
        Ok(Self {
            flags: body.flags.get(),
            cid: body.cid.get(),
            params: block.params,
            rkeys: block.rkeys,
        })
    }

    /// Writes the frame to the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is too short, or if there are keys on TCP.
    pub fn encode(&self, buf: &mut [u8], dialect: Dialect) -> usize {
        let body = NexusRequestBody {
            version: U16::new(NEXUS_VERSION),
            flags: U16::new(self.flags),
            cid: U32::new(self.cid),
        };
        encode(
            buf,
            dialect,
            Kind::NexusSetupReq,
            body.as_bytes(),
            &self.params,
            self.rkeys,
        )
    }
}

impl<'a> NexusSetupResponse<'a> {
    /// Parses a whole frame.
    ///
    /// Credits of zero are accepted: a peer with a shared receive queue grants none.
    ///
    /// # Errors
    /// As for the request, and [`What::DepthZero`] on RDMA. Zeros are defects only if the status
    /// is zero.
    pub fn parse(frame: &'a [u8], dialect: Dialect) -> Result<Self, Violation> {
        expect(frame, framing(dialect), Kind::NexusSetupRsp)?;
        let Ok((body, rest)) = NexusResponseBody::ref_from_prefix(&frame[TLV_LEN..]) else {
            return Err(What::Truncated.at(0, frame.len() as u64));
        };
        check_version(body.version, 24)?;
        let block = Block::parse(rest, dialect, 28)?;
        if body.status.get() == 0 {
            block.check_buffer_size()?;
            block.check_depths(dialect)?;
        }
        Ok(Self {
            cid: body.cid.get(),
            status: body.status.get(),
            flags: body.flags.get(),
            params: block.params,
            rkeys: block.rkeys,
        })
    }

    /// Writes the frame to the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is too short, or if there are keys on TCP.
    pub fn encode(&self, buf: &mut [u8], dialect: Dialect) -> usize {
        let body = NexusResponseBody {
            cid: U32::new(self.cid),
            status: U32::new(self.status),
            version: U16::new(NEXUS_VERSION),
            flags: U16::new(self.flags),
        };
        encode(
            buf,
            dialect,
            Kind::NexusSetupRsp,
            body.as_bytes(),
            &self.params,
            self.rkeys,
        )
    }
}

/// Setup frames are laid the same way in both stream framings.
const fn framing(dialect: Dialect) -> Framing {
    match dialect {
        Dialect::Rdma => Framing::Rdma,
        Dialect::Tcp => Framing::TcpSingle,
    }
}

fn check_version(version: U16, offset: u32) -> Result<(), Violation> {
    if version.get() == NEXUS_VERSION {
        Ok(())
    } else {
        Err(What::NexusVersion.at(offset, version.get()))
    }
}

/// The transport's block of a setup frame.
struct Block<'a> {
    params: SetupParams,
    rkeys: RkeyTable<'a>,
    /// Offset of the block in the frame.
    at: u32,
    /// Offset of the buffer size in the frame.
    buffer_size_at: u32,
}

impl<'a> Block<'a> {
    /// Parses what must be exactly a block, of which `at` is the offset in the frame.
    fn parse(bytes: &'a [u8], dialect: Dialect, at: u32) -> Result<Self, Violation> {
        let truncated = || What::Truncated.at(at, bytes.len() as u64);
        match dialect {
            Dialect::Rdma => {
                let (block, table) =
                    RdmaSetupBlock::ref_from_prefix(bytes).map_err(|_| truncated())?;
                if usize::from(block.rkeys.get()) * PAIR_LEN != table.len() {
                    return Err(What::RkeyTable.at(at + 6, block.rkeys.get()));
                }
                Ok(Self {
                    params: from_rdma(block),
                    rkeys: RkeyTable(table),
                    at,
                    buffer_size_at: at + 8,
                })
            }
            Dialect::Tcp => {
                let (block, rest) =
                    TcpSetupBlock::ref_from_prefix(bytes).map_err(|_| truncated())?;
                if !rest.is_empty() {
                    let end = at + size_of::<TcpSetupBlock>() as u32;
                    return Err(What::TrailingBytes.at(end, rest.len() as u64));
                }
                Ok(Self {
                    params: from_tcp(block),
                    rkeys: RkeyTable(&[]),
                    at,
                    buffer_size_at: at,
                })
            }
        }
    }

    fn check_buffer_size(&self) -> Result<(), Violation> {
        let size = self.params.buffer_size;
        if size < BUFFER_SIZE_MIN {
            return Err(What::BufferSizeTooSmall.at(self.buffer_size_at, size));
        }
        Ok(())
    }

    fn check_depths(&self, dialect: Dialect) -> Result<(), Violation> {
        if matches!(dialect, Dialect::Tcp) {
            return Ok(());
        }
        if self.params.sq_depth == 0 {
            return Err(What::DepthZero.at(self.at + 2, 0u8));
        }
        if self.params.rq_depth == 0 {
            return Err(What::DepthZero.at(self.at + 4, 0u8));
        }
        Ok(())
    }
}

fn from_rdma(block: &RdmaSetupBlock) -> SetupParams {
    SetupParams {
        credits: block.credits.get(),
        sq_depth: block.sq_depth.get(),
        rq_depth: block.rq_depth.get(),
        buffer_size: block.buffer_size.get(),
        max_in_sges: block.max_in_sges.get(),
        max_out_sges: block.max_out_sges.get(),
        max_header: block.max_header.get(),
        pad: block.pad.get(),
    }
}

fn from_tcp(block: &TcpSetupBlock) -> SetupParams {
    SetupParams {
        credits: 0,
        sq_depth: 0,
        rq_depth: 0,
        buffer_size: block.buffer_size.get(),
        max_in_sges: block.max_in_sges.get(),
        max_out_sges: block.max_out_sges.get(),
        max_header: block.max_header.get(),
        pad: block.pad.get(),
    }
}

fn encode(
    buf: &mut [u8],
    dialect: Dialect,
    kind: Kind,
    body: &[u8],
    params: &SetupParams,
    rkeys: RkeyTable<'_>,
) -> usize {
    let block_len = match dialect {
        Dialect::Rdma => size_of::<RdmaSetupBlock>() + rkeys.0.len(),
        Dialect::Tcp => size_of::<TcpSetupBlock>(),
    };
    let mut at = put(buf, &Tlv::new(kind.word(), (body.len() + block_len) as u64));
    at += put(&mut buf[at..], body);
    match dialect {
        Dialect::Rdma => {
            let block = RdmaSetupBlock {
                credits: U16::new(params.credits),
                sq_depth: U16::new(params.sq_depth),
                rq_depth: U16::new(params.rq_depth),
                rkeys: U16::new(rkeys.len() as u16),
                buffer_size: U64::new(params.buffer_size),
                max_in_sges: U32::new(params.max_in_sges),
                max_out_sges: U32::new(params.max_out_sges),
                max_header: U32::new(params.max_header),
                pad: U32::new(params.pad),
            };
            at += put(&mut buf[at..], &block);
            at + put(&mut buf[at..], rkeys.0)
        }
        Dialect::Tcp => {
            assert!(rkeys.is_empty(), "no remote keys on a stream");
            let block = TcpSetupBlock {
                buffer_size: U64::new(params.buffer_size),
                max_in_sges: U32::new(params.max_in_sges),
                max_out_sges: U32::new(params.max_out_sges),
                max_header: U32::new(params.max_header),
                pad: U32::new(params.pad),
            };
            at + put(&mut buf[at..], &block)
        }
    }
}
