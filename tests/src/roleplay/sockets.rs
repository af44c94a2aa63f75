//! Role play over real sockets: the TCP driver in the place of one side of a recording, and plain
//! sockets in the place of the other, which write what was recorded, cut at random places.

mod peer;

use std::collections::BTreeMap;
use std::time::{Duration, Instant as Clock};

use xio_proto::driver::Driver;
use xio_proto::wire::{Bounds, Framing, control_len, stream_plan};
use xio_proto::{ConnectionId, FreeRows, Instant, NexusId, RemoteMemory, Segment, TaskId};
use xio_tcp::{Options, TcpDriver};

use super::args::{Program, Step};
use super::compare::{Difference, compare};
use super::cut::{Format, cut};
use super::deviations::Deviation;
use super::host::{Watch, config, counts};
use super::link::Link;
use super::player::side_name;
use super::seat::Seat;
use super::user::User;
use crate::golden::{
    Carrier, Event, Frame, Layouts, Place, Record, Side, Stream, Transcript, Turn, turn,
};
use crate::stream_pair::Rng;
use peer::Peer;

/// How the recorded bytes are cut.
#[derive(Clone, Debug)]
pub enum Cuts {
    /// Each frame is written at once.
    Whole,
    /// Into pieces of at most so many bytes, by chance, the two streams in any order.
    Random(Rng, usize),
}

impl Seat for TcpDriver<Watch> {
    fn room(&mut self, len: usize) -> Segment {
        let buffer = Driver::allocate(self, len).expect("memory");
        self.segment(buffer, 0..len).expect("inside")
    }
    fn filled(&mut self, bytes: &[u8]) -> Result<Segment, String> {
        let buffer = self.add(bytes.into()).map_err(|e| e.to_string())?;
        self.segment(buffer, 0..bytes.len())
            .map_err(|e| e.to_string())
    }
    fn reach(
        &mut self,
        _: bool,
        _: ConnectionId,
        _: &RemoteMemory,
        _: u64,
    ) -> Result<(TaskId, Segment), String> {
        Err("sockets reach no memory".to_owned())
    }
    fn reached(&mut self, _: Segment) -> Result<Vec<u8>, String> {
        Err("sockets reach no memory".to_owned())
    }
    fn share(&mut self, _: RemoteMemory) -> Result<(), String> {
        Err("sockets share no memory".to_owned())
    }
    fn unshare(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// One transport connection of the recording.
struct Pipe {
    /// Its sockets' numbers.
    main: u32,
    data: Option<u32>,
    link: Link,
}

struct SocketPlayer<'a> {
    side: Side,
    name: &'a str,
    format: Format<'a>,
    tcp: TcpDriver<Watch>,
    user: User,
    peer: Peer,
    pipes: BTreeMap<u32, Pipe>,
    cuts: Cuts,
    free: FreeRows,
    /// Bytes that the peer wrote.
    fed: u64,
    /// The recorded connection was lost, and not closed.
    lost: bool,
    differences: Vec<Deviation>,
}

/// The time of the first record, in nanoseconds, and how late timers may fire.
const START: u64 = 1_000_000;
const LATE: u64 = 500_000;

/// Plays a side of a recording of sockets through the TCP driver. What differs from the recording.
///
/// The recorded addresses are used as they are, so one play at a time has them.
///
/// # Errors
/// What made it impossible to go on.
pub fn play_sockets(
    transcript: &Transcript,
    side: Side,
    layouts: &Layouts,
    cuts: Cuts,
) -> Result<Vec<Deviation>, String> {
    let mut player = SocketPlayer::new(transcript, side, layouts, cuts)?;
    let named = |number, what: String| {
        let (name, side) = (&transcript.name, side_name(side));
        format!("{name} as {side} on sockets, record {number}: {what}")
    };
    let tcp = &mut player.tcp;
    player.user.start(tcp).map_err(|what| named(0, what))?;
    player.run().map_err(|what| named(0, what))?;
    for record in &transcript.records {
        let played = player.record(record);
        played.map_err(|what| named(record.number, what))?;
    }
    player.finish().map_err(|what| named(u32::MAX, what))?;
    Ok(player.differences)
}

impl<'a> SocketPlayer<'a> {
    fn new(
        transcript: &'a Transcript,
        side: Side,
        layouts: &'a Layouts,
        cuts: Cuts,
    ) -> Result<Self, String> {
        let (client, servers) = Program::of(transcript)?;
        let lost = client.steps.contains(&Step::Cancel);
        let settings = match side {
            Side::Client => &client.settings,
            Side::Server => &servers[0].settings,
        };
        let config = config(settings);
        let counts = counts(&config);
        let made = TcpDriver::with_trace(config, &counts, Options::default(), Watch::default());
        let mut tcp = made.map_err(|e| e.to_string())?;
        tcp.hold_time(Instant::from_nanos(START));
        let mut peer = Peer::default();
        let user = match side {
            Side::Client => {
                for server in &servers {
                    peer.listen(&server.url)?;
                }
                User::client(client, servers)
            }
            Side::Server => User::server(client, servers),
        };
        Ok(Self {
            side,
            name: &transcript.name,
            format: Format {
                dialect: transcript.dialect,
                stream: transcript.stream,
                layouts,
            },
            free: tcp.look(|e| e.free_rows()),
            tcp,
            user,
            peer,
            pipes: BTreeMap::new(),
            cuts,
            fed: 0,
            lost,
            differences: Vec::new(),
        })
    }

