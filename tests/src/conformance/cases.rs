//! Messages and sessions that go well.

use xio_proto::driver::Driver;
use xio_proto::{Reason, Receipt};

use super::party::{Ask, Decide, Heard, Pair, Pay};

/// Private data of both sides, and the URI.
pub fn private_data_goes_both_ways<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let uri = format!("tcp://{}/resource", pair.at).into_bytes();
    let asked = Heard::Session(uri, b"from the client".to_vec());
    assert_eq!(pair.server.heard[0], asked);
    assert_eq!(pair.client.heard[0], Heard::Up(b"from the server".to_vec()));
    pair.close();
}

/// A rejection, with code and private data.
pub fn a_session_is_rejected_with_a_reason<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.server.decide = [Decide::Reject(77, b"no".to_vec())].into();
    pair.dial(pair.at);
    pair.end();
    let (reason, private) = (Reason::Rejected(77), b"no".to_vec());
    assert_eq!(pair.client.heard[0], Heard::NotMade(reason, private));
    assert_eq!(pair.client.heard[1], Heard::Closed(reason, 0));
}

/// A redirection, to the address that redirects, which then accepts.
pub fn a_session_is_redirected<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    let there = format!("tcp://{}", pair.at);
    let there = if pair.client.driver.limits().dialect == xio_proto::wire::Dialect::Rdma {
        there.replace("tcp:", "rdma:")
    } else {
        there
    };
    pair.server.decide = [Decide::Redirect(there), Decide::Accept(b"here".to_vec())].into();
    pair.open();
    assert_eq!(pair.client.heard[0], Heard::Up(b"here".to_vec()));
    let sessions = pair.server.count(|h| matches!(h, Heard::Session(..)));
    assert_eq!(sessions, 2);
    pair.client.ask(&Ask::request(1, 10, 10));
    pair.run("an answer", |p| {
        p.client.heard.contains(&Heard::Response(1))
    });
    pair.close();
}

/// Requests and answers of 0 bytes to 1 MiB, wherever they travel, with the right bytes.
pub fn all_sizes_arrive_whole<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let sizes = [
        0,
        1,
        64,
        255,
        256,
        4096,
        8192,
        8193,
        9216,
        65_536,
        1 << 20,
        (1 << 20) + 1,
    ];
    let mut user = 0;
    for size in sizes {
        for (len, reply) in [(size, 16), (16, size), (size, size)] {
            user += 1;
            pair.client.ask(&Ask::request(user, len, reply));
            let answer = Heard::Response(user);
            pair.run("an answer", |p| p.client.heard.contains(&answer));
        }
    }
    pair.close();
}

/// The largest: 64 MiB each way.
pub fn the_largest_arrive_whole<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    for (user, len, reply) in [(1, 64 << 20, 1), (2, 1, 64 << 20)] {
        pair.client.ask(&Ask::request(user, len, reply));
        let answer = Heard::Response(user);
        pair.run("a large answer", |p| p.client.heard.contains(&answer));
    }
    pair.close();
}

/// Large requests and large answers that meet on the wire.
pub fn large_data_goes_both_ways_at_once<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    for user in 1..=8 {
        pair.client.ask(&Ask::request(user, 3 << 20, 3 << 20));
        pair.server.ask(&Ask::request(100 + user, 3 << 20, 3 << 20));
    }
    pair.run("all answers", |p| {
        let all = |party: &super::Party<D>| party.count(|h| matches!(h, Heard::Response(_)));
        all(&p.client) == 8 && all(&p.server) == 8
    });
    pair.close();
}

/// One-ways of all kinds, in the order in which they were sent.
pub fn one_way_messages_arrive_in_order<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    for user in 1..=30 {
        let len = [10, 5000, 20_000][user as usize % 3];
        pair.client.ask(&Ask::one_way(user, len));
    }
    pair.run("all of them", |p| {
        p.server.heard.contains(&Heard::OneWay(30))
    });
    let order: Vec<_> = (1..=30).map(Heard::OneWay).collect();
    let heard = pair.server.heard.iter();
    let heard: Vec<_> = heard
        .filter(|h| matches!(h, Heard::OneWay(_)))
        .cloned()
        .collect();
    assert_eq!(heard, order);
    pair.close();
    // Data that went outside the frame is always receipted (PROTOCOL.md 9).
    let ends = |h: &Heard| matches!(h, Heard::Sent(_) | Heard::Delivered(..));
    assert_eq!(pair.client.count(ends), 30);
}

