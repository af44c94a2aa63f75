//! Queue pairs: posting, retiring and flushing of work requests.

use std::collections::VecDeque;

use xio_proto::{Segment, WorkStatus};

use super::device::{NicState, WorkCompletion};
use super::{Fabric, NicId, QpId};
use crate::env::{Env, Forbidden};
use crate::errno;
use crate::swarm::Site;
use crate::trace::{Act, status_code};

/// State of a queue pair.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum QpState {
    /// There is none.
    Reset,
    /// Made; receives may be posted.
    Init,
    /// Takes messages, sends none yet.
    ReadyToReceive,
    /// Connected.
    ReadyToSend,
    /// Failed or drained: everything posted is flushed.
    Error,
}

/// What a send request does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// A message for the peer's next receive.
    Send,
    /// Into the peer's memory.
    Write {
        /// Address at the peer.
        remote: u64,
        /// Key at the peer.
        rkey: u32,
    },
    /// From the peer's memory.
    Read {
        /// Address at the peer.
        remote: u64,
        /// Key at the peer.
        rkey: u32,
    },
}

/// A work request for a send queue.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr: u64,
    /// What it does.
    pub op: SendOp,
    /// Local memory.
    pub segments: &'a [Segment],
    /// A completion is wanted.
    pub signaled: bool,
    /// Starts after all READs before it are done.
    pub fence: bool,
    /// The bytes are taken now; no local key is needed.
    pub inline: bool,
}

/// A posted send.
#[derive(Copy, Clone, Debug)]
pub(super) struct Posted {
    pub(super) wr: u64,
    pub(super) op: SendOp,
    pub(super) len: u32,
    /// Absolute number of its first segment, or of its first inline byte.
    pub(super) start: u64,
    pub(super) segments: u32,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) inline: bool,
    /// A READ whose bytes are taken when the answer arrives, not before.
    pub(super) late_copy: bool,
    /// What the responder said.
    pub(super) status: WorkStatus,
    /// Slots it names.
    slots: [u32; 2],
}

impl Posted {
    pub(super) const fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read { .. })
    }
}

/// A posted receive.
#[derive(Copy, Clone, Debug)]
pub(super) struct Receive {
    pub(super) wr: u64,
    pub(super) segment: Segment,
    pub(super) slot: u32,
}

const NO_SLOT: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) state: QpState,
    /// Posted sends whose place is not free: done ones first. Those in front of `acked` are done,
    /// those in front of `arrived` have been executed by the responder, those in front of
    /// `launched` are on the wire. All three count from `base`, the number of the front.
    pub(super) sq: VecDeque<Posted>,
    pub(super) base: u64,
    pub(super) acked: u64,
    pub(super) arrived: u64,
    pub(super) launched: u64,
    pub(super) segments: VecDeque<Segment>,
    pub(super) segments_base: u64,
    pub(super) inline: VecDeque<u8>,
    pub(super) inline_base: u64,
    /// Done without a completion since the last one.
    pub(super) unsignaled: u32,
    pub(super) reads_out: u32,
    /// Number of the transmission; going back starts a new one.
    pub(super) epoch: u32,
    pub(super) retries: u32,
    pub(super) rnr_tries: u32,
    /// Waits to send again; nothing new goes on the wire.
    pub(super) backing_off: bool,
    /// The responder refused something: nothing after it arrives.
    pub(super) refused: bool,
    pub(super) wire_free: u64,
    pub(super) last_arrival: u64,
    pub(super) last_answer: u64,
    pub(super) stalled_until: u64,
    /// The next send cannot be posted.
    pub(super) next_post_fails: bool,
    pub(super) rq: VecDeque<Receive>,
    /// Places on the receive queue that are not free.
    pub(super) rq_used: u32,
    pub(super) visible_send: u64,
    pub(super) visible_recv: u64,
    pub(super) completions_out: u32,
    /// Flushes that the device will report before it falls silent, of each queue.
    flushes_left: [u32; 2],
}

impl Default for QueuePair {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            sq: VecDeque::new(),
            base: 0,
            acked: 0,
            arrived: 0,
            launched: 0,
            segments: VecDeque::new(),
            segments_base: 0,
            inline: VecDeque::new(),
            inline_base: 0,
            unsignaled: 0,
            reads_out: 0,
            epoch: 0,
            retries: 0,
            rnr_tries: 0,
            backing_off: false,
            refused: false,
            wire_free: 0,
            last_arrival: 0,
            last_answer: 0,
            stalled_until: 0,
            next_post_fails: false,
            rq: VecDeque::new(),
            rq_used: 0,
            visible_send: 0,
            visible_recv: 0,
            completions_out: 0,
            flushes_left: [u32::MAX; 2],
        }
    }
}

