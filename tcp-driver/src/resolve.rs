//! URLs and host names. Looking up a name may take seconds, so it is never done in a poll: before
//! it, by the caller, or in a thread of its own that wakes the driver when it is done.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use crate::waker::Waker;

/// `tcp://host:port/resource`, as libxio has it. The host is a name, an IPv4 address, or an IPv6
/// address in brackets; the resource may be missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    text: String,
    host: (usize, usize),
    port: u16,
}

/// A text that is no URL of sockets, and what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadUrl {
    /// The text.
    pub url: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.url, self.why)
    }
}

impl std::error::Error for BadUrl {}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        let bad = |why| BadUrl {
            url: text.to_owned(),
            why,
        };
        let rest = text.strip_prefix("tcp://");
        let rest = rest.ok_or_else(|| bad("it does not begin with tcp://"))?;
        let at = text.len() - rest.len();
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = authority
            .rsplit_once(':')
            .ok_or_else(|| bad("no port; as in tcp://host:port"))?;
        let port = port.parse();
        let port = port.map_err(|_| bad("the port is no number from 0 to 65535"))?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if bracketed.is_none() && host.contains([':', '[', ']']) {
            return Err(bad(
                "an IPv6 address goes in brackets; as in tcp://[::1]:port",
            ));
        }
        if bracketed.unwrap_or(host).is_empty() {
            return Err(bad("no host"));
        }
        let inset = usize::from(bracketed.is_some());
        Ok(Self {
            text: text.to_owned(),
            host: (at + inset, at + host.len() - inset),
            port,
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Url {
    /// The whole text; what a client's `SessionOpen` names.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.text[self.host.0..self.host.1]
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What follows the port, with its slash; empty when nothing does.
    pub fn resource(&self) -> &str {
        let rest = &self.text[self.host.1..];
        rest.find('/').map_or("", |at| &rest[at..])
    }

    /// The addresses of the host, in the order that the system prefers. May block for as long as
    /// the system's resolver does.
    ///
    /// # Errors
    /// What the resolver says; `NotFound` when it knows the name and no address for it.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<_> = (self.host(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() {
            let text = format!("{} has no address", self.host());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(found)
    }

    /// As [`resolve`](Self::resolve) in a thread made for it, which then wakes the driver. It ends
    /// with the lookup.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn resolve_aside(&self, waker: Waker) -> io::Result<Lookup> {
        let (tell, hear) = channel();
        let url = self.clone();
        let thread = std::thread::Builder::new().name("xio-resolve".to_owned());
        thread.spawn(move || {
            // Whoever asked may be gone.
            let _ = tell.send(url.resolve());
            waker.wake();
        })?;
        Ok(Lookup(hear))
    }
}

/// A lookup under way in another thread.
#[derive(Debug)]
pub struct Lookup(Receiver<io::Result<Vec<SocketAddr>>>);

impl Lookup {
    /// The result, once; `None` while there is none yet.
    pub fn done(&mut self) -> Option<io::Result<Vec<SocketAddr>>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let gone = io::Error::other("the lookup's result was taken, or its thread died");
                Some(Err(gone))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart() {
        let url: Url = "tcp://localhost:7000/a/b".parse().expect("a URL");
        assert_eq!(
            (url.host(), url.port(), url.resource()),
            ("localhost", 7000, "/a/b")
        );
        let url: Url = "tcp://[::1]:0".parse().expect("a URL");
        assert_eq!((url.host(), url.port(), url.resource()), ("::1", 0, ""));
        let found = url.resolve().expect("no lookup needed");
        assert_eq!(found, ["[::1]:0".parse().expect("an address")]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("rdma://host:1", "it does not begin with tcp://"),
            ("tcp://host/x", "no port; as in tcp://host:port"),
            ("tcp://host:70000", "the port is no number from 0 to 65535"),
            (
                "tcp://::1:80",
                "an IPv6 address goes in brackets; as in tcp://[::1]:port",
            ),
            ("tcp://:80", "no host"),
            ("tcp://[]:80", "no host"),
        ] {
            assert_eq!(text.parse::<Url>().expect_err("wrong").why, why, "{text}");
        }
    }
}
