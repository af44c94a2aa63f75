//! The sockets: what is open, what waits to be read or written, and one look at the system.
//!
//! Folder map: `connect` (what the endpoint wants of its sockets), `accept` (listeners), `read` and
//! `write` (bytes).

mod accept;
mod connect;
mod read;
mod write;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use xio_proto::storage::Counts;
use xio_proto::{Endpoint, Instant, NexusId, NoTrace, SocketId, Trace, TransportId};

use crate::alarm::Alarm;
use crate::options::{Options, Stats};
use crate::pool::{Pool, SlotPool};
use crate::waker::Waker;
use accept::Listening;
use read::Rest;
use write::Queue;

xio_proto::boxed_storage! {
    /// Tables of the endpoint, in boxes.
    pub struct Boxed;
}

/// The endpoint and its memory, which the sockets work on.
pub(crate) struct Core<T: Trace = NoTrace> {
    pub(crate) endpoint: Endpoint<Boxed, T>,
    pub(crate) transport: TransportId,
    pub(crate) slots: SlotPool,
    pub(crate) pool: Pool,
    pub(crate) now: Instant,
}

const NONE: u32 = u32::MAX;
const WAKER: Token = Token(usize::MAX);
const ALARM: Token = Token(usize::MAX - 1);
/// Marks tokens of listeners; those of sockets have the generation of the id there.
const LISTENER: u64 = 1 << 63;
const GENERATIONS: u32 = 0x7fff_ffff;

fn token(id: SocketId) -> Token {
    let generation = u64::from(id.generation() & GENERATIONS);
    Token((generation << 32 | id.index() as u64) as usize)
}

/// A socket of the endpoint's table.
#[derive(Debug, Default)]
struct Socket {
    id: Option<SocketId>,
    stream: Option<TcpStream>,
    /// Place of its transport connection; meaningless until there is one.
    nexus: u32,
    connecting: bool,
    /// There may be bytes, or the end, to read.
    readable: bool,
    /// There may be room to write.
    writable: bool,
    /// The peer will send no more, or the socket failed: it is read until that shows.
    hung_up: bool,
    /// The endpoint was told of the end.
    ended: bool,
    /// Turns that the end waited to be told.
    waited: u8,
    /// It is in the list of sockets to read.
    queued: bool,
    /// Bytes that were read and could not be taken.
    rest: Option<Rest>,
}

/// A transport connection.
#[derive(Debug)]
struct Nexus {
    id: Option<NexusId>,
    peer: SocketAddr,
    local: Option<SocketAddr>,
    /// Control or single socket, data socket.
    sockets: [u32; 2],
    queue: Queue,
    /// It is in the list of those with something to write.
    dirty: bool,
}

impl Nexus {
    const fn vacant() -> Self {
        Self {
            id: None,
            peer: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0),
            local: None,
            sockets: [NONE; 2],
            queue: Queue::new(),
            dirty: false,
        }
    }
}

/// All sockets of a driver.
pub(crate) struct Io {
    poll: Poll,
    events: Events,
    /// The last look brought as many events as it could: there may be more.
    more_events: bool,
    pub(crate) waker: Waker,
    pub(crate) alarm: Alarm,
    pub(crate) options: Options,
    pub(crate) stats: Stats,
    sockets: Box<[Socket]>,
    nexuses: Box<[Nexus]>,
    listeners: Box<[Option<Listening>]>,
    /// A listener may have something, or paused.
    accepting: bool,
    readable: VecDeque<u32>,
    dirty: VecDeque<u32>,
    /// Buffers that sockets are read into.
    spare: Vec<Box<[u8]>>,
    /// Whole ones that sockets hold.
    held: usize,
    /// Completions of one round of writing.
    done: Vec<xio_proto::WrId>,
}

impl Io {
    pub(crate) fn new(counts: &Counts, options: Options) -> io::Result<Self> {
        let poll = Poll::new()?;
        // What a pair of sockets can hold, and one to read into, are there from the start.
        let size = options.staging.max(read::SMALL);
        let mut spare = Vec::with_capacity(options.staging_max.saturating_add(1).min(1024));
        spare.extend((0..3).map(|_| vec![0; size].into_boxed_slice()));
        let waker = Waker::new(poll.registry(), WAKER)?;
        Ok(Self {
            events: Events::with_capacity(counts.sockets.clamp(64, 1024)),
            more_events: false,
            waker,
            alarm: Alarm::new(poll.registry(), ALARM),
            options,
            stats: Stats::default(),
            sockets: (0..counts.sockets).map(|_| Socket::default()).collect(),
            nexuses: (0..counts.nexuses).map(|_| Nexus::vacant()).collect(),
            listeners: (0..counts.listeners).map(|_| None).collect(),
            accepting: false,
            readable: VecDeque::with_capacity(counts.sockets),
            dirty: VecDeque::with_capacity(counts.nexuses),
            spare,
            held: 0,
            done: Vec::with_capacity(64),
            poll,
        })
    }

