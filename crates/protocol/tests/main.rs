//! Tests the protocols from outside: several processes, their links and the time, all in one thread.

mod cluster;
mod domain;
mod group;
mod paxos;
mod service;
mod wire;
mod world;
