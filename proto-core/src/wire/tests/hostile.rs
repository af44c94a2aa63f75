//! Damaged and random bytes: no panic, and nothing accepted that is out of bounds.

use super::std::vec::Vec;

use super::*;

#[test]
fn every_truncation_is_refused() {
    for vector in vectors::frames() {
        assert!(examine(&vector.bytes, vector.framing), "{}", vector.name);
        for len in 0..vector.bytes.len() {
            let cut = &vector.bytes[..len];
            assert!(
                !examine(cut, vector.framing),
                "{} of {len} bytes",
                vector.name
            );
        }
    }
}

#[test]
fn every_extension_is_refused() {
    for vector in vectors::frames() {
        let mut bytes = vector.bytes.clone();
        for _ in 0..20 {
            bytes.push(0);
            assert!(!examine(&bytes, vector.framing), "{}", vector.name);
        }
    }
}

#[test]
fn every_changed_byte_is_survived() {
    let mut accepted = 0_u32;
    for vector in vectors::frames() {
        let mut bytes = vector.bytes.clone();
        // No parser looks at the last bytes, the application's; a few values will do there.
        let opaque = match peek_kind(&bytes, vector.framing) {
            Ok((kind, _)) if kind.is_application() => 5,
            _ => 0,
        };
        for at in 0..bytes.len() {
            let original = bytes[at];
            let step = if at < bytes.len() - opaque { 1 } else { 51 };
            for value in (0..=u8::MAX).step_by(step) {
                bytes[at] = value;
                accepted += u32::from(examine(&bytes, vector.framing));
            }
            bytes[at] = original;
        }
    }
    // Most fields are values that any peer may choose.
    assert!(accepted > 100_000, "{accepted}");
}

#[test]
fn every_changed_byte_of_a_control_part_is_survived() {
    for vector in vectors::frames() {
        if vector.framing == Framing::Rdma {
            continue;
        }
        let (_, len) = peek_kind(&vector.bytes, vector.framing).expect("a good frame");
        let mut part: Vec<u8> = vector.bytes[..TLV_LEN + len as usize].into();
        for at in 0..part.len() {
            let original = part[at];
            for value in 0..=u8::MAX {
                part[at] = value;
                streams::plan_and_complete(&part, vector.framing);
            }
            part[at] = original;
        }
    }
}

#[test]
fn the_dialects_do_not_take_each_others_frames_for_more_than_they_are() {
    for vector in vectors::frames() {
        for framing in [Framing::Rdma, Framing::TcpSingle, Framing::TcpDual] {
            examine(&vector.bytes, framing);
        }
    }
}

/// Frames made by our encoders of random fields, whole and then damaged in a few places.
#[test]
fn random_frames_are_survived() {
    let mut rng = Lcg::new(1);
    let mut accepted = 0_u32;
    for _ in 0..20_000 {
        let framing = rng.pick(&[Framing::Rdma, Framing::TcpSingle, Framing::TcpDual]);
        let mut bytes = if rng.below(2) == 0 {
            random_request(&mut rng, framing)
        } else {
            random_response(&mut rng, framing)
        };
        assert!(examine(&bytes, framing), "{bytes:x?}");
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len().min(120) as u32) as usize;
            bytes[at] = rng.pick(&[0, 1, 2, 3, 4, 5, 0xff, rng.0 as u8]);
        }
        if rng.below(4) == 0 {
            bytes.truncate(rng.below(bytes.len() as u32) as usize);
        }
        accepted += u32::from(examine(&bytes, framing));
        if framing != Framing::Rdma {
            streams::plan_and_complete(&bytes, framing);
        }
    }
    assert!(accepted > 1000, "{accepted}");
}

fn random_session(rng: &mut Lcg) -> SessionFields {
    SessionFields {
        dest_session: rng.next(),
        flags: SessionFlags::from_bits_retain(rng.next()) | SessionFlags::RECEIPT_LAST,
        serial: u64::from(rng.next()) << 20,
        sn: rng.next() as u16,
        ack_sn: rng.next() as u16,
        credits_msgs: rng.next() as u16,
        receipt_result: rng.below(2),
        credits_bytes: u64::from(rng.next()) << 30,
    }
}

fn random_sges(rng: &mut Lcg, count: u32) -> Vec<Sge> {
    let sge = |_| Sge {
        addr: u64::from(rng.next()) << 13,
        len: rng.next(),
        rkey: rng.next(),
    };
    (0..count).map(sge).collect()
}

