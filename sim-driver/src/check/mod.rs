//! Checkers, apart from the drivers and the core: they see facts only.
//!
//! The ledger takes what users observe: connections asked for, messages taken, delivered, ended,
//! buffers given back, connections closed. It says at once what can never be right, and at the
//! end of a run what is missing.
//!
//! A connection has two sides, numbered `2 * n` (who connects) and `2 * n + 1`. Every message has
//! a number of its own in the world, which travels in its application header.

#[cfg(test)]
mod tests;

use core::fmt;

/// Which kind of message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Class {
    /// A request.
    Request,
    /// A one-way message without receipt.
    OneWay,
    /// A one-way message with a receipt.
    Receipted,
    /// The answer to the request of that number.
    Response(u64),
}

/// How a message ended at the side that sent it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// A request's response.
    Answered,
    /// A one-way's or response's `Sent`.
    Sent,
    /// A one-way's receipt.
    Receipt,
    /// The connection ended; nobody knows what became of it.
    Unknown,
    /// The connection ended before a byte was sent.
    NeverSent,
    /// Its deadline passed.
    TimedOut,
    /// Its user gave it up.
    Cancelled,
    /// Refused by a status, a length, or a buffer.
    Refused,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Answered,
        Self::Sent,
        Self::Receipt,
        Self::Unknown,
        Self::NeverSent,
        Self::TimedOut,
        Self::Cancelled,
        Self::Refused,
    ];
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Sent => "sent",
            Self::Receipt => "receipt",
            Self::Unknown => "unknown",
            Self::NeverSent => "never_sent",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
        }
    }
    const fn is_good(self) -> bool {
        matches!(self, Self::Answered | Self::Sent | Self::Receipt)
    }
}

/// Something that a user observed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// A side of a connection exists: connect was taken, or a session accepted.
    Opened {
        /// The side.
        side: u32,
    },
    /// The side is established.
    Established {
        /// The side.
        side: u32,
    },
    /// The side could not be made.
    ConnectFailed {
        /// The side.
        side: u32,
    },
    /// The side's last event.
    Closed {
        /// The side.
        side: u32,
    },
    /// The side's endpoint died: nothing more is to be expected of it.
    Died {
        /// The side.
        side: u32,
    },
    /// The core took a message.
    Taken {
        /// Its number.
        message: u64,
        /// Digest of header and data.
        digest: u64,
        /// It has buffers that come back.
        buffers: bool,
    },
    /// A message was delivered to the user at this side.
    Delivered {
        /// Its number.
        message: u64,
        /// The side that got it.
        side: u32,
        /// Digest of header and data.
        digest: u64,
    },
    /// A message has its outcome.
    Ended {
        /// Its number.
        message: u64,
        /// How.
        outcome: Outcome,
        /// Its buffers came back with it.
        returned: bool,
    },
    /// A message's buffers came back later.
    Returned {
        /// Its number.
        message: u64,
    },
}

/// Which check failed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Check {
    /// One outcome for each message.
    ExactlyOneOutcome,
    /// One end for each connection, and nothing after it.
    ExactlyOneEnd,
    /// Delivered at most once, at the right side, to a side that may have it.
    Delivery,
    /// In the order sent.
    Order,
    /// The bytes sent.
    Bytes,
    /// What the sender was told agrees with what the receiver saw.
    Agreement,
    /// Buffers come back once, and only then may they be used again.
    Buffers,
    /// Everything is back when nothing is left.
    Conservation,
    /// It ends in time.
    Quiescence,
    /// A forbidden event of fabric, links or memory.
    Forbidden,
    /// A user was told something that makes no sense.
    Sense,
}

/// A failed check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breach {
    /// Virtual time in nanoseconds.
    pub at: u64,
    /// Which check.
    pub check: Check,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.at / 1_000_000_000, self.at % 1_000_000_000);
        write!(f, "{seconds}.{nanos:09} {:?}: {}", self.check, self.text)
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum SideState {
    Unused,
    Opened,
    Established,
    Failed,
    Closed,
    Died,
}

