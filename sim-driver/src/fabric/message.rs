//! Messages of the communication manager on the wire, and what their arrival does.

use core::net::SocketAddr;

use xio_proto::CmKind;

use super::cm::{CmParams, CmState};
use super::device::{NicState, Notice, NoticeKind};
use super::queue_pair::QpState;
use super::{Fabric, FabricEvent, QpId};
use crate::env::Env;
use crate::errno;
use crate::swarm::Site;
use crate::trace::Act;

/// Kinds of messages.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum CmMessageKind {
    Request,
    Reply,
    Ready,
    Reject,
    Disconnect,
    DisconnectReply,
}

impl CmMessageKind {
    const NAMES: [&'static str; 6] = [
        "connect request",
        "connect reply",
        "ready to use",
        "reject",
        "disconnect request",
        "disconnect reply",
    ];
    pub(crate) fn name(value: u64) -> &'static str {
        Self::NAMES.get(value as usize).unwrap_or(&"?")
    }
}

/// Room for private data, as InfiniBand has it for users of the communication manager.
const REQUEST_PRIVATE: usize = 56;
const REPLY_PRIVATE: usize = 196;
const REJECT_PRIVATE: usize = 148;

/// "Nobody listens there" and "refused by the consumer", as a rejection's status.
const REJECT_NO_SERVICE: i32 = 8;
const REJECT_CONSUMER: i32 = 28;
const REJECT_STALE: i32 = 10;

#[derive(Debug)]
pub(super) struct CmMessage {
    pub(super) kind: CmMessageKind,
    pub(super) from: QpId,
    pub(super) from_nic: u32,
    pub(super) to: Option<QpId>,
    pub(super) from_address: Option<SocketAddr>,
    pub(super) to_address: Option<SocketAddr>,
    pub(super) params: CmParams,
    pub(super) private: Vec<u8>,
    pub(super) tries: u8,
}

impl Fabric {
    pub(super) fn send_cm(
        &mut self,
        env: &mut Env,
        index: usize,
        kind: CmMessageKind,
        private: &[u8],
    ) {
        let endpoint = self.endpoint_of(index);
        env.record(
            endpoint,
            Self::object(index),
            Act::CmMessage,
            kind as u64,
            0,
        );
        let message = self.new_message(index, kind, private);
        self.post_cm(env, message);
    }

    fn post_cm(&mut self, env: &mut Env, message: CmMessage) {
        let (least, most) = self.config.cm_step;
        let after = env.rng.range(least, most);
        let place = self.messages.put(message);
        self.later(env, after, FabricEvent::CmMessage(place));
    }

    /// A refusal for a message that has no home.
    fn bounce(&mut self, env: &mut Env, message: &CmMessage, nic: u32, status: i32) {
        let reply = CmMessage {
            kind: CmMessageKind::Reject,
            from: QpId {
                index: u32::MAX,
                generation: 0,
            },
            from_nic: nic,
            to: Some(message.from),
            from_address: message.to_address,
            to_address: message.from_address,
            params: message.params,
            private: status.to_le_bytes().to_vec(),
            tries: 0,
        };
        self.post_cm(env, reply);
    }

    pub(super) fn cm_message(&mut self, env: &mut Env, place: u32) {
        let Some(mut message) = self.messages.take(place) else {
            return;
        };
        let target = match message.kind {
            CmMessageKind::Request => message
                .to_address
                .and_then(|address| self.device_at(address.ip())),
            _ => message
                .to
                .and_then(|id| self.entries.get(id.index as usize))
                .map(|e| e.nic),
        };
        let from = message.from_nic;
        let Some(nic) = target.filter(|&nic| self.path_up(env, from, nic)) else {
            self.lost(env, &mut message);
            if message.tries > 0 && message.tries <= self.config.cm_retries {
                let place = self.messages.put(message);
                self.later(env, self.config.cm_retry, FabricEvent::CmMessage(place));
            }
            return;
        };
        match message.kind {
            CmMessageKind::Request => self.take_request(env, nic, message),
            CmMessageKind::Reply => self.take_reply(env, message),
            CmMessageKind::Ready => self.take_ready(env, &message),
            CmMessageKind::Reject => self.take_reject(env, &message),
            CmMessageKind::Disconnect => self.take_disconnect(env, &message),
            CmMessageKind::DisconnectReply => {
                if let Some(index) = message.to.and_then(|to| self.find(to)) {
                    self.entries[index].cm = CmState::Over;
                    self.say_disconnected(env, index);
                }
            }
        }
    }

