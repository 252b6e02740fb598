//! `quorate watch`: runs the instrument on the given cells, or on those of the local cluster.

use std::ffi::OsString;

use anyhow::{Result, ensure};
use quorate_protocol::Role;

use crate::{directory::DirectoryArgs, instruments};

/// Shows the consistency and latency that clients of cells got in the last minute, line after line.
///
/// A line covers all operations on strings that clients asked of cells. It shows the proportion of
/// inconsistent operations with its 95 % interval, by how much time reads were out of date, and latencies.
/// Cells always remember the last minute, so nothing has to be switched on.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// HTTP addresses of all cells of the cluster, `HOST:PORT`. By default those of the local cluster.
    #[arg(long, value_delimiter = ',')]
    cells: Vec<String>,
    /// Prints one line and ends.
    #[arg(long)]
    once: bool,
    /// Seconds between lines.
    #[arg(long, default_value_t = 2.0)]
    every: f64,
    /// Prints JSON objects, each on a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut cells = args.cells;
    if cells.is_empty() {
        let processes = args.directory.directory()?.running()?.processes;
        let bound = processes.into_iter().filter(|process| process.role == Role::Cell);
        cells.extend(bound.filter_map(|process| process.bound).map(|bound| bound.http));
        ensure!(
            !cells.is_empty(),
            "the local cluster has no cells: start a cluster with cells (`quorate up --cells 3`), or give the HTTP addresses of \
             other cells with --cells"
        );
    }
    let mut words: Vec<OsString> =
        ["--cells", &cells.join(","), "--every", &args.every.to_string()].map(OsString::from).into();
    words.extend(args.once.then(|| OsString::from("--once")));
    words.extend(args.json.then(|| OsString::from("--json")));
    instruments::run("watch", instruments::Args { words })
}
