//! Kind J: many at once, and who is gone by then.

use xio_proto::{CmEvent, CmKind, CommandError, Config, ConnectOptions, Control, Event};
use xio_tests::pair::{Pair, SERVER};
use xio_tests::rig::{Gate, Rig};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{abort, closed, established, is, open, settle, wind_up};

#[test]
fn a_hundred_come_and_a_hundred_go_in_one_turn() {
    let config = |i| Config::new(i, 700, 900);
    let counts = |config: &Config| xio_proto::storage::Counts {
        sessions: 300,
        connections: 300,
        tasks: 300,
        ..Pair::counts(config)
    };
    let limits = |_| xio_proto::TransportLimits::rdma();
    let mut rig = Rig::sized(config, counts, limits);
    for user in 0..200 {
        rig.dial_with(&ConnectOptions::new(user));
    }
    settle(&mut rig);
    assert_eq!(established(&rig, 0), 200);
    let now = rig.now;
    for k in 0..100 {
        let connection = rig.dialed[2 * k];
        let endpoint = &mut rig.sides[0].endpoint;
        let done = match k % 2 {
            0 => endpoint.close(now, connection),
            _ => endpoint.abort(now, connection),
        };
        done.expect("open");
        if k < 90 {
            rig.dial_with(&ConnectOptions::new(1000 + k as u64));
        }
    }
    settle(&mut rig);
    while closed(&rig, 0) < 100 {
        assert!(rig.advance());
    }
    settle(&mut rig);
    assert_eq!(established(&rig, 0), 290);
    // Those who stayed work.
    let message = xio_proto::Message::default();
    let options = xio_proto::RequestOptions::default();
    for k in 0..100 {
        let connection = rig.dialed[2 * k + 1];
        let endpoint = &mut rig.sides[0].endpoint;
        endpoint
            .send_one_way(connection, &message, &options)
            .expect("room");
        rig.run();
    }
    let came = is(&rig, 1, |event| matches!(event, Event::OneWay { .. }));
    assert!(came > 90, "{came}");
    wind_up(&mut rig);
}

#[test]
fn events_of_those_who_are_gone_are_counted() {
    let (mut rig, mut talk) = open();
    let nexus = rig.nexus(0);
    abort(&mut rig, &talk, 0);
    talk.outlive(&mut rig);
    // Its row has another life now.
    let mut next = Talk::open(&mut rig, false);
    let (rows, heard) = (free_rows(&mut rig), rig.log[0].len());
    let stale = rig.sides[0].endpoint.counters().stale_cm;
    for number in 0..=16 {
        rig.tell_of(0, nexus, CmEvent::plain(CmKind::from_number(number)));
    }
    let now = rig.now;
    let endpoint = &mut rig.sides[0].endpoint;
    endpoint.handle_queue_pair(now, nexus, Ok(()));
    endpoint.handle_destroyed(now, nexus);
    assert_eq!(endpoint.counters().stale_cm, stale + 19);
    rig.run();
    assert_eq!((free_rows(&mut rig), rig.log[0].len()), (rows, heard));
    next.say(&mut rig, 0, &Say::request(1));
    next.settle(&mut rig);
    assert_eq!(next.count(0, "response 1"), 1);
    wind_up(&mut rig);
}

#[test]
fn messages_of_a_failed_connect_end_in_their_order() {
    let mut rig = Rig::new();
    rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Connect { .. }));
    let mut talk = Talk::default();
    talk.connections[0] = Some(rig.dial(60));
    for user in 0..10 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    rig.tell(0, CmKind::Rejected);
    talk.outlive(&mut rig);
    let failed = |event: &Event| match *event {
        Event::Failed { user, .. } => Some(user),
        _ => None,
    };
    let order: Vec<_> = rig.log[0].iter().filter_map(failed).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
    wind_up(&mut rig);
}

#[test]
fn eight_connections_of_one_session_work_or_say_why_not() {
    // The tables have places for four transport connections.
    let mut rig = Rig::new();
    rig.dial(60);
    settle(&mut rig);
    let session = rig.log[0].iter().find_map(|event| match *event {
        Event::Established { session, .. } => Some(session),
        _ => None,
    });
    let (mut joined, mut refused) = (0, 0);
    for user in 61..68 {
        let options = ConnectOptions::new(user);
        let portal = SERVER.parse().expect("an address");
        let (now, transport) = (rig.now, rig.sides[0].transport);
        let endpoint = &mut rig.sides[0].endpoint;
        match endpoint.join(now, session.expect("open"), transport, portal, &options) {
            Ok(connection) => {
                joined += 1;
                rig.dialed.push(connection);
            }
            Err(CommandError::Full(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((joined, refused), (3, 4));
    settle(&mut rig);
    assert_eq!(established(&rig, 0), 4, "{:?}", rig.log[0]);
    let message = xio_proto::Message::default();
    let options = xio_proto::RequestOptions::default();
    for connection in rig.dialed.clone() {
        let endpoint = &mut rig.sides[0].endpoint;
        endpoint
            .send_one_way(connection, &message, &options)
            .expect("open");
    }
    rig.run();
    assert_eq!(
        is(&rig, 1, |event| matches!(event, Event::OneWay { .. })),
        4
    );
    wind_up(&mut rig);
}

#[test]
fn deep_queues_over_fifty_rounds_leave_nothing() {
    let config = |i| Config::new(i, 300, 256);
    let mut pair = Pair::rdma(config, &Pair::counts(&config(0)));
    pair.check_every = 64;
    World::listen(&mut pair, 50);
    let free = free_rows(&mut pair);
    for round in 0..50 {
        let mut talk = Talk::open(&mut pair, false);
        let mut taken = 0;
        for user in 0..60 {
            let gathered = [1, 100, 5000, 20_000, 65_536][(user + round) % 5];
            let say = Say {
                inline: 0,
                gathered,
                ..Say::request(user as u64)
            };
            taken += usize::from(talk.try_say(&mut pair, 0, &say).is_ok());
        }
        assert!(taken > 30, "{taken}");
        talk.settle(&mut pair);
        talk.let_go(&mut pair, 1);
        assert_eq!(talk.count(0, "response"), taken, "round {round}");
        talk.close(&mut pair, round % 2);
        assert_eq!(free_rows(&mut pair), free, "round {round}");
    }
}
