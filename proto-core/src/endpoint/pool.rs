//! Memory that a driver lends for payloads, so that nobody has to be asked (PROTOCOL.md 10.5).
//!
//! It is cut into chunks of one size, of which a bit each says whether it is taken. A payload gets
//! as many as hold it, in as few segments as they are adjacent. One that finds too few waits, in
//! the order of its connection; connections take turns.

use super::ConfigError;
use super::{Endpoint, TRANSPORTS_MAX};
use crate::config::{ConnectionPolicy, PoolMemory, Rendezvous};
use crate::entries::{Extent, SegmentList, TaskFlags};
use crate::error::CommandError;
use crate::ids::{ConnectionId, NONE, TransportId};
use crate::inputs::recorded;
use crate::memory::{SEGMENTS_INLINE, Segment};
use crate::state::connection::State;
use crate::storage::Storage;
use crate::table::{Pool, Queue, queue_pop, queue_push, queue_remove};
use crate::trace::Trace;
use crate::wire::status;

/// Chunks that all pools of an endpoint have together, at most.
pub const POOL_CHUNKS_MAX: usize = 64 * WORDS;

const WORDS: usize = 64;

/// One transport's pool.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ChunkPool {
    memory: PoolMemory,
    /// Its part of all chunks.
    first: u16,
    free: u16,
    /// Where the next search begins.
    next: u16,
    /// Connections with a payload that waits for chunks, and that may have them.
    line: Queue,
}

/// The pools of an endpoint.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Chunks {
    taken: [u64; WORDS],
    pub(super) used: u16,
    pools: [ChunkPool; TRANSPORTS_MAX],
}

impl Chunks {
    pub(crate) const NONE: Self = Self {
        taken: [0; WORDS],
        used: 0,
        pools: [ChunkPool {
            memory: PoolMemory {
                addr: 0,
                lkey: 0,
                chunk: 1,
                chunks: 0,
            },
            first: 0,
            free: 0,
            next: 0,
            line: Queue::EMPTY,
        }; TRANSPORTS_MAX],
    };

    fn pool(&mut self, transport: u8) -> &mut ChunkPool {
        &mut self.pools[usize::from(transport) % TRANSPORTS_MAX]
    }

    /// Chunks that nobody has.
    pub(crate) fn free(&self) -> u32 {
        self.pools.iter().map(|pool| u32::from(pool.free)).sum()
    }

