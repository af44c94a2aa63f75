//! How the data of a message travels, or why it never can (PROTOCOL.md 10.1): decided once for both,
//! who takes the message and who writes its frame, so that what is taken is sent.

use super::Endpoint;
use crate::entries::{Task, TaskFlags};
use crate::error::{CommandError, Failure, Length};
use crate::ids::NONE;
use crate::memory::Segment;
use crate::storage::Storage;
use crate::trace::Trace;
use crate::wire::{Dialect, Framing, Op, request_head_len, response_head_len};

/// Bytes of a segment in a list on the wire.
const SGE_LEN: u64 = 16;

/// A message is larger than what its peer, its device or the frame takes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Misfit {
    pub(crate) what: Length,
    pub(crate) len: u64,
    pub(crate) max: u64,
}

impl Misfit {
    fn check(what: Length, len: u64, max: u64) -> Result<(), Self> {
        if len > max {
            return Err(Self { what, len, max });
        }
        Ok(())
    }
}

impl From<Misfit> for CommandError {
    fn from(Misfit { what, len, max }: Misfit) -> Self {
        Self::TooLong { what, len, max }
    }
}

impl From<Misfit> for Failure {
    fn from(Misfit { what, len, max }: Misfit) -> Self {
        Self::TooLong { what, len, max }
    }
}

/// What of a request decides how its data and its answer's travel.
#[derive(Copy, Clone)]
pub(crate) struct Shape {
    pub(crate) header_len: u16,
    /// Bytes in the slot.
    pub(crate) slot_data: u32,
    pub(crate) out: Listed,
    pub(crate) into: Listed,
    /// The room for the answer has addresses, not lengths only.
    pub(crate) real: bool,
    pub(crate) force_read: bool,
    pub(crate) force_write: bool,
}

/// A list of segments.
#[derive(Copy, Clone)]
pub(crate) struct Listed {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

impl Listed {
    pub(crate) fn of(segments: &[Segment]) -> Self {
        Self {
            count: segments.len(),
            bytes: segments.iter().map(|s| u64::from(s.len)).sum(),
        }
    }
}

impl Shape {
    fn of(task: &Task) -> Self {
        Self {
            header_len: task.header_len,
            slot_data: task.slot_data,
            out: Listed {
                count: task.out.count.into(),
                bytes: task.out.total,
            },
            into: Listed {
                count: task.into.count.into(),
                bytes: task.into.total,
            },
            real: task.into.inline[0].addr != 0,
            force_read: task.force_read,
            force_write: task.flags.contains(TaskFlags::FORCE_WRITE),
        }
    }
}

/// How a request travels.
pub(crate) struct RequestMode {
    pub(super) in_op: Op,
    pub(super) out_op: Op,
    /// The expected response's buffers are listed.
    pub(super) offer: bool,
    /// The data is above the inline limit.
    pub(super) large: bool,
}

/// How a request without lists travels.
const SHORT: RequestMode = RequestMode {
    in_op: Op::Send,
    out_op: Op::Send,
    offer: false,
    large: false,
};

/// What bounds a request on its way: this side, its device, and the peer as far as it is known.
struct Way {
    framing: Framing,
    frame_max: u64,
    inline_max: u64,
    /// Segments that a device gathers behind a frame.
    gather_max: usize,
    out_sges: u64,
    into_sges: u64,
    peer_header: u64,
    /// Largest application header of an answer.
    header_max: usize,
}

impl Way {
    fn request_mode(&self, shape: &Shape) -> Result<RequestMode, Misfit> {
        let Shape { out, into, .. } = *shape;
        let (header, copied) = (u64::from(shape.header_len), u64::from(shape.slot_data));
        Misfit::check(Length::Segments, into.count as u64, self.into_sges)?;
        Misfit::check(Length::Segments, out.count as u64, self.out_sges)?;
        Misfit::check(Length::Header, header, self.peer_header)?;
        let bare = request_head_len(self.framing, 0, 0) as u64;
        let head = request_head_len(self.framing, into.count, out.count) as u64 + header;
        if head > self.frame_max {
            Misfit::check(Length::Header, header, self.frame_max.saturating_sub(bare))?;
            let (what, len) = (Length::Segments, (into.count + out.count) as u64);
            let max = (self.frame_max - bare - header) / SGE_LEN;
            return Err(Misfit { what, len, max });
        }
        let data = copied + out.bytes;
        let inline = self.inline(shape, head, data);
        if let Err(misfit) = inline
            && (out.count == 0 || copied > 0)
        {
            return Err(misfit);
        }
        let expect =
            response_head_len(self.framing, Op::Send, 0) + 16 * into.count + self.header_max;
        let fits = !shape.force_write && into.bytes + (expect as u64) < self.frame_max;
        let by_frame = into.count == 0 || fits || !shape.real;
        Ok(RequestMode {
            in_op: if by_frame { Op::Send } else { Op::Write },
            out_op: if inline.is_ok() { Op::Send } else { Op::Read },
            offer: into.count > 0 && into.bytes > 0,
            large: data > self.inline_max,
        })
    }

