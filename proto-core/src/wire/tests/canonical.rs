//! Encoding what was parsed gives a frame that parses to the same and, once its undefined fields
//! are zero, to the same bytes.

use super::std::vec::Vec;

use super::*;

/// Room before the headers that must stay untouched.
const MARGIN: usize = 16;

/// Puts freshly encoded headers before what follows them in `bytes`.
fn rebuild(
    bytes: &[u8],
    header_at: u16,
    encode: impl FnOnce(&mut [u8], usize) -> usize,
) -> Vec<u8> {
    let end = MARGIN + usize::from(header_at);
    let mut buf = std::vec![0xa5; MARGIN];
    buf.extend_from_slice(bytes);
    let start = encode(&mut buf, end);
    assert_eq!(start, MARGIN, "headers of the same size");
    assert!(
        buf[..MARGIN].iter().all(|byte| *byte == 0xa5),
        "wrote before the start"
    );
    buf.split_off(MARGIN)
}

fn counts_data(bytes: &[u8]) -> bool {
    let (_, len) = peek_kind(bytes, Framing::Rdma).expect("parsed before");
    len == (bytes.len() - TLV_LEN) as u64
}

/// Encodes a parsed request again and returns the frame.
pub(super) fn request(bytes: &[u8], framing: Framing, parsed: &Request<'_>) -> Vec<u8> {
    let counts = framing == Framing::Rdma && counts_data(bytes);
    let (session, head) = (&parsed.session, &parsed.head);
    let (ins, outs) = (parsed.in_sges(), parsed.out_sges());
    let n_bytes = request_head_len(framing, ins.len(), outs.len());
    assert_eq!(n_bytes, usize::from(parsed.header_at));
    let again = rebuild(bytes, parsed.header_at, |buf, end| {
        encode_request(
            buf,
            end,
            framing,
            parsed.kind,
            session,
            head,
            ins,
            outs,
            counts,
        )
    });
    let reparsed = Request::parse(&again, framing, &BOUNDS).expect("our own frame");
    assert_eq!((reparsed.kind, reparsed.head), (parsed.kind, parsed.head));
    assert_eq!(reparsed.session, parsed.session);
    assert_eq!(
        (reparsed.header(), reparsed.data()),
        (parsed.header(), parsed.data())
    );
    assert!(reparsed.in_sges().eq(parsed.in_sges()));
    assert!(reparsed.out_sges().eq(parsed.out_sges()));
    if counts || framing != Framing::Rdma {
        inline::request(&again, framing, parsed);
    }
    again
}

/// Encodes a parsed response again and returns the frame.
pub(super) fn response(bytes: &[u8], framing: Framing, parsed: &Response<'_>) -> Vec<u8> {
    let counts = framing == Framing::Rdma && counts_data(bytes);
    let (kind, session, head) = (parsed.kind, &parsed.session, &parsed.head);
    let n_bytes = response_head_len(framing, head.op, usize::from(head.sges));
    assert_eq!(n_bytes, usize::from(parsed.header_at));
    let again = rebuild(bytes, parsed.header_at, |buf, end| match head.op {
        Op::Send => {
            let list = ResponseList::none();
            encode_response(buf, end, framing, kind, session, head, list, counts)
        }
        Op::Write => {
            let list = ResponseList::lengths(parsed.write_lens());
            encode_response(buf, end, framing, kind, session, head, list, counts)
        }
        Op::Read => {
            let list = ResponseList::sges(parsed.sges());
            encode_response(buf, end, framing, kind, session, head, list, counts)
        }
    });
    let reparsed = Response::parse(&again, framing, &BOUNDS).expect("our own frame");
    assert_eq!((reparsed.kind, reparsed.head), (parsed.kind, parsed.head));
    assert_eq!(reparsed.session, parsed.session);
    assert_eq!(
        (reparsed.header(), reparsed.data()),
        (parsed.header(), parsed.data())
    );
    assert!(reparsed.write_lens().eq(parsed.write_lens()));
    assert!(reparsed.sges().eq(parsed.sges()));
    if counts || framing != Framing::Rdma {
        inline::response(&again, framing, parsed);
    }
    again
}

