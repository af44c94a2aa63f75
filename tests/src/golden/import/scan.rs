//! The lines of a recording, sorted into records, dumps, comments and program output.

use crate::golden::bytes::unhex;
use crate::golden::model::Program;
use crate::golden::payload::{Pattern, Payload};

/// A recording, line by line.
#[derive(Default)]
pub(super) struct Scanned<'a> {
    /// Lines that begin with `#`, without it.
    pub(super) comments: Vec<&'a str>,
    /// The records.
    pub(super) records: Vec<Raw<'a>>,
    /// What the programs printed: line number, program, text.
    pub(super) log: Vec<(usize, Program, &'a str)>,
}

/// One record.
pub(super) struct Raw<'a> {
    /// Number of its first line.
    pub(super) line: usize,
    /// The first line.
    pub(super) text: &'a str,
    /// Length of the all-zero private data.
    pub(super) zeros: Option<u8>,
    /// Its bytes, by where they travel.
    pub(super) parts: Vec<Part<'a>>,
}

/// Bytes that travel together, with their annotation.
#[derive(Default)]
pub(super) struct Part<'a> {
    /// The line in front of the dump, without its dashes.
    pub(super) title: &'a str,
    /// Annotated fields.
    pub(super) fields: Vec<RawField<'a>>,
    /// The dump.
    pub(super) dump: Dump,
}

/// An annotated field: `[offset +len] name (uninit) hex note`.
pub(super) struct RawField<'a> {
    /// Where it is in its part.
    pub(super) offset: usize,
    /// How long it is.
    pub(super) len: usize,
    /// Its name.
    pub(super) name: &'a str,
    /// Whether it is marked as never written.
    pub(super) uninit: bool,
    /// Hexadecimal value and what it means.
    pub(super) note: &'a str,
}

/// The lines of a dump, perhaps with a hole.
#[derive(Default)]
pub(super) struct Dump {
    head: Vec<u8>,
    hole: Option<Hole>,
}

struct Hole {
    hidden: usize,
    total: usize,
    digest: String,
    tail: Vec<u8>,
}

impl Dump {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let (offset, rest) = line.trim_start().split_once("  ").ok_or("dump line")?;
        let offset = usize::from_str_radix(offset, 16).map_err(|_| "offset of a dump line")?;
        let (digits, _) = rest.split_once('|').ok_or("dump line without text")?;
        let bytes = unhex(&digits.replace(' ', ""))?;
        let (here, into) = match &mut self.hole {
            None => (self.head.len(), &mut self.head),
            Some(hole) => (
                self.head.len() + hole.hidden + hole.tail.len(),
                &mut hole.tail,
            ),
        };
        if offset != here {
            return Err(format!("dump goes on at {offset:x} instead of {here:x}"));
        }
        into.extend(bytes);
        Ok(())
    }

    fn elide(&mut self, line: &str) -> Result<(), String> {
        let numbers: Vec<usize> = line
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .take(2)
            .collect();
        let digest = line
            .rsplit_once("sha256 ")
            .map(|pair| pair.1.trim_end_matches(')'));
        let (&[hidden, total], Some(digest)) = (&numbers[..], digest) else {
            return Err(format!("hole {line}"));
        };
        if self.hole.is_some() {
            return Err("two holes in a dump".to_owned());
        }
        self.hole = Some(Hole {
            hidden,
            total,
            digest: digest.to_owned(),
            tail: Vec::new(),
        });
        Ok(())
    }

    /// The bytes, if none are hidden.
    pub(super) fn whole(&self) -> Result<&[u8], String> {
        match self.hole {
            None => Ok(&self.head),
            Some(_) => Err("bytes are hidden that are no payload".to_owned()),
        }
    }

    /// The bytes as payload; hidden ones must be regenerable, agree with what is shown and have
    /// the printed digest.
    pub(super) fn payload(&self) -> Result<Payload, String> {
        let Some(hole) = &self.hole else {
            return Ok(Payload::compact(&self.head));
        };
        if self.head.len() + hole.hidden + hole.tail.len() != hole.total {
            return Err("shown and hidden bytes do not add up".to_owned());
        }
        let pattern = Pattern::of(&self.head).ok_or("hidden payload follows no pattern")?;
        let bytes = pattern.bytes(hole.total);
        if !bytes.ends_with(&hole.tail) {
            return Err("the end of the payload does not follow its pattern".to_owned());
        }
        let payload = Payload::compact(&bytes);
        if !payload.text().ends_with(&format!(":{}", hole.digest)) {
            return Err(format!(
                "digest {} differs from {}",
                hole.digest,
                payload.text()
            ));
        }
        Ok(payload)
    }
}

