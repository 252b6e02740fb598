//! [`FamilySummary`]: the summary of all cases of one kind of graphs.

use std::time::Duration;

use quorate_sim::graphs::Family;

/// The results for the cases of one kind.
pub(super) struct FamilySummary {
    pub(super) family: Family,
    /// Number of different graphs with which the cases begin. Graphs of five routers that differ only in the
    /// names of routers count as one.
    pub(super) graphs: usize,
    /// Number of these graphs in which some router talks with a majority.
    pub(super) graphs_promised: usize,
    pub(super) cases: usize,
    /// Number of cases in which every graph promises progress to some client.
    pub(super) promised: usize,
    /// Longest wait of a client that was promised progress.
    pub(super) longest: Duration,
    /// Longest wait of any client after the cut had healed.
    pub(super) healed: Duration,
    pub(super) failed: usize,
}
