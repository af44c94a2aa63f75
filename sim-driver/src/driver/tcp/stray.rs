//! Clients that are none: they connect and send garbage, a part of a connect message, nothing, or
//! that they are the same half of one pair.

use core::net::SocketAddr;

use crate::driver::SimDriver;
use crate::env::Env;
use crate::link::{Links, SockId};
use crate::rng::Rng;

use super::Tcp;

/// What tells a stray's cookie from that of a socket of the core.
const MARK: u64 = 1 << 63;

pub(super) const fn is_stray(cookie: u64) -> bool {
    cookie & MARK != 0 && cookie != u64::MAX
}

/// A client that is none.
#[derive(Debug)]
pub(super) struct Stray {
    sock: SockId,
    bytes: Vec<u8>,
    /// Waits to be thrown out.
    stays: bool,
}

/// A connect message.
fn message(kind: u32, port: u16) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes
}

/// What a stray says.
fn words(rng: &mut Rng) -> Vec<u8> {
    let noise = |rng: &mut Rng, most: u64| {
        let len = rng.range(1, most);
        (0..len).map(|_| rng.below(256) as u8).collect::<Vec<u8>>()
    };
    let port = rng.below(1 << 16) as u16;
    match rng.below(6) {
        0 => Vec::new(),
        1 => noise(rng, 64),
        // A part of a connect message.
        2 => {
            let len = rng.range(1, 7) as usize;
            let kind = rng.range(1, 3) as u32;
            message(kind, port)[..len].to_vec()
        }
        // Half of a pair, and what may follow it.
        3 => {
            let kind = rng.range(2, 3) as u32;
            let mut bytes = message(kind, port);
            bytes.extend(noise(rng, 64));
            bytes
        }
        // A single stream, and garbage or the start of a frame on it.
        4 => {
            let mut bytes = message(1, 0);
            bytes.extend(noise(rng, 64));
            bytes
        }
        _ => message(1, 0),
    }
}

impl SimDriver {
    /// Connects to `to` as somebody who does not speak the protocol. False without sockets.
    pub(crate) fn send_stray(
        &mut self,
        env: &mut Env,
        links: &mut Links,
        to: SocketAddr,
        rng: &mut Rng,
    ) -> bool {
        let Some(tcp) = &mut self.tcp else {
            return false;
        };
        let stray = tcp.add_stray(env, links, to, rng);
        if rng.chance(Self::TWINS) {
            let twin = tcp.add_stray(env, links, to, rng);
            let kind = rng.range(2, 3) as u32;
            for (one, other) in [(stray, twin), (twin, stray)] {
                let other = tcp.strays[other].as_ref().map(|stray| stray.sock);
                let port = other.and_then(|sock| links.addresses(sock));
                if let (Some(stray), Some((local, _))) = (&mut tcp.strays[one], port) {
                    stray.bytes = message(kind, local.port());
                    stray.stays = true;
                }
            }
        }
        true
    }

    /// Chance that a stray is two, who both say that they are the same half of one pair.
    const TWINS: u32 = 200_000;

    /// Whoever was not thrown out goes by itself.
    pub(crate) fn end_strays(&mut self, env: &mut Env, links: &mut Links) {
        let Some(tcp) = &mut self.tcp else { return };
        for stray in tcp.strays.iter_mut().filter_map(Option::take) {
            links.close(env, stray.sock);
        }
    }
}

impl Tcp {
    /// Lets a stray connect.
    fn add_stray(
        &mut self,
        env: &mut Env,
        links: &mut Links,
        to: SocketAddr,
        rng: &mut Rng,
    ) -> usize {
        let place = self.strays.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            self.strays.push(None);
            self.strays.len() - 1
        });
        let sock = links.connect(env, self.host, None, to, MARK | place as u64);
        self.strays[place] = Some(Stray {
            sock,
            bytes: words(rng),
            stays: rng.flip(),
        });
        place
    }

    fn stray(&mut self, cookie: u64) -> Option<&mut Option<Stray>> {
        self.strays.get_mut((cookie & !MARK) as usize)
    }

    pub(super) fn stray_connected(
        &mut self,
        env: &mut Env,
        links: &mut Links,
        cookie: u64,
        result: Result<(), i32>,
    ) {
        let Some(place) = self.stray(cookie) else {
            return;
        };
        if let Some(stray) = place {
            if result.is_ok() {
                // What does not fit is not said.
                links.write(env, stray.sock, &stray.bytes);
            }
            if result.is_err() || !stray.stays {
                links.close(env, stray.sock);
                *place = None;
            }
        }
    }

    /// Reads and forgets; leaves when the other side does.
    pub(super) fn stray_readable(&mut self, env: &mut Env, links: &mut Links, cookie: u64) {
        let Some(place) = self.stray(cookie) else {
            return;
        };
        if let Some(stray) = place {
            loop {
                let n = links.peek(stray.sock).len();
                if n == 0 {
                    break;
                }
                links.consume(env, stray.sock, n);
            }
            if links.end(stray.sock).is_some() {
                links.close(env, stray.sock);
                *place = None;
            }
        }
    }
}
