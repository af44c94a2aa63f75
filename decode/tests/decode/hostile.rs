//! Captures that end anywhere, or hold anything.

use xio_tests::golden;

use super::capture::{Captured, PLAIN, pcap, pcapng};
use super::links::{self, Link};
use super::packets::{captured, segments};
use super::{Seen, see, try_see};
use xio_decode::Options;

fn basic() -> Vec<Captured> {
    let transcript = golden::load("tcp-basic").expect("there");
    captured(&segments(&transcript, 1448), Link::Ethernet, false)
}

#[test]
fn a_capture_may_end_at_any_byte() {
    let packets = basic();
    for (name, file) in [
        ("pcap", pcap(1, &packets, PLAIN)),
        ("pcapng", pcapng(1, &packets, false)),
    ] {
        let mut whole_files = 0;
        let mut before = 0;
        for len in 1..=file.len() {
            let seen: Seen = match try_see(&file[..len], Options::default()) {
                Ok(seen) => seen,
                Err(_) => {
                    assert!(len < 4, "{name} of {len} bytes");
                    continue;
                }
            };
            whole_files += usize::from(seen.summary.stopped.is_none());
            let whole = seen
                .items
                .iter()
                .filter(|item| item.stamp.packet > 0)
                .count();
            assert!(seen.summary.packets <= packets.len() as u64);
            assert!(seen.summary.packets >= before, "{name} of {len} bytes");
            before = seen.summary.packets;
            assert!(whole <= packets.len());
        }
        // One ends behind each block.
        let blocks = if name == "pcap" {
            1
        } else {
            2 + packets.len() / 3
        };
        assert!(
            whole_files.abs_diff(packets.len() + blocks) <= 1,
            "{name}: {whole_files}"
        );
    }
}

#[test]
fn any_byte_of_a_capture_may_be_wrong() {
    let file = pcap(1, &basic(), PLAIN);
    let mut state = 1_u32;
    for at in 0..file.len() {
        let mut bad = file.clone();
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bad[at] ^= (state >> 24).max(1) as u8;
        // A capture or not: it is answered.
        let _ = try_see(&bad, Options::default());
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let mut file = pcap(1, &[], PLAIN);
    file.extend([0; 8]);
    file.extend([0xff; 8]);
    let seen = see(&file);
    let stopped = seen.summary.stopped.expect("it cannot be read");
    assert!(
        stopped.contains("4294967311 bytes") && stopped.contains("byte 24"),
        "{stopped}"
    );
}

#[test]
fn fragments_and_other_packets_are_counted() {
    let mut fragment = links::ip(1, 2, false, 6, &[0; 100]);
    fragment[6] = 0x20;
    let arp = Link::Ethernet.wrap(false, &[]);
    let icmp = links::ip(1, 2, false, 1, &[8, 0, 0, 0, 0, 0, 0, 0]);
    let mut packets = Vec::new();
    for ip in [fragment, icmp] {
        let bytes = Link::Raw.wrap(false, &ip);
        let len = bytes.len() as u32;
        packets.push(Captured {
            nanos: 0,
            bytes,
            len,
        });
    }
    let bytes = arp[..10].to_vec();
    packets.push(Captured {
        nanos: 0,
        len: 10,
        bytes,
    });
    let seen = see(&pcap(101, &packets, PLAIN));
    assert_eq!(seen.count("IP fragments (not put together)"), 1);
    assert_eq!(seen.count("packets that are neither TCP nor UDP"), 1);
    assert_eq!(seen.count("packets with damaged or cut headers"), 1);
    let seen = see(&pcap(147, &packets, PLAIN));
    assert_eq!(
        seen.count("packets of a link type that is not known here"),
        3
    );
}
