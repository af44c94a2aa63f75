//! One receive queue for all queue pairs: nobody finds it empty, whatever the others do.
//!
//! The wire between the sides fails a test when a frame comes and no receive is posted.

use xio_proto::storage::Counts;
use xio_proto::{
    Config, ConnectOptions, ConnectionId, Event, FreeRows, Message, Reason, Refusal,
    RequestOptions, TaskId, TransportLimits,
};
use xio_tests::pair::{Pair, SERVER};

const BUFFERS: u32 = 1000;
const PEERS: usize = 100;

/// A server with a shared queue and a client that has enough of everything.
fn world(nexuses: usize) -> Pair {
    let config = |i| {
        let rx = if i == 1 { BUFFERS } else { 1500 };
        let mut config = Config::new(i, rx, 2400);
        config.keepalive = None;
        config
    };
    let counts = Counts {
        nexuses,
        sessions: nexuses + 1,
        connections: 2 * nexuses,
        tasks: 2500,
        rx_slots: 1500,
        tx_slots: 2400,
        work: 1000,
        ..Pair::counts(&config(0))
    };
    let limits = |i| {
        let mut limits = TransportLimits::rdma();
        if i == 1 {
            limits.shared_receive_queue = true;
            limits.rq_depth = BUFFERS as u16;
        }
        limits
    };
    let mut world = Pair::with_limits(config, &counts, limits);
    world.check_every = 16;
    world.listen(50);
    world
}

/// One more peer: a queue pair of its own.
fn dial(world: &mut Pair, user: u64) -> ConnectionId {
    let mut options = ConnectOptions::new(user);
    options.own_nexus = true;
    let side = &mut world.sides[0];
    let open = xio_proto::SessionOpen {
        uri: "rdma://10.0.0.2:7000/",
        private: b"",
    };
    let (peer, transport, now) = (SERVER.parse().unwrap(), side.transport, world.now);
    side.endpoint
        .connect(now, transport, peer, &open, &options, &mut side.slots)
        .unwrap()
}

fn connect(world: &mut Pair, user: u64) -> ConnectionId {
    connect_both(world, user).0
}

/// The client's connection and the server's.
fn connect_both(world: &mut Pair, user: u64) -> (ConnectionId, ConnectionId) {
    let connection = dial(world, user);
    let mut accepted = None;
    world.run();
    while let Some(event) = world.sides[1].events.pop_front() {
        if let Event::SessionRequest { session, .. } = event {
            let (side, now) = (&mut world.sides[1], world.now);
            let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
            let server = endpoint.accept(now, session, user, &[], b"", slots);
            accepted = Some(server.unwrap());
            world.run();
        }
    }
    let event = world.sides[0].events.pop_front();
    assert!(
        matches!(event, Some(Event::Established { user: u, .. }) if u == user),
        "{event:?}"
    );
    (connection, accepted.expect("asked"))
}

fn peers(world: &mut Pair) -> Vec<ConnectionId> {
    (0..PEERS).map(|k| connect(world, k as u64)).collect()
}

fn credits(world: &Pair, connection: ConnectionId) -> u16 {
    let info = world.sides[0].endpoint.info(connection).unwrap();
    info.tx_credits
}

fn send(world: &mut Pair, connection: ConnectionId, count: usize) {
    for user in 0..count {
        let message = Message {
            user: user as u64,
            ..Message::default()
        };
        let options = RequestOptions::default();
        let endpoint = &mut world.sides[0].endpoint;
        endpoint.send(connection, &message, &options).unwrap();
    }
}

/// The requests that came, by their connection.
fn requests(world: &mut Pair) -> Vec<(u64, TaskId)> {
    let events = world.sides[1].events.drain(..);
    let request = |event| match event {
        Event::Request { user, task, .. } => Some((user, task)),
        _ => None,
    };
    events.filter_map(request).collect()
}

/// Answers what came until nothing comes any more: how many requests of each connection.
fn serve(world: &mut Pair) -> Vec<usize> {
    let mut served = vec![0; PEERS + 1];
    loop {
        world.run();
        let came = requests(world);
        for (user, task) in &came {
            let endpoint = &mut world.sides[1].endpoint;
            endpoint.respond(*task, &Message::default()).unwrap();
            served[*user as usize] += 1;
        }
        while let Some(event) = world.sides[0].events.pop_front() {
            if let Event::Response { task, .. } = event {
                world.sides[0].endpoint.release(task).unwrap();
            }
        }
        if came.is_empty() {
            return served;
        }
    }
}

fn close_all(world: &mut Pair, connections: &[ConnectionId]) {
    for connection in connections {
        let now = world.now;
        world.sides[0].endpoint.close(now, *connection).unwrap();
    }
    world.run();
    while world.advance() {}
}

fn free(world: &Pair) -> FreeRows {
    world.sides[1].endpoint.free_rows()
}

#[test]
fn a_hundred_peers_share_a_thousand_buffers() {
    let mut world = world(PEERS);
    let before = free(&world);
    let connections = peers(&mut world);
    for connection in &connections {
        let credits = credits(&world, *connection);
        assert!(credits >= 7, "{credits} credits after setup");
    }
    // All at once, far more than they have receives for.
    for connection in &connections {
        send(&mut world, *connection, 20);
    }
    let served = serve(&mut world);
    assert_eq!(served[..PEERS], [20; PEERS]);
    assert!(world.sides[1].endpoint.counters().nops_sent > 0);
    close_all(&mut world, &connections);
    assert_eq!(free(&world), before);
}

