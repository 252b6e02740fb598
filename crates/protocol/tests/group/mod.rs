//! Process groups, tested by readable scripts.

mod bytes;
mod script;
mod world;
