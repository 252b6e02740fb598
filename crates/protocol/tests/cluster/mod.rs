//! Whole clusters of routers, supers, storage processes and clients: under scripts that a person can read, and under
//! random schedules.

mod engine;
mod names;
mod process;
mod random;
mod script;
mod users;
mod world;
