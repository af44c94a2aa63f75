//! `cargo xtask vm`: real verbs without a device. A small virtual machine under qemu's software
//! emulation boots Debian's kernel with soft-RoCE, runs something inside, and hands out its status.
//!
//! Inside, 10.99.0.1 (and fd99::1) is a device for conversations with itself, and 10.99.1.1 and
//! 10.99.1.2 are two devices with a wire between them, the ends of which are `va` and `vb`: what
//! `tc` does to them happens to the conversation. `/xio/wire-up` brings the wire back after it was
//! cut.

mod archive;
mod boot;
pub(crate) mod host;
mod kernel;
mod suite;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::ctx::Ctx;
use crate::steps::Outcome;
use archive::Archive;
use boot::{Boot, Ended};
use kernel::Kernel;
use suite::{SUITES, Suite};

/// Programs of the host that every machine has, beside busybox's.
const PROGRAMS: &[&str] = &[
    "ip",
    "tc",
    "rdma",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "rping",
    "ib_send_lat",
    "ib_read_lat",
    "ib_write_lat",
    "strace",
];

/// Where the shell of the machine finds what is ours.
const OURS: &str = "/xio";

/// Arguments of `cargo xtask vm`.
#[derive(clap::Args)]
pub(crate) struct VmArgs {
    /// The suite to be run; all if nothing else is asked for
    #[arg(conflicts_with_all = ["shell", "command"])]
    suite: Option<String>,
    /// Print the suites and stop
    #[arg(long)]
    list: bool,
    /// A prompt on the terminal (leave with `exit`, or Ctrl-A X)
    #[arg(long, conflicts_with = "command")]
    shell: bool,
    /// Take this file along, into /xio (may be repeated); a program comes with its libraries
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,
    /// Count instructions instead of time: one processor, whose nanosecond is an instruction
    #[arg(long)]
    count: bool,
    /// Seconds after which the machine is ended
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// A program of this machine, of busybox or of a suite, with its arguments
    #[arg(last = true)]
    command: Vec<String>,
}