    fn record(&mut self, record: &Record) -> Result<(), String> {
        let now = Instant::from_nanos(START + record.at * 1000);
        let turn = turn(&record.event, self.side);
        self.elapse(now, if turn == Some(Turn::Input) { LATE } else { 0 })?;
        match (turn, &record.event) {
            (Some(Turn::Input), Event::Frame(frame)) => self.take(frame),
            (Some(Turn::Output), Event::Frame(frame)) => self.expect(record.number, frame),
            (Some(Turn::Input), Event::Syn { conn, from, to }) => {
                self.peer.connect(*conn, from, to)?;
                self.run()
            }
            (Some(Turn::Output), Event::Syn { .. }) => self.run(),
            (Some(Turn::Input), Event::Hello { conn, message }) => {
                let bytes = self.peer.hello(&message.bytes())?;
                self.feed(*conn, &bytes)?;
                self.run()
            }
            (Some(Turn::Output), Event::Hello { conn, message }) => {
                self.run()?;
                self.peer.greeted(*conn, &message.bytes())
            }
            (Some(Turn::Input), Event::Fin { conn, .. } | Event::Rst { conn, .. }) => {
                self.peer.close(*conn);
                self.run()
            }
            _ => Ok(()),
        }
    }

    /// Lets the driver's time pass, with what becomes due on the way.
    fn elapse(&mut self, now: Instant, late: u64) -> Result<(), String> {
        let past = Instant::from_nanos(now.as_nanos() - late);
        let due = |tcp: &TcpDriver<Watch>| {
            let due = tcp.endpoint().poll_timeout();
            due.filter(|due| *due <= past)
        };
        while let Some(due) = due(&self.tcp) {
            let at = self.tcp.now().max(due);
            self.tcp.hold_time(at);
            self.run()?;
        }
        // What arrives now comes before what was due shortly before.
        let soon = self.tcp.endpoint().poll_timeout();
        let at = if soon.is_some_and(|due| due <= now) {
            past
        } else {
            now
        };
        let at = self.tcp.now().max(at);
        self.tcp.hold_time(at);
        Ok(())
    }

