//! Where there is no RDMA, the driver says so, and what to do.

use xio_proto::Config;
use xio_verbs::{Error, Options, VerbsDriver, devices};

#[test]
fn machine_without_devices_says_so() {
    let config = Config::new(0, 64, 64);
    let counts = VerbsDriver::counts(&config, 4);
    let made = VerbsDriver::new(config, &counts, &Options::default()).map(drop);
    let found = devices();
    if std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        assert!(!matches!(found, Err(Error::Call { .. })), "{found:?}");
        return;
    }
    assert_eq!(found, Err(Error::NoDevice));
    assert_eq!(made, Err(Error::NoDevice));
    assert!(Error::NoDevice.to_string().contains("modprobe rdma_ucm"));
}
