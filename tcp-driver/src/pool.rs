//! The driver's memory: slots, and buffers of the user.

use std::ops::Range;

use xio_proto::driver::{BufferError, BufferId};
use xio_proto::{Segment, SlotId, Slots, TaskId};

/// All slots in one allocation, made once.
#[derive(Debug)]
pub struct SlotPool {
    bytes: Box<[u8]>,
    size: usize,
}

impl SlotPool {
    pub(crate) fn new(size: u32, count: u32) -> Self {
        let size = size as usize;
        Self {
            bytes: vec![0; size * count as usize].into_boxed_slice(),
            size,
        }
    }
}

impl Slots for SlotPool {
    fn slot(&self, slot: SlotId) -> &[u8] {
        let at = slot.0 as usize * self.size;
        &self.bytes[at..at + self.size]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        let at = slot.0 as usize * self.size;
        &mut self.bytes[at..at + self.size]
    }
}

/// Bits of a segment's address that say where in its buffer it begins; above them is the buffer's
/// place in the table, plus one, so that no address is 0 (PROTOCOL.md 3.4).
const OFFSET_BITS: u32 = 40;
const NONE: u32 = u32::MAX;
/// Uses of a buffer that never ends being in flight.
const KEPT: u32 = u32::MAX / 2;

#[derive(Debug)]
struct Buffer {
    bytes: Box<[u8]>,
    generation: u32,
    live: bool,
    /// Segments in flight.
    lent: u32,
}

/// A segment in flight, in the list of its message.
#[derive(Debug)]
struct Lease {
    buffer: u32,
    next: u32,
}

/// The user's buffers, and which messages use them.
#[derive(Debug)]
pub(crate) struct Pool {
    buffers: Vec<Buffer>,
    free: Vec<u32>,
    /// First lease of each message, by the index of its task.
    leases_of: Box<[u32]>,
    leases: Vec<Lease>,
    free_lease: u32,
}

impl Pool {
    pub(crate) fn new(tasks: usize) -> Self {
        Self {
            buffers: Vec::new(),
            free: Vec::new(),
            leases_of: vec![NONE; tasks].into_boxed_slice(),
            leases: Vec::new(),
            free_lease: NONE,
        }
    }

    pub(crate) fn add(&mut self, bytes: Box<[u8]>) -> Result<BufferId, BufferError> {
        let (need, most) = (bytes.len() as u64, 1 << OFFSET_BITS);
        if need >= most {
            return Err(BufferError::NoRoom { need, have: most });
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.buffers.len() < (1 << 23) => {
                self.buffers.push(Buffer {
                    bytes: Box::default(),
                    generation: 0,
                    live: false,
                    lent: 0,
                });
                self.buffers.len() as u32 - 1
            }
            None => return Err(BufferError::NoRoom { need, have: 0 }),
        };
        let buffer = &mut self.buffers[index as usize];
        buffer.bytes = bytes;
        buffer.live = true;
        Ok(BufferId::new(index, buffer.generation))
    }

    pub(crate) fn remove(&mut self, id: BufferId) -> Result<Box<[u8]>, BufferError> {
        let buffer = self.idle(id)?;
        let bytes = core::mem::take(&mut buffer.bytes);
        buffer.live = false;
        buffer.generation = buffer.generation.wrapping_add(1);
        self.free.push(id.index() as u32);
        Ok(bytes)
    }

    fn find(&self, id: BufferId) -> Result<&Buffer, BufferError> {
        let buffer = self.buffers.get(id.index());
        buffer
            .filter(|b| b.live && b.generation == id.generation())
            .ok_or(BufferError::Unknown)
    }

    fn idle(&mut self, id: BufferId) -> Result<&mut Buffer, BufferError> {
        let lent = self.find(id)?.lent;
        if lent > 0 {
            return Err(BufferError::InFlight(lent));
        }
        Ok(&mut self.buffers[id.index()])
    }

    pub(crate) fn bytes(&self, id: BufferId) -> Result<&[u8], BufferError> {
        let buffer = self.find(id)?;
        match buffer.lent {
            0 => Ok(&buffer.bytes),
            lent => Err(BufferError::InFlight(lent)),
        }
    }

    pub(crate) fn bytes_mut(&mut self, id: BufferId) -> Result<&mut [u8], BufferError> {
        Ok(&mut self.idle(id)?.bytes)
    }

    pub(crate) fn segment(&self, id: BufferId, part: Range<usize>) -> Result<Segment, BufferError> {
        let buffer = self.find(id)?;
        let fits = part.start <= part.end && part.end <= buffer.bytes.len();
        let len = u32::try_from(part.len()).ok().filter(|_| fits);
        Ok(Segment {
            addr: (id.index() as u64 + 1) << OFFSET_BITS | part.start as u64,
            len: len.ok_or(BufferError::Unknown)?,
            lkey: 0,
            rkey: 0,
        })
    }

    fn place(segment: &Segment) -> (usize, usize) {
        let index = (segment.addr >> OFFSET_BITS).wrapping_sub(1) as usize;
        (index, (segment.addr & ((1 << OFFSET_BITS) - 1)) as usize)
    }

    /// The bytes of a segment that a command was allowed to name.
    pub(crate) fn of(&self, segment: &Segment) -> &[u8] {
        let (index, at) = Self::place(segment);
        &self.buffers[index].bytes[at..at + segment.len as usize]
    }

    /// As [`of`](Self::of), to receive into.
    pub(crate) fn of_mut(&mut self, segment: &Segment) -> &mut [u8] {
        let (index, at) = Self::place(segment);
        &mut self.buffers[index].bytes[at..at + segment.len as usize]
    }

    pub(crate) fn knows(&self, segment: &Segment) -> bool {
        if segment.addr == 0 {
            return true;
        }
        let (index, at) = Self::place(segment);
        let buffer = self.buffers.get(index);
        buffer.is_some_and(|b| b.live && at + segment.len as usize <= b.bytes.len())
    }

    pub(crate) fn lend(&mut self, task: TaskId, segments: &[Segment]) {
        for segment in segments.iter().filter(|s| s.addr != 0) {
            let buffer = Self::place(segment).0 as u32;
            self.buffers[buffer as usize].lent += 1;
            let first = &mut self.leases_of[task.index()];
            let next = core::mem::replace(first, NONE);
            let lease = Lease { buffer, next };
            if self.free_lease == NONE {
                *first = self.leases.len() as u32;
                self.leases.push(lease);
            } else {
                *first = self.free_lease;
                let place = &mut self.leases[self.free_lease as usize];
                self.free_lease = core::mem::replace(place, lease).next;
            }
        }
    }

    /// The buffer is in flight for good.
    pub(crate) fn keep(&mut self, id: BufferId) {
        if let Ok(buffer) = self.idle(id) {
            buffer.lent = KEPT;
        }
    }

    pub(crate) fn give_back(&mut self, task: TaskId) {
        let mut at = core::mem::replace(&mut self.leases_of[task.index()], NONE);
        while at != NONE {
            let lease = &mut self.leases[at as usize];
            self.buffers[lease.buffer as usize].lent -= 1;
            let next = core::mem::replace(&mut lease.next, self.free_lease);
            self.free_lease = at;
            at = next;
        }
    }

    /// Segments in flight, of all buffers but those that are kept.
    pub(crate) fn in_flight(&self) -> u32 {
        let lent = self.buffers.iter().map(|b| b.lent);
        lent.filter(|lent| *lent < KEPT).sum()
    }
}
