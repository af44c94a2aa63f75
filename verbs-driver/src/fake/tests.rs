//! Every call that can fail does, in turn; and what a device reports on its own.
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant as Clock};

use xio_proto::{
    Config, ConnectOptions, Driver, Event, ListenOptions, Reason, Refusal, SessionOpen,
};

use super::{IP, Note, Plan, World, verbs, with};
use crate::options::{DeviceChoice, Options, Spin};
use crate::sys;
use crate::{Error, VerbsDriver};

use talk::{DIRECT, SIZES, Talk};

mod asleep;
mod talk;

/// A new world, in which this call fails.
fn world(plan: Option<Plan>) {
    verbs::limit_memory(u64::MAX);
    with(|world| {
        *world = World::default();
        world.plan = plan;
    });
}

fn options(device: DeviceChoice, share_receives: bool) -> Options {
    Options {
        device,
        share_receives,
        spin: Spin::Never,
        rnr_retry_max: 0,
        huge_pages: false,
        ..Options::default()
    }
}

fn start(number: u8, options: &Options) -> Result<VerbsDriver, Error> {
    start_with(number, options, Duration::from_millis(30), 4)
}

/// A driver whose drains may take so long, with room for so many peers.
fn start_with(
    number: u8,
    options: &Options,
    drain: Duration,
    peers: usize,
) -> Result<VerbsDriver, Error> {
    let mut config = Config::new(number, 80, 80);
    config.connect_timeout = Duration::from_millis(300);
    config.setup_timeout = Duration::from_millis(300);
    config.fin_timeout = Duration::from_millis(300);
    config.drain_timeout = drain;
    config.linger = Duration::from_millis(10);
    config.provide_timeout = Duration::from_millis(300);
    let counts = VerbsDriver::counts(&config, peers);
    VerbsDriver::new(config, &counts, options)
}

/// Whether all was unmade that was made, the last first.
fn is_reversed() -> Result<(), String> {
    let mut stack = Vec::new();
    for note in with(|world| world.notes.clone()) {
        match note {
            Note::Made(kind, at) => stack.push((kind, at)),
            Note::Unmade(kind, at) => match stack.pop() {
                Some(last) if last == (kind, at) => {}
                other => return Err(format!("{kind} is unmade, and {other:?} is there still")),
            },
        }
    }
    match stack.is_empty() {
        true => Ok(()),
        false => Err(format!("left: {stack:?}")),
    }
}

/// What is there still.
fn left() -> Vec<&'static str> {
    with(|world| world.things.values().map(|thing| thing.kind).collect())
}

fn choices() -> Vec<Options> {
    let devices = [
        DeviceChoice::Address(IP.into()),
        DeviceChoice::Name("fake0".into()),
        DeviceChoice::First,
    ];
    let both = |device: DeviceChoice| [false, true].map(|shares| options(device.clone(), shares));
    devices.into_iter().flat_map(both).collect()
}

/// The calls of a start that can fail, in their order.
fn calls_of_a_start(options: &Options) -> Vec<&'static str> {
    world(None);
    drop(start(0, options).unwrap());
    is_reversed().unwrap();
    let unmaking = |call: &&str| {
        ["destroy", "dealloc", "dereg", "free"]
            .iter()
            .any(|word| call.contains(word))
    };
    let order = with(|world| world.order.clone());
    order.into_iter().filter(|call| !unmaking(call)).collect()
}

#[test]
fn start_that_fails_names_its_step_and_undoes_those_before_in_reverse() {
    let mut seen = BTreeSet::new();
    for options in choices() {
        for call in calls_of_a_start(&options) {
            world(Some(Plan {
                call,
                after: 0,
                for_good: true,
                code: libc::EIO,
            }));
            let error = start(0, &options).map(drop).unwrap_err();
            assert_eq!(error, Error::call(call, libc::EIO), "{options:?}");
            assert!(with(|world| world.failed) > 0);
            is_reversed().unwrap_or_else(|what| panic!("{call} failed: {what}"));
            seen.insert(call);
        }
    }
    let all = [
        "ibv_alloc_pd",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_create_srq",
        "ibv_fork_init",
        "ibv_query_device",
        "ibv_query_port",
        "ibv_reg_mr",
        "rdma_bind_addr",
        "rdma_create_event_channel",
        "rdma_create_id",
        "rdma_get_devices",
    ];
    assert_eq!(seen, BTreeSet::from(all));
}

