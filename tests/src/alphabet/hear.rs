//! What users hear, and what of it is a fact for the checkers.

use xio_proto::{ConnectionId, Data, Event, Failure, Receipt, SessionId, Span, TaskId};
use xio_sim::check::{Class, Digest, Fact, Outcome, Refusal};

use super::net::Net;
use super::side::{Held, Hold, Line, Wait, remember};
use super::user::pattern;
use super::world::World;

/// The outcome that a failure is, and why, if a user or a length is the reason.
pub(super) fn judged(failure: Failure) -> (Outcome, Option<Refusal>) {
    match failure {
        Failure::PeerStatus(code) => (Outcome::Refused, Some(Refusal::ByPeer(code))),
        Failure::RefusedHere(code) => (Outcome::Refused, Some(Refusal::Here(code))),
        Failure::TooLong { len, max, .. } => (Outcome::Refused, Some(Refusal::TooLong(len, max))),
        Failure::Work(_) => (Outcome::Refused, Some(Refusal::Work)),
        Failure::NeverSent(_) => (Outcome::NeverSent, None),
        _ => (Outcome::Unknown, None),
    }
}

impl<N: Net> World<N> {
    /// One event is heard; false when there is none.
    pub(super) fn hear(&mut self, i: usize) -> bool {
        let Some(event) = self.net.event(i) else {
            return false;
        };
        match event {
            Event::SessionRequest {
                session, private, ..
            } => {
                let said = self.net.span(i, private);
                let number = said.try_into().expect("the number of a connection");
                let user = &mut self.users[i];
                user.asked.push((session, u32::from_le_bytes(number)));
                user.sessions.push(session);
            }
            Event::SessionClosed { session, .. } => {
                let user = &mut self.users[i];
                user.asked.retain(|(known, _)| *known != session);
                user.sessions.retain(|known| *known != session);
                remember(&mut user.old_sessions, session);
            }
            Event::Established { .. }
            | Event::ConnectFailed { .. }
            | Event::Reconnecting { .. }
            | Event::Reconnected { .. }
            | Event::Closed { .. } => self.connection_event(i, &event),
            Event::RegionReady { region, rkey, .. } => {
                let regions = &mut self.users[i].regions;
                if let Some(known) = regions.iter_mut().find(|known| known.id == region) {
                    known.rkey = Some(rkey);
                }
            }
            Event::RegionFailed { region, .. } | Event::RegionRevoked { region, .. } => {
                let regions = &mut self.users[i].regions;
                let place = regions.iter().position(|r| r.id == region);
                let region = regions.remove(place.expect("a region of the user's"));
                self.net.free(i, region.addr);
            }
            Event::ListenFailed { listener, .. } | Event::ListenerLost { listener, .. } => {
                let user = &mut self.users[i];
                user.listener = user.listener.filter(|known| *known != listener);
            }
            _ => self.message_event(i, &event),
        }
        true
    }

    fn fact(&mut self, fact: Fact) {
        let at = self.net.at();
        self.ledger.take(at, fact);
    }

    /// The connection's place in what its user knows; one that came by HELLO is new.
    fn line_of(&mut self, i: usize, id: ConnectionId) -> usize {
        let known = self.users[i].lines.iter().position(|line| line.id == id);
        known.unwrap_or_else(|| {
            let line = Line {
                id,
                side: None,
                life: 0,
                up: false,
                over: false,
            };
            self.users[i].lines.push(line);
            self.users[i].lines.len() - 1
        })
    }

    /// A connection was asked for, or accepted.
    pub(super) fn opened(&mut self, i: usize, id: ConnectionId, side: Option<u32>) {
        let at = self.line_of(i, id);
        if let Some(side) = side {
            self.fact(Fact::Opened { side });
            let line = &mut self.users[i].lines[at];
            (line.side, line.life) = (Some(side), self.ledger.life(side));
        }
    }

