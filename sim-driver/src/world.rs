//! The world: endpoints with their users, what connects them, and time.

use std::net::IpAddr;

use xio_proto::storage::Counts;
use xio_proto::{Config, ConfigError, FreeRows, Start, TransportLimits};
use xio_record::{Recorder, Tape};

use crate::actor::Actor;
use crate::chaos::Chaos;
use crate::check::{Check, Fact, Ledger};
use crate::driver::{Desk, Habits, Hands, SimDriver, User, transport_limits};
use crate::env::Env;
use crate::fabric::{Fabric, FabricConfig, NicId, NicLimits};
use crate::link::{HostId, LinkConfig, Links};
use crate::queue::Event;
use crate::rng::Rng;
use crate::trace::MarkTrace;

/// What an endpoint is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The core's configuration.
    pub config: Config,
    /// Its tables.
    pub counts: Counts,
    /// What its device can do, if it has one.
    pub rdma: Option<NicLimits>,
    /// What its sockets can do and how they are used, if it has any.
    pub tcp: Option<(TransportLimits, Habits)>,
    /// A send is signalled at least every so many.
    pub signal_every: u16,
    /// Bytes for user buffers.
    pub arena: u32,
    /// Regions that can be registered.
    pub regions: u32,
    /// Where everything that enters the core is recorded.
    pub tape: Option<Tape>,
    /// The recorder keeps lines for people too.
    pub log: bool,
    /// A [`Watch`](crate::check::Watch) judges what its user hears.
    pub watch: bool,
}

impl NodeConfig {
    /// Sizes that are enough for some dozen connections.
    pub fn new(endpoint: u8) -> Self {
        let config = Config::new(endpoint, 1024, 256);
        let counts = Counts {
            listeners: 4,
            nexuses: 16,
            sessions: 64,
            connections: 64,
            tasks: 512,
            rx_slots: config.rx_slots as usize,
            tx_slots: config.tx_slots as usize,
            work: 2048,
            sockets: 64,
            extents: 64,
            regions: 16,
        };
        Self {
            config,
            counts,
            rdma: Some(NicLimits::default()),
            tcp: None,
            signal_every: 16,
            arena: 64 << 20,
            regions: 4096,
            tape: None,
            log: false,
            watch: true,
        }
    }

    fn recorder(&self) -> Option<Recorder<Tape>> {
        let start = Start {
            config: self.config.clone(),
            counts: self.counts,
        };
        let recorder = Recorder::new(self.tape.clone()?, &start);
        Some(if self.log {
            recorder.with_log()
        } else {
            recorder
        })
    }
}

/// An endpoint with its user.
#[derive(Debug)]
struct Node<U> {
    driver: SimDriver,
    user: U,
    /// What was free when nothing had happened.
    free: FreeRows,
    dead: bool,
    removed: bool,
}

/// Everything there is.
#[derive(Debug)]
pub struct World<U> {
    /// Time, chance, memory, trace.
    pub env: Env,
    /// The fabric.
    pub fabric: Fabric,
    /// The links.
    pub links: Links,
    /// What users observed.
    pub ledger: Ledger,
    nodes: Vec<Node<U>>,
    chaos: Option<Chaos>,
    events: u64,
    /// Facts known at an event, to see whether anything gets done.
    progress: (u64, u64),
    /// Endpoints that died and are to live again.
    reborn: Vec<usize>,
    check_every: u32,
}

impl<U: User> World<U> {
    /// An empty world.
    pub fn new(seed: u64, fabric: FabricConfig, links: LinkConfig) -> Self {
        Self::with_chance(Rng::new(seed), fabric, links)
    }

    /// An empty world in which this decides.
    pub fn with_chance(chance: Rng, fabric: FabricConfig, links: LinkConfig) -> Self {
        Self {
            env: Env::new(chance),
            fabric: Fabric::new(fabric),
            links: Links::new(links),
            ledger: Ledger::new(),
            nodes: Vec::new(),
            chaos: None,
            events: 0,
            progress: (0, 0),
            reborn: Vec::new(),
            check_every: 0,
        }
    }

