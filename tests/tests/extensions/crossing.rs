//! Two that call each other and want one connection (PROTOCOL.md 8.8).

use std::time::Duration;

use xio_proto::wire::{Race, status, wire_identity};
use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Event, Existing, Extensions, Reason,
    SessionOpen,
};
use xio_tests::pair::{Meddler, Pair, SERVER, Said, Schedule};
use xio_tests::stream_pair::{Cut, Rng, StreamPair};
use xio_tests::talk::{Say, Talk, World, free_rows};

use super::{WIRES, Wire, config, old, sent};

/// SESSION_SETUP_REQ.
const SETUP_REQ: u32 = 0x0102;

/// Who a side is on the wire.
fn who(i: usize) -> u64 {
    let config = config(i as u8);
    wire_identity(config.identity, config.endpoint)
}

/// A side calls the other, or whoever is named.
fn only(wire: Wire, user: u64, peer: u64) -> ConnectOptions {
    ConnectOptions {
        only_with: Some(peer),
        dual_stream: wire == Wire::Dual,
        ..ConnectOptions::new(user)
    }
}

fn call<W: World>(world: &mut W, wire: Wire, i: usize) -> Result<ConnectionId, CommandError> {
    Talk::dial_from(world, i, &only(wire, 60 + i as u64, who(1 - i)))
}

/// What only one kind of world can do.
trait Calls: World {
    fn listen_both(&mut self);
    fn meddler(&mut self, meddle: Option<Meddler>);
    /// Setups meet on their way, if both sides have sent one.
    fn cross(&mut self, hold: bool);
    /// The setup that a side's peer is about to send stays on its way, and all that follows it.
    fn deafen(&mut self, i: usize);
}

impl Calls for Pair {
    fn listen_both(&mut self) {
        self.listen_on(0, 50);
        self.listen_on(1, 50);
    }
    fn meddler(&mut self, meddle: Option<Meddler>) {
        self.meddle = meddle;
    }
    fn cross(&mut self, hold: bool) {
        if hold {
            self.held = [Some(SETUP_REQ); 2];
        } else {
            self.let_go();
        }
    }
    fn deafen(&mut self, i: usize) {
        self.held[i] = Some(SETUP_REQ);
    }
}

impl Calls for StreamPair {
    fn listen_both(&mut self) {
        self.listen_on(0, 50);
        self.listen_on(1, 50);
    }
    fn meddler(&mut self, meddle: Option<Meddler>) {
        self.meddle = meddle;
    }
    // Both sides read in turns, so they do.
    fn cross(&mut self, _hold: bool) {}
    fn deafen(&mut self, i: usize) {
        while sent(&self.sides[1 - i], SETUP_REQ) == 0 {
            self.reads = Some(1);
            World::run(self);
        }
        let nexuses: Vec<_> = self.sides[i].endpoint.nexuses().collect();
        for nexus in nexuses {
            for socket in self.ends(i, nexus.id) {
                self.hold_back(i, socket);
            }
        }
        self.resume();
    }
}

/// What is done in a world of either kind.
trait Run {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire);
}

/// In a world whose order of events the seed decides; seed 0 is the plain one.
fn with(wire: Wire, settings: impl Fn(u8) -> Config, seed: u64, run: &mut impl Run) {
    let counts = StreamPair::counts(&settings(0));
    if wire == Wire::Rdma {
        let mut world = Pair::rdma(&settings, &counts);
        world.schedule = (seed > 0).then(|| Schedule {
            rng: Rng::new(seed),
            mixed: true,
        });
        world.listen_both();
        run.run(&mut world, wire);
    } else {
        let cut = if seed > 0 {
            Cut::random(seed, 200)
        } else {
            Cut::Whole
        };
        let mut world = StreamPair::new(&settings, &counts, cut);
        world.listen_both();
        run.run(&mut world, wire);
    }
}

