//! What users may hear, and how every test ends.

use std::collections::BTreeMap;

use xio_proto::{ConnectionId, Control, Event, Reason, SessionId, TaskId};
use xio_tests::rig::{Gate, Rig};
use xio_tests::talk::{Talk, World};

/// What a connection's user heard so far.
#[derive(Default, Debug)]
struct Heard {
    established: u32,
    failed: u32,
    closed: u32,
    lost: u32,
    anew: u32,
}

/// What a message's user heard so far.
#[derive(Default, Debug)]
struct Message {
    outcomes: u32,
    receipts: u32,
    owes_buffers: bool,
}

/// The connection that an event is about.
pub(crate) fn connection_of(event: &Event) -> Option<ConnectionId> {
    match *event {
        Event::Established { connection, .. }
        | Event::ConnectFailed { connection, .. }
        | Event::Portals { connection, .. }
        | Event::Reconnecting { connection, .. }
        | Event::Reconnected { connection, .. }
        | Event::Request { connection, .. }
        | Event::OneWay { connection, .. }
        | Event::PayloadWaiting { connection, .. }
        | Event::Writable { connection, .. }
        | Event::Closed { connection, .. } => Some(connection),
        _ => None,
    }
}

/// The outcome in an event: the message, and whether its buffers are back.
pub(crate) fn outcome_of(event: &Event) -> Option<(TaskId, bool)> {
    match *event {
        Event::Response {
            task,
            buffers_returned,
            ..
        }
        | Event::Sent {
            task,
            buffers_returned,
            ..
        }
        | Event::Failed {
            task,
            buffers_returned,
            ..
        }
        | Event::TimedOut {
            task,
            buffers_returned,
            ..
        }
        | Event::Cancelled {
            task,
            buffers_returned,
            ..
        } => Some((task, buffers_returned)),
        _ => None,
    }
}

/// What the user has to give back of an event.
pub(crate) fn held_of(event: &Event) -> Option<TaskId> {
    match *event {
        Event::Request { task, .. } | Event::OneWay { task, .. } | Event::Response { task, .. } => {
            Some(task)
        }
        Event::Established { message, .. }
        | Event::Reconnected { message, .. }
        | Event::ConnectFailed { message, .. } => message,
        _ => None,
    }
}

/// Events keep to the grammar: established or failed, messages, closed, and nothing behind it; one
/// outcome for each message, and its buffers once.
pub(crate) fn grammar(log: &[Event]) {
    let mut connections: BTreeMap<(usize, u32), Heard> = BTreeMap::new();
    let mut messages: BTreeMap<u64, Message> = BTreeMap::new();
    for event in log {
        if let Some(connection) = connection_of(event) {
            let key = (connection.index(), connection.generation());
            let heard = connections.entry(key).or_default();
            assert_eq!(heard.closed, 0, "{event:?} after the last event: {log:#?}");
            match event {
                Event::Established { .. } => heard.established += 1,
                Event::ConnectFailed { .. } => heard.failed += 1,
                Event::Closed { .. } => heard.closed += 1,
                Event::Reconnecting { .. } => heard.lost += 1,
                Event::Reconnected { .. } => heard.anew += 1,
                _ => {}
            }
            let turns = heard.lost - heard.anew;
            assert!(turns <= 1, "{event:?}: out of turn: {log:#?}");
            let begun = heard.established + heard.failed;
            assert!(begun <= 1, "{event:?}: begun {begun} times: {log:#?}");
        }
        if let Some((task, returned)) = outcome_of(event) {
            let message = messages.entry(task.to_bits()).or_default();
            message.outcomes += 1;
            assert_eq!(message.outcomes, 1, "a second outcome: {event:?}: {log:#?}");
            message.owes_buffers = !returned;
        }
        if let Event::Delivered { task, .. } = event {
            let message = messages.entry(task.to_bits()).or_default();
            message.receipts += 1;
            assert_eq!(message.receipts, 1, "a second receipt: {event:?}: {log:#?}");
        }
        if let Event::BuffersReturned { task, .. } = event
            && let Some(message) = messages.get_mut(&task.to_bits())
        {
            let owed = std::mem::take(&mut message.owes_buffers);
            assert!(owed, "buffers came back twice: {event:?}: {log:#?}");
        }
    }
}

/// How often a connection of a side was closed.
pub(crate) fn closed(rig: &Rig, i: usize) -> usize {
    let is = |event: &&Event| matches!(event, Event::Closed { .. });
    rig.log[i].iter().filter(is).count()
}

