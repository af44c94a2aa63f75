//! Peers that vanish, strangers, crowds: every message has its outcome, and everything comes back.
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{connect, driver, echo, listen, request, run};
use socket2::SockRef;
use xio_proto::{Config, ConnectOptions, Event, Reason, SessionOpen};
use xio_tcp::{Driver, Options, TcpDriver};

/// Descriptors of this process that are sockets of TCP, as the system counts them.
fn descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("Linux");
    all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

/// Forwards so many bytes of both directions together, then resets all.
fn cutting_relay(to: SocketAddr, bytes: usize, sockets: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let left = AtomicUsize::new(bytes);
        let pairs: Vec<_> = (0..sockets)
            .filter_map(|_| Some((listener.accept().ok()?.0, TcpStream::connect(to).ok()?)))
            .collect();
        for (a, b) in &pairs {
            for socket in [a, b] {
                let reset = SockRef::from(socket).set_linger(Some(Duration::ZERO));
                reset.expect("a socket");
            }
        }
        std::thread::scope(|scope| {
            for (a, b) in &pairs {
                for (from, to) in [(a, b), (b, a)] {
                    let (left, pairs) = (&left, &pairs);
                    scope.spawn(move || forward(from, to, left, pairs));
                }
            }
        });
    });
    at
}

fn forward(
    mut from: &TcpStream,
    mut to: &TcpStream,
    left: &AtomicUsize,
    pairs: &[(TcpStream, TcpStream)],
) {
    let mut room = [0; 97];
    while let Ok(came) = from.read(&mut room) {
        let before = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
            Some(left.saturating_sub(came))
        });
        let pass = came.min(before.unwrap_or_default());
        if came == 0 || to.write_all(&room[..pass]).is_err() || pass < came {
            break;
        }
    }
    // One that ends takes all with it.
    for socket in pairs.iter().flat_map(|(a, b)| [a, b]) {
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}

/// The relay names no port of the client's, so only one stream can pass it.
#[test]
fn a_connection_breaks_anywhere() {
    for bytes in (0..2600).step_by(53) {
        let mut server = driver(0, Options::default());
        let mut client = driver(1, Options::default());
        let (_, at) = listen(&mut server, "127.0.0.1:0");
        let free = [&server, &client].map(|side| side.endpoint().free_rows());
        let relay = cutting_relay(at, bytes, 1);
        let connection = connect(&mut client, relay, false);
        let (mut sent, mut outcomes, mut over) = (0, 0, false);
        run(&mut server, &mut client, |is_server, side, event| {
            match event {
                Event::SessionClosed { .. } if !is_server => over = true,
                _ if is_server => echo_or_release(side, event),
                Event::Established { .. } => {
                    for user in 0..20 {
                        request(side, connection, &[7; 50], user);
                        sent += 1;
                    }
                }
                Event::Response { task, .. } => {
                    side.release(task).expect("ours");
                    outcomes += 1;
                }
                Event::Failed { .. } => outcomes += 1,
                Event::ConnectFailed { .. } | Event::Closed { .. } => {}
                other => panic!("{other:?}"),
            }
            over
        });
        assert_eq!(outcomes, sent, "one outcome each, cut after {bytes}");
        run_until(&mut server, &mut client, |server, client| {
            [server, client].map(|side| side.endpoint().free_rows()) == free
        });
        assert_eq!(server.stats().open + client.stats().open, 0);
    }
}

fn echo_or_release(server: &mut TcpDriver, event: Event) {
    match event {
        // Its connection may be over, and the session with it.
        Event::SessionRequest { session, .. } => {
            let _ = server.accept(session, 2, &[], b"");
        }
        Event::Request { task, .. } => {
            let message = xio_proto::Message::default();
            if server.respond(task, &message).is_err() {
                server.release(task).expect("ours");
            }
        }
        event => echo(server, event),
    }
}

