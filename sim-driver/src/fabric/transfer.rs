//! What happens to work requests on the wire.

use xio_proto::WorkStatus;

use super::device::{NicState, Notice, NoticeKind};
use super::queue_pair::{Posted, QpState, Receive, SendOp};
use super::{Fabric, FabricEvent};
use crate::env::{Env, Forbidden};
use crate::memory::{self, Access};
use crate::swarm::Site;
use crate::trace::Act;

/// `IBV_WC_REM_INV_REQ_ERR`.
const REMOTE_INVALID_REQUEST: u32 = 9;

impl Fabric {
    /// Puts on the wire what may go there.
    pub(super) fn launch(&mut self, env: &mut Env, index: usize) {
        let now = env.now();
        let (least, most) = self.config.latency;
        let per_kib = self.config.per_kib;
        let id = self.id(index);
        let reads_max = u32::from(self.entries[index].params.reads);
        loop {
            let qp = &mut self.entries[index].qp;
            let ready = qp.state == QpState::ReadyToSend && !qp.backing_off;
            if qp.launched == qp.end() || !ready {
                return;
            }
            let posted = qp.posted(qp.launched);
            let must_wait = posted.fence && qp.reads_out > 0;
            if must_wait || posted.is_read() && qp.reads_out >= reads_max.max(1) {
                return;
            }
            if env.swarm.fires(&mut env.rng, Site::Stall) {
                qp.stalled_until = now + env.rng.spread(10_000, 20_000_000);
                let (endpoint, until) = (self.endpoint_of(index), env.now());
                let ns = self.entries[index].qp.stalled_until - until;
                env.record(endpoint, Self::object(index), Act::Stalled, ns, 0);
            }
            let qp = &mut self.entries[index].qp;
            let on_wire = (u64::from(posted.len) * per_kib) >> 10;
            qp.wire_free = qp.wire_free.max(now) + if posted.is_read() { 0 } else { on_wire };
            let mut at = qp.wire_free + env.rng.range(least, most);
            if env.swarm.fires(&mut env.rng, Site::Delay) {
                at += env.rng.spread(1_000, 5_000_000);
            }
            qp.last_arrival = at.max(qp.last_arrival);
            qp.launched += 1;
            qp.reads_out += u32::from(posted.is_read());
            let (epoch, after) = (qp.epoch, qp.last_arrival - now);
            self.later(env, after, FabricEvent::Arrive { qp: id, epoch });
        }
    }

    /// The peer, if packets reach it and its queue pair takes them.
    fn reachable_peer(&self, env: &Env, index: usize) -> Option<usize> {
        let entry = &self.entries[index];
        let peer = self.find(entry.peer?)?;
        let other = &self.entries[peer];
        let takes = matches!(
            other.qp.state,
            QpState::ReadyToReceive | QpState::ReadyToSend
        );
        let mine = other.peer == Some(self.id(index));
        (takes && mine && self.path_up(env, entry.nic, other.nic)).then_some(peer)
    }

    pub(super) fn path_up(&self, env: &Env, from: u32, to: u32) -> bool {
        let up = |number: u32| {
            let nic = &self.nics[number as usize];
            nic.state == NicState::Up && nic.link_up_at <= env.now()
        };
        up(from) && up(to)
    }

    /// The oldest work request on the wire reaches the responder, or not.
    pub(super) fn arrive(&mut self, env: &mut Env, index: usize) {
        let qp = &self.entries[index].qp;
        if qp.refused || qp.arrived == qp.launched {
            return;
        }
        if qp.stalled_until > env.now() {
            let (epoch, after) = (qp.epoch, qp.stalled_until - env.now());
            let id = self.id(index);
            self.later(env, after, FabricEvent::Arrive { qp: id, epoch });
            return;
        }
        if env.fires(Site::QueuePairFatal) {
            self.fatal(env, index);
            return;
        }
        let Some(peer) = self.reachable_peer(env, index) else {
            self.unanswered(env, index);
            return;
        };
        let qp = &self.entries[index].qp;
        let posted = qp.posted(qp.arrived);
        let endpoint = self.endpoint_of(index);
        let bytes = u64::from(posted.len);
        env.record(
            endpoint,
            Self::object(index),
            Act::Arrived,
            posted.wr,
            bytes,
        );
        match posted.op {
            SendOp::Send => self.deliver(env, index, peer, &posted),
            SendOp::Write { remote, rkey } => {
                let status = self.write(env, index, peer, &posted, remote, rkey);
                self.conclude(env, index, peer, status);
            }
            SendOp::Read { remote, rkey } => {
                let status = if posted.late_copy {
                    self.check_remote(env, peer, rkey, remote, posted.len)
                } else {
                    self.read(env, index, peer, &posted, remote, rkey)
                };
                self.conclude(env, index, peer, status);
            }
        }
    }

