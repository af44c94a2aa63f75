//! Portals of an answer to a session's setup: all are told to the user, and tried one after the
//! other (PROTOCOL.md 7.2).
//!
//! The answer stays in its receive slot meanwhile, as their texts are needed again: a redirected
//! client asks with the portal as its URI.

use core::net::SocketAddr;

use super::Endpoint;
use super::session::Keep;
use crate::config::ConnectOptions;
use crate::entries::{Awaited, Connection, ConnectionEvents, Frames, Portal, Task, TaskFlags};
use crate::error::{CommandError, Reason, Resource, Step};
use crate::event::Event;
use crate::ids::{ConnectionId, NONE, TransportId};
use crate::inputs::recorded;
use crate::memory::{SlotId, Slots, Span};
use crate::state::connection::{Input, State};
use crate::state::task;
use crate::storage::Storage;
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{
    Dialect, Framing, Kind, Portals, Response, SessionSetupRequest, SessionSetupResponse, portals,
};

impl Connection {
    /// Bytes that the session's setup has, with the URI of the portal that is tried.
    pub(crate) fn setup_bytes(&self) -> usize {
        let own = usize::from(self.setup_len);
        match self.portal_len {
            0 => own,
            len => own - usize::from(self.uri_len) + usize::from(len),
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The connection goes on elsewhere; a silent one says goodbye where it was. Returns whether the
    /// answer's slot is kept.
    pub(crate) fn go_to_portals(
        &mut self,
        c: u32,
        slot: u32,
        response: &Response<'_>,
        list: Portals<'_>,
        kept: Keep,
    ) -> Keep {
        let old = self.connection(c).nexus;
        let leaving = self.connection(c).state == State::Leaving;
        let joining = matches!(
            response.session_setup(),
            Ok(SessionSetupResponse::Accept { .. })
        );
        self.connection_input(c, Input::Moved, None);
        if leaving {
            return kept;
        }
        self.disarm(Timer::Connection(c));
        self.say_goodbye(c, old);
        self.hold_portals(c, slot, kept);
        let len: usize = list.iter().map(|text| 2 + text.len()).sum();
        // Behind what every answer has, and the fixed part of this one.
        let at = response.header_at + 6 + if joining { 24 } else { 4 };
        let dual = self.nexus(old).framing != Framing::TcpSingle;
        let row = self.connection(c);
        row.joining = joining;
        row.dual_stream = dual;
        (row.portals_slot, row.portals_at, row.portals_len) = (slot, at, len as u16);
        (row.portals, row.unresolved) = (list.len() as u16, 0);
        if joining {
            self.drop_setup_slot(c);
        }
        self.connection_event(c, ConnectionEvents::PORTALS);
        self.task(slot).serial = 0;
        for (index, text) in list.iter().enumerate() {
            match parse_portal(text) {
                Some((dialect, peer)) => self.remember_portal(c, index, text, dialect, peer),
                None => self.connection(c).unresolved += u16::from(has_name(text)),
            }
        }
        if !self.try_next_portal(c) {
            self.lose(c, Input::Lost, Reason::AddressError(-1));
        }
        Keep::Yes
    }

    fn remember_portal(
        &mut self,
        c: u32,
        index: usize,
        text: &[u8],
        dialect: Dialect,
        peer: SocketAddr,
    ) {
        let Some(TransportId(transport)) = self.transport_for(dialect) else {
            return;
        };
        let portal = Portal {
            peer,
            transport,
            index: index as u16,
            len: text.len() as u16,
        };
        // Those beyond the first few are told to the user, who can name them later.
        let slot = self.connection(c).portals_slot;
        let row = self.task(slot);
        let mut portals = row.portals();
        if portals.try_push(portal).is_ok() {
            row.set_portals(&portals);
        }
    }

    /// The answer's slot stays, whoever else has it.
    fn hold_portals(&mut self, c: u32, slot: u32, kept: Keep) {
        let before = core::mem::replace(&mut self.connection(c).portals_slot, NONE);
        self.let_go_of_portals(before);
        if kept == Keep::No {
            let t = self.s.tables();
            let row = &mut t.tasks[slot as usize];
            *row = Task {
                generation: row.generation,
                ..Task::VACANT
            };
            row.kind = Kind::SessionSetupRsp;
            row.flags = TaskFlags::INCOMING | TaskFlags::ORPHAN;
            self.task_input(slot, task::Input::Arrive);
            self.task_input(slot, task::Input::Release);
            self.uncount_slot(slot);
        }
        self.task(slot).flags.insert(TaskFlags::PORTALS);
    }

    fn let_go_of_portals(&mut self, slot: u32) {
        if slot != NONE {
            self.task(slot).flags.remove(TaskFlags::PORTALS);
            self.try_free(slot);
        }
    }

    /// The portals are not needed any more, once the user has heard of them.
    pub(crate) fn drop_portals(&mut self, c: u32) {
        let row = self.connection(c);
        if !row.events.contains(ConnectionEvents::PORTALS) {
            let slot = core::mem::replace(&mut row.portals_slot, NONE);
            self.let_go_of_portals(slot);
        }
    }

    pub(crate) fn portals_event(&mut self, c: u32) -> Event {
        let connection = self.connection_id(c);
        let row = self.connection(c);
        row.events.remove(ConnectionEvents::PORTALS);
        let list = Span {
            slot: row.portals_slot,
            offset: row.portals_at.into(),
            len: row.portals_len.into(),
        };
        let (user, count, unresolved) = (row.user, row.portals, row.unresolved);
        // A client that leaves before its setup is sent there still names the portal in it.
        if !tries(row.state) && !row.frames.contains(Frames::SETUP_REQ) {
            self.drop_portals(c);
        }
        Event::Portals {
            connection,
            user,
            list,
            count,
            unresolved,
        }
    }

    /// A client whose server named portals goes on at the next, as the last failed. False: there is
    /// none (left).
    pub(crate) fn try_next_portal(&mut self, c: u32) -> bool {
        let row = self.connection(c);
        if row.portals_slot == NONE || !tries(row.state) {
            return false;
        }
        let slot = row.portals_slot;
        self.leave_portal(c);
        loop {
            let row = self.task(slot);
            let mut portals = row.portals();
            let Some(portal) = portals.pop_at(0) else {
                break;
            };
            row.set_portals(&portals);
            if self.try_portal(c, &portal) {
                return true;
            }
        }
        if self.connection(c).unresolved == 0 {
            return false;
        }
        // The user may know where those with names are.
        let timeout = self.g.config.setup_timeout;
        self.arm_after(Timer::Connection(c), timeout);
        true
    }

    /// Leaves the transport connection to a portal that failed.
    fn leave_portal(&mut self, c: u32) {
        self.disarm(Timer::Connection(c));
        self.connection_input(c, Input::NextPortal, None);
        let row = self.connection(c);
        let (n, awaits) = (row.nexus, !row.awaited.is_empty());
        row.frames.remove(Frames::SETUP_REQ | Frames::HELLO_REQ);
        row.awaited = Awaited::empty();
        if n == NONE {
            return;
        }
        self.nexus(n).late_allowed |= awaits;
        self.nexus(n).connection_count -= 1;
        self.detach_nexus(c);
        self.unused_if_empty(n);
        if awaits {
            // It may say yes yet, to nobody.
            self.end_unused(n, Reason::TimedOut(Step::SessionSetup));
        }
    }

    fn try_portal(&mut self, c: u32, portal: &Portal) -> bool {
        let row = self.connection(c);
        let (s, joining) = (row.session, row.joining);
        let options = ConnectOptions {
            dual_stream: row.dual_stream,
            ..ConnectOptions::new(0)
        };
        row.portal = portal.index;
        row.portal_len = if joining { 0 } else { portal.len };
        let transport = TransportId(portal.transport);
        let framing = self.framing(transport, &options);
        let shared = self.find_shared(s, transport, portal.peer, framing, &options);
        let Some(n) = shared.or_else(|| self.open_nexus(transport, portal.peer, &options).ok())
        else {
            return false;
        };
        self.attach_nexus(c, n);
        self.up_if_online(c);
        true
    }

    /// Says where a portal with a host name is, or one beyond the first four: `index` is its place in
    /// the list of [`Event::Portals`]. It is tried when those before it have failed.
    ///
    /// # Errors
    /// `Unknown`; `WrongState` when the connection does not look for a portal (any more); `BadValue`
    /// for an index beyond the list; `BadAddress` for a scheme that no transport speaks; `Full` when
    /// four portals are waiting to be tried, or there is no row for a transport connection.
    pub fn resolve_portal(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        index: u16,
        peer: SocketAddr,
        slots: &mut impl Slots,
    ) -> Result<(), CommandError> {
        recorded!(self, ResolvePortal { now, connection, index, peer } => self.resolve_portal(now, connection, index, peer, slots));
        self.set_now(now);
        let c = self.find_connection(connection)?;
        let row = self.connection(c);
        if row.portals_slot == NONE || !tries(row.state) {
            return Err(CommandError::WrongState("no portal is looked for"));
        }
        let (slot, waits) = (row.portals_slot, row.nexus == NONE);
        let list = Span {
            slot: row.portals_slot,
            offset: row.portals_at.into(),
            len: row.portals_len.into(),
        };
        let list = list.of(slots.slot(SlotId(list.slot)));
        let Some(text) = portals(list).nth(index.into()) else {
            return Err(CommandError::BadValue("portal beyond the list"));
        };
        let dialect = scheme(text).map(|(dialect, _)| dialect);
        let known = dialect.is_some_and(|dialect| self.transport_for(dialect).is_some());
        let (Some(dialect), true) = (dialect, known && peer.port() != 0) else {
            return Err(CommandError::BadAddress);
        };
        if self.task(slot).portals().is_full() {
            return Err(CommandError::Full(Resource::Queue));
        }
        let named = u16::from(parse_portal(text).is_none());
        self.remember_portal(c, index.into(), text, dialect, peer);
        let row = self.connection(c);
        row.unresolved = row.unresolved.saturating_sub(named);
        if waits && !self.try_next_portal(c) {
            let timeout = self.g.config.setup_timeout;
            self.arm_after(Timer::Connection(c), timeout);
            return Err(CommandError::Full(Resource::Nexuses));
        }
        Ok(())
    }

    /// Writes a session's setup into a frame's slot: as the user gave it, or with the portal that it
    /// was redirected to as its URI, as libxio does.
    pub(crate) fn write_setup(
        &mut self,
        c: u32,
        setup: &[u8],
        slot: u32,
        slots: &mut impl Slots,
    ) -> usize {
        let at = self.g.config.headroom();
        let row = self.connection(c);
        let (s, tried) = (row.session, row.portal_len > 0);
        let Ok(old) = SessionSetupRequest::parse(setup) else {
            unreachable!("our own setup request parses");
        };
        // Another than the first if the connection is made anew.
        let session_id = self.session(s).own_id;
        let old = SessionSetupRequest { session_id, ..old };
        let row = self.connection(c);
        if !tried {
            let Ok(len) = old.encode(&mut slots.slot_mut(SlotId(slot))[at..]) else {
                unreachable!("its length was checked before");
            };
            return len;
        }
        let list = Span {
            slot: row.portals_slot,
            offset: row.portals_at.into(),
            len: row.portals_len.into(),
        };
        let mut uri = [0; crate::wire::SETUP_PAYLOAD_MAX];
        let list = list.of(slots.slot(SlotId(list.slot)));
        let text = portals(list).nth(row.portal.into()).unwrap_or(&[]);
        let uri = &mut uri[..text.len()];
        uri.copy_from_slice(text);
        let new = SessionSetupRequest { uri, ..old };
        let Ok(len) = new.encode(&mut slots.slot_mut(SlotId(slot))[at..]) else {
            unreachable!("its length was checked before");
        };
        len
    }
}

/// Whether a client in this state may still go to another portal.
fn tries(state: State) -> bool {
    matches!(state, State::Opening | State::SetupSent | State::HelloSent)
}

/// A portal's dialect and what follows.
fn scheme(portal: &[u8]) -> Option<(Dialect, &str)> {
    let text = core::str::from_utf8(portal).ok()?.trim_end_matches('\0');
    let (scheme, rest) = text.split_once("://")?;
    let dialect = match scheme {
        "rdma" => Dialect::Rdma,
        "tcp" => Dialect::Tcp,
        _ => return None,
    };
    Some((dialect, rest))
}

/// `scheme://address:port[/resource]` with a numeric address.
fn parse_portal(portal: &[u8]) -> Option<(Dialect, SocketAddr)> {
    let (dialect, rest) = scheme(portal)?;
    let authority = rest.split('/').next()?;
    authority.parse().ok().map(|peer| (dialect, peer))
}

/// Whether it is one whose host somebody may be able to resolve.
fn has_name(portal: &[u8]) -> bool {
    scheme(portal).is_some_and(|(_, rest)| !rest.is_empty())
}
