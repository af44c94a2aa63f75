//! Kind C: connections that are made anew when they are lost, and what becomes of their messages.

use std::time::Duration;

use xio_proto::wire::status;
use xio_proto::{
    CmEvent, CmKind, Config, ConnectOptions, ConnectionId, Control, Event, Extensions, Failure,
    Instant, PrivateData, Reason, Reconnect, Refusal, TransportLimits,
};
use xio_tests::rig::{Gate, Rig, small};
use xio_tests::talk::{Say, Talk, World};

use crate::users::{closed, connects, deaf_to_frames, is, reasons, resolves, settle, wind_up};

/// Ten attempts, the first after 50 to 100 ms, none later than a second after the one before.
const AGAIN: Reconnect = Reconnect {
    attempts_max: 10,
    give_up_after: None,
    first_delay: Duration::from_millis(100),
    max_delay: Duration::from_secs(1),
};

fn options(user: u64, again: Reconnect) -> ConnectOptions {
    ConnectOptions {
        reconnect: Some(again),
        ..ConnectOptions::new(user)
    }
}

fn begin(rig: &mut Rig, again: Reconnect) -> Talk {
    let mut talk = Talk::default();
    talk.connections[0] = Some(rig.dial_with(&options(60, again)));
    talk.settle(rig);
    assert!(talk.connections[1].is_some(), "{:?}", talk.heard);
    talk
}

/// The wire is cut, and both sides hear of it.
fn cut(rig: &mut Rig, talk: &mut Talk) {
    for i in 0..2 {
        rig.tell(i, CmKind::Disconnected);
    }
    talk.settle(rig);
}

fn until_anew(rig: &mut Rig, talk: &mut Talk) -> Duration {
    let (start, before) = (rig.now, talk.count(0, "reconnected"));
    while talk.count(0, "reconnected") == before {
        assert!(rig.advance(), "{:#?}", talk.heard);
        talk.settle(rig);
    }
    rig.now.since(start)
}

/// The server is gone, or there again.
fn serve(rig: &mut Rig, serves: bool) {
    if serves {
        World::listen(rig, 50);
    } else {
        let listener = rig.sides[1].listener().expect("it listens");
        rig.sides[1].endpoint.unlisten(listener).expect("known");
        World::run(rig);
    }
}

/// When the attempts after a loss began, until the connection was over.
fn attempts(rig: &mut Rig, talk: &mut Talk) -> Vec<Instant> {
    let begun = |rig: &Rig| rig.steps[0].iter().filter(|c| connects(c)).count();
    let mut times = Vec::new();
    let mut seen = begun(rig);
    while closed(rig, 0) == 0 {
        assert!(rig.advance(), "{:#?}", talk.heard);
        talk.settle(rig);
        if begun(rig) > seen {
            seen = begun(rig);
            times.push(rig.now);
        }
    }
    times
}

#[test]
fn what_was_never_posted_is_sent_and_what_was_is_not_repeated() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    let connection = talk.connections[0];
    // Ten reach the server, which answers none of them; ten are never posted.
    talk.keep[1] = true;
    for user in 0..10 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    talk.settle(&mut rig);
    rig.gates[0].idle = true;
    for user in 10..20 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    talk.settle(&mut rig);
    rig.gates[0].idle = false;
    talk.keep[1] = false;
    cut(&mut rig, &mut talk);
    assert_eq!(talk.count(0, "reconnecting: Disconnected"), 1);
    assert_eq!(talk.count(0, "failed"), 0, "the peer was not asked yet");
    let seen = rig.sides[0].endpoint.connections().next();
    let seen = seen.expect("it waits");
    assert_eq!((seen.state, seen.session), ("Waiting", None));
    // While it waits more may be sent, and is sent behind.
    talk.say(&mut rig, 0, &Say::request(20));
    let pause = until_anew(&mut rig, &mut talk);
    let lost = format!("{:?}", Failure::Unknown(Reason::Disconnected));
    for user in 0..10 {
        assert_eq!(talk.count(0, &format!("failed {user}: {lost}")), 1);
    }
    assert!(pause <= AGAIN.first_delay, "{pause:?}");
    assert_eq!(talk.count(0, "reconnected after 1"), 1);
    assert_eq!(talk.connections[0], connection, "its id stays");
    let asked = talk.heard[1]
        .iter()
        .filter(|text| text.starts_with("request "));
    let asked: Vec<_> = asked.cloned().collect();
    for (at, user) in (10..=20).enumerate() {
        assert_eq!(talk.count(0, &format!("response {user}:")), 1);
        let heard = &asked[asked.len() - 11 + at];
        assert!(heard.starts_with(&format!("request {user}:")), "{asked:?}");
    }
    wind_up(&mut rig);
}

