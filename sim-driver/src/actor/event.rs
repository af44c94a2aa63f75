//! The endpoint's events, one by one.

use xio_proto::{Event, Reason, Receipt, TaskId, TransportId};

use super::react::number_of;
use super::{Actor, Due, ID_BITS};
use crate::check::{Fact, Outcome};
use crate::driver::{Core, Desk, User};
use crate::trace::{Act, Object};

/// A number for an event, for the trace.
fn event_number(event: &Event) -> (u64, u64) {
    match *event {
        Event::SessionRequest { user, .. } => (1, user),
        Event::Established { user, .. } => (2, user),
        Event::ConnectFailed { user, .. } => (3, user),
        Event::Request { user, .. } => (4, user),
        Event::OneWay { user, .. } => (5, user),
        Event::PayloadWaiting { user, .. } => (6, user),
        Event::Response { user, .. } => (7, user),
        Event::Delivered { user, .. } => (8, user),
        Event::Sent { user, .. } => (9, user),
        Event::Failed { user, .. } => (10, user),
        Event::TimedOut { user, .. } => (11, user),
        Event::Cancelled { user, .. } => (12, user),
        Event::BuffersReturned { user, .. } => (13, user),
        Event::Writable { user, .. } => (14, user),
        Event::Closed { user, .. } => (15, user),
        Event::SessionClosed { session, .. } => (16, session.to_bits()),
        Event::ListenFailed { user, .. } => (17, user),
        Event::RegionReady { user, .. } => (19, user),
        Event::RegionFailed { user, .. } => (20, user),
        Event::RegionRevoked { user, .. } => (21, user),
        Event::Portals { user, .. } => (22, user),
        Event::CancelAsked { user, .. } => (23, user),
        Event::Reconnecting { user, .. } => (26, user),
        Event::Reconnected { user, .. } => (24, user),
        Event::Stopped { aborted } => (25, aborted),
        _ => (18, 0),
    }
}

impl User for Actor {
    fn sides(&self) -> Vec<u32> {
        self.sides_of_lines()
    }

    fn turn(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        self.read_letters(core, desk);
        let now = desk.env.now();
        if self.next_turn > now {
            return;
        }
        self.next_turn = u64::MAX;
        self.hear(core);
        for _ in 0..self.errands.len() {
            if let Some(errand) = self.errands.pop_front() {
                if errand.at <= now {
                    self.run_errand(core, desk, &errand);
                } else {
                    self.errands.push_back(errand);
                }
            }
        }
        self.answer_asked(core, desk);
        while self.due.front().is_some_and(|due| due.at <= now) {
            if let Some(due) = self.due.pop_front() {
                self.respond(core, desk, due);
                self.pump(core, desk, due.line);
            }
        }
        self.cancel_due(core, desk);
        self.abort_due(core, desk);
        for line in 0..self.lines.len() as u32 {
            let l = &self.lines[line as usize];
            if l.is_open() && (l.left > 0 || l.ends_at > 0 || l.pending > 0 || l.is_idle()) {
                self.pump(core, desk, line);
            }
        }
        self.tend_regions(core, desk);
        self.sleep(desk);
    }

