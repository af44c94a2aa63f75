//! Receives, and the credits that tell the peer of them (PROTOCOL.md 6).
//!
//! `posted` receives of a nexus are split into `granted` (the peer knows and may use them), a
//! slack for frames that need no credit, and what can be granted next. A nexus is sure of
//! `min_grant`; above that it takes what the budget has left when every other nexus in the table
//! could still have its minimum.

use super::{Endpoint, Globals};
use crate::config::Config;
use crate::entries::{Nexus, SlotUse, Usual};
use crate::error::{Reason, Resource};
use crate::ids::NONE;
use crate::memory::SlotId;
use crate::mutant::mutated;
use crate::output::Work;
use crate::state::nexus::{Input, State};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::trace::Trace;
use crate::wire::{Framing, Violation, What};

/// Receives that are posted but never granted: for a frame that needs no credit.
const SLACK: u16 = 1;

/// Slots of a nexus that delivered messages may hold without a receive less being posted: a user
/// who holds one message does not cost the peer its credit.
const RESERVE: u16 = 2;

/// Credits that answers and control frames need: the last is the NOP's.
pub(crate) const ANSWER_CREDITS: u16 = 2;

/// Credits that requests and one-ways need. Each stays in its receive until the peer's user is done
/// with it, for which the peer may need to answer it, and credits for that. Were all receives of
/// both sides full of requests, neither could answer ever again.
pub(crate) const REQUEST_CREDITS: u16 = 4;

/// Receives that are posted however many messages the user holds: with the one that is never
/// granted as many as are left after a request, which are the answers' to come.
const FLOOR: u16 = SLACK + REQUEST_CREDITS - 1;

/// Completions that receives leave to each nexus's sends.
pub(crate) const SENDS: u32 = 4;

/// More credits than this at once are no receive queue's.
pub(crate) const CREDITS_MAX: u16 = 1 << 14;

impl Nexus {
    /// Sets how many receives are to be posted, and with it when that needs no look.
    pub(crate) fn aim_receives(&mut self, target: u16) {
        self.recv_target = target;
        self.recv_low = target.saturating_sub(batch(target));
        self.share_left = BATCH_MAX;
        self.set_batch(0);
        self.grant_quiet = (REQUEST_CREDITS - 1).max(target / 2);
    }

    /// Whether receives are to be posted, as far as the target tells.
    #[inline(always)]
    pub(crate) fn receive_due(&self) -> bool {
        self.may_want_receive() && (self.batch_left > 0 || self.batch_due())
    }

    /// Sets how many receives are left to be posted in a batch. As long as there are any, no number
    /// of receives is enough.
    #[inline(always)]
    fn set_batch(&mut self, left: u16) {
        self.batch_left = left;
        self.recv_quiet = if left > 0 {
            u16::MAX
        } else {
            self.recv_low.max(self.recv_target / 2).max(FLOOR - 1)
        };
    }

    /// A batch of receives begins now, of one at least.
    pub(crate) fn post_at_once(&mut self) {
        let missing = self.receives_missing();
        self.set_batch(missing.max(1));
    }

    /// A receive of the batch was posted.
    #[inline(always)]
    pub(crate) fn count_batch(&mut self) {
        self.batch_left -= 1;
        if self.batch_left == 0 {
            self.set_batch(0);
        }
    }

    /// Cheap, and wrong only in saying yes.
    #[inline(always)]
    pub(crate) fn may_want_receive(&self) -> bool {
        self.posted <= self.recv_quiet
    }

    /// Whether a batch of receives is to be begun.
    #[inline(always)]
    fn batch_due(&self) -> bool {
        let have = self.receives();
        let few = have <= self.recv_low || self.posted <= self.recv_target / 2;
        ((have < self.recv_target && few) || self.posted < FLOOR) && self.framing == Framing::Rdma
    }

    /// Begins a batch of receives if one is due, and the share that was last worked out is good
    /// for it. More than it is `sure` of can only be had of the `spare` slots.
    #[inline(always)]
    pub(crate) fn begin_batch(&mut self, spare: u32, sure: u32) -> bool {
        if !self.batch_due() {
            return false;
        }
        let missing = self.receives_missing();
        let slots = u32::from(self.posted) + u32::from(self.held) + u32::from(missing);
        if missing > self.share_left || (u32::from(missing) > spare && slots > sure) {
            return false;
        }
        self.share_left -= missing;
        self.set_batch(missing);
        true
    }

    /// Receives to be posted until there are as many as aimed at.
    #[inline(always)]
    fn receives_missing(&self) -> u16 {
        let missing = self.recv_target.saturating_sub(self.receives());
        missing.max(FLOOR.saturating_sub(self.posted))
    }

