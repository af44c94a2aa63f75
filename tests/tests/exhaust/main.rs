//! Bounded exhaustion: two real endpoints, and every order in which devices, the communication
//! manager, users and time can go on. Each search prints how many states it visited, and each has
//! a core with a deliberate fault that it must find.

mod crossing;
mod search;
mod sleep;
mod world;

use search::{Seen, same_name_same_future, search};
use world::{Act, CONFIG, Case};
use xio_proto::wire::Extensions;
use xio_proto::{Config, Mutant};

/// States of one search, at most: a guard, as each is to see all of them. All searches together are
/// to take two minutes of one core.
const MOST: usize = 2_000_000;

/// Two endpoints that are connected, whose users do nothing.
const BASE: Case = Case {
    config: CONFIG,
    scripts: [&[], &[]],
    keeps: false,
    times: 0,
    connected: true,
    slow: false,
    stays_up: false,
    again: false,
    lazy: None,
};

/// Nothing bad in any order.
fn holds(name: &str, case: &Case) {
    let seen = walk(name, case, MOST);
    assert!(!seen.is_cut, "{name}: too large to see all of it");
}

/// Nothing bad in the orders that are tried first, of what is too large to try all.
fn holds_at_first(name: &str, case: &Case, states: usize) {
    walk(name, case, states);
}

fn walk(name: &str, case: &Case, most: usize) -> Seen {
    match search(case, most) {
        Ok(seen) => {
            println!(
                "{name}: {} {} states, {} steps, {} ends, {} deep",
                if seen.is_cut { "the first" } else { "all" },
                seen.states,
                seen.steps,
                seen.ends,
                seen.deepest
            );
            seen
        }
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

/// With devices that do everything at once, and with those that take their time.
fn holds_at_any_speed(name: &str, case: &Case) {
    holds(name, case);
    let slow = Case {
        slow: true,
        ..case.clone()
    };
    holds(&format!("{name}, slow devices"), &slow);
}

#[test]
fn connect_of_one_and_of_both() {
    let one = Case {
        scripts: [&[Act::Connect], &[]],
        connected: false,
        stays_up: true,
        ..BASE
    };
    holds_at_any_speed("connect", &one);
    let both = Case {
        config: Config {
            rx_slots: 24,
            tx_slots: 16,
            ..CONFIG
        },
        scripts: [&[Act::Connect], &[Act::Connect]],
        ..one.clone()
    };
    holds_at_any_speed("connect of both", &both);
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
    holds_at_any_speed("close of both, traffic of one", &less);
    holds_at_any_speed("close of both, traffic of both", &case);
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
    holds_at_any_speed("close without credits", &case);
    finds("close without credits", Mutant::OutcomeLost, &case);
}

/// Nine messages, and the end.
const MESSAGES: [Act; 10] = {
    let mut acts = [Act::OneWay; 10];
    acts[9] = Act::Close;
    acts
};

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
            // One more than there is credit for.
            scripts: [&MESSAGES[8 - usize::from(depth)..], &[]],
            ..BASE
        };
        holds(&format!("credits of {depth} messages"), &case);
    }
}

