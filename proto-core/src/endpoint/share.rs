//! Send slots: what each transport connection may have of them, and who waits for one
//! (PROTOCOL.md 9.5).
//!
//! Some slots are only for frames of the protocol, some only for them and for answers. Of the rest
//! each transport connection is sure of a few: what it has not taken of them is kept, as far as half of
//! all goes, from those that have more. So peers that take nothing, however many they are, cost the
//! others no more than what is not kept, and one of them half of that. Who is alone has all that is not
//! kept.
//!
//! A connection that was refused waits in one of three lines. With the endpoint, if its transport
//! connection has no more than it is sure of. Else with its transport connection, which stands in
//! the endpoint's line of sharers, unless it has all that it may have: then only its own slots that
//! come back help it. A slot or row that comes back wakes the first who can use it.

use super::{Endpoint, Globals, Hot};
use crate::entries::{ConnectionEvents, SlotUse};
use crate::error::{CommandError, Resource};
use crate::ids::NONE;
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push, queue_remove};
use crate::trace::Trace;

/// Send slots that one transport connection may always have, where there are so many.
const SHARE_MIN: u32 = 64;

/// What each transport connection may have of the slots that are kept for nothing else.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Shares {
    /// So many it is sure of.
    sure: u32,
    /// Kept for those that have fewer: as much as all that they have leaves of it.
    kept: u32,
    /// It never has more, unless there is no other.
    most: u32,
    /// So many rows of transport connections are free while there is only one.
    alone: u32,
}

impl Shares {
    /// `slots` are shared by so many transport connections.
    pub(crate) fn new(slots: u32, nexuses: u32) -> Self {
        if slots <= SHARE_MIN || nexuses == 1 {
            return Self {
                sure: u32::MAX,
                kept: 0,
                most: u32::MAX,
                alone: 0,
            };
        }
        let half = slots / 2;
        let sure = (half / nexuses).clamp(1, SHARE_MIN);
        let kept = half.min(sure.saturating_mul(nexuses));
        Self {
            sure,
            kept,
            most: ((slots - kept) / 2).max(SHARE_MIN),
            alone: nexuses - 1,
        }
    }
}

bitflags::bitflags! {
    /// What a connection that was refused waits for.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
    pub(crate) struct Lack: u8 {
        /// A send slot for a request.
        const SLOT = 1;
        /// A send slot for an answer.
        const ANSWER = 2;
        /// The row of a message, its segments, or others' bytes to be gone.
        const ROW = 4;
        /// It stands in its transport connection's line, not in the endpoint's.
        const OWN_LINE = 8;
    }
}

/// Connections that wait, and how many of them for what.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct Line {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    slot: u32,
    answer: u32,
    row: u32,
}

impl Line {
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        slot: 0,
        answer: 0,
        row: 0,
    };

    fn count(&mut self, lack: Lack, by: i32) {
        for (bit, count) in [
            (Lack::SLOT, &mut self.slot),
            (Lack::ANSWER, &mut self.answer),
            (Lack::ROW, &mut self.row),
        ] {
            if lack.contains(bit) {
                *count = count.wrapping_add_signed(by);
            }
        }
    }

    /// Whether somebody waits for one of these.
    fn wants(&self, there: Lack) -> bool {
        there.contains(Lack::SLOT) && self.slot > 0
            || there.contains(Lack::ANSWER) && self.answer > 0
            || there.contains(Lack::ROW) && self.row > 0
    }
}

impl Globals {
    /// Send slots that are kept from requests, or from answers.
    #[inline(always)]
    fn kept_from(&self, answer: bool) -> u32 {
        match answer {
            true => self.tx_reserve,
            false => self.tx_kept,
        }
    }

    /// Whether a transport connection that has so many send slots may have another one.
    #[inline(always)]
    fn may_take(&self, held: u32, answer: bool) -> bool {
        let (free, kept) = (self.tx_slots.free(), self.kept_from(answer));
        if held < self.shares.sure {
            return free > kept;
        }
        let kept = kept + self.shares.kept.saturating_sub(self.sure_used);
        let alone = self.nexuses.free() >= self.shares.alone;
        (held < self.shares.most || alone) && free > kept
    }

    /// How many of so many are those that their owner is sure of.
    #[cfg(feature = "check")]
    pub(crate) fn sure_of(&self, held: u32) -> u32 {
        held.min(self.shares.sure)
    }

    /// What is there for one that has so many.
    fn there(&self, held: u32) -> Lack {
        let bytes = self.queued_bytes < self.config.queue_bytes_all;
        let rows = self.tasks.free() > 0 && bytes;
        let mut there = Lack::empty();
        there.set(Lack::ROW, rows);
        there.set(Lack::SLOT, rows && self.may_take(held, false));
        there.set(Lack::ANSWER, self.may_take(held, true));
        there
    }
}