#[test]
fn what_is_idempotent_is_sent_again_in_its_order() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    talk.keep[1] = true;
    let say = |user| Say {
        idempotent: user % 2 == 0,
        receipt: user == 2,
        ..Say::request(user)
    };
    for user in 0..6 {
        talk.say(&mut rig, 0, &say(user));
    }
    talk.settle(&mut rig);
    rig.gates[0].idle = true;
    talk.say(&mut rig, 0, &say(6));
    talk.say(&mut rig, 0, &say(7));
    rig.gates[0].idle = false;
    talk.keep[1] = false;
    let before = talk.heard[1].len();
    cut(&mut rig, &mut talk);
    until_anew(&mut rig, &mut talk);
    assert_eq!(talk.count(0, "failed"), 3, "{:#?}", talk.heard[0]);
    let asked = talk.heard[1][before..].iter();
    let asked: Vec<_> = asked.filter(|text| text.starts_with("request")).collect();
    assert_eq!(asked.len(), 5, "{asked:?}");
    for (heard, user) in asked.iter().zip([0, 2, 4, 6, 7]) {
        assert!(heard.starts_with(&format!("request {user}:")), "{asked:?}");
        assert_eq!(talk.count(0, &format!("response {user}:")), 1);
    }
    wind_up(&mut rig);
}

#[test]
fn what_is_said_behind_what_is_sent_again_follows_it() {
    // Who resumes asks first, and has the last one wait as well.
    let config = |i| {
        let mut config = small(i);
        config.extensions.remove(Extensions::RESUME);
        config
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = begin(&mut rig, AGAIN);
    talk.keep[1] = true;
    let again = |user| Say {
        idempotent: true,
        ..Say::request(user)
    };
    for say in [again(1), again(2), Say::request(3)] {
        talk.say(&mut rig, 0, &say);
    }
    talk.settle(&mut rig);
    talk.keep[1] = false;
    let before = talk.heard[1].len();
    // Nothing waits to be sent, and what was sent last is not sent again.
    cut(&mut rig, &mut talk);
    assert_eq!(talk.count(0, "failed 3"), 1);
    for user in 4..6 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    until_anew(&mut rig, &mut talk);
    let asked = talk.heard[1][before..].iter();
    let asked: Vec<_> = asked.filter(|text| text.starts_with("request")).collect();
    assert_eq!(asked.len(), 4, "{asked:?}");
    for (heard, user) in asked.iter().zip([1, 2, 4, 5]) {
        assert!(heard.starts_with(&format!("request {user}:")), "{asked:?}");
        assert_eq!(talk.count(0, &format!("response {user}:")), 1);
    }
    wind_up(&mut rig);
}

#[test]
fn a_question_that_is_heard_after_the_loss_is_not_answered() {
    // The server is more patient.
    let config = |i| {
        let mut config = small(i);
        config.keepalive.as_mut().expect("on").probes = 3 + 7 * i;
        config
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = begin(&mut rig, AGAIN);
    // Nothing is heard until the client gives the server up; its own question is still out then.
    rig.gates[0] = Gate::default().hold(|step| matches!(step, Control::Drain { .. }));
    (rig.gates[0].frames, rig.gates[0].sends) = (true, true);
    let state = |rig: &Rig| {
        let seen = rig.sides[0].endpoint.connections().next();
        seen.expect("it lasts").state
    };
    while state(&rig) != "Parting" {
        assert!(rig.advance(), "{:#?}", talk.heard);
        talk.settle(&mut rig);
    }
    let late = rig.sides[0].endpoint.counters().late;
    rig.arrive(0, usize::MAX);
    assert!(rig.sides[0].endpoint.counters().late > late);
    rig.let_go(0);
    talk.settle(&mut rig);
    until_anew(&mut rig, &mut talk);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1:"), 1, "{:#?}", talk.heard);
    wind_up(&mut rig);
}

#[test]
fn what_may_be_sent_again_keeps_its_slot_until_its_outcome() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    let free = rig.sides[0].endpoint.free_rows().tx_slots;
    let slots = |rig: &Rig| free - rig.sides[0].endpoint.free_rows().tx_slots;
    let say = |user| Say {
        idempotent: true,
        ..Say::request(user)
    };
    // An answer frees it.
    for user in 0..4 {
        talk.say(&mut rig, 0, &say(user));
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, &format!("response {user}:")), 1);
        assert_eq!(slots(&rig), 0);
    }
    // The completion of its frame does not.
    talk.keep[1] = true;
    talk.say(&mut rig, 0, &say(4));
    talk.settle(&mut rig);
    assert_eq!(slots(&rig), 1);
    talk.keep[1] = false;
    // Others that come and go have slots of their own.
    for user in 5..100 {
        talk.say(&mut rig, 0, &Say::request(user));
        talk.settle(&mut rig);
        assert_eq!(slots(&rig), 1);
    }
    cut(&mut rig, &mut talk);
    until_anew(&mut rig, &mut talk);
    // With the bytes that it had: they are looked at.
    assert_eq!(talk.count(1, "request 4: 20 bytes"), 2);
    assert_eq!(talk.count(0, "response 4:"), 1);
    assert_eq!(slots(&rig), 0);
    wind_up(&mut rig);
}