#[derive(Copy, Clone, Debug)]
struct Side {
    state: SideState,
    /// Requests and one-ways that it sent.
    sent: u32,
    /// Place of the last one that its peer got.
    delivered: u32,
}

#[derive(Copy, Clone, Debug)]
struct Message {
    side: u32,
    class: Class,
    /// Place among the side's requests and one-ways, from 1.
    place: u32,
    digest: u64,
    taken: bool,
    delivered: bool,
    outcome: Option<Outcome>,
    buffers: bool,
    returned: bool,
}

/// Takes facts and checks them.
#[derive(Debug, Default)]
pub struct Ledger {
    sides: Vec<Side>,
    messages: Vec<Message>,
    breaches: Vec<Breach>,
    outcomes: [u64; Outcome::ALL.len()],
    facts: u64,
    taken: u64,
    delivered: u64,
    /// No fault may lose anything: bad outcomes are failures too.
    lossless: bool,
}

impl Ledger {
    /// More breaches than this are not kept.
    const BREACHES_MAX: usize = 100;

    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }
    /// Nothing goes wrong in this run: every message must arrive.
    pub fn expect_no_loss(&mut self) {
        self.lossless = true;
    }
    /// Failed checks so far.
    pub fn breaches(&self) -> &[Breach] {
        &self.breaches
    }
    /// Messages that cores took.
    pub fn taken(&self) -> u64 {
        self.taken
    }
    /// Messages delivered.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
    /// How often each outcome was seen.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.into_iter().zip(self.outcomes)
    }

    /// Facts so far: while it grows, something gets done.
    pub fn facts(&self) -> u64 {
        self.facts
    }

    /// Takes a failed check from elsewhere.
    #[cold]
    pub fn breach(&mut self, at: u64, check: Check, text: String) {
        if self.breaches.len() < Self::BREACHES_MAX {
            self.breaches.push(Breach { at, check, text });
        }
    }

    /// A number for a connection to be: sides `2 * n` and `2 * n + 1`.
    pub fn number_connection(&mut self) -> u32 {
        let side = Side {
            state: SideState::Unused,
            sent: 0,
            delivered: 0,
        };
        self.sides.extend([side, side]);
        self.sides.len() as u32 / 2 - 1
    }
    /// A number for a message that a side wants to send.
    pub fn number_message(&mut self, side: u32, class: Class) -> u64 {
        self.messages.push(Message {
            side,
            class,
            place: 0,
            digest: 0,
            taken: false,
            delivered: false,
            outcome: None,
            buffers: false,
            returned: false,
        });
        self.messages.len() as u64 - 1
    }
    /// The side that a message was for, if there is such a message.
    pub fn receiver(&self, message: u64) -> Option<u32> {
        self.messages.get(message as usize).map(|m| m.side ^ 1)
    }
    /// The request that a message answers.
    pub fn answers(&self, message: u64) -> Option<u64> {
        match self.messages.get(message as usize)?.class {
            Class::Response(request) => Some(request),
            _ => None,
        }
    }

    /// Takes a fact.
    #[inline]
    pub fn take(&mut self, at: u64, fact: Fact) {
        self.facts += 1;
        match fact {
            Fact::Opened { side } => self.side(at, side, SideState::Unused, SideState::Opened),
            Fact::Established { side } => {
                self.side(at, side, SideState::Opened, SideState::Established);
            }
            Fact::ConnectFailed { side } => {
                self.side(at, side, SideState::Opened, SideState::Failed);
            }
            Fact::Closed { side } => self.closed(at, side),
            Fact::Died { side } => self.sides[side as usize].state = SideState::Died,
            Fact::Taken {
                message,
                digest,
                buffers,
            } => self.accepted(message, digest, buffers),
            Fact::Delivered {
                message,
                side,
                digest,
            } => self.arrived(at, message, side, digest),
            Fact::Ended {
                message,
                outcome,
                returned,
            } => self.ended(at, message, outcome, returned),
            Fact::Returned { message } => self.returned(at, message),
        }
    }

    fn side(&mut self, at: u64, side: u32, from: SideState, to: SideState) {
        let state = core::mem::replace(&mut self.sides[side as usize].state, to);
        if state != from {
            let text = format!("side {side} goes from {state:?} to {to:?}");
            self.breach(at, Check::ExactlyOneEnd, text);
        }
    }

    fn closed(&mut self, at: u64, side: u32) {
        let state = core::mem::replace(&mut self.sides[side as usize].state, SideState::Closed);
        if matches!(state, SideState::Closed | SideState::Unused) {
            let text = format!("side {side} closes when {state:?}");
            self.breach(at, Check::ExactlyOneEnd, text);
        }
    }

    fn accepted(&mut self, message: u64, digest: u64, buffers: bool) {
        self.taken += 1;
        let m = &mut self.messages[message as usize];
        m.taken = true;
        m.digest = digest;
        m.buffers = buffers;
        if !matches!(m.class, Class::Response(_)) {
            let side = &mut self.sides[m.side as usize];
            side.sent += 1;
            m.place = side.sent;
        }
    }

    fn known(&mut self, at: u64, message: u64) -> Option<Message> {
        let found = self
            .messages
            .get(message as usize)
            .filter(|m| m.taken)
            .copied();
        if found.is_none() {
            self.breach(
                at,
                Check::Delivery,
                format!("message {message} was never sent"),
            );
        }
        found
    }

    fn arrived(&mut self, at: u64, message: u64, side: u32, digest: u64) {
        let Some(m) = self.known(at, message) else {
            return;
        };
        self.delivered += 1;
        self.messages[message as usize].delivered = true;
        if side != m.side ^ 1 {
            let text = format!("message {message} of side {} came to side {side}", m.side);
            self.breach(at, Check::Delivery, text);
            return;
        }
        if m.delivered {
            self.breach(at, Check::Delivery, format!("message {message} came twice"));
        }
        if self.sides[side as usize].state == SideState::Closed {
            let text = format!("message {message} came to side {side} after its end");
            self.breach(at, Check::ExactlyOneEnd, text);
        }
        if m.digest != digest {
            let text = format!("message {message}: other bytes came than were sent");
            self.breach(at, Check::Bytes, text);
        }
        if m.outcome == Some(Outcome::NeverSent) {
            let text = format!("message {message} came, but its sender heard never sent");
            self.breach(at, Check::Agreement, text);
        }
        if m.place == 0 {
            return;
        }
        let sender = &mut self.sides[m.side as usize];
        let last = core::mem::replace(&mut sender.delivered, m.place);
        if m.place <= last {
            let text = format!(
                "message {message}, number {} came after number {last}",
                m.place
            );
            self.breach(at, Check::Order, text);
        }
    }

    fn ended(&mut self, at: u64, message: u64, outcome: Outcome, returned: bool) {
        let Some(m) = self.known(at, message) else {
            return;
        };
        self.outcomes[outcome as usize] += 1;
        let slot = &mut self.messages[message as usize];
        slot.outcome = Some(outcome);
        slot.returned = returned;
        if let Some(first) = m.outcome {
            let text = format!("message {message} ended as {first:?} and as {outcome:?}");
            self.breach(at, Check::ExactlyOneOutcome, text);
        }
        if self.sides[m.side as usize].state == SideState::Closed {
            let text = format!("message {message} ended after side {} did", m.side);
            self.breach(at, Check::ExactlyOneEnd, text);
        }
        let agrees = match outcome {
            Outcome::Receipt => m.delivered,
            Outcome::NeverSent => !m.delivered,
            _ => true,
        };
        if !agrees {
            let text = format!("message {message}: {outcome:?}, delivered {}", m.delivered);
            self.breach(at, Check::Agreement, text);
        }
        let fits = match m.class {
            Class::Request => !matches!(outcome, Outcome::Sent | Outcome::Receipt),
            Class::OneWay | Class::Response(_) => {
                !matches!(outcome, Outcome::Answered | Outcome::Receipt)
            }
            Class::Receipted => !matches!(outcome, Outcome::Answered | Outcome::Sent),
        };
        if !fits {
            let text = format!("message {message}, a {:?}, ended as {outcome:?}", m.class);
            self.breach(at, Check::Sense, text);
        }
        // A connection that never was may fail for lack of room, with all that waited for it.
        let was = self.sides[m.side as usize].state != SideState::Failed;
        if self.lossless && was && !outcome.is_good() {
            let text = format!("message {message}, a {:?}, ended as {outcome:?}", m.class);
            self.breach(at, Check::Delivery, text);
        }
    }

    fn returned(&mut self, at: u64, message: u64) {
        let Some(m) = self.known(at, message) else {
            return;
        };
        self.messages[message as usize].returned = true;
        if m.returned || m.outcome.is_none() {
            let text = format!("buffers of message {message} came back twice or too early");
            self.breach(at, Check::Buffers, text);
        }
    }

    /// The run is over and everybody has been heard: says what is missing.
    pub fn finish(&mut self, at: u64) {
        for side in 0..self.sides.len() as u32 {
            let state = self.sides[side as usize].state;
            let open = matches!(
                state,
                SideState::Opened | SideState::Established | SideState::Failed
            );
            if open {
                self.breach(
                    at,
                    Check::ExactlyOneEnd,
                    format!("side {side} never ended ({state:?})"),
                );
            }
        }
        for number in 0..self.messages.len() {
            let m = self.messages[number];
            if m.taken && self.sides[m.side as usize].state != SideState::Died {
                self.finish_message(at, number as u64, &m);
            }
        }
    }

    fn finish_message(&mut self, at: u64, number: u64, m: &Message) {
        let Some(outcome) = m.outcome else {
            let text = format!(
                "message {number}, a {:?} of side {}, never ended",
                m.class, m.side
            );
            self.breach(at, Check::ExactlyOneOutcome, text);
            return;
        };
        if m.buffers && !m.returned {
            let text = format!("buffers of message {number} never came back ({outcome:?})");
            self.breach(at, Check::Buffers, text);
        }
        // Between the last one delivered and this one nothing may be missing that its sender
        // believes sent.
        let passed = m.place != 0 && m.place < self.sides[m.side as usize].delivered;
        let lost = !m.delivered && (passed || self.lossless);
        if lost
            && matches!(
                outcome,
                Outcome::Sent | Outcome::Answered | Outcome::Receipt
            )
        {
            let text = format!("message {number} ended as {outcome:?} and never came");
            self.breach(at, Check::Agreement, text);
        }
    }
}

