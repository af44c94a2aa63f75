//! One test for each gap in libxio's checks that a codec can close, numbered as in the list of
//! such gaps; the missing numbers are about state, and closed by the state machine. After them,
//! the remaining strict checks.

use super::std::vec::Vec;

use super::*;

/// A vector with some of its bytes replaced.
pub(super) fn changed(name: &str, changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vectors::get(name);
    for (at, new) in changes {
        bytes[*at..*at + new.len()].copy_from_slice(new);
    }
    bytes
}

fn request(name: &str, framing: Framing, changes: &[(usize, &[u8])]) -> Violation {
    let bytes = changed(name, changes);
    Request::parse(&bytes, framing, &BOUNDS).expect_err("a defect")
}

fn response(name: &str, framing: Framing, changes: &[(usize, &[u8])]) -> Violation {
    let bytes = changed(name, changes);
    Response::parse(&bytes, framing, &BOUNDS).expect_err("a defect")
}

const RDMA_REQ: &str = "rdma msg_req inline";
const RDMA_RSP: &str = "rdma msg_rsp inline";

#[test]
fn hole_01_length_word_truncated_to_32_bits() {
    for len in [1_u64 << 32 | 89, u64::MAX, 1 << 63, 0x1_0000] {
        let violation = request(RDMA_REQ, Framing::Rdma, &[(8, &len.to_be_bytes())]);
        assert_eq!(violation, Violation::new(What::TlvLenTooLarge, 8, len));
        let bytes = changed(RDMA_REQ, &[(8, &len.to_be_bytes())]);
        assert_eq!(peek_kind(&bytes, Framing::Rdma), Err(violation));
        let tlv = bytes.first_chunk().expect("a start");
        assert_eq!(
            control_len(tlv, Framing::TcpDual, BOUNDS.frame_max),
            Err(violation)
        );
    }
    let violation = request(RDMA_REQ, Framing::Rdma, &[(8, &0xffff_u64.to_be_bytes())]);
    assert_eq!(violation.what, What::TlvLenMismatch);
}

#[test]
fn hole_01_length_word_of_frames_above_its_range() {
    let bounds = Bounds {
        frame_max: u32::MAX,
        ..BOUNDS
    };
    let frame = |announced: u64| {
        let mut bytes = changed(RDMA_REQ, &[(88, &70_000_u64.to_be_bytes())]);
        bytes[8..16].copy_from_slice(&announced.to_be_bytes());
        bytes.resize(100 + 70_000, 0);
        bytes
    };
    let counted = frame(84 + 70_000);
    let violation = Request::parse(&counted, Framing::Rdma, &bounds).expect_err("too large");
    assert_eq!(violation, Violation::new(What::TlvLenTooLarge, 8, 70_084));
    let gathered = frame(84);
    let request = Request::parse(&gathered, Framing::Rdma, &bounds).expect("a good frame");
    assert_eq!(request.data().len(), 70_000);
}

#[test]
fn hole_02_sge_counts_unbounded() {
    for count in [5_u16, 400, 0xffff] {
        let count_bytes = count.to_be_bytes();
        let violation = request(RDMA_REQ, Framing::Rdma, &[(72, &count_bytes)]);
        assert_eq!(
            violation,
            Violation::new(What::TooManyInSges, 72, count.into())
        );
        let violation = request("rdma request to read", Framing::Rdma, &[(74, &count_bytes)]);
        assert_eq!(
            violation,
            Violation::new(What::TooManyOutSges, 74, count.into())
        );
    }
    // Within the bounds, but not within the frame.
    let violation = request(RDMA_REQ, Framing::Rdma, &[(72, &[0, 4])]);
    assert_eq!(violation.what, What::TlvLenMismatch);
}

#[test]
fn hole_03_response_list_unbounded() {
    for name in ["rdma response written", "rdma response to read"] {
        for count in [5_u16, 0xffff] {
            let violation = response(name, Framing::Rdma, &[(74, &count.to_be_bytes())]);
            assert_eq!(
                violation,
                Violation::new(What::TooManyOutSges, 74, count.into())
            );
        }
        let violation = response(name, Framing::Rdma, &[(74, &[0, 4])]);
        assert_eq!(violation.what, What::TlvLenMismatch);
    }
}

