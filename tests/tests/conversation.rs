//! One whole conversation over a perfect wire, step by step.

use xio_proto::{
    Access, CommandError, Config, ConnectOptions, ConnectionId, Data, Event, Length, Message,
    Reason, RemoteMemory, RequestOptions, SegmentSpan, SessionOpen, SlotId, Slots,
};
use xio_tests::pair::{Pair, SERVER, Side};

fn pair() -> Pair {
    let config = |i| Config::new(i, 700, 64);
    let counts = Pair::counts(&config(0));
    Pair::rdma(config, &counts)
}

fn connect(pair: &mut Pair) -> (ConnectionId, ConnectionId) {
    pair.listen(50);
    let side = &mut pair.sides[0];
    let open = SessionOpen {
        uri: "rdma://10.0.0.2:7000/res",
        private: b"hello",
    };
    let client = side
        .endpoint
        .connect(
            pair.now,
            side.transport,
            SERVER.parse().unwrap(),
            &open,
            &ConnectOptions::new(60),
            &mut side.slots,
        )
        .unwrap();
    pair.run();
    let side = &mut pair.sides[1];
    let Some(Event::SessionRequest {
        session,
        user: 50,
        uri,
        private,
        ..
    }) = side.events.pop_front()
    else {
        panic!("no session request")
    };
    assert_eq!(side.bytes(uri), b"rdma://10.0.0.2:7000/res");
    assert_eq!(side.bytes(private), b"hello");
    let server = side
        .endpoint
        .accept(pair.now, session, 70, &[], b"welcome", &mut side.slots)
        .unwrap();
    pair.run();
    let side = &mut pair.sides[0];
    let Some(Event::Established {
        connection,
        user: 60,
        message: Some(m),
        private,
        ..
    }) = side.events.pop_front()
    else {
        panic!("client is not established")
    };
    assert_eq!(connection, client);
    assert_eq!(side.bytes(private), b"welcome");
    side.endpoint.release(m).unwrap();
    let Some(Event::Established {
        connection,
        user: 70,
        ..
    }) = pair.sides[1].events.pop_front()
    else {
        panic!("server is not established")
    };
    assert_eq!(connection, server);
    (client, server)
}

fn message<'a>(pair: &mut Pair, i: usize, c: ConnectionId, text: &[u8], user: u64) -> Message<'a> {
    let side = &mut pair.sides[i];
    let slot = side.endpoint.reserve_slot(c).unwrap();
    let at = side.endpoint.config().headroom();
    side.slots.slot_mut(slot)[at..at + text.len()].copy_from_slice(text);
    Message {
        slot: Some(SlotId(slot.0)),
        header_len: 3,
        slot_data: text.len() as u32 - 3,
        data: &[],
        user,
        prompt: false,
    }
}

/// One request of the client's and its answer, seen from both users.
fn round_trip(pair: &mut Pair, client: ConnectionId, server: ConnectionId, round: u64) {
    let m = message(pair, 0, client, b"reqdata", round);
    let [a, _] = &mut pair.sides;
    a.endpoint
        .send(client, &m, &RequestOptions::default())
        .unwrap();
    pair.run();
    let b = &mut pair.sides[1];
    let event = b.events.pop_front();
    let Some(Event::Request {
        task,
        header,
        data: Data::Slot(data),
        ..
    }) = event
    else {
        panic!("no request in round {round} but {event:?}")
    };
    assert_eq!(
        (b.bytes(header), b.bytes(data)),
        (&b"req"[..], &b"data"[..])
    );
    let m = message(pair, 1, server, b"rspanswer", 1000 + round);
    pair.sides[1].endpoint.respond(task, &m).unwrap();
    pair.run();
    let [a, b] = &mut pair.sides;
    let event = a.events.pop_front();
    let Some(Event::Response {
        task,
        user,
        header,
        data: Data::Slot(data),
        ..
    }) = event
    else {
        panic!("no response in round {round} but {event:?}")
    };
    assert_eq!(user, round);
    assert_eq!(
        (a.bytes(header), a.bytes(data)),
        (&b"rsp"[..], &b"answer"[..])
    );
    a.endpoint.release(task).unwrap();
    let sent = b.events.pop_front();
    assert!(
        matches!(sent, Some(Event::Sent { user, .. }) if user == 1000 + round),
        "{sent:?}"
    );
}

