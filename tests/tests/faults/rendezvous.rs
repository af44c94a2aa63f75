//! Kind F: large payloads, keys, READ and WRITE.

use std::time::Duration;

use xio_proto::{
    Access, CmKind, CommandError, Completion, Config, ConnectionPolicy, Control, Event, Failure,
    Length, Message, OnExpiry, Reason, RemoteMemory, RequestOptions, Segment, TransportLimits,
    Work, WorkStatus,
};
use xio_tests::pair::Side;
use xio_tests::rig::{Gate, Rig, name, small};
use xio_tests::stream_pair::Rng;
use xio_tests::talk::{Say, Talk, World};

use crate::users::{abort, is, outcome_of, reasons, wind_up};

fn reads(work: &Work) -> bool {
    matches!(work, Work::Read { .. })
}
fn writes(work: &Work) -> bool {
    matches!(work, Work::Write { .. })
}

/// Devices that move little at once.
fn in_pieces(max_message: u32) -> (Rig, Talk) {
    let limits = move |_| TransportLimits {
        max_message,
        max_reads: 4,
        ..TransportLimits::rdma()
    };
    let mut rig = Rig::with(small, limits);
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

/// A request whose data is READ.
fn fetched(user: u64, len: usize) -> Say {
    Say {
        inline: 0,
        gathered: len,
        force_read: true,
        ..Say::request(user)
    }
}

/// A request whose answer is written.
fn answered_large(user: u64, len: usize) -> Say {
    Say {
        room: len,
        reply: len,
        ..Say::request(user)
    }
}

/// Sends a request with segments of its own choice.
fn send(rig: &mut Rig, talk: &Talk, data: &[Segment], into: &[Segment], user: u64) {
    let message = Message {
        data,
        user,
        ..Message::default()
    };
    let options = RequestOptions {
        into,
        force_read: true,
        force_write: true,
        ..RequestOptions::default()
    };
    let connection = talk.connections[0].expect("open");
    let endpoint = &mut rig.sides[0].endpoint;
    endpoint.send(connection, &message, &options).expect("room");
    rig.run();
}

fn next(rig: &mut Rig, i: usize) -> Event {
    rig.sides[i].events.pop_front().expect("an event")
}

#[test]
fn a_message_is_whole_when_all_pieces_are() {
    let (mut rig, mut talk) = in_pieces(1000);
    rig.gates[1].sends = true;
    talk.say(&mut rig, 0, &fetched(1, 9000));
    talk.settle(&mut rig);
    let posted = |rig: &Rig| rig.posted[1].iter().filter(|work| reads(work)).count();
    let mut done = 0;
    while talk.count(1, "request 1") == 0 {
        assert!(
            done < posted(&rig),
            "{done} pieces, and nothing is on its way"
        );
        rig.complete_sends(1, 1);
        done += 1;
        talk.settle(&mut rig);
    }
    assert!(
        done >= 10,
        "{done} pieces of a thousand bytes in two segments"
    );
    assert_eq!(done, posted(&rig), "not before the last");
    rig.let_go(1);
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    wind_up(&mut rig);
}

#[test]
fn sizes_around_every_limit() {
    let config = |i| Config {
        payload_max: 1 << 30,
        ..Config::new(i, 64, 48)
    };
    for max_message in [1 << 30, 4096] {
        let limits = move |_| TransportLimits {
            max_message,
            ..TransportLimits::rdma()
        };
        let mut rig = Rig::with(config, limits);
        let mut talk = Talk::open(&mut rig, false);
        let edges = [0, 1, 4096, 8192, 9216, 65_536];
        let sizes = edges
            .into_iter()
            .flat_map(|edge: usize| [edge.max(1) - 1, edge, edge + 1]);
        for (user, size) in sizes.enumerate() {
            let say = Say {
                inline: 0,
                gathered: size,
                reply: size,
                room: size,
                ..Say::request(user as u64)
            };
            talk.say(&mut rig, 0, &say);
            talk.settle(&mut rig);
            let text = format!("response {user}: {size} bytes");
            assert_eq!(talk.count(0, &text), 1, "{:?}", talk.heard[0].last());
            talk.clear();
        }
        wind_up(&mut rig);
    }
}

#[test]
fn sizes_at_the_limit_of_payloads() {
    let config = |i| Config {
        payload_max: 1 << 30,
        ..Config::new(i, 64, 48)
    };
    let mut rig = Rig::with(config, |_| TransportLimits::rdma());
    let talk = Talk::open(&mut rig, false);
    rig.sides[1].events.clear();
    let segment = |len| Segment {
        addr: Side::BASE,
        len,
        lkey: 1,
        rkey: 2,
    };
    let connection = talk.connections[0].expect("open");
    let too_long = |len, max| CommandError::TooLong {
        what: Length::Data,
        len,
        max,
    };
    let options = RequestOptions::default();
    let most: u64 = 1 << 30;
    for (data, error) in [
        (vec![segment(1 << 31)], too_long(1 << 31, most)),
        (vec![segment(1 << 30), segment(1)], too_long(most + 1, most)),
        (
            vec![segment(u32::MAX); 4],
            too_long(4 * u64::from(u32::MAX), most),
        ),
        (
            vec![segment(0)],
            CommandError::BadValue("segment of zero bytes"),
        ),
    ] {
        let message = Message {
            data: &data,
            ..Message::default()
        };
        let refused = rig.sides[0].endpoint.send(connection, &message, &options);
        assert_eq!(refused, Err(error));
    }
    // The largest of all is told of in full.
    send(&mut rig, &talk, &[segment(1 << 30)], &[], 1);
    let Event::PayloadWaiting { task, len, .. } = next(&mut rig, 1) else {
        panic!("{:?}", rig.log[1])
    };
    assert_eq!(len, most);
    let endpoint = &mut rig.sides[1].endpoint;
    assert_eq!(
        endpoint.provide(task, &[segment(1 << 29)]),
        Err(too_long(most, most / 2))
    );
    let holes = [segment(0), segment(1 << 30)];
    let empty = Err(CommandError::BadValue("segment of zero bytes"));
    assert_eq!(endpoint.provide(task, &holes), empty);
    endpoint.refuse(task, 5).expect("it waits");
    rig.run();
    wind_up(&mut rig);
}

#[test]
fn after_a_failed_write_no_response_leaves() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    rig.gates[1] = Gate::default().hold_work(writes);
    talk.say(&mut rig, 0, &answered_large(1, 20_000));
    talk.settle(&mut rig);
    let write = rig.posted[1]
        .iter()
        .find(|work| writes(work))
        .expect("a WRITE");
    let (wr, status) = (name(write).1, WorkStatus::RemoteAccess);
    let sent = rig.sides[1].sent.len();
    rig.handle(1, Completion { wr, status, len: 0 });
    talk.outlive(&mut rig);
    assert_eq!(
        rig.sides[1].sent.len(),
        sent,
        "no frame says that it is done"
    );
    assert_eq!(talk.count(1, "failed 5001"), 1, "{:?}", talk.heard[1]);
    assert_eq!(talk.count(0, "failed 1"), 1, "{:?}", talk.heard[0]);
    assert_eq!(reasons(&rig, 1), [Reason::WorkFailed(status)]);
    wind_up(&mut rig);
}

