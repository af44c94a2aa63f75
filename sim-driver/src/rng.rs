//! Seeded random numbers, equal on every platform; or numbers that bytes decide, as long as there are
//! some.

use std::cell::RefCell;
use std::rc::Rc;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// One part in a million, the unit of every chance in the simulator.
pub const PPM: u32 = 1_000_000;

/// A generator whose whole future follows from its seed, and from its script if it has one.
#[derive(Clone, Debug)]
pub struct Rng {
    chance: Xoshiro256PlusPlus,
    script: Option<Rc<RefCell<Script>>>,
}

/// Bytes that decide draws, in the order in which they are made by all parts of a world.
#[derive(Debug)]
struct Script {
    bytes: Box<[u8]>,
    at: usize,
}

impl Script {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }
}

impl Rng {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            chance: Xoshiro256PlusPlus::seed_from_u64(seed),
            script: None,
        }
    }
    /// A generator for a seed whose next draws, and those of all that are forked from it, are
    /// decided by a byte each. When there are no more it goes on as if there had been none.
    pub fn scripted(seed: u64, script: &[u8]) -> Self {
        let (bytes, at) = (script.into(), 0);
        Self {
            script: Some(Rc::new(RefCell::new(Script { bytes, at }))),
            ..Self::new(seed)
        }
    }
    /// A generator of its own for a part of the world, so that what the part draws does not
    /// shift what others draw.
    pub fn fork(&mut self) -> Self {
        let script = self.script.clone();
        let seed = self.next();
        Self {
            script,
            ..Self::new(seed)
        }
    }
    #[cold]
    fn byte(&self) -> Option<u8> {
        self.script.as_ref()?.borrow_mut().byte()
    }
    /// 64 random bits.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        let drawn = self.chance.next_u64();
        if self.script.is_some()
            && let Some(byte) = self.byte()
        {
            // What is drawn is used from its upper end.
            return u64::from(byte) << 56 | drawn >> 8;
        }
        drawn
    }
    /// A number below `bound`, 0 when the bound is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
    /// A number from `low` to `high`, both included.
    #[inline]
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        low + self.below(high - low + 1)
    }
    /// True with a chance of `ppm` in a million; draws nothing when that is 0.
    #[inline]
    pub fn chance(&mut self, ppm: u32) -> bool {
        if self.script.is_some()
            && ppm != 0
            && let Some(byte) = self.byte()
        {
            // However rare it is, one byte is enough for it.
            return (u64::from(byte) * u64::from(PPM)) >> 8 < ppm.into();
        }
        ppm != 0 && self.below(PPM.into()) < u64::from(ppm)
    }
    /// True every other time.
    #[inline]
    pub fn flip(&mut self) -> bool {
        self.next() >> 63 == 1
    }
    /// One of `items`.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
    /// A number from `low` to `high` whose magnitude, not its value, is evenly spread: small
    /// ones come as often as large ones.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        let bits = u64::from(u64::BITS - (high - low).leading_zeros());
        let shift = self.range(0, bits);
        let bound = if shift >= 64 {
            u64::MAX
        } else {
            (1 << shift) - 1
        };
        low + self.below(bound.saturating_add(1)).min(high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_fixed() {
        let mut rng = Rng::new(42);
        let first = [rng.next(), rng.next(), rng.next()];
        assert_eq!(
            first,
            [
                15_021_278_609_987_233_951,
                5_881_210_131_331_364_753,
                18_149_643_915_985_481_100
            ]
        );
    }

    #[test]
    fn bytes_decide_as_long_as_there_are_some() {
        let mut rng = Rng::scripted(42, &[0, 255, 0, 255, 128, 3]);
        assert!(rng.chance(1));
        assert!(!rng.chance(PPM / 2));
        let mut part = rng.fork();
        assert_eq!(part.below(100), 99);
        assert_eq!(rng.below(100), 50);
        assert_eq!(part.next() >> 56, 3);
        // From here on all follows from the seed.
        let mut other = Rng::scripted(42, &[]);
        assert_eq!(other.next(), Rng::new(42).next());
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[rng.range(0, 3) as usize] = true;
            assert!(rng.below(7) < 7);
            let n = rng.spread(5, 300);
            assert!((5..=300).contains(&n));
        }
        assert_eq!(seen, [true; 4]);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.spread(9, 9), 9);
        assert!(!rng.chance(0));
        assert!(rng.chance(PPM));
    }
}
