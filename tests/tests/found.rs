//! What fuzzing with arbitrary operations and simulated worlds found, one test for each.

use xio_proto::{
    CmEvent, CmKind, Config, ConnectOptions, ConnectionId, Event, Failure, ListenOptions, Message,
    Reason, RequestOptions, SessionOpen, Step,
};
use xio_tests::pair::{Pair, SERVER};
use xio_tests::talk::{Say, Talk};

/// Starts a connection.
fn dial(pair: &mut Pair) -> ConnectionId {
    let open = SessionOpen {
        uri: "rdma://10.0.0.2:7000/res",
        private: b"",
    };
    let side = &mut pair.sides[0];
    side.endpoint
        .connect(
            pair.now,
            side.transport,
            SERVER.parse().expect("an address"),
            &open,
            &ConnectOptions::new(5),
            &mut side.slots,
        )
        .expect("room")
}

/// Two endpoints with a connection between them.
fn connected() -> (Pair, [ConnectionId; 2]) {
    let config = |i| Config::new(i, 64, 32);
    let mut pair = Pair::rdma(config, &Pair::counts(&config(0)));
    pair.listen(1);
    let client = dial(&mut pair);
    pair.run();
    let Some(Event::SessionRequest { session, .. }) = pair.sides[1].events.pop_front() else {
        panic!("nobody asked")
    };
    let side = &mut pair.sides[1];
    let server = side
        .endpoint
        .accept(pair.now, session, 6, &[], b"", &mut side.slots)
        .expect("asked");
    pair.run();
    for side in &mut pair.sides {
        assert!(matches!(
            side.events.pop_front(),
            Some(Event::Established { .. })
        ));
    }
    (pair, [client, server])
}

/// Takes a side's device away, with all that follows from it.
fn remove_device(pair: &mut Pair, i: usize) {
    let (now, nexus) = (pair.now, pair.nexus(i));
    let event = CmEvent::plain(CmKind::DeviceRemoval);
    pair.sides[i].endpoint.handle_cm(now, nexus, event);
    pair.run();
}

/// Releasing a row twice broke the table of listeners.
#[test]
fn a_listener_that_failed_and_is_given_up_at_once_is_given_back_once() {
    let config = |i| Config::new(i, 64, 32);
    let mut pair = Pair::rdma(config, &Pair::counts(&config(0)));
    let now = pair.now;
    let side = &mut pair.sides[0];
    let options = ListenOptions {
        user: 3,
        backlog: 1,
    };
    let address = SERVER.parse().expect("an address");
    for _ in 0..5 {
        // Table of two.
        let mut listen = || side.endpoint.listen(side.transport, address, &options);
        let (first, second) = (listen().expect("room"), listen().expect("room"));
        assert!(listen().is_err(), "three listeners in a table of two");
        while side.endpoint.poll_control(side.transport).is_some() {}
        side.endpoint.handle_listen_failed(now, first, 98);
        assert_eq!(side.endpoint.unlisten(first), Ok(()));
        assert_eq!(side.endpoint.poll_event(), None, "nobody wants to know");
        assert_eq!(side.endpoint.poll_control(side.transport), None);
        // The other order: the driver's word comes too late.
        assert_eq!(side.endpoint.unlisten(second), Ok(()));
        side.endpoint.handle_listen_failed(now, second, 98);
        assert_eq!(side.endpoint.poll_event(), None);
        assert!(side.endpoint.poll_control(side.transport).is_some());
        assert_eq!(side.endpoint.poll_control(side.transport), None);
    }
}

/// The receipt that the answer would have carried was queued when the answer's failure was
/// heard: on a connection that was over, where it stayed for ever.
#[test]
fn an_answer_that_never_left_owes_no_receipt() {
    let (mut pair, [client, _]) = connected();
    let free = pair.sides[1].endpoint.free_rows();
    let options = RequestOptions {
        receipt: true,
        ..RequestOptions::default()
    };
    // The receipt of a request that the user knows of is due at once: hold the frames back.
    pair.sides[1].deaf = true;
    let endpoint = &mut pair.sides[0].endpoint;
    endpoint
        .send(client, &Message::default(), &options)
        .expect("room");
    pair.run();
    let Some(Event::Request { task, .. }) = pair.sides[1].endpoint.poll_event() else {
        panic!("no request")
    };
    let answer = Message::default();
    assert_eq!(pair.sides[1].endpoint.respond(task, &answer), Ok(()));
    pair.sides[1].deaf = false;
    remove_device(&mut pair, 1);
    let events: Vec<_> = pair.sides[1].events.drain(..).collect();
    let failure = Failure::NeverSent(Reason::DeviceRemoved);
    assert!(
        matches!(events[..], [Event::Failed { failure: f, .. }, Event::Closed { .. }, ..] if f == failure),
        "{events:?}"
    );
    assert_eq!(pair.sides[1].endpoint.free_rows().rx_slots, 64);
    assert_eq!(pair.sides[1].endpoint.free_rows().tx_slots, free.tx_slots);
}

