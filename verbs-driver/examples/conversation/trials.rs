//! Trials that need more than one conversation: waking up, opening and closing, trouble on the
//! wire. Those of the wire run `tc`, `ip` and `rdma`, and are meant for a machine of one's own.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use xio_proto::Reason;
use xio_verbs::Spin;

use crate::check;
use crate::load::{Load, Outcomes, Server, options};
use crate::side::{Side, Sizes, Wish};

/// The ends of the wire in the machine of `cargo xtask vm`.
const NEAR: &str = "10.99.1.1";
const FAR: &str = "10.99.1.2";

/// A round trip of this length was ended by something else than the answer.
const STALL: Duration = Duration::from_secs(4);

/// Ping-pongs with pauses of all lengths; both sides sleep without any timer of their own, so that
/// a wake-up that is lost is never made up for.
pub(crate) fn wakes(server: IpAddr, client: IpAddr, count: usize) -> Result<(), Box<dyn Error>> {
    let spins = [
        Spin::Never,
        Spin::For(Duration::from_micros(20)),
        Spin::For(Duration::from_micros(500)),
    ];
    for spin in spins {
        let served = Server::start(server, spin)?;
        let load = Load::connect(client, served.at, spin)?
            .of(count, 1, Wish::new(64, 64))
            .thinking(Duration::from_micros(600));
        let (outcomes, side) = load.run(Duration::from_secs(300), |_| Ok(()))?;
        all_answered(&outcomes, count)?;
        check(outcomes.longest < STALL, || {
            format!("a round trip of {:?}", outcomes.longest)
        })?;
        let (mine, theirs) = (side.driver.stats(), served.stop()?);
        println!(
            "wakes: {spin:?}: {count} round trips, the longest {:?}; sleeps {} and {}, polls {} and {}",
            outcomes.longest, mine.sleeps, theirs.sleeps, mine.polls, theirs.polls
        );
    }
    Ok(())
}

/// Requests to a server in another process that echoes, with pauses between them.
pub(crate) fn ask(client: IpAddr, server: SocketAddr, count: usize) -> Result<(), Box<dyn Error>> {
    loop {
        let load = Load::connect(client, server, Spin::Never)?
            .of(count, 2, Wish::new(64, 64))
            .thinking(Duration::from_millis(2));
        let (outcomes, _) = load.run(Duration::from_secs(120), |_| Ok(()))?;
        if outcomes.reason == Some(Reason::Refused) {
            // It does not listen yet.
            continue;
        }
        println!("ask: {outcomes:?}");
        check(outcomes.longest < STALL, || {
            "a round trip took too long".into()
        })?;
        return all_answered(&outcomes, count);
    }
}

/// Many small requests at a time, with no retry for a receive that is missing.
pub(crate) fn soak(server: IpAddr, client: IpAddr, count: usize) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let served = Server::start(server, Spin::Never)?;
    let load = Load::connect(client, served.at, Spin::Never)?.of(count, 24, Wish::new(64, 64));
    let (outcomes, side) = load.run(Duration::from_secs(500), |_| Ok(()))?;
    all_answered(&outcomes, count)?;
    println!(
        "soak: {count} requests in {:?}; {:?}",
        start.elapsed(),
        side.driver.stats()
    );
    served.stop().map(drop)
}

/// Connections opened and closed again and again leave nothing behind.
pub(crate) fn cycles(server: IpAddr, client: IpAddr, count: usize) -> Result<(), Box<dyn Error>> {
    let served = Server::start(server, Spin::Never)?;
    let mut first = None;
    for cycle in 0..count {
        let load = Load::connect(client, served.at, Spin::Never)?.of(2, 1, Wish::new(64, 9000));
        let (outcomes, side) = load.run(Duration::from_secs(60), |_| Ok(()))?;
        all_answered(&outcomes, 2)?;
        drop(side);
        // The first few fill caches of the libraries.
        if cycle == 5 {
            first = Some(Holdings::now()?);
        }
    }
    let last = Holdings::now()?;
    println!("cycles: {count} drivers and connections; {first:?} at first, {last:?} at last");
    let first = first.ok_or("too few cycles")?;
    check(
        first.files == last.files && first.regions == last.regions,
        || "left behind".into(),
    )?;
    served.stop().map(drop)
}

