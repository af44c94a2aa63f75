//! Between two inputs the driver polls all outputs until there are none; in which order, and how
//! many at a time, changes nothing: not a byte of a frame, and nothing that a user hears.
//!
//! Hearing an event is more than looking: it gives back memory, which can be granted, and makes
//! the receipt due that a message asked for. A driver that polls events between its work may so
//! send other numbers of credits, or a receipt before or behind another frame; what comes of each
//! message is the same.

use std::collections::BTreeMap;

use proptest::prelude::*;
use xio_proto::{Config, ConnectOptions, TransportLimits};
use xio_tests::pair::{Pair, Schedule, Side};
use xio_tests::stream_pair::Rng;
use xio_tests::talk::{Payload, Say, Talk, free_rows};

/// Frames of each transport connection, and what was heard of each connection.
type Seen = [(BTreeMap<u64, Vec<Vec<u8>>>, BTreeMap<u64, Vec<String>>); 2];

/// One message of a conversation: who says it, on which connection, and what it is.
#[derive(Clone, Debug)]
struct Line {
    side: usize,
    connection: usize,
    one_way: bool,
    inline: usize,
    gathered: usize,
    room: usize,
    reply: usize,
    receipt: bool,
    refused: bool,
    /// Both users react before the next line.
    then_settle: bool,
}

fn line() -> impl Strategy<Value = Line> {
    (
        (0..2_usize, 0..CONNECTIONS, any::<bool>()),
        prop_oneof![Just(0_usize), 1..300_usize],
        prop_oneof![3 => Just(0_usize), 1 => 1..900_usize, 1 => 2000..6000_usize],
        prop_oneof![Just(0_usize), Just(4000_usize)],
        prop_oneof![3 => 0..100_usize, 1 => 101..3900_usize],
        (any::<bool>(), proptest::bool::weighted(0.1), any::<bool>()),
    )
        .prop_map(|(who, inline, gathered, room, reply, flags)| Line {
            side: who.0,
            connection: who.1,
            one_way: who.2,
            inline: if gathered > 0 { 0 } else { inline },
            gathered,
            room: if who.2 { 0 } else { room },
            reply: if room == 0 { reply % 101 } else { reply },
            receipt: flags.0,
            refused: flags.1,
            then_settle: flags.2,
        })
}

/// Connections of a conversation: the first and the second share a transport connection.
const CONNECTIONS: usize = 3;

fn world(schedule: Schedule) -> Pair {
    let config = |i| Config {
        inline_data_max: 1024,
        min_grant: 5,
        rq_depth: 8,
        keepalive: None,
        ..Config::new(i, 96, 48)
    };
    let counts = Pair::counts(&config(0));
    let limits = TransportLimits {
        sq_depth: 12,
        max_sge: 3,
        max_message: 2500,
        ..TransportLimits::rdma()
    };
    let mut pair = Pair::rdma_with(config, &counts, limits);
    pair.schedule = Some(schedule);
    pair
}

