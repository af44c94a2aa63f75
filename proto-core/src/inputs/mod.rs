//! Everything that can enter an endpoint, as one type: for recording, replaying and fuzzing.
//!
//! Folder map: `apply` (an input to its method, and back to the observer), `applied` (what came of
//! it), `codec` and `fields` (its bytes), `start` (what a recording begins with).

mod applied;
mod apply;
mod codec;
mod fields;
mod start;

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use crate::config::{ConnectOptions, ConnectionPolicy, ListenOptions, PoolMemory, TransportLimits};
use crate::endpoint::{
    ConnectRequest, Message, RemoteMemory, RequestOptions, SessionOpen, SessionTicket,
};
use crate::error::{Reason, Refusal};
use crate::ids::{
    ConnectionId, ListenerId, NexusId, RegionId, SessionId, SocketId, TaskId, TransportId, WrId,
};
use crate::input::{CmEvent, Completion};
use crate::memory::{Segment, SlotId};
use crate::output::Access;
use crate::time::Instant;

pub use applied::Applied;
pub(crate) use apply::recorded;
pub use codec::{DecodeError, EncodeError, Malformed, PORTALS_MAX, SEGMENTS_MAX, Scratch};
use codec::{Field, Reader, Writer};
pub use start::Start;

/// Received bytes that are part of an input; `Debug` shows their number and the first of them.
#[derive(Copy, Clone, PartialEq, Eq, Default)]
pub struct Bytes<'a>(pub &'a [u8]);

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())?;
        for (n, byte) in self.0.iter().take(32).enumerate() {
            let space = if n % 8 == 0 { " " } else { "" };
            write!(f, "{space}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Declares [`Input`]: number on the wire of a recording, method, variant, parameters.
macro_rules! inputs {
    ($($number:literal $method:ident $variant:ident { $($field:ident: $ty:ty),* $(,)? })*) => {
        /// Everything that changes an endpoint: one variant for each method that can, with the
        /// parameters of the method. Polls are among them, since they take what they return.
        ///
        /// [`Endpoint::apply`](crate::Endpoint::apply) carries one out; an observer whose
        /// [`Trace::RECORDS`](crate::Trace::RECORDS) is true is given each as it comes, whichever
        /// way it was called. The format of the bytes is in PROTOCOL.md 18.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "variants and fields are methods and their parameters")]
        pub enum Input<'a> {
            $($variant { $($field: $ty),* },)*
        }

        impl<'a> Input<'a> {
            /// Methods of the endpoint, with the numbers of their inputs.
            pub const METHODS: &'static [(u8, &'static str)] =
                &[$(($number, stringify!($method))),*];

            /// The method that it is for.
            #[must_use]
            pub const fn method(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => stringify!($method),)*
                }
            }

            /// Writes it; returns its length in bytes.
            ///
            /// # Errors
            /// `Room` when `out` is too short, with the bytes that it takes; `TooMany` for a list
            /// that is longer than any endpoint takes.
            pub fn write(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
                let mut w = Writer::new(out);
                match self {
                    $(Self::$variant { $($field),* } => {
                        w.raw(&[$number]);
                        $($field.put(&mut w);)*
                    })*
                }
                w.finish()
            }

            /// Reads one that takes up all of `bytes`.
            ///
            /// # Errors
            /// What is wrong with the bytes, and where.
            pub fn read(bytes: &'a [u8], scratch: &'a mut Scratch<'a>) -> Result<Self, DecodeError> {
                let mut r = Reader::new(bytes, scratch);
                let input = match r.raw(1)?[0] {
                    $($number => Self::$variant { $($field: Field::get(&mut r)?),* },)*
                    other => return Reader::plain(bytes).error(Malformed::UnknownInput, other.into()),
                };
                r.finish()?;
                Ok(input)
            }
        }
    };
}

