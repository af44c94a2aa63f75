//! Bytes of recorded inputs: numbers as base-128 groups, everything else made of them.
//!
//! There is one way to write each value, so what was read and written again has the same bytes.

use core::fmt;

use crate::memory::Segment;

/// Segments that one list of a recorded input may have: what the largest `sge_max` allows.
pub const SEGMENTS_MAX: usize = 256;

/// Portals that a recorded `accept` or `redirect` may name.
pub const PORTALS_MAX: usize = 64;

/// An input that cannot be written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EncodeError {
    /// It takes more bytes than there is room for.
    Room {
        /// Bytes that it takes.
        need: usize,
        /// Bytes that there are.
        have: usize,
    },
    /// A list is longer than any endpoint takes ([`SEGMENTS_MAX`], [`PORTALS_MAX`]).
    TooMany {
        /// Its entries.
        len: usize,
        /// The most that can be recorded.
        max: usize,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Room { need, have } => write!(f, "input of {need} bytes, room for {have}"),
            Self::TooMany { len, max } => write!(f, "list of {len} entries, at most {max}"),
        }
    }
}

impl core::error::Error for EncodeError {}

/// What is wrong with bytes that should be a recorded input.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// They end too early; the value is the number of bytes missing.
    Truncated,
    /// A number is written longer than it has to be, or does not fit its field.
    Number,
    /// No input has this number.
    UnknownInput,
    /// No variant of the field's type has this number.
    UnknownVariant,
    /// A text is not UTF-8; the value is where it goes wrong.
    Text,
    /// A list is longer than what can be recorded; the value is its length.
    TooMany,
    /// Bytes are left over; the value is their number.
    Trailing,
    /// They do not begin as a recording does.
    Magic,
    /// The recording has a format that this version does not read; the value is its number.
    Version,
}

impl Malformed {
    const fn text(self) -> &'static str {
        match self {
            Self::Truncated => "bytes missing",
            Self::Number => "number not written the one way, or too large for its field",
            Self::UnknownInput => "no input has this number",
            Self::UnknownVariant => "no variant of the field has this number",
            Self::Text => "text is not UTF-8",
            Self::TooMany => "list too long",
            Self::Trailing => "bytes left over",
            Self::Magic => "not the beginning of a recording",
            Self::Version => "format version not known here",
        }
    }
}

/// Bytes that are no recorded input: what is wrong, where, and the value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// What is wrong.
    pub what: Malformed,
    /// Byte offset in the slice that was read.
    pub offset: usize,
    /// The offending value.
    pub value: u64,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            offset,
            value,
        } = self;
        write!(f, "{}: value {value} at byte {offset}", what.text())
    }
}

impl core::error::Error for DecodeError {}

/// Where lists of a decoded input lie: a new one for each input.
#[derive(Debug)]
pub struct Scratch<'b> {
    segments: [[Segment; SEGMENTS_MAX]; 2],
    portals: [&'b [u8]; PORTALS_MAX],
}

impl Scratch<'_> {
    /// Room for the lists of one input.
    #[must_use]
    pub const fn new() -> Self {
        const NONE: Segment = Segment {
            addr: 0,
            len: 0,
            lkey: 0,
            rkey: 0,
        };
        Self {
            segments: [[NONE; SEGMENTS_MAX]; 2],
            portals: [&[]; PORTALS_MAX],
        }
    }
}

impl Default for Scratch<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes into a lent slice, and counts on when that is full.
pub(crate) struct Writer<'w> {
    out: &'w mut [u8],
    at: usize,
    too_many: Option<EncodeError>,
}

impl<'w> Writer<'w> {
    pub(crate) fn new(out: &'w mut [u8]) -> Self {
        Self {
            out,
            at: 0,
            too_many: None,
        }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(place) = self.out.get_mut(self.at..end) {
            place.copy_from_slice(bytes);
        }
        self.at = end;
    }

    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.raw(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.raw(&[value as u8]);
    }

    pub(crate) fn count(&mut self, len: usize, max: usize) {
        if len > max {
            self.too_many = Some(EncodeError::TooMany { len, max });
        }
        self.number(len as u64);
    }

    pub(crate) fn finish(self) -> Result<usize, EncodeError> {
        if let Some(error) = self.too_many {
            return Err(error);
        }
        let (need, have) = (self.at, self.out.len());
        if need > have {
            return Err(EncodeError::Room { need, have });
        }
        Ok(need)
    }
}

/// Reads out of a slice, lists into a scratch.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    segments: [Option<&'a mut [Segment; SEGMENTS_MAX]>; 2],
    portals: Option<&'a mut [&'a [u8]; PORTALS_MAX]>,
}

