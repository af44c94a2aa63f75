//! Kind G: who is alive, and how long a close takes.

use std::time::Duration;

use xio_proto::{
    CmKind, CommandError, Config, Control, Event, Message, Reason, Step, TransportLimits, Work,
    WorkStatus,
};
use xio_tests::rig::{Gate, Rig};
use xio_tests::talk::{Say, Talk, World, free_rows};

use crate::users::{abort, closed, is, open, outcome_of, reasons, settle, wind_up};

const KEEPALIVE_REQ: [u8; 4] = [0, 0, 0x40, 2];
const FIN_REQ: [u8; 4] = [0, 0, 4, 2];
const FIN_RSP: [u8; 4] = [0, 0, 4, 4];

fn sent(rig: &Rig, i: usize, kind: [u8; 4]) -> usize {
    let is = |frame: &&Vec<u8>| frame[4..8] == kind;
    rig.sides[i].sent.iter().filter(is).count()
}

fn quick(i: u8) -> Config {
    Config {
        fin_timeout: Duration::from_secs(5),
        ..Config::new(i, 64, 48)
    }
}

/// An open connection whose close may take five seconds.
fn open_quick() -> (Rig, Talk) {
    let mut rig = Rig::with(quick, |_| TransportLimits::rdma());
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

/// As [`open_quick`], and the server takes few frames at once.
fn open_narrow() -> (Rig, Talk) {
    let config = |i| Config {
        min_grant: 5,
        ..quick(i)
    };
    let limits = |_| TransportLimits {
        rq_depth: 8,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(config, limits);
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

fn close(rig: &mut Rig, talk: &Talk, i: usize) {
    let connection = talk.connections[i].expect("open");
    let now = rig.now;
    rig.sides[i].endpoint.close(now, connection).expect("known");
}

/// Lets time pass until a side's connection is over: how long it took.
fn until_closed(rig: &mut Rig, talk: &mut Talk, i: usize) -> Duration {
    let start = rig.now;
    talk.settle(rig);
    while closed(rig, i) == 0 {
        assert!(rig.advance(), "{:?}", talk.heard);
        talk.settle(rig);
    }
    rig.now.since(start)
}

#[test]
fn a_silent_peer_is_given_up_in_its_bound() {
    for completes in [false, true] {
        let (mut rig, mut talk) = open();
        // No frame arrives, and perhaps the transport says nothing either.
        rig.gates[0].frames = true;
        rig.gates[1].frames = true;
        rig.gates[0].sends = !completes;
        talk.say(&mut rig, 0, &Say::request(1));
        let took = until_closed(&mut rig, &mut talk, 0);
        // A minute of peace, three looks, and the drain.
        assert!(took <= Duration::from_secs(121), "{took:?}");
        assert_eq!(reasons(&rig, 0), [Reason::TimedOut(Step::Keepalive)]);
        assert_eq!(talk.count(0, "failed 1"), 1);
        wind_up(&mut rig);
    }
}

#[test]
fn a_keepalive_that_cannot_be_posted_is_tried_once() {
    let (mut rig, mut talk) = open();
    let before = rig.posted[0].len();
    rig.gates[0] = Gate::default().fail_work(|work| matches!(work, Work::Send { .. }), 12);
    let took = until_closed(&mut rig, &mut talk, 0);
    assert!(took <= Duration::from_secs(62), "{took:?}");
    let tried = rig.posted[0][before..].iter();
    let tried = tried
        .filter(|work| matches!(work, Work::Send { .. }))
        .count();
    assert_eq!(tried, 1);
    assert_eq!(reasons(&rig, 0), [Reason::PostFailed(12)]);
    // Nobody hears of a message that is not a user's.
    assert_eq!(is(&rig, 0, |event| outcome_of(event).is_some()), 0);
    wind_up(&mut rig);
}

#[test]
fn a_busy_connection_is_alive() {
    let (mut rig, mut talk) = open();
    rig.gates[0].frames = true;
    for user in 0..15 {
        talk.say(&mut rig, 1, &Say::one_way(user));
    }
    rig.run();
    let queued = rig.waiting(0);
    assert!(queued >= 10, "{queued}");
    // The answer to our question comes behind all of these, far too late.
    let minute = rig.now.after(Duration::from_secs(60));
    while rig.now < minute {
        assert!(rig.advance());
    }
    assert_eq!(sent(&rig, 0, KEEPALIVE_REQ), 1);
    for user in 0..queued {
        let next = rig.now.after(Duration::from_secs(19));
        while rig.now < next {
            assert!(rig.advance());
            talk.settle(&mut rig);
        }
        // Its own question is not answered either, but it hears us.
        talk.say(&mut rig, 0, &Say::one_way(200 + user as u64));
        rig.arrive(0, 1);
        talk.settle(&mut rig);
        assert_eq!(closed(&rig, 0), 0, "it was heard");
    }
    rig.gates[0].frames = false;
    rig.arrive(0, usize::MAX);
    talk.settle(&mut rig);
    talk.say(&mut rig, 0, &Say::request(100));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 100"), 1);
    wind_up(&mut rig);
}

#[test]
fn those_who_end_put_off_nobody() {
    const COUNT: usize = 40;
    let config = |i| Config {
        linger: Duration::from_secs(1),
        ..Config::new(i, 700, 256)
    };
    let counts = |config: &Config| xio_proto::storage::Counts {
        nexuses: COUNT + 2,
        sessions: COUNT + 2,
        connections: COUNT + 2,
        ..xio_tests::pair::Pair::counts(config)
    };
    let mut rig = Rig::sized(config, counts, |_| TransportLimits::rdma());
    for user in 0..COUNT {
        rig.dial(user as u64);
        settle(&mut rig);
    }
    let start = rig.now;
    let dead = rig.sides[0]
        .endpoint
        .info(rig.dialed[COUNT - 1])
        .expect("open")
        .nexus;
    rig.sever(0, dead);
    // Half of them begin to close just before all are to be asked.
    let now = rig.now.after(Duration::from_millis(59_999));
    rig.now = now;
    for k in 0..COUNT / 2 {
        let connection = rig.dialed[k];
        rig.sides[0].endpoint.close(now, connection).expect("open");
    }
    while closed(&rig, 0) < COUNT / 2 + 1 {
        assert!(rig.advance());
    }
    let dead = reasons(&rig, 0).last().copied();
    assert_eq!(dead, Some(Reason::TimedOut(Step::Keepalive)));
    assert!(rig.now.since(start) <= Duration::from_secs(121));
    let asked = sent(&rig, 0, KEEPALIVE_REQ);
    assert!(
        (COUNT / 2..=COUNT + 1).contains(&asked),
        "{asked}, each once or twice"
    );
    wind_up(&mut rig);
}

#[test]
fn a_close_is_over_in_its_time() {
    let (mut rig, mut talk) = open_quick();
    rig.gates[1].frames = true;
    close(&mut rig, &talk, 0);
    let took = until_closed(&mut rig, &mut talk, 0);
    assert!(took <= Duration::from_secs(5), "{took:?}");
    assert_eq!(
        reasons(&rig, 0),
        [Reason::Closed],
        "the first reason stands"
    );
    wind_up(&mut rig);
    let (mut rig, mut talk) = open_quick();
    rig.gates[1].frames = true;
    abort(&mut rig, &talk, 0);
    assert_eq!(until_closed(&mut rig, &mut talk, 0), Duration::ZERO);
    assert_eq!(sent(&rig, 0, FIN_REQ), 0);
    wind_up(&mut rig);
    // A peer that is known to be dead is told nothing more.
    let (mut rig, mut talk) = open_quick();
    rig.gates[1].frames = true;
    until_closed(&mut rig, &mut talk, 0);
    assert_eq!(sent(&rig, 0, FIN_REQ), 0);
    wind_up(&mut rig);
}

/// States of a connection, and the side that is in them.
const STATES: [(&str, usize); 9] = [
    ("setup sent", 0),
    ("leaving", 0),
    ("online", 0),
    ("online", 1),
    ("fin wait 1", 0),
    ("fin wait 2", 0),
    ("closing", 0),
    ("time wait", 0),
    ("last ack", 1),
];

fn in_state(state: &str) -> (Rig, Talk) {
    let mut rig = Rig::with(quick, |_| TransportLimits::rdma());
    let mut talk = Talk::default();
    if state == "setup sent" || state == "leaving" {
        talk.connections[0] = Some(rig.dial(60));
        rig.run();
        if state == "leaving" {
            close(&mut rig, &talk, 0);
            rig.run();
        }
        return (rig, talk);
    }
    talk = Talk::open(&mut rig, false);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.keep[1] = true;
    talk.settle(&mut rig);
    match state {
        "fin wait 1" => {
            rig.gates[1].frames = true;
            close(&mut rig, &talk, 0);
        }
        "fin wait 2" => {
            rig.gates[0].frames = true;
            close(&mut rig, &talk, 0);
            rig.run();
            rig.arrive(0, 1);
        }
        "closing" => {
            rig.gates[0].frames = true;
            rig.gates[1].frames = true;
            close(&mut rig, &talk, 0);
            close(&mut rig, &talk, 1);
            rig.run();
            rig.arrive(0, 1);
        }
        "time wait" => {
            rig.gates[0].sends = true;
            close(&mut rig, &talk, 0);
        }
        "last ack" => {
            rig.gates[0].frames = true;
            close(&mut rig, &talk, 0);
        }
        _ => {}
    }
    rig.run();
    (rig, talk)
}

const TROUBLES: [&str; 8] = [
    "time",
    "error",
    "disconnected",
    "rejected",
    "removed",
    "abort",
    "close",
    "failed",
];

#[test]
fn every_state_and_every_trouble_end_once() {
    for (state, i) in STATES {
        for trouble in TROUBLES {
            if (state, trouble) == ("online", "time") {
                // Time alone ends nothing that is well.
                continue;
            }
            let (mut rig, talk) = in_state(state);
            let (now, nexus) = (rig.now, rig.nexus(i));
            let connection = talk.connections[i].expect("open");
            let endpoint = &mut rig.sides[i].endpoint;
            match trouble {
                "error" => {
                    let failed = Reason::WorkFailed(WorkStatus::RetryExceeded);
                    endpoint.handle_driver_failed(now, nexus, failed);
                }
                "failed" => {
                    endpoint.handle_driver_failed(now, nexus, Reason::DriverFailed(5));
                }
                "disconnected" => rig.tell(i, CmKind::Disconnected),
                "rejected" => rig.tell(i, CmKind::Rejected),
                "removed" => rig.tell(i, CmKind::DeviceRemoval),
                "abort" => endpoint.abort(now, connection).expect("known"),
                "close" => endpoint.close(now, connection).expect("known"),
                _ => {}
            }
            rig.run();
            let start = rig.now;
            while closed(&rig, i) == 0 {
                assert!(rig.advance(), "{state}, {trouble}");
            }
            let took = rig.now.since(start);
            // The device has the last answer still, and the transport connection lingers with it.
            let most = if state == "time wait" { 61 } else { 12 };
            assert!(
                took <= Duration::from_secs(most),
                "{state}, {trouble}: {took:?}"
            );
            wind_up(&mut rig);
            assert_eq!(closed(&rig, i), 1, "{state}, {trouble}");
        }
    }
}

#[test]
fn a_loss_while_fin_is_out_is_told_once() {
    for flush_first in [false, true] {
        let (mut rig, mut talk) = open_quick();
        rig.gates[0].sends = true;
        rig.gates[0].flushes = true;
        rig.gates[1].frames = true;
        close(&mut rig, &talk, 0);
        rig.run();
        assert_eq!(sent(&rig, 0, FIN_REQ), 1);
        if flush_first {
            rig.fail_oldest(0, WorkStatus::Flushed);
            rig.tell(0, CmKind::Disconnected);
        } else {
            rig.tell(0, CmKind::Disconnected);
            rig.run();
            rig.fail_oldest(0, WorkStatus::Flushed);
        }
        rig.let_go(0);
        let took = until_closed(&mut rig, &mut talk, 0);
        assert_eq!(took, Duration::ZERO);
        assert_eq!(reasons(&rig, 0), [Reason::Closed]);
        wind_up(&mut rig);
    }
}

#[test]
fn every_order_of_fins_and_completions_ends_alike() {
    for both in [false, true] {
        // When the completion of our FIN comes: before, between and after the peer's frames.
        for completes_at in 0..3 {
            let (mut rig, mut talk) = open_quick();
            rig.gates[0].frames = true;
            rig.gates[0].sends = true;
            close(&mut rig, &talk, 0);
            if both {
                close(&mut rig, &talk, 1);
            }
            rig.run();
            assert!(rig.waiting(0) >= 2, "{}", rig.waiting(0));
            for at in 0..3 {
                if at == completes_at {
                    rig.complete_sends(0, 1);
                    rig.run();
                }
                if at < 2 {
                    rig.arrive(0, 1);
                    rig.run();
                }
            }
            // And that of our answer to the peer's.
            rig.let_go(0);
            let took = until_closed(&mut rig, &mut talk, 0);
            assert!(took < Duration::from_secs(1), "{took:?}");
            until_closed(&mut rig, &mut talk, 1);
            assert_eq!(reasons(&rig, 0), [Reason::Closed], "{both}, {completes_at}");
            let peer = if both {
                Reason::Closed
            } else {
                Reason::PeerClosed
            };
            assert_eq!(reasons(&rig, 1), [peer], "{both}, {completes_at}");
            let fins = [0, 1].map(|i| (sent(&rig, i, FIN_REQ), sent(&rig, i, FIN_RSP)));
            assert_eq!(fins, [(1, 1), (1, 1)]);
            wind_up(&mut rig);
        }
    }
}

#[test]
fn a_session_ends_once_whoever_goes_last() {
    for third in [false, true] {
        let mut rig = Rig::new();
        let first = rig.dial(60);
        settle(&mut rig);
        let session = rig.log[0].iter().find_map(|event| match *event {
            Event::Established { session, .. } => Some(session),
            _ => None,
        });
        let session = session.expect("established");
        let join = |rig: &mut Rig, user| {
            let options = xio_proto::ConnectOptions::new(user);
            let portal = xio_tests::pair::SERVER.parse().expect("an address");
            let (now, transport) = (rig.now, rig.sides[0].transport);
            let endpoint = &mut rig.sides[0].endpoint;
            endpoint.join(now, session, transport, portal, &options)
        };
        let second = join(&mut rig, 61).expect("room");
        settle(&mut rig);
        let now = rig.now;
        for connection in [first, second] {
            rig.sides[0].endpoint.close(now, connection).expect("open");
        }
        if third {
            let joined = join(&mut rig, 62);
            assert!(joined.is_ok(), "the session is there still: {joined:?}");
        }
        settle(&mut rig);
        while closed(&rig, 0) < 2 {
            assert!(rig.advance());
        }
        wind_up(&mut rig);
        for i in 0..2 {
            let ended = is(&rig, i, |event| {
                matches!(event, Event::SessionClosed { .. })
            });
            assert!(ended >= 1, "side {i}");
        }
        let ended = is(&rig, 0, |event| {
            matches!(event, Event::SessionClosed { .. })
        });
        assert_eq!(ended, 1);
    }
}

#[test]
fn a_disconnect_that_comes_late_is_not_waited_for() {
    let (mut rig, mut talk) = open_quick();
    rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Disconnect { .. }));
    abort(&mut rig, &talk, 0);
    let nexus = rig.nexus(0);
    let start = rig.now;
    talk.settle(&mut rig);
    while rig.sides[0].endpoint.free_rows() != rig.free[0] {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    assert!(rig.now.since(start) <= Duration::from_secs(1));
    let event = xio_proto::CmEvent::failed(CmKind::Disconnected, -110);
    let stale = rig.sides[0].endpoint.counters().stale_cm;
    rig.tell_of(0, nexus, event);
    assert_eq!(rig.sides[0].endpoint.counters().stale_cm, stale + 1);
    wind_up(&mut rig);
}

#[test]
fn a_disconnected_queue_pair_is_drained() {
    let (mut rig, mut talk) = open_quick();
    rig.gates[0] = Gate::default().hold_work(|work| matches!(work, Work::Send { .. }));
    for user in 0..8 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    assert!(rig.out(0) >= 8);
    rig.tell(0, CmKind::Disconnected);
    talk.settle(&mut rig);
    let drains = |step: &&Control| matches!(step, Control::Drain { .. });
    assert_eq!(
        rig.steps[0].iter().filter(drains).count(),
        1,
        "we move it ourselves"
    );
    assert_eq!(talk.count(0, "failed"), 8, "without any time passing");
    wind_up(&mut rig);
}

#[test]
fn a_black_hole_delays_nobody() {
    let (mut rig, mut talk) = open();
    rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::ResolveAddress { .. }));
    let hole = rig.dial(61);
    let start = rig.now;
    for user in 0..100 {
        talk.say(&mut rig, 0, &Say::request(user));
        talk.settle(&mut rig);
    }
    assert_eq!((talk.count(0, "response"), rig.now), (100, start));
    while closed(&rig, 0) == 0 {
        assert!(rig.advance());
    }
    assert_eq!(rig.now.since(start), Duration::from_secs(10));
    let ended = is(&rig, 0, |event| {
        matches!(event, Event::ConnectFailed { user: 61, .. })
    });
    assert_eq!(ended, 1, "{hole:?}");
    wind_up(&mut rig);
}