#[test]
fn hole_06_inline_data_above_the_frame_limit() {
    for len in [9117_u64, 5_000_000, u64::MAX] {
        let data_len = (88, &len.to_be_bytes()[..]);
        for (name, framing) in [
            ("dual msg_req inline", Framing::TcpDual),
            ("single msg_req inline", Framing::TcpSingle),
            (RDMA_REQ, Framing::Rdma),
        ] {
            assert_eq!(request(name, framing, &[data_len]).what, What::FrameTooLong);
        }
        let bytes = changed("dual msg_req inline", &[data_len]);
        let plan = stream_plan(&bytes[..100], Framing::TcpDual, Kind::MsgReq, &BOUNDS);
        assert_eq!(plan.expect_err("too long").what, What::FrameTooLong);
    }
    let bytes = changed("dual msg_req inline", &[(88, &9116_u64.to_be_bytes())]);
    let plan = stream_plan(&bytes[..100], Framing::TcpDual, Kind::MsgReq, &BOUNDS);
    assert_eq!(
        plan,
        Ok(StreamPlan {
            data_inline: 9116,
            payload: 0
        })
    );
}

#[test]
fn hole_07_lengths_do_not_add_up() {
    for framing in [Framing::Rdma, Framing::TcpSingle, Framing::TcpDual] {
        let name = match framing {
            Framing::Rdma => RDMA_REQ,
            Framing::TcpSingle => "single msg_req inline",
            Framing::TcpDual => "dual msg_req inline",
        };
        for (at, value) in [(81, 3), (81, 5), (83, 1), (95, 4), (95, 6)] {
            let violation = request(name, framing, &[(at, &[value])]);
            let reasons = [What::TlvLenMismatch, What::FrameLength];
            assert!(
                reasons.contains(&violation.what),
                "{framing:?} {at} {violation}"
            );
        }
    }
    for (at, value) in [(85, 2), (85, 4), (87, 1), (99, 4), (99, 6)] {
        let violation = response(RDMA_RSP, Framing::Rdma, &[(at, &[value])]);
        assert_eq!(violation.what, What::TlvLenMismatch, "{at}");
    }
    // A length word that agrees with the headers, but not with the bytes received.
    let violation = request(
        RDMA_REQ,
        Framing::Rdma,
        &[(8, &88_u64.to_be_bytes()), (95, &[4])],
    );
    assert_eq!(violation, Violation::new(What::FrameLength, 8, 105));
    // Neither with nor without the data.
    for len in [83_u64, 85, 88] {
        let violation = request(RDMA_REQ, Framing::Rdma, &[(8, &len.to_be_bytes())]);
        assert_eq!(violation, Violation::new(What::TlvLenMismatch, 8, len));
    }
}