fn run_until(
    server: &mut TcpDriver,
    client: &mut TcpDriver,
    done: impl Fn(&TcpDriver, &TcpDriver) -> bool,
) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done(server, client) {
        for side in [&mut *server, &mut *client] {
            while let Some(event) = side.next_event() {
                match event {
                    Event::Response { task, .. } => side.release(task).expect("ours"),
                    event => echo_or_release(side, event),
                }
            }
            side.poll(Some(Duration::ZERO)).expect("polls");
        }
        assert!(
            Instant::now() < until,
            "{:?} {:?}",
            server.endpoint().free_rows(),
            client.endpoint().free_rows()
        );
    }
}

/// What a peer sent before it vanished is heard, however short the turns are.
#[test]
fn the_last_words_of_a_peer_are_heard() {
    for dual in [false, true] {
        let options = Options {
            read_budget: 1,
            staging: 2048,
            ..Options::default()
        };
        let mut server = driver(0, options);
        let mut client = driver(1, Options::default());
        let (_, at) = listen(&mut server, "127.0.0.1:0");
        let connection = connect(&mut client, at, dual);
        let mut sent = 0;
        run(&mut server, &mut client, |is_server, side, event| {
            match event {
                Event::OneWay { task, .. } => panic!("{task:?} before its time"),
                _ if is_server => echo(side, event),
                Event::Established { .. } => return true,
                other => panic!("{other:?}"),
            }
            false
        });
        for user in 0..50 {
            let slot = client.reserve_slot(connection).expect("a slot");
            let message = xio_proto::Message {
                slot: Some(slot),
                slot_data: 4000,
                user,
                ..xio_proto::Message::default()
            };
            let options = xio_proto::RequestOptions::default();
            let task = client.send_one_way(connection, &message, &options);
            task.expect("room");
        }
        while sent < 50 {
            client.poll(Some(Duration::from_secs(1))).expect("polls");
            while let Some(event) = client.next_event() {
                sent += u32::from(matches!(event, Event::Sent { .. }));
            }
        }
        drop(client);
        let (mut heard, mut closed) = (0, false);
        let until = Instant::now() + Duration::from_secs(20);
        while !closed {
            while let Some(event) = server.next_event() {
                match event {
                    Event::OneWay { task, .. } => {
                        server.release(task).expect("ours");
                        heard += 1;
                    }
                    Event::Closed { .. } => closed = true,
                    _ => {}
                }
            }
            server.poll(Some(Duration::from_secs(1))).expect("polls");
            assert!(Instant::now() < until, "{heard}");
        }
        assert_eq!(heard, 50, "dual: {dual}");
    }
}

/// Who is no xio peer is shown the door, and who connects meanwhile does not notice.
#[test]
fn strangers_knock() {
    let mut config = Config::new(0, 64, 64);
    config.connect_timeout = Duration::from_millis(300);
    let counts = TcpDriver::counts(&config, 4);
    let mut server = TcpDriver::new(config, &counts, Options::default()).expect("works");
    let (_, at) = listen(&mut server, "127.0.0.1:0");
    let free = server.endpoint().free_rows();
    let mut strangers = Vec::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"",
        b"\0\0\0\x02",
        b"\0\0\0\x03\x12\x34\0\0",
        b"\0\0\0\x01\0\0\0\0XIOPgarbage that is no setup frame",
    ] {
        let mut stranger = TcpStream::connect(at).expect("listens");
        stranger.write_all(bytes).expect("takes it");
        strangers.push(stranger);
    }
    // One that is gone at once, and one that resets.
    drop(TcpStream::connect(at).expect("listens"));
    let reset = TcpStream::connect(at).expect("listens");
    SockRef::from(&reset)
        .set_linger(Some(Duration::ZERO))
        .expect("a socket");
    drop(reset);
    let mut client = driver(1, Options::default());
    let connection = connect(&mut client, at, true);
    let mut closed = false;
    run(&mut server, &mut client, |is_server, side, event| {
        match event {
            _ if is_server => echo(side, event),
            Event::Established { .. } => {
                request(side, connection, b"among strangers", 1);
            }
            Event::Response { task, .. } => {
                side.release(task).expect("ours");
                side.abort(connection).expect("open");
            }
            Event::Closed { .. } => closed = true,
            other => panic!("{other:?}"),
        }
        closed
    });
    run_until(&mut server, &mut client, |server, _| {
        server.endpoint().free_rows() == free && server.stats().open == 0
    });
    assert_eq!(server.stats().accepted, 9);
    for mut stranger in strangers {
        let limit = stranger.set_read_timeout(Some(Duration::from_secs(5)));
        limit.expect("a socket");
        // Closed, or reset because what it said was not read.
        let end = stranger.read(&mut [0; 8]);
        let ends = end.as_ref().map_or_else(
            |e| e.kind() == std::io::ErrorKind::ConnectionReset,
            |len| *len == 0,
        );
        assert!(ends, "{end:?}");
    }
}

