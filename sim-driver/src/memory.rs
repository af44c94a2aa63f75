//! Memory of one endpoint: the driver's slots and the user's buffers, in one address space that
//! devices reach through keys only.

use core::cell::Cell;
use std::collections::VecDeque;

use xio_proto::{Segment, SlotId, Slots};

use crate::env::Forbidden;

/// What a region lets a device do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Rights(u8);

impl Rights {
    /// The local device may read it; everybody else nothing.
    pub const LOCAL_READ: Self = Self(0);
    /// The local device may write it.
    pub const LOCAL_WRITE: Self = Self(1);
    /// A peer may read it.
    pub const REMOTE_READ: Self = Self(2);
    /// A peer may write it.
    pub const REMOTE_WRITE: Self = Self(4);

    /// Both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Who wants to touch memory, and how.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// The local device reads, with the local key.
    LocalRead,
    /// The local device writes, with the local key.
    LocalWrite,
    /// A peer reads, with the remote key.
    RemoteRead,
    /// A peer writes, with the remote key.
    RemoteWrite,
}

impl Access {
    const fn needs(self) -> Rights {
        match self {
            Self::LocalRead => Rights::LOCAL_READ,
            Self::LocalWrite => Rights::LOCAL_WRITE,
            Self::RemoteRead => Rights::REMOTE_READ,
            Self::RemoteWrite => Rights::REMOTE_WRITE,
        }
    }
    const fn is_remote(self) -> bool {
        matches!(self, Self::RemoteRead | Self::RemoteWrite)
    }
}

/// Why memory could not be touched.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Denied {
    /// No region has the key (any more).
    Key,
    /// Outside the region.
    Bounds,
    /// The region does not give the right.
    Right,
}

/// A piece of user memory with its keys.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Key for the local device; names the buffer.
    pub lkey: u32,
    /// Key for the peer.
    pub rkey: u32,
}

impl Buffer {
    /// The whole buffer as a segment.
    pub const fn segment(self) -> Segment {
        self.part(0, self.len)
    }
    /// `len` bytes from `offset` on as a segment.
    pub const fn part(self, offset: u32, len: u32) -> Segment {
        Segment {
            addr: self.addr + offset as u64,
            len,
            lkey: self.lkey,
            rkey: self.rkey,
        }
    }
}

#[derive(Clone, Debug)]
struct Region {
    addr: u64,
    len: u64,
    rights: Rights,
    live: bool,
    remote_live: bool,
    generation: u8,
    /// Block class for user buffers; `NO_CLASS` for others.
    class: u8,
    /// Messages that hold the buffer. A device may touch a buffer only while one does.
    held: u32,
}

const NO_CLASS: u8 = u8::MAX;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum SlotState {
    Idle,
    Sending,
    Receiving,
}

/// Sizes of an endpoint's memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MemoryConfig {
    /// Bytes of a slot.
    pub slot_size: u32,
    /// Slots.
    pub slots: u32,
    /// Bytes for user buffers.
    pub arena: u32,
    /// Regions that can be registered at once.
    pub regions: u32,
}

/// Memory of one endpoint.
#[derive(Debug)]
pub struct Memory {
    endpoint: u32,
    config: MemoryConfig,
    base: u64,
    bytes: Vec<u8>,
    slot_state: Vec<SlotState>,
    slot_key: u32,
    regions: Vec<Region>,
    free_regions: VecDeque<u32>,
    live_regions: u32,
    /// First arena byte never handed out.
    fresh: u32,
    /// Blocks given back, by class.
    free_blocks: [Vec<u32>; Self::CLASSES],
    /// User bytes out.
    in_use: u64,
    forbidden: Vec<Forbidden>,
    read_while_receiving: Cell<u32>,
}

impl Memory {
    /// The smallest block has 64 bytes, the largest 2 GiB.
    const CLASSES: usize = 26;
    const SMALLEST_LOG2: u32 = 6;
    /// Keys that rest before their places are used again.
    const RESTING: usize = 64;

