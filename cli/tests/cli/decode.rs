//! `xio decode`, from files and from standard input. What it finds in captures is tested where the
//! decoder is.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use super::{stderr, stdout, xio};
use serde_json::Value;

/// A connect message and the setup of a transport connection, as a socket brings them.
const HEX: &str = "00000001 00000000 58494f50 00000082 00000000 00000020 01000000 00000000 \
                   00000000 00002400 00000004 00000004 00000100 00000000\n";

/// The same, and a frame whose length cannot be.
const BAD: &str = "00000001 00000000 58494f50 00000012 00000001 00000020 01000000 00000000\n";

fn piped(args: &[&str], input: &[u8], log: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xio"));
    command.args(args).env_remove("XIO_LOG");
    if let Some(log) = log {
        command.env("XIO_LOG", log);
    }
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may not want to read all of it.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn frames_are_trees_for_people() {
    let output = piped(&["decode", "-"], HEX.as_bytes(), None);
    assert!(output.status.success());
    let text = stdout(&output);
    for part in [
        "#1 0.000000 stream 1 c2s CONNECT_MSG, 8 bytes\n",
        "kind           SINGLE (1)\n",
        "#2 0.000000 stream 1 c2s NEXUS_SETUP_REQ, 48 bytes\n",
        "0x82 = REQUEST | NEXUS_SETUP\n",
        "     24    buffer_size    9216\n",
        "frames: 2, malformed: 0, streams: 1, packets: 0\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(stderr(&output), "");
}

#[test]
fn frames_are_objects_for_programs() {
    let output = piped(&["decode", "-", "--json"], BAD.as_bytes(), None);
    assert!(output.status.success());
    let text = stdout(&output);
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(objects[0]["type"], "CONNECT_MSG");
    assert_eq!(objects[1]["type"], "MSG_REQ");
    assert_eq!(objects[1]["offset"], 8);
    let error = objects[1]["error"].as_str().expect("an error");
    assert!(error.contains("above the limit: 4294967328"), "{error}");
    assert!(stderr(&output).contains("frames: 2, malformed: 1"));
}

#[test]
fn one_stream_can_be_followed() {
    for (stream, lines, status, said) in [
        ("1", 2, 0, "frames: 2"),
        ("2", 0, 1, "none of the frames is of stream 2"),
    ] {
        let args = ["decode", "-", "--json", "--follow", stream];
        let output = piped(&args, HEX.as_bytes(), None);
        assert_eq!(stdout(&output).lines().count(), lines);
        assert_eq!(output.status.code(), Some(status));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn what_cannot_be_decoded_is_said() {
    let output = xio(&["decode", "/nowhere/at/all.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot open /nowhere/at/all.pcap"));
    let output = piped(&["decode", "-"], b"GET / HTTP/1.1", None);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("neither pcap"),
        "{}",
        stderr(&output)
    );
    let empty_pcap = [
        0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
    ];
    let output = piped(&["decode", "-"], &empty_pcap, None);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("no frame of the protocol was found"));
}

#[test]
fn events_are_shown_when_asked_for() {
    let said = |args: &[&str], log| {
        let output = piped(args, HEX.as_bytes(), log);
        (output.status.code(), stderr(&output))
    };
    assert_eq!(said(&["decode", "-"], None), (Some(0), String::new()));
    let (_, trace) = said(&["decode", "-", "-vv"], None);
    assert!(
        trace.contains("TRACE xio_decode::report: told n=1 stream=1"),
        "{trace}"
    );
    let (_, other) = said(&["decode", "-"], Some("xio_decode=trace"));
    assert_eq!(other, trace);
    let (_, less) = said(&["-v", "decode", "-"], Some("error"));
    assert_eq!(less, "");
    let (code, nobody) = said(&["decode", "-"], Some("xio_proto=debug"));
    assert_eq!(code, Some(0));
    let names = "xio: XIO_LOG names xio_proto, which shows nothing; there are xio::logging, ";
    assert!(nobody.starts_with(names), "{nobody}");
    assert_eq!(nobody.lines().count(), 1);
    let (code, wrong) = said(&["decode", "-"], Some("xio=loud"));
    assert_eq!(code, Some(1));
    assert!(wrong.contains("XIO_LOG=xio=loud is neither"), "{wrong}");
}
