//! Recorded conversations, as they are: every frame, in order, without a defect.

use xio_tests::golden::{self, Dialect, Transcript};

use super::capture::{PLAIN, Style, pcap, pcapng};
use super::links::Link;
use super::packets::{captured, kinds, segments};
use super::{Seen, see};

pub(crate) fn all(dialect: Dialect) -> Vec<Transcript> {
    let all = golden::load_all().expect("the recordings can be read");
    let of_dialect: Vec<_> = all.into_iter().filter(|t| t.dialect == dialect).collect();
    assert!(of_dialect.len() > 10, "{dialect:?}");
    of_dialect
}

fn check(name: &str, seen: &Seen, kinds: &[&str]) {
    assert_eq!(seen.kinds(), kinds, "{name}");
    assert_eq!(seen.troubles(), Vec::<String>::new(), "{name}");
    assert_eq!(seen.summary.malformed, 0);
    assert_eq!(seen.summary.stopped, None);
}

#[test]
fn every_recording_over_tcp_is_decoded() {
    for transcript in all(Dialect::Tcp) {
        for mss in [1448, 65_000, 97] {
            let packets = captured(&segments(&transcript, mss), Link::Ethernet, false);
            let seen = see(&pcap(1, &packets, PLAIN));
            check(&transcript.name, &seen, &kinds(&transcript));
            assert_eq!(seen.summary.packets, packets.len() as u64);
        }
    }
}

#[test]
fn every_link_address_and_file_is_read() {
    let transcript = golden::load("tcp-basic").expect("there");
    let kinds = kinds(&transcript);
    let segments = segments(&transcript, 1448);
    for link in Link::ALL {
        for is_v6 in [false, true] {
            let packets = captured(&segments, link, is_v6);
            for style in 0..6 {
                let (big, nanos) = (style & 1 == 1, style & 2 == 2);
                let file = match style {
                    0..4 => pcap(link.number(), &packets, Style { big, nanos }),
                    _ => pcapng(link.number(), &packets, big),
                };
                let name = format!("{link:?} v6 {is_v6} style {style}");
                let seen = see(&file);
                check(&name, &seen, &kinds);
                let (first, last) = (seen.items.first(), seen.items.last());
                let (first, last) = (first.expect("items").stamp, last.expect("items").stamp);
                assert_eq!(first.nanos / 1_000_000_000, 1_700_000_000, "{name}");
                assert!(first < last && first.nanos % 1000 == 0, "{name}");
            }
        }
    }
}

#[test]
fn the_two_sockets_of_a_pair_are_one_stream() {
    let transcript = golden::load("tcp-basic").expect("there");
    let packets = captured(&segments(&transcript, 1448), Link::Raw, false);
    let seen = see(&pcap(101, &packets, PLAIN));
    let directions: Vec<_> = seen.by_direction().into_keys().collect();
    assert_eq!(directions, [(1, "c2s"), (1, "s2c")]);
    assert_eq!(seen.summary.streams, 1);
}

#[test]
fn values_are_those_recorded() {
    let transcript = golden::load("tcp-basic").expect("there");
    let packets = captured(&segments(&transcript, 1448), Link::Raw, false);
    let seen = see(&pcap(101, &packets, PLAIN));
    let objects: Vec<serde_json::Value> = seen
        .items
        .iter()
        .map(|item| serde_json::from_str(&xio_decode::json(item)).expect("JSON"))
        .collect();
    assert_eq!(objects[0]["type"], "CONNECT_MSG");
    assert_eq!(objects[0]["connect"]["kind"], "DATA");
    let setup = objects.iter().find(|o| o["type"] == "SESSION_SETUP_REQ");
    let setup = setup.expect("a setup");
    assert_eq!(setup["uri"]["text"], "tcp://127.0.0.1:23100/res");
    assert_eq!(setup["private"]["text"], "cli-priv\0");
    assert_eq!(setup["setup"]["rcv_msgs"], 1024);
    let answer = objects
        .iter()
        .find(|o| o["type"] == "MSG_RSP")
        .expect("one");
    assert_eq!(
        answer["session"]["flags"],
        serde_json::json!(["RECEIPT_LAST"])
    );
    assert_eq!(answer["session"]["ack_sn"], serde_json::Value::Null);
    assert_eq!(answer["response"]["op"], "SEND");
    assert_eq!(answer["response"]["status"], "SUCCESS");
    assert_eq!(answer["data"]["len"], 32);
    assert_eq!(answer["len"], 96 + 16 + 32);
    let text = xio_decode::text(&seen.items[7]);
    assert!(text.contains("MSG_RSP, 144 bytes"), "{text}");
    assert!(
        text.contains("flags          0x1000 = RECEIPT_LAST"),
        "{text}"
    );
}
