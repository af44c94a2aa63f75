//! Deadlines.

use super::Endpoint;
use crate::entries::TaskFlags;
use crate::inputs::recorded;
use crate::state::task::State;
use crate::storage::Storage;
use crate::time::Instant;
use crate::timer::{self, Timer};
use crate::trace::Trace;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest, or `None`
    /// when nothing waits for time to pass.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let stop = self.stop_due();
        if self.g.timers == 0 {
            return stop;
        }
        let first = Instant::from_nanos(self.s.view().timers.first()?.at);
        Some(stop.map_or(first, |stop| stop.min(first)))
    }

    /// Does what is due at `now`. Calling it early is no error and does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        recorded!(self, Timeout { now } => self.handle_timeout(now));
        self.set_now(now);
        let now = self.g.now.as_nanos();
        while let Some(timer) = timer::pop_due(&mut self.s.tables(), &mut self.g.timers, now) {
            match timer {
                Timer::Nexus(n) => self.nexus_deadline(n),
                Timer::Connection(c) => self.connection_deadline(c),
                Timer::Keepalive(c) => self.keepalive_due(c),
                Timer::Session(s) => self.session_deadline(s),
                Timer::Socket(s) => self.socket_deadline(s),
                Timer::Task(t) => self.task_timer(t),
            }
        }
        self.bound_of_stop();
    }

    /// Tells the time, and does nothing about it. For commands without a time of their own, of which
    /// deadlines count from the last input, and the wait that goes with a message (PROTOCOL.md
    /// 12.2): a driver calls it before its user sends something with a deadline. A time that goes
    /// backwards is clamped and counted.
    pub fn handle_clock(&mut self, now: Instant) {
        recorded!(self, Clock { now } => self.handle_clock(now));
        self.set_now(now);
    }

    fn task_timer(&mut self, t: u32) {
        let row = self.task(t);
        let fetching = row.state == State::Fetching
            || (row.state == State::AnswerFetching && row.into.count == 0);
        if row.state == State::Delivered {
            self.sender_is_gone(t);
        } else if fetching && (row.flags.contains(TaskFlags::INCOMING) || row.deadline_is_provide) {
            self.provide_deadline(t);
        } else {
            self.task_deadline(t);
        }
    }
}
