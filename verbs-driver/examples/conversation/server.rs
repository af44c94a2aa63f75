//! A server in a thread of its own, which knows what it has seen: every request once, one outcome
//! for every answer, nothing left at the end.

use std::collections::HashSet;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use xio_proto::{CommandError, ConnectionId, Event, ListenOptions, TaskId};
use xio_verbs::{Driver, Options, Spin, Stats, Waker};

use crate::check;
use crate::load::options;
use crate::side::{Side, Sizes, Wish};

/// What a session is refused with.
pub(crate) const REFUSAL: (u32, &[u8]) = (77, b"every second one is refused");

/// How long connections may take to end once they should.
const ENDS_MAX: Duration = Duration::from_secs(40);

/// What a server does beside answering.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Manner {
    /// It refuses every second session.
    pub(crate) refuses: bool,
    /// It closes a connection when this request of it comes.
    pub(crate) closes_at: Option<u64>,
}

/// What a server did, and how much of it is open still.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    pub(crate) stats: Stats,
    pub(crate) sessions: usize,
    pub(crate) connections: u64,
    pub(crate) requests: usize,
    /// Answers that were sent, and that failed.
    pub(crate) sent: usize,
    pub(crate) failed: usize,
    open: HashSet<ConnectionId>,
    /// Requests that came, by connection and number.
    seen: HashSet<(u64, u64)>,
    /// Answers without an outcome.
    out: HashSet<u64>,
}

/// A server that runs.
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    waker: Waker,
    stop: Sender<()>,
    thread: JoinHandle<Result<Served, String>>,
    /// Requests that came.
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// Listens on a free port.
    pub(crate) fn start(ip: IpAddr, spin: Spin) -> Result<Self, Box<dyn Error>> {
        Self::start_at((ip, 0).into(), options(ip, spin), Sizes::default())
    }

    /// Listens there.
    pub(crate) fn start_at(
        address: SocketAddr,
        options: Options,
        sizes: Sizes,
    ) -> Result<Self, Box<dyn Error>> {
        Self::with_manner(address, options, sizes, Manner::default())
    }

    /// Listens there, and behaves like that.
    pub(crate) fn with_manner(
        address: SocketAddr,
        options: Options,
        sizes: Sizes,
        manner: Manner,
    ) -> Result<Self, Box<dyn Error>> {
        let (tell, told) = channel();
        let (stop, stopped) = channel();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let thread = std::thread::spawn(move || {
            let run = || -> Result<Served, Box<dyn Error>> {
                let mut side = Side::with_sizes(0, &options, sizes)?;
                let listen = ListenOptions {
                    user: 0,
                    backlog: 256,
                };
                let listener = side.driver.listen(address, &listen)?;
                let at = side.driver.listening(listener).ok_or("not bound")?;
                tell.send((at, side.driver.waker()))?;
                serve(&mut side, manner, &stopped, &count)
            };
            run().map_err(|error| error.to_string())
        });
        let Ok((at, waker)) = told.recv() else {
            return Err(join(thread).err().unwrap_or_else(|| "no listener".into()));
        };
        Ok(Self {
            at,
            waker,
            stop,
            thread,
            requests,
        })
    }

    /// Waits until so many requests have come.
    pub(crate) fn wait_for(&self, requests: usize) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + ENDS_MAX;
        while self.requests.load(Ordering::Relaxed) < requests {
            check(Instant::now() < until && !self.thread.is_finished(), || {
                format!("fewer than {requests} requests")
            })?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Serves until it is killed.
    pub(crate) fn wait(self) -> Result<Served, Box<dyn Error>> {
        join(self.thread)
    }

    /// Ends it when its connections are over, and returns what it did.
    pub(crate) fn stop(self) -> Result<Served, Box<dyn Error>> {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.waker.wake();
        join(self.thread)
    }
}

fn join(thread: JoinHandle<Result<Served, String>>) -> Result<Served, Box<dyn Error>> {
    match thread.join() {
        Ok(done) => Ok(done?),
        Err(_) => Err("the server panicked".into()),
    }
}

