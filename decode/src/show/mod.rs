//! Frames as trees of names and values, and those as text and JSON.

mod describe;
mod fields;
mod json;
mod text;

pub(crate) use describe::{Body, WIDEST, connect_message, frame, front_only};
pub use json::json;
pub use text::text;

use std::borrow::Cow;

use crate::limits::PREVIEW;

/// A named part or value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name; in a list, its number.
    pub name: Cow<'static, str>,
    /// Its offset in the frame, headers first and data last, wherever they travelled.
    pub at: u64,
    /// What it is.
    pub value: Value,
}

/// What a [`Node`] is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A number that is written in hexadecimal, with so many digits: an address, a key, a pad.
    Hex(u64, usize),
    /// A number that stands for something, with its name.
    Named(u64, &'static str),
    /// Flags: the whole number, the names of those that are set, the bits without a name.
    Flags(u64, Vec<&'static str>, u64),
    /// Nothing, where a number says so.
    None,
    /// Bytes that are text.
    Text(Shown),
    /// Bytes.
    Bytes(Shown),
    /// Parts with different names.
    Group(Vec<Node>),
    /// Parts of one kind.
    List(Vec<Node>),
}

/// Bytes, of which the first are shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// How many there are.
    pub len: u64,
    /// The first.
    pub first: Vec<u8>,
    /// How many of all were not captured.
    pub missing: u64,
}

impl Shown {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self {
            len: bytes.len() as u64,
            first: bytes[..bytes.len().min(PREVIEW)].to_vec(),
            missing: 0,
        }
    }

    /// The first bytes as text, if they are.
    fn as_text(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.first).ok()?;
        let plain = |c: char| !c.is_control() || matches!(c, '\0' | '\n' | '\r' | '\t');
        (!text.is_empty() && text.chars().all(plain)).then_some(text)
    }

    fn hex(&self) -> String {
        self.first
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Bytes beyond those shown.
    fn more(&self) -> u64 {
        self.len - self.first.len() as u64
    }
}

impl Node {
    fn new(name: &'static str, at: u64, value: Value) -> Self {
        let name = Cow::Borrowed(name);
        Self { name, at, value }
    }
}
