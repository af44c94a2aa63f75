//! What a recording holds, as plain data.

use super::layout::Layouts;
use super::payload::Payload;

/// Which of the two wire formats was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// Reliable connection queue pairs.
    Rdma,
    /// Sockets.
    Tcp,
}

/// How many byte streams carry one transport connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// None: RDMA.
    None,
    /// One socket.
    Single,
    /// A control socket and a data socket.
    Dual,
}

/// One end of the recorded conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The connecting program.
    Client,
    /// The accepting program; in the redirect recordings either of the two.
    Server,
}

impl Side {
    /// The opposite end.
    #[must_use]
    pub fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A recorded conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// Name, for example `tcp-basic`.
    pub name: String,
    /// The wire format.
    pub dialect: Dialect,
    /// The streams of each transport connection.
    pub stream: Stream,
    /// Arguments of the server program.
    pub server: String,
    /// Arguments of the second server, to which the first one redirected.
    pub second: Option<String>,
    /// Arguments of the client program: its options, then its steps in order.
    pub client: String,
    /// Work requests flushed at close, client's then server's (RDMA only).
    pub flushed: Option<(u32, u32)>,
    /// Everything that was seen, in time order.
    pub records: Vec<Record>,
    /// What the programs printed, each with its own clock.
    pub log: Vec<LogLine>,
}

impl Transcript {
    /// Every frame with its record.
    pub fn frames(&self) -> impl Iterator<Item = (&Record, &Frame)> {
        self.records
            .iter()
            .filter_map(|record| match &record.event {
                Event::Frame(frame) => Some((record, frame)),
                _ => None,
            })
    }
}

/// One thing seen at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Position in the recording, from 0.
    pub number: u32,
    /// Microseconds since the first record.
    pub at: u64,
    /// What it was.
    pub event: Event,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection manager event was delivered.
    Cm {
        /// To whom.
        side: Side,
        /// Which one.
        kind: CmKind,
        /// Its status.
        status: i32,
        /// Its connection parameters, where it has any.
        params: Option<CmParams>,
    },
    /// A queue pair was created.
    CreateQp {
        /// By whom.
        side: Side,
        /// Its attributes.
        attrs: QpAttrs,
    },
    /// The client asked for a connection.
    Connect(ConnParams),
    /// The server accepted one.
    Accept(ConnParams),
    /// The connection manager was told to disconnect.
    Disconnect {
        /// By whom.
        side: Side,
        /// Its queue pair.
        qp: u32,
    },
    /// After a disconnect: an empty SEND whose flush tells that the queue is drained.
    Beacon {
        /// By whom.
        side: Side,
        /// Its queue pair.
        qp: u32,
    },
    /// A frame was sent.
    Frame(Frame),
    /// An RDMA READ was posted.
    ReadPosted {
        /// By whom.
        side: Side,
        /// The work request.
        work: OneSided,
    },
    /// An RDMA READ completed.
    ReadDone {
        /// At whom.
        side: Side,
        /// Its queue pair.
        qp: u32,
        /// What it fetched.
        payload: Payload,
    },
    /// An RDMA WRITE was posted.
    Write {
        /// By whom.
        side: Side,
        /// The work request.
        work: OneSided,
        /// What it placed in the peer's memory.
        payload: Payload,
    },
    /// A socket was connected.
    Syn {
        /// Number of the socket in this recording.
        conn: u32,
        /// The client's address and port.
        from: String,
        /// The server's address and port.
        to: String,
    },
    /// The client sent the connect message, the first bytes of every socket.
    Hello {
        /// The socket.
        conn: u32,
        /// The message, layout `connect`.
        message: Section,
    },
    /// A side shut its direction of a socket.
    Fin {
        /// The socket.
        conn: u32,
        /// Who.
        side: Side,
    },
    /// A side reset a socket.
    Rst {
        /// The socket.
        conn: u32,
        /// Who.
        side: Side,
    },
}

/// Connection manager events that occur in the recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CmKind {
    /// The peer's address is known.
    AddrResolved,
    /// The route to it is known.
    RouteResolved,
    /// A client asks.
    ConnectRequest,
    /// The connection is up.
    Established,
    /// The connection is down.
    Disconnected,
    /// The queue pair may be reused.
    TimewaitExit,
}

