//! Fuzz targets as plain functions: libFuzzer calls them from `fuzz_targets/`, the program
//! `replay` feeds them the committed corpora, and any test may call them too.
//!
//! A target panics when a rule is broken and otherwise returns; any bytes are a fair input.
//!
//! In `corpus/`, files called `seed-*` are what libxio sent to libxio, or frames made by hand where
//! no recording has that kind; those called `drawn-*` are bytes drawn at random for `sim_schedule`,
//! some for each level of faults and each dialect; all others were found by `cargo xtask fuzz`.
#![forbid(unsafe_code)]

mod bytes;
mod frame;
mod ops;
mod schedule;
mod stream;

use xio_proto::wire::{Bounds, Framing};

/// A fuzz target: its name, which is also its corpus' folder, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("decode", decode),
    ("wire_rdma", wire_rdma),
    ("wire_tcp", wire_tcp),
    ("ops", ops),
    ("hostile_peer", hostile_peer),
    ("tcp_stream", tcp_stream),
    ("sim_schedule", sim_schedule),
];

/// A frame is judged under each of these: so narrow that short inputs reach every limit, what
/// libxio announces if it is not configured, and the widest that can be announced.
const BOUNDS: [Bounds; 3] = [
    Bounds {
        frame_max: 200,
        max_in_sges: 1,
        max_out_sges: 1,
        header_max: 16,
    },
    Bounds {
        frame_max: 9216,
        max_in_sges: 4,
        max_out_sges: 4,
        header_max: 256,
    },
    Bounds {
        frame_max: u32::MAX,
        max_in_sges: u16::MAX,
        max_out_sges: u16::MAX,
        header_max: u16::MAX,
    },
];

/// The input is what one RDMA receive brings.
///
/// It is refused, or it is a frame of which every part lies within the bytes received and which,
/// written again from what was read, reads the same.
pub fn wire_rdma(data: &[u8]) {
    for bounds in &BOUNDS {
        // Which of the two it is depends on the bytes alone.
        let _ = frame::check(data, Framing::Rdma, bounds);
    }
}

/// The input is what the sockets of a stream bring.
///
/// Byte 0 has options. Bit 0 clear: one socket, which brings the rest. Bit 0 set: a pair; two
/// bytes (big-endian) say how many bytes the control socket brings, the data socket brings the
/// rest. Bit 1: the first 8 bytes of the control or single socket are a connect message.
///
/// The streams are cut into frames until one is refused or the bytes end. No frame may be planned
/// longer than allowed, a frame that was planned must parse, and [`wire_rdma`]'s rules hold.
pub fn wire_tcp(data: &[u8]) {
    if let Some(streams) = stream::Streams::new(data) {
        for bounds in &BOUNDS {
            streams.clone().run(bounds);
        }
    }
}

/// The input is a list of operations: what users, wire and devices of two endpoints do next
/// ([`xio_tests::alphabet`]).
///
/// After each step the invariants of the endpoints hold, and users have heard what the model allows; in
/// the end each message has had one outcome, and everything is back.
pub fn ops(data: &[u8]) {
    let _ = ops::run(data);
}

/// The input is a list of decisions of peers that send well-formed frames in illegal orders, with
/// forged ids, lengths, credits and keys, and of a user who calls whatever comes to mind.
///
/// No invariant breaks, and everything is back in the end.
pub fn hostile_peer(data: &[u8]) {
    let _ = xio_tests::hostile::run(data);
}

/// The input is what the sockets of a peer bring to an endpoint, as in [`wire_tcp`]; the upper bits
/// of byte 0 say how the bytes are cut, what the user does, and that the endpoint is the one that
/// connects.
///
/// No invariant breaks, and everything is back in the end.
pub fn tcp_stream(data: &[u8]) {
    let _ = bytes::run(data);
}

/// The input decides what chance would decide in a simulated world: which faults there are and when,
/// who does what, what comes first. What it leaves open follows from a seed in byte 0, whose lower
/// bits say which faults and dialects there may be.
///
/// No checker of the simulator finds anything.
pub fn sim_schedule(data: &[u8]) {
    let _ = schedule::run(data);
}

/// The input is a file that somebody wants decoded: a capture, hex text, bytes.
///
/// It is refused, or something is told of it: never more often than it has bytes, and nothing that
/// cannot be shown.
pub fn decode(data: &[u8]) {
    let mut told = 0;
    let result = xio_decode::decode(data, xio_decode::Options::default(), |item| {
        told += 1;
        assert_eq!(item.n, told);
        assert!(xio_decode::text(item).ends_with('\n'));
        let json = xio_decode::json(item);
        assert!(json.starts_with('{') && json.ends_with('}'));
        Ok(())
    });
    assert!(told <= data.len() as u64);
    if let Ok(summary) = result {
        assert!(summary.frames <= told && summary.malformed <= summary.frames);
        assert!(!summary.to_string().is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn some_bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn any_bytes_are_fair_and_lives_have_something_in_them() {
        let (mut taken, mut delivered) = (0, 0);
        for seed in 1..=400 {
            let bytes = some_bytes(seed, 1200);
            taken += ops::run(&bytes);
            delivered += schedule::run(&bytes);
            for (_, target) in TARGETS {
                target(&bytes);
            }
        }
        assert!(taken > 200, "only {taken} messages came through");
        assert!(delivered > 400, "only {delivered} came in simulated worlds");
    }

    #[test]
    fn recorded_streams_bring_their_messages_however_they_are_cut() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/wire_tcp");
        for name in ["basic", "burst", "single", "oneway", "flags"] {
            let file = corpus.join(format!("seed-stream-{name}-client-1"));
            let mut bytes = fs::read(&file).expect("a seed");
            let whole = bytes::run(&bytes);
            assert!(whole > 0, "{name} brings no message");
            for cut in 1..3 {
                bytes[0] = (bytes[0] & !0x0c) | cut << 2;
                assert_eq!(bytes::run(&bytes), whole, "{name}, cut {cut}");
            }
        }
    }
}
