//! What decides how an endpoint goes on, for searches that visit each state once (feature `check`).

use core::fmt::{Result, Write};

use super::{ConnectionCounters, Counters, Endpoint, Globals, LifeCycle, NexusCounters};
use crate::entries::{Agreement, Connection, Nexus, Past, Session, SlotUse};
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::State as NexusState;
use crate::state::session::State as SessionState;
use crate::state::task::State as TaskState;
use crate::storage::Storage;
use crate::trace::Trace;

/// What is remembered, but for the number that differs with each transport connection.
const fn without_token(past: Past) -> Past {
    let (token, sent) = match past.token {
        Past::ANSWER => (Past::ANSWER, 0),
        token => (token & 1, past.sent),
    };
    Past {
        token,
        sent,
        next: past.next,
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Writes all that decides what the endpoint does from here on: what is no table, and each row
    /// that is not free. What only counts what has been is left out, so that two ways to the same
    /// state look alike.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_state(&self, out: &mut impl Write) -> Result {
        let globals = Globals {
            counters: Counters::default(),
            life: LifeCycle::default(),
            nonces: 0,
            ..self.g.clone()
        };
        write!(out, "{globals:?}")?;
        let view = self.s.view();
        for (n, row) in view.nexuses.iter().enumerate() {
            if row.state != NexusState::Vacant {
                let traffic = NexusCounters::ZERO;
                // Numbers that differ with each setup, and mean nothing to what comes after it.
                let agreement = Agreement {
                    nonce: 0,
                    check: 0,
                    ..row.agreement
                };
                write!(
                    out,
                    "n{n}{:?}",
                    Nexus {
                        traffic,
                        agreement,
                        ..row.clone()
                    }
                )?;
            }
        }
        for (c, row) in view.connections.iter().enumerate() {
            if row.state != ConnectionState::Vacant {
                let traffic = ConnectionCounters::ZERO;
                write!(
                    out,
                    "c{c}{:?}",
                    Connection {
                        traffic,
                        ..row.clone()
                    }
                )?;
            }
        }
        for (s, row) in view.sessions.iter().enumerate() {
            let past = without_token(row.past);
            if row.state != SessionState::Vacant {
                let row = row.clone();
                write!(out, "s{s}{:?}", Session { past, ..row })?;
            } else if row.past.is_life() {
                // Whoever names it is answered.
                write!(out, "s{s}{:?}{past:?}", row.own_id)?;
            }
        }
        for (t, row) in view.tasks.iter().enumerate() {
            if row.is_retry() {
                let mut row = row.clone();
                row.remote_addr &= 1;
                write!(out, "t{t}{row:?}")?;
            } else if row.state != TaskState::Vacant {
                write!(out, "t{t}{row:?}")?;
            }
        }
        for (s, row) in view.slots.iter().enumerate() {
            if row.usage != SlotUse::Free {
                write!(out, "m{s}{row:?}")?;
            }
        }
        for (w, row) in view.work.iter().enumerate().filter(|(_, row)| row.live) {
            write!(out, "w{w}{row:?}")?;
        }
        let timers = &view.timers[..self.g.timers as usize];
        write!(out, "{timers:?}")
    }
}
