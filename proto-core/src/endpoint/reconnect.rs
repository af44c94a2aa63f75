//! Connections that are made anew when their transport is lost, for users that asked for it
//! (PROTOCOL.md 8.5).
//!
//! A lost connection parts from its transport connection as one that ends does, but for the requests
//! of which nothing was posted: those stay in its queue. When the device and the peer have let go of
//! everything, the user is told; from then on nothing of the old life is in the tables, and attempts
//! are made, each with a session of its own.

use core::net::SocketAddr;
use core::time::Duration;

use super::Endpoint;
use crate::config::{ConnectOptions, Reconnect};
use crate::entries::{Awaited, ConnectionEvents, Direct, Frames, Life, Nexus, Retry, TaskFlags};
use crate::error::{CommandError, Reason, Refusal, Resource};
use crate::ids::{NONE, TransportId};
use crate::mutant::mutated;
use crate::state::connection::{Input, State};
use crate::state::session;
use crate::state::task::{Action as TaskAction, Input as TaskInput, State as TaskState};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{Extensions, status};

/// Peers that are remembered as incompatible.
pub(crate) const INCOMPATIBLE_MAX: usize = 8;

/// A peer that cannot be talked to, why, and until when that is believed.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct Incompatible {
    pub(crate) peer: SocketAddr,
    pub(crate) reason: Reason,
    pub(crate) until: Instant,
}

impl Reconnect {
    /// The pause before attempt `attempt` (from 0) of connection `salt`: the first delay doubled
    /// with each attempt up to the longest, and of that between a half and all, as `seed` says
    /// (PROTOCOL.md 8.5).
    #[must_use]
    pub fn delay(&self, seed: u64, salt: u64, attempt: u32) -> Duration {
        let factor = 1u32.checked_shl(attempt).unwrap_or(u32::MAX);
        let full = self.first_delay.saturating_mul(factor).min(self.max_delay);
        let nanos = u64::try_from(full.as_nanos()).unwrap_or(u64::MAX);
        let half = nanos / 2;
        let random = mix(seed ^ mix(salt) ^ u64::from(attempt));
        Duration::from_nanos(nanos - half + random % (half + 1))
    }
}

/// Spreads a counter over all numbers (the finalizer of SplitMix64).
const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Whether the peer may answer otherwise the next time.
const fn passes(code: u32) -> bool {
    matches!(
        code,
        status::NO_BUFS | status::TIMEOUT | status::IN_PROGRESS | status::SESSION_REFUSED
    )
}

/// Whether the peer would have to be another one.
const fn is_final(why: Refusal) -> bool {
    matches!(
        why,
        Refusal::Version { .. } | Refusal::BufferSize { .. } | Refusal::Depth { .. }
    )
}

/// Whether it is worth trying again after this.
const fn transient(reason: Reason) -> bool {
    match reason {
        Reason::Disconnected
        | Reason::Refused
        | Reason::Unreachable(_)
        | Reason::AddressError(_)
        | Reason::RouteError(_)
        | Reason::ConnectError(_)
        | Reason::TimedOut(_)
        | Reason::WorkFailed(_)
        | Reason::PostFailed(_)
        | Reason::DriverFailed(_)
        | Reason::DeviceRemoved
        | Reason::PeerRestarted { .. }
        | Reason::NoResources { .. } => true,
        Reason::Rejected(code) | Reason::SetupRefused(code) => passes(code),
        Reason::TurnedAway(why) => !is_final(why),
        _ => false,
    }
}

/// A connection that ends when it is lost.
const NO_RECONNECT: Reconnect = Reconnect {
    attempts_max: 0,
    give_up_after: None,
    first_delay: Duration::ZERO,
    max_delay: Duration::ZERO,
};