/// As much time passes.
fn pass<W: World>(world: &mut W, talk: &mut Talk, time: Duration) {
    let end = world.now().after(time);
    talk.settle(world);
    loop {
        let due = world
            .sides()
            .iter()
            .filter_map(|s| s.endpoint.poll_timeout());
        if due.min().is_none_or(|at| at > end) {
            break;
        }
        world.advance();
        talk.settle(world);
    }
    *world.clock() = end;
}

/// Long enough for what is left of a lost race, and shorter than any answer is waited for.
const MOMENT: Duration = Duration::from_secs(2);
/// The loser's patience.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections and transport connections of a side.
fn there<W: World>(world: &mut W, i: usize) -> (usize, usize) {
    let endpoint = &world.sides()[i].endpoint;
    (endpoint.connections().count(), endpoint.nexuses().count())
}

#[test]
fn of_two_races_exactly_one_is_won_and_none_against_oneself() {
    let numbers = [0u64, 1, 2, 3, 70, 71, u64::MAX - 1, u64::MAX];
    let races = |identity| (1..=4).map(move |number| Race { number, identity });
    let all: Vec<Race> = numbers.into_iter().flat_map(races).collect();
    for a in &all {
        assert!(!a.beats(*a));
        for b in all.iter().filter(|b| *b != a) {
            assert_ne!(a.beats(*b), b.beats(*a), "{a:?} {b:?}");
            if a.number > b.number {
                assert!(
                    a.beats(*b),
                    "a later attempt beats an earlier one: {a:?} {b:?}"
                );
            }
        }
    }
    assert_ne!(wire_identity(7, 0), wire_identity(7, 1));
    assert_eq!(wire_identity(0, 1), 0);
}

/// Both call, with messages queued, in the order and at the moments that a seed decides.
struct Both {
    rounds: usize,
    crossed: usize,
    holds: bool,
}

impl Run for Both {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let free = free_rows(world);
        for round in 0..self.rounds {
            let mut talk = Talk::default();
            world.cross(self.holds);
            for i in 0..2 {
                talk.connections[i] = Some(call(world, wire, i).expect("nobody is there"));
                for user in 0..3 {
                    talk.say(world, i, &Say::request(10 * i as u64 + user));
                }
            }
            talk.settle(world);
            world.cross(false);
            pass(world, &mut talk, MOMENT);
            assert_eq!(talk.established, [1, 1], "round {round}: {:#?}", talk.heard);
            assert_eq!(talk.asked, [0, 0], "{:#?}", talk.heard);
            for i in 0..2 {
                assert_eq!(there(world, i), (1, 1), "side {i}");
                for user in 0..3 {
                    let user = 10 * i as u64 + user;
                    let asked = format!("request {user}:");
                    assert_eq!(talk.count(1 - i, &asked), 1, "{:#?}", talk.heard);
                    let answered = format!("response {user}:");
                    assert_eq!(talk.count(i, &answered), 1, "{:#?}", talk.heard);
                }
                let setups = sent(&world.sides()[i], SETUP_REQ);
                self.crossed += usize::from(setups > 0);
                world.sides()[i].sent.clear();
            }
            let server = world.sides()[0].endpoint.connections().next();
            let by = usize::from(server.is_some_and(|c| !c.client));
            talk.close(world, by);
            assert_eq!(talk.connections, [None, None], "{:#?}", talk.heard);
            assert_eq!(free_rows(world), free, "all is given back");
        }
    }
}

#[test]
fn two_that_call_each_other_get_one_connection_and_all_their_messages() {
    for wire in WIRES {
        let mut both = Both {
            rounds: 1,
            crossed: 0,
            holds: false,
        };
        for seed in 0..200 {
            both.holds = seed % 2 == 0;
            with(wire, config, seed, &mut both);
        }
        // Setups of both were out in many of them, and in others one found a call that had none.
        assert!(both.crossed > 250, "{wire:?}: {}", both.crossed);
        assert!(both.crossed < 400, "{wire:?}: {}", both.crossed);
    }
}

#[test]
fn calling_at_the_same_instant_again_and_again_never_ends_in_two_or_none() {
    for wire in WIRES {
        let mut both = Both {
            rounds: 50,
            crossed: 0,
            holds: true,
        };
        with(wire, config, 0, &mut both);
        with(wire, config, 7, &mut both);
    }
}

