//! What is decoded: a capture, hex text, or bytes of a stream.

mod capture;
mod hex;
mod loose;

use std::io::{self, BufRead, BufReader, Read};

use thiserror::Error;

use crate::limits::TEXT_MAX;
use crate::report::{Item, Reporter, Summary};

/// The layout of headers in bytes that came without packets around them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum DialectHint {
    /// Concluded from the frames.
    #[default]
    Guess,
    /// RDMA.
    Rdma,
    /// TCP.
    Tcp,
}

/// How to decode.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// What bytes without packets are.
    pub dialect: DialectHint,
}

/// Why nothing, or nothing more, can be decoded.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The input cannot be read.
    #[error("the input cannot be read")]
    Read(#[source] io::Error),
    /// Whoever takes what is found cannot go on.
    #[error("what was found cannot be written")]
    Write(#[source] io::Error),
    /// There is nothing in the input.
    #[error("the input is empty")]
    Empty,
    /// The input is of no kind that can be decoded.
    #[error(
        "neither pcap, pcapng, hex text nor bytes with a frame in them: it begins with {0}. \
         Make a capture with `tcpdump -w FILE`"
    )]
    Unknown(String),
}

/// Bytes that tell what a file is.
const PROBE: usize = 4;

/// Decodes all of `input`, and tells `sink` what is found, in the order of its last byte.
///
/// The kind of input is concluded from its first bytes. A capture that ends early or is damaged
/// is decoded as far as it goes, which [`Summary::stopped`] says.
///
/// # Errors
/// When the input cannot be read or is of no known kind, and the first error of `sink`, after which
/// it is told nothing more.
pub fn decode(
    input: impl Read,
    options: Options,
    mut sink: impl FnMut(&Item) -> io::Result<()>,
) -> Result<Summary, SourceError> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let mut out = Reporter::new(&mut sink);
    let first = first_bytes(&mut input).map_err(SourceError::Read)?;
    if first.is_empty() {
        return Err(SourceError::Empty);
    }
    let start = io::Cursor::new(first.clone());
    let mut input = start.chain(input);
    if capture::is_capture(&first) {
        capture::run(&mut input, &mut out)?;
    } else {
        bytes(&mut input, options, &mut out)?;
    }
    match out.failed.take() {
        Some(error) => Err(SourceError::Write(error)),
        None => Ok(out.summary),
    }
}

fn first_bytes(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut first = Vec::new();
    input.take(PROBE as u64).read_to_end(&mut first)?;
    Ok(first)
}

/// Input without packets, or the hex text of anything.
fn bytes(
    input: &mut impl Read,
    options: Options,
    out: &mut Reporter<'_>,
) -> Result<(), SourceError> {
    let mut all = Vec::new();
    let limited = &mut input.take(TEXT_MAX + 1);
    limited.read_to_end(&mut all).map_err(SourceError::Read)?;
    if all.len() as u64 > TEXT_MAX {
        all.truncate(TEXT_MAX as usize);
        out.summary.stopped = Some(format!("only {TEXT_MAX} bytes of such input are read"));
    }
    let decoded = hex::parse(&all);
    let bytes = decoded.as_deref().unwrap_or(&all);
    if capture::is_capture(bytes) {
        return capture::run(&mut &bytes[..], out);
    }
    if !loose::run(bytes, options.dialect, out) {
        let first: Vec<String> = all.iter().take(8).map(|b| format!("{b:02x}")).collect();
        return Err(SourceError::Unknown(first.join(" ")));
    }
    Ok(())
}
