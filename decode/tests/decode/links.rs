//! Link layers and addresses around a transport packet.

/// What is around IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Ethernet,
    Vlan,
    QinQ,
    Sll,
    Sll2,
    Null,
    Raw,
}

impl Link {
    pub(crate) const ALL: [Self; 7] = [
        Self::Ethernet,
        Self::Vlan,
        Self::QinQ,
        Self::Sll,
        Self::Sll2,
        Self::Null,
        Self::Raw,
    ];

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Ethernet | Self::Vlan | Self::QinQ => 1,
            Self::Sll => 113,
            Self::Sll2 => 276,
            Self::Null => 0,
            Self::Raw => 101,
        }
    }

    /// Puts an IP packet into a frame of the link.
    pub(crate) fn wrap(self, is_v6: bool, ip: &[u8]) -> Vec<u8> {
        let protocol: [u8; 2] = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
        let mut bytes = Vec::new();
        match self {
            Self::Ethernet | Self::Vlan | Self::QinQ => {
                bytes.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
                if self == Self::QinQ {
                    bytes.extend([0x88, 0xa8, 0, 9]);
                }
                if self != Self::Ethernet {
                    bytes.extend([0x81, 0, 0, 7]);
                }
                bytes.extend(protocol);
            }
            Self::Sll => {
                bytes.extend([0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0]);
                bytes.extend(protocol);
            }
            Self::Sll2 => {
                bytes.extend(protocol);
                bytes.extend([0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0]);
            }
            Self::Null => bytes.extend(if is_v6 { [30, 0, 0, 0] } else { [2, 0, 0, 0] }),
            Self::Raw => {}
        }
        bytes.extend(ip);
        // What Ethernet fills short frames with is not part of the packet.
        if self == Self::Ethernet {
            bytes.resize(bytes.len().max(60), 0xee);
        }
        bytes
    }
}

/// An address of host `host`, as IPv4 or IPv6.
fn address(host: u8, is_v6: bool) -> Vec<u8> {
    if is_v6 {
        let mut bytes = vec![0xfd; 16];
        bytes[15] = host;
        bytes
    } else {
        vec![10, 0, 0, host]
    }
}

/// An IP packet from one host to another.
pub(crate) fn ip(from: u8, to: u8, is_v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if is_v6 {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend((payload.len() as u16).to_be_bytes());
        bytes.extend([protocol, 64]);
    } else {
        bytes.extend([0x45, 0]);
        bytes.extend((20 + payload.len() as u16).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    }
    bytes.extend(address(from, is_v6));
    bytes.extend(address(to, is_v6));
    bytes.extend(payload);
    bytes
}

/// A TCP segment.
pub(crate) fn tcp(ports: [u16; 2], seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for port in ports {
        bytes.extend(port.to_be_bytes());
    }
    bytes.extend(seq.to_be_bytes());
    bytes.extend(ack.to_be_bytes());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(payload);
    bytes
}

/// A UDP datagram to the port of RoCE.
pub(crate) fn udp(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(50_000_u16.to_be_bytes());
    bytes.extend(4791_u16.to_be_bytes());
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}
