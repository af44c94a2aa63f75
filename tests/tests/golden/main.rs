//! The codec against the golden vectors: every frame that was recorded and every made example
//! decodes to the fields its vector names and encodes back to its bytes, except those in the
//! table of [`uninit`], of which every row must be needed.

mod codec;
mod examples;
mod sockets;
mod uninit;

use std::collections::BTreeSet;

use codec::{Decoded, Value, decode};
use uninit::{ROWS, Row};
use xio_proto::wire::{self, Framing};
use xio_tests::golden::{
    Dialect, Frame, Kind, Named, Place, Section, Stream, Transcript, load_all, named, table,
};

/// How the frames of a recording are laid on its transport.
fn framing(transcript: &Transcript) -> Framing {
    match transcript.stream {
        Stream::None => Framing::Rdma,
        Stream::Single => Framing::TcpSingle,
        Stream::Dual => Framing::TcpDual,
    }
}

/// The parts of a frame that belong to it, and not to the payload behind it.
fn assembled(frame: &Frame) -> Vec<Section> {
    let op = ["tcp_req", "tcp_rsp"]
        .iter()
        .find_map(|name| frame.number(name, "out_op"));
    let inside = |section: &&Section| section.name != "data" || op.is_none_or(|op| op == 2);
    frame.sections.iter().filter(inside).cloned().collect()
}

/// The bytes of these sections in one piece.
fn joined(sections: &[Section]) -> Vec<u8> {
    sections.iter().flat_map(Section::bytes).collect()
}

/// Compares a decoded frame with its vector; returns which rows of the table were needed.
fn compare(
    what: &str,
    dialect: Dialect,
    kind: Kind,
    sections: &[Section],
    decoded: &Decoded,
) -> BTreeSet<usize> {
    let row_at = |offset| {
        let covers = |row: &Row| {
            row.covers(offset, &decoded.padding) && (row.dialect, row.kind) == (dialect, kind)
        };
        ROWS.iter().position(covers)
    };
    let bytes = joined(sections);
    assert_eq!(bytes.len(), decoded.again.len(), "{what}: length");
    let mut needed = BTreeSet::new();
    for (offset, (&seen, &again)) in bytes.iter().zip(&decoded.again).enumerate() {
        if seen != again {
            let row = row_at(offset);
            let row =
                row.unwrap_or_else(|| panic!("{what}: {again:#x} at {offset}, not {seen:#x}"));
            assert_eq!(
                again, 0,
                "{what}: an undefined byte at {offset} is sent as zero"
            );
            needed.insert(row);
        }
    }
    let mut left = decoded.fields.clone();
    let mut at = 0;
    for Named {
        path, value, field, ..
    } in named(sections)
    {
        let rows: Vec<Option<usize>> = (at..at + value.len()).map(row_at).collect();
        at += value.len();
        let found = left.remove(&path);
        if let Some(row) = rows[0] {
            assert!(
                rows.iter().all(|other| *other == Some(row)),
                "{what}: part of {path}"
            );
            assert_eq!(ROWS[row].name, path, "{what}");
            continue;
        }
        let want = match field {
            Some(field) => Value::Number(field.number()),
            None => Value::Bytes(value),
        };
        // The codec does not show fields that are never written.
        let hidden = field
            .is_some_and(|field| field.uninit)
            .then_some(Value::Number(0));
        assert_eq!(found.or(hidden), Some(want), "{what}: {path}");
    }
    assert!(left.is_empty(), "{what}: decoded, but not there: {left:?}");
    needed
}

#[test]
fn recorded_frames_decode_to_their_fields_and_encode_to_their_bytes() {
    let transcripts = load_all().unwrap();
    println!(
        "frames of client and server, and of both by kind\n{}",
        table(&transcripts)
    );
    let mut needed = BTreeSet::new();
    for transcript in &transcripts {
        for (record, frame) in transcript.frames() {
            let what = format!(
                "{} {} {}",
                transcript.name,
                record.number,
                frame.kind.name()
            );
            let sections = assembled(frame);
            let decoded = decode(&joined(&sections), framing(transcript))
                .unwrap_or_else(|violation| panic!("{what}: {violation}"));
            needed.extend(compare(
                &what,
                transcript.dialect,
                frame.kind,
                &sections,
                &decoded,
            ));
        }
    }
    let idle: Vec<&Row> = ROWS
        .iter()
        .enumerate()
        .filter(|(i, _)| !needed.contains(i))
        .map(|pair| pair.1)
        .collect();
    assert!(idle.is_empty(), "rows that no frame needs: {idle:#?}");
}

