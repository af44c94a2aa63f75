//! Lives by chance: both users do what comes to their minds, peers send anything.

use xio_proto::{Config, ConnectOptions, ConnectionId, Data, Event, TaskId};
use xio_tests::golden::{Carrier, Dialect, Event as Seen, NAMES, Place, Side as Who, load};
use xio_tests::stream_pair::{Cut, Rng, StreamPair};
use xio_tests::talk::{Payload, Say, Talk, free_rows};

use super::tcp_with;

fn small(i: u8) -> Config {
    Config {
        buffer_size: 1024,
        inline_data_max: 700,
        keepalive: None,
        ..Config::new(i, 24, 64)
    }
}

fn some_say(rng: &mut Rng, user: u64) -> Say {
    let large = [0, 0, 50, 3000][rng.below(4)];
    let one_way = rng.below(3) == 0;
    Say {
        one_way,
        inline: if large > 0 { 0 } else { rng.below(300) },
        gathered: large,
        force_read: rng.below(2) == 0,
        room: if one_way { 0 } else { [0, 2000][rng.below(2)] },
        reply: rng.below(100),
        payload: [Payload::Provide, Payload::Refuse, Payload::Ignore][rng.below(3)],
        receipt: rng.below(4) == 0,
        ..Say::request(user)
    }
}

/// One step of somebody's.
fn step(world: &mut StreamPair, talk: &mut Talk, rng: &mut Rng, sent: &mut Vec<(usize, TaskId)>) {
    let i = rng.below(2);
    let now = world.now;
    match rng.below(20) {
        0..8 => {
            if talk.connections[i].is_some() && sent.len() < 30 {
                let mut say = some_say(rng, sent.len() as u64);
                if say.room > 0 && rng.below(2) == 0 {
                    say.reply = 101 + rng.below(1800);
                }
                if let Ok(task) = talk.try_say(world, i, &say) {
                    sent.push((i, task));
                }
            }
        }
        8..10 => {
            if !sent.is_empty() {
                let (i, task) = sent[rng.below(sent.len())];
                let _ = world.sides[i].endpoint.cancel(task);
            }
        }
        10 => world.hold[i] = !world.hold[i],
        11 => talk.keep[i] = true,
        12 => talk.let_go(world, i),
        13 => world.cut = Cut::random(rng.below(1 << 20) as u64, [1, 40, 5000][rng.below(3)]),
        14 => {
            if let Some(connection) = talk.connections[i].filter(|_| rng.below(4) == 0) {
                let _ = match rng.below(2) {
                    0 => world.sides[i].endpoint.close(now, connection),
                    _ => world.sides[i].endpoint.abort(now, connection),
                };
            }
        }
        15 => {
            world.advance();
        }
        16 if rng.below(12) == 0 => world.cut_off(i),
        _ => talk.settle(world),
    }
}

#[test]
fn whatever_both_users_do_each_message_has_one_outcome_and_all_comes_back() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut world = tcp_with(small, Cut::random(seed, 300));
        world.data_first = seed % 2 == 0;
        let free = free_rows(&mut world);
        let mut talk = Talk::open(&mut world, seed % 3 > 0);
        let mut sent = Vec::new();
        for _ in 0..80 {
            step(&mut world, &mut talk, &mut rng, &mut sent);
        }
        finish(&mut world, &mut talk);
        assert_eq!(free_rows(&mut world), free, "seed {seed}");
        for (number, (i, _)) in sent.iter().enumerate() {
            let outcomes = ["response", "sent", "failed", "cancelled", "delivered"];
            let mine = |text: &&String| {
                let mut words = text.split([' ', ':', ',']);
                let what = words.next().unwrap_or_default();
                words.next() == Some(&number.to_string()) && outcomes.contains(&what)
            };
            let heard: Vec<_> = talk.heard[*i].iter().filter(mine).collect();
            let last = heard.iter().filter(|t| !t.starts_with("delivered")).count();
            let delivered = heard.len() - last;
            assert!(
                last == 1 || (last == 0 && delivered == 1),
                "seed {seed}: {number} {heard:?}"
            );
        }
    }
}

fn finish(world: &mut StreamPair, talk: &mut Talk) {
    world.resume();
    talk.settle(world);
    for i in 0..2 {
        if let Some(connection) = talk.connections[i] {
            let _ = world.sides[i].endpoint.close(world.now, connection);
        }
        talk.let_go(world, i);
    }
    talk.outlive(world);
    for i in 0..2 {
        talk.let_go(world, i);
    }
    // A side that was left alone finds out when its driver does.
    world.cut_off(0);
    world.cut_off(1);
    talk.outlive(world);
}

/// Client bytes of a recording: those of each socket in turn, as one list of writes.
fn recorded_writes(name: &str) -> Vec<(usize, Vec<u8>)> {
    let transcript = load(name).expect("it is there");
    let mut writes = Vec::new();
    for record in &transcript.records {
        match &record.event {
            Seen::Hello { conn, message } => writes.push((*conn as usize, message.bytes())),
            Seen::Frame(frame) if frame.side == Who::Client => {
                let Carrier::Socket { conn, data, .. } = frame.carrier else {
                    continue;
                };
                let part = |data: bool| -> Vec<u8> {
                    let there = frame.sections.iter();
                    let there = there.filter(|s| (s.place == Place::Data) == data);
                    there.flat_map(|s| s.bytes()).collect()
                };
                writes.push((conn as usize, part(false)));
                if let Some(data) = data {
                    writes.push((data as usize, part(true)));
                }
            }
            _ => {}
        }
    }
    writes
}

