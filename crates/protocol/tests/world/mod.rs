//! What worlds of processes are made of: the links between them, what one puts out, chance, and scripts of what happens.

mod chance;
mod links;
mod outputs;
mod rig;
pub(crate) mod script;

pub(crate) use self::{
    chance::Chance,
    links::Links,
    outputs::Outputs,
    rig::{Rig, Trace, Traced, millis, play},
};
