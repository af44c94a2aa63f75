//! Main events of plain messages.

use crate::endpoint::{Endpoint, Hot};
use crate::entries::{Direct, Ending, Task, TaskEvents, TaskFlags};
use crate::event::{Data, Event};
use crate::ids::{ConnectionId, NONE, TaskId};
use crate::memory::Span;
use crate::state::task::State;
use crate::storage::Storage;
use crate::trace::Trace;
use crate::wire::Kind;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The next event of the connection that is first in the round, if it is a message's main one
    /// and nothing but the message's end follows from it. `None`: it is not, and nothing changed.
    #[inline(always)]
    pub(crate) fn plain_event(&mut self) -> Option<Event> {
        let c = self.g.connection_events.head;
        let row = self.connection(c);
        let t = row.ev_head;
        if !row.events.is_empty() {
            return None;
        }
        let task = self.s.tables().tasks.get(t as usize)?;
        let later = TaskFlags::RECEIPT | TaskFlags::ORPHAN_LATER | TaskFlags::TIMED;
        if task.events != TaskEvents::MAIN || task.flags.intersects(later) || task.in_segments {
            return None;
        }
        let incoming = task.flags.contains(TaskFlags::INCOMING);
        match (task.state, task.ending) {
            (State::Delivered, Ending::Open) => Some(self.hot().received(c, t)),
            (State::Ended, Ending::Good) if incoming => {
                let over = ends_with_its_event(task) && !self.g.anyone_waits();
                over.then(|| self.hot().answered(c, t))
            }
            (State::Ended, Ending::Good) => {
                let answer = task.flags.contains(TaskFlags::USER)
                    && task.kind == Kind::MsgReq
                    && task.direct == Direct::No;
                answer.then(|| self.hot().answer(c, t))
            }
            _ => None,
        }
    }
}

/// Whether an answered request's row is over with its event.
#[inline(always)]
fn ends_with_its_event(task: &Task) -> bool {
    let held = TaskFlags::USER
        | TaskFlags::LINGERS
        | TaskFlags::PEER_HOLDS
        | TaskFlags::QUEUED
        | TaskFlags::HELD_BACK
        | TaskFlags::ORPHAN
        | TaskFlags::POOLED
        | TaskFlags::OWES_RETURN;
    let lists = task.out.extent & task.into.extent;
    task.work == 0 && !task.flags.intersects(held) && (lists & task.slot & task.answer) == NONE
}

/// Header and data of a message in a receive slot.
#[inline(always)]
fn spans(slot: u32, task: &Task) -> (Span, Data) {
    let header = Span {
        slot,
        offset: task.header_at.into(),
        len: task.rx_header_len.into(),
    };
    let data = Span {
        slot,
        offset: task.data_at.into(),
        len: task.data_len as u32,
    };
    (header, Data::Slot(data))
}

impl<T: Trace> Hot<'_, T> {
    /// A request or one-way that came.
    #[inline(always)]
    fn received(&mut self, c: u32, t: u32) -> Event {
        self.take_event(c, t);
        let (row, task) = (&self.connections[c as usize], &self.tasks[t as usize]);
        let connection = ConnectionId::new(c, row.generation);
        let user = row.user;
        let id = TaskId::new(t, task.generation);
        let (header, data) = spans(t, task);
        let last_in_batch = task.flags.contains(TaskFlags::LAST);
        if task.kind == Kind::MsgReq {
            return Event::Request {
                connection,
                user,
                task: id,
                header,
                data,
                room: task.offer_total,
                last_in_batch,
            };
        }
        Event::OneWay {
            connection,
            user,
            task: id,
            header,
            data,
            last_in_batch,
        }
    }

    /// The answer to a request.
    #[inline(always)]
    fn answer(&mut self, c: u32, t: u32) -> Event {
        self.take_event(c, t);
        let (row, task) = (&self.connections[c as usize], &self.tasks[t as usize]);
        let (header, data) = spans(task.answer, task);
        Event::Response {
            task: TaskId::new(t, task.generation),
            user: task.user,
            connection_user: row.user,
            header,
            data,
            buffers_returned: !task.flags.contains(TaskFlags::OWES_RETURN),
        }
    }

    /// A request was answered, and is over.
    #[inline(always)]
    fn answered(&mut self, c: u32, t: u32) -> Event {
        self.take_event(c, t);
        let row = &self.tasks[t as usize];
        let (user, task) = (row.user, TaskId::new(t, row.generation));
        self.unlink_task(t);
        self.free_incoming(t);
        Event::Sent {
            task,
            user,
            buffers_returned: true,
        }
    }

    /// Takes a message's last event off its connection's list, and the connection off the round,
    /// to whose end it goes if it has more.
    #[inline(always)]
    fn take_event(&mut self, c: u32, t: u32) {
        let task = &mut self.tasks[t as usize];
        task.events = TaskEvents::empty();
        task.flags.remove(TaskFlags::EVENTS);
        let row = &mut self.connections[c as usize];
        row.ev_head = task.event_next;
        row.in_events = false;
        self.g.connection_events.head = row.event_next;
        if row.ev_head != NONE {
            self.mark_events(c);
        }
    }
}
