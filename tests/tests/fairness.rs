//! One server and 64 peers, of which some read nothing: the others notice nothing of one, and go on
//! beside several.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Driver, Event, Instant, ListenOptions,
    Message, RequestOptions, SessionOpen,
};
use xio_sim::{NodeConfig, SimNode};
use xio_tests::peers::{Peers, Plan};

/// Peers that read.
const READERS: u64 = 63;
/// Requests of each.
const REQUESTS: u64 = 200;
/// Of them under way at once.
const WINDOW: u64 = 4;

/// A peer.
struct Peer {
    driver: SimNode,
    connection: ConnectionId,
    reads: bool,
    asked: u64,
    answered: u64,
    over: Option<Instant>,
}

impl Peer {
    fn new(mut driver: SimNode, server: SocketAddr, reads: bool) -> Self {
        let open = SessionOpen {
            uri: "rdma://10.0.0.1:7000/",
            private: b"",
        };
        let connection = driver.connect(server, &open, &ConnectOptions::new(0));
        Self {
            driver,
            connection: connection.expect("there is room"),
            reads,
            asked: 0,
            answered: 0,
            over: None,
        }
    }

    fn ask(&mut self) {
        let message = Message::default();
        let options = RequestOptions::default();
        let sent = self.driver.send(self.connection, &message, &options);
        assert!(self.reads || sent != Err(CommandError::Unknown));
        self.asked += u64::from(sent.is_ok());
        assert!(sent.is_ok() || !self.reads, "{sent:?}");
    }

    fn turn(&mut self) {
        let is_up = self.asked > 0;
        if is_up && !self.reads {
            // It goes on asking as long as anybody takes it.
            if self.asked < 500 {
                self.ask();
            }
            return;
        }
        while let Some(event) = self.driver.next_event() {
            match event {
                Event::Established { message, .. } => {
                    let released = message.map_or(Ok(()), |task| self.driver.release(task));
                    released.expect("it is ours");
                    for _ in 0..WINDOW {
                        self.ask();
                    }
                }
                Event::Response { task, .. } => {
                    self.driver.release(task).expect("it is ours");
                    self.answered += 1;
                    if self.answered == REQUESTS {
                        self.over = Some(self.driver.now());
                    } else if self.asked < REQUESTS {
                        self.ask();
                    }
                }
                Event::BuffersReturned { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Takes everybody and answers everything.
fn serve(server: &mut SimNode) {
    while let Some(event) = server.next_event() {
        match event {
            Event::SessionRequest { session, .. } => {
                server.accept(session, 0, &[], b"").expect("there is room");
            }
            Event::Request { task, .. } => {
                // That of one who reads nothing finds no room in the end.
                let answered = server.respond(task, &Message::default());
                answered
                    .or_else(|_| server.release(task))
                    .expect("it is ours");
            }
            _ => {}
        }
    }
}

fn node(number: u8, slots: u32, peers: usize) -> NodeConfig {
    let mut node = NodeConfig::new(number);
    node.config = Config {
        slot_size: 4096,
        buffer_size: 2048,
        inline_data_max: 1024,
        ..Config::new(number, slots, slots)
    };
    node.counts.nexuses = peers;
    node.counts.sessions = peers;
    node.counts.connections = peers;
    node.counts.tasks = slots as usize;
    node.counts.rx_slots = slots as usize;
    node.counts.tx_slots = slots as usize;
    node.counts.work = 4 * slots as usize;
    node.arena = 1 << 16;
    node
}

/// When each reader had all its answers.
fn run(seed: u64, with_mute: bool) -> Vec<Duration> {
    let peers = READERS + u64::from(with_mute);
    let mut nodes = vec![(node(0, 2048, 80), IpAddr::from([10, 0, 0, 1]))];
    for n in 0..peers {
        let address = IpAddr::from([10, 0, 1, n as u8]);
        nodes.push((node(1 + (n % 63) as u8, 64, 2), address));
    }
    let mut nodes = SimNode::world(seed, &nodes)
        .expect("it can work")
        .into_iter();
    let mut server = nodes.next().expect("the first");
    let address = SocketAddr::from(([10, 0, 0, 1], 7000));
    let options = ListenOptions {
        user: 0,
        backlog: 128,
    };
    server.listen(address, &options).expect("there is room");
    let peers = nodes.enumerate();
    // The one that does not read is there first.
    let mut peers: Vec<_> = peers
        .map(|(n, driver)| Peer::new(driver, address, !with_mute || n > 0))
        .collect();
    let began = server.now();
    while peers.iter().any(|peer| peer.reads && peer.over.is_none()) {
        // All that there is to hear is heard before time passes.
        let Ok(_) = server.poll(Some(Duration::ZERO));
        while server.has_event() {
            serve(&mut server);
        }
        for peer in peers.iter_mut().filter(|peer| peer.driver.has_event()) {
            peer.turn();
        }
    }
    let mute = peers.iter().find(|peer| !peer.reads);
    if let Some(mute) = mute {
        assert!(mute.asked > WINDOW, "it did not even ask");
    }
    let over = peers.iter().filter_map(|peer| peer.over);
    over.map(|at| at.since(began)).collect()
}

#[test]
fn a_peer_that_reads_nothing_costs_the_others_nothing() {
    // Chance is drawn otherwise with one more peer, so several seeds are looked at together.
    let all = |with_mute| -> Vec<_> { (0..8).flat_map(|seed| run(seed, with_mute)).collect() };
    let (alone, beside) = (all(false), all(true));
    assert_eq!((alone.len(), beside.len()), (8 * 63, 8 * 63));
    let mean = |times: &[Duration]| times.iter().sum::<Duration>().as_secs_f64() / (8.0 * 63.0);
    let (alone, beside) = (mean(&alone), mean(&beside));
    let change = (beside / alone - 1.0) * 100.0;
    println!("{alone:.6} s without it, {beside:.6} s beside it: {change:+.3} %");
    assert!(change.abs() < 1.0, "changed by {change} %");
}

/// On real sockets, with far fewer send slots than receive slots: who reads nothing would have all
/// send slots queued for it.
fn beside(mutes: usize, window: usize) {
    let readers = 64 - mutes;
    let mut peers = Peers::start(Plan {
        rx_slots: 8192,
        tx_slots: 1024,
        readers,
        window,
        mutes,
    });
    peers.run(100 * readers);
    let least = peers.answers().iter().min();
    assert!(least >= Some(&10), "some starve: {:?}", peers.answers());
    peers.stop();
}

#[test]
fn a_peer_that_reads_nothing_does_not_take_all_send_slots() {
    beside(1, 4);
}

#[test]
fn eight_of_64_peers_that_read_nothing_leave_the_others_their_share() {
    beside(8, 8);
}
