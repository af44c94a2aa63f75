//! The state of an endpoint as a plain value, for people who look from outside.

use core::net::SocketAddr;

use super::{Counters, Endpoint, FreeRows};
use crate::entries::TaskFlags;
use crate::ids::{ConnectionId, NONE, NexusId, SessionId, TransportId};
use crate::state::task::State as TaskState;
use crate::state::{connection, nexus};
use crate::storage::Storage;
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::Framing;

/// Names the fields of a value that is all numbers: what is added to it and not here does not
/// compile.
macro_rules! named {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $type {
            /// All of it, with the fields' names, in their order.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let Self { $($field),* } = *self;
                [$((stringify!($field), u64::from($field))),*].into_iter()
            }
        }
    };
}

/// Adds to a counter of a row, of which there are thousands: a small one stops at its end.
pub(crate) fn count(counter: &mut u32, more: u32) {
    *counter = counter.saturating_add(more);
}

/// What went over a transport connection since it was made (PROTOCOL.md 6).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct NexusCounters {
    /// Work requests put on its send queue: frames, READs and WRITEs.
    pub work_posted: u64,
    /// Bytes of them.
    pub bytes_posted: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Bytes of them.
    pub bytes_received: u64,
    /// Bytes of payload that came past the frames, off a stream.
    pub payload_received: u64,
    /// Credit frames sent.
    pub nops_sent: u32,
    /// Credit frames received.
    pub nops_received: u32,
    /// Work requests that came back unused.
    pub flushed: u32,
    /// Sends that found no receive at the peer, however often the device tried.
    pub rnr: u32,
}

impl NexusCounters {
    pub(crate) const ZERO: Self = Self {
        work_posted: 0,
        bytes_posted: 0,
        frames_received: 0,
        bytes_received: 0,
        payload_received: 0,
        nops_sent: 0,
        nops_received: 0,
        flushed: 0,
        rnr: 0,
    };

    /// Counts a frame that came.
    #[inline(always)]
    pub(crate) fn frame(&mut self, len: usize) {
        self.frames_received += 1;
        self.bytes_received += len as u64;
    }
}

/// What happened on a connection since it was made.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct ConnectionCounters {
    /// Requests and one-ways received.
    pub messages_received: u64,
    /// Messages of this side whose deadline passed before their outcome.
    pub timed_out: u32,
    /// Messages of this side that the user cancelled before their outcome.
    pub cancelled: u32,
    /// Answers after the outcome, and frames that came when nothing was taken any more.
    pub late: u32,
}

impl ConnectionCounters {
    pub(crate) const ZERO: Self = Self {
        messages_received: 0,
        timed_out: 0,
        cancelled: 0,
        late: 0,
    };
}

/// Messages by where they are in their life: a row for each that is not free.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Phases {
    /// Outgoing, not posted yet.
    pub queued: u32,
    /// Outgoing requests and one-ways, posted, without an outcome.
    pub outstanding: u32,
    /// Outgoing, with an outcome; device or peer may still touch their buffers.
    pub orphaned: u32,
    /// Received, the payload not here yet.
    pub fetching: u32,
    /// Received, in the user's hands.
    pub delivered: u32,
    /// Received, the answer not gone yet, or not acknowledged.
    pub answering: u32,
    /// With an outcome that the user was not told of yet, or has not released.
    pub ended: u32,
}

impl Phases {
    fn count(&mut self, state: TaskState) {
        *match state {
            TaskState::Vacant => return,
            TaskState::Queued => &mut self.queued,
            TaskState::Sent | TaskState::AnswerFetching | TaskState::Parked => {
                &mut self.outstanding
            }
            TaskState::Orphaned => &mut self.orphaned,
            TaskState::Fetching => &mut self.fetching,
            TaskState::Delivered => &mut self.delivered,
            TaskState::Answering | TaskState::Answered | TaskState::AwaitReadAck => {
                &mut self.answering
            }
            TaskState::Ended => &mut self.ended,
        } += 1;
    }
}

