//! A device: libibverbs.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::cm::{free, zeroed};
use super::{Forks, Light, World, code, set_errno, status, step, with};
use crate::sys::{
    access, event, flag, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr, ibv_wc,
};

/// Data that a send may carry in its work request.
const INLINE_MAX: u32 = 128;

/// `ibv_wc_status`.
mod outcome {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const LOCAL_PROTECTION: u32 = 4;
    pub(super) const FLUSHED: u32 = 5;
    pub(super) const REMOTE_ACCESS: u32 = 10;
    pub(super) const RETRY_EXCEEDED: u32 = 12;
    pub(super) const RNR_RETRY_EXCEEDED: u32 = 13;
}

/// A receive: its number and its place.
type Receive = (u64, ibv_sge);

#[derive(Default)]
pub(super) struct Hardware {
    queue_pairs: BTreeMap<u32, QueuePair>,
    next_number: u32,
    shared: BTreeMap<usize, Shared>,
    completions: BTreeMap<usize, Completions>,
    channels: BTreeMap<usize, Channel>,
    regions: BTreeMap<u32, Region>,
    next_key: u32,
    events: VecDeque<(u32, usize)>,
    /// Events taken and not acknowledged.
    pub(super) taken: usize,
}

struct QueuePair {
    raw: *mut ibv_qp,
    receives: VecDeque<Receive>,
    depth: usize,
    peer: Option<u32>,
    has_failed: bool,
}

struct Shared {
    receives: VecDeque<Receive>,
    depth: usize,
}

struct Completions {
    done: VecDeque<ibv_wc>,
    depth: usize,
    channel: usize,
    is_armed: bool,
    /// Notices taken and not acknowledged.
    owed: u32,
}

struct Channel {
    light: Light,
    notices: VecDeque<usize>,
}

struct Region {
    addr: u64,
    len: u64,
    access: u32,
}

impl Region {
    fn has(&self, addr: u64, len: u64, rights: u32) -> bool {
        let inside = addr >= self.addr && addr + len <= self.addr + self.len;
        inside && self.access & rights == rights
    }
}

/// The one device, open as long as the thread lives.
struct Context {
    raw: *mut ibv_context,
    device: *mut ibv_device,
    light: Light,
}

impl Drop for Context {
    fn drop(&mut self) {
        free(self.raw);
        free(self.device);
    }
}

thread_local! {
    static CONTEXT: Context = Context::new();
    static MEMORY_MAX: Cell<u64> = const { Cell::new(u64::MAX) };
}

impl Context {
    fn new() -> Self {
        let (raw, device): (*mut ibv_context, *mut ibv_device) = (zeroed(), zeroed());
        let light = Light::new();
        // SAFETY: just made.
        unsafe {
            (*raw).device = device;
            (*raw).async_fd = light.0;
            (*raw).ops.post_send = Some(post_send);
            (*raw).ops.post_recv = Some(post_recv);
            (*raw).ops.post_srq_recv = Some(post_srq_recv);
            (*raw).ops.poll_cq = Some(poll_cq);
            (*raw).ops.req_notify_cq = Some(req_notify_cq);
        }
        Self { raw, device, light }
    }
}

/// The device's context.
pub(super) fn context() -> *mut ibv_context {
    CONTEXT.with(|context| context.raw)
}

impl World {
    /// Two queue pairs are connected.
    pub(super) fn join(&mut self, one: *mut ibv_qp, two: *mut ibv_qp) {
        // SAFETY: both are valid.
        let (one, two) = unsafe { ((*one).qp_num, (*two).qp_num) };
        self.queue_pair(one).peer = Some(two);
        self.queue_pair(two).peer = Some(one);
    }

    fn queue_pair(&mut self, number: u32) -> &mut QueuePair {
        self.device
            .queue_pairs
            .get_mut(&number)
            .expect("a queue pair")
    }

