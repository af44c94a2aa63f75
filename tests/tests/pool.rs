//! Memory lent for payloads: who gets it, who waits, and that all of it comes back.

use xio_proto::wire::status;
use xio_proto::{
    CommandError, Config, ConfigError, ConnectOptions, ConnectionPolicy, Failure, FreeRows,
    PoolMemory, Segment,
};
use xio_tests::pair::{Pair, Side};
use xio_tests::stream_pair::{Cut, StreamPair};
use xio_tests::talk::{Say, Talk, World, free_rows};

const CHUNK: u32 = 4096;
/// Where the pool lies in a side's memory.
const POOL_AT: usize = 600_000;

fn config(i: u8) -> Config {
    Config::new(i, 400, 128)
}

fn lend(side: &mut Side, chunk: u32, chunks: u16) {
    let memory = PoolMemory {
        addr: side.segment(POOL_AT, 0).addr,
        lkey: 1,
        chunk,
        chunks,
    };
    side.endpoint.add_pool(side.transport, memory).unwrap();
}

/// A conversation whose sides have a pool each, of which connections may use so many bytes.
fn talk_with(world: &mut impl World, dual: bool, chunks: u16, max_bytes: u64) -> Talk {
    for side in world.sides() {
        lend(side, CHUNK, chunks);
    }
    world.listen(50);
    let mut talk = Talk::open(world, dual);
    for i in 0..2 {
        let connection = talk.connections[i].unwrap();
        let policy = ConnectionPolicy::pool(max_bytes);
        let endpoint = &mut world.sides()[i].endpoint;
        endpoint.set_policy(connection, policy).unwrap();
    }
    talk.settle(world);
    talk.clear();
    talk
}

fn rdma() -> Pair {
    Pair::rdma(config, &Pair::counts(&config(0)))
}

fn tcp() -> StreamPair {
    StreamPair::new(config, &StreamPair::counts(&config(0)), Cut::Every(1000))
}

/// Runs a test on every wire.
fn everywhere(test: impl Fn(&mut dyn FnMut(u16, u64) -> (Box<Any>, Talk))) {
    test(&mut |chunks, max| {
        let mut world = rdma();
        let talk = talk_with(&mut world, false, chunks, max);
        (Box::new(Any::Rdma(world)), talk)
    });
    for dual in [false, true] {
        test(&mut |chunks, max| {
            let mut world = tcp();
            let talk = talk_with(&mut world, dual, chunks, max);
            (Box::new(Any::Tcp(world)), talk)
        });
    }
}

/// One of the wires.
enum Any {
    Rdma(Pair),
    Tcp(StreamPair),
}

macro_rules! each {
    ($any:expr, $world:ident => $what:expr) => {
        match $any {
            Any::Rdma($world) => $what,
            Any::Tcp($world) => $what,
        }
    };
}

impl World for Any {
    fn sides(&mut self) -> &mut [Side; 2] {
        each!(self, world => world.sides())
    }
    fn now(&self) -> xio_proto::Instant {
        each!(self, world => world.now())
    }
    fn clock(&mut self) -> &mut xio_proto::Instant {
        each!(self, world => world.clock())
    }
    fn run(&mut self) {
        each!(self, world => World::run(world));
    }
    fn advance(&mut self) -> bool {
        each!(self, world => World::advance(world))
    }
    fn listen(&mut self, user: u64) {
        each!(self, world => World::listen(world, user));
    }
}

fn chunks(world: &mut impl World) -> [u32; 2] {
    free_rows(world).map(|free| free.chunks)
}

const LARGE: usize = 50_000;
/// Chunks that such a message takes.
const EACH: u16 = 13;

fn large(user: u64) -> Say {
    Say {
        inline: 0,
        gathered: LARGE,
        ..Say::request(user)
    }
}

/// Closes and sees that all is back, the pool too.
fn all_back(world: &mut Any, talk: &mut Talk, free: [FreeRows; 2]) {
    talk.close(world, 0);
    assert_eq!(free_rows(world), free, "{:?}", talk.heard);
}

