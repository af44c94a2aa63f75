//! The conformance suite over each driver.

use std::net::{IpAddr, SocketAddr};

use xio_proto::Config;
use xio_sim::{NodeConfig, SimNode};
use xio_tcp::{Options, TcpDriver};
use xio_tests::conformance::Pair;

fn tcp(address: &str, dual: bool, options: &Options) -> Pair<TcpDriver> {
    let driver = |number| {
        let config = Config::new(number, 200, 160);
        let counts = TcpDriver::counts(&config, 8);
        TcpDriver::new(config, &counts, options.clone()).unwrap()
    };
    let address = address.parse().unwrap();
    Pair::new(driver(0), driver(1), address, dual)
}

mod tcp_one_stream {
    xio_tests::conformance_suite!(|| super::tcp("127.0.0.1:0", false, &Default::default()));
}

mod tcp_two_streams {
    xio_tests::conformance_suite!(|| super::tcp("127.0.0.1:0", true, &Default::default()));
}

/// IPv6, and the limits narrow: sockets are always full, everybody's turns are short.
mod tcp_narrow {
    use xio_tcp::Options;

    fn narrow() -> Options {
        Options {
            send_buffer: Some(8192),
            read_budget: 1,
            write_budget: 3000,
            accept_budget: 1,
            staging: 2048,
            staging_max: 0,
            ..Options::default()
        }
    }
    xio_tests::conformance_suite!(|| super::tcp("[::1]:0", true, &narrow()));
}

fn sim(seed: u64) -> Pair<SimNode> {
    let node = |number: u8| {
        let mut config = NodeConfig::new(number);
        config.arena = 512 << 20;
        (config, IpAddr::from([10, 0, 0, number + 1]))
    };
    let mut nodes = SimNode::world(seed, &[node(0), node(1)]).unwrap();
    let client = nodes.pop().unwrap();
    let server = nodes.pop().unwrap();
    let address = SocketAddr::from(([10, 0, 0, 1], 7000));
    Pair::new(server, client, address, false)
}

mod sim_queue_pairs {
    xio_tests::conformance_suite!(|| super::sim(1));
}
