//! Every order of what can happen, each state once.

use std::cell::Cell;
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::Hasher as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::world::{Case, Step, World};

/// A state's name: what is written to it, digested.
#[derive(Default)]
pub(crate) struct Key(DefaultHasher);

impl fmt::Write for Key {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
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

/// Takes a state among those to be gone on from, if it is new.
fn enter(
    world: World,
    places: &mut Vec<Place>,
    known: &mut HashSet<u64>,
    seen: &mut Seen,
) -> Result<bool, String> {
    let mut key = Key::default();
    world.write(&mut key);
    if !known.insert(key.0.finish()) {
        return Ok(false);
    }
    seen.states += 1;
    let left = world.steps();
    if left.is_empty() {
        seen.ends += 1;
        let end = world.clone();
        caught(|| end.check_end())?;
    }
    places.push(Place { world, left });
    Ok(true)
}
