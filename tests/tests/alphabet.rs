//! The alphabet of operations as a state machine of proptest: sequences that make sense, which shrink
//! to what matters when a step breaks a rule. `PROPTEST_CASES` asks for more than a few seconds.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::strategy::Union;
use proptest::test_runner::{Config as Runner, RngAlgorithm, TestError, TestRng, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use xio_proto::Config;
use xio_sim::FaultLevel;
use xio_tests::alphabet::{Act, CONFIG, Dial, Kind, Lie, Op, Road, Shape, Wants, World};
use xio_tests::hostile::Choices;

/// What users of one side may have to do, at most: what came of commands is not known here, so that
/// sequences can be drawn, and shortened, without an endpoint.
#[derive(Clone, Debug, Default)]
struct Outline {
    listens: bool,
    asked: u32,
    accepted: u32,
    sent: u32,
    slots: u32,
    tickets: u32,
    regions: u32,
    over: bool,
}

/// What makes sense next.
#[derive(Clone, Debug)]
struct Plan {
    sides: [Outline; 2],
    /// The connection is there when the sequence begins.
    open: bool,
    troubles: u32,
}

impl Plan {
    /// Whether there may be something that the operation is about.
    fn allows(&self, op: &Op) -> bool {
        let (here, there) = (&self.sides[op.side], &self.sides[1 - op.side]);
        let connections = here.asked + here.accepted > 0;
        match op.act {
            Act::Listen => !here.listens,
            Act::Unlisten => here.listens,
            Act::Accept(..) | Act::Reject(_) | Act::Redirect(_) => there.asked > 0,
            Act::Connect(_) => here.asked < 6 && !here.over,
            Act::Send(..) | Act::Reserve(_) => connections && !here.over,
            Act::Close(_) | Act::Abort(_) | Act::Export(_) | Act::Join(_) => connections,
            Act::Answer(..) | Act::Receipt(..) => there.sent > 0,
            Act::Release(_) | Act::Provide(_) | Act::Refuse(..) => here.sent + there.sent > 0,
            Act::Cancel(_) => here.sent > 0,
            Act::Return(_) => here.slots > 0,
            Act::Import(_) => here.tickets + there.tickets > 0,
            Act::Revoke(_) => here.regions > 0,
            Act::Direct(..) => there.regions > 0 && connections,
            Act::Device(_) | Act::Complete(_) | Act::Cm | Act::Lose(..) => {
                here.asked + there.asked > 0
            }
            Act::Stop(_) | Act::Remove | Act::Restart | Act::Lie(..) | Act::Unpostable => {
                self.troubles < 3
            }
            _ => true,
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let len = prop_oneof![Just(0_u16), 1..300_u16, 300..1200_u16, 1200..6000_u16];
    (len, 0..6_u8, any::<bool>(), any::<bool>()).prop_map(|(len, pieces, apart, prompt)| Shape {
        len,
        pieces,
        apart,
        prompt,
    })
}

fn wants() -> impl Strategy<Value = Wants> {
    let room = prop_oneof![2 => Just(0_u16), 1 => 1..500_u16, 1 => 500..6000_u16];
    let deadline = prop_oneof![3 => Just(0_u8), 1 => 1..20_u8];
    (room, any::<bool>(), deadline, any::<bool>()).prop_map(
        |(room, receipt, deadline, idempotent)| Wants {
            room,
            receipt,
            deadline,
            idempotent,
        },
    )
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Request),
        2 => Just(Kind::OneWay),
        1 => Just(Kind::Receipted),
    ]
}

fn dial() -> impl Strategy<Value = Dial> {
    (any::<bool>(), any::<bool>()).prop_map(|(own, again)| Dial { own, again })
}

fn command() -> impl Strategy<Value = Act> {
    let which = || 0..8_u8;
    prop_oneof![
        8 => (which(), kind(), shape(), wants())
            .prop_map(|(on, kind, shape, wants)| Act::Send(on, kind, shape, wants)),
        5 => (which(), shape()).prop_map(|(which, shape)| Act::Answer(which, shape)),
        4 => which().prop_map(Act::Release),
        3 => which().prop_map(Act::Provide),
        2 => dial().prop_map(Act::Connect),
        2 => (which(), proptest::bool::weighted(0.1)).prop_map(|(w, p)| Act::Accept(w, p)),
        2 => Just(Act::Listen),
        1 => which().prop_map(Act::Cancel),
        1 => which().prop_map(Act::Close),
        1 => (which(), any::<u8>()).prop_map(|(which, what)| Act::Stale(which, what)),
        1 => (which(), any::<u8>()).prop_map(|(which, code)| Act::Receipt(which, code)),
        1 => rare_command(),
    ]
}

fn rare_command() -> impl Strategy<Value = Act> {
    let which = || 0..8_u8;
    prop_oneof![
        Just(Act::Unlisten),
        Just(Act::Register),
        which().prop_map(Act::Reject),
        which().prop_map(Act::Redirect),
        which().prop_map(Act::Abort),
        which().prop_map(Act::Reserve),
        which().prop_map(Act::Return),
        which().prop_map(Act::Revoke),
        which().prop_map(Act::Export),
        which().prop_map(Act::Import),
        which().prop_map(Act::Join),
        (which(), any::<u8>()).prop_map(|(which, code)| Act::Refuse(which, code)),
        (which(), any::<bool>(), any::<u8>())
            .prop_map(|(on, write, len)| Act::Direct(on, write, len)),
    ]
}

fn world() -> impl Strategy<Value = Act> {
    let pair = || 0..3_u8;
    prop_oneof![
        1 => Just(Act::Control),
        2 => Just(Act::Work),
        1 => Just(Act::Hear),
        5 => Just(Act::Settle),
        4 => pair().prop_map(Act::Device),
        4 => pair().prop_map(Act::Complete),
        3 => Just(Act::Cm),
        1 => (0..2000_u16).prop_map(Act::Time),
        1 => Just(Act::Deadline),
        5 => (1..4_u8).prop_map(Act::Run),
    ]
}

fn trouble() -> impl Strategy<Value = Act> {
    let lie = prop_oneof![
        (0..18_u8, any::<bool>()).prop_map(|(kind, good)| Lie::Cm(kind, good)),
        any::<u8>().prop_map(Lie::Completion),
        any::<u32>().prop_map(Lie::Stranger),
        Just(Lie::NoQueuePair),
        Just(Lie::NotPosted),
        Just(Lie::DriverFailed),
        Just(Lie::ListenFailed),
        Just(Lie::NoRegion),
        Just(Lie::Revoked),
    ];
    prop_oneof![
        3 => (0..3_u8, any::<bool>()).prop_map(|(pair, told)| Act::Lose(pair, told)),
        1 => Just(Act::Unpostable),
        1 => Just(Act::Restart),
        1 => Just(Act::Remove),
        1 => any::<u8>().prop_map(Act::Stop),
        4 => (any::<u8>(), lie).prop_map(|(which, lie)| Act::Lie(which, lie)),
    ]
}

impl ReferenceStateMachine for Plan {
    type State = Self;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<Self> {
        proptest::bool::weighted(0.8)
            .prop_map(|open| {
                let mut sides = [Outline::default(), Outline::default()];
                if open {
                    (sides[0].asked, sides[1].accepted, sides[1].listens) = (1, 1, true);
                }
                Self {
                    sides,
                    open,
                    troubles: 0,
                }
            })
            .boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Op> {
        let act = Union::new_weighted(vec![
            (20, command().boxed()),
            (20, world().boxed()),
            (1, trouble().boxed()),
        ]);
        (0..2_usize, act)
            .prop_map(|(side, act)| Op::at(side, act))
            .boxed()
    }

    fn apply(mut plan: Self, op: &Op) -> Self {
        let here = &mut plan.sides[op.side];
        match op.act {
            Act::Listen => here.listens = true,
            Act::Unlisten => here.listens = false,
            Act::Connect(_) => here.asked += 1,
            Act::Accept(..) => here.accepted += 1,
            Act::Send(..) => here.sent += 1,
            Act::Reserve(_) => here.slots += 1,
            Act::Export(_) => here.tickets += 1,
            Act::Register => here.regions += 1,
            Act::Stop(_) => here.over = true,
            Act::Restart => *here = Outline::default(),
            _ => {}
        }
        let trouble = matches!(
            op.act,
            Act::Stop(_) | Act::Remove | Act::Restart | Act::Lie(..) | Act::Unpostable
        );
        plan.troubles += u32::from(trouble);
        plan
    }

    fn preconditions(plan: &Self, op: &Op) -> bool {
        plan.allows(op)
    }
}

thread_local! {
    /// Settings of the endpoints under test.
    static SETTINGS: RefCell<Config> = const { RefCell::new(CONFIG) };
}

/// Two endpoints under test.
struct Endpoints;

fn start(plan: &Plan, config: &Config) -> World {
    let mut world = World::new(config).comparing();
    if plan.open {
        world.open();
    }
    world
}

impl StateMachineTest for Endpoints {
    type SystemUnderTest = World;
    type Reference = Plan;

    fn init_test(plan: &Plan) -> World {
        SETTINGS.with_borrow(|config| start(plan, config))
    }

    fn apply(mut world: World, _: &Plan, op: Op) -> World {
        world.step(op);
        world
    }

    fn check_invariants(world: &World, _: &Plan) {
        world.check_invariants();
    }

    fn teardown(mut world: World, _: Plan) {
        world.finish();
    }
}

/// Cases of the suite, and the same ones each time.
fn runner(cases: u32, shrinks: u32) -> TestRunner {
    let config = Runner {
        cases,
        failure_persistence: None,
        max_shrink_iters: shrinks,
        ..Runner::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[1; 32]))
}

fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.map_or(200, |asked| asked.parse().expect("a number of cases"))
}

