//! The rules that a single assembled frame obeys on every transport.

use xio_proto::wire::{
    Bounds, Cancel, CreditNop, Dialect, Framing, Kind, Lengths, NexusSetupRequest,
    NexusSetupResponse, Op, ReadAck, Request, Response, ResponseList, SETUP_PAYLOAD_MAX,
    SessionSetupRequest, SessionSetupResponse, Sges, TLV_LEN, Violation, encode_request,
    encode_response, peek_kind, request_head_len, response_head_len,
};

/// Room for every frame without lists and data.
const SMALL: usize = TLV_LEN + SETUP_PAYLOAD_MAX;

/// Reads `frame` with every parser and checks the one that takes it.
///
/// # Errors
/// Why the parser for the frame's kind refuses it.
pub(crate) fn check(frame: &[u8], framing: Framing, bounds: &Bounds) -> Result<Kind, Violation> {
    let (kind, announced) = match peek_kind(frame, framing) {
        Ok(peeked) => peeked,
        Err(violation) => {
            check_refusal(frame, framing, bounds, violation);
            return Err(violation);
        }
    };
    assert!(announced <= (frame.len() - TLV_LEN) as u64);
    let request = Request::parse(frame, framing, bounds);
    let response = Response::parse(frame, framing, bounds);
    assert!(kind.is_request() || request.is_err());
    assert!(kind.is_response() || response.is_err());
    if kind.is_request() {
        check_request(frame, &request?, framing, bounds);
    } else if kind.is_response() {
        check_response(frame, &response?, framing, bounds);
    } else {
        check_small(frame, kind, framing.dialect())?;
    }
    Ok(kind)
}

/// What has no valid start is refused by every parser, and for the same reason.
fn check_refusal(frame: &[u8], framing: Framing, bounds: &Bounds, violation: Violation) {
    assert_eq!(
        Request::parse(frame, framing, bounds).err(),
        Some(violation)
    );
    assert_eq!(
        Response::parse(frame, framing, bounds).err(),
        Some(violation)
    );
    assert!(NexusSetupRequest::parse(frame, framing.dialect()).is_err());
    assert!(NexusSetupResponse::parse(frame, framing.dialect()).is_err());
    assert!(CreditNop::parse(frame).is_err());
    assert!(ReadAck::parse(frame).is_err());
    assert!(!violation.to_string().is_empty());
}

/// The parts of a numbered frame are where they must be: one behind the other, within the frame.
struct Layout {
    head_len: usize,
    header_at: u16,
    header_len: u16,
    pad_len: u16,
    data_at: u16,
    inline_len: u64,
}

impl Layout {
    fn check(&self, frame: &[u8], kind: Kind, bounds: &Bounds) {
        let header_at = usize::from(self.header_at);
        let data_at = usize::from(self.data_at);
        assert_eq!(header_at, self.head_len);
        assert_eq!(
            data_at,
            header_at + usize::from(self.header_len) + usize::from(self.pad_len)
        );
        assert_eq!(frame.len() as u64, data_at as u64 + self.inline_len);
        assert!(frame.len() as u64 <= u64::from(bounds.frame_max));
        if kind.is_application() {
            assert!(self.header_len <= bounds.header_max);
        } else {
            assert!(
                usize::from(self.header_len) <= SETUP_PAYLOAD_MAX || kind != Kind::SessionSetupReq
            );
            assert_eq!(self.inline_len, 0);
        }
    }
}

fn check_request(frame: &[u8], request: &Request<'_>, framing: Framing, bounds: &Bounds) {
    let head = &request.head;
    let layout = Layout {
        head_len: request_head_len(framing, head.in_sges.into(), head.out_sges.into()),
        header_at: request.header_at,
        header_len: head.header_len,
        pad_len: head.pad_len,
        data_at: request.data_at,
        inline_len: head.data_len,
    };
    layout.check(frame, request.kind, bounds);
    check_list(&request.in_sges(), head.in_sges, bounds.max_in_sges);
    check_list(&request.out_sges(), head.out_sges, bounds.max_out_sges);
    assert!(head.out_op != Op::Read || head.data_len == 0);

    let again = request_bytes(frame, request, framing);
    let parsed = Request::parse(&again, framing, bounds).expect("what was read can be read again");
    assert_eq!(request_values(&parsed), request_values(request));
    assert_eq!(request_bytes(&again, &parsed, framing), again);

    match request.kind {
        Kind::SessionSetupReq => check_setup_request(request),
        Kind::CancelReq => check_cancel(request.header(), request.cancel()),
        _ => {}
    }
}

