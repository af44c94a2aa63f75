//! The rows of the endpoint's tables. Opaque to users, who only make arrays of `VACANT` ones.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::config::ConnectionPolicy;
use crate::endpoint::{ConnectionCounters, Lack, Line, NexusCounters};
use crate::error::{Reason, Refusal};
use crate::ids::NONE;
use crate::memory::Segment;
use crate::state::{connection, nexus, session};
use crate::time::Instant;
use crate::wire::Framing;

mod agreement;
mod cross;
mod portal;
mod retry;
mod task;
mod work;

pub(crate) use agreement::{Agreement, Stage};
pub(crate) use cross::Cross;
pub(crate) use portal::Portal;
pub(crate) use retry::{Life, Past, Retry};
pub(crate) use task::{Direct, Ending, SegmentList, TaskEvents, TaskFlags, Transfer};
pub use task::{Region, Task};
pub use work::WorkEntry;
pub(crate) use work::WorkKind;

pub(crate) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A listening address.
#[derive(Clone, Debug)]
pub struct Listener {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) live: bool,
    pub(crate) failed: Option<i32>,
    /// Its device is gone.
    pub(crate) lost: bool,
    /// Control outputs not polled yet.
    pub(crate) due_listen: bool,
    pub(crate) due_unlisten: bool,
    pub(crate) transport: u8,
    pub(crate) address: SocketAddr,
    pub(crate) backlog: u32,
    pub(crate) user: u64,
    /// Nobody is taken there for now, and why.
    pub(crate) turns_away: Option<Refusal>,
}

impl Listener {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        live: false,
        failed: None,
        lost: false,
        due_listen: false,
        due_unlisten: false,
        transport: 0,
        address: NOWHERE,
        backlog: 0,
        user: 0,
        turns_away: None,
    };
}

/// The one control output that a transport connection has due.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Due {
    Nothing,
    Resolve,
    Route,
    Create,
    Connect,
    Accept,
    Reject,
    Disconnect,
    Drain,
    Destroy,
}

/// Whether a transport connection is online, without application credits, and nothing but messages
/// goes on it; and in which dialect.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Usual {
    No,
    OnRdma,
    OnStream,
}