/// Sequences until one breaks a rule; its shortest form then.
fn search(cases: u32, shrinks: u32) -> Result<(), String> {
    let sequences = Plan::sequential_strategy(1..120);
    let done = runner(cases, shrinks).run(&sequences, |(plan, ops, seen)| {
        Endpoints::test_sequential(Runner::default(), plan, ops, seen);
        Ok(())
    });
    match done {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, (_, ops, _))) => {
            let acts: Vec<_> = ops.iter().map(|op| (op.side, op.act)).collect();
            Err(format!("{why} after {acts:?}"))
        }
        Err(other) => Err(other.to_string()),
    }
}

#[test]
fn users_hear_what_the_model_allows() {
    if let Err(found) = search(cases(), 4000) {
        panic!("{found}");
    }
}

/// Cores with a deliberate fault, and how many sequences may be needed to find it.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_faults_are_found() {
    use xio_proto::Mutant;

    let faults = [
        Mutant::SlotLeaked,
        Mutant::OutcomeLost,
        Mutant::ReceiptForgotten,
        Mutant::ReturnedEarly,
        Mutant::ReturnedByDevice,
        Mutant::NumberStuck,
        Mutant::Overtaken,
        Mutant::LastUnsignaled,
        Mutant::DeadlineIgnored,
        Mutant::WrongPlace,
        Mutant::ClosedEarly,
        Mutant::FinUnanswered,
        Mutant::StoppedEarly,
        Mutant::CancelledShown,
    ];
    let mut missed = Vec::new();
    for fault in faults {
        SETTINGS.set(Config {
            mutant: Some(fault),
            ..CONFIG
        });
        match search(300, 60) {
            Err(found) => println!("{fault:?}: {found}"),
            Ok(()) => missed.push(fault),
        }
    }
    assert_eq!(missed, []);
}

