//! Which endpoints have queue pairs, sockets or both, and over what they can reach each other.

use xio_proto::TransportLimits;

use crate::driver::{Habits, Over};
use crate::rng::Rng;

/// Which dialects there may be in a world.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Dialects {
    /// Queue pairs only.
    Rdma,
    /// Sockets only.
    Tcp,
    /// Either, as the seed decides; with three endpoints or more there are both.
    Both,
}

/// What one endpoint has.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Has {
    pub(crate) rdma: bool,
    pub(crate) tcp: bool,
}

impl Has {
    const RDMA: Self = Self {
        rdma: true,
        tcp: false,
    };
    const TCP: Self = Self {
        rdma: false,
        tcp: true,
    };
    const BOTH: Self = Self {
        rdma: true,
        tcp: true,
    };
}

/// What all endpoints of a world have.
#[derive(Debug)]
pub(crate) struct Roads(Vec<Has>);

impl Roads {
    /// Every endpoint can reach at least one other.
    pub(crate) fn draw(rng: &mut Rng, endpoints: usize, dialects: Dialects) -> Self {
        let any = [Has::RDMA, Has::TCP, Has::BOTH];
        let mut all: Vec<Has> = match dialects {
            Dialects::Rdma => vec![Has::RDMA; endpoints],
            Dialects::Tcp => vec![Has::TCP; endpoints],
            Dialects::Both if endpoints == 2 && rng.flip() => vec![rng.pick(&any); 2],
            // The first reaches everybody; so both dialects are in use whoever else has what.
            Dialects::Both => (0..endpoints)
                .map(|number| match number {
                    0 => Has::BOTH,
                    1 => rng.pick(&[Has::RDMA, Has::BOTH]),
                    2 => rng.pick(&[Has::TCP, Has::BOTH]),
                    _ => rng.pick(&any),
                })
                .collect(),
        };
        for place in (1..endpoints).rev() {
            all.swap(place, rng.below(place as u64 + 1) as usize);
        }
        Self(all)
    }

    /// What an endpoint has.
    pub(crate) fn of(&self, number: usize) -> Has {
        self.0[number]
    }

    /// Another endpoint that can be reached, and over what.
    pub(crate) fn pick(&self, rng: &mut Rng, from: usize) -> (usize, Over) {
        let here = self.0[from];
        let reaches = |to: &usize| {
            let there = self.0[*to];
            *to != from && (here.rdma && there.rdma || here.tcp && there.tcp)
        };
        let others: Vec<usize> = (0..self.0.len()).filter(reaches).collect();
        let to = rng.pick(&others);
        (to, self.over(rng, from, to))
    }

    /// Over what an endpoint reaches another.
    pub(crate) fn over(&self, rng: &mut Rng, from: usize, to: usize) -> Over {
        let (here, there) = (self.0[from], self.0[to]);
        let rdma = here.rdma && there.rdma;
        let tcp = here.tcp && there.tcp;
        if rdma && !(tcp && rng.flip()) {
            Over::Rdma
        } else if rng.chance(333_333) {
            Over::OneStream
        } else {
            Over::TwoStreams
        }
    }
}

/// Sockets of a seed's endpoint.
pub(crate) fn sockets(rng: &mut Rng, tiny: bool) -> (TransportLimits, Habits) {
    let depth = if tiny { 4 } else { rng.pick(&[8, 64]) };
    let limits = TransportLimits {
        sq_depth: depth,
        max_sge: rng.pick(&[4, 256]),
        ..TransportLimits::tcp()
    };
    (limits, Habits::draw(rng))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_have_what_was_asked_for() {
        let mut overs = [0; 3];
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let endpoints = rng.range(2, 5) as usize;
            let roads = Roads::draw(&mut rng, endpoints, Dialects::Both);
            for from in 0..endpoints {
                let (to, over) = roads.pick(&mut rng, from);
                assert_ne!(to, from);
                let has = |n: usize| match over {
                    Over::Rdma => roads.of(n).rdma,
                    _ => roads.of(n).tcp,
                };
                assert!(has(from) && has(to), "seed {seed}: {over:?}");
                overs[over as usize] += 1;
            }
            let pairs = (0..endpoints).flat_map(|a| (0..a).map(move |b| (a, b)));
            let both = |all: fn(Has) -> bool| {
                pairs
                    .clone()
                    .any(|(a, b)| all(roads.of(a)) && all(roads.of(b)))
            };
            assert!(endpoints == 2 || both(|has| has.rdma) && both(|has| has.tcp));
            for dialects in [Dialects::Rdma, Dialects::Tcp] {
                let roads = Roads::draw(&mut rng, endpoints, dialects);
                let (_, over) = roads.pick(&mut rng, 0);
                assert_eq!(over == Over::Rdma, dialects == Dialects::Rdma);
            }
        }
        assert!(overs.iter().all(|count| *count > 50), "{overs:?}");
    }
}
