//! Messages, their lists of segments, and registered memory.

use super::{Due, Extent};
use crate::error::{Failure, Reason};
use crate::ids::NONE;
use crate::memory::{SEGMENTS_INLINE, Segment};
use crate::output::Access;
use crate::state::task;
use crate::wire::Kind;

bitflags::bitflags! {
    /// Events that a task has for the user, given in this order.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
    pub(crate) struct TaskEvents: u8 {
        /// Its payload waits for the user.
        const WAITING = 1;
        /// A receipt came before the answer.
        const RECEIPT = 2;
        /// The received message, or the outcome.
        const MAIN = 4;
        /// Its buffers are free now.
        const RETURNED = 8;
        /// Its requester does not want it any more.
        const GIVEN_UP = 16;
    }

    /// What a task is and what is true of it.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
    pub(crate) struct TaskFlags: u32 {
        /// Receive slot's own task.
        const INCOMING = 1;
        /// In one of the send queues.
        const QUEUED = 2;
        /// In its connection's event list.
        const EVENTS = 4;
        /// In its connection's hold-back list.
        const HELD_BACK = 8;
        /// The user must release it.
        const USER = 16;
        /// A receipt has to be sent (or is asked of the peer).
        const RECEIPT = 32;
        /// The receipt is to be sent before delivery (or is asked so).
        const RECEIPT_NOW = 64;
        /// A receipt was sent (or came).
        const RECEIPT_DONE = 128;
        /// Outcome given while buffers were held.
        const OWES_RETURN = 256;
        /// The peer may reach the user's memory until it answers.
        const PEER_HOLDS = 512;
        /// Last of its batch.
        const LAST = 1024;
        /// Its connection is gone.
        const ORPHAN = 2048;
        /// Requester forces WRITE for the response.
        const FORCE_WRITE = 4096;
        /// Outcome given; device or peer still hold a part of it.
        const LINGERS = 8192;
        /// Answered by the user with a response (and not only a receipt).
        const RESPONSE = 16384;
        /// Becomes an orphan when its event is taken.
        const ORPHAN_LATER = 32768;
        /// Its outcome is nobody's event.
        const SILENT = 1 << 16;
        /// In a slot as a whole, and by itself nothing that the short way cannot send.
        const PLAIN = 1 << 31;
        /// Its READ_ACK follows when it leaves the list of transfers.
        const ACK_LATER = 1 << 17;
        /// A completion is wanted at once.
        const PROMPT = 1 << 18;
        /// Its frame is on a send queue, and it stands there for a work entry.
        const ON_QUEUE = 1 << 19;
        /// Its payload waits for memory of the pool.
        const POOL_LINE = 1 << 20;
        /// Its `into` is memory of the pool.
        const POOLED = 1 << 21;
        /// The keys of its buffers are being revoked.
        const REVOKING = 1 << 22;
        /// The portals in its slot may still be needed.
        const PORTALS = 1 << 23;
        /// Received, and its sender said until when it waits.
        const TIMED = 1 << 24;
        /// Received, and its sender does not want it any more.
        const GIVEN_UP = 1 << 25;
        /// Has its outcome, and the peer is to be told that nobody wants it.
        const WITHDRAWN = 1 << 26;
        /// It may be sent again though the peer may have it.
        const IDEMPOTENT = 1 << 27;
        /// It is to be sent again: the peer may have it.
        const REPEATED = 1 << 28;
        /// Its connection is made anew when it is lost: it keeps its slot until it has its outcome, if
        /// the peer can say then whether it came.
        const KEPT = 1 << 29;
    }
}

/// How a task ends, once it does.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Ending {
    Open,
    /// Good: response, sent, or received message.
    Good,
    /// Receipt of a one-way, with the peer's word.
    Receipt(u32),
    Failed(Failure),
    TimedOut,
    Cancelled,
}

/// A list of segments: by itself up to [`SEGMENTS_INLINE`], longer ones in a chain of extents.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct SegmentList {
    pub(crate) count: u16,
    pub(crate) total: u64,
    pub(crate) inline: [Segment; SEGMENTS_INLINE],
    pub(crate) extent: u32,
}

impl TaskFlags {
    /// Of an answered request: something of it is not over with its answer.
    pub(crate) const HELD: Self = Self::SILENT
        .union(Self::PEER_HOLDS)
        .union(Self::EVENTS)
        .union(Self::LINGERS);
}

