//! The driver: an endpoint, its memory and its sockets under one roof.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant as Clock};

use xio_proto::driver::{BufferError, BufferId, Capabilities, Key, Parts};
use xio_proto::storage::Counts;
use xio_proto::{
    Config, Control, Data, Driver, Endpoint, Event, Instant, ListenerId, NoTrace, Segment, SlotId,
    Slots, Span, TaskId, Trace, TransportId, TransportLimits, Work,
};

use crate::error::Error;
use crate::io::{Boxed, Core, Io};
use crate::life::in_this_life;
use crate::options::{Options, Stats};
use crate::pool::{Pool, SlotPool};
use crate::waker::Waker;

/// In unit tests, a moment of a poll at which something may come.
macro_rules! moment {
    ($which:literal) => {
        #[cfg(all(test, target_os = "linux"))]
        crate::moments::moment($which);
    };
}

/// An endpoint over sockets. See the documentation of the crate for how to use it.
pub struct TcpDriver<T: Trace = NoTrace> {
    core: Core<T>,
    io: Io,
    clock: Clock,
    /// The time that the user holds still.
    held: Option<Instant>,
    /// An event that was looked at to know whether there is one.
    ahead: Option<Event>,
    /// The last poll had something to tell at once and did not look at the system.
    unseen: bool,
}

/// How long a poll may sleep.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Patience {
    /// Not at all.
    None,
    Until(Instant),
    Endless,
}

/// The one place where the driver's clock comes from.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the loop that passes time in"
)]
fn start() -> Clock {
    Clock::now()
}

impl<T: Trace> std::fmt::Debug for TcpDriver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpDriver({:?})", self.io.stats)
    }
}

impl TcpDriver {
    /// A driver without an observer, with tables of the given sizes. `incarnation` and `seed` of the
    /// settings that are 0 become those of this run ([`in_this_life`](crate::in_this_life)); peers
    /// recognise it when it was started again if it has an `identity`.
    ///
    /// # Errors
    /// A setting that cannot work, or a system that gives no event queue.
    pub fn new(config: Config, counts: &Counts, options: Options) -> Result<Self, Error> {
        Self::with_trace(in_this_life(config), counts, options, NoTrace)
    }

    /// Tables for so many transport connections, with a connection and a session each, on one or
    /// two streams; half-open sockets and messages as the configuration allows.
    pub fn counts(config: &Config, nexuses: usize) -> Counts {
        let (rx_slots, tx_slots) = (config.rx_slots as usize, config.tx_slots as usize);
        Counts {
            listeners: 4,
            nexuses,
            sessions: nexuses,
            connections: nexuses,
            tasks: tx_slots.max(64),
            rx_slots,
            tx_slots,
            work: rx_slots + 2 * tx_slots + nexuses,
            sockets: 2 * nexuses + config.half_open_max as usize,
            extents: 64,
            regions: 0,
        }
    }
}

impl<T: Trace> TcpDriver<T> {
    /// A driver whose endpoint's transitions `trace` hears of, with settings as they are.
    ///
    /// # Errors
    /// As [`new`](TcpDriver::new).
    pub fn with_trace(
        config: Config,
        counts: &Counts,
        options: Options,
        trace: T,
    ) -> Result<Self, Error> {
        let slots = SlotPool::new(config.slot_size, config.rx_slots + config.tx_slots);
        let mut endpoint = Endpoint::with_trace(config, Boxed::new(counts), trace)?;
        let transport = endpoint.add_transport(TransportLimits::tcp())?;
        Ok(Self {
            core: Core {
                endpoint,
                transport,
                slots,
                pool: Pool::new(counts.tasks + counts.rx_slots),
                now: Instant::ZERO,
            },
            io: Io::new(counts, options).map_err(Error::Events)?,
            clock: start(),
            held: None,
            ahead: None,
            unseen: false,
        })
    }

    /// The endpoint, to look at: its counters, what is known of a connection.
    pub fn endpoint(&self) -> &Endpoint<Boxed, T> {
        &self.core.endpoint
    }

    /// What ends a sleeping poll from another thread.
    pub fn waker(&self) -> Waker {
        self.io.waker.clone()
    }

    /// What the driver has done so far.
    pub fn stats(&self) -> &Stats {
        &self.io.stats
    }

    /// Segments of the user's buffers that are in flight.
    pub fn in_flight(&self) -> u32 {
        self.core.pool.in_flight()
    }