/// The server says no with a code of its own: that is no lost race.
struct Refused;

impl Run for Refused {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let mut talk = Talk::default();
        let c = call(world, wire, 0).expect("nobody is there");
        talk.connections[0] = Some(c);
        talk.say(world, 0, &Say::request(1));
        world.run();
        let event = world.sides()[1].events.pop_front();
        let Some(Event::SessionRequest {
            session, only_from, ..
        }) = event
        else {
            panic!("{event:?}");
        };
        assert_eq!(only_from, Some(who(0)));
        // Whoever is asked cannot ask back.
        let there = CommandError::Exists(Existing::Session(session));
        assert_eq!(call(world, wire, 1), Err(there));
        let there = CommandError::Exists(Existing::Connection(c));
        assert_eq!(call(world, wire, 0), Err(there));
        let now = world.now();
        let side = &mut world.sides()[1];
        let crossed = side
            .endpoint
            .reject(now, session, status::CROSSED, b"", &mut side.slots);
        assert!(
            matches!(crossed, Err(CommandError::BadValue(_))),
            "{crossed:?}"
        );
        side.endpoint
            .reject(now, session, 5, b"", &mut side.slots)
            .expect("asked");
        talk.settle(world);
        assert_eq!(world.now(), now);
        assert_eq!(talk.count(0, "connect failed Rejected(5)"), 1);
        assert_eq!(talk.count(0, "failed 1: NeverSent(Rejected(5))"), 1);
        talk.outlive(world);
        assert_eq!(talk.count(0, "closed Rejected(5)"), 1, "{:#?}", talk.heard);
        // Nothing of it stands in the way.
        talk.connections[0] = Some(call(world, wire, 0).expect("nobody is there"));
        talk.settle(world);
        assert_eq!((talk.asked, talk.established), ([0, 1], [1, 1]));
        let there = talk.connections[1].map(Existing::Connection);
        let there = there.map(CommandError::Exists).map(Err);
        assert_eq!(Some(call(world, wire, 1)), there);
        talk.close(world, 0);
    }
}

#[test]
fn a_real_refusal_ends_it_at_once() {
    for wire in WIRES {
        with(wire, config, 0, &mut Refused);
    }
}

/// Somebody else answers, or nobody who could.
struct Wrong {
    /// Whom the caller wants.
    wants: u64,
    reason: Reason,
    /// The setup had to go to find that out.
    asks: bool,
}

impl Run for Wrong {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let free = free_rows(world);
        let mut talk = Talk::default();
        let options = only(wire, 60, self.wants);
        talk.connections[0] = Some(Talk::dial_with(world, &options));
        talk.say(world, 0, &Say::request(1));
        talk.settle(world);
        let reason = self.reason;
        assert_eq!(talk.count(0, &format!("connect failed {reason:?}")), 1);
        assert_eq!(
            talk.count(0, &format!("failed 1: NeverSent({reason:?})")),
            1
        );
        assert_eq!(talk.established[0], 0);
        assert_eq!(talk.count(1, "request"), 0);
        let setups = sent(&world.sides()[0], SETUP_REQ);
        assert_eq!(setups, usize::from(self.asks), "{wire:?} {reason:?}");
        talk.outlive(world);
        assert_eq!(free_rows(world), free);
    }
}

#[test]
fn somebody_else_is_not_taken_for_the_one_that_was_named() {
    for wire in WIRES {
        // On sockets a peer says who it is with its first answer.
        let late = wire != Wire::Rdma;
        let found = who(1);
        let mut wrong = Wrong {
            wants: found ^ 2,
            reason: Reason::WrongPeer { found },
            asks: late,
        };
        with(wire, config, 0, &mut wrong);
        let libxio = |i| if i == 1 { old(config(i)) } else { config(i) };
        let mut wrong = Wrong {
            wants: who(1),
            reason: Reason::WrongPeer { found: 0 },
            asks: false,
        };
        with(wire, libxio, 0, &mut wrong);
        let without = |i| Config {
            extensions: match i {
                1 => Extensions::DEFAULT.difference(Extensions::CROSS),
                _ => Extensions::DEFAULT,
            },
            ..config(i)
        };
        let mut wrong = Wrong {
            wants: who(1),
            reason: Reason::CannotCross { peer: who(1) },
            asks: late,
        };
        with(wire, without, 0, &mut wrong);
    }
}

