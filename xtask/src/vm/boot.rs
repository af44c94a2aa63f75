//! One boot of the machine, from qemu's start to its end.

use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::host;
use crate::ctx::Ctx;
use crate::exec::Cmd;

/// Marks in what the machine prints: the job begins and ends, each with the machine's uptime.
const BEGIN: &str = "xio-vm: begin ";
const END: &str = "xio-vm: end ";

/// The machine's clock may be off by that factor; one that took a wrong calibration is off by far
/// more.
const SKEW_MAX: f64 = 1.5;

/// Shorter spans say nothing about a clock, in seconds.
const SPAN_MIN: f64 = 2.0;

/// Boots until one has a clock that is right.
const BOOTS_MAX: u32 = 3;

/// What is booted.
pub(super) struct Boot<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) image: &'a Path,
    pub(super) initrd: &'a Path,
    pub(super) timeout: Duration,
    /// Its clock counts instructions: one processor, and no time passes outside of them.
    pub(super) is_counted: bool,
}

/// How it ended.
pub(super) struct Ended {
    /// The job's status.
    pub(super) status: u8,
    /// From the start of qemu to its end.
    pub(super) took: Duration,
    /// All lines that were printed.
    pub(super) lines: Vec<String>,
}

impl Boot<'_> {
    /// Boots and waits for the end.
    ///
    /// # Errors
    /// When the machine ended without a status, took too long, or has no clock that is right.
    pub(super) fn run(&self, is_shell: bool) -> Result<Ended> {
        for _ in 0..BOOTS_MAX {
            let start = now();
            if is_shell {
                let status = self.qemu("mon:stdio").terminal()?;
                return Ok(Ended {
                    status: guest_status(status.code())?,
                    took: start.elapsed(),
                    lines: Vec::new(),
                });
            }
            let mut child = self.qemu("stdio").piped()?;
            let watched = self.watch(&mut child, start);
            if watched.is_err() {
                // It may have ended by itself meanwhile.
                let _ = child.kill();
            }
            let ended = child.wait().context("waiting for qemu")?;
            let (seen, lines) = watched?;
            match seen {
                Seen::BadClock(factor) => {
                    println!("xio-vm: the clock inside runs {factor:.1} times too fast; again");
                }
                // A step of bringing up that failed has said so, with a status.
                Seen::NoBoot if ended.code() == Some(0) => {
                    println!("xio-vm: the machine ended before it was up; again");
                }
                Seen::NoBoot => {
                    return Ok(Ended {
                        status: guest_status(ended.code())?,
                        took: start.elapsed(),
                        lines,
                    });
                }
                Seen::Ended(status) => {
                    let status = match status {
                        Some(status) => status,
                        None => guest_status(ended.code())?,
                    };
                    return Ok(Ended {
                        status,
                        took: start.elapsed(),
                        lines,
                    });
                }
            }
        }
        bail!("{BOOTS_MAX} boots in a row failed");
    }

    fn qemu(&self, serial: &str) -> Cmd {
        let mut append = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on \
                          no_timer_check"
            .to_owned();
        let processors: &[&str] = if self.is_counted {
            // A nanosecond for each instruction, and none for waiting.
            &[
                "tcg,thread=single",
                "-smp",
                "1",
                "-icount",
                "shift=0,sleep=off",
            ]
        } else {
            append.push_str(" tsc=reliable");
            if let Some(khz) = host::counter_khz(self.ctx) {
                append.push_str(&format!(" tsc_early_khz={khz}"));
            }
            &["tcg,thread=multi", "-smp", "2"]
        };
        // Without what makes the emulation of memory accesses and page tables slower.
        self.ctx
            .cmd("qemu-system-x86_64", [])
            .arg("-accel")
            .args(processors)
            .args(["-m", "1024"])
            .args(["-cpu", "max,-smap,-smep,-la57,-pclmulqdq"])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-serial", serial])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
            .arg("-kernel")
            .arg(self.image)
            .arg("-initrd")
            .arg(self.initrd)
            .args(["-append", &append])
    }

    /// Passes on what the machine prints, and looks at its clock.
    fn watch(&self, child: &mut Child, start: Instant) -> Result<(Seen, Vec<String>)> {
        let output = child.stdout.take().context("qemu's output is a pipe")?;
        let (sender, receiver) = channel();
        let reader = std::thread::spawn(move || forward(output, &sender));
        let seen = self.look(&receiver, child, start)?;
        if !matches!(seen, Seen::Ended(_)) {
            return Ok((seen, Vec::new()));
        }
        match reader.join() {
            Ok(lines) => Ok((seen, lines)),
            Err(_) => bail!("the output of qemu could not be read"),
        }
    }

    fn look(&self, lines: &Receiver<Mark>, child: &mut Child, start: Instant) -> Result<Seen> {
        let mut begin = Mark {
            at: start,
            uptime: 0.0,
            status: None,
        };
        let mut status = None;
        loop {
            let left = self.timeout.saturating_sub(start.elapsed());
            match lines.recv_timeout(left) {
                Ok(mark) => {
                    // Of the first span a part is qemu's own start, so that only too fast is wrong.
                    let factor = match self.is_counted {
                        true => 1.0,
                        false => factor(&begin, &mark),
                    };
                    if factor > SKEW_MAX || (factor < 1.0 / SKEW_MAX && begin.uptime > 0.0) {
                        if begin.uptime > 0.0 {
                            bail!("the clock inside ran {factor:.2} times as fast as it should");
                        }
                        child.kill().context("ending qemu")?;
                        return Ok(Seen::BadClock(factor));
                    }
                    status = mark.status;
                    begin = mark;
                }
                Err(RecvTimeoutError::Disconnected) if begin.uptime == 0.0 => {
                    return Ok(Seen::NoBoot);
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Seen::Ended(status)),
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the machine is not done after {} s (--timeout)",
                    self.timeout.as_secs()
                ),
            }
        }
    }
}

