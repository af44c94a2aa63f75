//! `xio serve` and `xio ping` talk to each other as two processes, and say what is wrong when they
//! cannot.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::{fields, json, stderr, xio};

/// A running `xio serve`.
pub(super) struct Serve {
    child: Child,
    pub(super) url: String,
    words: BufReader<std::process::ChildStderr>,
    objects: BufReader<std::process::ChildStdout>,
}

impl Serve {
    pub(super) fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_xio"))
            .args([&["serve"], args, &["--json"]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut words = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        words.read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("listening at ").expect("a URL");
        let url = url.to_owned();
        let objects = BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            child,
            url,
            words,
            objects,
        }
    }

    pub(super) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// The next line that has this in it.
    pub(super) fn wait_for(&mut self, part: &str) -> String {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            let read = self.words.read_line(&mut line).expect("text");
            assert!(read > 0, "no {part:?} before the end");
        }
        line
    }

    /// Its state, which SIGUSR1 asks for.
    pub(super) fn state(&mut self) -> Value {
        self.signal("USR1");
        let mut line = String::new();
        self.objects.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("one object")
    }

    /// The most memory that it ever had, in bytes.
    fn peak_memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("a process of ours");
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.and_then(|kib| kib.parse::<u64>().ok())
            .expect("a number")
            * 1024
    }

    /// Ends it as a person does; its object.
    pub(super) fn stop(mut self) -> Value {
        self.signal("INT");
        let mut text = String::new();
        self.objects.read_to_string(&mut text).expect("text");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
        serde_json::from_str(&text).expect("one object")
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(sent.expect("kill runs").success());
}

fn ping(url: &str, args: &[&str]) -> Output {
    xio(&[&["ping", url, "--json"], args].concat())
}

