//! Asking before something that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;

use quorate_command::Usage;

/// Whether a person says yes to `question`. Where nobody can answer, `command` fails as used wrongly.
pub(crate) fn confirmed(command: &str, question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        let why =
            format!("{command} asks before it destroys something, and nobody can answer here: give --yes");
        return Err(Usage(why).into());
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
