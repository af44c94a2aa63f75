//! RDMA: what the core wants done on the fabric, and what the fabric reports.

use xio_proto::wire::Framing;
use xio_proto::{
    Access, CmEvent, CmKind, Completion, ConnectRequest, Control, ListenerId, NexusId, PrivateData,
    Reason, RegionId, Segment, SegmentSpan, SlotId, Span, TransportId, Work, WrId,
};

use super::late::Late;
use super::{Hands, SimDriver, User};
use crate::env::{Env, Forbidden};
use crate::errno;
use crate::fabric::{
    CmParams, Fabric, ListenerKey, NicId, NicLimits, Notice, NoticeKind, QpId, SendOp, SendRequest,
};
use crate::memory::Rights;
use crate::swarm::Site;
use crate::trace::{Act, Object};

/// RDMA side of a driver.
#[derive(Debug)]
pub(super) struct Rdma {
    pub(super) transport: TransportId,
    pub(super) nic: NicId,
    pub(super) limits: NicLimits,
    /// Queue pairs, by index of the nexus.
    pub(super) queue_pairs: Vec<Option<QpId>>,
    pub(super) listeners: Vec<Option<ListenerKey>>,
    /// Local keys of registered regions, by index of the region.
    pub(super) regions: Vec<Option<u32>>,
}

impl SimDriver {
    pub(super) fn rdma_control<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &mut self.rdma else {
            return false;
        };
        let Some(control) = self.core.poll_control(rdma.transport) else {
            return false;
        };
        let (env, fabric) = (&mut *hands.env, &mut *hands.fabric);
        match control {
            Control::Listen {
                listener,
                address,
                backlog,
            } => self.listen(env, fabric, listener, address.port(), backlog),
            Control::Unlisten { listener } => {
                let place = rdma.listeners.get_mut(listener.index());
                if let Some(key) = place.and_then(Option::take) {
                    fabric.unlisten(env, key);
                }
            }
            Control::ResolveAddress {
                nexus, peer, local, ..
            } => {
                let id = fabric.create_id(rdma.nic, nexus.to_bits());
                rdma.set(nexus, id);
                if let Err(error) = fabric.resolve_address(env, id, peer, local) {
                    self.fail(env, nexus, error);
                }
            }
            Control::CreateQueuePair { nexus } => {
                let made = match rdma.get(nexus) {
                    Some(id) => fabric.create_queue_pair(env, id),
                    None => Err(errno::EINVAL),
                };
                self.report(env, Late::Made(nexus, made));
            }
            Control::Destroy { nexus } => {
                if let Some(id) = rdma.take(nexus) {
                    fabric.destroy(env, id);
                }
                self.report(env, Late::Destroyed(nexus));
            }
            Control::Register {
                region,
                addr,
                len,
                access,
            } => self.register(env, region, (addr, len), access),
            Control::Revoke { region } => {
                let key = rdma.regions.get_mut(region.index()).and_then(Option::take);
                if let Some(key) = key {
                    env.memory[self.number as usize].deregister(key);
                }
                let now = self.now(env);
                self.core.handle_region_revoked(now, region);
            }
            other => self.connection_control(env, fabric, other),
        }
        true
    }

    fn register(
        &mut self,
        env: &mut Env,
        region: RegionId,
        (addr, len): (u64, u64),
        access: Access,
    ) {
        let mut rights = Rights::LOCAL_WRITE;
        if access.contains(Access::REMOTE_READ) {
            rights = rights.and(Rights::REMOTE_READ);
        }
        if access.contains(Access::REMOTE_WRITE) {
            rights = rights.and(Rights::REMOTE_WRITE);
        }
        let keys = if env.fires(Site::RegistrationFailed) {
            None
        } else {
            env.memory[self.number as usize].register_range(addr, len, rights)
        };
        if let (Some((lkey, _)), Some(rdma)) = (keys, &mut self.rdma) {
            let index = region.index();
            if rdma.regions.len() <= index {
                rdma.regions.resize(index + 1, None);
            }
            rdma.regions[index] = Some(lkey);
        }
        let now = self.now(env);
        self.core
            .handle_region(now, region, keys.ok_or(errno::ENOMEM));
    }

    fn listen(
        &mut self,
        env: &mut Env,
        fabric: &mut Fabric,
        listener: ListenerId,
        port: u16,
        backlog: u32,
    ) {
        let now = self.now(env);
        let Some(rdma) = &mut self.rdma else {
            return;
        };
        match fabric.listen(env, rdma.nic, port, backlog, listener.to_bits()) {
            Ok(key) => {
                let index = listener.index();
                if rdma.listeners.len() <= index {
                    rdma.listeners.resize(index + 1, None);
                }
                rdma.listeners[index] = Some(key);
            }
            Err(error) => self.core.handle_listen_failed(now, listener, error),
        }
    }

    /// Calls on a connection id that exists.
    fn connection_control(&mut self, env: &mut Env, fabric: &mut Fabric, control: Control) {
        let Some(rdma) = &self.rdma else {
            return;
        };
        let params = |p: xio_proto::ConnectParams| CmParams {
            retry: p.retry,
            rnr_retry: p.rnr_retry,
            reads: p.reads,
        };
        let gone = Err(errno::EINVAL);
        let (nexus, done) = match control {
            Control::ResolveRoute { nexus, .. } => {
                let id = rdma.get(nexus);
                (nexus, id.map_or(gone, |id| fabric.resolve_route(env, id)))
            }
            Control::Connect { nexus, params: p } => {
                let id = rdma.get(nexus);
                let call = |id| fabric.connect(env, id, params(p), p.private.as_slice());
                (nexus, id.map_or(gone, call))
            }
            Control::Accept { nexus, params: p } => {
                let id = rdma.get(nexus);
                let call = |id| fabric.accept(env, id, params(p), p.private.as_slice());
                (nexus, id.map_or(gone, call))
            }
            Control::Reject { nexus, private, .. } => {
                if let Some(id) = rdma.get(nexus) {
                    // Destroying refuses too, so a failure is of no consequence.
                    let _ = fabric.reject(env, id, private.as_slice());
                }
                (nexus, Ok(()))
            }
            Control::Disconnect { nexus } => {
                let id = rdma.get(nexus);
                (nexus, id.map_or(gone, |id| fabric.disconnect(env, id)))
            }
            Control::Drain { nexus } => {
                if let Some(id) = rdma.get(nexus) {
                    let _ = fabric.drain(env, id);
                }
                (nexus, Ok(()))
            }
            _ => {
                env.violate(self.number, Object::World, Forbidden::Unsupported, 0);
                return;
            }
        };
        if let Err(error) = done {
            self.fail(env, nexus, error);
        }
    }
}

