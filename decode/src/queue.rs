//! Bytes of one direction of a socket, in order, with the holes that the capture has.

use std::collections::VecDeque;

use crate::limits::QUEUE_MAX;
use crate::report::Stamp;

/// Stamps that one run keeps; further packets share the last one.
const STAMPS_MAX: usize = 4096;

/// Bytes without a hole, or a hole.
#[derive(Debug)]
enum Run {
    Data {
        bytes: Vec<u8>,
        /// Bytes at the front that were taken.
        taken: usize,
        /// Where packets end in `bytes`, and when they came.
        ends: VecDeque<(usize, Stamp)>,
    },
    Hole(u64),
}

/// What is at the front.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Front<'a> {
    /// Nothing yet.
    Empty,
    /// Bytes; when the flag is set, no more can come right behind them.
    Data(&'a [u8], bool),
    /// So many bytes were not captured.
    Hole(u64),
}

/// A queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    runs: VecDeque<Run>,
    /// Bytes held.
    len: u64,
    /// Bytes and holes taken in all.
    at: u64,
    /// Bytes that were turned into holes because too many were held.
    pub(crate) dropped: u64,
    /// No more will come.
    ended: bool,
    stamp: Stamp,
}

impl Queue {
    /// Adds bytes. Above the limit they become a hole.
    pub(crate) fn push(&mut self, bytes: &[u8], stamp: Stamp) {
        if bytes.is_empty() {
            return;
        }
        if self.len + bytes.len() as u64 > QUEUE_MAX {
            self.dropped += bytes.len() as u64;
            self.push_hole(bytes.len() as u64);
            return;
        }
        self.len += bytes.len() as u64;
        if let Some(Run::Data {
            bytes: have, ends, ..
        }) = self.runs.back_mut()
        {
            have.extend_from_slice(bytes);
            if ends.len() >= STAMPS_MAX {
                ends.pop_back();
            }
            ends.push_back((have.len(), stamp));
            return;
        }
        self.runs.push_back(Run::Data {
            bytes: bytes.to_vec(),
            taken: 0,
            ends: VecDeque::from([(bytes.len(), stamp)]),
        });
    }

    /// Adds a hole.
    pub(crate) fn push_hole(&mut self, len: u64) {
        if len == 0 {
            return;
        }
        if let Some(Run::Hole(have)) = self.runs.back_mut() {
            *have = have.saturating_add(len);
        } else {
            self.runs.push_back(Run::Hole(len));
        }
    }

    /// Says that no more will come.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// No more will come.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes and holes taken in all: where the front is in the stream.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// When the byte that was taken last came.
    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// What is at the front.
    pub(crate) fn front(&self) -> Front<'_> {
        match self.runs.front() {
            None => Front::Empty,
            Some(Run::Hole(len)) => Front::Hole(*len),
            Some(Run::Data { bytes, taken, .. }) => {
                let last = self.runs.len() > 1 || self.ended;
                Front::Data(&bytes[*taken..], last)
            }
        }
    }

    /// Takes at most `len` bytes, or so much of a hole, off the front; returns how many.
    pub(crate) fn take(&mut self, len: u64) -> u64 {
        let Some(run) = self.runs.front_mut() else {
            return 0;
        };
        let (took, empty) = match run {
            Run::Hole(left) => {
                let took = len.min(*left);
                *left -= took;
                (took, *left == 0)
            }
            Run::Data { bytes, taken, ends } => {
                let took = len.min((bytes.len() - *taken) as u64);
                *taken += took as usize;
                self.len -= took;
                while took > 0
                    && let Some((end, stamp)) = ends.front().copied()
                {
                    self.stamp = stamp;
                    if end <= *taken {
                        ends.pop_front();
                    }
                    if end >= *taken {
                        break;
                    }
                }
                if *taken > 65_536 && *taken > bytes.len() / 2 {
                    bytes.drain(..*taken);
                    for (end, _) in ends.iter_mut() {
                        *end -= *taken;
                    }
                    *taken = 0;
                }
                (took, bytes.len() == *taken)
            }
        };
        if empty {
            self.runs.pop_front();
        }
        self.at += took;
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(packet: u64) -> Stamp {
        Stamp { packet, nanos: 0 }
    }

    #[test]
    fn bytes_holes_and_stamps_come_in_order() {
        let mut queue = Queue::default();
        queue.push(b"abc", stamp(1));
        queue.push(b"de", stamp(2));
        queue.push_hole(4);
        queue.push(b"f", stamp(3));
        assert_eq!(queue.front(), Front::Data(b"abcde", true));
        assert_eq!(queue.take(3), 3);
        assert_eq!((queue.at(), queue.stamp()), (3, stamp(1)));
        assert_eq!(queue.take(9), 2);
        assert_eq!(queue.stamp(), stamp(2));
        assert_eq!(queue.front(), Front::Hole(4));
        assert_eq!(queue.take(9), 4);
        assert_eq!(queue.front(), Front::Data(b"f", false));
        queue.end();
        assert_eq!(queue.front(), Front::Data(b"f", true));
        assert_eq!(queue.take(1), 1);
        assert_eq!(
            (queue.at(), queue.len(), queue.front()),
            (10, 0, Front::Empty)
        );
    }

    #[test]
    fn what_is_too_much_becomes_a_hole() {
        let mut queue = Queue::default();
        let block = [7; 4096];
        for _ in 0..400 {
            queue.push(&block, stamp(1));
        }
        assert!(queue.len() <= QUEUE_MAX);
        let dropped = queue.dropped;
        assert_eq!(queue.len() + dropped, 400 * 4096);
        assert_eq!(queue.take(u64::MAX), QUEUE_MAX);
        assert_eq!(queue.front(), Front::Hole(dropped));
    }
}
