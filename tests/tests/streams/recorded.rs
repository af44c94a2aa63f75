//! The byte streams of recorded clients, fed to a server: every frame is accepted, up to the
//! close. What the server answers is not compared here; where a client's frame repeats an id of
//! its server's, it is given the one that ours had.

use std::collections::BTreeMap;

use xio_proto::{Config, Data, Event, Keepalive, Message, Reason, SlotId, Slots};
use xio_tests::golden::{
    Carrier, Dialect, Event as Seen, Frame, Kind, NAMES, Place, Side as Who, Transcript, load,
};
use xio_tests::pair::Side;
use xio_tests::stream_pair::{Cut, StreamPair};

use super::tcp_with;

/// What the server's user got: kind, application header, data.
type Received = (Kind, Vec<u8>, Vec<u8>);

struct Server {
    world: StreamPair,
    /// Sockets of the recording, by number.
    sockets: BTreeMap<u32, usize>,
    received: Vec<Received>,
    closed: Vec<Reason>,
    /// Sessions that are sent away before one is accepted.
    redirects: bool,
    rejects: bool,
    connection: Option<xio_proto::ConnectionId>,
    memory: usize,
}

fn config_for(transcript: &Transcript) -> Config {
    let mut config = Config::new(0, 100, 64);
    if transcript.name.contains("flowctl") {
        config.flow_control = true;
        config.depth_messages = 8;
    }
    if transcript.name.contains("keepalive") {
        let second = std::time::Duration::from_secs(1);
        config.keepalive = Some(Keepalive {
            time: second,
            interval: second,
            probes: 3,
        });
    }
    config
}

impl Server {
    fn new(transcript: &Transcript, cut: Cut) -> Self {
        let mut world = tcp_with(|_| config_for(transcript), cut);
        world.check_every = 29;
        Self {
            world,
            sockets: BTreeMap::new(),
            received: Vec::new(),
            closed: Vec::new(),
            redirects: transcript.name.contains("redirect"),
            rejects: transcript.name.contains("reject"),
            connection: None,
            memory: 0,
        }
    }

    fn react(&mut self) {
        self.world.run();
        while let Some(event) = self.world.sides[1].events.pop_front() {
            self.on_event(event);
            self.world.run();
        }
    }