    fn complete(&mut self, queue: *mut ibv_cq, wr: u64, status: u32, len: usize, number: u32) {
        // SAFETY: plain numbers, for which 0 is a value.
        let mut wc: ibv_wc = unsafe { core::mem::zeroed() };
        (wc.wr_id, wc.status, wc.qp_num) = (wr, status, number);
        wc.byte_len = len as u32;
        let completions = self.device.completions.get_mut(&queue.addr());
        let completions = completions.expect("a completion queue");
        completions.done.push_back(wc);
        assert!(
            completions.done.len() <= completions.depth,
            "completions overrun"
        );
        if std::mem::take(&mut completions.is_armed) {
            let channel = self.device.channels.get_mut(&completions.channel);
            let channel = channel.expect("a channel");
            channel.notices.push_back(queue.addr());
            channel.light.set(true);
        }
    }

    /// A queue pair goes to the error state: what is on it comes back.
    pub(super) fn fail_queue_pair(&mut self, qp: *mut ibv_qp) {
        if qp.is_null() {
            return;
        }
        // SAFETY: the queue pair is valid.
        let (number, queue, srq) = unsafe { ((*qp).qp_num, (*qp).recv_cq, (*qp).srq) };
        let pair = self.queue_pair(number);
        if std::mem::replace(&mut pair.has_failed, true) {
            return;
        }
        for (wr, _) in std::mem::take(&mut pair.receives) {
            self.complete(queue, wr, outcome::FLUSHED, 0, number);
        }
        if !srq.is_null() {
            self.report(event::LAST_RECEIVE, qp);
        }
    }

    /// An asynchronous event of the device.
    pub(super) fn report(&mut self, number: u32, qp: *mut ibv_qp) {
        self.device.events.push_back((number, qp.addr()));
        CONTEXT.with(|context| context.light.set(true));
    }

    /// Completions that nobody has taken.
    pub(super) fn completions(&self, queue: usize) -> usize {
        let queue = self.device.completions.get(&queue);
        queue.map_or(0, |queue| queue.done.len())
    }

    /// Any queue pair, to have something happen to it.
    pub(super) fn first_queue_pair(&self) -> *mut ibv_qp {
        let first = self.device.queue_pairs.values().next();
        first.map_or(ptr::null_mut(), |pair| pair.raw)
    }

    /// The bytes of a segment, if its key allows that.
    fn slice(&self, key: u32, addr: u64, len: u64, rights: u32) -> Option<*mut u8> {
        let region = self.device.regions.get(&key)?;
        let place = ptr::with_exposed_provenance_mut(addr as usize);
        region.has(addr, len, rights).then_some(place)
    }

