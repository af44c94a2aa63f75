//! Devices: limits, the completion queue, and the channel of the communication manager's events.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use xio_proto::{CmKind, WorkStatus};

use super::queue_pair::Receive;
use super::{Fabric, FabricEvent, QpId};
use crate::env::{Env, Forbidden};
use crate::rng::Rng;
use crate::slab::Slab;
use crate::swarm::Site;
use crate::trace::{Act, Object, status_code};

/// Names a device of the fabric.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NicId(pub u32);

/// What a device can do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NicLimits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests on a send queue.
    pub sq_depth: u32,
    /// Work requests on a receive queue.
    pub rq_depth: u32,
    /// Receives on the shared queue; 0 for private queues.
    pub srq_depth: u32,
    /// Completions.
    pub cq_depth: u32,
    /// Segments of a send.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// READs outstanding per queue pair, in each direction.
    pub max_reads: u8,
    /// Bytes of a message.
    pub max_message: u32,
}

impl Default for NicLimits {
    fn default() -> Self {
        Self {
            queue_pairs: 65_536,
            sq_depth: 257,
            rq_depth: 288,
            srq_depth: 0,
            cq_depth: 65_536,
            max_sge: 5,
            max_inline: 200,
            max_reads: 16,
            max_message: 1 << 30,
        }
    }
}

impl NicLimits {
    /// A device that a protocol can barely live with.
    pub fn tiny(rng: &mut Rng) -> Self {
        Self {
            queue_pairs: rng.range(2, 64) as u32,
            sq_depth: rng.range(8, 24) as u32,
            rq_depth: rng.range(12, 40) as u32,
            srq_depth: if rng.flip() {
                0
            } else {
                rng.range(24, 64) as u32
            },
            cq_depth: rng.range(64, 256) as u32,
            max_sge: rng.range(2, 4) as u32,
            max_inline: rng.pick(&[0, 0, 64, 220]),
            max_reads: rng.range(1, 2) as u8,
            max_message: rng.pick(&[16 << 10, 64 << 10, 1 << 20]),
        }
    }
}

/// A work completion as a driver polls it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WorkCompletion {
    /// The word that was posted.
    pub wr: u64,
    /// How it ended.
    pub status: WorkStatus,
    /// Bytes received.
    pub len: u32,
    /// The queue pair.
    pub qp: QpId,
    /// Of a receive.
    pub recv: bool,
    /// The slot of a receive, or `u32::MAX`.
    pub(super) slot: u32,
    /// Places on the send queue that are free with it.
    pub(super) retires: u32,
    /// Took its receive from the shared queue.
    pub(super) shared: bool,
}

/// What a notice is about.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum NoticeKind {
    /// An event of the communication manager.
    Cm(CmKind),
    /// The queue pair failed by itself.
    QueuePairFatal,
}

/// Something that a device tells its driver apart from completions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The connection id; of a listener's notice, nobody's.
    pub id: Option<QpId>,
    /// What the owner calls the id, or the listener.
    pub cookie: u64,
    /// What happened.
    pub kind: NoticeKind,
    /// 0, or why it failed.
    pub status: i32,
    /// Address of this side, when known.
    pub local: Option<SocketAddr>,
    /// Address of the peer, when known.
    pub peer: Option<SocketAddr>,
    /// The peer's private data.
    pub private: Vec<u8>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum NicState {
    Up,
    Removed,
    Dead,
}

#[derive(Debug)]
pub(super) struct Nic {
    pub(super) endpoint: u32,
    pub(super) address: IpAddr,
    pub(super) limits: NicLimits,
    pub(super) state: NicState,
    /// The link is down until then.
    pub(super) link_up_at: u64,
    pub(super) queue_pairs: u32,
    /// Completions that can be polled.
    cq: VecDeque<WorkCompletion>,
    /// Those, and those that are made but not visible.
    pub(super) cq_used: u32,
    armed: bool,
    /// Nothing becomes visible before.
    held_until: u64,
    late: Slab<WorkCompletion>,
    /// Completions that were taken, oldest first, when some are to come again.
    taken: VecDeque<WorkCompletion>,
    cm: VecDeque<Notice>,
    pub(super) srq: VecDeque<Receive>,
    pub(super) srq_used: u32,
}

impl Fabric {
    /// How long a lost notification stays unnoticed, in nanoseconds.
    /// So many are taken before one comes again.
    const TAKEN: usize = 40;
    const BACKSTOP: u64 = 10_000_000;

