//! Cutting streams into frames.

use super::std::vec::Vec;

use super::*;

/// Length of the part of a frame that goes over the control or single socket.
fn control_part(bytes: &[u8], framing: Framing) -> &[u8] {
    let (_, len) = peek_kind(bytes, framing).expect("a good start");
    &bytes[..TLV_LEN + len as usize]
}

/// A frame that the parsers accept is planned to exactly its length.
pub(super) fn agree_with_parser(bytes: &[u8], framing: Framing, kind: Kind) {
    if framing == Framing::Rdma {
        return;
    }
    let part = control_part(bytes, framing);
    let tlv = part.first_chunk().expect("a start");
    let found = control_len(tlv, framing, BOUNDS.frame_max);
    assert_eq!(found, Ok((kind, part.len())));
    let plan = stream_plan(part, framing, kind, &BOUNDS).expect("parsed");
    assert_eq!(part.len() + plan.data_inline as usize, bytes.len());
    let payload = match Request::parse(bytes, framing, &BOUNDS) {
        Ok(request) => request.out_total(),
        Err(_) => {
            let response = Response::parse(bytes, framing, &BOUNDS).expect("parsed");
            response.data_total() - response.data().len() as u64
        }
    };
    assert_eq!(plan.payload, payload);
    assert!(plan.data_inline == 0 || plan.payload == 0);
}

/// A control part that is planned belongs to a frame that the parsers accept, whatever the bytes
/// of the other socket are.
pub(super) fn plan_and_complete(part: &[u8], framing: Framing) {
    let Some(tlv) = part.first_chunk() else {
        return;
    };
    let Ok((kind, len)) = control_len(tlv, framing, BOUNDS.frame_max) else {
        return;
    };
    assert!(len <= BOUNDS.frame_max as usize);
    let plan = stream_plan(part, framing, kind, &BOUNDS);
    if framing == Framing::TcpDual {
        let rest = message_kind(part).and_then(|kind| plain_rest(kind, part, &BOUNDS));
        let rest = rest.map(|data_inline| StreamPlan {
            data_inline,
            payload: 0,
        });
        assert!(rest.is_none_or(|rest| plan == Ok(rest)), "the short way");
    }
    let Ok(plan) = plan else {
        return;
    };
    if !kind.is_numbered() {
        assert_eq!(plan, StreamPlan::default());
        return;
    }
    assert_eq!(part.len(), len);
    let mut bytes: Vec<u8> = part.into();
    bytes.resize(len + plan.data_inline as usize, 0xd5);
    if kind.is_request() {
        Request::parse(&bytes, framing, &BOUNDS).expect("was planned");
    } else {
        Response::parse(&bytes, framing, &BOUNDS).expect("was planned");
    }
}

#[test]
fn every_stream_vector_is_planned() {
    for vector in vectors::frames() {
        if vector.framing == Framing::Rdma {
            continue;
        }
        let (kind, _) = peek_kind(&vector.bytes, vector.framing).expect(vector.name);
        if kind.is_numbered() {
            agree_with_parser(&vector.bytes, vector.framing, kind);
            continue;
        }
        let tlv = vector.bytes.first_chunk().expect("a start");
        let found = control_len(tlv, vector.framing, BOUNDS.frame_max);
        assert_eq!(found, Ok((kind, vector.bytes.len())), "{}", vector.name);
        let plan = stream_plan(&vector.bytes, vector.framing, kind, &BOUNDS);
        assert_eq!(plan, Ok(StreamPlan::default()), "{}", vector.name);
    }
}

fn plan(name: &str, framing: Framing) -> (usize, StreamPlan) {
    let bytes = vectors::get(name);
    let part = control_part(&bytes, framing);
    let (kind, _) = peek_kind(&bytes, framing).expect(name);
    let plan = stream_plan(part, framing, kind, &BOUNDS).expect(name);
    (part.len(), plan)
}

#[test]
fn data_goes_where_its_framing_says() {
    let (dual, single) = (Framing::TcpDual, Framing::TcpSingle);
    let inline = |data_inline| StreamPlan {
        data_inline,
        payload: 0,
    };
    let outside = |payload| StreamPlan {
        data_inline: 0,
        payload,
    };
    assert_eq!(plan("dual msg_req inline", dual), (100, inline(5)));
    assert_eq!(plan("single msg_req inline", single), (105, inline(0)));
    assert_eq!(plan("dual msg_rsp inline", dual), (99, inline(5)));
    assert_eq!(plan("dual request to read", dual), (116, outside(20000)));
    assert_eq!(
        plan("single request to read", single),
        (116, outside(20000))
    );
    assert_eq!(plan("dual response written", dual), (108, outside(20000)));
    assert_eq!(
        plan("single response written", single),
        (108, outside(20000))
    );
    assert_eq!(plan("dual session_setup_req", dual), (96, inline(42)));
    assert_eq!(plan("single session_setup_req", single), (138, inline(0)));
    assert_eq!(plan("dual cancel_req", dual), (96, inline(26)));
    assert_eq!(plan("tcp fin_req", dual), (96, inline(0)));
    assert_eq!(plan("dual one_way_rsp", dual), (96, inline(0)));
}

