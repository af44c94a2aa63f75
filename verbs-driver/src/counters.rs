//! Counters of a device that only the kernel shows.

use std::fs;
use std::path::Path;

/// Where the kernel shows devices.
pub(crate) const DEVICES: &str = "/sys/class/infiniband";

/// Names that drivers of devices have for messages that found no receive, here or at a peer.
const NOT_READY: &[&str] = &[
    "send_rnr_err",
    "rcvd_rnr_err",
    "out_of_buffer",
    "rnr_nak_retry_err",
    "rnr_naks_rcvd",
    "rnr_naks_sent",
];

/// Messages that found no receive, of all ports and all processes since the device is there.
/// `None` when the device does not count them.
pub(crate) fn receiver_not_ready(devices: &Path, name: &str) -> Option<u64> {
    let ports = fs::read_dir(devices.join(name).join("ports")).ok()?;
    let count = |port: &Path, counter| {
        let text = fs::read_to_string(port.join("hw_counters").join(counter)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let mut sum = None;
    for port in ports.flatten() {
        for found in NOT_READY
            .iter()
            .filter_map(|name| count(&port.path(), name))
        {
            sum = Some(sum.unwrap_or(0) + found);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_ports_are_summed_and_missing_ones_are_none() {
        let root = std::env::temp_dir().join(format!("xio-counters-{}", std::process::id()));
        for (port, counter, value) in [
            ("1", "send_rnr_err", "2\n"),
            ("1", "rcvd_rnr_err", "3\n"),
            ("2", "send_rnr_err", "40\n"),
            ("2", "something", "500\n"),
        ] {
            let folder = root.join("a/ports").join(port).join("hw_counters");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(counter), value).unwrap();
        }
        fs::create_dir_all(root.join("b/ports/1/hw_counters")).unwrap();
        assert_eq!(receiver_not_ready(&root, "a"), Some(45));
        assert_eq!(receiver_not_ready(&root, "b"), None);
        assert_eq!(receiver_not_ready(&root, "c"), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
