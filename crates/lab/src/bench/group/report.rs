//! The reports that members print for the bench.

use std::io::{self, Write};

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The summary of a member at the end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Summary {
    pub(super) applied: u64,
    /// Number of updates that were out of their sender's order, duplicate or changed.
    pub(super) faults: u64,
    /// A fingerprint of all updates in the order in which they were applied.
    pub(super) print: u64,
    /// Time from a send to its answer, which comes with its delivery at this member, in microseconds: the
    /// median and the 99th percentile. `None` if this member sent nothing.
    pub(super) latency_us: Option<[f64; 2]>,
    /// Time from a send by another member until this member has applied the update, in microseconds: the
    /// median and the 99th percentile. `None` if no other member sent.
    pub(super) elsewhere_us: Option<[f64; 2]>,
    /// Time from a send by another member until this member has applied the update, in microseconds, for soft
    /// updates that were sent after a pause: the median and the 99th percentile.
    pub(super) elsewhere_alone_us: Option<[f64; 2]>,
    pub(super) alone: Option<Alone>,
}

/// Medians of calls made one at a time.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Alone {
    /// Median time until a soft send right after another send returns, in nanoseconds.
    pub(super) send_ns_p50: f64,
    /// Median time until a soft send after a pause returns, in nanoseconds.
    pub(super) send_idle_ns_p50: f64,
    /// Median time of a flush after one soft send, in microseconds.
    pub(super) flush_us_p50: f64,
    pub(super) query_all_us_p50: f64,
    /// Median time of a read right after another read, in nanoseconds.
    pub(super) read_ns_p50: f64,
    /// Median time of a read after a query, in nanoseconds.
    pub(super) read_idle_ns_p50: f64,
}

pub(super) fn say(line: impl std::fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
