//! What is done about messages: those that came, and those that ended.

use xio_proto::wire::status;
use xio_proto::{CommandError, Data, Event, Failure, Segment, Span, TaskId};

use super::parcel::Label;
use super::{Actor, Due, ID_BITS};
use crate::check::{Check, Class, Fact, Outcome, Refusal};
use crate::driver::{Core, Desk};
use crate::memory::Rights;
use crate::swarm::Site;

/// Whether the clocks of endpoints have jumped.
fn jumps(desk: &Desk<'_>) -> bool {
    desk.env.swarm.fired(Site::ClockJump) > 0
}

/// A message's own number in the value that its events bring back.
pub(super) const fn number_of(user: u64) -> u64 {
    user & ((1 << ID_BITS) - 1)
}

impl Actor {
    /// A request or one-way came.
    pub(super) fn received(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        line: u32,
        task: TaskId,
        header: Span,
        data: &Data,
    ) -> Option<(Label, u64)> {
        let label = Self::label_of(core, desk, header, data);
        self.bind(desk, line, (label.message, label.hints), data);
        let side = self.lines[line as usize].side?;
        let at = desk.env.now();
        let delivered = Fact::Delivered {
            message: label.message,
            side,
            life: self.lines[line as usize].life,
            digest: label.digest,
        };
        desk.ledger.take(at, delivered);
        self.free_provided(desk, task);
        let size = u64::from(header.len) + data.len();
        let l = &mut self.lines[line as usize];
        l.peer_done |= label.last;
        l.stirred = at;
        l.hands.0 += 1;
        l.hands.1 += size;
        let (hands, config) = (l.hands, core.config());
        let most = (u32::from(config.depth_messages), config.depth_bytes);
        if config.flow_control && (hands.0 > most.0 || hands.1 > most.1) {
            let text = format!("side {side} has {hands:?} in hand, and said {most:?} at most");
            desk.ledger.breach(at, Check::Credits, text);
        }
        if self.rng.chance(self.mix.bad_receipt) {
            let code = self.rng.range(1, 1000) as u32;
            if core.set_receipt(task, code).is_ok() {
                let message = label.message;
                desk.ledger.take(at, Fact::ReceiptSaid { message, code });
            }
        }
        Some((label, size))
    }

    pub(super) fn respond_later(&mut self, core: &mut Core, desk: &mut Desk<'_>, due: Due) {
        if self.mix.think == 0 && self.due.is_empty() {
            self.respond(core, desk, due);
            return;
        }
        let at = desk.env.now() + self.rng.below(self.mix.think + 1);
        self.due.push_back(Due { at, ..due });
        self.wake(desk, at);
    }

    /// Answers a request, or gives it back when that is not possible any more. A one-way is given
    /// back.
    pub(super) fn respond(&mut self, core: &mut Core, desk: &mut Desk<'_>, due: Due) {
        let (Some(id), Some(side)) = (
            self.lines[due.line as usize].id,
            self.lines[due.line as usize].side,
        ) else {
            return;
        };
        let one_way = desk.ledger.class(due.request) != Some(Class::Request);
        if one_way {
            self.give_up(core, desk, &due);
            return;
        }
        if self.rng.chance(self.mix.ignore) {
            self.give_up(core, desk, &due);
            // Its sender would wait for ever.
            self.end_soon(desk, due.line);
            return;
        }
        let class = Class::Response(due.request);
        let room = if due.room == 0 || due.over {
            u64::MAX
        } else {
            due.room
        };
        let parcel = match self.pack(core, desk, id, side, class, room, 0, Some(due.task)) {
            Ok(parcel) => parcel,
            Err(CommandError::Full(_)) => {
                self.put_off(desk, due);
                return;
            }
            Err(_) => {
                self.give_up(core, desk, &due);
                return;
            }
        };
        let (mut message, cargo) = self.load(due.line, &parcel);
        message.prompt = self.rng.chance(self.mix.options);
        match core.respond(due.task, &message) {
            Ok(()) => {
                self.lines[due.line as usize].out += 1;
                self.out_of_hand(&due);
                self.taken(desk, &parcel);
            }
            Err(error) => {
                self.unload(core, desk, &parcel, cargo);
                match error {
                    CommandError::Full(_) | CommandError::NoCredit => self.put_off(desk, due),
                    CommandError::TooLong { .. } => {
                        let (room, over) = (1, false);
                        self.put_off(desk, Due { room, over, ..due });
                    }
                    CommandError::Closed(_) => self.give_up(core, desk, &due),
                    other => self.sense(desk, format!("an answer was refused: {other}")),
                }
            }
        }
    }

    fn out_of_hand(&mut self, due: &Due) {
        let hands = &mut self.lines[due.line as usize].hands;
        hands.0 -= 1;
        hands.1 -= due.size;
    }

    fn put_off(&mut self, desk: &mut Desk<'_>, due: Due) {
        let at = desk.env.now() + 100_000;
        self.due.push_front(Due { at, ..due });
        self.wake(desk, at);
    }

