//! What an endpoint is told at construction, and what may be chosen per listener and connection.

use core::time::Duration;

use crate::wire::{Dialect, Extensions};

/// Settings of an endpoint. The defaults are libxio's where it has the setting. What each time
/// runs for is in PROTOCOL.md 12, what each limit is for in 14.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This endpoint's number, unique in the process (0 to 63); part of every session id.
    pub endpoint: u8,
    /// Who this endpoint is to peers of its kind, the same in each of its lives and nobody else's
    /// on this host; each number [`endpoint`](Self::endpoint) is somebody of its own. 0: nobody in
    /// particular, whose restart is not recognised (PROTOCOL.md 2.7).
    pub identity: u64,
    /// Which life of this endpoint it is: must grow from each to the next, as microseconds of the
    /// wall clock do.
    pub incarnation: u64,
    /// Seed for everything that must differ between runs: the pauses before attempts to connect
    /// anew (PROTOCOL.md 8.5), and numbers of transport connections (2.6). No two runs should have
    /// the same.
    pub seed: u64,
    /// What is offered to peers of this kind, and used if they can do it too (PROTOCOL.md 2.6). A
    /// libxio sees nothing of it.
    pub extensions: Extensions,
    /// Bytes of every slot; at least `headroom + buffer_size`, and 4096.
    pub slot_size: u32,
    /// Slots `0..rx_slots` receive. On streams an eighth of them (at least two) is kept for
    /// transport connections that hold none, so that no user's hoard stops the others, and none has
    /// more than half of them, or 64 if that is more.
    pub rx_slots: u32,
    /// Slots `rx_slots..rx_slots + tx_slots` send. Transport connections share them (PROTOCOL.md 9.5).
    pub tx_slots: u32,
    /// Largest frame in bytes (libxio's buffer size), 512 to 65535; negotiated down to the peer's.
    pub buffer_size: u32,
    /// Data above this many bytes of a request or one-way goes by READ (PROTOCOL.md 10.1).
    pub inline_data_max: u32,
    /// Largest application header in bytes.
    pub header_max: u16,
    /// Scatter/gather entries taken per list (1 to 256).
    pub sge_max: u16,
    /// Accepted sockets that may be short of a transport connection at once: their connect message
    /// is not complete, or the other socket of the pair has not come.
    pub half_open_max: u32,
    /// Receive queue depth announced to peers (at most 256).
    pub rq_depth: u16,
    /// Receives that every transport connection is sure of (5 to `rq_depth`).
    pub min_grant: u16,
    /// Messages announced as receive queue depth of a session.
    pub depth_messages: u16,
    /// Bytes announced as receive queue depth of a session.
    pub depth_bytes: u64,
    /// Outgoing messages that one connection may have unfinished; announced as the session's
    /// send queue depth.
    pub queue_messages: u32,
    /// Outgoing bytes that one connection may have unfinished; announced likewise.
    pub queue_bytes: u64,
    /// Outgoing bytes that all connections of the endpoint together may have unfinished, at least
    /// `queue_bytes` (PROTOCOL.md 9.5).
    pub queue_bytes_all: u64,
    /// Application credits on or off (PROTOCOL.md 9.6). Of peers of this kind both must have them on,
    /// or neither uses them; a libxio and its peer must be told the same.
    pub flow_control: bool,
    /// Largest payload in bytes that a message may move by READ or WRITE.
    pub payload_max: u64,
    /// Redirections followed in a row.
    pub redirects_max: u8,
    /// From `connect` to a transport connection that is set up, for a peer's first frame, and for
    /// an accepted socket to become part of a transport connection.
    pub connect_timeout: Duration,
    /// For the answer to session setup and HELLO, and for a served user's decision.
    pub setup_timeout: Duration,
    /// For the peer's answer to FIN.
    pub fin_timeout: Duration,
    /// After the last FIN, before the connection is over.
    pub time_wait: Duration,
    /// How long an unused transport connection is kept.
    pub linger: Duration,
    /// For flushes after disconnect; then the queue pair is destroyed anyway.
    pub drain_timeout: Duration,
    /// For the user's answer to a waiting payload.
    pub provide_timeout: Duration,
    /// How payloads of connections get their memory, and what their deadlines do, until
    /// [`set_policy`](crate::Endpoint::set_policy) says otherwise for one.
    pub policy: ConnectionPolicy,
    /// Keepalive: time to a probe, and between looks for its answer; `None` turns it off.
    pub keepalive: Option<Keepalive>,
    /// Attempts to make lost connections anew, per second and in the whole endpoint, at least 1: they
    /// are spaced evenly (PROTOCOL.md 8.5).
    pub reconnects_per_second: u32,
    /// How long a peer that cannot be talked to is not tried again by connections that are made anew.
    pub incompatible_time: Duration,
    /// The deliberate fault of a mutant.
    #[cfg(feature = "mutants")]
    pub mutant: Option<crate::Mutant>,
}

