//! The library on real threads and sockets of this machine.

mod backup;
mod beside;
mod checkpoint;
mod durable;
mod examples;
mod group;
mod http;
mod large_states;
mod lives;
mod local;
mod loops;
mod maps;
mod node;
mod scan;
mod service;
mod service_drops;
mod service_kept;
mod ways;
mod words;
