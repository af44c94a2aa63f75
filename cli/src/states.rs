//! `xio states`: the declared state tables, from the same data that the core runs on.

use std::fmt::Write as _;

use anyhow::Result;
use xio_proto::{Graphviz, MACHINES};

use crate::args::StatesArgs;
use crate::output::Output;

/// Prints the tables.
///
/// # Errors
/// When they cannot be printed.
pub(crate) fn run(args: &StatesArgs, out: &Output) -> Result<bool> {
    if args.dot {
        out.text(Graphviz(&MACHINES))?;
    } else {
        out.text(tables()?)?;
    }
    Ok(true)
}

/// All tables as text, an empty line between two.
fn tables() -> Result<String> {
    let mut text = String::new();
    for (number, machine) in MACHINES.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        write!(text, "{machine}")?;
    }
    Ok(text)
}
