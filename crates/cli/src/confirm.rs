//! Asks for confirmation before a change that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;

use quorate_command::Usage;

/// Returns whether a person answers `question` with yes. Without a terminal, `command` fails with a usage
/// error.
pub(crate) fn confirmed(command: &str, question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        let why = format!(
            "`quorate {command}` asks for confirmation, but standard input is not a terminal: give --yes to go on unasked"
        );
        return Err(Usage(why).into());
    }
    write!(io::stderr(), "{question} [y/N] ").and_then(|()| io::stderr().flush())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
