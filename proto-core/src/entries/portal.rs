//! Portals that are still to be tried. They lie where few need room: in the row of the answer that
//! names them, in the place of a message's segments.

use core::net::SocketAddr;

use arrayvec::ArrayVec;

use super::Task;
use super::retry::{get, kind, put};

/// Portals whose addresses are remembered at once.
pub(crate) const PORTALS_TRIED: usize = 4;

/// Where a session may go on.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Portal {
    pub(crate) peer: SocketAddr,
    pub(crate) transport: u8,
    /// Its place in the list, and the bytes of its text.
    pub(crate) index: u16,
    pub(crate) len: u16,
}

/// Those of an answer, in the order in which they are tried.
pub(crate) type Portals = ArrayVec<Portal, PORTALS_TRIED>;

impl Task {
    /// Of an answer with portals: those that are not tried yet.
    pub(crate) fn portals(&self) -> Portals {
        let lists = [&self.out.inline, &self.into.inline];
        let pairs = lists.into_iter().flat_map(|list| list.chunks_exact(2));
        let portal = |pair: &[crate::memory::Segment]| Portal {
            peer: get([pair[0], pair[1]]),
            transport: pair[1].rkey as u8,
            index: pair[1].lkey as u16,
            len: (pair[1].lkey >> 16) as u16,
        };
        pairs.take(self.serial as usize).map(portal).collect()
    }

    pub(crate) fn set_portals(&mut self, portals: &Portals) {
        self.serial = portals.len() as u64;
        let lists = [&mut self.out.inline, &mut self.into.inline];
        let pairs = lists.into_iter().flat_map(|list| list.chunks_exact_mut(2));
        for (pair, portal) in pairs.zip(portals) {
            let [high, mut low] = put(portal.peer, kind(portal.peer));
            low.lkey = u32::from(portal.index) | u32::from(portal.len) << 16;
            low.rkey = portal.transport.into();
            (pair[0], pair[1]) = (high, low);
        }
        debug_assert_eq!(self.portals(), *portals);
    }
}
