//! What the codec makes of a frame: its fields by the names of the vectors, and the frame
//! encoded again from what was decoded.

use std::collections::BTreeMap;

use xio_proto::wire::{
    Bounds, Cancel, CreditNop, Framing, Kind, NexusSetupRequest, NexusSetupResponse, Op, ReadAck,
    Request, Response, ResponseList, SessionFields, SessionSetupRequest, SessionSetupResponse,
    SetupParams, Sge, Violation, encode_request, encode_response, peek_kind, request_head_len,
    response_head_len,
};

/// The limits of the recorded peers.
pub(crate) const BOUNDS: Bounds = Bounds {
    frame_max: 9216,
    max_in_sges: 4,
    max_out_sges: 4,
    header_max: 256,
};

/// A decoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A field.
    Number(u64),
    /// A run of bytes.
    Bytes(Vec<u8>),
}

/// A decoded frame.
#[derive(Default)]
pub(crate) struct Decoded {
    /// What the codec found, by full name.
    pub(crate) fields: BTreeMap<String, Value>,
    /// The frame, encoded from what was decoded.
    pub(crate) again: Vec<u8>,
    /// Where the padding is.
    pub(crate) padding: std::ops::Range<usize>,
}

impl Decoded {
    fn number(&mut self, path: &str, value: impl Into<u64>) {
        let seen = self
            .fields
            .insert(path.to_owned(), Value::Number(value.into()));
        assert!(seen.is_none(), "{path} twice");
    }

    fn numbers(&mut self, section: &str, values: &[(&str, u64)]) {
        for (name, value) in values {
            self.number(&format!("{section}.{name}"), *value);
        }
    }

    fn bytes(&mut self, path: &str, value: &[u8]) {
        if !value.is_empty() {
            self.fields
                .insert(path.to_owned(), Value::Bytes(value.to_vec()));
        }
    }
}

/// Decodes a whole frame and encodes it again.
pub(crate) fn decode(frame: &[u8], framing: Framing) -> Result<Decoded, Violation> {
    let (kind, tlv_len) = peek_kind(frame, framing)?;
    let mut decoded = Decoded::default();
    let tlv = [
        ("magic", 0x5849_4f50),
        ("type", u64::from(kind.word())),
        ("len", tlv_len),
    ];
    decoded.numbers("tlv", &tlv);
    match kind {
        Kind::NexusSetupReq => nexus_request(&mut decoded, frame, framing)?,
        Kind::NexusSetupRsp => nexus_response(&mut decoded, frame, framing)?,
        Kind::CreditNop => credit_nop(&mut decoded, frame)?,
        Kind::ReadAck => read_ack(&mut decoded, frame)?,
        _ if kind.is_request() => request(&mut decoded, frame, framing, tlv_len)?,
        _ => response(&mut decoded, frame, framing, tlv_len)?,
    }
    Ok(decoded)
}

fn prefix(framing: Framing) -> &'static str {
    if framing == Framing::Rdma {
        "rdma"
    } else {
        "tcp"
    }
}

fn setup(decoded: &mut Decoded, framing: Framing, p: &SetupParams, rkeys: usize) {
    let section = format!("{}_setup", prefix(framing));
    if framing == Framing::Rdma {
        let rdma = [
            ("credits", p.credits.into()),
            ("sq_depth", p.sq_depth.into()),
            ("rq_depth", p.rq_depth.into()),
            ("rkey_tbl_size", rkeys as u64),
        ];
        decoded.numbers(&section, &rdma);
    }
    let both = [
        ("buffer_sz", p.buffer_size),
        ("max_in_iovsz", p.max_in_sges.into()),
        ("max_out_iovsz", p.max_out_sges.into()),
        ("max_header_len", p.max_header.into()),
        ("pad", p.pad.into()),
    ];
    decoded.numbers(&section, &both);
}

