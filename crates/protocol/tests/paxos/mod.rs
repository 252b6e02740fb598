//! The log under scripts that a person can read.

mod script;
mod world;