impl CmKind {
    /// Every kind with its name.
    pub const NAMES: [(Self, &str); 6] = [
        (Self::AddrResolved, "ADDR_RESOLVED"),
        (Self::RouteResolved, "ROUTE_RESOLVED"),
        (Self::ConnectRequest, "CONNECT_REQUEST"),
        (Self::Established, "ESTABLISHED"),
        (Self::Disconnected, "DISCONNECTED"),
        (Self::TimewaitExit, "TIMEWAIT_EXIT"),
    ];
}

/// Parameters that come with `ConnectRequest` and `Established`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmParams {
    /// READs the receiver of the event may answer at once.
    pub responder_resources: u8,
    /// READs it may have in flight.
    pub initiator_depth: u8,
    /// Receiver-not-ready retries.
    pub rnr_retry: u8,
    /// The peer's queue pair.
    pub remote_qp: u32,
    /// Length of the private data, which was all zero.
    pub zeros: u8,
}

/// Parameters of connect and accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParams {
    /// The caller's queue pair.
    pub qp: u32,
    /// Port space.
    pub ps: u16,
    /// READs the caller answers at once.
    pub responder_resources: u8,
    /// READs it wants in flight.
    pub initiator_depth: u8,
    /// Hardware flow control.
    pub flow_control: u8,
    /// Transport retries.
    pub retry: u8,
    /// Receiver-not-ready retries.
    pub rnr_retry: u8,
    /// Shared receive queue.
    pub srq: u8,
    /// Length of the private data.
    pub private_len: u8,
}

/// Attributes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttrs {
    /// Its number.
    pub qp: u32,
    /// Its type; 2 is reliable connected.
    pub kind: u8,
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Segments of a send.
    pub max_send_sge: u32,
    /// Segments of a receive.
    pub max_recv_sge: u32,
    /// Inline bytes of a send.
    pub max_inline: u32,
    /// Whether every send is signalled.
    pub sq_sig_all: u8,
}

/// How a work request was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The queue pair.
    pub qp: u32,
    /// `F` fence, `S` signalled, `I` inline; empty if none.
    pub flags: String,
    /// Position in its chain of work requests, from 0.
    pub chain: u32,
}

/// A one-sided work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneSided {
    /// How it was posted.
    pub posted: Posted,
    /// Local segments.
    pub segments: u32,
    /// Address in the peer's memory.
    pub raddr: u64,
    /// Key of the peer's memory.
    pub rkey: u32,
    /// Number of bytes.
    pub len: u32,
}

/// One protocol message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Who sent it.
    pub side: Side,
    /// Its type.
    pub kind: Kind,
    /// What carried it.
    pub carrier: Carrier,
    /// Its bytes, part by part.
    pub sections: Vec<Section>,
}

/// What carried a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// One SEND.
    Send {
        /// How it was posted.
        posted: Posted,
        /// Bytes of each segment it was gathered from.
        gather: Vec<u32>,
        /// Receives its sender had posted in all until then.
        receives: u32,
    },
    /// Sockets.
    Socket {
        /// The single or control socket.
        conn: u32,
        /// Where the frame begins in that direction of the socket.
        offset: u64,
        /// The data socket of a dual stream.
        data: Option<u32>,
    },
}

/// Where a part of a frame travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the SEND, or on the single or control socket.
    Main,
    /// On the data socket.
    Data,
    /// On the single socket, after the frame and not counted in its length.
    Bulk,
}

/// One part of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Where it travels.
    pub place: Place,
    /// Its name; parts with named fields are in the layout table.
    pub name: String,
    /// Its bytes.
    pub body: Body,
}

/// The bytes of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Named fields.
    Fields(Vec<Field>),
    /// A run of bytes.
    Bytes(Payload),
}

/// A named field and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name from the layout.
    pub name: String,
    /// Value as on the wire.
    pub value: Vec<u8>,
    /// The sender never writes it.
    pub uninit: bool,
}