    /// Memory for endpoint number `endpoint`; addresses of different endpoints never meet.
    pub fn new(endpoint: u32, config: MemoryConfig) -> Self {
        let slot_bytes = config.slot_size as usize * config.slots as usize;
        let mut memory = Self {
            endpoint,
            config,
            base: (u64::from(endpoint) + 1) << 40,
            bytes: vec![0; slot_bytes + config.arena as usize],
            slot_state: vec![SlotState::Idle; config.slots as usize],
            slot_key: 0,
            regions: Vec::new(),
            free_regions: VecDeque::new(),
            live_regions: 0,
            fresh: 0,
            free_blocks: [const { Vec::new() }; Self::CLASSES],
            in_use: 0,
            forbidden: Vec::new(),
            read_while_receiving: Cell::new(0),
        };
        let base = memory.base;
        let index = memory.register(base, slot_bytes as u64, Rights::LOCAL_WRITE, NO_CLASS);
        memory.regions[index as usize].held = 1;
        memory.slot_key = memory.local_key(index);
        memory
    }

    /// The endpoint.
    pub fn endpoint(&self) -> u32 {
        self.endpoint
    }

    // Keys: (index + 1) in the upper bits, 8 bits of generation, and which of the two it is. So
    // a local key is never a remote one, and neither is that of an earlier or another region.

    fn local_key(&self, index: u32) -> u32 {
        (index + 1) << 9 | u32::from(self.regions[index as usize].generation) << 1
    }

    /// Whether a key that is dead was that of a user's buffer, which is to be given back only when
    /// no peer reaches for it any more.
    fn was_buffer(&self, key: u32) -> bool {
        let region = (key >> 9)
            .checked_sub(1)
            .and_then(|index| self.regions.get(index as usize));
        region.is_some_and(|region| {
            let same = u32::from(region.generation) == key >> 1 & 0xff;
            same && !region.live && region.class != NO_CLASS
        })
    }

    fn find(&self, key: u32) -> Option<u32> {
        let index = (key >> 9).checked_sub(1)?;
        let region = self.regions.get(index as usize)?;
        let same = region.live && u32::from(region.generation) == key >> 1 & 0xff;
        same.then_some(index)
    }

    fn register(&mut self, addr: u64, len: u64, rights: Rights, class: u8) -> u32 {
        // Not the last one that was freed: for a while its key tells whose it was.
        let index = if self.free_regions.len() > Self::RESTING {
            self.free_regions.pop_front()
        } else {
            None
        };
        let index = index.unwrap_or(self.regions.len() as u32);
        let generation = match self.regions.get(index as usize) {
            Some(region) => region.generation.wrapping_add(1),
            None => (self.endpoint * 37) as u8,
        };
        let region = Region {
            addr,
            len,
            rights,
            live: true,
            remote_live: true,
            generation,
            class,
            held: 0,
        };
        if index as usize == self.regions.len() {
            self.regions.push(region);
        } else {
            self.regions[index as usize] = region;
        }
        self.live_regions += 1;
        index
    }

    /// A user buffer of `len` bytes with keys of its own, or `None` when the arena or the device
    /// has no room for it.
    pub fn allocate(&mut self, len: u32, rights: Rights) -> Option<Buffer> {
        let class_log2 = len
            .max(1)
            .next_power_of_two()
            .ilog2()
            .max(Self::SMALLEST_LOG2);
        let class = (class_log2 - Self::SMALLEST_LOG2) as usize;
        if self.live_regions >= self.config.regions {
            return None;
        }
        let offset = match self.free_blocks[class].pop() {
            Some(offset) => offset,
            None => {
                let offset = self.fresh;
                let end = offset.checked_add(1 << class_log2)?;
                if end > self.config.arena {
                    return None;
                }
                self.fresh = end;
                offset
            }
        };
        let addr = self.arena_base() + u64::from(offset);
        let index = self.register(addr, len.into(), rights, class as u8);
        self.in_use += u64::from(len);
        let lkey = self.local_key(index);
        Some(Buffer {
            addr,
            len,
            lkey,
            rkey: lkey | 1,
        })
    }