#[test]
fn hole_08_setup_payload_lengths_unchecked() {
    let request = |at: usize, value: u16| {
        let mut bytes = hex(vectors::SETUP);
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        SessionSetupRequest::parse(&bytes).expect_err("a defect")
    };
    assert_eq!(
        request(24, 0xffff),
        Violation::new(What::UriLength, 28, 0xffff)
    );
    assert_eq!(request(24, 15), Violation::new(What::UriLength, 28, 15));
    assert_eq!(request(24, 13), Violation::new(What::PrivateLength, 41, 2));
    assert_eq!(request(24, 11), Violation::new(What::TrailingBytes, 41, 1));
    assert_eq!(
        request(26, 0xffff),
        Violation::new(What::PrivateLength, 40, 0xffff)
    );
    assert_eq!(request(26, 0), Violation::new(What::TrailingBytes, 40, 2));
    let response = |text: &str, at: usize, value: u16| {
        let mut bytes = hex(text);
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        SessionSetupResponse::parse(&bytes).expect_err("a defect")
    };
    let accept = vectors::ACCEPT_WITH_PORTAL;
    assert_eq!(
        response(accept, 26, 2),
        Violation::new(What::Truncated, 42, 0)
    );
    assert_eq!(
        response(accept, 26, 0),
        Violation::new(What::TrailingBytes, 30, 12)
    );
    assert_eq!(
        response(accept, 30, 11),
        Violation::new(What::PortalLength, 32, 11)
    );
    assert_eq!(
        response(accept, 30, 9),
        Violation::new(What::TrailingBytes, 41, 1)
    );
    assert_eq!(
        response(accept, 28, 1),
        Violation::new(What::PrivateLength, 42, 1)
    );
    assert_eq!(
        response(vectors::REDIRECT, 6, 0),
        Violation::new(What::NoPortals, 6, 0)
    );
    assert_eq!(response(vectors::REDIRECT, 6, 0xffff).what, What::Truncated);
    assert_eq!(
        response(vectors::REJECT, 10, 3),
        Violation::new(What::PrivateLength, 12, 3)
    );
    for action in [0, 4, 0xffff] {
        let violation = response(vectors::REJECT, 4, action);
        assert_eq!(
            violation,
            Violation::new(What::SessionAction, 4, action.into())
        );
    }
}

#[test]
fn hole_09_parser_used_for_another_kind() {
    let bytes = vectors::get(RDMA_REQ);
    let wrong = Violation::new(What::WrongKind, 4, 0x12);
    assert_eq!(NexusSetupRequest::parse(&bytes, Dialect::Rdma), Err(wrong));
    assert_eq!(NexusSetupResponse::parse(&bytes, Dialect::Rdma), Err(wrong));
    assert_eq!(CreditNop::parse(&bytes), Err(wrong));
    assert_eq!(ReadAck::parse(&bytes), Err(wrong));
    let violation = Response::parse(&bytes, Framing::Rdma, &BOUNDS).expect_err("a request");
    assert_eq!(violation, wrong);
    for name in ["rdma nexus_setup_req", "read_ack", "credit_nop", RDMA_RSP] {
        let bytes = vectors::get(name);
        let violation = Request::parse(&bytes, Framing::Rdma, &BOUNDS).expect_err("no request");
        assert_eq!(violation.what, What::WrongKind, "{name}");
    }
}

#[test]
fn hole_10_socket_kind_unchecked() {
    for kind in [0_u32, 4, 255, 1 << 31] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&kind.to_be_bytes());
        let violation = ConnectMessage::parse(&bytes).expect_err("no such kind");
        assert_eq!(violation.what, What::SocketKind);
    }
}

#[test]
fn hole_11_written_lengths_unchecked() {
    for (name, framing) in [
        ("single response written", Framing::TcpSingle),
        ("dual response written", Framing::TcpDual),
    ] {
        let violation = response(name, framing, &[(103, &[0x41])]);
        assert_eq!(violation, Violation::new(What::WriteLengthSum, 96, 20001));
        let violation = response(name, framing, &[(95, &[0x21])]);
        assert_eq!(violation, Violation::new(What::WriteLengthSum, 96, 20000));
        let bytes = changed(name, &[(103, &[0x41])]);
        let plan = stream_plan(&bytes, framing, Kind::MsgRsp, &BOUNDS);
        assert_eq!(plan.expect_err("a wrong sum").what, What::WriteLengthSum);
    }
}

#[test]
fn hole_12_rkey_table_size_unchecked() {
    for (name, count) in [
        ("rdma nexus_setup_req", 1_u16),
        ("rdma nexus_setup_req", 0xffff),
        ("rdma nexus_setup_req with keys", 0),
        ("rdma nexus_setup_req with keys", 2),
    ] {
        let bytes = changed(name, &[(30, &count.to_be_bytes())]);
        let violation = NexusSetupRequest::parse(&bytes, Dialect::Rdma);
        assert_eq!(
            violation,
            Err(Violation::new(What::RkeyTable, 30, count.into()))
        );
    }
    // Half a pair.
    let mut bytes = changed("rdma nexus_setup_req with keys", &[(15, &[0x2c])]);
    bytes.truncate(60);
    let violation = NexusSetupRequest::parse(&bytes, Dialect::Rdma).expect_err("half a pair");
    assert_eq!(violation.what, What::RkeyTable);
}

