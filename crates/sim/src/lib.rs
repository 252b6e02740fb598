//! The simulator: virtual network, clock and faults, and the checkers that watch them.

pub mod fault;
mod machine;
mod network;
pub mod random;
pub mod world;

pub use fault::{Fault, FaultSettings, Nemesis};
pub use machine::MachineSettings;
pub use network::NetworkSettings;
pub use random::{Chance, Delay};
pub use world::{Crash, Environment, Violation, World};
