//! The driver: an endpoint, its memory and its device under one roof.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xio_proto::driver::{BufferError, BufferId, Capabilities, Key, Parts};
use xio_proto::storage::Counts;
use xio_proto::{
    Config, Control, Data, Driver, Endpoint, Event, Instant, ListenerId, NoTrace, Segment, SlotId,
    Slots, Span, TaskId, Trace, TransportId, TransportLimits, Work,
};

use crate::buffers::Buffers;
use crate::clock::{Clock, of_day};
use crate::cm::{Channel, Queues};
use crate::counters;
use crate::device::{Completions, Device, DeviceLimits, Domain, prepare_fork};
use crate::error::Error;
use crate::fd::{self, Bell, Group};
use crate::hub::Subscription;
use crate::io::{Boxed, Core, Hardware, Io, ready};
use crate::memory::SlotPool;
use crate::options::{Options, QueueSizes, Spin, Stats};
use crate::shared::SharedQueue;
use crate::waker::Waker;

/// Without completions for so long, a driver that does not sleep asks the communication manager.
const CM_QUIET: Duration = Duration::from_millis(1);

/// In unit tests, what a poll does instead of a part that it needs: they must find it.
macro_rules! leave_out {
    ($part:literal => $instead:expr) => {
        #[cfg(test)]
        if crate::fake::leaves_out($part) {
            $instead;
        }
    };
}

/// An endpoint over queue pairs of one device. See the documentation of the crate.
pub struct VerbsDriver<T: Trace = NoTrace> {
    io: Io,
    core: Core<T>,
    waker: Waker,
    clock: Clock,
    spin: Spin,
    cm_interval: Duration,
    /// When the communication manager is asked next, sleep or not.
    cm_due: Instant,
    /// When it is asked because no completions came for a while.
    quiet_at: Instant,
    /// A notice of the next completion is asked for and did not come yet.
    is_armed: bool,
    /// An event that was looked at to know whether there is one.
    ahead: Option<Event>,
    limits: DeviceLimits,
    /// Messages that had found no receive when the driver was made.
    not_ready: u64,
}

impl<T: Trace> std::fmt::Debug for VerbsDriver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsDriver({}, {:?})", self.limits.name, self.io.stats)
    }
}

impl VerbsDriver {
    /// A driver without an observer, with tables of the given sizes. `incarnation` and `seed` of the
    /// settings that are 0 are set for this run: from the clock, so that later runs have a larger one,
    /// and by the system's random numbers (PROTOCOL.md 2.7).
    ///
    /// # Errors
    /// No such device, one that offers too little, memory that cannot be locked, or a setting that
    /// cannot work.
    pub fn new(config: Config, counts: &Counts, options: &Options) -> Result<Self, Error> {
        let life = of_day();
        // Without random numbers the clock at least differs from run to run.
        let config = config.in_life(life, getrandom::u64().unwrap_or(life));
        Self::with_trace(config, counts, options, NoTrace)
    }

    /// Tables for so many transport connections, with a connection and a session each; messages as
    /// the configuration allows.
    pub fn counts(config: &Config, nexuses: usize) -> Counts {
        let (rx_slots, tx_slots) = (config.rx_slots as usize, config.tx_slots as usize);
        let tasks = tx_slots.max(64);
        Counts {
            listeners: 4,
            nexuses,
            sessions: nexuses,
            connections: nexuses,
            tasks,
            rx_slots,
            tx_slots,
            // A frame for each message and answer, pieces of large payloads, and control frames.
            work: 2 * tasks + rx_slots + 8 * nexuses,
            sockets: 0,
            extents: 64,
            regions: 16,
        }
    }
}

