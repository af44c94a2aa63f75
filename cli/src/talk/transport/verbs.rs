//! Verbs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context as _, Result};
use serde::Serialize;
use xio_proto::{Config, Reason, Start, WorkStatus};
use xio_verbs::{DeviceChoice, Error, Options, VerbsDriver};

use super::{Purpose, Room, Side, Spin, Transport, raise_descriptors};
use crate::talk::watch::{Files, Watch};

/// What a driver of verbs counts.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    device: String,
    polls: u64,
    sleeps: u64,
    sends: u64,
    inline: u64,
    signaled: u64,
    reads: u64,
    writes: u64,
    /// `null` when the device does not count them.
    rnr: Option<u64>,
}

/// Where one looks when there is no device, or not the right one.
const LOOK: &str = "`xio devices` lists what this machine has";

/// What brings a device where there is none.
const BRING: &str = "packages: apt-get install rdma-core ibverbs-providers; modules: modprobe -a \
                     ib_uverbs rdma_ucm; without such hardware, soft-RoCE on a network device DEV: \
                     modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV";

impl<W: Watch> Transport for VerbsDriver<W> {
    type Served = Figures;
    type Pinged = Figures;

    fn open(purpose: &Purpose<'_>) -> Result<Self> {
        let addresses = purpose.url.resolve()?;
        let mut last = None;
        // Of a name's addresses, not all need be a device's.
        for address in addresses {
            let device = match purpose.side {
                Side::Server if address.ip().is_unspecified() => DeviceChoice::First,
                Side::Server => DeviceChoice::Address(address.ip()),
                Side::Client => DeviceChoice::Address(source(address)?),
            };
            let (config, room) = (purpose.config(), purpose.room);
            match open::<W>(config, room, device, purpose.spin, purpose.record) {
                Err(error @ (Error::NotFound(_) | Error::Call { .. })) => last = Some(error),
                opened => return opened.map_err(explained),
            }
        }
        Err(explained(last.context("no address of a device")?))
    }

    fn served(&self) -> Figures {
        figures(self)
    }

    fn pinged(&self) -> Figures {
        figures(self)
    }

    fn device(&self) -> Option<String> {
        Some(self.device().name.clone())
    }

    fn listen_advice(error: &std::io::Error) -> &'static str {
        match error.kind() {
            std::io::ErrorKind::AddrNotAvailable => {
                "; no RDMA device has the address: `xio devices` lists those that one has"
            }
            _ => "",
        }
    }

    fn advice(reason: &Reason) -> String {
        match *reason {
            Reason::AddressError(number) if number.abs() == EXDEV => {
                format!("the way there is by another device than this side's; {LOOK}")
            }
            Reason::AddressError(number) if number.abs() == ENODEV => {
                format!("the way there is by a network device without RDMA; {LOOK}")
            }
            Reason::Disconnected => "the peer left without a word; was it stopped?".to_owned(),
            Reason::WorkFailed(WorkStatus::RetryExceeded) => {
                "the peer's device does not answer any more".to_owned()
            }
            Reason::DeviceRemoved => format!("this side's device is gone; {LOOK}"),
            _ => String::new(),
        }
    }
}

/// Linux's number for "invalid cross-device link".
const EXDEV: i32 = 18;
/// Linux's number for "no such device".
const ENODEV: i32 = 19;

/// A driver with so much room on that device.
///
/// # Errors
/// The driver's.
pub(crate) fn open<W: Watch>(
    config: Config,
    room: Room,
    device: DeviceChoice,
    spin: Option<Spin>,
    record: Option<&Files>,
) -> Result<VerbsDriver<W>, Error> {
    let counts = VerbsDriver::counts(&config, room.peers);
    raise_descriptors(room.peers as u64 + 64);
    let mut options = Options {
        device,
        ..Options::default()
    };
    match spin {
        None => {}
        Some(Spin::Never) => options.spin = xio_verbs::Spin::Never,
        Some(Spin::For(time)) => options.spin = xio_verbs::Spin::For(time),
        Some(Spin::Always) => options.spin = xio_verbs::Spin::Always,
    }
    let start = Start { config, counts };
    let watch = W::new(&start, record);
    VerbsDriver::with_trace(start.config, &counts, &options, watch)
}

/// An error of the driver's with what to do about it.
pub(crate) fn explained(error: Error) -> anyhow::Error {
    let advice = match error {
        Error::NoDevice => BRING,
        Error::NotFound(_) | Error::TooSmall { .. } => LOOK,
        _ => "",
    };
    let error = anyhow::Error::new(error);
    match advice {
        "" => error.context("the driver of verbs"),
        advice => anyhow::anyhow!("{error}; {advice}"),
    }
}

fn figures<W: Watch>(driver: &VerbsDriver<W>) -> Figures {
    let stats = driver.stats();
    Figures {
        device: driver.device().name.clone(),
        polls: stats.polls,
        sleeps: stats.sleeps,
        sends: stats.sends,
        inline: stats.inline,
        signaled: stats.signaled,
        reads: stats.reads,
        writes: stats.writes,
        rnr: driver.receiver_not_ready(),
    }
}

/// The address that this machine would send from to reach a peer: the device that has it is the
/// one to use. No packet is sent to find out.
fn source(peer: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).context("a socket to look up a route")?;
    let port = peer.port().max(1);
    socket
        .connect((peer.ip(), port))
        .with_context(|| format!("there is no way to {}", peer.ip()))?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_of_loopback_is_loopback() {
        let own = source("127.0.0.1:0".parse().expect("an address")).expect("a route");
        assert!(own.is_loopback());
    }

    #[test]
    fn missing_device_is_explained_with_commands() {
        let text = format!("{:#}", explained(Error::NoDevice));
        for part in [
            "apt-get install rdma-core",
            "modprobe rdma_rxe",
            "rdma link add rxe0",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
