//! A fabric of reliable connections with the semantics of RC queue pairs.
//!
//! Inside a live queue pair everything arrives once and in order; what varies is when. A send
//! needs a receive at the other end, or is tried again after the receiver-not-ready timer. READ
//! and WRITE touch real memory, behind keys, bounds and rights. A queue pair that fails flushes
//! what is posted, unless the device forgets to. Success of an unsignalled work request leaves
//! no trace; its place on the send queue is free only when a later completion is polled.
//!
//! Folder map: `device` (limits, completion queue, notices), `queue_pair` (posting, flushing),
//! `transfer` (what happens on the wire), `cm` (calls of the communication manager), `message`
//! (its messages on the wire), `fault` (what goes wrong from outside).

mod cm;
mod device;
mod fault;
mod garble;
mod message;
mod queue_pair;
#[cfg(test)]
mod tests;
mod transfer;

use core::net::SocketAddr;

pub use cm::{CmCall, CmParams, ListenerKey};
pub use device::{NicId, NicLimits, Notice, NoticeKind, WorkCompletion};
pub use message::CmMessageKind;
pub use queue_pair::{QpState, SendOp, SendRequest};

use crate::env::Env;
use crate::queue::Event;
use crate::rng::Rng;
use crate::slab::Slab;
use crate::trace::Object;
use cm::{CmState, Listener};
use device::Nic;
use message::CmMessage;
use queue_pair::QueuePair;

/// Names a connection id and its queue pair: a place in the fabric's table and its generation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct QpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What can happen on the fabric.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FabricEvent {
    /// The oldest work request on the wire reaches the responder.
    Arrive {
        /// The requester's queue pair.
        qp: QpId,
        /// Of the transmission; an older one is void.
        epoch: u32,
    },
    /// The answer to the oldest unanswered work request reaches the requester.
    Acknowledge {
        /// The requester's queue pair.
        qp: QpId,
        /// Of the transmission; an older one is void.
        epoch: u32,
    },
    /// The requester tries again.
    Resend {
        /// The requester's queue pair.
        qp: QpId,
        /// Of the transmission; an older one is void.
        epoch: u32,
    },
    /// A late completion becomes visible.
    Visible {
        /// The device.
        nic: u32,
        /// Its place.
        place: u32,
    },
    /// A message of the communication manager arrives.
    CmMessage(u32),
    /// An event of the communication manager becomes visible.
    CmNotice(u32),
    /// Nobody answered a disconnect.
    DisconnectTimeout(QpId),
}

/// Times of the fabric, in nanoseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FabricConfig {
    /// One way, least and most.
    pub latency: (u64, u64),
    /// Time on the wire for 1 KiB.
    pub per_kib: u64,
    /// From a completion to the notification, least and most.
    pub notify: (u64, u64),
    /// One step of the communication manager, least and most.
    pub cm_step: (u64, u64),
    /// Until an unanswered packet is sent again.
    pub retry_timeout: u64,
    /// Until a send that met no receive is tried again.
    pub rnr_timer: u64,
    /// Until an unanswered message of the communication manager is sent again.
    pub cm_retry: u64,
    /// How often that is done.
    pub cm_retries: u8,
    /// From a disconnect to the end of time-wait.
    pub timewait: u64,
    /// Private data comes padded to the size that the transport has room for.
    pub padded_private: bool,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            latency: (1_000, 1_500),
            per_kib: 80,
            notify: (500, 2_000),
            cm_step: (20_000, 200_000),
            retry_timeout: 4_000_000,
            rnr_timer: 640_000,
            cm_retry: 500_000_000,
            cm_retries: 5,
            timewait: 100_000_000,
            padded_private: true,
        }
    }
}

impl FabricConfig {
    /// Times of a seed.
    pub fn draw(rng: &mut Rng) -> Self {
        let base = Self::default();
        let least = rng.spread(200, 50_000);
        Self {
            latency: (least, least + rng.spread(0, 100_000)),
            per_kib: rng.spread(10, 2_000),
            notify: (0, rng.spread(0, 100_000)),
            cm_step: (1_000, rng.spread(1_000, 20_000_000)),
            padded_private: rng.flip(),
            ..base
        }
    }
}

/// A connection id with its queue pair.
#[derive(Debug)]
struct Entry {
    generation: u32,
    live: bool,
    nic: u32,
    /// What the owner calls it.
    cookie: u64,
    cm: CmState,
    /// The other end, once it is known.
    peer: Option<QpId>,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    params: CmParams,
    said_disconnected: bool,
    /// A fault hit the queue pair or its peer: missing receives are not the core's doing.
    tainted: bool,
    listener: u32,
    qp: QueuePair,
}