impl QueuePair {
    /// As new, but the memory of the queues is kept.
    pub(super) fn reset(&mut self) {
        let mut fresh = Self::default();
        self.sq.clear();
        self.segments.clear();
        self.inline.clear();
        self.rq.clear();
        core::mem::swap(&mut fresh.sq, &mut self.sq);
        core::mem::swap(&mut fresh.segments, &mut self.segments);
        core::mem::swap(&mut fresh.inline, &mut self.inline);
        core::mem::swap(&mut fresh.rq, &mut self.rq);
        *self = fresh;
    }
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.base + self.sq.len() as u64
    }
    #[inline]
    pub(super) fn posted(&self, number: u64) -> Posted {
        self.sq[(number - self.base) as usize]
    }
    #[inline]
    pub(super) fn posted_mut(&mut self, number: u64) -> &mut Posted {
        &mut self.sq[(number - self.base) as usize]
    }
    #[inline]
    pub(super) fn segment(&self, posted: &Posted, number: u32) -> Segment {
        self.segments[(posted.start + u64::from(number) - self.segments_base) as usize]
    }
}

impl Fabric {
    /// Posts on the send queue.
    ///
    /// # Errors
    /// An error number; nothing was posted then.
    #[inline]
    pub fn post_send(
        &mut self,
        env: &mut Env,
        id: QpId,
        request: &SendRequest<'_>,
    ) -> Result<(), i32> {
        let Some(index) = self.find(id) else {
            let object = Self::object(id.index as usize);
            env.violate(
                self.owner(id),
                object,
                Forbidden::PostToDestroyed,
                request.wr,
            );
            return Err(errno::EINVAL);
        };
        let endpoint = self.endpoint_of(index);
        let len = request
            .segments
            .iter()
            .map(|segment| u64::from(segment.len))
            .sum();
        if let Err((forbidden, error)) = self.may_post(index, request, len) {
            if let Some(what) = forbidden {
                env.violate(endpoint, Self::object(index), what, request.wr);
            }
            env.record(
                endpoint,
                Self::object(index),
                Act::PostFailed,
                request.wr,
                error as u64,
            );
            return Err(error);
        }
        let doomed = core::mem::take(&mut self.entries[index].qp.next_post_fails);
        if doomed || env.fires(Site::PostFailed) {
            self.taint(index);
            let error = errno::ENOMEM as u64;
            env.record(
                endpoint,
                Self::object(index),
                Act::PostFailed,
                request.wr,
                error,
            );
            return Err(errno::ENOMEM);
        }
        let act = match request.op {
            SendOp::Send => Act::SendPosted,
            SendOp::Write { .. } => Act::WritePosted,
            SendOp::Read { .. } => Act::ReadPosted,
        };
        env.record(endpoint, Self::object(index), act, request.wr, len);
        let posted = self.push_send(env, index, request, len as u32);
        if self.entries[index].qp.state == QpState::Error {
            self.flush_send(env, index, posted, WorkStatus::Flushed);
            let qp = &mut self.entries[index].qp;
            qp.acked = qp.end();
            qp.arrived = qp.acked;
            qp.launched = qp.acked;
        } else {
            self.launch(env, index);
        }
        Ok(())
    }

    fn may_post(
        &self,
        index: usize,
        request: &SendRequest<'_>,
        len: u64,
    ) -> Result<(), (Option<Forbidden>, i32)> {
        let entry = &self.entries[index];
        let nic = &self.nics[entry.nic as usize];
        if nic.state != NicState::Up {
            return Err((None, errno::EIO));
        }
        let connected = matches!(entry.qp.state, QpState::ReadyToSend | QpState::Error);
        let limits = &nic.limits;
        let refusal = if !connected && entry.tainted {
            return Err((None, errno::EINVAL));
        } else if !connected {
            Forbidden::PostTooEarly
        } else if request.segments.len() > limits.max_sge as usize {
            Forbidden::TooManySegments
        } else if len > u64::from(limits.max_message) {
            Forbidden::MessageTooLong
        } else if request.inline && len > u64::from(limits.max_inline) {
            Forbidden::InlineTooLong
        } else if entry.qp.sq.len() >= limits.sq_depth as usize {
            return Err((Some(Forbidden::SendQueueFull), errno::ENOMEM));
        } else {
            return Ok(());
        };
        Err((Some(refusal), errno::EINVAL))
    }

