//! Everything that can change an endpoint is an `Input`: every method has one, an observer that
//! records sees it, and its bytes say all of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use xio_proto::storage::{Counts, Tables};
use xio_proto::wire::{Framing, Violation, What};
use xio_proto::{
    Access, Applied, Bytes, CmEvent, CmKind, Completion, Config, ConnectOptions, ConnectRequest,
    ConnectionId, ConnectionPolicy, EncodeError, Endpoint, Input, Instant, ListenOptions,
    ListenerId, Malformed, Message, NexusId, OnExpiry, PoolMemory, Reason, Reconnect, Refusal,
    RegionId, RemoteMemory, Rendezvous, RequestOptions, Resource, SEGMENTS_MAX, Scratch, Segment,
    SessionId, SessionOpen, SessionTicket, SlotId, Slots, SocketId, Start, TaskId, Trace,
    TransportId, TransportLimits, WorkStatus, WrId,
};
use xio_tests::pair::{Pair, leak_tables};
use xio_tests::stream_pair::Rng;

/// Methods that take `&mut self` and change nothing of the protocol.
const NO_INPUTS: [&str; 1] = ["trace_mut"];

/// Sources of the endpoint, all folders.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(fs::read_to_string(&path).expect("text"));
        }
    }
}

/// Name, and first statement, of each public method that takes `&mut self`.
fn methods() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto-core/src");
    let mut texts = Vec::new();
    sources(&root, &mut texts);
    let mut methods = Vec::new();
    for text in &texts {
        let blocks = text.split("> Endpoint<S").skip(1);
        for block in blocks.filter_map(|block| block.split("\n}").next()) {
            for method in block.split("\n    pub fn ").skip(1) {
                let (head, body) = method.split_once(" {\n").expect("a body");
                let name = head.split(['(', '<']).next().expect("a name");
                if head.contains("&mut self") {
                    let first = body.split(';').next().expect("a statement");
                    methods.push((name.to_owned(), first.trim().to_owned()));
                }
            }
        }
    }
    methods
}

#[test]
fn every_method_that_changes_an_endpoint_begins_with_its_input() {
    let methods = methods();
    let mut named = BTreeSet::new();
    for (name, first) in &methods {
        if NO_INPUTS.contains(&name.as_str()) {
            continue;
        }
        // `apply` is the other way in: it calls the methods.
        if name == "apply" {
            continue;
        }
        assert!(
            first.starts_with("recorded!("),
            "{name} takes `&mut self` and does not begin with `recorded!`"
        );
        let call: String = first.split_whitespace().collect();
        assert!(
            call.contains(&format!("=>self.{name}(")),
            "{name} records another method"
        );
        named.insert(name.as_str());
    }
    let inputs: BTreeSet<_> = Input::METHODS.iter().map(|(_, method)| *method).collect();
    assert_eq!(named, inputs);
    assert_eq!(
        inputs.len(),
        Input::METHODS.len(),
        "a method has two inputs"
    );
    let numbers: BTreeSet<_> = Input::METHODS.iter().map(|(number, _)| number).collect();
    assert_eq!(numbers.len(), inputs.len(), "a number is used twice");
    assert!(!numbers.contains(&0), "0 is the digest of an output");
}

/// Keeps inputs as bytes, and what came of them.
#[derive(Default)]
struct Notes(Vec<(Vec<u8>, Option<Applied>)>);

impl Trace for Notes {
    const RECORDS: bool = true;
    fn input(&mut self, input: &Input<'_>) {
        self.0.push((bytes(input), None));
    }
    fn output(&mut self, applied: &Applied, _frame: &[u8]) {
        let last = self.0.last_mut().expect("an input was told");
        assert_eq!(last.1.replace(*applied), None, "two outputs of one input");
    }
}

fn bytes(input: &Input<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let len = input.write(&mut bytes).expect("room");
    bytes.truncate(len);
    bytes
}

