//! Frames through the codec.

use xio_proto::wire::{
    Bounds, Framing, Kind, Op, Request, RequestFields, SessionFields, SessionFlags, Sge,
    TransportFlags, encode_request, request_head_len,
};

const BOUNDS: Bounds = Bounds {
    frame_max: 9216,
    max_in_sges: 4,
    max_out_sges: 4,
    header_max: 256,
};

const HEADER: &[u8] = b"header";
const DATA: &[u8] = b"some data";

/// Frames per framing.
const FRAMES: u32 = 100;

/// Writes requests in every framing, reads them back, and returns how many there were.
pub(crate) fn run() -> u32 {
    let mut steps = 0;
    for framing in [Framing::Rdma, Framing::TcpSingle, Framing::TcpDual] {
        for serial in 0..FRAMES {
            round_trip(framing, serial);
            steps += 1;
        }
    }
    steps
}

fn round_trip(framing: Framing, serial: u32) {
    let session = SessionFields {
        dest_session: 7,
        flags: SessionFlags::REQUEST_READ_RECEIPT,
        serial: u64::from(serial),
        ..SessionFields::default()
    };
    let head = request_fields(serial);
    let offered = [Sge {
        addr: 0x7f00_0000_1000,
        len: 4096,
        rkey: 9,
    }];
    let mut frame = [0; 512];
    let header_at = request_head_len(framing, offered.len(), 0);
    let end = header_at + HEADER.len() + DATA.len();
    frame[header_at..end - DATA.len()].copy_from_slice(HEADER);
    frame[end - DATA.len()..end].copy_from_slice(DATA);
    let start = encode_request(
        &mut frame,
        header_at,
        framing,
        Kind::MsgReq,
        &session,
        &head,
        offered.into_iter(),
        core::iter::empty(),
        true,
    );
    assert!(start == 0);
    let parsed = Request::parse(&frame[..end], framing, &BOUNDS);
    let parsed = parsed.expect("a frame that was just written");
    assert!(parsed.session == session);
    assert!(parsed.head.ltid == serial);
    assert!(parsed.in_sges().eq(offered));
    assert!(parsed.header() == HEADER);
    assert!(parsed.data() == DATA);
    assert!(Request::parse(&frame[..end - 1], framing, &BOUNDS).is_err());
}

fn request_fields(serial: u32) -> RequestFields {
    RequestFields {
        flags: TransportFlags::LAST_IN_BATCH,
        sn: 1,
        ack_sn: 0,
        credits: 0,
        ltid: serial,
        in_op: Op::Write,
        out_op: Op::Send,
        in_sges: 1,
        out_sges: 0,
        header_len: HEADER.len() as u16,
        pad_len: 0,
        data_len: DATA.len() as u64,
    }
}