impl Field {
    /// The value as a big-endian number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.value
            .iter()
            .fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

impl Section {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match &self.body {
            Body::Fields(fields) => fields
                .iter()
                .flat_map(|f| f.value.iter().copied())
                .collect(),
            Body::Bytes(payload) => payload.bytes(),
        }
    }

    /// Cuts bytes into the fields of a layout.
    ///
    /// # Errors
    ///
    /// No such layout, or not as many bytes as its fields have.
    pub fn cut(place: Place, name: &str, bytes: &[u8], layouts: &Layouts) -> Result<Self, String> {
        let layout = layouts
            .get(name)
            .ok_or_else(|| format!("no layout {name}"))?;
        let mut fields = Vec::with_capacity(layout.fields.len());
        let mut rest = bytes;
        for def in &layout.fields {
            let (value, tail) = rest
                .split_at_checked(def.width)
                .ok_or_else(|| format!("{name} ends at {}", def.name))?;
            fields.push(Field {
                name: def.name.clone(),
                value: value.to_vec(),
                uninit: def.uninit,
            });
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes behind {name}", rest.len()));
        }
        Ok(Self {
            place,
            name: name.to_owned(),
            body: Body::Fields(fields),
        })
    }
}

/// Message types that occur on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Kind {
    NexusSetupReq,
    NexusSetupRsp,
    SessionSetupReq,
    SessionSetupRsp,
    HelloReq,
    HelloRsp,
    MsgReq,
    MsgRsp,
    OneWayReq,
    OneWayRsp,
    AckReq,
    CancelReq,
    CancelRsp,
    KeepaliveReq,
    KeepaliveRsp,
    FinReq,
    FinRsp,
    CreditNop,
    ReadAck,
}

impl Kind {
    /// Every type with its name in the recordings and its value on the wire.
    pub const ALL: [(Self, &str, u32); 19] = [
        (Self::NexusSetupReq, "NEXUS_SETUP_REQ", 0x82),
        (Self::NexusSetupRsp, "NEXUS_SETUP_RSP", 0x84),
        (Self::SessionSetupReq, "SESSION_SETUP_REQ", 0x102),
        (Self::SessionSetupRsp, "SESSION_SETUP_RSP", 0x104),
        (Self::HelloReq, "CONNECTION_HELLO_REQ", 0x202),
        (Self::HelloRsp, "CONNECTION_HELLO_RSP", 0x204),
        (Self::MsgReq, "MSG_REQ", 0x12),
        (Self::MsgRsp, "MSG_RSP", 0x14),
        (Self::OneWayReq, "ONE_WAY_REQ", 0x22),
        (Self::OneWayRsp, "ONE_WAY_RSP", 0x24),
        (Self::AckReq, "ACK_REQ", 0x1002),
        (Self::CancelReq, "CANCEL_REQ", 0x802),
        (Self::CancelRsp, "CANCEL_RSP", 0x804),
        (Self::KeepaliveReq, "CONNECTION_KA_REQ", 0x4002),
        (Self::KeepaliveRsp, "CONNECTION_KA_RSP", 0x4004),
        (Self::FinReq, "FIN_REQ", 0x402),
        (Self::FinRsp, "FIN_RSP", 0x404),
        (Self::CreditNop, "CREDIT_NOP", 0x41),
        (Self::ReadAck, "RDMA_READ_ACK", 0x2004),
    ];

    fn row(self) -> (Self, &'static str, u32) {
        let row = Self::ALL.into_iter().find(|(kind, _, _)| *kind == self);
        row.expect("every kind has a row")
    }

    /// The name in the recordings.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The value on the wire.
    #[must_use]
    pub fn wire(self) -> u32 {
        self.row().2
    }

    /// The type of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|row| row.1 == name)
            .map(|row| row.0)
    }
}

/// One line a program printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Which program.
    pub program: Program,
    /// Microseconds on that program's own clock.
    pub at: u64,
    /// What happened, in few words.
    pub text: String,
}

/// The recorded programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The client.
    Client,
    /// The server.
    Server,
    /// The server to which the first one redirected.
    Second,
}