#[test]
fn who_cannot_be_found_is_not_asked_for() {
    for (extensions, identity, wants) in [
        (Extensions::DEFAULT, 0, who(1)),
        (Extensions::DEFAULT, 70, 0),
        (Extensions::RESUME, 70, who(1)),
    ] {
        let settings = |i| Config {
            extensions,
            identity,
            ..config(i)
        };
        let mut world = Pair::rdma(settings, &Pair::counts(&config(0)));
        world.listen(50);
        let asked = Talk::dial_from(&mut world, 0, &only(Wire::Rdma, 60, wants));
        assert!(matches!(asked, Err(CommandError::BadValue(_))), "{asked:?}");
    }
}

/// The answer is taken for a lost race every time.
struct Hopeless {
    /// The user gives it up while it waits.
    ends: Option<bool>,
}

const CODE: u32 = 0x1122_3344;

impl Run for Hopeless {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let free = free_rows(world);
        world.meddler(Some(Box::new(|i, said, bytes| {
            if i == 1 && said == Said::Frame {
                let at = bytes.windows(4).position(|w| w == CODE.to_be_bytes());
                if let Some(at) = at {
                    bytes[at..at + 4].copy_from_slice(&status::CROSSED.to_be_bytes());
                }
            }
        })));
        let mut talk = Talk::default();
        let start = world.now();
        let c = call(world, wire, 0).expect("nobody is there");
        talk.connections[0] = Some(c);
        talk.say(world, 0, &Say::request(1));
        let mut asked = 0;
        while talk.count(0, "connect failed") == 0 {
            world.run();
            let now = world.now();
            let side = &mut world.sides()[1];
            while let Some(event) = side.events.pop_front() {
                if let Event::SessionRequest { session, .. } = event {
                    asked += 1;
                    side.endpoint
                        .reject(now, session, CODE, b"", &mut side.slots)
                        .expect("asked");
                }
            }
            world.run();
            if let Some(close) = self.ends {
                let endpoint = &mut world.sides()[0].endpoint;
                assert_eq!(
                    endpoint.connections().next().expect("it waits").state,
                    "Crossed"
                );
                let ended = match close {
                    true => endpoint.close(now, c),
                    false => endpoint.abort(now, c),
                };
                ended.expect("known");
            } else {
                assert!(world.advance());
            }
            let waits = std::mem::take(&mut world.sides()[1].events);
            talk.settle(world);
            world.sides()[1].events = waits;
        }
        let waited = world.now().since(start);
        if let Some(close) = self.ends {
            let reason = if close { "Closed" } else { "Aborted" };
            assert_eq!(talk.count(0, &format!("connect failed {reason}")), 1);
            assert_eq!((asked, waited), (1, Duration::ZERO));
        } else {
            let lost = talk.count(0, "connect failed RacesLost(4)");
            assert_eq!(lost, 1, "{wire:?} {:#?}", talk.heard);
            assert_eq!(talk.count(0, "failed 1: NeverSent(RacesLost(4))"), 1);
            assert_eq!(asked, 4);
            assert_eq!(waited, 4 * PATIENCE);
        }
        talk.outlive(world);
        assert_eq!(talk.count(0, "failed 1: NeverSent"), 1, "one outcome");
        assert_eq!(free_rows(world)[0], free[0]);
    }
}

#[test]
fn races_that_are_lost_for_ever_end_with_a_reason() {
    // On two streams the code goes where nobody meddles.
    for wire in [Wire::Rdma, Wire::Single] {
        for ends in [None, Some(true), Some(false)] {
            with(wire, config, 0, &mut Hopeless { ends });
        }
    }
}