/// A digest of bytes, for comparing what was sent with what came. How the bytes are cut into
/// pieces makes no difference.
#[derive(Copy, Clone, Debug)]
pub struct Digest {
    hash: u64,
    /// Bytes that do not fill a word yet.
    word: u64,
    filled: u32,
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// Of nothing.
    pub const fn new() -> Self {
        Self {
            hash: 0x9e37_79b9_7f4a_7c15,
            word: 0,
            filled: 0,
        }
    }
    /// Takes bytes.
    #[inline]
    pub fn update(&mut self, mut bytes: &[u8]) {
        while self.filled != 0
            && let Some((&first, rest)) = bytes.split_first()
        {
            self.byte(first);
            bytes = rest;
        }
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            self.mix(u64::from_le_bytes(eight));
        }
        for &byte in words.remainder() {
            self.byte(byte);
        }
    }
    fn byte(&mut self, byte: u8) {
        self.word |= u64::from(byte) << (8 * self.filled);
        self.filled += 1;
        if self.filled == 8 {
            let word = self.word;
            self.mix(word);
            self.word = 0;
            self.filled = 0;
        }
    }
    #[inline]
    fn mix(&mut self, word: u64) {
        let h = (self.hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.hash = h ^ h >> 32;
    }
    /// The digest.
    pub fn value(mut self) -> u64 {
        let (word, filled) = (self.word, self.filled);
        self.mix(word ^ u64::from(filled) << 60);
        self.hash
    }
}
