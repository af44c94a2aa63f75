//! Many connections at the same time, each with a queue pair of its own, to a server that has room
//! for fewer: each is made or refused, and those that are made talk, on few buffers.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use xio_proto::wire::status::NO_BUFS;
use xio_proto::{ConnectOptions, ConnectionId, Event, Reason, Refusal, SessionOpen};
use xio_verbs::{Driver, Spin};

use crate::check;
use crate::load::options;
use crate::server::Server;
use crate::side::{Side, Sizes, Wish};

/// Requests of each connection of the crowd that is too large.
const REQUESTS: usize = 20;

/// Buffers that the server has for all its peers.
const BUDGET: u32 = 1000;

/// Peers that these are enough for.
const ROOM: usize = 100;

/// Rows for peers: the last session is kept for refusing.
const ROWS: usize = ROOM + 1;

/// One connection of the crowd.
#[derive(Default)]
pub(crate) struct Member {
    connection: Option<ConnectionId>,
    sent: usize,
    pub(crate) answered: usize,
    ends: u32,
    /// Why it was not made, or how it ended.
    pub(crate) reason: Option<Reason>,
    /// What a refusal says beside its code.
    pub(crate) private: Vec<u8>,
}

/// What became of a crowd.
pub(crate) struct Crowd {
    pub(crate) members: Vec<Member>,
    /// Of each connection.
    requests: usize,
    side: Side,
}

/// Send slots for so many connections that are set up while others talk already: one for each, and
/// one for what it says; half of all are the user's.
pub(crate) fn sends(connections: usize) -> u32 {
    2 * 2 * connections as u32 + 64
}

impl Crowd {
    /// Connects `count` at once, each with a queue pair of its own, and has each that is made send
    /// so many requests and close.
    pub(crate) fn gather(
        client: IpAddr,
        at: SocketAddr,
        count: usize,
        requests: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let sizes = Sizes {
            receives: 12 * count as u32,
            min_grant: 7,
            sends: sends(count),
            peers: count,
            connect: Duration::from_secs(5),
            ..Sizes::default()
        };
        let side = Side::with_sizes(1, &options(client, Spin::Never), sizes)?;
        let members = Vec::with_capacity(count);
        let mut crowd = Self {
            members,
            requests,
            side,
        };
        let uri = format!("rdma://{at}/crowd");
        for user in 0..count {
            let open = SessionOpen {
                uri: &uri,
                private: b"",
            };
            let mut connect = ConnectOptions::new(user as u64);
            connect.local = Some(SocketAddr::new(client, 0));
            connect.own_nexus = true;
            let connection = crowd.side.driver.connect(at, &open, &connect)?;
            crowd.members.push(Member {
                connection: Some(connection),
                ..Member::default()
            });
        }
        crowd.run()?;
        Ok(crowd)
    }

    fn run(&mut self) -> Result<(), Box<dyn Error>> {
        let Self {
            members,
            requests,
            side,
        } = self;
        let until = Instant::now() + Duration::from_secs(120);
        while members.iter().any(|member| member.ends == 0) {
            while let Some(event) = side.driver.next_event() {
                hear(side, members, *requests, event)?;
            }
            check(Instant::now() < until, || {
                format!("stuck: {:?}", side.driver)
            })?;
            side.driver.poll(Some(Duration::from_secs(1)))?;
        }
        for member in members {
            check(member.ends == 1, || {
                format!("{} ends of one connection", member.ends)
            })?;
            check(member.sent == member.answered, || {
                format!("{} requests, {} answers", member.sent, member.answered)
            })?;
        }
        Ok(())
    }

    /// Connections that sent all their requests and heard all answers.
    pub(crate) fn talked(&self) -> usize {
        let all = |member: &&Member| member.answered == self.requests;
        self.members.iter().filter(all).count()
    }

    /// How many ended in which way after how many answers.
    pub(crate) fn reasons(&self) -> BTreeMap<(String, usize), usize> {
        let mut reasons = BTreeMap::new();
        for member in &self.members {
            let reason = member.reason.map_or(String::new(), |r| r.to_string());
            *reasons.entry((reason, member.answered)).or_insert(0) += 1;
        }
        reasons
    }

    /// Queue pairs and ids of connections that were not made are gone.
    pub(crate) fn nothing_left(&mut self) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + Duration::from_secs(20);
        while self.side.driver.links() > 0 {
            self.side.driver.poll(Some(Duration::from_millis(100)))?;
            check(Instant::now() < until, || {
                format!("{} ids are left", self.side.driver.links())
            })?;
        }
        Ok(())
    }
}

/// Connects `count` at once to a server that has room for [`ROOM`], with a receive queue for each
/// or one for all.
pub(crate) fn crowd(
    server: IpAddr,
    client: IpAddr,
    count: usize,
    shares: bool,
) -> Result<(), Box<dyn Error>> {
    let room = Sizes {
        receives: BUDGET,
        min_grant: 7,
        sends: 256,
        peers: ROWS,
        ..Sizes::default()
    };
    let mut options = options(server, Spin::Never);
    options.share_receives = shares;
    let served = Server::start_at((server, 0).into(), options, room)?;
    let crowd = Crowd::gather(client, served.at, count, REQUESTS)?;
    println!(
        "crowd: {count} at once: {:?}; {:?}",
        crowd.reasons(),
        crowd.side.driver.stats()
    );
    for member in &crowd.members {
        // There is no room for the others, and they are told so: before there is a transport
        // connection, or after that.
        let is_told = matches!(
            member.reason,
            Some(
                Reason::Closed
                    | Reason::TurnedAway(Refusal::NoResources { .. })
                    | Reason::Rejected(NO_BUFS)
            )
        );
        check(is_told, || format!("{:?}", member.reason))?;
    }
    let talked = crowd.talked();
    check(talked == count.min(ROOM), || format!("{talked} talked"))?;
    let stats = served.stop()?.stats;
    println!("crowd: the server: {stats:?}");
    check((stats.number_looks_max > 0) == shares, || {
        "another kind of receive queue".into()
    })
}

fn hear(
    side: &mut Side,
    members: &mut [Member],
    requests: usize,
    event: Event,
) -> Result<(), Box<dyn Error>> {
    let user = match event {
        Event::Established { user, .. } | Event::Writable { user, .. } => user,
        Event::Response {
            task,
            connection_user,
            ..
        } => {
            side.driver.release(task)?;
            members[connection_user as usize].answered += 1;
            connection_user
        }
        Event::ConnectFailed {
            user,
            reason,
            message,
            private,
            ..
        } => {
            let member = &mut members[user as usize];
            member.reason = Some(reason);
            member.private = side.driver.with_span(private, <[u8]>::to_vec);
            if let Some(message) = message {
                side.driver.release(message)?;
            }
            return Ok(());
        }
        Event::Closed { user, reason, .. } => {
            let member = &mut members[user as usize];
            member.ends += 1;
            member.reason.get_or_insert(reason);
            return Ok(());
        }
        Event::SessionClosed { .. } => return Ok(()),
        other => return Err(format!("the client heard {other:?}").into()),
    };
    let member = &mut members[user as usize];
    let Some(connection) = member.connection else {
        return Ok(());
    };
    if member.answered == requests {
        side.driver.close(connection)?;
    } else if member.sent == member.answered {
        let number = member.sent as u64;
        member.sent += 1;
        side.ask(connection, Wish::new(64, 64), number)?;
    }
    Ok(())
}
