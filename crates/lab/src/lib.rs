//! The laboratory: figures of the five sources as experiments, and measurements of Quorate itself.
//!
//! **Promise.** One command runs a figure on real processes, and keeps its results as one JSON object a line.
//! Each claim of the source is judged against the measurements: *matched*, *beaten*, *differs*, *undecided*
//! or *missing*. A run whose own history is wrong (a row lost or doubled) proves nothing, and its claims
//! differ.
//!
//! **Shape.** One file a figure ([`figures`]): its section in the source, the varied setting, the method, the
//! claims, the drawing. The source's values are in `sources/SOURCE.toml`, each with its sentence.
//!
//! | module | promise |
//! |---|---|
//! | [`figures`] | the experiments, and the list of them |
//! | [`claim`] | the claims of a source about a figure, and the verdicts |
//! | [`record`] | the stored results of one run |
//! | [`source`] | values that a source gives |
//! | [`cluster`] | real processes of a cluster, killed and started again one by one |
//! | [`report`] | one self-contained page with all results |
//! | [`forwarder`] | distances between the nodes of a Cassandra on one machine |
//! | [`bench`](mod@bench) | `quorate bench`: measurements of Quorate itself, one file or folder each |
//! | [`judge`] | judges the consistency of a history on several threads within a time limit |

pub mod bench;
pub mod claim;
pub mod cluster;
pub mod figures;
pub mod forwarder;
pub mod judge;
mod program;
pub mod record;
pub mod report;
pub mod source;
mod sql;
pub mod store;
mod writers;

use std::path::PathBuf;

pub use bench::Running;
pub use program::quorate_program;

/// The setting in which a figure is run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The `quorate` program that starts the processes.
    pub program: PathBuf,
    /// Duration of each phase of an experiment, in seconds.
    pub phase_seconds: f64,
    /// Number of connections that write concurrently.
    pub clients: usize,
    /// The store, if the figure does not start its own.
    pub running: Running,
    /// Operations a second, instead of the source's rate, for figures with a rate.
    pub rate: Option<f64>,
}