impl Nexus {
    /// Whether a peer that answers its first words so is one that cannot be talked to.
    pub(crate) const fn shows_incompatible(reason: Option<Reason>) -> bool {
        match reason {
            Some(Reason::SetupRefused(code)) => !passes(code),
            Some(Reason::TurnedAway(why)) => is_final(why),
            Some(Reason::Violation(_)) => true,
            _ => false,
        }
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// What a connection needs to know to be made anew, or to call again after a lost race.
    pub(crate) fn keep_for_retry(
        &mut self,
        c: u32,
        transport: TransportId,
        peer: SocketAddr,
        options: &ConnectOptions,
    ) {
        let again = options.reconnect;
        let Some(policy) = again.or_else(|| options.only_with.map(|_| NO_RECONNECT)) else {
            return;
        };
        let retry = Retry {
            policy,
            transport: transport.0,
            peer,
            local: options.local,
            own_nexus: options.own_nexus,
            dual_stream: options.dual_stream,
            attempts: 0,
            backoff: 0,
            told: false,
            booked: false,
            at: Instant::ZERO,
            answered: 0,
            life: Life::NONE,
            identity: 0,
            incarnation: 0,
            restarted: false,
        };
        let tables = self.s.tables();
        let Some(t) = self.g.tasks.take(tables.tasks) else {
            unreachable!("room was checked before");
        };
        Retry::begin(&mut tables.tasks[t as usize]);
        tables.connections[c as usize].retry = t;
        self.set_retry(c, &retry);
    }

    /// What it remembers, if it is made anew when it is lost.
    pub(crate) fn retry(&mut self, c: u32) -> Option<Retry> {
        let t = self.connection(c).retry;
        (t != NONE).then(|| Retry::load(self.task(t)))
    }

    pub(crate) fn set_retry(&mut self, c: u32, retry: &Retry) {
        let t = self.connection(c).retry;
        retry.store(self.task(t));
    }

    /// It is over, and so is what it remembers.
    pub(crate) fn forget_retry(&mut self, c: u32) {
        let t = core::mem::replace(&mut self.connection(c).retry, NONE);
        if t != NONE {
            self.task(t).state = TaskState::Vacant;
            self.give_task(t);
            self.wake_blocked();
        }
    }

    /// Whether a connection that is lost for this reason is made anew.
    pub(crate) fn retries(&mut self, c: u32, reason: Reason) -> bool {
        let now = self.g.now;
        let more = u32::from(mutated!(self.g, OneAttemptMore));
        let row = self.connection(c);
        let state = row.state;
        let again = row.reported_up;
        let Some(retry) = self.retry(c) else {
            return false;
        };
        match state {
            State::Online => transient(reason) && retry.policy.attempts_max > 0,
            State::Opening | State::SetupSent | State::HelloSent => {
                let late = |after| now >= retry.at.after(after);
                let over = retry.attempts >= retry.policy.attempts_max.saturating_add(more)
                    || retry.policy.give_up_after.is_some_and(late);
                again && transient(reason) && !over
            }
            _ => false,
        }
    }

    /// A connection is lost: it is made anew if its user wants that, and otherwise ends.
    pub(crate) fn lose(&mut self, c: u32, input: Input, reason: Reason) {
        if !self.retries(c, reason) {
            self.connection_input(c, input, Some(reason));
            return;
        }
        // It is why the connection will have ended if no attempt succeeds.
        self.connection(c).reason = reason;
        self.connection_input(c, Input::Retry, None);
    }

    /// The table's action: off the transport connection, with all messages but those that were
    /// never posted.
    pub(crate) fn part(&mut self, c: u32, from: State) {
        let now = self.g.now;
        self.disarm(Timer::Connection(c));
        self.disarm(Timer::Keepalive(c));
        if from == State::Online {
            self.remember_life(c);
        }
        let row = self.connection(c);
        row.frames = Frames::empty();
        row.awaited = Awaited::empty();
        let (n, reason) = (row.nexus, row.reason);
        if from == State::Online
            && let Some(mut retry) = self.retry(c)
        {
            if now >= retry.at.after(retry.policy.max_delay) {
                retry.backoff = 0;
            }
            // Attempts count from when the user hears of the loss: it may still have to hear after
            // how many the life that is lost now began.
            (retry.told, retry.at) = (false, now);
            self.set_retry(c, &retry);
        }
        if from != State::Online {
            self.forget_answer(c);
        }
        self.drop_portals(c);
        if n != NONE {
            self.nexus(n).late_allowed = true;
        }
        self.leave_nexus(c);
        // Nothing below may settle it before all of it is done.
        self.connection(c).held += 1;
        self.part_tasks(c, reason);
        self.reclaim_from_peer(c);
        if n != NONE {
            self.end_unused(n, reason);
        }
        self.connection(c).held -= 1;
        self.settle(c);
    }

    /// What the server said to an attempt that failed afterwards is not told.
    fn forget_answer(&mut self, c: u32) {
        let row = self.connection(c);
        row.events.remove(ConnectionEvents::PORTALS);
        let untold = core::mem::replace(&mut row.setup_task, NONE);
        self.drop_portals(c);
        if untold != NONE {
            self.drop_incoming(untold);
        }
    }

    fn part_tasks(&mut self, c: u32, reason: Reason) {
        self.flush_withdrawn(c);
        loop {
            let tables = self.s.tables();
            let row = &mut tables.connections[c as usize];
            if row.rsp_head == NONE {
                break;
            }
            let t = queue_pop!(tables.tasks, row.rsp_head, row.rsp_tail, queue_next);
            tables.tasks[t as usize].flags.remove(TaskFlags::QUEUED);
            self.try_free(t);
        }
        self.drop_begun(c);
        let n = self.connection(c).nexus;
        let asks = n != NONE && self.nexus(n).can(Extensions::RESUME);
        for_each_oldest_first!(self, c, t => {
            let row = self.task(t);
            let whole = row.direct == Direct::No;
            let kept = asks && row.flags.contains(TaskFlags::KEPT);
            let repeat = kept || row.flags.contains(TaskFlags::IDEMPOTENT);
            let waits = row.flags.contains(TaskFlags::QUEUED);
            let stays = whole && !mutated!(self.g, QueuedDropped);
            let row = self.task(t);
            match row.state {
                TaskState::Queued if stays => {}
                TaskState::Parked => {}
                TaskState::Ended if waits && row.nexus == NONE => {}
                TaskState::Sent if whole && repeat => self.park(t),
                _ => self.end_task(t, reason),
            }
        });
        self.release_held(c);
    }

    /// READs and WRITEs by the user's own addresses leave the queue: what those addresses mean to a
    /// peer that was started anew is not known. So do those of which a part is posted.
    fn drop_begun(&mut self, c: u32) {
        let mut t = self.connection(c).req_head;
        while t != NONE {
            let row = self.task(t);
            let (next, direct) = (row.queue_next, row.direct);
            if direct != Direct::No {
                self.leave_requests(c, t);
                self.try_free(t);
            }
            t = next;
        }
    }

    /// A message that may be sent again waits until nobody touches it any more.
    fn park(&mut self, t: u32) {
        if self.task_input(t, TaskInput::Keep) != TaskAction::Park {
            return;
        }
        let row = self.task(t);
        let c = row.connection;
        if row.work > 0 || row.flags.contains(TaskFlags::PEER_HOLDS) {
            row.flags.insert(TaskFlags::LINGERS);
            self.connection(c).held += 1;
        }
    }

    /// The table's action when everything of the old life is back.
    pub(crate) fn await_retry(&mut self, c: u32) {
        let retry = self.retry(c);
        if retry.is_some_and(|retry| retry.life.token != 0) {
            self.leave_parked(c);
        } else {
            self.requeue_parked(c, None);
        }
        if retry.is_some_and(|retry| retry.told) {
            self.leave_session(c);
            self.next_attempt(c);
        } else {
            self.connection_event(c, ConnectionEvents::LOST);
        }
    }

    /// Messages that are sent again go before those that were never sent, in their old order: those
    /// that are idempotent, and those from serial number `next` on, which the peer never got.
    pub(crate) fn requeue_parked(&mut self, c: u32, next: Option<u64>) {
        // The youngest is first in the list.
        let mut t = self.connection(c).tasks;
        while t != NONE {
            let row = self.task(t);
            let (state, serial, flags, older) = (row.state, row.serial, row.flags, row.next);
            let never = next.is_some_and(|next| serial >= next);
            if state == TaskState::Parked && (never || flags.contains(TaskFlags::IDEMPOTENT)) {
                self.requeue(c, t, !never);
            }
            t = older;
        }
    }

    fn requeue(&mut self, c: u32, t: u32, repeated: bool) {
        self.task_input(t, TaskInput::Requeue);
        let tables = self.s.tables();
        let row = &mut tables.connections[c as usize];
        let task = &mut tables.tasks[t as usize];
        task.nexus = NONE;
        task.flags.insert(TaskFlags::QUEUED);
        if repeated {
            task.flags.insert(TaskFlags::REPEATED);
        } else {
            self.trace.mark("request of an earlier life sent again");
        }
        if task.flags.contains(TaskFlags::RECEIPT_DONE) {
            // The user has had its receipt.
            task.flags.remove(TaskFlags::RECEIPT_DONE);
            let repeated = mutated!(self.g, ReceiptRepeated);
            task.flags.set(TaskFlags::RECEIPT, repeated);
        }
        if mutated!(self.g, RepeatedOutOfOrder) {
            queue_push!(tables.tasks, row.req_head, row.req_tail, queue_next, t);
        } else {
            task.queue_next = row.req_head;
            if row.req_head == NONE {
                // The end of an empty queue is whatever left it last.
                row.req_tail = t;
            }
            row.req_head = t;
        }
    }

    /// The user has heard of the loss, and before that of everything that it cost.
    pub(crate) fn heard_of_loss(&mut self, c: u32) {
        if self.connection(c).state != State::Waiting {
            return;
        }
        if let Some(mut retry) = self.retry(c) {
            (retry.attempts, retry.told) = (0, true);
            self.set_retry(c, &retry);
        }
        self.leave_session(c);
        self.next_attempt(c);
    }

    pub(crate) fn leave_session(&mut self, c: u32) {
        let row = self.connection(c);
        let (s, n) = (row.session, row.nexus);
        debug_assert_eq!(
            n, NONE,
            "a connection that waits is on no transport connection"
        );
        if s == NONE {
            return;
        }
        self.detach_session(c, s);
        if self.session(s).connection_count == 0 {
            self.session_input(s, session::Input::LastGone);
        }
    }

    /// Sets the time of the next attempt, unless there is none left.
    fn next_attempt(&mut self, c: u32) {
        let (seed, now) = (self.g.config.seed, self.g.now);
        let more = u32::from(mutated!(self.g, OneAttemptMore));
        let hurried = mutated!(self.g, PauseSkipped);
        let row = self.connection(c);
        let (reason, salt) = (row.reason, u64::from(c) << 32 | u64::from(row.generation));
        let Some(mut retry) = self.retry(c) else {
            unreachable!("only what is made anew waits for it");
        };
        let pause = retry.policy.delay(seed, salt, retry.backoff);
        let at = if hurried { now } else { now.after(pause) };
        let late = |after| at > retry.at.after(after);
        let over = retry.attempts >= retry.policy.attempts_max.saturating_add(more)
            || retry.policy.give_up_after.is_some_and(late);
        if over {
            self.connection_input(c, Input::Lost, Some(reason));
            return;
        }
        retry.backoff = retry.backoff.saturating_add(1);
        self.set_retry(c, &retry);
        self.arm(Timer::Connection(c), at);
    }

    /// The pause is over: tries, unless the endpoint as a whole tries too often.
    pub(crate) fn retry_due(&mut self, c: u32) {
        let now = self.g.now;
        let rate = u64::from(self.g.config.reconnects_per_second);
        let free = self.g.attempt_at;
        let Some(mut retry) = self.retry(c) else {
            unreachable!("only what is made anew waits for it");
        };
        let booked = core::mem::take(&mut retry.booked);
        if !booked && !mutated!(self.g, AttemptsUnbounded) {
            let at = now.max(free);
            self.g.attempt_at = at.after(Duration::from_nanos(1_000_000_000 / rate));
            if at > now {
                self.trace.mark("attempt waited for others");
                retry.booked = true;
                self.set_retry(c, &retry);
                self.arm(Timer::Connection(c), at);
                return;
            }
        }
        retry.attempts += 1;
        self.set_retry(c, &retry);
        self.attempt(c, &retry);
    }

    fn attempt(&mut self, c: u32, retry: &Retry) {
        let (transport, peer) = (TransportId(retry.transport), retry.peer);
        let options = ConnectOptions {
            local: retry.local,
            dual_stream: retry.dual_stream,
            own_nexus: retry.own_nexus,
            user: self.connection(c).user,
            reconnect: None,
            only_with: None,
        };
        if let Some(reason) = self.known_incompatible(peer) {
            self.trace.mark("incompatible peer not tried");
            self.connection_input(c, Input::Lost, Some(reason));
            return;
        }
        self.g.counters.reconnect_attempts += 1;
        if let Err(what) = self.begin_anew(c, transport, peer, &options) {
            self.trace.mark("no row for an attempt");
            let (need, have) = (1, 0);
            self.connection(c).reason = Reason::NoResources { what, need, have };
            self.next_attempt(c);
        }
    }

    /// A session of its own for the next attempt.
    pub(crate) fn begin_anew(
        &mut self,
        c: u32,
        transport: TransportId,
        peer: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<(), Resource> {
        let s = self.take_session_row().ok_or(Resource::Sessions)?;
        let shared = self.shared_with(s, transport, peer, options);
        let n = match shared.map_or_else(|| self.open_nexus(transport, peer, options), Ok) {
            Ok(n) => n,
            Err(error) => {
                self.give_session(s);
                return Err(match error {
                    CommandError::Full(what) => what,
                    _ => Resource::Nexuses,
                });
            }
        };
        let again = self.connection(c).state == State::Waiting;
        self.connection(c).start_anew();
        self.attach_nexus(c, n);
        let session = self.session(s);
        session.client = true;
        // The user hears of it when the connection is there, unless it never was.
        session.hidden = again;
        session.user = options.user;
        self.session_input(s, session::Input::Connect);
        self.attach_session(c, s);
        let input = if again { Input::Again } else { Input::Race };
        self.connection_input(c, input, None);
        self.up_if_online(c);
        Ok(())
    }

    /// The server's user, or the server itself, said no to an attempt.
    pub(crate) fn refused(&mut self, c: u32, reason: Reason) {
        if !self.retries(c, reason) {
            self.connection_input(c, Input::Refused, Some(reason));
            return;
        }
        self.trace.mark("attempt refused for now");
        let n = self.connection(c).nexus;
        // Another takes leave of the server, which awaits it.
        self.say_goodbye(c, n);
        self.lose(c, Input::Lost, reason);
    }

    fn known_incompatible(&mut self, peer: SocketAddr) -> Option<Reason> {
        let now = self.g.now;
        let list = &mut self.g.incompatible;
        list.retain(|entry| entry.until > now);
        let found = list.iter().find(|entry| entry.peer == peer);
        found.map(|entry| entry.reason)
    }

    /// The peer's first words show that it cannot be talked to.
    pub(crate) fn remember_incompatible(&mut self, n: u32, reason: Reason) {
        let row = self.nexus(n);
        let (peer, server) = (row.peer, row.server);
        if server {
            return;
        }
        self.forget_incompatible(n);
        let until = self.g.now.after(self.g.config.incompatible_time);
        if self.g.incompatible.is_full() {
            self.g.incompatible.remove(0);
        }
        let entry = Incompatible {
            peer,
            reason,
            until,
        };
        self.g.incompatible.push(entry);
    }

    /// The peer can be talked to.
    pub(crate) fn forget_incompatible(&mut self, n: u32) {
        let peer = self.nexus(n).peer;
        self.g.incompatible.retain(|entry| entry.peer != peer);
    }
}

/// Walks a connection's messages, the oldest first; the body may end or free the one it is given.
macro_rules! for_each_oldest_first {
    ($self:ident, $c:ident, $t:ident => $body:block) => {{
        // The youngest is first in the list.
        let mut $t = $self.connection($c).tasks;
        while $t != NONE && $self.task($t).next != NONE {
            $t = $self.task($t).next;
        }
        while $t != NONE {
            let younger = $self.task($t).prev;
            $body
            $t = younger;
        }
    }};
}
pub(crate) use for_each_oldest_first;
