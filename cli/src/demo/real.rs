//! The demo in real time: an endpoint and a thread for each side, over sockets on loopback or over
//! verbs on one device.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use indicatif::ProgressBar;
use xio_proto::{ConnectOptions, Event, ListenOptions};

use super::plan::Plan;
use super::tally::Figures;
use super::{DEPTH, MEMORY, traffic, verdict};
use crate::args::{DemoArgs, RecordArgs};
use crate::output::{Count, Nanos, Output};
use crate::talk::client::{Client, HEADER_FOR_REPLY, Outcomes, Phase, Shape, Workload};
use crate::talk::clock::now;
use crate::talk::server::{Counts, Replies, Server, Welcome};
use crate::talk::stop::{LOOK_EVERY, Stop};
use crate::talk::transport::{self, Command, Purpose, Room, Side, Transport};
use crate::talk::url::{Scheme, Url};
use crate::talk::watch::Files;

/// Real time after which the demo is given up.
const TOO_LONG: Duration = Duration::from_secs(600);

/// When, in nanoseconds since the beginning, who, and what.
type Line = (u64, &'static str, String);

/// What both sides did so far.
#[derive(Clone, Debug)]
struct Log {
    began: Instant,
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Log {
    fn new() -> Self {
        Self {
            began: now(),
            lines: Arc::default(),
        }
    }

    fn note(&self, who: &'static str, what: impl fmt::Display) {
        let at = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut lines = self.lines.lock().expect("nobody panics with the log");
        lines.push((at, who, what.to_string()));
    }

    /// The lines since the last call.
    fn take(&self) -> String {
        let lines = std::mem::take(&mut *self.lines.lock().expect("nobody panics with the log"));
        let line = |(at, who, what): Line| format!("  {:>9}  {who}  {what}\n", Nanos(at));
        lines.into_iter().map(line).collect()
    }
}

/// Runs the demo over sockets and returns whether every message arrived once and as it was sent.
///
/// # Errors
/// When it cannot be set up, or its result not printed.
pub(super) fn over_sockets(args: &DemoArgs, out: &Output) -> Result<bool> {
    let url = Url::loopback("/demo");
    run(&Demo { args, out, url })
}

/// As [`over_sockets`], over verbs on the first device that can be used.
///
/// # Errors
/// As there; and when there is no such device, or this program was built without RDMA.
#[cfg(any(feature = "rdma", feature = "rdma-dlopen"))]
pub(super) fn over_verbs(args: &DemoArgs, out: &Output) -> Result<bool> {
    let host = crate::devices::first_address()?.to_string();
    let url = Url {
        scheme: Scheme::Rdma,
        host,
        ..Url::loopback("/demo")
    };
    run(&Demo { args, out, url })
}

/// That this program was built without RDMA.
///
/// # Errors
/// Always.
#[cfg(not(any(feature = "rdma", feature = "rdma-dlopen")))]
pub(super) fn over_verbs(_: &DemoArgs, _: &Output) -> Result<bool> {
    Err(transport::built_without_verbs())
}

/// The demo, over any transport.
struct Demo<'a> {
    args: &'a DemoArgs,
    out: &'a Output,
    /// Where the server listens; at any port.
    url: Url,
}

fn run(demo: &Demo<'_>) -> Result<bool> {
    transport::over(demo.url.scheme, &RecordArgs::default(), demo)
}

impl Command for Demo<'_> {
    fn run<D: Transport>(&self, _: Option<&Files>) -> Result<bool> {
        run_over::<D>(self)
    }
}

fn run_over<D: Transport>(demo: &Demo<'_>) -> Result<bool> {
    let Demo { args, out, url } = demo;
    let plan = Plan::new(args.requests, args.size);
    let room = 2 * plan.largest().max(64).next_power_of_two();
    let depth = (MEMORY / room).clamp(1, DEPTH);
    let (driver, over) = match url.scheme {
        Scheme::Tcp => ("tcp", "TCP on loopback as libxio speaks it"),
        Scheme::Rdma => ("rdma", "verbs on one device"),
    };
    out.text(format_args!(
        "A server and a client, each with a thread and an endpoint of its own, over {over}.\n\n\
         handshake\n"
    ))?;
    let log = Log::new();
    let (stop, (tell, hear)) = (Stop::default(), mpsc::channel());
    let server = {
        let (stop, log, url) = (stop.clone(), log.clone(), url.clone());
        let thread = thread::Builder::new().name("server".to_owned());
        thread.spawn(move || serve::<D>(&url, &stop, &log, &tell, depth))?
    };
    // Whatever becomes of the client: the server ends, and is waited for.
    let spoken = hear
        .recv()
        .context("the server did not come up")
        .and_then(|at| talk::<D>(&url.at(at), at, &plan, depth, &log, out));
    stop.ask();
    let served = server.join();
    let served = served.map_err(|_| anyhow::anyhow!("the server panicked"))?;
    // Of two that failed, the server is the reason.
    let (served, outcomes) = (served?, spoken?);
    out.text(format_args!("\nclose\n{}", log.take()))?;
    let figures = figures(&plan, &outcomes, &served);
    verdict(driver, &plan, &figures, 0, out)
}

