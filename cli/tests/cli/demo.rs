//! `xio demo` ends well and says so, to people and to programs.

use super::{fields, json, stderr, stdout, xio};

#[test]
fn default_demo_is_over_sockets_and_loses_nothing() {
    let output = xio(&["demo"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("0 lost, 0 duplicated: "), "{last}");
    for part in [
        "connects to tcp://",
        "accepted",
        "is established",
        "10,000 sent, 10,000 answered",
        "1,000 sent, 1,000 receipts",
        "p99 ",
        "closed by the peer",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert_eq!(stderr(&output), "", "a bar is for terminals");
}

#[test]
fn demo_in_the_simulator_loses_nothing_and_shows_states() {
    let output = xio(&["demo", "--over", "sim"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("0 lost, 0 duplicated: "), "{last}");
    let expected = [
        "connects to rdma://",
        "SetupReq => Online",
        "SetupAccepted => Online",
        "10,000 sent, 10,000 answered",
        "1,000 sent, 1,000 receipts",
        "p99 ",
        "Close => FinWait1",
        "closed by the peer",
    ];
    for part in expected {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert_eq!(stderr(&output), "", "a bar is for terminals");
}

#[test]
fn json_has_the_agreed_fields_and_nothing_is_lost() {
    let output = xio(&["demo", "--over", "sim", "--requests", "200", "--json"]);
    assert!(output.status.success());
    let object = json(&output);
    let expected = [
        "bytes",
        "driver",
        "duplicated",
        "lost",
        "one_ways",
        "p50_ns",
        "p99_ns",
        "receipts",
        "requests",
        "responses",
    ];
    assert_eq!(fields(&object), expected);
    assert_eq!(object["driver"], "sim");
    assert_eq!(
        (&object["lost"], &object["duplicated"]),
        (&0.into(), &0.into())
    );
    assert_eq!(object["requests"], 200);
    assert_eq!(object["responses"], object["requests"]);
    assert_eq!(object["one_ways"], 20);
    assert_eq!(object["receipts"], object["one_ways"]);
    assert!(object["p50_ns"].as_u64() > Some(0));
    assert!(object["p99_ns"].as_u64() >= object["p50_ns"].as_u64());
    assert!(stderr(&output).contains("0 lost, 0 duplicated"));
}

#[test]
fn size_asked_for_is_the_size_of_every_message() {
    // On both sides of: copied or gathered (1 KiB), in the frame or beside it (8 KiB).
    for size in [0, 1, 1024, 1025, 8192, 8193, 1 << 20] {
        let wanted = size.to_string();
        for over in ["sim", "tcp"] {
            let args = [
                "demo",
                "--over",
                over,
                "--requests",
                "20",
                "--size",
                &wanted,
                "--json",
            ];
            let output = xio(&args);
            assert!(output.status.success(), "{size}: {}", stderr(&output));
            // 20 requests, 20 responses, 2 one-ways.
            assert_eq!(json(&output)["bytes"], 42 * size, "{size}");
            assert_eq!(json(&output)["driver"], over);
        }
    }
}

#[test]
fn virtual_time_is_the_same_in_every_run() {
    let run = || stdout(&xio(&["demo", "--over", "sim", "--requests", "300"]));
    assert_eq!(run(), run());
}

#[test]
fn what_cannot_be_is_refused_with_the_limits() {
    for (args, part) in [
        (["demo", "--requests", "0"], "1..=1000000"),
        (
            ["demo", "--size", "99999999"],
            "16777216 bytes are the most",
        ),
        (
            ["demo", "--over", "pigeon"],
            "possible values: tcp, rdma, sim",
        ),
    ] {
        let output = xio(&args);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[test]
fn transitions_are_shown_when_asked_for() {
    for over in ["tcp", "sim"] {
        let args = ["demo", "--over", over, "--requests", "10", "-v"];
        let output = xio(&args);
        assert!(output.status.success());
        let events = stderr(&output);
        assert!(
            events.contains("DEBUG") && events.contains("=> Online"),
            "{events}"
        );
        assert!(!events.contains("TRACE"), "{events}");
    }
}
