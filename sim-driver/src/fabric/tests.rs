//! Raw queue pairs driven by hand.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use xio_proto::{CmKind, Segment, WorkStatus};

use super::*;
use crate::env::Forbidden;
use crate::errno;
use crate::memory::{Buffer, Memory, MemoryConfig, Rights};
use crate::swarm::{FaultLevel, Site, Swarm};

const PORT: u16 = 7000;
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Two endpoints, a device each, and what their drivers have seen.
struct Pair {
    env: Env,
    fabric: Fabric,
    nics: [NicId; 2],
    ids: [Option<QpId>; 2],
    seen: [Vec<WorkCompletion>; 2],
    notices: [Vec<(NoticeKind, i32)>; 2],
    params: CmParams,
}

fn address(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
}

impl Pair {
    fn new(seed: u64, limits: NicLimits) -> Self {
        let mut env = Env::new(Rng::new(seed));
        let mut fabric = Fabric::new(FabricConfig::default());
        let config = MemoryConfig {
            slot_size: 1024,
            slots: 64,
            arena: 1 << 20,
            regions: 100,
        };
        for endpoint in 0..2 {
            env.memory.push(Memory::new(endpoint, config));
        }
        let nics = [0, 1].map(|n| fabric.add_nic(n, address(n as u8), limits));
        Self {
            env,
            fabric,
            nics,
            ids: [None; 2],
            seen: [Vec::new(), Vec::new()],
            notices: [Vec::new(), Vec::new()],
            params: CmParams::default(),
        }
    }

    /// Connected, with `receives` posted on either side.
    fn connected(seed: u64, limits: NicLimits, receives: u32) -> Self {
        let mut pair = Self::new(seed, limits);
        pair.connect(receives);
        pair
    }

    fn connect(&mut self, receives: u32) {
        let (env, fabric) = (&mut self.env, &mut self.fabric);
        assert!(fabric.listen(env, self.nics[SERVER], PORT, 4, 77).is_ok());
        let id = fabric.create_id(self.nics[CLIENT], 1);
        self.ids[CLIENT] = Some(id);
        let to = SocketAddr::new(address(1), PORT);
        assert!(fabric.resolve_address(env, id, to, None).is_ok());
        self.run();
        assert!(self.fabric.resolve_route(&mut self.env, id).is_ok());
        self.run();
        assert!(self.fabric.create_queue_pair(&mut self.env, id).is_ok());
        self.receives(CLIENT, receives);
        assert!(
            self.fabric
                .connect(&mut self.env, id, self.params, b"hello")
                .is_ok()
        );
        self.run();
        let Some(server) = self.ids[SERVER] else {
            panic!("no connect request")
        };
        assert!(self.fabric.create_queue_pair(&mut self.env, server).is_ok());
        self.receives(SERVER, receives);
        assert!(
            self.fabric
                .accept(&mut self.env, server, self.params, b"")
                .is_ok()
        );
        self.run();
        for side in [CLIENT, SERVER] {
            assert_eq!(self.fabric.state(self.id(side)), Some(QpState::ReadyToSend));
        }
    }

    fn id(&self, side: usize) -> QpId {
        self.ids[side].unwrap_or(QpId {
            index: 0,
            generation: 0,
        })
    }

    fn poll(&mut self) {
        for side in [CLIENT, SERVER] {
            while let Some(notice) = self.fabric.poll_notice(&mut self.env, self.nics[side]) {
                if notice.kind == NoticeKind::Cm(CmKind::ConnectRequest) {
                    assert_eq!(notice.cookie, 77);
                    assert_eq!(&notice.private[..5], b"hello");
                    assert_eq!(notice.private.len(), 56, "padded");
                    self.ids[side] = notice.id;
                }
                self.notices[side].push((notice.kind, notice.status));
            }
            while let Some(done) = self.fabric.poll_completion(&mut self.env, self.nics[side]) {
                self.seen[side].push(done);
            }
        }
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) {
        self.poll();
        while let Some(event) = self.env.queue.pop() {
            if let Event::Fabric(event) = event {
                self.fabric.handle(&mut self.env, event);
            }
            self.poll();
        }
    }

