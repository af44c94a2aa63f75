//! What an observer may ask.

use core::net::SocketAddr;

use super::Endpoint;
use crate::config::TransportLimits;
use crate::entries::{Ending, Nexus, SlotUse};
use crate::error::CommandError;
use crate::ids::{ConnectionId, NONE, NexusId, SessionId, TransportId};
use crate::memory::SlotId;
use crate::state::connection;
use crate::state::task::State;
use crate::storage::Storage;
use crate::time::Instant;
use crate::trace::Trace;
use crate::wire::{Extensions, Framing};

/// What the peer is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeerKind {
    /// Speaks the protocol of libxio and nothing more, as far as is known yet.
    Libxio,
    /// Is of this kind, and agreed on extensions (PROTOCOL.md 2.6).
    Xio {
        /// Version of the extensions that both speak.
        version: u8,
        /// Which of its lives it is; 0 if it did not say.
        incarnation: u64,
    },
}

/// What is known of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConnectionInfo {
    /// Its session.
    pub session: SessionId,
    /// Its transport connection.
    pub nexus: NexusId,
    /// The peer's address.
    pub peer: SocketAddr,
    /// This side's address, once the transport told it.
    pub local: Option<SocketAddr>,
    /// How bytes are laid on the transport.
    pub framing: Framing,
    /// Largest frame in bytes, as negotiated.
    pub frame_max: u32,
    /// Largest application header that the peer takes, in bytes; 65,535 before setup.
    pub header_max: u16,
    /// Receive queue depth as negotiated; 0 on sockets.
    pub rq_depth: u16,
    /// Send queue depth as negotiated, at most 256; 0 on sockets. Told only: what may be under way
    /// is a matter of credits.
    pub sq_depth: u16,
    /// What the peer is.
    pub peer_kind: PeerKind,
    /// What both sides can do beyond libxio's protocol.
    pub extensions: Extensions,
    /// Name of its state, as in the state tables.
    pub state: &'static str,
    /// Messages of this side that have no outcome yet.
    pub queued_messages: u32,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Requests in the user's hands.
    pub unanswered: u32,
    /// Frames that the peer has receives for; 0 on sockets.
    pub tx_credits: u16,
}

/// Counts since construction.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Inputs that mean nothing in the state they came in.
    pub ignored_inputs: u64,
    /// Completions of nothing that is posted.
    pub stale: u64,
    /// Events of transport connections whose life is over.
    pub stale_cm: u64,
    /// Answers after the outcome, frames for sessions that are over.
    pub late: u64,
    /// Work requests that came back unused.
    pub flushed: u64,
    /// Peers that broke the protocol.
    pub violations: u64,
    /// Times that `now` went backwards.
    pub clock_backwards: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Requests and one-ways received.
    pub messages_received: u64,
    /// Requests and one-ways sent.
    pub requests_sent: u64,
    /// Responses and receipts sent.
    pub responses_sent: u64,
    /// Credit frames sent.
    pub nops_sent: u64,
    /// Credit frames received.
    pub nops_received: u64,
    /// READs posted.
    pub reads: u64,
    /// WRITEs posted.
    pub writes: u64,
    /// Cancel frames of peers, which nothing is done about.
    pub cancels_ignored: u64,
    /// Cancel frames sent to peers that understand them.
    pub cancels_sent: u64,
    /// Cancel frames of such peers.
    pub cancels_received: u64,
    /// Received messages that were cancelled before the user saw them.
    pub cancelled_unseen: u64,
    /// Requests and one-ways that told the peer their deadline.
    pub deadlines_sent: u64,
    /// Received messages whose time was over before the user saw them.
    pub expired_unseen: u64,
    /// Accepted sockets that never became part of a transport connection.
    pub strays: u64,
    /// Accepted sockets for which there was no room.
    pub sockets_refused: u64,
    /// Inputs about sockets whose life is over.
    pub stale_sockets: u64,
    /// Bytes of payload that nobody wanted.
    pub bytes_discarded: u64,
    /// Attempts to make a lost connection anew.
    pub reconnect_attempts: u64,
    /// Connections that were aborted as they had not parted within the bound of `stop`.
    pub stop_aborted: u64,
    /// Transport connections that ended because their peer was started again, and connections that
    /// found it so when they were made anew.
    pub restarts_seen: u64,
    /// Times that a peer said what it got of a connection's life before, and that it was told.
    pub resumes: u64,
    /// Messages whose deadline passed before their outcome.
    pub timed_out: u64,
    /// Messages that the user cancelled before their outcome.
    pub cancelled: u64,
    /// Sends that found no receive at the peer, however often the device tried.
    pub rnr: u64,
}

/// Where the messages of this side are: each is in one of the first three, and adds to one of the
/// others when it has its outcome. Answers are not counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct LifeCycle {
    /// Rows that no message has.
    pub idle: u32,
    /// Messages that were taken, and of which nothing is sent.
    pub prep: u32,
    /// Messages that are sent, and have no outcome.
    pub pending: u32,
    /// Messages with a good outcome: an answer, a receipt, or sent.
    pub completed: u64,
    /// Cancelled messages.
    pub cancelled: u64,
    /// Messages whose deadline passed.
    pub timed_out: u64,
    /// Messages with another bad outcome.
    pub failed: u64,
}

