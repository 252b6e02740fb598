//! What can be simulated: processes, their workload, and the checkers that watch them.

pub mod paxos;
