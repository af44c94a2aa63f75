//! The list itself.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use indicatif::HumanBytes;
use serde::Serialize;
use xio_verbs::{DeviceChoice, DeviceLimits, DeviceReport, Error, PortReport, inventory};

use crate::logging::Events;
use crate::output::Output;
use crate::serve;
use crate::talk::transport::{config, verbs};

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Summary {
    devices: Vec<Device>,
    /// Why the list is empty.
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Device {
    name: String,
    usable: bool,
    /// What keeps it from being used.
    trouble: Vec<String>,
    limits: Option<Limits>,
    ports: Vec<Port>,
}

#[derive(Debug, Serialize)]
struct Limits {
    work_requests: u32,
    segments: u32,
    completions: u32,
    reads_answered: u8,
    reads_issued: u8,
    message_bytes: u32,
}

#[derive(Debug, Serialize)]
struct Port {
    number: u8,
    state: String,
    link: String,
    rate: String,
    gids: Vec<Gid>,
}

#[derive(Debug, Serialize)]
struct Gid {
    index: u16,
    gid: String,
    kind: String,
    interface: Option<String>,
    address: Option<IpAddr>,
}

/// Lists the devices and returns whether one of them can be used.
///
/// # Errors
/// When the list cannot be had or printed.
pub(super) fn run(out: &Output) -> Result<bool> {
    let found = match inventory() {
        Ok(found) => found,
        Err(error @ Error::NoDevice) => {
            let why = format!("{:#}", verbs::explained(error));
            out.text(format_args!("{why}\n"))?;
            out.object(&Summary {
                devices: Vec::new(),
                why: Some(why),
            })?;
            return Ok(false);
        }
        Err(error) => return Err(verbs::explained(error)),
    };
    let devices: Vec<Device> = found.into_iter().map(device).collect();
    for device in &devices {
        out.text(text(device))?;
    }
    let is_well = devices.iter().any(|device| device.usable);
    out.object(&Summary { devices, why: None })?;
    Ok(is_well)
}

/// An address of a device that can be used.
///
/// # Errors
/// When there is none; the reasons of all devices are in it.
pub(crate) fn first_address() -> Result<IpAddr> {
    let devices = inventory().map_err(verbs::explained)?;
    let usable = devices.iter().filter(|device| device.trouble.is_empty());
    let address = usable.filter_map(DeviceReport::address).next();
    address.with_context(|| {
        let mut text = "no RDMA device can be used".to_owned();
        for device in &devices {
            for trouble in &device.trouble {
                let _ = write!(text, "; {}: {trouble}", device.name);
            }
        }
        text
    })
}

fn device(report: DeviceReport) -> Device {
    let mut trouble: Vec<String> = report.trouble.iter().map(ToString::to_string).collect();
    let room = serve::room(1);
    if trouble.is_empty()
        && let Err(error) =
            verbs::open::<Events>(config(0, room), room, choice(&report), None, None)
    {
        // What only shows when somebody tries: memory that cannot be locked, queues too short.
        trouble.push(format!("{:#}", verbs::explained(error)));
    }
    Device {
        usable: trouble.is_empty(),
        trouble,
        limits: report.limits.as_ref().map(limits),
        ports: report.ports.iter().map(port).collect(),
        name: report.name,
    }
}

fn choice(report: &DeviceReport) -> DeviceChoice {
    DeviceChoice::Name(report.name.clone())
}

fn limits(limits: &DeviceLimits) -> Limits {
    Limits {
        work_requests: limits.max_queue,
        segments: limits.max_sge,
        completions: limits.max_completions,
        reads_answered: limits.max_reads_answered,
        reads_issued: limits.max_reads_issued,
        message_bytes: limits.max_message,
    }
}

fn port(port: &PortReport) -> Port {
    let gid = |gid: &xio_verbs::Gid| Gid {
        index: gid.index,
        gid: gid.gid.to_string(),
        kind: gid.kind.clone(),
        interface: gid.interface.clone(),
        address: gid.address,
    };
    Port {
        number: port.number,
        state: port.state.clone(),
        link: port.link_layer.clone(),
        rate: port.rate.clone(),
        gids: port.gids.iter().map(gid).collect(),
    }
}

fn text(device: &Device) -> String {
    let mut text = String::new();
    let verdict = if device.usable {
        "can be used"
    } else {
        "cannot be used"
    };
    let _ = writeln!(text, "{}: {verdict}", device.name);
    for trouble in &device.trouble {
        let _ = writeln!(text, "  ! {trouble}");
    }
    if let Some(limits) = &device.limits {
        let _ = writeln!(
            text,
            "  queues of {}, {} segments, {} completions, {} READs each way, messages of up to {}",
            limits.work_requests,
            limits.segments,
            limits.completions,
            limits.reads_answered.min(limits.reads_issued),
            HumanBytes(limits.message_bytes.into())
        );
    }
    for port in &device.ports {
        let Port {
            number,
            state,
            link,
            rate,
            gids,
        } = port;
        let _ = writeln!(text, "  port {number}: {state}, {link}, {rate}");
        for gid in gids {
            let address = gid
                .address
                .map_or_else(|| "-".to_owned(), |a| a.to_string());
            let _ = writeln!(
                text,
                "    gid {}: {address}  {} {} {}",
                gid.index,
                gid.interface.as_deref().unwrap_or("-"),
                gid.kind,
                gid.gid
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_shown_with_what_is_wrong() {
        let device = Device {
            name: "rxe0".to_owned(),
            usable: false,
            trouble: vec!["port 1 is DOWN".to_owned()],
            limits: Some(Limits {
                work_requests: 16384,
                segments: 32,
                completions: 32767,
                reads_answered: 128,
                reads_issued: 64,
                message_bytes: 1 << 30,
            }),
            ports: vec![Port {
                number: 1,
                state: "DOWN".to_owned(),
                link: "Ethernet".to_owned(),
                rate: "2.5 Gb/sec (1X SDR)".to_owned(),
                gids: vec![Gid {
                    index: 1,
                    gid: "::ffff:10.99.0.1".to_owned(),
                    kind: "RoCE v2".to_owned(),
                    interface: Some("v0".to_owned()),
                    address: Some([10, 99, 0, 1].into()),
                }],
            }],
        };
        assert_eq!(
            text(&device),
            "rxe0: cannot be used\n  ! port 1 is DOWN\n  queues of 16384, 32 segments, 32767 \
             completions, 64 READs each way, messages of up to 1.00 GiB\n  port 1: DOWN, Ethernet, \
             2.5 Gb/sec (1X SDR)\n    gid 1: 10.99.0.1  v0 RoCE v2 ::ffff:10.99.0.1\n"
        );
    }
}
