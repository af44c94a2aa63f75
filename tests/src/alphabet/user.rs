//! What users call.

use std::time::Duration;

use xio_proto::{
    Access, Applied, CommandError, ConnectOptions, Input, ListenOptions, Message, Reconnect,
    RemoteMemory, RequestOptions, Segment, SessionId, SessionOpen, SlotId, TaskId,
};
use xio_sim::check::{Class, Digest, Fact};

use super::net::Net;
use super::op::{Act, Dial, Kind, Shape, Wants};
use super::side::{Hold, Line, Published, address, pick};
use super::world::{Letter, World};

/// Bytes of the application header: the number, and what fills it.
pub(super) const HEADER: usize = 12;
/// Most data that is written into a slot.
pub(super) const IN_SLOT: usize = 600;
const URI: &str = "rdma://10.0.0.2:7000/x";

/// Pauses are short.
pub(super) const AGAIN: Reconnect = Reconnect {
    attempts_max: 3,
    give_up_after: None,
    first_delay: Duration::from_millis(2),
    max_delay: Duration::from_millis(8),
};

/// What a region holds: what is read from it can be known.
pub(super) fn pattern(number: u64, len: usize) -> Vec<u8> {
    let start = number.wrapping_mul(31) as usize;
    (start..start + len).map(|at| (at % 251) as u8).collect()
}

/// A message on its way into the endpoint.
struct Packed {
    number: u64,
    slot: SlotId,
    in_slot: usize,
    data: Vec<Segment>,
    digest: u64,
    blocks: Vec<u64>,
}

impl<N: Net> World<N> {
    /// A command: the endpoint knows what time it is, and one that is refused changes nothing.
    pub(super) fn command(&mut self, i: usize, input: &Input<'_>) -> Applied {
        let now = self.net.now(i);
        let net = &mut self.net;
        net.apply(i, &Input::Clock { now });
        let before = self.compares.then(|| net.state(i));
        let free = net.free_rows(i);
        let applied = net.apply(i, input);
        if let Some(error) = refusal(&applied) {
            // Who is told later that there is room is remembered.
            let waits = matches!(error, CommandError::Full(_) | CommandError::NoCredit);
            let same = waits || before.is_none_or(|before| before == net.state(i));
            let kept = !N::STILL || net.free_rows(i) == free;
            assert!(same && kept, "{input:?}: {error}, and something changed");
        }
        applied
    }

    /// What a user calls.
    pub(super) fn user(&mut self, i: usize, act: Act) {
        match act {
            Act::Listen => self.listen(i),
            Act::Unlisten => {
                if let Some(listener) = self.users[i].listener.take() {
                    self.command(i, &Input::Unlisten { listener });
                }
            }
            Act::Connect(dial) => self.connect(i, dial),
            Act::Accept(which, portals) => self.accept(i, which, portals),
            Act::Reject(which) | Act::Redirect(which) => self.turn_away(i, which, act),
            Act::Send(on, kind, shape, wants) => self.send(i, on, kind, shape, wants),
            Act::Answer(which, shape) => drop(self.answer(i, which, shape)),
            Act::Release(which) => {
                let all = self.users[i].held.len();
                if let Some(at) = usize::from(which).checked_rem(all) {
                    self.release(i, at);
                }
            }
            Act::Provide(which) => self.provide(i, which),
            Act::Refuse(which, code) => self.refuse(i, which, code),
            Act::Receipt(which, code) => self.receipt(i, which, code),
            Act::Cancel(which) => {
                let number = pick(&self.users[i].due, which);
                if let Some(task) = number.and_then(|number| self.letters[number as usize].task) {
                    self.command(i, &Input::Cancel { task });
                }
            }
            Act::Close(on) | Act::Abort(on) => self.end(i, on, matches!(act, Act::Abort(_))),
            Act::Stop(bound) => {
                let (now, bound) = (self.net.now(i), Duration::from_millis(bound.into()));
                self.users[i].stopping = true;
                self.users[i].listener = None;
                self.command(i, &Input::Stop { now, bound });
            }
            Act::Stale(which, what) => self.stale(i, which, what),
            _ => self.rare(i, act),
        }
    }