#[test]
fn start_that_cannot_be_undone_does_not_panic() {
    for options in choices() {
        world(None);
        drop(start(0, &options).unwrap());
        for call in with(|world| world.order.clone()) {
            world(Some(Plan {
                call,
                after: 0,
                for_good: false,
                code: libc::EBUSY,
            }));
            drop(start(0, &options));
        }
    }
}

/// Runs in a child of this process, which then ends; whether it did so well.
fn in_child(run: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has this thread alone, which takes no lock that others may have had: those of
    // the allocator are in order after a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        // SAFETY: nothing of the parent's is flushed or unmade.
        unsafe { libc::_exit(i32::from(!is_well.unwrap_or(false))) };
    }
    let mut status = 0;
    // SAFETY: the status is written before it returns.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status == 0
}

#[test]
fn a_child_of_a_fork_undoes_nothing_of_its_parent_s() {
    for share_receives in [false, true] {
        world(None);
        let mut talk = Talk::new(share_receives).unwrap();
        let before = with(|world| world.order.clone());
        assert!(before.contains(&"ibv_fork_init"));
        // Until both have queue pairs.
        let pairs = |notes: &[Note]| {
            let made = |note: &&Note| matches!(note, Note::Made("queue pair", _));
            notes.iter().filter(made).count()
        };
        while pairs(&with(|world| world.notes.clone())) < 2 {
            talk.poll(true);
            talk.poll(false);
        }
        let made = with(|world| world.notes.clone());
        assert!(in_child(|| {
            drop((talk.server.take(), talk.client.take()));
            with(|world| world.notes.clone()) == made
        }));
        // The parent goes on, and undoes all.
        talk.run();
        assert_eq!(talk.reason, Some(Reason::Closed), "{talk:?}");
        assert_eq!(talk.errors, []);
        talk.check("a fork");
    }
}

#[test]
fn a_child_of_a_fork_may_have_a_driver_of_its_own() {
    world(None);
    let options = options(DeviceChoice::First, false);
    let parent_s = start(0, &options).unwrap();
    let made = with(|world| world.notes.len());
    assert!(in_child(|| {
        drop(start(1, &options).unwrap());
        let notes = with(|world| world.notes.split_off(made));
        let unmade = notes.iter().filter(|note| matches!(note, Note::Unmade(..)));
        unmade.count() * 2 == notes.len()
    }));
    drop(parent_s);
    is_reversed().unwrap();
}

#[test]
fn memory_that_was_registered_before_leaves_no_fork_safe_driver() {
    let sorts = |first: bool, second: bool| {
        world(None);
        let options = |fork_safe| Options {
            fork_safe,
            ..options(DeviceChoice::First, false)
        };
        let first = start(0, &options(first)).unwrap();
        let second = start(1, &options(second)).map(drop);
        drop(first);
        is_reversed().unwrap();
        second
    };
    assert_eq!(sorts(false, true), Err(Error::LateForFork));
    assert_eq!(sorts(false, false), Ok(()));
    // Who is the first prepares it for all.
    assert_eq!(sorts(true, true), Ok(()));
    assert_eq!(sorts(true, false), Ok(()));
}

#[test]
fn missing_devices_and_little_memory_are_told_apart() {
    let by_address = |ip: [u8; 4]| options(DeviceChoice::Address(ip.into()), false);
    world(None);
    let error = start(0, &by_address([10, 99, 0, 77]))
        .map(drop)
        .unwrap_err();
    assert_eq!(error, Error::NotFound("address 10.99.0.77".into()));
    // One that is the machine's, but no device's.
    let error = start(0, &by_address(super::OTHER)).map(drop).unwrap_err();
    assert_eq!(error, Error::NotFound("address 10.99.0.2".into()));
    let error = start(0, &options(DeviceChoice::Name("mlx5_0".into()), false)).map(drop);
    assert_eq!(error, Err(Error::NotFound("name mlx5_0".into())));
    for call in ["rdma_create_event_channel", "rdma_get_devices"] {
        let code = libc::ENODEV;
        let (after, for_good) = (0, true);
        world(Some(Plan {
            call,
            after,
            for_good,
            code,
        }));
        let made = start(0, &options(DeviceChoice::First, false)).map(drop);
        assert_eq!(made, Err(Error::NoDevice), "{call}");
        is_reversed().unwrap();
    }
    world(None);
    verbs::limit_memory(100_000);
    let error = start(0, &by_address(IP)).map(drop).unwrap_err();
    let code = libc::ENOMEM;
    // Where as much as one likes may be locked, it is something else.
    let other = Error::call("ibv_reg_mr", code);
    let need = 160 * 10_240;
    let is_told = matches!(error, Error::MemoryLimit { need: told, .. } if told == need);
    assert!(is_told || error == other, "{error}");
    is_reversed().unwrap();
}

