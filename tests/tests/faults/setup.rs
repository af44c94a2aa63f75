//! Kind B: how connections come up, and events of the communication manager in any order.

use std::time::Duration;

use xio_proto::{
    CmEvent, CmKind, Config, Control, Event, Failure, Reason, Step, TransportLimits, Work,
    WorkStatus,
};
use xio_tests::rig::{Gate, Rig, of};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{
    accepts, closed, connects, creates, deaf_to_frames, destroys, disconnects, established, failed,
    idle, no_flushes, reasons, resolves, routes, settle, wind_up,
};

#[test]
fn a_frame_proves_the_connection() {
    for late in [false, true] {
        let mut rig = Rig::new();
        rig.gates[1] = Gate::default().lose(CmKind::Established);
        let mut talk = Talk::open(&mut rig, false);
        talk.say(&mut rig, 0, &Say::one_way(1));
        talk.say(&mut rig, 0, &Say::request(2));
        talk.settle(&mut rig);
        let came: Vec<_> = talk.heard[1]
            .iter()
            .take(2)
            .map(|text| &text[..9])
            .collect();
        assert_eq!(came, ["one-way 1", "request 2"]);
        assert_eq!(talk.count(0, "response 2"), 1);
        let (steps, heard) = (rig.steps[1].len(), rig.log[1].len());
        if late {
            rig.tell(1, CmKind::Established);
            rig.run();
        }
        assert_eq!((rig.steps[1].len(), rig.log[1].len()), (steps, heard));
        talk.say(&mut rig, 1, &Say::request(3));
        talk.settle(&mut rig);
        assert_eq!(talk.count(1, "response 3"), 1);
        wind_up(&mut rig);
    }
}

#[test]
fn what_comes_before_established_needs_no_parking() {
    let few = |i| Config::new(i, if i == 1 { 20 } else { 64 }, 48);
    let mut rig = Rig::with(few, |_| TransportLimits::rdma());
    rig.gates[1] = Gate::default().lose(CmKind::Established);
    let mut talk = Talk::open(&mut rig, false);
    talk.keep[1] = true;
    // Every receive is filled, and its user lets none go.
    for user in 0..24 {
        talk.say(&mut rig, 0, &Say::one_way(user));
    }
    talk.settle(&mut rig);
    let kept = talk.kept[1].len();
    assert!((6..24).contains(&kept), "{kept}");
    rig.tell(1, CmKind::Established);
    talk.let_go(&mut rig, 1);
    assert_eq!(talk.count(0, "sent"), 24);
    wind_up(&mut rig);
}

/// A side, and how to know what it asks for.
type Asked = (usize, fn(&Control) -> bool);

#[test]
fn a_peer_that_leaves_during_setup_is_told_once() {
    // (side, step that is under way)
    let steps: [Asked; 2] = [(0, connects), (1, accepts)];
    for (i, step) in steps {
        let mut rig = Rig::new();
        rig.gates[i] = Gate::default().hold(step);
        rig.dial(60);
        rig.run();
        rig.tell(i, CmKind::Disconnected);
        rig.tell(i, CmKind::Established);
        rig.run();
        assert_eq!(established(&rig, 0) + established(&rig, 1), 0);
        wind_up(&mut rig);
        assert_eq!(
            (failed(&rig, 0), closed(&rig, 0), closed(&rig, 1)),
            (1, 1, 0)
        );
    }
    // While the server's user thinks about the session.
    let mut rig = Rig::new();
    rig.dial(60);
    rig.run();
    rig.tell(1, CmKind::Disconnected);
    let session = rig.log[1].iter().find_map(|event| match *event {
        Event::SessionRequest { session, .. } => Some(session),
        _ => None,
    });
    rig.run();
    let (now, side) = (rig.now, &mut rig.sides[1]);
    let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
    let late = endpoint.accept(now, session.expect("asked"), 70, &[], b"", slots);
    assert!(late.is_err(), "{late:?}");
    wind_up(&mut rig);
    assert_eq!(established(&rig, 0) + established(&rig, 1), 0);
    assert_eq!((failed(&rig, 0), closed(&rig, 0)), (1, 1));
}

