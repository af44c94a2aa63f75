//! Kind C: what a lost connection leaves to the next one.

use std::time::Duration;

use xio_proto::{CmKind, ConnectOptions, Control, Event, Reason, WorkStatus};
use xio_tests::rig::{Gate, Rig};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{abort, closed, established, failed, open, reasons, settle, wind_up};

#[test]
fn a_server_that_comes_late_is_reached() {
    let mut rig = Rig::new();
    let listener = rig.sides[1].listener().expect("it listens");
    rig.sides[1].endpoint.unlisten(listener).expect("known");
    rig.run();
    for _ in 0..3 {
        rig.dial(60);
        rig.run();
    }
    assert_eq!(reasons(&rig, 0), [Reason::Refused; 3]);
    assert_eq!(
        rig.sides[0].endpoint.free_rows(),
        rig.free[0],
        "nothing stays of an attempt"
    );
    // It comes, and comes again, at the same address.
    for _ in 0..50 {
        World::listen(&mut rig, 50);
        let mut talk = Talk::open(&mut rig, false);
        talk.say(&mut rig, 0, &Say::request(1));
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "response 1"), 1);
        let listener = rig.sides[1].listener().expect("it listens");
        rig.sides[1].endpoint.unlisten(listener).expect("known");
        rig.tell(1, CmKind::DeviceRemoval);
        talk.outlive(&mut rig);
        assert_eq!(free_rows(&mut rig), rig.free);
    }
    wind_up(&mut rig);
}

#[test]
fn the_timeout_of_one_attempt_ends_no_other() {
    let mut rig = Rig::new();
    rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Connect { .. }));
    rig.dial(60);
    rig.run();
    rig.gates[0] = Gate::default();
    let mut talk = Talk::open(&mut rig, false);
    let start = rig.now;
    while closed(&rig, 0) == 0 {
        assert!(rig.advance());
    }
    assert_eq!(rig.now.since(start), Duration::from_secs(10));
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    wind_up(&mut rig);
}

#[test]
fn nobody_listens_and_what_was_queued_fails() {
    let mut rig = Rig::new();
    let listener = rig.sides[1].listener().expect("it listens");
    rig.sides[1].endpoint.unlisten(listener).expect("known");
    rig.run();
    for round in 1..=20 {
        let mut talk = Talk::default();
        talk.connections[0] = Some(rig.dial(60));
        for user in 0..10 {
            talk.say(&mut rig, 0, &Say::request(user));
        }
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "failed"), 10, "{:?}", talk.heard[0]);
        let never = talk.heard[0]
            .iter()
            .filter(|text| text.contains("NeverSent(Refused)"));
        assert_eq!(never.count(), 10);
        // One attempt for one call, and none by itself.
        let connects = rig.steps[0]
            .iter()
            .filter(|c| matches!(c, Control::Connect { .. }));
        assert_eq!(connects.count(), round);
        assert_eq!(rig.sides[0].endpoint.free_rows(), rig.free[0]);
    }
    wind_up(&mut rig);
}

#[test]
fn a_session_never_joins_what_is_going_down() {
    let stops: [fn(&Control) -> bool; 3] = [
        |c| matches!(c, Control::Disconnect { .. }),
        |c| matches!(c, Control::Drain { .. }),
        |c| matches!(c, Control::Destroy { .. }),
    ];
    for stop in stops {
        let (mut rig, talk) = open();
        rig.gates[0] = Gate::default().hold(stop);
        abort(&mut rig, &talk, 0);
        rig.run();
        assert_eq!(rig.begun(0), 1);
        // The same address again, willing to share.
        rig.dial_with(&ConnectOptions::new(61));
        settle(&mut rig);
        assert_eq!(established(&rig, 0), 2, "it has one of its own");
        rig.let_go(0);
        settle(&mut rig);
        let info = rig.sides[0].endpoint.info(rig.dialed[0]).expect("open");
        assert_eq!(info.state, "Online");
        wind_up(&mut rig);
    }
    // One that lingers without a connection is used again, or is over: at that very moment too.
    let (mut rig, mut talk) = open();
    let connection = talk.connections[0].expect("open");
    let now = rig.now;
    rig.sides[0].endpoint.close(now, connection).expect("open");
    talk.settle(&mut rig);
    while closed(&rig, 0) == 0 {
        assert!(rig.advance());
    }
    let end = rig.now.after(Duration::from_secs(60));
    rig.now = end;
    rig.dial_with(&ConnectOptions::new(61));
    for side in &mut rig.sides {
        side.endpoint.handle_timeout(end);
    }
    settle(&mut rig);
    while established(&rig, 0) + failed(&rig, 0) < 2 {
        assert!(rig.advance());
    }
    wind_up(&mut rig);
}

