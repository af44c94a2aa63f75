//! The program in three verbs over real queue pairs tells what it tells over plain sockets.

use std::net::{IpAddr, SocketAddr};

use xio_proto::Config;
use xio_tests::pingpong::{Plain, Verbs, told};
use xio_verbs::{DeviceChoice, Options, VerbsDriver};

const ROUNDS: u64 = 200;

fn ends(server: [u8; 4], client: [u8; 4], share_receives: bool) -> [Verbs<VerbsDriver>; 2] {
    let driver = |number, ip: [u8; 4]| {
        let config = Config::new(number, 64, 64);
        let counts = VerbsDriver::counts(&config, 2);
        let options = Options {
            device: DeviceChoice::Address(IpAddr::from(ip)),
            share_receives,
            rnr_retry_max: 0,
            ..Options::default()
        };
        VerbsDriver::new(config, &counts, &options).unwrap()
    };
    let address = SocketAddr::from((server, 0));
    Verbs::connected(driver(0, server), driver(1, client), address, false)
}

#[test]
fn the_same_program_as_over_plain_sockets() {
    const LOOP: [u8; 4] = [10, 99, 0, 1];
    const WIRE: [[u8; 4]; 2] = [[10, 99, 1, 2], [10, 99, 1, 1]];
    let plain = told(Plain::connected().unwrap(), ROUNDS);
    assert_eq!(plain.len() as u64, 3 * ROUNDS - 1);
    for shares in [false, true] {
        assert_eq!(told(ends(LOOP, LOOP, shares), ROUNDS), plain);
        assert_eq!(told(ends(WIRE[0], WIRE[1], shares), ROUNDS), plain);
    }
}
