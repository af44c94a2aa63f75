//! Virtual time: one queue of everything that is still to happen.

use std::collections::BinaryHeap;

/// What can happen in the world. The parts own the meaning of their events.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Something on the RC fabric.
    Fabric(crate::fabric::FabricEvent),
    /// Something on a byte stream.
    Link(crate::link::LinkEvent),
    /// A driver looks at its completions and notices.
    Wake(u32),
    /// An actor of the workload takes its turn.
    Actor(u32),
    /// A fault of the world's plan begins or ends.
    Fault(u32),
}

#[derive(Copy, Clone, Debug)]
struct Entry {
    /// Time in the upper half, sequence number in the lower.
    key: u128,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// The earliest is the greatest, because the heap gives out its greatest.
    #[inline]
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        other.key.cmp(&self.key)
    }
}

/// Events in the order of their time; those of one moment in the order of their making.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Entry>,
    sequence: u64,
    now: u64,
}

impl Queue {
    /// An empty queue at time 0.
    pub fn new() -> Self {
        Self::default()
    }
    /// Nanoseconds since the start of the world.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now
    }
    /// Puts an event at a time; one in the past happens now.
    #[inline]
    pub fn push(&mut self, at: u64, event: Event) {
        let at = at.max(self.now);
        self.sequence += 1;
        let key = u128::from(at) << 64 | u128::from(self.sequence);
        self.heap.push(Entry { key, event });
    }
    /// Puts an event `after` nanoseconds from now.
    #[inline]
    pub fn push_after(&mut self, after: u64, event: Event) {
        self.push(self.now.saturating_add(after), event);
    }
    /// Moves time to the next event and gives it out.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        let entry = self.heap.pop()?;
        self.now = (entry.key >> 64) as u64;
        Some(entry.event)
    }
    /// When the next event is due.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|entry| (entry.key >> 64) as u64)
    }
    /// Events waiting.
    pub fn len(&self) -> usize {
        self.heap.len()
    }
    /// True when nothing more will happen.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_time_then_making() {
        let mut q = Queue::new();
        q.push(20, Event::Wake(2));
        q.push(10, Event::Wake(0));
        q.push(10, Event::Wake(1));
        assert_eq!(q.pop(), Some(Event::Wake(0)));
        q.push(5, Event::Wake(9));
        assert_eq!(q.pop(), Some(Event::Wake(1)));
        assert_eq!(q.now(), 10);
        assert_eq!(q.pop(), Some(Event::Wake(9)), "the past is now");
        assert_eq!(q.pop(), Some(Event::Wake(2)));
        assert_eq!((q.now(), q.pop()), (20, None));
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 48);
        assert!(size_of::<Event>() <= 20);
    }
}
