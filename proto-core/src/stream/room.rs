//! Receive slots for streams, and who waits for one (PROTOCOL.md 3.5).
//!
//! A stream takes a receive slot when a frame that may stay with the user begins to arrive, and
//! only then. Control frames without payload (FIN, keepalive, HELLO, ACK) and transport setup
//! need none, so a user who holds every slot stops neither close nor keepalive. An eighth of the
//! slots is kept for transport connections that hold none.
//!
//! A stream that finds no slot is not read. Whenever a slot is given back and may be used, the
//! stream that waits longest has it at once: a free slot and one who could use it never meet.

use super::list::Listed;
use crate::endpoint::Endpoint;
use crate::entries::SlotUse;
use crate::ids::NONE;
use crate::storage::Storage;
use crate::trace::Trace;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Receive slots that only transport connections without one may take.
    pub(super) const fn kept_slots(&self) -> u32 {
        let kept = self.g.config.rx_slots / 8;
        if kept < 2 { 2 } else { kept }
    }

    /// A receive slot for a frame that begins to arrive.
    #[inline]
    pub(super) fn take_stream_slot(&mut self, n: u32) -> Option<u32> {
        let kept = self.kept_slots();
        let t = self.s.tables();
        let nexus = &mut t.nexuses[n as usize];
        if nexus.held > 0 && self.g.rx_slots.free() <= kept {
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
        let nexus = self.nexus(n);
        if nexus.held == 0 && nexus.sockets[0] != NONE {
            self.first_in_line(n);
        }
    }

    /// Puts a socket whose next frame needs a slot in line for one.
    pub(super) fn wait_for_slot(&mut self, s: u32) {
        self.trace.mark("stream waited for a slot");
        self.g.waits = true;
        let t = self.s.tables();
        let n = t.sockets[s as usize].nexus;
        let list = if t.nexuses[n as usize].held == 0 {
            &mut self.g.first_slot
        } else {
            &mut self.g.more_slots
        };
        list.push(t.sockets, Listed::Place, s);
    }

    /// Takes a socket out of the line, whichever it is in.
    pub(super) fn leave_slot_line(&mut self, s: u32) {
        let t = self.s.tables();
        let n = t.sockets[s as usize].nexus;
        let list = if t.nexuses[n as usize].held == 0 {
            &mut self.g.first_slot
        } else {
            &mut self.g.more_slots
        };
        list.remove(t.sockets, Listed::Place, s);
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
            } else if free > kept && self.g.first_slot == super::List::EMPTY {
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

    /// A socket that waited for a slot as one of those that hold some is first in line now.
    fn first_in_line(&mut self, n: u32) {
        let t = self.s.tables();
        let s = t.nexuses[n as usize].sockets[0];
        if t.sockets[s as usize].links[Listed::Place as usize].linked {
            self.g.more_slots.remove(t.sockets, Listed::Place, s);
            self.g.first_slot.push(t.sockets, Listed::Place, s);
            self.offer_slots();
        }
    }
}
