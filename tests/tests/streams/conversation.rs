//! The same conversation over every wire, and over streams that are cut anywhere.

use xio_proto::Config;
use xio_tests::pair::Pair;
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Payload, Say, Talk, World, free_rows};

use super::{config, tcp, tcp_with};

/// How much is said.
#[derive(Clone, Copy)]
struct Talkative {
    large: usize,
    inline: usize,
    /// One message of each kind only.
    few: bool,
}

/// Messages of every kind that all wires can carry, with their payload in every way.
fn messages(side: u64, much: Talkative) -> Vec<Say> {
    let Talkative { large, inline, few } = much;
    let gathered = |user, gathered| Say {
        inline: 0,
        gathered,
        ..Say::request(user)
    };
    // Outside the frame, though it would fit.
    let fetched = |user, len| Say {
        force_read: true,
        ..gathered(user, len)
    };
    let mut says = vec![
        Say::request(1),
        Say::request(2),
        Say::request(3),
        fetched(4, large),
        Say::request(5),
        fetched(6, 70),
        Say::request(7),
        Say::one_way(8),
        Say::one_way(9),
        fetched(10, large / 2),
        fetched(11, 40),
        fetched(12, large / 3),
        Say::request(13),
        Say::request(14),
        fetched(15, 90),
        Say::request(16),
    ];
    for say in &mut says {
        match say.user {
            2 => (say.inline, say.reply) = (0, 0),
            3 => (say.inline, say.reply) = (inline, inline / 2),
            4 => (say.room, say.reply) = (large, large - large / 99),
            7 => (say.inline, say.gathered) = (inline / 4, inline / 3),
            9 | 14 => say.receipt = true,
            10 => say.one_way = true,
            11 => (say.one_way, say.receipt) = (true, true),
            12 => say.payload = Payload::Refuse,
            13 => (say.room, say.reply) = (60, 50),
            15 => say.payload = Payload::Ignore,
            _ => {}
        }
    }
    const FEW: [u64; 8] = [1, 4, 6, 7, 9, 11, 12, 15];
    says.into_iter()
        .filter(|say| !few || FEW.contains(&say.user))
        .map(|say| Say {
            user: say.user + side * 100,
            ..say
        })
        .collect()
}

/// The outcomes of a message in what its sender heard.
fn outcomes(heard: &[String], user: u64) -> usize {
    let mine = |text: &&String| {
        let mut words = text.split([' ', ':']);
        let what = words.next().unwrap_or_default();
        let one_way = (8..12).contains(&(user % 100));
        let ends = match what {
            "response" | "sent" | "failed" => true,
            // A request's receipt comes besides its response.
            "delivered" => one_way,
            _ => false,
        };
        ends && words.next() == Some(&user.to_string())
    };
    heard.iter().filter(mine).count()
}

/// The whole conversation, from connect to the end of the transport connection: what was heard.
fn converse(
    world: &mut impl World,
    dual: bool,
    closer: usize,
    much: Talkative,
) -> [Vec<String>; 2] {
    let free = free_rows(world);
    let mut talk = Talk::open(world, dual);
    let said = [0, 1].map(|i| messages(i, much));
    for (i, says) in said.iter().enumerate() {
        for say in says {
            talk.say(world, i, say);
        }
    }
    talk.settle(world);
    let open = |talk: &Talk| {
        (0..2).any(|i| {
            said[i]
                .iter()
                .any(|say| outcomes(&talk.heard[i], say.user) == 0)
        })
    };
    while open(&talk) {
        assert!(world.advance(), "nothing more happens: {:#?}", talk.heard);
        talk.settle(world);
    }
    talk.close(world, closer);
    for (i, says) in said.iter().enumerate() {
        for say in says {
            let count = outcomes(&talk.heard[i], say.user);
            assert_eq!(count, 1, "outcomes of {}: {:#?}", say.user, talk.heard[i]);
        }
    }
    assert_eq!(free_rows(world), free);
    talk.heard
}

