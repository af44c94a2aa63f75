//! The annotated fields of a frame, as sections that the layouts know.

use super::annotation;
use super::scan::{Part, Raw, RawField};
use crate::golden::layout::Layouts;
use crate::golden::model::{Body, Carrier, Field, Frame, Kind, Place, Section, Side};
use crate::golden::payload::Payload;

/// Builds a frame from its record.
pub(super) fn frame(
    raw: &Raw<'_>,
    side: Side,
    kind: &str,
    carrier: Carrier,
    layouts: &Layouts,
) -> Result<Frame, String> {
    let kind = Kind::named(kind).ok_or_else(|| format!("unknown frame {kind}"))?;
    let mut frame = Frame {
        side,
        kind,
        carrier,
        sections: Vec::new(),
    };
    for part in &raw.parts {
        let place = place(part)?;
        if part.fields.is_empty() {
            let body = Body::Bytes(part.dump.payload()?);
            frame.sections.push(Section {
                place,
                name: "data".to_owned(),
                body,
            });
        } else {
            sections(&mut frame, part, place)?;
        }
    }
    for section in &mut frame.sections {
        match_layout(section, layouts)?;
    }
    if frame.number("tlv", "type") != Some(u64::from(kind.wire())) {
        return Err("type in the header differs from the frame's name".to_owned());
    }
    Ok(frame)
}

fn place(part: &Part<'_>) -> Result<Place, String> {
    let title = part.title;
    if title.starts_with("-- hex") {
        Ok(Place::Main)
    } else if title == "-- data socket bytes (ULP data):" && part.fields.is_empty()
        || title == "-- data socket bytes (ULP header of a control message):"
            && !part.fields.is_empty()
    {
        Ok(Place::Data)
    } else if title.starts_with("bulk data of ") && part.fields.is_empty() {
        let len = part.dump.payload()?.len();
        let want = format!(
            "bulk data of {len} bytes follows the TLV on the same stream (not counted in tlv.len)"
        );
        if title == want {
            Ok(Place::Bulk)
        } else {
            Err(format!("{title} differs from {want}"))
        }
    } else {
        Err(format!("unknown dump {title}"))
    }
}

/// Adds the sections of one part.
fn sections(frame: &mut Frame, part: &Part<'_>, place: Place) -> Result<(), String> {
    let bytes = part.dump.whole()?;
    let first = frame.sections.len();
    let mut at = 0;
    for raw in &part.fields {
        let end = raw.offset + raw.len;
        let value = bytes
            .get(raw.offset..end)
            .ok_or_else(|| format!("{} is cut off", raw.name))?;
        if raw.offset != at {
            return Err(format!(
                "{} begins at {:x}, not {at:x}",
                raw.name, raw.offset
            ));
        }
        at = end;
        if let Some(name) = run_name(raw.name) {
            annotation::bytes(raw, value)?;
            let payload = match name {
                "data" => Payload::compact(value),
                _ => Payload::Raw(value.to_vec()),
            };
            let body = Body::Bytes(payload);
            frame.sections.push(Section {
                place,
                name: name.to_owned(),
                body,
            });
        } else {
            annotation::number(raw, value)?;
            add_field(frame, first, raw, value, place)?;
        }
    }
    unannotated(frame, &bytes[at..], place)
}

/// The sections without named fields.
fn run_name(name: &str) -> Option<&'static str> {
    match name {
        "setup.uri" => Some("uri"),
        "setup.private_data" => Some("private_data"),
        "ulp_hdr" => Some("ulp_hdr"),
        "ulp_pad" => Some("ulp_pad"),
        "inline ULP data" => Some("data"),
        _ if name.starts_with("portal[") && name.ends_with(']') => Some("portal_uri"),
        _ => None,
    }
}

