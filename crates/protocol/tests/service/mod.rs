//! Replicated services under scripts that a person can read.

mod bytes;
mod client;
mod host;
mod large;
mod random;
mod script;
mod world;
