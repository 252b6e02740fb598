//! Process groups under scripts that a person can read.

mod bytes;
mod script;
mod world;
