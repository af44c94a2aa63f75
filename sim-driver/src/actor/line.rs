//! One connection as its user sees it: what goes out on it, and how it ends.

use xio_proto::{
    CommandError, ConnectionId, Reconnect, RequestOptions, Segment, SessionId, TaskId,
};

use super::parcel::Parcel;
use super::{Actor, Closing, Errand, Hints};
use crate::check::{Check, Class, Fact};
use crate::driver::{Core, Desk};
use crate::memory::Rights;
use crate::trace::{Act, Object};

/// One connection as its user sees it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: Option<ConnectionId>,
    pub(super) session: Option<SessionId>,
    /// Its side in the ledger; unknown until the first message, when it came by HELLO.
    pub(super) side: Option<u32>,
    /// The first connection of its session, when it came by HELLO.
    pub(super) root: Option<u32>,
    client: bool,
    pub(super) established: bool,
    /// No more commands make sense.
    pub(super) over: bool,
    closing_asked: bool,
    pub(super) left: u32,
    pub(super) out: u32,
    pub(super) depth: u32,
    pub(super) closing: Closing,
    /// Requests and one-ways of this side that have no outcome.
    pub(super) own_out: u32,
    /// Something was refused for lack of room; `Writable` will come.
    pub(super) blocked: bool,
    /// The next message goes no earlier, in nanoseconds.
    next_at: u64,
    /// Server: closes when the client has said its last and everything is answered.
    closes: bool,
    /// The peer sends requests of its own.
    peer_sends: bool,
    /// The peer has said its last.
    pub(super) peer_done: bool,
    /// Payloads that have memory and are not here: what was refused may have been behind them.
    pub(super) fetching: u32,
    /// What the client has the server send back.
    pub(super) back: u16,
    /// Connections to be opened in its session, here and elsewhere.
    pub(super) more: u8,
    pub(super) away: u8,
    /// Connections of its session that are on their way: it must not end before.
    pub(super) pending: u32,
    /// They are not waited for any longer than this.
    pub(super) pending_until: u64,
    /// Who waits for this one: endpoint and line.
    pub(super) asker: Option<(u32, u32)>,
    pub(super) patience: u64,
    /// It ends then, whatever there is; 0 is never.
    pub(super) ends_at: u64,
    /// It is aborted then although it is closing; 0 is never.
    pub(super) aborts_at: u64,
    /// When something of it came or ended last, in nanoseconds.
    pub(super) stirred: u64,
    /// Messages and bytes of the peer's that were not given back, against application credits.
    pub(super) hands: (u32, u64),
    /// The peer may have called as well.
    pub(super) calls: bool,
    /// It is made anew when it is lost.
    pub(super) again: Option<Reconnect>,
    /// When its loss was heard, by the endpoint's clock.
    pub(super) lost_at: u64,
    /// Attempts that were begun under its index when its loss was heard; none while it is there.
    pub(super) tried: Option<u32>,
    /// A message that was never sent has failed.
    pub(super) dropped: bool,
    /// Which of its side's lives it is.
    pub(super) life: u32,
}

impl Line {
    pub(super) fn new(side: Option<u32>, errand: Option<&Errand>) -> Self {
        Self {
            id: None,
            session: None,
            side,
            root: None,
            client: errand.is_some(),
            established: false,
            over: false,
            closing_asked: false,
            left: errand.map_or(0, |errand| errand.messages),
            out: 0,
            depth: errand.map_or(8, |errand| errand.depth),
            closing: errand.map_or(Closing::Server, |errand| errand.closing),
            own_out: 0,
            blocked: false,
            next_at: 0,
            closes: false,
            peer_sends: errand.is_none_or(|errand| errand.back > 0),
            peer_done: false,
            fetching: 0,
            back: errand.map_or(0, |errand| errand.back),
            more: errand.map_or(0, |errand| errand.more),
            away: errand.map_or(0, |errand| {
                if errand.wish.has_portals() {
                    errand.away
                } else {
                    0
                }
            }),
            pending: 0,
            pending_until: 0,
            asker: None,
            patience: errand.map_or(0, |errand| errand.patience),
            ends_at: 0,
            aborts_at: 0,
            stirred: 0,
            hands: (0, 0),
            calls: errand.is_some_and(|errand| errand.call.is_some()),
            again: errand.and_then(|errand| errand.again),
            lost_at: 0,
            tried: None,
            dropped: false,
            life: 0,
        }
    }

    pub(super) fn is_client(&self) -> bool {
        self.client
    }