    /// Adds an endpoint at an address, for queue pairs, for sockets or for both, and returns its
    /// number.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn add(
        &mut self,
        node: &NodeConfig,
        address: IpAddr,
        user: U,
    ) -> Result<usize, ConfigError> {
        let mut driver = SimDriver::new(
            &mut self.env,
            node.config.clone(),
            &node.counts,
            node.arena,
            node.regions,
            node.recorder(),
        )?;
        if node.watch {
            driver.watch();
        }
        if let Some(limits) = node.rdma {
            let nic = self.fabric.add_nic(driver.number(), address, limits);
            let mut stated = transport_limits(&limits);
            stated.signal_every = node.signal_every;
            driver.add_rdma(nic, limits, stated)?;
        }
        if let Some((limits, habits)) = node.tcp {
            let host = self.links.add_host(driver.number(), address);
            driver.add_tcp(host, habits, limits)?;
        }
        driver.check_every(self.check_every);
        let free = driver.core().free_rows();
        self.nodes.push(Node {
            driver,
            user,
            free,
            dead: false,
            removed: false,
        });
        Ok(self.nodes.len() - 1)
    }

    /// Has every core's own invariants checked at every so manieth step (0 is never).
    pub fn check_every(&mut self, steps: u32) {
        self.check_every = steps;
        for node in &mut self.nodes {
            node.driver.check_every(steps);
        }
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }
    /// Endpoints.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
    /// An endpoint's user.
    pub fn user(&self, number: usize) -> &U {
        &self.nodes[number].user
    }
    /// An endpoint's driver.
    pub fn driver(&self, number: usize) -> &SimDriver {
        &self.nodes[number].driver
    }
    /// An endpoint's driver, to change.
    pub fn driver_mut(&mut self, number: usize) -> &mut SimDriver {
        &mut self.nodes[number].driver
    }
    /// What all endpoints' cores did.
    pub fn marks(&self) -> MarkTrace {
        let mut all = MarkTrace::new();
        for node in &self.nodes {
            all.merge(node.driver.core().trace());
        }
        all
    }

    /// Lets an endpoint's user do something, and executes what follows from it.
    pub fn act(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut U, &mut crate::driver::Core, &mut Desk<'_>),
    ) {
        let node = &mut self.nodes[number];
        if node.dead {
            return;
        }
        node.driver.tell_clock(&self.env);
        let mut desk = node.driver.desk(&mut self.env, &mut self.ledger);
        act(&mut node.user, node.driver.core_mut(), &mut desk);
        self.with(number, |driver, hands| driver.wake(hands));
    }

    fn with(&mut self, number: usize, run: impl FnOnce(&mut SimDriver, &mut Hands<'_, U>)) {
        let node = &mut self.nodes[number];
        if node.dead {
            return;
        }
        let mut hands = Hands {
            env: &mut self.env,
            fabric: &mut self.fabric,
            links: &mut self.links,
            ledger: &mut self.ledger,
            user: &mut node.user,
        };
        run(&mut node.driver, &mut hands);
    }

    /// Lets the next event happen. False when there is none.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.env.queue.pop() else {
            return false;
        };
        self.events += 1;
        match event {
            Event::Fabric(event) => self.fabric.handle(&mut self.env, event),
            Event::Link(event) => self.links.handle(&mut self.env, event),
            Event::Wake(number) => {
                if self.env.take_wake(number) {
                    self.with(number as usize, |driver, hands| driver.wake(hands));
                }
            }
            Event::Actor(number) => {
                self.with(number as usize, |driver, hands| driver.turn(hands));
            }
            Event::Fault(number) => self.with_chaos(|chaos, world| chaos.event(world, number)),
        }
        true
    }

    /// Events without a fact that are too many: somebody is busy with nothing.
    const IDLE_EVENTS: u64 = 100_000;

    /// Runs until `done`, or a time, or until nothing happens any more. False when it is not
    /// worth going on: nothing got done for too long.
    pub fn run_until(&mut self, at: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        while self.env.queue.next_at().is_some_and(|next| next <= at) {
            if done(self) {
                return true;
            }
            if !self.step() || !self.gets_done() {
                return false;
            }
        }
        done(self)
    }

    /// Lets time pass, and what happens of itself.
    pub fn rest_until(&mut self, at: u64) {
        while self.env.queue.next_at().is_some_and(|next| next <= at) {
            self.step();
        }
        self.progress = (self.ledger.facts(), self.events);
    }

    /// True when an endpoint that died is to live again.
    pub fn is_rebirth_due(&self) -> bool {
        !self.reborn.is_empty()
    }
    /// The next endpoint that is to live again: another one takes its address.
    pub fn take_rebirth(&mut self) -> Option<usize> {
        self.reborn.pop()
    }

    fn gets_done(&mut self) -> bool {
        let (facts, since) = self.progress;
        if self.ledger.facts() != facts {
            self.progress = (self.ledger.facts(), self.events);
            return true;
        }
        if self.events - since < Self::IDLE_EVENTS {
            return true;
        }
        if self.events - since == Self::IDLE_EVENTS {
            let at = self.env.now();
            let text = format!("{} events in which nothing got done", Self::IDLE_EVENTS);
            self.ledger.breach(at, Check::Quiescence, text);
        }
        false
    }

    /// Lets things go wrong from outside.
    pub fn start_chaos(&mut self, chaos: Chaos) {
        self.chaos = Some(chaos);
        self.with_chaos(|chaos, world| chaos.start(world));
    }
    /// Nothing goes wrong any more; what is broken is repaired, except the dead.
    pub fn heal(&mut self) {
        self.with_chaos(|chaos, world| chaos.end(world));
        self.env.swarm.heal();
        for number in 0..self.nodes.len() {
            self.with(number, |driver, hands| {
                driver.end_strays(hands.env, hands.links);
            });
        }
    }

    fn with_chaos(&mut self, run: impl FnOnce(&mut Chaos, &mut Self)) {
        if let Some(mut chaos) = self.chaos.take() {
            run(&mut chaos, self);
            self.chaos = Some(chaos);
        }
    }

    /// True when nothing lives on any endpoint that lives.
    pub fn all_gone(&self) -> bool {
        // Somebody may still wait in a backlog.
        let free = |node: &Node<U>| node.driver.core().free_rows() == node.free;
        self.links.sockets_live() == 0 && self.living().all(free)
    }

    fn living(&self) -> impl Iterator<Item = &Node<U>> {
        self.nodes.iter().filter(|node| !node.dead)
    }

    /// Everybody has left: says what is not as it was in the beginning.
    pub fn finish(&mut self) {
        let at = self.env.now();
        self.ledger.finish(at);
        for violation in &self.env.violations {
            self.ledger
                .breach(violation.at, Check::Forbidden, violation.to_string());
        }
        for (number, node) in self.nodes.iter().enumerate() {
            for (check, text) in node.driver.core().trace().breaches() {
                let text = format!("endpoint {number}: {text}");
                self.ledger.breach(at, *check, text);
            }
            if node.dead {
                continue;
            }
            let counters = node.driver.core().counters();
            let lonely = node.driver.core().config().extensions.is_empty();
            if lonely && counters.cancels_ignored > 0 {
                // A libxio would have died of it.
                let text = format!("endpoint {number} was sent cancels that it never agreed to");
                self.ledger.breach(at, Check::Forbidden, text);
            }
            let free = node.driver.core().free_rows();
            if free != node.free {
                let text = format!("endpoint {number}: {free:?} free, {:?} before", node.free);
                self.ledger.breach(at, Check::Conservation, text);
            }
            let memory = &self.env.memory[number];
            let (bytes, slots) = (memory.in_use(), memory.slots_posted());
            if bytes != 0 || slots != 0 {
                let text = format!("endpoint {number}: {bytes} bytes and {slots} slots are out");
                self.ledger.breach(at, Check::Conservation, text);
            }
        }
        let ids = self.fabric.ids_live();
        if ids != 0 {
            let text = format!("{ids} queue pairs are left");
            self.ledger.breach(at, Check::Conservation, text);
        }
        let sockets = self.links.sockets_live();
        if sockets != 0 {
            let text = format!("{sockets} sockets are left");
            self.ledger.breach(at, Check::Conservation, text);
        }
    }
}

