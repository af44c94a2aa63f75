//! A peer that shares no code with this project: a command in `XIO_TCP_PEER`, called with
//! `client|server single|dual PORT`. Without it the test says that it did not run.
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{connect, driver, listen};
use xio_proto::{ConnectionId, Event, Message, RequestOptions, SlotId, TaskId};
use xio_tcp::{Driver, Options, TcpDriver};

fn program() -> Option<String> {
    let program = std::env::var("XIO_TCP_PEER").ok();
    if program.is_none() {
        println!("SKIPPED: XIO_TCP_PEER names no peer");
    }
    program
}

/// What the peer's client expects of a server: big answers to BIGR, small ones to the rest.
fn answer(server: &mut TcpDriver, task: TaskId, header: &[u8]) {
    let slot = server.reserve_answer_slot(task).expect("a slot");
    let (text, big) = if header == b"BIGR" {
        (&b"PBIG"[..], 20_000)
    } else {
        (&b"reply"[..], 0)
    };
    server
        .with_slot(slot, |room| room[..text.len()].copy_from_slice(text))
        .expect("reserved");
    let mut data = Vec::new();
    if big > 0 {
        let bytes = (0..big).map(|at| at as u8).collect();
        let buffer = server.add(bytes).expect("room");
        data.push(server.segment(buffer, 0..big).expect("inside"));
    }
    let message = Message {
        slot: Some(slot),
        header_len: text.len() as u16,
        data: &data,
        ..Message::default()
    };
    server.respond(task, &message).expect("answers");
}

fn serve(server: &mut TcpDriver, event: Event) {
    match event {
        Event::SessionRequest { session, .. } => {
            server.accept(session, 2, &[], b"ours").expect("accepts");
        }
        Event::PayloadWaiting { task, len, .. } => provide(server, task, len),
        Event::Request { task, header, .. } => {
            let header = server.bytes(header).to_vec();
            answer(server, task, &header);
        }
        Event::OneWay { task, .. } => server.release(task).expect("ours"),
        _ => {}
    }
}

fn provide(side: &mut TcpDriver, task: TaskId, len: u64) {
    let buffer = side.allocate(len as usize).expect("room");
    let segment = side.segment(buffer, 0..len as usize).expect("inside");
    side.provide(task, &[segment]).expect("waits");
}

/// Polls until the peer ends; its output.
fn run(
    side: &mut TcpDriver,
    mut peer: std::process::Child,
    mut each: impl FnMut(&mut TcpDriver, Event),
) -> String {
    let until = Instant::now() + Duration::from_secs(30);
    let status = loop {
        while let Some(event) = side.next_event() {
            each(side, event);
        }
        side.poll(Some(Duration::from_millis(10))).expect("polls");
        if let Some(status) = peer.try_wait().expect("a child") {
            break status;
        }
        assert!(Instant::now() < until, "the peer hangs");
    };
    let mut text = String::new();
    let out = peer.stdout.as_mut().expect("piped");
    out.read_to_string(&mut text).expect("text");
    println!("{text}");
    assert!(status.success(), "{status}");
    text
}

fn spawn(program: &str, role: &str, dual: bool, port: u16) -> std::process::Child {
    let streams = if dual { "dual" } else { "single" };
    let mut words = program.split_whitespace();
    Command::new(words.next().expect("a program"))
        .args(words)
        .args([role, streams, &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer starts")
}

#[test]
fn the_peer_is_the_client() {
    let Some(program) = program() else { return };
    for dual in [false, true] {
        let mut server = driver(0, Options::default());
        let (_, at) = listen(&mut server, "127.0.0.1:0");
        let peer = spawn(&program, "client", dual, at.port());
        let text = run(&mut server, peer, serve);
        assert!(text.contains("CLIENT OK"), "dual: {dual}");
        assert_eq!(server.endpoint().counters().violations, 0);
    }
}

/// The client's messages, in order; the next one leaves when the one before has its outcome.
fn ask(client: &mut TcpDriver, connection: ConnectionId, step: usize) {
    let slot: SlotId = client.reserve_slot(connection).expect("a slot");
    let (header, into) = match step {
        1 => {
            let buffer = client.allocate(30_000).expect("room");
            let segment = client.segment(buffer, 0..30_000).expect("inside");
            (&b"BIGR"[..], vec![segment])
        }
        _ => (&b"OURS"[..], vec![]),
    };
    let mut data = Vec::new();
    if step == 2 {
        let buffer = client.add(vec![7; 50_000].into()).expect("room");
        data.push(client.segment(buffer, 0..50_000).expect("inside"));
    }
    client
        .with_slot(slot, |room| room[..4].copy_from_slice(header))
        .expect("reserved");
    let message = Message {
        slot: Some(slot),
        header_len: 4,
        data: &data,
        user: step as u64,
        ..Message::default()
    };
    let options = RequestOptions {
        into: &into,
        receipt: step == 3,
        ..RequestOptions::default()
    };
    if step == 3 {
        client.send_one_way(connection, &message, &options)
    } else {
        client.send(connection, &message, &options)
    }
    .expect("room");
}

#[test]
fn the_peer_is_the_server() {
    let Some(program) = program() else { return };
    for dual in [false, true] {
        // A port that was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = free.local_addr().expect("bound");
        drop(free);
        let peer = spawn(&program, "server", dual, at.port());
        let mut client = driver(1, Options::default());
        let mut connection = connect(&mut client, at, dual);
        let (mut outcomes, mut big) = (0, Vec::new());
        let text = run(&mut client, peer, |client, event| match event {
            // It was not up yet.
            Event::ConnectFailed { .. } => connection = connect(client, at, dual),
            Event::Established { .. } => ask(client, connection, 0),
            Event::Response {
                task, user, data, ..
            } => {
                if user == 1 {
                    client.with_data(data, |piece| big.extend_from_slice(piece));
                }
                client.release(task).expect("ours");
                outcomes += 1;
                ask(client, connection, user as usize + 1);
            }
            Event::Delivered { .. } => {
                outcomes += 1;
                client.close(connection).expect("open");
            }
            _ => {}
        });
        assert!(text.contains("SERVER OK"), "dual: {dual}");
        assert_eq!(outcomes, 4);
        assert!(big.len() == 20_000 && big.iter().enumerate().all(|(at, b)| *b == at as u8));
        assert_eq!(client.endpoint().counters().violations, 0);
    }
}
