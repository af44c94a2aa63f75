//! What the machine needs of the host: programs and libraries, and the packages that have them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::ctx::Ctx;
use crate::steps::Installer;

/// Where programs are looked for beyond `PATH`: an ordinary user's often has no `sbin`.
const FOLDERS: &[&str] = &["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where libraries of the machine's architecture lie.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Debian packages, each with something in it by which one sees that it is there: a program, or
/// the path of a file.
const PACKAGES: &[(&str, &str)] = &[
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("busybox-static", "busybox"),
    ("iproute2", "rdma"),
    ("xz-utils", "xz"),
    ("libibverbs1", "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"),
    ("librdmacm1", "/usr/lib/x86_64-linux-gnu/librdmacm.so.1"),
    ("ibverbs-providers", "/etc/libibverbs.d/rxe.driver"),
    ("ibverbs-utils", "ibv_devinfo"),
    ("rdmacm-utils", "rping"),
    ("perftest", "ib_send_lat"),
    ("strace", "strace"),
    // To build the driver.
    ("libibverbs-dev", "/usr/include/infiniband/verbs.h"),
    ("librdmacm-dev", "/usr/include/rdma/rdma_cma.h"),
    ("pkg-config", "pkg-config"),
    ("libclang-14-dev", "/usr/lib/llvm-14/lib/libclang.so"),
    ("cmake", "cmake"),
    ("make", "make"),
    ("g++", "c++"),
];

/// Packages that are not there.
pub(crate) fn missing() -> Vec<&'static str> {
    PACKAGES
        .iter()
        .filter(|(_, probe)| {
            if probe.starts_with('/') {
                !Path::new(probe).exists()
            } else {
                program(probe).is_err()
            }
        })
        .map(|(package, _)| *package)
        .collect()
}

/// Installs what is missing, where we may.
///
/// # Errors
/// When something is missing still; the error names the command that brings it.
pub(crate) fn ensure(ctx: &Ctx) -> Result<()> {
    let absent = missing();
    if absent.is_empty() {
        return Ok(());
    }
    if let Err(error) = Installer::new(ctx).apt(&absent) {
        println!("{error:#}");
    }
    match missing() {
        absent if absent.is_empty() => Ok(()),
        absent => bail!(
            "the machine needs packages that are not here: apt-get install {}",
            absent.join(" ")
        ),
    }
}

/// The path of a program of the host.
///
/// # Errors
/// When there is none of that name.
pub(super) fn program(name: &str) -> Result<PathBuf> {
    if name.contains('/') {
        return fs::canonicalize(name).with_context(|| name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("there is no program {name} here"))
}

/// The provider of soft-RoCE, whose name has the version of the library's inside in it.
///
/// # Errors
/// When it is not there.
pub(super) fn provider() -> Result<PathBuf> {
    let folder = Path::new(LIBRARIES).join("libibverbs");
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("librxe-") {
            return Ok(entry.path());
        }
    }
    bail!(
        "no librxe-*.so in {}: apt-get install ibverbs-providers",
        folder.display()
    )
}

/// Libraries that are opened at run time, so that no program names them: the providers', what
/// threads of the C library end with, and what programs built to find verbs at run time open.
pub(super) fn hidden_libraries() -> Vec<PathBuf> {
    ["libgcc_s.so.1", "libibverbs.so.1", "librdmacm.so.1"]
        .iter()
        .flat_map(|name| [LIBRARIES, "/lib/x86_64-linux-gnu"].map(|at| Path::new(at).join(name)))
        .filter(|path| path.is_file())
        .collect()
}

/// The host's time stamp counter in kHz, as its kernel measured it. `None` where an ordinary user
/// may not read the kernel's log.
pub(super) fn counter_khz(ctx: &Ctx) -> Option<u64> {
    let log = ctx.cmd("dmesg", []).output().ok()?;
    khz(&log)
}

fn khz(log: &str) -> Option<u64> {
    // A refined figure comes after the first one, and is the better.
    log.lines()
        .rev()
        .filter(|line| line.contains("tsc: "))
        .find_map(|line| {
            let (before, _) = line.split_once(" MHz")?;
            let number = before.rsplit(' ').next()?;
            let (whole, part) = number.split_once('.')?;
            Some(whole.parse::<u64>().ok()? * 1000 + format!("{part:0<3}").parse::<u64>().ok()?)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_read_from_the_log() {
        let log = "[0.0] tsc: Detected 2300.000 MHz processor\n[1.0] tsc: Refined TSC clocksource \
                   calibration: 2300.04 MHz\n[2.0] clocksource: tsc\n";
        assert_eq!(khz(log), Some(2_300_040));
        assert_eq!(
            khz("[0.0] tsc: Detected 2300.000 MHz processor\n"),
            Some(2_300_000)
        );
        assert_eq!(khz("[0.0] nothing\n"), None);
    }
}
