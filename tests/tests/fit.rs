//! What no frame could carry is refused when it is sent, with what is too long and how long it may
//! be: exactly that is taken, and arrives (PROTOCOL.md 10.1).

use std::time::Duration;

use xio_proto::{
    CmKind, CommandError, Config, ConnectOptions, ConnectionId, Event, Instant, Length, Message,
    Reconnect, RequestOptions, Segment, SessionId, SessionOpen, SlotId, TaskId, TransportLimits,
};
use xio_tests::pair::{Pair, SERVER, Side};
use xio_tests::rig::{Rig, small};
use xio_tests::talk::{Talk, World};

/// Segments that the devices gather, one of which is the frame's own.
const GATHERED: u64 = 5;

fn connected(change: impl Fn(u8, &mut Config)) -> (Pair, ConnectionId) {
    let config = |i| {
        let mut config = Config::new(i, 700, 64);
        change(i, &mut config);
        config
    };
    let mut pair = Pair::rdma(config, &Pair::counts(&config(0)));
    pair.listen(50);
    let side = &mut pair.sides[0];
    let open = SessionOpen {
        uri: "rdma://10.0.0.2:7000/res",
        private: b"",
    };
    let (transport, peer) = (side.transport, SERVER.parse().unwrap());
    let options = ConnectOptions::new(60);
    let client = side
        .endpoint
        .connect(pair.now, transport, peer, &open, &options, &mut side.slots)
        .unwrap();
    pair.run();
    let Some(Event::SessionRequest { session, .. }) = pair.sides[1].events.pop_front() else {
        panic!("no session request")
    };
    accept(&mut pair.sides[1], pair.now, session);
    pair.run();
    for side in &mut pair.sides {
        side.events.clear();
    }
    (pair, client)
}

fn accept(side: &mut Side, now: Instant, session: SessionId) {
    let accepted = side
        .endpoint
        .accept(now, session, 70, &[], b"", &mut side.slots);
    accepted.unwrap();
}

fn pieces(side: &Side, count: usize, len: usize) -> Vec<Segment> {
    let piece = |at| side.segment(at * len, len);
    (0..count).map(piece).collect()
}

fn too_long(what: Length, len: u64, max: u64) -> CommandError {
    CommandError::TooLong { what, len, max }
}

/// The limit in a refusal that names this length.
fn limit<T: std::fmt::Debug>(refused: &Result<T, CommandError>, what: Length, len: u64) -> u64 {
    match *refused {
        Err(CommandError::TooLong {
            what: w,
            len: l,
            max,
        }) if (w, l) == (what, len) => max,
        _ => panic!("{what:?} of {len}: {refused:?}"),
    }
}

struct Says<'a> {
    header: u16,
    copied: u32,
    data: &'a [Segment],
    into: &'a [Segment],
    force_read: bool,
}

const SAYS: Says<'static> = Says {
    header: 0,
    copied: 0,
    data: &[],
    into: &[],
    force_read: false,
};

impl Says<'_> {
    fn message(&self, slot: Option<SlotId>) -> Message<'_> {
        Message {
            slot,
            header_len: self.header,
            slot_data: self.copied,
            data: self.data,
            user: 1,
            ..Message::default()
        }
    }

    /// Sends it as a request. What is refused changes nothing: its slot is still the user's.
    fn send(&self, world: &mut impl World, client: ConnectionId) -> Result<TaskId, CommandError> {
        let endpoint = &mut world.sides()[0].endpoint;
        let slot =
            (self.header > 0 || self.copied > 0).then(|| endpoint.reserve_slot(client).unwrap());
        let options = RequestOptions {
            into: self.into,
            force_read: self.force_read,
            ..RequestOptions::default()
        };
        let sent = endpoint.send(client, &self.message(slot), &options);
        if let (Err(_), Some(slot)) = (sent, slot) {
            endpoint.return_slot(slot).unwrap();
        }
        sent
    }

    fn answer(&self, pair: &mut Pair, task: TaskId) -> Result<(), CommandError> {
        let endpoint = &mut pair.sides[1].endpoint;
        let slot = (self.header > 0 || self.copied > 0)
            .then(|| endpoint.reserve_answer_slot(task).unwrap());
        let sent = endpoint.respond(task, &self.message(slot));
        if let (Err(_), Some(slot)) = (sent, slot) {
            endpoint.return_slot(slot).unwrap();
        }
        sent
    }
}

/// What is new at the server, but for the outcomes of its answers.
fn news(pair: &mut Pair) -> Option<Event> {
    pair.run();
    let events = &mut pair.sides[1].events;
    while let Some(Event::Sent { .. }) = events.front() {
        events.pop_front();
    }
    events.pop_front()
}