#[test]
fn a_rejection_after_established_is_a_loss() {
    for i in 0..2 {
        let mut rig = Rig::new();
        let mut talk = Talk::open(&mut rig, false);
        talk.say(&mut rig, 0, &Say::request(1));
        rig.tell(i, CmKind::Rejected);
        rig.tell(i, CmKind::Rejected);
        rig.tell(i, CmKind::TimewaitExit);
        talk.outlive(&mut rig);
        assert_eq!(reasons(&rig, i), [Reason::Disconnected], "side {i}");
        assert_eq!(failed(&rig, i), 0);
        wind_up(&mut rig);
    }
    // The server's accept was refused: nobody's connection ends.
    let mut rig = Rig::new();
    rig.gates[1] = Gate::default().hold(accepts);
    rig.dial(60);
    rig.run();
    rig.tell(1, CmKind::Rejected);
    rig.run();
    assert_eq!(rig.log[1].len(), 0);
    wind_up(&mut rig);
    assert_eq!(rig.log[1].len(), 0);
}

#[test]
fn events_after_a_timeout_change_nothing() {
    let kinds = [
        CmKind::Rejected,
        CmKind::Unreachable,
        CmKind::Established,
        CmKind::ConnectError,
        CmKind::ConnectResponse,
    ];
    for kind in kinds {
        let mut rig = Rig::new();
        rig.gates[0] = Gate::default().hold(connects);
        rig.gates[0].flushes = true;
        rig.dial(60);
        rig.run();
        rig.forget_steps(0);
        while failed(&rig, 0) == 0 {
            assert!(rig.advance());
        }
        // The queue pair is still being drained.
        assert!(rig.unflushed(0) > 0);
        let ignored = rig.sides[0].endpoint.counters().ignored_inputs;
        let heard = rig.log[0].len();
        for _ in 0..3 {
            rig.tell(0, kind);
            rig.run();
        }
        assert_eq!(rig.sides[0].endpoint.counters().ignored_inputs, ignored + 3);
        assert_eq!(rig.log[0].len(), heard);
        wind_up(&mut rig);
        assert_eq!(reasons(&rig, 0), [Reason::TimedOut(Step::Connect)]);
    }
}

/// Where a transport connection is stopped: name, side, what holds it there, what goes before.
type Stop = (&'static str, usize, fn() -> Gate, Before);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It is stopped on its way up.
    Nothing,
    /// It is up, and messages are under way.
    Open,
    /// Its connection was closed.
    Closed,
    /// Its connection is aborted at that side.
    Aborted,
}

const STOPS: [Stop; 20] = [
    (
        "resolving",
        0,
        || Gate::default().hold(resolves),
        Before::Nothing,
    ),
    (
        "routing",
        0,
        || Gate::default().hold(routes),
        Before::Nothing,
    ),
    (
        "creating",
        0,
        || Gate::default().hold(creates),
        Before::Nothing,
    ),
    ("priming", 0, idle, Before::Nothing),
    (
        "connecting",
        0,
        || Gate::default().hold(connects),
        Before::Nothing,
    ),
    ("handshaking", 0, deaf_to_frames, Before::Nothing),
    (
        "requested",
        1,
        || Gate::default().hold(creates),
        Before::Nothing,
    ),
    ("server priming", 1, idle, Before::Nothing),
    (
        "accepting",
        1,
        || Gate::default().hold(accepts),
        Before::Nothing,
    ),
    ("awaiting", 1, deaf_to_frames, Before::Nothing),
    ("online, client", 0, Gate::default, Before::Open),
    ("online, server", 1, Gate::default, Before::Open),
    ("idle, client", 0, Gate::default, Before::Closed),
    ("idle, server", 1, Gate::default, Before::Closed),
    (
        "disconnecting, client",
        0,
        || Gate::default().hold(disconnects),
        Before::Aborted,
    ),
    (
        "disconnecting, server",
        1,
        || Gate::default().hold(disconnects),
        Before::Aborted,
    ),
    ("draining, client", 0, no_flushes, Before::Aborted),
    ("draining, server", 1, no_flushes, Before::Aborted),
    (
        "destroying, client",
        0,
        || Gate::default().hold(destroys),
        Before::Aborted,
    ),
    (
        "destroying, server",
        1,
        || Gate::default().hold(destroys),
        Before::Aborted,
    ),
];

