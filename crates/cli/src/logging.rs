//! The log of a process, which goes to standard error.

use std::io;

use tracing_subscriber::EnvFilter;

/// Logs to standard error, at the level that `QUORATE_LOG` sets (`info`, or `quorate_runtime=debug,info`).
pub(crate) fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("QUORATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let color = io::IsTerminal::is_terminal(&io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(color)
        .with_writer(io::stderr)
        // Internal errors are not logged: a failed write would be reported by `eprintln!`, which panics, so a
        // full disk would end the process.
        .log_internal_errors(false)
        .init();
}
