//! One whole conversation over a perfect wire, step by step.

use xio_proto::{
    Access, CommandError, Config, ConnectOptions, ConnectionId, Data, Event, Length, Message,
    Reason, RemoteMemory, RequestOptions, SessionOpen, SlotId, Slots,
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

#[test]
fn requests_are_answered_and_everything_comes_back() {
    let mut pair = pair();
    let free = [
        pair.sides[0].endpoint.free_rows(),
        pair.sides[1].endpoint.free_rows(),
    ];
    let (client, server) = connect(&mut pair);
    for round in 0..2000u64 {
        let m = message(&mut pair, 0, client, b"reqdata", round);
        pair.sides[0]
            .endpoint
            .send(client, &m, &RequestOptions::default())
            .unwrap();
        pair.run();
        let Some(Event::Request {
            task,
            header,
            data: Data::Slot(data),
            ..
        }) = pair.sides[1].events.pop_front()
        else {
            panic!("no request in round {round}")
        };
        assert_eq!(pair.sides[1].bytes(header), b"req");
        assert_eq!(pair.sides[1].bytes(data), b"data");
        let m = message(&mut pair, 1, server, b"rspanswer", 1000 + round);
        pair.sides[1].endpoint.respond(task, &m).unwrap();
        pair.run();
        let Some(Event::Response {
            task,
            user,
            header,
            data: Data::Slot(data),
            ..
        }) = pair.sides[0].events.pop_front()
        else {
            panic!("no response in round {round}")
        };
        assert_eq!(user, round);
        assert_eq!(pair.sides[0].bytes(header), b"rsp");
        assert_eq!(pair.sides[0].bytes(data), b"answer");
        pair.sides[0].endpoint.release(task).unwrap();
        assert!(
            matches!(pair.sides[1].events.pop_front(), Some(Event::Sent { user, .. }) if user == 1000 + round)
        );
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
    let reason = |e: Option<Event>| match e {
        Some(Event::Closed { reason, .. }) => reason,
        other => panic!("not closed but {other:?}"),
    };
    assert_eq!(reason(pair.sides[0].events.pop_front()), Reason::Closed);
    assert_eq!(reason(pair.sides[1].events.pop_front()), Reason::PeerClosed);
    assert!(matches!(
        pair.sides[0].events.pop_front(),
        Some(Event::SessionClosed { .. })
    ));
    assert!(matches!(
        pair.sides[1].events.pop_front(),
        Some(Event::SessionClosed { .. })
    ));
    for (side, free) in pair.sides.iter().zip(free) {
        assert!(side.events.is_empty(), "{:?}", side.events);
        assert_eq!(side.endpoint.free_rows(), free);
    }
}

#[test]
fn large_payloads_move_by_read_and_write() {
    let mut pair = pair();
    let (client, server) = connect(&mut pair);
    for i in 0..100_000 {
        pair.sides[0].memory[i] = (i * 7) as u8;
    }
    let data = [
        pair.sides[0].segment(0, 70_000),
        pair.sides[0].segment(70_000, 30_000),
    ];
    let into = [
        pair.sides[0].segment(200_000, 50_000),
        pair.sides[0].segment(300_000, 50_000),
    ];
    let m = Message {
        data: &data,
        user: 9,
        ..Message::default()
    };
    let options = RequestOptions {
        into: &into,
        ..RequestOptions::default()
    };
    pair.sides[0].endpoint.send(client, &m, &options).unwrap();
    pair.run();
    let Some(Event::PayloadWaiting { task, len, .. }) = pair.sides[1].events.pop_front() else {
        panic!()
    };
    assert_eq!(len, 100_000);
    let room = [
        pair.sides[1].segment(5, 40_001),
        pair.sides[1].segment(50_000, 60_000),
    ];
    pair.sides[1].endpoint.provide(task, &room).unwrap();
    pair.run();
    let Some(Event::Request {
        task,
        data: Data::Segments(span),
        ..
    }) = pair.sides[1].events.pop_front()
    else {
        panic!()
    };
    let mut got = Vec::new();
    for s in pair.sides[1].endpoint.segments(span) {
        let at = (s.addr - Side::BASE) as usize;
        got.extend_from_slice(&pair.sides[1].memory[at..at + s.len as usize]);
    }
    assert_eq!(got, pair.sides[0].memory[..100_000]);
    let answer = [
        pair.sides[1].segment(5, 40_001),
        pair.sides[1].segment(50_000, 30_000),
    ];
    let m = Message {
        data: &answer,
        user: 11,
        ..Message::default()
    };
    pair.sides[1].endpoint.respond(task, &m).unwrap();
    pair.run();
    let Some(Event::Response {
        data: Data::Segments(span),
        task,
        ..
    }) = pair.sides[0].events.pop_front()
    else {
        panic!("{:?}", pair.sides[0].events)
    };
    assert_eq!(span.len, 70_001);
    assert_eq!(pair.sides[0].memory[200_000..250_000], got[..50_000]);
    assert_eq!(pair.sides[0].memory[300_000..320_001], got[50_000..70_001]);
    pair.sides[0].endpoint.release(task).unwrap();
    let _ = server;
    // Without an offer the requester READs the answer.
    let m = Message {
        user: 12,
        ..Message::default()
    };
    pair.sides[0]
        .endpoint
        .send(client, &m, &RequestOptions::default())
        .unwrap();
    pair.run();
    assert!(matches!(
        pair.sides[1].events.pop_front(),
        Some(Event::Sent { user: 11, .. })
    ));
    let Some(Event::Request { task, .. }) = pair.sides[1].events.pop_front() else {
        panic!()
    };
    let m = Message {
        data: &answer,
        user: 13,
        ..Message::default()
    };
    pair.sides[1].endpoint.respond(task, &m).unwrap();
    pair.run();
    let Some(Event::PayloadWaiting { task, len, .. }) = pair.sides[0].events.pop_front() else {
        panic!()
    };
    assert_eq!(len, 70_001);
    assert!(
        pair.sides[1].events.is_empty(),
        "the buffers are not free before READ_ACK"
    );
    let room = [pair.sides[0].segment(400_000, 80_000)];
    pair.sides[0].endpoint.provide(task, &room).unwrap();
    pair.run();
    assert!(matches!(
        pair.sides[0].events.pop_front(),
        Some(Event::Response { user: 12, .. })
    ));
    assert!(matches!(
        pair.sides[1].events.pop_front(),
        Some(Event::Sent { user: 13, .. })
    ));
    assert_eq!(pair.sides[0].memory[400_000..470_001], got[..70_001]);
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
