//! The shortest conversations over real sockets.

mod common;

use std::time::Duration;

use common::{connect, driver, echo, listen, request, run};
use xio_proto::{Config, ConnectionPolicy, Event, Message, Reason, RequestOptions};
use xio_tcp::{Driver, Options, TcpDriver};

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
fn deadlines_count_from_the_command() {
    const MOST: Duration = Duration::from_secs(5);
    let mut server = driver(0, Options::default());
    let mut config = Config::new(1, 160, 160);
    config.policy = ConnectionPolicy {
        deadline: Some(MOST),
        ..ConnectionPolicy::ASK
    };
    let counts = TcpDriver::counts(&config, 8);
    let mut client = TcpDriver::new(config, &counts, Options::default()).expect("they work");
    let (_, at) = listen(&mut server, "127.0.0.1:0");
    let connection = connect(&mut client, at, false);
    let established = |is_server: bool, side: &mut TcpDriver, event| match event {
        Event::Established { .. } if !is_server => true,
        other => {
            echo(side, other);
            false
        }
    };
    run(&mut server, &mut client, established);
    for own in [false, true] {
        // Nothing came to the client for longer than a message of its may take.
        let now = client.now().after(2 * MOST);
        client.hold_time(now);
        let options = RequestOptions {
            deadline: own.then(|| now.after(MOST)),
            ..RequestOptions::default()
        };
        let message = Message {
            user: 7,
            ..Message::default()
        };
        client.send(connection, &message, &options).expect("room");
        let mut asked = 0;
        run(&mut server, &mut client, |is_server, side, event| {
            match event {
                Event::Request { task, .. } => {
                    let due = side.look(|endpoint| endpoint.deadline_of(task));
                    let due = due.expect("known").expect("it has one");
                    assert!(due <= side.now().after(MOST), "{due:?}");
                    asked += 1;
                }
                Event::Response { task, user: 7, .. } => {
                    side.release(task).expect("ours");
                    return true;
                }
                _ => assert!(is_server, "{event:?}"),
            }
            if is_server {
                echo(side, event);
            }
            false
        });
        assert_eq!(asked, 1);
    }
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
