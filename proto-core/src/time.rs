//! Points in time as the driver gives them.

use core::fmt;
use core::time::Duration;

/// Nanoseconds since a moment of the driver's choice (its start, usually). The endpoint never
/// reads a clock; it sees these values only, and clamps one that goes backwards.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The earliest moment.
    pub const ZERO: Self = Self(0);
    /// Later than every deadline; never reached.
    pub const NEVER: Self = Self(u64::MAX);

    /// A moment given in nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }
    /// A moment given in milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }
    /// Nanoseconds since the driver's zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// The moment `after` later; saturates below [`NEVER`](Self::NEVER).
    pub fn after(self, after: Duration) -> Self {
        let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos).min(u64::MAX - 1))
    }
    /// Time from `earlier` to this moment, zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}