    /// Receives posted, and slots held beyond what may be held without a receive less.
    #[inline(always)]
    pub(crate) fn receives(&self) -> u16 {
        self.posted + self.held.saturating_sub(RESERVE)
    }

    /// Receives that the peer may be told of now.
    #[inline(always)]
    pub(crate) fn grantable(&self) -> u16 {
        self.posted.saturating_sub(self.spoken_for())
    }

    /// Receives that the peer knows of, or may use without being told. Those for READ_ACKs do not
    /// cost the peer its last few credits: it may need them to send just these.
    #[inline(always)]
    fn spoken_for(&self) -> u16 {
        let acks = self
            .read_acks_expected
            .min(self.posted.saturating_sub(FLOOR));
        self.granted + SLACK + acks
    }

    /// Tells the peer of all it may be told, in the frame being written.
    #[inline(always)]
    pub(crate) fn grant(&mut self) -> u16 {
        let spoken_for = self.spoken_for();
        if self.posted <= spoken_for {
            return 0;
        }
        let credits = self.posted - spoken_for;
        self.granted += credits;
        self.used_since_grant = 0;
        // The peer counts its READ_ACKs, also those for which it had no credit.
        credits + core::mem::take(&mut self.acks_owed)
    }

    /// Takes the numbers that every frame with a transport header carries.
    #[inline(always)]
    pub(crate) fn number(&mut self) -> (u16, u16, u16) {
        if self.framing == Framing::Rdma {
            return self.number_rdma();
        }
        self.number_stream()
    }

    #[inline(always)]
    pub(crate) fn number_stream(&mut self) -> (u16, u16, u16) {
        let sn = self.tx_sn;
        self.tx_sn = sn.wrapping_add(1);
        (sn, self.rx_sn.wrapping_sub(1), 0)
    }

    #[inline(always)]
    pub(crate) fn number_rdma(&mut self) -> (u16, u16, u16) {
        let credits = self.grant();
        self.tx_credits -= 1;
        let sn = self.tx_sn;
        self.tx_sn = sn.wrapping_add(1);
        (sn, self.rx_sn.wrapping_sub(1), credits)
    }

    /// Whether nothing but messages goes on it.
    pub(crate) fn find_usual(&self) -> Usual {
        let usual = self.state == State::Online
            && (self.rdma_head & self.ack_head) == NONE
            && !self.setup_due;
        match self.framing {
            _ if !usual => Usual::No,
            Framing::Rdma => Usual::OnRdma,
            Framing::TcpSingle | Framing::TcpDual => Usual::OnStream,
        }
    }

    /// Whether receives may have to be posted, or the peer told of them.
    #[inline(always)]
    pub(crate) fn may_need_receives(&self) -> bool {
        self.posted <= self.recv_quiet || self.granted <= self.grant_quiet
    }

    /// Whether a poll for work can bring anything. Has a cheap test for each output that
    /// `next_work` makes, and may be wrong only in saying yes. A stream needs no receives.
    #[inline(always)]
    pub(crate) fn may_have_work(&self) -> bool {
        (self.may_need_receives() && self.framing == Framing::Rdma)
            || (self.tx_head & self.rdma_head & self.ack_head) != NONE
            || self.setup_due
    }
}

/// Receives in a batch, at most.
const BATCH_MAX: u16 = 16;

/// Receives are posted in batches: one at a time costs a doorbell each.
const fn batch(target: u16) -> u16 {
    match target / 4 {
        0 => 1,
        quarter if quarter > BATCH_MAX => BATCH_MAX,
        quarter => quarter,
    }
}

impl Config {
    /// Receive slots that every nexus is sure of.
    #[inline(always)]
    pub(crate) fn receives_sure(&self) -> u32 {
        u32::from(self.min_grant + SLACK + RESERVE)
    }
}

impl Globals {
    /// Receive slots beyond those that nexuses yet to come are sure of.
    #[inline(always)]
    pub(crate) fn spare_receives(&self) -> u32 {
        self.rx_slots.free().saturating_sub(self.rx_kept)
    }