#[test]
fn hole_13_answered_limits_of_zero() {
    let zero = |name: &str, at: usize, len: usize, dialect| {
        let bytes = changed(name, &[(at, &[0; 8][..len])]);
        NexusSetupResponse::parse(&bytes, dialect).expect_err("a zero")
    };
    let name = "rdma nexus_setup_rsp";
    let violation = zero(name, 36, 8, Dialect::Rdma);
    assert_eq!(violation, Violation::new(What::BufferSizeTooSmall, 36, 0));
    assert_eq!(
        zero(name, 30, 2, Dialect::Rdma),
        Violation::new(What::DepthZero, 30, 0)
    );
    assert_eq!(
        zero(name, 32, 2, Dialect::Rdma),
        Violation::new(What::DepthZero, 32, 0)
    );
    let violation = zero("tcp nexus_setup_rsp", 28, 8, Dialect::Tcp);
    assert_eq!(violation, Violation::new(What::BufferSizeTooSmall, 28, 0));
    let bytes = changed(name, &[(36, &[0; 7]), (43, &[111])]);
    let violation = NexusSetupResponse::parse(&bytes, Dialect::Rdma).expect_err("too small");
    assert_eq!(violation, Violation::new(What::BufferSizeTooSmall, 36, 111));
    let bytes = changed("tcp nexus_setup_req", &[(24, &[0; 8])]);
    let violation = NexusSetupRequest::parse(&bytes, Dialect::Tcp);
    assert_eq!(
        violation,
        Err(Violation::new(What::BufferSizeTooSmall, 24, 0))
    );
}

#[test]
fn hole_14_and_15_totals_of_read_lengths_do_not_wrap() {
    let sge = Sge {
        addr: 1,
        len: u32::MAX,
        rkey: 2,
    };
    let parsed = vectors::get("rdma request to read");
    let parsed = Request::parse(&parsed, Framing::Rdma, &BOUNDS).expect("a good frame");
    let mut buf = [0; 300];
    for framing in [Framing::Rdma, Framing::TcpSingle, Framing::TcpDual] {
        let none = core::iter::empty();
        let four = [sge; 4].into_iter();
        let (session, head) = (
            &parsed.session,
            &RequestFields {
                header_len: 0,
                ..parsed.head
            },
        );
        let kind = Kind::MsgReq;
        let start = encode_request(
            &mut buf, 300, framing, kind, session, head, none, four, true,
        );
        let request = Request::parse(&buf[start..], framing, &BOUNDS).expect("our own frame");
        assert_eq!(request.out_total(), 4 * 0xffff_ffff);
        if framing != Framing::Rdma {
            let plan = stream_plan(&buf[start..], framing, kind, &BOUNDS).expect("was parsed");
            assert_eq!(plan.payload, 4 * 0xffff_ffff);
        }
    }
}

#[test]
fn hole_16_cancel_lengths_unchecked() {
    let cancel = |at: usize, value: u8| {
        let mut bytes = hex(vectors::CANCEL_REQ);
        bytes[at] = value;
        Cancel::parse(&bytes).expect_err("a defect")
    };
    assert_eq!(cancel(1, 9), Violation::new(What::BodyLength, 0, 9));
    assert_eq!(cancel(9, 15), Violation::new(What::BodyLength, 8, 15));
    assert_eq!(cancel(8, 1), Violation::new(What::BodyLength, 8, 0x110));
    let mut bytes = hex(vectors::CANCEL_REQ);
    bytes.push(0);
    let trailing = Violation::new(What::TrailingBytes, 26, 1);
    assert_eq!(Cancel::parse(&bytes), Err(trailing));
    for (name, framing) in [
        ("rdma cancel_req", Framing::Rdma),
        ("dual cancel_req", Framing::TcpDual),
    ] {
        let violation = request(name, framing, &[(80, &[0, 25])]);
        assert_eq!(violation, Violation::new(What::BodyLength, 80, 25));
    }
    let violation = response("single cancel_rsp", Framing::TcpSingle, &[(80, &[0, 27])]);
    assert_eq!(violation, Violation::new(What::BodyLength, 80, 27));
}

