//! A peer with nothing but queue pairs, for role play: a script says what it sends, and looks at
//! what came. It knows no protocol.

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;

use xio_proto::{CmKind, ConnectParams, PrivateData, SlotId, Slots, WorkStatus};

use crate::chain::{ReceiveChain, SendChain, Verb};
use crate::cm::{Channel, Id, Queues, ReadDepths};
use crate::device::{Completions, Device, Domain, done, prepare_fork};
use crate::memory::{Chunk, Rights, SlotPool};
use crate::options::{DeviceChoice, QueueSizes};
use crate::sys;

/// Bytes of a slot.
const SLOT: u32 = 16 << 10;
/// Receives of a queue pair.
const RECEIVES: u32 = 320;
/// Queue pairs, at most.
const LINKS: u32 = 3;
/// The mark of ids that listen.
const LISTENER: u64 = 1 << 40;
/// In the number of a work request: not a receive.
const SENT: u64 = 1 << 40;

struct Link {
    id: Id,
    number: u32,
    is_up: bool,
    is_down: bool,
    received: VecDeque<Vec<u8>>,
}

/// The peer.
pub struct RawPeer {
    links: Vec<Link>,
    listeners: Vec<Id>,
    memory: BTreeMap<u64, Chunk>,
    slots: SlotPool,
    /// Sends, READs and WRITEs that are not complete.
    out: usize,
    queues: Queues,
    channel: Arc<Channel>,
    _device: Arc<Device>,
}

impl std::fmt::Debug for RawPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawPeer({} links)", self.links.len())
    }
}

fn told<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

impl RawPeer {
    /// A peer on the device of an address.
    ///
    /// # Errors
    /// What the driver's start fails with.
    pub fn new(at: std::net::IpAddr) -> Result<Self, crate::Error> {
        let channel = Arc::new(Channel::new()?);
        // The process may make a driver after it, which wants that.
        prepare_fork()?;
        let device = Arc::new(Device::open(&DeviceChoice::Address(at), &channel)?);
        let domain = Arc::new(Domain::new(&device)?);
        let completions = Arc::new(Completions::new(&device, 2000)?);
        let queues = Queues {
            shared: None,
            completions,
            domain,
        };
        Ok(Self {
            links: Vec::new(),
            listeners: Vec::new(),
            memory: BTreeMap::new(),
            // The last one is for what is sent, which completes at once.
            slots: SlotPool::new(&queues.domain, SLOT, LINKS * RECEIVES + 1, false)?,
            out: 0,
            queues,
            channel,
            _device: device,
        })
    }

    fn sizes() -> QueueSizes {
        QueueSizes {
            send: 16,
            receive: RECEIVES,
            segments: 2,
            inline: 0,
        }
    }

    fn params() -> (ConnectParams, ReadDepths) {
        let params = ConnectParams {
            retry: 3,
            rnr_retry: 0,
            reads: 16,
            dual_stream: false,
            private: PrivateData::EMPTY,
        };
        let reads = ReadDepths {
            answered: 16,
            issued: 16,
        };
        (params, reads)
    }

    /// Makes the queue pair of a link, with all its receives.
    fn furnish(&mut self, at: usize) -> Result<(), String> {
        let link = &mut self.links[at];
        let made = link
            .id
            .create_queue_pair(self.queues.clone(), &Self::sizes());
        made.map_err(told("queue pair"))?;
        link.number = link.id.queue_pair_number();
        let first = at as u32 * RECEIVES;
        (first..first + RECEIVES).try_for_each(|slot| self.receive(at, slot))
    }

    fn receive(&mut self, at: usize, slot: u32) -> Result<(), String> {
        let mut chain = ReceiveChain::new();
        chain.receive(slot.into(), self.slots.whole(SlotId(slot)));
        // SAFETY: the queue pair is there; slots stay mapped as long as it, and one is only looked
        // at when its receive is complete.
        let posted = unsafe { chain.post(self.links[at].id.queue_pair()) };
        posted.map_err(|(_, code)| format!("receive: error {code}"))
    }

    /// Posts one request and waits until it is complete.
    fn post(&mut self, at: usize, verb: Verb, segment: sys::ibv_sge) -> Result<(), String> {
        let mut chain = SendChain::new(1);
        chain.segment(segment);
        chain.request(SENT, verb, sys::flag::SIGNALED, 0);
        // SAFETY: the queue pair is there; slots and chunks stay mapped as long as it, and this
        // waits for the completion.
        let posted = unsafe { chain.post(self.links[at].id.queue_pair()) };
        posted.map_err(|(_, code)| format!("post: error {code}"))?;
        self.out += 1;
        while self.out > 0 {
            self.completions()?;
        }
        Ok(())
    }

    fn completions(&mut self) -> Result<bool, String> {
        let mut batch = [const { MaybeUninit::uninit() }; Completions::BATCH];
        let completions = Arc::clone(&self.queues.completions);
        let found = completions.poll(&mut batch).map_err(told("poll"))?;
        let found: Vec<_> = found.iter().map(done).collect();
        for wc in &found {
            let link = self.links.iter().position(|l| l.number == wc.queue_pair);
            let at = link.ok_or("a completion of no queue pair")?;
            if wc.wr == SENT {
                self.out -= 1;
            }
            if wc.status == WorkStatus::Flushed {
                self.links[at].is_down = true;
                continue;
            }
            if wc.status != WorkStatus::Success {
                return Err(format!("{:?} of the script's request", wc.status));
            }
            if wc.wr != SENT {
                let slot = wc.wr as u32;
                let bytes = self.slots.slot(SlotId(slot))[..wc.len as usize].to_vec();
                self.links[at].received.push_back(bytes);
                self.receive(at, slot)?;
            }
        }
        Ok(!found.is_empty())
    }

