//! Two drivers that talk: small and large requests, WRITEs and READs, and what became of each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant as Clock};

use xio_proto::{
    Access, ConnectOptions, ConnectionId, Driver, Event, ListenOptions, Message, Reason, RegionId,
    RemoteMemory, RequestOptions, SessionOpen, TaskId,
};

use super::super::{IP, with};
use super::{left, options, start_with};
use crate::options::DeviceChoice;
use crate::{Error, VerbsDriver};

/// What became of one message.
#[derive(Debug, Default)]
pub(super) struct Fate {
    pub(super) outcomes: u32,
    pub(super) is_good: bool,
}

/// Two drivers that talk, until both connections are over.
pub(super) struct Talk {
    pub(super) server: Option<VerbsDriver>,
    pub(super) client: Option<VerbsDriver>,
    pub(super) connection: Option<ConnectionId>,
    pub(super) fates: BTreeMap<u64, Fate>,
    /// Ends of connections: of the client's, and what the server has open.
    pub(super) ended: u32,
    pub(super) reason: Option<Reason>,
    pub(super) open: i32,
    /// Memory of the client's that the server WRITEs and READs.
    offer: Option<(RegionId, RemoteMemory)>,
    /// The server's connection.
    serving: Option<ConnectionId>,
    /// The client does not close when it has all answers.
    pub(super) stays: bool,
    turn: u32,
    pub(super) errors: Vec<Error>,
}

impl std::fmt::Debug for Talk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            server,
            client,
            fates,
            ended,
            reason,
            open,
            errors,
            ..
        } = self;
        write!(
            f,
            "{server:?} {client:?} {fates:?}, {ended} ended by {reason:?}, {open} open; "
        )?;
        write!(f, "{errors:?}")
    }
}

/// The user value of the server's WRITE and READ.
pub(super) const DIRECT: u64 = 100;

/// Requests of a talk: two small ones, two large ones.
pub(super) const SIZES: [usize; 4] = [64, 0, 20_000, 9000];

impl Talk {
    pub(super) fn new(share_receives: bool) -> Result<Self, Error> {
        Self::with_drain(share_receives, Duration::from_millis(30))
    }

    pub(super) fn with_drain(share_receives: bool, drain: Duration) -> Result<Self, Error> {
        let options = options(DeviceChoice::Address(IP.into()), share_receives);
        let mut server = start_with(0, &options, drain, 4)?;
        let client = start_with(1, &options, drain, 4)?;
        let listen = ListenOptions {
            user: 0,
            backlog: 4,
        };
        let listener = server.listen((IP, 0).into(), &listen).unwrap();
        let mut talk = Self {
            connection: None,
            fates: BTreeMap::new(),
            ended: 0,
            reason: None,
            open: 0,
            offer: None,
            serving: None,
            stays: false,
            turn: 0,
            errors: Vec::new(),
            client: Some(client),
            server: None,
        };
        // Where it cannot listen, the client is refused.
        let peer = server.listening(listener).unwrap_or_else(|| (IP, 9).into());
        talk.server = Some(server);
        talk.connect(peer);
        Ok(talk)
    }

    fn connect(&mut self, peer: SocketAddr) {
        let open = SessionOpen {
            uri: "rdma://fake",
            private: b"",
        };
        let client = self.client.as_mut().unwrap();
        let options = ConnectOptions::new(1);
        self.connection = Some(client.connect(peer, &open, &options).unwrap());
    }

    /// Polls both until it is over.
    pub(super) fn run(&mut self) {
        let until = Clock::now() + Duration::from_secs(20);
        while !self.is_over() {
            assert!(Clock::now() < until, "stuck: {self:?}");
            for is_server in [true, false] {
                self.poll(is_server);
            }
        }
    }

    /// Whether connections and transport connections of those who can go on are over.
    fn is_over(&self) -> bool {
        let links = |driver: &VerbsDriver| driver.links() == 0;
        let client = self
            .client
            .as_ref()
            .is_none_or(|driver| self.ended > 0 && links(driver));
        client
            && self
                .server
                .as_ref()
                .is_none_or(|driver| self.open == 0 && links(driver))
    }