impl SegmentList {
    /// Makes it empty; the segments themselves stay, beyond its count.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.total = 0;
        self.extent = NONE;
    }

    pub(crate) const EMPTY: Self = Self {
        count: 0,
        total: 0,
        inline: [Segment {
            addr: 0,
            len: 0,
            lkey: 0,
            rkey: 0,
        }; SEGMENTS_INLINE],
        extent: NONE,
    };
}

/// Progress of READ or WRITE work of a task.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct Transfer {
    /// Bytes for which work was posted.
    pub(crate) posted: u64,
    /// Bytes done.
    pub(crate) done: u64,
    /// Bytes in all.
    pub(crate) total: u64,
}

impl Transfer {
    pub(crate) const NONE: Self = Self {
        posted: 0,
        done: 0,
        total: 0,
    };
}

/// Registered user memory.
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) live: bool,
    /// Create: to be registered; Destroy: to be revoked.
    pub(crate) due: Due,
    pub(crate) ready: bool,
    pub(crate) revoking: bool,
    pub(crate) revoked: bool,
    /// The user knows the last that happened.
    pub(crate) told: bool,
    pub(crate) transport: u8,
    pub(crate) access: Access,
    pub(crate) keys: Option<Result<(u32, u32), i32>>,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) user: u64,
}

impl Region {
    /// Whether peers reach it by this key.
    pub(crate) fn has_key(&self, key: u32) -> bool {
        matches!(self.keys, Some(Ok((_, rkey))) if rkey == key)
    }

    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        live: false,
        due: Due::Nothing,
        ready: false,
        revoking: false,
        revoked: false,
        told: true,
        transport: 0,
        access: Access::empty(),
        keys: None,
        addr: 0,
        len: 0,
        user: 0,
    };
}

/// READ or WRITE by the user's own addresses.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Direct {
    No,
    Read,
    Write,
}

/// A message.
#[derive(Clone, Hash, Debug)]
pub struct Task {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) state: task::State,
    pub(crate) kind: Kind,
    pub(crate) flags: TaskFlags,
    pub(crate) events: TaskEvents,
    pub(crate) connection: u32,
    pub(crate) nexus: u32,
    pub(crate) user: u64,
    pub(crate) ending: Ending,
    pub(crate) serial: u64,
    /// Outgoing: slot with the application header, or NONE.
    pub(crate) slot: u32,
    /// Outgoing: receive slot of the answer, or NONE.
    pub(crate) answer: u32,
    /// The peer's task id: of a received request, or of a READ response.
    pub(crate) peer_tid: u32,
    /// Work requests outstanding on it.
    pub(crate) work: u16,
    /// Outgoing: application header length, and data bytes that lie behind it in the slot.
    pub(crate) header_len: u16,
    pub(crate) slot_data: u32,
    /// Received message or answer: where header and data lie in the receive slot.
    pub(crate) header_at: u16,
    pub(crate) rx_header_len: u16,
    pub(crate) data_at: u16,
    pub(crate) data_len: u64,
    /// Received request: entries offered for the response, and where their list lies.
    pub(crate) offer_count: u16,
    pub(crate) offer_at: u16,
    pub(crate) offer_write: bool,
    pub(crate) offer_total: u64,
    /// Outgoing: let the peer READ even small data.
    pub(crate) force_read: bool,
    /// Received request: the answer's data is READ by the requester.
    pub(crate) read_response: bool,
    /// The data is in the user's segments, not in the slot.
    pub(crate) in_segments: bool,
    /// The peer's word in a receipt.
    pub(crate) receipt_code: u32,
    /// Why its connection ended, for a task that outlives it.
    pub(crate) closed: Reason,
    /// Received request by READ, or READ response: the remote list.
    pub(crate) remote_count: u16,
    pub(crate) remote_at: u16,
    pub(crate) status: u32,
    pub(crate) direct: Direct,
    pub(crate) remote_addr: u64,
    /// Of a payload that the pool takes: the transport whose pool it is.
    pub(crate) remote_key: u32,
    pub(crate) out: SegmentList,
    pub(crate) into: SegmentList,
    pub(crate) transfer: Transfer,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) queue_next: u32,
    pub(crate) event_next: u32,
    pub(crate) hold_next: u32,
    /// On a send queue: what comes next there, and bytes of the frame.
    pub(crate) sq_next: u32,
    pub(crate) sq_bytes: u32,
    /// What its deadline is for: the user's answer to a waiting payload, or the message.
    pub(crate) deadline_is_provide: bool,
    /// The message's own deadline while the other runs, in nanoseconds; 0 for none.
    pub(crate) kept_deadline: u64,
    /// Received: until when its sender waits, in nanoseconds, if it said so.
    pub(crate) expires: u64,
    pub(crate) timer: u32,
}

