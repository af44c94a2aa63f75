//! Which faults a seed has, and how often.
//!
//! Every place where something can go wrong is a site. A seed activates each site with a chance
//! of one in four; an active site draws how often it fires, up to its most. So some seeds are calm, some have
//! one fault in abundance, and some mix many: what a fixed mixture would never reach.

use crate::rng::Rng;

/// How bad the faults of a site are.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Nobody may lose a message because of it.
    Gentle,
    /// Ends connections.
    Harsh,
}

/// Which sites a seed may activate.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultLevel {
    /// No site.
    None,
    /// Gentle sites.
    Some,
    /// Every site.
    All,
}

macro_rules! sites {
    ($($(#[$doc:meta])* $site:ident = $name:literal, $severity:ident, $ppm:literal;)+) => {
        /// A place where something can go wrong.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Site { $($(#[$doc])* $site),+ }

        impl Site {
            /// Every site.
            pub const ALL: &'static [Self] = &[$(Self::$site),+];

            /// Its name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$site => $name),+ }
            }
            /// How bad it is.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$site => Severity::$severity),+ }
            }
            /// The highest chance of an active site, in parts of a million.
            const fn ppm(self) -> u32 {
                match self { $(Self::$site => $ppm),+ }
            }
        }
    };
}

sites! {
    /// A packet takes much longer.
    Delay = "delay", Gentle, 20_000;
    /// A queue pair stands still for a while.
    Stall = "stall", Gentle, 2_000;
    /// A completion becomes visible late, while those of other queue pairs overtake it.
    LateCompletion = "late_completion", Gentle, 50_000;
    /// Completions become visible in one batch.
    BatchedCompletion = "batched_completion", Gentle, 100_000;
    /// The notification of a completion is lost.
    MissedNotification = "missed_notification", Gentle, 10_000;
    /// A notification comes for nothing.
    SpuriousNotification = "spurious_notification", Gentle, 20_000;
    /// The passive side hears of the connection long after the first message.
    LateEstablished = "late_established", Gentle, 250_000;
    /// Time-wait is never reported over.
    NoTimewait = "no_timewait", Gentle, 500_000;
    /// Completions of a queue pair are late when its disconnect is reported.
    EarlyDisconnected = "early_disconnected", Gentle, 250_000;
    /// A communication-manager event that means nothing, or one of an unknown kind.
    CmNoise = "cm_noise", Gentle, 100_000;
    /// The driver takes its time to make and destroy a queue pair.
    SlowDriver = "slow_driver", Gentle, 500_000;
    /// The driver hands over several inputs before it asks for outputs.
    LateDrain = "late_drain", Gentle, 400_000;
    /// The driver's clock jumps.
    ClockJump = "clock_jump", Gentle, 250_000;
    /// The device is tiny.
    TinyLimits = "tiny_limits", Gentle, 250_000;
    /// A completion that the driver has taken is reported again, much later.
    StaleCompletion = "stale_completion", Gentle, 2_000;
    /// A link is down, but not for longer than the retries last.
    ShortLinkLoss = "short_link_loss", Gentle, 100_000;
    /// A stream is cut at every byte.
    TinyCut = "tiny_cut", Gentle, 50_000;
    /// Bytes of a stream take long.
    StreamDelay = "stream_delay", Gentle, 20_000;
    /// The buffers of a stream are tiny.
    TinyWindow = "tiny_window", Gentle, 250_000;
    /// Somebody who does not speak the protocol connects to a listener on sockets.
    Stray = "stray", Gentle, 250_000;
    /// A link is down for longer than the retries last.
    LinkLoss = "link_loss", Harsh, 100_000;
    /// A peer falls silent without a trace.
    SilentDeath = "silent_death", Harsh, 50_000;
    /// A post of a send, or a write, fails.
    PostFailed = "post_failed", Harsh, 500;
    /// A post of a receive fails.
    PostReceiveFailed = "post_receive_failed", Harsh, 300;
    /// A queue pair, or a socket, cannot be made.
    QueuePairFailed = "queue_pair_failed", Harsh, 100_000;
    /// Memory cannot be registered.
    RegistrationFailed = "registration_failed", Harsh, 50_000;
    /// A call of the communication manager fails.
    CmCallFailed = "cm_call_failed", Harsh, 50_000;
    /// No completion comes for what is flushed.
    NoFlush = "no_flush", Harsh, 250_000;
    /// Some of what is flushed completes, the rest does not.
    PartialFlush = "partial_flush", Harsh, 250_000;
    /// A disconnect is never reported.
    NoDisconnected = "no_disconnected", Harsh, 250_000;
    /// The communication manager says anything at all, with any status.
    CmAnything = "cm_anything", Harsh, 200_000;
    /// The communication manager says rejected, at any time.
    Rejected = "rejected", Harsh, 50_000;
    /// The communication manager says unreachable.
    Unreachable = "unreachable", Harsh, 50_000;
    /// The address cannot be resolved.
    AddressError = "address_error", Harsh, 50_000;
    /// There is no route.
    RouteError = "route_error", Harsh, 50_000;
    /// Connecting fails.
    ConnectError = "connect_error", Harsh, 50_000;
    /// The address moves to another device.
    AddressChange = "address_change", Harsh, 50_000;
    /// The device is removed.
    DeviceRemoval = "device_removal", Harsh, 50_000;
    /// The queue pair fails by itself.
    QueuePairFatal = "queue_pair_fatal", Harsh, 100;
    /// The peer sends a frame that it must not send.
    Garbled = "garbled", Harsh, 8_000;
    /// A stream is reset.
    Reset = "reset", Harsh, 5_000;
    /// A stream's connect is refused.
    Refused = "refused", Harsh, 50_000;
    /// A stream stays half open: its other end is gone and nobody says so.
    HalfOpen = "half_open", Harsh, 5_000;
    /// An endpoint dies, and another life of it begins at once.
    Restart = "restart", Harsh, 100_000;
    /// A user asks for no events for a while.
    SlowUser = "slow_user", Gentle, 20_000;
}

