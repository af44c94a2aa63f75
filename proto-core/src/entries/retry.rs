//! What a connection that is made anew after a loss has to remember. Few connections are, so it is
//! not in their rows: it lies in the row of a message, in the place of that one's segments.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;

use super::{NOWHERE, Task, TaskFlags};
use crate::config::Reconnect;
use crate::ids::NONE;
use crate::memory::Segment;
use crate::state::task;
use crate::time::Instant;
use crate::wire::Kind;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Retry {
    pub(crate) policy: Reconnect,
    pub(crate) peer: SocketAddr,
    pub(crate) local: Option<SocketAddr>,
    /// When it was lost; while it is online, since when it is.
    pub(crate) at: Instant,
    /// Attempts since it was lost.
    pub(crate) attempts: u32,
    /// How often the pause has doubled.
    pub(crate) backoff: u32,
    pub(crate) transport: u8,
    pub(crate) own_nexus: bool,
    pub(crate) dual_stream: bool,
    /// The user knows of the loss.
    pub(crate) told: bool,
    /// Its attempt has a time of its own among those of the endpoint.
    pub(crate) booked: bool,
    /// Serial number behind the last one that the peer answered, in the life that goes on.
    pub(crate) answered: u64,
    /// The life that was lost, if the peer may remember it and was not asked yet.
    pub(crate) life: Life,
    /// Who the peer was when it was lost, and in which of its lives; 0 for nobody in particular.
    pub(crate) identity: u64,
    pub(crate) incarnation: u64,
    /// The peer is in another of its lives now; the user has not heard it yet.
    pub(crate) restarted: bool,
}

/// What a client has to know of a life that was lost.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Life {
    /// Its transport connection; 0 for none.
    pub(crate) token: u64,
    /// The server's number of its session.
    pub(crate) session: u32,
    /// Serial numbers of requests and one-ways: behind the last sent, the last that came, and the
    /// last that was answered.
    pub(crate) sent: u64,
    pub(crate) next: u64,
    pub(crate) answered: u64,
}

impl Life {
    pub(crate) const NONE: Self = Self {
        token: 0,
        session: 0,
        sent: 0,
        next: 0,
        answered: 0,
    };
}

/// What a server remembers of a life that was lost.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Past {
    /// Its transport connection; 0 for none, [`Past::ANSWER`] for an answer.
    pub(crate) token: u64,
    /// Serial numbers of requests and one-ways: behind the last that came, and the last sent. In an
    /// answer what is said, [`Past::UNKNOWN`] if that is nothing, and the token asked with.
    pub(crate) next: u64,
    pub(crate) sent: u64,
}

impl Past {
    pub(crate) const NONE: Self = Self {
        token: 0,
        next: 0,
        sent: 0,
    };
    /// Tokens are odd.
    pub(crate) const ANSWER: u64 = 2;
    pub(crate) const UNKNOWN: u64 = u64::MAX;

    /// Whether a life is remembered.
    pub(crate) const fn is_life(&self) -> bool {
        self.token & 1 == 1
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1)
}

/// An address as two segments.
pub(super) fn put(address: SocketAddr, kind: u32) -> [Segment; 2] {
    let (bits, flow, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_bits().into(), 0, 0),
        SocketAddr::V6(v6) => (v6.ip().to_bits(), v6.flowinfo(), v6.scope_id()),
    };
    [
        Segment {
            addr: (bits >> 64) as u64,
            len: address.port().into(),
            lkey: flow,
            rkey: scope,
        },
        Segment {
            addr: bits as u64,
            len: kind,
            lkey: 0,
            rkey: 0,
        },
    ]
}

pub(super) fn get([high, low]: [Segment; 2]) -> SocketAddr {
    let bits = u128::from(high.addr) << 64 | u128::from(low.addr);
    let port = high.len as u16;
    match low.len {
        4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(bits as u32)), port),
        _ => SocketAddrV6::new(Ipv6Addr::from_bits(bits), port, high.lkey, high.rkey).into(),
    }
}

pub(super) const fn kind(address: SocketAddr) -> u32 {
    if address.is_ipv4() { 4 } else { 6 }
}

impl Retry {
    /// Begins the life of a row that is no message: it is on no list, nobody can name it, and no
    /// command or frame finds it in a state that means something.
    pub(crate) fn begin(task: &mut Task) {
        task.reset();
        task.state = task::State::Delivered;
        task.kind = Kind::SessionSetupRsp;
        task.flags = TaskFlags::INCOMING | TaskFlags::ORPHAN;
    }

