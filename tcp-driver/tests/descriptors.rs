//! The process runs out of descriptors. Alone in its process, as the limit is the process's.
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{connect, driver, echo, listen, run};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xio_proto::Event;
use xio_tcp::{Driver, Options};

#[test]
fn accepting_pauses_and_goes_on() {
    let mut server = driver(0, Options::default());
    let mut client = driver(1, Options::default());
    let (_, at) = listen(&mut server, "127.0.0.1:0");
    let mut waiting: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(at).expect("in the backlog"))
        .collect();
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some(64),
        ..before
    };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - 5);

    let begun = Instant::now();
    while server.stats().accept_pauses < 4 {
        server.poll(Some(Duration::from_millis(50))).expect("polls");
        assert!(begun.elapsed() < Duration::from_secs(20), "it tries again");
    }
    assert_eq!(server.stats().accepted, 5);
    // It tries again after 100 ms each, and sleeps in between.
    let (stats, most) = (
        *server.stats(),
        begun.elapsed().as_millis() as u64 / 100 + 1,
    );
    assert!(stats.accept_pauses <= most, "{stats:?}");
    assert!(stats.waits < 10 * most, "{stats:?}");

    // Two of the process's descriptors become free elsewhere: two more come in.
    waiting.truncate(18);
    let until = Instant::now() + Duration::from_secs(5);
    while server.stats().accepted < 7 {
        server.poll(Some(Duration::from_millis(50))).expect("polls");
        assert!(Instant::now() < until, "{:?}", server.stats());
    }
    assert_eq!(server.stats().accepted, 7);
    setrlimit(Resource::Nofile, before).expect("the old limit");
    while server.stats().accepted < 20 {
        server.poll(Some(Duration::from_millis(50))).expect("polls");
        assert!(Instant::now() < until, "{:?}", server.stats());
    }
    // The listener has lived through it.
    connect(&mut client, at, true);
    let mut up = false;
    run(&mut server, &mut client, |is_server, side, event| {
        match event {
            _ if is_server => echo(side, event),
            Event::Established { .. } => up = true,
            other => panic!("{other:?}"),
        }
        up
    });
}
