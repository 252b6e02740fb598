//! The virtual world: machines, their clocks, processors and disks, the network between them, random chance,
//! and faults.
//!
//! A [`World`] carries the processes of one [`Protocol`](quorate_protocol::Protocol). Everything that happens
//! in it comes from one seed, so two worlds with the same seed are equal. The crate knows no particular
//! protocol, and checks nothing; the simulator adds workloads and checkers.
//!
//! | module | contents |
//! |---|---|
//! | [`world`] | machines, links, and one queue of events; or a world that is moved by hand |
//! | `machine` | a clock, a processor, an inbox, and the process |
//! | `network` | links, frames under way, cuts |
//! | `disk` | written records, durable records, and messages that wait for them |
//! | [`random`] | random draws that replay |
//! | [`fault`] | faults and their rates |

mod disk;
pub mod fault;
mod machine;
mod network;
mod outbox;
pub mod random;
pub mod world;

pub use disk::{Breach, DiskSettings};
pub use fault::{Fault, FaultSettings, Nemesis};
pub use machine::MachineSettings;
pub use network::{CastSettings, NetworkSettings};
pub use random::{Chance, Delay};
pub use world::{Crash, Environment, Violation, World};