    fn events(&mut self) -> Result<bool, String> {
        let Some(mut report) = self.channel.next().map_err(told("events"))? else {
            return Ok(false);
        };
        let (params, reads) = Self::params();
        if let Some(mut id) = report.request.take() {
            id.set_cookie(self.links.len() as u64);
            self.links.push(Link::new(id));
            let at = self.links.len() - 1;
            self.furnish(at)?;
            let accepted = self.links[at].id.accept(&params, reads);
            accepted.map_err(told("accept"))?;
            return Ok(true);
        }
        let at = report.cookie as usize;
        match (report.kind, report.status) {
            (CmKind::AddrResolved, 0) => {
                let resolved = self.links[at].id.resolve_route(2000);
                resolved.map_err(told("route"))?;
            }
            (CmKind::RouteResolved, 0) => {
                self.furnish(at)?;
                let connected = self.links[at].id.connect(&params, reads);
                connected.map_err(told("connect"))?;
            }
            (CmKind::Established, 0) => self.links[at].is_up = true,
            (CmKind::Disconnected, _) => self.links[at].is_down = true,
            (CmKind::TimewaitExit, _) => {}
            (kind, status) => return Err(format!("{kind:?} with status {status}")),
        }
        Ok(true)
    }
}

impl Link {
    fn new(id: Id) -> Self {
        Self {
            id,
            number: 0,
            is_up: false,
            is_down: false,
            received: VecDeque::new(),
        }
    }
}

/// What a script does; each fails with what went wrong, in words.
#[allow(clippy::missing_errors_doc, reason = "said above, for all of them")]
impl RawPeer {
    /// Listens there, and takes who comes.
    pub fn listen(&mut self, at: SocketAddr) -> Result<(), String> {
        let mut id = Id::new(&self.channel, LISTENER).map_err(told("id"))?;
        id.listen(at, 4).map_err(told("listen"))?;
        self.listeners.push(id);
        Ok(())
    }

    /// Connects to that address; links are counted as they come to be.
    pub fn connect(&mut self, to: SocketAddr) -> Result<(), String> {
        let cookie = self.links.len() as u64;
        let mut id = Id::new(&self.channel, cookie).map_err(told("id"))?;
        let resolved = id.resolve_address(to, None, 2000);
        resolved.map_err(told("address"))?;
        self.links.push(Link::new(id));
        Ok(())
    }

    /// Takes what came; whether there was anything.
    pub fn poll(&mut self) -> Result<bool, String> {
        Ok(self.events()? | self.completions()?)
    }

    /// Whether a link is up.
    pub fn is_up(&self, link: usize) -> bool {
        self.links
            .get(link)
            .is_some_and(|link| link.is_up && !link.is_down)
    }

    /// Sends a frame, and waits until it has arrived.
    pub fn send(&mut self, link: usize, bytes: &[u8]) -> Result<(), String> {
        let slot = LINKS * RECEIVES;
        self.slots.slot_mut(SlotId(slot))[..bytes.len()].copy_from_slice(bytes);
        let segment = self.slots.segment(slot, 0, bytes.len() as u32);
        self.post(link, Verb::Send, segment)
    }

    /// The next frame that came on a link.
    pub fn received(&mut self, link: usize) -> Option<Vec<u8>> {
        self.links.get_mut(link)?.received.pop_front()
    }

    /// New memory with these bytes: its address and key.
    pub fn memory(&mut self, bytes: &[u8]) -> Result<(u64, u32), String> {
        let chunk = Chunk::new(&self.queues.domain, bytes.len(), Rights::ALL, false);
        let mut chunk = chunk.map_err(told("memory"))?;
        chunk.bytes_mut(0, bytes.len()).copy_from_slice(bytes);
        let (addr, key) = (chunk.address(), chunk.rkey());
        self.memory.insert(addr, chunk);
        Ok((addr, key))
    }

    /// What is at an address of it.
    pub fn content(&self, addr: u64, len: usize) -> Result<Vec<u8>, String> {
        let found = self.memory.range(..=addr).next_back();
        let (start, chunk) = found.ok_or("no such memory")?;
        Ok(chunk.bytes((addr - start) as usize, len).to_vec())
    }

    /// WRITEs bytes to an address of the peer's with a key.
    pub fn write(&mut self, link: usize, to: (u64, u32), bytes: &[u8]) -> Result<(), String> {
        let (from, _) = self.memory(bytes)?;
        let segment = self.local(from, bytes.len());
        let (remote, rkey) = to;
        self.post(link, Verb::Write { remote, rkey }, segment)
    }

    /// READs from there.
    pub fn read(&mut self, link: usize, from: (u64, u32), len: usize) -> Result<Vec<u8>, String> {
        let (into, _) = self.memory(&vec![0; len])?;
        let segment = self.local(into, len);
        let (remote, rkey) = from;
        self.post(link, Verb::Read { remote, rkey }, segment)?;
        self.content(into, len)
    }

    /// Ends a link.
    pub fn disconnect(&mut self, link: usize) {
        if let Some(link) = self.links.get_mut(link) {
            // One that is down is down.
            let _ = link.id.disconnect();
            link.is_down = true;
        }
    }
}

impl RawPeer {
    fn local(&self, addr: u64, len: usize) -> sys::ibv_sge {
        sys::ibv_sge {
            addr,
            length: len as u32,
            lkey: self.memory[&addr].lkey(),
        }
    }
}