impl<T: Trace> VerbsDriver<T> {
    /// A driver whose endpoint's transitions `trace` hears of, with settings as they are.
    ///
    /// # Errors
    /// As [`new`](VerbsDriver::new).
    pub fn with_trace(
        config: Config,
        counts: &Counts,
        options: &Options,
        trace: T,
    ) -> Result<Self, Error> {
        // In stages, each of which holds those that it needs: what fails undoes them in reverse.
        let channel = Arc::new(Channel::new()?);
        if options.fork_safe {
            prepare_fork()?;
        }
        let device = Arc::new(Device::open(&options.device, &channel)?);
        let domain = Arc::new(Domain::new(&device)?);
        let limits = device.limits.clone();
        let wanted = counts.work as u64 + u64::from(config.rx_slots);
        let depth = u32::try_from(wanted)
            .unwrap_or(u32::MAX)
            .clamp(64, limits.max_completions.max(64));
        let completions = Arc::new(Completions::new(&device, depth)?);
        let shared = shared_queue(&limits, options, &domain, config.rx_slots)?;
        let queues = Queues {
            shared,
            completions,
            domain,
        };
        let mut sizes = sizes(&limits, options, &queues)?;
        if queues.shared.is_some() {
            sizes.receive = config.rx_slots.min(limits.max_shared);
        }
        let (slot_size, slots) = (config.slot_size, config.rx_slots + config.tx_slots);
        let slots = SlotPool::new(&queues.domain, slot_size, slots, options.huge_pages)?;
        let group = group(&channel, &queues.completions, &device)?;
        let waker = Waker::new(Bell::new().map_err(|e| system("eventfd", &e))?);
        let events = Subscription::new(device.as_ptr().addr(), waker.clone());
        group
            .add(waker.bell().as_raw_fd(), ready::BELL)
            .map_err(|e| system("epoll_ctl", &e))?;
        let mut endpoint = Endpoint::with_trace(config, Boxed::new(counts), trace)?;
        let transport =
            endpoint.add_transport(transport_limits(&limits, &sizes, depth, options))?;
        let hardware = Hardware {
            events,
            queues,
            device,
        };
        Ok(Self {
            io: Io::new(channel, hardware, group, sizes, counts.nexuses, options),
            core: Core {
                endpoint,
                transport,
                slots,
                buffers: Buffers::new(counts.tasks + counts.rx_slots, options.huge_pages),
                now: Instant::ZERO,
            },
            waker,
            clock: Clock::new(),
            spin: options.spin,
            cm_interval: options.cm_interval,
            cm_due: Instant::ZERO,
            quiet_at: Instant::ZERO,
            is_armed: false,
            ahead: None,
            not_ready: counted(&limits).unwrap_or(0),
            limits,
        })
    }

    /// What ends a sleeping poll from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What the driver has done so far.
    pub fn stats(&self) -> &Stats {
        &self.io.stats
    }

