//! What devices a machine has, as its kernel shows them, and what keeps one from being used.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use crate::counters::DEVICES;
use crate::device::{DeviceLimits, devices};
use crate::error::Error;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its name, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// What it says of itself; `None` when it cannot be opened.
    pub limits: Option<DeviceLimits>,
    /// Its ports.
    pub ports: Vec<PortReport>,
    /// What keeps it from being used; empty when nothing does.
    pub trouble: Vec<Trouble>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Its number, from 1 on.
    pub number: u8,
    /// Its state, such as `ACTIVE`, `INIT` or `DOWN`.
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// What the kernel says of its speed.
    pub rate: String,
    /// Its addresses on the link.
    pub gids: Vec<Gid>,
}

/// An address of a port on its link, and the IP address that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u16,
    /// Itself, as 16 bytes in the usual notation of IPv6.
    pub gid: Ipv6Addr,
    /// Its kind, such as `RoCE v2`; empty where the kernel does not say.
    pub kind: String,
    /// The network device that it belongs to.
    pub interface: Option<String>,
    /// The IP address that it stands for, on an Ethernet port.
    pub address: Option<IpAddr>,
}

/// What keeps a device from being used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// libibverbs does not open it: no such file, no right to it, or no provider for it.
    Closed {
        /// The file by which programs reach it, if there is one.
        file: Option<String>,
        /// The system's error number for opening that file; 0 if it can be opened.
        code: i32,
    },
    /// No port is up.
    PortDown {
        /// The port.
        port: u8,
        /// Its state.
        state: String,
        /// Its network device, where that is known.
        interface: Option<String>,
    },
    /// A port that is up has no GID.
    NoGid {
        /// The port.
        port: u8,
    },
    /// A port that is up has GIDs, but no IP address.
    NoAddress {
        /// The port.
        port: u8,
        /// Its network device, where that is known.
        interface: Option<String>,
    },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dev =
            |interface: &Option<String>| interface.clone().unwrap_or_else(|| "DEV".to_owned());
        match self {
            Self::Closed { file: None, .. } => f.write_str(
                "the kernel offers it to no program: load the module ib_uverbs (modprobe ib_uverbs)",
            ),
            Self::Closed {
                file: Some(file),
                code: 0,
            } => write!(
                f,
                "libibverbs has no provider for it, though {file} is there: install the package \
                 ibverbs-providers, or the one of its maker"
            ),
            Self::Closed {
                file: Some(file),
                code,
            } => write!(
                f,
                "{file}: {}: the user needs the right to read and write it",
                std::io::Error::from_raw_os_error(*code)
            ),
            Self::PortDown {
                port,
                state,
                interface,
            } => write!(
                f,
                "port {port} is {state}: plug its cable in, and `ip link set {} up`",
                dev(interface)
            ),
            Self::NoGid { port } => write!(
                f,
                "port {port} has no GID: its network device has no address (ip addr add), or its \
                 subnet no manager"
            ),
            Self::NoAddress { port, interface } => write!(
                f,
                "port {port} has no IP address: `ip addr add ADDRESS/LENGTH dev {}`",
                dev(interface)
            ),
        }
    }
}

impl DeviceReport {
    /// The first IP address by which peers reach it.
    pub fn address(&self) -> Option<IpAddr> {
        let active = self.ports.iter().filter(|port| port.is_active());
        let mut addresses = active.flat_map(|port| &port.gids).filter_map(|g| g.address);
        addresses.next()
    }
}

impl PortReport {
    /// Whether messages go out and come in.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    fn interface(&self) -> Option<String> {
        self.gids.iter().find_map(|gid| gid.interface.clone())
    }
}

/// All devices that the kernel has, in the order of their names.
///
/// # Errors
/// `NoDevice` when there is none.
pub fn inventory() -> Result<Vec<DeviceReport>, Error> {
    let limits = match devices() {
        Ok(found) => found,
        // The kernel may have some that cannot be opened.
        Err(Error::NoDevice) => Vec::new(),
        Err(error) => return Err(error),
    };
    let found = survey(
        Path::new(DEVICES),
        Path::new("/sys/class/infiniband_verbs"),
        &limits,
    );
    if found.is_empty() {
        return Err(Error::NoDevice);
    }
    Ok(found)
}