const MUCH: Talkative = Talkative {
    large: 100_000,
    inline: 8000,
    few: false,
};
const LITTLE: Talkative = Talkative {
    large: 700,
    inline: 60,
    few: true,
};

fn sorted(mut heard: [Vec<String>; 2]) -> [Vec<String>; 2] {
    for list in &mut heard {
        list.sort();
    }
    heard
}

#[test]
fn the_same_is_heard_on_every_wire() {
    for closer in 0..2 {
        let mut rdma = Pair::rdma(config, &Pair::counts(&config(0)));
        rdma.listen(50);
        let expected = sorted(converse(&mut rdma, true, closer, MUCH));
        for dual in [false, true] {
            let heard = converse(&mut tcp(Cut::Whole), dual, closer, MUCH);
            assert_eq!(sorted(heard), expected, "two streams: {dual}");
        }
    }
}

#[test]
fn byte_by_byte_the_same_is_heard() {
    for dual in [false, true] {
        for data_first in [false, true] {
            let mut whole = tcp(Cut::Whole);
            let expected = sorted(converse(&mut whole, dual, 0, MUCH));
            for bytes in [1, 7, 1000] {
                let mut world = tcp(Cut::Every(bytes));
                world.check_every = 1 + 5000 / bytes as u64;
                world.data_first = data_first;
                assert_eq!(sorted(converse(&mut world, dual, 0, MUCH)), expected);
            }
        }
    }
}

fn small_config(i: u8) -> Config {
    // Frames of 640 bytes: what is larger is written into memory.
    Config {
        buffer_size: 640,
        inline_data_max: 500,
        ..Config::new(i, 64, 128)
    }
}

#[test]
fn every_cut_position_gives_the_same() {
    for dual in [false, true] {
        let mut world = tcp_with(small_config, Cut::Whole);
        world.check_every = 61;
        let expected = sorted(converse(&mut world, dual, 0, LITTLE));
        let written = "response 4: 693 bytes in memory";
        assert!(expected[0].iter().any(|text| text == written));
        let longest = world.longest;
        assert!((1000..9000).contains(&longest), "{longest}");
        for at in 1..longest {
            world.cut = Cut::At(at);
            world.data_first = at % 2 == 0;
            let heard = sorted(converse(&mut world, dual, (at % 3 == 0).into(), LITTLE));
            if at % 3 != 0 {
                assert_eq!(heard, expected, "cut at {at}, two streams: {dual}");
            }
        }
    }
}

#[test]
fn random_cuts_and_orders_give_the_same() {
    for dual in [false, true] {
        let mut world = tcp(Cut::Whole);
        world.check_every = 17;
        let expected = sorted(converse(&mut world, dual, 0, MUCH));
        for seed in 0..20 {
            world.cut = Cut::random(seed, [300, 20_000][seed as usize % 2]);
            world.window = [usize::MAX, 5000, 700][seed as usize % 3];
            let heard = converse(&mut world, dual, 0, MUCH);
            assert_eq!(sorted(heard), expected, "seed {seed}, two streams: {dual}");
        }
        let mut world = tcp_with(small_config, Cut::Whole);
        world.check_every = 17;
        let expected = sorted(converse(&mut world, dual, 0, LITTLE));
        for seed in 0..300 {
            world.cut = Cut::random(seed, [3, 60, 300][seed as usize % 3]);
            world.window = [usize::MAX, 300, 20][seed as usize % 3];
            let heard = converse(&mut world, dual, 0, LITTLE);
            assert_eq!(sorted(heard), expected, "seed {seed}, two streams: {dual}");
        }
    }
}