struct Memory(Vec<u8>);

impl Slots for Memory {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize * 10_240..][..10_240]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.0[slot.0 as usize * 10_240..][..10_240]
    }
}

const SEGMENTS: [Segment; 2] = [
    Segment {
        addr: 0x1_0000_0000,
        len: 300,
        lkey: 7,
        rkey: u32::MAX,
    },
    Segment {
        addr: u64::MAX,
        len: 0,
        lkey: 0,
        rkey: 0,
    },
];

fn options() -> ConnectOptions {
    ConnectOptions {
        local: Some("[fe80::1%3]:65535".parse().expect("an address")),
        own_nexus: true,
        reconnect: Some(Reconnect {
            give_up_after: Some(Duration::from_nanos(70)),
            ..Reconnect::DEFAULT
        }),
        only_with: Some(u64::MAX - 1),
        ..ConnectOptions::new(u64::MAX)
    }
}

fn sessions(now: Instant) -> Vec<Input<'static>> {
    let transport = TransportId(0);
    let session = SessionId::new(3, 9);
    let address = "10.0.0.2:7000".parse().expect("an address");
    let options = options();
    let (portals, private): (&[&[u8]], _) = (&[b"rdma://10.0.0.3:1", b""], b"private".as_slice());
    vec![
        Input::AddTransport {
            limits: TransportLimits::rdma(),
        },
        Input::Listen {
            transport,
            address,
            options: ListenOptions {
                user: 3,
                backlog: 128,
            },
        },
        Input::TurnAway {
            listener: ListenerId::new(1, 2),
            refusal: Some(Refusal::NoResources { need: 3, have: 1 }),
        },
        Input::Unlisten {
            listener: ListenerId::new(1, 0),
        },
        Input::Connect {
            now,
            transport,
            peer: address,
            setup: SessionOpen {
                uri: "rdma://10.0.0.2:7000/\u{e9}",
                private,
            },
            options,
        },
        Input::Accept {
            now,
            session,
            user: 1,
            portals,
            private,
        },
        Input::Reject {
            now,
            session,
            reason: 5,
            private: &[],
        },
        Input::Redirect {
            now,
            session,
            portals,
        },
    ]
}

fn joins_and_ends(now: Instant) -> Vec<Input<'static>> {
    let transport = TransportId(0);
    let session = SessionId::new(3, 9);
    let connection = ConnectionId::new(0, 1);
    let address = "10.0.0.2:7000".parse().expect("an address");
    let options = options();
    let ticket = SessionTicket {
        own_id: 1,
        peer_id: u32::MAX,
        client: true,
        peer_depth_messages: 5,
        peer_depth_bytes: 1 << 40,
        joins: 2,
        expires: Instant::NEVER,
    };
    vec![
        Input::ExportSession {
            session,
            joins: 4,
            expires: now,
        },
        Input::ImportSession {
            now,
            ticket,
            user: 8,
        },
        Input::Join {
            now,
            session,
            transport,
            portal: address,
            options,
        },
        Input::Close { now, connection },
        Input::Abort { now, connection },
        Input::Stop {
            now,
            bound: Duration::from_millis(70),
        },
    ]
}

fn messages(now: Instant) -> Vec<Input<'static>> {
    let connection = ConnectionId::new(0, 1);
    let task = TaskId::new(77, 0x8000_0000);
    let message = Message {
        slot: Some(SlotId(300)),
        header_len: 200,
        slot_data: 70_000,
        data: &SEGMENTS,
        user: 3,
        prompt: true,
    };
    let options = RequestOptions {
        into: &SEGMENTS[..1],
        receipt: true,
        force_read: false,
        force_write: true,
        deadline: Some(now),
        last_in_batch: true,
        idempotent: true,
    };
    vec![
        Input::ReserveSlot { connection },
        Input::ReserveAnswerSlot { request: task },
        Input::ReturnSlot { slot: SlotId(200) },
        Input::Send {
            connection,
            message,
            options,
        },
        Input::SendOneWay {
            connection,
            message: Message::default(),
            options: RequestOptions::default(),
        },
        Input::Respond {
            request: task,
            message,
        },
        Input::Provide {
            task,
            segments: &SEGMENTS,
        },
        Input::Refuse { task, status: 9 },
        Input::SetReceipt { task, code: 9 },
        Input::Cancel { task },
        Input::Release { task },
    ]
}