    fn rare(&mut self, i: usize, act: Act) {
        match act {
            Act::Reserve(on) => {
                if let Some((_, line)) = self.open_line(i, on) {
                    let connection = line.id;
                    let kept = self.command(i, &Input::ReserveSlot { connection });
                    if let Applied::Slot(Ok(slot)) = kept {
                        self.users[i].slots.push(slot);
                    }
                }
            }
            Act::Return(which) => {
                let all = self.users[i].slots.len();
                if let Some(at) = usize::from(which).checked_rem(all) {
                    let slot = self.users[i].slots.swap_remove(at);
                    self.must(i, &Input::ReturnSlot { slot });
                }
            }
            Act::Register => self.register(i),
            Act::Revoke(which) => {
                if let Some(region) = pick(&self.users[i].regions, which) {
                    self.revoke(i, region);
                }
            }
            Act::Direct(on, write, len) => self.direct(i, on, write, len),
            Act::Export(which) => {
                let expires = self.net.now(i).after(Duration::from_secs(1));
                if let Some(session) = pick(&self.users[i].sessions, which) {
                    let made = self.command(
                        i,
                        &Input::ExportSession {
                            session,
                            joins: 2,
                            expires,
                        },
                    );
                    if let Applied::Ticket(Ok(ticket)) = made {
                        self.users[i].tickets.push(ticket);
                    }
                }
            }
            Act::Import(which) => {
                // Tickets travel.
                let j = usize::from(which) % 2;
                let now = self.net.now(i);
                if let Some(ticket) = pick(&self.users[j].tickets, which / 2) {
                    let input = Input::ImportSession {
                        now,
                        ticket,
                        user: 7,
                    };
                    if let Applied::Session(Ok(session)) = self.command(i, &input) {
                        self.users[i].sessions.push(session);
                    }
                }
            }
            Act::Join(which) => self.join(i, which),
            other => unreachable!("{other:?} is no command"),
        }
    }

    /// A command that cannot be refused.
    pub(super) fn must(&mut self, i: usize, input: &Input<'_>) {
        let applied = self.command(i, input);
        let error = refusal(&applied);
        assert!(error.is_none(), "{input:?} was refused: {error:?}");
    }

    /// A connection that is not over.
    pub(super) fn open_line(&self, i: usize, on: u8) -> Option<(usize, Line)> {
        let lines = self.users[i].lines.iter().copied().enumerate();
        let open: Vec<_> = lines.filter(|(_, line)| !line.over).collect();
        pick(&open, on)
    }

    fn listen(&mut self, i: usize) {
        if self.users[i].listener.is_some() {
            return;
        }
        let input = Input::Listen {
            transport: self.net.transport(),
            address: address(i),
            options: ListenOptions {
                user: 1,
                backlog: 4,
            },
        };
        if let Applied::Listener(Ok(listener)) = self.command(i, &input) {
            self.users[i].listener = Some(listener);
        }
    }

    fn connect(&mut self, i: usize, dial: Dial) {
        let number = self.ledger.number_connection();
        let user = self.users[i].lines.len() as u64;
        let options = ConnectOptions {
            own_nexus: dial.own,
            reconnect: dial.again.then_some(AGAIN),
            ..ConnectOptions::new(user)
        };
        let input = Input::Connect {
            now: self.net.now(i),
            transport: self.net.transport(),
            peer: address(1 - i),
            setup: SessionOpen {
                uri: URI,
                private: &number.to_le_bytes(),
            },
            options,
        };
        if let Applied::Connection(Ok(id)) = self.command(i, &input) {
            self.opened(i, id, Some(2 * number));
        }
    }

    fn join(&mut self, i: usize, which: u8) {
        let Some(session) = pick(&self.users[i].sessions, which) else {
            return;
        };
        let number = self.ledger.number_connection();
        let user = self.users[i].lines.len() as u64;
        let input = Input::Join {
            now: self.net.now(i),
            session,
            transport: self.net.transport(),
            portal: address(1 - i),
            options: ConnectOptions::new(user),
        };
        if let Applied::Connection(Ok(id)) = self.command(i, &input) {
            self.opened(i, id, Some(2 * number));
        }
    }

    /// Takes a session out of those that ask; its client may have ended it meanwhile.
    fn guest(&mut self, i: usize, which: u8) -> Option<(SessionId, u32)> {
        let at = usize::from(which).checked_rem(self.users[i].asked.len())?;
        Some(self.users[i].asked[at])
    }

