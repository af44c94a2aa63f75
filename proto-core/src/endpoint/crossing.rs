//! Two that call each other and want one connection (PROTOCOL.md 8.8).
//!
//! Each session setup of such a connect takes part in a race. Only a setup that is out can lose
//! one: whoever has sent none takes the peer's session for its own connection. What is looked up by
//! the peer's identity is looked up at setups only.

use super::Endpoint;
use super::extension::home;
use super::session::Keep;
use crate::config::ConnectOptions;
use crate::entries::{Awaited, Connection, Frames, Stage};
use crate::error::{CommandError, Existing, Reason, Resource};
use crate::ids::{NONE, TransportId};
use crate::mutant::mutated;
use crate::state::connection::{Input, State};
use crate::state::{nexus, session};
use crate::storage::Storage;
use crate::tid;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{
    Extensions, Kind, Portals, Race, Request, SETUP_PAYLOAD_MAX, SessionSetupRequest,
    SessionSetupResponse, status,
};

/// The first setup of a connect is in this race.
pub(crate) const FIRST_RACE: u8 = 1;
/// The last one is in this.
const RACES_MAX: u8 = 4;

/// What an answer has in front of its private data that a setup without a URI has not.
const MORE_IN_ANSWER: usize = 2;

/// What a session setup of the peer's finds here.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Meeting {
    /// Nothing that it has to do with.
    Nothing,
    /// A connect of this side, which takes the session.
    Adopt(u32),
    /// One that beats it.
    Refuse,
    /// One that the peer has lost, as it calls again.
    Replace(u32),
}

