//! What becomes of buffers when a message's deadline passes while the peer may still touch them.

use std::time::Duration;

use xio_proto::{Access, Config, ConnectionPolicy, Event, OnExpiry, Reason, RequestOptions, Step};
use xio_tests::pair::Pair;
use xio_tests::talk::{Say, Talk, free_rows};

fn config(i: u8) -> Config {
    Config::new(i, 400, 128)
}

/// A request with room for a large answer, which nobody gives in time.
fn expired(on_expiry: OnExpiry, registered: bool) -> (Pair, Talk) {
    let mut world = Pair::rdma(config, &Pair::counts(&config(0)));
    world.listen(50);
    let mut talk = Talk::open(&mut world, false);
    talk.keep[1] = true;
    let endpoint = &mut world.sides[0].endpoint;
    let policy = ConnectionPolicy {
        on_expiry,
        ..ConnectionPolicy::ASK
    };
    endpoint
        .set_policy(talk.connections[0].unwrap(), policy)
        .unwrap();
    if registered {
        let transport = world.sides[0].transport;
        let region = world.sides[0]
            .endpoint
            .register(transport, 0x10_0000, 1 << 20, Access::REMOTE_WRITE, 9)
            .unwrap();
        assert_eq!(region.index(), 0);
    }
    talk.settle(&mut world);
    talk.clear();
    let say = Say {
        room: 50_000,
        reply: 50_000,
        deadline: Some(world.now.after(Duration::from_millis(5))),
        ..Say::request(1)
    };
    talk.say(&mut world, 0, &say);
    talk.until(&mut world, [1, 1]);
    // What is back before the user has heard of the outcome, the outcome says by itself.
    let back = registered && on_expiry != OnExpiry::Hold;
    let heard = format!("timed out 1, buffers back {back}");
    assert_eq!(talk.heard[0][0], heard);
    (world, talk)
}

#[test]
fn held_until_the_peer_has_answered() {
    let (mut world, mut talk) = expired(OnExpiry::Hold, true);
    assert_eq!(talk.heard[0].len(), 1, "{:?}", talk.heard[0]);
    talk.let_go(&mut world, 1);
    assert_eq!(talk.heard[0][1], "buffers of 1");
    assert_eq!(world.sides[0].endpoint.free_rows().regions, 3);
}

#[test]
fn back_when_the_driver_has_revoked_the_keys() {
    let (mut world, mut talk) = expired(OnExpiry::Revoke, true);
    talk.settle(&mut world);
    assert_eq!(world.sides[0].endpoint.free_rows().regions, 4);
    // The peer's answer is dropped; the id is over then.
    talk.let_go(&mut world, 1);
    assert_eq!(world.sides[0].endpoint.counters().late, 1);
    assert_eq!(talk.heard[0].len(), 1, "{:?}", talk.heard[0]);
    talk.say(&mut world, 0, &Say::request(2));
    talk.settle(&mut world);
    assert_eq!(talk.count(0, "response 2"), 1);
}

#[test]
fn what_lies_in_no_region_is_held() {
    let (mut world, mut talk) = expired(OnExpiry::Revoke, false);
    talk.settle(&mut world);
    assert_eq!(talk.heard[0].len(), 1, "{:?}", talk.heard[0]);
    talk.let_go(&mut world, 1);
    assert_eq!(talk.heard[0][1], "buffers of 1");
}

#[test]
fn not_back_before_the_driver_has_said_so() {
    let mut world = Pair::rdma(config, &Pair::counts(&config(0)));
    world.slow_revoke = true;
    world.listen(50);
    let mut talk = Talk::open(&mut world, false);
    talk.keep[1] = true;
    let (transport, now) = (world.sides[0].transport, world.now);
    let endpoint = &mut world.sides[0].endpoint;
    let policy = ConnectionPolicy {
        on_expiry: OnExpiry::Revoke,
        ..ConnectionPolicy::ASK
    };
    let connection = talk.connections[0].unwrap();
    endpoint.set_policy(connection, policy).unwrap();
    let region = endpoint
        .register(transport, 0x10_0000, 1 << 20, Access::REMOTE_WRITE, 9)
        .unwrap();
    talk.settle(&mut world);
    let message = xio_proto::Message {
        user: 1,
        ..xio_proto::Message::default()
    };
    let room = [world.sides[0].segment(0, 50_000)];
    let options = RequestOptions {
        into: &room,
        deadline: Some(now.after(Duration::from_millis(5))),
        ..RequestOptions::default()
    };
    let endpoint = &mut world.sides[0].endpoint;
    endpoint.send(connection, &message, &options).unwrap();
    world.run();
    world.sides[1].events.clear();
    while !world.sides[0]
        .events
        .iter()
        .any(|e| matches!(e, Event::TimedOut { .. }))
    {
        assert!(world.advance());
    }
    world.sides[0].events.clear();
    world.run();
    assert!(world.sides[0].events.is_empty(), "the driver is not done");
    let now = world.now;
    world.sides[0].endpoint.handle_region_revoked(now, region);
    world.run();
    let mut events: Vec<Event> = world.sides[0].events.drain(..).collect();
    events.sort_by_key(|event| matches!(event, Event::RegionRevoked { .. }));
    assert!(
        matches!(
            events[..],
            [
                Event::BuffersReturned { user: 1, .. },
                Event::RegionRevoked { user: 9, .. }
            ]
        ),
        "{events:?}"
    );
}

#[test]
fn the_transport_connection_goes_if_the_user_wants_that() {
    let (mut world, mut talk) = expired(OnExpiry::Disconnect, true);
    talk.outlive(&mut world);
    talk.let_go(&mut world, 1);
    let reason = Reason::TimedOut(Step::Message);
    assert_eq!(
        talk.heard[0][1..],
        [
            format!("closed {reason:?}, 0 unanswered"),
            "session closed".into()
        ]
    );
    assert_eq!(talk.count(1, "closed Disconnected, 1 unanswered"), 1);
    let [client, server] = free_rows(&mut world);
    assert_eq!((client.nexuses, server.nexuses), (8, 8));
    assert_eq!((client.tasks, server.rx_slots), (64, 400));
}
