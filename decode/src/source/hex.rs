//! Hex text: plain digits, `xxd`, `hexdump -C`, `hexdump`.

use crate::limits::BLOCK_MAX;

/// Offsets have at least so many digits.
const OFFSET_MIN: usize = 4;

/// The bytes that a text stands for; `None` if it is not hex text.
pub(super) fn parse(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut bytes = Vec::new();
    let mut is_any = false;
    let mut repeat = false;
    let mut last_row: Vec<u8> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "*" {
            repeat = true;
            continue;
        }
        let row = row(line)?;
        if std::mem::take(&mut repeat)
            && let Some(offset) = row.offset
            && !last_row.is_empty()
        {
            // A row that was left out as often as the offset says, within reason.
            let missing = offset.checked_sub(bytes.len())?;
            // A few characters must not stand for more memory than any capture's block.
            if bytes.len() + missing > BLOCK_MAX {
                return None;
            }
            bytes.extend(last_row.iter().cycle().take(missing));
        }
        is_any = true;
        bytes.extend_from_slice(&row.bytes);
        last_row = row.bytes;
    }
    (is_any && !bytes.is_empty()).then_some(bytes)
}

struct Row {
    offset: Option<usize>,
    bytes: Vec<u8>,
}

/// One line.
fn row(line: &str) -> Option<Row> {
    // Characters beside the digits: `|...|` of hexdump -C, after two blanks of xxd.
    let line = line.split('|').next()?;
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if let Some(offset) = first.strip_suffix(':').and_then(offset) {
        // A blank at the start of the row, two before the characters.
        let digits = rest.trim_start().split("  ").next()?;
        let bytes = digits_of(digits)?;
        return Some(Row {
            offset: Some(offset),
            bytes,
        });
    }
    let groups: Vec<&str> = rest.split_whitespace().collect();
    // hexdump -C has an offset of 8 digits and bytes, hexdump one of 7 and words of two bytes with
    // the lower one first.
    let all = |len| groups.iter().all(|group| group.len() == len);
    if first.len() == 8 && all(2) {
        return with_offset(first, &groups, false);
    }
    if first.len() == 7 && all(4) {
        return with_offset(first, &groups, true);
    }
    let bytes = digits_of(line)?;
    let offset = None;
    Some(Row { offset, bytes })
}

fn offset(digits: &str) -> Option<usize> {
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    (digits.len() >= OFFSET_MIN).then(|| usize::from_str_radix(digits, 16).ok())?
}

fn with_offset(first: &str, groups: &[&str], swapped: bool) -> Option<Row> {
    let mut bytes = digits_of(&groups.concat())?;
    if swapped {
        for pair in bytes.chunks_exact_mut(2) {
            pair.swap(0, 1);
        }
    }
    Some(Row {
        offset: Some(offset(first)?),
        bytes,
    })
}

/// Digits with anything usual between them.
fn digits_of(text: &str) -> Option<Vec<u8>> {
    let text = text.replace("0x", " ").replace("\\x", " ");
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high = None;
    for c in text.chars() {
        if c.is_whitespace() || matches!(c, ',' | ':' | ';' | '-' | '`' | '"' | '{' | '}') {
            continue;
        }
        // A digit has 4 bits.
        let digit = c.to_digit(16)? as u8;
        match high.take() {
            None => high = Some(digit),
            Some(high) => bytes.push(high << 4 | digit),
        }
    }
    high.is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_forms_mean_the_same() {
        let bytes = b"XIOP\0\0\0\x12hello, w".to_vec();
        for text in [
            "58494f50000000126865 6c6c6f2c2077",
            "58494f50 00000012\n68656c6c 6f2c2077\n",
            "# a frame\n0x58, 0x49, 0x4f, 0x50, 0,0 0,0 0,0 12 68:65:6c:6c:6f:2c:20:77",
            "\\x58\\x49\\x4f\\x50\\x00\\x00\\x00\\x12\\x68\\x65\\x6c\\x6c\\x6f\\x2c\\x20\\x77",
            "00000000: 5849 4f50 0000 0012 6865 6c6c 6f2c 2077  XIOP....hello, w\n",
            "00000000  58 49 4f 50 00 00 00 12  68 65 6c 6c 6f 2c 20 77  |XIOP....hello, w|\n\
             00000010\n",
            "0000000 4958 504f 0000 1200 6568 6c6c 2c6f 7720\n0000010\n",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(bytes.clone()), "{text}");
        }
    }

    #[test]
    fn rows_that_were_left_out_come_back() {
        let text = "00000000  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|\n\
                    *\n00000030  01 02                                             |..|\n00000032\n";
        let bytes = parse(text.as_bytes()).expect("hex");
        assert_eq!(bytes.len(), 50);
        assert_eq!(bytes[46..], [0, 0, 1, 2]);
    }

    #[test]
    fn what_is_no_hex_is_not_taken_for_it() {
        for text in [
            "",
            "hello",
            "0",
            "58494f5",
            "#",
            "*",
            "00000000",
            "\u{e4}\u{f6}",
        ] {
            let parsed = parse(text.as_bytes());
            assert!(parsed.is_none() || text == "00000000", "{text}: {parsed:?}");
        }
    }
}