impl Rdma {
    pub(super) fn get(&self, nexus: NexusId) -> Option<QpId> {
        *self.queue_pairs.get(nexus.index())?
    }
    fn set(&mut self, nexus: NexusId, id: QpId) {
        let index = nexus.index();
        if self.queue_pairs.len() <= index {
            self.queue_pairs.resize(index + 1, None);
        }
        self.queue_pairs[index] = Some(id);
    }
    fn take(&mut self, nexus: NexusId) -> Option<QpId> {
        self.queue_pairs.get_mut(nexus.index())?.take()
    }
}

// What the core wants posted.
impl SimDriver {
    /// Segments of one work request, at most.
    pub(super) const SEGMENTS: usize = 32;

    pub(super) fn rdma_work<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &self.rdma else {
            return false;
        };
        let (env, fabric) = (&mut *hands.env, &mut *hands.fabric);
        let slots = &mut env.memory[self.number as usize];
        let Some(work) = self.core.poll_work(rdma.transport, slots) else {
            return false;
        };
        let (wr, posted) = match work {
            Work::Recv { nexus, wr, slot } => (wr, self.post_receive(env, fabric, nexus, wr, slot)),
            Work::Send {
                nexus,
                wr,
                head,
                tail,
                data,
                signaled,
                fence,
            } => {
                let flags = (signaled, fence);
                (
                    wr,
                    self.post_send(env, fabric, nexus, wr, [head, tail], data, flags),
                )
            }
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                rkey,
                fence,
                signaled,
            } => {
                let op = SendOp::Read { remote, rkey };
                (
                    wr,
                    self.post_rdma(env, fabric, nexus, wr, local, op, (signaled, fence)),
                )
            }
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled,
            } => {
                let op = SendOp::Write { remote, rkey };
                (
                    wr,
                    self.post_rdma(env, fabric, nexus, wr, local, op, (signaled, false)),
                )
            }
        };
        if let Err(error) = posted {
            let now = self.now(env);
            self.core.handle_post_failed(now, wr, error);
        }
        true
    }

    fn queue_pair(&self, nexus: NexusId) -> Option<QpId> {
        self.rdma.as_ref()?.get(nexus)
    }

    fn post_receive(
        &self,
        env: &mut Env,
        fabric: &mut Fabric,
        nexus: NexusId,
        wr: WrId,
        slot: SlotId,
    ) -> Result<(), i32> {
        let id = self.queue_pair(nexus).ok_or(errno::EINVAL)?;
        let memory = &env.memory[self.number as usize];
        let segment = memory.slot_segment(slot.0, 0, memory.slot_size());
        if let Some(rdma) = &self.rdma
            && rdma.limits.srq_depth > 0
        {
            return fabric.post_shared_receive(env, rdma.nic, wr.to_bits(), segment);
        }
        fabric.post_receive(env, id, wr.to_bits(), segment)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one work request")]
    fn post_send(
        &self,
        env: &mut Env,
        fabric: &mut Fabric,
        nexus: NexusId,
        wr: WrId,
        spans: [Span; 2],
        data: SegmentSpan,
        (signaled, fence): (bool, bool),
    ) -> Result<(), i32> {
        let (Some(id), Some(rdma)) = (self.queue_pair(nexus), &self.rdma) else {
            return Err(errno::EINVAL);
        };
        let memory = &env.memory[self.number as usize];
        let mut list = [Segment::default(); Self::SEGMENTS];
        let [head, tail] = spans;
        // What lies side by side needs one segment only.
        let joined = tail.slot == head.slot && head.offset + head.len == tail.offset;
        list[0] = memory.slot_segment(head.slot, head.offset, head.len);
        let mut count = 1;
        if tail.len > 0 && joined {
            list[0].len += tail.len;
        } else if tail.len > 0 {
            list[1] = memory.slot_segment(tail.slot, tail.offset, tail.len);
            count = 2;
        }
        count += self.resolve(data, &mut list[count..]);
        let segments = &list[..count];
        let len: u32 = segments.iter().map(|segment| segment.len).sum();
        let request = SendRequest {
            wr: wr.to_bits(),
            op: SendOp::Send,
            segments,
            signaled,
            fence,
            inline: len <= rdma.limits.max_inline,
        };
        fabric.post_send(env, id, &request)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one work request")]
    fn post_rdma(
        &self,
        env: &mut Env,
        fabric: &mut Fabric,
        nexus: NexusId,
        wr: WrId,
        local: SegmentSpan,
        op: SendOp,
        (signaled, fence): (bool, bool),
    ) -> Result<(), i32> {
        let id = self.queue_pair(nexus).ok_or(errno::EINVAL)?;
        let mut list = [Segment::default(); Self::SEGMENTS];
        let count = self.resolve(local, &mut list);
        let request = SendRequest {
            wr: wr.to_bits(),
            op,
            segments: &list[..count],
            signaled,
            fence,
            inline: false,
        };
        fabric.post_send(env, id, &request)
    }

    pub(super) fn resolve(&self, span: SegmentSpan, list: &mut [Segment]) -> usize {
        if span.is_empty() {
            return 0;
        }
        let mut count = 0;
        for segment in self.core.segments(span) {
            assert!(count < list.len(), "more segments than any device takes");
            list[count] = segment;
            count += 1;
        }
        count
    }
}

// What the fabric reports.
impl SimDriver {
    pub(super) fn notice<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &self.rdma else {
            return false;
        };
        let Some(notice) = hands.fabric.poll_notice(hands.env, rdma.nic) else {
            return false;
        };
        self.take_notice(hands.env, hands.fabric, &notice);
        self.settle(hands);
        true
    }

    fn take_notice(&mut self, env: &mut Env, fabric: &mut Fabric, notice: &Notice) {
        let now = self.now(env);
        let kind = match (notice.id, notice.kind) {
            (None, _) => {
                let listener = ListenerId::from_bits(notice.cookie);
                self.core.handle_listen_failed(now, listener, errno::ENODEV);
                return;
            }
            (Some(id), NoticeKind::Cm(CmKind::ConnectRequest)) if fabric.is_requested(id) => {
                self.connect_request(env, fabric, id, notice);
                return;
            }
            (Some(_), NoticeKind::Cm(kind)) => kind,
            (Some(_), NoticeKind::QueuePairFatal) => {
                let nexus = NexusId::from_bits(notice.cookie);
                self.fail(env, nexus, notice.status);
                return;
            }
        };
        let event = CmEvent {
            kind,
            status: notice.status,
            local: notice.local,
            private: &notice.private,
        };
        self.core
            .handle_cm(now, NexusId::from_bits(notice.cookie), event);
    }

    fn connect_request(&mut self, env: &mut Env, fabric: &mut Fabric, id: QpId, notice: &Notice) {
        let now = self.now(env);
        let (Some(rdma), Some(peer)) = (&mut self.rdma, notice.peer) else {
            return;
        };
        let request = ConnectRequest {
            listener: ListenerId::from_bits(notice.cookie),
            peer,
            local: notice.local,
            framing: Framing::Rdma,
            private: &notice.private,
        };
        match self
            .core
            .handle_connect_request(now, rdma.transport, &request)
        {
            Ok(nexus) => {
                fabric.set_cookie(id, nexus.to_bits());
                rdma.set(nexus, id);
            }
            Err(reason) => {
                let (need, have) = match reason {
                    Reason::NoResources { need, have, .. } => (need.into(), have.into()),
                    _ => (0, 0),
                };
                env.record(self.number, Object::World, Act::Refused, need, have);
                let why = PrivateData::refusal(reason);
                let _ = fabric.reject(env, id, why.as_slice());
                fabric.destroy(env, id);
            }
        }
    }

    /// Takes completions: some at once, so that what the first one leads to meets the others.
    pub(super) fn completions<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(rdma) = &self.rdma else {
            return false;
        };
        let nic = rdma.nic;
        let most = hands.env.rng.range(1, Self::BATCH) as usize;
        let mut batch = core::mem::take(&mut self.batch);
        while batch.len() < most
            && let Some(completion) = hands.fabric.poll_completion(hands.env, nic)
        {
            batch.push(completion);
        }
        let any = !batch.is_empty();
        for completion in batch.drain(..) {
            let now = self.now(hands.env);
            let slots = &mut hands.env.memory[self.number as usize];
            let completion = Completion {
                wr: WrId::from_bits(completion.wr),
                status: completion.status,
                len: completion.len,
            };
            self.core.handle_completion(now, completion, slots);
            self.settle(hands);
        }
        self.batch = batch;
        any
    }
}