#[test]
fn requests_arrive_in_the_order_of_the_control_stream() {
    let mut orders = Vec::new();
    for (dual, cut) in [
        (false, Cut::Whole),
        (true, Cut::Whole),
        (true, Cut::Every(1)),
        (true, Cut::random(3, 50)),
    ] {
        let mut world: StreamPair = tcp(cut);
        world.check_every = 499;
        let heard = converse(&mut world, dual, 0, MUCH);
        let arrived = |text: &String| text.starts_with("request") || text.starts_with("one-way");
        orders.push(heard.map(|list| list.into_iter().filter(arrived).collect::<Vec<_>>()));
    }
    assert!(
        orders.iter().all(|order| *order == orders[0]),
        "{orders:#?}"
    );
    let users = |list: &[String]| -> Vec<u64> {
        list.iter()
            .map(|text| text.split([' ', ':']).nth(1).unwrap().parse().unwrap())
            .collect()
    };
    assert_eq!(
        users(&orders[0][1]),
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16]
    );
}

/// With application credits a control frame of its own (ACK_REQ) is numbered among the messages,
/// so it must not overtake one whose data is on its way.
#[test]
fn control_frames_keep_their_place_among_messages() {
    let careful = |i| Config {
        flow_control: true,
        depth_messages: 4,
        depth_bytes: 4000,
        ..config(i)
    };
    for dual in [false, true] {
        for seed in 0..30 {
            let mut world = tcp_with(careful, Cut::random(seed, [200, 9000][seed as usize % 2]));
            world.data_first = seed % 4 > 1;
            let free = free_rows(&mut world);
            let mut talk = Talk::open(&mut world, dual);
            for user in 0..20 {
                for i in 0..2 {
                    let say = Say {
                        inline: 300,
                        ..Say::one_way(user)
                    };
                    talk.say(&mut world, i, &say);
                }
            }
            talk.settle(&mut world);
            for i in 0..2 {
                assert_eq!(talk.count(i, "one-way"), 20, "{:#?}", talk.heard);
                assert_eq!(world.sides[i].endpoint.counters().violations, 0);
                let credits = |frame: &&Vec<u8>| frame[4..8] == 0x1002u32.to_be_bytes();
                assert!(world.sides[i].sent.iter().filter(credits).count() > 2);
            }
            talk.close(&mut world, 0);
            assert_eq!(free_rows(&mut world), free);
        }
    }
}

#[test]
fn a_control_frame_waits_for_the_data_of_the_message_before_it() {
    let careful = |i| Config {
        flow_control: true,
        depth_messages: 4,
        depth_bytes: 4000,
        ..config(i)
    };
    for cut in [Cut::Whole, Cut::Every(9)] {
        let mut world = tcp_with(careful, cut);
        let mut talk = Talk::open(&mut world, true);
        let info = world.sides[1].endpoint.info(talk.connections[1].unwrap());
        let data = world.ends(1, info.unwrap().nexus)[1];
        world.hold_back(1, data);
        talk.say(&mut world, 0, &Say::one_way(1));
        for user in 0..4 {
            talk.say(&mut world, 1, &Say::one_way(user));
        }
        talk.settle(&mut world);
        assert_eq!(talk.count(0, "one-way"), 4);
        let credits = |frame: &Vec<u8>| frame[4..8] == 0x1002u32.to_be_bytes();
        assert!(world.sides[0].sent.iter().any(credits));
        assert_eq!(talk.count(1, "one-way"), 0);
        world.let_flow(1);
        world.resume();
        talk.settle(&mut world);
        assert_eq!(talk.count(1, "one-way 1"), 1, "{:?}", talk.heard);
        assert_eq!(world.sides[1].endpoint.counters().violations, 0);
    }
}

#[test]
fn application_credits_that_only_one_side_has_are_off_for_both() {
    for one in [0, 1] {
        let config = |i| Config {
            flow_control: i == one,
            depth_messages: 4,
            ..config(i)
        };
        let mut world = tcp_with(config, Cut::Whole);
        let mut talk = Talk::open(&mut world, false);
        for i in 0..2 {
            for user in 0..20 {
                talk.say(&mut world, i, &Say::one_way(user));
            }
        }
        talk.settle(&mut world);
        for i in 0..2 {
            assert_eq!(talk.count(i, "one-way"), 20, "{:#?}", talk.heard);
        }
    }
}
