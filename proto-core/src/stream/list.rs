//! Doubly linked lists over the sockets, so that one can leave wherever it stands.

use super::Socket;
use crate::endpoint::{Endpoint, bucket};
use crate::ids::NONE;
use crate::storage::Storage;
use crate::trace::Trace;

/// Lists that a socket can be in at the same time.
pub(super) const LISTS: usize = 2;

/// The two kinds of lists: a socket is in one of each kind at most.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Listed {
    /// Of those to be read again.
    Ready = 0,
    /// By what it waits for: its partner, a slot, or to be closed.
    Place = 1,
}

/// A socket's place in a list.
#[derive(Copy, Clone, Debug)]
pub(super) struct Link {
    pub(super) linked: bool,
    pub(super) next: u32,
    prev: u32,
}

impl Link {
    pub(super) const OUT: Self = Self {
        linked: false,
        next: NONE,
        prev: NONE,
    };
}

/// Head and tail of a list of sockets.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct List {
    pub(crate) head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(super) fn push(&mut self, rows: &mut [Socket], which: Listed, s: u32) {
        let which = which as usize;
        let link = &mut rows[s as usize].links[which];
        debug_assert!(!link.linked, "socket {s} is in a list already");
        *link = Link {
            linked: true,
            next: NONE,
            prev: self.tail,
        };
        if self.tail == NONE {
            self.head = s;
        } else {
            rows[self.tail as usize].links[which].next = s;
        }
        self.tail = s;
    }

    pub(super) fn remove(&mut self, rows: &mut [Socket], which: Listed, s: u32) {
        let which = which as usize;
        let link = core::mem::replace(&mut rows[s as usize].links[which], Link::OUT);
        debug_assert!(link.linked, "socket {s} is in no list");
        if link.prev == NONE {
            self.head = link.next;
        } else {
            rows[link.prev as usize].links[which].next = link.next;
        }
        if link.next == NONE {
            self.tail = link.prev;
        } else {
            rows[link.next as usize].links[which].prev = link.prev;
        }
    }

    pub(super) fn pop(&mut self, rows: &mut [Socket], which: Listed) -> Option<u32> {
        let s = self.head;
        if s == NONE {
            return None;
        }
        self.remove(rows, which, s);
        Some(s)
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes a socket out of a list if it is in one of that kind.
    pub(super) fn unlist(&mut self, s: u32, which: Listed) {
        use crate::state::socket::State;

        let rows = self.s.tables().sockets;
        let row = &rows[s as usize];
        if !row.links[which as usize].linked {
            return;
        }
        let transport = self.g.transport(row.transport);
        let state = row.state;
        match (which, state) {
            (Listed::Ready, _) => transport.streams.remove(rows, which, s),
            (Listed::Place, State::Waiting) => {
                let home = bucket(&row.peer, rows.len());
                let mut list = rows[home].bucket;
                list.remove(rows, which, s);
                rows[home].bucket = list;
            }
            (Listed::Place, State::Closing) => transport.closing.remove(rows, which, s),
            (Listed::Place, _) => self.leave_slot_line(s),
        }
    }
}