fn nexus_request(d: &mut Decoded, frame: &[u8], framing: Framing) -> Result<(), Violation> {
    let setup_request = NexusSetupRequest::parse(frame, framing.dialect())?;
    let NexusSetupRequest {
        flags,
        cid,
        params,
        rkeys,
    } = setup_request;
    d.numbers(
        "nexus_req",
        &[
            ("version", 0x100),
            ("flags", flags.into()),
            ("cid", cid.into()),
        ],
    );
    setup(d, framing, &params, rkeys.len());
    for (i, (old, new)) in rkeys.iter().enumerate() {
        d.numbers(
            &format!("rkey_pair[{i}]"),
            &[("old", old.into()), ("new", new.into())],
        );
    }
    d.again = vec![0xEE; frame.len()];
    let len = setup_request.encode(&mut d.again, framing.dialect());
    assert_eq!(len, frame.len());
    Ok(())
}

fn nexus_response(d: &mut Decoded, frame: &[u8], framing: Framing) -> Result<(), Violation> {
    let setup_response = NexusSetupResponse::parse(frame, framing.dialect())?;
    let NexusSetupResponse {
        cid,
        status,
        flags,
        params,
        rkeys,
    } = setup_response;
    let body = [
        ("cid", cid.into()),
        ("status", status.into()),
        ("version", 0x100),
        ("flags", flags.into()),
    ];
    d.numbers("nexus_rsp", &body);
    setup(d, framing, &params, rkeys.len());
    d.again = vec![0xEE; frame.len()];
    let len = setup_response.encode(&mut d.again, framing.dialect());
    assert_eq!(len, frame.len());
    Ok(())
}

fn credit_nop(d: &mut Decoded, frame: &[u8]) -> Result<(), Violation> {
    let nop = CreditNop::parse(frame)?;
    let fields = [
        ("hdr_len", 12),
        ("sn", nop.sn.into()),
        ("ack_sn", nop.ack_sn.into()),
        ("credits", nop.credits.into()),
        ("opcode", 0),
        ("flags", 0),
    ];
    d.numbers("nop", &fields);
    d.again = vec![0xEE; CreditNop::LEN];
    assert_eq!(nop.encode(&mut d.again), CreditNop::LEN);
    Ok(())
}

fn read_ack(d: &mut Decoded, frame: &[u8]) -> Result<(), Violation> {
    let ack = ReadAck::parse(frame)?;
    d.numbers("read_ack", &[("hdr_len", 6), ("rtid", ack.rtid.into())]);
    d.again = vec![0xEE; ReadAck::LEN];
    assert_eq!(ack.encode(&mut d.again), ReadAck::LEN);
    Ok(())
}

fn session(d: &mut Decoded, s: &SessionFields) {
    let fields = [
        ("dest_session_id", s.dest_session.into()),
        ("flags", s.flags.bits().into()),
        ("serial_num", s.serial),
        ("sn", s.sn.into()),
        ("ack_sn", s.ack_sn.into()),
        ("credits_msgs", s.credits_msgs.into()),
        ("receipt_result", s.receipt_result.into()),
        ("credits_bytes", s.credits_bytes),
    ];
    d.numbers("ses", &fields);
}

fn sges(d: &mut Decoded, name: &str, list: impl Iterator<Item = Sge>) {
    for (i, Sge { addr, len, rkey }) in list.enumerate() {
        let fields = [
            ("addr", addr),
            ("length", len.into()),
            ("rkey", rkey.into()),
        ];
        d.numbers(&format!("{name}[{i}]"), &fields);
    }
}

/// Puts what follows the headers behind them; the padding comes out as zeros.
fn finish(d: &mut Decoded, head_len: usize, header: &[u8], pad_len: u16, data: &[u8]) -> usize {
    let pad = vec![0; usize::from(pad_len)];
    d.again = [&vec![0xEE; head_len][..], header, &pad, data].concat();
    let pad_at = head_len + header.len();
    d.padding = pad_at..pad_at + pad.len();
    head_len
}

/// Whether the length word counts the inline data; where there is none both are the same.
fn counts_data(frame: &[u8], framing: Framing, tlv_len: u64) -> bool {
    framing == Framing::Rdma && tlv_len == frame.len() as u64 - 16
}

