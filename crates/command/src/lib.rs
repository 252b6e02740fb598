//! The end of a run in the programs `quorate` and `quorate-instruments`: exit codes, reports and failures.
//!
//! Exit codes: 0, 1 (failed), 2 (usage). The code says whether the command did its work, not whether the
//! result could be printed. So commands that change something report the change by [`report!`]. If a reader
//! closes the pipe early, that is no failure. A subcommand with further codes returns them as an [`ExitCode`]
//! or as a [`Coded`] error.

mod description;

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

pub use description::CommandDescription;

/// The version of a program, with the commit that it was built from if the build script knew the commit.
#[macro_export]
macro_rules! version {
    () => {
        concat!(env!("CARGO_PKG_VERSION"), env!("QUORATE_COMMIT"))
    };
}

/// A mistake in the use of the command. The program exits with 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// A failure with its own exit code, by which other programs recognise the failure.
#[derive(Debug)]
pub struct Coded {
    /// Exit code.
    pub code: u8,
    /// Description of the failure, and who must act.
    pub why: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error for Coded {}

/// Writes a line to standard output, or returns the error. `println!` would panic if the reader is gone.
/// [`exit`] ignores the error of a reader that is gone.
#[macro_export]
macro_rules! print_line {
    ($($words:tt)*) => {
        ::std::io::Write::write_fmt(&mut ::std::io::stdout(), format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Reports a finished change as a line on standard output. The report does not affect the exit code: if the
/// line cannot be written, a note goes to standard error, unless the reader is gone.
#[macro_export]
macro_rules! report {
    ($($words:tt)*) => {
        $crate::report_line(format_args!($($words)*))
    };
}

/// Implements [`report!`].
pub fn report_line(line: fmt::Arguments<'_>) {
    let mut out = io::stdout();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        log_stderr(format_args!(
            "the command has done its work, but cannot report it on standard output: {error}"
        ));
    }
}

/// Writes a line to standard error and ignores a failure to do so. `eprintln!` would panic if the disk under
/// a log is full.
pub fn log_stderr(what: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "quorate: {what}");
}

/// Reports a failure on standard error and returns the exit code of the program.
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
    log_stderr(format_args!("{error:#}"));
    if error.is::<Usage>() {
        ExitCode::from(2)
    } else if let Some(coded) = error.downcast_ref::<Coded>() {
        ExitCode::from(coded.code)
    } else {
        ExitCode::FAILURE
    }
}
