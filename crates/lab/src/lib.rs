//! The laboratory: figures of the five sources as experiments, and measurements of Quorate itself.
//!
//! **Promise.** A figure is run by one command on real processes, its results are kept as one JSON object a line, and each
//! claim that its source makes is judged against what was measured: *matched*, *beaten*, *differs*, *undecided* or *missing*.
//! A run whose own history is wrong (a row lost or doubled) proves nothing, and its claims differ.
//!
//! **Shape.** One file a figure ([`figures`]): where the source has it, what is varied, how it is run, what it claims, how it is
//! drawn. The source's values stand in `sources/SOURCE.toml`, with the sentence that gives them.
//!
//! | module | promise |
//! |---|---|
//! | [`figures`] | the experiments, and the list of them |
//! | [`claim`] | what a source says of a figure, and the verdict |
//! | [`record`] | results of one run, as they are kept |
//! | [`source`] | values that a source gives |
//! | [`cluster`] | real processes of a cluster, killed and started again one by one |
//! | [`report`] | one page with all of it, without anything that would have to be fetched |
//! | [`forwarder`] | distances between the nodes of a Cassandra on one machine |
//! | [`bench`](mod@bench) | `quorate bench`: measurements of Quorate itself, one file or folder each |
//! | [`judge`] | how consistent a history was, found on several threads within a time |

pub mod bench;
pub mod claim;
pub mod cluster;
pub mod figures;
pub mod forwarder;
pub mod judge;
pub mod record;
pub mod report;
pub mod source;
mod sql;
pub mod store;
mod writers;

use std::{env, path::PathBuf};

use anyhow::{Result, ensure};

pub use bench::Running;

/// How a figure is run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The `quorate` program that it starts its processes with.
    pub program: PathBuf,
    /// How long each phase of an experiment takes, in seconds.
    pub phase_seconds: f64,
    /// Connections that write at the same time.
    pub clients: usize,
    /// The store, where it is not one that the figure starts.
    pub running: Running,
    /// Operations a second where the figure has a rate, instead of the source's.
    pub rate: Option<f64>,
}

/// The `quorate` program that starts clusters, beside the one that runs.
pub fn quorate_program() -> Result<PathBuf> {
    let program = env::current_exe()?.with_file_name("quorate");
    ensure!(
        program.exists(),
        "clusters are started by {}, which is not there: `cargo build --release` builds it",
        program.display()
    );
    Ok(program)
}