/// On sockets the recorder does not annotate padding, nor inline data of a single stream.
fn unannotated(frame: &mut Frame, mut rest: &[u8], place: Place) -> Result<(), String> {
    let number = |frame: &Frame, field| {
        let name = if frame.section("req").is_some() {
            "req"
        } else {
            "rsp"
        };
        frame.number(name, field).unwrap_or_default() as usize
    };
    let socket = matches!(frame.carrier, Carrier::Socket { .. });
    if place != Place::Main || !socket || frame.section("ulp_pad").is_some() {
        return if rest.is_empty() {
            Ok(())
        } else {
            Err("bytes without a name".to_owned())
        };
    }
    for (name, field) in [("ulp_pad", "ulp_pad_len"), ("data", "ulp_imm_len")] {
        let len = number(frame, field);
        if len == 0 || rest.is_empty() {
            continue;
        }
        let (value, tail) = rest
            .split_at_checked(len)
            .ok_or_else(|| format!("{name} is cut off"))?;
        let body = Body::Bytes(Payload::compact(value));
        frame.sections.push(Section {
            place,
            name: name.to_owned(),
            body,
        });
        rest = tail;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err("bytes without a name".to_owned())
    }
}

/// Adds a field to the section under construction, or begins a new one.
fn add_field(
    frame: &mut Frame,
    first: usize,
    raw: &RawField<'_>,
    value: &[u8],
    place: Place,
) -> Result<(), String> {
    let (section, name) = match raw.name.split_once('.') {
        Some(("rsp", list)) if list.starts_with("out_len[") => (list, "len"),
        Some(pair) => pair,
        None => return Err(format!("field {} without a section", raw.name)),
    };
    let name = match name {
        "in_ib_op" | "in_tcp_op" => "in_op",
        "out_ib_op" | "out_tcp_op" => "out_op",
        "stag/rkey" => "rkey",
        name => name,
    };
    let field = Field {
        name: name.to_owned(),
        value: value.to_vec(),
        uninit: raw.uninit,
    };
    let open = frame.sections[first..]
        .last_mut()
        .filter(|last| last.name == section);
    match open.map(|last| &mut last.body) {
        Some(Body::Fields(fields)) => fields.push(field),
        _ => {
            let body = Body::Fields(vec![field]);
            frame.sections.push(Section {
                place,
                name: section.to_owned(),
                body,
            });
        }
    }
    Ok(())
}

/// The names of the layouts that a section of the recording may have.
fn layouts_of(section: &str) -> &'static [&'static str] {
    match section {
        "nexus" => &["nexus_req", "nexus_rsp"],
        "setup" => &[
            "rdma_setup",
            "tcp_setup",
            "setup_req",
            "accept",
            "redirect",
            "reject",
        ],
        "req" => &["rdma_req", "tcp_req"],
        "rsp" => &["rdma_rsp", "tcp_rsp"],
        "tlv" => &["tlv"],
        "ses" => &["ses"],
        "nop" => &["nop"],
        "cancel" => &["cancel"],
        "session_cancel" => &["session_cancel"],
        _ if section.starts_with("in_sge[") => &["in_sge"],
        _ if section.starts_with("out_sge[") => &["out_sge"],
        _ if section.starts_with("out_len[") => &["out_len"],
        _ if section.starts_with("portal[") => &["portal"],
        _ => &[],
    }
}

/// Gives a section the name of the one layout with exactly its fields.
fn match_layout(section: &mut Section, layouts: &Layouts) -> Result<(), String> {
    let Body::Fields(fields) = &section.body else {
        return Ok(());
    };
    let same = layouts_of(&section.name)
        .iter()
        .filter_map(|name| layouts.get(name))
        .find(|layout| {
            let defs = layout
                .fields
                .iter()
                .map(|def| (&def.name, def.width, def.uninit));
            defs.eq(fields
                .iter()
                .map(|field| (&field.name, field.value.len(), field.uninit)))
        });
    let layout =
        same.ok_or_else(|| format!("section {} has no layout: {fields:?}", section.name))?;
    section.name.clone_from(&layout.name);
    Ok(())
}
