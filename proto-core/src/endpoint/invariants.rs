//! What must hold after every step, whatever happened. For simulator, model tests and fuzzers
//! (feature `check`); a failure is a bug of this crate.

use super::Endpoint;
use super::hot::FRAME;
use crate::entries::{Connection, Ending, Nexus, SlotUse, TaskFlags, WorkKind};
use crate::ids::NONE;
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::State as NexusState;
use crate::state::session::State as SessionState;
use crate::state::task::State as TaskState;
use crate::storage::{Storage, View};
use crate::trace::Trace;
use crate::wire::{Extensions, Framing, Kind};

/// Of transport connections that are up none belongs to an earlier life of a peer than another.
fn check_lives(view: &View<'_>) {
    let is_up = |row: &&Nexus| {
        let up = matches!(row.state, NexusState::Online | NexusState::Idle);
        up && row.can(Extensions::INCARNATION) && row.agreement.identity != 0
    };
    for row in view.nexuses.iter().filter(is_up) {
        let key = |row: &Nexus| (row.agreement.identity, row.transport, row.peer.ip());
        let mut other = row.agreement.next;
        while other != NONE {
            let known = &view.nexuses[other as usize];
            if is_up(&known) && key(row) == key(known) {
                let lives = (row.agreement.incarnation, known.agreement.incarnation);
                assert_eq!(lives.0, lives.1, "lives of a peer");
            }
            other = known.agreement.next;
        }
    }
}

