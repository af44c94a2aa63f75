//! What role play must notice: a frame that is missing, a field that is not as recorded.

use std::collections::BTreeSet;

use crate::{baseline, played};
use xio_tests::golden::{
    Body, Event, Field, Frame, Kind, Named, Payload, Section, Side, Transcript, load, load_all,
    named,
};
use xio_tests::roleplay::{Played, Rule, compare, rule};

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// Whether a play of a changed recording differs from that of the recording itself.
fn noticed(changed: &Transcript, side: Side) -> bool {
    played(changed, side).map_or(true, |one| one.differences != baseline(&changed.name, side))
}

/// Changes one byte in each field of a section by the lowest bit, one field after the other.
fn flipped(section: &Section) -> Vec<(String, Section)> {
    let Body::Fields(fields) = &section.body else {
        return Vec::new();
    };
    let flip = |at: usize| {
        let mut section = section.clone();
        if let Body::Fields(fields) = &mut section.body {
            *fields[at].value.last_mut().expect("a field has a byte") ^= 1;
        }
        section
    };
    fields
        .iter()
        .enumerate()
        .map(|(at, field)| (field.name.clone(), flip(at)))
        .collect()
}

#[test]
fn a_missing_frame_is_noticed() {
    let mut missed = Vec::new();
    let transcripts = load_all().unwrap();
    for transcript in &transcripts {
        // One frame of three hundred like it, or a mebibyte of payload, shows nothing new.
        if ["rdma-1m", "rdma-credit-nop", "tcp-large"].contains(&&transcript.name[..]) {
            continue;
        }
        for (at, record) in transcript.records.iter().enumerate() {
            let Event::Frame(Frame { kind, .. }) = record.event else {
                continue;
            };
            for side in SIDES {
                let mut changed = transcript.clone();
                changed.records.remove(at);
                if !noticed(&changed, side) {
                    missed.push((&transcript.name[..], kind, side));
                }
            }
        }
    }
    // Nothing is done about a CANCEL_REQ, and nothing comes behind it. On sockets frames are not
    // counted: the last answer to a keepalive and the last credits are not missed.
    let known = [
        ("rdma-cancel", Kind::CancelReq, Side::Server),
        ("tcp-cancel", Kind::CancelReq, Side::Server),
        ("tcp-flowctl", Kind::AckReq, Side::Client),
        ("tcp-keepalive", Kind::KeepaliveRsp, Side::Server),
    ];
    assert_eq!(missed, known);
}

#[test]
fn the_peer_s_credits_are_needed() {
    let mut changed = load("rdma-credit-nop").unwrap();
    let nop = |event: &Event| matches!(event, Event::Frame(f) if f.kind == Kind::CreditNop);
    changed.records.retain(|record| !nop(&record.event));
    let played = played(&changed, Side::Client);
    let missing = |one: &Played| one.differences.iter().any(|d| d.difference.ours == "-");
    assert!(
        played.as_ref().is_ok_and(missing) || played.is_err(),
        "{played:?}"
    );
}

#[test]
fn each_field_of_ours_is_compared() {
    let mut checked = 0;
    for name in crate::VARIED {
        let transcript = load(name).unwrap();
        for side in SIDES {
            for (recorded, ours) in played(&transcript, side).unwrap().pairs {
                for field in named(&ours.sections) {
                    checked += 1;
                    a_change_shows(&recorded, &ours, &field);
                }
            }
        }
    }
    assert!(checked > 1000, "{checked}");
}

/// Changes a field of our frame and looks whether it is noticed where it should be.
fn a_change_shows(recorded: &Frame, ours: &Frame, field: &Named<'_>) {
    let rule = rule(recorded.kind, field);
    let zero = field.value.iter().all(|byte| *byte == 0);
    let mut changed = ours.clone();
    let mut fields = changed
        .sections
        .iter_mut()
        .flat_map(|section| match &mut section.body {
            Body::Fields(fields) => fields.iter_mut().map(|f| &mut f.value).collect::<Vec<_>>(),
            Body::Bytes(_) => Vec::new(),
        });
    if let Some(named) = field.field {
        // The field itself, and not another of the same value.
        let at = position(&ours.sections, named);
        let value = fields.nth(at).expect("it was found before");
        match rule {
            // An address that becomes another one is still an address.
            Rule::Presence => value.fill(u8::from(zero)),
            _ => *value.last_mut().expect("a field has a byte") ^= 1,
        }
    } else {
        drop(fields);
        let name = field.path.split('[').next().unwrap_or_default();
        let section = changed.sections.iter_mut().find(|s| s.name == name);
        let section = section.expect("it is named after its section");
        let mut bytes = section.bytes();
        *bytes.last_mut().expect("a section has a byte") ^= 1;
        section.body = Body::Bytes(Payload::Raw(bytes));
    }
    let before = compare(recorded, ours);
    let differs = compare(recorded, &changed) != before;
    assert_eq!(
        differs,
        rule != Rule::Free,
        "{} {}",
        recorded.kind.name(),
        field.path
    );
}

