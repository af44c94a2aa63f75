//! A timer among the descriptors, so that sleeping costs no timer of its own.
//!
//! A wait with a timeout has the system set up a timer and take it down again, each time, though
//! what it is for (keepalive, a deadline) is nearly never reached. The alarm is set once, and again
//! only when it rings or something is due before it: one that rings too early costs one look.

use xio_proto::Instant;

/// The alarm; without one, where the system has none, waits have timeouts.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Option<timer::Timer>,
    /// When it rings, if it was set and did not.
    at: Option<Instant>,
}

impl Alarm {
    /// An alarm that rings as this token.
    pub(crate) fn new(registry: &mio::Registry, token: mio::Token) -> Self {
        Self {
            timer: timer::Timer::new(registry, token),
            at: None,
        }
    }

    /// Sees to it that it rings at `due` or earlier. False: it cannot.
    pub(crate) fn rings_by(&mut self, due: Instant, now: Instant) -> bool {
        if self.at.is_some_and(|at| at <= due) {
            return true;
        }
        let set = self.timer.as_ref().is_some_and(|t| t.set(due.since(now)));
        self.at = set.then_some(due);
        set
    }

    /// It rang.
    pub(crate) fn rang(&mut self) {
        self.at = None;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod timer {
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;

    use mio::unix::SourceFd;
    use mio::{Interest, Registry, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    #[derive(Debug)]
    pub(super) struct Timer(OwnedFd);

    impl Timer {
        pub(super) fn new(registry: &Registry, token: Token) -> Option<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
            let raw = fd.as_raw_fd();
            registry
                .register(&mut SourceFd(&raw), token, Interest::READABLE)
                .ok()?;
            Some(Self(fd))
        }

        /// Rings after so long, and not when it was to ring before. Whatever rang need not be
        /// read: each time it rings is a change of its own.
        pub(super) fn set(&self, after: Duration) -> bool {
            let zero = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // Zero would be never.
            let after = after.max(Duration::from_nanos(1));
            let Ok(tv_sec) = after.as_secs().try_into() else {
                return false;
            };
            let once = Itimerspec {
                it_interval: zero,
                it_value: Timespec {
                    tv_sec,
                    tv_nsec: after.subsec_nanos().into(),
                },
            };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once).is_ok()
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod timer {
    use std::time::Duration;

    /// There is none.
    #[derive(Debug)]
    pub(super) enum Timer {}

    impl Timer {
        pub(super) fn new(_: &mio::Registry, _: mio::Token) -> Option<Self> {
            None
        }

        pub(super) fn set(&self, _: Duration) -> bool {
            match *self {}
        }
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::time::Duration;

    use mio::{Events, Poll, Token};
    use xio_proto::Instant;

    use super::Alarm;

    const HOUR: Duration = Duration::from_secs(3600);
    const NOW: Instant = Instant::from_millis(1);

    fn alarm() -> (Poll, Alarm) {
        let poll = Poll::new().expect("an event queue");
        let alarm = Alarm::new(poll.registry(), Token(7));
        (poll, alarm)
    }

    /// Waits until something rings.
    fn rings(poll: &mut Poll) -> Vec<Token> {
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, None).expect("events");
        events.iter().map(mio::event::Event::token).collect()
    }

    #[test]
    fn rings_once_each_time_it_was_set() {
        let (mut poll, mut alarm) = alarm();
        for _ in 0..3 {
            assert!(alarm.rings_by(NOW.after(Duration::from_micros(50)), NOW));
            assert_eq!(rings(&mut poll), [Token(7)]);
            alarm.rang();
            let mut events = Events::with_capacity(4);
            poll.poll(&mut events, Some(Duration::ZERO))
                .expect("events");
            assert!(events.is_empty());
        }
    }

    #[test]
    fn what_is_due_earlier_makes_it_ring_earlier() {
        let (mut poll, mut alarm) = alarm();
        assert!(alarm.rings_by(NOW.after(HOUR), NOW));
        // What is due at once, or was before, rings too.
        assert!(alarm.rings_by(NOW, NOW));
        assert_eq!(rings(&mut poll), [Token(7)]);
    }

    #[test]
    fn what_is_due_later_leaves_it_as_it_is() {
        let (mut poll, mut alarm) = alarm();
        assert!(alarm.rings_by(NOW.after(Duration::from_micros(50)), NOW));
        assert!(alarm.rings_by(NOW.after(HOUR), NOW));
        assert_eq!(rings(&mut poll), [Token(7)]);
    }

    #[test]
    fn what_no_timer_can_take_is_for_the_wait_itself() {
        let (_poll, mut alarm) = alarm();
        alarm.timer = None;
        assert!(!alarm.rings_by(NOW.after(HOUR), NOW));
    }
}
