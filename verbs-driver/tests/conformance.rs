//! The suite of all drivers over real queue pairs: on one device that talks with itself, with one
//! receive queue for all, and on two with a wire between them, with a queue for each, as the machine
//! of `cargo xtask vm` has them.

use std::net::{IpAddr, SocketAddr};

use xio_proto::Config;
use xio_tests::conformance::Pair;
use xio_verbs::{DeviceChoice, Options, Spin, VerbsDriver};

fn pair(server: [u8; 4], client: [u8; 4], spin: Spin, share_receives: bool) -> Pair<VerbsDriver> {
    let driver = |number, ip: [u8; 4]| {
        // As many slots for answers as requests may come at once: their completions come late.
        let config = Config::new(number, 320, 400);
        let counts = VerbsDriver::counts(&config, 8);
        let options = Options {
            device: DeviceChoice::Address(IpAddr::from(ip)),
            spin,
            share_receives,
            rnr_retry_max: 0,
            ..Options::default()
        };
        VerbsDriver::new(config, &counts, &options).unwrap()
    };
    let address = SocketAddr::from((server, 0));
    Pair::new(driver(0, server), driver(1, client), address, false)
}

mod one_device {
    use xio_verbs::Spin;

    const IP: [u8; 4] = [10, 99, 0, 1];
    xio_tests::conformance_suite!(|| super::pair(IP, IP, Spin::Never, true));
}

mod wire {
    use xio_verbs::Spin;

    const FAR: [u8; 4] = [10, 99, 1, 2];
    const NEAR: [u8; 4] = [10, 99, 1, 1];
    xio_tests::conformance_suite!(|| super::pair(FAR, NEAR, Spin::Always, false));
}
