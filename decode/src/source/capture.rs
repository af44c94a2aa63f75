//! pcap and pcapng: one block after the other, each bounded.

use std::io::{self, Read};

use pcap_parser::pcapng::{Block, parse_block_be, parse_block_le};
use pcap_parser::{parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};

use super::SourceError;
use crate::limits::BLOCK_MAX;
use crate::link;
use crate::report::{Reporter, Stamp};
use crate::roce::{self, Roce};
use crate::streams::Streams;

/// Interfaces of one section that are told apart.
const INTERFACES_MAX: usize = 4096;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const SIMPLE: u32 = 3;
const ENHANCED: u32 = 6;

/// Whether input that begins like this is a capture.
pub(super) fn is_capture(first: &[u8]) -> bool {
    let Some(magic) = first.first_chunk().map(|word| u32::from_be_bytes(*word)) else {
        return false;
    };
    let known = [0xa1b2_c3d4, 0xd4c3_b2a1, 0xa1b2_3c4d, 0x4d3c_b2a1, SECTION];
    known.contains(&magic)
}

/// Decodes a capture.
pub(super) fn run(input: &mut impl Read, out: &mut Reporter<'_>) -> Result<(), SourceError> {
    let mut blocks = Blocks {
        input,
        bytes: Vec::new(),
        at: 0,
    };
    let mut decoder = Decoder::default();
    let read = decoder.read(&mut blocks, out);
    decoder.streams.finish(out);
    decoder.roce.finish(out);
    match read {
        Ok(()) => Ok(()),
        Err(Stop::Read(error)) => Err(SourceError::Read(error)),
        Err(Stop::Damaged(why)) => {
            out.summary.stopped = Some(format!("{why} (byte {} of the file)", blocks.at));
            Ok(())
        }
    }
}

/// Why a capture is not read any further.
enum Stop {
    Read(io::Error),
    Damaged(String),
}

fn damaged<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Damaged(why.into()))
}

/// The bytes of a file, one block at a time.
struct Blocks<'a, R> {
    input: &'a mut R,
    /// The block that is being read.
    bytes: Vec<u8>,
    /// Where it starts in the file.
    at: u64,
}

impl<R: Read> Blocks<'_, R> {
    /// Begins a block.
    fn begin(&mut self) {
        self.at += self.bytes.len() as u64;
        self.bytes.clear();
    }

    /// Reads until the block has `len` bytes; false if the file ends before.
    fn fill(&mut self, len: usize) -> Result<bool, Stop> {
        let missing = len.saturating_sub(self.bytes.len());
        let mut limited = self.input.by_ref().take(missing as u64);
        let read = limited.read_to_end(&mut self.bytes);
        let read = read.map_err(Stop::Read)?;
        Ok(read == missing)
    }

    /// Reads all of a block of `len` bytes.
    fn whole(&mut self, len: u64) -> Result<(), Stop> {
        let len = match usize::try_from(len) {
            Ok(len) if len <= BLOCK_MAX => len,
            _ => {
                return damaged(format!(
                    "a block of {len} bytes, at most {BLOCK_MAX} are taken"
                ));
            }
        };
        if !self.fill(len)? {
            return damaged("it is cut off inside a block");
        }
        Ok(())
    }

    /// Reads the first `len` bytes of a block; false at the end of the file.
    fn start(&mut self, len: usize) -> Result<bool, Stop> {
        self.begin();
        if self.fill(len)? {
            return Ok(true);
        }
        if self.bytes.is_empty() {
            return Ok(false);
        }
        damaged("it is cut off inside the head of a block")
    }
}

/// An interface of a capture.
#[derive(Copy, Clone, Debug)]
struct Interface {
    link: u32,
    /// Units of its clock in a second: a power of ten or of two.
    resolution: u8,
    /// Seconds to add.
    offset: i64,
}