    pub(super) fn poll(&mut self, is_server: bool) {
        let side = if is_server {
            &mut self.server
        } else {
            &mut self.client
        };
        let Some(mut driver) = side.take() else {
            return;
        };
        if let (true, Some(_), Some(connection)) = (is_server, &self.offer, self.serving) {
            self.touch(&mut driver, connection);
        }
        while let Some(event) = driver.next_event() {
            if is_server {
                self.serve(&mut driver, event);
            } else {
                self.hear(&mut driver, event);
            }
        }
        // One that cannot go on is dropped.
        // Now and then with a look at whether it sleeps.
        self.turn += 1;
        let patience = Duration::from_micros(if self.turn % 16 < 2 { 200 } else { 0 });
        match driver.poll(Some(patience)) {
            Ok(_) if is_server => self.server = Some(driver),
            Ok(_) => self.client = Some(driver),
            Err(error) => self.errors.push(error),
        }
    }

    fn serve(&mut self, driver: &mut VerbsDriver, event: Event) {
        match event {
            Event::SessionRequest { session, .. } => {
                let _ = driver.accept(session, 2, &[], b"");
            }
            Event::Established { connection, .. } => {
                self.open += 1;
                self.serving = Some(connection);
            }
            Event::Sent { user, .. } | Event::Failed { user, .. } if user >= DIRECT => {
                self.fates.entry(user).or_default().outcomes += 1;
                if user > DIRECT
                    && let Some((region, _)) = self.offer.take()
                    && let Some(client) = &mut self.client
                {
                    let _ = client.revoke(region);
                }
            }
            Event::Closed { .. } => self.open -= 1,
            Event::PayloadWaiting { task, len, .. } => {
                let provided = driver.allocate(len as usize).ok().and_then(|buffer| {
                    let segment = driver.segment(buffer, 0..len as usize).ok()?;
                    driver.provide(task, &[segment]).ok()
                });
                if provided.is_none() {
                    driver.refuse(task, 90).unwrap();
                }
            }
            Event::Request { task, data, .. } => self.answer(driver, task, data.len() as usize),
            Event::OneWay { task, .. } => driver.release(task).unwrap(),
            _ => {}
        }
    }

    /// As many bytes as came.
    fn answer(&mut self, driver: &mut VerbsDriver, task: TaskId, len: usize) {
        let mut data = Vec::new();
        if len > 64 {
            match driver.allocate(len) {
                Ok(buffer) => data.push(driver.segment(buffer, 0..len).unwrap()),
                Err(_) => return driver.release(task).unwrap(),
            }
        }
        let Ok(slot) = driver.reserve_answer_slot(task) else {
            return driver.release(task).unwrap();
        };
        let message = Message {
            slot: Some(slot),
            slot_data: if len > 64 { 0 } else { len as u32 },
            data: &data,
            ..Message::default()
        };
        if driver.respond(task, &message).is_err() {
            driver.return_slot(slot).unwrap();
            driver.release(task).unwrap();
        }
    }

    fn hear(&mut self, driver: &mut VerbsDriver, event: Event) {
        match event {
            Event::Established { connection, .. } => {
                for (user, &size) in SIZES.iter().enumerate() {
                    self.ask(driver, connection, user as u64, size);
                }
                if let Ok(buffer) = driver.allocate(4096) {
                    let part = driver.segment(buffer, 0..4096).unwrap();
                    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                    // Its end is told by an event.
                    let _ = driver.register(&part, access, part.addr);
                }
            }
            Event::RegionReady {
                region,
                user: addr,
                rkey: key,
                ..
            } => {
                let memory = RemoteMemory {
                    addr,
                    len: 4096,
                    key,
                };
                self.offer = Some((region, memory));
            }
            Event::Response { task, user, .. } => {
                driver.release(task).unwrap();
                self.outcome(driver, user, true);
            }
            Event::Failed { user, .. } | Event::TimedOut { user, .. } => {
                self.outcome(driver, user, false);
            }
            Event::ConnectFailed { reason, .. } => self.reason = Some(reason),
            Event::Closed { reason, .. } => {
                self.ended += 1;
                self.reason.get_or_insert(reason);
            }
            _ => {}
        }
    }

