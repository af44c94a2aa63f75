//! What can be seen of running endpoints: recordings of them, replayed, and their state.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::talk::{Serve, ping_well};
use super::{fields, json, stderr, stdout, xio};

/// Files of a recording, which go away with the value.
struct Files {
    recording: PathBuf,
    log: PathBuf,
}

impl Files {
    fn new(name: &str) -> Self {
        let path =
            |end| std::env::temp_dir().join(format!("xio-{}-{name}.{end}", std::process::id()));
        Self {
            recording: path("rec"),
            log: path("log"),
        }
    }

    fn options(&self) -> [&str; 4] {
        let [recording, log] =
            [&self.recording, &self.log].map(|path| path.to_str().expect("UTF-8"));
        ["--record", recording, "--record-log", log]
    }

    /// The log of the run, after it was compared with that of the replay.
    fn replayed(&self) -> String {
        let replay = xio(&["replay", self.options()[1]]);
        let text = stdout(&replay);
        assert!(
            replay.status.success(),
            "{} {}",
            &text[..text.len().min(2000)],
            stderr(&replay)
        );
        let log = fs::read_to_string(&self.log).expect("a log");
        let (_, lines) = text.split_once("\n\n").expect("what it was made of");
        let (lines, verdict) = lines.rsplit_once("\n\n").expect("a verdict");
        assert!(verdict.contains("all as recorded"), "{verdict}");
        if let Some((ran, again)) = log.lines().zip(lines.lines()).find(|(a, b)| a != b) {
            panic!("it was {ran} and came as {again}");
        }
        assert_eq!(log.trim_end().len(), lines.len(), "one is longer");
        log
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Left over is no harm.
        let _ = fs::remove_file(&self.recording);
        let _ = fs::remove_file(&self.log);
    }
}

/// 10,000 messages over sockets: both sides, replayed, do line by line what they did.
#[test]
fn recorded_sockets_replay_line_by_line() {
    let (server, client) = (Files::new("server"), Files::new("client"));
    let serve = Serve::start(&[&["tcp://127.0.0.1:0"][..], &server.options()].concat());
    let args = ["--count", "10000", "--depth", "32"];
    ping_well(&serve.url, &[&args[..], &client.options()].concat());
    assert_eq!(serve.stop()["requests"], 10_000);
    for (files, came) in [
        (&server, " = Event(Some(Request"),
        (&client, " = Event(Some(Response"),
    ] {
        let log = files.replayed();
        assert_eq!(log.matches(came).count(), 10_000, "{came}");
    }
}

/// Data that does not fit a frame goes past the endpoint; what it decides about it does not.
#[test]
fn recorded_large_messages_replay() {
    let (server, client) = (Files::new("large-server"), Files::new("large-client"));
    let serve = Serve::start(&[&["tcp://127.0.0.1:0"][..], &server.options()].concat());
    let args = ["--count", "20", "--size", "100000", "--stream", "single"];
    ping_well(&serve.url, &[&args[..], &client.options()].concat());
    serve.stop();
    for files in [&server, &client] {
        assert!(files.replayed().contains("100000"));
    }
}

