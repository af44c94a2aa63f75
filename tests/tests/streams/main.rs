//! The stream layer: one conversation over every wire, streams cut anywhere, strangers, receive
//! slots, and payload that nobody wants any more.

mod chance;
mod conversation;
mod payload;
mod portals;
mod recorded;
mod room;
mod strangers;

use xio_proto::Config;
use xio_proto::wire::{ConnectMessage, SocketKind};
use xio_tests::stream_pair::{Cut, StreamPair};

fn config(i: u8) -> Config {
    Config::new(i, 400, 128)
}

fn tcp_with(config: impl Fn(u8) -> Config, cut: Cut) -> StreamPair {
    let mut pair = StreamPair::new(&config, &StreamPair::counts(&config(0)), cut);
    pair.listen(50);
    pair
}

fn tcp(cut: Cut) -> StreamPair {
    tcp_with(config, cut)
}

fn hello(sock: SocketKind, second_port: u16) -> Vec<u8> {
    let mut bytes = vec![0; ConnectMessage::LEN];
    ConnectMessage { sock, second_port }.encode(&mut bytes);
    bytes
}
