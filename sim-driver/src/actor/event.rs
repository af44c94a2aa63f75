//! The endpoint's events, one by one.

use xio_proto::{Event, Failure, TaskId, TransportId};

use super::{Actor, Due, ID_BITS};
use crate::check::{Fact, Outcome};
use crate::driver::{Core, Desk, User};
use crate::trace::{Act, Object};

fn outcome_of(failure: Failure) -> Outcome {
    match failure {
        Failure::ConnectionEnded(_) => Outcome::Unknown,
        Failure::NeverSent(_) => Outcome::NeverSent,
        _ => Outcome::Refused,
    }
}

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
        _ => (18, 0),
    }
}

impl User for Actor {
    fn sides(&self) -> Vec<u32> {
        self.lines.iter().map(|line| line.side).collect()
    }

    fn turn(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        let now = desk.env.now();
        if self.next_turn > now {
            return;
        }
        self.next_turn = u64::MAX;
        self.hear(core);
        while self.errands.front().is_some_and(|errand| errand.at <= now) {
            if let Some(errand) = self.errands.pop_front() {
                self.run_errand(core, desk, &errand);
            }
        }
        for (session, line) in core::mem::take(&mut self.waiting) {
            self.accept(core, desk, session, line);
        }
        while self.due.front().is_some_and(|due| due.at <= now) {
            if let Some(due) = self.due.pop_front() {
                self.respond(core, desk, due);
            }
        }
        self.cancel_due(core, desk);
        for line in 0..self.lines.len() as u32 {
            if self.lines[line as usize].left > 0 {
                self.pump(core, desk, line);
            }
        }
        let next = [
            self.errands.front().map(|errand| errand.at),
            self.due.front().map(|due| due.at),
            self.cancels.iter().map(|&(at, _)| at).min(),
        ];
        if let Some(at) = next.into_iter().flatten().min() {
            self.wake(desk, at.max(now + 1));
        }
    }

    fn event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: Event) {
        let (kind, user) = event_number(&event);
        let object = Object::Actor(desk.number);
        desk.env
            .record(desk.number, object, Act::UserEvent, kind, user);
        let line = user as u32;
        match event {
            Event::Request {
                task,
                header,
                data,
                room,
                ..
            } => {
                let request = self.received(core, desk, line, task, header, &data);
                let due = Due {
                    at: 0,
                    task,
                    line,
                    request,
                    room,
                };
                self.respond_later(core, desk, due);
                self.pump(core, desk, line);
            }
            Event::OneWay {
                task, header, data, ..
            } => {
                self.received(core, desk, line, task, header, &data);
                self.give_up(core, desk, task);
                self.pump(core, desk, line);
            }
            Event::PayloadWaiting { task, len, .. } => self.provide(core, desk, task, len),
            Event::BuffersReturned { task, .. } => self.buffers_returned(desk, task, user),
            other => self.outcome(core, desk, user, &other),
        }
    }
}

impl Actor {
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
                buffers_returned,
                ..
            } => self.ended(core, desk, task, user, Outcome::Receipt, buffers_returned),
            Event::Failed {
                task,
                failure,
                buffers_returned,
                ..
            } => self.ended(
                core,
                desk,
                task,
                user,
                outcome_of(failure),
                buffers_returned,
            ),
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
        let message = user & ((1 << ID_BITS) - 1);
        let at = desk.env.now();
        desk.ledger.take(at, Fact::Returned { message });
        self.give_back(desk, (user >> ID_BITS) as u32 - 1);
    }

    pub(super) fn connection_event(&mut self, core: &mut Core, desk: &mut Desk<'_>, event: &Event) {
        let at = desk.env.now();
        match *event {
            Event::SessionRequest {
                session, private, ..
            } => self.session_request(core, desk, session, private),
            Event::Established { user, message, .. } => {
                let line = user as u32;
                self.lines[line as usize].established = true;
                let side = self.lines[line as usize].side;
                desk.ledger.take(at, Fact::Established { side });
                if let Some(message) = message {
                    self.give_up(core, desk, message);
                }
                self.pump(core, desk, line);
            }
            Event::ConnectFailed { user, message, .. } => {
                let side = self.lines[user as usize].side;
                desk.ledger.take(at, Fact::ConnectFailed { side });
                if let Some(message) = message {
                    self.give_up(core, desk, message);
                }
            }
            Event::Writable { user, .. } => {
                self.lines[user as usize].blocked = false;
                self.pump(core, desk, user as u32);
            }
            Event::Closed { user, .. } => self.closed(core, desk, user as u32),
            Event::SessionClosed { .. } => self.sessions_closed += 1,
            Event::ListenFailed { user, .. } => {
                self.deaf.push(TransportId(user as u8));
                self.wake(desk, at + 100_000_000);
            }
            ref other => self.sense(desk, format!("an event nobody knows: {other:?}")),
        }
    }
}
