//! Many connections at the same time, each with a queue pair of its own, to a server that has room
//! for fewer: each is made or refused, and those that are made talk, on few buffers.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use xio_proto::{ConnectOptions, ConnectionId, Event, SessionOpen};
use xio_verbs::{Driver, Spin};

use crate::check;
use crate::load::{Server, options};
use crate::side::{Side, Sizes, Wish};

/// Requests of each connection.
const REQUESTS: usize = 20;

/// Buffers that the server has for all its peers.
const BUDGET: u32 = 1000;

/// Peers that these are enough for.
const ROOM: usize = 100;

/// Rows for peers: the last session is kept for refusing.
const ROWS: usize = ROOM + 1;

/// One connection of the crowd.
#[derive(Default)]
struct Member {
    connection: Option<ConnectionId>,
    sent: usize,
    answered: usize,
    ends: u32,
    reason: String,
}

/// Connects `count` at once, and has each that is made send its requests.
pub(crate) fn crowd(server: IpAddr, client: IpAddr, count: usize) -> Result<(), Box<dyn Error>> {
    let room = Sizes {
        receives: BUDGET,
        min_grant: 7,
        sends: 256,
        peers: ROWS,
    };
    let served = Server::start_at((server, 0).into(), options(server, Spin::Never), room)?;
    let sizes = Sizes {
        receives: 12 * count as u32,
        min_grant: 7,
        sends: 2 * count as u32 + 64,
        peers: count,
    };
    let mut side = Side::with_sizes(1, &options(client, Spin::Never), sizes)?;
    let mut members: Vec<Member> = Vec::new();
    let uri = format!("rdma://{}/crowd", served.at);
    for user in 0..count {
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        let mut connect = ConnectOptions::new(user as u64);
        connect.local = Some(SocketAddr::new(client, 0));
        connect.own_nexus = true;
        let connection = side.driver.connect(served.at, &open, &connect)?;
        members.push(Member {
            connection: Some(connection),
            ..Member::default()
        });
    }
    let until = Instant::now() + Duration::from_secs(120);
    while members.iter().any(|member| member.ends == 0) {
        while let Some(event) = side.driver.next_event() {
            hear(&mut side, &mut members, event)?;
        }
        check(Instant::now() < until, || {
            format!("stuck: {:?}", side.driver)
        })?;
        side.driver.poll(Some(Duration::from_secs(1)))?;
    }
    let mut reasons = BTreeMap::new();
    for member in &members {
        check(member.ends == 1, || {
            format!("{} ends of one connection", member.ends)
        })?;
        *reasons
            .entry((&*member.reason, member.answered))
            .or_insert(0) += 1;
    }
    println!(
        "crowd: {count} at once: {reasons:?}; {:?}",
        side.driver.stats()
    );
    let talked = members
        .iter()
        .filter(|member| member.answered == REQUESTS)
        .count();
    check(talked == count.min(ROOM), || format!("{talked} talked"))?;
    served.stop().map(drop)
}

fn hear(side: &mut Side, members: &mut [Member], event: Event) -> Result<(), Box<dyn Error>> {
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
        Event::ConnectFailed { user, reason, .. } => {
            members[user as usize].reason = reason.to_string();
            return Ok(());
        }
        Event::Closed { user, reason, .. } => {
            let member = &mut members[user as usize];
            member.ends += 1;
            if member.reason.is_empty() {
                member.reason = reason.to_string();
            }
            return Ok(());
        }
        Event::SessionClosed { .. } => return Ok(()),
        other => return Err(format!("the client heard {other:?}").into()),
    };
    let member = &mut members[user as usize];
    let Some(connection) = member.connection else {
        return Ok(());
    };
    if member.answered == REQUESTS {
        side.driver.close(connection)?;
    } else if member.sent == member.answered {
        member.sent += 1;
        side.ask(connection, Wish::new(64, 64), user)?;
    }
    Ok(())
}
