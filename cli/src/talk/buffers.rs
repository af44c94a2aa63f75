//! Buffers of a driver, kept for the next message of the size.

use xio_proto::Segment;
use xio_proto::driver::{BufferError, BufferId, Driver};

/// Sizes are powers of two from this one on.
const SMALLEST: u32 = 12;

/// A buffer in use.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Buffer {
    id: BufferId,
    class: u8,
}

/// All buffers of one user.
#[derive(Debug)]
pub(crate) struct Buffers {
    free: [Vec<BufferId>; 64],
    /// Bytes of all buffers, used and free.
    bytes: u64,
    /// The most that there may be.
    max: u64,
}

fn class(len: usize) -> u8 {
    let bits = usize::BITS - len.saturating_sub(1).leading_zeros();
    bits.max(SMALLEST) as u8
}

impl Buffers {
    /// No buffers yet, and never more than `max` bytes of them.
    pub(crate) fn new(max: u64) -> Self {
        Self {
            free: [const { Vec::new() }; 64],
            bytes: 0,
            max,
        }
    }

    /// A buffer of at least `len` bytes.
    ///
    /// # Errors
    /// `NoRoom` when others must be given back before; or never, if `len` is more than the most.
    pub(crate) fn take<D: Driver>(
        &mut self,
        driver: &mut D,
        len: usize,
    ) -> Result<Buffer, BufferError> {
        let class = class(len);
        if let Some(id) = self.free[usize::from(class)].pop() {
            return Ok(Buffer { id, class });
        }
        let size = 1 << class;
        while self.bytes + size > self.max {
            if !self.drop_one(driver) {
                let have = self.max.saturating_sub(self.bytes);
                return Err(BufferError::NoRoom { need: size, have });
            }
        }
        let id = driver.allocate(1 << class)?;
        self.bytes += size;
        Ok(Buffer { id, class })
    }

    /// Takes a buffer back that is not in flight any more.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.free[usize::from(buffer.class)].push(buffer.id);
    }

    /// Frees one buffer that nobody uses; false when there is none.
    fn drop_one<D: Driver>(&mut self, driver: &mut D) -> bool {
        for (class, free) in self.free.iter_mut().enumerate().rev() {
            if let Some(id) = free.pop() {
                let freed = driver.free(id);
                debug_assert_eq!(freed, Ok(()), "it was given back");
                self.bytes -= 1 << class;
                return true;
            }
        }
        false
    }
}

impl Buffer {
    /// Its first `len` bytes, for a message.
    ///
    /// # Panics
    /// When it is not that long.
    pub(crate) fn segment<D: Driver>(self, driver: &D, len: usize) -> Segment {
        let segment = driver.segment(self.id, 0..len);
        segment.expect("a buffer is as long as was asked for")
    }

    /// Lets the caller at it.
    ///
    /// # Panics
    /// When it is in flight.
    pub(crate) fn with<D: Driver, R>(self, driver: &mut D, run: impl FnOnce(&mut [u8]) -> R) -> R {
        let done = driver.with_buffer(self.id, run);
        done.expect("a buffer that is not in flight")
    }
}
