//! Runs fuzz inputs through their targets, without libFuzzer.
//!
//! `replay` takes all committed corpora; `replay TARGET FILE...` takes the named files.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use xio_fuzz::{TARGETS, Target};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.split_first() {
        None => replay_corpora(),
        Some((name, files)) => replay_files(name, files),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Every file of every target's corpus; a target without any, or a corpus without a target, is
/// an error, since nobody would notice it.
fn replay_corpora() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in fs::read_dir(&root)? {
        let name = entry?.file_name();
        if !TARGETS.iter().any(|(target, _)| name == *target) {
            return Err(format!("corpus/{} belongs to no target", name.display()).into());
        }
    }
    for target in TARGETS {
        let mut files = Vec::new();
        for entry in fs::read_dir(root.join(target.0))? {
            files.push(entry?.path());
        }
        if files.is_empty() {
            return Err(format!("corpus/{} is empty", target.0).into());
        }
        files.sort();
        replay(target, &files)?;
    }
    Ok(())
}

fn replay_files(name: &str, files: &[String]) -> Result<(), Box<dyn Error>> {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    let target = target.ok_or_else(|| format!("there is no target {name}"))?;
    replay(target, &files.iter().map(PathBuf::from).collect::<Vec<_>>())
}

fn replay((name, target): &Target, files: &[PathBuf]) -> Result<(), Box<dyn Error>> {
    for file in files {
        let data = fs::read(file)?;
        let shown = Shown(file);
        target(&data);
        drop(shown);
    }
    println!("{name}: {} inputs", files.len());
    Ok(())
}

/// Names the input when the target panics on it.
struct Shown<'a>(&'a Path);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is {}", self.0.display());
        }
    }
}
