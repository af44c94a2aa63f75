//! What devices and the communication manager do, and what endpoints want of them.

use xio_proto::wire::Framing;
use xio_proto::{
    Applied, Bytes, CmEvent, CmKind, Completion, ConnectRequest, Control, Input, ListenerId,
    NexusId, PrivateData, Segment, SegmentSpan, SlotId, Slots, Work, WorkStatus, WrId,
};

use super::side::{Job, Pair, Posted, Side, TRANSPORT, Told, address, remember};
use super::world::World;

// What endpoints want.
impl World {
    /// One action of the communication manager; false when there is none.
    pub(super) fn control(&mut self, i: usize) -> bool {
        let transport = TRANSPORT;
        let polled = self.net.sides[i].apply(&Input::PollControl { transport });
        let Applied::Control(Some(control)) = polled else {
            return false;
        };
        self.carry_out(i, control);
        true
    }

    fn carry_out(&mut self, i: usize, control: Control) {
        let side = &mut self.net.sides[i];
        match control {
            Control::ResolveAddress { nexus, .. } => {
                side.pairs[nexus.index()] = Pair {
                    id: Some(nexus),
                    ..Pair::default()
                };
                side.told.push_back(Told::Kind(nexus, CmKind::AddrResolved));
            }
            Control::ResolveRoute { nexus, .. } => {
                side.told
                    .push_back(Told::Kind(nexus, CmKind::RouteResolved));
            }
            Control::CreateQueuePair { nexus } => side.told.push_back(Told::Made(nexus)),
            Control::Connect { nexus, params } => {
                let private = params.private.as_slice().to_vec();
                let asked = Told::Asked {
                    from: nexus,
                    private,
                };
                self.net.sides[1 - i].told.push_back(asked);
            }
            Control::Accept { nexus, params } => {
                let private = params.private.as_slice().to_vec();
                self.accepted(i, nexus, private);
            }
            Control::Reject { nexus, private, .. } => {
                if let Some(peer) = self.other_end(i, nexus) {
                    let private = private.as_slice().to_vec();
                    self.net.sides[1 - i]
                        .told
                        .push_back(Told::Rejected(peer, private));
                }
            }
            Control::Disconnect { nexus } => self.disconnect(i, nexus.index()),
            Control::Drain { nexus } => side.flush(nexus.index()),
            Control::Destroy { nexus } => self.destroy(i, nexus),
            Control::Register { region, .. } => {
                self.net.keys += 1;
                let key = 0x1000 + self.net.keys;
                side.keys.insert(key, region);
                side.told.push_back(Told::Region(region, key));
            }
            Control::Revoke { region } => {
                side.keys.retain(|_, known| *known != region);
                side.told.push_back(Told::Revoked(region));
            }
            _ => {}
        }
    }

    /// The other side's name for the other end.
    fn other_end(&self, i: usize, nexus: NexusId) -> Option<NexusId> {
        let peer = self.net.sides[i].pairs[nexus.index()].peer?;
        self.net.sides[1 - i].pairs[peer].id
    }

    fn accepted(&mut self, i: usize, nexus: NexusId, private: Vec<u8>) {
        let Some(peer) = self.other_end(i, nexus) else {
            // Who asked is gone.
            let gone = Told::Kind(nexus, CmKind::ConnectError);
            return self.net.sides[i].told.push_back(gone);
        };
        let here = Told::Kind(nexus, CmKind::Established);
        for (side, id, told) in [
            (i, nexus, here),
            (1 - i, peer, Told::Accepted(peer, private)),
        ] {
            self.net.sides[side].pairs[id.index()].connected = true;
            self.net.sides[side].told.push_back(told);
        }
    }

    pub(super) fn disconnect(&mut self, i: usize, p: usize) {
        let pair = &mut self.net.sides[i].pairs[p];
        let was = std::mem::take(&mut pair.connected);
        let (id, peer) = (pair.id, pair.peer.take());
        if let Some(id) = id.filter(|_| was) {
            let told = Told::Kind(id, CmKind::Disconnected);
            self.net.sides[i].told.push_back(told);
            self.net.sides[i].flush(p);
        }
        if let Some(peer) = peer {
            self.lost(1 - i, peer);
        }
    }

    /// The other end of a queue pair is gone, and this one is told.
    pub(super) fn lost(&mut self, j: usize, p: usize) {
        let pair = &mut self.net.sides[j].pairs[p];
        pair.peer = None;
        if let Some(id) = pair.id.filter(|_| std::mem::take(&mut pair.connected)) {
            let told = Told::Kind(id, CmKind::Disconnected);
            self.net.sides[j].told.push_back(told);
        }
    }

    fn destroy(&mut self, i: usize, nexus: NexusId) {
        self.disconnect(i, nexus.index());
        let side = &mut self.net.sides[i];
        side.pairs[nexus.index()] = Pair::default();
        // What is told of it stays in the library.
        side.told.retain(|told| match told {
            Told::Kind(of, _) | Told::Made(of) | Told::Accepted(of, _) | Told::Rejected(of, _) => {
                *of != nexus
            }
            _ => true,
        });
        let now = self.net.now;
        side.apply(&Input::Destroyed { now, nexus });
    }