    /// Sets how many nexuses take receives, of `nexuses` that there can be.
    pub(crate) fn set_receiving(&mut self, receiving: u32, nexuses: usize) {
        self.receiving = receiving;
        let others = (nexuses as u32).saturating_sub(receiving);
        self.rx_kept = others.saturating_mul(self.config.receives_sure());
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Whether one more nexus can have its minimum of receives.
    pub(crate) fn receives_fit(&mut self, transport: u8) -> Result<(), Reason> {
        let limits = self.transport(transport).limits;
        let need = u32::from(self.receives_needed(limits.shared_receive_queue));
        let slots = match limits.shared_receive_queue {
            true => self.g.config.rx_slots.min(limits.rq_depth.into()),
            false => self.g.config.rx_slots,
        };
        let have = slots.saturating_sub(self.g.receiving * need);
        let free = self.g.rx_slots.free() + self.shared_spares();
        if have < need || free < need {
            self.trace.mark("peer refused for lack of receives");
            let have = have.min(free);
            return Err(Reason::NoResources {
                what: Resource::ReceiveSlots,
                need,
                have,
            });
        }
        // Each needs completions for its receives and for control frames.
        let need = need + SENDS;
        let have = limits
            .cq_depth
            .saturating_sub(self.g.receiving.saturating_mul(need));
        if have < need {
            self.trace.mark("peer refused for lack of receives");
            let what = Resource::Completions;
            return Err(Reason::NoResources { what, need, have });
        }
        Ok(())
    }

    /// Receives without which no nexus is taken on. On a shared queue those in users' hands come
    /// out of what all have in common.
    fn receives_needed(&self, shared: bool) -> u16 {
        self.g.config.min_grant + SLACK + if shared { 0 } else { RESERVE }
    }

    /// Receives that a nexus should have posted now.
    fn share(&mut self, n: u32) -> u16 {
        let shared = self.is_shared(n);
        let reserve = if shared { 0 } else { RESERVE };
        let min = u32::from(self.receives_needed(shared));
        let active = self.g.receiving.max(1);
        let nexuses = self.s.tables().nexuses.len() as u32;
        let others = nexuses.saturating_sub(self.g.receiving);
        // What is left when all that may still come have their minimum, in equal shares.
        let kept = if shared {
            others.saturating_mul(min)
        } else {
            self.g.rx_kept
        };
        let share = self.g.config.rx_slots.saturating_sub(kept) / active;
        let free = self.g.rx_slots.free() + self.shared_spares();
        let row = self.nexus(n);
        let transport = row.transport;
        // Those that came before may hold more than their share for a while.
        let left = (free + u32::from(row.posted + row.held)).saturating_sub(kept);
        let share = share.min(left);
        let acks = row.read_acks_expected;
        let wanted = u32::from(row.rq_depth) + 32 + u32::from(acks + RESERVE);
        // The same for the completions that receives and sends of all share.
        let depth = self.transport(transport).limits.cq_depth;
        let kept = others.saturating_mul(min + SENDS);
        let completions = depth.saturating_sub(kept) / active;
        let share = share.min(completions.saturating_sub(SENDS));
        let queue = u32::from(self.transport(transport).limits.rq_depth);
        (share.clamp(min, wanted.max(min)) as u16 - reserve).min(queue as u16)
    }

    /// Sets how many receives a nexus aims at, now that it is set up.
    pub(crate) fn plan_receives(&mut self, n: u32) {
        if self.nexus(n).framing != Framing::Rdma {
            return;
        }
        let target = self.share(n);
        self.nexus(n).aim_receives(target);
        self.mark_ready(n);
    }

    /// A receive to post, if the nexus is below its target.
    #[inline]
    pub(crate) fn next_receive(&mut self, n: u32) -> Option<Work> {
        let row = self.nexus(n);
        if !row.receive_due() {
            return None;
        }
        if row.batch_left == 0 {
            if row.recv_target > 1 {
                // The share shrinks as peers join: it is worked out before each batch, and when
                // batches are small after so many of them as make a large one.
                let target = self.share(n);
                self.nexus(n).aim_receives(target);
            }
            let row = self.nexus(n);
            // The share may be less than there is already.
            let missing = row.receives_missing();
            row.set_batch(missing);
            row.share_left = row.share_left.saturating_sub(missing);
            if missing == 0 {
                return None;
            }
        }
        if self.is_shared(n) && self.adopt_receives(n) {
            return None;
        }
        self.post_receive(n)
    }

    fn post_receive(&mut self, n: u32) -> Option<Work> {
        let transport = self.nexus(n).transport;
        let first = matches!(self.nexus(n).state, State::Priming | State::ServerPriming);
        let state = self.transport(transport);
        let most = if first {
            state.limits.cq_depth
        } else {
            state.cq_receives
        };
        if state.cq_used >= most {
            self.await_slot(n);
            return None;
        }
        let room = !self.is_shared(n) || self.enter_shared(n);
        let tables = self.s.tables();
        let taken = room.then(|| self.g.rx_slots.take(tables.slots)).flatten();
        let Some(slot) = taken else {
            if room && self.is_shared(n) {
                self.g.spares[usize::from(transport)].posted -= 1;
            }
            self.trace.mark("receives shrunk for a new peer");
            self.await_slot(n);
            return None;
        };
        let row = &mut self.s.tables().slots[slot as usize];
        row.usage = SlotUse::Posted;
        let wr = crate::ids::WrId::new(crate::ids::WrKind::Recv, slot, row.generation);
        self.transport(transport).cq_used += 1;
        self.enter_receive(n, slot);
        Some(Work::Recv {
            nexus: self.nexus_id(n),
            wr,
            slot: SlotId(slot),
        })
    }

    /// A receive that is posted, or about to be, is counted to a nexus.
    pub(crate) fn enter_receive(&mut self, n: u32, slot: u32) {
        let tables = self.s.tables();
        tables.slots[slot as usize].nexus = n;
        let nexus = &mut tables.nexuses[n as usize];
        queue_push!(tables.slots, nexus.rq_head, nexus.rq_tail, next_free, slot);
        nexus.posted += 1;
        nexus.robbed = nexus.robbed.saturating_sub(1);
        if nexus.batch_left > 0 {
            nexus.count_batch();
        }
        if matches!(nexus.state, State::Priming | State::ServerPriming) {
            // The peer's setup frame takes it, without having been told.
            nexus.granted = 1;
            self.nexus_input(n, Input::Primed, None);
        }
    }

    /// A frame came that took a receive and needed a credit for it.
    #[inline]
    pub(crate) fn took_credit(&mut self, n: u32) -> Result<(), Violation> {
        let row = self.nexus(n);
        if row.granted == 0 {
            return Err(Violation::new(What::NoCredit, 0, 0));
        }
        row.granted -= 1;
        row.used_since_grant += 1;
        Ok(())
    }

    /// The peer granted credits.
    #[inline]
    pub(crate) fn add_credits(
        &mut self,
        n: u32,
        credits: u16,
        offset: u32,
    ) -> Result<(), Violation> {
        if credits == 0 {
            return Ok(());
        }
        let row = self.nexus(n);
        let paid = credits.min(row.acks_unpaid);
        let twice = if mutated!(self.g, CreditsTwice) {
            credits
        } else {
            0
        };
        let row = self.nexus(n);
        row.acks_unpaid -= paid;
        let sum = row
            .tx_credits
            .checked_add(credits - paid + twice)
            .filter(|sum| *sum <= CREDITS_MAX);
        let Some(sum) = sum else {
            return Err(Violation::new(What::CreditOverflow, offset, credits.into()));
        };
        row.tx_credits = sum;
        if !row.peer_granted {
            row.peer_granted = true;
            row.peer_grant_small = credits <= REQUEST_CREDITS;
        }
        self.look_again(n);
        Ok(())
    }

    /// Whether the peer should hear of new credits by a frame of their own.
    #[inline]
    pub(crate) fn nop_due(&mut self, n: u32) -> bool {
        let row = self.nexus(n);
        let up = matches!(row.state, State::Online | State::Idle) && !row.setup_due;
        // A server has none before the client's first frame; the client must not start with one
        // either, as libxio's first frame is the session's setup.
        if !up || row.tx_credits == 0 || row.framing != Framing::Rdma || row.setup_work {
            return false;
        }
        // A peer that cannot send data must hear of credits in any case. Otherwise only frames that
        // are no NOPs are answered so, or two idle peers would never stop. As a NOP grants all there
        // is, the one credit that it takes itself never makes the other side owe one, unless there
        // is so little that the peer cannot send data anyway: then it is not told.
        let all = row.granted + row.grantable();
        let lacks = |needed| row.granted < needed && all > needed;
        let starved = lacks(ANSWER_CREDITS) || lacks(REQUEST_CREDITS);
        let few = row.granted <= row.recv_target / 2 && row.used_since_grant > 0;
        (starved || few) && row.grantable() > 0
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// A posted receive came back: takes it off its queue.
    pub(crate) fn unpost(&mut self, n: u32, slot: u32) {
        let tables = self.s.tables();
        let nexus = &mut tables.nexuses[n as usize];
        nexus.posted -= 1;
        self.g.transport(nexus.transport).cq_used -= 1;
        self.wake_slot_waiters();
        let tables = self.s.tables();
        let (nexus, slots) = (&mut tables.nexuses[n as usize], tables.slots);
        if nexus.rq_head == slot {
            queue_pop!(slots, nexus.rq_head, nexus.rq_tail, next_free);
            return;
        }
        // Out of order: only a device that flushes so does this.
        let mut at = nexus.rq_head;
        while at != NONE && slots[at as usize].next_free != slot {
            at = slots[at as usize].next_free;
        }
        debug_assert_ne!(at, NONE, "posted slot {slot} is on its queue");
        if at != NONE {
            let after = slots[slot as usize].next_free;
            slots[at as usize].next_free = after;
            if after == NONE {
                nexus.rq_tail = at;
            }
        }
    }
}
