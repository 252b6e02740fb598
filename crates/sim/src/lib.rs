//! The simulator: virtual network, clock and faults, and the checkers that watch them.
//!
//! Promise: a seed decides everything. Two runs of a scenario with one seed are the same run, to the last byte on the
//! last link; so a failure found by night is a failure replayed by day: `quorate sim <scenario> --seed S`.
//!
//! | module | |
//! |---|---|
//! | [`world`] | machines, clocks, links, one queue of what happens |
//! | [`fault`] | what goes wrong |
//! | [`check`] | promises, judged from outside |
//! | [`scenario`] | files that say which cluster, which workload, which faults |
//! | [`mod@run`] | one seed in two phases: safety under faults, then liveness |
//! | [`graphs`] | the promise about partial partitions, for every graph of links |
//! | [`mutation`] | rules broken on purpose, which the seeds must catch |
//!
//! Every message crosses its link as bytes; what runs is the very code that production runs.

pub mod check;
mod disk;
pub mod fault;
pub mod graphs;
mod machine;
pub mod mutation;
mod network;
pub mod random;
pub mod run;
pub mod scenario;
pub mod system;
pub mod world;

pub use disk::DiskSettings;
pub use fault::{Fault, FaultSettings, Nemesis};
pub use machine::MachineSettings;
pub use mutation::Mutation;
pub use network::NetworkSettings;
pub use random::{Chance, Delay};
pub use run::{Report, Sweep, run, sweep};
pub use scenario::Scenario;
pub use world::{Crash, Environment, Violation, World};