    /// A device of an endpoint, reachable at an address.
    pub fn add_nic(&mut self, endpoint: u32, address: IpAddr, limits: NicLimits) -> NicId {
        self.nics.push(Nic {
            endpoint,
            address,
            limits,
            state: NicState::Up,
            link_up_at: 0,
            queue_pairs: 0,
            cq: VecDeque::with_capacity(64),
            cq_used: 0,
            armed: false,
            held_until: 0,
            late: Slab::default(),
            taken: VecDeque::new(),
            cm: VecDeque::new(),
            srq: VecDeque::new(),
            srq_used: 0,
        });
        NicId(self.nics.len() as u32 - 1)
    }
    /// The device's limits.
    pub fn limits(&self, nic: NicId) -> &NicLimits {
        &self.nics[nic.0 as usize].limits
    }
    /// The device's address.
    pub fn address(&self, nic: NicId) -> IpAddr {
        self.nics[nic.0 as usize].address
    }

    /// Makes a completion: visible now, or when its queue's earlier ones are and luck has it.
    pub(super) fn complete(&mut self, env: &mut Env, index: usize, completion: WorkCompletion) {
        let entry = &mut self.entries[index];
        let nic_number = entry.nic;
        let nic = &mut self.nics[nic_number as usize];
        if nic.cq_used >= nic.limits.cq_depth {
            let endpoint = nic.endpoint;
            let wr = completion.wr;
            env.violate(
                endpoint,
                Self::object(index),
                Forbidden::CompletionQueueOverrun,
                wr,
            );
            return;
        }
        nic.cq_used += 1;
        entry.qp.completions_out += 1;
        let now = env.now();
        let last = if completion.recv {
            &mut entry.qp.visible_recv
        } else {
            &mut entry.qp.visible_send
        };
        let mut at = now.max(*last).max(nic.held_until);
        if env.swarm.fires(&mut env.rng, Site::LateCompletion) {
            at += env.rng.spread(1_000, 5_000_000);
        }
        let flushed = completion.status == WorkStatus::Flushed;
        if flushed && env.swarm.fires(&mut env.rng, Site::SlowFlush) {
            at += env.rng.spread(1_000, 100_000_000);
        }
        if env.swarm.fires(&mut env.rng, Site::BatchedCompletion) {
            nic.held_until = now + env.rng.spread(1_000, 500_000);
            at = at.max(nic.held_until);
        }
        // One that is to be seen in this very moment may not have been yet.
        let behind = core::mem::replace(last, at) == at;
        if at <= now && !behind {
            self.make_visible(env, nic_number, completion);
        } else {
            let place = nic.late.put(completion);
            let event = FabricEvent::Visible {
                nic: nic_number,
                place,
            };
            self.later(env, at - now, event);
        }
    }

    pub(super) fn late_completion(&mut self, env: &mut Env, nic: u32, place: u32) {
        if let Some(completion) = self.nics[nic as usize].late.take(place) {
            self.make_visible(env, nic, completion);
        }
    }

    fn make_visible(&mut self, env: &mut Env, nic_number: u32, completion: WorkCompletion) {
        let nic = &mut self.nics[nic_number as usize];
        let endpoint = nic.endpoint;
        nic.cq.push_back(completion);
        if !nic.armed {
            return;
        }
        nic.armed = false;
        if env.fires(Site::MissedNotification) {
            // A driver that sleeps looks around now and then all the same.
            env.wake_after(endpoint, Self::BACKSTOP);
            return;
        }
        let (least, most) = self.config.notify;
        let after = env.rng.range(least, most);
        env.wake_after(endpoint, after);
    }

    /// Takes the next completion.
    pub fn poll_completion(&mut self, env: &mut Env, nic: NicId) -> Option<WorkCompletion> {
        if let Some(again) = self.stale_completion(env, nic) {
            return Some(again);
        }
        loop {
            let device = &mut self.nics[nic.0 as usize];
            let completion = device.cq.pop_front()?;
            // Those of a destroyed queue pair went with it.
            let Some(index) = self.find(completion.qp) else {
                continue;
            };
            let device = &mut self.nics[nic.0 as usize];
            device.cq_used -= 1;
            let endpoint = device.endpoint;
            let shared = completion.shared;
            device.srq_used -= u32::from(completion.recv && shared);
            let qp = &mut self.entries[index].qp;
            qp.completions_out -= 1;
            if completion.recv {
                qp.rq_used -= u32::from(!shared);
                if completion.slot != u32::MAX {
                    env.memory[endpoint as usize].return_slot(completion.slot);
                }
            } else {
                self.retire(env, index, completion.retires);
            }
            let status = status_code(completion.status);
            env.record(
                endpoint,
                Self::object(index),
                Act::Completed,
                completion.wr,
                status,
            );
            if env.swarm.ppm(Site::StaleCompletion) > 0 {
                self.nics[nic.0 as usize].taken.push_back(completion);
            }
            return Some(completion);
        }
    }

