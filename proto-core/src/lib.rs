//! The xio protocol: what libxio (Accelio 1.7) speaks on RDMA and on TCP, as a pure state machine.
//!
//! No I/O, no clock, no allocation, no unsafe code, no `std`. An [`Endpoint`] is told what happened
//! and says what is to be done; a driver beside it owns the device or the sockets, the memory and
//! the time. `PROTOCOL.md` describes bytes and states in numbered sections, which the documentation
//! here cites; `ARCHITECTURE.md` shows a request's way through the code.
//!
//! # Layers
//!
//! | layer | what it is |
//! |---|---|
//! | session | who talks with whom: setup, acceptance, rejection, redirection, tickets (7) |
//! | connection | one flow of messages of a session: HELLO, FIN, keepalive (8) |
//! | nexus | one transport connection: a queue pair, or one or two sockets; credits, numbers (2, 6) |
//! | task | one message: request and response, one-way, receipt, direct READ or WRITE (9 to 11) |
//! | stream | bytes of sockets to frames, which socket belongs to which (3) |
//! | [`wire`] | bytes to typed frames and back, both dialects (1, 5) |
//!
//! # The contract
//!
//! Methods of [`Endpoint`] come in four kinds.
//!
//! 1. **Constructors**: [`new`](Endpoint::new), [`with_trace`](Endpoint::with_trace),
//!    [`add_transport`](Endpoint::add_transport). What cannot work is refused here, with its bound.
//! 2. **Commands** of the user: taken, or refused with the reason and without any change. After
//!    [`CommandError::Full`] and [`CommandError::NoCredit`] one [`Event::Writable`] says when
//!    another try is worth while.
//! 3. **Inputs** of the driver, `handle_*`: events of the communication manager, completions,
//!    failed posts, deadlines. Each has a defined result in every state. Those that start a timer
//!    take `now`; one that goes backwards is clamped and counted.
//! 4. **Outputs**, made from the state when polled: [`poll_control`](Endpoint::poll_control),
//!    [`poll_work`](Endpoint::poll_work), [`poll_event`](Endpoint::poll_event),
//!    [`poll_timeout`](Endpoint::poll_timeout).
//!
//! **Drain rule.** After any command or input poll all outputs until none has anything more, then
//! wait for the device or for `poll_timeout`. In which order they are polled, and how many at a
//! time, changes nothing; but hearing an event is more than looking, since it may give back memory
//! that can be granted, and make a receipt due. When events are heard, before or after the work of
//! the moment, shows in credits and in where receipts stand, in no outcome. A work request that was polled is posted, or reported with
//! [`handle_post_failed`](Endpoint::handle_post_failed).
//!
//! **Everything that enters is an [`Input`].** Each method of kinds 2 to 4 (but `poll_timeout`, which
//! changes nothing) has a variant with its parameters; [`apply`](Endpoint::apply) calls the method of
//! a variant, and a [`Trace`] that records is told the variant of every method called, and what it
//! returned. Inputs have bytes (18), so a run can be written down and run again.
//!
//! **Sockets.** A driver of sockets asks [`stream_want`](Endpoint::stream_want) what the next bytes
//! of a socket are before each read, and passes them to
//! [`handle_stream_bytes`](Endpoint::handle_stream_bytes), or their number to
//! [`handle_stream_payload`](Endpoint::handle_stream_payload). A socket that has to wait is named
//! by [`poll_stream`](Endpoint::poll_stream) when it may go on: one more output to drain.
//!
//! **Buffers.** The endpoint never touches payload. Memory of messages is named by [`SlotId`] (the
//! driver's, [`Slots`] lends its bytes) or [`Segment`] (the user's). A slot that a command took,
//! and segments that it named, belong to the message until its outcome; when that says that they
//! are not back (`buffers_returned`), until its [`Event::BuffersReturned`]. What was received is
//! the user's until [`release`](Endpoint::release), and holds a receive so long.
//!
//! # Commands and their last event
//!
//! Each comes exactly once, whatever happens. An object's `user` value comes back in its events.
//!
//! | command | ends with |
//! |---|---|
//! | [`listen`](Endpoint::listen) | [`ListenFailed`](Event::ListenFailed), or nothing until [`unlisten`](Endpoint::unlisten) |
//! | [`connect`](Endpoint::connect), [`join`](Endpoint::join) | [`Established`](Event::Established) or [`ConnectFailed`](Event::ConnectFailed); then, later or at once, [`Closed`](Event::Closed); between them any number of [`Reconnecting`](Event::Reconnecting) and [`Reconnected`](Event::Reconnected), if the options say so |
//! | [`accept`](Endpoint::accept) without portals | `Established`, later `Closed` |
//! | `accept` with portals, [`reject`](Endpoint::reject), [`redirect`](Endpoint::redirect) | [`SessionClosed`](Event::SessionClosed), when no connection of the session is left here |
//! | [`send`](Endpoint::send) | [`Response`](Event::Response), [`Failed`](Event::Failed), [`TimedOut`](Event::TimedOut) or [`Cancelled`](Event::Cancelled) |
//! | [`send_one_way`](Endpoint::send_one_way) | [`Sent`](Event::Sent), or with a receipt [`Delivered`](Event::Delivered); or `Failed`, `TimedOut`, `Cancelled` |
//! | [`respond`](Endpoint::respond) | `Sent` or `Failed` |
//! | [`read`](Endpoint::read), [`write`](Endpoint::write) | `Sent`, `Failed`, `TimedOut` or `Cancelled` |
//! | [`provide`](Endpoint::provide), [`refuse`](Endpoint::refuse) | the message: [`Request`](Event::Request), [`OneWay`](Event::OneWay) or `Response`; refused: nothing, or `Failed` for a response |
//! | [`cancel`](Endpoint::cancel) | `Cancelled`, unless the message has its outcome already; at a peer of this kind [`CancelAsked`](Event::CancelAsked), if its user has the request |
//! | [`close`](Endpoint::close), [`abort`](Endpoint::abort) | `Closed`, always the last event of its connection |
//! | [`stop`](Endpoint::stop) | [`Stopped`](Event::Stopped), the last of the endpoint |
//! | [`register`](Endpoint::register) | [`RegionReady`](Event::RegionReady) or [`RegionFailed`](Event::RegionFailed) |
//! | [`revoke`](Endpoint::revoke) | [`RegionRevoked`](Event::RegionRevoked) |
//! | [`release`](Endpoint::release), [`reserve_slot`](Endpoint::reserve_slot), [`return_slot`](Endpoint::return_slot), tickets | nothing: done when they return |
//!
//! # Memory
//!
//! All tables are the caller's ([`storage`]), of lengths that never change: fixed arrays in a
//! `static`, slices, or boxes. Row sizes on a 64-bit machine, and what each count brings:
//!
//! | count ([`storage::Counts`]) | rows of | bytes a row | deadlines |
//! |---|---|---|---|
//! | `listeners` | [`Listener`](storage::Listener) | 80 | 0 |
//! | `nexuses` | [`Nexus`](storage::Nexus) | 400 | 1 |
//! | `sessions` | [`Session`](storage::Session) | 120 | 1 |
//! | `connections` | [`Connection`](storage::Connection) | 416 | 2 |
//! | `tasks` | [`Task`](storage::Task) | 456 | 1 |
//! | `rx_slots` | [`Slot`](storage::Slot) and `Task` | 32 + 456 | 1 |
//! | `tx_slots` | `Slot` | 32 | 0 |
//! | `work` | [`WorkEntry`](storage::WorkEntry) | 40 | 0 |
//! | `sockets` | [`Socket`](storage::Socket) | 296 | 1 |
//! | `extents` | [`Extent`](storage::Extent) | 200 | 0 |
//! | `regions` | [`Region`](storage::Region) | 56 | 0 |
//!
//! bytes = the sum over all counts of count × (bytes of its rows + 16 for each of its deadlines):
//! [`Counts::bytes`](storage::Counts::bytes). An idle connection with a session and a transport
//! connection of its own takes 400 + 120 + 416 + 4 × 16 = 1000 bytes. The slots' own bytes are the
//! driver's: `slot_size` each.
//!
//! # Ids
//!
//! [`ListenerId`], [`NexusId`], [`SessionId`], [`ConnectionId`], [`TaskId`] and [`RegionId`] are a
//! table index and the generation of the row: one whose object is over answers
//! [`CommandError::Unknown`], never with what took its place. Drivers may index arrays with
//! [`index`](NexusId::index). [`WrId`] is what goes into a work request: a completion whose
//! generation is not the present one is counted and ignored. On the wire ids have 32 bits (4).
//!
//! # Features
//!
//! `check` adds the method `check_invariants` of [`Endpoint`], which simulators, model tests and
//! fuzzers call after every step.
#![no_std]
#![forbid(unsafe_code)]