#[test]
fn what_waits_to_be_sent_again_can_be_cancelled_and_expire() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    talk.keep[1] = true;
    let soon = rig.now.after(Duration::from_millis(1));
    let say = |user, deadline| Say {
        idempotent: true,
        deadline,
        ..Say::request(user)
    };
    // Its completion does not come before the drain is given up.
    rig.gates[0].sends = true;
    let first = talk.say(&mut rig, 0, &say(1, None));
    talk.say(&mut rig, 0, &say(2, Some(soon)));
    talk.say(&mut rig, 0, &say(3, None));
    talk.settle(&mut rig);
    rig.gates[0].flushes = true;
    cut(&mut rig, &mut talk);
    rig.sides[0].endpoint.cancel(first).expect("known");
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "cancelled 1"), 1);
    while talk.count(0, "timed out 2") == 0 {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    assert_eq!(
        talk.count(0, "reconnecting"),
        0,
        "the device has its frames"
    );
    rig.gates[0].flushes = false;
    talk.keep[1] = false;
    rig.let_go(0);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "reconnecting"), 1);
    // One that was never posted expires while it waits, and its row comes back.
    let free = rig.sides[0].endpoint.free_rows().tasks;
    let soon = rig.now.after(Duration::from_millis(2));
    talk.say(&mut rig, 0, &say(4, Some(soon)));
    let last = talk.say(&mut rig, 0, &Say::request(5));
    rig.sides[0].endpoint.cancel(last).expect("known");
    while talk.count(0, "timed out 4") == 0 {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    assert_eq!(talk.count(0, "cancelled 5"), 1);
    until_anew(&mut rig, &mut talk);
    assert_eq!(talk.count(0, "response 3:"), 1, "{:#?}", talk.heard);
    assert_eq!(talk.count(0, "response"), 1);
    assert_eq!(rig.sides[0].endpoint.free_rows().tasks, free + 1);
    wind_up(&mut rig);
}

