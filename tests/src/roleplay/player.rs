//! Plays one side of a recording.
//!
//! The records that concern the side are gone through in order. What came to it is fed to the
//! endpoint; for what it did, the endpoint must have done the same by then, or do it when its user
//! takes its next step.

use xio_proto::{CmKind, Completion, Control, Instant, NexusId, Slots, Work, WorkStatus, WrId};

use super::args::{Program, Step};
use super::compare::{Difference, compare};
use super::cut::{Format, cut};
use super::deviations::Deviation;
use super::host::Host;
use super::link::{Link, OneSided, Read, Sent};
use super::streams::Streams;
use super::user::User;
use crate::golden::{
    Event, Frame, Kind, Layouts, OneSided as Recorded, Payload, Place, Record, Side, Transcript,
    Turn, turn,
};

/// What became of one side of a recording.
#[derive(Clone, Debug)]
pub struct Played {
    /// The recording.
    pub transcript: String,
    /// The side that was played.
    pub side: Side,
    /// Frames of ours that were compared with recorded ones.
    pub compared: usize,
    /// Frames of the recorded peer that were taken.
    pub taken: usize,
    /// Frames of ours that were compared, each with the recorded one.
    pub pairs: Vec<(Frame, Frame)>,
    /// Credit frames: recorded of this side, sent by ours.
    pub nops: (usize, usize),
    /// One-sided transfers that were carried out: by this side, by the recorded peer.
    pub transfers: (usize, usize),
    /// Where ours differs from the recording.
    pub differences: Vec<Deviation>,
}

pub(super) struct Player<'a> {
    transcript: &'a Transcript,
    pub(super) side: Side,
    pub(super) format: Format<'a>,
    pub(super) host: Host,
    pub(super) user: User,
    pub(super) links: Vec<Link>,
    pub(super) streams: Streams,
    /// Connect requests that came.
    pub(super) requests: usize,
    /// The recorded connection was lost, and not closed.
    lost: bool,
    played: Played,
}

/// The time of the first record, in nanoseconds.
const START: u64 = 1_000_000;

/// How late timers may fire, in nanoseconds: frames carry the time at which they were on the wire,
/// and a side's timers start when it comes to look at them.
const LATE: u64 = 500_000;

/// Plays a side of a recording.
///
/// # Errors
///
/// What made it impossible to go on: a frame of the recorded peer that was not taken, a frame of
/// another kind than recorded, credits that do not add up, something left behind.
pub fn play(transcript: &Transcript, side: Side, layouts: &Layouts) -> Result<Played, String> {
    play_from(Player::new(transcript, side, layouts)?)
}

/// As [`play`], but what the recorded peer sends on a data socket arrives before the frame that it
/// belongs to.
///
/// # Errors
///
/// As [`play`].
pub fn play_data_first(
    transcript: &Transcript,
    side: Side,
    layouts: &Layouts,
) -> Result<Played, String> {
    let mut player = Player::new(transcript, side, layouts)?;
    player.streams.data_first = true;
    play_from(player)
}

fn play_from(mut player: Player<'_>) -> Result<Played, String> {
    let result = player.all();
    result.map_err(|(number, what)| {
        let (name, side) = (&player.played.transcript, side_name(player.side));
        format!("{name} as {side}, record {number}: {what}")
    })?;
    Ok(player.played)
}

/// How a side is called in texts.
#[must_use]
pub fn side_name(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Server => "server",
    }
}

impl<'a> Player<'a> {
    fn new(transcript: &'a Transcript, side: Side, layouts: &'a Layouts) -> Result<Self, String> {
        let (client, servers) = Program::of(transcript)?;
        // The recorded library does not survive a cancelled request.
        let lost = client.steps.contains(&Step::Cancel);
        let settings = match side {
            Side::Client => &client.settings,
            Side::Server => &servers[0].settings,
        };
        let host = Host::new(transcript.dialect, settings)?;
        let user = match side {
            Side::Client => User::client(client, servers),
            Side::Server => User::server(client, servers),
        };
        let format = Format {
            dialect: transcript.dialect,
            stream: transcript.stream,
            layouts,
        };
        let played = Played {
            transcript: transcript.name.clone(),
            side,
            compared: 0,
            taken: 0,
            pairs: Vec::new(),
            nops: (0, 0),
            transfers: (0, 0),
            differences: Vec::new(),
        };
        Ok(Self {
            transcript,
            side,
            format,
            host,
            user,
            links: Vec::new(),
            streams: Streams::default(),
            requests: 0,
            lost,
            played,
        })
    }

