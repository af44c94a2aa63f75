//! Whole simulated worlds whose chances the input takes.

use xio_sim::scenario::{self, Options};
use xio_sim::{Dialects, FaultLevel};

/// Runs a world; messages that were delivered.
///
/// Byte 0: bits 0 and 1 which faults there may be, bits 2 and 3 which dialects, the rest the seed for
/// what the input does not decide any more.
pub(crate) fn run(data: &[u8]) -> u64 {
    let Some((options, script)) = data.split_first() else {
        return 0;
    };
    let faults = match options & 3 {
        0 => FaultLevel::None,
        1 => FaultLevel::Some,
        _ => FaultLevel::All,
    };
    let dialects = match options >> 2 & 3 {
        0 => Dialects::Rdma,
        1 => Dialects::Tcp,
        _ => Dialects::Both,
    };
    let report = scenario::run_scripted(
        &Options {
            faults,
            dialects,
            messages: 40,
            events: 600,
            check_every: 16,
            watch: true,
            ..Options::new(u64::from(options >> 4))
        },
        script,
    );
    assert!(report.breaches.is_empty(), "{:#?}", report.breaches);
    report.delivered
}