fn large_driver(number: u8, nexuses: usize, linger: Duration) -> TcpDriver {
    let mut config = Config::new(number, 2048, 2048);
    config.linger = linger;
    let mut counts = TcpDriver::counts(&config, nexuses);
    counts.tasks = 4096;
    TcpDriver::new(config, &counts, Options::default()).expect("works")
}

fn dial(client: &mut TcpDriver, at: SocketAddr, dual: bool, user: u64) {
    let uri = format!("tcp://{at}/");
    let open = SessionOpen {
        uri: &uri,
        private: b"",
    };
    let options = ConnectOptions {
        dual_stream: dual,
        own_nexus: true,
        ..ConnectOptions::new(user)
    };
    client.connect(at, &open, &options).expect("room");
}

/// A thousand clients with transport connections of their own on one endpoint, all at once.
#[test]
fn a_thousand_clients_at_once() {
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit {
            current: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum,
            ..rustix::process::getrlimit(rustix::process::Resource::Nofile)
        },
    )
    .expect("the soft limit may go up to the hard one");
    // The last row answers who finds no other (PROTOCOL.md 2.2).
    let mut server = large_driver(0, 1001, Duration::from_secs(2));
    let mut client = large_driver(1, 1000, Duration::from_secs(2));
    let (_, at) = listen(&mut server, "127.0.0.1:0");
    let free = [&server, &client].map(|side| side.endpoint().free_rows());
    let before = descriptors();
    for user in 0..1000 {
        dial(&mut client, at, user % 2 == 0, user);
    }
    let (mut up, mut answers, mut closed) = (0, 0, 0);
    let mut connections = Vec::new();
    run(&mut server, &mut client, |is_server, side, event| {
        match event {
            _ if is_server => echo(side, event),
            Event::Established { connection, .. } => {
                connections.push(connection);
                up += 1;
                if up == 1000 {
                    for connection in &connections {
                        request(side, *connection, b"all together", 1);
                    }
                }
            }
            Event::Response { task, .. } => {
                side.release(task).expect("ours");
                answers += 1;
                if answers == 1000 {
                    for connection in &connections {
                        side.close(*connection).expect("open");
                    }
                }
            }
            Event::Closed { reason, .. } => {
                assert_eq!(reason, Reason::Closed);
                closed += 1;
            }
            Event::SessionClosed { .. } => {}
            other => panic!("{other:?}"),
        }
        closed == 1000
    });
    assert_eq!(server.stats().accepted, 1500);
    run_until(&mut server, &mut client, |server, client| {
        [server, client].map(|side| side.endpoint().free_rows()) == free
    });
    assert_eq!(descriptors(), before);
}

/// Resident memory in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let figure = line.and_then(|line| line.split_whitespace().nth(1));
    figure.and_then(|kib| kib.parse().ok()).expect("a figure")
}