/// A transport connection.
#[derive(Clone, Hash, Debug)]
pub struct Nexus {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) state: nexus::State,
    pub(crate) due: Due,
    pub(crate) transport: u8,
    pub(crate) framing: Framing,
    pub(crate) server: bool,
    pub(crate) shareable: bool,
    /// Server: no room; the peer is told so and let go.
    pub(crate) refuse_status: u32,
    pub(crate) listener: u32,
    pub(crate) peer: SocketAddr,
    pub(crate) local: Option<SocketAddr>,
    /// Why it is going down.
    pub(crate) reason: Option<Reason>,

    // Negotiated.
    pub(crate) frame_max: u32,
    pub(crate) peer_in_sges: u16,
    pub(crate) peer_out_sges: u16,
    pub(crate) peer_header_max: u16,
    pub(crate) rq_depth: u16,
    pub(crate) sq_window: u16,
    pub(crate) cid: u32,

    // Transport flow control (PROTOCOL.md 6).
    pub(crate) tx_sn: u16,
    pub(crate) rx_sn: u16,
    pub(crate) tx_credits: u16,
    /// Receives posted and not consumed.
    pub(crate) posted: u16,
    /// Receives that the peer was told of and has not used.
    pub(crate) granted: u16,
    /// Receives used by other frames than NOPs since credits were last granted.
    pub(crate) used_since_grant: u16,
    /// Receive slots of this nexus that delivered messages hold.
    pub(crate) held: u16,
    /// Send slots of its messages, and those that the user took for them.
    pub(crate) tx_held: u32,
    pub(crate) recv_target: u16,
    /// With more receives posted than this none is due.
    pub(crate) recv_quiet: u16,
    /// With so many receives or fewer a batch is worth posting.
    pub(crate) recv_low: u16,
    /// Receives that may be posted before the share is worked out anew.
    pub(crate) share_left: u16,
    /// Receives still to be posted of the batch that was begun.
    pub(crate) batch_left: u16,
    /// With more receives granted than this no credit frame is due.
    pub(crate) grant_quiet: u16,
    /// READ responses whose READ_ACK may arrive without credit.
    pub(crate) read_acks_expected: u16,
    /// READ_ACKs sent, and received, for which there was no credit: the next credits pay.
    pub(crate) acks_unpaid: u16,
    pub(crate) acks_owed: u16,
    /// Posted receive slots, oldest first (private queues).
    pub(crate) rq_head: u32,
    pub(crate) rq_tail: u32,

    // Send queue.
    pub(crate) sq_head: u32,
    pub(crate) sq_tail: u32,
    pub(crate) sq_used: u16,
    pub(crate) sq_unsignaled: u16,
    pub(crate) sq_bytes: u64,
    pub(crate) reads_used: u8,

    // Frames of its own.
    pub(crate) setup_due: bool,
    /// Its setup frame is posted and not completed.
    pub(crate) setup_work: bool,
    /// The peer grants so little that no credit can be kept for control frames.
    pub(crate) peer_grant_small: bool,
    /// All connections that have something to send have requests, and lack credits for them.
    pub(crate) only_requests: bool,
    pub(crate) peer_granted: bool,
    /// Receives that peers took which were not theirs, and that are not posted anew yet.
    pub(crate) robbed: u8,
    pub(crate) ack_head: u32,
    pub(crate) ack_tail: u32,
    /// READ and WRITE work (tasks) not posted yet.
    pub(crate) rdma_head: u32,
    pub(crate) rdma_tail: u32,

    // Connections on it, and those of them with frames to send.
    pub(crate) connections: u32,
    pub(crate) connection_count: u32,
    /// A connection ended here without the full FIN exchange: answers to it may still come.
    pub(crate) late_allowed: bool,
    /// Answers and receipts that may still come to messages of connections that ended by FIN.
    pub(crate) late_due: u32,
    pub(crate) tx_head: u32,
    pub(crate) tx_tail: u32,

    // Endpoint-wide lists.
    pub(crate) ready_next: u32,
    pub(crate) in_ready: bool,
    /// It was looked at, and work that it had could not go.
    pub(crate) stalled: bool,
    /// So it was found, and nothing else has come up since.
    pub(crate) usual: Usual,
    pub(crate) control_next: u32,
    pub(crate) in_control: bool,
    /// In the line of those who wait for a slot or for room among the completions.
    pub(crate) wants_slot: bool,
    pub(crate) slot_next: u32,
    /// Connections whose users wait, while it has more send slots than it is sure of.
    pub(crate) blocked: Line,
    pub(crate) sharer_next: u32,
    pub(crate) in_sharers: bool,

    // Lookup by peer address: chain and, independent of this row's nexus, bucket head.
    pub(crate) hash_next: u32,
    pub(crate) bucket: u32,

    pub(crate) timer: u32,
    /// Its sockets (stream dialect): control or single, and data.
    pub(crate) sockets: [u32; 2],
    /// Message that the frame just taken announced a payload for; the stream brings it there.
    pub(crate) fetching: u32,
    pub(crate) agreement: Agreement,
    /// What went over it; `work_posted` and `bytes_posted` are counted where the queue is.
    pub(crate) traffic: NexusCounters,
}

impl Nexus {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        state: nexus::State::Vacant,
        due: Due::Nothing,
        transport: 0,
        framing: Framing::Rdma,
        server: false,
        shareable: false,
        refuse_status: 0,
        listener: NONE,
        peer: NOWHERE,
        local: None,
        reason: None,
        frame_max: 0,
        peer_in_sges: u16::MAX,
        peer_out_sges: u16::MAX,
        peer_header_max: u16::MAX,
        rq_depth: 0,
        sq_window: 0,
        cid: 0,
        tx_sn: 0,
        rx_sn: 0,
        tx_credits: 0,
        posted: 0,
        granted: 0,
        used_since_grant: 0,
        held: 0,
        tx_held: 0,
        recv_target: 0,
        recv_quiet: u16::MAX,
        recv_low: 0,
        share_left: 0,
        batch_left: 0,
        grant_quiet: u16::MAX,
        read_acks_expected: 0,
        acks_unpaid: 0,
        acks_owed: 0,
        rq_head: NONE,
        rq_tail: NONE,
        sq_head: NONE,
        sq_tail: NONE,
        sq_used: 0,
        sq_unsignaled: 0,
        sq_bytes: 0,
        reads_used: 0,
        setup_due: false,
        setup_work: false,
        peer_grant_small: false,
        only_requests: false,
        peer_granted: false,
        robbed: 0,
        ack_head: NONE,
        ack_tail: NONE,
        rdma_head: NONE,
        rdma_tail: NONE,
        connections: NONE,
        connection_count: 0,
        late_allowed: false,
        late_due: 0,
        tx_head: NONE,
        tx_tail: NONE,
        ready_next: NONE,
        in_ready: false,
        stalled: false,
        usual: Usual::No,
        control_next: NONE,
        in_control: false,
        wants_slot: false,
        slot_next: NONE,
        blocked: Line::EMPTY,
        sharer_next: NONE,
        in_sharers: false,
        hash_next: NONE,
        bucket: NONE,
        timer: NONE,
        sockets: [NONE; 2],
        fetching: NONE,
        agreement: Agreement::NONE,
        traffic: NexusCounters::ZERO,
    };
}

