//! Bounded exhaustion: two real endpoints, and every order in which devices, the communication
//! manager, users and time can go on. Each search prints how many states it visited, and each has
//! a core with a deliberate fault that it must find.

mod search;
mod sleep;
mod world;

use search::search;
use world::{Act, CONFIG, Case};
use xio_proto::{Config, Mutant};

/// States of one search, at most: they are to take a minute together.
const MOST: usize = 15_000;

/// Two endpoints that are connected, whose users do nothing.
const BASE: Case = Case {
    config: CONFIG,
    scripts: [&[], &[]],
    keeps: false,
    times: 0,
    connected: true,
    slow: false,
    stays_up: false,
};

/// Nothing bad in any order.
fn holds(name: &str, case: &Case) {
    match search(case, MOST) {
        Ok(seen) => println!(
            "{name}: {} {} states, {} steps, {} ends, {} deep",
            if seen.is_cut { "the first" } else { "all" },
            seen.states,
            seen.steps,
            seen.ends,
            seen.deepest
        ),
        Err(found) => panic!(
            "{name}: {} after {:?} ({:?})",
            found.what, found.path, found.seen
        ),
    }
}

/// The same with a fault in the core does not get through.
fn finds(name: &str, mutant: Mutant, case: &Case) {
    let config = Config {
        mutant: Some(mutant),
        ..case.config.clone()
    };
    let case = Case {
        config,
        ..case.clone()
    };
    let found = search(&case, MOST).expect_err(name);
    let (steps, states) = (found.path.len(), found.seen.states);
    let what = found.what.lines().next().unwrap_or_default();
    println!("{name}, {mutant:?}: found after {steps} steps, {states} states: {what}");
}

#[test]
fn connect_of_one_and_of_both() {
    let one = Case {
        scripts: [&[Act::Connect], &[]],
        connected: false,
        stays_up: true,
        ..BASE
    };
    holds("connect", &one);
    let both = Case {
        config: Config {
            rx_slots: 32,
            tx_slots: 16,
            ..CONFIG
        },
        scripts: [&[Act::Connect], &[Act::Connect]],
        ..one.clone()
    };
    holds("connect of both", &both);
    finds("connect", Mutant::SlotLeaked, &one);
}

#[test]
fn close_of_both_with_traffic() {
    let case = Case {
        scripts: [&[Act::Request, Act::Close], &[Act::OneWay, Act::Close]],
        ..BASE
    };
    let less = Case {
        scripts: [&[Act::Request, Act::Close], &[Act::Close]],
        ..case.clone()
    };
    holds("close of both, traffic of one", &less);
    holds("close of both, traffic of both", &case);
    finds("close of both", Mutant::FinUnanswered, &case);
}

/// The peers' receives are all used by requests that nobody answers.
#[test]
fn close_without_credits() {
    let case = Case {
        scripts: [
            &[Act::Request, Act::Request, Act::Close],
            &[Act::Request, Act::Answer],
        ],
        keeps: true,
        ..BASE
    };
    holds("close without credits", &case);
    finds("close without credits", Mutant::OutcomeLost, &case);
}

/// Credits of the application at depths that nothing but closing gets beyond.
#[test]
fn credits_of_messages() {
    for depth in 2..=8 {
        let case = Case {
            config: Config {
                depth_messages: depth,
                flow_control: true,
                ..CONFIG
            },
            scripts: [&[Act::OneWay, Act::OneWay, Act::OneWay, Act::Close], &[]],
            ..BASE
        };
        holds(&format!("credits of {depth} messages"), &case);
    }
}

/// Credits of the transport: more messages than the peer has receives.
#[test]
fn credits_of_receives() {
    let case = |depth| Case {
        config: Config {
            rq_depth: depth,
            min_grant: depth,
            rx_slots: 24,
            ..CONFIG
        },
        scripts: [&[Act::OneWay; 6], &[]],
        stays_up: true,
        ..BASE
    };
    for depth in 5..=8 {
        holds(&format!("credits of {depth} receives"), &case(depth));
    }
    finds("credits of 5 receives", Mutant::LastUnsignaled, &case(5));
}

#[test]
fn deadline_against_completion() {
    let case = Case {
        scripts: [&[Act::Hurry, Act::Close], &[]],
        times: 1,
        slow: true,
        ..BASE
    };
    holds("deadline against completion", &case);
    finds(
        "deadline against completion",
        Mutant::DeadlineIgnored,
        &case,
    );
    finds(
        "deadline against completion",
        Mutant::ReturnedByDevice,
        &case,
    );
}

#[test]
fn cancel_against_answer() {
    let case = Case {
        scripts: [&[Act::Request, Act::Cancel(1), Act::Close], &[]],
        slow: true,
        ..BASE
    };
    holds("cancel against answer", &case);
    finds("cancel against answer", Mutant::ReturnedByDevice, &case);
}

#[test]
fn restart_of_a_peer() {
    let case = Case {
        config: Config {
            rx_slots: 32,
            tx_slots: 16,
            ..CONFIG
        },
        scripts: [
            &[Act::Request, Act::Connect, Act::Request, Act::Close],
            &[Act::Request, Act::Restart],
        ],
        ..BASE
    };
    holds("restart", &case);
    finds("restart", Mutant::OutcomeLost, &case);
}