    fn gather(&self, list: &[ibv_sge], is_inline: bool) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for s in list {
            let place = if is_inline {
                ptr::with_exposed_provenance_mut(s.addr as usize)
            } else {
                self.slice(s.lkey, s.addr, s.length.into(), 0)?
            };
            // SAFETY: registered, or promised by who posted it.
            bytes.extend(unsafe { core::slice::from_raw_parts(place, s.length as usize) });
        }
        Some(bytes)
    }

    fn scatter(&self, list: &[ibv_sge], mut bytes: &[u8]) -> bool {
        for s in list {
            let Some(place) = self.slice(s.lkey, s.addr, s.length.into(), access::LOCAL_WRITE)
            else {
                return false;
            };
            let (now, rest) = bytes.split_at(bytes.len().min(s.length as usize));
            // SAFETY: registered, and nobody has a reference to what a device may change.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), place, now.len()) };
            bytes = rest;
        }
        bytes.is_empty()
    }

    /// A request of a send queue: its outcome.
    fn carry_out(&mut self, number: u32, wr: &ibv_send_wr) -> u32 {
        let pair = self.queue_pair(number);
        let (has_failed, peer) = (pair.has_failed, pair.peer);
        let Some(peer) = peer.filter(|_| !has_failed) else {
            return outcome::FLUSHED;
        };
        // SAFETY: so many segments are there; the union was written, or is zeros.
        let (list, rdma) = unsafe {
            let list: &[ibv_sge] = match wr.num_sge {
                0 => &[],
                count => core::slice::from_raw_parts(wr.sg_list, count as usize),
            };
            (list, wr.wr.rdma)
        };
        let len: u64 = list.iter().map(|s| u64::from(s.length)).sum();
        let is_inline = wr.send_flags & flag::INLINE != 0;
        assert!(
            !is_inline || len <= INLINE_MAX.into(),
            "too long for inline"
        );
        let far = |world: &Self, rights| world.slice(rdma.rkey, rdma.remote_addr, len, rights);
        match wr.opcode {
            // IBV_WR_RDMA_READ
            4 => {
                let Some(place) = far(self, access::REMOTE_READ) else {
                    return outcome::REMOTE_ACCESS;
                };
                // SAFETY: registered.
                let bytes = unsafe { core::slice::from_raw_parts(place, len as usize) }.to_vec();
                match self.scatter(list, &bytes) {
                    true => outcome::SUCCESS,
                    false => outcome::LOCAL_PROTECTION,
                }
            }
            // IBV_WR_RDMA_WRITE
            0 => {
                let Some(bytes) = self.gather(list, is_inline) else {
                    return outcome::LOCAL_PROTECTION;
                };
                let Some(place) = far(self, access::REMOTE_WRITE) else {
                    return outcome::REMOTE_ACCESS;
                };
                // SAFETY: registered, and nobody has a reference to what a peer may change.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
                outcome::SUCCESS
            }
            _ => match self.gather(list, is_inline) {
                Some(bytes) => self.deliver(peer, &bytes),
                None => outcome::LOCAL_PROTECTION,
            },
        }
    }

    /// A frame comes to a queue pair: what its sender hears.
    fn deliver(&mut self, number: u32, bytes: &[u8]) -> u32 {
        let Some(pair) = self.device.queue_pairs.get_mut(&number) else {
            return outcome::RETRY_EXCEEDED;
        };
        if pair.has_failed {
            return outcome::RETRY_EXCEEDED;
        }
        // SAFETY: the queue pair is valid.
        let (queue, srq) = unsafe { ((*pair.raw).recv_cq, (*pair.raw).srq) };
        let receive = match self.device.shared.get_mut(&srq.addr()) {
            Some(shared) => shared.receives.pop_front(),
            None => pair.receives.pop_front(),
        };
        let Some((wr, place)) = receive else {
            self.not_ready += 1;
            return outcome::RNR_RETRY_EXCEEDED;
        };
        let status = match self.scatter(&[place], bytes) {
            true => outcome::SUCCESS,
            false => outcome::LOCAL_PROTECTION,
        };
        self.complete(queue, wr, status, bytes.len(), number);
        outcome::SUCCESS
    }
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> i32 {
    // SAFETY: the queue pair is valid; a chain that ends in null.
    while let Some(request) = unsafe { wr.as_ref() } {
        let done = with(|world| {
            world.begin("ibv_post_send")?;
            // SAFETY: as above.
            let (number, queue) = unsafe { ((*qp).qp_num, (*qp).send_cq) };
            let status = world.carry_out(number, request);
            if status != outcome::SUCCESS || request.send_flags & flag::SIGNALED != 0 {
                world.complete(queue, request.wr_id, status, 0, number);
            }
            if status != outcome::SUCCESS {
                world.fail_queue_pair(qp);
            }
            Ok(())
        });
        if let Err(code) = done {
            // SAFETY: a place for the answer.
            unsafe { *bad = wr };
            return code;
        }
        wr = request.next;
    }
    0
}