    fn receives(&mut self, side: usize, count: u32) {
        for slot in 0..count {
            self.receive(side, slot, 1024);
        }
    }

    fn receive(&mut self, side: usize, slot: u32, len: u32) {
        let segment = self.env.memory[side].slot_segment(slot, 0, len);
        let wr = 1000 + u64::from(slot);
        let id = self.id(side);
        assert_eq!(
            self.fabric.post_receive(&mut self.env, id, wr, segment),
            Ok(())
        );
    }

    fn post(
        &mut self,
        side: usize,
        wr: u64,
        op: SendOp,
        segments: &[Segment],
        signaled: bool,
    ) -> Result<(), i32> {
        let request = SendRequest {
            wr,
            op,
            segments,
            signaled,
            fence: false,
            inline: false,
        };
        let id = self.id(side);
        self.fabric.post_send(&mut self.env, id, &request)
    }

    /// Sends a slot of the upper half whose bytes all are `wr`.
    fn send(&mut self, side: usize, wr: u64, len: u32, signaled: bool) {
        let slot = 32 + wr as u32 % 32;
        let segment = self.env.memory[side].slot_segment(slot, 0, len);
        self.env.memory[side].user_mut(segment).fill(wr as u8);
        assert_eq!(
            self.post(side, wr, SendOp::Send, &[segment], signaled),
            Ok(())
        );
    }

    fn buffer(&mut self, side: usize, len: u32, rights: Rights) -> Buffer {
        let Some(buffer) = self.env.memory[side].allocate(len, rights) else {
            panic!()
        };
        self.env.memory[side].hold(buffer.lkey);
        buffer
    }

    fn statuses(&self, side: usize, recv: bool) -> Vec<(u64, WorkStatus)> {
        let mine = self.seen[side].iter().filter(|done| done.recv == recv);
        mine.map(|done| (done.wr, done.status)).collect()
    }

    fn forbidden(&self) -> Vec<Forbidden> {
        self.env
            .violations
            .iter()
            .map(|violation| violation.what)
            .collect()
    }

    fn had(&self, side: usize, kind: CmKind) -> bool {
        self.notices[side]
            .iter()
            .any(|(seen, _)| *seen == NoticeKind::Cm(kind))
    }
}

#[test]
fn messages_arrive_once_and_in_order() {
    let mut pair = Pair::connected(1, NicLimits::default(), 20);
    for wr in 0..20 {
        pair.send(CLIENT, wr, 100 + wr as u32, true);
    }
    pair.run();
    let got: Vec<_> = pair.seen[SERVER]
        .iter()
        .map(|done| (done.wr, done.len))
        .collect();
    let expected: Vec<_> = (0..20).map(|n| (1000 + n, 100 + n as u32)).collect();
    assert_eq!(got, expected);
    for n in 0..20_u32 {
        let segment = pair.env.memory[SERVER].slot_segment(n, 0, 100 + n);
        assert!(
            pair.env.memory[SERVER]
                .user(segment)
                .iter()
                .all(|&byte| byte == n as u8)
        );
    }
    let sent = pair.statuses(CLIENT, false);
    assert_eq!(
        sent,
        (0..20)
            .map(|wr| (wr, WorkStatus::Success))
            .collect::<Vec<_>>()
    );
    assert_eq!(pair.forbidden(), []);
    assert_eq!(pair.env.memory[CLIENT].slots_posted(), 20, "the receives");
}