#[test]
fn deadlines_run_in_every_queue() {
    // While connecting, while the server's user thinks, and without credits.
    for place in 0..3 {
        let mut rig = Rig::new();
        let mut talk = Talk::default();
        if place == 2 {
            talk = Talk::open(&mut rig, false);
            rig.gates[1].frames = true;
            for user in 0..15 {
                talk.say(&mut rig, 0, &Say::one_way(100 + user));
            }
        } else {
            if place == 0 {
                rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Connect { .. }));
            }
            talk.connections[0] = Some(rig.dial(60));
        }
        rig.run();
        let deadline = rig.now.after(Duration::from_millis(500));
        let say = Say {
            deadline: Some(deadline),
            ..Say::request(1)
        };
        talk.say(&mut rig, 0, &say);
        rig.run();
        let told = |rig: &Rig| {
            is(rig, 0, |event| {
                matches!(event, Event::TimedOut { user: 1, .. })
            })
        };
        rig.now = xio_proto::Instant::from_nanos(deadline.as_nanos() - 1);
        let now = rig.now;
        rig.sides[0].endpoint.handle_timeout(now);
        rig.run();
        assert_eq!(told(&rig), 0, "place {place}: a moment too early");
        rig.now = deadline;
        rig.sides[0].endpoint.handle_timeout(deadline);
        rig.run();
        assert_eq!(told(&rig), 1, "place {place}");
        wind_up(&mut rig);
    }
}

