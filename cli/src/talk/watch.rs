//! What watches the endpoint of a command: its transitions for `-v`, and a recording of all that
//! enters it for `--record`.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context as _, Result};
use xio_proto::{Applied, Input, Start, Trace};
use xio_record::Recorder;

use crate::args::RecordArgs;
use crate::logging::Events;

/// An observer of a command's endpoint.
pub(crate) trait Watch: Trace + Sized {
    /// The observer of an endpoint that is about to be made, and where a recording of it goes.
    fn new(start: &Start, record: Option<&Files>) -> Self;
}

impl Watch for Events {
    fn new(start: &Start, _: Option<&Files>) -> Self {
        Self::new(start.config.endpoint)
    }
}

/// A file that is written in large pieces; every clone writes to it.
#[derive(Clone, Debug)]
struct Shared {
    path: PathBuf,
    file: Rc<RefCell<BufWriter<File>>>,
    /// The first thing that went wrong.
    error: Rc<RefCell<Option<String>>>,
}

impl Shared {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file: Rc::new(RefCell::new(BufWriter::new(file))),
            error: Rc::default(),
        })
    }

    fn fails(&self, what: impl ToString) {
        self.error.borrow_mut().get_or_insert(what.to_string());
    }

    fn finish(&self) -> Result<()> {
        if let Err(error) = self.file.borrow_mut().flush() {
            self.fails(error);
        }
        match &*self.error.borrow() {
            Some(error) => anyhow::bail!("{} is not whole: {error}", self.path.display()),
            None => Ok(()),
        }
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.borrow_mut().flush()
    }
}

/// Where a recording goes.
#[derive(Debug)]
pub(crate) struct Files {
    recording: Shared,
    log: Option<Shared>,
}

impl Files {
    /// Files for what is asked for; `None` when nothing is.
    ///
    /// # Errors
    /// A file that cannot be created.
    pub(crate) fn create(args: &RecordArgs) -> Result<Option<Self>> {
        let Some(path) = &args.record else {
            return Ok(None);
        };
        let recording = Shared::create(path)?;
        let log = args.record_log.as_deref().map(Shared::create).transpose()?;
        Ok(Some(Self { recording, log }))
    }

    /// Writes what is left to write.
    ///
    /// # Errors
    /// That something could not be written, now or earlier.
    pub(crate) fn finish(&self) -> Result<()> {
        self.recording.finish()?;
        self.log.as_ref().map_or(Ok(()), Shared::finish)
    }
}

/// Records, and shows transitions as well.
#[derive(Debug)]
pub(crate) struct Recording {
    events: Events,
    tape: Option<Tape>,
}

/// A recording that is being made.
#[derive(Debug)]
struct Tape {
    recorder: Recorder<Shared>,
    recording: Shared,
    log: Option<Shared>,
}

impl Tape {
    fn new(start: &Start, files: &Files) -> Self {
        let recording = files.recording.clone();
        let mut recorder = Recorder::new(recording.clone(), start);
        if files.log.is_some() {
            recorder = recorder.with_log();
        }
        Self {
            recorder,
            recording,
            log: files.log.clone(),
        }
    }

    fn output(&mut self, applied: &Applied, frame: &[u8]) {
        self.recorder.output(applied, frame);
        if let Some(error) = self.recorder.error() {
            self.recording.fails(error);
        }
        if let Some(log) = &mut self.log {
            let lines = self.recorder.take_log();
            if let Err(error) = log.write_all(lines.as_bytes()) {
                log.fails(error);
            }
        }
    }
}

impl Watch for Recording {
    fn new(start: &Start, record: Option<&Files>) -> Self {
        Self {
            events: Watch::new(start, None),
            tape: record.map(|files| Tape::new(start, files)),
        }
    }
}

impl Trace for Recording {
    const RECORDS: bool = true;

    fn transition(&mut self, machine: u8, index: u32, state: u8, input: u8, next: u8) {
        self.events.transition(machine, index, state, input, next);
    }

    fn mark(&mut self, name: &'static str) {
        self.events.mark(name);
    }

    fn is_recording(&self) -> bool {
        self.tape.is_some()
    }

    fn input(&mut self, input: &Input<'_>) {
        if let Some(tape) = &mut self.tape {
            tape.recorder.input(input);
        }
    }

    fn output(&mut self, applied: &Applied, frame: &[u8]) {
        if let Some(tape) = &mut self.tape {
            tape.output(applied, frame);
        }
    }
}
