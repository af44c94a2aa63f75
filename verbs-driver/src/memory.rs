//! Memory that the device reaches: mapped pages, registered as a whole.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use xio_proto::{SlotId, Slots};

use crate::device::Domain;
use crate::error::Error;
use crate::owner::Owner;
use crate::sys;

const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Pages of our own, all 0 at first.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: pages belong to nobody's thread.
unsafe impl Send for Pages {}

impl Pages {
    /// At least `len` bytes, in huge pages if they are wanted and there are any.
    fn new(len: usize, huge: bool) -> Result<Self, Error> {
        let huge_len = len.max(1).next_multiple_of(HUGE_PAGE);
        // A huge page that is mostly empty helps nobody.
        if huge
            && len >= HUGE_PAGE / 2
            && let Ok(pages) = Self::map(huge_len, libc::MAP_HUGETLB)
        {
            return Ok(pages);
        }
        let len = len.max(1).next_multiple_of(PAGE);
        Self::map(len, 0).map_err(|code| Error::call("mmap", code))
    }

    fn map(len: usize, flags: i32) -> Result<Self, i32> {
        // SAFETY: a new place for pages that nobody has.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(sys::errno());
        }
        let start = NonNull::new(start.cast()).ok_or(libc::ENOMEM)?;
        let owner = Owner::me();
        Ok(Self { start, len, owner })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // A child may not have them, and something else in their place.
        if self.owner.is_me() {
            // SAFETY: mapped by `map`; the registration that holds them is gone.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

/// What peers may do with memory, beside what this side's device may.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rights(u32);

impl Rights {
    /// Nothing.
    pub(crate) const NONE: Self = Self(0);
    /// READ and WRITE it.
    pub(crate) const ALL: Self = Self(sys::access::REMOTE_READ | sys::access::REMOTE_WRITE);

    /// As named one by one.
    pub(crate) fn new(read: bool, write: bool) -> Self {
        let read = if read { sys::access::REMOTE_READ } else { 0 };
        let write = if write { sys::access::REMOTE_WRITE } else { 0 };
        Self(read | write)
    }
}

/// A registration: the device reaches the memory by its keys until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    raw: NonNull<sys::ibv_mr>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs allows any thread.
unsafe impl Send for Registration {}

impl Registration {
    /// # Safety
    /// The memory stays where it is, and its user minds that the device and peers with the rights
    /// may change it, until this is dropped.
    unsafe fn new(domain: &Arc<Domain>, addr: u64, len: u64, rights: Rights) -> Result<Self, i32> {
        let access = sys::access::LOCAL_WRITE | rights.0;
        let place = ptr::with_exposed_provenance_mut(addr as usize);
        let len = usize::try_from(len).map_err(|_| libc::EINVAL)?;
        // SAFETY: of the caller; the domain is held as long as this.
        let raw = unsafe { sys::ibv_reg_mr_iova2(domain.as_ptr(), place, len, addr, access) };
        Ok(Self {
            raw: NonNull::new(raw).ok_or_else(sys::errno)?,
            domain: Arc::clone(domain),
        })
    }

    /// The key for this side's work requests.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: registered, and the keys never change.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// The key for peers.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.domain.owner.is_me() {
            // SAFETY: the last use.
            unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
        }
    }
}

/// Registered pages.
///
/// Their bytes are only lent by parts: while one is lent, the device may write others.
#[derive(Debug)]
pub(crate) struct Chunk {
    // Before the pages: fields are dropped in this order. `None` once the device is gone.
    registration: Option<Registration>,
    pages: Pages,
    len: usize,
}

