//! What goes wrong, and how connections end.

use std::net::SocketAddr;
use std::time::Duration;

use xio_proto::driver::{BufferError, Driver};
use xio_proto::{CommandError, Failure, Message, Reason, RequestOptions, Segment};

use super::party::{Ask, Heard, Pair, Pay};

/// A port that nobody listens on.
pub fn nobody_listens_there<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    // The port of discard, which nobody has listened on for years.
    let nobody = SocketAddr::new(pair.at.ip(), 9);
    pair.dial(nobody);
    pair.run("it fails", |p| {
        p.client.count(|h| matches!(h, Heard::SessionClosed(_))) == 1
    });
    assert_eq!(
        pair.client.heard[0],
        Heard::NotMade(Reason::Refused, Vec::new())
    );
    pair.run("all is back", Pair::all_back);
}

/// A large request whose receiver does not want it; what follows is not disturbed.
pub fn a_payload_is_refused<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    pair.server.pay = Pay::Refuse(55);
    pair.client.ask(&Ask::request(1, 300_000, 10));
    pair.client.ask(&Ask::request(2, 10, 10));
    pair.run("both outcomes", |p| {
        p.client.heard.contains(&Heard::Response(2))
            && p.client
                .heard
                .contains(&Heard::Failed(1, Failure::PeerStatus(55)))
    });
    pair.server.pay = Pay::Provide;
    pair.client.ask(&Ask::request(3, 300_000, 10));
    pair.run("an answer", |p| {
        p.client.heard.contains(&Heard::Response(3))
    });
    pair.close();
}

/// A request whose answer takes too long; the answer is dropped when it comes.
pub fn a_deadline_passes<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    pair.server.keep = true;
    pair.client.ask(&Ask {
        deadline: Some(Duration::from_millis(20)),
        ..Ask::request(1, 10, 10)
    });
    pair.run("it is over", |p| {
        p.client.heard.contains(&Heard::TimedOut(1))
    });
    pair.server.keep = false;
    pair.server.answer_kept();
    pair.client.ask(&Ask::request(2, 10, 10));
    pair.run("an answer", |p| {
        p.client.heard.contains(&Heard::Response(2))
    });
    assert!(!pair.client.heard.contains(&Heard::Response(1)));
    assert_eq!(pair.client.driver.look(|e| e.counters().late), 1);
    pair.close();
}

/// A request that is given up.
pub fn a_message_is_cancelled<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    pair.server.keep = true;
    let task = pair.client.ask(&Ask::request(1, 10, 50_000));
    pair.run("it is there", |p| {
        p.server.heard.contains(&Heard::Request(1))
    });
    pair.client.driver.cancel(task).expect("under way");
    pair.run("it is over", |p| {
        p.client.heard.contains(&Heard::Cancelled(1))
    });
    pair.server.keep = false;
    pair.server.answer_kept();
    pair.client.ask(&Ask::request(2, 10, 10));
    pair.run("an answer", |p| {
        p.client.heard.contains(&Heard::Response(2))
    });
    pair.close();
}

/// What is queued is sent before the end.
pub fn a_client_closes<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    for user in 1..=10 {
        pair.client.ask(&Ask::one_way(user, 700 * user as usize));
    }
    pair.close();
    assert_eq!(pair.server.count(|h| matches!(h, Heard::OneWay(_))), 10);
    let closed = |h: &Heard| matches!(h, Heard::Closed(Reason::Closed, 0));
    assert_eq!(pair.client.count(closed), 1);
    let closed = |h: &Heard| matches!(h, Heard::Closed(Reason::PeerClosed, 0));
    assert_eq!(pair.server.count(closed), 1);
}

/// The same from the other side.
pub fn a_server_closes<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let connection = pair.server.connection.expect("one");
    pair.server.ask(&Ask::one_way(1, 2000));
    pair.server.driver.close(connection).expect("open");
    pair.end();
    assert!(pair.client.heard.contains(&Heard::OneWay(1)));
    assert!(
        pair.client
            .heard
            .contains(&Heard::Closed(Reason::PeerClosed, 0))
    );
    assert!(
        pair.server
            .heard
            .contains(&Heard::Closed(Reason::Closed, 0))
    );
}