    /// All records, and then the end. An error comes with the number of its record.
    fn all(&mut self) -> Result<(), (u32, String)> {
        self.user.start(&mut self.host).map_err(|what| (0, what))?;
        self.run().map_err(|what| (0, what))?;
        let records = &self.transcript.records;
        for (at, record) in records.iter().enumerate() {
            self.record(record, &records[at + 1..])
                .map_err(|what| (record.number, what))?;
        }
        self.finish().map_err(|what| (records.len() as u32, what))
    }

    /// One record; `rest` are those behind it.
    fn record(&mut self, record: &Record, rest: &[Record]) -> Result<(), String> {
        let now = Instant::from_nanos(START + record.at * 1000);
        let turn = turn(&record.event, self.side);
        self.elapse(now, if turn == Some(Turn::Input) { LATE } else { 0 })?;
        match (turn, &record.event) {
            (Some(Turn::Input), Event::Cm { kind, params, .. }) => {
                self.communication_manager(*kind, *params, rest)
            }
            (Some(Turn::Input), Event::Frame(frame)) => self.take(frame),
            (Some(turn), Event::Syn { conn, from, to }) => self.syn(turn, *conn, from, to),
            (Some(Turn::Input), Event::Hello { conn, message }) => {
                self.streams.arrive(*conn, &message.bytes())
            }
            (Some(Turn::Output), Event::Hello { conn, message }) => {
                self.expect_hello(record.number, *conn, message)
            }
            (Some(Turn::Input), Event::Fin { conn, .. } | Event::Rst { conn, .. }) => {
                self.socket_ended(*conn)
            }
            (Some(Turn::Input), Event::ReadDone { qp, payload, .. }) => {
                self.read_done(*qp, payload)
            }
            (Some(Turn::Input), Event::Write { work, payload, .. }) => {
                self.peer_writes(work, payload)
            }
            (Some(Turn::Output), Event::CreateQp { attrs, .. }) => self.queue_pair(attrs.qp),
            (Some(Turn::Output), Event::Connect(params) | Event::Accept(params)) => {
                let link = self.link(params.qp)?;
                if self.links[link].wants_connection {
                    return Ok(());
                }
                Err("no connection is asked for".to_owned())
            }
            (Some(Turn::Output), Event::Frame(frame)) => self.expect_frame(record.number, frame),
            (Some(Turn::Output), Event::ReadPosted { work, .. }) => self.expect_read(work),
            (Some(Turn::Output), Event::Write { work, payload, .. }) => {
                self.expect_write(work, payload)
            }
            (None, Event::ReadPosted { work, .. }) => self.peer_reads(work),
            (None, Event::ReadDone { qp, payload, .. }) => self.peer_has_read(*qp, payload),
            _ => Ok(()),
        }?;
        self.run()
    }

    /// Lets time pass, with everything that becomes due on the way; what is due in the last
    /// `late` nanoseconds comes behind what arrives now.
    fn elapse(&mut self, now: Instant, late: u64) -> Result<(), String> {
        let past = Instant::from_nanos(now.as_nanos() - late);
        while let Some(due) = self.host.endpoint.poll_timeout().filter(|due| *due <= past) {
            self.host.now = self.host.now.max(due);
            self.host.endpoint.handle_timeout(self.host.now);
            self.run()?;
        }
        self.host.now = self.host.now.max(now);
        Ok(())
    }

    /// Carries out all that the endpoint wants, until it wants nothing.
    pub(super) fn run(&mut self) -> Result<(), String> {
        loop {
            let mut busy = false;
            let transport = self.host.transport;
            while let Some(control) = self.host.endpoint.poll_control(transport) {
                busy = true;
                self.control(control)?;
            }
            while let Some(work) = self
                .host
                .endpoint
                .poll_work(transport, &mut self.host.slots)
            {
                busy = true;
                self.work(work)?;
            }
            while let Some(event) = self.host.endpoint.poll_event() {
                busy = true;
                self.user.event(&mut self.host, event)?;
            }
            busy |= self.read_streams()?;
            if !busy {
                return Ok(());
            }
        }
    }

