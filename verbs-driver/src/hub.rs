//! Asynchronous events of a device, for all drivers of this process that use it.
//!
//! librdmacm opens each device once in a process, so all its users read the same descriptor, and
//! an event is there for whoever reads it first. Who reads one tells the others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys;
use crate::waker::Waker;

/// An event: its number, and the queue pair that it is about (0 if about none).
pub(crate) type DeviceEvent = (u32, u32);

/// Events kept for a driver that does not poll; beyond that only the last of a device is.
const KEPT: usize = 1024;

static MAILBOXES: Mutex<Vec<Arc<Mailbox>>> = Mutex::new(Vec::new());

/// Events for one driver.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// Address of the device's context, to tell devices apart.
    device: usize,
    events: Mutex<VecDeque<DeviceEvent>>,
    waker: Waker,
}

/// A panic elsewhere leaves lists of plain values whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mailbox that is known to the others as long as this lives.
#[derive(Debug)]
pub(crate) struct Subscription(Arc<Mailbox>);

impl Subscription {
    /// Hears of the events of a device from here on.
    pub(crate) fn new(device: usize, waker: Waker) -> Self {
        let mailbox = Arc::new(Mailbox {
            device,
            events: Mutex::new(VecDeque::new()),
            waker,
        });
        lock(&MAILBOXES).push(Arc::clone(&mailbox));
        Self(mailbox)
    }

    /// Tells all drivers of the device, this one too, of an event that was read.
    pub(crate) fn publish(&self, event: DeviceEvent) {
        for mailbox in lock(&MAILBOXES).iter() {
            if mailbox.device != self.0.device {
                continue;
            }
            let mut events = lock(&mailbox.events);
            if events.len() < KEPT || event.0 == sys::event::DEVICE_FATAL {
                events.push_back(event);
            }
            drop(events);
            if !Arc::ptr_eq(mailbox, &self.0) {
                mailbox.waker.nudge();
            }
        }
    }

    /// The oldest event that was not taken yet.
    pub(crate) fn take(&self) -> Option<DeviceEvent> {
        lock(&self.0.events).pop_front()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&MAILBOXES).retain(|mailbox| !Arc::ptr_eq(mailbox, &self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::Bell;

    fn waker() -> Waker {
        Waker::new(Bell::new().unwrap())
    }

    #[test]
    fn all_of_one_device_hear_and_nobody_else() {
        let (one, two, other) = (
            Subscription::new(0x10, waker()),
            Subscription::new(0x10, waker()),
            Subscription::new(0x20, waker()),
        );
        one.publish((sys::event::QP_FATAL, 17));
        two.publish((sys::event::PORT_ERR, 0));
        for subscription in [&one, &two] {
            assert_eq!(subscription.take(), Some((sys::event::QP_FATAL, 17)));
            assert_eq!(subscription.take(), Some((sys::event::PORT_ERR, 0)));
            assert_eq!(subscription.take(), None);
        }
        assert_eq!(other.take(), None);
        drop(two);
        one.publish((sys::event::DEVICE_FATAL, 0));
        assert_eq!(one.take(), Some((sys::event::DEVICE_FATAL, 0)));
    }

    #[test]
    fn end_of_the_device_is_never_dropped() {
        let one = Subscription::new(0x30, waker());
        for _ in 0..2 * KEPT {
            one.publish((sys::event::PORT_ERR, 0));
        }
        one.publish((sys::event::DEVICE_FATAL, 0));
        let mut all = std::iter::from_fn(|| one.take());
        assert_eq!(
            all.by_ref()
                .take(KEPT)
                .filter(|e| e.0 == sys::event::PORT_ERR)
                .count(),
            KEPT
        );
        assert_eq!(all.next(), Some((sys::event::DEVICE_FATAL, 0)));
        assert_eq!(all.next(), None);
    }
}