/// A transport connection, seen from outside.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NexusSnapshot {
    /// Which.
    pub id: NexusId,
    /// The transport that it is on.
    pub transport: TransportId,
    /// How bytes are laid on the transport.
    pub framing: Framing,
    /// Whether the peer came to this side.
    pub server: bool,
    /// Name of its state, as in the state tables.
    pub state: &'static str,
    /// The peer's address.
    pub peer: SocketAddr,
    /// This side's address, once the transport told it.
    pub local: Option<SocketAddr>,
    /// Connections on it.
    pub connections: u32,
    /// Frames that the peer has receives for; 0 on sockets.
    pub tx_credits: u16,
    /// Receives that the peer was told of and has not used; 0 on sockets.
    pub granted: u16,
    /// Receives posted; 0 on sockets.
    pub posted: u16,
    /// Receive slots that messages hold.
    pub held: u16,
    /// Send slots of its messages, and those that the user took for them.
    pub tx_held: u32,
    /// Work requests on its send queue.
    pub sq_used: u16,
    /// Bytes of them.
    pub sq_bytes: u64,
    /// What went over it.
    pub counters: NexusCounters,
}

/// A connection, seen from outside.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// Which.
    pub id: ConnectionId,
    /// The user's number for it.
    pub user: u64,
    /// Its session; `None` while it waits for its next attempt.
    pub session: Option<SessionId>,
    /// Its transport connection, as long as it is on one.
    pub nexus: Option<NexusId>,
    /// Whether this side asked for it.
    pub client: bool,
    /// Name of its state, as in the state tables.
    pub state: &'static str,
    /// Requests and one-ways that were sent.
    pub messages_sent: u64,
    /// Messages of this side that have no outcome yet.
    pub queued_messages: u32,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Requests in the user's hands.
    pub unanswered: u32,
    /// Messages that the peer has room for, if it says so; below zero when answers took of it.
    pub peer_messages: i32,
    /// Its messages, by where they are.
    pub phases: Phases,
    /// What happened on it.
    pub counters: ConnectionCounters,
}

