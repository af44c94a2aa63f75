//! READ and WRITE of a peer's memory by the user's own addresses, and the regions of this side's
//! memory that peers may reach so (PROTOCOL.md 11).

use super::Endpoint;
use crate::entries::{Direct, Due, Ending, Frames, Region, TaskFlags, WorkEntry, WorkKind};
use crate::error::{CommandError, Failure, Length, Resource, WorkStatus};
use crate::event::Event;
use crate::ids::{ConnectionId, NONE, RegionId, TaskId, TransportId};
use crate::inputs::recorded;
use crate::memory::{ListKind, Segment, SegmentSpan};
use crate::output::{Access, Control, Work};
use crate::state::task::{Action, Input, State};
use crate::storage::Storage;
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{Framing, Kind};

/// Memory of the peer's, as the peer's user told it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RemoteMemory {
    /// Address at the peer.
    pub addr: u64,
    /// Bytes that may be touched from there.
    pub len: u64,
    /// The peer's key for it.
    pub key: u32,
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// READs a peer's memory into `local`. The outcome is `Sent`, or one of the bad ones; work is
    /// posted in order with the messages submitted before and after.
    ///
    /// # Errors
    /// `NotSupported` on sockets, `TooLong` when `local` holds more than the peer's region,
    /// otherwise as [`send`](Self::send).
    pub fn read(
        &mut self,
        connection: ConnectionId,
        local: &[Segment],
        remote: &RemoteMemory,
        user: u64,
        deadline: Option<Instant>,
    ) -> Result<TaskId, CommandError> {
        recorded!(self, Read { connection, local, remote: *remote, user, deadline } => self.read(connection, local, remote, user, deadline));
        self.submit_direct(Direct::Read, connection, local, remote, user, deadline)
    }

    /// WRITEs `local` into a peer's memory. The outcome is as for [`read`](Self::read); the peer's
    /// user learns nothing of it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(
        &mut self,
        connection: ConnectionId,
        local: &[Segment],
        remote: &RemoteMemory,
        user: u64,
        deadline: Option<Instant>,
    ) -> Result<TaskId, CommandError> {
        recorded!(self, Write { connection, local, remote: *remote, user, deadline } => self.write(connection, local, remote, user, deadline));
        self.submit_direct(Direct::Write, connection, local, remote, user, deadline)
    }

    fn submit_direct(
        &mut self,
        direct: Direct,
        connection: ConnectionId,
        local: &[Segment],
        remote: &RemoteMemory,
        user: u64,
        deadline: Option<Instant>,
    ) -> Result<TaskId, CommandError> {
        let c = self.find_connection(connection)?;
        self.sendable(c).map_err(CommandError::Closed)?;
        let n = self.connection(c).nexus;
        if n == NONE || self.nexus(n).framing != Framing::Rdma {
            return Err(CommandError::NotSupported);
        }
        if local.is_empty() {
            return Err(CommandError::BadValue("nothing to move"));
        }
        let total = self.check_segments(c, local, Length::Local)?;
        if total > remote.len {
            let (what, len, max) = (Length::Data, total, remote.len);
            return Err(CommandError::TooLong { what, len, max });
        }
        if remote.addr.checked_add(total).is_none() {
            return Err(CommandError::BadValue(
                "remote address beyond the address space",
            ));
        }
        let queued = if direct == Direct::Write { total } else { 0 };
        self.check_queue(c, queued)?;
        let t = self.take_task(c)?;
        let list = match self.take_list(local) {
            Ok(list) => list,
            Err(error) => {
                self.give_task(t);
                return Err(error);
            }
        };
        let row = self.task(t);
        row.kind = Kind::MsgReq;
        row.direct = direct;
        row.nexus = n;
        row.user = user;
        row.remote_addr = remote.addr;
        row.remote_key = remote.key;
        row.transfer.total = total;
        if direct == Direct::Write {
            row.out = list;
        } else {
            row.into = list;
        }
        self.enqueue_request(c, t, queued);
        if let Some(deadline) = deadline {
            self.arm(Timer::Task(t), deadline);
        }
        Ok(self.task_id(t))
    }

    /// The next READ or WRITE of a direct message. The message leaves its queue with the last.
    pub(crate) fn direct_work(&mut self, n: u32, c: u32, t: u32) -> Option<Work> {
        let transport = self.nexus(n).transport;
        let limits = self.transport(transport).limits;
        let row = self.task(t);
        let read = row.direct == Direct::Read;
        if read && self.nexus(n).reads_used >= limits.max_reads {
            return None;
        }
        if self.task(t).state == State::Queued {
            self.task_input(t, Input::Post);
        }
        let row = self.task(t);
        let (list, kind) = match read {
            true => (ListKind::In, WorkKind::Read),
            false => (ListKind::Out, WorkKind::Write),
        };
        let posted = row.transfer.posted;
        let wanted = (row.transfer.total - posted).min(limits.max_message.into());
        let span = SegmentSpan {
            task: t,
            list,
            skip: posted,
            len: wanted,
        };
        let len = self
            .segments(span)
            .take(limits.max_sge.into())
            .map(|segment| u64::from(segment.len))
            .sum();
        let local = SegmentSpan { len, ..span };
        let row = self.task(t);
        let (remote, rkey) = (row.remote_addr + posted, row.remote_key);
        row.transfer.posted += len;
        row.work += 1;
        // It may have been taken for the transport connection of an earlier life.
        row.nexus = n;
        let last = row.transfer.posted == row.transfer.total;
        let entry = WorkEntry {
            kind,
            task: t,
            bytes: len,
            ..WorkEntry::VACANT
        };
        let wr = self.push_work(n, entry);
        if last {
            self.pop_request(c);
        }
        let nexus = self.nexus_id(n);
        Some(if read {
            self.nexus(n).reads_used += 1;
            self.g.counters.reads += 1;
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                rkey,
                fence: false,
                signaled: true,
            }
        } else {
            self.g.counters.writes += 1;
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled: last || !self.room_follows(n),
            }
        })
    }

    /// Whether a direct READ or WRITE of a connection has no outcome yet.
    pub(crate) fn moves_directly(&mut self, c: u32) -> bool {
        let mut t = self.connection(c).tasks;
        while t != NONE {
            let row = self.task(t);
            if row.direct != Direct::No && row.state == State::Sent {
                return true;
            }
            t = row.next;
        }
        false
    }

    /// A work request of a direct message is done.
    pub(crate) fn direct_done(&mut self, t: u32, bytes: u64, status: WorkStatus) {
        let c = self.task(t).connection;
        self.direct_moved(t, bytes, status);
        if c != NONE && self.connection(c).frames.contains(Frames::FIN_REQ) {
            self.mark_tx(c);
        }
    }

    fn direct_moved(&mut self, t: u32, bytes: u64, status: WorkStatus) {
        let row = self.task(t);
        if status == WorkStatus::Success {
            row.transfer.done += bytes;
        }
        let (done, out) = (row.transfer.done == row.transfer.total, row.work);
        if status != WorkStatus::Success && status != WorkStatus::Flushed {
            // The queue pair is lost with it; this message knows the cause better than the rest.
            if row.state == State::Sent && self.task_input(t, Input::Flush) == Action::GiveUp {
                self.finish(t, Ending::Failed(Failure::Work(status)));
            }
            return;
        }
        if row.state == State::Sent {
            if done && self.task_input(t, Input::SendDone) == Action::Complete {
                self.finish(t, Ending::Good);
            }
        } else if out == 0 {
            self.task_input(t, Input::SendDone);
        }
    }

    /// Registers user memory, exactly `addr..addr + len`, with the rights in `access`. `user`
    /// comes back in `RegionReady` (with the keys) or `RegionFailed`.
    ///
    /// # Errors
    /// `NotSupported` on sockets, `Full` when the table of regions is full, `BadValue` for an
    /// empty range.
    pub fn register(
        &mut self,
        transport: TransportId,
        addr: u64,
        len: u64,
        access: Access,
        user: u64,
    ) -> Result<RegionId, CommandError> {
        recorded!(self, Register { transport, addr, len, access, user } => self.register(transport, addr, len, access, user));
        self.known_transport(transport)?;
        if self.transport(transport.0).limits.dialect == crate::wire::Dialect::Tcp {
            return Err(CommandError::NotSupported);
        }
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(CommandError::BadValue("range of memory"));
        }
        let t = self.s.tables();
        let r = self
            .g
            .regions
            .take(t.regions)
            .ok_or(CommandError::Full(Resource::Regions))?;
        let row = &mut t.regions[r as usize];
        *row = Region {
            generation: row.generation,
            live: true,
            due: Due::Create,
            transport: transport.0,
            addr,
            len,
            access,
            user,
            ..Region::VACANT
        };
        self.g.regions_due = true;
        Ok(RegionId::new(r, row.generation))
    }

    /// Takes a region's keys back from peers; `RegionRevoked` follows when nobody can reach the
    /// memory through them any more.
    ///
    /// # Errors
    /// `Unknown`, or `WrongState` when it is not ready or being revoked.
    pub fn revoke(&mut self, region: RegionId) -> Result<(), CommandError> {
        recorded!(self, Revoke { region } => self.revoke(region));
        let row = self.region(region).ok_or(CommandError::Unknown)?;
        if row.due != Due::Nothing || !row.ready || row.revoking {
            return Err(CommandError::WrongState("region is not in use"));
        }
        row.due = Due::Destroy;
        row.revoking = true;
        self.g.regions_due = true;
        Ok(())
    }

    fn region(&mut self, region: RegionId) -> Option<&mut Region> {
        let row = self.s.tables().regions.get_mut(region.index())?;
        (row.live && row.generation == region.generation()).then_some(row)
    }

    /// Takes the driver's word on a registration: local and remote key, or its error number.
    pub fn handle_region(&mut self, now: Instant, region: RegionId, keys: Result<(u32, u32), i32>) {
        recorded!(self, Region { now, region, keys } => self.handle_region(now, region, keys));
        self.set_now(now);
        let Some(row) = self.region(region).filter(|row| !row.ready) else {
            self.g.counters.stale += 1;
            return;
        };
        row.ready = true;
        row.keys = Some(keys);
        row.told = false;
        self.g.region_events = true;
        self.g.rare_events = true;
    }

    /// Takes the driver's word that a region's keys are worth nothing any more.
    pub fn handle_region_revoked(&mut self, now: Instant, region: RegionId) {
        recorded!(self, RegionRevoked { now, region } => self.handle_region_revoked(now, region));
        self.set_now(now);
        let Some(row) = self.region(region).filter(|row| row.revoking) else {
            self.g.counters.stale += 1;
            return;
        };
        row.revoked = true;
        row.told = false;
        self.g.region_events = true;
        self.g.rare_events = true;
        self.end_revocations();
    }

    /// Takes the keys of a message's buffers back from the peer, if all of them are regions'.
    pub(crate) fn revoke_buffers(&mut self, t: u32) {
        let n = self.task(t).nexus;
        if n == NONE || !self.task(t).flags.contains(TaskFlags::PEER_HOLDS) {
            return;
        }
        let transport = self.nexus(n).transport;
        let tables = self.s.tables();
        let (task, extents) = (&mut tables.tasks[t as usize], &*tables.extents);
        let reachable = |s: &Segment| s.rkey != 0;
        let own = |r: &Region, key: u32| r.live && r.transport == transport && r.has_key(key);
        let known = |s: Segment| tables.regions.iter().any(|r| own(r, s.rkey));
        if !task.buffers(extents).filter(reachable).all(known) {
            return;
        }
        for segment in task.buffers(extents).filter(reachable) {
            let in_use = |r: &&mut Region| own(r, segment.rkey) && !r.revoking;
            for region in tables.regions.iter_mut().filter(in_use) {
                region.due = Due::Destroy;
                region.revoking = true;
                self.g.regions_due = true;
            }
        }
        task.flags.insert(TaskFlags::REVOKING);
    }

    /// A region is revoked: messages whose last one it was have their buffers back, as far as the
    /// peer is concerned.
    fn end_revocations(&mut self) {
        for t in 0..self.s.tables().tasks.len() as u32 {
            let tables = self.s.tables();
            let (task, extents) = (&mut tables.tasks[t as usize], &*tables.extents);
            if !task.flags.contains(TaskFlags::REVOKING) {
                continue;
            }
            let reached = |r: &Region, s: &Segment| r.live && !r.revoked && r.has_key(s.rkey);
            let waits = |s: Segment| tables.regions.iter().any(|r| reached(r, &s));
            if task.buffers(extents).filter(|s| s.rkey != 0).any(waits) {
                continue;
            }
            let over = TaskFlags::REVOKING | TaskFlags::PEER_HOLDS;
            task.flags.remove(over);
            self.maybe_return(t);
            self.try_free(t);
        }
    }

    pub(crate) fn poll_regions(&mut self, transport: TransportId) -> Option<Control> {
        if !self.g.regions_due {
            return None;
        }
        let t = self.s.tables();
        let mut later = false;
        for (index, row) in t.regions.iter_mut().enumerate() {
            if row.due == Due::Nothing || !row.live {
                continue;
            }
            if row.transport != transport.0 {
                later = true;
                continue;
            }
            let region = RegionId::new(index as u32, row.generation);
            let due = core::mem::replace(&mut row.due, Due::Nothing);
            let (addr, len, access) = (row.addr, row.len, row.access);
            return Some(if due == Due::Create {
                Control::Register {
                    region,
                    addr,
                    len,
                    access,
                }
            } else {
                Control::Revoke { region }
            });
        }
        self.g.regions_due = later;
        None
    }

    pub(crate) fn poll_region_event(&mut self) -> Option<Event> {
        if !self.g.region_events {
            return None;
        }
        let t = self.s.tables();
        for (index, row) in t.regions.iter_mut().enumerate() {
            if !row.live || row.told {
                continue;
            }
            row.told = true;
            let region = RegionId::new(index as u32, row.generation);
            let user = row.user;
            let event = match (row.revoked, row.keys) {
                (false, Some(Ok((lkey, rkey)))) => {
                    return Some(Event::RegionReady {
                        region,
                        user,
                        lkey,
                        rkey,
                    });
                }
                (false, Some(Err(error))) => Event::RegionFailed {
                    region,
                    user,
                    error,
                },
                _ => Event::RegionRevoked { region, user },
            };
            row.live = false;
            self.g.regions.give(t.regions, index as u32);
            return Some(event);
        }
        self.g.region_events = false;
        None
    }
}

/// Whether a direct message in a send queue is over for the queue, though not for the device.
#[inline]
pub(crate) fn abandoned(direct: Direct, state: State) -> bool {
    direct != Direct::No && !matches!(state, State::Queued | State::Sent)
}
