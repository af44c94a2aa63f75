//! Following streams, finding frames, and the fields of every part.

use super::std::vec;
use super::std::vec::Vec;

use super::layout::{self, Part};
use super::*;

/// All frames of one framing, as its control or single stream and its data stream have them, with
/// 5 bytes for every payload byte that is announced outside a frame.
fn streams(framing: Framing) -> (Vec<Kind>, Vec<u8>, Vec<u8>) {
    let (mut kinds, mut control, mut data) = (vec![], vec![], vec![]);
    for vector in vectors::frames() {
        if vector.framing != framing {
            continue;
        }
        let (kind, len) = peek_kind(&vector.bytes, framing).expect(vector.name);
        let part = TLV_LEN + len as usize;
        let plan = stream_plan(&vector.bytes[..part], framing, kind, &BOUNDS).expect("planned");
        kinds.push(kind);
        control.extend_from_slice(&vector.bytes[..part]);
        data.extend_from_slice(&vector.bytes[part..]);
        let behind = if framing == Framing::TcpSingle {
            &mut control
        } else {
            &mut data
        };
        behind.resize(behind.len() + plan.payload as usize, 0xd5);
    }
    (kinds, control, data)
}

#[test]
fn frames_of_a_direction_come_in_order_however_little_is_there() {
    for framing in [Framing::TcpSingle, Framing::TcpDual] {
        let (kinds, control, data) = streams(framing);
        assert!(kinds.len() > 2, "{framing:?}");
        let mut follower = Follower::new(framing, BOUNDS);
        let (mut found, mut at, mut data_at, mut have) = (vec![], 0, 0, 0);
        while at < control.len() {
            match follower.next() {
                Next::Frame => match follower.cut(&control[at..at + have]).expect("good frames") {
                    Cut::More(need) => {
                        assert!(need > have, "{need} after {have}");
                        have = need;
                    }
                    Cut::Frame { kind, len, .. } => {
                        found.push(kind);
                        at += len;
                        have = 0;
                    }
                },
                Next::Payload(left) if framing == Framing::TcpSingle => {
                    at += left.min(7) as usize;
                    follower.took(left.min(7));
                }
                Next::Inline(_) | Next::Payload(_) => {
                    data_at += 1;
                    follower.took(1);
                }
            }
        }
        while follower.next() != Next::Frame {
            data_at += 1;
            follower.took(1);
        }
        assert_eq!(found, kinds, "{framing:?}");
        assert_eq!(data_at, data.len(), "{framing:?}");
    }
}

#[test]
fn what_is_missing_can_be_given_up() {
    let (_, control, _) = streams(Framing::TcpDual);
    let mut follower = Follower::new(Framing::TcpDual, BOUNDS);
    let mut at = 0;
    while let Ok(Cut::Frame { len, .. }) = follower.cut(&control[at..]) {
        at += len;
        follower.give_up();
    }
    assert_eq!(at, control.len());
}

#[test]
fn a_frame_is_found_behind_anything() {
    let frame = vectors::frames();
    let frame = frame.iter().find(|v| v.framing == Framing::TcpSingle);
    let frame = &frame.expect("one").bytes;
    for before in [
        &b""[..],
        b"X",
        b"XIOP",
        b"XIOXIOPXI",
        b"hello, XIOP, how are you?",
    ] {
        let bytes = [before, frame].concat();
        assert_eq!(find_frame(&bytes, 9216), Ok(before.len()));
        for len in 0..before.len() + TLV_LEN {
            let Err(skip) = find_frame(&bytes[..len], 9216) else {
                panic!("{len} bytes have no frame");
            };
            assert!(
                skip <= before.len() && len - skip < TLV_LEN,
                "{len}: {skip}"
            );
        }
    }
    assert_eq!(
        find_frame(frame, 40),
        Err(frame.len()),
        "longer than any frame"
    );
    assert_eq!(find_frame(b"no such thing", 9216), Err(13));
}

#[test]
fn two_sockets_name_each_other() {
    let message = |second_port| ConnectMessage {
        sock: SocketKind::Control,
        second_port,
    };
    assert!(message(7).names(5, &message(5), 7));
    assert!(!message(7).names(5, &message(6), 7));
    assert!(!message(7).names(5, &message(5), 8));
}

/// Fields follow each other without a hole, in this part and from it to the next.
fn check_parts(parts: &[Part]) {
    let mut end = 0;
    for part in parts {
        for field in part.fields {
            assert_eq!(part.at + field.offset, end, "{}.{}", part.name, field.name);
            end += field.len;
        }
    }
}

#[test]
fn parts_tile_their_frame() {
    for kind in Kind::ALL {
        for dialect in [Dialect::Rdma, Dialect::Tcp] {
            check_parts(layout::parts(kind, dialect));
        }
    }
    for payload in [layout::ACCEPT, layout::REDIRECT, layout::REJECT] {
        check_parts(&[layout::SESSION_RESPONSE, payload]);
    }
    for part in [
        layout::SESSION_REQUEST,
        layout::CANCEL,
        layout::CONNECT,
        layout::SEGMENT,
    ] {
        check_parts(&[part]);
    }
    for vector in vectors::frames() {
        let (kind, _) = peek_kind(&vector.bytes, vector.framing).expect(vector.name);
        let parts = layout::parts(kind, vector.framing.dialect());
        let last = parts.last().expect("parts");
        let field = last.fields.last().expect("fields");
        let end = usize::from(last.at + field.offset + field.len);
        // Only a table of keys and what numbered frames have may follow.
        let whole = !kind.is_numbered() && !vector.name.contains("keys");
        assert!(end <= vector.bytes.len(), "{}", vector.name);
        assert!(!whole || end == vector.bytes.len(), "{}", vector.name);
    }
}
