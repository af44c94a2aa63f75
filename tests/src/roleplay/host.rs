//! The endpoint that plays, with its slots and its user's memory.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use xio_proto::driver::{BufferError, BufferId, Capabilities, Driver, Key, Parts};
use xio_proto::storage::Counts;
use xio_proto::{
    Access, Config, ConnectionId, Control, Data, Endpoint, FreeRows, Instant, Keepalive,
    ListenerId, MACHINES, RegionId, RemoteMemory, Segment, SegmentSpan, SlotId, Slots, Span,
    TaskId, Trace, TransportId, TransportLimits, Work,
};

use super::args::Settings;
use super::seat::Seat;
use crate::golden::{Dialect, Pattern};
use crate::tables::BoxedTables;

/// Slots in one allocation.
#[derive(Debug)]
pub(super) struct SlotBytes {
    bytes: Vec<u8>,
    size: usize,
}

impl Slots for SlotBytes {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.bytes[slot.0 as usize * self.size..][..self.size]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.bytes[slot.0 as usize * self.size..][..self.size]
    }
}

/// Notes connections that ended otherwise than by the exchange of FINs.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) lost: Vec<String>,
}

impl Trace for Watch {
    fn transition(&mut self, machine: u8, index: u32, state: u8, input: u8, _next: u8) {
        let machine = &MACHINES[usize::from(machine)];
        let (state, input) = (
            machine.states[state as usize],
            machine.inputs[input as usize],
        );
        let harsh = match input {
            "Lost" | "Broken" | "KeepaliveDead" | "Abort" => true,
            "Deadline" => state != "TimeWait",
            _ => false,
        };
        if machine.name == "connection" && harsh {
            self.lost
                .push(format!("connection {index} in {state}: {input}"));
        }
    }
}

/// An endpoint and everything a driver and a user have beside it.
pub(super) struct Host {
    pub(super) endpoint: Endpoint<BoxedTables, Watch>,
    pub(super) transport: TransportId,
    pub(super) slots: SlotBytes,
    pub(super) now: Instant,
    dialect: Dialect,
    memory: Vec<u8>,
    /// Memory that peers may reach by its own address and key.
    shared: Option<Shared>,
    free: FreeRows,
}

/// Memory at an address of the user's choice.
#[derive(Debug)]
struct Shared {
    region: RegionId,
    memory: RemoteMemory,
    bytes: Vec<u8>,
}

impl Host {
    /// Address of the first byte of user memory.
    const BASE: u64 = 0x5000_0000_0000;
    const LKEY: u32 = 0x77;
    const RKEY: u32 = 0x99;

    /// An endpoint with the settings of a program.
    pub(super) fn new(dialect: Dialect, settings: &Settings) -> Result<Self, String> {
        let config = config(settings);
        let counts = counts(&config);
        let size = config.slot_size as usize;
        let bytes = vec![0; size * (counts.rx_slots + counts.tx_slots)];
        let refused = |error: xio_proto::ConfigError| error.to_string();
        let tables = BoxedTables::new(&counts);
        let mut endpoint =
            Endpoint::with_trace(config, tables, Watch::default()).map_err(refused)?;
        let limits = match dialect {
            Dialect::Rdma => TransportLimits::rdma(),
            Dialect::Tcp => TransportLimits::tcp(),
        };
        let transport = endpoint.add_transport(limits).map_err(refused)?;
        let free = endpoint.free_rows();
        Ok(Self {
            endpoint,
            transport,
            slots: SlotBytes { bytes, size },
            now: Instant::ZERO,
            dialect,
            memory: Vec::new(),
            shared: None,
            free,
        })
    }

    /// Whether everything is back that was taken since the start.
    pub(super) fn everything_is_back(&self) -> Result<(), String> {
        let now = self.endpoint.free_rows();
        if now == self.free {
            return Ok(());
        }
        Err(format!(
            "not everything is back: {now:?}, at the start {:?}",
            self.free
        ))
    }

    /// Memory for the user.
    fn allocate_segment(&mut self, len: usize) -> Segment {
        let addr = Self::BASE + self.memory.len() as u64;
        self.memory
            .resize(self.memory.len() + len.next_multiple_of(64), 0);
        // On sockets an address means something to this side only, and there are no keys.
        let (lkey, rkey) = match self.dialect {
            Dialect::Rdma => (Self::LKEY, Self::RKEY),
            Dialect::Tcp => (0, 0),
        };
        let len = len as u32;
        Segment {
            addr,
            len,
            lkey,
            rkey,
        }
    }

