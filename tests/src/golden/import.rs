//! From the annotated text of a recording to a [`Transcript`].
//!
//! The recordings print every byte twice, as a named field and in a dump, and many facts about
//! them again in words. The import takes each fact from one place and refuses the recording if
//! another place tells something else: offsets, widths, printed numbers, names of flags and
//! types, lengths, stream offsets and totals, digests of elided payload, counts of frames.

mod annotation;
mod event;
mod frame;
mod header;
mod log;
mod scan;
mod totals;

use super::layout::Layouts;
use super::model::Transcript;

/// Converts the text of one recording.
///
/// # Errors
///
/// The line at which something is unknown or contradicts something else, and what it is.
pub fn import(text: &str, layouts: &Layouts) -> Result<Transcript, String> {
    let scanned = scan::scan(text)?;
    let mut transcript = header::header(&scanned)?;
    for raw in &scanned.records {
        let record = event::record(raw, transcript.dialect, layouts);
        transcript
            .records
            .push(record.map_err(|what| format!("line {}: {what}", raw.line))?);
    }
    header::stream(&mut transcript)?;
    for (line, program, text) in &scanned.log {
        let entry = log::line(*program, text);
        transcript
            .log
            .extend(entry.map_err(|what| format!("line {line}: {what}"))?);
    }
    totals::check(&transcript, &scanned.comments)?;
    Ok(transcript)
}

#[cfg(test)]
mod tests;