    /// What the device says of itself.
    pub fn device(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Messages that found no receive since the driver was made, of all processes that use the
    /// device: its own counters have no more. `None` when it does not count them.
    pub fn receiver_not_ready(&self) -> Option<u64> {
        counted(&self.limits).map(|count| count.saturating_sub(self.not_ready))
    }

    /// Segments of the user's buffers that are in flight, and regions registered on them.
    pub fn in_flight(&self) -> u32 {
        self.core.buffers.in_flight()
    }

    /// Queue pairs and connection ids that exist now.
    pub fn links(&self) -> usize {
        self.io.links.iter().flatten().count()
    }

    /// Has the descriptor become readable as soon as there is something to do: for a runtime that
    /// waits for it, level or edge triggered, and then calls [`poll`](Driver::poll) with a timeout
    /// of zero. False when there is something already: then poll at once, and arm again.
    ///
    /// # Errors
    /// The driver cannot go on.
    pub fn arm(&mut self) -> Result<bool, Error> {
        if self.waker.awake() {
            // The poll is to hear of it.
            self.waker.wake();
            return Ok(false);
        }
        let had_any = self.sleep(Some(Duration::ZERO))?;
        self.drain();
        if had_any || self.look_ahead() || !self.prepare_sleep()? {
            return Ok(false);
        }
        Ok(!self.waker.sleep())
    }

    /// How long a runtime that waits for the descriptor may sleep at most; `None` when nothing but
    /// the descriptor calls for a poll. To be asked after each poll.
    pub fn timeout(&self) -> Option<Duration> {
        if self.ahead.is_some() {
            return Some(Duration::ZERO);
        }
        let now = self.reading();
        self.core.endpoint.poll_timeout().map(|at| at.since(now))
    }

    /// What was received into a slot: an application header, small data, private data or a URI.
    pub fn bytes(&self, span: Span) -> &[u8] {
        if span.len == 0 {
            return &[];
        }
        span.of(self.core.slots.slot(SlotId(span.slot)))
    }

    fn reading(&self) -> Instant {
        // From 1 on, so that a deadline of 0 is in the past.
        Instant::from_nanos(self.clock.nanos() + 1)
    }

    fn tick(&mut self) {
        self.core.now = self.reading();
        let due = self.core.endpoint.poll_timeout();
        if due.is_some_and(|at| at <= self.core.now) {
            self.core.endpoint.handle_timeout(self.core.now);
        }
    }

    /// All outputs, until there are none, and all of them posted.
    fn drain(&mut self) {
        loop {
            self.carry_out();
            if !self.io.has_chained() {
                return;
            }
            let failed = self.io.stats.post_failures;
            self.io.flush(&mut self.core);
            if self.io.stats.post_failures == failed {
                // The endpoint heard of nothing new.
                return;
            }
        }
    }

    fn look_ahead(&mut self) -> bool {
        if self.ahead.is_none() {
            self.ahead = self.core.endpoint.poll_event();
        }
        self.ahead.is_some()
    }

    /// Takes what came; true when there was anything.
    fn take_in(&mut self) -> Result<bool, Error> {
        let mut any = self.io.take_some(&mut self.core);
        let now = self.core.now;
        if any {
            self.quiet_at = now.after(CM_QUIET);
        } else if now >= self.quiet_at {
            // Nothing is delayed by asking now.
            self.quiet_at = now.after(CM_QUIET);
            self.cm_due = now;
        }
        if now >= self.cm_due {
            any |= self.take_events()?;
        }
        Ok(any)
    }

    /// Takes events of communication manager and device, which are seldom and cost system calls.
    fn take_events(&mut self) -> Result<bool, Error> {
        self.cm_due = self.core.now.after(self.cm_interval);
        self.io.stats.cm_asks += 1;
        let any = self.io.take_cm(&mut self.core)?;
        self.io.take_device_events(&mut self.core);
        Ok(any)
    }

    /// After the last notice was taken: arm, and look again. True when nothing came, and the
    /// descriptor will be readable as soon as something does.
    fn prepare_sleep(&mut self) -> Result<bool, Error> {
        let Some(hardware) = &self.io.hardware else {
            return Ok(true);
        };
        if !self.is_armed {
            leave_out!("arm" => return Ok(!self.io.take_some(&mut self.core)));
            hardware.queues.completions.arm()?;
            self.io.stats.arms += 1;
            self.is_armed = true;
        }
        leave_out!("look again" => return Ok(true));
        // A completion between the last look and arming brings no notice.
        Ok(!self.io.take_some(&mut self.core))
    }

    /// Waits for the descriptors, and takes what they are ready for; true when any was.
    fn sleep(&mut self, patience: Option<Duration>) -> Result<bool, Error> {
        if patience != Some(Duration::ZERO) {
            self.io.stats.sleeps += 1;
        }
        let marks = self
            .io
            .group
            .wait(patience)
            .map_err(|e| system("epoll_wait", &e))?;
        if marks & ready::COMPLETIONS != 0 {
            if let Some(hardware) = &self.io.hardware {
                hardware.queues.completions.take_notice();
            }
            self.is_armed = false;
        }
        if marks & ready::BELL != 0 {
            self.waker.bell().quiet();
        }
        self.tick();
        // The bell may say that another driver read an event of the device.
        if marks & (ready::CM | ready::DEVICE | ready::BELL) != 0 {
            self.take_events()?;
        }
        Ok(marks != 0)
    }

    /// How long to wait at most.
    fn patience(&self, until: Option<Instant>) -> Option<Duration> {
        let deadlines = [until, self.core.endpoint.poll_timeout()];
        let first = deadlines.into_iter().flatten().min();
        first.map(|at| at.since(self.core.now))
    }

    /// Whether it is too early to sleep.
    fn is_spinning(&self, idle_since: Instant) -> bool {
        match self.spin {
            Spin::Never => false,
            Spin::For(time) => self.core.now.since(idle_since) < time,
            Spin::Always => true,
        }
    }
}

impl<T: Trace> Drop for VerbsDriver<T> {
    /// Undoes the start, in reverse.
    fn drop(&mut self) {
        self.io.close(&mut self.core);
    }
}

impl<T: Trace> AsFd for VerbsDriver<T> {
    /// The one descriptor of the driver: readable when [`poll`](Driver::poll) has something to do,
    /// after [`arm`](Self::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.group.as_fd()
    }
}

