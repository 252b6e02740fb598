//! The parts of the test worlds: processes that a test moves by hand, random numbers, and scripts.

mod chance;
mod rig;
pub(crate) mod script;

pub(crate) use self::{
    chance::Chance,
    rig::{Rig, Trace, Traced, millis, play},
};
