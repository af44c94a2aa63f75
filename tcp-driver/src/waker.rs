//! Ending a sleeping poll from another thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use mio::{Registry, Token};

/// The driver is in its poll and looks at the state before it sleeps.
const AWAKE: u8 = 0;
/// The driver sleeps, or its user sleeps on its descriptor, or does something else.
const ASLEEP: u8 = 1;
/// Somebody called.
const WOKEN: u8 = 2;

#[derive(Debug)]
struct Inner {
    state: AtomicU8,
    bell: mio::Waker,
}

/// Ends a sleeping [`poll`](crate::Driver::poll), or the next one. A call costs a system call when
/// the driver is not in its poll, or sleeps in it, and was not called yet; a few nanoseconds
/// otherwise. None is lost.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Inner>);

impl Waker {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        Ok(Self(Arc::new(Inner {
            state: AtomicU8::new(ASLEEP),
            bell: mio::Waker::new(registry, token)?,
        })))
    }

    /// Wakes the driver.
    pub fn wake(&self) {
        if self.0.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            // It fails only when it rang too often already.
            let _ = self.0.bell.wake();
        }
    }

    /// Lets a user who sleeps on the descriptor hear of a call that came while the driver was in
    /// its poll.
    pub(crate) fn ring(&self) {
        let _ = self.0.bell.wake();
    }

    /// The driver's poll begins, or goes on after a sleep. True when somebody called.
    pub(crate) fn awake(&self) -> bool {
        self.0.state.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }

    /// The driver is about to sleep, or to leave its poll. True when somebody called meanwhile.
    pub(crate) fn sleep(&self) -> bool {
        let (old, new) = (AWAKE, ASLEEP);
        let exchange = (Ordering::AcqRel, Ordering::Acquire);
        self.0
            .state
            .compare_exchange(old, new, exchange.0, exchange.1)
            .is_err()
    }
}
