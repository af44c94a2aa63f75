//! The world: endpoints with their users, what connects them, and time.

use std::net::IpAddr;

use xio_proto::storage::Counts;
use xio_proto::{Config, ConfigError, FreeRows};

use crate::check::{Check, Ledger};
use crate::driver::{Desk, Hands, SimDriver, User, transport_limits};
use crate::env::Env;
use crate::fabric::{Fabric, FabricConfig, NicLimits};
use crate::link::{LinkConfig, Links};
use crate::queue::Event;
use crate::trace::MarkTrace;

/// What an endpoint is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The core's configuration.
    pub config: Config,
    /// Its tables.
    pub counts: Counts,
    /// Its device.
    pub limits: NicLimits,
    /// A send is signalled at least every so many.
    pub signal_every: u16,
    /// Bytes for user buffers.
    pub arena: u32,
    /// Regions that can be registered.
    pub regions: u32,
}

impl NodeConfig {
    /// Sizes that are enough for some dozen connections.
    pub fn new(endpoint: u8) -> Self {
        let config = Config::new(endpoint, 1024, 256);
        let counts = Counts {
            listeners: 2,
            nexuses: 16,
            sessions: 64,
            connections: 64,
            tasks: 512,
            rx_slots: config.rx_slots as usize,
            tx_slots: config.tx_slots as usize,
            work: 2048,
            sockets: 0,
            extents: 64,
        };
        Self {
            config,
            counts,
            limits: NicLimits::default(),
            signal_every: 16,
            arena: 64 << 20,
            regions: 4096,
        }
    }
}

/// An endpoint with its user.
#[derive(Debug)]
struct Node<U> {
    driver: SimDriver,
    user: U,
    /// What was free when nothing had happened.
    free: FreeRows,
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
    events: u64,
}

impl<U: User> World<U> {
    /// An empty world.
    pub fn new(seed: u64, fabric: FabricConfig, links: LinkConfig) -> Self {
        Self {
            env: Env::new(seed),
            fabric: Fabric::new(fabric),
            links: Links::new(links),
            ledger: Ledger::new(),
            nodes: Vec::new(),
            events: 0,
        }
    }

    /// Adds an endpoint with a device at an address, and returns its number.
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
        )?;
        let nic = self.fabric.add_nic(driver.number(), address, node.limits);
        let mut stated = transport_limits(&node.limits);
        stated.signal_every = node.signal_every;
        driver.add_rdma(nic, node.limits, stated)?;
        let free = driver.core().free_rows();
        self.nodes.push(Node { driver, user, free });
        Ok(self.nodes.len() - 1)
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
        let now = node.driver.now(&self.env);
        let rdma = node.driver.transport();
        let mut desk = Desk {
            env: &mut self.env,
            ledger: &mut self.ledger,
            number: number as u32,
            now,
            rdma,
        };
        act(&mut node.user, node.driver.core_mut(), &mut desk);
        self.with(number, |driver, hands| driver.wake(hands));
    }

    fn with(&mut self, number: usize, run: impl FnOnce(&mut SimDriver, &mut Hands<'_, U>)) {
        let node = &mut self.nodes[number];
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
            Event::Fault(_) => {}
        }
        true
    }

    /// Runs until `done`, or a time, or until nothing happens any more.
    pub fn run_until(&mut self, at: u64, mut done: impl FnMut(&Self) -> bool) {
        while self.env.queue.next_at().is_some_and(|next| next <= at) {
            if done(self) || !self.step() {
                return;
            }
        }
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
    }
}
