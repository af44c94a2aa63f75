//! Calls of the communication manager.

use core::net::SocketAddr;

use xio_proto::CmKind;

use super::device::{NicState, Notice, NoticeKind, cm_number};
use super::message::{CmMessage, CmMessageKind};
use super::queue_pair::QpState;
use super::{Fabric, NicId, QpId};
use crate::env::{Env, Forbidden};
use crate::errno;
use crate::swarm::Site;
use crate::trace::{Act, Object};

/// Names a listener: its place and generation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ListenerKey {
    index: u32,
    generation: u32,
}

/// Parameters of connect and accept.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CmParams {
    /// Times an unanswered packet is sent again.
    pub retry: u8,
    /// Times a send that met no receive is tried again; 7 is without end.
    pub rnr_retry: u8,
    /// READs outstanding, in each direction.
    pub reads: u8,
}

impl Default for CmParams {
    fn default() -> Self {
        Self {
            retry: 7,
            rnr_retry: 7,
            reads: 16,
        }
    }
}

/// Calls, as a trace names them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum CmCall {
    ResolveAddress,
    ResolveRoute,
    CreateQueuePair,
    Connect,
    Accept,
    Reject,
    Disconnect,
    Listen,
    Unlisten,
}

impl CmCall {
    const NAMES: [&'static str; 9] = [
        "resolve address",
        "resolve route",
        "create queue pair",
        "connect",
        "accept",
        "reject",
        "disconnect",
        "listen",
        "unlisten",
    ];
    pub(crate) fn name(value: u64) -> &'static str {
        Self::NAMES.get(value as usize).unwrap_or(&"?")
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum CmState {
    Idle,
    AddressAsked,
    AddressKnown,
    RouteAsked,
    RouteKnown,
    /// Connect request sent.
    Connecting,
    /// Connect request received.
    Requested,
    /// Accepted; the client has not confirmed.
    Accepted,
    Up,
    /// Disconnect sent.
    Leaving,
    /// Disconnect received.
    Left,
    /// Rejected, unreachable, or otherwise over.
    Over,
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) generation: u32,
    pub(super) live: bool,
    pub(super) nic: u32,
    pub(super) port: u16,
    pub(super) cookie: u64,
    pub(super) backlog: u32,
    /// Requests that the owner has not decided.
    pub(super) waiting: u32,
}

impl Fabric {
    /// Makes a connection id on a device.
    pub fn create_id(&mut self, nic: NicId, cookie: u64) -> QpId {
        let index = self.new_entry(nic.0, cookie);
        self.id(index)
    }
    /// What the owner calls the id from now on.
    pub fn set_cookie(&mut self, id: QpId, cookie: u64) {
        if let Some(index) = self.find(id) {
            self.entries[index].cookie = cookie;
        }
    }
    /// What the owner calls the id.
    pub fn cookie(&self, id: QpId) -> Option<u64> {
        self.find(id).map(|index| self.entries[index].cookie)
    }

    /// True while a connect request waits for its owner's decision.
    pub fn is_requested(&self, id: QpId) -> bool {
        self.find(id).is_some_and(|index| {
            self.entries[index].cm == CmState::Requested && self.entries[index].cookie == u64::MAX
        })
    }

