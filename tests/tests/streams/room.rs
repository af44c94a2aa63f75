//! Receive slots: a user who keeps everything stops its peer, and nothing else.

use std::time::Duration;

use xio_proto::{Config, ConnectOptions, FreeRows};
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Say, Talk, free_rows};

use super::tcp_with;

/// Sixteen receive slots, of which two are kept.
fn tight(i: u8) -> Config {
    Config::new(i, if i == 1 { 16 } else { 400 }, 128)
}

fn own_nexus(dual: bool) -> ConnectOptions {
    ConnectOptions {
        own_nexus: true,
        dual_stream: dual,
        ..ConnectOptions::new(60)
    }
}

#[test]
fn a_user_who_keeps_everything_stops_its_peer_and_loses_nothing() {
    for dual in [false, true] {
        for cut in [Cut::Whole, Cut::Every(13), Cut::random(5, 90)] {
            let mut world = tcp_with(tight, cut);
            let free = free_rows(&mut world);
            let mut talk = Talk::open(&mut world, dual);
            talk.keep[1] = true;
            for user in 0..25 {
                talk.say(&mut world, 0, &Say::one_way(user));
                talk.say(&mut world, 0, &Say::request(100 + user));
            }
            talk.settle(&mut world);
            let kept = talk.kept[1].len();
            assert!((13..=14).contains(&kept), "{kept}");
            assert!(world.unread(1) > 0);
            let mut rounds = 0;
            while talk.count(1, "one-way") + talk.count(1, "request") < 50 {
                talk.let_go(&mut world, 1);
                talk.keep[1] = rounds < 3;
                talk.settle(&mut world);
                rounds += 1;
                assert!(rounds < 20, "{:#?}", talk.heard[1]);
            }
            talk.let_go(&mut world, 1);
            assert_eq!(world.unread(1), 0);
            assert_eq!(talk.count(0, "response"), 25);
            let order: Vec<u64> = talk.heard[1]
                .iter()
                .filter(|text| text.starts_with("one-way") || text.starts_with("request"))
                .map(|text| text.split([' ', ':']).nth(1).unwrap().parse().unwrap())
                .collect();
            let expected: Vec<u64> = (0..25).flat_map(|user| [user, 100 + user]).collect();
            assert_eq!(order, expected);
            talk.close(&mut world, 0);
            assert_eq!(free_rows(&mut world), free);
        }
    }
}

#[test]
fn control_frames_need_no_slot() {
    for dual in [false, true] {
        let mut world = tcp_with(tight, Cut::Every(5));
        let mut talk = Talk::open(&mut world, dual);
        talk.keep[1] = true;
        // All that this connection may take.
        let mut user = 0;
        while world.sides[1].endpoint.free_rows().rx_slots > 2 {
            talk.say(&mut world, 0, &Say::one_way(user));
            talk.settle(&mut world);
            user += 1;
        }
        // Others take what was kept.
        for _ in 0..2 {
            let client = Talk::dial_with(&mut world, &own_nexus(dual));
            talk.settle(&mut world);
            talk.connections[0] = Some(client);
            talk.say(&mut world, 0, &Say::request(user));
            talk.settle(&mut world);
            user += 1;
        }
        assert_eq!(world.sides[1].endpoint.free_rows().rx_slots, 0);
        assert_eq!(talk.kept[1].len(), 16);
        assert_eq!(world.unread(1), 0);
        // Keepalive is answered for an hour, and a close is carried out.
        let start = world.now;
        while world.now.since(start).as_secs() < 3600 {
            assert!(world.advance());
            talk.settle(&mut world);
        }
        assert_eq!(talk.count(0, "closed"), 0, "{:?}", talk.heard[0]);
        let (now, client) = (world.now, talk.connections[0].unwrap());
        world.sides[0].endpoint.close(now, client).unwrap();
        talk.settle(&mut world);
        while talk.count(1, "closed") == 0 || talk.count(0, "closed") == 0 {
            assert!(world.advance());
            talk.settle(&mut world);
        }
        assert_eq!(talk.count(0, "closed Closed"), 1);
        assert_eq!(talk.count(1, "closed PeerClosed, 1 unanswered"), 1);
        assert_eq!(world.sides[1].endpoint.free_rows().rx_slots, 0);
        talk.connections = [None, None];
        talk.let_go(&mut world, 1);
        assert_eq!(world.sides[1].endpoint.free_rows().rx_slots, 16);
    }
}

