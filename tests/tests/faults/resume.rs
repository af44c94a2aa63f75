//! Kind C: what a connection that is made anew hears of the life before, and what becomes of its
//! messages (PROTOCOL.md 8.7).

use std::time::Duration;

use xio_proto::wire::{Resume, What, status};
use xio_proto::{
    CmKind, Config, ConnectOptions, Event, Extensions, Failure, Reason, Reconnect, TransportLimits,
};
use xio_tests::rig::{Gate, Rig, small};
use xio_tests::talk::{Say, Talk, World};

use crate::users::{closed, is, reasons, wind_up};

const AGAIN: Reconnect = Reconnect {
    attempts_max: 10,
    give_up_after: None,
    first_delay: Duration::from_millis(100),
    max_delay: Duration::from_secs(1),
};

const RESUME_REQ: u32 = 0x8002;
const RESUME_RSP: u32 = 0x8004;

fn begin(config: impl Fn(u8) -> Config) -> (Rig, Talk) {
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut talk = Talk::default();
    let options = ConnectOptions {
        reconnect: Some(AGAIN),
        ..ConnectOptions::new(60)
    };
    talk.connections[0] = Some(rig.dial_with(&options));
    talk.settle(&mut rig);
    assert!(talk.connections[1].is_some(), "{:?}", talk.heard);
    (rig, talk)
}

/// The server gets `came` requests and keeps them, and then `lost` more never reach it.
fn ask(rig: &mut Rig, talk: &mut Talk, came: u64, lost: u64) {
    talk.keep[1] = true;
    for user in 0..came {
        talk.say(rig, 0, &Say::request(user));
    }
    talk.settle(rig);
    rig.gates[1].frames = true;
    for user in came..came + lost {
        talk.say(rig, 0, &Say::request(user));
    }
    talk.settle(rig);
    assert_eq!(rig.waiting(1), lost as usize);
    talk.keep[1] = false;
}

/// The wire is cut, both sides hear of it, and what was on it is gone.
fn cut(rig: &mut Rig, talk: &mut Talk) {
    while rig.intercept(1).is_some() {}
    rig.gates[1].frames = false;
    for i in 0..2 {
        rig.tell(i, CmKind::Disconnected);
    }
    talk.settle(rig);
}

fn until(rig: &mut Rig, talk: &mut Talk, what: &str) {
    let before = talk.count(0, what);
    while talk.count(0, what) == before {
        assert!(rig.advance(), "{what}: {:#?}", talk.heard);
        talk.settle(rig);
    }
}

/// The requests that the server heard of, in order.
fn asked(talk: &Talk) -> Vec<u64> {
    let user = |text: &String| {
        let rest = text.strip_prefix("request ")?;
        rest.split(':').next()?.parse().ok()
    };
    talk.heard[1].iter().filter_map(user).collect()
}

/// A frame of that kind that waits for a side, when everything else was let through.
fn catch(rig: &mut Rig, talk: &mut Talk, i: usize, kind: u32) -> Vec<u8> {
    rig.gates[i].frames = true;
    for _ in 0..1000 {
        talk.settle(rig);
        while rig.waiting(i) > 0 {
            let frame = rig.intercept(i).expect("it waits");
            if frame[4..8] == kind.to_be_bytes() {
                return frame;
            }
            assert!(rig.inject(i, &frame));
            talk.settle(rig);
        }
        assert!(rig.advance(), "{:#?}", talk.heard);
    }
    panic!("no frame {kind:#x}: {:#?}", talk.heard);
}

fn counts(talk: &Talk, users: std::ops::Range<u64>, what: &str) -> Vec<usize> {
    users
        .map(|user| talk.count(0, &format!("{what} {user}:")))
        .collect()
}

