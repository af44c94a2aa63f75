//! Deterministic simulator and driver for xio.
//!
//! Everything that happens follows from one seed: virtual time, a fabric of reliable connections
//! with the semantics of RC queue pairs, byte streams as TCP has them, and the faults of both.
//! Nothing here knows the protocol; the parts that do (`driver`, `world`) stand on top.
#![forbid(unsafe_code)]

mod actor;
mod chaos;
pub mod check;
mod draw;
mod driver;
mod env;
pub mod errno;
pub mod fabric;
pub mod link;
mod memory;
mod node;
mod queue;
mod rng;
mod roads;
pub mod scenario;
mod slab;
mod storage;
mod swarm;
mod trace;
mod world;

pub use actor::{Actor, Closing, Errand, Mix, Post, SharedPost, Wish};
pub use chaos::Chaos;
pub use driver::{Core, Desk, Habits, Hands, Over, SimDriver, User, transport_limits};
pub use env::{Env, Forbidden, Violation};
pub use memory::{Access, Buffer, Denied, Memory, MemoryConfig, Rights};
pub use node::SimNode;
pub use queue::{Event, Queue};
pub use rng::{PPM, Rng};
pub use roads::Dialects;
pub use storage::BoxStorage;
pub use swarm::{FaultLevel, Severity, Site, Swarm};
pub use trace::{Act, MarkTrace, Object, Record, Tracer, TransitionStep, status_code};
pub use world::{NodeConfig, World};
