//! `xio completions` and `xio man`: what is made of the declared command line.

use anyhow::{Result, bail};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::output::Output;

/// `xio completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  xio completions bash > \
                        ~/.local/share/bash-completion/completions/xio\n  xio completions fish > \
                        ~/.config/fish/completions/xio.fish")]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// `xio man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  xio man | man -l -\n  xio man decode > xio-decode.1")]
pub(crate) struct ManArgs {
    /// The page of this command [default: that of xio]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Prints completions.
///
/// # Errors
/// When they cannot be printed.
pub(crate) fn completions(args: &CompletionsArgs, out: &Output) -> Result<bool> {
    let mut bytes = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "xio", &mut bytes);
    out.text(String::from_utf8(bytes)?)?;
    Ok(true)
}

/// Prints a manual page.
///
/// # Errors
/// When there is no such command, or the page cannot be printed.
pub(crate) fn man(args: &ManArgs, out: &Output) -> Result<bool> {
    let mut all = Cli::command();
    // Gives commands the options that all have.
    all.build();
    let command = match &args.command {
        None => all,
        Some(name) => match all.find_subcommand(name) {
            Some(command) => command.clone().display_name(format!("xio-{name}")),
            None => {
                let names = all.get_subcommands().map(clap::Command::get_name);
                let names = names.collect::<Vec<_>>().join(", ");
                bail!("there is no command {name}; there are {names}")
            }
        },
    };
    let mut bytes = Vec::new();
    Man::new(command).render(&mut bytes)?;
    out.text(String::from_utf8(bytes)?)?;
    Ok(true)
}
