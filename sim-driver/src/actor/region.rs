//! Memory that peers may reach, and direct READs and WRITEs of theirs.

use xio_proto::{CommandError, Event, RegionId, RemoteMemory, Segment};

use super::post::{Cell, Post};
use super::{Actor, Cargo, ID_BITS, Target};
use crate::check::{Class, Digest, Fact};
use crate::driver::{Core, Desk};
use crate::memory::{Buffer, Rights};
use crate::trace::{Act, Object};

/// A region of this user's memory.
#[derive(Debug)]
pub(super) struct Own {
    buffer: Buffer,
    id: Option<RegionId>,
    ready: bool,
    revoking: bool,
    /// It goes no earlier, in nanoseconds.
    until: u64,
}

/// What is in a region when nobody has written to it: every byte follows from its address.
fn pattern(addr: u64) -> u8 {
    (addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn digest_of_pattern(addr: u64, len: u32) -> u64 {
    let mut digest = Digest::new();
    let bytes: Vec<u8> = (addr..addr + u64::from(len)).map(pattern).collect();
    digest.update(&bytes);
    digest.value()
}

impl Actor {
    const CELLS: u64 = 8;

    /// Registers what is missing, and takes back what had its time.
    pub(super) fn tend_regions(&mut self, core: &mut Core, desk: &mut Desk<'_>) {
        let Some(transport) = desk.rdma else {
            return;
        };
        self.regions
            .resize_with(usize::from(self.mix.regions), || None);
        let now = desk.env.now();
        self.tended = now;
        let all_over = self.lines.iter().all(|line| line.over);
        for index in 0..self.regions.len() {
            let (number, at) = (desk.number, index as u32);
            if self.regions[index].is_none() {
                if self.leaving {
                    continue;
                }
                let rights = Rights::LOCAL_WRITE;
                let len = (Post::CELL * Self::CELLS) as u32;
                let Some(buffer) = desk.memory().allocate(len, rights) else {
                    continue;
                };
                let bytes = desk.memory().user_mut(buffer.segment());
                for (addr, byte) in (buffer.addr..).zip(bytes) {
                    *byte = pattern(addr);
                }
                let access = xio_proto::Access::REMOTE_READ | xio_proto::Access::REMOTE_WRITE;
                let (addr, len) = (buffer.addr, buffer.len.into());
                let id = core.register(transport, addr, len, access, at.into());
                let Ok(id) = id else {
                    desk.memory().free(buffer);
                    self.sense(desk, format!("a region was refused: {id:?}"));
                    continue;
                };
                let until = now + self.rng.range(50_000_000, 3_000_000_000);
                self.regions[index] = Some(Own {
                    buffer,
                    id: Some(id),
                    ready: false,
                    revoking: false,
                    until,
                });
                continue;
            }
            let Some(own) = &mut self.regions[index] else {
                continue;
            };
            if !own.ready || own.revoking || (own.until > now && !self.leaving) {
                continue;
            }
            let mut post = self.post.borrow_mut();
            let Some(shared) = post.region(number, at) else {
                continue;
            };
            shared.closed = true;
            let busy = shared.cells.contains(&Cell::Busy);
            drop(post);
            // With no connection left nobody can be at it, whatever became of those who were.
            if busy && !all_over && (!self.mix.rude || self.leaving) {
                continue;
            }
            own.revoking = true;
            let Some(id) = own.id else {
                continue;
            };
            if let Err(error) = core.revoke(id) {
                self.sense(desk, format!("a region was not taken back: {error}"));
            }
        }
    }

    /// When the next region has had its time.
    pub(super) fn next_region(&self) -> Option<u64> {
        let own = self.regions.iter().flatten();
        let live = own.filter(|own| own.ready && !own.revoking);
        let busy_wait = 5_000_000;
        live.map(|own| own.until.max(self.tended + busy_wait)).min()
    }

    pub(super) fn region_event(&mut self, desk: &mut Desk<'_>, event: &Event) {
        let number = desk.number;
        match *event {
            Event::RegionReady { user, rkey, .. } => {
                let Some(Some(own)) = self.regions.get_mut(user as usize) else {
                    return self.sense(desk, format!("region {user} is not known"));
                };
                own.ready = true;
                let memory = RemoteMemory {
                    addr: own.buffer.addr,
                    len: own.buffer.len.into(),
                    key: rkey,
                };
                self.post.borrow_mut().publish(number, user as u32, memory);
            }
            Event::RegionFailed { user, .. } | Event::RegionRevoked { user, .. } => {
                let own = self.regions.get_mut(user as usize).and_then(Option::take);
                let Some(own) = own else {
                    return self.sense(desk, format!("region {user} is not known"));
                };
                self.post.borrow_mut().withdraw(number, user as u32);
                desk.memory().free(own.buffer);
            }
            _ => {}
        }
        let at = desk.env.now() + 1_000_000;
        self.wake(desk, at);
    }

    /// READs or WRITEs some memory of the peer's. `None`: there is none to be had.
    pub(super) fn go_direct(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        line: u32,
    ) -> Option<bool> {
        let l = &self.lines[line as usize];
        let (id, side) = l.established.then_some((l.id?, l.side?))?;
        let info = core.info(id).ok()?;
        if info.framing != xio_proto::wire::Framing::Rdma {
            return None;
        }
        let number = self.post.borrow().number_at(info.peer.ip())?;
        let (region, cell, memory) = self.post.borrow_mut().occupy(number)?;
        let write = self.rng.flip();
        let len = self.rng.range(1, Post::CELL) as u32;
        let Some((buffer, digest)) = self.direct_buffer(desk, write, len, memory.addr) else {
            self.post
                .borrow_mut()
                .leave(number, region, cell, Cell::Free);
            return None;
        };
        let message = desk.ledger.number_message(side, Class::Direct);
        let target = Target {
            number,
            region,
            cell,
            addr: memory.addr,
            write,
        };
        let cargo = self.cargo.put(Cargo {
            line,
            message,
            data: Some(buffer),
            into: None,
            target: Some(target),
        });
        let user = u64::from(cargo + 1) << ID_BITS | message;
        let mut segments = [Segment::default(); 2];
        let cut = self.rng.below(len.into()) as u32;
        segments[0] = buffer.part(0, len - cut);
        segments[1] = buffer.part(len - cut, cut);
        let segments = &segments[..if cut == 0 { 1 } else { 2 }];
        let (deadline, due) = self.draw_deadline(desk, false);
        let asked = if write {
            core.write(id, segments, &memory, user, deadline)
        } else {
            core.read(id, segments, &memory, user, deadline)
        };
        let task = match asked {
            Ok(task) => task,
            Err(error) => {
                self.post
                    .borrow_mut()
                    .leave(number, region, cell, Cell::Free);
                self.give_back(desk, cargo);
                if matches!(error, CommandError::TooLong { .. }) {
                    return None;
                }
                return Some(self.refused(desk, line, error));
            }
        };
        let taken = Fact::Taken {
            message,
            digest,
            buffers: true,
            len: len.into(),
            room: 0,
            receipt: false,
            deadline: due,
        };
        Self::note_direct(desk, message, len, taken);
        self.sent(desk, line, task);
        Some(true)
    }

    fn note_direct(desk: &mut Desk<'_>, message: u64, len: u32, taken: Fact) {
        let (at, number) = (desk.env.now(), desk.number);
        desk.ledger.take(at, taken);
        let object = Object::Actor(number);
        desk.env
            .record(number, object, Act::UserCommand, message, len.into());
    }

    /// Memory for a direct READ or WRITE, and the digest of what is to be in it afterwards.
    fn direct_buffer(
        &mut self,
        desk: &mut Desk<'_>,
        write: bool,
        len: u32,
        remote: u64,
    ) -> Option<(Buffer, u64)> {
        let rights = if write {
            Rights::LOCAL_READ
        } else {
            Rights::LOCAL_WRITE
        };
        let buffer = desk.memory().allocate(len, rights)?;
        desk.memory().hold(buffer.lkey);
        if !write {
            return Some((buffer, digest_of_pattern(remote, len)));
        }
        let filler = self.rng.next();
        let bytes = desk.memory().user_mut(buffer.segment());
        super::parcel::fill(bytes, filler);
        let mut digest = Digest::new();
        digest.update(bytes);
        Some((buffer, digest.value()))
    }

    /// A direct READ or WRITE ended: were the bytes moved?
    pub(super) fn direct_ended(
        &mut self,
        desk: &mut Desk<'_>,
        message: u64,
        cargo: u32,
        good: bool,
    ) {
        let Some(Cargo {
            line,
            data: Some(local),
            target: Some(target),
            ..
        }) = self.cargo.get(cargo).copied()
        else {
            return;
        };
        let state = if good { Cell::Free } else { Cell::Spent };
        if good {
            let far = Segment {
                addr: target.addr,
                len: local.len,
                lkey: 0,
                rkey: 0,
            };
            let seen = if target.write {
                let memory = &mut desk.env.memory[target.number as usize];
                let mut digest = Digest::new();
                digest.update(memory.user(far));
                // What was not written is as it was; what was will be again.
                let rest = Segment {
                    addr: far.addr + u64::from(far.len),
                    len: (Post::CELL - u64::from(far.len)) as u32,
                    ..far
                };
                let intact = (rest.addr..)
                    .zip(memory.user(rest))
                    .all(|(addr, &byte)| byte == pattern(addr));
                for (addr, byte) in (far.addr..).zip(memory.user_mut(far)) {
                    *byte = pattern(addr);
                }
                if intact { digest.value() } else { 0 }
            } else {
                let mut digest = Digest::new();
                digest.update(desk.memory().user(local.segment()));
                digest.value()
            };
            let side = self.lines[line as usize].side.map_or(0, |side| side ^ 1);
            let at = desk.env.now();
            let delivered = Fact::Delivered {
                message,
                life: 0,
                side,
                digest: seen,
            };
            desk.ledger.take(at, delivered);
        }
        self.post
            .borrow_mut()
            .leave(target.number, target.region, target.cell, state);
    }
}