impl World<Actor> {
    /// True when every user has done what it wanted, and its connections are over.
    pub fn all_done(&self) -> bool {
        self.living().all(|node| node.user.is_done())
    }
}

/// What can be done to a world from outside. Each says whether there was anything to do it to.
pub(crate) trait Faulty {
    fn env(&mut self) -> &mut Env;
    /// Endpoints.
    fn count(&self) -> usize;
    /// A link that is down for this long costs no connection.
    fn retry_bound(&self) -> u64;
    fn cut_link(&mut self, number: usize, for_ns: u64) -> bool;
    fn heal_links(&mut self);
    fn stall(&mut self, number: usize, most_ns: u64) -> bool;
    fn jump_clock(&mut self, number: usize, nanos: i64) -> bool;
    fn change_address(&mut self, number: usize) -> bool;
    fn fail_queue_pair(&mut self, number: usize) -> bool;
    fn remove_device(&mut self, number: usize) -> bool;
    fn restore_device(&mut self, number: usize);
    fn kill(&mut self, number: usize) -> bool;
    /// Somebody who does not speak the protocol connects from the host of `number`.
    fn send_stray(&mut self, number: usize, rng: &mut Rng) -> bool;
    fn revive(&mut self, number: usize);
}

impl<U: User> World<U> {
    fn living_nic(&self, number: usize) -> Option<NicId> {
        let node = self
            .nodes
            .get(number)
            .filter(|node| !node.dead && !node.removed)?;
        node.driver.nic()
    }
    fn living_host(&self, number: usize) -> Option<HostId> {
        let node = self.nodes.get(number).filter(|node| !node.dead)?;
        node.driver.host()
    }
}