#[test]
fn a_user_who_keeps_all_messages_starves_nobody_of_a_receive() {
    let mut world = world(PEERS);
    let before = free(&world);
    let connections = peers(&mut world);
    for connection in &connections {
        send(&mut world, *connection, 20);
    }
    world.run();
    let kept = requests(&mut world);
    assert!(kept.len() > 500, "{}", kept.len());
    for (_, task) in &kept {
        world.sides[1].endpoint.release(*task).unwrap();
    }
    // The rest comes as soon as there are buffers.
    let kept_of = |user: u64| kept.iter().filter(|(u, _)| *u == user).count();
    let served = serve(&mut world);
    for (user, served) in served[..PEERS].iter().enumerate() {
        assert_eq!(served + kept_of(user as u64), 20, "peer {user}");
    }
    close_all(&mut world, &connections);
    assert_eq!(free(&world), before);
}

#[test]
fn grants_shrink_as_peers_join_and_stay_with_those_who_are_there() {
    let mut world = world(PEERS);
    let first = connect(&mut world, 0);
    // What is left when 99 more may have their minimum of nine.
    let alone = credits(&world, first);
    assert!((100..=109).contains(&alone), "{alone}");
    for user in 1..PEERS {
        let connection = connect(&mut world, user as u64);
        let credits = credits(&world, connection);
        assert!(credits >= 7, "peer {user} has {credits}");
    }
    send(&mut world, first, 300);
    let served = serve(&mut world);
    assert_eq!(served[0], 300);
    let left = credits(&world, first);
    assert!(
        left < 20,
        "the share is a tenth now, {left} credits are left"
    );
}

#[test]
fn a_peer_whose_minimum_is_not_left_is_refused() {
    let mut world = world(120);
    let connections: Vec<_> = (0..111)
        .map(|k| {
            let connection = dial(&mut world, k);
            world.run();
            connection
        })
        .collect();
    assert_eq!(world.sides[0].events.len(), 0);
    dial(&mut world, 111);
    world.run();
    let event = world.sides[0].events.pop_front();
    assert!(
        matches!(
            event,
            Some(Event::ConnectFailed {
                user: 111,
                reason: Reason::TurnedAway(Refusal::NoResources { need: 9, have: 1 }),
                ..
            })
        ),
        "{event:?}"
    );
    // A place that is left is the next one's.
    let now = world.now;
    world.sides[0].endpoint.abort(now, connections[5]).unwrap();
    world.run();
    while world.sides[1].endpoint.free_rows().nexuses < 10 {
        assert!(world.advance());
    }
    world.sides[0].events.clear();
    dial(&mut world, 112);
    world.run();
    let failed = |event: &Event| matches!(event, Event::ConnectFailed { .. });
    assert!(!world.sides[0].events.iter().any(failed));
}

#[test]
fn receives_of_those_who_left_are_taken_over() {
    let mut world = world(PEERS);
    let before = free(&world);
    for round in 0..5 {
        let connections: Vec<_> = (0..30).map(|k| connect(&mut world, k)).collect();
        for connection in &connections {
            send(&mut world, *connection, 10);
        }
        let served = serve(&mut world);
        assert_eq!(served[..30], [10; 30], "round {round}");
        close_all(&mut world, &connections);
        assert_eq!(free(&world), before);
        world.sides[0].events.clear();
        world.sides[1].events.clear();
    }
}

#[test]
fn receives_that_cannot_be_posted_are_not_counted_on() {
    let mut world = world(PEERS);
    let before = free(&world);
    for bad in 0..500 {
        world.sides[1].unpostable = 1;
        dial(&mut world, 1000 + bad);
        world.run();
        assert_eq!(world.sides[1].unpostable, 0);
        while world.advance() {}
        world.sides[0].events.clear();
        world.sides[1].events.clear();
    }
    assert_eq!(free(&world), before);
    // There are as many as ever for others: the wire would tell of one that is missing.
    let connections = peers(&mut world);
    for connection in &connections {
        send(&mut world, *connection, 20);
    }
    assert_eq!(serve(&mut world)[..PEERS], [20; PEERS]);
    close_all(&mut world, &connections);
    assert_eq!(free(&world), before);
}

#[test]
fn who_takes_receives_of_others_ends_and_they_get_new_ones() {
    let mut world = world(PEERS);
    let good: Vec<_> = (0..3).map(|k| connect(&mut world, k)).collect();
    let (_, bad) = connect_both(&mut world, 3);
    let bad = world.sides[1].endpoint.info(bad).unwrap().nexus;
    for _ in 0..400 {
        world.inject(1, bad, &[0; 40]);
    }
    world.run();
    let ended = |event: &Event| {
        matches!(
            event,
            Event::Closed {
                user: 3,
                reason: Reason::Violation(_),
                ..
            }
        )
    };
    assert!(world.sides[1].events.iter().any(ended));
    for connection in &good {
        send(&mut world, *connection, 200);
    }
    let served = serve(&mut world);
    assert_eq!(served[..3], [200; 3]);
}