    fn event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: Event) {
        let (kind, user) = event_number(&event);
        let object = Object::Actor(desk.number);
        desk.env
            .record(desk.number, object, Act::UserEvent, kind, user);
        let of_region = matches!(
            event,
            Event::RegionReady { .. } | Event::RegionFailed { .. } | Event::RegionRevoked { .. }
        );
        if self.stopped && !of_region {
            self.sense(desk, format!("an event after the last: {event:?}"));
        }
        match event {
            Event::Request {
                connection,
                task,
                header,
                data,
                room,
                ..
            } => {
                let line = self.line_of(connection);
                self.check_time(core, desk, task, &data);
                if let Some((label, size)) = self.received(core, desk, line, task, header, &data) {
                    let due = Due {
                        at: 0,
                        task,
                        line,
                        request: label.message,
                        room,
                        size,
                        over: self.rng.chance(self.mix.too_long),
                    };
                    self.respond_later(core, desk, due);
                }
                self.pump(core, desk, line);
            }
            Event::OneWay {
                connection,
                task,
                header,
                data,
                ..
            } => {
                let line = self.line_of(connection);
                if let Some((label, size)) = self.received(core, desk, line, task, header, &data) {
                    let due = Due {
                        at: 0,
                        task,
                        line,
                        request: label.message,
                        room: 0,
                        size,
                        over: false,
                    };
                    self.respond_later(core, desk, due);
                }
                self.pump(core, desk, line);
            }
            Event::PayloadWaiting { connection, .. } => {
                let line = self.line_of(connection);
                self.waiting(core, desk, line, &event);
            }
            Event::CancelAsked { task, .. } => self.cancel_asked(core, desk, task),
            Event::BuffersReturned { task, .. } => self.buffers_returned(desk, task, user),
            other => self.outcome(core, desk, user, &other),
        }
    }
}

impl Actor {
    /// Has itself called when the next thing is due.
    fn sleep(&mut self, desk: &mut Desk<'_>) {
        let now = desk.env.now();
        let lines = self.lines.iter().filter(|line| line.is_open());
        // What was due and has not happened waits for something else.
        let ends = lines.clone().map(|line| line.ends_at);
        let idle = lines.clone().filter(|line| line.is_idle());
        let waits = lines.filter(|line| line.pending > 0);
        let aborts = self.lines.iter().map(|line| line.aborts_at);
        let next = [
            aborts.filter(|&at| at > now).min(),
            self.errands.iter().map(|errand| errand.at).min(),
            self.due.front().map(|due| due.at),
            self.cancels.iter().map(|&(at, _)| at).min(),
            ends.filter(|&at| at > now).min(),
            waits
                .map(|line| line.pending_until)
                .filter(|&at| at > now)
                .min(),
            idle.map(|line| line.stirred + self.mix.idle)
                .filter(|&at| self.mix.idle != 0 && at > now)
                .min(),
            self.next_region(),
        ];
        let next = next.into_iter().flatten().filter(|&at| at < u64::MAX).min();
        if let Some(at) = next {
            self.wake(desk, at.max(now + 1));
        }
    }

    fn cancel_due(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        let now = desk.env.now();
        while let Some(place) = self.cancels.iter().position(|&(at, _)| at <= now) {
            let (_, task) = self.cancels.swap_remove(place);
            // It may have ended long ago; its row may even be another's.
            let _ = core.cancel(task);
        }
    }

    /// Outcomes of messages; what is none is about a connection.
    fn outcome(&mut self, core: &mut Core, desk: &mut Desk<'_>, user: u64, event: &Event) {
        match *event {
            Event::Response {
                task,
                header,
                ref data,
                buffers_returned,
                ..
            } => {
                self.answer(core, desk, task, user, header, data);
                self.ended(core, desk, task, user, Outcome::Answered, buffers_returned);
            }
            Event::Sent {
                task,
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::Sent, buffers_returned),
            Event::Delivered {
                task,
                receipt,
                buffers_returned,
                ..
            } => {
                let code = match receipt {
                    Receipt::Accepted => 0,
                    Receipt::Rejected(code) => code,
                };
                self.receipt(core, desk, task, user, (code, buffers_returned));
            }
            Event::Failed {
                task,
                failure,
                buffers_returned,
                ..
            } => self.failed(core, desk, task, user, (failure, buffers_returned)),
            Event::TimedOut {
                task,
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::TimedOut, buffers_returned),
            Event::Cancelled {
                task,
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::Cancelled, buffers_returned),
            ref other => self.connection_event(core, desk, other),
        }
    }