fn serve(
    side: &mut Side,
    manner: Manner,
    stopped: &Receiver<()>,
    count: &AtomicUsize,
) -> Result<Served, Box<dyn Error>> {
    let mut served = Served::default();
    let mut until = None;
    loop {
        while let Some(event) = side.driver.next_event() {
            served.hear(side, manner, event)?;
        }
        count.store(served.requests, Ordering::Relaxed);
        if stopped.try_recv().is_ok() {
            until = Some(Instant::now() + ENDS_MAX);
        }
        if let Some(until) = until {
            if served.open.is_empty() {
                break;
            }
            check(Instant::now() < until, || {
                format!("{} connections do not end", served.open.len())
            })?;
        }
        match side.driver.poll(until.map(|_| Duration::from_secs(1))) {
            Err(xio_verbs::Error::Removed) => break,
            polled => polled?,
        };
    }
    served.stats = *side.driver.stats();
    check(served.out.is_empty(), || {
        format!("{} answers without an outcome", served.out.len())
    })?;
    let (lent, kept) = (side.driver.in_flight(), side.kept());
    check(lent == 0 && kept == 0, || {
        format!("the server has {lent} segments lent and {kept} buffers kept")
    })?;
    Ok(served)
}

impl Served {
    /// As the conversation's server, for peers that may go away at any time.
    fn hear(
        &mut self,
        side: &mut Side,
        manner: Manner,
        event: Event,
    ) -> Result<(), Box<dyn Error>> {
        match event {
            Event::SessionRequest { session, .. } => {
                self.sessions += 1;
                let done = if manner.refuses && self.sessions.is_multiple_of(2) {
                    let (code, private) = REFUSAL;
                    side.driver.reject(session, code, private)
                } else {
                    let user = self.sessions as u64;
                    side.driver.accept(session, user, &[], b"").map(drop)
                };
                match done {
                    // It ended meanwhile.
                    Ok(()) | Err(CommandError::Unknown | CommandError::WrongState(_)) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Event::Established { connection, .. } => {
                self.connections += 1;
                self.open.insert(connection);
                Ok(())
            }
            Event::Closed { connection, .. } => {
                self.open.remove(&connection);
                Ok(())
            }
            Event::Request {
                connection,
                user,
                task,
                header,
                ..
            } => {
                self.requests += 1;
                let wish = side.driver.with_span(header, Wish::read);
                let wish = wish.ok_or("no header")?;
                check(self.seen.insert((user, wish.seed)), || {
                    format!("request {} of {user} came twice", wish.seed)
                })?;
                if manner.closes_at == Some(wish.seed) {
                    match side.driver.close(connection) {
                        // The peer was first.
                        Ok(()) | Err(CommandError::Unknown) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                self.answer(side, task, wish)
            }
            Event::Sent {
                user,
                buffers_returned,
                ..
            } => {
                self.sent += 1;
                self.outcome(side, user, buffers_returned)
            }
            Event::Failed {
                user,
                buffers_returned,
                ..
            } => {
                self.failed += 1;
                self.outcome(side, user, buffers_returned)
            }
            Event::BuffersReturned { user, .. } => Ok(side.give_up(user)?),
            _ => Ok(()),
        }
    }

    fn answer(&mut self, side: &mut Side, task: TaskId, wish: Wish) -> Result<(), Box<dyn Error>> {
        match side.answer(task, wish) {
            Ok(()) => {
                self.out.insert(task.to_bits());
                Ok(())
            }
            Err(error) => match error.downcast_ref::<CommandError>() {
                Some(CommandError::Closed(_) | CommandError::Unknown) => {
                    side.give_up(task.to_bits())?;
                    Ok(side.driver.release(task)?)
                }
                _ => Err(error),
            },
        }
    }

    fn outcome(
        &mut self,
        side: &mut Side,
        user: u64,
        is_returned: bool,
    ) -> Result<(), Box<dyn Error>> {
        check(self.out.remove(&user), || {
            format!("a second outcome of answer {user:#x}")
        })?;
        if is_returned {
            side.give_up(user)?;
        }
        Ok(())
    }
}