/// Times of keepalive (PROTOCOL.md 8.4).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// From going online, and from each answer, to the probe.
    pub time: Duration,
    /// Between looks for the answer.
    pub interval: Duration,
    /// Looks without an answer until the connection is given up.
    pub probes: u8,
}

impl Config {
    /// The same for one life of a program, as drivers say it: `incarnation`, which is larger in each
    /// later life, and `seed`, which no other life has, where they are still 0 (PROTOCOL.md 2.6, 2.7).
    #[must_use]
    pub const fn in_life(mut self, incarnation: u64, seed: u64) -> Self {
        if self.incarnation == 0 {
            self.incarnation = incarnation;
        }
        if self.seed == 0 {
            self.seed = seed;
        }
        self
    }

    /// libxio's defaults for an endpoint with the given numbers of slots.
    pub const fn new(endpoint: u8, rx_slots: u32, tx_slots: u32) -> Self {
        Self {
            endpoint,
            identity: 0,
            incarnation: 0,
            seed: 0,
            extensions: Extensions::DEFAULT,
            slot_size: 10_240,
            rx_slots,
            tx_slots,
            buffer_size: 9216,
            inline_data_max: 8192,
            header_max: 256,
            sge_max: 4,
            half_open_max: 256,
            rq_depth: 256,
            min_grant: 8,
            depth_messages: 1024,
            depth_bytes: 64 << 20,
            queue_messages: 1024,
            queue_bytes: 64 << 20,
            queue_bytes_all: 4 << 30,
            flow_control: false,
            payload_max: 1 << 30,
            redirects_max: 8,
            connect_timeout: Duration::from_secs(10),
            setup_timeout: Duration::from_secs(10),
            fin_timeout: Duration::from_secs(300),
            time_wait: Duration::from_millis(2),
            linger: Duration::from_secs(60),
            drain_timeout: Duration::from_millis(500),
            provide_timeout: Duration::from_secs(10),
            policy: ConnectionPolicy::ASK,
            keepalive: Some(Keepalive {
                time: Duration::from_secs(60),
                interval: Duration::from_secs(20),
                probes: 3,
            }),
            reconnects_per_second: 100,
            incompatible_time: Duration::from_secs(60),
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }

    /// [`queue_messages`](Self::queue_messages) as far as the wire can say it.
    pub(crate) const fn queue_depth(&self) -> u16 {
        if self.queue_messages > u16::MAX as u32 {
            u16::MAX
        } else {
            self.queue_messages as u16
        }
    }

    /// The extensions that the endpoint names to peers: those chosen, and `FLOW` with them if
    /// `flow_control` is on. Without any chosen it names none.
    pub fn extensions_named(&self) -> Extensions {
        let mut named = self.extensions;
        named.set(Extensions::FLOW, self.flow_control && !named.is_empty());
        named
    }

    /// Bytes before the application header in a slot for sending: room for the longest headers.
    /// The caller writes its header, and data that it wants copied, from this offset on.
    pub const fn headroom(&self) -> usize {
        // TLV, session header, RDMA response header, both lists at their longest.
        16 + 40 + 44 + 2 * 16 * self.sge_max as usize
    }
}

/// Where the payload of a message goes that the peer keeps until it is asked for
/// (PROTOCOL.md 10.3).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Rendezvous {
    /// The user is asked for memory, with `PayloadWaiting`.
    Ask,
    /// Into the transport's pool ([`add_pool`](crate::Endpoint::add_pool)), unasked.
    Pool {
        /// Bytes of chunks that messages of the connection may have at once. Further payloads wait
        /// at the peer until the user has given some back; one that is larger by itself is refused.
        max_bytes: u64,
    },
}

/// What becomes of a message's buffers when its deadline passes while the peer or the device may
/// still touch them (PROTOCOL.md 12.1). They come back with `BuffersReturned` in any case.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum OnExpiry {
    /// They are kept until the peer has answered and the device is done, or the transport
    /// connection is over.
    Hold,
    /// The regions that they lie in are revoked, as by [`revoke`](crate::Endpoint::revoke): the
    /// peer cannot reach them any more once the driver has said so. What lies in no region of this
    /// endpoint's is held.
    Revoke,
    /// The transport connection is taken down.
    Disconnect,
}

/// Choices for one connection.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionPolicy {
    /// What becomes of buffers at a message's deadline.
    pub on_expiry: OnExpiry,
    /// Where payloads go.
    pub rendezvous: Rendezvous,
    /// How long a payload waits for memory before it is refused; `None` is
    /// [`Config::provide_timeout`].
    pub provide_timeout: Option<Duration>,
    /// How long a message has for its outcome that is sent without a deadline of its own; `None` is
    /// without end.
    pub deadline: Option<Duration>,
}

impl ConnectionPolicy {
    /// The user is asked for memory; buffers are held.
    pub const ASK: Self = Self {
        on_expiry: OnExpiry::Hold,
        rendezvous: Rendezvous::Ask,
        provide_timeout: None,
        deadline: None,
    };

    /// Payloads go into the pool, so many bytes of them at once.
    pub const fn pool(max_bytes: u64) -> Self {
        Self {
            rendezvous: Rendezvous::Pool { max_bytes },
            ..Self::ASK
        }
    }
}