#[test]
fn a_fin_that_waits_behind_messages_is_over_in_its_time() {
    let (mut rig, mut talk) = open_narrow();
    rig.gates[1].frames = true;
    for user in 0..20 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    close(&mut rig, &talk, 0);
    rig.run();
    assert_eq!(sent(&rig, 0, FIN_REQ), 0, "it waits behind them");
    let took = until_closed(&mut rig, &mut talk, 0);
    assert!(took <= Duration::from_secs(6), "{took:?}");
    assert_eq!(talk.count(0, "failed"), 20, "{:?}", talk.heard[0]);
    wind_up(&mut rig);
}

#[test]
fn a_fin_behind_messages_without_credits_goes_when_they_come() {
    let (mut rig, mut talk) = open_narrow();
    rig.gates[1].frames = true;
    for user in 0..20 {
        talk.say(&mut rig, 0, &Say::request(user));
    }
    rig.run();
    close(&mut rig, &talk, 0);
    rig.run();
    assert_eq!(sent(&rig, 0, FIN_REQ), 0);
    rig.gates[1].frames = false;
    rig.arrive(1, usize::MAX);
    let took = until_closed(&mut rig, &mut talk, 0);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(talk.count(1, "request"), 20);
    let outcomes = talk.count(0, "response") + talk.count(0, "failed");
    assert_eq!(outcomes, 20);
    assert_eq!(reasons(&rig, 0), [Reason::Closed]);
    wind_up(&mut rig);
}