#[test]
fn requests_are_answered_and_everything_comes_back() {
    let mut pair = pair();
    let free = [0, 1].map(|i| pair.sides[i].endpoint.free_rows());
    let (client, server) = connect(&mut pair);
    for round in 0..2000 {
        round_trip(&mut pair, client, server, round);
    }
    let m = message(&mut pair, 1, server, b"one-way", 5);
    let options = RequestOptions {
        receipt: true,
        ..RequestOptions::default()
    };
    pair.sides[1]
        .endpoint
        .send_one_way(server, &m, &options)
        .unwrap();
    pair.run();
    let Some(Event::OneWay { task, .. }) = pair.sides[0].events.pop_front() else {
        panic!()
    };
    pair.sides[0].endpoint.release(task).unwrap();
    pair.run();
    assert!(matches!(
        pair.sides[1].events.pop_front(),
        Some(Event::Delivered { user: 5, .. })
    ));
    pair.sides[0].endpoint.close(pair.now, client).unwrap();
    pair.run();
    while pair.advance() {}
    let reasons = [Reason::Closed, Reason::PeerClosed];
    for ((side, free), expected) in pair.sides.iter_mut().zip(free).zip(reasons) {
        let closed = side.events.pop_front();
        assert!(
            matches!(closed, Some(Event::Closed { reason, .. }) if reason == expected),
            "{closed:?}"
        );
        assert!(matches!(
            side.events.pop_front(),
            Some(Event::SessionClosed { .. })
        ));
        assert!(side.events.is_empty(), "{:?}", side.events);
        assert_eq!(side.endpoint.free_rows(), free);
    }
}

/// Bytes of user memory that a span speaks of.
fn gathered(side: &Side, span: SegmentSpan) -> Vec<u8> {
    let mut bytes = Vec::new();
    for s in side.endpoint.segments(span) {
        let at = (s.addr - Side::BASE) as usize;
        bytes.extend_from_slice(&side.memory[at..at + s.len as usize]);
    }
    bytes
}

#[test]
fn a_large_request_is_read_and_its_large_answer_written() {
    let mut pair = pair();
    let (client, _) = connect(&mut pair);
    for i in 0..100_000 {
        pair.sides[0].memory[i] = (i * 7) as u8;
    }
    let [a, _] = &mut pair.sides;
    let data = [a.segment(0, 70_000), a.segment(70_000, 30_000)];
    let into = [a.segment(200_000, 50_000), a.segment(300_000, 50_000)];
    let m = Message {
        data: &data,
        user: 9,
        ..Message::default()
    };
    let options = RequestOptions {
        into: &into,
        ..RequestOptions::default()
    };
    a.endpoint.send(client, &m, &options).unwrap();
    pair.run();
    let b = &mut pair.sides[1];
    let event = b.events.pop_front();
    let Some(Event::PayloadWaiting {
        task, len: 100_000, ..
    }) = event
    else {
        panic!("{event:?}")
    };
    let room = [b.segment(5, 40_001), b.segment(50_000, 60_000)];
    b.endpoint.provide(task, &room).unwrap();
    pair.run();
    let [a, b] = &mut pair.sides;
    let event = b.events.pop_front();
    let Some(Event::Request {
        task,
        data: Data::Segments(span),
        ..
    }) = event
    else {
        panic!("{event:?}")
    };
    let got = gathered(b, span);
    assert_eq!(got, a.memory[..100_000]);
    let answer = [b.segment(5, 40_001), b.segment(50_000, 30_000)];
    let m = Message {
        data: &answer,
        user: 11,
        ..Message::default()
    };
    b.endpoint.respond(task, &m).unwrap();
    pair.run();
    let [a, b] = &mut pair.sides;
    let event = a.events.pop_front();
    let Some(Event::Response {
        data: Data::Segments(span),
        ..
    }) = event
    else {
        panic!("{event:?}")
    };
    assert_eq!(gathered(a, span), got[..70_001]);
    assert!(matches!(
        b.events.pop_front(),
        Some(Event::Sent { user: 11, .. })
    ));
}