    /// The queue pair fails by itself, and its device says so.
    fn fatal(&mut self, env: &mut Env, index: usize) {
        self.taint(index);
        let after = env.rng.spread(1, 100_000);
        self.say_fatal(env, index, after);
        self.fail(env, index, WorkStatus::Flushed);
    }

    /// The device says that a queue pair failed.
    pub(super) fn say_fatal(&mut self, env: &mut Env, index: usize, after: u64) {
        let entry = &self.entries[index];
        let notice = Notice {
            id: Some(self.id(index)),
            cookie: entry.cookie,
            kind: NoticeKind::QueuePairFatal,
            status: crate::errno::EIO,
            local: None,
            peer: None,
            private: Vec::new(),
        };
        let nic = entry.nic;
        self.notice_after(env, nic, after, notice);
    }

    /// A message meets the peer's next receive, if there is one.
    fn deliver(&mut self, env: &mut Env, index: usize, peer: usize, posted: &Posted) {
        let Some(receive) = self.next_receive(peer) else {
            self.not_ready(env, index, peer, posted.wr);
            return;
        };
        if receive.segment.len < posted.len {
            let endpoint = self.endpoint_of(index);
            let object = Self::object(index);
            env.violate(
                endpoint,
                object,
                Forbidden::ReceiveTooShort,
                posted.len.into(),
            );
            self.complete_receive(env, peer, receive, WorkStatus::LocalAccess, 0);
            let status = WorkStatus::Other(REMOTE_INVALID_REQUEST);
            self.conclude(env, index, peer, status);
            return;
        }
        let target_endpoint = self.endpoint_of(peer);
        let target = env.memory[target_endpoint as usize].resolve(
            receive.segment.lkey,
            receive.segment.addr,
            posted.len,
            Access::LocalWrite,
        );
        let Ok(target) = target else {
            let wr = receive.wr;
            env.violate(target_endpoint, Self::object(peer), Forbidden::LocalKey, wr);
            self.complete_receive(env, peer, receive, WorkStatus::LocalAccess, 0);
            self.conclude(env, index, peer, WorkStatus::Other(REMOTE_INVALID_REQUEST));
            return;
        };
        if !self.gather(env, index, posted, (target_endpoint as usize, target)) {
            self.return_receive(peer, receive);
            return;
        }
        let whose = (target_endpoint as usize, target);
        let len = self.garble(env, (index, peer), whose, posted.len);
        self.complete_receive(env, peer, receive, WorkStatus::Success, len);
        self.conclude(env, index, peer, WorkStatus::Success);
    }

    fn next_receive(&mut self, peer: usize) -> Option<Receive> {
        let entry = &mut self.entries[peer];
        let nic = &mut self.nics[entry.nic as usize];
        if nic.limits.srq_depth > 0 {
            nic.srq.pop_front()
        } else {
            entry.qp.rq.pop_front()
        }
    }

    fn return_receive(&mut self, peer: usize, receive: Receive) {
        let entry = &mut self.entries[peer];
        let nic = &mut self.nics[entry.nic as usize];
        if nic.limits.srq_depth > 0 {
            nic.srq.push_front(receive);
        } else {
            entry.qp.rq.push_front(receive);
        }
    }

    /// Copies a request's bytes to a place. False when a local key was wrong: the queue pair has
    /// failed then.
    fn gather(
        &mut self,
        env: &mut Env,
        index: usize,
        posted: &Posted,
        mut target: (usize, usize),
    ) -> bool {
        if posted.inline {
            let qp = &self.entries[index].qp;
            let start = (posted.start - qp.inline_base) as usize;
            let bytes = qp.inline.range(start..start + posted.len as usize);
            let into = env.memory[target.0].bytes_mut(target.1, posted.len);
            into.iter_mut()
                .zip(bytes)
                .for_each(|(to, from)| *to = *from);
            return true;
        }
        let source = self.endpoint_of(index) as usize;
        for number in 0..posted.segments {
            let segment = self.entries[index].qp.segment(posted, number);
            let (key, addr, len) = (segment.lkey, segment.addr, segment.len);
            let from = env.memory[source].resolve(key, addr, len, Access::LocalRead);
            let Ok(from) = from else {
                self.local_error(env, index, posted.wr);
                return false;
            };
            memory::copy(&mut env.memory, (source, from), target, len);
            target.1 += len as usize;
        }
        true
    }