#[test]
fn an_aborted_request_keeps_its_memory_until_nobody_reaches_it() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    talk.keep[1] = true;
    talk.say(&mut rig, 0, &answered_large(1, 20_000));
    talk.settle(&mut rig);
    rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Disconnect { .. }));
    abort(&mut rig, &talk, 0);
    talk.settle(&mut rig);
    let held = "buffers held";
    assert!(
        talk.heard[0].iter().any(|text| text.contains(held)),
        "{:?}",
        talk.heard[0]
    );
    assert_eq!(talk.count(0, "buffers of 1"), 0);
    // The peer does not know yet, and writes.
    talk.let_go(&mut rig, 1);
    assert!(rig.posted[1].iter().any(writes));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "buffers of 1") + talk.count(0, "closed"), 0);
    rig.let_go(0);
    talk.outlive(&mut rig);
    assert_eq!(talk.count(0, "buffers of 1"), 1, "{:?}", talk.heard[0]);
    assert_eq!(talk.count(0, "response"), 0);
    wind_up(&mut rig);
}

#[test]
fn no_registration_no_key_and_no_work_after_a_loss() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    rig.gates[0] = Gate::default().fail(|c| matches!(c, Control::Register { .. }), 12);
    let transport = rig.sides[0].transport;
    let register = |rig: &mut Rig| {
        let endpoint = &mut rig.sides[0].endpoint;
        endpoint.register(transport, Side::BASE, 4096, Access::REMOTE_READ, 9)
    };
    register(&mut rig).expect("room");
    talk.settle(&mut rig);
    let failed = |event: &Event| {
        matches!(
            event,
            Event::RegionFailed {
                error: 12,
                user: 9,
                ..
            }
        )
    };
    assert_eq!(is(&rig, 0, failed), 1);
    assert_eq!(
        rig.sides[0].endpoint.free_rows().regions,
        rig.free[0].regions
    );
    // The connection does not care.
    talk.say(&mut rig, 0, &Say::request(1));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 1"), 1);
    rig.sides[0].deaf = true;
    rig.tell(0, CmKind::Disconnected);
    let posted = rig.posted[0].len();
    let remote = RemoteMemory {
        addr: Side::BASE,
        len: 100,
        key: 2,
    };
    let local = [rig.sides[0].segment(0, 100)];
    let connection = talk.connections[0].expect("open");
    let endpoint = &mut rig.sides[0].endpoint;
    let taken = endpoint.read(connection, &local, &remote, 7, None).is_ok();
    rig.run();
    let endpoint = &mut rig.sides[0].endpoint;
    let late = endpoint.read(connection, &local, &remote, 8, None);
    assert_eq!(late, Err(CommandError::Closed(Reason::Disconnected)));
    assert_eq!(rig.posted[0].len(), posted, "nothing is posted");
    rig.sides[0].deaf = false;
    talk.outlive(&mut rig);
    assert_eq!(talk.count(0, "failed 7"), usize::from(taken));
    wind_up(&mut rig);
}