/// Pings and expects everything to come back.
pub(super) fn ping_well(url: &str, args: &[&str]) -> Value {
    let output = ping(url, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    let object = json(&output);
    assert_eq!(object["ok"], object["count"], "{args:?}: {object}");
    assert_eq!(
        (&object["lost"], &object["duplicated"]),
        (&0.into(), &0.into())
    );
    object
}

/// A hundredth of what a release is tried with: sizes on both sides of every limit, requests that
/// are large, answers that are, and both.
fn all_sizes(host: &str, stream: &str, shapes: &[&str]) {
    let server = Serve::start(&[&format!("tcp://{host}:0")]);
    let (mut messages, mut largest) = (0, 0);
    let sizes: [(u64, u64); 11] = [
        (0, 1000),
        (1, 1000),
        (64, 1000),
        (255, 1000),
        (256, 1000),
        (4 << 10, 1000),
        (8 << 10, 1000),
        ((8 << 10) + 1, 1000),
        (64 << 10, 200),
        (1 << 20, 10),
        (64 << 20, 1),
    ];
    for (size, count) in sizes {
        let deep = (256 << 20) / size.max(1);
        for depth in [1, deep.min(64)] {
            for shape in shapes {
                let (size, count, depth) = (size.to_string(), count.to_string(), depth.to_string());
                let sizes: &[&str] = match *shape {
                    "request" => &["--size", &size, "--reply-size", "0"],
                    "response" => &["--size", "0", "--reply-size", &size],
                    _ => &["--size", &size],
                };
                let rest = ["--count", &count, "--depth", &depth, "--stream", stream];
                let object = ping_well(&server.url, &[sizes, &rest].concat());
                messages += object["ok"].as_u64().expect("a count");
            }
        }
        largest = largest.max(size);
    }
    let peak = server.peak_memory();
    let object = server.stop();
    assert_eq!(object["answered"], messages);
    assert_eq!(object["damaged"], 0);
    // Slots are 40 MiB; of the largest size at most four are here at once, with another four as
    // counting pattern or echo.
    let bound = (40 << 20) + (64 << 20) + 512 * (1 << 20);
    assert!(peak < bound, "{peak} bytes, more than {bound}");
}

#[test]
fn every_size_comes_back_over_two_streams() {
    all_sizes("127.0.0.1", "dual", &["request", "response", "both"]);
}

#[test]
fn every_size_comes_back_over_one_stream() {
    all_sizes("127.0.0.1", "single", &["request", "response", "both"]);
}

#[test]
fn every_size_comes_back_over_ipv6() {
    all_sizes("[::1]", "dual", &["both"]);
}

#[test]
fn sizes_may_have_units() {
    let server = Serve::start(&["tcp://127.0.0.1:0", "--reply-size", "2KiB"]);
    let object = ping_well(
        &server.url,
        &["--count", "2", "--size", "1MiB", "--reply-size", "2kib"],
    );
    assert_eq!(object["bytes"], 2 * ((1 << 20) + 2048));
    server.stop();
    let output = xio(&["ping", "tcp://127.0.0.1:1", "--size", "2GiB"]);
    assert_eq!(output.status.code(), Some(2));
    let words = stderr(&output);
    assert!(words.contains("1073741824 bytes are the most"), "{words}");
}

#[test]
fn objects_have_the_agreed_fields() {
    let server = Serve::start(&["tcp://127.0.0.1:0"]);
    let args = ["--count", "50", "--one-way", "--receipt", "--depth", "8"];
    let object = ping_well(&server.url, &args);
    let expected = [
        "bytes",
        "count",
        "duplicated",
        "failed",
        "lost",
        "max_ns",
        "msgs_per_s",
        "ok",
        "p50_ns",
        "p90_ns",
        "p999_ns",
        "p99_ns",
        "restarts",
        "seconds",
        "sent",
        "url",
    ];
    assert_eq!(fields(&object), expected);
    assert_eq!(object["url"], server.url);
    assert_eq!(object["bytes"], 50 * 64);
    assert!(object["p50_ns"].as_u64() > Some(0));
    assert!(object["max_ns"].as_u64() >= object["p999_ns"].as_u64());
    ping_well(&server.url, &["--count", "50", "--one-way"]);
    let object = server.stop();
    assert_eq!(
        (&object["one_ways"], &object["sessions"]),
        (&100.into(), &2.into())
    );
}

#[test]
fn paced_messages_take_their_time() {
    let server = Serve::start(&["tcp://localhost:0"]);
    let object = ping_well(&server.url, &["--count", "11", "--interval", "5ms"]);
    assert!(object["seconds"].as_f64() >= Some(0.05), "{object}");
    server.stop();
}

#[test]
fn rejected_and_redirected_clients_are_told_so() {
    let server = Serve::start(&["tcp://127.0.0.1:0", "--reject", "7"]);
    let output = ping(&server.url, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("rejected by the peer: status 7"),
        "{}",
        stderr(&output)
    );
    server.stop();

    let goal = Serve::start(&["tcp://127.0.0.1:0"]);
    let signpost = Serve::start(&["tcp://127.0.0.1:0", "--redirect", &goal.url]);
    ping_well(&signpost.url, &["--count", "10"]);
    assert_eq!(signpost.stop()["requests"], 0);
    assert_eq!(goal.stop()["requests"], 10);
}

#[test]
fn killed_server_costs_no_message_its_outcome() {
    // Now and then a server is killed before its client heard that it was accepted.
    let connected = |output: &Output| json(output)["sent"].as_u64() > Some(0);
    let output = std::iter::repeat_with(ping_a_server_that_is_killed).find(connected);
    let output = output.expect("there is no end of them");
    let object = json(&output);
    assert_eq!(
        (&object["lost"], &object["duplicated"]),
        (&0.into(), &0.into())
    );
    let failed = object["failed"].as_object().expect("reasons");
    let failed: u64 = failed.values().filter_map(Value::as_u64).sum();
    assert!(failed <= 64, "{object}");
    assert!(
        stderr(&output).contains("the connection broke"),
        "{}",
        stderr(&output)
    );
}

fn ping_a_server_that_is_killed() -> Output {
    let mut server = Serve::start(&["tcp://127.0.0.1:0"]);
    let url = server.url.clone();
    let args = ["--count", "100000000", "--depth", "64"];
    let pinging = std::thread::spawn(move || ping(&url, &args));
    server.wait_for("is established");
    server.signal("KILL");
    server.child.wait().expect("it ends");
    let output = pinging.join().expect("no panic");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    output
}

#[test]
fn stopped_server_lets_deadlines_pass_and_no_more() {
    let server = Serve::start(&["tcp://127.0.0.1:0"]);
    let args = [
        "--count",
        "1000",
        "--interval",
        "10ms",
        "--deadline",
        "50ms",
    ];
    // That the server has accepted it is not yet on its way to the client.
    let child = connected_ping(&server.url, &args);
    server.signal("STOP");
    let output = child.wait_with_output().expect("it ends");
    server.signal("CONT");
    assert_eq!(output.status.code(), Some(1));
    let object = json(&output);
    assert_eq!(
        (&object["lost"], &object["duplicated"]),
        (&0.into(), &0.into())
    );
    assert!(
        object["failed"]["deadline passed"].as_u64() > Some(0),
        "{object}"
    );
    server.stop();
}

/// A ping that goes on for ever, once it is connected.
fn endless_ping(url: &str) -> Child {
    connected_ping(url, &["--count", "100000000"])
}

/// A ping, once it is connected.
fn connected_ping(url: &str, args: &[&str]) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_xio"))
        .args(["ping", url, "--json"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let words = child.stderr.as_mut().expect("a pipe");
    BufReader::new(words).read_line(&mut line).expect("a line");
    assert!(line.starts_with("connected to"), "{line}");
    child
}

#[test]
fn interrupted_ping_takes_what_is_under_way_home() {
    let server = Serve::start(&["tcp://127.0.0.1:0"]);
    let child = endless_ping(&server.url);
    signal(&child, "INT");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", stderr(&output));
    let object = json(&output);
    assert_eq!(
        (&object["lost"], &object["failed"]),
        (&0.into(), &serde_json::json!({}))
    );
    assert_eq!(server.stop()["requests"], object["ok"]);
}

#[test]
fn interrupted_ping_does_not_wait_for_a_server_that_hangs() {
    let server = Serve::start(&["tcp://127.0.0.1:0"]);
    let child = endless_ping(&server.url);
    server.signal("STOP");
    signal(&child, "TERM");
    let output = child.wait_with_output().expect("it ends");
    server.signal("CONT");
    assert_eq!(output.status.code(), Some(1));
    let object = json(&output);
    assert_eq!(object["lost"], 0, "{object}");
    server.stop();
}

#[test]
fn ping_that_gets_no_answer_says_so_in_its_object_too() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", silent.local_addr().expect("bound"));
    let output = ping(&url, &["--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(1));
    let error = json(&output)["error"].as_str().unwrap_or("").to_owned();
    assert!(
        error.contains("does not answer as a libxio server"),
        "{error}"
    );
    assert!(stderr(&output).contains(&error), "{}", stderr(&output));
}

#[test]
fn who_answers_in_another_language_is_shown_with_its_words() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", listener.local_addr().expect("bound"));
    let web = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        socket
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .expect("sent");
        // Until the client has read that and leaves.
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let output = ping(&url, &["--stream", "single"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("\"HTTP\""), "{}", stderr(&output));
    web.join().expect("no panic");
}

#[test]
fn transports_have_options_of_their_own() {
    for command in ["serve", "ping"] {
        let output = xio(&[command, "tcp://127.0.0.1:0", "--spin", "never"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("--spin is for rdma:// addresses"),
            "{}",
            stderr(&output)
        );
        let output = xio(&[command, "rdma://127.0.0.1:0", "--spin", "often"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            stderr(&output).contains("neither never nor always"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
#[cfg(not(any(feature = "rdma", feature = "rdma-dlopen")))]
fn program_without_verbs_says_how_to_get_one_with_them() {
    for args in [
        &["serve", "rdma://127.0.0.1:0"][..],
        &["ping", "rdma://127.0.0.1:1"],
        &["demo", "--over", "rdma"],
        &["devices"],
    ] {
        let output = xio(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = stderr(&output);
        assert!(text.contains("--features rdma`"), "{args:?}: {text}");
        assert!(text.contains("--features rdma-dlopen`"), "{args:?}: {text}");
    }
}

#[test]
#[cfg(any(feature = "rdma", feature = "rdma-dlopen"))]
fn machine_without_devices_is_told_what_to_do() {
    if std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        return;
    }
    for args in [
        &["serve", "rdma://127.0.0.1:0"][..],
        &["ping", "rdma://127.0.0.1:1"],
        &["demo", "--over", "rdma"],
        &["devices"],
    ] {
        let output = xio(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = [super::stdout(&output), stderr(&output)].concat();
        assert!(text.contains("no RDMA device"), "{args:?}: {text}");
        assert!(text.contains("modprobe rdma_rxe"), "{args:?}: {text}");
    }
}

#[test]
fn answers_follow_the_header() {
    let server = Serve::start(&[
        "tcp://127.0.0.1:0",
        "--reply",
        "xio-pi=3000",
        "--reply",
        "xio=5",
        "--reply-size",
        "7",
    ]);
    // The header of this program's clients begins with its name; without it none fits.
    let args = ["--any-reply", "--count", "10", "--size", "0"];
    let object = ping_well(&server.url, &[&args[..], &["--header", "0"]].concat());
    assert_eq!(object["bytes"], 10 * 7);
    let object = ping_well(&server.url, &args);
    assert_eq!(object["bytes"], 10 * 3000);
    assert_eq!(server.stop()["bytes_out"], 10 * 3007);
    let output = xio(&["serve", "tcp://127.0.0.1:0", "--reply", "x"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_ping_outlives_a_server_that_is_killed() {
    // With port 0 it has no identity of its address, so it is told one.
    let args = ["--identity", "7"];
    let mut server = Serve::start(&[&["tcp://127.0.0.1:0"], &args[..]].concat());
    let url = server.url.clone();
    let mut client = Command::new(env!("CARGO_BIN_EXE_xio"))
        .args([
            "ping",
            &url,
            "--json",
            "--count",
            "300",
            "--interval",
            "10ms",
        ])
        .args(["--reconnect", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // Before its session is there a ping has nothing that it would make anew.
    let mut words = BufReader::new(client.stderr.take().expect("a pipe")).lines();
    let connected = words.by_ref().map_while(Result::ok);
    assert!(
        connected
            .into_iter()
            .any(|line| line.starts_with("connected to")),
        "the client ended"
    );
    server.signal("KILL");
    let ended = server.child.wait().expect("it ends");
    assert!(!ended.success());
    let mut server = Serve::start(&[&[url.as_str()], &args[..]].concat());
    server.wait_for("is established");
    let output = client.wait_with_output().expect("it ends");
    let object = json(&output);
    let ok = object["ok"].as_u64().expect("a count");
    // The one that was out is not repeated.
    assert!(ok == 300 || ok == 299, "{object}");
    assert_eq!(output.status.success(), ok == 300, "{object}");
    assert_eq!(object["restarts"], 1, "{object}");
    // The rest was answered by the first.
    let answered = server.stop()["requests"].as_u64();
    assert!(answered > Some(0) && answered <= Some(ok), "{object}");
}

#[test]
fn errors_say_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", taken.local_addr().expect("bound"));
    let output = xio(&["serve", &url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("another program has the port"),
        "{}",
        stderr(&output)
    );
    drop(taken);
    let output = ping(&url, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&format!("xio serve {url}")),
        "{}",
        stderr(&output)
    );
    for (args, part) in [
        (["ping", "tcp://nowhere.invalid:1"], "no address is known"),
        #[cfg(not(any(feature = "rdma", feature = "rdma-dlopen")))]
        (["ping", "rdma://127.0.0.1:1"], "--features rdma"),
        (
            ["serve", "tcp://192.0.2.1:1"],
            "no interface of this machine",
        ),
    ] {
        let output = xio(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
    let output = xio(&[
        "ping",
        "tcp://127.0.0.1:1",
        "--header",
        "8",
        "--reply-size",
        "1",
    ]);
    assert!(
        stderr(&output).contains("--header has to be 24"),
        "{}",
        stderr(&output)
    );
}