fn request(d: &mut Decoded, frame: &[u8], framing: Framing, tlv_len: u64) -> Result<(), Violation> {
    let r = Request::parse(frame, framing, &BOUNDS)?;
    session(d, &r.session);
    let section = format!("{}_req", prefix(framing));
    let fields = [
        ("version", 1),
        ("flags", r.head.flags.bits().into()),
        ("req_hdr_len", 40),
        ("sn", r.head.sn.into()),
        ("ltid", r.head.ltid.into()),
        ("in_op", r.head.in_op as u64),
        ("out_op", r.head.out_op as u64),
        ("in_num_sge", r.head.in_sges.into()),
        ("out_num_sge", r.head.out_sges.into()),
        ("ulp_hdr_len", r.head.header_len.into()),
        ("ulp_pad_len", r.head.pad_len.into()),
        ("ulp_imm_len", r.head.data_len),
    ];
    d.numbers(&section, &fields);
    if framing == Framing::Rdma {
        let rdma = [
            ("ack_sn", r.head.ack_sn.into()),
            ("credits", r.head.credits.into()),
        ];
        d.numbers(&section, &rdma);
    }
    sges(d, "in_sge", r.in_sges());
    sges(d, "out_sge", r.out_sges());
    d.bytes("data", r.data());
    let payload = match r.kind {
        Kind::SessionSetupReq => setup_request(d, &r.session_setup()?),
        Kind::CancelReq => cancel(d, &r.cancel()?),
        _ => {
            d.bytes("ulp_hdr", r.header());
            r.header().to_vec()
        }
    };
    let head_len = request_head_len(framing, r.in_sges().len(), r.out_sges().len());
    let end = finish(d, head_len, &payload, r.head.pad_len, r.data());
    let counts = counts_data(frame, framing, tlv_len);
    let (ins, outs) = (r.in_sges(), r.out_sges());
    let again = &mut d.again;
    let at = encode_request(
        again, end, framing, r.kind, &r.session, &r.head, ins, outs, counts,
    );
    assert_eq!(at, 0);
    Ok(())
}

fn response(
    d: &mut Decoded,
    frame: &[u8],
    framing: Framing,
    tlv_len: u64,
) -> Result<(), Violation> {
    let r = Response::parse(frame, framing, &BOUNDS)?;
    session(d, &r.session);
    let section = format!("{}_rsp", prefix(framing));
    let fields = [
        ("version", 1),
        ("flags", 0),
        (
            "rsp_hdr_len",
            if framing == Framing::Rdma { 44 } else { 40 },
        ),
        ("sn", r.head.sn.into()),
        ("rtid", r.head.rtid.into()),
        ("ltid", r.head.ltid.into()),
        ("out_op", r.head.op as u64),
        ("out_num_sge", r.head.sges.into()),
        ("status", r.head.status.into()),
        ("ulp_hdr_len", r.head.header_len.into()),
        ("ulp_pad_len", r.head.pad_len.into()),
        ("ulp_imm_len", r.head.data_len),
    ];
    d.numbers(&section, &fields);
    if framing == Framing::Rdma {
        let rdma = [
            ("ack_sn", r.head.ack_sn.into()),
            ("credits", r.head.credits.into()),
        ];
        d.numbers(&section, &rdma);
    }
    sges(d, "out_sge", r.sges());
    for (i, len) in r.write_lens().enumerate() {
        d.number(&format!("out_len[{i}].len"), len);
    }
    d.bytes("data", r.data());
    let payload = match r.kind {
        Kind::SessionSetupRsp => setup_response(d, &r.session_setup()?),
        Kind::CancelRsp => cancel(d, &r.cancel()?),
        _ => {
            d.bytes("ulp_hdr", r.header());
            r.header().to_vec()
        }
    };
    let head_len = response_head_len(framing, r.head.op, r.head.sges.into());
    let end = finish(d, head_len, &payload, r.head.pad_len, r.data());
    let list = match r.head.op {
        Op::Send => ResponseList::None,
        Op::Write => ResponseList::Lengths(r.write_lens()),
        Op::Read => ResponseList::Sges(r.sges()),
    };
    let counts = counts_data(frame, framing, tlv_len);
    let again = &mut d.again;
    let at = encode_response(
        again, end, framing, r.kind, &r.session, &r.head, list, counts,
    );
    assert_eq!(at, 0);
    Ok(())
}