#[test]
fn unsignaled_success_is_silent_and_frees_late() {
    let mut pair = Pair::connected(2, NicLimits::default(), 20);
    for wr in 0..9 {
        pair.send(CLIENT, wr, 10, false);
    }
    pair.run();
    assert_eq!(pair.statuses(CLIENT, false), []);
    assert_eq!(
        pair.fabric.posted(pair.id(CLIENT)).0,
        9,
        "places are not free"
    );
    pair.send(CLIENT, 9, 10, true);
    pair.run();
    assert_eq!(pair.statuses(CLIENT, false), [(9, WorkStatus::Success)]);
    assert_eq!(pair.fabric.posted(pair.id(CLIENT)).0, 0);
    assert_eq!(pair.statuses(SERVER, true).len(), 10);
}

#[test]
fn a_full_send_queue_is_forbidden() {
    let limits = NicLimits {
        sq_depth: 4,
        ..NicLimits::default()
    };
    let mut pair = Pair::connected(3, limits, 20);
    for wr in 0..4 {
        pair.send(CLIENT, wr, 10, false);
    }
    pair.run();
    let segment = pair.env.memory[CLIENT].slot_segment(40, 0, 1);
    let refused = pair.post(CLIENT, 4, SendOp::Send, &[segment], true);
    assert_eq!(refused, Err(errno::ENOMEM));
    assert_eq!(pair.forbidden(), [Forbidden::SendQueueFull]);
}

#[test]
fn receiver_not_ready_is_retried_until_there_is_a_receive() {
    let mut pair = Pair::connected(4, NicLimits::default(), 1);
    pair.send(CLIENT, 0, 10, true);
    pair.send(CLIENT, 1, 10, true);
    pair.send(CLIENT, 2, 10, true);
    for _ in 0..30 {
        let Some(event) = pair.env.queue.pop() else {
            break;
        };
        if let Event::Fabric(event) = event {
            pair.fabric.handle(&mut pair.env, event);
        }
        pair.poll();
    }
    assert!(pair.fabric.rnr_count() > 0);
    assert_eq!(
        pair.forbidden(),
        [Forbidden::ReceiverNotReady],
        "once, not per retry"
    );
    pair.receive(SERVER, 1, 1024);
    pair.receive(SERVER, 2, 1024);
    pair.run();
    let sent = pair.statuses(CLIENT, false);
    assert_eq!(
        sent,
        (0..3)
            .map(|wr| (wr, WorkStatus::Success))
            .collect::<Vec<_>>()
    );
    assert_eq!(pair.statuses(SERVER, true).len(), 3);
}

#[test]
fn receiver_not_ready_ends_with_its_count() {
    let mut pair = Pair::new(5, NicLimits::default());
    pair.params.rnr_retry = 2;
    pair.connect(1);
    for wr in 0..3 {
        pair.send(CLIENT, wr, 10, true);
    }
    pair.run();
    assert_eq!(
        pair.statuses(CLIENT, false),
        [
            (0, WorkStatus::Success),
            (1, WorkStatus::RnrRetryExceeded),
            (2, WorkStatus::Flushed)
        ]
    );
    assert_eq!(pair.statuses(CLIENT, true), [(1000, WorkStatus::Flushed)]);
    assert_eq!(pair.fabric.rnr_count(), 3);
}

#[test]
fn flush_ends_each_request_once_signaled_or_not() {
    let mut pair = Pair::connected(6, NicLimits::default(), 5);
    for wr in 0..5 {
        pair.send(CLIENT, wr, 10, wr == 4);
    }
    let id = pair.id(CLIENT);
    assert_eq!(pair.fabric.drain(&mut pair.env, id), Ok(()));
    pair.run();
    let sent = pair.statuses(CLIENT, false);
    assert_eq!(
        sent,
        (0..5)
            .map(|wr| (wr, WorkStatus::Flushed))
            .collect::<Vec<_>>()
    );
    assert_eq!(pair.statuses(CLIENT, true).len(), 5);
    assert_eq!(
        pair.env.memory[CLIENT].slots_posted(),
        0,
        "everything is back"
    );
    pair.send(CLIENT, 5, 10, false);
    pair.run();
    assert_eq!(
        pair.statuses(CLIENT, false).last(),
        Some(&(5, WorkStatus::Flushed))
    );
}