#[test]
fn whoever_waits_for_a_slot_gets_one_in_turn() {
    for dual in [false, true] {
        let mut world = tcp_with(tight, Cut::Whole);
        let mut clients = Vec::new();
        let mut talk = Talk::default();
        for _ in 0..6 {
            let client = Talk::dial_with(&mut world, &own_nexus(dual));
            talk.settle(&mut world);
            clients.push(client);
        }
        talk.keep[1] = true;
        for user in 0..10 {
            for (n, client) in clients.iter().enumerate() {
                talk.connections[0] = Some(*client);
                talk.say(&mut world, 0, &Say::one_way(100 * n as u64 + user));
            }
        }
        talk.settle(&mut world);
        // The last two slots went to clients that held none; two more of those wait.
        assert_eq!(talk.kept[1].len(), 16);
        let served = |talk: &Talk| {
            let mut clients: Vec<u64> = talk.heard[1].iter().map(|text| sender(text)).collect();
            clients.sort();
            clients.dedup();
            clients.len()
        };
        assert_eq!(served(&talk), 4);
        for round in 0..60 {
            let (task, _) = talk.kept[1].remove(0);
            world.sides[1].endpoint.release(task).unwrap();
            talk.settle(&mut world);
            assert_eq!(served(&talk), (5 + round).min(6));
            // No slot lies idle but the two that are kept.
            let idle = world.sides[1].endpoint.free_rows().rx_slots;
            assert!(world.unread(1) == 0 || idle <= 2, "{idle} in round {round}");
        }
        for n in 0..6 {
            let mine = talk.heard[1]
                .iter()
                .filter(|t| t.starts_with("one-way") && sender(t) == n);
            let users: Vec<u64> = mine.map(|text| number(text) % 100).collect();
            assert_eq!(users, (0..10).collect::<Vec<u64>>());
        }
        talk.let_go(&mut world, 1);
    }
}

/// One whose messages are all kept has half of the slots, and no more; another that sends as many goes
/// on. What the first has left over comes when something is let go, in order.
#[test]
fn nobody_has_more_than_half_of_the_slots() {
    for dual in [false, true] {
        for cut in [Cut::Whole, Cut::Every(13), Cut::random(9, 200)] {
            let roomy = |i| Config::new(i, if i == 1 { 160 } else { 400 }, 256);
            let mut world = tcp_with(roomy, cut);
            let free = free_rows(&mut world);
            let mut talk = Talk::open(&mut world, dual);
            talk.keep[1] = true;
            for user in 0..100 {
                talk.say(&mut world, 0, &Say::one_way(user));
                talk.settle(&mut world);
            }
            assert_eq!(talk.kept[1].len(), 80);
            let hoard = std::mem::take(&mut talk.kept[1]);
            talk.keep[1] = false;
            let hog = talk.connections[0];
            talk.connections[0] = Some(Talk::dial_with(&mut world, &own_nexus(dual)));
            for user in 0..120 {
                talk.say(&mut world, 0, &Say::one_way(1000 + user));
                talk.settle(&mut world);
            }
            assert_eq!(talk.count(1, "one-way"), 80 + 120);
            assert!(world.unread(1) > 0);
            for (task, _) in hoard {
                world.sides[1].endpoint.release(task).unwrap();
                talk.settle(&mut world);
            }
            let texts = talk.heard[1].iter().filter(|t| t.starts_with("one-way"));
            let users: Vec<u64> = texts
                .map(|text| number(text))
                .filter(|n| *n < 1000)
                .collect();
            assert_eq!(users, (0..100).collect::<Vec<u64>>());
            let (now, hog) = (world.now, hog.unwrap());
            world.sides[0].endpoint.close(now, hog).unwrap();
            talk.close(&mut world, 0);
            assert_eq!(free_rows(&mut world), free);
        }
    }
}

fn number(text: &str) -> u64 {
    text.split([' ', ':']).nth(1).unwrap().parse().unwrap()
}

fn sender(text: &str) -> u64 {
    number(text) / 100
}

#[test]
fn a_waiting_stream_may_end() {
    for dual in [false, true] {
        let mut world: StreamPair = tcp_with(tight, Cut::Whole);
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, dual);
        talk.keep[1] = true;
        for user in 0..40 {
            talk.say(&mut world, 0, &Say::one_way(user));
        }
        talk.settle(&mut world);
        assert!(world.unread(1) > 0);
        let now = world.now;
        let client = talk.connections[0].unwrap();
        world.sides[0].endpoint.abort(now, client).unwrap();
        // This side does not read, so it asks on and on, until its sockets say that nobody is there.
        for _ in 0..50 {
            world.advance();
            talk.settle(&mut world);
        }
        assert_eq!(talk.count(1, "closed"), 0, "{:?}", talk.heard[1]);
        world.cut_off(1);
        talk.outlive(&mut world);
        assert_eq!(talk.count(1, "closed"), 1, "{:?}", talk.heard[1]);
        talk.let_go(&mut world, 1);
        assert_eq!(free_rows(&mut world), free);
    }
}