/// What is free before anything is connected, with pools of so many chunks.
fn everything(world: &mut Any, chunks: u32) -> [FreeRows; 2] {
    let fresh = match world {
        Any::Rdma(_) => free_rows(&mut rdma()),
        Any::Tcp(_) => free_rows(&mut tcp()),
    };
    fresh.map(|free| FreeRows { chunks, ..free })
}

#[test]
fn payloads_go_into_the_pool_without_a_question() {
    everywhere(|open| {
        let (mut world, mut talk) = open(2 * EACH, 1 << 20);
        let world = &mut *world;
        for user in 1..=5 {
            talk.say(world, 0, &large(user));
            talk.say(world, 1, &large(100 + user));
        }
        talk.settle(world);
        for (i, from) in [(0, 100), (1, 0)] {
            assert_eq!(talk.count(i, "payload"), 0, "{:?}", talk.heard[i]);
            for user in 1..=5 {
                let heard = format!("request {}: {LARGE} bytes", from + user);
                assert_eq!(talk.count(i, &heard), 1, "{:?}", talk.heard[i]);
            }
            assert_eq!(talk.count(i, "response"), 5);
        }
        assert_eq!(chunks(world), [26, 26]);
        let free = everything(world, 26);
        all_back(world, &mut talk, free);
    });
}

#[test]
fn a_response_that_is_read_goes_into_the_pool() {
    let mut world = rdma();
    let mut talk = talk_with(&mut world, false, EACH, 1 << 20);
    let say = Say {
        reply: LARGE,
        ..Say::request(1)
    };
    talk.say(&mut world, 0, &say);
    talk.settle(&mut world);
    let heard = ["response 1: 50000 bytes in memory"];
    assert_eq!(talk.heard[0], heard);
    assert_eq!(talk.count(1, "sent"), 1);
    assert_eq!(chunks(&mut world), [13, 13]);
    assert_eq!(world.sides[0].endpoint.free_rows().extents, 8);
}

#[test]
fn an_empty_pool_makes_the_peer_wait_and_order_stays() {
    everywhere(|open| {
        let (mut world, mut talk) = open(EACH, 1 << 20);
        let world = &mut *world;
        talk.keep[1] = true;
        for user in 1..=3 {
            talk.say(world, 0, &large(user));
        }
        // Behind those whose payload waits.
        talk.say(world, 0, &Say::request(4));
        talk.settle(world);
        let came = |talk: &Talk| talk.count(1, "request");
        assert_eq!((came(&talk), chunks(world)[1]), (1, 0));
        for n in 2..=4 {
            let (task, header) = talk.kept[1].remove(0);
            let word = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().unwrap());
            talk.keep[1] = false;
            talk.answer(world, 1, task, word(0), word(8) as usize);
            talk.keep[1] = true;
            talk.settle(world);
            // The last two come together: the small one waited for the third only.
            assert_eq!(came(&talk), if n == 2 { 2 } else { 4 });
            if came(&talk) == 4 {
                break;
            }
        }
        let order: Vec<&String> = talk.heard[1]
            .iter()
            .filter(|t| t.starts_with("req"))
            .collect();
        let expected = [
            "request 1: 50000 bytes",
            "request 2: 50000 bytes",
            "request 3: 50000 bytes",
            "request 4: 20 bytes",
        ];
        assert_eq!(order, expected);
        talk.let_go(world, 1);
        assert_eq!(talk.count(0, "response"), 4);
        let free = everything(world, EACH.into());
        all_back(world, &mut talk, free);
    });
}

