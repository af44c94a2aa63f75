//! What devices and the communication manager do, and what endpoints want of them.

use xio_proto::wire::Framing;
use xio_proto::{
    CmEvent, CmKind, Completion, ConnectRequest, Control, SlotId, Slots, Work, WorkStatus,
};

use super::{Done, Pair, Posted, TRANSPORT, Told, World, address};

impl World {
    /// All outputs, until there are none; and what must hold after every step.
    pub(super) fn settle(&mut self, i: usize) {
        let mut busy = true;
        while std::mem::take(&mut busy) {
            while let Some(control) = self.sides[i].core.poll_control(TRANSPORT) {
                busy = true;
                self.control(i, control);
            }
            while let Some(work) = {
                let side = &mut self.sides[i];
                side.core.poll_work(TRANSPORT, &mut side.memory)
            } {
                busy = true;
                self.post(i, work);
            }
            while let Some(event) = self.sides[i].core.poll_event() {
                busy = true;
                self.hear(i, event);
            }
        }
        let side = &self.sides[i];
        side.core.check_invariants();
        for (number, sent) in &side.user.sent {
            let late = sent.deadline.is_some_and(|at| at <= self.now);
            assert!(
                sent.outcome || !late,
                "the deadline of message {number} passed"
            );
        }
    }

    fn post(&mut self, i: usize, work: Work) {
        let side = &mut self.sides[i];
        match work {
            Work::Recv { nexus, wr, slot } => {
                let receives = &mut side.pairs[nexus.index()].receives;
                receives.push_back((wr, slot));
            }
            Work::Send {
                nexus,
                wr,
                head,
                tail,
                data,
                signaled,
                ..
            } => {
                let mut of = Vec::new();
                let parts = [head, tail].map(|span| span.of(side.memory.slot(SlotId(span.slot))));
                let bytes = [&parts.concat()[..], &side.gather(data, &mut of)].concat();
                let posted = Posted {
                    wr,
                    signaled,
                    bytes: bytes.into(),
                    of,
                };
                side.pairs[nexus.index()].sends.push_back(posted);
                if !self.slow {
                    self.device(i, nexus.index());
                }
            }
            _ => panic!("no payload here is large: {work:?}"),
        }
    }

    pub(super) fn device(&mut self, i: usize, p: usize) {
        let side = &mut self.sides[i];
        let pair = &mut side.pairs[p];
        if !pair.connected {
            side.flush(p);
            return;
        }
        let posted = pair.sends.pop_front().expect("there is one");
        let peer = pair.peer.expect("it is connected");
        if posted.signaled {
            side.done.push_back(Done {
                pair: p,
                completion: Completion {
                    wr: posted.wr,
                    status: WorkStatus::Success,
                    len: 0,
                },
                frame: [].into(),
            });
        }
        let other = &mut self.sides[1 - i];
        let there = &mut other.pairs[peer];
        // Beyond the end of a connection frames are lost.
        if there.connected {
            let receive = there.receives.pop_front();
            let (wr, _) = receive.expect("receiver not ready: a frame came without a receive");
            let len = posted.bytes.len() as u32;
            other.done.push_back(Done {
                pair: peer,
                completion: Completion {
                    wr,
                    status: WorkStatus::Success,
                    len,
                },
                frame: posted.bytes,
            });
        }
    }

    pub(super) fn complete(&mut self, i: usize) {
        let side = &mut self.sides[i];
        let Done {
            completion, frame, ..
        } = side.done.pop_front().expect("there is one");
        if completion.wr.is_recv() && completion.status == WorkStatus::Success {
            let slot = SlotId(completion.wr.index());
            side.memory.slot_mut(slot)[..frame.len()].copy_from_slice(&frame);
        }
        side.core
            .handle_completion(self.now, completion, &mut side.memory);
    }

