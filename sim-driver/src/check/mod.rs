//! Checkers, apart from the drivers and the core: they see facts only.
//!
//! Folder map: `fact` (what users observe, and what a checker says), `digest` (bytes compared
//! without keeping them), `spacing` (attempts to make connections anew), `watch` (what the user of one
//! endpoint may hear next).
//!
//! The ledger takes what users observe: connections asked for, messages taken, delivered, ended,
//! buffers given back, connections closed. It says at once what can never be right, and at the
//! end of a run what is missing.
//!
//! A connection has two sides, numbered `2 * n` (who connects) and `2 * n + 1`. Every message has
//! a number of its own in the world, which travels in its application header.

mod digest;
mod fact;
mod spacing;
#[cfg(test)]
mod tests;
mod watch;

use xio_proto::wire::status::TIMEOUT;

pub use digest::Digest;
pub use fact::{Breach, Check, Class, Fact, Outcome, Refusal};
pub use spacing::Spacing;
pub use watch::Watch;

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
    doomed: bool,
    /// Its connection was lost and may be there anew.
    anew: bool,
    /// Lives of a server's side so far, and those that are not over.
    life: u32,
    living: u32,
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
    len: u64,
    room: u64,
    /// A receipt was asked for.
    receipt: bool,
    receipt_came: bool,
    /// It came with an answer that must say that the receiver's user never got it.
    hollow_receipt: bool,
    /// What the receiver's user had the receipt say.
    receipt_code: u32,
    /// It came last to a life of the receiver that is over.
    stale: bool,
    /// The receiver's user did not take it, and why.
    turned_away: Option<u32>,
    /// The message that answers it.
    answer: Option<u64>,
    deadline: Option<u64>,
    idempotent: bool,
    /// Whose sender died before it ended.
    died: bool,
}

impl Message {
    /// By the user that was to get it, or because that user was not asked in time.
    fn was_refused(&self, code: u32) -> bool {
        self.turned_away == Some(code) || code == TIMEOUT && !self.delivered
    }
}

/// Takes facts and checks them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    sides: Vec<Side>,
    messages: Vec<Message>,
    breaches: Vec<Breach>,
    outcomes: [u64; Outcome::ALL.len()],
    facts: u64,
    taken: u64,
    delivered: u64,
    /// No fault may lose anything from this message and this side on: bad outcomes are failures
    /// too.
    lossless: Option<(u64, u32)>,
    /// From this message and side on something may be lost again.
    lossy: Option<(u64, u32)>,
    /// How late an outcome may be after its deadline.
    grace: u64,
}

