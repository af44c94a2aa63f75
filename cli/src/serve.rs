//! `xio serve`: a server that answers every request.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use xio_proto::{Event, ListenOptions};

use crate::args::ServeArgs;
use crate::output::{Count, Output};
use crate::talk::clock::now;
use crate::talk::identity;
use crate::talk::server::{Counts, Replies, Server, Welcome};
use crate::talk::state::State;
use crate::talk::stop::{LOOK_EVERY, Stop};
use crate::talk::transport::{self, CLOSE_BOUND, Command, Purpose, Room, Side, Transport};
use crate::talk::url::Url;
use crate::talk::watch::Files;

/// Connections that the system queues before they are taken.
const BACKLOG: u32 = 1024;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Summary<S> {
    url: String,
    #[serde(flatten)]
    counts: Counts,
    #[serde(flatten)]
    transport: S,
    seconds: f64,
}

/// Serves until SIGINT or SIGTERM and returns whether everybody was closed in time.
///
/// # Errors
/// When it cannot listen, or its output not be printed.
pub(crate) fn run(args: &ServeArgs, out: &Output) -> Result<bool> {
    transport::over(args.url.scheme, &args.record, &Serve { args, out })
}

/// The command, over any transport.
struct Serve<'a> {
    args: &'a ServeArgs,
    out: &'a Output,
}

impl Command for Serve<'_> {
    fn run<D: Transport>(&self, record: Option<&Files>) -> Result<bool> {
        run_over::<D>(self.args, self.out, record)
    }
}

fn run_over<D: Transport>(args: &ServeArgs, out: &Output, record: Option<&Files>) -> Result<bool> {
    let room = room(args.clients);
    let mut driver = D::open(&Purpose {
        url: &args.url,
        side: Side::Server,
        room,
        spin: args.spin,
        record,
        identity: args.identity.unwrap_or_else(|| identity::of(&args.url)),
    })?;
    let stop = Stop::on_signals()?;
    let is_asked = Stop::asked_besides()?;
    let urls = listen(&mut driver, &args.url)?;
    for url in &urls {
        match driver.device() {
            Some(device) => out.text(format_args!("listening at {url} on {device}\n"))?,
            None => out.text(format_args!("listening at {url}\n"))?,
        }
    }
    let mut server = Server::new(args.welcome(), args.replies(), args.memory);
    let began = now();
    let is_clean = serve(&mut driver, &mut server, (&stop, &is_asked), out)?;
    let seconds = began.elapsed().as_secs_f64();
    summary(&driver, &server, out, &urls[0], seconds)?;
    Ok(is_clean)
}

/// What a server needs that takes so many clients at once.
pub(crate) fn room(clients: u16) -> Room {
    Room {
        peers: usize::from(clients),
        messages: 1024,
        bytes: 0,
        patience: None,
    }
}

/// Listens at every address that the host has; returns where.
fn listen<D: Transport>(driver: &mut D, url: &Url) -> Result<Vec<Url>> {
    let mut bound: Vec<Url> = Vec::new();
    for address in url.resolve()? {
        let mut address = address;
        if let (0, Some(first)) = (address.port(), bound.first()) {
            // Of several addresses of a host, all get the port that the first one got.
            address.set_port(first.port);
        }
        let options = ListenOptions {
            user: 0,
            backlog: BACKLOG,
        };
        let listener = driver.listen(address, &options)?;
        match driver.listening(listener) {
            Some(at) if url.host == "*" || url.host.parse::<std::net::IpAddr>().is_ok() => {
                bound.push(url.at(at));
            }
            Some(at) => bound.push(Url {
                port: at.port(),
                ..url.clone()
            }),
            None => bail!(why_not(driver, &url.at(address))),
        }
    }
    bound.dedup();
    Ok(bound)
}

/// Why a listener was not bound, and what to do about it.
fn why_not<D: Transport>(driver: &mut D, url: &Url) -> String {
    while let Some(event) = driver.next_event() {
        if let Event::ListenFailed { error, .. } = event {
            let error = std::io::Error::from_raw_os_error(error);
            let advice = match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "; another program has the port: take another one, or 0 for any that is free"
                }
                std::io::ErrorKind::PermissionDenied => {
                    "; ports below 1024 are for root: take a higher one"
                }
                _ => D::listen_advice(&error),
            };
            return format!("cannot listen at {url}: {error}{advice}");
        }
    }
    format!("cannot listen at {url}")
}

/// Runs until it is asked to end and all connections are closed, or until that took too long.
fn serve<D: Transport>(
    driver: &mut D,
    server: &mut Server,
    (stop, is_state_asked): (&Stop, &impl Fn() -> bool),
    out: &Output,
) -> Result<bool> {
    let mut printed = Ok(());
    let mut ending: Option<Instant> = None;
    let mut pauses = 0;
    loop {
        while let Some(event) = driver.next_event() {
            server.event(driver, event, &mut |line| {
                let done = out.text(format_args!("{line}\n"));
                printed = std::mem::replace(&mut printed, Ok(())).and(done);
            });
        }
        std::mem::replace(&mut printed, Ok(()))?;
        if is_state_asked() {
            let state = State::of(driver, driver.served());
            if out.is_for_programs() {
                out.object(&state)?;
            } else {
                out.text(&state)?;
            }
        }
        if std::mem::replace(&mut pauses, driver.accept_pauses()) == 0 && pauses > 0 {
            let limit = transport::descriptors().unwrap_or(0);
            out.text(format_args!(
                "accepting pauses: all {limit} descriptors are in use; `ulimit -n` raises the \
                 limit\n"
            ))?;
        }
        match ending {
            None if stop.is_asked() => {
                let open = Count(server.open() as u64, "connection");
                out.text(format_args!("closing {open}\n"))?;
                ending = Some(now() + CLOSE_BOUND);
                server.close_all(driver);
            }
            Some(_) if server.open() == 0 => {
                // What is still to be written of the last answers to FIN leaves with this.
                driver.poll(Some(Duration::from_millis(10)))?;
                return Ok(true);
            }
            Some(bound) if now() > bound => {
                let open = Count(server.open() as u64, "connection");
                out.text(format_args!("{open} did not close in time\n"))?;
                server.abort_all(driver);
                driver.poll(Some(Duration::ZERO))?;
                return Ok(false);
            }
            _ => {}
        }
        driver.poll(Some(LOOK_EVERY)).context("waiting for peers")?;
    }
}

fn summary<D: Transport>(
    driver: &D,
    server: &Server,
    out: &Output,
    url: &Url,
    seconds: f64,
) -> Result<()> {
    let counts = server.counts;
    out.text(format_args!(
        "{} of {} asked for; {} answered, {} unanswered; {}; {} damaged\n",
        Count(counts.sessions, "session"),
        counts.asked,
        Count(counts.answered, "request"),
        counts.unanswered,
        Count(counts.one_ways, "one-way"),
        counts.damaged,
    ))?;
    out.object(&Summary {
        url: url.to_string(),
        counts,
        transport: driver.served(),
        seconds,
    })?;
    Ok(())
}

impl ServeArgs {
    fn replies(&self) -> Replies {
        Replies {
            by_header: self.reply.clone(),
            others: self.reply_size,
        }
    }

    fn welcome(&self) -> Welcome {
        match (&self.reject, &self.redirect) {
            (Some(reason), _) => Welcome::Reject(*reason),
            (_, Some(to)) => Welcome::Redirect(to.to_string()),
            _ => Welcome::Accept,
        }
    }
}
