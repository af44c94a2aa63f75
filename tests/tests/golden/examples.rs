//! The made examples: frames, and parts of frames that a stock frame completes.

use xio_proto::wire::{
    Cancel, ConnectMessage, Framing, NexusSetupRequest, RkeyTable, SessionSetupRequest,
    SessionSetupResponse, SetupParams, peek_kind,
};
use xio_tests::golden::{
    Body, Dialect, Example, Kind, Layouts, Payload, Place, Section, examples, layouts, named,
};

use super::codec::{Decoded, Value, cancel, decode, setup_request, setup_response};
use super::{compare, joined};

/// The field of a section.
fn get(sections: &[Section], path: &str) -> u64 {
    let all = named(sections);
    let field = all
        .iter()
        .find(|named| named.path == path)
        .and_then(|named| named.field);
    field.unwrap_or_else(|| panic!("no {path}")).number()
}

fn set(section: &mut Section, name: &str, number: u64) {
    let Body::Fields(fields) = &mut section.body else {
        panic!("no fields")
    };
    let field = fields
        .iter_mut()
        .find(|field| field.name == name)
        .expect("a field");
    let len = field.value.len();
    field.value = number.to_be_bytes()[8 - len..].to_vec();
}

fn run(name: &str, len: u64) -> Section {
    let bytes = (0..len).map(|i| i as u8).collect();
    let body = Body::Bytes(Payload::Raw(bytes));
    Section {
        place: Place::Main,
        name: name.into(),
        body,
    }
}

fn stock(all: &[Example], id: &str) -> Vec<Section> {
    all.iter()
        .find(|example| example.id == id)
        .expect("a stock frame")
        .sections
        .clone()
}

/// Replaces the section of the same name.
fn with(mut frame: Vec<Section>, part: &Section) -> Vec<Section> {
    let old = frame.iter_mut().find(|section| section.name == part.name);
    *old.expect("the stock frame has such a section") = part.clone();
    frame
}

/// A frame around a transport header and its lists: the payload it announces, and a length word
/// that counts all of it.
fn around(all: &[Example], parts: &[Section]) -> Vec<Section> {
    let head = &parts[0].name;
    let response = head.ends_with("_rsp");
    let id = if response {
        "rdma-response-frame"
    } else {
        "rdma-request-frame"
    };
    let mut frame: Vec<Section> = stock(all, id).drain(..2).collect();
    frame.extend_from_slice(parts);
    frame.push(run("ulp_hdr", get(parts, &format!("{head}.ulp_hdr_len"))));
    if get(parts, &format!("{head}.out_op")) == 2 {
        frame.push(run("data", get(parts, &format!("{head}.ulp_imm_len"))));
    }
    let len = joined(&frame).len() as u64 - 16;
    set(&mut frame[0], "len", len);
    frame
}

/// The whole frame that shows an example.
fn completed(all: &[Example], example: &Example) -> Vec<Section> {
    let parts = &example.sections;
    let mut frame = match &*parts[0].name {
        "tlv" => parts.clone(),
        "ses" if get(parts, "ses.flags") == 0 => with(stock(all, "rdma-request-frame"), &parts[0]),
        "ses" => with(stock(all, "rdma-response-frame"), &parts[0]),
        "nexus_req" => with(stock(all, "nexus-rdma-request"), &parts[0]),
        "nexus_rsp" => with(stock(all, "nexus-rdma-response"), &parts[0]),
        "rdma_setup" if get(parts, "rdma_setup.credits") == 0 => {
            with(stock(all, "nexus-rdma-request"), &parts[0])
        }
        "rdma_setup" => with(stock(all, "nexus-rdma-response"), &parts[0]),
        "tcp_setup" => with(stock(all, "nexus-tcp-request"), &parts[0]),
        "out_sge" => around(all, &with(stock(all, "rdma-read-request"), &parts[0])),
        "in_sge" => {
            let mut head = stock(all, "rdma-inline-request");
            set(&mut head[0], "in_num_sge", 1);
            head.push(parts[0].clone());
            around(all, &head)
        }
        _ => around(all, parts),
    };
    frame.retain(|section| !section.bytes().is_empty());
    frame
}

fn framing_of(example: &Example) -> Framing {
    let dual = example
        .sections
        .iter()
        .any(|section| section.place == Place::Data);
    match example.dialect {
        Some(Dialect::Tcp) if dual => Framing::TcpDual,
        Some(Dialect::Tcp) => Framing::TcpSingle,
        _ => Framing::Rdma,
    }
}

/// Compares the decoded fields and bytes of a part that has a parser of its own.
fn compare_part(id: &str, parts: &[Section], decoded: &Decoded, again: &[u8]) {
    assert_eq!(joined(parts), again, "{id}");
    let seen = decoded
        .fields
        .iter()
        .map(|(path, value)| (path.clone(), value.clone()));
    let want = named(parts).into_iter().map(|named| {
        let value = match named.field {
            Some(field) => Value::Number(field.number()),
            None => Value::Bytes(named.value),
        };
        (named.path, value)
    });
    assert_eq!(seen.collect::<Vec<_>>(), {
        let mut want: Vec<_> = want.collect();
        want.sort_by(|a, b| a.0.cmp(&b.0));
        want
    });
}

