//! The simulator: systems in a virtual world, and the checkers that watch them.
//!
//! Promise: a seed decides everything. Two runs of a scenario with one seed are the same run, to the last byte on the
//! last link; so a failure found by night is a failure replayed by day: `quorate sim <scenario> --seed S`.
//!
//! | module | |
//! |---|---|
//! | [`stage`] | what all simulated systems have in common, and how to write one |
//! | [`system`] | the systems |
//! | [`check`] | promises, judged from outside |
//! | [`scenario`] | files that say which cluster, which workload, which faults |
//! | [`mod@run`] | one seed in two phases: safety under faults, then liveness |
//! | [`graphs`] | the promise about partial partitions, for every graph of links |
//! | [`latency`] | how long calls of a replicated service take where every delay is constant |
//! | [`mutation`] | rules broken on purpose, which the seeds must catch |
//!
//! Machines, the network between them, chance and faults are the crate `quorate-world`'s.
//!
//! Every message crosses its link as bytes; what runs is the very code that production runs.

pub mod check;
pub mod graphs;
pub mod latency;
pub mod mutation;
pub mod run;
pub mod scenario;
pub mod stage;
pub mod system;

pub use mutation::Mutation;
pub use run::{Report, Sweep, run, sweep};
pub use scenario::Scenario;
pub use stage::{Stage, Workload};
