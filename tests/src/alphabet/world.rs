//! Both users, and the model that judges what they hear.

use xio_proto::{CommandError, Input, Instant};
use xio_sim::check::Ledger;

use super::devices::Devices;
use super::net::Net;
use super::op::Shape;
use super::side::{Hold, User};

/// A message that somebody wanted to send, by its number.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) side: usize,
    pub(super) task: Option<xio_proto::TaskId>,
    /// Memory that goes with it, until it is back.
    pub(super) blocks: Vec<u64>,
    pub(super) deadline: Option<Instant>,
    /// Its receiver gave it back without an answer.
    pub(super) ignored: bool,
    /// A direct READ or WRITE.
    pub(super) direct: bool,
}

impl Letter {
    pub(super) const fn new(side: usize) -> Self {
        Self {
            side,
            task: None,
            blocks: Vec::new(),
            deadline: None,
            ignored: false,
            direct: false,
        }
    }
}

/// Two endpoints with their users, what they live in, and the model.
#[derive(Clone)]
pub struct World<N = Devices> {
    pub(super) net: N,
    pub(super) users: [User; 2],
    pub(super) ledger: Ledger,
    pub(super) letters: Vec<Letter>,
    /// Sides of connections that were aborted. The other side hears of it by keepalives only if others
    /// are on the same transport connection. One that came by HELLO may have no number yet.
    pub(super) aborted: Vec<Option<u32>>,
    /// Numbers of connections that were sent on: each portal that owes an answer may let them in.
    pub(super) sent_on: Vec<u32>,
    /// One may have left its transport connection without goodbye: it was aborted before it was up,
    /// or had no row for that when it was sent on.
    pub(super) speechless: bool,
    /// Commands that are refused are looked at closely, which takes time.
    pub(super) compares: bool,
}

impl<N: Net> World<N> {
    pub(super) fn of(net: N) -> Self {
        Self {
            net,
            users: Default::default(),
            ledger: Ledger::new(),
            letters: Vec::new(),
            aborted: Vec::new(),
            sent_on: Vec::new(),
            speechless: false,
            compares: false,
        }
    }

    /// Whatever has come is heard, in its order.
    pub(super) fn hear_all(&mut self) {
        while let Some(side) = self.net.waiting() {
            self.hear(side);
        }
    }

    /// Whether this side of a connection was aborted, or nobody knows.
    pub(super) fn may_be_aborted(&self, side: Option<u32>) -> bool {
        let known = side.is_some() && !self.aborted.contains(&None);
        !self.aborted.is_empty() && (!known || self.aborted.contains(&side))
    }

    /// Messages that users got.
    pub fn delivered(&self) -> u64 {
        self.ledger.delivered()
    }

    /// Users do what they are asked for.
    pub(super) fn serve(&mut self) {
        for i in 0..2 {
            for slot in std::mem::take(&mut self.users[i].slots) {
                self.must(i, &Input::ReturnSlot { slot });
            }
            for at in (0..self.users[i].asked.len()).rev() {
                self.accept(i, at as u8, false);
            }
            for at in (0..self.users[i].waiting.len()).rev() {
                self.provide(i, at as u8);
            }
            for at in (0..self.users[i].held.len()).rev() {
                if !matches!(self.users[i].held[at].hold, Hold::Request { .. }) {
                    self.release(i, at);
                }
            }
            for _ in 0..self.users[i].held.len() {
                match self.answer(i, 0, Shape::default()) {
                    // Nobody waits for it any more.
                    Some(CommandError::Closed(_)) => self.release(i, 0),
                    _ if self.users[i].held.is_empty() => break,
                    _ => self.users[i].held.rotate_left(1),
                }
            }
        }
    }

    /// What a user has and its endpoint is at, for complaints.
    pub(super) fn left(&self, i: usize) -> String {
        let (held, waiting) = (&self.users[i].held, &self.users[i].waiting);
        format!("{}, {held:?}, {waiting:?}", self.net.shown(i))
    }
}
