//! Many requests, several at a time; every one has exactly one outcome, whatever happens.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use xio_proto::{CommandError, ConnectOptions, ConnectionId, Event, Reason, SessionOpen};
use xio_verbs::{DeviceChoice, Driver, Options, Spin};

use crate::side::{Side, Sizes, Wish};

/// Options of the trials.
pub(crate) fn options(ip: IpAddr, spin: Spin) -> Options {
    Options {
        device: DeviceChoice::Address(ip),
        spin,
        // A sender that finds no receive fails at once, so that none can be missing unnoticed.
        rnr_retry_max: 0,
        ..Options::default()
    }
}

/// What became of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub(crate) answered: usize,
    pub(crate) failed: usize,
    /// Not even taken, as the connection was over.
    pub(crate) not_sent: usize,
    pub(crate) reason: Option<Reason>,
    /// The longest round trip.
    pub(crate) longest: Duration,
    /// Round trips that took as long as a stall, or longer.
    pub(crate) stalls: usize,
}

/// A client with one connection.
pub(crate) struct Load {
    pub(crate) side: Side,
    connection: ConnectionId,
    wish: Wish,
    total: usize,
    depth: usize,
    /// When each was sent; `None` once it has its outcome.
    sent: Vec<Option<Instant>>,
    out: usize,
    outcomes: Outcomes,
    /// How long to do nothing after an answer, drawn from this.
    think: u64,
    thinks_max: Duration,
    /// A round trip of this length is a stall.
    stall: Duration,
    /// It closes after so many answers, whatever is out.
    closes_at: Option<usize>,
    is_closing: bool,
}

impl Load {
    /// Connects from an address to a server.
    pub(crate) fn connect(
        ip: IpAddr,
        peer: SocketAddr,
        spin: Spin,
    ) -> Result<Self, Box<dyn Error>> {
        Self::connect_with(ip, peer, spin, Sizes::default())
    }

    /// As [`connect`](Self::connect), with more room or other times.
    pub(crate) fn connect_with(
        ip: IpAddr,
        peer: SocketAddr,
        spin: Spin,
        sizes: Sizes,
    ) -> Result<Self, Box<dyn Error>> {
        let mut side = Side::with_sizes(1, &options(ip, spin), sizes)?;
        let uri = format!("rdma://{peer}/load");
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        let mut connect = ConnectOptions::new(1);
        connect.local = Some(SocketAddr::new(ip, 0));
        let connection = side.driver.connect(peer, &open, &connect)?;
        Ok(Self {
            side,
            connection,
            wish: Wish::new(64, 64),
            total: 0,
            depth: 1,
            sent: Vec::new(),
            out: 0,
            outcomes: Outcomes::default(),
            think: 1,
            thinks_max: Duration::ZERO,
            stall: Duration::MAX,
            closes_at: None,
            is_closing: false,
        })
    }

    /// So many requests, so many at a time, of that kind.
    pub(crate) fn of(mut self, total: usize, depth: usize, wish: Wish) -> Self {
        (self.total, self.depth, self.wish) = (total, depth, wish);
        self
    }

    /// With pauses of up to so long between them.
    pub(crate) fn thinking(mut self, most: Duration) -> Self {
        self.thinks_max = most;
        self
    }