/// The fields of a session setup request, and its payload encoded again.
pub(crate) fn setup_request(d: &mut Decoded, s: &SessionSetupRequest<'_>) -> Vec<u8> {
    let fields = [
        ("session_id", s.session_id.into()),
        ("snd_queue_depth_bytes", s.snd_bytes),
        ("rcv_queue_depth_bytes", s.rcv_bytes),
        ("snd_queue_depth_msgs", s.snd_msgs.into()),
        ("rcv_queue_depth_msgs", s.rcv_msgs.into()),
        ("uri_len", s.uri.len() as u64),
        ("private_data_len", s.private.len() as u64),
    ];
    d.numbers("setup_req", &fields);
    d.bytes("uri", s.uri);
    d.bytes("private_data", s.private);
    let mut again = vec![0xEE; 4096];
    let len = s
        .encode(&mut again)
        .expect("a payload that was received fits");
    again.truncate(len);
    again
}

/// The fields of an answer to it, and its payload encoded again.
pub(crate) fn setup_response(d: &mut Decoded, s: &SessionSetupResponse<'_>) -> Vec<u8> {
    let (section, mut fields, portals, private) = match *s {
        SessionSetupResponse::Accept {
            snd_bytes,
            rcv_bytes,
            snd_msgs,
            rcv_msgs,
            portals,
            private,
            ..
        } => {
            let depths = vec![
                ("action", 1),
                ("snd_queue_depth_bytes", snd_bytes),
                ("rcv_queue_depth_bytes", rcv_bytes),
                ("snd_queue_depth_msgs", snd_msgs.into()),
                ("rcv_queue_depth_msgs", rcv_msgs.into()),
                ("portals_array_len", portals.len() as u64),
            ];
            ("accept", depths, portals, private)
        }
        SessionSetupResponse::Redirect {
            portals, private, ..
        } => {
            let count = portals.len() as u64;
            (
                "redirect",
                vec![("action", 2), ("portals_array_len", count)],
                portals,
                private,
            )
        }
        SessionSetupResponse::Reject {
            reason, private, ..
        } => {
            let reason = vec![("action", 3), ("reject_reason", reason.into())];
            ("reject", reason, Default::default(), private)
        }
    };
    fields.push(("session_id", s.session_id().into()));
    fields.push(("private_data_len", private.len() as u64));
    d.numbers(section, &fields);
    for (i, portal) in portals.iter().enumerate() {
        d.number(&format!("portal[{i}].len"), portal.len() as u64);
        d.bytes(&format!("portal_uri[{i}]"), portal);
    }
    d.bytes("private_data", private);
    let mut again = vec![0xEE; 4096];
    let len = s
        .encode(&mut again)
        .expect("a payload that was received fits");
    again.truncate(len);
    again
}

/// The fields of a cancel payload, and the payload encoded again.
pub(crate) fn cancel(d: &mut Decoded, c: &Cancel) -> Vec<u8> {
    let outer = [
        ("hdr_len", 8),
        ("sn", c.sn.into()),
        ("result", c.result.into()),
        ("ulp_msg_sz", 16),
    ];
    d.numbers("cancel", &outer);
    let inner = [
        ("requester_session_id", c.requester.into()),
        ("responder_session_id", c.responder.into()),
        ("sn", c.serial),
    ];
    d.numbers("session_cancel", &inner);
    let mut again = vec![0xEE; Cancel::LEN];
    assert_eq!(c.encode(&mut again), Cancel::LEN);
    again
}
