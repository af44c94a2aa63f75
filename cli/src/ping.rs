//! `xio ping`: round trips to a server, and what came of each.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use std::collections::BTreeMap;
use xio_proto::{ConnectOptions, Reason, Reconnect};

use crate::args::{PingArgs, Stream};
use crate::output::{Count, Nanos, Output};
use crate::talk::client::{Client, HEADER_FOR_REPLY, Outcomes, Phase, Shape, Workload};
use crate::talk::clock::now;
use crate::talk::stop::{LOOK_EVERY, Stop};
use crate::talk::transport::{self, CLOSE_BOUND, Command, Purpose, Room, Side, Transport};
use crate::talk::url::Url;
use crate::talk::watch::Files;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Summary<'a, P> {
    url: String,
    count: u64,
    /// Those of `count` that were handed over: fewer after an interruption, or a connection's end.
    sent: u64,
    ok: u64,
    failed: &'a BTreeMap<String, u64>,
    lost: u64,
    duplicated: u64,
    /// Times that the connection was made anew to a server that had been started again.
    restarts: u64,
    bytes: u64,
    seconds: f64,
    msgs_per_s: f64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    /// Why there was no connection, or how it broke.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    transport: P,
}

/// Sends what was asked for and returns whether all of it came back and was right.
///
/// # Errors
/// When no session comes about, or the result cannot be printed.
pub(crate) fn run(args: &PingArgs, out: &Output) -> Result<bool> {
    transport::over(args.url.scheme, &args.record, &Ping { args, out })
}

/// The command, over any transport.
struct Ping<'a> {
    args: &'a PingArgs,
    out: &'a Output,
}

impl Command for Ping<'_> {
    fn run<D: Transport>(&self, record: Option<&Files>) -> Result<bool> {
        run_over::<D>(self.args, self.out, record)
    }
}

fn run_over<D: Transport>(args: &PingArgs, out: &Output, record: Option<&Files>) -> Result<bool> {
    let shape = args.shape()?;
    let depth = args.depth as usize;
    let room = Room {
        peers: 4,
        messages: args.depth,
        bytes: (shape.len + args.header) as u64 * u64::from(args.depth),
        patience: Some(args.timeout),
    };
    let mut driver = D::open(&Purpose {
        url: &args.url,
        side: Side::Client,
        room,
        spin: args.spin,
        record,
        identity: 0,
    })?;
    let stop = Stop::on_signals()?;
    let workload = Workload {
        count: args.count,
        shape: move |_| shape,
        header_len: args.header,
        depth,
        interval: args.interval,
        deadline: args.deadline,
        verify: !args.any_reply,
    };
    let each = shape.len.max(4096).next_power_of_two() as u64
        + shape
            .reply
            .unwrap_or(shape.len)
            .max(4096)
            .next_power_of_two() as u64;
    let mut client = Client::new(workload, each * u64::from(args.depth))?;
    if let Err(error) = connect(&mut driver, &mut client, args, &stop) {
        let why = format!("{error:#}");
        out.object(&summary(&driver, args, &client, 0.0, Some(&why)))?;
        return Err(error);
    }
    match driver.device() {
        Some(device) => out.text(format_args!("connected to {} by {device}\n", args.url))?,
        None => out.text(format_args!("connected to {}\n", args.url))?,
    }
    let (took, broken) = traffic(&mut driver, &mut client, &stop, out, args)?;
    let seconds = took.as_secs_f64();
    let summary = summary(&driver, args, &client, seconds, broken.as_deref());
    text(out, &client.outcomes, seconds, summary.msgs_per_s)?;
    out.object(&summary)?;
    let outcomes = &client.outcomes;
    let wanted = if stop.is_asked() {
        outcomes.sent
    } else {
        args.count
    };
    let is_whole = outcomes.ok == wanted && outcomes.duplicated == 0;
    Ok(is_whole && client.phase == Phase::Over(Reason::Closed))
}

/// Connects to the first address that has a server.
fn connect<D: Transport, F: Fn(u64) -> Shape>(
    driver: &mut D,
    client: &mut Client<F>,
    args: &PingArgs,
    stop: &Stop,
) -> Result<()> {
    let url = &args.url;
    let mut options = ConnectOptions::new(0);
    options.dual_stream = args.stream == Stream::Dual;
    options.reconnect = args.reconnect.map(|attempts_max| Reconnect {
        attempts_max,
        ..Reconnect::DEFAULT
    });
    let bound = now() + args.timeout;
    let mut last = None;
    for address in url.resolve()? {
        client.connect(driver, address, &url.to_string(), &options)?;
        let reason = loop {
            while let Some(event) = driver.next_event() {
                client.event(driver, event);
            }
            match client.phase {
                Phase::Over(reason) => break reason,
                Phase::Connecting => {}
                _ => return Ok(()),
            }
            ensure!(!stop.is_asked(), "stopped before {url} answered");
            let left = bound.saturating_duration_since(now());
            ensure!(
                !left.is_zero(),
                "cannot connect to {url}: no answer from {address} in {}; --timeout gives it \
                 longer",
                humantime::format_duration(args.timeout)
            );
            driver.poll(Some(left.min(LOOK_EVERY)))?;
        };
        last = Some(reason);
    }
    let reason = last.context("no address to connect to")?;
    let what = format!("cannot connect to {url}");
    bail!(failure::<D>(&what, &reason, url))
}

