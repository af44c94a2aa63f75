//! One program in three verbs over everything there is, and over plain sockets: the same output.

use std::net::{IpAddr, SocketAddr};

use xio_proto::Config;
use xio_sim::{NodeConfig, SimNode};
use xio_tcp::{Options, TcpDriver};
use xio_tests::pingpong::{Plain, Verbs, told};

const ROUNDS: u64 = 200;

fn tcp(dual: bool) -> [Verbs<TcpDriver>; 2] {
    let driver = |number| {
        let config = Config::new(number, 64, 64);
        let counts = TcpDriver::counts(&config, 2);
        TcpDriver::new(config, &counts, Options::default()).unwrap()
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Verbs::connected(driver(0), driver(1), address, dual)
}

fn sim() -> [Verbs<SimNode>; 2] {
    let node = |number| {
        let address = IpAddr::from([10, 0, 0, number + 1]);
        (NodeConfig::new(number), address)
    };
    let nodes = SimNode::world(7, &[node(0), node(1)]).unwrap();
    let [server, client] = <[SimNode; 2]>::try_from(nodes).unwrap();
    let address = SocketAddr::from(([10, 0, 0, 1], 7000));
    Verbs::connected(server, client, address, false)
}

#[test]
fn the_same_program_over_every_wire() {
    let plain = told(Plain::connected().unwrap(), ROUNDS);
    assert_eq!(plain.len() as u64, 3 * ROUNDS - 1);
    assert_eq!(told(tcp(false), ROUNDS), plain);
    assert_eq!(told(tcp(true), ROUNDS), plain);
    assert_eq!(told(sim(), ROUNDS), plain);
}
