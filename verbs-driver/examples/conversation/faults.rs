//! Trouble: a wire that is slow, loses, or is cut; peers that are not there, refuse, stop or die; a
//! device that is removed. All of it with hundreds of requests or connects, each of which has one
//! outcome, and at the end nothing is left on either side.
//!
//! Runs `tc`, `ip` and `rdma`, and is meant for a machine of one's own.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use xio_proto::{Reason, Step};
use xio_verbs::Spin;

use crate::check;
use crate::crowd::{Crowd, sends};
use crate::load::{Load, Outcomes, options};
use crate::server::{Manner, REFUSAL, Served, Server};
use crate::side::{Sizes, Wish};
use crate::trials::{all_answered, everything_back, run};

/// The ends of the wire in the machine of `cargo xtask vm`.
const NEAR: &str = "10.99.1.1";
const FAR: &str = "10.99.1.2";

/// Connects at once, where it is about these.
const CONNECTS: usize = 200;

/// Requests of each of these.
const REQUESTS: usize = 4;

/// How long a trial's requests may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Each kind of trouble in turn, or the one of that name.
pub(crate) fn faults(only: Option<&str>) -> Result<(), Box<dyn Error>> {
    type Trial = fn() -> Result<(), Box<dyn Error>>;
    let trials: [(&str, Trial); 14] = [
        ("nobody", nobody_listens),
        ("dead", dead_address),
        ("refused", refused),
        ("connects", connects),
        ("delay", || netem("delay", &["delay", "3ms", "1ms"], true)),
        ("loss1", || netem("loss 1 %", &["loss", "1%"], true)),
        ("loss10", || netem("loss 10 %", &["loss", "10%"], false)),
        ("reorder", || {
            let how = ["delay", "1ms", "reorder", "25%", "duplicate", "5%"];
            netem("reorder and duplicate", &how, true)
        }),
        ("cable", cable),
        ("close", both_close),
        ("killed", server_killed),
        ("client", client_killed),
        ("stopped", stopped),
        ("removed", removed),
    ];
    for (name, trial) in trials {
        if only.is_none_or(|only| only == name) {
            let start = Instant::now();
            trial().map_err(|error| format!("{name}: {error}"))?;
            println!("faults: {name} took {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// A server that another process stops or kills.
pub(crate) fn wishes(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let options = options(address.ip(), Spin::Never);
    let served = Server::start_at(address, options, Sizes::default())?;
    served.wait().map(drop)
}

fn near() -> IpAddr {
    NEAR.parse().expect("an address")
}

fn far() -> IpAddr {
    FAR.parse().expect("an address")
}

/// A server at the far end that soon notices that its peer is dead.
fn watchful_server() -> Result<Server, Box<dyn Error>> {
    let at = SocketAddr::new(far(), 0);
    Server::start_at(at, options(far(), Spin::Never), Sizes::watchful())
}

/// Connects to a port that nobody listens on.
fn nobody_listens() -> Result<(), Box<dyn Error>> {
    let mut crowd = Crowd::gather(near(), SocketAddr::new(far(), 9), CONNECTS, REQUESTS)?;
    println!("faults: nobody listens: {:?}", crowd.reasons());
    let refused = |member: &&crate::crowd::Member| member.reason == Some(Reason::Refused);
    let count = crowd.members.iter().filter(refused).count();
    check(count == CONNECTS, || format!("{count} were refused"))?;
    crowd.nothing_left()
}

/// Connects to an address that nobody has.
fn dead_address() -> Result<(), Box<dyn Error>> {
    let mut crowd = Crowd::gather(near(), "10.99.7.7:9".parse()?, CONNECTS, REQUESTS)?;
    println!("faults: dead address: {:?}", crowd.reasons());
    for member in &crowd.members {
        let is_told = matches!(
            member.reason,
            Some(
                Reason::AddressError(_)
                    | Reason::Unreachable(_)
                    | Reason::DriverFailed(_)
                    | Reason::TimedOut(Step::Connect)
            )
        );
        check(is_told, || format!("{:?}", member.reason))?;
    }
    crowd.nothing_left()
}

/// Room for all who connect at once.
fn roomy() -> Sizes {
    Sizes {
        receives: 12 * CONNECTS as u32,
        min_grant: 7,
        sends: sends(CONNECTS),
        // The last session is kept for refusing.
        peers: CONNECTS + 1,
        ..Sizes::default()
    }
}

/// Every second session is refused, with a code and private data; the others talk.
fn refused() -> Result<(), Box<dyn Error>> {
    let manner = Manner {
        refuses: true,
        ..Manner::default()
    };
    let at = SocketAddr::new(far(), 0);
    let served = Server::with_manner(at, options(far(), Spin::Never), roomy(), manner)?;
    let crowd = Crowd::gather(near(), served.at, CONNECTS, REQUESTS)?;
    println!("faults: refused: {:?}", crowd.reasons());
    let (code, private) = REFUSAL;
    let told = crowd
        .members
        .iter()
        .filter(|member| member.reason == Some(Reason::Rejected(code)) && member.private == private)
        .count();
    let talked = crowd.talked();
    check((told, talked) == (CONNECTS / 2, CONNECTS / 2), || {
        format!("{told} were refused, {talked} talked")
    })?;
    served.stop().map(drop)
}

/// All connect at once, and there is room for all.
fn connects() -> Result<(), Box<dyn Error>> {
    let at = SocketAddr::new(far(), 0);
    let served = Server::start_at(at, options(far(), Spin::Never), roomy())?;
    let crowd = Crowd::gather(near(), served.at, CONNECTS, REQUESTS)?;
    println!("faults: connects: {:?}", crowd.reasons());
    let talked = crowd.talked();
    check(talked == CONNECTS, || format!("{talked} talked"))?;
    served.stop().map(drop)
}

/// Two hundred requests over a wire that `tc` makes bad.
fn netem(name: &str, args: &[&str], must_answer: bool) -> Result<(), Box<dyn Error>> {
    let tc = |verb: &str, args: &[&str]| {
        let base = ["qdisc", verb, "dev", "va", "root"];
        run("/usr/bin/tc", &[&base, args].concat())
    };
    tc("add", &[&["netem"], args].concat())?;
    let done = load_200();
    tc("del", &[])?;
    let (outcomes, served) = done?;
    println!("faults: {name}: {outcomes:?}");
    all_counted(&outcomes, &served)?;
    check(!must_answer || outcomes.answered == 200, || {
        "not all were answered".into()
    })
}

fn load_200() -> Result<(Outcomes, Served), Box<dyn Error>> {
    let served = watchful_server()?;
    let load = Load::connect(near(), served.at, Spin::Never)?.of(200, 8, Wish::new(64, 9000));
    let (outcomes, side) = load.run(LIMIT, |_| Ok(()))?;
    everything_back(&outcomes, side, 200)?;
    Ok((outcomes, served.stop()?))
}

/// What both sides say fits together: nobody counts an answer that was not given.
fn all_counted(outcomes: &Outcomes, served: &Served) -> Result<(), Box<dyn Error>> {
    let sent = outcomes.answered + outcomes.failed;
    let fits = outcomes.answered <= served.requests
        && served.requests <= sent
        && served.sent + served.failed <= served.requests;
    check(fits, || {
        format!(
            "{outcomes:?}, but the server counts {} requests, {} answers sent and {} failed",
            served.requests, served.sent, served.failed
        )
    })
}

/// The cable is pulled for a moment, twice.
fn cable() -> Result<(), Box<dyn Error>> {
    let served = watchful_server()?;
    let load = Load::connect(near(), served.at, Spin::Never)?.of(200, 8, Wish::new(64, 9000));
    let (outcomes, side) = load.run(LIMIT, |answered| {
        if answered == 50 || answered == 100 {
            run("/usr/bin/ip", &["link", "set", "va", "down"])?;
            run("/xio/wire-up", &[])?;
        }
        Ok(())
    })?;
    println!(
        "faults: cable: {outcomes:?}, {} port errors",
        side.driver.stats().port_errors
    );
    everything_back(&outcomes, side, 200)?;
    all_counted(&outcomes, &served.stop()?)
}

/// Both sides close at the same time, with requests and answers under way.
fn both_close() -> Result<(), Box<dyn Error>> {
    // Which side is first differs.
    for at in [100, 104, 108, 112, 116] {
        let manner = Manner {
            closes_at: Some(at),
            ..Manner::default()
        };
        let address = SocketAddr::new(far(), 0);
        let sizes = Sizes::default();
        let served = Server::with_manner(address, options(far(), Spin::Never), sizes, manner)?;
        let load = Load::connect(near(), served.at, Spin::Never)?
            .of(400, 16, Wish::new(64, 9000))
            .closing_at(100);
        let (outcomes, side) = load.run(LIMIT, |_| Ok(()))?;
        println!("faults: both close: {outcomes:?}");
        everything_back(&outcomes, side, 400)?;
        all_counted(&outcomes, &served.stop()?)?;
        check(outcomes.answered >= 90 && outcomes.answered < 400, || {
            "closed at another time".into()
        })?;
        let reason = outcomes.reason;
        check(
            matches!(reason, Some(Reason::Closed | Reason::PeerClosed)),
            || format!("ended by {reason:?}"),
        )?;
    }
    Ok(())
}

/// A process of its own, which is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(args: &[&str]) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?;
        Ok(Self(Command::new(program).args(args).spawn()?))
    }

    fn signal(&self, signal: &str) -> Result<(), Box<dyn Error>> {
        run("kill", &[signal, &self.0.id().to_string()]).map(drop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests to a server in another process, from when it listens on.
fn load_to_process(
    at: &str,
    total: usize,
    mut step: impl FnMut(usize) -> Result<(), Box<dyn Error>>,
) -> Result<Outcomes, Box<dyn Error>> {
    let at = at.parse()?;
    for _ in 0..100 {
        let load = Load::connect_with(near(), at, Spin::Never, Sizes::watchful())?;
        let load = load.of(total, 8, Wish::new(64, 0));
        let (outcomes, side) = load.run(LIMIT, &mut step)?;
        if outcomes.reason == Some(Reason::Refused) {
            // It does not listen yet.
            continue;
        }
        everything_back(&outcomes, side, total)?;
        return Ok(outcomes);
    }
    Err("the server never listened".into())
}

/// The server's process is killed.
fn server_killed() -> Result<(), Box<dyn Error>> {
    let at = "10.99.1.2:7099";
    let server = Process::start(&["wishes", at])?;
    let outcomes = load_to_process(at, 400, |answered| match answered {
        100 => server.signal("-9"),
        _ => Ok(()),
    })?;
    println!("faults: server killed: {outcomes:?}");
    check(outcomes.answered >= 100 && outcomes.answered < 400, || {
        "late".into()
    })
}

/// The client's process is killed: its server is done with it, and has the next.
fn client_killed() -> Result<(), Box<dyn Error>> {
    let served = watchful_server()?;
    let client = Process::start(&["ask", NEAR, &served.at.to_string(), "100000"])?;
    served.wait_for(200)?;
    // Another one is served before, meanwhile and after.
    let load = Load::connect(near(), served.at, Spin::Never)?.of(200, 4, Wish::new(64, 64));
    let (outcomes, side) = load.run(LIMIT, |answered| match answered {
        100 => client.signal("-9"),
        _ => Ok(()),
    })?;
    everything_back(&outcomes, side, 200)?;
    all_answered(&outcomes, 200)?;
    let served = served.stop()?;
    println!(
        "faults: client killed: {} requests of {} connections, {} answers sent, {} failed",
        served.requests, served.connections, served.sent, served.failed
    );
    check(served.connections == 2 && served.requests >= 400, || {
        "requests are missing".into()
    })
}

/// The server's process is stopped: for a moment, which nobody notices but by the clock; then for
/// good, which only the keepalive finds out. When it goes on, it serves the next client.
fn stopped() -> Result<(), Box<dyn Error>> {
    let at = "10.99.1.2:7098";
    let server = Process::start(&["wishes", at])?;
    let pause = format!("kill -STOP {0}; sleep 1; kill -CONT {0}", server.0.id());
    let mut pauses = Vec::new();
    let outcomes = load_to_process(at, 300, |answered| {
        if answered == 100 {
            pauses.push(Command::new("/bin/sh").args(["-c", &pause]).spawn()?);
        }
        Ok(())
    })?;
    println!("faults: stopped for a second: {outcomes:?}");
    for mut pause in pauses {
        pause.wait()?;
    }
    all_answered(&outcomes, 300)?;
    check(outcomes.longest >= Duration::from_millis(900), || {
        "it was not stopped".into()
    })?;
    let outcomes = load_to_process(at, 300, |answered| match answered {
        100 => server.signal("-STOP"),
        _ => Ok(()),
    })?;
    println!("faults: stopped: {outcomes:?}");
    check(
        outcomes.reason == Some(Reason::TimedOut(Step::Keepalive)),
        || format!("ended by {:?}", outcomes.reason),
    )?;
    check(outcomes.answered >= 100 && outcomes.answered < 300, || {
        "late".into()
    })?;
    server.signal("-CONT")?;
    let outcomes = load_to_process(at, 200, |_| Ok(()))?;
    println!("faults: goes on: {outcomes:?}");
    all_answered(&outcomes, 200)
}

/// The device of either side is removed under load: that returns promptly, and it can be added
/// again.
fn removed() -> Result<(), Box<dyn Error>> {
    for (device, end) in [("rxea", "va"), ("rxeb", "vb")] {
        let served = watchful_server()?;
        let load = Load::connect_with(near(), served.at, Spin::Never, Sizes::watchful())?.of(
            400,
            8,
            Wish::new(64, 9000),
        );
        let mut removal = None;
        let (outcomes, side) = load.run(LIMIT, |answered| {
            if answered == 100 {
                let command = ["link", "delete", device];
                let child = Command::new("/usr/bin/rdma").args(command).spawn()?;
                removal = Some((child, Instant::now()));
            }
            Ok(())
        })?;
        println!("faults: {device} removed: {outcomes:?}");
        everything_back(&outcomes, side, 400)?;
        let (mut removal, start) = removal.ok_or("it was never removed")?;
        while removal.try_wait()?.is_none() {
            check(start.elapsed() < Duration::from_secs(30), || {
                "the removal hangs".into()
            })?;
            std::thread::yield_now();
        }
        println!("faults: the removal returned after {:?}", start.elapsed());
        let again = ["link", "add", device, "type", "rxe", "netdev", end];
        run("/usr/bin/rdma", &again)?;
        all_counted(&outcomes, &served.stop()?)?;
        let (outcomes, served) = load_200()?;
        println!("faults: {device} added again: {outcomes:?}");
        all_counted(&outcomes, &served)?;
        all_answered(&outcomes, 200)?;
    }
    Ok(())
}
