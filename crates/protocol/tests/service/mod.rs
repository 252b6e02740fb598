//! Replicated services, tested by readable scripts.

mod bytes;
mod client;
mod host;
mod large;
mod random;
mod script;
mod world;
