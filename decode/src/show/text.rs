//! Items for people.

use std::fmt::Write as _;

use super::{Node, Shown, Value};
use crate::report::{Item, What};

/// An item as lines of text, the last one ended too.
///
/// The first line says what it is; the others are its parts with their offsets in the frame.
#[must_use]
pub fn text(item: &Item) -> String {
    let mut out = String::new();
    let (seconds, micros) = (
        item.stamp.nanos / 1_000_000_000,
        item.stamp.nanos % 1_000_000_000 / 1000,
    );
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "#{} {seconds}.{micros:06} stream {} {}",
        item.n,
        item.stream,
        item.dir.name()
    );
    match &item.what {
        What::Frame(frame) => {
            let _ = writeln!(out, " {}, {} bytes", frame.kind, frame.len);
            for node in &frame.tree {
                show(node, 0, &mut out);
            }
            if let Some(trouble) = &frame.trouble {
                let _ = writeln!(out, "  !!! at byte {}: {}", trouble.offset, trouble.text);
            }
        }
        What::Lost(lost) => {
            let _ = writeln!(
                out,
                " skipped {} bytes from byte {} of the stream: {}",
                lost.bytes, item.at, lost.why
            );
        }
    }
    out
}

fn show(node: &Node, depth: usize, out: &mut String) {
    let indent = 2 * depth;
    let width = 16_usize.saturating_sub(indent);
    let name = &node.name;
    let value = match &node.value {
        Value::Group(parts) | Value::List(parts) => {
            let _ = writeln!(out, "  {:>5}  {:indent$}{name}", node.at, "");
            for part in parts {
                show(part, depth + 1, out);
            }
            return;
        }
        Value::Number(value) => value.to_string(),
        Value::Hex(value, digits) => format!("0x{value:0digits$x}"),
        Value::Named(value, name) if *value > 0xffff => format!("{name} ({value:#x})"),
        Value::Named(value, name) => format!("{name} ({value})"),
        Value::Flags(value, names, rest) => flags(*value, names, *rest),
        Value::None => "none".to_owned(),
        Value::Text(shown) => {
            let text = shown.as_text().map(|text| format!("{text:?}"));
            bytes(shown, text.unwrap_or_else(|| shown.hex()))
        }
        Value::Bytes(shown) => bytes(shown, shown.hex()),
    };
    let _ = writeln!(out, "  {:>5}  {:indent$}{name:width$} {value}", node.at, "");
}

fn flags(value: u64, names: &[&str], rest: u64) -> String {
    let mut words: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    if rest != 0 {
        words.push(format!("{rest:#x}"));
    }
    if words.is_empty() {
        return "0".to_owned();
    }
    format!("{value:#x} = {}", words.join(" | "))
}

fn bytes(shown: &Shown, first: String) -> String {
    if shown.missing == shown.len && shown.len > 0 {
        return format!("{} bytes, not in the capture", shown.len);
    }
    let more = if shown.more() > 0 { ".." } else { "" };
    format!("{} bytes: {first}{more}", shown.len)
}