impl Chunk {
    /// So many bytes, all 0; exactly they can be reached by the keys.
    ///
    /// # Errors
    /// `MemoryLimit` when the process may not lock so much, or the system's.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        len: usize,
        rights: Rights,
        huge: bool,
    ) -> Result<Self, Error> {
        let pages = Pages::new(len, huge)?;
        let addr = pages.start.expose_provenance().get() as u64;
        // SAFETY: the pages are held longer than the registration, and nobody makes a reference to
        // what the device may change: see `bytes`.
        let registration = unsafe { Registration::new(domain, addr, len as u64, rights) }
            .map_err(|code| registration_error(code, len as u64))?;
        Ok(Self {
            registration: Some(registration),
            pages,
            len,
        })
    }

    /// Where it begins, as device and peers see it.
    pub(crate) fn address(&self) -> u64 {
        self.pages.start.addr().get() as u64
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The key for this side's work requests.
    pub(crate) fn lkey(&self) -> u32 {
        self.registration.as_ref().map_or(0, Registration::lkey)
    }

    /// The key for peers.
    pub(crate) fn rkey(&self) -> u32 {
        self.registration.as_ref().map_or(0, Registration::rkey)
    }

    /// Takes the keys away; the bytes stay.
    pub(crate) fn unregister(&mut self) {
        self.registration = None;
    }

    /// A part that the device does not have.
    ///
    /// # Panics
    /// When it is not inside.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside of the pages. The endpoint asks for a slot, and the user is let at a
        // buffer, only while no work request on it is out.
        unsafe { core::slice::from_raw_parts(self.pages.start.as_ptr().add(at), len) }
    }

    /// A part that the device does not have, to write.
    ///
    /// # Panics
    /// When it is not inside.
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: as in `bytes`, and this is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.pages.start.as_ptr().add(at), len) }
    }

    /// Keys of their own for a part.
    pub(crate) fn register_part(
        &self,
        domain: &Arc<Domain>,
        addr: u64,
        len: u64,
        rights: Rights,
    ) -> Result<Registration, i32> {
        let inside = addr >= self.address()
            && addr
                .checked_add(len)
                .is_some_and(|end| end <= self.address() + self.len as u64);
        if !inside {
            return Err(libc::EFAULT);
        }
        // SAFETY: inside of the pages; whoever keeps the registration drops it before them.
        unsafe { Registration::new(domain, addr, len, rights) }
    }
}

fn registration_error(code: i32, need: u64) -> Error {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    if code == libc::ENOMEM && known && limit.rlim_cur != libc::RLIM_INFINITY {
        return Error::MemoryLimit {
            need,
            limit: limit.rlim_cur,
        };
    }
    Error::call("ibv_reg_mr", code)
}

/// All slots of the endpoint, in one chunk.
#[derive(Debug)]
pub struct SlotPool {
    chunk: Chunk,
    size: usize,
}

impl SlotPool {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        size: u32,
        count: u32,
        huge: bool,
    ) -> Result<Self, Error> {
        let size = size as usize;
        // Slots are no business of peers': they have no rights to them.
        let chunk = Chunk::new(domain, size * count as usize, Rights::NONE, huge)?;
        Ok(Self { chunk, size })
    }

    /// A part of a slot for a work request: address, bytes, key.
    pub(crate) fn segment(&self, slot: u32, offset: u32, len: u32) -> sys::ibv_sge {
        assert!((offset + len) as usize <= self.size);
        sys::ibv_sge {
            addr: self.chunk.address() + (slot as usize * self.size) as u64 + u64::from(offset),
            length: len,
            lkey: self.chunk.lkey(),
        }
    }

    /// Takes the keys away; the bytes stay.
    pub(crate) fn unregister(&mut self) {
        self.chunk.unregister();
    }

    /// A whole slot for a receive.
    pub(crate) fn whole(&self, slot: SlotId) -> sys::ibv_sge {
        self.segment(slot.0, 0, self.size as u32)
    }
}

impl Slots for SlotPool {
    fn slot(&self, slot: SlotId) -> &[u8] {
        self.chunk.bytes(slot.0 as usize * self.size, self.size)
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        self.chunk.bytes_mut(slot.0 as usize * self.size, self.size)
    }
}