    pub(super) fn tell(&mut self, i: usize) {
        let now = self.now;
        let side = &mut self.sides[i];
        match side.told.pop_front().expect("there is one") {
            Told::Kind(p, kind) => {
                // An event of a queue pair that is gone stays in the library.
                if let Some(nexus) = side.pairs[p].id {
                    side.core.handle_cm(now, nexus, CmEvent::plain(kind));
                }
            }
            Told::Accepted(p, private) => {
                if let Some(nexus) = side.pairs[p].id {
                    let event = CmEvent {
                        private: &private,
                        ..CmEvent::plain(CmKind::Established)
                    };
                    side.core.handle_cm(now, nexus, event);
                }
            }
            Told::Asked { from, private } => {
                let request = ConnectRequest {
                    listener: side.listener,
                    peer: address(1 - i),
                    local: None,
                    framing: Framing::Rdma,
                    private: &private,
                };
                match side.core.handle_connect_request(now, TRANSPORT, &request) {
                    Ok(nexus) => {
                        let p = nexus.index();
                        side.pairs[p] = Pair {
                            peer: Some(from),
                            id: Some(nexus),
                            ..Pair::default()
                        };
                        self.sides[1 - i].pairs[from].peer = Some(p);
                    }
                    Err(_) => self.sides[1 - i]
                        .told
                        .push_back(Told::Kind(from, CmKind::Rejected)),
                }
            }
        }
    }

    fn control(&mut self, i: usize, control: Control) {
        let now = self.now;
        match control {
            Control::ResolveAddress { nexus, .. } => {
                let event = CmEvent::plain(CmKind::AddrResolved);
                self.sides[i].core.handle_cm(now, nexus, event);
            }
            Control::ResolveRoute { nexus, .. } => {
                let event = CmEvent::plain(CmKind::RouteResolved);
                self.sides[i].core.handle_cm(now, nexus, event);
            }
            Control::CreateQueuePair { nexus } => {
                let side = &mut self.sides[i];
                let pair = &mut side.pairs[nexus.index()];
                let peer = pair.peer.filter(|_| pair.id == Some(nexus));
                *pair = Pair {
                    id: Some(nexus),
                    peer,
                    ..Pair::default()
                };
                side.core.handle_queue_pair(now, nexus, Ok(()));
            }
            Control::Connect { nexus, params } => {
                let (from, private) = (nexus.index(), params.private.as_slice().into());
                let asked = Told::Asked { from, private };
                self.sides[1 - i].told.push_back(asked);
            }
            Control::Accept { nexus, params } => {
                let p = nexus.index();
                let Some(peer) = self.sides[i].pairs[p].peer else {
                    // Who asked is gone.
                    self.sides[i]
                        .told
                        .push_back(Told::Kind(p, CmKind::ConnectError));
                    return;
                };
                let private = params.private.as_slice().into();
                let here = Told::Kind(p, CmKind::Established);
                for (side, p, told) in [(i, p, here), (1 - i, peer, Told::Accepted(peer, private))]
                {
                    self.sides[side].pairs[p].connected = true;
                    self.sides[side].told.push_back(told);
                }
            }
            Control::Reject { nexus, .. } => {
                if let Some(peer) = self.sides[i].pairs[nexus.index()].peer {
                    self.sides[1 - i]
                        .told
                        .push_back(Told::Kind(peer, CmKind::Rejected));
                }
            }
            Control::Disconnect { nexus } => self.disconnect(i, nexus.index()),
            Control::Drain { nexus } => self.sides[i].flush(nexus.index()),
            Control::Destroy { nexus } => {
                let p = nexus.index();
                self.disconnect(i, p);
                let side = &mut self.sides[i];
                side.pairs[p] = Pair::default();
                side.done.retain(|done| done.pair != p);
                side.told.retain(
                    |told| !matches!(told, Told::Kind(of, _) | Told::Accepted(of, _) if *of == p),
                );
                side.core.handle_destroyed(now, nexus);
            }
            _ => {}
        }
    }

    fn disconnect(&mut self, i: usize, p: usize) {
        let pair = &mut self.sides[i].pairs[p];
        let was = std::mem::take(&mut pair.connected);
        let peer = pair.peer.take();
        if was {
            self.sides[i]
                .told
                .push_back(Told::Kind(p, CmKind::Disconnected));
            self.sides[i].flush(p);
        }
        if let Some(peer) = peer {
            self.lost(1 - i, peer, false);
        }
    }
}
