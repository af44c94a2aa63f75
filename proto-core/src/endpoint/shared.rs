//! One receive queue for all queue pairs of a transport (PROTOCOL.md 6.5).
//!
//! Receives on it are alike, so each is counted to a nexus all the same: what a nexus may grant is
//! what it has there, exactly as with a queue of its own. A completion names the nexus whose frame
//! took a receive; when it is one that was counted to another, the two exchange.

use super::{Endpoint, TRANSPORTS_MAX};
use crate::entries::SlotUse;
use crate::error::Reason;
use crate::ids::{NONE, NexusId};
use crate::input::Completion;
use crate::inputs::recorded;
use crate::memory::Slots;
use crate::state::nexus::{Input, State};
use crate::storage::Storage;
use crate::table::{Queue, queue_pop, queue_push};
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::{Framing, Violation, What};

/// Receives on a shared queue that are no nexus's: whose nexus is gone, until another takes them.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Spare {
    slots: Queue,
    pub(crate) count: u32,
    /// All that is on the queue, these included.
    pub(crate) posted: u32,
}

pub(crate) type Spares = [Spare; TRANSPORTS_MAX];

impl Spare {
    pub(crate) const NONE: Self = Self {
        slots: Queue::EMPTY,
        count: 0,
        posted: 0,
    };
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes the completion of a receive of a shared queue, and the nexus on whose queue pair the
    /// frame came. Completions of sends go to
    /// [`handle_completion`](Self::handle_completion) as ever.
    ///
    /// A frame of a peer without a receive of its own ends that nexus; the one whose receive it took
    /// gets another.
    pub fn handle_shared_completion(
        &mut self,
        now: Instant,
        nexus: NexusId,
        completion: Completion,
        slots: &mut impl Slots,
    ) {
        recorded!(self, SharedCompletion { now, nexus, completion, frame: self.received_frame(completion, slots) } => self.handle_shared_completion(now, nexus, completion, slots));
        self.set_now(now);
        let slot = completion.wr.index();
        let row = self.s.tables().slots.get(slot as usize);
        let posted = row.is_some_and(|row| {
            row.usage == SlotUse::Posted && completion.wr.matches(row.generation)
        });
        if !completion.wr.is_recv() || !posted {
            self.g.counters.stale += 1;
            return;
        }
        let n = self.find_nexus(nexus);
        match n {
            Some(n) if self.nexus(n).posted > 0 => {
                self.exchange(n, slot);
                let transport = self.nexus(n).transport;
                self.g.spares[usize::from(transport)].posted -= 1;
                self.handle_completion(now, completion, slots);
            }
            _ => self.robbed(n, slot),
        }
    }

    /// Takes the driver's word that no receive of the shared queue will be completed for a nexus any
    /// more: its queue pair is in the error state, as [`Control::Drain`](crate::Control::Drain) asked,
    /// and has taken its last one (`IBV_EVENT_QP_LAST_WQE_REACHED`); what it took has been told.
    /// Before that it means nothing.
    pub fn handle_last_receive(&mut self, now: Instant, nexus: NexusId) {
        recorded!(self, LastReceive { now, nexus } => self.handle_last_receive(now, nexus));
        self.set_now(now);
        let Some(n) = self.find_nexus(nexus) else {
            self.g.counters.stale_cm += 1;
            return;
        };
        if self.is_shared(n) && self.nexus(n).state == State::Draining {
            self.leave_receives(n);
            self.check_drained(n);
        }
    }

    /// Whether a nexus's receives are on a queue shared with others of its transport.
    pub(crate) fn is_shared(&mut self, n: u32) -> bool {
        let row = self.nexus(n);
        let rdma = row.framing == Framing::Rdma;
        let transport = row.transport;
        rdma && self.transport(transport).limits.shared_receive_queue
    }