fn field(line: &str) -> Result<RawField<'_>, String> {
    let bad = || format!("field {line}");
    let (place, rest) = line.trim_start().split_once("] ").ok_or_else(bad)?;
    let (offset, len) = place
        .strip_prefix('[')
        .and_then(|p| p.split_once(" +"))
        .ok_or_else(bad)?;
    let rest = rest.trim_start();
    let (name, note) = match rest.strip_prefix("inline ULP data") {
        Some(note) => ("inline ULP data", note),
        None => rest.split_once(' ').unwrap_or((rest, "")),
    };
    let note = note.trim();
    let marked = note.strip_prefix("(uninit)");
    Ok(RawField {
        offset: usize::from_str_radix(offset, 16).map_err(|_| bad())?,
        len: len.trim().parse().map_err(|_| bad())?,
        name,
        uninit: marked.is_some(),
        note: marked.unwrap_or(note).trim(),
    })
}

fn is_record(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let number = words
        .next()
        .is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit()));
    number && words.next().is_some_and(|word| word.starts_with("t="))
}

fn is_dump(line: &str) -> bool {
    line.strip_prefix("    ").is_some_and(|rest| {
        rest.len() > 8
            && rest.as_bytes()[..6].iter().all(u8::is_ascii_hexdigit)
            && rest[6..].starts_with("  ")
    })
}

impl<'a> Raw<'a> {
    fn last(&mut self) -> &mut Part<'a> {
        if self.parts.is_empty() {
            self.parts.push(Part::default());
        }
        self.parts.last_mut().expect("at least one part")
    }

    /// A line that belongs to the record.
    fn more(&mut self, line: &'a str) -> Result<(), String> {
        let text = line.trim_start();
        if let Some(rest) = text.strip_prefix("private data: ") {
            let digits = rest
                .strip_suffix(" zero bytes")
                .ok_or("private data is not zero")?;
            self.zeros = Some(digits.parse().map_err(|_| format!("length {digits}"))?);
        } else if text.starts_with('[') {
            let field = field(line)?;
            self.last().fields.push(field);
        } else if text.starts_with("-- data socket") || text.starts_with("bulk data") {
            self.parts.push(Part {
                title: text,
                ..Part::default()
            });
        } else if text.starts_with("-- hex") {
            self.last().title = text;
        } else if text.starts_with("......") {
            self.last().dump.elide(text)?;
        } else if is_dump(line) {
            self.last().dump.line(line)?;
        } else {
            return Err(format!("unknown line {line}"));
        }
        Ok(())
    }
}

/// Sorts the lines of a recording.
pub(super) fn scan(text: &str) -> Result<Scanned<'_>, String> {
    let mut scanned = Scanned::default();
    let mut program = None;
    for (number, line) in text.lines().enumerate() {
        let at = |what| format!("line {}: {what}", number + 1);
        if let Some(title) = line.strip_prefix("######## ") {
            program = Some(match title.split(' ').next() {
                Some("client") => Program::Client,
                Some("server") => Program::Server,
                Some("server2") => Program::Second,
                _ => return Err(at(format!("output of {title}"))),
            });
        } else if let Some(program) = program {
            scanned.log.push((number + 1, program, line));
        } else if let Some(comment) = line.strip_prefix("# ") {
            scanned.comments.push(comment);
        } else if is_record(line) {
            let parts = Vec::new();
            scanned.records.push(Raw {
                line: number + 1,
                text: line,
                zeros: None,
                parts,
            });
        } else if !line.is_empty() {
            let raw = scanned
                .records
                .last_mut()
                .ok_or_else(|| at("line before any record".to_owned()))?;
            raw.more(line).map_err(at)?;
        }
    }
    Ok(scanned)
}
