//! What every part of the world shares: time, chance, memory, and the record of what happened.

use core::fmt;

use crate::memory::Memory;
use crate::queue::{Event, Queue};
use crate::rng::Rng;
use crate::swarm::{Site, Swarm};
use crate::trace::{Act, Object, Record, Tracer};

/// What a correct core never does, and never lets happen.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Forbidden {
    /// A message found no receive posted although credits promised one.
    ReceiverNotReady,
    /// More sends posted than the send queue holds.
    SendQueueFull,
    /// More receives posted than the receive queue holds.
    ReceiveQueueFull,
    /// More completions outstanding than the completion queue holds.
    CompletionQueueOverrun,
    /// A post to a queue pair that was destroyed.
    PostToDestroyed,
    /// A send posted before the queue pair was connected.
    PostTooEarly,
    /// More segments than the device takes.
    TooManySegments,
    /// A message longer than the device takes.
    MessageTooLong,
    /// Inline data longer than the device takes.
    InlineTooLong,
    /// A message longer than the receive that it met.
    ReceiveTooShort,
    /// A slot was posted while it was posted already.
    SlotPostedTwice,
    /// A slot was read or written while a device had it.
    SlotTouchedWhilePosted,
    /// A device or a peer touched a buffer that had been given back to the user.
    BufferTouchedAfterReturn,
    /// A buffer was given back to the user twice.
    ReturnedTwice,
    /// A user freed a buffer that a message held (a mistake of the workload).
    FreedWhileHeld,
    /// A local key or range was wrong.
    LocalKey,
    /// A call on a connection id in a state in which it makes no sense.
    CmCallOutOfPlace,
    /// A frame was handed to a socket that is closed.
    WriteToClosed,
    /// The driver was asked for something it cannot do.
    Unsupported,
}

/// A forbidden event as it happened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Virtual time in nanoseconds.
    pub at: u64,
    /// The endpoint.
    pub endpoint: u32,
    /// What it was about.
    pub object: Object,
    /// What.
    pub what: Forbidden,
    /// A number that helps: a work request, a length.
    pub value: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09} e{} {} {:?} ({:#x})",
            self.at / 1_000_000_000,
            self.at % 1_000_000_000,
            self.endpoint,
            self.object,
            self.what,
            self.value
        )
    }
}

/// What every part of the world shares.
#[derive(Debug)]
pub struct Env {
    /// Everything still to happen, and the time.
    pub queue: Queue,
    /// Chance for the fabric, the links and the drivers.
    pub rng: Rng,
    /// Which faults there are.
    pub swarm: Swarm,
    /// What happened.
    pub trace: Tracer,
    /// Memory, by endpoint.
    pub memory: Vec<Memory>,
    /// Forbidden events seen.
    pub violations: Vec<Violation>,
    /// When each endpoint's driver is to be woken; `u64::MAX` when it is not.
    wakes: Vec<u64>,
}

impl Env {
    /// Nothing happened yet, nothing can go wrong.
    pub fn new(rng: Rng) -> Self {
        Self {
            queue: Queue::new(),
            rng,
            swarm: Swarm::none(),
            trace: Tracer::new(),
            memory: Vec::new(),
            violations: Vec::new(),
            wakes: Vec::new(),
        }
    }
    /// Nanoseconds since the start.
    #[inline]
    pub fn now(&self) -> u64 {
        self.queue.now()
    }
    /// True when a fault happens here and now.
    #[inline]
    pub fn fires(&mut self, site: Site) -> bool {
        self.swarm.fires(&mut self.rng, site)
    }
    /// Takes a line for the trace.
    #[inline]
    pub fn record(&mut self, endpoint: u32, object: Object, act: Act, a: u64, b: u64) {
        self.trace.record(Record {
            at: self.queue.now(),
            endpoint,
            object,
            act,
            a,
            b,
        });
    }
    /// Takes a forbidden event.
    #[cold]
    pub fn violate(&mut self, endpoint: u32, object: Object, what: Forbidden, value: u64) {
        self.record(endpoint, object, Act::Violation, what as u64, value);
        self.violations.push(Violation {
            at: self.queue.now(),
            endpoint,
            object,
            what,
            value,
        });
    }
    /// Takes what an endpoint's memory saw.
    #[inline]
    pub fn collect_memory(&mut self, endpoint: u32) {
        while let Some(what) = self.memory[endpoint as usize].take_forbidden() {
            self.violate(endpoint, Object::World, what, 0);
        }
    }
    /// Has an endpoint's driver look around at a time, unless it does so before anyway.
    #[inline]
    pub fn wake_at(&mut self, endpoint: u32, at: u64) {
        let at = at.max(self.queue.now());
        let number = endpoint as usize;
        if number >= self.wakes.len() {
            self.wakes.resize(number + 1, u64::MAX);
        }
        if at < self.wakes[number] {
            self.wakes[number] = at;
            self.queue.push(at, Event::Wake(endpoint));
        }
    }
    /// Has an endpoint's driver look around `after` nanoseconds from now.
    #[inline]
    pub fn wake_after(&mut self, endpoint: u32, after: u64) {
        self.wake_at(endpoint, self.queue.now().saturating_add(after));
    }
    /// True when a wake event is the one that counts, not one that an earlier one made needless.
    #[inline]
    pub fn take_wake(&mut self, endpoint: u32) -> bool {
        let wake = &mut self.wakes[endpoint as usize];
        let due = *wake <= self.queue.now();
        if due {
            *wake = u64::MAX;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wake_at_a_time() {
        let mut env = Env::new(Rng::new(0));
        env.wake_at(1, 50);
        env.wake_at(1, 70);
        env.wake_at(1, 20);
        let mut taken = Vec::new();
        while let Some(event) = env.queue.pop() {
            assert_eq!(event, Event::Wake(1));
            if env.take_wake(1) {
                taken.push(env.now());
            }
        }
        assert_eq!(taken, [20]);
    }
}
