//! A frame of ours beside the recorded one, field by field.

use crate::golden::{Frame, Kind, Named, Payload, hex, named, quote};

/// One field in which two frames differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The field's full name, a section's name, or `frame`.
    pub field: String,
    /// The recorded value, `-` if there is none.
    pub recorded: String,
    /// Our value, `-` if there is none.
    pub ours: String,
}

/// What is asked of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The same bytes.
    Same,
    /// Anything: ids that this side chooses, credits, acknowledgements.
    Free,
    /// An address or key of this side: zero exactly where it was recorded as zero.
    Presence,
    /// The recorded sender does not initialise it: zero.
    Zero,
}

/// What is asked of a field of a frame of this kind.
#[must_use]
pub fn rule(kind: Kind, field: &Named<'_>) -> Rule {
    let path = field.path.as_str();
    let (section, name) = path.split_once('.').unwrap_or((path, ""));
    let list = section.starts_with("in_sge[") || section.starts_with("out_sge[");
    let fin = matches!(kind, Kind::FinReq | Kind::FinRsp);
    if field.field.is_some_and(|field| field.uninit) || (fin && path == "ses.serial_num") {
        return Rule::Zero;
    }
    match (section, name) {
        (_, "addr" | "rkey") if list => Rule::Presence,
        (_, "ltid" | "ack_sn" | "credits") | ("nexus_rsp", "cid") => Rule::Free,
        ("setup_req" | "accept" | "redirect" | "reject", "session_id") => Rule::Free,
        _ => Rule::Same,
    }
}

/// A value as the list of deviations writes it.
fn show(path: &str, value: &[u8]) -> String {
    match path.split('[').next().unwrap_or(path) {
        "uri" | "private_data" | "portal_uri" | "ulp_hdr" => quote(value),
        "data" => Payload::compact(value).text(),
        _ => hex(value),
    }
}

fn agree(rule: Rule, recorded: &[u8], ours: &[u8]) -> bool {
    let zero = |value: &[u8]| value.iter().all(|byte| *byte == 0);
    match rule {
        Rule::Same => recorded == ours,
        Rule::Free => recorded.len() == ours.len(),
        Rule::Presence => zero(recorded) == zero(ours),
        Rule::Zero => recorded.len() == ours.len() && zero(ours),
    }
}

/// Every field in which a frame of ours differs from the recorded one and should not.
#[must_use]
pub fn compare(recorded: &Frame, ours: &Frame) -> Vec<Difference> {
    let mut differences = Vec::new();
    let theirs = named(&recorded.sections);
    let mut left = named(&ours.sections);
    for field in &theirs {
        let same = |n: &Named<'_>| n.path == field.path && n.place == field.place;
        let found = left.iter().position(same).map(|at| left.remove(at));
        let good = found
            .as_ref()
            .is_some_and(|n| agree(rule(recorded.kind, field), &field.value, &n.value));
        if !good {
            differences.push(Difference {
                field: field.path.clone(),
                recorded: show(&field.path, &field.value),
                ours: found.map_or_else(|| "-".to_owned(), |n| show(&n.path, &n.value)),
            });
        }
    }
    for extra in left {
        differences.push(Difference {
            recorded: "-".to_owned(),
            ours: show(&extra.path, &extra.value),
            field: extra.path,
        });
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{Body, load_all};

    #[test]
    fn a_frame_agrees_with_itself_once_it_has_no_undefined_bytes() {
        for transcript in load_all().unwrap() {
            for (_, frame) in transcript.frames() {
                let mut clean = frame.clone();
                for section in &mut clean.sections {
                    let fin = matches!(frame.kind, Kind::FinReq | Kind::FinRsp);
                    if let Body::Fields(fields) = &mut section.body {
                        for field in fields {
                            if field.uninit || (fin && field.name == "serial_num") {
                                field.value.fill(0);
                            }
                        }
                    }
                }
                assert_eq!(compare(frame, &clean), []);
            }
        }
    }
}
