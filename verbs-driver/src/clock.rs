//! The one clock of the driver, which the endpoint is told. It is read in every look for completions,
//! and costs half of what that of the standard library does, which keeps seconds apart.

/// Nanoseconds since it was made.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Clock(u64);

impl Clock {
    /// A clock that begins now.
    pub(crate) fn new() -> Self {
        Self(monotonic())
    }

    /// Nanoseconds since then; never less than before.
    pub(crate) fn nanos(self) -> u64 {
        monotonic().saturating_sub(self.0)
    }
}

/// Nanoseconds of the system's monotonic clock.
fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of the system's clock of the day, by which later runs of a program are known.
pub(crate) fn of_day() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time lives as long as the call. It cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the clock that it is compared with"
    )]
    fn clock_goes_as_fast_as_the_standard_one() {
        let outer = std::time::Instant::now();
        let clock = Clock::new();
        let inner = std::time::Instant::now();
        let mut last = 0;
        while inner.elapsed().as_millis() < 2 {
            let now = clock.nanos();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
        let least = inner.elapsed().as_nanos();
        let now = u128::from(clock.nanos());
        let most = outer.elapsed().as_nanos();
        assert!((least..=most).contains(&now), "{least} {now} {most}");
    }
}