#[test]
fn hole_20_nothing_undefined_is_sent() {
    let dirty = |len| std::vec![0xff_u8; len];
    let session = SessionFields::default();
    for framing in [Framing::Rdma, Framing::TcpSingle] {
        let bytes = vectors::get("tcp fin_req");
        let parsed = Request::parse(&bytes, Framing::TcpSingle, &BOUNDS).expect("a good frame");
        let none = || core::iter::empty();
        let mut buf = dirty(96);
        let (head, kind) = (&parsed.head, Kind::FinReq);
        encode_request(
            &mut buf,
            96,
            framing,
            kind,
            &session,
            head,
            none(),
            none(),
            true,
        );
        // What is set: magic, kind, length, version, length, sn, ltid, operations.
        let set = buf.iter().filter(|byte| **byte != 0).count();
        assert_eq!(set, 4 + 2 + 1 + 1 + 1 + 1 + 1 + 2);
    }
    let mut buf = dirty(28);
    CreditNop {
        sn: 0,
        ack_sn: 0,
        credits: 0,
    }
    .encode(&mut buf);
    assert!(buf[18..].iter().all(|byte| *byte == 0));
}

#[test]
fn hole_21_unknown_kinds_and_operations() {
    for word in [0_u32, 0x08, 0x10, 0x16, 0x1004, 0x8000, 0x1_0012] {
        let violation = request(RDMA_REQ, Framing::Rdma, &[(4, &word.to_be_bytes())]);
        assert_eq!(violation, Violation::new(What::UnknownKind, 4, word.into()));
    }
    let bytes = vectors::get("credit_nop");
    let violation = peek_kind(&bytes, Framing::TcpDual);
    assert_eq!(
        violation,
        Err(Violation::new(What::KindNotOnDialect, 4, 0x41))
    );
    for op in [0, 1, 3, 5, 6, 255] {
        let violation = request(RDMA_REQ, Framing::Rdma, &[(71, &[op])]);
        assert_eq!(violation, Violation::new(What::OutOp, 71, op.into()));
    }
    for op in [0, 1, 4, 5, 255] {
        let violation = request(RDMA_REQ, Framing::Rdma, &[(70, &[op])]);
        assert_eq!(violation, Violation::new(What::InOp, 70, op.into()));
    }
    for op in [0, 1, 5, 255] {
        let violation = response(RDMA_RSP, Framing::Rdma, &[(70, &[op])]);
        assert_eq!(violation, Violation::new(What::OutOp, 70, op.into()));
    }
    for op in [0, 1, 4, 255] {
        let violation = response("dual msg_rsp inline", Framing::TcpDual, &[(72, &[op])]);
        assert_eq!(violation, Violation::new(What::OutOp, 72, op.into()));
    }
}

#[test]
fn the_magic_number_and_the_header_length_gate_everything() {
    let violation = request(RDMA_REQ, Framing::Rdma, &[(0, b"XIOQ")]);
    assert_eq!(violation, Violation::new(What::Magic, 0, 0x5849_4f51));
    for len in [0, 39, 44, 56] {
        let violation = request(RDMA_REQ, Framing::Rdma, &[(59, &[len])]);
        assert_eq!(
            violation,
            Violation::new(What::TransportHeaderLength, 58, len.into())
        );
    }
    let violation = response(RDMA_RSP, Framing::Rdma, &[(59, &[40])]);
    assert_eq!(
        violation,
        Violation::new(What::TransportHeaderLength, 58, 40)
    );
    let violation = response("dual msg_rsp inline", Framing::TcpDual, &[(59, &[44])]);
    assert_eq!(
        violation,
        Violation::new(What::TransportHeaderLength, 58, 44)
    );
}