    /// A nexus's frame came in a receive that may be counted to another: the other gets one of its.
    fn exchange(&mut self, n: u32, slot: u32) {
        let tables = self.s.tables();
        if tables.slots[slot as usize].nexus == n {
            return;
        }
        let row = &mut tables.nexuses[n as usize];
        let own = queue_pop!(tables.slots, row.rq_head, row.rq_tail, next_free);
        self.replace(slot, own);
        let tables = self.s.tables();
        let row = &mut tables.nexuses[n as usize];
        let taken = &mut tables.slots[slot as usize];
        taken.nexus = n;
        taken.next_free = row.rq_head;
        if row.rq_head == NONE {
            row.rq_tail = slot;
        }
        row.rq_head = slot;
    }

    /// Takes a slot out of the list that it is on, and puts another at that list's end.
    fn replace(&mut self, slot: u32, by: u32) {
        let tables = self.s.tables();
        let m = tables.slots[slot as usize].nexus;
        if by != NONE {
            tables.slots[by as usize].nexus = m;
        }
        let transport = match tables.nexuses.get(m as usize) {
            Some(row) => row.transport,
            None => self.transport_of_spare(slot),
        };
        let tables = self.s.tables();
        let (head, tail) = match tables.nexuses.get_mut(m as usize) {
            Some(row) => (&mut row.rq_head, &mut row.rq_tail),
            None => {
                let list = &mut self.g.spares[usize::from(transport)].slots;
                (&mut list.head, &mut list.tail)
            }
        };
        // A shared queue is served in order, so it is the first, or near it.
        let (mut before, mut at) = (NONE, *head);
        while at != slot {
            before = at;
            at = tables.slots[at as usize].next_free;
        }
        let next = tables.slots[slot as usize].next_free;
        if before == NONE {
            *head = next;
        } else {
            tables.slots[before as usize].next_free = next;
        }
        if next == NONE {
            *tail = before;
        }
        if by != NONE {
            queue_push!(tables.slots, *head, *tail, next_free, by);
        }
    }

    /// The transport on whose shared queue a receive without a nexus is.
    fn transport_of_spare(&mut self, slot: u32) -> u8 {
        let slots = self.s.tables().slots;
        let on = |spare: &Spare| {
            let mut at = spare.slots.head;
            while at != NONE && at != slot {
                at = slots[at as usize].next_free;
            }
            at == slot
        };
        let Some(transport) = self.g.spares.iter().position(on) else {
            unreachable!("a posted receive is on a list");
        };
        transport as u8
    }

    /// A frame that nobody had granted took a receive of another's, who gets a new one.
    fn robbed(&mut self, n: Option<u32>, slot: u32) {
        let m = self.take_off(slot);
        if m != NONE {
            let row = self.nexus(m);
            row.robbed = row.robbed.saturating_add(1);
            row.post_at_once();
            self.mark_ready(m);
        }
        let Some(n) = n else {
            self.g.counters.stale_cm += 1;
            return;
        };
        if matches!(self.nexus(n).state, State::Online | State::Idle) {
            self.g.counters.violations += 1;
            let violation = Violation::new(What::NoCredit, 0, 0);
            self.nexus_input(n, Input::Fail, Some(Reason::Violation(violation)));
        }
    }

    /// A receive is not on the shared queue any more, or never was. Whose it was.
    fn take_off(&mut self, slot: u32) -> u32 {
        let m = self.s.tables().slots[slot as usize].nexus;
        let transport = match m {
            NONE => self.transport_of_spare(slot),
            m => self.nexus(m).transport,
        };
        self.replace(slot, NONE);
        self.transport(transport).cq_used -= 1;
        self.g.spares[usize::from(transport)].posted -= 1;
        if m == NONE {
            self.g.spares[usize::from(transport)].count -= 1;
        } else {
            self.nexus(m).posted -= 1;
        }
        self.free_slot(slot);
        m
    }

    /// A receive could not be posted. On a shared queue nothing else would bring it back: the queue
    /// outlives the nexus.
    pub(crate) fn unposted_receive(&mut self, n: u32, slot: u32) {
        let posted = self.s.tables().slots[slot as usize].usage == SlotUse::Posted;
        if posted && self.is_shared(n) {
            self.take_off(slot);
        }
    }

