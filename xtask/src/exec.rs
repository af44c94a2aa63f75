//! Child processes: what is run is printed, and all that they print goes to standard output, so
//! that one stream has it in the order in which it happened.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use anyhow::{Context as _, Result, bail};

/// Lines that an error repeats of what a child process printed.
const TOLD_MAX: usize = 200;

/// A child process to be run.
#[derive(Debug)]
pub(crate) struct Cmd {
    shown_envs: String,
    command: Command,
}

impl Cmd {
    /// A program to be run in a folder, without standard input.
    pub(crate) fn new(dir: &Path, program: &Path) -> Self {
        let mut command = Command::new(program);
        command.current_dir(dir).stdin(Stdio::null());
        // `cargo run` describes the package xtask to us; our children are about other packages.
        for (key, _) in std::env::vars_os() {
            if key
                .to_str()
                .is_some_and(|key| key.starts_with("CARGO_PKG_"))
            {
                command.env_remove(key);
            }
        }
        command
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("CARGO_MANIFEST_PATH");
        Self {
            shown_envs: String::new(),
            command,
        }
    }

    /// The cargo that runs us.
    pub(crate) fn cargo<const N: usize>(dir: &Path, args: [&str; N]) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        Self::new(dir, Path::new(&cargo)).args(args)
    }

    /// Adds one argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable, which is shown with the command.
    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        if key != "CI" {
            self.shown_envs.push_str(&format!("{key}='{value}' "));
        }
        self.command.env(key, value);
        self
    }

    /// Leaves only these variables of the environment, so that its size is the same everywhere.
    pub(crate) fn only_envs(mut self, keys: &[&str]) -> Self {
        self.command.env_clear();
        for key in keys {
            if let Some(value) = std::env::var_os(key) {
                self.command.env(key, value);
            }
        }
        self
    }

    /// Sets the folder that it runs in.
    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Sets its standard input.
    pub(crate) fn stdin(mut self, input: impl Into<Stdio>) -> Self {
        self.command.stdin(input);
        self
    }

    /// Starts it, its standard output being a pipe to us and its errors going to our output.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn piped(mut self) -> Result<Child> {
        let shown = self.announce()?;
        self.command.stdout(Stdio::piped());
        let child = self.command.spawn();
        child.with_context(|| format!("cannot run {shown}"))
    }

    /// Runs it on our terminal, and returns what it ended with.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn terminal(mut self) -> Result<ExitStatus> {
        let shown = self.shown();
        self.command.stdin(Stdio::inherit());
        let status = self.command.status();
        status.with_context(|| format!("cannot run {shown}"))
    }

    /// Runs it, everything it prints going to our standard output.
    ///
    /// # Errors
    /// When it cannot be started or does not succeed.
    pub(crate) fn run(mut self) -> Result<()> {
        let shown = self.announce()?;
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot run {shown}"))?;
        if !status.success() {
            bail!("{status}: {shown}");
        }
        Ok(())
    }

    /// Runs it like [`run`](Self::run). The error of one that does not succeed goes on with what it
    /// printed last, from the line on that contains `from`: behind the output of later steps nobody
    /// would find it.
    ///
    /// # Errors
    /// When it cannot be started or does not succeed.
    pub(crate) fn run_telling(mut self, from: &str) -> Result<()> {
        let shown = self.shown();
        println!("$ {shown}");
        let (reader, writer) = std::io::pipe()?;
        self.command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = self
            .command
            .spawn()
            .with_context(|| format!("cannot run {shown}"))?;
        // The writing end is the child's alone, so that reading comes to an end with it.
        drop(self);
        let mut told = Vec::new();
        for line in std::io::BufReader::new(reader).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            println!("{line}");
            if !told.is_empty() || line.contains(from) {
                told.push(line);
            }
        }
        let status = child.wait()?;
        if !status.success() {
            told.truncate(TOLD_MAX);
            bail!("{status}: {shown}\n{}", told.join("\n"));
        }
        Ok(())
    }

    /// Prints what is to be run, and has its errors go to our standard output.
    fn announce(&mut self) -> Result<String> {
        let shown = self.shown();
        println!("$ {shown}");
        std::io::stdout().flush()?;
        let stdout = std::io::stdout().as_fd().try_clone_to_owned()?;
        self.command.stderr(Stdio::from(stdout));
        Ok(shown)
    }

    /// Runs it quietly and returns what it printed to standard output.
    ///
    /// # Errors
    /// When it cannot be started or does not succeed; the error has its standard error.
    pub(crate) fn output(self) -> Result<String> {
        let shown = self.shown();
        let output = self.finish()?;
        if !output.status.success() {
            bail!(
                "{}: {shown}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        String::from_utf8(output.stdout).with_context(|| format!("not UTF-8: {shown}"))
    }

    /// Whether it can be started and succeeds; what it prints is dropped.
    pub(crate) fn succeeds(self) -> bool {
        self.finish().is_ok_and(|output| output.status.success())
    }

    /// Runs it quietly, whatever comes of it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn finish(mut self) -> Result<Output> {
        let shown = self.shown();
        self.command
            .output()
            .with_context(|| format!("cannot run {shown}"))
    }

    /// The command as a person would type it.
    fn shown(&self) -> String {
        let program = Path::new(self.command.get_program());
        let mut shown = self.shown_envs.clone();
        shown.push_str(
            &program
                .file_name()
                .unwrap_or(program.as_os_str())
                .to_string_lossy(),
        );
        for arg in self.command.get_args() {
            shown.push(' ');
            shown.push_str(&arg.to_string_lossy());
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_what_was_printed_last() {
        let script = "echo early; echo there: 1 >&2; echo late; exit $0";
        let run = |status: &str| {
            let cmd = Cmd::new(Path::new("/"), Path::new("/bin/sh"));
            cmd.args(["-c", script, status]).run_telling("there:")
        };
        assert!(run("0").is_ok());
        let error = run("3").expect_err("it fails").to_string();
        let (what, told) = error.split_once('\n').expect("more than a line");
        assert!(what.starts_with("exit status: 3: sh -c"), "{what}");
        assert_eq!(told, "there: 1\nlate");
    }
}