#[test]
fn attempts_are_those_of_the_formula() {
    for seed in [0, 7, 1 << 40] {
        let config = |i| Config { seed, ..small(i) };
        let mut rig = Rig::with(config, |_| TransportLimits::rdma());
        let mut talk = begin(&mut rig, AGAIN);
        let connection = talk.connections[0].expect("open");
        serve(&mut rig, false);
        cut(&mut rig, &mut talk);
        let mut at = rig.now;
        let times = attempts(&mut rig, &mut talk);
        assert_eq!(times.len(), AGAIN.attempts_max as usize);
        let salt = (connection.index() as u64) << 32 | u64::from(connection.generation());
        for (attempt, time) in (0..).zip(times) {
            let pause = AGAIN.delay(seed, salt, attempt);
            let full = (AGAIN.first_delay * (1 << attempt)).min(AGAIN.max_delay);
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
            at = at.after(pause);
            assert_eq!(time, at, "attempt {attempt}");
        }
        assert_eq!(reasons(&rig, 0), [Reason::Refused]);
        wind_up(&mut rig);
    }
}

#[test]
fn no_attempt_begins_after_the_time_that_its_user_gave() {
    let again = Reconnect {
        attempts_max: u32::MAX,
        give_up_after: Some(Duration::from_secs(3)),
        ..AGAIN
    };
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, again);
    serve(&mut rig, false);
    cut(&mut rig, &mut talk);
    let start = rig.now;
    let times = attempts(&mut rig, &mut talk);
    assert!(times.len() >= 5);
    let last = times.last().expect("one");
    assert!(last.since(start) <= Duration::from_secs(3));
    assert!(rig.now.since(start) <= Duration::from_secs(3));
    wind_up(&mut rig);
}

#[test]
fn a_user_that_does_not_ask_for_it_gets_none() {
    let mut rig = Rig::new();
    let none = Reconnect {
        attempts_max: 0,
        ..AGAIN
    };
    for options in [ConnectOptions::new(60), options(60, none)] {
        let mut talk = Talk::default();
        talk.connections[0] = Some(rig.dial_with(&options));
        talk.settle(&mut rig);
        cut(&mut rig, &mut talk);
        assert_eq!(talk.count(0, "reconnecting"), 0);
        assert_eq!(talk.count(0, "closed Disconnected"), 1);
    }
    // And no delay makes no sense.
    for (first, max) in [(0, 1), (2, 1)] {
        let again = Reconnect {
            first_delay: Duration::from_secs(first),
            max_delay: Duration::from_secs(max),
            ..AGAIN
        };
        assert!(!again_is_taken(&mut rig, again));
    }
    wind_up(&mut rig);
}

fn again_is_taken(rig: &mut Rig, again: Reconnect) -> bool {
    let (now, side) = (rig.now, &mut rig.sides[0]);
    let peer = "10.0.0.2:7000".parse().expect("an address");
    let open = xio_proto::SessionOpen::default();
    let (transport, slots) = (side.transport, &mut side.slots);
    let options = options(60, again);
    let endpoint = &mut side.endpoint;
    let asked = endpoint.connect(now, transport, peer, &open, &options, slots);
    asked.is_ok()
}

/// How the user ends a connection.
type Ends = fn(&mut Rig, ConnectionId);

#[test]
fn its_user_ends_it_at_any_stage() {
    let ways: [(Ends, Reason); 2] = [
        (
            |rig, id| rig.sides[0].endpoint.close(rig.now, id).expect("known"),
            Reason::Closed,
        ),
        (
            |rig, id| rig.sides[0].endpoint.abort(rig.now, id).expect("known"),
            Reason::Aborted,
        ),
    ];
    for (end, reason) in ways {
        for stage in 0..5 {
            let mut rig = Rig::new();
            let mut talk = begin(&mut rig, AGAIN);
            let id = talk.connections[0].expect("open");
            rig.gates[0].flushes = stage == 0;
            // An attempt gets as far as this.
            match stage {
                2 => rig.gates[0] = rig_gate_hold_connect(),
                3 => rig.sides[1].deaf = true,
                _ => {}
            }
            rig.gates[0].idle = true;
            talk.say(&mut rig, 0, &Say::request(1));
            rig.gates[0].idle = false;
            cut(&mut rig, &mut talk);
            if stage >= 2 {
                let _ = rig.advance();
                talk.settle(&mut rig);
            }
            let up = talk.count(0, "reconnected");
            assert_eq!(up, usize::from(stage == 4), "{:#?}", talk.heard);
            end(&mut rig, id);
            talk.settle(&mut rig);
            rig.let_go(0);
            rig.sides[1].deaf = false;
            talk.settle(&mut rig);
            while closed(&rig, 0) == 0 {
                assert!(rig.advance(), "stage {stage}: {:#?}", talk.heard);
                talk.settle(&mut rig);
            }
            assert_eq!(reasons(&rig, 0), [reason], "stage {stage}");
            assert_eq!(talk.count(0, "connect failed"), 0);
            let ends = talk.count(0, "failed 1") + talk.count(0, "response 1");
            assert_eq!(ends, 1, "stage {stage}: {:#?}", talk.heard[0]);
            wind_up(&mut rig);
        }
    }
}

