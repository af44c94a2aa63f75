//! How drivers fall asleep, step by step, against completions and wakers that come in between.
//!
//! A poll drains, arms the notification, looks again, and sleeps only if there was nothing; it says
//! that it is about to sleep before it looks whether somebody woke it. In any order, a driver that
//! sleeps and that nothing will wake has nothing to do. This is the plan; that drivers keep to it is
//! tried in them, at each moment of their polls.

use std::collections::BTreeSet;

/// What a poll does, in its order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    /// Takes completions, one at a time, until there is none.
    Drain,
    /// Asks for an event at the next completion.
    Arm,
    /// Looks whether there are completions; begins anew if so.
    Look,
    /// Says that a waker has to ring from here on, and whether it was used before; begins anew
    /// then.
    Announce,
    /// Sleeps until there is an event; takes it and begins anew.
    Sleep,
}

/// What the drivers do.
const ORDER: &[Part] = &[
    Part::Drain,
    Part::Announce,
    Part::Arm,
    Part::Look,
    Part::Sleep,
];

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    /// Which part is next.
    at: usize,
    completions: u8,
    is_armed: bool,
    /// The descriptor is readable.
    event: bool,
    /// The waker was used, and the driver has not seen it.
    woken: bool,
    announced: bool,
    /// What may still come.
    to_come: u8,
    wakes_to_come: u8,
}

fn poll(order: &[Part], state: State) -> Option<State> {
    let next = State {
        at: state.at + 1,
        ..state
    };
    let anew = State {
        at: 0,
        announced: false,
        ..state
    };
    Some(match order[state.at] {
        Part::Drain if state.completions > 0 => State {
            completions: state.completions - 1,
            ..state
        },
        Part::Drain => next,
        Part::Arm => State {
            is_armed: true,
            ..next
        },
        Part::Look if state.completions > 0 => anew,
        Part::Look => next,
        Part::Announce if state.woken => State {
            woken: false,
            ..anew
        },
        Part::Announce => State {
            announced: true,
            ..next
        },
        Part::Sleep if state.event => State {
            event: false,
            woken: false,
            ..anew
        },
        Part::Sleep => return None,
    })
}

fn device(state: State) -> Option<State> {
    (state.to_come > 0).then(|| State {
        to_come: state.to_come - 1,
        completions: state.completions + 1,
        event: state.event || state.is_armed,
        is_armed: false,
        ..state
    })
}

/// A waker rings only for a driver that said that it sleeps: it is cheap otherwise.
fn waker(state: State) -> Option<State> {
    (state.wakes_to_come > 0).then(|| State {
        wakes_to_come: state.wakes_to_come - 1,
        woken: true,
        event: state.event || state.announced,
        ..state
    })
}

/// All states, or one that sleeps over something.
fn search(order: &[Part]) -> Result<usize, State> {
    let first = State {
        at: 0,
        completions: 0,
        is_armed: false,
        event: false,
        woken: false,
        announced: false,
        to_come: 4,
        wakes_to_come: 3,
    };
    let mut known = BTreeSet::from([first]);
    let mut left = vec![first];
    while let Some(state) = left.pop() {
        let next = [poll(order, state), device(state), waker(state)];
        let is_asleep = next[0].is_none();
        if is_asleep && !state.event && (state.completions > 0 || state.woken) {
            return Err(state);
        }
        left.extend(
            next.into_iter()
                .flatten()
                .filter(|state| known.insert(*state)),
        );
    }
    Ok(known.len())
}

#[test]
fn nobody_sleeps_over_a_completion_or_a_wake() {
    match search(ORDER) {
        Ok(states) => println!("sleep: {states} states"),
        Err(state) => panic!("asleep: {state:?}"),
    }
    // Armed without a second look; looked before it was armed; announced too late.
    let bad: [&[Part]; 3] = [
        &[Part::Drain, Part::Announce, Part::Arm, Part::Sleep],
        &[
            Part::Drain,
            Part::Announce,
            Part::Look,
            Part::Arm,
            Part::Sleep,
        ],
        &[Part::Drain, Part::Arm, Part::Look, Part::Sleep],
    ];
    for order in bad {
        let state = search(order).expect_err("it sleeps over something");
        println!("sleep, {order:?}: found: {state:?}");
    }
}