#[test]
fn each_key_goes_where_it_belongs() {
    let (mut rig, talk) = in_pieces(1 << 20);
    rig.sides[1].events.clear();
    rig.sides[0].events.clear();
    let segment = |at: u64, [lkey, rkey]: [u32; 2]| Segment {
        addr: Side::BASE + at,
        len: 10_000,
        lkey,
        rkey,
    };
    send(
        &mut rig,
        &talk,
        &[segment(0, [0x11, 0x22])],
        &[segment(10_000, [0x33, 0x44])],
        1,
    );
    // On the wire: the offer, and behind it the data, with the keys that peers use.
    let request = rig.sides[0].sent.last().expect("a request").clone();
    assert_eq!(request[96 + 12..96 + 16], 0x44_u32.to_be_bytes());
    assert_eq!(request[112 + 12..112 + 16], 0x22_u32.to_be_bytes());
    let Event::PayloadWaiting { task, .. } = next(&mut rig, 1) else {
        panic!("{:?}", rig.log[1])
    };
    let room = [segment(0, [0x55, 0x66])];
    rig.sides[1]
        .endpoint
        .provide(task, &room)
        .expect("it waits");
    rig.run();
    let Event::Request { task, .. } = next(&mut rig, 1) else {
        panic!("{:?}", rig.log[1])
    };
    let answer = [segment(20_000, [0x77, 0x88])];
    let message = Message {
        data: &answer,
        ..Message::default()
    };
    rig.sides[1].endpoint.respond(task, &message).expect("room");
    // While the work is out, its local segments can be asked for.
    let mut keys = Vec::new();
    while let Some(work) = rig.take_work(1) {
        if let Work::Read { local, rkey, .. } | Work::Write { local, rkey, .. } = work {
            let local: Vec<_> = rig.sides[1].endpoint.segments(local).collect();
            keys.push((local[0].lkey, rkey));
        }
        rig.work(1, work);
    }
    assert_eq!(keys, [(0x77, 0x44)]);
    let read = rig.posted[1].iter().find(|work| reads(work));
    assert!(
        matches!(read, Some(Work::Read { rkey: 0x22, .. })),
        "{read:?}"
    );
    rig.run();
    wind_up(&mut rig);
}

