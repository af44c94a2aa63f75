//! Recorded traffic to frames: what `xio decode` does, without the command line.
//!
//! [`decode`] reads a capture (pcap or pcapng), hex text or bare bytes and hands every frame of the
//! protocol to a function, with all that is wrong in it.
//!
//! | module | what it does |
//! |---|---|
//! | `source` | files to packets, or to bytes of one stream |
//! | `link` | packets to TCP segments and UDP datagrams |
//! | `tcp` | segments to bytes in order, with the holes that the capture has |
//! | `streams` | which sockets belong together, bytes to frames; the framing is the core's |
//! | `roce` | RDMA over UDP: packets to SENDs, everything else counted |
//! | `show` | a frame as a tree of names and values, and that as text and JSON |
//!
//! # Memory
//!
//! Whatever the input, one stream direction holds at most [`limits::AHEAD_MAX`] bytes that came
//! out of order and [`limits::QUEUE_MAX`] bytes (of each of its sockets) that cannot be told apart
//! yet; a queue pair as many out of order and one frame. Over that, what is missing is declared
//! lost, and said to be so. At most [`limits::STREAMS_MAX`] connections are followed at once; of
//! others the packets are counted and dropped.
#![forbid(unsafe_code)]

mod link;
mod queue;
mod report;
mod roce;
mod show;
mod source;
mod streams;
mod tcp;

pub mod limits {
    //! What a decoder keeps at most.

    /// Bytes of one frame, its data outside excluded.
    pub const FRAME_MAX: u32 = 0xffff + 16;
    /// Bytes of one direction of a connection that came before those in front of them.
    pub const AHEAD_MAX: usize = 1 << 20;
    /// Pieces of one direction that came before those in front of them.
    pub const PIECES_MAX: usize = 1024;
    /// Packets that a direction waits for a hole to be filled which its receiver has confirmed.
    pub const PATIENCE: u32 = 32;
    /// Bytes of one direction of a socket that wait for other bytes to explain them.
    pub const QUEUE_MAX: u64 = 1 << 20;
    /// Bytes of payload that are shown.
    pub const PREVIEW: usize = 64;
    /// TCP connections, and as many RDMA queue pairs, that are followed at once.
    pub const STREAMS_MAX: usize = 1 << 16;
    /// Bytes of one packet or block of a capture.
    pub const BLOCK_MAX: usize = 16 << 20;
    /// Bytes of hex text or of bare bytes.
    pub const TEXT_MAX: u64 = 256 << 20;
}

pub use report::{Dir, Frame, Item, Lost, Stamp, Summary, Trouble, What};
pub use show::{Node, Shown, Value, json, text};
pub use source::{DialectHint, Options, SourceError, decode};
