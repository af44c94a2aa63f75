//! What the users of a world tell each other by other means than the protocol: who is where,
//! tickets of sessions, regions of memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use xio_proto::{Extensions, RemoteMemory, SessionId, SessionTicket};

use super::plan::Errand;
use crate::driver::Over;

/// What one user asks of another.
#[derive(Copy, Clone, Debug)]
pub(super) enum Letter {
    /// Take this session in: its client will come.
    Host {
        from: u32,
        session: SessionId,
        ticket: SessionTicket,
        root: u32,
    },
    /// The session may go there, or not.
    Hosted {
        session: SessionId,
        portal: Option<SocketAddr>,
    },
    /// Open a connection of this session.
    Join {
        from: u32,
        /// The asker's connection that waits for it.
        line: u32,
        ticket: SessionTicket,
        root: u32,
        errand: Errand,
    },
    /// The connection is there, or will never be.
    Joined { line: u32 },
}

/// One piece of a region, which one operation uses at a time.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Cell {
    Free,
    Busy,
    /// Somebody may still touch it.
    Spent,
}

/// A region that peers may reach.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) memory: RemoteMemory,
    /// Nobody begins anything with it any more.
    pub(super) closed: bool,
    pub(super) cells: Vec<Cell>,
}

#[derive(Debug)]
struct Place {
    address: IpAddr,
    /// Whether it has queue pairs, and sockets.
    has: [bool; 2],
    /// The endpoint that lives there now.
    number: u32,
    /// What it can do beyond libxio's protocol.
    extensions: Extensions,
}

/// The post office of a world.
#[derive(Debug, Default)]
pub struct Post {
    boxes: Vec<VecDeque<Letter>>,
    places: Vec<Place>,
    /// Regions, by endpoint and by number of the region there.
    regions: Vec<Vec<Option<Shared>>>,
    /// For each connection: the first one of its session.
    roots: Vec<u32>,
}

/// The office as all users have it.
pub type SharedPost = Rc<RefCell<Post>>;

impl Post {
    /// Bytes of a piece of a region.
    pub(super) const CELL: u64 = 2048;

    /// The endpoint with this number lives at an address now, whoever lived there before; it has
    /// queue pairs or not, and sockets or not.
    pub fn move_in(
        &mut self,
        number: u32,
        address: IpAddr,
        has: [bool; 2],
        extensions: Extensions,
    ) {
        let entries = number as usize + 1;
        if self.boxes.len() < entries {
            self.boxes.resize_with(entries, VecDeque::new);
            self.regions.resize_with(entries, Vec::new);
        }
        match self
            .places
            .iter_mut()
            .find(|place| place.address == address)
        {
            Some(place) if place.number == number => {}
            Some(place) => {
                self.regions[place.number as usize].clear();
                place.number = number;
            }
            None => self.places.push(Place {
                address,
                has,
                number,
                extensions,
            }),
        }
    }

    /// What the endpoint at an address can do, in all of its lives; `None` where nobody listens.
    pub(crate) fn extensions(&self, address: IpAddr) -> Option<Extensions> {
        let place = self.places.iter().find(|place| place.address == address);
        place.map(|place| place.extensions)
    }

    /// The endpoint at an address.
    pub(super) fn number_at(&self, address: IpAddr) -> Option<u32> {
        let place = self.places.iter().find(|place| place.address == address);
        place.map(|place| place.number)
    }
    /// Endpoints that can be reached so, but for some, with their addresses.
    pub(super) fn others(&self, over: Over, but: &[IpAddr]) -> Vec<(u32, IpAddr)> {
        let reached = |place: &Place| place.has[usize::from(over != Over::Rdma)];
        let other = |place: &&Place| reached(place) && !but.contains(&place.address);
        let pair = |place: &Place| (place.number, place.address);
        self.places.iter().filter(other).map(pair).collect()
    }

    pub(super) fn put(&mut self, to: u32, letter: Letter) {
        self.boxes[to as usize].push_back(letter);
    }
    pub(super) fn take(&mut self, number: u32) -> Option<Letter> {
        self.boxes.get_mut(number as usize)?.pop_front()
    }

    /// The connection with this number belongs to the session of `root`.
    pub(crate) fn belongs(&mut self, connection: u32, root: u32) {
        let entries = connection as usize + 1;
        if self.roots.len() < entries {
            self.roots.resize(entries, u32::MAX);
        }
        self.roots[connection as usize] = root;
    }
    pub(super) fn root_of(&self, connection: u32) -> Option<u32> {
        self.roots.get(connection as usize).copied()
    }

    pub(super) fn publish(&mut self, number: u32, region: u32, memory: RemoteMemory) {
        let regions = &mut self.regions[number as usize];
        if regions.len() <= region as usize {
            regions.resize_with(region as usize + 1, || None);
        }
        regions[region as usize] = Some(Shared {
            memory,
            closed: false,
            cells: vec![Cell::Free; (memory.len / Self::CELL) as usize],
        });
    }
    pub(super) fn withdraw(&mut self, number: u32, region: u32) {
        if let Some(place) = self.regions[number as usize].get_mut(region as usize) {
            *place = None;
        }
    }
    pub(super) fn region(&mut self, number: u32, region: u32) -> Option<&mut Shared> {
        self.regions
            .get_mut(number as usize)?
            .get_mut(region as usize)?
            .as_mut()
    }
    /// A free piece of an endpoint's memory, which is the caller's from now on: region, piece.
    pub(super) fn occupy(&mut self, number: u32) -> Option<(u32, u32, RemoteMemory)> {
        let regions = self.regions.get_mut(number as usize)?;
        for (index, region) in regions.iter_mut().enumerate() {
            let Some(region) = region.as_mut().filter(|region| !region.closed) else {
                continue;
            };
            if let Some(cell) = region.cells.iter().position(|&cell| cell == Cell::Free) {
                region.cells[cell] = Cell::Busy;
                let memory = RemoteMemory {
                    addr: region.memory.addr + cell as u64 * Self::CELL,
                    len: Self::CELL,
                    key: region.memory.key,
                };
                return Some((index as u32, cell as u32, memory));
            }
        }
        None
    }
    pub(super) fn leave(&mut self, number: u32, region: u32, cell: u32, state: Cell) {
        if let Some(region) = self.region(number, region) {
            region.cells[cell as usize] = state;
        }
    }
}