#[test]
fn what_is_never_flushed_comes_back_with_destroy() {
    let mut pair = Pair::connected(7, NicLimits::default(), 8);
    pair.env.swarm.set(Site::NoFlush, crate::rng::PPM);
    for wr in 0..5 {
        pair.send(CLIENT, wr, 10, true);
    }
    let id = pair.id(CLIENT);
    assert_eq!(pair.fabric.disconnect(&mut pair.env, id), Ok(()));
    pair.run();
    assert_eq!(pair.seen[CLIENT], []);
    assert_eq!(pair.env.memory[CLIENT].slots_posted(), 13);
    assert!(pair.had(SERVER, CmKind::Disconnected));
    pair.fabric.destroy(&mut pair.env, id);
    assert_eq!(pair.env.memory[CLIENT].slots_posted(), 0);
    assert_eq!(pair.fabric.state(id), None);
    pair.run();
    let refused = pair.post(CLIENT, 9, SendOp::Send, &[], true);
    assert_eq!(refused, Err(errno::EINVAL));
    assert_eq!(pair.forbidden(), [Forbidden::PostToDestroyed]);
}

#[test]
fn read_and_write_move_bytes_within_bounds_and_rights() {
    let mut pair = Pair::connected(8, NicLimits::default(), 4);
    let both = Rights::LOCAL_WRITE
        .and(Rights::REMOTE_READ)
        .and(Rights::REMOTE_WRITE);
    let near = pair.buffer(CLIENT, 300, both);
    let far = pair.buffer(SERVER, 300, both);
    pair.env.memory[CLIENT].user_mut(near.segment()).fill(7);
    pair.env.memory[SERVER].user_mut(far.segment()).fill(9);
    let write = SendOp::Write {
        remote: far.addr + 100,
        rkey: far.rkey,
    };
    let parts = [near.part(0, 60), near.part(200, 40)];
    assert_eq!(pair.post(CLIENT, 1, write, &parts, true), Ok(()));
    pair.run();
    let bytes = pair.env.memory[SERVER].user(far.segment());
    assert!(
        bytes[..100]
            .iter()
            .chain(&bytes[200..])
            .all(|&byte| byte == 9)
    );
    assert!(bytes[100..200].iter().all(|&byte| byte == 7));
    let read = SendOp::Read {
        remote: far.addr,
        rkey: far.rkey,
    };
    assert_eq!(
        pair.post(CLIENT, 2, read, &[near.part(0, 100)], true),
        Ok(())
    );
    pair.run();
    assert!(
        pair.env.memory[CLIENT]
            .user(near.part(0, 100))
            .iter()
            .all(|&byte| byte == 9)
    );
    let sent = pair.statuses(CLIENT, false);
    assert_eq!(sent, [(1, WorkStatus::Success), (2, WorkStatus::Success)]);
    assert_eq!(
        pair.statuses(SERVER, true),
        [],
        "the responder hears nothing"
    );
    assert_eq!(pair.forbidden(), []);
}

fn refused(op: impl Fn(Buffer) -> SendOp, rights: Rights) {
    let mut pair = Pair::connected(9, NicLimits::default(), 4);
    let near = pair.buffer(CLIENT, 64, Rights::LOCAL_WRITE);
    let far = pair.buffer(SERVER, 64, rights);
    let request = op(far);
    assert_eq!(
        pair.post(CLIENT, 1, request, &[near.segment()], true),
        Ok(())
    );
    pair.send(CLIENT, 2, 10, true);
    pair.run();
    let ends = [(1, WorkStatus::RemoteAccess), (2, WorkStatus::Flushed)];
    assert_eq!(pair.statuses(CLIENT, false), ends);
    assert_eq!(
        pair.fabric.state(pair.id(SERVER)),
        Some(QpState::Error),
        "the responder fails too"
    );
    assert_eq!(pair.statuses(SERVER, true).len(), 4);
}