impl Task {
    /// What an outgoing one counts for in the limits of its queues.
    #[inline(always)]
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.out.total + u64::from(self.slot_data) + u64::from(self.header_len)
    }

    /// Whether it has memory of the user's.
    pub(crate) fn has_memory(&self) -> bool {
        let into = self.into.count > 0 && !self.flags.contains(TaskFlags::POOLED);
        self.out.count > 0 || into
    }

    /// Whether memory of the user's is out when its outcome is known: of an answer its own only, as
    /// what was given for the request came back with that.
    pub(crate) fn lends_memory(&self) -> bool {
        match self.flags.contains(TaskFlags::INCOMING) {
            true => self.out.count > 0,
            false => self.has_memory(),
        }
    }

    /// All segments of both lists.
    pub(crate) fn buffers<'a>(
        &'a self,
        extents: &'a [Extent],
    ) -> impl Iterator<Item = Segment> + 'a {
        let of =
            move |list: &'a SegmentList| (0..list.count).map(move |at| list.segment(extents, at));
        of(&self.out).chain(of(&self.into))
    }

    /// Starts a new life. What is written before it is read in any life keeps its value.
    #[inline(always)]
    pub(crate) fn reset(&mut self) {
        let Self {
            generation: _,
            next_free: _,
            state,
            kind: _,
            flags,
            events,
            connection,
            nexus,
            user,
            ending,
            serial: _,
            slot,
            answer,
            peer_tid: _,
            work,
            header_len,
            slot_data,
            header_at: _,
            rx_header_len: _,
            data_at: _,
            data_len,
            offer_count,
            offer_at: _,
            offer_write,
            offer_total,
            force_read,
            read_response,
            in_segments,
            receipt_code,
            closed: _,
            remote_count: _,
            remote_at: _,
            status,
            direct,
            remote_addr: _,
            kept_deadline: _,
            remote_key: _,
            out,
            into,
            transfer,
            prev: _,
            next: _,
            queue_next: _,
            event_next: _,
            hold_next: _,
            sq_next: _,
            sq_bytes: _,
            deadline_is_provide,
            expires: _,
            timer,
        } = self;
        *state = task::State::Vacant;
        *flags = TaskFlags::empty();
        *events = TaskEvents::empty();
        (*connection, *nexus) = (NONE, NONE);
        *user = 0;
        *ending = Ending::Open;
        (*slot, *answer) = (NONE, NONE);
        (*work, *header_len, *slot_data) = (0, 0, 0);
        *data_len = 0;
        (*offer_count, *offer_write, *offer_total) = (0, false, 0);
        (*force_read, *read_response, *in_segments) = (false, false, false);
        (*receipt_code, *status) = (0, 0);
        *direct = Direct::No;
        out.clear();
        into.clear();
        *transfer = Transfer::NONE;
        *deadline_is_provide = false;
        *timer = NONE;
    }

    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        state: task::State::Vacant,
        kind: Kind::MsgReq,
        flags: TaskFlags::empty(),
        events: TaskEvents::empty(),
        connection: NONE,
        nexus: NONE,
        user: 0,
        ending: Ending::Open,
        serial: 0,
        slot: NONE,
        answer: NONE,
        peer_tid: 0,
        work: 0,
        header_len: 0,
        slot_data: 0,
        header_at: 0,
        rx_header_len: 0,
        data_at: 0,
        data_len: 0,
        offer_count: 0,
        offer_at: 0,
        offer_write: false,
        offer_total: 0,
        force_read: false,
        read_response: false,
        in_segments: false,
        receipt_code: 0,
        closed: Reason::Closed,
        remote_count: 0,
        remote_at: 0,
        status: 0,
        direct: Direct::No,
        remote_addr: 0,
        kept_deadline: 0,
        remote_key: 0,
        out: SegmentList::EMPTY,
        into: SegmentList::EMPTY,
        transfer: Transfer::NONE,
        prev: NONE,
        next: NONE,
        queue_next: NONE,
        event_next: NONE,
        hold_next: NONE,
        sq_next: NONE,
        sq_bytes: 0,
        deadline_is_provide: false,
        expires: 0,
        timer: NONE,
    };
}