    fn push_send(
        &mut self,
        env: &mut Env,
        index: usize,
        request: &SendRequest<'_>,
        len: u32,
    ) -> Posted {
        let endpoint = self.endpoint_of(index) as usize;
        let memory = &mut env.memory[endpoint];
        let qp = &mut self.entries[index].qp;
        let mut slots = [NO_SLOT; 2];
        let start;
        if request.inline {
            start = qp.inline_base + qp.inline.len() as u64;
            for &segment in request.segments {
                qp.inline.extend(memory.user(segment));
            }
        } else {
            start = qp.segments_base + qp.segments.len() as u64;
            for &segment in request.segments {
                qp.segments.push_back(segment);
                let Some(slot) = memory.slot_at(segment.addr) else {
                    continue;
                };
                if !slots.contains(&slot) {
                    memory.post_slot(slot, false);
                    slots[usize::from(slots[0] != NO_SLOT)] = slot;
                }
            }
        }
        let posted = Posted {
            wr: request.wr,
            op: request.op,
            len,
            start,
            segments: if request.inline {
                0
            } else {
                request.segments.len() as u32
            },
            signaled: request.signaled,
            fence: request.fence,
            inline: request.inline,
            late_copy: matches!(request.op, SendOp::Read { .. }) && env.rng.flip(),
            status: WorkStatus::Success,
            slots,
        };
        qp.sq.push_back(posted);
        posted
    }

    /// Posts on the queue pair's own receive queue.
    ///
    /// # Errors
    /// An error number; nothing was posted then.
    pub fn post_receive(
        &mut self,
        env: &mut Env,
        id: QpId,
        wr: u64,
        segment: Segment,
    ) -> Result<(), i32> {
        let Some(index) = self.find(id) else {
            let object = Self::object(id.index as usize);
            env.violate(self.owner(id), object, Forbidden::PostToDestroyed, wr);
            return Err(errno::EINVAL);
        };
        let endpoint = self.endpoint_of(index);
        let nic = &self.nics[self.entries[index].nic as usize];
        let qp = &self.entries[index].qp;
        let (error, forbidden) = if nic.state != NicState::Up {
            (errno::EIO, None)
        } else if qp.state == QpState::Reset || nic.limits.srq_depth > 0 {
            (errno::EINVAL, Some(Forbidden::PostTooEarly))
        } else if qp.rq_used >= nic.limits.rq_depth {
            (errno::ENOMEM, Some(Forbidden::ReceiveQueueFull))
        } else if env.fires(Site::PostReceiveFailed) {
            self.taint(index);
            (errno::ENOMEM, None)
        } else {
            (0, None)
        };
        if error != 0 {
            if let Some(what) = forbidden {
                env.violate(endpoint, Self::object(index), what, wr);
            }
            env.record(
                endpoint,
                Self::object(index),
                Act::PostFailed,
                wr,
                error as u64,
            );
            return Err(error);
        }
        env.record(endpoint, Self::object(index), Act::RecvPosted, wr, 0);
        let receive = Self::take_receive(env, endpoint, wr, segment);
        let qp = &mut self.entries[index].qp;
        qp.rq_used += 1;
        if qp.state == QpState::Error {
            self.flush_receive(env, index, receive);
        } else {
            qp.rq.push_back(receive);
        }
        Ok(())
    }

    /// Posts on the device's shared receive queue.
    ///
    /// # Errors
    /// An error number; nothing was posted then.
    pub fn post_shared_receive(
        &mut self,
        env: &mut Env,
        nic: NicId,
        wr: u64,
        segment: Segment,
    ) -> Result<(), i32> {
        let device = &self.nics[nic.0 as usize];
        let endpoint = device.endpoint;
        let object = crate::trace::Object::Nic(nic.0);
        if device.state != NicState::Up {
            return Err(errno::EIO);
        }
        if device.srq_used >= device.limits.srq_depth {
            env.violate(endpoint, object, Forbidden::ReceiveQueueFull, wr);
            return Err(errno::ENOMEM);
        }
        if env.fires(Site::PostReceiveFailed) {
            for entry in self.entries.iter_mut().filter(|entry| entry.nic == nic.0) {
                entry.tainted = true;
            }
            env.record(endpoint, object, Act::PostFailed, wr, errno::ENOMEM as u64);
            return Err(errno::ENOMEM);
        }
        env.record(endpoint, object, Act::RecvPosted, wr, 0);
        let receive = Self::take_receive(env, endpoint, wr, segment);
        let device = &mut self.nics[nic.0 as usize];
        device.srq_used += 1;
        device.srq.push_back(receive);
        Ok(())
    }

