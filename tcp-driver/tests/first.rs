//! The shortest conversations over real sockets.

mod common;

use common::{connect, driver, echo, listen, request, run};
use xio_proto::{Event, Reason};
use xio_tcp::{Driver, Options};

fn hello(address: &str, dual: bool) {
    let mut server = driver(0, Options::default());
    let mut client = driver(1, Options::default());
    let (listener, at) = listen(&mut server, address);
    let connection = connect(&mut client, at, dual);
    let (mut answers, mut closed) = (0, 0);
    run(&mut server, &mut client, |is_server, side, event| {
        match event {
            _ if is_server => {
                closed += u32::from(matches!(event, Event::Closed { .. }));
                echo(side, event);
            }
            Event::Established { .. } => {
                request(side, connection, b"hello", 7);
            }
            Event::Response {
                task, user, data, ..
            } => {
                assert_eq!(user, 7);
                side.with_data(data, |bytes| assert_eq!(bytes, b"hello"));
                side.release(task).expect("ours");
                answers += 1;
                side.close(connection).expect("open");
            }
            Event::Closed { reason, .. } => {
                assert_eq!(reason, Reason::Closed);
                closed += 1;
            }
            other => panic!("{other:?}"),
        }
        closed == 2
    });
    assert_eq!(answers, 1);
    assert_eq!(server.stats().accepted, if dual { 2 } else { 1 });
    server.unlisten(listener).expect("listens");
}

#[test]
fn one_request_over_one_stream_and_over_two() {
    hello("127.0.0.1:0", false);
    hello("127.0.0.1:0", true);
}

#[test]
fn one_request_over_ipv6() {
    hello("[::1]:0", false);
    hello("[::1]:0", true);
}

#[test]
fn nobody_listens() {
    let mut server = driver(0, Options::default());
    let mut client = driver(1, Options::default());
    let (listener, at) = listen(&mut server, "127.0.0.1:0");
    server.unlisten(listener).expect("listens");
    connect(&mut client, at, true);
    let mut failed = false;
    run(&mut server, &mut client, |_, _, event| match event {
        Event::ConnectFailed { reason, .. } => {
            assert_eq!(reason, Reason::Refused);
            failed = true;
            false
        }
        Event::Closed { .. } => true,
        other => panic!("{other:?}"),
    });
    assert!(failed);
}