/// Connects and closes 10,000 times; descriptors, rows and memory are back.
#[test]
fn ten_thousand_come_and_go() {
    let mut server = large_driver(0, 4096, Duration::from_secs(1));
    let mut client = large_driver(1, 4096, Duration::from_secs(1));
    let (_, at) = listen(&mut server, "127.0.0.1:0");
    let free = [&server, &client].map(|side| side.endpoint().free_rows());
    let before = descriptors();
    let (mut opened, mut closed, mut memory) = (0, 0, 0);
    while closed < 10_000 {
        for _ in 0..50 {
            dial(&mut client, at, opened % 2 == 0, opened);
            opened += 1;
        }
        run(&mut server, &mut client, |is_server, side, event| {
            match event {
                _ if is_server => echo(side, event),
                Event::Established { connection, .. } => side.close(connection).expect("open"),
                Event::Closed { reason, .. } => {
                    assert_eq!(reason, Reason::Closed);
                    closed += 1;
                }
                Event::SessionClosed { .. } => {}
                other => panic!("{other:?}"),
            }
            closed == opened
        });
        let every = closed == 5000 || closed == 10_000;
        run_until(&mut server, &mut client, |server, client| {
            let rows = [server, client].map(|side| side.endpoint().free_rows());
            // Idle transport connections linger; a few may, but in the end none.
            rows == free || (!every && rows.iter().all(|rows| rows.nexuses > 100))
        });
        if every {
            assert_eq!(descriptors(), before, "after {closed}");
        }
        // By then every row of the tables was in use once, and has what it keeps.
        if closed == 5000 {
            memory = resident();
        }
    }
    let grown = resident().saturating_sub(memory);
    assert!(grown < 1024, "{grown} KiB more than after the first half");
}

/// The other process of [`a_peer_stops_and_is_killed`]: serves until it is killed.
fn serve_forever() {
    let mut server = driver(0, Options::default());
    let (_, at) = listen(&mut server, "127.0.0.1:0");
    println!("PORT {}", at.port());
    loop {
        while let Some(event) = server.next_event() {
            echo(&mut server, event);
        }
        server.poll(None).expect("polls");
    }
}

/// Ends the other process whatever happens.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server_process() -> (Child, SocketAddr) {
    use std::io::{BufRead, BufReader};
    let program = std::env::current_exe().expect("a program");
    let mut child = std::process::Command::new(program)
        .args(["a_peer_stops_and_is_killed", "--exact", "--nocapture"])
        .env("XIO_TEST_SERVER", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let child = Child(child);
    let port = out.lines().find_map(|line| {
        let line = line.ok()?;
        line.split_once("PORT ")?.1.trim().parse::<u16>().ok()
    });
    let at = SocketAddr::from(([127, 0, 0, 1], port.expect("it says where")));
    (child, at)
}

/// Stops a child, and waits until all its threads have heard of it.
fn stop(pid: rustix::process::Pid) {
    use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
    kill_process(pid, Signal::STOP).expect("a child");
    let status = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child");
    assert!(status.is_some_and(|(_, status)| status.stopped()));
}

/// A peer that stops for longer than a message's deadline, and then is no more.
#[test]
fn a_peer_stops_and_is_killed() {
    if std::env::var_os("XIO_TEST_SERVER").is_some() {
        serve_forever();
    }
    let (mut child, at) = server_process();
    let mut client = driver(1, Options::default());
    let free = client.endpoint().free_rows();
    let connection = connect(&mut client, at, true);
    let (mut sent, mut answers, mut late, mut failed, mut closed) = (0, 0, 0, 0, false);
    let until = Instant::now() + Duration::from_secs(20);
    let pid = rustix::process::Pid::from_raw(child.0.id() as i32).expect("a process");
    while !closed {
        while let Some(event) = client.next_event() {
            match event {
                Event::Established { .. } => {
                    request(&mut client, connection, b"first", 0);
                    sent += 1;
                }
                Event::Response { task, .. } => {
                    client.release(task).expect("ours");
                    answers += 1;
                    stop(pid);
                    for user in 0..10 {
                        sent += 1;
                        request_by(&mut client, connection, user);
                    }
                }
                Event::TimedOut { .. } => {
                    late += 1;
                    if late == 10 {
                        request(&mut client, connection, b"last", 0);
                        sent += 1;
                        child.0.kill().expect("a child");
                    }
                }
                Event::Failed { .. } => failed += 1,
                Event::SessionClosed { .. } => {}
                Event::Closed { reason, .. } => {
                    assert_eq!(reason, Reason::Disconnected);
                    closed = true;
                }
                other => panic!("{other:?}"),
            }
        }
        client.poll(Some(Duration::from_secs(1))).expect("polls");
        assert!(Instant::now() < until, "{answers} {late} {failed}");
    }
    assert_eq!((answers, late, failed), (1, 10, 1));
    assert_eq!(sent, answers + late + failed);
    while client.endpoint().free_rows() != free {
        while client.next_event().is_some() {}
        client.poll(Some(Duration::from_secs(1))).expect("polls");
        assert!(
            Instant::now() < until,
            "{:?}",
            client.endpoint().free_rows()
        );
    }
    assert_eq!(client.stats().open, 0);
}