    /// A message did not get through: it is sent again, or its sender hears of it.
    fn lost(&mut self, env: &mut Env, message: &mut CmMessage) {
        message.tries += 1;
        if message.tries <= self.config.cm_retries {
            return;
        }
        let Some(index) = self.find(message.from) else {
            return;
        };
        match message.kind {
            CmMessageKind::Request | CmMessageKind::Reply => {
                self.entries[index].cm = CmState::Over;
                self.give(env, index, 0, CmKind::Unreachable, -errno::ETIMEDOUT);
            }
            CmMessageKind::Disconnect => self.say_disconnected(env, index),
            CmMessageKind::Ready | CmMessageKind::Reject | CmMessageKind::DisconnectReply => {}
        }
    }

    fn padded(&self, mut private: Vec<u8>, room: usize) -> Vec<u8> {
        private.truncate(room);
        if self.config.padded_private {
            private.resize(room, 0);
        }
        private
    }

    fn take_request(&mut self, env: &mut Env, nic: u32, message: CmMessage) {
        if self.find(message.from).is_none() {
            return;
        }
        let port = message.to_address.map_or(0, |address| address.port());
        let listener = self
            .listeners
            .iter()
            .position(|other| other.live && other.nic == nic && other.port == port);
        let full =
            |listener: usize| self.listeners[listener].waiting >= self.listeners[listener].backlog;
        let Some(listener) = listener.filter(|&listener| !full(listener)) else {
            let status = if listener.is_none() {
                REJECT_NO_SERVICE
            } else {
                REJECT_CONSUMER
            };
            self.bounce(env, &message, nic, status);
            return;
        };
        if env.fires(Site::Rejected) {
            self.bounce(env, &message, nic, REJECT_CONSUMER);
            return;
        }
        self.listeners[listener].waiting += 1;
        let cookie = self.listeners[listener].cookie;
        let index = self.new_entry(nic, u64::MAX);
        let entry = &mut self.entries[index];
        entry.cm = CmState::Requested;
        entry.peer = Some(message.from);
        entry.local = message.to_address;
        entry.remote = message.from_address;
        entry.params = message.params;
        entry.listener = listener as u32;
        let notice = Notice {
            id: Some(self.id(index)),
            cookie,
            kind: NoticeKind::Cm(CmKind::ConnectRequest),
            status: 0,
            local: message.to_address,
            peer: message.from_address,
            private: self.padded(message.private, REQUEST_PRIVATE),
        };
        self.notice_after(env, nic, 0, notice);
        self.anything(env, index, 0);
    }

