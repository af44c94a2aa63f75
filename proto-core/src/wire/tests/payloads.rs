//! Payloads of control frames, nexus setup and the small bodies.

use super::std::format;
use super::std::vec::Vec;

use super::*;

/// Asks the parsers of session payloads; what they accept must encode to the same bytes. Returns
/// whether one accepted.
pub(super) fn examine(bytes: &[u8]) -> bool {
    let mut buf = [0; SETUP_PAYLOAD_MAX];
    let mut accepted = false;
    if let Ok(request) = SessionSetupRequest::parse(bytes) {
        let len = request.encode(&mut buf).expect("as long as it came");
        assert_eq!(&buf[..len], bytes);
        assert!(request.uri.starts_with(request.uri_trimmed()));
        accepted = true;
    }
    if let Ok(response) = SessionSetupResponse::parse(bytes) {
        let len = response.encode(&mut buf).expect("as long as it came");
        assert_eq!(&buf[..len], bytes);
        if let SessionSetupResponse::Accept { portals, .. } = response {
            assert_eq!(portals.iter().count(), portals.len());
        }
        accepted = true;
    }
    accepted
}

#[test]
fn session_payload_vectors_survive_damage() {
    for text in [
        vectors::SETUP,
        vectors::ACCEPT,
        vectors::ACCEPT_WITH_PORTAL,
        vectors::REDIRECT,
        vectors::REJECT,
    ] {
        let good = hex(text);
        assert!(examine(&good));
        for len in 0..good.len() {
            examine(&good[..len]);
        }
        let mut bytes = good.clone();
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                bytes[at] = value;
                examine(&bytes);
            }
            bytes[at] = good[at];
        }
    }
}

#[test]
fn setup_request() {
    let bytes = hex(vectors::SETUP);
    let request = SessionSetupRequest::parse(&bytes).expect("a good payload");
    let expected = SessionSetupRequest {
        session_id: 7,
        snd_bytes: 67_108_864,
        rcv_bytes: 67_108_864,
        snd_msgs: 1024,
        rcv_msgs: 1024,
        uri: b"rdma://a:1/r",
        private: b"PD",
    };
    assert_eq!(request, expected);
}

#[test]
fn a_uri_ends_at_its_first_zero() {
    let base = hex(vectors::SETUP);
    let mut request = SessionSetupRequest::parse(&base).expect("a good payload");
    for (uri, trimmed) in [
        (&b"tcp://b:2\0\0\0"[..], &b"tcp://b:2"[..]),
        (b"tcp://b:2", b"tcp://b:2"),
        // What was recorded when a server had redirected its client.
        (b"rdma://10.99.0.1:7012\0\0\0\xe1", b"rdma://10.99.0.1:7012"),
        (b"a\0b\0", b"a"),
        (b"\0\0", b""),
        (b"", b""),
    ] {
        request.uri = uri;
        let mut buf = [0; 100];
        let len = request.encode(&mut buf).expect("fits");
        let parsed = SessionSetupRequest::parse(&buf[..len]).expect("our own payload");
        assert_eq!((parsed.uri, parsed.uri_trimmed()), (uri, trimmed));
    }
}

#[test]
fn setup_answers() {
    let bytes = hex(vectors::ACCEPT_WITH_PORTAL);
    let portals: [&[u8]; 1] = [b"rdma://b:2"];
    let accept = |portals, private| SessionSetupResponse::Accept {
        session_id: 42,
        snd_bytes: 67_108_864,
        rcv_bytes: 67_108_864,
        snd_msgs: 1024,
        rcv_msgs: 1024,
        portals,
        private,
    };
    let portals = Portals::from_slices(&portals);
    assert_eq!(
        SessionSetupResponse::parse(&bytes),
        Ok(accept(portals, b""))
    );
    let bytes = hex(vectors::ACCEPT);
    let parsed = SessionSetupResponse::parse(&bytes);
    assert_eq!(parsed, Ok(accept(Portals::default(), b"OK")));
    let bytes = hex(vectors::REDIRECT);
    let redirect = SessionSetupResponse::Redirect {
        session_id: 42,
        portals,
        private: b"",
    };
    assert_eq!(SessionSetupResponse::parse(&bytes), Ok(redirect));
    assert_eq!(redirect.session_id(), 42);
    let bytes = hex(vectors::REJECT);
    let reject = SessionSetupResponse::Reject {
        session_id: 42,
        reason: status::NO_BUFS,
        private: b"NO",
    };
    assert_eq!(SessionSetupResponse::parse(&bytes), Ok(reject));
}

