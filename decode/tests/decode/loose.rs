//! Hex text and bare bytes.

use xio_decode::{DialectHint, Options, SourceError};
use xio_tests::golden::{self, Dialect, hex};

use super::{see, try_see};

#[test]
fn frames_of_recordings_are_decoded_from_hex() {
    for name in ["tcp-single", "rdma-basic"] {
        let transcript = golden::load(name).expect("there");
        let frames = transcript.frames();
        let bytes: Vec<u8> = frames.flat_map(|(_, frame)| frame.contiguous()).collect();
        let kinds: Vec<_> = transcript.frames().map(|(_, f)| f.kind.name()).collect();
        let text = hex(&bytes);
        let lines: Vec<&str> = text
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).expect("digits"))
            .collect();
        for input in [
            bytes.clone(),
            text.clone().into_bytes(),
            lines.join("\n").into_bytes(),
        ] {
            let seen = see(&input);
            assert_eq!(seen.kinds(), kinds, "{name}");
            assert_eq!(seen.troubles(), Vec::<String>::new(), "{name}");
        }
    }
}

#[test]
fn every_frame_alone_is_decoded_with_its_dialect() {
    for transcript in golden::load_all().expect("recordings") {
        let dialect = match transcript.dialect {
            Dialect::Rdma => DialectHint::Rdma,
            Dialect::Tcp => DialectHint::Tcp,
        };
        for (_, frame) in transcript.frames() {
            let bytes = frame.contiguous();
            let on_one_socket = frame.bytes(golden::Place::Main).len() == bytes.len();
            let seen = try_see(&bytes, Options { dialect }).expect("decoded");
            assert_eq!(seen.kinds()[0], frame.kind.name(), "{}", transcript.name);
            if on_one_socket {
                assert_eq!(seen.troubles(), Vec::<String>::new(), "{}", transcript.name);
            }
        }
    }
}

#[test]
fn what_a_socket_brought_begins_with_a_connect_message() {
    let seen = see(
        b"00000001 00000000 58494f50 00000082 00000000 00000020 01000000 00000000 \
          00000000 00002400 00000004 00000004 00000100 00000000",
    );
    assert_eq!(seen.kinds(), ["CONNECT_MSG", "NEXUS_SETUP_REQ"]);
    assert_eq!(seen.troubles(), Vec::<String>::new());
}

#[test]
fn what_is_nothing_is_refused() {
    let refused = |input: &[u8]| try_see(input, Options::default()).expect_err("nothing");
    assert!(matches!(refused(b""), SourceError::Empty));
    assert!(matches!(refused(b"hello"), SourceError::Unknown(_)));
    assert!(refused(&[7; 100]).to_string().contains("07 07 07"));
}
