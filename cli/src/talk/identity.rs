//! Who a server is, in all of its lives.

use super::url::Url;

/// Files that say which host this is. Copies of a machine may share the first, and a name is
/// seldom shared within it.
const HOST: [&str; 2] = ["/etc/machine-id", "/proc/sys/kernel/hostname"];

/// A number for the server at an address of this host: the same whenever it is started there; 0, which
/// is nobody, with a port that differs each time.
pub(crate) fn of(url: &Url) -> u64 {
    if url.port == 0 {
        return 0;
    }
    let host = HOST.map(|path| std::fs::read(path).unwrap_or_default());
    made_of(
        &host,
        &format!("{:?} {} {}", url.scheme, url.host, url.port),
    )
}

fn made_of(host: &[Vec<u8>], address: &str) -> u64 {
    let parts = host.iter().map(Vec::as_slice).chain([address.as_bytes()]);
    // FNV-1a; the parts cannot run into each other.
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&[0]) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    sum.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_text(text: &str) -> u64 {
        of(&text.parse().expect("an address"))
    }

    #[test]
    fn a_server_is_itself_and_nobody_else() {
        let at = of_text("tcp://127.0.0.1:2061");
        assert_ne!(at, 0);
        assert_eq!(at, of_text("tcp://127.0.0.1:2061/other"));
        assert_ne!(at, of_text("tcp://127.0.0.1:2062"));
        assert_ne!(at, of_text("tcp://127.0.0.2:2061"));
        assert_ne!(at, of_text("rdma://127.0.0.1:2061"));
        assert_eq!(of_text("tcp://127.0.0.1:0"), 0);
    }

    #[test]
    fn hosts_and_addresses_do_not_run_into_each_other() {
        let host = |a: &str, b: &str| [a.into(), b.into()];
        assert_ne!(
            made_of(&host("ab", "c"), "d"),
            made_of(&host("a", "bc"), "d")
        );
        assert_ne!(
            made_of(&host("a", "b"), "cd"),
            made_of(&host("a", "bc"), "d")
        );
    }
}