    /// Lets everything happen that needs no time: until the driver has read all that was fed, or
    /// takes no more, and the peer has read all that the driver wrote.
    #[expect(clippy::disallowed_methods, reason = "what hangs must end")]
    fn run(&mut self) -> Result<(), String> {
        let until = Clock::now() + Duration::from_secs(20);
        let mut quiet = 0;
        while quiet < 20 {
            quiet += 1;
            while let Some(event) = self.tcp.next_event() {
                self.user.event(&mut self.tcp, event)?;
                quiet = 0;
            }
            let before = *self.tcp.stats();
            self.tcp.poll(None).map_err(|e| e.to_string())?;
            let came = self.peer.read()?;
            let after = *self.tcp.stats();
            let idle = before.bytes_read == after.bytes_read
                && before.bytes_written == after.bytes_written
                && before.connected == after.connected
                && before.open == after.open;
            if came || !idle {
                quiet = 0;
            } else if after.bytes_read == self.fed && quiet > 2 {
                break;
            }
            if Clock::now() > until {
                return Err("no end to it".to_owned());
            }
        }
        self.cut_frames()
    }

    fn feed(&mut self, conn: u32, bytes: &[u8]) -> Result<(), String> {
        self.fed += bytes.len() as u64;
        self.peer.write(conn, bytes)
    }

    fn framing(&self) -> Framing {
        if self.format.stream == Stream::Dual {
            Framing::TcpDual
        } else {
            Framing::TcpSingle
        }
    }

    fn pipe(&mut self, frame: &Frame) -> Result<&mut Pipe, String> {
        let Carrier::Socket { conn, data, .. } = frame.carrier else {
            return Err("a SEND on a socket".to_owned());
        };
        Ok(self.pipes.entry(conn).or_insert_with(|| Pipe {
            main: conn,
            data,
            link: Link::new(NexusId::new(conn, 0)),
        }))
    }

    /// Makes frames of what the driver wrote.
    fn cut_frames(&mut self) -> Result<(), String> {
        let (framing, format, side) = (self.framing(), self.format, self.side);
        let bounds = Bounds {
            frame_max: 9216,
            max_in_sges: 256,
            max_out_sges: 256,
            header_max: 256,
        };
        for pipe in self.pipes.values_mut() {
            loop {
                let main = self.peer.inbox(pipe.main);
                let Some(start) = main.first_chunk() else {
                    break;
                };
                let broken = |v: xio_proto::wire::Violation| v.to_string();
                let (kind, len) = control_len(start, framing, 9216).map_err(broken)?;
                if main.len() < len {
                    break;
                }
                let plan = stream_plan(&main[..len], framing, kind, &bounds).map_err(broken)?;
                let rest = plan.data_inline as usize + plan.payload as usize;
                let (main, second) = match pipe.data.filter(|_| framing == Framing::TcpDual) {
                    Some(data) if self.peer.inbox(data).len() >= rest => {
                        (self.peer.take(pipe.main, len), self.peer.take(data, rest))
                    }
                    None if main.len() >= len + rest => {
                        (self.peer.take(pipe.main, len + rest), Vec::new())
                    }
                    _ => break,
                };
                let frame = cut(format, side, &main, &second)?;
                pipe.link.sent.push_back(super::link::Sent::Frame(frame));
            }
        }
        Ok(())
    }