const SITES: usize = Site::ALL.len();

/// The faults of one seed: their chances, and how often each has fired.
#[derive(Clone, Debug)]
pub struct Swarm {
    ppm: [u32; SITES],
    fired: [u64; SITES],
}

impl Swarm {
    /// One active site in four, firing with up to its full chance.
    const ACTIVE_PPM: u32 = 250_000;

    /// No faults.
    pub const fn none() -> Self {
        Self {
            ppm: [0; SITES],
            fired: [0; SITES],
        }
    }

    /// The faults of a seed.
    pub fn draw(rng: &mut Rng, level: FaultLevel) -> Self {
        let mut swarm = Self::none();
        // What came to the list later is drawn apart, so that a seed keeps what it had.
        let mut later = rng.clone().fork();
        for &site in Site::ALL {
            let rng = match site {
                Site::Restart | Site::SlowUser => &mut later,
                _ => &mut *rng,
            };
            let active = rng.chance(Self::ACTIVE_PPM);
            let most = u64::from(site.ppm());
            let ppm = rng.spread(most.div_ceil(64), most) as u32;
            let allowed = match site.severity() {
                Severity::Gentle => level >= FaultLevel::Some,
                Severity::Harsh => level >= FaultLevel::All,
            };
            if active && allowed {
                swarm.ppm[site as usize] = ppm;
            }
        }
        swarm
    }

    /// Sets the chance of a site.
    pub fn set(&mut self, site: Site, ppm: u32) {
        self.ppm[site as usize] = ppm;
    }
    /// The chance of a site, in parts of a million.
    pub fn ppm(&self, site: Site) -> u32 {
        self.ppm[site as usize]
    }
    /// Ends all faults; the counts stay.
    pub fn heal(&mut self) {
        self.ppm = [0; SITES];
    }
    /// True when the site fires now.
    #[inline]
    pub fn fires(&mut self, rng: &mut Rng, site: Site) -> bool {
        let ppm = self.ppm[site as usize];
        if ppm == 0 || !rng.chance(ppm) {
            return false;
        }
        self.fired[site as usize] += 1;
        true
    }
    /// Counts a fault that was decided elsewhere.
    pub fn count(&mut self, site: Site) {
        self.fired[site as usize] += 1;
    }
    /// How often a site fired.
    pub fn fired(&self, site: Site) -> u64 {
        self.fired[site as usize]
    }
}

impl core::fmt::Display for Swarm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut any = false;
        for &site in Site::ALL.iter().filter(|&&site| self.ppm(site) != 0) {
            write!(
                f,
                "{}{}:{}",
                if any { " " } else { "" },
                site.name(),
                self.ppm(site)
            )?;
            any = true;
        }
        if any { Ok(()) } else { f.write_str("none") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_limit_what_is_drawn() {
        let mut harsh = 0;
        for seed in 0..50 {
            let none = Swarm::draw(&mut Rng::new(seed), FaultLevel::None);
            assert_eq!(none.to_string(), "none");
            let some = Swarm::draw(&mut Rng::new(seed), FaultLevel::Some);
            let all = Swarm::draw(&mut Rng::new(seed), FaultLevel::All);
            for &site in Site::ALL {
                if site.severity() == Severity::Harsh {
                    assert_eq!(some.ppm(site), 0);
                    harsh += u32::from(all.ppm(site) > 0);
                } else {
                    assert_eq!(
                        some.ppm(site),
                        all.ppm(site),
                        "a level only leaves sites out"
                    );
                }
                assert!(all.ppm(site) <= site.ppm());
            }
        }
        assert!(harsh > 100);
    }
}
