//! The end that asks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use xio_proto::driver::BufferId;
use xio_proto::{
    CommandError, ConnectOptions, ConnectionId, Event, Message, RequestOptions, Segment,
    SessionOpen,
};
use xio_verbs::{Driver, Stats, VerbsDriver};

use super::{COPIED, Outcome, driver, message, source};

/// What is sent.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Load {
    /// Bytes of a request.
    pub(crate) request: usize,
    /// Bytes of an answer.
    pub(crate) answer: usize,
    /// Requests under way.
    pub(crate) depth: usize,
    /// Requests in all.
    pub(crate) count: u64,
}

pub(crate) struct Client {
    driver: VerbsDriver,
    load: Load,
    connection: Option<ConnectionId>,
    /// For each request under way: what it is sent from, and what its answer comes into.
    buffers: Vec<[Option<Segment>; 2]>,
    free: Vec<usize>,
    sent: u64,
    done: u64,
    count: u64,
    began: (Instant, Stats),
    took: Duration,
    /// When each request under way was sent, and how long each took: kept where time is what is
    /// measured, since it costs some.
    times: Option<(Vec<Instant>, Vec<Duration>)>,
    is_over: bool,
}

impl Client {
    pub(crate) fn new(mut driver: VerbsDriver, at: SocketAddr, load: Load) -> Outcome<Self> {
        let uri = format!("rdma://{at}/");
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        let long = |driver: &mut VerbsDriver, len: usize| -> Outcome<Option<Segment>> {
            if len <= COPIED {
                return Ok(None);
            }
            let buffer: BufferId = driver.allocate(len)?;
            Ok(Some(driver.segment(buffer, 0..len)?))
        };
        let mut buffers = Vec::new();
        for _ in 0..load.depth {
            buffers.push([
                long(&mut driver, load.request)?,
                long(&mut driver, load.answer)?,
            ]);
        }
        driver.connect(at, &open, &ConnectOptions::new(0))?;
        let stats = *driver.stats();
        Ok(Self {
            driver,
            load,
            connection: None,
            buffers,
            free: (0..load.depth).collect(),
            sent: 0,
            done: 0,
            count: 0,
            began: (Instant::now(), stats),
            took: Duration::ZERO,
            times: None,
            is_over: false,
        })
    }

    /// Keeps the time of each round trip, of which the middle one is told: a machine that stops
    /// now and then for others does not move it.
    pub(crate) fn keep_times(&mut self) {
        let none = (vec![Instant::now(); self.load.depth], Vec::new());
        self.times = Some(none);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.connection.is_some()
    }

    /// Sends so many from now on.
    pub(crate) fn begin(&mut self, count: u64) {
        self.count = count;
        (self.sent, self.done) = (0, 0);
        if let Some((_, took)) = &mut self.times {
            took.clear();
            took.reserve(count as usize);
        }
        self.began = (Instant::now(), *self.driver.stats());
        self.fill();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done == self.count
    }

