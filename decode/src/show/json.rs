//! Items for programs.

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};

use super::{Node, Shown, Value};
use crate::report::{Item, What};

/// An item as one JSON object, without a line end.
///
/// Every object has `n`, `time` (seconds), `packet`, `stream`, `dir` and `at` (bytes of the stream
/// before it). A frame has `type`, `len` and its parts by name; a defect is `error` and `offset` in
/// the frame. Bytes that are no frame have `error`, `offset` in the stream, and `skipped`. Numbers
/// that have a name are that name, flags a list of names, addresses and keys text.
#[must_use]
pub fn json(item: &Item) -> String {
    // Nothing in an item can fail to be written to a string.
    serde_json::to_string(&Object(item)).unwrap_or_default()
}

struct Object<'a>(&'a Item);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let item = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("n", &item.n)?;
        map.serialize_entry("time", &seconds(item.stamp.nanos))?;
        map.serialize_entry("stream", &item.stream)?;
        map.serialize_entry("dir", item.dir.name())?;
        match &item.what {
            What::Frame(frame) => {
                map.serialize_entry("type", frame.kind)?;
                map.serialize_entry("len", &frame.len)?;
                map.serialize_entry("packet", &item.stamp.packet)?;
                map.serialize_entry("at", &item.at)?;
                if let Some(trouble) = &frame.trouble {
                    map.serialize_entry("error", &trouble.text)?;
                    map.serialize_entry("offset", &trouble.offset)?;
                }
                for node in &frame.tree {
                    map.serialize_entry(&node.name, &Of(&node.value))?;
                }
            }
            What::Lost(lost) => {
                map.serialize_entry("packet", &item.stamp.packet)?;
                map.serialize_entry("at", &item.at)?;
                map.serialize_entry("error", &lost.why)?;
                map.serialize_entry("offset", &item.at)?;
                map.serialize_entry("skipped", &lost.bytes)?;
            }
        }
        map.end()
    }
}

/// Seconds, to the microsecond: as exact as a double can be for times of this century.
#[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit")]
fn seconds(nanos: u64) -> f64 {
    (nanos / 1000) as f64 / 1e6
}

struct Of<'a>(&'a Value);

impl Serialize for Of<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(value) => serializer.serialize_u64(*value),
            Value::Hex(value, digits) => {
                serializer.collect_str(&format_args!("0x{value:0digits$x}"))
            }
            Value::Named(_, name) => serializer.serialize_str(name),
            Value::Flags(_, names, rest) => {
                let mut seq = serializer.serialize_seq(None)?;
                for name in names {
                    seq.serialize_element(name)?;
                }
                if *rest != 0 {
                    seq.serialize_element(&format!("{rest:#x}"))?;
                }
                seq.end()
            }
            Value::None => serializer.serialize_none(),
            Value::Text(shown) | Value::Bytes(shown) => {
                let is_text = matches!(self.0, Value::Text(_));
                bytes(shown, is_text, serializer)
            }
            Value::Group(parts) => group(parts, serializer),
            Value::List(parts) => serializer.collect_seq(parts.iter().map(|part| Of(&part.value))),
        }
    }
}

fn group<S: Serializer>(parts: &[Node], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(parts.iter().map(|part| (&part.name, Of(&part.value))))
}

fn bytes<S: Serializer>(shown: &Shown, is_text: bool, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("len", &shown.len)?;
    match shown.as_text() {
        Some(text) if is_text => map.serialize_entry("text", text)?,
        _ => map.serialize_entry("hex", &shown.hex())?,
    }
    if shown.more() > 0 {
        map.serialize_entry("more", &shown.more())?;
    }
    if shown.missing > 0 {
        map.serialize_entry("missing", &shown.missing)?;
    }
    map.end()
}