    /// The client said what it wants.
    pub(super) fn hear(&mut self, hints: Hints) {
        self.left = hints.back.into();
        self.closes = hints.closes;
    }

    /// What the client says.
    pub(super) fn hints(&self) -> Hints {
        Hints {
            closes: matches!(self.closing, Closing::Server | Closing::Both),
            back: self.back,
        }
    }

    /// Whether nothing of it is under way, on this side.
    pub(super) fn is_idle(&self) -> bool {
        self.client && self.established && self.left == 0 && self.out == 0
    }

    /// Its endpoint closes it.
    pub(super) fn stop(&mut self) {
        self.closing_asked = true;
        self.left = 0;
    }

    pub(super) fn is_open(&self) -> bool {
        self.id.is_some() && !self.over && !self.closing_asked
    }
}

impl Actor {
    /// How long a message that may be sent again may wait, in nanoseconds.
    const WHILE: u64 = 200_000_000;

    pub(super) fn open(&mut self, side: Option<u32>, errand: Option<&Errand>) -> u32 {
        self.lines.push(Line::new(side, errand));
        self.lines.len() as u32 - 1
    }

    /// The line of a connection; one that is not known came by HELLO.
    pub(super) fn line_of(&mut self, connection: ConnectionId) -> u32 {
        let known = self.by_connection.get(connection.index()).copied();
        if let Some(Some((id, line))) = known
            && id == connection
        {
            return line;
        }
        let line = self.open(None, None);
        self.know(line, connection);
        line
    }

    /// Sends what may be sent, and ends what is to be ended.
    pub(super) fn pump(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        loop {
            let l = &self.lines[line as usize];
            let ready = l.is_open() && l.side.is_some() && !l.blocked;
            if !ready || l.left == 0 || l.own_out >= l.depth {
                break;
            }
            // The last one says so, and the peer may end the session then.
            if l.left == 1 && self.awaits(desk, line) {
                break;
            }
            let l = &self.lines[line as usize];
            if l.next_at > desk.env.now() {
                let at = l.next_at;
                self.wake(desk, at);
                break;
            }
            let direct = self.rng.chance(self.mix.direct) && l.left > 1;
            let went = if direct {
                self.go_direct(core, desk, line)
            } else {
                None
            };
            if !went.unwrap_or_else(|| self.send_next(core, desk, line)) {
                break;
            }
        }
        self.maybe_close(core, desk, line);
    }

    /// Whether connections of its session are on their way.
    fn awaits(&self, desk: &Desk<'_>, line: u32) -> bool {
        let l = &self.lines[line as usize];
        let grows = l.more > 0 || l.away > 0;
        grows && l.session.is_none() || l.pending > 0 && desk.env.now() < l.pending_until
    }

    pub(super) fn maybe_close(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        let l = &self.lines[line as usize];
        if !l.is_open() {
            return;
        }
        if l.ends_at != 0 && l.ends_at <= desk.env.now() {
            self.hang_up(core, desk, line, true);
            return;
        }
        let idle = l.left == 0 && l.out == 0 && l.established;
        // The message that says so may have been given up before it was sent.
        let silent = self.mix.idle != 0 && desk.env.now() >= l.stirred + self.mix.idle;
        let heard = l.peer_done && l.fetching == 0 || !l.peer_sends || silent;
        let waits = self.due.iter().any(|due| due.line == line) || self.awaits(desk, line);
        let close = match l.closing {
            _ if !l.client => l.closes && idle && heard && !waits,
            Closing::Client | Closing::Both => idle && heard && !waits,
            Closing::Server => idle && silent && !waits,
            Closing::Early | Closing::Abort => l.left == 0,
        };
        let at = l.stirred + self.mix.idle;
        if close {
            self.hang_up(core, desk, line, true);
        } else if l.is_idle() && self.mix.idle != 0 {
            self.wake(desk, at.max(desk.env.now() + 1));
        }
    }

    /// Says of each connection that is not over what it waits for.
    pub fn complain(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        for line in 0..self.lines.len() {
            let l = &self.lines[line];
            let Some(id) = l.id.filter(|_| !l.over) else {
                continue;
            };
            let waits = self
                .due
                .iter()
                .filter(|due| due.line == line as u32)
                .count();
            let out = self.cargo.iter().filter(|cargo| cargo.line == line as u32);
            let out: Vec<_> = out.map(|cargo| cargo.message).collect();
            let text = format!(
                "endpoint {}: side {:?} is not done: {} to send, {} out {out:?}, {waits} to answer, \
                 blocked {}, peer done {}, closing {} {:?}, {:?}, {:?}",
                desk.number,
                l.side,
                l.left,
                l.out,
                l.blocked,
                l.peer_done,
                l.closing_asked,
                l.closing,
                core.info(id),
                core.free_rows(),
            );
            let at = desk.env.now();
            desk.ledger.breach(at, Check::Quiescence, text);
        }
    }