    /// Registers memory at an address, with the key that the device shall give it.
    fn share_memory(&mut self, memory: RemoteMemory) -> Result<(), String> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let endpoint = &mut self.endpoint;
        let region = endpoint.register(self.transport, memory.addr, memory.len, access, 0);
        let region = region.map_err(|error| format!("register: {error}"))?;
        let bytes = vec![0; memory.len as usize];
        self.shared = Some(Shared {
            region,
            memory,
            bytes,
        });
        Ok(())
    }

    /// Takes the shared memory back from peers.
    fn unshare_memory(&mut self) -> Result<(), String> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let revoked = self.endpoint.revoke(shared.region);
        revoked.map_err(|error| format!("revoke: {error}"))
    }

    /// Registers a region as the endpoint wants it.
    pub(super) fn registered(&mut self, region: RegionId) -> Result<(), String> {
        let shared = self
            .shared
            .as_ref()
            .filter(|shared| shared.region == region);
        let shared = shared.ok_or("a region that nobody wants")?;
        let keys = Ok((Self::LKEY, shared.memory.key));
        self.endpoint.handle_region(self.now, region, keys);
        Ok(())
    }

    /// The shared memory, if this is an address and key of it.
    pub(super) fn shared(&mut self, addr: u64, key: u32, len: usize) -> Result<&mut [u8], String> {
        let what = || format!("{len} bytes at {addr:#x} are not the peer's to reach");
        let shared = self
            .shared
            .as_mut()
            .filter(|shared| shared.memory.key == key);
        let shared = shared.ok_or_else(what)?;
        let from = addr.checked_sub(shared.memory.addr).ok_or_else(what)? as usize;
        shared.bytes.get_mut(from..from + len).ok_or_else(what)
    }

    /// User memory at an address.
    pub(super) fn at(&mut self, addr: u64, len: usize) -> Result<&mut [u8], String> {
        let from = addr.checked_sub(Self::BASE).map(|from| from as usize);
        from.and_then(|from| self.memory.get_mut(from..from + len))
            .ok_or_else(|| format!("{len} bytes at {addr:#x} are not the user's"))
    }

    /// The segments of a span, as the endpoint names them now.
    pub(super) fn segments(&self, span: SegmentSpan) -> Vec<Segment> {
        if span.is_empty() {
            Vec::new()
        } else {
            self.endpoint.segments(span).collect()
        }
    }

    /// The bytes of these segments.
    pub(super) fn gather(&mut self, segments: &[Segment]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for s in segments {
            bytes.extend_from_slice(self.at(s.addr, s.len as usize)?);
        }
        Ok(bytes)
    }

    /// Fills segments in order, exactly.
    pub(super) fn scatter(&mut self, segments: &[Segment], bytes: &[u8]) -> Result<(), String> {
        let room: u64 = segments.iter().map(|s| u64::from(s.len)).sum();
        if room != bytes.len() as u64 {
            return Err(format!("{} bytes for {room}", bytes.len()));
        }
        self.fill(segments, bytes)
    }

    /// Fills segments in order as far as the bytes reach.
    pub(super) fn fill(&mut self, segments: &[Segment], bytes: &[u8]) -> Result<(), String> {
        let mut rest = bytes;
        for s in segments {
            let (part, tail) = rest.split_at(rest.len().min(s.len as usize));
            self.at(s.addr, part.len())?.copy_from_slice(part);
            rest = tail;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(format!("{} bytes too many", rest.len()))
        }
    }

    /// The bytes of a span of a slot.
    pub(super) fn span(&self, span: Span) -> Vec<u8> {
        span.of(self.slots.slot(SlotId(span.slot))).to_vec()
    }

    /// The data of a received message.
    fn data(&mut self, data: Data) -> Result<Vec<u8>, String> {
        match data {
            Data::Slot(span) => Ok(self.span(span)),
            Data::Segments(span) => {
                let segments = self.segments(span);
                self.gather(&segments)
            }
        }
    }
}

/// Sizes that are enough for every recording.
pub(super) fn counts(config: &Config) -> Counts {
    Counts {
        listeners: 2,
        nexuses: 3,
        sessions: 4,
        connections: 6,
        tasks: 64,
        rx_slots: config.rx_slots as usize,
        tx_slots: config.tx_slots as usize,
        work: 600,
        sockets: 8,
        regions: 4,
        extents: 8,
    }
}