fn arrived(pair: &mut Pair) -> TaskId {
    match news(pair) {
        Some(Event::Request { task, .. }) => task,
        other => panic!("no request: {other:?}"),
    }
}

/// The peer READs what was sent, in one piece.
fn read(pair: &mut Pair, bytes: usize) -> TaskId {
    let task = match news(pair) {
        Some(Event::PayloadWaiting { task, .. }) => task,
        other => panic!("nothing waits for memory: {other:?}"),
    };
    let room = pieces(&pair.sides[1], 1, bytes);
    pair.sides[1].endpoint.provide(task, &room).unwrap();
    arrived(pair)
}

/// Gives memory to what waits for it at the client, and says how many bytes of answer came.
fn answered(pair: &mut Pair) -> u64 {
    pair.run();
    loop {
        match pair.sides[0].events.pop_front() {
            Some(Event::PayloadWaiting { task, len, .. }) => {
                let room = [pair.sides[0].segment(0, len as usize)];
                pair.sides[0].endpoint.provide(task, &room).unwrap();
                pair.run();
            }
            Some(Event::Response { task, data, .. }) => {
                pair.sides[0].endpoint.release(task).unwrap();
                pair.run();
                return data.len();
            }
            other => panic!("no answer: {other:?}"),
        }
    }
}

/// A request of these bytes in the slot and behind it arrives, and is answered.
fn passes(pair: &mut Pair, client: ConnectionId, says: &Says<'_>) {
    says.send(pair, client).unwrap();
    let task = arrived(pair);
    SAYS.answer(pair, task).unwrap();
    assert_eq!(answered(pair), 0);
}

#[test]
fn a_device_gathers_so_many_segments_behind_copied_data() {
    let (mut pair, client) = connected(|_, config| config.sge_max = 8);
    let copied = |data| Says {
        copied: 4,
        data,
        ..SAYS
    };
    let all = pieces(&pair.sides[0], 8, 10);
    for count in 1..=8 {
        let says = copied(&all[..count]);
        if (count as u64) < GATHERED {
            passes(&mut pair, client, &says);
            continue;
        }
        let refused = too_long(Length::Segments, count as u64, GATHERED - 1);
        assert_eq!(says.send(&mut pair, client), Err(refused));
        // The peer READs it if none of it lies in a slot.
        let all_read = Says { copied: 0, ..says };
        all_read.send(&mut pair, client).unwrap();
        let task = read(&mut pair, 10 * count);
        let answer = pieces(&pair.sides[1], 8, 10);
        let refused = Says {
            copied: 4,
            data: &answer[..count],
            ..SAYS
        };
        let error = too_long(Length::Segments, count as u64, GATHERED - 1);
        assert_eq!(refused.answer(&mut pair, task), Err(error));
        let fits = Says {
            data: &answer[..GATHERED as usize - 1],
            ..refused
        };
        fits.answer(&mut pair, task).unwrap();
        assert_eq!(answered(&mut pair), 4 + 10 * (GATHERED - 1));
    }
    let forced = Says {
        force_read: true,
        ..copied(&all[..1])
    };
    let refused = too_long(Length::Copied, 4, 0);
    assert_eq!(forced.send(&mut pair, client), Err(refused));
}

#[test]
fn data_in_a_slot_is_held_to_the_frame_of_the_peer() {
    for small in 0..2 {
        let (mut pair, client) = connected(|i, config| {
            config.buffer_size = if i == small { 512 } else { 9216 };
            config.inline_data_max = config.buffer_size;
        });
        let says = |header, copied| Says {
            header,
            copied,
            ..SAYS
        };
        for header in [0, 100] {
            let refused = says(header, 500).send(&mut pair, client);
            let max = limit(&refused, Length::Data, 500);
            assert!((200..500).contains(&max), "{max}");
            let refused = says(header, max as u32 + 1).send(&mut pair, client);
            assert_eq!(refused, Err(too_long(Length::Data, max + 1, max)));
            passes(&mut pair, client, &says(header, max as u32));

            says(0, 1).send(&mut pair, client).unwrap();
            let task = arrived(&mut pair);
            let refused = says(header, 500).answer(&mut pair, task);
            let max = limit(&refused, Length::Data, 500);
            let refused = says(header, max as u32 + 1).answer(&mut pair, task);
            assert_eq!(refused, Err(too_long(Length::Data, max + 1, max)));
            says(header, max as u32).answer(&mut pair, task).unwrap();
            assert_eq!(answered(&mut pair), max);
        }
    }
}