/// Shows a part by the parser made for it; false if there is none.
fn part(example: &Example) -> bool {
    let bytes = joined(&example.sections);
    let id = &example.id;
    let mut d = Decoded::default();
    let again = match &*example.sections[0].name {
        "setup_req" => setup_request(&mut d, &SessionSetupRequest::parse(&bytes).unwrap()),
        "accept" | "redirect" | "reject" => {
            setup_response(&mut d, &SessionSetupResponse::parse(&bytes).unwrap())
        }
        "cancel" => cancel(&mut d, &Cancel::parse(&bytes).unwrap()),
        "connect" => {
            let message = ConnectMessage::parse(bytes[..].try_into().unwrap()).unwrap();
            assert_eq!(
                message.sock as u64,
                get(&example.sections, "connect.sock_type"),
                "{id}"
            );
            let port = get(&example.sections, "connect.second_port");
            assert_eq!(u64::from(message.second_port), port, "{id}");
            let mut again = vec![0xEE; ConnectMessage::LEN];
            message.encode(&mut again);
            assert_eq!(again, bytes, "{id}");
            return true;
        }
        "tlv" if example.sections.len() == 1 => {
            let len = get(&example.sections, "tlv.len");
            let frame = [bytes, vec![0; len as usize]].concat();
            let (kind, seen) = peek_kind(&frame, Framing::Rdma).unwrap();
            let word = u64::from(kind.word());
            assert_eq!(
                (word, seen),
                (get(&example.sections, "tlv.type"), len),
                "{id}"
            );
            return true;
        }
        "rkey_pair" => {
            let params = SetupParams {
                buffer_size: 9216,
                ..SetupParams::default()
            };
            let rkeys = RkeyTable::new(&bytes);
            let setup = NexusSetupRequest {
                flags: 1,
                cid: 9,
                params,
                rkeys,
            };
            let mut frame = [0xEE; 64];
            assert_eq!(setup.encode(&mut frame, xio_proto::wire::Dialect::Rdma), 64);
            assert_eq!(frame[56..], bytes, "{id}");
            let decoded = decode(&frame, Framing::Rdma).unwrap();
            for (name, want) in &example.expect {
                assert_eq!(decoded.fields[name], Value::Number(*want), "{id}");
            }
            return true;
        }
        _ => return false,
    };
    compare_part(id, &example.sections, &d, &again);
    true
}

#[test]
fn examples_decode_to_their_fields_and_encode_to_their_bytes() {
    let all = examples().unwrap();
    let mut whole = 0;
    for example in &all {
        if part(example) {
            continue;
        }
        whole += 1;
        let frame = completed(&all, example);
        let bytes = joined(&frame);
        let framing = match framing_of(example) {
            // A stock frame counts its payload like a single stream and like a copied SEND.
            Framing::Rdma if frame.iter().any(|s| s.name.starts_with("tcp")) => Framing::TcpSingle,
            framing => framing,
        };
        let id = &example.id;
        let decoded =
            decode(&bytes, framing).unwrap_or_else(|violation| panic!("{id}: {violation}"));
        let dialect = if framing == Framing::Rdma {
            Dialect::Rdma
        } else {
            Dialect::Tcp
        };
        let kind = Kind::ALL
            .iter()
            .find(|row| u64::from(row.2) == get(&frame, "tlv.type"));
        let needed = compare(id, dialect, kind.expect("a kind").0, &frame, &decoded);
        assert!(
            needed.is_empty(),
            "{id} has undefined bytes that are not zero"
        );
        for (path, want) in &example.expect {
            assert_eq!(decoded.fields[path], Value::Number(*want), "{id} {path}");
        }
    }
    assert_eq!((all.len(), whole), (54, 42));
}

/// The layouts' widths are those of the codec: a section of each is as long as it says.
#[test]
fn layouts_have_the_codec_s_lengths() {
    let layouts: Layouts = layouts().unwrap();
    let len = |name: &str| -> usize {
        layouts
            .get(name)
            .expect("a layout")
            .fields
            .iter()
            .map(|field| field.width)
            .sum()
    };
    assert_eq!(len("tlv"), xio_proto::wire::TLV_LEN);
    assert_eq!(len("connect"), ConnectMessage::LEN);
    assert_eq!(len("cancel") + len("session_cancel"), Cancel::LEN);
    assert_eq!(len("tlv") + len("nop"), xio_proto::wire::CreditNop::LEN);
    assert_eq!(len("tlv") + len("read_ack"), xio_proto::wire::ReadAck::LEN);
    let head = len("tlv") + len("ses");
    for (framing, name) in [(Framing::Rdma, "rdma"), (Framing::TcpDual, "tcp")] {
        let request = xio_proto::wire::request_head_len(framing, 1, 1);
        let lists = len("in_sge") + len("out_sge");
        assert_eq!(request, head + len(&format!("{name}_req")) + lists);
        let op = xio_proto::wire::Op::Write;
        let response = xio_proto::wire::response_head_len(framing, op, 2);
        assert_eq!(
            response,
            head + len(&format!("{name}_rsp")) + 2 * len("out_len")
        );
    }
}
