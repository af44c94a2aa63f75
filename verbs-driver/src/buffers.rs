//! The user's buffers: registered once, then sent from and received into without a copy.
//!
//! A buffer that a message in flight uses cannot be reached, neither to read nor to write: device
//! or peer may still change it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use xio_proto::driver::{BufferError, BufferId};
use xio_proto::{RegionId, Segment, TaskId};

use crate::device::Domain;
use crate::error::Error;
use crate::memory::{Chunk, Registration, Rights};

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Row {
    /// `None` while the place is free.
    chunk: Option<Chunk>,
    generation: u32,
    /// Segments in flight, and regions registered on it.
    lent: u32,
}

/// A segment in flight, in the list of its message.
#[derive(Debug)]
struct Lease {
    row: u32,
    next: u32,
}

/// All buffers, and which messages use them.
#[derive(Debug)]
pub(crate) struct Buffers {
    // Registrations of parts go before the chunks.
    regions: Vec<Option<(u32, Registration)>>,
    rows: Vec<Row>,
    free: Vec<u32>,
    /// Rows by address, to find out whose a segment is.
    places: BTreeMap<u64, u32>,
    /// First lease of each message, by the index of its task.
    leases_of: Box<[u32]>,
    leases: Vec<Lease>,
    free_lease: u32,
    huge: bool,
}

impl Buffers {
    pub(crate) fn new(tasks: usize, huge: bool) -> Self {
        Self {
            regions: Vec::new(),
            rows: Vec::new(),
            free: Vec::new(),
            places: BTreeMap::new(),
            leases_of: vec![NONE; tasks].into_boxed_slice(),
            leases: Vec::new(),
            free_lease: NONE,
            huge,
        }
    }