/// The peer's FIN once more, with the number that is next.
fn fin_again(rig: &mut Rig, from: usize) -> bool {
    let is_fin = |frame: &&Vec<u8>| frame[4..8] == FIN_REQ;
    let mut fin = rig.sides[from]
        .sent
        .iter()
        .find(is_fin)
        .expect("a FIN")
        .clone();
    // Frames with a transport header: all but setups, credits and READ_ACKs.
    let plain = |frame: &&Vec<u8>| !matches!(frame[4..8], [0, 0, 0, 0x82 | 0x84 | 0x41]);
    let sn = rig.sides[from].sent.iter().filter(plain).count() as u16;
    fin[60..62].copy_from_slice(&sn.to_be_bytes());
    fin[64..66].copy_from_slice(&[0, 0]);
    rig.inject(1 - from, &fin)
}

#[test]
fn a_second_fin_harms_nobody() {
    let (mut rig, mut talk) = open_quick();
    // Ours is not answered, so that the connection stays for a while.
    rig.gates[0].frames = true;
    close(&mut rig, &talk, 0);
    rig.run();
    assert_eq!((sent(&rig, 1, FIN_REQ), sent(&rig, 1, FIN_RSP)), (1, 1));
    assert!(fin_again(&mut rig, 0));
    rig.run();
    assert_eq!(sent(&rig, 1, FIN_REQ), 1, "one FIN of ours is enough");
    assert!(sent(&rig, 1, FIN_RSP) <= 2);
    rig.let_go(0);
    until_closed(&mut rig, &mut talk, 1);
    assert_eq!(closed(&rig, 1), 1);
    wind_up(&mut rig);
}

