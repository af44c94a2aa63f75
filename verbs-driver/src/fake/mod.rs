//! Stands in for libibverbs and librdmacm in unit tests: a table of all their functions that the
//! driver uses, over a device that exists in memory only. Each thread has a world of its own.
//!
//! It carries bytes from queue pair to queue pair, READs and WRITEs what a key allows, and brings
//! connections about, so that whole drivers talk with each other. Any call of it can be told to
//! fail. It writes down what is made and unmade, and stops a test that unmakes something which
//! another thing still needs, overruns a queue, or waits where it would wait for ever.

mod cm;
mod roleplay;
mod tests;
mod verbs;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

pub(crate) use cm::*;
pub(crate) use verbs::*;

/// Address of the device.
pub(crate) const IP: [u8; 4] = [10, 99, 0, 1];

/// Something that was made or unmade: what kind of thing, and which.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Made.
    Made(&'static str, usize),
    /// Unmade.
    Unmade(&'static str, usize),
}

/// Which call fails.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Its name.
    pub(crate) call: &'static str,
    /// After so many that work.
    pub(crate) after: usize,
    /// All those after it too.
    pub(crate) for_good: bool,
    /// With this error number.
    pub(crate) code: i32,
}

/// A thing that was made and not unmade.
#[derive(Debug)]
struct Thing {
    kind: &'static str,
    /// What it needs: it must be unmade before these.
    needs: Vec<usize>,
    /// Unmaking it failed, so it stays for ever, with what it needs.
    is_stuck: bool,
}

/// All there is.
#[derive(Default)]
pub(crate) struct World {
    /// What was made and unmade, in order.
    notes: Vec<Note>,
    /// How often each function was called that can fail.
    calls: BTreeMap<&'static str, usize>,
    /// These names, in the order of their first call.
    order: Vec<&'static str>,
    plan: Option<Plan>,
    /// Calls that failed as planned.
    failed: usize,
    things: BTreeMap<usize, Thing>,
    /// Frames that found no receive.
    not_ready: usize,
    cm: Manager,
    device: Hardware,
    forks: Forks,
}

/// Whether the process is prepared for forks.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Forks {
    /// Not yet.
    #[default]
    Not,
    /// For good.
    Prepared,
    /// Not, and memory was registered: it cannot be prepared any more.
    Late,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::default());
}

/// Hears of what a poll does, before it does it: which call, and on which thing of the device.
type Watch = Box<dyn FnMut(&'static str, usize)>;

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
    static LEFT_OUT: Cell<&'static str> = const { Cell::new("") };
}

/// Has `watch` hear of each step from here on. What it does itself is no step.
pub(crate) fn watch(watch: impl FnMut(&'static str, usize) + 'static) {
    WATCH.set(Some(Box::new(watch)));
}

/// Nobody hears any more.
pub(crate) fn unwatch() {
    WATCH.take();
}

/// A step begins.
pub(crate) fn step(call: &'static str, at: usize) {
    if let Some(mut watch) = WATCH.take() {
        watch(call, at);
        WATCH.set(Some(watch));
    }
}

/// A deliberate fault: the driver leaves this part of a poll out ("" for none).
pub(crate) fn leave_out(part: &'static str) {
    LEFT_OUT.set(part);
}

/// Whether this part is left out.
pub(crate) fn leaves_out(part: &str) -> bool {
    LEFT_OUT.get() == part
}

/// Runs with the thread's world.
fn with<R>(run: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(run)
}

impl World {
    /// A call begins; its error number, if it is to fail.
    fn begin(&mut self, call: &'static str) -> Result<(), i32> {
        let count = self.calls.entry(call).or_insert_with(|| {
            self.order.push(call);
            0
        });
        let before = *count;
        *count += 1;
        match self.plan {
            Some(plan) if plan.call == call => {
                let hit = before == plan.after || plan.for_good && before > plan.after;
                self.failed += usize::from(hit);
                if hit { Err(plan.code) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn made(&mut self, kind: &'static str, at: usize, needs: &[usize]) {
        self.notes.push(Note::Made(kind, at));
        let thing = Thing {
            kind,
            needs: needs.to_vec(),
            is_stuck: false,
        };
        for need in needs {
            assert!(
                self.things.contains_key(need),
                "{kind} needs what is not there"
            );
        }
        assert!(
            self.things.insert(at, thing).is_none(),
            "{kind} is there already"
        );
    }

    /// Unmakes a thing, unless that is to fail.
    fn unmake(&mut self, call: &'static str, at: usize) -> Result<(), i32> {
        let begun = self.begin(call);
        let thing = self.things.get(&at);
        let kind = thing
            .unwrap_or_else(|| panic!("{call} of what is not there"))
            .kind;
        let users = self
            .things
            .values()
            .filter(|thing| thing.needs.contains(&at));
        let mut is_needed = false;
        for user in users {
            assert!(user.is_stuck, "{call} while a {} still needs it", user.kind);
            is_needed = true;
        }
        let done = if is_needed { Err(libc::EBUSY) } else { begun };
        if done.is_err() {
            self.things.get_mut(&at).expect("just seen").is_stuck = true;
        } else {
            self.things.remove(&at);
            self.notes.push(Note::Unmade(kind, at));
        }
        done
    }
}

/// What functions return that set `errno`.
fn status(done: Result<(), i32>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}

/// What functions return that return it.
fn code(done: Result<(), i32>) -> i32 {
    done.err().unwrap_or(0)
}

fn set_errno(code: i32) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = code };
}

/// A descriptor that is readable as long as there is something.
#[derive(Debug)]
struct Light(i32);

impl Light {
    fn new() -> Self {
        // SAFETY: numbers only.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(fd >= 0, "no descriptors left");
        Self(fd)
    }

    /// On or off.
    fn set(&self, on: bool) {
        let mut count = 1_u64;
        let place = (&raw mut count).cast();
        let mut poll = libc::pollfd {
            fd: self.0,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor is there; it does not wait.
        let is_on = unsafe { libc::poll(&raw mut poll, 1, 0) } == 1;
        // SAFETY: eight bytes are there to read and write.
        unsafe {
            if on && !is_on {
                libc::write(self.0, place, 8);
            } else if !on && is_on {
                libc::read(self.0, place, 8);
            }
        }
    }

    /// Nothing is there: what is asked for does not come, and is not waited for.
    fn nothing(&self, call: &str) -> i32 {
        // SAFETY: numbers only.
        let flags = unsafe { libc::fcntl(self.0, libc::F_GETFL) };
        assert!(flags & libc::O_NONBLOCK != 0, "{call} waits for ever");
        set_errno(libc::EAGAIN);
        -1
    }
}

impl Drop for Light {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody else's.
        unsafe { libc::close(self.0) };
    }
}