    fn scatter(
        &mut self,
        env: &mut Env,
        index: usize,
        posted: &Posted,
        mut source: (usize, usize),
    ) -> bool {
        let target = self.endpoint_of(index) as usize;
        for number in 0..posted.segments {
            let segment = self.entries[index].qp.segment(posted, number);
            let (key, addr, len) = (segment.lkey, segment.addr, segment.len);
            let to = env.memory[target].resolve(key, addr, len, Access::LocalWrite);
            let Ok(to) = to else {
                self.local_error(env, index, posted.wr);
                return false;
            };
            memory::copy(&mut env.memory, source, (target, to), len);
            source.1 += len as usize;
        }
        true
    }

    fn local_error(&mut self, env: &mut Env, index: usize, wr: u64) {
        let endpoint = self.endpoint_of(index);
        env.violate(endpoint, Self::object(index), Forbidden::LocalKey, wr);
        self.fail(env, index, WorkStatus::LocalAccess);
    }

    fn write(
        &mut self,
        env: &mut Env,
        index: usize,
        peer: usize,
        posted: &Posted,
        remote: u64,
        rkey: u32,
    ) -> WorkStatus {
        let target = self.endpoint_of(peer) as usize;
        let place = env.memory[target].resolve(rkey, remote, posted.len, Access::RemoteWrite);
        let Ok(place) = place else {
            return WorkStatus::RemoteAccess;
        };
        if self.gather(env, index, posted, (target, place)) {
            WorkStatus::Success
        } else {
            WorkStatus::LocalAccess
        }
    }

    fn check_remote(
        &mut self,
        env: &mut Env,
        peer: usize,
        rkey: u32,
        remote: u64,
        len: u32,
    ) -> WorkStatus {
        let source = self.endpoint_of(peer) as usize;
        match env.memory[source].resolve(rkey, remote, len, Access::RemoteRead) {
            Ok(_) => WorkStatus::Success,
            Err(_) => WorkStatus::RemoteAccess,
        }
    }

    fn read(
        &mut self,
        env: &mut Env,
        index: usize,
        peer: usize,
        posted: &Posted,
        remote: u64,
        rkey: u32,
    ) -> WorkStatus {
        let source = self.endpoint_of(peer) as usize;
        let place = env.memory[source].resolve(rkey, remote, posted.len, Access::RemoteRead);
        let Ok(place) = place else {
            return WorkStatus::RemoteAccess;
        };
        if self.scatter(env, index, posted, (source, place)) {
            WorkStatus::Success
        } else {
            WorkStatus::LocalAccess
        }
    }

    /// The responder has done the oldest request on the wire, or refuses it.
    fn conclude(&mut self, env: &mut Env, index: usize, peer: usize, status: WorkStatus) {
        let qp = &mut self.entries[index].qp;
        if qp.state != QpState::ReadyToSend {
            // A local error has ended it.
            return;
        }
        let number = qp.arrived;
        qp.posted_mut(number).status = status;
        qp.arrived += 1;
        qp.rnr_tries = 0;
        self.answer(env, index, number);
        if status != WorkStatus::Success {
            self.entries[index].qp.refused = true;
            self.taint(index);
            self.fail(env, peer, WorkStatus::Flushed);
        }
    }

    /// Puts the responder's answer on the wire.
    fn answer(&mut self, env: &mut Env, index: usize, number: u64) {
        let now = env.now();
        let id = self.id(index);
        let (least, most) = self.config.latency;
        let qp = &mut self.entries[index].qp;
        let posted = qp.posted(number);
        let mut at = now + env.rng.range(least, most);
        if posted.is_read() {
            at += (u64::from(posted.len) * self.config.per_kib) >> 10;
        }
        qp.last_answer = at.max(qp.last_answer);
        let (epoch, after) = (qp.epoch, qp.last_answer - now);
        self.later(env, after, FabricEvent::Acknowledge { qp: id, epoch });
    }

