//! What numbers in the fields of frames stand for.

use xio_proto::wire::layout::{Field, Part};
use xio_proto::wire::{MessageType, Op, SessionFlags, SocketKind, TransportFlags, status};

use super::{Node, Shown, Value};

/// The fields of a part, as far as `bytes` go; `base` is where the part starts in the frame.
pub(super) fn part(part: &Part, base: u64, bytes: &[u8]) -> Node {
    let fields = part.fields.iter().map_while(|field| {
        let value = bytes
            .get(usize::from(field.offset)..)?
            .get(..usize::from(field.len))?;
        let at = base + u64::from(field.offset);
        Some(Node::new(field.name, at, value_of(part, field, value)))
    });
    Node::new(part.name, base, Value::Group(fields.collect()))
}

/// The number in a field of at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |all, byte| all << 8 | u64::from(*byte))
}

fn value_of(part: &Part, field: &Field, bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::Bytes(Shown::new(bytes));
    }
    let value = number(bytes);
    let digits = 2 * bytes.len();
    match (part.name, field.name) {
        ("tlv", "magic") if bytes == b"XIOP" => Value::Named(value, "XIOP"),
        ("tlv", "kind") => flags::<MessageType>(value),
        ("session", "flags") => flags::<SessionFlags>(value),
        ("request", "flags") => flags::<TransportFlags>(value),
        ("nexus", "flags") => named_bits(value, &[("RECONNECT", 1)]),
        (_, "in_op" | "out_op" | "op") => named(value, op),
        (_, "status" | "result" | "reason") => {
            named(value, |v| u32::try_from(v).ok().and_then(status::name))
        }
        ("setup", "action") => named(value, action),
        ("connect", "kind") => named(value, socket_kind),
        (_, "ack_sn") if value == 0xffff => Value::None,
        (_, "addr" | "rkey" | "version" | "flags") => Value::Hex(value, digits),
        (_, name) if name.starts_with("pad") && name != "pad_len" => Value::Hex(value, digits),
        (_, "remain" | "magic") => Value::Hex(value, digits),
        _ => Value::Number(value),
    }
}

fn named(value: u64, name: impl Fn(u64) -> Option<&'static str>) -> Value {
    name(value).map_or(Value::Number(value), |name| Value::Named(value, name))
}

fn op(value: u64) -> Option<&'static str> {
    const NAMES: [(Op, &str); 3] = [(Op::Send, "SEND"), (Op::Write, "WRITE"), (Op::Read, "READ")];
    let found = NAMES.iter().find(|(op, _)| *op as u64 == value);
    found.map(|(_, name)| *name)
}

fn action(value: u64) -> Option<&'static str> {
    match value {
        1 => Some("ACCEPT"),
        2 => Some("REDIRECT"),
        3 => Some("REJECT"),
        _ => None,
    }
}

fn socket_kind(value: u64) -> Option<&'static str> {
    const NAMES: [(SocketKind, &str); 3] = [
        (SocketKind::Single, "SINGLE"),
        (SocketKind::Control, "CONTROL"),
        (SocketKind::Data, "DATA"),
    ];
    let found = NAMES.iter().find(|(kind, _)| *kind as u64 == value);
    found.map(|(_, name)| *name)
}

/// The names of set bits, from the core's own declarations.
fn flags<F: xio_proto_flags::Flags>(value: u64) -> Value {
    named_bits(value, &F::names())
}

fn named_bits(value: u64, names: &[(&'static str, u64)]) -> Value {
    let mut rest = value;
    let mut set = Vec::new();
    for (name, bits) in names {
        if *bits != 0 && value & bits == *bits {
            set.push(*name);
            rest &= !bits;
        }
    }
    Value::Flags(value, set, rest)
}

/// Names of the core's flags.
mod xio_proto_flags {
    use xio_proto::wire::{MessageType, SessionFlags, TransportFlags};

    pub(super) trait Flags {
        fn names() -> Vec<(&'static str, u64)>;
    }

    macro_rules! flags {
        ($($ty:ident)+) => {$(
            impl Flags for $ty {
                fn names() -> Vec<(&'static str, u64)> {
                    let all = Self::all().iter_names();
                    all.map(|(name, flag)| (name, u64::from(flag.bits()))).collect()
                }
            }
        )+};
    }

    flags!(MessageType SessionFlags TransportFlags);
}