/// Stops a transport connection there.
fn stopped(&(_, i, gate, before): &Stop) -> Rig {
    let mut rig = Rig::new();
    if before == Before::Nothing {
        rig.gates[i] = gate();
        rig.dial(60);
        settle(&mut rig);
        return rig;
    }
    let mut talk = Talk::open(&mut rig, false);
    rig.gates[i] = gate();
    let now = rig.now;
    match before {
        Before::Nothing | Before::Open => {
            talk.say(&mut rig, 0, &Say::request(1));
            talk.say(&mut rig, 1, &Say::request(2));
        }
        Before::Closed => {
            let connection = talk.connections[0].expect("open");
            rig.sides[0].endpoint.close(now, connection).expect("known");
            talk.settle(&mut rig);
            while closed(&rig, 0) + closed(&rig, 1) < 2 {
                assert!(rig.advance());
            }
        }
        Before::Aborted => {
            let connection = talk.connections[i].expect("open");
            rig.sides[i].endpoint.abort(now, connection).expect("known");
        }
    }
    rig
}

#[test]
fn every_event_in_every_state_once_and_twice() {
    let mut runs = 0;
    for stop in &STOPS {
        for number in 0..=16 {
            for status in [0, -5] {
                for times in 1..=2 {
                    for late in [false, true] {
                        let mut rig = stopped(stop);
                        let i = stop.1;
                        let nexus = rig.nexus(i);
                        for _ in 0..times {
                            let kind = CmKind::from_number(number);
                            rig.tell_of(i, nexus, CmEvent::failed(kind, status));
                            rig.step(i);
                        }
                        // What was under way ends as it would have, or never.
                        if !late && stop.0 != "destroying, client" && stop.0 != "destroying, server"
                        {
                            rig.forget_steps(i);
                        }
                        settle(&mut rig);
                        wind_up(&mut rig);
                        let ends = closed(&rig, 0);
                        assert_eq!(ends, 1, "{}: event {number}, {status}", stop.0);
                        runs += 1;
                    }
                }
            }
        }
    }
    println!("{runs} runs");
}

#[test]
fn every_silence_during_setup_is_given_up_in_time() {
    for stop in STOPS.iter().filter(|stop| stop.3 == Before::Nothing) {
        let mut rig = stopped(stop);
        rig.forget_steps(stop.1);
        let start = rig.now;
        while closed(&rig, 0) == 0 || free_rows(&mut rig) != rig.free {
            assert!(rig.advance(), "{}: {:?}", stop.0, rig.log);
        }
        let took = rig.now.since(start);
        assert!(took <= Duration::from_secs(12), "{}: {took:?}", stop.0);
        assert_eq!(failed(&rig, 0), 1, "{}", stop.0);
        wind_up(&mut rig);
    }
}

#[test]
fn a_failure_seen_three_ways_is_told_once() {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let first = [
        Reason::WorkFailed(WorkStatus::RetryExceeded),
        Reason::Unreachable(0),
        Reason::Disconnected,
    ];
    for order in orders {
        for turns in [false, true] {
            let mut rig = Rig::new();
            let mut talk = Talk::open(&mut rig, false);
            rig.gates[0].sends = true;
            rig.gates[1].frames = true;
            talk.say(&mut rig, 0, &Say::request(1));
            rig.run();
            for what in order {
                match what {
                    0 if rig.out(0) > 0 || !turns => {
                        rig.fail_oldest(0, WorkStatus::RetryExceeded);
                    }
                    0 => {}
                    1 => rig.tell(0, CmKind::Unreachable),
                    _ => rig.tell(0, CmKind::Disconnected),
                }
                if turns {
                    rig.step(0);
                }
            }
            rig.gates[0].sends = false;
            talk.outlive(&mut rig);
            let expected = first[order[0]];
            assert_eq!(reasons(&rig, 0), [expected], "{order:?}");
            let failed = |event: &&Event| matches!(event, Event::Failed { failure: Failure::ConnectionEnded(r), .. } if *r == expected);
            assert_eq!(rig.log[0].iter().filter(failed).count(), 1, "{order:?}");
            wind_up(&mut rig);
        }
    }
}

#[test]
fn an_address_change_ends_connections_and_no_listener() {
    let mut rig = Rig::new();
    let mut talk = Talk::open(&mut rig, false);
    rig.tell(1, CmKind::AddrChange);
    talk.outlive(&mut rig);
    assert_eq!(reasons(&rig, 1), [Reason::Disconnected]);
    assert!(rig.steps[1].iter().any(disconnects), "the peer is told");
    let mut talk = Talk::open(&mut rig, false);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1, "the listener is there");
    wind_up(&mut rig);
}

