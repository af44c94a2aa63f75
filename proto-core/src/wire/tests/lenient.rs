//! What real peers leave undefined or get wrong, and a parser must take.

use super::std::vec::Vec;

use super::strict::changed;
use super::*;

fn request(bytes: &[u8], framing: Framing) -> Request<'_> {
    Request::parse(bytes, framing, &BOUNDS).unwrap_or_else(|violation| panic!("{violation}"))
}

fn response(bytes: &[u8], framing: Framing) -> Response<'_> {
    Response::parse(bytes, framing, &BOUNDS).unwrap_or_else(|violation| panic!("{violation}"))
}

/// Sets byte ranges, from and to, to garbage.
fn garbage(name: &str, ranges: &[(usize, usize)]) -> Vec<u8> {
    let mut bytes = vectors::get(name);
    for (from, to) in ranges {
        bytes[*from..*to].fill(0xe7);
    }
    bytes
}

#[test]
fn pads_remain_and_version_bytes() {
    // Session pad, version, then the pads of each transport header.
    let rdma = garbage(
        "rdma msg_req inline",
        &[(38, 44), (56, 57), (76, 80), (84, 88)],
    );
    let clean = vectors::get("rdma msg_req inline");
    let (dirty, clean) = (
        request(&rdma, Framing::Rdma),
        request(&clean, Framing::Rdma),
    );
    assert_eq!((dirty.session, dirty.head), (clean.session, clean.head));
    let tcp = garbage(
        "dual msg_req inline",
        &[(38, 44), (56, 57), (62, 64), (68, 70), (76, 80), (84, 88)],
    );
    let clean = vectors::get("dual msg_req inline");
    let (dirty, clean) = (
        request(&tcp, Framing::TcpDual),
        request(&clean, Framing::TcpDual),
    );
    assert_eq!((dirty.session, dirty.head), (clean.session, clean.head));
    let tcp = garbage(
        "dual msg_rsp inline",
        &[(38, 44), (56, 58), (62, 64), (73, 74), (84, 88)],
    );
    let clean = vectors::get("dual msg_rsp inline");
    let (dirty, clean) = (
        response(&tcp, Framing::TcpDual),
        response(&clean, Framing::TcpDual),
    );
    assert_eq!((dirty.session, dirty.head), (clean.session, clean.head));
}

#[test]
fn the_list_count_of_an_inline_rdma_response_is_garbage() {
    let dirty = garbage(
        "rdma msg_rsp inline",
        &[(38, 44), (56, 58), (71, 76), (88, 92)],
    );
    let clean = vectors::get("rdma msg_rsp inline");
    let (dirty, clean) = (
        response(&dirty, Framing::Rdma),
        response(&clean, Framing::Rdma),
    );
    assert_eq!((dirty.session, dirty.head), (clean.session, clean.head));
    assert_eq!((dirty.head.sges, dirty.data()), (0, &b"world"[..]));
    let fin = changed("rdma fin_rsp", &[(74, &[0, 2])]);
    assert_eq!(response(&fin, Framing::Rdma).head.sges, 0);
}

#[test]
fn gathered_data_is_not_counted() {
    let counted = vectors::get("rdma request inline, copied");
    let gathered = vectors::get("rdma request inline, gathered");
    assert_eq!(counted[16..], gathered[16..]);
    let (a, b) = (
        request(&counted, Framing::Rdma),
        request(&gathered, Framing::Rdma),
    );
    assert_eq!(
        (a.head, a.header(), a.data()),
        (b.head, b.header(), b.data())
    );
    // As seen: a 125-byte SEND with 24 gathered bytes, of which the length word counts 85.
    let mut bytes = changed(
        "rdma msg_req inline",
        &[(8, &85_u64.to_be_bytes()), (95, &[24])],
    );
    bytes[81] = 5;
    bytes.resize(125, 0);
    assert_eq!(request(&bytes, Framing::Rdma).data().len(), 24);
}

#[test]
fn written_lengths_on_rdma_need_not_add_up() {
    // As seen: 12000 and 8000 although 15000 were written.
    let bytes = changed("rdma response written", &[(92, &15000_u64.to_be_bytes())]);
    let parsed = response(&bytes, Framing::Rdma);
    assert_eq!(
        (parsed.data_total(), parsed.write_lens().total()),
        (15000, 20000)
    );
}

#[test]
fn session_fields_of_control_frames_are_garbage() {
    let dirty = garbage("tcp fin_req", &[(20, 56)]);
    let parsed = request(&dirty, Framing::TcpDual);
    let expected = SessionFields {
        dest_session: 42,
        ..SessionFields::default()
    };
    assert_eq!(parsed.session, expected);
    let dirty = garbage("tcp keepalive_rsp", &[(20, 56)]);
    assert_eq!(response(&dirty, Framing::TcpDual).session, expected);
    let dirty = garbage("tcp ack_req", &[(20, 32), (38, 44)]);
    let clean = vectors::get("tcp ack_req");
    let (dirty, clean) = (
        request(&dirty, Framing::TcpDual),
        request(&clean, Framing::TcpDual),
    );
    assert_eq!(dirty.session, clean.session);
}