#[test]
fn an_error_completion_is_enough() {
    let (mut rig, mut talk) = open();
    rig.gates[0] = Gate::default().lose(CmKind::Disconnected);
    rig.gates[0].sends = true;
    rig.gates[1].frames = true;
    talk.say(&mut rig, 0, &Say::request(1));
    rig.run();
    let start = rig.now;
    rig.fail_oldest(0, WorkStatus::RetryExceeded);
    talk.settle(&mut rig);
    while rig.sides[0].endpoint.free_rows() != rig.free[0] {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    assert!(rig.now.since(start) <= Duration::from_secs(1));
    assert_eq!(
        reasons(&rig, 0),
        [Reason::WorkFailed(WorkStatus::RetryExceeded)]
    );
    wind_up(&mut rig);
}

#[test]
fn a_new_session_shares_nothing_with_the_lost_one() {
    let mut rig = Rig::new();
    let mut nexuses = Vec::new();
    for round in 0..30 {
        let mut talk = Talk::open(&mut rig, false);
        let connection = talk.connections[0].expect("open");
        let info = rig.sides[0].endpoint.info(connection).expect("open");
        assert!(!nexuses.contains(&info.nexus));
        nexuses.push(info.nexus);
        for user in 0..5 {
            talk.say(&mut rig, 0, &Say::request(user));
        }
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "response"), 5, "round {round}");
        // It is lost in the middle of things.
        talk.say(&mut rig, 0, &Say::request(9));
        rig.tell(round % 2, CmKind::Disconnected);
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "closed"), 1, "{:?}", talk.heard[0]);
    }
    wind_up(&mut rig);
}

#[test]
fn frames_for_who_is_gone_are_late() {
    // Two sessions on one transport connection, of which one is ended by force.
    let (mut rig, mut talk) = open();
    rig.dial_with(&ConnectOptions::new(61));
    settle(&mut rig);
    assert_eq!(established(&rig, 0), 2);
    let second = rig.dialed[0];
    rig.gates[0].frames = true;
    for side in &mut rig.sides {
        side.events.clear();
    }
    // An answer and a message for it are on their way.
    let options = xio_proto::RequestOptions::default();
    let message = xio_proto::Message::default();
    rig.sides[0]
        .endpoint
        .send(second, &message, &options)
        .expect("room");
    rig.run();
    let Some(Event::Request { task, .. }) = rig.sides[1].events.pop_front() else {
        panic!("{:?}", rig.log[1])
    };
    rig.sides[1].endpoint.respond(task, &message).expect("room");
    rig.run();
    assert_eq!(rig.waiting(0), 1);
    let now = rig.now;
    rig.sides[0].endpoint.abort(now, second).expect("open");
    rig.run();
    assert_eq!(closed(&rig, 0), 1);
    let heard = rig.log[0].len();
    rig.gates[0].frames = false;
    rig.arrive(0, usize::MAX);
    rig.run();
    assert_eq!(rig.log[0].len(), heard);
    assert_eq!(rig.sides[0].endpoint.counters().violations, 0);
    talk.say(&mut rig, 0, &Say::request(5));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 5"), 1, "the other goes on");
    wind_up(&mut rig);
}

#[test]
fn sessions_come_and_go_on_one_transport_connection() {
    let (mut rig, mut talk) = open();
    let before = free_rows(&mut rig);
    for round in 0..60 {
        let connection = rig.dial_with(&ConnectOptions::new(61));
        settle(&mut rig);
        // Requests are out when it is ended.
        let options = xio_proto::RequestOptions::default();
        for _ in 0..3 {
            let message = xio_proto::Message::default();
            let endpoint = &mut rig.sides[0].endpoint;
            endpoint.send(connection, &message, &options).expect("room");
        }
        rig.run();
        let now = rig.now;
        let endpoint = &mut rig.sides[0].endpoint;
        if round % 2 == 0 {
            endpoint.abort(now, connection).expect("open");
        } else {
            endpoint.close(now, connection).expect("open");
        }
        rig.run();
        for at in 0..rig.log[1].len() {
            if let Event::Request { task, .. } = rig.log[1][at] {
                // Perhaps given back before.
                let _ = rig.sides[1].endpoint.release(task);
            }
        }
        // What the server knows of it ends when it is told, or asked.
        if round % 2 == 0 {
            let server = rig.log[1].iter().rev().find_map(|event| match *event {
                Event::Established { connection, .. } => Some(connection),
                _ => None,
            });
            let endpoint = &mut rig.sides[1].endpoint;
            endpoint
                .abort(now, server.expect("accepted"))
                .expect("open");
        }
        rig.run();
        while free_rows(&mut rig).map(|free| free.connections)
            != before.map(|free| free.connections)
        {
            assert!(rig.advance(), "round {round}");
        }
    }
    let connects = rig.steps[0]
        .iter()
        .filter(|c| matches!(c, Control::Connect { .. }));
    assert_eq!(connects.count(), 1, "all of them on one");
    let after = free_rows(&mut rig);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(
            (before.tasks, before.tx_slots),
            (after.tasks, after.tx_slots)
        );
        assert_eq!((before.sessions, before.work), (after.sessions, after.work));
    }
    for side in &mut rig.sides {
        side.events.clear();
    }
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    wind_up(&mut rig);
}
