//! What an observer may ask.

use core::net::SocketAddr;

use super::Endpoint;
use crate::config::TransportLimits;
use crate::entries::SlotUse;
use crate::error::CommandError;
use crate::ids::{ConnectionId, NONE, NexusId, SessionId, TransportId};
use crate::memory::SlotId;
use crate::state::connection;
use crate::storage::Storage;
use crate::trace::Trace;
use crate::wire::Framing;

/// What the peer is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeerKind {
    /// Speaks the protocol of libxio and nothing more.
    Libxio,
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
    /// Largest application header that the peer takes, in bytes; 0 before setup.
    pub header_max: u16,
    /// Receive queue depth as negotiated; 0 on sockets.
    pub rq_depth: u16,
    /// Send queue depth as negotiated, at most 256; 0 on sockets. Told only: what may be under way
    /// is a matter of credits.
    pub sq_depth: u16,
    /// What the peer is.
    pub peer_kind: PeerKind,
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

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.g.counters
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
            peer_kind: PeerKind::Libxio,
            state: connection::MACHINE.states[c.state as usize],
            queued_messages: c.queued_messages,
            queued_bytes: c.queued_bytes,
            unanswered: c.unanswered,
            tx_credits: n.tx_credits,
        })
    }
}
