//! Streams driven by hand.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::*;
use crate::env::Forbidden;
use crate::errno;
use crate::memory::{Memory, MemoryConfig};
use crate::rng::PPM;
use crate::swarm::{FaultLevel, Site, Swarm};

const PORT: u16 = 9000;

fn address(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 1, 0, n))
}

/// Two hosts; the first connects to the second.
struct Pair {
    env: Env,
    links: Links,
    hosts: [HostId; 2],
    port: PortId,
    accepted: Vec<SockId>,
    results: Vec<(u64, Result<(), i32>)>,
    done: Vec<Written>,
    parts: u32,
    writable: u32,
}

impl Pair {
    fn new(seed: u64, config: LinkConfig, backlog: u32) -> Self {
        let mut env = Env::new(Rng::new(seed));
        let memory = MemoryConfig {
            slot_size: 1024,
            slots: 8,
            arena: 1 << 20,
            regions: 16,
        };
        for endpoint in 0..2 {
            env.memory.push(Memory::new(endpoint, memory));
        }
        let mut links = Links::new(config);
        let hosts = [0, 1].map(|n| links.add_host(n, address(n as u8)));
        let Ok(port) = links.listen(&mut env, hosts[1], PORT, backlog, 5) else {
            panic!()
        };
        Self {
            env,
            links,
            hosts,
            port,
            accepted: Vec::new(),
            results: Vec::new(),
            done: Vec::new(),
            parts: 0,
            writable: 0,
        }
    }

    fn connect(&mut self, cookie: u64) -> SockId {
        let to = SocketAddr::new(address(1), PORT);
        self.links
            .connect(&mut self.env, self.hosts[0], None, to, cookie)
    }

    /// Connected: the client's socket and the server's.
    fn connected(seed: u64, config: LinkConfig) -> (Self, SockId, SockId) {
        let mut pair = Self::new(seed, config, 8);
        let client = pair.connect(1);
        pair.run();
        assert_eq!(pair.results, [(1, Ok(()))]);
        let server = pair.accepted[0];
        (pair, client, server)
    }

    fn step(&mut self) -> bool {
        let Some(event) = self.env.queue.pop() else {
            return false;
        };
        if let Event::Link(event) = event {
            self.links.handle(&mut self.env, event);
        }
        for host in self.hosts {
            while let Some(notice) = self.links.poll_notice(host) {
                match notice {
                    LinkNotice::Connected { cookie, result, .. } => {
                        self.results.push((cookie, result));
                    }
                    LinkNotice::Acceptable { port, cookie } => {
                        assert_eq!((port, cookie), (self.port, 5));
                        while let Some((socket, peer, local)) =
                            self.links.accept(&mut self.env, port, 6)
                        {
                            assert_eq!(self.links.addresses(socket), Some((local, peer)));
                            self.accepted.push(socket);
                        }
                    }
                    LinkNotice::Readable { .. } => {}
                    LinkNotice::Writable { .. } => self.writable += 1,
                }
            }
            while let Some(written) = self.links.poll_written(host) {
                match written {
                    Written::Whole { .. } => self.done.push(written),
                    Written::Part { .. } => self.parts += 1,
                }
            }
        }
        true
    }

    fn run(&mut self) {
        while self.step() {}
    }