/// The whole conversation under one schedule.
fn run(lines: &[Line], seed: u64, mixed: bool) -> Seen {
    let rng = Rng::new(seed);
    let mut world = world(Schedule { rng, mixed });
    let free = free_rows(&mut world);
    world.listen(1);
    let mut talk = Talk::default();
    let mut connections = [Vec::new(), Vec::new()];
    for number in 0..CONNECTIONS {
        let mut options = ConnectOptions::new(60 + number as u64);
        options.own_nexus = number == 2;
        let client = Talk::dial_with(&mut world, &options);
        talk.settle(&mut world);
        connections[0].push(client);
        connections[1].push(talk.connections[1].expect("established"));
    }
    for (number, line) in lines.iter().enumerate() {
        let i = line.side;
        talk.connections[i] = Some(connections[i][line.connection]);
        let say = Say {
            user: (100 * line.connection + number) as u64,
            one_way: line.one_way,
            inline: line.inline,
            gathered: line.gathered,
            room: line.room,
            reply: line.reply,
            receipt: line.receipt,
            payload: if line.refused {
                Payload::Refuse
            } else {
                Payload::Provide
            },
            ..Say::request(0)
        };
        // One that is refused is refused under every schedule.
        if let Err(error) = talk.try_say(&mut world, i, &say) {
            talk.heard[i].push(format!("refused {}: {error}", say.user));
        }
        if line.then_settle {
            talk.settle(&mut world);
        }
    }
    talk.settle(&mut world);
    for i in 0..2 {
        talk.let_go(&mut world, i);
    }
    let now = world.now;
    // Two are closed by the client, one by the server.
    let [client, server] = &connections;
    for (i, connection) in [(0, client[0]), (1, server[1]), (0, client[2])] {
        let endpoint = &mut world.sides[i].endpoint;
        endpoint.close(now, connection).expect("open");
    }
    talk.outlive(&mut world);
    let seen = [0, 1].map(|i| (frames(&world.sides[i]), heard(&talk.heard[i])));
    let listener = world.sides[1].listener().expect("listens");
    world.sides[1].endpoint.unlisten(listener).expect("known");
    talk.outlive(&mut world);
    assert_eq!(free_rows(&mut world), free, "everything is back");
    seen
}

fn frames(side: &Side) -> BTreeMap<u64, Vec<Vec<u8>>> {
    let mut frames: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    for (nexus, frame) in side.sent_on.iter().zip(&side.sent) {
        frames
            .entry(nexus.to_bits())
            .or_default()
            .push(frame.clone());
    }
    frames
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was heard, by the number of the connection in the number of the message.
fn heard(texts: &[String]) -> BTreeMap<u64, Vec<String>> {
    let mut heard: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for text in texts {
        let number = text
            .split([' ', ':', ','])
            .nth(1)
            .and_then(|word| word.parse::<u64>().ok());
        let connection = number.map_or(u64::MAX, |number| number % 1000 / 100);
        heard.entry(connection).or_default().push(text.clone());
    }
    heard
}

/// The bytes of the first frame that differs, by both.
fn difference(a: &Seen, b: &Seen) -> Option<(String, String)> {
    for (a, b) in a.iter().zip(b) {
        for (nexus, frames) in &a.0 {
            let others = b.0.get(nexus).map_or(&[][..], Vec::as_slice);
            let pairs = frames.iter().zip(others);
            if let Some((a, b)) = pairs.into_iter().find(|(a, b)| a != b) {
                return Some((hex(a), hex(b)));
            }
        }
    }
    (a != b).then(|| (format!("{a:?}"), format!("{b:?}")))
}

/// What was heard of each connection, in any order.
fn sorted(seen: &Seen) -> [BTreeMap<u64, Vec<String>>; 2] {
    let mut heard = seen.each_ref().map(|side| side.1.clone());
    for texts in heard.iter_mut().flat_map(BTreeMap::values_mut) {
        texts.sort();
    }
    heard
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn order_and_batches_of_polls_change_nothing(
        lines in proptest::collection::vec(line(), 1..40),
        seeds in proptest::collection::vec(any::<u64>(), 6),
    ) {
        let first = run(&lines, 0, false);
        for seed in seeds {
            let other = run(&lines, seed, false);
            prop_assert_eq!(&first[0].1, &other[0].1);
            prop_assert_eq!(&first[1].1, &other[1].1);
            prop_assert_eq!(difference(&first, &other), None);
        }
    }

    #[test]
    fn when_events_are_heard_changes_no_outcome(
        lines in proptest::collection::vec(line(), 1..40),
        seeds in proptest::collection::vec(any::<u64>(), 6),
    ) {
        let first = sorted(&run(&lines, 0, false));
        for seed in seeds {
            prop_assert_eq!(&sorted(&run(&lines, seed, true)), &first);
        }
    }
}
