//! Packets to TCP segments and UDP datagrams: Ethernet with VLANs, Linux cooked captures, loopback,
//! raw IP; IPv4 and IPv6.

use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TcpSlice, TransportSlice};

/// Numbers of link types, as in <https://www.tcpdump.org/linktypes.html>.
mod types {
    pub(super) const NULL: u32 = 0;
    pub(super) const ETHERNET: u32 = 1;
    pub(super) const RAW_OPENBSD: u32 = 14;
    pub(super) const RAW_BSD: u32 = 12;
    pub(super) const RAW: u32 = 101;
    pub(super) const LOOP: u32 = 108;
    pub(super) const SLL: u32 = 113;
    pub(super) const IPV4: u32 = 228;
    pub(super) const IPV6: u32 = 229;
    pub(super) const SLL2: u32 = 276;
}

/// A TCP segment.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    /// The receiver's side is known up to here.
    pub(crate) ack: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) payload: &'a [u8],
    /// Bytes of payload that were sent and not captured.
    pub(crate) cut: u64,
}

/// A UDP datagram.
#[derive(Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) payload: &'a [u8],
    /// Bytes of payload that were sent and not captured.
    pub(crate) cut: u64,
}

/// What a packet is.
#[derive(Debug)]
pub(crate) enum Packet<'a> {
    Tcp(Segment<'a>),
    Udp(Datagram<'a>),
    /// Something else, and its name for the summary.
    Other(&'static str),
}

/// Whether packets of this link type can be read.
pub(crate) fn is_known(link: u32) -> bool {
    use types::{ETHERNET, IPV4, IPV6, LOOP, NULL, RAW, RAW_BSD, RAW_OPENBSD, SLL, SLL2};
    let known = [
        NULL,
        ETHERNET,
        RAW_BSD,
        RAW_OPENBSD,
        RAW,
        LOOP,
        SLL,
        IPV4,
        IPV6,
        SLL2,
    ];
    known.contains(&link)
}

/// Reads a packet.
pub(crate) fn packet(link: u32, bytes: &[u8]) -> Packet<'_> {
    const DAMAGED: Packet<'_> = Packet::Other("packets with damaged or cut headers");
    let Some(sliced) = slice(link, bytes) else {
        return DAMAGED;
    };
    let (from, to, missing, fragmented) = match &sliced.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let payload = ip.payload();
            let stated = usize::from(header.total_len()).saturating_sub(header.slice().len());
            (
                IpAddr::V4(header.source_addr()),
                IpAddr::V4(header.destination_addr()),
                missing(stated, payload.payload.len(), payload.incomplete),
                payload.fragmented,
            )
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let payload = ip.payload();
            let stated = usize::from(header.payload_length());
            let have = payload.payload.len() + ip.extensions().slice().len();
            (
                IpAddr::V6(header.source_addr()),
                IpAddr::V6(header.destination_addr()),
                missing(stated, have, payload.incomplete),
                payload.fragmented,
            )
        }
        Some(LaxNetSlice::Arp(_)) => return Packet::Other("packets that are not IP"),
        None if sliced.stop_err.is_some() => return DAMAGED,
        None => return Packet::Other("packets that are not IP"),
    };
    if fragmented {
        return Packet::Other("IP fragments (not put together)");
    }
    match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => Packet::Tcp(segment(tcp, from, to, missing)),
        Some(TransportSlice::Udp(udp)) => Packet::Udp(Datagram {
            from: SocketAddr::new(from, udp.source_port()),
            to: SocketAddr::new(to, udp.destination_port()),
            payload: udp.payload(),
            cut: missing,
        }),
        Some(_) => Packet::Other("packets that are neither TCP nor UDP"),
        None if sliced.stop_err.is_some() => DAMAGED,
        None => Packet::Other("packets that are neither TCP nor UDP"),
    }
}

fn missing(stated: usize, have: usize, incomplete: bool) -> u64 {
    if incomplete {
        stated.saturating_sub(have) as u64
    } else {
        0
    }
}

fn segment<'a>(tcp: &TcpSlice<'a>, from: IpAddr, to: IpAddr, cut: u64) -> Segment<'a> {
    Segment {
        from: SocketAddr::new(from, tcp.source_port()),
        to: SocketAddr::new(to, tcp.destination_port()),
        seq: tcp.sequence_number(),
        ack: tcp.ack().then(|| tcp.acknowledgment_number()),
        syn: tcp.syn(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        payload: tcp.payload(),
        cut,
    }
}

fn slice(link: u32, bytes: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    match link {
        types::ETHERNET => LaxSlicedPacket::from_ethernet(bytes).ok(),
        // The first word is the address family, whose numbers differ; the packet says it as well.
        types::NULL | types::LOOP => LaxSlicedPacket::from_ip(bytes.get(4..)?).ok(),
        types::SLL => cooked(bytes, 14, 16),
        types::SLL2 => cooked(bytes, 0, 20),
        _ => LaxSlicedPacket::from_ip(bytes).ok(),
    }
}

/// A Linux cooked packet: the protocol at one place, the packet at another.
fn cooked(bytes: &[u8], protocol_at: usize, packet_at: usize) -> Option<LaxSlicedPacket<'_>> {
    let protocol = bytes.get(protocol_at..)?.first_chunk::<2>()?;
    let protocol = EtherType(u16::from_be_bytes(*protocol));
    let packet = bytes.get(packet_at..)?;
    Some(LaxSlicedPacket::from_ether_type(protocol, packet))
}
