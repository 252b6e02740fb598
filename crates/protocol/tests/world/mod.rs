//! What worlds of processes are made of: processes that are moved by hand, chance, and scripts of what happens.

mod chance;
mod rig;
pub(crate) mod script;

pub(crate) use self::{
    chance::Chance,
    rig::{Rig, Trace, Traced, millis, play},
};