    pub(super) fn buffers_returned(&mut self, desk: &mut Desk<'_>, task: TaskId, user: u64) {
        self.free_provided(desk, task);
        // Of a received message there are no others.
        if user >> ID_BITS == 0 {
            return;
        }
        let message = number_of(user);
        let at = desk.env.now();
        desk.ledger.take(at, Fact::Returned { message });
        self.give_back(desk, (user >> ID_BITS) as u32 - 1);
    }

    fn connection_event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: &Event) {
        let at = desk.env.now();
        match *event {
            Event::SessionRequest {
                session,
                peer,
                uri,
                private,
                ..
            } => self.session_request(core, desk, session, peer.ip(), (uri, private)),
            Event::Established { .. } => self.established(core, desk, event),
            Event::ConnectFailed { .. } => self.connect_failed(core, desk, event),
            Event::Portals {
                connection,
                list,
                count,
                unresolved,
                ..
            } => {
                let line = self.line_of(connection);
                self.check_portals(desk, line, list, (count, unresolved));
            }
            Event::Writable { connection, .. } => {
                let line = self.line_of(connection);
                self.lines[line as usize].blocked = false;
                self.pump(core, desk, line);
            }
            Event::Reconnecting { connection, .. } => {
                let line = self.line_of(connection);
                self.lost(core, desk, line);
            }
            Event::Reconnected { connection, .. } => {
                let line = self.line_of(connection);
                self.anew(core, desk, line, event);
            }
            Event::Stopped { .. } if self.stopping => self.has_stopped(core, desk),
            Event::Closed {
                connection, reason, ..
            } => {
                let line = self.line_of(connection);
                let well = matches!(
                    reason,
                    Reason::Closed | Reason::PeerClosed | Reason::Shutdown
                );
                self.count_attempts(core, desk, line);
                self.closed(core, desk, line, !well);
            }
            Event::SessionClosed { session, .. } => {
                self.sessions_closed += 1;
                self.guests.retain(|(known, _)| *known != session);
                self.asked.retain(|asked| !asked.is(session));
            }
            Event::ListenFailed { user, .. } => {
                self.deaf.push(TransportId(user as u8));
                self.wake(desk, at + 100_000_000);
            }
            Event::RegionReady { .. }
            | Event::RegionFailed { .. }
            | Event::RegionRevoked { .. } => {
                self.region_event(desk, event);
            }
            ref other => self.sense(desk, format!("an event nobody knows: {other:?}")),
        }
    }

    fn established(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: &Event) {
        let Event::Established {
            connection,
            session,
            message,
            private,
            ..
        } = *event
        else {
            return;
        };
        let at = desk.env.now();
        let line = self.line_of(connection);
        let root = self.root_of_session(session);
        let l = &mut self.lines[line as usize];
        l.established = true;
        l.stirred = at;
        match l.side {
            Some(side) => desk.ledger.take(at, Fact::Established { side }),
            None => l.root = root,
        }
        let (client, asker) = (l.is_client(), l.asker.take());
        self.check_peer(core, desk, connection);
        if let Some(message) = message {
            self.check_welcome(desk, line, private);
            self.release(core, desk, message);
        }
        if let Some(place) = asker {
            self.tell_joined(desk, place);
        }
        if client {
            self.grow(core, desk, line, session);
            self.wake(desk, at + self.mix.idle);
        }
        self.pump(core, desk, line);
    }

    fn connect_failed(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: &Event) {
        let Event::ConnectFailed {
            connection,
            reason,
            message,
            private,
            ..
        } = *event
        else {
            return;
        };
        let (at, line) = (desk.env.now(), self.line_of(connection));
        if let Some(side) = self.lines[line as usize].side {
            desk.ledger.take(at, Fact::ConnectFailed { side });
        }
        if let Reason::Rejected(code) = reason {
            self.check_rejection(desk, line, code, message.map(|_| private));
        }
        if let Some(message) = message {
            self.release(core, desk, message);
        }
    }
}