    /// Receives of a shared queue that were no nexus's become this one's, as many as its batch lacks.
    /// Returns whether it lacks none then.
    pub(crate) fn adopt_receives(&mut self, n: u32) -> bool {
        let transport = usize::from(self.nexus(n).transport);
        while self.g.spares[transport].count > 0 && self.nexus(n).batch_left > 0 {
            let tables = self.s.tables();
            let spare = &mut self.g.spares[transport];
            let slot = queue_pop!(tables.slots, spare.slots.head, spare.slots.tail, next_free);
            spare.count -= 1;
            self.enter_receive(n, slot);
        }
        self.nexus(n).batch_left == 0
    }

    /// Whether one more receive may be posted on a nexus's queue, as far as a shared queue's depth
    /// says; it is counted then.
    pub(crate) fn enter_shared(&mut self, n: u32) -> bool {
        let transport = self.nexus(n).transport;
        let depth = u32::from(self.transport(transport).limits.rq_depth);
        let spare = &mut self.g.spares[usize::from(transport)];
        let fits = spare.posted < depth;
        spare.posted += u32::from(fits);
        fits
    }

    /// The receives of a nexus that is gone stay on the shared queue.
    pub(crate) fn leave_receives(&mut self, n: u32) {
        let tables = self.s.tables();
        let row = &mut tables.nexuses[n as usize];
        let spare = &mut self.g.spares[usize::from(row.transport)];
        while row.rq_head != NONE {
            let slot = queue_pop!(tables.slots, row.rq_head, row.rq_tail, next_free);
            tables.slots[slot as usize].nexus = NONE;
            row.posted -= 1;
            spare.count += 1;
            let list = &mut spare.slots;
            queue_push!(tables.slots, list.head, list.tail, next_free, slot);
        }
        // Others may be short of them.
        self.wake_slot_waiters();
    }

    /// Receives of shared queues that no nexus has: as good as free.
    pub(crate) fn shared_spares(&self) -> u32 {
        self.g.spares.iter().map(|spare| spare.count).sum()
    }
}

#[cfg(feature = "check")]
mod check {
    use super::{Endpoint, Spare};
    use crate::endpoint::invariants::chain;
    use crate::entries::{Nexus, SlotUse};
    use crate::ids::NONE;
    use crate::storage::{Storage, View};
    use crate::trace::Trace;
    use crate::wire::Framing;

    impl<S: Storage, T: Trace> Endpoint<S, T> {
        /// What is on a shared queue is some nexus's or spare, and not more than it holds.
        pub(crate) fn check_shared(&self, view: &View<'_>) {
            for (transport, spare) in self.g.spares.iter().enumerate() {
                let limits = &self.g.transports[transport].limits;
                if !limits.shared_receive_queue {
                    continue;
                }
                let Spare {
                    slots,
                    count,
                    posted,
                } = spare;
                let list = chain(
                    slots.head,
                    |s| view.slots[s as usize].next_free,
                    view.slots.len(),
                );
                let mut spares = 0;
                for slot in list {
                    let row = &view.slots[slot as usize];
                    assert!(row.usage == SlotUse::Posted && row.nexus == NONE, "{slot}");
                    spares += 1;
                }
                assert_eq!(spares, *count, "receives that are no nexus's");
                let here = |row: &&Nexus| usize::from(row.transport) == transport;
                let rdma = |row: &&Nexus| row.framing == Framing::Rdma;
                let of_nexuses = view
                    .nexuses
                    .iter()
                    .filter(rdma)
                    .filter(here)
                    .map(|row| u32::from(row.posted));
                assert_eq!(of_nexuses.sum::<u32>() + spares, *posted, "shared receives");
                assert!(*posted <= limits.rq_depth.into(), "shared queue overrun");
            }
        }
    }
}
