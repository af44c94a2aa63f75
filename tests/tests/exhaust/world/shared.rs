//! What worlds have in common until one of them changes it.

use std::cell::OnceCell;
use std::hash::Hasher as _;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use xio_proto::{Endpoint, Names, SlotId, Slots};
use xio_tests::tables::BoxedTables;

use super::super::search::Key;

/// Bytes of a slot.
pub(super) const SLOT: usize = 4096;

type Inner = Endpoint<BoxedTables>;

/// An endpoint that is copied when it changes, and not before.
#[derive(Clone)]
pub(super) struct Core {
    endpoint: Rc<Inner>,
    /// The digest of its state, and the names of what it has.
    name: OnceCell<Rc<(u64, Names)>>,
}

impl Core {
    pub(super) fn new(endpoint: Inner) -> Self {
        Self {
            endpoint: Rc::new(endpoint),
            name: OnceCell::new(),
        }
    }

    /// Worked out once for each state of it.
    pub(super) fn name(&self) -> &(u64, Names) {
        self.name.get_or_init(|| {
            let mut key = Key::default();
            let names = self.endpoint.hash_state(&mut key);
            Rc::new((key.finish(), names))
        })
    }
}

impl Deref for Core {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.endpoint
    }
}

impl DerefMut for Core {
    fn deref_mut(&mut self) -> &mut Inner {
        self.name.take();
        Rc::make_mut(&mut self.endpoint)
    }
}

/// Slots, each of which is copied when it is written.
#[derive(Clone)]
pub(super) struct Memory(Rc<Vec<Rc<[u8; SLOT]>>>);

impl Memory {
    pub(super) fn new(slots: u32) -> Self {
        let empty = Rc::new([0; SLOT]);
        Self(Rc::new(vec![empty; slots as usize]))
    }
}

impl Slots for Memory {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize][..]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut Rc::make_mut(&mut Rc::make_mut(&mut self.0)[slot.0 as usize])[..]
    }
}