fn rig_gate_hold_connect() -> Gate {
    Gate::default().hold(connects)
}

#[test]
fn a_peer_that_falls_silent_is_connected_anew() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    let nexus = rig.nexus(0);
    rig.sever(0, nexus);
    let start = rig.now;
    while talk.count(0, "reconnecting: TimedOut(Keepalive)") == 0 {
        assert!(rig.advance(), "{:#?}", talk.heard);
        talk.settle(&mut rig);
    }
    assert_eq!(rig.now.since(start), Duration::from_secs(120));
    until_anew(&mut rig, &mut talk);
    // Keepalive goes on, and finds it alive.
    for _ in 0..200 {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    assert_eq!(talk.count(0, "reconnecting"), 1, "{:#?}", talk.heard[0]);
    wind_up(&mut rig);
}

#[test]
fn a_refusal_that_may_pass_is_tried_again_and_another_is_final() {
    for (code, passes) in [(status::NO_BUFS, true), (1, false)] {
        let mut rig = Rig::new();
        let mut talk = begin(&mut rig, AGAIN);
        rig.sides[1].events.clear();
        cut(&mut rig, &mut talk);
        while is(&rig, 1, |e| matches!(e, Event::SessionRequest { .. })) == 1 {
            assert!(rig.advance());
            World::run(&mut rig);
        }
        let asked = rig.sides[1].events.iter();
        let mut asked = asked.filter_map(|event| match *event {
            Event::SessionRequest { session, .. } => Some(session),
            _ => None,
        });
        let session = asked.next().expect("asked");
        rig.sides[1].events.clear();
        let (now, side) = (rig.now, &mut rig.sides[1]);
        let endpoint = &mut side.endpoint;
        let refused = endpoint.reject(now, session, code, b"no", &mut side.slots);
        refused.expect("room");
        talk.settle(&mut rig);
        if passes {
            until_anew(&mut rig, &mut talk);
            assert_eq!(talk.count(0, "reconnected after 2"), 1);
        } else {
            while closed(&rig, 0) == 0 {
                assert!(rig.advance());
                talk.settle(&mut rig);
            }
            assert_eq!(reasons(&rig, 0), [Reason::Rejected(code)]);
        }
        assert_eq!(talk.count(0, "connect failed"), 0);
        wind_up(&mut rig);
    }
}

#[test]
fn an_incompatible_peer_is_remembered() {
    let mut rig = Rig::new();
    let begun = |rig: &Rig| rig.steps[0].iter().filter(|c| connects(c)).count();
    for user in 0..3 {
        let own = ConnectOptions {
            own_nexus: true,
            ..options(user, AGAIN)
        };
        rig.dial_with(&own);
        settle(&mut rig);
    }
    assert_eq!(begun(&rig), 3);
    // The server that comes up in its place speaks another version.
    rig.gates[0] = rig_gate_hold_connect();
    for info in rig.dialed.clone() {
        let nexus = rig.sides[0].endpoint.info(info).expect("open").nexus;
        rig.tell_of(0, nexus, CmEvent::plain(CmKind::Disconnected));
    }
    settle(&mut rig);
    let anew = |event: &Event| matches!(event, Event::Reconnecting { .. });
    assert_eq!(is(&rig, 0, anew), 3);
    while begun(&rig) == 3 {
        assert!(rig.advance());
        settle(&mut rig);
    }
    let why = Refusal::Version {
        asked: 1,
        spoken: 2,
    };
    let reason = Reason::TurnedAway(why);
    let private = PrivateData::refusal(reason);
    let nexus = rig.nexus(0);
    let event = CmEvent {
        kind: CmKind::Rejected,
        status: 28,
        local: None,
        private: private.as_slice(),
    };
    rig.tell_of(0, nexus, event);
    settle(&mut rig);
    while closed(&rig, 0) < 3 {
        assert!(rig.advance());
        settle(&mut rig);
    }
    assert_eq!(begun(&rig), 4, "the others do not try");
    assert_eq!(reasons(&rig, 0), [reason; 3]);
    rig.forget_steps(0);
    wind_up(&mut rig);
}

