//! The library on real threads and sockets of this machine.

mod beside;
mod group;
mod local;
mod node;
mod scan;
mod service;