#[test]
fn kinds_have_the_same_words_and_names() {
    let ours: BTreeSet<(u32, &str)> = Kind::ALL.map(|(_, name, word)| (word, name)).into();
    let codec = wire::Kind::ALL.map(|kind| (kind.word(), kind.name()));
    // No libxio sends these.
    let added = [(0x8002, "RESUME_REQ"), (0x8004, "RESUME_RSP")];
    assert_eq!(&ours | &added.into(), codec.into());
}

/// A recorded frame in which any one byte is changed is refused, or decodes to something else,
/// or only an undefined byte was changed.
#[test]
fn no_byte_is_ignored() {
    let mut shapes = BTreeSet::new();
    for transcript in load_all().unwrap() {
        let framing = framing(&transcript);
        for (record, frame) in transcript.frames() {
            let bytes = joined(&assembled(frame));
            if !shapes.insert((transcript.dialect, frame.kind, bytes.len())) {
                continue;
            }
            let fields = decode(&bytes, framing).unwrap().fields;
            let blind = blind_bytes(frame);
            for offset in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[offset] ^= 0x40;
                let seen = decode(&changed, framing);
                let ignored = seen.is_ok_and(|decoded| decoded.fields == fields);
                let what = format!("{} {}", transcript.name, record.number);
                assert_eq!(ignored, blind.contains(&offset), "{what}: byte {offset}");
            }
        }
    }
    assert_eq!(shapes.len(), 89, "shapes of frames");
}

/// The bytes of a frame that the codec does not look at: fields that are never written, the
/// version, which libxio does not check, the count of a list that is not there, and what control
/// frames leave undefined.
fn blind_bytes(frame: &Frame) -> BTreeSet<usize> {
    let control = !matches!(
        frame.kind,
        Kind::MsgReq | Kind::MsgRsp | Kind::OneWayReq | Kind::OneWayRsp
    );
    let ack = frame.kind == Kind::AckReq;
    let cancel = frame.kind == Kind::CancelReq;
    let inline = frame.number("rdma_rsp", "out_op") == Some(2);
    let mut blind = BTreeSet::new();
    let mut at = 0;
    for Named {
        path, value, field, ..
    } in named(&assembled(frame))
    {
        let (section, name) = path.split_once('.').unwrap_or((&path, ""));
        let ignored = match section {
            "ses" if ack => matches!(name, "flags" | "serial_num"),
            "ses" if control => cancel || name != "dest_session_id",
            "rdma_req" | "tcp_req" => name == "version" || cancel && name == "in_op",
            "rdma_rsp" => matches!(name, "version" | "flags") || inline && name == "out_num_sge",
            "tcp_rsp" => matches!(name, "version" | "flags"),
            _ => false,
        };
        let shown = section.ends_with("_setup");
        let ignored = ignored || path == "ulp_pad";
        if ignored || field.is_some_and(|field| field.uninit) && !shown {
            blind.extend(at..at + value.len());
        }
        at += value.len();
    }
    blind
}

/// On RDMA the length word counts what the sender copied, not what its NIC gathered.
#[test]
fn length_words_leave_out_what_was_gathered() {
    let mut gathering = 0;
    for transcript in load_all()
        .unwrap()
        .iter()
        .filter(|t| t.dialect == Dialect::Rdma)
    {
        for (record, frame) in transcript.frames() {
            let sent = frame.bytes(Place::Main).len() as u64 - 16;
            let gathered = u64::from(frame.gathered());
            let what = format!("{} {}", transcript.name, record.number);
            assert_eq!(frame.number("tlv", "len"), Some(sent - gathered), "{what}");
            assert!(
                gathered == 0 || gathered == frame.data().len() as u64,
                "{what}"
            );
            gathering += usize::from(gathered != 0);
        }
    }
    assert_eq!(gathering, 382);
}