/// All devices and what connects them.
#[derive(Debug)]
pub struct Fabric {
    config: FabricConfig,
    nics: Vec<Nic>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    listeners: Vec<Listener>,
    messages: Slab<CmMessage>,
    notices: Slab<(u32, Notice)>,
    next_port: u16,
    /// Receiver-not-ready answers, forbidden or not.
    rnr: u64,
}

impl Fabric {
    /// A fabric without devices.
    pub fn new(config: FabricConfig) -> Self {
        Self {
            config,
            nics: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            messages: Slab::default(),
            notices: Slab::default(),
            next_port: 32_768,
            rnr: 0,
        }
    }
    /// Times.
    pub fn config(&self) -> &FabricConfig {
        &self.config
    }
    /// Receiver-not-ready answers so far.
    pub fn rnr_count(&self) -> u64 {
        self.rnr
    }
    /// Connection ids that exist.
    pub fn ids_live(&self) -> usize {
        self.entries.iter().filter(|entry| entry.live).count()
    }
    /// Completions that the device still owes or has not been asked for.
    pub fn completions_waiting(&self, nic: NicId) -> u32 {
        self.nics[nic.0 as usize].cq_used
    }
    /// State of a queue pair, if it exists.
    pub fn state(&self, id: QpId) -> Option<QpState> {
        self.find(id).map(|index| self.entries[index].qp.state)
    }
    /// Work requests on the send queue whose place is not free yet, and receives posted.
    pub fn posted(&self, id: QpId) -> (usize, usize) {
        match self.find(id) {
            Some(index) => {
                let qp = &self.entries[index].qp;
                (qp.sq.len(), qp.rq.len())
            }
            None => (0, 0),
        }
    }

    /// Lets happen what was to happen.
    pub fn handle(&mut self, env: &mut Env, event: FabricEvent) {
        match event {
            FabricEvent::Arrive { qp, epoch } => {
                if let Some(index) = self.find_sending(qp, epoch) {
                    self.arrive(env, index);
                }
            }
            FabricEvent::Acknowledge { qp, epoch } => {
                if let Some(index) = self.find_sending(qp, epoch) {
                    self.acknowledge(env, index);
                }
            }
            FabricEvent::Resend { qp, epoch } => {
                if let Some(index) = self.find_sending(qp, epoch) {
                    self.resend(env, index);
                }
            }
            FabricEvent::Visible { nic, place } => self.late_completion(env, nic, place),
            FabricEvent::CmMessage(place) => self.cm_message(env, place),
            FabricEvent::CmNotice(place) => self.late_notice(env, place),
            FabricEvent::DisconnectTimeout(qp) => {
                if let Some(index) = self.find(qp) {
                    self.say_disconnected(env, index);
                }
            }
        }
    }

    #[inline]
    fn find(&self, id: QpId) -> Option<usize> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.live && entry.generation == id.generation).then_some(id.index as usize)
    }
    #[inline]
    fn find_sending(&self, id: QpId, epoch: u32) -> Option<usize> {
        let index = self.find(id)?;
        let qp = &self.entries[index].qp;
        (qp.state == QpState::ReadyToSend && qp.epoch == epoch).then_some(index)
    }
    #[inline]
    fn id(&self, index: usize) -> QpId {
        QpId {
            index: index as u32,
            generation: self.entries[index].generation,
        }
    }
    #[inline]
    fn endpoint_of(&self, index: usize) -> u32 {
        self.nics[self.entries[index].nic as usize].endpoint
    }
    /// Whose id it is or was.
    fn owner(&self, id: QpId) -> u32 {
        match self.entries.get(id.index as usize) {
            Some(entry) => self.nics[entry.nic as usize].endpoint,
            None => crate::trace::Record::NOBODY,
        }
    }
    #[inline]
    fn object(index: usize) -> Object {
        Object::QueuePair(index as u32)
    }

    fn later(&self, env: &mut Env, after: u64, event: FabricEvent) {
        env.queue.push_after(after, Event::Fabric(event));
    }

    fn new_entry(&mut self, nic: u32, cookie: u64) -> usize {
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None => {
                self.entries.push(Entry {
                    generation: 0,
                    live: false,
                    nic,
                    cookie,
                    cm: CmState::Idle,
                    peer: None,
                    local: None,
                    remote: None,
                    params: CmParams::default(),
                    said_disconnected: false,
                    tainted: false,
                    listener: u32::MAX,
                    qp: QueuePair::default(),
                });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[index];
        entry.generation = entry.generation.wrapping_add(1);
        entry.live = true;
        entry.nic = nic;
        entry.cookie = cookie;
        entry.cm = CmState::Idle;
        entry.peer = None;
        entry.local = None;
        entry.remote = None;
        entry.params = CmParams::default();
        entry.said_disconnected = false;
        entry.tainted = false;
        entry.listener = u32::MAX;
        entry.qp.reset();
        index
    }
}
