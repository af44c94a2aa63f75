//! Keepalive: whether a peer lives that says nothing (PROTOCOL.md 8.4).

use core::time::Duration;

use super::Endpoint;
use crate::entries::{Awaited, Frames, TaskFlags};
use crate::error::{Reason, Step};
use crate::ids::NONE;
use crate::state::connection::{Input, State};
use crate::state::nexus;
use crate::storage::Storage;
use crate::timer::Timer;
use crate::trace::Trace;

/// Keepalives that a peer may send in a second.
const KEEPALIVES_A_SECOND: u8 = 10;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The keepalive timer of a connection ran out (PROTOCOL.md 8.4).
    pub(crate) fn keepalive_due(&mut self, c: u32) {
        let Some(keepalive) = self.g.config.keepalive else {
            return;
        };
        let row = self.connection(c);
        if row.state != State::Online {
            return;
        }
        let n = row.nexus;
        let deaf = n != NONE && self.stream_stopped(n);
        let (untaken, same) = self.untaken(c);
        let row = self.connection(c);
        if !row.awaited.contains(Awaited::KEEPALIVE) {
            // Whatever else came meanwhile: the peer may count on being asked.
            row.probes = 0;
            row.heard = false;
            row.awaited.insert(Awaited::KEEPALIVE);
            row.frames.insert(Frames::KEEPALIVE_REQ);
            self.return_credits(c);
            self.mark_tx(c);
            self.arm_after(Timer::Keepalive(c), keepalive.interval);
            return;
        }
        // A peer that is heard lives, even if its answer is late.
        let heard = core::mem::take(&mut row.heard);
        // Neither side reads, and if no user here can change that, it may stay so for ever.
        let counts = !heard && (!deaf || (same && !self.users_hold_some(n)));
        let row = self.connection(c);
        row.probes = if counts { row.probes + 1 } else { 0 };
        if row.probes < keepalive.probes {
            if deaf && !untaken {
                // What it says cannot be read now, but it can hear that this side lives. Not while
                // it does not read either: it would hear all those at once, and far too often.
                row.asked_again = row.asked_again.saturating_add(1);
                row.frames.insert(Frames::KEEPALIVE_REQ);
                self.mark_tx(c);
            }
            self.arm_after(Timer::Keepalive(c), keepalive.interval);
        } else {
            let reason = Reason::TimedOut(Step::Keepalive);
            if self.retries(c, reason) && n != NONE {
                // Nobody answers there, whoever else is on it.
                self.nexus_input(n, nexus::Input::Fail, Some(reason));
            } else {
                self.connection_input(c, Input::KeepaliveDead, Some(reason));
            }
        }
    }

    /// Whether the peer asks more than ten times in a second though nothing of ours comes between.
    pub(crate) fn asks_too_often(&mut self, c: u32) -> bool {
        const SECOND: Duration = Duration::from_secs(1);
        let now = self.g.now;
        let row = self.connection(c);
        let sent = (row.req_sn, row.rsp_sn);
        if row.asked_at != sent || now >= row.asked_since.after(SECOND) || row.asked_times == 0 {
            (row.asked_times, row.asked_since, row.asked_at) = (1, now, sent);
            return false;
        }
        row.asked_times = row.asked_times.saturating_add(1);
        row.asked_times > KEEPALIVES_A_SECOND
    }

    /// The peer asked whether this side lives, so it does itself: the next question of ours has
    /// time until the peer has missed one of its own.
    pub(crate) fn keepalive_asked(&mut self, c: u32) {
        let keepalive = self.g.config.keepalive;
        let row = self.connection(c);
        let waits = row.state == State::Online && !row.awaited.contains(Awaited::KEEPALIVE);
        row.frames.insert(Frames::KEEPALIVE_RSP);
        self.return_credits(c);
        if let (Some(keepalive), true) = (keepalive, waits) {
            self.arm_after(Timer::Keepalive(c), 2 * keepalive.time);
        }
        self.mark_tx(c);
    }

    /// Whether something that this side wrote is not taken yet, and whether it is the same that was the
    /// first of this at the last look.
    fn untaken(&mut self, c: u32) -> (bool, bool) {
        let n = self.connection(c).nexus;
        let first = if n == NONE {
            NONE
        } else {
            self.nexus(n).sq_head
        };
        let before = core::mem::replace(&mut self.connection(c).untaken, first);
        (first != NONE, first != NONE && before == first)
    }

    /// Whether a message that came on a transport connection is in its user's hands.
    fn users_hold_some(&mut self, n: u32) -> bool {
        let tables = self.s.tables();
        let mut c = tables.nexuses[n as usize].connections;
        while c != NONE {
            let row = &tables.connections[c as usize];
            let mut t = row.tasks;
            while t != NONE {
                let task = &tables.tasks[t as usize];
                if task.flags.contains(TaskFlags::USER) {
                    return true;
                }
                t = task.next;
            }
            c = row.nexus_next;
        }
        false
    }
}
