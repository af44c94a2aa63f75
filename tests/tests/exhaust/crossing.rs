//! Both call, in every order: one connection, and every message comes once (PROTOCOL.md 8.8).

use xio_proto::wire::Extensions;
use xio_proto::{Config, Mutant};

use super::world::{Act, CONFIG, Case};
use super::{BASE, finds, holds};

#[test]
fn calls_of_one_and_of_both() {
    let config = Config {
        identity: 7,
        extensions: Extensions::CROSS,
        rx_slots: 32,
        tx_slots: 16,
        ..CONFIG
    };
    let both = Case {
        config,
        scripts: [&[Act::Call], &[Act::Call]],
        connected: false,
        stays_up: true,
        ..BASE
    };
    holds("calls of both", &both);
    finds("calls of both", Mutant::BothAccepted, &both);
    let one = Case {
        scripts: [&[Act::Call, Act::Request], &[]],
        ..both.clone()
    };
    holds("call of one", &one);
    let messages = Case {
        scripts: [&[Act::Call, Act::Request], &[Act::Call, Act::OneWay]],
        ..both
    };
    holds("calls of both with messages", &messages);
}