    /// The answer to the oldest unanswered request reaches the requester.
    pub(super) fn acknowledge(&mut self, env: &mut Env, index: usize) {
        let entry = &self.entries[index];
        let other = entry.peer.map(|peer| self.entries[peer.index as usize].nic);
        if other.is_none_or(|other| !self.path_up(env, entry.nic, other)) {
            self.unanswered(env, index);
            return;
        }
        let qp = &self.entries[index].qp;
        let posted = qp.posted(qp.acked);
        if posted.status != WorkStatus::Success {
            self.fail(env, index, posted.status);
            return;
        }
        if let SendOp::Read { remote, rkey } = posted.op
            && posted.late_copy
            && !self.finish_read(env, index, &posted, remote, rkey)
        {
            return;
        }
        let qp = &mut self.entries[index].qp;
        qp.acked += 1;
        qp.retries = 0;
        if posted.is_read() {
            qp.reads_out -= 1;
        }
        if posted.signaled {
            self.complete_send(env, index, posted.wr, WorkStatus::Success);
        } else {
            qp.unsignaled += 1;
        }
        if posted.is_read() {
            self.launch(env, index);
        }
    }

    /// The bytes of a READ that is answered late. False when they did not come.
    fn finish_read(
        &mut self,
        env: &mut Env,
        index: usize,
        posted: &Posted,
        remote: u64,
        rkey: u32,
    ) -> bool {
        let Some(peer) = self.reachable_peer(env, index) else {
            self.unanswered(env, index);
            return false;
        };
        match self.read(env, index, peer, posted, remote, rkey) {
            WorkStatus::Success => true,
            WorkStatus::LocalAccess => false,
            status => {
                self.taint(index);
                self.fail(env, peer, WorkStatus::Flushed);
                self.fail(env, index, status);
                false
            }
        }
    }

    /// Nobody answered: tries again after the timeout, or gives up.
    fn unanswered(&mut self, env: &mut Env, index: usize) {
        let endpoint = self.endpoint_of(index);
        let entry = &mut self.entries[index];
        entry.qp.retries += 1;
        let tries = entry.qp.retries;
        let wr = entry.qp.posted(entry.qp.acked).wr;
        env.record(
            endpoint,
            Self::object(index),
            Act::Unanswered,
            wr,
            tries.into(),
        );
        if tries > u32::from(self.entries[index].params.retry) {
            self.taint(index);
            self.fail(env, index, WorkStatus::RetryExceeded);
        } else {
            self.go_back(env, index, self.config.retry_timeout);
        }
    }

    fn not_ready(&mut self, env: &mut Env, index: usize, peer: usize, wr: u64) {
        self.rnr += 1;
        let entry = &mut self.entries[index];
        entry.qp.rnr_tries += 1;
        let tries = entry.qp.rnr_tries;
        let (limit, clean) = (u32::from(entry.params.rnr_retry), !entry.tainted);
        let endpoint = self.endpoint_of(index);
        if clean && tries == 1 {
            let object = Self::object(index);
            env.violate(endpoint, object, Forbidden::ReceiverNotReady, wr);
        } else {
            let object = Self::object(peer);
            env.record(endpoint, object, Act::ReceiverNotReady, wr, tries.into());
        }
        if limit < 7 && tries > limit {
            self.fail(env, index, WorkStatus::RnrRetryExceeded);
        } else {
            self.go_back(env, index, self.config.rnr_timer);
        }
    }

    /// Everything on the wire is void; it is sent again later.
    fn go_back(&mut self, env: &mut Env, index: usize, after: u64) {
        let id = self.id(index);
        let qp = &mut self.entries[index].qp;
        qp.epoch = qp.epoch.wrapping_add(1);
        qp.backing_off = true;
        let epoch = qp.epoch;
        self.later(env, after, FabricEvent::Resend { qp: id, epoch });
    }

    /// Sends again from the oldest request that the responder has not done; for those done but
    /// not answered the responder only repeats its answer.
    pub(super) fn resend(&mut self, env: &mut Env, index: usize) {
        let qp = &mut self.entries[index].qp;
        qp.backing_off = false;
        qp.launched = qp.arrived;
        let (from, to) = (qp.acked, qp.arrived);
        qp.reads_out = (from..to)
            .filter(|&number| qp.posted(number).is_read())
            .count() as u32;
        for number in from..to {
            self.answer(env, index, number);
        }
        self.launch(env, index);
    }
}
