//! The report of a simulated run: its seed, its failure and its counts.

use std::{collections::BTreeMap, time::Duration};

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The failure: a promise that a checker found broken, or an assertion of the code itself.
    pub failure: Option<String>,
    /// Number of times that each event occurred, by its name.
    pub counts: BTreeMap<String, u64>,
    /// Number of steps of the world.
    pub steps: u64,
    /// Duration of the run in virtual time.
    pub span: Duration,
    /// The hash of all events: equal for equal seeds.
    pub trace: u64,
}