/// A session.
#[derive(Clone, Hash, Debug)]
pub struct Session {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) state: session::State,
    pub(crate) client: bool,
    /// The id on the wire: ours, or of the endpoint that a ticket came from.
    pub(crate) own_id: u32,
    pub(crate) peer_id: u32,
    pub(crate) peer_depth_messages: u16,
    pub(crate) peer_depth_bytes: u64,
    pub(crate) connections: u32,
    pub(crate) connection_count: u32,
    /// The user's value: of the listener, or of the connect.
    pub(crate) user: u64,
    pub(crate) listener: u32,
    pub(crate) reason: Reason,
    /// Connections that may still come through a ticket or portals.
    pub(crate) joins_left: u16,
    pub(crate) redirects: u8,
    /// Receive task that holds the peer's setup request.
    pub(crate) request: u32,
    pub(crate) asked: bool,
    /// The user is never told of it.
    pub(crate) hidden: bool,
    /// Code of a rejection that the endpoint itself gives.
    pub(crate) reject_status: u32,
    /// Where the setup request's payload starts in its slot, and its parts' lengths.
    pub(crate) setup_at: u16,
    pub(crate) uri_len: u16,
    pub(crate) uri_skip: u16,
    pub(crate) private_len: u16,
    pub(crate) event_next: u32,
    pub(crate) in_events: bool,
    pub(crate) timer: u32,
    /// Of its connection that was lost last, also while the row is free; or the answer to a client
    /// that asked about one.
    pub(crate) past: Past,
}

impl Session {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        state: session::State::Vacant,
        client: false,
        own_id: 0,
        peer_id: 0,
        peer_depth_messages: 0,
        peer_depth_bytes: 0,
        connections: NONE,
        connection_count: 0,
        user: 0,
        listener: NONE,
        reason: Reason::Closed,
        joins_left: 0,
        redirects: 0,
        request: NONE,
        asked: false,
        hidden: false,
        reject_status: 0,
        setup_at: 0,
        uri_len: 0,
        uri_skip: 0,
        private_len: 0,
        event_next: NONE,
        in_events: false,
        timer: NONE,
        past: Past::NONE,
    };
}

bitflags::bitflags! {
    /// Control frames that a connection has to send.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
    pub(crate) struct Frames: u16 {
        const SETUP_REQ = 1;
        const SETUP_RSP = 2;
        const HELLO_REQ = 4;
        const HELLO_RSP = 8;
        const FIN_REQ = 16;
        const FIN_RSP = 32;
        const KEEPALIVE_REQ = 64;
        const KEEPALIVE_RSP = 128;
        const ACK_REQ = 256;
        const CANCEL_REQ = 512;
        const RESUME_REQ = 1024;
        const RESUME_RSP = 2048;
        /// No frame: until the peer has said what it got of the life before, requests wait.
        const RESUMING = 4096;
    }

    /// Control requests whose answer is awaited.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
    pub(crate) struct Awaited: u8 {
        const SETUP = 1;
        const HELLO = 2;
        const FIN = 4;
        const KEEPALIVE = 8;
        const RESUME = 16;
    }

    /// Events that a connection itself has for the user.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
    pub(crate) struct ConnectionEvents: u8 {
        const ESTABLISHED = 1;
        const FAILED = 2;
        const WRITABLE = 4;
        const CLOSED = 8;
        const PORTALS = 16;
        /// It is there again.
        const ANEW = 32;
        /// It is lost, and is to be made anew.
        const LOST = 64;
    }
}

