//! Asking a command to end: SIGINT and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// How often a command looks whether it was asked to end, when nothing else happens. A signal also
/// interrupts the wait, so this only bounds the rare case that it comes just before one.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Whether somebody asked for an end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// Looks for signals from now on. A second one ends the program at once.
    ///
    /// # Errors
    /// When the system does not let handlers be set.
    pub(crate) fn on_signals() -> Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and only raises it.
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop.asked))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop.asked)))
                .with_context(|| format!("signal {signal} cannot be caught"))?;
        }
        Ok(stop)
    }

    /// Lets SIGUSR1 ask for something else: true once for each time that it did, or for several at
    /// once.
    ///
    /// # Errors
    /// When the system does not let a handler be set.
    pub(crate) fn asked_besides() -> Result<impl Fn() -> bool> {
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, Arc::clone(&asked))
            .with_context(|| format!("signal {SIGUSR1} cannot be caught"))?;
        Ok(move || asked.swap(false, Ordering::Relaxed))
    }

    /// True when an end was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Asks for an end.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}
