//! The log under scripts that a person can read, and under random schedules.

mod random;
mod script;
mod world;
