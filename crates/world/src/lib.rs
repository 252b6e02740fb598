//! The virtual world: machines, their clocks, processors and disks, the network between them, chance, and faults.
//!
//! A [`World`] carries the processes of one [`Protocol`](quorate_protocol::Protocol). Everything that happens in it
//! comes from one seed: two worlds of one seed are the same world. The crate knows no protocol and judges nothing; the
//! simulator adds workloads and checkers.
//!
//! | module | |
//! |---|---|
//! | [`world`] | machines, links, one queue of what happens; or moved by hand |
//! | `machine` | a clock, a processor, an inbox, and the process there |
//! | `network` | links, what is on its way, cuts |
//! | `disk` | what is written, what is durable, what waits for it |
//! | [`random`] | chance that replays |
//! | [`fault`] | what goes wrong |

mod disk;
pub mod fault;
mod machine;
mod network;
pub mod random;
pub mod world;

pub use disk::{Breach, DiskSettings};
pub use fault::{Fault, FaultSettings, Nemesis};
pub use machine::MachineSettings;
pub use network::{CastSettings, NetworkSettings};
pub use random::{Chance, Delay};
pub use world::{Crash, Environment, Violation, World};