    pub(crate) fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }

    pub(crate) fn listening(&self, index: usize) -> Option<SocketAddr> {
        self.listeners.get(index)?.as_ref()?.address()
    }

    /// Whether there is something to do without waiting for the system.
    pub(crate) fn busy<T: Trace>(&self, core: &Core<T>) -> bool {
        self.more_events
            || !self.readable.is_empty()
            || !self.dirty.is_empty()
            || self.can_accept(core)
    }

    /// Waits for events, `timeout` at most, and notes what they are about. True when there were any.
    pub(crate) fn wait<T: Trace>(
        &mut self,
        core: &mut Core<T>,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        self.stats.waits += 1;
        match self.poll.poll(&mut self.events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(true),
            other => other?,
        }
        let events = core::mem::replace(&mut self.events, Events::with_capacity(0));
        let mut count = 0;
        for event in &events {
            count += 1;
            match event.token() {
                WAKER => {}
                ALARM => self.alarm.rang(),
                _ => self.note(core, event),
            }
        }
        self.more_events = count == events.capacity();
        self.events = events;
        Ok(count > 0)
    }

    fn note<T: Trace>(&mut self, core: &mut Core<T>, event: &mio::event::Event) {
        let word = event.token().0 as u64;
        let index = word as u32;
        if word & LISTENER != 0 {
            if let Some(Some(listener)) = self.listeners.get_mut(index as usize) {
                listener.ready = true;
                self.accepting = true;
            }
            return;
        }
        let Some(socket) = self.sockets.get_mut(index as usize) else {
            return;
        };
        // Of an earlier life of the row, in the same batch as its end?
        if socket.id.map(token) != Some(event.token()) {
            return;
        }
        if socket.connecting {
            self.connect_event(core, index);
            return;
        }
        if event.is_writable() && !socket.writable {
            socket.writable = true;
            let nexus = socket.nexus;
            self.mark_dirty(nexus);
        }
        let socket = &mut self.sockets[index as usize];
        socket.hung_up |= event.is_read_closed() || event.is_write_closed() || event.is_error();
        if event.is_readable() || socket.hung_up {
            socket.readable = true;
            self.mark_readable(index);
        }
    }

    /// Reads what came, and accepts who knocks; everybody gets one turn, and those that may be
    /// read because of what others brought (data sockets whose frame is here now) one behind that.
    pub(crate) fn take_in<T: Trace>(&mut self, core: &mut Core<T>) {
        self.accept_all(core);
        let all = self.readable.len();
        self.turns(core, 0, all);
        let before = self.readable.len();
        self.collect_readable(core);
        self.turns(core, before, self.readable.len() - before);
    }

    /// A turn of reading for `count` sockets of the list, from a place on. They share what one of
    /// them alone may read: long reads are what makes large payload fast, and a long round what
    /// makes small messages late. The two sockets of a pair count as one, since the one has next to
    /// nothing when the other has much.
    fn turns<T: Trace>(&mut self, core: &mut Core<T>, from: usize, count: usize) {
        let most = self.options.read_budget.max(1);
        let share = most / count.div_ceil(2).max(1);
        let budget = share.max(most.min(self.staging()));
        for _ in 0..count {
            let Some(s) = self.readable.remove(from) else {
                break;
            };
            self.sockets[s as usize].queued = false;
            self.read(core, s, budget);
        }
    }

    /// Asks which sockets may be read again.
    pub(crate) fn collect_readable<T: Trace>(&mut self, core: &mut Core<T>) {
        while let Some(id) = core.endpoint.poll_stream(core.transport) {
            let socket = &self.sockets[id.index()];
            if socket.rest.is_some() || socket.readable {
                self.mark_readable(id.index() as u32);
            }
        }
    }

    fn mark_readable(&mut self, s: u32) {
        let socket = &mut self.sockets[s as usize];
        if !core::mem::replace(&mut socket.queued, true) {
            self.readable.push_back(s);
        }
    }

    fn mark_dirty(&mut self, n: u32) {
        if n == NONE {
            return;
        }
        let nexus = &mut self.nexuses[n as usize];
        if !nexus.queue.is_empty() && !core::mem::replace(&mut nexus.dirty, true) {
            self.dirty.push_back(n);
        }
    }

    /// Puts a stream into a row of the table, and has it watched.
    fn open(&mut self, id: SocketId, mut stream: TcpStream, connecting: bool) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, token(id), interest)?;
        self.stats.open += 1;
        let row = &mut self.sockets[id.index()];
        let queued = row.queued;
        *row = Socket {
            id: Some(id),
            stream: Some(stream),
            nexus: NONE,
            connecting,
            writable: !connecting,
            queued,
            ..Socket::default()
        };
        Ok(())
    }

    /// Closes a socket and forgets what was read of it.
    fn shut(&mut self, s: u32) {
        let row = &mut self.sockets[s as usize];
        let queued = row.queued;
        let old = core::mem::replace(
            row,
            Socket {
                queued,
                ..Socket::default()
            },
        );
        if let Some(rest) = old.rest {
            self.drop_rest(rest);
        }
        if let Some(mut stream) = old.stream {
            let _ = self.poll.registry().deregister(&mut stream);
            self.stats.open -= 1;
            self.descriptor_freed();
        }
    }
}