#[test]
fn a_large_answer_without_an_offer_is_read_by_the_requester() {
    let mut pair = pair();
    let (client, _) = connect(&mut pair);
    let m = Message {
        user: 12,
        ..Message::default()
    };
    pair.sides[0]
        .endpoint
        .send(client, &m, &RequestOptions::default())
        .unwrap();
    pair.run();
    let b = &mut pair.sides[1];
    for (i, byte) in b.memory[..70_000].iter_mut().enumerate() {
        *byte = (i * 3) as u8;
    }
    let Some(Event::Request { task, .. }) = b.events.pop_front() else {
        panic!()
    };
    let answer = [b.segment(0, 40_000), b.segment(40_000, 30_000)];
    let m = Message {
        data: &answer,
        user: 13,
        ..Message::default()
    };
    b.endpoint.respond(task, &m).unwrap();
    pair.run();
    let [a, b] = &mut pair.sides;
    let event = a.events.pop_front();
    let Some(Event::PayloadWaiting {
        task, len: 70_000, ..
    }) = event
    else {
        panic!("{event:?}")
    };
    assert!(
        b.events.is_empty(),
        "the buffers are not free before READ_ACK"
    );
    let room = [a.segment(400_000, 80_000)];
    a.endpoint.provide(task, &room).unwrap();
    pair.run();
    let [a, b] = &mut pair.sides;
    assert!(matches!(
        a.events.pop_front(),
        Some(Event::Response { user: 12, .. })
    ));
    assert!(matches!(
        b.events.pop_front(),
        Some(Event::Sent { user: 13, .. })
    ));
    assert_eq!(a.memory[400_000..470_000], b.memory[..70_000]);
}

#[test]
fn direct_reads_and_writes_reach_the_region_in_order() {
    let mut pair = pair();
    let free = pair.sides[1].endpoint.free_rows();
    let (client, _) = connect(&mut pair);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let transport = pair.sides[1].transport;
    let addr = Side::BASE + 4096;
    let region = pair.sides[1]
        .endpoint
        .register(transport, addr, 8192, access, 33)
        .unwrap();
    pair.run();
    let Some(Event::RegionReady { user: 33, rkey, .. }) = pair.sides[1].events.pop_front() else {
        panic!("region is not ready")
    };
    let remote = RemoteMemory {
        addr,
        len: 8192,
        key: rkey,
    };
    pair.sides[0].memory[..8192].fill(0xab);
    let local = [
        pair.sides[0].segment(0, 5000),
        pair.sides[0].segment(5000, 3192),
    ];
    pair.sides[0]
        .endpoint
        .write(client, &local, &remote, 1, None)
        .unwrap();
    let back = [pair.sides[0].segment(20_000, 8192)];
    pair.sides[0]
        .endpoint
        .read(client, &back, &remote, 2, None)
        .unwrap();
    pair.run();
    for expected in [1, 2] {
        let event = pair.sides[0].events.pop_front();
        assert!(
            matches!(event, Some(Event::Sent { user, .. }) if user == expected),
            "{event:?}"
        );
    }
    assert!(
        pair.sides[1].memory[4096..4096 + 8192]
            .iter()
            .all(|b| *b == 0xab)
    );
    assert!(
        pair.sides[0].memory[20_000..28_192]
            .iter()
            .all(|b| *b == 0xab)
    );
    let long = [pair.sides[0].segment(0, 8193)];
    assert_eq!(
        pair.sides[0]
            .endpoint
            .write(client, &long, &remote, 3, None),
        Err(CommandError::TooLong {
            what: Length::Data,
            len: 8193,
            max: 8192
        })
    );
    pair.sides[1].endpoint.revoke(region).unwrap();
    pair.run();
    assert!(matches!(
        pair.sides[1].events.pop_front(),
        Some(Event::RegionRevoked { user: 33, .. })
    ));
    assert_eq!(pair.sides[1].endpoint.free_rows().regions, free.regions);
}
