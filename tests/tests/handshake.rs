//! First frames that no recording has.

use xio_proto::Config;
use xio_tests::golden::{Kind, Place, load};
use xio_tests::stream_pair::{Cut, StreamPair};

/// The recorded setup of a transport connection, with a flag and an id, on a single socket.
fn setup(flags: u16, cid: u32) -> Vec<u8> {
    let transcript = load("tcp-single").unwrap();
    let frame = transcript
        .frames()
        .find(|f| f.1.kind == Kind::NexusSetupReq)
        .unwrap()
        .1;
    let mut bytes = frame.bytes(Place::Main);
    bytes[18..20].copy_from_slice(&flags.to_be_bytes());
    bytes[20..24].copy_from_slice(&cid.to_be_bytes());
    [vec![0, 0, 0, 1, 0, 0, 0, 0], bytes].concat()
}

#[test]
fn who_wants_to_reconnect_is_told_not_to_try_again() {
    let config = |i| Config::new(i, 700, 64);
    let counts = StreamPair::counts(&config(0));
    for (flags, answer) in [
        (0, [0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0]),
        // The id that it came with, "unsuccessful", and the flag that makes it final.
        (1, [0, 0, 0, 9, 0x4a, 0x5e, 0x3a, 0x6d, 1, 0, 0, 1]),
    ] {
        let mut pair = StreamPair::new(config, &counts, Cut::Whole);
        pair.listen(1);
        let stranger = pair.stranger(
            "10.0.0.9:1234",
            &setup(flags, if flags == 0 { 0 } else { 9 }),
        );
        let frame = pair.sides[1].sent.first().expect("an answer");
        assert_eq!(frame[16..28], answer);
        assert_eq!(
            pair.open(stranger.unwrap()),
            flags == 0,
            "a refused peer is let go"
        );
    }
}
