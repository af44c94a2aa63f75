//! What `-v` shows: events of `tracing` on standard error, one a line.
//!
//! `debug` is what happens once in a connection's life, `trace` what happens per frame. Targets are
//! module paths: `xio`, `xio_decode`.

use anyhow::{Context as _, Result};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use xio_proto::{MACHINES, Trace};

/// The variable that says what is shown, before `-v`.
const VARIABLE: &str = "XIO_LOG";

/// Modules that have something to show.
const TARGETS: [&str; 5] = [
    "xio::logging",
    "xio::demo::timeline",
    "xio_decode::report",
    "xio_decode::streams",
    "xio_decode::streams::direction",
];

/// What a list of `TARGET=LEVEL` names that shows nothing.
fn unknown(wanted: &str) -> impl Iterator<Item = &str> {
    let named = wanted.split(',').map(|one| {
        let end = one.find(['=', '[']).unwrap_or(one.len());
        (one[..end].trim(), end == one.len())
    });
    // A word alone may be a level instead.
    let named = named.filter(|(name, alone)| !alone || name.parse::<LevelFilter>().is_err());
    let names = named.map(|(name, _)| name);
    names.filter(|name| !TARGETS.iter().any(|target| target.starts_with(name)))
}

/// Starts to show events, if any were asked for: by the variable, or by so many `-v`.
///
/// # Errors
/// When the variable cannot be understood.
pub(crate) fn start(verbose: u8) -> Result<()> {
    let wanted = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let wanted = match (&wanted, verbose) {
        (Some(text), _) => text,
        (None, 0) => return Ok(()),
        (None, 1) => "debug",
        (None, _) => "trace",
    };
    let filter = EnvFilter::try_new(wanted).with_context(|| {
        format!("{VARIABLE}={wanted} is neither a level (debug, trace) nor TARGET=LEVEL,...")
    })?;
    for name in unknown(wanted) {
        let targets = TARGETS.join(", ");
        eprintln!("xio: {VARIABLE} names {name}, which shows nothing; there are {targets}");
    }
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time();
    subscriber.init();
    Ok(())
}

/// Shows the transitions of an endpoint: those of messages as `trace`, all others as `debug`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Events {
    endpoint: u8,
    /// Whether anything is shown at all, asked once: messages have many transitions.
    is_on: bool,
}

impl Events {
    /// Those of an endpoint of this number.
    pub(crate) fn new(endpoint: u8) -> Self {
        let is_on = tracing::enabled!(Level::DEBUG);
        Self { endpoint, is_on }
    }
}

impl Trace for Events {
    fn transition(&mut self, machine: u8, index: u32, state: u8, input: u8, next: u8) {
        if !self.is_on {
            return;
        }
        let machine = &MACHINES[usize::from(machine)];
        let [state, next] = [state, next].map(|n| machine.states[usize::from(n)]);
        let input = machine.inputs[usize::from(input)];
        let (endpoint, name) = (self.endpoint, machine.name);
        if name == "task" {
            tracing::trace!(endpoint, "{name} {index}: {state} + {input} => {next}");
        } else {
            tracing::debug!(endpoint, "{name} {index}: {state} + {input} => {next}");
        }
    }

    fn mark(&mut self, name: &'static str) {
        if self.is_on {
            tracing::debug!(endpoint = self.endpoint, "{name}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn targets_that_show_nothing_are_found() {
        let of = |wanted| unknown(wanted).collect::<Vec<_>>();
        for known in [
            "debug",
            "TRACE",
            "off",
            "xio",
            "xio=debug",
            "xio_decode::streams=trace,xio::demo=debug,warn",
            "xio[span]=debug",
        ] {
            assert!(of(known).is_empty(), "{known}");
        }
        assert_eq!(of("xio_proto=debug"), ["xio_proto"]);
        assert_eq!(of("info,xoi,xio::serve=trace"), ["xoi", "xio::serve"]);
    }
}