#[test]
fn what_never_came_is_sent_again_and_what_came_is_not() {
    let (mut rig, mut talk) = begin(small);
    ask(&mut rig, &mut talk, 3, 4);
    rig.gates[0].idle = true;
    talk.say(&mut rig, 0, &Say::request(7));
    rig.gates[0].idle = false;
    cut(&mut rig, &mut talk);
    assert_eq!(talk.count(0, "failed"), 0);
    until(&mut rig, &mut talk, "reconnected");
    let lost = format!("{:?}", Failure::Unknown(Reason::Disconnected));
    for user in 0..3 {
        assert_eq!(talk.count(0, &format!("failed {user}: {lost}")), 1);
    }
    assert_eq!(talk.count(0, "failed"), 3, "{:#?}", talk.heard[0]);
    assert_eq!(asked(&talk), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(counts(&talk, 3..8, "response"), [1; 5]);
    for side in &rig.sides {
        assert_eq!(side.endpoint.counters().resumes, 1);
    }
    wind_up(&mut rig);
}

#[test]
fn what_is_idempotent_keeps_its_place_among_the_others() {
    let (mut rig, mut talk) = begin(small);
    talk.keep[1] = true;
    let say = |user| Say {
        idempotent: user % 2 == 0,
        ..Say::request(user)
    };
    for user in 0..4 {
        talk.say(&mut rig, 0, &say(user));
    }
    talk.settle(&mut rig);
    rig.gates[1].frames = true;
    for user in 4..8 {
        talk.say(&mut rig, 0, &say(user));
    }
    talk.settle(&mut rig);
    talk.keep[1] = false;
    cut(&mut rig, &mut talk);
    until(&mut rig, &mut talk, "reconnected");
    assert_eq!(asked(&talk)[4..], [0, 2, 4, 5, 6, 7]);
    assert_eq!(counts(&talk, 0..8, "failed"), [0, 1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(counts(&talk, 0..8, "response"), [1, 0, 1, 0, 1, 1, 1, 1]);
    wind_up(&mut rig);
}

#[test]
fn the_frames_are_as_documented() {
    let (mut rig, mut talk) = begin(small);
    // The server asks something too, and the client has it.
    talk.say(&mut rig, 1, &Say::request(30));
    talk.settle(&mut rig);
    ask(&mut rig, &mut talk, 2, 1);
    let session =
        rig.sides[0].sent.iter().rev().find_map(|frame| {
            (frame[4..8] == 0x12u32.to_be_bytes()).then(|| frame[16..20].to_vec())
        });
    cut(&mut rig, &mut talk);
    let request = catch(&mut rig, &mut talk, 1, RESUME_REQ);
    assert_eq!(request.len(), 96, "headers only");
    assert_eq!(request[20..24], session.expect("one was sent")[..]);
    assert_eq!(request[24..28], [0; 4]);
    assert_eq!(request[36..44], 1u64.to_be_bytes(), "the client got one");
    assert_eq!(request[44..56], [0; 12]);
    assert!(rig.inject(1, &request));
    rig.gates[1].frames = false;
    let answer = catch(&mut rig, &mut talk, 0, RESUME_RSP);
    assert_eq!(answer.len(), 100);
    assert_eq!(answer[20..28], [0; 8]);
    assert_eq!(answer[28..36], request[28..36], "the token");
    assert_eq!(answer[36..44], 2u64.to_be_bytes(), "the server got two");
    assert_eq!(answer[44..56], [0; 12]);
    // No message before the answer.
    assert_eq!(asked(&talk), [0, 1]);
    rig.gates[0].frames = false;
    assert!(rig.inject(0, &answer));
    talk.settle(&mut rig);
    assert_eq!(asked(&talk), [0, 1, 2]);
    wind_up(&mut rig);
}

type Lie = fn(&mut Resume);

/// What a connection reads in place of the true answer, and what comes of it.
#[test]
fn a_peer_that_lies_in_its_answer_is_found_out() {
    let lies: [(Lie, Option<What>); 5] = [
        (|told| told.next = 6, Some(What::ResumeNext)),
        (|told| told.next = u64::MAX, Some(What::ResumeNext)),
        (|told| told.next = 1, Some(What::ResumeNext)),
        (|told| told.token ^= 2, Some(What::ResumeLife)),
        (|told| told.status = 5, None),
    ];
    for (lie, expected) in lies {
        let (mut rig, mut talk) = begin(small);
        // The second is answered, so two came at least; five were sent.
        talk.keep[1] = true;
        for user in 0..2 {
            talk.say(&mut rig, 0, &Say::request(user));
        }
        talk.settle(&mut rig);
        let first = talk.kept[1].remove(0);
        talk.let_go(&mut rig, 1);
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "response 1:"), 1);
        talk.kept[1].insert(0, first);
        rig.gates[1].frames = true;
        for user in 2..5 {
            talk.say(&mut rig, 0, &Say::request(user));
        }
        talk.settle(&mut rig);
        talk.keep[1] = false;
        cut(&mut rig, &mut talk);
        let mut answer = catch(&mut rig, &mut talk, 0, RESUME_RSP);
        let mut told = Resume::open(&answer);
        assert_eq!(told.next, 2);
        lie(&mut told);
        told.put(&mut answer);
        rig.gates[0].frames = false;
        assert!(rig.inject(0, &answer));
        talk.settle(&mut rig);
        match expected {
            Some(what) => {
                while closed(&rig, 0) == 0 {
                    assert!(rig.advance());
                    talk.settle(&mut rig);
                }
                let [Reason::Violation(violation)] = reasons(&rig, 0)[..] else {
                    panic!("{:?}", reasons(&rig, 0));
                };
                let value = match what {
                    What::ResumeNext => told.next,
                    _ => told.token,
                };
                assert_eq!((violation.what, violation.value), (what, value));
                assert_eq!(counts(&talk, 2..5, "failed"), [1; 3]);
                assert_eq!(asked(&talk), [0, 1], "nothing is repeated");
            }
            None => {
                let lost = format!("{:?}", Failure::Unknown(Reason::Disconnected));
                assert_eq!(talk.count(0, &format!("failed 3: {lost}")), 1);
                talk.say(&mut rig, 0, &Say::request(9));
                talk.settle(&mut rig);
                assert_eq!(asked(&talk), [0, 1, 9]);
            }
        }
        assert_eq!(counts(&talk, 0..5, "failed"), [1, 0, 1, 1, 1]);
        wind_up(&mut rig);
    }
}

#[test]
fn a_peer_that_asks_about_what_is_not_its_own_learns_nothing() {
    let lies: [(Lie, bool); 5] = [
        // More than the server ever sent.
        (|said| said.next = 1, true),
        (|said| said.token ^= 4, false),
        (|said| said.token = 0, false),
        (|said| said.session ^= 1, false),
        (|said| said.session = u32::MAX, false),
    ];
    for (lie, violates) in lies {
        let (mut rig, mut talk) = begin(small);
        ask(&mut rig, &mut talk, 2, 2);
        cut(&mut rig, &mut talk);
        let mut request = catch(&mut rig, &mut talk, 1, RESUME_REQ);
        let mut said = Resume::open(&request);
        lie(&mut said);
        said.put(&mut request);
        rig.gates[1].frames = false;
        rig.gates[0].frames = !violates;
        let before = rig.sides[1].endpoint.counters().violations;
        assert!(rig.inject(1, &request));
        talk.settle(&mut rig);
        let violations = rig.sides[1].endpoint.counters().violations - before;
        assert_eq!(violations, u64::from(violates));
        if violates {
            let what = |event: &Event| match event {
                Event::Closed {
                    reason: Reason::Violation(violation),
                    ..
                } => (violation.what, violation.value) == (What::ResumeNext, 1),
                _ => false,
            };
            assert_eq!(is(&rig, 1, what), 1, "{:#?}", rig.log[1]);
            // The client, which said the truth, asks anew, and is told.
            until(&mut rig, &mut talk, "reconnected");
            assert_eq!(asked(&talk), [0, 1, 2, 3]);
        } else {
            let answer = catch(&mut rig, &mut talk, 0, RESUME_RSP);
            let told = Resume::open(&answer);
            assert_eq!(told.status, status::USER_OBJ_NOT_FOUND);
            assert_eq!((told.next, told.token), (0, said.token));
            // As if it had asked so itself.
            let mut answer = answer;
            let token = Resume::open(&request).token;
            assert_eq!(told.token, token);
            Resume {
                token: honest(&rig),
                ..told
            }
            .put(&mut answer);
            rig.gates[0].frames = false;
            assert!(rig.inject(0, &answer));
            talk.settle(&mut rig);
            assert_eq!(counts(&talk, 0..4, "failed"), [1; 4]);
            assert_eq!(asked(&talk), [0, 1]);
        }
        wind_up(&mut rig);
    }
}

/// The token that the client asked with.
fn honest(rig: &Rig) -> u64 {
    let asked = rig.sides[0].sent.iter().rev();
    let mut asked = asked.filter(|frame| frame[4..8] == RESUME_REQ.to_be_bytes());
    Resume::open(asked.next_back().expect("it asked")).token
}

#[test]
fn one_that_is_lost_again_asks_about_the_same_life() {
    let (mut rig, mut talk) = begin(small);
    ask(&mut rig, &mut talk, 2, 3);
    cut(&mut rig, &mut talk);
    // Once its question is lost, once the answer.
    let first = catch(&mut rig, &mut talk, 1, RESUME_REQ);
    rig.gates[1].frames = false;
    cut(&mut rig, &mut talk);
    let second = catch(&mut rig, &mut talk, 1, RESUME_REQ);
    assert_eq!(first[20..56], second[20..56]);
    assert!(rig.inject(1, &second));
    rig.gates[1].frames = false;
    let _ = catch(&mut rig, &mut talk, 0, RESUME_RSP);
    rig.gates[0].frames = false;
    talk.say(&mut rig, 0, &Say::request(5));
    talk.settle(&mut rig);
    assert_eq!(asked(&talk), [0, 1], "nothing goes before the answer");
    assert_eq!(talk.count(0, "failed"), 0);
    cut(&mut rig, &mut talk);
    until(&mut rig, &mut talk, "reconnected");
    assert_eq!(asked(&talk), [0, 1, 2, 3, 4, 5]);
    assert_eq!(counts(&talk, 0..6, "failed"), [1, 1, 0, 0, 0, 0]);
    assert_eq!(counts(&talk, 0..6, "response"), [0, 0, 1, 1, 1, 1]);
    wind_up(&mut rig);
}

#[test]
fn an_answer_is_not_waited_for_for_ever_and_means_nothing_when_it_comes() {
    let (mut rig, mut talk) = begin(small);
    ask(&mut rig, &mut talk, 1, 2);
    cut(&mut rig, &mut talk);
    let answer = catch(&mut rig, &mut talk, 0, RESUME_RSP);
    talk.say(&mut rig, 0, &Say::request(8));
    talk.settle(&mut rig);
    let start = rig.now;
    while talk.count(0, "failed") < 3 {
        assert!(rig.advance(), "{:#?}", talk.heard);
        talk.settle(&mut rig);
    }
    assert_eq!(rig.now.since(start), Duration::from_secs(10));
    assert_eq!(counts(&talk, 0..3, "failed"), [1; 3]);
    assert_eq!(asked(&talk), [0, 8], "it goes on");
    let late = rig.sides[0].endpoint.counters().late;
    rig.gates[0].frames = false;
    assert!(rig.inject(0, &answer));
    rig.arrive(0, usize::MAX);
    talk.settle(&mut rig);
    assert_eq!(rig.sides[0].endpoint.counters().late, late + 1);
    assert_eq!(asked(&talk), [0, 8]);
    assert_eq!(talk.count(0, "response 8:"), 1, "{:#?}", talk.heard);
    assert_eq!(talk.count(0, "reconnecting"), 1);
    wind_up(&mut rig);
}

#[test]
fn a_libxio_is_not_asked_and_an_unwilling_peer_neither() {
    for without in 0..2 {
        for all in [false, true] {
            let (mut rig, mut talk) = begin(|i| {
                let mut config = small(i);
                if i == without {
                    let none = if all {
                        Extensions::all()
                    } else {
                        Extensions::RESUME
                    };
                    config.extensions.remove(none);
                }
                config
            });
            ask(&mut rig, &mut talk, 2, 2);
            cut(&mut rig, &mut talk);
            assert_eq!(counts(&talk, 0..4, "failed"), [1; 4], "at once");
            until(&mut rig, &mut talk, "reconnected");
            talk.say(&mut rig, 0, &Say::request(9));
            talk.settle(&mut rig);
            assert_eq!(asked(&talk), [0, 1, 9]);
            for side in &rig.sides {
                let said = side.sent.iter().filter(|frame| frame[6] & 0x80 != 0);
                assert_eq!(said.count(), 0);
            }
            wind_up(&mut rig);
        }
    }
}

#[test]
fn a_server_that_has_not_heard_of_the_loss_ends_the_old_life() {
    let (mut rig, mut talk) = begin(small);
    ask(&mut rig, &mut talk, 2, 2);
    // The client believes the wire to be cut; the server goes on, and frames wait for it.
    let old = talk.connections[1].expect("open");
    let nexus = rig.nexus(0);
    let (server, waiting) = (rig.nexus(1), rig.intercept(1).expect("it waits"));
    rig.sever(0, nexus);
    rig.tell(0, CmKind::Disconnected);
    talk.settle(&mut rig);
    assert_eq!(closed(&rig, 1), 0);
    while rig.intercept(1).is_some() {}
    rig.gates[1].frames = false;
    until(&mut rig, &mut talk, "reconnected");
    assert_eq!(talk.count(1, "closed Disconnected"), 1, "{:#?}", talk.heard);
    assert!(rig.sides[1].endpoint.info(old).is_err());
    assert_ne!(rig.nexus(1), server);
    assert_eq!(asked(&talk), [0, 1, 2, 3]);
    assert_eq!(counts(&talk, 0..4, "failed"), [1, 1, 0, 0]);
    // What was on its way comes on the new one, where nobody knows it.
    let _ = rig.inject(1, &waiting);
    talk.settle(&mut rig);
    assert_eq!(asked(&talk), [0, 1, 2, 3]);
    wind_up(&mut rig);
}

#[test]
fn a_server_that_needs_the_row_for_others_forgets() {
    let (mut rig, mut talk) = begin(small);
    ask(&mut rig, &mut talk, 1, 1);
    rig.gates[0] = Gate::default().hold(|c| matches!(c, xio_proto::Control::Connect { .. }));
    cut(&mut rig, &mut talk);
    // All rows of sessions but one have been somebody else's since: those with a memory last.
    let free = rig.sides[1].endpoint.free_rows().sessions;
    for _ in 0..free {
        let ticket = xio_proto::SessionTicket {
            own_id: 63 << 26 | rig.sides[1].endpoint.free_rows().sessions,
            peer_id: 1,
            client: false,
            peer_depth_messages: 1,
            peer_depth_bytes: 1,
            joins: 1,
            expires: rig.now.after(Duration::from_millis(1)),
        };
        let now = rig.now;
        let taken = rig.sides[1].endpoint.import_session(now, &ticket, 1);
        taken.expect("room");
    }
    while rig.sides[1].endpoint.free_rows().sessions < free {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    rig.let_go(0);
    until(&mut rig, &mut talk, "reconnected");
    assert_eq!(counts(&talk, 0..2, "failed"), [1; 2], "{:#?}", talk.heard);
    assert_eq!(asked(&talk), [0]);
    assert_eq!(rig.sides[1].endpoint.counters().resumes, 0);
    wind_up(&mut rig);
}

#[test]
fn its_user_closes_while_the_peer_is_asked() {
    for abort in [false, true] {
        let (mut rig, mut talk) = begin(small);
        ask(&mut rig, &mut talk, 2, 2);
        cut(&mut rig, &mut talk);
        let answer = catch(&mut rig, &mut talk, 0, RESUME_RSP);
        let (now, id) = (rig.now, talk.connections[0].expect("open"));
        let endpoint = &mut rig.sides[0].endpoint;
        let done = match abort {
            true => endpoint.abort(now, id),
            false => endpoint.close(now, id),
        };
        done.expect("known");
        rig.gates[0].frames = false;
        let _ = rig.inject(0, &answer);
        talk.settle(&mut rig);
        while closed(&rig, 0) == 0 {
            assert!(rig.advance(), "{:#?}", talk.heard);
            talk.settle(&mut rig);
        }
        // What never came goes before the FIN, and nothing twice.
        let expected: &[u64] = if abort { &[0, 1] } else { &[0, 1, 2, 3] };
        assert_eq!(asked(&talk), expected);
        let ends: Vec<usize> = (0..4)
            .map(|user| {
                let count = |what| talk.count(0, &format!("{what} {user}:"));
                count("failed") + count("response")
            })
            .collect();
        assert_eq!(ends, [1; 4], "{:#?}", talk.heard[0]);
        wind_up(&mut rig);
    }
}

#[test]
fn what_waits_for_the_answer_can_be_cancelled_and_expire() {
    let (mut rig, mut talk) = begin(small);
    talk.keep[1] = true;
    let first = talk.say(&mut rig, 0, &Say::request(0));
    let soon = rig.now.after(Duration::from_secs(2));
    let say = Say {
        deadline: Some(soon),
        ..Say::request(1)
    };
    talk.say(&mut rig, 0, &say);
    talk.say(&mut rig, 0, &Say::request(2));
    talk.settle(&mut rig);
    talk.keep[1] = false;
    let slots = rig.sides[0].endpoint.free_rows().tx_slots;
    cut(&mut rig, &mut talk);
    let answer = catch(&mut rig, &mut talk, 0, RESUME_RSP);
    rig.sides[0].endpoint.cancel(first).expect("known");
    while talk.count(0, "timed out 1") == 0 {
        assert!(rig.advance());
        talk.settle(&mut rig);
    }
    assert_eq!(talk.count(0, "cancelled 0"), 1);
    rig.gates[0].frames = false;
    assert!(rig.inject(0, &answer));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "failed 2:"), 1);
    assert_eq!(talk.count(0, "failed"), 1);
    assert_eq!(rig.sides[0].endpoint.free_rows().tx_slots, slots + 3);
    wind_up(&mut rig);
}

#[test]
fn who_asks_twice_or_late_breaks_the_protocol() {
    for late in [false, true] {
        let (mut rig, mut talk) = begin(small);
        ask(&mut rig, &mut talk, 1, 1);
        cut(&mut rig, &mut talk);
        let mut request = catch(&mut rig, &mut talk, 1, RESUME_REQ);
        rig.gates[1].frames = false;
        assert!(rig.inject(1, &request));
        if late {
            // Behind messages.
            talk.settle(&mut rig);
            assert_eq!(asked(&talk), [0, 1]);
        }
        let sn = u16::from_be_bytes([request[60], request[61]]);
        let more = if late { 2 } else { 1 };
        request[60..62].copy_from_slice(&(sn + more).to_be_bytes());
        rig.inject(1, &request);
        let what = |event: &Event| match event {
            Event::Closed {
                reason: Reason::Violation(violation),
                ..
            } => violation.what == What::UnexpectedKind,
            _ => false,
        };
        talk.settle(&mut rig);
        assert_eq!(is(&rig, 1, what), 1, "{late}: {:#?}", rig.log[1]);
        until(&mut rig, &mut talk, "reconnected");
        wind_up(&mut rig);
    }
}
