//! What decides how an endpoint goes on, for searches that visit each state once (feature `check`).

use core::hash::{Hash as _, Hasher};

use super::hot::FRAME;
use super::{ConnectionCounters, Endpoint, Globals, NexusCounters};
use crate::entries::{Agreement, Connection, Nexus, Past, Session, SlotUse, Task, TaskFlags};
use crate::ids::{NONE, TaskId, WrId};
use crate::memory::Segment;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::State as NexusState;
use crate::state::session::State as SessionState;
use crate::state::task::State as TaskState;
use crate::storage::{Storage, View};
use crate::timer::Timer;
use crate::trace::Trace;

/// Rows of a table that can have names.
const ROWS: usize = 64;

/// Names of received messages and work requests that do not depend on which of the free rows they
/// got, or how often these were used: what is in the same place of the same list has the same name.
#[derive(Clone, Debug)]
pub struct Names {
    rx_slots: u32,
    tasks: [u32; ROWS],
    work: [u32; ROWS],
}

impl Names {
    /// Of a message. Sent ones travel under the number of their row, so that this is their name.
    pub fn task(&self, id: TaskId) -> u64 {
        let generation = if id.at() < self.rx_slots {
            0
        } else {
            id.generation()
        };
        u64::from(generation) << 32 | u64::from(self.row(id.at()))
    }

    /// Of a work request: of a receive none, as the order of a queue says which it is.
    pub fn work(&self, wr: WrId) -> u32 {
        let at = wr.index();
        if wr.is_recv() {
            NONE
        } else if wr.is_send() {
            self.work.get(at as usize).copied().unwrap_or(NONE)
        } else {
            FRAME | self.row(at)
        }
    }

    fn row(&self, t: u32) -> u32 {
        if t < self.rx_slots {
            FRAME >> 1 | self.tasks[t as usize]
        } else {
            t
        }
    }

    /// Where a list of rows in the order of `next` leads.
    fn list(&self, out: &mut impl Hasher, head: u32, next: impl Fn(u32) -> u32) {
        let mut at = head;
        while at != NONE {
            self.row(at).hash(out);
            at = next(at);
        }
        NONE.hash(out);
    }

    fn new(view: &View<'_>, rx_slots: u32) -> Self {
        assert!(view.tasks.len().max(view.work.len()) <= ROWS, "too large");
        let mut names = Self {
            rx_slots,
            tasks: [NONE; ROWS],
            work: [NONE; ROWS],
        };
        let mut count = 0;
        let mut give = |t: u32| {
            let name = &mut names.tasks[t as usize];
            if t < rx_slots && *name == NONE {
                *name = count;
                count += 1;
            }
        };
        for row in view.connections {
            let mut at = row.tasks;
            while row.state != ConnectionState::Vacant && at != NONE {
                give(at);
                at = view.tasks[at as usize].next;
            }
        }
        for t in 0..rx_slots {
            if view.tasks[t as usize].state != TaskState::Vacant {
                give(t);
            }
        }
        for row in view.nexuses {
            let (mut at, mut place) = (row.sq_head, 0);
            while row.state != NexusState::Vacant && row.sq_used > 0 && place < row.sq_used {
                at = if at & FRAME != 0 {
                    view.tasks[(at ^ FRAME) as usize].sq_next
                } else {
                    names.work[at as usize] = place.into();
                    view.work[at as usize].next_free
                };
                place += 1;
            }
        }
        names
    }
}

/// Which slot is a name only: each has one owner.
const fn whether(index: u32) -> u32 {
    if index == NONE { NONE } else { 0 }
}

