//! Digests of bytes.

/// A digest of bytes, for comparing what was sent with what came. How the bytes are cut into
/// pieces makes no difference.
#[derive(Copy, Clone, Debug)]
pub struct Digest {
    hash: u64,
    /// Bytes that do not fill a word yet.
    word: u64,
    filled: u32,
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// Of nothing.
    pub const fn new() -> Self {
        Self {
            hash: 0x9e37_79b9_7f4a_7c15,
            word: 0,
            filled: 0,
        }
    }
    /// Takes bytes.
    #[inline]
    pub fn update(&mut self, mut bytes: &[u8]) {
        while self.filled != 0
            && let Some((&first, rest)) = bytes.split_first()
        {
            self.byte(first);
            bytes = rest;
        }
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            self.mix(u64::from_le_bytes(eight));
        }
        for &byte in words.remainder() {
            self.byte(byte);
        }
    }
    fn byte(&mut self, byte: u8) {
        self.word |= u64::from(byte) << (8 * self.filled);
        self.filled += 1;
        if self.filled == 8 {
            let word = self.word;
            self.mix(word);
            self.word = 0;
            self.filled = 0;
        }
    }
    #[inline]
    fn mix(&mut self, word: u64) {
        let h = (self.hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.hash = h ^ h >> 32;
    }
    /// The digest.
    pub fn value(mut self) -> u64 {
        let (word, filled) = (self.word, self.filled);
        self.mix(word ^ u64::from(filled) << 60);
        self.hash
    }
}
