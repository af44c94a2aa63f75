//! One receive queue for all queue pairs, and whose queue pair a completion came on.

use std::ptr::NonNull;
use std::sync::Arc;

use xio_proto::NexusId;

use crate::device::Domain;
use crate::error::Error;
use crate::sys;

/// A receive queue that queue pairs share.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    raw: NonNull<sys::ibv_srq>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs allows any thread, and several at a time.
unsafe impl Send for SharedQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedQueue {}

impl SharedQueue {
    /// A queue with room for so many.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(domain: &Arc<Domain>, depth: u32) -> Result<Self, Error> {
        // SAFETY: plain numbers and a pointer, for which 0 is a value.
        let mut attr: sys::ibv_srq_init_attr = unsafe { core::mem::zeroed() };
        attr.attr.max_wr = depth;
        attr.attr.max_sge = 1;
        // SAFETY: the domain is valid, and is held as long as this.
        let raw = unsafe { sys::ibv_create_srq(domain.as_ptr(), &raw mut attr) };
        Ok(Self {
            raw: NonNull::new(raw).ok_or_else(|| Error::call("ibv_create_srq", sys::errno()))?,
            domain: Arc::clone(domain),
        })
    }

    /// The queue itself.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        if self.domain.owner.is_me() {
            // SAFETY: the last use; queue pairs hold this.
            unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
        }
    }
}

/// Transport connections by the numbers of their queue pairs.
///
/// A number's place is its lowest bits, and the next ones when that is taken. Devices give numbers
/// in a row, so that each has its own place; four places for each queue pair keep the way short
/// when they do not.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Number 0 is no queue pair's of this kind: the place is free.
    places: Box<[(u32, NexusId)]>,
    /// The most places that were looked at to find one.
    worst: u32,
}

impl Numbers {
    const FREE: (u32, NexusId) = (0, NexusId::new(u32::MAX, 0));

    /// A table for so many queue pairs.
    pub(crate) fn new(queue_pairs: usize) -> Self {
        let places = (4 * queue_pairs).next_power_of_two();
        Self {
            places: vec![Self::FREE; places].into_boxed_slice(),
            worst: 0,
        }
    }

    /// The most places that were looked at to find a queue pair.
    pub(crate) fn worst(&self) -> u32 {
        self.worst
    }

    fn home(&self, number: u32) -> usize {
        number as usize & (self.places.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    /// A queue pair was made.
    ///
    /// # Panics
    /// When there are more than the table is for.
    pub(crate) fn insert(&mut self, number: u32, nexus: NexusId) {
        let (mut at, mut looks) = (self.home(number), 1);
        while self.places[at].0 != 0 {
            at = self.next(at);
            looks += 1;
            assert!(
                looks as usize <= self.places.len(),
                "more queue pairs than rows"
            );
        }
        self.places[at] = (number, nexus);
        self.worst = self.worst.max(looks);
    }

    /// Whose it is.
    pub(crate) fn find(&self, number: u32) -> Option<NexusId> {
        let mut at = self.home(number);
        loop {
            match self.places[at] {
                (0, _) => return None,
                (found, nexus) if found == number => return Some(nexus),
                _ => at = self.next(at),
            }
        }
    }

    /// The queue pair is no more.
    pub(crate) fn remove(&mut self, number: u32) {
        if number == 0 {
            return;
        }
        let mut hole = self.home(number);
        while self.places[hole].0 != number {
            if self.places[hole].0 == 0 {
                return;
            }
            hole = self.next(hole);
        }
        // Those behind it move up, unless that were before their own place.
        let mask = self.places.len() - 1;
        let mut at = self.next(hole);
        while self.places[at].0 != 0 {
            let home = self.home(self.places[at].0);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.places[hole] = self.places[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.places[hole] = Self::FREE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn nexus(number: u32) -> NexusId {
        NexusId::new(number, number ^ 0x55)
    }

    #[test]
    fn numbers_in_a_row_have_places_of_their_own() {
        let mut numbers = Numbers::new(10_000);
        for number in 17..10_017 {
            numbers.insert(number, nexus(number));
        }
        assert_eq!(numbers.worst(), 1);
        assert_eq!(numbers.find(10_016), Some(nexus(10_016)));
        assert_eq!(numbers.find(10_017), None);
    }

    #[test]
    fn ten_thousand_of_any_numbers_are_found_within_16_places() {
        let (mut numbers, mut random) = (Numbers::new(10_000), 7_u64);
        let mut known = BTreeMap::new();
        // Ten generations, each of which replaces a tenth.
        for round in 0..20_000_u32 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = (random >> 40) as u32;
            if number == 0 || known.contains_key(&number) {
                continue;
            }
            if known.len() == 10_000 {
                let (&old, _) = known
                    .range(number..)
                    .next()
                    .or_else(|| known.iter().next())
                    .unwrap();
                known.remove(&old);
                numbers.remove(old);
                assert_eq!(numbers.find(old), None);
            }
            known.insert(number, round);
            numbers.insert(number, nexus(round));
        }
        for (&number, &round) in &known {
            assert_eq!(numbers.find(number), Some(nexus(round)));
        }
        assert!(numbers.worst() <= 16, "{}", numbers.worst());
    }

    #[test]
    fn what_shares_a_place_is_found_after_each_removal() {
        let all = [1, 9, 17, 2, 3, 8, 16];
        for gone in all {
            let mut numbers = Numbers::new(2);
            assert_eq!(numbers.places.len(), 8);
            for number in all {
                numbers.insert(number, nexus(number));
            }
            numbers.remove(gone);
            for number in all {
                let expected = (number != gone).then(|| nexus(number));
                assert_eq!(numbers.find(number), expected, "{number} without {gone}");
            }
            assert_eq!(numbers.find(4), None);
        }
    }
}
