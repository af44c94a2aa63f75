//! One direction of a TCP connection: what comes out of order, twice or never.
//!
//! Bytes are handed on as soon as all before them are there. The first copy of a byte counts. A
//! hole is declared when its receiver has confirmed it, so that nobody will send it again, and
//! [`PATIENCE`] more packets have not brought it; when more than [`AHEAD_MAX`] bytes or
//! [`PIECES_MAX`] pieces wait behind it; or at the end.

use std::collections::BTreeMap;

use crate::limits::{AHEAD_MAX, PATIENCE, PIECES_MAX};
use crate::queue::Queue;
use crate::report::Stamp;

/// Sequence numbers this far from the expected one belong to something else.
const WINDOW: i64 = 1 << 30;

/// Bytes that wait for those before them.
#[derive(Debug)]
enum Piece {
    Data(Vec<u8>, Stamp),
    /// Sent, and cut off by the capture.
    Cut(u64),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Data(bytes, _) => bytes.len() as u64,
            Self::Cut(len) => *len,
        }
    }
}

/// What became of a segment.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// It had something new.
    New,
    /// All of it was here before.
    Again,
    /// Its sequence number is far from all others.
    Stray,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// The sequence number of the next byte, once something was seen.
    next_seq: Option<u32>,
    /// Its offset in the stream.
    next: u64,
    pieces: BTreeMap<u64, Piece>,
    ahead: usize,
    /// The receiver has all before this offset.
    acked: u64,
    /// Packets since the receiver confirmed the hole in front.
    waited: u32,
    /// Where the sender's last byte ends.
    end: Option<u64>,
    /// The first packet of the connection was seen.
    pub(crate) from_start: bool,
}

impl Reassembly {
    /// Takes the SYN.
    pub(crate) fn start(&mut self, seq: u32) {
        if self.next_seq.is_none() {
            self.next_seq = Some(seq.wrapping_add(1));
            self.from_start = true;
        }
    }

    /// Something was seen.
    pub(crate) fn is_started(&self) -> bool {
        self.next_seq.is_some()
    }

    /// All that the sender had to say is here.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// The offset of a sequence number; `None` if it is far from all others.
    fn offset(&self, seq: u32) -> Option<i64> {
        let next_seq = self.next_seq?;
        // The distance, as a signed number.
        let ahead = i64::from(seq.wrapping_sub(next_seq) as i32);
        (ahead.abs() < WINDOW).then_some(self.next as i64 + ahead)
    }

    /// Takes payload, of which the last `cut` bytes were not captured.
    pub(crate) fn push(
        &mut self,
        seq: u32,
        payload: &[u8],
        cut: u64,
        stamp: Stamp,
        queue: &mut Queue,
    ) -> Taken {
        self.next_seq.get_or_insert(seq);
        let Some(at) = self.offset(seq) else {
            return Taken::Stray;
        };
        let before = (self.next, self.ahead, self.pieces.len());
        self.insert_data(at, payload, stamp);
        if cut > 0 {
            self.insert(at + payload.len() as i64, Piece::Cut(cut));
        }
        self.drain(queue);
        if !self.pieces.is_empty() && self.hole_is_confirmed() {
            self.waited += 1;
        }
        self.give_up_holes(queue);
        if before == (self.next, self.ahead, self.pieces.len()) {
            Taken::Again
        } else {
            Taken::New
        }
    }

    /// The sender has nothing to say from here on.
    pub(crate) fn finish(&mut self, seq: u32) {
        if let Some(at) = self.offset(seq)
            && let Ok(at) = u64::try_from(at)
        {
            self.end.get_or_insert(at);
        }
    }

    /// The receiver has all before this sequence number.
    pub(crate) fn confirm(&mut self, ack: u32, queue: &mut Queue) {
        if let Some(at) = self.offset(ack)
            && let Ok(at) = u64::try_from(at)
        {
            self.acked = self.acked.max(at);
        }
        if !self.pieces.is_empty() && self.hole_is_confirmed() {
            self.waited += 1;
            self.give_up_holes(queue);
        }
    }

    fn hole_is_confirmed(&self) -> bool {
        let behind = self.pieces.keys().next();
        behind.is_some_and(|at| *at > self.next && self.acked >= *at)
    }

    /// Declares every hole: nothing more will come.
    pub(crate) fn flush(&mut self, queue: &mut Queue) {
        while let Some(at) = self.pieces.keys().next().copied() {
            self.skip_to(at, queue);
        }
        // A hole that the receiver confirmed and behind which nothing was captured.
        let end = self.end.map_or(self.acked, |end| self.acked.min(end));
        self.skip_to(end, queue);
    }

    fn give_up_holes(&mut self, queue: &mut Queue) {
        while self.ahead > AHEAD_MAX || self.pieces.len() > PIECES_MAX || self.waited > PATIENCE {
            self.waited = 0;
            let Some(at) = self.pieces.keys().next().copied() else {
                break;
            };
            self.skip_to(at, queue);
        }
    }

    fn skip_to(&mut self, at: u64, queue: &mut Queue) {
        if at > self.next {
            queue.push_hole(at - self.next);
            self.advance(at - self.next);
        }
        self.drain(queue);
    }