fn failure<D: Transport>(what: &str, reason: &Reason, url: &Url) -> String {
    match transport::advice::<D>(reason, url) {
        advice if advice.is_empty() => format!("{what}: {reason}"),
        advice => format!("{what}: {reason}; {advice}"),
    }
}

/// Runs until everything has its outcome and the connection is closed; returns how long messages
/// were under way, and how the connection broke if it did.
fn traffic<D: Transport, F: Fn(u64) -> Shape>(
    driver: &mut D,
    client: &mut Client<F>,
    stop: &Stop,
    out: &Output,
    args: &PingArgs,
) -> Result<(Duration, Option<String>)> {
    let bar = out.progress(args.count, "messages");
    let began = now();
    let mut took = None;
    let mut shown = began;
    let mut bound = None;
    let mut stopping = None;
    loop {
        client.pump(driver);
        if took.is_none() && client.phase != Phase::Up {
            took = Some(began.elapsed());
        }
        if let Phase::Over(reason) = client.phase {
            bar.finish_and_clear();
            let broken = (reason != Reason::Closed)
                .then(|| failure::<D>("the connection broke", &reason, &args.url));
            if let Some(how) = &broken {
                out.text(format_args!("{how}\n"))?;
            }
            return Ok((took.unwrap_or_default(), broken));
        }
        if client.phase == Phase::Closing {
            let bound = *bound.get_or_insert_with(|| now() + CLOSE_BOUND);
            if now() > bound {
                bar.finish_and_clear();
                let how = "the server did not answer the close in time";
                out.text(format_args!("{how}\n"))?;
                return Ok((took.unwrap_or_default(), Some(how.to_owned())));
            }
        }
        if stop.is_asked() {
            client.stop();
            let bound = *stopping.get_or_insert_with(|| now() + CLOSE_BOUND);
            if now() > bound {
                client.abort(driver);
            }
        }
        if shown.elapsed() > Duration::from_millis(100) {
            shown = now();
            bar.set_position(client.settled());
        }
        let due = client
            .wake_at()
            .map(|at| at.saturating_duration_since(now()));
        driver.poll(Some(due.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)))?;
        while let Some(event) = driver.next_event() {
            client.event(driver, event);
        }
    }
}

fn summary<'a, D: Transport, F: Fn(u64) -> Shape>(
    driver: &D,
    args: &PingArgs,
    client: &'a Client<F>,
    seconds: f64,
    error: Option<&str>,
) -> Summary<'a, D::Pinged> {
    let outcomes = &client.outcomes;
    let at = |quantile| outcomes.latencies.value_at_quantile(quantile);
    Summary {
        url: args.url.to_string(),
        count: args.count,
        sent: outcomes.sent,
        ok: outcomes.ok,
        failed: &outcomes.failed,
        lost: outcomes.lost(),
        duplicated: outcomes.duplicated,
        restarts: outcomes.restarts,
        bytes: outcomes.bytes,
        seconds,
        msgs_per_s: if seconds > 0.0 {
            outcomes.ok as f64 / seconds
        } else {
            0.0
        },
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: outcomes.latencies.max(),
        error: error.map(str::to_owned),
        transport: driver.pinged(),
    }
}

/// What a person may do about messages that failed like this.
fn hint(reason: &str) -> &'static str {
    if reason.contains("NO_USER_BUFS") {
        "; the server has no memory for data of this size: `xio serve --memory` gives it more"
    } else if reason.starts_with("answer ") {
        "; a server that does not echo is right with --any-reply"
    } else {
        ""
    }
}

fn text(out: &Output, outcomes: &Outcomes, seconds: f64, rate: f64) -> Result<()> {
    out.text(format_args!(
        "{} sent, {} came back right, {} failed, {} lost, {} duplicated\n",
        Count(outcomes.sent, "message"),
        HumanCount(outcomes.ok),
        HumanCount(outcomes.failures()),
        HumanCount(outcomes.lost()),
        HumanCount(outcomes.duplicated)
    ))?;
    for (reason, count) in &outcomes.failed {
        out.text(format_args!("  {count:>9}  {reason}{}\n", hint(reason)))?;
    }
    if outcomes.restarts > 0 {
        let times = Count(outcomes.restarts, "time");
        out.text(format_args!("the server was started again {times}\n"))?;
    }
    if outcomes.ok == 0 {
        return Ok(());
    }
    let bandwidth = (outcomes.bytes as f64 / seconds.max(1e-9)) as u64;
    out.text(format_args!(
        "{} of data in {seconds:.3} s: {rate:.0} messages/s, {}/s\n",
        HumanBytes(outcomes.bytes),
        HumanBytes(bandwidth)
    ))?;
    let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
    for (name, quantile) in quantiles {
        let nanos = Nanos(outcomes.latencies.value_at_quantile(quantile));
        out.text(format_args!("{name:>9}  {nanos}\n"))?;
    }
    out.text(format_args!(
        "{:>9}  {}\n",
        "max",
        Nanos(outcomes.latencies.max())
    ))?;
    Ok(())
}

impl PingArgs {
    fn shape(&self) -> Result<Shape> {
        ensure!(
            self.reply_size.is_none() || self.header >= HEADER_FOR_REPLY,
            "the header tells the server the reply's size: --header has to be {HEADER_FOR_REPLY} \
             or more"
        );
        ensure!(
            self.reply_size.is_none() || !self.one_way,
            "a one-way has no reply: leave --reply-size out"
        );
        Ok(Shape {
            one_way: self.one_way,
            receipt: self.receipt,
            len: self.size,
            reply: self.reply_size,
        })
    }
}