    /// One work request; false when there is none.
    pub(super) fn work(&mut self, i: usize) -> bool {
        let transport = TRANSPORT;
        let polled = self.net.sides[i].apply(&Input::PollWork { transport });
        let Applied::Work(Some(work)) = polled else {
            return false;
        };
        let wr = match work {
            Work::Recv { wr, .. }
            | Work::Send { wr, .. }
            | Work::Read { wr, .. }
            | Work::Write { wr, .. } => wr,
        };
        let side = &mut self.net.sides[i];
        remember(&mut side.works, wr);
        if std::mem::take(&mut side.unpostable) {
            let (now, error) = (self.net.now, 12);
            side.apply(&Input::PostFailed { now, wr, error });
        } else {
            side.post(&work);
        }
        true
    }
}

impl Side {
    fn list(&self, span: SegmentSpan) -> Vec<Segment> {
        if span.is_empty() {
            Vec::new()
        } else {
            self.core.segments(span).collect()
        }
    }

    fn post(&mut self, work: &Work) {
        let (nexus, wr, signaled, job) = match *work {
            Work::Recv { nexus, wr, slot } => {
                let pair = self.pair(nexus).expect("a queue pair to post to");
                pair.receives.push_back((wr, slot));
                let most = usize::from(Self::LIMITS.rq_depth);
                assert!(pair.receives.len() <= most, "receive queue overrun");
                return;
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
                let (parts, data) = ([head, tail], self.list(data));
                (nexus, wr, signaled, Job::Frame { parts, data })
            }
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled,
                ..
            } => {
                let local = self.list(local);
                let job = Job::Read {
                    local,
                    remote,
                    rkey,
                };
                (nexus, wr, signaled, job)
            }
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled,
            } => {
                let local = self.list(local);
                let job = Job::Write {
                    local,
                    remote,
                    rkey,
                };
                (nexus, wr, signaled, job)
            }
        };
        let pair = self.pair(nexus).expect("a queue pair to post to");
        pair.sends.push_back(Posted { wr, signaled, job });
        let most = usize::from(Self::LIMITS.sq_depth);
        assert!(pair.sends.len() <= most, "send queue overrun");
    }

    /// All that is posted comes back.
    pub(super) fn flush(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        pair.broken = true;
        let sends = pair.sends.drain(..).map(|posted| posted.wr);
        let receives = pair.receives.drain(..).map(|(wr, _)| wr);
        let flushed = sends.chain(receives).map(|wr| Completion {
            wr,
            status: WorkStatus::Flushed,
            len: 0,
        });
        pair.done.extend(flushed);
    }

    fn complete_send(&mut self, p: usize, wr: WrId, status: WorkStatus, signaled: bool) {
        if signaled || status != WorkStatus::Success {
            let completion = Completion { wr, status, len: 0 };
            self.pairs[p].done.push_back(completion);
        }
        if status != WorkStatus::Success {
            self.flush(p);
        }
    }
}

// What the world does.
impl World {
    /// A device does the oldest work request of a queue pair; false when it has none.
    pub(super) fn device(&mut self, i: usize, p: usize) -> bool {
        let side = &mut self.net.sides[i];
        let pair = &mut side.pairs[p];
        if pair.sends.is_empty() {
            return false;
        }
        if !pair.connected || pair.broken {
            side.flush(p);
            return true;
        }
        let Some(posted) = pair.sends.pop_front() else {
            return false;
        };
        let Posted { wr, signaled, job } = posted;
        let there = pair.peer.filter(|&q| {
            let peer = &self.net.sides[1 - i].pairs[q];
            peer.connected && !peer.broken
        });
        let status = match (there, job) {
            (None, _) => WorkStatus::RetryExceeded,
            (Some(q), Job::Frame { parts, data }) => {
                let side = &self.net.sides[i];
                let sent = side
                    .heap
                    .gather(&data)
                    .expect("memory of a message is there");
                let [head, tail] = parts.map(|part| part.of(side.slab.slot(SlotId(part.slot))));
                let frame = [head, tail, &sent].concat();
                self.arrive(1 - i, q, &frame);
                WorkStatus::Success
            }
            (
                Some(_),
                Job::Read {
                    local,
                    remote,
                    rkey,
                },
            ) => self.read(i, &local, remote, rkey),
            (
                Some(_),
                Job::Write {
                    local,
                    remote,
                    rkey,
                },
            ) => self.write(i, &local, remote, rkey),
        };
        self.net.sides[i].complete_send(p, wr, status, signaled);
        true
    }

