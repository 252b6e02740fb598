//! Real reactors on real sockets of this machine.

mod chat;
mod datagrams;
mod disk;
mod domains;
mod driven;
mod echo;
mod hostile;
mod links;
mod relay;
mod turns;