/// Which of all named fields this one is.
fn position(sections: &[Section], field: &Field) -> usize {
    let fields = sections.iter().flat_map(|section| match &section.body {
        Body::Fields(fields) => &fields[..],
        Body::Bytes(_) => &[],
    });
    fields
        .into_iter()
        .position(|other| std::ptr::eq(other, field))
        .expect("it is one of them")
}

/// Fields that a receiver makes nothing of, or nothing of their lowest bit, as dialect, kind of
/// frame, and section with field: what is undefined, what is only told, limits that one more does
/// not change. A star stands for anything.
const WITHOUT_EFFECT: &[&str] = &[
    "*.ack_sn",
    "*.credits",
    "*.credits_msgs",
    "*.credits_bytes",
    "*.pad",
    "*.pad0",
    "*.pad1",
    "*.pad2",
    "*.remain_data_len",
    "*.version",
    "*.flags",
    "*.receipt_result",
    "*.in_op",
    // Sockets keep the order by themselves, and do not reach into memory.
    "tcp * tcp_req.sn",
    "tcp * tcp_rsp.sn",
    "tcp * out_sge.addr",
    "tcp * out_sge.rkey",
    // Answers are found by the request alone.
    "* *_RSP *.dest_session_id",
    "* *_RSP *.ltid",
    "* *_RSP *.out_num_sge",
    "* *_RSP *.status",
    "* SESSION_SETUP_REQ *.dest_session_id",
    // On RDMA the lengths of a written answer may be wrong.
    "rdma MSG_RSP out_len.len",
    // Control frames have no number of their own in the session.
    "* SESSION_SETUP_* ses.serial_num",
    "* SESSION_SETUP_* ses.sn",
    "* FIN_* ses.serial_num",
    "* FIN_* ses.sn",
    // Nothing answers these.
    "* ACK_REQ ses.serial_num",
    "* ACK_REQ *.ltid",
    "* ONE_WAY_REQ *.ltid",
    // Room that is large enough either way.
    "* MSG_REQ in_sge.length",
    "* NEXUS_SETUP_* *.cid",
    "* NEXUS_SETUP_* *.buffer_sz",
    "* NEXUS_SETUP_* *.max_header_len",
    "* NEXUS_SETUP_* *.max_in_iovsz",
    "* NEXUS_SETUP_* *.max_out_iovsz",
    "* NEXUS_SETUP_* *.rq_depth",
    "* NEXUS_SETUP_* *.sq_depth",
    "* SESSION_SETUP_* *_queue_depth_bytes",
    "* SESSION_SETUP_* *_queue_depth_msgs",
];

/// Whether a pattern means this name.
fn means(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && means(tail, &rest[at..]))
        }),
    }
}

#[test]
fn each_field_of_the_peer_matters() {
    let mut needed = BTreeSet::new();
    for name in crate::VARIED {
        let transcript = load(name).unwrap();
        for (at, record) in transcript.records.iter().enumerate() {
            let Event::Frame(frame) = &record.event else {
                continue;
            };
            for (index, part) in frame.sections.iter().enumerate() {
                for (field, section) in flipped(part) {
                    let mut changed = transcript.clone();
                    if let Event::Frame(frame) = &mut changed.records[at].event {
                        frame.sections[index] = section;
                    }
                    if noticed(&changed, frame.side.peer()) {
                        continue;
                    }
                    let dialect = name.split('-').next().unwrap_or_default();
                    let what = format!("{dialect} {} {}.{field}", frame.kind.name(), part.name);
                    let row = WITHOUT_EFFECT.iter().position(|row| means(row, &what));
                    needed.insert(row.unwrap_or_else(|| {
                        panic!("{name} {}: nobody looks at {what}", record.number)
                    }));
                }
            }
        }
    }
    let idle = (0..WITHOUT_EFFECT.len()).filter(|row| !needed.contains(row));
    let idle: Vec<_> = idle.map(|row| WITHOUT_EFFECT[row]).collect();
    assert!(idle.is_empty(), "no longer needed: {idle:?}");
}