fn request_by(client: &mut TcpDriver, connection: xio_proto::ConnectionId, user: u64) {
    let deadline = client.now().after(Duration::from_millis(100));
    let message = xio_proto::Message {
        user,
        ..xio_proto::Message::default()
    };
    let options = xio_proto::RequestOptions {
        deadline: Some(deadline),
        ..xio_proto::RequestOptions::default()
    };
    client.send(connection, &message, &options).expect("room");
}

/// No call of a waker is lost, whenever it comes, and poll does not return without a reason.
#[test]
fn wakers_are_heard() {
    let mut side = driver(0, Options::default());
    let (waker, count) = (side.waker(), std::sync::Arc::new(AtomicUsize::new(0)));
    let shared = std::sync::Arc::clone(&count);
    let thread = std::thread::spawn(move || {
        for round in 1..=2000 {
            shared.store(round, Ordering::Release);
            waker.wake();
            // The next call comes when this one was heard: at once, or while the driver sleeps.
            while shared.load(Ordering::Acquire) == round {
                std::thread::yield_now();
            }
        }
    });
    let mut heard = 0;
    while heard < 2000 {
        side.poll(None).expect("polls");
        let round = count.load(Ordering::Acquire);
        if round == heard + 1 {
            heard = round;
            count.store(usize::MAX, Ordering::Release);
        }
    }
    thread.join().expect("ends");
    assert!(side.stats().waits < 100_000, "{:?}", side.stats());
}

/// In one poll nobody has more than a turn.
#[test]
fn a_busy_peer_takes_no_more_than_its_turn() {
    let options = Options {
        read_budget: 20_000,
        staging: 4096,
        ..Options::default()
    };
    let mut server = driver(0, options);
    let mut client = driver(1, Options::default());
    let (_, at) = listen(&mut server, "127.0.0.1:0");
    let connection = connect(&mut client, at, false);
    let mut up = false;
    run(&mut server, &mut client, |is_server, side, event| {
        match event {
            _ if is_server => echo(side, event),
            Event::Established { .. } => up = true,
            other => panic!("{other:?}"),
        }
        up
    });
    let buffer = client.allocate(8 << 20).expect("memory");
    let data = [client.segment(buffer, 0..8 << 20).expect("inside")];
    let message = xio_proto::Message {
        data: &data,
        ..xio_proto::Message::default()
    };
    let options = xio_proto::RequestOptions::default();
    client
        .send(connection, &message, &options)
        .expect("room for one");
    let room = server.allocate(8 << 20).expect("memory");
    let into = server.segment(room, 0..8 << 20).expect("inside");
    let mut arrived = false;
    while !arrived {
        client.poll(Some(Duration::ZERO)).expect("polls");
        let before = server.stats().bytes_read;
        server.poll(Some(Duration::ZERO)).expect("polls");
        let read = server.stats().bytes_read - before;
        // The turn's budget, what is read ahead behind a payload, and one small piece.
        assert!(read <= 20_000 + 4096 + 2048, "{read}");
        while let Some(event) = server.next_event() {
            match event {
                Event::PayloadWaiting { task, .. } => {
                    server.provide(task, &[into]).expect("waits");
                }
                Event::Request { .. } => arrived = true,
                other => panic!("{other:?}"),
            }
        }
    }
}
