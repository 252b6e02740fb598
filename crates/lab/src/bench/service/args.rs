//! The arguments of `quorate bench service`.

use std::path::PathBuf;

/// Measures replicated services: writes and reads, many in flight and single ones.
#[derive(Clone, clap::Args)]
pub(crate) struct Args {
    /// Bytes of each request, reply and delta.
    #[arg(long, default_value_t = 100)]
    pub(super) bytes: usize,
    /// Calls in flight, of all clients together.
    #[arg(long, default_value_t = 8192)]
    pub(super) in_flight: usize,
    /// Calls that a client makes together.
    #[arg(long, default_value_t = 256)]
    pub(super) together: usize,
    /// Clients that read, each a process; one more client writes.
    #[arg(long, default_value_t = 8)]
    pub(super) readers: usize,
    /// Seconds of each measurement, after a warm-up of one second.
    #[arg(long, default_value_t = 3.0)]
    pub(super) seconds: f64,
    /// Number of runs. The results are the medians.
    #[arg(long, default_value_t = 3)]
    pub(super) runs: usize,
    /// Measures writes with hosts on disk, compared with the same writes in memory and with the bare disk.
    #[arg(long)]
    pub(super) disk: bool,
    /// Directory on the disk to measure; a new directory in it is used and then removed.
    #[arg(long, requires = "disk")]
    pub(super) directory: Option<PathBuf>,
    /// Instead of single calls, measures transactions: with T-Paxos, as reads and writes, and as writes
    /// alone, for 1 to 16 clients.
    #[arg(long, conflicts_with = "disk")]
    pub(super) transactions: bool,
    /// Instead of the usual measurements, kills the leader this number of times at full load, and measures
    /// how long no call is answered.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["disk", "transactions"])]
    pub(super) kills: Option<usize>,
    /// Instead of the usual measurements, stops the leader this number of times at half load, for 4 s each
    /// time.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["disk", "transactions", "kills"])]
    pub(super) stops: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    /// Returns the default arguments with this time for each measurement.
    pub(super) fn plain(seconds: f64) -> Args {
        Args {
            bytes: 100,
            in_flight: 8192,
            together: 256,
            readers: 1,
            seconds,
            runs: 1,
            disk: false,
            directory: None,
            transactions: false,
            kills: None,
            stops: None,
            json: false,
        }
    }
}