    /// Whether the data goes in the frame, and if not, what speaks against it.
    fn inline(&self, shape: &Shape, head: u64, data: u64) -> Result<(), Misfit> {
        let count = shape.out.count;
        if shape.force_read && count > 0 {
            let (what, len, max) = (Length::Copied, shape.slot_data.into(), 0);
            return Err(Misfit { what, len, max });
        }
        if self.framing == Framing::Rdma && count > 0 {
            let max = self.gather_max.saturating_sub(1);
            Misfit::check(Length::Segments, count as u64, max as u64)?;
        }
        Misfit::check(
            Length::Data,
            data,
            self.inline_max.min(self.frame_max - head),
        )
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    fn way(&mut self, n: u32) -> Way {
        let config = &self.g.config;
        let (inline_max, header_max) = (config.inline_data_max, config.header_max);
        let row = self.nexus(n);
        let (transport, mut way) = (
            row.transport,
            Way {
                framing: row.framing,
                frame_max: row.frame_max.into(),
                inline_max: inline_max.into(),
                gather_max: 0,
                out_sges: row.peer_in_sges.into(),
                into_sges: row.peer_out_sges.into(),
                peer_header: row.peer_header_max.into(),
                header_max: header_max.into(),
            },
        );
        way.gather_max = self.transport(transport).limits.max_sge.into();
        way
    }

    /// Whether a request without lists, as most are, fits a frame.
    #[inline]
    fn is_short(&mut self, n: u32, header_len: u16, copied: u32) -> bool {
        let inline_max = self.g.config.inline_data_max;
        let row = self.nexus(n);
        let head = request_head_len(row.framing, 0, 0) as u32 + u32::from(header_len);
        header_len <= row.peer_header_max && copied <= inline_max && head + copied <= row.frame_max
    }

    /// What bounds a request on this side, of a connection that is being made anew.
    fn way_to_anybody(&mut self, c: u32) -> Option<Way> {
        let transport = self.retry(c)?.transport;
        let limits = self.transport(transport).limits;
        let config = &self.g.config;
        let any = u64::from(u16::MAX);
        Some(Way {
            framing: match limits.dialect {
                Dialect::Rdma => Framing::Rdma,
                Dialect::Tcp => Framing::TcpSingle,
            },
            frame_max: config.buffer_size.into(),
            inline_max: config.inline_data_max.into(),
            gather_max: limits.max_sge.into(),
            out_sges: any,
            into_sges: any,
            peer_header: any,
            header_max: config.header_max.into(),
        })
    }

    /// How a request's data and its answer's travel.
    pub(super) fn request_mode(&mut self, n: u32, t: u32) -> Result<RequestMode, Misfit> {
        let task = self.task(t);
        if task.out.count | task.into.count == 0 {
            let (header_len, copied) = (task.header_len, task.slot_data);
            if self.is_short(n, header_len, copied) {
                return Ok(SHORT);
            }
        }
        let shape = Shape::of(self.task(t));
        self.way(n).request_mode(&shape)
    }

    /// Refuses what no frame could carry, as far as the peer is known.
    pub(super) fn check_request(&mut self, c: u32, shape: &Shape) -> Result<(), Misfit> {
        let n = self.connection(c).nexus;
        if n == NONE {
            let way = self.way_to_anybody(c);
            return way.map_or(Ok(()), |way| way.request_mode(shape).map(drop));
        }
        let lists = shape.out.count + shape.into.count > 0;
        if !lists && self.is_short(n, shape.header_len, shape.slot_data) {
            return Ok(());
        }
        self.way(n).request_mode(shape).map(drop)
    }

    /// How a response's data travels.
    pub(crate) fn response_op(&mut self, t: u32, header_len: u16, n_out: u16, data: u64) -> Op {
        let task = self.task(t);
        let (n, offered, force) = (
            task.nexus,
            task.offer_count,
            task.flags.contains(TaskFlags::FORCE_WRITE),
        );
        // An offer that is too small is of no use; where the requester can READ, it does.
        let write = task.offer_write && task.offer_total >= data;
        let row = self.nexus(n);
        let (framing, frame_max, transport) = (row.framing, row.frame_max, row.transport);
        let max_sge = self.transport(transport).limits.max_sge;
        let rdma = framing == Framing::Rdma;
        let head = response_head_len(framing, Op::Send, 0) + 16 * usize::from(offered);
        let total = head as u64 + u64::from(header_len) + data;
        let inline = !force && (!rdma || n_out < max_sge) && total < frame_max.into();
        if data == 0 || inline {
            Op::Send
        } else if write || !rdma {
            Op::Write
        } else {
            Op::Read
        }
    }

    /// Refuses an answer that no frame could carry, or that has no place at the requester: on a
    /// stream one that does not fit a frame needs room there.
    pub(super) fn check_answer(
        &mut self,
        t: u32,
        header_len: u16,
        copied: u32,
        out: Listed,
    ) -> Result<(), Misfit> {
        let row = self.task(t);
        let (n, room, write) = (row.nexus, row.offer_total, row.offer_write);
        let (offered, force) = (
            usize::from(row.offer_count),
            row.flags.contains(TaskFlags::FORCE_WRITE),
        );
        let data = out.bytes + u64::from(copied);
        let op = self.response_op(t, header_len, out.count as u16, data);
        if op == Op::Send && data > 0 {
            return Ok(());
        }
        let way = self.way(n);
        let listed = match op {
            Op::Send => 0,
            Op::Write => offered,
            Op::Read => out.count,
        };
        let bare = response_head_len(way.framing, op, 0) as u64;
        let head = response_head_len(way.framing, op, listed) as u64;
        let header = u64::from(header_len);
        if head + header > way.frame_max {
            Misfit::check(Length::Header, header, way.frame_max.saturating_sub(bare))?;
            let (what, len) = (Length::Segments, listed as u64);
            let each = (head - bare) / len;
            let max = (way.frame_max - bare - header) / each;
            return Err(Misfit { what, len, max });
        }
        if op == Op::Send {
            return Ok(());
        }
        // What a frame would take, if it is not to be written by all means.
        let rest = response_head_len(way.framing, Op::Send, 0) as u64 + SGE_LEN * offered as u64;
        let inline = way.frame_max.saturating_sub(rest + header + 1);
        if way.framing.dialect() == Dialect::Tcp && !(write && data <= room) {
            let inline = if force { 0 } else { inline };
            let max = inline.max(if write { room } else { 0 });
            return Misfit::check(Length::OfferedBuffers, data, max);
        }
        if copied == 0 {
            return Ok(());
        }
        if force {
            return Misfit::check(Length::Copied, copied.into(), 0);
        }
        if way.framing == Framing::Rdma && out.count > 0 {
            let max = way.gather_max.saturating_sub(1);
            Misfit::check(Length::Segments, out.count as u64, max as u64)?;
        }
        Misfit::check(Length::Data, data, inline)
    }
}