    fn take_receive(env: &mut Env, endpoint: u32, wr: u64, segment: Segment) -> Receive {
        let memory = &mut env.memory[endpoint as usize];
        let slot = memory.slot_at(segment.addr);
        if let Some(slot) = slot {
            memory.post_slot(slot, true);
        }
        Receive {
            wr,
            segment,
            slot: slot.unwrap_or(NO_SLOT),
        }
    }

    /// Frees places on the send queue.
    pub(super) fn retire(&mut self, env: &mut Env, index: usize, count: u32) {
        let endpoint = self.endpoint_of(index) as usize;
        let qp = &mut self.entries[index].qp;
        for _ in 0..count {
            let Some(posted) = qp.sq.pop_front() else {
                return;
            };
            qp.base += 1;
            Self::return_slots(env, endpoint, &posted);
            if posted.inline {
                qp.inline.drain(..posted.len as usize);
                qp.inline_base += u64::from(posted.len);
            } else {
                qp.segments.drain(..posted.segments as usize);
                qp.segments_base += u64::from(posted.segments);
            }
        }
    }

    fn return_slots(env: &mut Env, endpoint: usize, posted: &Posted) {
        for slot in posted.slots {
            if slot != NO_SLOT {
                env.memory[endpoint].return_slot(slot);
            }
        }
    }

    /// Both ends of a connection were hit by a fault.
    pub(super) fn taint(&mut self, index: usize) {
        self.entries[index].tainted = true;
        if let Some(peer) = self.entries[index].peer.and_then(|peer| self.find(peer)) {
            self.entries[peer].tainted = true;
        }
    }

    /// Moves a queue pair to the error state, as its owner asks. Some of what is on the wire may
    /// have reached the peer.
    ///
    /// # Errors
    /// `EINVAL` when there is no queue pair.
    pub fn drain(&mut self, env: &mut Env, id: QpId) -> Result<(), i32> {
        let index = self.find(id).ok_or(errno::EINVAL)?;
        if self.entries[index].qp.state == QpState::Reset {
            return Err(errno::EINVAL);
        }
        self.land_some(env, index);
        self.fail(env, index, WorkStatus::Flushed);
        self.answer_disconnect(env, index);
        Ok(())
    }

    /// Some of what is on the wire arrives in the last moment.
    pub(super) fn land_some(&mut self, env: &mut Env, index: usize) {
        let id = self.id(index);
        loop {
            let qp = &self.entries[index].qp;
            let on_wire = qp.state == QpState::ReadyToSend && qp.arrived < qp.launched;
            let late = qp.stalled_until > env.now() || qp.backing_off;
            if !on_wire || late || env.rng.flip() {
                return;
            }
            let epoch = qp.epoch;
            self.arrive(env, index);
            if self.find_sending(id, epoch).is_none() {
                return;
            }
        }
    }

    /// Moves a queue pair to the error state. The oldest work request that is not done ends with
    /// `first`, all others are flushed, unless the device forgets to say so.
    pub(super) fn fail(&mut self, env: &mut Env, index: usize, first: WorkStatus) {
        let state = self.entries[index].qp.state;
        if matches!(state, QpState::Error | QpState::Reset) {
            return;
        }
        let endpoint = self.endpoint_of(index);
        env.record(
            endpoint,
            Self::object(index),
            Act::ErrorState,
            status_code(first),
            0,
        );
        let qp = &self.entries[index].qp;
        let posted = [qp.end() - qp.acked, qp.rq.len() as u64];
        let flushes_left = if env.fires(Site::NoFlush) {
            [0; 2]
        } else if env.fires(Site::PartialFlush) {
            posted.map(|count| env.rng.below(count + 1) as u32)
        } else {
            [u32::MAX; 2]
        };
        let qp = &mut self.entries[index].qp;
        qp.flushes_left = flushes_left;
        qp.state = QpState::Error;
        qp.epoch = qp.epoch.wrapping_add(1);
        qp.reads_out = 0;
        let (from, to) = (qp.acked, qp.end());
        qp.acked = to;
        qp.arrived = to;
        qp.launched = to;
        let mut status = first;
        for number in from..to {
            // Retiring happens when completions are polled, so numbers stay valid here.
            let posted = self.entries[index].qp.posted(number);
            self.flush_send(env, index, posted, status);
            status = WorkStatus::Flushed;
        }
        for _ in 0..self.entries[index].qp.rq.len() {
            if let Some(receive) = self.entries[index].qp.rq.pop_front() {
                self.flush_receive(env, index, receive);
            }
        }
    }