#[test]
fn attempts_of_an_endpoint_are_spaced() {
    let config = |i| Config {
        reconnects_per_second: 10,
        ..small(i)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let again = Reconnect {
        first_delay: Duration::from_millis(2),
        max_delay: Duration::from_millis(2),
        ..AGAIN
    };
    for user in 0..4 {
        let own = ConnectOptions {
            own_nexus: true,
            ..options(user, again)
        };
        rig.dial_with(&own);
        settle(&mut rig);
    }
    serve(&mut rig, false);
    for id in rig.dialed.clone() {
        let nexus = rig.sides[0].endpoint.info(id).expect("open").nexus;
        rig.tell_of(0, nexus, CmEvent::plain(CmKind::Disconnected));
    }
    settle(&mut rig);
    let begun = |rig: &Rig| rig.steps[0].iter().filter(|c| connects(c)).count();
    let (mut times, mut seen) = (Vec::new(), begun(&rig));
    while closed(&rig, 0) < 4 {
        assert!(rig.advance());
        settle(&mut rig);
        if begun(&rig) > seen {
            assert_eq!(begun(&rig), seen + 1, "one at a time");
            seen = begun(&rig);
            times.push(rig.now);
        }
    }
    assert_eq!(times.len(), 40);
    for pair in times.windows(2) {
        assert!(pair[1].since(pair[0]) >= Duration::from_millis(100));
    }
    let made = rig.sides[0].endpoint.counters().reconnect_attempts;
    assert_eq!(made, 40);
    wind_up(&mut rig);
}

#[test]
fn connections_that_shared_share_again() {
    let mut rig = Rig::new();
    for user in 0..3 {
        rig.dial_with(&options(user, AGAIN));
        settle(&mut rig);
    }
    let begun = |rig: &Rig| rig.steps[0].iter().filter(|c| connects(c)).count();
    assert_eq!(begun(&rig), 1);
    for i in 0..2 {
        rig.tell(i, CmKind::Disconnected);
    }
    settle(&mut rig);
    let anew = |event: &Event| matches!(event, Event::Reconnected { .. });
    while is(&rig, 0, anew) < 3 {
        assert!(rig.advance());
        settle(&mut rig);
    }
    assert_eq!(begun(&rig), 2, "one for all");
    wind_up(&mut rig);
}

#[test]
fn a_link_that_comes_and_goes_is_not_hammered() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        cut(&mut rig, &mut talk);
        pauses.push(until_anew(&mut rig, &mut talk));
    }
    let slow = pauses.iter().filter(|pause| **pause >= AGAIN.max_delay / 2);
    assert!(slow.count() >= 4, "{pauses:?}");
    // One that was up for as long as the longest pause begins anew.
    rig.now = rig.now.after(AGAIN.max_delay);
    cut(&mut rig, &mut talk);
    let pause = until_anew(&mut rig, &mut talk);
    assert!(pause <= AGAIN.first_delay, "{pause:?}");
    wind_up(&mut rig);
}