#[test]
fn a_fin_is_answered_or_its_connection_is_over() {
    let (mut rig, mut talk) = open_quick();
    close(&mut rig, &talk, 0);
    until_closed(&mut rig, &mut talk, 0);
    until_closed(&mut rig, &mut talk, 1);
    let (late, heard) = (rig.sides[1].endpoint.counters().late, rig.log[1].len());
    let frames = rig.sides[1].sent.len();
    assert!(fin_again(&mut rig, 0));
    rig.run();
    assert_eq!(rig.sides[1].endpoint.counters().late, late + 1);
    assert_eq!((rig.log[1].len(), rig.sides[1].sent.len()), (heard, frames));
    wind_up(&mut rig);
}

#[test]
fn an_answer_to_fin_after_the_end_is_late() {
    let (mut rig, mut talk) = open_quick();
    rig.gates[0].frames = true;
    close(&mut rig, &talk, 0);
    until_closed(&mut rig, &mut talk, 0);
    let heard = rig.log[0].len();
    rig.gates[0].frames = false;
    rig.arrive(0, usize::MAX);
    rig.run();
    assert_eq!(rig.log[0].len(), heard);
    let violations = rig.sides[0].endpoint.counters().violations;
    assert_eq!(violations, 0);
    wind_up(&mut rig);
}