    fn gone(&mut self, i: usize, session: SessionId) {
        let asked = &mut self.users[i].asked;
        asked.retain(|(known, _)| *known != session);
    }

    pub(super) fn accept(&mut self, i: usize, which: u8, portals: bool) {
        let Some((session, number)) = self.guest(i, which) else {
            return;
        };
        // A client that was lost has heard so before its new life is accepted.
        while self.hear(1 - i) {}
        if !portals && !self.ledger.may_begin(2 * number + 1) {
            let is_sent_on = self.sent_on.contains(&number);
            assert!(is_sent_on, "the session of connection {number} came twice");
            return self.turn_away(i, which, Act::Reject(which));
        }
        let user = self.users[i].lines.len() as u64;
        let portal: &[&[u8]] = &[if i == 0 {
            b"rdma://10.0.0.1:7000"
        } else {
            b"rdma://10.0.0.2:7000"
        }];
        let input = Input::Accept {
            now: self.net.now(i),
            session,
            user,
            portals: &portal[..usize::from(portals)],
            private: &b"welcome"[..(number % 3) as usize],
        };
        match self.command(i, &input) {
            Applied::Connection(Ok(id)) if !portals => {
                let side = 2 * number + 1;
                self.opened(i, id, Some(side));
                self.gone(i, session);
            }
            // Try again.
            Applied::Connection(Err(CommandError::Full(_))) => {}
            _ => self.gone(i, session),
        }
    }

    fn turn_away(&mut self, i: usize, which: u8, act: Act) {
        let Some((session, number)) = self.guest(i, which) else {
            return;
        };
        if matches!(act, Act::Redirect(_)) {
            self.sent_on.push(number);
        }
        let now = self.net.now(i);
        let portals: &[&[u8]] = &[b"rdma://10.0.0.2:7000", b"rdma://10.0.0.1:7000"];
        let input = match act {
            Act::Redirect(_) => Input::Redirect {
                now,
                session,
                portals: &portals[..1 + usize::from(which & 1)],
            },
            _ => Input::Reject {
                now,
                session,
                reason: 5,
                private: b"no",
            },
        };
        let applied = self.command(i, &input);
        if !matches!(refusal(&applied), Some(CommandError::Full(_))) {
            self.gone(i, session);
        }
    }

    fn end(&mut self, i: usize, on: u8, at_once: bool) {
        let Some((at, line)) = self.open_line(i, on) else {
            return;
        };
        let (now, connection) = (self.net.now(i), line.id);
        let input = if at_once {
            self.aborted.push(line.side);
            // A server that turns it away has nobody to part with.
            self.speechless |= !line.up;
            Input::Abort { now, connection }
        } else {
            Input::Close { now, connection }
        };
        let error = refusal(&self.command(i, &input));
        // It ended meanwhile, of which its user is about to hear.
        self.hear_all();
        let is_well = error.is_none() || self.users[i].lines[at].over;
        assert!(is_well, "{input:?} was refused: {error:?}");
    }

    /// Writes a message; `None` when there is no slot for it.
    fn pack(
        &mut self,
        i: usize,
        line: &Line,
        class: Class,
        shape: Shape,
        request: Option<TaskId>,
    ) -> Option<Packed> {
        // One that came by HELLO is nobody's before its first message.
        let own = line.side?;
        let reserve = match request {
            Some(request) => Input::ReserveAnswerSlot { request },
            None => Input::ReserveSlot {
                connection: line.id,
            },
        };
        let Applied::Slot(Ok(slot)) = self.command(i, &reserve) else {
            return None;
        };
        let number = self.ledger.number_message(own, class);
        self.letters.push(Letter::new(i));
        let bytes = pattern(number, shape.len.into());
        let in_slot = match shape.pieces {
            0 if bytes.len() <= IN_SLOT => bytes.len(),
            3 => bytes.len().min(IN_SLOT) / 4,
            _ => 0,
        };
        let at = self.net.config(i).headroom();
        let room = &mut self.net.slot_mut(i, slot)[at..];
        room[..8].copy_from_slice(&number.to_le_bytes());
        room[8..HEADER].copy_from_slice(&[0x5a; HEADER - 8]);
        room[HEADER..HEADER + in_slot].copy_from_slice(&bytes[..in_slot]);
        let mut digest = Digest::new();
        digest.update(&[0x5a; HEADER - 8]);
        digest.update(&bytes);
        let rest = bytes[in_slot..].to_vec();
        let (mut data, mut blocks) = (Vec::new(), Vec::new());
        if !rest.is_empty() {
            let len = rest.len();
            let addr = self.net.put(i, rest);
            // Beside what lies in the slot, three are more than the device can gather.
            let beside = 1 + shape.len as usize % 3;
            let pieces = if in_slot > 0 {
                beside
            } else {
                shape.pieces.into()
            };
            data = self.net.cut(i, addr, len, pieces);
            blocks.push(addr);
        }
        Some(Packed {
            number,
            slot,
            in_slot,
            data,
            digest: digest.value(),
            blocks,
        })
    }

