//! `xio serve`: a server that answers every request.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use xio_proto::driver::Driver;
use xio_proto::{Event, ListenOptions};

use crate::args::ServeArgs;
use crate::logging::TcpDriver;
use crate::output::{Count, Output};
use crate::talk::clock::now;
use crate::talk::server::{Counts, Server, Welcome};
use crate::talk::sockets::{self, CLOSE_BOUND, Room};
use crate::talk::stop::{LOOK_EVERY, Stop};
use crate::talk::url::Url;

/// Connections that the system queues before they are taken.
const BACKLOG: u32 = 1024;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Summary {
    url: String,
    #[serde(flatten)]
    counts: Counts,
    accepted: u64,
    strays: u64,
    seconds: f64,
}

/// Serves until SIGINT or SIGTERM and returns whether everybody was closed in time.
///
/// # Errors
/// When it cannot listen, or its output not be printed.
pub(crate) fn run(args: &ServeArgs, out: &Output) -> Result<bool> {
    let room = Room {
        peers: usize::from(args.clients),
        messages: 1024,
        bytes: 0,
    };
    let mut driver = sockets::driver(&args.url, 0, room)?;
    let stop = Stop::on_signals()?;
    let urls = listen(&mut driver, &args.url)?;
    for url in &urls {
        out.text(format_args!("listening at {url}\n"))?;
    }
    let memory = u64::from(args.memory) << 20;
    let mut server = Server::new(args.welcome(), args.reply_size, memory);
    let began = now();
    let is_clean = serve(&mut driver, &mut server, &stop, out)?;
    let seconds = began.elapsed().as_secs_f64();
    summary(&driver, &server, out, &urls[0], seconds)?;
    Ok(is_clean)
}

/// Listens at every address that the host has; returns where.
fn listen(driver: &mut TcpDriver, url: &Url) -> Result<Vec<Url>> {
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
fn why_not(driver: &mut TcpDriver, url: &Url) -> String {
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
                std::io::ErrorKind::AddrNotAvailable => {
                    "; no interface of this machine has the address: 0.0.0.0 is all of them"
                }
                _ => "",
            };
            return format!("cannot listen at {url}: {error}{advice}");
        }
    }
    format!("cannot listen at {url}")
}

/// Runs until it is asked to end and all connections are closed, or until that took too long.
fn serve(driver: &mut TcpDriver, server: &mut Server, stop: &Stop, out: &Output) -> Result<bool> {
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
        if std::mem::replace(&mut pauses, driver.stats().accept_pauses) == 0 && pauses > 0 {
            let limit = sockets::descriptors().unwrap_or(0);
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

fn summary(
    driver: &TcpDriver,
    server: &Server,
    out: &Output,
    url: &Url,
    seconds: f64,
) -> Result<()> {
    let counts = server.counts;
    let stats = driver.stats();
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
        accepted: stats.accepted,
        strays: stats.strays,
        seconds,
    })?;
    Ok(())
}

impl ServeArgs {
    fn welcome(&self) -> Welcome {
        match (&self.reject, &self.redirect) {
            (Some(reason), _) => Welcome::Reject(*reason),
            (_, Some(to)) => Welcome::Redirect(to.to_string()),
            _ => Welcome::Accept,
        }
    }
}
