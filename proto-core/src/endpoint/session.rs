//! Sessions: setup and its three answers, portals, redirection, HELLO, tickets. Table in
//! `state/session.rs`, description in PROTOCOL.md 7.

use core::net::SocketAddr;

use super::Endpoint;
use super::crossing::Meeting;
use crate::config::ConnectOptions;
use crate::entries::{Awaited, Frames, Session};
use crate::error::{CommandError, Reason, Resource, Step};
use crate::ids::{ConnectionId, NONE, SessionId, TransportId};
use crate::inputs::recorded;
use crate::state::connection::Input as ConnectionInput;
use crate::state::session::{self, Action, Input, State};
use crate::state::{connection, nexus};
use crate::storage::Storage;
use crate::table::queue_push;
use crate::tid;
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{
    Dialect, Request, Response, SETUP_PAYLOAD_MAX, SessionSetupRequest, SessionSetupResponse,
    Violation, What, status,
};

/// A session as a value, for an endpoint that did not set it up (PROTOCOL.md 7.3).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SessionTicket {
    /// The id under which this side knows it.
    pub own_id: u32,
    /// The id under which the peer knows it.
    pub peer_id: u32,
    /// This side opened it.
    pub client: bool,
    /// The peer's receive depth in messages.
    pub peer_depth_messages: u16,
    /// The peer's receive depth in bytes.
    pub peer_depth_bytes: u64,
    /// Connections that may still join through the ticket.
    pub joins: u16,
    /// The ticket is worth nothing from this moment on.
    pub expires: Instant,
}

/// What a frame's handler wants done with the slot it lies in.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    Yes,
    No,
}

