//! The demo in the simulator: one thread, virtual time, a fabric of queue pairs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use indicatif::ProgressBar;
use xio_sim::fabric::FabricConfig;
use xio_sim::link::LinkConfig;
use xio_sim::{NodeConfig, World};

use super::peer::Peer;
use super::plan::Plan;
use super::tally::{Figures, Tally};
use super::timeline::Timeline;
use super::{DEPTH, MEMORY, traffic, verdict};
use crate::args::DemoArgs;
use crate::output::{Count, Nanos, Output};

/// Places of the two in the world.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Where the server listens.
const PORT: u16 = 2061;

/// Virtual time after which the demo is given up; nothing in it takes minutes.
const TOO_LONG: u64 = 24 * 3600 * 1_000_000_000;

/// Events between two looks at the progress bar.
const BAR_EVERY: u32 = 4096;

/// The world is the same in every run.
const SEED: u64 = 1;

fn address(place: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, place as u8 + 1))
}

/// A demo over the simulator.
pub(super) struct Demo<'a> {
    world: World<Peer>,
    plan: Plan,
    depth: u32,
    timeline: Timeline,
    bar: ProgressBar,
    out: &'a Output,
}

impl<'a> Demo<'a> {
    /// A world for what was asked.
    ///
    /// # Errors
    /// When it cannot be set up.
    pub(super) fn new(args: &DemoArgs, out: &'a Output) -> Result<Self> {
        let plan = Plan::new(args.requests, args.size);
        // A message may need room for its data and for its answer's.
        let room = 2 * plan.largest().max(64).next_power_of_two();
        let depth = (MEMORY / room).clamp(1, DEPTH);
        let mut world = World::new(SEED, FabricConfig::default(), LinkConfig::default());
        let (timeline, sink) = Timeline::new();
        world.env.trace.print_to(sink);
        for place in [CLIENT, SERVER] {
            let mut node = NodeConfig::new(place as u8);
            node.config.linger = Duration::from_secs(1);
            node.arena = 2 * MEMORY;
            let peer = Peer::new(plan, place == CLIENT, depth);
            world.add(&node, address(place), peer)?;
        }
        world.ledger.number_connection();
        world.ledger.expect_no_loss();
        let bar = out.progress(u64::from(plan.messages()), "messages");
        Ok(Self {
            world,
            plan,
            depth,
            timeline,
            bar,
            out,
        })
    }

    /// Runs it and returns whether every message arrived once and as it was sent.
    ///
    /// # Errors
    /// When the result cannot be printed.
    pub(super) fn run(mut self) -> Result<bool> {
        self.out.text(
            "A server and a client in the simulator, over RDMA as libxio speaks it. Times are \
             virtual.\nA line with an arrow is a row of `xio states`: what came, and the state it \
             led to.\n\nhandshake\n",
        )?;
        let start = self.handshake()?;
        self.traffic()?;
        self.close(start)?;
        let breaches = self.world.ledger.breaches();
        for breach in breaches {
            self.out.text(format_args!("violation: {breach}\n"))?;
        }
        verdict("sim", &self.plan, &self.figures(), breaches.len(), self.out)
    }

    /// Runs until both sides are established; returns when it began.
    fn handshake(&mut self) -> Result<u64> {
        let to = SocketAddr::new(address(SERVER), PORT);
        // A first turn, so that the trace has transitions from the start.
        self.world.act(CLIENT, |_, _, _| ());
        self.world.act(SERVER, |_, _, _| ());
        let mut begun = Ok(());
        self.world.act(SERVER, |peer, core, desk| {
            begun = peer.listen(core, desk, to);
        });
        begun?;
        let start = self.world.env.now();
        let mut begun = Ok(());
        self.world.act(CLIENT, |peer, core, desk| {
            begun = peer.connect(core, desk, to);
        });
        begun?;
        self.world.run_until(TOO_LONG, |world| {
            world.user(CLIENT).is_over || world.user(CLIENT).is_up && world.user(SERVER).is_up
        });
        let text = self.timeline(start);
        self.out.text(text)?;
        Ok(start)
    }

    /// Runs until the client has all its answers, or the connection is lost, and says how it was.
    fn traffic(&mut self) -> Result<()> {
        let (began, events) = (self.world.env.now(), self.world.events());
        let bar = &self.bar;
        let mut seen = 0_u32;
        self.world.run_until(TOO_LONG, |world| {
            let client = world.user(CLIENT);
            seen += 1;
            if seen.is_multiple_of(BAR_EVERY) {
                bar.set_position(client.progress());
            }
            client.is_closing || client.is_over
        });
        self.bar.finish_and_clear();
        let took = self.world.env.now() - began;
        let events = self.world.events() - events;
        let took = format!(
            "{} with {} out at once; {}",
            Nanos(took),
            Count(self.depth.into(), "message"),
            Count(events, "event")
        );
        self.out.text(traffic(&self.plan, &self.figures(), &took))?;
        Ok(())
    }

    /// Runs until nothing is left, and looks whether everything is as it was.
    fn close(&mut self, start: u64) -> Result<()> {
        self.world.run_until(TOO_LONG, |world| {
            [CLIENT, SERVER].iter().all(|n| world.user(*n).is_over)
        });
        self.world.run_until(TOO_LONG, World::all_gone);
        self.world.finish();
        let text = self.timeline(start);
        self.out.text(format_args!("\nclose\n{text}"))?;
        Ok(())
    }

    /// What happened since the last call, with times since `start`.
    fn timeline(&mut self, start: u64) -> String {
        let mut notes = Vec::new();
        for place in [SERVER, CLIENT] {
            self.world
                .act(place, |peer, _, _| notes.append(&mut peer.notes));
        }
        self.timeline.take(&notes, start)
    }

    /// What both sides saw.
    fn figures(&self) -> Figures {
        let mut tally = Tally::new(&self.plan);
        for place in [CLIENT, SERVER] {
            tally.merge(&self.world.user(place).tally);
        }
        tally.figures()
    }
}
