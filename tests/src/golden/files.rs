//! The vector files of this package.

use std::fs;
use std::path::PathBuf;

use super::examples::{Example, parse_examples};
use super::layout::Layouts;
use super::model::Transcript;

/// Every recorded conversation.
pub const NAMES: [&str; 29] = [
    "rdma-1m",
    "rdma-align",
    "rdma-basic",
    "rdma-burst",
    "rdma-cancel",
    "rdma-credit-nop",
    "rdma-direct",
    "rdma-flags",
    "rdma-flowctl",
    "rdma-keepalive",
    "rdma-large",
    "rdma-nomr",
    "rdma-oneway",
    "rdma-redirect",
    "rdma-reject",
    "rdma-server-disconnect",
    "tcp-align",
    "tcp-basic",
    "tcp-burst",
    "tcp-cancel",
    "tcp-flags",
    "tcp-flowctl",
    "tcp-keepalive",
    "tcp-large",
    "tcp-oneway",
    "tcp-redirect",
    "tcp-reject",
    "tcp-server-disconnect",
    "tcp-single",
];

/// Where the files are: in this package, or where `XIO_GOLDEN` says.
#[must_use]
pub fn folder() -> PathBuf {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    std::env::var_os("XIO_GOLDEN").map_or_else(here, PathBuf::from)
}

fn text(name: &str) -> Result<String, String> {
    let path = folder().join(format!("{name}.vec"));
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The layouts of all sections.
///
/// # Errors
///
/// The file is missing or malformed.
pub fn layouts() -> Result<Layouts, String> {
    Layouts::parse(&text("layouts")?)
}

/// One recorded conversation.
///
/// # Errors
///
/// The file is missing or malformed; the text names it and the line.
pub fn load(name: &str) -> Result<Transcript, String> {
    Transcript::parse(&text(name)?, &layouts()?).map_err(|what| format!("{name}: {what}"))
}

/// Every recorded conversation, in the order of [`NAMES`].
///
/// # Errors
///
/// As [`load`].
pub fn load_all() -> Result<Vec<Transcript>, String> {
    NAMES.into_iter().map(load).collect()
}

/// The made frames that show every layout.
///
/// # Errors
///
/// The file is missing or malformed; the text names the line.
pub fn examples() -> Result<Vec<Example>, String> {
    parse_examples(&text("examples")?, &layouts()?).map_err(|what| format!("examples: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{Body, Event, Payload, digest, named};

    #[test]
    fn names_are_the_files() {
        let mut seen: Vec<String> = fs::read_dir(folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".vec"))
            .collect();
        seen.sort();
        let mut want: Vec<String> = NAMES.iter().map(|name| format!("{name}.vec")).collect();
        want.extend(["examples.vec", "layouts.vec"].map(str::to_owned));
        want.sort();
        assert_eq!(seen, want);
    }

    #[test]
    fn every_file_comes_back_byte_for_byte() {
        for name in NAMES {
            let transcript = load(name).unwrap();
            assert_eq!(transcript.name, name);
            assert!(!transcript.records.is_empty());
            assert!(
                transcript.text() == text(name).unwrap(),
                "{name}.vec is not in written form"
            );
        }
        let comments = text("layouts")
            .unwrap()
            .lines()
            .filter(|l| l.starts_with('#'))
            .count();
        let lines: Vec<String> = text("layouts")
            .unwrap()
            .lines()
            .skip(comments)
            .map(str::to_owned)
            .collect();
        assert_eq!(
            layouts().unwrap().text().lines().collect::<Vec<&str>>(),
            lines
        );
    }

    /// Every payload of the recordings with the recording's name.
    fn payloads() -> Vec<(String, Payload)> {
        let mut all = Vec::new();
        for transcript in load_all().unwrap() {
            let name = &transcript.name;
            for record in &transcript.records {
                match &record.event {
                    Event::ReadDone { payload, .. } | Event::Write { payload, .. } => {
                        all.push((name.clone(), payload.clone()));
                    }
                    Event::Frame(frame) => {
                        for section in frame.sections.iter().filter(|s| s.name == "data") {
                            if let Body::Bytes(payload) = &section.body {
                                all.push((name.clone(), payload.clone()));
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        all
    }

    #[test]
    fn regenerated_payload_has_the_recorded_digest() {
        let mut checked = 0;
        let mut done: Vec<Payload> = Vec::new();
        for (name, payload) in payloads() {
            if let Payload::Regenerated {
                digest: recorded, ..
            } = &payload
            {
                checked += 1;
                if done.contains(&payload) {
                    continue;
                }
                assert_eq!(
                    digest(&payload.bytes()),
                    *recorded,
                    "{name}: {}",
                    payload.text()
                );
                done.push(payload);
            }
        }
        assert_eq!(
            (checked, done.len()),
            (25, 10),
            "payloads, and different ones"
        );
    }

    #[test]
    fn short_payload_follows_a_pattern_too() {
        let irregular: Vec<(String, String)> = payloads()
            .into_iter()
            .filter(|(_, payload)| crate::golden::Pattern::of(&payload.bytes()).is_none())
            .map(|(name, payload)| (name, payload.text()))
            .collect();
        assert_eq!(irregular, []);
    }

    #[test]
    fn every_layout_is_shown_by_a_vector() {
        let mut seen: Vec<String> = Vec::new();
        for transcript in load_all().unwrap() {
            for record in &transcript.records {
                match &record.event {
                    Event::Frame(f) => seen.extend(f.sections.iter().map(|s| s.name.clone())),
                    Event::Hello { message, .. } => seen.push(message.name.clone()),
                    _ => {}
                }
            }
        }
        let in_examples = examples().unwrap();
        for layout in layouts().unwrap().iter() {
            let name = &layout.name;
            let made = in_examples
                .iter()
                .any(|e| e.sections.iter().any(|s| s.name == *name));
            assert!(made, "no example of {name}");
            let recorded = seen.contains(name);
            let never = ["read_ack", "rkey_pair"].contains(&name.as_str());
            assert!(recorded != never, "{name}: recorded {recorded}");
        }
    }

    #[test]
    fn examples_are_what_is_said_of_them() {
        let examples = examples().unwrap();
        assert_eq!(examples.len(), 54);
        for (i, example) in examples.iter().enumerate() {
            let id = &example.id;
            assert!(
                examples[..i].iter().all(|other| other.id != *id),
                "{id} twice"
            );
            assert!(!example.expect.is_empty(), "{id} expects nothing");
            let fields = named(&example.sections);
            for (path, want) in &example.expect {
                let seen = fields.iter().find(|named| named.path == *path);
                let field = seen.and_then(|named| named.field);
                let number = field
                    .unwrap_or_else(|| panic!("{id} has no {path}"))
                    .number();
                assert_eq!(number, *want, "{id} {path}");
            }
        }
    }
}
