//! How commands print: what is for people, what is for programs, and progress.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

/// Where a command's words go.
///
/// Without `--json` they go to standard output. With it, standard output has the one JSON object
/// and nothing else.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    /// There was an object.
    told: AtomicBool,
}

/// The object when there is no other.
#[derive(Debug, Serialize)]
struct Failure<'a> {
    error: &'a str,
}

impl Output {
    /// Output with or without `--json`.
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            told: AtomicBool::new(false),
        }
    }

    /// Prints text for people.
    ///
    /// # Errors
    /// As writing to the stream.
    pub(crate) fn text(&self, text: impl Display) -> io::Result<()> {
        let mut stream = self.stream();
        write!(stream, "{text}")?;
        stream.flush()
    }

    /// Whether `--json` was given.
    pub(crate) fn is_for_programs(&self) -> bool {
        self.json
    }

    /// The stream that is for people.
    pub(crate) fn stream(&self) -> Box<dyn io::Write + Send> {
        if self.json {
            Box::new(io::stderr())
        } else {
            Box::new(io::stdout())
        }
    }

    /// Prints the object for programs, if one was asked for: the last line of standard output.
    ///
    /// # Errors
    /// As writing to standard output.
    pub(crate) fn object(&self, object: &impl Serialize) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        self.told.store(true, Relaxed);
        serde_json::to_writer(&mut stdout, object)?;
        writeln!(stdout)?;
        stdout.flush()
    }

    /// Leaves an object for programs that says what went wrong, if there was none yet.
    ///
    /// # Errors
    /// As writing to standard output.
    pub(crate) fn failure(&self, error: &str) -> io::Result<()> {
        if self.told.load(Relaxed) {
            return Ok(());
        }
        self.object(&Failure { error })
    }

    /// A bar on standard error when that is a terminal, otherwise nothing.
    pub(crate) fn progress(&self, length: u64, unit: &str) -> ProgressBar {
        if !io::stderr().is_terminal() {
            return ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
        }
        let template =
            format!("{{bar:32}} {{human_pos}} of {{human_len}} {unit}, {{rate}}/s, {{eta}} to go");
        let bar = ProgressBar::new(length);
        match ProgressStyle::with_template(&template) {
            Ok(style) => bar.with_style(style.with_key("rate", rate)),
            Err(_) => bar,
        }
    }
}

/// The rate of a bar, in whole things a second.
fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate, rounded"
    )]
    let rate = state.per_sec() as u64;
    // A bar that cannot be drawn harms nobody.
    let _ = write!(out, "{}", HumanCount(rate));
}

/// True when nobody reads the output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause
            .downcast_ref::<serde_json::Error>()
            .and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// A time span in the unit that suits it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Nanos(pub(crate) u64);

impl Display for Nanos {
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0 as f64;
        let text = match self.0 {
            0..1_000 => format!("{} ns", self.0),
            1_000..1_000_000 => format!("{:.2} us", nanos / 1e3),
            1_000_000..1_000_000_000 => format!("{:.2} ms", nanos / 1e6),
            _ => format!("{:.3} s", nanos / 1e9),
        };
        f.pad(&text)
    }
}

/// A number of things with its name: `1 seed`, `2 seeds`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Count<'a>(pub(crate) u64, pub(crate) &'a str);

impl Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, name) = *self;
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{} {name}{plural}", HumanCount(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_counts_read_well() {
        let shown = [999, 1_500, 2_500_000, 3_000_000_000].map(|n| Nanos(n).to_string());
        assert_eq!(shown, ["999 ns", "1.50 us", "2.50 ms", "3.000 s"]);
        assert_eq!(Count(1, "seed").to_string(), "1 seed");
        assert_eq!(Count(12_000, "event").to_string(), "12,000 events");
    }

    #[test]
    fn broken_pipe_is_found_behind_context() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(
            &anyhow::Error::new(pipe).context("printing")
        ));
        assert!(!is_broken_pipe(&anyhow::anyhow!("something else")));
    }
}