/// Memory that a driver lends for payloads: `chunks` pieces of `chunk` bytes, one behind the other.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PoolMemory {
    /// First byte, or the driver's cookie for it; not 0.
    pub addr: u64,
    /// Key for the local device; 0 on sockets.
    pub lkey: u32,
    /// Bytes of a chunk, at least 64.
    pub chunk: u32,
    /// How many there are; [`POOL_CHUNKS_MAX`](crate::POOL_CHUNKS_MAX) in all pools at most.
    pub chunks: u16,
}

/// What a driver's device or sockets can do; stated once per transport.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// The dialect spoken.
    pub dialect: Dialect,
    /// Work requests on one send queue (sockets: frames being written), at least 4.
    pub sq_depth: u16,
    /// Bytes that may be unfinished on one send queue.
    pub sq_bytes: u64,
    /// Work requests on one receive queue, or on the shared one; at least `min_grant + 2`.
    pub rq_depth: u16,
    /// Entries of the completion queue that all queue pairs share, at least 8.
    pub cq_depth: u32,
    /// Scatter/gather entries of one work request, at least 1.
    pub max_sge: u16,
    /// Bytes that a send may carry inside the work request.
    pub max_inline: u16,
    /// READs a queue pair may have outstanding.
    pub max_reads: u8,
    /// Largest message of the device in bytes.
    pub max_message: u32,
    /// One receive queue for all queue pairs (PROTOCOL.md 6.5). Its completions are told with
    /// [`handle_shared_completion`](crate::Endpoint::handle_shared_completion).
    pub shared_receive_queue: bool,
    /// A send is signalled at least every so many (1 signals each).
    pub signal_every: u16,
}

impl TransportLimits {
    /// Sockets: what the TCP driver offers.
    pub const fn tcp() -> Self {
        Self {
            dialect: Dialect::Tcp,
            sq_depth: 64,
            sq_bytes: u64::MAX,
            rq_depth: 0,
            cq_depth: u32::MAX,
            max_sge: 256,
            max_inline: 0,
            max_reads: 0,
            max_message: u32::MAX,
            shared_receive_queue: false,
            signal_every: 1,
        }
    }

    /// A queue pair with libxio's sizes.
    pub const fn rdma() -> Self {
        Self {
            dialect: Dialect::Rdma,
            sq_depth: 257,
            sq_bytes: u64::MAX,
            rq_depth: 288,
            cq_depth: 1 << 16,
            max_sge: 5,
            max_inline: 200,
            max_reads: 16,
            max_message: 1 << 30,
            shared_receive_queue: false,
            signal_every: 64,
        }
    }
}

/// Choices for one `connect`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Local address to connect from; the port is free.
    pub local: Option<core::net::SocketAddr>,
    /// Sockets: two streams (libxio's default) or one (PROTOCOL.md 3).
    pub dual_stream: bool,
    /// Do not share a transport connection with other sessions (PROTOCOL.md 2.3).
    pub own_nexus: bool,
    /// What comes back in each event of the connection.
    pub user: u64,
    /// Make the connection anew when it is lost after it was established (PROTOCOL.md 8.5). It keeps
    /// one slot for sending, with what the session's setup says, and the row of one message.
    pub reconnect: Option<Reconnect>,
    /// Who the peer is, as it travels ([`wire_identity`](crate::wire::wire_identity)): between it and this endpoint there is to be one
    /// connection, also when both call at once (PROTOCOL.md 8.8). Not with `reconnect`.
    pub only_with: Option<u64>,
}

impl ConnectOptions {
    /// Defaults with a user value.
    pub const fn new(user: u64) -> Self {
        Self {
            local: None,
            dual_stream: true,
            own_nexus: false,
            user,
            reconnect: None,
            only_with: None,
        }
    }
}

/// How a lost connection is made anew (PROTOCOL.md 8.5).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Reconnect {
    /// Attempts after one loss, until the connection ends; 0 is no attempt.
    pub attempts_max: u32,
    /// No attempt begins later than this after the loss; `None` is no limit of time.
    pub give_up_after: Option<Duration>,
    /// Longest pause before the first attempt, more than zero. It doubles with each attempt that
    /// fails, and with each loss of a connection that was not up as long as `max_delay`.
    pub first_delay: Duration,
    /// Longest pause before any attempt, at least `first_delay`.
    pub max_delay: Duration,
}

impl Reconnect {
    pub(crate) fn is_possible(&self) -> bool {
        !self.first_delay.is_zero() && self.first_delay <= self.max_delay
    }

    /// Ten attempts, the first after at most 100 ms, the last after 10 seconds at most.
    pub const DEFAULT: Self = Self {
        attempts_max: 10,
        give_up_after: None,
        first_delay: Duration::from_millis(100),
        max_delay: Duration::from_secs(10),
    };
}

/// Choices for one `listen`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// What comes back in each session request.
    pub user: u64,
    /// Connections the transport queues before they are taken.
    pub backlog: u32,
}
