//! WRITEs and READs of one end in memory of the other, each byte compared; and no further than the
//! memory that was offered.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use xio_proto::driver::BufferId;
use xio_proto::{
    Access, ConnectOptions, ConnectionId, Event, ListenOptions, RegionId, RemoteMemory, SessionOpen,
};
use xio_verbs::{Driver, Spin};

use crate::check;
use crate::load::options;
use crate::side::{Side, is_filled};

/// Bytes of each trial.
const SIZES: [usize; 7] = [1, 64, 4096, 8193, 64 << 10, 1 << 20, 8 << 20];
/// Bytes around offered memory that nobody may touch.
const GUARD: usize = 64;

/// What buffers are for.
const OFFERED: u64 = 1;
const LOCAL: u64 = 2;

/// Two ends with a connection between them.
struct Pair {
    /// Offers memory.
    owner: Side,
    /// WRITEs and READs there.
    other: Side,
    connection: Option<ConnectionId>,
}

/// Who heard an event.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Who {
    Owner,
    Other,
}

/// WRITEs and READs of all sizes, then one beyond its limit.
pub(crate) fn direct(server: IpAddr, client: IpAddr) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut pair = Pair::connect(server, client)?;
    for size in SIZES {
        pair.there_and_back(size)?;
    }
    pair.beyond()?;
    let lent = [&pair.owner, &pair.other].map(|side| side.driver.in_flight());
    check(lent == [0, 0], || format!("{lent:?} buffers in flight"))?;
    let stats = pair.other.driver.stats();
    check(
        stats.writes > SIZES.len() as u64 && stats.reads >= SIZES.len() as u64,
        || format!("{stats:?}"),
    )?;
    println!(
        "direct: {server} in memory of {client}: WRITE and READ of {SIZES:?} bytes, and none \
         beyond, {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

impl Pair {
    fn connect(server: IpAddr, client: IpAddr) -> Result<Self, Box<dyn Error>> {
        let mut other = Side::new(0, &options(server, Spin::Never))?;
        let mut owner = Side::new(1, &options(client, Spin::Never))?;
        let listen = ListenOptions {
            user: 0,
            backlog: 4,
        };
        let listener = other.driver.listen((server, 0).into(), &listen)?;
        let peer = other.driver.listening(listener).ok_or("not bound")?;
        let uri = format!("rdma://{peer}/direct");
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        let mut connect = ConnectOptions::new(1);
        connect.local = Some(SocketAddr::new(client, 0));
        owner.driver.connect(peer, &open, &connect)?;
        let mut pair = Self {
            owner,
            other,
            connection: None,
        };
        pair.wait("a connection", |who, event| {
            let is_up = matches!(event, Event::Established { .. });
            (who == Who::Owner && is_up).then_some(())
        })?;
        Ok(pair)
    }

    /// Polls both until one hears what is waited for.
    fn wait<R>(
        &mut self,
        what: &str,
        mut hear: impl FnMut(Who, &Event) -> Option<R>,
    ) -> Result<R, Box<dyn Error>> {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            for who in [Who::Other, Who::Owner] {
                let side = match who {
                    Who::Owner => &mut self.owner,
                    Who::Other => &mut self.other,
                };
                while let Some(event) = side.driver.next_event() {
                    if let Event::SessionRequest { session, .. } = event {
                        self.connection = Some(side.driver.accept(session, 0, &[], b"")?);
                    }
                    if let Some(heard) = hear(who, &event) {
                        return Ok(heard);
                    }
                }
                side.driver.poll(Some(Duration::ZERO))?;
            }
            check(Instant::now() < until, || format!("no end of {what}"))?;
        }
    }

    /// Offers so many bytes of a new buffer, which is all zeros.
    fn offer(&mut self, len: usize) -> Result<(BufferId, RegionId, RemoteMemory), Box<dyn Error>> {
        self.owner.buffer(OFFERED, len + 2 * GUARD)?;
        let buffer = self.owner.last();
        let part = self.owner.driver.segment(buffer, GUARD..GUARD + len)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.owner.driver.register(&part, access, 0)?;
        let (region, key) = self.wait("a registration", |_, event| match *event {
            Event::RegionReady { region, rkey, .. } => Some((region, rkey)),
            _ => None,
        })?;
        let memory = RemoteMemory {
            addr: part.addr,
            len: len as u64,
            key,
        };
        Ok((buffer, region, memory))
    }

    /// Takes the offer back; whether the bytes are these, and those around them were not touched.
    fn is_left(
        &mut self,
        (buffer, region): (BufferId, RegionId),
        is_right: impl FnOnce(&[u8]) -> bool,
    ) -> Result<bool, Box<dyn Error>> {
        self.owner.driver.revoke(region)?;
        self.wait("an offer", |_, event| {
            matches!(event, Event::RegionRevoked { .. }).then_some(())
        })?;
        let is_left = self.owner.driver.with_buffer(buffer, |bytes| {
            let (before, rest) = bytes.split_at(GUARD);
            let (within, behind) = rest.split_at(rest.len() - GUARD);
            let is_zero = |part: &[u8]| part.iter().all(|&byte| byte == 0);
            is_zero(before) && is_zero(behind) && is_right(within)
        })?;
        self.owner.give_up(OFFERED)?;
        Ok(is_left)
    }

    /// The other end's WRITE or READ, until it has its outcome; whether that is good.
    fn outcome(&mut self) -> Result<bool, Box<dyn Error>> {
        self.wait("a WRITE or READ", |who, event| match event {
            Event::Sent { .. } if who == Who::Other => Some(true),
            Event::Failed { .. } if who == Who::Other => Some(false),
            _ => None,
        })
    }

    fn there_and_back(&mut self, size: usize) -> Result<(), Box<dyn Error>> {
        let connection = self.connection.ok_or("no connection")?;
        let seed = size as u64;
        let (buffer, region, memory) = self.offer(size)?;
        let local = [self.other.filled(LOCAL, size, seed)?];
        let driver = &mut self.other.driver;
        driver.write(connection, &local, &memory, 0, None)?;
        check(self.outcome()?, || format!("a WRITE of {size} failed"))?;
        let into = [self.other.buffer(LOCAL, size)?];
        let fetched = self.other.last();
        let driver = &mut self.other.driver;
        driver.read(connection, &into, &memory, 0, None)?;
        check(self.outcome()?, || format!("a READ of {size} failed"))?;
        let driver = &mut self.other.driver;
        let is_right = driver.with_buffer(fetched, |bytes| is_filled(bytes, 0, seed))?;
        check(is_right, || format!("a READ of {size}: other bytes"))?;
        self.other.give_up(LOCAL)?;
        let is_left = self.is_left((buffer, region), |bytes| is_filled(bytes, 0, seed))?;
        check(is_left, || format!("a WRITE of {size}: other bytes"))
    }

    /// Who goes beyond what was offered fails, changes nothing, and loses the connection.
    fn beyond(&mut self) -> Result<(), Box<dyn Error>> {
        let connection = self.connection.ok_or("no connection")?;
        let (buffer, region, mut memory) = self.offer(GUARD)?;
        memory.len += GUARD as u64;
        let local = [self.other.filled(LOCAL, 2 * GUARD, 1)?];
        let driver = &mut self.other.driver;
        driver.write(connection, &local, &memory, 0, None)?;
        check(!self.outcome()?, || "a WRITE beyond its limit".into())?;
        let (mut owner, mut other) = (false, false);
        self.wait("the connection", |who, event| {
            let is_closed = matches!(event, Event::Closed { .. });
            owner |= is_closed && who == Who::Owner;
            other |= is_closed && who == Who::Other;
            (owner && other).then_some(())
        })?;
        self.other.give_up(LOCAL)?;
        let is_left = self.is_left((buffer, region), |bytes| bytes.iter().all(|&b| b == 0))?;
        check(is_left, || "a WRITE beyond its limit left bytes".into())
    }
}