/// Read receipts, of one-ways and of requests.
pub fn receipts_come_back<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let receipt = |ask: Ask| Ask {
        receipt: true,
        ..ask
    };
    pair.client.ask(&receipt(Ask::one_way(1, 10)));
    pair.client.ask(&receipt(Ask::one_way(2, 30_000)));
    pair.server.keep = true;
    pair.client.ask(&receipt(Ask::request(3, 10, 10)));
    let accepted = |user| Heard::Delivered(user, Receipt::Accepted);
    pair.run("three receipts", |p| p.client.heard.contains(&accepted(3)));
    assert!(pair.client.heard.contains(&accepted(1)));
    assert!(pair.client.heard.contains(&accepted(2)));
    assert!(!pair.client.heard.contains(&Heard::Response(3)));
    pair.server.answer_kept();
    pair.run("the answer", |p| {
        p.client.heard.contains(&Heard::Response(3))
    });
    pair.close();
}

/// The accepting side asks, the connecting one answers.
pub fn a_server_asks_its_client<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    for user in 1..=20 {
        let len = [0, 100, 9000, 100_000][user as usize % 4];
        pair.server.ask(&Ask::request(user, len, len));
        pair.client.ask(&Ask::request(user, 100, 100));
    }
    pair.run("all answers", |p| {
        p.server.heard.contains(&Heard::Response(20))
            && p.client.heard.contains(&Heard::Response(20))
    });
    pair.close();
}

/// Many requests under way at once, of both sides; each has one answer, in order.
pub fn many_messages_are_under_way<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let mut sent = 0;
    while sent < 2000 || pair.client.count(|h| matches!(h, Heard::Response(_))) < 2000 {
        while sent < 2000 {
            let len = (sent as usize * 37) % 1000;
            if pair
                .client
                .try_ask(&Ask::request(sent, len, 999 - len))
                .is_err()
            {
                break;
            }
            sent += 1;
        }
        pair.step();
    }
    let answers: Vec<_> = (0..2000).map(Heard::Response).collect();
    let heard = pair.client.heard.iter();
    let heard: Vec<_> = heard
        .filter(|h| matches!(h, Heard::Response(_)))
        .cloned()
        .collect();
    assert_eq!(heard, answers);
    pair.close();
}

/// Two sessions to one address have one transport connection, and end each by itself.
pub fn sessions_share_a_transport_connection<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.open();
    let first = pair.client.connection;
    let before = pair.client.driver.look(|e| e.free_rows().nexuses);
    pair.dial(pair.at);
    pair.run("another connection", |p| {
        p.client.count(|h| matches!(h, Heard::Up(_))) == 2
    });
    let after = pair.client.driver.look(|e| e.free_rows().nexuses);
    assert_eq!(before, after);
    pair.client.ask(&Ask::request(1, 100, 100));
    pair.client.connection = first;
    pair.client.ask(&Ask::request(2, 100, 100));
    pair.run("two answers", |p| {
        p.client.count(|h| matches!(h, Heard::Response(_))) == 2
    });
    let close = |pair: &mut Pair<D>, connection| {
        let connection: Option<xio_proto::ConnectionId> = connection;
        let done = pair.client.driver.close(connection.expect("one"));
        done.expect("open");
    };
    let second = pair.client.heard.len();
    assert!(second > 0);
    close(&mut pair, first);
    pair.run("one is closed", |p| {
        p.client.count(|h| matches!(h, Heard::Closed(..))) == 1
            && p.server.count(|h| matches!(h, Heard::Closed(..))) == 1
    });
}

/// Large requests that find their memory in a pool, which is smaller than all of them.
pub fn payloads_go_into_the_pool<D: Driver>(make: &mut impl FnMut() -> Pair<D>) {
    let mut pair = make();
    pair.server.pay = Pay::Pool(4 << 20);
    pair.server.driver.add_pool(65_536, 64).expect("memory");
    pair.open();
    for user in 1..=20 {
        pair.client.ask(&Ask::request(user, 700_000, 10));
    }
    pair.run("all answers", |p| {
        p.client.heard.contains(&Heard::Response(20))
    });
    let answers = pair.client.count(|h| matches!(h, Heard::Response(_)));
    assert_eq!(answers, 20);
    pair.close();
}
