//! Addresses as libxio writes them: `tcp://host:port/resource`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

/// Which transport an address asks for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Scheme {
    /// Sockets.
    Tcp,
    /// Verbs.
    Rdma,
}

/// An address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
    /// The transport.
    pub(crate) scheme: Scheme,
    /// A name, an IPv4 address or an IPv6 address (without brackets); `*` is every IPv4 address.
    pub(crate) host: String,
    /// The port; 0 lets a server take any.
    pub(crate) port: u16,
    /// What follows the port, with its slash; may be empty.
    pub(crate) resource: String,
}

impl FromStr for Url {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        const SHAPE: &str = "an address looks like tcp://host:port or tcp://[::1]:port/resource";
        let (scheme, rest) = text.split_once("://").context(SHAPE)?;
        let scheme = match scheme {
            "tcp" => Scheme::Tcp,
            "rdma" => Scheme::Rdma,
            other => bail!("{other:?} is no transport; tcp and rdma are"),
        };
        let end = rest.find('/').unwrap_or(rest.len());
        let (authority, resource) = rest.split_at(end);
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => inner.split_once("]:").context(SHAPE)?,
            None => authority.rsplit_once(':').context(SHAPE)?,
        };
        ensure!(!host.is_empty(), SHAPE);
        let is_plain = authority.starts_with('[') || !host.contains(':');
        ensure!(is_plain, "an IPv6 address stands in brackets: [{host}]");
        let port = port.parse().ok();
        let port = port.with_context(|| format!("the port of {text} is no number up to 65535"))?;
        Ok(Self {
            scheme,
            host: host.to_owned(),
            port,
            resource: resource.to_owned(),
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Tcp => "tcp",
            Scheme::Rdma => "rdma",
        };
        let Self {
            host,
            port,
            resource,
            ..
        } = self;
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}{resource}")
        } else {
            write!(f, "{scheme}://{host}:{port}{resource}")
        }
    }
}

impl Url {
    /// The addresses of the host; asks the system's resolver for names, which may take a while.
    ///
    /// # Errors
    /// An unknown name.
    pub(crate) fn resolve(&self) -> Result<Vec<SocketAddr>> {
        if self.host == "*" {
            return Ok(vec![(Ipv4Addr::UNSPECIFIED, self.port).into()]);
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let found = found.with_context(|| format!("no address is known for {}", self.host))?;
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in found {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        ensure!(!addresses.is_empty(), "{} has no address", self.host);
        Ok(addresses)
    }

    /// A resource over sockets on this machine, at any port.
    pub(crate) fn loopback(resource: &str) -> Self {
        Self {
            scheme: Scheme::Tcp,
            host: Ipv4Addr::LOCALHOST.to_string(),
            port: 0,
            resource: resource.to_owned(),
        }
    }

    /// The same resource at another address.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in [
            "tcp://127.0.0.1:2061",
            "tcp://[::1]:2061/a/b?c",
            "rdma://host.example:0/x",
            "tcp://*:1",
        ] {
            let url: Url = text.parse().expect(text);
            assert_eq!(url.to_string(), text);
        }
        let url: Url = "tcp://[::1]:2061/x".parse().expect("an address");
        assert_eq!((url.host.as_str(), url.port), ("::1", 2061));
        assert_eq!(
            url.at(([1, 2, 3, 4], 5).into()).to_string(),
            "tcp://1.2.3.4:5/x"
        );
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said() {
        for (text, part) in [
            ("127.0.0.1:2061", "looks like"),
            ("http://a:1", "no transport"),
            ("tcp://a", "looks like"),
            ("tcp://:1", "looks like"),
            ("tcp://a:b", "no number"),
            ("tcp://a:65536", "no number"),
            ("tcp://::1:80", "brackets"),
            ("tcp://[::1]80", "looks like"),
        ] {
            let error = text.parse::<Url>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn names_resolve() {
        let url: Url = "tcp://localhost:7".parse().expect("an address");
        let all = url.resolve().expect("localhost is known");
        assert!(all.iter().all(|a| a.ip().is_loopback() && a.port() == 7));
        let any: Url = "tcp://*:7".parse().expect("an address");
        assert_eq!(any.resolve().expect("no name"), [([0, 0, 0, 0], 7).into()]);
    }
}