/// Both at the same time.
pub fn both_close_at_once<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    for party in [&mut pair.server, &mut pair.client] {
        party.ask(&Ask::one_way(1, 100));
        let connection = party.connection.expect("one");
        party.driver.close(connection).expect("open");
    }
    pair.end();
    for party in [&pair.server, &pair.client] {
        assert_eq!(party.count(|h| matches!(h, Heard::Closed(..))), 1);
    }
}

/// The harsh end: every message has its outcome, on both sides.
pub fn a_connection_is_aborted<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    pair.server.keep = true;
    for user in 1..=5 {
        pair.client.ask(&Ask::request(user, 100, 100));
    }
    pair.run("they are there", |p| {
        p.server.heard.contains(&Heard::Request(5))
    });
    let connection = pair.client.connection.expect("one");
    pair.client.driver.abort(connection).expect("open");
    pair.run("both know", |p| {
        let over = |h: &Heard| matches!(h, Heard::SessionClosed(_));
        p.client.count(over) == 1 && p.server.count(over) == 1
    });
    let failed = |h: &Heard| {
        matches!(
            h,
            Heard::Failed(_, Failure::ConnectionEnded(Reason::Aborted))
        )
    };
    assert_eq!(pair.client.count(failed), 5);
    let closed = Heard::Closed(Reason::Disconnected, 5);
    assert!(
        pair.server.heard.contains(&closed),
        "{:?}",
        pair.server.heard
    );
    // They are still the user's, and can only be given back.
    pair.server.answer_kept();
    pair.run("all is back", Pair::all_back);
}

/// From the command to the outcome a buffer is the driver's.
pub fn a_buffer_in_flight_cannot_be_reached<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let client = &mut pair.client;
    let buffer = client.driver.allocate(100_000).expect("memory");
    let segment = client.driver.segment(buffer, 0..100_000).expect("inside");
    let connection = client.connection.expect("one");
    let slot = client.driver.reserve_slot(connection).expect("a slot");
    let header = client
        .driver
        .with_slot(slot, |room| room[..16].fill(0))
        .is_some();
    assert!(header);
    pair.server.pay = Pay::Refuse(1);
    let message = Message {
        slot: Some(slot),
        header_len: 16,
        data: &[segment],
        user: 9,
        ..Message::default()
    };
    let options = RequestOptions::default();
    client
        .driver
        .send(connection, &message, &options)
        .expect("room");
    let reached = client.driver.with_buffer(buffer, |_| ());
    assert_eq!(reached, Err(BufferError::InFlight(1)));
    assert_eq!(client.driver.free(buffer), Err(BufferError::InFlight(1)));
    // Neither can the slot.
    assert_eq!(client.driver.with_slot(slot, |_| ()), None);
    pair.run("its outcome", |p| {
        p.client.count(|h| matches!(h, Heard::Failed(9, _))) == 1
    });
    // What is half written is still in flight, but not for long.
    while pair.client.driver.with_buffer(buffer, |_| ()).is_err() {
        pair.step();
    }
    let client = &mut pair.client;
    client.driver.free(buffer).expect("back");
    assert_eq!(client.driver.free(buffer), Err(BufferError::Unknown));
    pair.close();
}

/// Segments that name no buffer of the driver's are refused, and nothing has changed.
pub fn memory_of_others_is_not_taken<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let client = &mut pair.client;
    let buffer = client.driver.allocate(1000).expect("memory");
    let good = client.driver.segment(buffer, 0..1000).expect("inside");
    let connection = client.connection.expect("one");
    let wrong = [
        Segment {
            addr: good.addr + 1,
            ..good
        },
        Segment { len: 1001, ..good },
        Segment {
            addr: 0x1000,
            ..good
        },
        Segment {
            addr: u64::MAX - 5,
            ..good
        },
    ];
    for segment in wrong {
        let message = Message {
            data: &[good, segment],
            ..Message::default()
        };
        let options = RequestOptions::default();
        let taken = client.driver.send(connection, &message, &options);
        assert_eq!(taken, Err(CommandError::BadAddress), "{segment:x?}");
    }
    let outside = client.driver.segment(buffer, 0..1001);
    assert_eq!(outside, Err(BufferError::Unknown));
    client.driver.free(buffer).expect("never lent");
    pair.close();
}