fn survey(devices: &Path, verbs: &Path, limits: &[DeviceLimits]) -> Vec<DeviceReport> {
    let one = |name: String| {
        let limits = limits.iter().find(|limits| limits.name == name).cloned();
        let ports: Vec<PortReport> = names(&devices.join(&name).join("ports"))
            .iter()
            .filter_map(|number| port(&devices.join(&name), number))
            .collect();
        let mut trouble = Vec::new();
        if limits.is_none() {
            trouble.push(closed(verbs, &name));
        }
        trouble.extend(trouble_of(&devices.join(&name), &ports));
        DeviceReport {
            name,
            limits,
            ports,
            trouble,
        }
    };
    names(devices).into_iter().map(one).collect()
}

/// What is wrong with all ports; one that can be used is enough.
fn trouble_of(device: &Path, ports: &[PortReport]) -> Vec<Trouble> {
    let interface = |port: &PortReport| {
        // Those of software devices say what they were made for.
        let parent = fs::read_to_string(device.join("parent")).ok();
        port.interface()
            .or_else(|| parent.map(|p| p.trim().to_owned()))
    };
    let one = |port: &PortReport| {
        let number = port.number;
        if !port.is_active() {
            Some(Trouble::PortDown {
                port: number,
                state: port.state.clone(),
                interface: interface(port),
            })
        } else if port.gids.is_empty() {
            Some(Trouble::NoGid { port: number })
        } else if port.link_layer == "Ethernet" && port.gids.iter().all(|g| g.address.is_none()) {
            Some(Trouble::NoAddress {
                port: number,
                interface: interface(port),
            })
        } else {
            None
        }
    };
    let found: Vec<Option<Trouble>> = ports.iter().map(one).collect();
    if found.iter().any(Option::is_none) {
        return Vec::new();
    }
    found.into_iter().flatten().collect()
}

/// Why a device that is there cannot be opened.
fn closed(verbs: &Path, name: &str) -> Trouble {
    let is_its = |entry: &String| {
        let device = fs::read_to_string(verbs.join(entry).join("ibdev"));
        device.is_ok_and(|device| device.trim() == name)
    };
    let Some(entry) = names(verbs).into_iter().find(is_its) else {
        return Trouble::Closed {
            file: None,
            code: 0,
        };
    };
    let file = format!("/dev/infiniband/{entry}");
    let opened = fs::File::options().read(true).write(true).open(&file);
    Trouble::Closed {
        code: opened.err().and_then(|e| e.raw_os_error()).unwrap_or(0),
        file: Some(file),
    }
}

fn port(device: &Path, number: &str) -> Option<PortReport> {
    let folder = device.join("ports").join(number);
    let text = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        text.trim().to_owned()
    };
    let state = text("state");
    Some(PortReport {
        number: number.parse().ok()?,
        // `4: ACTIVE`
        state: state
            .split_once(": ")
            .map_or(&*state, |(_, name)| name)
            .to_owned(),
        gids: gids(&folder, text("link_layer") == "Ethernet"),
        link_layer: text("link_layer"),
        rate: text("rate"),
    })
}

/// The GIDs of a port that are in use. Most places of its table are not, and read as 0.
fn gids(port: &Path, has_addresses: bool) -> Vec<Gid> {
    let one = |entry: &String| {
        let gid: Ipv6Addr = fs::read_to_string(port.join("gids").join(entry))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        if gid.octets()[8..] == [0; 8] {
            return None;
        }
        let attribute = |name: &str| {
            let text = fs::read_to_string(port.join("gid_attrs").join(name).join(entry)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        Some(Gid {
            index: entry.parse().ok()?,
            gid,
            kind: attribute("types").unwrap_or_default(),
            interface: attribute("ndevs"),
            address: address(gid).filter(|_| has_addresses),
        })
    };
    let mut found: Vec<Gid> = names(&port.join("gids")).iter().filter_map(one).collect();
    found.sort_by_key(|gid| gid.index);
    found
}

/// The IP address that a GID of an Ethernet port stands for. One that is made from a hardware
/// address is none: it is good on one link only.
fn address(gid: Ipv6Addr) -> Option<IpAddr> {
    match gid.to_ipv4_mapped() {
        Some(four) => Some(four.into()),
        None if gid.is_unicast_link_local() => None,
        None => Some(gid.into()),
    }
}

/// Names in a folder, sorted; none when there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests;
