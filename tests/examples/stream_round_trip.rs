//! Instruction budget: small requests and their responses between two endpoints over byte streams,
//! the core alone.
//!
//! `stream_round_trip STREAMS ROUNDS` opens one connection on one or two streams, and lets `ROUNDS`
//! requests of 64 bytes go one at a time. The calls are those that a driver of sockets makes which
//! sleeps between them: what is written completes at once, what is read comes whole, and each read
//! is preceded by the question what it is for. Only what runs inside the functions of `core_side`
//! is counted: `--toggle-collect='*core_side*'`.

use xio_proto::{
    Completion, Config, ConnectOptions, ConnectionId, Event, Instant, Message, RequestOptions,
    SessionOpen, SlotId, SocketId, Span, StreamWant, TaskId, Work, WorkStatus,
};
use xio_tests::pair::{SERVER, Side};
use xio_tests::stream_pair::{Cut, StreamPair};

/// Every call into the core on the message path, one function each.
mod core_side {
    use super::*;

    #[inline(never)]
    pub(super) fn reserve(side: &mut Side, c: ConnectionId) -> SlotId {
        side.endpoint.reserve_slot(c).expect("room")
    }
    #[inline(never)]
    pub(super) fn send(side: &mut Side, c: ConnectionId, message: &Message<'_>) {
        let options = RequestOptions::default();
        side.endpoint.send(c, message, &options).expect("room");
    }
    #[inline(never)]
    pub(super) fn respond(side: &mut Side, task: TaskId, message: &Message<'_>) {
        side.endpoint.respond(task, message).expect("room");
    }
    #[inline(never)]
    pub(super) fn release(side: &mut Side, task: TaskId) {
        side.endpoint.release(task).expect("known");
    }
    #[inline(never)]
    pub(super) fn poll_work(side: &mut Side) -> Option<Work> {
        side.endpoint.poll_work(side.transport, &mut side.slots)
    }
    #[inline(never)]
    pub(super) fn poll_stream(side: &mut Side) -> Option<SocketId> {
        side.endpoint.poll_stream(side.transport)
    }
    #[inline(never)]
    pub(super) fn poll_event(side: &mut Side) -> Option<Event> {
        side.endpoint.poll_event()
    }
    #[inline(never)]
    pub(super) fn completion(side: &mut Side, now: Instant, done: Completion) {
        side.endpoint.handle_completion(now, done, &mut side.slots);
    }
    #[inline(never)]
    pub(super) fn want(side: &mut Side, socket: SocketId) -> StreamWant {
        side.endpoint.stream_want(socket)
    }
    #[inline(never)]
    pub(super) fn bytes(side: &mut Side, now: Instant, socket: SocketId, bytes: &[u8]) -> usize {
        side.endpoint
            .handle_stream_bytes(now, socket, bytes, &mut side.slots)
    }
}

const NOW: Instant = Instant::from_millis(1);
const PAYLOAD: usize = 64;

/// What is on the way to one side.
struct Stream {
    /// The socket that reads it.
    to: Option<SocketId>,
    bytes: Vec<u8>,
}

struct World {
    sides: [Side; 2],
    /// What each side reads: its control or single stream, and its data stream.
    streams: [[Stream; 2]; 2],
}

/// The sockets of a side's only connection, which was just established.
fn streams(side: &mut Side) -> [Stream; 2] {
    let Some(Event::Established { connection, .. }) = side.events.pop_front() else {
        panic!("no connection")
    };
    let nexus = side.endpoint.info(connection).expect("open").nexus;
    side.endpoint.sockets(nexus).map(|to| Stream {
        to,
        bytes: Vec::new(),
    })
}

