//! What is agreed with peers beyond libxio's protocol, as users see it.

use xio_proto::{ConnectionId, Data, Extensions, NexusSnapshot, PeerKind, TaskId};

use super::Actor;
use crate::check::Check;
use crate::driver::{Core, Desk};
use crate::swarm::Site;

/// Longest deadline that users here give, and what an endpoint may lag behind its driver's clock.
const WAIT_MAX: u64 = 500_000_000;
/// How long a driver may be busy between looking at its clock and telling its user.
const LATE_MAX: u64 = 1_000_000;

impl Actor {
    /// The requester of a request gave it up: it is given back, or answered all the same.
    pub(super) fn cancel_asked(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId) {
        let place = self.due.iter().position(|due| due.task == task);
        let Some(place) = place else {
            self.sense(desk, format!("{task:?} is given up, and is not here"));
            return;
        };
        if self.rng.flip()
            && let Some(due) = self.due.remove(place)
        {
            self.give_up(core, desk, &due);
            self.pump(core, desk, due.line);
        }
    }

    /// A request is not shown when its requester waits no longer, nor does one wait for longer than
    /// it said. Who gave memory for it knows of it, and hears of it in any case.
    pub(super) fn check_time(&self, core: &Core, desk: &mut Desk<'_>, task: TaskId, data: &Data) {
        let Ok(Some(deadline)) = core.deadline_of(task) else {
            return;
        };
        let (due, now) = (deadline.as_nanos(), desk.now.as_nanos());
        let jumps = desk.env.swarm.fired(Site::ClockJump) > 0;
        let at = desk.env.now();
        // However late its user asks: only a clock that jumps excuses it.
        let grace = if jumps { desk.ledger.grace() } else { LATE_MAX };
        if now > due + grace && matches!(data, Data::Slot(_)) {
            let text = format!("{task:?} was shown {} ns after its deadline", now - due);
            desk.ledger.breach(at, Check::Deadline, text);
        }
        if due > now + WAIT_MAX + grace {
            let text = format!(
                "{task:?} may take {} ns, longer than anybody waits",
                due - now
            );
            desk.ledger.breach(at, Check::Deadline, text);
        }
    }

    /// Nothing is agreed that one side cannot do, and of a peer's earlier life nothing is left when
    /// a later one is there.
    pub(super) fn check_peer(
        &mut self,
        core: &Core,
        desk: &mut Desk<'_>,
        connection: ConnectionId,
    ) {
        let Ok(info) = core.info(connection) else {
            return;
        };
        let at = desk.env.now();
        let peer = self.post.borrow().extensions(info.peer.ip());
        let own = core.config().extensions_named();
        let could = peer.map_or(own, |peer| own & peer);
        if !could.contains(info.extensions) {
            let text = format!("{:?} agreed, {could:?} possible", info.extensions);
            desk.ledger.breach(at, Check::Sense, text);
        }
        let PeerKind::Xio { incarnation, .. } = info.peer_kind else {
            return;
        };
        if !info.extensions.contains(Extensions::INCARNATION) {
            return;
        }
        for line in self.lines.iter().filter(|line| !line.over) {
            let Some(other) = line.id.and_then(|id| core.info(id).ok()) else {
                continue;
            };
            let PeerKind::Xio {
                incarnation: life, ..
            } = other.peer_kind
            else {
                continue;
            };
            let same = other.peer.ip() == info.peer.ip()
                && other.framing.dialect() == info.framing.dialect()
                && other.extensions.contains(Extensions::INCARNATION);
            // What arrived on one that is gone is still delivered.
            let lives = |n: NexusSnapshot| n.id == other.nexus && n.state == "Online";
            let goes_on = life < incarnation && other.state == "Online";
            if same && goes_on && core.nexuses().any(lives) {
                let text = format!("life {life} of a peer goes on in its life {incarnation}");
                desk.ledger.breach(at, Check::ExactlyOneEnd, text);
            }
        }
    }
}
