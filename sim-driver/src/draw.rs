//! What a seed draws: endpoints and their tables, how messages look, which errands are run.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use xio_proto::{Extensions, Keepalive, Reconnect};

use crate::actor::{Closing, Errand, Mix, Wish};
use crate::fabric::NicLimits;
use crate::rng::Rng;
use crate::roads::{self, Has, Roads};
use crate::world::NodeConfig;

/// Where every endpoint listens.
pub(crate) const PORT: u16 = 7000;
const MILLISECOND: u64 = 1_000_000;

/// The address of the endpoint in a place.
pub(crate) fn address(place: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, (place >> 8) as u8, place as u8 + 1))
}

/// How a connection is made anew.
fn reconnect(rng: &mut Rng) -> Reconnect {
    let first = rng.spread(MILLISECOND / 4, 100 * MILLISECOND);
    let give_up = rng.spread(MILLISECOND, 4_000 * MILLISECOND);
    Reconnect {
        attempts_max: rng.pick(&[1, 2, 5]),
        give_up_after: rng.flip().then(|| Duration::from_nanos(give_up)),
        first_delay: Duration::from_nanos(first),
        max_delay: Duration::from_nanos(first * rng.pick(&[1, 4, 16])),
    }
}

/// What all of a seed's draws depend on.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Manner {
    /// Endpoints.
    pub(crate) endpoints: usize,
    /// Users are rash, or faults end connections: messages may be lost.
    pub(crate) lossy: bool,
    /// Everything there is: portals, redirection, many sessions over one transport connection.
    pub(crate) rich: bool,
    /// Application credits are on, in messages and bytes: those of a session, wherever its
    /// connections go.
    pub(crate) credits: Option<(u16, u64)>,
    /// Nobody waits long for anything.
    pub(crate) hasty: bool,
}

/// What an endpoint can do beyond libxio's protocol: all of it more often than not, else a part
/// or nothing.
fn extensions(seed: u64) -> Extensions {
    match seed % 8 {
        0 => Extensions::empty(),
        1 | 2 => Extensions::from_bits_truncate((seed >> 8) as u32) & Extensions::DEFAULT,
        _ => Extensions::DEFAULT,
    }
}

impl Manner {
    pub(crate) fn draw(rng: &mut Rng, endpoints: usize, lossy: bool) -> Self {
        // At least half of all seeds have three endpoints or more; only there is portals' home.
        let many = rng.chance(600_000);
        Self {
            endpoints: match endpoints {
                0 if many => rng.range(3, 5) as usize,
                0 => 2,
                given => given.max(2),
            },
            lossy,
            rich: many || rng.chance(300_000),
            credits: rng.chance(300_000).then(|| {
                let messages = rng.pick(&[2, 8, 64, 1024]);
                (messages, rng.pick(&[16 << 10, 128 << 10, 64 << 20]))
            }),
            hasty: lossy && rng.chance(300_000),
        }
    }

    /// An endpoint: its configuration, tables and device.
    pub(crate) fn node(&self, rng: &mut Rng, number: u8, has: Has, tiny: bool) -> NodeConfig {
        let mut node = NodeConfig::new(number);
        let config = &mut node.config;
        config.seed = rng.next();
        config.identity = 1 + u64::from(number);
        config.extensions = extensions(config.seed);
        config.connect_timeout = Duration::from_secs(8);
        config.setup_timeout = Duration::from_secs(8);
        config.fin_timeout = Duration::from_secs(10);
        config.linger = Duration::from_millis(rng.spread(1, 1000));
        config.provide_timeout = Duration::from_secs(2);
        config.keepalive = Some(Keepalive {
            time: Duration::from_millis(rng.range(500, 3000)),
            interval: Duration::from_millis(1000),
            probes: 3,
        });
        if self.hasty {
            let mut short = || Duration::from_nanos(rng.spread(MILLISECOND / 4, 300 * MILLISECOND));
            config.connect_timeout = short();
            config.setup_timeout = short();
            config.fin_timeout = short();
            config.provide_timeout = short();
            config.drain_timeout = short();
        }
        config.reconnects_per_second = rng.pick(&[3, 30, 1000]);
        config.incompatible_time = Duration::from_millis(rng.spread(1, 1000));
        config.min_grant = rng.pick(&[5, 6, 8, 16]);
        config.rq_depth = rng.pick(&[16, 64, 256]);
        config.inline_data_max = rng.pick(&[256, 1024, 8192]);
        config.rx_slots = rng.pick(&[256, 512, 1024]);
        config.tx_slots = rng.pick(&[32, 64, 256]);
        if let Some((messages, bytes)) = self.credits {
            config.flow_control = true;
            config.depth_messages = messages;
            config.depth_bytes = bytes;
        }
        config.queue_messages = rng.pick(&[4, 32, 1024]);
        node.signal_every = rng.pick(&[1, 8, 64, 64]);
        let mut limits = NicLimits::default();
        limits.max_message = rng.pick(&[16 << 10, 64 << 10, limits.max_message]);
        if tiny {
            limits = NicLimits::tiny(rng);
            limits.srq_depth = 0;
            limits.rq_depth = limits.rq_depth.max(u32::from(node.config.min_grant) + 2);
            node.config.rx_slots = rng.range(32, 128) as u32;
            node.config.tx_slots = rng.range(12, 32) as u32;
            node.counts.tasks = rng.range(8, 64) as usize;
            node.counts.nexuses = rng.range(4, 8) as usize;
            node.counts.work = rng.range(64, 256) as usize;
            node.counts.sessions = rng.range(4, 64) as usize;
            node.counts.connections = rng.range(6, 64) as usize;
        }
        node.rdma = has.rdma.then_some(limits);
        if has.tcp {
            node.tcp = Some(roads::sockets(rng, tiny));
        }
        if has.tcp && tiny {
            node.config.half_open_max = rng.range(2, 4) as u32;
            node.counts.sockets = rng.range(6, 16) as usize;
            if !has.rdma {
                node.config.rx_slots = rng.range(6, 40) as u32;
            }
        }
        node.counts.rx_slots = node.config.rx_slots as usize;
        node.counts.tx_slots = node.config.tx_slots as usize;
        node
    }