    /// The server WRITEs to the client's memory and READs it back, once.
    fn touch(&mut self, driver: &mut VerbsDriver, connection: ConnectionId) {
        let Some((_, memory)) = self.offer.filter(|_| !self.fates.contains_key(&DIRECT)) else {
            return;
        };
        for user in [DIRECT, DIRECT + 1] {
            let Ok(buffer) = driver.allocate(1000) else {
                return;
            };
            let local = [driver.segment(buffer, 0..1000).unwrap()];
            let taken = match user {
                DIRECT => driver.write(connection, &local, &memory, user, None),
                _ => driver.read(connection, &local, &memory, user, None),
            };
            if taken.is_ok() {
                assert!(
                    driver.with_buffer(buffer, |_| ()).is_err(),
                    "it is in flight"
                );
                self.fates.insert(user, Fate::default());
            }
        }
    }

    fn ask(&mut self, driver: &mut VerbsDriver, connection: ConnectionId, user: u64, size: usize) {
        let (mut data, mut into) = (Vec::new(), Vec::new());
        if size > 64 {
            for list in [&mut data, &mut into] {
                let Ok(buffer) = driver.allocate(size) else {
                    return self.close_if_done(driver);
                };
                list.push(driver.segment(buffer, 0..size).unwrap());
            }
        }
        let slot = driver.reserve_slot(connection).unwrap();
        let message = Message {
            slot: Some(slot),
            slot_data: if size > 64 { 0 } else { size as u32 },
            data: &data,
            user,
            ..Message::default()
        };
        let options = RequestOptions {
            into: &into,
            ..RequestOptions::default()
        };
        match driver.send(connection, &message, &options) {
            Ok(_) => drop(self.fates.insert(user, Fate::default())),
            Err(_) => driver.return_slot(slot).unwrap(),
        }
    }

    fn outcome(&mut self, driver: &mut VerbsDriver, user: u64, is_good: bool) {
        let fate = self.fates.get_mut(&user).expect("a message that was taken");
        fate.outcomes += 1;
        fate.is_good = is_good;
        self.close_if_done(driver);
    }

    /// The client closes when all its messages have their outcome.
    fn close_if_done(&mut self, driver: &mut VerbsDriver) {
        let is_done = |(&user, fate): (&u64, &Fate)| user >= DIRECT || fate.outcomes > 0;
        if !self.stays
            && self.fates.iter().all(is_done)
            && let Some(connection) = self.connection
        {
            let _ = driver.close(connection);
        }
    }

    /// Every message had one outcome, unless its driver could not go on; nothing is left.
    pub(super) fn check(mut self, what: &str) {
        if let (Some((region, _)), Some(client)) = (self.offer.take(), &mut self.client) {
            let _ = client.revoke(region);
        }
        for _ in 0..3 {
            self.poll(true);
            self.poll(false);
        }
        let (client, server) = (self.client.is_some(), self.server.is_some());
        for (user, fate) in &self.fates {
            let lives = if *user >= DIRECT { server } else { client };
            let counts = if lives {
                fate.outcomes == 1
            } else {
                fate.outcomes <= 1
            };
            assert!(counts, "{what}: message {user}: {fate:?}; {self:?}");
        }
        for driver in [&self.server, &self.client].into_iter().flatten() {
            assert_eq!(driver.in_flight(), 0, "{what}: {self:?}");
        }
        let is_stuck = with(|world| world.things.values().any(|thing| thing.is_stuck));
        drop((self.client, self.server));
        assert_eq!(with(|world| world.not_ready), 0, "{what}");
        if !is_stuck && !with(|world| world.things.values().any(|thing| thing.is_stuck)) {
            assert_eq!(left(), [""; 0], "{what}");
        }
        assert_eq!(with(|world| world.device.taken), 0, "{what}");
    }
}