    fn advance(&mut self, len: u64) {
        self.next += len;
        // Sequence numbers wrap.
        self.next_seq = self.next_seq.map(|seq| seq.wrapping_add(len as u32));
        self.waited = 0;
    }

    /// Puts what is new of some bytes among the waiting ones, and what came before aside.
    fn insert_data(&mut self, at: i64, bytes: &[u8], stamp: Stamp) {
        self.insert(at, Piece::Data(bytes.to_vec(), stamp));
    }

    fn insert(&mut self, at: i64, piece: Piece) {
        let end = at + piece.len() as i64;
        let mut from = at.max(self.next as i64);
        while from < end {
            // The piece that has this byte, or the next one behind it.
            let here = from as u64;
            let before = self.pieces.range(..=here).next_back();
            let covered = before.map_or(0, |(start, piece)| start + piece.len());
            if covered > here {
                from = covered as i64;
                continue;
            }
            let next = self.pieces.range(here..).next();
            let to = next.map_or(end, |(start, _)| end.min(*start as i64));
            let (skip, len) = ((from - at) as usize, (to - from) as usize);
            let part = match &piece {
                Piece::Data(bytes, stamp) => {
                    self.ahead += len;
                    Piece::Data(bytes[skip..skip + len].to_vec(), *stamp)
                }
                Piece::Cut(_) => Piece::Cut(len as u64),
            };
            self.pieces.insert(here, part);
            from = to;
        }
    }

    /// Hands on what nothing is missing before.
    fn drain(&mut self, queue: &mut Queue) {
        while let Some(piece) = self.pieces.remove(&self.next) {
            let len = piece.len();
            match piece {
                Piece::Data(bytes, stamp) => {
                    self.ahead -= bytes.len();
                    queue.push(&bytes, stamp);
                }
                Piece::Cut(len) => queue.push_hole(len),
            }
            self.advance(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Front;

    struct Dir {
        reassembly: Reassembly,
        queue: Queue,
    }

    impl Dir {
        fn new() -> Self {
            let mut reassembly = Reassembly::default();
            // Sequence numbers wrap after ten bytes.
            reassembly.start(0xffff_fff5);
            Self {
                reassembly,
                queue: Queue::default(),
            }
        }

        fn push(&mut self, at: u32, bytes: &[u8]) -> Taken {
            let seq = 0xffff_fff6_u32.wrapping_add(at);
            let stamp = Stamp::default();
            self.reassembly.push(seq, bytes, 0, stamp, &mut self.queue)
        }

        fn text(&mut self) -> String {
            let mut text = String::new();
            loop {
                let len = match self.queue.front() {
                    Front::Empty => return text,
                    Front::Data(bytes, _) => {
                        text.push_str(std::str::from_utf8(bytes).expect("text"));
                        bytes.len() as u64
                    }
                    Front::Hole(len) => {
                        text.push_str(&format!("({len})"));
                        len
                    }
                };
                self.queue.take(len);
            }
        }
    }

    #[test]
    fn order_repetition_and_overlap_do_not_matter() {
        let mut dir = Dir::new();
        assert_eq!(dir.push(4, b"efgh"), Taken::New);
        assert_eq!(dir.push(4, b"eXgh"), Taken::Again);
        assert_eq!(dir.push(10, b"kl"), Taken::New);
        assert_eq!(dir.push(2, b"cdXXXXijXX"), Taken::New);
        assert_eq!(dir.text(), "");
        assert_eq!(dir.push(0, b"abX"), Taken::New);
        assert_eq!(dir.text(), "abcdefghijkl");
        assert_eq!(dir.push(0, b"abc"), Taken::Again);
        assert_eq!(dir.push(11, b"lm"), Taken::New);
        assert_eq!(dir.push(0x7fff_0000, b"stray"), Taken::Stray);
        assert_eq!(dir.text(), "m");
    }

    #[test]
    fn a_hole_is_declared_when_it_is_confirmed_for_long() {
        let mut dir = Dir::new();
        dir.push(4, b"efgh");
        for turn in 0..=PATIENCE {
            assert_eq!(dir.text(), "", "{turn}");
            dir.reassembly
                .confirm(0xffff_fff6_u32.wrapping_add(8), &mut dir.queue);
        }
        assert_eq!(dir.text(), "(4)efgh");
    }

    #[test]
    fn holes_are_declared_at_the_end_and_when_too_much_waits() {
        let mut dir = Dir::new();
        dir.push(1, b"b");
        dir.push(3, b"d");
        dir.reassembly.flush(&mut dir.queue);
        assert_eq!(dir.text(), "(1)b(1)d");
        let mut dir = Dir::new();
        let block = [b'x'; 65_536];
        for turn in 0..20 {
            dir.push(1 + turn * 65_536, &block);
            assert!(dir.reassembly.ahead <= AHEAD_MAX);
        }
        assert!(dir.text().starts_with("(1)x"));
    }

    #[test]
    fn what_the_capture_cut_is_a_hole() {
        let mut dir = Dir::new();
        let (seq, stamp) = (0xffff_fff6, Stamp::default());
        dir.reassembly.push(seq, b"ab", 3, stamp, &mut dir.queue);
        dir.push(5, b"f");
        assert_eq!(dir.text(), "ab(3)f");
    }
}
