//! Following a transport connection on streams without taking part in it (PROTOCOL.md 3.3): for
//! what watches both directions of recorded sockets. An endpoint cuts its own streams by the same
//! two functions, [`control_len`] and [`stream_plan`], but with slots, users and limits.

use super::error::Violation;
use super::frame::{Bounds, TLV_LEN};
use super::headers::MAGIC;
use super::kind::{Framing, Kind};
use super::stream::{StreamPlan, control_len, stream_plan};

/// What comes next in one direction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// The start of a frame, on the control or single stream.
    Frame,
    /// So many bytes of the data stream, which belong into the frame.
    Inline(u32),
    /// So many bytes of data outside the frame: on a single stream right behind it, of a pair on
    /// the data stream.
    Payload(u64),
}

/// What stands at the front of a control or single stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Nothing can be said before so many bytes are there.
    More(usize),
    /// A frame without a defect in its headers, of `len` bytes on this stream.
    Frame {
        /// What it is.
        kind: Kind,
        /// Its bytes on this stream.
        len: usize,
        /// What else belongs to it.
        plan: StreamPlan,
    },
}

impl Cut {
    /// Looks at the front of a control or single stream.
    ///
    /// # Errors
    /// Those of [`control_len`] and [`stream_plan`].
    ///
    /// # Panics
    /// If `framing` is that of RDMA, which has no streams.
    pub fn front(bytes: &[u8], framing: Framing, bounds: &Bounds) -> Result<Self, Violation> {
        let Some(tlv) = bytes.first_chunk() else {
            return Ok(Self::More(TLV_LEN));
        };
        let (kind, len) = control_len(tlv, framing, bounds.frame_max)?;
        let Some(part) = bytes.get(..len) else {
            return Ok(Self::More(len));
        };
        let plan = stream_plan(part, framing, kind, bounds)?;
        Ok(Self::Frame { kind, len, plan })
    }
}

/// Where one direction of a transport connection stands. It holds no bytes: who uses it keeps
/// those that it cannot take yet.
#[derive(Copy, Clone, Debug)]
pub struct Follower {
    framing: Framing,
    bounds: Bounds,
    inline: u32,
    payload: u64,
}

impl Follower {
    /// Starts where a frame starts.
    ///
    /// # Panics
    /// If `framing` is that of RDMA, which has no streams.
    #[must_use]
    pub const fn new(framing: Framing, bounds: Bounds) -> Self {
        assert!(!matches!(framing, Framing::Rdma), "not a stream");
        Self {
            framing,
            bounds,
            inline: 0,
            payload: 0,
        }
    }

    /// What comes next.
    #[must_use]
    pub const fn next(&self) -> Next {
        match (self.inline, self.payload) {
            (0, 0) => Next::Frame,
            (0, payload) => Next::Payload(payload),
            (inline, _) => Next::Inline(inline),
        }
    }

    /// Cuts the frame at the front of the control or single stream. When it returns one, its
    /// bytes are to be taken from the stream, and [`next`](Self::next) says what follows.
    ///
    /// # Errors
    /// Those of [`Cut::front`]. Where the next frame starts is then unknown, see [`find_frame`].
    ///
    /// # Panics
    /// If no frame comes next.
    pub fn cut(&mut self, bytes: &[u8]) -> Result<Cut, Violation> {
        assert!(self.next() == Next::Frame, "the last frame is not whole");
        let cut = Cut::front(bytes, self.framing, &self.bounds)?;
        if let Cut::Frame { plan, .. } = cut {
            self.inline = plan.data_inline;
            self.payload = plan.payload;
        }
        Ok(cut)
    }

    /// So many bytes of what [`next`](Self::next) names came by, or are known to be lost; at most
    /// as many as it says.
    pub fn took(&mut self, bytes: u64) {
        if self.inline > 0 {
            let left = u64::from(self.inline).saturating_sub(bytes);
            // Not above what it was.
            self.inline = left as u32;
        } else {
            self.payload = self.payload.saturating_sub(bytes);
        }
    }

    /// What is missing of the last frame will not come: a frame comes next.
    pub const fn give_up(&mut self) {
        self.inline = 0;
        self.payload = 0;
    }
}

/// Finds the first place in `bytes` where a frame of a stream may start: the magic number, a type
/// that exists on streams, a length that is possible.
///
/// # Errors
/// The number of bytes at the front that certainly start none; the others, fewer than the 16 of a
/// frame's start, may once more bytes are there.
pub fn find_frame(bytes: &[u8], frame_max: u32) -> Result<usize, usize> {
    let magic = MAGIC.to_be_bytes();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(step) = rest.iter().position(|byte| *byte == magic[0]) else {
            return Err(bytes.len());
        };
        at += step;
        let rest = &bytes[at..];
        let start = magic.len().min(rest.len());
        if rest[..start] == magic[..start] {
            let Some(tlv) = rest.first_chunk() else {
                return Err(at);
            };
            // What is possible on a pair is possible on a single stream.
            if control_len(tlv, Framing::TcpSingle, frame_max).is_ok() {
                return Ok(at);
            }
        }
        at += 1;
    }
    Err(bytes.len())
}
