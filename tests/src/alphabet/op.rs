//! What can happen, as plain values.

use crate::hostile::Choices;

/// Which kind of message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A request.
    Request,
    /// A one-way message.
    OneWay,
    /// A one-way message with a receipt.
    Receipted,
}

/// How large a message is, and where its bytes lie.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Bytes of data: 0 to 6000.
    pub len: u16,
    /// Pieces of user memory that the data lies in; 0: in the slot, if it fits.
    pub pieces: u8,
    /// The peer READs the data, and WRITEs the answer, if that is possible at all.
    pub apart: bool,
    /// To be sent before others.
    pub prompt: bool,
}

/// What a sender wants.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Wants {
    /// Bytes of buffers for the answer; 0 offers none.
    pub room: u16,
    /// A receipt before the answer.
    pub receipt: bool,
    /// Milliseconds until its outcome is due; 0 is no deadline.
    pub deadline: u8,
    /// It may come twice.
    pub idempotent: bool,
}

/// How a connection is asked for.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Dial {
    /// On a transport connection of its own.
    pub own: bool,
    /// It is made anew when it is lost.
    pub again: bool,
}

/// What a device may say that is wrong, late, or about something else.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Lie {
    /// An event of the communication manager, with a number of `rdma_cma.h` and a status.
    Cm(u8, bool),
    /// A completion with this status, of something that is posted or once was.
    Completion(u8),
    /// A completion of what never was.
    Stranger(u32),
    /// No queue pair could be made.
    NoQueuePair,
    /// What was posted once could not be.
    NotPosted,
    /// The driver failed.
    DriverFailed,
    /// A listener failed.
    ListenFailed,
    /// Memory could not be registered.
    NoRegion,
    /// A region is revoked that nobody wanted to be.
    Revoked,
}

/// Something that happens at one side. A number selects among what is there; where there is nothing
/// (nobody asked, nothing is on its way), nothing happens.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Act {
    // What users call.
    /// Listens, if it does not.
    Listen,
    /// Listens no more.
    Unlisten,
    /// Connects to the other side.
    Connect(Dial),
    /// Accepts a session; with portals, if so.
    Accept(u8, bool),
    /// Rejects a session.
    Reject(u8),
    /// Sends a session's client to where it is.
    Redirect(u8),
    /// Sends on a connection.
    Send(u8, Kind, Shape, Wants),
    /// Answers a request in hand.
    Answer(u8, Shape),
    /// Gives back something in hand.
    Release(u8),
    /// Gives memory for a payload that waits.
    Provide(u8),
    /// Refuses a payload that waits.
    Refuse(u8, u8),
    /// Says what the receipt of a message in hand is to say.
    Receipt(u8, u8),
    /// Cancels a message.
    Cancel(u8),
    /// Closes a connection.
    Close(u8),
    /// Ends a connection at once.
    Abort(u8),
    /// Ends the endpoint, within so many milliseconds.
    Stop(u8),
    /// Keeps a slot.
    Reserve(u8),
    /// Gives a slot back that it kept.
    Return(u8),
    /// Lets the peer READ and WRITE memory.
    Register,
    /// Takes that back.
    Revoke(u8),
    /// A direct READ or WRITE of the peer's memory, so many bytes.
    Direct(u8, bool, u8),
    /// Makes a ticket of a session.
    Export(u8),
    /// Takes a ticket in.
    Import(u8),
    /// Opens one more connection of a session.
    Join(u8),
    /// A command about something that is over, or never was.
    Stale(u8, u8),

    // What endpoints want.
    /// One action of the communication manager.
    Control,
    /// One work request.
    Work,
    /// One event is heard.
    Hear,
    /// Everything that the endpoint wants, and all events.
    Settle,

    // What the world does.
    /// A device does the oldest work request of a queue pair.
    Device(u8),
    /// The oldest completion of a queue pair is told.
    Complete(u8),
    /// The oldest event of the communication manager is told.
    Cm,
    /// A queue pair loses its peer; both are told, or whoever sends next finds out.
    Lose(u8, bool),
    /// The next work request cannot be posted.
    Unpostable,
    /// So many milliseconds pass.
    Time(u16),
    /// Time passes until the next deadline.
    Deadline,
    /// Everything that both sides want and their devices have to do, so many rounds.
    Run(u8),
    /// Everything of the side is gone; another life of it begins.
    Restart,
    /// The device is removed.
    Remove,
    /// The device says something that is wrong.
    Lie(u8, Lie),
}

/// One thing that happens.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Op {
    /// At which side: 0 or 1.
    pub side: usize,
    /// What.
    pub act: Act,
}

impl Op {
    /// `act` at a side.
    pub const fn at(side: usize, act: Act) -> Self {
        Self { side, act }
    }