/// The winner's setup hangs on its way: the loser's next attempt beats it.
struct Stuck;

impl Run for Stuck {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let (winner, loser) = if who(0) > who(1) { (0, 1) } else { (1, 0) };
        let mut talk = Talk::default();
        talk.connections[winner] = Some(call(world, wire, winner).expect("nobody is there"));
        talk.say(world, winner, &Say::request(1));
        world.deafen(loser);
        talk.settle(world);
        assert_eq!(sent(&world.sides()[winner], SETUP_REQ), 1);
        talk.connections[loser] = Some(call(world, wire, loser).expect("nobody asked"));
        talk.say(world, loser, &Say::request(2));
        let start = world.now();
        talk.settle(world);
        assert_eq!(talk.established, [0, 0]);
        let waits = world.sides()[loser].endpoint.connections().next();
        assert_eq!(waits.expect("it waits").state, "Crossed");
        while talk.established != [1, 1] {
            assert!(world.advance(), "{:#?}", talk.heard);
            talk.settle(world);
        }
        assert_eq!(world.now().since(start), PATIENCE);
        for (i, user) in [(winner, 1), (loser, 2)] {
            assert_eq!(talk.count(1 - i, &format!("request {user}:")), 1);
            assert_eq!(talk.count(i, &format!("response {user}:")), 1);
        }
        assert_eq!(talk.asked, [0, 0]);
        talk.close(world, winner);
    }
}

#[test]
fn a_winner_that_hangs_loses_the_next_race() {
    for wire in WIRES {
        let patient = |i| Config {
            setup_timeout: match wire_identity(config(i).identity, i) == who(0).max(who(1)) {
                true => 10 * PATIENCE,
                false => PATIENCE,
            },
            ..config(i)
        };
        with(wire, patient, 0, &mut Stuck);
    }
}

/// Others are on the loser's transport connection: it stays, and nothing else of the attempt does.
struct Shared;

impl Run for Shared {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let free = free_rows(world);
        let plain = ConnectOptions {
            dual_stream: wire == Wire::Dual,
            ..ConnectOptions::new(40)
        };
        let mut others = [None; 2];
        for (i, other) in others.iter_mut().enumerate() {
            *other = Some(Talk::dial_from(world, i, &plain).expect("room"));
        }
        let mut talk = Talk::default();
        talk.settle(world);
        assert_eq!((talk.established, talk.asked), ([2, 2], [1, 1]));
        world.cross(true);
        for i in 0..2 {
            talk.connections[i] = Some(call(world, wire, i).expect("nobody is there"));
            talk.say(world, i, &Say::request(i as u64));
        }
        talk.settle(world);
        world.cross(false);
        pass(world, &mut talk, MOMENT);
        assert_eq!((talk.established, talk.asked), ([3, 3], [1, 1]));
        for i in 0..2 {
            assert_eq!(talk.count(1 - i, &format!("request {i}:")), 1);
            assert_eq!(talk.count(i, &format!("response {i}:")), 1);
            // Two plain connections, and the one; all on the first two transport connections.
            assert_eq!(there(world, i), (3, 2), "side {i}");
        }
        let now = world.now();
        for (i, other) in others.into_iter().enumerate() {
            let endpoint = &mut world.sides()[i].endpoint;
            endpoint.close(now, other.expect("open")).expect("known");
        }
        talk.settle(world);
        talk.close(world, 0);
        assert_eq!(free_rows(world), free);
        // Nobody was told of what the two did not ask for.
        for i in 0..2 {
            assert_eq!(talk.count(i, "closed"), 3, "{:#?}", talk.heard);
            assert_eq!(talk.count(i, "session closed"), 3, "{:#?}", talk.heard);
        }
    }
}

#[test]
fn who_shares_a_losers_transport_connection_is_not_disturbed() {
    for wire in WIRES {
        with(wire, config, 0, &mut Shared);
    }
}