fn direct(now: Instant) -> Vec<Input<'static>> {
    let connection = ConnectionId::new(0, 1);
    let remote = RemoteMemory {
        addr: 1,
        len: 2,
        key: 3,
    };
    vec![
        Input::Read {
            connection,
            local: &SEGMENTS,
            remote,
            user: 4,
            deadline: None,
        },
        Input::Write {
            connection,
            local: &[],
            remote,
            user: 4,
            deadline: Some(now),
        },
        Input::Register {
            transport: TransportId(0),
            addr: 1,
            len: 2,
            access: Access::all(),
            user: 4,
        },
        Input::Revoke {
            region: RegionId::new(0, 3),
        },
        Input::AddPool {
            transport: TransportId(0),
            memory: PoolMemory {
                addr: 1 << 40,
                lkey: 7,
                chunk: 4096,
                chunks: 8,
            },
        },
        Input::SetPolicy {
            connection: ConnectionId::new(1, 2),
            policy: ConnectionPolicy {
                on_expiry: OnExpiry::Revoke,
                rendezvous: Rendezvous::Pool { max_bytes: 1 << 20 },
                provide_timeout: Some(Duration::from_millis(5)),
                deadline: Some(Duration::from_millis(7)),
            },
        },
    ]
}

fn reports(now: Instant) -> Vec<Input<'static>> {
    let nexus = NexusId::new(0, 5);
    let listener = ListenerId::new(0, 5);
    let region = RegionId::new(0, 5);
    let address = "10.0.0.2:7000".parse().expect("an address");
    let request = ConnectRequest {
        listener,
        peer: address,
        local: None,
        framing: Framing::TcpDual,
        private: b"p",
    };
    let completion = Completion {
        // A receive: kind 1, generation 0, slot 2. What one of another life names is not read.
        wr: WrId::from_bits(0x1000_0000_0000_0002),
        status: WorkStatus::Success,
        len: 40,
    };
    vec![
        Input::Cm {
            now,
            nexus,
            event: CmEvent {
                kind: CmKind::Unknown(99),
                status: -5,
                local: Some(address),
                private: b"data",
            },
        },
        Input::ConnectRequest {
            now,
            transport: TransportId(0),
            request,
        },
        Input::QueuePair {
            now,
            nexus,
            made: Err(i32::MIN),
        },
        Input::Completion {
            now,
            completion,
            frame: Bytes(&[0xab; 40]),
        },
        Input::PostFailed {
            now,
            wr: WrId::from_bits(5),
            error: 12,
        },
        Input::DriverFailed {
            now,
            nexus,
            reason: Reason::DriverFailed(3),
        },
        Input::Destroyed { now, nexus },
        Input::ListenFailed {
            now,
            listener,
            error: 98,
        },
        Input::Region {
            now,
            region,
            keys: Ok((1, 2)),
        },
        Input::RegionRevoked { now, region },
        Input::Timeout { now },
        Input::Clock { now },
    ]
}

/// About shared queues, listeners and portals.
fn rare_reports(now: Instant) -> Vec<Input<'static>> {
    let nexus = NexusId::new(0, 5);
    vec![
        Input::SharedCompletion {
            now,
            nexus,
            completion: Completion {
                wr: WrId::from_bits(1 << 60 | 7),
                status: WorkStatus::Success,
                len: 3,
            },
            frame: Bytes(b"abc"),
        },
        Input::LastReceive { now, nexus },
        Input::ListenerLost {
            now,
            listener: ListenerId::new(0, 5),
        },
        Input::ResolvePortal {
            now,
            connection: ConnectionId::new(1, 2),
            index: 3,
            peer: "10.0.0.2:7000".parse().expect("an address"),
        },
    ]
}

