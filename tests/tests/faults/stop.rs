//! Kind G: an endpoint that stops.

use std::time::Duration;

use xio_proto::{CmKind, CommandError, ConnectOptions, Event, ListenOptions, Reason, SessionOpen};
use xio_tests::rig::Rig;
use xio_tests::talk::{Say, Talk, World};

use crate::users::{closed, deaf_to_frames, is, open, reasons, settle, wind_up};

const BOUND: Duration = Duration::from_secs(2);

fn stopped(rig: &Rig, i: usize) -> usize {
    is(rig, i, |event| matches!(event, Event::Stopped { .. }))
}

fn stop(rig: &mut Rig, i: usize, bound: Duration) {
    let now = rig.now;
    rig.sides[i].endpoint.stop(now, bound);
    rig.run();
}

/// Lets time pass until a side has stopped.
fn until_stopped(rig: &mut Rig, talk: &mut Talk, i: usize) -> Duration {
    let start = rig.now;
    talk.settle(rig);
    while stopped(rig, i) == 0 {
        assert!(rig.advance(), "{:#?}", rig.log[i]);
        talk.settle(rig);
    }
    assert!(
        matches!(rig.log[i].last(), Some(Event::Stopped { .. })),
        "{:#?}",
        rig.log[i]
    );
    rig.now.since(start)
}

#[test]
fn what_is_under_way_ends_and_nothing_new_begins() {
    for i in 0..2 {
        let (mut rig, mut talk) = open();
        // Requests of both sides are out, and queued.
        rig.gates[i] = deaf_to_frames();
        for user in 0..5 {
            talk.say(&mut rig, 0, &Say::request(user));
            talk.say(&mut rig, 1, &Say::request(user));
        }
        talk.settle(&mut rig);
        stop(&mut rig, i, BOUND);
        let connection = talk.connections[i].expect("open");
        let said = talk.try_say(&mut rig, i, &Say::request(9));
        let shut = Reason::Shutdown;
        assert_eq!(said, Err(CommandError::Closed(shut)));
        let (now, side) = (rig.now, &mut rig.sides[i]);
        let address = "10.0.0.9:1".parse().expect("an address");
        let listen = ListenOptions {
            user: 0,
            backlog: 1,
        };
        let listens = side.endpoint.listen(side.transport, address, &listen);
        assert_eq!(listens, Err(CommandError::Closed(shut)));
        let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
        let asked = endpoint.connect(
            now,
            side.transport,
            address,
            &SessionOpen::default(),
            &ConnectOptions::new(1),
            slots,
        );
        assert_eq!(asked, Err(CommandError::Closed(shut)));
        rig.let_go(i);
        talk.settle(&mut rig);
        assert_eq!(talk.count(i, "response"), 5, "{:#?}", talk.heard[i]);
        let took = until_stopped(&mut rig, &mut talk, i);
        assert!(took < BOUND, "{took:?}");
        let gone = |e: &Event| matches!(*e, Event::Stopped { aborted: 0 });
        assert_eq!(is(&rig, i, gone), 1);
        assert_eq!(reasons(&rig, i), [shut]);
        assert!(talk.connections[i].is_none(), "{connection:?}");
        let free = rig.sides[i].endpoint.free_rows();
        assert_eq!(free.connections, rig.free[i].connections);
        assert_eq!((free.nexuses, free.armed), (rig.free[i].nexuses, 0));
        // Nobody gets in any more.
        if i == 1 {
            rig.dial(60);
            settle(&mut rig);
            assert_eq!(closed(&rig, 0), 2);
        }
        wind_up(&mut rig);
        assert_eq!(stopped(&rig, i), 1, "once");
    }
}

#[test]
fn what_does_not_part_is_ended_at_the_bound() {
    let (mut rig, mut talk) = open();
    // The peer falls silent with a request out.
    let nexus = rig.nexus(0);
    rig.sever(0, nexus);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    stop(&mut rig, 0, BOUND);
    // A later call makes it no longer, and an earlier one shorter.
    stop(&mut rig, 0, 2 * BOUND);
    stop(&mut rig, 0, BOUND / 2);
    let took = until_stopped(&mut rig, &mut talk, 0);
    // Disconnecting and draining have bounds of their own.
    assert!(took >= BOUND / 2 && took <= BOUND / 2 + Duration::from_secs(1));
    let one = |e: &Event| matches!(*e, Event::Stopped { aborted: 1 });
    assert_eq!(is(&rig, 0, one), 1);
    assert_eq!(talk.count(0, "failed 1"), 1);
    wind_up(&mut rig);
}

#[test]
fn sessions_and_connects_that_are_not_answered_are_refused() {
    let mut rig = Rig::new();
    // One asks, one is being set up, one lingers unused.
    rig.dial(60);
    rig.run();
    let asks = |event: &Event| matches!(event, Event::SessionRequest { .. });
    assert_eq!(is(&rig, 1, asks), 1);
    rig.gates[1] = crate::users::idle();
    rig.dial(61);
    rig.run();
    stop(&mut rig, 1, BOUND);
    rig.let_go(1);
    // Its user answers too late.
    rig.sides[1].events.clear();
    let mut talk = Talk::default();
    until_stopped(&mut rig, &mut talk, 1);
    while closed(&rig, 0) < 2 {
        assert!(rig.advance(), "{:#?}", rig.log[0]);
    }
    let refused = |e: &Event| matches!(e, Event::ConnectFailed { .. });
    assert_eq!(is(&rig, 0, refused), 2);
    wind_up(&mut rig);
}

#[test]
fn an_endpoint_with_nothing_stops_at_once() {
    let mut rig = Rig::new();
    stop(&mut rig, 0, BOUND);
    assert_eq!(rig.log[0], [Event::Stopped { aborted: 0 }]);
    // And one whose connection waits to be made anew.
    let mut rig = Rig::new();
    let options = ConnectOptions {
        reconnect: Some(xio_proto::Reconnect::DEFAULT),
        ..ConnectOptions::new(60)
    };
    let mut talk = Talk::default();
    talk.connections[0] = Some(rig.dial_with(&options));
    talk.settle(&mut rig);
    rig.tell(0, CmKind::Disconnected);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "reconnecting"), 1);
    stop(&mut rig, 0, BOUND);
    assert_eq!(until_stopped(&mut rig, &mut talk, 0), Duration::ZERO);
    assert_eq!(reasons(&rig, 0), [Reason::Shutdown]);
    World::run(&mut rig);
    wind_up(&mut rig);
}
