//! What `serve`, `ping` and the demo in real time share: addresses, buffers, what messages look
//! like, and the two users, a server that answers and a client that asks. Both work over every
//! driver.

pub(crate) mod buffers;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod content;
pub(crate) mod identity;
pub(crate) mod server;
pub(crate) mod state;
pub(crate) mod stop;
pub(crate) mod transport;
pub(crate) mod url;
pub(crate) mod watch;