#[test]
fn an_answer_while_the_region_is_revoked_releases_once() {
    for answer_first in [false, true] {
        let (mut rig, mut talk) = in_pieces(1 << 20);
        talk.keep[1] = true;
        let policy = ConnectionPolicy {
            on_expiry: OnExpiry::Revoke,
            ..ConnectionPolicy::ASK
        };
        let connection = talk.connections[0].expect("open");
        let transport = rig.sides[0].transport;
        let endpoint = &mut rig.sides[0].endpoint;
        endpoint.set_policy(connection, policy).expect("known");
        endpoint
            .register(transport, Side::BASE, 1 << 20, Access::REMOTE_WRITE, 9)
            .expect("room");
        talk.settle(&mut rig);
        rig.gates[0] = Gate::default().hold(|c| matches!(c, Control::Revoke { .. }));
        let say = Say {
            deadline: Some(rig.now.after(Duration::from_millis(5))),
            ..answered_large(1, 20_000)
        };
        talk.say(&mut rig, 0, &say);
        talk.settle(&mut rig);
        assert!(rig.advance());
        talk.settle(&mut rig);
        assert_eq!(
            talk.count(0, "timed out 1, buffers back false"),
            1,
            "{:?}",
            talk.heard[0]
        );
        assert_eq!(rig.begun(0), 1, "the revocation is under way");
        if answer_first {
            talk.let_go(&mut rig, 1);
            rig.let_go(0);
        } else {
            rig.let_go(0);
            talk.let_go(&mut rig, 1);
        }
        talk.settle(&mut rig);
        assert_eq!(talk.count(0, "buffers of 1"), 1, "{:?}", talk.heard[0]);
        assert_eq!(talk.count(0, "response"), 0);
        wind_up(&mut rig);
    }
}

#[test]
fn a_region_changes_with_the_drivers_word_only() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    rig.gates[0] =
        Gate::default().hold(|c| matches!(c, Control::Register { .. } | Control::Revoke { .. }));
    let transport = rig.sides[0].transport;
    let endpoint = &mut rig.sides[0].endpoint;
    let region = endpoint
        .register(transport, Side::BASE, 4096, Access::REMOTE_READ, 9)
        .expect("room");
    let early = endpoint.revoke(region);
    assert!(
        matches!(early, Err(CommandError::WrongState(_))),
        "{early:?}"
    );
    rig.run();
    rig.let_go(0);
    let ready = |event: &Event| matches!(event, Event::RegionReady { user: 9, .. });
    assert_eq!(is(&rig, 0, ready), 1);
    // Nobody used it, and a post failed meanwhile: it can be revoked all the same, once.
    rig.gates[0] = Gate::default().fail_work(|work| matches!(work, Work::Send { .. }), 12);
    talk.say(&mut rig, 0, &Say::request(1));
    talk.outlive(&mut rig);
    assert_eq!(talk.count(0, "failed 1"), 1);
    let (now, endpoint) = (rig.now, &mut rig.sides[0].endpoint);
    let stale = endpoint.counters().stale;
    endpoint.handle_region(now, region, Ok((5, 6)));
    endpoint.handle_region_revoked(now, region);
    assert_eq!(
        endpoint.counters().stale,
        stale + 2,
        "nobody asked for either"
    );
    assert_eq!(endpoint.revoke(region), Ok(()));
    let again = endpoint.revoke(region);
    assert!(
        matches!(again, Err(CommandError::WrongState(_))),
        "{again:?}"
    );
    rig.run();
    let revoked = |event: &Event| matches!(event, Event::RegionRevoked { user: 9, .. });
    assert_eq!(is(&rig, 0, revoked), 1);
    assert_eq!(
        rig.sides[0].endpoint.revoke(region),
        Err(CommandError::Unknown)
    );
    wind_up(&mut rig);
}

