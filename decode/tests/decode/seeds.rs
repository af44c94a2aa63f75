//! The seeds of the fuzz target `decode` are captures like those of the other tests, cut to what a
//! fuzzer likes. `UPDATE_GOLDEN=1 cargo test -p xio-decode seeds` writes them anew.

use std::fs;
use std::path::Path;

use xio_tests::golden::{self, hex};

use super::capture::{PLAIN, Style, pcap, pcapng};
use super::links::Link;
use super::packets::{Segment, captured, segments};
use super::{roce, see};

/// Longer inputs are not tried by the fuzzer.
const LEN_MAX: usize = 4096;

fn few(name: &str, skip: usize) -> Vec<Segment> {
    let transcript = golden::load(name).expect("there");
    let all = segments(&transcript, 1448);
    let some = all.into_iter().skip(skip);
    some.filter(|s| !s.payload.is_empty() || s.flags != super::packets::ACK)
        .take(20)
        .collect()
}

fn rdma(name: &str) -> Vec<u8> {
    let transcript = golden::load(name).expect("there");
    let packets = roce::packets(&transcript, true);
    roce::file(&packets[..packets.len().min(16)])
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let big = Style {
        big: true,
        nanos: true,
    };
    let mut swapped = few("tcp-basic", 0);
    swapped.swap(8, 9);
    swapped.insert(12, swapped[10].clone());
    let frame = golden::load("tcp-single").expect("there");
    let (_, frame) = frame.frames().nth(4).expect("a frame");
    let raw = |segments: &[Segment], v6| captured(segments, Link::Raw, v6);
    let mut seeds = vec![
        (
            "dual-pcap",
            pcap(101, &raw(&few("tcp-basic", 0), false), PLAIN),
        ),
        (
            "single-pcap-big",
            pcap(101, &raw(&few("tcp-single", 0), true), big),
        ),
        (
            "single-middle",
            pcap(101, &raw(&few("tcp-single", 17), false), PLAIN),
        ),
        ("dual-mixed", pcap(101, &raw(&swapped, false), PLAIN)),
        ("redirect-vlan", {
            let packets = captured(&few("tcp-redirect", 0), Link::Vlan, false);
            pcapng(1, &packets, false)
        }),
        ("reject-sll2", {
            let packets = captured(&few("tcp-reject", 0), Link::Sll2, true);
            pcapng(276, &packets, true)
        }),
        ("rdma-basic", rdma("rdma-basic")),
        ("rdma-large", rdma("rdma-large")),
        ("hex-text", hex(&frame.contiguous()).into_bytes()),
        ("bare-bytes", frame.contiguous()),
    ];
    for (_, bytes) in &mut seeds {
        bytes.truncate(LEN_MAX);
    }
    seeds
}

#[test]
fn seeds_of_the_fuzzer_are_these() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/decode");
    for (name, bytes) in seeds() {
        assert!(!see(&bytes).items.is_empty(), "{name} has a frame");
        let path = folder.join(format!("seed-{name}"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&folder).expect("the folder can be made");
            fs::write(&path, &bytes).expect("the file can be written");
        }
        let there = fs::read(&path).expect("the seed is there");
        assert!(there == bytes, "{} is another", path.display());
    }
}