    /// Gives a message back that needs no answer, or gets none.
    pub(super) fn give_up(&mut self, core: &mut Core, desk: &mut Desk<'_>, due: &Due) {
        self.out_of_hand(due);
        self.release(core, desk, due.task);
    }

    pub(super) fn release(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId) {
        if let Err(error) = core.release(task) {
            self.sense(desk, format!("{task:?} could not be given back: {error}"));
        }
    }

    pub(super) fn answer(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        user: u64,
        header: Span,
        data: &Data,
    ) {
        let label = Self::label_of(core, desk, header, data);
        let request = number_of(user);
        let at = desk.env.now();
        let message = label.message;
        if desk.ledger.answers(message) != Some(request) {
            self.sense(
                desk,
                format!("message {message} came as the answer to {request}"),
            );
        }
        if let Some(side) = desk.ledger.receiver(message) {
            let delivered = Fact::Delivered {
                message,
                side,
                life: 0,
                digest: label.digest,
            };
            desk.ledger.take(at, delivered);
        }
        self.release(core, desk, task);
    }

    /// A receipt came, with the outcome of a one-way or before that of a request.
    pub(super) fn receipt(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        user: u64,
        (code, returned): (u32, bool),
    ) {
        let message = number_of(user);
        let at = desk.env.now();
        desk.ledger.take(at, Fact::ReceiptCame { message, code });
        if desk.ledger.class(message) != Some(Class::Request) {
            self.ended(core, desk, task, user, Outcome::Receipt, returned);
        }
    }

    pub(super) fn failed(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        user: u64,
        (failure, returned): (Failure, bool),
    ) {
        let why = match failure {
            Failure::PeerStatus(code) => Some(Refusal::ByPeer(code)),
            Failure::RefusedHere(code) => Some(Refusal::Here(code)),
            Failure::TooLong { len, max, .. } => Some(Refusal::TooLong(len, max)),
            Failure::Work(_) => Some(Refusal::Work),
            _ => None,
        };
        let outcome = match failure {
            Failure::ConnectionEnded(_) | Failure::Unknown(_) => Outcome::Unknown,
            Failure::NeverSent(_) => Outcome::NeverSent,
            _ => Outcome::Refused,
        };
        if let Some(why) = why {
            let message = number_of(user);
            let at = desk.env.now();
            desk.ledger.take(at, Fact::Refused { message, why });
        }
        self.ended(core, desk, task, user, outcome, returned);
    }

    /// An outgoing message has its outcome.
    pub(super) fn ended(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        user: u64,
        outcome: Outcome,
        returned: bool,
    ) {
        let message = number_of(user);
        let cargo = (user >> ID_BITS) as u32 - 1;
        let at = desk.env.now();
        let class = desk.ledger.class(message);
        if class == Some(Class::Direct) {
            self.direct_ended(desk, message, cargo, outcome == Outcome::Sent);
        }
        let ended = Fact::Ended {
            message,
            outcome,
            returned,
            clock: desk.now.as_nanos(),
        };
        desk.ledger.take(at, ended);
        let Some(line) = self.cargo.get(cargo).map(|cargo| cargo.line) else {
            self.sense(desk, format!("message {message} ended and was gone"));
            return;
        };
        let own = desk.ledger.answers(message).is_none();
        let l = &mut self.lines[line as usize];
        l.stirred = at;
        l.dropped |= outcome == Outcome::NeverSent && own && class != Some(Class::Direct);
        l.out -= 1;
        l.own_out -= u32::from(own);
        if returned {
            self.free_provided(desk, task);
            self.give_back(desk, cargo);
        }
        self.pump(core, desk, line);
    }

    pub(super) fn closed(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32, badly: bool) {
        let l = &mut self.lines[line as usize];
        l.over = true;
        let (side, asker) = (l.side, l.asker.take());
        let at = desk.env.now();
        if let Some(side) = side {
            desk.ledger.take(at, Fact::Closed { side, badly });
        }
        if let Some(place) = asker {
            self.tell_joined(desk, place);
        }
        self.give_up_all(core, desk, line);
    }

    /// What the user still holds of a line can no longer be answered.
    fn give_up_all(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        let mut due = core::mem::take(&mut self.due);
        for due in due.iter().filter(|due| due.line == line) {
            self.give_up(core, desk, due);
        }
        due.retain(|due| due.line != line);
        self.due = due;
    }

    /// A connection is lost, and will be made anew.
    pub(super) fn lost(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        let at = desk.env.now();
        self.clock = self.clock.max(desk.now.as_nanos());
        let clock = self.clock;
        let l = &mut self.lines[line as usize];
        let begun = l.id.map(|id| core.trace().attempts(id.index()));
        l.tried = begun;
        let (side, again) = (l.side, l.again);
        l.stirred = at;
        // The pause begins at what the endpoint takes for now.
        l.lost_at = clock.min(core.now().as_nanos());
        if let (Some(side), Some(_)) = (side, again) {
            desk.ledger.take(at, Fact::Lost { side });
        } else {
            self.sense(desk, format!("side {side:?} is made anew unasked"));
        }
        self.give_up_all(core, desk, line);
    }

