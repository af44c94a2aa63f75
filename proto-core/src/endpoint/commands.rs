//! What users call about listeners, sessions and connections. Messages are in `send`.

use core::net::SocketAddr;

use super::Endpoint;
use super::crossing::FIRST_RACE;
use crate::config::{ConnectOptions, ListenOptions};
use crate::entries::{Connection, Cross, Frames, Listener, Past, Session, SlotUse};
use crate::error::{CommandError, Length, Reason, Refusal, Resource};
use crate::ids::{ConnectionId, ListenerId, NONE, SessionId, TransportId};
use crate::inputs::recorded;
use crate::memory::{SlotId, Slots};
use crate::output::Control;
use crate::state::connection::{self, Input};
use crate::state::{nexus, session};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::tid;
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::{Portals, SessionSetupRequest, SessionSetupResponse, TooLong, status};

/// Of a control frame: 16 bytes, session header, and the longest transport header.
const HEADERS: u32 = 16 + 40 + 44;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Listens on an address of a transport.
    ///
    /// # Errors
    /// `Full` when the table of listeners is full. A failure of the driver comes as
    /// [`Event::ListenFailed`](crate::Event::ListenFailed).
    pub fn listen(
        &mut self,
        transport: TransportId,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<ListenerId, CommandError> {
        recorded!(self, Listen { transport, address, options: *options } => self.listen(transport, address, options));
        self.not_stopping()?;
        self.known_transport(transport)?;
        let t = self.s.tables();
        let l = self
            .g
            .listeners
            .take(t.listeners)
            .ok_or(CommandError::Full(Resource::Listeners))?;
        let row = &mut t.listeners[l as usize];
        *row = Listener {
            generation: row.generation,
            live: true,
            due_listen: true,
            transport: transport.0,
            address,
            backlog: options.backlog,
            user: options.user,
            ..Listener::VACANT
        };
        let id = ListenerId::new(l, row.generation);
        self.g.listeners_due = true;
        Ok(id)
    }

    /// Stops listening; what was accepted lives on. A failure that was not heard yet is not heard
    /// any more.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn unlisten(&mut self, listener: ListenerId) -> Result<(), CommandError> {
        recorded!(self, Unlisten { listener } => self.unlisten(listener));
        match self.end_listener(listener) {
            true => Ok(()),
            false => Err(CommandError::Unknown),
        }
    }

    /// Whether it was one that listened.
    pub(crate) fn end_listener(&mut self, listener: ListenerId) -> bool {
        let rows = self.s.tables().listeners;
        let row = rows.get_mut(listener.index());
        let Some(l) = row.filter(|l| l.live && l.generation == listener.generation()) else {
            return false;
        };
        l.live = false;
        if l.failed.take().is_some() {
            // The driver has nothing to take back, and the user no longer cares.
            self.g.listeners.give(rows, listener.at());
            self.one_less();
        } else {
            l.due_unlisten = true;
            self.g.listeners_due = true;
        }
        true
    }

    /// Turns away who comes to a listener from now on, and says why; `None` takes them again. A peer
    /// of this kind hears it as [`Reason::TurnedAway`], others get a status. What was accepted, and
    /// what is being set up, goes on.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn turn_away(
        &mut self,
        listener: ListenerId,
        refusal: Option<Refusal>,
    ) -> Result<(), CommandError> {
        recorded!(self, TurnAway { listener, refusal } => self.turn_away(listener, refusal));
        let row = self.s.tables().listeners.get_mut(listener.index());
        let row = row.filter(|l| l.live && l.generation == listener.generation());
        row.ok_or(CommandError::Unknown)?.turns_away = refusal;
        Ok(())
    }

    pub(crate) fn poll_listeners(&mut self, transport: TransportId) -> Option<Control> {
        if !self.g.listeners_due {
            return None;
        }
        let t = self.s.tables();
        for (index, l) in t.listeners.iter_mut().enumerate() {
            if l.transport != transport.0 {
                continue;
            }
            let listener = ListenerId::new(index as u32, l.generation);
            if core::mem::take(&mut l.due_listen) && l.live {
                return Some(Control::Listen {
                    listener,
                    address: l.address,
                    backlog: l.backlog,
                });
            }
            if core::mem::take(&mut l.due_unlisten) {
                self.g.listeners.give(t.listeners, index as u32);
                self.one_less();
                return Some(Control::Unlisten { listener });
            }
        }
        self.g.listeners_due = t
            .listeners
            .iter()
            .any(|l| (l.due_listen && l.live) || l.due_unlisten);
        None
    }

    pub(crate) fn known_transport(&self, transport: TransportId) -> Result<(), CommandError> {
        match self.g.transports.get(transport.0 as usize) {
            Some(state) if state.known => Ok(()),
            _ => Err(CommandError::BadValue("transport was never added")),
        }
    }

    /// Opens a session with the server at `peer` and a first connection in it.
    ///
    /// Its outcome is `Established` or `ConnectFailed`, and later exactly one `Closed`. Messages
    /// may be sent at once; they leave when the connection is established.
    ///
    /// # Errors
    /// `Full` for the table that is full, `BadValue` for delays of
    /// [`reconnect`](ConnectOptions::reconnect) that are zero or the wrong way round, or for
    /// [`only_with`](ConnectOptions::only_with) without an identity of either side's, without the
    /// extension CROSS or with `reconnect`, `Exists` when one with that peer is there, `TooLong` when
    /// URI and private data do not fit one frame. When only the peer's answer shows that they do not, the outcome is `ConnectFailed`
    /// with [`Reason::SetupTooLong`].
    pub fn connect(
        &mut self,
        now: Instant,
        transport: TransportId,
        peer: SocketAddr,
        setup: &SessionOpen<'_>,
        options: &ConnectOptions,
        slots: &mut impl Slots,
    ) -> Result<ConnectionId, CommandError> {
        recorded!(self, Connect { now, transport, peer, setup: *setup, options: *options } => self.connect(now, transport, peer, setup, options, slots));
        self.set_now(now);
        self.not_stopping()?;
        self.known_transport(transport)?;
        if peer.port() == 0 {
            return Err(CommandError::BadAddress);
        }
        if options.reconnect.is_some_and(|again| !again.is_possible()) {
            return Err(CommandError::BadValue("delays of reconnect"));
        }
        let remembers = options.reconnect.is_some() || options.only_with.is_some();
        if remembers && self.g.tasks.free() == 0 {
            return Err(CommandError::Full(Resource::Tasks));
        }
        self.may_be_only(options)?;
        let s = self.take_session()?;
        let shared = self.shared_with(s, transport, peer, options);
        let room = self.setup_room(shared.unwrap_or(NONE)) - self.more_in_answer(options);
        let slot = match self.setup_request(s, room, setup, slots) {
            Ok(slot) => slot,
            Err(error) => {
                self.give_session(s);
                return Err(error);
            }
        };
        let opened = self.open_connection(s, transport, peer, options);
        let c = match opened {
            Ok(c) => c,
            Err(error) => {
                self.free_slot(slot.0);
                self.give_session(s);
                return Err(error);
            }
        };
        self.keep_for_retry(c, transport, peer, options);
        let row = self.connection(c);
        row.setup_slot = slot.0;
        row.setup_len = slot.1;
        row.uri_len = setup.uri.len() as u16;
        if let Some(only) = options.only_with {
            self.know(c, only, FIRST_RACE, false);
        }
        let session = self.session(s);
        session.client = true;
        session.user = options.user;
        self.session_input(s, session::Input::Connect);
        self.attach_session(c, s);
        self.connection_input(c, Input::Open, None);
        self.up_if_online(c);
        Ok(self.connection_id(c))
    }

    /// Takes a connection row and a shared or new nexus for it.
    pub(crate) fn open_connection(
        &mut self,
        s: u32,
        transport: TransportId,
        peer: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<u32, CommandError> {
        let c = self.take_connection()?;
        let n = match self.shared_with(s, transport, peer, options) {
            Some(n) => {
                self.trace.mark("nexus shared");
                n
            }
            None => match self.open_nexus(transport, peer, options) {
                Ok(n) => n,
                Err(error) => {
                    self.give_connection(c);
                    return Err(error);
                }
            },
        };
        let row = self.connection(c);
        row.user = options.user;
        row.client = true;
        row.session = s;
        self.attach_nexus(c, n);
        Ok(c)
    }

    /// The nexus that a new connection of a session shares, if there is one.
    pub(crate) fn shared_with(
        &mut self,
        s: u32,
        transport: TransportId,
        peer: SocketAddr,
        options: &ConnectOptions,
    ) -> Option<u32> {
        if options.own_nexus {
            return None;
        }
        let framing = self.framing(transport, options);
        self.find_shared(s, transport, peer, framing, options)
    }

    /// Bytes that a session's setup or its answer may have: all headers count against the frame,
    /// which is this side's own largest until the peer's is known.
    pub(crate) fn setup_room(&mut self, n: u32) -> usize {
        let own = self.g.config.buffer_size;
        let nexuses = self.s.tables().nexuses;
        let frame_max = nexuses.get(n as usize).map_or(own, |row| row.frame_max);
        frame_max.saturating_sub(HEADERS) as usize
    }

    /// A connection on a nexus that is up already need not wait.
    pub(crate) fn up_if_online(&mut self, c: u32) {
        let n = self.connection(c).nexus;
        match self.nexus(n).state {
            nexus::State::Idle => {
                self.nexus_input(n, nexus::Input::Used, None);
                self.connection_up(c);
            }
            nexus::State::Online => self.connection_up(c),
            _ => {}
        }
    }

    fn setup_request(
        &mut self,
        s: u32,
        room: usize,
        setup: &SessionOpen<'_>,
        slots: &mut impl Slots,
    ) -> Result<(u32, u16), CommandError> {
        let payload = SessionSetupRequest {
            session_id: self.session(s).own_id,
            snd_bytes: self.g.config.queue_bytes,
            rcv_bytes: self.g.config.depth_bytes,
            snd_msgs: self.g.config.queue_depth(),
            rcv_msgs: self.g.config.depth_messages,
            uri: setup.uri.as_bytes(),
            private: setup.private,
        };
        self.with_setup_slot(false, room, slots, |buf| payload.encode(buf))
    }

    /// Takes a slot and has a session payload written behind its headroom.
    pub(crate) fn with_setup_slot(
        &mut self,
        answer: bool,
        room: usize,
        slots: &mut impl Slots,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, TooLong>,
    ) -> Result<(u32, u16), CommandError> {
        // An answer to a session is the protocol's business: it must not wait for messages.
        let slot = self.take_slot(NONE, answer, SlotUse::Taken)?;
        let at = self.g.config.headroom();
        let bytes = slots.slot_mut(SlotId(slot));
        let end = bytes.len().min(at + room);
        match encode(&mut bytes[at..end]) {
            Ok(len) => Ok((slot, len as u16)),
            Err(TooLong { len, max }) => {
                self.free_slot(slot);
                let (len, max) = (len as u64, max as u64);
                Err(CommandError::TooLong {
                    what: Length::Setup,
                    len,
                    max,
                })
            }
        }
    }

    /// Accepts a session. Without portals its connection is ready at once and `user` comes back
    /// in its events; with portals the client is sent there, and comes with HELLO (PROTOCOL.md
    /// 7.2).
    ///
    /// # Errors
    /// `WrongState` when the session was answered already, `Full` (try again), `TooLong` when
    /// portals and private data do not fit the largest frame negotiated with the peer (try with
    /// less).
    pub fn accept(
        &mut self,
        now: Instant,
        session: SessionId,
        user: u64,
        portals: &[&[u8]],
        private: &[u8],
        slots: &mut impl Slots,
    ) -> Result<ConnectionId, CommandError> {
        recorded!(self, Accept { now, session, user, portals, private } => self.accept(now, session, user, portals, private, slots));
        self.set_now(now);
        let (s, c) = self.asked_session(session)?;
        let payload = SessionSetupResponse::Accept {
            session_id: self.session(s).own_id,
            snd_bytes: self.g.config.queue_bytes,
            rcv_bytes: self.g.config.depth_bytes,
            snd_msgs: self.g.config.queue_depth(),
            rcv_msgs: self.g.config.depth_messages,
            portals: Portals::from_slices(portals),
            private,
        };
        self.answer_session(c, &payload, slots)?;
        self.session(s).user = user;
        self.connection(c).user = user;
        let id = self.connection_id(c);
        if portals.is_empty() {
            self.connection(c).silent = false;
            self.session_input(s, session::Input::Accept);
            self.connection_input(c, Input::Accept, None);
        } else {
            self.session(s).joins_left = u16::MAX;
            self.session_input(s, session::Input::AcceptPortals);
            self.connection_input(c, Input::SentAway, Some(Reason::MovedToPortals));
        }
        Ok(id)
    }

    /// Refuses a session with a reason code and private data, which the client's user gets
    /// (PROTOCOL.md 7.2).
    ///
    /// # Errors
    /// As [`accept`](Self::accept); `BadValue` for [`CROSSED`](crate::wire::status::CROSSED).
    pub fn reject(
        &mut self,
        now: Instant,
        session: SessionId,
        reason: u32,
        private: &[u8],
        slots: &mut impl Slots,
    ) -> Result<(), CommandError> {
        recorded!(self, Reject { now, session, reason, private } => self.reject(now, session, reason, private, slots));
        self.set_now(now);
        let (s, c) = self.asked_session(session)?;
        if reason == status::CROSSED {
            return Err(CommandError::BadValue("the code of a lost race"));
        }
        let session_id = self.session(s).own_id;
        let payload = SessionSetupResponse::Reject {
            session_id,
            reason,
            private,
        };
        self.answer_session(c, &payload, slots)?;
        self.send_away(s, c, session::Input::Reject, Reason::Rejected(reason));
        Ok(())
    }

    /// Sends a session's client to other servers, by preference. A client of this kind tries
    /// them in turn (PROTOCOL.md 7.2).
    ///
    /// # Errors
    /// As [`accept`](Self::accept); `BadValue` without portals.
    pub fn redirect(
        &mut self,
        now: Instant,
        session: SessionId,
        portals: &[&[u8]],
        slots: &mut impl Slots,
    ) -> Result<(), CommandError> {
        recorded!(self, Redirect { now, session, portals } => self.redirect(now, session, portals, slots));
        self.set_now(now);
        if portals.is_empty() {
            return Err(CommandError::BadValue("redirection without portals"));
        }
        let (s, c) = self.asked_session(session)?;
        let payload = SessionSetupResponse::Redirect {
            session_id: self.session(s).own_id,
            portals: Portals::from_slices(portals),
            private: &[],
        };
        self.answer_session(c, &payload, slots)?;
        self.send_away(s, c, session::Input::Redirect, Reason::Redirected);
        Ok(())
    }

    pub(crate) fn send_away(&mut self, s: u32, c: u32, input: session::Input, reason: Reason) {
        self.session_input(s, input);
        self.connection(c).silent = true;
        self.connection_input(c, Input::SentAway, Some(reason));
    }

    /// The session and its connection, if the user still has to decide.
    fn asked_session(&mut self, id: SessionId) -> Result<(u32, u32), CommandError> {
        let s = self.find_session(id)?;
        let session = self.session(s);
        if session.state != session::State::Requested {
            return Err(CommandError::WrongState("session is answered already"));
        }
        let c = session.connections;
        debug_assert_ne!(c, NONE, "a session that asks has its connection");
        if self.connection(c).state != connection::State::Requested {
            return Err(CommandError::WrongState("its client has gone"));
        }
        Ok((s, c))
    }

    pub(crate) fn answer_session(
        &mut self,
        c: u32,
        payload: &SessionSetupResponse<'_>,
        slots: &mut impl Slots,
    ) -> Result<(), CommandError> {
        let n = self.connection(c).nexus;
        let room = self.setup_room(n);
        let (slot, len) = self.with_setup_slot(true, room, slots, |buf| payload.encode(buf))?;
        let row = self.connection(c);
        row.setup_slot = slot;
        row.setup_len = len;
        row.frames.insert(Frames::SETUP_RSP);
        let s = row.session;
        let request = core::mem::replace(&mut self.session(s).request, NONE);
        if request != NONE {
            self.drop_incoming(request);
        }
        self.mark_tx(c);
        Ok(())
    }

    /// Closes a connection: what is queued is sent, then FIN (PROTOCOL.md 8.2). Its last event is
    /// `Closed`.
    ///
    /// # Errors
    /// `Unknown`; closing twice is no error and changes nothing.
    pub fn close(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CommandError> {
        recorded!(self, Close { now, connection } => self.close(now, connection));
        self.set_now(now);
        let c = self.find_connection(connection)?;
        self.connection_input(c, Input::Close, Some(Reason::Closed));
        Ok(())
    }

    /// Ends a connection at once, without FIN; the transport connection goes too when it has no
    /// other. Its last event is `Closed`.
    ///
    /// # Errors
    /// `Unknown`; aborting what is over already changes nothing.
    pub fn abort(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CommandError> {
        recorded!(self, Abort { now, connection } => self.abort(now, connection));
        self.set_now(now);
        let c = self.find_connection(connection)?;
        let n = self.connection(c).nexus;
        self.connection_input(c, Input::Abort, Some(Reason::Aborted));
        if n != NONE {
            self.end_unused(n, Reason::Aborted);
        }
        Ok(())
    }

    fn take_session(&mut self) -> Result<u32, CommandError> {
        self.take_session_row()
            .ok_or(CommandError::Full(Resource::Sessions))
    }

    pub(crate) fn take_session_row(&mut self) -> Option<u32> {
        let t = self.s.tables();
        let s = match self.g.sessions.take(t.sessions) {
            Some(s) => s,
            None if self.g.past_sessions.is_empty() => return None,
            None => {
                // The life that is longest over is forgotten.
                self.g.sessions.count_taken();
                let q = &mut self.g.past_sessions;
                queue_pop!(t.sessions, q.head, q.tail, next_free)
            }
        };
        let row = &mut t.sessions[s as usize];
        let own_id = tid::of_session(self.g.config.endpoint, s, row.generation);
        *row = Session {
            generation: row.generation,
            own_id,
            ..Session::VACANT
        };
        Some(s)
    }

    pub(crate) fn give_session(&mut self, s: u32) {
        self.disarm(crate::timer::Timer::Session(s));
        let t = self.s.tables();
        let row = &mut t.sessions[s as usize];
        row.state = session::State::Vacant;
        if row.past.is_life() {
            self.g.sessions.count_given(row);
            let q = &mut self.g.past_sessions;
            queue_push!(t.sessions, q.head, q.tail, next_free, s);
        } else {
            row.past = Past::NONE;
            self.g.sessions.give(t.sessions, s);
        }
        self.one_less();
    }

    pub(crate) fn take_connection(&mut self) -> Result<u32, CommandError> {
        let t = self.s.tables();
        let c = self
            .g
            .connections
            .take(t.connections)
            .ok_or(CommandError::Full(Resource::Connections))?;
        let row = &mut t.connections[c as usize];
        *row = Connection {
            generation: row.generation,
            policy: self.g.config.policy,
            cross: Cross {
                bucket: row.cross.bucket,
                ..Cross::NONE
            },
            ..Connection::VACANT
        };
        Ok(c)
    }

    pub(crate) fn give_connection(&mut self, c: u32) {
        self.unknow(c);
        let t = self.s.tables();
        debug_assert_eq!(t.connections[c as usize].tasks, NONE);
        t.connections[c as usize].state = connection::State::Vacant;
        self.g.connections.give(t.connections, c);
        self.one_less();
    }
}

/// What a client says when it opens a session.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionOpen<'a> {
    /// URI of the server's resource, `rdma://host:port/resource` or `tcp://...`.
    pub uri: &'a str,
    /// Private data for the server's user.
    pub private: &'a [u8],
}
