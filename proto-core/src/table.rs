//! Free lists and intrusive lists over the tables.

use crate::entries::{Connection, Extent, Listener, Nexus, Region, Session, Slot, Task, WorkEntry};
use crate::ids::NONE;

/// A row that can be taken and given back.
pub(crate) trait Row {
    fn next_free(&mut self) -> &mut u32;
    fn generation(&mut self) -> &mut u32;
}

macro_rules! row {
    ($($t:ty),*) => {$(
        impl Row for $t {
            #[inline(always)]
            fn next_free(&mut self) -> &mut u32 { &mut self.next_free }
            #[inline(always)]
            fn generation(&mut self) -> &mut u32 { &mut self.generation }
        }
    )*};
}
row!(
    Listener,
    Nexus,
    Session,
    Connection,
    Task,
    Slot,
    WorkEntry,
    Extent,
    Region,
    crate::stream::Socket
);

/// Free rows of a part of a table: those given back, then those never used.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct Pool {
    head: u32,
    fresh: u32,
    end: u32,
    free: u32,
}

impl Pool {
    pub(crate) const fn new(first: u32, count: u32) -> Self {
        Self {
            head: NONE,
            fresh: first,
            end: first + count,
            free: count,
        }
    }
    #[inline]
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }
    /// The row behind its last one.
    pub(crate) const fn end(&self) -> u32 {
        self.end
    }
    /// Takes a row; its content is what the last user left.
    #[inline(always)]
    pub(crate) fn take<R: Row>(&mut self, rows: &mut [R]) -> Option<u32> {
        self.take_row(rows).map(|(index, _)| index)
    }
    /// [`take`](Self::take), with the row.
    #[inline(always)]
    pub(crate) fn take_row<'a, R: Row>(&mut self, rows: &'a mut [R]) -> Option<(u32, &'a mut R)> {
        let index = self.head;
        // NONE is beyond every table: the test for the end of the list is that of the bounds.
        if (index as usize) < rows.len() {
            let row = &mut rows[index as usize];
            self.head = *row.next_free();
            self.free -= 1;
            return Some((index, row));
        }
        if self.fresh < self.end {
            let index = self.fresh;
            self.fresh += 1;
            self.free -= 1;
            return Some((index, &mut rows[index as usize]));
        }
        None
    }
    /// Ends the life of a row's id as [`give`](Self::give) does, and counts the row as free; it is on a
    /// list of its owner's instead of this one.
    pub(crate) fn count_given<R: Row>(&mut self, row: &mut R) {
        *row.generation() = row.generation().wrapping_add(1);
        self.free += 1;
        debug_assert!(self.free <= self.end);
    }
    /// Such a row is taken.
    pub(crate) fn count_taken(&mut self) {
        self.free -= 1;
    }
    /// The row that would be taken now.
    #[inline(always)]
    pub(crate) fn next<R: Row>(&self, rows: &[R]) -> Option<u32> {
        if (self.head as usize) < rows.len() {
            return Some(self.head);
        }
        (self.fresh < self.end).then_some(self.fresh)
    }
    /// Free rows in the order in which they are taken, up to those that were never used.
    #[cfg(feature = "check")]
    pub(crate) fn given<'a, R>(
        &self,
        rows: &'a [R],
        next: impl Fn(&R) -> u32,
    ) -> impl Iterator<Item = (u32, &'a R)> {
        let mut at = self.head;
        core::iter::from_fn(move || {
            let row = rows.get(at as usize)?;
            let index = core::mem::replace(&mut at, next(row));
            Some((index, row))
        })
    }
    /// Gives a row back and ends the life of its id.
    #[inline(always)]
    pub(crate) fn give<R: Row>(&mut self, rows: &mut [R], index: u32) {
        let row = &mut rows[index as usize];
        *row.generation() = row.generation().wrapping_add(1);
        *row.next_free() = self.head;
        self.head = index;
        self.free += 1;
        debug_assert!(self.free <= self.end);
    }
}

/// Head and tail of a singly linked queue whose links lie in the rows.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct Queue {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// Appends `$index` to the queue `$head`/`$tail` over `$rows` with link field `$link`.
macro_rules! queue_push {
    ($rows:expr, $head:expr, $tail:expr, $link:ident, $index:expr) => {{
        let index = $index;
        $rows[index as usize].$link = crate::ids::NONE;
        if $head == crate::ids::NONE {
            $head = index;
        } else {
            $rows[$tail as usize].$link = index;
        }
        $tail = index;
    }};
}
pub(crate) use queue_push;

/// Takes the first row off a queue that is not empty. The tail of an empty queue means nothing:
/// who takes a row by hand need not reset it.
macro_rules! queue_pop {
    ($rows:expr, $head:expr, $tail:expr, $link:ident) => {{
        let index = $head;
        $head = $rows[index as usize].$link;
        if $head == crate::ids::NONE {
            $tail = crate::ids::NONE;
        }
        index
    }};
}
pub(crate) use queue_pop;

/// Takes a row that is in a queue out of it, wherever it stands: a walk.
macro_rules! queue_remove {
    ($rows:expr, $head:expr, $tail:expr, $link:ident, $index:expr) => {{
        let (index, mut before, mut at) = ($index, crate::ids::NONE, $head);
        while at != index {
            before = at;
            at = $rows[at as usize].$link;
        }
        let next = $rows[index as usize].$link;
        if before == crate::ids::NONE {
            $head = next;
        } else {
            $rows[before as usize].$link = next;
        }
        if next == crate::ids::NONE {
            $tail = before;
        }
    }};
}
pub(crate) use queue_remove;