    /// Maps and registers a buffer.
    pub(crate) fn add(&mut self, domain: &Arc<Domain>, len: usize) -> Result<BufferId, Error> {
        let chunk = Chunk::new(domain, len, Rights::ALL, self.huge)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row {
                chunk: None,
                generation: 0,
                lent: 0,
            });
            self.rows.len() as u32 - 1
        });
        self.places.insert(chunk.address(), index);
        let row = &mut self.rows[index as usize];
        row.chunk = Some(chunk);
        Ok(BufferId::new(index, row.generation))
    }

    /// Takes a buffer's keys away and gives its memory back.
    pub(crate) fn remove(&mut self, id: BufferId) -> Result<(), BufferError> {
        self.idle(id)?;
        let row = &mut self.rows[id.index()];
        row.generation = row.generation.wrapping_add(1);
        if let Some(chunk) = row.chunk.take() {
            self.places.remove(&chunk.address());
        }
        self.free.push(id.index() as u32);
        Ok(())
    }

    fn find(&self, id: BufferId) -> Result<(&Row, &Chunk), BufferError> {
        let row = self.rows.get(id.index());
        row.filter(|row| row.generation == id.generation())
            .and_then(|row| Some((row, row.chunk.as_ref()?)))
            .ok_or(BufferError::Unknown)
    }

    fn idle(&mut self, id: BufferId) -> Result<&mut Chunk, BufferError> {
        let lent = self.find(id)?.0.lent;
        if lent > 0 {
            return Err(BufferError::InFlight(lent));
        }
        self.rows[id.index()]
            .chunk
            .as_mut()
            .ok_or(BufferError::Unknown)
    }

    /// The bytes of a buffer that is not in flight.
    pub(crate) fn bytes_mut(&mut self, id: BufferId) -> Result<&mut [u8], BufferError> {
        let chunk = self.idle(id)?;
        let len = chunk.len();
        Ok(chunk.bytes_mut(0, len))
    }

    /// A part of a buffer, for a message.
    pub(crate) fn segment(&self, id: BufferId, part: Range<usize>) -> Result<Segment, BufferError> {
        let (_, chunk) = self.find(id)?;
        let fits = part.start <= part.end && part.end <= chunk.len();
        let len = u32::try_from(part.len()).ok().filter(|_| fits);
        Ok(Segment {
            addr: chunk.address() + part.start as u64,
            len: len.ok_or(BufferError::Unknown)?,
            lkey: chunk.lkey(),
            rkey: chunk.rkey(),
        })
    }

    /// The buffer that a segment lies in, and from which byte on.
    fn place(&self, addr: u64, len: u64) -> Option<(u32, &Chunk, usize)> {
        let (_, &index) = self.places.range(..=addr).next_back()?;
        let chunk = self.rows[index as usize].chunk.as_ref()?;
        let at = addr - chunk.address();
        let fits = at
            .checked_add(len)
            .is_some_and(|end| end <= chunk.len() as u64);
        fits.then_some((index, chunk, at as usize))
    }

    /// Whether a segment lies in a buffer, and its keys are those of the buffer.
    pub(crate) fn knows(&self, segment: &Segment) -> bool {
        if segment.addr == 0 {
            return true;
        }
        let found = self.place(segment.addr, segment.len.into());
        found.is_some_and(|(_, chunk, _)| {
            segment.lkey == chunk.lkey() && (segment.rkey == 0 || segment.rkey == chunk.rkey())
        })
    }

    /// The bytes of a segment that a command was allowed to name.
    pub(crate) fn of(&self, segment: &Segment) -> &[u8] {
        let found = self.place(segment.addr, segment.len.into());
        found.map_or(&[], |(_, chunk, at)| chunk.bytes(at, segment.len as usize))
    }

    /// The buffers of these segments are in flight with a message.
    pub(crate) fn lend(&mut self, task: TaskId, segments: &[Segment]) {
        for segment in segments.iter().filter(|s| s.addr != 0) {
            let Some((row, ..)) = self.place(segment.addr, segment.len.into()) else {
                continue;
            };
            self.rows[row as usize].lent += 1;
            let first = &mut self.leases_of[task.index()];
            let next = core::mem::replace(first, NONE);
            let lease = Lease { row, next };
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

    /// A buffer is the endpoint's from now on, for good.
    pub(crate) fn keep(&mut self, id: BufferId) {
        if self.find(id).is_ok() {
            self.rows[id.index()].lent += 1;
        }
    }

    /// All buffers of a message are back.
    pub(crate) fn give_back(&mut self, task: TaskId) {
        let mut at = core::mem::replace(&mut self.leases_of[task.index()], NONE);
        while at != NONE {
            let lease = &mut self.leases[at as usize];
            self.rows[lease.row as usize].lent -= 1;
            let next = core::mem::replace(&mut lease.next, self.free_lease);
            self.free_lease = at;
            at = next;
        }
    }

    /// Segments in flight and regions, of all buffers.
    pub(crate) fn in_flight(&self) -> u32 {
        self.rows.iter().map(|row| row.lent).sum()
    }

    /// Gives a part of a buffer keys of its own.
    pub(crate) fn register(
        &mut self,
        domain: &Arc<Domain>,
        region: RegionId,
        (addr, len): (u64, u64),
        rights: Rights,
    ) -> Result<(u32, u32), i32> {
        let (row, chunk, _) = self.place(addr, len).ok_or(libc::EFAULT)?;
        let registration = chunk.register_part(domain, addr, len, rights)?;
        let keys = (registration.lkey(), registration.rkey());
        let index = region.index();
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        self.regions[index] = Some((row, registration));
        // While peers can reach it, the user cannot.
        self.rows[row as usize].lent += 1;
        Ok(keys)
    }

    /// Takes all keys away; the bytes stay.
    pub(crate) fn unregister(&mut self) {
        for (row, registration) in self.regions.iter_mut().filter_map(Option::take) {
            drop(registration);
            self.rows[row as usize].lent -= 1;
        }
        for chunk in self.rows.iter_mut().filter_map(|row| row.chunk.as_mut()) {
            chunk.unregister();
        }
    }

    /// Takes a region's keys away.
    pub(crate) fn revoke(&mut self, region: RegionId) {
        if let Some((row, registration)) =
            self.regions.get_mut(region.index()).and_then(Option::take)
        {
            drop(registration);
            self.rows[row as usize].lent -= 1;
        }
    }
}