    /// Gives a user buffer back: its keys are dead from now on.
    ///
    /// # Panics
    /// When it was given back before.
    pub fn free(&mut self, buffer: Buffer) {
        let index = self.find(buffer.lkey);
        let Some(index) = index else {
            panic!("buffer {:#x} freed twice", buffer.addr);
        };
        let offset = (buffer.addr - self.arena_base()) as u32;
        let region = &mut self.regions[index as usize];
        if region.held != 0 {
            self.forbidden.push(Forbidden::FreedWhileHeld);
        }
        region.live = false;
        self.free_blocks[usize::from(region.class)].push(offset);
        self.free_regions.push_back(index);
        self.live_regions -= 1;
        self.in_use -= u64::from(buffer.len);
    }

    /// Registers a range of memory that is in use already, and gives its keys; `None` when the
    /// device has no room for it, or there is no such memory.
    pub fn register_range(&mut self, addr: u64, len: u64, rights: Rights) -> Option<(u32, u32)> {
        let end = addr.checked_add(len)?;
        let inside = addr >= self.base && end <= self.base + self.bytes.len() as u64;
        if !inside || self.live_regions >= self.config.regions {
            return None;
        }
        let index = self.register(addr, len, rights, NO_CLASS);
        // Whoever registers memory lends it until the keys are dead.
        self.regions[index as usize].held = 1;
        let lkey = self.local_key(index);
        Some((lkey, lkey | 1))
    }

    /// Ends a registration that [`register_range`](Self::register_range) made.
    pub fn deregister(&mut self, lkey: u32) {
        if let Some(index) = self.find(lkey) {
            self.regions[index as usize].live = false;
            self.free_regions.push_back(index);
            self.live_regions -= 1;
        }
    }

    /// Ends a peer's access through the buffer's key; local use goes on.
    pub fn revoke(&mut self, lkey: u32) {
        if let Some(index) = self.find(lkey) {
            self.regions[index as usize].remote_live = false;
        }
    }

    /// A message took the buffer: devices may touch it.
    pub fn hold(&mut self, lkey: u32) {
        if let Some(index) = self.find(lkey) {
            self.regions[index as usize].held += 1;
        }
    }
    /// A message gave the buffer back.
    pub fn unhold(&mut self, lkey: u32) {
        let Some(index) = self.find(lkey) else {
            self.forbidden.push(Forbidden::ReturnedTwice);
            return;
        };
        match self.regions[index as usize].held.checked_sub(1) {
            Some(held) => self.regions[index as usize].held = held,
            None => self.forbidden.push(Forbidden::ReturnedTwice),
        }
    }

