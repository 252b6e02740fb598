//! The simulator: systems in a virtual world, and the checkers that watch them.
//!
//! Promise: a seed decides everything. Two runs of a scenario with one seed are the same run, to the last
//! byte on the last link. So `quorate sim <scenario> --seed S` replays any failure.
//!
//! | module | subject |
//! |---|---|
//! | [`stage`] | the parts that all simulated systems share, and how to write a new system |
//! | [`check`] | promises, judged from outside |
//! | [`scenario`] | files that name the cluster, the workload and the faults of a run |
//! | [`graphs`] | the promise about partial partitions, for every graph of links |
//! | [`latency`] | the times of calls of a replicated service where every delay is constant |
//! | [`mutation`] | rules broken on purpose, which the seeds must catch |
//!
//! The crate `quorate-world` provides machines, the network between them, chance and faults.
//!
//! Every message crosses its link as bytes, and the simulated processes run the code of production: tables,
//! groups and maps on a relay in a node, with the routers of a whole domain (`process.rs`).

pub mod check;
mod endpoint;
mod failure;
pub mod graphs;
pub mod latency;
pub mod mutation;
mod process;
mod report;
pub mod run;
pub mod scenario;
pub mod stage;
pub mod system;

pub use mutation::Mutation;
pub use report::Report;
pub use run::{Sweep, run, sweep};
pub use scenario::Scenario;
pub use stage::{Stage, Workload};