fn streams_and_polls(now: Instant) -> Vec<Input<'static>> {
    let transport = TransportId(0);
    let socket = SocketId::new(1, 4);
    let address = "10.0.0.2:7000".parse().expect("an address");
    vec![
        Input::SocketAccepted {
            now,
            transport,
            listener: ListenerId::new(0, 5),
            peer: address,
            local: Some(address),
        },
        Input::StreamsConnected {
            now,
            nexus: NexusId::new(0, 5),
            control: address,
            data: Some(address),
        },
        Input::StreamBytes {
            now,
            socket,
            bytes: Bytes(b"bytes"),
        },
        Input::StreamPayload {
            now,
            socket,
            bytes: 1 << 50,
        },
        Input::StreamProgress { now, socket },
        Input::SocketClosed { now, socket },
        Input::PollControl { transport },
        Input::PollWork { transport },
        Input::PollEvent {},
        Input::PollStream { transport },
        Input::StreamWant { socket },
    ]
}

/// At least one of each, with values that are long and short.
fn samples() -> Vec<Input<'static>> {
    let now = Instant::from_millis(1_000_000);
    let mut samples = sessions(now);
    samples.extend(joins_and_ends(now));
    samples.extend(messages(now));
    samples.extend(direct(now));
    samples.extend(reports(now));
    samples.extend(rare_reports(now));
    samples.extend(streams_and_polls(now));
    let known: BTreeSet<_> = samples.iter().map(Input::method).collect();
    let all: BTreeSet<_> = Input::METHODS.iter().map(|(_, method)| *method).collect();
    assert_eq!(known, all, "an input has no sample");
    samples
}

#[test]
fn an_input_is_told_once_as_it_was_applied_with_what_came_of_it() {
    let config = Config::new(0, 16, 16);
    let counts = Pair::counts(&config);
    let tables: Tables<'static> = leak_tables(&counts);
    let mut endpoint = Endpoint::with_trace(config, tables, Notes::default()).expect("it works");
    let mut memory = Memory(vec![0; 32 * 10_240]);
    for input in samples() {
        let applied = endpoint.apply(&input, &mut memory);
        let notes = std::mem::take(&mut endpoint.trace_mut().0);
        assert_eq!(notes, [(bytes(&input), Some(applied))], "{input:?}");
        endpoint.check_invariants();
    }
    assert_eq!(
        memory.slot(SlotId(2))[..41],
        [[0xab; 40].as_slice(), &[0]].concat()
    );
}

#[test]
fn bytes_say_all_of_an_input_and_nothing_else() {
    for input in samples() {
        let whole = bytes(&input);
        assert_eq!(Input::read(&whole, &mut Scratch::new()), Ok(input));
        for len in 0..whole.len() {
            let error = Input::read(&whole[..len], &mut Scratch::new()).expect_err("cut");
            assert_eq!(error.what, Malformed::Truncated, "{input:?} cut to {len}");
            let room = input.write(&mut vec![0; len]);
            let (need, have) = (whole.len(), len);
            assert_eq!(room, Err(EncodeError::Room { need, have }));
        }
        let longer = [&whole[..], &[0]].concat();
        let error = Input::read(&longer, &mut Scratch::new()).expect_err("longer");
        assert_eq!(error.what, Malformed::Trailing, "{input:?}");
        assert_eq!((error.offset, error.value), (whole.len(), 1));
    }
}