/// A connection.
#[derive(Clone, Hash, Debug)]
pub struct Connection {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) state: connection::State,
    pub(crate) session: u32,
    pub(crate) nexus: u32,
    pub(crate) user: u64,
    /// Produces no events (the half that says goodbye after portals or redirection).
    pub(crate) silent: bool,
    pub(crate) client: bool,
    pub(crate) joining: bool,
    pub(crate) reported_up: bool,
    pub(crate) reason: Reason,
    pub(crate) reason_known: bool,
    pub(crate) peer_session: u32,
    pub(crate) own_session: u32,

    // Numbering (PROTOCOL.md 9).
    pub(crate) serial: u64,
    pub(crate) last_serial: u64,
    pub(crate) any_serial: bool,
    pub(crate) req_sn: u16,
    pub(crate) req_expected: u16,
    pub(crate) rsp_sn: u16,
    pub(crate) rsp_expected: u16,

    // Application credits.
    /// Below zero when responses or ACK_REQs went, which need none and take some all the same.
    pub(crate) peer_messages: i32,
    pub(crate) peer_bytes: i64,
    /// The most bytes that the peer ever takes; a longer message would wait forever.
    pub(crate) peer_depth_bytes: u64,
    pub(crate) owed_messages: u16,
    pub(crate) owed_bytes: u64,

    // What is queued and unfinished here.
    pub(crate) queued_messages: u32,
    pub(crate) queued_bytes: u64,
    pub(crate) req_head: u32,
    pub(crate) req_tail: u32,
    pub(crate) rsp_head: u32,
    pub(crate) rsp_tail: u32,
    /// Messages of which the peer is to be told that nobody wants them any more.
    pub(crate) withdrawn_head: u32,
    pub(crate) withdrawn_tail: u32,
    /// The queue whose turn it is.
    pub(crate) rsp_turn: bool,
    pub(crate) frames: Frames,
    pub(crate) awaited: Awaited,
    /// Peer task ids of control requests that we have to answer.
    pub(crate) setup_rtid: u32,
    pub(crate) fin_rtid: u32,
    pub(crate) keepalive_rtid: u32,
    /// Send slot that holds a session setup payload, its length.
    pub(crate) setup_slot: u32,
    pub(crate) setup_len: u16,
    /// Control frames posted and not completed.
    pub(crate) control_work: u16,

    /// All its tasks.
    pub(crate) tasks: u32,
    /// Of them: received requests not answered yet.
    pub(crate) unanswered: u32,
    /// Of them: outgoing, still touched by device or peer.
    pub(crate) held: u32,
    /// Arrived behind an unfinished fetch, in order of arrival.
    pub(crate) hold_head: u32,
    pub(crate) hold_tail: u32,

    // Events.
    pub(crate) events: ConnectionEvents,
    /// Waits in the endpoint's queue for a task or slot.
    pub(crate) blocked_next: u32,
    /// What it waits for there, and where.
    pub(crate) lacks: Lack,
    /// Waits for room in its own queue.
    pub(crate) wants_writable: bool,
    /// The answer whose portals are being tried, where their list lies in it, and the one tried
    /// now: its text goes into the setup.
    pub(crate) portals_slot: u32,
    pub(crate) portals_at: u16,
    pub(crate) portals_len: u16,
    pub(crate) portals: u16,
    pub(crate) portal: u16,
    pub(crate) portal_len: u16,
    /// Portals whose address this side cannot read.
    pub(crate) unresolved: u16,
    /// Portals on sockets are reached as the server was.
    pub(crate) dual_stream: bool,
    /// Of the URI in the setup that the user gave.
    pub(crate) uri_len: u16,
    /// Receive task that holds the private data of the setup answer.
    pub(crate) setup_task: u32,
    pub(crate) ev_head: u32,
    pub(crate) ev_tail: u32,
    pub(crate) event_next: u32,
    pub(crate) in_events: bool,

    // Lists.
    pub(crate) nexus_prev: u32,
    pub(crate) nexus_next: u32,
    pub(crate) session_prev: u32,
    pub(crate) session_next: u32,
    pub(crate) tx_next: u32,
    pub(crate) in_tx: bool,

    // Keepalive.
    pub(crate) probes: u8,
    pub(crate) heard: bool,
    pub(crate) timer: u32,
    pub(crate) keepalive_timer: u32,

    /// Keepalives of the peer: how many came, since when, and the numbers of our frames then.
    pub(crate) asked_times: u8,
    pub(crate) asked_since: Instant,
    pub(crate) asked_at: (u16, u16),
    /// Questions that were repeated, as their answers could not be read: those may come too.
    pub(crate) asked_again: u8,
    /// The first in the send queue when keepalive last looked.
    pub(crate) untaken: u32,

    // Memory for payloads.
    pub(crate) policy: ConnectionPolicy,
    /// Bytes of chunks that its messages have.
    pub(crate) pool_bytes: u64,
    /// Its messages whose payload waits for chunks, and its place in the line for them.
    pub(crate) pool_head: u32,
    pub(crate) pool_tail: u32,
    pub(crate) pool_next: u32,
    pub(crate) in_pool_line: bool,

    /// It is made anew when it is lost: the row that remembers how.
    pub(crate) retry: u32,
    /// It is the only one between two.
    pub(crate) cross: Cross,
    /// What happened on it.
    pub(crate) traffic: ConnectionCounters,
}