#[test]
fn two_drivers_talk_over_the_table() {
    for shares in [false, true] {
        world(None);
        let mut talk = Talk::new(shares).unwrap();
        talk.run();
        assert_eq!(talk.reason, Some(Reason::Closed), "{talk:?}");
        assert!(
            talk.fates
                .iter()
                .all(|(&user, fate)| fate.is_good || user >= DIRECT)
        );
        assert_eq!(talk.fates.len(), SIZES.len() + 2);
        assert_eq!(talk.errors, []);
        talk.check("no fault");
    }
}

/// Calls that a talk makes, and how often.
fn calls_of_a_talk(shares: bool) -> BTreeMap<&'static str, usize> {
    world(None);
    let mut talk = Talk::new(shares).unwrap();
    talk.run();
    drop(talk);
    with(|world| world.calls.clone())
}

#[test]
fn every_call_fails_once_and_for_good_and_all_have_their_outcome() {
    let mut tried = BTreeSet::new();
    for shares in [false, true] {
        for (call, count) in calls_of_a_talk(shares) {
            // The first of them are those that differ; polls go on and on.
            for (after, for_good) in (0..count.min(6)).flat_map(|at| [(at, false), (at, true)]) {
                let code = libc::EIO;
                world(Some(Plan {
                    call,
                    after,
                    for_good,
                    code,
                }));
                let what = format!("{call} fails after {after} (for good: {for_good})");
                match Talk::new(shares) {
                    Err(error) => {
                        assert!(error.to_string().starts_with(call), "{what}: {error}");
                    }
                    Ok(mut talk) => {
                        talk.run();
                        talk.check(&what);
                    }
                }
                tried.insert(call);
            }
        }
    }
    for call in [
        "rdma_connect",
        "rdma_accept",
        "ibv_post_srq_recv",
        "ibv_modify_qp",
    ] {
        assert!(tried.contains(call), "{call} was never called");
    }
}

/// Runs a talk in which something happens once the first answer is there, until `is_over`.
fn interrupted(
    mut talk: Talk,
    happens: impl FnOnce(&mut World),
    is_over: impl Fn(&Talk) -> bool,
) -> Talk {
    let until = Clock::now() + Duration::from_secs(20);
    let mut happens = Some(happens);
    talk.stays = true;
    while !is_over(&talk) {
        assert!(Clock::now() < until, "stuck: {talk:?}");
        talk.poll(true);
        talk.poll(false);
        if talk.fates.values().any(|fate| fate.is_good)
            && let Some(happens) = happens.take()
        {
            with(happens);
        }
    }
    assert!(happens.is_none(), "it never happened");
    talk
}

fn talk(shares: bool) -> Talk {
    world(None);
    Talk::new(shares).unwrap()
}

#[test]
fn queue_pair_that_breaks_ends_its_connection() {
    for number in [
        sys::event::QP_FATAL,
        sys::event::QP_REQ_ERR,
        sys::event::QP_ACCESS_ERR,
    ] {
        let happens = |world: &mut World| {
            let broken = world.first_queue_pair();
            world.report(number, broken);
        };
        let talk = interrupted(talk(false), happens, |talk| {
            talk.ended == 1 && talk.open == 0
        });
        let reason = talk.reason;
        let is_told = matches!(
            reason,
            Some(Reason::DriverFailed(libc::EIO) | Reason::Disconnected | Reason::WorkFailed(_))
        );
        assert!(is_told, "{reason:?}");
        talk.check("a queue pair breaks");
    }
}