    /// Reads some of what is there.
    fn read(&mut self, socket: SockId, most: usize, into: &mut Vec<u8>) {
        let bytes = self.links.peek(socket);
        let n = bytes.len().min(most);
        into.extend_from_slice(&bytes[..n]);
        self.links.consume(&mut self.env, socket, n);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

#[test]
fn bytes_arrive_in_order_however_they_are_cut() {
    for seed in 0..30 {
        let config = LinkConfig {
            window: (100, 3000),
            cut_ppm: PPM,
            ..LinkConfig::default()
        };
        let (mut pair, client, server) = Pair::connected(seed, config);
        pair.env.swarm.set(Site::TinyCut, 300_000);
        pair.env.swarm.set(Site::StreamDelay, 100_000);
        let bytes = pattern(20_000);
        let (mut sent, mut got) = (0, Vec::new());
        while got.len() < bytes.len() {
            let n = pair.env.rng.below(2000) as usize;
            let end = (sent + n).min(bytes.len());
            sent += pair.links.write(&mut pair.env, client, &bytes[sent..end]);
            assert!(sent - got.len() <= 3000, "never more than the window");
            pair.step();
            let most = pair.env.rng.below(3000) as usize;
            pair.read(server, most, &mut got);
        }
        assert_eq!(got, bytes);
        pair.links.close(&mut pair.env, client);
        pair.run();
        assert_eq!(pair.links.end(server), Some(End::Finished));
        assert!(pair.env.violations.is_empty());
    }
}

#[test]
fn a_full_window_blocks_and_reading_opens_it() {
    let config = LinkConfig {
        window: (1000, 1000),
        ..LinkConfig::default()
    };
    let (mut pair, client, server) = Pair::connected(1, config);
    let bytes = pattern(1500);
    assert_eq!(pair.links.write(&mut pair.env, client, &bytes), 1000);
    pair.run();
    pair.writable = 0;
    assert_eq!(pair.links.room(client), 0);
    let mut got = Vec::new();
    pair.read(server, 100, &mut got);
    pair.run();
    assert_eq!(pair.writable, 0, "not worth it yet");
    assert_eq!(pair.links.room(client), 100);
    while !pair.links.peek(server).is_empty() {
        pair.read(server, 1000, &mut got);
    }
    pair.run();
    assert_eq!(pair.writable, 1);
    assert_eq!(pair.links.write(&mut pair.env, client, &bytes[1000..]), 500);
}

#[test]
fn closing_ends_after_the_last_byte_and_reset_at_once() {
    let (mut pair, client, server) = Pair::connected(2, LinkConfig::default());
    pair.links.write(&mut pair.env, client, b"last words");
    pair.links.close(&mut pair.env, client);
    pair.run();
    assert_eq!(pair.links.end(server), None);
    assert_eq!(pair.links.peek(server), b"last words");
    pair.links.consume(&mut pair.env, server, 10);
    assert_eq!(pair.links.end(server), Some(End::Finished));
    assert!(
        pair.links.write(&mut pair.env, server, b"too late") > 0,
        "taken, then reset"
    );
    pair.run();
    assert_eq!(pair.links.end(server), Some(End::Failed(errno::ECONNRESET)));

    let client = pair.connect(9);
    pair.run();
    let server = pair.accepted[1];
    pair.links.write(&mut pair.env, client, b"lost");
    pair.links.abort(&mut pair.env, client);
    pair.run();
    assert_eq!(pair.links.peek(server), b"");
    assert_eq!(pair.links.end(server), Some(End::Failed(errno::ECONNRESET)));
    pair.links.close(&mut pair.env, server);
    assert_eq!(pair.links.sockets_live(), 1);
}

#[test]
fn closing_with_unread_bytes_resets_the_peer() {
    let (mut pair, client, server) = Pair::connected(3, LinkConfig::default());
    pair.links.write(&mut pair.env, client, b"never read");
    pair.run();
    pair.links.close(&mut pair.env, server);
    pair.run();
    assert_eq!(pair.links.end(client), Some(End::Failed(errno::ECONNRESET)));
}

#[test]
fn connecting_fails_where_nobody_listens_or_lives() {
    let mut pair = Pair::new(4, LinkConfig::default(), 1);
    for (n, port) in [(1, PORT + 1), (7, PORT)] {
        let to = SocketAddr::new(address(n), port);
        pair.links
            .connect(&mut pair.env, pair.hosts[0], None, to, n.into());
    }
    pair.run();
    assert_eq!(
        pair.results,
        [(1, Err(errno::ECONNREFUSED)), (7, Err(errno::ETIMEDOUT))]
    );
}

#[test]
fn a_full_backlog_delays_and_ports_differ() {
    let mut pair = Pair::new(5, LinkConfig::default(), 1);
    let sockets: Vec<_> = (0..5).map(|cookie| pair.connect(cookie)).collect();
    let mut ports: Vec<_> = sockets
        .iter()
        .filter_map(|&socket| pair.links.addresses(socket))
        .map(|(local, _)| local.port())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 5);
    pair.run();
    assert_eq!(pair.accepted.len(), 5);
    assert!(pair.results.iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn what_nobody_confirms_is_given_up() {
    let (mut pair, client, _) = Pair::connected(6, LinkConfig::default());
    pair.links.kill(&mut pair.env, pair.hosts[1]);
    pair.links.write(&mut pair.env, client, b"unheard");
    assert_eq!(pair.links.end(client), None);
    pair.run();
    assert_eq!(pair.links.end(client), Some(End::Failed(errno::ETIMEDOUT)));
}

#[test]
fn half_open_says_nothing_for_long_and_fills_up() {
    let (mut pair, client, _) = Pair::connected(6, LinkConfig::default());
    pair.links.kill(&mut pair.env, pair.hosts[1]);
    pair.run();
    assert_eq!(pair.links.end(client), None);
    pair.links.add_host(1, address(1));
    pair.run();
    assert_eq!(
        pair.links.end(client),
        None,
        "it hears nothing until it sends"
    );
    let bytes = pattern(1 << 20);
    let n = pair.links.write(&mut pair.env, client, &bytes);
    assert!(n > 0 && n < bytes.len());
    assert_eq!(pair.links.room(client), 0);
    pair.run();
    assert_eq!(pair.links.end(client), Some(End::Failed(errno::ECONNRESET)));
}

#[test]
fn severed_streams_are_silent_until_a_sender_gives_up() {
    let (mut pair, client, server) = Pair::connected(11, LinkConfig::default());
    pair.env.swarm.set(Site::HalfOpen, PPM);
    pair.links.write(&mut pair.env, client, b"lost");
    pair.run();
    assert_eq!(pair.env.swarm.fired(Site::HalfOpen), 1);
    // Who sent gives up after a time; who did not never hears.
    assert_eq!(pair.links.end(client), Some(End::Failed(errno::ETIMEDOUT)));
    assert_eq!(pair.env.now() / 1_000_000_000, 20);
    assert_eq!(pair.links.peek(server), b"");
    assert_eq!(pair.links.end(server), None);
    pair.links.write(&mut pair.env, server, b"unheard");
    pair.run();
    assert_eq!(pair.links.end(server), Some(End::Failed(errno::ETIMEDOUT)));
}

#[test]
fn frames_are_done_when_taken_and_in_order() {
    for dual in [false, true] {
        let config = LinkConfig {
            window: (600, 600),
            ..LinkConfig::default()
        };
        let (mut pair, control, control_peer) = Pair::connected(7, config);
        let mut data = None;
        let mut data_peer = control_peer;
        if dual {
            data = Some(pair.connect(2));
            pair.run();
            data_peer = pair.accepted[1];
        }
        let outlet = pair.links.open_outlet(control, data, 33);
        let mut expected = [Vec::new(), Vec::new()];
        for wr in 0..4_u32 {
            let head = pair.env.memory[0].slot_segment(wr, 0, 40);
            let tail = pair.env.memory[0].slot_segment(wr, 40, if wr == 2 { 0 } else { 500 });
            pair.env.memory[0].user_mut(head).fill(wr as u8);
            pair.env.memory[0].user_mut(tail).fill(0x80 | wr as u8);
            expected[0].extend_from_slice(pair.env.memory[0].user(head));
            expected[usize::from(dual)].extend_from_slice(pair.env.memory[0].user(tail));
            let sent = pair
                .links
                .send_frame(&mut pair.env, outlet, wr.into(), head, &[tail]);
            assert_eq!(sent, Ok(()));
        }
        pair.run();
        assert!(pair.done.len() < 4, "the window is full");
        let mut got = [Vec::new(), Vec::new()];
        while pair.done.len() < 4 || pair.step() {
            pair.read(control_peer, 100, &mut got[0]);
            if dual {
                pair.read(data_peer, 70, &mut got[1]);
            }
            pair.step();
        }
        for _ in 0..100 {
            pair.read(control_peer, 100, &mut got[0]);
            if dual {
                pair.read(data_peer, 70, &mut got[1]);
            }
            pair.run();
        }
        assert_eq!(got, expected);
        let whole = |wr| Written::Whole { cookie: 33, wr };
        assert_eq!(pair.done, [0, 1, 2, 3].map(whole));
        assert!(pair.parts > 0, "some were written in several goes");
        assert_eq!(pair.env.memory[0].slots_posted(), 0);
        assert!(pair.env.violations.is_empty());
    }
}

#[test]
fn frames_that_never_went_come_back_with_the_outlet() {
    let config = LinkConfig {
        window: (100, 100),
        ..LinkConfig::default()
    };
    let (mut pair, client, _) = Pair::connected(8, config);
    let outlet = pair.links.open_outlet(client, None, 1);
    let head = pair.env.memory[0].slot_segment(1, 0, 500);
    assert!(
        pair.links
            .send_frame(&mut pair.env, outlet, 1, head, &[])
            .is_ok()
    );
    pair.run();
    assert_eq!(pair.env.memory[0].slots_posted(), 1);
    let mut dropped = Vec::new();
    let drop = |wr| dropped.push(wr);
    pair.links.drop_frames(&mut pair.env, outlet, drop);
    assert_eq!(dropped, [1]);
    assert_eq!(pair.env.memory[0].slots_posted(), 0);
    pair.links.close_outlet(&mut pair.env, outlet);
    pair.links.close(&mut pair.env, client);
    let outlet = pair.links.open_outlet(client, None, 1);
    let refused = pair.links.send_frame(&mut pair.env, outlet, 2, head, &[]);
    assert_eq!(refused, Err(errno::EINVAL));
    assert_eq!(pair.env.violations[0].what, Forbidden::WriteToClosed);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run = |seed| {
        let mut pair = Pair::new(seed, LinkConfig::default(), 2);
        pair.env.swarm = Swarm::draw(&mut pair.env.rng, FaultLevel::All);
        let bytes = pattern(50_000);
        for cookie in 0..10 {
            let socket = pair.connect(cookie);
            for _ in 0..20 {
                pair.links.write(&mut pair.env, socket, &bytes[..3000]);
                pair.step();
                for number in 0..pair.accepted.len() {
                    let mut got = Vec::new();
                    pair.read(pair.accepted[number], 1000, &mut got);
                }
            }
        }
        pair.run();
        pair.env.trace.hash()
    };
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[test]
fn shutting_down_ends_one_direction() {
    let (mut pair, client, server) = Pair::connected(9, LinkConfig::default());
    pair.links.write(&mut pair.env, client, b"request");
    pair.links.shutdown(&mut pair.env, client);
    pair.run();
    assert_eq!(pair.links.peek(server), b"request");
    pair.links.consume(&mut pair.env, server, 7);
    assert_eq!(pair.links.end(server), Some(End::Finished));
    pair.links.write(&mut pair.env, server, b"answer");
    pair.links.close(&mut pair.env, server);
    pair.run();
    assert_eq!(pair.links.peek(client), b"answer");
    pair.links.consume(&mut pair.env, client, 6);
    assert_eq!(pair.links.end(client), Some(End::Finished));
}

#[test]
fn notices_of_a_socket_die_with_it() {
    let (mut pair, client, _) = Pair::connected(10, LinkConfig::default());
    // The client has something to tell when its place goes to a socket of the other host.
    pair.links
        .write(&mut pair.env, pair.accepted[0], b"unheard");
    while let Some(event) = pair.env.queue.pop() {
        if let Event::Link(event) = event {
            pair.links.handle(&mut pair.env, event);
        }
    }
    pair.links.abort(&mut pair.env, client);
    let to = SocketAddr::new(address(0), 1);
    let hosts = pair.hosts;
    let other = pair.links.connect(&mut pair.env, hosts[1], None, to, 77);
    assert_eq!(other.index, client.index, "the place is used again");
    while let Some(event) = pair.env.queue.pop() {
        if let Event::Link(event) = event {
            pair.links.handle(&mut pair.env, event);
        }
    }
    assert_eq!(pair.links.poll_notice(hosts[0]), None);
    let mut refused = false;
    while let Some(notice) = pair.links.poll_notice(hosts[1]) {
        refused |=
            matches!(notice, LinkNotice::Connected { cookie: 77, result, .. } if result.is_err());
    }
    assert!(refused, "its owner is told");
}
