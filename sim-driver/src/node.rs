//! Endpoints of a simulated world as drivers: what runs over sockets runs here, in virtual time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use xio_proto::driver::{BufferError, BufferId, Capabilities, Driver, Key, Parts};
use xio_proto::{
    CommandError, ConfigError, Control, Data, Endpoint, Event, Instant, ListenOptions, ListenerId,
    Segment, TaskId, TransportId, Work,
};

use crate::driver::{Core, Desk, User};
use crate::fabric::FabricConfig;
use crate::link::LinkConfig;
use crate::memory::{Buffer, Memory, Rights};
use crate::storage::BoxStorage;
use crate::trace::MarkTrace;
use crate::world::{NodeConfig, World};

/// A user that keeps its events until it is asked for them.
#[derive(Debug, Default)]
struct Inbox {
    events: VecDeque<Event>,
}

impl User for Inbox {
    fn event(&mut self, _: &mut Core, _: &mut Desk<'_>, event: Event) {
        self.events.push_back(event);
    }
    fn turn(&mut self, _: &mut Core, _: &mut Desk<'_>) {}
    fn sides(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// A buffer of the user's, and the messages in flight that use it.
#[derive(Debug)]
struct Owned {
    buffer: Option<Buffer>,
    generation: u32,
    lent: u32,
}

/// One endpoint of a world without faults, with queue pairs.
///
/// Time passes while somebody polls: each poll lets at least the next thing happen, to whomever.
#[derive(Debug)]
pub struct SimNode {
    world: Rc<RefCell<World<Inbox>>>,
    number: usize,
    buffers: Vec<Owned>,
    /// Places of the buffers that each message uses.
    leases: HashMap<usize, Vec<usize>>,
    listeners: Vec<(ListenerId, SocketAddr)>,
}

impl SimNode {
    /// Endpoints at these addresses in a world of their own; the seed decides what varies in it.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn world(seed: u64, nodes: &[(NodeConfig, IpAddr)]) -> Result<Vec<Self>, ConfigError> {
        let mut world = World::new(seed, FabricConfig::default(), LinkConfig::default());
        let mut numbers = Vec::new();
        for (config, address) in nodes {
            numbers.push(world.add(config, *address, Inbox::default())?);
        }
        let world = Rc::new(RefCell::new(world));
        let node = |number| Self {
            world: Rc::clone(&world),
            number,
            buffers: Vec::new(),
            leases: HashMap::new(),
            listeners: Vec::new(),
        };
        Ok(numbers.into_iter().map(node).collect())
    }

    /// Whether an event waits, without letting time pass.
    pub fn has_event(&self) -> bool {
        !self.world.borrow().user(self.number).events.is_empty()
    }

    /// What the user of the endpoint heard and was not to hear.
    pub fn breaches(&self) -> Vec<String> {
        self.look(|core| {
            let breaches = core.trace().breaches().iter();
            breaches
                .map(|(check, text)| format!("{check:?}: {text}"))
                .collect()
        })
    }

    fn memory<R>(&self, run: impl FnOnce(&mut Memory) -> R) -> R {
        run(&mut self.world.borrow_mut().env.memory[self.number])
    }

    fn find(&self, id: BufferId) -> Result<(Buffer, u32), BufferError> {
        let owned = self.buffers.get(id.index());
        let owned = owned.filter(|o| o.generation == id.generation());
        let found = owned.and_then(|o| Some((o.buffer?, o.lent)));
        found.ok_or(BufferError::Unknown)
    }

    fn idle(&self, id: BufferId) -> Result<Buffer, BufferError> {
        match self.find(id)? {
            (buffer, 0) => Ok(buffer),
            (_, lent) => Err(BufferError::InFlight(lent)),
        }
    }

    fn place(&self, segment: &Segment) -> Option<usize> {
        let end = segment.addr.checked_add(segment.len.into())?;
        self.buffers.iter().position(|owned| {
            owned.buffer.is_some_and(|b| {
                let inside = b.addr <= segment.addr && end <= b.addr + u64::from(b.len);
                inside && b.lkey == segment.lkey
            })
        })
    }
}

impl Driver for SimNode {
    type Storage = BoxStorage;
    type Trace = MarkTrace;
    type Slots = Memory;
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        Capabilities::DIRECT | Capabilities::VIRTUAL_TIME
    }

    fn transport(&self) -> TransportId {
        // The first that a node of the world is given.
        TransportId(0)
    }

    fn look<R>(&self, run: impl FnOnce(&Endpoint<BoxStorage, MarkTrace>) -> R) -> R {
        run(self.world.borrow().driver(self.number).core())
    }

    fn listening(&self, listener: ListenerId) -> Option<SocketAddr> {
        let found = self.listeners.iter().find(|(id, _)| *id == listener);
        found.map(|(_, address)| *address)
    }

    fn now(&mut self) -> Instant {
        let world = self.world.borrow();
        world.driver(self.number).now(&world.env)
    }

    fn with<R>(
        &mut self,
        _: Key,
        run: impl FnOnce(Parts<'_, BoxStorage, MarkTrace, Memory>) -> R,
    ) -> R {
        let mut result = None;
        self.world
            .borrow_mut()
            .act(self.number, |_, endpoint, desk| {
                let slots = desk.memory();
                result = Some(run(Parts { endpoint, slots }));
            });
        result.expect("no endpoint dies without faults")
    }

    /// The world does it after each command.
    fn carry_out(&mut self) {}

    fn control(&mut self, _: Key, control: Control) {
        unreachable!("{control:?} is carried out by the world");
    }

    fn work(&mut self, _: Key, work: Work) {
        unreachable!("{work:?} is posted by the world");
    }

    fn knows(&self, _: Key, segments: &[Segment]) -> bool {
        let known = |s: &Segment| s.addr == 0 || self.place(s).is_some();
        segments.iter().all(known)
    }

    fn hold(&mut self, _: Key, segments: &[Segment]) {
        for segment in segments.iter().filter(|s| s.addr != 0) {
            self.memory(|memory| memory.hold(segment.lkey));
        }
    }

    fn unhold(&mut self, _: Key, segments: &[Segment]) {
        for segment in segments.iter().filter(|s| s.addr != 0) {
            self.memory(|memory| memory.unhold(segment.lkey));
        }
    }

    fn lend(&mut self, _: Key, task: TaskId, segments: &[Segment]) {
        for segment in segments.iter().filter(|s| s.addr != 0) {
            if let Some(place) = self.place(segment) {
                self.buffers[place].lent += 1;
                self.leases.entry(task.index()).or_default().push(place);
            }
        }
    }

    fn keep(&mut self, _: Key, id: BufferId) {
        if let Ok(buffer) = self.idle(id) {
            self.buffers[id.index()].lent += 1;
            self.memory(|memory| memory.hold(buffer.lkey));
        }
    }

    fn give_back(&mut self, _: Key, task: TaskId) {
        for place in self.leases.remove(&task.index()).unwrap_or_default() {
            self.buffers[place].lent -= 1;
            if let Some(buffer) = self.buffers[place].buffer {
                self.memory(|memory| memory.unhold(buffer.lkey));
            }
        }
    }

    fn take_event(&mut self, _: Key) -> Option<Event> {
        let mut event = None;
        let mut world = self.world.borrow_mut();
        world.act(self.number, |inbox, _, _| event = inbox.events.pop_front());
        event
    }

    fn poll(&mut self, timeout: Option<Duration>) -> Result<bool, Infallible> {
        let mut world = self.world.borrow_mut();
        let wait = timeout.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        let until = world.env.now().saturating_add(wait.unwrap_or(u64::MAX));
        loop {
            let more = world.step();
            let here = !world.user(self.number).events.is_empty();
            if here || !more || world.env.now() >= until {
                return Ok(here);
            }
        }
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<ListenerId, CommandError> {
        let transport = self.transport();
        let mut listener = Err(CommandError::BadAddress);
        self.world.borrow_mut().act(self.number, |_, endpoint, _| {
            listener = endpoint.listen(transport, address, options);
        });
        let listener = listener?;
        self.listeners
            .retain(|(id, _)| id.index() != listener.index());
        self.listeners.push((listener, address));
        Ok(listener)
    }

    fn allocate(&mut self, len: usize) -> Result<BufferId, BufferError> {
        let rights = Rights::LOCAL_WRITE
            .and(Rights::REMOTE_READ)
            .and(Rights::REMOTE_WRITE);
        let no_room = BufferError::NoRoom {
            need: len as u64,
            have: u64::from(u32::MAX),
        };
        let short = u32::try_from(len).map_err(|_| no_room)?;
        let buffer = self.memory(|memory| memory.allocate(short, rights));
        let mut buffer = buffer.ok_or(BufferError::NoRoom {
            need: len as u64,
            have: 0,
        })?;
        buffer.len = short;
        self.memory(|memory| memory.user_mut(buffer.segment()).fill(0));
        let free = self.buffers.iter().position(|o| o.buffer.is_none());
        let place = free.unwrap_or_else(|| {
            self.buffers.push(Owned {
                buffer: None,
                generation: 0,
                lent: 0,
            });
            self.buffers.len() - 1
        });
        self.buffers[place].buffer = Some(buffer);
        let generation = self.buffers[place].generation;
        Ok(BufferId::new(place as u32, generation))
    }

    fn free(&mut self, id: BufferId) -> Result<(), BufferError> {
        let buffer = self.idle(id)?;
        let owned = &mut self.buffers[id.index()];
        owned.buffer = None;
        owned.generation = owned.generation.wrapping_add(1);
        self.memory(|memory| memory.free(buffer));
        Ok(())
    }

    fn segment(&self, id: BufferId, part: Range<usize>) -> Result<Segment, BufferError> {
        let (buffer, _) = self.find(id)?;
        if part.start > part.end || part.end > buffer.len as usize {
            return Err(BufferError::Unknown);
        }
        Ok(buffer.part(part.start as u32, part.len() as u32))
    }

    fn with_buffer<R>(
        &mut self,
        id: BufferId,
        run: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, BufferError> {
        let buffer = self.idle(id)?;
        Ok(self.memory(|memory| run(memory.user_mut(buffer.segment()))))
    }

    fn with_data(&mut self, data: Data, mut run: impl FnMut(&[u8])) {
        match data {
            Data::Slot(span) => self.with_span(span, run),
            Data::Segments(span) => {
                let segments: Vec<_> = self.look(|endpoint| endpoint.segments(span).collect());
                for segment in segments {
                    self.memory(|memory| run(memory.user(segment)));
                }
            }
        }
    }
}
