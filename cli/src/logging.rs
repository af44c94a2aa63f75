//! What `-v` shows: events of `tracing` on standard error, one a line.
//!
//! `debug` is what happens once in a connection's life, `trace` what happens per frame. Targets are
//! module paths: `xio`, `xio_decode`.

use anyhow::{Context as _, Result};
use tracing_subscriber::EnvFilter;

/// The variable that says what is shown, before `-v`.
const VARIABLE: &str = "XIO_LOG";

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
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time();
    subscriber.init();
    Ok(())
}
