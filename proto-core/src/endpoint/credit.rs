//! Receives, and the credits that tell the peer of them (PROTOCOL.md 6).
//!
//! `posted` receives of a nexus are split into `granted` (the peer knows and may use them), a
//! slack for frames that need no credit, and what can be granted next. A nexus is sure of
//! `min_grant`; above that it takes what the budget has left when every other nexus in the table
//! could still have its minimum.

use super::Endpoint;
use crate::entries::SlotUse;
use crate::error::{Reason, Resource};
use crate::ids::NONE;
use crate::memory::SlotId;
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

/// Credits that data needs: the last is the NOP's, the one before it is for control frames.
pub(crate) const DATA_CREDITS: u16 = 3;

/// More credits than this at once are no receive queue's.
const CREDITS_MAX: u16 = 1 << 14;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Whether one more nexus can have its minimum of receives.
    pub(crate) fn receives_fit(&mut self) -> Result<(), Reason> {
        let need = u32::from(self.g.config.min_grant + SLACK + RESERVE);
        let have = self
            .g
            .config
            .rx_slots
            .saturating_sub(self.g.receiving * need);
        if have < need || self.g.rx_slots.free() < need {
            self.trace.mark("peer refused for lack of receives");
            let have = have.min(self.g.rx_slots.free());
            return Err(Reason::NoResources {
                what: Resource::ReceiveSlots,
                need,
                have,
            });
        }
        Ok(())
    }

    /// Receives that a nexus should have posted now.
    fn share(&mut self, n: u32) -> u16 {
        let config = &self.g.config;
        let min = config.min_grant + SLACK + RESERVE;
        let nexuses = self.s.tables().nexuses.len() as u32;
        let others = nexuses.saturating_sub(self.g.receiving);
        let active = self.g.receiving.max(1);
        // What is left when all that may still come have their minimum, in equal shares.
        let kept = others.saturating_mul(min.into());
        let share = self.g.config.rx_slots.saturating_sub(kept) / active;
        let free = self.g.rx_slots.free();
        let row = self.nexus(n);
        // Those that came before may hold more than their share for a while.
        let left = (free + u32::from(row.posted + row.held)).saturating_sub(kept);
        let share = share.min(left);
        let acks = row.read_acks_expected;
        let wanted = u32::from(row.rq_depth) + 32 + u32::from(acks + RESERVE);
        let transport = row.transport;
        let queue = u32::from(self.transport(transport).limits.rq_depth);
        (share.clamp(min.into(), wanted.max(min.into())) as u16 - RESERVE).min(queue as u16)
    }

    /// Sets how many receives a nexus aims at, now that it is set up.
    pub(crate) fn plan_receives(&mut self, n: u32) {
        if self.nexus(n).framing != Framing::Rdma {
            return;
        }
        let target = self.share(n);
        self.nexus(n).recv_target = target;
        self.mark_ready(n);
    }

    /// A receive to post, if the nexus is below its target.
    #[inline]
    pub(crate) fn next_receive(&mut self, n: u32) -> Option<Work> {
        let row = self.nexus(n);
        let have = row.posted + row.held.saturating_sub(RESERVE);
        if have >= row.recv_target || row.framing != Framing::Rdma {
            return None;
        }
        // In batches: a receive at a time costs a doorbell each.
        let missing = row.recv_target - have;
        let batch = (row.recv_target / 4).clamp(1, 16);
        if missing < batch && row.posted > row.recv_target / 2 && !row.refilling {
            return None;
        }
        if !row.refilling && row.recv_target > 1 {
            // The share shrinks as peers join: it is looked at before each batch.
            let target = self.share(n);
            let row = self.nexus(n);
            row.recv_target = target;
            row.refilling = true;
            return self.next_receive(n);
        }
        row.refilling = missing > 1;
        self.post_receive(n)
    }

    fn post_receive(&mut self, n: u32) -> Option<Work> {
        let transport = self.nexus(n).transport;
        let state = self.transport(transport);
        if state.cq_used >= state.limits.cq_depth {
            return None;
        }
        let tables = self.s.tables();
        let Some(slot) = self.g.rx_slots.take(tables.slots) else {
            self.trace.mark("receives shrunk for a new peer");
            return None;
        };
        let tables = self.s.tables();
        let row = &mut tables.slots[slot as usize];
        row.usage = SlotUse::Posted;
        row.nexus = n;
        let wr = crate::ids::WrId::new(crate::ids::WrKind::Recv, slot, row.generation);
        let nexus = &mut tables.nexuses[n as usize];
        queue_push!(tables.slots, nexus.rq_head, nexus.rq_tail, next_free, slot);
        nexus.posted += 1;
        let priming = matches!(nexus.state, State::Priming | State::ServerPriming);
        self.transport(transport).cq_used += 1;
        if priming {
            // The peer's setup frame takes it, without having been told.
            self.nexus(n).granted = 1;
            self.nexus_input(n, Input::Primed, None);
        }
        Some(Work::Recv {
            nexus: self.nexus_id(n),
            wr,
            slot: SlotId(slot),
        })
    }

    /// A posted receive came back: takes it off its queue.
    pub(crate) fn unpost(&mut self, n: u32, slot: u32) {
        let tables = self.s.tables();
        let nexus = &mut tables.nexuses[n as usize];
        nexus.posted -= 1;
        if nexus.rq_head == slot {
            queue_pop!(tables.slots, nexus.rq_head, nexus.rq_tail, next_free);
        } else {
            // Out of order: only a device that flushes so does this.
            let mut at = nexus.rq_head;
            while at != NONE && tables.slots[at as usize].next_free != slot {
                at = tables.slots[at as usize].next_free;
            }
            debug_assert_ne!(at, NONE, "posted slot {slot} is on its queue");
            if at != NONE {
                let after = tables.slots[slot as usize].next_free;
                tables.slots[at as usize].next_free = after;
                if after == NONE {
                    nexus.rq_tail = at;
                }
            }
        }
        let transport = nexus.transport;
        self.transport(transport).cq_used -= 1;
    }

    /// Receives that the peer may be told of now.
    #[inline]
    pub(crate) fn grantable(&mut self, n: u32) -> u16 {
        let row = self.nexus(n);
        let slack = SLACK + row.read_acks_expected;
        row.posted.saturating_sub(row.granted + slack)
    }

    /// Tells the peer of all it may be told, in the frame being written.
    #[inline]
    pub(crate) fn grant(&mut self, n: u32) -> u16 {
        let credits = self.grantable(n);
        let row = self.nexus(n);
        row.granted += credits;
        if credits > 0 {
            row.used_since_grant = 0;
        }
        credits
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
        let sum = row
            .tx_credits
            .checked_add(credits)
            .filter(|sum| *sum <= CREDITS_MAX);
        let Some(sum) = sum else {
            return Err(Violation::new(What::CreditOverflow, offset, credits.into()));
        };
        row.tx_credits = sum;
        if !row.peer_granted {
            row.peer_granted = true;
            row.peer_grant_small = credits <= DATA_CREDITS;
        }
        self.mark_ready(n);
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
        // is, at least 4, the one credit that it takes itself never makes the other side owe one.
        let starved = row.granted < DATA_CREDITS;
        let few = row.granted <= row.recv_target / 2 && row.used_since_grant > 0;
        (starved || few) && self.grantable(n) > 0
    }
}
