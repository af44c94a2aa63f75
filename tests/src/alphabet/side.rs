//! One side: its endpoint, its memory, its device, and what its user knows.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use xio_proto::storage::Counts;
use xio_proto::{
    Applied, CmKind, Completion, Config, ConnectionId, Endpoint, FreeRows, Input, ListenerId,
    NexusId, RegionId, Segment, SessionId, SessionTicket, SlotId, Slots, Span, TaskId, TransportId,
    TransportLimits, WrId,
};
use xio_sim::check::Watch;

use crate::tables::BoxedTables;

/// Bytes of a slot.
pub(super) const SLOT: usize = 4096;
pub(super) const TRANSPORT: TransportId = TransportId(0);
/// Key that peers need for memory of messages.
pub(super) const RKEY: u32 = 2;

/// Settings that make every limit near: few slots, short queues, small frames.
pub const CONFIG: Config = Config {
    slot_size: SLOT as u32,
    buffer_size: 1024,
    inline_data_max: 512,
    min_grant: 5,
    rq_depth: 8,
    queue_messages: 6,
    depth_messages: 4,
    reconnects_per_second: 1000,
    ..Config::new(0, 24, 16)
};

/// Where a side listens.
pub(super) fn address(side: usize) -> SocketAddr {
    SocketAddr::new([10, 0, 0, side as u8 + 1].into(), 7000)
}

/// All slots of one side.
#[derive(Clone)]
pub(super) struct Slab(Vec<u8>);

impl Slots for Slab {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize * SLOT..][..SLOT]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.0[slot.0 as usize * SLOT..][..SLOT]
    }
}

/// Memory of a user. No address is used twice, so that whoever touches what was given back is
/// found out.
#[derive(Clone, Default)]
pub(super) struct Heap {
    next: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Heap {
    /// Room between blocks, so that none is the other's neighbour.
    const GAP: u64 = 64;

    pub(super) fn put(&mut self, bytes: Vec<u8>) -> u64 {
        self.next += Self::GAP;
        let addr = self.next;
        self.next += bytes.len() as u64;
        self.blocks.insert(addr, bytes);
        addr
    }
    pub(super) fn free(&mut self, addr: u64) {
        let block = self.blocks.remove(&addr);
        assert!(block.is_some(), "memory at {addr:#x} was given back twice");
    }
    pub(super) fn bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let (first, block) = self.blocks.range(..=addr).next_back()?;
        block.get((addr - first) as usize..)?.get(..len)
    }
    pub(super) fn bytes_mut(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let (first, block) = self.blocks.range_mut(..=addr).next_back()?;
        block.get_mut((addr - first) as usize..)?.get_mut(..len)
    }
    /// The bytes of all segments, if they are there.
    pub(super) fn gather(&self, segments: &[Segment]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for segment in segments {
            bytes.extend_from_slice(self.bytes(segment.addr, segment.len as usize)?);
        }
        Some(bytes)
    }
    /// Puts bytes where segments say, if they are there.
    pub(super) fn scatter(&mut self, segments: &[Segment], mut from: &[u8]) -> Option<()> {
        for segment in segments {
            let (now, rest) = from.split_at((segment.len as usize).min(from.len()));
            self.bytes_mut(segment.addr, now.len())?
                .copy_from_slice(now);
            from = rest;
        }
        from.is_empty().then_some(())
    }
    /// Bytes of the block that begins there.
    pub(super) fn len(&self, addr: u64) -> usize {
        self.blocks.get(&addr).map_or(0, Vec::len)
    }
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// Segments that cut `len` bytes into so many pieces, each made by `segment` of its offset and
/// length.
pub(super) fn cut(
    len: usize,
    pieces: usize,
    segment: impl Fn(usize, usize) -> Segment,
) -> Vec<Segment> {
    let pieces = pieces.clamp(1, len.max(1));
    let size = len.div_ceil(pieces).max(1);
    let piece = |at| segment(at, size.min(len - at));
    (0..len).step_by(size).map(piece).collect()
}

/// What a work request does.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Frame {
        parts: [Span; 2],
        data: Vec<Segment>,
    },
    Read {
        local: Vec<Segment>,
        remote: u64,
        rkey: u32,
    },
    Write {
        local: Vec<Segment>,
        remote: u64,
        rkey: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) wr: WrId,
    pub(super) signaled: bool,
    pub(super) job: Job,
}

/// A queue pair.
#[derive(Clone, Default, Debug)]
pub(super) struct Pair {
    pub(super) id: Option<NexusId>,
    /// The other end, by its place at the other side.
    pub(super) peer: Option<usize>,
    pub(super) connected: bool,
    /// In the error state: whatever is posted comes back flushed.
    pub(super) broken: bool,
    pub(super) receives: VecDeque<(WrId, SlotId)>,
    pub(super) sends: VecDeque<Posted>,
    /// Completions that are not told.
    pub(super) done: VecDeque<Completion>,
}

/// What the communication manager, or the device, has to tell.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Kind(NexusId, CmKind),
    Made(NexusId),
    Asked { from: NexusId, private: Vec<u8> },
    Accepted(NexusId, Vec<u8>),
    Rejected(NexusId, Vec<u8>),
    Region(RegionId, u32),
    Revoked(RegionId),
}