impl Connection {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        state: connection::State::Vacant,
        session: NONE,
        nexus: NONE,
        user: 0,
        silent: false,
        client: false,
        joining: false,
        reported_up: false,
        reason: Reason::Closed,
        reason_known: false,
        peer_session: 0,
        own_session: 0,
        serial: 0,
        last_serial: 0,
        any_serial: false,
        req_sn: 0,
        req_expected: 0,
        rsp_sn: 0,
        rsp_expected: 0,
        peer_messages: 0,
        peer_bytes: 0,
        peer_depth_bytes: 0,
        owed_messages: 0,
        owed_bytes: 0,
        queued_messages: 0,
        queued_bytes: 0,
        req_head: NONE,
        req_tail: NONE,
        rsp_head: NONE,
        rsp_tail: NONE,
        withdrawn_head: NONE,
        withdrawn_tail: NONE,
        rsp_turn: false,
        frames: Frames::empty(),
        awaited: Awaited::empty(),
        setup_rtid: 0,
        fin_rtid: 0,
        keepalive_rtid: 0,
        setup_slot: NONE,
        setup_len: 0,
        control_work: 0,
        tasks: NONE,
        unanswered: 0,
        held: 0,
        hold_head: NONE,
        hold_tail: NONE,
        events: ConnectionEvents::empty(),
        blocked_next: NONE,
        lacks: Lack::empty(),
        wants_writable: false,
        portals_slot: NONE,
        portals_at: 0,
        portals_len: 0,
        portals: 0,
        portal: 0,
        portal_len: 0,
        unresolved: 0,
        dual_stream: false,
        uri_len: 0,
        setup_task: NONE,
        ev_head: NONE,
        ev_tail: NONE,
        event_next: NONE,
        in_events: false,
        nexus_prev: NONE,
        nexus_next: NONE,
        session_prev: NONE,
        session_next: NONE,
        tx_next: NONE,
        in_tx: false,
        probes: 0,
        heard: false,
        timer: NONE,
        keepalive_timer: NONE,
        asked_times: 0,
        asked_since: Instant::ZERO,
        asked_at: (0, 0),
        asked_again: 0,
        untaken: NONE,
        policy: ConnectionPolicy::ASK,
        pool_bytes: 0,
        pool_head: NONE,
        pool_tail: NONE,
        pool_next: NONE,
        in_pool_line: false,
        retry: NONE,
        cross: Cross::NONE,
        traffic: ConnectionCounters::ZERO,
    };
}

/// What a slot is used for.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum SlotUse {
    Free,
    /// Receive: posted to the device.
    Posted,
    /// Receive: being filled from a stream.
    Filling,
    /// Receive: holds a frame.
    Filled,
    /// Send: reserved by the user, not sent yet.
    Reserved,
    /// Send: belongs to a message or a frame.
    Taken,
}

/// A slot's state.
#[derive(Clone, Hash, Debug)]
pub struct Slot {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) usage: SlotUse,
    /// The transport connection that it is counted to. A send slot may outlive it.
    pub(crate) nexus: u32,
    /// Send: the life of that. Receive: of a frame that waits for the bytes of a data socket what is
    /// here; then what completes it, and the payload that follows.
    pub(crate) have: u32,
    pub(crate) inline_left: u32,
    pub(crate) payload: u64,
}

impl Slot {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        usage: SlotUse::Free,
        nexus: NONE,
        have: 0,
        inline_left: 0,
        payload: 0,
    };
}

/// Segments of a list that is longer than a task holds by itself.
#[derive(Clone, Debug)]
pub struct Extent {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) segments: [Segment; Self::SEGMENTS],
}

impl Extent {
    /// Segments in one extent.
    pub const SEGMENTS: usize = 8;
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        segments: [Segment {
            addr: 0,
            len: 0,
            lkey: 0,
            rkey: 0,
        }; Self::SEGMENTS],
    };
}

/// A place in the heap of deadlines.
#[derive(Copy, Clone, Hash, Debug)]
pub struct TimerEntry {
    pub(crate) at: u64,
    pub(crate) timer: u32,
}

impl TimerEntry {
    /// A free row.
    pub const VACANT: Self = Self { at: 0, timer: NONE };
}
