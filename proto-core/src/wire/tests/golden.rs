//! The vectors field by field, and the fixed numbers.

use super::std::format;

use super::*;

fn request(name: &str, framing: Framing, check: impl FnOnce(&Request<'_>)) {
    let bytes = vectors::get(name);
    let parsed = Request::parse(&bytes, framing, &BOUNDS);
    check(&parsed.unwrap_or_else(|violation| panic!("{name}: {violation}")));
}

fn response(name: &str, framing: Framing, check: impl FnOnce(&Response<'_>)) {
    let bytes = vectors::get(name);
    let parsed = Response::parse(&bytes, framing, &BOUNDS);
    check(&parsed.unwrap_or_else(|violation| panic!("{name}: {violation}")));
}

/// Session 42, serial 3, sn 3, nothing received.
fn request_session() -> SessionFields {
    SessionFields {
        dest_session: 42,
        serial: 3,
        sn: 3,
        ack_sn: 0xffff,
        ..Default::default()
    }
}

/// Session 7, serial 3, sn 3, the real response, 1 message and 9 bytes returned.
fn response_session() -> SessionFields {
    SessionFields {
        dest_session: 7,
        flags: SessionFlags::RECEIPT_LAST,
        credits_msgs: 1,
        credits_bytes: 9,
        ..request_session()
    }
}

/// A request with inline data, a 4-byte header and 5 bytes of data.
const REQUEST: RequestFields = RequestFields {
    flags: TransportFlags::empty(),
    sn: 2,
    ack_sn: 1,
    credits: 0,
    ltid: 4,
    in_op: Op::Send,
    out_op: Op::Send,
    in_sges: 0,
    out_sges: 0,
    header_len: 4,
    pad_len: 0,
    data_len: 5,
};

#[test]
fn rdma_requests() {
    for name in [
        "rdma request inline, copied",
        "rdma request inline, gathered",
    ] {
        request(name, Framing::Rdma, |it| {
            assert_eq!((it.kind, it.session), (Kind::MsgReq, request_session()));
            assert_eq!(it.head, REQUEST);
            assert_eq!((it.header_at, it.data_at), (96, 100));
            assert_eq!((it.header(), it.data()), (&b"HDR1"[..], &b"hello"[..]));
        });
    }
    request("rdma msg_req inline", Framing::Rdma, |it| {
        let session = SessionFields {
            serial: 0,
            sn: 0,
            ..request_session()
        };
        assert_eq!(
            (it.session, it.head),
            (
                session,
                RequestFields {
                    sn: 1,
                    ack_sn: 0,
                    ..REQUEST
                }
            )
        );
    });
}

#[test]
fn rdma_requests_with_segments() {
    request("rdma request to read", Framing::Rdma, |it| {
        let head = RequestFields {
            sn: 3,
            ack_sn: 2,
            ltid: 5,
            out_op: Op::Read,
            out_sges: 1,
            data_len: 0,
            ..REQUEST
        };
        assert_eq!(it.head, head);
        let sge = Sge {
            addr: 0x7f11_2233_4000,
            len: 20000,
            rkey: 0x1655,
        };
        assert_eq!(
            (it.out_sge(0), it.out_total(), it.in_total()),
            (sge, 20000, 0)
        );
        assert_eq!((it.header(), it.data()), (&b"HDR1"[..], &b""[..]));
    });
    request("rdma request writable", Framing::Rdma, |it| {
        let head = RequestFields {
            sn: 4,
            ack_sn: 3,
            ltid: 6,
            in_op: Op::Write,
            in_sges: 2,
            ..REQUEST
        };
        assert_eq!(it.head, head);
        let sge = |addr| Sge {
            addr,
            len: 12000,
            rkey: 0x547,
        };
        assert_eq!(it.in_sge(0), sge(0x7f11_2233_4000));
        assert_eq!(it.in_sge(1), sge(0x7f11_2233_6ee0));
        assert_eq!((it.in_total(), it.header_at), (24000, 128));
        assert_eq!((it.header(), it.data()), (&b"HDR1"[..], &b"hello"[..]));
    });
}

/// A response with inline data, a 3-byte header and 5 bytes of data.
const RESPONSE: ResponseFields = ResponseFields {
    sn: 2,
    ack_sn: 2,
    credits: 0,
    rtid: 4,
    ltid: 9,
    op: Op::Send,
    sges: 0,
    status: 0,
    header_len: 3,
    pad_len: 0,
    data_len: 5,
};

#[test]
fn rdma_responses() {
    response("rdma response inline", Framing::Rdma, |it| {
        assert_eq!((it.kind, it.session), (Kind::MsgRsp, response_session()));
        assert_eq!(it.head, RESPONSE);
        assert_eq!((it.header(), it.data()), (&b"RSP"[..], &b"world"[..]));
        assert!(!it.is_receipt());
    });
    response("rdma response written", Framing::Rdma, |it| {
        let head = ResponseFields {
            sn: 4,
            ack_sn: 4,
            rtid: 6,
            ltid: 10,
            op: Op::Write,
            sges: 2,
            header_len: 4,
            data_len: 20000,
            ..RESPONSE
        };
        assert_eq!(it.head, head);
        assert_eq!(
            (it.write_len(0), it.write_len(1), it.data_total()),
            (12000, 8000, 20000)
        );
        assert_eq!(
            (it.header_at, it.header(), it.data()),
            (108, &b"RSP1"[..], &b""[..])
        );
        assert_eq!(it.sges().len(), 0);
    });
    response("rdma response to read", Framing::Rdma, |it| {
        let head = ResponseFields {
            sn: 5,
            ack_sn: 5,
            rtid: 7,
            ltid: 15,
            op: Op::Read,
            sges: 1,
            header_len: 4,
            data_len: 0,
            ..RESPONSE
        };
        assert_eq!(it.head, head);
        let sge = Sge {
            addr: 0x7f99_aabb_0000,
            len: 20000,
            rkey: 0x17c7,
        };
        assert_eq!((it.sge(0), it.data_total()), (sge, 20000));
        assert_eq!(it.write_lens().len(), 0);
    });
    response("rdma msg_rsp inline", Framing::Rdma, |it| {
        assert_eq!(
            it.head,
            ResponseFields {
                sn: 1,
                ack_sn: 1,
                ..RESPONSE
            }
        );
    });
}

#[test]
fn tcp_messages() {
    let head = RequestFields {
        ack_sn: 0,
        ..REQUEST
    };
    request("single request inline", Framing::TcpSingle, |it| {
        assert_eq!((it.session, it.head), (request_session(), head));
    });
    request("dual request to read", Framing::TcpDual, |it| {
        let sge = Sge {
            addr: 0x55d0_0000_1000,
            len: 20000,
            rkey: 0,
        };
        assert_eq!(
            (it.head.out_op, it.head.ltid, it.out_sge(0)),
            (Op::Read, 5, sge)
        );
    });
    request("dual request writable", Framing::TcpDual, |it| {
        assert_eq!(
            (it.head.in_op, it.head.ltid, it.in_total()),
            (Op::Write, 6, 24000)
        );
        assert_eq!(it.in_sge(1).addr, 0x55d0_0001_2ee0);
        assert_eq!((it.header(), it.data()), (&b"HDR1"[..], &b"hello"[..]));
    });
    let inline = ResponseFields {
        ack_sn: 0,
        ..RESPONSE
    };
    response("single response inline", Framing::TcpSingle, |it| {
        assert_eq!((it.session, it.head), (response_session(), inline));
    });
    response("dual response written", Framing::TcpDual, |it| {
        assert_eq!(
            (it.head.rtid, it.head.ltid, it.head.data_len),
            (6, 10, 20000)
        );
        assert!(it.write_lens().eq([12000, 8000]));
        assert_eq!((it.header(), it.header_at), (&b"RSP1"[..], 104));
    });
    response("dual msg_rsp inline", Framing::TcpDual, |it| {
        assert_eq!(
            (it.head, it.data()),
            (ResponseFields { sn: 1, ..inline }, &b"world"[..])
        );
    });
}

#[test]
fn one_ways_and_receipts() {
    request("dual one_way_req", Framing::TcpDual, |it| {
        assert_eq!(it.kind, Kind::OneWayReq);
        assert_eq!(it.session.flags, SessionFlags::REQUEST_READ_RECEIPT);
        assert_eq!((it.session.serial, it.session.sn, it.head.sn), (6, 6, 7));
        assert_eq!((it.header(), it.data()), (&b"OWRR"[..], &b"dat"[..]));
    });
    response("dual one_way_rsp", Framing::TcpDual, |it| {
        assert_eq!((it.kind, it.is_receipt()), (Kind::OneWayRsp, true));
        assert_eq!(it.session.flags, SessionFlags::RECEIPT_FIRST);
        assert_eq!((it.head.ltid, it.head.rtid, it.head.data_len), (0x26, 4, 0));
    });
}

#[test]
fn control_frames() {
    request("dual session_setup_req", Framing::TcpDual, |it| {
        assert_eq!((it.kind, it.head.ltid), (Kind::SessionSetupReq, 31));
        assert_eq!(it.session_setup().expect("a good payload").session_id, 7);
    });
    response("dual session_setup_rsp", Framing::TcpDual, |it| {
        assert_eq!((it.kind, it.head.rtid), (Kind::SessionSetupRsp, 31));
        assert_eq!(it.session_setup().expect("a good payload").session_id(), 42);
    });
    request("tcp hello_req", Framing::TcpDual, |it| {
        assert_eq!((it.kind, it.session.dest_session), (Kind::HelloReq, 42));
    });
    response("tcp hello_rsp", Framing::TcpDual, |it| {
        assert_eq!(
            (it.kind, it.head.ltid, it.head.rtid),
            (Kind::HelloRsp, 1, 63)
        );
    });
    request("tcp fin_req", Framing::TcpDual, |it| {
        assert_eq!((it.kind, it.head.ltid, it.head.sn), (Kind::FinReq, 3, 4));
    });
    response("tcp fin_rsp", Framing::TcpSingle, |it| {
        assert_eq!((it.kind, it.head.ltid, it.head.rtid), (Kind::FinRsp, 4, 3));
    });
    request("tcp keepalive_req", Framing::TcpDual, |it| {
        assert_eq!((it.kind, it.session.dest_session), (Kind::KeepaliveReq, 7));
    });
    response("tcp keepalive_rsp", Framing::TcpDual, |it| {
        assert_eq!((it.kind, it.head.rtid), (Kind::KeepaliveRsp, 2));
    });
    request("tcp ack_req", Framing::TcpDual, |it| {
        let session = SessionFields {
            dest_session: 42,
            sn: 12,
            ack_sn: 0xffff,
            credits_msgs: 5,
            credits_bytes: 40960,
            ..Default::default()
        };
        assert_eq!((it.kind, it.session), (Kind::AckReq, session));
    });
    request("rdma cancel_req", Framing::Rdma, |it| {
        assert_eq!(
            (it.kind, it.cancel().expect("a good payload").sn),
            (Kind::CancelReq, 15)
        );
    });
    response("single cancel_rsp", Framing::TcpSingle, |it| {
        let result = it.cancel().expect("a good payload").result;
        assert_eq!((it.kind, result), (Kind::CancelRsp, status::MSG_CANCELED));
    });
}

#[test]
fn kinds() {
    for kind in Kind::ALL {
        let rdma_only = matches!(kind, Kind::CreditNop | Kind::ReadAck);
        assert_eq!(Kind::from_word(kind.word(), Dialect::Rdma), Ok(kind));
        let on_tcp = Kind::from_word(kind.word(), Dialect::Tcp);
        assert_eq!(on_tcp.is_err(), rdma_only, "{}", kind.name());
        assert_eq!(kind.is_numbered(), kind.is_request() || kind.is_response());
        assert!(MessageType::from_bits(kind.word()).is_some());
        assert!(!kind.is_application() || kind.is_numbered());
    }
    for word in 0..=0xffff {
        let known = Kind::ALL.iter().any(|kind| kind.word() == word);
        assert_eq!(
            Kind::from_word(word, Dialect::Rdma).is_ok(),
            known,
            "{word:#x}"
        );
        assert!(Kind::from_word(word | 1 << 16, Dialect::Rdma).is_err());
    }
    assert_eq!(
        Kind::ALL
            .iter()
            .filter(|kind| kind.is_application())
            .count(),
        4
    );
    assert_eq!(
        Kind::ALL.iter().filter(|kind| kind.is_numbered()).count(),
        17
    );
    let names: [&str; 4] = [
        Kind::MsgReq.name(),
        Kind::HelloReq.name(),
        Kind::KeepaliveRsp.name(),
        Kind::ReadAck.name(),
    ];
    assert_eq!(
        names,
        [
            "MSG_REQ",
            "CONNECTION_HELLO_REQ",
            "CONNECTION_KA_RSP",
            "RDMA_READ_ACK"
        ]
    );
}

#[test]
fn status_codes() {
    assert_eq!(status::BASE, 1_247_689_300);
    assert_eq!(status::MSG_CANCELED, 0x4a5e_3a6e);
    assert_eq!(status::MSG_NOT_FOUND, 0x4a5e_3a70);
    assert_eq!(status::RSP_BUF_SIZE_MISMATCH, status::BASE + 39);
    assert_eq!(status::name(0), Some("SUCCESS"));
    assert_eq!(status::name(status::UNSUCCESSFUL), Some("UNSUCCESSFUL"));
    assert_eq!(
        (status::name(12), status::name(status::BASE + 40)),
        (None, None)
    );
    assert!((0..40).all(|n| status::name(status::BASE + n).is_some()));
}

#[test]
fn violations_say_what_where_and_which_value() {
    let violation = Violation::new(What::Magic, 0, 0x1234);
    assert_eq!(
        format!("{violation}"),
        "wrong magic number: value 4660 (0x1234) at byte 0"
    );
    assert_eq!(violation.what.name(), "Magic");
    assert_eq!(violation.shifted(96).offset, 96);
    assert_eq!(size_of::<Violation>(), 16);
    for (i, what) in What::ALL.iter().enumerate() {
        let later = &What::ALL[i + 1..];
        assert!(
            later.iter().all(|other| other.text() != what.text()),
            "{what:?}"
        );
    }
}

#[test]
fn head_lengths() {
    assert_eq!(request_head_len(Framing::Rdma, 0, 0), 96);
    assert_eq!(request_head_len(Framing::TcpDual, 2, 1), 144);
    assert_eq!(response_head_len(Framing::Rdma, Op::Send, 0), 100);
    assert_eq!(response_head_len(Framing::TcpSingle, Op::Send, 0), 96);
    assert_eq!(response_head_len(Framing::TcpSingle, Op::Write, 3), 108);
    assert_eq!(response_head_len(Framing::Rdma, Op::Read, 2), 132);
}