    fn control(&mut self, control: Control) -> Result<(), String> {
        match control {
            Control::ResolveAddress { nexus, .. } => {
                self.links.push(Link::new(nexus));
                self.resolved(nexus, CmKind::AddrResolved);
            }
            Control::ResolveRoute { nexus, .. } => self.resolved(nexus, CmKind::RouteResolved),
            Control::Accept { nexus, .. } if self.is_stream() => self.sockets_became(nexus)?,
            Control::CloseSocket { reason, .. } => return Err(format!("a stray socket: {reason}")),
            Control::CreateQueuePair { nexus } => {
                self.of(nexus)?.wants_qp = true;
                self.host
                    .endpoint
                    .handle_queue_pair(self.host.now, nexus, Ok(()));
            }
            Control::Connect { nexus, .. } | Control::Accept { nexus, .. } => {
                self.of(nexus)?.wants_connection = true;
            }
            Control::Drain { nexus } => {
                let link = self.of(nexus)?;
                let receives = std::mem::take(&mut link.receives);
                let reads = std::mem::take(&mut link.reading);
                for wr in receives
                    .iter()
                    .map(|r| r.0)
                    .chain(reads.iter().map(|r| r.wr))
                {
                    self.complete(wr, WorkStatus::Flushed, 0);
                }
            }
            Control::Destroy { nexus } => {
                self.of(nexus)?.gone = true;
                self.host.endpoint.handle_destroyed(self.host.now, nexus);
            }
            Control::Register { region, .. } => self.host.registered(region)?,
            Control::Revoke { region } => {
                self.host
                    .endpoint
                    .handle_region_revoked(self.host.now, region);
            }
            Control::Reject { reason, .. } => return Err(format!("a peer is refused: {reason}")),
            _ => {}
        }
        Ok(())
    }

