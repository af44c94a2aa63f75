//! The frames of the common case, read and written in place: the same as with the general codec.

use super::*;

/// Whatever the recognisers of plain frames take, the general parser takes with the same values.
pub(super) fn agree_with_parser(bytes: &[u8], framing: Framing) {
    match framing.dialect() {
        Dialect::Rdma => agree::<OnRdma>(bytes, framing),
        Dialect::Tcp => agree::<OnStream>(bytes, framing),
    }
}

const fn limits(framing: Framing) -> Limits {
    Limits {
        framing,
        frame_max: BOUNDS.frame_max,
        header_max: BOUNDS.header_max,
    }
}

fn agree<D: Headers>(bytes: &[u8], framing: Framing) {
    match message_kind(bytes) {
        Some(Kind::MsgRsp) => {
            let Some(plain) = PlainResponse::<D>::parse_response(bytes, limits(framing)) else {
                return;
            };
            let general = Response::parse_any(bytes, framing, &BOUNDS).expect("taken as plain");
            let (session, head) = (&general.session, &general.head);
            assert_eq!(general.kind, Kind::MsgRsp);
            assert_eq!(
                (plain.serial(), plain.session_sn()),
                (session.serial, session.sn)
            );
            assert_eq!((plain.sn(), plain.credits()), (head.sn, head.credits));
            assert_eq!((plain.rtid(), plain.status()), (head.rtid, head.status));
            assert_eq!(
                (plain.header_len(), plain.data_len()),
                (head.header_len, head.data_len)
            );
            assert_eq!((head.op, head.pad_len), (Op::Send, 0));
            assert_eq!(general.header_at, PlainResponse::<D>::LEN);
        }
        Some(kind) => {
            let Some(plain) = PlainRequest::<D>::parse_request(bytes, limits(framing)) else {
                return;
            };
            let general = Request::parse_any(bytes, framing, &BOUNDS).expect("taken as plain");
            let (session, head) = (&general.session, &general.head);
            assert_eq!(general.kind, kind);
            assert_eq!(plain.dest_session(), session.dest_session);
            assert_eq!(
                (plain.serial(), plain.session_sn()),
                (session.serial, session.sn)
            );
            assert_eq!(
                (plain.session_flags(), plain.flags()),
                (session.flags, head.flags)
            );
            assert_eq!((plain.sn(), plain.credits()), (head.sn, head.credits));
            assert_eq!(
                (plain.header_len(), plain.data_len()),
                (head.header_len, head.data_len)
            );
            assert_eq!(plain.ltid(), head.ltid);
            assert_eq!((head.in_op, head.out_op), (Op::Send, Op::Send));
            assert_eq!((head.in_sges, head.out_sges, head.pad_len), (0, 0, 0));
            assert_eq!(general.header_at, PlainRequest::<D>::LEN);
        }
        None => {}
    }
}

/// What is not in the plain headers, because it is zero there.
fn is_plain(session: &SessionFields) -> bool {
    (
        session.credits_msgs,
        session.credits_bytes,
        session.receipt_result,
    ) == (0, 0, 0)
}

/// Writes a request's headers in place, if they are of that kind: as in `again`, which the general
/// encoder wrote.
pub(super) fn request(again: &[u8], framing: Framing, parsed: &Request<'_>) {
    let (session, head) = (&parsed.session, &parsed.head);
    let plain = parsed.kind.is_application()
        && (head.in_op, head.out_op) == (Op::Send, Op::Send)
        && head.in_sges + head.out_sges + head.pad_len == 0
        && is_plain(session);
    if plain {
        match framing.dialect() {
            Dialect::Rdma => same_request::<OnRdma>(again, framing, parsed),
            Dialect::Tcp => same_request::<OnStream>(again, framing, parsed),
        }
    }
}

fn same_request<D: Headers>(again: &[u8], framing: Framing, parsed: &Request<'_>) {
    let (session, head) = (&parsed.session, &parsed.head);
    let len = InlineRequest::<D>::LEN;
    let mut buf = std::vec![0xa5; len];
    let mut front = InlineRequest::<D>::new(&mut buf, len);
    front.kind(parsed.kind);
    front.lengths(framing, head.header_len, head.data_len as u32);
    front.session(
        session.dest_session,
        session.serial,
        session.sn,
        session.ack_sn,
    );
    front.flags(session.flags, head.flags);
    front.transport(head.sn, head.ack_sn, head.credits);
    front.id(head.ltid);
    assert_eq!(buf, again[..len]);
}

/// The same for a response.
pub(super) fn response(again: &[u8], framing: Framing, parsed: &Response<'_>) {
    let (session, head) = (&parsed.session, &parsed.head);
    let plain = parsed.kind == Kind::MsgRsp
        && (head.op, head.pad_len) == (Op::Send, 0)
        && session.flags == SessionFlags::RECEIPT_LAST
        && is_plain(session);
    if plain {
        match framing.dialect() {
            Dialect::Rdma => same_response::<OnRdma>(again, framing, parsed),
            Dialect::Tcp => same_response::<OnStream>(again, framing, parsed),
        }
    }
}

fn same_response<D: Headers>(again: &[u8], framing: Framing, parsed: &Response<'_>) {
    let (session, head) = (&parsed.session, &parsed.head);
    let len = InlineResponse::<D>::LEN;
    let mut buf = std::vec![0xa5; len];
    let mut front = InlineResponse::<D>::new(&mut buf, len);
    front.lengths(framing, head.header_len, head.data_len as u32);
    front.status(head.status);
    front.session(
        session.dest_session,
        session.serial,
        session.sn,
        session.ack_sn,
    );
    front.transport(head.sn, head.ack_sn, head.credits);
    front.ids(head.rtid, head.ltid);
    assert_eq!(buf, again[..len]);
}

#[test]
fn vectors_of_small_messages_are_plain() {
    fn taken<D: Headers>(name: &str, framing: Framing) -> bool {
        let frame = vectors::get(name);
        PlainRequest::<D>::parse_request(&frame, limits(framing)).is_some()
            || PlainResponse::<D>::parse_response(&frame, limits(framing)).is_some()
    }
    assert!(taken::<OnRdma>("rdma msg_req inline", Framing::Rdma));
    assert!(taken::<OnRdma>("rdma msg_rsp inline", Framing::Rdma));
    assert!(taken::<OnStream>(
        "single msg_req inline",
        Framing::TcpSingle
    ));
    assert!(taken::<OnStream>("dual msg_req inline", Framing::TcpDual));
    assert!(taken::<OnStream>("dual msg_rsp inline", Framing::TcpDual));
    assert!(taken::<OnStream>("dual one_way_req", Framing::TcpDual));
}
