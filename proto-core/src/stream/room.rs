//! Receive slots for streams, and who waits for one (PROTOCOL.md 3.5).
//!
//! A stream takes a receive slot when a frame that may stay with the user begins to arrive, and
//! only then. Control frames without payload (FIN, keepalive, HELLO, ACK) and transport setup
//! need none, so a user who holds every slot stops neither close nor keepalive. An eighth of the
//! slots is kept for transport connections that hold none, and no transport connection has more than
//! half of all: one peer that reads no answers holds what it asked with, and leaves the others as
//! much. Several such peers together are bounded by the eighth only.
//!
//! A stream that finds no slot is not read. Whenever a slot is given back and may be used, the
//! stream that waits longest has it at once: a free slot and one who could use it never meet.

use super::list::{List, Listed};
use crate::endpoint::Endpoint;
use crate::entries::SlotUse;
use crate::ids::NONE;
use crate::storage::Storage;
use crate::trace::Trace;

/// As many one transport connection may always have, however few there are.
const SHARE_MIN: u32 = 64;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Receive slots that only transport connections without one may take.
    pub(super) const fn kept_slots(&self) -> u32 {
        let kept = self.g.config.rx_slots / 8;
        if kept < 2 { 2 } else { kept }
    }

    /// Receive slots that one transport connection may have at once.
    pub(super) const fn slot_share(&self) -> u32 {
        let half = self.g.config.rx_slots / 2;
        if half < SHARE_MIN { SHARE_MIN } else { half }
    }

    /// The line for a slot in which a transport connection stands that holds so many.
    pub(super) fn line(&mut self, held: u16) -> &mut List {
        if held == 0 {
            &mut self.g.first_slot
        } else if u32::from(held) < self.slot_share() {
            &mut self.g.more_slots
        } else {
            &mut self.g.full_slots
        }
    }

    /// A receive slot for a frame that begins to arrive.
    #[inline]
    pub(super) fn take_stream_slot(&mut self, n: u32) -> Option<u32> {
        let (kept, share) = (self.kept_slots(), self.slot_share());
        let t = self.s.tables();
        let nexus = &mut t.nexuses[n as usize];
        let few = self.g.rx_slots.free() <= kept;
        if nexus.held > 0 && (few || u32::from(nexus.held) >= share) {
            return None;
        }
        let slot = self.g.rx_slots.take(t.slots)?;
        nexus.held += 1;
        let row = &mut t.slots[slot as usize];
        row.usage = SlotUse::Filling;
        row.nexus = n;
        Some(slot)
    }

    /// Gives a slot back whose frame went nowhere.
    pub(super) fn give_stream_slot(&mut self, n: u32, slot: u32) {
        self.free_slot(slot);
        self.uncount(n);
    }

    /// A receive slot is no longer counted to a transport connection.
    pub(crate) fn uncount(&mut self, n: u32) {
        self.hot().uncount(n);
        let share = self.slot_share();
        let nexus = self.nexus(n);
        let held = u32::from(nexus.held);
        if (held == 0 || held + 1 == share) && nexus.sockets[0] != NONE {
            self.better_line(n);
        }
    }

    /// Puts a socket whose next frame needs a slot in line for one.
    pub(super) fn wait_for_slot(&mut self, s: u32) {
        self.trace.mark("stream waited for a slot");
        self.g.waits = true;
        let n = self.socket(s).nexus;
        let held = self.nexus(n).held;
        let mut list = *self.line(held);
        list.push(self.s.tables().sockets, Listed::Place, s);
        *self.line(held) = list;
    }

    /// Takes a socket out of the line, whichever it is in.
    pub(super) fn leave_slot_line(&mut self, s: u32) {
        let n = self.socket(s).nexus;
        let held = self.nexus(n).held;
        self.leave_line(s, held);
    }

    /// Gives free slots to those who wait.
    #[inline(always)]
    pub(crate) fn offer_slots(&mut self) {
        if !(self.g.first_slot.is_empty() && self.g.more_slots.is_empty()) {
            self.offer_slots_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn offer_slots_now(&mut self) {
        loop {
            let (free, kept) = (self.g.rx_slots.free(), self.kept_slots());
            let rows = self.s.tables().sockets;
            let next = if free == 0 {
                None
            } else if free > kept && self.g.first_slot == List::EMPTY {
                self.g.more_slots.pop(rows, Listed::Place)
            } else {
                self.g.first_slot.pop(rows, Listed::Place)
            };
            let Some(s) = next else { return };
            let n = self.socket(s).nexus;
            let slot = self.take_stream_slot(n);
            debug_assert!(slot.is_some(), "the slot was there");
            if let Some(slot) = slot {
                self.socket(s).slot = slot;
                self.wake(s);
            }
        }
    }

    fn leave_line(&mut self, s: u32, held: u16) {
        let mut list = *self.line(held);
        list.remove(self.s.tables().sockets, Listed::Place, s);
        *self.line(held) = list;
    }

    /// A transport connection holds one slot less than before: if its socket waits for one, then from
    /// now on with those that hold as few.
    fn better_line(&mut self, n: u32) {
        let nexus = self.nexus(n);
        let (s, held) = (nexus.sockets[0], nexus.held);
        if self.socket(s).links[Listed::Place as usize].linked {
            self.leave_line(s, held + 1);
            self.wait_for_slot(s);
            self.offer_slots();
        }
    }
}
