//! What the core is told about a driver's own doing, at once or after a while.

use core::net::SocketAddr;

use xio_proto::{CmEvent, CmKind, NexusId};

use super::{Hands, SimDriver, User};
use crate::env::Env;
use crate::swarm::Site;

/// What the core is told, maybe late.
#[derive(Copy, Clone, Debug)]
pub(super) enum Late {
    /// The queue pair, or the sockets, could be made or not.
    Made(NexusId, Result<(), i32>),
    /// Everything of it is destroyed.
    Destroyed(NexusId),
    /// A step of a transport connection on sockets, with its error number or 0.
    Step(NexusId, CmKind, i32),
    /// All sockets are connected, from these local addresses.
    Connected(NexusId, SocketAddr, Option<SocketAddr>),
}

impl SimDriver {
    /// Tells the core what was done, at once or after a while.
    pub(super) fn report(&mut self, env: &mut Env, late: Late) {
        if env.fires(Site::SlowDriver) {
            let at = env.now() + env.rng.spread(1_000, 500_000_000);
            self.late.push((at, late));
            env.wake_at(self.number, at);
        } else {
            self.tell(env, late);
        }
    }

    fn tell(&mut self, env: &Env, late: Late) {
        let now = self.now(env);
        match late {
            Late::Made(nexus, made) => self.core.handle_queue_pair(now, nexus, made),
            Late::Destroyed(nexus) => self.core.handle_destroyed(now, nexus),
            Late::Connected(nexus, control, data) => {
                self.core
                    .handle_streams_connected(now, nexus, control, data);
            }
            Late::Step(nexus, kind, status) => {
                self.core
                    .handle_cm(now, nexus, CmEvent::failed(kind, status));
            }
        }
    }

    /// Tells the next thing that is due. False when there is none.
    pub(super) fn tell_late<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let now = hands.env.now();
        let Some(place) = self.late.iter().position(|&(at, _)| at <= now) else {
            return false;
        };
        let (_, late) = self.late.swap_remove(place);
        self.tell(hands.env, late);
        self.settle(hands);
        true
    }
}
