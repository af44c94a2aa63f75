//! What the core is told about a driver's own doing, at once or after a while.

use core::net::SocketAddr;

use xio_proto::{CmEvent, CmKind, NexusId, Reason};

use super::{Hands, SimDriver, User};
use crate::env::Env;
use crate::errno;
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
        if let Late::Made(nexus, _) = late {
            self.lie(env, nexus);
        }
        if env.fires(Site::SlowDriver) {
            let at = env.now() + env.rng.spread(1_000, 500_000_000);
            self.late.push((at, late));
            env.wake_at(self.number, at);
        } else {
            self.tell(env, late);
        }
    }

    fn tell(&mut self, env: &mut Env, late: Late) {
        let now = self.now(env);
        match late {
            Late::Made(nexus, made) => {
                self.core.handle_queue_pair(now, nexus, made);
                // Before anything is asked for.
                self.lie(env, nexus);
                if env.swarm.ppm(Site::LateDrain) > 0 && env.rng.chance(300_000) {
                    env.swarm.count(Site::LateDrain);
                    self.drain_at = env.now() + env.rng.spread(1_000, 20_000_000);
                }
            }
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

    /// In the moments between two steps of connecting, in which little ever happens: anything.
    fn lie(&mut self, env: &mut Env, nexus: NexusId) {
        let queue_pairs = self.rdma.as_ref();
        if queue_pairs.and_then(|rdma| rdma.get(nexus)).is_none() || !env.fires(Site::CmAnything) {
            return;
        }
        let now = self.now(env);
        let number = env.rng.below(20) as u32;
        if number >= 17 {
            let error = Reason::DriverFailed(errno::EIO);
            self.core.handle_driver_failed(now, nexus, error);
            return;
        }
        let event = CmEvent {
            kind: CmKind::from_number(number),
            status: env.rng.pick(&[0, -errno::ETIMEDOUT]),
            local: None,
            private: &[],
        };
        self.core.handle_cm(now, nexus, event);
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