impl Interface {
    /// Nanoseconds since the epoch.
    fn nanos(&self, time: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let units = if self.resolution & 0x80 == 0 {
            10_u128.checked_pow(exponent)
        } else {
            1_u128.checked_shl(exponent)
        };
        let nanos = match units {
            Some(units) if units > 0 => u128::from(time) * 1_000_000_000 / units,
            _ => 0,
        };
        let offset = u128::from(self.offset.unsigned_abs()) * 1_000_000_000;
        let nanos = if self.offset < 0 {
            nanos.saturating_sub(offset)
        } else {
            nanos.saturating_add(offset)
        };
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

#[derive(Default)]
struct Decoder {
    streams: Streams,
    roce: Roce,
    interfaces: Vec<Interface>,
}

impl Decoder {
    fn read<R: Read>(
        &mut self,
        blocks: &mut Blocks<'_, R>,
        out: &mut Reporter<'_>,
    ) -> Result<(), Stop> {
        if !blocks.start(4)? {
            return Ok(());
        }
        if blocks.bytes == SECTION.to_be_bytes() {
            self.read_pcapng(blocks, out)
        } else {
            self.read_pcap(blocks, out)
        }
    }

    fn read_pcap<R: Read>(
        &mut self,
        blocks: &mut Blocks<'_, R>,
        out: &mut Reporter<'_>,
    ) -> Result<(), Stop> {
        blocks.whole(24)?;
        let Ok((_, header)) = parse_pcap_header(&blocks.bytes) else {
            return damaged("its head is damaged");
        };
        let is_big = header.is_bigendian();
        let fraction: u64 = if header.is_nanosecond_precision() {
            1
        } else {
            1000
        };
        // The upper bits say whether frames have a checksum at their end.
        let link = (header.network.0 as u32) & 0xffff;
        while blocks.start(16)? {
            let len = blocks.bytes[8..]
                .first_chunk::<4>()
                .copied()
                .unwrap_or_default();
            let len = if is_big {
                u32::from_be_bytes(len)
            } else {
                u32::from_le_bytes(len)
            };
            blocks.whole(16 + u64::from(len))?;
            let parsed = if is_big {
                parse_pcap_frame_be(&blocks.bytes)
            } else {
                parse_pcap_frame(&blocks.bytes)
            };
            let Ok((_, frame)) = parsed else {
                return damaged("a damaged packet");
            };
            let nanos =
                u64::from(frame.ts_sec) * 1_000_000_000 + u64::from(frame.ts_usec) * fraction;
            self.packet(link, nanos, frame.data, out);
        }
        Ok(())
    }

    fn read_pcapng<R: Read>(
        &mut self,
        blocks: &mut Blocks<'_, R>,
        out: &mut Reporter<'_>,
    ) -> Result<(), Stop> {
        let mut is_big = false;
        loop {
            if !blocks.fill(12)? {
                return damaged("it is cut off inside the head of a block");
            }
            if blocks.bytes[..4] == SECTION.to_be_bytes() {
                is_big = blocks.bytes[8..] == [0x1a, 0x2b, 0x3c, 0x4d];
                self.interfaces.clear();
            }
            let word = |at: usize| {
                let word = blocks.bytes[at..]
                    .first_chunk::<4>()
                    .copied()
                    .unwrap_or_default();
                if is_big {
                    u32::from_be_bytes(word)
                } else {
                    u32::from_le_bytes(word)
                }
            };
            let (kind, len) = (word(0), word(4));
            if len < 12 {
                return damaged(format!("a block of {len} bytes"));
            }
            blocks.whole(len.into())?;
            if [SECTION, INTERFACE, SIMPLE, ENHANCED].contains(&kind) {
                let parse = if is_big {
                    parse_block_be
                } else {
                    parse_block_le
                };
                let Ok((_, block)) = parse(&blocks.bytes) else {
                    return damaged("a damaged block");
                };
                self.block(&block, out);
            }
            if !blocks.start(4)? {
                return Ok(());
            }
        }
    }

    fn block(&mut self, block: &Block<'_>, out: &mut Reporter<'_>) {
        let (number, time, data, captured) = match block {
            Block::InterfaceDescription(found) => {
                if self.interfaces.len() < INTERFACES_MAX {
                    self.interfaces.push(Interface {
                        link: found.linktype.0 as u32,
                        resolution: found.if_tsresol,
                        offset: found.if_tsoffset,
                    });
                }
                return;
            }
            Block::EnhancedPacket(packet) => {
                let time = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                (packet.if_id, time, packet.data, packet.caplen)
            }
            Block::SimplePacket(packet) => (0, 0, packet.data, packet.origlen),
            _ => return,
        };
        let interface = self.interfaces.get(number as usize).copied();
        let Some(interface) = interface else {
            out.summary
                .count("packets of interfaces that the capture does not describe");
            return;
        };
        let data = &data[..data.len().min(captured as usize)];
        self.packet(interface.link, interface.nanos(time), data, out);
    }

    fn packet(&mut self, link: u32, nanos: u64, bytes: &[u8], out: &mut Reporter<'_>) {
        out.summary.packets += 1;
        if !link::is_known(link) {
            out.summary
                .count("packets of a link type that is not known here");
            return;
        }
        let packet = out.summary.packets;
        let stamp = Stamp { packet, nanos };
        match link::packet(link, bytes) {
            link::Packet::Tcp(segment) => self.streams.segment(&segment, stamp, out),
            link::Packet::Udp(datagram) if datagram.to.port() == roce::PORT => {
                self.roce.datagram(&datagram, stamp, out);
            }
            link::Packet::Udp(_) => out.summary.count("UDP datagrams that are not RoCE"),
            link::Packet::Other(what) => out.summary.count(what),
        }
    }
}