#[test]
fn portals_sent_are_the_portals_parsed() {
    let uris: [&[u8]; 3] = [b"rdma://b:2", b"", b"tcp://c:3"];
    let portals = Portals::from_slices(&uris);
    let redirect = SessionSetupResponse::Redirect {
        session_id: 1,
        portals,
        private: b"why",
    };
    let mut buf = [0; 100];
    let len = redirect.encode(&mut buf).expect("fits");
    let parsed = SessionSetupResponse::parse(&buf[..len]).expect("our own payload");
    assert_eq!(parsed, redirect);
    let SessionSetupResponse::Redirect { portals, .. } = parsed else {
        panic!("another answer");
    };
    assert_eq!((portals.len(), portals.is_empty()), (3, false));
    assert!(portals.iter().eq(uris));
    assert_eq!(portals.iter().len(), 3);
}

#[test]
fn payloads_too_long_are_not_written() {
    let private = [7; SETUP_PAYLOAD_MAX];
    let base = hex(vectors::SETUP);
    let mut request = SessionSetupRequest::parse(&base).expect("a good payload");
    let mut buf = [0; SETUP_PAYLOAD_MAX + 100];
    request.uri = b"";
    request.private = &private[..SETUP_PAYLOAD_MAX - 28];
    assert_eq!(request.encode(&mut buf), Ok(SETUP_PAYLOAD_MAX));
    request.uri = b"x";
    let error = TooLong {
        len: SETUP_PAYLOAD_MAX + 1,
        max: SETUP_PAYLOAD_MAX,
    };
    assert_eq!(request.encode(&mut buf), Err(error));
    assert_eq!(
        format!("{error}"),
        "payload of 3841 bytes, at most 3840 possible"
    );
    request.private = b"";
    assert_eq!(
        request.encode(&mut buf[..28]),
        Err(TooLong { len: 29, max: 28 })
    );
    let reject = SessionSetupResponse::Reject {
        session_id: 0,
        reason: 0,
        private: &private,
    };
    assert!(reject.encode(&mut buf).is_err());
    let uri: &[u8] = &private;
    let uris = [uri; 40];
    let portals = Portals::from_slices(&uris);
    let redirect = SessionSetupResponse::Redirect {
        session_id: 0,
        portals,
        private: b"",
    };
    assert!(redirect.encode(&mut buf).is_err());
}

#[test]
fn violations_of_payloads_have_offsets_in_the_frame() {
    let mut bytes = vectors::get("dual session_setup_req");
    bytes[96 + 27] = 1;
    let request = Request::parse(&bytes, Framing::TcpDual, &BOUNDS).expect("a good frame");
    let violation = request.session_setup().expect_err("one byte over");
    assert_eq!(violation, Violation::new(What::TrailingBytes, 96 + 41, 1));
    let mut bytes = vectors::get("dual cancel_req");
    bytes[96 + 9] = 17;
    let request = Request::parse(&bytes, Framing::TcpDual, &BOUNDS).expect("a good frame");
    let violation = request.cancel().expect_err("a wrong length word");
    assert_eq!(violation, Violation::new(What::BodyLength, 96 + 8, 17));
}

#[test]
fn cancel_payloads() {
    for (text, result) in [
        (vectors::CANCEL_REQ, 0),
        (vectors::CANCEL_RSP, status::MSG_CANCELED),
    ] {
        let bytes = hex(text);
        let cancel = Cancel {
            sn: 15,
            result,
            requester: 7,
            responder: 42,
            serial: 14,
        };
        assert_eq!(Cancel::parse(&bytes), Ok(cancel));
        let mut buf = [0; Cancel::LEN];
        assert_eq!(cancel.encode(&mut buf), Cancel::LEN);
        assert_eq!(&buf[..], bytes);
        for len in 0..bytes.len() {
            assert_eq!(
                Cancel::parse(&bytes[..len]).map_err(|it| it.what),
                Err(What::Truncated)
            );
        }
    }
}

#[test]
fn credit_and_read_ack_frames() {
    let bytes = vectors::get("credit_nop");
    let nop = CreditNop {
        sn: 5,
        ack_sn: 9,
        credits: 31,
    };
    assert_eq!(CreditNop::parse(&bytes), Ok(nop));
    assert_eq!((bytes.len(), CreditNop::LEN), (28, 28));
    let bytes = vectors::get("read_ack");
    assert_eq!(ReadAck::parse(&bytes), Ok(ReadAck { rtid: 15 }));
    assert_eq!((bytes.len(), ReadAck::LEN), (22, 22));
    let what = |name: &str, at: usize, value: u8| {
        let mut bytes = vectors::get(name);
        bytes[at] = value;
        let nop = CreditNop::parse(&bytes).map_err(|it| it.what);
        let ack = ReadAck::parse(&bytes).map_err(|it| it.what);
        if name == "read_ack" {
            ack.err()
        } else {
            nop.err()
        }
    };
    assert_eq!(what("credit_nop", 17, 13), Some(What::BodyLength));
    assert_eq!(what("credit_nop", 24, 1), Some(What::NopFields));
    assert_eq!(what("credit_nop", 25, 1), Some(What::NopFields));
    assert_eq!(what("credit_nop", 27, 1), None, "a pad");
    assert_eq!(what("read_ack", 17, 5), Some(What::BodyLength));
    let wrong = CreditNop::parse(&vectors::get("read_ack")).expect_err("another kind");
    assert_eq!(wrong, Violation::new(What::WrongKind, 4, 0x2004));
}

