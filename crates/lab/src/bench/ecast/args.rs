//! The arguments of `quorate bench ecast`.

use std::path::PathBuf;

/// Measures the order alone: routers, receivers and a load, each in its own process.
#[derive(Clone, clap::Args)]
pub(crate) struct Args {
    /// Number of routers.
    #[arg(long, default_value_t = 3)]
    pub(super) routers: usize,
    /// Number of receivers.
    #[arg(long, default_value_t = 4)]
    pub(super) receivers: usize,
    /// Number of receivers of each message.
    #[arg(long, default_value_t = 3)]
    pub(super) copies: usize,
    /// Bytes of each message.
    #[arg(long, default_value_t = 100)]
    pub(super) bytes: usize,
    /// Number of messages in flight.
    #[arg(long, default_value_t = 8192)]
    pub(super) window: usize,
    /// Seconds of each run, after a warm-up of one second.
    #[arg(long, default_value_t = 10.0)]
    pub(super) seconds: f64,
    /// Number of runs. The result is the median.
    #[arg(long, default_value_t = 5)]
    pub(super) runs: usize,
    /// Give the routers disks, and also measure the disk alone and the order in memory.
    #[arg(long)]
    pub(super) durable: bool,
    /// Directory on the disk to measure; a new directory in it is used and then removed.
    #[arg(long, requires = "durable")]
    pub(super) directory: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}