/// What runs inside.
enum Job<'a> {
    /// A prompt.
    Shell,
    /// A shell script.
    Script(&'a str),
    /// A program and its arguments.
    Command(&'a [String]),
}

/// Does what was asked for and returns the status that the machine ended with.
///
/// # Errors
/// When the machine cannot be had, or ended otherwise.
pub(crate) fn run(ctx: &Ctx, args: &VmArgs) -> Result<u8> {
    if args.list {
        for suite in SUITES {
            println!("{:<13} {}", suite.name, suite.what);
        }
        return Ok(0);
    }
    let mut machine = Machine::new(ctx, &args.with, Duration::from_secs(args.timeout))?;
    machine.is_counted = args.count;
    if args.shell {
        return machine.run(Job::Shell, &[]).map(|ended| ended.status);
    }
    if !args.command.is_empty() {
        // A program of the project that a suite brings can be named like any other.
        let suites: Vec<&Suite> = SUITES
            .iter()
            .filter(|suite| suite.brings(&args.command[0]))
            .collect();
        let job = Job::Command(&args.command);
        return machine.run(job, &suites).map(|ended| ended.status);
    }
    for suite in suite::named(args.suite.as_deref())? {
        println!("-- {}: {}", suite.name, suite.what);
        machine.is_counted = args.count || suite.is_counted;
        let ended = machine.run(Job::Script(suite.script), &[suite])?;
        if ended.status != 0 {
            println!("-- {}: status {}", suite.name, ended.status);
            return Ok(ended.status);
        }
        println!("-- {}: ok, {:.1} s", suite.name, ended.took.as_secs_f64());
    }
    Ok(0)
}

/// Boots once, runs a script, and returns all lines that were printed. `is_counted`: the machine's
/// clock counts instructions.
///
/// # Errors
/// When the machine cannot be had, or the script fails.
pub(crate) fn measure(
    ctx: &Ctx,
    with: &[PathBuf],
    script: &str,
    is_counted: bool,
    timeout: Duration,
) -> Result<Vec<String>> {
    let mut machine = Machine::new(ctx, with, timeout)?;
    machine.is_counted = is_counted;
    let ended = machine.run(Job::Script(script), &[])?;
    ensure!(ended.status == 0, "the script ended with {}", ended.status);
    Ok(ended.lines)
}

/// Step `vm`: all suites.
///
/// # Errors
/// When one fails.
pub(crate) fn step(ctx: &Ctx) -> Result<Outcome> {
    let mut machine = match Machine::new(ctx, &[], Duration::from_secs(480)) {
        Ok(machine) => machine,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    for suite in SUITES {
        println!("-- {}: {}", suite.name, suite.what);
        machine.is_counted = suite.is_counted;
        let ended = machine.run(Job::Script(suite.script), &[suite])?;
        ensure!(
            ended.status == 0,
            "suite {} ended with {}",
            suite.name,
            ended.status
        );
    }
    Ok(Outcome::Passed(format!("{} suites", SUITES.len())))
}

/// All that stays the same from run to run.
struct Machine<'a> {
    ctx: &'a Ctx,
    cache: PathBuf,
    kernel: Kernel,
    timeout: Duration,
    with: &'a [PathBuf],
    is_counted: bool,
}

impl<'a> Machine<'a> {
    fn new(ctx: &'a Ctx, with: &'a [PathBuf], timeout: Duration) -> Result<Self> {
        host::ensure(ctx)?;
        let cache = ctx.target_dir.join("vm");
        fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
        Ok(Self {
            ctx,
            kernel: Kernel::find(ctx, &cache)?,
            cache,
            timeout,
            with,
            is_counted: false,
        })
    }

    /// Boots, runs the job, and waits for the end.
    fn run(&self, job: Job<'_>, suites: &[&Suite]) -> Result<Ended> {
        let is_shell = matches!(job, Job::Shell);
        let mut archive = Archive::default();
        self.add_system(&mut archive)?;
        for suite in suites {
            for (name, path) in suite.build(self.ctx)? {
                archive.program(self.ctx, &format!("{OURS}/{name}"), &path)?;
            }
            for folder in suite.folders {
                let folder = self.ctx.root.join(folder);
                let name = folder.file_name().context("a folder has a name")?;
                let name = name.to_string_lossy();
                for entry in fs::read_dir(&folder)? {
                    let entry = entry?;
                    let place = format!("{OURS}/{name}/{}", entry.file_name().to_string_lossy());
                    if entry.file_type()?.is_file() {
                        archive.host_file(&place, &entry.path())?;
                    }
                }
            }
        }
        for path in self.with {
            let name = path.file_name().context("--with names a file")?;
            let place = format!("{OURS}/{}", name.to_string_lossy());
            archive.program(self.ctx, &place, path)?;
        }
        match job {
            Job::Shell => archive.file("job/shell", false, b""),
            Job::Script(text) => archive.file("job/run", true, text.as_bytes()),
            Job::Command(words) => self.add_command(&mut archive, words)?,
        }
        // Two runs at a time may share the folder.
        let initrd = self.cache.join(format!("initrd-{}", std::process::id()));
        fs::write(&initrd, archive.finish())?;
        let boot = Boot {
            ctx: self.ctx,
            image: &self.kernel.image,
            initrd: &initrd,
            timeout: self.timeout,
            is_counted: self.is_counted,
        };
        let ended = boot.run(is_shell);
        fs::remove_file(&initrd)?;
        ended
    }

    /// What is in every machine.
    fn add_system(&self, archive: &mut Archive) -> Result<()> {
        archive.device("dev/console", 5, 1);
        archive.file("init", true, include_bytes!("init.sh"));
        archive.file(
            &format!("{OURS}/wire-up"),
            true,
            include_bytes!("wire_up.sh"),
        );
        archive.file(
            &format!("{OURS}/counters"),
            false,
            include_bytes!("counters.sh"),
        );
        archive.host_file("bin/busybox", &host::program("busybox")?)?;
        archive.link("bin/sh", "busybox");
        archive.file(
            "etc/passwd",
            false,
            b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
        );
        archive.file("etc/hosts", false, b"127.0.0.1 localhost\n");
        self.kernel.add_modules(self.ctx, archive)?;
        for name in PROGRAMS {
            self.add_program(archive, name)?;
        }
        for library in host::hidden_libraries() {
            archive.program(self.ctx, &library.to_string_lossy(), &library)?;
        }
        let provider = host::provider()?;
        archive.program(self.ctx, &provider.to_string_lossy(), &provider)?;
        archive.file("etc/libibverbs.d/rxe.driver", false, b"driver rxe\n");
        Ok(())
    }

    /// A program of the host. Inside, all lie in one folder: here that depends on the user's PATH.
    fn add_program(&self, archive: &mut Archive, name: &str) -> Result<String> {
        let host = host::program(name)?;
        let name = host.file_name().context("a program has a name")?;
        let place = format!("/usr/bin/{}", name.to_string_lossy());
        archive.program(self.ctx, &place, &fs::canonicalize(&host)?)?;
        Ok(place)
    }

    /// The job is one command: as a script, so that its words stay what they are.
    fn add_command(&self, archive: &mut Archive, words: &[String]) -> Result<()> {
        let mut words = words.to_vec();
        // By its path, since the shell would prefer an applet of the same name.
        if !suite::is_ours(&words[0])
            && let Ok(place) = self.add_program(archive, &words[0])
        {
            words[0] = place;
        }
        let quoted: Vec<String> = words
            .iter()
            .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
            .collect();
        let script = format!("#!/bin/sh\n{}\n", quoted.join(" "));
        archive.file("job/run", true, script.as_bytes());
        Ok(())
    }
}