/// Credits of the transport: more messages than the peer has receives.
#[test]
fn credits_of_receives() {
    const ACTS: &[Act] = &[Act::OneWay; 10];
    let case = |depth: u16, [one, other]: [usize; 2]| Case {
        config: Config {
            rq_depth: depth,
            min_grant: depth,
            // One more connection is always sure of as many.
            rx_slots: 2 * u32::from(depth) + 4,
            tx_slots: 32,
            ..CONFIG
        },
        scripts: [&ACTS[..one], &ACTS[..other]],
        stays_up: true,
        ..BASE
    };
    for depth in 5..=8 {
        holds(
            &format!("credits of {depth} receives"),
            &case(depth, [8, 0]),
        );
    }
    for depth in 5..=6 {
        let name = format!("credits of {depth} receives, traffic of both");
        holds(&name, &case(depth, [5, 2]));
    }
    let name = "credits of 5 receives, much traffic of both";
    holds_at_first(name, &case(5, [5, 5]), 100_000);
    finds(
        "credits of 5 receives",
        Mutant::LastUnsignaled,
        &case(5, [8, 0]),
    );
    finds(
        "credits of 5 receives",
        Mutant::CreditsTwice,
        &case(5, [10, 0]),
    );
    // What the first grants and does not have, the second uses while the first hears nothing.
    let deaf = Case {
        lazy: Some(0),
        ..case(5, [5, 10])
    };
    finds("credits of 5 receives", Mutant::GrantUnposted, &deaf);
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

/// With peers that understand CANCEL: the responder's user has it, answers it, or never hears of it.
#[test]
fn cancel_at_the_peer_against_answer() {
    let config = Config {
        extensions: Extensions::CANCEL,
        ..CONFIG
    };
    let at_once = Case {
        config,
        scripts: [&[Act::Request, Act::Cancel(1), Act::Close], &[]],
        slow: true,
        ..BASE
    };
    holds("cancel at the peer", &at_once);
    let kept = Case {
        scripts: [
            &[Act::Request, Act::Cancel(1), Act::Close],
            &[Act::Answer, Act::Close],
        ],
        keeps: true,
        slow: false,
        ..at_once.clone()
    };
    holds("cancel at the peer, whose user has it", &kept);
    finds("cancel at the peer", Mutant::ReturnedByDevice, &at_once);
    let two = Case {
        scripts: [
            &[Act::Request, Act::Request, Act::Cancel(2), Act::Close],
            &[],
        ],
        slow: false,
        ..at_once
    };
    holds("cancel at the peer, one of two", &two);
}

/// The deadline travels: what comes too late is not shown.
#[test]
fn deadline_that_travels_against_completion() {
    let case = Case {
        config: Config {
            extensions: Extensions::DEADLINE,
            ..CONFIG
        },
        scripts: [&[Act::Hurry, Act::Close], &[]],
        times: 2,
        slow: true,
        ..BASE
    };
    holds("deadline that travels", &case);
    finds("deadline that travels", Mutant::DeadlineIgnored, &case);
}

/// The connection is lost at any moment, and made anew: nothing comes twice, all has its outcome.
#[test]
fn reconnect_against_loss() {
    let config = Config {
        tx_slots: 16,
        reconnects_per_second: 1000,
        ..CONFIG
    };
    let case = Case {
        config,
        scripts: [&[Act::Request, Act::Request, Act::Close], &[Act::Lose]],
        times: 2,
        again: true,
        ..BASE
    };
    holds("reconnect against loss", &case);
    let both = Case {
        scripts: [&[Act::Request, Act::Lose, Act::Close], &[Act::Lose]],
        ..case.clone()
    };
    holds("reconnect against two losses", &both);
    let traffic = Case {
        scripts: [
            &[Act::Request, Act::Lose, Act::Close],
            &[Act::OneWay, Act::Lose],
        ],
        ..case.clone()
    };
    let name = "reconnect against two losses, traffic of both";
    holds_at_first(name, &traffic, 200_000);
    let restart = Case {
        scripts: [&[Act::Request, Act::Request, Act::Close], &[Act::Restart]],
        ..case.clone()
    };
    holds("reconnect against restart", &restart);
    let kept = Case {
        scripts: [&[Act::Request, Act::Lose, Act::Close], &[]],
        keeps: true,
        ..case
    };
    holds("reconnect with a request at the peer", &kept);
    finds("reconnect", Mutant::RepeatedSilently, &kept);
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

/// On small cases of each kind: states that count as one do behave as one.
#[test]
fn states_of_one_name_go_on_alike() {
    let close = Case {
        scripts: [&[Act::Request, Act::Close], &[Act::OneWay, Act::Close]],
        slow: true,
        ..BASE
    };
    let kept = Case {
        scripts: [
            &[Act::Request, Act::Request, Act::Close],
            &[Act::Request, Act::Answer],
        ],
        keeps: true,
        ..BASE
    };
    let receives = Case {
        scripts: [&[Act::OneWay; 6], &[Act::OneWay]],
        stays_up: true,
        ..BASE
    };
    let cancel = Case {
        config: Config {
            extensions: Extensions::CANCEL,
            ..CONFIG
        },
        scripts: [
            &[Act::Request, Act::Request, Act::Cancel(2), Act::Close],
            &[],
        ],
        slow: true,
        ..BASE
    };
    let again = Case {
        config: Config {
            tx_slots: 16,
            reconnects_per_second: 1000,
            ..CONFIG
        },
        scripts: [&[Act::Request, Act::Close], &[Act::Restart]],
        times: 2,
        again: true,
        ..BASE
    };
    for (name, case) in [
        ("close", close),
        ("kept", kept),
        ("receives", receives),
        ("cancel", cancel),
        ("reconnect", again),
    ] {
        let count = same_name_same_future(&case);
        println!("{name}: {count} states were reached again, and went on as before");
        assert!(count > 100, "{name}: no case to be learned from");
    }
}