#[test]
fn a_slot_that_comes_back_without_the_user_is_given_on_too() {
    for dual in [false, true] {
        let mut world = tcp_with(tight, Cut::Whole);
        let mut talk = Talk::default();
        let dial = |talk: &mut Talk, world: &mut StreamPair, say: &Say| {
            let client = Talk::dial_with(world, &own_nexus(dual));
            talk.settle(world);
            talk.connections[0] = Some(client);
            talk.say(world, 0, say);
            talk.settle(world);
        };
        talk.keep[1] = true;
        let large = Say {
            inline: 0,
            gathered: 9000,
            ..Say::request(1)
        };
        dial(&mut talk, &mut world, &large);
        assert_eq!(talk.waiting[1].len(), 1);
        dial(&mut talk, &mut world, &Say::one_way(2));
        for user in 3..15 {
            talk.say(&mut world, 0, &Say::one_way(user));
            talk.settle(&mut world);
        }
        for user in 15..17 {
            dial(&mut talk, &mut world, &Say::one_way(user));
        }
        assert_eq!(world.sides[1].endpoint.free_rows().rx_slots, 0);
        assert_eq!(talk.kept[1].len(), 15);
        dial(&mut talk, &mut world, &Say::one_way(17));
        assert_eq!(talk.kept[1].len(), 15);
        // The payload is refused and answered for the user: nobody gives that slot back.
        let (task, _) = talk.waiting[1].remove(0);
        world.sides[1].endpoint.refuse(task, 5).unwrap();
        talk.settle(&mut world);
        assert_eq!(talk.kept[1].len(), 16);
        assert_eq!(world.unread(1), 0);
    }
}

/// Both sides have said more than the other has slots and a socket has room for.
fn jammed(dual: bool, keep: bool, say: fn(u64) -> Say) -> (StreamPair, Talk, [FreeRows; 2]) {
    let mut world = tcp_with(|i| Config::new(i, 16, 128), Cut::Whole);
    world.window = 600;
    let free = free_rows(&mut world);
    let mut talk = Talk::open(&mut world, dual);
    talk.keep = [keep; 2];
    for user in 0..60 {
        for i in 0..2 {
            talk.say(&mut world, i, &say(user));
        }
    }
    talk.settle(&mut world);
    assert!(world.unread(0) > 0 && world.unread(1) > 0);
    (world, talk, free)
}

/// Neither side reads as its slots are full of requests, whose answers the other would have to read:
/// a stream has no credits that keep it from this. It ends with keepalive; before, for want of
/// anything that may be read, that waited for ever.
#[test]
fn two_that_wait_for_each_other_are_told_by_keepalive() {
    for dual in [false, true] {
        let (mut world, mut talk, free) = jammed(dual, false, Say::request);
        let answered = |talk: &Talk, i| talk.count(i, "response");
        assert!(answered(&talk, 0) < 60 && answered(&talk, 1) < 60);
        let start = world.now;
        while talk.count(0, "closed") + talk.count(1, "closed") < 2 {
            let waits = world.now.since(start) < Duration::from_secs(3600);
            assert!(waits && world.advance(), "nobody is told");
            talk.settle(&mut world);
        }
        let waited = world.now.since(start);
        // As a dead peer: it is asked after 60 s, then looked at every 20 s.
        assert_eq!(waited, Duration::from_secs(60 + 3 * 20));
        for i in 0..2 {
            let outcomes = answered(&talk, i) + talk.count(i, "failed") + talk.count(i, "sent");
            let answers = talk.count(i, "request");
            assert_eq!(outcomes, 60 + answers, "{:#?}", talk.heard[i]);
        }
        talk.outlive(&mut world);
        assert_eq!(free_rows(&mut world), free);
    }
}

/// A user who takes its time is no reason to end anything, however long both take.
#[test]
fn two_whose_users_keep_everything_are_left_alone() {
    for dual in [false, true] {
        let (mut world, mut talk, free) = jammed(dual, true, Say::one_way);
        let end = world.now.after(Duration::from_secs(3600));
        while world.now < end {
            assert!(world.advance());
            talk.settle(&mut world);
        }
        assert_eq!(talk.count(0, "closed") + talk.count(1, "closed"), 0);
        talk.keep = [false; 2];
        for i in [0, 1, 0, 1, 0, 1, 0, 1, 0, 1] {
            talk.let_go(&mut world, i);
            talk.settle(&mut world);
        }
        for i in 0..2 {
            assert_eq!(talk.count(i, "one-way"), 60, "{:#?}", talk.heard);
        }
        talk.close(&mut world, 0);
        assert_eq!(free_rows(&mut world), free);
    }
}
