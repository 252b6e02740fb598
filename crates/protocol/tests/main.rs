//! Tests of the protocols from outside: several processes, their links, and time, all in one thread.

mod cluster;
mod domain;
mod group;
mod paxos;
mod service;
mod wire;
mod world;
