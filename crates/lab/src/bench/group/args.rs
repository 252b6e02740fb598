//! The arguments of `quorate bench group`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Measures process groups: routers and members, each in its own process.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Updates of this strength. Or `groups`: the time to join many groups, their cost at rest, and the time
    /// until new views when a member is killed. Or `view`: views of one large group whose members are killed
    /// while others send. Or `stack`: the time of updates to the last of more and more members. Or `state`:
    /// the effect on others of a large state on its way to a joining member. Or `series`: soft sends and a
    /// flush compared with as many safe sends.
    #[arg(long, value_enum, default_value_t = Measure::Ordered)]
    pub(super) what: Measure,
    /// With `--what groups`: number of groups, each of all members.
    #[arg(long, default_value_t = 5000)]
    pub(super) groups: usize,
    /// Routers.
    #[arg(long, default_value_t = 3)]
    pub(super) routers: usize,
    /// Members; with `--what view`, 64 unless given.
    #[arg(long, default_value_t = 3, default_value_if("what", "view", "64"))]
    pub(super) members: usize,
    /// With `--what view` and `stack`: processes, each with an equal share of the members.
    #[arg(long, default_value_t = 8)]
    pub(super) processes: usize,
    /// With `--what stack`: members in each process, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    pub(super) stack: Vec<usize>,
    /// With `--what series`: numbers of sends, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64])]
    pub(super) series: Vec<usize>,
    /// With `--what state`: bytes of the state.
    #[arg(long, default_value_t = 1_000_000_000)]
    pub(super) state_bytes: usize,
    /// With `--what view`: number of processes that are killed, one after another.
    #[arg(long, default_value_t = 20)]
    pub(super) kills: usize,
    /// With `--what view` and `state`: updates per second of all senders together.
    #[arg(long, default_value_t = 50_000, default_value_if("what", "state", "200000"))]
    pub(super) rate: u64,
    /// Members that send; with `--what view`, one in each of this number of processes.
    #[arg(long, default_value_t = 3)]
    pub(super) senders: usize,
    /// Bytes of each update.
    #[arg(long, default_value_t = 64)]
    pub(super) bytes: usize,
    /// Updates in flight at each sender. With 1, the times of a send, a flush, a query of all and a read are
    /// printed, too.
    #[arg(long, default_value_t = 4096)]
    pub(super) in_flight: usize,
    /// With `--what soft`, `ordered` and `safe`: each member listens at its own address, 127.0.0.2 and on, as
    /// if it had its own machine, so soft updates are cast.
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
    /// Runs; the result is the median.
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
