//! The recorded conversations through the driver over the table.

use xio_proto::Config;
use xio_proto::storage::Counts;
use xio_tests::roleplay::play_all_queues;

use super::{IP, World, with};
use crate::options::{DeviceChoice, Options, Spin};
use crate::{RawPeer, VerbsDriver};

xio_tests::bare_peer!(Bare, RawPeer);

#[test]
fn recorded_peers_are_understood_over_the_table() {
    with(|world| *world = World::default());
    let driver = |config: Config, counts: &Counts| {
        let options = Options {
            device: DeviceChoice::Address(IP.into()),
            spin: Spin::Never,
            huge_pages: false,
            rnr_retry_max: 0,
            ..Options::default()
        };
        VerbsDriver::new(config, counts, &options).unwrap()
    };
    let bare = || Bare(RawPeer::new(IP.into()).unwrap());
    let played = play_all_queues(driver, bare).unwrap_or_else(|what| panic!("{what}"));
    assert!(played >= 13, "{played} recordings");
    assert_eq!(with(|world| (world.things.len(), world.not_ready)), (0, 0));
}