#[test]
fn a_payload_that_waits_too_long_is_refused_and_the_peer_hears_it() {
    everywhere(|open| {
        let (mut world, mut talk) = open(EACH, 1 << 20);
        let world = &mut *world;
        let connection = talk.connections[1].unwrap();
        let policy = ConnectionPolicy {
            provide_timeout: Some(std::time::Duration::from_millis(250)),
            ..ConnectionPolicy::pool(1 << 20)
        };
        let endpoint = &mut world.sides()[1].endpoint;
        endpoint.set_policy(connection, policy).unwrap();
        talk.keep[1] = true;
        talk.say(world, 0, &large(1));
        talk.settle(world);
        let asked = world.now();
        talk.say(world, 0, &large(2));
        talk.until(world, [1, 1]);
        let failure = Failure::PeerStatus(status::TIMEOUT);
        assert_eq!(talk.heard[0], [format!("failed 2: {failure:?}")]);
        let waited = world.now().as_nanos() - asked.as_nanos();
        assert_eq!(waited, 250_000_000);
        talk.let_go(world, 1);
        talk.say(world, 0, &large(3));
        talk.settle(world);
        assert_eq!(talk.count(0, "response 3"), 1, "{:?}", talk.heard[0]);
        let free = everything(world, EACH.into());
        all_back(world, &mut talk, free);
    });
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    everywhere(|open| {
        // Larger than the connection's share; then than the pool.
        for (chunks, max) in [(2 * EACH, u64::from(EACH - 1) * 4096), (EACH - 1, 1 << 30)] {
            let (mut world, mut talk) = open(chunks, max);
            let world = &mut *world;
            talk.say(world, 0, &large(1));
            let say = Say {
                one_way: true,
                receipt: true,
                ..large(2)
            };
            talk.say(world, 0, &say);
            talk.say(world, 0, &Say::request(3));
            talk.settle(world);
            let code = status::USER_BUF_OVERFLOW;
            let failure = Failure::PeerStatus(code);
            let heard = |text: &str| talk.count(0, text);
            assert_eq!(
                heard(&format!("failed 1: {failure:?}")),
                1,
                "{:?}",
                talk.heard
            );
            assert_eq!(heard(&format!("delivered 2: Rejected({code})")), 1);
            assert_eq!(heard("response 3"), 1);
            assert_eq!(talk.count(1, "payload"), 0);
            let free = everything(world, chunks.into());
            all_back(world, &mut talk, free);
        }
    });
}

#[test]
fn without_a_pool_the_peer_is_told_that_there_are_no_buffers() {
    let mut world = rdma();
    world.listen(50);
    let mut talk = Talk::open(&mut world, false);
    let connection = talk.connections[1].unwrap();
    let policy = ConnectionPolicy::pool(1 << 20);
    let endpoint = &mut world.sides[1].endpoint;
    endpoint.set_policy(connection, policy).unwrap();
    talk.say(&mut world, 0, &large(1));
    talk.settle(&mut world);
    let failure = Failure::PeerStatus(status::NO_USER_BUFS);
    assert_eq!(talk.count(0, &format!("failed 1: {failure:?}")), 1);
}

#[test]
fn a_connection_at_its_bound_does_not_keep_others_from_the_pool() {
    let mut world = rdma();
    // Its bound is one message, the pool holds two.
    let mut talk = talk_with(&mut world, false, 2 * EACH, u64::from(EACH) * 4096);
    let first = talk.connections;
    talk.keep[1] = true;
    for user in 1..=2 {
        talk.say(&mut world, 0, &large(user));
    }
    talk.settle(&mut world);
    assert_eq!(talk.count(1, "request"), 1);
    Talk::dial_with(&mut world, &ConnectOptions::new(61));
    talk.settle(&mut world);
    assert_ne!(talk.connections, first);
    let second = talk.connections[1].unwrap();
    let policy = ConnectionPolicy::pool(1 << 20);
    let endpoint = &mut world.sides[1].endpoint;
    endpoint.set_policy(second, policy).unwrap();
    talk.say(&mut world, 0, &large(3));
    talk.settle(&mut world);
    assert_eq!(talk.count(1, "request 3"), 1, "{:?}", talk.heard[1]);
    assert_eq!(chunks(&mut world)[1], 0);
    // More room by a word of the user's.
    talk.let_go(&mut world, 1);
    assert_eq!(talk.count(1, "request 2"), 1, "{:?}", talk.heard[1]);
    assert_eq!(chunks(&mut world)[1], 26);
}