/// Adds receives, one by one.
///
/// # Safety
/// A chain that ends in null, and a place for the answer.
unsafe fn post_receives(
    call: &'static str,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut add: impl FnMut(&mut World, Receive),
) -> i32 {
    // SAFETY: of the caller.
    while let Some(request) = unsafe { wr.as_ref() } {
        let done = with(|world| {
            world.begin(call)?;
            assert_eq!(request.num_sge, 1);
            // SAFETY: of the caller: one segment is there.
            add(world, (request.wr_id, unsafe { request.sg_list.read() }));
            Ok(())
        });
        if let Err(code) = done {
            // SAFETY: of the caller.
            unsafe { *bad = wr };
            return code;
        }
        wr = request.next;
    }
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> i32 {
    // SAFETY: the queue pair is valid.
    let (number, queue) = unsafe { ((*qp).qp_num, (*qp).recv_cq) };
    let add = |world: &mut World, receive: Receive| {
        let pair = world.queue_pair(number);
        if pair.has_failed {
            return world.complete(queue, receive.0, outcome::FLUSHED, 0, number);
        }
        pair.receives.push_back(receive);
        assert!(pair.receives.len() <= pair.depth, "receives overrun");
    };
    // SAFETY: as the function is defined.
    unsafe { post_receives("ibv_post_recv", wr, bad, add) }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> i32 {
    let add = |world: &mut World, receive: Receive| {
        let shared = world.device.shared.get_mut(&srq.addr()).expect("a queue");
        shared.receives.push_back(receive);
        assert!(shared.receives.len() <= shared.depth, "receives overrun");
    };
    // SAFETY: as the function is defined.
    unsafe { post_receives("ibv_post_srq_recv", wr, bad, add) }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: i32, place: *mut ibv_wc) -> i32 {
    step("ibv_poll_cq", cq.addr());
    let done = with(|world| {
        world.begin("ibv_poll_cq")?;
        let queue = world
            .device
            .completions
            .get_mut(&cq.addr())
            .expect("a queue");
        let count = queue.done.len().min(room as usize);
        for (at, wc) in queue.done.drain(..count).enumerate() {
            // SAFETY: so many have room.
            unsafe { place.add(at).write(wc) };
        }
        Ok(count as i32)
    });
    done.unwrap_or_else(|code: i32| -code)
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: i32) -> i32 {
    step("ibv_req_notify_cq", cq.addr());
    code(with(|world| {
        world.begin("ibv_req_notify_cq")?;
        let queue = world
            .device
            .completions
            .get_mut(&cq.addr())
            .expect("a queue");
        queue.is_armed = true;
        Ok(())
    }))
}

/// Makes something whose structure has a context, if the call is not to fail.
fn make<T>(call: &'static str, kind: &'static str, needs: &[usize]) -> *mut T {
    if let Err(code) = with(|world| world.begin(call)) {
        set_errno(code);
        return ptr::null_mut();
    }
    let raw: *mut T = zeroed();
    with(|world| world.made(kind, raw.addr(), needs));
    raw
}

pub(crate) unsafe fn ibv_fork_init() -> i32 {
    code(with(|world| {
        world.begin("ibv_fork_init")?;
        if world.forks == Forks::Late {
            return Err(libc::EINVAL);
        }
        world.forks = Forks::Prepared;
        Ok(())
    }))
}

pub(crate) unsafe fn ibv_alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    let raw: *mut ibv_pd = make("ibv_alloc_pd", "domain", &[]);
    if !raw.is_null() {
        // SAFETY: just made.
        unsafe { (*raw).context = context() };
    }
    raw
}

pub(crate) unsafe fn ibv_dealloc_pd(pd: *mut ibv_pd) -> i32 {
    unmake("ibv_dealloc_pd", pd, |_, _| {})
}

/// Unmakes something, and what is known of it.
fn unmake<T>(call: &'static str, raw: *mut T, forget: impl FnOnce(&mut World, *mut T)) -> i32 {
    let done = with(|world| {
        world.unmake(call, raw.addr())?;
        forget(world, raw);
        Ok(())
    });
    if done.is_ok() {
        free(raw);
    }
    code(done)
}

pub(crate) unsafe fn ibv_create_comp_channel(_: *mut ibv_context) -> *mut ibv_comp_channel {
    let raw: *mut ibv_comp_channel = make("ibv_create_comp_channel", "notices", &[]);
    if !raw.is_null() {
        let light = Light::new();
        // SAFETY: just made.
        unsafe { (*raw).fd = light.0 };
        let notices = VecDeque::new();
        with(|world| {
            world
                .device
                .channels
                .insert(raw.addr(), Channel { light, notices })
        });
    }
    raw
}

pub(crate) unsafe fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> i32 {
    unmake("ibv_destroy_comp_channel", channel, |world, channel| {
        world.device.channels.remove(&channel.addr());
    })
}

pub(crate) unsafe fn ibv_create_cq(
    _: *mut ibv_context,
    depth: i32,
    _: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: i32,
) -> *mut ibv_cq {
    let raw: *mut ibv_cq = make("ibv_create_cq", "completions", &[channel.addr()]);
    if !raw.is_null() {
        // SAFETY: just made.
        unsafe { (*raw).context = context() };
        let completions = Completions {
            done: VecDeque::new(),
            depth: depth as usize,
            channel: channel.addr(),
            is_armed: false,
            owed: 0,
        };
        with(|world| world.device.completions.insert(raw.addr(), completions));
    }
    raw
}

pub(crate) unsafe fn ibv_destroy_cq(cq: *mut ibv_cq) -> i32 {
    unmake("ibv_destroy_cq", cq, |world, cq| {
        let queue = world
            .device
            .completions
            .remove(&cq.addr())
            .expect("a queue");
        assert_eq!(
            queue.owed, 0,
            "destroying waits for notices not acknowledged"
        );
    })
}

pub(crate) unsafe fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> i32 {
    step("ibv_get_cq_event", channel.addr());
    let found = with(|world| {
        world.begin("ibv_get_cq_event")?;
        let channel = world
            .device
            .channels
            .get_mut(&channel.addr())
            .expect("a channel");
        let notice = channel.notices.pop_front();
        channel.light.set(!channel.notices.is_empty());
        let Some(at) = notice else {
            return Ok(channel.light.nothing("ibv_get_cq_event"));
        };
        if let Some(queue) = world.device.completions.get_mut(&at) {
            queue.owed += 1;
        }
        // SAFETY: a place for it.
        unsafe { *cq = ptr::with_exposed_provenance_mut(at) };
        Ok(0)
    });
    found.unwrap_or_else(|code| status(Err(code)))
}

pub(crate) unsafe fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    with(|world| {
        let queue = world
            .device
            .completions
            .get_mut(&cq.addr())
            .expect("a queue");
        queue.owed -= count;
    });
}

