//! `quorate completions`: a script by which a shell completes commands and flags.

use std::io;

use anyhow::Result;
use clap_complete::{Shell, generate};

use crate::instruments;

/// Prints a script by which a shell completes the commands and flags of quorate.
///
/// For bash: `quorate completions bash > ~/.local/share/bash-completion/completions/quorate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell that will read the script.
    shell: Shell,
}

/// Prints the script for `command`, the command line of this program.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    generate(args.shell, &mut instruments::complete(command)?, "quorate", &mut script);
    io::Write::write_all(&mut io::stdout(), &script)?;
    Ok(())
}