#[test]
fn remote_access_errors_end_both_queue_pairs() {
    let write = |far: Buffer, skip| SendOp::Write {
        remote: far.addr + skip,
        rkey: far.rkey,
    };
    let read = |far: Buffer, skip| SendOp::Read {
        remote: far.addr + skip,
        rkey: far.rkey,
    };
    let writable = Rights::LOCAL_WRITE.and(Rights::REMOTE_WRITE);
    refused(|far| write(far, 1), writable);
    refused(|far| write(far, 0), Rights::REMOTE_READ);
    refused(|far| read(far, 0), writable);
    refused(|far| read(far, 1), Rights::REMOTE_READ);
    let local_key = |far: Buffer| SendOp::Read {
        remote: far.addr,
        rkey: far.lkey,
    };
    refused(local_key, Rights::REMOTE_READ);
}

#[test]
fn reads_are_limited_fenced_and_in_order() {
    let mut pair = Pair::new(10, NicLimits::default());
    pair.params.reads = 2;
    pair.connect(8);
    let near = pair.buffer(CLIENT, 64 << 10, Rights::LOCAL_WRITE);
    let far = pair.buffer(SERVER, 64 << 10, Rights::REMOTE_READ);
    for wr in 0..6 {
        let read = SendOp::Read {
            remote: far.addr,
            rkey: far.rkey,
        };
        let part = [near.part(wr as u32 * 8192, 8192)];
        assert_eq!(pair.post(CLIENT, wr, read, &part, true), Ok(()));
        assert!(pair.fabric.entries[0].qp.reads_out <= 2);
    }
    let segment = pair.env.memory[CLIENT].slot_segment(40, 0, 8);
    let fenced = SendRequest {
        wr: 6,
        op: SendOp::Send,
        segments: &[segment],
        signaled: true,
        fence: true,
        inline: false,
    };
    let id = pair.id(CLIENT);
    assert_eq!(pair.fabric.post_send(&mut pair.env, id, &fenced), Ok(()));
    while pair.seen[SERVER].is_empty() {
        let Some(event) = pair.env.queue.pop() else {
            panic!("never sent")
        };
        if let Event::Fabric(event) = event {
            pair.fabric.handle(&mut pair.env, event);
        }
        pair.poll();
    }
    let reads = pair
        .statuses(CLIENT, false)
        .iter()
        .filter(|(wr, _)| *wr < 6)
        .count();
    assert_eq!(reads, 6, "every READ is done when the fenced send arrives");
}

#[test]
fn inline_bytes_are_taken_at_once() {
    let mut pair = Pair::connected(11, NicLimits::default(), 4);
    let segment = pair.env.memory[CLIENT].slot_segment(40, 0, 30);
    pair.env.memory[CLIENT].user_mut(segment).fill(1);
    let id = pair.id(CLIENT);
    let request = SendRequest {
        wr: 1,
        op: SendOp::Send,
        segments: &[segment],
        signaled: true,
        fence: false,
        inline: true,
    };
    assert_eq!(pair.fabric.post_send(&mut pair.env, id, &request), Ok(()));
    pair.env.memory[CLIENT].user_mut(segment).fill(2);
    pair.run();
    let got = pair.env.memory[SERVER].slot_segment(0, 0, 30);
    assert!(
        pair.env.memory[SERVER]
            .user(got)
            .iter()
            .all(|&byte| byte == 1)
    );
    let long = pair.env.memory[CLIENT].slot_segment(41, 0, 201);
    let too_long = SendRequest {
        segments: &[long],
        ..request
    };
    assert_eq!(
        pair.fabric.post_send(&mut pair.env, id, &too_long),
        Err(errno::EINVAL)
    );
    assert_eq!(pair.forbidden(), [Forbidden::InlineTooLong]);
}