#[test]
fn there_is_one_way_to_write_each_input() {
    let samples: Vec<_> = samples().iter().map(bytes).collect();
    let mut rng = Rng::new(1);
    let mut taken = 0;
    for round in 0..200_000 {
        let mut bytes = samples[round % samples.len()].clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len());
            bytes[at] = rng.below(256) as u8;
        }
        if let Ok(input) = Input::read(&bytes, &mut Scratch::new()) {
            taken += 1;
            assert_eq!(self::bytes(&input), bytes, "{input:?}");
        }
    }
    assert!(taken > 20_000, "{taken}");
}

#[test]
fn what_cannot_be_an_input_says_why() {
    let read = |bytes: &[u8]| {
        let error = Input::read(bytes, &mut Scratch::new()).expect_err("no input");
        (error.what, error.offset, error.value)
    };
    assert_eq!(read(&[]), (Malformed::Truncated, 0, 1));
    assert_eq!(read(&[255]), (Malformed::UnknownInput, 0, 255));
    // A transport above 255; one written with a byte too many; a deadline that is half there.
    assert_eq!(read(&[80, 0x80, 2]), (Malformed::Number, 3, 256));
    assert_eq!(read(&[80, 0x80, 0]), (Malformed::Number, 1, 0));
    // A URI that is not UTF-8.
    let connect = [&[12, 0, 0, 4, 1, 2, 3, 4, 5, 2, b'a', 0xff][..], &[0; 20]].concat();
    assert_eq!(read(&connect).0, Malformed::Text);
    // Framing 3.
    let request = [51, 0, 0, 0, 0, 4, 1, 2, 3, 4, 5, 0, 3, 0];
    assert_eq!(read(&request), (Malformed::UnknownVariant, 13, 3));
    let many = vec![SEGMENTS[0]; SEGMENTS_MAX + 1];
    let task = TaskId::new(0, 0);
    let provide = Input::Provide {
        task,
        segments: &many,
    };
    let (len, max) = (SEGMENTS_MAX + 1, SEGMENTS_MAX);
    assert_eq!(
        provide.write(&mut [0; 8192]),
        Err(EncodeError::TooMany { len, max })
    );
    assert_eq!(read(&[29, 0, 0, 0x81, 2]), (Malformed::TooMany, 5, 257));
}

#[test]
fn reasons_survive() {
    let violation = |what| Violation::new(what, 12, u64::MAX);
    let mut reasons: Vec<_> = What::ALL
        .iter()
        .map(|what| Reason::Violation(violation(*what)))
        .collect();
    reasons.push(Reason::NoResources {
        what: Resource::Queue,
        need: 3,
        have: 1,
    });
    reasons.push(Reason::WorkFailed(WorkStatus::Other(77)));
    for reason in reasons {
        let input = Input::DriverFailed {
            now: Instant::ZERO,
            nexus: NexusId::new(0, 0),
            reason,
        };
        let bytes = bytes(&input);
        assert_eq!(Input::read(&bytes, &mut Scratch::new()), Ok(input));
    }
}

#[test]
fn a_start_fits_its_bound_and_comes_back() {
    let max = usize::MAX;
    let counts = Counts {
        listeners: max,
        nexuses: max,
        sessions: max,
        connections: max,
        tasks: max,
        rx_slots: max,
        tx_slots: max,
        work: max,
        sockets: max,
        extents: max,
        regions: 0,
    };
    let config = Config {
        seed: u64::MAX,
        linger: Duration::MAX,
        keepalive: None,
        ..Config::new(63, u32::MAX, u32::MAX)
    };
    let start = Start { config, counts };
    let mut bytes = [0; Start::LEN_MAX];
    let len = start.write(&mut bytes).expect("room");
    let (read, at) = Start::read(&bytes).expect("a start");
    assert_eq!((&read, at), (&start, len));
    assert_eq!(
        Start::read(&bytes[..len - 1])
            .map(|_| ())
            .expect_err("cut")
            .what,
        Malformed::Truncated
    );
}
