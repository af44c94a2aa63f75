//! Where a recording goes that somebody else looks at later.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes in memory that every clone sees: a recording outlives a panic of what it records.
#[derive(Clone, Debug, Default)]
pub struct Tape(Arc<Mutex<Vec<u8>>>);

impl Tape {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is on it.
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl io::Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