    /// How an endpoint's user sends and answers.
    pub(crate) fn mix(&self, rng: &mut Rng, inline: u32) -> Mix {
        let mut mix = Mix {
            one_way: rng.pick(&[0, 100_000, 500_000]),
            receipt: rng.pick(&[0, 300_000, 1_000_000]),
            bad_receipt: rng.pick(&[0, 100_000]),
            header: rng.spread(0, 200) as u32,
            small: (rng.spread(1, 1024) as u32).min(inline),
            large_ppm: rng.pick(&[0, 50_000, 300_000]),
            large: rng.spread(1_000, 100_000) as u32,
            offer: rng.pick(&[0, 300_000]),
            too_long: rng.pick(&[0, 20_000, 200_000]),
            options: rng.pick(&[0, 100_000]),
            direct: rng.pick(&[0, 0, 50_000, 300_000]),
            refuse: rng.pick(&[0, 0, 50_000, 300_000]),
            think: rng.pick(&[0, 0, 10_000, MILLISECOND, 30 * MILLISECOND]),
            pace: rng.pick(&[0, 0, 100_000, 5 * MILLISECOND]),
            idle: 3_000 * MILLISECOND,
            regions: rng.pick(&[0, 1, 2]),
            ..Mix::default()
        };
        if self.lossy {
            mix.deadline = rng.pick(&[0, 20_000, 200_000]);
            mix.cancel = rng.pick(&[0, 20_000, 200_000]);
            mix.idempotent = rng.pick(&[0, 300_000, 900_000]);
            mix.ignore = rng.pick(&[0, 0, 10_000]);
            mix.curt = rng.pick(&[0, 0, 100_000]);
            mix.neglect = rng.pick(&[0, 0, 20_000]);
            mix.rude = rng.chance(100_000);
        }
        mix
    }

    fn wish(&self, rng: &mut Rng) -> Wish {
        use Wish::{Accept, Portals, Redirect, RedirectPortals, Reject, Silence, Wander};
        match (self.rich, self.lossy) {
            (false, _) => rng.pick(&[Accept, Accept, Accept, Accept, Accept, Accept, Reject]),
            (true, false) => rng.pick(&[
                Accept,
                Accept,
                Portals,
                Portals,
                Redirect,
                RedirectPortals,
                Reject,
            ]),
            (true, true) => rng.pick(&[
                Accept,
                Accept,
                Accept,
                Portals,
                Portals,
                Portals,
                Redirect,
                Redirect,
                RedirectPortals,
                Reject,
                Wander,
                Silence,
            ]),
        }
    }

    /// Errands of the endpoint in a place, from `at` on, with so many messages in all.
    pub(crate) fn errands(
        &self,
        rng: &mut Rng,
        roads: &Roads,
        me: usize,
        mut at: u64,
        messages: u32,
    ) -> Vec<Errand> {
        let count = rng.range(1, 4) as u32;
        let errand = |_| {
            let (other, over) = roads.pick(rng, me);
            at += rng.spread(0, 20 * MILLISECOND);
            let wish = self.wish(rng);
            let mut closing = rng.pick(&[Closing::Client, Closing::Server, Closing::Both]);
            let mut patience = 0;
            if self.lossy {
                closing = rng.pick(&[
                    Closing::Client,
                    Closing::Server,
                    Closing::Both,
                    Closing::Early,
                    Closing::Abort,
                ]);
                if rng.chance(150_000) {
                    patience = rng.spread(1, 50 * MILLISECOND);
                }
            }
            let again = self.lossy && rng.chance(400_000);
            let grows = self.rich && rng.flip() && !again;
            Errand {
                again: again.then(|| reconnect(rng)),
                over,
                at,
                back: rng.pick(&[0, 0, 1, 20]),
                depth: rng.spread(1, 128) as u32,
                own: if self.rich {
                    rng.chance(250_000)
                } else {
                    rng.flip()
                },
                closing,
                wish,
                more: if grows { rng.range(0, 2) as u8 } else { 0 },
                away: if grows { rng.range(1, 2) as u8 } else { 0 },
                patience,
                ..Errand::to(SocketAddr::new(address(other), PORT), messages / count + 1)
            }
        };
        (0..count).map(errand).collect()
    }
}
