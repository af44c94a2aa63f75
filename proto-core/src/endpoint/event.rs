//! What the user hears, made from the state when polled.

use super::Endpoint;
use crate::entries::{Connection, ConnectionEvents, Direct, Ending, Task, TaskEvents, TaskFlags};
use crate::event::{Data, Event, Receipt};
use crate::ids::{ConnectionId, ListenerId, NONE, SessionId, TaskId};
use crate::inputs::recorded;
use crate::memory::{ListKind, SegmentSpan, Span};
use crate::mutant::mutated;
use crate::state::connection::Input as ConnectionInput;
use crate::state::session::{Input as SessionInput, State as SessionState};
use crate::state::task::State as TaskState;
use crate::storage::Storage;
use crate::table::queue_pop;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::Kind;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The next event, or `None` when there is nothing to tell. Connections take turns; an event
    /// that is not polled holds its message's slot, and thereby the peer's credit for it.
    #[must_use]
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        recorded!(self, PollEvent {} => self.poll_event());
        // Nothing to tell is the common answer, and is given without a call.
        let rare = self.g.rare_events;
        if self.g.connection_events.is_empty() && !rare {
            return None;
        }
        self.first_event(rare)
    }

    #[inline(never)]
    fn first_event(&mut self, rare: bool) -> Option<Event> {
        if !rare && let Some(event) = self.plain_event() {
            return Some(event);
        }
        self.event_due(rare)
    }

    #[cold]
    #[inline(never)]
    fn event_due(&mut self, rare: bool) -> Option<Event> {
        if rare && let Some(event) = self.rare_event() {
            return Some(event);
        }
        loop {
            if self.g.connection_events.is_empty() {
                return None;
            }
            let rows = self.s.tables().connections;
            let q = &mut self.g.connection_events;
            let c = queue_pop!(rows, q.head, q.tail, event_next);
            rows[c as usize].in_events = false;
            let event = self.connection_event_due(c);
            if event.is_some() {
                return event;
            }
        }
    }

    #[cold]
    fn rare_event(&mut self) -> Option<Event> {
        let event = self
            .poll_session_event()
            .or_else(|| self.poll_region_event())
            .or_else(|| self.poll_listen_failed())
            .or_else(|| self.poll_stopped());
        self.g.rare_events = event.is_some();
        event
    }

    /// Puts a connection in the round of those with events.
    pub(crate) fn mark_events(&mut self, c: u32) {
        self.hot().mark_events(c);
    }

    fn poll_session_event(&mut self) -> Option<Event> {
        while !self.g.session_events.is_empty() {
            let t = self.s.tables();
            let q = &mut self.g.session_events;
            let s = queue_pop!(t.sessions, q.head, q.tail, event_next);
            let row = &mut t.sessions[s as usize];
            row.in_events = false;
            let session = SessionId::new(s, row.generation);
            match row.state {
                SessionState::Requested if row.asked => {
                    row.asked = false;
                    return Some(self.session_request(s, session));
                }
                SessionState::Ended => {
                    let reason = row.reason;
                    self.session_input(s, SessionInput::Reported);
                    return Some(Event::SessionClosed { session, reason });
                }
                SessionState::Vacant => self.give_session(s),
                _ => {}
            }
        }
        None
    }

    fn session_request(&mut self, s: u32, session: SessionId) -> Event {
        let t = self.s.tables();
        let row = &t.sessions[s as usize];
        let slot = row.request;
        let asking = &t.connections[row.connections as usize];
        let (n, only) = (asking.nexus, asking.cross.only);
        let listener = ListenerId::new(row.listener, t.listeners[row.listener as usize].generation);
        // id, depths and lengths: the fixed part of a setup request's payload.
        let at = u32::from(row.setup_at) + 28;
        let uri = Span {
            slot,
            offset: at,
            len: row.uri_len.into(),
        };
        let private = Span {
            slot,
            offset: at + u32::from(row.uri_skip),
            len: row.private_len.into(),
        };
        let peer = t.nexuses[n as usize].peer;
        Event::SessionRequest {
            session,
            user: row.user,
            listener,
            peer,
            uri,
            private,
            only_from: (only != 0).then_some(only),
        }
    }

    fn poll_listen_failed(&mut self) -> Option<Event> {
        if !core::mem::take(&mut self.g.listen_failed) {
            return None;
        }
        let t = self.s.tables();
        for (index, l) in t.listeners.iter_mut().enumerate() {
            let (failed, lost) = (l.failed.take(), core::mem::take(&mut l.lost));
            if failed.is_none() && !lost {
                continue;
            }
            let listener = ListenerId::new(index as u32, l.generation);
            let user = l.user;
            l.live = false;
            self.g.listeners.give(t.listeners, index as u32);
            self.g.listen_failed = true;
            return Some(match failed {
                Some(error) => Event::ListenFailed {
                    listener,
                    user,
                    error,
                },
                None => Event::ListenerLost { listener, user },
            });
        }
        None
    }

    /// The next event of a connection, which goes to the end of the round if it has more.
    fn connection_event_due(&mut self, c: u32) -> Option<Event> {
        let row = self.connection(c);
        let first =
            ConnectionEvents::ESTABLISHED | ConnectionEvents::FAILED | ConnectionEvents::ANEW;
        let t = row.ev_head;
        if t != NONE && self.is_overdue(t) {
            // Its turn comes again with the timer.
            return None;
        }
        let row = self.connection(c);
        let event = if row.events.contains(ConnectionEvents::PORTALS) {
            Some(self.portals_event(c))
        } else if row.events.intersects(first) {
            Some(self.opening_event(c))
        } else if row.ev_head != NONE {
            self.next_task_event(c)
        } else if row.events.contains(ConnectionEvents::LOST) {
            Some(self.loss_event(c))
        } else if row.events.contains(ConnectionEvents::WRITABLE) {
            row.events.remove(ConnectionEvents::WRITABLE);
            let user = row.user;
            Some(Event::Writable {
                connection: self.connection_id(c),
                user,
            })
        } else if row.events.contains(ConnectionEvents::CLOSED) {
            row.events.remove(ConnectionEvents::CLOSED);
            let (user, reason, unanswered) = (row.user, row.reason, row.unanswered);
            let connection = self.connection_id(c);
            self.connection_input(c, ConnectionInput::Reported, None);
            return Some(Event::Closed {
                connection,
                user,
                reason,
                unanswered,
            });
        } else {
            None
        };
        let row = self.connection(c);
        if row.ev_head != NONE || !row.events.is_empty() {
            self.mark_events(c);
        }
        event
    }

    fn loss_event(&mut self, c: u32) -> Event {
        let connection = self.connection_id(c);
        let row = self.connection(c);
        row.events.remove(ConnectionEvents::LOST);
        let unanswered = core::mem::take(&mut row.unanswered);
        let (user, reason) = (row.user, row.reason);
        self.heard_of_loss(c);
        Event::Reconnecting {
            connection,
            user,
            reason,
            unanswered,
        }
    }

    fn opening_event(&mut self, c: u32) -> Event {
        let connection = self.connection_id(c);
        let row = self.connection(c);
        let failed = row.events.contains(ConnectionEvents::FAILED);
        let again = row.events.contains(ConnectionEvents::ANEW);
        let mut retry = self.retry(c);
        let attempts = retry.map_or(0, |retry| retry.attempts);
        let mut restarted = false;
        if let Some(retry) = retry.as_mut().filter(|_| again) {
            restarted = core::mem::take(&mut retry.restarted);
            self.set_retry(c, retry);
        }
        let row = self.connection(c);
        let slot = core::mem::replace(&mut row.setup_task, NONE);
        let (user, s, reason) = (row.user, row.session, row.reason);
        // One of them is there.
        row.events.remove(
            ConnectionEvents::ESTABLISHED | ConnectionEvents::FAILED | ConnectionEvents::ANEW,
        );
        let (message, private) = if slot == NONE {
            (None, Span::EMPTY)
        } else {
            let id = self.task_id(slot);
            let task = self.task(slot);
            task.events = TaskEvents::empty();
            let offset = task.header_at.into();
            (
                Some(id),
                Span {
                    slot,
                    offset,
                    len: task.rx_header_len.into(),
                },
            )
        };
        if failed {
            return Event::ConnectFailed {
                connection,
                user,
                reason,
                message,
                private,
            };
        }
        let session = self.session_id(s);
        if again {
            Event::Reconnected {
                connection,
                session,
                user,
                attempts,
                restarted,
                message,
                private,
            }
        } else {
            Event::Established {
                connection,
                session,
                user,
                message,
                private,
            }
        }
    }

    /// Private data of a setup answer: a slot in the user's hands that belongs to nobody else.
    pub(crate) fn deliver_private(&mut self, slot: u32, offset: u32, len: u32) {
        let t = self.s.tables();
        let generation = t.tasks[slot as usize].generation;
        t.tasks[slot as usize] = Task {
            generation,
            ..Task::VACANT
        };
        let row = &mut t.tasks[slot as usize];
        row.kind = Kind::SessionSetupRsp;
        row.flags = TaskFlags::INCOMING | TaskFlags::USER | TaskFlags::ORPHAN;
        // Not to be released before the event that names it.
        row.events = TaskEvents::MAIN;
        row.header_at = offset as u16;
        row.rx_header_len = len as u16;
        self.task_input(slot, crate::state::task::Input::Arrive);
        self.uncount_slot(slot);
    }

    fn next_task_event(&mut self, c: u32) -> Option<Event> {
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        let t = row.ev_head;
        let task = &mut tables.tasks[t as usize];
        let bit = task.events.iter().next();
        let bit = bit.unwrap_or(TaskEvents::empty());
        task.events.remove(bit);
        let last = task.events.is_empty();
        if last {
            task.flags.remove(TaskFlags::EVENTS);
            queue_pop!(tables.tasks, row.ev_head, row.ev_tail, event_next);
        }
        let (row, task) = (&tables.connections[c as usize], &tables.tasks[t as usize]);
        let event = task_event(c, row, t, task, bit);
        if bit == TaskEvents::MAIN {
            self.main_event_taken(c, t);
        }
        if self.task(t).flags.contains(TaskFlags::ORPHAN_LATER)
            && !self
                .task(t)
                .flags
                .intersects(TaskFlags::EVENTS | TaskFlags::LINGERS)
        {
            self.orphan_now(t);
        }
        self.try_free(t);
        event
    }

    /// The user knows of a received message now: a receipt that it wants is due.
    #[inline]
    fn main_event_taken(&mut self, c: u32, t: u32) {
        if self.task(t).flags.contains(TaskFlags::TIMED) {
            self.disarm(Timer::Task(t));
        }
        if mutated!(self.g, ReceiptForgotten) {
            return;
        }
        let task = self.task(t);
        let receipt = TaskFlags::INCOMING | TaskFlags::RECEIPT;
        // The outcome of an answer is an event of the same kind, also of one that never left: nothing
        // is due with that.
        let later = TaskFlags::ORPHAN_LATER | TaskFlags::RECEIPT_DONE | TaskFlags::RESPONSE;
        let lives = task.state != TaskState::Ended;
        if lives && task.flags.contains(receipt) && !task.flags.intersects(later) {
            self.queue_response(c, t);
        }
    }
}