/// Of connections that are to be the only one with their peer there is one at most.
fn check_only(view: &View<'_>) {
    let rows = view.connections.iter();
    let only = rows.filter(|row| row.cross.only != 0 && row.is_only());
    for row in only.clone() {
        let same = |other: &&Connection| other.cross.only == row.cross.only;
        let count = only.clone().filter(same).count();
        assert_eq!(
            count, 1,
            "connections with the only peer {:#x}",
            row.cross.only
        );
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Checks conservation (slots, receives, credits, work requests, tasks), every count against
    /// what it counts, and the order of deadlines.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        let view = self.s.view();
        self.check_pools(&view);
        for n in 0..view.nexuses.len() as u32 {
            if view.nexuses[n as usize].state != NexusState::Vacant {
                check_nexus(&view, n);
            }
        }
        for c in 0..view.connections.len() as u32 {
            if view.connections[c as usize].state != ConnectionState::Vacant {
                check_connection(&view, c);
            }
        }
        for (s, session) in view.sessions.iter().enumerate() {
            if session.state != SessionState::Vacant {
                let own =
                    |c: &&Connection| c.state != ConnectionState::Vacant && c.session == s as u32;
                let count = view.connections.iter().filter(own).count();
                assert_eq!(
                    count, session.connection_count as usize,
                    "connections of session {s}"
                );
            }
        }
        let queued: u32 = view.connections.iter().map(|c| c.queued_messages).sum();
        let life = &self.g.life;
        assert_eq!(queued, life.prep + life.pending, "messages without outcome");
        let bytes: u64 = view.connections.iter().map(|c| c.queued_bytes).sum();
        assert_eq!(bytes, self.g.queued_bytes, "their bytes");
        check_lives(&view);
        check_only(&view);
        self.check_sockets(&view);
        self.check_completions(&view);
        self.check_chunks(&view);
        self.check_shared(&view);
        self.check_timers(&view);
        assert!(
            self.g.waits || !self.g.has_lines(),
            "a line that nobody knows of"
        );
    }

    /// The rows that are in use, for the message of a test that expected none.
    pub fn rows_in_use(
        &self,
    ) -> impl Iterator<Item = (usize, &crate::entries::Slot, &crate::entries::Task)> {
        let view = self.s.view();
        let rows = view.slots.iter().zip(view.tasks).enumerate();
        rows.filter(|(_, (slot, _))| slot.usage != SlotUse::Free)
            .map(|(i, (slot, task))| (i, slot, task))
    }

    /// Send slots are counted to whom they are, and who waits is counted where it stands.
    fn check_shares(&self, view: &View<'_>, send: &[crate::entries::Slot]) {
        let mut sure = 0;
        for (n, nexus) in view.nexuses.iter().enumerate() {
            let its = |slot: &&crate::entries::Slot| {
                slot.usage != SlotUse::Free && slot.nexus == n as u32
            };
            let held = send.iter().filter(its).count();
            assert_eq!(held as u32, nexus.tx_held, "send slots of nexus {n}");
            sure += self.g.sure_of(nexus.tx_held);
        }
        assert_eq!(sure, self.g.sure_used, "send slots that all are sure of");
    }

    fn check_pools(&self, view: &View<'_>) {
        let rx = self.g.config.rx_slots as usize;
        let (receive, send) = view.slots.split_at(rx);
        let used = |slots: &[crate::entries::Slot]| {
            slots
                .iter()
                .filter(|slot| slot.usage != SlotUse::Free)
                .count()
        };
        let tx = self.g.config.tx_slots as usize;
        assert_eq!(
            used(receive) + self.g.rx_slots.free() as usize,
            rx,
            "receive slots"
        );
        assert_eq!(
            used(&send[..tx]) + self.g.tx_slots.free() as usize,
            tx,
            "send slots"
        );
        self.check_shares(view, &send[..tx]);
        let live = view.work.iter().filter(|work| work.live).count();
        assert_eq!(
            live + self.g.work.free() as usize,
            view.work.len(),
            "work entries"
        );
        let tasks = &view.tasks[rx..];
        let live = tasks
            .iter()
            .filter(|task| task.state != TaskState::Vacant)
            .count();
        assert_eq!(
            live + self.g.tasks.free() as usize,
            tasks.len(),
            "outgoing tasks"
        );
        for (t, task) in view.tasks[..rx].iter().enumerate() {
            let held = task.state == TaskState::Vacant
                || view.slots[t].usage == SlotUse::Filled
                || view.slots[t].usage == SlotUse::Filling;
            assert!(
                held,
                "receive task {t} in {:?} without its slot",
                task.state
            );
        }
        let rdma = view
            .nexuses
            .iter()
            .filter(|nexus| nexus.state != NexusState::Vacant && nexus.framing == Framing::Rdma);
        assert_eq!(
            rdma.count(),
            self.g.receiving as usize,
            "nexuses that receive"
        );
    }

    fn check_completions(&self, view: &View<'_>) {
        for (index, transport) in self.g.transports.iter().enumerate() {
            if !transport.known {
                continue;
            }
            let out = view
                .nexuses
                .iter()
                .filter(|nexus| nexus.state != NexusState::Vacant)
                .filter(|nexus| usize::from(nexus.transport) == index)
                .map(|nexus| u32::from(nexus.posted) + u32::from(nexus.sq_used))
                .sum::<u32>();
            let out = out + self.g.spares[index].count;
            assert_eq!(out, transport.cq_used, "completions that can come");
            assert!(out <= transport.limits.cq_depth, "completion queue overrun");
        }
    }

    fn check_timers(&self, view: &View<'_>) {
        let armed = &view.timers[..self.g.timers as usize];
        for (place, entry) in armed.iter().enumerate().skip(1) {
            let above = armed[(place - 1) / 2];
            assert!(above.at <= entry.at, "deadlines out of order at {place}");
        }
    }
}

pub(crate) fn chain(
    first: u32,
    next: impl Fn(u32) -> u32,
    limit: usize,
) -> impl Iterator<Item = u32> {
    let mut at = first;
    let mut left = limit + 1;
    core::iter::from_fn(move || {
        if at == NONE {
            return None;
        }
        left -= 1;
        assert!(left > 0, "a list runs in a circle");
        let this = at;
        at = next(at);
        Some(this)
    })
}

fn check_nexus(view: &View<'_>, n: u32) {
    let nexus = &view.nexuses[n as usize];
    let posted = chain(
        nexus.rq_head,
        |s| view.slots[s as usize].next_free,
        view.slots.len(),
    );
    let mut count = 0;
    for slot in posted {
        assert_eq!(
            view.slots[slot as usize].usage,
            SlotUse::Posted,
            "slot {slot} on a queue"
        );
        assert_eq!(
            view.slots[slot as usize].nexus, n,
            "slot {slot} on another's queue"
        );
        count += 1;
    }
    assert_eq!(
        count,
        u32::from(nexus.posted),
        "receives posted on nexus {n}"
    );
    // A frame that is not understood uses a receive without being taken; the nexus ends with it.
    let up = matches!(nexus.state, NexusState::Online | NexusState::Idle);
    assert!(
        !up || nexus.granted <= nexus.posted + u16::from(nexus.robbed),
        "nexus {n} granted what is not posted"
    );
    let held = view
        .slots
        .iter()
        .filter(|slot| slot.nexus == n && matches!(slot.usage, SlotUse::Filled | SlotUse::Filling));
    assert_eq!(
        held.count(),
        usize::from(nexus.held),
        "slots held on nexus {n}"
    );
    check_send_queue(view, n);
    let next = |c: u32| view.connections[c as usize].nexus_next;
    let (mut living, mut prev) = (0, NONE);
    for c in chain(nexus.connections, next, view.connections.len()) {
        let row = &view.connections[c as usize];
        assert_eq!(row.nexus, n, "connection {c} on another's list");
        assert_eq!(row.nexus_prev, prev, "back link of connection {c}");
        prev = c;
        let gone = row.state.is_off();
        living += u32::from(!gone);
    }
    assert_eq!(living, nexus.connection_count, "connections of nexus {n}");
}