    fn connection_event(&mut self, i: usize, event: &Event) {
        let (connection, message) = match *event {
            Event::Established {
                connection,
                message,
                session,
                ..
            }
            | Event::Reconnected {
                connection,
                message,
                session,
                ..
            } => {
                self.knows_session(i, session);
                (connection, message)
            }
            Event::ConnectFailed {
                connection,
                message,
                ..
            } => (connection, message),
            Event::Reconnecting { connection, .. } | Event::Closed { connection, .. } => {
                (connection, None)
            }
            _ => return,
        };
        let at = self.line_of(i, connection);
        let line = &mut self.users[i].lines[at];
        line.up = matches!(event, Event::Established { .. } | Event::Reconnected { .. });
        line.over = matches!(event, Event::Closed { .. });
        if let Some(side) = line.side {
            match event {
                Event::Established { .. } => self.fact(Fact::Established { side }),
                Event::ConnectFailed { .. } => self.fact(Fact::ConnectFailed { side }),
                Event::Reconnecting { .. } => self.fact(Fact::Lost { side }),
                Event::Closed { .. } => {
                    let badly = false;
                    self.fact(Fact::Closed { side, badly });
                }
                _ => {}
            }
        }
        let user = &mut self.users[i];
        if !user.lines[at].up {
            user.waiting.retain(|wait| wait.line != at);
        }
        if let Some(task) = message {
            user.held.push(Held {
                task,
                line: None,
                hold: Hold::Other,
            });
        }
    }

    fn knows_session(&mut self, i: usize, session: SessionId) {
        let sessions = &mut self.users[i].sessions;
        if !sessions.contains(&session) {
            sessions.push(session);
        }
    }

    fn message_event(&mut self, i: usize, event: &Event) {
        match *event {
            Event::Request {
                connection,
                task,
                header,
                data,
                room,
                ..
            } => {
                let (line, number) = self.came(i, connection, task, header, data);
                let hold = Hold::Request { number, room };
                let line = Some(line);
                self.users[i].held.push(Held { task, line, hold });
            }
            Event::OneWay {
                connection,
                task,
                header,
                data,
                ..
            } => {
                let (line, number) = self.came(i, connection, task, header, data);
                let (line, hold) = (Some(line), Hold::OneWay { number });
                self.users[i].held.push(Held { task, line, hold });
            }
            Event::PayloadWaiting {
                connection,
                task,
                header,
                len,
                ..
            } => self.waits(i, connection, task, header, len),
            Event::BuffersReturned { task, user } => match self.users[i].given.remove(&task) {
                Some(addr) => self.net.free(i, addr),
                None => {
                    let message = user - 1;
                    self.fact(Fact::Returned { message });
                    self.give_back(i, message);
                }
            },
            _ => self.outcome_event(i, event),
        }
    }

    fn outcome_event(&mut self, i: usize, event: &Event) {
        let (task, message, outcome, returned) = match *event {
            Event::Response {
                task,
                user,
                header,
                data,
                buffers_returned,
                ..
            } => {
                self.answered(i, user - 1, header, data);
                let (line, hold) = (None, Hold::Other);
                self.users[i].held.push(Held { task, line, hold });
                (task, user - 1, Outcome::Answered, buffers_returned)
            }
            Event::Delivered {
                task,
                user,
                receipt,
                buffers_returned,
            } => {
                let code = match receipt {
                    Receipt::Accepted => 0,
                    Receipt::Rejected(code) => code,
                };
                let message = user - 1;
                self.fact(Fact::ReceiptCame { message, code });
                if self.ledger.class(message) == Some(Class::Request) {
                    return;
                }
                (task, message, Outcome::Receipt, buffers_returned)
            }
            Event::Sent {
                task,
                user,
                buffers_returned,
            } => (task, user - 1, Outcome::Sent, buffers_returned),
            Event::Failed {
                task,
                user,
                failure,
                buffers_returned,
            } => {
                let (outcome, why) = judged(failure);
                let message = user - 1;
                if let Some(why) = why {
                    self.fact(Fact::Refused { message, why });
                }
                (task, message, outcome, buffers_returned)
            }
            Event::TimedOut {
                task,
                user,
                buffers_returned,
            } => (task, user - 1, Outcome::TimedOut, buffers_returned),
            Event::Cancelled {
                task,
                user,
                buffers_returned,
            } => (task, user - 1, Outcome::Cancelled, buffers_returned),
            _ => return,
        };
        self.ended(i, task, message, outcome, returned);
    }