pub(crate) unsafe fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let raw: *mut ibv_srq = make("ibv_create_srq", "shared receives", &[pd.addr()]);
    if !raw.is_null() {
        // SAFETY: just made, and attributes are there.
        let depth = unsafe {
            (*raw).context = context();
            (*attr).attr.max_wr as usize
        };
        let receives = VecDeque::new();
        with(|world| {
            world
                .device
                .shared
                .insert(raw.addr(), Shared { receives, depth })
        });
    }
    raw
}

pub(crate) unsafe fn ibv_destroy_srq(srq: *mut ibv_srq) -> i32 {
    unmake("ibv_destroy_srq", srq, |world, srq| {
        world.device.shared.remove(&srq.addr());
    })
}

/// # Safety
/// Domain and attributes are valid.
pub(super) unsafe fn make_queue_pair(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<*mut ibv_qp, i32> {
    // SAFETY: of the caller.
    let attr = unsafe { &*attr };
    if attr.cap.max_inline_data > INLINE_MAX {
        return Err(libc::EINVAL);
    }
    let raw: *mut ibv_qp = zeroed();
    with(|world| {
        let mut needs = vec![pd.addr(), attr.send_cq.addr()];
        if !attr.srq.is_null() {
            needs.push(attr.srq.addr());
        }
        world.made("queue pair", raw.addr(), &needs);
        world.device.next_number += 1;
        let number = 16 + world.device.next_number;
        // SAFETY: just made.
        unsafe {
            (*raw).context = context();
            (*raw).qp_num = number;
            ((*raw).send_cq, (*raw).recv_cq) = (attr.send_cq, attr.recv_cq);
            (*raw).srq = attr.srq;
        }
        let pair = QueuePair {
            raw,
            receives: VecDeque::new(),
            depth: attr.cap.max_recv_wr as usize,
            peer: None,
            has_failed: false,
        };
        world.device.queue_pairs.insert(number, pair);
    });
    Ok(raw)
}

pub(crate) unsafe fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let begun = with(|world| world.begin("ibv_create_qp"));
    // SAFETY: of the caller.
    match begun.and_then(|()| unsafe { make_queue_pair(pd, attr) }) {
        Ok(raw) => raw,
        Err(code) => {
            set_errno(code);
            ptr::null_mut()
        }
    }
}