/// A driver whose start fails at each of its stages in turn leaves nothing behind: the kernel is
/// told to allow so many objects of the device and no more.
pub(crate) fn stages(ip: IpAddr, device: &str) -> Result<(), Box<dyn Error>> {
    let root = Path::new("/sys/fs/cgroup");
    run("/bin/mount", &["-t", "cgroup2", "none", "/sys/fs/cgroup"])?;
    std::fs::write(root.join("cgroup.subtree_control"), "+rdma")?;
    let group = root.join("trial");
    std::fs::create_dir_all(&group)?;
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    let mut before: Option<Holdings> = None;
    let mut errors = Vec::new();
    for objects in 1..32 {
        let most = format!("{device} hca_handle=8 hca_object={objects}");
        std::fs::write(group.join("rdma.max"), most)?;
        let Err(error) = Side::new(0, &options(ip, Spin::Never)) else {
            errors.dedup();
            println!("stages: a driver is {objects} objects; before that: {errors:?}");
            return check(errors.len() >= 3, || "too few stages failed".into());
        };
        errors.push(error.to_string());
        let now = Holdings::now()?;
        if let Some(before) = &before {
            let same = before.files == now.files && before.regions == now.regions;
            check(same, || {
                format!("{objects} objects: {before:?} and {now:?}")
            })?;
        }
        before = Some(now);
    }
    Err("a driver needs more than 31 objects".into())
}

/// What the process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    files: usize,
    /// Memory regions, of all processes.
    regions: usize,
    /// Mapped pages.
    pages: usize,
}

impl Holdings {
    fn now() -> Result<Self, Box<dyn Error>> {
        let regions = run("/usr/bin/rdma", &["resource", "show", "mr"])?;
        let pages = std::fs::read_to_string("/proc/self/statm")?;
        Ok(Self {
            files: std::fs::read_dir("/proc/self/fd")?.count(),
            regions: regions.lines().count(),
            pages: pages.split(' ').nth(1).ok_or("statm")?.parse()?,
        })
    }
}

/// Each kind of trouble, with requests under way: every one has its one outcome.
pub(crate) fn faults() -> Result<(), Box<dyn Error>> {
    nobody_there()?;
    netem("delay", &["delay", "3ms", "1ms"], true)?;
    netem("loss 1 %", &["loss", "1%"], true)?;
    netem("loss 10 %", &["loss", "10%"], false)?;
    netem(
        "reorder and duplicate",
        &["delay", "1ms", "reorder", "25%", "duplicate", "5%"],
        true,
    )?;
    cable()?;
    killed()?;
    removed()
}

/// A server that another process kills.
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

/// A port that nobody listens on, and an address that nobody has.
fn nobody_there() -> Result<(), Box<dyn Error>> {
    let load = Load::connect(near(), SocketAddr::new(far(), 9), Spin::Never)?;
    let (outcomes, _) = load.run(Duration::from_secs(60), |_| Ok(()))?;
    println!("faults: nobody listens: {:?}", outcomes.reason);
    check(outcomes.reason == Some(Reason::Refused), || {
        format!("{:?}", outcomes.reason)
    })?;
    let load = Load::connect(near(), "10.99.7.7:9".parse()?, Spin::Never)?;
    let (outcomes, _) = load.run(Duration::from_secs(60), |_| Ok(()))?;
    println!("faults: dead address: {:?}", outcomes.reason);
    let is_told = matches!(
        outcomes.reason,
        Some(
            Reason::AddressError(_)
                | Reason::Unreachable(_)
                | Reason::DriverFailed(_)
                | Reason::TimedOut(_)
        )
    );
    check(is_told, || format!("{:?}", outcomes.reason))
}

/// Two hundred requests over a wire that `tc` makes bad.
fn netem(name: &str, args: &[&str], must_answer: bool) -> Result<(), Box<dyn Error>> {
    let tc = |verb: &str, args: &[&str]| {
        let base = ["qdisc", verb, "dev", "va", "root"];
        run("/usr/bin/tc", &[&base, args].concat())
    };
    tc("add", &[&["netem"], args].concat())?;
    let outcomes = load_200();
    tc("del", &[])?;
    let outcomes = outcomes?;
    println!("faults: {name}: {outcomes:?}");
    check(!must_answer || outcomes.answered == 200, || {
        "not all were answered".into()
    })
}

