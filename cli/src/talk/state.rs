//! The state of an endpoint, for people and for programs.

use std::fmt::{self, Display};
use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use xio_proto::driver::Driver;
use xio_proto::{ConnectionSnapshot, Instant, NexusSnapshot, Snapshot};

/// Numbers with their names, in an order that stays.
#[derive(Debug)]
struct Numbers(Vec<(&'static str, u64)>);

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, number) in &self.0 {
            map.serialize_entry(name, number)?;
        }
        map.end()
    }
}

/// Those that are not 0: `name 1, other 2`.
impl Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (name, number) in self.0.iter().filter(|(_, number)| *number > 0) {
            write!(f, "{between}{} {number}", name.replace('_', " "))?;
            between = ", ";
        }
        if between.is_empty() {
            return f.write_str("nothing");
        }
        Ok(())
    }
}

/// A transport connection.
#[derive(Debug, Serialize)]
struct Nexus {
    id: String,
    transport: u8,
    framing: String,
    server: bool,
    state: &'static str,
    peer: String,
    local: Option<String>,
    connections: u32,
    credits: u16,
    granted: u16,
    posted: u16,
    held: u16,
    send_slots: u32,
    send_queue: u16,
    send_queue_bytes: u64,
    counters: Numbers,
}

impl From<NexusSnapshot> for Nexus {
    fn from(nexus: NexusSnapshot) -> Self {
        Self {
            id: format!("{:?}", nexus.id),
            transport: nexus.transport.0,
            framing: format!("{:?}", nexus.framing),
            server: nexus.server,
            state: nexus.state,
            peer: nexus.peer.to_string(),
            local: nexus.local.map(|local| local.to_string()),
            connections: nexus.connections,
            credits: nexus.tx_credits,
            granted: nexus.granted,
            posted: nexus.posted,
            held: nexus.held,
            send_slots: nexus.tx_held,
            send_queue: nexus.sq_used,
            send_queue_bytes: nexus.sq_bytes,
            counters: Numbers(nexus.counters.named().collect()),
        }
    }
}

impl Display for Nexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id, framing, state, ..
        } = self;
        let way = if self.server { "from" } else { "to" };
        writeln!(f, "{id} {framing} {way} {} {state}", self.peer)?;
        let now = [
            ("connections", self.connections.into()),
            ("credits", self.credits.into()),
            ("granted", self.granted.into()),
            ("posted", self.posted.into()),
            ("held", self.held.into()),
            ("send slots", self.send_slots.into()),
            ("on the send queue", self.send_queue.into()),
            ("bytes there", self.send_queue_bytes),
        ];
        writeln!(f, "  now: {}", Numbers(now.to_vec()))?;
        writeln!(f, "  so far: {}", self.counters)
    }
}

/// A connection.
#[derive(Debug, Serialize)]
struct Connection {
    id: String,
    user: u64,
    /// `null` while it waits for its next attempt.
    session: Option<String>,
    nexus: Option<String>,
    client: bool,
    state: &'static str,
    messages_sent: u64,
    queued_messages: u32,
    queued_bytes: u64,
    unanswered: u32,
    peer_messages: i32,
    messages: Numbers,
    counters: Numbers,
}

impl From<ConnectionSnapshot> for Connection {
    fn from(connection: ConnectionSnapshot) -> Self {
        Self {
            id: format!("{:?}", connection.id),
            user: connection.user,
            session: connection.session.map(|session| format!("{session:?}")),
            nexus: connection.nexus.map(|nexus| format!("{nexus:?}")),
            client: connection.client,
            state: connection.state,
            messages_sent: connection.messages_sent,
            queued_messages: connection.queued_messages,
            queued_bytes: connection.queued_bytes,
            unanswered: connection.unanswered,
            peer_messages: connection.peer_messages,
            messages: Numbers(connection.phases.named().collect()),
            counters: Numbers(connection.counters.named().collect()),
        }
    }
}

impl Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id, session, state, ..
        } = self;
        let nexus = self.nexus.as_deref().unwrap_or("nothing");
        let session = session.as_deref().unwrap_or("no session");
        writeln!(f, "{id} of {session} on {nexus} {state}")?;
        let now = [
            ("queued messages", self.queued_messages.into()),
            ("queued bytes", self.queued_bytes),
            ("unanswered", self.unanswered.into()),
        ];
        let messages = &self.messages;
        writeln!(f, "  now: {}; messages: {messages}", Numbers(now.to_vec()))?;
        let sent = self.messages_sent;
        writeln!(f, "  so far: {sent} sent; {}", self.counters)
    }
}

/// An endpoint, with all that lives in it.
#[derive(Debug, Serialize)]
pub(crate) struct State<T> {
    endpoint: u8,
    now_ns: u64,
    /// When something is due; `null` when nothing is.
    due_ns: Option<u64>,
    counters: Numbers,
    rows: Numbers,
    free: Numbers,
    messages: Numbers,
    /// Bytes of messages without an outcome, and the most that there may be of them.
    queued_bytes: u64,
    queue_bytes_all: u64,
    nexuses: Vec<Nexus>,
    connections: Vec<Connection>,
    /// What the driver counts.
    transport: T,
}

impl<T> State<T> {
    /// The state of a driver's endpoint, and what the driver says of itself.
    pub(crate) fn of<D: Driver>(driver: &D, transport: T) -> Self {
        driver.look(|endpoint| {
            let Snapshot {
                endpoint: number,
                now,
                due,
                counters,
                free,
                rows,
                phases,
                queued_bytes,
                queue_bytes_all,
                ..
            } = endpoint.snapshot();
            Self {
                endpoint: number,
                now_ns: now.as_nanos(),
                due_ns: due.map(Instant::as_nanos),
                counters: Numbers(counters.named().collect()),
                rows: Numbers(rows.named().filter(|(name, _)| *name != "armed").collect()),
                free: Numbers(free.named().collect()),
                messages: Numbers(phases.named().collect()),
                queued_bytes,
                queue_bytes_all,
                nexuses: endpoint.nexuses().map(Nexus::from).collect(),
                connections: endpoint.connections().map(Connection::from).collect(),
                transport,
            }
        })
    }
}

impl<T> Display for State<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = Duration::from_nanos(self.now_ns);
        writeln!(f, "endpoint {} at {:.3} s", self.endpoint, at.as_secs_f64())?;
        writeln!(f, "  so far: {}", self.counters)?;
        writeln!(f, "  messages: {}", self.messages)?;
        let (bytes, most) = (self.queued_bytes, self.queue_bytes_all);
        writeln!(f, "  queued: {bytes} of {most} bytes")?;
        write!(f, "  free:")?;
        for (name, length) in &self.rows.0 {
            let free = self.free.0.iter().find(|(of, _)| of == name);
            let free = free.map_or(0, |(_, free)| *free);
            write!(f, " {} {free}/{length}", name.replace('_', " "))?;
        }
        writeln!(f)?;
        for nexus in &self.nexuses {
            write!(f, "{nexus}")?;
        }
        for connection in &self.connections {
            write!(f, "{connection}")?;
        }
        Ok(())
    }
}
