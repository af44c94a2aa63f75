//! Both call, in every order: one connection, and every message comes once (PROTOCOL.md 8.8).

use xio_proto::wire::Extensions;
use xio_proto::{Config, Mutant};

use super::world::{Act, CONFIG, Case};
use super::{BASE, finds, holds, holds_at_first};

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
        ..both.clone()
    };
    holds("calls of both with messages", &messages);
    let ends = Case {
        scripts: [&[Act::Call, Act::Close], &[Act::Call, Act::Close]],
        stays_up: false,
        ..both
    };
    holds("calls of both that close", &ends);
    let more = Case {
        scripts: [ends.scripts[0], &[Act::Call, Act::Request, Act::Close]],
        ..ends
    };
    holds_at_first("calls of both that close, with a message", &more, 100_000);
}
