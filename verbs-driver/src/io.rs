//! What the endpoint wants, done on the device; what the device reports, told to the endpoint.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use xio_proto::wire::Framing;
use xio_proto::{
    Access, CmEvent, CmKind, Completion, ConnectRequest, Control, Endpoint, Instant, ListenerId,
    NexusId, NoTrace, PrivateData, Reason, RegionId, Trace, TransportId, WrId,
};

use crate::buffers::Buffers;
use crate::chain::{ReceiveChain, SendChain, Unposted};
use crate::cm::{Channel, Id, Queues, ReadDepths, Report};
use crate::device::{self, Completions, Device};
use crate::error::Error;
use crate::fd::Group;
use crate::hub::Subscription;
use crate::memory::{Rights, SlotPool};
use crate::options::{Options, QueueSizes, Stats};
use crate::shared::Numbers;
use crate::sys;

xio_proto::boxed_storage! {
    /// Tables of the endpoint, on the heap.
    pub struct Boxed;
}

/// The endpoint and its memory.
pub(crate) struct Core<T: Trace = NoTrace> {
    pub(crate) endpoint: Endpoint<Boxed, T>,
    pub(crate) transport: TransportId,
    pub(crate) slots: SlotPool,
    pub(crate) buffers: Buffers,
    pub(crate) now: Instant,
}

/// Marks of descriptors in the group: which of them are ready.
pub(crate) mod ready {
    /// Events of the communication manager.
    pub(crate) const CM: u32 = 1;
    /// Notices of completions.
    pub(crate) const COMPLETIONS: u32 = 2;
    /// Events of the device.
    pub(crate) const DEVICE: u32 = 4;
    /// The bell.
    pub(crate) const BELL: u32 = 8;
}

/// What hangs on one device, in the order of making; dropped in this order, the reverse.
#[derive(Debug)]
pub(crate) struct Hardware {
    /// Events of the device.
    pub(crate) events: Subscription,
    pub(crate) queues: Queues,
    pub(crate) device: Arc<Device>,
}

/// A queue pair, or what is to become one.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) nexus: NexusId,
    pub(crate) id: Id,
    /// READs that the device and, on the accepting side, the peer's request allow.
    reads: ReadDepths,
}

/// The device side of the driver.
pub(crate) struct Io {
    /// By index of the nexus.
    pub(crate) links: Vec<Option<Link>>,
    listeners: Vec<Option<(ListenerId, Id)>>,
    pub(crate) sends: SendChain,
    pub(crate) receives: ReceiveChain,
    /// Whose requests are in the chains, shared receives excepted.
    pub(crate) chained: Option<NexusId>,
    pub(crate) group: Group,
    channel: Arc<Channel>,
    /// `None` once a removed device was let go.
    pub(crate) hardware: Option<Hardware>,
    is_removed: bool,
    pub(crate) sizes: QueueSizes,
    reads: ReadDepths,
    /// Queue pairs by number, if they share their receives.
    numbers: Option<Numbers>,
    /// Retries after a lost packet, and after a missing receive.
    retries_max: [u8; 2],
    pub(crate) stats: Stats,
}

/// The mark of an id that keeps a device open.
const ANCHOR: u64 = u64::MAX;
/// In the mark of an id: it is a listener's.
const LISTENER: u64 = 1 << 31;
/// A transport connection that there is not.
const NOBODY: NexusId = NexusId::new(u32::MAX, u32::MAX);
/// Events taken before completions get a turn.
const CM_BUDGET: usize = 64;
/// Batches of completions taken before the endpoint gets a turn.
const COMPLETION_BUDGET: usize = 4;

impl Io {
    pub(crate) fn new(
        channel: Arc<Channel>,
        hardware: Hardware,
        group: Group,
        sizes: QueueSizes,
        nexuses: usize,
        options: &Options,
    ) -> Self {
        let shares = hardware.queues.shared.is_some();
        let limits = &hardware.device.limits;
        let reads = ReadDepths {
            answered: limits.max_reads_answered,
            issued: limits.max_reads_issued,
        };
        Self {
            links: Vec::new(),
            listeners: Vec::new(),
            sends: SendChain::new(sizes.segments as usize),
            receives: ReceiveChain::new(),
            chained: None,
            group,
            channel,
            is_removed: false,
            reads,
            numbers: shares.then(|| Numbers::new(nexuses)),
            retries_max: [options.retry_max, options.rnr_retry_max],
            sizes,
            hardware: Some(hardware),
            stats: Stats::default(),
        }
    }