    fn take_reply(&mut self, env: &mut Env, message: CmMessage) {
        let client = message.to.and_then(|to| self.find(to));
        let waiting = |index: &usize| self.entries[*index].cm == CmState::Connecting;
        let Some(index) = client.filter(waiting) else {
            let nic = message
                .to
                .map_or(0, |to| self.entries[to.index as usize].nic);
            self.bounce(env, &message, nic, REJECT_STALE);
            return;
        };
        if env.fires(Site::ConnectError) {
            self.entries[index].cm = CmState::Over;
            self.give(env, index, 0, CmKind::ConnectError, -errno::EINVAL);
            self.bounce(env, &message, self.entries[index].nic, REJECT_STALE);
            return;
        }
        if env.fires(Site::Unreachable) {
            self.entries[index].cm = CmState::Over;
            self.give(env, index, 0, CmKind::Unreachable, -errno::ETIMEDOUT);
            self.bounce(env, &message, self.entries[index].nic, REJECT_STALE);
            return;
        }
        let entry = &mut self.entries[index];
        entry.peer = Some(message.from);
        entry.params.reads = entry.params.reads.min(message.params.reads);
        entry.cm = CmState::Up;
        // The owner may have drained the queue pair meanwhile.
        if entry.qp.state == QpState::Init {
            entry.qp.state = QpState::ReadyToSend;
        }
        let private = self.padded(message.private, REPLY_PRIVATE);
        self.give_with(env, index, 0, CmKind::Established, 0, private);
        self.anything(env, index, 0);
        self.unasked_end(env, index);
        self.send_cm(env, index, CmMessageKind::Ready, &[]);
    }

    /// Rejected after established, and unreachable in mid-life: reported from the field.
    fn unasked_end(&mut self, env: &mut Env, index: usize) {
        if env.fires(Site::Rejected) {
            let after = env.rng.spread(1, 50_000_000);
            self.give(env, index, after, CmKind::Rejected, REJECT_CONSUMER);
        }
        if env.fires(Site::Unreachable) {
            let after = env.rng.spread(1, 500_000_000);
            self.give(env, index, after, CmKind::Unreachable, -errno::ETIMEDOUT);
        }
    }

    fn take_ready(&mut self, env: &mut Env, message: &CmMessage) {
        let Some(index) = message.to.and_then(|to| self.find(to)) else {
            return;
        };
        if self.entries[index].cm != CmState::Accepted {
            return;
        }
        self.entries[index].cm = CmState::Up;
        let late = if env.fires(Site::LateEstablished) {
            env.rng.spread(1_000, 500_000_000)
        } else {
            0
        };
        self.give(env, index, late, CmKind::Established, 0);
        self.unasked_end(env, index);
    }

    fn take_reject(&mut self, env: &mut Env, message: &CmMessage) {
        let Some(index) = message.to.and_then(|to| self.find(to)) else {
            return;
        };
        let entry = &mut self.entries[index];
        if !matches!(
            entry.cm,
            CmState::Connecting | CmState::Requested | CmState::Accepted
        ) {
            return;
        }
        entry.cm = CmState::Over;
        // A bounced message carries its status where a user's data would be.
        let bounced = message.from.index == u32::MAX;
        let (status, private) = match (bounced, message.private.as_slice()) {
            (true, &[a, b, c, d]) => (i32::from_le_bytes([a, b, c, d]), Vec::new()),
            _ => (REJECT_CONSUMER, message.private.clone()),
        };
        let private = self.padded(private, REJECT_PRIVATE);
        self.give_with(env, index, 0, CmKind::Rejected, status, private);
    }

    fn take_disconnect(&mut self, env: &mut Env, message: &CmMessage) {
        let Some(index) = message.to.and_then(|to| self.find(to)) else {
            self.answer_gone(env, message);
            return;
        };
        let was = self.entries[index].cm;
        match was {
            CmState::Up | CmState::Accepted | CmState::Connecting => {
                self.entries[index].cm = CmState::Left;
                self.say_disconnected(env, index);
            }
            CmState::Leaving => {
                self.entries[index].cm = CmState::Over;
                self.send_cm(env, index, CmMessageKind::DisconnectReply, &[]);
                self.say_disconnected(env, index);
            }
            _ => {}
        }
    }

    /// The peer is gone already: its communication manager answers for it.
    fn answer_gone(&mut self, env: &mut Env, message: &CmMessage) {
        if let Some(index) = self.find(message.from)
            && self.nics[self.entries[index].nic as usize].state == NicState::Up
            && self.entries[index].cm == CmState::Leaving
        {
            self.entries[index].cm = CmState::Over;
            self.say_disconnected(env, index);
        }
    }
}
