//! The simulator: virtual network, clock and faults, and the checkers that watch them.

pub mod fault;
mod network;
pub mod random;
pub mod world;

pub use fault::{Fault, FaultSettings, Nemesis};
pub use network::NetworkSettings;
pub use random::{Chance, Delay};
pub use world::{Crash, Environment, MachineSettings, Violation, World};