    /// Ends a connection, as it is to be ended or by closing it.
    pub(super) fn hang_up(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        line: u32,
        its_way: bool,
    ) {
        let l = &mut self.lines[line as usize];
        let Some(id) = l.id.filter(|_| l.is_open()) else {
            return;
        };
        l.closing_asked = true;
        // Who has no patience does not wait for the close either.
        let sudden = l.patience == 0 && self.rng.chance(self.mix.curt);
        if let (true, Some(side)) = (sudden, l.side) {
            l.patience = self.rng.spread(1_000, 2_000_000);
            desk.ledger.take(desk.env.now(), Fact::Doomed { side });
        }
        if l.patience > 0 && l.closing != Closing::Abort && (sudden || self.rng.flip()) {
            let after = self.rng.spread(1, 2 * l.patience);
            l.aborts_at = desk.env.now() + after;
            let at = l.aborts_at;
            self.wake(desk, at);
        }
        let l = &self.lines[line as usize];
        let done = if its_way && l.closing == Closing::Abort {
            core.abort(desk.now, id)
        } else {
            core.close(desk.now, id)
        };
        if done.is_err() {
            self.sense(desk, format!("close of {id:?} was refused: {done:?}"));
        }
    }

    /// Aborts what is closing for too long.
    pub(super) fn abort_due(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        let now = desk.env.now();
        for l in self.lines.iter_mut().filter(|l| l.aborts_at != 0) {
            if l.over {
                l.aborts_at = 0;
            } else if l.aborts_at <= now
                && let Some(id) = l.id
            {
                l.aborts_at = 0;
                // Its last event may be on its way.
                let _ = core.abort(desk.now, id);
            }
        }
    }

    fn draw_class(&mut self) -> Class {
        if !self.rng.chance(self.mix.one_way) {
            Class::Request
        } else if self.rng.chance(self.mix.receipt) {
            Class::Receipted
        } else {
            Class::OneWay
        }
    }

    /// A message that may be sent again is given up after a while more often: it may wait for its
    /// connection to be made anew then.
    fn cancel_late(&mut self, desk: &mut Desk<'_>, task: TaskId, lasts: bool) {
        if lasts && self.rng.chance(self.mix.cancel) {
            let at = desk.env.now() + self.rng.spread(1_000_000, Self::WHILE);
            self.cancels.push((at, task));
            self.wake(desk, at);
        }
    }

    /// A deadline for some messages, and when that is in nanoseconds of the endpoint's clock; later
    /// for those that may be sent again, and for more of them.
    pub(super) fn draw_deadline(
        &mut self,
        desk: &Desk<'_>,
        lasts: bool,
    ) -> (Option<xio_proto::Instant>, Option<u64>) {
        let chance = self.mix.deadline * if lasts { 4 } else { 1 };
        if !self.rng.chance(chance) {
            return (None, None);
        }
        let most = if lasts { Self::WHILE } else { 20_000_000 };
        let after = self.rng.spread(1_000, most);
        let at = desk.now.after(core::time::Duration::from_nanos(after));
        (Some(at), Some(at.as_nanos()))
    }

    /// Room for the answer of some requests.
    fn draw_offer(&mut self, desk: &mut Desk<'_>, parcel: &mut Parcel) -> u64 {
        let large = self.rng.chance(self.mix.large_ppm);
        if !large && !self.rng.chance(self.mix.offer) {
            return 0;
        }
        let rights = Rights::LOCAL_WRITE.and(Rights::REMOTE_WRITE);
        let most = if large {
            self.mix.large
        } else {
            self.mix.small
        };
        let least = if self.rng.flip() { 1 } else { most / 2 };
        let len = self.rng.spread(least.max(1).into(), most.max(1).into()) as u32;
        parcel.into = desk.memory().allocate(len, rights);
        match parcel.into {
            Some(buffer) => {
                desk.memory().hold(buffer.lkey);
                len.into()
            }
            None => 0,
        }
    }