#[test]
fn a_life_that_is_over_before_it_was_heard_of_is_told_whole() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    let id = talk.connections[0].expect("open");
    // Two attempts find nobody; the third succeeds, and nobody asks for events.
    serve(&mut rig, false);
    cut(&mut rig, &mut talk);
    let begun = |rig: &Rig| rig.steps[0].iter().filter(|c| connects(c)).count();
    let before = begun(&rig);
    while begun(&rig) < before + 2 {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    serve(&mut rig, true);
    talk.clear();
    rig.sides[0].deaf = true;
    let online = |rig: &Rig| {
        rig.sides[0]
            .endpoint
            .info(id)
            .is_ok_and(|c| c.state == "Online")
    };
    while !online(&rig) {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    cut(&mut rig, &mut talk);
    let tried = rig.sides[0].endpoint.counters().reconnect_attempts;
    assert_eq!(tried, 3);
    // Nothing is tried before the user has heard of the loss.
    for _ in 0..5 {
        let _ = rig.advance();
        talk.settle(&mut rig);
    }
    assert_eq!(begun(&rig), before + 3);
    rig.sides[0].deaf = false;
    talk.settle(&mut rig);
    let heard = |talk: &Talk| {
        let about = |text: &&String| text.starts_with("reconnect");
        talk.heard[0]
            .iter()
            .filter(about)
            .cloned()
            .collect::<Vec<_>>()
    };
    let two = ["reconnected after 3", "reconnecting: Disconnected"];
    assert_eq!(heard(&talk), two);
    until_anew(&mut rig, &mut talk);
    assert_eq!(heard(&talk)[2..], ["reconnected after 1"]);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    wind_up(&mut rig);
}

#[test]
fn what_the_user_holds_of_the_old_life_is_still_the_users() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    // The server asks the client, which keeps what it gets; and what comes behind waits unread.
    talk.keep[0] = true;
    for user in 0..3 {
        talk.say(&mut rig, 1, &Say::request(user));
    }
    talk.settle(&mut rig);
    assert_eq!(talk.kept[0].len(), 3);
    rig.sides[0].deaf = true;
    talk.say(&mut rig, 1, &Say::request(3));
    rig.run();
    cut(&mut rig, &mut talk);
    rig.sides[0].deaf = false;
    talk.settle(&mut rig);
    assert_eq!(talk.kept[0].len(), 4, "what had come is heard");
    let unanswered = |event: &Event| matches!(event, Event::Reconnecting { unanswered: 4, .. });
    assert_eq!(is(&rig, 0, unanswered), 1, "{:#?}", rig.log[0]);
    until_anew(&mut rig, &mut talk);
    for (task, _) in std::mem::take(&mut talk.kept[0]) {
        let message = xio_proto::Message::default();
        let answered = rig.sides[0].endpoint.respond(task, &message);
        let reason = Reason::Disconnected;
        assert_eq!(answered, Err(xio_proto::CommandError::Closed(reason)));
        rig.sides[0].endpoint.release(task).expect("held");
    }
    // The new life has its own.
    talk.keep[0] = false;
    talk.say(&mut rig, 1, &Say::request(9));
    talk.settle(&mut rig);
    assert_eq!(talk.count(1, "response 9"), 1);
    wind_up(&mut rig);
}

#[test]
fn frames_of_the_old_life_reach_no_new_one() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    // Answers are on their way when the wire is cut, and come when the new life is there.
    rig.gates[0] = deaf_to_frames();
    for user in 0..5 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    talk.settle(&mut rig);
    assert!(rig.waiting(0) >= 5);
    cut(&mut rig, &mut talk);
    rig.gates[0].frames = false;
    until_anew(&mut rig, &mut talk);
    assert_eq!(talk.count(0, "failed"), 5, "{:#?}", talk.heard[0]);
    rig.arrive(0, usize::MAX);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response"), 0);
    talk.say(&mut rig, 0, &Say::request(9));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 9"), 1);
    assert_eq!(rig.sides[0].endpoint.counters().violations, 0);
    wind_up(&mut rig);
}

#[test]
fn an_address_that_moves_is_resolved_anew() {
    let mut rig = Rig::new();
    let mut talk = begin(&mut rig, AGAIN);
    let resolved = |rig: &Rig| rig.steps[0].iter().filter(|c| resolves(c)).count();
    assert_eq!(resolved(&rig), 1);
    rig.tell(0, CmKind::AddrChange);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "reconnecting"), 1);
    until_anew(&mut rig, &mut talk);
    assert_eq!(resolved(&rig), 2);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    wind_up(&mut rig);
}
