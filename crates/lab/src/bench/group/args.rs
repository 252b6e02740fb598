//! The arguments of `quorate bench group`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Measures process groups: routers and members, each in its own process.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kind of measurement. A strength: updates of this strength. `groups`: the time to join many groups,
    /// their cost at rest, and the time until new views when a member is killed. `view`: views of one large
    /// group whose members are killed while others send. `stack`: the time of updates to the last of more and
    /// more members. `state`: the effect on others of a large state on its way to a joining member. `series`:
    /// soft sends and a flush compared with as many safe sends.
    #[arg(long, value_enum, default_value_t = Measure::Ordered)]
    pub(super) what: Measure,
    /// Number of groups, each of all members. Used by `--what groups`.
    #[arg(long, default_value_t = 5000)]
    pub(super) groups: usize,
    /// Number of routers.
    #[arg(long, default_value_t = 3)]
    pub(super) routers: usize,
    /// Number of members. The default is 3, or 64 with `--what view`.
    #[arg(long, default_value_t = 3, default_value_if("what", "view", "64"))]
    pub(super) members: usize,
    /// Number of processes, each with an equal share of the members. Used by `--what view` and `stack`.
    #[arg(long, default_value_t = 8)]
    pub(super) processes: usize,
    /// Numbers of members in each process, each measured separately. Used by `--what stack`.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    pub(super) stack: Vec<usize>,
    /// Numbers of sends, each measured separately. Used by `--what series`.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64])]
    pub(super) series: Vec<usize>,
    /// Size of the state in bytes. Used by `--what state`.
    #[arg(long, default_value_t = 1_000_000_000)]
    pub(super) state_bytes: usize,
    /// Number of processes that are killed, one after another. Used by `--what view`.
    #[arg(long, default_value_t = 20)]
    pub(super) kills: usize,
    /// Updates per second of all senders together. Used by `--what view` and `state`.
    #[arg(long, default_value_t = 50_000, default_value_if("what", "state", "200000"))]
    pub(super) rate: u64,
    /// Number of members that send. With `--what view`, one in each of this number of processes.
    #[arg(long, default_value_t = 3)]
    pub(super) senders: usize,
    /// Bytes of each update.
    #[arg(long, default_value_t = 64)]
    pub(super) bytes: usize,
    /// Updates in flight at each sender. With 1, the times of a send, a flush, a query of all and a read are
    /// printed, too.
    #[arg(long, default_value_t = 4096)]
    pub(super) in_flight: usize,
    /// Make each member listen at its own address, 127.0.0.2 and on, as if it had its own machine, so that
    /// soft updates are cast. Used by `--what soft`, `ordered` and `safe`.
    #[arg(long)]
    pub(super) apart: bool,
    /// Maximum number of updates that travel together; with 1 each travels alone, as in `bench ecast`.
    #[arg(long)]
    pub(super) pack: Option<u32>,
    /// Maximum size of a datagram, in bytes.
    #[arg(long, requires = "apart")]
    pub(super) datagram_bytes: Option<usize>,
    /// Seconds of each run, after a warm-up of one second; with `--what groups`, seconds at rest.
    #[arg(long, default_value_t = 5.0)]
    pub(super) seconds: f64,
    /// Number of runs. The result is the median.
    #[arg(long, default_value_t = 3)]
    pub(super) runs: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Measure {
    Soft,
    Ordered,
    Safe,
    Groups,
    View,
    Stack,
    State,
    Series,
}
