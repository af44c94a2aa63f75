use std::path::PathBuf;

use super::*;

/// A folder like the kernel's.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("xio-inventory-{name}-{}", std::process::id())))
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn port(&self, device: &str, state: &str, gids: &[&str]) {
        let port = format!("ib/{device}/ports/1");
        self.file(&format!("{port}/state"), state);
        self.file(&format!("{port}/link_layer"), "Ethernet\n");
        self.file(&format!("{port}/rate"), "10 Gb/sec (4X SDR)\n");
        for (index, gid) in gids.iter().enumerate() {
            self.file(&format!("{port}/gids/{index}"), gid);
            self.file(&format!("{port}/gid_attrs/ndevs/{index}"), "eth7\n");
            self.file(&format!("{port}/gid_attrs/types/{index}"), "RoCE v2\n");
        }
    }

    fn survey(&self, opened: &[&str]) -> Vec<DeviceReport> {
        let limits: Vec<DeviceLimits> = opened.iter().map(|name| limits(name)).collect();
        survey(&self.0.join("ib"), &self.0.join("verbs"), &limits)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn limits(name: &str) -> DeviceLimits {
    DeviceLimits {
        name: name.to_owned(),
        max_queue: 1,
        max_sge: 1,
        max_completions: 1,
        max_shared: 1,
        max_reads_answered: 1,
        max_reads_issued: 1,
        max_message: 1,
        ports: 1,
        ports_active: 1,
    }
}

const LOCAL: &str = "fe80:0000:0000:0000:0202:03ff:fe04:0506\n";
const FOUR: &str = "0000:0000:0000:0000:0000:ffff:0a63:0001\n";
const NONE: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";

#[test]
fn device_that_can_be_used_has_its_addresses() {
    let tree = Tree::new("good");
    tree.port("rxe0", "4: ACTIVE\n", &[LOCAL, FOUR, NONE]);
    let found = tree.survey(&["rxe0"]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].trouble, []);
    let port = &found[0].ports[0];
    assert_eq!((port.number, &*port.state), (1, "ACTIVE"));
    assert_eq!(port.gids.len(), 2, "unused places are left out");
    assert_eq!(port.gids[0].address, None);
    assert_eq!(port.gids[1].address, Some([10, 99, 0, 1].into()));
    assert_eq!(found[0].address(), Some([10, 99, 0, 1].into()));
    assert_eq!(
        (&*port.gids[1].kind, port.gids[1].interface.as_deref()),
        ("RoCE v2", Some("eth7"))
    );
}

#[test]
fn each_trouble_is_told_with_what_helps() {
    let tree = Tree::new("bad");
    tree.port("a", "1: DOWN\n", &[LOCAL, FOUR]);
    tree.port("b", "4: ACTIVE\n", &[NONE]);
    tree.port("c", "4: ACTIVE\n", &[LOCAL]);
    tree.port("d", "4: ACTIVE\n", &[FOUR]);
    tree.port("e", "4: ACTIVE\n", &[FOUR]);
    tree.file("verbs/uverbs987654/ibdev", "e\n");
    let found = tree.survey(&["a", "b", "c"]);
    let told: Vec<String> = found
        .iter()
        .flat_map(|device| &device.trouble)
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 5, "{told:?}");
    for (text, part) in told.iter().zip([
        "port 1 is DOWN: plug its cable in, and `ip link set eth7 up`",
        "port 1 has no GID",
        "`ip addr add ADDRESS/LENGTH dev eth7`",
        "modprobe ib_uverbs",
        "/dev/infiniband/uverbs987654: No such file",
    ]) {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(found[0].address(), None, "of a port that is down");
}

#[test]
fn one_port_that_can_be_used_is_enough() {
    let tree = Tree::new("ports");
    tree.port("a", "4: ACTIVE\n", &[FOUR]);
    tree.file("ib/a/ports/2/state", "1: DOWN\n");
    let found = tree.survey(&["a"]);
    assert_eq!(found[0].ports.len(), 2);
    assert_eq!(found[0].trouble, []);
}

#[test]
fn machine_without_devices_has_none() {
    if Path::new(DEVICES).exists() {
        return;
    }
    assert_eq!(inventory(), Err(Error::NoDevice));
}