#[test]
fn the_control_part_must_be_whole() {
    let bytes = vectors::get("dual msg_req inline");
    let part = control_part(&bytes, Framing::TcpDual);
    for len in 0..part.len() {
        let plan = stream_plan(&part[..len], Framing::TcpDual, Kind::MsgReq, &BOUNDS);
        assert!(plan.is_err(), "{len}");
    }
    let plan = stream_plan(&bytes, Framing::TcpDual, Kind::MsgReq, &BOUNDS);
    assert_eq!(
        plan.expect_err("data in the control part").what,
        What::FrameLength
    );
    let plan = stream_plan(part, Framing::TcpDual, Kind::OneWayReq, &BOUNDS);
    assert_eq!(plan.expect_err("another kind").what, What::WrongKind);
}

#[test]
fn impossible_lengths_are_refused_before_anything_is_read() {
    let start = |kind: u32, len: u64| {
        let mut tlv = [0; TLV_LEN];
        tlv[..4].copy_from_slice(b"XIOP");
        tlv[4..8].copy_from_slice(&kind.to_be_bytes());
        tlv[8..].copy_from_slice(&len.to_be_bytes());
        tlv
    };
    let what = |kind, len, framing| {
        let found = control_len(&start(kind, len), framing, BOUNDS.frame_max);
        found.expect_err("impossible").what
    };
    for framing in [Framing::TcpSingle, Framing::TcpDual] {
        assert_eq!(what(0x82, 31, framing), What::TlvLenMismatch);
        assert_eq!(what(0x84, 37, framing), What::TlvLenMismatch);
        assert_eq!(what(0x12, 79, framing), What::TlvLenMismatch);
        assert_eq!(what(0x12, 9201, framing), What::FrameTooLong);
        assert_eq!(what(0x12, 0x1_0000, framing), What::TlvLenTooLarge);
        assert_eq!(what(0x12, 1 << 32 | 80, framing), What::TlvLenTooLarge);
        assert_eq!(what(0x41, 12, framing), What::KindNotOnDialect);
        assert_eq!(what(0x2004, 6, framing), What::KindNotOnDialect);
        assert_eq!(what(0x08, 80, framing), What::UnknownKind);
        assert_eq!(what(0x10, 80, framing), What::UnknownKind);
        assert_eq!(
            control_len(&start(0x12, 9200), framing, 9216),
            Ok((Kind::MsgReq, 9216))
        );
    }
    assert_eq!(what(0x102, 81, Framing::TcpDual), What::TlvLenMismatch);
    assert_eq!(
        control_len(&start(0x102, 81), Framing::TcpSingle, 9216).map(|it| it.1),
        Ok(97)
    );
}

#[test]
fn connect_messages() {
    let cases = [
        ("00000001 00000000", SocketKind::Single, 0),
        ("00000003 9c400000", SocketKind::Data, 40000),
        ("00000002 9c420000", SocketKind::Control, 40002),
    ];
    for (text, sock, second_port) in cases {
        let bytes: [u8; 8] = hex(text).try_into().expect("8 bytes");
        let message = ConnectMessage { sock, second_port };
        assert_eq!(ConnectMessage::parse(&bytes), Ok(message));
        let mut buf = [0xa5; 9];
        assert_eq!(message.encode(&mut buf), 8);
        assert_eq!((buf[..8] == bytes, buf[8]), (true, 0xa5));
    }
    for bad in [0, 4, 0x0100_0000, u32::MAX] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&bad.to_be_bytes());
        let expected = Violation::new(What::SocketKind, 0, u64::from(bad));
        assert_eq!(ConnectMessage::parse(&bytes), Err(expected));
    }
    for half in [2, 3] {
        let violation = ConnectMessage::parse(&[0, 0, 0, half, 0, 0, 0, 0]);
        assert_eq!(violation, Err(Violation::new(What::SecondPort, 4, 0)));
    }
    // The pad is not looked at.
    assert!(ConnectMessage::parse(&[0, 0, 0, 1, 0, 0, 9, 9]).is_ok());
}

#[test]
fn plain_messages_on_two_streams_are_planned_in_short() {
    for name in ["dual msg_req inline", "dual msg_rsp inline"] {
        let bytes = vectors::get(name);
        let part = control_part(&bytes, Framing::TcpDual);
        let kind = message_kind(part).expect("a message");
        let rest = (bytes.len() - part.len()) as u32;
        assert_eq!(plain_rest(kind, part, &BOUNDS), Some(rest), "{name}");
        // A part that is cut short is not.
        let cut = &part[..part.len() - 1];
        assert_eq!(plain_rest(kind, cut, &BOUNDS), None, "{name}");
    }
}