    fn ended(&mut self, i: usize, task: TaskId, message: u64, outcome: Outcome, returned: bool) {
        let clock = self.net.at();
        self.fact(Fact::Ended {
            message,
            outcome,
            returned,
            clock,
        });
        let user = &mut self.users[i];
        user.due.retain(|due| *due != message);
        user.waiting.retain(|wait| wait.own != Some(message));
        let letter = &self.letters[message as usize];
        if letter.direct && outcome == Outcome::Sent {
            let addr = letter.blocks[0];
            let bytes = self.net.block(i, addr);
            let good = bytes == pattern(0, bytes.len());
            assert!(good, "direct READ {message} brought other bytes");
        }
        if outcome != Outcome::Answered {
            self.forget_task(i, task);
        }
        if returned {
            self.give_back(i, message);
        }
    }

    pub(super) fn forget_task(&mut self, i: usize, task: TaskId) {
        remember(&mut self.users[i].old_tasks, task);
    }

    fn give_back(&mut self, i: usize, message: u64) {
        for addr in std::mem::take(&mut self.letters[message as usize].blocks) {
            self.net.free(i, addr);
        }
    }

    /// The number and digest of what came.
    fn label(&self, i: usize, header: Span, data: Data) -> (u64, u64) {
        let header = self.net.span(i, header);
        let (number, rest) = header.split_first_chunk().expect("a message's number");
        let mut digest = Digest::new();
        digest.update(rest);
        match data {
            Data::Slot(span) => digest.update(self.net.span(i, span)),
            Data::Segments(span) => {
                let segments = self.net.segments(i, span);
                let bytes = self.net.gather(i, &segments);
                digest.update(&bytes.expect("data in memory that was given"));
            }
        }
        (u64::from_le_bytes(*number), digest.value())
    }

    /// A connection that came by HELLO is known by the first message on it.
    fn bind(&mut self, i: usize, line: usize, message: u64) {
        if self.users[i].lines[line].side.is_some() {
            return;
        }
        let side = self.ledger.receiver(message);
        let side = side.filter(|&side| self.ledger.may_begin(side));
        let side = side.expect("a message on the connection that it was sent on");
        self.fact(Fact::Opened { side });
        self.fact(Fact::Established { side });
        let life = self.ledger.life(side);
        let line = &mut self.users[i].lines[line];
        (line.side, line.life) = (Some(side), life);
    }

    fn came(
        &mut self,
        i: usize,
        connection: ConnectionId,
        task: TaskId,
        header: Span,
        data: Data,
    ) -> (usize, u64) {
        let at = self.line_of(i, connection);
        let (message, digest) = self.label(i, header, data);
        self.bind(i, at, message);
        let line = self.users[i].lines[at];
        if let Some(side) = line.side {
            let life = line.life;
            self.fact(Fact::Delivered {
                message,
                side,
                life,
                digest,
            });
        }
        let user = &mut self.users[i];
        user.waiting.retain(|wait| wait.task != task);
        // The bytes are the user's, who has seen them.
        if let Some(addr) = user.given.remove(&task) {
            self.net.free(i, addr);
        }
        (at, message)
    }

    fn waits(&mut self, i: usize, connection: ConnectionId, task: TaskId, header: Span, len: u64) {
        let line = self.line_of(i, connection);
        let empty = Data::Slot(Span { len: 0, ..header });
        let (number, _) = self.label(i, header, empty);
        let request = self.ledger.answers(number);
        if request.is_none() {
            self.bind(i, line, number);
        }
        let mine = |request: &u64| self.letters[*request as usize].side == i;
        let own = request.filter(mine);
        self.users[i].waiting.push(Wait {
            task,
            line,
            number,
            len,
            own,
        });
    }

    fn answered(&mut self, i: usize, request: u64, header: Span, data: Data) {
        let (message, digest) = self.label(i, header, data);
        let of = self.ledger.answers(message);
        assert_eq!(of, Some(request), "message {message} answers another one");
        if let Some(side) = self.ledger.receiver(message) {
            let life = 0;
            self.fact(Fact::Delivered {
                message,
                side,
                life,
                digest,
            });
        }
    }
}