#[test]
fn a_step_may_fail_before_its_call_returns() {
    let steps: [fn(&Control) -> bool; 4] = [resolves, routes, creates, connects];
    for step in steps {
        let mut rig = Rig::new();
        rig.gates[0] = Gate::default().fail(step, -19);
        rig.dial(60);
        // All of it is torn down while the driver is still in the call.
        rig.run();
        let nexus = rig.steps[0].iter().find_map(of).expect("a step");
        assert_eq!(closed(&rig, 0), 1);
        let (stale, now) = (rig.sides[0].endpoint.counters().stale_cm, rig.now);
        let endpoint = &mut rig.sides[0].endpoint;
        endpoint.handle_driver_failed(now, nexus, Reason::DriverFailed(-19));
        endpoint.handle_queue_pair(now, nexus, Err(-19));
        assert_eq!(endpoint.counters().stale_cm, stale + 2);
        rig.run();
        assert_eq!(closed(&rig, 0), 1);
        wind_up(&mut rig);
    }
}

#[test]
fn an_address_without_a_device_ends_the_attempt() {
    let mut rig = Rig::new();
    rig.gates[0] = Gate::default().hold(resolves);
    rig.dial(60);
    rig.run();
    let nexus = rig.nexus(0);
    rig.tell_of(0, nexus, CmEvent::failed(CmKind::AddrResolved, -19));
    rig.run();
    assert_eq!(reasons(&rig, 0), [Reason::AddressError(-19)]);
    assert!(!rig.steps[0].iter().any(routes), "{:?}", rig.steps[0]);
    wind_up(&mut rig);
}

#[test]
fn a_receive_is_posted_before_connect_and_accept() {
    let steps: [fn(&Control) -> bool; 2] = [connects, accepts];
    for (i, step) in steps.into_iter().enumerate() {
        let mut rig = Rig::new();
        rig.gates[i] = Gate::default().hold(step);
        rig.dial(60);
        while !rig.steps[i].iter().any(step) {
            let before = rig.receives(i);
            let busy = rig.step(0) | rig.step(1);
            if rig.steps[i].iter().any(step) {
                assert_eq!(before.max(rig.receives(i)), 1, "side {i}");
            }
            assert!(busy);
        }
        assert!(matches!(rig.posted[i][..], [Work::Recv { .. }]), "side {i}");
        wind_up(&mut rig);
    }
}

#[test]
fn a_half_made_connection_is_dropped_ten_thousand_times() {
    let mut rig = Rig::new();
    let rejects = |control: &Control| matches!(control, Control::Reject { .. });
    for round in 0..10_000 {
        rig.gates[1].control = Box::new(move |control| match control {
            Control::CreateQueuePair { .. } => xio_tests::rig::Verdict::Fail(22),
            // The peer may have gone already.
            Control::Reject { .. } if round % 2 == 0 => xio_tests::rig::Verdict::Fail(22),
            _ => xio_tests::rig::Verdict::Go,
        });
        rig.dial(60);
        rig.run();
        assert_eq!(closed(&rig, 0), 1, "round {round}");
        let steps = &rig.steps[1];
        let count = |what: fn(&Control) -> bool| steps.iter().filter(|step| what(step)).count();
        assert_eq!((count(rejects), count(destroys)), (1, 1), "round {round}");
        assert_eq!(free_rows(&mut rig), rig.free);
        rig.log = [Vec::new(), Vec::new()];
        rig.steps = [Vec::new(), Vec::new()];
        rig.dialed.clear();
    }
    wind_up(&mut rig);
}

#[test]
fn a_disconnect_without_an_answer_is_over_in_time() {
    for how in 0..3 {
        let mut rig = Rig::new();
        let mut talk = Talk::open(&mut rig, false);
        rig.gates[0] = match how {
            0 => Gate::default().fail(disconnects, 22),
            _ => Gate::default().hold(disconnects),
        };
        let (now, start) = (rig.now, rig.now);
        let connection = talk.connections[0].expect("open");
        rig.sides[0].endpoint.abort(now, connection).expect("known");
        talk.settle(&mut rig);
        if how == 2 {
            rig.tell(0, CmKind::TimewaitExit);
            talk.settle(&mut rig);
        }
        while rig.sides[0].endpoint.free_rows() != rig.free[0] {
            assert!(rig.advance(), "{how}");
            talk.settle(&mut rig);
        }
        let took = rig.now.since(start);
        let most = if how == 0 { 0 } else { 1000 };
        assert!(took <= Duration::from_millis(most), "{how}: {took:?}");
        wind_up(&mut rig);
    }
}

