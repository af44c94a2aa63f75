//! Frames that no correct peer sends. Whoever gets one must notice: nothing here changes payload.

use xio_proto::CmKind;

use super::Fabric;
use crate::env::Env;
use crate::swarm::Site;

/// Type words of frames without data: nobody is to get as data what is none.
const KINDS: [u32; 15] = [
    0x41, 0x82, 0x84, 0x102, 0x104, 0x202, 0x204, 0x402, 0x404, 0x802, 0x804, 0x1002, 0x2004,
    0x4002, 0x4004,
];

const MAGIC: u32 = 0x5849_4f50;
/// Bytes of a request and of an answer that set a transport connection up.
const SETUP: [usize; 2] = [56, 60];

fn words(bytes: &mut [u8], at: usize, words: &[u16]) {
    for (place, word) in bytes[at..].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// A well-formed NEXUS_SETUP frame. Returns its length.
fn setup(bytes: &mut [u8], answer: bool, bad: bool) -> usize {
    let len = SETUP[usize::from(answer)];
    bytes[..len].fill(0);
    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    let kind: u32 = if answer { 0x84 } else { 0x82 };
    bytes[4..8].copy_from_slice(&kind.to_be_bytes());
    bytes[15] = (len - 16) as u8;
    // What follows the version asks to continue an earlier one, or says why not.
    let at = if answer {
        bytes[23] = 22 * u8::from(bad);
        words(bytes, 24, &[0x100, 0]);
        28
    } else {
        words(bytes, 16, &[0x100, u16::from(bad)]);
        24
    };
    words(bytes, at, &[4, 16, 16, 0]);
    words(bytes, at + 8, &[0, 0, 0, 9216, 0, 4, 0, 4, 0, 256]);
    len
}

impl Fabric {
    /// A peer that asks for what it is refused is met rarely, and not for long: something happens
    /// while it is told.
    fn disturb(&mut self, env: &mut Env, index: usize) {
        let after = env.rng.spread(1, 3_000);
        match env.rng.below(8) {
            0 => self.give(env, index, after, CmKind::AddrChange, 0),
            1 => self.give(env, index, after, CmKind::DeviceRemoval, 0),
            2 => self.say_fatal(env, index, after),
            3 => self.entries[index].qp.next_post_fails = true,
            _ => {
                let until = env.now() + env.rng.spread(1_000, 500_000_000);
                self.entries[index].qp.stalled_until = until;
            }
        }
    }

    /// Now and then what arrived is made into something else. Returns its length.
    pub(super) fn garble(
        &mut self,
        env: &mut Env,
        (index, peer): (usize, usize),
        (owner, offset): (usize, usize),
        len: u32,
    ) -> u32 {
        let ppm = env.swarm.ppm(Site::Garbled);
        if ppm == 0 || len < 16 {
            return len;
        }
        let kind = env.memory[owner].bytes(offset, len)[4..8].first_chunk();
        let kind = u32::from_be_bytes(kind.copied().unwrap_or_default());
        // Setup is rare among frames.
        let rare = matches!(kind, 0x82 | 0x84 | 0x102 | 0x104 | 0x202 | 0x204);
        let ppm = if rare { 200 * ppm } else { ppm };
        if !env.rng.chance(ppm.min(150_000)) {
            return len;
        }
        env.swarm.count(Site::Garbled);
        self.taint(index);
        self.taint(peer);
        let room = env.memory[owner].slot_size().min(512);
        let (how, bad) = (env.rng.below(6), env.rng.flip());
        let (other, byte) = (env.rng.pick(&KINDS), env.rng.below(16) as usize);
        if how == 0 && bad {
            self.disturb(env, peer);
        }
        let bytes = env.memory[owner].bytes_mut(offset, len.max(room));
        match how {
            0 | 1 => return setup(bytes, how == 1, bad) as u32,
            2 => bytes[4..8].copy_from_slice(&other.to_be_bytes()),
            3 if len > 62 => bytes[60] ^= 0x40,
            4 if len > 34 && matches!(kind, 0x12 | 0x14 | 0x22) => bytes[32] ^= 0x40,
            _ => bytes[byte] ^= 0x81,
        }
        len
    }
}