    pub(crate) fn store(&self, task: &mut Task) {
        let flags = [
            self.own_nexus,
            self.dual_stream,
            self.told,
            self.booked,
            self.restarted,
        ];
        let flags = (0..).zip(flags).map(|(n, set)| u32::from(set) << n).sum();
        let part = |addr, len, lkey, rkey| Segment {
            addr,
            len,
            lkey,
            rkey,
        };
        let policy = &self.policy;
        let end = policy.give_up_after.map_or(u64::MAX, nanos);
        task.out.inline = [
            part(
                nanos(policy.first_delay),
                policy.attempts_max,
                self.attempts,
                self.backoff,
            ),
            part(nanos(policy.max_delay), flags, self.transport.into(), 0),
            part(end, 0, 0, 0),
            part(self.at.as_nanos(), 0, 0, 0),
        ];
        let [a, b] = put(self.peer, kind(self.peer));
        let [c, d] = self
            .local
            .map_or_else(|| put(NOWHERE, 0), |local| put(local, kind(local)));
        task.into.inline = [a, b, c, d];
        (task.transfer.posted, task.transfer.done) = (self.identity, self.incarnation);
        let life = &self.life;
        task.kept_deadline = self.answered;
        (task.remote_addr, task.peer_tid) = (life.token, life.session);
        (task.serial, task.data_len, task.offer_total) = (life.sent, life.next, life.answered);
        debug_assert_eq!(Self::load(task), *self);
    }

    pub(crate) fn load(task: &Task) -> Self {
        let [first, max, end, at] = task.out.inline;
        let [a, b, c, d] = task.into.inline;
        let flag = |n: u32| max.len >> n & 1 != 0;
        Self {
            policy: Reconnect {
                attempts_max: first.len,
                give_up_after: (end.addr != u64::MAX).then(|| Duration::from_nanos(end.addr)),
                first_delay: Duration::from_nanos(first.addr),
                max_delay: Duration::from_nanos(max.addr),
            },
            peer: get([a, b]),
            local: (d.len != 0).then(|| get([c, d])),
            at: Instant::from_nanos(at.addr),
            attempts: first.lkey,
            backoff: first.rkey,
            transport: max.lkey as u8,
            own_nexus: flag(0),
            dual_stream: flag(1),
            told: flag(2),
            booked: flag(3),
            answered: task.kept_deadline,
            identity: task.transfer.posted,
            incarnation: task.transfer.done,
            restarted: flag(4),
            life: Life {
                token: task.remote_addr,
                session: task.peer_tid,
                sent: task.serial,
                next: task.data_len,
                answered: task.offer_total,
            },
        }
    }
}

#[cfg(feature = "check")]
impl Task {
    /// Whether it is the row of what a connection remembers.
    pub(crate) fn is_retry(&self) -> bool {
        let marks = TaskFlags::INCOMING | TaskFlags::ORPHAN;
        let state = self.state == task::State::Delivered;
        state && self.kind == Kind::SessionSetupRsp && self.flags == marks
    }
}

impl super::Connection {
    /// Whether it is made anew when it is lost.
    pub(crate) const fn is_lasting(&self) -> bool {
        self.retry != NONE
    }

    /// Serial number behind the last one that came, 0 if none did.
    pub(crate) const fn next_serial(&self) -> u64 {
        if self.any_serial {
            self.last_serial.saturating_add(1)
        } else {
            0
        }
    }

    /// Numbers and credits of a new life.
    pub(crate) fn start_anew(&mut self) {
        debug_assert!(self.frames.is_empty() && self.awaited.is_empty());
        debug_assert!(self.rsp_head == NONE && self.hold_head == NONE);
        // The setup that lost a race may not have its completion yet.
        debug_assert!(self.control_work == 0 || self.cross.race > 0);
        let new = Self::VACANT;
        self.joining = false;
        (self.serial, self.last_serial, self.any_serial) = (0, 0, false);
        (self.req_sn, self.req_expected) = (0, 0);
        (self.rsp_sn, self.rsp_expected) = (0, 0);
        (self.peer_messages, self.peer_bytes) = (0, 0);
        (self.owed_messages, self.owed_bytes) = (0, 0);
        (self.setup_rtid, self.fin_rtid, self.keepalive_rtid) = (0, 0, 0);
        (self.portal, self.portal_len, self.unresolved) = (0, 0, 0);
        (self.probes, self.heard, self.rsp_turn) = (0, false, false);
        (self.asked_times, self.asked_since) = (new.asked_times, new.asked_since);
        (self.asked_at, self.asked_again) = (new.asked_at, new.asked_again);
    }
}