#[test]
fn the_same_address_registered_again_is_another_region() {
    let mut rig = Rig::new();
    let transport = rig.sides[0].transport;
    let mut regions = Vec::new();
    for _ in 0..2 {
        let endpoint = &mut rig.sides[0].endpoint;
        let access = Access::REMOTE_READ;
        let region = endpoint.register(transport, Side::BASE, 4096, access, 9);
        regions.push(region.expect("room"));
        rig.run();
    }
    assert_ne!(regions[0], regions[1]);
    let registered = |step: &&Control| matches!(step, Control::Register { .. });
    assert_eq!(
        rig.steps[0].iter().filter(registered).count(),
        2,
        "the device is asked anew"
    );
    for region in regions {
        rig.sides[0].endpoint.revoke(region).expect("ready");
    }
    wind_up(&mut rig);
}

#[test]
fn a_read_that_fails_ends_the_request() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    rig.gates[1] = Gate::default().hold_work(reads);
    talk.say(&mut rig, 0, &fetched(1, 20_000));
    talk.settle(&mut rig);
    let read = rig.posted[1]
        .iter()
        .find(|work| reads(work))
        .expect("a READ");
    let (wr, status) = (name(read).1, WorkStatus::LocalAccess);
    rig.handle(1, Completion { wr, status, len: 0 });
    talk.outlive(&mut rig);
    assert_eq!(talk.count(1, "request 1"), 0);
    assert_eq!(talk.count(1, "buffers of"), 1, "what was given comes back");
    assert_eq!(talk.count(0, "failed 1"), 1, "{:?}", talk.heard[0]);
    assert_eq!(reasons(&rig, 1), [Reason::WorkFailed(status)]);
    wind_up(&mut rig);
}

#[test]
fn a_long_answer_without_an_offer_arrives() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    for (user, reply) in [(1, 8193), (2, 9216), (3, 100_000)] {
        let say = Say {
            reply,
            ..Say::request(user)
        };
        talk.say(&mut rig, 0, &say);
        talk.settle(&mut rig);
        let text = format!("response {user}: {reply} bytes");
        assert_eq!(talk.count(0, &text), 1, "{:?}", talk.heard[0]);
        assert_eq!(talk.count(1, &format!("sent {}", user + 5000)), 1);
    }
    // One that nobody takes is told to the requester, and the connection lives.
    talk.keep[0] = true;
    let say = Say {
        reply: 20_000,
        ..Say::request(4)
    };
    talk.say(&mut rig, 0, &say);
    talk.settle(&mut rig);
    let (task, _) = talk.waiting[0].pop().expect("a payload waits");
    rig.sides[0].endpoint.refuse(task, 9).expect("it waits");
    talk.settle(&mut rig);
    assert_eq!(
        talk.count(0, "failed 4: RefusedHere(9)"),
        1,
        "{:?}",
        talk.heard[0]
    );
    talk.keep[0] = false;
    talk.say(&mut rig, 0, &Say::request(5));
    talk.settle(&mut rig);
    assert_eq!(talk.count(0, "response 5"), 1);
    wind_up(&mut rig);
}