fn check_list(list: &Sges<'_>, count: u16, max: u16) {
    assert!(count <= max);
    assert_eq!(list.clone().count(), usize::from(count));
    assert!(list.total() <= u64::from(count) * u64::from(u32::MAX));
}

/// All that a request says, but for where it lies.
fn request_values<'a>(request: &'a Request<'_>) -> impl PartialEq + core::fmt::Debug + use<'a> {
    let lists: Vec<_> = request.in_sges().chain(request.out_sges()).collect();
    (
        request.kind,
        request.session,
        request.head,
        lists,
        request.header(),
        request.data(),
    )
}

/// Writes a request anew from what was read of it.
fn request_bytes(frame: &[u8], request: &Request<'_>, framing: Framing) -> Vec<u8> {
    let mut bytes = vec![0xa5; frame.len()];
    let start = encode_request(
        &mut bytes,
        request.header_at.into(),
        framing,
        request.kind,
        &request.session,
        &request.head,
        request.in_sges(),
        request.out_sges(),
        counts_data(frame),
    );
    assert_eq!(start, 0);
    fill(
        &mut bytes,
        request.header_at,
        request.header(),
        request.data_at,
        request.data(),
    );
    bytes
}

/// Whether the length word counts the inline data, which a sender on RDMA may leave out.
fn counts_data(frame: &[u8]) -> bool {
    frame[8..16] == ((frame.len() - TLV_LEN) as u64).to_be_bytes()
}

/// Puts the application's parts behind the headers.
fn fill(bytes: &mut [u8], header_at: u16, header: &[u8], data_at: u16, data: &[u8]) {
    let behind = &mut bytes[header_at.into()..];
    let (front, inline) = behind.split_at_mut(usize::from(data_at - header_at));
    front.fill(0);
    front[..header.len()].copy_from_slice(header);
    inline.copy_from_slice(data);
}

fn check_response(frame: &[u8], response: &Response<'_>, framing: Framing, bounds: &Bounds) {
    let head = &response.head;
    let inline_len = if head.op == Op::Send {
        head.data_len
    } else {
        0
    };
    let layout = Layout {
        head_len: response_head_len(framing, head.op, head.sges.into()),
        header_at: response.header_at,
        header_len: head.header_len,
        pad_len: head.pad_len,
        data_at: response.data_at,
        inline_len,
    };
    layout.check(frame, response.kind, bounds);
    check_response_lists(response, framing, bounds);

    let again = response_bytes(frame, response, framing);
    let parsed = Response::parse(&again, framing, bounds).expect("what was read can be read again");
    assert_eq!(response_values(&parsed), response_values(response));
    assert_eq!(response_bytes(&again, &parsed, framing), again);

    match response.kind {
        Kind::SessionSetupRsp => check_setup_response(response),
        Kind::CancelRsp => check_cancel(response.header(), response.cancel()),
        _ => {}
    }
}

fn check_response_lists(response: &Response<'_>, framing: Framing, bounds: &Bounds) {
    let head = &response.head;
    let written = if head.op == Op::Write { head.sges } else { 0 };
    let to_read = if head.op == Op::Read { head.sges } else { 0 };
    check_list(&response.sges(), to_read, bounds.max_out_sges);
    assert!(written <= bounds.max_out_sges);
    assert_eq!(response.write_lens().count(), usize::from(written));
    if head.op == Op::Write && framing.dialect() == Dialect::Tcp {
        assert_eq!(response.write_lens().total(), head.data_len);
    }
    if response.is_receipt() {
        assert!(response.header().is_empty() && response.data_total() == 0);
    }
}

