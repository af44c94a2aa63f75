//! Limits of the peer, and what a foreign implementation counts that ours might not.

use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Event, Failure, Length, Message,
    RequestOptions, SessionId, SessionOpen,
};
use xio_tests::pair::{Pair, SERVER};

fn pair_with(change: impl Fn(u8, &mut Config)) -> Pair {
    let config = |i| {
        let mut config = Config::new(i, 700, 64);
        change(i, &mut config);
        config
    };
    let counts = Pair::counts(&config(0));
    Pair::rdma(config, &counts)
}

fn open(pair: &mut Pair, user: u64) -> ConnectionId {
    let side = &mut pair.sides[0];
    let open = SessionOpen {
        uri: "rdma://10.0.0.2:7000/res",
        private: b"",
    };
    let address = SERVER.parse().unwrap();
    let options = ConnectOptions::new(user);
    let endpoint = &mut side.endpoint;
    endpoint
        .connect(
            pair.now,
            side.transport,
            address,
            &open,
            &options,
            &mut side.slots,
        )
        .unwrap()
}

fn asked(pair: &mut Pair) -> SessionId {
    pair.run();
    let Some(Event::SessionRequest { session, .. }) = pair.sides[1].events.pop_front() else {
        panic!("no session request")
    };
    session
}

fn accept(pair: &mut Pair, session: SessionId) {
    let side = &mut pair.sides[1];
    side.endpoint
        .accept(pair.now, session, 70, &[], b"", &mut side.slots)
        .unwrap();
    pair.run();
}

fn connect(pair: &mut Pair) -> ConnectionId {
    pair.listen(50);
    let client = open(pair, 60);
    let session = asked(pair);
    accept(pair, session);
    for side in &mut pair.sides {
        side.events.clear();
    }
    client
}

/// Credits that a frame grants, as any implementation reads it.
fn granted(frame: &[u8]) -> i64 {
    let at = match frame[6..8] {
        [0, 0x41] => 22,
        [0, 0x84] => 28,
        [0, 0x82] | [0x20, 4] => return 0,
        _ => 64,
    };
    u16::from_be_bytes([frame[at], frame[at + 1]]).into()
}

#[test]
fn a_read_ack_takes_a_credit_on_both_sides() {
    let mut pair = pair_with(|_, _| {});
    let client = connect(&mut pair);
    for round in 0..600 {
        let message = Message {
            user: round,
            ..Message::default()
        };
        let options = RequestOptions::default();
        pair.sides[0]
            .endpoint
            .send(client, &message, &options)
            .unwrap();
        pair.run();
        let Some(Event::Request { task, .. }) = pair.sides[1].events.pop_front() else {
            panic!()
        };
        let answer = [pair.sides[1].segment(0, 20_000)];
        let message = Message {
            data: &answer,
            ..Message::default()
        };
        pair.sides[1].endpoint.respond(task, &message).unwrap();
        pair.run();
        let waiting = pair.sides[0].events.pop_front();
        let Some(Event::PayloadWaiting { task, .. }) = waiting else {
            panic!("{waiting:?}")
        };
        let room = [pair.sides[0].segment(0, 20_000)];
        pair.sides[0].endpoint.provide(task, &room).unwrap();
        pair.run();
        let response = pair.sides[0].events.pop_front();
        let Some(Event::Response { task, .. }) = response else {
            panic!("{response:?}")
        };
        pair.sides[0].endpoint.release(task).unwrap();
        pair.run();
        pair.sides[1].events.clear();
    }
    for (sender, peer) in [(0, 1), (1, 0)] {
        let given = 1 + pair.sides[peer]
            .sent
            .iter()
            .map(|frame| granted(frame))
            .sum::<i64>();
        let left = given - pair.sides[sender].sent.len() as i64;
        assert!(
            (0..=289).contains(&left),
            "side {sender} has {left} credits by the peer's count"
        );
    }
    let left = 1 + pair.sides[1]
        .sent
        .iter()
        .map(|frame| granted(frame))
        .sum::<i64>()
        - pair.sides[0].sent.len() as i64;
    assert_eq!(
        i64::from(pair.sides[0].endpoint.info(client).unwrap().tx_credits),
        left
    );
}

#[test]
fn an_answer_to_an_abandoned_setup_harms_nobody() {
    let mut pair = pair_with(|_, _| {});
    let client = connect(&mut pair);
    let second = open(&mut pair, 61);
    let session = asked(&mut pair);
    pair.sides[0].endpoint.abort(pair.now, second).unwrap();
    pair.run();
    accept(&mut pair, session);
    let message = Message {
        user: 1,
        ..Message::default()
    };
    pair.sides[0]
        .endpoint
        .send(client, &message, &RequestOptions::default())
        .unwrap();
    pair.run();
    let arrived = pair.sides[1]
        .events
        .iter()
        .any(|e| matches!(e, Event::Request { .. }));
    assert!(
        arrived,
        "the first session goes on: {:?}",
        pair.sides[0].events
    );
}