#[test]
fn a_response_that_is_not_fetched_frees_its_sender() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    talk.keep[0] = true;
    for user in 0..50 {
        let say = Say {
            reply: 20_000,
            ..Say::request(user)
        };
        talk.say(&mut rig, 0, &say);
        talk.settle(&mut rig);
        let (task, _) = talk.waiting[0].pop().expect("a payload waits");
        rig.sides[0].endpoint.refuse(task, 9).expect("it waits");
        talk.settle(&mut rig);
        assert_eq!(talk.count(1, &format!("sent {}", user + 5000)), 1);
    }
    let failed = |event: &Event| {
        matches!(
            event,
            Event::Failed {
                failure: Failure::RefusedHere(9),
                ..
            }
        )
    };
    assert_eq!(is(&rig, 0, failed), 50);
    wind_up(&mut rig);
}

#[test]
fn each_request_has_its_own_keys() {
    let (mut rig, talk) = in_pieces(1 << 20);
    let segment = |rkey| Segment {
        addr: Side::BASE,
        len: 10_000,
        lkey: 1,
        rkey,
    };
    for rkey in [0x100, 0x200, 0x300] {
        send(&mut rig, &talk, &[segment(rkey)], &[], u64::from(rkey));
    }
    let is_request = |frame: &&Vec<u8>| frame[4..8] == [0, 0, 0, 0x12];
    let sent: Vec<_> = rig.sides[0].sent.iter().filter(is_request).collect();
    for (frame, rkey) in sent.iter().zip([0x100_u32, 0x200, 0x300]) {
        assert_eq!(frame[96 + 12..96 + 16], rkey.to_be_bytes());
    }
    assert_eq!(sent.len(), 3);
    wind_up(&mut rig);
}

/// Cuts so many bytes in up to eight segments, somewhere in a region of memory.
fn cut(rng: &mut Rng, total: usize, mut at: usize) -> Vec<Segment> {
    let count = 1 + rng.below(8);
    let mut segments = Vec::new();
    let mut left = total;
    for k in 0..count {
        let most = left - (count - k - 1).min(left - 1);
        let len = if k == count - 1 {
            left
        } else {
            1 + rng.below(most)
        };
        if len == 0 || left == 0 {
            break;
        }
        at += rng.below(77);
        segments.push(Segment {
            addr: Side::BASE + at as u64,
            len: len as u32,
            lkey: 1,
            rkey: 2,
        });
        at += len;
        left -= len;
    }
    if left > 0 {
        let last = segments.last_mut().expect("one");
        last.len += left as u32;
    }
    segments
}

fn bytes_of(side: &Side, segments: &[Segment]) -> Vec<u8> {
    let piece = |s: &Segment| {
        let at = (s.addr - Side::BASE) as usize;
        &side.memory[at..at + s.len as usize]
    };
    segments.iter().flat_map(piece).copied().collect()
}

