//! Whether the recording as a whole adds up.

use std::collections::BTreeMap;

use crate::golden::model::{Carrier, Dialect, Event, Place, Side, Transcript};

/// Checks record numbers, stream offsets and the totals in the comments.
pub(super) fn check(transcript: &Transcript, comments: &[&str]) -> Result<(), String> {
    let mut last = 0;
    for (i, record) in transcript.records.iter().enumerate() {
        if record.number as usize != i || record.at < last {
            return Err(format!("record {} is out of order", record.number));
        }
        last = record.at;
    }
    match transcript.dialect {
        Dialect::Rdma => sends(transcript, comments),
        Dialect::Tcp => sockets(transcript, comments),
    }
}

fn sends(transcript: &Transcript, comments: &[&str]) -> Result<(), String> {
    for (side, way) in [(Side::Client, "C->S"), (Side::Server, "S->C")] {
        let count = transcript
            .frames()
            .filter(|(_, frame)| frame.side == side)
            .count();
        let want = format!(
            "cross-check {way}: posted SENDs {count}, received {count}, byte-identical \
             (in order) {count}"
        );
        if !comments.contains(&want.as_str()) {
            return Err(format!("not found: {want}"));
        }
    }
    Ok(())
}

/// Bytes seen so far, by socket and sender.
type Sums = BTreeMap<(u32, Side), u64>;

fn sockets(transcript: &Transcript, comments: &[&str]) -> Result<(), String> {
    let mut sums = Sums::new();
    for record in &transcript.records {
        match &record.event {
            Event::Syn { conn, .. } => {
                sums.insert((*conn, Side::Client), 0);
                sums.insert((*conn, Side::Server), 0);
            }
            Event::Hello { conn, message } => {
                *sums.entry((*conn, Side::Client)).or_default() += message.bytes().len() as u64;
            }
            Event::Frame(frame) => {
                let Carrier::Socket { conn, offset, data } = frame.carrier else {
                    return Err("a SEND among sockets".to_owned());
                };
                let size = |place| frame.bytes(place).len() as u64;
                let sum = sums.entry((conn, frame.side)).or_default();
                if *sum != offset {
                    let number = record.number;
                    return Err(format!("record {number}: offset {offset} instead of {sum}"));
                }
                *sum += size(Place::Main) + size(Place::Bulk);
                if let Some(data) = data {
                    *sums.entry((data, frame.side)).or_default() += size(Place::Data);
                }
            }
            _ => {}
        }
    }
    let conns = comments
        .iter()
        .filter_map(|line| line.strip_prefix("conn#"));
    let mut listed = 0;
    for line in conns {
        let (conn, rest) = line.split_once(' ').ok_or("conn#")?;
        let conn = conn.parse().map_err(|_| "conn#")?;
        for (side, way) in [(Side::Client, "C->S "), (Side::Server, "S->C ")] {
            let sum = sums.get(&(conn, side)).ok_or("socket without SYN")?;
            if !rest.contains(&format!("{way}{sum} bytes")) {
                return Err(format!("socket {conn}: {way}{sum} bytes are not in {rest}"));
            }
            listed += 1;
        }
    }
    if listed == sums.len() {
        Ok(())
    } else {
        Err("a socket is not listed".to_owned())
    }
}