    /// Where a listener is bound.
    pub(crate) fn listening(&self, listener: ListenerId) -> Option<SocketAddr> {
        let place = self.listeners.get(listener.index())?.as_ref();
        place.filter(|(id, _)| *id == listener)?.1.local()
    }

    pub(crate) fn link(&mut self, nexus: NexusId) -> Option<&mut Link> {
        let link = self.links.get_mut(nexus.index())?.as_mut();
        link.filter(|link| link.nexus == nexus)
    }

    fn keep(&mut self, link: Link) {
        let index = link.nexus.index();
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        // The endpoint gives a row away again only after it was destroyed here.
        assert!(
            self.links[index].is_none(),
            "a queue pair has this place still"
        );
        self.links[index] = Some(link);
    }

    /// Posts what is chained.
    pub(crate) fn flush<T: Trace>(&mut self, core: &mut Core<T>) {
        // Before the frames that grant them.
        self.flush_shared(core);
        let Some(nexus) = self.chained.take() else {
            return;
        };
        let qp = self
            .link(nexus)
            .map_or(std::ptr::null_mut(), |link| link.id.queue_pair());
        // Requests are only chained for a queue pair that is there, and it is destroyed only after
        // they were posted.
        assert!(!qp.is_null(), "requests without a queue pair");
        if !self.receives.is_empty() {
            self.stats.receive_calls += 1;
            // SAFETY: the queue pair is valid, and the endpoint counts its room; slots stay mapped
            // as long as the driver lives, and only the endpoint makes references to them.
            let posted = unsafe { self.receives.post(qp) };
            self.posted(core, posted);
        }
        if !self.sends.is_empty() {
            self.stats.send_calls += 1;
            // SAFETY: as above; buffers that are named are lent, and stay mapped until they are
            // given back.
            let posted = unsafe { self.sends.post(qp) };
            self.posted(core, posted);
        }
    }

    /// Whether all queue pairs have one receive queue.
    pub(crate) fn shares_receives(&self) -> bool {
        self.numbers.is_some()
    }

    /// Whether there is something to post.
    pub(crate) fn has_chained(&self) -> bool {
        self.chained.is_some() || !self.receives.is_empty()
    }

    fn flush_shared<T: Trace>(&mut self, core: &mut Core<T>) {
        if !self.shares_receives() || self.receives.is_empty() {
            return;
        }
        let hardware = self.hardware.as_ref();
        let posted = match hardware.and_then(|hardware| hardware.queues.shared.as_deref()) {
            Some(queue) => {
                self.stats.receive_calls += 1;
                // SAFETY: the queue is valid, and the endpoint counts its room; slots stay mapped
                // as long as the driver lives, and only the endpoint makes references to them.
                unsafe { self.receives.post_shared(queue.as_ptr()) }
            }
            None => Err(libc::ENODEV),
        };
        if let Err(code) = posted {
            while let Some(wr) = self.receives.unposted() {
                self.posted(core, Err((wr, code)));
            }
        }
    }

    fn posted<T: Trace>(&mut self, core: &mut Core<T>, posted: Result<(), Unposted>) {
        if let Err((wr, code)) = posted {
            self.stats.post_failures += 1;
            core.endpoint
                .handle_post_failed(core.now, WrId::from_bits(wr), code);
        }
    }

    /// Carries out an action.
    pub(crate) fn control<T: Trace>(&mut self, core: &mut Core<T>, control: Control) {
        // What was to be posted before comes before.
        self.flush(core);
        match control {
            Control::Listen {
                listener,
                address,
                backlog,
            } => {
                if let Err(code) = self.listen(listener, address, backlog) {
                    core.endpoint.handle_listen_failed(core.now, listener, code);
                }
            }
            Control::Unlisten { listener } => {
                if let Some(place) = self.listeners.get_mut(listener.index()) {
                    *place = None;
                }
            }
            Control::Destroy { nexus } => self.destroy(core, nexus),
            Control::Register {
                region,
                addr,
                len,
                access,
            } => self.register(core, region, (addr, len), access),
            Control::Revoke { region } => {
                core.buffers.revoke(region);
                core.endpoint.handle_region_revoked(core.now, region);
            }
            Control::CreateQueuePair { nexus } => {
                let made = self.create_queue_pair(nexus);
                core.endpoint.handle_queue_pair(core.now, nexus, made);
            }
            other => {
                let (nexus, done) = self.connection_control(other);
                if let (Some(nexus), Err(code)) = (nexus, done) {
                    let reason = Reason::DriverFailed(code);
                    core.endpoint.handle_driver_failed(core.now, nexus, reason);
                }
            }
        }
    }

