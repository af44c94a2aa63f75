//! The list of all differences between this side and the recorded peers that are meant to be.

use std::collections::BTreeSet;
use std::fs;

use super::compare::Difference;
use crate::golden::folder;

/// One difference in one frame of one recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deviation {
    /// The recording.
    pub transcript: String,
    /// Number of the record, and the frame's kind.
    pub frame: String,
    /// What differs.
    pub difference: Difference,
}

impl Deviation {
    /// The line of the list, without a reason.
    #[must_use]
    pub fn line(&self) -> String {
        let Difference {
            field,
            recorded,
            ours,
        } = &self.difference;
        format!(
            "{} | {} | {field} | {recorded} | {ours} | ",
            self.transcript, self.frame
        )
    }
}

/// Reads the list: a line each of transcript, frame, field, recorded, ours, reason, with ` | `
/// between. Returns each line with its reason.
///
/// # Errors
///
/// A malformed line, one without a reason, or one that comes twice.
pub fn parse(text: &str) -> Result<Vec<(Deviation, String)>, String> {
    let mut list = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = |what: &str| format!("line {}: {what}", number + 1);
        let columns: Vec<&str> = line.split(" | ").collect();
        let [transcript, frame, field, recorded, ours, reason] = columns[..] else {
            return Err(at("want six columns"));
        };
        if columns.iter().any(|column| column.trim().is_empty()) {
            return Err(at("an empty column"));
        }
        let difference = Difference {
            field: field.to_owned(),
            recorded: recorded.to_owned(),
            ours: ours.to_owned(),
        };
        let deviation = Deviation {
            transcript: transcript.to_owned(),
            frame: frame.to_owned(),
            difference,
        };
        if !seen.insert(deviation.clone()) {
            return Err(at("comes twice"));
        }
        list.push((deviation, reason.to_owned()));
    }
    Ok(list)
}

/// Compares what was seen with what is listed.
///
/// # Errors
///
/// The lines that are not listed, and those that are listed and do not occur.
pub fn check(seen: &BTreeSet<Deviation>, listed: &BTreeSet<Deviation>) -> Result<(), String> {
    if seen == listed {
        return Ok(());
    }
    let lines = |some: Vec<&Deviation>| -> String {
        let mut text = String::new();
        for one in some {
            text.push_str(&one.line());
            text.push('\n');
        }
        text
    };
    let unlisted = lines(seen.difference(listed).collect());
    let gone = lines(listed.difference(seen).collect());
    Err(format!(
        "not listed:\n{unlisted}\nlisted, but does not occur:\n{gone}"
    ))
}

/// The list of this package.
///
/// # Errors
///
/// The file is missing or malformed.
pub fn load() -> Result<Vec<(Deviation, String)>, String> {
    let path = folder().join("deviations.txt");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|what| format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_damage_is_refused() {
        let line = "a | 3 FIN_REQ | tlv.len | 00 | - | because";
        let list = parse(&format!("# why\n\n{line}\n")).unwrap();
        assert_eq!(format!("{}{}", list[0].0.line(), list[0].1), line);
        let one: BTreeSet<Deviation> = list.into_iter().map(|(one, _)| one).collect();
        assert_eq!(check(&one, &one), Ok(()));
        assert!(check(&one, &BTreeSet::new()).is_err_and(|what| what.contains("tlv.len")));
        assert!(check(&BTreeSet::new(), &one).is_err_and(|what| what.contains("tlv.len")));
        for bad in ["a | b", "a | b | c | d | e | ", &format!("{line}\n{line}")] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
