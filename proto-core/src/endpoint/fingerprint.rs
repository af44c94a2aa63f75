//! What decides how an endpoint goes on, for searches that visit each state once (feature `check`).

use core::fmt::{Result, Write};

use super::{ConnectionCounters, Counters, Endpoint, Globals, NexusCounters};
use crate::entries::{Connection, Nexus, SlotUse};
use crate::state::connection::State as ConnectionState;
use crate::state::nexus::State as NexusState;
use crate::state::session::State as SessionState;
use crate::state::task::State as TaskState;
use crate::storage::Storage;
use crate::trace::Trace;

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
            ..self.g.clone()
        };
        write!(out, "{globals:?}")?;
        let view = self.s.view();
        for (n, row) in view.nexuses.iter().enumerate() {
            if row.state != NexusState::Vacant {
                let traffic = NexusCounters::ZERO;
                write!(
                    out,
                    "n{n}{:?}",
                    Nexus {
                        traffic,
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
            if row.state != SessionState::Vacant {
                write!(out, "s{s}{row:?}")?;
            }
        }
        for (t, row) in view.tasks.iter().enumerate() {
            if row.state != TaskState::Vacant {
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
