//! Socket addresses, as C has them and as Rust has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// An address as C wants it.
pub(crate) fn to_c(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain numbers, for which 0 is a value.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: a storage is large enough and aligned for every kind of address.
            let place = unsafe { &mut *place.cast::<libc::sockaddr_in>() };
            place.sin_family = libc::AF_INET as libc::sa_family_t;
            place.sin_port = v4.port().to_be();
            place.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let place = unsafe { &mut *place.cast::<libc::sockaddr_in6>() };
            place.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            place.sin6_port = v6.port().to_be();
            place.sin6_addr.s6_addr = v6.ip().octets();
            place.sin6_scope_id = v6.scope_id();
        }
    }
    storage
}

/// An address of C's; `None` for one that is not set, or of another family.
pub(crate) fn from_c(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one, and a storage is aligned for it.
            let v4 = unsafe { &*place.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*place.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in [
            "10.99.1.2:7001",
            "0.0.0.0:0",
            "[fd99::1]:7001",
            "[fe80::1%3]:80",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_c(&to_c(address)), Some(address));
        }
    }

    #[test]
    fn bytes_are_in_network_order() {
        let storage = to_c("10.99.1.2:258".parse().unwrap());
        // SAFETY: the first 8 bytes of a storage, all of them set.
        let bytes: [u8; 8] = unsafe { (&raw const storage).cast::<[u8; 8]>().read() };
        assert_eq!(bytes[2..], [1, 2, 10, 99, 1, 2]);
        // SAFETY: as in `to_c`.
        assert_eq!(from_c(&unsafe { core::mem::zeroed() }), None);
    }
}
