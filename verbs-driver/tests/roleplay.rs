//! The recorded conversations of real peers through the driver: it plays one side over real queue
//! pairs, and bare queue pairs play the other.

use std::net::IpAddr;

use xio_proto::Config;
use xio_proto::storage::Counts;
use xio_tests::roleplay::play_all_queues;
use xio_verbs::{DeviceChoice, Options, RawPeer, Spin, VerbsDriver};

/// Where the recordings were made.
const IP: [u8; 4] = [10, 99, 0, 1];

xio_tests::bare_peer!(Bare, RawPeer);

#[test]
fn recorded_peers_are_understood_over_real_queue_pairs() {
    let driver = |config: Config, counts: &Counts| {
        let options = Options {
            device: DeviceChoice::Address(IpAddr::from(IP)),
            spin: Spin::Never,
            rnr_retry_max: 0,
            ..Options::default()
        };
        VerbsDriver::new(config, counts, &options).unwrap()
    };
    let bare = || Bare(RawPeer::new(IP.into()).unwrap());
    let played = play_all_queues(driver, bare).unwrap_or_else(|what| panic!("{what}"));
    assert!(played >= 13, "{played} recordings");
}