/// What is remembered, but for the number that differs with each transport connection.
const fn without_token(past: Past) -> Past {
    let (token, sent) = match past.token {
        Past::ANSWER => (Past::ANSWER, 0),
        token => (token & 1, past.sent),
    };
    Past {
        token,
        sent,
        next: past.next,
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Feeds all that decides what the endpoint does from here on: what is no table, and each row
    /// that is not free. What only counts what has been is left out, and so is which of several free
    /// slots, received messages and work entries was taken, so that two ways to the same state look
    /// alike. Returns the names under which rows went in. Sockets, pools of payload and shared queues
    /// are not told apart.
    ///
    /// # Panics
    /// More than 64 tasks or work entries.
    pub fn hash_state(&self, out: &mut impl Hasher) -> Names {
        let view = self.s.view();
        let names = Names::new(&view, self.g.config.rx_slots);
        hash_globals(&self.g, out);
        hash_free(&self.g, &view, out);
        for (n, row) in view.nexuses.iter().enumerate() {
            if row.state != NexusState::Vacant {
                n.hash(out);
                hash_nexus(&view, row, &names, out);
            }
        }
        for (c, row) in view.connections.iter().enumerate() {
            if row.state != ConnectionState::Vacant {
                c.hash(out);
                hash_connection(&view, row, &names, out);
            }
        }
        for (s, row) in view.sessions.iter().enumerate() {
            let past = without_token(row.past);
            if row.state != SessionState::Vacant {
                let request = whether(row.request);
                let row = row.clone();
                let row = Session {
                    past,
                    request,
                    timer: whether(row.timer),
                    ..row
                };
                (s, row).hash(out);
            } else if row.past.is_life() {
                // Whoever names it is answered.
                (s, row.own_id, past).hash(out);
            }
        }
        hash_tasks(&view, &names, out);
        // Posted receives are as good as each other, and are counted where they are.
        for row in view.slots {
            let is_told = !matches!(row.usage, SlotUse::Free | SlotUse::Posted);
            if is_told {
                row.usage.hash(out);
            }
        }
        for timer in &view.timers[..self.g.timers as usize] {
            timer.at.hash(out);
            match Timer::from_code(timer.timer) {
                Timer::Task(t) => names.row(t).hash(out),
                _ => (NONE, timer.timer).hash(out),
            }
        }
        names
    }
}

/// What is no table. Settings stay what they are, and counters have no say.
fn hash_globals(g: &Globals, out: &mut impl Hasher) {
    (g.now, g.timers, g.queued_bytes, g.half_open).hash(out);
    (g.receiving, g.rx_kept, g.attempt_at, g.stop).hash(out);
    (g.regions_due, g.region_events, g.rare_events, g.waits).hash(out);
    (g.listeners_due, g.listen_failed).hash(out);
    g.incompatible.as_slice().hash(out);
    for pool in [&g.rx_slots, &g.tx_slots, &g.work, &g.sockets, &g.extents] {
        pool.free().hash(out);
    }
    (g.listeners.free(), g.regions.free()).hash(out);
    let lines = [g.connection_events, g.session_events, g.past_sessions];
    (lines, g.blocked, g.slot_line).hash(out);
    (g.own_lines, g.sharers, g.sure_used).hash(out);
    (g.first_slot, g.more_slots, g.full_slots).hash(out);
    for transport in g.transports.iter().filter(|transport| transport.known) {
        (transport.cq_used, transport.ready, transport.control).hash(out);
        (transport.streams, transport.closing).hash(out);
    }
}

/// Free rows that peers may hear of under their numbers, in the order in which they are taken.
fn hash_free(g: &Globals, view: &View<'_>, out: &mut impl Hasher) {
    for (n, row) in g.nexuses.given(view.nexuses, |row| row.next_free) {
        (n, row.generation).hash(out);
    }
    NONE.hash(out);
    for (c, row) in g.connections.given(view.connections, |row| row.next_free) {
        (c, row.generation).hash(out);
    }
    NONE.hash(out);
    for (s, row) in g.sessions.given(view.sessions, |row| row.next_free) {
        (s, row.generation).hash(out);
    }
    NONE.hash(out);
    for (t, row) in g.tasks.given(view.tasks, |row| row.next_free) {
        (t, row.generation).hash(out);
    }
    (g.nexuses.free(), g.connections.free()).hash(out);
    (g.sessions.free(), g.tasks.free()).hash(out);
}

fn hash_nexus(view: &View<'_>, row: &Nexus, names: &Names, out: &mut impl Hasher) {
    let queue_next = |t: u32| view.tasks[t as usize].queue_next;
    names.list(out, row.ack_head, queue_next);
    names.list(out, row.rdma_head, queue_next);
    let mut at = row.sq_head;
    for _ in 0..row.sq_used {
        if at & FRAME != 0 {
            let task = &view.tasks[(at ^ FRAME) as usize];
            (names.row(at ^ FRAME), task.sq_bytes).hash(out);
            at = task.sq_next;
        } else {
            let work = &view.work[at as usize];
            let task = match work.task {
                NONE => NONE,
                t => names.row(t),
            };
            (work.kind, work.nexus, work.connection, work.bytes).hash(out);
            (task, whether(work.slot)).hash(out);
            at = work.next_free;
        }
    }
    // Numbers that differ with each setup, and mean nothing to what comes after it.
    let agreement = Agreement {
        nonce: 0,
        check: 0,
        ..row.agreement
    };
    let list = whether(row.rq_head);
    let row = Nexus {
        traffic: NexusCounters::ZERO,
        agreement,
        timer: whether(row.timer),
        rq_head: list,
        rq_tail: list,
        sq_head: NONE,
        sq_tail: NONE,
        ack_head: NONE,
        ack_tail: NONE,
        rdma_head: NONE,
        rdma_tail: NONE,
        ..row.clone()
    };
    row.hash(out);
}

fn hash_connection(view: &View<'_>, row: &Connection, names: &Names, out: &mut impl Hasher) {
    let task = |t: u32| &view.tasks[t as usize];
    for head in [row.req_head, row.rsp_head, row.pool_head] {
        names.list(out, head, |t| task(t).queue_next);
    }
    for head in [row.hold_head, row.withdrawn_head] {
        names.list(out, head, |t| task(t).hold_next);
    }
    names.list(out, row.ev_head, |t| task(t).event_next);
    names.list(out, row.tasks, |t| task(t).next);
    let row = Connection {
        traffic: ConnectionCounters::ZERO,
        timer: whether(row.timer),
        keepalive_timer: whether(row.keepalive_timer),
        tasks: NONE,
        setup_slot: whether(row.setup_slot),
        portals_slot: whether(row.portals_slot),
        setup_task: whether(row.setup_task),
        req_head: NONE,
        req_tail: NONE,
        rsp_head: NONE,
        rsp_tail: NONE,
        withdrawn_head: NONE,
        withdrawn_tail: NONE,
        pool_head: NONE,
        pool_tail: NONE,
        hold_head: NONE,
        hold_tail: NONE,
        ev_head: NONE,
        ev_tail: NONE,
        ..row.clone()
    };
    row.hash(out);
}

/// Received ones in the order of their names, then those that are sent.
fn hash_tasks(view: &View<'_>, names: &Names, out: &mut impl Hasher) {
    let rx = names.rx_slots as usize;
    for name in 0..names.rx_slots {
        let Some(t) = names.tasks[..rx].iter().position(|has| *has == name) else {
            break;
        };
        hash_task(&view.tasks[t], true, out);
    }
    for (t, row) in view.tasks.iter().enumerate().skip(rx) {
        if row.state != TaskState::Vacant {
            t.hash(out);
            hash_task(row, false, out);
        }
    }
}

fn hash_task(row: &Task, is_received: bool, out: &mut impl Hasher) {
    let mut row = row.clone();
    if row.is_retry() {
        // Only whether there is a life to be asked about counts.
        row.remote_addr &= 1;
        row.hash(out);
        return;
    }
    if is_received {
        row.generation = 0;
    }
    for list in [&mut row.out, &mut row.into] {
        let used = usize::from(list.count).min(list.inline.len());
        list.inline[used..].fill(Segment::default());
    }
    if !row.flags.contains(TaskFlags::TIMED) {
        row.expires = 0;
    }
    // What was never sent has its number yet to get.
    if row.state == TaskState::Queued && !row.flags.contains(TaskFlags::KEPT) {
        row.serial = 0;
    }
    row.slot = whether(row.slot);
    row.answer = whether(row.answer);
    row.timer = whether(row.timer);
    // Told as lists; what is on none has what was there before.
    for link in [
        &mut row.next_free,
        &mut row.prev,
        &mut row.next,
        &mut row.queue_next,
        &mut row.event_next,
        &mut row.hold_next,
        &mut row.sq_next,
        &mut row.sq_bytes,
    ] {
        *link = NONE;
    }
    row.hash(out);
}