/// All that a response says, but for where it lies.
fn response_values<'a>(response: &'a Response<'_>) -> impl PartialEq + core::fmt::Debug + use<'a> {
    let lists: (Vec<_>, Vec<_>) = (response.write_lens().collect(), response.sges().collect());
    (
        response.kind,
        response.session,
        response.head,
        lists,
        response.header(),
        response.data(),
    )
}

/// Writes a response anew from what was read of it.
fn response_bytes(frame: &[u8], response: &Response<'_>, framing: Framing) -> Vec<u8> {
    let list: ResponseList<Lengths<'_>, Sges<'_>> = match response.head.op {
        Op::Send => ResponseList::None,
        Op::Write => ResponseList::Lengths(response.write_lens()),
        Op::Read => ResponseList::Sges(response.sges()),
    };
    let mut bytes = vec![0xa5; frame.len()];
    let start = encode_response(
        &mut bytes,
        response.header_at.into(),
        framing,
        response.kind,
        &response.session,
        &response.head,
        list,
        counts_data(frame),
    );
    assert_eq!(start, 0);
    fill(
        &mut bytes,
        response.header_at,
        response.header(),
        response.data_at,
        response.data(),
    );
    bytes
}

/// The frames that have no session header. Setup frames say everything that their bytes hold, so
/// they come out as they went in; of the others one has a field that means nothing.
fn check_small(frame: &[u8], kind: Kind, dialect: Dialect) -> Result<(), Violation> {
    let mut bytes = vec![0xa5; frame.len().max(SMALL)];
    let len = match kind {
        Kind::NexusSetupReq => {
            NexusSetupRequest::parse(frame, dialect)?.encode(&mut bytes, dialect)
        }
        Kind::NexusSetupRsp => {
            NexusSetupResponse::parse(frame, dialect)?.encode(&mut bytes, dialect)
        }
        Kind::ReadAck => ReadAck::parse(frame)?.encode(&mut bytes),
        Kind::CreditNop => {
            let nop = CreditNop::parse(frame)?;
            let len = nop.encode(&mut bytes);
            assert_eq!(CreditNop::parse(&bytes[..len]), Ok(nop));
            return Ok(());
        }
        _ => unreachable!("{kind:?} is a request or a response"),
    };
    assert_eq!(&bytes[..len], frame);
    Ok(())
}

/// Payloads have no byte without a meaning, so they come out as they went in.
fn check_setup_request(request: &Request<'_>) {
    let payload = request.header();
    let parsed = request.session_setup();
    assert_eq!(parsed.is_ok(), SessionSetupRequest::parse(payload).is_ok());
    if let Ok(setup) = parsed {
        assert!(setup.uri.starts_with(setup.uri_trimmed()));
        let mut bytes = [0xa5; SETUP_PAYLOAD_MAX];
        let len = setup
            .encode(&mut bytes)
            .expect("a payload that was read fits a payload");
        assert_eq!(&bytes[..len], payload);
    }
}

fn check_setup_response(response: &Response<'_>) {
    let payload = response.header();
    let parsed = response.session_setup();
    assert_eq!(parsed.is_ok(), SessionSetupResponse::parse(payload).is_ok());
    if let Ok(setup) = parsed {
        if let SessionSetupResponse::Accept { portals, .. }
        | SessionSetupResponse::Redirect { portals, .. } = setup
        {
            assert_eq!(portals.iter().count(), portals.len());
        }
        let mut bytes = [0xa5; SETUP_PAYLOAD_MAX];
        let len = setup
            .encode(&mut bytes)
            .expect("a payload that was read fits a payload");
        assert_eq!(&bytes[..len], payload);
    }
}

fn check_cancel(payload: &[u8], parsed: Result<Cancel, Violation>) {
    assert_eq!(parsed.is_ok(), Cancel::parse(payload).is_ok());
    if let Ok(cancel) = parsed {
        let mut bytes = [0xa5; Cancel::LEN];
        let len = cancel.encode(&mut bytes);
        assert_eq!(&bytes[..len], payload);
    }
}