/// What each said with its connect comes to the other, whoever took whose session.
#[test]
fn both_hear_what_the_other_said_with_its_connect() {
    for hold in [true, false] {
        let mut world = Pair::rdma(config, &Pair::counts(&config(0)));
        world.listen_both();
        world.cross(hold);
        let said: [&[u8]; 2] = [b"from 0", b"and from 1"];
        for (i, private) in said.into_iter().enumerate() {
            let now = world.now;
            let side = &mut world.sides[i];
            let open = SessionOpen { uri: "", private };
            let options = only(Wire::Rdma, 60 + i as u64, who(1 - i));
            let peer = SERVER.parse().expect("an address");
            let (transport, slots) = (side.transport, &mut side.slots);
            side.endpoint
                .connect(now, transport, peer, &open, &options, slots)
                .expect("nobody is there");
        }
        world.run();
        world.cross(false);
        world.run();
        for i in 0..2 {
            let event = world.sides[i].events.pop_front();
            let Some(Event::Established { user, private, .. }) = event else {
                panic!("{event:?}");
            };
            assert_eq!(user, 60 + i as u64);
            assert_eq!(world.sides[i].bytes(private), said[1 - i]);
            assert!(world.sides[i].events.is_empty());
        }
    }
}

/// One side has lost the connection, and calls again before the other knows.
struct OneSided {
    /// Who calls again.
    by: usize,
}

impl Run for OneSided {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let by = self.by;
        let plain = ConnectOptions {
            dual_stream: wire == Wire::Dual,
            ..ConnectOptions::new(40)
        };
        // Keeps the transport connection of the calls up.
        let mut talk = Talk::default();
        let keeper = Talk::dial_from(world, 0, &plain).expect("room");
        talk.settle(world);
        talk.connections[0] = Some(call(world, wire, 0).expect("nobody is there"));
        talk.settle(world);
        assert_eq!(talk.established, [2, 2]);
        let now = world.now();
        let mine = talk.connections[by].expect("open");
        world.sides()[by].endpoint.abort(now, mine).expect("known");
        talk.settle(world);
        assert_eq!(talk.count(1 - by, "closed"), 0, "it does not know");
        talk.connections[by] = Some(call(world, wire, by).expect("nobody is there"));
        talk.say(world, by, &Say::request(1));
        talk.settle(world);
        while talk.count(by, "response 1") == 0 {
            assert!(world.advance(), "{:#?}", talk.heard);
            talk.settle(world);
            let waited = world.now().since(now);
            assert!(waited <= PATIENCE, "{wire:?} {by} {:#?}", talk.heard);
        }
        assert_eq!(talk.count(1 - by, "closed Disconnected"), 1);
        let now = world.now();
        world.sides()[0].endpoint.close(now, keeper).expect("known");
        talk.settle(world);
        talk.close(world, by);
    }
}

#[test]
fn a_connection_that_one_side_has_lost_makes_way_for_the_next() {
    for wire in WIRES {
        for by in 0..2 {
            with(wire, config, 0, &mut OneSided { by });
        }
    }
}

/// Who calls somebody of its own identity: that is itself.
struct Itself;

impl Run for Itself {
    fn run<W: Calls>(&mut self, world: &mut W, wire: Wire) {
        let mut talk = Talk::default();
        world.cross(true);
        for i in 0..2 {
            let c = Talk::dial_from(world, i, &only(wire, 60, who(0)));
            let c = c.expect("nobody is there");
            let there = CommandError::Exists(Existing::Connection(c));
            let again = Talk::dial_from(world, i, &only(wire, 61, who(0)));
            assert_eq!(again, Err(there));
        }
        talk.settle(world);
        world.cross(false);
        talk.settle(world);
        assert_eq!((talk.asked, talk.established), ([1, 1], [2, 2]));
        assert_eq!([there(world, 0), there(world, 1)], [(2, 2), (2, 2)]);
    }
}

#[test]
fn an_endpoint_that_calls_itself_is_in_no_race() {
    for wire in WIRES {
        with(wire, |_| config(0), 0, &mut Itself);
    }
}