#[test]
fn nexus_setup() {
    let defaults = SetupParams {
        buffer_size: 9216,
        max_in_sges: 4,
        max_out_sges: 4,
        max_header: 256,
        ..SetupParams::default()
    };
    let client = SetupParams {
        sq_depth: 5,
        rq_depth: 256,
        ..defaults
    };
    let server = SetupParams {
        credits: 288,
        sq_depth: 256,
        rq_depth: 256,
        ..defaults
    };
    let rkeys = RkeyTable::default();
    let request = NexusSetupRequest {
        flags: 0,
        cid: 0,
        params: client,
        rkeys,
    };
    let bytes = vectors::get("rdma nexus_setup_req");
    assert_eq!(NexusSetupRequest::parse(&bytes, Dialect::Rdma), Ok(request));
    let response = NexusSetupResponse {
        cid: 1,
        status: 0,
        flags: 0,
        params: server,
        rkeys,
    };
    let bytes = vectors::get("rdma nexus_setup_rsp");
    assert_eq!(
        NexusSetupResponse::parse(&bytes, Dialect::Rdma),
        Ok(response)
    );
    let request = NexusSetupRequest {
        params: defaults,
        ..request
    };
    let bytes = vectors::get("tcp nexus_setup_req");
    assert_eq!(NexusSetupRequest::parse(&bytes, Dialect::Tcp), Ok(request));
    let response = NexusSetupResponse {
        params: defaults,
        ..response
    };
    let bytes = vectors::get("tcp nexus_setup_rsp");
    assert_eq!(
        NexusSetupResponse::parse(&bytes, Dialect::Tcp),
        Ok(response)
    );
}

#[test]
fn nexus_refusal_and_keys() {
    let bytes = vectors::get("rdma nexus_setup_rsp refused");
    let refused = NexusSetupResponse::parse(&bytes, Dialect::Rdma).expect("a good frame");
    assert_eq!((refused.cid, refused.flags), (9, NEXUS_RECONNECT));
    assert_eq!(refused.status, status::UNSUCCESSFUL);
    let bytes = vectors::get("rdma nexus_setup_req with keys");
    let request = NexusSetupRequest::parse(&bytes, Dialect::Rdma).expect("a good frame");
    assert_eq!((request.cid, request.flags), (9, NEXUS_RECONNECT));
    assert!(request.rkeys.iter().eq([(0x1111, 0x2222)]));
    assert_eq!((request.rkeys.len(), request.rkeys.is_empty()), (1, false));
    assert_eq!(format!("{:?}", request.rkeys), "[(4369, 8738)]");
}

#[test]
fn the_setup_pad_goes_both_ways() {
    for (dialect, len) in [(Dialect::Rdma, 56), (Dialect::Tcp, 48)] {
        let params = SetupParams {
            buffer_size: 112,
            pad: 0xdead_beef,
            ..SetupParams::default()
        };
        let rkeys = RkeyTable::default();
        let request = NexusSetupRequest {
            flags: 0,
            cid: 0,
            params,
            rkeys,
        };
        let mut buf: Vec<u8> = std::vec![0xa5; 100];
        assert_eq!(request.encode(&mut buf, dialect), len);
        assert_eq!(NexusSetupRequest::parse(&buf[..len], dialect), Ok(request));
        assert!(buf[len..].iter().all(|byte| *byte == 0xa5));
    }
}

#[test]
fn another_nexus_version_is_named() {
    for (name, at) in [("tcp nexus_setup_req", 16), ("rdma nexus_setup_req", 16)] {
        let mut bytes = vectors::get(name);
        bytes[at + 1] = 2;
        let dialect = if at == 16 && name.starts_with("tcp") {
            Dialect::Tcp
        } else {
            Dialect::Rdma
        };
        let violation = NexusSetupRequest::parse(&bytes, dialect).expect_err("version 1.2");
        assert_eq!(violation, Violation::new(What::NexusVersion, 16, 0x0102));
    }
    let mut bytes = vectors::get("tcp nexus_setup_rsp");
    bytes[24] = 3;
    let violation = NexusSetupResponse::parse(&bytes, Dialect::Tcp).expect_err("version 3.0");
    assert_eq!(violation, Violation::new(What::NexusVersion, 24, 0x0300));
}
