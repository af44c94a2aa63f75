//! What messages carry: enough for both sides to tell whether it is what was sent.

/// Bytes of a [`Mark`] in an application header.
pub(crate) const MARK_LEN: usize = 24;

/// How the marks of this program begin; a server cannot expect them of other clients.
const MAGIC: [u8; 8] = *b"xio-ping";

/// What a header of this program's clients says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// The message's number; its data is [`Pattern::Own`] of it.
    pub(crate) number: u64,
    /// Bytes of [`Pattern::Counting`] to answer with; `None` for an echo.
    pub(crate) reply: Option<u64>,
}

impl Mark {
    /// Writes the mark, as far as there is room, and zeros behind it.
    pub(crate) fn write(self, header: &mut [u8]) {
        let mut bytes = [0; MARK_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..].copy_from_slice(&self.reply.unwrap_or(u64::MAX).to_be_bytes());
        let room = header.len().min(MARK_LEN);
        header[..room].copy_from_slice(&bytes[..room]);
        header[room..].fill(0);
    }

    /// Reads the mark of a header that has one.
    pub(crate) fn read(header: &[u8]) -> Option<Self> {
        let (magic, rest) = header.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let reply = u64::from_be_bytes(*rest.first_chunk()?);
        (*magic == MAGIC).then(|| Self {
            number: u64::from_be_bytes(*number),
            reply: (reply != u64::MAX).then_some(reply),
        })
    }

    /// Whether a header is the one that [`write`](Self::write) makes.
    pub(crate) fn is_in(self, header: &[u8]) -> bool {
        let mut own = [0; MARK_LEN];
        self.write(&mut own);
        let room = header.len().min(MARK_LEN);
        header[..room] == own[..room] && header[room..].iter().all(|byte| *byte == 0)
    }
}

/// Data that can be written and recognised in pieces.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pattern {
    /// Data of the message with that number; no two messages have the same.
    Own(u64),
    /// 0, 1, 2, ... 255, 0, ...
    Counting,
}

impl Pattern {
    fn base(self) -> u64 {
        match self {
            // A bijection that leaves no pattern to the eye.
            Self::Own(number) => {
                let word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
            }
            Self::Counting => u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]),
        }
    }

    /// The eight bytes at eight times that place.
    fn word(self, base: u64, place: u64) -> u64 {
        match self {
            // Odd, so that places of a message differ; both operations are cheap in bulk.
            Self::Own(_) => base.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            Self::Counting => base.wrapping_add((place % 32).wrapping_mul(0x0808_0808_0808_0808)),
        }
    }

    /// Writes all of it.
    pub(crate) fn fill(self, bytes: &mut [u8]) {
        let base = self.base();
        let (words, rest) = bytes.as_chunks_mut();
        let count = words.len() as u64;
        for (place, word) in (0..).zip(words) {
            *word = self.word(base, place).to_le_bytes();
        }
        let last = self.word(base, count).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// True when a piece, `offset` bytes from the beginning, is as written.
    pub(crate) fn is_in(self, piece: &[u8], offset: u64) -> bool {
        let base = self.base();
        let ahead = (offset % 8) as usize;
        let mut place = offset / 8;
        let mut piece = piece;
        if ahead > 0 {
            let (first, others) = piece.split_at(piece.len().min(8 - ahead));
            if first != &self.word(base, place).to_le_bytes()[ahead..][..first.len()] {
                return false;
            }
            piece = others;
            place += 1;
        }
        let (words, rest) = piece.as_chunks();
        let last = self.word(base, place + words.len() as u64).to_le_bytes();
        let mut words = (place..).zip(words);
        words.all(|(place, word)| *word == self.word(base, place).to_le_bytes())
            && rest == &last[..rest.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_back_and_foreign_headers_have_none() {
        for reply in [None, Some(0), Some(1 << 40)] {
            let mark = Mark { number: 77, reply };
            let mut header = [9; 40];
            mark.write(&mut header);
            assert_eq!(Mark::read(&header), Some(mark));
            assert!(mark.is_in(&header));
            assert!(mark.is_in(&header[..10]), "as far as there was room");
            header[39] = 1;
            assert!(!mark.is_in(&header));
            assert_eq!(Mark::read(&header[..23]), None);
        }
        assert_eq!(Mark::read(b"hello world request header"), None);
    }

    #[test]
    fn data_is_recognised_in_pieces_and_damage_is_seen() {
        let mut counting = [0; 600];
        Pattern::Counting.fill(&mut counting);
        assert!((0..600).all(|i| counting[i] == i as u8));
        for pattern in [Pattern::Own(0), Pattern::Own(7), Pattern::Counting] {
            let mut bytes = [0; 301];
            pattern.fill(&mut bytes);
            for cut in 0..=301 {
                let (a, b) = bytes.split_at(cut);
                assert!(pattern.is_in(a, 0) && pattern.is_in(b, cut as u64), "{cut}");
            }
            assert!(!pattern.is_in(&bytes[1..], 0));
            assert!(!Pattern::Own(8).is_in(&bytes, 0));
            for place in [0, 63, 299, 300] {
                bytes[place] ^= 1;
                assert!(!pattern.is_in(&bytes, 0), "{place}");
                bytes[place] ^= 1;
            }
        }
    }
}