#[test]
fn link_loss_is_bridged_or_ends_with_retry_exceeded() {
    for (down, status) in [
        (10_000_000, WorkStatus::Success),
        (100_000_000, WorkStatus::RetryExceeded),
    ] {
        let mut pair = Pair::connected(12, NicLimits::default(), 8);
        for wr in 0..4 {
            pair.send(CLIENT, wr, 10, true);
        }
        pair.fabric.cut_link(&mut pair.env, pair.nics[SERVER], down);
        pair.run();
        assert_eq!(pair.statuses(CLIENT, false)[0], (0, status));
        assert_eq!(pair.statuses(CLIENT, false).len(), 4);
        let received = pair.statuses(SERVER, true).len();
        assert_eq!(received, if status == WorkStatus::Success { 4 } else { 0 });
    }
}

#[test]
fn silent_death_is_found_by_sending_only() {
    let mut pair = Pair::connected(13, NicLimits::default(), 8);
    pair.fabric.kill(&mut pair.env, pair.nics[SERVER]);
    pair.run();
    assert_eq!(pair.seen[CLIENT], []);
    assert!(!pair.had(CLIENT, CmKind::Disconnected));
    pair.send(CLIENT, 1, 10, true);
    pair.run();
    assert_eq!(
        pair.statuses(CLIENT, false),
        [(1, WorkStatus::RetryExceeded)]
    );
}

#[test]
fn disconnect_is_heard_on_both_sides() {
    let mut pair = Pair::connected(14, NicLimits::default(), 2);
    let (client, server) = (pair.id(CLIENT), pair.id(SERVER));
    assert_eq!(pair.fabric.disconnect(&mut pair.env, client), Ok(()));
    for _ in 0..100 {
        if pair.had(SERVER, CmKind::Disconnected) {
            break;
        }
        let Some(event) = pair.env.queue.pop() else {
            break;
        };
        if let Event::Fabric(event) = event {
            pair.fabric.handle(&mut pair.env, event);
        }
        pair.poll();
    }
    assert!(pair.had(SERVER, CmKind::Disconnected));
    assert_eq!(pair.fabric.disconnect(&mut pair.env, server), Ok(()));
    pair.run();
    for side in [CLIENT, SERVER] {
        assert!(pair.had(side, CmKind::Disconnected));
        assert!(pair.had(side, CmKind::TimewaitExit));
        let id = pair.id(side);
        pair.fabric.destroy(&mut pair.env, id);
    }
    assert_eq!(pair.fabric.ids_live(), 0);
    assert_eq!(pair.forbidden(), []);
}

#[test]
fn nobody_listens() {
    let mut pair = Pair::new(15, NicLimits::default());
    let id = pair.fabric.create_id(pair.nics[CLIENT], 1);
    let to = SocketAddr::new(address(1), PORT);
    assert!(
        pair.fabric
            .resolve_address(&mut pair.env, id, to, None)
            .is_ok()
    );
    pair.run();
    assert!(pair.fabric.resolve_route(&mut pair.env, id).is_ok());
    pair.run();
    assert!(pair.fabric.create_queue_pair(&mut pair.env, id).is_ok());
    assert!(
        pair.fabric
            .connect(&mut pair.env, id, pair.params, b"")
            .is_ok()
    );
    pair.run();
    assert!(pair.notices[CLIENT].contains(&(NoticeKind::Cm(CmKind::Rejected), 8)));
    let unknown = pair.fabric.create_id(pair.nics[CLIENT], 2);
    let to = SocketAddr::new(address(9), PORT);
    assert!(
        pair.fabric
            .resolve_address(&mut pair.env, unknown, to, None)
            .is_ok()
    );
    pair.run();
    assert!(pair.had(CLIENT, CmKind::AddrError));
}

