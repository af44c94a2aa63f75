//! Sockets.

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use xio_proto::driver::Driver as _;
use xio_proto::{Reason, Start};
use xio_tcp::{Options, TcpDriver};

use super::{Purpose, Transport, raise_descriptors};
use crate::talk::watch::Watch;

/// What a server of sockets counts.
#[derive(Debug, Serialize)]
pub(crate) struct Served {
    accepted: u64,
    strays: u64,
}

/// A client of sockets has nothing of its own to say.
#[derive(Debug, Serialize)]
pub(crate) struct Pinged {}

impl<W: Watch> Transport for TcpDriver<W> {
    type Served = Served;
    type Pinged = Pinged;

    fn open(purpose: &Purpose<'_>) -> Result<Self> {
        ensure!(
            purpose.spin.is_none(),
            "--spin is for rdma:// addresses: sockets always wait for the system"
        );
        let config = purpose.config();
        let counts = TcpDriver::counts(&config, purpose.room.peers);
        raise_descriptors(2 * purpose.room.peers as u64 + 64);
        let start = Start { config, counts };
        let watch = W::new(&start, purpose.record);
        Self::with_trace(start.config, &counts, Options::default(), watch)
            .with_context(|| format!("the driver of sockets for {}", purpose.url))
    }

    fn served(&self) -> Served {
        let stats = self.stats();
        Served {
            accepted: stats.accepted,
            strays: self.look(|endpoint| endpoint.counters().strays),
        }
    }

    fn pinged(&self) -> Pinged {
        Pinged {}
    }

    fn accept_pauses(&self) -> u64 {
        self.stats().accept_pauses
    }

    fn listen_advice(error: &std::io::Error) -> &'static str {
        match error.kind() {
            std::io::ErrorKind::AddrNotAvailable => {
                "; no interface of this machine has the address: 0.0.0.0 is all of them"
            }
            _ => "",
        }
    }

    fn advice(reason: &Reason) -> String {
        match reason {
            Reason::Disconnected => {
                "the peer closed its sockets without a word; was it stopped?".to_owned()
            }
            _ => String::new(),
        }
    }
}