fn load_200() -> Result<Outcomes, Box<dyn Error>> {
    let served = Server::start(far(), Spin::Never)?;
    let load = Load::connect(near(), served.at, Spin::Never)?.of(200, 8, Wish::new(64, 9000));
    let (outcomes, side) = load.run(Duration::from_secs(120), |_| Ok(()))?;
    everything_back(&outcomes, side, 200)?;
    served.stop()?;
    Ok(outcomes)
}

/// The cable is pulled for a moment, twice.
fn cable() -> Result<(), Box<dyn Error>> {
    let served = Server::start(far(), Spin::Never)?;
    let load = Load::connect(near(), served.at, Spin::Never)?.of(200, 8, Wish::new(64, 9000));
    let (outcomes, side) = load.run(Duration::from_secs(120), |answered| {
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
    served.stop().map(drop)
}

/// The peer's process is killed.
fn killed() -> Result<(), Box<dyn Error>> {
    let mut server = Command::new(std::env::current_exe()?)
        .args(["wishes", "10.99.1.2:7099"])
        .spawn()?;
    let result = (|| {
        let at = "10.99.1.2:7099".parse()?;
        for _ in 0..100 {
            let load = Load::connect(near(), at, Spin::Never)?.of(400, 8, Wish::new(64, 0));
            let (outcomes, side) = load.run(Duration::from_secs(60), |answered| {
                if answered == 100 {
                    run("kill", &["-9", &server.id().to_string()])?;
                }
                Ok(())
            })?;
            if outcomes.reason == Some(Reason::Refused) {
                // It does not listen yet.
                continue;
            }
            println!("faults: killed: {outcomes:?}");
            everything_back(&outcomes, side, 400)?;
            return check(outcomes.answered >= 100 && outcomes.answered < 400, || {
                "late".into()
            });
        }
        Err("the server never listened".into())
    })();
    // It may be gone already.
    let _ = server.kill();
    server.wait()?;
    result
}

/// The device is removed under load: that returns promptly, and it can be added again.
fn removed() -> Result<(), Box<dyn Error>> {
    let served = Server::start(far(), Spin::Never)?;
    let load = Load::connect(near(), served.at, Spin::Never)?.of(400, 8, Wish::new(64, 9000));
    let mut removal = None;
    let start = Instant::now();
    let (outcomes, side) = load.run(Duration::from_secs(60), |answered| {
        if answered == 100 {
            removal = Some(
                Command::new("/usr/bin/rdma")
                    .args(["link", "delete", "rxea"])
                    .spawn()?,
            );
        }
        Ok(())
    })?;
    println!("faults: removed: {outcomes:?}");
    everything_back(&outcomes, side, 400)?;
    let mut removal = removal.ok_or("it was never removed")?;
    while removal.try_wait()?.is_none() {
        check(start.elapsed() < Duration::from_secs(30), || {
            "the removal hangs".into()
        })?;
        std::thread::yield_now();
    }
    println!("faults: the removal returned after {:?}", start.elapsed());
    run(
        "/usr/bin/rdma",
        &["link", "add", "rxea", "type", "rxe", "netdev", "va"],
    )?;
    served.stop()?;
    let outcomes = load_200()?;
    println!("faults: added again: {outcomes:?}");
    all_answered(&outcomes, 200)
}

fn all_answered(outcomes: &Outcomes, count: usize) -> Result<(), Box<dyn Error>> {
    check(outcomes.answered == count, || {
        format!("not all of {count}: {outcomes:?}")
    })?;
    check(outcomes.reason == Some(Reason::Closed), || {
        format!("{:?}", outcomes.reason)
    })
}

fn everything_back(outcomes: &Outcomes, side: Side, count: usize) -> Result<(), Box<dyn Error>> {
    let known = outcomes.answered + outcomes.failed + outcomes.not_sent;
    check(known == count, || format!("{known} outcomes of {count}"))?;
    check(side.driver.in_flight() == 0, || {
        "buffers are still in flight".into()
    })
}

fn run(program: &str, args: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new(program).args(args).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {args:?}: {} {error}", output.status).into());
    }
    Ok(text)
}