#[test]
fn recording_that_cannot_be_written_is_told() {
    let nowhere = xio(&["ping", "tcp://127.0.0.1:1", "--record", "/nowhere/at.rec"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(stderr(&nowhere).contains("cannot write /nowhere/at.rec"));
    let serve = Serve::start(&["tcp://127.0.0.1:0"]);
    let full = xio(&["ping", &serve.url, "--record", "/dev/full", "--json"]);
    assert_eq!(full.status.code(), Some(1), "{}", stderr(&full));
    assert_eq!(json(&full)["ok"], 1000, "recording disturbs nothing");
    assert!(
        stderr(&full).contains("/dev/full is not whole"),
        "{}",
        stderr(&full)
    );
    serve.stop();
}

/// A process that ends with the value.
struct Running(Child);

impl Running {
    fn start(args: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_xio"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.expect("the program starts"))
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args(["-s", name, &self.0.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(of: &Value, path: &str) -> u64 {
    let found = of.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number {path} in {of}"))
}

/// The state of a server with one client, which has sent one message of 100 bytes.
fn assert_one_message(state: &Value) {
    assert_eq!(number(state, "/counters/messages_received"), 1);
    assert_eq!(
        number(state, "/transport/accepted"),
        2,
        "two sockets carry a connection"
    );
    assert_eq!(
        number(state, "/rows/nexuses") - number(state, "/free/nexuses"),
        1
    );
    let nexus = &state["nexuses"][0];
    assert_eq!(
        (&nexus["state"], &nexus["server"]),
        (&"Online".into(), &true.into())
    );
    assert!(number(nexus, "/counters/frames_received") >= 3, "{nexus}");
    assert!(number(nexus, "/counters/bytes_received") > 100, "{nexus}");
    assert!(number(nexus, "/counters/bytes_posted") > 100, "{nexus}");
    assert_eq!(number(nexus, "/counters/flushed"), 0);
    let connection = &state["connections"][0];
    assert_eq!(
        (&connection["state"], &connection["nexus"]),
        (&"Online".into(), &nexus["id"])
    );
    assert_eq!(number(connection, "/counters/messages_received"), 1);
    assert_eq!(number(connection, "/unanswered"), 0);
}

/// What a server shows of itself agrees with what its client does.
#[test]
fn state_is_an_object_on_a_signal() {
    let mut serve = Serve::start(&["tcp://127.0.0.1:0", "--clients", "8"]);
    let idle = serve.state();
    let expected = [
        "connections",
        "counters",
        "due_ns",
        "endpoint",
        "free",
        "messages",
        "nexuses",
        "now_ns",
        "queue_bytes_all",
        "queued_bytes",
        "rows",
        "transport",
    ];
    assert_eq!(fields(&idle), expected);
    assert_eq!(
        (&idle["nexuses"], &idle["connections"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    assert_eq!(
        number(&idle, "/free/nexuses"),
        number(&idle, "/rows/nexuses")
    );
    assert_eq!(number(&idle, "/queued_bytes"), 0);
    assert_eq!(number(&idle, "/queue_bytes_all"), 4 << 30);
    // It sends one message and sleeps.
    let args = [
        "ping",
        &serve.url,
        "--count",
        "1000",
        "--interval",
        "1h",
        "--size",
        "100",
    ];
    let client = Running::start(&args);
    serve.wait_for("is established");
    let state = loop {
        let state = serve.state();
        if number(&state, "/counters/responses_sent") > 0 {
            break state;
        }
    };
    assert_one_message(&state);
    client.signal("INT");
    serve.wait_for("is gone");
    let after = serve.state();
    assert_eq!(after["connections"], Value::Array(vec![]));
    serve.stop();
}

#[test]
fn state_is_text_without_json() {
    let mut server = Running::start(&["serve", "tcp://127.0.0.1:0"]);
    let mut words = BufReader::new(server.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    words.read_line(&mut line).expect("a line");
    let url = line
        .trim()
        .strip_prefix("listening at ")
        .expect("a URL")
        .to_owned();
    ping_well(&url, &["--count", "7"]);
    server.signal("USR1");
    line.clear();
    while !line.starts_with("endpoint 0 at ") {
        line.clear();
        assert!(words.read_line(&mut line).expect("text") > 0, "no state");
    }
    server.signal("INT");
    let mut rest = String::new();
    words.read_to_string(&mut rest).expect("text");
    assert!(
        rest.contains("messages received 7, responses sent 7"),
        "{rest}"
    );
    assert!(rest.contains(" nexuses 4096/4096"), "{rest}");
    assert!(rest.contains("  queued: 0 of 4294967296 bytes\n"), "{rest}");
}
