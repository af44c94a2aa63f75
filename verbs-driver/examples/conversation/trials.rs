//! Trials that need more than one conversation: waking up, opening and closing, starts that fail.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use xio_proto::Reason;
use xio_verbs::Spin;

use crate::check;
use crate::load::{Load, Outcomes, options};
use crate::server::Server;
use crate::side::{Side, Sizes, Wish};

/// A round trip of this length was ended by something else than the answer, on any host.
const STALL: Duration = Duration::from_secs(4);

/// Ping-pongs with pauses of all lengths; both sides sleep without any timer of their own, so that
/// a wake-up that is lost is never made up for. None may take as long as `stall`.
pub(crate) fn wakes(
    server: IpAddr,
    client: IpAddr,
    count: usize,
    stall: Option<Duration>,
) -> Result<(), Box<dyn Error>> {
    let stall = stall.unwrap_or(STALL);
    let spins = [
        Spin::Never,
        Spin::For(Duration::from_micros(20)),
        Spin::For(Duration::from_micros(500)),
    ];
    for spin in spins {
        let served = Server::start(server, spin)?;
        let load = Load::connect(client, served.at, spin)?
            .of(count, 1, Wish::new(64, 64))
            .thinking(Duration::from_micros(600))
            .counting(stall);
        let (outcomes, side) = load.run(Duration::from_secs(300), |_| Ok(()))?;
        all_answered(&outcomes, count)?;
        check(outcomes.stalls == 0, || {
            format!("{} of {stall:?} or more: {outcomes:?}", outcomes.stalls)
        })?;
        let (mine, theirs) = (side.driver.stats(), served.stop()?);
        println!(
            "wakes: {spin:?}: {count} round trips, {} of {stall:?} or more, the longest {:?}; \
             sleeps {} and {}, polls {} and {}",
            outcomes.stalls,
            outcomes.longest,
            mine.sleeps,
            theirs.stats.sleeps,
            mine.polls,
            theirs.stats.polls
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
pub(crate) fn soak(
    server: IpAddr,
    client: IpAddr,
    count: usize,
    shares: bool,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut options = options(server, Spin::Never);
    options.share_receives = shares;
    let served = Server::start_at((server, 0).into(), options, Sizes::default())?;
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
    let start = Instant::now();
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
    println!(
        "cycles: {count} drivers and connections in {:?}; {first:?} at first, {last:?} at last",
        start.elapsed()
    );
    let first = first.ok_or("too few cycles")?;
    // The allocator may keep some pages, but not some for each cycle.
    check(
        first.files == last.files
            && first.regions == last.regions
            && last.pages <= first.pages + 64,
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

/// All requests were answered, and the client closed.
pub(crate) fn all_answered(outcomes: &Outcomes, count: usize) -> Result<(), Box<dyn Error>> {
    check(outcomes.answered == count, || {
        format!("not all of {count}: {outcomes:?}")
    })?;
    check(outcomes.reason == Some(Reason::Closed), || {
        format!("{:?}", outcomes.reason)
    })
}

/// Every request has one outcome, and every buffer is back.
pub(crate) fn everything_back(
    outcomes: &Outcomes,
    side: Side,
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let known = outcomes.answered + outcomes.failed + outcomes.not_sent;
    check(known == count, || format!("{known} outcomes of {count}"))?;
    check(side.driver.in_flight() == 0, || {
        "buffers are still in flight".into()
    })
}

/// Runs a program and returns what it says.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new(program).args(args).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {args:?}: {} {error}", output.status).into());
    }
    Ok(text)
}