    /// The endpoint took it, or everything is the user's as before.
    fn packed(
        &mut self,
        i: usize,
        packed: Packed,
        task: Option<TaskId>,
        shape: Shape,
        wants: Wants,
    ) {
        let number = packed.number;
        let Some(task) = task else {
            let slot = packed.slot;
            self.must(i, &Input::ReturnSlot { slot });
            for addr in packed.blocks {
                self.net.free(i, addr);
            }
            return;
        };
        let deadline = self.deadline(i, wants);
        let at = self.net.at();
        let taken = Fact::Taken {
            message: number,
            digest: packed.digest,
            buffers: !packed.blocks.is_empty(),
            len: shape.len.into(),
            room: wants.room.into(),
            receipt: wants.receipt,
            // Users hear late here; whether it came in time is looked at by itself.
            deadline: None,
        };
        self.ledger.take(at, taken);
        let letter = &mut self.letters[number as usize];
        letter.task = Some(task);
        letter.blocks = packed.blocks;
        letter.deadline = deadline;
        self.users[i].due.push(number);
    }

    fn deadline(&self, i: usize, wants: Wants) -> Option<xio_proto::Instant> {
        let after = Duration::from_millis(wants.deadline.into());
        (!after.is_zero()).then(|| self.net.now(i).after(after))
    }

    fn send(&mut self, i: usize, on: u8, kind: Kind, shape: Shape, mut wants: Wants) {
        let class = match kind {
            Kind::Request => Class::Request,
            Kind::OneWay => Class::OneWay,
            Kind::Receipted => Class::Receipted,
        };
        if kind != Kind::Request {
            wants.receipt = kind == Kind::Receipted;
            wants.room = 0;
        }
        let Some((_, line)) = self.open_line(i, on) else {
            return;
        };
        let Some(mut packed) = self.pack(i, &line, class, shape, None) else {
            return;
        };
        let mut into = Vec::new();
        if wants.room > 0 {
            let len = usize::from(wants.room);
            let addr = self.net.put(i, vec![0; len]);
            into = self.net.cut(i, addr, len, 1 + usize::from(shape.prompt));
            packed.blocks.push(addr);
        }
        let message = Message {
            slot: Some(packed.slot),
            header_len: HEADER as u16,
            slot_data: packed.in_slot as u32,
            data: &packed.data,
            user: packed.number + 1,
            prompt: shape.prompt,
        };
        let options = RequestOptions {
            into: &into,
            receipt: wants.receipt,
            force_read: shape.apart && packed.in_slot == 0 && !packed.data.is_empty(),
            force_write: shape.apart && wants.room > 0,
            deadline: self.deadline(i, wants),
            last_in_batch: false,
            idempotent: wants.idempotent,
        };
        let connection = line.id;
        let input = match kind {
            Kind::Request => Input::Send {
                connection,
                message,
                options,
            },
            Kind::OneWay | Kind::Receipted => Input::SendOneWay {
                connection,
                message,
                options,
            },
        };
        let applied = self.command(i, &input);
        let task = task_of(&applied);
        if task.is_some() && wants.idempotent {
            let message = packed.number;
            let at = self.net.at();
            self.ledger.take(at, Fact::Idempotent { message });
        }
        self.packed(i, packed, task, shape, wants);
    }