#[test]
fn a_message_longer_than_the_peer_ever_takes_is_refused_at_once() {
    let mut pair = pair_with(|_, config| {
        config.flow_control = true;
        config.depth_bytes = 1000;
    });
    pair.listen(50);
    let client = open(&mut pair, 60);
    let data = [pair.sides[0].segment(0, 5000)];
    let long = Message {
        data: &data,
        user: 1,
        ..Message::default()
    };
    let options = RequestOptions::default();
    pair.sides[0]
        .endpoint
        .send(client, &long, &options)
        .unwrap();
    let session = asked(&mut pair);
    accept(&mut pair, session);
    let events = &mut pair.sides[0].events;
    assert!(matches!(
        events.pop_front(),
        Some(Event::Established { .. })
    ));
    let failed = events.pop_front();
    let failure = Failure::TooLong {
        what: Length::Data,
        len: 5000,
        max: 1000,
    };
    assert!(
        matches!(failed, Some(Event::Failed { user: 1, failure: f, .. }) if f == failure),
        "accepted before the limit was known: {failed:?}"
    );
    let refused = CommandError::TooLong {
        what: Length::Data,
        len: 5000,
        max: 1000,
    };
    assert_eq!(
        pair.sides[0].endpoint.send(client, &long, &options),
        Err(refused)
    );
}

#[test]
fn what_was_accepted_before_setup_is_held_to_the_peers_limits() {
    let mut pair = pair_with(|i, config| {
        if i == 1 {
            config.sge_max = 1;
            config.header_max = 16;
        }
    });
    pair.listen(50);
    let client = open(&mut pair, 60);
    let data = [
        pair.sides[0].segment(0, 10_000),
        pair.sides[0].segment(10_000, 10_000),
    ];
    let message = Message {
        data: &data,
        user: 1,
        ..Message::default()
    };
    pair.sides[0]
        .endpoint
        .send(client, &message, &RequestOptions::default())
        .unwrap();
    let slot = pair.sides[0].endpoint.reserve_slot(client).unwrap();
    let message = Message {
        slot: Some(slot),
        header_len: 200,
        user: 2,
        ..Message::default()
    };
    pair.sides[0]
        .endpoint
        .send(client, &message, &RequestOptions::default())
        .unwrap();
    let session = asked(&mut pair);
    accept(&mut pair, session);
    let mut failed = pair.sides[0].events.iter().filter_map(|event| match event {
        Event::Failed {
            user,
            failure: Failure::TooLong { .. },
            ..
        } => Some(*user),
        _ => None,
    });
    assert_eq!((failed.next(), failed.next()), (Some(1), Some(2)));
    assert!(
        pair.sides[0]
            .endpoint
            .info(client)
            .is_ok_and(|info| info.state == "Online")
    );
}

#[test]
fn a_refused_payload_is_told_to_the_requester() {
    let mut pair = pair_with(|_, _| {});
    let client = connect(&mut pair);
    let data = [pair.sides[0].segment(0, 50_000)];
    let message = Message {
        data: &data,
        user: 9,
        ..Message::default()
    };
    pair.sides[0]
        .endpoint
        .send(client, &message, &RequestOptions::default())
        .unwrap();
    pair.run();
    let waiting = pair.sides[1].events.pop_front();
    let Some(Event::PayloadWaiting {
        task, len: 50_000, ..
    }) = waiting
    else {
        panic!()
    };
    pair.sides[1].endpoint.refuse(task, 5).unwrap();
    pair.run();
    let failed = pair.sides[0].events.pop_front();
    assert!(
        matches!(
            failed,
            Some(Event::Failed {
                user: 9,
                failure: Failure::PeerStatus(5),
                buffers_returned: true,
                ..
            })
        ),
        "{failed:?}"
    );
    assert!(
        pair.sides[1].events.is_empty(),
        "{:?}",
        pair.sides[1].events
    );
}

#[test]
fn private_data_next_to_portals_reaches_the_user() {
    let mut pair = pair_with(|_, _| {});
    pair.listen(50);
    open(&mut pair, 60);
    let session = asked(&mut pair);
    let side = &mut pair.sides[1];
    let portals: [&[u8]; 1] = [b"rdma://10.0.0.2:7000"];
    side.endpoint
        .accept(
            pair.now,
            session,
            70,
            &portals,
            b"go there",
            &mut side.slots,
        )
        .unwrap();
    pair.run();
    let event = pair.sides[0].events.pop_front();
    assert!(matches!(event, Some(Event::Portals { count: 1, .. })));
    let event = pair.sides[0].events.pop_front();
    let Some(Event::Established {
        user: 60,
        message: Some(message),
        private,
        ..
    }) = event
    else {
        panic!("{event:?}")
    };
    assert_eq!(pair.sides[0].bytes(private), b"go there");
    pair.sides[0].endpoint.release(message).unwrap();
    let event = pair.sides[1].events.pop_front();
    assert!(
        matches!(event, Some(Event::Established { user: 70, .. })),
        "{event:?}"
    );
}