    /// Whether the device forgets to report a flush. One that has begun to forget never comes
    /// back to it: queues complete in order.
    fn swallows(&mut self, index: usize, recv: bool, status: WorkStatus) -> bool {
        let left = &mut self.entries[index].qp.flushes_left[usize::from(recv)];
        // The error itself is always reported.
        if status != WorkStatus::Flushed || *left == u32::MAX {
            return false;
        }
        let silent = *left == 0;
        *left = left.saturating_sub(1);
        silent
    }

    fn flush_send(&mut self, env: &mut Env, index: usize, posted: Posted, status: WorkStatus) {
        if self.swallows(index, false, status) {
            let endpoint = self.endpoint_of(index);
            let code = status_code(status);
            env.record(
                endpoint,
                Self::object(index),
                Act::CompletionLost,
                posted.wr,
                code,
            );
            // Its place comes back with the next completion, or with the queue pair's end.
            self.entries[index].qp.unsignaled += 1;
            return;
        }
        self.complete_send(env, index, posted.wr, status);
    }

    pub(super) fn complete_send(
        &mut self,
        env: &mut Env,
        index: usize,
        wr: u64,
        status: WorkStatus,
    ) {
        let qp = self.id(index);
        let retires = core::mem::take(&mut self.entries[index].qp.unsignaled) + 1;
        let completion = WorkCompletion {
            wr,
            status,
            len: 0,
            qp,
            recv: false,
            slot: NO_SLOT,
            retires,
            shared: false,
        };
        self.complete(env, index, completion);
    }

    pub(super) fn complete_receive(
        &mut self,
        env: &mut Env,
        index: usize,
        receive: Receive,
        status: WorkStatus,
        len: u32,
    ) {
        let nic = &self.nics[self.entries[index].nic as usize];
        let completion = WorkCompletion {
            wr: receive.wr,
            status,
            len,
            qp: self.id(index),
            recv: true,
            slot: receive.slot,
            retires: 0,
            shared: nic.limits.srq_depth > 0,
        };
        self.complete(env, index, completion);
    }

    fn flush_receive(&mut self, env: &mut Env, index: usize, receive: Receive) {
        if self.swallows(index, true, WorkStatus::Flushed) {
            let endpoint = self.endpoint_of(index);
            let code = status_code(WorkStatus::Flushed);
            env.record(
                endpoint,
                Self::object(index),
                Act::CompletionLost,
                receive.wr,
                code,
            );
            // Kept, so that the end of the queue pair gives its slot back.
            self.entries[index].qp.rq.push_back(receive);
            return;
        }
        self.complete_receive(env, index, receive, WorkStatus::Flushed, 0);
    }

    /// Takes everything off a queue pair that ends: slots and completions are the owner's again.
    pub(super) fn clear_queue_pair(&mut self, env: &mut Env, index: usize) {
        let endpoint = self.endpoint_of(index) as usize;
        let count = self.entries[index].qp.sq.len() as u32;
        self.retire(env, index, count);
        while let Some(receive) = self.entries[index].qp.rq.pop_front() {
            if receive.slot != NO_SLOT {
                env.memory[endpoint].return_slot(receive.slot);
            }
        }
        let qp = &mut self.entries[index].qp;
        let out = core::mem::take(&mut qp.completions_out);
        let had = qp.state != QpState::Reset;
        qp.state = QpState::Reset;
        let nic = &mut self.nics[self.entries[index].nic as usize];
        nic.cq_used = nic.cq_used.saturating_sub(out);
        nic.queue_pairs = nic.queue_pairs.saturating_sub(u32::from(had));
        self.return_unpolled(env, index);
    }
}