    /// Bytes in user buffers that are out.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    fn arena_base(&self) -> u64 {
        self.base + u64::from(self.config.slot_size) * u64::from(self.config.slots)
    }

    /// Where the bytes are, if the key lets them be touched.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn resolve(
        &mut self,
        key: u32,
        addr: u64,
        len: u32,
        access: Access,
    ) -> Result<usize, Denied> {
        if len == 0 {
            return Ok(0);
        }
        let remote = access.is_remote();
        let Some(index) = self.find(key) else {
            if remote && self.was_buffer(key) {
                self.forbidden.push(Forbidden::BufferTouchedAfterReturn);
            }
            return Err(Denied::Key);
        };
        let region = &self.regions[index as usize];
        if (key & 1 == 1) != remote || remote && !region.remote_live {
            return Err(Denied::Key);
        }
        if !region.rights.has(access.needs()) {
            return Err(Denied::Right);
        }
        let end = addr.checked_add(len.into()).ok_or(Denied::Bounds)?;
        if addr < region.addr || end > region.addr + region.len {
            return Err(Denied::Bounds);
        }
        if region.held == 0 {
            self.forbidden.push(Forbidden::BufferTouchedAfterReturn);
        }
        Ok((addr - self.base) as usize)
    }

    /// Where a segment of a slot or of a user buffer lies, for a driver that has no keys to
    /// check (segments without keys are taken at their word).
    pub fn place(&mut self, segment: Segment, access: Access) -> Option<usize> {
        if segment.lkey != 0 {
            return self
                .resolve(segment.lkey, segment.addr, segment.len, access)
                .ok();
        }
        let offset = segment.addr.checked_sub(self.base)? as usize;
        (offset + segment.len as usize <= self.bytes.len()).then_some(offset)
    }

    /// Bytes at a place that [`resolve`](Self::resolve) gave.
    #[inline]
    pub fn bytes(&self, offset: usize, len: u32) -> &[u8] {
        &self.bytes[offset..offset + len as usize]
    }
    /// Bytes at a place that [`resolve`](Self::resolve) gave, to write.
    #[inline]
    pub fn bytes_mut(&mut self, offset: usize, len: u32) -> &mut [u8] {
        &mut self.bytes[offset..offset + len as usize]
    }

    /// A user's own view of its buffer.
    pub fn user(&self, segment: Segment) -> &[u8] {
        self.bytes((segment.addr - self.base) as usize, segment.len)
    }
    /// A user's own view of its buffer, to fill it.
    pub fn user_mut(&mut self, segment: Segment) -> &mut [u8] {
        self.bytes_mut((segment.addr - self.base) as usize, segment.len)
    }

    /// Address and key of bytes in a slot.
    #[inline]
    pub fn slot_segment(&self, slot: u32, offset: u32, len: u32) -> Segment {
        Segment {
            addr: self.base
                + u64::from(slot) * u64::from(self.config.slot_size)
                + u64::from(offset),
            len,
            lkey: self.slot_key,
            rkey: 0,
        }
    }
    /// The slot that an address lies in.
    #[inline]
    pub fn slot_at(&self, addr: u64) -> Option<u32> {
        let slot = addr.checked_sub(self.base)? / u64::from(self.config.slot_size);
        (slot < self.config.slots.into()).then_some(slot as u32)
    }
    /// Bytes of a slot.
    pub fn slot_size(&self) -> u32 {
        self.config.slot_size
    }

    /// A work request names the slot; a second one before the first is back is forbidden.
    #[inline]
    pub fn post_slot(&mut self, slot: u32, receiving: bool) {
        let state = &mut self.slot_state[slot as usize];
        if *state != SlotState::Idle {
            self.forbidden.push(Forbidden::SlotPostedTwice);
        }
        *state = if receiving {
            SlotState::Receiving
        } else {
            SlotState::Sending
        };
    }
    /// The work request on the slot is back.
    #[inline]
    pub fn return_slot(&mut self, slot: u32) {
        self.slot_state[slot as usize] = SlotState::Idle;
    }
    /// Slots that are named by a work request.
    pub fn slots_posted(&self) -> usize {
        self.slot_state
            .iter()
            .filter(|&&state| state != SlotState::Idle)
            .count()
    }

    /// Takes one forbidden use of memory that was seen.
    #[inline]
    pub fn take_forbidden(&mut self) -> Option<Forbidden> {
        if self.read_while_receiving.get() > 0 {
            self.read_while_receiving.set(0);
            return Some(Forbidden::SlotTouchedWhilePosted);
        }
        self.forbidden.pop()
    }
}

impl Slots for Memory {
    #[inline]
    fn slot(&self, slot: SlotId) -> &[u8] {
        if self.slot_state[slot.0 as usize] == SlotState::Receiving {
            self.read_while_receiving.set(1);
        }
        let start = slot.0 as usize * self.config.slot_size as usize;
        &self.bytes[start..start + self.config.slot_size as usize]
    }
    #[inline]
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        if self.slot_state[slot.0 as usize] != SlotState::Idle {
            self.forbidden.push(Forbidden::SlotTouchedWhilePosted);
        }
        let start = slot.0 as usize * self.config.slot_size as usize;
        &mut self.bytes[start..start + self.config.slot_size as usize]
    }
}