#[test]
fn lists_and_headers_are_held_to_the_frame_of_the_peer() {
    for small in 0..2 {
        let (mut pair, client) = connected(|i, config| {
            config.buffer_size = if i == small { 512 } else { 9216 };
            config.inline_data_max = config.buffer_size;
            (config.sge_max, config.header_max) = (64, 500);
            config.slot_size = 16 << 10;
        });
        let (own, answer) = (
            pieces(&pair.sides[0], 64, 100),
            pieces(&pair.sides[1], 64, 100),
        );
        let lists = |data, into| Says { data, into, ..SAYS };
        let refused = lists(&own, &[]).send(&mut pair, client);
        let max = limit(&refused, Length::Segments, 64) as usize;
        assert!((10..64).contains(&max), "{max}");
        // Half of them for the answer: they share the frame.
        let half = max / 2;
        let refused = lists(&own[..half], &own[..max - half + 1]).send(&mut pair, client);
        let error = too_long(Length::Segments, max as u64 + 1, max as u64);
        assert_eq!(refused, Err(error));
        lists(&own[..max], &[]).send(&mut pair, client).unwrap();
        let task = read(&mut pair, 100 * max);
        let refused = lists(&answer, &[]).answer(&mut pair, task);
        let max = limit(&refused, Length::Segments, 64) as usize;
        let refused = lists(&answer[..=max], &[]).answer(&mut pair, task);
        assert_eq!(
            limit(&refused, Length::Segments, max as u64 + 1),
            max as u64
        );
        let header = Says {
            header: 500,
            ..SAYS
        };
        let refused = header.answer(&mut pair, task);
        assert!(limit(&refused, Length::Header, 500) < 500);
        let refused = header.send(&mut pair, client);
        assert!(limit(&refused, Length::Header, 500) < 500);
        lists(&answer[..max], &[]).answer(&mut pair, task).unwrap();
        assert_eq!(answered(&mut pair), 100 * max as u64);
    }
}

#[test]
fn between_two_lives_a_message_is_held_to_what_its_own_side_can() {
    let config = |i| {
        let mut config = small(i);
        config.buffer_size = 512;
        config.inline_data_max = 512;
        (config.sge_max, config.header_max) = (64, 500);
        config
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let mut options = ConnectOptions::new(60);
    options.reconnect = Some(Reconnect {
        attempts_max: 10,
        give_up_after: None,
        first_delay: Duration::from_millis(100),
        max_delay: Duration::from_secs(1),
    });
    let client = rig.dial_with(&options);
    let mut talk = Talk::default();
    talk.settle(&mut rig);
    for i in 0..2 {
        rig.tell(i, CmKind::Disconnected);
    }
    talk.settle(&mut rig);
    let seen = rig.sides[0].endpoint.connections().next().unwrap();
    assert_eq!((seen.state, seen.session), ("Waiting", None));

    let copied = |copied| Says { copied, ..SAYS };
    let refused = copied(500).send(&mut rig, client);
    let most = limit(&refused, Length::Data, 500);
    assert!((200..500).contains(&most), "{most}");
    let refused = copied(most as u32 + 1).send(&mut rig, client);
    assert_eq!(refused, Err(too_long(Length::Data, most + 1, most)));
    copied(most as u32).send(&mut rig, client).unwrap();

    let all = pieces(&rig.sides[0], 64, 10);
    let behind = |count: u64| Says {
        data: &all[..count as usize],
        ..copied(4)
    };
    let refused = behind(GATHERED).send(&mut rig, client);
    let error = too_long(Length::Segments, GATHERED, GATHERED - 1);
    assert_eq!(refused, Err(error));
    behind(GATHERED - 1).send(&mut rig, client).unwrap();

    let lists = |count| Says {
        data: &all[..count],
        ..SAYS
    };
    let refused = lists(64).send(&mut rig, client);
    let max = limit(&refused, Length::Segments, 64) as usize;
    assert!((10..64).contains(&max), "{max}");
    lists(max).send(&mut rig, client).unwrap();

    let headed = |header| Says { header, ..SAYS };
    let refused = headed(500).send(&mut rig, client);
    let header = limit(&refused, Length::Header, 500);
    assert!((200..500).contains(&header), "{header}");
    headed(header as u16).send(&mut rig, client).unwrap();

    // What was taken is sent, in its order.
    let mut came = Vec::new();
    while came.len() < 3 {
        assert!(rig.advance(), "{came:?}");
        while let Some(event) = rig.sides[1].events.pop_front() {
            match event {
                Event::SessionRequest { session, .. } => {
                    accept(&mut rig.sides[1], rig.now, session)
                }
                Event::Request { data, .. } => came.push(data.len()),
                Event::PayloadWaiting { len, .. } => came.push(len),
                _ => {}
            }
            rig.run();
        }
    }
    assert_eq!(came[..3], [most, 4 + 10 * (GATHERED - 1), 10 * max as u64]);
}