    fn send_next(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) -> bool {
        let class = self.draw_class();
        let l = &self.lines[line as usize];
        let (Some(id), Some(side)) = (l.id, l.side) else {
            return false;
        };
        let last = l.left == 1;
        let word = parcel_word(last, l.hints());
        let mut parcel = match self.pack(core, desk, id, side, class, u64::MAX, word, None) {
            Ok(parcel) => parcel,
            Err(error) => return self.refused(desk, line, error),
        };
        let mut into = [Segment::default(); 2];
        let mut offered = 0;
        if class == Class::Request {
            parcel.room = self.draw_offer(desk, &mut parcel);
            if let Some(buffer) = parcel.into {
                let cut = self.rng.below(buffer.len.into()) as u32;
                into = [
                    buffer.part(0, buffer.len - cut),
                    buffer.part(buffer.len - cut, cut),
                ];
                offered = if cut == 0 { 1 } else { 2 };
            }
        }
        let repeats = self.rng.chance(self.mix.idempotent);
        let lasts = repeats && self.lines[line as usize].again.is_some();
        let (deadline, due) = self.draw_deadline(desk, lasts);
        parcel.receipt = match class {
            Class::Request => self.rng.chance(self.mix.receipt / 2),
            class => class == Class::Receipted,
        };
        parcel.deadline = due;
        let mut options = RequestOptions {
            into: &into[..offered],
            receipt: parcel.receipt,
            deadline,
            ..RequestOptions::default()
        };
        options.force_read = self.rng.chance(self.mix.options) && parcel.data.is_some();
        options.force_write = self.rng.chance(self.mix.options) && offered > 0;
        options.last_in_batch = self.rng.chance(self.mix.options);
        options.idempotent = repeats;
        if options.idempotent {
            let message = parcel.number;
            let at = desk.env.now();
            desk.ledger.take(at, Fact::Idempotent { message });
        }
        let (mut message, cargo) = self.load(line, &parcel);
        message.prompt = self.rng.chance(self.mix.options);
        let sent = if class == Class::Request {
            core.send(id, &message, &options)
        } else {
            core.send_one_way(id, &message, &options)
        };
        match sent {
            Ok(task) => {
                self.taken(desk, &parcel);
                self.sent(desk, line, task);
                self.cancel_late(desk, task, lasts);
                true
            }
            Err(error) => {
                self.unload(core, desk, &parcel, cargo);
                self.refused(desk, line, error)
            }
        }
    }

    /// A message is on its way.
    pub(super) fn sent(&mut self, desk: &mut Desk<'_>, line: u32, task: TaskId) {
        let pause = self.rng.below(self.mix.pace + 1);
        let now = desk.env.now();
        let l = &mut self.lines[line as usize];
        l.left -= 1;
        l.out += 1;
        l.own_out += 1;
        l.next_at = now + pause;
        if self.rng.chance(self.mix.cancel) {
            let at = now + self.rng.spread(1, 1_000_000);
            self.cancels.push((at, task));
            self.wake(desk, at);
        }
    }

    pub(super) fn taken(&mut self, desk: &mut Desk<'_>, parcel: &Parcel) {
        let at = desk.env.now();
        let taken = Fact::Taken {
            message: parcel.number,
            digest: parcel.digest,
            buffers: parcel.data.is_some() || parcel.into.is_some(),
            len: parcel.data_len.into(),
            room: parcel.room,
            receipt: parcel.receipt,
            deadline: parcel.deadline,
        };
        desk.ledger.take(at, taken);
        let object = Object::Actor(desk.number);
        let len = u64::from(parcel.data_len);
        desk.env
            .record(desk.number, object, Act::UserCommand, parcel.number, len);
    }

    /// What to do about a refusal. Returns false: no more for now.
    pub(super) fn refused(&mut self, desk: &mut Desk<'_>, line: u32, error: CommandError) -> bool {
        match error {
            CommandError::Full(_) | CommandError::NoCredit => {
                self.lines[line as usize].blocked = true;
            }
            CommandError::Closed(_) | CommandError::Unknown => {
                self.lines[line as usize].left = 0;
            }
            // More than the peer's application credits could ever cover: another one is tried.
            CommandError::TooLong { .. } if self.mix.large_ppm > 0 => {
                let at = desk.env.now() + 10_000;
                self.lines[line as usize].next_at = at;
                self.wake(desk, at);
            }
            other => self.sense(desk, format!("a message was refused: {other}")),
        }
        false
    }
}

/// What a message says beside its number.
fn parcel_word(last: bool, hints: Hints) -> u64 {
    u64::from(last) | u64::from(hints.closes) << 1 | u64::from(hints.back) << 16
}