fn figures(plan: &Plan, outcomes: &Outcomes, served: &Counts) -> Figures {
    let due = u64::from(plan.messages());
    let arrived = served.requests + served.one_ways;
    Figures {
        responses: outcomes.responses,
        receipts: outcomes.receipts,
        lost: due - outcomes.ok.min(due) + due - arrived.min(due),
        duplicated: outcomes.duplicated + arrived.saturating_sub(due),
        damaged: served.damaged,
        bytes: outcomes.bytes,
        latencies: outcomes.latencies.clone(),
    }
}

fn endpoint<D: Transport>(url: &Url, side: Side, depth: u32) -> Result<D> {
    let room = Room {
        peers: 4,
        messages: depth,
        bytes: u64::from(MEMORY),
        patience: None,
    };
    D::open(&Purpose {
        url,
        side,
        room,
        spin: None,
        record: None,
        identity: 0,
    })
}

/// The server's thread.
fn serve<D: Transport>(
    url: &Url,
    stop: &Stop,
    log: &Log,
    tell: &mpsc::Sender<SocketAddr>,
    depth: u32,
) -> Result<Counts> {
    let mut driver = endpoint::<D>(url, Side::Server, depth)?;
    let mut server = Server::new(Welcome::Accept, Replies::default(), 2 * u64::from(MEMORY));
    let options = ListenOptions {
        user: 0,
        backlog: 8,
    };
    let address = url.resolve()?[0];
    let listener = driver.listen(address, &options)?;
    let Some(at) = driver.listening(listener) else {
        bail!("no port of {} is free", url.host);
    };
    log.note("server", format_args!("listens at {}", url.at(at)));
    tell.send(at)?;
    while !(stop.is_asked() && server.open() == 0) {
        driver.poll(Some(LOOK_EVERY))?;
        while let Some(event) = driver.next_event() {
            server.event(&mut driver, event, &mut |line| log.note("server", line));
        }
        if stop.is_asked() {
            server.close_all(&mut driver);
        }
    }
    Ok(server.counts)
}

/// The client.
fn talk<D: Transport>(
    url: &Url,
    at: SocketAddr,
    plan: &Plan,
    depth: u32,
    log: &Log,
    out: &Output,
) -> Result<Outcomes> {
    let mut driver = endpoint::<D>(url, Side::Client, depth)?;
    let workload = Workload {
        count: plan.messages().into(),
        shape: |number| shape(plan, number),
        header_len: HEADER_FOR_REPLY,
        depth: depth as usize,
        interval: None,
        deadline: None,
        verify: true,
    };
    let mut client = Client::new(workload, 2 * u64::from(MEMORY))?;
    log.note("client", format_args!("connects to {url}"));
    client.connect(&mut driver, at, &url.to_string(), &ConnectOptions::new(0))?;
    let bar = out.progress(plan.messages().into(), "messages");
    drive(&mut driver, &mut client, plan, log, out, &bar)?;
    Ok(client.outcomes)
}

fn shape(plan: &Plan, number: u64) -> Shape {
    let shape = plan.shape(number as u32);
    Shape {
        one_way: shape.one_way,
        receipt: shape.one_way,
        len: shape.len as usize,
        reply: (!shape.one_way).then_some(shape.answer_len as usize),
    }
}

/// Runs the client until its connection is over, and tells how it is going.
fn drive<D: Transport, F: Fn(u64) -> Shape>(
    driver: &mut D,
    client: &mut Client<F>,
    plan: &Plan,
    log: &Log,
    out: &Output,
    bar: &ProgressBar,
) -> Result<()> {
    let began = now();
    let mut phase = client.phase;
    loop {
        driver.poll(Some(LOOK_EVERY))?;
        while let Some(event) = driver.next_event() {
            if let Event::Closed { reason, .. } = event {
                log.note("client", format_args!("is done: {reason}"));
            }
            client.event(driver, event);
        }
        client.pump(driver);
        bar.set_position(client.settled());
        match (std::mem::replace(&mut phase, client.phase), client.phase) {
            (Phase::Connecting, Phase::Up) => {
                log.note("client", "is established");
                out.text(log.take())?;
            }
            (Phase::Up, Phase::Closing) => {
                log.note("client", "closes the connection");
                bar.finish_and_clear();
                let took = format!(
                    "{} with {} out at once",
                    Nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)),
                    Count(client.depth() as u64, "message"),
                );
                let figures = own_figures(&client.outcomes);
                out.text(traffic(plan, &figures, &took))?;
            }
            (_, Phase::Over(_)) => return Ok(()),
            _ => {}
        }
        ensure!(began.elapsed() < TOO_LONG, "the demo takes too long");
    }
}

/// What the client alone knows.
fn own_figures(outcomes: &Outcomes) -> Figures {
    Figures {
        responses: outcomes.responses,
        receipts: outcomes.receipts,
        lost: outcomes.lost(),
        duplicated: outcomes.duplicated,
        damaged: 0,
        bytes: outcomes.bytes,
        latencies: outcomes.latencies.clone(),
    }
}
