//! A line of `key=value` words of which every one must be asked for.

use std::str::FromStr;

/// The words of a line.
pub(super) struct Pairs<'a> {
    words: Vec<(&'a str, &'a str)>,
}

impl<'a> Pairs<'a> {
    /// Splits a line; words without `=` have an empty value.
    pub(super) fn new(line: &'a str) -> Self {
        let words = line.split_whitespace();
        Self {
            words: words
                .map(|word| word.split_once('=').unwrap_or((word, "")))
                .collect(),
        }
    }

    /// Takes the value of a key, if it is there.
    pub(super) fn maybe(&mut self, key: &str) -> Option<&'a str> {
        let at = self.words.iter().position(|(name, _)| *name == key)?;
        Some(self.words.remove(at).1)
    }

    /// Takes the value of a key.
    pub(super) fn text(&mut self, key: &str) -> Result<&'a str, String> {
        self.maybe(key).ok_or_else(|| format!("no {key}"))
    }

    /// Takes a decimal number.
    pub(super) fn number<T: FromStr>(&mut self, key: &str) -> Result<T, String> {
        let text = self.text(key)?;
        text.parse()
            .map_err(|_| format!("{key}={text} is no number in range"))
    }

    /// Takes a number written `0x...`.
    pub(super) fn hex(&mut self, key: &str) -> Result<u64, String> {
        let text = self.text(key)?;
        let digits = text
            .strip_prefix("0x")
            .ok_or_else(|| format!("{key}={text} without 0x"))?;
        u64::from_str_radix(digits, 16).map_err(|_| format!("{key}={text} is no number"))
    }

    /// Takes a number that must have this value.
    pub(super) fn constant(&mut self, key: &str, want: &str) -> Result<(), String> {
        match self.text(key)? {
            seen if seen == want => Ok(()),
            seen => Err(format!("{key} is {seen}, not {want}")),
        }
    }

    /// Refuses words nobody asked for.
    pub(super) fn done(self) -> Result<(), String> {
        match self.words.first() {
            None => Ok(()),
            Some((name, value)) => Err(format!("unexpected {name}={value}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_must_be_taken() {
        let mut pairs = Pairs::new("a=1 b=0xff c= d");
        assert_eq!(pairs.number::<u8>("a"), Ok(1));
        assert_eq!(pairs.hex("b"), Ok(255));
        assert_eq!(pairs.text("c"), Ok(""));
        assert_eq!(pairs.maybe("e"), None);
        assert!(pairs.done().is_err());
    }

    #[test]
    fn wrong_values_are_refused() {
        let mut pairs = Pairs::new("a=300 b=12 c=1");
        assert!(pairs.number::<u8>("a").is_err());
        assert!(pairs.hex("b").is_err());
        assert!(pairs.constant("c", "2").is_err());
        assert!(pairs.text("c").is_err(), "taken");
        assert!(pairs.done().is_ok());
    }
}
