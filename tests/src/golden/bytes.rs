//! How bytes are written in a vector file: hexadecimal, or quoted text.

use std::fmt::Write;

/// Lower-case hexadecimal without separators.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Reads what [`hex`] writes.
///
/// # Errors
///
/// An odd number of digits, or a character that is no hexadecimal digit.
pub fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text
        .chars()
        .map(|c| {
            c.to_digit(16)
                .map(|digit| digit as u8)
                .ok_or_else(|| format!("{c:?} is no hex digit"))
        })
        .collect::<Result<Vec<u8>, String>>()?;
    if digits.len() % 2 == 1 {
        return Err(format!("odd number of hex digits in {text:?}"));
    }
    Ok(digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect())
}

/// Text between double quotes; everything but printable ASCII is `\xNN`.
#[must_use]
pub fn quote(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push('"');
    text
}

/// Reads what [`quote`] writes.
///
/// # Errors
///
/// Missing quotes, an unknown escape, or a character outside printable ASCII.
pub fn unquote(text: &str) -> Result<Vec<u8>, String> {
    let inner = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .ok_or_else(|| format!("{text} is not quoted"))?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = match (first, tail) {
            (b'\\', [escaped @ (b'"' | b'\\'), after @ ..]) => {
                bytes.push(*escaped);
                after
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                bytes.extend(unhex(&String::from_utf8_lossy(&[*high, *low]))?);
                after
            }
            (b' '..=b'~', after) if first != b'\\' && first != b'"' => {
                bytes.push(first);
                after
            }
            _ => return Err(format!("bad escape or character in {text}")),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_and_quotes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&all)).unwrap(), all);
        assert_eq!(unquote(&quote(&all)).unwrap(), all);
        assert_eq!(quote(b"a\"\\\0"), r#""a\"\\\x00""#);
    }

    #[test]
    fn damage_is_refused() {
        assert!(unhex("123").is_err());
        assert!(unhex("zz").is_err());
        for bad in [
            "abc",
            "\"a",
            r#""\n""#,
            r#""\x1""#,
            r#""a"b""#,
            "\"\u{e9}\"",
        ] {
            assert!(unquote(bad).is_err(), "{bad}");
        }
    }
}
