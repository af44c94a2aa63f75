//! Every order of what can happen, each state once.
//!
//! No order is left out. What keeps searches small is that states which differ only in names (which
//! of the free rows was taken, how often it was used before) are one: see `Endpoint::hash_state`.
//! [`same_name_same_future`] tests that this is right.

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::world::{Case, Step, World};

/// A state's name: what is fed to it, digested.
#[derive(Default)]
pub(crate) struct Key(u64);

impl Key {
    #[inline]
    fn mix(&mut self, word: u64) {
        // The two halves of a product by an odd number, as wyhash does.
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product >> 64) as u64 ^ product as u64 ^ self.0.rotate_left(23);
    }
}

impl Hasher for Key {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }
    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }
    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.mix(value.into());
    }
    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }
    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.mix(0x2545_f491_4f6c_dd1d);
        last.0
    }
}

/// What a search saw.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    pub(crate) ends: usize,
    pub(crate) deepest: usize,
    /// There were more states than were asked for.
    pub(crate) is_cut: bool,
}

/// What must not be, and the shortest way there that was walked.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) path: Vec<Step>,
    pub(crate) what: String,
    pub(crate) seen: Seen,
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs it; a panic in it is what it says.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                usual(panic);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    result.map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
    })
}

/// One state on the way, and what is to be tried in it.
struct Place {
    world: World,
    left: Vec<Step>,
}

/// Walks all orders, depth first, up to so many states.
///
/// # Errors
/// The first thing that must not be.
pub(crate) fn search(case: &Case, most: usize) -> Result<Seen, Found> {
    let mut seen = Seen::default();
    let mut known = HashSet::new();
    let mut path = Vec::new();
    let found = |path: &[Step], what, seen| Found {
        path: path.to_vec(),
        what,
        seen,
    };
    let first = caught(|| World::new(case)).map_err(|what| found(&[], what, seen))?;
    let mut places = Vec::new();
    enter(first, &mut places, &mut known, &mut seen).map_err(|what| found(&path, what, seen))?;
    while let Some(place) = places.last_mut() {
        let Some(step) = place.left.pop() else {
            places.pop();
            path.pop();
            continue;
        };
        path.push(step);
        seen.steps += 1;
        let mut world = place.world.clone();
        let next = caught(|| {
            world.step(step);
            world
        });
        let next = next.map_err(|what| found(&path, what, seen))?;
        let is_new = enter(next, &mut places, &mut known, &mut seen)
            .map_err(|what| found(&path, what, seen))?;
        seen.deepest = seen.deepest.max(path.len());
        if !is_new {
            path.pop();
        }
        if seen.states >= most {
            seen.is_cut = true;
            break;
        }
    }
    Ok(seen)
}

fn name(world: &World) -> u64 {
    let mut key = Key::default();
    world.hash(&mut key);
    key.finish()
}

/// Reaches every state in every way, and compares what can come next, and under which names, with
/// what it was the first time: then states of one name behave alike from there on, and a search may
/// go on from one of them only. How often a state was reached again.
///
/// # Panics
/// Two states have the same name, and go on differently.
pub(crate) fn same_name_same_future(case: &Case) -> usize {
    let mut known: HashMap<u64, Vec<(Step, u64)>> = HashMap::new();
    let mut left = vec![World::new(case)];
    let mut again = 0;
    while let Some(world) = left.pop() {
        let after = |step| {
            let mut next = world.clone();
            next.step(step);
            (step, next)
        };
        let next: Vec<_> = world.steps().into_iter().map(after).collect();
        let names = next.iter().map(|(step, world)| (*step, name(world)));
        let names: Vec<_> = names.collect();
        match known.entry(name(&world)) {
            Entry::Occupied(first) => {
                assert_eq!(*first.get(), names, "one name for two states");
                again += 1;
            }
            Entry::Vacant(place) => {
                place.insert(names);
                left.extend(next.into_iter().map(|(_, world)| world));
            }
        }
    }
    again
}

/// Takes a state among those to be gone on from, if it is new.
fn enter(
    world: World,
    places: &mut Vec<Place>,
    known: &mut HashSet<u64>,
    seen: &mut Seen,
) -> Result<bool, String> {
    if !known.insert(name(&world)) {
        return Ok(false);
    }
    seen.states += 1;
    // The last is tried first: users hurry, and the rest catches up.
    let mut left = world.steps();
    left.reverse();
    left.sort_by_key(|step| u8::from(world.lazy.map(Step::Complete) != Some(*step)));
    if left.is_empty() {
        seen.ends += 1;
        let end = world.clone();
        caught(|| end.check_end())?;
    }
    places.push(Place { world, left });
    Ok(true)
}