    fn on_event(&mut self, event: Event) {
        let now = self.world.now;
        let side = &mut self.world.sides[1];
        let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
        match event {
            Event::SessionRequest { session, .. } if self.redirects => {
                self.redirects = false;
                let portals: [&[u8]; 1] = [b"tcp://127.0.0.1:23171"];
                endpoint.redirect(now, session, &portals, slots).unwrap();
            }
            Event::SessionRequest { session, .. } if self.rejects => {
                endpoint
                    .reject(now, session, 0x4a5e_3a55, b"go-away", slots)
                    .unwrap();
            }
            Event::SessionRequest { session, .. } => {
                let accepted = endpoint
                    .accept(now, session, 1, &[], b"srv", slots)
                    .unwrap();
                self.connection = Some(accepted);
            }
            Event::PayloadWaiting { task, len, .. } => {
                let segment = side.segment(self.memory, len as usize);
                self.memory += len as usize;
                side.memory.resize(side.memory.len().max(self.memory), 0);
                side.endpoint.provide(task, &[segment]).unwrap();
            }
            Event::Request {
                task, header, data, ..
            } => {
                let header = side.bytes(header).to_vec();
                let data = bytes_of(side, data);
                self.received.push((Kind::MsgReq, header, data));
                let slot = side
                    .endpoint
                    .reserve_slot(self.connection.unwrap())
                    .unwrap();
                let at = side.endpoint.config().headroom();
                side.slots.slot_mut(slot)[at..at + 6].copy_from_slice(b"answer");
                let slot = Some(SlotId(slot.0));
                let message = Message {
                    slot,
                    header_len: 6,
                    ..Message::default()
                };
                side.endpoint.respond(task, &message).unwrap();
            }
            Event::OneWay {
                task, header, data, ..
            } => {
                let header = side.bytes(header).to_vec();
                let data = bytes_of(side, data);
                self.received.push((Kind::OneWayReq, header, data));
                side.endpoint.release(task).unwrap();
            }
            Event::Closed { reason, .. } => self.closed.push(reason),
            Event::Established { .. } | Event::Sent { .. } | Event::SessionClosed { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// The last frame of a kind that the server sent.
    fn sent(&self, kind: Kind) -> Option<&Vec<u8>> {
        let is = |frame: &&Vec<u8>| frame[4..8] == kind.wire().to_be_bytes();
        self.world.sides[1].sent.iter().rfind(is)
    }

    /// Puts our ids into a recorded frame.
    fn adapt(&mut self, frame: &Frame, bytes: &mut [u8]) {
        if frame.kind == Kind::SessionSetupReq || frame.kind == Kind::NexusSetupReq {
            return;
        }
        if let Some(answer) = self.sent(Kind::SessionSetupRsp) {
            let id = answer[96..100].to_vec();
            bytes[16..20].copy_from_slice(&id);
        }
        let asked = match frame.kind {
            Kind::FinRsp => Kind::FinReq,
            Kind::KeepaliveRsp => Kind::KeepaliveReq,
            _ => return,
        };
        while self.sent(asked).is_none() {
            assert!(
                self.world.advance(),
                "{} was never asked for",
                frame.kind.name()
            );
            self.react();
        }
        let ltid = self.sent(asked).unwrap()[64..68].to_vec();
        bytes[68..72].copy_from_slice(&ltid);
        if asked == Kind::KeepaliveReq {
            // The next answer is to the next question.
            self.world.sides[1]
                .sent
                .retain(|f| f[4..8] != asked.wire().to_be_bytes());
        }
    }

    fn feed(&mut self, frame: &Frame) {
        let Carrier::Socket { conn, data, .. } = frame.carrier else {
            panic!()
        };
        let part = |place: Place| -> Vec<u8> {
            let sections = frame.sections.iter().filter(|s| s.place == place);
            sections.flat_map(|s| s.bytes()).collect()
        };
        let (mut main, side, bulk) = (part(Place::Main), part(Place::Data), part(Place::Bulk));
        self.adapt(frame, &mut main);
        main.extend(bulk);
        self.send(conn, &main);
        if !side.is_empty() {
            self.send(data.unwrap(), &side);
        }
    }

    fn send(&mut self, conn: u32, bytes: &[u8]) {
        let s = self.sockets[&conn];
        assert!(self.world.open(s), "the server closed socket {conn}");
        self.world.stranger_sends(s, bytes);
        self.react();
    }

    fn play(&mut self, transcript: &Transcript) {
        let mut ours = true;
        for record in &transcript.records {
            match &record.event {
                Seen::Syn { conn, from, .. } => {
                    let s = self.world.stranger(from, b"").unwrap();
                    self.sockets.insert(*conn, s);
                }
                Seen::Hello { conn, message } => self.send(*conn, &message.bytes()),
                Seen::Frame(frame) if frame.side == Who::Client => {
                    ours &= frame.kind != Kind::FinReq;
                    self.feed(frame);
                }
                Seen::Frame(frame) if frame.kind == Kind::FinReq && ours => {
                    if let Some(connection) = self.connection {
                        let now = self.world.now;
                        self.world.sides[1].endpoint.close(now, connection).unwrap();
                    }
                    self.react();
                }
                Seen::Fin {
                    conn,
                    side: Who::Client,
                }
                | Seen::Rst {
                    conn,
                    side: Who::Client,
                } => {
                    self.world.stranger_leaves(self.sockets[conn]);
                    self.react();
                }
                _ => {}
            }
        }
    }
}

fn bytes_of(side: &Side, data: Data) -> Vec<u8> {
    match data {
        Data::Slot(span) => side.bytes(span).to_vec(),
        Data::Segments(span) => {
            let part = |s: xio_proto::Segment| {
                let at = (s.addr - Side::BASE) as usize;
                side.memory[at..at + s.len as usize].to_vec()
            };
            side.endpoint.segments(span).flat_map(part).collect()
        }
    }
}

/// What the recorded server's user must have got.
fn expected(transcript: &Transcript) -> Vec<Received> {
    let message = |frame: &Frame| {
        let part = |name: &str| -> Vec<u8> {
            let sections = frame.sections.iter().filter(|s| s.name == name);
            sections.flat_map(|s| s.bytes()).collect()
        };
        (frame.kind, part("ulp_hdr"), part("data"))
    };
    transcript
        .frames()
        .map(|(_, frame)| frame)
        .filter(|f| f.side == Who::Client && matches!(f.kind, Kind::MsgReq | Kind::OneWayReq))
        .map(message)
        .collect()
}

#[test]
fn recorded_clients_are_accepted_up_to_their_close() {
    let mut played = 0;
    for name in NAMES {
        let transcript = load(name).unwrap();
        if transcript.dialect != Dialect::Tcp {
            continue;
        }
        played += 1;
        let fine = if name == "tcp-large" { 4099 } else { 1 };
        for cut in [Cut::Whole, Cut::Every(fine), Cut::random(4, 700)] {
            let mut server = Server::new(&transcript, cut);
            let free = server.world.sides[1].endpoint.free_rows();
            server.play(&transcript);
            let counters = *server.world.sides[1].endpoint.counters();
            assert_eq!(counters.violations, 0, "{name}: {:?}", server.closed);
            assert_eq!(counters.strays, 0, "{name}");
            assert_eq!(counters.stale_sockets, 0, "{name}");
            assert_eq!(counters.late, 0, "{name}");
            assert_eq!(counters.bytes_discarded, 0, "{name}");
            assert_eq!(server.world.unread(1), 0, "{name}");
            let frames = transcript
                .frames()
                .filter(|(_, f)| f.side == Who::Client)
                .count();
            assert_eq!(counters.frames_received, frames as u64, "{name}");
            assert!(server.received == expected(&transcript), "{name}");
            while server.world.advance() {
                server.react();
            }
            let reason = match name {
                "tcp-cancel" => vec![Reason::Disconnected],
                "tcp-server-disconnect" => vec![Reason::Closed],
                "tcp-reject" => vec![],
                _ => vec![Reason::PeerClosed],
            };
            assert_eq!(server.closed, reason, "{name}");
            assert_eq!(server.world.sides[1].endpoint.free_rows(), free, "{name}");
        }
    }
    assert_eq!(played, 13);
}