impl<'a> Reader<'a> {
    /// For values without lists.
    pub(crate) fn plain(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            segments: [None, None],
            portals: None,
        }
    }

    pub(crate) fn new(bytes: &'a [u8], scratch: &'a mut Scratch<'a>) -> Self {
        let [first, second] = &mut scratch.segments;
        Self {
            segments: [Some(second), Some(first)],
            portals: Some(&mut scratch.portals),
            ..Self::plain(bytes)
        }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn error<R>(&self, what: Malformed, value: u64) -> Result<R, DecodeError> {
        let offset = self.at;
        Err(DecodeError {
            what,
            offset,
            value,
        })
    }

    pub(crate) fn raw(&mut self, len: u64) -> Result<&'a [u8], DecodeError> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return self.error(Malformed::Truncated, len - left);
        }
        let bytes = &self.bytes[self.at..][..len as usize];
        self.at += bytes.len();
        Ok(bytes)
    }

    pub(crate) fn number(&mut self) -> Result<u64, DecodeError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.raw(1)?[0];
            let group = u64::from(byte & 0x7f);
            let last = byte < 0x80;
            if (shift == 63 && group > 1) || (last && group == 0 && shift > 0) {
                break;
            }
            value |= group << shift;
            if last {
                return Ok(value);
            }
        }
        self.at = start;
        self.error(Malformed::Number, value)
    }

    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => self.error(Malformed::Trailing, left as u64),
        }
    }

    fn length(&mut self, max: usize) -> Result<usize, DecodeError> {
        let len = self.number()?;
        if len > max as u64 {
            return self.error(Malformed::TooMany, len);
        }
        Ok(len as usize)
    }
}

/// A value that is part of an input.
pub(crate) trait Field<'a>: Sized {
    fn put(&self, w: &mut Writer<'_>);
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Field<'_> for $ty {
            fn put(&self, w: &mut Writer<'_>) {
                w.number(*self as u64);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let value = r.number()?;
                match Self::try_from(value) {
                    Ok(number) => Ok(number),
                    Err(_) => r.error(Malformed::Number, value),
                }
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, usize);

impl Field<'_> for i32 {
    fn put(&self, w: &mut Writer<'_>) {
        w.number(self.cast_unsigned().into());
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(u32::get(r)?.cast_signed())
    }
}

impl Field<'_> for bool {
    fn put(&self, w: &mut Writer<'_>) {
        w.number((*self).into());
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.number()? {
            0 => Ok(false),
            1 => Ok(true),
            other => r.error(Malformed::UnknownVariant, other),
        }
    }
}

impl Field<'_> for () {
    fn put(&self, _: &mut Writer<'_>) {}
    fn get(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<'a, A: Field<'a>, B: Field<'a>> Field<'a> for (A, B) {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
        self.1.put(w);
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((A::get(r)?, B::get(r)?))
    }
}

impl<'a, V: Field<'a>> Field<'a> for Option<V> {
    fn put(&self, w: &mut Writer<'_>) {
        self.is_some().put(w);
        if let Some(value) = self {
            value.put(w);
        }
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if bool::get(r)? {
            Some(V::get(r)?)
        } else {
            None
        })
    }
}

impl<'a, V: Field<'a>, E: Field<'a>> Field<'a> for Result<V, E> {
    fn put(&self, w: &mut Writer<'_>) {
        self.is_ok().put(w);
        match self {
            Ok(value) => value.put(w),
            Err(error) => error.put(w),
        }
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if bool::get(r)? {
            Ok(V::get(r)?)
        } else {
            Err(E::get(r)?)
        })
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, w: &mut Writer<'_>) {
        w.number(self.len() as u64);
        w.raw(self);
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = r.number()?;
        r.raw(len)
    }
}

impl<'a> Field<'a> for &'a str {
    fn put(&self, w: &mut Writer<'_>) {
        self.as_bytes().put(w);
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = <&[u8]>::get(r)?;
        match core::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(error) => r.error(Malformed::Text, error.valid_up_to() as u64),
        }
    }
}

impl<'a> Field<'a> for &'a [Segment] {
    fn put(&self, w: &mut Writer<'_>) {
        w.count(self.len(), SEGMENTS_MAX);
        for segment in *self {
            segment.put(w);
        }
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = r.length(SEGMENTS_MAX)?;
        let [first, second] = &mut r.segments;
        let Some(list) = second.take().or_else(|| first.take()) else {
            return r.error(Malformed::TooMany, len as u64);
        };
        let list = &mut list[..len];
        for segment in &mut *list {
            *segment = Segment::get(r)?;
        }
        Ok(list)
    }
}

impl<'a> Field<'a> for &'a [&'a [u8]] {
    fn put(&self, w: &mut Writer<'_>) {
        w.count(self.len(), PORTALS_MAX);
        for portal in *self {
            portal.put(w);
        }
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = r.length(PORTALS_MAX)?;
        let Some(list) = r.portals.take() else {
            return r.error(Malformed::TooMany, len as u64);
        };
        let list = &mut list[..len];
        for portal in &mut *list {
            *portal = <&[u8]>::get(r)?;
        }
        Ok(list)
    }
}
