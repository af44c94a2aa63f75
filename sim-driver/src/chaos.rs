//! What goes wrong from outside, now and then: links, devices, peers, clocks.

use crate::queue::Event;
use crate::rng::Rng;
use crate::swarm::Site;
use crate::world::Faulty;

/// The plan of a seed's outside faults.
#[derive(Debug)]
pub struct Chaos {
    rng: Rng,
    over: bool,
    /// What ends later: the number of its event.
    repairs: Vec<(u32, Repair)>,
    next: u32,
    restarts: u32,
}

#[derive(Copy, Clone, Debug)]
enum Repair {
    Device(usize),
    Endpoint(usize),
}

/// The event that has everything looked at again.
const TICK: u32 = 0;

impl Chaos {
    const MILLISECOND: u64 = 1_000_000;
    /// Lives that begin at once in a seed; each needs tables of its own.
    const RESTARTS_MAX: u32 = 6;

    /// A plan that draws from `rng`.
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            over: false,
            repairs: Vec::new(),
            next: TICK,
            restarts: 0,
        }
    }

    /// Begins.
    pub(crate) fn start(&mut self, world: &mut dyn Faulty) {
        let after = self.rng.spread(1_000, 20 * Self::MILLISECOND);
        world.env().queue.push_after(after, Event::Fault(TICK));
    }

    /// Nothing more goes wrong; what is broken is repaired.
    pub(crate) fn end(&mut self, world: &mut dyn Faulty) {
        self.over = true;
        for (_, repair) in core::mem::take(&mut self.repairs) {
            Self::repair(world, repair);
        }
        world.heal_links();
    }

    fn repair(world: &mut dyn Faulty, repair: Repair) {
        match repair {
            Repair::Device(number) => world.restore_device(number),
            Repair::Endpoint(number) => world.revive(number),
        }
    }

    fn repair_later(&mut self, world: &mut dyn Faulty, after: u64, repair: Repair) {
        self.next += 1;
        self.repairs.push((self.next, repair));
        world.env().queue.push_after(after, Event::Fault(self.next));
    }

    /// An event of the plan.
    pub(crate) fn event(&mut self, world: &mut dyn Faulty, number: u32) {
        if number != TICK {
            if let Some(place) = self.repairs.iter().position(|(known, _)| *known == number) {
                let (_, repair) = self.repairs.remove(place);
                Self::repair(world, repair);
            }
            return;
        }
        if self.over {
            return;
        }
        let victim = self.rng.below(world.count() as u64) as usize;
        self.strike(world, victim);
        let after = self.rng.spread(100_000, 200 * Self::MILLISECOND);
        world.env().queue.push_after(after, Event::Fault(TICK));
    }

    fn strike(&mut self, world: &mut dyn Faulty, victim: usize) {
        const OUTSIDE: [Site; 11] = [
            Site::ShortLinkLoss,
            Site::Stall,
            Site::ClockJump,
            Site::LinkLoss,
            Site::AddressChange,
            Site::QueuePairFatal,
            Site::DeviceRemoval,
            Site::SilentDeath,
            Site::SpuriousNotification,
            Site::Stray,
            Site::Restart,
        ];
        for site in OUTSIDE {
            // Rare sites would hardly ever fire at a tick.
            let ppm = world.env().swarm.ppm(site);
            let ppm = if ppm == 0 { 0 } else { ppm.max(50_000) };
            if !self.rng.chance(ppm) {
                continue;
            }
            let struck = match site {
                Site::ShortLinkLoss => {
                    let most = world.retry_bound();
                    world.cut_link(victim, self.rng.spread(1_000, most))
                }
                Site::LinkLoss => world.cut_link(victim, self.rng.spread(1_000, 5_000_000_000)),
                Site::Stall => world.stall(victim, self.rng.spread(1_000, 20_000_000)),
                Site::ClockJump => {
                    let jump = self.rng.spread(1_000, 500 * Self::MILLISECOND) as i64;
                    world.jump_clock(victim, if self.rng.flip() { jump } else { -jump / 10 })
                }
                Site::AddressChange => world.change_address(victim),
                Site::QueuePairFatal => world.fail_queue_pair(victim),
                Site::DeviceRemoval => {
                    let removed = world.remove_device(victim);
                    if removed {
                        let after = self.rng.spread(1_000_000, 2_000_000_000);
                        self.repair_later(world, after, Repair::Device(victim));
                    }
                    removed
                }
                Site::SilentDeath => {
                    let dead = world.kill(victim);
                    if dead && self.rng.flip() {
                        let after = self.rng.spread(1_000, 2_000_000_000);
                        self.repair_later(world, after, Repair::Endpoint(victim));
                    }
                    dead
                }
                Site::Restart => {
                    let dead = self.restarts < Self::RESTARTS_MAX && world.kill(victim);
                    if dead {
                        self.restarts += 1;
                        let after = self.rng.spread(1_000, 100 * Self::MILLISECOND);
                        self.repair_later(world, after, Repair::Endpoint(victim));
                    }
                    dead
                }
                Site::Stray => world.send_stray(victim, &mut self.rng),
                _ => {
                    world.env().wake_after(victim as u32, 0);
                    true
                }
            };
            if struck {
                world.env().swarm.count(site);
            }
        }
    }
}
