//! Sessions: what a server does with one, tickets, and connections that join.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use xio_proto::wire::{Extensions, portals};
use xio_proto::{
    CommandError, ConnectOptions, SessionId, SessionOpen, SessionTicket, SlotId, Slots,
};
use xio_proto::{Data, Span};

use super::plan::{Closing, Errand, Wish};
use super::post::Letter;
use super::{Actor, Hints};
use crate::check::Fact;
use crate::driver::{Core, Desk, Over};

/// A session that its server has not answered.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    session: SessionId,
    /// The client's side.
    side: u32,
    hints: Hints,
    wish: Wish,
    /// Endpoints that sent the client on.
    hops: u32,
    client: IpAddr,
    over: Over,
    /// It is looked at again no earlier, in nanoseconds.
    at: u64,
    /// Who was asked to be its portal.
    host: Host,
}

impl Asked {
    pub(super) fn is(&self, session: SessionId) -> bool {
        self.session == session
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Host {
    Nobody,
    Asked,
    There(SocketAddr),
}

/// What a connection is made over, in the words of URIs.
const fn scheme(over: Over) -> &'static str {
    match over {
        Over::Rdma => "rdma",
        Over::TwoStreams | Over::OneStream => "tcp",
    }
}

/// What a server says to a client that it accepts.
const WELCOME: &[u8] = b"welcome";

/// Why a server rejects a client: whatever it is, the client must get to hear it.
fn rejection(side: u32) -> (u32, [u8; 8]) {
    (1000 + side, u64::from(side).to_be_bytes())
}

const TICKET_TIME: Duration = Duration::from_secs(5);

impl Actor {
    /// Private data of a client, from which the server knows what it has to do.
    fn private_of(side: u32, errand: &Errand) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&side.to_le_bytes());
        bytes[4] = u8::from(Hints::of(errand).closes);
        bytes[5] = errand.wish as u8;
        bytes[6..].copy_from_slice(&errand.back.to_le_bytes());
        bytes
    }

    pub(super) fn run_errand(&mut self, core: &mut Core, desk: &mut Desk<'_>, errand: &Errand) {
        let Some(transport) = desk.transport(errand.over) else {
            return self.sense(desk, format!("no transport for {:?}", errand.over));
        };
        let side = match errand.call {
            // The peer called first, or it is over already.
            Some(call) if !desk.ledger.may_begin(call.side) => return,
            Some(_) if !core.config().extensions.contains(Extensions::CROSS) => return,
            Some(call) => call.side,
            None => {
                let connection = desk.ledger.number_connection();
                self.post.borrow_mut().belongs(connection, connection);
                2 * connection
            }
        };
        let line = self.open(Some(side), Some(errand));
        let bytes = Self::private_of(side, errand);
        let uri = format!("{}://{}/0", scheme(errand.over), errand.peer);
        let open = SessionOpen {
            uri: &uri,
            private: &bytes,
        };
        let mut options = ConnectOptions::new(line.into());
        options.own_nexus = errand.own;
        options.dual_stream = errand.over == Over::TwoStreams;
        options.reconnect = errand.again;
        options.only_with = errand.call.map(|call| call.peer);
        let slots = &mut desk.env.memory[desk.number as usize];
        match core.connect(desk.now, transport, errand.peer, &open, &options, slots) {
            Ok(id) => self.opened(core, desk, line, id),
            Err(CommandError::Full(_)) => {
                self.lines.pop();
                let mut again = *errand;
                again.at = desk.env.now() + 10_000_000;
                self.errands.push_back(again);
                self.wake(desk, again.at);
            }
            // One call at a time; what the peer asks for is answered soon.
            Err(CommandError::Exists(_)) if errand.call.is_some() => {
                self.lines.pop();
            }
            Err(error) => {
                self.lines.pop();
                self.sense(desk, format!("connect was refused: {error}"));
            }
        }
    }

    /// The session is this endpoint's: more connections of it are opened, here and elsewhere.
    pub(super) fn grow(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        line: u32,
        session: SessionId,
    ) {
        let l = &mut self.lines[line as usize];
        l.session = Some(session);
        let (more, away) = (core::mem::take(&mut l.more), core::mem::take(&mut l.away));
        let (Some(id), Some(side)) = (l.id, l.side) else {
            return;
        };
        let errand = Errand {
            messages: l.left / 2 + 1,
            depth: l.depth,
            closing: l.closing,
            back: l.back,
            own: self.rng.flip(),
            patience: l.patience,
            ..Errand::to(SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0), 0)
        };
        if more == 0 && away == 0 {
            return;
        }
        let Ok(info) = core.info(id) else {
            return;
        };
        let peer = info.peer;
        let over = Over::of(info.framing);
        let errand = Errand {
            peer,
            over,
            ..errand
        };
        for _ in 0..more {
            self.join(core, desk, session, side / 2, &errand, None);
        }
        let expires = desk.now.after(TICKET_TIME);
        let Ok(ticket) = core.export_session(session, 1, expires) else {
            return;
        };
        let me = self.address.map(|address| address.ip());
        let but: Vec<_> = me.into_iter().chain([peer.ip()]).collect();
        let others = self.post.borrow().others(over, &but);
        for (to, _) in others.into_iter().take(away.into()) {
            let letter = Letter::Join {
                from: desk.number,
                line,
                ticket,
                root: side / 2,
                errand,
            };
            self.lines[line as usize].pending += 1;
            self.send_letter(desk, to, letter);
            let at = desk.env.now() + TICKET_TIME.as_nanos() as u64;
            self.lines[line as usize].pending_until = at;
            self.wake(desk, at);
        }
    }

    /// Opens one more connection of a session.
    fn join(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        session: SessionId,
        root: u32,
        errand: &Errand,
        asker: Option<(u32, u32)>,
    ) {
        let Some(transport) = desk.transport(errand.over) else {
            return self.sense(desk, format!("no transport for {:?}", errand.over));
        };
        let connection = desk.ledger.number_connection();
        self.post.borrow_mut().belongs(connection, root);
        let line = self.open(Some(2 * connection), Some(errand));
        let mut options = ConnectOptions::new(line.into());
        options.own_nexus = errand.own;
        options.dual_stream = errand.over == Over::TwoStreams;
        match core.join(desk.now, session, transport, errand.peer, &options) {
            Ok(id) => {
                let place = asker.unwrap_or_else(|| {
                    let root = |l: &super::Line| l.side == Some(2 * root);
                    let line = self.lines.iter().position(root).unwrap_or(0) as u32;
                    self.lines[line as usize].pending += 1;
                    self.lines[line as usize].pending_until = u64::MAX;
                    (desk.number, line)
                });
                self.lines[line as usize].asker = Some(place);
                self.opened(core, desk, line, id);
            }
            Err(error) => {
                self.lines.pop();
                if let Some(place) = asker {
                    self.tell_joined(desk, place);
                }
                let told = matches!(
                    error,
                    CommandError::Full(_) | CommandError::WrongState(_) | CommandError::BadValue(_)
                );
                if !told {
                    self.sense(desk, format!("join was refused: {error}"));
                }
            }
        }
    }

    /// Who asked for a connection hears that it need not wait any more.
    pub(super) fn tell_joined(&mut self, desk: &mut Desk<'_>, (number, line): (u32, u32)) {
        self.send_letter(desk, number, Letter::Joined { line });
    }

    fn send_letter(&mut self, desk: &mut Desk<'_>, to: u32, letter: Letter) {
        self.post.borrow_mut().put(to, letter);
        let after = self.rng.spread(1_000, 100_000);
        let at = desk.env.now() + after;
        desk.env.queue.push(at, crate::queue::Event::Actor(to));
    }

    pub(super) fn read_letters(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        loop {
            let letter = self.post.borrow_mut().take(desk.number);
            let Some(letter) = letter else {
                return;
            };
            self.letter(core, desk, letter);
        }
    }

    fn letter(&mut self, core: &mut Core, desk: &mut Desk<'_>, letter: Letter) {
        match letter {
            Letter::Host {
                from,
                session,
                ticket,
                root,
            } => {
                let taken = self.take_in(core, desk, &ticket, root);
                let portal = self.address.filter(|_| taken.is_some());
                self.send_letter(desk, from, Letter::Hosted { session, portal });
            }
            Letter::Hosted { session, portal } => {
                if let Some(asked) = self.asked.iter_mut().find(|asked| asked.session == session) {
                    asked.host = portal.map_or(Host::Nobody, Host::There);
                    if portal.is_none() {
                        asked.wish = Wish::Accept;
                    }
                    asked.at = 0;
                }
                self.answer_asked(core, desk);
            }
            Letter::Join {
                from,
                line,
                ticket,
                root,
                errand,
            } => match self.take_in(core, desk, &ticket, root) {
                Some(session) if !self.leaving => {
                    self.join(core, desk, session, root, &errand, Some((from, line)));
                }
                _ => self.tell_joined(desk, (from, line)),
            },
            Letter::Joined { line } => {
                let l = &mut self.lines[line as usize];
                l.pending = l.pending.saturating_sub(1);
                self.pump(core, desk, line);
            }
        }
    }

    /// Takes a session in that comes as a ticket.
    fn take_in(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        ticket: &SessionTicket,
        root: u32,
    ) -> Option<SessionId> {
        match core.import_session(desk.now, ticket, root.into()) {
            Ok(session) => {
                self.guests.push((session, root));
                Some(session)
            }
            Err(CommandError::Full(_) | CommandError::BadValue(_) | CommandError::Closed(_)) => {
                None
            }
            Err(error) => {
                self.sense(desk, format!("a ticket was refused: {error}"));
                None
            }
        }
    }

    /// The session of a connection that came by HELLO.
    pub(super) fn root_of_session(&self, session: SessionId) -> Option<u32> {
        let known = self.guests.iter().find(|(known, _)| *known == session);
        known.map(|&(_, root)| root)
    }

    pub(super) fn session_request(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        session: SessionId,
        client: IpAddr,
        (uri, private): (Span, Span),
    ) {
        let memory = &desk.env.memory[desk.number as usize];
        let bytes = private.of(memory.slot(SlotId(private.slot)));
        let uri = uri.of(memory.slot(SlotId(uri.slot)));
        let over = if uri.starts_with(b"rdma") {
            Over::Rdma
        } else {
            Over::TwoStreams
        };
        let hops = uri.rsplit(|&byte| byte == b'/').next();
        let hops = hops.and_then(|text| core::str::from_utf8(text).ok()?.parse().ok());
        let wish = bytes.get(5).and_then(|&wish| Wish::from_number(wish));
        let (Some(&[a, b, c, d, closes, _, e, f]), Some(wish), Some(hops)) =
            (bytes.first_chunk::<8>(), wish, hops)
        else {
            let text = format!("private data of {} bytes, or URI {uri:?}", bytes.len());
            return self.sense(desk, text);
        };
        let now = desk.env.now();
        let ponder = if self.mix.think == 0 {
            0
        } else {
            self.rng.below(self.mix.think)
        };
        let side = u32::from_le_bytes([a, b, c, d]);
        self.guests.push((session, side / 2));
        self.asked.push(Asked {
            session,
            side,
            hints: Hints {
                closes: closes != 0,
                back: u16::from_le_bytes([e, f]),
            },
            wish,
            hops,
            client,
            over,
            at: now + ponder,
            host: Host::Nobody,
        });
        self.answer_asked(core, desk);
    }

    /// Answers the sessions that are to be answered by now.
    pub(super) fn answer_asked(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        let now = desk.env.now();
        for mut asked in core::mem::take(&mut self.asked) {
            if asked.at > now {
                self.wake(desk, asked.at);
                self.asked.push(asked);
                continue;
            }
            let answered = self.answer_session(core, desk, &mut asked);
            match answered {
                Some(Err(CommandError::Full(_))) => {
                    asked.at = now + 1_000_000;
                    self.wake(desk, asked.at);
                    self.asked.push(asked);
                }
                Some(Ok(())) => {}
                // The client is gone already.
                Some(Err(CommandError::Unknown | CommandError::WrongState(_))) => {}
                Some(Err(error)) => self.sense(desk, format!("an answer was refused: {error}")),
                None => {
                    self.wake(desk, asked.at);
                    self.asked.push(asked);
                }
            }
        }
    }

    /// Answers a session; `None`: not yet.
    fn answer_session(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        asked: &mut Asked,
    ) -> Option<Result<(), CommandError>> {
        if !desk.ledger.may_begin(asked.side ^ 1) {
            // This side called, and its own call is over: there is nobody left to talk with.
            asked.wish = Wish::Reject;
        }
        let hop = match asked.wish {
            Wish::Redirect | Wish::RedirectPortals => asked.hops < 1,
            Wish::Wander => true,
            _ => false,
        };
        if hop {
            return Some(self.send_on(core, desk, asked));
        }
        let memory = desk.number as usize;
        match asked.wish {
            Wish::Silence => Some(Ok(())),
            Wish::Reject => {
                let at = desk.env.now();
                let (code, private) = rejection(asked.side);
                let slots = &mut desk.env.memory[memory];
                let done = core.reject(desk.now, asked.session, code, &private, slots);
                if done.is_ok() {
                    let side = asked.side;
                    desk.ledger.take(at, Fact::Doomed { side });
                }
                Some(done)
            }
            Wish::Portals | Wish::RedirectPortals => self.offer_portal(core, desk, asked),
            _ => Some(self.accept(core, desk, asked)),
        }
    }

    fn send_on(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        asked: &Asked,
    ) -> Result<(), CommandError> {
        let me = self.address.map(|address| address.ip());
        let but: Vec<_> = me.into_iter().chain([asked.client]).collect();
        let others = self.post.borrow().others(asked.over, &but);
        let Some(&mine) = self.address.as_ref() else {
            return Ok(());
        };
        let ip = if others.is_empty() {
            mine.ip()
        } else {
            self.rng.pick(&others).1
        };
        let portal = format!(
            "{}://{}/{}",
            scheme(asked.over),
            SocketAddr::new(ip, mine.port()),
            asked.hops + 1
        );
        if asked.wish == Wish::Wander {
            let at = desk.env.now();
            let side = asked.side;
            desk.ledger.take(at, Fact::Doomed { side });
        }
        let slots = &mut desk.env.memory[desk.number as usize];
        core.redirect(desk.now, asked.session, &[portal.as_bytes()], slots)
    }

    /// Accepts with portals, when the portal is ready.
    fn offer_portal(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        asked: &mut Asked,
    ) -> Option<Result<(), CommandError>> {
        let mine = self.address?;
        match asked.host {
            Host::There(portal) => {
                let text = format!("{}://{portal}", scheme(asked.over));
                let slots = &mut desk.env.memory[desk.number as usize];
                let portals: [&[u8]; 1] = [text.as_bytes()];
                let user = u64::from(asked.side / 2);
                let done = core.accept(desk.now, asked.session, user, &portals, WELCOME, slots);
                Some(done.map(|_| ()))
            }
            Host::Asked => {
                // Whoever was asked may be dead by now.
                asked.wish = Wish::Accept;
                Some(self.accept(core, desk, asked))
            }
            Host::Nobody => {
                let but = [mine.ip(), asked.client];
                let others = self.post.borrow().others(asked.over, &but);
                if others.is_empty() {
                    asked.host = Host::There(mine);
                    return self.offer_portal(core, desk, asked);
                }
                let (to, _) = self.rng.pick(&others);
                let expires = desk.now.after(TICKET_TIME);
                let ticket = match core.export_session(asked.session, 8, expires) {
                    Ok(ticket) => ticket,
                    Err(error) => return Some(Err(error)),
                };
                let letter = Letter::Host {
                    from: desk.number,
                    session: asked.session,
                    ticket,
                    root: asked.side / 2,
                };
                self.send_letter(desk, to, letter);
                asked.host = Host::Asked;
                asked.at = desk.env.now() + 500_000_000;
                None
            }
        }
    }

    fn accept(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        asked: &Asked,
    ) -> Result<(), CommandError> {
        let line = self.open(Some(asked.side ^ 1), None);
        let l = &mut self.lines[line as usize];
        l.hear(asked.hints);
        l.session = Some(asked.session);
        let slots = &mut desk.env.memory[desk.number as usize];
        let private = if asked.side & 2 == 0 { b"" } else { WELCOME };
        match core.accept(desk.now, asked.session, line.into(), &[], private, slots) {
            Ok(id) => {
                self.lose_patience(desk, line);
                self.opened(core, desk, line, id);
                Ok(())
            }
            Err(error) => {
                self.lines.pop();
                Err(error)
            }
        }
    }

    /// What a client hears with its connection is what the server said.
    pub(super) fn check_welcome(&mut self, desk: &mut Desk<'_>, line: u32, private: Span) {
        let l = &self.lines[line as usize];
        let memory = &desk.env.memory[desk.number as usize];
        let bytes = private.of(memory.slot(SlotId(private.slot)));
        // Who called, and whose call became the peer's, hears what that said. It may be an earlier
        // call that the peer gave up while it was under way.
        let number = bytes.first_chunk().copied().map(u32::from_le_bytes);
        let called = l.side.zip(number);
        if l.calls && called.is_some_and(|(side, peer)| peer == side ^ 1 || peer < side) {
            return;
        }
        if !l.is_client() || bytes != WELCOME {
            let text = format!("private data {bytes:?}, heard by {:?}", l.side);
            self.sense(desk, text);
        }
    }

    /// Servers name one portal, by its address and maybe with a resource.
    pub(super) fn check_portals(
        &mut self,
        desk: &mut Desk<'_>,
        line: u32,
        list: Span,
        (count, unresolved): (u16, u16),
    ) {
        let memory = &desk.env.memory[desk.number as usize];
        let named: Vec<_> = portals(list.of(memory.slot(SlotId(list.slot)))).collect();
        let known = |text: &[u8]| {
            let text = core::str::from_utf8(text).unwrap_or_default();
            let (scheme, rest) = text.split_once("://").unwrap_or_default();
            let authority = rest.split('/').next().unwrap_or_default();
            matches!(scheme, "rdma" | "tcp") && authority.parse::<SocketAddr>().is_ok()
        };
        let good = named.len() == 1 && named.iter().all(|text| known(text));
        let l = &self.lines[line as usize];
        if !l.is_client() || !good || (count, unresolved) != (1, 0) {
            let text = format!("{count} portals, {unresolved} unknown, in {:?}", l.side);
            self.sense(desk, text);
        }
    }

    pub(super) fn check_rejection(
        &mut self,
        desk: &mut Desk<'_>,
        line: u32,
        code: u32,
        private: Option<Span>,
    ) {
        let Some(side) = self.lines[line as usize].side else {
            return;
        };
        // The endpoint itself rejects for lack of room, of time, or of a listener.
        if code > 0xffff_ffff - 0x1000_0000 || code >= 0x4a5e_3a54 {
            return;
        }
        let memory = &desk.env.memory[desk.number as usize];
        let (due, text) = rejection(side);
        let said = private.map(|span| span.of(memory.slot(SlotId(span.slot))));
        if code != due || said.is_some_and(|said| said != text) {
            let text = format!("side {side} was rejected with {code} and {said:?}");
            self.sense(desk, text);
        }
    }

    /// A connection that came by HELLO is known by the first message on it.
    pub(super) fn bind(
        &mut self,
        desk: &mut Desk<'_>,
        line: u32,
        (message, hints): (u64, Hints),
        _data: &Data,
    ) {
        if self.lines[line as usize].side.is_some() {
            return;
        }
        let side = desk.ledger.receiver(message);
        let Some(side) = side.filter(|&side| desk.ledger.may_begin(side)) else {
            let text = format!("message {message} came to a connection that nobody made");
            return self.sense(desk, text);
        };
        let root = self.post.borrow().root_of(side / 2);
        let l = &mut self.lines[line as usize];
        if root != l.root {
            let text = format!("side {side} of session {root:?} came to {:?}", l.root);
            return self.sense(desk, text);
        }
        let at = desk.env.now();
        l.side = Some(side);
        l.hear(hints);
        desk.ledger.take(at, Fact::Opened { side });
        desk.ledger.take(at, Fact::Established { side });
        self.lines[line as usize].life = desk.ledger.life(side);
        self.lose_patience(desk, line);
    }

    /// Some users end a connection in the middle of whatever there is.
    pub(super) fn lose_patience(&mut self, desk: &mut Desk<'_>, line: u32) {
        let l = &mut self.lines[line as usize];
        if !l.is_client() && self.rng.chance(self.mix.curt) {
            l.patience = self.rng.spread(1, 20_000_000);
        }
        if l.patience > 0 {
            self.end_soon(desk, line);
        }
    }

    /// A connection ends soon, whatever there is.
    pub(super) fn end_soon(&mut self, desk: &mut Desk<'_>, line: u32) {
        let l = &mut self.lines[line as usize];
        let Some(side) = l.side.filter(|_| l.ends_at == 0) else {
            return;
        };
        if l.patience == 0 {
            l.patience = self.rng.spread(1_000, 20_000_000);
        }
        let now = desk.env.now();
        l.ends_at = now + l.patience;
        let at = l.ends_at;
        if matches!(l.closing, Closing::Client | Closing::Server) && self.rng.flip() {
            l.closing = Closing::Abort;
        }
        desk.ledger.take(now, Fact::Doomed { side });
        self.wake(desk, at);
    }
}
