//! A message of a queue pair as a frame.

use xio_proto::wire::{Dialect, Framing, Kind, TLV_LEN, Violation, peek_kind};

use crate::report::{Frame, Trouble};
use crate::show::{self, Body, WIDEST};

/// Whether a message begins as a frame does.
pub(super) fn is_frame(bytes: &[u8]) -> bool {
    bytes.starts_with(b"XIOP")
}

/// What a message is, of which the last `missing` bytes were not captured.
pub(crate) fn frame(bytes: &[u8], missing: u64) -> Frame {
    let word = bytes.get(4..).and_then(|rest| rest.first_chunk::<4>());
    let kind = word.map(|word| Kind::from_word(u32::from_be_bytes(*word), Dialect::Rdma));
    let start = peek_kind(bytes, Framing::Rdma);
    let (name, tree, trouble) = match (kind, start) {
        (Some(Ok(kind)), Ok(_)) => {
            let body = Body {
                kind,
                framing: Framing::Rdma,
                bytes,
                missing,
                payload: None,
            };
            let (tree, trouble) = show::frame(&body, &WIDEST, None);
            (kind.name(), tree, trouble)
        }
        (Some(Ok(kind)), Err(violation)) => {
            let tree = show::front_only(kind, Framing::Rdma, bytes);
            (kind.name(), tree, Some(Trouble::from(violation)))
        }
        (_, start) => {
            // Only the first 16 bytes mean something.
            let front = &bytes[..bytes.len().min(TLV_LEN)];
            let tree = show::front_only(Kind::MsgReq, Framing::Rdma, front);
            let violation: Option<Violation> = start.err();
            ("MALFORMED", tree, violation.map(Trouble::from))
        }
    };
    Frame {
        kind: name,
        len: bytes.len() as u64,
        trouble,
        tree,
    }
}
