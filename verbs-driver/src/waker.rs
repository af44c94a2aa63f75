//! Ending a sleeping poll from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::fd::Bell;

/// The driver is in its poll and looks at the state before it sleeps.
const AWAKE: u8 = 0;
/// The driver sleeps, or its user does something else.
const ASLEEP: u8 = 1;
/// Somebody called.
const WOKEN: u8 = 2;

#[derive(Debug)]
struct Inner {
    state: AtomicU8,
    bell: Bell,
}

/// Ends a sleeping [`poll`](xio_proto::Driver::poll), or the next one. None is lost. A call is a
/// system call when the driver sleeps, and a few nanoseconds when it is in its poll or was called
/// already.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Inner>);

impl Waker {
    pub(crate) fn new(bell: Bell) -> Self {
        Self(Arc::new(Inner {
            state: AtomicU8::new(ASLEEP),
            bell,
        }))
    }

    /// Wakes the driver.
    pub fn wake(&self) {
        if self.0.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.0.bell.ring();
        }
    }

    /// Ends a sleep of the driver's, but not its poll: it is to look around.
    pub(crate) fn nudge(&self) {
        self.0.bell.ring();
    }

    /// The bell, for the group of descriptors.
    pub(crate) fn bell(&self) -> &Bell {
        &self.0.bell
    }

    /// The driver's poll begins, or goes on after a sleep. True when somebody called.
    pub(crate) fn awake(&self) -> bool {
        self.0.state.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }

    /// The driver is about to sleep, or to leave its poll. True when somebody called meanwhile.
    pub(crate) fn sleep(&self) -> bool {
        let exchange = (Ordering::AcqRel, Ordering::Acquire);
        let changed = self
            .0
            .state
            .compare_exchange(AWAKE, ASLEEP, exchange.0, exchange.1);
        changed.is_err()
    }
}
