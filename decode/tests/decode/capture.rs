//! Capture files, written by hand.

/// A packet with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Captured {
    pub(crate) nanos: u64,
    pub(crate) bytes: Vec<u8>,
    /// Bytes that it had on the wire.
    pub(crate) len: u32,
}

/// How a classic capture writes its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) big: bool,
    pub(crate) nanos: bool,
}

pub(crate) const PLAIN: Style = Style {
    big: false,
    nanos: false,
};

fn word(value: u32, big: bool) -> [u8; 4] {
    if big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

fn short(value: u16, big: bool) -> [u8; 2] {
    if big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

/// A classic capture.
pub(crate) fn pcap(link: u32, packets: &[Captured], style: Style) -> Vec<u8> {
    let Style { big, nanos } = style;
    let magic = if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file = Vec::new();
    file.extend(word(magic, big));
    file.extend(short(2, big));
    file.extend(short(4, big));
    for value in [0, 0, 262_144, link] {
        file.extend(word(value, big));
    }
    for packet in packets {
        let fraction = packet.nanos % 1_000_000_000 / if nanos { 1 } else { 1000 };
        file.extend(word((packet.nanos / 1_000_000_000) as u32, big));
        file.extend(word(fraction as u32, big));
        file.extend(word(packet.bytes.len() as u32, big));
        file.extend(word(packet.len, big));
        file.extend(&packet.bytes);
    }
    file
}

fn block(kind: u32, body: &[u8], big: bool) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = 12 + padded as u32;
    let mut bytes = Vec::new();
    bytes.extend(word(kind, big));
    bytes.extend(word(len, big));
    bytes.extend(body);
    bytes.resize(8 + padded, 0);
    bytes.extend(word(len, big));
    bytes
}

/// A pcapng capture; the clock counts nanoseconds. Between packets are blocks of other kinds.
pub(crate) fn pcapng(link: u32, packets: &[Captured], big: bool) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(word(0x1a2b_3c4d, big));
    body.extend(short(1, big));
    body.extend(short(0, big));
    body.extend([0xff; 8]);
    let mut file = block(0x0a0d_0d0a, &body, big);

    let mut body = Vec::new();
    body.extend(short(link as u16, big));
    body.extend(short(0, big));
    body.extend(word(0, big));
    // The clock's resolution, and the end of options.
    body.extend(short(9, big));
    body.extend(short(1, big));
    body.extend([9, 0, 0, 0]);
    body.extend([0; 4]);
    file.extend(block(1, &body, big));

    for (i, packet) in packets.iter().enumerate() {
        if i % 3 == 1 {
            file.extend(block(0x0000_0bad, b"unknown", big));
        }
        let mut body = Vec::new();
        body.extend(word(0, big));
        body.extend(word((packet.nanos >> 32) as u32, big));
        body.extend(word(packet.nanos as u32, big));
        body.extend(word(packet.bytes.len() as u32, big));
        body.extend(word(packet.len, big));
        body.extend(&packet.bytes);
        file.extend(block(6, &body, big));
    }
    file
}
