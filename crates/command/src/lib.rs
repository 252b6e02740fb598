//! The end of a run, the same for the programs `quorate` and `quorate-instruments`.
//!
//! Exit codes: 0, 1 (failed), 2 (usage). A reader that closes the pipe has seen enough, which is no failure. Other codes are
//! those of single subcommands, which return them as an [`ExitCode`] or say them as a [`Coded`] error.

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

/// A mistake in how the command was used: exits with 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// A failure with an exit code of its own, by which other programs know it.
#[derive(Debug)]
pub struct Coded {
    /// The exit code.
    pub code: u8,
    /// The failure, and who must act.
    pub why: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error for Coded {}

/// Writes a line to standard output. An error if it cannot be written: [`exit`] says nothing of one whose reader is gone, of which
/// `println!` would make a panic.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        ::std::io::Write::write_fmt(&mut ::std::io::stdout(), format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Tells on standard error what failed, if anything did. The code to exit with.
pub fn exit(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match outcome {
        Ok(code) => return code,
        Err(error) => error,
    };
    let is_unread = |error: &anyhow::Error| {
        error.downcast_ref().is_some_and(|it: &io::Error| it.kind() == io::ErrorKind::BrokenPipe)
    };
    if is_unread(&error) {
        return ExitCode::SUCCESS;
    }
    // `eprintln!` would panic where the disk under the log is full.
    let _ = writeln!(io::stderr(), "quorate: {error:#}");
    if error.is::<Usage>() {
        ExitCode::from(2)
    } else if let Some(coded) = error.downcast_ref::<Coded>() {
        ExitCode::from(coded.code)
    } else {
        ExitCode::FAILURE
    }
}
