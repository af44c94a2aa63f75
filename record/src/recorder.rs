//! The observer that records.

use std::fmt::{self, Write as _};
use std::io;

use xio_proto::{Applied, EncodeError, Input, Start, Trace};

use crate::{DIGEST, put_length};

/// Why a recording ended before its endpoint did.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RecordError {
    /// An input cannot be written.
    Input(EncodeError),
    /// The writer failed.
    Write(io::ErrorKind),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) => write!(f, "an input cannot be recorded: {error}"),
            Self::Write(kind) => write!(f, "the recording cannot be written: {kind}"),
        }
    }
}

impl std::error::Error for RecordError {}

/// Writes all inputs of an endpoint, and digests of its outputs, to `W`.
///
/// Recording must not disturb what is recorded: when an input cannot be written, the recording
/// ends there, and [`error`](Self::error) says why.
#[derive(Debug)]
pub struct Recorder<W> {
    out: W,
    /// Reused from input to input.
    buffer: Vec<u8>,
    entry: Vec<u8>,
    /// Lines for people, if they are wanted, and where the last one begins.
    log: Option<String>,
    line: usize,
    inputs: u64,
    outputs: u64,
    /// Digest of the last input's output.
    digest: Option<u64>,
    error: Option<RecordError>,
}

impl<W: io::Write> Recorder<W> {
    /// Begins a recording. It must be the endpoint's observer from the beginning, before
    /// transports are added.
    pub fn new(out: W, start: &Start) -> Self {
        let mut recorder = Self {
            out,
            buffer: vec![0; 4096],
            entry: Vec::new(),
            log: None,
            line: 0,
            inputs: 0,
            outputs: 0,
            digest: None,
            error: None,
        };
        match start.write(&mut recorder.buffer) {
            Ok(len) => {
                let written = recorder.out.write_all(&recorder.buffer[..len]);
                recorder.check(written);
            }
            Err(error) => recorder.error = Some(RecordError::Input(error)),
        }
        recorder
    }

    /// Keeps lines for people, too: an input and, behind `=`, what came of it. Polls that found
    /// nothing are left out.
    #[must_use]
    pub fn with_log(mut self) -> Self {
        self.log = Some(String::new());
        self
    }

    /// The lines since the last call.
    pub fn take_log(&mut self) -> String {
        self.line = 0;
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Inputs so far.
    pub fn inputs(&self) -> u64 {
        self.inputs
    }
    /// Outputs so far that were not nothing.
    pub fn outputs(&self) -> u64 {
        self.outputs
    }
    /// Digest of what came of the last input; `None` when that is nothing.
    pub fn digest(&self) -> Option<u64> {
        self.digest
    }
    /// Why the recording ended early, if it did.
    pub fn error(&self) -> Option<RecordError> {
        self.error
    }

    fn check(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.error = Some(RecordError::Write(error.kind()));
        }
    }

    fn put(&mut self, entry: impl Fn(&mut [u8]) -> Result<usize, EncodeError>) {
        if self.error.is_some() {
            return;
        }
        let len = match entry(&mut self.buffer) {
            Err(EncodeError::Room { need, .. }) => {
                self.buffer.resize(need, 0);
                entry(&mut self.buffer)
            }
            result => result,
        };
        match len {
            Ok(len) => {
                self.entry.clear();
                put_length(&mut self.entry, len);
                self.entry.extend_from_slice(&self.buffer[..len]);
                let written = self.out.write_all(&self.entry);
                self.check(written);
            }
            Err(error) => self.error = Some(RecordError::Input(error)),
        }
    }
}

impl<W: io::Write> Trace for Recorder<W> {
    const RECORDS: bool = true;

    fn input(&mut self, input: &Input<'_>) {
        self.inputs += 1;
        if let Some(log) = &mut self.log {
            self.line = log.len();
            // Writing into a string does not fail.
            let _ = writeln!(log, "{:>8} {input:?}", self.inputs);
        }
        self.put(|out| input.write(out));
    }

    fn output(&mut self, applied: &Applied, frame: &[u8]) {
        if applied.is_nothing() {
            self.digest = None;
            if let Some(log) = &mut self.log
                && *applied != Applied::Nothing
            {
                log.truncate(self.line);
            }
            return;
        }
        self.outputs += 1;
        let digest = applied.digest(frame);
        self.digest = Some(digest);
        if let Some(log) = &mut self.log {
            let _ = match frame.len() {
                0 => writeln!(log, "         = {applied:?}"),
                len => writeln!(
                    log,
                    "         = {applied:?}, {len} bytes, digest {digest:016x}"
                ),
            };
        }
        self.put(|out| {
            out[0] = DIGEST;
            out[1..9].copy_from_slice(&digest.to_be_bytes());
            Ok(9)
        });
    }
}
