//! The log, tested by readable scripts and by random schedules.

mod alone;
mod bytes;
mod decisions;
mod random;
mod recovery;
mod reign;
mod script;
mod snapshots;
pub(crate) mod trace;
mod world;