/// Where a message's header and data lie: in its own receive slot, or in its answer's.
fn slot_of(t: u32, task: &Task) -> u32 {
    if task.flags.contains(TaskFlags::INCOMING) {
        t
    } else {
        task.answer
    }
}

fn header(t: u32, task: &Task) -> Span {
    Span {
        slot: slot_of(t, task),
        offset: task.header_at.into(),
        len: task.rx_header_len.into(),
    }
}

fn payload(t: u32, task: &Task) -> Data {
    if task.in_segments {
        let list = ListKind::In;
        return Data::Segments(SegmentSpan {
            task: t,
            list,
            skip: 0,
            len: task.data_len,
        });
    }
    Data::Slot(Span {
        slot: slot_of(t, task),
        offset: task.data_at.into(),
        len: task.data_len as u32,
    })
}

fn task_event(c: u32, row: &Connection, t: u32, task: &Task, bit: TaskEvents) -> Option<Event> {
    let id = TaskId::new(t, task.generation);
    let user = task.user;
    if bit == TaskEvents::RETURNED {
        return Some(Event::BuffersReturned { task: id, user });
    }
    if bit == TaskEvents::RECEIPT {
        let receipt = Receipt::from_code(task.receipt_code);
        return Some(Event::Delivered {
            task: id,
            user,
            receipt,
            buffers_returned: false,
        });
    }
    if bit == TaskEvents::WAITING {
        return Some(Event::PayloadWaiting {
            connection: ConnectionId::new(c, row.generation),
            user: row.user,
            task: id,
            header: header(t, task),
            len: task.transfer.total,
        });
    }
    if bit == TaskEvents::GIVEN_UP {
        // It may be answered meanwhile.
        let in_hands = task.state == TaskState::Delivered;
        return in_hands.then_some(Event::CancelAsked {
            connection: ConnectionId::new(c, row.generation),
            user: row.user,
            task: id,
        });
    }
    if bit != TaskEvents::MAIN {
        return None;
    }
    main_event(c, row, t, task)
}