fn damage(rng: &mut Rng, writes: &mut Vec<(usize, Vec<u8>)>) {
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(writes.len());
        let bytes = &mut writes[at].1;
        match rng.below(6) {
            0 if !bytes.is_empty() => {
                let place = rng.below(bytes.len());
                bytes[place] = rng.below(256) as u8;
            }
            // Where the lengths are.
            1 if bytes.len() >= 96 => bytes[8 + rng.below(88)] = [0, 1, 0x7f, 0xff][rng.below(4)],
            2 => bytes.truncate(rng.below(bytes.len() + 1)),
            3 => {
                let more = bytes.clone();
                bytes.extend(more);
            }
            4 => {
                let other = rng.below(writes.len());
                writes.swap(at, other);
            }
            _ => {
                writes.remove(at);
                if writes.is_empty() {
                    return;
                }
            }
        }
    }
}

/// A server's user who answers, keeps, refuses and forgets.
struct Careless {
    rng: Rng,
    connection: Option<ConnectionId>,
    kept: Vec<TaskId>,
}

impl Careless {
    fn react(&mut self, world: &mut StreamPair) {
        world.run();
        while let Some(event) = world.sides[1].events.pop_front() {
            self.on_event(world, &event);
            world.run();
        }
    }

    fn on_event(&mut self, world: &mut StreamPair, event: &Event) {
        let now = world.now;
        let side = &mut world.sides[1];
        match *event {
            Event::SessionRequest { session, .. } if self.rng.below(8) > 0 => {
                let slots = &mut side.slots;
                let accepted = side.endpoint.accept(now, session, 1, &[], b"", slots);
                self.connection = accepted.ok();
            }
            Event::PayloadWaiting { task, len, .. } if self.rng.below(4) > 0 => {
                let segment = side.segment(0, len as usize);
                if len <= side.memory.len() as u64 && self.rng.below(2) > 0 {
                    side.endpoint.provide(task, &[segment]).expect("waits");
                } else {
                    side.endpoint.refuse(task, 9).expect("waits");
                }
            }
            Event::Request { task, data, .. } => {
                if let Data::Slot(span) = data {
                    let _ = side.bytes(span);
                }
                let answer = xio_proto::Message::default();
                let answered =
                    self.rng.below(3) > 0 && side.endpoint.respond(task, &answer).is_ok();
                if !answered {
                    self.kept.push(task);
                }
            }
            Event::OneWay { task, .. } => self.kept.push(task),
            _ => {}
        }
        if self.rng.below(4) == 0 {
            self.give_back(world);
        }
    }

    fn give_back(&mut self, world: &mut StreamPair) {
        for task in self.kept.drain(..) {
            world.sides[1].endpoint.release(task).expect("held");
        }
    }
}

#[test]
fn whatever_a_peer_sends_all_comes_back() {
    let recorded: Vec<_> = NAMES
        .iter()
        .filter(|name| load(name).is_ok_and(|t| t.dialect == Dialect::Tcp))
        .filter(|name| **name != "tcp-large")
        .map(|name| recorded_writes(name))
        .collect();
    let server = |_| Config {
        keepalive: None,
        ..Config::new(0, 32, 32)
    };
    let mut world = tcp_with(server, Cut::Whole);
    let free = free_rows(&mut world);
    let mut broken = 0;
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        world.cut = Cut::random(seed, [2, 100, 4000][rng.below(3)]);
        let mut writes = recorded[rng.below(recorded.len())].clone();
        damage(&mut rng, &mut writes);
        let mut user = Careless {
            rng: Rng::new(seed + 77),
            connection: None,
            kept: Vec::new(),
        };
        let mut sockets = std::collections::BTreeMap::new();
        let ports = ports(&writes);
        for (conn, bytes) in &writes {
            let port = ports.get(conn).copied().unwrap_or(1000 + *conn as u16);
            let s = *sockets.entry(*conn).or_insert_with(|| {
                world
                    .stranger(&format!("10.0.0.9:{port}"), b"")
                    .expect("room")
            });
            world.stranger_sends(s, bytes);
            user.react(&mut world);
        }
        for s in sockets.into_values() {
            world.stranger_leaves(s);
        }
        user.react(&mut world);
        while world.advance() {
            user.react(&mut world);
        }
        user.give_back(&mut world);
        assert_eq!(free_rows(&mut world), free, "seed {seed}");
        broken += u64::from(world.sides[1].endpoint.counters().violations > broken);
    }
    assert!(broken > 500, "{broken}");
    let _ = ConnectOptions::new(0);
}

/// The port of each socket, as its partner's connect message names it.
fn ports(writes: &[(usize, Vec<u8>)]) -> std::collections::BTreeMap<usize, u16> {
    let mut ports = std::collections::BTreeMap::new();
    for (conn, bytes) in writes {
        if bytes.len() == 8 && bytes[3] > 1 {
            // Control sockets have even numbers, their data sockets the next.
            ports
                .entry(conn ^ 1)
                .or_insert_with(|| u16::from_be_bytes([bytes[4], bytes[5]]));
        }
    }
    ports
}