impl Ledger {
    /// More breaches than this are not kept.
    const BREACHES_MAX: usize = 100;

    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }
    /// Nothing goes wrong in this run, or what is left of it: every message must arrive.
    pub fn expect_no_loss(&mut self) {
        if self.lossless.is_none() {
            self.lossless = Some((self.messages.len() as u64, self.sides.len() as u32));
        }
    }
    /// From now on users end things that others count on.
    pub fn expect_loss(&mut self) {
        self.lossy = Some((self.messages.len() as u64, self.sides.len() as u32));
    }
    fn is_lossless(&self, message: u64) -> bool {
        let lossy = self.lossy.is_some_and(|(first, _)| message >= first);
        !lossy && self.lossless.is_some_and(|(first, _)| message >= first)
    }
    fn ends_well(&self, side: u32) -> bool {
        let lossy = self.lossy.is_some_and(|(_, first)| side >= first);
        !lossy && self.lossless.is_some_and(|(_, first)| side >= first)
    }
    /// Outcomes may come so many nanoseconds after their deadlines: clocks jump.
    pub fn allow_late(&mut self, nanos: u64) {
        self.grace = nanos;
    }
    /// How late an outcome may be after its deadline, in nanoseconds.
    pub fn grace(&self) -> u64 {
        self.grace
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
            doomed: false,
            anew: false,
            life: 0,
            living: 0,
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
            len: 0,
            room: 0,
            receipt: false,
            receipt_came: false,
            hollow_receipt: false,
            receipt_code: 0,
            stale: false,
            turned_away: None,
            answer: None,
            deadline: None,
            idempotent: false,
            died: false,
        });
        self.messages.len() as u64 - 1
    }
    /// Which kind of message it is, if there is such a message.
    pub fn class(&self, message: u64) -> Option<Class> {
        self.messages.get(message as usize).map(|m| m.class)
    }
    /// True while nobody has used the side, and when a new life of it may begin.
    pub fn may_begin(&self, side: u32) -> bool {
        let row = self.sides.get(side as usize);
        row.is_some_and(|row| row.state == SideState::Unused || row.anew && side % 2 == 1)
    }
    /// Which of a side's lives began last.
    pub fn life(&self, side: u32) -> u32 {
        self.sides[side as usize].life
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
            Fact::Opened { side } => self.opened(at, side),
            Fact::Established { side } => {
                // Lives of a server's side overlap.
                if !self.is_anew(side) || side % 2 == 0 {
                    self.side(at, side, SideState::Opened, SideState::Established);
                }
            }
            Fact::Lost { side } => self.lost(at, side),
            Fact::ConnectFailed { side } => {
                self.side(at, side, SideState::Opened, SideState::Failed);
            }
            Fact::Closed { side, badly } => self.closed(at, side, badly),
            Fact::Doomed { side } => self.sides[side as usize].doomed = true,
            Fact::Died { side } => self.died(side),
            Fact::Idempotent { message } => self.messages[message as usize].idempotent = true,
            Fact::Taken { message, .. } => self.accepted(message, &fact),
            Fact::Delivered {
                message,
                side,
                life,
                digest,
            } => self.arrived(at, message, (side, life), digest),
            Fact::ReceiptSaid { message, code } => {
                if self.known(at, message).is_some_and(|m| !m.stale) {
                    self.messages[message as usize].receipt_code = code;
                }
            }
            Fact::ReceiptCame { message, code } => self.receipt(at, message, code),
            Fact::TurnedAway { message, code } => {
                if self.known(at, message).is_some() {
                    self.messages[message as usize].turned_away = Some(code);
                }
            }
            Fact::Refused { message, why } => self.refused(at, message, why),
            Fact::Ended {
                message,
                outcome,
                returned,
                clock,
            } => self.ended(at, message, outcome, returned, clock),
            Fact::Returned { message } => self.returned(at, message),
        }
    }

    fn is_anew(&self, side: u32) -> bool {
        self.sides[side as usize].anew
    }

    fn opened(&mut self, at: u64, side: u32) {
        if self.is_anew(side) && side % 2 == 1 {
            self.sides[side as usize].state = SideState::Established;
        } else {
            self.side(at, side, SideState::Unused, SideState::Opened);
        }
        let row = &mut self.sides[side as usize];
        row.life += 1;
        row.living += 1;
        // The order of what comes begins anew.
        self.sides[side as usize ^ 1].delivered = 0;
    }

    fn lost(&mut self, at: u64, side: u32) {
        if self.sides[side as usize].state != SideState::Established || side % 2 == 1 {
            let text = format!("side {side} is lost when {:?}", self.sides[side as usize]);
            self.breach(at, Check::ExactlyOneEnd, text);
        }
        self.sides[side as usize].anew = true;
        let server = &mut self.sides[side as usize ^ 1];
        server.anew = true;
        server.delivered = 0;
    }

    fn died(&mut self, side: u32) {
        let row = &mut self.sides[side as usize];
        row.living = row.living.saturating_sub(1);
        if row.living == 0 || !row.anew {
            row.state = SideState::Died;
        }
        let open = |m: &&mut Message| m.side == side && (m.outcome.is_none() || !m.returned);
        for message in self.messages.iter_mut().filter(open) {
            message.died = true;
        }
    }

    fn side(&mut self, at: u64, side: u32, from: SideState, to: SideState) {
        let state = core::mem::replace(&mut self.sides[side as usize].state, to);
        if state != from {
            let text = format!("side {side} goes from {state:?} to {to:?}");
            self.breach(at, Check::ExactlyOneEnd, text);
        }
    }

    fn closed(&mut self, at: u64, side: u32, badly: bool) {
        let row = &mut self.sides[side as usize];
        let was = row.state;
        row.living = row.living.saturating_sub(1);
        if row.living == 0 || !row.anew {
            row.state = SideState::Closed;
        }
        if matches!(was, SideState::Closed | SideState::Unused) {
            let text = format!("side {side} closes when {was:?}");
            self.breach(at, Check::ExactlyOneEnd, text);
        }
        let excused = was == SideState::Failed || self.is_doomed(side);
        if badly && self.ends_well(side) && !excused {
            let text = format!("side {side} ends badly, with nothing that could be to blame");
            self.breach(at, Check::Quiescence, text);
        }
    }

    /// Users chose that one of the two sides does not end well.
    fn is_doomed(&self, side: u32) -> bool {
        let failed = |side: &Side| side.doomed || side.state == SideState::Failed;
        failed(&self.sides[side as usize]) || failed(&self.sides[side as usize ^ 1])
    }

    fn accepted(&mut self, message: u64, fact: &Fact) {
        self.taken += 1;
        let m = &mut self.messages[message as usize];
        m.taken = true;
        if let Fact::Taken {
            digest,
            buffers,
            len,
            room,
            receipt,
            deadline,
            ..
        } = *fact
        {
            m.digest = digest;
            m.buffers = buffers;
            m.len = len;
            m.room = room;
            m.receipt = receipt;
            m.deadline = deadline;
        }
        match m.class {
            Class::Response(request) => {
                if let Some(request) = self.messages.get_mut(request as usize) {
                    request.answer = Some(message);
                }
            }
            Class::Direct => {}
            _ => {
                let side = &mut self.sides[m.side as usize];
                side.sent += 1;
                m.place = side.sent;
            }
        }
    }

    fn receipt(&mut self, at: u64, message: u64, code: u32) {
        let Some(m) = self.known(at, message) else {
            return;
        };
        self.messages[message as usize].receipt_came = true;
        if m.receipt_came || m.outcome.is_some() || !(m.receipt || code != 0) {
            let text = format!("message {message} got a receipt that was not due");
            self.breach(at, Check::ExactlyOneOutcome, text);
        }
        let agrees = match code {
            0 => m.delivered && m.receipt_code == 0,
            code => m.delivered && m.receipt_code == code || m.was_refused(code),
        };
        // A request whose data is refused is answered with the status, and its receipt says nothing. The
        // endpoint itself does so when its user was not asked in time, as the outcome must say then.
        let request = m.class == Class::Request;
        let hollow = request && m.turned_away.is_none() && code == 0 && !m.delivered;
        let slot = &mut self.messages[message as usize];
        slot.hollow_receipt = hollow;
        // Its sender heard that nobody got it.
        if code == TIMEOUT && !m.delivered {
            slot.turned_away = Some(code);
        }
        let refused = request && m.turned_away.is_some();
        // Sent twice, it may have come and then not been asked for in time.
        let twice = m.idempotent && code == TIMEOUT && self.is_anew(m.side);
        if !agrees && !refused && !hollow && !twice {
            let text = format!(
                "message {message}: the receipt says {code}, delivered {}, its user {} {:?}",
                m.delivered, m.receipt_code, m.turned_away
            );
            self.breach(at, Check::Agreement, text);
        }
    }

    fn refused(&mut self, at: u64, message: u64, why: Refusal) {
        let Some(m) = self.known(at, message) else {
            return;
        };
        let answer = m
            .answer
            .and_then(|answer| self.messages.get(answer as usize));
        let answer_len = answer.map(|answer| answer.len);
        let agrees = match why {
            Refusal::ByPeer(code) => m.was_refused(code),
            Refusal::Here(code) => answer.is_some_and(|m| m.was_refused(code)),
            Refusal::TooLong(len, max) => {
                let answer = answer_len == Some(len) && max == m.room && m.room > 0;
                // More than the peer ever takes, as became known when the connection was there.
                let itself = answer_len.is_none() && len >= m.len && !m.delivered;
                // It may have been answered twice.
                let twice = m.idempotent && self.is_anew(m.side);
                len > max && (answer || itself || twice)
            }
            Refusal::Work => m.class == Class::Direct && !self.is_lossless(message),
        };
        if !agrees {
            let text = format!(
                "message {message} is refused ({why:?}); its user says {:?}, the answer has {:?} bytes of {}",
                m.turned_away, answer_len, m.room
            );
            self.breach(at, Check::Agreement, text);
        }
        self.messages[message as usize].turned_away = Some(0);
        if let (Some(answer), Refusal::TooLong(..)) = (m.answer, why) {
            self.messages[answer as usize].turned_away = Some(0);
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

    fn arrived(&mut self, at: u64, message: u64, (side, life): (u32, u32), digest: u64) {
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
        if m.delivered && !(m.idempotent && self.is_anew(side)) {
            let (check, how) = match self.is_anew(side) {
                true => (Check::AtMostOnce, "after its connection was made anew"),
                false => (Check::Delivery, "on one connection"),
            };
            self.breach(at, check, format!("message {message} came twice, {how}"));
        }
        // Memory outlives the connection of whoever lends it.
        let closed = self.sides[side as usize].state == SideState::Closed;
        if closed && m.class != Class::Direct {
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
        // What comes to an older life says nothing of the new one, whose user decides anew.
        let stale = side % 2 == 1 && life < self.life(side);
        let row = &mut self.messages[message as usize];
        row.stale = stale;
        if !stale && m.delivered {
            row.receipt_code = 0;
        }
        if m.place == 0 || stale {
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

    fn ended(&mut self, at: u64, message: u64, outcome: Outcome, returned: bool, clock: u64) {
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
            Outcome::Receipt => m.receipt_came,
            Outcome::Answered => m.receipt_came || !m.receipt,
            Outcome::Refused => m.turned_away.is_some(),
            Outcome::NeverSent => !m.delivered,
            _ => true,
        };
        // Its data was refused, or nobody gave memory for it in the time that its sender gave.
        let refused = matches!(outcome, Outcome::Refused | Outcome::TimedOut);
        let agrees = agrees && (!m.hollow_receipt || refused);
        if !agrees {
            let text = format!("message {message}: {outcome:?}, delivered {}", m.delivered);
            self.breach(at, Check::Agreement, text);
        }
        let fits = match m.class {
            Class::Request => !matches!(outcome, Outcome::Sent | Outcome::Receipt),
            Class::OneWay => {
                let said = m.turned_away.is_some() || m.receipt_code != 0 || !m.delivered;
                let turned_away = outcome == Outcome::Receipt && said;
                turned_away || !matches!(outcome, Outcome::Answered | Outcome::Receipt)
            }
            Class::Response(_) | Class::Direct => {
                !matches!(outcome, Outcome::Answered | Outcome::Receipt)
            }
            Class::Receipted => !matches!(outcome, Outcome::Answered | Outcome::Sent),
        };
        if !fits {
            let text = format!("message {message}, a {:?}, ended as {outcome:?}", m.class);
            self.breach(at, Check::Sense, text);
        }
        if let Some(deadline) = m.deadline.filter(|&at| clock > at + self.grace) {
            let text = format!("message {message} ended {} ns late", clock - deadline);
            self.breach(at, Check::Deadline, text);
        }
        // A connection that never was may fail for lack of room, with all that waited for it.
        let excused = self.is_doomed(m.side) || outcome == Outcome::Refused;
        if self.is_lossless(message) && !excused && !outcome.is_good() {
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
            if m.taken && !m.died && self.sides[m.side as usize].state != SideState::Died {
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
        let lossless = self.is_lossless(number);
        let excused =
            m.turned_away.is_some() || self.is_anew(m.side) || lossless && self.is_doomed(m.side);
        let lost = !m.delivered && !excused && (passed || lossless);
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