/// Encodes any whole frame again.
pub(super) fn frame(bytes: &[u8], framing: Framing) -> Vec<u8> {
    let dialect = framing.dialect();
    let mut buf = std::vec![0xa5; bytes.len()];
    let (kind, _) = peek_kind(bytes, framing).expect("a good frame");
    let len = match kind {
        Kind::CreditNop => CreditNop::parse(bytes).map(|it| it.encode(&mut buf)),
        Kind::ReadAck => ReadAck::parse(bytes).map(|it| it.encode(&mut buf)),
        Kind::NexusSetupReq => {
            NexusSetupRequest::parse(bytes, dialect).map(|it| it.encode(&mut buf, dialect))
        }
        Kind::NexusSetupRsp => {
            NexusSetupResponse::parse(bytes, dialect).map(|it| it.encode(&mut buf, dialect))
        }
        _ if kind.is_request() => {
            let parsed = Request::parse(bytes, framing, &BOUNDS).expect("a good frame");
            return request(bytes, framing, &parsed);
        }
        _ => {
            let parsed = Response::parse(bytes, framing, &BOUNDS).expect("a good frame");
            return response(bytes, framing, &parsed);
        }
    };
    assert_eq!(len.expect("a good frame"), bytes.len());
    buf
}

#[test]
fn every_vector_encodes_to_its_own_bytes() {
    for vector in vectors::frames() {
        let again = frame(&vector.bytes, vector.framing);
        assert_eq!(again, vector.bytes, "{}", vector.name);
    }
}

#[test]
fn undefined_fields_are_sent_as_zeros() {
    // Pads of the session and the transport header, version kept.
    let mut bytes = vectors::get("rdma msg_rsp inline");
    for at in (38..44).chain([71, 72, 73, 74, 75]).chain(88..92) {
        bytes[at] = 0xee;
    }
    assert_eq!(
        frame(&bytes, Framing::Rdma),
        vectors::get("rdma msg_rsp inline")
    );
}

#[test]
fn lists_are_written_in_order_and_headers_end_at_the_given_place() {
    let session = SessionFields::default();
    let parsed = vectors::get("rdma request writable");
    let parsed = Request::parse(&parsed, Framing::Rdma, &BOUNDS).expect("a good frame");
    let sge = |n: u64| Sge {
        addr: n,
        len: n as u32,
        rkey: n as u32,
    };
    let head = RequestFields {
        out_op: Op::Read,
        data_len: 0,
        ..parsed.head
    };
    let mut buf = [0; 300];
    let start = encode_request(
        &mut buf,
        200,
        Framing::Rdma,
        Kind::MsgReq,
        &session,
        &head,
        [sge(1), sge(2)].into_iter(),
        [sge(3)].into_iter(),
        false,
    );
    assert_eq!(start, 200 - request_head_len(Framing::Rdma, 2, 1));
    let frame = &buf[start..200 + usize::from(head.header_len)];
    let parsed = Request::parse(frame, Framing::Rdma, &BOUNDS).expect("our own frame");
    assert!(parsed.in_sges().eq([sge(1), sge(2)]));
    assert!(parsed.out_sges().eq([sge(3)]));
    assert_eq!((parsed.in_total(), parsed.out_total()), (3, 3));
}

#[test]
#[should_panic(expected = "room for the headers")]
fn no_room_is_an_error_of_the_caller() {
    let parsed = vectors::get("rdma msg_req inline");
    let parsed = Request::parse(&parsed, Framing::Rdma, &BOUNDS).expect("a good frame");
    let none = || core::iter::empty();
    let (session, head) = (&parsed.session, &parsed.head);
    let kind = Kind::MsgReq;
    let mut buf = [0; 300];
    encode_request(
        &mut buf,
        95,
        Framing::Rdma,
        kind,
        session,
        head,
        none(),
        none(),
        true,
    );
}

#[test]
#[should_panic(expected = "list belongs to another operation")]
fn the_list_must_be_that_of_the_operation() {
    let parsed = vectors::get("rdma response written");
    let parsed = Response::parse(&parsed, Framing::Rdma, &BOUNDS).expect("a good frame");
    let (session, head) = (&parsed.session, &parsed.head);
    let list = ResponseList::none();
    let mut buf = [0; 300];
    encode_response(
        &mut buf,
        200,
        Framing::Rdma,
        Kind::MsgRsp,
        session,
        head,
        list,
        true,
    );
}