    /// The first chunk from `from` to `end` that is free.
    fn first_free(&self, from: u16, end: u16) -> Option<u16> {
        let mut at = from;
        while at < end {
            let word = self.taken[usize::from(at) / 64] >> (at % 64);
            let ones = word.trailing_ones() as u16;
            if ones < 64 - at % 64 {
                return Some(at + ones).filter(|at| *at < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Takes a free chunk, the one behind the last if it can be: its place in the pool.
    fn take(&mut self, transport: u8) -> u16 {
        let pool = *self.pool(transport);
        let (start, end) = (pool.first, pool.first + pool.memory.chunks);
        let found = self
            .first_free(start + pool.next, end)
            .or_else(|| self.first_free(start, end));
        let Some(at) = found else {
            unreachable!("free chunks were counted before");
        };
        self.taken[usize::from(at) / 64] |= 1 << (at % 64);
        let place = at - start;
        let pool = self.pool(transport);
        pool.free -= 1;
        pool.next = place + 1;
        place
    }

    fn give(&mut self, transport: u8, place: u16) {
        let pool = self.pool(transport);
        pool.free += 1;
        let at = pool.first + place;
        let bit = 1 << (at % 64);
        let word = &mut self.taken[usize::from(at) / 64];
        assert!(*word & bit != 0, "chunk {at} given back twice");
        *word &= !bit;
    }

    /// Gives back all chunks of a list.
    fn give_list(&mut self, transport: u8, list: &SegmentList, extents: &[Extent]) {
        let memory = self.pool(transport).memory;
        let chunk = u64::from(memory.chunk);
        for at in 0..list.count {
            let segment = list.segment(extents, at);
            let first = (segment.addr - memory.addr) / chunk;
            let count = u64::from(segment.len).div_ceil(chunk);
            for place in first..first + count {
                self.give(transport, place as u16);
            }
        }
    }

    /// Takes chunks for so many bytes. `None` without extents for the list; nothing is taken then.
    fn take_list(
        &mut self,
        transport: u8,
        len: u64,
        free: &mut Pool,
        extents: &mut [Extent],
    ) -> Option<SegmentList> {
        let memory = self.pool(transport).memory;
        let chunk = u64::from(memory.chunk);
        let mut list = SegmentList::EMPTY;
        let mut last = Segment::default();
        while list.total < len {
            let place = self.take(transport);
            let addr = memory.addr + u64::from(place) * chunk;
            let part = chunk.min(len - list.total) as u32;
            list.total += u64::from(part);
            let joined = last.len.checked_add(part);
            match joined.filter(|_| last.addr + u64::from(last.len) == addr && last.len > 0) {
                Some(joined) => last.len = joined,
                None => {
                    if last.len > 0 && !push(&mut list, last, free, extents) {
                        self.give(transport, place);
                        self.undo(transport, last, list, free, extents);
                        return None;
                    }
                    last = Segment {
                        addr,
                        len: part,
                        lkey: memory.lkey,
                        rkey: 0,
                    };
                }
            }
        }
        if push(&mut list, last, free, extents) {
            return Some(list);
        }
        self.undo(transport, last, list, free, extents);
        None
    }

    /// A list that lacks extents for its last segment.
    fn undo(
        &mut self,
        transport: u8,
        last: Segment,
        list: SegmentList,
        free: &mut Pool,
        extents: &mut [Extent],
    ) {
        let mut rest = SegmentList::EMPTY;
        rest.count = 1;
        rest.inline[0] = last;
        self.give_list(transport, &rest, extents);
        self.give_list(transport, &list, extents);
        let mut e = list.extent;
        while e != NONE {
            let next = extents[e as usize].next_free;
            free.give(extents, e);
            e = next;
        }
    }
}

/// Appends a segment to a list. False without an extent for it.
fn push(list: &mut SegmentList, segment: Segment, free: &mut Pool, extents: &mut [Extent]) -> bool {
    let at = usize::from(list.count);
    if at < SEGMENTS_INLINE {
        list.inline[at] = segment;
        list.count += 1;
        return true;
    }
    let at = at - SEGMENTS_INLINE;
    let mut last = list.extent;
    for _ in 1..at.div_ceil(Extent::SEGMENTS) {
        last = extents[last as usize].next_free;
    }
    if at.is_multiple_of(Extent::SEGMENTS) {
        let Some(e) = free.take(extents) else {
            return false;
        };
        extents[e as usize].next_free = NONE;
        if at == 0 {
            list.extent = e;
        } else {
            extents[last as usize].next_free = e;
        }
        last = e;
    }
    extents[last as usize].segments[at % Extent::SEGMENTS] = segment;
    list.count += 1;
    true
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Lends memory for payloads on a transport, once. Connections use it whose
    /// [`ConnectionPolicy::rendezvous`] is [`Rendezvous::Pool`].
    ///
    /// # Errors
    /// A transport that was never added or has a pool already, chunks of less than 64 bytes, no
    /// chunk, memory beyond the address space, or more than [`POOL_CHUNKS_MAX`] chunks in all.
    pub fn add_pool(
        &mut self,
        transport: TransportId,
        memory: PoolMemory,
    ) -> Result<(), ConfigError> {
        recorded!(self, AddPool { transport, memory } => self.add_pool(transport, memory));
        let bad = |what, value, bound| Err(ConfigError { what, value, bound });
        let known = self.known_transport(transport).is_ok();
        if !known || self.g.chunks.pool(transport.0).memory.chunks > 0 {
            return bad("transport of a pool", transport.0.into(), 0);
        }
        if memory.chunk < 64 {
            return bad("bytes of a chunk", memory.chunk.into(), 64);
        }
        let chunks = u64::from(memory.chunks);
        let left = (POOL_CHUNKS_MAX as u64) - u64::from(self.g.chunks.used);
        if chunks == 0 || chunks > left {
            return bad("chunks of a pool", chunks, left.max(1));
        }
        let bytes = chunks * u64::from(memory.chunk);
        if memory.addr == 0 || memory.addr.checked_add(bytes).is_none() {
            return bad("address of a pool", memory.addr, u64::MAX - bytes);
        }
        let first = self.g.chunks.used;
        self.g.chunks.used += memory.chunks;
        *self.g.chunks.pool(transport.0) = ChunkPool {
            memory,
            first,
            free: memory.chunks,
            next: 0,
            line: Queue::EMPTY,
        };
        Ok(())
    }

    /// Sets how a connection's payloads get their memory, and what its deadlines do. Payloads that
    /// wait already go on as they began, within the new bound.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn set_policy(
        &mut self,
        connection: ConnectionId,
        policy: ConnectionPolicy,
    ) -> Result<(), CommandError> {
        recorded!(self, SetPolicy { connection, policy } => self.set_policy(connection, policy));
        let c = self.find_connection(connection)?;
        self.g.deadlines |= policy.deadline.is_some();
        self.connection(c).policy = policy;
        self.line_up(c);
        Ok(())
    }

    /// A payload is to lie in pool memory: it gets chunks or waits for them.
    ///
    /// # Errors
    /// The status to refuse it with: it can never have as many.
    pub(crate) fn ask_pool(&mut self, t: u32, max_bytes: u64) -> Result<(), u32> {
        let row = self.task(t);
        let (c, n, len) = (row.connection, row.nexus, row.transfer.total);
        let transport = self.nexus(n).transport;
        let memory = self.g.chunks.pool(transport).memory;
        if memory.chunks == 0 {
            return Err(status::NO_USER_BUFS);
        }
        let need = len.div_ceil(memory.chunk.into());
        if need > memory.chunks.into() || need * u64::from(memory.chunk) > max_bytes {
            return Err(status::USER_BUF_OVERFLOW);
        }
        let row = self.task(t);
        row.flags.insert(TaskFlags::POOL_LINE);
        row.remote_key = transport.into();
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        queue_push!(tables.tasks, row.pool_head, row.pool_tail, queue_next, t);
        self.line_up(c);
        Ok(())
    }

    /// Bytes of chunks that a payload takes or has.
    fn chunk_bytes(&mut self, t: u32) -> u64 {
        let row = self.task(t);
        let taken = row.flags.contains(TaskFlags::POOLED);
        let (len, transport) = match taken {
            true => (row.into.total, row.remote_key as u8),
            false => (row.transfer.total, row.remote_key as u8),
        };
        let chunk = u64::from(self.g.chunks.pool(transport).memory.chunk);
        len.div_ceil(chunk) * chunk
    }

    /// Whether a connection's first waiting payload may have chunks if there are enough.
    fn may_have_chunks(&mut self, c: u32) -> bool {
        let row = self.connection(c);
        let t = row.pool_head;
        if t == NONE || matches!(row.state, State::Ending | State::Over) {
            return false;
        }
        let bytes = self.chunk_bytes(t);
        let row = self.connection(c);
        let max = match row.policy.rendezvous {
            Rendezvous::Pool { max_bytes } => max_bytes,
            Rendezvous::Ask => u64::MAX,
        };
        row.pool_bytes + bytes <= max
    }

    /// A connection with a waiting payload that its bound lets in stands in line for chunks.
    fn line_up(&mut self, c: u32) {
        if !self.may_have_chunks(c) {
            return;
        }
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        let transport = tables.tasks[row.pool_head as usize].remote_key as u8;
        if !row.in_pool_line {
            row.in_pool_line = true;
            let line = &mut self.g.chunks.pool(transport).line;
            queue_push!(tables.connections, line.head, line.tail, pool_next, c);
        }
        self.serve_pool(transport);
    }

    /// Gives chunks to who is first in line, as long as there are enough.
    fn serve_pool(&mut self, transport: u8) {
        loop {
            let c = self.g.chunks.pool(transport).line.head;
            if c == NONE {
                return;
            }
            if self.may_have_chunks(c) {
                let t = self.connection(c).pool_head;
                if !self.serve_payload(c, t, transport) {
                    return;
                }
            }
            let tables = self.s.tables();
            let line = &mut self.g.chunks.pool(transport).line;
            queue_pop!(tables.connections, line.head, line.tail, pool_next);
            if self.may_have_chunks(c) {
                let tables = self.s.tables();
                let line = &mut self.g.chunks.pool(transport).line;
                queue_push!(tables.connections, line.head, line.tail, pool_next, c);
            } else {
                self.connection(c).in_pool_line = false;
            }
        }
    }

    /// False: it has to wait for chunks, or for extents to name them.
    fn serve_payload(&mut self, c: u32, t: u32, transport: u8) -> bool {
        let bytes = self.chunk_bytes(t);
        let len = self.task(t).transfer.total;
        let pool = self.g.chunks.pool(transport);
        if u64::from(pool.free) * u64::from(pool.memory.chunk) < bytes {
            return false;
        }
        let tables = self.s.tables();
        let free = &mut self.g.extents;
        let Some(list) = self
            .g
            .chunks
            .take_list(transport, len, free, tables.extents)
        else {
            return false;
        };
        let row = &mut tables.connections[c as usize];
        row.pool_bytes += bytes;
        queue_pop!(tables.tasks, row.pool_head, row.pool_tail, queue_next);
        let task = &mut tables.tasks[t as usize];
        task.flags.remove(TaskFlags::POOL_LINE);
        task.flags.insert(TaskFlags::POOLED);
        task.into = list;
        self.end_asking(t);
        self.begin_transfer(t);
        true
    }

    /// A payload waits for chunks no longer.
    pub(crate) fn leave_pool_line(&mut self, t: u32) {
        let tables = self.s.tables();
        let task = &mut tables.tasks[t as usize];
        if !task.flags.contains(TaskFlags::POOL_LINE) {
            return;
        }
        task.flags.remove(TaskFlags::POOL_LINE);
        let c = task.connection;
        let row = &mut tables.connections[c as usize];
        queue_remove!(tables.tasks, row.pool_head, row.pool_tail, queue_next, t);
        self.line_up(c);
    }

    /// Takes a connection out of the line for chunks before its row is freed.
    pub(crate) fn leave_pool(&mut self, c: u32) {
        let t = self.s.tables();
        debug_assert_eq!(t.connections[c as usize].pool_head, NONE);
        if !core::mem::take(&mut t.connections[c as usize].in_pool_line) {
            return;
        }
        let next = t.connections[c as usize].pool_next;
        for transport in 0..TRANSPORTS_MAX as u8 {
            let line = &mut self.g.chunks.pool(transport).line;
            if line.head == c {
                line.head = next;
                return;
            }
            let mut at = line.head;
            while at != NONE && t.connections[at as usize].pool_next != c {
                at = t.connections[at as usize].pool_next;
            }
            if at != NONE {
                t.connections[at as usize].pool_next = next;
                if next == NONE {
                    line.tail = at;
                }
                return;
            }
        }
    }

    /// What a message has of the pool no longer counts to its connection, which ends before it.
    pub(crate) fn uncount_chunks(&mut self, t: u32) {
        if self.task(t).flags.contains(TaskFlags::POOLED) {
            let bytes = self.chunk_bytes(t);
            let c = self.task(t).connection;
            self.connection(c).pool_bytes -= bytes;
        }
    }

    /// A message's row ends: its chunks go to who waits for them.
    pub(crate) fn give_chunks(&mut self, t: u32) {
        let row = self.task(t);
        if !row.flags.contains(TaskFlags::POOLED) {
            return;
        }
        let (c, list, transport) = (row.connection, row.into, row.remote_key as u8);
        if c != NONE {
            self.uncount_chunks(t);
        }
        self.task(t).flags.remove(TaskFlags::POOLED);
        let extents = self.s.tables().extents;
        self.g.chunks.give_list(transport, &list, extents);
        if c != NONE {
            self.line_up(c);
        }
        self.serve_pool(transport);
    }
}

#[cfg(feature = "check")]
mod check {
    use super::{Chunks, Endpoint};
    use crate::entries::TaskFlags;
    use crate::storage::{Storage, View};
    use crate::trace::Trace;

    impl<S: Storage, T: Trace> Endpoint<S, T> {
        /// Every chunk that is taken is some message's, and connections count what theirs have.
        pub(crate) fn check_chunks(&self, view: &View<'_>) {
            let Chunks { taken, used, pools } = &self.g.chunks;
            if *used == 0 {
                return;
            }
            let bits: u32 = taken.iter().map(|word| word.count_ones()).sum();
            let free = self.g.chunks.free();
            assert_eq!(bits + free, u32::from(*used), "chunks of the pools");
            let held = |task: &&crate::entries::Task| task.flags.contains(TaskFlags::POOLED);
            let bytes = |task: &crate::entries::Task| {
                let chunk = u64::from(pools[task.remote_key as usize].memory.chunk);
                (task.into.total.div_ceil(chunk), chunk)
            };
            let all: u64 = view.tasks.iter().filter(held).map(|t| bytes(t).0).sum();
            assert_eq!(all, u64::from(bits), "chunks that messages have");
            for (c, row) in view.connections.iter().enumerate() {
                let own = view.tasks.iter().filter(held);
                let own = own.filter(|task| task.connection == c as u32);
                let sum: u64 = own.map(|task| bytes(task).0 * bytes(task).1).sum();
                assert_eq!(sum, row.pool_bytes, "chunk bytes of connection {c}");
            }
        }
    }
}