impl<T: Trace> Hot<'_, T> {
    /// Takes a send slot that a transport connection's messages need, if it may have it; `NONE`:
    /// nobody's.
    #[inline(always)]
    pub(crate) fn take_slot(&mut self, n: u32, answer: bool, usage: SlotUse) -> Option<u32> {
        let nexus = self.nexuses.get_mut(n as usize);
        let held = nexus.as_ref().map_or(0, |nexus| nexus.tx_held);
        if !self.g.may_take(held, answer) {
            return None;
        }
        let (slot, row) = self.g.tx_slots.take_row(self.slots)?;
        row.usage = usage;
        row.nexus = n;
        if let Some(nexus) = nexus {
            self.g.sure_used += u32::from(held < self.g.shares.sure);
            nexus.tx_held += 1;
        }
        Some(slot)
    }

    /// A send slot is no longer counted to a transport connection. Who takes it next writes whose it is.
    #[inline(always)]
    pub(crate) fn uncharge(&mut self, slot: u32) {
        let n = self.slots[slot as usize].nexus;
        if let Some(nexus) = self.nexuses.get_mut(n as usize) {
            nexus.tx_held -= 1;
            self.g.sure_used -= u32::from(nexus.tx_held < self.g.shares.sure);
        }
    }

    /// Whether a send slot is counted to this transport connection.
    #[inline(always)]
    pub(crate) fn is_charged(&self, slot: u32, n: u32) -> bool {
        self.slots[slot as usize].nexus == n
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes a send slot for a request, or for an answer: requests that wait for credits must not
    /// keep the peer's from being answered.
    #[inline(always)]
    pub(crate) fn take_slot(
        &mut self,
        n: u32,
        answer: bool,
        usage: SlotUse,
    ) -> Result<u32, CommandError> {
        let slot = self.hot().take_slot(n, answer, usage);
        slot.ok_or(CommandError::Full(Resource::SendSlots))
    }

    /// A slot that was taken for one connection is used by another, or by one that was made anew.
    pub(crate) fn charge(&mut self, slot: u32, n: u32) {
        if self.hot().is_charged(slot, n) {
            return;
        }
        self.hot().uncharge(slot);
        let t = self.s.tables();
        t.slots[slot as usize].nexus = n;
        if let Some(nexus) = t.nexuses.get_mut(n as usize) {
            self.g.sure_used += u32::from(nexus.tx_held < self.g.shares.sure);
            nexus.tx_held += 1;
        }
    }

    /// The user of this connection hears when there is what it lacks.
    #[cold]
    #[inline(never)]
    pub(crate) fn block(&mut self, c: u32, lack: Lack) {
        self.g.waits = true;
        let before = self.connection(c).lacks;
        let moves = before.contains(Lack::OWN_LINE) && lack.contains(Lack::ROW);
        if before.is_empty() || moves {
            let before = self.leave_blocked(c);
            self.enter_line(c, before | lack);
            return;
        }
        let n = self.connection(c).nexus;
        self.connection(c).lacks |= lack;
        self.line_of(before, n).count(lack.difference(before), 1);
    }

    /// The line for one who lacks this.
    fn line_of(&mut self, lacks: Lack, n: u32) -> &mut Line {
        if lacks.contains(Lack::OWN_LINE) {
            &mut self.s.tables().nexuses[n as usize].blocked
        } else {
            &mut self.g.blocked
        }
    }

    fn held_by(&mut self, n: u32) -> u32 {
        let nexus = self.s.tables().nexuses.get(n as usize);
        nexus.map_or(0, |nexus| nexus.tx_held)
    }

    /// Puts a connection, which is in no line, into that where it belongs now.
    fn enter_line(&mut self, c: u32, mut lack: Lack) {
        let n = self.connection(c).nexus;
        // Who lacks more than a slot may be helped by others.
        let own = !lack.contains(Lack::ROW) && self.held_by(n) >= self.g.shares.sure;
        lack.set(Lack::OWN_LINE, own);
        let t = self.s.tables();
        t.connections[c as usize].lacks = lack;
        let line = if own {
            &mut t.nexuses[n as usize].blocked
        } else {
            &mut self.g.blocked
        };
        queue_push!(t.connections, line.head, line.tail, blocked_next, c);
        line.count(lack, 1);
        if own {
            self.g.own_lines += 1;
            self.enter_sharers(n);
        }
    }

    /// Puts a transport connection whose connections wait into the line of sharers, if what others
    /// give back can help it.
    fn enter_sharers(&mut self, n: u32) {
        let most = self.g.shares.most;
        let t = self.s.tables();
        let nexus = &mut t.nexuses[n as usize];
        if nexus.tx_held >= most || core::mem::replace(&mut nexus.in_sharers, true) {
            return;
        }
        let q = &mut self.g.sharers;
        queue_push!(t.nexuses, q.head, q.tail, sharer_next, n);
    }

    /// Takes a connection out of its line, before it leaves its transport connection or its row is
    /// freed. What it lacked.
    pub(crate) fn leave_blocked(&mut self, c: u32) -> Lack {
        let row = self.connection(c);
        let lacks = core::mem::replace(&mut row.lacks, Lack::empty());
        if lacks.is_empty() {
            return lacks;
        }
        let n = row.nexus;
        let t = self.s.tables();
        let line = if lacks.contains(Lack::OWN_LINE) {
            self.g.own_lines -= 1;
            &mut t.nexuses[n as usize].blocked
        } else {
            &mut self.g.blocked
        };
        queue_remove!(t.connections, line.head, line.tail, blocked_next, c);
        line.count(lacks, -1);
        lacks.difference(Lack::OWN_LINE)
    }

    /// A connection leaves its transport connection: it waits with the endpoint now.
    pub(crate) fn leave_own_line(&mut self, c: u32) {
        if self.connection(c).lacks.contains(Lack::OWN_LINE) {
            let lack = self.leave_blocked(c);
            self.connection(c).nexus = NONE;
            self.enter_line(c, lack);
        }
    }

    /// Takes a transport connection out of the line before its row is freed. Slots that outlive it are
    /// nobody's.
    pub(crate) fn leave_sharers(&mut self, n: u32) {
        let t = self.s.tables();
        let nexus = &mut t.nexuses[n as usize];
        debug_assert_eq!(nexus.blocked.head, NONE);
        if core::mem::take(&mut t.nexuses[n as usize].in_sharers) {
            let q = &mut self.g.sharers;
            queue_remove!(t.nexuses, q.head, q.tail, sharer_next, n);
        }
    }

    /// A send slot of a transport connection came back: where its connections wait now.
    pub(crate) fn slot_came_back(&mut self, n: u32) {
        let Some(nexus) = self.s.tables().nexuses.get(n as usize) else {
            return;
        };
        if nexus.blocked.head == NONE {
            return;
        }
        if nexus.tx_held >= self.g.shares.sure {
            self.enter_sharers(n);
            return;
        }
        while self.nexus(n).blocked.head != NONE {
            let c = self.nexus(n).blocked.head;
            let lack = self.leave_blocked(c);
            self.enter_line(c, lack);
        }
    }

    /// A slot, a task or bytes came back: the first user in line who can go on hears of it.
    #[inline(always)]
    pub(crate) fn wake_blocked(&mut self) {
        if (self.g.blocked.head & self.g.sharers.head) != NONE {
            self.wake_blocked_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_blocked_now(&mut self) {
        let woken = self.first_in_line().or_else(|| self.first_sharer());
        if let Some(c) = woken {
            self.connection_event(c, ConnectionEvents::WRITABLE);
        }
    }

    /// Takes the first off the endpoint's line who can go on. Who cannot, while others can, goes
    /// to its end.
    fn first_in_line(&mut self) -> Option<u32> {
        let mut passed = NONE;
        loop {
            let line = self.g.blocked;
            let c = line.head;
            if c == NONE || c == passed || !line.wants(self.g.there(0)) {
                return None;
            }
            let n = self.connection(c).nexus;
            let held = self.held_by(n);
            let lacks = self.leave_blocked(c);
            if lacks.intersects(self.g.there(held)) {
                return Some(c);
            }
            self.enter_line(c, lacks);
            if passed == NONE && !self.connection(c).lacks.contains(Lack::OWN_LINE) {
                passed = c;
            }
        }
    }

    /// The same of the connections of the first sharer of which one can go on.
    fn first_sharer(&mut self) -> Option<u32> {
        let mut passed = NONE;
        loop {
            let n = self.g.sharers.head;
            // Nobody may have more than one that has just what it is sure of.
            let there = self.g.there(self.g.shares.sure);
            if n == NONE || n == passed || there.intersection(Lack::SLOT | Lack::ANSWER).is_empty()
            {
                return None;
            }
            let t = self.s.tables();
            let q = &mut self.g.sharers;
            queue_pop!(t.nexuses, q.head, q.tail, sharer_next);
            let nexus = &mut t.nexuses[n as usize];
            nexus.in_sharers = false;
            if nexus.blocked.head == NONE {
                continue;
            }
            let there = self.g.there(nexus.tx_held);
            let found = self.first_on(n, there);
            if self.nexus(n).blocked.head != NONE {
                self.enter_sharers(n);
            }
            if found.is_some() {
                return found;
            }
            if passed == NONE && self.nexus(n).in_sharers {
                passed = n;
            }
        }
    }

    /// Takes the first off a transport connection's line who can use what is there.
    fn first_on(&mut self, n: u32, there: Lack) -> Option<u32> {
        while self.nexus(n).blocked.wants(there) {
            let c = self.nexus(n).blocked.head;
            let lacks = self.leave_blocked(c);
            if lacks.intersects(there) {
                return Some(c);
            }
            self.enter_line(c, lacks);
        }
        None
    }
}