    /// Checks a call: the id lives, its state is one of those in which the call makes sense, the
    /// device is there, and the call does not fail for no reason.
    fn enter(
        &mut self,
        env: &mut Env,
        id: QpId,
        call: CmCall,
        states: &[CmState],
    ) -> Result<usize, i32> {
        let Some(index) = self.find(id) else {
            let object = Self::object(id.index as usize);
            let owner = self.owner(id);
            env.violate(owner, object, Forbidden::CmCallOutOfPlace, call as u64);
            return Err(errno::EINVAL);
        };
        let endpoint = self.endpoint_of(index);
        let entry = &self.entries[index];
        let error = if self.nics[entry.nic as usize].state != NicState::Up {
            errno::ENODEV
        } else if !states.contains(&entry.cm) {
            // What the peer or a fault did may have made the call needless; anything else is a
            // mistake.
            let ended = matches!(entry.cm, CmState::Over | CmState::Left | CmState::Leaving);
            if !ended && !entry.tainted {
                let object = Self::object(index);
                env.violate(endpoint, object, Forbidden::CmCallOutOfPlace, call as u64);
            }
            errno::EINVAL
        } else if env.fires(Site::CmCallFailed) {
            self.taint(index);
            errno::EINVAL
        } else {
            0
        };
        env.record(
            endpoint,
            Self::object(index),
            Act::CmCall,
            call as u64,
            error as u64,
        );
        if error == 0 {
            self.anything(env, index, 0);
            Ok(index)
        } else {
            Err(error)
        }
    }

    fn step(&self, env: &mut Env) -> u64 {
        let (least, most) = self.config.cm_step;
        env.rng.range(least, most)
    }

    pub(super) fn device_at(&self, address: core::net::IpAddr) -> Option<u32> {
        let there =
            |nic: &super::device::Nic| nic.address == address && nic.state != NicState::Removed;
        // Whoever died there may have a follower.
        self.nics
            .iter()
            .rposition(there)
            .map(|number| number as u32)
    }