mod config;
pub mod driver;
mod endpoint;
mod entries;
mod error;
mod event;
mod ids;
mod input;
mod inputs;
mod memory;
mod mutant;
mod output;
mod state;
pub mod storage;
mod stream;
mod table;
mod tid;
mod time;
mod timer;
mod trace;
pub mod wire;

pub use config::{
    Config, ConnectOptions, ConnectionPolicy, Keepalive, ListenOptions, OnExpiry, PoolMemory,
    Reconnect, Rendezvous, TransportLimits,
};
pub use driver::Driver;
pub use endpoint::*;
pub use error::{
    CommandError, Existing, Failure, Length, Reason, Refusal, Resource, Step, WorkStatus,
};
pub use event::{Data, Event, Receipt};
pub use ids::{
    ConnectionId, ListenerId, NexusId, RegionId, SessionId, SocketId, TaskId, TransportId, WrId,
};
pub use input::{CmEvent, CmKind, Completion, KeyEvent};
pub use inputs::{
    Applied, Bytes, DecodeError, EncodeError, Input, Malformed, PORTALS_MAX, SEGMENTS_MAX, Scratch,
    Start,
};
pub use memory::{SEGMENTS_INLINE, Segment, SegmentSpan, SlotId, Slots, Span};
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use output::{Access, ConnectParams, Control, PrivateData, Work};
pub use state::{Graphviz, MACHINES, Machine, Row};
pub use stream::StreamWant;
pub use time::Instant;
pub use trace::{NoTrace, Trace};
pub use wire::Extensions;
