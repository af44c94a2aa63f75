//! The commands' clock.

use std::time::Instant;

/// The present.
#[expect(
    clippy::disallowed_methods,
    reason = "commands measure what people wait for; drivers have clocks of their own"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
