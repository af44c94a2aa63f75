//! How many frames of which kind each side sent.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::model::{Kind, Side, Transcript};

/// Frames by kind: the client's, the server's.
#[must_use]
pub fn counts(transcript: &Transcript) -> BTreeMap<Kind, (usize, usize)> {
    let mut counts: BTreeMap<Kind, (usize, usize)> = BTreeMap::new();
    for (_, frame) in transcript.frames() {
        let count = counts.entry(frame.kind).or_default();
        match frame.side {
            Side::Client => count.0 += 1,
            Side::Server => count.1 += 1,
        }
    }
    counts
}

/// One line per transcript: frames of the client and of the server, then each kind as
/// `KIND client/server`.
#[must_use]
pub fn table(transcripts: &[Transcript]) -> String {
    let mut text = String::new();
    for transcript in transcripts {
        let counts = counts(transcript);
        let client: usize = counts.values().map(|count| count.0).sum();
        let server: usize = counts.values().map(|count| count.1).sum();
        let _ = write!(text, "{:<24}{client:>4}{server:>4} ", transcript.name);
        for (kind, (client, server)) in counts {
            let _ = write!(text, " {} {client}/{server}", kind.name());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::load_all;

    /// Frames of the client and of the server in each recording.
    const FRAMES: [(&str, usize, usize); 29] = [
        ("rdma-1m", 5, 5),
        ("rdma-align", 5, 5),
        ("rdma-basic", 7, 7),
        ("rdma-burst", 24, 24),
        ("rdma-cancel", 4, 2),
        ("rdma-credit-nop", 305, 14),
        ("rdma-direct", 5, 5),
        ("rdma-flags", 11, 9),
        ("rdma-flowctl", 16, 11),
        ("rdma-keepalive", 7, 7),
        ("rdma-large", 7, 7),
        ("rdma-nomr", 5, 5),
        ("rdma-oneway", 10, 9),
        ("rdma-redirect", 9, 9),
        ("rdma-reject", 4, 4),
        ("rdma-server-disconnect", 6, 6),
        ("tcp-align", 5, 5),
        ("tcp-basic", 7, 7),
        ("tcp-burst", 24, 24),
        ("tcp-cancel", 4, 2),
        ("tcp-flags", 11, 9),
        ("tcp-flowctl", 16, 11),
        ("tcp-keepalive", 7, 7),
        ("tcp-large", 9, 9),
        ("tcp-oneway", 12, 10),
        ("tcp-redirect", 9, 9),
        ("tcp-reject", 4, 4),
        ("tcp-server-disconnect", 6, 6),
        ("tcp-single", 8, 8),
    ];

    #[test]
    fn every_frame_is_there() {
        let transcripts = load_all().unwrap();
        println!("{}", table(&transcripts));
        let seen: Vec<(&str, usize, usize)> = transcripts
            .iter()
            .map(|transcript| {
                let counts = counts(transcript);
                let client = counts.values().map(|count| count.0).sum();
                (
                    transcript.name.as_str(),
                    client,
                    counts.values().map(|count| count.1).sum(),
                )
            })
            .collect();
        assert_eq!(seen, FRAMES);
    }
}
