//! The end of an endpoint: no new work, a bound for what there is, and one last event
//! (PROTOCOL.md 8.6).

use core::time::Duration;

use super::Endpoint;
use crate::error::{CommandError, Reason};
use crate::event::Event;
use crate::ids::NONE;
use crate::inputs::recorded;
use crate::mutant::mutated;
use crate::state::{connection, nexus, session};
use crate::storage::Storage;
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::status;

/// How far the end has come.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Stop {
    /// Not asked for.
    No,
    /// Connections close; those that are left then are aborted.
    Closing(Instant),
    /// The bound has passed.
    Aborting,
    /// The last event was heard.
    Over,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Ends the endpoint: it listens no more and takes no connection, session or message; every
    /// connection is closed as by [`close`](Self::close), sessions that nobody has answered are
    /// refused, and transport connections go as soon as nobody is on them. What has not parted
    /// within `bound` is aborted. The last event of all is [`Event::Stopped`]: everything has been
    /// told by then, all rows but those of messages in the user's hands are free, and the driver
    /// has nothing left to do, unless the user registers memory or takes it back. A second call can only make the bound earlier.
    ///
    /// The reason of what ends so is [`Reason::Shutdown`] (PROTOCOL.md 8.6).
    pub fn stop(&mut self, now: Instant, bound: Duration) {
        recorded!(self, Stop { now, bound } => self.stop(now, bound));
        self.set_now(now);
        let at = self.g.now.after(bound);
        match self.g.stop {
            Stop::No => {}
            Stop::Closing(earlier) => {
                self.g.stop = Stop::Closing(at.min(earlier));
                return;
            }
            Stop::Aborting | Stop::Over => return,
        }
        self.g.stop = Stop::Closing(at);
        self.g.rare_events = true;
        self.stop_listening();
        self.close_all_half_open();
        self.refuse_sessions();
        self.for_connections(|this, c| {
            let reason = Some(Reason::Shutdown);
            this.connection_input(c, connection::Input::Close, reason);
        });
        self.leave_unused_nexuses();
    }

    /// Whether new work is refused.
    pub(crate) fn not_stopping(&self) -> Result<(), CommandError> {
        match self.g.stop {
            Stop::No => Ok(()),
            _ => Err(CommandError::Closed(Reason::Shutdown)),
        }
    }

    /// When the bound of a stop passes.
    pub(crate) fn stop_due(&self) -> Option<Instant> {
        match self.g.stop {
            Stop::Closing(at) => Some(at),
            _ => None,
        }
    }

    /// What is left at the bound is ended without its peer.
    pub(crate) fn bound_of_stop(&mut self) {
        if self.stop_due().is_none_or(|at| at > self.g.now) {
            return;
        }
        self.g.stop = Stop::Aborting;
        self.trace.mark("stop aborted what was left");
        self.for_connections(|this, c| {
            let row = this.connection(c);
            let (n, state) = (row.nexus, row.state);
            if matches!(state, connection::State::Ending | connection::State::Over) {
                return;
            }
            this.g.counters.stop_aborted += 1;
            let reason = Some(Reason::Shutdown);
            this.connection_input(c, connection::Input::Abort, reason);
            if n != NONE {
                this.end_unused(n, Reason::Shutdown);
            }
        });
    }

    fn stop_listening(&mut self) {
        for listener in 0..self.s.tables().listeners.len() {
            let row = &self.s.tables().listeners[listener];
            if row.live {
                let id = crate::ids::ListenerId::new(listener as u32, row.generation);
                self.end_listener(id);
            }
        }
    }

    fn refuse_sessions(&mut self) {
        for s in 0..self.s.tables().sessions.len() as u32 {
            match self.session(s).state {
                session::State::Requested => {
                    let c = self.session(s).connections;
                    self.session(s).reject_status = status::SESSION_REFUSED;
                    let reason = Reason::Shutdown;
                    self.refuse_session(s, c, session::Input::Reject, reason);
                }
                session::State::Accepted | session::State::Imported => {
                    self.session_input(s, session::Input::Deadline);
                }
                _ => {}
            }
        }
    }

    fn for_connections(&mut self, mut each: impl FnMut(&mut Self, u32)) {
        for c in 0..self.s.tables().connections.len() as u32 {
            if self.connection(c).state != connection::State::Vacant {
                each(self, c);
            }
        }
    }

    /// Servers' transport connections that are not set up, and those that linger.
    fn leave_unused_nexuses(&mut self) {
        use nexus::State::{Accepting, Awaiting, Idle, Refusing, Requested, ServerPriming};
        for n in 0..self.s.tables().nexuses.len() as u32 {
            let state = self.nexus(n).state;
            if matches!(
                state,
                Requested | ServerPriming | Accepting | Awaiting | Refusing | Idle
            ) {
                let reason = Some(Reason::Shutdown);
                self.nexus_input(n, nexus::Input::Deadline, reason);
            }
        }
    }

    /// How long a transport connection is kept that nobody is on.
    pub(crate) fn linger(&self) -> Duration {
        match self.g.stop {
            Stop::No => self.g.config.linger,
            _ => Duration::ZERO,
        }
    }

    /// A row of something is free: it may have been the last.
    pub(crate) fn one_less(&mut self) {
        self.g.rare_events |= self.g.stop != Stop::No;
    }

    pub(crate) fn poll_stopped(&mut self) -> Option<Event> {
        if matches!(self.g.stop, Stop::No | Stop::Over) {
            return None;
        }
        let t = self.s.tables();
        let sizes = [
            t.listeners.len(),
            t.nexuses.len(),
            t.sessions.len(),
            t.connections.len(),
            t.sockets.len(),
        ];
        let free = [
            self.g.listeners.free(),
            self.g.nexuses.free(),
            self.g.sessions.free(),
            self.g.connections.free(),
            self.g.sockets.free(),
        ];
        let left = sizes
            .iter()
            .zip(free)
            .any(|(size, free)| *size != free as usize);
        if left && !mutated!(self.g, StoppedEarly) {
            return None;
        }
        self.g.stop = Stop::Over;
        let aborted = self.g.counters.stop_aborted;
        Some(Event::Stopped { aborted })
    }
}