/// Memory that a peer may still reach comes back when the last connection leaves the transport
/// connection, also that of connections that left before.
#[test]
fn memory_of_all_comes_back_when_the_last_connection_leaves() {
    let mut world = World::default();
    world.open();
    let shape = Shape {
        len: 1,
        pieces: 1,
        apart: true,
        prompt: false,
    };
    let send = Act::Send(0, Kind::Request, shape, Wants::default());
    for act in [Act::Connect(Dial::default()), send, Act::Close(0)] {
        world.step(Op::at(0, act));
    }
    world.finish();
}

/// A connection that waits to be made anew has no session, and can be looked at all the same.
#[test]
fn connections_that_wait_can_be_looked_at() {
    let mut world = World::default();
    let again = Dial {
        own: false,
        again: true,
    };
    let steps = [
        Op::at(1, Act::Listen),
        Op::at(0, Act::Connect(again)),
        Op::at(0, Act::Run(64)),
        Op::at(1, Act::Accept(0, false)),
        Op::at(0, Act::Run(64)),
        Op::at(0, Act::Lose(0, true)),
        Op::at(0, Act::Run(64)),
    ];
    for op in steps {
        world.step(op);
    }
    world.finish();
}

#[test]
fn any_bytes_are_operations_and_messages_come_through() {
    let mut delivered = 0;
    for seed in 1..400_u64 {
        let bytes = some_bytes(seed, 1500);
        let mut choices = Choices::new(&bytes);
        let mut world = World::default();
        if seed % 4 > 0 {
            world.open();
        }
        for _ in 0..400 {
            if choices.is_empty() {
                break;
            }
            world.step(Op::read(&mut choices));
        }
        world.finish();
        delivered += world.delivered();
    }
    assert!(delivered > 400, "only {delivered} messages came through");
}