    fn work(&mut self, work: Work) -> Result<(), String> {
        match work {
            Work::Recv { nexus, wr, slot } => {
                let link = self.of(nexus)?;
                link.ledger.posted += 1;
                link.receives.push_back((wr, slot));
            }
            Work::Send {
                nexus,
                wr,
                head,
                tail,
                data,
                signaled,
                ..
            } => {
                let segments = self.host.segments(data);
                let parts = [
                    self.host.span(head),
                    self.host.span(tail),
                    self.host.gather(&segments)?,
                ];
                self.send_frame(nexus, parts)?;
                if signaled {
                    self.complete(wr, WorkStatus::Success, 0);
                }
            }
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                rkey,
                ..
            } => {
                let from = OneSided {
                    addr: remote,
                    rkey,
                    len: local.len,
                };
                let into = self.host.segments(local);
                self.of(nexus)?.reads.push_back(Read { wr, from, into });
            }
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled,
            } => {
                let to = OneSided {
                    addr: remote,
                    rkey,
                    len: local.len,
                };
                let segments = self.host.segments(local);
                let bytes = self.host.gather(&segments)?;
                self.of(nexus)?.sent.push_back(Sent::Write(to, bytes));
                if signaled {
                    self.complete(wr, WorkStatus::Success, 0);
                }
            }
        }
        Ok(())
    }

    /// A frame goes out: it is looked for in the recording later.
    fn send_frame(&mut self, nexus: NexusId, parts: [Vec<u8>; 3]) -> Result<(), String> {
        let [main, second] = self.split(nexus, parts)?;
        let frame = cut(self.format, self.side, &main, &second)?;
        let stream = self.is_stream();
        let link = self.of(nexus)?;
        if !stream {
            link.ledger.sent(&frame)?;
        }
        if frame.kind != Kind::CreditNop {
            link.sent.push_back(Sent::Frame(frame));
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, wr: WrId, status: WorkStatus, len: u32) {
        let completion = Completion { wr, status, len };
        let host = &mut self.host;
        host.endpoint
            .handle_completion(host.now, completion, &mut host.slots);
    }

    pub(super) fn of(&mut self, nexus: NexusId) -> Result<&mut Link, String> {
        let link = self
            .links
            .iter_mut()
            .find(|link| link.nexus == nexus && !link.gone);
        link.ok_or_else(|| format!("{nexus:?} is unknown"))
    }

    /// The connection with this queue pair on this side.
    pub(super) fn link(&self, qp: u32) -> Result<usize, String> {
        let at = self.links.iter().position(|link| link.qp == Some(qp));
        at.ok_or_else(|| format!("queue pair {qp} is unknown"))
    }

    /// The connection with this queue pair on the peer's side.
    fn peer_link(&self, qp: u32) -> Result<usize, String> {
        let at = self.links.iter().position(|link| link.peer_qp == Some(qp));
        at.ok_or_else(|| format!("the peer's queue pair {qp} is unknown"))
    }

    fn queue_pair(&mut self, qp: u32) -> Result<(), String> {
        let link = self
            .links
            .iter_mut()
            .find(|link| link.wants_qp && link.qp.is_none());
        link.ok_or("no queue pair is asked for")?.qp = Some(qp);
        Ok(())
    }

    /// Feeds a frame of the recorded peer.
    fn take(&mut self, frame: &Frame) -> Result<(), String> {
        let kind = frame.kind.name();
        let told = |what: String| format!("{kind}: {what}");
        let at = self.peer_link(carried_by(frame))?;
        let addressed = self.links[at].addressed(frame).map_err(told)?;
        let before = *self.host.endpoint.counters();
        if self.is_stream() {
            self.take_from_streams(&addressed).map_err(told)?;
        } else {
            let link = &mut self.links[at];
            link.ledger.received(frame).map_err(told)?;
            let bytes = addressed.bytes(Place::Main);
            let receive = link.receives.pop_front();
            let (wr, slot) = receive.ok_or_else(|| told("no receive".to_owned()))?;
            self.host.slots.slot_mut(slot)[..bytes.len()].copy_from_slice(&bytes);
            self.complete(wr, WorkStatus::Success, bytes.len() as u32);
        }
        let after = *self.host.endpoint.counters();
        let refused = [
            ("breaks the protocol", before.violations, after.violations),
            ("is late", before.late, after.late),
            ("means nothing", before.ignored_inputs, after.ignored_inputs),
        ];
        if let Some((what, _, _)) = refused
            .into_iter()
            .find(|(_, before, after)| before != after)
        {
            return Err(told(what.to_owned()));
        }
        self.played.taken += 1;
        Ok(())
    }

    /// A frame that the recorded side sent at this point.
    fn expect_frame(&mut self, number: u32, recorded: &Frame) -> Result<(), String> {
        let at = self.link(carried_by(recorded))?;
        if recorded.kind == Kind::CreditNop {
            self.played.nops.0 += 1;
            return Ok(());
        }
        if self.links[at].sent.is_empty() {
            self.act()?;
        }
        let kind = recorded.kind.name();
        let ours = match self.links[at].sent.pop_front() {
            Some(Sent::Frame(ours)) if ours.kind == recorded.kind => ours,
            Some(Sent::Frame(ours)) => {
                return Err(format!("ours is {}, recorded is {kind}", ours.kind.name()));
            }
            Some(Sent::Write(..)) => return Err(format!("ours is a WRITE, recorded is {kind}")),
            None => {
                let missing = Difference {
                    field: "frame".to_owned(),
                    recorded: kind.to_owned(),
                    ours: "-".to_owned(),
                };
                self.differs(format!("{number} {kind}"), missing);
                return Ok(());
            }
        };
        for difference in compare(recorded, &ours) {
            self.differs(format!("{number} {kind}"), difference);
        }
        self.links[at].learn(recorded, &ours);
        self.played.compared += 1;
        self.played.pairs.push((recorded.clone(), ours));
        Ok(())
    }

    /// The user takes its next step.
    fn act(&mut self) -> Result<(), String> {
        self.user.act(&mut self.host)?;
        self.run()
    }

    pub(super) fn differs(&mut self, frame: String, difference: Difference) {
        let transcript = self.transcript.name.clone();
        self.played.differences.push(Deviation {
            transcript,
            frame,
            difference,
        });
    }

    fn expect_read(&mut self, work: &Recorded) -> Result<(), String> {
        let at = self.link(work.posted.qp)?;
        if self.links[at].reads.is_empty() {
            self.act()?;
        }
        let link = &mut self.links[at];
        let read = link.reads.pop_front().ok_or("no READ was posted")?;
        reaches("READ", read.from, work)?;
        link.reading.push_back(read);
        self.played.transfers.0 += 1;
        Ok(())
    }

    fn read_done(&mut self, qp: u32, payload: &Payload) -> Result<(), String> {
        let at = self.link(qp)?;
        let read = self.links[at]
            .reading
            .pop_front()
            .ok_or("no READ is under way")?;
        self.host.scatter(&read.into, &payload.bytes())?;
        self.complete(read.wr, WorkStatus::Success, 0);
        Ok(())
    }

    fn expect_write(&mut self, work: &Recorded, payload: &Payload) -> Result<(), String> {
        let at = self.link(work.posted.qp)?;
        if self.links[at].sent.is_empty() {
            self.act()?;
        }
        match self.links[at].sent.pop_front() {
            Some(Sent::Write(to, bytes)) if bytes == payload.bytes() => {
                self.played.transfers.0 += 1;
                reaches("WRITE", to, work)
            }
            Some(Sent::Write(..)) => Err("a WRITE with other bytes".to_owned()),
            Some(Sent::Frame(frame)) => Err(format!("ours is {}, not a WRITE", frame.kind.name())),
            None => Err("no WRITE was posted".to_owned()),
        }
    }

    fn peer_writes(&mut self, work: &Recorded, payload: &Payload) -> Result<(), String> {
        let at = self.peer_link(work.posted.qp)?;
        self.reached(at, work)?.copy_from_slice(&payload.bytes());
        self.played.transfers.1 += 1;
        Ok(())
    }

    fn peer_reads(&mut self, work: &Recorded) -> Result<(), String> {
        let at = self.peer_link(work.posted.qp)?;
        let bytes = self.reached(at, work)?.to_vec();
        self.links[at].peer_reads.push_back(bytes);
        Ok(())
    }

    /// Memory of this side that the peer reaches: what a frame named, or what the user shares.
    fn reached(&mut self, at: usize, work: &Recorded) -> Result<&mut [u8], String> {
        let len = work.len as usize;
        match self.links[at].translate(work.raddr, work.len.into()) {
            Some(addr) => self.host.at(addr, len),
            None => self.host.shared(work.raddr, work.rkey, len),
        }
    }

    /// What the peer read from this side is what it was recorded to have read.
    fn peer_has_read(&mut self, qp: u32, payload: &Payload) -> Result<(), String> {
        let at = self.peer_link(qp)?;
        let bytes = self.links[at].peer_reads.pop_front();
        if bytes.ok_or("the peer reads nothing")? != payload.bytes() {
            return Err("the peer reads other bytes than recorded".to_owned());
        }
        self.played.transfers.1 += 1;
        Ok(())
    }

    /// The recording is over: the transport connections go, and everything must be back then.
    fn finish(&mut self) -> Result<(), String> {
        for at in 0..self.links.len() {
            while let Some(sent) = self.links[at].sent.pop_front() {
                let ours = match sent {
                    Sent::Frame(frame) => frame.kind.name(),
                    Sent::Write(..) => "WRITE",
                };
                let extra = Difference {
                    field: "frame".to_owned(),
                    recorded: "-".to_owned(),
                    ours: ours.to_owned(),
                };
                self.differs("end".to_owned(), extra);
            }
            self.played.nops.1 += self.links[at].ledger.nops;
            self.disconnected(at);
            self.run()?;
        }
        self.streams.empty()?;
        for _ in 0..16 {
            let Some(due) = self.host.endpoint.poll_timeout() else {
                break;
            };
            self.elapse(due, 0)?;
        }
        self.user.finish(&mut self.host)?;
        self.run()?;
        if self.host.endpoint.counters().violations > 0 {
            return Err("the recorded peer broke the protocol".to_owned());
        }
        let lost = &self.host.endpoint.trace().lost;
        if lost.len() != usize::from(self.lost) {
            return Err(format!("connections were lost: {lost:?}"));
        }
        self.host.everything_is_back()
    }
}

/// The queue pair or socket that carried a recorded frame.
fn carried_by(frame: &Frame) -> u32 {
    match &frame.carrier {
        crate::golden::Carrier::Send { posted, .. } => posted.qp,
        crate::golden::Carrier::Socket { conn, .. } => *conn,
    }
}

fn reaches(what: &str, ours: OneSided, work: &Recorded) -> Result<(), String> {
    let recorded = OneSided {
        addr: work.raddr,
        rkey: work.rkey,
        len: work.len.into(),
    };
    if ours == recorded {
        Ok(())
    } else {
        Err(format!("{what} of {ours:x?}, not {recorded:x?}"))
    }
}
