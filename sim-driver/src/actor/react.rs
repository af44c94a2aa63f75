//! What is done about what the endpoint tells.

use xio_proto::{CommandError, Data, SessionId, SlotId, Slots, Span, TaskId};

use super::{Actor, Due, ID_BITS};
use crate::check::{Class, Fact, Outcome};
use crate::driver::{Core, Desk};
use crate::memory::Rights;

impl Actor {
    pub(super) fn session_request(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        session: SessionId,
        private: Span,
    ) {
        let memory = &desk.env.memory[desk.number as usize];
        let bytes = private.of(memory.slot(SlotId(private.slot)));
        let Some(&[a, b, c, d, closes, _, e, f]) = bytes.first_chunk::<8>() else {
            let text = format!("private data of {} bytes", bytes.len());
            self.sense(desk, text);
            return;
        };
        if self.rng.chance(self.mix.reject) {
            let slots = &mut desk.env.memory[desk.number as usize];
            if core
                .reject(desk.now, session, 17, b"not today", slots)
                .is_ok()
            {
                return;
            }
        }
        let side = u32::from_le_bytes([a, b, c, d]) ^ 1;
        let line = self.open(side, None);
        let l = &mut self.lines[line as usize];
        l.left = u16::from_le_bytes([e, f]).into();
        l.closes = closes != 0;
        l.peer_sends = true;
        self.accept(core, desk, session, line);
    }

    pub(super) fn accept(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        session: SessionId,
        line: u32,
    ) {
        let slots = &mut desk.env.memory[desk.number as usize];
        let accepted = core.accept(desk.now, session, line.into(), &[], b"", slots);
        let at = desk.env.now();
        match accepted {
            Ok(id) => {
                let l = &mut self.lines[line as usize];
                l.id = Some(id);
                desk.ledger.take(at, Fact::Opened { side: l.side });
            }
            Err(CommandError::Full(_)) => {
                self.waiting.push((session, line));
                self.wake(desk, at + 1_000_000);
            }
            // The client is gone already.
            Err(_) => self.lines[line as usize].over = true,
        }
    }

    pub(super) fn received(
        &mut self,
        core: &mut Core,
        desk: &mut Desk<'_>,
        line: u32,
        task: TaskId,
        header: Span,
        data: &Data,
    ) -> u64 {
        let (message, last, digest) = Self::digest_of(core, desk, header, data);
        let side = self.lines[line as usize].side;
        let at = desk.env.now();
        let delivered = Fact::Delivered {
            message,
            side,
            digest,
        };
        desk.ledger.take(at, delivered);
        self.free_provided(desk, task);
        self.lines[line as usize].peer_done |= last;
        message
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

    /// Answers a request, or gives it back when that is not possible any more.
    pub(super) fn respond(&mut self, core: &mut Core, desk: &mut Desk<'_>, due: Due) {
        let Some(id) = self.lines[due.line as usize].id else {
            return;
        };
        if self.rng.chance(self.mix.ignore) {
            self.give_up(core, desk, due.task);
            return;
        }
        let side = self.lines[due.line as usize].side;
        let class = Class::Response(due.request);
        let room = if due.room == 0 { u64::MAX } else { due.room };
        let parcel = match self.pack(core, desk, id, side, class, room, false, Some(due.task)) {
            Ok(parcel) => parcel,
            Err(CommandError::Full(_)) => {
                self.put_off(desk, due);
                return;
            }
            Err(_) => {
                self.give_up(core, desk, due.task);
                return;
            }
        };
        let (message, cargo) = self.load(due.line, &parcel);
        match core.respond(due.task, &message) {
            Ok(()) => {
                self.lines[due.line as usize].out += 1;
                self.taken(desk, &parcel);
            }
            Err(error) => {
                self.unload(core, desk, &parcel, cargo);
                match error {
                    CommandError::Full(_) | CommandError::NoCredit => self.put_off(desk, due),
                    CommandError::TooLong { .. } => {
                        self.put_off(desk, Due { room: 1, ..due });
                    }
                    CommandError::Closed(_) => self.give_up(core, desk, due.task),
                    other => self.sense(desk, format!("an answer was refused: {other}")),
                }
            }
        }
    }

    pub(super) fn put_off(&mut self, desk: &mut Desk<'_>, due: Due) {
        let at = desk.env.now() + 100_000;
        self.due.push_front(Due { at, ..due });
        self.wake(desk, at);
    }

    pub(super) fn give_up(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId) {
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
        let (message, _, digest) = Self::digest_of(core, desk, header, data);
        let request = user & ((1 << ID_BITS) - 1);
        let at = desk.env.now();
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
                digest,
            };
            desk.ledger.take(at, delivered);
        }
        self.give_up(core, desk, task);
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
        let message = user & ((1 << ID_BITS) - 1);
        let cargo = (user >> ID_BITS) as u32 - 1;
        let at = desk.env.now();
        let ended = Fact::Ended {
            message,
            outcome,
            returned,
        };
        desk.ledger.take(at, ended);
        let Some(line) = self.cargo.get(cargo).map(|cargo| cargo.line) else {
            self.sense(desk, format!("message {message} ended and was gone"));
            return;
        };
        let own = desk.ledger.answers(message).is_none();
        let l = &mut self.lines[line as usize];
        l.out -= 1;
        l.own_out -= u32::from(own);
        if returned {
            self.free_provided(desk, task);
            self.give_back(desk, cargo);
        }
        self.pump(core, desk, line);
    }

    pub(super) fn closed(&mut self, core: &mut Core, desk: &mut Desk<'_>, line: u32) {
        let l = &mut self.lines[line as usize];
        l.over = true;
        let side = l.side;
        let at = desk.env.now();
        desk.ledger.take(at, Fact::Closed { side });
        // What the user still holds can no longer be answered.
        let mut due = core::mem::take(&mut self.due);
        for due in due.iter().filter(|due| due.line == line) {
            self.give_up(core, desk, due.task);
        }
        due.retain(|due| due.line != line);
        self.due = due;
    }

    pub(super) fn provide(&mut self, core: &mut Core, desk: &mut Desk<'_>, task: TaskId, len: u64) {
        let buffer = desk.memory().allocate(len as u32, Rights::LOCAL_WRITE);
        let Some(buffer) = buffer else {
            if let Err(error) = core.refuse(task, 12) {
                self.sense(desk, format!("refusal was refused: {error}"));
            }
            return;
        };
        desk.memory().hold(buffer.lkey);
        match core.provide(task, &[buffer.segment()]) {
            Ok(()) => {
                if self.provided.len() <= task.index() {
                    self.provided.resize(task.index() + 1, None);
                }
                self.provided[task.index()] = Some((task, buffer));
            }
            Err(error) => {
                desk.memory().unhold(buffer.lkey);
                desk.memory().free(buffer);
                self.sense(desk, format!("memory for a payload was refused: {error}"));
            }
        }
    }
}