    /// A completion of long ago, once more: only its generation tells.
    fn stale_completion(&mut self, env: &mut Env, nic: NicId) -> Option<WorkCompletion> {
        let device = &mut self.nics[nic.0 as usize];
        if device.taken.len() < Self::TAKEN || !env.fires(Site::StaleCompletion) {
            while device.taken.len() > Self::TAKEN {
                device.taken.pop_front();
            }
            return None;
        }
        let completion = device.taken.pop_front()?;
        let (endpoint, object) = (device.endpoint, Object::Nic(nic.0));
        let status = status_code(completion.status);
        env.record(endpoint, object, Act::Completed, completion.wr, status);
        Some(completion)
    }

    /// Asks for a wake-up at the next completion or notice. False when there is something
    /// already: then poll again instead of sleeping.
    pub fn arm(&mut self, env: &mut Env, nic: NicId) -> bool {
        let nic = &mut self.nics[nic.0 as usize];
        nic.armed = true;
        let endpoint = nic.endpoint;
        let empty = nic.cq.is_empty() && nic.cm.is_empty();
        if env.fires(Site::SpuriousNotification) {
            let after = env.rng.spread(1_000, 1_000_000);
            env.wake_after(endpoint, after);
        }
        empty
    }

    /// Completions of a queue pair that ends are never polled; their slots come back with it.
    pub(super) fn return_unpolled(&mut self, env: &mut Env, index: usize) {
        let id = self.id(index);
        let nic = &mut self.nics[self.entries[index].nic as usize];
        let memory = &mut env.memory[nic.endpoint as usize];
        let waiting = nic.cq.iter().chain(nic.late.iter());
        for completion in waiting.filter(|completion| completion.qp == id && completion.recv) {
            nic.srq_used -= u32::from(completion.shared);
            if completion.slot != u32::MAX {
                memory.return_slot(completion.slot);
            }
        }
    }

    /// Makes a notice visible after a delay.
    pub(super) fn notice_after(&mut self, env: &mut Env, nic: u32, after: u64, notice: Notice) {
        let place = self.notices.put((nic, notice));
        self.later(env, after, FabricEvent::CmNotice(place));
    }

    pub(super) fn late_notice(&mut self, env: &mut Env, place: u32) {
        let Some((nic_number, notice)) = self.notices.take(place) else {
            return;
        };
        let nic = &self.nics[nic_number as usize];
        if nic.state == NicState::Dead {
            return;
        }
        let endpoint = nic.endpoint;
        self.resolved(&notice);
        self.nics[nic_number as usize].cm.push_back(notice);
        env.wake_after(endpoint, 0);
    }

    /// Takes the next notice. Those of ids that are gone are dropped.
    pub fn poll_notice(&mut self, env: &mut Env, nic: NicId) -> Option<Notice> {
        loop {
            let device = &mut self.nics[nic.0 as usize];
            let endpoint = device.endpoint;
            let mut notice = device.cm.pop_front()?;
            if let Some(id) = notice.id {
                let Some(index) = self.find(id) else {
                    continue;
                };
                // A request names its listener; all else, what the owner calls the id by now.
                if notice.kind != NoticeKind::Cm(CmKind::ConnectRequest) {
                    notice.cookie = self.entries[index].cookie;
                }
            }
            let object = match notice.id {
                Some(id) => Object::QueuePair(id.index),
                None => Object::Nic(nic.0),
            };
            let kind = match notice.kind {
                NoticeKind::Cm(kind) => cm_number(kind),
                NoticeKind::QueuePairFatal => 100,
            };
            let status = notice.status as i64 as u64;
            env.record(endpoint, object, Act::CmEvent, kind.into(), status);
            return Some(notice);
        }
    }

    /// Forgets what a device holds that a new life of its endpoint must not see.
    pub(super) fn clear_nic(&mut self, nic: usize) {
        let nic = &mut self.nics[nic];
        nic.cq.clear();
        nic.cm.clear();
        nic.srq.clear();
        nic.srq_used = 0;
        nic.cq_used = 0;
        nic.queue_pairs = 0;
        nic.armed = false;
    }
}

/// The number of an event kind, the inverse of [`CmKind::from_number`].
pub(super) fn cm_number(kind: CmKind) -> u32 {
    if let CmKind::Unknown(number) = kind {
        return number;
    }
    (0..16)
        .find(|&number| CmKind::from_number(number) == kind)
        .unwrap_or(u32::MAX)
}
