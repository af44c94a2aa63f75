//! What users want: connections, messages, and how they like to end things.

use std::net::SocketAddr;

use xio_proto::Reconnect;

use crate::driver::Over;

/// Who ends a connection, and when.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Closing {
    /// The client, when all its messages have ended.
    Client,
    /// The server, when the client has sent all and heard all; the client says so.
    Server,
    /// Both, at the same time.
    Both,
    /// The client, with messages still out.
    Early,
    /// The client, without a word.
    Abort,
}

/// What a client wants its server to do with a session; it says so in its private data.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Wish {
    /// Accept it.
    Accept,
    /// Accept it with portals: the connection goes on at another endpoint.
    Portals,
    /// Send the client to another endpoint, which accepts.
    Redirect,
    /// Send the client to another endpoint, which accepts with portals.
    RedirectPortals,
    /// Send it from one to the next for ever.
    Wander,
    /// Reject it, with private data.
    Reject,
    /// Say nothing.
    Silence,
}

impl Wish {
    const ALL: [Self; 7] = [
        Self::Accept,
        Self::Portals,
        Self::Redirect,
        Self::RedirectPortals,
        Self::Wander,
        Self::Reject,
        Self::Silence,
    ];
    /// From its number.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
    /// Whether the session ends up where connections of others are welcome.
    pub(super) const fn has_portals(self) -> bool {
        matches!(self, Self::Portals | Self::RedirectPortals)
    }
}

/// A connection that a client makes.
#[derive(Copy, Clone, Debug)]
pub struct Errand {
    /// Where to.
    pub peer: SocketAddr,
    /// What over.
    pub over: Over,
    /// When, in nanoseconds.
    pub at: u64,
    /// Requests and one-ways to send.
    pub messages: u32,
    /// Requests and one-ways that the server is to send back.
    pub back: u16,
    /// How many may be out at once.
    pub depth: u32,
    /// Its own transport connection.
    pub own: bool,
    /// How it ends.
    pub closing: Closing,
    /// What the server is to do with the session.
    pub wish: Wish,
    /// Connections that join the session from this endpoint.
    pub more: u8,
    /// Connections that join it from other endpoints, by ticket. Only with portals.
    pub away: u8,
    /// The connection is closed, or aborted, so many nanoseconds after it was asked for, whatever
    /// has become of it; 0 is never.
    pub patience: u64,
    /// The connection is made anew when it is lost.
    pub again: Option<Reconnect>,
    /// It is to be the only one between the two, and the peer may call as well.
    pub call: Option<Call>,
}

/// Two call each other: whichever connect comes to something, it is one connection.
#[derive(Copy, Clone, Debug)]
pub struct Call {
    /// The caller's side of it.
    pub side: u32,
    /// Who the peer is.
    pub peer: u64,
}

impl Errand {
    /// A connection over a queue pair, on which so many messages are sent, one at a time.
    pub const fn to(peer: SocketAddr, messages: u32) -> Self {
        Self {
            peer,
            over: Over::Rdma,
            at: 0,
            messages,
            back: 0,
            depth: 1,
            own: false,
            closing: Closing::Client,
            wish: Wish::Accept,
            more: 0,
            away: 0,
            patience: 0,
            again: None,
            call: None,
        }
    }
}

/// How messages look; chances are in parts of a million.
#[derive(Copy, Clone, Debug)]
pub struct Mix {
    /// One-ways among messages.
    pub one_way: u32,
    /// Receipts among one-ways, and among requests.
    pub receipt: u32,
    /// Receipts that say that the message is not taken.
    pub bad_receipt: u32,
    /// Bytes of application header behind the 16 that are always there, at most.
    pub header: u32,
    /// Bytes of small data, at most.
    pub small: u32,
    /// Large messages.
    pub large_ppm: u32,
    /// Bytes of large data, at most.
    pub large: u32,
    /// Requests with room for their answer, apart from large ones.
    pub offer: u32,
    /// Answers that are longer than the room offered for them.
    pub too_long: u32,
    /// Messages with each of the other options of a request.
    pub options: u32,
    /// Direct READs and WRITEs.
    pub direct: u32,
    /// Payloads that are refused.
    pub refuse: u32,
    /// Payloads about which nothing is said until it is too late.
    pub neglect: u32,
    /// Longest time that a server thinks, in nanoseconds.
    pub think: u64,
    /// A client that waits for its server's last word or close waits no longer than this when
    /// nothing happens, in nanoseconds; 0 is for ever.
    pub idle: u64,
    /// Longest pause of a sender between two messages, in nanoseconds.
    pub pace: u64,
    /// Messages with a deadline.
    pub deadline: u32,
    /// Messages that are cancelled.
    pub cancel: u32,
    /// Messages that may be delivered twice, on connections that are made anew.
    pub idempotent: u32,
    /// Requests that a server gives back without an answer.
    pub ignore: u32,
    /// Connections that a server ends at any time, as a client with little patience.
    pub curt: u32,
    /// Regions of memory that peers may reach.
    pub regions: u8,
    /// Regions that are taken back in the middle of things, when it is time for one to go.
    pub rude: bool,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            one_way: 200_000,
            receipt: 500_000,
            bad_receipt: 0,
            header: 48,
            small: 512,
            large_ppm: 0,
            large: 0,
            offer: 0,
            too_long: 0,
            options: 0,
            direct: 0,
            refuse: 0,
            neglect: 0,
            think: 0,
            idle: 0,
            pace: 0,
            deadline: 0,
            cancel: 0,
            idempotent: 0,
            ignore: 0,
            curt: 0,
            regions: 0,
            rude: false,
        }
    }
}
