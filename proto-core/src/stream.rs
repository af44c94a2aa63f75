//! The stream layer: bytes of sockets to frames, pairing of sockets to transport connections.

use crate::ids::NONE;

/// A socket that the stream layer knows.
#[derive(Clone, Debug)]
pub struct Socket {
    pub(crate) generation: u32,
    pub(crate) next_free: u32,
    pub(crate) timer: u32,
}

impl Socket {
    /// A free row.
    pub const VACANT: Self = Self {
        generation: 0,
        next_free: NONE,
        timer: NONE,
    };
}

use crate::endpoint::Endpoint;
use crate::ids::TransportId;
use crate::output::Control;
use crate::storage::Storage;
use crate::trace::Trace;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    pub(crate) fn poll_sockets(&mut self, _transport: TransportId) -> Option<Control> {
        None
    }
    pub(crate) fn close_sockets(&mut self, _n: u32) {}
    pub(crate) fn stream_resume(&mut self, _n: u32) {}
    pub(crate) fn discard_payload(&mut self, _t: u32) {}
    pub(crate) fn socket_deadline(&mut self, _s: u32) {}
}