    /// Counting round trips of this length and more.
    pub(crate) fn counting(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// Closing after so many answers, with the others under way.
    pub(crate) fn closing_at(mut self, answers: usize) -> Self {
        self.closes_at = Some(answers);
        self
    }

    /// Runs to the end of the connection; `step` is called after each answer with their number.
    pub(crate) fn run(
        mut self,
        limit: Duration,
        mut step: impl FnMut(usize) -> Result<(), Box<dyn Error>>,
    ) -> Result<(Outcomes, Side), Box<dyn Error>> {
        let until = Instant::now() + limit;
        let mut is_open = true;
        while is_open {
            while let Some(event) = self.side.driver.next_event() {
                let before = self.outcomes.answered;
                is_open &= self.hear(event)?;
                if self.outcomes.answered != before {
                    step(self.outcomes.answered)?;
                }
            }
            if Instant::now() > until {
                return Err(format!("stuck: {:?} {:?}", self.outcomes, self.side.driver).into());
            }
            if is_open {
                match self.side.driver.poll(Some(Duration::from_secs(5))) {
                    Err(xio_verbs::Error::Removed) => break,
                    polled => polled?,
                };
            }
        }
        if self.out > 0 {
            return Err(format!("{} requests without an outcome", self.out).into());
        }
        self.outcomes.not_sent = self.total - self.sent.len();
        Ok((self.outcomes, self.side))
    }

    fn hear(&mut self, event: Event) -> Result<bool, Box<dyn Error>> {
        match event {
            Event::Established { .. } | Event::Writable { .. } => self.fill()?,
            Event::Response {
                task,
                user,
                data,
                buffers_returned,
                ..
            } => {
                let took = self.outcome(user)?;
                self.outcomes.answered += 1;
                self.outcomes.longest = self.outcomes.longest.max(took);
                self.outcomes.stalls += usize::from(took >= self.stall);
                self.side.compare(data, self.wish.answer, user)?;
                self.side.driver.release(task)?;
                if buffers_returned {
                    self.side.give_up(user)?;
                }
                self.pause();
                if self.closes_at == Some(self.outcomes.answered) {
                    self.close()?;
                }
                self.fill()?;
            }
            Event::Failed {
                user,
                buffers_returned,
                ..
            } => {
                self.outcome(user)?;
                self.outcomes.failed += 1;
                if buffers_returned {
                    self.side.give_up(user)?;
                }
            }
            Event::BuffersReturned { user, .. } => self.side.give_up(user)?,
            Event::ConnectFailed { reason, .. } => self.outcomes.reason = Some(reason),
            Event::Closed { reason, .. } => {
                self.outcomes.reason.get_or_insert(reason);
                return Ok(false);
            }
            Event::SessionClosed { .. } => {}
            other => return Err(format!("the client heard {other:?}").into()),
        }
        Ok(true)
    }

    /// Sends until enough are out.
    fn fill(&mut self) -> Result<(), Box<dyn Error>> {
        while self.out < self.depth && self.sent.len() < self.total {
            let user = self.sent.len() as u64;
            match self.side.ask(self.connection, self.wish, user) {
                Ok(_) => {}
                Err(error) => match error.downcast_ref::<CommandError>() {
                    Some(CommandError::Full(_) | CommandError::NoCredit) => {
                        self.side.give_up(user)?;
                        return Ok(());
                    }
                    // Its end is told by an event.
                    Some(CommandError::Closed(_)) => return Ok(self.side.give_up(user)?),
                    _ => return Err(error),
                },
            }
            self.sent.push(Some(Instant::now()));
            self.out += 1;
        }
        if self.out == 0 && self.sent.len() == self.total {
            self.close()?;
        }
        Ok(())
    }

    /// Closes, once.
    fn close(&mut self) -> Result<(), Box<dyn Error>> {
        if !std::mem::replace(&mut self.is_closing, true) {
            match self.side.driver.close(self.connection) {
                // The peer was first.
                Ok(()) | Err(CommandError::Unknown) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn outcome(&mut self, user: u64) -> Result<Duration, Box<dyn Error>> {
        let sent = self.sent.get_mut(user as usize).and_then(Option::take);
        let sent = sent.ok_or_else(|| format!("a second outcome of request {user}"))?;
        self.out -= 1;
        Ok(sent.elapsed())
    }

    /// Does nothing for a while, as a program would that has other things to do.
    fn pause(&mut self) {
        let most = self.thinks_max.as_nanos() as u64;
        if most == 0 {
            return;
        }
        self.think = self
            .think
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let until = Instant::now() + Duration::from_nanos((self.think >> 33) % most);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}
