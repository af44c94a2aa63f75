//! One alphabet of what can happen to two endpoints, a world in which it happens, and the model that
//! says what users may hear of it.
//!
//! Folder map: `op` (the alphabet, and its bytes), `world` (a step, time, the end), `side` (an
//! endpoint with its memory), `device` (queue pairs and their communication manager), `user`
//! (commands), `hear` (events).
//!
//! The model is that of the simulator, `xio_sim::check`: a `Watch` for each endpoint, which judges what
//! one user hears of one endpoint, and a `Ledger` for both, which judges what the two observe
//! together. Neither knows a table of the core.

mod device;
mod hear;
mod op;
mod side;
mod user;
mod world;

pub use op::{Act, Dial, Kind, Lie, Op, Shape, Wants};
pub use side::CONFIG;
pub use world::World;