#[test]
fn responses_are_taken_until_the_connection_is_over() {
    let (mut rig, mut talk) = open_quick();
    talk.keep[1] = true;
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    // The server closes, and answers what it has before that.
    close(&mut rig, &talk, 1);
    talk.let_go(&mut rig, 1);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1, "{:?}", talk.heard[0]);
    assert_eq!(talk.count(1, "sent 5001"), 1, "{:?}", talk.heard[1]);
    wind_up(&mut rig);
}

#[test]
fn what_cannot_be_answered_any_more_is_refused() {
    let (mut rig, mut talk) = open_quick();
    talk.keep[1] = true;
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    let (task, _) = talk.kept[1].pop().expect("kept");
    rig.gates[0].frames = true;
    close(&mut rig, &talk, 0);
    rig.run();
    let heard = rig.log[1].len();
    let refused = rig.sides[1].endpoint.respond(task, &Message::default());
    assert_eq!(refused, Err(CommandError::Closed(Reason::PeerClosed)));
    rig.run();
    assert_eq!(rig.log[1].len(), heard, "the call says it, and no event");
    wind_up(&mut rig);
}

#[test]
fn nothing_is_heard_after_the_last_event() {
    for i in 0..2 {
        for force in [false, true] {
            let (mut rig, mut talk) = open_quick();
            for user in 0..6 {
                talk.say(&mut rig, 0, &Say::one_way(user));
                talk.say(&mut rig, 1, &Say::one_way(user));
            }
            if force {
                abort(&mut rig, &talk, i);
            } else {
                close(&mut rig, &talk, i);
            }
            talk.settle(&mut rig);
            until_closed(&mut rig, &mut talk, 0);
            until_closed(&mut rig, &mut talk, 1);
            rig.tell(i, CmKind::Disconnected);
            talk.outlive(&mut rig);
            assert_eq!([closed(&rig, 0), closed(&rig, 1)], [1, 1]);
            // The grammar of events is looked at there.
            wind_up(&mut rig);
        }
    }
}

#[test]
fn flushed_control_frames_come_back() {
    let (mut rig, mut talk) = open_quick();
    rig.gates[0] = Gate::default().hold_work(|work| matches!(work, Work::Send { .. }));
    rig.gates[1] = Gate::default().hold_work(|work| matches!(work, Work::Send { .. }));
    let say = Say {
        receipt: true,
        ..Say::one_way(1)
    };
    talk.say(&mut rig, 0, &say);
    let minute = rig.now.after(Duration::from_secs(60));
    while rig.now < minute {
        assert!(rig.advance());
    }
    close(&mut rig, &talk, 0);
    close(&mut rig, &talk, 1);
    rig.run();
    assert!(rig.out(0) > 8 && rig.out(1) > 8);
    rig.tell(0, CmKind::Disconnected);
    rig.tell(1, CmKind::Disconnected);
    talk.settle(&mut rig);
    assert_eq!(free_rows(&mut rig), rig.free, "without any time passing");
    wind_up(&mut rig);
}
