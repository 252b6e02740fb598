//! `quorate man`: manual pages.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use quorate_command::report;

use crate::instruments;

/// Writes the manual pages of all commands into a directory.
///
/// `man -l DIR/quorate-up.1` shows a page. In a directory `man1` on the MANPATH, `man quorate-up` finds it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory for the pages. The command creates the directory if necessary.
    directory: PathBuf,
}

/// Writes the pages of `command`, the command line of this program.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    let shown = args.directory.display();
    fs::create_dir_all(&args.directory).with_context(|| format!("cannot create {shown}"))?;
    clap_mangen::generate_to(instruments::complete(command)?, &args.directory)
        .with_context(|| format!("cannot write manual pages into {shown}"))?;
    report!("The manual pages are in {shown}; `man -l {shown}/quorate.1` shows the first.");
    Ok(())
}