#[test]
fn port_that_goes_down_is_counted_and_ends_nothing() {
    let happens = |world: &mut World| {
        world.report(sys::event::PORT_ERR, std::ptr::null_mut());
        // One that this version does not know.
        world.report(99, std::ptr::null_mut());
    };
    let stats = |talk: &Talk| {
        let both = [&talk.client, &talk.server];
        both.map(|driver| *driver.as_ref().unwrap().stats())
    };
    let mut talk = interrupted(talk(false), happens, |talk| {
        stats(talk).iter().all(|stats| stats.device_events == 2)
    });
    assert_eq!(stats(&talk).map(|stats| stats.port_errors), [1, 1]);
    assert_eq!((talk.ended, talk.open), (0, 1));
    talk.client
        .as_mut()
        .unwrap()
        .close(talk.connection.unwrap())
        .unwrap();
    talk.run();
    assert_eq!(talk.reason, Some(Reason::Closed));
    talk.check("a port goes down");
}

#[test]
fn device_that_is_removed_or_fails_is_let_go_of() {
    for fatal in [false, true] {
        let happens = |world: &mut World| match fatal {
            true => world.report(sys::event::DEVICE_FATAL, std::ptr::null_mut()),
            false => world.remove_device(),
        };
        // Both hear of it, and end with it.
        let talk = interrupted(talk(false), happens, |talk| talk.errors.len() == 2);
        assert_eq!(talk.errors, [Error::Removed, Error::Removed]);
        talk.check("the device is gone");
    }
}

#[test]
fn last_receive_of_a_shared_queue_ends_the_drain() {
    world(None);
    let start = Clock::now();
    let talk = Talk::with_drain(true, Duration::from_secs(10)).unwrap();
    let mut talk = interrupted(
        talk,
        |_| {},
        |talk| talk.fates.values().any(|fate| fate.is_good),
    );
    talk.client
        .as_mut()
        .unwrap()
        .abort(talk.connection.unwrap())
        .unwrap();
    let links = |driver: &Option<VerbsDriver>| driver.as_ref().unwrap().links();
    while links(&talk.client) + links(&talk.server) > 0 {
        talk.poll(true);
        talk.poll(false);
        assert!(
            start.elapsed() < Duration::from_secs(9),
            "the drain's time was over: {talk:?}"
        );
    }
    talk.check("all drained");
}

/// Why each of three connects to a server with room for two was not made.
fn crowd(plan: Option<Plan>) -> Vec<Reason> {
    world(plan);
    let options = options(DeviceChoice::Address(IP.into()), false);
    let mut server = start_with(0, &options, Duration::from_millis(30), 2).unwrap();
    let mut client = start(1, &options).unwrap();
    let listen = ListenOptions {
        user: 0,
        backlog: 4,
    };
    let listener = server.listen((IP, 0).into(), &listen).unwrap();
    let peer = server.listening(listener).unwrap();
    let open = SessionOpen {
        uri: "rdma://fake",
        private: b"",
    };
    for user in 0..3 {
        let mut options = ConnectOptions::new(user);
        options.own_nexus = true;
        client.connect(peer, &open, &options).unwrap();
    }
    let (mut reasons, mut heard) = (Vec::new(), 0);
    let until = Clock::now() + Duration::from_secs(20);
    while heard < 3 {
        assert!(Clock::now() < until, "{heard} of 3");
        for driver in [&mut server, &mut client] {
            driver.poll(Some(Duration::ZERO)).unwrap();
            while let Some(event) = driver.next_event() {
                match event {
                    Event::SessionRequest { session, .. } => {
                        let _ = driver.accept(session, 1000, &[], b"");
                    }
                    Event::Established { user: 0..3, .. } => heard += 1,
                    Event::ConnectFailed { reason, .. } => {
                        heard += 1;
                        reasons.push(reason);
                    }
                    _ => {}
                }
            }
        }
    }
    drop((server, client));
    assert_eq!(left(), [""; 0]);
    reasons
}

#[test]
fn who_finds_no_room_is_told_so() {
    let is_told =
        |reason: &Reason| matches!(reason, Reason::TurnedAway(Refusal::NoResources { .. }));
    let reasons = crowd(None);
    assert!(reasons.iter().any(is_told), "{reasons:?}");
    // Where it cannot even be refused, destroying its id does that.
    let reasons = crowd(Some(Plan {
        call: "rdma_reject",
        after: 0,
        for_good: true,
        code: libc::EINVAL,
    }));
    assert!(reasons.contains(&Reason::Refused), "{reasons:?}");
}