/// A READ that waits for its connection to come up, at another portal than it was meant for, is one
/// of the transport connection that it is posted on.
#[test]
fn direct_reads_are_counted_where_they_are_posted() {
    let mut world = World::default();
    let own = Dial {
        own: true,
        again: false,
    };
    let steps = [
        Op::at(1, Act::Listen),
        Op::at(0, Act::Connect(own)),
        Op::at(0, Act::Run(64)),
        Op::at(1, Act::Accept(0, false)),
        Op::at(1, Act::Register),
        Op::at(0, Act::Run(64)),
        Op::at(0, Act::Connect(own)),
        Op::at(0, Act::Run(64)),
        Op::at(0, Act::Direct(1, false, 10)),
        Op::at(1, Act::Accept(0, true)),
        Op::at(0, Act::Run(64)),
        Op::at(0, Act::Run(64)),
    ];
    for op in steps {
        world.step(op);
    }
    world.finish();
}

/// Memory that was given for a request is its user's again with the request, also when the endpoint
/// answers it for a user that gave it back, and that answer is lost.
#[test]
fn memory_of_a_request_comes_back_once() {
    let mut world = World::default();
    world.open();
    let shape = Shape {
        len: 10,
        pieces: 1,
        apart: true,
        prompt: false,
    };
    let steps = [
        Op::at(0, Act::Send(0, Kind::Request, shape, Wants::default())),
        Op::at(0, Act::Run(64)),
        Op::at(1, Act::Provide(0)),
        Op::at(1, Act::Run(64)),
        Op::at(0, Act::Cancel(0)),
        Op::at(0, Act::Run(64)),
        Op::at(1, Act::Release(0)),
        Op::at(1, Act::Work),
        Op::at(1, Act::Abort(0)),
        Op::at(1, Act::Run(64)),
    ];
    for op in steps {
        world.step(op);
    }
    world.finish();
}

/// The same operations in worlds of the simulator, with their faults, over a fabric and sockets.
#[test]
fn the_same_users_in_simulated_worlds() {
    let roads = [Road::Rdma, Road::Tcp];
    let levels = [FaultLevel::None, FaultLevel::Some, FaultLevel::All];
    let mut delivered = [0; 2];
    for seed in 1..=5 * u64::from(cases()) {
        let (road, faults) = ((seed % 2) as usize, levels[(seed % 3) as usize]);
        let bytes = some_bytes(seed, 1500);
        let mut choices = Choices::new(&bytes);
        let mut world = World::simulated(seed, faults, roads[road]);
        world.open();
        for _ in 0..400 {
            if choices.is_empty() {
                break;
            }
            world.step(Op::read(&mut choices));
        }
        world.finish();
        delivered[road] += world.delivered();
    }
    let least = u64::from(cases());
    assert!(delivered.iter().all(|&came| came > least), "{delivered:?}");
}

fn some_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}
