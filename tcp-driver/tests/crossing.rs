//! Two endpoints call each other at once over real sockets, and get one connection (PROTOCOL.md 8.8).

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{echo, listen, request, run};
use xio_proto::wire::wire_identity;
use xio_proto::{CommandError, Config, ConnectOptions, ConnectionId, Event, Existing, SessionOpen};
use xio_tcp::{Driver, Options, TcpDriver};

/// What every endpoint of this program is.
const PROGRAM: u64 = 77;
const ROUNDS: usize = 200;

fn driver(number: u8) -> TcpDriver {
    let config = Config {
        identity: PROGRAM,
        ..Config::new(number, 160, 160)
    };
    let counts = TcpDriver::counts(&config, 8);
    TcpDriver::new(config, &counts, Options::default()).expect("settings that work")
}

/// Calls the other; nothing if that one has called first.
fn call(from: &mut TcpDriver, peer: SocketAddr, number: u8, dual: bool) -> Option<ConnectionId> {
    let uri = format!("tcp://{peer}/test");
    let open = SessionOpen {
        uri: &uri,
        private: b"",
    };
    let options = ConnectOptions {
        dual_stream: dual,
        only_with: Some(wire_identity(PROGRAM, number)),
        ..ConnectOptions::new(1)
    };
    match from.connect(peer, &open, &options) {
        Ok(connection) => Some(connection),
        Err(CommandError::Exists(Existing::Session(_) | Existing::Connection(_))) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A round; returns whether both sides had called before they heard of each other.
fn round(sides: &mut [TcpDriver; 2], at: [SocketAddr; 2], number: usize) -> bool {
    let (first, dual) = (number % 2, (number / 2).is_multiple_of(2));
    let mut mine = [None; 2];
    mine[first] = call(&mut sides[first], at[1 - first], 1 - first as u8, dual);
    // The other calls at once, or while the first is at any of its steps.
    for _ in 0..number % 9 {
        for side in &mut *sides {
            side.poll(Some(Duration::ZERO)).expect("polls");
        }
    }
    mine[1 - first] = call(&mut sides[1 - first], at[first], first as u8, dual);
    let both = mine.iter().all(Option::is_some);
    for (side, connection) in sides.iter_mut().zip(mine) {
        if let Some(connection) = connection {
            request(side, connection, b"ask", 1);
        }
    }
    let expected = mine.iter().flatten().count();
    let (mut up, mut answers) = ([0; 2], 0);
    let [a, b] = sides;
    run(a, b, |is_first, side, event| {
        let i = usize::from(!is_first);
        match event {
            Event::Established { connection, .. } => {
                up[i] += 1;
                assert!(mine[i].is_none_or(|own| own == connection));
                mine[i] = Some(connection);
            }
            Event::Response { task, .. } => {
                answers += 1;
                side.release(task).expect("held");
            }
            Event::ConnectFailed { reason, .. } => panic!("round {number}: {reason}"),
            Event::Failed { failure, .. } => panic!("round {number}: {failure}"),
            event => echo(side, event),
        }
        up == [1, 1] && answers == expected
    });
    let own = mine[first].expect("it is up");
    sides[first].close(own).expect("known");
    let mut closed = 0;
    let [a, b] = sides;
    run(a, b, |_, side, event| {
        match event {
            Event::Closed { .. } => closed += 1,
            Event::Established { .. } => panic!("round {number}: a second one"),
            event => echo(side, event),
        }
        closed == 2
    });
    both
}

#[test]
fn two_that_call_each_other_over_sockets_get_one_connection() {
    let mut sides = [driver(0), driver(1)];
    let mut places = sides.iter_mut().map(|side| listen(side, "127.0.0.1:0").1);
    let at = [places.next().expect("two"), places.next().expect("two")];
    drop(places);
    let mut both = 0;
    for number in 0..ROUNDS {
        both += usize::from(round(&mut sides, at, number));
    }
    assert!(both > ROUNDS / 4, "{both} of {ROUNDS} crossed");
}
