//! Whether what is printed beside a field is what its bytes say.

use super::scan::RawField;
use crate::golden::bytes::hex;
use crate::golden::model::Kind;

/// Names of session header flags.
const SESSION_FLAGS: [(u64, &str); 8] = [
    (0x1, "REQUEST_READ_RECEIPT"),
    (0x2, "PEER_WRITE_RSP"),
    (0x4, "PEER_READ_REQ"),
    (0x8, "IMM_SEND_COMP"),
    (0x10, "LAST_IN_BATCH"),
    (0x400, "EX_IMM_READ_RECEIPT"),
    (0x800, "EX_RECEIPT_FIRST"),
    (0x1000, "EX_RECEIPT_LAST"),
];

/// Names of single values, by the end of the field's name.
const VALUES: [(&str, u64, &str); 13] = [
    ("tlv.magic", 0x5849_4f50, "XIOP"),
    ("ib_op", 2, "SEND"),
    ("ib_op", 3, "RDMA_WRITE"),
    ("ib_op", 4, "RDMA_READ"),
    ("tcp_op", 2, "SEND"),
    ("tcp_op", 3, "WRITE"),
    ("tcp_op", 4, "READ"),
    ("setup.action", 1, "ACCEPT"),
    ("setup.action", 2, "REDIRECT"),
    ("setup.action", 3, "REJECT"),
    ("setup.reject_reason", 0x4a5e_3a5e, "XIO_E_SESSION_REFUSED"),
    ("req.flags", 2, "PEER_WRITE_RSP"),
    ("req.flags", 0x10, "LAST_IN_BATCH"),
];

fn words_for(name: &str, number: u64) -> String {
    if name == "tlv.type" {
        let kind = Kind::ALL.into_iter().find(|row| u64::from(row.2) == number);
        return kind.map_or_else(String::new, |row| row.1.to_owned());
    }
    if name.ends_with(".flags") && number == 0 {
        return "0".to_owned();
    }
    if name == "ses.flags" {
        let set = SESSION_FLAGS.iter().filter(|(bit, _)| number & bit != 0);
        return set.map(|(_, word)| *word).collect::<Vec<&str>>().join("|");
    }
    let row = VALUES
        .iter()
        .find(|row| name.ends_with(row.0) && row.1 == number);
    row.map_or_else(String::new, |row| row.2.to_owned())
}

/// The way the recorder prints bytes as text.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("b'");
    for &byte in bytes {
        match byte {
            b'\\' | b'\'' => text.extend(['\\', char::from(byte)]),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push('\'');
    text
}

/// Longest run of bytes the recorder prints as text.
const LITERAL: usize = 64;

/// Longest run of bytes the recorder prints as digits.
const DIGITS: usize = 24;

/// Compares a number's annotation with its bytes.
pub(super) fn number(raw: &RawField<'_>, value: &[u8]) -> Result<(), String> {
    let number = value
        .iter()
        .fold(0, |number: u64, &byte| number << 8 | u64::from(byte));
    let (printed, note) = raw.note.split_once(' ').unwrap_or((raw.note, ""));
    let mut words: Vec<&str> = note.split_whitespace().collect();
    let same = if let Some(digits) = words.first().and_then(|word| word.strip_prefix("0x")) {
        u64::from_str_radix(digits, 16) == Ok(number)
    } else if let Some(Ok(decimal)) = words.first().map(|word| word.parse::<u64>()) {
        decimal == number
    } else {
        // A symbol alone: it is compared below.
        words.insert(0, "");
        true
    };
    let want = words_for(raw.name, number);
    let symbol = words.get(1).copied().unwrap_or_default();
    if printed != hex(value) || !same || words.len() > 2 {
        return Err(format!(
            "{} is printed as {} but is {number:#x}",
            raw.name, raw.note
        ));
    }
    if symbol != want && !(symbol.is_empty() && want == "0") {
        return Err(format!(
            "{} is called {symbol:?} and should be {want:?}",
            raw.name
        ));
    }
    Ok(())
}

/// Compares the annotation of a run of bytes with them; it may be missing or cut short.
pub(super) fn bytes(raw: &RawField<'_>, value: &[u8]) -> Result<(), String> {
    if raw.note.is_empty() {
        return Ok(());
    }
    let digits = match value.split_at_checked(DIGITS) {
        Some((head, rest)) if !rest.is_empty() => format!("{}..", hex(head)),
        _ => hex(value),
    };
    let shown = &value[..value.len().min(LITERAL)];
    let want = format!("{} bytes {}", value.len(), literal(shown));
    let (printed, text) = raw.note.split_once(' ').unwrap_or((raw.note, ""));
    if printed != digits || text.trim_start() != want {
        return Err(format!(
            "{} is printed as {}, not {digits} {want}",
            raw.name, raw.note
        ));
    }
    Ok(())
}