#[test]
fn lists_belong_to_data_outside_the_frame() {
    let violation = request(RDMA_REQ, Framing::Rdma, &[(75, &[1])]);
    assert_eq!(violation, Violation::new(What::ListWithInlineData, 74, 1));
    let violation = request("rdma request to read", Framing::Rdma, &[(75, &[0])]);
    assert_eq!(violation, Violation::new(What::EmptyList, 74, 0));
    let violation = request("rdma request to read", Framing::Rdma, &[(95, &[1])]);
    assert_eq!(violation, Violation::new(What::InlineLenWithRead, 88, 1));
    let violation = response("rdma response to read", Framing::Rdma, &[(99, &[1])]);
    assert_eq!(violation, Violation::new(What::InlineLenWithRead, 92, 1));
    let violation = response("rdma response written", Framing::Rdma, &[(75, &[0])]);
    assert_eq!(violation, Violation::new(What::EmptyList, 74, 0));
    let violation = response("dual msg_rsp inline", Framing::TcpDual, &[(75, &[1])]);
    assert_eq!(violation, Violation::new(What::ListWithInlineData, 74, 1));
}

#[test]
fn application_headers_have_a_limit() {
    let bounds = Bounds {
        header_max: 3,
        ..BOUNDS
    };
    let bytes = vectors::get(RDMA_REQ);
    let violation = Request::parse(&bytes, Framing::Rdma, &bounds).expect_err("a long header");
    assert_eq!(violation, Violation::new(What::HeaderTooLong, 80, 4));
    let bytes = vectors::get(RDMA_RSP);
    assert!(Response::parse(&bytes, Framing::Rdma, &bounds).is_ok());
    let bounds = Bounds {
        header_max: 2,
        ..BOUNDS
    };
    let violation = Response::parse(&bytes, Framing::Rdma, &bounds).expect_err("a long header");
    assert_eq!(violation, Violation::new(What::HeaderTooLong, 84, 3));
    // Setup payloads have another limit.
    let bytes = vectors::get("dual session_setup_req");
    assert!(Request::parse(&bytes, Framing::TcpDual, &bounds).is_ok());
    let long = 3841_u16.to_be_bytes();
    let violation = request("dual session_setup_req", Framing::TcpDual, &[(80, &long)]);
    assert_eq!(violation, Violation::new(What::HeaderTooLong, 80, 3841));
    let violation = response("dual session_setup_rsp", Framing::TcpDual, &[(80, &long)]);
    assert_eq!(violation, Violation::new(What::HeaderTooLong, 80, 3841));
}

#[test]
fn control_frames_have_no_data() {
    let dual = Framing::TcpDual;
    for name in [
        "tcp fin_req",
        "tcp hello_req",
        "tcp keepalive_req",
        "tcp ack_req",
    ] {
        let violation = request(name, dual, &[(81, &[1])]);
        assert_eq!(violation, Violation::new(What::NotEmpty, 80, 1), "{name}");
        let violation = request(name, dual, &[(83, &[1])]);
        assert_eq!(violation, Violation::new(What::NotEmpty, 82, 1), "{name}");
        let violation = request(name, dual, &[(95, &[1])]);
        assert_eq!(
            violation,
            Violation::new(What::ControlData, 88, 1),
            "{name}"
        );
        let violation = request(name, dual, &[(73, &[1])]);
        assert_eq!(
            violation,
            Violation::new(What::ControlData, 72, 1),
            "{name}"
        );
        let violation = request(name, dual, &[(71, &[4]), (75, &[1])]);
        assert_eq!(
            violation,
            Violation::new(What::ControlData, 71, 4),
            "{name}"
        );
    }
    for name in ["tcp hello_rsp", "tcp keepalive_rsp"] {
        let violation = response(name, dual, &[(81, &[1])]);
        assert_eq!(violation, Violation::new(What::NotEmpty, 80, 1), "{name}");
        let violation = response(name, dual, &[(95, &[1])]);
        assert_eq!(
            violation,
            Violation::new(What::ControlData, 88, 1),
            "{name}"
        );
        let violation = response(name, dual, &[(72, &[3]), (75, &[1])]);
        assert_eq!(
            violation,
            Violation::new(What::ControlData, 72, 3),
            "{name}"
        );
    }
    let violation = response("rdma fin_rsp", Framing::Rdma, &[(85, &[1])]);
    assert_eq!(violation, Violation::new(What::NotEmpty, 84, 1));
    let violation = request("dual session_setup_req", dual, &[(95, &[1])]);
    assert_eq!(violation, Violation::new(What::ControlData, 88, 1));
}