/// The settings of a recorded program.
pub(super) fn config(settings: &Settings) -> Config {
    // The number makes session ids differ from the recorded peer's, which are all zero.
    let mut config = Config::new(5, 640, 64);
    config.flow_control = settings.flow_control;
    if let Some(depth) = settings.send_messages {
        config.queue_messages = depth.into();
    }
    if let Some(depth) = settings.receive_messages {
        config.depth_messages = depth;
    }
    if let Some((time, interval, probes)) = settings.keepalive {
        let (time, interval) = (Duration::from_secs(time), Duration::from_secs(interval));
        config.keepalive = Some(Keepalive {
            time,
            interval,
            probes,
        });
    }
    config
}

impl Driver for Host {
    type Storage = BoxedTables;
    type Trace = Watch;
    type Slots = SlotBytes;
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        Capabilities::DIRECT
    }
    fn transport(&self) -> TransportId {
        self.transport
    }
    fn look<R>(&self, run: impl FnOnce(&Endpoint<BoxedTables, Watch>) -> R) -> R {
        run(&self.endpoint)
    }
    fn listening(&self, _: ListenerId) -> Option<SocketAddr> {
        None
    }
    fn now(&mut self) -> Instant {
        self.now
    }
    fn with<R>(
        &mut self,
        _: Key,
        run: impl FnOnce(Parts<'_, BoxedTables, Watch, SlotBytes>) -> R,
    ) -> R {
        run(Parts {
            endpoint: &mut self.endpoint,
            slots: &mut self.slots,
        })
    }
    // The player drives the endpoint, and lends its users plain memory.
    fn carry_out(&mut self) {}
    fn control(&mut self, _: Key, _: Control) {}
    fn work(&mut self, _: Key, _: Work) {}
    fn knows(&self, _: Key, _: &[Segment]) -> bool {
        true
    }
    fn lend(&mut self, _: Key, _: TaskId, _: &[Segment]) {}
    fn keep(&mut self, _: Key, _: BufferId) {}
    fn give_back(&mut self, _: Key, _: TaskId) {}
    fn poll(&mut self, _: Option<Duration>) -> Result<bool, Infallible> {
        Ok(false)
    }
    fn allocate(&mut self, _: usize) -> Result<BufferId, BufferError> {
        Err(BufferError::Unknown)
    }
    fn free(&mut self, _: BufferId) -> Result<(), BufferError> {
        Err(BufferError::Unknown)
    }
    fn segment(&self, _: BufferId, _: Range<usize>) -> Result<Segment, BufferError> {
        Err(BufferError::Unknown)
    }
    fn with_buffer<R>(
        &mut self,
        _: BufferId,
        _: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, BufferError> {
        Err(BufferError::Unknown)
    }
    fn with_data(&mut self, data: Data, mut run: impl FnMut(&[u8])) {
        run(&self.data(data).unwrap_or_default());
    }
}

impl Seat for Host {
    fn room(&mut self, len: usize) -> Segment {
        self.allocate_segment(len)
    }
    fn filled(&mut self, bytes: &[u8]) -> Result<Segment, String> {
        let segment = self.allocate_segment(bytes.len());
        self.scatter(&[segment], bytes)?;
        Ok(segment)
    }
    fn reach(
        &mut self,
        write: bool,
        connection: ConnectionId,
        remote: &RemoteMemory,
        user: u64,
    ) -> Result<(TaskId, Segment), String> {
        let len = remote.len as usize;
        let (endpoint, local) = if write {
            let local = self.filled(&Pattern::Direct.bytes(len))?;
            (&mut self.endpoint, local)
        } else {
            let local = self.allocate_segment(len);
            (&mut self.endpoint, local)
        };
        let task = if write {
            endpoint.write(connection, &[local], remote, user, None)
        } else {
            endpoint.read(connection, &[local], remote, user, None)
        };
        Ok((task.map_err(|error| format!("direct: {error}"))?, local))
    }
    fn reached(&mut self, segment: Segment) -> Result<Vec<u8>, String> {
        Ok(self.at(segment.addr, segment.len as usize)?.to_vec())
    }
    fn share(&mut self, memory: RemoteMemory) -> Result<(), String> {
        self.share_memory(memory)
    }
    fn unshare(&mut self) -> Result<(), String> {
        self.unshare_memory()
    }
}