/// The endpoint itself, seen from outside.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The endpoint's number.
    pub endpoint: u8,
    /// The latest time that it was told.
    pub now: Instant,
    /// The next time at which something is due.
    pub due: Option<Instant>,
    /// What has happened so far.
    pub counters: Counters,
    /// What is left of each table and pool.
    pub free: FreeRows,
    /// What there is of each when nothing lives.
    pub rows: FreeRows,
    /// All messages, by where they are.
    pub phases: Phases,
    /// Bytes of this side's messages that have no outcome yet, of all connections together.
    pub queued_bytes: u64,
    /// The most that they may be ([`Config::queue_bytes_all`](crate::Config::queue_bytes_all)).
    pub queue_bytes_all: u64,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// The state of the endpoint as a whole. Takes time in proportion to its messages, and changes
    /// nothing.
    pub fn snapshot(&self) -> Snapshot {
        let view = self.s.view();
        let mut phases = Phases::default();
        for task in view.tasks {
            phases.count(task.state);
        }
        let config = &self.g.config;
        Snapshot {
            endpoint: config.endpoint,
            now: self.g.now,
            due: self.poll_timeout(),
            counters: self.g.counters,
            free: self.free_rows(),
            rows: FreeRows {
                nexuses: view.nexuses.len() as u32,
                sessions: view.sessions.len() as u32,
                connections: view.connections.len() as u32,
                tasks: view.tasks.len() as u32 - config.rx_slots,
                rx_slots: config.rx_slots,
                tx_slots: config.tx_slots,
                work: view.work.len() as u32,
                sockets: view.sockets.len() as u32,
                extents: view.extents.len() as u32,
                regions: self.g.regions.end(),
                chunks: self.g.chunks.used.into(),
                armed: 0,
            },
            phases,
            queued_bytes: self.g.queued_bytes,
            queue_bytes_all: config.queue_bytes_all,
        }
    }

    /// All transport connections that live, in the order of their rows.
    pub fn nexuses(&self) -> impl Iterator<Item = NexusSnapshot> {
        let rows = self.s.view().nexuses.iter().enumerate();
        let live = rows.filter(|(_, row)| row.state != nexus::State::Vacant);
        live.map(|(n, row)| NexusSnapshot {
            id: NexusId::new(n as u32, row.generation),
            transport: TransportId(row.transport),
            framing: row.framing,
            server: row.server,
            state: nexus::MACHINE.states[row.state as usize],
            peer: row.peer,
            local: row.local,
            connections: row.connection_count,
            tx_credits: row.tx_credits,
            granted: row.granted,
            posted: row.posted,
            held: row.held,
            tx_held: row.tx_held,
            sq_used: row.sq_used,
            sq_bytes: row.sq_bytes,
            counters: row.traffic,
        })
    }

    /// All connections that live, in the order of their rows. Takes time in proportion to the
    /// connections and their messages.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionSnapshot> {
        let view = self.s.view();
        let rows = view.connections.iter().enumerate();
        let live = rows.filter(|(_, row)| row.state != connection::State::Vacant);
        live.map(move |(c, row)| {
            let mut phases = Phases::default();
            let mut t = row.tasks;
            while let Some(task) = view.tasks.get(t as usize) {
                phases.count(task.state);
                t = task.next;
            }
            let sessions = view.sessions.get(row.session as usize);
            let session = sessions.map(|s| SessionId::new(row.session, s.generation));
            let generation = |n: u32| view.nexuses[n as usize].generation;
            let on = (row.nexus != NONE).then_some(row.nexus);
            ConnectionSnapshot {
                id: ConnectionId::new(c as u32, row.generation),
                user: row.user,
                session,
                nexus: on.map(|n| NexusId::new(n, generation(n))),
                client: row.client,
                state: connection::MACHINE.states[row.state as usize],
                messages_sent: row.serial,
                queued_messages: row.queued_messages,
                queued_bytes: row.queued_bytes,
                unanswered: row.unanswered,
                peer_messages: row.peer_messages,
                phases,
                counters: row.traffic,
            }
        })
    }

    /// Counts something on the connection of a message, if it still has one.
    pub(crate) fn count_on(&mut self, t: u32, count: impl FnOnce(&mut ConnectionCounters)) {
        let row = &self.s.tables().tasks[t as usize];
        let (c, orphan) = (row.connection, row.flags.contains(TaskFlags::ORPHAN));
        if c != NONE && !orphan {
            count(&mut self.connection(c).traffic);
        }
    }
}

named!(NexusCounters {
    work_posted,
    bytes_posted,
    frames_received,
    bytes_received,
    payload_received,
    nops_sent,
    nops_received,
    flushed,
    rnr,
});
named!(ConnectionCounters {
    messages_received,
    timed_out,
    cancelled,
    late,
});
named!(Phases {
    queued,
    outstanding,
    orphaned,
    fetching,
    delivered,
    answering,
    ended,
});
named!(Counters {
    ignored_inputs,
    stale,
    stale_cm,
    late,
    flushed,
    violations,
    clock_backwards,
    frames_received,
    messages_received,
    requests_sent,
    responses_sent,
    nops_sent,
    nops_received,
    reads,
    writes,
    cancels_ignored,
    cancels_sent,
    cancels_received,
    cancelled_unseen,
    deadlines_sent,
    expired_unseen,
    strays,
    sockets_refused,
    stale_sockets,
    bytes_discarded,
    restarts_seen,
    resumes,
    reconnect_attempts,
    stop_aborted,
    timed_out,
    cancelled,
    rnr,
});
named!(FreeRows {
    nexuses,
    sessions,
    connections,
    tasks,
    rx_slots,
    tx_slots,
    work,
    sockets,
    extents,
    regions,
    chunks,
    armed,
});