/// What came of watching.
enum Seen {
    /// The output ended, after this status if one was told.
    Ended(Option<u8>),
    /// It ended before the job began, as a kernel does that is starved by other work of the host.
    NoBoot,
    /// The clock inside is so many times too fast.
    BadClock(f64),
}

/// A mark in the output.
#[derive(Debug)]
struct Mark {
    at: Instant,
    /// Seconds since the machine's boot, by its own clock.
    uptime: f64,
    status: Option<u8>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is compared with the clock of the machine"
)]
fn now() -> Instant {
    Instant::now()
}

/// How much faster the machine's clock went from one mark to the other; 1 for what is too short to
/// tell.
fn factor(from: &Mark, to: &Mark) -> f64 {
    let here = to.at.duration_since(from.at).as_secs_f64();
    let inside = to.uptime - from.uptime;
    if here.max(inside) < SPAN_MIN {
        return 1.0;
    }
    inside / here.max(0.001)
}

/// Prints all that comes, sends the marks in it, and returns its lines.
fn forward(mut output: ChildStdout, marks: &Sender<Mark>) -> Vec<String> {
    let mut chunk = [0; 4096];
    let (mut line, mut lines) = (Vec::new(), Vec::new());
    loop {
        let count = match output.read(&mut chunk) {
            Ok(0) => return lines,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return lines,
        };
        let mut stdout = std::io::stdout().lock();
        // Whoever read our output went away: the machine goes on, its status still counts.
        let _ = stdout.write_all(&chunk[..count]);
        let _ = stdout.flush();
        for &byte in &chunk[..count] {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let text = String::from_utf8_lossy(&line);
            if let Some((uptime, status)) = mark(text.trim()) {
                let mark = Mark {
                    at: now(),
                    uptime,
                    status,
                };
                // Nobody looks any more: the machine is being ended.
                let _ = marks.send(mark);
            }
            lines.push(text.trim_end().to_owned());
            line.clear();
        }
    }
}

/// Uptime and status in a line that is a mark.
fn mark(line: &str) -> Option<(f64, Option<u8>)> {
    let rest = line
        .strip_prefix(BEGIN)
        .or_else(|| line.strip_prefix(END))?;
    let mut words = rest.split_whitespace();
    let uptime = words.next()?.parse().ok()?;
    Some((uptime, words.next().and_then(|word| word.parse().ok())))
}

/// The status that qemu's device for it makes part of its own.
fn guest_status(code: Option<i32>) -> Result<u8> {
    match code {
        // qemu's own failures are 1 too, but then there was no machine to print a mark.
        Some(code) if code & 1 == 1 => Ok(u8::try_from(code >> 1)?),
        _ => bail!("the machine ended without a status (qemu: {code:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_understood() {
        assert_eq!(mark("xio-vm: begin 4.25"), Some((4.25, None)));
        assert_eq!(mark("xio-vm: end 7.5 139"), Some((7.5, Some(139))));
        assert_eq!(mark("xio-vm: failed: ip"), None);
        assert_eq!(mark("xio-vm: end soon"), None);
    }

    #[test]
    fn status_comes_out_of_the_device() {
        assert_eq!(guest_status(Some(1)).unwrap(), 0);
        assert_eq!(guest_status(Some(7)).unwrap(), 3);
        // A reboot or power off, and a signal.
        assert!(guest_status(Some(0)).is_err());
        assert!(guest_status(None).is_err());
    }

    #[test]
    fn clock_is_judged_over_spans_that_are_long_enough() {
        let at = now();
        let mark = |seconds, uptime| Mark {
            at: at + Duration::from_secs(seconds),
            uptime,
            status: None,
        };
        assert_eq!(factor(&mark(0, 0.0), &mark(1, 1.9)), 1.0);
        assert_eq!(factor(&mark(0, 0.0), &mark(4, 96.0)), 24.0);
        assert_eq!(factor(&mark(1, 1.0), &mark(11, 6.0)), 0.5);
    }
}