    /// How long a runtime that waits for the driver's descriptor may sleep at most before it calls
    /// [`poll`](Driver::poll) with a timeout of zero; `None` when nothing but the descriptor calls
    /// for that. To be asked after each poll.
    pub fn timeout(&self) -> Option<Duration> {
        if self.ahead.is_some() || self.unseen || self.io.busy(&self.core) {
            return Some(Duration::ZERO);
        }
        let now = self.reading();
        self.due().map(|at| at.since(now))
    }

    /// Stops the driver's clock at a time of the user's, and moves it when called again: for tests
    /// of deadlines, which need not wait then, and for replay. A poll does not sleep any more.
    pub fn hold_time(&mut self, now: Instant) {
        self.held = Some(now);
    }

    /// Keeps a buffer of the user's.
    ///
    /// # Errors
    /// `NoRoom` from 2^40 bytes or 2^23 buffers on.
    pub fn add(&mut self, bytes: Box<[u8]>) -> Result<BufferId, BufferError> {
        self.core.pool.add(bytes)
    }

    /// Gives a buffer back to the user.
    ///
    /// # Errors
    /// `Unknown`, or `InFlight`.
    pub fn take(&mut self, buffer: BufferId) -> Result<Box<[u8]>, BufferError> {
        self.core.pool.remove(buffer)
    }