/// A received message, or the outcome of one that was sent.
fn main_event(c: u32, row: &Connection, t: u32, task: &Task) -> Option<Event> {
    match task.ending {
        Ending::Open => task
            .flags
            .contains(TaskFlags::INCOMING)
            .then(|| received(c, row, t, task)),
        Ending::Good => Some(good(row, t, task)),
        _ => Some(outcome(t, task)),
    }
}

fn received(c: u32, row: &Connection, t: u32, task: &Task) -> Event {
    let connection = ConnectionId::new(c, row.generation);
    let user = row.user;
    let id = TaskId::new(t, task.generation);
    let (header, data) = (header(t, task), payload(t, task));
    let last_in_batch = task.flags.contains(TaskFlags::LAST);
    if task.kind == Kind::MsgReq {
        let room = task.offer_total;
        Event::Request {
            connection,
            user,
            task: id,
            header,
            data,
            room,
            last_in_batch,
        }
    } else {
        Event::OneWay {
            connection,
            user,
            task: id,
            header,
            data,
            last_in_batch,
        }
    }
}

fn good(row: &Connection, t: u32, task: &Task) -> Event {
    let id = TaskId::new(t, task.generation);
    let user = task.user;
    let buffers_returned = !task.flags.contains(TaskFlags::OWES_RETURN);
    let answered = task.kind == Kind::MsgReq
        && !task.flags.contains(TaskFlags::INCOMING)
        && task.direct == Direct::No;
    if !answered {
        return Event::Sent {
            task: id,
            user,
            buffers_returned,
        };
    }
    Event::Response {
        task: id,
        user,
        connection_user: row.user,
        header: header(t, task),
        data: payload(t, task),
        buffers_returned,
    }
}

/// The outcomes with a reason.
fn outcome(t: u32, task: &Task) -> Event {
    let id = TaskId::new(t, task.generation);
    let user = task.user;
    let buffers_returned = !task.flags.contains(TaskFlags::OWES_RETURN);
    match task.ending {
        Ending::Open | Ending::Good => Event::Sent {
            task: id,
            user,
            buffers_returned,
        },
        Ending::Receipt(code) => Event::Delivered {
            task: id,
            user,
            receipt: Receipt::from_code(code),
            buffers_returned,
        },
        Ending::Failed(failure) => Event::Failed {
            task: id,
            user,
            failure,
            buffers_returned,
        },
        Ending::TimedOut => Event::TimedOut {
            task: id,
            user,
            buffers_returned,
        },
        Ending::Cancelled => Event::Cancelled {
            task: id,
            user,
            buffers_returned,
        },
    }
}

impl Receipt {
    pub(crate) const fn from_code(code: u32) -> Self {
        if code == 0 {
            Self::Accepted
        } else {
            Self::Rejected(code)
        }
    }
}
