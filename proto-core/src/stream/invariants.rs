//! What must hold of the sockets after every step.

use super::Socket;
use super::list::{List, Listed};
use crate::endpoint::Endpoint;
use crate::endpoint::invariants::chain;
use crate::entries::SlotUse;
use crate::ids::NONE;
use crate::state::socket::State;
use crate::storage::{Storage, View};
use crate::trace::Trace;
use crate::wire::SocketKind;

impl Socket {
    /// Whether the driver may be writing into a message's memory.
    pub(crate) fn writes_into(&self, t: u32) -> bool {
        self.state != State::Vacant && self.lent == t
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    pub(crate) fn check_sockets(&self, view: &View<'_>) {
        let live = |row: &&Socket| row.state != State::Vacant;
        let count = view.sockets.iter().filter(live).count();
        assert_eq!(
            count + self.g.sockets.free() as usize,
            view.sockets.len(),
            "sockets"
        );
        let half = |row: &&Socket| matches!(row.state, State::Greeting | State::Waiting);
        let count = view.sockets.iter().filter(half).count();
        assert_eq!(count, self.g.half_open as usize, "half-open sockets");
        for (s, row) in view.sockets.iter().enumerate() {
            let deadline = half(&row);
            assert_eq!(row.timer != NONE, deadline, "deadline of socket {s}");
            if row.state == State::Bound {
                check_bound(view, s as u32, row);
            }
        }
        self.check_lists(view);
    }

    /// Every socket that is in a list is in the one it belongs to.
    fn check_lists(&self, view: &View<'_>) {
        let mut ready = 0;
        let mut placed = 0;
        for state in self.g.transports.iter().filter(|state| state.known) {
            ready += members(view, Listed::Ready, state.streams).count();
            for s in members(view, Listed::Place, state.closing) {
                assert_eq!(
                    view.sockets[s as usize].state,
                    State::Closing,
                    "socket {s} to close"
                );
                placed += 1;
            }
        }
        for row in view.sockets {
            for s in members(view, Listed::Place, row.bucket) {
                assert_eq!(
                    view.sockets[s as usize].state,
                    State::Waiting,
                    "socket {s} to pair"
                );
                placed += 1;
            }
        }
        let free = self.g.rx_slots.free();
        let (kept, share) = (self.kept_slots(), self.slot_share());
        for (list, from, below, kept) in [
            (self.g.first_slot, 0, 1, 0),
            (self.g.more_slots, 1, share, kept),
            (self.g.full_slots, share, u32::MAX, u32::MAX),
        ] {
            for s in members(view, Listed::Place, list) {
                let row = &view.sockets[s as usize];
                assert_eq!(row.state, State::Bound, "socket {s} in line for a slot");
                let held = view.nexuses[row.nexus as usize].held;
                let held = u32::from(held);
                assert!(
                    (from..below).contains(&held),
                    "socket {s} in the wrong line"
                );
                assert!(free <= kept, "socket {s} waits for a slot that is free");
                placed += 1;
            }
        }
        let linked = |which: Listed| {
            let is = |row: &&Socket| row.links[which as usize].linked;
            view.sockets.iter().filter(is).count()
        };
        assert_eq!(linked(Listed::Ready), ready, "sockets to be read again");
        assert_eq!(linked(Listed::Place), placed, "sockets that wait");
    }
}

fn members(view: &View<'_>, which: Listed, list: List) -> impl Iterator<Item = u32> {
    let next = move |s: u32| view.sockets[s as usize].links[which as usize].next;
    chain(list.head, next, view.sockets.len())
}

fn check_bound(view: &View<'_>, s: u32, row: &Socket) {
    let nexus = &view.nexuses[row.nexus as usize];
    let place = usize::from(row.kind == SocketKind::Data);
    assert_eq!(nexus.sockets[place], s, "socket {s} of nexus {}", row.nexus);
    if row.slot != NONE {
        let slot = &view.slots[row.slot as usize];
        let mine = slot.usage == SlotUse::Filling && slot.nexus == row.nexus;
        assert!(mine, "slot {} being filled by socket {s}", row.slot);
    }
    let (mut count, mut inline) = (0, 0);
    let next = |slot: u32| view.slots[slot as usize].next_free;
    for slot in chain(row.frames[0], next, view.slots.len()) {
        let frame = &view.slots[slot as usize];
        let mine = frame.usage == SlotUse::Filled && frame.nexus == row.nexus;
        assert!(mine, "frame {slot} waits on socket {s}");
        count += 1;
        inline += u64::from(frame.inline_left);
    }
    assert_eq!(count, row.frame_count, "frames waiting on socket {s}");
    assert_eq!(inline, row.inline_left, "bytes awaited on socket {s}");
    assert!(
        row.lent == NONE || row.payload_left > 0,
        "socket {s} lends memory for nothing"
    );
}