    pub(crate) fn step(&mut self, timeout: Option<Duration>) -> Outcome<()> {
        self.driver.poll(timeout)?;
        while let Some(event) = self.driver.next_event() {
            self.event(event)?;
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Outcome<()> {
        match event {
            Event::Response {
                task, user, data, ..
            } => {
                if data.len() != self.load.answer as u64 {
                    return Err(format!("an answer of {} bytes", data.len()).into());
                }
                self.driver.release(task)?;
                if let Some((sent, took)) = &mut self.times {
                    took.push(sent[user as usize].elapsed());
                }
                self.free.push(user as usize);
                self.done += 1;
                if self.is_done() {
                    self.took = self.began.0.elapsed();
                }
                self.fill();
            }
            Event::Writable { .. } => self.fill(),
            Event::Established { connection, .. } => self.connection = Some(connection),
            Event::Closed { reason, .. } => {
                self.is_over = true;
                if !self.is_done() {
                    return Err(format!("the connection ended: {reason}").into());
                }
            }
            Event::Failed { failure, .. } => return Err(failure.to_string().into()),
            _ => {}
        }
        Ok(())
    }

    /// Sends as much as may be under way.
    fn fill(&mut self) {
        while self.sent < self.count
            && let Some(place) = self.free.pop()
        {
            if self.send(place).is_err() {
                // `Writable` comes, or an answer.
                self.free.push(place);
                return;
            }
            self.sent += 1;
        }
    }

    fn send(&mut self, place: usize) -> Result<(), CommandError> {
        let Some(connection) = self.connection else {
            return Err(CommandError::Unknown);
        };
        let slot = self.driver.reserve_slot(connection)?;
        if let Some((sent, _)) = &mut self.times {
            sent[place] = Instant::now();
        }
        let [data, into] = &self.buffers[place];
        let mut wanted = match data {
            None => {
                let len = self.load.request;
                let written = self.driver.with_slot(slot, |room| room[..len].fill(3));
                debug_assert!(written.is_some(), "just reserved");
                message(slot, len)
            }
            Some(segment) => Message {
                data: std::slice::from_ref(segment),
                ..message(slot, 0)
            },
        };
        wanted.user = place as u64;
        let options = RequestOptions {
            into: into.as_slice(),
            ..RequestOptions::default()
        };
        let taken = self.driver.send(connection, &wanted, &options);
        if taken.is_err() {
            self.driver.return_slot(slot)?;
        }
        taken.map(drop)
    }

    /// Prints what the last requests took.
    pub(crate) fn report(&self, how: &str) {
        let Load {
            request,
            answer,
            depth,
            ..
        } = self.load;
        let name = format!("xio{how} {request}/{answer} depth {depth}");
        let nanos = self.took.as_nanos() as f64 / self.count as f64;
        println!("measure: {name} round trip {:.3} us", nanos / 1e3);
        println!("measure: {name} rate {:.0} per second", 1e9 / nanos);
        if let Some((_, took)) = &self.times {
            let mut took = took.clone();
            took.sort_unstable();
            let middle = took[took.len() / 2].as_nanos() as f64 / 1e3;
            println!("measure: {name} median {middle:.3} us");
        }
        let (now, then) = (self.driver.stats(), &self.began.1);
        let each = |now: u64, then: u64| (now - then) as f64 / self.count as f64;
        println!(
            "{name}: each {:.2} polls, {:.2} sleeps, {:.2} signaled, {:.2} receive calls, {:.2} \
             cm",
            each(now.polls, then.polls),
            each(now.sleeps, then.sleeps),
            each(now.signaled, then.signaled),
            each(now.receive_calls, then.receive_calls),
            each(now.cm_asks, then.cm_asks),
        );
    }

    pub(crate) fn close(mut self) -> Outcome<()> {
        if let Some(connection) = self.connection {
            self.driver.close(connection)?;
        }
        while !self.is_over {
            self.step(None)?;
        }
        Ok(())
    }
}

/// Is connected and waits, and tells how much of the time it ran.
///
/// # Errors
/// When that was more than a hundredth.
pub(crate) fn idle(at: SocketAddr, spin: &str, seconds: u64) -> Outcome<()> {
    let load = Load {
        request: 64,
        answer: 64,
        depth: 1,
        count: 1,
    };
    let mut client = Client::new(driver(1, source(at)?, spin)?, at, load)?;
    while !client.is_up() {
        client.step(None)?;
    }
    let (began, before) = (Instant::now(), ran()?);
    let time = Duration::from_secs(seconds);
    while began.elapsed() < time {
        client.step(Some(time - began.elapsed().min(time)))?;
    }
    let percent = (ran()? - before) / began.elapsed().as_secs_f64() * 100.0;
    println!("idle: {seconds} s, of which this process ran {percent:.3} %");
    client.close()?;
    if percent > 1.0 {
        return Err("that is too much".into());
    }
    Ok(())
}

/// Seconds that this process was on a processor.
fn ran() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanos = text.split_whitespace().next().ok_or("a number")?;
    Ok(nanos.parse::<f64>()? / 1e9)
}