    /// Answers a request in hand; says why it was refused, if it was.
    pub(super) fn answer(&mut self, i: usize, which: u8, mut shape: Shape) -> Option<CommandError> {
        let held = self.users[i].held.iter().copied().enumerate();
        let requests = held.filter(|(_, held)| matches!(held.hold, Hold::Request { .. }));
        let requests: Vec<_> = requests.collect();
        let (at, held) = pick(&requests, which)?;
        let (Hold::Request { number, room }, Some(line)) = (held.hold, held.line) else {
            return None;
        };
        if !shape.apart {
            // As much as there is room for; else some are refused.
            let most = if room == 0 { 400 } else { room as u16 };
            shape.len %= most + 1;
        }
        let (request, line) = (held.task, self.users[i].lines[line]);
        let class = Class::Response(number);
        let packed = self.pack(i, &line, class, shape, Some(request))?;
        let message = Message {
            slot: Some(packed.slot),
            header_len: HEADER as u16,
            slot_data: packed.in_slot as u32,
            data: &packed.data,
            user: packed.number + 1,
            prompt: shape.prompt,
        };
        let applied = self.command(i, &Input::Respond { request, message });
        let taken = matches!(applied, Applied::Command(Ok(()))).then_some(request);
        if taken.is_some() {
            self.users[i].held.swap_remove(at);
        }
        self.packed(i, packed, taken, shape, Wants::default());
        refusal(&applied)
    }

    pub(super) fn release(&mut self, i: usize, at: usize) {
        let held = self.users[i].held.swap_remove(at);
        if let Hold::Request { number, .. } = held.hold {
            // Its sender waits until the connection ends.
            self.letters[number as usize].ignored = true;
        }
        self.must(i, &Input::Release { task: held.task });
        self.forget_task(i, held.task);
    }

    pub(super) fn provide(&mut self, i: usize, which: u8) {
        let all = self.users[i].waiting.len();
        let Some(at) = usize::from(which).checked_rem(all) else {
            return;
        };
        let wait = self.users[i].waiting[at];
        let addr = self.net.put(i, vec![0; wait.len as usize]);
        let segments = self
            .net
            .cut(i, addr, wait.len as usize, 1 + usize::from(which & 1));
        let input = Input::Provide {
            task: wait.task,
            segments: &segments,
        };
        let error = refusal(&self.command(i, &input));
        if error.is_some() {
            self.net.free(i, addr);
        } else {
            match wait.own {
                Some(number) => self.letters[number as usize].blocks.push(addr),
                None => drop(self.users[i].given.insert(wait.task, addr)),
            }
        }
        if !matches!(error, Some(CommandError::Full(_))) {
            self.users[i].waiting.swap_remove(at);
        }
    }

    fn refuse(&mut self, i: usize, which: u8, code: u8) {
        let all = self.users[i].waiting.len();
        let Some(at) = usize::from(which).checked_rem(all) else {
            return;
        };
        let wait = self.users[i].waiting.swap_remove(at);
        let (task, status) = (wait.task, 1000 + u32::from(code));
        let applied = self.command(i, &Input::Refuse { task, status });
        if refusal(&applied).is_none() {
            let (message, code, at) = (wait.number, status, self.net.at());
            self.ledger.take(at, Fact::TurnedAway { message, code });
        }
    }

    fn receipt(&mut self, i: usize, which: u8, code: u8) {
        let held = pick(&self.users[i].held, which);
        let Some((task, Hold::Request { number, .. } | Hold::OneWay { number })) =
            held.map(|held| (held.task, held.hold))
        else {
            return;
        };
        let code = u32::from(code);
        let applied = self.command(i, &Input::SetReceipt { task, code });
        if refusal(&applied).is_none() {
            let (message, at) = (number, self.net.at());
            self.ledger.take(at, Fact::ReceiptSaid { message, code });
        }
    }

    fn register(&mut self, i: usize) {
        let len = 256;
        let addr = self.net.put(i, pattern(0, len));
        let input = Input::Register {
            transport: self.net.transport(),
            addr,
            len: len as u64,
            access: Access::all(),
            user: 9,
        };
        if let Applied::Region(Ok(id)) = self.command(i, &input) {
            self.users[i].regions.push(Published {
                id,
                addr,
                len: len as u32,
                rkey: None,
                revoking: false,
            });
        } else {
            self.net.free(i, addr);
        }
    }