    /// The bytes of a buffer.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn buffer(&self, buffer: BufferId) -> Result<&[u8], BufferError> {
        self.core.pool.bytes(buffer)
    }

    /// The bytes of a buffer, to change.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn buffer_mut(&mut self, buffer: BufferId) -> Result<&mut [u8], BufferError> {
        self.core.pool.bytes_mut(buffer)
    }

    /// What was received into a slot: an application header, small data, private data or a URI.
    pub fn bytes(&self, span: Span) -> &[u8] {
        if span.len == 0 {
            return &[];
        }
        span.of(self.core.slots.slot(SlotId(span.slot)))
    }

    fn reading(&self) -> Instant {
        if let Some(now) = self.held {
            return now;
        }
        let nanos = self.clock.elapsed().as_nanos();
        // From 1 on, so that a deadline of 0 is in the past.
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1)
    }

    /// The next deadline of the endpoint or of a listener that pauses.
    fn due(&self) -> Option<Instant> {
        let core = self.core.endpoint.poll_timeout();
        let accept = self.io.next_try();
        core.into_iter().chain(accept).min()
    }

    /// Deadlines, behind what arrived: a peer whose answer is here was not late because this side
    /// looked late.
    fn deadlines(&mut self) {
        let due = self.core.endpoint.poll_timeout();
        if due.is_some_and(|at| at <= self.core.now) {
            self.core.endpoint.handle_timeout(self.core.now);
        }
    }

    /// All outputs, until there are none, and everything written that the sockets take.
    fn drain(&mut self) {
        loop {
            self.carry_out();
            let wrote = self.io.send_out(&mut self.core);
            self.io.collect_readable(&mut self.core);
            if !wrote {
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

    /// The end of a poll; whether there is an event.
    fn leave(&self) -> bool {
        // The user may sleep on the descriptor.
        if self.io.waker.sleep() {
            self.io.waker.ring();
        }
        self.ahead.is_some()
    }

    /// Waits for the system until then, if at all; looks without sleeping first, if that is wanted.
    fn wait(&mut self, patience: Patience) -> std::io::Result<()> {
        let spin = self.io.options.spin;
        if !spin.is_zero() && patience != Patience::None {
            let mut until = self.core.now.after(spin);
            let mut over = false;
            if let Patience::Until(at) = patience {
                over = at <= until;
                until = until.min(at);
            }
            while self.reading() < until {
                if self.io.wait(&mut self.core, Some(Duration::ZERO))? {
                    return Ok(());
                }
            }
            if over {
                return Ok(());
            }
        }
        let timeout = match patience {
            Patience::None => Some(Duration::ZERO),
            Patience::Until(at) if self.io.alarm.rings_by(at, self.core.now) => None,
            Patience::Until(at) => Some(at.since(self.core.now)),
            Patience::Endless => None,
        };
        #[cfg(all(test, target_os = "linux"))]
        if timeout != Some(Duration::ZERO) {
            crate::moments::waits(self);
        }
        self.io.wait(&mut self.core, timeout).map(drop)
    }

    /// From here on a call rings the bell. True when somebody called before.
    fn says_so_and_was_called(&self) -> bool {
        #[cfg(all(test, target_os = "linux"))]
        if crate::moments::leaves_out_saying_so() {
            return false;
        }
        self.io.waker.sleep()
    }

    /// How long to wait for the system now.
    fn patience(&self, until: Option<Instant>) -> Patience {
        if self.ahead.is_some() || self.io.busy(&self.core) {
            return Patience::None;
        }
        match until.into_iter().chain(self.due()).min() {
            Some(at) if at <= self.core.now => Patience::None,
            Some(at) => Patience::Until(at),
            None => Patience::Endless,
        }
    }
}

impl<T: Trace> AsFd for TcpDriver<T> {
    /// Readable when [`poll`](Driver::poll) has something to do. It is the one descriptor of the
    /// driver: an event queue with all its sockets.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.registry().as_fd()
    }
}

impl<T: Trace> AsRawFd for TcpDriver<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: Trace> Driver for TcpDriver<T> {
    type Storage = Boxed;
    type Trace = T;
    type Slots = SlotPool;
    type Error = Error;

    fn capabilities(&self) -> Capabilities {
        Capabilities::STREAMS
    }

    fn transport(&self) -> TransportId {
        self.core.transport
    }

    fn look<R>(&self, run: impl FnOnce(&Endpoint<Boxed, T>) -> R) -> R {
        run(&self.core.endpoint)
    }

    fn listening(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.io.listening(listener.index())
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
        self.io.post(&mut self.core, work);
    }

    fn knows(&self, _: Key, segments: &[Segment]) -> bool {
        segments.iter().all(|s| self.core.pool.knows(s))
    }

    fn lend(&mut self, _: Key, task: TaskId, segments: &[Segment]) {
        self.core.pool.lend(task, segments);
    }

    fn keep(&mut self, _: Key, buffer: BufferId) {
        self.core.pool.keep(buffer);
    }

    fn give_back(&mut self, _: Key, task: TaskId) {
        self.core.pool.give_back(task);
    }

    fn take_event(&mut self, _: Key) -> Option<Event> {
        self.ahead
            .take()
            .or_else(|| self.core.endpoint.poll_event())
    }

    fn poll(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        moment!("begins");
        let mut woken = self.io.waker.awake();
        moment!("awake");
        self.core.now = self.reading();
        let until = timeout.map(|t| self.core.now.after(t));
        loop {
            self.drain();
            // What there is to tell is told without asking the system, but not twice in a row: a
            // driver that always has something would never read.
            if self.look_ahead() && !self.unseen && self.held.is_none() {
                self.unseen = true;
                return Ok(self.leave());
            }
            let mut patience = self.patience(until);
            if woken || self.held.is_some() {
                patience = Patience::None;
            }
            // The bell rings from here on, and who called before is not overheard.
            moment!("drained");
            if patience != Patience::None && self.says_so_and_was_called() {
                patience = Patience::None;
            }
            moment!("said so");
            self.wait(patience).map_err(Error::Events)?;
            self.unseen = false;
            moment!("waited");
            woken |= self.io.waker.awake();
            moment!("goes on");
            self.core.now = self.reading();
            self.io.take_in(&mut self.core);
            self.deadlines();
            self.drain();
            let over = self.held.is_some() || until.is_some_and(|at| at <= self.core.now);
            if self.look_ahead() || woken || over {
                return Ok(self.leave());
            }
        }
    }

    fn allocate(&mut self, len: usize) -> Result<BufferId, BufferError> {
        self.core.pool.add(vec![0; len].into_boxed_slice())
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), BufferError> {
        self.core.pool.remove(buffer).map(drop)
    }

    fn segment(&self, buffer: BufferId, part: Range<usize>) -> Result<Segment, BufferError> {
        self.core.pool.segment(buffer, part)
    }

    fn with_buffer<R>(
        &mut self,
        buffer: BufferId,
        run: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, BufferError> {
        self.core.pool.bytes_mut(buffer).map(run)
    }

    fn with_data(&mut self, data: Data, mut run: impl FnMut(&[u8])) {
        match data {
            Data::Slot(span) => run(self.bytes(span)),
            Data::Segments(span) => {
                for segment in self.core.endpoint.segments(span) {
                    run(self.core.pool.of(&segment));
                }
            }
        }
    }
}
