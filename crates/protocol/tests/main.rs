//! Tests of the protocols from outside: several processes, their links, and time, all in one thread.

mod cluster;
mod group;
mod paxos;
mod service;
mod wire;
mod world;