impl World {
    /// Two endpoints with a connection, once all is said that belongs to its setup.
    fn connected(dual_stream: bool) -> (Self, ConnectionId) {
        let config = |i| Config {
            keepalive: None,
            ..Config::new(i, 64, 64)
        };
        let counts = StreamPair::counts(&config(0));
        let mut pair = StreamPair::new(config, &counts, Cut::Whole);
        pair.listen(0);
        let options = ConnectOptions {
            dual_stream,
            ..ConnectOptions::new(0)
        };
        let setup = SessionOpen {
            uri: "tcp://10.0.0.2:7000/r",
            private: &[],
        };
        let side = &mut pair.sides[0];
        let (to, at) = (side.transport, SERVER.parse().expect("an address"));
        let id = side
            .endpoint
            .connect(NOW, to, at, &setup, &options, &mut side.slots);
        let id = id.expect("room");
        pair.run();
        let Some(Event::SessionRequest { session, .. }) = pair.sides[1].events.pop_front() else {
            panic!("no session request")
        };
        let side = &mut pair.sides[1];
        let accepted = side
            .endpoint
            .accept(NOW, session, 0, &[], &[], &mut side.slots);
        accepted.expect("room");
        pair.run();
        let mut sides = pair.sides;
        let streams = [0, 1].map(|i| streams(&mut sides[i]));
        (Self { sides, streams }, id)
    }

    fn write(&mut self, i: usize, head: Span, tail: Span) {
        let (side, [control, data]) = (&self.sides[i], &mut self.streams[1 - i]);
        control.bytes.extend_from_slice(side.bytes(head));
        let rest = if data.to.is_some() { data } else { control };
        rest.bytes.extend_from_slice(side.bytes(tail));
    }

    /// All that a side writes, and its completions.
    fn writes(&mut self, i: usize) {
        while let Some(work) = core_side::poll_work(&mut self.sides[i]) {
            let Work::Send { wr, head, tail, .. } = work else {
                panic!("{work:?} on a stream")
            };
            self.write(i, head, tail);
            let done = Completion {
                wr,
                status: WorkStatus::Success,
                len: 0,
            };
            core_side::completion(&mut self.sides[i], NOW, done);
        }
    }

    /// All that a side reads, from its control or single stream first.
    fn reads(&mut self, i: usize) {
        for n in 0..2 {
            let Some(socket) = self.streams[i][n].to else {
                continue;
            };
            let side = &mut self.sides[i];
            while let StreamWant::Bytes(_) = core_side::want(side, socket) {
                let bytes = &mut self.streams[i][n].bytes;
                if bytes.is_empty() {
                    break;
                }
                let taken = core_side::bytes(side, NOW, socket, bytes);
                bytes.drain(..taken);
            }
            while core_side::poll_stream(side).is_some() {}
        }
    }

    fn message(&mut self, i: usize, c: ConnectionId) -> Message<'static> {
        Message {
            slot: Some(core_side::reserve(&mut self.sides[i], c)),
            slot_data: PAYLOAD as u32,
            ..Message::default()
        }
    }

    /// One request and its response.
    fn round(&mut self, c: ConnectionId) {
        let message = self.message(0, c);
        core_side::send(&mut self.sides[0], c, &message);
        self.writes(0);
        self.reads(1);
        while let Some(event) = core_side::poll_event(&mut self.sides[1]) {
            if let Event::Request {
                task, connection, ..
            } = event
            {
                let message = self.message(1, connection);
                core_side::respond(&mut self.sides[1], task, &message);
            }
        }
        self.writes(1);
        while core_side::poll_event(&mut self.sides[1]).is_some() {}
        self.reads(0);
        let mut answered = false;
        while let Some(event) = core_side::poll_event(&mut self.sides[0]) {
            if let Event::Response { task, .. } = event {
                core_side::release(&mut self.sides[0], task);
                answered = true;
            }
        }
        assert!(
            answered,
            "no response: {:?}",
            self.sides[0].endpoint.info(c)
        );
    }
}

fn main() {
    let number = |i: usize| -> usize {
        let text = std::env::args().nth(i);
        text.and_then(|a| a.parse().ok()).expect("STREAMS ROUNDS")
    };
    let (streams, rounds) = (number(1), number(2));
    let (mut world, c) = World::connected(streams == 2);
    for _ in 0..rounds {
        world.round(c);
    }
    println!("{rounds} requests over {streams} streams");
}