    /// Resolves an address; the answer is a notice.
    ///
    /// # Errors
    /// An error number.
    pub fn resolve_address(
        &mut self,
        env: &mut Env,
        id: QpId,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<(), i32> {
        let index = self.enter(env, id, CmCall::ResolveAddress, &[CmState::Idle])?;
        let after = self.step(env);
        let known = self.device_at(peer.ip()).is_some();
        let nic = self.entries[index].nic;
        let port = self.take_port(local);
        let entry = &mut self.entries[index];
        entry.remote = Some(peer);
        entry.local = Some(SocketAddr::new(self.nics[nic as usize].address, port));
        if env.fires(Site::AddressError) {
            self.give(env, index, after, CmKind::AddrError, -errno::EHOSTUNREACH);
        } else if !known {
            let after = after + self.config.cm_retry;
            self.give(env, index, after, CmKind::AddrError, -errno::ETIMEDOUT);
        } else {
            self.entries[index].cm = CmState::AddressAsked;
            self.give(env, index, after, CmKind::AddrResolved, 0);
        }
        Ok(())
    }

    /// What was asked is known once its notice is out.
    pub(super) fn resolved(&mut self, notice: &Notice) {
        let Some(index) = notice.id.and_then(|id| self.find(id)) else {
            return;
        };
        let cm = &mut self.entries[index].cm;
        match (*cm, notice.kind) {
            (CmState::AddressAsked, NoticeKind::Cm(CmKind::AddrResolved)) => {
                *cm = CmState::AddressKnown;
            }
            (CmState::RouteAsked, NoticeKind::Cm(CmKind::RouteResolved)) => {
                *cm = CmState::RouteKnown;
            }
            _ => {}
        }
    }

    fn take_port(&mut self, local: Option<SocketAddr>) -> u16 {
        match local {
            Some(local) if local.port() != 0 => local.port(),
            _ => {
                self.next_port = self.next_port.checked_add(1).unwrap_or(32_768);
                self.next_port
            }
        }
    }

    /// Resolves the route; the answer is a notice.
    ///
    /// # Errors
    /// An error number.
    pub fn resolve_route(&mut self, env: &mut Env, id: QpId) -> Result<(), i32> {
        let index = self.enter(env, id, CmCall::ResolveRoute, &[CmState::AddressKnown])?;
        let after = self.step(env);
        if env.fires(Site::RouteError) {
            self.give(env, index, after, CmKind::RouteError, -errno::ETIMEDOUT);
        } else {
            self.entries[index].cm = CmState::RouteAsked;
            self.give(env, index, after, CmKind::RouteResolved, 0);
        }
        Ok(())
    }

    /// Makes the queue pair of an id.
    ///
    /// # Errors
    /// An error number.
    pub fn create_queue_pair(&mut self, env: &mut Env, id: QpId) -> Result<(), i32> {
        let states = [
            CmState::AddressKnown,
            CmState::RouteKnown,
            CmState::Requested,
        ];
        let index = self.enter(env, id, CmCall::CreateQueuePair, &states)?;
        let endpoint = self.endpoint_of(index);
        let nic = &mut self.nics[self.entries[index].nic as usize];
        let full = nic.queue_pairs >= nic.limits.queue_pairs;
        let error = if full || env.fires(Site::QueuePairFailed) {
            errno::ENOMEM
        } else {
            nic.queue_pairs += 1;
            self.entries[index].qp.state = QpState::Init;
            0
        };
        env.record(endpoint, Self::object(index), Act::Created, error as u64, 0);
        if error == 0 { Ok(()) } else { Err(error) }
    }

    fn bounded(&self, index: usize, mut params: CmParams) -> CmParams {
        let limits = &self.nics[self.entries[index].nic as usize].limits;
        params.reads = params.reads.min(limits.max_reads);
        params
    }

    /// Asks the peer to connect; the answer is a notice.
    ///
    /// # Errors
    /// An error number.
    pub fn connect(
        &mut self,
        env: &mut Env,
        id: QpId,
        params: CmParams,
        private: &[u8],
    ) -> Result<(), i32> {
        let index = self.enter(env, id, CmCall::Connect, &[CmState::RouteKnown])?;
        if self.entries[index].qp.state != QpState::Init {
            return Err(errno::EINVAL);
        }
        let params = self.bounded(index, params);
        let entry = &mut self.entries[index];
        entry.params = params;
        entry.cm = CmState::Connecting;
        self.send_cm(env, index, CmMessageKind::Request, private);
        Ok(())
    }

    /// Accepts a connect request.
    ///
    /// # Errors
    /// An error number; the request is over then.
    pub fn accept(
        &mut self,
        env: &mut Env,
        id: QpId,
        params: CmParams,
        private: &[u8],
    ) -> Result<(), i32> {
        let index = self.enter(env, id, CmCall::Accept, &[CmState::Requested])?;
        if self.entries[index].qp.state != QpState::Init {
            return Err(errno::EINVAL);
        }
        self.decided(index);
        let mut params = self.bounded(index, params);
        // What the peer asked for bounds what either side may do.
        params.reads = params.reads.min(self.entries[index].params.reads);
        let entry = &mut self.entries[index];
        entry.params = params;
        entry.cm = CmState::Accepted;
        entry.qp.state = QpState::ReadyToSend;
        self.send_cm(env, index, CmMessageKind::Reply, private);
        Ok(())
    }

    pub(super) fn decided(&mut self, index: usize) {
        let number = core::mem::replace(&mut self.entries[index].listener, u32::MAX);
        if let Some(listener) = self.listeners.get_mut(number as usize) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    /// Refuses a connect request.
    ///
    /// # Errors
    /// An error number; harmless, because destroying the id refuses too.
    pub fn reject(&mut self, env: &mut Env, id: QpId, private: &[u8]) -> Result<(), i32> {
        let index = self.enter(env, id, CmCall::Reject, &[CmState::Requested])?;
        self.decided(index);
        self.entries[index].cm = CmState::Over;
        self.send_cm(env, index, CmMessageKind::Reject, private);
        Ok(())
    }

    /// Ends a connection; the end is a notice.
    ///
    /// # Errors
    /// An error number: then no notice comes.
    pub fn disconnect(&mut self, env: &mut Env, id: QpId) -> Result<(), i32> {
        let states = [
            CmState::Up,
            CmState::Accepted,
            CmState::Left,
            CmState::Connecting,
        ];
        let index = self.enter(env, id, CmCall::Disconnect, &states)?;
        self.land_some(env, index);
        self.fail(env, index, xio_proto::WorkStatus::Flushed);
        match self.entries[index].cm {
            CmState::Left => self.answer_disconnect(env, index),
            CmState::Connecting => return Err(errno::EINVAL),
            _ => {
                self.entries[index].cm = CmState::Leaving;
                self.send_cm(env, index, CmMessageKind::Disconnect, &[]);
                let wait = self.config.cm_retry * u64::from(self.config.cm_retries);
                let id = self.id(index);
                self.later(env, wait, super::FabricEvent::DisconnectTimeout(id));
            }
        }
        Ok(())
    }

    /// A peer that asked for the end hears that this side is through.
    pub(super) fn answer_disconnect(&mut self, env: &mut Env, index: usize) {
        if self.entries[index].cm == CmState::Left {
            self.entries[index].cm = CmState::Over;
            self.send_cm(env, index, CmMessageKind::DisconnectReply, &[]);
        }
    }

    /// Destroys an id and its queue pair. Nothing of it is heard of any more.
    pub fn destroy(&mut self, env: &mut Env, id: QpId) {
        let Some(index) = self.find(id) else {
            let object = Self::object(id.index as usize);
            let owner = self.owner(id);
            env.violate(owner, object, Forbidden::CmCallOutOfPlace, u64::MAX);
            return;
        };
        self.land_some(env, index);
        match self.entries[index].cm {
            CmState::Up | CmState::Accepted => {
                self.send_cm(env, index, CmMessageKind::Disconnect, &[]);
            }
            CmState::Requested => self.send_cm(env, index, CmMessageKind::Reject, &[]),
            CmState::Left => self.send_cm(env, index, CmMessageKind::DisconnectReply, &[]),
            _ => {}
        }
        self.decided(index);
        self.forget(env, index);
    }

    pub(super) fn forget(&mut self, env: &mut Env, index: usize) {
        let endpoint = self.endpoint_of(index);
        env.record(endpoint, Self::object(index), Act::Destroyed, 0, 0);
        self.clear_queue_pair(env, index);
        self.entries[index].live = false;
        self.free.push(index as u32);
    }

    /// Listens on a port.
    ///
    /// # Errors
    /// An error number.
    pub fn listen(
        &mut self,
        env: &mut Env,
        nic: NicId,
        port: u16,
        backlog: u32,
        cookie: u64,
    ) -> Result<ListenerKey, i32> {
        let device = &self.nics[nic.0 as usize];
        let endpoint = device.endpoint;
        let taken = self
            .listeners
            .iter()
            .any(|other| other.live && other.nic == nic.0 && other.port == port);
        let error = if device.state != NicState::Up {
            errno::ENODEV
        } else if taken {
            errno::EADDRINUSE
        } else if env.fires(Site::CmCallFailed) {
            errno::EINVAL
        } else {
            0
        };
        let object = Object::Nic(nic.0);
        env.record(endpoint, object, Act::Listening, port.into(), error as u64);
        if error != 0 {
            return Err(error);
        }
        let index = self.listeners.iter().position(|other| !other.live);
        let generation = index.map_or(0, |index| self.listeners[index].generation + 1);
        let listener = Listener {
            generation,
            live: true,
            nic: nic.0,
            port,
            cookie,
            backlog: backlog.max(1),
            waiting: 0,
        };
        let index = match index {
            Some(index) => {
                self.listeners[index] = listener;
                index
            }
            None => {
                self.listeners.push(listener);
                self.listeners.len() - 1
            }
        };
        Ok(ListenerKey {
            index: index as u32,
            generation,
        })
    }

    /// Stops listening; requests that nobody decided are refused when their ids are destroyed.
    pub fn unlisten(&mut self, env: &mut Env, key: ListenerKey) {
        if let Some(listener) = self.listeners.get_mut(key.index as usize)
            && listener.generation == key.generation
            && listener.live
        {
            listener.live = false;
            let endpoint = self.nics[listener.nic as usize].endpoint;
            let object = Object::Nic(listener.nic);
            env.record(endpoint, object, Act::CmCall, CmCall::Unlisten as u64, 0);
        }
    }

    /// Gives the owner of an id an event of the communication manager, after a delay; sometimes
    /// more than once, or with one that means nothing.
    pub(super) fn give(
        &mut self,
        env: &mut Env,
        index: usize,
        after: u64,
        kind: CmKind,
        status: i32,
    ) {
        self.give_with(env, index, after, kind, status, Vec::new());
        if env.fires(Site::CmNoise) {
            let noise = env.rng.pick(&[
                cm_number(kind),
                cm_number(CmKind::ConnectResponse),
                cm_number(CmKind::MulticastJoin),
                cm_number(CmKind::MulticastError),
                cm_number(CmKind::TimewaitExit),
                16,
                4_000_000_000,
            ]);
            let after = after + env.rng.spread(1, 10_000_000);
            self.give_with(
                env,
                index,
                after,
                CmKind::from_number(noise),
                status,
                Vec::new(),
            );
        }
        self.anything(env, index, after);
    }

    /// Any event with any status: every state has to do something sensible about it.
    pub(super) fn anything(&mut self, env: &mut Env, index: usize, after: u64) {
        if !env.fires(Site::CmAnything) {
            return;
        }
        // What the owner does in good faith about a lie is no mistake of its own.
        self.taint(index);
        let kind = CmKind::from_number(env.rng.below(17) as u32);
        let status = env.rng.pick(&[0, 0, -errno::ETIMEDOUT, -errno::EINVAL, 28]);
        // Soon it meets the next step of connecting, late a connection at work or at its end.
        let most = env.rng.pick(&[2_000, 200_000, 50_000_000]);
        let after = after + env.rng.spread(1, most);
        self.give_with(env, index, after, kind, status, Vec::new());
    }

    pub(super) fn give_with(
        &mut self,
        env: &mut Env,
        index: usize,
        after: u64,
        kind: CmKind,
        status: i32,
        private: Vec<u8>,
    ) {
        let entry = &self.entries[index];
        let notice = Notice {
            id: Some(self.id(index)),
            cookie: entry.cookie,
            kind: NoticeKind::Cm(kind),
            status,
            local: entry.local,
            peer: entry.remote,
            private,
        };
        let nic = entry.nic;
        self.notice_after(env, nic, after, notice);
    }

    pub(super) fn say_disconnected(&mut self, env: &mut Env, index: usize) {
        let entry = &mut self.entries[index];
        if core::mem::replace(&mut entry.said_disconnected, true) {
            return;
        }
        if env.swarm.fires(&mut env.rng, Site::EarlyDisconnected) {
            let floor = env.now() + env.rng.spread(1_000, 5_000_000);
            entry.qp.visible_recv = entry.qp.visible_recv.max(floor);
            entry.qp.visible_send = entry.qp.visible_send.max(floor);
        }
        let timewait = self.config.timewait;
        if !env.fires(Site::NoDisconnected) {
            self.give(env, index, 0, CmKind::Disconnected, 0);
        }
        if !env.fires(Site::NoTimewait) {
            self.give(env, index, timewait, CmKind::TimewaitExit, 0);
        }
    }

    pub(super) fn new_message(
        &self,
        index: usize,
        kind: CmMessageKind,
        private: &[u8],
    ) -> CmMessage {
        let entry = &self.entries[index];
        CmMessage {
            kind,
            from: self.id(index),
            from_nic: entry.nic,
            to: entry.peer,
            from_address: entry.local,
            to_address: entry.remote,
            params: entry.params,
            private: private.to_vec(),
            tries: 0,
        }
    }
}