    fn listen(
        &mut self,
        listener: ListenerId,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<(), i32> {
        if self.hardware.is_none() {
            return Err(libc::ENODEV);
        }
        let mut id = Id::new(&self.channel, listener.to_bits() | LISTENER)?;
        id.listen(address, backlog)?;
        let index = listener.index();
        if self.listeners.len() <= index {
            self.listeners.resize_with(index + 1, || None);
        }
        self.listeners[index] = Some((listener, id));
        Ok(())
    }

    fn create_queue_pair(&mut self, nexus: NexusId) -> Result<(), i32> {
        let sizes = self.sizes;
        let hardware = self.hardware.as_ref().ok_or(libc::ENODEV)?;
        let queues = hardware.queues.clone();
        let link = self.link(nexus).ok_or(libc::EINVAL)?;
        link.id.create_queue_pair(queues, &sizes)?;
        let number = link.id.queue_pair_number();
        if let Some(numbers) = &mut self.numbers {
            numbers.insert(number, nexus);
            self.stats.number_looks_max = numbers.worst();
        }
        Ok(())
    }

    fn destroy<T: Trace>(&mut self, core: &mut Core<T>, nexus: NexusId) {
        if self.link(nexus).is_some() {
            // What is in the completion queue still is told first, so that it does not take the
            // room of others there.
            self.take_completions(core, usize::MAX);
            let link = self.links[nexus.index()].take();
            let number = link.as_ref().map(|link| link.id.queue_pair_number());
            drop(link);
            if self.shares_receives() {
                // What it took until now is its own, not the next one's of this number.
                self.take_completions(core, usize::MAX);
            }
            if let (Some(numbers), Some(number)) = (&mut self.numbers, number) {
                numbers.remove(number);
            }
        }
        core.endpoint.handle_destroyed(core.now, nexus);
        self.let_go(core);
    }

    fn register<T: Trace>(
        &mut self,
        core: &mut Core<T>,
        region: RegionId,
        range: (u64, u64),
        access: Access,
    ) {
        let rights = Rights::new(
            access.contains(Access::REMOTE_READ),
            access.contains(Access::REMOTE_WRITE),
        );
        let keys = match &self.hardware {
            Some(hardware) => core
                .buffers
                .register(&hardware.queues.domain, region, range, rights),
            None => Err(libc::ENODEV),
        };
        core.endpoint.handle_region(core.now, region, keys);
    }

    /// Calls on a connection id: whose, and what came of it.
    fn connection_control(&mut self, control: Control) -> (Option<NexusId>, Result<(), i32>) {
        let [retry_max, rnr_retry_max] = self.retries_max;
        let (nexus, done) = match control {
            Control::ResolveAddress {
                nexus,
                peer,
                local,
                timeout_ms,
            } => (nexus, self.resolve(nexus, peer, local, timeout_ms)),
            Control::ResolveRoute { nexus, timeout_ms } => {
                let call = |link: &mut Link| link.id.resolve_route(timeout_ms);
                (nexus, self.on_link(nexus, call))
            }
            Control::Connect { nexus, mut params } => {
                params.retry = params.retry.min(retry_max);
                params.rnr_retry = params.rnr_retry.min(rnr_retry_max);
                let call = |link: &mut Link| {
                    let reads = link.reads.at_most(params.reads);
                    link.id.connect(&params, reads)
                };
                (nexus, self.on_link(nexus, call))
            }
            Control::Accept { nexus, mut params } => {
                params.retry = params.retry.min(retry_max);
                params.rnr_retry = params.rnr_retry.min(rnr_retry_max);
                let call = |link: &mut Link| {
                    let reads = link.reads.at_most(params.reads);
                    link.id.accept(&params, reads)
                };
                (nexus, self.on_link(nexus, call))
            }
            Control::Reject { nexus, private, .. } => {
                // Destroying refuses too, so a failure is of no consequence.
                let _ = self.on_link(nexus, |link| link.id.reject(&private));
                (nexus, Ok(()))
            }
            Control::Disconnect { nexus } => {
                (nexus, self.on_link(nexus, |link| link.id.disconnect()))
            }
            Control::Drain { nexus } => {
                // A queue pair that cannot even fail is destroyed after the drain's time.
                let _ = self.on_link(nexus, |link| link.id.fail_queue_pair());
                (nexus, Ok(()))
            }
            // Sockets are no business of this transport.
            _ => return (None, Ok(())),
        };
        (Some(nexus), done)
    }

    fn on_link(
        &mut self,
        nexus: NexusId,
        call: impl FnOnce(&mut Link) -> Result<(), i32>,
    ) -> Result<(), i32> {
        self.link(nexus).map_or(Err(libc::EINVAL), call)
    }

    fn resolve(
        &mut self,
        nexus: NexusId,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        timeout_ms: u32,
    ) -> Result<(), i32> {
        if self.hardware.is_none() {
            return Err(libc::ENODEV);
        }
        let mut id = Id::new(&self.channel, nexus.to_bits())?;
        let resolved = id.resolve_address(peer, local, timeout_ms);
        self.keep(Link {
            nexus,
            id,
            reads: self.reads,
        });
        resolved
    }

    /// Takes events of the communication manager; true when there were any.
    pub(crate) fn take_cm<T: Trace>(&mut self, core: &mut Core<T>) -> Result<bool, Error> {
        for count in 0..CM_BUDGET {
            let Some(report) = self.channel.next()? else {
                return Ok(count > 0);
            };
            self.stats.cm_events += 1;
            self.take_report(core, report);
        }
        Ok(true)
    }

    fn take_report<T: Trace>(&mut self, core: &mut Core<T>, mut report: Report) {
        if let Some(id) = report.request.take() {
            self.connect_request(core, id, &report);
            return;
        }
        let removed = report.kind == CmKind::DeviceRemoval;
        if report.cookie == ANCHOR {
            if removed {
                self.removed(core);
            }
            return;
        }
        if report.cookie & LISTENER != 0 {
            if removed {
                self.listener_lost(core, ListenerId::from_bits(report.cookie & !LISTENER));
            }
            return;
        }
        let nexus = NexusId::from_bits(report.cookie);
        let device = self
            .hardware
            .as_ref()
            .map(|hardware| hardware.device.as_ptr());
        let Some(link) = self.link(nexus) else {
            self.stats.cm_stale += 1;
            return;
        };
        let mut event = CmEvent {
            kind: report.kind,
            status: report.status,
            local: report.local,
            private: report.private(),
        };
        if report.kind == CmKind::AddrResolved && Some(link.id.context()) != device {
            // The way to that address is by another device than the endpoint's.
            event = CmEvent::failed(CmKind::AddrError, -libc::EXDEV);
        }
        core.endpoint.handle_cm(core.now, nexus, event);
    }

    fn connect_request<T: Trace>(&mut self, core: &mut Core<T>, mut id: Id, report: &Report) {
        let listener = ListenerId::from_bits(report.cookie & !LISTENER);
        let device = self
            .hardware
            .as_ref()
            .map(|hardware| hardware.device.as_ptr());
        // What came to another device than the endpoint's is refused without a word.
        let mut refusal = PrivateData::EMPTY;
        let taken = match report.peer {
            Some(peer) if Some(id.context()) == device => {
                let request = ConnectRequest {
                    listener,
                    peer,
                    local: report.local,
                    framing: Framing::Rdma,
                    private: report.private(),
                };
                let (now, transport) = (core.now, core.transport);
                core.endpoint
                    .handle_connect_request(now, transport, &request)
                    .map_err(|reason| refusal = PrivateData::refusal(reason))
                    .ok()
            }
            _ => None,
        };
        let Some(nexus) = taken else {
            self.stats.refused += 1;
            // Destroying refuses too, so a failure is of no consequence.
            let _ = id.reject(&refusal);
            return;
        };
        id.set_cookie(nexus.to_bits());
        let reads = ReadDepths {
            answered: self.reads.answered.min(report.reads.answered),
            issued: self.reads.issued.min(report.reads.issued),
        };
        self.keep(Link { nexus, id, reads });
    }

    fn listener_lost<T: Trace>(&mut self, core: &mut Core<T>, listener: ListenerId) {
        let place = self.listeners.get_mut(listener.index());
        if place.and_then(Option::take).is_some() {
            core.endpoint
                .handle_listen_failed(core.now, listener, libc::ENODEV);
        }
    }

    /// The device is being removed: whoever removes it waits until everybody has let go of it.
    fn removed<T: Trace>(&mut self, core: &mut Core<T>) {
        self.is_removed = true;
        let listeners: Vec<ListenerId> = self
            .listeners
            .iter()
            .flatten()
            .map(|&(listener, _)| listener)
            .collect();
        for listener in listeners {
            self.listener_lost(core, listener);
        }
        let nexuses: Vec<NexusId> = self.links.iter().flatten().map(|link| link.nexus).collect();
        for nexus in nexuses {
            let event = CmEvent::plain(CmKind::DeviceRemoval);
            core.endpoint.handle_cm(core.now, nexus, event);
        }
        self.let_go(core);
    }

    /// Closes a removed device once nothing is left on it.
    fn let_go<T: Trace>(&mut self, core: &mut Core<T>) {
        if !self.is_removed || self.links.iter().any(Option::is_some) {
            return;
        }
        if let Some(hardware) = &self.hardware {
            self.group.remove(hardware.queues.completions.as_raw_fd());
            self.group.remove(hardware.device.events());
            self.close(core);
            device::close_removed();
        }
    }

    /// Undoes what was made on the device, the last first: ids with their queue pairs, then the
    /// memory that they name, then what all of them use.
    pub(crate) fn close<T: Trace>(&mut self, core: &mut Core<T>) {
        self.links.iter_mut().for_each(|link| *link = None);
        self.listeners.clear();
        core.buffers.unregister();
        core.slots.unregister();
        self.hardware = None;
    }

    /// Takes completions, some batches of them; true when there were any.
    pub(crate) fn take_completions<T: Trace>(&mut self, core: &mut Core<T>, budget: usize) -> bool {
        let Some(hardware) = &self.hardware else {
            return false;
        };
        let completions = Arc::clone(&hardware.queues.completions);
        let mut batch = [const { MaybeUninit::uninit() }; Completions::BATCH];
        let mut any = false;
        for _ in 0..budget {
            self.stats.polls += 1;
            // A queue that is broken reports nothing any more; the device says so itself.
            let Ok(done) = completions.poll(&mut batch) else {
                return any;
            };
            self.stats.completions += done.len() as u64;
            any |= !done.is_empty();
            for wc in done {
                self.completed(core, wc);
            }
            if done.len() < Completions::BATCH {
                return any;
            }
        }
        any
    }

    fn completed<T: Trace>(&self, core: &mut Core<T>, wc: &sys::ibv_wc) {
        let done = device::done(wc);
        let completion = Completion {
            wr: WrId::from_bits(done.wr),
            status: done.status,
            len: done.len,
        };
        let (endpoint, slots) = (&mut core.endpoint, &mut core.slots);
        match &self.numbers {
            Some(numbers) if completion.wr.is_recv() => {
                // One that was destroyed meanwhile is nobody's.
                let nexus = numbers.find(done.queue_pair).unwrap_or(NOBODY);
                endpoint.handle_shared_completion(core.now, nexus, completion, slots);
            }
            _ => endpoint.handle_completion(core.now, completion, slots),
        }
    }

    /// As [`take_completions`](Self::take_completions), before the endpoint gets its turn.
    pub(crate) fn take_some<T: Trace>(&mut self, core: &mut Core<T>) -> bool {
        self.take_completions(core, COMPLETION_BUDGET)
    }

    /// Takes asynchronous events of the device.
    pub(crate) fn take_device_events<T: Trace>(&mut self, core: &mut Core<T>) {
        while let Some(hardware) = &self.hardware
            && let Some(event) = hardware.device.next_event()
        {
            hardware.events.publish(event);
        }
        while let Some(hardware) = &self.hardware
            && let Some((number, queue_pair)) = hardware.events.take()
        {
            self.stats.device_events += 1;
            match number {
                sys::event::LAST_RECEIVE => {
                    if let Some(nexus) = self.nexus_of(queue_pair) {
                        // What it took is told before.
                        self.take_completions(core, usize::MAX);
                        core.endpoint.handle_last_receive(core.now, nexus);
                    }
                }
                sys::event::QP_FATAL | sys::event::QP_REQ_ERR | sys::event::QP_ACCESS_ERR => {
                    if let Some(nexus) = self.nexus_of(queue_pair) {
                        let reason = Reason::DriverFailed(libc::EIO);
                        core.endpoint.handle_driver_failed(core.now, nexus, reason);
                    }
                }
                sys::event::DEVICE_FATAL => self.removed(core),
                sys::event::PORT_ERR => self.stats.port_errors += 1,
                // Paths, partitions, subnet managers.
                _ => {}
            }
        }
    }

    /// Whose queue pair has this number.
    fn nexus_of(&self, queue_pair: u32) -> Option<NexusId> {
        let mut links = self.links.iter().flatten();
        let link = links.find(|link| link.id.queue_pair_number() == queue_pair);
        link.map(|link| link.nexus)
    }

    /// Whether the device was removed and nothing of it is left here.
    pub(crate) fn is_gone(&self) -> bool {
        self.hardware.is_none()
    }
}

impl ReadDepths {
    /// Not more than so many each way.
    fn at_most(self, reads: u8) -> Self {
        Self {
            answered: self.answered.min(reads),
            issued: self.issued.min(reads),
        }
    }
}