    /// The operation that some bytes stand for; any bytes stand for one.
    pub fn read(choices: &mut Choices<'_>) -> Self {
        let side = choices.below(2);
        let act = match choices.below(40) {
            0..=13 => Act::read_command(choices),
            14 => Act::Control,
            15 | 16 => Act::Work,
            17 => Act::Hear,
            18..=22 => Act::Settle,
            23..=26 => Act::Device(choices.byte()),
            27..=30 => Act::Complete(choices.byte()),
            31 | 32 => Act::Cm,
            33 => Act::Time(1 << choices.below(16)),
            34 => Act::Deadline,
            35..=37 => Act::Run(1 + choices.below(2) as u8),
            _ => Act::read_trouble(choices),
        };
        Self { side, act }
    }
}

impl Act {
    fn read_command(choices: &mut Choices<'_>) -> Self {
        match choices.below(40) {
            32..=39 | 0..=5 => Self::read_send(choices),
            6..=8 => Self::Answer(choices.byte(), Shape::read(choices)),
            9..=11 => Self::Release(choices.byte()),
            12 | 13 => Self::Connect(Dial::read(choices)),
            14 | 15 => Self::Accept(choices.byte(), choices.below(6) == 0),
            16 | 17 => Self::Provide(choices.byte()),
            18 => Self::Cancel(choices.byte()),
            19 => Self::Close(choices.byte()),
            20 => Self::Receipt(choices.byte(), choices.byte()),
            21 => Self::Direct(choices.byte(), choices.below(2) == 0, choices.byte()),
            22 => Self::Register,
            23 => Self::Listen,
            24 => Self::Stale(choices.byte(), choices.byte()),
            25 => Self::Refuse(choices.byte(), choices.byte()),
            26 => Self::Export(choices.byte()),
            27 => Self::Import(choices.byte()),
            28 => Self::Join(choices.byte()),
            _ => Self::read_rare(choices),
        }
    }

    fn read_send(choices: &mut Choices<'_>) -> Self {
        let on = choices.byte();
        let kind = match choices.below(8) {
            0..=4 => Kind::Request,
            5 | 6 => Kind::OneWay,
            _ => Kind::Receipted,
        };
        Self::Send(on, kind, Shape::read(choices), Wants::read(choices))
    }

    fn read_rare(choices: &mut Choices<'_>) -> Self {
        match choices.below(10) {
            0 => Self::Reject(choices.byte()),
            1 => Self::Redirect(choices.byte()),
            2 => Self::Abort(choices.byte()),
            3 | 4 => Self::Reserve(choices.byte()),
            5 | 6 => Self::Return(choices.byte()),
            7 => Self::Revoke(choices.byte()),
            8 if choices.below(8) == 0 => Self::Stop(choices.byte()),
            8 => Self::Stale(choices.byte(), choices.byte()),
            _ => Self::Unlisten,
        }
    }

    fn read_trouble(choices: &mut Choices<'_>) -> Self {
        match choices.below(16) {
            0..=3 => Self::Lose(choices.byte(), choices.below(2) == 0),
            4 => Self::Unpostable,
            5 => Self::Restart,
            6 if choices.below(4) == 0 => Self::Remove,
            _ => Self::Lie(choices.byte(), Lie::read(choices)),
        }
    }
}

impl Lie {
    fn read(choices: &mut Choices<'_>) -> Self {
        match choices.below(12) {
            0..=2 => Self::Cm(choices.below(18) as u8, choices.below(2) == 0),
            3..=5 => Self::Completion(choices.byte()),
            6 => Self::Stranger(choices.word()),
            7 => Self::NoQueuePair,
            8 => Self::NotPosted,
            9 => Self::DriverFailed,
            10 => Self::ListenFailed,
            _ if choices.below(2) == 0 => Self::NoRegion,
            _ => Self::Revoked,
        }
    }
}

impl Shape {
    fn read(choices: &mut Choices<'_>) -> Self {
        let len = match choices.below(6) {
            0 => 0,
            1..=3 => choices.byte().into(),
            _ => 24 * u16::from(choices.byte()),
        };
        let bits = choices.byte();
        Self {
            len,
            pieces: (bits & 3) + u8::from(bits & 0x70 == 0) * (bits >> 2 & 3),
            apart: bits & 0x0c == 0x0c,
            prompt: bits & 0x80 != 0,
        }
    }
}

impl Wants {
    fn read(choices: &mut Choices<'_>) -> Self {
        let bits = choices.byte();
        Self {
            room: match bits & 3 {
                0 | 1 => 0,
                2 => choices.byte().into(),
                _ => 32 * u16::from(choices.byte()),
            },
            receipt: bits & 0x0c == 0x0c,
            deadline: if bits & 0x30 == 0x30 {
                1 + choices.byte() / 16
            } else {
                0
            },
            idempotent: bits & 0xc0 == 0xc0,
        }
    }
}

impl Dial {
    fn read(choices: &mut Choices<'_>) -> Self {
        let bits = choices.byte();
        Self {
            own: bits & 1 != 0,
            again: bits & 2 != 0,
        }
    }
}
