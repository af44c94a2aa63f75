//! Role play: the endpoint in the place of one side of a recorded conversation.
//!
//! The recorded peer's frames are fed to it, with our ids and addresses in the place of the
//! recorded ones; a scripted user does what the recorded program was asked to do; and each frame
//! that comes out is compared with the recorded one, field by field. What differs is either listed
//! in `golden/deviations.txt`, with a reason, or an error.

mod args;
mod compare;
mod cut;
mod deviations;
mod host;
mod ledger;
mod link;
mod manager;
mod player;
mod queues;
mod seat;
mod seated;
mod sockets;
mod streams;
mod table;
mod user;

pub use args::{Ask, Mode, Program, Settings, Step, Wish, remote_memory};
pub use compare::{Difference, Rule, compare, rule};
pub use deviations::{Deviation, check, load, parse};
pub use player::{Played, play, play_data_first, side_name};
pub use queues::{Bare, play_all_queues, play_queues};
pub use sockets::{Cuts, play_sockets};
pub use table::table;