#[test]
fn receipts_are_empty() {
    let violation = response("dual one_way_rsp", Framing::TcpDual, &[(81, &[1])]);
    assert_eq!(violation, Violation::new(What::NotEmpty, 80, 1));
    let violation = response("dual one_way_rsp", Framing::TcpDual, &[(95, &[1])]);
    assert_eq!(violation, Violation::new(What::NotEmpty, 88, 1));
    // A response that says it is only a receipt.
    let receipt = (20, &[0, 0, 8, 0][..]);
    let violation = response(RDMA_RSP, Framing::Rdma, &[receipt]);
    assert_eq!(violation, Violation::new(What::NotEmpty, 84, 3));
    let violation = response(
        "rdma response written",
        Framing::Rdma,
        &[receipt, (84, &[0, 0])],
    );
    assert_eq!(violation, Violation::new(What::NotEmpty, 92, 20000));
    // Receipt and response in one.
    let bytes = changed(RDMA_RSP, &[(20, &[0, 0, 0x18, 0])]);
    let both = Response::parse(&bytes, Framing::Rdma, &BOUNDS).expect("a good frame");
    assert!(!both.is_receipt());
}

#[test]
fn frames_are_within_the_buffer_size() {
    let bytes = vectors::get(RDMA_REQ);
    let bounds = Bounds {
        frame_max: 105,
        ..BOUNDS
    };
    assert!(Request::parse(&bytes, Framing::Rdma, &bounds).is_ok());
    let bounds = Bounds {
        frame_max: 104,
        ..BOUNDS
    };
    let violation = Request::parse(&bytes, Framing::Rdma, &bounds).expect_err("too long");
    assert_eq!(violation, Violation::new(What::FrameTooLong, 8, 105));
    let wide = Bounds {
        frame_max: u32::MAX,
        max_in_sges: u16::MAX,
        ..BOUNDS
    };
    let bytes = changed(RDMA_REQ, &[(72, &[0xff, 0xff])]);
    let violation = Request::parse(&bytes, Framing::Rdma, &wide).expect_err("a huge list");
    assert_eq!(violation.what, What::FrameTooLong);
}

#[test]
fn setup_frames_are_exact() {
    for (name, dialect) in [
        ("rdma nexus_setup_req", Dialect::Rdma),
        ("tcp nexus_setup_req", Dialect::Tcp),
    ] {
        let mut bytes = vectors::get(name);
        bytes.push(0);
        let len = (bytes.len() - TLV_LEN) as u64;
        let violation = NexusSetupRequest::parse(&bytes, dialect).expect_err("a byte over");
        assert_eq!(violation.what, What::TlvLenMismatch);
        bytes[8..16].copy_from_slice(&len.to_be_bytes());
        let violation = NexusSetupRequest::parse(&bytes, dialect).expect_err("a byte over");
        assert!(matches!(
            violation.what,
            What::RkeyTable | What::TrailingBytes
        ));
        bytes.truncate(40);
        bytes[8..16].copy_from_slice(&24_u64.to_be_bytes());
        let violation = NexusSetupRequest::parse(&bytes, dialect).expect_err("cut");
        assert_eq!(violation.what, What::Truncated);
    }
}