#[test]
fn a_failed_lookup_is_told_and_the_next_attempt_works() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        rig.gates[0] = Gate::default().fail(resolves, -3);
        rig.dial(60);
        rig.run();
    }
    assert_eq!(reasons(&rig, 0), [Reason::AddressError(-3); 2]);
    rig.gates[0] = Gate::default();
    let mut talk = Talk::open(&mut rig, false);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    wind_up(&mut rig);
}

#[test]
fn a_connect_without_an_answer_is_given_up_in_time() {
    let steps: [fn(&Control) -> bool; 3] = [resolves, routes, connects];
    for step in steps {
        let mut rig = Rig::new();
        rig.gates[0] = Gate::default().hold(step);
        rig.dial(60);
        rig.run();
        let start = rig.now;
        while failed(&rig, 0) == 0 {
            assert!(rig.advance());
        }
        assert_eq!(rig.now.since(start), Duration::from_secs(10));
        let heard = rig.log[0].len();
        rig.tell(0, CmKind::Unreachable);
        rig.run();
        let more = rig.log[0][heard..].iter();
        assert!(
            more.clone()
                .all(|event| !matches!(event, Event::ConnectFailed { .. }))
        );
        wind_up(&mut rig);
        assert_eq!(reasons(&rig, 0), [Reason::TimedOut(Step::Connect)]);
    }
}

/// A frame of each kind that a conversation has, by its type word.
fn frames_of_a_conversation() -> Vec<Vec<u8>> {
    let mut rig = Rig::new();
    let mut talk = Talk::open(&mut rig, false);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.say(&mut rig, 1, &Say::one_way(2));
    talk.settle(&mut rig);
    talk.close(&mut rig, 0);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for frame in rig.sides.iter().flat_map(|side| &side.sent) {
        if frames.iter().all(|known| known[4..8] != frame[4..8]) {
            frames.push(frame.clone());
        }
    }
    assert!(frames.len() >= 8, "{}", frames.len());
    frames
}

#[test]
fn data_in_place_of_a_setup_is_a_violation() {
    const SETUPS: [[u8; 4]; 2] = [[0, 0, 0, 0x84], [0, 0, 0, 0x82]];
    for (i, setup) in SETUPS.into_iter().enumerate() {
        for frame in frames_of_a_conversation() {
            if frame[4..8] == setup {
                continue;
            }
            let mut rig = Rig::new();
            rig.gates[i] = deaf_to_frames();
            rig.dial(60);
            rig.run();
            assert_eq!(rig.waiting(i), 1, "the setup is on its way");
            assert!(rig.inject(i, &frame));
            rig.run();
            let kind = &frame[4..8];
            assert_eq!(rig.sides[i].endpoint.counters().violations, 1, "{kind:?}");
            wind_up(&mut rig);
            assert_eq!((failed(&rig, 0), established(&rig, 1)), (1, 0), "{kind:?}");
            if i == 0 {
                let violated = matches!(reasons(&rig, 0)[..], [Reason::Violation(_)]);
                assert!(violated, "{kind:?}: {:?}", reasons(&rig, 0));
            }
        }
    }
}

#[test]
fn a_wrong_version_ends_the_connection() {
    for (i, at) in [(1, 16), (0, 24)] {
        let mut rig = Rig::new();
        rig.gates[i] = deaf_to_frames();
        rig.dial(60);
        rig.run();
        let mut frame = rig.intercept(i).expect("the setup");
        frame[at] = 9;
        assert!(rig.inject(i, &frame));
        rig.run();
        assert_eq!(rig.sides[i].endpoint.counters().violations, 1, "side {i}");
        let start = rig.now;
        wind_up(&mut rig);
        assert_eq!(failed(&rig, 0), 1);
        assert!(
            rig.now.since(start) < Duration::from_secs(2),
            "without silence"
        );
    }
}