    /// It is there again.
    pub(super) fn anew(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32, event: &Event) {
        let Event::Reconnected {
            session,
            attempts,
            message,
            private,
            ..
        } = *event
        else {
            return;
        };
        let at = desk.env.now();
        let made = self.count_attempts(core, desk, line);
        let waited = self.clock.saturating_sub(self.lines[line as usize].lost_at);
        let l = &mut self.lines[line as usize];
        l.session = Some(session);
        l.stirred = at;
        let (side, dropped) = (l.side, l.dropped);
        if let Some(again) = l.again {
            let least = again.first_delay.as_nanos() as u64 / 2;
            let hurried = waited < least && !jumps(desk);
            // Of those that it was told some may have found no room.
            let counted = made > 0 && attempts >= made && attempts <= again.attempts_max;
            if !counted || hurried || dropped {
                let text = format!(
                    "side {side:?} is there after {attempts} attempts, {made} of them begun, and \
                     {waited} ns of {again:?}, dropped {dropped}"
                );
                self.sense(desk, text);
            }
        }
        if let Some(message) = message {
            self.check_welcome(desk, line, private);
            self.release(core, desk, message);
        }
        self.pump(core, desk, line);
    }

    /// How many attempts were made since the loss was heard; no more than the user allowed.
    pub(super) fn count_attempts(&mut self, core: &Core, desk: &mut Desk<'_>, line: u32) -> u32 {
        self.clock = self.clock.max(desk.now.as_nanos());
        let l = &mut self.lines[line as usize];
        let (Some(before), Some(id), Some(again)) = (l.tried.take(), l.id, l.again) else {
            return 0;
        };
        let (made, side) = (core.trace().attempts(id.index()) - before, l.side);
        if made > again.attempts_max {
            let text = format!("side {side:?}: {made} attempts of {again:?}");
            desk.ledger.breach(desk.env.now(), Check::Attempts, text);
        }
        made
    }

    /// Data of a message waits for memory.
    pub(super) fn waiting(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        line: u32,
        event: &Event,
    ) {
        let Event::PayloadWaiting {
            task, header, len, ..
        } = *event
        else {
            return;
        };
        let empty = Data::Slot(Span { len: 0, ..header });
        let label = Self::label_of(core, desk, header, &empty);
        let message = label.message;
        let own = desk.ledger.answers(message).is_some();
        if !own {
            self.bind(desk, line, (message, label.hints), &empty);
        }
        let at = desk.env.now();
        if self.rng.chance(self.mix.neglect) {
            let code = status::TIMEOUT;
            desk.ledger.take(at, Fact::TurnedAway { message, code });
            self.lines[line as usize].peer_done |= label.last && !own;
            return;
        }
        if self.rng.chance(self.mix.refuse) {
            let code = self.rng.range(1, 1000) as u32;
            self.refuse(core, desk, task, (message, code));
            self.lines[line as usize].peer_done |= label.last && !own;
            return;
        }
        let buffer = desk.memory().allocate(len as u32, Rights::LOCAL_WRITE);
        let Some(buffer) = buffer else {
            self.refuse(core, desk, task, (message, 12));
            self.lines[line as usize].peer_done |= label.last && !own;
            return;
        };
        if len > 1 && self.rng.chance(self.mix.refuse) {
            let small = core.provide(task, &[buffer.part(0, buffer.len - 1)]);
            if !matches!(small, Err(CommandError::TooLong { max, .. }) if max == len - 1) {
                self.sense(desk, format!("too little memory for a payload: {small:?}"));
            }
        }
        desk.memory().hold(buffer.lkey);
        let cut = self.rng.below(len) as u32;
        let pieces = [
            buffer.part(0, buffer.len - cut),
            buffer.part(buffer.len - cut, cut),
        ];
        let pieces: &[Segment] = if cut == 0 { &pieces[..1] } else { &pieces };
        match core.provide(task, pieces) {
            Ok(()) => {
                if self.provided.len() <= task.index() {
                    self.provided.resize(task.index() + 1, None);
                }
                self.provided[task.index()] = Some((task, line, buffer));
                self.lines[line as usize].fetching += 1;
            }
            Err(error) => {
                desk.memory().unhold(buffer.lkey);
                desk.memory().free(buffer);
                self.sense(desk, format!("memory for a payload was refused: {error}"));
            }
        }
    }

    fn refuse(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        task: TaskId,
        (message, code): (u64, u32),
    ) {
        let at = desk.env.now();
        desk.ledger.take(at, Fact::TurnedAway { message, code });
        if let Err(error) = core.refuse(task, code) {
            self.sense(desk, format!("refusal was refused: {error}"));
        }
    }
}