impl Connection {
    /// Whether it stands for the one connection between two, or for an attempt at it.
    pub(crate) const fn is_only(&self) -> bool {
        matches!(
            self.state,
            State::Opening | State::SetupSent | State::Crossed | State::Requested | State::Online
        )
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Whether a connect may be the only one with its peer.
    pub(crate) fn may_be_only(&mut self, options: &ConnectOptions) -> Result<(), CommandError> {
        let Some(only) = options.only_with else {
            return Ok(());
        };
        if options.reconnect.is_some() {
            return Err(CommandError::BadValue("only_with and reconnect"));
        }
        if only == 0 || self.own_identity() == 0 {
            return Err(CommandError::BadValue("only_with without an identity"));
        }
        if !self.g.config.extensions.contains(Extensions::CROSS) {
            return Err(CommandError::BadValue("only_with without CROSS"));
        }
        match self.there_with(only) {
            None => Ok(()),
            Some(existing) => Err(CommandError::Exists(existing)),
        }
    }

    fn there_with(&mut self, only: u64) -> Option<Existing> {
        let mut c = self.first_only(only);
        while c != NONE {
            let row = self.connection(c);
            let (next, session, state) = (row.cross.next, row.session, row.state);
            let here = row.cross.only == only;
            let told = !row.silent && !matches!(state, State::Ending | State::Over);
            if here && state == State::Requested {
                return Some(Existing::Session(self.session_id(session)));
            }
            if here && told {
                return Some(Existing::Connection(self.connection_id(c)));
            }
            c = next;
        }
        None
    }

    /// Bytes less for URI and private data: the latter must fit the answer to the peer, too.
    pub(crate) const fn more_in_answer(&self, options: &ConnectOptions) -> usize {
        match options.only_with {
            Some(_) => MORE_IN_ANSWER,
            None => 0,
        }
    }

    fn first_only(&mut self, identity: u64) -> u32 {
        let rows = self.s.tables().connections;
        rows[home(identity, rows.len())].cross.bucket
    }

    /// The connection is found by the peer's identity from now on.
    pub(crate) fn know(&mut self, c: u32, only: u64, race: u8, theirs: bool) {
        let rows = self.s.tables().connections;
        let home = home(only, rows.len());
        let next = core::mem::replace(&mut rows[home].cross.bucket, c);
        let cross = &mut rows[c as usize].cross;
        (cross.only, cross.race, cross.theirs) = (only, race, theirs);
        cross.next = next;
    }

    /// Its row is given back.
    pub(crate) fn unknow(&mut self, c: u32) {
        let rows = self.s.tables().connections;
        let cross = rows[c as usize].cross;
        if cross.only == 0 {
            return;
        }
        let home = home(cross.only, rows.len());
        let mut at = rows[home].cross.bucket;
        if at == c {
            rows[home].cross.bucket = cross.next;
            return;
        }
        while at != NONE {
            let next = rows[at as usize].cross.next;
            if next == c {
                rows[at as usize].cross.next = cross.next;
                return;
            }
            at = next;
        }
    }

    fn only_with(&mut self, identity: u64) -> Option<u32> {
        let mut c = self.first_only(identity);
        while c != NONE {
            let row = self.connection(c);
            if row.cross.only == identity && row.is_only() {
                return Some(c);
            }
            c = row.cross.next;
        }
        None
    }

    /// What a connection's session setup takes part in.
    pub(crate) fn setup_race(&mut self, c: u32, kind: Kind) -> u8 {
        match kind {
            Kind::SessionSetupReq => self.connection(c).cross.race,
            _ => 0,
        }
    }

    /// Server: what a session setup of that race finds here.
    pub(crate) fn meet(&mut self, n: u32, race: u8) -> Meeting {
        let agreement = &self.nexus(n).agreement;
        let (peer, life) = (agreement.identity, agreement.incarnation);
        let own = self.own_identity();
        if race == 0 || peer == own || mutated!(self.g, BothAccepted) {
            return Meeting::Nothing;
        }
        let Some(c) = self.only_with(peer) else {
            return Meeting::Nothing;
        };
        let row = self.connection(c);
        let (state, cross, other) = (row.state, row.cross, row.nexus);
        let sent = row.awaited.contains(Awaited::SETUP);
        let caller = if cross.theirs { peer } else { own };
        let held = Race {
            number: cross.race,
            identity: caller,
        };
        let asks = Race {
            number: race,
            identity: peer,
        };
        // What was said to an earlier life, or by it, means nothing to the present one.
        let earlier = match self.s.tables().nexuses.get(other as usize) {
            Some(row) if row.agreement.identity == peer => row.agreement.incarnation,
            _ => life,
        };
        let wins = life > earlier || (life == earlier && asks.beats(held));
        let mine = !matches!(state, State::Requested | State::Online);
        match (mine, wins) {
            (true, wins) if wins || !sent => self.adopts(c, n),
            (_, true) => Meeting::Replace(c),
            (_, false) => Meeting::Refuse,
        }
    }

    /// If what the user says with a connect does not fit an answer here the connect fails, as it would
    /// when its own transport connection is up.
    fn adopts(&mut self, c: u32, n: u32) -> Meeting {
        let max = self.setup_room(n).min(SETUP_PAYLOAD_MAX);
        let len = self.connection(c).setup_bytes() + MORE_IN_ANSWER;
        if len > max {
            self.setup_too_long(c, len, max);
            return Meeting::Nothing;
        }
        Meeting::Adopt(c)
    }

    /// Server: the peer's session goes to its user, who hears that it is to be the only one.
    pub(crate) fn met(&mut self, c: u32, n: u32, meeting: Meeting, race: u8) {
        let peer = self.nexus(n).agreement.identity;
        if race == 0 || peer == self.own_identity() {
            return;
        }
        self.know(c, peer, race, true);
        if let Meeting::Replace(old) = meeting {
            self.connection_input(old, Input::Lost, Some(Reason::Disconnected));
        }
    }

    /// Server: the peer's session loses against what is here. Neither side says FIN.
    pub(crate) fn refuse_race(&mut self, s: u32, c: u32) {
        self.trace.mark("two crossing connects became one");
        self.connection(c).frames.insert(Frames::SETUP_RSP);
        self.session_input(s, session::Input::Reject);
        let reason = Some(Reason::Rejected(status::CROSSED));
        self.connection_input(c, Input::Yield, reason);
        self.mark_tx(c);
    }

    /// Server: a connect of this side's takes the peer's session, and is established with it.
    pub(crate) fn adopt(
        &mut self,
        c: u32,
        n: u32,
        slot: u32,
        request: &Request<'_>,
        setup: &SessionSetupRequest<'_>,
        race: u8,
    ) -> Keep {
        let Some(s) = self.take_session_row() else {
            let (what, need, have) = (Resource::Sessions, 1, 0);
            let reason = Reason::NoResources { what, need, have };
            self.nexus_input(n, nexus::Input::Fail, Some(reason));
            return Keep::No;
        };
        self.trace.mark("two crossing connects became one");
        self.leave_attempt(c);
        let user = self.connection(c).user;
        let session = self.session(s);
        session.asked_with(setup);
        session.user = user;
        let idle = self.nexus(n).state == nexus::State::Idle;
        self.attach_nexus(c, n);
        self.attach_session(c, s);
        self.session_input(s, session::Input::Adopt);
        if idle {
            self.nexus_input(n, nexus::Input::Used, None);
        }
        let row = self.connection(c);
        row.client = false;
        row.setup_rtid = request.head.ltid;
        (row.cross.race, row.cross.theirs, row.cross.answers) = (race, true, true);
        row.frames.insert(Frames::SETUP_RSP);
        let len = setup.private.len() as u32;
        let keep = if len == 0 {
            Keep::No
        } else {
            let end = u32::from(request.header_at) + u32::from(request.head.header_len);
            self.deliver_private(slot, end - len, len);
            self.connection(c).setup_task = slot;
            Keep::Yes
        };
        self.connection_input(c, Input::Adopt, None);
        keep
    }

    /// An attempt is given up for the peer's session. Whoever shares its transport connection stays
    /// there, and so does somebody for the answer to what was asked.
    fn leave_attempt(&mut self, c: u32) {
        self.disarm(Timer::Connection(c));
        let row = self.connection(c);
        let (n, s, race) = (row.nexus, row.session, row.cross.race);
        let sent = row.awaited.contains(Awaited::SETUP);
        let asked = tid::of_connection(c, row.generation);
        row.frames = Frames::empty();
        row.awaited = Awaited::empty();
        if n == NONE {
            return;
        }
        self.session(s).hidden = true;
        let others = self.nexus(n).connection_count > 1;
        self.nexus(n).late_allowed |= sent;
        self.nexus(n).connection_count -= 1;
        self.detach_nexus(c);
        self.detach_session(c, s);
        match self.take_connection() {
            Ok(left) if sent && others => {
                self.attach_nexus(left, n);
                self.attach_session(left, s);
                let timeout = self.g.config.setup_timeout;
                let row = self.connection(left);
                (row.silent, row.client) = (true, true);
                (row.setup_rtid, row.cross.race) = (asked, race);
                row.awaited.insert(Awaited::SETUP);
                self.connection_input(left, Input::Yield, Some(Reason::Closed));
                self.arm_after(Timer::Connection(left), timeout);
                return;
            }
            Ok(left) => self.give_connection(left),
            Err(_) => {}
        }
        self.session_input(s, session::Input::LastGone);
        let up = matches!(
            self.nexus(n).state,
            nexus::State::Online | nexus::State::Idle
        );
        if up {
            self.end_unused(n, Reason::Closed);
        } else {
            self.unused_if_empty(n);
        }
    }

    /// Client: who waits on a transport connection for the answer to a setup that another has left.
    pub(crate) fn left_behind(&mut self, n: u32, rtid: u32) -> Option<u32> {
        let mut c = self.nexus(n).connections;
        while c != NONE {
            let row = self.connection(c);
            let waits = row.awaited.contains(Awaited::SETUP) && row.setup_rtid == rtid;
            if waits && row.silent && row.client {
                row.awaited.remove(Awaited::SETUP);
                return Some(c);
            }
            c = row.nexus_next;
        }
        None
    }

    /// The answer of a connection that has taken the peer's session: with what its user said when
    /// it connected.
    pub(crate) fn write_adoption(&mut self, c: u32, setup: &[u8], out: &mut [u8]) -> usize {
        let Ok(own) = SessionSetupRequest::parse(setup) else {
            unreachable!("our own setup request parses");
        };
        let row = self.connection(c);
        row.cross.answers = false;
        let (s, prepared) = (row.session, core::mem::replace(&mut row.setup_slot, NONE));
        self.free_slot(prepared);
        let answer = SessionSetupResponse::Accept {
            session_id: self.session(s).own_id,
            snd_bytes: self.g.config.queue_bytes,
            rcv_bytes: self.g.config.depth_bytes,
            snd_msgs: self.g.config.queue_depth(),
            rcv_msgs: self.g.config.depth_messages,
            portals: Portals::from_slices(&[]),
            private: own.private,
        };
        let Ok(len) = answer.encode(out) else {
            unreachable!("its length was checked before");
        };
        len
    }

    /// Client: whether who answers is known to be another than the one that is wanted. On sockets
    /// that shows with the answer to the first setup.
    pub(crate) fn wrong_peer(&mut self, n: u32, c: u32) -> Option<Reason> {
        let expected = self.connection(c).cross.only;
        if expected == 0 {
            return None;
        }
        let agreement = &self.nexus(n).agreement;
        let (found, on) = (agreement.identity, agreement.on);
        match agreement.stage {
            Stage::On if found != expected => Some(Reason::WrongPeer { found }),
            Stage::On if !on.contains(Extensions::CROSS) => {
                Some(Reason::CannotCross { peer: found })
            }
            Stage::Off => Some(Reason::WrongPeer { found: 0 }),
            _ => None,
        }
    }

    /// Client: the answer to a setup that took part in a race, if that makes a difference.
    pub(crate) fn answered_only(
        &mut self,
        n: u32,
        c: u32,
        answer: &SessionSetupResponse<'_>,
    ) -> Option<Keep> {
        let cross = self.connection(c).cross;
        if cross.race == 0 {
            return None;
        }
        let s = self.connection(c).session;
        let agreed = self.nexus(n).can(Extensions::CROSS);
        let reason = match answer {
            SessionSetupResponse::Reject { reason, .. } if *reason == status::CROSSED && agreed => {
                self.session_input(s, session::Input::SetupRejected);
                self.connection_input(c, Input::Yield, None);
                return Some(Keep::No);
            }
            SessionSetupResponse::Reject { .. } => return None,
            // Elsewhere is somebody else.
            SessionSetupResponse::Redirect { .. } => Some(Reason::Redirected),
            SessionSetupResponse::Accept { portals, .. } if !portals.is_empty() => {
                Some(Reason::MovedToPortals)
            }
            SessionSetupResponse::Accept { .. } => self.wrong_peer(n, c),
        };
        let reason = reason.filter(|_| cross.only != 0)?;
        self.session_input(s, session::Input::SetupRejected);
        self.connection_input(c, Input::Refused, Some(reason));
        Some(Keep::No)
    }

    /// The table's action: a lost race. What is queued stays, and the winner's setup is awaited.
    pub(crate) fn await_winner(&mut self, c: u32) {
        self.trace.mark("lost race waits for the winner");
        let n = self.connection(c).nexus;
        let s = self.connection(c).session;
        self.session(s).hidden = true;
        self.nexus(n).connection_count -= 1;
        self.detach_nexus(c);
        self.leave_session(c);
        self.end_unused(n, Reason::Rejected(status::CROSSED));
        let timeout = self.g.config.setup_timeout;
        self.arm_after(Timer::Connection(c), timeout);
    }

    /// The winner did not come in time: the next attempt beats it, if it still hangs somewhere.
    pub(crate) fn race_again(&mut self, c: u32) {
        let row = self.connection(c);
        let (only, user) = (row.cross.only, row.user);
        if row.cross.race >= RACES_MAX {
            let reason = Reason::RacesLost(row.cross.race);
            self.connection_input(c, Input::Lost, Some(reason));
            return;
        }
        row.cross.race += 1;
        let Some(kept) = self.retry(c) else {
            unreachable!("it remembers where it called");
        };
        let options = ConnectOptions {
            local: kept.local,
            dual_stream: kept.dual_stream,
            own_nexus: kept.own_nexus,
            user,
            reconnect: None,
            only_with: Some(only),
        };
        let transport = TransportId(kept.transport);
        if let Err(what) = self.begin_anew(c, transport, kept.peer, &options) {
            let (need, have) = (1, 0);
            let reason = Reason::NoResources { what, need, have };
            self.connection_input(c, Input::Lost, Some(reason));
        }
    }

    /// It is up: what another attempt would have needed is given back.
    pub(crate) fn won(&mut self, c: u32) {
        let row = self.connection(c);
        if row.cross.only == 0 {
            return;
        }
        let (n, client) = (row.nexus, row.client);
        let Some(kept) = self.retry(c) else {
            return;
        };
        self.forget_retry(c);
        if client {
            self.drop_setup_slot(c);
            self.nexus(n).shareable = !kept.own_nexus;
        }
    }
}