impl Session {
    /// What the client says of itself and wants.
    pub(super) fn asked_with(&mut self, setup: &SessionSetupRequest<'_>) {
        self.peer_id = setup.session_id;
        self.peer_depth_messages = setup.rcv_msgs;
        self.peer_depth_bytes = setup.rcv_bytes;
        self.private_len = setup.private.len() as u16;
        self.uri_len = setup.uri_trimmed().len() as u16;
        self.uri_skip = setup.uri.len() as u16;
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    pub(crate) fn session_input(&mut self, s: u32, input: Input) {
        let row = self.session(s);
        let from = row.state;
        let (next, action) = session::lookup(from, input);
        row.state = next;
        if action == Action::Ignored {
            self.g.counters.ignored_inputs += 1;
            return;
        }
        self.trace
            .transition(1, s, from as u8, input as u8, next as u8);
        let timeout = self.g.config.setup_timeout;
        match action {
            Action::Ignored | Action::Start | Action::Keep | Action::Follow => {}
            Action::Ask => {
                self.session(s).asked = true;
                self.arm_after(Timer::Session(s), timeout);
                self.session_event(s);
            }
            Action::GoOnline | Action::Attach | Action::Refuse => self.disarm(Timer::Session(s)),
            Action::MoveToPortals if !self.session(s).client => {
                self.arm_after(Timer::Session(s), timeout);
            }
            Action::MoveToPortals => {}
            Action::Expire => {
                // The connection that was sent to the portals may still be saying goodbye.
                if self.session(s).connection_count == 0 {
                    self.session_input(s, Input::LastGone);
                }
            }
            Action::Report => {
                self.disarm(Timer::Session(s));
                let unseen = self.session(s).asked || self.session(s).hidden;
                self.session(s).asked = false;
                if unseen {
                    // The user never heard of it.
                    self.session_input(s, Input::Reported);
                } else {
                    self.session_event(s);
                }
            }
            Action::Free => {
                if !self.session(s).in_events {
                    self.give_session(s);
                }
            }
        }
    }

    fn session_event(&mut self, s: u32) {
        let t = self.s.tables();
        let row = &mut t.sessions[s as usize];
        if !row.in_events {
            row.in_events = true;
            self.g.rare_events = true;
            let q = &mut self.g.session_events;
            queue_push!(t.sessions, q.head, q.tail, event_next, s);
        }
    }

    pub(crate) fn session_deadline(&mut self, s: u32) {
        if self.session(s).state == State::Requested {
            // The user did not decide: refuse for it.
            let c = self.session(s).connections;
            self.session(s).reject_status = status::TIMEOUT;
            self.refuse_session(s, c, Input::Deadline, Reason::TimedOut(Step::SessionSetup));
        } else {
            self.session_input(s, Input::Deadline);
        }
    }

    /// Answers a session's setup with a rejection whose code stands in the session.
    pub(crate) fn refuse_session(&mut self, s: u32, c: u32, input: Input, reason: Reason) {
        let request = core::mem::replace(&mut self.session(s).request, NONE);
        if request != NONE {
            self.drop_incoming(request);
        }
        self.connection(c).frames.insert(Frames::SETUP_RSP);
        self.send_away(s, c, input, reason);
    }

    /// A nexus is up: what waits for it goes on.
    pub(crate) fn nexus_up(&mut self, n: u32) {
        let mut c = self.nexus(n).connections;
        while c != NONE {
            let next = self.connection(c).nexus_next;
            self.connection_up(c);
            c = next;
        }
    }

    pub(crate) fn connection_up(&mut self, c: u32) {
        let row = self.connection(c);
        let (joining, n) = (row.joining, row.nexus);
        let len = row.setup_bytes();
        let max = self.setup_room(n).min(SETUP_PAYLOAD_MAX);
        if !joining && len > max {
            self.setup_too_long(c, len, max);
            return;
        }
        if let Some(reason) = self.wrong_peer(n, c) {
            self.lose(c, ConnectionInput::Lost, reason);
            return;
        }
        let up = if joining {
            ConnectionInput::NexusUpJoin
        } else {
            ConnectionInput::NexusUp
        };
        self.connection_input(c, up, None);
    }

    /// What a client has to say does not fit a frame that the server takes.
    pub(super) fn setup_too_long(&mut self, c: u32, len: usize, max: usize) {
        let (len, max) = (len as u32, max as u32);
        let reason = Reason::SetupTooLong { len, max };
        if self.try_next_portal(c) {
            return;
        }
        self.lose(c, ConnectionInput::Lost, reason);
    }

    /// SESSION_SETUP_REQ at the server.
    pub(crate) fn on_setup_request(
        &mut self,
        n: u32,
        slot: u32,
        request: &Request<'_>,
        race: u8,
    ) -> Result<Keep, Violation> {
        if !self.nexus(n).server {
            let word = request.kind.word().into();
            return Err(Violation::new(What::UnexpectedKind, 4, word));
        }
        if !matches!(
            self.nexus(n).state,
            nexus::State::Online | nexus::State::Idle
        ) {
            // It came with the end of its transport connection: nothing to accept any more.
            return Ok(Keep::No);
        }
        let setup = request.session_setup()?;
        let meeting = self.meet(n, race);
        if let Meeting::Adopt(c) = meeting {
            return Ok(self.adopt(c, n, slot, request, &setup, race));
        }
        let spare = self.session_rows_spare();
        let (s, c) = match self.take_session_and_connection() {
            Ok(rows) => rows,
            Err(what) => {
                let reason = Reason::NoResources {
                    what,
                    need: 1,
                    have: 0,
                };
                self.nexus_input(n, nexus::Input::Fail, Some(reason));
                return Ok(Keep::No);
            }
        };
        let listener = self.nexus(n).listener;
        let live = self
            .s
            .tables()
            .listeners
            .get(listener as usize)
            .filter(|l| l.live);
        let user = live.map(|l| l.user);
        let session = self.session(s);
        session.asked_with(&setup);
        session.listener = listener;
        session.user = user.unwrap_or(0);
        session.request = slot;
        session.setup_at = request.header_at;
        let own_nexus = self.nexus(n).state == nexus::State::Idle;
        self.attach_nexus(c, n);
        self.attach_session(c, s);
        let row = self.connection(c);
        row.setup_rtid = request.head.ltid;
        row.peer_session = setup.session_id;
        // The user knows of the session only, until it accepts.
        row.silent = true;
        self.connection_input(c, ConnectionInput::Request, None);
        if own_nexus {
            self.nexus_input(n, nexus::Input::Used, None);
        }
        let refusal = match (meeting, spare, user) {
            (Meeting::Refuse, ..) => Some(status::CROSSED),
            (_, true, _) => Some(status::NO_BUFS),
            (_, false, None) => Some(status::SESSION_REFUSED),
            (_, false, Some(_)) => None,
        };
        self.session(s).hidden = refusal.is_some();
        self.session_input(s, Input::Request);
        if let Some(code) = refusal {
            self.refuse_setup(s, c, code);
            return Ok(Keep::No);
        }
        self.met(c, n, meeting, race);
        Ok(Keep::Yes)
    }

    /// The endpoint itself says no to a session that it has just taken a row for.
    fn refuse_setup(&mut self, s: u32, c: u32, code: u32) {
        self.session(s).reject_status = code;
        self.session(s).request = NONE;
        if code == status::CROSSED {
            self.refuse_race(s, c);
        } else {
            self.refuse_session(s, c, Input::Reject, Reason::Rejected(code));
        }
    }

    /// The last rows of larger tables are kept to tell peers that there is no room.
    fn session_rows_spare(&mut self) -> bool {
        let t = self.s.tables();
        let sessions = t.sessions.len() >= 4 && self.g.sessions.free() == 1;
        sessions || (t.connections.len() >= 4 && self.g.connections.free() == 1)
    }

    fn take_session_and_connection(&mut self) -> Result<(u32, u32), Resource> {
        let s = self.take_session_row().ok_or(Resource::Sessions)?;
        match self.take_connection() {
            Ok(c) => Ok((s, c)),
            Err(_) => {
                self.give_session(s);
                Err(Resource::Connections)
            }
        }
    }

    /// The connection whose control request a response answers, if it awaits that answer here.
    pub(crate) fn awaiting(
        &mut self,
        n: u32,
        rtid: u32,
        what: Awaited,
    ) -> Result<Option<u32>, Violation> {
        let unknown = Violation::new(What::UnknownTask, 0, rtid.into());
        let c = tid::index(rtid);
        let late = self.nexus(n).late_allowed;
        let row = match self.s.tables().connections.get_mut(c as usize) {
            Some(row) if tid::is_control(rtid) => row,
            _ => return Err(unknown),
        };
        if tid::matches(rtid, row.generation) && row.nexus == n && row.awaited.contains(what) {
            row.awaited.remove(what);
            return Ok(Some(c));
        }
        let again = what == Awaited::KEEPALIVE && row.asked_again > 0;
        if again && tid::matches(rtid, row.generation) && row.nexus == n {
            row.asked_again -= 1;
            return Ok(Some(c));
        }
        if what == Awaited::SETUP
            && let Some(left) = self.left_behind(n, rtid)
        {
            return Ok(Some(left));
        }
        if late { Ok(None) } else { Err(unknown) }
    }

    /// SESSION_SETUP_RSP at the client.
    pub(crate) fn on_setup_response(
        &mut self,
        n: u32,
        slot: u32,
        response: &Response<'_>,
    ) -> Result<Keep, Violation> {
        let answer = response.session_setup()?;
        let Some(c) = self.awaiting(n, response.head.rtid, Awaited::SETUP)? else {
            return Ok(Keep::No);
        };
        let s = self.connection(c).session;
        self.session(s).peer_id = answer.session_id();
        self.connection(c).peer_session = answer.session_id();
        if let Some(keep) = self.answered_only(n, c, &answer) {
            return Ok(keep);
        }
        match answer {
            SessionSetupResponse::Accept {
                rcv_bytes,
                rcv_msgs,
                portals,
                private,
                ..
            } => {
                let session = self.session(s);
                session.peer_depth_messages = rcv_msgs;
                session.peer_depth_bytes = rcv_bytes;
                if !portals.is_empty() {
                    self.session_input(s, Input::SetupPortals);
                    // The user gets it with the connection that is made there.
                    let keep = self.keep_private(c, slot, response, private.len());
                    return Ok(self.go_to_portals(c, slot, response, portals, keep));
                }
                self.session_input(s, Input::SetupAccepted);
                let keep = self.keep_private(c, slot, response, private.len());
                self.drop_setup_slot(c);
                self.connection_input(c, ConnectionInput::SetupAccepted, None);
                Ok(keep)
            }
            SessionSetupResponse::Redirect { portals, .. } => {
                self.session_input(s, Input::SetupRedirected);
                let session = self.session(s);
                session.redirects += 1;
                let hops = session.redirects;
                if hops > self.g.config.redirects_max {
                    let reason = Reason::TooManyRedirects(hops);
                    self.refused(c, reason);
                    return Ok(Keep::No);
                }
                Ok(self.go_to_portals(c, slot, response, portals, Keep::No))
            }
            SessionSetupResponse::Reject {
                reason, private, ..
            } => {
                self.session_input(s, Input::SetupRejected);
                let reason = Reason::Rejected(reason);
                let keep = if self.retries(c, reason) {
                    Keep::No
                } else {
                    self.keep_private(c, slot, response, private.len())
                };
                self.refused(c, reason);
                Ok(keep)
            }
        }
    }

    /// Private data of an answer stays in its slot until the user releases it.
    fn keep_private(&mut self, c: u32, slot: u32, response: &Response<'_>, len: usize) -> Keep {
        let leaving = self.connection(c).state == connection::State::Leaving;
        if len == 0 || self.connection(c).silent || leaving {
            return Keep::No;
        }
        let end = u32::from(response.header_at) + u32::from(response.head.header_len);
        self.deliver_private(slot, end - len as u32, len as u32);
        self.connection(c).setup_task = slot;
        Keep::Yes
    }

    pub(super) fn drop_setup_slot(&mut self, c: u32) {
        if self.connection(c).is_lasting() {
            // It may be needed again.
            return;
        }
        let slot = core::mem::replace(&mut self.connection(c).setup_slot, NONE);
        if slot != NONE {
            self.free_slot(slot);
        }
    }

    /// Leaves the old nexus; a silent connection closes there by FIN, as the server does.
    pub(super) fn say_goodbye(&mut self, c: u32, old: u32) {
        let s = self.connection(c).session;
        let peer_session = self.connection(c).peer_session;
        // It is off the old one before that can end, which would end what is on it.
        self.detach_nexus(c);
        if let Ok(silent) = self.take_connection() {
            self.attach_nexus(silent, old);
            self.attach_session(silent, s);
            let row = self.connection(silent);
            row.silent = true;
            row.peer_session = peer_session;
            self.connection_input(silent, ConnectionInput::Moved, Some(Reason::MovedToPortals));
            self.nexus(old).connection_count -= 1;
        } else {
            self.nexus(old).connection_count -= 1;
            if self.nexus(old).connection_count == 0 {
                self.nexus_input(old, nexus::Input::Fail, Some(Reason::Redirected));
            }
        }
    }

    pub(super) fn transport_for(&self, dialect: Dialect) -> Option<TransportId> {
        let has = |t: &super::TransportState| t.known && t.limits.dialect == dialect;
        self.g
            .transports
            .iter()
            .position(has)
            .map(|i| TransportId(i as u8))
    }

    /// CONNECTION_HELLO_REQ at the server.
    pub(crate) fn on_hello(&mut self, n: u32, request: &Request<'_>) -> Result<Keep, Violation> {
        let dest = request.session.dest_session;
        let unknown = Violation::new(What::UnknownSession, 16, dest.into());
        let s = self.find_wire_session(dest).ok_or(unknown)?;
        let session = self.session(s);
        let open = matches!(
            session.state,
            State::Accepted | State::Online | State::Imported
        );
        let welcome = self.session(s).joins_left > 0 || self.is_from_same_host(s, n);
        let earlier = self.connection_on(n, s);
        // A client that was sent away and comes here after all is done with the connection that it
        // was sent away on, so this side need not wait for a repetition of its FIN any more.
        let parted =
            earlier.is_none_or(|c| self.connection(c).state == connection::State::TimeWait);
        if !self.nexus(n).server || !open || !welcome || !parted {
            return Err(unknown);
        }
        let Ok(c) = self.take_connection() else {
            let what = Resource::Connections;
            let reason = Reason::NoResources {
                what,
                need: 1,
                have: 0,
            };
            self.nexus_input(n, nexus::Input::Fail, Some(reason));
            return Ok(Keep::No);
        };
        let session = self.session(s);
        session.joins_left = session.joins_left.saturating_sub(1);
        let user = self.session(s).user;
        let idle = self.nexus(n).state == nexus::State::Idle;
        self.attach_nexus(c, n);
        self.attach_session(c, s);
        let row = self.connection(c);
        row.user = user;
        row.setup_rtid = request.head.ltid;
        self.session_input(s, Input::Hello);
        self.connection_input(c, ConnectionInput::Hello, None);
        if let Some(earlier) = earlier {
            let reason = self.connection(earlier).reason;
            self.connection_input(earlier, ConnectionInput::Deadline, Some(reason));
        }
        if idle {
            self.nexus_input(n, nexus::Input::Used, None);
        }
        if self.not_stopping().is_err() {
            self.connection_input(c, ConnectionInput::Close, Some(Reason::Shutdown));
        }
        Ok(Keep::No)
    }

    /// Whether a transport connection comes from where a connection of the session does. A client
    /// may open more of them without having been told to; a stranger may not.
    fn is_from_same_host(&mut self, s: u32, n: u32) -> bool {
        let host = self.nexus(n).peer.ip();
        let mut c = self.session(s).connections;
        while c != NONE {
            let row = self.connection(c);
            let (other, next) = (row.nexus, row.session_next);
            if other != NONE && self.nexus(other).peer.ip() == host {
                return true;
            }
            c = next;
        }
        false
    }

    /// A session by its id on the wire: one of ours, or one that came as a ticket.
    pub(crate) fn find_wire_session(&mut self, id: u32) -> Option<u32> {
        let (endpoint, index) = tid::split_session(id);
        let t = self.s.tables();
        let here = |s: &Session| s.own_id == id && s.state != State::Vacant;
        if endpoint == self.g.config.endpoint {
            return t
                .sessions
                .get(index as usize)
                .filter(|s| here(s))
                .map(|_| index);
        }
        t.sessions.iter().position(here).map(|s| s as u32)
    }

    /// Makes a ticket of a session, with which another endpoint can serve or join it.
    ///
    /// # Errors
    /// `Unknown`, or `WrongState` before the session is accepted.
    pub fn export_session(
        &mut self,
        session: SessionId,
        joins: u16,
        expires: Instant,
    ) -> Result<SessionTicket, CommandError> {
        recorded!(self, ExportSession { session, joins, expires } => self.export_session(session, joins, expires));
        let s = self.find_session(session)?;
        let row = self.session(s);
        let known = match row.state {
            State::Requested => !row.client,
            State::Accepted | State::Online | State::Imported => true,
            _ => false,
        };
        if !known {
            return Err(CommandError::WrongState("the session has no peer yet"));
        }
        Ok(SessionTicket {
            own_id: row.own_id,
            peer_id: row.peer_id,
            client: row.client,
            peer_depth_messages: row.peer_depth_messages,
            peer_depth_bytes: row.peer_depth_bytes,
            joins,
            expires,
        })
    }

    /// Takes a ticket: connections of that session may come here (server) or start here
    /// (client, with [`join`](Self::join)). `user` comes back in the events of connections that
    /// come.
    ///
    /// # Errors
    /// `Full`, or `BadValue` for an expired ticket or one of a session that is here already.
    pub fn import_session(
        &mut self,
        now: Instant,
        ticket: &SessionTicket,
        user: u64,
    ) -> Result<SessionId, CommandError> {
        recorded!(self, ImportSession { now, ticket: *ticket, user } => self.import_session(now, ticket, user));
        self.set_now(now);
        self.not_stopping()?;
        if ticket.expires <= self.g.now {
            return Err(CommandError::BadValue("ticket is expired"));
        }
        if self.find_wire_session(ticket.own_id).is_some() {
            return Err(CommandError::BadValue("session is here already"));
        }
        let s = self
            .take_session_row()
            .ok_or(CommandError::Full(Resource::Sessions))?;
        let row = self.session(s);
        row.own_id = ticket.own_id;
        row.peer_id = ticket.peer_id;
        row.client = ticket.client;
        row.peer_depth_messages = ticket.peer_depth_messages;
        row.peer_depth_bytes = ticket.peer_depth_bytes;
        row.joins_left = ticket.joins;
        row.user = user;
        self.session_input(s, Input::Import);
        self.arm(Timer::Session(s), ticket.expires);
        Ok(self.session_id(s))
    }

    /// Opens one more connection of a session at one of its portals.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `WrongState` when the session is not online or imported as
    /// a client's; `BadValue` with [`reconnect`](ConnectOptions::reconnect), as what is made anew has
    /// a session of its own, and with [`only_with`](ConnectOptions::only_with).
    pub fn join(
        &mut self,
        now: Instant,
        session: SessionId,
        transport: TransportId,
        portal: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<ConnectionId, CommandError> {
        recorded!(self, Join { now, session, transport, portal, options: *options } => self.join(now, session, transport, portal, options));
        self.set_now(now);
        self.not_stopping()?;
        if options.reconnect.is_some() {
            return Err(CommandError::BadValue("reconnect of a joined connection"));
        }
        if options.only_with.is_some() {
            return Err(CommandError::BadValue("only_with of a joined connection"));
        }
        let s = self.find_session(session)?;
        let row = self.session(s);
        if !row.client || !matches!(row.state, State::Online | State::Imported) {
            return Err(CommandError::WrongState("not an open session of a client"));
        }
        if row.state == State::Imported && row.joins_left == 0 {
            return Err(CommandError::BadValue("ticket allows no more connections"));
        }
        let c = self.open_connection(s, transport, portal, options)?;
        self.session(s).joins_left = self.session(s).joins_left.saturating_sub(1);
        let row = self.connection(c);
        row.joining = true;
        self.attach_session(c, s);
        self.session_input(s, Input::Join);
        self.connection_input(c, ConnectionInput::Open, None);
        self.up_if_online(c);
        Ok(self.connection_id(c))
    }
}
