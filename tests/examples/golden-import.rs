//! Makes the vector files of `golden/` from a folder of annotated recordings.
//!
//! `cargo run -p xio-tests --example golden-import -- <folder of *.txt> <output folder>`

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use xio_tests::golden::{Layouts, import};

fn main() -> Result<(), Box<dyn Error>> {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [from, to] = &folders[..] else {
        return Err("want two folders: recordings, vector files".into());
    };
    let layouts = Layouts::parse(&fs::read_to_string(to.join("layouts.vec"))?)?;
    let mut names: Vec<PathBuf> = fs::read_dir(from)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    names.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    names.sort();
    for path in names {
        let transcript = import(&fs::read_to_string(&path)?, &layouts)
            .map_err(|what| format!("{}: {what}", path.display()))?;
        fs::write(
            to.join(format!("{}.vec", transcript.name)),
            transcript.text(),
        )?;
        println!("{}: {} records", transcript.name, transcript.records.len());
    }
    Ok(())
}
