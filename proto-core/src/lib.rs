//! The xio protocol: what libxio speaks on RDMA and on TCP, as a pure state machine.
#![no_std]
#![forbid(unsafe_code)]

mod config;
mod endpoint;
mod entries;
mod error;
mod event;
mod ids;
mod input;
mod memory;
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

pub use config::{Config, ConnectOptions, Keepalive, ListenOptions, TransportLimits};
pub use endpoint::*;
pub use error::{CommandError, Failure, Length, Reason, Resource, Step, WorkStatus};
pub use event::{Data, Event, Receipt};
pub use ids::{
    ConnectionId, ListenerId, NexusId, RegionId, SessionId, SocketId, TaskId, TransportId, WrId,
};
pub use input::{CmEvent, CmKind, Completion, KeyEvent};
pub use memory::{SEGMENTS_INLINE, Segment, SegmentSpan, SlotId, Slots, Span};
pub use output::{Access, ConnectParams, Control, Work};
pub use state::{Graphviz, MACHINES, Machine, Row};
pub use stream::StreamWant;
pub use time::Instant;
pub use trace::{NoTrace, Trace};
