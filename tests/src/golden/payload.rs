//! Application payload: either the bytes themselves or how to regenerate them.

use sha2::{Digest, Sha256};

use super::bytes::{hex, unhex};

/// The longest payload that is always written out, even if it could be regenerated.
pub const WRITTEN_OUT: usize = 64;

/// What the recorded programs filled their buffers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Big-endian words `0xC0000000 + i`: requests and one-ways.
    Request,
    /// Big-endian words `0x50000000 + i`: responses.
    Response,
    /// `0xAB` throughout: the one-sided transfers of `rdma-direct`.
    Direct,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Self; 3] = [Self::Request, Self::Response, Self::Direct];

    /// The name in a vector file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "req",
            Self::Response => "rsp",
            Self::Direct => "direct",
        }
    }

    fn word(self, index: usize) -> [u8; 4] {
        let index = u32::try_from(index).expect("payload below 16 GiB");
        match self {
            Self::Request => (0xC000_0000 | index).to_be_bytes(),
            Self::Response => (0x5000_0000 | index).to_be_bytes(),
            Self::Direct => [0xAB; 4],
        }
    }

    /// The first `len` bytes of the pattern.
    #[must_use]
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 3);
        for index in 0..len.div_ceil(4) {
            bytes.extend_from_slice(&self.word(index));
        }
        bytes.truncate(len);
        bytes
    }

    /// The pattern these bytes follow from their first to their last, if any.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|pattern| bytes.starts_with(&pattern.bytes(bytes.len().min(4))))
            .filter(|pattern| pattern.bytes(bytes.len()) == bytes)
    }
}

/// The first 16 bytes of the SHA-256, as the recordings print it.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; 16] {
    let full = Sha256::digest(bytes);
    std::array::from_fn(|i| full[i])
}

/// A run of bytes in a frame, on a data socket or in a one-sided transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Written out.
    Raw(Vec<u8>),
    /// Follows a pattern; the digest is that of the recorded bytes.
    Regenerated {
        /// What fills it.
        pattern: Pattern,
        /// How many bytes.
        len: usize,
        /// [`digest`] of the recorded bytes.
        digest: [u8; 16],
    },
}

impl Payload {
    /// The compact form: a pattern if it is long enough and follows one.
    #[must_use]
    pub fn compact(bytes: &[u8]) -> Self {
        match Pattern::of(bytes) {
            Some(pattern) if bytes.len() > WRITTEN_OUT => Self::Regenerated {
                pattern,
                len: bytes.len(),
                digest: digest(bytes),
            },
            _ => Self::Raw(bytes.to_vec()),
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Raw(bytes) => bytes.len(),
            Self::Regenerated { len, .. } => *len,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, regenerated if need be.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.clone(),
            Self::Regenerated { pattern, len, .. } => pattern.bytes(*len),
        }
    }

    /// The form in a vector file: hexadecimal, or `gen:<pattern>:<len>:<digest>`.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Raw(bytes) => hex(bytes),
            Self::Regenerated {
                pattern,
                len,
                digest,
            } => {
                format!("gen:{}:{len}:{}", pattern.name(), hex(digest))
            }
        }
    }

    /// Reads what [`Payload::text`] writes.
    ///
    /// # Errors
    ///
    /// A malformed descriptor or hexadecimal number, an unknown pattern.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(descriptor) = text.strip_prefix("gen:") else {
            return unhex(text).map(Self::Raw);
        };
        let parts: Vec<&str> = descriptor.split(':').collect();
        let [name, len, printed] = parts[..] else {
            return Err(format!("{text}: want gen:pattern:len:digest"));
        };
        let pattern = Pattern::ALL
            .into_iter()
            .find(|pattern| pattern.name() == name)
            .ok_or_else(|| format!("unknown pattern {name}"))?;
        let len = len
            .parse()
            .map_err(|error| format!("length {len}: {error}"))?;
        let digest = unhex(printed)?
            .try_into()
            .map_err(|_| format!("digest {printed} is not 16 bytes"))?;
        Ok(Self::Regenerated {
            pattern,
            len,
            digest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_count_in_big_endian_words() {
        assert_eq!(
            Pattern::Request.bytes(9),
            [0xC0, 0, 0, 0, 0xC0, 0, 0, 1, 0xC0]
        );
        assert_eq!(Pattern::Response.bytes(1028)[1024..], [0x50, 0, 1, 0]);
        assert_eq!(Pattern::Direct.bytes(3), [0xAB; 3]);
    }

    #[test]
    fn digest_is_the_head_of_sha_256() {
        // The well-known value for "abc".
        assert_eq!(hex(&digest(b"abc")), "ba7816bf8f01cfea414140de5dae2223");
    }

    #[test]
    fn only_long_regular_payload_is_compacted() {
        assert_eq!(
            Payload::compact(&Pattern::Request.bytes(64)).text().len(),
            128
        );
        let long = Pattern::Request.bytes(65);
        let compact = Payload::compact(&long);
        assert!(
            compact.text().starts_with("gen:req:65:"),
            "{}",
            compact.text()
        );
        assert_eq!(compact.bytes(), long);
        let mut spoiled = long;
        spoiled[64] ^= 1;
        assert_eq!(Payload::compact(&spoiled), Payload::Raw(spoiled));
    }

    #[test]
    fn text_comes_back_and_damage_is_refused() {
        for payload in [
            Payload::Raw(vec![]),
            Payload::Raw(vec![1, 0xFF]),
            Payload::compact(&Pattern::Response.bytes(1000)),
        ] {
            assert_eq!(Payload::parse(&payload.text()).unwrap(), payload);
        }
        for bad in [
            "gen:req:5",
            "gen:xxx:5:00",
            "gen:req:x:00",
            "gen:req:5:00",
            "0",
        ] {
            assert!(Payload::parse(bad).is_err(), "{bad}");
        }
    }
}
