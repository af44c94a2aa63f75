//! One alphabet of what can happen to two endpoints, a world in which it happens, and the model that
//! says what users may hear of it.
//!
//! Folder map: `op` (the alphabet, and its bytes), `world` (both users and the model), `user`
//! (commands), `hear` (events), `net` (what users have to do with); and what endpoints live in:
//! `devices` (a step, time, troubles, the end), `device` (queue pairs and their communication
//! manager), `side` (an endpoint with its memory); `simulated` (a world of the simulator).
//!
//! The model is that of the simulator, `xio_sim::check`: a `Watch` for each endpoint, which judges what
//! one user hears of one endpoint, and a `Ledger` for both, which judges what the two observe
//! together. Neither knows a table of the core.

mod device;
mod devices;
mod hear;
mod net;
mod op;
mod side;
mod simulated;
mod user;
mod world;

pub use op::{Act, Dial, Kind, Lie, Op, Shape, Wants};
pub use side::CONFIG;
pub use simulated::{Road, Simulated};
pub use world::World;
