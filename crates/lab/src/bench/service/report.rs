//! The reports of hosts and clients, and the lines that a process exchanges with the bench.

use std::io::{BufRead, Write};

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The measurements of a client, at its end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Calls {
    /// Number of calls answered in the measured time.
    pub(super) measured: u64,
    pub(super) seconds: f64,
    /// Median time from a call to its answer, in microseconds; for calls made together, to the last answer.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Number of all answered calls.
    pub(super) answered: u64,
}

/// A host's report about itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct HostReport {
    /// The reason for which a replica of this process ended; `None` if no replica ended.
    pub(super) ended: Option<String>,
    pub(super) serving: bool,
    /// Whether the host leads the echo service.
    pub(super) leads: bool,
    pub(super) replicas: usize,
    /// The count and the fingerprint of the changes of each service.
    pub(super) applied: [(u64, u64); 3],
}

pub(super) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Returns the next line of the bench; `None` once the bench has ended.
pub(super) fn read_line() -> Result<Option<String>> {
    let mut word = String::new();
    let read = std::io::stdin().lock().read_line(&mut word)?;
    Ok((read > 0).then(|| word.trim().to_owned()))
}