#[test]
fn a_raised_bound_lets_waiting_payloads_in() {
    let mut world = rdma();
    let mut talk = talk_with(&mut world, false, 2 * EACH, u64::from(EACH) * 4096);
    talk.keep[1] = true;
    for user in 1..=2 {
        talk.say(&mut world, 0, &large(user));
    }
    talk.settle(&mut world);
    assert_eq!(talk.count(1, "request"), 1);
    let connection = talk.connections[1].unwrap();
    let policy = ConnectionPolicy::pool(1 << 20);
    let endpoint = &mut world.sides[1].endpoint;
    endpoint.set_policy(connection, policy).unwrap();
    talk.settle(&mut world);
    assert_eq!(talk.count(1, "request"), 2);
}

/// Small messages by READ, of one chunk each.
fn small(user: u64) -> Say {
    Say {
        inline: 0,
        gathered: 900,
        force_read: true,
        ..Say::request(user)
    }
}

#[test]
fn a_pool_in_pieces_still_holds_what_fits() {
    let mut world = rdma();
    for side in world.sides() {
        lend(side, 1024, 24);
    }
    world.listen(50);
    let mut talk = Talk::open(&mut world, false);
    let connection = talk.connections[1].unwrap();
    let policy = ConnectionPolicy::pool(1 << 20);
    let endpoint = &mut world.sides[1].endpoint;
    endpoint.set_policy(connection, policy).unwrap();
    talk.keep[1] = true;
    for user in 1..=24 {
        talk.say(&mut world, 0, &small(user));
    }
    talk.settle(&mut world);
    assert_eq!((talk.count(1, "request"), chunks(&mut world)[1]), (24, 0));
    // Every second one goes: what is free has no neighbours.
    let kept = std::mem::take(&mut talk.kept[1]);
    for (k, task) in kept.into_iter().enumerate() {
        if k % 2 == 0 {
            world.sides[1].endpoint.release(task.0).unwrap();
        } else {
            talk.kept[1].push(task);
        }
    }
    let say = Say {
        gathered: 12 * 1024 - 5,
        force_read: false,
        ..small(30)
    };
    talk.say(&mut world, 0, &say);
    talk.settle(&mut world);
    // Its bytes are checked as it comes. Twelve segments: four in the row, eight in an extent.
    assert_eq!(talk.count(1, "request 30: 12283 bytes"), 1);
    assert_eq!(world.sides[1].endpoint.free_rows().extents, 7);
    talk.let_go(&mut world, 1);
    assert_eq!(chunks(&mut world)[1], 24);
    assert_eq!(world.sides[1].endpoint.free_rows().extents, 8);
}

#[test]
fn a_connection_that_ends_gives_all_back() {
    everywhere(|open| {
        for abort in [false, true] {
            for by in 0..2 {
                let (mut world, mut talk) = open(EACH, 1 << 20);
                let world = &mut *world;
                talk.keep[1] = true;
                for user in 1..=3 {
                    talk.say(world, 0, &large(user));
                }
                talk.settle(world);
                let (now, connection) = (world.now(), talk.connections[by].unwrap());
                let endpoint = &mut world.sides()[by].endpoint;
                if abort {
                    endpoint.abort(now, connection).unwrap();
                } else {
                    endpoint.close(now, connection).unwrap();
                }
                talk.outlive(world);
                // What the user still has stays readable, and its chunks are taken.
                assert_eq!((talk.count(1, "request"), chunks(world)[1]), (1, 0));
                talk.let_go(world, 1);
                let free = everything(world, EACH.into());
                assert_eq!(free_rows(world), free, "{:?}", talk.heard);
            }
        }
    });
}