pub(crate) unsafe fn ibv_destroy_qp(qp: *mut ibv_qp) -> i32 {
    unmake("ibv_destroy_qp", qp, |world, qp| {
        // SAFETY: valid still.
        let number = unsafe { (*qp).qp_num };
        world.device.queue_pairs.remove(&number);
        world.device.events.retain(|&(_, of)| of != qp.addr());
    })
}

pub(crate) unsafe fn ibv_modify_qp(qp: *mut ibv_qp, _: *mut ibv_qp_attr, _: i32) -> i32 {
    code(with(|world| {
        world.begin("ibv_modify_qp")?;
        world.fail_queue_pair(qp);
        Ok(())
    }))
}

/// How much memory may be registered from now on.
pub(super) fn limit_memory(bytes: u64) {
    MEMORY_MAX.set(bytes);
}

pub(crate) unsafe fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    assert_eq!(addr.addr() as u64, iova, "peers see the same addresses");
    if len as u64 > MEMORY_MAX.get() {
        set_errno(libc::ENOMEM);
        return ptr::null_mut();
    }
    let raw: *mut ibv_mr = make("ibv_reg_mr", "region", &[pd.addr()]);
    if !raw.is_null() {
        with(|world| {
            if world.forks == Forks::Not {
                world.forks = Forks::Late;
            }
            world.device.next_key += 1;
            let key = 0x100 + world.device.next_key;
            // SAFETY: just made.
            unsafe { ((*raw).lkey, (*raw).rkey) = (key, key) };
            let (addr, len) = (iova, len as u64);
            world
                .device
                .regions
                .insert(key, Region { addr, len, access });
        });
    }
    raw
}

pub(crate) unsafe fn ibv_dereg_mr(mr: *mut ibv_mr) -> i32 {
    unmake("ibv_dereg_mr", mr, |world, mr| {
        // SAFETY: valid still.
        world.device.regions.remove(unsafe { &(*mr).lkey });
    })
}

pub(crate) unsafe fn ibv_query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> i32 {
    let begun = with(|world| world.begin("ibv_query_device"));
    if begun.is_ok() {
        // SAFETY: a place for them, and zeros are a value.
        unsafe {
            attr.write(core::mem::zeroed());
            ((*attr).max_qp_wr, (*attr).max_sge) = (1024, 16);
            ((*attr).max_cqe, (*attr).phys_port_cnt) = (4096, 1);
            ((*attr).max_qp_rd_atom, (*attr).max_qp_init_rd_atom) = (16, 16);
            ((*attr).max_srq, (*attr).max_srq_wr) = (16, 1024);
        }
    }
    code(begun)
}

pub(crate) unsafe fn query_port(_: *mut ibv_context, _: u8) -> Result<ibv_port_attr, i32> {
    with(|world| world.begin("ibv_query_port"))?;
    // SAFETY: plain numbers, for which 0 is a value.
    let mut attr: ibv_port_attr = unsafe { core::mem::zeroed() };
    (attr.state, attr.max_msg_sz) = (4, 1 << 30);
    Ok(attr)
}

pub(crate) unsafe fn ibv_get_device_name(_: *mut ibv_device) -> *const c_char {
    const NAME: &CStr = c"fake0";
    NAME.as_ptr()
}

pub(crate) unsafe fn ibv_get_async_event(
    context: *mut ibv_context,
    place: *mut ibv_async_event,
) -> i32 {
    step("ibv_get_async_event", context.addr());
    let found = with(|world| {
        world.begin("ibv_get_async_event")?;
        let found = world.device.events.pop_front();
        let is_left = !world.device.events.is_empty();
        CONTEXT.with(|context| context.light.set(is_left));
        let Some((number, qp)) = found else {
            return Ok(CONTEXT.with(|context| context.light.nothing("ibv_get_async_event")));
        };
        world.device.taken += 1;
        // SAFETY: a place for it; the kind is written as the number that it is in C.
        unsafe {
            (&raw mut (*place).event_type).cast::<u32>().write(number);
            (*place).element.qp = ptr::with_exposed_provenance_mut(qp);
        }
        Ok(0)
    });
    found.unwrap_or_else(|code| status(Err(code)))
}

pub(crate) unsafe fn ibv_ack_async_event(_: *mut ibv_async_event) {
    with(|world| world.device.taken -= 1);
}
