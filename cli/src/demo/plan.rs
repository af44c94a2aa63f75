//! What a demo sends: known to both sides, so that each can tell whether what came is what was
//! sent.

/// One in so many requests has large data, and one in so many a large answer.
const LARGE_EVERY: u32 = 20;

/// Bytes of large data, when nothing else was asked for: more than fits a frame.
const LARGE: u32 = 64 << 10;

/// Everything that a demo's client sends, in order.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// Requests.
    pub(super) requests: u32,
    /// One-way messages, spread evenly among the requests.
    pub(super) one_ways: u32,
    /// Bytes of data in each message, if they are not to be mixed.
    size: Option<u32>,
}

/// What a message looks like.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// One-way, with a receipt; otherwise a request.
    pub(super) one_way: bool,
    /// Bytes of data.
    pub(super) len: u32,
    /// Bytes of the answer's data.
    pub(super) answer_len: u32,
    /// The client offers a buffer for the answer; otherwise it fetches what does not fit a frame.
    pub(super) offers: bool,
}

/// Whose data it is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A request's or one-way message's.
    Asked,
    /// A response's.
    Answered,
}

impl Plan {
    /// A plan with so many requests.
    pub(super) fn new(requests: u32, size: Option<u32>) -> Self {
        Self {
            requests,
            one_ways: requests.div_ceil(10),
            size,
        }
    }

    /// Messages that the client sends, numbered from 0.
    pub(super) fn messages(&self) -> u32 {
        self.requests + self.one_ways
    }

    /// Bytes of the largest data in the plan.
    pub(super) fn largest(&self) -> u32 {
        self.size.unwrap_or(LARGE)
    }

    /// What the client's message of that number looks like.
    pub(super) fn shape(&self, number: u32) -> Shape {
        let share = |count: u32| {
            u64::from(count) * u64::from(self.one_ways) / u64::from(self.messages().max(1))
        };
        let one_way = share(number + 1) > share(number);
        let small = |salt| 64 << (mix(u64::from(number) ^ salt) % 5);
        let large = |turn| !one_way && number % LARGE_EVERY == turn;
        let len = |salt, turn| {
            let mixed = if large(turn) { LARGE } else { small(salt) };
            self.size.unwrap_or(mixed)
        };
        Shape {
            one_way,
            len: len(0, 7),
            answer_len: if one_way { 0 } else { len(1 << 32, 14) },
            offers: (number / LARGE_EVERY).is_multiple_of(2),
        }
    }
}

/// Writes a message's data.
pub(super) fn fill(bytes: &mut [u8], kind: Kind, number: u32) {
    for (place, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = word(kind, number, place as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// True when a piece of a message's data, `offset` bytes from its start, is as written.
pub(super) fn is_as_written(bytes: &[u8], offset: u64, kind: Kind, number: u32) -> bool {
    let ahead = (offset % 8) as usize;
    let mut place = offset / 8;
    let mut rest = bytes;
    if ahead > 0 {
        let (first, others) = bytes.split_at(bytes.len().min(8 - ahead));
        if first != &word(kind, number, place).to_le_bytes()[ahead..][..first.len()] {
            return false;
        }
        rest = others;
        place += 1;
    }
    rest.chunks(8).enumerate().all(|(n, chunk)| {
        let word = word(kind, number, place + n as u64).to_le_bytes();
        chunk == &word[..chunk.len()]
    })
}

/// Eight bytes of data; no two places of a demo have the same.
fn word(kind: Kind, number: u32, place: u64) -> u64 {
    let kind = match kind {
        Kind::Asked => 0,
        Kind::Answered => 1 << 63,
    };
    mix(kind | u64::from(number) << 24 | place)
}

/// A bijection that leaves no pattern to the eye.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ways_are_as_many_as_announced() {
        for requests in [1, 2, 9, 10, 11, 1000, 12_345] {
            let plan = Plan::new(requests, None);
            let one_ways = (0..plan.messages()).filter(|n| plan.shape(*n).one_way);
            assert_eq!(one_ways.count() as u32, plan.one_ways, "{requests}");
        }
    }

    #[test]
    fn sizes_are_mixed_unless_asked_for() {
        let plan = Plan::new(200, None);
        let shapes: Vec<Shape> = (0..plan.messages()).map(|n| plan.shape(n)).collect();
        for large in [
            |s: &Shape| s.len == LARGE,
            |s: &Shape| s.answer_len == LARGE,
        ] {
            let count = shapes.iter().filter(|shape| large(shape)).count();
            assert!((5..50).contains(&count), "{count}");
        }
        assert!(shapes.iter().all(|s| s.len >= 64 && s.len <= LARGE));
        let same = Plan::new(200, Some(3));
        assert!((0..same.messages()).all(|n| same.shape(n).len == 3));
    }

    #[test]
    fn data_is_recognised_in_pieces_and_damage_is_seen() {
        let mut bytes = vec![0; 100];
        fill(&mut bytes, Kind::Asked, 7);
        for cut in 0..100 {
            let (a, b) = bytes.split_at(cut);
            assert!(is_as_written(a, 0, Kind::Asked, 7));
            assert!(is_as_written(b, cut as u64, Kind::Asked, 7), "{cut}");
        }
        assert!(!is_as_written(&bytes, 0, Kind::Answered, 7));
        assert!(!is_as_written(&bytes, 0, Kind::Asked, 8));
        assert!(!is_as_written(&bytes[1..], 0, Kind::Asked, 7));
        for place in [0, 63, 99] {
            bytes[place] ^= 1;
            assert!(!is_as_written(&bytes, 0, Kind::Asked, 7));
            bytes[place] ^= 1;
        }
    }
}