inputs! {
    1 add_transport AddTransport { limits: TransportLimits }
    2 add_pool AddPool { transport: TransportId, memory: PoolMemory }

    10 listen Listen { transport: TransportId, address: SocketAddr, options: ListenOptions }
    11 unlisten Unlisten { listener: ListenerId }
    12 connect Connect {
        now: Instant,
        transport: TransportId,
        peer: SocketAddr,
        setup: SessionOpen<'a>,
        options: ConnectOptions,
    }
    13 accept Accept {
        now: Instant,
        session: SessionId,
        user: u64,
        portals: &'a [&'a [u8]],
        private: &'a [u8],
    }
    14 reject Reject { now: Instant, session: SessionId, reason: u32, private: &'a [u8] }
    15 redirect Redirect { now: Instant, session: SessionId, portals: &'a [&'a [u8]] }
    16 export_session ExportSession { session: SessionId, joins: u16, expires: Instant }
    17 import_session ImportSession { now: Instant, ticket: SessionTicket, user: u64 }
    18 join Join {
        now: Instant,
        session: SessionId,
        transport: TransportId,
        portal: SocketAddr,
        options: ConnectOptions,
    }
    19 close Close { now: Instant, connection: ConnectionId }
    20 abort Abort { now: Instant, connection: ConnectionId }
    21 reserve_slot ReserveSlot { connection: ConnectionId }
    22 reserve_answer_slot ReserveAnswerSlot { request: TaskId }
    23 return_slot ReturnSlot { slot: SlotId }
    24 send Send { connection: ConnectionId, message: Message<'a>, options: RequestOptions<'a> }
    25 send_one_way SendOneWay {
        connection: ConnectionId,
        message: Message<'a>,
        options: RequestOptions<'a>,
    }
    26 respond Respond { request: TaskId, message: Message<'a> }
    27 read Read {
        connection: ConnectionId,
        local: &'a [Segment],
        remote: RemoteMemory,
        user: u64,
        deadline: Option<Instant>,
    }
    28 write Write {
        connection: ConnectionId,
        local: &'a [Segment],
        remote: RemoteMemory,
        user: u64,
        deadline: Option<Instant>,
    }
    29 provide Provide { task: TaskId, segments: &'a [Segment] }
    30 refuse Refuse { task: TaskId, status: u32 }
    31 set_receipt SetReceipt { task: TaskId, code: u32 }
    32 cancel Cancel { task: TaskId }
    33 release Release { task: TaskId }
    34 register Register {
        transport: TransportId,
        addr: u64,
        len: u64,
        access: Access,
        user: u64,
    }
    35 revoke Revoke { region: RegionId }
    36 set_policy SetPolicy { connection: ConnectionId, policy: ConnectionPolicy }
    37 resolve_portal ResolvePortal {
        now: Instant,
        connection: ConnectionId,
        index: u16,
        peer: SocketAddr,
    }
    38 stop Stop { now: Instant, bound: Duration }

    45 turn_away TurnAway { listener: ListenerId, refusal: Option<Refusal> }

    50 handle_cm Cm { now: Instant, nexus: NexusId, event: CmEvent<'a> }
    51 handle_connect_request ConnectRequest {
        now: Instant,
        transport: TransportId,
        request: ConnectRequest<'a>,
    }
    52 handle_queue_pair QueuePair { now: Instant, nexus: NexusId, made: Result<(), i32> }
    53 handle_completion Completion { now: Instant, completion: Completion, frame: Bytes<'a> }
    54 handle_post_failed PostFailed { now: Instant, wr: WrId, error: i32 }
    55 handle_driver_failed DriverFailed { now: Instant, nexus: NexusId, reason: Reason }
    56 handle_destroyed Destroyed { now: Instant, nexus: NexusId }
    57 handle_listen_failed ListenFailed { now: Instant, listener: ListenerId, error: i32 }
    58 handle_region Region { now: Instant, region: RegionId, keys: Result<(u32, u32), i32> }
    59 handle_region_revoked RegionRevoked { now: Instant, region: RegionId }
    60 handle_timeout Timeout { now: Instant }
    61 handle_socket_accepted SocketAccepted {
        now: Instant,
        transport: TransportId,
        listener: ListenerId,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    }
    62 handle_streams_connected StreamsConnected {
        now: Instant,
        nexus: NexusId,
        control: SocketAddr,
        data: Option<SocketAddr>,
    }
    63 handle_stream_bytes StreamBytes { now: Instant, socket: SocketId, bytes: Bytes<'a> }
    64 handle_stream_payload StreamPayload { now: Instant, socket: SocketId, bytes: u64 }
    65 handle_stream_progress StreamProgress { now: Instant, socket: SocketId }
    66 handle_socket_closed SocketClosed { now: Instant, socket: SocketId }
    67 handle_shared_completion SharedCompletion {
        now: Instant,
        nexus: NexusId,
        completion: Completion,
        frame: Bytes<'a>,
    }
    68 handle_last_receive LastReceive { now: Instant, nexus: NexusId }
    69 handle_listener_lost ListenerLost { now: Instant, listener: ListenerId }
    70 handle_clock Clock { now: Instant }

    80 poll_control PollControl { transport: TransportId }
    81 poll_work PollWork { transport: TransportId }
    82 poll_event PollEvent {}
    83 poll_stream PollStream { transport: TransportId }
    84 stream_want StreamWant { socket: SocketId }
}