/// Copies between two endpoints' memories, or within one.
#[inline]
pub(crate) fn copy(memories: &mut [Memory], from: (usize, usize), to: (usize, usize), len: u32) {
    let bytes = len as usize;
    if from.0 == to.0 {
        memories[from.0]
            .bytes
            .copy_within(from.1..from.1 + bytes, to.1);
        return;
    }
    let both = memories.get_disjoint_mut([from.0, to.0]);
    let Ok([source, target]) = both else {
        panic!("no memory for endpoints {} and {}", from.0, to.0);
    };
    target.bytes[to.1..to.1 + bytes].copy_from_slice(&source.bytes[from.1..from.1 + bytes]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let config = MemoryConfig {
            slot_size: 128,
            slots: 4,
            arena: 4096,
            regions: 5,
        };
        Memory::new(3, config)
    }

    #[test]
    fn keys_bounds_and_rights_are_checked() {
        let mut m = memory();
        let rights = Rights::LOCAL_WRITE.and(Rights::REMOTE_READ);
        let Some(b) = m.allocate(100, rights) else {
            panic!()
        };
        assert_ne!(b.lkey, b.rkey);
        m.hold(b.lkey);
        assert!(m.resolve(b.lkey, b.addr, 100, Access::LocalWrite).is_ok());
        assert!(
            m.resolve(b.rkey, b.addr + 90, 10, Access::RemoteRead)
                .is_ok()
        );
        let past = m.resolve(b.rkey, b.addr + 90, 11, Access::RemoteRead);
        assert_eq!(past, Err(Denied::Bounds));
        let before = m.resolve(b.lkey, b.addr - 1, 2, Access::LocalRead);
        assert_eq!(before, Err(Denied::Bounds));
        let wrap = m.resolve(b.lkey, u64::MAX, 2, Access::LocalRead);
        assert_eq!(wrap, Err(Denied::Bounds));
        assert_eq!(
            m.resolve(b.rkey, b.addr, 1, Access::RemoteWrite),
            Err(Denied::Right)
        );
        assert_eq!(
            m.resolve(b.lkey, b.addr, 1, Access::RemoteRead),
            Err(Denied::Key)
        );
        assert_eq!(
            m.resolve(b.rkey, b.addr, 1, Access::LocalRead),
            Err(Denied::Key)
        );
        m.revoke(b.lkey);
        assert_eq!(
            m.resolve(b.rkey, b.addr, 1, Access::RemoteRead),
            Err(Denied::Key)
        );
        assert!(m.resolve(b.lkey, b.addr, 1, Access::LocalRead).is_ok());
        assert_eq!(m.take_forbidden(), None);
        m.unhold(b.lkey);
        m.free(b);
        assert_eq!(
            m.resolve(b.lkey, b.addr, 1, Access::LocalRead),
            Err(Denied::Key)
        );
        let Some(again) = m.allocate(70, rights) else {
            panic!()
        };
        assert_eq!(again.addr, b.addr, "the block is used again");
        assert_eq!(
            m.resolve(b.lkey, b.addr, 1, Access::LocalRead),
            Err(Denied::Key)
        );
    }

    #[test]
    fn limits_hold() {
        let mut m = memory();
        let rights = Rights::LOCAL_READ;
        let buffers: Vec<_> = (0..5).map_while(|_| m.allocate(64, rights)).collect();
        assert_eq!(buffers.len(), 4, "slots are a region too");
        buffers.into_iter().for_each(|b| m.free(b));
        assert_eq!(m.in_use(), 0);
        assert!(m.allocate(4096, rights).is_none(), "no room in the arena");
    }

    #[test]
    fn forbidden_uses_are_seen() {
        let mut m = memory();
        let Some(b) = m.allocate(64, Rights::LOCAL_READ) else {
            panic!()
        };
        assert!(m.resolve(b.lkey, b.addr, 1, Access::LocalRead).is_ok());
        assert_eq!(
            m.take_forbidden(),
            Some(Forbidden::BufferTouchedAfterReturn)
        );
        m.unhold(b.lkey);
        assert_eq!(m.take_forbidden(), Some(Forbidden::ReturnedTwice));
        m.post_slot(1, true);
        m.post_slot(1, false);
        assert_eq!(m.take_forbidden(), Some(Forbidden::SlotPostedTwice));
        m.return_slot(1);
        m.post_slot(1, true);
        let _ = m.slot(SlotId(1));
        assert_eq!(m.take_forbidden(), Some(Forbidden::SlotTouchedWhilePosted));
        let _ = m.slot_mut(SlotId(1));
        assert_eq!(m.take_forbidden(), Some(Forbidden::SlotTouchedWhilePosted));
        assert_eq!(m.take_forbidden(), None);
        assert_eq!(m.slots_posted(), 1);
    }
}