#[test]
fn shared_receives_feed_every_queue_pair() {
    let limits = NicLimits {
        srq_depth: 16,
        ..NicLimits::default()
    };
    let mut pair = Pair::connected(16, limits, 0);
    for slot in 0..3 {
        let segment = pair.env.memory[SERVER].slot_segment(slot, 0, 1024);
        let nic = pair.nics[SERVER];
        let posted = pair
            .fabric
            .post_shared_receive(&mut pair.env, nic, slot.into(), segment);
        assert_eq!(posted, Ok(()));
    }
    for wr in 0..3 {
        pair.send(CLIENT, wr, 10, true);
    }
    pair.run();
    assert_eq!(pair.statuses(SERVER, true).len(), 3);
    let id = pair.id(SERVER);
    assert_eq!(pair.fabric.drain(&mut pair.env, id), Ok(()));
    pair.run();
    assert_eq!(pair.statuses(SERVER, true).len(), 3, "nothing to flush");
}

#[test]
fn completion_queue_overrun_is_forbidden() {
    let limits = NicLimits {
        cq_depth: 3,
        ..NicLimits::default()
    };
    let mut pair = Pair::connected(17, limits, 4);
    for wr in 0..4 {
        pair.send(CLIENT, wr, 10, false);
    }
    while let Some(event) = pair.env.queue.pop() {
        if let Event::Fabric(event) = event {
            pair.fabric.handle(&mut pair.env, event);
        }
    }
    assert_eq!(pair.forbidden(), [Forbidden::CompletionQueueOverrun]);
}

#[test]
fn device_removal_fails_everything_on_it() {
    let mut pair = Pair::connected(18, NicLimits::default(), 4);
    pair.fabric.remove_device(&mut pair.env, pair.nics[SERVER]);
    pair.run();
    assert!(pair.had(SERVER, CmKind::DeviceRemoval));
    assert_eq!(pair.statuses(SERVER, true).len(), 4);
    let segment = pair.env.memory[SERVER].slot_segment(40, 0, 8);
    assert_eq!(
        pair.post(SERVER, 1, SendOp::Send, &[segment], true),
        Err(errno::EIO)
    );
    pair.send(CLIENT, 1, 10, true);
    pair.run();
    assert_eq!(
        pair.statuses(CLIENT, false),
        [(1, WorkStatus::RetryExceeded)]
    );
}

/// Traffic in both directions with every fault there is; returns the hash of what happened.
fn noisy(seed: u64) -> (u64, u64) {
    let mut pair = Pair::new(seed, NicLimits::default());
    pair.connect(32);
    pair.env.swarm = Swarm::draw(&mut pair.env.rng, FaultLevel::All);
    for round in 0..50_u64 {
        for side in [CLIENT, SERVER] {
            if pair.fabric.posted(pair.id(side)).0 >= 16 {
                continue;
            }
            let slot = 32 + (round % 16) as u32 * 2 + side as u32;
            let segment = pair.env.memory[side].slot_segment(slot, 0, 10);
            let _ = pair.post(side, round, SendOp::Send, &[segment], true);
        }
        for _ in 0..pair.env.rng.below(10) {
            let Some(event) = pair.env.queue.pop() else {
                break;
            };
            if let Event::Fabric(event) = event {
                pair.fabric.handle(&mut pair.env, event);
            }
            pair.poll();
            pair.repost();
        }
    }
    pair.run();
    (pair.env.trace.hash(), pair.env.trace.count())
}

impl Pair {
    fn repost(&mut self) {
        for side in [CLIENT, SERVER] {
            let done = core::mem::take(&mut self.seen[side]);
            for done in done
                .iter()
                .filter(|done| done.recv && done.status == WorkStatus::Success)
            {
                let slot = (done.wr - 1000) as u32;
                let segment = self.env.memory[side].slot_segment(slot, 0, 1024);
                let _ = self
                    .fabric
                    .post_receive(&mut self.env, done.qp, done.wr, segment);
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut hashes = Vec::new();
    for seed in 0..100 {
        let first = noisy(seed);
        assert_eq!(first, noisy(seed), "seed {seed}");
        assert!(first.1 > 100);
        hashes.push(first.0);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 100, "different seeds differ");
}