    /// A frame reaches a receive.
    fn arrive(&mut self, j: usize, q: usize, frame: &[u8]) {
        let side = &mut self.net.sides[j];
        let receive = side.pairs[q].receives.pop_front();
        let (wr, slot) = receive.expect("receiver not ready: a frame came without a receive");
        side.slab.slot_mut(slot)[..frame.len()].copy_from_slice(frame);
        side.pairs[q].done.push_back(Completion {
            wr,
            status: WorkStatus::Success,
            len: frame.len() as u32,
        });
    }

    /// Whether a peer may touch memory with that key. Keys of messages never end before their
    /// memory does; those of regions may.
    fn allows(&self, i: usize, rkey: u32) -> bool {
        rkey < 0x1000 || self.net.sides[1 - i].keys.contains_key(&rkey)
    }

    fn read(&mut self, i: usize, local: &[Segment], remote: u64, rkey: u32) -> WorkStatus {
        if !self.allows(i, rkey) {
            return WorkStatus::RemoteAccess;
        }
        let len = local.iter().map(|s| s.len as usize).sum();
        let bytes = self.net.sides[1 - i].heap.bytes(remote, len);
        let bytes = bytes.expect("what is READ is the peer's").to_vec();
        let done = self.net.sides[i].heap.scatter(local, &bytes);
        done.expect("what is READ into is the device's");
        WorkStatus::Success
    }

    fn write(&mut self, i: usize, local: &[Segment], remote: u64, rkey: u32) -> WorkStatus {
        if !self.allows(i, rkey) {
            return WorkStatus::RemoteAccess;
        }
        let bytes = self.net.sides[i].heap.gather(local);
        let bytes = bytes.expect("what is written is the device's");
        let to = self.net.sides[1 - i].heap.bytes_mut(remote, bytes.len());
        to.expect("what is written to is the peer's")
            .copy_from_slice(&bytes);
        WorkStatus::Success
    }

    /// The oldest completion of a queue pair is told; false when there is none.
    pub(super) fn complete(&mut self, i: usize, p: usize) -> bool {
        let Some(completion) = self.net.sides[i].pairs[p].done.pop_front() else {
            return false;
        };
        let (now, frame) = (self.net.now, Bytes(&[]));
        self.net.sides[i].apply(&Input::Completion {
            now,
            completion,
            frame,
        });
        true
    }

    /// The oldest event of the communication manager is told; false when there is none.
    pub(super) fn tell(&mut self, i: usize) -> bool {
        let now = self.net.now;
        let Some(told) = self.net.sides[i].told.pop_front() else {
            return false;
        };
        match told {
            Told::Kind(nexus, kind) => self.cm(i, nexus, kind, 0, &[]),
            Told::Accepted(nexus, private) => {
                self.cm(i, nexus, CmKind::Established, 0, &private);
            }
            Told::Rejected(nexus, private) => self.cm(i, nexus, CmKind::Rejected, 0, &private),
            Told::Made(nexus) => {
                let made = Ok(());
                self.net.sides[i].apply(&Input::QueuePair { now, nexus, made });
            }
            Told::Region(region, key) => {
                let keys = Ok((1, key));
                self.net.sides[i].apply(&Input::Region { now, region, keys });
            }
            Told::Revoked(region) => {
                self.net.sides[i].apply(&Input::RegionRevoked { now, region });
            }
            Told::Asked { from, private } => self.asked(i, from, &private),
        }
        true
    }

    pub(super) fn cm(&mut self, i: usize, nexus: NexusId, kind: CmKind, status: i32, data: &[u8]) {
        let event = CmEvent {
            private: data,
            ..CmEvent::failed(kind, status)
        };
        let now = self.net.now;
        self.net.sides[i].apply(&Input::Cm { now, nexus, event });
    }

    fn asked(&mut self, i: usize, from: NexusId, private: &[u8]) {
        let (now, transport) = (self.net.now, TRANSPORT);
        let listener = self.users[i].listener;
        let request = ConnectRequest {
            listener: listener.unwrap_or_else(|| ListenerId::new(0, u32::MAX)),
            peer: address(1 - i),
            local: None,
            framing: Framing::Rdma,
            private,
        };
        let taken = self.net.sides[i].apply(&Input::ConnectRequest {
            now,
            transport,
            request,
        });
        let there = self.net.sides[1 - i].pair(from).is_some();
        match taken {
            Applied::Nexus(Ok(nexus)) => {
                self.net.sides[i].pairs[nexus.index()] = Pair {
                    id: Some(nexus),
                    // Who asked may be gone.
                    peer: there.then_some(from.index()),
                    ..Pair::default()
                };
                if let Some(pair) = self.net.sides[1 - i].pair(from) {
                    pair.peer = Some(nexus.index());
                }
            }
            Applied::Nexus(Err(reason)) if there => {
                let private = PrivateData::refusal(reason).as_slice().to_vec();
                let told = Told::Rejected(from, private);
                self.net.sides[1 - i].told.push_back(told);
            }
            Applied::Nexus(Err(_)) => {}
            other => unreachable!("{other:?}"),
        }
    }
}
