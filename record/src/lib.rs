//! Recordings: everything that entered an endpoint, so that the same endpoint can be run again.
//!
//! A [`Recorder`] is an observer ([`Trace`](xio_proto::Trace)) that any driver may give its
//! endpoint; it writes each input and a digest of what came of it. [`Replay`] reads that, makes an
//! endpoint of the same configuration, feeds it, and says where its outputs are others than the
//! recorded ones. What is written is in PROTOCOL.md 18.
#![forbid(unsafe_code)]

mod recorder;
mod replay;
mod tape;

pub use recorder::{RecordError, Recorder};
pub use replay::{Replay, ReplayError, Step};
pub use tape::Tape;

/// First byte of an entry that is a digest of an output; inputs begin with their number.
const DIGEST: u8 = 0;

/// Writes a length in front of an entry.
fn put_length(out: &mut Vec<u8>, mut len: usize) {
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
}

/// Takes the entry at the front; `None` when it is not all there.
fn take_entry<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut len = 0_usize;
    for (n, byte) in bytes.iter().enumerate().take(5) {
        len |= usize::from(byte & 0x7f) << (7 * n);
        if *byte < 0x80 {
            let (entry, rest) = bytes[n + 1..].split_at_checked(len)?;
            *bytes = rest;
            return Some(entry);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_cut_ones_do_not() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 70_000] {
            let mut bytes = Vec::new();
            put_length(&mut bytes, len);
            bytes.resize(bytes.len() + len, 7);
            bytes.push(9);
            let mut rest = &bytes[..];
            assert_eq!(take_entry(&mut rest).map(<[u8]>::len), Some(len));
            assert_eq!(rest, [9]);
            if len > 0 {
                let mut cut = &bytes[..bytes.len() - 2];
                assert_eq!(take_entry(&mut cut), None);
            }
        }
    }
}