#[test]
fn cancel_frames_are_garbage_outside_their_payload() {
    // Session header, version, flags and the operation for response data.
    for (name, framing) in [
        ("rdma cancel_req", Framing::Rdma),
        ("dual cancel_req", Framing::TcpDual),
    ] {
        let dirty = garbage(name, &[(16, 56), (56, 58), (70, 71), (76, 80), (84, 88)]);
        let parsed = request(&dirty, framing);
        assert_eq!(parsed.session, SessionFields::default());
        assert_eq!(
            (parsed.head.in_op, parsed.head.out_op),
            (Op::Send, Op::Send)
        );
        assert_eq!(parsed.cancel().expect("a good payload").serial, 14);
    }
    let dirty = garbage("single cancel_rsp", &[(16, 58), (73, 74)]);
    let parsed = response(&dirty, Framing::TcpSingle);
    assert_eq!(parsed.session, SessionFields::default());
}

#[test]
fn padding_is_skipped_as_announced() {
    // 4 bytes of header, 13 of padding, 5 of data.
    let mut bytes = vectors::get("rdma msg_req inline");
    bytes[83] = 13;
    bytes.splice(100..100, [0xe7; 13]);
    for len in [102_u64, 97] {
        bytes[8..16].copy_from_slice(&len.to_be_bytes());
        let parsed = request(&bytes, Framing::Rdma);
        assert_eq!(
            (parsed.header(), parsed.data()),
            (&b"HDR1"[..], &b"hello"[..])
        );
        assert_eq!((parsed.header_at, parsed.data_at), (96, 113));
    }
    let mut bytes = vectors::get("dual msg_rsp inline");
    bytes[83] = 16;
    bytes.splice(99..99, [0xe7; 16]);
    bytes[8..16].copy_from_slice(&99_u64.to_be_bytes());
    let parsed = response(&bytes, Framing::TcpDual);
    assert_eq!(
        (parsed.header(), parsed.data()),
        (&b"RSP"[..], &b"world"[..])
    );
    let plan = stream_plan(&bytes[..115], Framing::TcpDual, Kind::MsgRsp, &BOUNDS);
    assert_eq!(
        plan,
        Ok(StreamPlan {
            data_inline: 5,
            payload: 0
        })
    );
}

#[test]
fn unknown_flags_are_kept() {
    let flags = changed(
        "rdma msg_req inline",
        &[(20, &[0x80, 0, 0x40, 0x01]), (57, &[0x93])],
    );
    let parsed = request(&flags, Framing::Rdma);
    assert_eq!(parsed.session.flags.bits(), 0x8000_4001);
    assert!(
        parsed
            .session
            .flags
            .contains(SessionFlags::REQUEST_READ_RECEIPT)
    );
    assert_eq!(parsed.head.flags.bits(), 0x93);
    let all = TransportFlags::FORCE_WRITE
        | TransportFlags::PEER_WRITE_RSP
        | TransportFlags::LAST_IN_BATCH;
    assert!(parsed.head.flags.contains(all));
}

#[test]
fn hint_lists_of_requests() {
    // A list of inline capacities, and a wish for written data without any room for it.
    let bytes = changed("rdma request writable", &[(70, &[2])]);
    let parsed = request(&bytes, Framing::Rdma);
    assert_eq!((parsed.head.in_op, parsed.in_sges().len()), (Op::Send, 2));
    let bytes = changed("rdma msg_req inline", &[(70, &[3])]);
    let parsed = request(&bytes, Framing::Rdma);
    assert_eq!((parsed.head.in_op, parsed.in_sges().len()), (Op::Write, 0));
}

#[test]
fn a_status_is_the_applications_business() {
    let bytes = changed(
        "rdma msg_rsp inline",
        &[(76, &status::TIMEOUT.to_be_bytes())],
    );
    assert_eq!(response(&bytes, Framing::Rdma).head.status, status::TIMEOUT);
}

#[test]
fn setup_pads_flags_and_absent_credits() {
    let bytes = garbage("rdma nexus_setup_req", &[(52, 56)]);
    let parsed = NexusSetupRequest::parse(&bytes, Dialect::Rdma).expect("a good frame");
    assert_eq!(parsed.params.pad, 0xe7e7_e7e7);
    let bytes = changed("rdma nexus_setup_rsp", &[(28, &[0, 0])]);
    let parsed = NexusSetupResponse::parse(&bytes, Dialect::Rdma).expect("a shared queue");
    assert_eq!(parsed.params.credits, 0);
}
