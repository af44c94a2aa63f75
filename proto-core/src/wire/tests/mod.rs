//! Tests of the codec; the frames they use are in [`vectors`].

extern crate std;

mod canonical;
mod follow;
mod golden;
mod hostile;
mod inline;
mod lenient;
mod payloads;
mod streams;
mod strict;
mod vectors;

use std::vec::Vec;

use super::*;

/// What a peer with default options announces.
pub(super) const BOUNDS: Bounds = Bounds {
    frame_max: 9216,
    max_in_sges: 4,
    max_out_sges: 4,
    header_max: 256,
};

/// Converts hex digits, with blanks anywhere, to bytes.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("a hex digit") as u8)
        .collect();
    assert_eq!(digits.len() % 2, 0, "half a byte");
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Pseudo-random numbers, the same on every run.
pub(super) struct Lcg(u64);

impl Lcg {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub(super) fn below(&mut self, n: u32) -> u32 {
        self.next() % n
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// Asks every parser of whole frames for its opinion of `bytes` and checks that what they accept
/// is within the bounds and consistent. Returns whether one accepted.
pub(super) fn examine(bytes: &[u8], framing: Framing) -> bool {
    let peeked = peek_kind(bytes, framing);
    let dialect = framing.dialect();
    let request = Request::parse(bytes, framing, &BOUNDS);
    let response = Response::parse(bytes, framing, &BOUNDS);
    let setup_request = NexusSetupRequest::parse(bytes, dialect);
    let setup_response = NexusSetupResponse::parse(bytes, dialect);
    let nop = CreditNop::parse(bytes);
    let ack = ReadAck::parse(bytes);
    let accepted = usize::from(request.is_ok())
        + usize::from(response.is_ok())
        + usize::from(setup_request.is_ok())
        + usize::from(setup_response.is_ok())
        + usize::from(nop.is_ok())
        + usize::from(ack.is_ok());
    assert!(accepted <= 1, "two parsers accept one frame");
    compare_paths(bytes, framing);
    if let Ok(request) = request {
        assert_eq!(peeked.expect("parsed").0, request.kind);
        examine_request(bytes, framing, &request);
    }
    if let Ok(response) = response {
        assert_eq!(peeked.expect("parsed").0, response.kind);
        examine_response(bytes, framing, &response);
    }
    accepted == 1
}

/// The short path must say what the general one says, or nothing.
fn compare_paths(bytes: &[u8], framing: Framing) {
    inline::agree_with_parser(bytes, framing);
    if let Some(short) = Request::parse_inline(bytes, framing, &BOUNDS) {
        let general = Request::parse_any(bytes, framing, &BOUNDS).expect("taken by the short path");
        assert_eq!((short.kind, short.session), (general.kind, general.session));
        assert_eq!(short.head, general.head);
        let places = (general.header_at, general.data_at);
        assert_eq!((short.header_at, short.data_at), places);
    }
    if let Some(short) = Response::parse_inline(bytes, framing, &BOUNDS) {
        let general =
            Response::parse_any(bytes, framing, &BOUNDS).expect("taken by the short path");
        assert_eq!((short.kind, short.session), (general.kind, general.session));
        assert_eq!(short.head, general.head);
        let places = (general.header_at, general.data_at);
        assert_eq!((short.header_at, short.data_at), places);
    }
}

fn examine_request(bytes: &[u8], framing: Framing, request: &Request<'_>) {
    let head = &request.head;
    assert!(request.kind.is_request());
    assert!(bytes.len() <= BOUNDS.frame_max as usize);
    assert!(head.in_sges <= BOUNDS.max_in_sges && head.out_sges <= BOUNDS.max_out_sges);
    assert!(matches!(head.in_op, Op::Send | Op::Write));
    assert_eq!(request.in_sges().len(), usize::from(head.in_sges));
    assert_eq!(request.out_sges().len(), usize::from(head.out_sges));
    assert_eq!(request.header().len(), usize::from(head.header_len));
    assert_eq!(request.data().len() as u64, head.data_len);
    for (i, sge) in (0..).zip(request.in_sges()) {
        assert_eq!(request.in_sge(i), sge);
    }
    for (i, sge) in (0..).zip(request.out_sges()) {
        assert_eq!(request.out_sge(i), sge);
    }
    match head.out_op {
        Op::Send => assert_eq!(request.out_total(), 0),
        Op::Read => assert!(head.out_sges > 0 && head.data_len == 0),
        Op::Write => panic!("a request does not write"),
    }
    if request.kind.is_application() {
        assert!(head.header_len <= BOUNDS.header_max);
    } else {
        assert!(usize::from(head.header_len) <= SETUP_PAYLOAD_MAX || !is_setup(request.kind));
        assert_eq!(head.in_sges + head.out_sges, 0);
        assert_eq!(head.data_len, 0);
    }
    let _ = (request.session_setup(), request.cancel());
    let _ = canonical::request(bytes, framing, request);
    streams::agree_with_parser(bytes, framing, request.kind);
}

fn examine_response(bytes: &[u8], framing: Framing, response: &Response<'_>) {
    let head = &response.head;
    assert!(response.kind.is_response());
    assert!(bytes.len() <= BOUNDS.frame_max as usize);
    assert!(head.sges <= BOUNDS.max_out_sges);
    assert_eq!(response.header().len(), usize::from(head.header_len));
    let inline = if head.op == Op::Send {
        head.data_len
    } else {
        0
    };
    assert_eq!(response.data().len() as u64, inline);
    for (i, len) in (0..).zip(response.write_lens()) {
        assert_eq!(response.write_len(i), len);
    }
    for (i, sge) in (0..).zip(response.sges()) {
        assert_eq!(response.sge(i), sge);
    }
    let lists = (response.write_lens().len(), response.sges().len());
    let n = usize::from(head.sges);
    match head.op {
        Op::Send => assert_eq!((lists, n), ((0, 0), 0)),
        Op::Write => assert_eq!(lists, (n, 0)),
        Op::Read => assert_eq!((lists, framing), ((0, n), Framing::Rdma)),
    }
    if head.op == Op::Write && framing != Framing::Rdma {
        assert_eq!(response.write_lens().total(), head.data_len);
    }
    if response.is_receipt() {
        assert_eq!((head.header_len, response.data_total()), (0, 0));
    }
    if response.kind.is_application() {
        assert!(head.header_len <= BOUNDS.header_max);
    } else {
        assert_eq!(response.data_total(), 0);
    }
    let _ = (response.session_setup(), response.cancel());
    let _ = canonical::response(bytes, framing, response);
    streams::agree_with_parser(bytes, framing, response.kind);
}

const fn is_setup(kind: Kind) -> bool {
    matches!(kind, Kind::SessionSetupReq | Kind::SessionSetupRsp)
}