    /// The recorded peer writes a frame.
    fn take(&mut self, frame: &Frame) -> Result<(), String> {
        let kind = frame.kind.name();
        let told = |what: String| format!("{kind}: {what}");
        let pipe = self.pipe(frame)?;
        let (main, data) = (pipe.main, pipe.data);
        let addressed = pipe.link.addressed(frame).map_err(told)?;
        let before = *self.tcp.endpoint().counters();
        let first = [addressed.bytes(Place::Main), addressed.bytes(Place::Bulk)].concat();
        let second = addressed.bytes(Place::Data);
        let mut left = [(main, first), (data.unwrap_or(main), second)];
        while left.iter().any(|(_, bytes)| !bytes.is_empty()) {
            let (at, most) = match &mut self.cuts {
                Cuts::Whole => (0, usize::MAX),
                Cuts::Random(rng, most) => (rng.below(2), 1 + rng.below(*most)),
            };
            let at = if left[at].1.is_empty() { 1 - at } else { at };
            // Of what is long only the ends are cut small.
            let most = most.max(left[at].1.len() / 8);
            let len = left[at].1.len().min(most);
            let piece: Vec<u8> = left[at].1.drain(..len).collect();
            self.feed(left[at].0, &piece)?;
            self.run()?;
        }
        self.run()?;
        let after = *self.tcp.endpoint().counters();
        if self.tcp.stats().bytes_read != self.fed {
            return Err(told("not read".to_owned()));
        }
        if before.violations != after.violations {
            return Err(told("breaks the protocol".to_owned()));
        }
        if before.late != after.late {
            return Err(told("is late".to_owned()));
        }
        Ok(())
    }

    fn next(&mut self, frame: &Frame) -> Result<Option<Frame>, String> {
        let sent = self.pipe(frame)?.link.sent.pop_front();
        Ok(sent.and_then(|sent| match sent {
            super::link::Sent::Frame(ours) => Some(ours),
            super::link::Sent::Write(..) => None,
        }))
    }

    /// A frame that the recorded side sent at this point.
    fn expect(&mut self, number: u32, recorded: &Frame) -> Result<(), String> {
        let kind = recorded.kind.name();
        self.pipe(recorded)?;
        self.cut_frames()?;
        if self.pipe(recorded)?.link.sent.is_empty() {
            self.user.act(&mut self.tcp)?;
            self.run()?;
        }
        let Some(ours) = self.next(recorded)? else {
            let missing = Difference {
                field: "frame".to_owned(),
                recorded: kind.to_owned(),
                ours: "-".to_owned(),
            };
            self.differs(format!("{number} {kind}"), missing);
            return Ok(());
        };
        if ours.kind != recorded.kind {
            return Err(format!("ours is {}, recorded is {kind}", ours.kind.name()));
        }
        for difference in compare(recorded, &ours) {
            self.differs(format!("{number} {kind}"), difference);
        }
        self.pipe(recorded)?.link.learn(recorded, &ours);
        Ok(())
    }

    fn differs(&mut self, frame: String, difference: Difference) {
        let transcript = self.name.to_owned();
        self.differences.push(Deviation {
            transcript,
            frame,
            difference,
        });
    }

    /// The recording is over: the peer closes, and everything must be back then.
    fn finish(&mut self) -> Result<(), String> {
        for pipe in std::mem::take(&mut self.pipes).into_values() {
            for sent in pipe.link.sent {
                let ours = match sent {
                    super::link::Sent::Frame(frame) => frame.kind.name(),
                    super::link::Sent::Write(..) => "WRITE",
                };
                let extra = Difference {
                    field: "frame".to_owned(),
                    recorded: "-".to_owned(),
                    ours: ours.to_owned(),
                };
                self.differs("end".to_owned(), extra);
            }
        }
        self.peer.close_all();
        self.run()?;
        for _ in 0..16 {
            let Some(due) = self.tcp.endpoint().poll_timeout() else {
                break;
            };
            self.elapse(due, 0)?;
        }
        self.user.finish(&mut self.tcp)?;
        self.run()?;
        let lost = &self.tcp.endpoint().trace().lost;
        if lost.len() != usize::from(self.lost) {
            return Err(format!("connections were lost: {lost:?}"));
        }
        let now = self.tcp.look(|e| e.free_rows());
        if now != self.free || self.tcp.stats().open != 0 || self.tcp.in_flight() != 0 {
            return Err(format!(
                "not everything is back: {now:?}, at the start {:?}; {:?}",
                self.free,
                self.tcp.stats()
            ));
        }
        Ok(())
    }
}
