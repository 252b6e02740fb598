//! Whole clusters of routers, supers, storage processes and clients, tested by readable scripts and by random
//! schedules.

mod engine;
mod names;
mod process;
mod random;
mod script;
mod users;
mod world;