fn check_send_queue(view: &View<'_>, n: u32) {
    let nexus = &view.nexuses[n as usize];
    let (mut used, mut bytes, mut reads) = (0, 0, 0);
    let next = |at: u32| match at & FRAME {
        0 => view.work[at as usize].next_free,
        _ => view.tasks[(at ^ FRAME) as usize].sq_next,
    };
    for at in chain(nexus.sq_head, next, view.work.len() + view.tasks.len()) {
        let (here, len) = if at & FRAME == 0 {
            let work = &view.work[at as usize];
            reads += u32::from(work.kind == WorkKind::Read);
            (work.live && work.nexus == n, work.bytes)
        } else {
            let task = &view.tasks[(at ^ FRAME) as usize];
            let on_queue = task.flags.contains(TaskFlags::ON_QUEUE);
            (on_queue && task.nexus == n, task.sq_bytes.into())
        };
        assert!(here, "work request {at:#x} on another's queue");
        used += 1;
        bytes += len;
    }
    assert_eq!(used, u32::from(nexus.sq_used), "send queue of nexus {n}");
    assert_eq!(reads, u32::from(nexus.reads_used), "READs of nexus {n}");
    assert_eq!(
        bytes, nexus.sq_bytes,
        "bytes on the send queue of nexus {n}"
    );
}

fn check_connection(view: &View<'_>, c: u32) {
    let row = &view.connections[c as usize];
    let (mut queued, mut unanswered, mut held, mut prev) = (0, 0, 0, NONE);
    for t in chain(row.tasks, |t| view.tasks[t as usize].next, view.tasks.len()) {
        let task = &view.tasks[t as usize];
        assert_eq!(task.connection, c, "task {t} on another's list");
        assert_eq!(task.prev, prev, "back link of task {t}");
        assert!(task.state != TaskState::Vacant, "free task {t} on a list");
        prev = t;
        let incoming = task.flags.contains(TaskFlags::INCOMING);
        queued += u32::from(!incoming && task.ending == Ending::Open);
        let open = matches!(task.state, TaskState::Delivered | TaskState::Fetching);
        let asked = incoming && task.kind == Kind::MsgReq && task.flags.contains(TaskFlags::USER);
        unanswered += u32::from(asked && open);
        held += u32::from(task.flags.contains(TaskFlags::LINGERS));
        let out = view
            .work
            .iter()
            .filter(|work| work.live && work.task == t)
            .count();
        let out = out + usize::from(task.flags.contains(TaskFlags::ON_QUEUE));
        let out = out + view.sockets.iter().filter(|s| s.writes_into(t)).count();
        assert_eq!(out, usize::from(task.work), "work requests of task {t}");
    }
    assert_eq!(
        queued, row.queued_messages,
        "unfinished messages of connection {c}"
    );
    assert_eq!(held, row.held, "lingering messages of connection {c}");
    let lost = matches!(
        row.state,
        ConnectionState::Parting | ConnectionState::Waiting
    );
    assert!(
        !lost || row.frames.is_empty(),
        "frames of connection {c}, which has nowhere to send them"
    );
    if !row.state.is_off() {
        assert_eq!(
            unanswered, row.unanswered,
            "unanswered requests of connection {c}"
        );
    }
    let control = view
        .work
        .iter()
        .filter(|work| work.live && work.connection == c)
        .count();
    assert_eq!(
        control,
        usize::from(row.control_work),
        "control frames of connection {c}"
    );
}
