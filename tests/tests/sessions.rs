//! Further connections of a session, and what receipts say.

use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, Event, Message, Receipt, RequestOptions, SessionId,
    SessionOpen,
};
use xio_tests::pair::{Pair, SERVER};

/// Two sides with one connection of one session.
fn connected() -> (Pair, SessionId, ConnectionId) {
    let config = |i| xio_proto::Config::new(i, 700, 64);
    let counts = Pair::counts(&config(0));
    let mut pair = Pair::rdma(config, &counts);
    pair.listen(50);
    let side = &mut pair.sides[0];
    let open = SessionOpen {
        uri: "rdma://10.0.0.2:7000/res",
        private: b"",
    };
    let (peer, options) = (SERVER.parse().unwrap(), ConnectOptions::new(60));
    let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
    let client = endpoint
        .connect(pair.now, side.transport, peer, &open, &options, slots)
        .unwrap();
    pair.run();
    let side = &mut pair.sides[1];
    let Some(Event::SessionRequest { session, .. }) = side.events.pop_front() else {
        panic!()
    };
    side.endpoint
        .accept(pair.now, session, 70, &[], b"", &mut side.slots)
        .unwrap();
    pair.run();
    let Some(Event::Established { session, .. }) = pair.sides[0].events.pop_front() else {
        panic!()
    };
    assert!(matches!(
        pair.sides[1].events.pop_front(),
        Some(Event::Established { .. })
    ));
    (pair, session, client)
}

#[test]
fn a_client_opens_more_connections_of_a_session_by_itself() {
    let (mut pair, session, first) = connected();
    let side = &mut pair.sides[0];
    let options = ConnectOptions::new(61);
    let portal = SERVER.parse().unwrap();
    let second = side
        .endpoint
        .join(pair.now, session, side.transport, portal, &options)
        .unwrap();
    pair.run();
    // Frames name the session only, so the second connection needs a transport of its own.
    let nexus = |c| pair.sides[0].endpoint.info(c).unwrap().nexus;
    assert_ne!(nexus(first), nexus(second));
    for (side, user) in [(0, 61), (1, 70)] {
        let event = pair.sides[side].events.pop_front();
        assert!(matches!(event, Some(Event::Established { user: u, .. }) if u == user));
    }
    // The HELLO names the session by the id that the server gave it.
    let setup = |frames: &[Vec<u8>], word: u32| {
        let of = |frame: &&Vec<u8>| frame[4..8] == word.to_be_bytes();
        frames.iter().find(of).unwrap().clone()
    };
    let answer = setup(&pair.sides[1].sent, 0x104);
    let hello = setup(&pair.sides[0].sent, 0x202);
    assert_eq!(hello[16..20], answer[100..104]);
}

#[test]
fn a_receipt_says_what_the_receiver_s_user_thinks_of_the_message() {
    let (mut pair, _, client) = connected();
    let options = RequestOptions {
        receipt: true,
        ..RequestOptions::default()
    };
    let message = Message {
        user: 5,
        ..Message::default()
    };
    pair.sides[0]
        .endpoint
        .send_one_way(client, &message, &options)
        .unwrap();
    pair.sides[0]
        .endpoint
        .send(client, &message, &options)
        .unwrap();
    pair.sides[1].deaf = true;
    pair.run();
    let server = &mut pair.sides[1];
    let Some(Event::OneWay { task, .. }) = server.endpoint.poll_event() else {
        panic!()
    };
    server.endpoint.set_receipt(task, 7).unwrap();
    let Some(Event::Request { task: request, .. }) = server.endpoint.poll_event() else {
        panic!()
    };
    server.endpoint.set_receipt(request, 8).unwrap();
    server
        .endpoint
        .respond(request, &Message::default())
        .unwrap();
    pair.run();
    let late = pair.sides[1].endpoint.set_receipt(task, 9);
    assert!(matches!(late, Err(CommandError::WrongState(_))));
    pair.sides[1].endpoint.release(task).unwrap();
    let mut said = Vec::new();
    for event in &pair.sides[0].events {
        if let Event::Delivered {
            receipt, user: 5, ..
        } = event
        {
            said.push(*receipt);
        }
    }
    assert_eq!(said, [Receipt::Rejected(7), Receipt::Rejected(8)]);
}
