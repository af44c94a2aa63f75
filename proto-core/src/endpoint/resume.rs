//! What a connection that is made anew tells its peer of the life before, and hears of it
//! (PROTOCOL.md 8.7).
//!
//! The client keeps what it sent and got no answer to, and asks before it sends anything else. The
//! server has the numbers of lives that were lost in the rows of their sessions, for as long as
//! those are not needed for others.

use super::Endpoint;
use super::reconnect::for_each_oldest_first;
use super::session::Keep;
use crate::entries::{Ending, Frames, Life, Past};
use crate::error::{Failure, Reason};
use crate::ids::NONE;
use crate::mutant::mutated;
use crate::state::connection::{Input, State};
use crate::state::session;
use crate::state::task::{Action as TaskAction, Input as TaskInput, State as TaskState};
use crate::storage::Storage;
use crate::tid;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{Extensions, Kind, Request, Response, Resume, Violation, What, status};

/// Where the numbers lie in a frame.
const TOKEN_AT: u32 = 28;
const NEXT_AT: u32 = 36;

fn unexpected(kind: Kind) -> Violation {
    Violation::new(What::UnexpectedKind, 4, kind.word().into())
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// What names a transport connection in a later life; 0 if the peer would not understand.
    fn token(&mut self, n: u32) -> u64 {
        if n == NONE || !self.nexus(n).can(Extensions::RESUME) {
            return 0;
        }
        Resume::token(self.nexus(n).agreement.check)
    }

    /// Who is at the other end, and in which of its lives; zeros if it does not say.
    fn life_of(&mut self, n: u32) -> (u64, u64) {
        if n == NONE || !self.nexus(n).can(Extensions::INCARNATION) {
            return (0, 0);
        }
        let agreement = &self.nexus(n).agreement;
        (agreement.identity, agreement.incarnation)
    }

    /// Client: whether the peer was started again between the life before and this one.
    fn note_restart(&mut self, c: u32) -> bool {
        let n = self.connection(c).nexus;
        let now = self.life_of(n);
        let Some(mut retry) = self.retry(c) else {
            return false;
        };
        let restarted = now.0 != 0 && now.0 == retry.identity && now.1 != retry.incarnation;
        if restarted {
            self.trace.mark("peer lives again");
            self.g.counters.restarts_seen += 1;
            retry.restarted = true;
            self.set_retry(c, &retry);
        }
        restarted
    }

    /// Client: an answer or receipt came.
    pub(crate) fn note_answered(&mut self, c: u32, serial: u64) {
        let t = self.connection(c).retry;
        if t != NONE {
            let row = self.task(t);
            row.kept_deadline = row.kept_deadline.max(serial.saturating_add(1));
        }
    }

    /// Client: a connection that was online is lost.
    pub(crate) fn remember_life(&mut self, c: u32) {
        let row = self.connection(c);
        // Lost again before the peer said anything: it is asked about the same life.
        let asked = row.frames.contains(Frames::RESUMING);
        let (n, session, sent, next) = (row.nexus, row.peer_session, row.serial, row.next_serial());
        let token = self.token(n);
        let Some(mut retry) = self.retry(c) else {
            return;
        };
        let answered = core::mem::take(&mut retry.answered);
        (retry.identity, retry.incarnation) = self.life_of(n);
        if !asked {
            retry.life = match token {
                0 => Life::NONE,
                token => Life {
                    token,
                    session,
                    sent,
                    next,
                    answered,
                },
            };
        }
        self.set_retry(c, &retry);
    }

    /// Client: nothing of the old life is out any more; what it sent waits for the peer's word.
    pub(crate) fn leave_parked(&mut self, c: u32) {
        let mut t = self.connection(c).tasks;
        while t != NONE {
            let row = self.task(t);
            if row.state == TaskState::Parked {
                row.nexus = NONE;
            }
            t = row.next;
        }
    }

    /// Client: a connection is there anew. The peer is asked what it got of the life before.
    pub(crate) fn begin_resume(&mut self, c: u32) {
        let restarted = self.note_restart(c);
        let n = self.connection(c).nexus;
        let lost = self.retry(c).map_or(0, |retry| retry.life.token);
        if lost == 0 {
            return;
        }
        self.connection(c).frames.insert(Frames::RESUMING);
        if restarted || self.token(n) == 0 {
            self.end_resume(c, None);
            return;
        }
        self.connection(c).frames.insert(Frames::RESUME_REQ);
        let timeout = self.g.config.setup_timeout;
        self.arm_after(Timer::Connection(c), timeout);
    }

    /// Client: what was sent in the life before goes its way. The peer got what is before `next`;
    /// `None`: it does not know, or says nothing.
    pub(crate) fn end_resume(&mut self, c: u32, next: Option<u64>) {
        let row = self.connection(c);
        if !row.frames.contains(Frames::RESUMING) {
            return;
        }
        row.frames.remove(Frames::RESUMING | Frames::RESUME_REQ);
        let (reason, online) = (row.reason, row.state == State::Online);
        if online {
            self.disarm(Timer::Connection(c));
        }
        if let Some(mut retry) = self.retry(c) {
            retry.life = Life::NONE;
            self.set_retry(c, &retry);
        }
        let less = u64::from(mutated!(self.g, ResumedOneMore));
        self.requeue_parked(c, next.map(|next| next.saturating_sub(less)));
        for_each_oldest_first!(self, c, t => {
            self.end_parked(t, reason);
        });
        self.mark_tx(c);
    }

    /// The peer may have taken it.
    fn end_parked(&mut self, t: u32, reason: Reason) {
        let parked = self.task(t).state == TaskState::Parked;
        if parked && self.task_input(t, TaskInput::Flush) == TaskAction::GiveUp {
            self.finish(t, Ending::Failed(Failure::Unknown(reason)));
        }
    }

    /// What goes into RESUME_REQ or RESUME_RSP.
    pub(crate) fn resume_said(&mut self, c: u32, kind: Kind) -> Resume {
        if kind == Kind::ResumeReq {
            let life = self.retry(c).map_or(Life::NONE, |retry| retry.life);
            return Resume {
                session: life.session,
                status: 0,
                token: life.token,
                next: life.next,
            };
        }
        let s = self.connection(c).session;
        let past = self.session(s).past;
        let (status, next) = match past.next {
            Past::UNKNOWN => (status::USER_OBJ_NOT_FOUND, 0),
            next => (0, next),
        };
        Resume {
            session: 0,
            status,
            token: past.sent,
            next,
        }
    }

    /// Server: a connection ends that did not part by FIN.
    pub(crate) fn record_life(&mut self, c: u32, from: State) {
        let row = self.connection(c);
        let (n, s) = (row.nexus, row.session);
        let (next, sent, silent) = (row.next_serial(), row.serial, row.silent);
        let token = self.token(n);
        if token == 0 || s == NONE || silent || !Self::receives(from) || self.session(s).client {
            return;
        }
        self.session(s).past = Past { token, next, sent };
    }

    /// Server: the life of a session on the transport connection of that token. If it goes on as far
    /// as this side knows, it ends now: nothing of it is taken any more.
    fn past_life(&mut self, session: u32, token: u64) -> Option<Past> {
        let (endpoint, s) = tid::split_session(session);
        let row = self.s.tables().sessions.get(s as usize)?;
        let here = endpoint == self.g.config.endpoint && row.own_id == session && !row.client;
        if !here || token & 1 == 0 {
            return None;
        }
        let live = row.state != session::State::Vacant;
        let mut c = if live { row.connections } else { NONE };
        while c != NONE {
            let row = self.connection(c);
            let (n, next, state) = (row.nexus, row.session_next, row.state);
            if Self::receives(state) && self.token(n) == token {
                self.trace.mark("earlier life ended by the next");
                let reason = Some(Reason::Disconnected);
                self.connection_input(c, Input::Lost, reason);
                break;
            }
            c = next;
        }
        let past = self.s.tables().sessions[s as usize].past;
        (past.token == token).then_some(past)
    }

    /// RESUME_REQ at the server.
    pub(crate) fn on_resume_request(
        &mut self,
        n: u32,
        request: &Request<'_>,
        asked: Resume,
    ) -> Result<Keep, Violation> {
        let word = request.kind.word().into();
        if !self.nexus(n).server || self.token(n) == 0 {
            return Err(unexpected(request.kind));
        }
        let Some(c) = self.session_connection(n, request.session.dest_session, request.kind)?
        else {
            return Ok(Keep::No);
        };
        let row = self.connection(c);
        if !Self::receives(row.state) || row.silent {
            self.g.counters.late += 1;
            return Ok(Keep::No);
        }
        row.heard = true;
        let (s, first) = (row.session, !row.any_serial);
        let opened = !row.frames.intersects(Frames::SETUP_RSP | Frames::HELLO_RSP);
        if !first || !opened || self.session(s).past != Past::NONE {
            // It is said once, before anything else.
            return Ok(self.break_session(c, What::UnexpectedKind, 4, word));
        }
        let past = self.past_life(asked.session, asked.token);
        if let Some(past) = past.filter(|past| asked.next > past.sent) {
            debug_assert!(past.is_life());
            return Ok(self.break_session(c, What::ResumeNext, NEXT_AT, asked.next));
        }
        self.session(s).past = Past {
            token: Past::ANSWER,
            next: past.map_or(Past::UNKNOWN, |past| past.next),
            sent: asked.token,
        };
        self.g.counters.resumes += u64::from(past.is_some());
        let row = self.connection(c);
        row.setup_rtid = request.head.ltid;
        row.frames.insert(Frames::RESUME_RSP);
        self.mark_tx(c);
        Ok(Keep::No)
    }

    /// RESUME_RSP at the client.
    pub(crate) fn on_resume_response(
        &mut self,
        n: u32,
        response: &Response<'_>,
        told: Resume,
    ) -> Result<Keep, Violation> {
        if self.nexus(n).server || self.token(n) == 0 {
            return Err(unexpected(response.kind));
        }
        let rtid = response.head.rtid;
        let Some(c) = self.awaiting(n, rtid, crate::entries::Awaited::RESUME)? else {
            return Ok(Keep::No);
        };
        let row = self.connection(c);
        row.heard = true;
        if !row.frames.contains(Frames::RESUMING) {
            // It was given up.
            self.g.counters.late += 1;
            return Ok(Keep::No);
        }
        let life = self.retry(c).map_or(Life::NONE, |retry| retry.life);
        if told.token != life.token {
            return Ok(self.break_session(c, What::ResumeLife, TOKEN_AT, told.token));
        }
        if told.status != 0 {
            self.trace.mark("earlier life not known to the peer");
            self.end_resume(c, None);
            return Ok(Keep::No);
        }
        if told.next > life.sent || told.next < life.answered {
            return Ok(self.break_session(c, What::ResumeNext, NEXT_AT, told.next));
        }
        self.trace.mark("earlier life resumed");
        self.g.counters.resumes += 1;
        self.end_resume(c, Some(told.next));
        Ok(Keep::No)
    }
}