impl LifeCycle {
    /// A message of this side goes from one state to another.
    #[inline(always)]
    pub(crate) fn step(&mut self, from: State, next: State) {
        const fn phase(state: State) -> (u32, u32) {
            match state {
                State::Queued => (1, 0),
                State::Sent | State::AnswerFetching | State::Parked => (0, 1),
                _ => (0, 0),
            }
        }
        let (was, is) = (phase(from), phase(next));
        if was != is {
            self.prep = self.prep - was.0 + is.0;
            self.pending = self.pending - was.1 + is.1;
        }
    }

    /// A message of this side has its outcome.
    pub(crate) fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Open | Ending::Good | Ending::Receipt(_) => self.completed += 1,
            Ending::Failed(_) => self.failed += 1,
            Ending::TimedOut => self.timed_out += 1,
            Ending::Cancelled => self.cancelled += 1,
        }
    }
}

/// What is left of each table and pool.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct FreeRows {
    /// Transport connections.
    pub nexuses: u32,
    /// Sessions.
    pub sessions: u32,
    /// Connections.
    pub connections: u32,
    /// Outgoing messages.
    pub tasks: u32,
    /// Receive slots; those on a shared queue that are no transport connection's count as free.
    pub rx_slots: u32,
    /// Send slots.
    pub tx_slots: u32,
    /// Work requests.
    pub work: u32,
    /// Sockets.
    pub sockets: u32,
    /// Extents.
    pub extents: u32,
    /// Registered regions.
    pub regions: u32,
    /// Chunks of memory for payloads.
    pub chunks: u32,
    /// Deadlines that are armed.
    pub armed: u32,
}

impl Nexus {
    fn peer_kind(&self) -> PeerKind {
        let agreement = &self.agreement;
        match agreement.on.is_empty() {
            true => PeerKind::Libxio,
            false => PeerKind::Xio {
                version: agreement.version,
                incarnation: agreement.incarnation,
            },
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.g.counters
    }

    /// Where this side's messages are, and what became of those that are over.
    pub fn life_cycle(&self) -> LifeCycle {
        LifeCycle {
            idle: self.g.tasks.free(),
            ..self.g.life
        }
    }

    /// What is free in each table: equal to the figures after construction when nothing lives.
    pub fn free_rows(&self) -> FreeRows {
        let g = &self.g;
        FreeRows {
            nexuses: g.nexuses.free(),
            sessions: g.sessions.free(),
            connections: g.connections.free(),
            tasks: g.tasks.free(),
            rx_slots: g.rx_slots.free() + self.shared_spares(),
            tx_slots: g.tx_slots.free(),
            work: g.work.free(),
            sockets: g.sockets.free(),
            extents: g.extents.free(),
            regions: g.regions.free(),
            chunks: g.chunks.free(),
            armed: g.timers,
        }
    }

    /// What the driver of a transport said that it can do; a transport that was never added can do
    /// what sockets can.
    pub fn limits(&self, transport: TransportId) -> TransportLimits {
        let state = self.g.transports.get(usize::from(transport.0));
        state.map_or_else(TransportLimits::tcp, |state| state.limits)
    }

    /// Whether the user holds this slot for sending, from
    /// [`reserve_slot`](Self::reserve_slot) to the command that takes it.
    pub fn is_reserved(&self, slot: SlotId) -> bool {
        let row = self.s.view().slots.get(slot.0 as usize);
        row.is_some_and(|row| row.usage == SlotUse::Reserved)
    }

    /// The time as of the last input; pauses and deadlines of commands without a time of their own
    /// count from here.
    pub fn now(&self) -> Instant {
        self.g.now
    }

    /// Whether messages of a connection that are sent without a deadline have one by its
    /// [policy](crate::ConnectionPolicy::deadline): the time is to be
    /// [told](Self::handle_clock) before they are. False for a connection that is not known.
    #[inline]
    pub fn has_deadline(&self, connection: ConnectionId) -> bool {
        // Asked before each message, and where no policy has any nothing is looked up.
        self.g.deadlines && self.has_own_deadline(connection)
    }

    #[cold]
    #[inline(never)]
    fn has_own_deadline(&self, connection: ConnectionId) -> bool {
        let row = self.s.view().connections.get(connection.index());
        let row = row.filter(|c| c.generation == connection.generation());
        row.is_some_and(|c| c.policy.deadline.is_some())
    }

    /// What is known of a connection.
    ///
    /// # Errors
    /// `Unknown`; `WrongState` when it has left its transport connection.
    pub fn info(&self, connection: ConnectionId) -> Result<ConnectionInfo, CommandError> {
        let view = self.s.view();
        let row = view.connections.get(connection.index());
        let row = row.filter(|c| c.generation == connection.generation());
        let c = row.ok_or(CommandError::Unknown)?;
        if c.nexus == NONE {
            return Err(CommandError::WrongState("off its transport connection"));
        }
        let n = &view.nexuses[c.nexus as usize];
        let session = &view.sessions[c.session as usize];
        Ok(ConnectionInfo {
            session: SessionId::new(c.session, session.generation),
            nexus: NexusId::new(c.nexus, n.generation),
            peer: n.peer,
            local: n.local,
            framing: n.framing,
            frame_max: n.frame_max,
            header_max: n.peer_header_max,
            rq_depth: n.rq_depth,
            sq_depth: n.sq_window,
            peer_kind: n.peer_kind(),
            extensions: n.agreement.on,
            state: connection::MACHINE.states[c.state as usize],
            queued_messages: c.queued_messages,
            queued_bytes: c.queued_bytes,
            unanswered: c.unanswered,
            tx_credits: n.tx_credits,
        })
    }
}
