//! Bytes without packets around them: what a socket brought, or frames one behind the other.

use xio_proto::wire::{
    ConnectMessage, Dialect, Framing, Kind, Request, Response, TLV_LEN, peek_kind,
};

use super::DialectHint;
use crate::report::{Dir, Frame, Lost, Reporter, Stamp, Trouble, What};
use crate::streams::Loose;
use crate::{roce, show};

/// Decodes `bytes`; false if there is no frame in them.
pub(super) fn run(bytes: &[u8], hint: DialectHint, out: &mut Reporter<'_>) -> bool {
    let greeting = bytes.first_chunk::<{ ConnectMessage::LEN }>();
    let greeting = greeting.filter(|_| !bytes.starts_with(b"XIOP"));
    let greeting = greeting.filter(|message| ConnectMessage::parse(message).is_ok());
    let is_rdma = match hint {
        DialectHint::Rdma => true,
        DialectHint::Tcp => false,
        DialectHint::Guess => greeting.is_none() && guess(bytes) == Some(Dialect::Rdma),
    };
    let has_frame = bytes.windows(4).any(|word| word == b"XIOP");
    if !has_frame && greeting.is_none() {
        return false;
    }
    let stream = out.stream();
    if is_rdma {
        rdma(bytes, stream, out);
        return true;
    }
    let mut rest = bytes;
    if let Some(message) = greeting {
        let frame = Frame {
            kind: "CONNECT_MSG",
            len: message.len() as u64,
            trouble: ConnectMessage::parse(message).err().map(Trouble::from),
            tree: show::connect_message(message),
        };
        out.tell(
            Stamp::default(),
            stream,
            Dir::ToServer,
            0,
            What::Frame(frame),
        );
        rest = &bytes[ConnectMessage::LEN..];
    }
    Loose::default().run(rest, greeting.is_some(), stream, out);
    true
}

/// The dialect of the first frame that shows it.
fn guess(bytes: &[u8]) -> Option<Dialect> {
    let mut at = 0;
    while let Some(next) = bytes[at..].windows(4).position(|word| word == b"XIOP") {
        at += next;
        if let Some(dialect) = dialect_of(&bytes[at..]) {
            return Some(dialect);
        }
        at += 4;
    }
    None
}

fn dialect_of(bytes: &[u8]) -> Option<Dialect> {
    let short = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    // It may be cut short.
    let (kind, len) = peek_kind(bytes, Framing::Rdma).ok()?;
    match kind {
        Kind::CreditNop | Kind::ReadAck => Some(Dialect::Rdma),
        Kind::NexusSetupReq | Kind::NexusSetupRsp => {
            // A transport block of 24 bytes on TCP, of 32 and more on RDMA.
            let rest = len.checked_sub(if kind == Kind::NexusSetupReq { 8 } else { 12 })?;
            Some(if rest == 24 {
                Dialect::Tcp
            } else {
                Dialect::Rdma
            })
        }
        kind if kind.is_response() => match short(58)? {
            44 => Some(Dialect::Rdma),
            40 => Some(Dialect::Tcp),
            _ => None,
        },
        // Two pads on TCP, which a sender may leave undefined; acknowledgement and the lower half
        // of an id on RDMA.
        _ => match (short(62)?, short(68)?) {
            (0, 0) => None,
            _ => Some(Dialect::Rdma),
        },
    }
}

/// Frames as SENDs would bring them. Their length word may leave inline data out.
fn rdma(bytes: &[u8], stream: u32, out: &mut Reporter<'_>) {
    let mut rest = bytes;
    let mut at = 0_u64;
    while !rest.is_empty() {
        let start = rest.windows(4).position(|word| word == b"XIOP");
        let skip = start.unwrap_or(rest.len());
        let len = if skip == 0 { frame_len(rest) } else { skip };
        let (front, behind) = rest.split_at(len);
        let what = if skip == 0 {
            What::Frame(roce::frame(front, 0))
        } else {
            let why = "no frame starts here".to_owned();
            let bytes = skip as u64;
            What::Lost(Lost { bytes, why })
        };
        out.tell(Stamp::default(), stream, Dir::Unknown, at, what);
        at += len as u64;
        rest = behind;
    }
}

/// Bytes of the frame at the front.
fn frame_len(bytes: &[u8]) -> usize {
    let Ok((kind, len)) = peek_kind(bytes, Framing::Rdma) else {
        // Up to what may be the next one.
        let next = bytes[4..].windows(4).position(|word| word == b"XIOP");
        return next.map_or(bytes.len(), |next| next + 4);
    };
    let len = TLV_LEN + len as usize;
    let data_at = if kind.is_request() { 88 } else { 92 };
    let data = bytes.get(data_at..).and_then(|rest| rest.first_chunk());
    let data = data.map_or(0, |word| u64::from_be_bytes(*word));
    let whole = |len: usize| {
        let Some(frame) = bytes.get(..len) else {
            return false;
        };
        let widest = &show::WIDEST;
        Request::parse(frame, Framing::Rdma, widest).is_ok()
            || Response::parse(frame, Framing::Rdma, widest).is_ok()
    };
    let with_data = usize::try_from(data)
        .ok()
        .and_then(|data| len.checked_add(data));
    match with_data {
        Some(longer) if kind.is_numbered() && !whole(len) && whole(longer) => longer,
        _ => len,
    }
}