impl<U: User> Faulty for World<U> {
    fn env(&mut self) -> &mut Env {
        &mut self.env
    }
    fn count(&self) -> usize {
        self.nodes.len()
    }
    fn retry_bound(&self) -> u64 {
        // The first try may have been at any time before; half of the retries are safe.
        self.fabric.config().retry_timeout * 3
    }
    fn cut_link(&mut self, number: usize, for_ns: u64) -> bool {
        let (nic, host) = (self.living_nic(number), self.living_host(number));
        if let Some(nic) = nic {
            self.fabric.cut_link(&mut self.env, nic, for_ns);
        }
        if let Some(host) = host {
            self.links.cut_link(&mut self.env, host, for_ns);
        }
        nic.is_some() || host.is_some()
    }
    fn heal_links(&mut self) {
        for number in 0..self.nodes.len() {
            if let Some(nic) = self.living_nic(number) {
                self.fabric.heal_link(&mut self.env, nic);
            }
            if let Some(host) = self.living_host(number) {
                self.links.heal_link(host);
            }
        }
    }
    fn stall(&mut self, number: usize, most_ns: u64) -> bool {
        let Some(nic) = self.living_nic(number) else {
            return false;
        };
        self.fabric.stall(&mut self.env, nic, most_ns);
        true
    }
    fn jump_clock(&mut self, number: usize, nanos: i64) -> bool {
        self.nodes[number].driver.jump_clock(nanos);
        self.env.wake_after(number as u32, 0);
        true
    }
    fn change_address(&mut self, number: usize) -> bool {
        let Some(nic) = self.living_nic(number) else {
            return false;
        };
        self.fabric.change_address(&mut self.env, nic);
        true
    }
    fn fail_queue_pair(&mut self, number: usize) -> bool {
        let Some(nic) = self.living_nic(number) else {
            return false;
        };
        self.fabric.fail_queue_pair(&mut self.env, nic)
    }
    fn remove_device(&mut self, number: usize) -> bool {
        let Some(nic) = self.living_nic(number) else {
            return false;
        };
        self.nodes[number].removed = true;
        self.fabric.remove_device(&mut self.env, nic);
        true
    }
    fn restore_device(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.removed = false;
        if let Some(nic) = node.driver.nic().filter(|_| !node.dead) {
            self.fabric.restore_device(&mut self.env, nic);
            self.env.wake_after(number as u32, 0);
        }
    }
    fn kill(&mut self, number: usize) -> bool {
        // Somebody has to be left to notice.
        if self.living().count() < 3 {
            return false;
        }
        if self.nodes[number].dead || self.nodes[number].removed {
            return false;
        }
        let driver = &self.nodes[number].driver;
        if let Some(nic) = driver.nic() {
            self.fabric.kill(&mut self.env, nic);
        }
        if let Some(host) = driver.host() {
            self.links.kill(&mut self.env, host);
        }
        let node = &mut self.nodes[number];
        node.dead = true;
        let at = self.env.now();
        for side in node.user.sides() {
            self.ledger.take(at, Fact::Died { side });
        }
        true
    }
    fn send_stray(&mut self, number: usize, rng: &mut Rng) -> bool {
        if self.living_host(number).is_none() {
            return false;
        }
        let other = rng.below(self.nodes.len() as u64) as usize;
        let Some(host) = self.nodes[other].driver.host() else {
            return false;
        };
        let Some(to) = self.links.listening(host) else {
            return false;
        };
        let driver = &mut self.nodes[number].driver;
        driver.send_stray(&mut self.env, &mut self.links, to, rng)
    }
    fn revive(&mut self, number: usize) {
        self.reborn.push(number);
    }
}