    pub(super) fn revoke(&mut self, i: usize, region: Published) {
        let applied = self.command(i, &Input::Revoke { region: region.id });
        let regions = &mut self.users[i].regions;
        if refusal(&applied).is_none()
            && let Some(known) = regions.iter_mut().find(|known| known.id == region.id)
        {
            known.revoking = true;
        }
    }

    fn direct(&mut self, i: usize, on: u8, write: bool, len: u8) {
        let there = &self.users[1 - i].regions;
        let ready = there.iter().find(|region| region.rkey.is_some()).copied();
        let (Some(region), Some((_, line))) = (ready, self.open_line(i, on)) else {
            return;
        };
        let (Some(key), Some(own)) = (region.rkey, line.side) else {
            return;
        };
        let len = usize::from(len).max(1);
        let number = self.ledger.number_message(own, Class::Direct);
        self.letters.push(Letter::new(i));
        let bytes = if write { pattern(0, len) } else { vec![0; len] };
        let block = self.net.put(i, bytes);
        let local = self.net.cut(i, block, len, 1 + on as usize % 2);
        let remote = RemoteMemory {
            addr: region.addr,
            len: region.len.into(),
            key,
        };
        let (connection, user, deadline) = (line.id, number + 1, None);
        let local = local.as_slice();
        let input = if write {
            Input::Write {
                connection,
                local,
                remote,
                user,
                deadline,
            }
        } else {
            Input::Read {
                connection,
                local,
                remote,
                user,
                deadline,
            }
        };
        let applied = self.command(i, &input);
        let Some(task) = task_of(&applied) else {
            return self.net.free(i, block);
        };
        let at = self.net.at();
        let taken = Fact::Taken {
            message: number,
            digest: 0,
            buffers: true,
            len: len as u64,
            room: 0,
            receipt: false,
            deadline: None,
        };
        self.ledger.take(at, taken);
        let letter = &mut self.letters[number as usize];
        (letter.task, letter.direct) = (Some(task), true);
        letter.blocks.push(block);
        self.users[i].due.push(number);
    }

    /// Commands about what is over are refused, and change nothing.
    fn stale(&mut self, i: usize, which: u8, what: u8) {
        let user = &self.users[i];
        let at = usize::from(which);
        let old = |len: usize| at.checked_rem(len);
        let task = old(user.old_tasks.len()).map(|at| user.old_tasks[at]);
        let task = task.unwrap_or_else(|| TaskId::new(u32::from(which), u32::MAX));
        let over: Vec<_> = user.lines.iter().filter(|line| line.over).collect();
        let line = pick(&over, which).map(|line| line.id);
        let session = old(user.old_sessions.len()).map(|at| user.old_sessions[at]);
        let (now, message) = (self.net.now(i), Message::default());
        let input = match (what % 9, line, session) {
            (0, ..) => Input::Release { task },
            (1, ..) => Input::Respond {
                request: task,
                message,
            },
            (2, ..) => Input::Provide {
                task,
                segments: &[],
            },
            (3, ..) => Input::Refuse { task, status: 1 },
            (4, ..) => Input::SetReceipt { task, code: 1 },
            (5, Some(connection), _) => Input::SendOneWay {
                connection,
                message,
                options: RequestOptions::default(),
            },
            (6, Some(connection), _) => Input::Close { now, connection },
            (7, _, Some(session)) => Input::Accept {
                now,
                session,
                user: 3,
                portals: &[],
                private: &[],
            },
            _ => Input::ReturnSlot {
                slot: SlotId(1000 + u32::from(which)),
            },
        };
        let applied = self.command(i, &input);
        let error = refusal(&applied);
        assert!(error.is_some(), "{input:?} was taken, of what is over");
    }
}

fn task_of(applied: &Applied) -> Option<TaskId> {
    match *applied {
        Applied::Task(taken) => taken.ok(),
        _ => None,
    }
}

/// Why a command was refused, if it was.
pub(super) fn refusal(applied: &Applied) -> Option<CommandError> {
    match *applied {
        Applied::Command(Err(error))
        | Applied::Listener(Err(error))
        | Applied::Connection(Err(error))
        | Applied::Session(Err(error))
        | Applied::Ticket(Err(error))
        | Applied::Task(Err(error))
        | Applied::Slot(Err(error))
        | Applied::Region(Err(error)) => Some(error),
        _ => None,
    }
}
