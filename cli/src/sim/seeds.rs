//! Runs seeds: one, or many on several threads.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use anyhow::{Context as _, Result};
use xio_record::Tape;
use xio_sim::Tracer;
use xio_sim::scenario::{self, Options, Report};

/// What came of a seed.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It ran to its end; the report says whether all was well.
    Done(Box<Report>),
    /// An assertion failed somewhere.
    Panicked(String),
}

impl Outcome {
    /// Failed checks; a panic is one.
    pub(super) fn violations(&self) -> u64 {
        match self {
            Self::Done(report) => report.breaches.len() as u64,
            Self::Panicked(_) => 1,
        }
    }

    /// Failed checks in words.
    pub(super) fn breaches(&self) -> Vec<String> {
        match self {
            Self::Done(report) => report.breaches.iter().map(ToString::to_string).collect(),
            Self::Panicked(message) => vec![format!("panicked: {message}")],
        }
    }
}

/// How seeds are run.
#[derive(Copy, Clone, Debug)]
pub(super) struct Runner {
    /// For every seed, but for its number.
    pub(super) options: Options,
    /// Events that a seed must have at least.
    pub(super) steps: u64,
}

impl Runner {
    /// A world that ends sooner than asked for is run again with twice the messages, so often.
    const DOUBLINGS: u32 = 8;

    /// Runs a seed.
    fn run(&self, seed: u64) -> Outcome {
        self.search(seed).1
    }

    /// Runs a seed and gives every line of its trace to `sink`.
    pub(super) fn run_traced(&self, seed: u64, sink: Box<dyn Write + Send>) -> Outcome {
        let options = if self.steps == 0 {
            self.of(seed)
        } else {
            self.search(seed).0
        };
        let mut sink = BufWriter::new(sink);
        attempt(&options, |tracer| {
            // Who reads it may have seen enough; the run is finished all the same.
            let mut open = true;
            tracer.print_to(move |record| open = open && writeln!(sink, "{record}").is_ok());
        })
    }

    /// Runs a seed and returns, too, what entered the endpoint of the given number.
    pub(super) fn run_recorded(&self, seed: u64, endpoint: usize) -> (Outcome, Vec<u8>) {
        let options = if self.steps == 0 {
            self.of(seed)
        } else {
            self.search(seed).0
        };
        // A panic ends the world, not what was recorded of it.
        let tape = Tape::new();
        let record = Some((endpoint, tape.clone()));
        let run = || scenario::run_recorded(&options, |_| {}, record);
        (caught(run), tape.bytes())
    }

    /// Runs the seeds on `jobs` threads, and hands over what came of each in their order.
    ///
    /// # Errors
    /// That of `each`, after which no more seeds are begun; or when no thread can be made.
    pub(super) fn run_all(
        &self,
        seeds: Range<u64>,
        jobs: usize,
        each: &mut dyn FnMut(u64, Outcome) -> Result<()>,
    ) -> Result<()> {
        let next = AtomicU64::new(seeds.start);
        let stop = AtomicBool::new(false);
        let (sender, receiver) = mpsc::channel();
        let work = |sender: mpsc::Sender<(u64, Outcome)>| {
            while !stop.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end || sender.send((seed, self.run(seed))).is_err() {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                let sender = sender.clone();
                std::thread::Builder::new()
                    .name("seeds".to_owned())
                    .spawn_scoped(scope, || work(sender))
                    .context("cannot start a thread; try --jobs 1")?;
            }
            drop(sender);
            let mut early = BTreeMap::new();
            let mut wanted = seeds.start;
            for (seed, outcome) in receiver {
                early.insert(seed, outcome);
                while let Some(outcome) = early.remove(&wanted) {
                    each(wanted, outcome).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                    wanted += 1;
                }
            }
            Ok(())
        })
    }

    fn of(&self, seed: u64) -> Options {
        Options {
            seed,
            ..self.options
        }
    }

    /// Runs a seed until it is long enough, and says how it was asked for then.
    fn search(&self, seed: u64) -> (Options, Outcome) {
        let mut options = self.of(seed);
        for _ in 0..Self::DOUBLINGS {
            let outcome = attempt(&options, |_| {});
            match &outcome {
                Outcome::Done(report) if report.breaches.is_empty() => {
                    if report.events >= self.steps {
                        return (options, outcome);
                    }
                }
                _ => return (options, outcome),
            }
            options.messages = options.messages.saturating_mul(2);
        }
        let outcome = attempt(&options, |_| {});
        (options, outcome)
    }
}

thread_local! {
    /// Where the last panic of a thread was.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics remembered instead of printed: many seeds may end in the same one.
pub(super) fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        PLACE.set(info.location().map(ToString::to_string));
    }));
}

/// Runs a world once; a panic inside is an outcome too.
fn attempt(options: &Options, prepare: impl FnOnce(&mut Tracer)) -> Outcome {
    caught(|| scenario::run_with(options, prepare))
}

fn caught(run: impl FnOnce() -> Report) -> Outcome {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(report) => Outcome::Done(Box::new(report)),
        Err(payload) => Outcome::Panicked(message(payload.as_ref())),
    }
}

/// What a panic said.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("without a message");
    match PLACE.take() {
        Some(place) => format!("{text} ({place})"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(steps: u64) -> Runner {
        Runner {
            options: Options::new(0),
            steps,
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_seeds() {
        let mut seen = Vec::new();
        let mut each = |seed, outcome: Outcome| {
            assert!(matches!(&outcome, Outcome::Done(report) if report.seed == seed));
            seen.push(seed);
            Ok(())
        };
        runner(0)
            .run_all(3..9, 3, &mut each)
            .expect("no thread failed");
        assert_eq!(seen, [3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn error_of_the_taker_ends_the_run() {
        let mut each = |_, _| anyhow::bail!("enough");
        assert!(runner(0).run_all(0..1000, 2, &mut each).is_err());
    }

    #[test]
    fn long_runs_are_long_enough() {
        let options = Options {
            faults: xio_sim::FaultLevel::None,
            ..Options::new(0)
        };
        let long = Runner {
            options,
            steps: 20_000,
        };
        let Outcome::Done(report) = long.run(1) else {
            panic!("a world without faults panics")
        };
        assert!(report.events >= 20_000, "{}", report.events);
    }

    #[test]
    fn panics_are_quoted() {
        let payload = catch_unwind(|| panic!("seed {}", 7)).expect_err("it panics");
        assert_eq!(message(payload.as_ref()), "seed 7");
    }
}
