//! `quorate watch`: the instrument of this name, on the cells of the local cluster unless others are named.

use std::ffi::OsString;

use anyhow::{Result, ensure};
use quorate_protocol::Role;

use crate::{cluster::DirectoryArgs, instruments};

/// Shows how consistent and how fast the last minute was for clients of cells, line after line.
///
/// Of all operations on strings that clients asked cells for: the proportion of those that were inconsistent, with its 95 % interval,
/// by how long reads were out of date, and latencies. Cells remember the last minute by themselves.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Addresses at which cells tell of themselves over HTTP, `HOST:PORT`: all of the cluster's. Without it, those of the local cluster.
    #[arg(long, value_delimiter = ',')]
    cells: Vec<String>,
    /// Tells it once, and ends.
    #[arg(long)]
    once: bool,
    /// Seconds from one line to the next.
    #[arg(long, default_value_t = 2.0)]
    every: f64,
    /// One JSON object a line.
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
            "the local cluster has no cells: `quorate up --cells 3` starts some, and --cells names others"
        );
    }
    let mut words: Vec<OsString> =
        ["--cells", &cells.join(","), "--every", &args.every.to_string()].map(OsString::from).into();
    words.extend(args.once.then(|| OsString::from("--once")));
    words.extend(args.json.then(|| OsString::from("--json")));
    instruments::run("watch", instruments::Args { words })
}