#[test]
fn chunks_under_a_read_come_back_when_the_device_is_done() {
    let mut world = rdma();
    let mut talk = talk_with(&mut world, false, EACH, 1 << 20);
    world.slow_reads = true;
    talk.say(&mut world, 0, &large(1));
    talk.settle(&mut world);
    let (now, connection) = (world.now, talk.connections[1].unwrap());
    let endpoint = &mut world.sides[1].endpoint;
    endpoint.abort(now, connection).unwrap();
    assert_eq!(chunks(&mut world)[1], 0, "the device may still write there");
    talk.outlive(&mut world);
    assert_eq!(chunks(&mut world)[1], 13);
    assert_eq!(talk.count(1, "buffers"), 0, "the user never gave any");
}

#[test]
fn a_cancelled_request_leaves_the_line() {
    let mut world = rdma();
    let mut talk = talk_with(&mut world, false, EACH, 1 << 20);
    let ask = |user| Say {
        reply: LARGE,
        ..Say::request(user)
    };
    world.slow_reads = true;
    let first = talk.say(&mut world, 0, &ask(1));
    let second = talk.say(&mut world, 0, &ask(2));
    talk.say(&mut world, 0, &ask(3));
    talk.settle(&mut world);
    world.sides[0].endpoint.cancel(second).unwrap();
    world.sides[0].endpoint.cancel(first).unwrap();
    talk.settle(&mut world);
    assert_eq!(talk.count(0, "cancelled"), 2);
    // The first still has a READ out; then the third gets its chunks.
    assert_eq!(chunks(&mut world)[0], 0);
    assert_eq!(world.finish_reads(), 2);
    talk.settle(&mut world);
    assert_eq!(talk.count(0, "response 3"), 1, "{:?}", talk.heard[0]);
    assert_eq!(talk.count(1, "sent"), 3, "the peer has its buffers back");
    assert_eq!(chunks(&mut world)[0], 13);
}

#[test]
fn pools_that_cannot_work_are_named() {
    let mut world = rdma();
    let side = &mut world.sides[0];
    let good = PoolMemory {
        addr: 4096,
        lkey: 1,
        chunk: 4096,
        chunks: 16,
    };
    let mut add = |change: fn(&mut PoolMemory)| {
        let mut memory = good;
        change(&mut memory);
        let error = side.endpoint.add_pool(side.transport, memory);
        error.unwrap_err()
    };
    let error = |what, value, bound| ConfigError { what, value, bound };
    assert_eq!(add(|m| m.chunk = 63), error("bytes of a chunk", 63, 64));
    assert_eq!(add(|m| m.chunks = 0), error("chunks of a pool", 0, 4096));
    assert_eq!(
        add(|m| m.chunks = 4097),
        error("chunks of a pool", 4097, 4096)
    );
    assert_eq!(add(|m| m.addr = 0).what, "address of a pool");
    assert_eq!(add(|m| m.addr = u64::MAX - 9).what, "address of a pool");
    side.endpoint.add_pool(side.transport, good).unwrap();
    let twice = side.endpoint.add_pool(side.transport, good);
    assert_eq!(twice.unwrap_err().what, "transport of a pool");
}

#[test]
fn a_user_cannot_answer_for_the_pool() {
    let mut world = rdma();
    let mut talk = talk_with(&mut world, false, EACH, 1 << 20);
    let ask = |user| Say {
        reply: LARGE,
        ..Say::request(user)
    };
    world.slow_reads = true;
    talk.say(&mut world, 0, &ask(1));
    let second = talk.say(&mut world, 0, &ask(2));
    talk.settle(&mut world);
    let segment: [Segment; 1] = [world.sides[0].segment(0, LARGE)];
    let endpoint = &mut world.sides[0].endpoint;
    assert!(matches!(
        endpoint.provide(second, &segment),
        Err(CommandError::WrongState(_))
    ));
    assert!(matches!(
        endpoint.refuse(second, 1),
        Err(CommandError::WrongState(_))
    ));
}