/// Ends everything and lets time pass: users heard what they may hear, each connection has had its
/// last event, and every row, slot and deadline is back.
pub(crate) fn wind_up(rig: &mut Rig) {
    for i in 0..2 {
        rig.sides[i].deaf = false;
        rig.let_go(i);
    }
    let established = |event: &Event| match *event {
        Event::Established { connection, .. } => Some(connection),
        _ => None,
    };
    let now = rig.now;
    for i in 0..2 {
        let mut open: Vec<_> = rig.log[i].iter().filter_map(established).collect();
        if i == 0 {
            open.extend(rig.dialed.iter());
        }
        for connection in open {
            // It may be over already.
            let _ = rig.sides[i].endpoint.abort(now, connection);
        }
    }
    let mut given = [0, 0];
    loop {
        World::run(rig);
        for (i, given) in given.iter_mut().enumerate() {
            for at in *given..rig.log[i].len() {
                if let Some(task) = held_of(&rig.log[i][at]) {
                    // Answered or given back already, perhaps.
                    let _ = rig.sides[i].endpoint.release(task);
                }
                if let Event::SessionRequest { session, .. } = rig.log[i][at] {
                    let (now, side) = (rig.now, &mut rig.sides[i]);
                    let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
                    // Decided on already, perhaps.
                    let _ = endpoint.reject(now, session, 1, b"", slots);
                }
            }
            *given = rig.log[i].len();
        }
        World::run(rig);
        if !rig.advance() {
            break;
        }
    }
    for i in 0..2 {
        grammar(&rig.log[i]);
        rig.sides[i].endpoint.check_invariants();
        let begun = rig.log[i].iter().filter_map(connection_of);
        let ends = |event: &Event| match *event {
            Event::Closed { connection, .. } => Some(connection),
            _ => None,
        };
        let ended: Vec<_> = rig.log[i].iter().filter_map(ends).collect();
        for connection in begun.chain(rig.dialed.iter().copied().filter(|_| i == 0)) {
            let is_over = ended.contains(&connection);
            assert!(is_over, "{connection:?} of side {i}: {:#?}", rig.log[i]);
        }
        let free = rig.sides[i].endpoint.free_rows();
        assert_eq!(free, rig.free[i], "rows of side {i}: {:#?}", rig.log[i]);
    }
}

pub(crate) fn is(rig: &Rig, i: usize, what: fn(&Event) -> bool) -> usize {
    rig.log[i].iter().filter(|event| what(event)).count()
}

pub(crate) fn established(rig: &Rig, i: usize) -> usize {
    is(rig, i, |event| matches!(event, Event::Established { .. }))
}

pub(crate) fn failed(rig: &Rig, i: usize) -> usize {
    is(rig, i, |event| matches!(event, Event::ConnectFailed { .. }))
}

/// Why the connections of a side ended, in order.
pub(crate) fn reasons(rig: &Rig, i: usize) -> Vec<Reason> {
    let reason = |event: &Event| match *event {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    };
    rig.log[i].iter().filter_map(reason).collect()
}

/// The session that the server's user is to decide about.
pub(crate) fn asked(rig: &mut Rig) -> SessionId {
    rig.run();
    let event = rig.sides[1].events.pop_front();
    let Some(Event::SessionRequest { session, .. }) = event else {
        panic!("{event:?}")
    };
    session
}

/// Accepts what was asked of the server.
pub(crate) fn serve(rig: &mut Rig, portals: &[&[u8]]) -> Vec<ConnectionId> {
    let mut made = Vec::new();
    while let Some(event) = rig.sides[1].events.pop_front() {
        if let Event::SessionRequest { session, .. } = event {
            let (now, side) = (rig.now, &mut rig.sides[1]);
            let (endpoint, slots) = (&mut side.endpoint, &mut side.slots);
            let accepted = endpoint.accept(now, session, 70, portals, b"", slots);
            // Its client may have gone.
            made.extend(accepted);
        }
    }
    made
}

/// A client that asks and a server that accepts, until nothing happens any more.
pub(crate) fn settle(rig: &mut Rig) -> Vec<ConnectionId> {
    let mut made = Vec::new();
    loop {
        rig.run();
        let more = serve(rig, &[]);
        if more.is_empty() {
            return made;
        }
        made.extend(more);
    }
}

pub(crate) fn connects(control: &Control) -> bool {
    matches!(control, Control::Connect { .. })
}
pub(crate) fn accepts(control: &Control) -> bool {
    matches!(control, Control::Accept { .. })
}
pub(crate) fn resolves(control: &Control) -> bool {
    matches!(control, Control::ResolveAddress { .. })
}
pub(crate) fn routes(control: &Control) -> bool {
    matches!(control, Control::ResolveRoute { .. })
}
pub(crate) fn creates(control: &Control) -> bool {
    matches!(control, Control::CreateQueuePair { .. })
}
pub(crate) fn disconnects(control: &Control) -> bool {
    matches!(control, Control::Disconnect { .. })
}
pub(crate) fn destroys(control: &Control) -> bool {
    matches!(control, Control::Destroy { .. })
}

pub(crate) fn idle() -> Gate {
    Gate {
        idle: true,
        ..Gate::default()
    }
}
pub(crate) fn deaf_to_frames() -> Gate {
    Gate {
        frames: true,
        ..Gate::default()
    }
}
pub(crate) fn no_flushes() -> Gate {
    Gate {
        flushes: true,
        ..Gate::default()
    }
}

/// An open connection.
pub(crate) fn open() -> (Rig, Talk) {
    let mut rig = Rig::new();
    let talk = Talk::open(&mut rig, false);
    (rig, talk)
}

pub(crate) fn abort(rig: &mut Rig, talk: &Talk, i: usize) {
    let connection = talk.connections[i].expect("open");
    let now = rig.now;
    rig.sides[i].endpoint.abort(now, connection).expect("known");
}

/// Whether a side has asked for its queue pair to be destroyed.
pub(crate) fn destroyed(rig: &Rig, i: usize) -> usize {
    rig.steps[i].iter().filter(|step| destroys(step)).count()
}
