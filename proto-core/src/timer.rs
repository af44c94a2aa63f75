//! One binary heap for all deadlines: arm and disarm in O(log n), no scan.

use crate::entries::TimerEntry;
use crate::ids::NONE;
use crate::storage::Tables;

/// Who a deadline belongs to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    Nexus(u32),
    Connection(u32),
    Keepalive(u32),
    Session(u32),
    Task(u32),
    Socket(u32),
}

impl Timer {
    const INDEX_BITS: u32 = 28;
    const INDEX_MASK: u32 = (1 << Self::INDEX_BITS) - 1;

    const fn code(self) -> u32 {
        let (kind, index) = match self {
            Self::Nexus(i) => (0, i),
            Self::Connection(i) => (1, i),
            Self::Keepalive(i) => (2, i),
            Self::Session(i) => (3, i),
            Self::Task(i) => (4, i),
            Self::Socket(i) => (5, i),
        };
        kind << Self::INDEX_BITS | index
    }

    pub(crate) fn from_code(code: u32) -> Self {
        let index = code & Self::INDEX_MASK;
        match code >> Self::INDEX_BITS {
            0 => Self::Nexus(index),
            1 => Self::Connection(index),
            2 => Self::Keepalive(index),
            3 => Self::Session(index),
            4 => Self::Task(index),
            _ => Self::Socket(index),
        }
    }

    /// The owner's field that remembers its place in the heap.
    fn place<'t>(self, t: &'t mut Tables<'_>) -> &'t mut u32 {
        match self {
            Self::Nexus(i) => &mut t.nexuses[i as usize].timer,
            Self::Connection(i) => &mut t.connections[i as usize].timer,
            Self::Keepalive(i) => &mut t.connections[i as usize].keepalive_timer,
            Self::Session(i) => &mut t.sessions[i as usize].timer,
            Self::Task(i) => &mut t.tasks[i as usize].timer,
            Self::Socket(i) => &mut t.sockets[i as usize].timer,
        }
    }
}

fn put(t: &mut Tables<'_>, place: u32, entry: TimerEntry) {
    t.timers[place as usize] = entry;
    *Timer::from_code(entry.timer).place(t) = place;
}

fn sift(t: &mut Tables<'_>, mut place: u32, entry: TimerEntry, len: u32) {
    while place > 0 {
        let parent = (place - 1) / 2;
        let above = t.timers[parent as usize];
        if above.at <= entry.at {
            break;
        }
        put(t, place, above);
        place = parent;
    }
    loop {
        let mut child = 2 * place + 1;
        if child >= len {
            break;
        }
        if child + 1 < len && t.timers[child as usize + 1].at < t.timers[child as usize].at {
            child += 1;
        }
        let below = t.timers[child as usize];
        if entry.at <= below.at {
            break;
        }
        put(t, place, below);
        place = child;
    }
    put(t, place, entry);
}

/// Sets a deadline, or moves the one that is set.
pub(crate) fn arm(t: &mut Tables<'_>, len: &mut u32, timer: Timer, at: u64) {
    let mut place = *timer.place(t);
    if place == NONE {
        place = *len;
        *len += 1;
    }
    sift(
        t,
        place,
        TimerEntry {
            at,
            timer: timer.code(),
        },
        *len,
    );
}

/// When a deadline is, if it is set.
pub(crate) fn armed_at(t: &mut Tables<'_>, timer: Timer) -> Option<u64> {
    let place = *timer.place(t);
    (place != NONE).then(|| t.timers[place as usize].at)
}

/// Takes a deadline away, if it is set.
pub(crate) fn disarm(t: &mut Tables<'_>, len: &mut u32, timer: Timer) {
    let place = *timer.place(t);
    if place == NONE {
        return;
    }
    *timer.place(t) = NONE;
    *len -= 1;
    if place < *len {
        let last = t.timers[*len as usize];
        sift(t, place, last, *len);
    }
}

/// Takes the earliest deadline if it is due.
pub(crate) fn pop_due(t: &mut Tables<'_>, len: &mut u32, now: u64) -> Option<Timer> {
    if *len == 0 || t.timers[0].at > now {
        return None;
    }
    let timer = Timer::from_code(t.timers[0].timer);
    disarm(t, len, timer);
    Some(timer)
}
