//! How frames are laid when no connect message says so.
//!
//! Most frames are the same on one socket and on a pair. One with inline data or with the payload
//! of a session setup is not: its length says which it is. Behind one that announces data outside
//! of it, the next frame follows at once on a pair, and the data on one socket.

use xio_proto::wire::{Cut, Framing, Violation};

use crate::show::WIDEST;

/// What the front of a stream says.
#[derive(Debug)]
pub(super) enum Guess {
    /// So many bytes are needed.
    More(usize),
    /// Frames are laid so.
    Is(Framing),
    /// The frame is the same either way, and complete.
    Either(Cut),
}

/// Looks at the front of a stream; when `is_last`, no more bytes follow them.
pub(super) fn guess(bytes: &[u8], is_last: bool) -> Result<Guess, Violation> {
    let single = Cut::front(bytes, Framing::TcpSingle, &WIDEST);
    let dual = Cut::front(bytes, Framing::TcpDual, &WIDEST);
    let (single, dual) = match (single, dual) {
        (Ok(single), Ok(dual)) => (single, dual),
        (Ok(Cut::More(need)), Err(_)) => return Ok(Guess::More(need)),
        (Ok(_), Err(_)) => return Ok(Guess::Is(Framing::TcpSingle)),
        (Err(_), Ok(_)) => return Ok(Guess::Is(Framing::TcpDual)),
        (Err(violation), Err(_)) => return Err(violation),
    };
    let Cut::Frame { len, plan, .. } = single else {
        let (Cut::More(need) | Cut::Frame { len: need, .. }) = single;
        return Ok(Guess::More(need));
    };
    if single != dual {
        // Inline data of no length on one of them: cannot be, as the length word is exact.
        return Ok(Guess::Is(Framing::TcpSingle));
    }
    if plan.payload == 0 {
        return Ok(Guess::Either(single));
    }
    match bytes.get(len..len + 4) {
        Some(b"XIOP") => Ok(Guess::Is(Framing::TcpDual)),
        Some(_) => Ok(Guess::Is(Framing::TcpSingle)),
        None if is_last => Ok(Guess::Is(Framing::TcpDual)),
        None => Ok(Guess::More(len + 4)),
    }
}
