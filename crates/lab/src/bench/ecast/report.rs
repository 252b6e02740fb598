//! The reports of the load process and of a receiver.

use serde::{Deserialize, Serialize};

/// The report of the load process on a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct EcastRun {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) latency_p50_us: f64,
    pub(super) latency_p99_us: f64,
    pub(super) latency_max_us: f64,
    /// Number of messages sent, including the warm-up, by receiver.
    pub(super) destined: Vec<u64>,
    pub(super) outcomes_other: u64,
    pub(super) resends: u64,
}

impl EcastRun {
    pub(super) fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }
}

/// The report of a receiver at the end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Received {
    pub(super) delivered: u64,
    pub(super) faults: u64,
}