/// Appends everything behind the headers, which end at the end of `bytes`.
fn fill(bytes: &mut Vec<u8>, rng: &mut Lcg, len: usize) {
    bytes.extend((0..len).map(|_| rng.next() as u8));
}

fn random_request(rng: &mut Lcg, framing: Framing) -> Vec<u8> {
    let kind = rng.pick(&[Kind::MsgReq, Kind::OneWayReq]);
    let read = rng.below(3) == 0;
    let count = rng.below(5);
    let ins = random_sges(rng, count);
    let count = if read { 1 + rng.below(4) } else { 0 };
    let outs = random_sges(rng, count);
    let tcp = framing != Framing::Rdma;
    let mut only_rdma = || if tcp { 0 } else { rng.next() as u16 };
    let (ack_sn, credits) = (only_rdma(), only_rdma());
    let head = RequestFields {
        flags: TransportFlags::from_bits_retain(rng.next() as u8),
        sn: rng.next() as u16,
        ack_sn,
        credits,
        ltid: rng.next(),
        in_op: rng.pick(&[Op::Send, Op::Write]),
        out_op: if read { Op::Read } else { Op::Send },
        in_sges: 0,
        out_sges: 0,
        header_len: rng.below(257) as u16,
        pad_len: rng.below(3) as u16,
        data_len: if read { 0 } else { rng.below(300).into() },
    };
    let session = random_session(rng);
    let end = request_head_len(framing, ins.len(), outs.len());
    let mut bytes = super::std::vec![0; end];
    let (ins, outs) = (ins.into_iter(), outs.into_iter());
    let counted = rng.below(2) == 0;
    encode_request(
        &mut bytes, end, framing, kind, &session, &head, ins, outs, counted,
    );
    let rest = usize::from(head.header_len) + usize::from(head.pad_len) + head.data_len as usize;
    fill(&mut bytes, rng, rest);
    bytes
}

fn random_response(rng: &mut Lcg, framing: Framing) -> Vec<u8> {
    let tcp = framing != Framing::Rdma;
    let op = rng.pick(&[Op::Send, Op::Write, if tcp { Op::Send } else { Op::Read }]);
    let count = 1 + rng.below(4);
    let sges = random_sges(rng, count);
    let lens = sges.iter().map(|sge| sge.len);
    let sum: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
    let mut only_rdma = || if tcp { 0 } else { rng.next() as u16 };
    let (ack_sn, credits) = (only_rdma(), only_rdma());
    let head = ResponseFields {
        sn: rng.next() as u16,
        ack_sn,
        credits,
        rtid: rng.next(),
        ltid: rng.next(),
        op,
        sges: 0,
        status: rng.next(),
        header_len: rng.below(257) as u16,
        pad_len: rng.below(3) as u16,
        data_len: match op {
            Op::Send => rng.below(300).into(),
            Op::Write => sum,
            Op::Read => 0,
        },
    };
    let session = random_session(rng);
    let n = if op == Op::Send { 0 } else { sges.len() };
    let end = response_head_len(framing, op, n);
    let mut bytes = super::std::vec![0; end];
    let list = match op {
        Op::Send => ResponseList::None,
        Op::Write => ResponseList::Lengths(lens),
        Op::Read => ResponseList::Sges(sges.iter().copied()),
    };
    let counted = rng.below(2) == 0;
    encode_response(
        &mut bytes,
        end,
        framing,
        Kind::MsgRsp,
        &session,
        &head,
        list,
        counted,
    );
    let inline = if op == Op::Send {
        head.data_len as usize
    } else {
        0
    };
    fill(
        &mut bytes,
        rng,
        usize::from(head.header_len) + usize::from(head.pad_len) + inline,
    );
    bytes
}

#[test]
fn random_payloads_are_survived() {
    let mut rng = Lcg::new(2);
    let mut accepted = 0_u32;
    for _ in 0..100_000 {
        let len = rng.below(64) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.below(4) as u8).collect();
        if rng.below(2) == 0 && len >= 6 {
            bytes[4] = 0;
        }
        let _ = Cancel::parse(&bytes);
        accepted += u32::from(payloads::examine(&bytes));
    }
    assert!(accepted > 100, "{accepted}");
}
