//! What a decoder has to tell.

use std::collections::BTreeMap;
use std::fmt;

use xio_proto::wire::Violation;

use crate::show::Node;

/// When something was captured.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stamp {
    /// Number of the packet in the capture, from 1; 0 when there are no packets.
    pub packet: u64,
    /// Nanoseconds since the epoch of the capture's clock.
    pub nanos: u64,
}

/// Who sent something. Of a TCP connection of which the start was not captured the side with the
/// smaller port is taken for the server.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Dir {
    /// The connecting side.
    ToServer,
    /// The accepting side.
    ToClient,
    /// The capture does not show who connected.
    Unknown,
}

impl Dir {
    /// The name in the output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToServer => "c2s",
            Self::ToClient => "s2c",
            Self::Unknown => "unknown",
        }
    }
}

/// Something to tell.
#[derive(Clone, Debug)]
pub struct Item {
    /// Running number, from 1.
    pub n: u64,
    /// When its last byte was captured.
    pub stamp: Stamp,
    /// Number of its transport connection: one or two sockets, or two queue pairs.
    pub stream: u32,
    /// Who sent it.
    pub dir: Dir,
    /// Bytes of that direction of its (control) socket that came before it; 0 on RDMA.
    pub at: u64,
    /// What it is.
    pub what: What,
}

/// What an [`Item`] is.
#[derive(Clone, Debug)]
pub enum What {
    /// A frame, perhaps with a defect.
    Frame(Frame),
    /// Bytes that are no frame, or are not there.
    Lost(Lost),
}

/// A frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The name of its type; `CONNECT_MSG` for the connect message.
    pub kind: &'static str,
    /// Its bytes, wherever they travelled, without data outside of it.
    pub len: u64,
    /// What is wrong with it.
    pub trouble: Option<Trouble>,
    /// Its parts.
    pub tree: Vec<Node>,
}

/// What is wrong with a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// What.
    pub text: String,
    /// At which byte of the frame.
    pub offset: u64,
    /// The capture lacks a part of the frame, of which all that is there may be right.
    pub is_gap: bool,
}

impl From<Violation> for Trouble {
    fn from(violation: Violation) -> Self {
        let Violation { what, value, .. } = violation;
        Self {
            text: format!("{}: {value} ({value:#x}), {}", what.text(), what.name()),
            offset: violation.offset.into(),
            is_gap: false,
        }
    }
}

/// Bytes that were left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// How many.
    pub bytes: u64,
    /// Why.
    pub why: String,
}

/// What was seen in all.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Packets of the capture, or 0.
    pub packets: u64,
    /// Frames.
    pub frames: u64,
    /// Frames with a defect; those that were captured in part are among `counts`.
    pub malformed: u64,
    /// Transport connections with frames.
    pub streams: u64,
    /// TCP connections without any, and the bytes in them.
    pub foreign: (u64, u64),
    /// Other counts, by name: what was skipped, repeated, or not understood.
    pub counts: BTreeMap<&'static str, u64>,
    /// Why the capture ends before its end.
    pub stopped: Option<String>,
}

impl Summary {
    /// Counts something.
    pub(crate) fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Counts several.
    pub(crate) fn add(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.counts.entry(what).or_default() += count;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "frames: {}, malformed: {}, streams: {}, packets: {}",
            self.frames, self.malformed, self.streams, self.packets
        )?;
        if self.foreign.0 > 0 {
            let (count, bytes) = self.foreign;
            write!(
                f,
                "\nTCP connections without a frame: {count}, of {bytes} bytes"
            )?;
        }
        for (what, count) in &self.counts {
            write!(f, "\n{what}: {count}")?;
        }
        if let Some(why) = &self.stopped {
            write!(f, "\nthe capture ends early: {why}")?;
        }
        Ok(())
    }
}

/// Takes what is found; numbers and counts it.
pub(crate) struct Reporter<'a> {
    sink: &'a mut dyn FnMut(&Item) -> std::io::Result<()>,
    pub(crate) summary: Summary,
    n: u64,
    streams: u32,
    /// The first error of the sink: nothing is told any more after it.
    pub(crate) failed: Option<std::io::Error>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(sink: &'a mut dyn FnMut(&Item) -> std::io::Result<()>) -> Self {
        Self {
            sink,
            summary: Summary::default(),
            n: 0,
            streams: 0,
            failed: None,
        }
    }

    /// A number for a transport connection that has something to tell.
    pub(crate) fn stream(&mut self) -> u32 {
        self.streams += 1;
        self.summary.streams += 1;
        self.streams
    }

    pub(crate) fn tell(&mut self, stamp: Stamp, stream: u32, dir: Dir, at: u64, what: What) {
        if let What::Frame(frame) = &what {
            self.summary.frames += 1;
            match &frame.trouble {
                Some(trouble) if trouble.is_gap => self.summary.count("frames captured in part"),
                Some(_) => self.summary.malformed += 1,
                None => {}
            }
        }
        self.n += 1;
        tracing::trace!(n = self.n, stream, packet = stamp.packet, "told");
        let item = Item {
            n: self.n,
            stamp,
            stream,
            dir,
            at,
            what,
        };
        if self.failed.is_none()
            && let Err(error) = (self.sink)(&item)
        {
            self.failed = Some(error);
        }
    }
}