#[test]
fn any_two_lists_move_the_same_bytes() {
    let mut rng = Rng::new(5);
    for round in 0..40 {
        let max_sge = 1 + rng.below(5) as u16;
        let max_message = [700, 5000, 1 << 20][rng.below(3)];
        let limits = move |_| TransportLimits {
            max_sge,
            max_message,
            ..TransportLimits::rdma()
        };
        let config = |i| Config {
            sge_max: 8,
            ..Config::new(i, 64, 48)
        };
        let mut rig = Rig::with(config, limits);
        let talk = Talk::open(&mut rig, false);
        for side in &mut rig.sides {
            side.events.clear();
        }
        for (k, byte) in rig.sides[0].memory[..200_000].iter_mut().enumerate() {
            *byte = (k * 7 + k / 251) as u8;
        }
        let total = 1 + rng.below(60_000);
        let data = cut(&mut rng, total, 0);
        let into = cut(&mut rng, total, 300_000);
        send(&mut rig, &talk, &data, &into, 1);
        let Event::PayloadWaiting { task, len, .. } = next(&mut rig, 1) else {
            panic!("{:?}", rig.log[1])
        };
        assert_eq!(len, total as u64);
        let room = cut(&mut rng, total, 0);
        rig.sides[1]
            .endpoint
            .provide(task, &room)
            .expect("it waits");
        rig.run();
        let Event::Request { task, .. } = next(&mut rig, 1) else {
            panic!("{:?}", rig.log[1])
        };
        let sent = bytes_of(&rig.sides[0], &data);
        assert_eq!(bytes_of(&rig.sides[1], &room), sent, "round {round}");
        let answer = cut(&mut rng, total, 0);
        let reply = bytes_of(&rig.sides[1], &answer);
        let message = Message {
            data: &answer,
            ..Message::default()
        };
        rig.sides[1].endpoint.respond(task, &message).expect("room");
        rig.run();
        let came = match next(&mut rig, 0) {
            Event::Response { data, .. } => match data {
                xio_proto::Data::Slot(span) => rig.sides[0].bytes(span).to_vec(),
                xio_proto::Data::Segments(_) => bytes_of(&rig.sides[0], &into),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(came, reply, "round {round}");
        wind_up(&mut rig);
    }
}

#[test]
fn lists_of_one_entry_too_many_are_refused() {
    let (mut rig, talk) = in_pieces(1 << 20);
    let connection = talk.connections[0].expect("open");
    let data = [rig.sides[0].segment(0, 10); 5];
    for count in 1..=5 {
        let message = Message {
            data: &data[..count],
            ..Message::default()
        };
        let endpoint = &mut rig.sides[0].endpoint;
        let taken = endpoint.send(connection, &message, &RequestOptions::default());
        assert_eq!(taken.is_ok(), count <= 4, "{taken:?}");
    }
    rig.run();
    wind_up(&mut rig);
}

#[test]
fn memory_given_for_a_payload_comes_back_with_the_loss() {
    for side in 0..2 {
        let (mut rig, mut talk) = in_pieces(1 << 20);
        rig.gates[side] = Gate::default().hold_work(reads);
        if side == 1 {
            talk.say(&mut rig, 0, &fetched(1, 20_000));
        } else {
            let say = Say {
                reply: 20_000,
                ..Say::request(1)
            };
            talk.say(&mut rig, 0, &say);
        }
        talk.settle(&mut rig);
        assert!(rig.posted[side].iter().any(reads), "side {side}");
        rig.tell(side, CmKind::Disconnected);
        talk.settle(&mut rig);
        let back = is(&rig, side, |event| {
            let returned = outcome_of(event).is_some_and(|(_, returned)| returned);
            returned || matches!(event, Event::BuffersReturned { .. })
        });
        assert_eq!(back, 1, "side {side}: {:?}", talk.heard);
        wind_up(&mut rig);
    }
}

#[test]
fn a_response_that_fits_nowhere_is_refused_at_once() {
    let (mut rig, mut talk) = in_pieces(1 << 20);
    talk.keep[1] = true;
    let say = Say {
        room: 50,
        ..Say::request(1)
    };
    talk.say(&mut rig, 0, &say);
    talk.settle(&mut rig);
    let (task, _) = talk.kept[1].pop().expect("kept");
    let posted = rig.posted[1].len();
    let connection = talk.connections[1].expect("open");
    let slot = rig.sides[1]
        .endpoint
        .reserve_slot(connection)
        .expect("room");
    let message = Message {
        slot: Some(slot),
        slot_data: 9200,
        ..Message::default()
    };
    let refused = rig.sides[1].endpoint.respond(task, &message);
    assert!(
        matches!(refused, Err(CommandError::TooLong { .. })),
        "{refused:?}"
    );
    rig.run();
    assert_eq!(rig.posted[1].len(), posted, "nothing is tried");
    rig.sides[1].endpoint.return_slot(slot).expect("still ours");
    // What fits is taken afterwards.
    rig.sides[1]
        .endpoint
        .respond(task, &Message::default())
        .expect("room");
    rig.run();
    let answered = |event: &Event| matches!(event, Event::Response { .. });
    assert_eq!(is(&rig, 0, answered), 1);
    wind_up(&mut rig);
}
