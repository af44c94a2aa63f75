//! `xio replay`: a recorded endpoint, run again input by input.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result};
use serde::Serialize;
use xio_proto::Start;
use xio_record::Replay;

use crate::args::ReplayArgs;
use crate::output::{Count, Output};

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Summary {
    version: u16,
    endpoint: u8,
    inputs: u64,
    outputs: u64,
    diverged: u64,
    first_diverged: Option<u64>,
    complete: bool,
}

/// Replays a recording and returns whether its outputs are the recorded ones to the end.
///
/// # Errors
/// When it cannot be read or is no recording, or the log cannot be printed.
pub(crate) fn run(args: &ReplayArgs, out: &Output) -> Result<bool> {
    let name = args.file.display();
    let recording = fs::read(&args.file).with_context(|| format!("cannot read {name}"))?;
    let mut replay = Replay::new(&recording).with_context(|| name.to_string())?;
    if !args.json {
        out.text(header(replay.start()))?;
    }
    let mut summary = Summary {
        version: Start::VERSION,
        endpoint: replay.start().config.endpoint,
        inputs: 0,
        outputs: 0,
        diverged: 0,
        first_diverged: None,
        complete: true,
    };
    let mut filter = args.follow.map(Filter::new);
    while let Some(step) = step(&mut replay) {
        let lines = replay.take_log();
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                summary.complete = false;
                out.text(format_args!("{name}: {error}\n"))?;
                break;
            }
        };
        if step.diverged {
            summary.diverged += 1;
            summary.first_diverged.get_or_insert(step.number);
            out.text(format_args!("{lines}         ! not what was recorded\n"))?;
        } else if !args.json && filter.as_mut().is_none_or(|filter| filter.takes(&lines)) {
            out.text(&lines)?;
        }
    }
    summary.inputs = replay.endpoint().trace().inputs();
    summary.outputs = replay.endpoint().trace().outputs();
    out.text(verdict(&summary))?;
    out.object(&summary)?;
    Ok(summary.complete && summary.diverged == 0)
}

/// The next step; should the endpoint panic in it, as the recorded one may have, its input is
/// named.
fn step(replay: &mut Replay<'_>) -> Option<Result<xio_record::Step, xio_record::ReplayError>> {
    let number = replay.endpoint().trace().inputs() + 1;
    let mut at = Panicking {
        number,
        input: replay.next_entry().map(<[u8]>::to_vec),
    };
    let step = replay.step();
    at.input = None;
    step
}

/// Names an input when the program panics while it is carried out.
struct Panicking {
    number: u64,
    input: Option<Vec<u8>>,
}

impl Drop for Panicking {
    fn drop(&mut self) {
        if let Some(entry) = &self.input {
            let mut scratch = xio_proto::Scratch::new();
            let input = xio_proto::Input::read(entry, &mut scratch);
            eprintln!("input {} is {input:?}", self.number);
        }
    }
}

/// What the endpoint was made of.
fn header(start: &Start) -> String {
    format!(
        "recording of endpoint {}, format {}\n{:?}\n{:?}\n\n",
        start.config.endpoint,
        Start::VERSION,
        start.config,
        start.counts
    )
}

fn verdict(summary: &Summary) -> String {
    let counts = format!(
        "{}, {}",
        Count(summary.inputs, "input"),
        Count(summary.outputs, "output")
    );
    let end = if summary.complete {
        ""
    } else {
        "; the recording is not whole"
    };
    match summary.first_diverged {
        None => format!("\n{counts}, all as recorded{end}\n"),
        Some(first) => {
            let others = summary.diverged;
            format!("\n{counts}, {others} other than recorded, the first at input {first}{end}\n")
        }
    }
}

/// Lets through what names a connection or one of its messages.
struct Filter {
    connection: String,
    tasks: BTreeSet<String>,
}

impl Filter {
    fn new(connection: u32) -> Self {
        Self {
            connection: format!("conn{connection}."),
            tasks: BTreeSet::new(),
        }
    }

    fn takes(&mut self, lines: &str) -> bool {
        let ids = lines.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        let tasks = ids.clone().filter(|id| id.starts_with("task"));
        let mut named = ids.clone().any(|id| id.starts_with(&self.connection));
        if named {
            self.tasks.extend(tasks.map(str::to_owned));
        } else {
            let mut tasks = tasks;
            named = tasks.any(|task| self.tasks.contains(task));
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_follows_a_connection_and_its_messages() {
        let mut filter = Filter::new(1);
        let steps = [
            ("Send { connection: conn1.0 }\n = Task(Ok(task7.2))", true),
            ("Send { connection: conn11.0 }\n = Task(Ok(task8.0))", false),
            ("Event(Some(Sent { task: task7.2 }))", true),
            ("Release { task: task7.1 }", false),
            ("Release { task: task8.0 }", false),
            ("Release { task: task7.2 }\n = Command(Ok(()))", true),
        ];
        for (lines, taken) in steps {
            assert_eq!(filter.takes(lines), taken, "{lines}");
        }
    }
}