impl<T: Trace> AsRawFd for VerbsDriver<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.io.group.as_raw_fd()
    }
}

impl<T: Trace> Driver for VerbsDriver<T> {
    type Storage = Boxed;
    type Trace = T;
    type Slots = SlotPool;
    type Error = Error;

    fn capabilities(&self) -> Capabilities {
        Capabilities::DIRECT
    }

    fn transport(&self) -> TransportId {
        self.core.transport
    }

    fn look<R>(&self, run: impl FnOnce(&Endpoint<Boxed, T>) -> R) -> R {
        run(&self.core.endpoint)
    }

    fn listening(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.io.listening(listener)
    }

    fn now(&mut self) -> Instant {
        self.core.now = self.reading();
        self.core.now
    }

    fn with<R>(&mut self, _: Key, run: impl FnOnce(Parts<'_, Boxed, T, SlotPool>) -> R) -> R {
        let core = &mut self.core;
        run(Parts {
            endpoint: &mut core.endpoint,
            slots: &mut core.slots,
        })
    }

    fn control(&mut self, _: Key, control: Control) {
        self.io.control(&mut self.core, control);
    }

    fn work(&mut self, _: Key, work: Work) {
        self.io.work(&mut self.core, work);
    }

    fn knows(&self, _: Key, segments: &[Segment]) -> bool {
        segments.iter().all(|s| self.core.buffers.knows(s))
    }

    fn lend(&mut self, _: Key, task: TaskId, segments: &[Segment]) {
        self.core.buffers.lend(task, segments);
    }

    fn keep(&mut self, _: Key, buffer: BufferId) {
        self.core.buffers.keep(buffer);
    }

    fn give_back(&mut self, _: Key, task: TaskId) {
        self.core.buffers.give_back(task);
    }

    fn take_event(&mut self, _: Key) -> Option<Event> {
        self.ahead
            .take()
            .or_else(|| self.core.endpoint.poll_event())
    }

    fn poll(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        let mut woken = self.waker.awake();
        self.tick();
        let until = timeout.map(|t| self.core.now.after(t));
        let mut idle_since = self.core.now;
        loop {
            self.drain();
            if self.take_in()? {
                self.drain();
                idle_since = self.core.now;
            }
            let over = until.is_some_and(|at| at <= self.core.now);
            if self.look_ahead() || woken || over {
                // From here on a call rings the bell, which ends the next sleep.
                if self.waker.sleep() {
                    self.waker.bell().ring();
                }
                return Ok(self.ahead.is_some());
            }
            if self.io.is_gone() {
                return Err(Error::Removed);
            }
            if self.is_spinning(idle_since) {
                core::hint::spin_loop();
                self.tick();
                continue;
            }
            if !self.prepare_sleep()? {
                continue;
            }
            leave_out!("announce" => {
                self.sleep(self.patience(until))?;
                woken |= self.waker.awake();
                continue;
            });
            let patience = match self.waker.sleep() {
                true => Some(Duration::ZERO),
                false => self.patience(until),
            };
            self.sleep(patience)?;
            woken |= self.waker.awake();
            idle_since = self.core.now;
        }
    }

    fn allocate(&mut self, len: usize) -> Result<BufferId, BufferError> {
        let need = len as u64;
        let none = BufferError::NoRoom { need, have: 0 };
        let hardware = self.io.hardware.as_ref().ok_or(none)?;
        self.core
            .buffers
            .add(&hardware.queues.domain, len)
            .map_err(|error| match error {
                Error::MemoryLimit { limit, .. } => BufferError::NoRoom { need, have: limit },
                _ => none,
            })
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), BufferError> {
        self.core.buffers.remove(buffer)
    }

    fn segment(&self, buffer: BufferId, part: Range<usize>) -> Result<Segment, BufferError> {
        self.core.buffers.segment(buffer, part)
    }

    fn with_buffer<R>(
        &mut self,
        buffer: BufferId,
        run: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, BufferError> {
        self.core.buffers.bytes_mut(buffer).map(run)
    }

    fn with_data(&mut self, data: Data, mut run: impl FnMut(&[u8])) {
        match data {
            Data::Slot(span) => run(self.bytes(span)),
            Data::Segments(span) => {
                for segment in self.core.endpoint.segments(span) {
                    run(self.core.buffers.of(&segment));
                }
            }
        }
    }
}

fn counted(limits: &DeviceLimits) -> Option<u64> {
    counters::receiver_not_ready(Path::new(counters::DEVICES), &limits.name)
}

fn system(call: &'static str, error: &std::io::Error) -> Error {
    Error::call(call, error.raw_os_error().unwrap_or(libc::EIO))
}

fn group(channel: &Channel, completions: &Completions, device: &Device) -> Result<Group, Error> {
    fd::set_nonblocking(device.events()).map_err(|code| Error::call("fcntl", code))?;
    let group = Group::new().map_err(|e| system("epoll_create", &e))?;
    for (fd, mark) in [
        (channel.as_raw_fd(), ready::CM),
        (completions.as_raw_fd(), ready::COMPLETIONS),
        (device.events(), ready::DEVICE),
    ] {
        group.add(fd, mark).map_err(|e| system("epoll_ctl", &e))?;
    }
    Ok(group)
}

/// Sizes of queue pairs that the device makes, as near to those wanted as it can.
fn sizes(limits: &DeviceLimits, options: &Options, queues: &Queues) -> Result<QueueSizes, Error> {
    let mut sizes = QueueSizes {
        send: u32::from(options.send_depth).min(limits.max_queue),
        receive: u32::from(options.receive_depth).min(limits.max_queue),
        segments: u32::from(options.segments.clamp(2, 32)).min(limits.max_sge),
        inline: u32::from(options.inline),
    };
    loop {
        let shared = queues.shared.as_deref();
        let code = match queues.completions.takes(&queues.domain, shared, &sizes) {
            Ok(()) => return Ok(sizes),
            Err(code) => code,
        };
        // What it says of itself holds for each limit alone, and not at all for inline data.
        if sizes.inline > 0 {
            sizes.inline = if sizes.inline > 64 { 64 } else { 0 };
        } else if sizes.segments > 2 {
            sizes.segments = 2;
        } else if sizes.send > 16 || sizes.receive > 16 {
            sizes.send = (sizes.send / 2).max(16);
            sizes.receive = (sizes.receive / 2).max(16);
        } else {
            return Err(Error::call("ibv_create_qp", code));
        }
    }
}

/// The receive queue of all queue pairs, if there is to be one.
fn shared_queue(
    limits: &DeviceLimits,
    options: &Options,
    domain: &Arc<Domain>,
    receives: u32,
) -> Result<Option<Arc<SharedQueue>>, Error> {
    if !options.share_receives {
        return Ok(None);
    }
    if limits.max_shared == 0 {
        return Err(Error::TooSmall {
            device: limits.name.clone(),
            what: "receives on a shared queue",
            have: 0,
            need: receives.into(),
        });
    }
    let queue = SharedQueue::new(domain, receives.min(limits.max_shared))?;
    Ok(Some(Arc::new(queue)))
}

fn transport_limits(
    limits: &DeviceLimits,
    sizes: &QueueSizes,
    cq_depth: u32,
    options: &Options,
) -> TransportLimits {
    let small = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    let reads = limits.max_reads_answered.min(limits.max_reads_issued);
    TransportLimits {
        sq_depth: small(sizes.send),
        rq_depth: small(sizes.receive),
        cq_depth,
        max_sge: small(sizes.segments),
        max_inline: small(sizes.inline),
        max_reads: options.reads.min(reads),
        max_message: limits.max_message,
        shared_receive_queue: options.share_receives,
        signal_every: options.signal_every,
        ..TransportLimits::rdma()
    }
}