/// The slot of a message whose outcome nobody had heard was still counted to the transport
/// connection when that was gone, and so to the next one with its place.
#[test]
fn unheard_outcomes_do_not_count_to_the_next_transport_connection() {
    let (mut pair, [client, _]) = connected();
    let endpoint = &mut pair.sides[0].endpoint;
    endpoint
        .send(client, &Message::default(), &RequestOptions::default())
        .expect("room");
    pair.run();
    let Some(Event::Request { task, .. }) = pair.sides[1].events.pop_front() else {
        panic!("no request")
    };
    let answer = Message::default();
    pair.sides[1].deaf = true;
    assert_eq!(pair.sides[1].endpoint.respond(task, &answer), Ok(()));
    remove_device(&mut pair, 1);
    let free = pair.sides[1].endpoint.free_rows();
    assert_eq!(free.nexuses, 8, "the transport connection is gone");
    assert_eq!(free.rx_slots, 63, "the message is not");
    // Invariants are checked after each step of this.
    dial(&mut pair);
    pair.run();
    assert_eq!(pair.sides[1].endpoint.free_rows().nexuses, 7);
    pair.sides[1].deaf = false;
    pair.run();
    let failed = |event: &Event| matches!(event, Event::Failed { task: t, .. } if *t == task);
    let heard = pair.sides[1].events.iter().filter(|event| failed(event));
    assert_eq!(heard.count(), 1);
}

/// The receives of both sides were full of requests, and none had credits left for an answer.
#[test]
fn requests_leave_credits_for_the_answers() {
    for min_grant in [5, 6, 8] {
        let config = |i| {
            let mut config = Config::new(i, 24, 128);
            config.min_grant = min_grant;
            config.rq_depth = 16;
            config
        };
        let mut pair = Pair::rdma(config, &Pair::counts(&config(0)));
        pair.listen(1);
        let mut talk = Talk::open(&mut pair, false);
        talk.keep = [true, true];
        for user in 0..30 {
            talk.say(&mut pair, 0, &Say::request(user));
            talk.say(&mut pair, 1, &Say::request(user));
        }
        talk.settle(&mut pair);
        let held = talk.kept.each_ref().map(Vec::len);
        assert!(held.iter().all(|&held| held > 0 && held < 30), "{held:?}");
        talk.let_go(&mut pair, 0);
        talk.let_go(&mut pair, 1);
        let answered = [0, 1].map(|i| talk.count(i, "response"));
        assert_eq!(answered, [30, 30], "{min_grant}: {:#?}", talk.heard);
    }
}

/// A connection that its user had aborted, and that was still there for what the peer might READ,
/// answered keepalives: the peer waited on it for ever.
#[test]
fn an_aborted_connection_is_dead_to_the_peer() {
    let (mut pair, [client, server]) = connected();
    dial(&mut pair);
    pair.run();
    let Some(Event::SessionRequest { session, .. }) = pair.sides[1].events.pop_front() else {
        panic!("nobody asked")
    };
    let (now, side) = (pair.now, &mut pair.sides[1]);
    let other = side
        .endpoint
        .accept(now, session, 7, &[], b"", &mut side.slots);
    let other = other.expect("asked");
    pair.run();
    side_offers(&mut pair, server);
    pair.sides.iter_mut().for_each(|side| side.events.clear());
    let now = pair.now;
    assert_eq!(pair.sides[1].endpoint.abort(now, server), Ok(()));
    pair.run();
    assert_eq!(
        pair.sides[0].endpoint.free_rows().nexuses,
        7,
        "one for both"
    );
    let closed = |event: &Event| match *event {
        Event::Closed {
            connection, reason, ..
        } => Some((connection, reason)),
        _ => None,
    };
    while pair.sides[0].events.iter().find_map(closed).is_none() {
        assert!(pair.advance(), "nothing more happens");
    }
    let heard = pair.sides[0].events.iter().find_map(closed);
    assert_eq!(heard, Some((client, Reason::TimedOut(Step::Keepalive))));
    assert!(
        pair.sides[1].endpoint.info(other).is_ok(),
        "the other lives"
    );
}

/// A request whose data the peer is to READ, and does not yet.
fn side_offers(pair: &mut Pair, connection: ConnectionId) {
    let side = &mut pair.sides[1];
    side.memory.resize(50_000, 1);
    let data = [side.segment(0, 50_000)];
    let message = Message {
        data: &data,
        ..Message::default()
    };
    let sent = side
        .endpoint
        .send(connection, &message, &RequestOptions::default());
    sent.expect("room");
    pair.run();
}