/// A connection, as its user sees it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Line {
    pub(super) id: ConnectionId,
    /// Its number for the checkers; of one that came by HELLO known with its first message.
    pub(super) side: Option<u32>,
    pub(super) life: u32,
    pub(super) up: bool,
    pub(super) over: bool,
}

/// What a message in the user's hands is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    /// A request, which has so much room for its answer.
    Request { number: u64, room: u64 },
    /// A one-way message.
    OneWay { number: u64 },
    /// An answer, or private data.
    Other,
}

#[derive(Copy, Clone, Debug)]
pub(super) struct Held {
    pub(super) task: TaskId,
    pub(super) line: Option<usize>,
    pub(super) hold: Hold,
}

/// A payload that waits for memory.
#[derive(Copy, Clone, Debug)]
pub(super) struct Wait {
    pub(super) task: TaskId,
    pub(super) line: usize,
    pub(super) number: u64,
    pub(super) len: u64,
    /// Of the request whose answer it is.
    pub(super) own: Option<u64>,
}

/// Memory that peers may touch.
#[derive(Copy, Clone, Debug)]
pub(super) struct Published {
    pub(super) id: RegionId,
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) rkey: Option<u32>,
    pub(super) revoking: bool,
}

/// What a user has and knows.
#[derive(Clone, Default)]
pub(super) struct User {
    pub(super) listener: Option<ListenerId>,
    /// Sessions to be answered, with the number of the client's connection.
    pub(super) asked: Vec<(SessionId, u32)>,
    pub(super) sessions: Vec<SessionId>,
    pub(super) lines: Vec<Line>,
    /// Messages that it sent and that have no outcome, by number.
    pub(super) due: Vec<u64>,
    pub(super) held: Vec<Held>,
    pub(super) waiting: Vec<Wait>,
    /// Memory given for payloads of messages that come.
    pub(super) given: BTreeMap<TaskId, u64>,
    pub(super) slots: Vec<SlotId>,
    pub(super) regions: Vec<Published>,
    pub(super) tickets: Vec<SessionTicket>,
    /// Messages and sessions that are over.
    pub(super) old_tasks: VecDeque<TaskId>,
    pub(super) old_sessions: VecDeque<SessionId>,
    pub(super) stopping: bool,
}

#[derive(Clone)]
pub(super) struct Side {
    pub(super) core: Endpoint<BoxedTables, Watch>,
    pub(super) slab: Slab,
    pub(super) heap: Heap,
    pub(super) free: FreeRows,
    pub(super) pairs: Vec<Pair>,
    pub(super) told: VecDeque<Told>,
    /// Keys of regions that a peer can use now.
    pub(super) keys: BTreeMap<u32, RegionId>,
    pub(super) unpostable: bool,
    /// Work requests of the past, for lies about them.
    pub(super) works: VecDeque<WrId>,
}

impl Side {
    pub(super) const LIMITS: TransportLimits = TransportLimits {
        sq_depth: 8,
        rq_depth: 12,
        cq_depth: 48,
        max_sge: 3,
        max_reads: 2,
        max_message: 2000,
        signal_every: 3,
        ..TransportLimits::rdma()
    };

    pub(super) fn new(config: &Config, number: usize, life: u64) -> Self {
        let config = Config {
            endpoint: number as u8,
            identity: 1 + number as u64,
            incarnation: life,
            seed: life * 2 + number as u64,
            ..config.clone()
        };
        let slots = (config.rx_slots + config.tx_slots) as usize;
        let counts = Counts {
            listeners: 1,
            nexuses: 3,
            sessions: 4,
            connections: 4,
            tasks: 6,
            rx_slots: config.rx_slots as usize,
            tx_slots: config.tx_slots as usize,
            work: 16,
            sockets: 0,
            extents: 2,
            regions: 2,
        };
        let tables = BoxedTables::new(&counts);
        let mut core =
            Endpoint::with_trace(config, tables, Watch::new()).expect("settings that work");
        core.add_transport(Self::LIMITS).expect("limits that work");
        Self {
            free: core.free_rows(),
            core,
            slab: Slab(vec![0; SLOT * slots]),
            heap: Heap::default(),
            pairs: vec![Pair::default(); counts.nexuses],
            told: VecDeque::new(),
            keys: BTreeMap::new(),
            unpostable: false,
            works: VecDeque::new(),
        }
    }

    /// The one way into the endpoint.
    pub(super) fn apply(&mut self, input: &Input<'_>) -> Applied {
        let applied = self.core.apply(input, &mut self.slab);
        // Most answers to a poll are that there is nothing, and a step says often what time it is; it
        // ends with a look.
        let nothing = matches!(
            applied,
            Applied::Control(None) | Applied::Work(None) | Applied::Event(None)
        );
        if !nothing && !matches!(input, Input::Clock { .. }) {
            self.core.check_invariants();
        }
        applied
    }

    /// The queue pair of that name, if it is there.
    pub(super) fn pair(&mut self, id: NexusId) -> Option<&mut Pair> {
        let pair = self.pairs.get_mut(id.index());
        pair.filter(|pair| pair.id == Some(id))
    }
}

/// One of them, as a number says.
pub(super) fn pick<T: Copy>(from: &[T], which: u8) -> Option<T> {
    let at = usize::from(which).checked_rem(from.len())?;
    from.get(at).copied()
}

/// Keeps the last few.
pub(super) fn remember<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == 16 {
        list.pop_front();
    }
    list.push_back(item);
}
