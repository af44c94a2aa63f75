//! Made frames and parts of frames.

use super::layout::Layouts;
use super::model::{Dialect, Section};
use super::read::section;

/// A made frame or part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Its name.
    pub id: String,
    /// The dialect, unless it is the same in both.
    pub dialect: Option<Dialect>,
    /// Its bytes, part by part.
    pub sections: Vec<Section>,
    /// What some of its fields mean, as numbers by full name.
    pub expect: Vec<(String, u64)>,
}

/// Reads the examples' file: `example <id> <dialect>`, sections, `expect <path>=<number>...`.
pub(super) fn parse_examples(text: &str, layouts: &Layouts) -> Result<Vec<Example>, String> {
    let mut examples: Vec<Example> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = |what: String| format!("line {}: {what}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(head) = line.strip_prefix("example ") {
            let (id, dialect) = head
                .split_once(' ')
                .ok_or_else(|| at("no dialect".to_owned()))?;
            let dialect = match dialect {
                "rdma" => Some(Dialect::Rdma),
                "tcp" => Some(Dialect::Tcp),
                "any" => None,
                _ => return Err(at(format!("dialect {dialect}"))),
            };
            let (sections, expect) = (Vec::new(), Vec::new());
            examples.push(Example {
                id: id.to_owned(),
                dialect,
                sections,
                expect,
            });
            continue;
        }
        let example = examples
            .last_mut()
            .ok_or_else(|| at("line before an example".to_owned()))?;
        if let Some(facts) = line.strip_prefix("  expect ") {
            let facts = facts
                .split(' ')
                .map(fact)
                .collect::<Result<Vec<_>, String>>();
            example.expect.extend(facts.map_err(at)?);
        } else {
            example.sections.push(section(line, layouts).map_err(at)?);
        }
    }
    Ok(examples)
}

fn fact(word: &str) -> Result<(String, u64), String> {
    let (path, text) = word
        .split_once('=')
        .ok_or_else(|| format!("{word}: want path=number"))?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Ok((
        path.to_owned(),
        number.map_err(|_| format!("number in {word}"))?,
    ))
}
